"""Tests that a chapter's checkpoint has run among the notebooks, and that need not be run again.

A checkpoint tests the package as of its chapter. Where all that a test file needs of the package has the committed text by
then, because no later chapter grows it, a second run would be the same one. tests/student_way.py holds the texts to it.
"""

import ast
import json
from functools import cache
from pathlib import Path

from course.package.as_of import chapters_of
from course.package.imports import imported, named
from course.paths import module_path
from course.states.released import owners
from course.testing.needs import all_needed
from nanogpt.cli import COMMANDS

PREFIX = "test_ch"


def left_to_a_checkpoint(item) -> bool:
    """Whether the chapter's checkpoint runs a test on the modules that are committed."""
    path = item.path
    return path.name.startswith(PREFIX) and item.get_closest_marker("slow") is None and not grown_later(path)


@cache
def grown_later(test: Path) -> frozenset[str]:
    """The modules that a chapter's test file needs and that a later chapter grows."""
    chapter = test.name.removeprefix(PREFIX).partition("_")[0]
    modules = with_theirs(all_needed(test) & owners().keys())  # without names within them
    return frozenset(name for name in modules if max(chapters_of(name)) > chapter)


def with_theirs(names: set[str]) -> set[str]:
    """Modules, with what they need in turn."""
    found, left = set(), set(names)
    while left:
        found.add(name := left.pop())
        left |= needs_of(name) - found
    return found


@cache
def needs_of(name: str) -> frozenset[str]:
    tree = ast.parse(module_path(name).read_text(encoding="utf-8"))
    commands = {module for module, *_ in COMMANDS.values()} if name == "cli" else set()
    more = {module.removeprefix("nanogpt.") for module in commands}
    return frozenset(imported(tree, owners()) | named(tree, owners()) | more)


def passed(folder: Path) -> set[str]:
    """The tests that have passed in checkpoints, of which course/package/checkpoint.py keeps the names in a folder."""
    reports = folder.glob("passed-*.json")
    return {name for report in reports for name in json.loads(report.read_text(encoding="utf-8"))}
