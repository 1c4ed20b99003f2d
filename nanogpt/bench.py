"""Time, FLOPs, bytes and memory of a training step, predicted and measured.

Exported from notebooks/09_measuring.ipynb.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from nanogpt.model import GPTConfig, flops_per_token, num_params
from nanogpt.roofline import Roofline


def step_flops(config: GPTConfig, B: int, T: int) -> int:
    """FLOPs of a training step on B × T tokens, forward and backward: the model's matrix products (chapter 05)."""
    return B * T * flops_per_token(config, T)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilization: which share of `peak_flops` (FLOP/s) the model's own products were.

    Chowdhery et al. 2022 (PaLM), appendix B. Nothing else counts: not the optimizer, not what is computed twice.
    Raises ValueError unless seconds and peak_flops are positive.
    """
    if not (seconds > 0 and peak_flops > 0):
        raise ValueError(f"seconds={seconds} and peak_flops={peak_flops} must both be positive")
    return flops / seconds / peak_flops


PRODUCTS = ("qkv", "attention", "proj", "mlp", "head")  # the parts that consist of matrix products


@dataclass(frozen=True)
class Work:
    """What one part of a step must do in one phase, over all layers."""

    part: str
    phase: str  # forward, backward or update
    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """FLOP/byte, the roofline's horizontal axis."""
        return self.flops / self.nbytes


def linear_work(part: str, N: int, shapes: list[tuple[int, int]], copies: int, bias: bool, width: int):
    """Forward and backward of linear layers, (inputs, outputs) each, on N tokens: three products and a sum."""
    weights = sum(i * o for i, o in shapes)
    x, y = N * sum(i for i, _ in shapes), N * sum(o for _, o in shapes)
    b = bias * sum(o for _, o in shapes)
    forward = x + weights + b + y
    backward = 2 * (x + weights + y) + bias * (y + b)  # gradients of the input, the weight and the bias
    return [
        Work(part, "forward", copies * 2 * N * weights, copies * width * forward),
        Work(part, "backward", copies * 4 * N * weights, copies * width * backward),
    ]


def attention_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """softmax(qkᵀ)v of all layers, without the linear layers. Counts T × T products in full, as chapter 05 does."""
    NC, L = B * T * config.n_embd, config.n_layer
    scores = B * config.n_head * T * T
    if config.flash:  # also one number per row and head; backward gathers dq, dk, dv into one gradient
        rows = B * T * config.n_head
        forward, backward = 4 * NC + rows, 14 * NC + rows
    else:
        forward, backward = 12 * NC + 8 * scores, 20 * NC + 11 * scores
    flops = 4 * NC * T
    return [
        Work("attention", "forward", L * flops, L * width * forward),
        Work("attention", "backward", L * 2 * flops, L * width * backward),
    ]


def elementwise_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """All of a step that is no matrix product, by part and phase."""
    C, L, V, N, P = config.n_embd, config.n_layer, config.vocab_size, B * T, num_params(config)
    NC, TC, NV, VC, norms = N * C, T * C, N * V, V * C, 2 * L + 1
    affine = (1 + config.bias) * C
    table = [  # part, phase, FLOPs, numbers read and written, bytes of each
        ("embedding", "forward", NC, 4 * NC + 3 * TC, 4),
        ("embedding", "backward", NC + VC, 2 * NC + 2 * TC + 4 * VC + config.block_size * C, 4),
        ("layer norm", "forward", norms * 8 * NC, norms * (2 * NC + 2 * N + affine), 4),
        ("layer norm", "backward", norms * 16 * NC, norms * (3 * NC + 2 * N + 2 * affine), 4),
        ("residual", "forward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("residual", "backward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("gelu", "forward", L * 40 * NC, L * 8 * NC, width),
        ("gelu", "backward", L * 80 * NC, L * 12 * NC, width),
        ("cross-entropy", "forward", 4 * NV, 2 * NV, 4),
        ("cross-entropy", "backward", 3 * NV, 4 * NV, 4),
        ("optimizer", "update", 14 * P, 7 * P, 4),
    ]
    return [Work(part, phase, flops, size * numbers) for part, phase, flops, numbers, size in table]


def step_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """All work of an eager training step with AdamW, by part and phase; dropout 0.

    Every operation reads its inputs and writes its outputs once. `width`: bytes of a number in the parts that autocast
    (chapter 10) runs in 16 bits, which are PRODUCTS and gelu; all else has 4. Casts, ids and masks are not counted.
    """
    C, L, N = config.n_embd, config.n_layer, B * T
    linear = partial(linear_work, N=N, bias=config.bias, width=width)
    return [
        *linear("qkv", shapes=[(C, 3 * C)], copies=L),
        *attention_work(config, B, T, width),
        *linear("proj", shapes=[(C, C)], copies=L),
        *linear("mlp", shapes=[(C, 4 * C), (4 * C, C)], copies=L),
        *linear_work("head", N, [(C, config.vocab_size)], 1, False, width),
        *elementwise_work(config, B, T, width),
    ]


def activation_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that autograd saves in the forward pass of a float32 GPT, ids and targets included; exact on the CPU.

    Fused attention saves one number per row and head; the manual one its (T, T) weights and a mask of bytes.
    Raises ValueError for dropout, whose masks are not counted.
    """
    if config.dropout:
        raise ValueError(f"dropout={config.dropout} saves masks that are not predicted here; set it to 0")
    C, N = config.n_embd, B * T
    attention = 4 * N * config.n_head if config.flash else 4 * config.n_head * N * T + T * T
    layer = 4 * (16 * N * C + 4 * N) + attention
    head = 4 * (2 * N * C + 2 * N + N * config.vocab_size + 1)
    ids = 8 * (2 * N + T)  # int64: tokens, targets, positions
    return config.n_layer * layer + head + ids


def memory_by_category(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes of a float32 training step with AdamW, by category."""
    tensors = 12 * config.n_layer + 4 if config.bias else 6 * config.n_layer + 3
    P = 4 * num_params(config)
    return {
        "parameters": P,
        "gradients": P,
        "optimizer": 2 * P + 4 * tensors,  # two moments, and for each tensor a count of its steps
        "activations": activation_bytes(config, B, T),
    }


def saved_bytes(call: Callable[[], object], exclude: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd saves for the backward pass while `call` runs, each storage once, without `exclude`."""
    known = {t.untyped_storage().data_ptr() for t in exclude}
    saved = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage  # holds it, so that no address comes twice
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call()
    return sum(storage.nbytes() for storage in saved.values())


def cpu_trace(call: Callable[[], object]) -> list[dict]:
    """The profiler's trace of one call on the CPU: events with name, ts and dur in µs, args, in order of time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as prof:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        prof.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((event for event in events if "ts" in event), key=lambda event: event["ts"])


def memory_levels(trace: list[dict]) -> list[tuple[float, int]]:
    """(µs, bytes above the level at the start) after each allocation and release on the CPU."""
    changes = [(e["ts"], e["args"]) for e in trace if e["name"] == "[memory]"]
    # the profiler goes on counting from what its last run left behind
    start = changes[0][1]["Total Allocated"] - changes[0][1]["Bytes"] if changes else 0
    return [(ts, args["Total Allocated"] - start) for ts, args in changes]


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Bytes that `call` needs at most, above what is allocated when it starts. On cuda and cpu; ValueError elsewhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"PyTorch keeps no peak of memory on {device.type}; measure on cuda or cpu")
    return max((level for _, level in memory_levels(cpu_trace(call))), default=0)


def predict_step(
    config: GPTConfig, B: int, T: int, roofline: Roofline, dtype: str = "float32"
) -> dict[tuple[str, str], float]:
    """(part, phase) -> the least seconds that the roofline allows, for `step_work`. Its sum predicts the step.

    dtype names the roofline's rate for PRODUCTS; with a 16-bit one their numbers have two bytes.
    """
    width = 2 if dtype in ("bfloat16", "float16") else 4
    return {
        (w.part, w.phase): roofline.seconds(w.flops, w.nbytes, dtype if w.part in PRODUCTS else "float32")
        for w in step_work(config, B, T, width)
    }
