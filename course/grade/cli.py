"""`course grade ...`: what an instructor calls. What a command needs is imported when it is called."""

import argparse
import gc
import re
from pathlib import Path

from course.grade.results.page import clean
from course.paths import CourseError, relative
from course.runner import Parser

ABOUT = {  # what each command does, in full, and an example
    "run": (
        "Grade the latest submission of each student, in a sandbox. What is graded already stays, so that a run that was\n"
        "interrupted goes on where it stopped.",
        "course grade run 04 --submissions collected/ --jobs 2",
    ),
    "regrade": (
        "Grade submissions again, those of a set or of one student. The points that a person gave stay.",
        "course grade regrade 04 --student kim --submissions collected/",
    ),
    "selfcheck": (
        "Does the sandbox hold on this machine? Each line is something that a submission could try.",
        "course grade selfcheck",
    ),
    "feedback": (
        "Write a page for each student into results/04_attention/feedback/. Of a hidden check it shows the name and the points.",
        "course grade feedback 04",
    ),
    "summary": (
        "How the class did, task by task, with solutions that read alike: results/04_attention/summary.html. Without NN it\n"
        "prints a line for each set of the term.",
        "course grade summary 04",
    ),
    "totals": (
        "Write one table of all sets, a row for each student: the points of every set after lateness, and the mean share of\n"
        "them in percent.",
        "course grade totals --deadlines deadlines.csv --late 2 --late-days 5 --drop-lowest 2",
    ),
    "marks": (
        "Write results/04_attention/marks.csv, a row for each answer that a person reads. Enter points and comments there.",
        "course grade marks 04",
    ),
    "show": (
        "Print everything about one student's submission, hidden checks too; without NN, of all sets.",
        "course grade show finn 04",
    ),
    "export": (
        "Write the scores of a set for another system. An answer without points counts 0, and the command warns of it.",
        "course grade export 04 --to nbgrader --roster roster.csv --due 2026-11-20T23:59 --late 2",
    ),
    "bundle": (
        "Write a zip with the grader of a set, to be uploaded to Gradescope or PrairieLearn.",
        "course grade bundle gradescope 04 --out gradescope-04.zip",
    ),
}


ODD = re.compile(r"_late_|-copy\d|(^|_)\d\d[a-z]?_[a-z]+", re.IGNORECASE)  # a system's or a set's name


def parser() -> argparse.ArgumentParser:
    from course.grade.desk import add_commands

    top = Parser(
        prog="course grade",
        description="Score submissions, mark answers, and return the results. exercises/README.md shows all steps in order.",
        epilog="Example: course grade run 04 --submissions collected/",
    )
    commands = top.commands()
    for name, words in {
        "run": "grade submissions; what is graded already stays",
        "regrade": "grade submissions, also those that are graded",
    }.items():
        run = commands.add_parser(name, help=words)
        add_place(run)
        run.add_argument(
            "--submissions", type=Path, required=True, metavar="DIR", help="the collected notebooks"
        )
        run.add_argument("--jobs", type=int, default=1, metavar="N", help="submissions at a time (default 1)")
        run.add_argument(
            "--timeout", type=float, metavar="S", help="seconds a check, in place of its own limit"
        )
        run.add_argument(
            "--pattern",
            metavar="REGEX",
            help="of the files' names: (?P<student_id>...) and (?P<timestamp>...)",
        )
        if name == "regrade":
            run.add_argument("--student", action="append", default=[], help="this one (default: all)")
        add_backend(run)
        run.set_defaults(call=call_run, force=name == "regrade")
    check = commands.add_parser("selfcheck", help="does the sandbox on this machine hold?")
    add_backend(check)
    check.set_defaults(call=call_selfcheck)
    add_commands(commands)
    for name, made in commands.choices.items():
        made.description, example = ABOUT[name]
        made.epilog = f"Example: {example}"
    return top


def add_place(command: argparse.ArgumentParser) -> None:
    """The exercise, and where its results are: the same words in every command."""
    command.add_argument("exercise", metavar="EX", help="a chapter's number, or an exercise set's folder")
    command.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="default: results/"
    )


def add_backend(command: argparse.ArgumentParser) -> None:
    from course.grade.sandbox.sandbox import NAMES

    command.add_argument("--backend", choices=NAMES, help="default: the first of these that works here")
    command.add_argument(
        "--image", default="", help="for docker and podman: an image with Python and PyTorch"
    )
    command.add_argument(
        "--i-trust-these-submissions", action="store_true", dest="trusted", help="run them without a sandbox"
    )


def call_run(args) -> int:
    from course.exercises.sets import folder_of, read
    from course.grade.sandbox import anew, sandbox
    from course.grade.sandbox.warm import Options, preload
    from course.grade.submission import PATTERN, collect

    if args.jobs < 1 or (args.timeout is not None and args.timeout <= 0):
        raise CourseError("--jobs and --timeout are numbers above zero")
    found, others = collect(args.submissions, args.pattern or PATTERN)
    wanted = set(getattr(args, "student", []))
    if unknown := wanted - {one.student for one in found}:
        raise CourseError(f"no submission of {', '.join(sorted(unknown))} in {args.submissions}")
    found = [one for one in found if not wanted or one.student in wanted]
    if not found:
        raise CourseError(f"no submissions in {args.submissions}")
    folder = folder_of(args.exercise)
    backend = "bubblewrap" if args.template else sandbox.choose(args.backend, args.trusted, args.image)
    if backend == "bubblewrap" and args.jobs == 1 and args.words:
        anew.begin(["grade", *args.words], preload(folder))  # comes back here with a template
    if odd := [one.student for one in found if ODD.search(one.student)]:
        print(
            f"warning: {len(odd)} of the names do not look like students; see --pattern: {clean(', '.join(odd[:5]))}"
        )
    if others:
        print(f"{len(others)} files are no submissions by their names: {clean(', '.join(others[:5]))}")
    if backend == "container":
        sandbox.hide([*sandbox.unneeded(), folder, args.results, args.submissions])
    gc.disable()  # an import makes much and frees little
    from course.grade import run

    made = read(folder)
    gc.freeze()  # nor is there much to find in it when we end
    gc.enable()
    options = Options(backend, args.timeout, args.image)
    graded = run.run(made, found, args.results, options, args.jobs, args.force, args.template)
    return report(graded, len(found), relative(args.results / made.name), backend)


def report(graded: list[dict], found: int, where: str, backend: str) -> int:
    """One line a verdict; exit code 1 where we failed, for those are to be graded again."""
    kept = f", {found - len(graded)} kept" if found > len(graded) else ""
    print(f"{len(graded)} graded with {backend}{kept}; results in {where}/")
    for verdict in ("invalid_submission", "infrastructure_error"):
        these = [one for one in graded if one["verdict"] == verdict]
        for one in these[:20]:
            print(f"  {verdict}: {one['student']}: {clean(one['message'])}")
        if len(these) > 20:
            print(f"  {verdict}: {len(these) - 20} more")
    return 1 if any(one["verdict"] == "infrastructure_error" for one in graded) else 0


def call_selfcheck(args) -> int:
    from course.grade.sandbox import sandbox
    from course.grade.sandbox.selfcheck import selfcheck

    return selfcheck(sandbox.choose(args.backend, args.trusted, args.image), args.image)


def main(argv: list[str], template=None, is_program: bool = False) -> int:
    """template: the one that this process was forked from; is_program: this process may begin anew."""
    args = parser().parse_args(argv)
    args.template, args.words = template, argv if is_program else []
    return args.call(args)
