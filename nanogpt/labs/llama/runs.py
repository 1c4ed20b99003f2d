"""A run of a Llama: its keys, the shape and the model that it begins with, and what it would take.

Exported from notebooks/24b_llama_runs.ipynb.
"""

import math
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch

from nanogpt import build, optim
from nanogpt.checkpoint import pick_checkpoint
from nanogpt.config import LlamaKeys
from nanogpt.device import pick_device
from nanogpt.labs.llama.model import Llama, LlamaConfig, llama_flops, llama_params
from nanogpt.labs.llama.pretrained import KINDS, config_from_llama
from nanogpt.labs.plan.dryrun import say_time
from nanogpt.labs.roofline.clock import Roofline, measure_roofline, timings
from nanogpt.labs.tuning.lora import add_lora, lora_parameters
from nanogpt.precision import READS, LossScaler
from nanogpt.pretrained import config_from_hf, is_ours, load_pretrained, read_json
from nanogpt.shards import load_manifest
from nanogpt.training import scale_init, train_step
from nanogpt.weights import classes_of, load_model


def new_shape(config, vocab_size: int) -> LlamaConfig:
    """The shape of a new Llama, as the sections `model` and `llama` ask for it."""
    m, own = config.model, config.llama
    size = {name: getattr(m, name) for name in ("block_size", "n_layer", "n_head", "n_embd")}
    size["n_kv_head"] = own.n_kv_head or m.n_head
    size["n_hidden"] = own.n_hidden or 16 * math.ceil(8 * m.n_embd / 3 / 16)
    rest = {"rope_theta": own.rope_theta, "qk_norm": own.qk_norm, "tied": own.tied}
    return LlamaConfig(**size, **rest, head_size=m.n_embd // m.n_head, vocab_size=vocab_size)


def check(config) -> None:
    """ValueError, naming the key, for what the other family has, and for a layout or a shape that no Llama can have."""
    model, own, layout = config.model, config.llama, config.parallel
    if config.family == "gpt":
        for f in fields(LlamaKeys):
            if getattr(own, f.name) != f.default:
                raise ValueError(f"llama.{f.name}={getattr(own, f.name)} needs family=llama, not gpt")
        return
    for name, none in {"dropout": 0.0, "flash": True, "padded_vocab_size": None}.items():
        value = getattr(model, name)
        if value != none:
            raise ValueError(f"model.{name}={value} is GPT-2's, and a Llama has no such thing; leave it out")
    if model.bias:
        raise ValueError("model.bias=true is GPT-2's, and a Llama has no biases; leave it out")
    if layout.shard or layout.tp > 1:
        raise ValueError(
            "parallel.shard and parallel.tp know a GPT's layers only; a Llama runs as copies, parallel.dp"
        )
    new_shape(config, vocab_size=1)  # can there be such a shape?


def refuse_other_llama(config, shape, vocab_size: int) -> None:
    """ValueError if init_from's model is no Llama, not what the configuration asks for, or too small for the data."""
    if not isinstance(shape, LlamaConfig):
        raise ValueError(f"init_from={config.init_from} is a gpt, not a llama; set family=gpt")
    asked = [("model", name) for name in ("n_layer", "n_head", "n_embd")]
    asked += [("llama", name) for name in vars(config.llama)]
    for section, name in asked:
        part, has = getattr(config, section), getattr(shape, name)
        wants, default = getattr(part, name), getattr(type(part), name)
        if wants not in (has, default):  # at its default nobody has asked for it
            given = f"{section}.{name}={wants}"
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out {given}")
    if shape.vocab_size < vocab_size or shape.block_size < config.model.block_size:
        has = f"{shape.vocab_size} tokens and a context of {shape.block_size}"
        needs = f"{vocab_size} and model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has {has}; the run needs {needs}")


def load_given(config, manifest: dict) -> Llama:
    """The model of init_from, in float32. ValueError if the run cannot begin with it."""
    folder = pick_checkpoint(config.init_from)
    build.refuse_other_words(config, folder, manifest)
    model = load_model(folder) if is_ours(folder) else load_pretrained(config.init_from)
    refuse_other_llama(config, model.config, manifest["vocab_size"])
    return model.float()


def build_model(config, manifest: dict) -> Llama:
    """The model before its first step: new, or init_from's, in float32, on the CPU."""
    if config.init_from is not None:
        return load_given(config, manifest)
    shape = new_shape(config, manifest["vocab_size"])
    return scale_init(Llama(shape, torch.Generator().manual_seed(config.run.seed)))


def find_shape(config, vocab_size: int) -> LlamaConfig:
    """The shape of the run's Llama: that of init_from's folder, else the configuration's."""
    if config.init_from is None:
        return new_shape(config, vocab_size)
    file = pick_checkpoint(config.init_from) / "config.json"
    if not file.exists():  # a name on the hub
        return new_shape(config, vocab_size)
    kept = read_json(file)
    if "model_type" in kept:
        read = config_from_llama if kept["model_type"] in KINDS else config_from_hf
        shape = read(kept)
    else:
        kept.pop("sha256")
        kind, _ = classes_of(kept)
        shape = kind(**kept)
    refuse_other_llama(config, shape, vocab_size)
    return shape


def with_adapters(config, model: Llama) -> Llama:
    """The model with the run's adapters, if it has some."""
    lora = config.lora
    return add_lora(model, lora.rank, lora.alpha, lora.targets) if lora.rank else model


def step_seconds(shape: LlamaConfig, config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: its matrix products at the roofline's rate; and measured, if a micro-batch takes under 3 s, else None."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    rate = roof.flops.get(name, roof.flops["float32"])
    forward = sum(llama_flops(shape, T).values()) * config.train.batch_tokens
    least = 3 * forward / rate  # backward takes twice as many FLOPs as forward
    if least > 3 * n:
        return least, None
    model, few = with_adapters(config, Llama(shape)).to(device), min(n, 2)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return least, min(timings(call, device, 3)) * n / few


def dry_run(config) -> None:
    """Print what a run of a Llama would take; nothing is written, and data that are not there are not made."""
    c, device, T = config, pick_device(config.run.device), config.model.block_size
    known = Path(c.data.dir, "manifest.json").exists()
    guess = c.data.tokenizer if isinstance(c.data.tokenizer, int) else 50257
    guess = 1024 if c.data.source == "stories" else guess
    shape = find_shape(c, load_manifest(c.data.dir)["vocab_size"] if known else guess)
    with torch.device("meta"):
        trained = sum(p.numel() for p in lora_parameters(with_adapters(c, Llama(shape))).values())
    beside = f", and {trained:,} in adapters, which alone are trained" if trained else ""
    assumed = "" if known else f", if the vocabulary has {guess:,}"
    P = sum(llama_params(shape).values())
    print(f"parameters  {P:,}{assumed}{beside}")
    kept = 4 * P + (16 * trained or 12 * P)  # all weights; of what is trained also gradients and moments
    what = "of weights, gradients and moments; activations are not counted"
    print(f"memory      at least {kept / 1e9:.3f} GB {what}")
    steps, rows = c.train.max_steps, f"{c.micro_batches} × {c.train.micro_batch} rows of {T}"
    print(f"steps       {steps:,} of {c.train.batch_tokens:,} tokens: {rows}")
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))
