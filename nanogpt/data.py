"""Batches from shards: no token lost, none seen twice, resumed at exactly the same token.

Exported from notebooks/03_data.ipynb.
"""

from pathlib import Path

import numpy as np

from nanogpt.shards import document_starts, load_manifest, permutation, read_shard


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


def to_device(tokens: np.ndarray, B: int, T: int, device):
    """x and y, int64 tensors (B, T) on the device, from B * T + 1 ids: y is x one token later."""
    import torch  # here, because prepare's worker processes import this module, and torch is 200 MB for each

    tokens = torch.from_numpy(tokens.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    else:
        tokens = tokens.to(device)
    # y is a copy, so that whoever masks targets in place leaves the inputs alone.
    return tokens[:-1].view(B, T), tokens[1:].clone().view(B, T)


class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    The stream is epoch after epoch. Each epoch shuffles the shards, and the documents within each shard, by
    (seed, epoch). Step k takes the next world_size * B * T tokens, and rank r the r-th part of them. So every token
    is an input exactly once an epoch; what is left at an epoch's end is completed with the beginning of the next.
    Documents are packed: a row may begin within one, whose facts it then does not see.

    shards: paths. The vocabulary comes from the manifest beside them; without one it is GPT-2's, as in llm.c.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        self.paths = sorted(map(Path, shards))
        if not self.paths or min(B, T) < 1 or not 0 <= rank < world_size:
            given = f"{len(self.paths)} shards, B={B}, T={T}, rank={rank}, world_size={world_size}"
            raise ValueError(f"a stream needs shards, B and T from 1 on, 0 <= rank < world_size; got {given}")
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.shards = [read_shard(path) for path in self.paths]
        self.tokens = sum(map(len, self.shards))
        folder = self.paths[0].parent
        if self.tokens <= world_size * B * T:
            step = f"{world_size} ranks × B={B} × T={T} + 1 = {world_size * B * T + 1:,}; lower B or T, or add text"
            raise ValueError(f"{folder}: {self.tokens:,} tokens, but one step takes {step}")
        gpt2 = {"eot": 50256, "vocab_size": 50257}
        manifest = load_manifest(folder) if (folder / "manifest.json").exists() else gpt2
        self.eot, self.vocab_size = manifest["eot"], manifest["vocab_size"]
        self.position = 0  # tokens that all ranks together have consumed
        self._shuffled = self._order = None  # the shard whose order is at hand, and that order

    def _find(self, place: int) -> tuple[int, int, int]:
        """Where the stream's token number `place` stands: epoch, shard, and offset in the shuffled shard."""
        epoch, offset = divmod(place, self.tokens)
        for i in permutation(len(self.shards), self.seed, epoch, 0).tolist():
            if offset < len(self.shards[i]):
                break
            offset -= len(self.shards[i])
        return epoch, i, offset

    def _read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, i, offset = self._find(start)
            if self._shuffled != (self.seed, epoch, i):
                self._shuffled = self.seed, epoch, i
                self._order = shuffle_documents(self.shards[i], self.eot, self.seed, epoch, i + 1)
            part = read_shuffled(self.shards[i], *self._order, offset, min(offset + n, len(self.shards[i])))
            if part.max() >= self.vocab_size:
                what = f"id {part.max()}, but its vocabulary has {self.vocab_size}"
                raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")
            parts.append(part)
            start, n = start + len(part), n - len(part)
        return np.concatenate(parts)

    @property
    def epoch(self) -> int:
        return self.position // self.tokens

    def next_batch(self):
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = self._read(self.position + self.rank * n, n + 1)
        self.position += self.world_size * n
        return to_device(tokens, self.B, self.T, self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        sizes = {path.name: len(shard) for path, shard in zip(self.paths, self.shards)}
        return {"seed": self.seed, "position": self.position, "shards": sizes}

    def load_state_dict(self, state: dict) -> None:
        if state["shards"] != self.state_dict()["shards"]:
            raise ValueError(f"{self.paths[0].parent} does not hold the shards of this state")
        self.seed, self.position = state["seed"], state["position"]
