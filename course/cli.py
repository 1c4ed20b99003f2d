"""`course ...`: run, build, checkpoint, restore, doctor, data."""

import argparse
import subprocess
import sys

from course.paths import ROOT, CourseError, chapters, plainly, source_chapters

HELP = """\
for students      course doctor          is this machine ready?
                  course run             execute all notebooks (--from 02 --to 05)
                  course checkpoint 04   export a notebook's finished code into nanogpt/
                  course restore 04      bring a chapter back to the released state
                  course data NAME       download tinyshakespeare, fineweb-edu or hellaswag
                  course lab             JupyterLab at chapter 00
for authors       course build 04        notebooks/src/04_*.py -> executed notebook
                  course pull 04         an edit made in the notebook -> its source
                  course test            all tests, every notebook, the drift check (course test -k tokenizer)
for CI            course build --check; course checkpoint --all --check
"""


# Every notebook is a test: its fresh outputs must be the committed ones, durations aside.
NBVAL = [
    "--nbval",
    "--nbval-current-env",
    "--nbval-sanitize-with=tests/nbval.cfg",
    "--nbval-cell-timeout=300",
]


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["data"]:
        from course.fetch import main as data

        return data(argv[1:])
    if argv[:1] == ["test"]:
        return subprocess.run([sys.executable, "-m", "pytest", *NBVAL, *argv[1:]], cwd=ROOT).returncode
    args = parser().parse_args(argv)
    try:
        return args.call(args)
    except CourseError as error:
        print(f"course: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that cannot be written
        print(f"course: {plainly(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ncourse: stopped; nothing is half-written", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="course", epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="execute the notebooks in order and checkpoint each")
    run.add_argument("--from", dest="first", metavar="NN", default="00", help="first chapter (default 00)")
    run.add_argument("--to", dest="last", metavar="NN", default="99", help="last chapter (default: the last)")
    run.add_argument("--record", action="store_true", help="keep the times as this course's measured times")
    run.set_defaults(call=call_run)

    build = commands.add_parser("build", help="make notebooks from notebooks/src (authors)")
    build.add_argument("chapters", nargs="*", metavar="NN", help="chapters (default: all)")
    build.add_argument("--draft", action="store_true", help="do not execute")
    build.add_argument("--check", action="store_true", help="write nothing; show differences, exit 1 if any")
    build.set_defaults(call=call_build)

    pull = commands.add_parser("pull", help="bring a notebook's edit back into notebooks/src (authors)")
    pull.add_argument("chapter", metavar="NN")
    pull.set_defaults(call=call_pull)

    checkpoint = commands.add_parser(
        "checkpoint", help="export a notebook's code into nanogpt/, if its tests pass"
    )
    checkpoint.add_argument("chapters", nargs="*", metavar="NN")
    checkpoint.add_argument("--all", action="store_true", help="every chapter, in order")
    checkpoint.add_argument(
        "--check", action="store_true", help="write nothing; show differences, exit 1 if any"
    )
    checkpoint.set_defaults(call=call_checkpoint)

    restore = commands.add_parser(
        "restore", help="bring a chapter back to the released state, keeping your version beside it"
    )
    restore.add_argument("chapter", metavar="NN")
    restore.add_argument("--yes", action="store_true", help="do not ask")
    restore.set_defaults(call=call_restore)

    doctor = commands.add_parser("doctor", help="check this machine; one line each, with the remedy")
    doctor.set_defaults(call=call_doctor)

    lab = commands.add_parser("lab", help="JupyterLab at chapter 00")
    lab.set_defaults(call=call_lab)

    commands.add_parser("test", help="all tests and notebooks; further arguments go to pytest")
    commands.add_parser("data", help="download a data set: course data --help")
    return top


def call_run(args) -> int:
    from course.run import run

    return run([c for c in chapters() if args.first <= c <= args.last], record=args.record)


def call_build(args) -> int:
    from course.build import build, check

    if args.check:
        return report_differences(check, args.chapters or source_chapters())
    for chapter in args.chapters or source_chapters():
        print(build(chapter, draft=args.draft), flush=True)
    return 0


def call_pull(args) -> int:
    from course.pull import pull

    print(pull(args.chapter))
    return 0


def call_checkpoint(args) -> int:
    from course.checkpoint import check_chapter, checkpoint_chapter

    chosen = chapters() if args.all else args.chapters
    if not chosen:
        raise CourseError("which chapter? `course checkpoint 04`, or --all")
    if args.check:
        return report_differences(check_chapter, chosen)
    for chapter in chosen:
        print("\n".join(checkpoint_chapter(chapter)), flush=True)
    return 0


def call_restore(args) -> int:
    from course.restore import restore

    return restore(args.chapter, ask=not args.yes)


def call_doctor(args) -> int:
    from course.doctor import doctor

    return doctor()


def call_lab(args) -> int:
    from course.doctor import trusted_environment

    command = [sys.executable, "-m", "jupyterlab", "notebooks/00_setup.ipynb"]
    return subprocess.run(command, cwd=ROOT, env=trusted_environment()).returncode


def report_differences(check, chosen: list[str]) -> int:
    differences = list(filter(None, map(check, chosen)))
    print("\n".join(differences) if differences else f"{len(chosen)} chapters agree")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
