"""A failing test, told to a student: what it says, in one line, and which cell it most likely means."""

import re
from pathlib import Path

from course.package.cells import ExportedCell
from course.package.export import cell_at
from course.package.remedies import NO_NAME, remedy
from course.paths import module_file

KEPT_LINES = 14  # of pytest's own text
EXAMPLE = re.compile(
    r"\n(?:E +)?(?:Falsifying example|Failing explicit example|Failing test case): "
)  # hypothesis's note
NOISE = re.compile(
    r"^E?\s+\+  |most recent call|importlib|package[/\\]trial\.py|^ *\^+$"
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
    """The cell to look at first: where the error arose; else the first whose name stands in the test's lines.

    cells: of the chapter. all_cells: with those that earlier chapters export to its modules, where an error may arise.
    """
    named = [cell for cell in cells if any(re.search(rf"\b{name}\b", text) for name in cell.names())]
    found = [*frames(text, all_cells, modules), *named]
    return found[0].where if found else cells[0].notebook


def source_of(test: str, files: list[Path]) -> str:
    """The lines of a test, which name what it tests."""
    name = re.escape(test.partition("[")[0])
    function = re.compile(rf"^( *)def {name}\(.*?(?=^\1[^\s)]|\Z)", re.MULTILINE | re.DOTALL)
    texts = (file.read_text(encoding="utf-8") for file in files)
    return next((found[0] for text in texts if (found := function.search(text))), "")


def frames(text: str, cells: list[ExportedCell], modules: dict[str, str]) -> list[ExportedCell]:
    """The cells that a traceback runs through, the deepest first."""
    found = []
    for file, row in re.findall(r"nanogpt[/\\]([\w/\\]+)\.py(?:\", line |:)(\d+)", text):
        module = re.sub(r"[/\\]", ".", file)
        if module in modules:
            where = cell_at(modules[module], int(row), [c for c in cells if c.module == module])
            found += [cell for cell in cells if cell.where == where]
    return found[::-1]
