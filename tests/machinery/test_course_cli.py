"""`course` and `python -m nanogpt` answer alike: what they say, and by which exit code."""

import re

import pytest

from course import cli
from course import runner as course_runner
from course.paths import CourseError
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
        (None, 0, ""),
        (OSError(28, "No space left on device", "x"), 2, "name: "),
        (KeyboardInterrupt("the run goes on"), 130, "name: stopped; the run goes on"),
        (SystemExit(0), 0, ""),
    ],
)
def test_an_error_has_one_line_and_one_exit_code_in_both(outcome, raised, code, said, capsys):
    def call():
        if raised is not None:
            raise raised

    assert outcome("name", call) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err and len(err.strip().splitlines()) == (code > 0)


@pytest.mark.parametrize("words", [["exercises"], ["grade"]], ids=" ".join)
def test_a_group_of_commands_alone_prints_what_it_has(words, capsys):
    assert cli.main(words) == 0
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restore"], "course: NN is missing, as in `course restore 04` (course restore --help)"),
        (["check"], "course: NN is missing, as in `course check 04` (course check --help)"),
        (["data"], "course: NAME is missing, as in `course data tinyshakespeare` (course data --help)"),
        (["exercises", "lst"], "course: no command 'lst'; try course exercises list"),
        (["run", "99"], "course: no chapter '99' in notebooks/; "),
        (["run", "--fron", "03"], "course: unrecognized arguments: --fron"),
    ],
)
def test_a_wrong_call_is_one_line_that_says_how(words, said, capsys):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_says_what_a_command_does_and_gives_an_example(name, capsys):
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    says = out.partition("\n\n")[2].partition("\n\n")[0]
    assert out.startswith(f"usage: course {name}") and len(says.split()) >= 5
    assert "Example: course " in out or name in ("grade", "exercises", "data")


@pytest.mark.parametrize("top", ["grade", "exercises"])
def test_help_of_an_instructors_command_says_what_it_does_and_gives_an_example(top, capsys):
    cli.main([top, "--help"])
    names = re.findall(r"^    ([a-z]+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert len(names) >= 3
    for name in names:
        assert cli.main([top, name, "--help"]) == 0
        out = capsys.readouterr().out
        says = out.partition("\n\n")[2].partition("\n\n")[0]
        assert not says.startswith(("positional", "options")) and len(says.split()) >= 5, out
        assert f"Example: course {top} {name}" in out, out


def test_every_command_is_in_the_one_list_of_help():
    listed = re.findall(r"^(?:for \w+)? +course ([a-z]+)", cli.HELP.partition("for CI")[0], re.MULTILINE)
    assert sorted(listed) == sorted(cli.COMMANDS)


def test_what_a_course_command_raises_is_its_message(monkeypatch, capsys):
    def damaged(args):
        raise CourseError("what, where, the remedy")

    monkeypatch.setattr(cli, "call_progress", damaged)
    assert cli.main(["progress"]) == 2
    assert capsys.readouterr().err == "course: what, where, the remedy\n"
