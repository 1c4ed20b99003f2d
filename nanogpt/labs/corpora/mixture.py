"""Batches whose rows come from several streams, in exact proportions, resumed at the same row.

Exported from notebooks/16c_cleaning.ipynb.
"""

import torch

from nanogpt.data import BatchStream


def cycle_of(weights: list[int]) -> list[int]:
    """The source of each row of a cycle: each source as often as its weight says, spread evenly."""
    total, given, cycle = sum(weights), [0] * len(weights), []
    for n in range(1, total + 1):
        behind = [weight * n - had * total for weight, had in zip(weights, given)]
        source = behind.index(max(behind))
        given[source] += 1
        cycle.append(source)
    return cycle


class MixedStream:
    """Batches whose rows come from several streams in exact proportions; takes BatchStream's place in a loop.

    streams: each with B = 1, one rank, and the same T and vocabulary. weights: whole numbers; of each sum(weights)
    rows, source i gives weights[i]. ValueError where that cannot be.
    """

    def __init__(self, streams: list[BatchStream], weights: list[int], B: int, rank=0, world_size=1):
        if len(weights) != len(streams) or not all(type(w) is int and w > 0 for w in weights):
            raise ValueError(f"weights={weights}: a whole number above 0 for each of {len(streams)} streams")
        if len({(s.T, s.vocab_size, s.eot) for s in streams}) != 1 or any(s.B != 1 for s in streams):
            raise ValueError("the streams of a mixture need B = 1, and the same T and vocabulary")
        if B < 1 or rank not in range(world_size):
            raise ValueError(f"a stream needs B >= 1, 0 <= rank < world_size; got {B, rank, world_size}")
        self.streams, self.weights, self.cycle = streams, list(weights), cycle_of(list(weights))
        self.B, self.T, self.rank, self.world_size = B, streams[0].T, rank, world_size
        # A row moves its source's own position by T tokens, or by one row of a DocumentStream.
        self.steps = [1 if s.state_dict()["counts"] == "rows" else s.T for s in streams]
        self.position = 0  # rows that all ranks together have consumed

    def place(self, row: int) -> tuple[int, int]:
        """The source of a row of the mixture, and how many rows of this source came before it."""
        cycles, at = divmod(row, len(self.cycle))
        source = self.cycle[at]
        return source, cycles * self.weights[source] + self.cycle[:at].count(source)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the streams' device; y[b, t] is the token that follows x[b, t]."""
        rows = []
        for row in range(self.B):
            source, number = self.place(self.position + self.rank * self.B + row)
            self.streams[source].position = number * self.steps[source]
            rows.append(self.streams[source].next_batch())
        self.position += self.world_size * self.B
        return torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows])

    def epochs(self) -> list[float]:
        """How often each source has been read so far."""
        cycles, at = divmod(self.position, len(self.cycle))
        counts = [cycles * w + self.cycle[:at].count(i) for i, w in enumerate(self.weights)]
        return [n * self.steps[i] / self.streams[i].epoch_length for i, n in enumerate(counts)]

    def state_dict(self) -> dict:
        """What resumes the mixture at exactly this row, with any B and number of ranks."""
        here = {"counts": "mixed rows", "position": self.position, "T": self.T, "weights": self.weights}
        return here | {"sources": [stream.state_dict() for stream in self.streams]}

    def load_state_dict(self, state: dict) -> None:
        """Resume. ValueError, and the place unchanged, if the state is another mixture's."""
        for what in ("counts", "T", "weights"):
            if state.get(what) != self.state_dict()[what]:
                raise ValueError(f"this mixture is not what the state was saved for: see its {what!r}")
        for stream, saved in zip(self.streams, state["sources"], strict=True):
            stream.load_state_dict(saved)
        self.position = state["position"]
