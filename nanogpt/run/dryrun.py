"""What a run would take: parameters, memory, epochs, time.

Exported from notebooks/17c_config.ipynb, grown by notebooks/22_planner.ipynb.
"""

from functools import partial
from pathlib import Path

import torch

from nanogpt.device import pick_device
from nanogpt.gpt import optim
from nanogpt.gpt.model import GPT, GPTConfig, num_params
from nanogpt.gpt.precision import READS, LossScaler
from nanogpt.gpt.train import train_step
from nanogpt.plan.footprint import Step, footprint
from nanogpt.run.config import Config
from nanogpt.run.metrics import span
from nanogpt.speed.roofline import Roofline, measure_roofline, timings
from nanogpt.speed.work import predict_step
from nanogpt.text.shards import load_manifest


def step_seconds(shape: GPTConfig, config: Config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: at least so many, by the device's roofline; and measured, if a micro-batch takes under 3 s."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    parts = predict_step(shape, B, T, roof, name if name in roof.flops else "float32", fused=True)
    update = parts["optimizer", "update"]
    least = (sum(parts.values()) - update) * n + update
    if least > 3 * n:
        return least, None
    model, ids = GPT(shape).to(device), torch.randint(shape.vocab_size, (B, T + 1), device=device)
    optimizer, batch = optim.make_optimizer(model, 1e-9, config.train.dtype), (ids[:, :-1], ids[:, 1:])
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, [batch] * min(n, 2), config.train.dtype, scaler=scaler)
    return least, min(timings(call, device, 3)) * n / min(n, 2)


def say_time(steps: int, least: float, measured: float | None) -> None:
    """Print what so many steps take: at least, in seconds a step, by the roofline; and as measured, if it was."""
    if measured is None and steps * least > 365 * 86400:
        print("time        years on this machine; `python -m nanogpt plan` says what it takes on others")
        return
    more = f"; {span(steps * measured)} ({1000 * measured:.4g} ms measured)" if measured else ""
    print(f"time        at least {span(steps * least)} ({1000 * least:.4g} ms a step by the roofline){more}")
    if measured and measured < least:
        print("            the model's products run faster here than the one that the roofline measured")


def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a GPU keeps at the peak of a step, in the run's precision, by chapter 22's list."""
    c = config.parallel
    program = f"pytorch-{config.train.dtype}".removesuffix("-float32")
    layout = {"dp": c.dp or 1, "shard": 3 if c.shard else 0, "tp": c.tp}
    step = Step(shape, config.train.micro_batch, shape.block_size, program, shape.flash, **layout)
    held = footprint(step)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in held.items())
    print(f"memory      {sum(held.values()) / 1e9:.3f} GB in {config.train.dtype}: {text}")


def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = GPTConfig(**vars(c.model) | {"dropout": 0.0}, vocab_size=manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    print(f"parameters  {num_params(shape):,}" + ("" if known else f", if the vocabulary has {guess:,}"))
    say_memory(shape, c)
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    if known:
        train = manifest["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        print(f"epochs      {steps * tokens / n:.2f} of {train[what]:,} {what}")
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))
