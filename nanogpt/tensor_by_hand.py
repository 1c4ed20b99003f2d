"""Tensor parallelism on plain tensors: conjugate operators, split linear layers, a split vocabulary.

Exported from notebooks/21b_tensor_parallel.ipynb.
"""

import torch
import torch.distributed as dist
from torch import Tensor


class Spread(torch.autograd.Function):
    """Megatron's f: x as it is, its gradient summed over the ranks (Shoeybi et al. 2019, §3)."""

    @staticmethod
    def forward(ctx, x: Tensor, group=None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """Megatron's g: x summed over the ranks, its gradient as it is."""

    @staticmethod
    def forward(ctx, x: Tensor, group=None) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


def mine(ids: Tensor, first, rows) -> tuple[Tensor, Tensor]:
    """Which ids are among this rank's `rows` rows from `first` on, and their place there; 0 for the others."""
    held = (ids >= first) & (ids < first + rows)
    return held, torch.where(held, ids - first, 0)


def vocab_loss(logits: Tensor, targets: Tensor, first, group=None) -> Tensor:
    """Mean cross-entropy in nats, from this rank's columns of the logits (N, V/n), of which it has those from `first` on.

    targets: (N,), all of them on every rank; -100 does not count. Three all-reduces of N numbers.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    logits = logits - highest[:, None]  # (N, V/n), none above 0
    held, place = mine(targets, first, logits.size(-1))
    score = torch.where(held, logits.gather(-1, place[:, None]).squeeze(-1), 0.0)
    score, total = Summed.apply(score, group), Summed.apply(logits.exp().sum(-1), group)
    counts = targets != -100
    return torch.where(counts, total.log() - score, 0.0).sum() / counts.sum()
