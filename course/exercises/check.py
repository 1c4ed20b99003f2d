"""`course check 04`: what a student's own notebook passes of the visible checks, offline, in a fresh process."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course.exercises.cells import without_magics
from course.exercises.sets import HEADING, RELEASED
from course.exercises.without import found
from course.files import write_atomically
from course.grade.submission import Invalid, cells_of, refuse_large, texts_of
from course.package.remedies import not_there
from course.paths import BUILT, ROOT, CourseError, relative, two_digits

PASSED = BUILT / "progress.json"
SECONDS = 60  # for one cell; what the checks ask takes a few


@dataclass(frozen=True)
class Released:
    """A cell of a released notebook that means something."""

    name: str  # its grade_id: 04-1, 04-1-check, given-2, student
    source: str
    untouched: bool  # of a solution
    forbids: tuple[str, ...] = ()


def call_check(which: str, seconds: float = SECONDS) -> int:
    """One line for each task; exit code 0 if all visible checks pass."""
    path = find(which)
    cells, titles, problems = read(path)
    said = outcomes(cells, titles, problems, seconds, path.parent)
    wide = max(len(title) for title, _ in titles.values())
    for task, (title, _) in titles.items():
        print(f"{task}  {title:{wide}}  {said[task]}")
    graded = {task: words for task, words in said.items() if words != BY_HAND}
    passed = [task for task, words in graded.items() if words == "passed"]
    by_hand = len(said) - len(graded)
    more = f"; a person reads {by_hand} more" if by_hand else ""
    print(f"{len(passed)} of {len(graded)} tasks pass their visible checks{more}")
    if all(cell.untouched for cell in cells if is_solution(cell.name)):
        print(f"{relative(path)} is as it was handed out: is your work saved? (Ctrl-S in JupyterLab)")
    record({task: titles[task] for task in passed}, list(graded))
    return 0 if len(passed) == len(graded) else 1


BY_HAND, NOT_BEGUN = "a person reads this answer", "not begun"


def is_solution(name: str) -> bool:
    return not name.endswith("-check") and not name.startswith("given-")


def find(which: str) -> Path:
    """The notebook of a chapter's exercises below released/, or at a path."""
    if which.endswith(".ipynb"):
        path = Path(which)
        if not path.is_file():
            raise CourseError(f"there is no {which}; save the notebook first, or name another path")
        return path.resolve()
    number = two_digits(which.partition("_")[0])
    there = sorted(p for p in RELEASED.glob(f"{number}_*/*.ipynb") if p.stem == p.parent.name)
    if not there:
        raise CourseError(
            f"no exercises for chapter {which!r} in {relative(RELEASED)}/; `course exercises release {number}` makes them,"
            " `course check path/to/notebook.ipynb` checks one elsewhere"
        )
    return there[0]


def read(path: Path) -> tuple[list[Released], dict[str, tuple[str, int]], dict[str, str]]:
    """The cells that the checks need, title and minutes of each task, and for what the grader would not take a solution's cell."""
    try:
        data = path.read_bytes()
        refuse_large(data)
        saved = cells_of(data)
        texts = ["".join(c["source"]) for c in saved if c["cell_type"] == "markdown"]
        found = [c for c in saved if c["cell_type"] == "code" and "nbgrader" in c["metadata"]]
        cells = [
            Released(
                c["metadata"]["nbgrader"]["grade_id"],
                without_magics("".join(c["source"])),
                is_untouched(c),
                tuple(c["metadata"].get("forbids", ())),
            )
            for c in found
        ]
    except Invalid as problem:  # the grader's own words
        raise CourseError(f"{relative(path)}: {problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CourseError(
            f"{relative(path)} is not a readable notebook ({type(error).__name__}: {error})"
        ) from None
    tasks = {task: (title, int(minutes)) for task, title, *_, minutes in HEADING.findall("\n\n".join(texts))}
    if not tasks:
        raise CourseError(f"{relative(path)} holds no task of an exercise set")
    there = {cell.name.removesuffix("-check") for cell in cells}
    _, problems = texts_of(saved, {task: "solution" for task in tasks if task in there})
    return [cell for cell in cells if cell.name not in problems], tasks, problems


def is_untouched(cell: dict) -> bool:
    """Whether a solution's cell says what was handed out: nbgrader's checksum of it still holds."""
    marks = cell["metadata"]["nbgrader"]
    words = (
        "".join(cell["source"]) + "codeFalseTrueFalse" + marks["grade_id"]
    )  # no grade, a solution, not locked
    return hashlib.md5(words.encode()).hexdigest() == marks.get("checksum")


def outcomes(
    cells: list[Released], tasks: dict, problems: dict[str, str], seconds: float, folder: Path
) -> dict[str, str]:
    """What to tell of each task."""
    by_name = {cell.name: cell for cell in cells}
    said = run(cells, seconds, folder)
    broken = next(
        (f"{name}: {words}" for name, words in said.items() if name.startswith("given-") and words), ""
    )
    if lacking := not_there(broken):  # no task can pass then
        raise CourseError(lacking)
    told = {}
    for task in tasks:
        solution, check = by_name.get(task), by_name.get(f"{task}-check")
        if task in problems:
            told[task] = problems[task]
        elif solution is None:
            told[task] = BY_HAND
        elif check is None:
            told[task] = "its check cell is gone; take the notebook as it was handed out"
        elif words := said[task] or found(task, solution.source, solution.forbids) or said[check.name]:
            words = NOT_BEGUN if solution.untouched else words  # what it says of our code is a task's answer
            told[task] = words + (f" (a given cell fails: {broken})" if broken else "")
        else:
            told[task] = "passed"
    return told


def run(cells: list[Released], seconds: float, folder: Path) -> dict[str, str]:
    """ "" for each cell that ran to its end, else what is wrong. A cell that hangs or ends Python is left out, and all begins anew."""
    said: dict[str, str] = {}
    left = list(cells)
    while left:
        done, stuck = run_once(left, seconds, folder)
        if stuck is None:
            return said | done
        name, words = stuck
        said[name] = words
        left = [cell for cell in left if cell.name != name]
    return said


def run_once(
    cells: list[Released], seconds: float, folder: Path
) -> tuple[dict[str, str], tuple[str, str] | None]:
    """One process: what it said of each cell, and the cell that it did not survive."""
    forbids = {cell.name: cell.forbids for cell in cells}
    rows = [[cell.name, cell.source, forbids.get(cell.name.removesuffix("-check"), ())] for cell in cells]
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("try_tasks.py")), str(seconds)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
    )
    said, began = {}, 0.0
    with process:
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which the first line tells
            process.stdin.write(json.dumps(rows))
            process.stdin.close()
        for cell in cells:
            began = time.monotonic()
            line = process.stdout.readline()
            if not line:
                hangs = time.monotonic() - began > 0.9 * seconds
                ends = (
                    f"does not end within {seconds:g} s"
                    if hangs
                    else "ends Python (out of memory, or an exit?)"
                )
                return said, (cell.name, ends)
            said[cell.name] = json.loads(line)
    return said, None


def record(passed: dict[str, tuple[str, int]], graded: list[str]) -> None:
    """Keep which tasks pass now, for `course progress`."""
    kept = {task: made for task, made in progress().items() if task not in graded}
    for task, (title, minutes) in passed.items():
        kept[task] = {"title": title, "minutes": minutes, "when": f"{datetime.now():%Y-%m-%d %H:%M}"}
    text = json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False)
    write_atomically(PASSED, (text + "\n").encode())


def progress() -> dict[str, dict]:
    try:
        kept = json.loads(PASSED.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
