"""What a run would take: parameters, memory, epochs, time.

Exported from notebooks/17c_config.ipynb, grown by notebooks/22_planner.ipynb and
notebooks/22a_time_and_cost.ipynb.
"""

from functools import partial
from pathlib import Path

import torch

from nanogpt.device import pick_device
from nanogpt.gpt import optim
from nanogpt.gpt.model import GPT, GPTConfig, num_params
from nanogpt.gpt.precision import READS, LossScaler
from nanogpt.gpt.pretrained import config_from_hf, read_json
from nanogpt.gpt.train import train_step
from nanogpt.plan.budget import recompute_flops
from nanogpt.plan.footprint import Step, footprint
from nanogpt.run.checkpoint import latest
from nanogpt.run.config import Config
from nanogpt.run.metrics import span
from nanogpt.speed.roofline import Roofline, measure_roofline, timings
from nanogpt.speed.work import predict_step
from nanogpt.text.shards import load_manifest


def least_seconds(shape: GPTConfig, config: Config, roof: Roofline) -> float:
    """What the device's roofline allows at least for a step: its micro-batches with what they recompute, and one update."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    name = name if name in roof.flops else "float32"
    parts = predict_step(shape, B, T, roof, name, fused=True)
    update = parts["optimizer", "update"]
    again = recompute_flops(planned(shape, config)) / roof.flops[name]
    return (sum(parts.values()) - update + again) * n + update


def measured_seconds(shape: GPTConfig, config: Config, device: torch.device) -> float:
    """Of a step, measured with random tokens on at most two of its micro-batches, with blocks recomputed as configured."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    model, few = GPT(shape).to(device), min(n, 2)
    if config.parallel.recompute:
        from nanogpt.parallel.fsdp import recompute_blocks  # here: its imports take a second

        recompute_blocks(model)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return min(timings(call, device, 3)) * n / few


def step_seconds(shape: GPTConfig, config: Config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: at least, by the device's roofline; and measured, if a micro-batch takes under 3 s, else None."""
    least = least_seconds(shape, config, roof)
    short = least < 3 * config.micro_batches
    return least, measured_seconds(shape, config, device) if short else None


def say_time(steps: int, least: float, measured: float | None) -> None:
    """Print the time of all steps, from the seconds of one: at least, by the roofline; and measured, unless None."""
    if measured is None and steps * least > 365 * 86400:
        print("time        years on this machine; `python -m nanogpt plan` says what it takes on others")
        return
    more = f"; {span(steps * measured)} ({1000 * measured:.4g} ms measured)" if measured else ""
    print(f"time        at least {span(steps * least)} ({1000 * least:.4g} ms a step by the roofline){more}")
    if measured and measured < least:
        print("            the model's products run faster here than the one that the roofline measured")


def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a GPU keeps at the peak of a step, in the run's precision, by chapter 22's list."""
    held = footprint(planned(shape, config))
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in held.items())
    print(f"memory      {sum(held.values()) / 1e9:.3f} GB in {config.train.dtype}: {text}")


def shape_of(config: Config, vocab_size: int) -> GPTConfig:
    """The shape of the run's model, without dropout: that of init_from's folder, else the configuration's."""
    folder = Path(config.init_from or "")
    file = (latest(folder) or folder) / "config.json"
    if config.init_from is None or not file.exists():  # a new model, or one from the hub
        return GPTConfig(**vars(config.model) | {"dropout": 0.0}, vocab_size=vocab_size)
    kept = read_json(file)
    if "model_type" in kept:
        return config_from_hf(kept, str(file))
    kept.pop("sha256")
    return GPTConfig(**kept | {"dropout": 0.0})


def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = shape_of(c, manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    assumed = "" if known or shape.vocab_size != guess else f", if the vocabulary has {guess:,}"
    print(f"parameters  {num_params(shape):,}{assumed}")
    say_memory(shape, c)
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    if known:
        train = manifest["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        print(f"epochs      {steps * tokens / n:.2f} of {train[what]:,} {what}")
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))


def planned(shape: GPTConfig, config: Config) -> Step:
    """A micro-batch of the run as the planner counts it: in its precision, with its section `parallel`."""
    c = config.parallel
    program = f"pytorch-{config.train.dtype}".removesuffix("-float32")
    again = "block" if c.recompute else "none"
    layout = {"dp": c.dp or 1, "shard": 3 if c.shard else 0, "tp": c.tp}
    T = config.model.block_size
    return Step(shape, config.train.micro_batch, T, program, shape.flash, again, **layout)
