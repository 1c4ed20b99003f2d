# %% [markdown]
r"""
# 18 · Evaluation: what a number means

A loss on a screen is a claim. Which text, how many of its tokens, in which context, per token of which tokenizer, and how far
from the best there is?
"""

# %%
#| default_exp evals
#| doc hellaswag: HellaSwag: four endings, one context read once, and which of them the model finds likeliest.
#| doc evals: How good a model is: its loss on whole documents, and how often its answers are right.
from course.notebook import checkpoint

# %%
#| export
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

from nanogpt.model import GPT
from nanogpt.precision import autocast
from nanogpt.shards import document_starts


# %%
#| export
def windows(tokens: np.ndarray, T: int, eot: int) -> Iterator[tuple[int, int, int]]:
    """(start, new, stop): tokens start..stop-1 go in, and those after new, up to stop, are to be predicted.

    Documents, which begin at eot, are kept apart. One longer than T is covered by windows that overlap by half.
    Every token but the first of the shard is predicted exactly once.
    """
    starts = document_starts(tokens, eot)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(tokens) - 1]):
        new = start
        while new < end:
            stop = min(start + T, end)
            yield start, new, stop
            start, new = max(start, min(stop - T // 2, end - T)), stop


# %%
#| export
@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Dropout off within the block, and each module's mode restored after it; gives the model's device."""
    training = [module for module in model.modules() if module.training]  # some may be frozen
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        for module in training:
            module.training = True


# %%
#| export
def padded(tokens: np.ndarray, rows: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, (rows, longest), of some windows; y is -100 where nothing is to be predicted."""
    x = torch.zeros(len(rows), max(stop - start for start, _, stop in rows), dtype=torch.int64)
    y = torch.full_like(x, -100)
    for i, (start, new, stop) in enumerate(rows):
        piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
        x[i, : stop - start] = piece[:-1]
        y[i, new - start : stop - start] = piece[1 + new - start :]
    return x, y


# %%
#| export
@torch.no_grad()
def total_loss(model: GPT, tokens: np.ndarray, eot: int, B=32, precision="float32") -> tuple[float, int]:
    """Sum of the losses of a shard's tokens, in nats, and how many they are: all but the first, each once.

    Sums over several shards, on however many processes, add up to the whole.
    """
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats, count = 0.0, 0
    with evaluating(model) as device:
        for i in range(0, len(rows), B):
            x, y = padded(tokens, rows[i : i + B])
            with autocast(precision, device):
                logits, _ = model(x.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten().to(device), reduction="sum")
            nats, count = nats + loss.item(), count + int((y != -100).sum())
    return nats, count


# %%
#| export
def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int, B=32, precision="float32") -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    totals = [total_loss(model, tokens, eot, B, precision) for tokens in shards]
    if not sum(count for _, count in totals):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return sum(nats for nats, _ in totals) / sum(count for _, count in totals)


# %%
#| export
def first_choices(model: torch.nn.Module, ids: np.ndarray, T: int, eot: int) -> list[bool]:
    """Of each id but the first, whether it is what the model found likeliest, given the ids before it."""
    device, right = next(model.parameters()).device, []
    for start, new, stop in windows(ids, T, eot):
        logits, _ = model(torch.from_numpy(ids[None, start:stop]).to(device))
        best = logits[0, new - start :].argmax(-1).cpu().numpy()
        right += (best == ids[new + 1 : stop + 1]).tolist()
    return right


# %%
#| export
@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's; one longer than the model's context is read
    through `windows`. model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    right, asked = Counter(), Counter()
    with evaluating(model):
        for story in stories:
            ids = np.array([tokenizer.eot, *tokenizer.encode(story.text)])
            T = model.config.block_size if hasattr(model, "config") else len(ids)
            hits = first_choices(model, ids, T, tokenizer.eot)
            ends = np.cumsum(
                [len(tokenizer.decode([i])) for i in ids[1:].tolist()]
            )  # of each token, in the text
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                asked.update([kind, "all"])
                right.update([kind, "all"] if all(hits[first : last + 1]) else [])
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


# %%
#| export hellaswag
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.cache import KVCache, read
from nanogpt.model import GPT
from nanogpt.precision import autocast


# %%
#| export hellaswag
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


# %%
#| export hellaswag
def ids_of(item: dict, tokenizer, block_size: int) -> tuple[list[int], list[list[int]]]:
    """The ids of a question's context, cut on the left to what fits, and of its endings, each after a space."""
    endings = [tokenizer.encode(" " + ending) for ending in item["endings"]]
    room = block_size + 1 - max(map(len, endings))  # the last token of all is predicted, not read
    if room < 1:
        raise ValueError(
            f"an ending of {block_size + 1 - room} tokens does not fit into block_size={block_size}"
        )
    return tokenizer.encode(item["ctx"])[-room:], endings


# %%
#| export hellaswag
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


# %%
#| export hellaswag
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


# %%
#| export hellaswag
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


# %%
#| export hellaswag
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


# %%
checkpoint("18")
