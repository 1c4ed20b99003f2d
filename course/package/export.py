"""Exported cells of a notebook → the text of its modules. The directives are in directives.py.

A module holds what its cells define, import and assign, in their order, imports first; the cells of several notebooks
in the order of the chapters, where later ones grow what is there (growing.py).
"""

import json
import re
import subprocess
import tempfile
import textwrap
from collections.abc import Container, Iterable
from pathlib import Path

from ruff import find_ruff_bin

from course.package.cells import ExportedCell, exported_cells, first_line, heads, imported_names
from course.package.growing import grow, in_reading_order, lines_of_imports, module_parts, names_used
from course.paths import ROOT, CourseError, module_file


def export_all(notebooks: Iterable[tuple[str, object]], only: Container[str] | None = None) -> dict[str, str]:
    """Module name → text, of notebooks in the order of the chapters, with their file names. only: the modules that are wanted."""
    cells: list[ExportedCell] = []
    docs: dict[str, str] = {}
    for name, nb in notebooks:
        cells += exported_cells(nb, name)
        for _, head in heads(nb, name):
            docs = head.docs | docs
    wanted = [m for m in dict.fromkeys(cell.module for cell in cells) if only is None or m in only]
    return tidy({module: draft(module, cells, docs) for module in wanted}, cells)


def draft(module: str, cells: list[ExportedCell], docs: dict[str, str]) -> str:
    """The text of one module, of all cells that the notebooks export, before it is tidied: its sentence and its imports on
    top, then what the cells define."""
    own = [cell for cell in cells if cell.module == module]
    if module not in docs:
        missing = f"nothing says what {module_file(module)} is; write `#| doc {module}: One sentence.`"
        raise CourseError(f"{own[0].notebook}: {missing}")
    added = imports_between(module, cells)
    refuse_two_meanings(own, added)
    imports = [cell.source.split("\n")[line] for cell in own for line in sorted(lines_of_imports(cell))]
    imports += [f"from nanogpt.{home} import {name}" for name, home in sorted(added.items())]
    doc = docs[module].encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"""', r"\"\"\"")
    parts = [f'"""{doc}\n\n{written_by(own)}\n"""', "\n".join(imports), in_reading_order(grow(own))]
    return "\n\n\n".join(part for part in parts if part.strip()) + "\n"


def written_by(cells: list[ExportedCell]) -> str:
    """The last lines of a module's docstring: the notebooks that it comes from."""
    first, *later = [f"notebooks/{name}" for name in dict.fromkeys(cell.notebook for cell in cells)]
    grown = f", grown by {', '.join(later[:-1])}{' and ' * (len(later) > 1)}{later[-1]}" if later else ""
    said = f"Exported from {first}{grown}."
    return textwrap.fill(said, 110, break_long_words=False, break_on_hyphens=False)


def writers(text: str) -> list[str]:
    """The notebooks that a module's first lines name: `05_gpt.ipynb`, `13_nice_numbers.ipynb`."""
    head = text.partition("\nExported from ")[2].partition('"""')[0]
    return re.findall(r"notebooks/(\S+\.ipynb)", head)


def imports_between(module: str, cells: list[ExportedCell]) -> dict[str, str]:
    """Name → module, of what a module's cells use of the modules that the same notebooks export beside it."""
    found: dict[str, str] = {}
    for notebook in dict.fromkeys(cell.notebook for cell in cells if cell.module == module):
        beside = [cell for cell in cells if cell.notebook == notebook]
        mine = [cell for cell in beside if cell.module == module]
        here = {name for cell in mine for name in [*cell.names(), *dict(imported_names(cell.tree))]}
        used = {name for cell in mine for name in names_used(cell.source)} - here
        for cell in beside:
            for name in used.intersection(cell.names()):
                if found.setdefault(name, cell.module) != cell.module:
                    also = f"is in {module_file(found[name])} too, and {module_file(module)} uses it"
                    raise CourseError(f"{cell.where}: {name} {also}; rename one")
    return found


def refuse_two_meanings(cells: list[ExportedCell], added: dict[str, str]) -> None:
    """A name is defined in a module, or imported from one place. added: name → module, of imports that no cell has."""
    meanings = {name: (f"nanogpt.{home}.{name}", module_file(home)) for name, home in added.items()}
    for cell in cells:
        for name, what in [*imported_names(cell.tree), *((name, "a definition") for name in cell.names())]:
            known, where = meanings.setdefault(name, (what, cell.where))
            if known != what:
                raise CourseError(f"{cell.where}: {name} is {what} here and {known} in {where}; rename one")


def tidy(drafts: dict[str, str], cells: list[ExportedCell]) -> dict[str, str]:
    """Sort and deduplicate each module's imports, drop unused ones, refuse undefined names, format: all modules in two calls."""
    fix = "check", "--select", "I,F401,F821", "--fix", "--exit-zero", "--output-format", "json"
    with tempfile.TemporaryDirectory(prefix="modules-") as folder:
        files = {module: Path(folder, f"{module}.py") for module in drafts}
        for module, file in files.items():
            file.write_text(drafts[module], encoding="utf-8", newline="\n")
        for finding in json.loads(ruff(folder, *fix)):
            if finding["code"] != "F401":  # one that it does not dare to drop stays
                file, row = Path(finding["filename"]), finding["location"]["row"]
                own = [cell for cell in cells if cell.module == file.stem]
                where, what = cell_at(file.read_text(encoding="utf-8"), row, own), finding["message"].lower()
                raise CourseError(f"{where}: {what}; a module has what exported cells define or import")
        ruff(folder, "format")
        return {module: file.read_text(encoding="utf-8") for module, file in files.items()}


def ruff(folder: str, *args: str) -> str:
    """What ruff says of a folder's files, read under the package's own settings."""
    command = [find_ruff_bin(), *args, "--quiet", "--no-cache", "--config", ROOT / "pyproject.toml", folder]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT)
    if done.returncode:
        raise CourseError(f"ruff could not read the exported text: {done.stderr.strip()}")
    return done.stdout


def cell_at(text: str, row: int, cells: list[ExportedCell]) -> str:
    """Which cell the module's line `row` came from: the one that defines what stands there, or imports it."""
    parts = [part for part in module_parts(text) if first_line(part.node) <= row and part.names]
    names, line = set(parts[-1].names) if parts else set(), text.split("\n")[row - 1]
    found = [cell.where for cell in cells if names & set(cell.names())]
    found = found or [cell.where for cell in cells if line in cell.source.split("\n")]
    return found[-1] if found else cells[0].notebook
