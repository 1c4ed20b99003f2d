"""What a run of a Llama begins with, and what it would take.

Exported from notebooks/24b_llama_runs.ipynb.
"""

from functools import partial
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.checkpoint import chosen
from nanogpt.device import pick_device
from nanogpt.labs.llama.families import from_hub, model_of
from nanogpt.labs.llama.keys import new_shape
from nanogpt.labs.llama.model import Llama, LlamaConfig, llama_flops, llama_params
from nanogpt.labs.llama.pretrained import KINDS, config_from_llama
from nanogpt.labs.long_run.given import given_model, refuse_other_words
from nanogpt.labs.plan.dryrun import say_time
from nanogpt.lora import add_lora, lora_parameters
from nanogpt.model import GPT
from nanogpt.precision import READS, LossScaler
from nanogpt.pretrained import read_json
from nanogpt.roofline import Roofline, measure_roofline, timings
from nanogpt.shards import load_manifest
from nanogpt.training import scale_init, train_step
from nanogpt.weights import load_model


def given_fields(config) -> dict:
    """What the config.json of init_from's folder says; {} where there is none, as for a name on the hub."""
    file = chosen(config.init_from) / "config.json" if config.init_from is not None else None
    return read_json(file) if file and file.exists() else {}


def refuse_other_family(config) -> None:
    """ValueError if init_from's folder holds a model of another family than the configuration's."""
    fields = given_fields(config)
    family = "llama" if "n_kv_head" in fields or fields.get("model_type") in KINDS else "gpt"
    if fields and config.family != family:
        what = f"init_from={config.init_from} is a {family}, not a {config.family}"
        raise ValueError(f"{what}; set family={family}")


def refuse_other_llama(config, shape: LlamaConfig, vocab_size: int) -> None:
    """ValueError if init_from's Llama is not what the configuration asks for, or too small for the data."""
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


def given_of(config, manifest: dict) -> GPT | Llama:
    """The model of init_from, of either family, in float32. ValueError if the run cannot begin with it."""
    refuse_other_family(config)
    if config.family == "gpt":
        return given_model(config, manifest)
    folder, fields = chosen(config.init_from), given_fields(config)
    ours = bool(fields) and "model_type" not in fields
    if ours:
        refuse_other_words(config, folder, manifest)
    model = load_model(folder) if ours else from_hub(config.init_from)
    refuse_other_llama(config, model.config, manifest["vocab_size"])
    return model.float()


def new_of(config, manifest: dict, generator: torch.Generator) -> GPT | Llama:
    """A new model of the run's shape, scaled as chapter 07's."""
    return scale_init(model_of(new_shape(config, manifest["vocab_size"]), generator))


def shape_of_run(config, vocab_size: int) -> LlamaConfig:
    """The shape of the run's Llama: that of init_from's folder, else the configuration's."""
    fields = given_fields(config)
    fields.pop("sha256", None)
    if not fields:
        return new_shape(config, vocab_size)
    shape = config_from_llama(fields) if "model_type" in fields else LlamaConfig(**fields)
    refuse_other_llama(config, shape, vocab_size)
    return shape


def with_adapters(config, model: Llama) -> Llama:
    """The model with the run's adapters, if it has some."""
    lora = config.lora
    return add_lora(model, lora.rank, lora.alpha, lora.targets) if lora.rank else model


def seconds_of_step(shape: LlamaConfig, config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: its matrix products at the roofline's rate; and measured, if a micro-batch takes under 3 s, else None."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    rate = roof.flops.get(name, roof.flops["float32"])
    forward = sum(llama_flops(shape, T).values()) * config.train.batch_tokens
    least = 3 * forward / rate  # backward takes twice as many FLOPs as forward
    if least > 3 * n:
        return least, None
    model, few = with_adapters(config, model_of(shape)).to(device), min(n, 2)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return least, min(timings(call, device, 3)) * n / few


def llama_dry_run(config) -> None:
    """Print what a run of a Llama would take; nothing is written, and data that are not there are not made."""
    c, device, T = config, pick_device(config.run.device), config.model.block_size
    known = Path(c.data.dir, "manifest.json").exists()
    guess = c.data.tokenizer if isinstance(c.data.tokenizer, int) else 50257
    guess = 1024 if c.data.source == "stories" else guess
    shape = shape_of_run(c, load_manifest(c.data.dir)["vocab_size"] if known else guess)
    with torch.device("meta"):
        trained = sum(p.numel() for p in lora_parameters(with_adapters(c, model_of(shape))).values())
    beside = f", and {trained:,} in adapters, which alone are trained" if trained else ""
    assumed = "" if known else f", if the vocabulary has {guess:,}"
    P = sum(llama_params(shape).values())
    print(f"parameters  {P:,}{assumed}{beside}")
    kept = 4 * P + (16 * trained or 12 * P)  # all weights; of what is trained also gradients and moments
    what = "of weights, gradients and moments; activations are not counted"
    print(f"memory      at least {kept / 1e9:.3f} GB {what}")
    steps, rows = c.train.max_steps, f"{c.micro_batches} × {c.train.micro_batch} rows of {T}"
    print(f"steps       {steps:,} of {c.train.batch_tokens:,} tokens: {rows}")
    say_time(steps, *seconds_of_step(shape, c, device, measure_roofline(device)))
