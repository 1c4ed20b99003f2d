"""The modules of the package as chapters make them, and the package as of a chapter, to test the chapter in.

What a later chapter exports to a module grows it. Of an earlier chapter's module that nobody has grown, the package has the
last word; what this chapter or a later one has a part in is made of the saved notebooks.
"""

import os
import shutil
from pathlib import Path

from course.files import read_cells, write_atomically
from course.package.blank import is_blank
from course.package.cells import claimed_modules, exported_cells
from course.package.export import export_all, writers
from course.paths import ASIDE, NOTEBOOKS, PACKAGE, module_path, modules, number_of, numbered, two_digits
from course.states.released import exporting_cells
from course.states.state import is_there


class Chapter:
    """The modules that a chapter's notebook exports to, as the chapters around it make them. nb: what it says, if not as saved."""

    def __init__(self, path: Path, nb=None):
        self.number, self.path, self.nb = number_of(path), path, nb or read_cells(path)
        self.cells = exported_cells(self.nb, path.name)
        self.modules = list(dict.fromkeys(cell.module for cell in self.cells))
        wrote = {number for module in self.modules for number in chapters_of(module)}
        earlier = [p for p in notebooks_upto(self.number) if number_of(p) != self.number]
        # a damaged notebook claims nothing, but may have written
        part = [p for p in earlier if number_of(p) in wrote or claimed_modules(p) & set(self.modules)]
        self.upto = [*read(part), (path.name, self.nb)]

    def in_package(self) -> dict[str, str]:
        """Module name → text, with what later chapters have grown: those that the package's module names in its first lines."""
        return {m: export_all([*self.upto, *self.later(m)], [m])[m] for m in self.modules}

    def later(self, module: str) -> list[tuple[str, object]]:
        """The later notebooks that have a part in a module of the package."""
        there = [number for number in chapters_of(module) if number > self.number]
        return read([path for path in all_notebooks() if number_of(path) in there])

    def lay_out(self, folder: Path) -> dict[str, str]:
        """Make `folder`/nanogpt, the package as of this chapter, without what only later ones export; the chapter's modules in it."""
        own = export_all(self.upto, self.modules)
        ahead = {m for m in modules(PACKAGE) if max(chapters_of(m), default="") > self.number}
        made = compose(notebooks_upto(self.number), ahead - set(own)) | own
        package = copy_with(made, folder)
        for module in [m for m in ahead - set(made) if min(chapters_of(m)) > self.number]:
            module_path(module, package).unlink()
        return own


def compose(notebooks: list[Path], only: set[str] | None = None) -> dict[str, str]:
    """Module name → text, as these notebooks say, in the order of the chapters. only: the modules that are wanted, if not all."""
    return export_all(read([p for p in notebooks if only is None or claimed_modules(p) & only]), only)


def all_notebooks() -> list[Path]:
    """The notebooks of all chapters, in order; the one that `course build` is making stands aside."""
    found = {number_of(path): path for path in numbered(NOTEBOOKS, ".ipynb")}
    if made := os.environ.get(ASIDE):
        found |= {number_of(path): path for path in numbered(Path(made), ".ipynb")}
    return [found[number] for number in sorted(found)]


def notebooks_upto(chapter: str) -> list[Path]:
    return [path for path in all_notebooks() if number_of(path) <= two_digits(chapter)]


def read(notebooks: list[Path]) -> list[tuple[str, object]]:
    """Their names and cells. One whose chapter is in the package though it still has blanks counts as it is released."""
    found = []
    for path in notebooks:
        nb = read_cells(path)
        if is_there(number_of(path)) and is_blank(nb):
            nb = exporting_cells(number_of(path))
        found.append((path.name, nb))
    return found


def chapters_of(module: str) -> list[str]:
    """The chapters that the package's module names in its first lines."""
    return [number_of(Path(name)) for name in writers(current(module))]


def current(module: str) -> str:
    """The text of the package's module; empty where there is none."""
    path = module_path(module, PACKAGE)
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def copy_with(texts: dict[str, str], folder: Path) -> Path:
    """Make `folder`/nanogpt, a copy of the package with these modules."""
    package = shutil.copytree(PACKAGE, folder / "nanogpt", ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in texts.items():
        write_atomically(module_path(module, package), text.encode())
    return package
