"""A class in several cells, `class GPT(GPT):`. A student who changes its first cell and runs that cell alone would lose
the methods of the others. So they are run again, and with them the classes that inherit from it."""

import ast

# The class statements that have run, in the order in which they first did, by class and cell.
SEEN: dict[tuple, ast.ClassDef] = {}


def bases(node: ast.ClassDef) -> list[str]:
    return list(map(ast.unparse, node.bases))


def classes_of(source: str, cell: str | None) -> dict[tuple, ast.ClassDef]:
    """The class statements of a cell. A cell is known by its id or, on a front end without ids, by what it defines."""
    try:
        nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except SyntaxError:  # magics: no class of ours stands beside one
        return {}
    return {(node.name, cell or (*bases(node), *members(node))): node for node in nodes}


def members(node: ast.ClassDef) -> list[str]:
    return [part.name for part in node.body if isinstance(part, ast.FunctionDef)]


def depend_on(name: str, with_parts: bool) -> list[ast.ClassDef]:
    """What to run after the class `name` was made anew: its other parts, and classes that inherit from it."""
    found = []
    for node in SEEN.values():
        if name in bases(node) and (node.name != name or with_parts):
            found += [node, *(depend_on(node.name, True) if node.name != name else [])]
    return found


def run_parts_again(source: str, cell: str | None, namespace: dict) -> list[str]:
    """After a cell has run: run again what depends on a class that this cell has defined before. Returns their names."""
    names = []
    for key, node in classes_of(source, cell).items():
        again = key in SEEN
        SEEN[key] = node
        for other in depend_on(node.name, with_parts=node.name not in bases(node)) if again else ():
            exec(compile(ast.Module([other], []), "<a part that ran again>", "exec"), namespace)
            names.append(other.name)
    return names
