"""Megatron-LM's scripts and logs: its loss scaler, its arguments as our keys, and what a log must say.

Exported from notebooks/22d_published_logs.ipynb.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanogpt.gpt.precision import LossScaler
from nanogpt.run.config import Config, load_config
from nanogpt.run.trainer import learning_rate


@dataclass
class PatientScaler(LossScaler):
    """LossScaler with Megatron-LM's hysteresis: of the overflows since the scale last grew, the first do not halve it.

    hysteresis=1 is LossScaler. Megatron stays at a scale of 1 where this one raises FloatingPointError.
    """

    growth_interval: int = 1000
    hysteresis: int = 2
    overflows: int = 0  # since the scale last grew

    def update(self, finite: bool) -> None:
        self.overflows += not finite
        if not finite and self.overflows < self.hysteresis:
            self.good_steps = 0
            return
        before = self.scale
        super().update(finite)
        if self.scale > before:
            self.overflows = 0


def as_config(a: dict[str, str], base: str = "gpt2-124M") -> Config:
    """The run that a Megatron-LM script asks for, by its arguments without dashes. Data and folders are those of `base`.

    Left out is what we do not have: data/reference/megatron_arguments.csv says why. ValueError where ours cannot do it.
    """
    T, rows = int(a["seq-length"]), int(a["global-batch-size"])
    if a["max-position-embeddings"] != a["seq-length"]:
        said = f"max-position-embeddings={a['max-position-embeddings']} is not seq-length={T}"
        raise ValueError(f"{said}; our position table is as long as a row: make them equal")
    keys = model_keys(a, T) | update_keys(a, rows * T) | run_keys(a, rows * T)
    return load_config(base, [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in keys.items()])


def update_keys(a: dict[str, str], batch_tokens: int) -> dict[str, Any]:
    """Batch, optimizer and schedule."""
    steps, lr = int(a["train-iters"]), float(a["lr"])
    return {
        "train.micro_batch": int(a["micro-batch-size"]),
        "train.batch_tokens": batch_tokens,
        "train.max_steps": steps,
        "train.compile": False,
        "train.skip_spikes": 0.0,
        "train.dtype": next((name for name in ("fp16", "bf16") if name in a), "float32"),
        "optim.lr": lr,
        "optim.betas": [float(a["adam-beta1"]), float(a["adam-beta2"])],
        "optim.weight_decay": float(a["weight-decay"]),
        "optim.clip": float(a["clip-grad"]),
        "optim.schedule": a["lr-decay-style"],
        "optim.minimum": float(a["min-lr"]) / lr,
        "optim.warmup": round(float(a["lr-warmup-fraction"]) * int(a.get("lr-decay-iters", steps))),
    }


def model_keys(a: dict[str, str], T: int) -> dict[str, Any]:
    """The shape, and what Megatron's scripts leave to its defaults: dropout 0.1, 50,257 tokens padded to 128 × tp.

    Ours cannot drop out where layers are cut (chapter 21d): 0 then.
    """
    tp = int(a["tensor-model-parallel-size"])
    names = {"num-layers": "n_layer", "hidden-size": "n_embd", "num-attention-heads": "n_head"}
    return {f"model.{ours}": int(a[theirs]) for theirs, ours in names.items()} | {
        "model.block_size": T,
        "model.flash": a["attention-backend"] in ("auto", "flash", "fused"),
        "model.dropout": float(a.get("hidden-dropout", 0.1)) if tp == 1 else 0.0,
        "model.padded_vocab_size": math.ceil(50257 / (128 * tp)) * 128 * tp,
        "parallel.tp": tp,
    }


def run_keys(a: dict[str, str], batch_tokens: int) -> dict[str, Any]:
    """What is evaluated and kept, and how often."""
    train, val, test = (float(part) for part in a["split"].split(","))
    return {
        "data.val": val / (train + val + test),
        "eval.every": int(a["eval-interval"]),
        "eval.tokens": int(a["eval-iters"]) * batch_tokens,
        "run.log_every": int(a["log-interval"]),
        "run.checkpoint_every": int(a["save-interval"]),
        "run.tensorboard": "tensorboard-dir" in a,
    }


def printed_rate(config: Config, updates: int) -> float:
    """The rate that Megatron's log shows after so many updates: in float32, since it is sent between ranks as such."""
    o = config.optim
    rate = o.lr * updates / o.warmup if updates < o.warmup else learning_rate(config, updates)
    return float(np.float32(rate))


def expected_lines(config: Config, skipped: Iterable[int], scaler: LossScaler) -> Iterator[dict[str, float]]:
    """What Megatron's log must say after each window of run.log_every iterations, of which so many were skipped.

    Within a window the skipped ones are taken to be first. `scaler` is changed.
    """
    every, rows, updates = config.run.log_every, config.train.batch_tokens // config.model.block_size, 0
    for number, bad in enumerate(skipped, 1):
        for i in range(every):
            scaler.update(finite=i >= bad)
        updates += every - bad
        yield {
            "iteration": number * every,
            "of_iterations": config.train.max_steps,
            "consumed_samples": number * every * rows,
            "global_batch": rows,
            "learning_rate": printed_rate(config, updates),
            "loss_scale": scaler.scale,
        }


def half_unit(printed: str) -> float:
    """Half a unit of a printed number's last digit: how far its rounding may have moved it."""
    digits, _, exponent = printed.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def agrees(printed: str, value: float) -> bool:
    """Whether a number, rounded as the printed one was, is the printed one."""
    return abs(float(printed) - value) <= half_unit(printed) * (1 + 1e-9) + 1e-12 * abs(value)
