# %% [markdown]
r"""
# 14 · The ladder: every speed-up, predicted

In a lecture of 2024 a training step of GPT-2 went from one second to 90 milliseconds, on the same GPU and the same data.
Each change had a few lines. Chapters 09 to 13 took such changes one at a time. In this chapter they are put on top of each
other, like the rungs of a ladder. We write one training step that can take each of them, and then we predict how long the
step takes on every rung: from its FLOPs and bytes, before anything is timed.

Chapter 14b climbs the ladder on your machine and compares. This chapter needs no GPU and almost no computing. It needs a
data sheet, and some counting.
"""

# %%
#| default_exp labs.ladder.forecast
#| doc labs.ladder.forecast: The ladder before anything is run: the time and the memory of each rung, from bytes, FLOPs and a data sheet.
import json
from pathlib import Path

from course.figures import ladder as figures
from course.notebook import answer, checkpoint, predict as guess, predictions, show
from nanogpt.labs.roofline.memory import fault_seconds
from nanogpt.model import num_params
from nanogpt.labs.roofline.sheets import peak_of

DATA = Path("../data")

# %%
#| export
import csv
import math
from importlib.resources import files

from nanogpt.labs.ladder.rungs import RUNGS, rungs_up_to, zipf_batches
from nanogpt.labs.roofline.memory import PAGE
from nanogpt.labs.roofline.work import PRODUCTS, Fractions, step_work
from nanogpt.model import GPTConfig, num_params
from nanogpt.precision import READS
from nanogpt.labs.roofline.sheets import PEAKS, Peak, peak_of
from nanogpt.labs.roofline.clock import Roofline

# %%
RUNGS = dict(list(RUNGS.items())[:10])  # chapter 13's ten; a complete package has more
with (files("nanogpt") / "resources/build_nanogpt.csv").open(encoding="utf-8") as file:
    lecture = {row["rung"]: row for row in csv.DictReader(file)}
show(
    figures.published(list(lecture.values())),
    alt="Published milliseconds a step on an A100, from 1000 in float32 down to 90 with a fused AdamW, in seven steps.",
)
print("source:", lecture["float32"]["source"].split(":")[0])

# %% [markdown]
r"""
Every dot is a step of the same model with one change more than the dot before. The largest gains are the first one (TF32)
and the one of compile.

*Predict.* Write your guesses down before you read on.

1. By the A100's data sheet, TF32 multiplies eight times as fast as float32. How many times as fast is the whole step?
2. How many bytes does a fused AdamW move in each step, for 124 million parameters?
3. How many GiB does the first rung need for the lecture's batch, 16 rows of 1,024 tokens?
"""

# %%
guess(
    "14.1", "gain of the second rung (TF32 on an A100), at the limits of the data sheet", guess=None, unit="×"
)
guess("14.2", "bytes that a fused AdamW moves for GPT-2 124M", guess=None, unit="GB")
guess("14.3", "memory of the first rung, B=16, T=1024", guess=None, unit="GiB")

# %% [markdown]
r"""
## A step is a set of names

Chapter 13 gave every speed-up of this part a name. A training step is described by the names that are on: all rungs up to one of
them, except those that a machine cannot do. Two of the rungs are for special machines. "kept memory" is for CPUs. "fp16" is for GPUs that have no bfloat16.
"""

# %%
#| export labs.ladder.rungs
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nanogpt.data import to_device
from nanogpt.device import seed_everything
from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import LossScaler
from nanogpt.training import train_step

# %%
print(sorted(rungs_up_to("flash", skipped=["kept memory", "fp16"])))

# %% [markdown]
r"""
The first chapters of this part have built everything that a rung needs. Three of them change the word for the precision
(chapter 10), and two change the model's configuration: which attention it uses, and how many rows its vocabulary has.
"""

# %%
#| export labs.ladder.rungs
WORDS = {"bf16 weights": "bf16-masters", "bf16": "bf16", "fp16": "fp16", "TF32": "tf32", "float32": "float32"}


def precision_of(on: set[str]) -> str:
    """Chapter 10's word for the precision of a step with the rungs in `on`."""
    for rung, word in WORDS.items():  # the highest rung first
        if rung in on:
            return word
    return "float32"


def for_rungs(config: GPTConfig, on: set[str]) -> GPTConfig:
    """The configuration as the rungs in `on` change it: which attention, how many rows."""
    rows = -(-config.vocab_size // 128) * 128 if "nice numbers" in on else None
    return replace(config, flash="flash" in on, padded_vocab_size=rows)


# %%
for name in ("float32", "bf16", "bf16 weights"):
    on = rungs_up_to(name)
    config = for_rungs(GPTConfig(), on)
    print(f"{name:13} {precision_of(on):13} flash={config.flash}, rows of the vocabulary {config.vocab_rows}")

# %% [markdown]
r"""
Three rungs are about AdamW. By default PyTorch runs it as many small operations, and each of them reads and writes tensors
as large as the parameters. `fused=True` does the whole update in one pass (chapter 09b). With bfloat16 weights, the
optimizer is chapter 10b's `MasterAdamW`, which keeps float32 masters, and which `torch.compile` can fuse into one pass.

This function goes into the module where a training run takes its optimizer from, so that the ladder measures the optimizer
that a run gets. Chapter 15 will let it treat matrices and biases differently. `MasterAdamW` is in a lab, `labs/ladder/masters.py`. A run of another
precision does not need it, so the function imports it by its name, and only when the word is `bf16-masters`.
"""


# %%
#| export optim
#| blank make_optimizer: bf16-masters needs MasterAdamW of the module MASTERS; everything else torch.optim.AdamW, fused where that is asked for
from importlib import import_module

import torch

from nanogpt.model import GPT

MASTERS = "nanogpt.labs.ladder.masters"  # chapter 10b; imported where it is asked for


def make_optimizer(
    model: GPT,
    lr: float,
    precision: str = "float32",
    *,
    betas=(0.9, 0.98),
    weight_decay=0.01,
    fused=True,
    compiled=False,
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019). fused: one kernel for all, the same numbers; None: PyTorch's own choice.

    compiled: whether torch.compile fuses the update of `bf16-masters`, which has no fused kernel.
    """
    options = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
    if precision == "bf16-masters":
        return import_module(MASTERS).MasterAdamW(model.parameters(), compiled=compiled, **options)
    return torch.optim.AdamW(model.parameters(), fused=fused, **options)


# %%
tiny = GPTConfig(block_size=32, vocab_size=512, n_layer=2, n_head=2, n_embd=64)
print([type(make_optimizer(GPT(tiny), 3e-4, word)).__name__ for word in ("float32", "bf16-masters")])

# %% [markdown]
r"""
On a GPU we compile the whole model. On a CPU the compiler is slow, and all blocks have the same code. So there we compile
one block, which serves for all, and the head. This costs a twelfth of the time for 12 layers, and sums that span two blocks
stay unfused.

The token ids come from chapter 13's `zipf_batches`: the same ids on every rung, and something to learn in the first steps.
"""


# %%
#| export labs.ladder.rungs
def compile_in_place(model: GPT, device: torch.device) -> None:
    """On a GPU the whole model and its loss; elsewhere one block, whose code all blocks share, and the head."""
    if device.type == "cuda":
        model.compile()
        return
    for block in model.transformer.h:
        block.compile()
    model.head = torch.compile(model.head)


# %% [markdown]
r"""
Now the step itself. It is chapter 10b's `train_step`, with everything that the names ask for.
"""


# %%
#| export labs.ladder.rungs
def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    model, precision = GPT(for_rungs(config, on), seed_everything(0)).to(device), precision_of(on)
    how = {"fused": "fused AdamW" in on or None, "compiled": "compile" in on}
    optimizer = make_optimizer(model, 3e-4, precision, betas=(0.9, 0.95), weight_decay=0.1, **how)
    if "compile" in on:
        compile_in_place(model, device)
    scaler = LossScaler() if precision == "fp16" else None
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = next(batches)
        batch = to_device(x.numpy(), y.numpy(), device)
        return train_step(model, optimizer, [batch], precision, scaler=scaler)

    return model, step


# %% [markdown]
r"""
*Check.* A rung may change the time, but not the result. With 512 tokens no row has to be added, so all rungs should learn
alike, except for the rounding of bfloat16. (compile is left out here, since it would take most of the time.)
"""

# %%
losses = {}
for name in ("float32", "bf16", "flash", "nice numbers", "bf16 weights"):
    _, step = make_step(tiny, rungs_up_to(name, ["compile", "fp16", "TF32"]), 4, 32, torch.device("cpu"))
    losses[name] = [step().item() for _ in range(8)]
    print(f"{name:13} loss {losses[name][0]:.2f}, after 8 steps {losses[name][-1]:.2f}")
apart = max(abs(each[-1] - losses["float32"][-1]) for each in losses.values())
assert apart < 0.05, f"a rung changes the time, not the loss; here they are {apart:.3f} apart"

# %% [markdown]
r"""
## The work of a step, rung by rung

Chapter 09b listed the FLOPs and the bytes of a step, part by part. A roofline turns them into time: each part takes as long
as its arithmetic or its bytes, whichever is slower. What does a rung change in this list?

TF32, bfloat16 and float16 change the *rate* of the products. The last two also change the *size* of the numbers in the
products and in GELU, from four bytes to two. compile and flash change the number of *passes* over large tensors. For the
scores of attention and for the logits these passes can be counted in the code, forward and backward together:

| | float32 | compiled | autocast | both |
|---|---|---|---|---|
| a score | 19 passes of 4 bytes: 76 | 11 passes: 44 | softmax in float32, with casts: 72 | 11 passes of 2: 22 |
| a logit | 6 passes of 4 bytes: 24 | 4 passes: 16 | loss in float32, with casts: 36 | 4 passes of 2: 8 |

On a CPU, autocast leaves softmax in 16 bits: 19 passes of 2 bytes make 38. When a step is compiled, scaling, mask and softmax
are one kernel, and log-probabilities are never written. LayerNorm reads the residual sum while it is still in a register.
This halves the residual's bytes. Where blocks are compiled one by one it holds for every other sum, and a quarter is saved.
"""

# %%
#| export
SCORE_BYTES = {"float32": 76, "compiled": 44, "autocast": 72, "autocast on a CPU": 38, "both": 22}
LOGIT_BYTES = {"float32": 24, "compiled": 16, "autocast": 36, "autocast on a CPU": 36, "both": 8}


def way_of(on: set[str], device: str) -> str:
    """The column of the two tables for a step with the rungs in `on`."""
    if "compile" in on:
        return "both" if {"bf16", "fp16"} & on else "compiled"
    if not {"bf16", "fp16"} & on:
        return "float32"
    return "autocast on a CPU" if device == "cpu" else "autocast"


# %% [markdown]
r"""
Flash attention needs one more look. The list counts all T × T products of attention, although the causal mask throws half
of them away. Attention step by step computes them all. A flash kernel works in tiles of, say, 128 × 128, and skips the tiles
above the diagonal. With n tiles in a row it computes (n + 1)/2n of them. On the other hand it computes the scores a second
time in the backward pass: 7 products instead of 6. Chapter 12 counted both. Without this factor our limit would be too
high, and a program could beat it.
"""


# %%
#| export
#| blank flash_share: (n + 1) / 2n of the tiles, and 7 products where the list counts 6
def flash_share(T: int, tile: int = 128) -> float:
    """The share of attention's T × T products that a causal flash kernel computes, forward and backward (chapter 12).

    A tile that is not full counts as a full one.
    """
    n = -(-T // tile)
    return 7 / 6 * (n + 1) / (2 * n)


# %%
for T in (128, 1024, 4096):
    print(f"T={T:4}: {flash_share(T):.2f} of the products that the list counts")

# %% [markdown]
r"""
With these, `work_seconds` is chapter 09b's list with some numbers replaced. It leaves out the optimizer, which comes next.
"""


# %%
#| export
def work_seconds(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds by part of forward and backward on the roofline: chapter 09b's step_work, as the rungs in `on` change it."""
    config, way, word = for_rungs(config, on), way_of(on, roof.device), precision_of(on)
    width = 2 if {"bf16", "fp16"} & on else 4
    flops, nbytes = {}, {}
    for work in step_work(config, B, T, width):
        if work.part != "optimizer":
            flops[work.part] = flops.get(work.part, 0) + work.flops
            nbytes[work.part] = nbytes.get(work.part, 0) + work.nbytes
    if config.flash:
        flops["attention"] *= flash_share(T)
    else:
        nbytes["attention"] += (SCORE_BYTES[way] - 19 * width) * config.n_layer * B * config.n_head * T * T
    nbytes["cross-entropy"] = LOGIT_BYTES[way] * B * T * config.vocab_rows
    if "compile" in on:
        nbytes["residual"] *= 1 / 2 if roof.device == "cuda" else 3 / 4
    if "bf16 weights" in on:  # the stream has two bytes a number, elsewhere four
        for part in ("embedding", "layer norm", "residual"):
            nbytes[part] /= 2
    rate = {part: READS.get(word, word) if part in PRODUCTS else "float32" for part in flops}
    return {part: roof.seconds(flops[part], nbytes[part], rate[part]) for part in flops}


# %% [markdown]
r"""
The next cell takes a machine with round numbers: 100 GFLOP/s in float32, 400 in bfloat16, 20 GB/s. Follow one number by
hand. The two matrices of an MLP have 8 · 768² weights. A step does three products with them, each with 2 FLOPs for a weight
and a token. For 256 tokens and 12 layers this makes 3 · 2 · 8 · 768² · 256 · 12 = 87 GFLOP, so 0.87 s at 100 GFLOP/s.
"""

# %%
example = Roofline("cpu", {"float32": 1e11, "bfloat16": 4e11}, 20e9)
plain = work_seconds(GPTConfig(), {"float32"}, 4, 64, example)
half = work_seconds(GPTConfig(), {"float32", "bf16"}, 4, 64, example)
for part in plain:
    print(f"{part:13} {1e3 * plain[part]:7.1f} ms in float32, {1e3 * half[part]:7.1f} ms with autocast")

# %% [markdown]
r"""
The products get four times as fast. Parts that only move bytes stay as they are, and the loss even gets slower, because its
casts are additional passes.

## Around the work: optimizer, pages, starts

Three costs are still missing.

**The optimizer** moves bytes for each weight. AdamW in pieces makes twenty passes of 4 bytes: 80. Fused, it reads four numbers
(weight, gradient, two moments) and writes three: 28. With float32 masters it reads gradient 2, master 4, moments 8, and
writes master 4, moments 8, weight 2. This is 28 again, plus 4 for putting the gradients end to end. Every step reads the
gradients once more for their norm, and a loss scaler rewrites and checks them. Autocast also converts the weights: it reads 4
bytes and writes 2 in the forward pass, and turns the gradient back in the backward pass, 12 bytes in all.
"""


# %%
#| export
def update_bytes(config: GPTConfig, on: set[str]) -> dict[str, int]:
    """Bytes that a step moves for each weight beside forward and backward, by part."""
    weights = num_params(for_rungs(config, on))
    if "bf16 weights" in on:
        return {"optimizer": (32 + 2) * weights}
    norm = 16 if "fp16" in on else 4
    moved = {"optimizer": ((28 if "fused AdamW" in on else 80) + norm) * weights}
    if {"bf16", "fp16"} & on:
        moved["weight casts"] = 12 * weights
    return moved


# %%
fused = 28 * num_params(GPTConfig()) / 1e9
print(f"a fused AdamW moves 28 · {num_params(GPTConfig()):,} bytes = {fused:.2f} GB in each step")
answer("14.2", fused)

# %% [markdown]
r"""
**Fresh pages** cost time on a CPU where memory is not kept. We count the tensors above 32 MiB, which always go back. Four are as large as
the logits: the logits, their log-probabilities, and the gradients of both. Four are as large as the embedding `wte`: its
gradient as the first layer, its gradient as the last one, and two temporaries of AdamW. Attention step by step makes eight T × T tensors
in each layer. glibc can give smaller blocks back as well, so this count is a lower limit. Chapter 14b counts the real page faults.
"""


# %%
#| export
LARGE = 32 * 2**20  # bytes; malloc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


def fresh_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that a float32 step allocates at least in blocks above LARGE: like the logits, like wte, and T×T."""
    V, C, L = config.vocab_rows, config.n_embd, config.n_layer
    tensors = [(4, B * T * V), (4, V * C), (0 if config.flash else 8 * L, B * config.n_head * T * T)]
    return sum(count * 4 * numbers for count, numbers in tensors if 4 * numbers > LARGE)


# %% tags=["nbval-ignore-output"]
fault, fresh = fault_seconds(), fresh_bytes(GPTConfig(flash=False), 4, 64)
print(f"GPT-2 124M, B=4, T=64 takes {fresh / 2**20:.0f} MiB of fresh pages in each step,")
print(f"at {1e6 * fault:.2f} µs for a page of {PAGE} bytes: {1e3 * fault * fresh / PAGE:.0f} ms here")

# %% [markdown]
r"""
**Starts.** Python and PyTorch's dispatcher need some microseconds to start a kernel, however little the kernel does (chapter 11). A
layer of an eager step starts 47 operations, forward and backward; flash attention makes them 28, and autocast adds 22 casts. Outside of the layers there are 23 to 29.
(A test counts them.) For a compiled step we take the 29 that chapter 11 found in one layer.

On a CPU the starts come on top of the work. A GPU works while Python prepares the next kernel. So there the step takes as
long as the slower of the two, and starts matter only if there is little to compute.
"""


# %%
#| export
def kernels(config: GPTConfig, on: set[str]) -> int:
    """About how many operations a step starts in forward and backward; views are none."""
    layers = config.n_layer
    if "compile" in on:
        return 29 * layers
    casts = bool({"bf16", "fp16"} & on) and "bf16 weights" not in on
    layer = (28 if "flash" in on else 47) + (22 if casts else 0)
    return layer * layers + (29 if casts else 23)


# %% [markdown]
r"""
Now we add everything up. `fault` and `start` are seconds, and zero means that this cost is left out.
"""


# %%
#| export
#| blank predict: the work, bytes of the optimizer over the bandwidth, pages, and starts; a GPU's starts overlap
def predict(
    config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline, fault: float = 0.0, start: float = 0.0
) -> dict[str, float]:
    """Seconds of one step by part, before anything is run. fault: of a fresh page; start: of a kernel.

    The parts are those of work_seconds and update_bytes; then "page faults", unless memory is kept, for the
    configuration as for_rungs changes it; last "starts", on a GPU only what they take longer than all the rest.
    """
    seconds = work_seconds(config, on, B, T, roof)
    for part, moved in update_bytes(config, on).items():
        seconds[part] = moved / roof.bandwidth
    if "kept memory" not in on:
        seconds["page faults"] = fault * fresh_bytes(for_rungs(config, on), B, T) / PAGE
    starts = start * kernels(config, on)
    if roof.device != "cpu":
        starts = max(0.0, starts - sum(seconds.values()))  # hidden while the GPU has work
    return seconds | {"starts": starts}


# %%
off = {"TF32", "fp16"}
steps = {
    n: predict(GPTConfig(), rungs_up_to(n, off), 4, 64, example, 1e-6, 5e-6) for n in RUNGS if n not in off
}
show(
    figures.parts(steps, "GPT-2 124M, B=4, T=64; 100 and 400 GFLOP/s, 20 GB/s, 1 µs a fault, 5 µs a start"),
    alt="Stacked bars of predicted seconds by part and rung for an example machine: page faults vanish on the second rung, products shrink with bfloat16, the optimizer with fusion.",
)

# %% [markdown]
r"""
Each bar is a step, and each colour a group of its parts. On this example machine the second rung removes the page faults,
bfloat16 shrinks the products, and the fused AdamW shrinks the optimizer, which is large here because 256 tokens are few.
Flash attention gains next to nothing: at T = 64 the scores are small. Nice numbers cost a thousandth, because a roofline
knows nothing of alignment.

## A GPU's ladder from its data sheet

Nothing in `predict` needs the machine. It needs the machine's rates, and a data sheet has them. A GPU without TF32 has no
bfloat16 either: both came with the generation called Ampere, in 2020.
"""


# %%
#| export
#| blank predict_ladder: predict every rung that this card can do, at the rates that its kernels reach
SHEET = Fractions(1.0, 1.0)  # of the data sheet's rates: its limits


def predict_ladder(sheet: Peak, config: GPTConfig, B: int, T: int, reached=SHEET, start: float = 0.0):
    """{rung: {part: seconds}} from a GPU's data sheet, for the rungs that it can do. reached: Fractions of its rates.

    A sheet has TFLOP/s and GB/s; its `half` is the rate of "float16" and of "bfloat16". No GPU has "kept memory". One
    with TF32 needs no "fp16"; one without it lacks "TF32", "bf16" and "bf16 weights".
    """
    rates = {"float32": sheet.float32, "float16": sheet.half}
    cannot = ("kept memory", "TF32", "bf16", "bf16 weights")
    if sheet.tf32:
        rates |= {"tf32": sheet.tf32, "bfloat16": sheet.half}
        cannot = ("kept memory", "fp16")
    roof = Roofline("cuda", {name: 1e12 * rate for name, rate in rates.items()}, 1e9 * sheet.bandwidth)
    roof, names = reached.of(roof), [name for name in RUNGS if name not in cannot]
    return {name: predict(config, rungs_up_to(name, cannot), B, T, roof, start=start) for name in names}


# %%
gpu, B, T = "A100-80GB", 16, 1024
sheet, config = peak_of(gpu), GPTConfig()
by_rung = predict_ladder(sheet, config, B, T)
second = list(by_rung)[1]  # TF32; fp16 on a GPU that has no TF32
for part, seconds in by_rung["float32"].items():
    before, after = 1e3 * seconds, 1e3 * by_rung[second][part]
    if before > 10:
        print(f"{part:13} {before:6.1f} ms, with {second} {after:6.1f} ms: {before / after:.1f}×")
before, after = (1e3 * sum(by_rung[name].values()) for name in ("float32", second))
print(f"{'the step':13} {before:6.1f} ms, with {second} {after:6.1f} ms: {before / after:.1f}×")
answer("14.1", before / after)

# %% [markdown]
r"""
The linear layers get their factor of eight. Attention step by step does not. Its 19 passes over the scores in each of
12 layers are bytes, and they stay. The same holds for GELU, the residual sums, LayerNorm, the loss and the optimizer. Amdahl's law does the
rest. A promised 8 becomes less than 4 for the step. The lecture measured 3.

## From a limit to a forecast

These times are limits. No product reaches the peak of the data sheet, and few kernels reach its bandwidth. How far are the
published times from the limits?
"""


# %%
a100, spoken = peak_of("A100-80GB"), {row["rung"].lower(): float(row["ms"]) for row in lecture.values()}


def residuals(reached):
    """{rung: published over predicted}, for the lecture's rungs on an A100 whose kernels reach these fractions."""
    found = predict_ladder(a100, GPTConfig(), 16, 1024, reached)
    return {
        name: spoken[name.lower()] / 1e3 / sum(found[name].values())
        for name in found
        if name.lower() in spoken
    }


for name, ratio in residuals(SHEET).items():
    print(f"{name:13} published {spoken[name.lower()]:5.0f} ms, {ratio:.2f} times the limit")

# %% [markdown]
r"""
Every rung takes longer than its limit, and the factor is not the same for all. Chapter 09b measured two fractions on your
machine: the share of the peak that the products of a step reach, and the share of the bandwidth that its other kernels
reach. We have no A100 to measure them on. But we have seven published times, and only two unknown numbers. So we try many
pairs of fractions and take the one whose worst residual is smallest.

Two numbers fitted to seven always look good. For an honest error we leave each rung out in turn, fit the fractions to the
other six, and see how well they predict the seventh.
"""

# %%
grid = {Fractions(f / 100, b / 100): None for f in range(50, 101, 2) for b in range(30, 101, 2)}
grid = {reached: residuals(reached) for reached in grid}


def best_without(left_out):
    """The fractions whose worst residual on the other rungs is smallest."""

    def worst(reached):
        return max(abs(math.log(ratio)) for name, ratio in grid[reached].items() if name != left_out)

    return min(grid, key=worst)


fitted = best_without(None)
print(f"fitted to all seven: {fitted.flops:.2f} of the FLOP/s, {fitted.bandwidth:.2f} of the bytes/s")
for name, ratio in grid[fitted].items():
    alone = grid[best_without(name)][name]
    print(f"{name:13} published over forecast {ratio:.2f}, when it is left out of the fit {alone:.2f}")

# %% [markdown]
r"""
Now the forecast is within a tenth for all seven rungs, and when a rung is left out, within an eighth. The fractions have a
meaning: products reach about three quarters of the A100's peak, and the other kernels about half of its bandwidth.

## Memory beside time

A forecast is worth nothing if the step does not fit on the card. The parameters, their gradients and AdamW's two moments take 16
bytes for each weight; with float32 masters these are 2 + 2 + 4 + 8, which is 16 again. Then there is what the forward pass keeps
for the backward pass. We count it per channel and token of a layer, per score, and per logit. The numbers below are from chapter
09b's `saved_bytes` on small models. Chapter 12b found where the peak is: in the loss, where two more tables of logits join
what is kept. The gradients of the weights do not exist yet at that moment, but autocast's copies of the weights do. A compiled step
keeps less, so for compiled rungs this is an upper estimate. With a small batch the peak is elsewhere, in the optimizer: in pieces
it needs temporaries about as large as the parameters (PyTorch's documentation says so of `foreach`).
"""


# %%
#| export
SAVED = {
    "float32": (64, 4, 4),
    "autocast": (36, 6, 4),
    "masters": (32, 2, 4),
}  # bytes a channel, a score, a logit


def step_memory(config: GPTConfig, on: set[str], B: int, T: int) -> int:
    """Bytes at the peak of a step with the rungs in `on`, on a GPU; compiled, it can be less."""
    config, N, weights = for_rungs(config, on), B * T, num_params(for_rungs(config, on))
    casts = bool({"bf16", "fp16"} & on) and "bf16 weights" not in on
    channel, score, logit = SAVED["masters" if "bf16 weights" in on else "autocast" if casts else "float32"]
    scores = 0 if config.flash else B * config.n_head * T * T
    kept = config.n_layer * (channel * N * config.n_embd + score * scores) + logit * N * config.vocab_rows
    loss = 8 * N * config.vocab_rows  # gradients of log-probabilities and of logits
    state = 12 if precision_of(on) in ("float32", "tf32") else 14  # bytes a weight, without gradients
    update = 16 if {"fused AdamW", "bf16 weights"} & on else 20  # in pieces, AdamW makes temporaries
    return max(update * weights, state * weights + kept + loss)


# %%
for name in by_rung:
    need = step_memory(GPTConfig(), rungs_up_to(name, ["kept memory", "fp16"]), 16, 1024)
    print(f"{name:13} {need / 2**30:5.1f} GiB")
answer("14.3", step_memory(GPTConfig(), {"float32"}, 16, 1024) / 2**30)

# %% [markdown]
r"""
The lecture's batch fits on an A100 with 80 GB. It does not fit on a T4, which has 16.

From now on we use the fitted fractions, and 5 µs for the start of a kernel. Here are the forecast, the limit and the published times of
all rungs in one figure:
"""


# %%
#| export
REACHED = Fractions(0.74, 0.54)  # of an A100's data sheet, fitted to seven published rungs in chapter 14
START = 5e-6  # seconds to start a kernel; an assumption, chapter 11 measures it

# %%
fore, limits = (predict_ladder(a100, GPTConfig(), 16, 1024, reached) for reached in (REACHED, SHEET))
ms = [{name: 1e3 * sum(parts.values()) for name, parts in each.items()} for each in (fore, limits)]
show(
    figures.by_sheet(*ms, spoken, "GPT-2 124M on an A100, B=16, T=1024"),
    alt="Milliseconds a step by rung, three lines that fall alike: the limits of the data sheet lowest, the forecast and the published times close together above them.",
)

# %% [markdown]
r"""
The dashed line is the limit, the dotted one the forecast, the solid one was published. The order of the gains is the same
in all three. Their sizes are not quite: the forecast gives compile less and bfloat16 more than was measured. Amdahl's law
shows why TF32's eight becomes three. From then on the bytes are the larger part of the step. This is one reason why bfloat16 gains
little after TF32, and the next large gains come from compile and flash attention, which move fewer bytes. There is another reason, which an
H200 shows in chapter 14b: the head, the largest product of all, has an odd width.

## Does it hold elsewhere?

The fractions were fitted to one GPU and one program, so they should now predict something they have not seen. The course has four
more published times of GPT-2 124M on NVIDIA GPUs, from logs of llm.c, a program in C and CUDA. Its steps correspond to our
top rungs: the kernels are fused and the vocabulary is padded. Its attention for TF32 keeps T × T scores. The logs do not
say whether the runs in bfloat16 used a flash kernel, so we forecast both.
"""


# %%
def llmc_step(row, sheet, rung):
    """Forecast milliseconds of a published step, with all rungs up to this one and fused kernels."""
    on = rungs_up_to(rung, ["fp16"]) | {"fused AdamW", "nice numbers"}
    on = on | {"bf16 weights"} if row["precision"] == "bf16" else on - {"bf16"}
    rates = {"tf32": sheet.tf32, "bfloat16": sheet.half, "float32": sheet.float32}
    roof = Roofline("cuda", {name: 1e12 * rate for name, rate in rates.items()}, 1e9 * sheet.bandwidth)
    parts = predict(GPTConfig(), on, int(row["batch"]), int(row["seq"]), REACHED.of(roof), start=START)
    return 1e3 * sum(parts.values())


with open(DATA / "reference/throughput.csv", encoding="utf-8") as file:
    logs = [row for row in csv.DictReader(file) if row["program"] == "llm.c" and "CPU" not in row["device"]]
for row in logs:
    micro_batches = int(row["tokens_per_step"]) / (int(row["batch"]) * int(row["seq"]) * int(row["devices"]))
    ms, sheet = float(row["median_ms"]) / micro_batches, peak_of(row["device"])
    print(f"{row['devices']} × {row['device']}, {row['precision']}, B={row['batch']}: published {ms:.0f} ms")
    for rung in ("compile", "flash"):
        forecast = llmc_step(row, sheet, rung) if sheet else float("nan")
        print(f"    forecast up to {rung:7} {forecast:4.0f} ms, published over forecast {ms / forecast:.2f}")

# %% [markdown]
r"""
The last numbers are the residuals, published over forecast. They are not within a tenth any more. Read them one by
one. Two H800 average their gradients over a network, which the forecast leaves out (chapter 20b adds it), and their batch is small. Where the published time is below
the forecast, the program's kernels reach more than half of the bandwidth: a fraction belongs to a program as much as to a GPU.
So with fractions from another GPU and another program, expect a forecast to be off by a third, or by more where
something is not in the list.

## An H100, predicted and then measured

What if the program is ours, and the GPU is a newer one? Everything above was written before any code of this course had run on
a GPU. Then, in November 2026, the ladder of chapter 14b ran on an H100 with the lecture's batch. So this is a forecast that
could fail: the fractions come from another GPU, and none of these times were known.

*Predict.* By which factor is our forecast furthest off, up or down?
"""

# %%
guess("14.4", "the H100: largest factor between forecast and measurement", guess=None)

# %%
run = json.loads((DATA / "measurements/h100.json").read_text(encoding="utf-8"))
h100 = predict_ladder(peak_of("H100"), GPTConfig(), run["batch"], run["seq"], REACHED, START)
ratios = []
print("              forecast  measured  measured over forecast")
for rung in run["rungs"]:
    forecast = 1e3 * sum(h100[rung["name"]].values())
    ratios.append(rung["ms"] / forecast)
    print(f"{rung['name']:13} {forecast:5.0f} ms {rung['ms']:6.0f} ms {ratios[-1]:8.2f}")
answer("14.4", max(max(each, 1 / each) for each in ratios))

# %% [markdown]
r"""
Every rung is within a sixth of its forecast, although the last step is eleven times as fast as the first. We needed no more
than the data sheet of the GPU, seven published step times of another GPU, and a list of what a step computes. The largest
misses are two that almost cancel: compile gains 2.8 times where 2.1 were forecast, and flash attention after it 1.4 where 1.8
were. Chapter 14b finds most of the first one in the head's odd number of columns. We assumed 5 µs for the start of a kernel, and this H100 took 8. It changes nothing here, because
the starts are hidden behind the work.

An H200 has the processor of an H100 and a faster memory: 1.43 times as fast, by the data sheets. Yet its last step was only 1.09 times
as fast, 33 ms instead of 36. By our forecast most of that step is products, and in those the two are equal.

The memory that a step needs can be compared as well. Here is the H100 again.
"""

# %%
for rung in run["rungs"]:
    print(
        f"{rung['name']:13} {rung['peak_mib'] / 1024:5.1f} GiB, over the forecast {rung['peak_mib'] / rung['predicted_mib']:.3f}"
    )

# %% [markdown]
r"""
Up to bf16 the forecast of the memory is right to half a per cent. A compiled step needs about 30% less than `step_memory` says (on the H200 19 to 30%),
which is the upper estimate that we promised. Compiled and with 50,257 rows, the H200 needs 1.5 GiB more than the H100; with 50,304 rows both need the same. The difference is
the size of one table of logits in bf16 (1.53 GiB). We suspect that the compiler's trials (chapter 13) ended differently on the two GPUs.

The function `say_predicted` in the appendix prints such a forecast for every GPU of chapter 09's table.
"""

# %% [markdown]
r"""
## Appendix: the ladder of any GPU, printed

The cells from here to your predictions are about tables and memory sizes. They make one function, which prints the
forecast of any GPU of chapter 09's table: `say_predicted`. `published` looks up whether there are published times of the same
step. `fitting_batch` compares the memory of a step with the card's, and says which batch fits.
"""


# %%
#| export
PUBLISHED = files("nanogpt") / "resources/build_nanogpt.csv"


def published(sheet: Peak, config: GPTConfig, B: int, T: int) -> dict[str, float]:
    """{rung: published milliseconds} of the same step on the same GPU, where there are any."""
    table = csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines() if PUBLISHED.is_file() else [])
    names, found = {name.lower(): name for name in RUNGS}, {}
    for row in table:
        same = peak_of(row["gpu"]) is sheet and (row["batch"], row["seq"]) == (str(B), str(T))
        if same and config == GPTConfig():
            found[names[row["rung"].lower()]] = float(row["ms"])
    return found


# %%
#| export
CARD_GB = dict.fromkeys(("H100", "H100-PCIe", "H800", "A100-80GB", "A100-80GB-PCIe", "A800", "A800-PCIe"), 80) | {
    "B200": 180, "H200": 141, "A100-40GB": 40, "L40S": 48, "L4": 24, "A10": 24, "V100": 16, "V100-PCIe": 16, "V100S": 32,
    "T4": 16, "A6000": 48, "RTX 5090": 32, "RTX 4090": 24, "RTX 4070 SUPER": 12, "RTX 3090": 24}  # fmt: skip


def fitting_batch(gpu: str, config: GPTConfig, B: int, T: int) -> int:
    """B, halved until the first rung fits into the card's memory, of which a tenth stays free; 1 at least."""
    room = 0.9e9 * CARD_GB.get(gpu, math.inf)
    while B > 1 and step_memory(config, {"float32"}, B, T) > room:
        B //= 2
    return B


# %%
#| export
def say_predicted(gpu: str, config: GPTConfig, B: int, T: int) -> None:
    """Print the forecast of a GPU's ladder, beside published times of the same step where there are any."""
    sheet = peak_of(gpu)
    if sheet is None:
        raise ValueError(f"no data sheet of {gpu!r}; there are {', '.join(PEAKS)}")
    if B < 1 or not 1 <= T <= config.block_size:
        raise ValueError(
            f"B={B}, T={T}: the model takes 1 or more sequences of 1 to {config.block_size} tokens"
        )
    print(f"{gpu} ({sheet.source}), {num_params(config):,} parameters, B={B}, T={T}")
    known, before = published(sheet, config, B, T), None
    ladder = predict_ladder(sheet, config, B, T, REACHED, START)
    for rung, parts in ladder.items():
        ms, on = 1e3 * sum(parts.values()), rungs_up_to(rung, set(RUNGS) - set(ladder))
        gain = f"{before / ms:5.2f}×" if before else ""
        text = f"{rung:13} {ms:8.1f} ms {gain:6} {step_memory(config, on, B, T) / 2**30:6.1f} GiB"
        if rung in known:
            text += f"   published {known[rung]:.0f} ms, {known[rung] / ms:.2f} of the forecast"
        print(text)
        before = ms
    fits = fitting_batch(gpu, config, B, T)
    if fits < B:
        print(f"! the first rung does not fit into {CARD_GB[gpu]} GB; batch {fits} does")


# %%
say_predicted("A100-80GB", GPTConfig(), 16, 1024)

# %% [markdown]
r"""
The columns are the forecast, the gain over the rung below, and the memory. Beside them are the lecture's times and their ratio to the
forecast, as above.

`python -m nanogpt ladder --predict T4` prints the forecast of another GPU. (The command is made in chapters 14b and 17d.) On a
T4, which has neither TF32 nor bfloat16, the ladder goes by way of fp16.
"""

# %%
say_predicted("T4", GPTConfig(), fitting_batch("T4", GPTConfig(), 16, 1024), 1024)

# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("14")

# %%
checkpoint("14")

# %% [markdown]
r"""
## Exercises

`course exercises release 14` writes these as a notebook to `released/`; `course check 14` runs their visible checks. They
belong to chapters 14 and 14b.

- **14-1** What is left of a factor, 15 minutes: what a step gains, and how much one part would have to.
- **14-2** An optimizer, predicted, 15 minutes: an optimizer predicted for a GPU and a model of your own.
- **14-4** A rung that makes a step slower, 25 minutes: activations recomputed, predicted before anything is run.
- **14-5** A check for the roofline, 20 minutes: a check for the roofline's time of a step.

To explore:

1. `say_predicted` for your GPU, or one that you might rent, at the batch and length that you would train with. Which rung
   gains most? *Check*: change the batch so that another rung does, and say which part's time did it.
2. Put the rungs in another order, fused AdamW second. Does its gain change? *Check*: the product of all gains does not.
3. Add "no bias" to `RUNGS` and let `for_rungs` switch it on. *Check*: `predict` says what it saves; but its loss differs from the
   first rung's, so it is another model, and no rung.
4. Give `predict` half the bandwidth. Which rungs change most, and why? *Check*: say first which parts are bound by bytes.

## Further reading

- A. Karpathy, [*Let's reproduce GPT-2 (124M)*](https://www.youtube.com/watch?v=l8pRSuU81PU), video lecture, 2024: the published times above.
- Williams, Waterman and Patterson 2009, [*Roofline*](https://doi.org/10.1145/1498765.1498785), CACM 52(4).
- J. Austin et al., [*How to Scale Your Model*](https://jax-ml.github.io/scaling-book/), 2025, parts 1 and 4: rooflines, and the FLOPs and bytes of a transformer.
- Loshchilov and Hutter 2019, [*Decoupled Weight Decay Regularization*](https://arxiv.org/abs/1711.05101), algorithm 2: AdamW.
- PyTorch recipes, [*Reducing torch.compile cold start compilation time with regional compilation*](https://docs.pytorch.org/tutorials/recipes/regional_compilation.html): one block in place of
  the whole model.
"""
