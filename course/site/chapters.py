"""The map of the course: all chapters by number, written or planned. Every reference to a chapter is checked against it.

What does not fit one sitting goes on under the same number with a letter.
"""

CHAPTERS = {
    "00": "setup",
    "01": "tokenizer",
    "02": "corpus",
    "03": "data",
    "04": "attention",
    "05": "gpt",
    "06": "pretrained",
    "07": "training",
    "07b": "learned",
    "08": "sampling",
    "09": "measuring",
    "09b": "counting",
    "10": "precision",
    "10b": "loss scaling",
    "11": "compile",
    "12": "flash attention",
    "12b": "fused attention",
    "13": "nice numbers",
    "14": "ladder",
    "14b": "climb",
    "15": "recipe",
    "15b": "worth",
    "16": "real text",
    "16b": "preparing",
    "16c": "cleaning",
    "17": "trainer",
    "17b": "checkpoints",
    "17c": "config",
    "17d": "assembly",
    "17e": "long run",
    "17f": "killed run",
    "18": "evaluation",
    "18b": "hellaswag",
    "19": "fine-tuning",
    "19b": "rewards",
    "19c": "fine-tuning runs",
    "20": "ddp",
    "20a": "many processes",
    "20b": "many machines",
    "21": "sharding",
    "21b": "tensor parallel",
    "21c": "context parallel",
    "21d": "layouts",
    "21e": "pipeline",
    "22": "planner",
    "22a": "time and cost",
    "22b": "formats",
    "22c": "scaling laws",
    "22d": "published logs",
    "23": "kernels",
    "23b": "fused loss",
    "23c": "flash kernels",
    "23d": "compiled kernels",
    "24": "llama",
    "24b": "llama runs",
    "24c": "sentencepiece",
    "24d": "bert",
    "25": "speedrun",
    "25b": "near the floor",
}

# Sittings that a reader may leave out: the others can be read without them.
OPTIONAL = {
    "16b",
    "16c",
    "18b",
    "19b",
    "19c",
    "21b",
    "21c",
    "21d",
    "21e",
    "22b",
    "22c",
    "22d",
    "23",
    "23b",
    "23c",
    "23d",
    "24",
    "24b",
    "24c",
    "24d",
    "25",
    "25b",
}

SHORT = {  # where the word above is not what a reader looks for
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
