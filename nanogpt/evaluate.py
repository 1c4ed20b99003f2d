"""How good a model is, measured on text that it was not trained on.

Exported from notebooks/07_training.ipynb, grown by notebooks/10_precision.ipynb and
notebooks/18_evaluation.ipynb.
"""

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


def windows(tokens: np.ndarray, T: int, eot: int) -> Iterator[tuple[int, int, int]]:
    """(start, new, stop): tokens start..stop-1 go in, and those after new, up to stop, are to be predicted.

    Documents, which begin at eot, are kept apart. One longer than T is covered by windows of T that overlap by half; the
    last one is moved back to read T as well. Every token but the first of the shard is predicted exactly once.
    """
    starts = document_starts(tokens, eot)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(tokens) - 1]):
        new = start
        while new < end:
            stop = min(start + T, end)
            yield start, new, stop
            start, new = max(start, min(stop - T // 2, end - T)), stop


def padded(tokens: np.ndarray, rows: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, int64 (rows, longest), of some windows; x is filled up with 0, y is -100 where nothing is predicted."""
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
    hidden = None if progress else True  # None: only where there is no terminal
    with evaluating(model) as device:
        for i in tqdm(range(0, len(rows), B), "losses", unit="batch", disable=hidden):
            # windows of about one length
            some = rows[i : i + B]
            x, y = padded(tokens, some)
            with autocast(precision, device):
                logits, _ = model(x.to(device))
            loss = F.cross_entropy(logits.float().transpose(1, 2), y.to(device), reduction="none").cpu()
            # each loss to its token's place
            for (start, new, stop), row in zip(some, loss.numpy()):
                nats[new:stop] = row[new - start : stop - start]
    return nats


def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int, B=32, precision="float32") -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    nats, count = 0.0, 0
    for tokens in shards:
        losses = token_losses(model, tokens, eot, B, precision)
        nats += losses.sum().item()
        count += len(losses)
    if not count:
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return nats / count
