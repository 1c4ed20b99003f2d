"""Which device, how large, and which random numbers: what every chapter asks first.

Exported from notebooks/00_setup.ipynb, grown by notebooks/07_training.ipynb and notebooks/09_measuring.ipynb.
"""

import os

import torch


def device_names() -> list[str]:
    """The names of all devices that PyTorch finds here, the best first."""
    gpus = torch.cuda.device_count()
    names = ["cuda"] if gpus > 0 else []  # without a number: the first one
    for i in range(gpus):
        names.append(f"cuda:{i}")
    if torch.backends.mps.is_available():
        names.append("mps")
    names.append("cpu")
    return names


def pick_device(prefer: str | None = None) -> torch.device:
    """The device to compute on: `prefer`, else the variable NANOGPT_DEVICE, else the best of cuda, mps, cpu.

    Raises ValueError, which names both, if the one that was asked for is not there.
    """
    names = device_names()
    wanted = prefer or os.environ.get("NANOGPT_DEVICE") or names[0]
    if wanted not in names:
        raise ValueError(f"device {wanted!r} is not available; this machine has {', '.join(names)}")
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


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything that was queued; the CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def matmul_formats(device: torch.device) -> list[str]:
    """The number formats in which this device multiplies matrices, in hardware or emulated: at least float32."""
    if device.type != "cuda":
        return ["float32", "bfloat16"]
    if torch.version.hip:
        return ["float32", "bfloat16", "float16"]
    if torch.cuda.get_device_capability(device) < (8, 0):  # before Ampere: CUDA Programming Guide
        return ["float32", "float16"]
    return ["float32", "tf32", "bfloat16", "float16"]
