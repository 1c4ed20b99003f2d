# %% [markdown]
r"""
# 10 · Precision: which bits may go

A number in float32 takes 32 bits. Half the bits are half the bytes to move. And if the hardware has units for them, it
multiplies matrices of 16-bit numbers several times faster than matrices of 32-bit numbers. PyTorch needs one extra line
for it. No other speed-up is as cheap.

But bits carry information. What do we lose if we drop half of them, and does training notice? In this chapter you first
time a training step with and without the extra line. Then you look at numbers bit by bit, see what rounding does to them,
and find out which operations must keep all their bits. Chapter 10b goes further: to a format that needs a trick to work
at all, and to weights in 16 bits.
"""

# %%
#| default_exp precision
#| doc precision: One word for how a run uses number formats: float32, tf32, bf16, fp16 or bf16-masters.
#| doc labs.drills.formats: Number formats bit by bit: what rounding to them does, as a definition for study.
import numpy as np
import torch
from torch.nn import functional as F

from course.figures import precision as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import BatchStream
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.evaluate import evaluating
from nanogpt.model import GPT, SIZES, GPTConfig
from nanogpt.labs.roofline.clock import faster, matmul_flops
from nanogpt.device import matmul_formats
from nanogpt.shards import document_starts, open_shards
from nanogpt.labs.corpora.stories import ensure_corpus

# %% tags=["nbval-ignore-output"]
device = pick_device()
if device.type == "mps":
    print("an Apple GPU lacks float64 and TF32's switch, which this chapter needs: it runs on the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
folder = "../data/built/stories"
manifest = ensure_corpus(folder)
B, T = 8, 64
config = GPTConfig(T, manifest["vocab_size"], n_layer=2, n_head=2, n_embd=64, flash=False)
lengths = [16, 64, 256, 1024, 4096]  # terms of a sum, in "Sums of rounded numbers"
half = torch.bfloat16 if "bfloat16" in matmul_formats(device) else torch.float16
print(f"device {device}, scale {scale}; 16 bits means {half} here")

# %% [markdown]
r"""
## One line

Here is a training step, and the same step with one line more. `torch.autocast` runs some operations of the forward pass
in 16 bits, and PyTorch runs their backward operations in the same format. The weights stay float32.
"""


# %%
def make_step(autocast: bool):
    """A function that makes one training step of a new model, in float32 or under autocast."""
    g, on_gpu = seed_everything(0), scale == "gpu"
    shape = SIZES["gpt2"] if on_gpu else config
    model = GPT(shape, g).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = (4, 1024) if on_gpu else (B, T)
    x, y = torch.randint(shape.vocab_size, (2, *rows), generator=g).to(device)

    def step():
        with torch.autocast(device.type, dtype=half, enabled=autocast):
            loss = model(x, y)[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# %% [markdown]
r"""
*Predict.* How many times as fast is the second step on your machine? (If your processor has no units for 16-bit products,
PyTorch computes them step by step in software. Then the answer is far below 1.)
"""

# %%
predict("10.1", "a step under autocast against float32, on this machine", guess=None, unit="×")

# %% tags=["nbval-ignore-output"]
gain = faster(make_step(autocast=False), make_step(autocast=True), device, pairs=6, warmup=1)
print("the step under autocast is", gain, "as fast as in float32")
answer("10.1", gain.ratio)

# %% [markdown]
r"""
Does your interval contain 1, as ours does? Then no difference was measured. But this is a step of a small model, unless you have a GPU. In a larger model, more of the time goes into large matrix
products, but never all of it. On an H100, large products alone are 15.5 times as fast in bfloat16 as in float32. A step of GPT-2
124M is only 2.3 times as fast: 173 ms instead of 393, with 16 × 1024 tokens. What takes the rest of the time, and what helps
against it, are the subjects of chapters 11 to 13.

## A number, bit by bit

A floating-point number is a sign, an exponent and a mantissa: ± 1.mantissa × 2^exponent. A format is described by the number
of bits for the exponent and for the mantissa. The exponent gives the *range*: how large and how small numbers can be. The
mantissa gives the *steps* between neighbours. Two values of the exponent are reserved. The largest means infinity or NaN
("not a number"). The smallest means that the leading 1 is missing, so that numbers come down to zero in equal steps; these are
called *subnormal* numbers.
"""

# %%
#| export labs.drills.formats
import math

import torch
from torch import Tensor


class Format:
    """A binary floating-point format with IEEE 754's rules for zero, subnormals, infinity and NaN."""

    def __init__(self, name: str, exponent: int, mantissa: int):
        self.name, self.exponent, self.mantissa = name, exponent, mantissa  # the leading 1 is not stored
        self.bias = 2 ** (exponent - 1) - 1
        self.eps = 2.0**-mantissa  # the distance from 1 to the next larger number
        self.max = (2 - self.eps) * 2.0**self.bias
        self.tiny = 2.0 ** (1 - self.bias)  # the smallest normal number; below it the distance stays the same
        self.smallest = self.tiny * self.eps  # above zero


FORMATS = {
    "float32": Format("float32", 8, 23),
    "tf32": Format("tf32", 8, 10),  # NVIDIA A100 white paper, 2020: float32's range with float16's steps
    "bfloat16": Format("bfloat16", 8, 7),
    "float16": Format("float16", 5, 10),
}

# %%
show(
    figures.bits(0.1, FORMATS)[0].figure,
    alt="0.1 in four formats, bit by bit, and the number that is stored: float32 has 8 bits for the exponent and 23 for the mantissa, TF32 8 and 10, bfloat16 8 and 7, float16 5 and 10.",
)
print(f"{'':10}{'largest':>11}{'smallest normal':>18}{'smallest':>11}{'next after 1':>15}")
for form in FORMATS.values():
    print(f"{form.name:10}{form.max:11.6g}{form.tiny:18.3g}{form.smallest:11.2g}{1 + form.eps:15.8g}")

# %% [markdown]
r"""
A bfloat16 is the upper half of a float32: it has the same range and much larger steps. float16 has finer steps and a short
range. TF32 is not a format of storage. It is the part of a float32 that NVIDIA's tensor cores read.

*Predict* what float16 makes of 65519, and of 65520. (The largest float16 is in the table. Between 32768 and 65504, neighbours
are 32 apart. What would be the next number?) Then try 1.001, 3e-8 and 1e39.
"""


# %% tags=["nbval-ignore-output"]
figures.bits_widget("65520", FORMATS)

# %%
for value in (65519.0, 65520.0):
    print(f"{value:.0f} in float16: {torch.tensor(value).half().item():.0f}")

# %% [markdown]
r"""
The next number would be 65536, which the format does not have. 65519 is closer to 65504. 65520 lies in the middle, and is
rounded up, to infinity.

## Rounding

Between two powers of two, the numbers of a format lie at equal distances. This makes rounding three steps: divide by this distance,
round to an integer (a tie goes to the even one), multiply by the distance.
"""


# %%
#| export labs.drills.formats
#| blank spacing: the exponent of x, at least the smallest normal one, minus the bits of the mantissa
#| blank round_to: measure x in gaps, round, scale back; beyond the largest number it becomes infinite
def spacing(x: Tensor, form: Format) -> Tensor:
    """The distance between neighbours of `form` around each x, as float64 on the CPU.

    At a power of two it is the distance to the larger neighbour. Below the smallest normal number, down to 0, it stays
    the same.
    """
    size = (
        x.detach().cpu().double().abs().clamp(min=form.tiny)
    )  # below it, and at 0, the distance stays the same
    exponent = torch.frexp(size).exponent - 1  # size = 1.… × 2^exponent
    return torch.ldexp(torch.ones_like(size), exponent - form.mantissa)


def round_to(x: Tensor, form: Format) -> Tensor:
    """Each x as the nearest number of `form` (IEEE 754-2019, §4.3.1), ties to even, as float32 on the CPU; slow.

    x may be float64 and is rounded once. Infinity and NaN stay what they are.
    """
    gap = spacing(x, form)
    y = torch.round(x.detach().cpu().double() / gap) * gap
    return torch.where(y.abs() > form.max, y * math.inf, y).float()


# %% [markdown]
r"""
*Predict.* A weight is 1. We add 0.001 to it, one thousand times, and round to bfloat16 after each addition. What is it at
the end?
"""

# %%
predict("10.2", "1 + 1000 updates of 0.001 in bfloat16", guess=None)

# %%
weight = torch.tensor(1.0)
for _ in range(1000):
    weight = round_to(weight + 0.001, FORMATS["bfloat16"])
gap = spacing(weight, FORMATS["bfloat16"]).item()
print(f"the next bfloat16 after 1 is {gap} away")
answer("10.2", weight.item())
print("1e-8 and 1e5 in float16:", round_to(torch.tensor([1e-8, 1e5]), FORMATS["float16"]).tolist())

# %% [markdown]
r"""
Each addition moves the weight by less than half a step, so each is rounded away. This is why weights are kept in float32.
The last line shows the other danger: a small number becomes zero in float16, and a large one infinite. Chapter 10b deals with
it.

Here is the largest relative error of rounding, for numbers of every size.
"""

# %%
x, errors = 2.0 ** torch.linspace(-42, 24, 1200, dtype=torch.float64), {}
for name, form in FORMATS.items():
    errors[name] = torch.where(x > form.max, math.nan, (spacing(x, form) / 2 / x).clamp(max=1))
show(
    figures.rounding(x, errors),
    alt="Largest relative rounding error against size: flat for float32, TF32 and bfloat16; float16, dashed, lies on TF32 between 2^-14 and 65504, rises to 1 at 2^-25 and ends at 65504.",
)

# %% [markdown]
r"""
Where its curve is flat, float16 (dashed) is as precise as TF32, and eight times as precise as bfloat16. But it is flat for 30
powers of two only.

## Sums of rounded numbers

A matrix product adds up K terms. If we round its inputs to 16 bits, does the error grow with K?

Take the error of one rounding first. It is at most half a step. For numbers of all sizes, its root mean square is 0.42 of eps /
2, relative to the number (the first experiment at the end derives it). A product of two rounded numbers has two such errors, so √2
times as much: 0.60 of eps / 2. Now add K products. Errors of random sign add up like √K. But the sum of random terms grows like √K
as well. The relative error should stay at 0.60 of eps / 2, whatever K is.

This holds only if the *sum* is kept in float32. If each partial sum is rounded to 16 bits as well, each rounding errs in
proportion to the partial sum.

*Predict.* By which factor does the relative error grow from K = 16 to K = 4096, if the inputs are bfloat16 and the sum is not
rounded? And what if it is?
"""

# %%
predict("10.3", "relative error at K = 4096 over that at K = 16", guess=None, unit="×")

# %%
g = seed_everything(0)


def product_error(name, K, sums, n=96):
    """RMS error of an (n, K) @ (K, n) product whose inputs are rounded to a format, and its partial sums to `sums`."""
    a, b = torch.randn(n, K, generator=g), torch.randn(K, n, generator=g)
    total, exact = torch.zeros(n, n, dtype=sums), a.double() @ b.double()
    a, b = round_to(a, FORMATS[name]).double(), round_to(b, FORMATS[name]).double()
    for k in range(K):
        total += a[:, k, None] * b[k]  # rounded where it is stored
    return (total - exact).square().mean().sqrt().item()


errors = {}
for name in ("tf32", "bfloat16", "float16"):
    errors[name, False] = [product_error(name, K, torch.float64) for K in lengths]
errors["bfloat16", True] = [product_error("bfloat16", K, torch.bfloat16) for K in lengths]

# %%
rms_error = math.sqrt(1 / (8 * math.log(2)))  # 0.42
predicted = [math.sqrt(2 * K) * rms_error * FORMATS["bfloat16"].eps / 2 for K in lengths]
show(
    figures.products(lengths, errors, predicted),
    alt="Error of a product against K, log-log: slope one half where only inputs are rounded, as predicted, and slope one where partial sums are rounded as well.",
)
ratios = [found / p for found, p in zip(errors["bfloat16", False], predicted)]  # p grows like √K, as the sum
worse = errors["bfloat16", True][-1] / errors["bfloat16", True][0] / math.sqrt(lengths[-1] / lengths[0])
print(f"if partial sums are rounded, the relative error grows {worse:.0f} times")
assert all(abs(ratio - 1) < 0.05 for ratio in ratios), (
    f"the errors should be 0.60 of eps / 2; they are {ratios} times that, and sums of few terms vary: take 16 or more"
)
answer("10.3", ratios[-1] / ratios[0])

# %% [markdown]
r"""
The relative error does not grow. The figure shows absolute errors, which grow like √K, as the sum does. TF32 and float16 lie on
each other, since both have ten bits of mantissa. With rounded sums the relative error grows, too: hardware should multiply in 16 bits and add in 32.

That is what a **tensor core** does. An ordinary unit of a GPU multiplies two numbers and adds a third. A tensor core does so with
whole small matrices, in one operation: D = A·B + C. In the first ones they were 4 × 4, with A and B in float16. The products are
exact, and they are added up in float32. A V100 has 640 tensor cores. Each does 64 multiplications and 64 additions a clock cycle: at
1.53 GHz that makes 125 TFLOP/s, where its ordinary units reach 15.7 in float32 (NVIDIA, *Tesla V100 GPU Architecture*, 2017). Tensor
cores of later GPUs also read bfloat16 and TF32. This is where the factor between 16 and 32 bits in chapter 09's data sheets comes
from.

## TF32 is a switch

`torch.set_float32_matmul_precision` says what PyTorch may do *inside* a product of float32 matrices. Inputs and result stay
float32. `"highest"` (the default) allows nothing. `"high"` allows TF32, on GPUs that have it. `"medium"` also allows bfloat16.
We see what a machine does with this permission from the error. The last column names the format for which the error of a product,
0.60 of eps / 2, is closest to the measured one. The setting is global, so we set it back.
"""

# %% tags=["nbval-ignore-output"]
a, b = torch.randn(2, 256, 256, generator=g)
exact = a.double() @ b.double()
for setting in ("highest", "high", "medium"):
    torch.set_float32_matmul_precision(setting)
    product = (a.to(device) @ b.to(device)).cpu()
    error = ((product - exact).norm() / exact.norm()).item()
    as_exact = min(FORMATS, key=lambda name: abs(math.log(error / (0.60 * FORMATS[name].eps / 2))))
    print(f"{setting:8} relative error {error:.1e}: as exact as products of {as_exact}")
torch.set_float32_matmul_precision("highest")

# %% [markdown]
r"""
Two lines that name the same format may differ a little: then another routine has added in another order.

A function that changes this setting and does not set it back changes all later products of the program. Ours is a context: it
leaves the setting as it found it, even if an error ends the block.
"""

# %%
#| export
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32_switch(on: bool) -> Iterator[None]:
    """Whether products of float32 matrices may read TF32 in this block, forward and backward; afterwards as before it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# %%
with tf32_switch(True):
    print("inside:", torch.get_float32_matmul_precision())
print("after: ", torch.get_float32_matmul_precision())

# %% [markdown]
r"""
## Autocast

`torch.autocast` decides for each operation. Products get their inputs in 16 bits. Operations that add up many numbers or take
exponentials get float32, or keep it. All others run in the format of their inputs. Weights stay float32, and are cast where they are used.

Name one operation of a GPT that must not run in 16 bits. Then look: we call each operation once with float32 and once with 16-bit
input, and print the type of the result.
"""

# %%
w, x = torch.randn(8, 8, device=device), torch.randn(2, 8, 8, device=device)
ids = torch.zeros(16, dtype=torch.long, device=device)
operations = {
    "embedding": lambda x: F.embedding(ids, w.to(x.dtype)),
    "linear": lambda x: F.linear(x, w),
    "q @ k.T": lambda x: x @ x.transpose(1, 2),
    "gelu": F.gelu,
    "x + 16 bits": lambda x: x + x.to(half),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x.flatten(0, 1), ids),
}
short = {torch.float32: "float32", half: "16 bits"}
print(f"{'':20}{'float32 in':>12}{'16 bits in':>12}")
for name, call in operations.items():
    with torch.autocast(device.type, dtype=half):
        out = [short[call(x.to(dtype)).dtype] for dtype in short]
    print(f"{name:20}{out[0]:>12}{out[1]:>12}")

# %% [markdown]
r"""
Follow a block of GPT down the table. The residual stream is float32, because the embedding is, and because a sum of float32
and 16 bits is float32. Each LayerNorm therefore reads float32. The linear layers and attention's products run in 16 bits. The loss is
float32 on every device: a sum over fifty thousand exponentials must not run in 16 bits. (If LayerNorm and softmax get 16 bits,
CUDA lifts them to float32 as well; the CPU leaves them.)

`torch.autocast` wants the *type* of the device: "cuda", and not "cuda:0". That is an error in some versions of PyTorch. In others
it passes, but skips the check whether this GPU has bfloat16.

## One word for a run

In this course a run's precision is one word. The table below says what `autocast` casts to for each word. Three of the words
work with what you know now: `float32`, `tf32` and `bf16`. `fp16` and `bf16-masters` need more, and chapter 10b gives it to them.
A device may lack a precision. Then one sentence says why.
"""

# %%
#| export
from nanogpt.device import matmul_formats

PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-masters": None,
}
READS = {"bf16": "bfloat16", "fp16": "float16", "bf16-masters": "bfloat16"}  # what products read


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can, even slowly."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    if precision == "tf32" and not nvidia:
        return "tf32 is a mode of NVIDIA's tensor cores, which this device does not have; use float32"
    if nvidia and READS.get(precision, precision) not in matmul_formats(device):
        return f"{precision} needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later; use fp16"
    return None


# %%
#| export
#| blank autocast: refuse what the device cannot; inside tf32_switch, torch.autocast by the device's type
@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """The context for a model's forward pass and loss. Backward belongs outside, for tf32 in a tf32_switch of its own.

    fp16 needs a LossScaler; bf16-masters casts nothing, since MasterAdamW has turned the weights to bfloat16. Raises
    ValueError where the device cannot.
    """
    reason = why_not(precision, device)
    if reason:
        raise ValueError(reason)
    dtype = PRECISIONS[precision]
    with (
        tf32_switch(precision == "tf32"),
        torch.autocast(device.type, dtype=dtype, enabled=dtype is not None),
    ):
        yield


# %% [markdown]
r"""
"It works" does not mean "it is fast". A CPU without units for a format emulates it. A processor's list of features does not
settle the question, because the library decides which instructions it uses. We measure a product, once in each process.
"""


# %%
#| export labs.roofline.clock
from functools import cache


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


# %% tags=["nbval-ignore-output"]
for precision in PRECISIONS:
    said = why_not(precision, device) or f"products at {speedup(precision, device):.3f} × float32's rate"
    print(f"{precision:12} {said}")

# %% [markdown]
r"""
The best word for a device is bf16 if products are really faster in it, and fp16 on a GPU that lacks bfloat16:
"""


# %%
#| export labs.roofline.clock
def best_precision(device: torch.device) -> str:
    """bf16 where the device multiplies it faster than float32, else fp16 on a CUDA GPU, else float32."""
    if device.type == "cuda":
        return "fp16" if why_not("bf16", device) else "bf16"
    return "bf16" if device.type == "cpu" and speedup("bf16", device) > 1 else "float32"


# %% tags=["nbval-ignore-output"]
print("best here:", best_precision(device))

# %% [markdown]
r"""
## The course's step in any precision

Chapter 07's `train` has its step inside the loop. From here on we often need one step alone, in any precision, so it becomes a function: `train_step`.
It takes the word. The forward pass runs under `autocast`. The backward pass does not need it, because each of its operations runs in the format of its
forward operation. TF32 is different: PyTorch looks at the switch whenever it multiplies, in backward as well. This is why `tf32_switch` is around both
passes.

The function takes a list of batches, because a batch that does not fit into memory must be cut into several. Here the list has one batch.
"""


# %%
#| export training
def train_step(model: GPT, optimizer, batches, precision="float32") -> Tensor:
    """One update from a batch [(x, y)], each (B, T): the mean loss before it, in nats, on the device.

    precision: chapter 10's word. FloatingPointError, and no update, if the loss or the gradient's norm is not finite.
    """
    [(x, y)] = batches
    # the gradient of the batch, and its length
    optimizer.zero_grad()
    with tf32_switch(precision == "tf32"):
        with autocast(precision, x.device):
            loss = model(x, y)[1]
        loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    # what is not finite must not reach the weights
    if not torch.isfinite(norm + loss):  # waits for the device
        raise FloatingPointError(f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}")
    optimizer.step()
    return loss.detach()


# %% tags=["nbval-ignore-output"]
batch = BatchStream(open_shards(folder, "train"), B, T, seed=1, device=device).next_batch()
word = {torch.bfloat16: "bf16", torch.float16: "fp16"}[half]
for precision in ("float32", word):
    model = GPT(config, seed_everything(1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = [train_step(model, optimizer, [batch], precision) for _ in range(3)]
    print(f"{precision:8} losses", *(f"{loss:.5f}" for loss in losses))

# %% [markdown]
r"""
The two runs have nearly the same losses.

`evaluate` needs the line with `autocast`, too, so that the held-out loss is measured in the precision of the training.
"""


# %%
#| export evaluate
#| grows evaluate
from collections.abc import Iterable


@torch.no_grad()
def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int, *, precision="float32") -> float:
    """Mean loss in nats per token of whole documents, one at a time, in pieces of block_size where one is longer."""
    nats, count = 0.0, 0
    with evaluating(model) as device:
        for tokens in shards:
            starts, ids = document_starts(tokens, eot), torch.from_numpy(tokens.astype(np.int64)).to(device)
            for start, end in zip(starts, [*starts[1:], len(tokens) - 1]):
                for at in range(start, end, model.config.block_size):
                    stop = min(at + model.config.block_size, end)
                    with autocast(precision, device):
                        loss = model(ids[None, at:stop], ids[None, at + 1 : stop + 1])[1].item()
                    nats, count = nats + loss * (stop - at), count + stop - at
    if not count:
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return nats / count


# %% [markdown]
r"""
## Does the gradient suffer?

We want to compare gradients in all formats on every machine, also on those that emulate bfloat16 very slowly. Here is a
model of the hardware. It rounds the inputs of each matrix product, forward and backward, multiplies in float32, and rounds the
result (except in TF32, whose results stay float32). A `TorchDispatchMode` sees each operation before it runs.

TF32 needs a rounding of its own, since no type has it. A tensor core ignores the last 13 bits of a float32. To round to nearest,
we first add half a step to the bits, read as an integer, and then set the last 13 bits to zero. If the addition carries into the
exponent, this is just right: the number was rounded up to the next power of two.
"""


# %%
#| export labs.drills.formats
def to_tf32(x: Tensor) -> Tensor:
    """float32 x with its mantissa rounded to 10 bits, nearest, ties to even: a model of a TF32 product's input.

    Hardware may truncate, or break ties otherwise. Infinity and NaN pass through. TypeError for other dtypes.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"to_tf32 reads float32, as a tensor core does; this is {x.dtype}: write x.float()")
    bits = x.view(torch.int32)
    tie = (bits >> 13) & 1  # 1 where the last bit that stays is odd
    rounded = (bits + 0x0FFF + tie) & ~0x1FFF
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


# %%
patterns = torch.arange(-(2**31), 2**31, 40_009).to(torch.int32).view(torch.float32)  # of every exponent
patterns = patterns[~patterns.isnan()]
assert torch.equal(to_tf32(patterns), round_to(patterns, FORMATS["tf32"])), "the trick is not the definition"
for dtype in (torch.bfloat16, torch.float16):
    form = FORMATS[str(dtype).removeprefix("torch.")]
    assert torch.equal(round_to(patterns, form), patterns.to(dtype).float()), f"{dtype} rounds otherwise"
print(f"{len(patterns):,} bit patterns: TF32 by its definition, bfloat16 and float16 as PyTorch rounds them")

# %%
#| export labs.drills.formats
from contextlib import nullcontext

from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = [getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm")]


class Emulated(TorchDispatchMode):
    """Every matrix product inside reads inputs changed by `read`, and its result is changed by `write`."""

    def __init__(self, read, write=lambda x: x):
        super().__init__()
        self.read, self.write = read, write

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        *first, a, b = args
        a, b = self.read(a), self.read(b)
        first = [x.to(a.dtype) for x in first]  # what is added to the product, such as a bias
        return self.write(func(*first, a, b, **(kwargs or {})))


# %%
#| export labs.drills.formats
def emulation(precision: str):
    """A context in which products behave as in this precision, on any device, forward and backward."""
    if precision == "float32":
        return nullcontext()
    if precision == "tf32":
        return Emulated(to_tf32)
    if precision == "bf16-masters":  # all tensors are bfloat16 already
        return Emulated(lambda x: x.float(), lambda x: x.bfloat16())
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    def cast(x):
        return x.to(dtype).float()

    return Emulated(cast, cast)


# %% tags=["nbval-ignore-output"]
def gradient(batch, precision):
    """All of a new model's gradient on a batch, end to end, on the emulated hardware."""
    model = GPT(config, seed_everything(1)).to(device)
    with emulation(precision):
        model(*batch)[1].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


stream = BatchStream(open_shards(folder, "train"), B, T, seed=1, device=device)
batch, other = stream.next_batch(), stream.next_batch()
exact = gradient(batch, "float32")
noise = (gradient(other, "float32") - exact).norm() / exact.norm()
for precision in ("tf32", "bf16", "fp16"):
    rounding = (gradient(batch, precision) - exact).norm() / exact.norm()
    print(f"{precision}: rounding changes the gradient by {rounding:.2%}, another batch by {noise:.0%}")
assert rounding < noise, "rounding is not small beside the noise of the batch"

# %% [markdown]
r"""
The percentages are norms of differences, relative to the norm of the gradient. The gradient of another batch is another estimate
of what we want to know, and training lives with such differences in every step. Beside them, rounding is small. This is why a run
under bf16 autocast follows the float32 run. Chapter 10b trains both, and four others.

## Which hardware has what

| | float16 | bfloat16 | TF32 | source |
|---|---|---|---|---|
| NVIDIA Volta and Turing (V100, T4, RTX 20), 7.x | yes | – | – | [1] "Warp Matrix Functions" |
| NVIDIA from Ampere (A100, RTX 30) on, 8.0 and higher; from Ada (RTX 40) and Hopper (H100) on, 8.9, also FP8 | yes | yes | yes | [1] "Alternate Floating Point", and [2] for FP8 |
| AMD CDNA2 (MI200) | yes | yes | – | [3] |
| AMD CDNA3 (MI300) | yes | yes | as XF32 | [3], and [4] §7.1 |
| x86 with AVX2 (Haswell to Coffee Lake; Zen to Zen 3; Intel Core from the 12th generation on) | – | – | – | [5] `haswell`, `znver3`, `alderlake` |
| Intel with AVX-512 and no BF16 (Skylake and Cascade Lake servers, Ice Lake, Tiger Lake, Rocket Lake) | – | – | – | [5] `cascadelake`, `icelake-server`, `tigerlake` |
| Intel Cooper Lake, AMD from Zen 4 on: AVX512_BF16 | – | yes | – | [5] `cooperlake`, `znver4` |
| Intel Sapphire Rapids and later servers: AMX-BF16, AVX512_FP16 | yes | yes | – | [5] `sapphirerapids` |
| Apple M1: FEAT_FP16 | yes | – | – | [6] |
| Apple M2, Neoverse V1: FEAT_FP16, FEAT_BF16 | yes | yes | – | [6] |

"Yes" means instructions or units that multiply the format. All of them can store it, and emulate products slowly. How slowly
depends on the processor: on a Cascade Lake, bf16 products ran at 25 GFLOP/s and float32 at 103; on an AMD processor with AVX2 only,
at 1 and 89 (both November 2026). The cell under "One word for a run" shows the factors on yours. FP8 halves the bits once more. Its range is so short that each tensor needs a scale of its own (Micikevicius et al.
2022).

Sources: [1] NVIDIA, *CUDA C++ Programming Guide*. [2] NVIDIA, *TensorRT-RTX Support Matrix*, "Supported Hardware".
[3] AMD, *ROCm: Data types and precision support*. [4] AMD, *Instinct MI300 CDNA3 Instruction Set Architecture*.
[5] *GCC manual*, "x86 Options", `-march`. [6] registers and `sysctl hw.optional.arm` of the chips, as collected in
github.com/lelegard/arm-cpusysregs.

In short: use bf16 autocast where the hardware has it, and TF32 for the products that stay float32. Where the hardware has float16
only, go on to chapter 10b.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("10")

# %%
checkpoint("10")

# %% [markdown]
r"""
## Exercises

`course exercises release 10` writes these as a notebook to `released/`; `course check 10` runs their visible checks. 10-1 and
10-2 belong to this chapter, the others to chapter 10b.

- **10-1** Round by bits, 30 minutes: round to any mantissa with integer operations, ties and NaN included.
- **10-2** Where it stops, 20 minutes: sums that stop, updates that vanish, and the scale of a loss, for numbers of your own.

To explore:

1. Derive the 0.42: an error spread evenly over ± half a step, numbers spread evenly on a log scale between two powers
   of two. *Check:* the RMS relative error of `round_to(torch.randn(100_000), form)` is 0.42 × eps / 2 for tf32 and
   bfloat16, to a percent. For float16 it is larger, since numbers below 2^-14 lose bits: by how much?
2. Sum 4,096 products in bfloat16 as in the figure, but in blocks of 64 whose sums are added in float32. *Check:* the
   error falls almost to that of rounded inputs. Some programs do this for FP8, with blocks of 128, because an H100's tensor
   cores keep only about 14 bits of an FP8 sum (DeepSeek-AI, *DeepSeek-V3*, 2024, §3.3.2).
3. Let the emulated hardware round LayerNorm and softmax as well. *Check:* say first whether the gradient changes more.

## Further reading

- P. Micikevicius et al., [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), 2018, §3.3: why products are added up in float32.
- D. Kalamkar et al., [*A Study of BFLOAT16 for Deep Learning Training*](https://arxiv.org/abs/1905.12322), 2019, §2 and §3.
- N. Higham and T. Mary, [*A New Approach to Probabilistic Rounding Error Analysis*](https://doi.org/10.1137/18M1226312), 2019, §1: why √K and not K.
- NVIDIA, [*Tesla V100 GPU Architecture*](https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf), 2017, "Tensor Cores".
- PyTorch, [*Automatic Mixed Precision package*](https://docs.pytorch.org/docs/stable/amp.html), "Autocast Op Reference"; [*Numerical accuracy*](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html), "TensorFloat-32".
- P. Micikevicius et al., [*FP8 Formats for Deep Learning*](https://arxiv.org/abs/2209.05433), 2022, §3.
"""
