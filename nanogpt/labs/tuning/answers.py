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


class AnswerStream:
    """A stream's batches, in which y is -100 outside of answers; all else is the stream's own.

    A row is the first token of x and then y: a marker may begin with that token. An answer whose marker is before its
    row does not count. ValueError if the first million tokens have none.
    """

    def __init__(self, stream: BatchStream, marker: list[int]):
        self.stream, self.marker = stream, marker
        first = torch.from_numpy(stream.tokens[0][:1_000_000].astype(np.int64))[None]
        if not in_answers(first, marker, stream.eot).any():
            raise ValueError("data.answers_after is nowhere in the training text; write it as it is there")

    def next_batch(self) -> tuple[Tensor, Tensor]:
        x, y = self.stream.next_batch()
        ids = torch.cat([x[:, :1], y], 1)
        y[~in_answers(ids, self.marker, self.stream.eot)[:, 1:]] = -100
        return x, y

    def __getattr__(self, name: str):  # for what is not found here
        return getattr(self.stream, name)

    @property
    def position(self) -> int:
        return self.stream.position

    @position.setter  # a mixture sets it
    def position(self, position: int) -> None:
        self.stream.position = position


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


def marker_of(run) -> list[int]:
    """The tokens that precede an answer. ValueError if the tokenizer of the shards is not known."""
    data = run.config.data
    if run.tokenizer is None:
        raise ValueError(f"data.answers_after needs the tokenizer of {data.dir}; set data.tokenizer")
    return run.tokenizer.encode(data.answers_after)


def held_loss(run) -> float:
    """The validation loss: the mean over the answers."""
    return answer_loss(run.model, *run.held, run.config.train.dtype, marker=marker_of(run))


def without_floor(run) -> dict:
    """For the step's line: the floor of all tokens is none of the answers."""
    return {"floor": None}


def attach(run) -> None:
    """Let only the answers of data.dir count in the run's batches; in other folders of a mixture all tokens do."""
    data, marker = run.config.data, marker_of(run)
    if data.mix:
        own = list(data.mix).index(data.dir)
        run.stream.streams[own] = AnswerStream(run.stream.streams[own], marker)
    else:
        run.stream = AnswerStream(run.stream, marker)
    run.looks.append((run.config.eval.every, without_floor))
