"""Leave out an update whose loss or gradient is far above what is usual: the key train.skip_spikes.

Exported from notebooks/17e_long_run.ipynb.
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean

WINDOW = 128


class Window(deque):
    """The last 128 finite values of a run. The list of them is its state."""

    def __init__(self, values: Iterable[float] = ()):
        super().__init__(values, maxlen=WINDOW)

    def z(self, value: float) -> float | None:
        """Take a value in: its distance from the window's mean in standard deviations (llm.c, outlier_detector.h).

        None while the window is not full, and for a value that is not finite, which is not taken in. 0.0 if all are equal.
        """
        if not math.isfinite(value):
            return None
        self.append(value)
        if len(self) < WINDOW:
            return None
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return (value - mean) / deviation if deviation else 0.0


def judge_spike(run, line: dict) -> str | None:
    """Add the z-scores of loss and norm to the line; "spike" if one of them is above train.skip_spikes."""
    last_values = run.notes.setdefault("spikes", {"loss": [], "norm": []})
    for name, values in last_values.items():
        window = Window(values)
        line[f"{name}_z"] = window.z(line[name])
        last_values[name] = list(window)
    highest = max(line["loss_z"] or 0, line["norm_z"] or 0)
    return "spike" if highest > run.config.train.skip_spikes else None


def attach(run) -> None:
    """Judge the run's steps."""
    run.judges.append(judge_spike)
