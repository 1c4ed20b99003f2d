"""HellaSwag: each context read once for its four endings, and which of them the model finds likeliest.

Exported from notebooks/18b_hellaswag.ipynb.
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
        return (slots[:, :1] + self.place).where(
            self.ending >= 0, 0
        )  # padding may stand beyond all positions

    def newest(self, x: Tensor) -> Tensor:
        return x[self.ending >= 0][None]  # (1, tokens, C)


def side_by_side(endings: Sequence[list[list[int]]]) -> Tensor:
    """(4, B, T): of each text's endings, laid end to end, every token that another follows, and -2 or -100 for padding.

    The token, the one that follows, which of the text's endings it is of, and its place in it.
    """
    rows = [
        [(*two, e, at) for e, ids in enumerate(some) for at, two in enumerate(pairwise(ids))]
        for some in endings
    ]
    T = max(1, max(map(len, rows)))
    return torch.tensor([row + [(0, -100, -2, 0)] * (T - len(row)) for row in rows]).permute(2, 0, 1)


@torch.no_grad()
def score_endings(model: GPT, contexts: Sequence[list[int]], endings: Sequence[list[list[int]]]) -> Tensor:
    """(2, endings): what each costs after its context, in nats, and how many of its tokens are not first choice.

    contexts: ids of B texts, each read once; endings[b]: some lists of ids. The results are flat.
    """
    device, counts = model.transformer.wte.weight.device, torch.tensor([len(some) for some in endings])
    x, y, ending, place = side_by_side(endings).to(device)  # (B, T) each
    cache = KVCache.empty(model, len(contexts), max(map(len, contexts)) + x.size(1))
    first = read(model, cache, contexts).repeat_interleave(counts.to(device), 0)  # (endings, V)
    with evaluating(model):
        beside = EndingCache(cache.keys, cache.values, cache.lengths, ending=ending, place=place)
        rest = model(x, cache=beside)[0][0]  # (tokens, V)
    which = (ending + (counts.cumsum(0) - counts).to(device)[:, None])[ending >= 0]
    begins = torch.tensor([ids[0] for some in endings for ids in some], device=device)
    nats, wrong = first_and_rest = torch.zeros(2, len(begins), device=device)
    for logits, ids, at in (
        (first, begins, torch.arange(len(begins), device=device)),
        (rest, y[ending >= 0], which),
    ):
        nats.index_add_(0, at, F.cross_entropy(logits.float(), ids, reduction="none"))
        wrong.index_add_(0, at, (logits.argmax(-1) != ids).float())
    return first_and_rest


def abreast(endings: list[list[int]], limit: int) -> list[list[list[int]]]:
    """The endings in groups of at most `limit` tokens, since a model takes no more in one pass."""
    groups, left = [], 0
    for ids in endings:
        if len(ids) > left:
            groups, left = [*groups, []], limit
        groups[-1].append(ids)
        left -= len(ids)
    return groups


def score_ids(model: GPT, asked: Sequence[tuple], *, batch=8, precision="float32") -> list[list[list[float]]]:
    """For each (context's ids, endings' ids): of each ending, its nats and how many tokens are not first choice.

    batch: questions at once, of about one length; it changes only the time. Contexts are cut to what fits.
    """
    from tqdm import tqdm

    size, results = model.config.block_size, [[] for _ in asked]
    pieces = [(i, fitting(c, e, size), some) for i, (c, e) in enumerate(asked) for some in abreast(e, size)]
    order = sorted(range(len(pieces)), key=lambda j: len(pieces[j][1]) + sum(map(len, pieces[j][2])))
    scores, device = {}, model.transformer.wte.weight.device
    for at in tqdm(range(0, len(order), batch), unit="batch", desc="endings", disable=None):
        _, contexts, endings = zip(*(pieces[j] for j in order[at : at + batch]))
        with autocast(precision, device):
            flat = score_endings(model, contexts, endings).T.tolist()
        for j, some in zip(order[at:], endings):
            scores[j], flat = flat[: len(some)], flat[len(some) :]
    for j, (i, *_) in enumerate(pieces):
        results[i] += scores[j]
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
