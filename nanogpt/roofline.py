"""A clock, what a device can do as measured and by its data sheet, and what a training step must compute, move and keep.

Exported from notebooks/09_measuring.ipynb, grown by notebooks/09b_counting.ipynb and
notebooks/12b_fused_attention.ipynb.
"""

import math
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median, quantiles
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from nanogpt.model import GPTConfig, flops_per_token, num_params


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
    ordered, n = sorted(ratios), len(ratios)
    if n < 6:
        raise ValueError(f"{n} pairs cannot give an interval of 95%; time at least 6, better 20")
    left_out, chance = 0, 1 / 2**n  # the chance that n coins show at most `left_out` heads
    while chance + math.comb(n, left_out + 1) / 2**n <= 0.025:
        left_out += 1
        chance += math.comb(n, left_out) / 2**n
    return Gain(median(ordered), ordered[left_out], ordered[-1 - left_out])


def faster(before: Callable, after: Callable, device: torch.device, pairs: int = 20, warmup: int = 3) -> Gain:
    """How many times as fast `after` is as `before`: both are timed in turn, and each pair is compared by itself."""
    for _ in range(warmup):
        before()
        after()
    calls, ratios = (before, after), []
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

    def attainable(self, intensity: float, dtype: str = "float32") -> float:
        """The FLOP/s that an operation of this intensity (FLOP/byte) can reach."""
        return min(self.flops[dtype], intensity * self.bandwidth)

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


@dataclass(frozen=True)
class Work:
    """What one part of a step must do in one phase, over all layers."""

    part: str
    phase: str  # forward, backward or update
    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """FLOP/byte, the roofline's horizontal axis."""
        return self.flops / self.nbytes


def linear_work(part: str, N: int, shapes: list[tuple[int, int]], copies: int, bias: bool, width: int):
    """Forward and backward of linear layers, (inputs, outputs) each, on N tokens. width: bytes of a number."""
    products = forward = backward = 0
    for inputs, outputs in shapes:
        x, w, y = N * inputs, inputs * outputs, N * outputs  # numbers in the tokens, the matrix, the result
        products += 2 * N * w
        forward += x + w + y
        backward += 2 * (x + w + y)
        if bias:
            forward += outputs
            backward += y + outputs
    return [
        Work(part, "forward", copies * products, copies * width * forward),
        Work(part, "backward", copies * 2 * products, copies * width * backward),
    ]


def attention_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """softmax(qkᵀ)v of all layers, without the linear layers. Counts T × T products in full, as chapter 05 does."""
    NC, L = B * T * config.n_embd, config.n_layer
    if config.flash:  # backward gathers dq, dk, dv into one gradient
        rows = B * T * config.n_head
        forward, backward = 4 * NC + rows, 14 * NC + rows
    else:
        scores = B * config.n_head * T * T
        forward, backward = 12 * NC + 8 * scores, 20 * NC + 11 * scores
    flops = 4 * NC * T
    return [
        Work("attention", "forward", L * flops, L * width * forward),
        Work("attention", "backward", L * 2 * flops, L * width * backward),
    ]


def elementwise_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All of a step that is no matrix product, by part and phase. An exp, tanh or root counts as one operation."""
    C, L, V, N, P = config.n_embd, config.n_layer, config.vocab_rows, B * T, num_params(config)
    NC, TC, NV, VC, norms = N * C, T * C, N * V, V * C, 2 * L + 1
    affine = (1 + config.bias) * C
    look_up = 4 * NC + 3 * TC  # read and write both embeddings' rows; read both, write their sum
    tables = 2 * NC + 2 * TC + VC + config.block_size * C + 3 * VC  # the last: wte's gradient plus the head's
    table = [  # part, phase, FLOPs, numbers read and written, bytes of each
        ("embedding", "forward", NC, look_up, 4),
        ("embedding", "backward", NC + VC, tables, 4),
        ("layer norm", "forward", norms * 7 * NC, norms * (2 * NC + 2 * N + affine), 4),
        ("layer norm", "backward", norms * 13 * NC, norms * (3 * NC + 2 * N + 2 * affine), 4),
        ("residual", "forward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("residual", "backward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("gelu", "forward", 9 * L * 4 * NC, L * 2 * 4 * NC, width),
        ("gelu", "backward", 17 * L * 4 * NC, L * 3 * 4 * NC, width),
        ("cross-entropy", "forward", 5 * NV, 2 * NV, 4),
        ("cross-entropy", "backward", 3 * NV, 4 * NV, 4),
        ("optimizer", "update", 14 * P, (7 if fused else 20) * P, 4),
    ]
    return [Work(part, phase, flops, size * numbers) for part, phase, flops, numbers, size in table]


PRODUCTS = ("qkv", "attention", "proj", "mlp", "head")  # the parts that consist of matrix products


def step_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All work of an eager training step with AdamW, in pieces or fused, by part and phase; dropout 0.

    Every operation reads its inputs and writes its outputs once. `width`: bytes of a number in the parts that autocast
    (chapter 10) runs in 16 bits, which are PRODUCTS and gelu; all else has 4. Casts, ids and masks are not counted.
    """
    C, L, N, bias = config.n_embd, config.n_layer, B * T, config.bias
    return [
        *linear_work("qkv", N, [(C, 3 * C)], L, bias, width),
        *attention_work(config, B, T, width),
        *linear_work("proj", N, [(C, C)], L, bias, width),
        *linear_work("mlp", N, [(C, 4 * C), (4 * C, C)], L, bias, width),
        *linear_work("head", N, [(C, config.vocab_rows)], 1, False, width),
        *elementwise_work(config, B, T, width, fused),
    ]


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
    """Bytes that autograd saves for the backward pass while `call` runs, each storage once, without `exclude`."""
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


def predict_step(
    config: GPTConfig, B: int, T: int, roofline, dtype: str = "float32", fused: bool = False
) -> dict[tuple[str, str], float]:
    """(part, phase) -> seconds that a nanogpt.roofline.Roofline allows for `step_work`. Its sum predicts the step.

    dtype names the roofline's rate for PRODUCTS; with a 16-bit one their numbers have two bytes.
    """
    width = 2 if dtype in ("bfloat16", "float16") else 4
    return {
        (w.part, w.phase): roofline.seconds(w.flops, w.nbytes, dtype if w.part in PRODUCTS else "float32")
        for w in step_work(config, B, T, width, fused)
    }


def step_kernels(config: GPTConfig, N: int, device, dtype: torch.dtype) -> dict[str, tuple[Callable, int]]:
    """{part: (a call that does such work on N tokens, its FLOPs if it is a product, else its bytes)}."""
    C, V, kernels = config.n_embd, config.vocab_rows, {}
    g = torch.Generator(device).manual_seed(0)

    def draw(*size):
        return torch.randn(size, device=device, generator=g)

    for part, i, o in (("qkv", C, 3 * C), ("proj", C, C), ("mlp", C, 4 * C), ("head", C, V)):
        x, w, dy = draw(N, i).to(dtype), draw(o, i).to(dtype), draw(N, o).to(dtype)
        kernels[part] = (lambda x=x, w=w, dy=dy: (F.linear(x, w), dy @ w, dy.T @ x)), 6 * N * i * o
    x, other, wide, logits, table = draw(N, C), draw(N, C), draw(N, 4 * C), draw(N, V), draw(V, C)
    kernels["layer norm"] = (lambda: F.layer_norm(x, (C,))), 4 * 2 * N * C
    kernels["residual"] = (lambda: x + other), 4 * 3 * N * C
    kernels["gelu"] = (lambda: F.gelu(wide, approximate="tanh")), 4 * 2 * N * 4 * C
    kernels["cross-entropy"] = (lambda: logits.log_softmax(-1)), 4 * 2 * N * V
    kernels["optimizer"] = (lambda: table.mul_(0.999)), 4 * 2 * V * C
    return kernels


class Fractions(NamedTuple):
    """What the kernels of a step reach: a share of a roofline's FLOP/s, and a share of its bytes/s."""

    flops: float
    bandwidth: float

    def of(self, roofline: Roofline) -> Roofline:
        """The roofline with both of its limits times their fractions."""
        flops = {name: self.flops * rate for name, rate in roofline.flops.items()}
        return Roofline(roofline.device, flops, self.bandwidth * roofline.bandwidth)


def measure_fractions(
    config: GPTConfig, B: int, T: int, roofline: Roofline, device, dtype: str = "float32", repeats: int = 10
) -> Fractions:
    """The fractions that the kernels of this step reach on `device`. dtype: what products read, as in the roofline."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    kernels = step_kernels(config, B * T, device, getattr(torch, dtype.replace("tf32", "float32")))
    rates = {part: amount / measure(call, device, repeats).median for part, (call, amount) in kernels.items()}
    torch.set_float32_matmul_precision(before)
    amounts, seconds = Counter(), Counter()
    for w in step_work(config, B, T):
        if w.part in rates:
            kind, amount = ("flops", w.flops) if w.part in PRODUCTS else ("bytes", w.nbytes)
            amounts[kind] += amount
            seconds[kind] += amount / rates[w.part]
    flops, nbytes = (amounts[kind] / seconds[kind] for kind in ("flops", "bytes"))
    return Fractions(flops / roofline.flops[dtype], nbytes / roofline.bandwidth)


PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = min(measure(lambda: torch.empty_like(old).fill_(1), cpu, 8).times)
    again = min(measure(lambda: old.fill_(1), cpu, 8).times)
    return max(0.0, fresh - again) * PAGE / old.numel()


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
