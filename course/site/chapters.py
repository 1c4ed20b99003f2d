"""The map of the course: its chapters by number, and its parts. Every reference to a chapter is checked against it.

What does not fit one sitting goes on under the same number with a letter.
"""

from course.paths import SOURCES, number_of, numbered

CHAPTERS = {  # by number, what its file is called
    number_of(path): path.stem.partition("_")[2].replace("fine_tuning", "fine-tuning").replace("_", " ")
    for path in numbered(SOURCES, ".py")
}

# Sittings that a reader may leave out: the others can be read without them.
OPTIONAL = {
    *("16a", "16b", "16c", "18b", "19b", "19c", "21b", "21c", "21d", "21e", "22b", "22c", "22d"),
    *("23", "23b", "23c", "23d", "24", "24b", "24c", "24d", "25", "25b"),
}

SHORT = {  # where the file's name is not what a reader looks for
    "05": "GPT-2",
    "06": "pretrained weights",
    "11": "torch.compile",
    "18b": "HellaSwag",
    "19b": "answers and rewards",
    "20": "DDP",
    "21c": "ring attention",
}

PARTS = {  # name: its first chapter, its last, and what one can do after it
    "I Text": ("00", "03z", "turn any text into batches, and say how low a loss on it can get"),
    "II GPT-2": ("04", "08z", "build the model, check it against Hugging Face's, train it and let it write"),
    "III Speed": ("09", "14z", "find what limits a training step, and make it faster"),
    "IV A real run": ("15", "19z", "train for days and through crashes, evaluate, fine-tune"),
    "V Many processes": (
        "20",
        "22z",
        "split a run over GPUs and machines, and plan its memory, time and cost",
    ),
    "VI Further": ("23", "25z", "go on from GPT-2"),
}


def part(name: str, chapters: list[str]) -> list[str]:
    """The chapters of a part, of those that are given."""
    first, last, _ = PARTS[name]
    return [chapter for chapter in chapters if first <= chapter <= last]
