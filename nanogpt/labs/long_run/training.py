"""A run in memory: its parts, all that its steps change, and both as a checkpoint has them.

Exported from notebooks/17d_assembly.ipynb, grown by notebooks/20a_many_processes.ipynb and
notebooks/21d_layouts.ipynb.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from nanogpt.checkpoint import random_states, set_random_states
from nanogpt.config import Config, config_dict
from nanogpt.data import BatchStream
from nanogpt.distributed import Ranks
from nanogpt.model import GPT
from nanogpt.precision import LossScaler
from nanogpt.tokenizer import BPETokenizer

WINDOW = 128


class Window(deque):
    """The last 128 finite values of a run. The list of them is its state."""

    def __init__(self, values: Iterable[float] = ()):
        super().__init__(values, maxlen=WINDOW)

    def z(self, value: float) -> float | None:
        """Take a value in: its distance from the window's mean in standard deviations (llm.c, outlier_detector.h).

        None while the window is not full, and for a value that is not finite, which is not taken in.
        """
        if not math.isfinite(value):
            return None
        self.append(value)
        if len(self) < WINDOW:
            return None
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return (value - mean) / deviation if deviation else 0.0


KEPT = "step", "updates", "bad", "record", "best", "skipped", "seconds", "windows"


@dataclass
class Training:
    """A run in memory. `state_dict` holds all that steps change beside the weights: with both, a run goes on bit for bit."""

    config: Config
    device: torch.device
    tokenizer: BPETokenizer | None
    held: tuple  # the first eval.tokens of the validation shards, and the id between their documents
    model: GPT
    stepper: torch.nn.Module  # what a step calls: the model, or the same compiled
    optimizer: torch.optim.Optimizer
    stream: BatchStream
    scaler: LossScaler | None
    step: int = 0  # batches taken
    updates: int = 0  # made of them: the learning rate follows these
    bad: int = 0  # steps in a row that were not finite
    record: dict | None = None  # the step's line, until it is written
    best: dict = field(default_factory=dict)  # step and val_loss
    skipped: Counter = field(default_factory=Counter)  # steps by why there was no update
    seconds: Counter = field(default_factory=Counter)  # by what they were spent on
    windows: dict = field(default_factory=lambda: {"loss": Window(), "norm": Window()})
    kept: Path | None = None  # the newest checkpoint
    longest: dict = field(default_factory=dict)  # seconds, of what `seconds` sums
    ranks: Ranks = field(default_factory=Ranks)  # one, unless torchrun has started several

    def state_dict(self) -> dict:
        """For a checkpoint, beside the weights."""
        parts = {"optimizer": self.optimizer, "data": self.stream, "scaler": self.scaler}
        state = {name: part and part.state_dict() for name, part in parts.items()}
        state |= {name: getattr(self, name) for name in KEPT} | {"config": config_dict(self.config)}
        state["windows"] = {name: list(window) for name, window in self.windows.items()}
        return state | {"random": random_states(self.device)}

    def load_state_dict(self, state: dict) -> None:
        if state["optimizer"] is not None:  # else its moments came with the parts
            self.optimizer.load_state_dict(state["optimizer"])
        self.stream.load_state_dict(state["data"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name in KEPT:
            setattr(self, name, state[name])
        self.windows = {name: Window(values) for name, values in state["windows"].items()}
        self.skipped, self.seconds = Counter(state["skipped"]), Counter(state["seconds"])
        set_random_states(state["random"], self.device)

    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's seconds."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.seconds[what] += seconds
        self.longest[what] = max(seconds, self.longest.get(what, 0))
