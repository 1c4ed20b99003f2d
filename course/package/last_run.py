"""The cells as the kernel ran them last, beside the notebook as it is saved: a module is what the student saw work."""

import ast

from course.package.cells import ExportedCell, parse
from course.package.directives import read_head
from course.paths import CourseError

WHERE = "the cell that was run"
SAVE = "save with Ctrl+S, then run this cell again"


def compare_with_run(cells: list[ExportedCell], executed: list[str], by_id: dict[str, str]) -> None:
    """CourseError if a saved cell that is exported is not what the kernel ran last, or was never run.

    executed: the cells that were run, in order. by_id: the last run of a cell, where the kernel is told the cell's id,
    as JupyterLab does; elsewhere, what a cell defines is all that it can be known by.
    Compared is the code: a comment and a `print` change nothing that a module holds.
    """
    last_run: dict[tuple[str, str], str] = {}  # two modules may each have a `run`; "_" is the chapter's first
    for source in executed:
        if cell := exported(source):
            last_run.update({(cell.module, name): code(source) for name in cell.names()})
    for cell in cells:
        runs = [last_run.get((cell.module, name), last_run.get(("_", name))) for name in cell.names()]
        if cell.id in by_id:
            runs.append(code(by_id[cell.id]))
        if any(ran != code(cell.source) for ran in runs):
            what = "has not been run" if None in runs else "what was run last is not what is saved"
            raise CourseError(f"{cell.where}: {what}: run it, {SAVE}")
    if unsaved := {name for _, name in last_run} - {name for cell in cells for name in cell.names()}:
        print(f"note: {', '.join(sorted(unsaved))} was run and is not saved: if it is to be exported, {SAVE}")


def exported(source: str, default: str = "_") -> ExportedCell | None:
    """A cell that was run with `#| export`; None for any other, and for one with a magic in it. default: its module."""
    try:
        head = read_head(source, WHERE)
        tree = parse(head.source, WHERE)
    except CourseError:
        return None
    return ExportedCell(WHERE, head.module or default, head.source, tree) if head.exported else None


def code(source: str) -> str:
    """What a cell imports and defines; nothing of one with a magic, which no module can hold."""
    try:
        tree = parse(source.replace("\r\n", "\n"), WHERE)
    except CourseError:
        return ""
    return "\n".join(ast.unparse(node) for node in tree.body if not isinstance(node, ast.Expr))
