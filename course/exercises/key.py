"""`course exercises key 04`: a set's notebook with its solutions, and what is graded, for whoever teaches and marks."""

from pathlib import Path

import nbformat

from course.exercises.checks import CheckOfCheck
from course.exercises.release import code, markdown, without_answer
from course.exercises.sets import BEGIN, END, RELEASED, ExerciseSet, reference
from course.files import notebook_bytes, write_atomically
from course.notebooks.source import METADATA
from course.paths import ROOT, CourseError, relative

KEYS = ROOT / "build" / "keys"


def write_key(made: ExerciseSet, to: Path = KEYS) -> str:
    return put_key(to / f"{made.name}-key.ipynb", notebook_bytes(key(made)))


def put_key(path: Path, content: bytes) -> str:
    """Write a key and say where. CourseError for a folder that students get."""
    if path.resolve().is_relative_to(RELEASED):
        raise CourseError(f"{relative(path.parent)} is handed out to students; name another folder for keys")
    write_atomically(path, content)
    return f"{relative(path)} written"


def key(made: ExerciseSet) -> nbformat.NotebookNode:
    """Every cell with its solution; below each task's check what gives points, and what is told of wrong solutions."""
    nb = nbformat.v4.new_notebook(metadata=METADATA | {"exercise": made.name})
    nb.nbformat_minor = 5
    for i, cell in enumerate(made.cells):
        if cell.kind == "manual":
            question, answer = without_answer(cell.source)
            answer = answer.partition(BEGIN)[2].removesuffix(END).strip()
            nb.cells.append(markdown(question, f"cell-{i}"))
            nb.cells.append(markdown(asked(made, cell.task, answer), f"key-{cell.task}"))
            continue
        text = reference(cell.source) if cell.kind == "solution" else cell.source
        nb.cells.append((markdown if cell.kind == "text" else code)(text, f"cell-{i}"))
        if cell.kind == "check":
            nb.cells.append(markdown(graded(made, cell.task), f"key-{cell.task}"))
    return nb


def asked(made: ExerciseSet, task: str, answer: str) -> str:
    """For a question that a person marks."""
    parts = [f"**Key to {task}, {made.manual[task]:g} points**", answer, made.rubric.get(task, "")]
    return "\n\n".join(filter(None, parts))


def graded(made: ExerciseSet, task: str) -> str:
    lines = [f"**Key to {task}, {made.points(task):g} points**", ""]
    for check in (check for check in made.checks if check.task == task):
        lines.append(f"- {check.points:g}: {check.name}{' (hidden)' if check.hidden else ''}")
        if isinstance(check, CheckOfCheck):
            lines += [f"  - to be refused: {name}" for name in check.wrong]
    lines += [f"- forbidden: {what}" for what in made.forbids.get(task, ())]
    told = [wrong.says for wrong in made.wrong if wrong.task == task]
    return "\n".join(
        [*lines, "", "What students are told about wrong solutions:", "", *(f"- {says}" for says in told)]
    )
