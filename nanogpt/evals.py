"""How good a model is: its loss on whole documents, and how often its answers are right.

Exported from notebooks/07_training.ipynb.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

from nanogpt.corpus import Story
from nanogpt.model import GPT
from nanogpt.shards import document_starts


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
            start, new = min(start + T // 2, end - T) if stop < end else start, stop


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Dropout off within the block, and the model's mode restored after it; gives the model's device."""
    mode = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(mode)


@torch.no_grad()
def total_loss(
    model: GPT, tokens: np.ndarray, eot: int, B: int = 32, dtype: torch.dtype | None = None
) -> tuple[float, int]:
    """Sum of the losses of a shard's tokens, in nats, and how many they are: all but the first, each once.

    Sums over several shards, on however many processes, add up to the whole.
    """
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats, count = 0.0, 0
    with evaluating(model) as device:
        for i in range(0, len(rows), B):
            longest = max(stop - start for start, _, stop in rows[i : i + B])
            x = torch.zeros(len(rows[i : i + B]), longest, dtype=torch.int64)
            y = torch.full_like(x, -100)  # what cross_entropy leaves out
            for row, (start, new, stop) in enumerate(rows[i : i + B]):
                piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
                x[row, : stop - start] = piece[:-1]
                y[row, new - start : stop - start] = piece[1 + new - start :]
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                logits, _ = model(x.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten().to(device), reduction="sum")
            nats, count = nats + loss.item(), count + int((y != -100).sum())
    return nats, count


def evaluate(
    model: GPT, shards: Iterable[np.ndarray], eot: int, B: int = 32, dtype: torch.dtype | None = None
) -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    totals = [total_loss(model, tokens, eot, B, dtype) for tokens in shards]
    if not sum(count for _, count in totals):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return sum(nats for nats, _ in totals) / sum(count for _, count in totals)


@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable[Story], tokenizer) -> float:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    right, asked = 0, 0
    with evaluating(model) as device:
        for story in stories:
            ids = [tokenizer.eot, *tokenizer.encode(story.text)]
            best = model(torch.tensor([ids[:-1]], device=device))[0][0].argmax(-1).tolist()
            ends = np.cumsum(
                [len(tokenizer.decode([i])) for i in ids[1:]]
            )  # where in the text each token ends
            for start, end in story.answers:
                first, last = np.searchsorted(ends, [start + 1, end])
                right += (
                    best[first : last + 1] == ids[first + 1 : last + 2]
                )  # best[j] is a guess at ids[j + 1]
                asked += 1
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return right / asked
