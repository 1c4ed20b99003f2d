"""A submission is a file from a stranger. The text of its solution cells is taken by id; nothing else in it counts."""

import hashlib
import json
import os
import re
import stat
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path

from course.exercises.cells import without_magics
from course.exercises.sets import ExerciseSet
from course.paths import CourseError

MAX_BYTES = 5_000_000  # of the file; figures count
MAX_TEXT = 100_000  # of a cell
# ann.ipynb, ann_2026-11-20T10-00-00.ipynb, also with a zone, Z or +01-00; a site with other names gives its own expression.
ZONE = r"(?:Z|[+-]\d\d[:-]?\d\d)?"
TIME = rf"\d{{4}}-\d\d-\d\d(?:[T_-]\d\d[:-]?\d\d(?:[:-]?\d\d)?{ZONE})?"
PATTERN = rf"(?P<student_id>[^/]+?)(?:_(?P<timestamp>{TIME}))?\.ipynb"
STUDENT = re.compile(r"[\w@+=,-][\w.@+=, -]{0,99}")  # it becomes a file's name
MAX_NAME = 200  # its bytes: a file's name has 255, and ours adds to it


class Invalid(Exception):
    """The submission cannot be graded; one sentence says why."""


@dataclass(frozen=True)
class Found:
    """A file in the folder of submissions, not yet read."""

    student: str
    submitted: str | None  # ISO 8601
    path: Path
    problem: str = ""


@dataclass(frozen=True)
class Submission:
    sha256: str
    solutions: dict[str, str]  # by task, and "student"
    manual: dict[str, str]
    problems: dict[str, str]  # by task: why it has no text


def collect(folder: Path, pattern: str = PATTERN) -> tuple[list[Found], list[str]]:
    """Every student's latest file, and the names that do not match the pattern. The pattern sees paths below `folder`."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise CourseError(f"--pattern is no regular expression: {error}") from None
    if "student_id" not in expression.groupindex:
        raise CourseError("--pattern needs a group (?P<student_id>...)")
    if not folder.is_dir():
        raise CourseError(f"no folder {folder}")
    files = sorted(Path(at) / name for at, _, names in os.walk(folder) for name in names)
    latest: dict[str, Found] = {}
    others = []
    for path in files:
        name = path.relative_to(folder).as_posix()
        groups = found.groupdict() if (found := expression.fullmatch(name)) else {}
        student = normal(groups.get("student_id") or "")
        if not STUDENT.fullmatch(student) or len(student.encode()) > MAX_NAME:
            others.append(name)
            continue
        one = Found(student, iso(groups.get("timestamp")), path)
        before = latest.get(student)
        if before and (before.submitted == one.submitted or -inf < instant(before) == instant(one)):
            why = f"two files of one time: {before.path.name} and {path.name}"
            one = Found(student, one.submitted, path, why)
        if not before or (instant(one), one.submitted or "") >= (instant(before), before.submitted or ""):
            latest[student] = one
    return [latest[student] for student in sorted(latest)], others


def instant(one: Found) -> float:
    """When it was handed in, to be compared: a time without a zone is in this machine's. Before all others where nobody knows."""
    try:
        return datetime.fromisoformat(one.submitted or "").timestamp()
    except (ValueError, OverflowError):
        return -inf


def normal(name: str) -> str:
    """A student's id in one spelling, wherever it comes from: macOS writes é as two characters, Windows as one."""
    return unicodedata.normalize("NFC", name).strip()


def iso(timestamp: str | None) -> str | None:
    """2026-11-20_10-00 as 2026-11-20T10:00:00; what is no date and time of this kind as it stands."""
    if not timestamp:
        return None
    clock = r"(?:[T_ -]?(\d\d)[:-]?(\d\d)(?:[:-]?(\d\d))?"
    found = re.fullmatch(rf"(\d{{4}}-\d\d-\d\d){clock}({ZONE}))?", timestamp)
    if not found:
        return timestamp
    day, *clock, zone = found.groups()
    zone = re.sub(r"([+-]\d\d)[:-]?(\d\d)", r"\1:\2", zone or "")
    return f"{day}T{':'.join(part or '00' for part in clock)}{zone}"


def read(found: Found, made: ExerciseSet) -> Submission:
    """The cells that count. Invalid, and nothing else, for whatever is not a submission."""
    if found.problem:
        raise Invalid(found.problem)
    data = regular_file(found.path)
    wanted = {cell.task: cell.kind for cell in made.cells if cell.kind in ("solution", "manual")}
    texts, problems = texts_of(cells_of(data), wanted)
    solutions = {task: text for task, text in texts.items() if wanted[task] == "solution"}
    manual = {task: text for task, text in texts.items() if wanted[task] == "manual"}
    return Submission(hashlib.sha256(data).hexdigest(), solutions, manual, problems)


def regular_file(path: Path) -> bytes:
    try:
        # O_NONBLOCK: opening a FIFO would wait for whoever writes to it.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid(f"the file cannot be opened: {error.strerror}") from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Invalid("it is not a regular file")
        parts, left = [], MAX_BYTES + 1
        while left and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError as error:
        raise Invalid(f"the file cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def cells_of(data: bytes) -> list:
    """The cells of a notebook's file."""
    if len(data) > MAX_BYTES:
        raise Invalid(f"the file has more than {MAX_BYTES // 1_000_000} MB")
    try:
        notebook = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Invalid("the file is not a notebook: it cannot be read as JSON") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or notebook.get("nbformat") != 4:
        raise Invalid("the file is not a notebook of format 4")
    return cells


def texts_of(cells: list, wanted: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """By task the text of its solution cell or its answer, and what is wrong where there is none: that costs this task alone.

    wanted: "solution" or "manual" for each task. Invalid if no cell of any task is there.
    """
    by_id: dict[str, list[dict]] = {}
    for cell in cells:
        if grade_id := grade_id_of(cell):
            by_id.setdefault(grade_id, []).append(cell)
    if not by_id.keys() & wanted.keys():
        raise Invalid("it has no cell of this set: their metadata or the cells themselves were removed")
    texts, problems = {}, {}
    for task, kind in wanted.items():
        try:
            text = text_of(task, kind, by_id.get(task, []))
            texts[task] = without_magics(text) if kind == "solution" else text
        except Invalid as problem:
            problems[task] = str(problem)
    return texts, problems


def grade_id_of(cell) -> str | None:
    """nbgrader's id of a cell. Cells of every other form are passed over."""
    at = cell
    for key in ("metadata", "nbgrader", "grade_id"):
        at = at.get(key) if isinstance(at, dict) else None
    return at if isinstance(at, str) else None


def text_of(task: str, kind: str, cells: list[dict]) -> str:
    what = "solution cell" if kind == "solution" else "answer"
    if not cells:
        raise Invalid(f"the {what} {task} is missing: its metadata or the cell itself was removed")
    if len(cells) > 1:
        raise Invalid(
            f"the {what} {task} is there {len(cells)} times: merge them (Shift-M in JupyterLab), or delete all but one"
        )
    if cells[0].get("cell_type") != ("code" if kind == "solution" else "markdown"):
        raise Invalid(f"the {what} {task} was made a cell of another kind")
    source = cells[0].get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        raise Invalid(f"the {what} {task} has no text")
    if len(source) > MAX_TEXT:
        raise Invalid(f"the {what} {task} has more than {MAX_TEXT:,} characters")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise Invalid(f"the {what} {task} has characters that are none") from None
    return source
