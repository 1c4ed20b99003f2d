"""`course ...`: run, build, checkpoint, restore, doctor, data. What a command needs is imported when it is called."""

import sys
from pathlib import Path

from course.paths import (
    CourseError,
    chapters,
    notebook_path,
    source_chapters,
    source_path,
    two_digits,
)
from course.runner import CODES, Parser, no_command, outcome

COMMANDS = {  # what each is, in full, and an example
    "doctor": (
        "Is this machine ready? One line for each thing that the course needs: green is fine, yellow can be improved (the\n"
        "line says how), red has to be fixed first. The last line is the verdict.",
        "course doctor",
    ),
    "run": (
        "Execute notebooks in order, each with its checkpoint. The executed copies go to runs/; the notebooks themselves stay\n"
        "as they are. It stops at the first cell that fails, and says which command goes on from there.",
        "course run 04 05    or    course run --from 04",
    ),
    "lab": (
        "Start JupyterLab at chapter 00. All further arguments go to JupyterLab.",
        "course lab --no-browser --port 8889",
    ),
    "checkpoint": (
        "Export a notebook's finished code into nanogpt/, if it imports and the chapter's tests pass. If not, the old modules\n"
        "stay as they are. A chapter's last cell does the same.",
        "course checkpoint 04",
    ),
    "solution": (
        "Print our body of a function that the chapter leaves to you.",
        "course solution 04 attention_weights",
    ),
    "restore": (
        "Replace a chapter's notebook and modules by the released ones. It shows what would change and asks first. Your\n"
        "versions are kept in yours/, in a folder named after the moment.",
        "course restore 04",
    ),
    "start": (
        "Begin with an empty nanogpt/, which your checkpoints fill. What was yours is kept in yours/; `course package`\n"
        "brings the complete package back.",
        "course start --at 07 --blank",
    ),
    "package": (
        "Bring the complete nanogpt/ back, as it was released. What was yours is kept in yours/.",
        "course package",
    ),
    "update": (
        "Fetch the newest chapters with git. A file that you changed is kept in yours/.",
        "course update",
    ),
    "check": (
        "Run the visible checks of your exercises, without a network, and say of each task whether it passes or why it does\n"
        "not. Exit code 1 if a task does not pass yet.",
        "course check 04    or    course check path/to/notebook.ipynb",
    ),
    "progress": (
        "Show which checkpoints have passed and when, which tasks pass, the minutes planned for both, and your predictions\n"
        "with their errors.",
        "course progress",
    ),
    "data": ("Download a data set: course data --help.", "course data tinyshakespeare"),
    "exercises": (
        "For instructors: list the tasks, make what students get, and the key.",
        "course exercises release 04",
    ),
    "grade": (
        "For instructors: score submissions. course grade --help.",
        "course grade run 04 --submissions DIR",
    ),
    "slides": (
        "For instructors: a deck for each part, or for one, in Markdown for Marp, with its figures beside it. All of it comes\n"
        "from the executed notebooks.",
        "course slides --part III slides",
    ),
    "build": (
        "For authors: make a notebook from its source in notebooks/src, and execute it.",
        "course build 04 --draft    or    course build --check",
    ),
    "pull": ("For authors: bring an edit made in the notebook back into its source.", "course pull 04"),
    "site": (
        "Build the course as a book from the committed outputs, in build/site/html. Nothing is executed.",
        "course site",
    ),
    "pictures": (
        "Draw the pictures of README and site anew, from data/measurements.",
        "course pictures",
    ),
    "readme": (
        "Compare the counts, hours, times and tables of README, the site's first page and its results with the repository. Exit\n"
        "code 1 if they differ.",
        "course readme --write",
    ),
    "publish": (
        "Write the repository's address into README, the notebooks' first cells and badges, and pyproject.toml. Without an\n"
        "address, write the present one again.",
        "course publish https://github.com/me/gpt2-course",
    ),
    "test": (
        "Run what CI runs: every notebook, and all tests. With `quick` it runs the laws of the repository, the drift check and\n"
        "the core's fast tests, in two minutes. With other arguments, it is one pytest with these arguments.",
        "course test -k tokenizer",
    ),
}
HELP = """\
for students      course doctor          is this machine ready? (--distributed: can two processes talk, how fast?)
                  course lab             JupyterLab at chapter 00
                  course run             execute all notebooks (course run 04 05, course run --from 04)
                  course checkpoint 04   export a notebook's finished code into nanogpt/
                  course restore 04      bring a chapter back to the released state, keeping yours in yours/
                  course start           begin with an empty nanogpt/ that your checkpoints fill (--at 07: as after
                                         chapter 06; --blank: and notebooks whose main functions you write)
                  course package         the complete nanogpt/ back, keeping yours in yours/
                  course solution 04 attention_weights   our body of a function that the chapter leaves to you
                  course check 04        the visible checks of your exercises (released/, or a path)
                  course progress        which checkpoints and tasks have passed, and your predictions
                  course update          the newest chapters, keeping beside them what you changed (git)
                  course data NAME       download tinyshakespeare, fineweb-edu or hellaswag
for instructors   course exercises       list (all tasks); release 04 (what students get);
                                         release --chapter 04 --blank (the chapter, its blanks empty);
                                         release --all --public FOLDER (a class's repository, without solutions);
                                         key 04 (its solutions, and what gives points);
                                         release project final, key final (two pages for the end of a term)
                  course slides FOLDER   slides for Marp from the chapters' figures, a deck a part (--part III)
                  course grade           run, regrade, marks, feedback, show, summary, totals, export, bundle, selfcheck
for authors       course build 04        notebooks/src/04_*.py -> executed notebook
                  course pull 04         an edit made in the notebook -> its source
                  course readme          README's counts and results' tables, compared with the repository (--write)
                  course site            the course as a book, in build/site/html
                  course pictures        the pictures of README and site, drawn from data/measurements
                  course publish URL     the repository's address: README, badges, first cells, pyproject.toml
                  course test            all tests, every notebook, the drift check (course test -k tokenizer)
for CI            course build --check; course checkpoint --all --check
"""
RELEASE = {
    "description": "Write what students get: the notebooks of sets, without solutions and hidden checks, or the project, or the final.\n"
    "With --public it is a complete course for a class; with --chapter and --blank it is a chapter.",
    "epilog": "Example: course exercises release 04 --to handout\n"
    "         course exercises release --all --public ../gpt2-class\n"
    "         course exercises release --chapter 04 --blank --to handout",
}
LIST = {
    "description": "Print all tasks, three syllabi, and the hours of each week of a term, as exercises/TASKS.md has them.",
    "epilog": "Example: course exercises list",
}
KEY = {
    "description": "Write a set with its solutions, the points of each check, and what students are told about wrong solutions.",
    "epilog": "Example: course exercises key 04",
}
USAGE = f"""usage: course COMMAND [options]

{HELP}
course COMMAND --help    what a command does, its options, an example
{CODES}"""


def main(argv: list[str] | None = None, template=None) -> int:
    """One command; its exit code, as CODES says."""
    argv, is_program = (sys.argv[1:], True) if argv is None else (argv, False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # not every terminal can show every character

    def call() -> int | None:
        name, rest = argv[0] if argv else "--help", argv[1:]
        asks_for_help = "-h" in rest or "--help" in rest
        if name in ("-h", "--help"):
            print(USAGE)
            return 0
        if name == "data":
            from course.machine.data import run as data

            return data(rest)
        if name == "grade":
            from course.grade.cli import main as grade

            return grade(rest, template, is_program)
        if name == "test" and not asks_for_help:
            from course.testing.run import test

            return test(rest)
        if name == "lab" and not asks_for_help:
            from course.machine.lab import lab

            return lab(rest)
        if name not in COMMANDS:
            raise CourseError(no_command(name, COMMANDS, "course"))
        args = parser().parse_args(argv)
        return args.call(args)

    return outcome("course", call)


def parser() -> Parser:
    top = Parser(prog="course")
    commands = top.commands()

    def command(name: str, call=None) -> Parser:
        says, example = COMMANDS[name]
        made = commands.add_parser(name, description=says, epilog=f"Example: {example}")
        made.set_defaults(call=call)
        return made

    run = command("run", call_run)
    run.add_argument("chapters", nargs="*", metavar="NN", help="these chapters (default: all)")
    run.add_argument("--from", dest="first", metavar="NN", help="first chapter (default 00)")
    run.add_argument("--to", dest="last", metavar="NN", help="last chapter (default: the last)")
    run.add_argument("--record", action="store_true", help="keep the times as this course's measured times")

    build = command("build", call_build)
    build.add_argument("chapters", nargs="*", metavar="NN", help="chapters (default: all)")
    build.add_argument("--draft", action="store_true", help="do not execute")
    build.add_argument("--again", action="store_true", help="execute also where no code has changed")
    build.add_argument("--check", action="store_true", help="write nothing; show differences, exit 1 if any")

    pull = command("pull", call_pull)
    pull.add_argument("chapter", metavar="NN", help="the chapter's number")

    checkpoint = command("checkpoint", call_checkpoint)
    checkpoint.add_argument("chapters", nargs="*", metavar="NN", help="the chapters' numbers")
    checkpoint.add_argument("--all", action="store_true", help="every chapter, in order")
    checkpoint.add_argument(
        "--check", action="store_true", help="write nothing; show differences, exit 1 if any"
    )

    solution = command("solution", call_solution)
    solution.add_argument("chapter", metavar="NN", help="the chapter's number")
    solution.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="attention_weights, or GPT.forward; without it, the blanks' names",
    )

    restore = command("restore", call_restore)
    restore.add_argument("chapter", metavar="NN", help="the chapter's number")
    restore.add_argument("--yes", action="store_true", help="do not ask")

    start = command("start", call_start)
    start.add_argument("--at", metavar="NN", help="begin there, with what the chapters before it build")
    start.add_argument("--blank", action="store_true", help="notebooks in which you write the main functions")

    command("package", call_package)

    doctor = command("doctor", call_doctor)
    doctor.add_argument(
        "--distributed", action="store_true", help="can two processes here talk, and how fast?"
    )

    command("update", call_update)

    which = command("exercises").commands()
    tasks = which.add_parser("list", help="all tasks, three syllabi, and the hours of each sitting", **LIST)
    tasks.add_argument("--write", action="store_true", help="into exercises/TASKS.md")
    tasks.set_defaults(call=call_tasks)
    release = which.add_parser(
        "release", help="the notebooks that students get, without solutions", **RELEASE
    )
    release.add_argument(
        "chapters", nargs="*", metavar="NN", help="these sets (default: all), or project, or final"
    )
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
    key = which.add_parser(
        "key", help="a set with its solutions and what gives points, for whoever marks", **KEY
    )
    key.add_argument("chapters", nargs="*", metavar="NN", help="these sets (default: all), or final")
    key.add_argument("--to", metavar="FOLDER", help="where they go (default: build/keys/)")
    key.set_defaults(call=call_key)

    slides = command("slides", call_slides)
    slides.add_argument("folder", metavar="FOLDER", help="where the decks and their figures go")
    slides.add_argument("--part", metavar="III", help="one part (default: all)")

    check = command("check", call_check)
    check.add_argument("which", metavar="NN", help="a chapter's set in released/, or the path of a notebook")

    command("progress", call_progress)
    command("lab")
    command("test")
    command("site", call_site)
    command("pictures", call_pictures)
    readme = command("readme", call_readme)
    readme.add_argument("--write", action="store_true", help="into the pages (default: show what differs)")
    publish = command("publish", call_publish)
    publish.add_argument(
        "url", metavar="https://github.com/NAME/REPOSITORY", nargs="?", help="default: as it is now"
    )
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
        print(build(chapter, args.draft, args.again), flush=True)
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
    from course.exercises.papers import release_paper
    from course.exercises.release import release
    from course.exercises.sets import RELEASED

    papers, numbers = chosen_papers(args.chapters)
    for name in papers:
        print(release_paper(name, Path(args.to) if args.to else RELEASED), flush=True)
    if papers and not numbers:
        return 0
    sets = chosen_sets(numbers)
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


def chosen_papers(names: list[str]) -> tuple[list[str], list[str]]:
    """Of the names, those of the project and the final, and the rest, which are numbers of sets."""
    from course.exercises.papers import PAPERS

    return [name for name in names if name in PAPERS], [name for name in names if name not in PAPERS]


def call_key(args) -> int:
    from course.exercises.key import KEYS, write_key
    from course.exercises.papers import write_paper_key

    to = Path(args.to) if args.to else KEYS
    papers, numbers = chosen_papers(args.chapters)
    for name in papers:
        print(write_paper_key(name, to))
    for made in chosen_sets(numbers) if numbers or not papers else []:
        print(write_key(made, to))
    return 0


def call_slides(args) -> int:
    from course.site.slides import write_slides

    print("\n".join(write_slides(Path(args.folder), args.part)))
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


def call_readme(args) -> int:
    from course.site.readme import readme

    return readme(args.write)


def call_publish(args) -> int:
    from course.site.publish import publish

    return publish(args.url)


def report_differences(check, chosen: list[str]) -> int:
    differences = list(filter(None, map(check, chosen)))
    print("\n".join(differences) if differences else f"{len(chosen)} chapters agree")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
