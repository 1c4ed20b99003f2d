"""The cells as the kernel ran them last, beside the notebook as it is saved: a module is what the student saw work."""

import ast
import re

from course.package.blame import described
from course.package.cells import ExportedCell, parse
from course.package.directives import read_head
from course.paths import CourseError

WHERE = "the cell that was run"


def compare_with_run(cells: list[ExportedCell], executed: list[str], by_id: dict[str, str]) -> None:
    """CourseError if a saved cell that is exported is not what the kernel ran last, or was never run.

    executed: the cells that were run, in order. by_id: the last run of a cell, where the kernel is told the cell's id,
    as JupyterLab does; elsewhere, what a cell defines is all that it can be known by.
    Compared is the code: a comment, a magic and a `print` change nothing that a module holds.
    """
    last_run: dict[tuple[str, str], str] = {}  # two modules may each have a `run`; "_" is the chapter's first
    for source in executed:
        if cell := as_exported(source):
            last_run.update({(cell.module, name): code(cell.tree) for name in cell.names()})
    earlier = {code(as_run(source)) for source in executed}
    for cell in cells:
        runs = [last_run.get((cell.module, name), last_run.get(("_", name))) for name in cell.names()]
        if cell.id in by_id:
            runs.append(code(as_run(by_id[cell.id])))
        if None in runs:
            raise CourseError(
                f"{described(cell, 0)} has not been run: run it and all before it, save with Ctrl+S, then run this cell again"
            )
        if any(ran != code(cell.tree) for ran in runs):
            remedy = (
                "what was run last is not what is saved: save with Ctrl+S (if you have changed the cell back, run it)"
                if code(cell.tree) in earlier
                else "the saved cell is not the one that was run last: run it, save with Ctrl+S"
            )
            raise CourseError(f"{described(cell, 0)}: {remedy}, then run this cell again")
    unsaved = {name for _, name in last_run} - {name for cell in cells for name in cell.names()}
    if unsaved:
        print(
            f"note: {', '.join(sorted(unsaved))} was run in an exported cell that the saved notebook does not have: if it "
            "is to be in the module, save with Ctrl+S, then run this cell again"
        )


def as_exported(source: str) -> ExportedCell | None:
    """A cell that was run with `#| export`, whatever else stood in it; None for any other."""
    try:
        head = read_head(without_cell_magic(source), WHERE)
    except CourseError:
        return None
    return ExportedCell(WHERE, head.module or "_", head.source, as_run(source)) if head.exported else None


def as_run(source: str) -> ast.Module:
    """A cell as Python, its magics as IPython calls them; an empty one if it cannot be read."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return parse(TransformerManager().transform_cell(without_cell_magic(source)), WHERE)
    except (CourseError, SyntaxError):
        return ast.Module([], [])


def without_cell_magic(source: str) -> str:
    return re.sub(r"\A\s*%%.*\n", "", source)


def code(tree: ast.Module) -> str:
    """What a cell imports and defines."""
    return "\n".join(ast.unparse(node) for node in tree.body if not isinstance(node, ast.Expr))
