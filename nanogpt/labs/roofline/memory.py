"""What a training step must keep, as predicted and as measured, and what fresh memory costs.

Exported from notebooks/09b_counting.ipynb, grown by notebooks/12b_fused_attention.ipynb.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from itertools import accumulate

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from nanogpt.labs.roofline.clock import measure
from nanogpt.model import GPTConfig, num_params


def activation_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that autograd saves in the forward pass of a float32 GPT, ids and targets included; exact on the CPU."""
    if config.dropout:
        raise ValueError(f"dropout={config.dropout} saves masks that are not predicted here; set it to 0")
    C, N = config.n_embd, B * T
    rows = 4 * N * config.n_head
    attention = rows if config.flash else rows * T + T * T  # in steps: a row of weights; the mask, in bytes
    layer = 4 * (16 * N * C + 4 * N) + attention
    head = 4 * (2 * N * C + 2 * N + N * config.vocab_rows + 1)
    ids = 8 * (2 * N + T)  # int64: tokens, targets, positions
    return config.n_layer * layer + head + ids


def memory_by_category(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes of a float32 training step with AdamW, by category."""
    tensors = 12 * config.n_layer + 4 if config.bias else 6 * config.n_layer + 3
    P = 4 * num_params(config)
    optimizer = 2 * P + 4 * tensors  # two moments, and for each tensor a count of its steps
    activations = activation_bytes(config, B, T)
    return {"parameters": P, "gradients": P, "optimizer": optimizer, "activations": activations}


def saved_bytes(call: Callable[[], object], exclude: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd saves for the backward pass while `call` runs, each storage once, without those of `exclude`.

    A storage counts in full, even if only a part of it is saved. The saved tensors stay as they are.
    """
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


PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = min(measure(lambda: torch.empty_like(old).fill_(1), cpu, 8).times)
    again = min(measure(lambda: old.fill_(1), cpu, 8).times)
    return max(0.0, fresh - again) * PAGE / old.numel()


def memory_levels(call: Callable[[], object]) -> list[tuple[int, int]]:
    """(ns, bytes above the level at the start) after each allocation and release on the CPU while `call` runs.

    The "[memory]" events are in `prof.profiler.kineto_results.events()`, which PyTorch does not document: each has
    name(), start_ns() and nbytes(), and releases are negative. (`prof.events()` lacks those that belong to an
    operation.) KINETO_LOG_LEVEL=99 in os.environ keeps the profiler quiet.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as prof:
        call()
    changes = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    levels = accumulate(event.nbytes() for event in changes)
    return [(event.start_ns(), level) for event, level in zip(changes, levels)]


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Bytes that `call` needs at most, above what is allocated when it starts. On cuda and cpu; ValueError elsewhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"PyTorch keeps no peak of memory on {device.type}; measure on cuda or cpu")
    return max((level for _, level in memory_levels(call)), default=0)
