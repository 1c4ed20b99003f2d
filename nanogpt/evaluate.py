"""How good a model is, measured on text that it was not trained on.

Exported from notebooks/07_training.ipynb, grown by notebooks/10_precision.ipynb and
notebooks/18_evaluation.ipynb.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from nanogpt.model import GPT
from nanogpt.precision import autocast
from nanogpt.shards import document_starts


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


def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int, B=32, precision="float32") -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    totals = [total_loss(model, tokens, eot, B, precision) for tokens in shards]
    if not sum(count for _, count in totals):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return sum(nats for nats, _ in totals) / sum(count for _, count in totals)


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


def padded(tokens: np.ndarray, rows: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, (rows, longest), of some windows; y is -100 where nothing is to be predicted."""
    x = torch.zeros(len(rows), max(stop - start for start, _, stop in rows), dtype=torch.int64)
    y = torch.full_like(x, -100)
    for i, (start, new, stop) in enumerate(rows):
        piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
        x[i, : stop - start] = piece[:-1]
        y[i, new - start : stop - start] = piece[1 + new - start :]
    return x, y


@torch.no_grad()
def token_losses(
    model: GPT, tokens: np.ndarray, eot: int, B=32, precision="float32", progress=False
) -> np.ndarray:
    """The loss of each token of a shard but the first, in nats: (len(tokens) - 1,), float64.

    progress: show a bar on a terminal. A million tokens of a large model take minutes on a laptop.
    """
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats = np.zeros(max(0, len(tokens) - 1))
    with evaluating(model) as device:
        for i in tqdm(
            range(0, len(rows), B), unit="batch", desc="losses", disable=None if progress else True
        ):
            some = rows[i : i + B]
            x, y = padded(tokens, some)
            with autocast(precision, device):
                logits, _ = model(x.to(device))
            loss = (
                F.cross_entropy(logits.float().transpose(1, 2), y.to(device), reduction="none").cpu().numpy()
            )
            for (start, new, stop), row in zip(some, loss):
                nats[new:stop] = row[new - start : stop - start]
    return nats


def total_loss(model: GPT, tokens: np.ndarray, eot: int, B=32, precision="float32") -> tuple[float, int]:
    """Sum of the losses of a shard's tokens, in nats, and how many they are: all but the first, each once.

    Sums over several shards, on however many processes, add up to the whole.
    """
    nats = token_losses(model, tokens, eot, B, precision)
    return nats.sum().item(), len(nats)


def by_document(nats: np.ndarray, tokens: np.ndarray, eot: int) -> tuple[np.ndarray, np.ndarray]:
    """Nats and number of predicted tokens of each document. nats: those of tokens[1:]."""
    starts = document_starts(tokens[: len(nats)], eot)
    return np.add.reduceat(nats, starts), np.diff(starts, append=len(nats))


def mean_and_error(nats: np.ndarray, tokens: np.ndarray, eot: int) -> tuple[float, float]:
    """Mean loss per token, and its standard error over documents, nan for one."""
    sums, counts = by_document(nats, tokens, eot)
    mean, n = sums.sum() / counts.sum(), len(sums)
    spread = np.sqrt(((sums - mean * counts) ** 2).sum() * n / (n - 1)) if n > 1 else np.nan
    return mean.item(), (spread / counts.sum()).item()


def token_bytes(tokenizer) -> np.ndarray:
    """The bytes of text that each id stands for, from the vocabulary; 0 for <|endoftext|> and its like."""
    return np.array([len(token) for token in tokenizer.vocab] + [0] * len(tokenizer.special))


def bits_per_byte(nats: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> float:
    """Bits for each byte of the text of tokens[1:], whose losses are nats; sizes: those of `token_bytes`."""
    size = sizes[np.asarray(tokens[1:], dtype=np.int64)].sum()
    if not size:
        raise ValueError("bits per byte need at least one token that stands for text")
    return (nats.sum() / math.log(2) / size).item()


def first_choices(model: torch.nn.Module, ids: np.ndarray, T: int, eot: int) -> list[bool]:
    """Of each id but the first, whether it is what the model found likeliest, given the ids before it."""
    device, right = next(model.parameters()).device, []
    for start, new, stop in windows(ids, T, eot):
        logits, _ = model(torch.from_numpy(ids[None, start:stop]).to(device))
        best = logits[0, new - start :].argmax(-1).cpu().numpy()
        right += (best == ids[new + 1 : stop + 1]).tolist()
    return right
