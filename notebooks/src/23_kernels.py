# %% [markdown]
r"""
# 23 ◇ · Kernels: write what the compiler wrote

In chapter 11 the compiler made one kernel of nine operations. In chapter 12 we wrote flash attention, and it was slow,
because each step of it was a call from Python. Both times the fast version was somebody else's. In this chapter we write
such kernels ourselves.

We use *Triton*. It is a small language inside Python, and PyTorch's compiler writes its GPU kernels in it. A Triton kernel
is a Python function about blocks of numbers. You need no GPU for this chapter, because Triton has an *interpreter*, which
runs a kernel on a CPU. So we can check that a kernel is right, and count the bytes that it asks for. Its speed remains
unknown until it is measured on a GPU. The tests have run these kernels on one, an H100, but nobody has measured their speed, and this chapter does not guess.

We write two kernels that GPT-2 can use, each with its derivative: the bias with GELU, and LayerNorm with the residual. On
the way we write four wrong ones, and checks that find them.
"""

# %%
#| default_exp labs.kernels.kernels
#| doc labs.kernels.kernels: Triton kernels for the bias with GELU and LayerNorm with the residual; on a CPU they run in the interpreter.
import torch.nn.functional as F

from course.figures import kernels as figures
from course.figures.triton_here import skip_cells_without_triton, watch
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import seed_everything
from nanogpt.model import MLP, GPTConfig

g = seed_everything(0)

# %%
#| export
import math
from unittest import mock

import torch
from torch import Tensor
from torch._inductor.runtime.triton_compat import HAS_TRITON, tl, triton

# %% tags=["nbval-ignore-output"]
skip_cells_without_triton()

# %% [markdown]
r"""
The usual lines are `import triton` and `import triton.language as tl`. We take both names from PyTorch. Where Triton is not
installed, PyTorch gives stand-ins for them, so that the definitions below still load, and the chapter can be read on. Cells
that begin with `# needs Triton` say then that they are skipped.

*Predict.* Chapter 11's GELU, run eagerly, moved 20 times the n numbers of its input. Our first kernel for it will have one
program for each 1,024 numbers of x. How many times n numbers do its programs ask for, the bias included?
"""

# %%
predict("23.1", "times n numbers that the first kernel for GELU loads and stores", guess=None)

# %% [markdown]
r"""
## A program adds a block

Here is the smallest kernel. It adds two vectors.
"""


# %%
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y. Program i adds the numbers from i · BLOCK up to (i + 1) · BLOCK."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, x + y, mask=inside)


# %% [markdown]
r"""
The function describes one *program*. Many programs run it, and they differ only in their number, `tl.program_id(0)`. Each
one computes which places are its own (`at`), loads them, adds, and stores the sum. `x_ptr` is the address of the first
number of x. Adding `at` to it gives BLOCK addresses at once. `tl.constexpr` marks a number that is known before the kernel
is compiled. A block's size must be one, and it must be a power of two.

Ten numbers in blocks of four need three programs, and the last one has two lanes too many. The mask `inside` switches these
lanes off.
"""

# %%
show(
    figures.programs(10, 4),
    alt="Ten numbers in three programs of four; the last two places of program 2 are hatched, they are masked.",
)

# %% [markdown]
r"""
The colours are the programs. The two hatched places are behind the end of the vector, where other data may be.

Who runs the programs? On a GPU, the hardware runs many of them at the same time. On a CPU, Triton's interpreter runs one
after the other, and computes each line with NumPy. The number in brackets below is the *grid*: how many programs. We start three of
them, and once only two:
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
from triton.runtime.interpreter import InterpretedFunction

x, y = torch.arange(10.0), torch.ones(10)
for programs in (3, 2):
    out = torch.zeros(10)
    InterpretedFunction(add_kernel.fn)[(programs,)](x, y, out, 10, BLOCK=4)
    print(f"{programs} programs:", out)

# %% [markdown]
r"""
The kernel adds. With two programs the last two numbers stay zero, because nobody has come to them.

Two things are missing before this can run all kernels of the chapter. Some functions of the language, such as `tl.sum`, are written in Triton
themselves, and the interpreter must be told to run these as well. (Usually one switches everything to the interpreter by setting
`TRITON_INTERPRET=1` before Triton is loaded. In a notebook that comes too late, since PyTorch may have loaded it already.) And where there is a
GPU, the kernel should run there. `interpret` does the first, `launch` the second. You need not read `interpret` to go on.

It also refuses bfloat16. The interpreter keeps such a number as 16 bits and adds and multiplies them as if they were integers: 1 + 1 is
1.7 · 10³⁸ there (Triton's pull request 10945; the same for `tl.dot` and `tl.sum`, issues 11584 and 11604). The kernels of this chapter convert each number to float32 right
after the load, so they would be right. But the next one that somebody writes may not.
"""


# %%
#| export
def interpret(kernel, grid: tuple[int, ...], *args, **sizes) -> None:
    """Run a kernel's programs one by one on the CPU, in Triton's interpreter."""
    if not HAS_TRITON:
        raise ModuleNotFoundError("Triton is not installed here: `pip install triton` brings it on Linux")
    if any(isinstance(x, Tensor) and x.dtype == torch.bfloat16 for x in args):
        raise TypeError(
            "the interpreter adds bfloat16 numbers as if they were integers (triton issue 11604): use float32"
        )
    from triton.runtime.interpreter import InterpretedFunction, InterpreterError, _patch_lang
    from triton.runtime.jit import JITFunction

    def call(helper, *values, **named):  # a function that the kernel calls, such as tl.sum
        language = _patch_lang(helper.fn)
        try:
            return InterpretedFunction(helper.fn).rewrite()(*values, **named)
        finally:
            language.restore()

    with mock.patch.object(JITFunction, "__call__", call):
        try:
            InterpretedFunction(kernel.fn)[grid](*args, **sizes)
        except InterpreterError as error:
            raise error.__cause__ from None  # the kernel's own error


# %%
#| export
def launch(kernel, grid: tuple[int, ...], *args, **sizes) -> None:
    """Run grid[0] × grid[1] × … programs: on the GPU if the first tensor is there, else in the interpreter."""
    if args[0].is_cuda:
        kernel[grid](*args, **sizes)
    else:
        interpret(kernel, grid, *args, **sizes)


# %% tags=["nbval-ignore-output"]
# needs Triton
x, y, out = torch.arange(10.0), torch.ones(10), torch.zeros(10)
launch(add_kernel, (3,), x, y, out, 10, BLOCK=4)
assert torch.equal(out, x + y), "the kernel adds something else"
print(out)

# %% [markdown]
r"""
The same ten numbers, by way of `launch`. All kernels below are started by it.

## A check that finds a wrong mask

The mask is easy to forget. A kernel without it writes behind the end of its tensor, into memory that belongs to somebody
else. The result is still right, so comparing results does not find this error. Some day another tensor has wrong numbers,
or the program crashes.

So our check puts tensors into a *guarded* place. It takes a larger piece of memory, fills it with a number that nothing
computes, and uses only the middle. After the kernel has run, the guards on both sides must be as they were. For inputs the
guards are nan: if the kernel uses a number from outside, the result is nan as well.
"""


# %%
#| export
GUARD = 64  # numbers on each side


def guarded(x: Tensor, fill: float = math.nan) -> tuple[Tensor, Tensor]:
    """Memory that is `fill` everywhere, and a copy of x in the middle of it: a check that a kernel stays inside."""
    memory = torch.full((x.numel() + 2 * GUARD,), fill, dtype=x.dtype)
    inside = memory[GUARD:-GUARD].view(x.shape)
    inside.copy_(x)
    return memory, inside


# %%
def harm(kernel, n=10, block=4):
    """The error of an adding kernel on guarded tensors, or none."""
    x, y = torch.arange(float(n)), torch.ones(n)
    memory, out = guarded(torch.zeros(n), fill=-7.0)
    launch(kernel, (math.ceil(n / block),), guarded(x)[1], guarded(y)[1], out, n, BLOCK=block)
    if not torch.equal(out, x + y):
        return f"a wrong sum: {out.tolist()}"
    changed = (memory[GUARD + n :] != -7.0).sum().item()
    return f"{changed} numbers behind the end were changed" if changed else "none"


# %% tags=["nbval-ignore-output"]
# needs Triton
@triton.jit
def no_mask(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.load(y_ptr + at))


@triton.jit
def off_by_one(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at <= n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


found = {kernel.__name__: harm(kernel) for kernel in (add_kernel, no_mask, off_by_one)}
for name, error in found.items():
    print(f"{name:10} error: {error}")
assert [error == "none" for error in found.values()] == [True, False, False], "the check is blind"

# %% [markdown]
r"""
All three kernels return the right sum. The guards tell them apart. The second one has no mask, and changes two numbers too
many. In the third one the mask lets one lane too many through.

## Bias and GELU

Now chapter 11's function, GELU of x plus a bias, for x with N rows of C numbers. The bias has C numbers, so place `at` of x
needs the number `at % C` of the bias. Triton's own language has no tanh (NVIDIA's library has one, which the interpreter cannot call), but it has the
sigmoid, and (1 + tanh z)/2 = sigmoid(2z). So
GELU is z · sigmoid(2u), with u the same polynomial as in chapter 05.

Numbers with 16 bits should be computed in 32 (chapter 10). The helper `wide` converts them. It leaves float64 as it is,
because `gradcheck` needs that.
"""


# %%
#| export
@triton.jit
def wide(x):
    """x in float32, or in float64 if it is."""
    if x.dtype == tl.float64:
        return x
    return x.to(tl.float32)


@triton.jit
def gelu_gate(z):
    """What GELU multiplies z with in its tanh approximation: sigmoid(2 √(2/π) (z + 0.044715 z³)). 2 √(2/π) is 1.5957…"""
    return tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))


# %%
@triton.jit
def flat_gelu_kernel(x_ptr, bias_ptr, y_ptr, n, C, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = wide(tl.load(x_ptr + at, mask=inside)) + wide(tl.load(bias_ptr + at % C, mask=inside))
    tl.store(y_ptr + at, z * gelu_gate(z), mask=inside)


# %% [markdown]
r"""
How many bytes does it move? Chapter 11 counted the tensors that an operation reads and writes. For a kernel we can look
closer. `watch` counts the lanes of each load and store that are not masked. For the check we take sizes that do not fit:
rows and columns are no multiples of any block.
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
N, C = 130, 200
x, bias = torch.randn(N, C, generator=g), torch.randn(C, generator=g)
expected, y = F.gelu(x + bias, approximate="tanh"), torch.empty_like(x)
with watch() as seen:
    launch(flat_gelu_kernel, (math.ceil(x.numel() / 1024),), x, bias, y, x.numel(), C, BLOCK=1024)
assert torch.allclose(y, expected, atol=1e-6), "the kernel computes something else than F.gelu"
print(f"as F.gelu; the programs ask for {seen.nbytes / x.nbytes:.2f} times the bytes of x")
answer("23.1", seen.nbytes / x.nbytes)

# %% [markdown]
r"""
It is three times, not two: x once, y once, and the bias again for every row. The bias is small, so on a GPU a cache may
answer most of these loads. But a kernel need not ask. If a program takes a *tile* of several rows, it can load its part of
the bias once for all of them.

A tile has two ranges of places, rows and columns. `rows[:, None]` is a column, `cols[None, :]` is a row, and their sum is a
rectangle of addresses, as with broadcasting in PyTorch. With 16 rows a tile, the expected count is 2 + 1/16, and a little
more for the last tile, which is not full.
"""


# %%
#| export
#| blank bias_gelu_kernel: load the bias of the tile's columns once, add it to all rows; mask rows and columns
ROWS, COLS = 16, 64  # of a tile


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, y_ptr, N, C, ROWS: tl.constexpr, COLS: tl.constexpr):
    """y = GELU(x + bias) for the tile (i, j) of x (N, C); program_id(0) is i, of the rows, and program_id(1) is j."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < N)[:, None] & (cols < C)[None, :]
    at = rows[:, None] * C + cols[None, :]
    bias = wide(tl.load(bias_ptr + cols, mask=cols < C))
    z = wide(tl.load(x_ptr + at, mask=inside)) + bias[None, :]
    tl.store(y_ptr + at, z * gelu_gate(z), mask=inside)


# %% tags=["nbval-ignore-output"]
# needs Triton
grid = (math.ceil(N / ROWS), math.ceil(C / COLS))
memory, y = guarded(torch.zeros(N, C), fill=-7.0)
with watch() as seen:
    launch(bias_gelu_kernel, grid, guarded(x)[1], guarded(bias)[1], y, N, C, ROWS=ROWS, COLS=COLS)
assert torch.allclose(y, expected, atol=1e-6), "the tiles compute something else than F.gelu"
assert (memory != -7.0).sum() == y.numel(), "a number outside of y was changed"
predicted = 2 + math.ceil(N / ROWS) / N
print(f"{math.prod(grid)} programs ask for {seen.nbytes / x.nbytes:.3f} times x; predicted {predicted:.3f}")
assert seen.nbytes / x.nbytes == predicted, "another number of bytes than predicted"

# %% [markdown]
r"""
The count is the prediction, to the byte. The nine eager operations of chapter 11 moved 20. The fair comparison is `F.gelu(x + bias)`, which is two
operations and moves 4: one reads x and writes the sum, the other reads the sum and writes y. So our kernel saves about half.

What is that worth on a GPU? The bytes give a bound, as in chapter 09. For a batch of 8 · 1,024 tokens, x in GPT-2's MLP has 3,072 numbers a token, 50 MB in 16 bits. An H100
reads or writes 3,350 GB in a second by its data sheet. So our kernel takes at least 31 µs, the two operations at least 60 µs, and the nine eager ones at least 300 µs.
If everything must come from memory and go back to it, no measured time can be below these. How far it is above them, only a GPU can say.

For training we need the derivative. With s = sigmoid(2u), the product rule gives s + z · s · (1 − s) · 2u′. The backward
kernel computes z again from x, so nothing has to be kept but x and the bias. The gradient of the bias is a sum over rows.
PyTorch can do this sum.
"""


# %%
#| export
@triton.jit
def bias_gelu_backward_kernel(g_ptr, x_ptr, bias_ptr, dx_ptr, N, C, ROWS: tl.constexpr, COLS: tl.constexpr):
    """dx from the gradient g of y, for the tile (i, j)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = (rows < N)[:, None] & (cols < C)[None, :]
    at = rows[:, None] * C + cols[None, :]
    bias = wide(tl.load(bias_ptr + cols, mask=cols < C))
    z = wide(tl.load(x_ptr + at, mask=inside)) + bias[None, :]
    s = gelu_gate(z)
    slope = s + z * s * (1 - s) * 1.5957691216057308 * (1 + 3 * 0.044715 * z * z)
    tl.store(dx_ptr + at, wide(tl.load(g_ptr + at, mask=inside)) * slope, mask=inside)


# %%
#| export
class BiasGELU(torch.autograd.Function):
    """GELU(x + bias), tanh approximation: one kernel forward, one backward. x (..., C), bias (C,) -> (..., C)."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, bias)
        return BiasGELU.run(bias_gelu_kernel, x, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        dx = BiasGELU.run(bias_gelu_backward_kernel, grad.contiguous(), *ctx.saved_tensors)
        return dx, dx.flatten(0, -2).sum(0)

    @staticmethod
    def run(kernel, *inputs: Tensor) -> Tensor:
        out = torch.empty_like(inputs[0])
        C = out.size(-1)
        N = out.numel() // C
        grid = (math.ceil(N / ROWS), math.ceil(C / COLS))
        launch(kernel, grid, *inputs, out, N, C, ROWS=ROWS, COLS=COLS)
        return out


# %% tags=["nbval-ignore-output"]
# needs Triton
double = [torch.randn(*shape, dtype=torch.float64, generator=g).requires_grad_() for shape in ((5, 7), (7,))]
assert torch.autograd.gradcheck(BiasGELU.apply, double), "the backward kernel is not the derivative"
print("gradcheck passed: x and bias")

# %% [markdown]
r"""
## LayerNorm with the residual, a row a program

In a block of GPT-2, the output of attention is added to the stream, and then LayerNorm reads the sum. As two operations,
the sum is written and read again. One kernel can do both: read x and r, add them, and write two results, the new stream
h = x + r and the normalized y.

LayerNorm needs the mean of a complete row. So here each program takes a row, with a block that is large enough for all of
its C numbers. Lanes beyond C get `other=0.0`: they add nothing to a sum.

A block's size must be a power of two, so a row of 768 numbers needs a block of 1,024:
"""


# %%
#| export
def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n: a block for a row of n numbers."""
    return 1 << (n - 1).bit_length()


# %%
print({C: power_of_two(C) for C in (50, 64, 768)})

# %% [markdown]
r"""
One trap is in the variance. After the mean is subtracted, the empty lanes no longer hold zero: they hold minus the mean.
So they must be masked once more, with `tl.where`. Further down we leave this out, to see whether the check notices.
"""


# %%
#| export
#| blank norm_kernel: add x and r, mean and variance by tl.sum over the row, store h, y, mean and 1/σ
@triton.jit
def norm_kernel(x_ptr, r_ptr, w_ptr, b_ptr, h_ptr, y_ptr, mean_ptr, rstd_ptr, C, eps, BLOCK: tl.constexpr):
    """h = x + r and y = LayerNorm(h) of one row; its mean and 1/σ are kept for the backward pass.

    σ² is the mean square of h - mean, plus eps. tl.sum(h, axis=0) adds up a block's numbers; tl.sqrt is the root.
    """
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = cols < C, row * C + cols
    h = wide(tl.load(x_ptr + at, mask=inside, other=0.0)) + wide(tl.load(r_ptr + at, mask=inside, other=0.0))
    mean = tl.sum(h, axis=0) / C
    apart = tl.where(inside, h - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / C + eps)
    w, b = wide(tl.load(w_ptr + cols, mask=inside)), wide(tl.load(b_ptr + cols, mask=inside))
    tl.store(h_ptr + at, h, mask=inside)
    tl.store(y_ptr + at, apart * rstd * w + b, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


# %% tags=["nbval-ignore-output"]
# needs Triton
N, C = 12, 50
x, r = torch.randn(2, N, C, generator=g)
w, b = torch.randn(2, C, generator=g)
outs = [torch.empty_like(x), torch.empty_like(x), torch.empty(N), torch.empty(N)]
with watch() as seen:
    launch(norm_kernel, (N,), x, r, w, b, *outs, C, 1e-5, BLOCK=power_of_two(C))
assert torch.allclose(outs[0], x + r), "h is not x + r"
assert torch.allclose(outs[1], F.layer_norm(x + r, (C,), w, b), atol=1e-5), "y is not the LayerNorm of h"
predicted = 4 * (4 * N * C + 2 * N * C + 2 * N)  # x, r, h, y; gain and bias in each row; two numbers a row
print(f"as F.layer_norm; {seen.nbytes:,} bytes asked for, predicted {predicted:,}")
assert seen.nbytes == predicted, "another number of bytes than predicted"

# %% [markdown]
r"""
The gain and the bias are loaded by each program, that is once for each row. Tiles of several rows would help as they did
above. We keep the simple version.

Now the derivative. Write x̂ for the normalized row, so y = x̂ · w + b, and let a = w · (gradient of y). Both the mean and σ
depend on every number of the row, which gives two corrections (Ba et al. 2016 define the layer; the derivative is an
exercise in the chain rule):

$$dh = \frac{1}{\sigma}\Big(a - \overline{a} - \hat{x}\;\overline{a\,\hat{x}}\Big) + (\text{gradient of } h)$$

The bars are means over the row. The last term is there because h has a second reader: it goes on in the stream.

The gradients of gain and bias are sums over *rows*, and each row has another program. If all programs added to the same
numbers, two of them could read the same old value, and one addition would be lost. That is a *race*. The interpreter would
not show it, because it runs one program after the other. Let us write this wrong kernel, and find the race in another way:
by asking which addresses were stored to by more than one program.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
@triton.jit
def racing_kernel(g_ptr, db_ptr, C, BLOCK: tl.constexpr):
    """db += g of one row. Wrong: all programs change the same numbers."""
    cols = tl.arange(0, BLOCK)
    inside = cols < C
    old = tl.load(db_ptr + cols, mask=inside)
    grad = tl.load(g_ptr + tl.program_id(0) * C + cols, mask=inside)
    tl.store(db_ptr + cols, old + grad, mask=inside)


db = torch.zeros(C)
with watch() as seen:
    launch(racing_kernel, (N,), x, db, C, BLOCK=64)
print("the interpreter's sum is right:", torch.allclose(db, x.sum(0), atol=1e-5))
print(f"but {len(seen.shared)} of {C} addresses were stored to by several programs")
assert len(seen.shared) == C, "the race was not found"

# %% [markdown]
r"""
So a right result in the interpreter is not enough. The second law is: no two programs store to the same address. Our
backward kernel obeys it. It stores dh, one row a program, and leaves the two sums over rows to PyTorch. This is simple and has a price: the kernel
asks for about five times the numbers of h, and the five operations of the sums move nine times as many. Triton's tutorial about layer normalization
lets the kernel keep partial sums for this reason.
"""


# %%
#| export
@triton.jit
def norm_backward_kernel(gy_ptr, gh_ptr, h_ptr, w_ptr, mean_ptr, rstd_ptr, dh_ptr, C, BLOCK: tl.constexpr):
    """dh of one row from the gradients of y and of h."""
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = cols < C, row * C + cols
    rstd = tl.load(rstd_ptr + row)
    apart = wide(tl.load(h_ptr + at, mask=inside, other=0.0)) - tl.load(mean_ptr + row)
    xhat = tl.where(inside, apart * rstd, 0.0)
    w = wide(tl.load(w_ptr + cols, mask=inside, other=0.0))
    a = wide(tl.load(gy_ptr + at, mask=inside, other=0.0)) * w
    dh = rstd * (a - tl.sum(a, axis=0) / C - xhat * tl.sum(a * xhat, axis=0) / C)
    tl.store(dh_ptr + at, dh + wide(tl.load(gh_ptr + at, mask=inside, other=0.0)), mask=inside)


# %%
#| export
class AddNorm(torch.autograd.Function):
    """h = x + r and LayerNorm(h), in one kernel. x, r (..., C), weight, bias (C,) -> h, y, both (..., C)."""

    @staticmethod
    def forward(ctx, x: Tensor, r: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5):
        x, r, C = x.contiguous(), r.contiguous(), x.size(-1)
        h, y = torch.empty_like(x), torch.empty_like(x)
        wide_type = torch.promote_types(x.dtype, torch.float32)
        mean, rstd = (torch.empty(x.shape[:-1], dtype=wide_type, device=x.device) for _ in range(2))
        tensors = x, r, weight, bias, h, y, mean, rstd
        launch(norm_kernel, (mean.numel(),), *tensors, C, eps, BLOCK=power_of_two(C))
        ctx.save_for_backward(h, weight, mean, rstd)
        return h, y

    @staticmethod
    def backward(ctx, grad_h: Tensor, grad_y: Tensor):
        h, weight, mean, rstd = ctx.saved_tensors
        dh, C, grad_y = torch.empty_like(h), h.size(-1), grad_y.contiguous()
        inputs = grad_y, grad_h.contiguous(), h, weight, mean, rstd
        launch(norm_backward_kernel, (mean.numel(),), *inputs, dh, C, BLOCK=power_of_two(C))
        xhat = (h - mean[..., None]) * rstd[..., None]
        dweight = (grad_y * xhat).flatten(0, -2).sum(0).to(weight.dtype)
        return dh, dh, dweight, grad_y.flatten(0, -2).sum(0), None


# %% tags=["nbval-ignore-output"]
# needs Triton
double = [
    torch.randn(*s, dtype=torch.float64, generator=g).requires_grad_() for s in ((3, 6), (3, 6), (6,), (6,))
]
assert torch.autograd.gradcheck(AddNorm.apply, double), "the backward kernel is not the derivative"
with watch() as seen:
    sum(z.sum() for z in AddNorm.apply(*double)).backward()
assert not seen.shared, "two programs store to the same address"
print("gradcheck passed: x, r, weight and bias; no address has two writers")

# %% [markdown]
r"""
*Check.* Here is the trap from above: the same kernel, but the empty lanes are not masked a second time. With a row of 64
numbers no lane is empty, and the kernel is right. With 50 it is wrong. A check should therefore use sizes that do not fit.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
@triton.jit
def unmasked_rstd(x_ptr, rstd_ptr, C, eps, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    h = wide(tl.load(x_ptr + row * C + cols, mask=cols < C, other=0.0))
    apart = h - tl.sum(h, axis=0) / C
    tl.store(rstd_ptr + row, 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / C + eps))


for C in (64, 50):
    x, rstd = 3 + torch.randn(N, C, generator=g), torch.empty(N)
    launch(unmasked_rstd, (N,), x, rstd, C, 1e-5, BLOCK=64)
    right = torch.allclose(rstd, (x.var(-1, correction=0) + 1e-5).rsqrt(), rtol=1e-4)
    print(f"{C} numbers a row in a block of 64: 1/σ is right: {right}")
    assert right == (C == 64), "the check does not see the missing mask"

# %% [markdown]
r"""
## The kernels in a model

`BiasGELU` and `AddNorm` are ordinary functions for autograd, so they fit into a block of GPT-2. We take the MLP of chapter
05, give its bias to our kernel, and compare the output and the gradient of its input. On a CPU this is no way to be fast:
the interpreter is made for checking.
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
mlp = MLP(GPTConfig(n_layer=1, n_head=2, n_embd=24, block_size=8, vocab_size=64))
x = torch.randn(2, 8, 24, generator=g).requires_grad_()
ours = mlp.c_proj(BiasGELU.apply(F.linear(x, mlp.c_fc.weight), mlp.c_fc.bias))
grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, mlp(x))]
assert torch.allclose(ours, mlp(x), atol=1e-6), "another output than the MLP's"
assert torch.allclose(*grads, atol=1e-5), "another gradient than the MLP's"
print("the MLP with our kernel: the same output, the same gradient")

# %% [markdown]
r"""
## Checkpoint

The package now has two fused kernels with their derivatives. They were checked against PyTorch in the interpreter: results,
gradients, bytes, and who writes where. `pytest -m gpu` makes the same comparison with PyTorch on a GPU, in float32. Their speed is not measured. The bytes only bound it: for
the bias and GELU by 31 µs on an H100, where two operations need 60.
"""

# %% tags=["nbval-ignore-output"]
predictions("23")

# %%
checkpoint("23")

# %% [markdown]
r"""
## Exercises

`course exercises release 23` writes these, and those of 23b, as a notebook to `released/`; `course check 23` runs their visible checks. None of them needs Triton.

- **23-1** Eight rows a program, 15 minutes: count programs, bytes and idle lanes where a program takes a tile of rows.
- **23-4** A check that looks behind the end, 25 minutes: write the check that refuses wrong kernels and no right one.
- **23-5** Right in the interpreter, 10 minutes: explain why a kernel may be wrong on a GPU alone.

To explore:

1. Let a program of `norm_kernel` take 8 rows, as a tile. *Predict* the bytes first, then count them with `watch`.
2. Write the gradient of LayerNorm's gain as a kernel. Each program sums some columns over all rows. *Check:* no address has
   two writers, and `gradcheck` passes.
3. Write a softmax over rows that do not fit into one block, with chapter 12's `absorb`. *Check:* rows of 1, 64 and 65.

## Further reading

- P. Tillet, H. T. Kung, D. Cox, [*Triton: an intermediate language and compiler for tiled neural network computations*](https://doi.org/10.1145/3315508.3329973), 2019.
- Triton's documentation, [*Tutorials*](https://triton-lang.org/main/getting-started/tutorials/index.html): vector addition, fused softmax, layer normalization.
- J. L. Ba, J. R. Kiros, G. E. Hinton, [*Layer Normalization*](https://arxiv.org/abs/1607.06450), 2016, §3.
- Triton, issues [11584](https://github.com/triton-lang/triton/issues/11584) and [11604](https://github.com/triton-lang/triton/issues/11604): `tl.dot` and `tl.sum` of bfloat16 in the interpreter.
"""
