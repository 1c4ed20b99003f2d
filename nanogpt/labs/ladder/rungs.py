"""The speed-ups as rungs of a ladder: which of them a device can do, and what each changes in a training step.

Exported from notebooks/13_nice_numbers.ipynb, grown by notebooks/14_ladder.ipynb and
notebooks/23b_fused_loss.ipynb.
"""

import ctypes
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nanogpt.data import to_device
from nanogpt.device import seed_everything
from nanogpt.labs.kernels.fused_loss import chunked_loss, fused_head, one_pass_loss
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.precision import LossScaler, why_not
from nanogpt.training import train_step


def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T), y one id further than x: id r, from 0 on, has a probability of about 1 / (r + 1).

    A seed gives one sequence, from a generator of its own.
    """
    generator = torch.Generator().manual_seed(seed)

    def shifted(ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids[:, :-1], ids[:, 1:]

    while True:  # keeps no batch, so that a step's memory is its own
        yield shifted((vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1)


RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "fp16": "autocast in float16 with a loss scaler, on a GPU without bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what is between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 13)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer (chapter 10)",
    "fused loss": "the gradient of the logits in their place, in one kernel; on a GPU (chapter 23b)",
    "chunked loss": "never all logits: less memory, at a price in time; in float32 only (chapter 23b)",
}


def rungs_up_to(name: str, skipped=()) -> set[str]:
    """The rungs that are on at rung `name`: all up to it, less the skipped ones."""
    if name not in RUNGS:
        raise ValueError(f"{name!r} is no rung; the rungs are {', '.join(RUNGS)}")
    names = list(RUNGS)
    return set(names[: names.index(name) + 1]) - set(skipped)


def keep_memory() -> None:
    """Tell glibc not to give freed memory back, from now on in this process (man 3 mallopt)."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: no block is too large for the heap
    libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap never shrinks


# without one of them it is another rung
BUILDS_ON = {"bf16 weights": ("bf16", "compile"), "fused loss": ("bf16 weights",)}


def why_not_kept(device: torch.device) -> str | None:
    """Why this device's allocator cannot be set to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, the C library of most Linux systems, has this setting"


def take_along(skipped: dict[str, str]) -> dict[str, str]:
    """The skipped rungs with their reasons; those that build on one of them are added."""
    for name, below in BUILDS_ON.items():
        missing = [rung for rung in below if rung in skipped]
        if missing:
            skipped.setdefault(name, f"it builds on {' and '.join(missing)}")
    return skipped


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile cannot run here; None where it can. Triton, too, calls a C compiler while it runs."""
    cuda = device.type == "cuda"
    if device.type == "mps":
        return "torch.compile is a prototype on mps"
    if cuda and (torch.cuda.get_device_capability(device) < (7, 0) or not importlib.util.find_spec("triton")):
        return "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
    if cuda:
        language, variable, usual = "C", "CC", "gcc clang"
    elif os.name == "nt":
        language, variable, usual = "C++", "CXX", "cl"
    else:
        language, variable, usual = "C++", "CXX", "clang++" if sys.platform == "darwin" else "g++"
    if any(map(shutil.which, (os.environ.get(variable) or usual).split())):
        return None
    return f"it needs a {language} compiler, and none is on the path; install one or set {variable}"


def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that are to be skipped, each with the reason."""
    found = {"kept memory": why_not_kept(device), "TF32": why_not("tf32", device)}
    found |= {"bf16": why_not("bf16", device), "compile": why_not_compiled(device)}
    factor = roof.flops.get("bfloat16", 0) / roof.flops["float32"]
    if not found["bf16"] and factor <= 1:
        found["bf16"] = f"bfloat16 products are emulated here: {factor:.2f}× the rate of float32"
    reasons = {n: why for n, why in found.items() if why} | dict.fromkeys(skip, "left out by --skip")
    if device.type != "cuda":
        reasons.setdefault("fp16", f"the ladder tries float16 on CUDA only, not on {device.type}")
    elif "bf16" not in reasons:
        reasons.setdefault("fp16", "bf16 does the same and needs no scaler")
    if device.type != "cuda":
        reasons.setdefault("fused loss", f"its kernel is for CUDA, not for {device.type}")
    halves = [name for name in ("bf16", "fp16") if name not in reasons]
    if halves:
        reasons.setdefault("chunked loss", f"it is for steps in float32, and {halves[0]} is on")
    return take_along(reasons)


WORDS = {"bf16 weights": "bf16-masters", "bf16": "bf16", "fp16": "fp16", "TF32": "tf32", "float32": "float32"}


def precision_of(on: set[str]) -> str:
    """Chapter 10's word for the precision of a step with the rungs in `on`."""
    for rung, word in WORDS.items():  # the highest rung first
        if rung in on:
            return word
    return "float32"


def for_rungs(config: GPTConfig, on: set[str]) -> GPTConfig:
    """The configuration as the rungs in `on` change it: which attention, how many rows."""
    rows = -(-config.vocab_size // 128) * 128 if "nice numbers" in on else None
    return replace(config, flash="flash" in on, padded_vocab_size=rows)


def compile_in_place(model: GPT, device: torch.device) -> None:
    """On a GPU the whole model and its loss; elsewhere one block, whose code all blocks share, and the head."""
    if device.type == "cuda":
        model.compile()
        return
    for block in model.transformer.h:
        block.compile()
    model.head = torch.compile(model.head)


def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    model, precision = GPT(for_rungs(config, on), seed_everything(0)).to(device), precision_of(on)
    how = {"fused": "fused AdamW" in on or None, "compiled": "compile" in on}
    optimizer = make_optimizer(model, 3e-4, precision, betas=(0.9, 0.95), weight_decay=0.1, **how)
    if "compile" in on:
        compile_in_place(model, device)
    if {"fused loss", "chunked loss"} & on:
        loss = one_pass_loss if "fused loss" in on else chunked_loss
        model.head = partial(fused_head, model, loss=loss)
    scaler = LossScaler() if precision == "fp16" else None
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = next(batches)
        batch = to_device(x.numpy(), y.numpy(), device)
        return train_step(model, optimizer, [batch], precision, scaler=scaler)

    return model, step
