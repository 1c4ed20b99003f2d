"""Scores into the CSV that an instructor exported from Canvas or Moodle. Every byte outside the one column stays."""

import re
from dataclasses import dataclass

from course.grade.submission import normal
from course.paths import CourseError

FIELD = '"(?:[^"]|"")*"|[^{}\\r\\n]*'


@dataclass(frozen=True)
class System:
    """How a system's export looks in English; other languages name the columns with --column and --match."""

    name: str
    keys: tuple[str, ...]  # columns that may hold the student's id, the likeliest first
    score: str | None  # the column of the score; None: named after the exercise set
    most: str | None  # the column with the points possible
    most_row: str = ""  # or the row with them, by its first cell


CANVAS = System(
    "canvas", ("SIS Login ID", "SIS User ID", "ID", "Integration ID"), None, None, "Points Possible"
)
MOODLE = System("moodle", ("ID number", "Username", "Email address", "Identifier"), "Grade", "Maximum Grade")


def records(text: str) -> list[list[str]]:
    """Rows of raw fields, quotes included, each with its line end as the last entry."""
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    field = re.compile(FIELD.format(re.escape(delimiter)))
    rows, row, at = [], [], 0
    while at < len(text):
        found = field.match(text, at)
        row.append(found[0])
        at = found.end()
        rest = text[at : at + 2]
        if rest.startswith(delimiter):
            row.append(delimiter)
            at += 1
            continue
        end = "\r\n" if rest == "\r\n" else rest[:1]
        if end not in ("\r\n", "\n", "\r", ""):
            raise CourseError(f"row {len(rows) + 1} of the CSV goes on behind a closing quote")
        rows.append([*row, end])
        row, at = [], at + len(end)
    if row:  # the text ends behind a delimiter
        rows.append([*row, "", ""])
    return rows


def cells(row: list[str]) -> list[str]:
    """The fields of a raw row, unquoted."""
    return [cell[1:-1].replace('""', '"') if cell.startswith('"') else cell for cell in row[:-1:2]]


def merge(
    data: bytes, system: System, exercise: str, scores: dict[str, float], most: float, column="", match=""
) -> tuple[bytes, list[str]]:
    """The CSV with the scores in it, and what to tell. scores: by student id."""
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    try:
        rows = records(data[len(mark) :].decode("utf-8"))
    except UnicodeDecodeError:
        raise CourseError(
            f"the CSV is not in UTF-8: export it again from {system.name}, and do not save it in Excel"
        ) from None
    if not rows:
        raise CourseError("the CSV is empty")
    heads = cells(rows[0])
    score = the_column(heads, column or system.score or "", exercise, system)
    key, found = the_key(rows, heads, scores, match, system)
    check_most(rows, heads, score, most, system)
    done, unknown = set(), 0
    for row, student in zip(rows[1:], found):
        if student in done:
            raise CourseError(
                f"two rows of the CSV belong to {student!r} by {heads[key]!r}; choose another column with --match"
            )
        if student is None:
            unknown += 1
        else:
            row[2 * score] = f"{scores[student]:.10g}"
            done.add(student)
    left = sorted(set(scores) - done)
    told = [f"{len(done)} scores are in the column {heads[score]!r}, students found by {heads[key]!r}"]
    told += [f"{unknown} rows are left as they were"] if unknown else []
    told += [f"no row for {len(left)} of the results: {', '.join(left[:10])}"] if left else []
    return mark + "".join(part for row in rows for part in row).encode(), told


def the_column(heads: list[str], wanted: str, exercise: str, system: System) -> int:
    """Canvas calls an assignment's column "Exercises 04 (1234)": the name, or the exercise's, begins it."""
    exact = [i for i, head in enumerate(heads) if wanted and head == wanted]
    begins = [
        i for i, head in enumerate(heads) if re.match(rf"{re.escape(wanted or exercise)}( \(\d+\))?$", head)
    ]
    found = exact or begins
    if len(found) != 1:
        raise CourseError(
            f"{len(found) or 'no'} column{'s' * (len(found) > 1)} of the CSV for {wanted or exercise!r}; name one with --column:"
            f" {', '.join(heads)}"
        )
    return found[0]


def the_key(rows, heads, scores, match, system) -> tuple[int, list[str | None]]:
    """The column that holds student ids, and the student of each row. The one that finds the most, where none is named."""
    if match and match not in heads:
        raise CourseError(f"the CSV has no column {match!r}; it has {', '.join(heads)}")
    best = None
    for name in [match] if match else [name for name in system.keys if name in heads]:
        column = heads.index(name)
        found = [student_of(cells(row), column, scores) for row in rows[1:]]
        if best is None or count(found) > count(best[1]):
            best = column, found
    if best is None or not count(best[1]):
        tried = match or ", ".join(name for name in system.keys if name in heads) or "none of its columns"
        raise CourseError(
            f"no row of the CSV names a student of the results (by {tried}); choose a column with --match"
        )
    return best


def count(found: list) -> int:
    return sum(student is not None for student in found)


def student_of(row: list[str], column: int, scores: dict[str, float]) -> str | None:
    """The result that a row belongs to. Moodle's Identifier is "Participant 123", its files' number 123."""
    value = normal(row[column]) if column < len(row) else ""
    tries = (value, re.sub(r"^\D+ (?=\d+$)", "", value), value.partition("@")[0])
    return next((t for t in tries if t in scores), None)


def check_most(rows, heads, score: int, most: float, system: System) -> None:
    """The system's points possible must be ours: scores are points, not percent."""
    stated = []
    if system.most in heads:
        at = heads.index(system.most)
        stated = [value for row in rows[1:] if (value := cells(row)[at : at + 1])]
    if system.most_row:
        stated = [
            cells(row)[score : score + 1] for row in rows[1:] if cells(row)[0].strip() == system.most_row
        ]
    for value in stated:
        try:
            theirs = float(value[0].replace(",", ".")) if value and value[0] else most
        except ValueError:
            continue  # "(read only)", and other words
        if abs(theirs - most) > 1e-6:
            raise CourseError(
                f"{system.name} has {theirs:g} points possible, the exercises {most:g}: set {most:g} there, export again"
            )
