"""Exported cells of a notebook → the text of its modules. The directives are in directives.py.

A module holds what its cells define, import and assign, in their order, imports first; the cells of several notebooks
in the order of the chapters, where later ones grow what is there (growing.py).
"""

import ast
import json
import re
import subprocess
import symtable
import sys
import tempfile
import textwrap
from collections.abc import Container, Iterable
from functools import cache
from pathlib import Path

from course.package.cells import (
    ExportedCell,
    defined_names,
    exported_cells,
    heads,
    imported_names,
    parse,
)
from course.package.growing import first_line, global_names, grow, in_reading_order, refuse_collisions
from course.paths import ROOT, CourseError, module_file


def export(nb, name: str) -> dict[str, str]:
    """Module name → module text, for every module that this one notebook exports to."""
    return export_all([(name, nb)])


def export_all(notebooks: Iterable[tuple[str, object]], only: Container[str] | None = None) -> dict[str, str]:
    """Module name → module text, of notebooks in the order of the chapters, each with its file name.

    A module may have cells in several of them. only: the modules that are wanted, where not all are.
    """
    cells: list[ExportedCell] = []
    docs: dict[str, tuple[str, str]] = {}
    for name, nb in notebooks:
        known = {cell.module: cell.notebook for cell in reversed(cells)}
        cells += exported_cells(nb, name)
        for module, (where, sentence) in module_docs(nb, name).items():
            if module in known:
                raise CourseError(
                    f"{where}: `#| doc {module}` belongs in {known[module]}, the first notebook that exports to it; "
                    "remove it here"
                )
            docs[module] = where, sentence
    wanted = [m for m in dict.fromkeys(cell.module for cell in cells) if only is None or m in only]
    return tidy({module: draft(module, cells, docs) for module in wanted}, cells)


def draft(module: str, cells: list[ExportedCell], docs: dict[str, tuple[str, str]]) -> str:
    """The text of one module, of all cells that the notebooks export, before it is tidied."""
    own = [cell for cell in cells if cell.module == module]
    if module not in docs:
        raise CourseError(
            f"{own[0].notebook}: nothing says what {module_file(module)} is; write `#| doc {module}: One sentence.`"
        )
    if inside := next((cell for cell in cells if cell.module.startswith(f"{module}.")), None):
        raise CourseError(
            f"{inside.where}: {module} is a module, so {module_file(inside.module)} cannot be; rename one"
        )
    return render(own, docs[module][1], [cell for cell in cells if cell.module != module])


def module_docs(nb, name: str) -> dict[str, tuple[str, str]]:
    """Module name → the cell that has its `#| doc`, and the sentence there."""
    read = heads(nb, name)
    default = next((head.default for _, head in read if head.default), "")
    exported = {head.module or default for _, head in read if head.exported}
    docs: dict[str, tuple[str, str]] = {}
    for where, head in read:
        for module, sentence in head.docs:
            if module in docs:
                raise CourseError(f"{where}: a second `#| doc {module}`; keep one")
            if module not in exported:
                raise CourseError(f"{where}: `#| doc {module}`, but no cell is exported to {module}")
            docs[module] = where, sentence
    return docs


def render(cells: list[ExportedCell], doc: str, others: list[ExportedCell]) -> str:
    """The sentence and the imports on top, then the cells in order.

    others: the cells that go to other modules; names that a notebook's cells use of its others are imported.
    """
    added = imports_from(others, cells)
    refuse_collisions(cells, added)
    pieces = grow(cells)
    imports, bodies = zip(*map(split_imports, pieces))
    doc = doc.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"""', r"\"\"\"")
    docstring = f'"""{doc}\n\n{written_by(cells)}\n"""'
    added_lines = [f"from nanogpt.{module} import {name}" for name, module in sorted(added.items())]
    parts = [docstring, "\n".join([*imports, *added_lines]), in_reading_order("\n\n\n".join(bodies))]
    return "\n\n\n".join(part for part in parts if part.strip()) + "\n"


def written_by(cells: list[ExportedCell]) -> str:
    """The last lines of a module's docstring: the notebooks that it comes from."""
    first, *later = [f"notebooks/{name}" for name in dict.fromkeys(cell.notebook for cell in cells)]
    grown = f", grown by {', '.join(later[:-1])}{' and ' * (len(later) > 1)}{later[-1]}" if later else ""
    return textwrap.fill(
        f"Exported from {first}{grown}.", 110, break_long_words=False, break_on_hyphens=False
    )


def writers(text: str) -> list[str]:
    """The notebooks that a module's first lines name: `05_gpt.ipynb`, `13_nice_numbers.ipynb`."""
    head = text.partition("\nExported from ")[2].partition('"""')[0]
    return re.findall(r"notebooks/(\S+\.ipynb)", head)


def imports_from(others: list[ExportedCell], cells: list[ExportedCell]) -> dict[str, str]:
    """Name → module, of what a module's `cells` use of the modules that the same notebooks export beside it."""
    homes: dict[str, str] = {}
    for notebook in dict.fromkeys(cell.notebook for cell in cells):
        mine = [cell for cell in cells if cell.notebook == notebook]
        own = {name for cell in mine for name in [*cell.names(), *dict(imported_names(cell.tree))]}
        used = {name for cell in mine for name in global_names(symtable.symtable(cell.source, "", "exec"))}
        for cell in [cell for cell in others if cell.notebook == notebook]:
            for name in used.intersection(cell.names()) - own:
                if homes.setdefault(name, cell.module) != cell.module:
                    raise CourseError(
                        f"{cell.where}: {name} is in {module_file(homes[name])} too, "
                        f"and {module_file(cells[0].module)} uses it; rename one"
                    )
    return homes


def split_imports(cell: ExportedCell) -> tuple[str, str]:
    """A cell's top-level import lines, and the rest."""
    lines = cell.source.split("\n")
    taken = {
        number
        for node in cell.tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno - 1, node.end_lineno)
    }
    body = "\n".join(line for number, line in enumerate(lines) if number not in taken)
    return "\n".join(lines[number] for number in sorted(taken)), body.strip("\n")


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
                raise CourseError(
                    f"{cell_at(file.read_text(encoding='utf-8'), row, own)}: {finding['message'].lower()}; "
                    "the module has only what exported cells define or import"
                )
        ruff(folder, "format")
        return {module: file.read_text(encoding="utf-8") for module, file in files.items()}


def ruff(folder: str, *args: str) -> str:
    """What ruff says of a folder's files, read under the package's own settings."""
    command = [
        *ruff_program(),
        *args,
        "--quiet",
        "--no-cache",
        "--config",
        str(ROOT / "pyproject.toml"),
        folder,
    ]
    done = subprocess.run(command, capture_output=True, cwd=ROOT)
    if done.returncode:
        raise CourseError(
            f"ruff could not read the exported text: {done.stderr.decode(errors='replace').strip()}"
        )
    return done.stdout.decode()


@cache
def ruff_program() -> list[str]:
    """ruff beside this Python, or through it: the same program, a little later."""
    beside = Path(sys.executable).with_name("ruff.exe" if sys.platform == "win32" else "ruff")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "ruff"]


def cell_at(text: str, row: int, cells: list[ExportedCell]) -> str:
    """Which cell the module's line `row` came from: the one that defines the method, class or statement there."""
    body, prefix = parse(text, "").body, ""
    where = cells[0].where.split(",")[0]
    while node := next((n for n in body if first_line(n) <= row <= n.end_lineno), None):
        wanted, statement = {prefix + name for name in defined_names(node)[:1]}, ast.unparse(node)
        for cell in cells:
            if wanted & set(cell.names()) or any(ast.unparse(n) == statement for n in cell.tree.body):
                where = cell.where
        if not isinstance(node, ast.ClassDef):
            break
        body, prefix = node.body, f"{node.name}."
    return where
