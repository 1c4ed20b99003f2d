"""Chapters that cannot do yet with what the chapters before them have built: what they borrow, and the lending of it.

course/states/forward.toml is the list. It gets shorter as chapters are rewritten; tests/machinery/test_course_forward.py holds it to what
the chapters import.
"""

import ast
import tomllib
from pathlib import Path

from course.files import write_atomically
from course.package.imports import imported
from course.package.rooms import make_rooms
from course.paths import PACKAGE, module_path, modules, two_digits
from course.states.released import owners, whole

LIST = Path(__file__).with_suffix(".toml")


def borrowed() -> dict[str, list[str]]:
    """Chapter -> the modules of later chapters that it imports itself."""
    parts = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return {chapter: names for part in parts.values() for chapter, names in part.items()}


def lend(chapter: str, package: Path = PACKAGE) -> list[str]:
    """Put into the package what the chapter borrows and is not there, with all that the package then imports; their names.

    What is there is never written over. A chapter's checkpoint replaces what was lent of its own modules.
    """
    there = {name: module_path(name, package).read_bytes() for name in modules(package)}
    missing = set(borrowed().get(two_digits(chapter), [])) & set(owners()) - set(there)
    for text in there.values():
        missing |= imports(text) - set(there)
    lent: dict[str, str] = {}
    while missing:
        texts = whole(missing)
        lent |= texts
        missing = set().union(*(imports(text.encode()) for text in texts.values())) - set(there) - set(lent)
    make_rooms(lent, package)
    for name, text in sorted(lent.items()):
        write_atomically(module_path(name, package), text.encode())
    return sorted(lent)


def imports(text: bytes) -> set[str]:
    """The modules of the course that a module imports; none if a student has left it unreadable."""
    try:
        return imported(ast.parse(text), owners())
    except (SyntaxError, ValueError):
        return set()
