"""What a run would take: parameters, memory, epochs, time.

Exported from notebooks/17c_config.ipynb, grown by notebooks/17d_assembly.ipynb,
notebooks/19_fine_tuning.ipynb, notebooks/19c_fine_tuning_runs.ipynb, notebooks/22_planner.ipynb and
notebooks/22a_time_and_cost.ipynb.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.build import refuse_other_shape
from nanogpt.checkpoint import pick_checkpoint
from nanogpt.config import Config
from nanogpt.device import pick_device
from nanogpt.labs.plan.budget import recompute_flops
from nanogpt.labs.plan.footprint import Step, footprint
from nanogpt.labs.roofline.clock import Roofline, measure_roofline, timings
from nanogpt.labs.roofline.work import predict_step
from nanogpt.labs.tuning.lora import add_lora, lora_parameters
from nanogpt.metrics import span
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.precision import READS, LossScaler
from nanogpt.pretrained import config_from_hf, read_json
from nanogpt.shards import load_manifest
from nanogpt.training import train_step
from nanogpt.weights import classes_of


def adapter_numbers(shape: GPTConfig, config: Config) -> int:
    """How many numbers the adapters of a run have; 0 if it has none. ValueError for adapters that cannot be."""
    lora = config.lora
    if not lora.rank:
        return 0
    with torch.device("meta"):
        model = add_lora(GPT(shape), lora.rank, lora.alpha, lora.targets)
    return sum(p.numel() for p in lora_parameters(model).values())


def frozen(parts: dict[tuple, float], shape: GPTConfig, config: Config) -> dict[tuple, float]:
    """Seconds by part and phase, corrected for frozen matrices: they need no gradient, and no update."""
    numbers, L = adapter_numbers(shape, config), shape.n_layer
    if not numbers:
        return parts
    shares = {("qkv", "backward"): (L - 1) / (2 * L), ("embedding", "backward"): 0.0}
    shares |= {(part, "backward"): 0.5 for part in ("proj", "mlp", "head")}
    shares["optimizer", "update"] = numbers / num_params(shape)
    return {key: seconds * shares.get(key, 1.0) for key, seconds in parts.items()}


def planned(shape: GPTConfig, config: Config) -> Step:
    """A micro-batch of the run as the planner counts it: in its precision, with its section `parallel`."""
    c = config.parallel
    program = f"pytorch-{config.train.dtype}".removesuffix("-float32")
    again = "block" if c.recompute else "none"
    layout = {"dp": c.dp or 1, "shard": 3 if c.shard else 0, "tp": c.tp}
    T = config.model.block_size
    return Step(shape, config.train.micro_batch, T, program, shape.flash, again, **layout)


def least_seconds(shape: GPTConfig, config: Config, roof: Roofline) -> float:
    """What the device's roofline allows at least for a step: its micro-batches with what they recompute, and one update."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    name = name if name in roof.flops else "float32"
    parts = frozen(predict_step(shape, B, T, roof, name, fused=True), shape, config)
    update = parts["optimizer", "update"]
    again = recompute_flops(planned(shape, config)) / roof.flops[name]
    return (sum(parts.values()) - update + again) * n + update


def measured_seconds(shape: GPTConfig, config: Config, device: torch.device) -> float:
    """Of a step, measured with random tokens on at most two of its micro-batches, with blocks recomputed as configured."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    model, few, lora = GPT(shape).to(device), min(n, 2), config.lora
    if lora.rank:
        add_lora(model, lora.rank, lora.alpha, lora.targets)
    if config.parallel.recompute:
        from nanogpt.labs.parallel.fsdp import recompute_blocks  # here: its imports take a second

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
        print(
            "            the roofline was measured too low: on a busy machine, or with slower work than the model's"
        )


def of_adapters(held: dict[str, float], shape: GPTConfig, config: Config) -> dict[str, float]:
    """Bytes by category, of all weights, corrected for a run that trains adapters alone: they have the gradients and averages."""
    numbers, P = adapter_numbers(shape, config), num_params(shape)
    if not numbers:
        return held
    states = [name for name in ("gradients", "optimizer", "moments", "masters") if name in held]
    few = {name: held[name] * numbers / P for name in states}
    return held | few | {"parameters": held["parameters"] * (P + numbers) / P}


def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a GPU keeps at the peak of a step, in the run's precision, by chapter 22's list."""
    held = of_adapters(footprint(planned(shape, config)), shape, config)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in held.items())
    print(f"memory      {sum(held.values()) / 1e9:.3f} GB in {config.train.dtype}: {text}")


def folder_of(init_from: str) -> Path:
    """The folder of the model that a run begins with; of a run, its newest checkpoint, or its best as runs/x/best."""
    return pick_checkpoint(init_from)


def shape_of(config: Config, vocab_size: int) -> GPTConfig:
    """The shape of the run's model, without dropout: that of init_from's folder, else the configuration's."""
    new = replace(config.model.shape(vocab_size), dropout=0.0)
    if config.init_from is None:
        return new
    file = folder_of(config.init_from) / "config.json"
    if not file.exists():  # a name on the hub
        return new
    kept = read_json(file)
    if "model_type" in kept:
        shape = config_from_hf(kept, str(file))
    else:
        kept.pop("sha256")
        kind, _ = classes_of(kept)
        shape = kind(**kept)
    refuse_other_shape(config, shape)
    return replace(shape, dropout=0.0)


def say_epochs(config: Config) -> None:
    """Print how often the run reads each of its folders whose shards are there."""
    c, T = config, config.model.block_size
    weights = c.data.mix or {c.data.dir: 1}
    for folder, weight in weights.items():
        if not Path(folder, "manifest.json").exists():
            continue
        tokens = c.train.max_steps * c.train.batch_tokens * weight / sum(weights.values())
        train = load_manifest(folder)["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        where = f" in {folder}" if c.data.mix else ""
        print(f"epochs      {tokens / n:.2f} of {train[what]:,} {what}{where}")


def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = shape_of(c, manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    assumed = "" if known or shape.vocab_size != guess else f", if the vocabulary has {guess:,}"
    numbers = adapter_numbers(shape, c)
    beside = f", and {numbers:,} in adapters, which alone are trained" if numbers else ""
    print(f"parameters  {num_params(shape):,}{assumed}{beside}")
    say_memory(shape, c)
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    say_epochs(c)
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))
