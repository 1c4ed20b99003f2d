"""What a text imports of nanogpt, wherever in it the import stands."""

import ast
from collections.abc import Iterable


def imported(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """The modules of `known` that a text imports, at its top and within functions, as the package names them: `model`."""
    known, found = set(known), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return known & {name.removeprefix("nanogpt.") for name in found if name.startswith("nanogpt.")}


def named(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """The modules of `known` that a text names in a string of its own, as a table of commands does, or calls by
    `python -m nanogpt`, which nanogpt/cli.py answers."""
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    found = {text.removeprefix("nanogpt.") for text in texts if text.startswith("nanogpt.")}
    return set(known) & (found | ({"cli"} if {"-m", "nanogpt"} <= texts else set()))
