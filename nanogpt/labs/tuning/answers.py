"""The loss on answers alone: which tokens belong to an answer, in training and in validation.

Exported from notebooks/19c_fine_tuning_runs.ipynb.
"""

from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.data import BatchStream
from nanogpt.evaluate import token_losses
from nanogpt.model import GPT


def in_answers(ids: Tensor, marker: list[int], eot: int) -> Tensor:
    """Which of ids (B, T) belong to an answer, behind a marker up to and with the next eot: booleans (B, T)."""
    T, n = ids.size(1), len(marker)
    found = (ids.unfold(1, n, 1) == torch.tensor(marker, device=ids.device)).all(-1)  # a marker begins here
    begins = F.pad(found, (n, 0))[:, :T]  # the place behind a marker
    ends = F.pad(ids == eot, (1, 0))[:, :T]  # the place behind an eot
    place = torch.arange(1, T + 1, device=ids.device)
    return (begins * place).cummax(1).values > (ends * place).cummax(1).values


def only_answers(stream: BatchStream, marker: list[int]) -> BatchStream:
    """The stream, in whose batches y is -100 outside of answers from now on.

    An answer whose marker is before its row does not count. ValueError if the first million tokens have none.
    """
    first, eot = torch.from_numpy(stream.tokens[0][:1_000_000].astype(np.int64))[None], stream.eot
    if not in_answers(first, marker, eot).any():
        raise ValueError("data.answers_after is nowhere in the training text; write it as it is there")
    all_targets = stream.next_batch

    def next_batch() -> tuple[Tensor, Tensor]:
        x, y = all_targets()
        ids = torch.cat([x[:, :1], y], 1)
        y[~in_answers(ids, marker, eot)[:, 1:]] = -100
        return x, y

    stream.next_batch = next_batch
    return stream


def answer_loss(
    model: GPT, shards: Iterable[np.ndarray], eot: int, precision="float32", *, marker: list[int]
) -> float:
    """Mean loss in nats per token over the answers of the shards. ValueError if they have none."""
    nats = n = 0
    for tokens in shards:
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        counted = in_answers(ids, marker, eot)[0, 1:].numpy()
        nats += token_losses(model, tokens, eot, precision=precision)[counted].sum().item()
        n += counted.sum().item()
    if not n:
        where = "nowhere in the validation text; raise eval.tokens, or set eval.every=0"
        raise ValueError(f"data.answers_after is {where}")
    return nats / n
