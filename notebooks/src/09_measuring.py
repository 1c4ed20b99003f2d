# %% [markdown]
r"""
# 09 · Measuring: predict, then time

The next five chapters make training faster, and each says by how much. Such a number is easy to get wrong. A call to a
GPU returns before the work is done. The first call does work that no later one does. Another program takes the
processor for a moment, and the mean doubles. And a time alone does not say whether it is good.

So this chapter builds two things: a clock that can be trusted, and a prediction to hold each measurement against. What
can the machine do at most? That is measured once. What must a training step compute, move and keep? That follows from the
model's shape.
"""

# %%
#| default_exp speed.work
#| doc speed.work: What a training step must compute, move and keep, predicted from the model's shape and counted.
#| doc speed.roofline: A clock, what a device can do at most as measured, and what its data sheet promises.
import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from statistics import fmean, median

import torch
from torch.profiler import ProfilerActivity, profile

from course.figures import measuring as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.gpt.model import GPT, SIZES, GPTConfig

# %% tags=["nbval-ignore-output"]
device = pick_device()
if device.type == "mps":
    print("PyTorch's profiler does not see an Apple GPU; this chapter measures the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
config = {
    "ci": GPTConfig(block_size=64, vocab_size=1024, n_layer=2, n_head=2, n_embd=64),
    "laptop": GPTConfig(block_size=128, vocab_size=4096, n_layer=4, n_head=4, n_embd=256),
    "gpu": SIZES["gpt2"],
}[scale]
B, T, repeats = {"ci": (2, 64, 10), "laptop": (2, 128, 10), "gpu": (4, 1024, 20)}[scale]
product, copied = {"ci": (256, 32), "laptop": (1024, 256), "gpu": (8192, 1024)}[scale]  # n × n, MiB
gpt2 = SIZES["gpt2"]
print(f"device {device}, scale {scale}, {torch.get_num_threads()} threads")

# %% [markdown]
r"""
## Predict

1. A GPU needs 10 ms for a kernel. Nine such calls are made, and the clock is read before and after. What does it say?
2. One step of GPT-2 small on 4 × 1024 tokens: which moves the most bytes, the MLPs' matrix products, their GELUs, the
   loss or the optimizer?
3. The same step: how much memory do the activations take that the backward pass needs?
4. What share of your machine's peak does a training step reach?

Replace `None` by your guess.
"""

# %%
predict("09.1", "nine kernels of 10 ms, clock read at once", guess=None, unit="ms")
predict("09.2", "what moves most bytes: mlp, gelu, loss or optimizer", guess=None)
predict("09.3", "activations of GPT-2 small, 4 × 1024 tokens", guess=None, unit="GiB")
predict("09.4", "share of the measured peak that a step reaches", guess=None, unit="%")

# %% [markdown]
r"""
## A clock that lies

A GPU is another computer. A Python call puts work into its queue and returns; whoever asks for a result waits. Here is
a model of that queue, for machines without a GPU: a thread takes calls one by one, and a "kernel" is 10 ms of sleep,
since a GPU does not use this processor either.
"""

# %%
gpu = ThreadPoolExecutor(max_workers=1)  # `submit` returns at once, one thread makes the calls in order


def kernel(part):
    """10 ms of work elsewhere: (part, start, end)."""
    start = time.perf_counter()
    time.sleep(0.01)
    return part, start, time.perf_counter()


start = time.perf_counter()
launched = [gpu.submit(kernel, "forward") for _ in range(9)]
naive = 1e3 * (time.perf_counter() - start)
wait(launched)  # on a GPU: torch.cuda.synchronize()
honest = 1e3 * (time.perf_counter() - start)
print(f"nine kernels of 10 ms: {naive:.3f} ms without synchronize, {honest:.3f} ms with it")
answer("09.1", naive)

# %% [markdown]
r"""
The first number is the time to *ask* for nine kernels. Kernels twice as slow would not change it.

The mistake has a second form, which costs more hours: the wrong line is blamed. Here the clock is read between the parts of
a training step. `loss.item()` needs the number, so it waits for everything before it.
"""


# %%
def timed_step(synchronize_each: bool) -> tuple[list, list]:
    """The host's log and the queue's, of (part, start, end), for 3 + 6 kernels after which the loss is read."""
    host, launched = [], []
    for part, kernels in [("forward", 3), ("backward", 6), ("loss.item()", 0)]:
        start = time.perf_counter()
        launched += [gpu.submit(kernel, part) for _ in range(kernels)]
        if synchronize_each or part == "loss.item()":
            wait(launched)
        host.append((part, start, time.perf_counter()))
    return host, [call.result() for call in launched]


show(
    figures.queue({each: timed_step(each) for each in (False, True)}),
    alt="Two timelines of a step on the model of a GPU. Without synchronize the host's clock gives all the time to loss.item(); with it, forward and backward each get their own.",
)

# %% [markdown]
r"""
## A clock that waits

The remedy: wait until the queue is empty, before and after. The price: the next kernel then waits for Python, which a
training loop avoids. So a GPU has a clock inside the queue as well: an *event* notes the time when the device reaches it.
Put one between all calls, and wait once, at the end.
"""

# %%
#| export speed.roofline
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


# %%
#| export speed.roofline
def timings(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each call: between CUDA events, elsewhere by the host's clock with an empty queue before and after."""
    synchronize(device)
    if device.type == "cuda":
        with torch.cuda.device(device):  # an event belongs to the current device's stream
            events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
            events[0].record()
            for event in events[1:]:
                call()
                event.record()
            torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times


# %% [markdown]
r"""
## The first calls

A small GPT-2 and its training step, which the rest of the chapter measures. The times, in the order in which they came:
"""


# %%
def new_step():
    """A model, its optimizer, a batch of random ids, and a function that makes one training step on it."""
    g = seed_everything(0)
    model = GPT(config, generator=g).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randint(config.vocab_size, (2, B, T), generator=g).to(device)

    def step():
        model(*batch)[1].backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, batch, step


# %% tags=["nbval-ignore-output"]
step = new_step()[-1]
times = timings(step, device, repeats + 5)
show(
    figures.step_times(times),
    alt="Time of each training step in order; lines mark mean and median.",
)
print(f"first {1e3 * times[0]:.1f} ms, median {1e3 * median(times):.1f} ms, mean {1e3 * fmean(times):.1f} ms")

# %% [markdown]
r"""
What only early steps do: AdamW allocates its two moments, memory comes from the operating system, thread pools start,
libraries choose and load kernels, `torch.compile` compiles. None of it belongs in a rate. So: warm up, and do not count it.

Slow calls come later too, when another program takes the processor. In the mean, one of them weighs as much as many others;
the median ignores them while they are fewer than half. The quartiles say how far to trust it: two medians whose middle
halves overlap are not two numbers. And what the machine *can* do is the fastest call, since others only ever slow us down.
"""

# %%
#| export speed.roofline
from dataclasses import dataclass
from statistics import quantiles


@dataclass(frozen=True)
class Timing:
    """Seconds of each call in the order they came, their median, and the quartiles around it."""

    median: float
    q1: float
    q3: float
    times: tuple[float, ...]

    def __str__(self) -> str:
        return f"{1e3 * self.median:.3f} ms (middle half {1e3 * self.q1:.3f} ms to {1e3 * self.q3:.3f} ms)"


# %%
#| export speed.roofline
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


# %% tags=["nbval-ignore-output"]
print("training step:", measure(step, device, repeats, warmup=1))

# %% [markdown]
r"""
(PyTorch has a clock as well, `torch.utils.benchmark.Timer`. Its trap: unless told otherwise it sets PyTorch to *one*
thread.)

One more trap waits on a CPU. PyTorch splits a large operation over several threads, and after it the threads wait for the
next one. They can wait in two ways. A thread that *spins* asks again and again whether there is work; it answers at once,
but it keeps its core busy. A thread that *sleeps* gives its core away and needs some microseconds to wake up. The variable
`OMP_WAIT_POLICY` chooses between the two, and it is read once, when PyTorch is loaded.

On an idle machine the spinning hurts nobody. But if a browser or a second training run wants the same cores, the spinning
threads take them away from the threads that have work, also from their own program's. In November 2026, on two AMD cores beside
a load like a browser's, a training step of chapter 07's model took 160 to 1,258 ms as it was, and 50 to 87 ms with sleeping threads.
Alone on two cores we could measure no cost: spinning and sleeping threads took the same time (a ratio of 1.00, the median of three
rounds). The course therefore sets `OMP_WAIT_POLICY=passive` wherever it starts Python, unless you have set the variable yourself.
`tests/bench/bench_wait_policy.py` measures both policies on your machine, alone and beside busy programs.

## What the machine can do

Is that a good time? It depends on two limits. A product of two n × n matrices needs n³ multiplications and as many
additions, and nothing on the machine computes faster than a large one. Its rate is the measured peak, one for each number
format (chapter 10):
"""


# %%
#| export speed.roofline
def matmul_formats(device: torch.device) -> list[str]:
    """The number formats in which this device multiplies matrices, in hardware or emulated: at least float32.

    bfloat16 and TF32 need compute capability 8.0 on NVIDIA (CUDA C++ Programming Guide, "Alternate Floating Point").
    """
    if device.type != "cuda":
        return ["float32", "bfloat16"]
    if torch.version.hip:
        return ["float32", "bfloat16", "float16"]
    ampere = torch.cuda.get_device_capability(device) >= (8, 0)
    return ["float32", "tf32", "bfloat16", "float16"] if ampere else ["float32", "float16"]


# %%
#| export speed.roofline
def matmul_flops(device: torch.device, dtype: str | torch.dtype, n: int, repeats: int = 10) -> float:
    """FLOP/s of an n × n matrix product, the fastest of several. dtype: float32, bfloat16, float16 or "tf32"."""
    name = str(dtype).removeprefix("torch.")
    g = torch.Generator(device).manual_seed(0)  # its own: measuring must not change what is drawn later
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


# %% [markdown]
r"""
The second limit: most operations in a network add a bias, apply GELU, normalise. They do little with each number they
fetch, and wait for memory. A copy reads and writes every byte once, so it measures what memory can deliver (if the array is
large: a small one stays in a cache).
"""


# %%
#| export speed.roofline
def copy_bandwidth(device: torch.device, mebibytes: int, repeats: int = 10) -> float:
    """Bytes/s of a copy, the fastest of several; each byte counts twice, once read and once written."""
    source = torch.zeros(mebibytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(measure(lambda: target.copy_(source), device, repeats).times)


# %% [markdown]
r"""
## The roofline

Call the number of operations that a computation does for each byte it moves its *arithmetic intensity* I, in FLOP/byte.
It can run no faster than the peak, and no faster than memory feeds it: min(peak, I × bandwidth) (Williams, Waterman and
Patterson 2009). The two limits meet at the *ridge*, I = peak / bandwidth. Left of it an operation is memory-bound: only
moving fewer bytes helps. Right of it, it is compute-bound: only faster arithmetic helps.

In float32, adding two vectors has I = 1/12, one addition for two numbers read and one written. A matrix times a vector,
which is what a model does when it writes one token at a time, has 1/2: two operations for each number of the matrix.
A product of n × n matrices, 2n³ operations on 3n² numbers, has n/6.
"""


# %%
#| export speed.roofline
#| blank Roofline.seconds: arithmetic and memory work at the same time; the slower one decides
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
        """The time for so many operations and bytes moved: the slower of the two. A cache can beat it."""
        return max(flops / self.flops[dtype], nbytes / self.bandwidth)

    def ridge(self, dtype: str = "float32") -> float:
        """The intensity in FLOP/byte from which on arithmetic is the limit."""
        return self.flops[dtype] / self.bandwidth


# %%
#| export speed.roofline
def measure_roofline(device: torch.device, n: int | None = None, mebibytes: int | None = None) -> Roofline:
    """The rates of an n × n product in each of `matmul_formats`, and of a copy."""
    n = n or (8192 if device.type == "cuda" else 1024)
    mebibytes = mebibytes or (512 if device.type == "cuda" else 256)
    flops = {name: matmul_flops(device, name, n) for name in matmul_formats(device)}
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))


# %% tags=["nbval-ignore-output"]
roofline = measure_roofline(device, product, copied)
print(f"memory: {roofline.bandwidth / 1e9:.1f} GB/s")
for name, rate in roofline.flops.items():
    factor, ridge = rate / roofline.flops["float32"], roofline.ridge(name)
    print(f"{name:9} {rate / 1e9:.0f} GFLOP/s, {factor:.2f} × float32; ridge at {ridge:.0f} FLOP/byte")
    if factor < 0.8:
        print(f"{name} is slower than float32: this machine emulates it (chapter 10)")

# %% [markdown]
r"""
*Check.* Does it predict an operation that it has not seen? Adding two large vectors:
"""

# %% tags=["nbval-ignore-output"]
numbers = copied * 2**18  # as many bytes as the copy's array
x, y = torch.ones(2, numbers, device=device)
out = torch.empty_like(x)
predicted = roofline.seconds(flops=numbers, nbytes=12 * numbers)
measured = min(measure(lambda: torch.add(x, y, out=out), device, repeats=10).times)
print(f"predicted {1e3 * predicted:.2f} ms, measured {1e3 * measured:.2f} ms: {measured / predicted:.2f} ×")

# %% [markdown]
r"""
The prediction is no bound: it may err both ways. Before a processor overwrites part of a cache line it usually fetches the
line (*write-allocate*). The addition then moves four numbers where three were counted, the copy three where two were. If
both do, the factor is (4/3) / (3/2) = 0.89; if a library's copy stores past the cache, 4/3; with neither, as on a GPU, 1.

## What the vendors promise

Peaks from data sheets, for *dense* matrices (sheets like to print the figure for half-empty ones, twice as large) and sums
in float32. A GPU's name must fit exactly: a laptop's RTX 4090 is another chip than the desktop's.
"""


# %%
#| export speed.roofline
@dataclass(frozen=True)
class Peak:
    """A GPU by its data sheet: dense TFLOP/s by format, GB/s, the source, and the driver's names for it."""

    float32: float
    tf32: float | None
    half: float  # bfloat16 with float32 sums; float16 where there is neither TF32 nor bfloat16
    bandwidth: float
    source: str
    reported: tuple[str, ...] = ()  # without NVIDIA, Tesla and GeForce; none: the table's own name


# %%
#| export speed.roofline
PEAKS = {  # by NVIDIA's data sheets and white papers
    "B200": Peak(80, 1100, 2250, 8000, "Blackwell technical brief, 2024 (HGX B200)"),
    "H200": Peak(67, 494.7, 989.4, 4800, "H200 data sheet, 2024 (SXM)"),
    "H100": Peak(67, 494.7, 989.4, 3350, "H100 data sheet, 2023 (SXM)", ("H100 80GB HBM3",)),
    "H100-PCIe": Peak(51, 378, 756, 2000, "H100 data sheet, 2023", ("H100 PCIe",)),
    "A100-80GB": Peak(19.5, 156, 312, 2039, "A100 data sheet, 2021", ("A100-SXM4-80GB",)),
    "A100-80GB-PCIe": Peak(19.5, 156, 312, 1935, "A100 data sheet, 2021", ("A100 80GB PCIe",)),
    "A100-40GB": Peak(19.5, 156, 312, 1555, "A100 white paper", ("A100-SXM4-40GB", "A100-PCIE-40GB")),
    "L40S": Peak(91.6, 183, 362, 864, "L40S data sheet, 2023"),
    "L4": Peak(30.3, 60, 121, 300, "L4 data sheet, 2023"),
    "A10": Peak(31.2, 62.5, 125, 600, "A10 data sheet, 2021"),
    "V100": Peak(15.7, None, 125, 900, "V100 data sheet, 2020 (SXM2)", ("V100-SXM2-16GB", "V100-SXM2-32GB")),
    "V100-PCIe": Peak(14, None, 112, 900, "V100 data sheet, 2020", ("V100-PCIE-16GB", "V100-PCIE-32GB")),
    "T4": Peak(8.1, None, 65, 320, "T4 data sheet, 2019"),
    "A6000": Peak(38.7, 77.4, 154.8, 768, "GA102 white paper, 2020", ("RTX A6000",)),
    "RTX 5090": Peak(104.8, 104.8, 209.5, 1792, "RTX Blackwell white paper, 2025"),
    "RTX 4090": Peak(82.6, 82.6, 165.2, 1008, "Ada white paper, 2022"),
    "RTX 3090": Peak(35.6, 35.6, 71, 936, "GA102 white paper, 2020"),
}


# %%
#| export speed.roofline
def peak_of(gpu: str) -> Peak | None:
    """The data sheet of a GPU by its name in PEAKS or torch.cuda.get_device_name()'s; None for any other name."""
    name = " ".join(word for word in gpu.split() if word not in ("NVIDIA", "Tesla", "GeForce"))
    return next((peak for key, peak in PEAKS.items() if name in (key, *peak.reported)), None)


# %% [markdown]
r"""
## What a step must compute

Now the other side. The FLOPs of matrix products are chapter 05's, three times those of the forward pass, counted there to
the last operation. Which share of the peak they reach is the model's MFU (Chowdhery et al. 2022, appendix B).
"""

# %%
#| export
#| blank mfu: the FLOP/s that were reached, as a share of the peak; refuse what is not positive
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nanogpt.gpt.model import GPTConfig, flops_per_token, num_params


def step_flops(config: GPTConfig, B: int, T: int) -> int:
    """FLOPs of a training step on B × T tokens, forward and backward: the model's matrix products (chapter 05)."""
    return B * T * flops_per_token(config, T)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilization: the share of `peak_flops` (FLOP/s) that the model's own products were, nothing else."""
    if not (seconds > 0 and peak_flops > 0):
        raise ValueError(f"seconds={seconds} and peak_flops={peak_flops} must both be positive")
    return flops / seconds / peak_flops


# %% [markdown]
r"""
## What a step must move

Assume that every operation reads its inputs once from memory, and writes its outputs once. A backward pass reads the
gradient of the output and what the forward pass saved. With N = B·T tokens, the linear layers (the bookkeeping is long:
you may pass over the code of this section and read what it prints):
"""


# %%
#| export
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
    """Forward and backward of linear layers, (inputs, outputs) each, on N tokens: three products and a sum."""
    weights = sum(i * o for i, o in shapes)
    x, y = N * sum(i for i, _ in shapes), N * sum(o for _, o in shapes)
    b = bias * sum(o for _, o in shapes)
    forward = x + weights + b + y
    backward = 2 * (x + weights + y) + bias * (y + b)  # gradients of the input, the weight and the bias
    work = {"forward": (2, forward), "backward": (4, backward)}
    return [Work(part, p, copies * f * N * weights, copies * width * n) for p, (f, n) in work.items()]


# %% [markdown]
r"""
Attention depends on `config.flash`. The fused kernel (chapter 12) reads q, k, v and writes the result; chapter 04's
version writes or reads matrices of T × T numbers per head, eight times forward and eleven times backward.
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


# %% [markdown]
r"""
The rest computes little: a GELU is 9 operations a number (three for the cube, tanh as one), AdamW 14. It moves much.
PyTorch's default AdamW works through its formula operation by operation, on whole arrays. How many does each read and
write? Decay the weight (2), move the mean towards the gradient (3), shrink the mean of squares (2), add the gradient's
square (3), take the root (2), divide it (2), add ε (2), and from the weight subtract mean over root (4). Twenty arrays: 80
bytes a weight. (The chapter's tests count them as they run.) Done in one go (`fused=True`), it reads a weight, its gradient
and two moments and writes three of them: 28 bytes.
"""


# %%
#| export
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


# %%
#| export
from functools import partial

PRODUCTS = ("qkv", "attention", "proj", "mlp", "head")  # the parts that consist of matrix products


def step_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All work of an eager training step with AdamW, in pieces or fused, by part and phase; dropout 0.

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
        *linear_work("head", N, [(C, config.vocab_rows)], 1, False, width),
        *elementwise_work(config, B, T, width, fused),
    ]


# %%
flops, nbytes = Counter(), Counter()  # by part, all phases together
for w in step_work(gpt2, 4, 1024):
    flops[w.part] += w.flops
    nbytes[w.part] += w.nbytes
print(f"GPT-2 small, a step of 4 × 1024 tokens: {flops.total() / 1e12:.2f} TFLOP,", end=" ")
print(f"{nbytes.total() / 1e9:.1f} GB moved")
print(f"{'':14}{'FLOPs':>8}{'bytes':>8}{'GB':>7}   FLOP/byte")
for part, size in nbytes.most_common():
    shares = f"{flops[part] / flops.total():8.2%}{size / nbytes.total():8.1%}"
    print(f"{part:14}{shares}{size / 1e9:7.2f}{flops[part] / size:10.1f}")
answer("09.2", nbytes.most_common(1)[0][0])

# %% [markdown]
r"""
So the optimizer comes first, with the default AdamW; fused it would move 3.5 GB and come behind MLPs, loss and GELUs.
The parts that do nearly all of the arithmetic move less than half of the bytes. The rest is moved by operations that
compute next to nothing. (The tests sum the sizes of all float inputs and outputs of a real step's operations, and want
the same bytes to the last one.)

A larger batch shares the weights among more tokens, so linear layers climb the roofline. The rest stays where it is.
On this machine, for this chapter's model:
"""

# %% tags=["nbval-ignore-output"]
mine = {"vector + vector": 1 / 12, "matrix × vector": 1 / 2}
mine |= {w.part: w.intensity for w in step_work(config, B, T) if w.phase != "backward"}
show(
    figures.roofline(roofline, mine),
    alt="This machine's roofline with the forward operations of a GPT step and the update: elementwise ones on the slope, linear layers further right.",
)
print("memory-bound:", ", ".join(name for name, i in mine.items() if i < roofline.ridge()))

# %% [markdown]
r"""
## What a step must keep

Parameters, gradients and AdamW's two moments take 16 bytes per parameter in float32. *Activations*, which the forward pass
saves for the backward pass, grow with the batch. What does the derivative of each operation in a block need?

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


# %%
#| export
def memory_by_category(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes of a float32 training step with AdamW, by category."""
    tensors = 12 * config.n_layer + 4 if config.bias else 6 * config.n_layer + 3
    P = 4 * num_params(config)
    optimizer = 2 * P + 4 * tensors  # two moments, and for each tensor a count of its steps
    activations = activation_bytes(config, B, T)
    return {"parameters": P, "gradients": P, "optimizer": optimizer, "activations": activations}


# %% [markdown]
r"""
To measure it, look at each tensor as autograd saves it. Two traps: the same memory is often saved twice under different
shapes, so count storages, not tensors. And weights are saved as well, but they are no activations.
"""

# %%
#| export
#| blank saved_bytes: a saved_tensors_hooks function sees each saved tensor; count each storage once
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
model, optimizer, (x, y), step = new_step()
step()
model(x, y)[1].backward()
states = [t for state in optimizer.state.values() for t in state.values()]
groups = [model.parameters(), (p.grad for p in model.parameters()), states]
measured = [sum(t.nbytes for t in group) for group in groups]
measured.append(saved_bytes(lambda: model(x, y), exclude=model.parameters()))
predicted = memory_by_category(config, B, T)
for (name, expected), found in zip(predicted.items(), measured):
    print(f"{name:12} predicted {expected:12,}   measured {found:12,} bytes")
assert device.type != "cpu" or list(predicted.values()) == measured, "on a CPU the prediction is exact"

# %% [markdown]
r"""
On a CPU, not one byte off. (On a GPU, fused attention may keep a little more, and the allocator rounds sizes up.) The
same formulas for GPT-2 small:
"""

# %%
print("GPT-2 small, T=1024: parameters, gradients, moments and activations in GiB")
for flash in (False, True):
    for size in (1, 4, 16):
        gib = [n / 2**30 for n in memory_by_category(replace(gpt2, flash=flash), size, 1024).values()]
        row = "".join(f"{number:7.2f}" for number in gib)
        print(f"attention {'fused' if flash else 'in steps':8} B={size:2} {row}  together {sum(gib):6.2f}")
answer("09.3", memory_by_category(gpt2, 4, 1024)["activations"] / 2**30)

# %% [markdown]
r"""
Activations dwarf the rest as the batch grows. What fused attention saves are the T×T weights: chapter 12, where the *peak*
of a step is found too, since not all of this exists at once.

On a GPU, `nvidia-smi` shows more: the CUDA context, and what PyTorch's allocator keeps *reserved*. And its "utilization" is
the share of time in which any kernel ran, not how much of the GPU it used: one thread in an endless loop makes 100%. A
snapshot shows every block and the line that made it (pytorch.org/memory_viz); NVTX ranges name a phase in Nsight Systems
(`nsys profile python train.py`):

```python
torch.cuda.memory._record_memory_history()
with torch.cuda.nvtx.range("step"):
    step()
torch.cuda.memory._dump_snapshot("memory.pickle")
print(torch.cuda.memory_allocated() / 2**30, torch.cuda.memory_reserved() / 2**30, "GiB")
```

## Predict the step, then measure it

The roofline gives each part of the step a time. Their sum is the prediction.
"""


# %%
#| export
def predict_step(
    config: GPTConfig, B: int, T: int, roofline, dtype: str = "float32", fused: bool = False
) -> dict[tuple[str, str], float]:
    """(part, phase) -> seconds that a nanogpt.speed.roofline.Roofline allows for `step_work`. Its sum predicts the step.

    dtype names the roofline's rate for PRODUCTS; with a 16-bit one their numbers have two bytes.
    """
    width = 2 if dtype in ("bfloat16", "float16") else 4
    return {
        (w.part, w.phase): roofline.seconds(w.flops, w.nbytes, dtype if w.part in PRODUCTS else "float32")
        for w in step_work(config, B, T, width, fused)
    }


# %% tags=["nbval-ignore-output"]
predicted = predict_step(config, B, T, roofline)
timing, total = measure(step, device, repeats), sum(predicted.values())
share = mfu(step_flops(config, B, T), timing.median, roofline.flops["float32"])
print(f"predicted {1e3 * total:.1f} ms, measured {timing}: {timing.median / total:.2f} ×")
print(f"MFU against the measured product: {share:.1%}")
if share > 1 or timing.q3 > 1.3 * timing.q1:
    print("another program disturbed one of the measurements: no comparison holds, run this section again")
if device.type == "cuda" and (sheet := peak_of(torch.cuda.get_device_name(device))):
    print(f"MFU against the data sheet: {share * roofline.flops['float32'] / 1e12 / sheet.float32:.1%}")
answer("09.4", 100 * share)

# %% [markdown]
r"""
Published MFUs use the data sheet's peak, in the format of the products; the measured product says what is left to win with
this device and this library.

## Where the time goes

A factor for the whole step is no diagnosis. The profiler records every operation. Its *self* time is that without the
operations it calls. Summed over matrix products and over all else, a step, beside the roofline's:
"""

# %% tags=["nbval-ignore-output"]
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
clock = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
with profile(activities=activities, acc_events=True) as prof:
    for _ in range(5):
        step()
        synchronize(device)
found, least = Counter(), Counter()
for row in prof.key_averages():
    if row.key.startswith("aten::"):
        found["products" if re.search("mm$|attention", row.key) else "all else"] += getattr(row, clock) / 5e6
for (part, _), seconds in predicted.items():
    least["products" if part in PRODUCTS else "all else"] += seconds
for kind, seconds in found.items():
    print(f"{kind:9} {1e3 * seconds:.1f} ms, {seconds / least[kind]:.1f} × the roofline's time")

# %% [markdown]
r"""
(Each call with its shapes on a line in time: `record_shapes=True`, `prof.export_chrome_trace("trace.json")`, and
ui.perfetto.dev.)

Why is a factor what it is? **A cache is faster than memory**: an operation below one found its arrays there. **The peak
belongs to a large square product**: thin or small ones reach less. **An operation in pieces moves more bytes**, as AdamW
does; chapter 14 measures it in one piece. **Launching costs time**: Python and the dispatcher need microseconds for each
operation, however little it does, and where layers are small a GPU's queue runs empty meanwhile (chapter 11 counts them).
**Fresh memory is not free**: a block that a CPU's allocator takes from the system comes in pages, which the system must
find and clear when each is first touched. What does such a *page fault* cost?
"""


# %%
#| export speed.roofline
import mmap

PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = min(measure(lambda: torch.empty_like(old).fill_(1), cpu, 8).times)
    again = min(measure(lambda: old.fill_(1), cpu, 8).times)
    return max(0.0, fresh - again) * PAGE / old.numel()


# %% tags=["nbval-ignore-output"]
fault = fault_seconds()
print(f"a page of {PAGE} bytes: {1e6 * fault:.2f} µs; a GiB of them: {1e3 * fault * 2**30 / PAGE:.0f} ms")

# %% [markdown]
r"""
Where products lose, fewer bits help (chapter 10), and better shapes (chapter 13). Where elementwise operations lose, fusing
them, so that a number is read once for several operations (chapter 11). Attention is chapter 12's, fresh memory 13's.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("09")

# %%
checkpoint("09")

# %% [markdown]
r"""
## Exercises

`course exercises release 09` writes these as a notebook to `released/`; `course check 09` runs their visible checks.

- **09-1** A clock that waits, 15 minutes: mend a clock for a device with a queue.
- **09-2** Under which roof?, 25 minutes: FLOPs, bytes, limit and MFU for a kernel and a run of your own.
- **09-3** How many tokens reach the ridge?, 20 minutes: derive from which batch on serving is limited by arithmetic.
- **09-4** A check for a FLOP count, 25 minutes: write the check; it is tried on wrong counts.
- **09-5** 71% of what?, 5 minutes: three things that can be wrong with a number.

To explore:

1. CUDA's queue is finite: a launch into a full one waits. Let a launch wait while four kernels are not `done()`, and draw
   the naive time against the number of kernels. *Check:* it is flat up to a point, then rises by 10 ms a kernel.
2. Predict how the MFU changes if B doubles, then if T doubles at the same B·T, and measure both. *Check:* say first
   which parts' intensity changes; `step_work` says whether you were right.
3. Give the model dropout 0.1 and extend `activation_bytes` by what it makes autograd save. *Check:* `saved_bytes`
   agrees to the byte on the CPU, with `flash=False`. One addition is no mask: which? And how many bytes does the CPU
   keep for each yes or no?

## Further reading

- S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model*, CACM 52(4), 2009.
- A. Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, 2022, appendix B: MFU defined.
- V. Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022, §4: activations counted
  operation by operation, in 16 bits and with dropout.
- T. Hoefler, R. Belli, *Scientific Benchmarking of Parallel Computing Systems*, SC 2015: medians, spread, and twelve
  rules for reporting times.
- PyTorch documentation: *CUDA semantics*, "Asynchronous execution"; *torch.profiler*; *torch.utils.benchmark*.
"""
