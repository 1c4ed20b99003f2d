"""Whether a run can fit into the memory at all.

Exported from notebooks/20a_many_processes.ipynb.
"""

import os

import torch

from nanogpt.build import new_shape
from nanogpt.config import Config, hook
from nanogpt.model import num_params


def why_too_large(config: Config, device: torch.device, ranks: int) -> str:
    """Why a run cannot fit into the device's memory, however it is cut over its ranks; "" where it may.

    Counted is what every run keeps: 16 bytes a parameter, the vocabulary's aside, and each block's input in 16 bits.
    """
    m, B = config.model, config.train.micro_batch
    P = num_params(hook(config, new_shape)(config, 1))
    needed = (16 * P + 2 * m.n_layer * B * m.block_size * m.n_embd) // ranks
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    elif hasattr(os, "sysconf"):  # not on Windows
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return ""
    names = ["n_layer", "n_embd", "block_size"] + ["padded_vocab_size"] * (m.padded_vocab_size is not None)
    shape = ", ".join(f"model.{name}={getattr(m, name)}" for name in names)
    needs = f"{shape} and train.micro_batch={B} need at least {needed // 10**9:,} GB a process for {P:,} parameters"
    return f"{needs}; {device} has {there // 10**9:,} GB: lower the largest" if needed > there else ""
