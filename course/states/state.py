"""The three states of a clone: complete, as committed; started, its package growing from nothing; blank, its notebooks too.

Kept in a file that git ignores: the state, and the chapters that have been built. Without the file a clone is complete.
"""

import json

from course.files import write_atomically
from course.paths import ROOT

FILE = ROOT / ".course-state.json"
STATES = ("complete", "started", "blank")


def kept() -> dict:
    """What the file says; {} where there is none, or a damaged one."""
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
        if found["state"] in STATES[1:]:
            return {"state": found["state"], "chapters": list(found["chapters"])}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {}


def state() -> str:
    """ "complete", "started" or "blank"."""
    return kept().get("state", "complete")


def grows() -> bool:
    """Whether the package is one that fills as checkpoints run."""
    return state() != "complete"


def built() -> list[str]:
    """The chapters whose modules are in a growing package, in order."""
    return sorted(kept().get("chapters", []))


def file_text(state: str, chapters: list[str]) -> bytes:
    return (json.dumps({"state": state, "chapters": sorted(chapters)}, indent=1) + "\n").encode()


def after_checkpoint(chapter: str) -> None:
    """Remember that a chapter's modules are in a growing package."""
    if grows():
        write_atomically(FILE, file_text(state(), [*{*built(), chapter}]))


def in_words(there: list[str]) -> str:
    """`chapters 00 to 06 are in it`."""
    if len(there) < 2:
        return f"chapter {there[0]} is in it" if there else "no chapter is in it yet"
    return f"{len(there)} chapters, {there[0]} to {there[-1]}, are in it"
