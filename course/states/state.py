"""The three states of a clone: complete, as committed; started, its package growing from nothing; blank, its notebooks too.

Kept in a file that git ignores: the state, and the chapters that have been built. Without the file a clone is complete.
"""

import json
from contextlib import suppress

from course.files import json_bytes, write_atomically
from course.paths import ROOT

FILE = ROOT / ".course-state.json"


def kept() -> tuple[str, list[str]]:
    """The state, and the chapters whose modules are in a growing package, in order. A damaged file counts for nothing."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(FILE.read_text(encoding="utf-8"))
        if found["state"] in ("started", "blank"):
            return found["state"], sorted(found["chapters"])
    return "complete", []


def state() -> str:
    return kept()[0]


def built() -> list[str]:
    return kept()[1]


def grows() -> bool:
    """Whether the package is one that fills as checkpoints run."""
    return state() != "complete"


def is_there(chapter: str) -> bool:
    """Whether a chapter's modules belong into the package as it stands: all in a complete one, else those that are built."""
    return not grows() or chapter in built()


def file_text(state: str, chapters: list[str]) -> bytes:
    return json_bytes({"state": state, "chapters": sorted(chapters)})


def after_checkpoint(chapter: str) -> None:
    """Remember that a chapter's modules are in a growing package."""
    if grows():
        write_atomically(FILE, file_text(state(), [*{*built(), chapter}]))


def in_words(there: list[str]) -> str:
    """`chapters 00 to 06 are in it`."""
    if len(there) < 2:
        return f"chapter {there[0]} is in it" if there else "no chapter is in it yet"
    return f"{len(there)} chapters, {there[0]} to {there[-1]}, are in it"


def described() -> str:
    """The state in a few words: `started; chapter 04 is in it`."""
    if not grows():
        return "complete"
    return f"started{', notebooks with blanks' if state() == 'blank' else ''}; {in_words(built())}"
