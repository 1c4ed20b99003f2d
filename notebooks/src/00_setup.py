# %% [markdown]
r"""
# 00 · Setup: what can this machine do?

By chapter 12 the same GPT-2 will train many times faster than it did in chapter 06, and each step of that
ladder starts with a prediction. A prediction needs two numbers about the machine: how many multiplications
it does in a second, and how many bytes it moves in a second. Vendors print such numbers. This chapter
measures them, since a program only ever gets what can be measured.

The result is one picture, the machine's *roofline*. Every later claim about speed refers to it.
"""

# %%
#| default_exp device
from statistics import median

import matplotlib.pyplot as plt

from course.notebook import checkpoint, show

# %% [markdown]
r"""
## Which device?

PyTorch runs the same code on an NVIDIA (or AMD) GPU, `cuda`, on an Apple GPU, `mps`, and on the processor
itself, `cpu`. The rule for choosing is short, and it has an override, because a test or a lesson must be
able to say "on the CPU, please" without editing code.
"""

# %%
#| export
import os

import torch


def pick_device(prefer: str | None = None) -> torch.device:
    """The device to compute on: `prefer`, else the variable NANOGPT_DEVICE, else the best of cuda, mps, cpu.

    Raises ValueError if the one that was asked for is not there.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    wanted = prefer or os.environ.get("NANOGPT_DEVICE")
    if not wanted:
        return torch.device(next(name for name, there in present.items() if there))
    if not present.get(wanted.split(":")[0], False):
        there = ", ".join(name for name, here in present.items() if here)
        raise ValueError(f"device {wanted!r} is not available; this machine has {there}")
    return torch.device(wanted)


# %% [markdown]
r"""
A laptop and an H200 should run the same notebook, but not at the same size. Each chapter keeps its sizes in a
small table with a row for each *scale*, and never asks you to edit one.
"""

# %%
#| export
SCALES = ("ci", "laptop", "gpu")


def pick_scale(device: torch.device) -> str:
    """The size of the experiments: NANOGPT_SCALE if set, else `gpu` on a CUDA device and `laptop` elsewhere."""
    scale = os.environ.get("NANOGPT_SCALE") or ("gpu" if device.type == "cuda" else "laptop")
    if scale not in SCALES:
        raise ValueError(f"NANOGPT_SCALE is {scale!r}; it must be one of {', '.join(SCALES)}")
    return scale


# %% tags=["nbval-ignore-output"]
device = pick_device()
scale = pick_scale(device)
print(
    f"device {device}, scale {scale}, PyTorch {torch.__version__.split('+')[0]}, {torch.get_num_threads()} threads"
)

# %% [markdown]
r"""
Asking for what is not there gives a sentence, not a crash three cells later:
"""

# %%
try:
    pick_device("tpu")
except ValueError as error:
    print(str(error).split(";")[0])

# %% [markdown]
r"""
## Seeds: one generator, passed on

People who follow a course report that their loss curve differs on each run, although they set the seed. The
usual cause: all random numbers come from one hidden global generator, so a cell that is run twice, or a
sample drawn in between, shifts everything after it.

*Predict.* Two trainings below draw the same two batches of random weights; in the second one, somebody draws a
sample in between. With the global generator, and with one of its own: which second batch stays the same?
"""


# %%
#| export
def seed_everything(seed: int) -> torch.Generator:
    """Seed PyTorch's global generators, and return a CPU generator of its own with the same seed.

    Pass the returned generator to whatever draws random numbers: then no other cell can disturb them.
    """
    torch.manual_seed(seed)  # also seeds every CUDA and MPS device
    return torch.Generator().manual_seed(seed)


# %%
def second_batch(disturb: bool, own: bool) -> torch.Tensor:
    generator = seed_everything(1337)
    draw = {"generator": generator} if own else {}
    torch.randn(3, **draw)
    if disturb:
        torch.rand(1)  # the sample in between comes from the global generator
    return torch.randn(3, **draw)


for own in (False, True):
    same = torch.equal(second_batch(False, own), second_batch(True, own))
    print(f"{'own' if own else 'global'} generator: second batch {'unchanged' if same else 'changed'}")

# %% [markdown]
r"""
From here on, every function of this course that draws random numbers takes a `generator`.

## Half the bits

Chapter 09 is about number formats. Here we only need to know which 16-bit format a device multiplies fast:
bfloat16 on CPUs and on NVIDIA GPUs since Ampere (compute capability 8.0), float16 on older ones.
"""


# %%
#| export
def autocast_dtype(device: torch.device) -> torch.dtype:
    """The 16-bit dtype for `torch.autocast(device.type, dtype=...)`.

    bfloat16 from compute capability 8.0 on; everywhere else what PyTorch itself uses for that device type:
    float16 on older NVIDIA GPUs and on mps, bfloat16 on the CPU. float16 needs loss scaling (chapter 09).
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16
    return torch.get_autocast_dtype(device.type)


# %%
print("on the CPU:", autocast_dtype(torch.device("cpu")))

# %% [markdown]
r"""
## Timing, the short version

A GPU works through a queue: a Python call returns when the work has been *queued*. Reading the clock then
times the queueing. So wait for the queue to drain, before and after. Chapter 08 shows the mistake, and what
else can go wrong. For now: warm up, repeat and synchronise. What usually happens is the median of the times;
what the machine *can* do is the fastest one, since another program can only ever slow us down.
"""

# %%
#| export
import time
from collections.abc import Callable


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


# %% [markdown]
r"""
## Multiplications per second

A product of two n × n matrices needs n³ multiplications and as many additions: 2n³ floating-point operations.
Nothing on the machine computes faster than a large matrix product, so its rate is the machine's measured peak.

*Predict.* How many times faster is bfloat16 than float32 on your machine? It has half the bits. Write a
number down.
"""


# %%
#| export
def matmul_flops(device: torch.device, dtype: torch.dtype, n: int) -> float:
    """Measured FLOP/s of an n × n matrix product, fastest of several."""
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    return 2 * n**3 / min(timings(lambda: a @ b, device))


# %% tags=["nbval-ignore-output"]
n = {"ci": 512, "laptop": 1536, "gpu": 8192}[scale]
flops = {"float32": matmul_flops(device, torch.float32, n)}
if device.type == "cuda":
    torch.set_float32_matmul_precision("high")  # TF32, chapter 09
    flops["tf32"] = matmul_flops(device, torch.float32, n)
    torch.set_float32_matmul_precision("highest")
half = autocast_dtype(device)
flops[str(half).removeprefix("torch.")] = matmul_flops(device, half, n)
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
#| export
def copy_bandwidth(device: torch.device, mebibytes: int) -> float:
    """Measured bytes/s of a copy, fastest of several; each byte counts twice, once read and once written."""
    source = torch.zeros(mebibytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / min(timings(lambda: target.copy_(source), device, budget=0.5))


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
#| export
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
measured = median(timings(lambda: torch.add(x, y, out=out), device))
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
is twice as large). A model's share of the peak is its MFU (chapter 08).
"""


# %%
#| export
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

# %% [markdown]
r"""
Read the last column downwards: from a T4 to an H100 the arithmetic grew fifteenfold, the bandwidth tenfold.
Most of GPT-2's operations stand left of the ridge on every one of these. That is why half of the speed ladder
is about moving fewer bytes.

## Checkpoint

The last cell of every chapter exports the cells that begin with `#| export` into `nanogpt/`, imports the result
in a fresh process and runs the chapter's tests on it. Only if all of that works is the module replaced.
"""

# %%
checkpoint("00")

# %% [markdown]
r"""
## Exercises

1. Repeat the product for n = 64, 128, …, 2048 and draw the rate against n over the roofline. From which n on is
   the peak reached, and where does the roofline alone predict it? *Check:* no measured rate lies above the
   roofline by more than a few percent. If one does, which cache explains it?
2. `torch.set_num_threads(1)`: predict how the peak and the bandwidth change on your machine before you measure.
   They need not change by the same factor.
3. At what batch size does "matrix × vector" become compute-bound? Derive it from the ridge, then measure it.

## Further reading

- S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model*, CACM 52(4), 2009.
- NVIDIA, *GPU Performance Background User's Guide*: arithmetic intensity, tiles and waves.
- H. He, *Making Deep Learning Go Brrrr From First Principles*, 2022: compute, memory bandwidth, overhead.
"""
