"""Context parallelism: a row's tokens over several ranks, attention by keys and values that travel in a ring.

Exported from notebooks/21c_context_parallel.ipynb.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nanogpt.labs.kernels.flash import absorb, tile, tile_backward, tile_scores
from nanogpt.model import GPT


def nothing(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, total and o of queries (..., rows, d) that have seen no key yet, as `absorb` wants them."""
    m = torch.full_like(q[..., :1], -torch.inf)
    return m, torch.zeros_like(m), torch.zeros_like(q)


def place(group=None) -> tuple[int, int]:
    """This rank's number in the group, and how many there are; (0, 1) without a process group."""
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


def pass_on(x: Tensor, group=None) -> tuple[Tensor, list]:
    """Begin to send x to the next rank and to receive the previous one's: what will come, and the requests."""
    rank, n = place(group)
    everybody = group or dist.group.WORLD
    right = dist.get_global_rank(everybody, (rank + 1) % n)
    left = dist.get_global_rank(everybody, (rank - 1) % n)
    came = torch.empty_like(x)
    ends = [dist.P2POp(dist.isend, x, right, group), dist.P2POp(dist.irecv, came, left, group)]
    return came, dist.batch_isend_irecv(ends)


def arrived(came: Tensor, requests: list) -> Tensor:
    """Wait for what pass_on has begun: the previous rank's tensor."""
    for request in requests:
        request.wait()
    return came


def around(kv: Tensor, group=None):
    """What all ranks have as kv, mine first, then the previous one's and so on: yields (owner, its kv), n times.

    owner: a number in the group. In step s that is rank - s, modulo n. Each message begins before the yield.
    """
    rank, n = place(group)
    for step in range(n):
        last = step == n - 1
        if not last:
            coming = pass_on(kv, group)  # on its way while the caller computes
        yield (rank - step) % n, kv
        if not last:
            kv = arrived(*coming)


def contiguous(n: int) -> list[list[int]]:
    """Which chunks of a row each of n ranks holds: of n chunks the one of its number."""
    return [[rank] for rank in range(n)]


def zigzag(n: int) -> list[list[int]]:
    """Of 2n chunks, rank i holds i and 2n - 1 - i (Grattafiori et al. 2024, §3.3.2)."""
    return [[rank, 2 * n - 1 - rank] for rank in range(n)]


def positions(T: int, split: list[list[int]]) -> Tensor:
    """The places of each rank's tokens in a row of T, (n, T/n). ValueError where T cannot be cut into equal chunks."""
    count = sum(len(chunks) for chunks in split)
    if T < 1 or T % count:
        raise ValueError(f"T={T} is no multiple of {count}, the chunks of the row on {len(split)} ranks")
    return torch.arange(T).view(count, -1)[torch.tensor(split)].flatten(1)


def cut(z: Tensor, chunks: list[int]) -> list[Tensor]:
    """A rank's rows (..., T/n, d) chunk by chunk, in float32 or better."""
    return list(tile(z, 0, z.size(-2)).chunk(len(chunks), -2))


def tiles(mine: list[int], theirs: list[int]) -> list[tuple[int, int, bool]]:
    """Tiles of my queries and their keys that are not future: place in mine, place in theirs, whether on the diagonal."""
    found = []
    for i, a in enumerate(mine):
        for j, b in enumerate(theirs):
            if b <= a:
                found.append((i, j, a == b))
    return found


def nothing_seen(q: Tensor, mine: list[int]) -> list[tuple]:
    """For each of my chunks m, total and o, as absorb wants them at the start."""
    return [nothing(z) for z in cut(q, mine)]


def take_in(q: Tensor, k: Tensor, v: Tensor, mine: list[int], theirs: list[int], seen: list[tuple]) -> None:
    """My queries see their keys and values, all (..., T/n, d); seen[i], of my chunk i, is replaced in the list."""
    q, k, v = cut(q, mine), cut(k, theirs), cut(v, theirs)
    for i, j, diagonal in tiles(mine, theirs):
        seen[i] = absorb(tile_scores(q[i], k[j], diagonal), v[j], *seen[i])


def merged(seen: list[tuple]) -> tuple[Tensor, Tensor]:
    """The output (..., T/n, d) and logsumexp (..., T/n, 1) of what has been seen."""
    outs = [o / total for m, total, o in seen]
    logsumexps = [m + total.log() for m, total, o in seen]
    return torch.cat(outs, -2), torch.cat(logsumexps, -2)


def add_gradients(rows: list[tuple], mine: list, kv: Tensor, theirs: list, dq: Tensor, d_kv: Tensor) -> None:
    """What my queries did with their keys and values, added in place: to dq, which is mine, and to d_kv, which is theirs.

    rows: of each of my chunks q, the gradient of its output, logsumexp and D, as chapter 12's tile_backward wants them.
    """
    (k, v), (dk, dv) = ([cut(z, theirs) for z in pair] for pair in (kv, d_kv))
    dq = cut(dq, mine)  # these pieces share memory with dq and d_kv
    for i, j, diagonal in tiles(mine, theirs):
        q, grad, logsumexp, D = rows[i]
        add_q, add_k, add_v = tile_backward(q, k[j], v[j], grad, logsumexp, D, diagonal)
        dq[i] += add_q
        dk[j] += add_k
        dv[j] += add_v


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
        q, k, v, out, logsumexp = ctx.saved_tensors
        rank, n = place(ctx.group)
        mine = ctx.split[rank]
        D = (grad * out).sum(-1, keepdim=True)  # (..., T/n, 1), float32
        pieces = [cut(z, mine) for z in (q, grad, logsumexp, D)]
        rows = list(zip(*pieces))  # chunk by chunk
        dq, d_kv = torch.zeros_like(out), torch.zeros_like(torch.stack((out, out)))
        with torch.autocast(q.device.type, enabled=False):
            for owner, kv in around(torch.stack((k, v)), ctx.group):
                add_gradients(rows, mine, kv, ctx.split[owner], dq, d_kv)
                if n > 1:
                    d_kv = arrived(*pass_on(d_kv, ctx.group))
        dk, dv = d_kv.to(k.dtype)
        return dq.to(q.dtype), dk, dv, None, None


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group=None, split: list | None = None) -> Tensor:
    """Causal attention of rows whose tokens are on the ranks of a group: q, k, v (..., T/n, d) are this rank's.

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
    """A GPT whose rows are on the ranks of a group. Reads this rank's columns (B, T/n); the loss is their targets' mean.

    accumulate_gradients with mean= weighs it by all ranks' targets, and DDP around it averages gradients, as for rows (chapter 20).
    """

    def __init__(self, model: GPT, group=None, split: list | None = None):
        super().__init__()
        if model.config.dropout:
            said = "ring attention keeps no weights to drop; set 0"
            raise ValueError(f"dropout={model.config.dropout}: {said}")
        self.module, self.group = model, group
        self.split = split or zigzag(place(group)[1])

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.module(idx, targets, cache=self)

    def columns(self, rows: Tensor) -> Tensor:
        """This rank's of whole rows (B, T): (B, T/n). ValueError where T does not divide."""
        return rows[:, positions(rows.size(1), self.split)[place(self.group)[0]].to(rows.device)]

    def positions(self, T: int) -> Tensor:
        """The places of this rank's T tokens in the row, (T,)."""
        limit, whole = self.module.config.block_size, T * len(self.split)
        if whole > limit:
            raise ValueError(f"{T} tokens on each of {len(self.split)} ranks exceed block_size={limit}")
        return positions(whole, self.split)[place(self.group)[0]].to(self.module.lm_head.weight.device)

    def layer(self, i: int):
        return partial(ring_attention, group=self.group, split=self.split)

    def newest(self, x: Tensor) -> Tensor:
        return x  # every token has a target
