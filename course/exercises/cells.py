"""How the cells of a student's notebook run where no notebook is: the same for `course check` and for the grader."""

import ast
import hashlib
import linecache
import re
import sys
import types

TIMED = re.compile(r"(?m)^(\s*)%time[ \t]+(?=\S)")  # it runs what follows it
# a line for IPython and not for Python: %matplotlib inline, !pip install x, double?
LINE = re.compile(r"(?m)^([ \t]*)(?:[%!].*|\?{1,2}[\w.]+[ \t]*|[\w.]+\?{1,2}[ \t]*)$")


def without_magics(source: str) -> str:
    """A cell without the lines that only IPython understands; as it is where it is Python. Lines keep their numbers."""
    if parsed(source):
        return source
    left = LINE.sub(r"\1pass", TIMED.sub(r"\1", source))
    return left if parsed(left) else source


def parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def checksum(source: str, task: str) -> str:
    """nbgrader's, of a solution's cell: as long as it holds, the cell is as it was handed out."""
    return hashlib.md5(f"{source}codeFalseTrueFalse{task}".encode()).hexdigest()


def new_names(**names) -> dict:
    """The namespace in which cells run: that of a new module __main__, in which `display` shows nothing."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    vars(module).update(names, display=lambda *_, **__: None)
    return vars(module)


def run_cell(name: str, source: str, names: dict) -> None:
    """Run a cell; tracebacks and `inspect.getsource` find its lines under its name."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
