"""The commands of `course grade` that read results: feedback, marks, show, summary, totals, export, bundle."""

import json
import textwrap
from argparse import ArgumentParser
from pathlib import Path

from course.exercises.sets import folder_of, load
from course.files import write_atomically
from course.grade.results.late import Late, moment, read_deadlines, unknown, zone
from course.grade.results.results import read_results, write_marks
from course.grade.results.totals import waiting
from course.grade.submission import normal
from course.grade.systems import export
from course.grade.systems.merge import CANVAS, MOODLE, System, merge
from course.paths import CourseError, relative

RESULTS = "results"
TEXTS = {"nbgrader": "csv", "junit": "xml"}  # one file for the class
RECORDS = {
    "gradescope": export.gradescope,
    "prairielearn": export.prairielearn,
    "classroom50": export.classroom50,
}
SYSTEMS = {"canvas": CANVAS, "moodle": MOODLE}


def add_commands(commands) -> None:
    """Add them to the subparsers of `course grade`."""
    common(commands.add_parser("feedback", help="an HTML page for each student")).set_defaults(
        call=call_feedback
    )
    about = "how the class did, task by task; solutions that read alike. Without NN: a line a set"
    common(commands.add_parser("summary", help=about), "?").set_defaults(call=call_summary)
    add_totals(commands.add_parser("totals", help="one table of all sets, a row a student"))

    marks = commands.add_parser(
        "marks", help="a table for the points that a person gives: <results>/<set>/marks.csv"
    )
    marks.add_argument(
        "--gradebook", metavar="DB", help="take those that were given in nbgrader's formgrader"
    )
    common(marks).set_defaults(call=call_marks)

    show = commands.add_parser("show", help="one student's submission, hidden checks too")
    show.add_argument("student", type=normal)
    common(show, "?").set_defaults(call=call_show)

    send = common(commands.add_parser("export", help="scores in another system's format"))
    send.add_argument("--to", required=True, choices=[*TEXTS, *SYSTEMS, *RECORDS])
    send.add_argument(
        "--out",
        help="the file; for gradescope, prairielearn and classroom50 a folder, or with --student a file",
    )
    send.add_argument("--student", help="this one alone")
    send.add_argument("--into", metavar="CSV", help="canvas, moodle: the file that you exported there")
    send.add_argument("--column", default="", help="canvas, moodle: the column of the score")
    send.add_argument("--match", default="", help="canvas, moodle: the column of the student's id")
    send.add_argument("--roster", metavar="CSV", help="nbgrader: student_id, last_name, first_name, email")
    send.add_argument(
        "--due", metavar="TIME", help="when the set was due: 2026-11-20T23:59, or with +01:00 behind it"
    )
    add_lateness(send)
    send.set_defaults(call=call_export)

    bundle = commands.add_parser("bundle", help="an autograder to upload: gradescope, prairielearn")
    bundle.add_argument("system", choices=["gradescope", "prairielearn"])
    bundle.add_argument("exercise", metavar="NN")
    bundle.add_argument("--out", help="the zip file")
    bundle.set_defaults(call=call_bundle)


def add_lateness(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--deadlines",
        metavar="CSV",
        help="set,student_id,due: when sets are due; a row with a student is an extension",
    )
    parser.add_argument(
        "--zone", metavar="NAME", help="of times that name none: Europe/Berlin (default: this machine's)"
    )
    parser.add_argument(
        "--late", type=float, default=0, metavar="POINTS", help="what each day begun after the due time costs"
    )


def add_totals(parser: ArgumentParser) -> None:
    add_lateness(parser)
    parser.add_argument(
        "--late-days", type=int, default=0, metavar="N", help="days a term that cost a student nothing"
    )
    parser.add_argument(
        "--drop-lowest", type=int, default=0, metavar="N", help="sets that do not count, the lowest ones"
    )
    parser.add_argument("--roster", metavar="CSV", help="student_id, last_name, first_name, email")
    parser.add_argument("--out", help="the file (default: results/totals.csv)")
    parser.add_argument("--results", default=RESULTS, metavar="FOLDER", help="default: results/")
    parser.set_defaults(call=call_totals)


def common(parser: ArgumentParser, nargs=None) -> ArgumentParser:
    parser.add_argument("exercise", metavar="NN", nargs=nargs, help="the exercise set: 04")
    parser.add_argument(
        "--results", default=RESULTS, metavar="FOLDER", help="where results are (default: results/)"
    )
    return parser


def folder(args) -> Path:
    return Path(args.results).resolve()


def call_feedback(args) -> int:
    from course.grade.results.feedback import write_feedback

    name = folder_of(args.exercise).name
    print(write_feedback(read_results(folder(args), name), folder(args) / name))
    return 0


def call_marks(args) -> int:
    made = load(args.exercise)
    print(write_marks(folder(args), made.name, path(args.gradebook)))
    for task, said in made.rubric.items():
        print(f"\n{task}  {made.tasks[task].title}, {made.manual[task]:g} points\n{textwrap.fill(said, 100)}")
    return 0


def call_summary(args) -> int:
    from course.grade.results.summary import overview, write_summary
    from course.grade.results.totals import all_results, by_weeks

    if not args.exercise:
        print(by_weeks(all_results(folder(args))))
        return 0
    made = load(args.exercise)
    results = read_results(folder(args), made.name)
    print(overview(results))
    print(write_summary(results, made, folder(args) / made.name))
    return 0


def call_totals(args) -> int:
    from course.grade.results.totals import all_results, totals

    if args.late_days < 0 or args.drop_lowest < 0 or args.late < 0:
        raise CourseError("--late, --late-days and --drop-lowest are no numbers below zero")
    late = read_deadlines(path(args.deadlines), args.late, zone(args.zone))
    sets = all_results(folder(args))
    roster = export.read_roster(path(args.roster))
    text, told = totals(sets, late, args.late_days, args.drop_lowest, roster)
    print("\n".join(told))
    return written(path(args.out) or folder(args) / "totals.csv", text.encode())


def call_show(args) -> int:
    from course.grade.results.show import show

    if args.exercise:
        print(show(read_results(folder(args), folder_of(args.exercise).name), args.student))
        return 0
    here = folder(args)
    sets = sorted({path.parent.name for path in here.glob(f"*/{args.student}.json")})
    if not sets:
        raise CourseError(f"no result of a student {args.student!r} in {relative(here)}/")
    print("\n\n".join(show(read_results(here, name), args.student) for name in sets))
    return 0


def call_export(args) -> int:
    name = folder_of(args.exercise).name
    results = read_results(folder(args), name)
    if args.student:
        results = [result for result in results if result["student"] == normal(args.student)]
        if not results:
            raise CourseError(f"no result of a student {args.student!r}")
    if said := waiting(name, results):
        print(said)
    late = lateness(args, name)
    for line in unknown({name: late}, {result["student"] for result in results}) if not args.student else ():
        print(line)
    for result in results:
        if result["score"] is None and args.to not in RECORDS:
            print(f"left out: {result['student']} has no score ({result['verdict']})")
    if args.to in SYSTEMS:
        return merged(args, name, results, late, SYSTEMS[args.to])
    if args.to in RECORDS:
        return recorded(args, name, results)
    text = (
        export.junit(results)
        if args.to == "junit"
        else export.nbgrader(results, late, export.read_roster(path(args.roster)))
    )
    return written(path(args.out) or folder(args) / name / f"{args.to}.{TEXTS[args.to]}", text.encode())


def merged(args, name: str, results: list[dict], late: Late, system: System) -> int:
    if not args.into:
        raise CourseError(f"--to {args.to} needs --into FILE.csv, the file that you exported from {args.to}")
    scores = {result["student"]: late.final(result) for result in export.scored(results)}
    most = results[0]["max_score"]
    data, told = merge(Path(args.into).read_bytes(), system, name, scores, most, args.column, args.match)
    print("\n".join(told))
    return written(path(args.out) or folder(args) / name / f"{args.to}.csv", data)


def recorded(args, name: str, results: list[dict]) -> int:
    """A JSON file a student."""
    made = {
        result["student"]: RECORDS[args.to](result)
        for result in results
        if result["score"] is not None or args.student
    }
    made = {student: (json.dumps(record, indent=2) + "\n").encode() for student, record in made.items()}
    if args.student:
        return written(
            path(args.out) or folder(args) / name / args.to / f"{args.student}.json", made[args.student]
        )
    out = path(args.out) or folder(args) / name / args.to
    for student, data in made.items():
        write_atomically(out / f"{student}.json", data)
    print(f"{relative(out)}/: {len(made)} files")
    return 0


def lateness(args, name: str) -> Late:
    """What --due says of a set, or --deadlines."""
    if args.due and args.deadlines:
        raise CourseError("--due and --deadlines both say when the set was due; leave one out")
    where = zone(args.zone)
    listed = read_deadlines(path(args.deadlines), args.late, where)
    if args.deadlines and name not in listed:
        raise CourseError(f"{args.deadlines} has no row for {name}")
    return listed.get(name, Late(moment(args.due), args.late, where))


def path(name: str | None) -> Path | None:
    return Path(name).resolve() if name else None


def written(to: Path, data: bytes) -> int:
    write_atomically(to, data)
    print(f"{relative(to)} written")
    return 0


def call_bundle(args) -> int:
    from course.grade.systems.bundle import bundle

    made = load(args.exercise)
    print(bundle(args.system, made, path(args.out) or Path(f"{args.system}-{made.name}.zip").resolve()))
    return 0
