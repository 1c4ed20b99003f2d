"""The three states of a clone: complete, as committed; started, its package growing from nothing; blank, its notebooks too.

Kept in a file that git ignores: the state, the chapters that have been built, and of each module that was written what it
was, so that an edit by hand is told from a checkpoint. Without the file a clone is complete.
"""

import hashlib
import json

from course.files import write_atomically
from course.paths import ROOT, module_path

FILE = ROOT / ".course-state.json"
STATES = ("complete", "started", "blank")


def kept() -> dict:
    """What the file says; {} where there is none, or a damaged one."""
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
        if found["state"] in STATES[1:] and isinstance(found["written"], dict):
            return {"state": found["state"], "chapters": list(found["chapters"]), "written": found["written"]}
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


def file_text(state: str, chapters: list[str], texts: dict[str, str]) -> bytes:
    """The file of a package that was begun with these chapters' modules."""
    written = {module: digest(text.encode()) for module, text in sorted(texts.items())}
    return as_bytes({"state": state, "chapters": chapters, "written": written})


def note(chapter: str, texts: dict[str, str]) -> None:
    """Remember that a checkpoint has put these modules into a growing package."""
    now = kept()
    now["chapters"] = sorted({*now["chapters"], chapter})
    now["written"] |= {module: digest(text.encode()) for module, text in texts.items()}
    write_atomically(FILE, as_bytes(now))


def as_bytes(found: dict) -> bytes:
    return (json.dumps(found, indent=1) + "\n").encode()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def was_written(module: str) -> bool:
    """Whether a module is what a checkpoint or `course start` wrote, to the byte."""
    path = module_path(module)
    return path.is_file() and kept().get("written", {}).get(module) == digest(path.read_bytes())


def in_words(there: list[str], order: list[str]) -> str:
    """`chapters 00 to 06 are in it`, `chapters 00, 02 are in it`. order: all chapters."""
    if len(there) < 2:
        return f"chapter {there[0]} is in it" if there else "no chapter is in it yet"
    first = order.index(there[0]) if there[0] in order else 0
    in_a_row = there == order[first : first + len(there)] and len(there) > 2
    return f"chapters {f'{there[0]} to {there[-1]}' if in_a_row else ', '.join(there)} are in it"
