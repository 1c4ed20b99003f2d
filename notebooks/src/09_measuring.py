# %% [markdown]
r"""
# 09 · Measuring: predict, then time

The next four chapters make training faster, and each says by how much. Such a number is easy to get wrong. A call to a
GPU returns before the work is done. The first call does work that no later one does. Another program takes the
processor for a moment, and the mean doubles. And a time alone does not say whether it is good.

So this chapter builds a clock that can be trusted, and a prediction to hold each measurement against: what must a
training step compute, move and keep? All three follow from the model's shape.
"""

# %%
#| default_exp bench
#| doc bench: Time, FLOPs, bytes and memory of a training step, predicted and measured.
#| doc roofline: What a device can do at most: measured rates, and what its data sheet promises.
import queue
import threading
import time
from dataclasses import replace
from io import BytesIO
from statistics import fmean, median

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.utils import benchmark
from torch.utils.flop_counter import FlopCounterMode

from course.notebook import checkpoint, show
from nanogpt.model import GPT, GPTConfig, SIZES

# %% tags=["nbval-ignore-output"]
from nanogpt.device import pick_device, pick_scale, seed_everything

device = pick_device()
if device.type == "mps":
    print("PyTorch's profiler and memory statistics do not see an Apple GPU; this chapter measures the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
print(f"device {device}, scale {scale}, {torch.get_num_threads()} threads")

# %%
#| export roofline
import time
from collections.abc import Callable
from itertools import pairwise

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything that was queued; the CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def event_times(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call by the GPU's clock: CUDA events between the calls, one synchronize at the end."""
    with torch.cuda.device(device):  # an event belongs to the current device's stream
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


# %%
#| export roofline
def wall_times(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call by the host's clock, with an empty queue before and after."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


# %%
#| export roofline
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Timing:
    """Seconds of each call in the order they came, their median, and the quartiles around it."""

    median: float
    q1: float
    q3: float
    times: tuple[float, ...]

    @property
    def fastest(self) -> float:
        """What the machine can do: other programs only ever slow it down."""
        return min(self.times)

    def __str__(self) -> str:
        return f"{1e3 * self.median:.3f} ms (middle half {1e3 * self.q1:.3f} ms to {1e3 * self.q3:.3f} ms)"


# %%
#| export roofline
def measure(call: Callable[[], object], device: torch.device, repeats: int = 20, warmup: int = 3) -> Timing:
    """Time `call` on `device`: CUDA events on a CUDA device, elsewhere the host's clock with synchronize.

    `warmup` calls come first and do not count. Raises ValueError for fewer than two repeats.
    """
    if repeats < 2:
        raise ValueError(f"repeats={repeats} shows no spread; measure at least twice, better 20 times")
    for _ in range(warmup):
        call()
    synchronize(device)
    clock = event_times if device.type == "cuda" else wall_times
    times = clock(call, device, repeats)
    q1, _, q3 = quantiles(times, n=4, method="inclusive")
    return Timing(median(times), q1, q3, tuple(times))


# %% [markdown]
r"""
## Multiplications per second

A product of two n × n matrices needs n³ multiplications and as many additions: 2n³ floating-point operations.
Nothing on the machine computes faster than a large matrix product, so its rate is the machine's measured peak.

*Predict.* How many times faster is bfloat16 than float32 on your machine? It has half the bits. Write a
number down.
"""


# %%
#| export roofline
def matmul_formats(device: torch.device) -> list[str]:
    """The number formats in which this device multiplies matrices, by itself or emulated: at least float32.

    bfloat16 and TF32 need compute capability 8.0 on NVIDIA (CUDA C++ Programming Guide, "Alternate Floating Point").
    """
    if device.type != "cuda":
        return ["float32", "bfloat16"]
    if torch.version.hip:
        return ["float32", "bfloat16", "float16"]
    ampere = torch.cuda.get_device_capability(device) >= (8, 0)
    return ["float32", "tf32", "bfloat16", "float16"] if ampere else ["float32", "float16"]


# %%
#| export roofline
def matmul_flops(device: torch.device, dtype: str | torch.dtype, n: int, repeats: int = 10) -> float:
    """FLOP/s of an n × n matrix product, the fastest of several. dtype: float32, bfloat16, float16 or "tf32"."""
    name = str(dtype).removeprefix("torch.")
    g = torch.Generator(device).manual_seed(0)  # its own: measuring must not change what is drawn later
    a, b = torch.randn(2, n, n, device=device, generator=g)
    if name != "tf32":  # TF32 (chapter 10) is how a product reads float32, and a global switch
        a, b = a.to(getattr(torch, name)), b.to(getattr(torch, name))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        return 2 * n**3 / measure(lambda: a @ b, device, repeats).fastest
    finally:
        torch.set_float32_matmul_precision(before)


# %% tags=["nbval-ignore-output"]
n = {"ci": 512, "laptop": 1024, "gpu": 8192}[scale]
flops = {name: matmul_flops(device, name, n) for name in matmul_formats(device)}
for name, rate in flops.items():
    print(f"{name:9} {rate / 1e9:8.0f} GFLOP/s   {rate / flops['float32']:5.1f} × float32")

# %% [markdown]
r"""
If the factor is far above two, the processor has instructions just for 16-bit products (AMX or AVX-512 BF16 on
x86, tensor cores on a GPU). If it is below one, bfloat16 is emulated, and the speed-up chapters will tell a
different story on your machine. That is the point of measuring.

## Bytes per second

Most operations in a network are not matrix products: adding a bias, applying GELU, normalising. They do a few
operations on each number they fetch, and wait for memory. A copy reads and writes every byte once, so it
measures what memory can deliver. The array must be larger than the caches, or it measures those.
"""


# %%
#| export roofline
def copy_bandwidth(device: torch.device, mebibytes: int, repeats: int = 10) -> float:
    """Bytes/s of a copy, the fastest of several; each byte counts twice, once read and once written."""
    source = torch.zeros(mebibytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / measure(lambda: target.copy_(source), device, repeats).fastest


# %% tags=["nbval-ignore-output"]
sizes = [2**k for k in range({"gpu": 12}.get(scale, 9))]  # MiB
rates = [copy_bandwidth(device, size) / 1e9 for size in sizes]
bandwidth = rates[-1] * 1e9
fig, ax = plt.subplots(figsize=(6, 2.8))
ax.semilogx(sizes, rates, "o-", base=2)
ax.axhline(rates[-1], ls=":", c="gray")
ax.set(
    xlabel="size of the array (MiB)",
    ylabel="copy rate (GB/s)",
    ylim=0,
    title="Arrays smaller than a cache measure the cache",
)
show(
    fig,
    alt="Copy rate in GB/s against array size: high while the array fits a cache, then level at memory's bandwidth.",
)
print(f"memory: {bandwidth / 1e9:.1f} GB/s")

# %% [markdown]
r"""
## The roofline

Call the number of operations that a computation does for each byte it moves its *arithmetic intensity* I, in
FLOP/byte. It can run no faster than the peak, and no faster than memory feeds it:

$$\text{attainable FLOP/s} = \min(\text{peak},\; I \times \text{bandwidth})$$

(Williams, Waterman and Patterson 2009.) The two limits meet at the *ridge*, I = peak / bandwidth. Left of it
an operation is memory-bound: only moving fewer bytes helps. Right of it, it is compute-bound: only faster
arithmetic helps.
"""

# %%
#| export roofline
from dataclasses import dataclass


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


# %% [markdown]
r"""
*Predict.* Where do these stand, in FLOP/byte, in float32? Adding two vectors: one addition, two numbers read,
one written, 4 bytes each. A product of n × n matrices: 2n³ operations, 3n² numbers. A matrix times one vector,
which is what a model does when it writes one token at a time.
"""

# %%
operations = {
    "vector + vector": 1 / 12,
    "matrix × vector": 2 / 4,  # the matrix dominates: 2n² operations, n² numbers
    "matrix × matrix, n = 64": 2 * 64**3 / (3 * 64**2 * 4),
    "matrix × matrix, n = 1024": 2 * 1024**3 / (3 * 1024**2 * 4),
}
for name, intensity in operations.items():
    print(f"{name:26} {intensity:7.2f} FLOP/byte")

# %% tags=["nbval-ignore-output"]
roofline = Roofline(device.type, flops, bandwidth)
fig, ax = plt.subplots(figsize=(6.5, 3.8))
intensities = sorted([2**k for k in range(-5, 11)] + [roofline.ridge(dtype) for dtype in flops])
for dtype in roofline.flops:
    (line,) = ax.loglog(intensities, [roofline.attainable(i, dtype) / 1e9 for i in intensities], label=dtype)
    ax.plot(roofline.ridge(dtype), roofline.flops[dtype] / 1e9, "o", c=line.get_color())
for name, intensity in operations.items():
    ax.plot(intensity, roofline.attainable(intensity) / 1e9, "kx")
    where = (intensity, roofline.attainable(intensity) / 1e9)
    ax.annotate(name, where, (6, -6), textcoords="offset points", rotation=-35, va="top", fontsize=8)
ax.set(
    xlabel="arithmetic intensity (FLOP/byte)", ylabel="attainable GFLOP/s", title="This machine's roofline"
)
ax.legend(title="dots: the ridge", loc="upper left")
show(
    fig,
    alt="Roofline: attainable GFLOP/s rises with intensity until the peak of each dtype; vector addition and matrix-vector products lie on the slope.",
)
for dtype in roofline.flops:
    print(f"{dtype}: compute-bound from {roofline.ridge(dtype):.0f} FLOP/byte on")

# %% [markdown]
r"""
## Check: does the roofline predict?

A law is only as good as its predictions. Take an operation that the figure has not seen: adding two large
vectors. The roofline says how long it must take, at least.
"""

# %% tags=["nbval-ignore-output"]
numbers = 2**24
x, y = torch.ones(2, numbers, device=device)
out = torch.empty_like(x)
predicted = roofline.seconds(flops=numbers, nbytes=3 * 4 * numbers)
measured = measure(lambda: torch.add(x, y, out=out), device).median
print(
    f"predicted {1e3 * predicted:.2f} ms, measured {1e3 * measured:.2f} ms: {measured / predicted:.2f} × the prediction"
)
print(f"arithmetic alone would take {1e3 * numbers / roofline.flops['float32']:.3f} ms")

# %% [markdown]
r"""
The prediction is a lower bound, and arithmetic is not what the machine waits for. Where the factor is well above one,
something moved that was not counted: before a processor overwrites part of a cache line it usually fetches the line
first (*write-allocate*), which makes four numbers out of three, while a library's copy may store past the cache.

The two limits as assertions:
"""

# %%
numbers, n = 2**24, 4096
assert roofline.seconds(numbers, 12 * numbers) == 12 * numbers / roofline.bandwidth, (
    "an addition is memory-bound"
)
assert roofline.seconds(2 * n**3, 12 * n**2) == 2 * n**3 / roofline.flops["float32"], "a large product is not"
peak, ridge = roofline.flops["float32"], roofline.ridge()
assert roofline.attainable(0.5 * ridge) < 0.51 * peak and roofline.attainable(2 * ridge) == peak
print("left of the ridge memory decides, right of it arithmetic")

# %% [markdown]
r"""
## What the vendors promise

Peaks from data sheets, for *dense* matrices (data sheets like to print the figure for half-empty ones, which
is twice as large). A model's share of the peak is its MFU (chapter 09).
"""


# %%
#| export roofline
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


# %%
print(f"{'':16}{'float32':>9}{'TF32':>8}{'half':>8}  TFLOP/s   {'GB/s':>5}   ridge (half)")
for name, peak in PEAKS.items():
    ridge = peak.half * 1e3 / peak.bandwidth
    print(f"{name:16}{peak.float32:9}{peak.tf32 or '-':>8}{peak.half:8}{'':12}{peak.bandwidth:5}{ridge:9.0f}")

# %%
#| export roofline
import mmap

PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = measure(lambda: torch.empty_like(old).fill_(1), cpu, 8).fastest
    again = measure(lambda: old.fill_(1), cpu, 8).fastest
    return max(0.0, fresh - again) * PAGE / old.numel()


# %%
#| export roofline
def measure_roofline(device: torch.device) -> Roofline:
    """This machine's measured peaks: FLOP/s by format (those of `matmul_formats`) and bytes/s."""
    n, mebibytes = (8192, 512) if device.type == "cuda" else (1024, 256)
    flops = {name: matmul_flops(device, name, n) for name in matmul_formats(device)}
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))


# %% [markdown]
r"""
## Predict

Write four answers down before you run on.

1. A GPU needs 10 ms for a kernel. Nine such calls are made, and the clock is read before and after. What does it say?
2. Order by the bytes that they move in one step of GPT-2 small on 4 × 1024 tokens: the MLPs' matrix products, their
   GELUs, the loss, the optimizer.
3. When does a training step need the most memory: at the end of the forward pass, in the middle of the backward
   pass, during the update, or at some other moment?
4. What share of your machine's peak does a training step reach?

## A clock that lies

A GPU is another computer. A Python call puts work into its queue and returns; whoever asks for a result waits. Here is
a model of that queue, for machines without a GPU: a thread takes calls one by one, and a "kernel" is 10 ms of sleep,
since a GPU does not use this processor either.
"""


# %%
class ModelGPU:
    """A model of a GPU's queue, not a GPU: `launch` returns at once, a worker runs the calls in order."""

    def __init__(self):
        self.queue, self.log = queue.Queue(), []
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            name, call = self.queue.get()
            start = time.perf_counter()
            call()
            self.log.append((name, start, time.perf_counter()))
            self.queue.task_done()

    def launch(self, name, call=lambda: time.sleep(0.01)):
        self.queue.put((name, call))

    def synchronize(self):
        self.queue.join()


gpu = ModelGPU()

# %%
start = time.perf_counter()
for _ in range(9):
    gpu.launch("kernel")
naive = time.perf_counter() - start
gpu.synchronize()
honest = time.perf_counter() - start
print(f"nine kernels of 10 ms, model of a GPU: {1e3 * naive:.3f} ms without synchronize")
print(f"                                       {1e3 * honest:.3f} ms with it")
assert naive < honest and honest > 0.085

# %% [markdown]
r"""
The first number is the time to *ask* for nine kernels. Kernels twice as slow would not change it.

The mistake has a second form, which costs more hours: the wrong line is blamed. Below, a training step with the clock
read between its parts. `loss.item()` needs the number, so it waits for everything before it.
"""


# %%
def timed_step(synchronize: bool) -> list[tuple[str, float, float]]:
    """(part, start, end) on the host's clock for a step on the model GPU: 3 + 6 kernels, then the loss is read."""
    host = []
    for part, kernels in [("forward", 3), ("backward", 6), ("loss.item()", 0)]:
        start = time.perf_counter()
        for _ in range(kernels):
            gpu.launch(part)
        if synchronize or part == "loss.item()":
            gpu.synchronize()
        host.append((part, start, time.perf_counter()))
    return host


rows, begin = {}, {}
for synchronize_each in (False, True):
    gpu.log.clear()
    host = timed_step(synchronize_each)
    rows[synchronize_each], begin[synchronize_each] = (host, list(gpu.log)), host[0][1]

# %%
fig, axes = plt.subplots(2, 1, figsize=(7, 3.4), sharex=True)
colours = {"forward": "C0", "backward": "C1", "loss.item()": "C3"}
for ax, (each, logs) in zip(axes, rows.items()):
    for y, log in enumerate(logs):
        for name, start, end in log:
            at, width = 1e3 * (start - begin[each]), 1e3 * (end - start)
            ax.barh(y, width, left=at, color=colours[name], edgecolor="white", height=0.6)
            if y == 0 and width > 20:
                ax.text(at + width / 2, 0, f"{name} {width:.0f} ms", ha="center", va="center", fontsize=8)
    ax.set_yticks([0, 1], ["the host's clock", "the queue"])
    ax.set_axisbelow(True)
    ax.set_title("synchronized after each part" if each else "the clock read between the parts", fontsize=10)
    ax.invert_yaxis()
axes[-1].set_xlabel("ms (model of a GPU)")
fig.tight_layout()
show(
    fig,
    alt="Two timelines of a step on the model of a GPU. Without synchronize the host's clock gives all the time to loss.item(); with it, forward and backward each get their own.",
)

# %% [markdown]
r"""
Now this machine. Does it have a queue?
"""


# %% tags=["nbval-ignore-output"]
def read_clock(call, wait: bool) -> float:
    synchronize(device)
    start = time.perf_counter()
    call()
    if wait:
        synchronize(device)
    return time.perf_counter() - start


n = {"ci": 256, "laptop": 512, "gpu": 8192}[scale]
a, b = torch.randn(2, n, n, device=device)
for _ in range(3):
    a @ b
pairs = [[read_clock(lambda: a @ b, wait) for wait in (False, True)] for _ in range(20)]
naive, honest = map(median, zip(*pairs))
print(
    f"{n} × {n} product on {device}: {1e3 * naive:.3f} ms without synchronize, {1e3 * honest:.3f} ms with it"
)
print(
    "this device has a queue" if naive < 0.2 * honest else "no queue here: the call returns when it is done"
)

# %% [markdown]
r"""
## A clock inside the queue

Synchronizing has a price of its own: the queue runs empty, which a training loop avoids. The remedy is an *event*: a
mark in the queue that notes the time when the device reaches it. Put one between all calls and wait once, at the end.
"""

# %% tags=["nbval-ignore-output"]
marks = []
gpu.launch("event", lambda: marks.append(time.perf_counter()))
for _ in range(5):
    gpu.launch("kernel")
    gpu.launch("event", lambda: marks.append(time.perf_counter()))
print("events reached when all calls have returned:", "fewer than 6" if len(marks) < 6 else "all 6")
gpu.synchronize()
times = np.diff(marks)
assert len(times) == 5 and (times > 0.009).all()
print(f"between events: median {1e3 * median(times):.2f} ms")

# %% tags=["nbval-ignore-output"]
by_wall = median(wall_times(lambda: a @ b, device, 20))
print(f"{n} × {n} product: {1e3 * by_wall:.3f} ms by the host's clock")
if device.type == "cuda":
    print(f"{1e3 * median(event_times(lambda: a @ b, device, 20)):.3f} ms by CUDA events")
else:
    print("CUDA events need a CUDA device; there is none here")

# %% [markdown]
r"""
## The first calls

A small GPT-2 and its training step, which the rest of the chapter measures. The times, in the order in which they came:
"""

# %%
config = {
    "ci": GPTConfig(block_size=64, vocab_size=1024, n_layer=2, n_head=2, n_embd=64),
    "laptop": GPTConfig(block_size=128, vocab_size=4096, n_layer=4, n_head=4, n_embd=256),
    "gpu": SIZES["gpt2"],
}[scale]
B, T = {"ci": (2, 64), "laptop": (2, 128), "gpu": (4, 1024)}[scale]


def new_step(fused: bool | None = None):
    """A model, its optimizer, and a function that makes one training step on one batch of random ids."""
    g = seed_everything(0)
    model = GPT(config, generator=g).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    x, y = torch.randint(config.vocab_size, (2, B, T), generator=g).to(device)

    def step():
        _, loss = model(x, y)  # `_` holds the logits until the step returns, as most training loops do
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, (x, y), step


# %% tags=["nbval-ignore-output"]
model, optimizer, (x, y), step = new_step()
times = wall_times(step, device, {"ci": 10, "laptop": 15, "gpu": 40}[scale])
usual = median(times[3:])
fig, ax = plt.subplots(figsize=(6.5, 2.6))
ax.plot(range(1, len(times) + 1), [1e3 * t for t in times], "o-")
ax.axhline(1e3 * usual, c="gray", ls=":", label="median from the fourth on")
ax.set(
    xlabel="call",
    ylabel="ms",
    ylim=(0, 1.1e3 * max(times)),
    title="Training steps in the order in which they came",
)
ax.legend()
show(fig, alt="Time of each training step in order, with the median of all but the first three as a line.")
print(
    f"first step {1e3 * times[0]:.1f} ms, median from the fourth on {1e3 * usual:.1f} ms: {times[0] / usual:.1f} ×"
)

# %% [markdown]
r"""
What only early steps do: AdamW allocates its two moments, memory comes from the operating system, thread pools start,
libraries choose kernels. CUDA loads kernels on first use; `torch.compile` compiles (chapter 11). None of it belongs in
a rate. So: warm up, and do not count it.

## Mean or median?

600 calls of one small operation on the CPU, first alone, then beside a data loader's thread that computes in Python for
10 ms, rests for 10 ms and comes back. Only one thread runs Python at a time, so a call that meets the loader waits.

*Predict.* Few of the 600 calls meet it. Which moves more, the mean or the median?
"""


# %%
def loader(stop: threading.Event) -> None:
    """Computes in Python for 10 ms of every 20."""
    while not stop.wait(0.01):
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass


cpu = torch.device("cpu")
z = torch.randn(256, 256)
alone = wall_times(lambda: z @ z, cpu, 600)
stop = threading.Event()
thread = threading.Thread(target=loader, args=(stop,), daemon=True)
thread.start()
disturbed = wall_times(lambda: z @ z, cpu, 600)
stop.set()
thread.join()

# %% tags=["nbval-ignore-output"]
fig, axes = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True)
for ax, times, title in zip(axes, (alone, disturbed), ("alone", "with a data loader")):
    ax.semilogy([1e6 * t for t in times], ".", ms=2, c="0.5")
    ax.axhline(1e6 * fmean(times), c="C3", label="mean")
    ax.axhline(1e6 * median(times), c="C0", label="median")
    ax.set(title=title, xlabel="call")
axes[0].set_ylabel("µs")
axes[0].set_ylim(top=10 * axes[0].get_ylim()[1])
axes[0].legend(loc="upper right", ncol=2)
fig.tight_layout()
show(fig, alt="600 call times on a log scale, alone and with a data loader; lines mark mean and median.")
for name, f in [("mean", fmean), ("median", median), ("largest", max)]:
    print(
        f"{name:8} {1e6 * f(alone):8.1f} µs → {1e6 * f(disturbed):8.1f} µs   {f(disturbed) / f(alone):.2f} ×"
    )

# %% [markdown]
r"""
In the mean, a call that waited weighs as much as many that did not. The median ignores it while less than half of the
calls are disturbed; the quartiles say how far to trust it. Two medians whose middle halves overlap are not two numbers.
That is all that `measure` does.
"""

# %% tags=["nbval-ignore-output"]
print(f"{n} × {n} product:", measure(lambda: a @ b, device))
print("training step:    ", measure(step, device, repeats={"gpu": 20}.get(scale, 10), warmup=1))

# %% [markdown]
r"""
PyTorch has a clock as well. `torch.utils.benchmark.Timer` makes many calls between two readings, which serves where a
call takes microseconds, since reading the clock costs a fraction of one. It synchronizes on a GPU. Its trap: unless
told otherwise it sets PyTorch to *one* thread.
"""

# %% tags=["nbval-ignore-output"]
threads = torch.get_num_threads()
small = torch.randn(16, 16, device=device)
for name, operand in [("16 × 16", small), (f"{n} × {n}", a)]:
    row = {"measure": measure(lambda operand=operand: operand @ operand, device).median}
    for k in sorted({1, threads}):
        timer = benchmark.Timer("m @ m", globals={"m": operand}, num_threads=k)
        row[f"Timer, {k} thread{'s' * (k > 1)}"] = timer.blocked_autorange(min_run_time=0.2).median
    print(f"{name:10}" + "   ".join(f"{how} {1e6 * seconds:.1f} µs" for how, seconds in row.items()))

# %% [markdown]
r"""
## What a step must compute, and move

A time says little without the time it should have taken. For chapter 00's roofline, every operation needs two
numbers: FLOPs and bytes. The FLOPs of matrix products are chapter 05's, three times those of the forward pass:
"""

# %%
#| export
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nanogpt.model import GPTConfig, flops_per_token


def step_flops(config: GPTConfig, B: int, T: int) -> int:
    """FLOPs of a training step on B × T tokens, forward and backward: the model's matrix products (chapter 05)."""
    return B * T * flops_per_token(config, T)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilization: which share of `peak_flops` (FLOP/s) the model's own products were.

    Chowdhery et al. 2022 (PaLM), appendix B. Nothing else counts: not the optimizer, not what is computed twice.
    Raises ValueError unless seconds and peak_flops are positive.
    """
    if not (seconds > 0 and peak_flops > 0):
        raise ValueError(f"seconds={seconds} and peak_flops={peak_flops} must both be positive")
    return flops / seconds / peak_flops


# %%
gpt2 = SIZES["gpt2"]
print(f"GPT-2 small, 4 × 1024 tokens: {step_flops(gpt2, 4, 1024) / 1e12:.2f} TFLOP in a step")

# %% [markdown]
r"""
PyTorch can watch the products that are really launched. Formula and count must agree to the last operation:
"""

# %%
toy = GPTConfig(block_size=16, vocab_size=101, n_layer=2, n_head=2, n_embd=24, flash=False)
ids = torch.randint(toy.vocab_size, (2, 3, 10), generator=seed_everything(0))
with FlopCounterMode(display=False) as counter:
    GPT(toy)(*ids)[1].backward()
print(f"counted {counter.get_total_flops():,}, predicted {step_flops(toy, 3, 10):,}")
assert counter.get_total_flops() == step_flops(toy, 3, 10)

# %% [markdown]
r"""
Bytes: assume that every operation reads its inputs once from memory, and writes its outputs once. (A cache can beat
that; a kernel that reads twice falls behind.) A backward pass reads the gradient of the output and what the forward
pass saved. With N = B·T tokens, the linear layers:
"""

# %%
#| export
PRODUCTS = ("qkv", "attention", "proj", "mlp", "head")  # the parts that consist of matrix products


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


# %%
#| export
def linear_work(part: str, N: int, shapes: list[tuple[int, int]], copies: int, bias: bool, width: int):
    """Forward and backward of linear layers, (inputs, outputs) each, on N tokens: three products and a sum."""
    weights = sum(i * o for i, o in shapes)
    x, y = N * sum(i for i, _ in shapes), N * sum(o for _, o in shapes)
    b = bias * sum(o for _, o in shapes)
    forward = x + weights + b + y
    backward = 2 * (x + weights + y) + bias * (y + b)  # gradients of the input, the weight and the bias
    return [
        Work(part, "forward", copies * 2 * N * weights, copies * width * forward),
        Work(part, "backward", copies * 4 * N * weights, copies * width * backward),
    ]


# %%
for work in linear_work("mlp", 4096, [(768, 3072), (3072, 768)], copies=12, bias=True, width=4):
    print(
        f"GPT-2's 12 MLPs, {work.phase:8}: {work.flops / 1e9:6.0f} GFLOP, {work.nbytes / 1e9:4.1f} GB, {work.intensity:4.0f} FLOP/byte"
    )

# %% [markdown]
r"""
Attention depends on `config.flash`. The fused kernel reads q, k, v and writes the result; chapter 04's version
writes or reads matrices of T × T numbers per head, eight times forward and eleven times backward.
"""


# %%
#| export
def attention_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """softmax(qkᵀ)v of all layers, without the linear layers. Counts T × T products in full, as chapter 05 does."""
    NC, L = B * T * config.n_embd, config.n_layer
    scores = B * config.n_head * T * T
    if config.flash:  # also one number per row and head; backward gathers dq, dk, dv into one gradient
        rows = B * T * config.n_head
        forward, backward = 4 * NC + rows, 14 * NC + rows
    else:
        forward, backward = 12 * NC + 8 * scores, 20 * NC + 11 * scores
    flops = 4 * NC * T
    return [
        Work("attention", "forward", L * flops, L * width * forward),
        Work("attention", "backward", L * 2 * flops, L * width * backward),
    ]


# %%
for flash in (False, True):
    forward, backward = attention_work(replace(gpt2, flash=flash), 4, 1024)
    print(
        f"flash={flash!s:5}: forward {forward.nbytes / 1e9:5.1f} GB, backward {backward.nbytes / 1e9:5.1f} GB"
    )

# %% [markdown]
r"""
The rest is small in FLOPs: a handful per number, counted roughly. It is not small in bytes. AdamW reads a parameter,
its gradient and two moments, and writes three of them: 28 bytes.
"""


# %%
#| export
from functools import partial

from nanogpt.model import num_params


def elementwise_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """All of a step that is no matrix product, by part and phase."""
    C, L, V, N, P = config.n_embd, config.n_layer, config.vocab_size, B * T, num_params(config)
    NC, TC, NV, VC, norms = N * C, T * C, N * V, V * C, 2 * L + 1
    affine = (1 + config.bias) * C
    table = [  # part, phase, FLOPs, numbers read and written, bytes of each
        ("embedding", "forward", NC, 4 * NC + 3 * TC, 4),
        ("embedding", "backward", NC + VC, 2 * NC + 2 * TC + 4 * VC + config.block_size * C, 4),
        ("layer norm", "forward", norms * 8 * NC, norms * (2 * NC + 2 * N + affine), 4),
        ("layer norm", "backward", norms * 16 * NC, norms * (3 * NC + 2 * N + 2 * affine), 4),
        ("residual", "forward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("residual", "backward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("gelu", "forward", L * 40 * NC, L * 8 * NC, width),
        ("gelu", "backward", L * 80 * NC, L * 12 * NC, width),
        ("cross-entropy", "forward", 4 * NV, 2 * NV, 4),
        ("cross-entropy", "backward", 3 * NV, 4 * NV, 4),
        ("optimizer", "update", 14 * P, 7 * P, 4),
    ]
    return [Work(part, phase, flops, size * numbers) for part, phase, flops, numbers, size in table]


# %% [markdown]
r"""
Together:
"""


# %%
#| export
def step_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """All work of an eager training step with AdamW, by part and phase; dropout 0.

    Every operation reads its inputs and writes its outputs once. `width`: bytes of a number in the parts that autocast
    (chapter 10) runs in 16 bits, which are PRODUCTS and gelu; all else has 4. Casts, ids and masks are not counted.
    """
    C, L, N = config.n_embd, config.n_layer, B * T
    linear = partial(linear_work, N=N, bias=config.bias, width=width)
    return [
        *linear("qkv", shapes=[(C, 3 * C)], copies=L),
        *attention_work(config, B, T, width),
        *linear("proj", shapes=[(C, C)], copies=L),
        *linear("mlp", shapes=[(C, 4 * C), (4 * C, C)], copies=L),
        *linear_work("head", N, [(C, config.vocab_size)], 1, False, width),
        *elementwise_work(config, B, T, width),
    ]


# %%
def totals(config, B, T) -> dict[str, tuple[int, int]]:
    """part -> (FLOPs, bytes), all phases together."""
    sums = {}
    for w in step_work(config, B, T):
        flops, nbytes = sums.get(w.part, (0, 0))
        sums[w.part] = flops + w.flops, nbytes + w.nbytes
    return sums


sums = totals(gpt2, 4, 1024)
flops, nbytes = (sum(values) for values in zip(*sums.values()))
print(f"GPT-2 small, 4 × 1024 tokens, float32: {nbytes / 1e9:.0f} GB moved in a step")
print(f"{'':14}{'FLOPs':>8}{'bytes':>8}   FLOP/byte")
for part, (f, b) in sorted(sums.items(), key=lambda item: -item[1][1]):
    print(f"{part:14}{f / flops:8.2%}{b / nbytes:8.1%}{f / b:10.1f}")

# %% [markdown]
r"""
That answers question 2. The parts that do nearly all of the arithmetic move about half of the bytes. The other half is
moved by operations that compute next to nothing.

*Check.* The products' FLOPs must sum to `step_flops`. The tests also sum the sizes of all float inputs and outputs of a
real step's operations, and want the same bytes to the last one.
"""

# %%
work = step_work(gpt2, 4, 1024)
assert sum(w.flops for w in work if w.part in PRODUCTS) == step_flops(gpt2, 4, 1024)
few, many = ({(w.part, w.phase): w.intensity for w in step_work(gpt2, size, 64)} for size in (1, 64))
grows = {part for part, phase in many if many[part, phase] > 4 * few[part, phase]}
print("64 × the batch gives more than 4 × the FLOP/byte to:", ", ".join(sorted(grows)))

# %% [markdown]
r"""
A larger batch shares the weights among more tokens, so linear layers climb the roofline. The rest stays about where it
is.

## Memory-bound or compute-bound?

This machine's roofline, measured as in chapter 00, with the operations of this chapter's model on it.
"""

# %% tags=["nbval-ignore-output"]
size = {"ci": 256, "laptop": 512, "gpu": 8192}[scale]
roofline = Roofline(
    device.type,
    {"float32": matmul_flops(device, torch.float32, size)},
    copy_bandwidth(device, {"ci": 32, "laptop": 128, "gpu": 1024}[scale]),
)
ridge = roofline.ridge()
print(
    f"peak {roofline.flops['float32'] / 1e9:.0f} GFLOP/s, memory {roofline.bandwidth / 1e9:.1f} GB/s, ridge at {ridge:.1f} FLOP/byte"
)
for w in sorted(step_work(config, B, T), key=lambda w: w.intensity):
    bound = "memory-bound" if w.intensity < ridge else "compute-bound"
    print(f"{w.part:14}{w.phase:9}{w.intensity:8.2f} FLOP/byte   {bound}")

# %% tags=["nbval-ignore-output"]
fig, ax = plt.subplots(figsize=(7, 3.8))
line = np.logspace(-1.6, 3, 100)
ax.loglog(line, [roofline.attainable(i) / 1e9 for i in line], c="0.3")
ax.axvline(ridge, c="0.3", ls=":", lw=1)
items = sorted((w for w in step_work(config, B, T) if w.phase != "backward"), key=lambda w: w.intensity)
for i, w in enumerate(items):
    at = w.intensity, roofline.attainable(w.intensity) / 1e9
    ax.plot(*at, "o", c="C0" if w.intensity < ridge else "C3")
    if w.part in PRODUCTS:  # these crowd together: one below the other
        offset, ha = (-30, -14 * (i - 4)), "right"
    else:
        offset, ha = ((-8, 4), "right") if i % 2 else ((8, -10), "left")
    arrow = dict(arrowstyle="-", lw=0.4)
    ax.annotate(w.part, at, offset, textcoords="offset points", fontsize=8, ha=ha, arrowprops=arrow)
ax.set(xlabel="FLOP/byte", ylabel="attainable GFLOP/s", title="left of the dotted ridge: memory-bound")
show(
    fig,
    alt="This machine's roofline with the forward operations of a GPT step and the update: elementwise ones on the slope, linear layers further right.",
)

# %% [markdown]
r"""
## What a step must keep

Memory has four categories. Parameters, gradients and AdamW's two moments take 16 bytes per parameter in float32.
*Activations*, which the forward pass saves for the backward pass, grow with the batch. What does the derivative of each
operation in a block need?

| operation | saves | numbers |
|---|---|---|
| `ln_1`, `ln_2` | their inputs; mean and deviation of each token | 2NC + 4N |
| `c_attn` | its input | NC |
| attention, fused | q, k, v; one number for each row and head | 3NC + N·n_head |
| `c_proj` | its input, which is attention's result | NC |
| `c_fc`, GELU, `c_proj` | the input of each | NC + 4NC + 4NC |

Sixteen numbers per token and channel. Sums save nothing, as the derivative of a sum needs no input. At the end come
`ln_f`, the head's input, and N × V log-probabilities.
"""


# %%
#| export
def activation_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that autograd saves in the forward pass of a float32 GPT, ids and targets included; exact on the CPU.

    Fused attention saves one number per row and head; the manual one its (T, T) weights and a mask of bytes.
    Raises ValueError for dropout, whose masks are not counted.
    """
    if config.dropout:
        raise ValueError(f"dropout={config.dropout} saves masks that are not predicted here; set it to 0")
    C, N = config.n_embd, B * T
    attention = 4 * N * config.n_head if config.flash else 4 * config.n_head * N * T + T * T
    layer = 4 * (16 * N * C + 4 * N) + attention
    head = 4 * (2 * N * C + 2 * N + N * config.vocab_size + 1)
    ids = 8 * (2 * N + T)  # int64: tokens, targets, positions
    return config.n_layer * layer + head + ids


# %%
#| export
def memory_by_category(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes of a float32 training step with AdamW, by category."""
    tensors = 12 * config.n_layer + 4 if config.bias else 6 * config.n_layer + 3
    P = 4 * num_params(config)
    return {
        "parameters": P,
        "gradients": P,
        "optimizer": 2 * P + 4 * tensors,  # two moments, and for each tensor a count of its steps
        "activations": activation_bytes(config, B, T),
    }


# %% [markdown]
r"""
To measure it, look at each tensor as autograd saves it. Two traps: the same memory is often saved twice under different
shapes, so count storages, not tensors. And weights are saved as well, but they are no activations.
"""

# %%
#| export
from collections.abc import Iterable

from torch import Tensor


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


# %%
def measured_memory() -> dict[str, int]:
    """Bytes by category of this chapter's model, counted tensor by tensor."""
    model, optimizer, (x, y), step = new_step()
    step()
    model(x, y)[1].backward()
    tensors = {
        "parameters": list(model.parameters()),
        "gradients": [p.grad for p in model.parameters()],
        "optimizer": [t for state in optimizer.state.values() for t in state.values()],
    }
    sums = {name: sum(t.nbytes for t in ts) for name, ts in tensors.items()}
    return sums | {"activations": saved_bytes(lambda: model(x, y), exclude=model.parameters())}


predicted, measured = memory_by_category(config, B, T), measured_memory()
for name in predicted:
    print(f"{name:12} predicted {predicted[name]:12,}   measured {measured[name]:12,} bytes")
assert device.type != "cpu" or predicted == measured
for flash in (True, False):
    c = replace(toy, flash=flash)
    net = GPT(c)
    assert saved_bytes(lambda net=net: net(*ids), net.parameters()) == activation_bytes(c, 3, 10)

# %% [markdown]
r"""
On a CPU, not one byte off. (On a GPU, fused attention may keep a little more, and the allocator rounds sizes up.) The
same formulas for GPT-2 small:
"""

# %%
batches = [1, 2, 4, 8, 16]
fig, axes = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
for ax, flash in zip(axes, (False, True)):
    rows = [memory_by_category(replace(gpt2, flash=flash), batch, 1024) for batch in batches]
    bottom = np.zeros(len(batches))
    for name in rows[0]:
        height = np.array([row[name] / 2**30 for row in rows])
        ax.bar([str(batch) for batch in batches], height, bottom=bottom, label=name)
        bottom += height
    ax.set(xlabel="batch of 1024 tokens", title=f"attention {'fused' if flash else 'step by step'}")
axes[0].set_ylabel("GiB, float32")
axes[0].legend(loc="upper left")
fig.tight_layout()
show(
    fig,
    alt="Stacked bars: memory of GPT-2 small by category against batch size, with manual and with fused attention; activations dwarf the rest as the batch grows.",
)


# %% [markdown]
r"""
Choose a size, a batch, a context. Which category fills a card of 24 GiB first?
"""


# %%
knobs = {
    "size": widgets.Dropdown(options=list(SIZES)),
    "B": widgets.IntSlider(4, 1, 32),
    "T": widgets.IntSlider(1024, 128, 1024, 128),
    "flash": widgets.Checkbox(True),
}
picture = widgets.Image(format="png", layout={"align_self": "flex-start"})


def draw_memory(_=None):
    size, batch, context, flash = (knob.value for knob in knobs.values())
    memory = memory_by_category(replace(SIZES[size], flash=flash), batch, context)
    fig, ax = plt.subplots(figsize=(6, 2))
    ax.barh(list(memory), [v / 2**30 for v in memory.values()])
    ax.axvline(24, c="C3", ls=":")
    ax.set(xlabel="GiB, float32 (dotted: 24)", title=f"{sum(memory.values()) / 2**30:.1f} GiB together")
    ax.invert_yaxis()
    png = BytesIO()
    fig.savefig(png)
    plt.close(fig)
    picture.value = png.getvalue()


# %% tags=["nbval-ignore-output"]
for name, knob in knobs.items():
    knob.description = name
    knob.observe(draw_memory, "value")
draw_memory()
widgets.VBox([*knobs.values(), picture])

# %% [markdown]
r"""
## The peak

The categories do not all exist at once: gradients appear while activations go. So when is the peak? The profiler's
trace, a JSON file, holds an event named `[memory]` for every allocation and release.
"""

# %%
#| export
import json
import os
import tempfile
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function


def cpu_trace(call: Callable[[], object]) -> list[dict]:
    """The profiler's trace of one call on the CPU: events with name, ts and dur in µs, args, in order of time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as prof:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        prof.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((event for event in events if "ts" in event), key=lambda event: event["ts"])


# %%
#| export
def memory_levels(trace: list[dict]) -> list[tuple[float, int]]:
    """(µs, bytes above the level at the start) after each allocation and release on the CPU."""
    changes = [(e["ts"], e["args"]) for e in trace if e["name"] == "[memory]"]
    # the profiler goes on counting from what its last run left behind
    start = changes[0][1]["Total Allocated"] - changes[0][1]["Bytes"] if changes else 0
    return [(ts, args["Total Allocated"] - start) for ts, args in changes]


# %%
#| export
def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Bytes that `call` needs at most, above what is allocated when it starts. On cuda and cpu; ValueError elsewhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"PyTorch keeps no peak of memory on {device.type}; measure on cuda or cpu")
    return max((level for _, level in memory_levels(cpu_trace(call))), default=0)


# %% [markdown]
r"""
*Predict.* At the end of the forward pass all activations exist, and the logits, which the training loop still holds.
The backward pass begins with the loss: a gradient of the log-probabilities, and
from it one of the logits, N × V numbers each. During the update all gradients exist; AdamW on the CPU needs two more
buffers as large as the largest matrix.
"""


# %%
def peak_by_moment(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes at three moments of a float32 step with AdamW; the largest is the peak. Exact on the CPU.

    With a vocabulary of no more than a few C, a moment within the last layer's backward pass can lie a little higher.
    """
    memory = memory_by_category(config, B, T)
    held = memory["parameters"] + memory["optimizer"]
    logits = 4 * B * T * config.vocab_size
    ids = 16 * B * T
    forward = held + memory["activations"] + logits + 4
    largest = 4 * max(config.vocab_size, config.block_size, 4 * config.n_embd) * config.n_embd
    return {
        "end of forward": forward,
        "loss, backward": forward + 2 * logits,
        "update": held + ids + memory["gradients"] + logits + 2 * largest,
    }


# %% tags=["nbval-ignore-output"]
def held_before(model, optimizer, batch) -> int:
    """Bytes of parameters, optimizer states and batch, which exist before the step."""
    states = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.nbytes for t in (*model.parameters(), *states, *batch))


model, optimizer, batch, step = new_step()
step()
before = held_before(model, optimizer, batch)
moments = peak_by_moment(config, B, T)
measured = before + peak_memory(step, device)
for name, value in moments.items():
    print(f"{name:15} {value / 2**20:8.2f} MiB predicted")
print(
    f"{'measured peak':15} {measured / 2**20:8.2f} MiB, {measured / max(moments.values()):.4f} × the highest"
)
assert device.type != "cpu" or abs(measured / max(moments.values()) - 1) < 0.01

# %% [markdown]
r"""
Where it lies can be read from the trace, with its operations and its changes of memory on one axis:
"""

# %%
x, y = batch


def marked_step():
    """The same step, with its phases named for the profiler."""
    with record_function("forward"):
        _, loss = model(x, y)
    with record_function("backward"):
        loss.backward()
    with record_function("update"):
        optimizer.step()
    optimizer.zero_grad()


# %%
def draw_levels(trace, before):
    """Memory over the time of one step, its phases shaded, the predicted moments dotted."""
    us, level = zip(*memory_levels(trace))
    fig, ax = plt.subplots(figsize=(7, 3.2))
    ax.step([(t - us[0]) / 1e3 for t in us], [(before + v) / 2**20 for v in level], c="k", where="post", lw=1)
    phases = [e for e in trace if e["name"] in ("forward", "backward", "update") and "dur" in e]
    for event, colour in zip(phases, ("C0", "C1", "C2")):
        start = (event["ts"] - us[0]) / 1e3
        ax.axvspan(start, start + event["dur"] / 1e3, color=colour, alpha=0.2, label=event["name"])
    for name, value in peak_by_moment(config, B, T).items():
        ax.axhline(value / 2**20, c="0.5", ls=":", lw=1)
        ax.text(0, value / 2**20, name, fontsize=8, va="bottom", color="0.3")
    ax.set(xlabel="ms, with the profiler running", ylabel="MiB (the axis begins at what is always held)")
    ax.set_ylim(0.98 * before / 2**20)
    ax.legend(loc="center")
    show(
        fig,
        alt="Memory during one step: it climbs through the forward pass, jumps at the start of the backward pass, then falls. Three predicted levels are dotted.",
    )


# %% tags=["nbval-ignore-output"]
if device.type == "cpu":
    trace = cpu_trace(marked_step)
    draw_levels(trace, before)
    highest, at = max((level, -us) for us, level in memory_levels(trace))
    inside = [e for e in trace if e.get("ph") == "X" and e["ts"] <= -at <= e["ts"] + e["dur"]]
    print("at the peak:", " > ".join(e["name"] for e in inside if not e["name"].startswith("PyTorch")))
else:
    print(f"the trace's memory levels are read on the CPU only; torch.cuda.memory_stats() has {device}'s")

# %% [markdown]
r"""
The peak is a needle. It lies in the loss, where logits, log-probabilities and both of their gradients exist for a
moment: four tables of N × V numbers. Gradient checkpointing, which drops activations, does not touch it. A loss in
pieces does (exercise 4). For GPT-2's vocabulary:
"""

# %%
for B_ in (1, 4, 16):
    moments = peak_by_moment(gpt2, B_, 1024)
    tables = 4 * 4 * B_ * 1024 * gpt2.vocab_size
    top = max(moments, key=moments.get)
    print(
        f"GPT-2 small, B={B_:2}: peak {moments[top] / 2**30:5.1f} GiB ({top}), four N × V tables {tables / 2**30:5.1f} GiB"
    )

# %% [markdown]
r"""
## Predict the step, then measure it

The roofline gives each part of the step a least time. Their sum is the prediction.
"""

# %%
#| export
from nanogpt.roofline import Roofline


def predict_step(
    config: GPTConfig, B: int, T: int, roofline: Roofline, dtype: str = "float32"
) -> dict[tuple[str, str], float]:
    """(part, phase) -> the least seconds that the roofline allows, for `step_work`. Its sum predicts the step.

    dtype names the roofline's rate for PRODUCTS; with a 16-bit one their numbers have two bytes.
    """
    width = 2 if dtype in ("bfloat16", "float16") else 4
    return {
        (w.part, w.phase): roofline.seconds(w.flops, w.nbytes, dtype if w.part in PRODUCTS else "float32")
        for w in step_work(config, B, T, width)
    }


# %% [markdown]
r"""
*Predict.* Before the next cell runs: will the measured step be faster or slower than the roofline's sum, and by which
factor?
"""

# %% tags=["nbval-ignore-output"]
least = predict_step(config, B, T, roofline)
predicted = sum(least.values())
model, optimizer, batch, step = new_step()
timing = measure(step, device, repeats={"gpu": 20}.get(scale, 10))
flops = step_flops(config, B, T)
print(f"predicted {1e3 * predicted:.1f} ms, measured {timing}: {timing.median / predicted:.2f} ×")
print(f"MFU against the measured product: {mfu(flops, timing.median, roofline.flops['float32']):.1%}")
sheet = peak_of(torch.cuda.get_device_name()) if device.type == "cuda" else None
if sheet:
    print(
        f"MFU against the data sheet: {mfu(flops, timing.median, sheet.float32 * 1e12):.1%}, {sheet.source}"
    )
else:
    print(
        "MFU against a data sheet: none in chapter 00's table for this device, so the measured product must do"
    )

# %% [markdown]
r"""
(A wide middle half means that another program is at work: then no comparison holds, and the cell wants to run again.)

Published MFUs use the data sheet's peak, in the dtype of the products; chapter 10 changes that. The measured product
says what is left to win with this device and this library.

## Where the time goes

A factor for the whole step is no diagnosis. The profiler records every operation. A first look is its table, sorted by
*self* time: an operation's time without that of the operations it calls.
"""

# %% tags=["nbval-ignore-output"]
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
with profile(activities=activities, acc_events=True) as prof:
    for _ in range(3):
        step()
        synchronize(device)
column = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
HOST = (
    torch.autograd.DeviceType.CPU
)  # an operation; on a GPU the kernels that it launched come as rows of their own
BUILT = Path("../data/built")
BUILT.mkdir(parents=True, exist_ok=True)
prof.export_chrome_trace(str(BUILT / "trace_08.json"))
rows = [row for row in prof.key_averages() if row.device_type == HOST]
rows.sort(key=lambda row: -getattr(row, column))
total = sum(getattr(row, column) for row in rows)
print(f"{'operation':52} {'self':>6} {'calls':>6}")
for row in rows[:9]:
    print(f"{row.key[:50]:52} {getattr(row, column) / total:6.1%} {row.count // 3:6}")

# %% [markdown]
r"""
`addmm` and `mm` are matrix products, and the table cannot say whose. The trace can: it knows each operation's place in
time, and who called whom. It is in `data/built/trace_08.json`; open that file in ui.perfetto.dev and zoom into one step.
An excerpt, a GELU of the forward pass and its counterpart in the backward pass:
"""

# %% tags=["nbval-ignore-output"]
events = sorted(prof.events(), key=lambda e: e.time_range.start)


def excerpt(event) -> None:
    """An event and, below it, the costliest operation that it called, and so on."""
    depth = 0
    while event:
        number = f"sequence number {event.sequence_nr}" if event.sequence_nr >= 0 else ""
        print(f"{'  ' * depth}{event.name:{54 - 2 * depth}} {event.cpu_time_total:8.1f} µs   {number}")
        event, depth = max(event.cpu_children, key=lambda e: e.cpu_time_total, default=None), depth + 1


backward = next(e for e in events if e.name.endswith("evaluate_function: GeluBackward0"))
excerpt(next(e for e in events if e.name == "aten::gelu" and e.sequence_nr == backward.sequence_nr))
excerpt(backward)

# %% [markdown]
r"""
A backward operation carries the *sequence number* of its forward operation. So name each module while it runs, note the
sequence numbers given out in it, and charge the backward operations to the same part.
"""

# %%
PARTS = {
    "embedding": ("wte", "wpe", "drop"),
    "layer norm": ("ln_1", "ln_2", "ln_f"),
    "qkv": ("c_attn",),
    "attention": ("attn",),
    "mlp": ("c_fc",),
    "gelu": ("mlp", "dropout"),
    "head": ("lm_head",),
}
LEAVES = {leaf: part for part, leaves in PARTS.items() for leaf in leaves}


def part_of(module: str, operation: str) -> str:
    """The part of the step to which an operation belongs that a module of GPT, by its full name, calls itself."""
    leaf = module.rpartition(".")[2]
    if leaf == "c_proj":
        return "proj" if ".attn." in module else "mlp"
    if leaf == "":  # GPT.forward
        return "cross-entropy" if operation in ("aten::flatten", "aten::cross_entropy_loss") else "embedding"
    return LEAVES.get(leaf, "residual")  # a Block itself only adds


# %%
for module, operation in [
    ("transformer.h.0.mlp.c_proj", "aten::linear"),
    ("transformer.h.0.attn", "aten::scaled_dot_product_attention"),
    ("transformer.h.0", "aten::add"),
    ("", "aten::cross_entropy_loss"),
]:
    print(f"{module or 'GPT itself':28}{operation:38}{part_of(module, operation)}")


# %%
from contextlib import contextmanager

from torch import nn


@contextmanager
def module_ranges(model: nn.Module):
    """While open, the profiler sees each call of a module as a range named `module NAME`."""
    ranges, handles = [], []

    def enter(name: str) -> None:
        ranges.append(record_function(f"module {name}"))
        ranges[-1].__enter__()

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: enter(name)))
        handles.append(module.register_forward_hook(lambda *_: ranges.pop().__exit__(None, None, None)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# %%
def forward_part(event) -> str | None:
    """The part of an operation that a module calls itself; None for all other events."""
    caller = event.cpu_parent.name if event.cpu_parent else ""
    if caller.startswith("module ") and not event.name.startswith("module "):
        return part_of(caller.removeprefix("module "), event.name)


def family(event) -> list:
    """An event, the operations that it called, and so on."""
    return [event] + [member for child in event.cpu_children for member in family(child)]


# %%
def charge(events: list, device: torch.device) -> dict[tuple[str, str], float]:
    """Profiled events of one step, with module_ranges -> seconds by (part, phase); on CUDA, seconds of its kernels."""
    clock = "device_time_total" if device.type == "cuda" else "cpu_time_total"
    seconds = {}
    owner = {}  # sequence number -> part

    def add(part: str, phase: str, event) -> None:
        seconds[part, phase] = seconds.get((part, phase), 0.0) + getattr(event, clock) / 1e6

    host = [e for e in events if e.device_type == HOST]
    for event in sorted(host, key=lambda e: e.time_range.start):  # forward comes first
        if event.name.startswith("Optimizer."):
            add("optimizer", "update", event)
        elif event.name.startswith("autograd::engine::evaluate_function") and event.sequence_nr >= 0:
            part = owner[event.sequence_nr]
            for child in event.cpu_children:
                # the engine sums the two gradients of a residual connection where the second one is made
                sums = part == "layer norm" and child.name in ("aten::add", "aten::add_")
                add("residual" if sums else part, "backward", child)
        elif part := forward_part(event):
            owner |= {member.sequence_nr: part for member in family(event)}
            add(part, "forward", event)
    return seconds


# %%
def time_by_part(
    model: nn.Module, step: Callable[[], object], device: torch.device, repeats: int = 5
) -> dict[tuple[str, str], float]:
    """Median seconds by (part, phase) of an eager GPT training step; ("rest", "") is what the profiler did not place."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    runs = []
    with module_ranges(model):
        for _ in range(repeats):
            with profile(activities=activities, acc_events=True) as prof:
                (whole,) = wall_times(step, device, 1)
            run = charge(prof.events(), device)
            runs.append(run | {("rest", ""): whole - sum(run.values())})
    return {key: median(run[key] for run in runs) for key in runs[0]}


# %%
PHASES = ("forward", "backward", "update")
found = time_by_part(model, step, device, repeats=3)
assert {key for key in found if key[0] != "rest"} == set(least), "each predicted part was found, and no other"
print(f"{len(least)} pairs of part and phase, each predicted and each found in the trace")

# %% tags=["nbval-ignore-output"]
parts = sorted({part for part, _ in least}, key=lambda part: sum(found.get((part, p), 0) for p in PHASES))
fig, ax = plt.subplots(figsize=(7, 4.4))
for i, part in enumerate(parts):
    for offset, times, hatch in [(0.2, found, None), (-0.2, least, "///")]:
        left = 0.0
        for phase, colour in zip(PHASES, ("C0", "C1", "C2")):
            width = 1e3 * times.get((part, phase), 0)
            ax.barh(i + offset, width, 0.38, left=left, color=colour, alpha=0.5 if hatch else 1, hatch=hatch)
            left += width
ax.set_yticks(range(len(parts)), parts)
ax.set(xlabel="ms in a step", title="measured (plain) and least by the roofline (hatched)")
handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in ("C0", "C1", "C2")]
ax.legend(handles, PHASES, loc="lower right")
show(
    fig,
    alt="Bars by part of a training step, forward, backward and update: measured time beside the roofline's least time.",
)

# %% [markdown]
r"""
## Why the ratio is what it is

A bar may be longer than its hatched neighbour for three reasons. Each can be tested by itself.

**The peak was measured on a large square product.** Thin or small products may reach less. One layer's, forward:
"""

# %% tags=["nbval-ignore-output"]
C, N = config.n_embd, B * T
shapes = {"qkv": (C, 3 * C), "proj": (C, C), "mlp c_fc": (C, 4 * C), "mlp c_proj": (4 * C, C)}
for name, (inputs, outputs) in (shapes | {"head": (C, config.vocab_size)}).items():
    t = torch.randn(N, inputs, device=device)
    layer = nn.Linear(inputs, outputs, bias=name != "head", device=device)
    with torch.no_grad():
        seconds = measure(partial(layer, t), device).median
    rate = 2 * N * inputs * outputs / seconds
    print(
        f"{name:11} ({N}, {inputs}) × ({inputs}, {outputs}): {rate / roofline.flops['float32']:5.0%} of the peak"
    )

# %% [markdown]
r"""
**An operation in pieces moves more bytes.** The prediction lets AdamW read and write every number once. PyTorch's
default makes about a dozen passes, one for every line of the formula; the fused version makes one:
"""

# %% tags=["nbval-ignore-output"]
try:
    pieces, fused = (
        time_by_part(*new_step(fused)[::3], device, 3)["optimizer", "update"] for fused in (None, True)
    )
    bound = least["optimizer", "update"]
    print(f"AdamW in pieces: {1e3 * pieces:6.2f} ms, {pieces / bound:.1f} × the roofline's least time")
    print(f"fused:           {1e3 * fused:6.2f} ms, {fused / bound:.1f} ×")
except RuntimeError as error:
    print(f"no fused AdamW on {device}: {str(error).splitlines()[0]}")

# %% [markdown]
r"""
**Launching costs time.** Python and the dispatcher need microseconds for each operation, however little it does. On a
GPU with small layers kernels then wait for the host, and "rest" grows. The smallest possible operation shows the price:
"""

# %% tags=["nbval-ignore-output"]
one = torch.ones(1, device=device)
launch = measure(lambda: [one.add(1) for _ in range(1000)], device).median / 1000
ours = [e for e in events if e.name.startswith("aten::")]
operations = sum(not any(child.name.startswith("aten::") for child in e.cpu_children) for e in ours) / 3
print(
    f"{1e6 * launch:.1f} µs an operation, about {operations:.0f} operations in a step: {1e3 * launch * operations:.2f} ms"
)

# %% [markdown]
r"""
One cause pulls the other way: arrays that fit into a cache come from there, faster than memory delivers. A bar shorter
than its hatched neighbour is such a part, or fused attention, which may skip the masked half of T × T.

The list to take along into the next chapters, the parts by the time that the roofline says is lost in them:
"""

# %% tags=["nbval-ignore-output"]
lost = {part: sum(found.get((part, p), 0) - least.get((part, p), 0) for p in PHASES) for part in parts}
for part in sorted(lost, key=lost.get, reverse=True)[:5]:
    whole = sum(found.get((part, p), 0) for p in PHASES)
    print(f"{part:14}{1e3 * whole:8.2f} ms measured, {1e3 * lost[part]:8.2f} ms above the roofline")
print(f"{'rest':14}{1e3 * found['rest', '']:8.2f} ms outside of all operations")

# %% [markdown]
r"""
Where products lose, fewer bits help (chapter 10), and better shapes (chapter 13). Where elementwise operations lose,
fusing them, so that a number is read once for several operations (chapter 11). Attention is chapter 12's, the fused
optimizer chapter 15's.

## Checkpoint
"""

# %%
checkpoint("09")

# %% [markdown]
r"""
## Exercises

1. CUDA's queue is finite: a launch into a full one waits. Give `ModelGPU` a `queue.Queue(maxsize=4)` and draw the
   naive time against the number of kernels launched. *Check:* it is flat up to a point, then rises by 10 ms a kernel.
2. Predict how the MFU changes if B doubles, then if T doubles at the same B·T, and measure both. *Check:* say first
   which parts' intensity changes; `step_work` says whether you were right.
3. Give the model dropout 0.1 and extend `activation_bytes` by what it makes autograd save. *Check:* `saved_bytes`
   agrees to the byte on the CPU, with `flash=False`. One addition is no mask: which? And how many bytes does the CPU
   keep for each yes or no?
4. Compute the loss in four pieces of the batch, with `lm_head` and `cross_entropy` inside
   `torch.utils.checkpoint.checkpoint`. *Check:* the same loss and gradients to 1e-6; `peak_memory` falls, by what
   `peak_by_moment` says.

## Further reading

- S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model*, CACM 52(4), 2009.
- A. Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, 2022, appendix B: MFU defined.
- V. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, §4: activations counted
  operation by operation, in 16 bits and with dropout.
- T. Hoefler, R. Belli, *Scientific Benchmarking of Parallel Computing Systems*, SC 2015: medians, spread, and twelve
  rules for reporting times.
- PyTorch documentation: *CUDA semantics*, "Asynchronous execution"; *torch.profiler*; *torch.utils.benchmark*.
"""
