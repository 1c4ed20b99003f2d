"""A clock, what a device can do as measured and by its data sheet, and the share of it that a training step uses.

Exported from notebooks/09_measuring.ipynb.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

import torch

from nanogpt.model import GPTConfig, flops_per_token


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything that was queued; the CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def host_times(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call by the host's clock, with an empty queue before and after each."""
    synchronize(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


def event_times(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call on a CUDA device, between events in its queue."""
    with torch.cuda.device(device):  # an event belongs to the current device's stream
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        torch.cuda.synchronize()
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]  # it gives ms


def timings(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call: between CUDA events, elsewhere by the host's clock with an empty queue before and after."""
    if device.type == "cuda":
        return event_times(call, device, repeats)
    return host_times(call, device, repeats)


@dataclass(frozen=True)
class Timing:
    """Seconds of each call in the order they came, their median, and the quartiles around it."""

    median: float
    q1: float
    q3: float
    times: tuple[float, ...]

    def __str__(self) -> str:
        return f"{1e3 * self.median:.3f} ms (middle half {1e3 * self.q1:.3f} ms to {1e3 * self.q3:.3f} ms)"


def measure(call: Callable[[], object], device: torch.device, repeats: int = 20, warmup: int = 3) -> Timing:
    """Time `call` on `device`: CUDA events on a CUDA device, elsewhere the host's clock with synchronize.

    `warmup` calls come first and do not count. Raises ValueError for fewer than two repeats.
    """
    if repeats < 2:
        raise ValueError(f"repeats={repeats} shows no spread; measure at least twice, better 20 times")
    for _ in range(warmup):
        call()
    times = timings(call, device, repeats)
    q1, middle, q3 = quantiles(times, n=4, method="inclusive")
    return Timing(middle, q1, q3, tuple(times))


@dataclass(frozen=True)
class Gain:
    """How many times as fast: the median of paired ratios, and an interval that holds the true median in 95% of cases."""

    ratio: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out 1, so that one of the two is faster."""
        return not self.low <= 1 <= self.high

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× ({self.low:.2f} to {self.high:.2f})"


def gain_of(ratios: Sequence[float]) -> Gain:
    """The gain from the ratio of each pair, before / after, with the interval of the sign test (at least six pairs)."""
    ordered = sorted(ratios)
    n = len(ordered)
    if n < 6:
        raise ValueError(f"{n} pairs cannot give an interval of 95%; time at least 6, better 20")
    left_out = 0
    chance = 1 / 2**n  # that n coins show at most `left_out` heads
    while chance + math.comb(n, left_out + 1) / 2**n <= 0.025:
        left_out += 1
        chance += math.comb(n, left_out) / 2**n
    return Gain(median(ordered), ordered[left_out], ordered[-1 - left_out])


def faster(before: Callable, after: Callable, device: torch.device, pairs: int = 20, warmup: int = 3) -> Gain:
    """How many times as fast `after` is as `before`: both are timed in turn, and each pair is compared by itself."""
    for _ in range(warmup):
        before()
        after()
    calls = (before, after)
    ratios = []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)  # neither is always the first
        times = {i: timings(calls[i], device, 1)[0] for i in order}
        ratios.append(times[0] / times[1])
    return gain_of(ratios)


def matmul_formats(device: torch.device) -> list[str]:
    """The number formats in which this device multiplies matrices, in hardware or emulated: at least float32."""
    if device.type != "cuda":
        return ["float32", "bfloat16"]
    if torch.version.hip:
        return ["float32", "bfloat16", "float16"]
    if torch.cuda.get_device_capability(device) < (8, 0):  # before Ampere: CUDA Programming Guide
        return ["float32", "float16"]
    return ["float32", "tf32", "bfloat16", "float16"]


def matmul_flops(device: torch.device, dtype: str | torch.dtype, n: int, repeats: int = 10) -> float:
    """FLOP/s of an n × n matrix product, the fastest of several. dtype: float32, bfloat16, float16 or "tf32"."""
    name = str(dtype).removeprefix("torch.")
    g = torch.Generator(device).manual_seed(0)
    a, b = torch.randn(2, n, n, device=device, generator=g)
    if name != "tf32":  # TF32 is how a product reads float32, and a global switch
        a, b = a.to(getattr(torch, name)), b.to(getattr(torch, name))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        seconds = min(timings(lambda: a @ b, device, 2))
        if seconds < 0.3:  # a product that takes longer is emulated, and known well enough
            seconds = min(measure(lambda: a @ b, device, repeats).times)
        return 2 * n**3 / seconds
    finally:
        torch.set_float32_matmul_precision(before)


def copy_bandwidth(device: torch.device, mebibytes: int, repeats: int = 10) -> float:
    """Bytes/s of a copy, the fastest of several; each byte counts twice, once read and once written."""
    source = torch.zeros(mebibytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(measure(lambda: target.copy_(source), device, repeats).times)


@dataclass
class Roofline:
    """A machine's limits (Williams et al. 2009, "Roofline", CACM 52(4)): FLOP/s by format name, and bytes/s."""

    device: str
    flops: dict[str, float]
    bandwidth: float

    def seconds(self, flops: float, nbytes: float, dtype: str = "float32") -> float:
        """The time for this many operations and bytes moved: the slower of the two. A cache can beat it."""
        return max(flops / self.flops[dtype], nbytes / self.bandwidth)

    def ridge(self, dtype: str = "float32") -> float:
        """The intensity in FLOP/byte above which arithmetic is the limit."""
        return self.flops[dtype] / self.bandwidth


def measure_roofline(device: torch.device, n: int | None = None, mebibytes: int | None = None) -> Roofline:
    """The rates of an n × n product in each of `matmul_formats`, and of a copy."""
    n = n or (8192 if device.type == "cuda" else 1024)
    mebibytes = mebibytes or (512 if device.type == "cuda" else 256)
    flops = {name: matmul_flops(device, name, n) for name in matmul_formats(device)}
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))


@dataclass(frozen=True)
class Peak:
    """A GPU by its data sheet: dense TFLOP/s by format, GB/s, the source, and the driver's names for it."""

    float32: float
    tf32: float | None
    half: float  # bfloat16 with float32 sums; float16 where there is neither TF32 nor bfloat16
    bandwidth: float
    source: str
    reported: tuple[str, ...] = ()  # without NVIDIA, Tesla and GeForce; none: the table's own name


PEAKS = {  # by NVIDIA's data sheets and white papers
    "B200": Peak(80, 1100, 2250, 8000, "Blackwell technical brief, 2024 (HGX B200)"),
    "H200": Peak(67, 494.7, 989.4, 4800, "H200 data sheet, 2024 (SXM)"),
    "H100": Peak(67, 494.7, 989.4, 3350, "H100 data sheet, 2023 (SXM)", ("H100 80GB HBM3",)),
    "H100-PCIe": Peak(51, 378, 756, 2000, "H100 data sheet, 2023", ("H100 PCIe",)),
    "A100-80GB": Peak(19.5, 156, 312, 2039, "A100 data sheet, 2021", ("A100-SXM4-80GB",)),
    "A100-80GB-PCIe": Peak(19.5, 156, 312, 1935, "A100 data sheet, 2021", ("A100 80GB PCIe",)),
    "A100-40GB": Peak(19.5, 156, 312, 1555, "A100 white paper", ("A100-SXM4-40GB", "A100-PCIE-40GB")),
    "H800": Peak(67, 494.7, 989.4, 3350, "an H100 (SXM) with less NVLink"),
    "A800": Peak(19.5, 156, 312, 2039, "an A100 (80 GB) with less NVLink", ("A800-SXM4-80GB",)),
    "A800-PCIe": Peak(19.5, 156, 312, 1935, "an A100 (80 GB) with less NVLink", ("A800 80GB PCIe",)),
    "L40S": Peak(91.6, 183, 362, 864, "L40S data sheet, 2023"),
    "L4": Peak(30.3, 60, 121, 300, "L4 data sheet, 2023"),
    "A10": Peak(31.2, 62.5, 125, 600, "A10 data sheet, 2021"),
    "V100": Peak(15.7, None, 125, 900, "V100 data sheet, 2020 (SXM2)", ("V100-SXM2-16GB", "V100-SXM2-32GB")),
    "V100-PCIe": Peak(14, None, 112, 900, "V100 data sheet, 2020", ("V100-PCIE-16GB", "V100-PCIE-32GB")),
    "V100S": Peak(16.4, None, 130, 1134, "V100 data sheet, 2020 (V100S PCIe)", ("V100S-PCIE-32GB",)),
    "T4": Peak(8.1, None, 65, 320, "T4 data sheet, 2019"),
    "A6000": Peak(38.7, 77.4, 154.8, 768, "GA102 white paper, 2020", ("RTX A6000",)),
    "RTX 5090": Peak(104.8, 104.8, 209.5, 1792, "RTX Blackwell white paper, 2025"),
    "RTX 4090": Peak(82.6, 82.6, 165.2, 1008, "Ada white paper, 2022"),
    "RTX 4070 SUPER": Peak(35.5, 35.5, 71, 504, "NVIDIA's specifications, 2024: 7,168 cores at 2.475 GHz"),
    "RTX 3090": Peak(35.6, 35.6, 71, 936, "GA102 white paper, 2020"),
}


def peak_of(gpu: str) -> Peak | None:
    """The data sheet of a GPU by its name in PEAKS or torch.cuda.get_device_name()'s; None for any other name."""
    name = " ".join(word for word in gpu.split() if word not in ("NVIDIA", "Tesla", "GeForce"))
    for key, peak in PEAKS.items():
        if name == key or name in peak.reported:
            return peak
    return None


def step_flops(config: GPTConfig, B: int, T: int) -> int:
    """FLOPs of a training step on B × T tokens, forward and backward: the model's matrix products (chapter 05)."""
    return B * T * flops_per_token(config, T)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilization: the share of `peak_flops` (FLOP/s) that the model's own products were, nothing else."""
    if not (seconds > 0 and peak_flops > 0):
        raise ValueError(f"seconds={seconds} and peak_flops={peak_flops} must both be positive")
    return flops / seconds / peak_flops
