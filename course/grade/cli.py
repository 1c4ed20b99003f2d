"""`course grade ...`: what an instructor calls. What a command needs is imported when it is called."""

import argparse
import gc
from pathlib import Path

from course.grade.results.page import clean
from course.paths import CourseError, relative
from course.runner import Parser


def parser() -> argparse.ArgumentParser:
    from course.grade.desk import add_commands

    top = Parser(
        prog="course grade",
        description="Score submissions, and hand back what came of it; exercises/README.md has the whole cycle.",
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
    from course.exercises.sets import exercise_folder, read
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
    folder = exercise_folder(args.exercise)
    backend = "bubblewrap" if args.template else sandbox.choose(args.backend, args.trusted, args.image)
    if backend == "bubblewrap" and args.jobs == 1 and args.words:
        anew.begin(["grade", *args.words], preload(folder))  # comes back here with a template
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
