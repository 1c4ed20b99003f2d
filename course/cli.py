"""`course ...`: run, build, checkpoint, restore, doctor, data. What a command needs is imported when it is called."""

import argparse
import sys
from pathlib import Path

from course.paths import (
    CourseError,
    chapters,
    notebook_path,
    plainly,
    source_chapters,
    source_path,
    two_digits,
)

HELP = """\
for students      course doctor          is this machine ready? (--distributed: can two processes talk, how fast?)
                  course run             execute all notebooks (course run 04 05, course run --from 04)
                  course lab             JupyterLab at chapter 00; further arguments go to it (--no-browser --port 8889)
                  course checkpoint 04   export a notebook's finished code into nanogpt/
                  course solution 04 attention_weights   our body of a function that the chapter leaves to you
                  course restore 04      bring a chapter back to the released state, keeping yours beside it
                  course start           begin with an empty nanogpt/ that your checkpoints fill (--at 07: as after
                                         chapter 06; --blank: and notebooks whose main functions you write)
                  course package         the complete nanogpt/ back, keeping yours beside it
                  course update          the newest chapters, keeping beside them what you changed (git)
                  course data NAME       download tinyshakespeare, fineweb-edu or hellaswag
                  course check 04        the visible checks of your exercises (released/, or a path)
                  course progress        chapters, tasks, minutes, and your predictions with their errors
for instructors   course exercises       list (all tasks); release 04 (what students get);
                                         release --chapter 04 --blank (the chapter, its blanks empty);
                                         release --all --public FOLDER (a class's repository, without solutions);
                                         key 04 (its solutions, and what gives points)
                  course grade           run, regrade, marks, feedback, show, summary, totals, export, bundle, selfcheck
for authors       course build 04        notebooks/src/04_*.py -> executed notebook
                  course pull 04         an edit made in the notebook -> its source
                  course site            the course as a book, in build/site/html
                  course pictures        the pictures of README and site, drawn from data/measurements
                  course publish URL     the repository's address: README, badges, first cells, pyproject.toml
                  course test            all tests, every notebook, the drift check (course test -k tokenizer)
for CI            course build --check; course checkpoint --all --check
"""


def main(argv: list[str] | None = None, template=None) -> int:
    """One command. Exit code 0, 1 where it could not be done (one line says why), 2 for bad usage, 130 after Ctrl-C."""
    argv, is_program = (sys.argv[1:], True) if argv is None else (argv, False)
    try:
        if argv[:1] == ["data"]:
            from course.machine.data import main as data

            return data(argv[1:])
        if argv[:1] == ["grade"]:
            from course.grade.cli import main as grade

            return grade(argv[1:], template, is_program)
        if argv[:1] == ["test"]:
            from course.testing.run import test

            return test(argv[1:])
        if argv[:1] == ["lab"] and not {"-h", "--help"} & set(argv):
            from course.machine.lab import lab

            return lab(argv[1:])
        args = parser().parse_args(argv)
        return args.call(args)
    except CourseError as error:
        print(f"course: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # a full disk, a folder that cannot be written
        print(f"course: {plainly(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print(
            f"\ncourse: stopped; {stopped.args[0] if stopped.args else 'nothing is half-written'}",
            file=sys.stderr,
        )
        return 130


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="course", epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="execute the notebooks in order and checkpoint each")
    run.add_argument("chapters", nargs="*", metavar="NN", help="these chapters (default: all)")
    run.add_argument("--from", dest="first", metavar="NN", help="first chapter (default 00)")
    run.add_argument("--to", dest="last", metavar="NN", help="last chapter (default: the last)")
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

    solution = commands.add_parser("solution", help="the released body of a function of a chapter")
    solution.add_argument("chapter", metavar="NN")
    solution.add_argument("name", metavar="NAME", help="attention_weights, or GPT.forward")
    solution.set_defaults(call=call_solution)

    restore = commands.add_parser(
        "restore", help="bring a chapter back to the released state, keeping your version beside it"
    )
    restore.add_argument("chapter", metavar="NN")
    restore.add_argument("--yes", action="store_true", help="do not ask")
    restore.set_defaults(call=call_restore)

    start = commands.add_parser("start", help="an empty package that your checkpoints fill; yours is kept")
    start.add_argument("--at", metavar="NN", help="begin there, with what the chapters before it build")
    start.add_argument("--blank", action="store_true", help="notebooks in which you write the main functions")
    start.set_defaults(call=call_start)

    package = commands.add_parser("package", help="the complete package back; yours is kept beside it")
    package.set_defaults(call=call_package)

    doctor = commands.add_parser("doctor", help="check this machine; one line each, with the remedy")
    doctor.add_argument(
        "--distributed", action="store_true", help="can two processes here talk, and how fast?"
    )
    doctor.set_defaults(call=call_doctor)

    update = commands.add_parser("update", help="the newest chapters; what you changed is kept beside them")
    update.set_defaults(call=call_update)

    exercises = commands.add_parser("exercises", help="list all tasks; release what students get")
    which = exercises.add_subparsers(required=True, metavar="COMMAND")
    tasks = which.add_parser("list", help="the table of tasks, and three syllabi")
    tasks.add_argument("--write", action="store_true", help="into exercises/TASKS.md")
    tasks.set_defaults(call=call_tasks)
    release = which.add_parser("release", help="the notebooks that students get, without solutions")
    release.add_argument("chapters", nargs="*", metavar="NN", help="these sets (default: all)")
    release.add_argument("--to", metavar="FOLDER", help="where they go (default: released/)")
    release.add_argument("--chapter", metavar="NN", help="with --blank: the chapter itself")
    release.add_argument("--blank", action="store_true", help="without the bodies that students write")
    release.add_argument(
        "--nbgrader", metavar="FOLDER", help="keep an nbgrader course there, with its gradebook.db"
    )
    release.add_argument("--all", action="store_true", help="all sets, as without NN")
    release.add_argument(
        "--public", metavar="FOLDER", help="the repository that a class gets: the course without solutions"
    )
    release.set_defaults(call=call_release)
    key = which.add_parser("key", help="a set with its solutions and what gives points, for whoever marks")
    key.add_argument("chapters", nargs="*", metavar="NN", help="these sets (default: all)")
    key.add_argument("--to", metavar="FOLDER", help="where they go (default: build/keys/)")
    key.set_defaults(call=call_key)

    check = commands.add_parser("check", help="the visible checks of your exercises, offline")
    check.add_argument("which", metavar="NN", help="a chapter's set in released/, or the path of a notebook")
    check.set_defaults(call=call_check)

    progress = commands.add_parser("progress", help="chapters, tasks, minutes, predictions")
    progress.set_defaults(call=call_progress)

    site = commands.add_parser("site", help="the course as a book, in build/site/html")
    site.set_defaults(call=call_site)

    drawn = commands.add_parser("pictures", help="the pictures of README and site, in site/pictures")
    drawn.set_defaults(call=call_pictures)

    publish = commands.add_parser("publish", help="write the repository's address wherever it belongs")
    publish.add_argument("url", metavar="https://github.com/NAME/REPOSITORY")
    publish.set_defaults(call=call_publish)

    commands.add_parser("grade", help="score submissions (instructors): course grade --help")
    commands.add_parser("lab", help="JupyterLab at chapter 00; further arguments go to JupyterLab")
    commands.add_parser("test", help="all tests and notebooks; further arguments go to pytest")
    commands.add_parser("data", help="download a data set: course data --help")
    return top


def chosen_chapters(args) -> list[str]:
    """The chapters that `course run` was asked for, in order."""
    there = chapters()
    for chapter in [*args.chapters, *filter(None, (args.first, args.last))]:
        notebook_path(chapter)  # which says what there is
    if args.chapters and (args.first or args.last):
        raise CourseError("name chapters, or a range with --from and --to, not both")
    if args.chapters:
        return sorted({two_digits(chapter) for chapter in args.chapters})
    first, last = two_digits(args.first or there[0]), two_digits(args.last or there[-1])
    chosen = [chapter for chapter in there if first <= chapter and chapter[: len(last)] <= last]
    if not chosen:
        raise CourseError(
            f"--from {args.first} --to {args.last} names no chapter: {first} comes after {last}"
        )
    return chosen


def call_run(args) -> int:
    chosen = chosen_chapters(args)
    from course.notebooks.run import run

    return run(chosen, record=args.record)


def call_build(args) -> int:
    list(map(source_path, args.chapters))  # a wrong number is told before anything is imported
    from course.notebooks.build import build, check

    if args.check:
        return report_differences(check, args.chapters or source_chapters())
    for chapter in args.chapters or source_chapters():
        print(build(chapter, draft=args.draft), flush=True)
    return 0


def call_pull(args) -> int:
    source_path(args.chapter)
    from course.notebooks.pull import pull

    print(pull(args.chapter))
    return 0


def call_checkpoint(args) -> int:
    chosen = chapters() if args.all else args.chapters
    if not chosen:
        raise CourseError("which chapter? `course checkpoint 04`, or --all")
    list(map(notebook_path, chosen))
    from course.package.checkpoint import check_chapter, checkpoint_chapter

    if args.check:
        return report_differences(check_chapter, chosen)
    for chapter in chosen:
        print("\n".join(checkpoint_chapter(chapter)), flush=True)
    return 0


def call_solution(args) -> int:
    source_path(args.chapter)
    from course.package.solution import solution

    print(solution(args.chapter, args.name))
    return 0


def call_restore(args) -> int:
    source_path(args.chapter)
    from course.notebooks.restore import restore

    return restore(args.chapter, ask=not args.yes)


def call_start(args) -> int:
    if args.at:
        source_path(args.at)
    from course.states.start import start

    return start(args.at, args.blank)


def call_package(args) -> int:
    from course.states.start import package

    return package()


def call_doctor(args) -> int:
    from course.machine.doctor import doctor

    if args.distributed:
        from course.machine.talk import two_processes

        return doctor([two_processes])
    return doctor()


def call_update(args) -> int:
    from course.notebooks.update import update

    return update()


def call_tasks(args) -> int:
    from course.exercises.table import list_tasks

    return list_tasks(args.write)


def call_release(args) -> int:
    if args.blank or args.chapter:
        return call_release_blank(args)
    if args.all and args.chapters:
        raise CourseError(f"--all is every set; leave out {' '.join(args.chapters)}, or --all")
    from course.exercises.release import RELEASED, release

    sets = chosen_sets(args.chapters)
    if args.public:
        if args.to or args.nbgrader:
            raise CourseError("--public makes a folder of its own; leave out --to and --nbgrader")
        from course.exercises.public import release_public

        print("\n".join(release_public(sets, Path(args.public))))
        return 0
    for made in sets:
        to, course = (Path(folder) if folder else None for folder in (args.to, args.nbgrader))
        print("\n".join(release(made, to or RELEASED, course)), flush=True)
    return 0


def chosen_sets(chapters: list[str]) -> list:
    from course.exercises.sets import folders, load, read

    return list(map(load, chapters)) if chapters else list(map(read, folders()))


def call_key(args) -> int:
    from course.exercises.key import KEYS, write_key

    for made in chosen_sets(args.chapters):
        print(write_key(made, Path(args.to) if args.to else KEYS))
    return 0


def call_release_blank(args) -> int:
    if not (args.blank and args.chapter) or args.chapters or args.nbgrader:
        raise CourseError(
            "a chapter with blanks is `course exercises release --chapter 04 --blank`, with --to FOLDER if need be"
        )
    source_path(args.chapter)
    from course.package.solution import release_blank

    print(release_blank(args.chapter, Path(args.to) if args.to else None))
    return 0


def call_check(args) -> int:
    from course.exercises.check import call_check

    return call_check(args.which)


def call_progress(args) -> int:
    from course.exercises.progress import call_progress

    return call_progress()


def call_site(args) -> int:
    from course.site.build import site

    return site()


def call_pictures(args) -> int:
    from course.site.pictures import pictures

    return pictures()


def call_publish(args) -> int:
    from course.site.publish import publish

    return publish(args.url)


def report_differences(check, chosen: list[str]) -> int:
    differences = list(filter(None, map(check, chosen)))
    print("\n".join(differences) if differences else f"{len(chosen)} chapters agree")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
