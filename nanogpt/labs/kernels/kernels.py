"""Triton kernels for the bias with GELU and LayerNorm with the residual; on a CPU they run in the interpreter.

Exported from notebooks/23_kernels.ipynb.
"""

import math
from unittest import mock

import torch
from torch import Tensor
from torch._inductor.runtime.triton_compat import HAS_TRITON, tl, triton


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


def launch(kernel, grid: tuple[int, ...], *args, **sizes) -> None:
    """Run grid[0] × grid[1] × … programs: on the GPU if the first tensor is there, else in the interpreter."""
    if args[0].is_cuda:
        kernel[grid](*args, **sizes)
    else:
        interpret(kernel, grid, *args, **sizes)


GUARD = 64  # numbers on each side


def guarded(x: Tensor, fill: float = math.nan) -> tuple[Tensor, Tensor]:
    """Memory that is `fill` everywhere, and a copy of x in the middle of it: a check that a kernel stays inside."""
    memory = torch.full((x.numel() + 2 * GUARD,), fill, dtype=x.dtype)
    inside = memory[GUARD:-GUARD].view(x.shape)
    inside.copy_(x)
    return memory, inside


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


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n: a block for a row of n numbers."""
    return 1 << (n - 1).bit_length()


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
