"""Attention in tiles with an online softmax: no T×T matrix.

Exported from notebooks/12_flash_attention.ipynb, grown by notebooks/12b_fused_attention.ipynb.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def absorb(
    scores: Tensor, values: Tensor, m: Tensor, total: Tensor, o: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of online softmax: take in scores (..., rows, n) of n more values (..., n, d).

    m: the largest score so far; total: Σ exp(score - m), both (..., rows, 1); o: Σ exp(score - m) value, (..., rows, d).
    Start with m = -inf, total = o = 0; the softmax-weighted mean is o / total. Each row needs one finite score at first.
    """
    larger = torch.maximum(m, scores.amax(-1, keepdim=True))
    p = (scores - larger).exp()  # (..., rows, n)
    shrink = (m - larger).exp()  # what was summed so far referred to a smaller maximum
    return larger, shrink * total + p.sum(-1, keepdim=True), shrink * o + p @ values


def tile(z: Tensor, start: int, block: int) -> Tensor:
    """Rows start .. start + block of z (..., T, d), in float32 or better."""
    part = z[..., start : start + block, :]
    return part.to(torch.promote_types(z.dtype, torch.float32))


def tile_scores(q: Tensor, k: Tensor, diagonal: bool) -> Tensor:
    """Scores q kᵀ/√d of a tile, (..., rows, columns); on the diagonal the future is -inf."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if diagonal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores


def flash_forward(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Causal attention tile by tile (Dao 2023, algorithm 1): the output (..., T, d) and logsumexp (..., T, 1).

    The output has the dtype of q; logsumexp keeps that of the tiles, float32 or better.
    """
    T = q.size(-2)
    outs, logsumexps = [], []
    for i in range(0, T, block):
        q_i = tile(q, i, block)  # (..., rows, d)
        m = torch.full_like(q_i[..., :1], -math.inf)
        total, o = torch.zeros_like(m), torch.zeros_like(q_i)
        for j in range(0, i + 1, block):  # keys after the diagonal are future: skipped
            scores = tile_scores(q_i, tile(k, j, block), diagonal=i == j)
            m, total, o = absorb(scores, tile(v, j, block), m, total, o)
        outs.append((o / total).to(q.dtype))
        logsumexps.append(m + total.log())
    return torch.cat(outs, -2), torch.cat(logsumexps, -2)


def tile_backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, logsumexp: Tensor, D: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What one tile adds to dq, dk and dv, its weights recomputed; logsumexp and D (..., rows, 1) are of its rows."""
    p = (tile_scores(q, k, diagonal) - logsumexp).exp()  # (..., rows, columns)
    ds = p * (grad @ v.transpose(-2, -1) - D) / math.sqrt(q.size(-1))
    return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ grad


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v from the gradient of out, recomputing each tile (Dao 2023, algorithm 2)."""
    T, wide = q.size(-2), torch.promote_types(q.dtype, torch.float32)
    D = (grad.to(wide) * out).sum(-1, keepdim=True)  # (..., T, 1), the row sums Σ p dp
    dq, dk, dv = (torch.zeros_like(z, dtype=wide) for z in (q, k, v))
    for j in range(0, T, block):
        keys = slice(j, j + block)
        k_j, v_j = tile(k, j, block), tile(v, j, block)
        for i in range(j, T, block):  # queries before these keys never saw them
            rows = slice(i, i + block)
            q_i, g_i = tile(q, i, block), tile(grad, i, block)
            L_i, D_i = logsumexp[..., rows, :], D[..., rows, :]
            add_q, add_k, add_v = tile_backward(q_i, k_j, v_j, g_i, L_i, D_i, diagonal=i == j)
            dq[..., rows, :] += add_q
            dk[..., keys, :] += add_k
            dv[..., keys, :] += add_v
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class FlashAttention(torch.autograd.Function):
    """flash_forward with flash_backward as its derivative; keeps no tile in between."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):  # it would put the float32 tiles back into 16 bits
            out, logsumexp = flash_forward(q, k, v, block)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.block = block
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        with torch.autocast(grad.device.type, enabled=False):
            return *flash_backward(grad, *ctx.saved_tensors, ctx.block), None


def flash_attention(q: Tensor, k: Tensor, v: Tensor, block: int = 128) -> Tensor:
    """Causal attention in memory linear in T: FlashAttention-2 in plain PyTorch (Dao et al. 2022; Dao 2023).

    q, k, v: (..., T, d), alike in shape, dtype and device; returns (..., T, d). Equals attention_weights(q, k) @ v,
    with its gradients, up to rounding; differentiable once. block: rows and columns of a tile, any number from 1.
    """
    if not (q.shape == k.shape == v.shape and q.dim() >= 2 and q.numel()):
        shapes = ", ".join(str(tuple(z.shape)) for z in (q, k, v))
        raise ValueError(
            f"q, k, v have shapes {shapes}; flash_attention needs three times the same (..., T, d)"
        )
    if block < 1:
        raise ValueError(f"block={block} must be at least 1; 64 to 256 suits most machines")
    return FlashAttention.apply(q, k, v, block)


def sdpa_backend(q: Tensor, k: Tensor, v: Tensor, **options) -> str:
    """The kernel that F.scaled_dot_product_attention chooses when it trains on these tensors, such as "Flash".

    It stands in the name of the result's operation, between ScaledDotProduct and Attention ("fused" if nothing stands
    there). Every other name means "math": step by step, with T×T in memory. The name of a cut begins with Slice. The
    tensors (B, n_head, T, d) need not ask for gradients, and are left as they are. options: as for that function.
    """
    q, k, v = (z.detach().requires_grad_() for z in (q, k, v))
    node = F.scaled_dot_product_attention(q, k, v, **options).grad_fn
    while node.name().startswith("Slice"):  # a head that was padded for the kernel is cut back
        node = node.next_functions[0][0]
    if not node.name().startswith("ScaledDotProduct"):
        return "math"  # several operations in a row, each with a name of its own
    return node.name().removeprefix("ScaledDotProduct").split("Attention")[0] or "fused"
