"""What a file of the course needs of nanogpt: what it imports, runs as a command, or has in a string, and its helpers do."""

import ast
import re
from functools import cache
from pathlib import Path

from course.package.cells import exported_cells
from course.package.imports import imported, named
from course.paths import ROOT, TESTS, source_chapters
from course.states.released import exporting_cells, owners
from nanogpt.cli import COMMANDS

OPTIONAL = {"importorskip", "set_forkserver_preload"}  # a module that they name need not be there
CODE = re.compile(r"(?:from|import) (nanogpt\.[\w.]+)")
SCRIPT = re.compile(r"^# %%writefile .*?(?=^# %% )", re.MULTILINE | re.DOTALL)  # runs on the package so far


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's text, without strings that stand alone (docstrings, a source's prose) and what is optional."""
    tree = ast.parse(SCRIPT.sub("", path.read_text(encoding="utf-8")))
    return Without().visit(tree)


class Without(ast.NodeTransformer):
    def visit_Expr(self, node):
        self.generic_visit(node)
        return ast.Pass() if isinstance(node.value, ast.Constant) else node

    def visit_Assign(self, node):
        """The runner's table names commands of later chapters, and looks whether they are there."""
        self.generic_visit(node)
        table = any(isinstance(target, ast.Name) and target.id == "COMMANDS" for target in node.targets)
        return ast.Pass() if table else node

    def visit_Call(self, node):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in OPTIONAL:
            node.args = []
        self.generic_visit(node)
        return node


def needed(tree: ast.AST) -> set[str]:
    texts = " ".join(
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )
    in_strings = imported(ast.parse("\n".join(f"import {name}" for name in CODE.findall(texts))), owners())
    return imported(tree, owners()) | named(tree, owners()) | in_strings | commands(tree) | names(tree)


def names(tree: ast.AST) -> set[str]:
    """What a text imports by name of the course's modules, as `metrics.step_line`."""
    taken = {
        f"{node.module}.{alias.name}".removeprefix("nanogpt.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    return taken & makers().keys()


@cache
def makers() -> dict[str, str]:
    """Module, or module.name → the first chapter that defines it."""
    found = dict(owners())
    for chapter in source_chapters():
        for cell in exported_cells(exporting_cells(chapter), chapter):
            for name in cell.names():
                found.setdefault(f"{cell.module}.{name}", chapter)
    return found


def commands(tree: ast.AST) -> set[str]:
    """The modules behind `python -m nanogpt COMMAND`, which nanogpt/cli.py looks up."""
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    called = COMMANDS.keys() & texts if {"-m", "nanogpt"} <= texts else set()
    return {COMMANDS[name][0].removeprefix("nanogpt.") for name in called}


def helpers(tree: ast.AST) -> set[tuple[Path, str]]:
    """The files of course/ and tests/ that a text imports, each with a name that it takes of it, "" for all."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {(f"{node.module}.{alias.name}", "") for alias in node.names}
            found |= {(node.module, alias.name) for alias in node.names}
    places = {
        (base.joinpath(*name.split(".")).with_suffix(".py"), one)
        for name, one in found
        for base in (ROOT, TESTS)
    }
    return {
        (path, one)
        for path, one in places
        if path.is_file() and (path.is_relative_to(ROOT / "course") or path.is_relative_to(TESTS))
    }


@cache
def facts(node: ast.stmt) -> tuple[set[str], set[tuple[Path, str]], set[str]]:
    """What a statement needs of nanogpt, which helpers it imports, and all names in it."""
    return needed(node), helpers(node), {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


@cache
def part_of(path: Path, name: str) -> list[ast.stmt]:
    """A file's own statements with what they use in turn, and of its functions and classes `name`, or all."""
    body = tree_of(path).body
    definitions = {n.name: n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    kept = [node for node in body if node not in definitions.values()]
    left, used = set().union({name} if name else definitions, *(facts(node)[2] for node in kept)), set()
    while left:
        if (each := left.pop()) in definitions and each not in used:
            used.add(each)
            left |= facts(definitions[each])[2]
    return kept + [definitions[each] for each in sorted(used)]


def all_needed(path: Path) -> set[str]:
    """What a file needs of nanogpt, with what its helpers need for it."""
    found, left, seen = set(), {(path, "")}, set()
    while left:
        seen.add(each := left.pop())
        for node in part_of(*each):
            found |= facts(node)[0]
            left |= facts(node)[1] - seen
    return found
