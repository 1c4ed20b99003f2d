"""What to do where a module that the course itself makes is not there yet, is missing or is damaged."""

import re
import traceback
from pathlib import Path

from course.paths import PACKAGE, module_file, source_chapters
from course.states.released import owners
from course.states.state import is_there

DISK = re.compile(r"\[Errno \d+\] (No space left|Read-only file system|Disk quota exceeded)")
MISSING = re.compile(r"No module named 'nanogpt\.([\w.]+)'")
NO_NAME = re.compile(r"cannot import name '(\w+)' from (?:partially initialized module )?'nanogpt\.([\w.]+)'")


def not_there(error: str) -> str:
    """Which module's import failed in a growing package, and which chapter makes it; "" for any other error."""
    found = MISSING.search(error)
    made = made_by(found[1]) if found else ""
    return f"{module_file(found[1])} is not there yet; {made}" if made else ""


def made_by(module: str) -> str:
    """How a growing package gets a module that is not in it yet; "" where a chapter that is in it makes it."""
    chapter = owners().get(module)
    if not chapter or is_there(chapter):
        return ""
    later = [other for other in source_chapters() if other > chapter]
    skip = f", or `course start --at {later[0]}`" if later else ""
    return f"chapter {chapter} makes it: run its notebook{skip}"


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
    frames = [(Path(frame.filename), frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    frames += [(Path(error.filename or ""), "<module>")] if isinstance(error, SyntaxError) else []
    ours = [(file, name) for file, name in frames if file.is_relative_to(PACKAGE)]
    mistakes = NameError | TypeError | AttributeError | ImportError
    if not ours or not (ours[-1][1] == "<module>" or isinstance(error, mistakes)):
        return ""
    module = ".".join(ours[-1][0].relative_to(PACKAGE).with_suffix("").parts)
    return f"{module_file(module)} is broken ({type(error).__name__}: {error}); {bring_back(module)}"


def bring_back(name: str) -> str:
    """How a module comes back, or a folder of this name."""
    if made := made_by(name):
        return made
    maker = next((number for module, number in owners().items() if f"{module}.".startswith(f"{name}.")), None)
    return f"`course restore {maker}` brings it back" if maker else "no chapter makes it"
