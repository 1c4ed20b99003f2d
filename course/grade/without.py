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

from course.exercises.cells import parsed

LOOPS = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
LOOPING = {"map", "filter", "reduce", "accumulate", "vmap", "vectorize", "exec", "eval"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


class Forbidden(Exception):
    """A solution called what its task forbids."""


def sentence(task: str, what: str, place: str = "") -> str:
    what, _, where = what.partition(" in ")
    of = f"`{where}` in task {task}" if where else f"task {task}"
    it = "a loop" if what == "loop" else f"PyTorch's {what.partition('::')[2]}" if "::" in what else what
    return f"{of} is to be solved without {it}{place}"


def found(task: str, code: str, forbids) -> str:
    """ "" if a solution's source has nothing of what its task forbids, else what it has, and where."""
    tree = parsed(code) if forbids else None
    for entry in forbids if tree else ():  # what is no Python says so when it runs
        what, _, where = entry.partition(" in ")
        nodes = [node for part in scope(tree, where) for node in ast.walk(part)]
        name = last_part(tree, what)
        hits = loops(nodes) if what == "loop" else [node for node in nodes if name in names(node)]
        if hits:
            return sentence(task, entry, f" (line {getattr(hits[0], 'lineno', 0)} of its cell)")
    return ""


def scope(tree: ast.Module, where: str) -> list[ast.AST]:
    """The statements that bind the name `where`, with those that bind what it calls; or the whole cell."""
    bound = [(part, name) for part in tree.body for name in bound_by(part)]
    graph = uses(bound)
    wanted = {where} | reached(where, graph) if where in graph else set()
    return [part for part, name in bound if name in wanted] or tree.body


def loops(nodes: list[ast.AST]) -> list[ast.AST]:
    """What repeats something; functions that call themselves, at once or through others, are loops under another name."""
    defined = [n for n in nodes if isinstance(n, FUNCTIONS) or isinstance(getattr(n, "value", 0), ast.Lambda)]
    bound = [(node, name) for node in defined for name in bound_by(node)]
    graph = uses(bound)
    again = {node for node, name in bound if name in reached(name, graph)}
    return [n for n in nodes if isinstance(n, LOOPS) or n in again or names(n) & LOOPING]


def uses(bound: list[tuple[ast.AST, str]]) -> dict[str, set[str]]:
    """For each name that is bound, which of them stand in what binds it."""
    graph = {name: set() for _, name in bound}
    for part, name in bound:
        inside = ast.walk(getattr(part, "value", None) or part)
        graph[name] |= {used for node in inside for used in names(node)} & graph.keys()
    return graph


def reached(name: str, graph: dict[str, set[str]]) -> set[str]:
    """What a name leads to, at once or through others."""
    seen, left = set(), {name}
    while left:
        left = set().union(*(graph[one] for one in left)) - seen
        seen |= left
    return seen


def bound_by(node: ast.AST) -> list[str]:
    """The names that a definition or an assignment binds."""
    if isinstance(node, FUNCTIONS | ast.ClassDef):
        return [node.name]
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        return []
    targets = getattr(node, "targets", None) or [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def last_part(tree: ast.Module, what: str) -> str | None:
    """The name to look for; None where running alone can tell: an operation, or a function that the cell defines itself under
    the same name."""
    name = what.rpartition(".")[2]
    defined_here = {bound for part in tree.body for bound in bound_by(part)}
    return None if "::" in what or ("." in what and name in defined_here) else name


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


@contextlib.contextmanager
def without(task: str, forbids, also: dict):
    """While it lasts, functions and operations that a task forbids raise where its solution calls them.

    also: a namespace beside those of the modules, in which a cell may have imported a function before.
    """
    with contextlib.ExitStack() as stack:
        for what in forbids:
            if "::" in what:
                stack.enter_context(operation(task, what))
            elif "." in what:
                stack.enter_context(function(task, what, also))
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


@contextlib.contextmanager
def operation(task: str, what: str):
    """PyTorch's own kernels for the CPU give way to one that raises, below all the names that Python has for them: those of the
    operation, its overloads, and what it is made of on one device or another, which has its words in the name.
    """
    import torch

    namespace, _, name = what.partition("::")
    family = re.compile(f"{namespace}::.*{'.*'.join(name.split('_'))}")

    def refusing(*args, **kwargs):
        raise Forbidden(sentence(task, what))

    library = torch.library.Library(namespace, "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is what is wanted
        for one in filter(family.match, torch._C._dispatch_get_all_op_names()):
            library.impl(one.partition("::")[2], refusing, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
