"""Which checkpoints have passed, and when: what `course progress` shows."""

import contextlib
import os
from datetime import datetime

from course.files import json_bytes, read_records, write_atomically
from course.paths import BUILT, EXECUTED

FILE = BUILT / "checkpoints.json"


def passed() -> dict[str, dict]:
    """By chapter: when its checkpoint passed last, and whether `course run` executed the notebook."""
    return read_records(FILE)


def note(chapter: str) -> None:
    """Remember that a chapter's checkpoint has passed. On a disk that cannot be written it is not remembered."""
    made = {"when": f"{datetime.now():%Y-%m-%d}", "executed": EXECUTED in os.environ}
    with contextlib.suppress(OSError):
        write_atomically(FILE, json_bytes(dict(sorted((passed() | {chapter: made}).items()))))
