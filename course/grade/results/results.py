"""Reading what the grader wrote: one result a student, with the marks that a person gave.

Marks stand in marks.csv beside the results and are added whenever results are read, so that grading again never loses them.
"""

import csv
import io
import json
from pathlib import Path

from course.files import write_atomically
from course.grade.submission import normal
from course.paths import CourseError, relative

MARKS = "marks.csv"
COLUMNS = ["student_id", "task", "points", "comment"]


def read_results(folder: Path, exercise: str) -> list[dict]:
    """All results of an exercise set, by student, marks included. CourseError if there is none, or one is damaged."""
    here = folder / exercise
    paths = sorted(path for path in here.glob("*.json") if not path.name.startswith("."))
    if not paths:
        raise CourseError(
            f"no results in {relative(here)}/; `course grade run {exercise.partition('_')[0]} --submissions DIR`"
        )
    results = [read_result(path) for path in paths]
    given = read_marks(here / MARKS, results)
    return [with_marks(result, given.get(result["student"], {})) for result in results]


def read_result(path: Path) -> dict:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if result["format"] != 1:
            raise ValueError(f"its format is {result['format']}, not 1")
        for key in ("exercise", "student", "verdict", "score", "max_score", "tasks", "manual"):
            result[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(
            f"{relative(path)} is no result of grading ({error}); grade that student again"
        ) from None
    return result


def with_marks(result: dict, given: dict[str, tuple[float, str]]) -> dict:
    """The result with a person's points and comments in it, and the score that follows."""
    manual = {task: dict(answer) for task, answer in result["manual"].items()}
    for task, (points, comment) in given.items():
        manual[task] |= {"points": points, "comment": comment}
    if result["score"] is None:
        return result | {"manual": manual}
    return result | {
        "manual": manual,
        "score": graded(result) + sum(a["points"] or 0 for a in manual.values()),
    }


def graded(result: dict) -> float:
    """Points that the checks gave."""
    return sum(task["points"] for task in result["tasks"].values())


def gradable(result: dict) -> float:
    """Points that the checks can give."""
    return sum(task["max_points"] for task in result["tasks"].values())


def unmarked(result: dict) -> list[str]:
    """Answers that wait for a person; a submission that was not graded has none."""
    read = result["verdict"] == "graded"
    return [task for task, answer in result["manual"].items() if read and answer["points"] is None]


def read_marks(path: Path, results: list[dict]) -> dict[str, dict[str, tuple[float, str]]]:
    """Student -> task -> points and comment. A row without points is not marked yet; a wrong one is an error with its line."""
    known = {result["student"]: result["manual"] for result in results}
    given: dict[str, dict[str, tuple[float, str]]] = {}
    for line, row in mark_rows(path):
        where = f"{relative(path)}, line {line}"
        student, task = row["student_id"], row["task"].strip()
        if student not in known:
            raise CourseError(f"{where}: no result of a student {student!r}")
        if task not in known[student]:
            raise CourseError(
                f"{where}: {task!r} is no question for a person; there are {', '.join(known[student])}"
            )
        if task in given.get(student, {}):
            raise CourseError(f"{where}: {student} has points for {task} on an earlier line")
        if not row["points"].strip():
            continue
        most = known[student][task]["max_points"]
        try:
            points = float(row["points"])
        except ValueError:
            raise CourseError(f"{where}: points {row['points']!r} are no number") from None
        if not 0 <= points <= most:
            raise CourseError(f"{where}: {points:g} points for {task}, which gives 0 to {most:g}")
        given.setdefault(student, {})[task] = points, row["comment"] or ""
    return given


def mark_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    return csv_rows(path, COLUMNS) if path.exists() else []


def csv_rows(path: Path, columns: list[str]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a table with these columns, each with its line; as spreadsheets write it, with commas or semicolons."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CourseError(f"{relative(path)} is not in UTF-8: save it as CSV UTF-8") from None
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=";" if ";" in text.partition("\n")[0] else ","
    )
    if [*(reader.fieldnames or [])] != columns:
        raise CourseError(
            f"{relative(path)}: its first line is {','.join(columns)}, not {text.partition(chr(10))[0]!r}"
        )
    rows = []
    for row in reader:
        if None in row or None in row.values():
            raise CourseError(
                f"{relative(path)}, line {reader.line_num}: the columns {','.join(columns)} are due"
            )
        if "student_id" in row:
            row["student_id"] = normal(row["student_id"])
        if any(map(str.strip, row.values())):  # a spreadsheet leaves empty rows behind
            rows.append((reader.line_num, row))
    return rows


def from_gradebook(path: Path, results: list[dict]) -> dict[tuple[str, str], tuple[float, str]]:
    """Points and comments that were given in formgrader, by student and task."""
    from nbgrader.api import Gradebook, MissingEntry

    if not path.is_file():
        raise CourseError(f"there is no {relative(path)}; it is the gradebook.db of an nbgrader course")
    found = {}
    with Gradebook(f"sqlite:///{path}") as gradebook:
        for result in results:
            for task in result["manual"]:
                where = task, result["exercise"], result["exercise"], result["student"]
                try:
                    grade, comment = gradebook.find_grade(*where), gradebook.find_comment(*where)
                except MissingEntry:
                    continue
                if grade.manual_score is not None:
                    found[result["student"], task] = grade.manual_score, comment.comment or ""
    return found


def write_marks(folder: Path, exercise: str, gradebook: Path | None = None) -> str:
    """Add a row to marks.csv for every answer that has none, with formgrader's points where there are any; say how many wait."""
    results = read_results(folder, exercise)
    path = folder / exercise / MARKS
    rows = [row for _, row in mark_rows(path)]
    given = from_gradebook(gradebook, results) if gradebook else {}
    there = {(row["student_id"], row["task"]) for row in rows}
    new = [(r["student"], task) for r in results for task in unmarked(r) if (r["student"], task) not in there]
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    rows += [dict(zip(COLUMNS, (student, task, "", ""))) for student, task in new]
    for row in rows:
        if (row["student_id"], row["task"]) in given:
            points, comment = given[row["student_id"], row["task"]]
            row |= {"points": f"{points:g}", "comment": comment}
    writer.writerows([row[column] for column in COLUMNS] for row in rows)
    if new or given or not path.exists():
        write_atomically(path, out.getvalue().encode())
    waiting = sum(len(unmarked(result)) for result in read_results(folder, exercise))
    return f"{relative(path)}: {waiting} answers wait for their points"
