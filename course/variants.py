"""Numbers of one's own: the same for a student every time, others for their neighbour."""

import hashlib
import unicodedata


def variant(task: str, student: str, **choices: list) -> dict:
    """One value of each list, chosen by the task, the student and the name.

    `variant("05-3", "ann", n_layer=[6, 12])` is {"n_layer": 6} or {"n_layer": 12}, today and on every machine.
    """
    student = unicodedata.normalize("NFC", student).strip()  # as the grader reads it from a file's name
    return {name: values[pick(f"{task}/{student}/{name}") % len(values)] for name, values in choices.items()}


def pick(words: str) -> int:
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little")
