"""Exported cells of a notebook → the text of its modules. The directives are in directives.py.

A module holds what its cells define, import and assign, in their order, imports first. A long class may be built up
over several cells: a later `class GPT(GPT):` adds methods, in the notebook by inheritance, in the module by joining
the bodies. Where the module would be another program than the cells, the cell is refused.
"""

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from course.package.cells import (
    ExportedCell,
    Function,
    continues_itself,
    defined_names,
    exported_cells,
    heads,
    imported_names,
    parse,
)
from course.paths import PACKAGE, ROOT, CourseError, module_file


def export(nb, name: str) -> dict[str, str]:
    """Module name → module text, for every module that the notebook exports to."""
    cells = exported_cells(nb, name)
    docs = module_docs(nb, name)
    modules = dict.fromkeys(cell.module for cell in cells)
    if missing := [module for module in modules if module not in docs]:
        raise CourseError(
            f"{name}: nothing says what {module_file(missing[0])} is; write `#| doc {missing[0]}: One sentence.`"
        )
    return {
        module: render(
            [c for c in cells if c.module == module],
            docs[module],
            name,
            [c for c in cells if c.module != module],
        )
        for module in modules
    }


def module_docs(nb, name: str) -> dict[str, str]:
    """Module name → the sentence that `#| doc` gives it."""
    read = heads(nb, name)
    default = next((head.default for _, head in read if head.default), "")
    exported = {head.module or default for _, head in read if head.exported}
    docs: dict[str, str] = {}
    for where, head in read:
        for module, sentence in head.docs:
            if module in docs:
                raise CourseError(f"{where}: a second `#| doc {module}`; keep one")
            if module not in exported:
                raise CourseError(f"{where}: `#| doc {module}`, but no cell is exported to {module}")
            docs[module] = sentence
    return docs


def render(cells: list[ExportedCell], doc: str, notebook: str, others: list[ExportedCell]) -> str:
    """The sentence and the imports on top, then the cells in order, linted and formatted.

    others: the cells that go to other modules of the notebook; names of theirs that are used here are imported.
    """
    refuse_collisions(cells)
    cells = join_classes(cells)
    imports, bodies = zip(*map(split_imports, cells))
    doc = doc.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"""', r"\"\"\"")
    docstring = f'"""{doc}\n\nExported from notebooks/{notebook}.\n"""'
    parts = [docstring, "\n".join([*imports, *imports_from(others, cells)]), *bodies]
    text = "\n\n\n".join(part for part in parts if part.strip()) + "\n"
    return tidy(text, cells)


def imports_from(others: list[ExportedCell], cells: list[ExportedCell]) -> list[str]:
    """The imports by which `cells` get what they use of the notebook's other modules, where they were defined too."""
    own = {name for cell in cells for name in [*cell.names(), *dict(imported_names(cell.tree))]}
    used = {leaf.id for cell in cells for leaf in ast.walk(cell.tree) if isinstance(leaf, ast.Name)}
    homes: dict[str, str] = {}
    for cell in others:
        for name in used.intersection(cell.names()) - own:
            if homes.setdefault(name, cell.module) != cell.module:
                raise CourseError(
                    f"{cell.where}: {name} is in {module_file(homes[name])} too, and {module_file(cells[0].module)} uses it; rename one"
                )
    return [f"from nanogpt.{module} import {name}" for name, module in sorted(homes.items())]


def refuse_collisions(cells: list[ExportedCell]) -> None:
    """A name is defined once or imported from one place, whichever cell comes first."""
    owner: dict[str, ExportedCell] = {}
    for cell in cells:
        for name in cell.names():
            if name in owner and (
                "." not in name or owner[name] is not cell
            ):  # a property's setter shares its name
                raise CourseError(
                    f"{cell.where}: {name} is defined already in {owner[name].where}; rename or remove one"
                )
            owner[name] = cell
    origin: dict[str, tuple[str, ExportedCell]] = {}
    for cell in cells:
        for name, what in imported_names(cell.tree):
            first, elsewhere = origin.setdefault(name, (what, cell))
            if name in owner:
                raise CourseError(
                    f"{cell.where} imports {name}, which {owner[name].where} defines; rename one"
                )
            if first != what:
                raise CourseError(
                    f"{cell.where}: {name} is {what} here and {first} in {elsewhere.where}; import one under another name"
                )


def join_classes(cells: list[ExportedCell]) -> list[ExportedCell]:
    """The cells, with the body of each `class X(X):` moved to the end of the first `class X`."""
    joined: list[ExportedCell] = []
    for cell in cells:
        # Last first, so that cutting one leaves the others' lines in place.
        for node in filter(continues_itself, reversed(cell.tree.body)):
            homes = [
                (c, n)
                for c in joined
                for n in c.tree.body
                if isinstance(n, ast.ClassDef) and n.name == node.name
            ]
            if not homes:
                raise CourseError(
                    f"{cell.where}: {node.name} continues a class that no earlier exported cell defines"
                )
            home, first = homes[0]
            refuse_continuation(cell, node, first)
            lines, text = cell.source.split("\n"), home.source.split("\n")
            start = node.lineno
            text[first.end_lineno : first.end_lineno] = ["", *lines[start : node.end_lineno]]
            joined[joined.index(home)] = with_source(home, "\n".join(text))
            cell = with_source(cell, "\n".join(lines[: start - 1] + lines[node.end_lineno :]))
        joined.append(cell)
    return joined


def refuse_continuation(cell: ExportedCell, node: ast.ClassDef, first: ast.ClassDef) -> None:
    """Joined bodies must mean what inheritance meant in the notebook."""
    header = cell.source.split("\n")[node.lineno - 1]
    problem = ""
    if node.decorator_list:
        problem = "has a decorator; decorate the first"
    elif not re.fullmatch(rf"class {node.name}\({node.name}\):\s*(#.*)?", header):
        problem = "goes on with a class: it names itself alone, and its body begins on the next line"
    elif first.body[0].lineno == first.lineno:
        problem = "goes on with a class written on one line; begin that body on a line of its own"
    elif any(isinstance(leaf, ast.Name) and leaf.id == "super" for leaf in ast.walk(node)):
        problem = "uses super(), which means another class once the two are one; call the base by its name"
    elif first.decorator_list and not all(isinstance(n, Function) and n.name[:2] != "__" for n in node.body):
        problem = "adds more than plain methods to a decorated class; write them where it begins"
    if problem:
        raise CourseError(f"{cell.where}: `{header.strip()}` {problem}")


def with_source(cell: ExportedCell, source: str) -> ExportedCell:
    return replace(cell, source=source, tree=parse(source, cell.where))


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


def tidy(text: str, cells: list[ExportedCell]) -> str:
    """Sort and deduplicate imports, drop unused ones, refuse undefined names, format."""
    text = ruff(text, "check", "--select", "I,F401", "--fix", "--exit-zero", "--quiet")
    report = ruff(text, "check", "--select", "F821", "--exit-zero", "--output-format", "json")
    for finding in json.loads(report):
        row = finding["location"]["row"]
        raise CourseError(
            f"{cell_at(text, row, cells)}: {finding['message'].lower()}; "
            "the module has only what exported cells define or import"
        )
    return ruff(text, "format")


def ruff(text: str, *args: str) -> str:
    """ruff reads the text as if it were a file of the package, under the package's own settings."""
    command = [*ruff_program(), *args, "--no-cache", "--stdin-filename", str(PACKAGE / "_.py"), "-"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, cwd=ROOT)
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


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
