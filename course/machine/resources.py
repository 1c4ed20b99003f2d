"""What the machine has: memory, cores, disk, the device, and whether its arithmetic is right."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from course.machine.finding import GREEN, RED, YELLOW, Finding, green_if
from course.machine.setup_env import nvidia_gpu
from course.notebooks.trust import TOLERANCE, disagreement
from course.paths import ROOT

GROUP = Path("/sys/fs/cgroup")  # a container's own control group (Linux, version 2)
# NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1: the first driver, by CUDA's major version.
OLDEST_DRIVER = {"13": 580, "12": 525, "11": 450}


def resources() -> Iterator[Finding]:
    import psutil
    import torch

    total, (limit, share) = psutil.virtual_memory().total, container_limits()
    memory, cores = min(total, limit) / 2**30, os.cpu_count()
    part, remedy = "", "close other programs"
    if limit < total:
        part, remedy = f" of the machine's {total / 2**30:.0f}", "give the container more of it"
    yield green_if(memory >= 4, "memory", f"{memory:.3g} GiB{part}, {cores} cores", remedy)
    # PyTorch starts a thread for each core that it sees, however small this container's share of them is.
    threads, enough = torch.get_num_threads(), max(1, round(min(share, 1e6)))
    if threads > enough:
        text = (
            f"{share:.3g} of the machine's {cores} are this container's, and PyTorch starts {threads} threads"
        )
        yield Finding(YELLOW, "cores", text, f"set OMP_NUM_THREADS={enough}")
    free = shutil.disk_usage(ROOT).free / 2**30
    colour = RED if free < 0.5 else YELLOW
    yield green_if(free >= 3, "disk", f"{free:.0f} GiB free", "free at least 3 GiB", colour)


def container_limits(group: Path = GROUP) -> tuple[float, float]:
    """Bytes of memory and cores' worth of time that this container may use; inf where there is no limit."""
    said = [group / name for name in ("memory.max", "cpu.max")]
    memory, cpu = (path.read_text(encoding="utf-8") if path.exists() else "" for path in said)
    quota = re.fullmatch(r"(\d+) (\d+)\s*", cpu)
    bytes_allowed = float(memory) if memory.strip().isdigit() else float("inf")
    return bytes_allowed, int(quota[1]) / int(quota[2]) if quota else float("inf")


def other_work(seconds: float = 0.5) -> Iterator[Finding]:
    """Whether other programs use the processor now: whatever is timed beside them is slower than it has to be."""
    import psutil

    cores, share = psutil.cpu_count() or 1, psutil.cpu_percent(interval=seconds) / 100
    if share * cores < max(0.5, 0.3 * cores):
        yield Finding(GREEN, "busy", "no: other programs leave the processor free")
        return
    text = f"other programs use {share * cores:.1f} of {cores} cores now"
    yield Finding(YELLOW, "busy", text, "chapters take longer; close them before you time anything")


def device() -> Iterator[Finding]:
    import torch

    import nanogpt.device as module

    try:
        chosen = module.pick_device()
        scale = ""
        if hasattr(module, "pick_scale"):  # chapter 07's: a growing package may not have it yet
            scale = f", scale {module.pick_scale(chosen)}"
    except ValueError as error:
        variable = "NANOGPT_SCALE" if "NANOGPT_SCALE" in str(error) else "NANOGPT_DEVICE"
        yield Finding(RED, "device", str(error), f"unset {variable}")
        return
    yield from unused_gpu(nvidia_gpu(), torch.version.cuda, torch.cuda.is_available())
    yield from shared_memory(torch.cuda.device_count())
    if chosen.type != "cuda":
        text = f"{chosen}{scale}" + ("" if chosen.type == "mps" else "; no GPU is needed")
        yield Finding(GREEN, "device", text)
        return
    card = torch.cuda.get_device_properties(chosen)
    capability = f"compute capability {card.major}.{card.minor}"
    yield Finding(GREEN, "device", f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {capability}{scale}")
    yield Finding(GREEN, "GPU driver", f"{driver()}, PyTorch built for CUDA {torch.version.cuda}")
    from nanogpt.labs.roofline.sheets import peak_of

    if peak_of(card.name) is None:
        text, remedy = "not in chapter 09's table", "MFU is given against the measured peak only"
        yield Finding(YELLOW, "peak", text, remedy)


def shared_memory(gpus: int, folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """NCCL's processes talk through it; gloo's, on CPUs, through sockets."""
    if gpus > 1 and folder.is_dir() and (size := shutil.disk_usage(folder).total) < 2**30:
        text = f"{folder} holds {size / 2**20:.0f} MiB, and NCCL wants more for {gpus} GPUs"
        yield Finding(YELLOW, "shared", text, "start the container with --shm-size=1g")


def device_if_there():
    """None where NANOGPT_DEVICE asks for one that is not there: the check of the device says so, once."""
    from nanogpt.device import pick_device

    try:
        return pick_device()
    except ValueError:
        return None


def unused_gpu(there: bool, cuda: str | None, available: bool) -> Iterator[Finding]:
    """there: NVIDIA's driver; cuda: the version that PyTorch is built for, if any; available: PyTorch can use the GPU."""
    if not there or available:
        return
    if cuda is None:
        remedy = "pip install --force-reinstall -c constraints.txt torch"
        if sys.platform == "win32":  # where the package index has the CPU build alone
            remedy = "take the command for CUDA from pytorch.org, Get started"
        yield Finding(YELLOW, "GPU", "an NVIDIA GPU is here, and this PyTorch is the CPU build", remedy)
        return
    hidden, found, needed = os.environ.get("CUDA_VISIBLE_DEVICES"), driver(), oldest_driver(cuda)
    why = "torch.cuda.is_available() is False"
    remedy = (
        "run nvidia-smi, which must list the GPU (a container needs --gpus all, a new driver a restart); "
        "then python -c 'import torch; torch.zeros(1).cuda()' names the cause"
    )
    if hidden in ("", "-1"):
        why, remedy = f"CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    elif needed and found[0].isdigit() and (major := int(found.split(".")[0])) < needed:
        why = f"CUDA {cuda.split('.')[0]} needs driver {needed} or newer"
        remedy = f"install driver {needed} or newer"
        if major >= OLDEST_DRIVER["12"]:
            remedy += f", or a PyTorch that runs with this one: {for_older_driver()}"
    text = f"an NVIDIA driver ({found}) is here, and PyTorch, built for CUDA {cuda}, cannot use the GPU"
    yield Finding(YELLOW, "GPU", f"{text}: {why}", remedy)


def oldest_driver(cuda: str) -> int | None:
    """The first driver for a version of CUDA, such as "13.0"; None for one that is not in the table."""
    return OLDEST_DRIVER.get(cuda.split(".")[0])


def for_older_driver() -> str:
    """The command that installs this PyTorch built for CUDA 12.9, which drivers from 525 on can run."""
    import torch

    wanted = f"torch=={torch.__version__.split('+')[0]}"
    return f"pip install --force-reinstall {wanted} --index-url https://download.pytorch.org/whl/cu129"


def driver() -> str:
    """The NVIDIA driver's version; AMD's tools have another name, and none is no reason to stop."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "version unknown"


def speed_features() -> Iterator[Finding]:
    """TF32, bf16 and torch.compile: what chapters 10 and 11 will find, by the words of chapters 10 and 14."""
    from nanogpt.labs.ladder.rungs import why_not_compiled
    from nanogpt.labs.roofline.clock import best_precision
    from nanogpt.precision import why_not

    if (chosen := device_if_there()) is None:
        return
    # Nobody can change what a processor is made for: these two lines inform, and are never yellow.
    without = "not on this device; chapter 10 shows recorded runs"
    yield Finding(GREEN, "TF32", without if why_not("tf32", chosen) else "yes")
    words = {
        "bf16": "faster than float32 here",
        "fp16": "not here; chapter 10 takes fp16 with loss scaling instead",
        "float32": "correct, and no faster than float32 here: float32 is the choice",
    }
    yield Finding(GREEN, "bf16", words[best_precision(chosen)])
    reason = why_not_compiled(chosen)
    said = f"torch.compile: {reason}" if reason else "torch.compile finds its compiler"
    yield green_if(not reason, "compile", said, "chapter 11 runs without")


def arithmetic() -> Iterator[Finding]:
    if (chosen := device_if_there()) is None:
        return
    if chosen.type == "cpu":
        yield Finding(GREEN, "arithmetic", "the CPU's, with which other devices are compared")
        return
    error, remedy = disagreement(chosen), "elsewhere set NANOGPT_DEVICE=cpu yourself"
    text = f"a training step on {chosen} differs from the CPU's by {error:.0e}"
    if not error < TOLERANCE:  # also nan
        text += ", so the course stays on the CPU"
    yield green_if(error < TOLERANCE, "arithmetic", text, remedy)
