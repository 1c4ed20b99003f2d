"""A clock, which of two programs is faster, and what a device can do at most, as measured.

Exported from notebooks/09_measuring.ipynb, grown by notebooks/10_precision.ipynb.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median, quantiles

import torch

from nanogpt.device import matmul_formats, synchronize
from nanogpt.precision import READS, why_not


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
    """The gain from the ratio of each pair, before / after, with the interval of the sign test.

    ValueError for fewer than six pairs: five coins show no head in 3% of all cases.
    """
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


@cache
def speedup(precision: str, device: torch.device) -> float:
    """The rate of matrix products in a precision, divided by float32's; measured once in a process.

    Well below 1, the format is emulated. The processor's flags do not say so: libraries decide which instructions they use.
    """
    reason = why_not(precision, device)
    if reason:
        raise ValueError(reason)
    n = 4096 if device.type == "cuda" else 256
    name = READS.get(precision, precision)
    best = {"float32": 0.0, name: 0.0}
    for _ in range(3):  # in turn, so that a disturbance meets both
        best = {dtype: max(rate, matmul_flops(device, dtype, n, repeats=3)) for dtype, rate in best.items()}
    return best[name] / best["float32"]


def best_precision(device: torch.device) -> str:
    """bf16 where the device multiplies it faster than float32, else fp16 on a CUDA GPU, else float32."""
    if device.type == "cuda":
        return "fp16" if why_not("bf16", device) else "bf16"
    return "bf16" if device.type == "cpu" and speedup("bf16", device) > 1 else "float32"
