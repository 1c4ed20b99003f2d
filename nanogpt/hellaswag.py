"""HellaSwag: each context read once for its four endings, and which of them the model finds likeliest.

Exported from notebooks/18_evaluation.ipynb.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.cache import KVCache, read
from nanogpt.evals import evaluating
from nanogpt.model import GPT
from nanogpt.precision import autocast

DATA = Path(__file__).parent.parent / "data" if "__file__" in globals() else Path("../data")
COURSE, REAL = DATA / "hellaswag_course.jsonl", DATA / "downloads" / "hellaswag_val.jsonl"


def default_items() -> Path:
    """HellaSwag's validation set where `course data hellaswag` has brought it, else the course's small set."""
    return REAL if REAL.exists() else COURSE


def load_items(path: str | Path | None = None) -> list[dict]:
    """Questions of a HellaSwag file: each a dict with ctx, endings and label. None: those of default_items().

    ValueError, naming the line, for what is no question.
    """
    path, items = Path(path or default_items()), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            item = json.loads(line)
            whole = item["ctx"] and all(item["endings"]) and 0 <= item["label"] < len(item["endings"])
        except (ValueError, TypeError, LookupError):
            whole = False
        if not whole:
            raise ValueError(
                f"{path.name}, line {number}: a question needs ctx, endings, and label, one of theirs"
            )
        items.append(item)
    if not items:
        raise ValueError(f"{path.name} holds no question")
    return items


def ids_of(item: dict, tokenizer) -> tuple[list[int], list[list[int]]]:
    """The ids of a question's context, and of its endings, each after a space."""
    return tokenizer.encode(item["ctx"]), [tokenizer.encode(" " + ending) for ending in item["endings"]]


def fitting(context: list[int], endings: list[list[int]], block_size: int) -> list[int]:
    """What of a context fits before its longest ending, whose last token is predicted and not read."""
    room = block_size + 1 - max(map(len, endings))
    if room < 1:
        raise ValueError(
            f"an ending of {block_size + 1 - room} tokens does not fit into block_size={block_size}"
        )
    return context[-room:]


@dataclass
class EndingCache(KVCache):
    """Reads all endings of each text at once: a token sees the text and its own ending; the logits are of every token.

    ending, place: (B, T), which ending each new token is of (-2: padding), and its place in it.
    """

    ending: Tensor | None = None
    place: Tensor | None = None

    def positions(self, T: int) -> Tensor:
        slots = super().positions(T)  # where keys and values are kept: the endings lie side by side
        if self.past is not None:
            of = slots.new_full((len(slots), self.past.size(-1)), -1).scatter(
                1, slots, self.ending
            )  # -1: text
            seen = (of == -1)[:, None] | (of[:, None] == self.ending[:, :, None])  # (B, T, S)
            self.past = self.past & seen[:, None]
        return slots[:, :1] + self.place

    def newest(self, x: Tensor) -> Tensor:
        return x[self.ending >= 0][None]  # (1, tokens, C)


def side_by_side(endings: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """All tokens of a text's endings that are followed by another: (token, the next, which ending, place)."""
    return [(*pair, e, place) for e, ids in enumerate(endings) for place, pair in enumerate(pairwise(ids))]


@torch.no_grad()
def score_endings(model: GPT, contexts: Sequence[list[int]], endings: Sequence[list[list[int]]]) -> Tensor:
    """(2, endings): what each costs after its context, in nats, and how many of its tokens are not first choice.

    contexts: ids of B texts, each read once; endings[b]: some lists of ids. The results are flat.
    """
    rows, device = [side_by_side(some) for some in endings], model.transformer.wte.weight.device
    T = max(1, max(map(len, rows)))
    padded = torch.tensor([row + [(0, -100, -2, 0)] * (T - len(row)) for row in rows], device=device)
    x, y, ending, place = padded.unbind(-1)  # (B, T) each
    cache = KVCache.empty(model, len(rows), max(map(len, contexts)) + T)
    owner = torch.tensor([b for b, some in enumerate(endings) for _ in some], device=device)
    first = read(model, cache, contexts)[owner].float()  # (endings, V)
    with evaluating(model):
        side = EndingCache(cache.keys, cache.values, cache.lengths, ending=ending, place=place)
        rest = model(x, cache=side)[0][0].float()  # (tokens, V)
    begins = torch.tensor([ids[0] for some in endings for ids in some], device=device)
    before = torch.tensor([0, *np.cumsum([len(some) for some in endings])[:-1]], device=device)
    which = (ending + before[:, None])[ending >= 0]  # of all endings, flat
    costs = [
        F.cross_entropy(logits, ids, reduction="none")
        for logits, ids in ((first, begins), (rest, y[ending >= 0]))
    ]
    wrong = [(logits.argmax(-1) != ids).float() for logits, ids in ((first, begins), (rest, y[ending >= 0]))]
    return torch.stack([some.index_add(0, which, others) for some, others in (costs, wrong)])


def score_ids(model: GPT, asked: Sequence[tuple], *, batch=8, precision="float32") -> list[list[list[float]]]:
    """For each (context's ids, endings' ids): of each ending, its nats and how many tokens are not first choice.

    batch: questions at once, of about one length; it changes only the time. Contexts are cut to what fits.
    """
    from tqdm import tqdm

    asked = [(fitting(c, endings, model.config.block_size), endings) for c, endings in asked]
    order = sorted(range(len(asked)), key=lambda i: len(asked[i][0]) + sum(map(len, asked[i][1])))
    results, device = [[]] * len(asked), model.transformer.wte.weight.device
    for at in tqdm(range(0, len(order), batch), unit="batch", desc="endings", disable=None):
        some = order[at : at + batch]
        with autocast(precision, device):
            flat = score_endings(model, *zip(*(asked[i] for i in some))).T.tolist()
        for i in some:
            n = len(asked[i][1])
            results[i], flat = flat[:n], flat[n:]
    return results


def score(model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32") -> list[list[float]]:
    """The nats of each question's endings."""
    asked = [ids_of(item, tokenizer) for item in items]
    return [[nats for nats, _ in some] for some in score_ids(model, asked, batch=batch, precision=precision)]


MEASURES = {  # what an ending's nats are divided by before the cheapest is chosen
    "acc": lambda ending, tokenizer: 1,
    "acc_norm": lambda ending, tokenizer: len(ending),
    "acc_bytes": lambda ending, tokenizer: len(ending.encode()),
    "acc_tokens": lambda ending, tokenizer: len(tokenizer.encode(" " + ending)),
}


def accuracy(
    model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32"
) -> dict[str, float]:
    """The share of questions whose cheapest ending is the right one, by each measure, its standard error, and n.

    acc, acc_norm (per character) and acc_bytes are lm-evaluation-harness's names; acc_tokens, per token, is what
    build-nanogpt and llm.c call acc_norm.
    """
    nats, result = score(model, items, tokenizer, batch=batch, precision=precision), {"n": len(items)}
    for name, length in MEASURES.items():
        each = [
            [x / length(e, tokenizer) for x, e in zip(row, item["endings"])] for row, item in zip(nats, items)
        ]
        p = np.mean([np.argmin(row) == item["label"] for row, item in zip(each, items)]).item()
        result |= {name: p, f"{name}_stderr": (p * (1 - p) / max(1, len(items) - 1)) ** 0.5}
    return result
