"""Batches from shards: no token lost, none seen twice, resumed at exactly the same token.

Exported from notebooks/03_data.ipynb, grown by notebooks/16_real_text.ipynb and notebooks/20_ddp.ipynb.
"""

from pathlib import Path

import numpy as np
import torch

from nanogpt.shards import describe_shards, file_sha256, permutation, read_shard, shuffle_documents


def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


class BatchStream:
    """Batches from an endless stream of tokens, each of which is an input once an epoch."""

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        if min(B, T) < 1 or rank not in range(world_size):
            raise ValueError(f"a stream needs B, T >= 1, 0 <= rank < world_size: {B, T, rank, world_size}")
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.position = 0  # what all ranks together have consumed
        self.paths = sorted(map(Path, shards))
        self.vocab_size, self.eot = describe_shards(self.paths)[:2]
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.epoch_length = sum(map(len, self.tokens))
        self._shuffled = {}

    @property
    def epoch(self) -> int:
        return self.position // self.epoch_length

    def read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            # the shard that has token `start`, and the token's place in it
            epoch, offset = divmod(start, self.epoch_length)
            for i in permutation(len(self.tokens), self.seed, epoch, 0).tolist():
                if offset < len(self.tokens[i]):
                    break
                offset -= len(self.tokens[i])
            # its documents in this epoch's order; the last shard's are kept
            key = (self.seed, epoch, i)
            if key not in self._shuffled:
                self._shuffled = {key: shuffle_documents(self.tokens[i], self.eot, self.seed, epoch, i + 1)}
            part = self._shuffled[key][offset : offset + n]
            parts.append(part)
            start += len(part)
            n -= len(part)
        return np.concatenate(parts)

    def rows(self) -> np.ndarray:  # (B, T + 1): the last token of each is the first of the next
        n = self.B * self.T  # a rank's tokens
        step = n * self.world_size
        if self.epoch_length <= step:
            length = f"{self.epoch_length:,} tokens"
            raise ValueError(f"{length}, but a step takes {step:,} + 1; lower B or T, or add text")
        tokens = self.read(self.position + self.rank * n, n + 1)
        self.position += step
        return np.stack([tokens[at : at + self.T + 1] for at in range(0, n, self.T)])

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        folder = self.paths[0].parent
        if not self.epoch_length:
            raise ValueError(f"{folder}: no document begins in these shards")
        rows = self.rows()
        if rows.max() >= self.vocab_size:
            what = f"id {rows.max()}, but their vocabulary has {self.vocab_size}"
            raise ValueError(f"the shards in {folder} hold {what}; prepare them again")
        return to_device(rows[:, :-1], rows[:, 1:], self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this place, with any B, T and number of ranks."""
        if "shards" not in vars(self):  # their hashes, by the manifest or computed once
            self.shards = describe_shards(self.paths)[2] or [file_sha256(path) for path in self.paths]
        return {"counts": "tokens", "seed": self.seed, "position": self.position, "shards": self.shards}

    def load_state_dict(self, state: dict) -> None:
        folder = self.paths[0].parent
        for what, here in self.state_dict().items():
            if what not in state or (what in ("counts", "shards") and state[what] != here):
                raise ValueError(f"{folder} is not what this state was saved for: see its {what!r}")
        self.seed, self.position = state["seed"], state["position"]


class DocumentStream(BatchStream):
    """Batches whose rows each begin with a document and run on into the next. Each begins one row an epoch."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        starts = [np.flatnonzero(tokens == self.eot) for tokens in self.tokens]
        self.starts = np.concatenate(starts)
        self.ends = np.cumsum([len(places) for places in starts])
        self.epoch_length = len(self.starts)

    def rows(self) -> np.ndarray:
        rows = []
        first = self.position + self.rank * self.B
        for n in range(first, first + self.B):
            # the document that begins row n of the stream
            epoch, number = divmod(n, self.epoch_length)
            if (self.seed, epoch) not in self._shuffled:
                self._shuffled = {(self.seed, epoch): permutation(self.epoch_length, self.seed, epoch)}
            document = self._shuffled[self.seed, epoch][number]
            # its tokens and what follows
            tokens = self.tokens[np.searchsorted(self.ends, document, side="right")]
            if len(tokens) <= self.T:
                length = f"{len(tokens)} tokens"
                raise ValueError(f"{length}, but a row takes {self.T} + 1; lower T, or add text")
            rows.append(tokens.take(self.starts[document] + np.arange(self.T + 1), mode="wrap"))
        self.position += self.world_size * self.B
        return np.stack(rows)

    def state_dict(self) -> dict:
        return BatchStream.state_dict(self) | {"counts": "rows"}  # its position is a number of rows
