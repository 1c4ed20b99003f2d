"""`course check 04`: what a student's own notebook passes of the visible checks, offline, in a fresh process."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course.exercises.cells import checksum, without_magics
from course.exercises.sets import HEADING, RELEASED
from course.files import json_bytes, read_records, write_atomically
from course.grade.submission import Invalid, cells_of, texts_of
from course.grade.without import found
from course.package.remedies import not_there
from course.paths import BUILT, ROOT, CourseError, relative, two_digits

PASSED = BUILT / "progress.json"
SECONDS = 60  # for one cell; what the checks ask takes a few
BY_HAND, NOT_BEGUN = "a person reads this answer", "not begun"


@dataclass(frozen=True)
class Released:
    name: str  # its grade_id: 04-1, 04-1-check, given-2, student
    source: str
    edited: bool  # of a solution: it is not as it was handed out
    forbids: list[str]


def call_check(which: str, seconds: float = SECONDS) -> int:
    """One line for each task; exit code 0 if all visible checks pass."""
    path = find(which)
    cells, tasks, problems = read(path)
    said = outcomes(cells, tasks, problems, seconds, path.parent)
    wide = max(len(title) for title, _ in tasks.values())
    for task, (title, _) in tasks.items():
        print(f"{task}  {title:{wide}}  {said[task]}")
    graded = [task for task in tasks if said[task] != BY_HAND]
    passed = [task for task in graded if said[task] == "passed"]
    more = f"; a person reads {len(tasks) - len(graded)} more" if graded != list(tasks) else ""
    print(f"{len(passed)} of {len(graded)} tasks pass their visible checks{more}")
    if not any(cell.edited for cell in cells):
        print(f"{relative(path)} is as it was handed out: is your work saved? (Ctrl-S in JupyterLab)")
    record({task: tasks[task] for task in passed}, graded)
    return 0 if passed == graded else 1


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
        saved = cells_of(path.read_bytes())
        texts = ["".join(cell["source"]) for cell in saved if cell["cell_type"] == "markdown"]
        codes = [cell for cell in saved if cell["cell_type"] == "code" and "nbgrader" in cell["metadata"]]
        cells = [released("".join(cell["source"]), cell["metadata"]) for cell in codes]
        tasks = {task: (title, int(time)) for task, title, *_, time in HEADING.findall("\n\n".join(texts))}
        if not tasks:
            raise Invalid("it holds no task of an exercise set")
        there = {cell.name.removesuffix("-check") for cell in cells}
        _, problems = texts_of(saved, {task: "solution" for task in tasks if task in there})
    except Invalid as problem:  # the grader's own words
        raise CourseError(f"{relative(path)}: {problem}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(f"{relative(path)} is no notebook: {type(error).__name__}: {error}") from None
    return [cell for cell in cells if cell.name not in problems], tasks, problems


def released(source: str, metadata: dict) -> Released:
    marks = metadata["nbgrader"]
    name = marks["grade_id"]
    edited = marks.get("solution", False) and checksum(source, name) != marks.get("checksum")
    return Released(name, without_magics(source), edited, metadata.get("forbids", []))


def outcomes(
    cells: list[Released], tasks: dict, problems: dict[str, str], seconds: float, folder: Path
) -> dict[str, str]:
    by_name = {cell.name: cell for cell in cells}
    said = run(cells, seconds, folder)
    broken = next((f"{n}: {words}" for n, words in said.items() if n.startswith("given-") and words), "")
    if lacking := not_there(broken):  # no task can pass then
        raise CourseError(lacking)

    def outcome(task: str) -> str:
        solution, check = by_name.get(task), by_name.get(f"{task}-check")
        if task in problems:
            return problems[task]
        if solution is None:
            return BY_HAND
        if check is None:
            return "its check cell is gone; take the notebook as it was handed out"
        words = said[task] or found(task, solution.source, solution.forbids) or said[check.name]
        if words and not solution.edited:  # what is said of our code is a repair task's answer
            words = NOT_BEGUN
        more = f" (a given cell fails: {broken})" if broken else ""
        return words + more if words else "passed"

    return {task: outcome(task) for task in tasks}


def run(cells: list[Released], seconds: float, folder: Path) -> dict[str, str]:
    """ "" for each cell that ran to its end, else what is wrong. A cell that hangs or ends Python is left out, and all begins anew."""
    command = [sys.executable, str(Path(__file__).with_name("try_tasks.py")), str(seconds)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    forbids = {cell.name: cell.forbids for cell in cells}
    ended = {}
    while True:
        left = [cell for cell in cells if cell.name not in ended]
        rows = [[c.name, c.source, forbids.get(c.name.removesuffix("-check"), [])] for c in left]
        data = json.dumps(rows).encode()
        done = subprocess.run(command, input=data, cwd=folder, env=env, capture_output=True)
        lines = done.stdout.decode(errors="replace").splitlines()
        said = [json.loads(line) for line in lines if line.startswith('"')]
        if len(said) == len(left):
            return ended | {cell.name: words for cell, words in zip(left, said)}
        ends = "ends Python (out of memory, or an exit?)"
        if len(lines) > len(said):  # Python's "Timeout"
            ends = f"does not end within {seconds:g} s"
        ended[left[len(said)].name] = ends


def record(passed: dict[str, tuple[str, int]], graded: list[str]) -> None:
    """Keep which tasks pass now, for `course progress`."""
    kept = {task: made for task, made in progress().items() if task not in graded}
    for task, (title, minutes) in passed.items():
        kept[task] = {"title": title, "minutes": minutes, "when": f"{datetime.now():%Y-%m-%d %H:%M}"}
    write_atomically(PASSED, json_bytes(dict(sorted(kept.items()))))


def progress() -> dict[str, dict]:
    return read_records(PASSED)
