"""Batches from shards: no token lost, none seen twice, resumed at exactly the same token.

Exported from notebooks/03_data.ipynb.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from nanogpt.shards import document_starts, file_sha256, load_manifest, permutation, read_shard


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


def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


def described(path: Path) -> dict:
    """What the manifest beside a shard says of it and of its tokenizer; without one it is GPT-2's, as in llm.c."""
    if not (path.parent / "manifest.json").exists():
        return {"fingerprint": None, "vocab_size": 50257, "eot": 50256}
    manifest = load_manifest(path.parent)
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    for shard in shards:
        if shard["file"] == path.name:
            return {key: manifest[key] for key in ("fingerprint", "vocab_size", "eot")} | shard
    raise ValueError(
        f"{path} is not in the manifest beside it; prepare it again, or keep it in a folder of its own"
    )


class Shards:
    """Shards that belong together: their tokens as memory maps, and the vocabulary of their ids."""

    def __init__(self, paths):
        self.paths = sorted(map(Path, paths))
        if not self.paths:
            raise ValueError("a stream needs at least one shard; got none")
        self.tokens = [read_shard(path) for path in self.paths]
        self.total = sum(map(len, self.tokens))
        self.described = [described(path) for path in self.paths]
        for path, there, said in zip(self.paths, self.tokens, self.described):
            if said.get("tokens", len(there)) != len(there):
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")
            if said["fingerprint"] != self.described[0]["fingerprint"]:
                raise ValueError(f"{path} and {self.paths[0]} were made with different tokenizers")
        self.eot, self.vocab_size = self.described[0]["eot"], self.described[0]["vocab_size"]

    @cached_property
    def sha256(self) -> list[str]:
        """What tells these shards from others, even of equal names: their hashes, read if no manifest has them."""
        return [said.get("sha256") or file_sha256(path) for path, said in zip(self.paths, self.described)]

    def check(self, tokens: np.ndarray, i: int) -> np.ndarray:
        """The tokens, read from shard i. ValueError if one is not in the vocabulary."""
        if tokens.max() >= self.vocab_size:
            what = f"id {tokens.max()}, but its vocabulary has {self.vocab_size}"
            raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")
        return tokens


class Epochs:
    """The tokens of shards, epoch after epoch: each shuffles the shards, and the documents within each.

    Where a token stands follows from (seed, epoch) alone, so that nothing has to be remembered.
    """

    def __init__(self, shards: Shards, seed: int):
        self.shards, self.seed, self._order = shards, seed, {}

    def find(self, place: int) -> tuple[int, int, int]:
        """Where token number `place` stands: epoch, shard, and offset in the shuffled shard."""
        epoch, offset = divmod(place, self.shards.total)
        for i in permutation(len(self.shards.tokens), self.seed, epoch, 0).tolist():
            if offset < len(self.shards.tokens[i]):
                break
            offset -= len(self.shards.tokens[i])
        return epoch, i, offset

    def read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, i, offset = self.find(start)
            tokens, key = self.shards.tokens[i], (self.seed, epoch, i)
            if key not in self._order:  # the one shard's whose turn it is
                self._order = {key: shuffle_documents(tokens, self.shards.eot, self.seed, epoch, i + 1)}
            part = read_shuffled(tokens, *self._order[key], offset, min(offset + n, len(tokens)))
            parts.append(self.shards.check(part, i))
            start, n = start + len(part), n - len(part)
        return np.concatenate(parts)


def check_sizes(B: int, T: int, rank: int, world_size: int) -> None:
    """ValueError unless rank is one of world_size that each take B rows of T tokens."""
    whole = all(isinstance(n, int) for n in (B, T, rank, world_size))
    if not whole or min(B, T) < 1 or not 0 <= rank < world_size:
        given = f"B={B}, T={T}, rank={rank}, world_size={world_size}"
        raise ValueError(f"a stream needs integers, B and T from 1 on, 0 <= rank < world_size; got {given}")


def resumed(state: dict, counts: str, shards: Shards) -> tuple[int, int]:
    """Seed and position of a state. ValueError if it is of other shards or of another kind of stream."""
    if state.get("counts") != counts or state.get("shards") != shards.sha256:
        raise ValueError(
            f"{shards.paths[0].parent} does not hold the shards of this state, or it is no {counts}'s"
        )
    return state["seed"], state["position"]


class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    The stream is epoch after epoch. Each epoch shuffles the shards, and the documents within each shard, by
    (seed, epoch). Step k takes the next world_size * B * T tokens, and rank r the r-th part of them. So every token
    is an input exactly once an epoch; what is left at an epoch's end is completed with the beginning of the next.
    Documents are packed: a row may begin within one, whose facts it then does not see.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards = Shards(shards)
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.epochs, self.device, self.position = (
            Epochs(self.shards, seed),
            device,
            0,
        )  # position: of all ranks
        if self.shards.total <= world_size * B * T:
            step = f"{world_size} ranks × B={B} × T={T} + 1 = {world_size * B * T + 1:,}; lower B or T, or add text"
            raise ValueError(
                f"{self.shards.paths[0].parent}: {self.shards.total:,} tokens, but one step takes {step}"
            )

    @property
    def epoch(self) -> int:
        return self.position // self.shards.total

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = self.epochs.read(self.position + self.rank * n, n + 1)
        self.position += self.world_size * n
        return to_device(tokens[:-1].reshape(self.B, self.T), tokens[1:].reshape(self.B, self.T), self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        return {
            "counts": "tokens",
            "seed": self.epochs.seed,
            "position": self.position,
            "shards": self.shards.sha256,
        }

    def load_state_dict(self, state: dict) -> None:
        self.epochs.seed, self.position = resumed(state, "tokens", self.shards)


class DocumentStream:
    """Batches whose rows each begin with a document, so that a row sees all facts of its first one.

    A row runs on for T tokens into the documents behind, and from its shard's end to its beginning. In each epoch
    every document begins one row, in an order that depends on (seed, epoch); ranks share the rows out in turn. What
    lies more than T tokens into a document is not read. All shards are read once at first, to find the documents.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards = Shards(shards)
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device, self.position = seed, device, 0  # position: rows of all ranks
        begin = [np.flatnonzero(tokens == self.shards.eot) for tokens in self.shards.tokens]
        self.documents = [(i, start) for i, starts in enumerate(begin) for start in starts.tolist()]
        self._order = {}
        if not self.documents:
            raise ValueError(f"{self.shards.paths[0].parent}: no document begins in these shards")

    @property
    def epoch(self) -> int:
        return self.position // len(self.documents)

    def _row(self, n: int) -> np.ndarray:
        epoch, n = divmod(n, len(self.documents))
        if (key := (self.seed, epoch)) not in self._order:
            self._order = {key: permutation(len(self.documents), *key)}
        i, start = self.documents[self._order[key][n]]
        row = self.shards.tokens[i].take(np.arange(start, start + self.T + 1), mode="wrap")
        return self.shards.check(row, i)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        first = self.position + self.rank * self.B
        rows = np.stack([self._row(n) for n in range(first, first + self.B)])  # (B, T + 1)
        self.position += self.world_size * self.B
        return to_device(rows[:, :-1], rows[:, 1:], self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this row, with any B and number of ranks."""
        return {"counts": "rows", "seed": self.seed, "position": self.position, "shards": self.shards.sha256}

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = resumed(state, "rows", self.shards)
