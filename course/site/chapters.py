"""The map of the course: its parts, and the sittings that are optional.

What does not fit one sitting goes on under the same number with a letter.
"""

import re

from course.paths import SOURCES, number_of, numbered

# Sittings that a reader may leave out, since the others can be read without them: their headings have the mark.
OPTIONAL = {
    number_of(path)
    for path in numbered(SOURCES, ".py")
    if re.search(r"^# \w+ ◇", path.read_text(encoding="utf-8")[:500], re.MULTILINE)
}

PARTS = {  # name: the chapter that it begins with, and what one can do after it
    "I Text": ("00", "turn any text into batches, and say how low a loss on it can get"),
    "II GPT-2": ("04", "build the model, check it against Hugging Face's, train it and let it write"),
    "III Speed": ("09", "find what limits a training step, and make it faster"),
    "IV A real run": ("15", "train for days and through crashes, evaluate, fine-tune"),
    "V Many processes": ("20", "split a run over GPUs and machines, and plan its memory, time and cost"),
    "VI Further": ("23", "go on from GPT-2"),
}


def part(name: str, chapters: list[str]) -> list[str]:
    begins = [first for first, _ in PARTS.values()]
    return [c for c in chapters if max(first for first in begins if first <= c) == PARTS[name][0]]
