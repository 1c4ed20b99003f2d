"""Context parallelism: a row's tokens over several ranks, attention by keys and values that travel in a ring.

Exported from notebooks/21c_context_parallel.ipynb.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nanogpt.gpt.model import GPT
from nanogpt.speed.flash import absorb, tile, tile_backward, tile_scores


def contiguous(n: int) -> list[list[int]]:
    """Which chunks of a row each of n ranks holds: of n chunks the one of its number."""
    return [[rank] for rank in range(n)]


def zigzag(n: int) -> list[list[int]]:
    """Of 2n chunks, rank i holds i and 2n - 1 - i (Grattafiori et al. 2024, §3.3.2)."""
    return [[rank, 2 * n - 1 - rank] for rank in range(n)]


def positions(T: int, split: list[list[int]]) -> Tensor:
    """Where each rank's tokens stand in a row of T, (n, T/n). ValueError where T cannot be cut into equal chunks."""
    count = sum(map(len, split))
    if T < 1 or T % count:
        raise ValueError(f"T={T} is no multiple of {count}, the chunks of the row on {len(split)} ranks")
    return torch.arange(T).view(count, -1)[torch.tensor(split)].flatten(1)


def cut(z: Tensor, chunks: list[int]) -> tuple[Tensor, ...]:
    """A rank's rows (..., T/n, d) chunk by chunk, in float32 or better."""
    return tile(z, 0, z.size(-2)).chunk(len(chunks), -2)


def tiles(mine: list[int], theirs: list[int]) -> list[tuple[int, int, bool]]:
    """Tiles of my queries and their keys that are not future: place in mine, place in theirs, whether on the diagonal."""
    return [(i, j, a == b) for i, a in enumerate(mine) for j, b in enumerate(theirs) if b <= a]


def nothing_seen(q: Tensor, mine: list[int]) -> list[tuple]:
    """For each of my chunks m, total and o, as absorb wants them at the start."""
    return [(torch.full_like(z[..., :1], -torch.inf), 0 * z[..., :1], 0 * z) for z in cut(q, mine)]


def take_in(q: Tensor, k: Tensor, v: Tensor, mine: list[int], theirs: list[int], seen: list[tuple]) -> None:
    """My queries see their keys and values, all (..., T/n, d); seen changes in place."""
    q, k, v = cut(q, mine), cut(k, theirs), cut(v, theirs)
    for i, j, diagonal in tiles(mine, theirs):
        seen[i] = absorb(tile_scores(q[i], k[j], diagonal), v[j], *seen[i])


def merged(seen: list[tuple]) -> tuple[Tensor, Tensor]:
    """The output (..., T/n, d) and logsumexp (..., T/n, 1) of what has been seen."""
    return tuple(torch.cat(z, -2) for z in zip(*((o / total, m + total.log()) for m, total, o in seen)))


def place(group=None) -> tuple[int, int]:
    """This rank's number in the group, and how many there are; (0, 1) without a process group."""
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


def pass_on(x: Tensor, group=None):
    """Begin to send x to the next rank and to receive the previous one's; returns a function that waits, and gives that."""
    (rank, n), came = place(group), torch.empty_like(x)
    if n == 1:
        return lambda: x
    right, left = (dist.get_global_rank(group or dist.group.WORLD, (rank + by) % n) for by in (1, -1))
    ends = dist.P2POp(dist.isend, x, right, group), dist.P2POp(dist.irecv, came, left, group)
    works = dist.batch_isend_irecv(list(ends))
    return lambda: ([work.wait() for work in works], came)[1]


def around(kv: Tensor, group=None):
    """What all ranks have as kv, mine first, then the previous one's and so on: yields (owner, its kv)."""
    rank, n = place(group)
    for step in range(n):
        arrived = pass_on(kv, group) if step < n - 1 else None  # on its way while the caller computes
        yield (rank - step) % n, kv
        kv = arrived() if arrived else None


class RingAttention(torch.autograd.Function):
    """Causal attention over all ranks' keys (Liu et al. 2023), each tile as in chapter 12; no tile is kept."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, split: list, group) -> Tensor:
        mine = split[place(group)[0]]
        with torch.autocast(q.device.type, enabled=False):
            seen = nothing_seen(q, mine)
            for owner, (k_o, v_o) in around(torch.stack((k, v)), group):
                take_in(q, k_o, v_o, mine, split[owner], seen)
            out, logsumexp = merged(seen)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.split, ctx.group = split, group
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple:
        (q, k, v, out, logsumexp), mine = ctx.saved_tensors, ctx.split[place(ctx.group)[0]]
        D = (grad * out).sum(-1, keepdim=True)  # (..., T/n, 1), float32
        rows = list(zip(*(cut(z, mine) for z in (q, grad, logsumexp, D))))
        dq, d_kv = torch.zeros_like(out), torch.zeros_like(torch.stack((out, out)))
        with torch.autocast(q.device.type, enabled=False):
            for owner, (k_o, v_o) in around(torch.stack((k, v)), ctx.group):
                theirs = ctx.split[owner]
                k_o, v_o, dks, dvs = (cut(z, theirs) for z in (k_o, v_o, *d_kv))  # dks, dvs: views of d_kv
                for i, j, diagonal in tiles(mine, theirs):
                    q_i, g_i, *sums = rows[i]
                    parts = tile_backward(q_i, k_o[j], v_o[j], g_i, *sums, diagonal)
                    for total, part in zip((cut(dq, mine)[i], dks[j], dvs[j]), parts):
                        total += part
                d_kv = pass_on(d_kv, ctx.group)()
        return dq.to(q.dtype), *(d.to(k.dtype) for d in d_kv), None, None


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group=None, split: list | None = None) -> Tensor:
    """Causal attention of rows whose tokens lie on the ranks of a group: q, k, v (..., T/n, d) are this rank's.

    split: which chunks each rank holds, all equally many, zigzag by default. Returns (..., T/n, d); differentiable once,
    and gradients of k and v are their owner's, from all ranks. ValueError where chunks do not divide the tokens.
    """
    n = place(group)[1]
    split = split or zigzag(n)
    if len(split) != n:
        raise ValueError(f"the split is for {len(split)} ranks, the group has {n}")
    positions(q.size(-2) * n, split)
    return RingAttention.apply(q, k, v, split, group)


class ContextParallel(nn.Module):
    """A GPT whose rows lie over the ranks of a group. Reads this rank's columns (B, T/n); the loss is their targets' mean.

    train_step with mean= weighs it by all ranks' targets, and DDP around it averages gradients, as for rows (chapter 20).
    """

    def __init__(self, model: GPT, group=None, split: list | None = None):
        super().__init__()
        if model.config.dropout:
            raise ValueError(
                f"dropout={model.config.dropout}: ring attention keeps no weights to drop; set 0"
            )
        self.module, self.group = model, group
        self.split = split or zigzag(place(group)[1])

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.module(idx, targets, cache=self)

    def columns(self, rows: Tensor) -> Tensor:
        """This rank's of whole rows (B, T): (B, T/n). ValueError where T does not divide."""
        return rows[:, positions(rows.size(1), self.split)[place(self.group)[0]].to(rows.device)]

    def positions(self, T: int) -> Tensor:
        """Where this rank's T tokens stand in the row, (T,)."""
        limit, whole = self.module.config.block_size, T * len(self.split)
        if whole > limit:
            raise ValueError(f"{T} tokens on each of {len(self.split)} ranks exceed block_size={limit}")
        return positions(whole, self.split)[place(self.group)[0]].to(self.module.lm_head.weight.device)

    def layer(self, i: int):
        return partial(ring_attention, group=self.group, split=self.split)

    def newest(self, x: Tensor) -> Tensor:
        return x  # every token has a target
