# %% [markdown]
r"""
# 10 · Precision: which bits may go

Half the bits are half the bytes to move, and on most accelerators a matrix product of 16-bit numbers runs several
times faster than one of 32-bit numbers (chapter 00 measured your machine's factor). Nothing else in the speed ladder
is as cheap to switch on. But a number format can lose in two ways: its steps are too coarse, or its range is too
short. float16 loses in one, bfloat16 in the other, and training notices each at a different place. This chapter finds
those places, and what keeps a run on the float32 curve.
"""

# %%
#| default_exp precision
#| doc precision: Number formats, and one word for how a run uses them: float32, tf32, bf16, fp16, bf16-masters.
import ipywidgets
import matplotlib.pyplot as plt
from contextlib import nullcontext
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from course.notebook import checkpoint, show
from nanogpt.corpus import ensure_corpus
from nanogpt.data import BatchStream
from nanogpt.shards import open_shards
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import GPT, GPTConfig

# %% tags=["nbval-ignore-output"]
import torch

device = pick_device()
if device.type == "mps":
    print(
        "float16 without a scaler, TF32's switch and float64 are missing on an Apple GPU; the chapter runs on the CPU"
    )
    device = torch.device("cpu")
scale = pick_scale(device)
print(f"device {device}, scale {scale}")

# %% [markdown]
r"""
A floating-point number is a sign, an exponent and a mantissa: ± 1.mantissa × 2^exponent. Two numbers describe a
format, the bits of its exponent and those of its mantissa. (TF32 is not a format of storage: it is what tensor cores
read of a float32.)
"""

# %%
#| export
import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with IEEE 754's rules for zero, subnormals, infinity and NaN."""

    name: str
    exponent: int  # bits
    mantissa: int  # bits that are stored; the leading 1 is not

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.mantissa


# %% [markdown]
r"""
Its limits follow. The largest exponent is reserved for infinity and NaN; the smallest means that the leading 1 is
missing, so that numbers reach down to zero in equal steps (*subnormal* numbers).
"""


# %%
#| export
class Format(Format):
    @property
    def max(self) -> float:
        return (2 - self.eps) * 2.0**self.bias

    @property
    def tiny(self) -> float:
        """The smallest normal number. Below it the distance between neighbours stays what it is here."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return self.tiny * self.eps


# %%
#| export
FORMATS = {
    form.name: form
    for form in (
        Format("float32", 8, 23),
        Format("tf32", 8, 10),  # NVIDIA A100 white paper, 2020: float32's range with float16's steps
        Format("bfloat16", 8, 7),
        Format("float16", 5, 10),
    )
}

# %%
fig, ax = plt.subplots(figsize=(6.5, 2))
for y, form in enumerate(FORMATS.values()):
    for start, width, colour in [(0, 1, "C7"), (1, form.exponent, "C1"), (9, form.mantissa, "C0")]:
        for bit in range(width):
            ax.add_patch(plt.Rectangle((start + bit, -y), 0.75, 0.7, fc=colour, lw=0))
    ax.text(-0.5, 0.35 - y, form.name, ha="right", va="center")
    ax.text(32.5, 0.35 - y, f"{1 + form.exponent + form.mantissa} bits", va="center")
ax.set(xlim=(-6, 37), ylim=(-3.2, 1.6))
ax.axis("off")
for x, text in [(0, "sign"), (3.2, "exponent: range"), (15.5, "mantissa: precision")]:
    ax.text(x, 1, text, fontsize=9)
show(
    fig,
    alt="Bits of four formats: float32 has 8 for the exponent and 23 for the mantissa, TF32 8 and 10, bfloat16 8 and 7, float16 5 and 10.",
)
print(f"{'':10}{'largest':>11}{'smallest normal':>18}{'smallest':>11}{'next after 1':>15}")
for form in FORMATS.values():
    print(f"{form.name:10}{form.max:11.3g}{form.tiny:18.3g}{form.smallest:11.2g}{1 + form.eps:15.8g}")

# %% [markdown]
r"""
## Predict

Write four answers down before you run on.

1. A weight is 1. One thousand updates of 0.001 are added to it, in bfloat16. What is it then?
2. A gradient of 1e-8 is stored in float16. And one of 1e5?
3. A matrix product sums K terms. Inputs are rounded to bfloat16, the sum is float32. How does its relative error
   change when K grows from 16 to 4096?
4. Name one operation of a GPT that must not run in 16 bits.

## Rounding

Between two powers of two, numbers lie at equal distances. That distance is all there is to rounding: divide by it,
round to an integer (ties go to the even one), multiply.
"""


# %%
#| export
def spacing(x: Tensor, form: Format) -> Tensor:
    """The distance between neighbours of `form` around each x, as float64 on the CPU."""
    exponent = torch.frexp(x.detach().cpu().double()).exponent - 1  # |x| = 1.… × 2^exponent
    exponent = exponent.clamp(min=1 - form.bias)
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - form.mantissa)


def round_to(x: Tensor, form: Format) -> Tensor:
    """Each x as the nearest number of `form`, ties to even, beyond the largest infinity; float32 on the CPU.

    The definition (IEEE 754-2019, §4.3.1), for study: `x.bfloat16()` and `x.half()` are the fast way.
    """
    gap = spacing(x, form)
    y = torch.round(x.detach().cpu().double() / gap) * gap
    return torch.where(y.abs() > form.max, y * math.inf, y).float()


# %%
weight = torch.tensor(1.0)
for _ in range(1000):
    weight = round_to(weight + 0.001, FORMATS["bfloat16"])
print("answer 1:", weight.item(), "  the spacing at 1:", spacing(weight, FORMATS["bfloat16"]).item())
print("answer 2:", round_to(torch.tensor([1e-8, 1e5]), FORMATS["float16"]).tolist())

# %% [markdown]
r"""
The first is why float32 weights are kept; the second is why float16 needs loss scaling. The whole picture, for numbers
of every size:
"""

# %%
x = 2.0 ** torch.linspace(-42, 24, 1200, dtype=torch.float64)
fig, ax = plt.subplots(figsize=(6.5, 3.2))
for form, style in zip(FORMATS.values(), ("C7-", "C2-", "C0-", "C3--")):
    error = (spacing(x, form) / 2 / x).clamp(max=1)
    error[x > form.max] = math.nan
    ax.loglog(x, error, style, base=2, label=form.name)
ax.set(xlabel="size of the number", ylabel="largest relative error of rounding", ylim=(2**-26, 4))
ax.legend(loc="center left", bbox_to_anchor=(0, 0.28), fontsize=9, ncol=2)
show(
    fig,
    alt="Largest relative rounding error against size: flat for float32, TF32 and bfloat16; float16 lies on TF32 between 2^-14 and 65504, rises to 1 at 2^-25 and ends at 65504.",
)

# %% [markdown]
r"""
Where float16 is flat it is eight times as precise as bfloat16. It is flat for 30 powers of two only. bfloat16 has
float32's range: its bits are the upper half of a float32.

**TF32 in one addition.** A tensor core in TF32 mode reads a float32 and ignores its last 13 bits. A mask alone would
round towards zero; adding half a step first rounds to nearest. A carry out of the mantissa runs into the exponent,
which is just what rounding up to the next power of two needs.
"""


# %%
#| export
def to_tf32(x: Tensor) -> Tensor:
    """float32 x with its mantissa rounded to 10 bits, nearest, ties to even: a model of a TF32 product's input.

    Hardware may truncate, or break ties otherwise. Infinity and NaN pass through.
    """
    bits = x.view(torch.int32)
    tie = (bits >> 13) & 1  # 1 where the last bit that stays is odd
    rounded = (bits + 0x0FFF + tie) & ~0x1FFF
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


# %%
patterns = (
    torch.arange(-(2**31), 2**31, 4093).to(torch.int32).view(torch.float32)
)  # a million, of every exponent
patterns = patterns[~patterns.isnan()]
once = to_tf32(patterns)
assert torch.equal(once, round_to(patterns, FORMATS["tf32"])), "the trick is the definition"
assert torch.equal(to_tf32(once), once), "rounding twice is rounding once"
assert not (once.view(torch.int32) & 0x1FFF).any(), "13 bits are zero"
for name, dtype in [("bfloat16", torch.bfloat16), ("float16", torch.float16)]:
    assert torch.equal(round_to(patterns, FORMATS[name]), patterns.to(dtype).float())
print(f"{len(patterns):,} bit patterns: TF32 by its definition, bfloat16 and float16 as PyTorch rounds them")

# %% [markdown]
r"""
## The bits of a number

To see the bits of a number: round it, count it in units of the format's smallest number, and shift that integer
until it fits the mantissa. Each shift is one step of the exponent.
"""


# %%
#| export
def encode(x: float, form: Format) -> str:
    """The bits of x, rounded to `form`: sign, exponent and mantissa, as in "0 01111 0000000000"."""
    value = round_to(torch.tensor(x, dtype=torch.float64), form).item()
    if math.isfinite(value):
        steps = int(abs(value) / form.smallest)
        shift = max(steps.bit_length() - form.mantissa - 1, 0)
        pattern = (shift << form.mantissa) + (steps >> shift)  # the leading 1 carries into the exponent
    else:
        pattern = ((2**form.exponent - 1) << form.mantissa) + (math.isnan(value) << (form.mantissa - 1))
    bits = f"{pattern:0{form.exponent + form.mantissa}b}"
    sign = int(math.copysign(1, value) < 0)
    return f"{sign} {bits[: form.exponent]} {bits[form.exponent :]}"


# %% [markdown]
r"""
Reading them back is the formula from above:
"""


# %%
#| export
def decode(bits: str, form: Format) -> float:
    """The number that bits as `encode` writes them stand for. Raises ValueError where the lengths do not fit."""
    parts = bits.split()
    if [len(part) for part in parts] != [1, form.exponent, form.mantissa] or set(bits) - set("01 "):
        raise ValueError(
            f"{bits!r} is not {form.name}: give 1, {form.exponent} and {form.mantissa} bits with spaces between"
        )
    sign, exponent, mantissa = (int(part, 2) for part in parts)
    if exponent == 2**form.exponent - 1:
        size = math.nan if mantissa else math.inf
    elif exponent == 0:
        size = mantissa * form.smallest
    else:
        size = (1 + mantissa * form.eps) * 2.0 ** (exponent - form.bias)
    return -size if sign else size


# %%
def draw_bits(x):
    fig, ax = plt.subplots(figsize=(7, 1.9))
    for y, form in enumerate(FORMATS.values()):
        bits = encode(x, form)
        value = decode(bits, form)
        sign, exponent, mantissa = bits.split()
        for start, text, colour in [(0, sign, "C7"), (1, exponent, "C1"), (9, mantissa, "C0")]:
            for i, bit in enumerate(text):
                face = colour if bit == "1" else "white"
                ax.add_patch(plt.Rectangle((start + i, -y), 0.7, 0.75, fc=face, ec=colour, lw=0.7))
        error = f"  ({(value - x) / x:+.1e})" if x and math.isfinite(value) else ""
        ax.text(32.4, 0.35 - y, f"{value:.8g}{error}", va="center", fontsize=9)
        ax.text(-0.5, 0.35 - y, form.name, ha="right", va="center", fontsize=9)
    ax.set(xlim=(-6, 47), ylim=(-3.2, 1.3))
    ax.axis("off")
    ax.text(0, 1, f"{x:g}: filled bits are 1; the number that is stored (and its relative error)", fontsize=9)
    return fig


show(
    draw_bits(0.1),
    alt="The bits of 0.1 in four formats, with the number stored and its relative error: largest in bfloat16.",
)
for name, form in FORMATS.items():
    print(f"{name:9} {encode(0.1, form)}")

# %% [markdown]
r"""
Try 1.001, 65519, 65520, 3e-8, 1e39, 0.333. Which two neighbours does 65520 lie between in float16?
"""


# %% tags=["nbval-ignore-output"]
def look(number):
    try:
        show(draw_bits(float(number)), alt=f"The bits of {number} in four formats.")
    except ValueError:
        print(f"{number!r} is not a number; try 0.1 or 1e-7")


_ = ipywidgets.interact(look, number=ipywidgets.Text("65520", continuous_update=False))

# %% [markdown]
r"""
## Error against float64

One rounding errs by at most half a step, evenly spread. For numbers of all sizes the root-mean-square relative error
is then about 0.39 × eps / 2 (exercise 1). Products of matrices add up K of them. Errors of random sign grow like √K,
but so does the sum itself. So rounding the *inputs* costs a relative error of √2 × 0.39 × eps / 2, whatever K is.

That holds while the *sum* is kept in float32, as tensor cores do. If each partial sum is rounded as well, the errors
are as large as the partial sums: the absolute error grows like K.
"""

# %%
g = seed_everything(0)
lengths = [16, 64, 256, 1024, 4096]


def product_error(form, K, round_sums, n=24):
    """RMS error of an (n, K) @ (K, n) product against float64."""
    a, b = torch.randn(n, K, generator=g), torch.randn(K, n, generator=g)
    exact = a.double() @ b.double()
    a, b = round_to(a, form), round_to(b, form)
    if not round_sums:
        return (a.double() @ b.double() - exact).square().mean().sqrt().item()
    total = torch.zeros(n, n)
    for k in range(K):
        total = round_to(total + a[:, k, None] * b[k], form)
    return (total - exact).square().mean().sqrt().item()


errors = {
    (name, sums): [product_error(FORMATS[name], K, sums) for K in lengths]
    for name in ("tf32", "bfloat16", "float16")
    for sums in (False, True)
}

# %%
fig, ax = plt.subplots(figsize=(5, 3.2))
for (name, sums), errs in errors.items():
    colour = {"tf32": "C2", "bfloat16": "C0", "float16": "C3"}[name]
    where = "sums rounded too" if sums else "inputs rounded"
    ax.loglog(lengths, errs, "o--" if sums else "o-", c=colour, label=f"{name}, {where}", base=2)
predicted = [math.sqrt(2 * K) * 0.39 * FORMATS["bfloat16"].eps / 2 for K in lengths]
ax.loglog(lengths, predicted, "k:", label="predicted: √K · √2 · 0.39 · eps/2")
ax.set(xlabel="terms K", ylabel="RMS error against float64")
ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
show(
    fig,
    alt="Error of a product against K, log-log: slope one half where only inputs are rounded, as predicted, and slope one where partial sums are rounded as well.",
)
for (name, sums), errs in errors.items():
    slope = math.log(errs[-1] / errs[0]) / math.log(lengths[-1] / lengths[0])
    print(f"{name:9} {'sums rounded too' if sums else 'inputs rounded':17} error ~ K^{slope:.1f}")
    assert abs(slope - (1.0 if sums else 0.5)) < 0.15
assert all(abs(e / p - 1) < 0.2 for e, p in zip(errors["bfloat16", False], predicted))

# %% [markdown]
r"""
TF32 and float16 lie on each other: ten bits of mantissa both. Answer 3: it does not change.

## TF32 is a switch

`torch.set_float32_matmul_precision` says what may be done *inside* a product of float32 matrices; inputs and result
stay float32. `"highest"` (the default) allows nothing. `"high"` allows TF32, on GPUs that have it. `"medium"` also
allows bfloat16. It permits, it does not demand: what a machine does with the permission shows in the error, which we
can predict for each format. The setting is global.
"""

# %% tags=["nbval-ignore-output"]
a, b = torch.randn(2, 256, 256, generator=g)
exact = a.double() @ b.double()
for setting in ("highest", "high", "medium"):
    torch.set_float32_matmul_precision(setting)
    product = (a.to(device) @ b.to(device)).cpu()
    error = ((product - exact).norm() / exact.norm()).item()
    fits = min(
        ("float32", "tf32", "bfloat16"),
        key=lambda name: abs(math.log(error / (0.55 * FORMATS[name].eps / 2))),
    )
    print(f"{setting:8} relative error {error:.1e}: as exact as products of {fits}")
torch.set_float32_matmul_precision("highest")

# %% [markdown]
r"""
## Autocast

A model can be told to compute in 16 bits altogether. `torch.autocast` is more careful: it looks at each operation.
Products get their inputs in 16 bits. Operations that sum many numbers or take exponentials get, or keep, float32. The
rest takes what comes. Weights stay float32 and are cast where they are used.

Which is which? Ask each operation, once with float32 and once with 16-bit input:
"""

# %%
half = torch.bfloat16
w, ids = torch.randn(8, 8, device=device), torch.zeros(16, dtype=torch.long, device=device)
operations = {
    "embedding": lambda x: F.embedding(ids, w.to(x.dtype)),
    "linear": lambda x: F.linear(x, w),
    "q @ k.T": lambda x: x @ x.transpose(1, 2),
    "scaled_dot_product": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "gelu": F.gelu,
    "x + 16 bits": lambda x: x + x.to(half),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "softmax": lambda x: x.softmax(-1),
    "cross_entropy": lambda x: F.cross_entropy(x.flatten(0, 1), ids),
}
short = {torch.float32: "float32", half: "16 bits"}
print(f"{'':20}{'float32 in':>12}{'16 bits in':>12}")
for name, call in operations.items():
    out = []
    for dtype in (torch.float32, half):
        x = torch.randn(2, 8, 8, device=device).to(dtype)
        with torch.autocast(device.type, dtype=half):
            out.append(short[call(x).dtype])
    print(f"{name:20}{out[0]:>12}{out[1]:>12}")

# %% [markdown]
r"""
Down the table runs a GPT's block. The residual stream is float32, because the embedding is, and a sum of float32 and
16 bits is float32; so each LayerNorm reads float32. The loss is float32 on every device (answer 4): a sum over
fifty thousand exponentials is no place for eight bits. With 16-bit input, CUDA lifts LayerNorm and softmax to float32
as well; the CPU leaves them.

Name the *type* of the device. `torch.autocast("cuda:0")` is an error in some versions of PyTorch. In others it passes,
but skips the check whether this GPU has bfloat16.

The four precisions of this course, in one place:
"""


# %%
#| export
from functools import cache

from nanogpt.roofline import matmul_flops, matmul_formats

# precision -> what autocast casts to, and the format that the products read
PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-masters": None,
}
READS = {
    "float32": "float32",
    "tf32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "bf16-masters": "bfloat16",
}


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can. ValueError: no such precision.

    That it can does not make it fast: see `speedup`.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    if precision == "tf32" and not nvidia:
        here = "an AMD GPU" if device.type == "cuda" else device.type
        return f"tf32 is a mode of NVIDIA's tensor cores, and this device is {here}; use float32"
    if nvidia and READS[precision] not in matmul_formats(device):
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
    n = 4096 if device.type == "cuda" else 256
    best = {"float32": 0.0, READS[precision]: 0.0}
    for _ in range(3):  # in turn, so that a disturbance meets both
        for name in best:
            best[name] = max(best[name], matmul_flops(device, name, n, repeats=3))
    return best[READS[precision]] / best["float32"]


def best_precision(device: torch.device) -> str:
    """bf16 where the device multiplies it faster than float32, else fp16 on a CUDA GPU, else float32."""
    if device.type == "cuda":
        return "fp16" if why_not("bf16", device) else "bf16"
    return "bf16" if device.type == "cpu" and speedup("bf16", device) > 1 else "float32"


# %%
cpu = torch.device("cpu")
for precision in PRECISIONS:
    print(f"{precision:8} on a CPU:", why_not(precision, cpu) or "yes")

# %% [markdown]
r"""
"Yes" is not "fast". Many CPUs cannot multiply float16 and do it in software, slowly. So that every machine can train in
every precision below, here is a model of the missing hardware: it rounds the inputs of each matrix product, forward and
backward, and rounds the result unless it stays float32.
"""


# %%
PRODUCTS = [getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm")]


class Emulated(TorchDispatchMode):
    """Every matrix product inside reads inputs rounded by `read`, and its result is rounded by `write`."""

    def __init__(self, read, write=lambda x: x):
        super().__init__()
        self.read, self.write = read, write

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        *first, a, b = args
        return self.write(func(*first, self.read(a), self.read(b), **(kwargs or {})))


def to_half(x):
    return x.half().float()


# %% [markdown]
r"""
## What float16 cannot see

A small GPT on the course's stories, and the gradients of one step in float32. Where do they lie on float16's scale?
"""

# %%
folder = "../data/built/stories"
manifest = ensure_corpus(folder)
config = GPTConfig(64, manifest["vocab_size"], n_layer=2, n_head=2, n_embd=64, flash=False)
steps = {"ci": 60, "laptop": 150, "gpu": 300}[scale]
B, T = 8, 64
torch.set_num_threads(1)  # matrices this small gain nothing from a second thread


def batches(split, B):
    return BatchStream(open_shards(folder, split), B, T, seed=1, device=device)


# %%
x, y = batches("train", B).next_batch()
model = GPT(config, seed_everything(1)).to(device)
found = []


def keep(module, grad_input, grad_output):
    found.extend(grad.detach().flatten() for grad in (*grad_input, *grad_output))


hooks = [m.register_full_backward_hook(keep) for m in model.modules() if isinstance(m, torch.nn.Linear)]
model(x, y)[1].backward()
for hook in hooks:
    hook.remove()
found += [p.grad.flatten() for p in model.parameters() if p.dim() == 2]
gradients = torch.cat(found).abs().cpu()
gradients = gradients[gradients > 0]

# %%
form = FORMATS["float16"]
fig, ax = plt.subplots(figsize=(6.5, 3))
bins = torch.arange(-45, 25)
for shift, label in [(-9, "loss / 512"), (0, "loss"), (16, "loss × 2^16")]:
    sizes = gradients.log2() + shift
    ax.hist(sizes, bins, histtype="step", lw=1.5, label=label, density=True)
    lost = (gradients * 2.0**shift <= form.smallest / 2).float().mean()
    coarse = (gradients * 2.0**shift < form.tiny).float().mean() - lost
    print(f"{label:12} {lost:4.0%} round to zero, {coarse:4.0%} are subnormal")
ax.axvspan(-45, math.log2(form.smallest) - 1, color="C3", alpha=0.15)
ax.axvspan(math.log2(form.smallest) - 1, math.log2(form.tiny), color="C1", alpha=0.12)
ax.axvspan(16, 25, color="C3", alpha=0.15)
for where, text in [(-44, "zero"), (-24.5, "subnormal"), (18, "infinity")]:
    ax.text(where, ax.get_ylim()[1] * 0.93, text, fontsize=9)
ax.set(xlabel="log2 of the gradient's size", ylabel="share per power of two", xlim=(-45, 25))
ax.legend(loc="upper right", bbox_to_anchor=(0.88, 0.9), fontsize=9)
show(
    fig,
    alt="Histogram of gradient sizes on float16's range: unscaled they lie mostly among subnormals, divided by 512 many round to zero, times 2^16 they fit.",
)

# %% [markdown]
r"""
The loss is a mean over tokens, so each gradient carries a factor 1/(B·T). Here that is a small batch. A batch of half
a million tokens is 512 times as many micro-batches of a thousand, each divided by their number (chapter 15): the line
"loss / 512". Read its row again: about half of what such a step should learn from is zero, and the rest has lost bits.

## Loss scaling

Multiply the *loss* by a power of two, and the chain rule multiplies every gradient (Micikevicius et al. 2018, §3.2).
Nothing is rounded by that; only exponents shift. Divide again in float32, before clipping and the update.

Which factor? The largest that does not overflow, and it changes during training. So try: if a gradient comes back
infinite or NaN, skip this update and halve the scale; after 2,000 good steps in a row, double it. A skipped step costs
one batch. That is the whole algorithm:
"""

# %%
#| export
from collections.abc import Iterable


@dataclass
class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018, §3.2), with torch.amp.GradScaler's constants.

    A step is: (loss * scaler.scale).backward(); finite = scaler.unscale(model.parameters()); if finite, clip and
    optimizer.step(); scaler.update(finite).
    """

    scale: float = 2.0**16
    growth_interval: int = 2000
    good_steps: int = 0

    def unscale(self, parameters: Iterable[Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any is infinite or NaN: then skip this update."""
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
class LossScaler(LossScaler):
    def update(self, finite: bool) -> None:
        """Halve the scale after a bad step; double it after growth_interval good ones in a row.

        Raises FloatingPointError where it would fall below 1: then it is not float16's range that is too short.
        """
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            if self.scale < 2:
                raise FloatingPointError(
                    "gradients are not finite even without loss scaling; look for NaN in the data or the weights, "
                    "or lower the learning rate"
                )
            self.scale /= 2
        elif self.good_steps == self.growth_interval:
            self.good_steps = 0
            if 2 * self.scale <= torch.finfo(torch.float32).max:
                self.scale *= 2

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        if set(state) != set(vars(self)):
            raise ValueError(f"a scaler's state has {', '.join(vars(self))}; given: {', '.join(state)}")
        vars(self).update(state)


# %% [markdown]
r"""
*Check.* PyTorch's own scaler must make the same decisions on the same gradients:
"""

# %%
ours, theirs = LossScaler(2.0**16, growth_interval=2), torch.amp.GradScaler("cpu", 2.0**16, growth_interval=2)
weights = [torch.nn.Parameter(torch.ones(2)) for _ in "ab"]
sgd = [torch.optim.SGD([weight], lr=0.25) for weight in weights]
scales = []
for good in (torch.rand(200, generator=g) > 0.2).tolist():
    factor = 1.0 if good else math.inf
    weights[0].grad = torch.full((2,), ours.scale * factor)
    if finite := ours.unscale([weights[0]]):
        sgd[0].step()
    ours.update(finite)
    weights[1].grad = theirs.scale(torch.full((2,), factor))
    theirs.step(sgd[1])
    theirs.update()
    assert ours.scale == theirs.get_scale() and torch.equal(*weights)
    scales.append(ours.scale)
print(f"200 steps, {len(set(scales))} different scales, same decisions, same weights")

# %% [markdown]
r"""
And the model of float16 hardware against PyTorch's float16 on this device, both compared with float32's gradients:
"""


# %%
def gradient(model, inside, around):
    """All gradients of the first sequence in one vector, with a loss scale of 2^10."""
    model.zero_grad()
    with around:
        with inside:
            loss = model(x[:1], y[:1])[1]
        (loss * 2.0**10).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / 2.0**10


model = GPT(config, seed_everything(1)).to(device)
exact = gradient(model, nullcontext(), nullcontext())
real = gradient(model, autocast("fp16", device), nullcontext())
modelled = gradient(model, nullcontext(), Emulated(to_half, to_half))
errors = [((approximate - exact).norm() / exact.norm()).item() for approximate in (real, modelled)]
assert all(FORMATS["float16"].eps / 10 < error < FORMATS["float16"].eps * 2 for error in errors)
print("both err by less than twice float16's eps")

# %% [markdown]
r"""
## Why an fp16 log begins with skipped steps

Megatron-LM starts at 2^32. Nobody believes in that scale: it is above any that could work, and halving finds the right
one in a few steps, without a guess. Until then there is no update and no loss to report.

*Predict.* The largest gradient of the float32 step above says where it must stop: the largest power of two that keeps
it below 65,520, from where float16 rounds to infinity. How many steps will be skipped?
"""

# %%
largest = gradients.max().item()
predicted = math.floor(math.log2(65520 / largest))
print(f"predicted: {32 - predicted} skipped, then 2^{predicted}")


def emulation(precision):
    """What makes products on this device behave as in `precision`; nothing where the hardware can."""
    if precision == "fp16" and device.type == "cpu":
        return Emulated(to_half, to_half)
    return Emulated(to_tf32) if precision == "tf32" and why_not("tf32", device) else nullcontext()


def training_step(model, optimizer, scaler, x, y, precision):
    """One update, or none if a gradient is not finite. Returns the loss, and whether there was an update."""
    emulate = emulation(precision)
    native = "float32" if isinstance(emulate, Emulated) else precision
    optimizer.zero_grad()
    with emulate:
        with autocast(native, device):
            loss = model(x, y)[1]
        (loss * scaler.scale).backward()
    if finite := scaler.unscale(model.parameters()):
        optimizer.step()
    return loss.item(), finite


# %% tags=["nbval-ignore-output"]
model = GPT(config, seed_everything(1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler, stream = LossScaler(2.0**32, growth_interval=12), batches("train", B)
exponents, good = [], []
for iteration in range(1, 81):
    loss, finite = training_step(model, optimizer, scaler, *stream.next_batch(), "fp16")
    exponents.append(math.log2(scaler.scale))
    good.append(finite)
    if iteration < 4 or 11 < iteration < 17:
        told = f"loss {loss:.2f}" if finite else "skipped"
        print(f"iteration {iteration:3} | loss scale 2^{exponents[-1]:.0f} | {told}")
    scaler.update(finite)
skipped = good.index(True)
assert abs(skipped - (32 - predicted)) <= 1

# %% tags=["nbval-ignore-output"]
fig, ax = plt.subplots(figsize=(6.5, 2.4))
ax.step(range(1, 81), exponents, where="mid", c="C0")
bad = [i for i, finite in enumerate(good) if not finite]
ax.plot([i + 1 for i in bad], [exponents[i] for i in bad], "x", c="C3", label="skipped")
ax.axhline(predicted, ls=":", c="gray")
ax.text(69, predicted + 0.2, "predicted", ha="right", va="bottom", color="gray", fontsize=9)
ax.set(xlabel="iteration", ylabel="log2 of the loss scale", title="Search, then probe every 12 good steps")
ax.legend()
show(
    fig,
    alt="Loss scale against iteration: it halves on each step from 2^32 down to the predicted scale, then doubles and falls back when that overflows.",
)

# %% [markdown]
r"""
The published logs read alike. One of BERT on a cluster (NVIDIA/nccl issue 743, October 2022) reports after ten
iterations "loss scale: 8388608.0 | number of skipped iterations: 10", and after twenty, 32768.0. Megatron waits for a
second bad step before it halves for the first time (its `hysteresis` is 2):
"""

# %%
print(f"after 10 iterations: 2^32 / 2^(10 - 1) = {2**32 // 2**9}")
print(
    f"from there to 32768: {int(math.log2(8388608 / 32768))} more, so {10 + int(math.log2(8388608 / 32768))} in all"
)

# %% [markdown]
r"""
With PyTorch's 2^16 the search is shorter, or not needed. Later, a skipped step now and then is how the scaler finds out
that a larger scale does not work. A log that skips more often than that, or on and on, is another matter: a loss that
diverges, or broken data.

## The same run, six times

The same model, the same batches, the same AdamW. Two runs are meant to go wrong: float16 without scaling at
"loss / 512", and one whose *weights* (and with them AdamW's moments) are bfloat16. *Predict* the order of the curves.
"""


# %%
def run(precision, scaler, dynamic=True, weights=torch.float32):
    """Train; returns the loss of every step and the model."""
    model = GPT(config, seed_everything(1)).to(device, weights)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    stream, curve = batches("train", B), []
    for _ in range(steps):
        loss, finite = training_step(model, optimizer, scaler, *stream.next_batch(), precision)
        if dynamic:
            scaler.update(finite)
        curve.append(loss)
    return curve, model


runs = {
    "float32": run("float32", LossScaler(1.0)),
    "TF32": run("tf32", LossScaler(1.0)),
    "bf16 autocast": run("bf16", LossScaler(1.0)),
    "fp16, scaled": run("fp16", LossScaler()),
    "fp16, loss / 512": run("fp16", LossScaler(2.0**-9), dynamic=False),
    "bf16 weights": run("bf16", LossScaler(1.0), weights=torch.bfloat16),
}

# %% tags=["nbval-ignore-output"]
x_val, y_val = batches("val", 64).next_batch()
with torch.no_grad():
    val = {name: model.float()(x_val, y_val)[1].item() for name, (_, model) in runs.items()}
fig, ax = plt.subplots(figsize=(6.5, 3.4))
styles = ("C7-", "C2-", "C0-", "C1-", "C3--", "C4--")
for (name, (curve, _)), style, width in zip(runs.items(), styles, (4, 2.8, 1.6, 0.7, 1.5, 1.5)):
    smooth = torch.tensor(curve).unfold(0, 10, 1).mean(1)
    ax.plot(range(10, steps + 1), smooth, style, lw=width, label=f"{name}: {val[name]:.3f}")
ax.axhline(manifest["floor"], ls=":", c="gray")
ax.text(steps, manifest["floor"], "floor of the corpus", ha="right", va="bottom", color="gray", fontsize=9)
ax.set(xlabel="step", ylabel="loss (nats), mean of 10 steps", ylim=(0, None))
ax.legend(title="validation loss at the end", fontsize=8, title_fontsize=9, loc="upper right", ncol=2)
show(
    fig,
    alt="Six loss curves: float32, TF32, bf16 autocast and scaled fp16 lie on each other; bf16 weights end higher; fp16 without scaling at loss/512 stays far above.",
)
for name, loss in val.items():
    print(f"{name:18} validation loss {loss:.3f}, {loss - val['float32']:+.3f} against float32")

# %%
for name in ("TF32", "bf16 autocast", "fp16, scaled"):
    assert abs(val[name] - val["float32"]) < 0.05, name
assert val["bf16 weights"] > val["float32"] + 0.03 and val["fp16, loss / 512"] > val["float32"] + 0.3
print("TF32, bf16 autocast and scaled fp16 agree with float32 to 0.05 nats; the other two do not")

# %% [markdown]
r"""
Four curves are one curve. What does a format cost in the model's output? The trained float32 model, against itself in
float64:
"""

# %% tags=["nbval-ignore-output"]
model = GPT(config)
model.load_state_dict(runs["float32"][1].state_dict())
x_cpu, y_cpu = x_val[:8].cpu(), y_val[:8].cpu()
with torch.no_grad():
    logits, loss = model.double()(x_cpu, y_cpu)
    model.float()
    casts = {
        "float32": nullcontext(),
        "TF32 products": Emulated(to_tf32),
        "fp16 products": Emulated(to_half, to_half),
        "bf16 autocast": torch.autocast("cpu", torch.bfloat16),
    }
    for name, cast in casts.items():
        with cast:
            out, out_loss = model(x_cpu, y_cpu)
        error = (out.double() - logits).square().mean().sqrt() / logits.std()
        print(
            f"{name:14} logits: relative error {error:.0e}   loss: off by {abs(out_loss.item() - loss.item()):.0e}"
        )

# %% [markdown]
r"""
Each token's logits are off by what the format's eps says. The loss is off by much less: it averages errors that have no
preferred sign. That is why so few bits suffice for gradients, which are noisy anyway.

## Updates that vanish

Weights are different. They are not computed anew in each step; they accumulate small changes, and a change below half
a step is not small, it is nothing. AdamW moves a weight by about the learning rate. Which weights of the trained model
does an update of that size still move?
"""

# %% tags=["nbval-ignore-output"]
weights = torch.cat([p.detach().cpu().flatten() for p in runs["float32"][1].parameters()])
rates = [10.0**-k for k in (2, 2.5, 3, 3.5, 4, 4.5, 5)]
fig, ax = plt.subplots(figsize=(6, 2.7))
for name, colour in [("float32", "C7"), ("bfloat16", "C0"), ("float16", "C3")]:
    start = round_to(weights, FORMATS[name])
    stuck = [(round_to(start.double() - rate, FORMATS[name]) == start).float().mean() for rate in rates]
    ax.semilogx(rates, stuck, "o-", c=colour, label=name)
ax.set(
    xlabel="update (about the learning rate)", ylabel="share of weights\nthat do not move", ylim=(-0.03, 1)
)
ax.legend()
show(
    fig,
    alt="Share of weights that an update does not move against its size: near zero for float32, rising towards one for bfloat16 as the learning rate falls.",
)
gain = runs["bf16 weights"][1].transformer.h[0].ln_1.weight
print("LayerNorm gains of the bf16 run that still are exactly 1:", f"{(gain == 1).float().mean().item():.0%}")

# %% [markdown]
r"""
A learning rate falls towards the end of training, so more and more weights stop, the largest first. Hence *master
weights* (Micikevicius et al. 2018, §3.1): float32 weights take the updates, 16-bit copies do the multiplying. Under
autocast the parameters are the masters, and the copies are made on the fly. (A rounding that is random and right on
average would do as well: exercise 3.)
"""


# %%
#| export
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

    The weights of a group lie end to end in one tensor, of which the parameters are views: an update is one call, which
    `compiled=True` fuses. So make it after the model is on its device. Every parameter needs a gradient in every step.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, compiled=False):
        self.flat = []  # for each group: weight, master, m, v
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, steps=0))

    def add_param_group(self, group: dict) -> None:
        super().add_param_group(group)
        params = self.param_groups[-1]["params"]
        master = torch.cat([p.detach().float().flatten() for p in params])  # before rounding
        flat = master.bfloat16(), master, torch.zeros_like(master), torch.zeros_like(master)
        self.flat.append(flat)
        parts = zip(*(tensor.split([p.numel() for p in params]) for tensor in flat))
        for p, (weight, *kept) in zip(params, parts):
            p.data = weight.view_as(p)
            self.state[p] = {name: t.view_as(p) for name, t in zip(("master", "exp_avg", "exp_avg_sq"), kept)}


# %%
#| export
class MasterAdamW(MasterAdamW):
    @torch.no_grad()
    def step(self, closure=None):
        """One update of every group. Returns the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, (weight, *kept) in zip(self.param_groups, self.flat):
            if any(p.grad is None for p in group["params"]):
                raise ValueError("MasterAdamW: a parameter has no gradient; call loss.backward() first")
            group["steps"] += 1
            grad = torch.cat([p.grad.flatten() for p in group["params"]])
            lr, (beta1, beta2), t = group["lr"], group["betas"], group["steps"]
            rates = lr / (1 - beta1**t), 1 / (1 - beta2**t), 1 - lr * group["weight_decay"]
            rates = [torch.full((), rate, device=grad.device) for rate in rates]
            self.update(weight, grad, *kept, rates, beta1, beta2, group["eps"])
        return loss


# %%
#| export
class MasterAdamW(MasterAdamW):
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Masters, moments and options from `state_dict()`; the weights become the masters, rounded."""
        groups, saved = self.param_groups, state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in saved]:
            raise ValueError(
                "MasterAdamW: the saved state belongs to other parameter groups than this optimizer's"
            )
        for group, other, (weight, master, *_) in zip(groups, saved, self.flat):
            for p, number in zip(group["params"], other["params"]):
                for name, tensor in self.state[p].items():
                    tensor.copy_(state_dict["state"][number][name])
            group.update({name: value for name, value in other.items() if name != "params"})
            weight.copy_(master)


# %% [markdown]
r"""
## Which hardware has what

| | float16 | bfloat16 | TF32 | source |
|---|---|---|---|---|
| NVIDIA Volta and Turing (V100, T4, RTX 20), 7.x | yes | – | – | [1] "Warp Matrix Functions" |
| NVIDIA Ampere (A100, RTX 30), from 8.0 on | yes | yes | yes | [1] "Alternate Floating Point" |
| NVIDIA Ada and Blackwell (RTX 40, RTX 50), from 8.9 on | yes | yes | yes | [1], and [2] for FP8 |
| AMD CDNA2 (MI200) | yes | yes | – | [3] |
| AMD CDNA3 (MI300) | yes | yes | as XF32 | [3], and [4] §7.1 |
| Intel Cooper Lake, AMD Zen 4: AVX512_BF16 | – | yes | – | [5] `cooperlake`, `znver4` |
| Intel Sapphire Rapids: AMX-BF16, AVX512_FP16 | yes | yes | – | [5] `sapphirerapids` |
| Intel Granite Rapids: the same and AMX-FP16 | yes | yes | – | [5] `graniterapids` |
| Apple M1: FEAT_FP16 | yes | – | – | [6] |
| Apple M2, Neoverse V1: FEAT_FP16, FEAT_BF16 | yes | yes | – | [6] |

"Yes" means instructions or units that multiply the format. All of them can store it, and emulate it slowly. FP8 halves
the bits once more; its range is so short that each tensor needs a scale of its own (Micikevicius et al. 2022).

Sources: [1] NVIDIA, *CUDA C++ Programming Guide*. [2] NVIDIA, *TensorRT-RTX Support Matrix*, "Supported Hardware".
[3] AMD, *ROCm: Data types and precision support*. [4] AMD, *Instinct MI300 CDNA3 Instruction Set Architecture*.
[5] *GCC manual*, "x86 Options", `-march`. [6] registers and `sysctl hw.optional.arm` of the chips, as collected in
github.com/lelegard/arm-cpusysregs.

So: bf16 autocast where the hardware has it, fp16 with a scaler where it has not, TF32 for what stays float32.

## Checkpoint
"""

# %%
checkpoint("10")

# %% [markdown]
r"""
## Exercises

1. Derive the 0.39: an error spread evenly over ± half a step, numbers spread evenly on a log scale between two powers
   of two. *Check:* compare with the RMS relative error of `round_to(torch.randn(100_000), form)` for each format.
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
