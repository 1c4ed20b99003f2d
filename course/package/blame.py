"""A failing test, told to a student: what it says, in one line, and which cell it most likely means."""

import re

from course.package.as_of import current
from course.package.cells import ExportedCell
from course.package.export import cell_at
from course.package.growing import module_parts, parts_of, pieces
from course.package.remedies import NO_NAME, remedy
from course.paths import CourseError, module_file

KEPT_LINES = 14  # of pytest's own text
EXAMPLE = re.compile(
    r"\n(?:E +)?(?:Falsifying example|Failing explicit example|Failing test case): "
)  # hypothesis's note
NOISE = re.compile(
    r"^E?\s+\+  |most recent call|importlib|course[/\\]trial\.py|^ *\^+$"
    r"|^ImportError while importing|^Hint: make sure|^Traceback:$"  # pytest's, of a test file
)


def first_line(failure: dict, modules=()) -> str:
    """`test_name: the assertion's message (hypothesis's example)`; a name that is missing is told with its remedy."""
    if gone := NO_NAME.search(failure["message"]):
        name, module = gone.groups()
        keep = (
            f"{failure['test']} needs {name}, which no cell exports to {module_file(module)}; keep that name"
        )
        return keep if module in modules else f"{failure['test']}: {remedy(failure['message'])}"
    message, *notes = EXAMPLE.split(failure["message"], maxsplit=1)
    message = re.sub(r"^(AssertionError|Failed):? ?", "", message).strip().split("\n")[0]
    example = re.match(r"\w+\((.*?)\)\s*(\n|$)", notes[0], re.DOTALL) if notes else None
    given = ", ".join(part.strip() for part in example.group(1).strip(" ,\n").split(",\n")) if example else ""
    return f"{failure['test']}: {message or 'fails'}" + (f" ({given})" if given else "")


def excerpt(text: str) -> str:
    """The end of pytest's text or a traceback, without values of every subexpression and hypothesis's notes."""
    lines = EXAMPLE.split(text, maxsplit=1)[0].rstrip().split("\n")
    lines = [line for line in lines if not NOISE.search(line)]
    lines = lines[:KEPT_LINES] if text.startswith("Timeout") else lines[-KEPT_LINES:]
    return "\n" + "".join(f"\n    {line[:160]}".rstrip() for line in lines) if any(lines) else ""


def likely_cell(
    text: str, cells: list[ExportedCell], all_cells: list[ExportedCell], modules: dict[str, str]
) -> str:
    """The cell to look at first, with what it defines.

    Cells that differ from the package's module, whose tests pass: of those the one where the error arose, or all if they are
    few. Else the cell where the error arose.
    cells: of the chapter. all_cells: with those that earlier chapters export to its modules, where an error may arise.
    """
    raised = frames(text, all_cells, modules)
    changed = [cell for cell in cells if differs(cell, current(cell.module))]
    found = [cell for cell in raised if cell in changed][:1]
    found = found or (changed if len(changed) <= 3 else []) or raised[:1]
    if not found:
        return cells[0].notebook
    return " or ".join([found[0].where, *(cell.where.partition(", ")[2] for cell in found[1:])])


def frames(text: str, cells: list[ExportedCell], modules: dict[str, str]) -> list[ExportedCell]:
    """The cells that a traceback runs through, the deepest first."""
    found = []
    for file, row in re.findall(r"nanogpt[/\\]([\w/\\]+)\.py(?:\", line |:)(\d+)", text):
        module = re.sub(r"[/\\]", ".", file)
        if module in modules:
            where = cell_at(modules[module], int(row), [c for c in cells if c.module == module])
            found += [cell for cell in cells if cell.where == where]
    return found[::-1]


def differs(cell: ExportedCell, installed: str) -> bool:
    """True if the module in the package lacks a definition of this cell, or has another one."""
    try:
        there = pieces(module_parts(installed))
    except CourseError:  # it is damaged
        return True
    return any(there.get(name) != text for name, text in pieces(parts_of(cell)).items())
