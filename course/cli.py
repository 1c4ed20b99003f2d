"""`course ...`: its commands, with what each takes and the function that does it, which is imported when it is called."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name as load

from course.paths import CourseError, chapters, notebook_path, number_of, source_chapters, source_path
from course.runner import CODES, Parser, outcome


def main(argv: list[str] | None = None, template=None) -> int:
    """One command; its exit code, as CODES says. template: the grader's process that this one was forked from."""
    words, is_program = (sys.argv[1:], True) if argv is None else (argv, False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # not every terminal can show every character

    def chosen() -> int | None:
        name, rest = words[0] if words else "--help", words[1:]
        if name in ("-h", "--help"):
            print(USAGE)
            return 0
        if name == "grade":
            return load("course.grade.cli:main")(rest, template, is_program)
        if name in ("lab", "test") and not {"-h", "--help"} & set(rest):
            return load(COMMANDS[name].call)(rest)
        args = parser().parse_args(words)
        return args.call(args)

    return outcome("course", chosen)


def parser() -> Parser:
    top = Parser(prog="course")
    commands = top.commands()
    for name, command in COMMANDS.items():
        made = add(commands, name, command)
        if name == "exercises":
            below = made.commands()
            for one, its in EXERCISES.items():
                add(below, one, its)
    return top


def add(commands, name: str, command: "Command") -> Parser:
    made = commands.add_parser(name, help=command.line, description=command.about)
    made.epilog = f"Example: {command.example or made.prog}"
    for names, settings in command.options:
        made.add_argument(*names, **settings)
    made.set_defaults(call=partial(call, command))
    return made


def call(command: "Command", args) -> int | None:
    """Its function, with the options as arguments: what it returns is an exit code (None: all well), or a text to be printed."""
    if callable(command.call):
        return command.call(args)
    given = {name: value for name, value in vars(args).items() if name != "call"}
    said = load(command.call)(**given)
    if isinstance(said, int | None):
        return said
    print(said if isinstance(said, str) else "\n".join(said))
    return 0


def option(*names: str, **settings) -> tuple:
    return names, settings


def flag(name: str, help: str) -> tuple:
    return option(name, action="store_true", help=help)


def source(chapter: str) -> str:
    """The number of a chapter that has a source. CourseError says what there is, before anything is imported."""
    return number_of(source_path(chapter))


def notebook(chapter: str) -> str:
    return number_of(notebook_path(chapter))


def chosen_chapters(args) -> list[str]:
    there = chapters()
    if args.chapters and (args.first or args.last):
        raise CourseError("name chapters, or a range with --from and --to, not both")
    if args.chapters:
        return sorted(set(args.chapters))
    first, last = args.first or there[0], args.last or there[-1]
    chosen = [chapter for chapter in there if first <= chapter and chapter[: len(last)] <= last]
    if not chosen:
        raise CourseError(f"--from {first} comes after --to {last}")
    return chosen


def run(args) -> None:
    load("course.notebooks.run:run")(chosen_chapters(args), record=args.record)


def build(args) -> int:
    from course.notebooks.build import build, check

    if args.check:
        return report_differences(check, args.chapters or source_chapters())
    for chapter in args.chapters or source_chapters():
        print(build(chapter, args.draft, args.again), flush=True)
    return 0


def checkpoint(args) -> int:
    chosen = chapters() if args.all else args.chapters
    if not chosen:
        raise CourseError("which chapter? `course checkpoint 04`, or --all")
    from course.package.checkpoint import check_chapter, checkpoint_chapter

    if args.check:
        return report_differences(check_chapter, chosen)
    for chapter in chosen:
        print("\n".join(checkpoint_chapter(chapter)), flush=True)
    return 0


def report_differences(check, chosen: list[str]) -> int:
    differences = list(filter(None, map(check, chosen)))
    print("\n".join(differences) if differences else f"{len(chosen)} chapters agree")
    return 1 if differences else 0


class Command:
    """One of `course`: its help, whose first sentence is its line in the list of all, and the function that does it.

    call: "module:function", whose arguments are the options; or a function of this module, given what argparse has read.
    example: where there is more to type than the name.
    """

    def __init__(self, about: str, call: str | Callable, *options: tuple, example: str = ""):
        self.about, self.call, self.options, self.example = about, call, options, example
        self.line = re.match(r".+?[.?](?=\s|$)", about)[0]


CHAPTER = option("chapter", metavar="NN", type=source, help="the chapter's number")
CHECK = flag("--check", "write nothing; show differences, exit 1 if any")
STUDENTS = {
    "doctor": Command(
        "Is this machine ready? One line for each thing that the course needs: green is fine, yellow can be improved (the\n"
        "line says how), red has to be fixed first. The last line is the verdict.",
        "course.machine.doctor:doctor",
    ),
    "lab": Command(
        "Start JupyterLab at chapter 00. All further arguments go to JupyterLab.",
        "course.machine.lab:lab",
        example="course lab --no-browser --port 8889",
    ),
    "run": Command(
        "Execute notebooks in order, each with its checkpoint. The executed copies go to runs/; the notebooks themselves stay\n"
        "as they are. It stops at the first cell that fails, and says which command goes on from there.",
        run,
        option("chapters", nargs="*", metavar="NN", type=notebook, help="these (default: all)"),
        option("--from", dest="first", metavar="NN", type=notebook, help="first chapter (default 00)"),
        option("--to", dest="last", metavar="NN", type=notebook, help="last chapter (default: the last)"),
        flag("--record", "keep the times as this course's measured times"),
        example="course run 04 05    or    course run --from 04",
    ),
    "checkpoint": Command(
        "Export a notebook's finished code into nanogpt/, if it imports and its tests pass. If not, the old modules stay as\n"
        "they are. A chapter's last cell does the same.",
        checkpoint,
        option("chapters", nargs="*", metavar="NN", type=notebook, help="the chapters' numbers"),
        flag("--all", "every chapter, in order"),
        CHECK,
        example="course checkpoint 04",
    ),
    "restore": Command(
        "Bring a chapter's notebook and modules back to the released state. It shows what would change and asks first. Your\n"
        "versions are kept in yours/, in a folder named after the moment.",
        "course.notebooks.restore:restore",
        CHAPTER,
        option("--yes", dest="ask", action="store_false", help="do not ask"),
        example="course restore 04",
    ),
    "start": Command(
        "Begin with an empty nanogpt/, which your checkpoints fill. What was yours is kept in yours/; `course package`\n"
        "brings the complete package back.",
        "course.states.start:start",
        option("--at", metavar="NN", type=source, help="begin there, with what the chapters before it build"),
        flag("--blank", "notebooks in which you write the main functions"),
        example="course start --at 07 --blank",
    ),
    "package": Command(
        "Bring the complete nanogpt/ back, as it was released. What was yours is kept in yours/.",
        "course.states.start:package",
    ),
    "solution": Command(
        "Print our body of a function that the chapter leaves to you.",
        "course.package.hand_out:solution",
        CHAPTER,
        option("name", metavar="NAME", nargs="?", help="without it, the names of the blanks"),
        example="course solution 04 attention_weights",
    ),
    "check": Command(
        "Run the visible checks of your exercises, without a network. It says of each task whether it passes or why it does\n"
        "not. Exit code 1 if a task does not pass yet.",
        "course.exercises.check:call_check",
        option("which", metavar="NN", help="a chapter's set in released/, or the path of a notebook"),
        example="course check 04    or    course check path/to/notebook.ipynb",
    ),
    "progress": Command(
        "Show which checkpoints and tasks have passed, and your predictions. With the minutes planned for both, and the\n"
        "predictions' errors.",
        "course.exercises.progress:call_progress",
    ),
    "update": Command(
        "Fetch the newest chapters with git. A file that you changed is kept in yours/.",
        "course.notebooks.update:update",
    ),
    "data": Command(
        "Download a real text into data/downloads. tinyshakespeare is one text of 1.1 MB (Karpathy's char-rnn), hellaswag\n"
        "12 MB of questions (Zellers et al. 2019). `python -m nanogpt prepare` makes shards of them.",
        "course.machine.data:data",
        option("name", metavar="NAME", help="tinyshakespeare or hellaswag"),
        example="course data tinyshakespeare",
    ),
}
SETS = option("chapters", nargs="*", metavar="NN", help="these sets (default: all), or project, or final")
EXERCISES = {
    "list": Command(
        "Print all tasks, three syllabi, and the hours of each week of a term, as exercises/TASKS.md has them.",
        "course.exercises.table:list_tasks",
        flag("--write", "into exercises/TASKS.md"),
    ),
    "release": Command(
        "Write the notebooks that students get, without solutions and hidden checks. Or the project, or the final.\n"
        "With --public it is a complete course for a class.",
        "course.exercises.release:call_release",
        SETS,
        option("--to", metavar="FOLDER", type=Path, help="where they go (default: released/)"),
        option("--public", metavar="FOLDER", type=Path, help="a class's repository, without solutions"),
        example="course exercises release 04 --to handout\n"
        "         course exercises release --public ../gpt2-class",
    ),
    "key": Command(
        "Write a set with its solutions, the points of each check, and what students are told about wrong solutions.",
        "course.exercises.release:write_keys",
        SETS,
        option("--to", metavar="FOLDER", type=Path, help="where they go (default: build/keys/)"),
        example="course exercises key 04",
    ),
}
INSTRUCTORS = {
    "exercises": Command(
        "List the tasks, make what students get, and the key.", "", example="course exercises release 04"
    ),
    "grade": Command(
        "Score submissions, mark answers, and export the results.",
        "course.grade.cli:main",
        example="course grade run 04 --submissions DIR",
    ),
    "slides": Command(
        "Write a deck of slides for each part, to be shown in a browser. All of it comes from the executed notebooks.",
        "course.site.slides:write_slides",
        option("folder", metavar="FOLDER", type=Path, help="where the decks go"),
        example="course slides slides",
    ),
}
AUTHORS = {
    "build": Command(
        "Make a notebook from its source in notebooks/src, and execute it.",
        build,
        option("chapters", nargs="*", metavar="NN", type=source, help="chapters (default: all)"),
        flag("--draft", "do not execute"),
        flag("--again", "execute also where no code has changed"),
        CHECK,
        example="course build 04 --draft    or    course build --check",
    ),
    "readme": Command(
        "Compare the counts, hours and tables of README and site with the repository. Exit code 1 if they differ.",
        "course.site.readme:readme",
        flag("--write", "into the pages (default: show what differs)"),
        example="course readme --write",
    ),
    "site": Command(
        "Build the course as a book from the committed outputs, in build/site/html. Nothing is executed.",
        "course.site.build:site",
    ),
    "test": Command(
        "Run what CI runs: every notebook, and all tests but the weekly ones, which say the same on a larger scale. With `weekly`\n"
        "they run too; with `quick` it is the laws of the repository, the drift check and the core's fast tests, in two minutes.\n"
        "With other arguments, it is one pytest with these arguments.",
        "course.testing.run:test",
        example="course test -k tokenizer",
    ),
}
COMMANDS = STUDENTS | INSTRUCTORS | AUTHORS
HELP = "\n\n".join(
    f"for {who}:\n" + "\n".join(f"  course {name:12} {command.line}" for name, command in group.items())
    for who, group in {"students": STUDENTS, "instructors": INSTRUCTORS, "authors": AUTHORS}.items()
)
USAGE = f"""usage: course COMMAND [options]

{HELP}

course COMMAND --help    what a command does, its options, an example
{CODES}"""


if __name__ == "__main__":
    raise SystemExit(main())
