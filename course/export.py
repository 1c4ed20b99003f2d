"""Exported cells of a notebook → the text of its modules.

The directives are nbdev's: `#| default_exp model` names the notebook's module once, `#| export` starts a
cell that goes into it, `#| export data` one that goes into another module of the same chapter. One is ours:
`#| doc model: The model, ...` gives a module its first line, once, in any code cell.

A long class may be built up over several cells: a later `class GPT(GPT):` adds methods, in the notebook by
inheritance, in the module by joining the bodies.
"""

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace

from course.paths import NOTEBOOKS, PACKAGE, ROOT, CourseError

DIRECTIVE = re.compile(r"^#\|\s*(default_exp|export)\b[ \t]*(\w*)[ \t]*$", re.MULTILINE)
DOC = re.compile(r"^#\|\s*doc\s+(\w+):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
MAGIC = re.compile(r"^\s*[%!?]", re.MULTILINE)


@dataclass
class ExportedCell:
    """One `#| export` cell: where it stands, which module it goes to, and its text without directives."""

    where: str
    module: str
    source: str
    tree: ast.Module

    def names(self) -> list[str]:
        """What the cell defines: `area`, `GPT` and its methods `GPT.forward`; for `class GPT(GPT):` only the methods."""
        return [name for node in self.tree.body for name in defined_names(node)]


def defined_names(node: ast.stmt) -> list[str]:
    """The names that a top-level statement defines (imports define none that we export)."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.ClassDef):
        methods = [f"{node.name}.{name}" for part in node.body for name in defined_names(part)]
        return methods if continues_itself(node) else [node.name, *methods]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]


def continues_itself(node: ast.stmt) -> bool:
    """True of `class GPT(GPT):`, which adds methods to a class that an earlier cell began."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(b, ast.Name) and b.id == node.name for b in node.bases
    )


def is_exported(source: str) -> bool:
    return any(kind == "export" for kind, _ in DIRECTIVE.findall(source))


def exported_cells(nb, name: str) -> list[ExportedCell]:
    """All exported cells of a notebook, in order; `name` is the notebook's file name, for messages."""
    defaults = [
        m
        for cell in nb.cells
        if cell.cell_type == "code"
        for k, m in DIRECTIVE.findall(cell.source)
        if k == "default_exp"
    ]
    if len(set(defaults)) > 1:
        raise CourseError(f"{name}: `#| default_exp` names {' and '.join(defaults)}; keep one")
    default = (defaults or [""])[0]
    return [
        exported_cell(cell.source, f"{name}, cell {number}", default)
        for number, cell in enumerate(nb.cells)
        if cell.cell_type == "code" and is_exported(cell.source)
    ]


def exported_cell(source: str, where: str, default_module: str) -> ExportedCell:
    """Read one cell that carries `#| export`."""
    module = next(m for k, m in DIRECTIVE.findall(source) if k == "export") or default_module
    if not module:
        raise CourseError(
            f"{where} is exported but no module is named; write `#| default_exp MODULE` in the first code cell"
        )
    source = DOC.sub("", DIRECTIVE.sub("", source)).strip("\n")
    return ExportedCell(where, module, source, parse(source, where))


def parse(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        if MAGIC.search(source):
            raise CourseError(
                f"{where}: a magic ({line}) cannot be exported; move it to a cell of its own"
            ) from None
        raise CourseError(f"{where}: {error.msg} in line {error.lineno}: {line}") from None


def export(nb, name: str) -> dict[str, str]:
    """Module name → module text, for every module that the notebook exports to."""
    cells = exported_cells(nb, name)
    docs = module_docs(nb, name)
    modules = dict.fromkeys(cell.module for cell in cells)
    if missing := [module for module in modules if module not in docs]:
        raise CourseError(
            f"{name}: nothing says what nanogpt/{missing[0]}.py is; write `#| doc {missing[0]}: One sentence.`"
        )
    return {
        module: render(
            [c for c in cells if c.module == module],
            f'"""{docs[module]}\n\nExported from notebooks/{name}.\n"""',
            {n: c.module for c in cells if c.module != module for n in c.names()},
        )
        for module in modules
    }


def module_docs(nb, name: str) -> dict[str, str]:
    """Module name → the sentence that `#| doc` gives it."""
    found = [pair for cell in nb.cells if cell.cell_type == "code" for pair in DOC.findall(cell.source)]
    docs = dict(found)
    if len(docs) < len(found):
        raise CourseError(f"{name}: two `#| doc` lines name the same module; keep one")
    return docs


def render(cells: list[ExportedCell], docstring: str, elsewhere: dict[str, str]) -> str:
    """Imports gathered on top, then the cells in order, linted and formatted.

    elsewhere: names that the notebook exports to its other modules; those that are used here are imported from there.
    """
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
    cells = join_classes(cells)
    imports, bodies = zip(*map(split_imports, cells))
    used = {leaf.id for cell in cells for leaf in ast.walk(cell.tree) if isinstance(leaf, ast.Name)}
    imports += tuple(
        f"from nanogpt.{elsewhere[name]} import {name}" for name in sorted(used & set(elsewhere))
    )
    parts = [docstring, "\n".join(imports), *bodies]
    text = "\n\n\n".join(part for part in parts if part.strip()) + "\n"
    return tidy(text, cells)


def join_classes(cells: list[ExportedCell]) -> list[ExportedCell]:
    """The cells, with the body of each `class X(X):` moved to the end of the first `class X`."""
    joined: list[ExportedCell] = []
    for cell in cells:
        # Last first, so that cutting one leaves the others' lines in place.
        for node in filter(continues_itself, reversed(cell.tree.body)):
            lines = cell.source.splitlines()
            home = next((c for c in joined if node.name in c.names()), None)
            if home is None:
                raise CourseError(
                    f"{cell.where}: {node.name} continues a class that no earlier exported cell defines"
                )
            first = next(n for n in home.tree.body if isinstance(n, ast.ClassDef) and n.name == node.name)
            start, text = node.lineno, home.source.splitlines()
            text[first.end_lineno : first.end_lineno] = ["", *lines[start : node.end_lineno]]
            joined[joined.index(home)] = with_source(home, "\n".join(text))
            cell = with_source(cell, "\n".join(lines[: start - 1] + lines[node.end_lineno :]))
        joined.append(cell)
    return joined


def with_source(cell: ExportedCell, source: str) -> ExportedCell:
    return replace(cell, source=source, tree=parse(source, cell.where))


def split_imports(cell: ExportedCell) -> tuple[str, str]:
    """A cell's top-level import lines, and the rest."""
    lines = cell.source.splitlines()
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
    command = [
        sys.executable,
        "-m",
        "ruff",
        *args,
        "--no-cache",
        "--stdin-filename",
        str(PACKAGE / "_.py"),
        "-",
    ]
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", cwd=ROOT)
    if done.returncode:
        raise CourseError(f"ruff could not read the exported text: {done.stderr.strip()}")
    return done.stdout


def cell_at(text: str, row: int, cells: list[ExportedCell]) -> str:
    """Which cell the module's line `row` came from: the one that defines the method, class or statement there."""
    body, prefix = ast.parse(text).body, ""
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


def claimed_modules(nb) -> set[str]:
    """The modules that a notebook's directives name."""
    return {
        module
        for cell in nb.cells
        if cell.cell_type == "code"
        for _, module in DIRECTIVE.findall(cell.source)
        if module
    }


def refuse_double_claims(modules: set[str], path) -> None:
    """A module belongs to one notebook."""
    from course.files import read_notebook

    for other in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        both = modules & claimed_modules(read_notebook(other)) if other != path else set()
        if both:
            raise CourseError(
                f"nanogpt/{both.pop()}.py is exported by both {path.name} and {other.name}; rename one"
            )
