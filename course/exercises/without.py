"""What a task forbids: found in the source of a solution, and made to raise while it runs.

A solution cell says it below its first line, one thing a line:

    #| forbids loop                             no for, while, comprehension, map or recursion
    #| forbids torch in pairs                   a name that does not occur in `pairs`, nor in what `pairs` calls
    #| forbids nanogpt.training.train_step     a function: it raises where the solution calls it
    #| forbids aten::native_layer_norm          an operation of PyTorch: it raises, whatever name it is called by
"""

import ast
import contextlib
import importlib
import re
import sys
import warnings

LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPING = {"map", "filter", "reduce", "accumulate", "vmap", "vectorize", "exec", "eval"}


class Forbidden(Exception):
    """A solution called what its task forbids."""


def sentence(task: str, what: str, place: str = "") -> str:
    what, _, where = what.partition(" in ")
    of = f"`{where}` in task {task}" if where else f"task {task}"
    it = "a loop" if what == "loop" else f"PyTorch's {what.partition('::')[2]}" if "::" in what else what
    return f"{of} is to be solved without {it}{place}"


def found(task: str, code: str, forbids) -> str:
    """ "" if a solution's source has nothing of what its task forbids, else what it has, and where."""
    try:
        tree = ast.parse(code) if forbids else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""  # running it says so
    for entry in forbids:
        what, _, where = entry.partition(" in ")
        parts = scope(tree, where)
        again = calling_themselves(parts)
        for node in (node for part in parts for node in ast.walk(part)):
            if is_loop(node) or node in again if what == "loop" else names(node) & {last_part(tree, what)}:
                return sentence(task, entry, f" (line {getattr(node, 'lineno', 0)} of its cell)")
    return ""


def scope(tree: ast.Module, where: str) -> list[ast.AST]:
    """The statement that binds the name `where`, with those that bind what it calls; or the whole cell."""
    bound = {name: part for part in tree.body for name in bound_by(part)}
    if where not in bound:
        return tree.body
    chosen, left = [], [where]
    while left:
        part = bound[left.pop()]
        if part not in chosen:
            chosen.append(part)
            left += [name for node in ast.walk(part) for name in names(node) if name in bound]
    return chosen


def bound_by(part: ast.stmt) -> list[str]:
    if isinstance(part, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [part.name]
    targets = part.targets if isinstance(part, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_loop(node: ast.AST) -> bool:
    return isinstance(node, LOOPS) or bool(names(node) & LOOPING)


def calling_themselves(parts: list[ast.AST]) -> list[ast.AST]:
    """The functions that call themselves, at once or through others, wherever they are defined: loops under another name."""
    defined: dict[str, ast.AST] = {}
    for node in (node for part in parts for node in ast.walk(part)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.NamedExpr) and isinstance(node.value, ast.Lambda):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    calls = {}
    for name, node in defined.items():
        body = node.body if isinstance(node.body, list) else [node.body]
        calls[name] = {n for part in body for inner in ast.walk(part) for n in names(inner)} & defined.keys()
    for _ in defined:  # what is called by what is called
        calls = {name: set.union(some, *(calls[n] for n in some)) for name, some in calls.items()}
    return [defined[name] for name, some in calls.items() if name in some]


def names(node: ast.AST) -> set[str]:
    """The names that a node of the source uses; a text counts, since getattr takes one."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.Import | ast.ImportFrom):
        module = getattr(node, "module", None) or ""
        return {part for alias in node.names for part in f"{module}.{alias.name}".split(".")}
    return set()


def last_part(tree: ast.Module, what: str) -> str | None:
    """The name to look for; None where running alone can tell: an operation, or a function that the cell defines itself under
    the same name."""
    name = what.rpartition(".")[2]
    if "::" in what or ("." in what and name in {n for part in tree.body for n in bound_by(part)}):
        return None
    return name


@contextlib.contextmanager
def without(task: str, forbids, also: dict | None = None):
    """While it lasts, functions and operations that a task forbids raise where its solution calls them.

    also: a namespace beside those of the modules, in which a cell may have imported a function before.
    """
    with contextlib.ExitStack() as stack:
        for what in forbids:
            if "::" in what:
                stack.enter_context(operation(task, what))
            elif "." in what.partition(" in ")[0]:
                stack.enter_context(function(task, what, also or {}))
        yield


@contextlib.contextmanager
def function(task: str, what: str, also: dict):
    """Every name of a function, in every module, becomes one of a function that raises. What is ours may go on calling it."""
    module, _, name = what.rpartition(".")
    original = getattr(importlib.import_module(module), name)

    def refusing(*args, **kwargs):
        frame = sys._getframe(1)
        while frame:
            if frame.f_code.co_filename == f"<{task}>":
                raise Forbidden(sentence(task, what))
            frame = frame.f_back
        return original(*args, **kwargs)

    spaces = [also, *(vars(module) for module in list(sys.modules.values()) if hasattr(module, "__dict__"))]
    places = [(space, key) for space in spaces for key, value in list(space.items()) if value is original]
    for space, key in places:
        space[key] = refusing
    try:
        yield
    finally:
        for space, key in places:
            space[key] = original


def family(what: str) -> list[str]:
    """The operation, its overloads, and what it is made of on one device or another: its words are in their names."""
    import torch

    namespace, _, name = what.partition("::")
    every = (op.partition("::") for op in torch._C._dispatch_get_all_op_names())
    words = ".*".join(name.split("_"))
    return sorted(op for space, _, op in every if space == namespace and re.search(words, op))


@contextlib.contextmanager
def operation(task: str, what: str):
    """PyTorch's own kernel for the CPU gives way to one that raises: below all the names that Python has for it."""
    import torch

    namespace = what.partition("::")[0]

    def refusing(*args, **kwargs):
        raise Forbidden(sentence(task, what))

    library = torch.library.Library(namespace, "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is what is wanted
        for one in family(what):
            library.impl(one, refusing, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
