"""What a device can do at most: measured rates, and what its data sheet promises.

Exported from notebooks/09_measuring.ipynb.
"""

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


def autocast_dtype(device: torch.device) -> torch.dtype:
    """The 16-bit dtype for `torch.autocast(device.type, dtype=...)`.

    bfloat16 from compute capability 8.0 on; everywhere else what PyTorch itself uses for that device type:
    float16 on older NVIDIA GPUs and on mps, bfloat16 on the CPU. float16 needs loss scaling (chapter 10).
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16
    return torch.get_autocast_dtype(device.type)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything that was queued; the CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def timings(call: Callable[[], object], device: torch.device, budget: float = 1.0) -> list[float]:
    """Seconds of each call, after a warm-up: at least 5 calls, then until `budget` seconds are spent."""
    call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < budget:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


def matmul_flops(device: torch.device, dtype: torch.dtype, n: int) -> float:
    """Measured FLOP/s of an n × n matrix product, fastest of several."""
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    return 2 * n**3 / min(timings(lambda: a @ b, device))


def copy_bandwidth(device: torch.device, mebibytes: int) -> float:
    """Measured bytes/s of a copy, fastest of several; each byte counts twice, once read and once written."""
    source = torch.zeros(mebibytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(timings(lambda: target.copy_(source), device, budget=0.5))


@dataclass
class Roofline:
    """A machine's measured limits (Williams et al. 2009, "Roofline", CACM 52(4)).

    flops: FLOP/s by dtype name; bandwidth: bytes/s.
    """

    device: str
    flops: dict[str, float]
    bandwidth: float

    def attainable(self, intensity: float, dtype: str = "float32") -> float:
        """The FLOP/s that an operation of this intensity (FLOP/byte) can reach."""
        return min(self.flops[dtype], intensity * self.bandwidth)

    def seconds(self, flops: float, nbytes: float, dtype: str = "float32") -> float:
        """The least time for so many operations and bytes moved: the slower of the two."""
        return max(flops / self.flops[dtype], nbytes / self.bandwidth)

    def ridge(self, dtype: str = "float32") -> float:
        """The intensity in FLOP/byte from which on arithmetic is the limit."""
        return self.flops[dtype] / self.bandwidth


@dataclass(frozen=True)
class Peak:
    """A GPU's peak from its data sheet: dense TFLOP/s by dtype, bandwidth in GB/s, and the source."""

    float32: float
    tf32: float | None
    half: float  # bfloat16 with float32 accumulation; float16 where the GPU has no bfloat16
    bandwidth: float
    source: str


# The first name that occurs in torch.cuda.get_device_name() counts, so longer names come first.
PEAKS = {
    "H200": Peak(67, 494.7, 989.4, 4800, "NVIDIA H200 data sheet, 2024"),
    "H100 PCIe": Peak(51, 378, 756, 2000, "NVIDIA H100 data sheet, 2023"),
    "H100": Peak(67, 494.7, 989.4, 3350, "NVIDIA H100 data sheet, 2023 (SXM)"),
    "A100-SXM4-80GB": Peak(19.5, 156, 312, 2039, "NVIDIA A100 data sheet, 2021"),
    "A100 80GB PCIe": Peak(19.5, 156, 312, 1935, "NVIDIA A100 data sheet, 2021"),
    "A100": Peak(19.5, 156, 312, 1555, "NVIDIA A100 white paper, 2020 (40 GB)"),
    "L40S": Peak(91.6, 183, 362, 864, "NVIDIA L40S data sheet, 2023"),
    "L4": Peak(30.3, 60, 121, 300, "NVIDIA L4 data sheet, 2023"),
    "A10": Peak(31.2, 62.5, 125, 600, "NVIDIA A10 data sheet, 2021"),
    "RTX 4090": Peak(82.6, 82.6, 165.2, 1008, "NVIDIA Ada architecture white paper, 2022"),
    "RTX 3090": Peak(35.6, 35.6, 71, 936, "NVIDIA GA102 white paper, 2020"),
    "V100": Peak(15.7, None, 125, 900, "NVIDIA V100 data sheet, 2020 (SXM2, float16)"),
    "T4": Peak(8.1, None, 65, 320, "NVIDIA T4 data sheet, 2019 (float16)"),
}


def peak_of(gpu_name: str) -> Peak | None:
    """The data sheet's peak for a GPU as `torch.cuda.get_device_name()` calls it; None for one not in the table."""
    padded = f" {gpu_name} "
    return next(
        (peak for name, peak in PEAKS.items() if f" {name} " in padded or f" {name}-" in padded), None
    )


PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = min(timings(lambda: torch.empty_like(old).fill_(1), cpu, budget=0.2))
    again = min(timings(lambda: old.fill_(1), cpu, budget=0.2))
    return max(0.0, fresh - again) * PAGE / old.numel()


def measure_roofline(device: torch.device) -> Roofline:
    """This machine's measured peaks, FLOP/s by dtype (float32, bfloat16, and tf32 on CUDA) and bytes/s."""
    n, mebibytes = (8192, 2048) if device.type == "cuda" else (1024, 256)
    torch.set_float32_matmul_precision("highest")
    flops = {str(t)[6:]: matmul_flops(device, t, n) for t in (torch.float32, torch.bfloat16)}
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        flops["tf32"] = matmul_flops(device, torch.float32, n)
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))
