"""Flash attention as Triton kernels, forward and backward, and as an operator for torch.compile.

Exported from notebooks/23c_flash_kernels.ipynb.
"""

import math

import torch
from torch import Tensor
from torch._inductor.runtime.triton_compat import HAS_TRITON, tl, triton
from torch.library import custom_op, triton_op, wrap_triton

from nanogpt.labs.kernels.kernels import interpret, wide


@triton.jit
def load_tile(z_ptr, places, T, D: tl.constexpr):
    """The rows `places` of z (T, D), of one head; rows behind its end are 0."""
    at = places[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(z_ptr + at, mask=places[:, None] < T, other=0.0)


@triton.jit
def store_tile(z_ptr, places, T, values, D: tl.constexpr):
    """Store the rows `places` of z (T, D), of one head; rows behind its end are left out."""
    at = places[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(z_ptr + at, values, mask=places[:, None] < T)


@triton.jit
def tile_scores(q, k, rows, keys, scale):
    """Scores of a tile: q kᵀ · scale, and -inf for keys in the future of a row.

    They have the type of tl.dot's result, with full float32 products, whatever the type of scale.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores *= tl.cast(scale, scores.dtype)  # torch.compile passes a float in float64
    return tl.where(keys[None, :] <= rows[:, None], scores, -float("inf"))


@triton.jit
def absorb(scores, values, m, total, o):
    """One step of the online softmax: chapter 12's absorb."""
    larger = tl.maximum(m, tl.max(scores, axis=1, keep_dims=True))
    p = tl.exp(scores - larger)
    shrink = tl.exp(m - larger)
    weighted = tl.dot(p.to(values.dtype), values, input_precision="ieee")
    return larger, shrink * total + tl.sum(p, axis=1, keep_dims=True), shrink * o + weighted


@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    """Causal attention of block i of the rows of one head (Dao 2023, algorithm 1): the output and the logsumexp.

    i is tl.program_id(0), the head tl.program_id(1). The heads lie one behind the other: T rows of D numbers
    in q, k, v and out, T numbers in lse. m and total are (BLOCK, 1), o is (BLOCK, D), all in the type of wide(q).
    """
    i, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    rows = i * BLOCK + tl.arange(0, BLOCK)
    q = load_tile(q_ptr + head * D, rows, T, D)
    m = tl.full((BLOCK, 1), -float("inf"), wide(q).dtype)
    total, o = tl.zeros_like(m), tl.zeros((BLOCK, D), m.dtype)
    for j in range(0, i + 1):
        keys = j * BLOCK + tl.arange(0, BLOCK)
        scores = tile_scores(q, load_tile(k_ptr + head * D, keys, T, D), rows, keys, scale)
        m, total, o = absorb(scores, load_tile(v_ptr + head * D, keys, T, D), m, total, o)
    store_tile(out_ptr + head * D, rows, T, o / total, D)
    store_tile(lse_ptr + head, rows, T, m + tl.log(total), 1)


@triton.jit
def tile_slopes(q, k, v, g, lse, delta, rows, keys, scale):
    """Of one tile: its weights p, computed again, and the gradient ds of its scores; p first.

    lse and delta are (BLOCK, 1). Products and scale as in tile_scores.
    """
    p = tl.exp(tile_scores(q, k, rows, keys, scale) - lse)
    return p, p * (tl.dot(g, tl.trans(v), input_precision="ieee") - delta) * tl.cast(scale, p.dtype)


@triton.jit
def keys_backward_kernel(
    g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, d_ptr, dk_ptr, dv_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr
):
    """dk and dv of block j of the keys of one head: its column of tiles (Dao 2023, algorithm 2)."""
    j, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    keys = j * BLOCK + tl.arange(0, BLOCK)
    k, v = load_tile(k_ptr + head * D, keys, T, D), load_tile(v_ptr + head * D, keys, T, D)
    dk = tl.zeros((BLOCK, D), wide(k).dtype)
    dv = tl.zeros_like(dk)
    for i in range(j, tl.cdiv(T, BLOCK)):  # queries before these keys never saw them
        rows = i * BLOCK + tl.arange(0, BLOCK)
        q, g = load_tile(q_ptr + head * D, rows, T, D), load_tile(g_ptr + head * D, rows, T, D)
        lse, delta = load_tile(lse_ptr + head, rows, T, 1), load_tile(d_ptr + head, rows, T, 1)
        p, ds = tile_slopes(q, k, v, g, lse, delta, rows, keys, scale)
        dv += tl.dot(tl.trans(p).to(g.dtype), g, input_precision="ieee")
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    store_tile(dk_ptr + head * D, keys, T, dk, D)
    store_tile(dv_ptr + head * D, keys, T, dv, D)


@triton.jit
def rows_backward_kernel(
    g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, d_ptr, dq_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr
):
    """dq of block i of the rows of one head: its row of tiles."""
    i, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    rows = i * BLOCK + tl.arange(0, BLOCK)
    q, g = load_tile(q_ptr + head * D, rows, T, D), load_tile(g_ptr + head * D, rows, T, D)
    lse, delta = load_tile(lse_ptr + head, rows, T, 1), load_tile(d_ptr + head, rows, T, 1)
    dq = tl.zeros((BLOCK, D), wide(q).dtype)
    for j in range(0, i + 1):
        keys = j * BLOCK + tl.arange(0, BLOCK)
        k, v = load_tile(k_ptr + head * D, keys, T, D), load_tile(v_ptr + head * D, keys, T, D)
        _, ds = tile_slopes(q, k, v, g, lse, delta, rows, keys, scale)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    store_tile(dq_ptr + head * D, rows, T, dq, D)


BLOCK = 32  # rows and columns of a tile
operator = triton_op if HAS_TRITON else custom_op  # PyTorch warns of triton_op where Triton is missing


def run(kernel, q: Tensor, *args) -> None:
    """Launch a kernel for all blocks and heads of q (..., T, D); its arguments end with T, scale, D and the block."""
    T, D = q.shape[-2:]
    grid = -(-T // BLOCK), q.numel() // (T * D)
    numbers = {"T": T, "scale": 1 / math.sqrt(D), "D": D, "BLOCK": BLOCK}
    if q.is_cuda:
        wrap_triton(kernel)[grid](*args, **numbers)
    elif torch.compiler.is_compiling():
        raise NotImplementedError(
            "the flash kernels run in the interpreter on a CPU: leave out torch.compile there"
        )
    else:
        interpret(kernel, grid, *args, **numbers)


@operator("nanogpt::flash_forward", mutates_args={})
def flash_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention (..., T, D) and its logsumexp (..., T), by flash_kernel."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    run(flash_kernel, q, q, k, v, out, lse)
    return out, lse


@operator("nanogpt::flash_backward", mutates_args={})
def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv from the gradient of the output, by the two backward kernels."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    delta = (grad.to(lse.dtype) * out).sum(-1)
    run(keys_backward_kernel, q, grad, q, k, v, lse, delta, dk, dv)
    run(rows_backward_kernel, q, grad, q, k, v, lse, delta, dq)
    return dq, dk, dv


class FlashKernels(torch.autograd.Function):
    """flash_forward with flash_backward as its derivative."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = flash_forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return flash_backward(grad.contiguous(), *ctx.saved_tensors)


def kernel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by our kernels, with gradients. q, k, v: (..., T, D), alike; D is 16, 32, 64 or 128."""
    D = q.size(-1)
    if D not in (16, 32, 64, 128):
        raise ValueError(
            f"a head has {D} channels; the kernels need 16, 32, 64 or 128: choose n_head accordingly"
        )
    return FlashKernels.apply(q.contiguous(), k.contiguous(), v.contiguous())
