# %% [markdown]
r"""
# 09 · Measuring: a clock, and what to compare it with

The next chapters make training faster, and each says by how much. Such a number is easy to get wrong. A call to a GPU
returns before the work is done. The first call does work that later calls don't. Another program takes the processor
for a moment, and the mean doubles. And a time alone does not say whether it is good.

So this chapter builds three things. First comes a clock that can be trusted. Then comes a fair way to say that one
program is faster than another. Last comes something to compare a time with: what the machine can do at most. At the end
you know which share of your machine's speed a training step of GPT-2 uses. Chapter 09b then finds out where the rest is
lost.
"""

# %%
#| default_exp labs.roofline.clock
#| doc labs.roofline.clock: A clock, which of two programs is faster, and what a device can do at most, as measured.
#| doc labs.roofline.sheets: What GPUs can do at most, by their data sheets.
import time
from concurrent.futures import ThreadPoolExecutor, wait
from statistics import fmean, median

import torch

from course.figures import measuring as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import GPT, SIZES, GPTConfig, flops_per_token

# %% tags=["nbval-ignore-output"]
device = pick_device()
if device.type == "mps":
    print("PyTorch's profiler does not see an Apple GPU; chapters 09 and 09b measure the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
config = {
    "ci": GPTConfig(block_size=64, vocab_size=1024, n_layer=2, n_head=2, n_embd=64),
    "laptop": GPTConfig(block_size=128, vocab_size=4096, n_layer=4, n_head=4, n_embd=256),
    "gpu": SIZES["gpt2"],
}[scale]
B, T, repeats = {"ci": (2, 64, 10), "laptop": (2, 128, 10), "gpu": (4, 1024, 20)}[scale]
product, copied = {"ci": (256, 32), "laptop": (1024, 256), "gpu": (8192, 1024)}[scale]  # n × n, MiB
print(f"device {device}, scale {scale}, {torch.get_num_threads()} threads")

# %% [markdown]
r"""
## A clock that lies

A GPU is another computer. A Python call puts work into the GPU's queue and returns at once. Python waits only when it
asks for a result. We build a model of such a queue, so that you can see this without a GPU: a thread takes calls one by
one, and a "kernel" (a function that runs on a GPU) is 10 ms of sleep.

*Predict.* We make nine such calls, and read the clock before the first and after the last. What does it say? Replace
`None` by your guess, here and below.
"""

# %%
predict("09.1", "nine kernels of 10 ms, clock read at once", guess=None, unit="ms")

# %%
gpu = ThreadPoolExecutor(max_workers=1)  # `submit` returns at once, one thread makes the calls in order


def kernel(part):
    """10 ms of work elsewhere: (part, start, end)."""
    start = time.perf_counter()
    time.sleep(0.01)
    return part, start, time.perf_counter()


calls = 9
start = time.perf_counter()
launched = [gpu.submit(kernel, "forward") for _ in range(calls)]
naive = 1e3 * (time.perf_counter() - start)
wait(launched)  # on a GPU: torch.cuda.synchronize()
honest = 1e3 * (time.perf_counter() - start)
print(f"{calls} kernels of 10 ms: {naive:.3f} ms without synchronize, {honest:.3f} ms with it")
answer("09.1", naive)

# %% [markdown]
r"""
The first number is the time to *ask* for nine kernels. If the kernels were twice as slow, it would be the same.

The mistake has a second form, which costs more hours because it blames the wrong line. Suppose you read the clock after
each part of a training step: forward, backward, and `loss.item()`. The last one needs the number itself, so it waits for
everything before it.
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
In the upper picture the clock gives all the time to `loss.item()`, which does nothing. In the lower picture we wait for
the queue after each part, and each part gets its own time. (The "host" is the computer that Python runs on.)

## A clock that waits

The remedy is to wait until the queue is empty, before the clock starts and before it stops. On a CPU there is no queue,
so there is nothing to wait for.
"""


# %%
#| export device
def synchronize(device: torch.device) -> None:
    """Wait until the device has finished everything that was queued; the CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


# %%
#| export
import time
from collections.abc import Callable
from itertools import pairwise

import torch


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


# %% tags=["nbval-ignore-output"]
print(f"sleeping 10 ms took {1e3 * host_times(lambda: time.sleep(0.01), device, 1)[0]:.1f} ms")

# %% [markdown]
r"""
Waiting has a price on a GPU. After each wait the queue is empty, and the next kernel cannot start before Python has asked
for it. A training loop does not wait like that, so this clock would say too much. Therefore a GPU has a clock inside the
queue as well. An *event* is put into the queue like a kernel, and notes the time when the GPU reaches it. We put one
event between all calls and wait once, at the end.
"""


# %%
#| export
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


# %% [markdown]
r"""
## The first calls

Now we need something to measure. Here are a small GPT-2 and its training step. We make some steps and draw their times in
the order in which they came.
"""


# %%
def new_step(**options):
    """A function that makes a training step of a new model on random ids. options: for AdamW."""
    g = seed_everything(0)
    model = GPT(config, generator=g).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    x, y = torch.randint(config.vocab_size, (2, B, T), generator=g).to(device)

    def step():
        model(x, y)[1].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# %% tags=["nbval-ignore-output"]
step = new_step()
times = timings(step, device, repeats + 5)
alt = "Time of each training step in order; lines mark mean and median."
show(figures.step_times(times), alt=alt)
print(f"first {1e3 * times[0]:.1f} ms, median {1e3 * median(times):.1f} ms, mean {1e3 * fmean(times):.1f} ms")

# %% [markdown]
r"""
The first step does work that no later step does: AdamW allocates its two moments, memory comes from the operating system,
thread pools start, libraries choose and load their kernels. None of this belongs in a rate. So we *warm up*: we make a
few calls first and do not count them.

Later calls can be slow as well. A peak in the middle of the figure usually means that another program took the processor.
In the mean, one such call weighs as much as many good ones. The *median* is the value in the middle when the times are
sorted: it ignores the slow calls as long as they are fewer than half. We keep all times, the median, and the quartiles (a
quarter of the calls was faster than the first, a quarter slower than the last).

For some questions the fastest call is the right one: other programs can only slow us down, so the fastest call shows what
the machine *can* do.
"""

# %%
#| export
from dataclasses import dataclass
from statistics import median, quantiles


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
#| export
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
for attempt in (1, 2, 3):
    print(f"training step, attempt {attempt}:", measure(step, device, repeats, warmup=1))

# %% [markdown]
r"""
(PyTorch has a clock as well, `torch.utils.benchmark.Timer`. It has a trap: unless told otherwise it sets PyTorch to *one*
thread.)

## Is it faster?

Look at the three lines. We measured the same step three times, and the medians differ. Sometimes even their middle halves
do not overlap. Nothing was changed, so the difference is noise. But this noise is not random from call to call: it
*drifts*. Another program runs for ten seconds, or the processor gets warm and lowers its clock. Then all calls of one
measurement are slow, and no spread within this measurement shows it. If you had changed a line of code in between, you
would have believed that it made the step slower.

The remedy is to measure the two versions *in turn*: A, B, then B, A, and so on. A slow phase then hits both. We compare
only within a pair, and get one ratio for each pair.

How sure is the median of these ratios? There is a simple answer that assumes nothing about the noise but that pairs are
independent of each other. Suppose there is no difference. Then each ratio is above or below 1 with probability 1/2, like
a coin. With 20 coins, five heads or fewer come up in 2% of all cases, and so do 15 or more. So we sort the 20 ratios and
leave out the five smallest and the five largest. The true median lies between the ends of the rest in about 96% of all
cases. This is called the *sign test*. If the interval contains 1, we say: no difference was measured.
"""


# %%
#| export
import math
from collections.abc import Sequence


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


# %%
#| export
#| blank gain_of: sort; leave out k at each end, the largest k with at most 2.5% chance of k heads or fewer in n tosses
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


# %%
#| export
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


# %% [markdown]
r"""
*Check.* First we compare the step with a second copy of itself. Then we compare it with a step that PyTorch does
differently: `fused=True` makes AdamW's update in one pass over the weights instead of many (chapter 09b counts them).
"""

# %% tags=["nbval-ignore-output"]
for name, options in {"the same step again": {}, "with a fused AdamW": {"fused": True}}.items():
    gain = faster(step, new_step(**options), device, pairs=12)
    verdict = "a difference" if gain.sure else "no difference was measured"
    print(f"{name:20} {gain}: {verdict}")

# %% [markdown]
r"""
The interval of the first line should contain 1. In one of twenty such comparisons it does not: that is what 95% means. If
you try twenty ideas, expect one of them to "work" by chance, and measure that one again.

From here on, a speed-up in this course comes with such an interval.

### What else disturbs a clock

**On a CPU: threads that spin.** PyTorch splits a large operation over several threads. Afterwards the threads wait for the
next one, in one of two ways. A thread that *spins* asks again and again whether there is work. It answers at once, but it
keeps its core busy. A thread that *sleeps* gives its core away, and needs some microseconds to wake up. If a browser or a
second training run wants the same cores, spinning threads take them away from threads that have work. In November 2026, on
two AMD cores beside a load like a browser's, a training step of chapter 07's model took 160 to 1,258 ms with spinning threads
and 50 to 87 ms with sleeping ones; alone on the two cores both took the same time (`bench/wait_policy.py`).
The course therefore sets `OMP_WAIT_POLICY=passive` wherever it starts Python, unless you have set the variable yourself.

**On a GPU: caches, clocks and the numbers themselves.** Three things that GPU engineers check, with a source for each:

- If a call is repeated on the same small tensors, they stay in the GPU's L2 cache. In training, other operations come in
  between and push them out. Triton's `do_bench` overwrites the cache before each call for this reason. We avoid the
  problem by tensors that are larger than the cache.
- A GPU lowers its clock when it reaches its power limit or gets too warm. `nvidia-smi -q -d CLOCK,PERFORMANCE` shows the
  clocks and the reason.
- Power depends on how many bits flip, so a product of matrices full of zeros can be faster than one of random numbers (H. He,
  *Strangely, Matrix Multiplications on GPUs Run Faster When Given "Predictable" Data!*, 2024). So we multiply random numbers.

## What the machine can do

Is the time of our step good? Two limits help to answer this. The first is arithmetic. A product of two n × n matrices has
n² results. Each is a sum of n products, so it takes n multiplications and n additions: 2n³ operations in all. Nothing on the
machine computes faster than a large matrix product, so its rate is the *peak*. We count in FLOP/s, floating-point operations
a second.
"""

# %% tags=["nbval-ignore-output"]
a, b = torch.randn(2, product, product, device=device)
seconds = min(measure(lambda: a @ b, device, repeats=10).times)
print(f"{product} × {product}: {1e3 * seconds:.2f} ms, {2 * product**3 / seconds / 1e9:.0f} GFLOP/s")

# %% [markdown]
r"""
The peak depends on the number format, and a device does not have all formats. Chapter 10 explains them; here we only
measure. Three details: the matrices come from a generator of their own, so that measuring does not change what is drawn
later. TF32 is not a type but a switch, which we set back at the end. And where the hardware lacks a format, PyTorch
emulates it so slowly that two calls are enough.
"""


# %%
#| export device
def matmul_formats(device: torch.device) -> list[str]:
    """The number formats in which this device multiplies matrices, in hardware or emulated: at least float32."""
    if device.type != "cuda":
        return ["float32", "bfloat16"]
    if torch.version.hip:
        return ["float32", "bfloat16", "float16"]
    if torch.cuda.get_device_capability(device) < (8, 0):  # before Ampere: CUDA Programming Guide
        return ["float32", "float16"]
    return ["float32", "tf32", "bfloat16", "float16"]


# %%
#| export
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


# %% tags=["nbval-ignore-output"]
for name in matmul_formats(device):
    print(f"{name:9} {matmul_flops(device, name, product // 2) / 1e9:8.1f} GFLOP/s at n = {product // 2}")

# %% [markdown]
r"""
The second limit is memory. Most operations in a network add a bias, apply GELU, or normalise. They compute little with
each number that they fetch, so they wait for memory most of the time. A copy reads every byte once and writes it once. So a
copy measures the *bandwidth*, the bytes a second that memory delivers. The array must be large, since a small one stays in
a cache.
"""


# %%
#| export
def copy_bandwidth(device: torch.device, mebibytes: int, repeats: int = 10) -> float:
    """Bytes/s of a copy, the fastest of several; each byte counts twice, once read and once written."""
    source = torch.zeros(mebibytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(measure(lambda: target.copy_(source), device, repeats).times)


# %% tags=["nbval-ignore-output"]
print(f"{copy_bandwidth(device, copied) / 1e9:.1f} GB/s")

# %% [markdown]
r"""
## The roofline

Call the number of operations that a computation does for each byte it moves its *arithmetic intensity* I, in FLOP/byte. The
computation can run no faster than the peak, and no faster than memory feeds it: min(peak, I × bandwidth) (Williams, Waterman
and Patterson 2009). The two limits meet at the *ridge*, I = peak / bandwidth. Left of the ridge an operation is
*memory-bound*: it gets faster only if it moves fewer bytes. Right of the ridge it is *compute-bound*: only faster
arithmetic helps.

Three examples in float32, where a number has 4 bytes. Adding two vectors does one addition for two numbers read and one
written, so I = 1/12. A matrix times a vector does a multiplication and an addition for each number of the matrix, so
I = 1/2. A product of two n × n matrices does 2n³ operations on 3n² numbers, so I = n/6: at n = 1024 that is 171, so the
product is a fair measure of the peak if the ridge lies far below.
"""


# %%
#| export
#| blank Roofline.seconds: arithmetic and memory work at the same time; the slower one decides
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


# %%
#| export
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
    print(f"{name:9} {rate / 1e9:8.1f} GFLOP/s, {factor:.3f} × float32; ridge at {ridge:.1f} FLOP/byte")

# %% [markdown]
r"""
A factor far below 1 means that this machine has no units for the format and emulates it (chapter 10). Here is the roofline, with the
three examples on it.
"""

# %% tags=["nbval-ignore-output"]
examples = {"vector + vector": 1 / 12, "matrix × vector": 1 / 2, f"{product} × {product}": product / 6}
alt = "This machine's roofline: two vectors added and a matrix times a vector lie on the slope, the large product under the flat roof."
show(figures.roofline(roofline, examples), alt=alt)

# %% [markdown]
r"""
A model that writes one token for one reader multiplies matrices by vectors. So it works far left of the ridge, and the bytes
of its weights decide how fast it writes. In training, many tokens share each weight that is read, and the matrix products
move to the right.

*Check.* Does the roofline predict an operation that it has not seen? We add two large vectors.
"""

# %% tags=["nbval-ignore-output"]
numbers = copied * 2**18  # as many bytes as the copy's array
x, y, out = torch.ones(3, numbers, device=device)
predicted = roofline.seconds(flops=numbers, nbytes=12 * numbers)
measured = min(measure(lambda: torch.add(x, y, out=out), device, repeats=10).times)
print(f"predicted {1e3 * predicted:.2f} ms, measured {1e3 * measured:.2f} ms: {measured / predicted:.2f} ×")

# %% [markdown]
r"""
The prediction can be wrong in both directions, because our count of bytes is too simple for a CPU. Before a processor
overwrites part of a cache line, it usually fetches this line from memory (*write-allocate*). Then each number that is written
costs two transfers, unless the program stores past the cache. The factor tells which of the two operations pays:

| who fetches lines before writing | the copy moves | the addition moves | measured / predicted |
|---|---|---|---|
| neither (a GPU) | 2 | 3 | 1 |
| both | 3 instead of 2 | 4 instead of 3 | (4/3) / (3/2) = 0.89 |
| only the addition; the library's copy stores past the cache | 2 | 4 instead of 3 | 4/3 = 1.33 |

A disturbed measurement gives other factors. Run the section again if yours is far from all three.

## What the vendors promise

A vendor's data sheet gives peaks as well. The table below holds those for *dense* matrices, with sums in float32. (Sheets
like to print the figure for matrices of which half the numbers are zero; it is twice as large.) A GPU is found by the name
that its driver reports, and the name must fit exactly: a laptop's RTX 4090 is another chip than the desktop's.
"""


# %%
#| export labs.roofline.sheets
from dataclasses import dataclass


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
#| export labs.roofline.sheets
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


# %%
#| export labs.roofline.sheets
def peak_of(gpu: str) -> Peak | None:
    """The data sheet of a GPU by its name in PEAKS or torch.cuda.get_device_name()'s; None for any other name."""
    name = " ".join(word for word in gpu.split() if word not in ("NVIDIA", "Tesla", "GeForce"))
    for key, peak in PEAKS.items():
        if name == key or name in peak.reported:
            return peak
    return None


# %%
for gpu in ("NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA GeForce RTX 4090 Laptop GPU"):
    print(f"{gpu}: {peak_of(gpu)}")

# %% [markdown]
r"""
How much of its data sheet does a GPU reach? `measure_roofline` ran on two of them (`data/measurements/h100.json` and
`h200.json`, November 2026). Each number is the measured rate as a share of the sheet's: first that of a copy, then those of large square products.

| | copy | float32 | TF32 | bfloat16 |
|---|---|---|---|---|
| H100 | 89% | 77% | 84% | 81% |
| H200 | 88% | 77% | 84% | 81% |

## How good is the step?

A training step of our model needs a known number of operations. Chapter 05 counted those of its matrix products: forward
once, and twice as many backward. Divide them by the measured time, and you have the FLOP/s that the model got. Divide these
by the peak, and you have the *model FLOPs utilization*, MFU (Chowdhery et al. 2022, appendix B). It counts nothing but the
model's own products. So a program that computes something twice, or computes something useless, gets no credit for it.

*Predict.* What share of your machine's peak does the training step reach?
"""

# %%
predict("09.2", "share of the measured peak that a step reaches", guess=None, unit="%")


# %%
#| export model
#| blank mfu: the FLOP/s that were reached, as a share of the peak; refuse what is not positive
def step_flops(config: GPTConfig, B: int, T: int) -> int:
    """FLOPs of a training step on B × T tokens, forward and backward: the model's matrix products (chapter 05)."""
    return B * T * flops_per_token(config, T)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilization: the share of `peak_flops` (FLOP/s) that the model's own products were, nothing else."""
    if not (seconds > 0 and peak_flops > 0):
        raise ValueError(f"seconds={seconds} and peak_flops={peak_flops} must both be positive")
    return flops / seconds / peak_flops


# %% tags=["nbval-ignore-output"]
flops, timing = step_flops(config, B, T), measure(step, device, repeats)
share = mfu(flops, timing.median, roofline.flops["float32"])
print(f"{flops / 1e9:.2f} GFLOP in {timing}")
print(f"{flops / timing.median / 1e9:.1f} GFLOP/s, MFU {share:.1%} of the measured product")
sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
if sheet:
    print(f"MFU {mfu(flops, timing.median, 1e12 * sheet.float32):.1%} of the data sheet")
answer("09.2", 100 * share)

# %% [markdown]
r"""
An MFU above 100% cannot be: then another program has disturbed the measurement of the peak, so run this section again.

On an H100, a step of GPT-2 124M in float32 (16 × 1024 tokens) reached 69% of the measured product. Most publications train in 16 bits,
and use the data sheet's peak for 16 bits. By that peak the same step has an MFU of 3.6%. At the end of this part it will have 39%.

Published MFUs use the peak of the data sheet, in the format of the products. Our measured peak answers another question:
how much is left to win on this device with this library. Always say which peak you mean, of which format, and count the
operations of the model only.

And do not take `nvidia-smi`'s "utilization" for it. This number is the share of time in which *any* kernel ran. One thread
in an endless loop makes 100%.

The step reaches less than the peak because it does not consist of large square products. Chapter 09b counts what it
consists of.

## Checkpoint

The clock, the roofline and the data sheets are instruments, so they go into `nanogpt/labs/roofline`. A training run needs
`synchronize`, `matmul_formats`, `step_flops` and `mfu`, and these go into `device.py` and `model.py`.
"""

# %% tags=["nbval-ignore-output"]
predictions("09")

# %%
checkpoint("09")

# %% [markdown]
r"""
## Exercises

`course exercises release 09` writes these as a notebook to `released/`; `course check 09` runs their visible checks. They
belong to chapters 09 and 09b.

- **09-1** A clock that waits, 15 minutes: repair a clock for a device with a queue.
- **09-2** Under which roof?, 25 minutes: FLOPs, bytes, limit and MFU for a kernel and a run of your own.
- **09-3** How many tokens reach the ridge?, 20 minutes: derive from which batch on serving is limited by arithmetic.
- **09-4** A check for a FLOP count, 25 minutes: write the check; it is tried on wrong counts.
- **09-5** 71% of what?, 5 minutes: three things that can be wrong with a number.

To explore:

1. CUDA's queue is finite: a launch into a full one waits. Let a launch wait while four kernels are not `done()`, and draw
   the naive time against the number of kernels. *Check:* it is flat up to a point, then rises by 10 ms a kernel.
2. How often does `faster` claim a difference between a step and itself? Compare 40 times with 6 pairs each. *Check:* about
   one claim in 32 is due by chance with 6 pairs (why?); many more mean that pairs are not independent.
3. Measure `matmul_flops(device, "float32", n)` for n = 32, 64, … 2048. *Check:* say first from which n on the product is
   compute-bound by the roofline; from which n on does it reach 80% of the peak?

## Further reading

- S. Williams, A. Waterman, D. Patterson, [*Roofline: An Insightful Visual Performance Model*](https://doi.org/10.1145/1498765.1498785), CACM 52(4), 2009.
- A. Chowdhery et al., [*PaLM: Scaling Language Modeling with Pathways*](https://arxiv.org/abs/2204.02311), 2022, appendix B: MFU defined.
- T. Hoefler, R. Belli, [*Scientific Benchmarking of Parallel Computing Systems*](https://doi.org/10.1145/2807591.2807644), SC 2015: medians, spread, and twelve
  rules for reporting times.
- J. Austin et al., [*How to Scale Your Model*](https://jax-ml.github.io/scaling-book/), 2025, part 1: rooflines of TPUs and GPUs.
- PyTorch documentation: [*CUDA semantics*](https://docs.pytorch.org/docs/stable/notes/cuda.html), "Asynchronous execution"; [*torch.utils.benchmark*](https://docs.pytorch.org/docs/stable/benchmark_utils.html).
"""
