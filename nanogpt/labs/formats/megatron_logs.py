"""Megatron-LM's loss scaler, and what its log must say by its arguments.

Exported from notebooks/22d_published_logs.ipynb.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from nanogpt.config import Config
from nanogpt.precision import LossScaler
from nanogpt.trainer import learning_rate


@dataclass
class PatientScaler(LossScaler):
    """LossScaler with Megatron-LM's hysteresis: of the overflows since the scale last grew, the first do not halve it.

    hysteresis=1 is LossScaler. Megatron stays at a scale of 1 where this one raises FloatingPointError.
    """

    growth_interval: int = 1000
    hysteresis: int = 2
    overflows: int = 0  # since the scale last grew

    def update(self, finite: bool) -> None:
        """As LossScaler's, with patience. A forgiven overflow sets good_steps to 0 as well."""
        self.overflows += not finite
        if not finite and self.overflows < self.hysteresis:
            self.good_steps = 0
            return
        before = self.scale
        super().update(finite)
        if self.scale > before:
            self.overflows = 0


def half_unit(printed: str) -> float:
    """Half a unit of a printed number's last digit: how far its rounding may have moved it."""
    digits, _, exponent = printed.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def agrees(printed: str, value: float) -> bool:
    """Whether a number, rounded as the printed one was, is the printed one: half a unit away, plus a billionth."""
    return abs(float(printed) - value) <= half_unit(printed) * (1 + 1e-9) + 1e-12 * abs(value)


def printed_rate(config: Config, updates: int) -> float:
    """The rate that Megatron's log shows after so many updates: in float32, since ranks send it to each other as such.

    It rises in a line from 0, before any update, to optim.lr after optim.warmup; then it is learning_rate's. A float.
    """
    o = config.optim
    rate = o.lr * updates / o.warmup if updates < o.warmup else learning_rate(config, updates)
    return float(np.float32(rate))


def expected_lines(
    config: Config, skipped: Iterable[int], scaler: LossScaler, every: int = 10
) -> Iterator[dict]:
    """What the log must say after each window of `every` iterations, of which so many were skipped: the first ones.

    `scaler` is changed.
    """
    updates = 0
    for bad in skipped:
        for i in range(every):
            scaler.update(finite=i >= bad)
        updates += every - bad
        yield {"learning_rate": printed_rate(config, updates), "loss_scale": scaler.scale}
