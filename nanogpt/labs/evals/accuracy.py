"""How many of the stories' questions a model answers right.

Exported from notebooks/07_training.ipynb, grown by notebooks/18_evaluation.ipynb.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from nanogpt.evaluate import evaluating, windows
from nanogpt.labs.corpora.stories import NUMBERS, rules


def first_choice(logits: Tensor) -> Tensor:
    """The likeliest id, along the last dimension. FloatingPointError if a logit is NaN: argmax would choose an id all the same."""
    best = logits.max(-1)
    if best.values.isnan().any():
        raise FloatingPointError("the model's logits are NaN: training or its file failed")
    return best.indices


def first_choices(model: torch.nn.Module, ids: np.ndarray, T: int, eot: int) -> list[bool]:
    """Of each id but the first, whether it is what the model found likeliest, given the ids before it."""
    device = next(model.parameters()).device
    right = []
    for start, new, stop in windows(ids, T, eot):
        logits, _ = model(torch.from_numpy(ids[None, start:stop]).to(device))
        best = first_choice(logits[0, new - start :]).cpu().numpy()
        right += (best == ids[new + 1 : stop + 1]).tolist()
    return right


@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's; one longer than the model's context is read
    through `windows`. model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    asked, right = Counter(), Counter()
    with evaluating(model):
        for story in stories:
            ids = np.array([tokenizer.eot, *tokenizer.encode(story.text)])
            T = model.config.block_size if hasattr(model, "config") else len(ids)
            hits = first_choices(model, ids, T, tokenizer.eot)
            ends = np.cumsum([len(tokenizer.decode([i])) for i in ids[1:].tolist()])  # of the tokens
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                is_right = all(hits[first : last + 1])
                for name in (kind, "all"):
                    asked[name] += 1
                    right[name] += is_right
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


PICKS = {  # how to choose from the numbers that a story has said so far, in their order
    "the first": lambda said: said[0],
    "the second": lambda said: said[:2][-1],
    "the last": lambda said: said[-1],
    "the last but one": lambda said: said[-2:][0],
    "the larger of the first two": lambda said: max(said[:2], key=NUMBERS.index),
    "the smaller of the first two": lambda said: min(said[:2], key=NUMBERS.index),
    "the most frequent": lambda said: Counter(said).most_common()[0][0],
    "the least frequent": lambda said: Counter(said).most_common()[-1][0],
}
OWNERS = {"her", "his", "she", "he", "She", "He"}


def copied_questions(stories: Iterable) -> list[tuple[tuple, list[str], str]]:
    """For each copied answer of the stories: its situation, the numbers said before it, and the answer."""
    varied = {
        w for lines in rules().values() if not re.search("[ {]", "".join(lines)) for w in lines
    } | OWNERS
    questions = []
    for story in stories:
        for order, ((start, end), kind) in enumerate(zip(story.answers, story.kinds)):
            if kind == "copied":
                words = re.findall(r"\w+", story.text[:start])
                said = [word for word in words if word in NUMBERS]
                sentence = re.findall(r"\w+|,", re.split("[.?!]", story.text[:start])[-1])
                frame = " ".join("…" if word in varied else word for word in sentence)
                questions.append(((order, words.index(said[0]), frame), said, story.text[start:end]))
    return questions


def rule_accuracies(seen: Iterable, stories: Iterable) -> dict[str, float]:
    """The share of copied answers that each way to pick gets right, and one that chooses the way by the situation, as `seen` taught it."""
    right = defaultdict(Counter)
    for situation, said, word in copied_questions(seen):
        right[situation].update(name for name, pick in PICKS.items() if pick(said) == word)
    hits = Counter()
    questions = copied_questions(stories)
    for situation, said, word in questions:
        hits.update(name for name, pick in PICKS.items() if pick(said) == word)
        best = max(PICKS, key=right[situation].__getitem__)
        hits["by the situation"] += PICKS[best](said) == word
    return {name: hits[name] / len(questions) for name in (*PICKS, "by the situation")}
