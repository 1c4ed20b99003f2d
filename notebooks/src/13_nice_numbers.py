# %% [markdown]
r"""
# 13 · Nice numbers, and a step in all its ways

GPT-2 has 50,257 tokens, an odd number. Give its table 50,304 rows and there is more work on paper: 47 rows that stand
for nothing. On a GPU a step can nevertheless get faster. Two reasons are usually given, tiles and alignment. Here both
are put into a formula, then this machine is asked, and the rows that stand for no token are shown to do no harm.

It is the last of the changes that make a training step faster. So at the end the chapter writes one step that can take
each of them, alone or on top of the others, and measures what nice numbers change in it.
"""

# %%
#| default_exp speed.rungs
#| doc speed.rungs: The speed-ups as rungs of a ladder: what each changes in a training step, which a device can do, and one measured alone.
from argparse import Namespace
from statistics import quantiles

import torch.nn.functional as F

from course.figures import nice_numbers as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.device import pick_device, pick_scale
from nanogpt.gpt.model import num_params
from nanogpt.gpt.sample import load, stream_text
from nanogpt.gpt.precision import best_precision
from nanogpt.speed.roofline import measure_roofline

# %%
#| export
import ctypes
import importlib.util
import multiprocessing
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nanogpt.device import seed_everything
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.precision import LossScaler, MasterAdamW, why_not
from nanogpt.gpt.train import train_step
from nanogpt.speed.roofline import Roofline, measure
from nanogpt.text.data import to_device

# %%
device = pick_device()
scale = pick_scale(device)
g = seed_everything(0)

# %%
show(
    figures.tiles((257, 256), tile=128),
    alt="A 257 by 257 matrix needs nine tiles of 128 by 128, five of them nearly empty; 256 by 256 needs four full ones.",
)

# %% [markdown]
r"""
A matrix product is computed in tiles of fixed size. One row too many costs a row of tiles, and a tile costs the same
full or empty.

## Predict
"""

# %%
predict("13.1", "share of the tiles' work that 50,257 columns waste", guess=None, unit="%")
predict("13.2", "time of 50,257 columns over that of 50,304, here", guess=None, unit="×")
predict("13.3", "what the added rows add to the first loss", guess=None, unit="nats")
predict("13.4", "time of a whole training step at 50,257 over one at 50,304, here", guess=None, unit="×")
predict("13.5", "one row through GPT-2's head on the CPU, at best", guess=None, unit="ms")

# %% [markdown]
r"""
## What a formula says

Two roundings. *Tile quantisation*: the output is cut into tiles, rounded up in both directions. *Wave
quantisation*: tiles run on the GPU's multiprocessors (SMs) all at once, so their number is rounded up to whole
waves. (NVIDIA, *Matrix Multiplication Background User's Guide*.)
"""


# %%
def useful_share(rows, columns, tile=128, sms=1):
    """Share of the computed tiles × SM slots that belong to the (rows, columns) output."""
    tiles = -(-rows // tile) * -(-columns // tile)
    slots = -(-tiles // sms) * sms
    return rows * columns / (slots * tile * tile)


for rows, columns in [(256, 256), (257, 257), (16384, 50257), (16384, 50304), (16384, 50305)]:
    tiled, waved = useful_share(rows, columns), useful_share(rows, columns, sms=132)
    print(f"{rows:6} × {columns:5}   tiles {tiled:7.2%}   and waves of 132 SMs {waved:7.2%}")
answer("13.1", 100 * (1 - useful_share(16384, 50257)))

# %% [markdown]
r"""
By this formula 50,257 wastes a thousandth. Where it is slower by more, tiles are not the reason. *Alignment* may be:
loads of 16 bytes need every row of the logits to start at a multiple of 16 bytes, which is 8 numbers of two bytes and 4
of four. 50,257 is odd.
"""

# %%
for n in (50257, 50264, 50304):
    power = (n & -n).bit_length() - 1
    print(f"{n} = {n >> power} · 2^{power}: in bfloat16 rows start at multiples of {2 << power} bytes")
show(
    figures.waves(range(1, 700), [useful_share(128 * n, 128, sms=132) for n in range(1, 700)], 132),
    alt="A sawtooth: the used share climbs to one at each multiple of 132 tiles, drops by half after the first, and the drops shrink.",
)

# %% [markdown]
r"""
## What this machine says

The head's product, 50,257 columns beside its neighbours, in the precision in which this machine would train. The widths
take turns, so that a slow minute hits all of them; each time is the best of several medians.
"""

# %%
rows, width, inner = {"ci": (64, 128, 512), "laptop": (256, 192, 512), "gpu": (16384, 768, 4096)}[scale]
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(best_precision(device), torch.float32)


def seconds_by_width(widths, rows, inner, product=torch.matmul, rounds=3):
    """{width: seconds of (rows, inner) @ (inner, width)}, the best of `rounds` medians taken in turn."""
    a = torch.randn(rows, inner, device=device, dtype=dtype)
    weights = {n: torch.randn(n, inner, device=device, dtype=dtype) for n in widths}
    best = dict.fromkeys(widths, float("inf"))
    for _ in range(rounds):
        for n, w in weights.items():
            timing = measure(
                lambda w=w: product(a, w.T), device, repeats=3 if scale != "gpu" else 20, warmup=1
            )
            best[n] = min(best[n], timing.median)
    return best


# %% tags=["nbval-ignore-output"]
head = seconds_by_width([50256, 50257, 50258, 50264, 50272, 50304], rows, width)
print(f"{str(dtype)[6:]} on {device.type}")
for n, seconds in head.items():
    print(f"{n} columns: {1e3 * seconds:.3f} ms, {seconds / head[50304]:.2f}× the time of 50304")
answer("13.2", head[50257] / head[50304])

# %% [markdown]
r"""
Where 50,257 and 50,258 are both slow and 50,264 = 8 · 6283 is fast, alignment decides. Where all six agree, this
library does not care, and padding gains nothing here.

On a GPU the compiler of chapter 11 knows this trick: Inductor pads a product whose sides are not aligned, if a short
trial says that it pays (`shape_padding`, on by default; GPUs only). So in a compiled step part of what nice numbers can
gain is already taken. The next cell measures what is left.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    compiled = seconds_by_width([50257, 50304], rows, width, torch.compile(torch.matmul, dynamic=False))
    print(f"compiled: 50257 takes {compiled[50257] / compiled[50304]:.2f}× the time of 50304")
    print(f"eager:    50257 takes {head[50257] / head[50304]:.2f}× the time of 50304")
else:
    print(f"Inductor pads no product on {device.type}: compiled or not, the table above holds")

# %% [markdown]
r"""
A sweep in small widths, where one tile more is a visible share of the whole.
"""

# %% tags=["nbval-ignore-output"]
widths = range(960, 1345, 8) if scale == "gpu" else range(96, 200, 2)
sweep = seconds_by_width(widths, rows, inner)
rates = {n: 2 * rows * inner * n / seconds / 1e9 for n, seconds in sweep.items()}
show(
    figures.sweep(rates, str(dtype)[6:], step=64 if scale == "gpu" else 16),
    alt="Measured GFLOP/s of a matrix product against its width, with multiples of a power of two marked.",
)
fastest, slowest = max(rates, key=rates.get), min(rates, key=rates.get)
print(f"fastest width: {fastest}; {slowest} reaches {rates[slowest] / rates[fastest]:.2f} of its rate")

# %% [markdown]
r"""
Where the curve has teeth, their width is the tile of this machine's library.

Now waves: 1, 2, 3, … tiles of 128 rows, dealt to a GPU's SMs. The formula knows how many SMs there are, and nothing
else. A CPU of a few cores has no waves worth a plot: its threads share the rows of one product.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    counts = range(1, 4 * sms + 1, max(1, sms // 16))
    rows_of = torch.randn(128 * counts[-1], inner, device=device, dtype=dtype)  # one buffer, sliced
    w = torch.randn(128, inner, device=device, dtype=dtype)
    times = [measure(lambda n=n: rows_of[: 128 * n] @ w.T, device).median for n in counts]
    formula = [useful_share(128 * n, 128, sms=sms) for n in counts]
    show(
        figures.waves(counts, formula, sms, measured=[n / t for n, t in zip(counts, times)]),
        alt="Tiles a second as a share of the best against the number of tiles, beside wave quantisation's sawtooth.",
    )
    del rows_of
else:
    print(f"no multiprocessors on {device.type}: the sawtooth above is what a GPU of 132 would show")

# %% [markdown]
r"""
Where a measured curve has no sawtooth, the library cuts the work otherwise than we did, or lets workers share a tile.

The same question for the other numbers that one may choose. Heads share C, so their number changes no FLOP of the
products, only width and shape of the tiles. And the batch: one token reads a whole matrix for one row of output; from
some size on, a token costs what its arithmetic costs.
"""

# %% tags=["nbval-ignore-output"]
T, C = {"ci": (64, 192), "laptop": (256, 192), "gpu": (1024, 768)}[scale]
for d in (n for n in (16, 24, 32, 48, 64, 96) if C % n == 0):
    q = torch.randn(1, C // d, T, d, device=device, dtype=dtype)
    heads = measure(lambda q=q: F.scaled_dot_product_attention(q, q, q, is_causal=True), device, repeats=20)
    print(f"{C // d:2} heads of {d:2}: {1e6 * heads.median:.0f} µs")
w = torch.randn(4 * C, C, device=device, dtype=dtype)
for tokens in (1, 8, 63, 64, 65, 256, 1024):
    x = torch.randn(tokens, C, device=device, dtype=dtype)
    seconds = measure(lambda x=x: x @ w.T, device, repeats=20).median
    print(f"{tokens:4} tokens: {1e9 * seconds / tokens:.0f} ns a token")

# %% [markdown]
r"""
## The least nice number: one row

A model that writes (chapter 08) multiplies each matrix by one row of activations. Such a product uses each weight for a
multiply and an add, and must read its four bytes: 0.5 FLOP per byte, so reading bounds it. How fast can this CPU read? A sum
stands for that, since it does nothing else with each number. (A copy also writes, and its rate bounds no read.)

A library may leave this product to one thread. The same numbers in another order: the result is the sum of the weight's
*columns*, each times one activation. An embedding bag does that, looking up rows of a table and adding them with weights.
"""


# %%
#| export gpt.sample
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ColumnLinear(nn.Linear):
    """nn.Linear whose product with a single row is a weighted sum of the weight's columns, on all CPU threads."""

    def forward(self, x: Tensor) -> Tensor:
        rows, C = self.weight.shape
        if x.numel() != C or x.device.type != "cpu" or torch.is_grad_enabled():
            return super().forward(x)
        bags = torch.arange(C).view(math.gcd(C, torch.get_num_threads()), -1)  # one for each thread
        weights = x.reshape(bags.shape)
        y = F.embedding_bag(bags, self.weight.T, per_sample_weights=weights, mode="sum").sum(0)  # (rows,)
        return (y if self.bias is None else y + self.bias).view(*x.shape[:-1], rows)


# %%
#| export gpt.sample
#| blank by_columns: store each weight transposed, with the same shape, and change the layer's class
def by_columns(model: nn.Module) -> nn.Module:
    """Make every nn.Linear a ColumnLinear, with the same numbers; only on CPUs for which embedding bags are fast."""
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        for layer in [module for module in model.modules() if type(module) is nn.Linear]:
            layer.weight.data = layer.weight.data.T.contiguous().T  # a tied embedding's rows are then strided
            layer.__class__ = ColumnLinear
    return model


# %% tags=["nbval-ignore-output"]
head, row = nn.Linear(768, 50257, bias=False).requires_grad_(False), torch.randn(1, 1, 768)
expected, seconds = head(row), {}
for name in ("a sum", "nn.Linear", "by columns"):
    layer = by_columns(head) if name == "by columns" else head
    call = layer.weight.sum if name == "a sum" else lambda layer=layer: layer(row)
    seconds[name] = min(measure(torch.no_grad()(call), torch.device("cpu"), repeats=10).times)
    print(f"{name:10} {1e3 * seconds[name]:.1f} ms, {head.weight.nbytes / seconds[name] / 1e9:.0f} GB/s read")
with torch.no_grad():
    assert torch.allclose(expected, head(row), atol=1e-4), "the sum of columns is another product"
answer("13.5", 1e3 * seconds["a sum"])

# %% [markdown]
r"""
Where `nn.Linear` stays well below the sum, its library reads more slowly than it could. A model that writes one text on a CPU
gains from this, so the command of chapter 08 grows by one line. `tests/bench/bench_sample.py` puts it beside transformers.
"""


# %%
#| export gpt.sample
#| grows run
def run(args: Namespace) -> None:
    """`python -m nanogpt sample`, its options parsed: the text goes to stdout, piece by piece."""
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} must be from 0 to 2**63 - 1")
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    how = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p")}
    how["generator"] = torch.Generator().manual_seed(args.seed)
    model = by_columns(model) if device.type == "cpu" else model.to(device)
    pieces = stream_text(model, tokenizer, args.prompt, args.max_new_tokens, **how)
    print(args.prompt + next(pieces, ""), end="", flush=True)  # first a piece: an option may be wrong
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


# %%
grown("run")

# %% [markdown]
r"""

## Rows that stand for no token

`GPTConfig.padded_vocab_size` is the number of rows that `wte`, and so the head, really has. Chapter 05 built it in: the
first 50,257 rows get the numbers that they would get anyway, the added ones start at zero, and `logits` come back without
them. Only the training loss sees all rows.
"""

# %%
vocab_size, multiple = 500, 128
tiny = GPTConfig(block_size=32, vocab_size=vocab_size, n_layer=2, n_head=2, n_embd=64)
full = -(-vocab_size // multiple) * multiple
added = full - vocab_size
assert added, f"{vocab_size} is a multiple of {multiple} already; choose a vocab_size with something to pad"
padded_config = GPTConfig(**(vars(tiny) | {"padded_vocab_size": full}))
plain, padded = GPT(tiny, seed_everything(1)), GPT(padded_config, seed_everything(1))
print("rows of wte:", len(plain.transformer.wte.weight), "and", len(padded.transformer.wte.weight))
print("GPT-2:", num_params(GPTConfig()), "and", num_params(GPTConfig(padded_vocab_size=50304)), "parameters")

# %%
ids = torch.randint(vocab_size, (4, 33), generator=seed_everything(2))
x, y = ids[:, :-1], ids[:, 1:]
every_row = []  # the head's own output, added rows included
hook = padded.lm_head.register_forward_hook(lambda module, inputs, output: every_row.append(output))
with torch.no_grad():
    (a, loss_plain), (b, loss_padded) = plain(x, y), padded(x, y)
hook.remove()
assert torch.allclose(a, b, atol=1e-6), "padding must not change the logits of real ids"
P = every_row[0].softmax(-1)[..., vocab_size:].sum(-1)  # (B, T)
print(f"loss {loss_plain:.4f} unpadded, {loss_padded:.4f} padded")
print(f"P = {P.mean():.4f}, the share of added rows {added}/{full} = {added / full:.4f}")
answer("13.3", loss_padded - loss_plain)

# %% [markdown]
r"""
Real logits are untouched, yet the loss rises a little: softmax now divides by a sum with more terms. If P is the
probability that the model gives to all added rows together, then at every position

loss over all rows = loss over real ids − ln(1 − P).

This is exact, and the extra term is never negative. So a padded model cannot look better than it is.
"""

# %%
apart = abs(loss_padded - (loss_plain - torch.log1p(-P).mean()))
assert apart < 1e-5, f"the law is exact, but its two sides differ by {apart:.1e}"
print(f"the two sides differ by less than 1e-5: {apart < 1e-5}")

# %% [markdown]
r"""
What does training do to P? The gradient of the loss by an added row is the mean of p·x over positions, with x the
final hidden state: softmax's "p − 1" never occurs, because no target is ever that row. So on the hidden states it has
just seen, a small gradient step can only lower that row's mean logit, weighted by p. No input looks the row up, so this is all of
its gradient. A later step with other hidden states can raise P for a while; it has no reason to.
"""

# %%
steps, lr = 60, 2e-3
assert steps > 0, f"steps={steps}: P changes by training; take at least one step"
g = seed_everything(2)
data = [  # id r with probability about 1/r
    (vocab_size ** torch.rand(8, 33, generator=g)).long() - 1 for _ in range(steps)
]
real, extra = {"unpadded": [], "padded": []}, {"unpadded": [], "padded": []}
for name, model in (("unpadded", plain), ("padded", padded)):
    adamw = torch.optim.AdamW(model.parameters(), lr=lr)
    for ids in data:
        logits, loss = model(ids[:, :-1], ids[:, 1:])
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        real[name].append(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item())
        extra[name].append(loss.item() - real[name][-1])  # the mean of −ln(1 − P)

# %%
show(
    figures.padding(real, extra["padded"]),
    alt="Left: two loss curves on top of each other, padded and unpadded. Right: what the added rows add to the loss falls steeply.",
)
gap = max(abs(a - b) for a, b in zip(real["unpadded"], real["padded"]))
first, last = extra["padded"][0], extra["padded"][-1]
print(f"the added rows' part of the loss: {first:.3f} in the first step, {last:.3f} in the last")
print(f"the losses over real ids differ by less than 0.02 at each step: {gap < 0.02}")
assert last < first or steps < 20, (
    f"no target is an added row, so {steps} steps should empty them; is lr={lr} too large?"
)

# %% [markdown]
r"""
So padding costs 47 rows of arithmetic and a term in the loss that training removes. What it gains for one product stands
above; for a whole step it has to be measured in one.

## A step in all its ways

Chapters 09 to 13 changed one thing at a time. A ladder puts the changes on top of each other, as *rungs*: each a name and
one change of the training step. A step is described by the set of names up to its rung, less those that the machine
cannot do.
"""

# %%
#| export
#| blank rungs_up_to: RUNGS is in order; refuse a name that is not in it
RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "fp16": "autocast in float16 with a loss scaler, on a GPU without bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what lies between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 13)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer (chapter 10)",
}
STANDS_ON = {"bf16 weights": ("bf16", "compile")}  # without one of them it is another rung


def rungs_up_to(name: str, skipped=()) -> set[str]:
    """The rungs that are on at rung `name`: all up to it, less the skipped ones."""
    if name not in RUNGS:
        raise ValueError(f"{name!r} is no rung; the rungs are {', '.join(RUNGS)}")
    names = list(RUNGS)
    return set(names[: names.index(name) + 1]) - set(skipped)


# %%
print(sorted(rungs_up_to("flash", skipped=["TF32", "fp16"])))

# %% [markdown]
r"""
One rung is new. A training step allocates gradients and activations, frees them, and does so again. PyTorch's allocator
for GPUs keeps what is freed. On a CPU the C library decides, and Linux's glibc returns every block above 32 MiB to the
system at once (it starts at 128 KiB and learns from what is freed). The next step gets fresh pages, and each costs a page
fault when it is first touched: chapter 09 measured what. So the rung tells glibc to keep them.
"""


# %%
#| export
def keep_memory() -> None:
    """Tell glibc not to give freed memory back, from now on in this process (man 3 mallopt)."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: no block is too large for the heap
    libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap never shrinks


# %% [markdown]
r"""
The others are what the chapters built: a word for the precision, a configuration, an optimizer, a compiled model.
"""

# %%
#| export
WORDS = {"bf16 weights": "bf16-masters", "bf16": "bf16", "fp16": "fp16", "TF32": "tf32", "float32": "float32"}


def precision_of(on: set[str]) -> str:
    """Chapter 10's word for the precision of a step with the rungs in `on`."""
    return next((word for rung, word in WORDS.items() if rung in on), "float32")


def for_rungs(config: GPTConfig, on: set[str]) -> GPTConfig:
    """The configuration as the rungs in `on` change it: which attention, how many rows."""
    rows = -(-config.vocab_size // 128) * 128 if "nice numbers" in on else None
    return replace(config, flash="flash" in on, padded_vocab_size=rows)


# %%
#| export
def make_optimizer(model: GPT, on: set[str]) -> torch.optim.Optimizer:
    """AdamW with GPT-3's betas and decay, as the rungs in `on` ask for it."""
    options = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    if "bf16 weights" in on:
        return MasterAdamW(model.parameters(), compiled="compile" in on, **options)
    fused = True if "fused AdamW" in on else None  # None: PyTorch's own choice for the device
    return torch.optim.AdamW(model.parameters(), fused=fused, **options)


def compile_in_place(model: GPT, device: torch.device) -> None:
    """On a GPU the whole model and its loss. Elsewhere block by block, since all blocks share one graph: a twelfth of
    the compile time, and only what spans two blocks stays unfused."""
    if device.type == "cuda":
        model.compile()
        return
    for block in model.transformer.h:
        block.compile()
    model.head = torch.compile(model.head)


# %% [markdown]
r"""
The data are the same on every rung, and so is the seed. Token ids follow Zipf's law, so there is something to learn in the
first steps, and ids stay below 50,257 on padded rungs too. The step itself is chapter 07's `train_step`.
"""


# %%
#| export
#| blank zipf_batches: V to the power of a uniform number is about 1/r distributed
def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T): token r occurs with a probability of about 1 / r. A seed gives one sequence."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1
        yield ids[:, :-1], ids[:, 1:]


# %%
#| export
def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    model = GPT(for_rungs(config, on), seed_everything(0)).to(device)
    optimizer = make_optimizer(model, on)
    if "compile" in on:
        compile_in_place(model, device)
    scaler = LossScaler() if precision_of(on) == "fp16" else None
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = next(batches)
        batch = to_device(x.numpy(), y.numpy(), device)
        return train_step(model, optimizer, [batch], precision_of(on), scaler=scaler)

    return model, step


# %% [markdown]
r"""
*Check.* A rung changes the time, not what is computed. With a vocabulary that needs no added rows, all of them learn alike:
"""

# %%
losses, even = {}, replace(tiny, vocab_size=full)
for name in ("float32", "bf16", "flash", "nice numbers", "bf16 weights"):
    _, step = make_step(even, rungs_up_to(name, ["compile", "fp16", "TF32"]), 4, 32, torch.device("cpu"))
    losses[name] = [step().item() for _ in range(8)]
    print(f"{name:13} loss after 8 steps {losses[name][-1]:.2f}")
apart = max(abs(a[-1] - losses["float32"][-1]) for a in losses.values())
assert apart < 0.05, f"a rung changes the time, not the loss; here they are {apart:.3f} apart"

# %% [markdown]
r"""
## What a machine cannot do

It is skipped, with the reason, and so is a rung that stands on it.
"""


# %%
#| export
def why_not_kept(device: torch.device) -> str | None:
    """Why the allocator of this device cannot be told to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, most Linux systems' C library, can be told so"


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile cannot run here; None where it can. Triton, too, calls a C compiler while it runs."""
    cuda = device.type == "cuda"
    if device.type == "mps":
        return "torch.compile is a prototype on mps"
    if cuda and (torch.cuda.get_device_capability(device) < (7, 0) or not importlib.util.find_spec("triton")):
        return "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
    usual = "cl" if os.name == "nt" else "clang++" if sys.platform == "darwin" else "g++"
    usual = "gcc clang" if cuda else usual
    language, variable = ("C", "CC") if cuda else ("C++", "CXX")
    if any(map(shutil.which, (os.environ.get(variable) or usual).split())):
        return None
    return f"it needs a {language} compiler, and none is on the path; install one or set {variable}"


# %%
#| export
def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that shall be skipped, each with the reason."""
    found = {"kept memory": why_not_kept(device), "TF32": why_not("tf32", device)}
    found |= {"bf16": why_not("bf16", device), "compile": why_not_compiled(device)}
    factor = roof.flops.get("bfloat16", 0) / roof.flops["float32"]
    if not found["bf16"] and factor <= 1:
        found["bf16"] = f"bfloat16 products are emulated here: {factor:.2f}× the rate of float32"
    reasons = {n: why for n, why in found.items() if why} | dict.fromkeys(skip, "left out by --skip")
    if device.type != "cuda":
        reasons.setdefault("fp16", f"float16 is not faster on {device.type}")
    elif "bf16" not in reasons:
        reasons.setdefault("fp16", "bf16 does the same and needs no scaler")
    return take_along(reasons)


def take_along(skipped: dict[str, str]) -> dict[str, str]:
    """The skipped rungs with their reasons; those that stand on one of them are added."""
    for name, below in STANDS_ON.items():
        if missing := [rung for rung in below if rung in skipped]:
            skipped.setdefault(name, f"it stands on {' and '.join(missing)}")
    return skipped


# %% tags=["nbval-ignore-output"]
roof = measure_roofline(device)
rates = [f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in roof.flops.items()]
print(*rates, f"copy {roof.bandwidth / 1e9:.0f} GB/s", sep=", ")
for name, reason in obstacles(device, roof).items():
    print(f"without {name}: {reason}")

# %% [markdown]
r"""
Processors differ most in bfloat16. With AMX or AVX-512 BF16 they multiply it several times as fast as float32; without
(most before 2020, many laptops) each product is taken apart, and takes several times as long. There the ladder is shorter:
no bf16, and no bf16 weights, which stand on it. Everything else holds.

## One rung, measured

A rung takes six steps before any counts. The loss of the sixth alone would be a blunt judge of whether two rungs compute
the same: a model that sees the future has nearly the same by then. The gradient of the first layer's `c_attn` in the first
step passes through everything, and is off by half without the causal mask. So both are kept. Then steps are timed.
"""

# %%
#| export
LOSS_STEPS = 6  # they warm up as well: the loss that is compared is that of the sixth step


def run_rung(name: str, config: GPTConfig, B: int, T: int, device: str, skipped, seconds: float) -> dict:
    """Measure one rung in this process: 20 steps after the first ones; fewer, on a CPU, where `seconds` are short."""
    on, place, took, grads = rungs_up_to(name, skipped), torch.device(device), [], []
    if "kept memory" in on:
        keep_memory()
    model, step = make_step(config, on, B, T, place)
    for _ in range(LOSS_STEPS):
        start = time.perf_counter()
        loss = step().item()  # waits for the device
        took.append(time.perf_counter() - start)
        grads.append(model.transformer.h[0].attn.c_attn.weight.grad.float().norm().item())
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)  # compiling needs memory too
    repeats = 20 if place.type == "cuda" else max(3, int(min(20, seconds / took[-1])))
    times = [1e3 * t for t in measure(step, place, repeats, warmup=0).times]
    told = {"name": name, "first_step_s": took[0], "loss": loss, "grad_norm": grads[0]}
    return told | {"times_ms": times, "peak_mib": peak_mib(place)}


# %%
#| export
def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose getrusage counts the parent that started the process as well
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 2**10
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


# %% tags=["nbval-ignore-output"]
T, steps = {"ci": (16, 0.1), "laptop": (64, 0.5), "gpu": (1024, 0.5)}[scale]  # tokens; seconds of steps
model = GPTConfig() if scale == "gpu" else GPTConfig(block_size=64, n_layer=2, n_head=6, n_embd=192)
off = obstacles(device, roof, ["kept memory", "compile"])
times = {"flash": [], "nice numbers": []}
for name in (*times, *reversed(times)):  # there and back: what drifts, drifts for both
    times[name] += run_rung(name, model, 1, T, device.type, off, steps)["times_ms"]
(a1, a, a3), (b1, b, b3) = (quantiles(ms, n=4, method="inclusive") for ms in times.values())
print(f"a step at 50257: {a:.2f} ms, middle half {a1:.2f} ms to {a3:.2f} ms")
print(f"a step at 50304: {b:.2f} ms, middle half {b1:.2f} ms to {b3:.2f} ms: {a / b:.2f}× as fast")
if max(a1, b1) <= min(a3, b3):
    print("the middle halves overlap: no measurable difference")
answer("13.4", a / b)

# %% [markdown]
r"""
Compiled graphs, the allocator's state and the TF32 switch outlive a rung that sets them (so the cell left compile and
kept memory out). On the ladder each measurement gets a process of its own. One that fails says why;
one that ran out of memory says so or is killed by the system; one that hangs is ended. You may pass over how.
"""

# %%
#| export
TIMEOUT = 1200  # seconds; on a slow machine compiling takes minutes
NO_MEMORY = "out of memory", "can't allocate", "not enough memory", "alloc_failed", "bad_alloc"


def tell(send, call, args: tuple) -> None:
    """What the child does: send (None, result), or the kind of error and its first line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # compilers and libraries warn there
    try:
        send.send((None, call(*args)))
    except Exception as error:
        text = str(error).strip() or repr(error)
        memory = isinstance(error, MemoryError) or any(sign in text.lower() for sign in NO_MEMORY)
        send.send((MemoryError if memory else RuntimeError, text.splitlines()[0]))


# %%
#| export
def in_process(call, *args, timeout: float = TIMEOUT):
    """call(*args) in a process of its own. MemoryError where it had too little, RuntimeError for any other failure."""
    fork = sys.platform == "linux" and not torch.cuda.is_available()
    context = multiprocessing.get_context("forkserver" if fork else "spawn")
    if fork:  # from a server that has imported torch: 0.1 s in place of 3 s
        context.set_forkserver_preload(["torch._dynamo", "nanogpt.speed.rungs"])
    receive, send = context.Pipe(duplex=False)
    (process := context.Process(target=tell, args=(send, call, args), daemon=True)).start()
    send.close()
    error, told = RuntimeError, f"no answer in {timeout:g} s"
    try:
        if receive.poll(timeout):
            error, told = receive.recv()
            process.join(10)  # one that ends by itself leaves nothing behind
    except EOFError:
        process.join()
        error = MemoryError if process.exitcode == -9 else RuntimeError  # -9: Linux killed it for its memory
        told = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
    if error:
        raise error(told)
    return told


# %% tags=["nbval-ignore-output"]
predictions("13")

# %% [markdown]
r"""
Chapter 14 takes these rungs from the package, predicts each, and climbs.

## Checkpoint
"""

# %%
checkpoint("13")

# %% [markdown]
r"""
## Exercises

`course exercises release 13` writes these as a notebook to `released/`; `course check 13` runs their visible checks.

- **13-1** A head of your own, 10 minutes: tiles, waves and alignment for numbers of your own.
- **13-2** Rows for nothing, 20 minutes: how far a batch may grow at no cost.
- **13-3** Rows that take no part, 20 minutes: a loss in which added rows take no part.
- **13-4** One row, and more, 15 minutes: time, and the batch at which arithmetic takes over.
- **13-5** A check for padding, 15 minutes: a check for a function that pads an embedding.
- **13-6** Tiles or alignment, 10 minutes: which measurement decides between the two.

To explore:

1. Pad with rows drawn from N(0, 0.02²) in place of zeros. *Check*: the exact law of P still holds; say what differs in
   the first ten steps.
2. Save a padded model with `save_model` and export it with `to_hf`. *Check*: both load, the export has 50,257 rows, and
   logits of the real ids are equal.
3. On a GPU, find the smallest number of columns above 50,257 that is as fast as 50,304. *Check*: its lowest set bit
   says how many bytes the rows are aligned to.
4. Add "no bias" to `RUNGS`, and let `for_rungs` make it so. *Check*: a step gets faster or not, but its gradient differs
   from the first rung's by more than 5%; so it is another model, and no rung.

## Further reading

- NVIDIA, *Deep Learning Performance: Matrix Multiplication Background User's Guide*: tile and wave quantisation, alignment.
- A. Karpathy, *Let's reproduce GPT-2 (124M)*, video lecture, 2024: "nice numbers", from 96 ms to 93 ms a step on an A100.
- PyTorch, `torch/_inductor/fx_passes/pad_mm.py`: when the compiler pads.
- *The GNU C Library* manual, §3.2.3.9, Malloc Tunable Parameters.
- PyTorch recipes, *Reducing torch.compile cold start compilation time with regional compilation*: one block in place of
  the whole model.
"""
