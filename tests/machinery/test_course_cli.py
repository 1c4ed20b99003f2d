"""`course` and `python -m nanogpt` answer alike: what they say, and by which exit code."""

import inspect

import pytest

from course import cli
from course import runner as course_runner
from course.grade import cli as grade
from nanogpt import cli as package_cli

MAINS = {"course": cli.main, "nanogpt": package_cli.main}


@pytest.mark.parametrize("name", MAINS)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "COMMAND --help"),
        (["--help"], 0, "Exit codes: 0 all went well"),
        (["evaluate"], 2, "no command 'evaluate'; try "),
        (["plan", "--modle", "x"], 2, None),
    ],
)
def test_both_programs_answer_alike(name, words, code, said, capsys):
    assert MAINS[name](words) == code
    out, err = capsys.readouterr()
    assert (out if code == 0 else err).strip() and not (err if code == 0 else out)
    assert err.count("\n") == (code != 0), "one line"
    assert said is None or said in out + err


@pytest.mark.parametrize("outcome", [course_runner.outcome, package_cli.outcome], ids=["course", "nanogpt"])
@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (OSError(28, "No space left on device", "x"), 2, "name: "),
        (KeyboardInterrupt("the run goes on"), 130, "name: stopped; the run goes on"),
        (SystemExit(0), 0, ""),
    ],
)
def test_an_error_has_one_line_and_one_exit_code_in_both(outcome, raised, code, said, capsys):
    def call():
        raise raised

    assert outcome("name", call) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err and len(err.strip().splitlines()) == (code > 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restore"], "course: NN is missing, as in `course restore 04`"),
        (["run", "99"], "course: no chapter '99' in notebooks/; "),
        (["run", "--fron", "03"], "course: unrecognized arguments: --fron"),
    ],
)
def test_a_wrong_call_is_one_line_that_says_how(words, said, capsys):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1


GROUPS = ["exercises", "grade"]
NAMES = [[name] for name in cli.COMMANDS if name not in GROUPS]
NAMES += [[group, name] for group, its in zip(GROUPS, (cli.EXERCISES, grade.ABOUT)) for name in its]


@pytest.mark.parametrize("words", NAMES, ids=" ".join)
def test_help_says_what_a_command_does_and_gives_an_example(words, capsys):
    assert cli.main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    says = out.partition("\n\n")[2].partition("\n\n")[0]
    assert out.startswith(f"usage: course {' '.join(words)}") and not says.startswith("options")
    assert f"Example: course {' '.join(words)}" in out
    assert cli.main(words[:-1]) == 0 and f" {words[-1]}" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_commands_function_takes_its_options(name):
    command = cli.COMMANDS[name]
    if ":" in str(command.call) and name not in ("grade", "lab", "test"):  # which read their own words
        needs_one = any(names[0][0] != "-" and "nargs" not in more for names, more in command.options)
        given = vars(cli.parser().parse_args([name, *["04"] * needs_one]))
        inspect.signature(cli.load(command.call)).bind(**{key: given[key] for key in given if key != "call"})
