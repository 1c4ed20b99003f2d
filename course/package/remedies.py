"""What to do where a module that the course itself makes is missing or damaged."""

import re
import traceback
from pathlib import Path

from course.paths import PACKAGE, module_file
from course.states.released import owners
from course.states.started import MISSING, made_by

DISK = re.compile(r"\[Errno \d+\] (No space left|Read-only file system|Disk quota exceeded)")
NO_NAME = re.compile(r"cannot import name '(\w+)' from (?:partially initialized module )?'nanogpt\.([\w.]+)'")


def remedy(error: str) -> str:
    """The remedy for an import of ours that failed, or a disk, from the error's text; empty for any other error."""
    if DISK.search(error):
        return "the disk is full or cannot be written; `course doctor` says how much is free"
    if found := MISSING.search(error):
        return f"{module_file(found[1])} is missing; {bring_back(found[1])}"
    if found := NO_NAME.search(error):
        return f"{module_file(found[2])} has no {found[1]}; {bring_back(found[2])}"
    return ""


def remedy_for(error: BaseException) -> str:
    """The same for an exception, and for one raised within a module of ours, a syntax error say."""
    if said := remedy(str(error)):
        return said
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", "<module>"))
    ours = [(module_of(Path(file)), name) for file, name in frames if Path(file).is_relative_to(PACKAGE)]
    mistakes = NameError | TypeError | AttributeError | ImportError
    if not ours or not (ours[-1][1] == "<module>" or isinstance(error, mistakes)):
        return ""
    module = ours[-1][0]
    return f"{module_file(module)} is broken ({type(error).__name__}: {error}); {bring_back(module)}"


def module_of(path: Path) -> str:
    """`model`, of a file of the package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def bring_back(name: str) -> str:
    """How a module comes back, or a folder of this name."""
    if made := made_by(name):
        return made
    maker = next((number for module, number in owners().items() if f"{module}.".startswith(f"{name}.")), None)
    return f"`course restore {maker}` brings it back" if maker else "no chapter makes it"
