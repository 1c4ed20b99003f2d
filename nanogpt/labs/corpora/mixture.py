"""Batches whose rows come from several streams, in exact proportions, resumed at the same row.

Exported from notebooks/16c_cleaning.ipynb, grown by notebooks/19c_fine_tuning_runs.ipynb.
"""

from dataclasses import replace
from pathlib import Path

import torch

from nanogpt import build, trainer
from nanogpt.config import Config, hook
from nanogpt.data import BatchStream
from nanogpt.shards import load_manifest, open_shards


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
        """x, y: int64 tensors (B, T) on the streams' device; y[b, t] is the token that follows x[b, t].

        A step takes B × world_size rows, the first B for rank 0, and moves self.position by as many. A source is
        moved by its attribute `position`: the rows before, times its self.steps.
        """
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


def check(config: Config) -> None:
    """ValueError for a mixture without the folder that is validated, or with one folder under two names."""
    data = config.data
    if len({Path(folder).resolve() for folder in data.mix}) < len(data.mix):
        raise ValueError(f"data.mix names a folder twice: {', '.join(data.mix)}")
    if data.dir not in data.mix:
        raise ValueError(f"data.mix gives data.dir={data.dir} no weight; it has {', '.join(data.mix)}")


def rank_of(stream) -> dict[str, int]:
    """rank and world_size of a stream, as MixedStream takes them; empty before chapter 20: a run is one process."""
    return {name: value for name, value in vars(stream).items() if name in ("rank", "world_size")}


def open_stream(config: Config, reader) -> MixedStream:
    """Batches of the folders of data.mix. reader: a device, or several ranks, as the trainer's own open_stream has it.

    build.open_stream(config, reader) is the stream that the mixture takes the place of. Each folder gets a stream of
    its kind, with its T and (given by name) its seed and device. The mixture has its B and its rank_of.
    ValueError for a folder whose shards were made with another tokenizer (a manifest's "fingerprint") than data.dir's.
    """
    data = config.data
    # what the mixture takes the place of
    own = build.open_stream(config, reader)
    tokenizer = load_manifest(data.dir)["fingerprint"]
    # one row at a time of each folder
    streams = []
    for folder in data.mix:
        paths = open_shards(folder, "train", tokenizer)
        streams.append(type(own)(paths, 1, own.T, seed=own.seed, device=own.device))
    return MixedStream(streams, list(data.mix.values()), own.B, **rank_of(own))


def validate_others(run) -> dict:
    """The validation loss of each folder of the mixture but data.dir, on all of its tokens, for the step's line."""
    data, losses = run.config.data, {}
    plain = replace(run.config, data=replace(data, mix=None, answers_after=""))
    for folder in data.mix:
        if folder == data.dir:
            continue
        held = build.hold_out(folder, run.config.eval.tokens), run.held[1]
        loss = hook(plain, trainer.held_loss)(replace(run, config=plain, held=held))
        trainer.say(f"val loss {loss:.4f} of {folder}")
        losses[f"val_loss of {folder}"] = loss
    return losses


def attach(run) -> None:
    """Say what is mixed, and validate on the other folders when the run validates."""
    parts = [f"{weight} of {folder}" for folder, weight in run.config.data.mix.items()]
    trainer.say(f"of each {sum(run.config.data.mix.values())} rows {', '.join(parts)}")
    run.looks.append((run.config.eval.every, validate_others))
