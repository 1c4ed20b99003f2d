"""How much memory a call needs at its peak, on a GPU by its allocator, on a CPU by the profiler.

Exported from notebooks/12_flash_attention.ipynb.
"""

import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def memory_levels(call: Callable[[], object]) -> list[tuple[int, int]]:
    """(ns, bytes above the level at the start) after each allocation and release on the CPU while `call` runs."""
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
