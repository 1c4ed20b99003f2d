"""A chapter's notebook as a student got it, with its blanks (blank.py) or with its outputs; `course solution 04 NAME`."""

import copy
import re
from contextlib import suppress
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from course.files import notebook_bytes, read_notebook
from course.git import git
from course.notebooks.address import dressed
from course.notebooks.source import cell_lines, id_of, notebook_from_source
from course.package.blank import emptied, is_blank
from course.package.cells import ExportedCell, exported_cells, first_line, functions
from course.package.tutor import blanks_of
from course.paths import NOTEBOOKS, CourseError, number_of, relative, source_path
from course.states.released import exporting_cells

HINT = re.compile(r"^(#\| blank[^:\n]*):.*$", re.MULTILINE)


def handed_out(nb, name: str):
    """Above each blank its hints, below it a check, and nothing printed yet; cells keep their ids. name: the notebook's."""
    nb, chapter = copy.deepcopy(nb), number_of(Path(name))
    with_blanks = {cell.id: cell for cell in exported_cells(nb, name) if cell.blanks}
    cells = []
    for cell in nb.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if exported := with_blanks.get(cell.id):
            cell.source = HINT.sub(r"\1", emptied(cell.source, exported, list(exported.blanks)))
            cells.insert(-1, new_markdown_cell(your_turn(exported, chapter), id=id_of(f"turn {cell.id}")))
            if known := [name for name in exported.blanks if name in blanks_of(chapter)]:
                lines = "\n".join(f'check("{chapter}", "{name}")' for name in known)
                source = f"from course.notebook import check\n\n{lines}"
                cells.append(new_code_cell(source, id=id_of(f"check {cell.id}")))
    nb.cells = cells
    return nb


def your_turn(cell: ExportedCell, chapter: str) -> str:
    """What is asked for in the next cell: the functions, the minutes, and a ladder of hints."""
    known = {name: blanks_of(chapter).get(name) for name in cell.blanks}
    minutes = sum(blank.minutes for blank in known.values() if blank)
    names = " and ".join(f"`{name}`" for name in cell.blanks)
    about = f" · about {minutes} minutes" if minutes else ""
    lines = [
        f"**✎ Your turn: {names}**{about}\n\nWrite the body in place of the line that raises `NotImplementedError`, "
        "and run the cell" + ("; the cell below it says whether it is right." if any(known.values()) else ".")
    ]
    for name, hint in cell.blanks.items():
        lines += [known[name].note] if known[name] and known[name].note else []
        of = f" for `{name}`" if len(cell.blanks) > 1 else ""
        lines += [folded(f"A hint{of}", hint)] if hint else []
        lines += [folded(f"Another hint{of}", known[name].hint.strip())] if known[name] else []
        command = f"`course solution {chapter} {name}` in a terminal prints it."
        lines.append(folded(f"Our solution{of}", command))
    return "\n\n".join(lines)


def folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def as_handed_out(path: Path):
    return handed_out(notebook_from_source(source_path(number_of(path))), path.name)


def with_blanks(chapters: list[str]) -> dict[Path, bytes]:
    paths = [NOTEBOOKS / f"{source_path(chapter).stem}.ipynb" for chapter in chapters]
    return {path: notebook_bytes(as_handed_out(path)) for path in paths}


def released_notebook(path: Path):
    """The newest committed notebook that says what its source says; without git, one without outputs.

    Students never edit the source, so it tells a released notebook from one they committed themselves.
    """
    wanted, commits = notebook_from_source(source_path(number_of(path))), ""
    with suppress(CourseError):
        commits = git("log", "--format=%H", "--", relative(path))
    for commit in commits.split():
        with suppress(Exception):  # a damaged notebook may have been committed, or none
            text = git("show", f"{commit}:{relative(path)}")
            nb = dressed(nbformat.reads(text, as_version=4), path.stem)  # the address may be a newer one
            if cell_lines(nb) == cell_lines(wanted):
                return nb
    return wanted


def is_own(path: Path) -> bool:
    """Whether a notebook holds more than was handed out: other cells, or what cells printed where none is blank."""
    try:
        nb = read_notebook(path)
        ran = any(cell.get("outputs") for cell in nb.cells) and not is_blank(nb)
        return ran or cell_lines(nb) != cell_lines(as_handed_out(path))
    except CourseError:  # damaged, or a chapter that the course does not have
        return True


def solution(chapter: str, name: str | None) -> str:
    """A function or method of the chapter as it is released; without a name, the names of the blanks."""
    cells = exported_cells(exporting_cells(chapter), f"{source_path(chapter).stem}.ipynb")
    blanks = ", ".join(blank for cell in cells for blank in cell.blanks) or "none"
    if name is None:
        return f"chapter {chapter} leaves to you: {blanks}"
    found = [
        "\n".join(cell.source.split("\n")[first_line(node) - 1 : node.end_lineno])
        for cell in cells
        for full, node in functions(cell.tree)
        if name in (full, node.name)
    ]
    if not found:
        raise CourseError(f"chapter {chapter} exports no function {name!r}; its blanks are {blanks}")
    return "\n\n".join(found)
