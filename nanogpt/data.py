"""Batches from shards: no token lost, none seen twice, resumed at exactly the same token.

Exported from notebooks/03_data.ipynb.
"""

from functools import cached_property
from numbers import Integral
from pathlib import Path

import numpy as np
import torch

from nanogpt.shards import described, document_starts, file_sha256, permutation, read_shard  # the same


def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> tuple[np.ndarray, np.ndarray]:
    """An order for a shard's documents: where each ends in it, and by how much it was moved to get there."""
    starts = document_starts(tokens, eot)
    order = permutation(len(starts), *key)
    lengths = np.diff(starts, append=len(tokens))[order]
    ends = np.cumsum(lengths)
    return ends, starts[order] - (ends - lengths)


def read_shuffled(
    tokens: np.ndarray, ends: np.ndarray, moved: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """Tokens start to stop of a shard in the order of `shuffle_documents`, taken from the memory map at once."""
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    counts = np.diff(np.minimum(ends[first : last + 1], stop), prepend=start)  # how many from each document
    return tokens[np.arange(start, stop) + np.repeat(moved[first : last + 1], counts)]


class Shards:
    """Shards that belong together: their tokens as memory maps, and the vocabulary of their ids."""

    def __init__(self, paths):
        self.paths = sorted(map(Path, paths))
        if not self.paths:
            raise ValueError("a stream needs at least one shard; got none")
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.total = sum(map(len, self.tokens))
        self.described = [described(path) for path in self.paths]
        for path, tokens, said in zip(self.paths, self.tokens, self.described):
            if said.get("tokens", len(tokens)) != len(tokens):
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")
            if said["fingerprint"] != self.described[0]["fingerprint"]:
                raise ValueError(f"{path} and {self.paths[0]} were made with different tokenizers")
        self.eot, self.vocab_size = self.described[0]["eot"], self.described[0]["vocab_size"]
        self._order = {}

    @cached_property
    def sha256(self) -> list[str]:
        """What tells these shards from others, even of equal names: their hashes, computed if no manifest has them."""
        return [said.get("sha256") or file_sha256(path) for path, said in zip(self.paths, self.described)]

    def order(self, i: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """How the documents of shard i are shuffled in an epoch. The last order asked for is kept."""
        key = seed, epoch, i
        if key not in self._order:
            self._order = {key: shuffle_documents(self.tokens[i], self.eot, seed, epoch, i + 1)}
        return self._order[key]

    def checked(self, tokens: np.ndarray, i: int) -> np.ndarray:
        """Tokens of shard i. ValueError if one is not in the vocabulary."""
        if tokens.max() < self.vocab_size:
            return tokens
        what = f"id {tokens.max()}, but its vocabulary has {self.vocab_size}"
        raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")


def find(shards: Shards, seed: int, place: int) -> tuple[int, int, int]:
    """Where the stream's token number `place` stands: epoch, shard, and offset in the shuffled shard."""
    epoch, offset = divmod(place, shards.total)
    for i in permutation(len(shards.tokens), seed, epoch, 0).tolist():
        if offset < len(shards.tokens[i]):
            break
        offset -= len(shards.tokens[i])
    return epoch, i, offset


def read(shards: Shards, seed: int, start: int, n: int) -> np.ndarray:
    """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
    parts = []
    while n > 0:
        epoch, i, offset = find(shards, seed, start)
        stop = min(offset + n, len(shards.tokens[i]))
        part = read_shuffled(shards.tokens[i], *shards.order(i, seed, epoch), offset, stop)
        parts.append(shards.checked(part, i))
        start, n = start + len(part), n - len(part)
    return np.concatenate(parts)


def check_sizes(B: int, T: int, rank: int, world_size: int) -> None:
    """ValueError unless rank is one of world_size that each take B rows of T tokens."""
    whole = all(isinstance(n, Integral) for n in (B, T, rank, world_size))
    if not whole or min(B, T) < 1 or not 0 <= rank < world_size:
        given = f"B={B}, T={T}, rank={rank}, world_size={world_size}"
        raise ValueError(f"a stream needs integers, B and T from 1 on, 0 <= rank < world_size; got {given}")


def resumed(state: dict, counts: str, shards: Shards) -> tuple[int, int]:
    """Seed and position from a state. ValueError if it is of other shards or of another kind of stream."""
    if missing := {"counts", "seed", "position", "shards"} - set(state):
        raise ValueError(f"this is no stream's state: it lacks {', '.join(sorted(missing))}")
    if state["counts"] != counts:
        raise ValueError(f"this state counts {state['counts']}, and this stream counts {counts}")
    if state["shards"] != shards.sha256:
        raise ValueError(
            f"{shards.paths[0].parent} does not hold the shards of this state, which their hashes tell"
        )
    return state["seed"], state["position"]


class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    Each epoch shuffles the shards, and the documents within each, by (seed, epoch). Step k takes the next
    world_size * B * T tokens, and rank r the r-th part. So every token is an input exactly once an epoch; what is left
    at an epoch's end is completed with the beginning of the next. A row may begin within a document.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards, self.step = Shards(shards), world_size * B * T
        self.B, self.T, self.rank, self.seed, self.device = B, T, rank, seed, device
        self.position = 0  # tokens that all ranks together have consumed
        if self.shards.total <= self.step:
            needed = f"{world_size} ranks × B={B} × T={T} + 1 = {self.step + 1:,}; lower B or T, or add text"
            raise ValueError(
                f"{self.shards.paths[0].parent}: {self.shards.total:,} tokens, but one step takes {needed}"
            )

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = read(self.shards, self.seed, self.position + self.rank * n, n + 1)
        self.position += self.step
        return to_device(tokens[:-1].reshape(self.B, self.T), tokens[1:].reshape(self.B, self.T), self.device)

    @property
    def epoch(self) -> int:
        return self.position // self.shards.total

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        return {
            "counts": "tokens",
            "seed": self.seed,
            "position": self.position,
            "shards": self.shards.sha256,
        }

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = resumed(state, "tokens", self.shards)


class DocumentStream:
    """Batches whose rows each begin with a document, at `<|endoftext|>`, so that a row sees all facts of its first one.

    A row runs on for T tokens into the documents behind, and from its shard's end to its beginning. In each epoch every
    document begins one row, in an order that depends on (seed, epoch); ranks take turns with B rows. What lies more
    than T tokens into a document is not read. Opening reads all shards once, to find the documents.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards, self.step = Shards(shards), world_size * B
        self.B, self.T, self.rank, self.seed, self.device = B, T, rank, seed, device
        self.position = 0  # rows that all ranks together have consumed
        starts = [np.flatnonzero(tokens == self.shards.eot) for tokens in self.shards.tokens]
        self.starts, self.ends = np.concatenate(starts), np.cumsum(list(map(len, starts)))
        self._order = {}
        if not len(self.starts):
            raise ValueError(f"{self.shards.paths[0].parent}: no document begins in these shards")

    @property
    def epoch(self) -> int:
        return self.position // len(self.starts)

    def row(self, number: int) -> np.ndarray:
        """The T + 1 tokens of the stream's row with this number."""
        epoch, number = divmod(number, len(self.starts))
        if (key := (self.seed, epoch)) not in self._order:
            self._order = {key: permutation(len(self.starts), *key)}
        document = self._order[key][number]
        i, start = int(np.searchsorted(self.ends, document, side="right")), self.starts[document]
        return self.shards.checked(
            self.shards.tokens[i].take(range(start, start + self.T + 1), mode="wrap"), i
        )

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        first = self.position + self.rank * self.B
        rows = np.stack([self.row(number) for number in range(first, first + self.B)])  # (B, T + 1)
        self.position += self.step
        return to_device(rows[:, :-1], rows[:, 1:], self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this row, with any B and number of ranks."""
        return {"counts": "rows", "seed": self.seed, "position": self.position, "shards": self.shards.sha256}

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = resumed(state, "rows", self.shards)
