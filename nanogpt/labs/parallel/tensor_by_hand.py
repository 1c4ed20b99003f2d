"""Tensor parallelism on plain tensors: conjugate operators, split linear layers, a split vocabulary.

Exported from notebooks/21b_tensor_parallel.ipynb.
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class Conjugate(torch.autograd.Function):
    """One function of (tensor, group) in forward, another one in backward."""

    @staticmethod
    def forward(ctx, x: Tensor, forward, backward, group) -> Tensor:
        ctx.backward, ctx.group = backward, group
        return forward(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.backward(grad, ctx.group), None, None, None


def as_it_is(x: Tensor, group=None) -> Tensor:
    return x.view_as(x)


def summed(x: Tensor, group=None) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def enter(x: Tensor, group=None) -> Tensor:
    """Megatron's f, before the ranks' columns (Shoeybi et al. 2019, §3): x, whose gradient is summed over the ranks."""
    return Conjugate.apply(x, as_it_is, summed, group)


def leave(x: Tensor, group=None) -> Tensor:
    """Megatron's g, after the ranks' rows: x summed over the ranks, whose gradient stays as it is."""
    return Conjugate.apply(x, summed, as_it_is, group)


class Column(nn.Module):
    """A linear layer of which this rank has some outputs. (B, T, in) -> (B, T, out/n)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, into=enter):
        super().__init__()
        self.weight, self.into = nn.Parameter(weight), into
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.into(x), self.weight, self.bias)


class Row(nn.Module):
    """A linear layer of which this rank has some inputs. (B, T, in/n) -> (B, T, out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, out=leave):
        super().__init__()
        self.weight, self.out = nn.Parameter(weight), out
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias  # once, and not once a rank


def column_parallel(layer: nn.Linear, piece, into) -> Column:
    """This rank's outputs of a linear layer; piece(x): its rows of the weight, or of the bias."""
    return Column(piece(layer.weight), None if layer.bias is None else piece(layer.bias), into)


def check_heads(n_head: int, n: int) -> None:
    if n_head % n:  # if it divides, so do n_embd = n_head × d and 4 n_embd
        raise ValueError(f"n_head={n_head} heads cannot be dealt to {n} ranks; take a divisor")


def split_block(block: nn.Module, cut, group=None, ends=(enter, leave)) -> nn.Module:
    """A block of GPT with this rank's heads and hidden units, in place. Dropout must be 0.

    cut(x, dim): this rank's piece of a tensor. ends: what is done to x before the columns and after the rows.
    """
    attn, mlp, n = block.attn, block.mlp, dist.get_world_size(group)
    check_heads(attn.n_head, n)
    into, out = (partial(end, group=group) for end in ends)

    def of_heads(x: Tensor) -> Tensor:  # q, k and v each cut
        return cut(x.unflatten(0, (3, -1)), 1).flatten(0, 1)

    attn.c_attn = column_parallel(attn.c_attn, of_heads, into)
    mlp.c_fc = column_parallel(mlp.c_fc, partial(cut, dim=0), into)
    for part in (attn, mlp):
        part.c_proj = Row(cut(part.c_proj.weight, 1), part.c_proj.bias, out)
    attn.n_head //= n
    return block


def mine(ids: Tensor, first, rows) -> tuple[Tensor, Tensor]:
    """Which ids are among this rank's `rows` rows from `first` on, and their place there; 0 for the others."""
    held = (ids >= first) & (ids < first + rows)
    return held, torch.where(held, ids - first, 0)


def vocab_embedding(ids: Tensor, table: Tensor, first, group=None) -> Tensor:
    """Rows of the token table for ids (B, T), from this rank's rows (V/n, C), those from `first` on: (B, T, C)."""
    held, place = mine(ids, first, table.size(0))
    return leave(F.embedding(place, table) * held[..., None], group)


def vocab_loss(logits: Tensor, targets: Tensor, first, group=None) -> Tensor:
    """Mean cross-entropy in nats, from this rank's columns of the logits (N, V/n), those from `first` on.

    targets: (N,), all of them on every rank; -100 does not count. Three all-reduces of N numbers each, of which the
    first is of the largest logits (dist.ReduceOp.MAX). Logits of 16 bits are made float32 before.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    logits = logits - highest[:, None]  # (N, V/n), none above 0
    held, place = mine(targets, first, logits.size(-1))
    score = torch.where(held, logits.gather(-1, place[:, None]).squeeze(-1), 0.0)
    score, total = leave(score, group), leave(logits.exp().sum(-1), group)
    counts = targets != -100
    return torch.where(counts, total.log() - score, 0.0).sum() / counts.sum()


def in_front(x: Tensor) -> Tensor:
    """(B, T, C) to (T, B, C) and back: these collectives cut and join a tensor's first dimension."""
    return x.transpose(0, 1).contiguous()


def gather(x: Tensor, group=None) -> Tensor:
    """All ranks' positions, from this rank's: (B, T/n, C) -> (B, T, C)."""
    part = in_front(x)
    whole = part.new_empty(dist.get_world_size(group) * part.size(0), *part.shape[1:])
    dist.all_gather_into_tensor(whole, part, group=group)
    return in_front(whole)


def scatter(x: Tensor, group=None) -> Tensor:
    """This rank's positions of the sum over the ranks: (B, T, C) -> (B, T/n, C)."""
    whole = in_front(x)
    part = whole.new_empty(whole.size(0) // dist.get_world_size(group), *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole, group=group)
    return in_front(part)


def from_positions(x: Tensor, group=None) -> Tensor:
    """f with sequence parallelism (Korthikanti et al. 2022, §4.2.2): (B, T/n, C) -> (B, T, C); gradients are summed."""
    return Conjugate.apply(x, gather, scatter, group)


def to_positions(x: Tensor, group=None) -> Tensor:
    """g with sequence parallelism: the sum over the ranks, of which each has its positions. (B, T, C) -> (B, T/n, C)."""
    return Conjugate.apply(x, scatter, gather, group)


# Gradients of the LayerNorms and of c_proj's biases are then summands, to be summed over the ranks
SEQUENCE = from_positions, to_positions
