# %% [markdown]
r"""
# 18 · Evaluation: what a number means

A loss on a screen is a claim. Which text, how many of its tokens, in which context, per token of which tokenizer, and how far
from the best there is?
"""

# %%
#| default_exp evals
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
checkpoint("18")
