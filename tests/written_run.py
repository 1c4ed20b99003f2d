"""Runs as files: lines of metrics.jsonl that nobody has trained, for the tests of chapters 17d to 17f."""

import json
import math
from pathlib import Path

import numpy as np


def a_run(n=200, seed=0, **changes):
    """A run of n steps whose loss falls; changes: {"loss_at_150": 9.0}."""
    noise, made = 0.1 * np.random.default_rng(seed).normal(size=n), []
    for step in range(1, n + 1):
        loss = 5 * math.exp(-step / 80) + 1 + noise[step - 1]
        made.append({"step": step, "loss": loss, "norm": 1 + noise[-step], "lr": 1e-3 / step})
        made[-1] |= {"ms": 12.5, "tokens_per_s": 40960.0, "mfu": 0.3125}
    for where, value in changes.items():
        name, step = where.split("_at_")
        made[int(step) - 1][name] = value
    return made


def write(folder: Path, steps: list[dict], tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in steps)
    (folder / "metrics.jsonl").write_text(text + tail, encoding="utf-8")
    return folder
