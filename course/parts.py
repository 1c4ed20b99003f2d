"""A class in several cells, `class GPT(GPT):`. A student who changes its first cell and runs that cell alone would lose
the methods of the others. So they are run again, and with them the classes that inherit from it."""

import ast
from dataclasses import dataclass


@dataclass
class Part:
    """One class statement that has run."""

    name: str
    bases: list[str]
    node: ast.ClassDef
    key: tuple  # the same for a cell that runs again


SEEN: list[Part] = []  # in the order in which they first ran


def parts_of(source: str, cell: str | None) -> list[Part]:
    """The class statements of a cell. A cell is known by its id or, on a front end without ids, by what it defines."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # magics: no class of ours stands beside one
        return []
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            members = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            found.append(Part(node.name, bases, node, (node.name, cell or tuple([*bases, *members]))))
    return found


def depend_on(name: str, with_parts: bool) -> list[Part]:
    """What to run after the class `name` was made anew: its other parts, and classes that inherit from it."""
    found = []
    for part in SEEN:
        if name not in part.bases or (part.name == name and not with_parts):
            continue
        found.append(part)
        if part.name != name:
            found += depend_on(part.name, True)
    return found


def run_parts_again(source: str, cell: str | None, namespace: dict) -> list[str]:
    """After a cell has run: run again what depends on a class that this cell has defined before. Returns their names."""
    names = []
    for part in parts_of(source, cell):
        known = [i for i, earlier in enumerate(SEEN) if earlier.key == part.key]
        if not known:
            SEEN.append(part)
            continue
        SEEN[known[0]] = part
        for other in depend_on(part.name, with_parts=part.name not in part.bases):
            exec(compile(ast.Module([other.node], []), "<a part that ran again>", "exec"), namespace)
            names.append(other.name)
    return names
