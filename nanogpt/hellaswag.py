"""HellaSwag: four endings, one context read once, and which of them the model finds likeliest.

Exported from notebooks/18_evaluation.ipynb.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
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


def ids_of(item: dict, tokenizer, block_size: int) -> tuple[list[int], list[list[int]]]:
    """The ids of a question's context, cut on the left to what fits, and of its endings, each after a space."""
    endings = [tokenizer.encode(" " + ending) for ending in item["endings"]]
    room = block_size + 1 - max(map(len, endings))  # the last token of all is predicted, not read
    if room < 1:
        raise ValueError(
            f"an ending of {block_size + 1 - room} tokens does not fit into block_size={block_size}"
        )
    return tokenizer.encode(item["ctx"])[-room:], endings


@dataclass
class EndingCache(KVCache):
    """A cache whose model gives the logits after every new token, (B, T, vocab_size), not the newest alone."""

    block_size: int = 0

    def positions(self, T: int) -> Tensor:
        return super().positions(T).clamp(max=self.block_size - 1)  # only padding stands further on

    def newest(self, x: Tensor) -> Tensor:
        return x

    @classmethod
    def after(cls, cache: KVCache, owners: list[int], block_size: int) -> "EndingCache":
        """Copies of a cache's texts, one for each owner."""
        at = torch.tensor(owners, device=cache.keys.device)
        lengths = [cache.lengths[b] for b in owners]
        return cls(cache.keys[:, at], cache.values[:, at], lengths, block_size=block_size)


@torch.no_grad()
def score_endings(
    model: GPT, contexts: Sequence[list[int]], endings: Sequence[list[list[int]]]
) -> tuple[Tensor, Tensor]:
    """What each ending costs after its context, in nats, and whether each of its tokens is the first choice.

    contexts: ids of B texts, which are read once; endings[b]: some lists of ids. Both results are flat, (endings,).
    """
    owners = [b for b, some in enumerate(endings) for _ in some]
    flat = [ids for some in endings for ids in some]
    width = max(1, max(map(len, flat)) - 1)
    shared = KVCache.empty(model, len(contexts), max(map(len, contexts)) + width)
    first = read(model, shared, contexts)[owners, None]  # (endings, 1, V)
    x = torch.tensor([ids[:-1] + [0] * (width + 1 - len(ids)) for ids in flat], device=first.device)
    y = torch.tensor([ids + [-100] * (width + 1 - len(ids)) for ids in flat], device=first.device)
    with evaluating(model):
        rest = model(x, cache=EndingCache.after(shared, owners, model.config.block_size))[0]
    logits = torch.cat([first, rest], 1).float()  # (endings, width + 1, V)
    nats = F.cross_entropy(logits.transpose(1, 2), y, reduction="none").sum(1)
    return nats, ((logits.argmax(-1) == y) | (y == -100)).all(1)


def score(model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32") -> list[list[float]]:
    """The nats of each question's endings. batch: questions at once, of about one length; it changes only the time."""
    from tqdm import tqdm

    asked = [ids_of(item, tokenizer, model.config.block_size) for item in items]
    order = sorted(range(len(asked)), key=lambda i: len(asked[i][0]) + max(map(len, asked[i][1])))
    nats, device = [[]] * len(asked), next(model.parameters()).device
    for at in tqdm(range(0, len(order), batch), unit="batch", desc="HellaSwag", disable=None):
        some = order[at : at + batch]
        with autocast(precision, device):
            flat = score_endings(model, *zip(*(asked[i] for i in some)))[0].tolist()
        for i in some:
            n = len(asked[i][1])
            nats[i], flat = flat[:n], flat[n:]
    return nats


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
