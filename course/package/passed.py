"""Which checkpoints have passed, and when: what `course progress` shows."""

import contextlib
import json
import os
from datetime import datetime

from course.files import write_atomically
from course.paths import BUILT, EXECUTED

FILE = BUILT / "checkpoints.json"


def passed() -> dict[str, dict]:
    """By chapter: when its checkpoint passed last, and whether `course run` executed the notebook."""
    try:
        kept = json.loads(FILE.read_text(encoding="utf-8"))
        return {chapter: made for chapter, made in kept.items() if isinstance(made, dict)}
    except (OSError, ValueError, AttributeError):
        return {}


def note(chapter: str) -> None:
    """Remember that a chapter's checkpoint has passed. On a disk that cannot be written it is not remembered."""
    made = {"when": f"{datetime.now():%Y-%m-%d}", "executed": EXECUTED in os.environ}
    text = json.dumps(dict(sorted((passed() | {chapter: made}).items())), indent=1)
    with contextlib.suppress(OSError):
        write_atomically(FILE, (text + "\n").encode())
