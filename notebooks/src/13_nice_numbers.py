# %% [markdown]
r"""
# 13 · Nice numbers: from 50,257 tokens to 50,304

GPT-2 has 50,257 tokens. This is an odd number. If we give its table 50,304 rows, there is more to compute: 47 rows that
belong to no token. Yet on a GPU a training step can get *faster*. Why should more work take less time?

Two reasons are usually given: tiles and alignment. In this chapter we write both as formulas, and then we ask your machine.
We also prove that the added rows do no harm. At the end we measure a whole training step with both vocabularies, and list
which of the speed-ups of chapters 10 to 13 your machine has. Chapter 14 puts them together.
"""

# %%
#| default_exp labs.ladder.rungs
#| doc labs.kernels.columns: Weights stored column after column, which some CPU libraries read faster for a single row.
#| doc labs.ladder.rungs: The speed-ups as rungs of a ladder: which of them a device can do, and what each changes in a training step.
from argparse import Namespace
from functools import partial

import torch.nn.functional as F

from course.figures import nice_numbers as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.labs.roofline.clock import best_precision
from nanogpt.labs.roofline.clock import faster, measure, measure_roofline
from nanogpt.sampling import load, stream_text
from nanogpt.training import train_step

# %%
#| export
import ctypes
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from nanogpt.precision import why_not
from nanogpt.labs.roofline.clock import Roofline

# %%
device = pick_device()
scale = pick_scale(device)
precision = best_precision(device)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
show(
    figures.tiles((257, 256), tile=128),
    alt="A 257 by 257 matrix needs nine tiles of 128 by 128, five of them nearly empty; 256 by 256 needs four full ones.",
)

# %% [markdown]
r"""
A GPU computes a matrix product in tiles of a fixed size, here 128 × 128. A matrix of 256 × 256 results has four tiles. One row
and one column more, and there are nine. The five new tiles are nearly empty (orange), but an empty tile takes as long as a full
one. So 0.8% more results cost 2.25 times as much.

## Tiles and waves

How much of the work is useful? We divide the results that we want by the results that the tiles compute. This is called *tile
quantisation*: the number of tiles is rounded up in both directions.

*Predict.* GPT-2's logits for a batch of 16 rows of 1,024 tokens are a matrix of 16,384 × 50,257 numbers. What share of the tiles' work is
wasted? Replace `None` by your guess, here and below.
"""

# %%
predict("13.1", "share of the tiles' work that 50,257 columns waste", guess=None, unit="%")


# %%
def useful_share(rows, columns, tile=128):
    """Share of the computed tiles that belongs to the (rows, columns) output."""
    tiles = -(-rows // tile) * -(-columns // tile)  # -(-a // b) rounds a / b up
    return rows * columns / (tiles * tile**2)


for rows, columns in [(256, 256), (257, 257), (16384, 50257), (16384, 50304), (16384, 50305)]:
    print(f"{rows:5} × {columns:5}: {useful_share(rows, columns):7.2%} of the tiles' work is useful")
answer("13.1", 100 * (1 - useful_share(16384, 50257)))

# %% [markdown]
r"""
The last lines are GPT-2's logits. 50,257 columns waste a thousandth of the work, since only the
last of 393 tiles in a row is not full. So tiles do not explain a step that gets faster by several percent.

There is a second rounding. A GPU has many multiprocessors (SMs; an H100 has 132), and each computes one tile at a time. So
tiles are computed in *waves*, and the last wave can be nearly empty too: 133 tiles on 132 SMs need two waves. (NVIDIA, *Matrix
Multiplication Background User's Guide*.)
"""


# %%
def share_in_waves(rows, columns, sms, tile=128):
    """Share of sms × waves tiles that belongs to the output."""
    tiles = -(-rows // tile) * -(-columns // tile)
    slots = -(-tiles // sms) * sms
    return rows * columns / (slots * tile**2)


show(
    figures.waves(range(1, 700), [share_in_waves(128 * n, 128, sms=132) for n in range(1, 700)], 132),
    alt="A sawtooth: the used share climbs to one at each multiple of 132 tiles, drops by half after the first, and the drops shrink.",
)
print(f"GPT-2's logits, 16384 × 50257: {share_in_waves(16384, 50257, sms=132):.2%} useful")

# %% [markdown]
r"""
The figure has a column of n full tiles for each n. At 132 tiles all SMs have work. With one tile more, 131 of 132 SMs have nothing to do in
the second wave, so half of the whole time is lost, and so on; with many waves the loss gets small. GPT-2's logits have 50,304 tiles, so
waves waste next to nothing. (That this is also the nice number of columns is a coincidence: 128 rows of tiles times 393.)

## Alignment

The other explanation is about loading. A GPU loads 16 bytes at a time, if they start at a multiple of 16 bytes. That is 8
numbers of two bytes or 4 numbers of four. The logits are stored row after row. If a row has 50,257 numbers of two bytes, the next
row starts at an odd multiple of 2 bytes, and only loads of 2 bytes fit. The largest power of two in the number of columns decides.
"""

# %%
for n in (50256, 50257, 50258, 50264, 50304):
    power = n & -n  # the lowest bit that is set
    print(f"{n} = {n // power:5} · {power:3}: in bfloat16, rows start at multiples of {2 * power} bytes")

# %% [markdown]
r"""
Look at what is multiplied. In the forward pass, the inputs are the hidden states, (tokens, 768), and the weights, (50257, 768). Both have
rows of 768 numbers, which are aligned. Only the result has odd rows. In the backward pass the gradient of the logits, which has
the odd rows, is an *input* of both products: once it is multiplied with the weights, once with the hidden states. So if
alignment matters, it should matter most in the backward pass, which is two thirds of the work.

Tensor cores (chapter 10) are the reason why loads matter so much. They do so much arithmetic in so little time that their
inputs must be loaded in pieces that are as wide as possible. NVIDIA's guide
says that tensor cores work best when the inner rows are multiples of 16 bytes (on an A100, of 128 bytes). With old libraries they work only then.

## What does this machine say?

We take the product of the head with several numbers of columns, in the precision in which this machine would train. The widths
take turns, so that a slow minute hits all of them, and each time is the best of several medians.

*Predict.* How many times as long do 50,257 columns take as 50,304, on your machine?
"""

# %%
predict("13.2", "time of 50,257 columns over that of 50,304, here", guess=None, unit="×")


# %%
rows, width, inner = {"ci": (64, 128, 512), "laptop": (256, 192, 512), "gpu": (16384, 768, 4096)}[scale]


def seconds_by_width(widths, rows, inner, rounds=3):
    """{width: seconds of (rows, inner) @ (inner, width)}, the best of `rounds` medians taken in turn."""
    a = torch.randn(rows, inner, device=device, dtype=dtype)
    weights = {n: torch.randn(n, inner, device=device, dtype=dtype) for n in widths}
    repeats, best = 20 if scale == "gpu" else 3, dict.fromkeys(widths, float("inf"))
    for _ in range(rounds):
        for n, w in weights.items():
            timing = measure(lambda w=w: a @ w.T, device, repeats, warmup=1)
            best[n] = min(best[n], timing.median)
    return best


# %% tags=["nbval-ignore-output"]
odd, nice = 50257, 50304
forward = seconds_by_width([odd - 1, odd, odd + 1, odd + 7, nice], rows, width)
print(f"forward, {str(dtype)[6:]} on {device.type}")
for n, seconds in forward.items():
    print(f"{n} columns: {1e3 * seconds:.3f} ms, {seconds / forward[nice]:.2f}× the time of {nice}")
answer("13.2", forward[odd] / forward[nice])

# %% [markdown]
r"""
If 50,257 and 50,258 are slow and 50,264 = 8 · 6283 is fast, then alignment decides. If all agree, this library does not care about the
result's alignment.

On an H200 (PyTorch 2.11, 16,384 rows in bfloat16) alignment decided. Compared with 50,304 columns, 50,257 took 7.2 times as long, and
50,258 took 2.8 times as long. 50,264 columns took no more time than 50,304, so 16 bytes were enough there.

Narrow loads cannot explain seven times: in this product both inputs are aligned, and only the result has odd rows. We come back to the cause.
First the two products of the backward pass, each with its interval from chapter 09.
"""

# %% tags=["nbval-ignore-output"]
tensors = {}
for n in (odd, nice):
    sizes = {"hidden": (rows, width), "weights": (n, width), "gradient": (rows, n)}
    tensors[n] = {name: torch.randn(size, device=device, dtype=dtype) for name, size in sizes.items()}
products = {
    "gradient @ weights": lambda t: t["gradient"] @ t["weights"],
    "gradient.T @ hidden": lambda t: t["gradient"].T @ t["hidden"],
}
for name, product in products.items():
    gain = faster(partial(product, tensors[odd]), partial(product, tensors[nice]), device, pairs=10, warmup=1)
    print(f"{name:20} {nice} columns are {gain} as fast as {odd}")

# %% [markdown]
r"""
On the H200 these two products took 6.0 and 5.4 times as long with 50,257 columns. So the forward pass, where only the result has odd rows, suffers most.

## The kernel's name

The likely cause is that another kernel does the work. A library has many kernels for a product, and each asks for a certain alignment. Where the
numbers do not fit, the library takes another kernel, often an older one. PyTorch's profiler tells the names of the kernels that a GPU runs. A CPU's library
does not tell: there we see only the name of PyTorch's operator.
"""

# %% tags=["nbval-ignore-output"]
products["hidden @ weights.T"] = lambda t: t["hidden"] @ t["weights"].T
for name, product in products.items():
    for n in (odd, nice):
        for kernel in figures.kernel_names(partial(product, tensors[n]), device):
            print(f"{name:20} {n} columns: {kernel[:70]}")

# %% [markdown]
r"""
On a CPU both widths have the same operator, `aten::mm`. On a GPU, compare the two names of each product. We have not run this cell on one, so we can only say
what others saw. The developers of another project printed the names on an A100,
for a vocabulary of 248,077. They found `cutlass_75_tensorop_…_align1`, a kernel that was made for Turing, the generation before; a multiple of
128 cured it ([pegainfer#1046](https://github.com/pegainfer-project/pegainfer/pull/1046)). On an H100 the fast way to load asks for 16 bytes
([CUTLASS#847](https://github.com/NVIDIA/cutlass/issues/847)), and the fast way to store a result does, too ([CUTLASS#1884](https://github.com/NVIDIA/cutlass/issues/1884)). This fits our
H200: the product whose result alone has odd rows suffers most, and 16 bytes suffice.

On a GPU the compiler of chapter 11 knows this trick. It pads a product whose sides are not aligned if a short trial says that it
pays (`shape_padding`, on by default, on GPUs only). So a compiled step may have some of the gain already, without a padded
vocabulary.

## Other numbers

The size of a tile shows in a sweep of small widths, where one tile more is a visible share of the whole.
"""

# %% tags=["nbval-ignore-output"]
step = 64 if scale == "gpu" else 16
sweep = seconds_by_width(range(960, 1345, 8) if scale == "gpu" else range(96, 200, 2), rows, inner)
rates = {n: 2 * rows * inner * n / seconds / 1e9 for n, seconds in sweep.items()}
show(
    figures.sweep(rates, str(dtype)[6:], step),
    alt="Measured GFLOP/s of a matrix product against its width, with multiples of a power of two marked.",
)
slowest = min(rates, key=rates.get)
print(
    f"grey lines: multiples of {step}; width {slowest} reaches {rates[slowest] / max(rates.values()):.2f} of the best rate"
)

# %% [markdown]
r"""
On our CPU the curve has teeth, 16 columns apart. If yours has teeth, the distance between them is the width of this library's tile. If it is smooth, the library cuts the work in another
way. The same question can be asked for the batch. One token reads a whole matrix for one row of results. With many
tokens the matrix is read once for all of them, and a token costs only its arithmetic. From which number on?
"""

# %% tags=["nbval-ignore-output"]
C = 768 if scale == "gpu" else 192
w = torch.randn(4 * C, C, device=device, dtype=dtype)
most = 65536 if scale == "gpu" else 1024
for tokens in (1, 8, 63, 64, 65, 256, 1024, 8192, 65536):
    if tokens <= most:
        x = torch.randn(tokens, C, device=device, dtype=dtype)
        seconds = measure(lambda x=x: x @ w.T, device, repeats=20).median
        print(f"{tokens:5} tokens: {1e9 * seconds / tokens:.1f} ns a token")

# %% [markdown]
r"""
## The least nice number: one row

A model that writes (chapter 08) multiplies each matrix by a single row. It uses each weight once and must read all of
them, so reading is the limit. How fast can this CPU read? We time a sum over the weights, which does next to nothing with each number.

*Predict.* GPT-2's head has 50,257 × 768 numbers of four bytes. How many milliseconds does your CPU need to read them once?
"""

# %%
predict("13.3", "one row through GPT-2's head on the CPU, at best", guess=None, unit="ms")

# %% [markdown]
r"""
Some libraries read a matrix faster if it is stored row after row, others if it is stored column after column. OpenAI stored GPT-2's weights column after column (chapter 06), and
`nn.Linear` stores them row after row. We can change the order and keep the numbers and the shape:
"""


# %%
#| export labs.kernels.columns
#| blank by_columns: store each weight transposed, with the same shape
from torch import nn


def by_columns(model: nn.Module) -> nn.Module:
    """Store the weight of every nn.Linear column after column, in place, with the same numbers; returns the model.

    The parameters stay the same objects, so that a tied embedding stays tied.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.T.contiguous().T  # a tied embedding's rows are then strided
    return model


# %% tags=["nbval-ignore-output"]
head, row = nn.Linear(768, 50257, bias=False).requires_grad_(False), torch.randn(1, 1, 768)
expected, seconds = head(row), {}
with torch.no_grad():
    for name in ("a sum", "nn.Linear", "by columns"):
        if name == "by columns":
            by_columns(head)
        call = head.weight.sum if name == "a sum" else partial(head, row)
        seconds[name] = min(measure(call, torch.device("cpu"), repeats=10).times)
        print(
            f"{name:10} {1e3 * seconds[name]:.1f} ms, {head.weight.nbytes / seconds[name] / 1e9:.0f} GB/s read"
        )
    assert torch.allclose(expected, head(row), atol=1e-4), "the other order is another product"
answer("13.3", 1e3 * seconds["a sum"])

# %% [markdown]
r"""
If the order makes a difference, a model that writes one text on a CPU gains from it with each token. Where it makes none, all it costs is one copy of the weights at the
start. So the command of chapter 08 grows by
two lines. They load `by_columns` by the name of its module, when it is needed. (`bench/sample.py` compares it with transformers.)
"""


# %%
#| export sampling
#| grows run
from importlib import import_module


def run(args: Namespace) -> None:
    """`python -m nanogpt sample`, its options parsed: the text goes to stdout, piece by piece."""
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} must be from 0 to 2**63 - 1")
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    if device.type == "cpu":
        model = import_module("nanogpt.labs.kernels.columns").by_columns(model)
    options = {name: getattr(args, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}
    options["generator"] = torch.Generator().manual_seed(args.seed)
    pieces = stream_text(model.to(device), tokenizer, args.prompt, **options)
    print(args.prompt + next(pieces, ""), end="", flush=True)  # first a piece: an option may be wrong
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


# %%
grown("run", "13")

# %% [markdown]
r"""
## Rows that belong to no token

Now to the other half of the question: what do the added rows do to the model? `GPTConfig.padded_vocab_size` is the number of rows that
`wte`, and so the head, really has. Chapter 05 built it in. The first rows get the numbers that they would get anyway, the
added ones start at zero, and `logits` come back without them. Only the training loss sees all rows.

*Predict.* A small model has 500 tokens, and we give it a table of 512 rows. By how many nats is its first loss higher than without
the added rows?
"""

# %%
predict("13.4", "what the added rows add to the first loss", guess=None, unit="nats")


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
answer("13.4", loss_padded - loss_plain)

# %% [markdown]
r"""
The logits of real tokens are the same, but the loss rises a little: softmax now divides by a sum with more terms. Let P be the
probability that the model gives to all added rows together. Every real token has lost this share, so its probability is multiplied by
1 − P, and at every position

loss over all rows = loss over real ids − ln(1 − P).

This is exact, and the additional term is never negative. So a padded model cannot look better than it is.
"""

# %%
apart = abs(loss_padded - (loss_plain - torch.log1p(-P).mean()))
assert apart < 1e-5, f"the law is exact, but its two sides differ by {apart:.1e}"
print(f"the two sides differ by less than 1e-5: {apart < 1e-5}")

# %% [markdown]
r"""
What does training do to P? For an added row, the gradient of the loss is the mean of p · x over all positions, where p is the row's
probability and x the final hidden state. The usual "p − 1" never occurs, because the target is never an added row. Nor does any
input look the row up, so this is its whole gradient. One small gradient step therefore lowers that row's logit on this batch, averaged
with the weights p. It cannot raise it. A later step with other hidden states can raise P for a while, but it has no reason to.

To see it, we train both models. The data should have something to learn in the first steps. So we draw token ids as they occur
in texts: by Zipf's law token r has a probability of about 1/r. A seed gives one sequence of batches, so both models see the same.
"""


# %%
#| export
#| blank zipf_batches: V to the power of a uniform number is about 1/r distributed
def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T), y one id further than x: id r, from 0 on, has a probability of about 1 / (r + 1).

    A seed gives one sequence, from a generator of its own.
    """
    generator = torch.Generator().manual_seed(seed)

    def shifted(ids: Tensor) -> tuple[Tensor, Tensor]:
        return ids[:, :-1], ids[:, 1:]

    while True:  # keeps no batch, so that a step's memory is its own
        yield shifted((vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1)


# %%
x, y = next(zipf_batches(50257, 8, 1024))
for r in (0, 1, 3, 9):
    print(f"token {r}: {(x == r).float().mean():.3f} of the ids")

# %%
steps, lr = 60, 2e-3
assert steps > 0, f"steps={steps}: P changes by training; take at least one step"
real, extra = {"unpadded": [], "padded": []}, {"unpadded": [], "padded": []}
for name, model in (("unpadded", plain), ("padded", padded)):
    adamw = torch.optim.AdamW(model.parameters(), lr=lr)
    for _, (x, y) in zip(range(steps), zipf_batches(vocab_size, 8, 32, seed=2)):
        logits, loss = model(x, y)
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        real[name].append(F.cross_entropy(logits.flatten(0, 1), y.flatten()).item())
        extra[name].append(loss.item() - real[name][-1])  # the mean of −ln(1 − P)
show(
    figures.padding(real, extra["padded"]),
    alt="Left: two loss curves on top of each other, padded and unpadded. Right: what the added rows add to the loss falls steeply.",
)

# %%
gap = max(abs(a - b) for a, b in zip(real["unpadded"], real["padded"]))
first, last = extra["padded"][0], extra["padded"][-1]
print(f"the added rows' part of the loss: {first:.3f} in the first step, {last:.3f} in the last")
print(f"the losses over real ids differ by less than 0.02 at each step: {gap < 0.02}")
assert last < first or steps < 20, f"{steps} steps should empty the added rows; is lr={lr} too large?"

# %% [markdown]
r"""
The two loss curves lie on top of each other, and the added rows' part of the loss falls to almost nothing. So padding costs 47 rows of
arithmetic, and a term in the loss that training removes.

## A whole training step

What is left of the gain in a whole step? Most of a step is not the head. We time two steps in turn, with 50,257 and with 50,304
rows, in the precision in which this machine would train.

*Predict.* How many times as long does a step with 50,257 rows take as one with 50,304?
"""

# %%
predict("13.5", "time of a whole training step at 50,257 over one at 50,304, here", guess=None, unit="×")

# %% tags=["nbval-ignore-output"]
B, T = {"ci": (1, 16), "laptop": (1, 64), "gpu": (4, 1024)}[scale]
shape = {} if scale == "gpu" else {"n_layer": 2, "n_head": 6, "n_embd": 192}
x, y = torch.randint(50257, (2, B, T)).to(device)


def step_with(rows):
    """A function that makes a training step of a GPT-2 whose table has this many rows."""
    model = GPT(GPTConfig(padded_vocab_size=rows, **shape), seed_everything(0)).to(device)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    word = "bf16" if precision == "bf16" else "float32"
    return lambda: train_step(model, adamw, [(x, y)], word)


gain = faster(step_with(50257), step_with(50304), device, pairs=12)
print(f"a step with 50304 rows is {gain} as fast as one with 50257")
print("a difference" if gain.sure else "no difference was measured")
answer("13.5", gain.ratio)

# %% [markdown]
r"""
In the lecture of 2024 that chapter 14 follows, the change from 50,257 to 50,304 took a step on an A100 from 96 to 93 ms, 3%. In a compiled
step on the H100 and the H200 it gained 5.8% and 4.9%. Why so little, where the head alone is seven times as fast? Because all three steps are compiled, and the
compiler has already padded the head. Without padding, the head's three products take 30 ms with 50,257 columns and 5.6 ms with 50,304, by the rates that we
measured on the H200. The whole compiled step of the H100 with 50,257 rows took only 44 ms, so its head must have been padded. An eager
step in bf16 takes 173 ms on an H100. So nice numbers *before* compile would be worth 1.17 times there, and 1.20 times on an H200.
The order of the changes has hidden what the cheapest of them is worth.

## Which speed-ups does your machine have?

Nice numbers are the last change of this part that makes a training step faster. Chapter 14 will put all of them on top of each
other, like the rungs of a ladder. Here is the list, in the order in which they are added. Two of them are small: a fused AdamW
makes its update in one pass, and on Linux a CPU's C library can be told to keep freed memory (chapter 09b has shown what fresh
pages cost).
"""

# %%
#| export
RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "fp16": "autocast in float16 with a loss scaler, on a GPU without bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what is between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 13)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer (chapter 10)",
}


def rungs_up_to(name: str, skipped=()) -> set[str]:
    """The rungs that are on at rung `name`: all up to it, less the skipped ones."""
    if name not in RUNGS:
        raise ValueError(f"{name!r} is no rung; the rungs are {', '.join(RUNGS)}")
    names = list(RUNGS)
    return set(names[: names.index(name) + 1]) - set(skipped)


# %%
for name, what in RUNGS.items():
    print(f"{name:13} {what}")
print("the rungs up to bf16, without fp16 and TF32:", sorted(rungs_up_to("bf16", ["fp16", "TF32"])))

# %% [markdown]
r"""
The rung "kept memory" is new. A training step allocates memory for activations and gradients, frees it, and does the same in the
next step. PyTorch's allocator for GPUs keeps what is freed. On a CPU the C library decides. Linux's glibc returns each block above a
threshold to the system at once. (The threshold starts at 128 KiB and grows to at most 32 MiB, as glibc learns from the blocks that
are freed.) The next step gets fresh pages, and each costs a page fault when it is first touched. This function tells glibc to
keep the blocks. It cannot be undone, so we do not call it in this chapter.
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
## Appendix: what a machine can lack

Not every machine has every rung. TF32 needs an NVIDIA GPU. `torch.compile` needs a compiler. On many processors bfloat16
products are emulated and slower than float32. The functions of this appendix say which rungs a machine lacks, and why. They are about
operating systems and compilers: you may run them without reading them, and go on at "What your machine has".

A rung that builds on a missing one is missing as well: bfloat16 weights pay only together with bf16 products and compile.
"""


# %%
#| export
BUILDS_ON = {"bf16 weights": ("bf16", "compile")}  # without one of them it is another rung


def why_not_kept(device: torch.device) -> str | None:
    """Why this device's allocator cannot be set to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, the C library of most Linux systems, has this setting"


def take_along(skipped: dict[str, str]) -> dict[str, str]:
    """The skipped rungs with their reasons; those that build on one of them are added."""
    for name, below in BUILDS_ON.items():
        missing = [rung for rung in below if rung in skipped]
        if missing:
            skipped.setdefault(name, f"it builds on {' and '.join(missing)}")
    return skipped


# %% tags=["nbval-ignore-output"]
for kind in ("cpu", "cuda"):
    print(f"kept memory on {kind}: {why_not_kept(torch.device(kind)) or 'possible'}")
print(take_along({"bf16": "emulated"}))


# %%
#| export
def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile cannot run here; None where it can. Triton, too, calls a C compiler while it runs."""
    cuda = device.type == "cuda"
    if device.type == "mps":
        return "torch.compile is a prototype on mps"
    if cuda and (torch.cuda.get_device_capability(device) < (7, 0) or not importlib.util.find_spec("triton")):
        return "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
    if cuda:
        language, variable, usual = "C", "CC", "gcc clang"
    elif os.name == "nt":
        language, variable, usual = "C++", "CXX", "cl"
    else:
        language, variable, usual = "C++", "CXX", "clang++" if sys.platform == "darwin" else "g++"
    if any(map(shutil.which, (os.environ.get(variable) or usual).split())):
        return None
    return f"it needs a {language} compiler, and none is on the path; install one or set {variable}"


# %%
#| export
def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that are to be skipped, each with the reason."""
    found = {"kept memory": why_not_kept(device), "TF32": why_not("tf32", device)}
    found |= {"bf16": why_not("bf16", device), "compile": why_not_compiled(device)}
    factor = roof.flops.get("bfloat16", 0) / roof.flops["float32"]
    if not found["bf16"] and factor <= 1:
        found["bf16"] = f"bfloat16 products are emulated here: {factor:.2f}× the rate of float32"
    reasons = {n: why for n, why in found.items() if why} | dict.fromkeys(skip, "left out by --skip")
    if device.type != "cuda":
        reasons.setdefault("fp16", f"the ladder tries float16 on CUDA only, not on {device.type}")
    elif "bf16" not in reasons:
        reasons.setdefault("fp16", "bf16 does the same and needs no scaler")
    return take_along(reasons)


# %% [markdown]
r"""
## What your machine has

Here are the rates of your machine, and the rungs that it lacks, each with the reason:
"""

# %% tags=["nbval-ignore-output"]
roof = measure_roofline(device)
rates = [f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in roof.flops.items()]
print(*rates, f"copy {roof.bandwidth / 1e9:.0f} GB/s", sep=", ")
for name, reason in obstacles(device, roof).items():
    print(f"without {name}: {reason}")

# %% [markdown]
r"""
Processors differ most in bfloat16. With AMX or AVX-512 BF16 they multiply it several times as fast as float32. Without these instructions, each product
is computed in several steps and takes several times as long. A GPU's age matters as well: Triton does not use tensor cores below compute
capability 8.0 (since version 3.3; pull request 5066), so on a T4 compiled products gain nothing, while fused elementwise kernels do.
"""

# %% tags=["nbval-ignore-output"]
predictions("13")

# %% [markdown]
r"""
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

## Further reading

- NVIDIA, [*Deep Learning Performance: Matrix Multiplication Background User's Guide*](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html): tile and wave quantisation, alignment.
- A. Karpathy, [*Let's reproduce GPT-2 (124M)*](https://www.youtube.com/watch?v=l8pRSuU81PU), video lecture, 2024: "nice numbers", from 96 ms to 93 ms a step on an A100.
- H. He, [*What Shapes Do Matrix Multiplications Like?*](https://www.thonking.ai/p/what-shapes-do-matrix-multiplications), 2024: sweeps over widths, with causes.
- PyTorch, [`torch/_inductor/fx_passes/pad_mm.py`](https://github.com/pytorch/pytorch/blob/main/torch/_inductor/fx_passes/pad_mm.py): when the compiler pads.
- [*The GNU C Library*](https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html) manual, §3.2.3.9, Malloc Tunable Parameters.
"""
