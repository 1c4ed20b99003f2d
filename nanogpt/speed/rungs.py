"""The speed-ups as rungs of a ladder: what each changes in a training step, which a device can do, and one measured alone.

Exported from notebooks/13_nice_numbers.ipynb.
"""

import ctypes
import importlib.util
import multiprocessing
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nanogpt.device import seed_everything
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.precision import LossScaler, MasterAdamW, why_not
from nanogpt.gpt.train import train_step
from nanogpt.speed.roofline import Roofline, measure
from nanogpt.text.data import to_device

RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "fp16": "autocast in float16 with a loss scaler, on a GPU without bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what lies between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 13)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer (chapter 10)",
}
STANDS_ON = {"bf16 weights": ("bf16", "compile")}  # without one of them it is another rung


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


WORDS = {"bf16 weights": "bf16-masters", "bf16": "bf16", "fp16": "fp16", "TF32": "tf32", "float32": "float32"}


def precision_of(on: set[str]) -> str:
    """Chapter 10's word for the precision of a step with the rungs in `on`."""
    return next((word for rung, word in WORDS.items() if rung in on), "float32")


def for_rungs(config: GPTConfig, on: set[str]) -> GPTConfig:
    """The configuration as the rungs in `on` change it: which attention, how many rows."""
    rows = -(-config.vocab_size // 128) * 128 if "nice numbers" in on else None
    return replace(config, flash="flash" in on, padded_vocab_size=rows)


def make_optimizer(model: GPT, on: set[str]) -> torch.optim.Optimizer:
    """AdamW with GPT-3's betas and decay, as the rungs in `on` ask for it."""
    options = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    if "bf16 weights" in on:
        return MasterAdamW(model.parameters(), compiled="compile" in on, **options)
    fused = True if "fused AdamW" in on else None  # None: PyTorch's own choice for the device
    return torch.optim.AdamW(model.parameters(), fused=fused, **options)


def compile_in_place(model: GPT, device: torch.device) -> None:
    """On a GPU the whole model and its loss. Elsewhere block by block, since all blocks share one graph: a twelfth of
    the compile time, and only what spans two blocks stays unfused."""
    if device.type == "cuda":
        model.compile()
        return
    for block in model.transformer.h:
        block.compile()
    model.head = torch.compile(model.head)


def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T): token r occurs with a probability of about 1 / r. A seed gives one sequence."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1
        yield ids[:, :-1], ids[:, 1:]


def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    model = GPT(for_rungs(config, on), seed_everything(0)).to(device)
    optimizer = make_optimizer(model, on)
    if "compile" in on:
        compile_in_place(model, device)
    scaler = LossScaler() if precision_of(on) == "fp16" else None
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = next(batches)
        batch = to_device(x.numpy(), y.numpy(), device)
        return train_step(model, optimizer, [batch], precision_of(on), scaler=scaler)

    return model, step


def why_not_kept(device: torch.device) -> str | None:
    """Why the allocator of this device cannot be told to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, most Linux systems' C library, can be told so"


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile cannot run here; None where it can. Triton, too, calls a C compiler while it runs."""
    cuda = device.type == "cuda"
    if device.type == "mps":
        return "torch.compile is a prototype on mps"
    if cuda and (torch.cuda.get_device_capability(device) < (7, 0) or not importlib.util.find_spec("triton")):
        return "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
    usual = "cl" if os.name == "nt" else "clang++" if sys.platform == "darwin" else "g++"
    usual = "gcc clang" if cuda else usual
    language, variable = ("C", "CC") if cuda else ("C++", "CXX")
    if any(map(shutil.which, (os.environ.get(variable) or usual).split())):
        return None
    return f"it needs a {language} compiler, and none is on the path; install one or set {variable}"


def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that shall be skipped, each with the reason."""
    found = {"kept memory": why_not_kept(device), "TF32": why_not("tf32", device)}
    found |= {"bf16": why_not("bf16", device), "compile": why_not_compiled(device)}
    factor = roof.flops.get("bfloat16", 0) / roof.flops["float32"]
    if not found["bf16"] and factor <= 1:
        found["bf16"] = f"bfloat16 products are emulated here: {factor:.2f}× the rate of float32"
    reasons = {n: why for n, why in found.items() if why} | dict.fromkeys(skip, "left out by --skip")
    if device.type != "cuda":
        reasons.setdefault("fp16", f"float16 is not faster on {device.type}")
    elif "bf16" not in reasons:
        reasons.setdefault("fp16", "bf16 does the same and needs no scaler")
    return take_along(reasons)


def take_along(skipped: dict[str, str]) -> dict[str, str]:
    """The skipped rungs with their reasons; those that stand on one of them are added."""
    for name, below in STANDS_ON.items():
        if missing := [rung for rung in below if rung in skipped]:
            skipped.setdefault(name, f"it stands on {' and '.join(missing)}")
    return skipped


LOSS_STEPS = 6  # they warm up as well: the loss that is compared is that of the sixth step


def run_rung(name: str, config: GPTConfig, B: int, T: int, device: str, skipped, seconds: float) -> dict:
    """Measure one rung in this process: 20 steps after the first ones; fewer, on a CPU, where `seconds` are short."""
    on, place, took, grads = rungs_up_to(name, skipped), torch.device(device), [], []
    if "kept memory" in on:
        keep_memory()
    model, step = make_step(config, on, B, T, place)
    for _ in range(LOSS_STEPS):
        start = time.perf_counter()
        loss = step().item()  # waits for the device
        took.append(time.perf_counter() - start)
        grads.append(model.transformer.h[0].attn.c_attn.weight.grad.float().norm().item())
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)  # compiling needs memory too
    repeats = 20 if place.type == "cuda" else max(3, int(min(20, seconds / took[-1])))
    times = [1e3 * t for t in measure(step, place, repeats, warmup=0).times]
    told = {"name": name, "first_step_s": took[0], "loss": loss, "grad_norm": grads[0]}
    return told | {"times_ms": times, "peak_mib": peak_mib(place)}


def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose getrusage counts the parent that started the process as well
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 2**10
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


TIMEOUT = 1200  # seconds; on a slow machine compiling takes minutes
NO_MEMORY = "out of memory", "can't allocate", "not enough memory", "alloc_failed", "bad_alloc"


def tell(send, call, args: tuple) -> None:
    """What the child does: send (None, result), or the kind of error and its first line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # compilers and libraries warn there
    try:
        send.send((None, call(*args)))
    except Exception as error:
        text = str(error).strip() or repr(error)
        memory = isinstance(error, MemoryError) or any(sign in text.lower() for sign in NO_MEMORY)
        send.send((MemoryError if memory else RuntimeError, text.splitlines()[0]))


def in_process(call, *args, timeout: float = TIMEOUT):
    """call(*args) in a process of its own. MemoryError where it had too little, RuntimeError for any other failure."""
    fork = sys.platform == "linux" and not torch.cuda.is_available()
    context = multiprocessing.get_context("forkserver" if fork else "spawn")
    if fork:  # from a server that has imported torch: 0.1 s in place of 3 s
        context.set_forkserver_preload(["torch._dynamo", "nanogpt.speed.rungs"])
    receive, send = context.Pipe(duplex=False)
    (process := context.Process(target=tell, args=(send, call, args), daemon=True)).start()
    send.close()
    error, told = RuntimeError, f"no answer in {timeout:g} s"
    try:
        if receive.poll(timeout):
            error, told = receive.recv()
            process.join(10)  # one that ends by itself leaves nothing behind
    except EOFError:
        process.join()
        error = MemoryError if process.exitcode == -9 else RuntimeError  # -9: Linux killed it for its memory
        told = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    if error:
        raise error(told)
    return told
