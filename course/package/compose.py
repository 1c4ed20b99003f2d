"""The package's modules as several chapters make them: what a later one exports to a module grows it."""

import os
from collections.abc import Container
from pathlib import Path

from course.files import read_cells
from course.package.blank import is_blank
from course.package.cells import ExportedCell, claimed_modules, exported_cells
from course.package.export import export_all
from course.paths import ASIDE, NOTEBOOKS, number_of, numbered, two_digits
from course.states.released import exporting_cells
from course.states.started import is_there


def compose(notebooks: list[Path], only: set[str] | None = None) -> dict[str, str]:
    """Module name → module text, as these notebooks say, in the order of the chapters.

    only: the modules that are wanted; a notebook that exports to none of them is not looked at.
    """
    return export_all(read(exporting(notebooks, only)), only)


def all_notebooks() -> list[Path]:
    """The notebooks of all chapters, in order; the one that `course build` is making stands aside."""
    made = Path(os.environ[ASIDE]) if os.environ.get(ASIDE) else None
    found = {number_of(path): path for path in numbered(NOTEBOOKS, ".ipynb")}
    found |= {number_of(path): path for path in numbered(made, ".ipynb")} if made else {}
    return [found[number] for number in sorted(found)]


def notebooks_upto(chapter: str) -> list[Path]:
    return [path for path in all_notebooks() if number_of(path) <= two_digits(chapter)]


def exporting(notebooks: list[Path], only: Container[str] | None) -> list[Path]:
    """Those of the notebooks, in the order of the chapters, that export to one of these modules."""
    ordered = sorted(notebooks, key=number_of)
    return [p for p in ordered if only is None or any(module in only for module in claimed_modules(p))]


def read(notebooks: list[Path]) -> list[tuple[str, object]]:
    return [(path.name, cells_that_count(path)) for path in notebooks]


def cells_that_count(path: Path):
    """A notebook's cells. One whose chapter is in the package though it still has blanks counts as it is released."""
    nb = read_cells(path)
    if is_there(number_of(path)) and is_blank(nb):
        return exporting_cells(number_of(path))
    return nb


def cells_of(notebooks: list[tuple[str, object]], only: Container[str]) -> list[ExportedCell]:
    """All cells that these notebooks export to these modules."""
    return [cell for name, nb in notebooks for cell in exported_cells(nb, name) if cell.module in only]
