"""Which device, how large, and which random numbers: what every chapter asks first.

Exported from notebooks/00_setup.ipynb.
"""

import os

import torch


def pick_device(prefer: str | None = None) -> torch.device:
    """The device to compute on: `prefer`, else the variable NANOGPT_DEVICE, else the best of cuda, mps, cpu.

    Raises ValueError if the one that was asked for is not there.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    wanted = prefer or os.environ.get("NANOGPT_DEVICE")
    if not wanted:
        return torch.device(next(name for name, there in present.items() if there))
    if not present.get(wanted.split(":")[0], False):
        there = ", ".join(name for name, here in present.items() if here)
        raise ValueError(f"device {wanted!r} is not available; this machine has {there}")
    return torch.device(wanted)


SCALES = ("ci", "laptop", "gpu")


def pick_scale(device: torch.device) -> str:
    """The size of the experiments: NANOGPT_SCALE if set, else `gpu` on a CUDA device and `laptop` elsewhere."""
    scale = os.environ.get("NANOGPT_SCALE") or ("gpu" if device.type == "cuda" else "laptop")
    if scale not in SCALES:
        raise ValueError(f"NANOGPT_SCALE is {scale!r}; it must be one of {', '.join(SCALES)}")
    return scale


def seed_everything(seed: int) -> torch.Generator:
    """Seed PyTorch's global generators, and return a CPU generator of its own with the same seed.

    Pass the returned one to what draws random numbers: then no other cell can disturb it. Both begin with the same
    numbers, so two things that must be independent are drawn from one of them, not one from each.
    """
    torch.manual_seed(seed)  # also seeds every CUDA and MPS device
    return torch.Generator().manual_seed(seed)
