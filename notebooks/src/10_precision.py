# %% [markdown]
r"""
# 10 · Precision: which bits may go

Half the bits are half the bytes to move, and where the hardware has units for them, a matrix product of 16-bit numbers
runs several times faster than one of 32-bit numbers (chapter 09 measured your machine's factor; where it has none, the
product runs slower). Nothing else in the speed ladder is as cheap to switch on. But a number format can lose in two
ways: its steps are too coarse, or its range is too short. float16 loses in one, bfloat16 in the other, and training
notices each at a different place. This chapter finds those places, and what keeps a run on the float32 curve.
"""

# %%
#| default_exp gpt.precision
#| doc gpt.precision: One word for how a run uses number formats: float32, tf32, bf16, fp16 or bf16-masters.
#| doc drills.formats: Number formats bit by bit: what rounding to them does, as a definition for study.
import csv
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from course.figures import precision as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.evals.losses import evaluating
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.train import both_finite, target_shares
from nanogpt.speed.roofline import matmul_formats
from nanogpt.text.data import BatchStream
from nanogpt.text.shards import document_starts, open_shards

# %% tags=["nbval-ignore-output"]
device = pick_device()
if device.type == "mps":
    print("an Apple GPU lacks float64 and TF32's switch, which this chapter needs: it runs on the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
folder = "../data/built/stories"
manifest = ensure_corpus(folder)
B, T, lr, steps = 8, 64, 2e-3, {"ci": 60, "laptop": 100, "gpu": 300}[scale]
config = GPTConfig(T, manifest["vocab_size"], n_layer=2, n_head=2, n_embd=64, flash=False)
lengths = [16, 64, 256, 1024, 4096]  # terms of a sum, in "Error against float64"
print(f"device {device}, scale {scale}")

# %% [markdown]
r"""
A floating-point number is a sign, an exponent and a mantissa: ± 1.mantissa × 2^exponent. The bits of exponent and mantissa
describe a format. (TF32 is not a format of storage: it is what tensor cores read of a float32.) The largest exponent is
reserved for infinity and NaN; the smallest means that the leading 1 is missing, so that numbers reach down to zero in equal
steps (*subnormal* numbers).
"""

# %%
#| export drills.formats
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


# %%
#| export drills.formats
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
    print(f"{form.name:10}{form.max:11.3g}{form.tiny:18.3g}{form.smallest:11.2g}{1 + form.eps:15.8g}")

# %% [markdown]
r"""
A bfloat16 is the upper half of a float32. *Predict* what float16 makes of 65519 and of 65520: which two neighbours does the
second lie between? Then try 1.001, 3e-8 and 1e39.
"""


# %% tags=["nbval-ignore-output"]
figures.bits_widget("65520", FORMATS)

# %% [markdown]
r"""
## Predict

1. A weight is 1. One thousand updates of 0.001 are added to it, in bfloat16. What is it then?
2. A matrix product sums K terms. Inputs are rounded to bfloat16, the sum is float32. By which factor does its relative
   error grow when K grows from 16 to 4096?
3. A published run in float16 looks for its loss scale from 2^32 on. How many steps does it throw away?
4. A small GPT is trained six times: in float32; with TF32 products; under bf16 autocast; in fp16 with loss scaling; in
   fp16 with a loss divided by 512; with bfloat16 weights. Which ends highest?

And in words: name one operation of a GPT that must not run in 16 bits.
"""

# %%
predict("10.1", "1 + 1000 updates of 0.001 in bfloat16", guess=None)
predict("10.2", "relative error at K = 4096 over that at K = 16", guess=None, unit="×")
predict("10.3", "steps that the fp16 log skips", guess=None)
predict("10.4", "float32, TF32, bf16, fp16, loss / 512 or bf16 weights", guess=None)

# %% [markdown]
r"""
## Rounding

Between two powers of two, numbers lie at equal distances. That distance is all there is to rounding: divide by it,
round to an integer (ties go to the even one), multiply.
"""


# %%
#| export drills.formats
#| blank spacing: the exponent of x, at least the smallest normal one, minus the bits of the mantissa
#| blank round_to: measure x in gaps, round, scale back; beyond the largest number it becomes infinite
def spacing(x: Tensor, form: Format) -> Tensor:
    """The distance between neighbours of `form` around each x, as float64 on the CPU."""
    exponent = torch.frexp(x.detach().cpu().double()).exponent - 1  # |x| = 1.… × 2^exponent
    exponent = exponent.clamp(min=1 - form.bias)
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - form.mantissa)


def round_to(x: Tensor, form: Format) -> Tensor:
    """Each x as the nearest number of `form` (IEEE 754-2019, §4.3.1), ties to even, as float32 on the CPU; slow."""
    gap = spacing(x, form)
    y = torch.round(x.detach().cpu().double() / gap) * gap
    return torch.where(y.abs() > form.max, y * math.inf, y).float()


# %%
weight = torch.tensor(1.0)
for _ in range(1000):
    weight = round_to(weight + 0.001, FORMATS["bfloat16"])
gap = spacing(weight, FORMATS["bfloat16"]).item()
print(f"1 + 1000 × 0.001 = {weight.item()}; the next bfloat16 is {gap} away")
answer("10.1", weight.item())
print("1e-8 and 1e5 in float16:", round_to(torch.tensor([1e-8, 1e5]), FORMATS["float16"]).tolist())

# %% [markdown]
r"""
The first is why float32 weights are kept; the second is why float16 needs loss scaling. The whole picture, for numbers
of every size:
"""

# %%
x, errors = 2.0 ** torch.linspace(-42, 24, 1200, dtype=torch.float64), {}
for name, form in FORMATS.items():
    errors[name] = torch.where(x > form.max, math.nan, (spacing(x, form) / 2 / x).clamp(max=1))
show(
    figures.rounding(x, errors),
    alt="Largest relative rounding error against size: flat for float32, TF32 and bfloat16; float16 lies on TF32 between 2^-14 and 65504, rises to 1 at 2^-25 and ends at 65504.",
)

# %% [markdown]
r"""
Where float16 is flat it is eight times as precise as bfloat16. It is flat for 30 powers of two only.

**TF32 in one addition.** A tensor core in TF32 mode reads a float32 and ignores its last 13 bits. A mask alone would
round towards zero; adding half a step first rounds to nearest. A carry out of the mantissa runs into the exponent,
which is just what rounding up to the next power of two needs.
"""


# %%
#| export drills.formats
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

# %% [markdown]
r"""
## Error against float64

One rounding errs by at most half a step, evenly spread. For numbers of all sizes the root-mean-square relative error
is then √(1 / (8 ln 2)) = 0.42 of eps / 2 (derive it: the first experiment at the end). Products of matrices add up K of
them. Errors of random sign grow like √K, but so does the sum itself. So rounding the *inputs*, two for each product,
costs a relative error of √2 × 0.42 = 0.60 of eps / 2, whatever K is.

That holds while the *sum* is kept in float32, as tensor cores do. If each partial sum is rounded as well, the errors
are as large as the partial sums: the absolute error grows like K.
"""

# %%
g = seed_everything(0)


def product_error(name, K, sums, n=96):
    """RMS error of an (n, K) @ (K, n) product whose inputs are rounded to a format, and its partial sums to `sums`."""
    a, b = torch.randn(n, K, generator=g), torch.randn(K, n, generator=g)
    total, exact = torch.zeros(n, n, dtype=sums), a.double() @ b.double()
    a, b = (round_to(x, FORMATS[name]).double() for x in (a, b))
    for k in range(K):
        total += a[:, k, None] * b[k]  # rounded where it is stored
    return (total - exact).square().mean().sqrt().item()


inputs = ("tf32", "bfloat16", "float16")
errors = {(name, False): [product_error(name, K, torch.float64) for K in lengths] for name in inputs}
errors["bfloat16", True] = [product_error("bfloat16", K, torch.bfloat16) for K in lengths]

# %%
rms_error = math.sqrt(1 / (8 * math.log(2)))
predicted = [math.sqrt(2 * K) * rms_error * FORMATS["bfloat16"].eps / 2 for K in lengths]
show(
    figures.products(lengths, errors, predicted),
    alt="Error of a product against K, log-log: slope one half where only inputs are rounded, as predicted, and slope one where partial sums are rounded as well.",
)
for (name, sums), errs in errors.items():
    slope = math.log(errs[-1] / errs[0]) / math.log(lengths[-1] / lengths[0])
    assert abs(slope - (1.0 if sums else 0.5)) < 0.15, f"{name}: the error grows like K^{slope:.2f}"
ratios = [found / p for found, p in zip(errors["bfloat16", False], predicted)]
assert all(abs(ratio - 1) < 0.05 for ratio in ratios), f"not 0.60 of eps / 2 but that times {ratios}"
answer("10.2", ratios[-1] / ratios[0])

# %% [markdown]
r"""
TF32 and float16 lie on each other: ten bits of mantissa both. And the relative error does not change with K.

## TF32 is a switch

`torch.set_float32_matmul_precision` says what may be done *inside* a product of float32 matrices; inputs and result
stay float32. `"highest"` (the default) allows nothing. `"high"` allows TF32, on GPUs that have it. `"medium"` also
allows bfloat16. What a machine does with the permission shows in the error. The setting is global.
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
## Autocast

`torch.autocast` looks at each operation. Products get their inputs in 16 bits. Operations that sum many numbers or take
exponentials get, or keep, float32. The rest takes what comes. Weights stay float32 and are cast where they are used.

Which is which? Ask each operation, once with float32 and once with 16-bit input:
"""

# %%
half = torch.bfloat16 if "bfloat16" in matmul_formats(device) else torch.float16
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
Down the table runs a GPT's block. The residual stream is float32, because the embedding is, and a sum of float32 and
16 bits is float32; so each LayerNorm reads float32. The loss is float32 on every device: a sum over fifty thousand
exponentials must not run in 16 bits. With 16-bit input, CUDA lifts LayerNorm and softmax to float32
as well; the CPU leaves them.

Name the *type* of the device. `torch.autocast("cuda:0")` is an error in some versions of PyTorch. In others it passes,
but skips the check whether this GPU has bfloat16.

The five precisions of this course, in one place (the last one, with weights in bfloat16, comes at the end). You may pass
over this code; what it prints counts.
"""


# %%
#| export
from functools import cache

import torch

from nanogpt.speed.roofline import matmul_flops, matmul_formats

PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-masters": None,
}
READS = {"bf16": "bfloat16", "fp16": "float16", "bf16-masters": "bfloat16"}  # what products read


# %%
#| export
def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can, be it slowly: see `speedup`."""
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
def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context for a model's forward pass and loss. Backward belongs outside: it follows what forward did.

    Also turns the global TF32 switch on or off. fp16 needs a LossScaler; bf16-masters casts nothing, since
    MasterAdamW has turned the weights to bfloat16. Raises ValueError where the device cannot.
    """
    if reason := why_not(precision, device):
        raise ValueError(reason)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


# %%
#| export
@cache
def speedup(precision: str, device: torch.device) -> float:
    """How many times float32's rate matrix products reach in a precision: measured, once a process.

    Well below 1 the format is emulated. Processor flags do not say it: libraries decide which instructions they use.
    """
    if reason := why_not(precision, device):
        raise ValueError(reason)
    n, name = 4096 if device.type == "cuda" else 256, READS.get(precision, precision)
    best = {"float32": 0.0, name: 0.0}
    for _ in range(3):  # in turn, so that a disturbance meets both
        best = {dtype: max(rate, matmul_flops(device, dtype, n, repeats=3)) for dtype, rate in best.items()}
    return best[name] / best["float32"]


def best_precision(device: torch.device) -> str:
    """bf16 where the device multiplies it faster than float32, else fp16 on a CUDA GPU, else float32."""
    if device.type == "cuda":
        return "fp16" if why_not("bf16", device) else "bf16"
    return "bf16" if device.type == "cpu" and speedup("bf16", device) > 1 else "float32"


# %% tags=["nbval-ignore-output"]
for precision in PRECISIONS:
    told = why_not(precision, device) or f"products at {speedup(precision, device):.2f} × float32's rate"
    print(f"{precision:12} {told}")
print("best here:", best_precision(device))

# %% [markdown]
r"""
A factor well below 1 says that the format is emulated. A processor's flags do not settle that, since the library decides
which instructions it uses; hence the measurement. (A product is not a step. Casts, LayerNorm and the optimizer stay: chapter
14 times the whole.)

So that every machine can train in every precision below, here is a model of the hardware that CPUs mostly lack. It rounds
the inputs of each matrix product, forward and backward, and rounds the result unless that stays float32.
"""


# %%
PRODUCTS = [getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm")]
ROUNDINGS = {"tf32": to_tf32, "bf16": lambda x: x.bfloat16().float(), "fp16": lambda x: x.half().float()}


class Emulated(TorchDispatchMode):
    """Every matrix product inside reads inputs changed by `read`, and its result is changed by `write`."""

    def __init__(self, read, write=lambda x: x):
        super().__init__()
        self.read, self.write = read, write

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        *first, a, b = args
        return self.write(func(*first, self.read(a), self.read(b), **(kwargs or {})))


# %%
def emulation(precision):
    """What makes products behave as in `precision`: on a CPU, and on a GPU that cannot; elsewhere nothing."""
    if precision == "float32" or (device.type != "cpu" and not why_not(precision, device)):
        return nullcontext()
    cast = ROUNDINGS[precision]
    return Emulated(cast) if precision == "tf32" else Emulated(cast, cast)


a, b = torch.randn(2, 64, 64, generator=g).to(device)
with autocast("fp16", device):
    real = (a @ b).float()
with Emulated(ROUNDINGS["fp16"], ROUNDINGS["fp16"]):
    apart = ((a @ b - real).norm() / real.norm()).item()
assert apart < FORMATS["float16"].eps, f"the model and PyTorch's float16 are {apart:.0e} apart"


# %% [markdown]
r"""
## What float16 cannot see

A small GPT on the course's stories, and one backward pass in float32. Where does what its products write lie on float16's
scale: the gradients of weights and of activations?
"""

# %%
torch.set_num_threads(1)  # sums in one order: what is printed does not hang on the number of threads


def batches(split, B):
    return BatchStream(open_shards(folder, split), B, T, seed=1, device=device)


def keep(product):
    found.append(product.flatten().abs().cpu())
    return product


model, found = GPT(config, seed_everything(1)).to(device), []
x, y = batches("train", B).next_batch()
loss = model(x, y)[1]
with Emulated(read=lambda x: x, write=keep):
    loss.backward()
gradients = torch.cat(found)
gradients = gradients[gradients > 0]

# %%
form, shifts = FORMATS["float16"], {"loss / 512": -9, "loss": 0, "loss × 2^16": 16}
show(
    figures.gradients(gradients, shifts, form.smallest, form.tiny),
    alt="Histogram of gradient sizes on float16's range: unscaled they lie mostly among subnormals, divided by 512 many round to zero, times 2^16 they fit.",
)
for label, shift in shifts.items():
    scaled = gradients * 2.0**shift
    lost = (scaled <= form.smallest / 2).float().mean()
    coarse = (scaled < form.tiny).float().mean() - lost
    small = (scaled < FORMATS["bfloat16"].tiny).sum()
    print(f"{label:12} float16: {lost:4.0%} zero, {coarse:4.0%} subnormal; bfloat16: {small} below 2^-126")
assert gradients.min() * 2.0**-29 > FORMATS["bfloat16"].tiny, "a gradient that bfloat16 would lose"

# %% [markdown]
r"""
The loss is a mean over tokens, so each gradient carries a factor 1/(B·T). A batch of half a million tokens is 512
micro-batches of a thousand, each divided by their number (chapter 15): the line "loss / 512". Read its row again.

bfloat16 has float32's exponents. None of these gradients lies below its smallest normal number, 2^-126, nor would any
if the loss were divided by a million more. That is why bf16 needs no scaler.

## Loss scaling

Multiply the *loss* by a power of two, and the chain rule multiplies every gradient (Micikevicius et al. 2018, §3.2).
Nothing is rounded by that; only exponents shift. Divide again in float32, before clipping and the update.

Which factor? The largest that does not overflow, and it changes during training. So try: if a gradient comes back
infinite or NaN, skip this update and halve the scale; after 2,000 good steps in a row, double it:
"""

# %%
#| export
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018, §3.2), with torch.amp.GradScaler's constants.

    A step is: (loss * scaler.scale).backward(); finite = scaler.unscale(model.parameters()); if finite, clip and
    optimizer.step(); scaler.update(finite).
    """

    scale: float = 2.0**16
    growth_interval: int = 2000
    good_steps: int = 0

    def unscale(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any of this rank is not finite: then skip this update."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError("no parameter has a gradient; call (loss * scaler.scale).backward() first")
        torch._foreach_mul_(grads, 1 / self.scale)
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())  # the one wait for the device


# %% [markdown]
r"""
After each step:
"""


# %%
#| export
#| blank LossScaler.update: halve and start counting again, or count, and double after enough good steps
class LossScaler(LossScaler):
    def update(self, finite: bool) -> None:
        """Halve the scale after a bad step, double it after growth_interval good ones; FloatingPointError below 1."""
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            if self.scale < 2:
                what = "gradients are not finite even without loss scaling"
                raise FloatingPointError(
                    f"{what}; look for NaN in data or weights, or lower the learning rate"
                )
            self.scale /= 2
        elif self.good_steps == self.growth_interval:
            self.good_steps = 0
            self.scale = min(2 * self.scale, 2.0**127)  # float32 ends at 2^128

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


# %% [markdown]
r"""
Two good steps, two bad ones, four good ones, where two in a row double the scale. (The tests of this chapter feed random
sequences to it and to torch.amp.GradScaler: the same decisions, the same weights.)
"""

# %%
scaler = LossScaler(growth_interval=2)
for finite in (True, True, False, False, True, True, True, True):
    scaler.update(finite)
    print(f"2^{math.log2(scaler.scale):.0f}", end=" ")

# %% [markdown]
r"""
## Why an fp16 log begins with skipped steps

Megatron-LM starts at 2^32, above any scale that could work: halving finds the right one in a few steps, without a guess.
Until then there is no update. How such a step looks, with the scaler:
"""


# %%
def training_step(model, optimizer, scaler, x, y, precision):
    """One update, or none if a gradient is not finite. Returns the loss, and whether there was an update."""
    emulate = emulation(precision)
    optimizer.zero_grad()
    with emulate:
        with autocast("float32" if isinstance(emulate, Emulated) else precision, device):
            loss = model(x, y)[1]
        (loss * scaler.scale).backward()
    if finite := scaler.unscale(model.parameters()):
        optimizer.step()
    return loss.item(), finite


# %% [markdown]
r"""
(To stop inside it and look, write `breakpoint()` before `optimizer.step()`: then `p loss`, `p
max(p.grad.abs().max() for p in model.parameters())`, and `c` goes on. After an exception, `%debug` in a new cell.)

Where must the search end? At the largest power of two that keeps the largest gradient of the float32 step above below
65,520, from where float16 rounds to infinity, give or take a step, since each attempt meets another batch.
"""

# %% tags=["nbval-ignore-output"]
predicted = math.floor(math.log2(65520 / gradients.max().item()))
model = GPT(config, seed_everything(1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
scaler, stream = LossScaler(2.0**32, growth_interval=12), batches("train", B)
exponents, good = [], []
for _ in range(80):
    good.append(training_step(model, optimizer, scaler, *stream.next_batch(), "fp16")[1])
    exponents.append(math.log2(scaler.scale))
    scaler.update(good[-1])
print(f"predicted {32 - predicted} skipped steps, then 2^{predicted}; skipped {good.index(True)}")
assert abs(good.index(True) - (32 - predicted)) <= 1, "the search ends elsewhere"
show(
    figures.scales(exponents, good, predicted),
    alt="Loss scale against iteration: it halves on each step from 2^32 down to the predicted scale, then doubles and falls back when that overflows.",
)

# %% [markdown]
r"""
A published log reads alike: Megatron-LM on GPT-2 124M, one line every ten iterations. Which scale does it settle on, and
how many steps did that cost? (Megatron waits for a second bad step before it halves for the first time: its
`hysteresis` is 2.)
"""

# %%
with open("../data/reference/megatron_124m.csv", encoding="utf-8") as file:
    log = list(csv.DictReader(file))
skipped = 0
for row in log[:5]:
    skipped += int(row["skipped"])
    done, size = int(row["iteration"]) - skipped, math.log2(float(row["loss_scale"]))
    told = f"{skipped:2} skipped, {done:2} updates, learning rate {float(row['learning_rate']):.0e}"
    print(f"iteration {row['iteration']:>3}: scale 2^{size:.0f}, {told}, loss {row['lm_loss'] or '-'}")
answer("10.3", sum(int(row["skipped"]) for row in log))

# %% [markdown]
r"""
The learning rate tells the same story: it warms up by 1e-5 an *update*, so at iteration 20 it is that of the fourth.
PyTorch's scaler starts at 2^16. Later, a skipped step now and then is how the scaler finds out that a larger scale does not
work. A log that skips on and on is another matter: a loss that diverges, or broken data.

## The same run, six times

The same model, batches and AdamW. Two runs are meant to go wrong: float16 without scaling at "loss / 512", and one whose
*weights* (and with them AdamW's moments) are bfloat16. Below the curves, how far each lies above float32's.
"""


# %%
FusedAdamW = partial(torch.optim.AdamW, fused=True)


def run(precision, scaler, weights=torch.float32, make_optimizer=FusedAdamW):
    """Train; returns the loss of every step, and the validation loss and the model at the end."""
    model = GPT(config, seed_everything(1)).to(device, weights)
    optimizer = make_optimizer(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    stream, curve = batches("train", B), []
    for _ in range(steps):
        loss, finite = training_step(model, optimizer, scaler, *stream.next_batch(), precision)
        scaler.update(finite)
        curve.append(loss)
    with torch.no_grad():
        return curve, model.float()(x_val, y_val)[1].item(), model


x_val, y_val = batches("val", 64).next_batch()
runs = {
    "float32": run("float32", LossScaler(1.0)),
    "TF32": run("tf32", LossScaler(1.0)),
    "bf16": run("bf16", LossScaler(1.0)),
    "fp16": run("fp16", LossScaler()),
    "loss / 512": run("fp16", LossScaler(2.0**-9)),
    "bf16 weights": run("float32", LossScaler(1.0), weights=torch.bfloat16),
}

# %% tags=["nbval-ignore-output"]
show(
    figures.runs({name: curve for name, (curve, _, _) in runs.items()}, manifest["floor"]),
    alt="Six loss curves and their differences from float32: TF32, bf16 autocast and scaled fp16 stay within a few hundredths; bf16 weights end higher; fp16 without scaling at loss/512 stays far above.",
)
val = {name: loss for name, (_, loss, _) in runs.items()}
for name, loss in val.items():
    print(f"{name:13} validation loss {loss:.3f}, {loss - val['float32']:+.3f} against float32")
answer("10.4", max(val, key=val.get))

# %%
for name in ("TF32", "bf16", "fp16"):
    assert abs(val[name] - val["float32"]) < 0.05, f"{name}: {val[name]:.3f} against {val['float32']:.3f}"
for name, least in [("bf16 weights", 0.03), ("loss / 512", 0.3)]:
    assert val[name] > val["float32"] + least, f"{name} does not suffer yet: take more steps"
print("TF32, bf16 autocast and scaled fp16 agree with float32 to 0.05 nats; the other two do not")

# %% [markdown]
r"""
Four curves are one curve: gradients are noisy anyway, and a rounding error has no preferred sign.
"""

# %% [markdown]
r"""
## The course's step grows

Chapter 07's `train_step` gets the same. It takes the word for the precision, and for fp16 a scaler. The forward pass runs under
`autocast`. If the gradient has overflowed, the step is skipped and the scale halved. Everything else stays as it was:
"""


# %%
#| export gpt.train
def gradient_is_fine(model: GPT, loss: Tensor, scaler: LossScaler | None) -> bool:
    """Unscale the gradient in place, and look at it. False if the scaler says that this update is to be skipped."""
    if scaler is not None:
        scaler.unscale(model.parameters())
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if scaler is not None:
        scaler.update(finite := bool(norm.isfinite()))
        if not finite:
            return False
    return both_finite(loss, norm)


# %%
#| export gpt.train
#| grows train_step
def train_step(model: GPT, optimizer, batches, precision="float32", *, scaler=None) -> Tensor:
    """One update from batches [(x, y), …], each (B, T): the mean loss before it, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches. precision: chapter 10's word; fp16 takes a
    LossScaler, which skips what overflowed.
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    shares = target_shares(batches)
    loss = torch.zeros((), device=shares.device)
    optimizer.zero_grad()
    for (x, y), share in zip(batches, shares):
        with autocast(precision, x.device):
            part = share * model(x, y)[1]
        (part if scaler is None else part * scaler.scale).backward()
        loss += part.detach()
    if gradient_is_fine(model, loss, scaler):
        optimizer.step()
    return loss


# %%
grown("train_step", "10")

# %% [markdown]
r"""
What went is struck out, and what is new is marked. `evaluate` needs one line more, so that the held-out loss is measured in
the precision of the training:
"""


# %%
#| export evals.losses
#| grows evaluate
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
## Updates that vanish

Weights are different: they accumulate small changes, and a change below half a step is not small, it is nothing. AdamW
moves a weight by about the learning rate. Which weights of the trained model does an update of that size still move?
"""

# %% tags=["nbval-ignore-output"]
weights = torch.cat([p.detach().cpu().flatten() for p in runs["float32"][2].parameters()])
rates, stuck = [10.0**-k for k in (2, 2.5, 3, 3.5, 4, 4.5, 5)], {}
for name in ("float32", "bfloat16", "float16"):
    start = round_to(weights, FORMATS[name])
    stuck[name] = [(round_to(start.double() - rate, FORMATS[name]) == start).float().mean() for rate in rates]
show(
    figures.stuck(rates, stuck),
    alt="Share of weights that an update does not move against its size: near zero for float32, rising towards one for bfloat16 as the learning rate falls.",
)
gain = runs["bf16 weights"][2].transformer.h[0].ln_1.weight
print(f"LayerNorm gains of the bf16 run that still are exactly 1: {(gain == 1).float().mean().item():.0%}")

# %% [markdown]
r"""
A learning rate falls towards the end of training, so more and more weights stop, the largest first. Hence *master
weights* (Micikevicius et al. 2018, §3.1): float32 weights take the updates, 16-bit copies do the multiplying. Under
autocast the parameters are the masters, and the copies are made on the fly, in every step: read 4 bytes a weight, write
2. (A rounding that is random and right on average would do as well: the third experiment at the end.)

## Masters of their own

Or the model keeps bfloat16 weights, and the optimizer the masters. All weights lie end to end in one tensor, of which
the model's are views, so that an update is one function of five tensors. A compiler (chapter 11) makes it one pass of 28
bytes a weight: read gradient 2, master 4, moments 8; write master 4, moments 8, weight 2.
"""


# %%
#| export
#| blank adamw_update: update both moments and decay the master, step it, then copy it into the weight
def adamw_update(weight, grad, master, m, v, rates, beta1: float, beta2: float, eps: float) -> None:
    """AdamW on the float32 master, rounded into the weight; in place (Loshchilov & Hutter 2019, algorithm 2).

    rates: lr / (1 - beta1^t), 1 / (1 - beta2^t) and 1 - lr * weight_decay, each a tensor of one number, so that a
    compiled update is not compiled again in every step.
    """
    step_size, correction, keep = rates
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad * grad, 1 - beta2)
    master.mul_(keep)
    master.sub_(step_size * m / ((v * correction).sqrt() + eps))
    weight.copy_(master)


# %%
#| export
class MasterAdamW(torch.optim.Optimizer):
    """AdamW that turns its parameters to bfloat16 and keeps float32 masters and moments of them.

    A group's weights become one tensor and its parameters views of that, so that an update is one call, which
    `compiled=True` fuses. Make it when the model is on its device; every step needs all gradients.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, compiled=False):
        self.flat = []  # for each group: weight, master, m, v
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, steps=0))

    def add_param_group(self, group: dict) -> None:
        super().add_param_group(group)
        params = self.param_groups[-1]["params"]
        master = torch.cat([p.detach().float().flatten() for p in params])  # before rounding
        self.flat.append((master.bfloat16(), master, torch.zeros_like(master), torch.zeros_like(master)))
        parts = zip(*(tensor.split([p.numel() for p in params]) for tensor in self.flat[-1]))
        for p, (weight, *kept) in zip(params, parts):
            p.data = weight.view_as(p)
            self.state[p] = {name: t.view_as(p) for name, t in zip(("master", "exp_avg", "exp_avg_sq"), kept)}


# %%
#| export
class MasterAdamW(MasterAdamW):
    @torch.no_grad()
    def step(self) -> None:
        """One update of every group."""
        for group, (weight, *kept) in zip(self.param_groups, self.flat):
            if any(p.grad is None for p in group["params"]):
                raise ValueError("MasterAdamW: a parameter has no gradient; call loss.backward() first")
            group["steps"] += 1
            grad = torch.cat([p.grad.flatten() for p in group["params"]])
            lr, (beta1, beta2), t = group["lr"], group["betas"], group["steps"]
            rates = lr / (1 - beta1**t), 1 / (1 - beta2**t), 1 - lr * group["weight_decay"]
            rates = [torch.full((), rate, device=grad.device) for rate in rates]
            self.update(weight, grad, *kept, rates, beta1, beta2, group["eps"])


# %%
#| export
class MasterAdamW(MasterAdamW):
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Masters, moments and options from `state_dict()`; the weights become the masters, rounded."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in self.param_groups] != [len(group["params"]) for group in saved]:
            raise ValueError("MasterAdamW: the saved state belongs to other parameter groups than these")
        for group, other, (weight, master, *_) in zip(self.param_groups, saved, self.flat):
            for p, number in zip(group["params"], other["params"]):
                for name, tensor in self.state[p].items():
                    tensor.copy_(state_dict["state"][number][name])
            group.update({name: value for name, value in other.items() if name != "params"})
            weight.copy_(master)


# %% tags=["nbval-ignore-output"]
_, val["bf16 masters"], _ = run("float32", LossScaler(1.0), make_optimizer=MasterAdamW)
for name in ("float32", "bf16 weights", "bf16 masters"):
    print(f"{name:13} validation loss {val[name]:.3f}")
assert abs(val["bf16 masters"] - val["float32"]) < 0.05, "the masters do not keep what bfloat16 loses"

# %% [markdown]
r"""
## Which hardware has what

| | float16 | bfloat16 | TF32 | source |
|---|---|---|---|---|
| NVIDIA Volta and Turing (V100, T4, RTX 20), 7.x | yes | – | – | [1] "Warp Matrix Functions" |
| NVIDIA Ampere (A100, RTX 30), from 8.0 on | yes | yes | yes | [1] "Alternate Floating Point" |
| NVIDIA Ada (RTX 40), Hopper (H100), Blackwell (B200, RTX 50), from 8.9 on | yes | yes | yes | [1], and [2] for FP8 |
| AMD CDNA2 (MI200) | yes | yes | – | [3] |
| AMD CDNA3 (MI300) | yes | yes | as XF32 | [3], and [4] §7.1 |
| x86 before those below (Skylake, Cascade Lake, Zen 3): AVX2, AVX-512 | – | – | – | [5] `cascadelake`, `znver3` |
| Intel Cooper Lake, AMD Zen 4 and later: AVX512_BF16 | – | yes | – | [5] `cooperlake`, `znver4` |
| Intel Sapphire Rapids and later: AMX-BF16, AVX512_FP16 | yes | yes | – | [5] `sapphirerapids` |
| Apple M1: FEAT_FP16 | yes | – | – | [6] |
| Apple M2, Neoverse V1: FEAT_FP16, FEAT_BF16 | yes | yes | – | [6] |

"Yes" means instructions or units that multiply the format. All of them can store it, and emulate it slowly: on a Cascade
Lake, PyTorch's bf16 products ran at 25 GFLOP/s against 103 in float32 (measured November 2026). `speedup` says what holds
on yours. FP8 halves
the bits once more; its range is so short that each tensor needs a scale of its own (Micikevicius et al. 2022).

Sources: [1] NVIDIA, *CUDA C++ Programming Guide*. [2] NVIDIA, *TensorRT-RTX Support Matrix*, "Supported Hardware".
[3] AMD, *ROCm: Data types and precision support*. [4] AMD, *Instinct MI300 CDNA3 Instruction Set Architecture*.
[5] *GCC manual*, "x86 Options", `-march`. [6] registers and `sysctl hw.optional.arm` of the chips, as collected in
github.com/lelegard/arm-cpusysregs.

So: bf16 autocast where the hardware has it, fp16 with a scaler where it has not, TF32 for what stays float32.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("10")

# %%
checkpoint("10")

# %% [markdown]
r"""
## Exercises

`course exercises release 10` writes these as a notebook to `released/`; `course check 10` runs their visible checks.

- **10-1** Round by bits, 30 minutes: round to any mantissa with integer operations, ties and NaN included.
- **10-2** Where it stops, 20 minutes: sums that stop, updates that vanish, and the scale of a loss, for numbers of your own.
- **10-3** An fp16 step in the wrong order, 30 minutes: mend five faults.
- **10-4** A check for a loss scaler, 20 minutes: write the check; it is tried on wrong scalers.
- **10-5** Masters that forget, 10 minutes: mend bfloat16 weights with float32 masters.
- **10-6** Two formats, two failures, 5 minutes: why one needs a scaler and the other masters.

To explore:

1. Derive the 0.42: an error spread evenly over ± half a step, numbers spread evenly on a log scale between two powers
   of two. *Check:* the RMS relative error of `round_to(torch.randn(100_000), form)` is 0.42 × eps / 2 for tf32 and
   bfloat16, to a percent. For float16 it is larger, since numbers below 2^-14 lose bits: by how much?
2. Add Megatron's `hysteresis` to `LossScaler`. *Check:* begin at 2^32 and feed it bad steps only: after ten it must
   stand at 8388608.
3. Write `round_stochastically(x, form)`: up with the probability that makes the mean right. *Check:* one thousand
   updates of 0.001 on a weight of 1 end near 2 in bfloat16. Then store the weights of the "bf16 weights" run that way.
4. Sum 4,096 products in bfloat16 as in the figure, but in blocks of 64 whose sums are added in float32. *Check:* the
   error falls almost to that of rounded inputs. This is what some GPUs do for FP8.

## Further reading

- P. Micikevicius et al., *Mixed Precision Training*, 2018, §3.1 master weights, §3.2 loss scaling, §3.3 accumulation.
- D. Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training*, 2019, §2 and §3.
- N. Higham and T. Mary, *A New Approach to Probabilistic Rounding Error Analysis*, 2019, §1: why √K and not K.
- PyTorch, *Automatic Mixed Precision package*, "Autocast Op Reference"; *Numerical accuracy*, "TensorFloat-32".
- P. Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, §3.
"""
