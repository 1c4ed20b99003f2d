"""The exported cells of a notebook: which they are, what they define and import, and what cannot stand in one."""

import ast
import re
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from course.files import read_cells
from course.package.directives import Head, read_head
from course.paths import CourseError

Function = ast.FunctionDef | ast.AsyncFunctionDef
HEADING = re.compile(r"^#{1,4} +(.+)$", re.MULTILINE)
DEFINED = re.compile(
    r"^(?:async )?(?:def|class) (?P<name>\w+)(?:\((?P<base>\w+)\):(?:\n.*)*?\n    def (?P<method>\w+))?",
    re.MULTILINE,
)


@dataclass
class ExportedCell:
    """One `#| export` cell: where it stands, which module it goes to, and its text without directives."""

    where: str
    module: str
    source: str
    tree: ast.Module
    id: str = ""  # of the notebook's cell
    grows: list[str] = field(default_factory=list)  # definitions of earlier chapters that it replaces
    blanks: dict[str, str] = field(default_factory=dict)  # the functions that a student writes → hint

    @property
    def notebook(self) -> str:
        """The file name of the notebook."""
        return self.where.split(",")[0]

    def names(self) -> list[str]:
        """What the cell defines: `area`, `GPT` and its methods `GPT.forward`; for `class GPT(GPT):` only the methods."""
        return [name for node in self.tree.body for name in defined_names(node)]


def defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module or a class defines (imports are looked at by `imported_names`)."""
    if isinstance(node, Function):
        return [node.name]
    if isinstance(node, ast.ClassDef):
        methods = [f"{node.name}.{name}" for part in node.body for name in defined_names(part)]
        return methods if continues_itself(node) else [node.name, *methods]
    found = [leaf.id for target in targets(node) for leaf in ast.walk(target) if isinstance(leaf, ast.Name)]
    return [name for name in found if name != "_"]


def targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def continues_itself(node: ast.stmt) -> bool:
    """True of `class GPT(GPT):`, which adds methods to a class that an earlier cell began."""
    return isinstance(node, ast.ClassDef) and node.name in map(ast.unparse, node.bases)


def first_line(node: ast.stmt) -> int:
    """The line that a statement begins in, with its decorators, from 1."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def heads(nb, name: str) -> list[tuple[str, Head]]:
    """What the directives of each code cell say, and where it stands."""
    cells = zip(nb.cells, places(nb.cells, name))
    return [(where, read_head(cell.source, where)) for cell, where in cells if cell.cell_type == "code"]


def places(cells, name: str) -> list[str]:
    """How a message names each cell, since JupyterLab shows no numbers: `04_attention.ipynb, head_size under "Many heads"`."""
    found, under = [], ""
    for cell in cells:
        if cell.cell_type == "markdown" and (headings := HEADING.findall(cell.source)):
            under = f' under "{headings[-1]}"'
        found.append(f"{name}, {called(cell)}{under}")
    return found


def called(cell) -> str:
    """What a cell defines first, or else the line that it begins with."""
    if cell.cell_type != "code":
        return "the text"
    if found := DEFINED.search(cell.source):
        name, base, method = found["name"], found["base"], found["method"]
        return f"{name}.{method}" if method and base == name else name
    lines = [line.strip() for line in cell.source.split("\n") if not re.match(r"\s*(#|$)", line)]
    return f"`{shortened(lines[0])}`" if lines else "an empty cell"


def exported_cells(nb, name: str) -> list[ExportedCell]:
    """All exported cells of a notebook, in order; `name` is the notebook's file name, for messages."""
    read = heads(nb, name)
    default = default_module([head for _, head in read], name)
    ids = [getattr(cell, "id", "") for cell in nb.cells if cell.cell_type == "code"]
    return [exported_cell(head, where, default, id) for (where, head), id in zip(read, ids) if head.exported]


def default_module(read: list[Head], name: str) -> str:
    defaults = list(dict.fromkeys(head.default for head in read if head.default))
    if len(defaults) > 1:
        raise CourseError(f"{name}: `#| default_exp` names {' and '.join(defaults)}; keep one")
    return (defaults or [""])[0]


def exported_cell(head: Head, where: str, default_module: str, id: str = "") -> ExportedCell:
    module = head.module or default_module
    if not module:
        raise CourseError(f"{where} is exported, but to no module; write `#| default_exp MODULE` above")
    tree = parse(head.source, where)
    for node in tree.body:
        refuse_statement(node, where)
    return ExportedCell(where, module, head.source, tree, id, head.grows, blanked(head, tree, where))


def functions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    """The functions and methods of a cell: `area`, `GPT.forward`; a property's setter shares its name."""
    found = []
    for node in tree.body:
        if isinstance(node, Function):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            found += [(f"{node.name}.{n.name}", n) for n in node.body if isinstance(n, Function)]
    return found


def blanked(head: Head, tree: ast.Module, where: str) -> dict[str, str]:
    """The functions that `#| blank` means → hint; a name that the cell does not define is refused."""
    there = dict(functions(tree))
    if wrong := [name for name in head.blanks if name not in there]:
        defines = ", ".join(there) or "no function"
        raise CourseError(f"{where}: `#| blank` names {wrong[0]}, but it defines {defines}")
    return {name: head.blanks[name] for name in there if name in head.blanks}


@cache  # a module's cells are read for each of its modules, and again as the package has them
def parse(source: str, where: str) -> ast.Module:
    try:
        source.encode()
        with warnings.catch_warnings(action="ignore"):  # the student has seen them when the cell ran
            return ast.parse(source, "the cell")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # a bracket too deep, say
        raise CourseError(f"{where} cannot be read as Python: {error}") from None


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse_statement(node: ast.stmt, where: str) -> None:
    """Nothing may be computed or changed when the module is imported, beyond giving names their values."""
    leaves = [leaf for target in targets(node) for leaf in ast.walk(target)]
    names = all(isinstance(leaf, ast.Name | ast.Tuple | ast.expr_context) for leaf in leaves)
    everything = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    definition = Function | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
    if everything or not names or not isinstance(node, definition):
        line = shortened(ast.unparse(node).split("\n")[0])
        raise CourseError(
            f"{where}, line {node.lineno}: `{line}` cannot be exported: an exported cell holds definitions, imports of names "
            "and assignments to names; move it to a cell without `#| export`"
        )


def imported_names(tree: ast.Module) -> list[tuple[str, str]]:
    """The names that top-level imports bind, each with what it stands for."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found += [(a.asname, a.name) if a.asname else (a.name.split(".")[0],) * 2 for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            found += [(a.asname or a.name, f"{origin}.{a.name}") for a in node.names]
    return found


def claimed_modules(path: Path) -> set[str]:
    """The modules that a notebook exports to; none where it cannot be read, since that is not this chapter's fault."""
    try:
        read = [read_head(cell.source, "") for cell in read_cells(path).cells if cell.cell_type == "code"]
        default = default_module(read, "")
    except CourseError:
        return set()
    return {head.module or default for head in read if head.exported}
