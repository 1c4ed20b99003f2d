"""`course exercises key 04`: a set's notebook with its solutions, and what is graded, for whoever teaches and marks."""

from pathlib import Path

import nbformat

from course.exercises.checks import CheckOfCheck
from course.exercises.release import code, markdown, without_answer
from course.exercises.sets import (
    BEGIN,
    END,
    PAPERS,
    RELEASED,
    SOLUTION,
    ExerciseSet,
    folders,
    load,
    paper,
    reference,
)
from course.files import notebook_bytes, write_atomically
from course.notebooks.source import METADATA
from course.paths import ROOT, CourseError, relative


def write_keys(chapters: list[str], to: Path | None) -> list[str]:
    names = chapters or [folder.name for folder in folders()]
    return [write_key(name, to or ROOT / "build" / "keys") for name in names]


def write_key(name: str, to: Path) -> str:
    """Write the key of a set or a paper; say where. CourseError for a folder that students get."""
    if to.resolve().is_relative_to(RELEASED):
        raise CourseError(f"{relative(to)} is handed out to students; name another folder for keys")
    if name in PAPERS:
        path = to / f"{name}-key.md"
        content = paper(name).replace(BEGIN, "**Key**\n").replace(f"{END}\n", "").encode()
    else:
        made = load(name)
        path = to / f"{made.name}-key.ipynb"
        content = notebook_bytes(key(made))
    write_atomically(path, content)
    return f"{relative(path)} written"


def key(made: ExerciseSet) -> nbformat.NotebookNode:
    """Every cell with its solution; below each task's check what gives points, and what is told of wrong solutions."""
    cells = []
    for number, cell in enumerate(made.cells):
        name, told = f"cell-{number}", f"key-{cell.task}"
        if cell.kind == "manual":
            cells += [
                markdown(without_answer(cell.source), name),
                markdown(asked(made, cell.task, cell.source), told),
            ]
        elif cell.kind == "text":
            cells.append(markdown(cell.source, name))
        else:
            cells.append(code(reference(cell.source), name))
        if cell.kind == "check":
            cells.append(markdown(graded(made, cell.task), told))
    metadata = METADATA | {"exercise": made.name}
    return nbformat.v4.new_notebook(metadata=metadata, nbformat_minor=5, cells=cells)


def asked(made: ExerciseSet, task: str, text: str) -> str:
    """For a question that a person marks."""
    answer = "".join(found["solution"].strip() for found in SOLUTION.finditer(text))
    parts = [f"**Key to {task}, {made.manual[task]:g} points**", answer, made.rubric.get(task, "")]
    return "\n\n".join(filter(None, parts))


def graded(made: ExerciseSet, task: str) -> str:
    lines = [f"**Key to {task}, {made.points(task):g} points**", ""]
    for check in (check for check in made.checks if check.task == task):
        lines.append(f"- {check.points:g}: {check.name}{' (hidden)' if check.hidden else ''}")
        if isinstance(check, CheckOfCheck):
            lines += [f"  - to be refused: {name}" for name in check.wrong]
    lines += [f"- forbidden: {what}" for what in made.forbids.get(task, ())]
    lines += ["", "What students are told about wrong solutions:", ""]
    lines += [f"- {wrong.says}" for wrong in made.wrong if wrong.task == task]
    return "\n".join(lines)
