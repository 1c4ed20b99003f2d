"""A notebook as a student gets it who writes the blanks: above each its hints, below it a check, and nothing printed yet."""

import copy
import re
from pathlib import Path

from course.notebooks.source import id_of
from course.package.blank import emptied
from course.package.cells import ExportedCell, exported_cells
from course.package.tutor import blanks_of
from course.paths import number_of

HINT = re.compile(r"^(#\| blank[^:\n]*):.*$", re.MULTILINE)


def handed_out(nb, name: str):
    """Bodies and outputs go; cells keep their ids. name: the notebook's file name."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    nb, chapter = copy.deepcopy(nb), number_of(Path(name))
    with_blanks = {cell.id: cell for cell in exported_cells(nb, name) if cell.blanks}
    cells = []
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if exported := with_blanks.get(cell.id):
            cell.source = HINT.sub(r"\1", emptied(cell.source, exported, list(exported.blanks)))
            cells += [new_markdown_cell(your_turn(exported, chapter), id=id_of(f"turn {cell.id}")), cell]
            if known := [name for name in exported.blanks if name in blanks_of(chapter)]:
                lines = "\n".join(f'check("{chapter}", "{name}")' for name in known)
                source = f"from course.notebook import check\n\n{lines}"
                cells.append(new_code_cell(source, id=id_of(f"check {cell.id}")))
        else:
            cells.append(cell)
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
        lines.append(
            folded(f"Our solution{of}", f"`course solution {chapter} {name}` in a terminal prints it.")
        )
    return "\n\n".join(lines)


def folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
