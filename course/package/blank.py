"""`#| blank attention_weights: A hint.` in an exported cell: a function whose body a student writes.

The committed notebooks have the bodies. `handed_out` (hand_out.py) takes them away and leaves the signature, the docstring and

    raise NotImplementedError("your turn: attention_weights")

A cell that calls it says that sentence and nothing else (`say_turn`), and so does the checkpoint (`refuse_empty`).
"""

import ast
import re

from course.package.cells import ExportedCell, first_line, functions
from course.package.growing import above, end_of
from course.paths import CourseError

TURN = "your turn: "
LEFT = re.compile(rf'^ *raise NotImplementedError\("{TURN}([\w.]+)"\)', re.MULTILINE)


def emptied(source: str, exported: ExportedCell, names: list[str]) -> str:
    """A cell's text without the bodies of these functions."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    # Last first, so that the others' lines stay in place.
    for name, node in reversed(functions(exported.tree)):
        if name in names:
            begin, end = body_lines(node, lines, f"{exported.where}: {name}")
            lines[begin:end] = [f'{" " * node.body[-1].col_offset}raise NotImplementedError("{TURN}{name}")']
    return "\n".join(lines)


def body_lines(node: ast.FunctionDef, lines: list[str], where: str) -> tuple[int, int]:
    """The lines of a function's body, from one up to another, with the comments in it and without its docstring."""
    doc = int(ast.get_docstring(node) is not None)
    if len(node.body) == doc:
        raise CourseError(f"{where} has no body that could be left out; take its name from `#| blank`")
    begin = first_line(node.body[doc]) - 1
    if lines[begin][: node.body[doc].col_offset].lstrip(" @"):
        raise CourseError(f"{where} has its body in one line with the `def`; write it on lines of its own")
    return above(begin, lines), end_of(node, lines)


def is_blank(nb) -> bool:
    """Whether a notebook still has one of the lines that `handed_out` left in it."""
    return any(LEFT.search(cell.source) for cell in nb.cells)


def refuse_empty(cells: list[ExportedCell]) -> None:
    """CourseError naming the first function that is still blank: its tests need not be run to know."""
    for cell in cells:
        if found := LEFT.search(cell.source):
            what = f"{found[1]} is still blank ({TURN}{found[1]})"
            raise CourseError(f"{cell.where}: {what}: write its body, run the cell, save, then checkpoint")


def say_turn(shell, etype, error, traceback, tb_offset=None) -> None:
    """IPython calls it for a NotImplementedError. That of a blank is one sentence, without a traceback."""
    if str(error).startswith(TURN):
        error._render_traceback_ = lambda: [f"{error} (write its body, run its cell, then this one again)"]
    shell.showtraceback((etype, error, traceback), tb_offset=tb_offset)
