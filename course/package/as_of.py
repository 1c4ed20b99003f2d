"""The package as of a chapter, to test the chapter in, and the chapter's modules as the package is to have them.

The two differ where a later chapter has grown what this one exports. Of an earlier chapter's module that nobody has
grown, the package has the last word; what this chapter or a later one has a part in is made of the saved notebooks.
"""

import shutil
from pathlib import Path

from course.files import read_cells
from course.package.cells import exported_cells
from course.package.compose import all_notebooks, compose, exporting, notebooks_upto, read
from course.package.export import export_all, writers
from course.package.rooms import make_rooms
from course.paths import PACKAGE, module_path, modules, number_of


class Chapter:
    """The modules that a chapter's notebook exports to, as the chapters around it make them.

    nb: what the notebook says, where that is not what is saved.
    """

    def __init__(self, path: Path, nb=None):
        self.number, self.path = number_of(path), path
        self.nb = read_cells(path) if nb is None else nb
        self.cells = exported_cells(self.nb, path.name)
        self.modules = list(dict.fromkeys(cell.module for cell in self.cells))
        earlier = [path for path in notebooks_upto(self.number) if number_of(path) != self.number]
        wrote = {number for module in self.modules for number in chapters_of(module)}
        claim = exporting(earlier, self.modules)  # a damaged notebook claims nothing, but may have written
        self.upto = [*read([p for p in earlier if p in claim or number_of(p) in wrote]), (path.name, self.nb)]

    def as_of(self) -> dict[str, str]:
        """Module name → text of the chapter's modules, as the chapters up to it make them."""
        return export_all(self.upto, self.modules)

    def in_package(self) -> dict[str, str]:
        """The same, with what later chapters have grown: those that the package's module names in its first lines."""
        return {m: export_all([*self.upto, *self.later(m)], [m])[m] for m in self.modules}

    def later(self, module: str) -> list[tuple[str, object]]:
        """The later notebooks that have a part in a module of the package."""
        there = [number for number in chapters_of(module) if number > self.number]
        return read([path for path in all_notebooks() if number_of(path) in there])

    def lay_out(self, folder: Path) -> dict[str, str]:
        """Make `folder`/nanogpt, the package as of this chapter, without what only later ones export; the chapter's modules in it."""
        package, own = folder / "nanogpt", self.as_of()
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        ahead = {m for m in modules(package) if max(chapters_of(m), default="") > self.number}
        made = compose(notebooks_upto(self.number), ahead - set(own)) | own
        put(made, package)
        for module in [m for m in ahead - set(made) if min(chapters_of(m)) > self.number]:
            module_path(module, package).unlink()
        return own


def put(texts: dict[str, str], package: Path) -> None:
    """Write modules into a copy of the package."""
    make_rooms(texts, package)
    for module, text in texts.items():
        module_path(module, package).write_text(text, encoding="utf-8", newline="\n")


def chapters_of(module: str) -> list[str]:
    """The chapters that the package's module names in its first lines."""
    return [number_of(Path(name)) for name in writers(current(module))]


def current(module: str) -> str:
    """The text of the package's module; empty where there is none."""
    path = module_path(module, PACKAGE)
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
