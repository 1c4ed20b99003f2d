"""What to do where a module that the course itself makes is missing or damaged."""

import re
import traceback
from pathlib import Path

from course.package.cells import claimed_modules
from course.paths import NOTEBOOKS, PACKAGE, number_of, numbered

DISK = re.compile(r"\[Errno \d+\] (No space left|Read-only file system|Disk quota exceeded)")
NO_NAME = re.compile(r"cannot import name '(\w+)' from (?:partially initialized module )?'nanogpt\.(\w+)'")


def remedy(error: str) -> str:
    """The remedy for an import of ours that failed, or a disk, from the error's text; empty for any other error."""
    if DISK.search(error):
        return "the disk is full or cannot be written; `course doctor` says how much is free"
    if found := re.search(r"No module named 'nanogpt\.(\w+)'", error):
        return f"nanogpt/{found[1]}.py is missing; {bring_back(found[1])}"
    if found := NO_NAME.search(error):
        return f"nanogpt/{found[2]}.py has no {found[1]}; {bring_back(found[2])}"
    return ""


def remedy_for(error: BaseException) -> str:
    """The same for an exception, and for one raised within a module of ours, a syntax error say."""
    if said := remedy(str(error)):
        return said
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", "<module>"))
    ours = [(Path(file).stem, name) for file, name in frames if Path(file).parent == PACKAGE]
    mistakes = NameError | TypeError | AttributeError | ImportError
    if not ours or not (ours[-1][1] == "<module>" or isinstance(error, mistakes)):
        return ""
    module = ours[-1][0]
    return f"nanogpt/{module}.py is broken ({type(error).__name__}: {error}); {bring_back(module)}"


def bring_back(module: str) -> str:
    for path in numbered(NOTEBOOKS, ".ipynb"):
        if module in claimed_modules(path):
            return f"`course restore {number_of(path)}` brings it back"
    return "no notebook here makes it"
