"""12 · Nice numbers, and the whole ladder (exported from notebooks/12_nice_numbers.ipynb)."""

import importlib.util
import mmap
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from nanogpt.bench import measure
from nanogpt.device import Roofline, copy_bandwidth, matmul_flops

__all__ = [
    "PAGE",
    "fault_seconds",
    "has_cpp_compiler",
    "why_not_kept",
    "obstacles",
    "measure_roofline",
    "peak_mib",
    "device_name",
    "describe",
]


PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = measure(lambda: torch.empty_like(old).fill_(1), cpu, repeats=9)
    again = measure(lambda: old.fill_(1), cpu, repeats=9)
    return max(0.0, fresh.median - again.median) * PAGE / old.numel()


def has_cpp_compiler() -> bool:
    """Whether torch.compile can find a C++ compiler: the one that CXX names, or the platform's usual one."""
    usual = "cl" if os.name == "nt" else "clang++" if sys.platform == "darwin" else "g++"
    return bool(shutil.which((os.environ.get("CXX") or usual).split()[0]))


def why_not_kept(device: torch.device) -> str | None:
    """Why the allocator of this device cannot be told to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, most Linux systems' C library, can be told so"


def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that shall be skipped, each with the reason."""
    kind, reasons = device.type, dict.fromkeys(skip, "left out by --skip")
    capability = torch.cuda.get_device_capability(device) if kind == "cuda" else (0, 0)
    if reason := why_not_kept(device):
        reasons["kept memory"] = reason
    if capability < (8, 0) or torch.version.hip:
        reasons["TF32"] = "TF32 exists on NVIDIA GPUs of compute capability 8.0 and later"
    if kind == "cuda" and capability < (8, 0):
        reasons["bf16"] = "this GPU computes no bfloat16; float16 needs loss scaling (chapter 09)"
    elif roof.flops["bfloat16"] < 0.8 * roof.flops["float32"]:
        reasons["bf16"] = "bfloat16 products are slower than float32 ones here: no hardware for them"
    if kind == "mps":
        reasons["compile"] = "torch.compile is a prototype on mps"
    elif kind == "cuda" and (capability < (7, 0) or not importlib.util.find_spec("triton")):
        reasons["compile"] = (
            "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
        )
    elif kind == "cpu" and not has_cpp_compiler():
        reasons["compile"] = "it needs a C++ compiler, and none is on the path; install one or set CXX"
    if missing := {"bf16", "compile"} & set(reasons):
        reasons.setdefault("bf16 weights", f"it stands on {' and '.join(sorted(missing))}")
    return reasons


def measure_roofline(device: torch.device) -> Roofline:
    """This machine's measured peaks, FLOP/s by dtype (float32, bfloat16, and tf32 on CUDA) and bytes/s."""
    n, mebibytes = (8192, 2048) if device.type == "cuda" else (1024, 256)
    torch.set_float32_matmul_precision("highest")
    flops = {str(t)[6:]: matmul_flops(device, t, n) for t in (torch.float32, torch.bfloat16)}
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        flops["tf32"] = matmul_flops(device, torch.float32, n)
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))


def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def device_name(device: torch.device) -> str:
    """The device as its maker calls it, without the machine's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if sys.platform == "darwin":
        sysctl = ["sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(sysctl, capture_output=True, text=True).stdout.strip()
    else:
        info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        names = [line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")]
        cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{cpu}, mps" if device.type == "mps" else f"{cpu}, threads: {torch.get_num_threads()}"


def describe(device: torch.device) -> dict:
    """Where and when something was measured. load: processes that wanted a core in the last minute."""
    return {
        "device": device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
