# %% [markdown]
r"""
# 21c ◇ · Context parallel: one row of text over several ranks

Data parallelism gives each rank some of the rows. Tensor parallelism gives each rank some of the weights and heads. But the memory that a block keeps for backward also grows with the length of a row, and rows have
become long. GPT-2 had 1,024 tokens in a row. Llama 3 was trained with 131,072. *Context parallelism* gives each rank some of the tokens of one row.

Almost everything in GPT-2 treats tokens one by one, so it does not notice. Attention does. A query has to see keys that are on other ranks. But chapter 12 has shown that attention can take its keys in pieces. In this
chapter the pieces arrive from other ranks. We begin with one query and its keys in two places, then let two processes exchange their keys, give all ranks the same amount of work, and at last do the backward pass.
"""

# %%
#| default_exp labs.parallel.ring
#| doc labs.parallel.ring: Context parallelism: a row's tokens over several ranks, attention by keys and values that travel in a ring.
#| doc labs.drills.ring: What chapter 21c makes a ring of processes do, and the same steps compared in several ways.
import json
from pathlib import Path

from course.figures import context_parallel as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.model import attention_weights
from nanogpt.model import GPT, GPTConfig
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.labs.corpora.stories import ensure_corpus

DATA, OUT = "../data/built/stories", "../data/built/drill-21c.json"
N, RANKS, T = 2, 4, 64  # processes, for which a laptop has two cores; ranks on paper; tokens of a row
_ = ensure_corpus(DATA)

# %%
#| export
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nanogpt.labs.kernels.flash import absorb, tile, tile_backward, tile_scores
from nanogpt.model import GPT

# %% [markdown]
r"""
## One query, its keys in two places

Here is one query with its scores against four keys, and the keys' four values. Attention is the mean of the values, weighted by the softmax of the scores.
"""

# %%
scores = torch.tensor([[1.0, 3.0, 2.0, 5.0]])  # one query, four keys
values = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
print("all four keys in one place:", (scores.softmax(-1) @ values)[0])

# %% [markdown]
r"""
Now let the first two keys be on rank 0, and the other two on rank 1. Chapter 12's `absorb` takes in the scores and values of one place after the other. It keeps three things: m, the largest score so far; `total`, the sum of $e^{s - m}$; and `o`, the same sum with the values. When a larger
score comes, it shrinks what it has summed to the new maximum.
"""


# %%
#| export
def nothing(q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m, total and o of queries (..., rows, d) that have seen no key yet, as `absorb` wants them."""
    m = torch.full_like(q[..., :1], -torch.inf)
    return m, torch.zeros_like(m), torch.zeros_like(q)


# %%
m, total, o = nothing(values[:1])
for rank, keys in enumerate((slice(0, 2), slice(2, 4))):
    m, total, o = absorb(scores[:, keys], values[keys], m, total, o)
    print(f"with rank {rank}'s keys: m = {m.item():.0f}, total = {total.item():.3f}, mean", (o / total)[0])

# %% [markdown]
r"""
The second mean is the one from above. So a rank does not need all keys at once. It can take in its own keys first, and then those of another rank when they arrive. For each query it keeps m, total and o in between.

## A row on two ranks

Now take a row of eight tokens, with a query, a key and a value each. Rank 0 has the first four tokens, rank 1 the last four. Attention is causal, so a query sees only keys up to its own place. A rank's own keys need the causal mask (`diagonal=True`). Keys of earlier ranks are all in
the past, so all of them count. Keys of later ranks are in the future, and nobody looks at them.
"""

# %%
g = torch.Generator().manual_seed(0)
q, k, v = torch.randn(3, 8, 4, generator=g)  # eight tokens, one head with four channels
whole = attention_weights(q, k) @ v
halves = [slice(0, 4), slice(4, 8)]
for rank in (0, 1):
    mine = halves[rank]
    seen = absorb(tile_scores(q[mine], k[mine], diagonal=True), v[mine], *nothing(q[mine]))
    if rank == 1:
        theirs = halves[0]
        seen = absorb(tile_scores(q[mine], k[theirs], diagonal=False), v[theirs], *seen)
    m, total, o = seen
    apart = (o / total - whole[mine]).abs().max().item()
    assert apart < 1e-6, f"rank {rank}'s rows are {apart:.1e} from attention over the whole row"
    print(f"rank {rank}: its four rows are those of attention over the whole row")

# %% [markdown]
r"""
## A ring of two processes

Here both ranks were in one process. How do the keys get to another process? Place the ranks in a ring. Each rank sends its keys and values to the next rank on the right, and receives those of the previous rank. Then it passes on what it has received. After n − 1 steps every rank has seen the keys of all n.

Two things matter. The messages should travel while the rank computes with the keys that it already has. So `pass_on` only *begins* to send and to receive, and `arrived` waits. And a rank must not send first and receive afterwards. If a send waits until the other side receives,
as it may with NCCL, all ranks of the ring wait for ever (nccl#479). `batch_isend_irecv` begins both together.
"""


# %%
#| export
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


# %%
#| export
#| blank around: begin to pass kv on, yield the owner and kv, then wait for what comes; the last step passes nothing on
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


# %%
for owner, keys in around(torch.tensor([1.0, 2.0])):
    print(f"this kernel is a ring of one: it has the keys of rank {owner},", keys.tolist())

# %% [markdown]
r"""
In step s, rank r has what rank r − s had at first. Its own keys come first. This is important for `absorb`, which needs one finite score for each query at the beginning.

Two processes now do what we did by hand. All ranks make the same row from one seed, and each keeps only its part of it.
"""

# %%
#| export labs.drills.ring
from functools import partial

import torch
import torch.distributed as dist

from nanogpt.distributed import Ranks, gathered, replicate
from nanogpt.labs.drills.ddp import fresh, masked
from nanogpt.labs.kernels.flash import absorb, tile_scores
from nanogpt.model import attention_weights
from nanogpt.training import accumulate_gradients, train_step


# %%
#| export labs.drills.ring
def first_ring(ranks: Ranks, data: str, T: int = 64, d: int = 16) -> dict:
    """Attention forward, each rank with one part of the row: whose keys came when, and how far all is from one process."""
    row = torch.randn(3, T, d, generator=torch.Generator().manual_seed(0)).to(ranks.device)
    q, k, v = row.chunk(ranks.size, 1)[ranks.rank]  # my tokens
    seen, owners = nothing(q), []
    for owner, (k_o, v_o) in around(torch.stack((k, v))):
        owners.append(owner)
        if owner <= ranks.rank:  # later ranks' keys are future
            seen = absorb(tile_scores(q, k_o, diagonal=owner == ranks.rank), v_o, *seen)
    _, total, o = seen
    whole = (attention_weights(row[0], row[1]) @ row[2]).chunk(ranks.size)[ranks.rank]
    apart = (o / total - whole).abs().max().item()
    return {"owners": gathered(ranks, owners), "apart": max(gathered(ranks, apart))}


# %%
torchrun("21c", N, "drill", "drills.ring:first", "--data", DATA, "--out", OUT)
first = json.loads(Path(OUT).read_text())["drills.ring:first"]
for rank, owners in enumerate(first["owners"]):
    print(f"rank {rank} had the keys of ranks", *owners)
assert first["apart"] < 1e-5, f"the ring is {first['apart']:.1e} from attention over the whole row"
print("together: attention over the whole row, to rounding")

# %% [markdown]
r"""
Does it matter when a rank waits? Between two processes of one machine a message is fast, so the drill `orders` makes it slow: each one takes 0.2 seconds, as over a slow network. It does one step of the ring in two orders, *wait, then compute* and *compute, then wait*, and computes without any message for comparison.
"""

# %%
#| export labs.drills.ring
import time

from nanogpt.device import synchronize


def two_orders(ranks: Ranks, data: str, delay: float = 0.2, T: int = 2048, d: int = 64) -> dict:
    """The shortest ms of a step of the ring by when it waits for its message, which takes `delay` seconds at least."""
    q, k, v = torch.randn(3, 4, T // ranks.size, d, device=ranks.device)

    def compute() -> None:
        absorb(tile_scores(q, k, diagonal=False), v, *nothing(q))
        synchronize(ranks.device)

    def wait(message: tuple, began: float) -> None:
        arrived(*message)
        time.sleep(max(0.0, began + delay - time.perf_counter()))

    found = {"compute only": [], "wait, then compute": [], "compute, then wait": []}
    for order, times in [*found.items()] * 5:
        dist.barrier()
        began = time.perf_counter()
        if order != "compute only":
            message = pass_on(torch.stack((k, v)))
        if order == "wait, then compute":
            wait(message, began)
        compute()
        if order == "compute, then wait":
            wait(message, began)
        times.append(1e3 * (time.perf_counter() - began))
    return {order: min(times) for order, times in found.items()}


# %% tags=["nbval-ignore-output"]
torchrun("21c", N, "drill", "drills.ring:orders", "--data", DATA, "--out", OUT)
for order, ms in json.loads(Path(OUT).read_text())["drills.ring:orders"].items():
    print(f"{order:20} {ms:.0f} ms")

# %% [markdown]
r"""
To wait first costs both times, one after the other. To compute first costs only the longer of the two, since the message travels meanwhile. That is why `around` begins a message before it yields and waits for it afterwards.

## Equal work for all

In this ring the ranks do not work equally. Rank 0's queries are early in the row and see few keys. Those of the last rank see nearly all.

*Predict.* Four ranks have a quarter of the row each. We count work in pairs of a query and a key that it sees. How many times the average does the last rank have?
"""

# %%
predict("21c.1", "work of the last of 4 ranks, average = 1", guess=None)


# %%
#| export
#| blank zigzag: rank i takes one chunk from the front and its mirror image from the back
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


# %%
splits = {"contiguous": contiguous(RANKS), "zigzag": zigzag(RANKS)}
wheres = {name: positions(T, split) for name, split in splits.items()}
for name, where in wheres.items():
    pairs = (where + 1).sum(1)  # the query at position t sees t + 1 keys
    slowest = pairs.max() / pairs.float().mean()
    print(f"{name:10} chunks {splits[name]}, pairs {pairs.tolist()}: slowest {slowest:.3f} of the mean")
    if name == "contiguous":
        answer("21c.1", slowest.item())
alt = "The causal triangle by rank: four growing bands for contiguous parts; with the zigzag each colour has an early and a late band."
show(figures.masks(wheres), alt=alt)

# %% [markdown]
r"""
The figure shows the pairs, coloured by the rank that has the query. All ranks wait for the slowest one, so with contiguous parts a row takes nearly twice as long as it should. (For n ranks and long chunks it is (2n − 1)/n times.)

The *zigzag* cuts the row into 2n chunks. Each rank gets an early chunk and the late chunk that mirrors it. The early chunk sees fewer keys than the average, and the late one sees as many more. So the balance is exact, for any number of ranks:
"""

# %%
for n in range(1, 17):
    work = (positions(6 * n, zigzag(n)) + 1).sum(1)
    assert work.unique().numel() == 1, f"{n} ranks: {work.tolist()} pairs"
    assert work.sum() == 6 * n * (6 * n + 1) // 2, f"{n} ranks: a pair is missing, or counted twice"
print("1 to 16 ranks: all have the same number of pairs, together the whole triangle")

# %% [markdown]
r"""
Now a rank has several chunks. A chunk of my queries against a chunk of their keys is one tile, as in chapter 12. The numbers of the two chunks say what to do with it. If theirs is larger, the tile is in the future and we skip it. If they are equal, the tile is on the diagonal and needs the mask. Otherwise all of it counts.
"""


# %%
#| export
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


# %%
for step in range(RANKS):
    for name, split in splits.items():
        work = [len(tiles(split[rank], split[rank - step])) for rank in range(RANKS)]
        print(f"step {step}, {name:10} tiles by rank {work}")

# %% [markdown]
r"""
Look at the steps. With contiguous parts, each later step has a rank that computes a full tile and ranks that compute nothing, and all pass on together. With the zigzag each rank computes two tiles in every later step, and each of them is a quarter of the size.

Next comes the queries' part of the work: for each of my chunks, m, total and o.
"""


# %%
#| export
#| blank take_in: for each tile that is not future, absorb its scores and values
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


# %% [markdown]
r"""
We check both splits in this one process, with four ranks as four entries of a list. In step s, rank r takes in what rank r − s has.
"""

# %%
q, k, v = torch.randn(3, 2, 4, T, 16, generator=g)  # two rows, four heads of 16 channels
whole = attention_weights(q, k) @ v
for name, split in splits.items():
    qs, ks, vs = ([z[..., rows, :] for rows in wheres[name]] for z in (q, k, v))  # each rank's
    seen = [nothing_seen(qs[rank], split[rank]) for rank in range(RANKS)]
    for step in range(RANKS):
        for rank in range(RANKS):
            owner = (rank - step) % RANKS
            take_in(qs[rank], ks[owner], vs[owner], split[rank], split[owner], seen[rank])
    for rank, rows in enumerate(wheres[name]):
        apart = (merged(seen[rank])[0] - whole[..., rows, :]).abs().max().item()
        assert apart < 1e-5, f"{name}, rank {rank}: {apart:.1e} from attention over the whole row"
    print(f"{name:10} is attention over the whole row on {RANKS} ranks")

# %% [markdown]
r"""
## Backward

Whose gradients does a rank compute? Go back to eight tokens on two ranks. Rank 0's queries saw only rank 0's keys. Rank 1's queries saw the keys of both.
"""

# %%
q, k, v = torch.randn(3, 8, 4, generator=g)
k.requires_grad_()
out = attention_weights(q, k) @ v
for rank, mine in enumerate(halves):
    (dk,) = torch.autograd.grad(out[mine].square().sum(), k, retain_graph=True)
    sizes = ", ".join(f"of rank {other}'s {dk[theirs].norm():.3f}" for other, theirs in enumerate(halves))
    print(f"from rank {rank}'s queries, length of the gradient of the keys: {sizes}")

# %% [markdown]
r"""
So the gradient of rank 0's keys has two summands, and the second one is computed on rank 1. The owner of a key needs the sum over all ranks. How does it get there?

The keys and values go around the ring once more, because backward computes the scores again, as in chapter 12. The sum of the gradients travels with them, one message behind. Each rank adds what its own queries contribute to the keys that it has right now, and passes the sum on. After n steps it is home. (That is one hop more than the keys need.)
"""


# %%
#| export
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


# %%
(q_0, q_1), (k_0, k_1), (v_0, v_1) = (z.detach().chunk(2) for z in (q, k, v))
seen = nothing_seen(q_1, [1])
take_in(q_1, k_1, v_1, [1], [1], seen)
take_in(q_1, k_0, v_0, [1], [0], seen)
out_1, logsumexp = merged(seen)
grad = 2 * out_1  # the gradient of the sum of squares
rows = [(q_1, grad, logsumexp, (grad * out_1).sum(-1, keepdim=True))]
dq, d_kv = torch.zeros_like(q_1), torch.zeros(2, 4, 4)
add_gradients(rows, [1], torch.stack((k_0, v_0)), [0], dq, d_kv)
assert torch.allclose(d_kv[0], dk[halves[0]], atol=1e-5), "rank 1 adds another gradient to rank 0's keys"
print(f"what rank 1 adds to rank 0's keys has the length {d_kv[0].norm():.3f}, as above")

# %% [markdown]
r"""
The ring is then a loop around `take_in` in forward, and a loop around `add_gradients` in backward.
"""


# %%
#| export
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


# %%
#| export
class RingAttention(RingAttention):
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


# %%
#| export
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


# %% [markdown]
r"""
In this kernel the ring has one rank, which is enough to check the arithmetic of the tiles. Two processes follow below, and this chapter's tests take three and four.
"""

# %%
q, k, v = (z.requires_grad_() for z in torch.randn(3, 2, 4, T, 16, generator=g))
ours = torch.autograd.grad(ring_attention(q, k, v).square().sum(), (q, k, v))
theirs = torch.autograd.grad((attention_weights(q, k) @ v).square().sum(), (q, k, v))
for name, a, b in zip("qkv", ours, theirs):
    apart = (a - b).abs().max().item()
    assert apart < 1e-4, f"the gradient of {name} is {apart:.1e} from that of chapter 04's attention"
print("a ring of one has the gradients of chapter 04's attention")

# %% [markdown]
r"""
## What the ring costs

*Predict.* Take GPT-2 small in bf16 and one row of 32,768 tokens on 8 ranks. How many MB does a rank send in the forward pass of one layer? And how many times as much in backward, if gradients are in float32?
"""

# %%
predict("21c.2", "sent in a layer's forward pass", guess=None, unit="MB")


# %%
def bytes_sent(n, B, T, C, size, wide=4):
    """Bytes that a rank sends for one layer, forward and backward; size: bytes of a number, wide: of a gradient's."""
    numbers = 2 * B * C * T // n  # keys and values of a rank
    keys, gradients = (n - 1) * numbers * size, n * numbers * wide  # n - 1 hops, and n
    return keys, keys + gradients


forward, backward = bytes_sent(n=8, B=1, T=32_768, C=768, size=2)
print(f"forward {forward / 1e6:.1f} MB, backward {backward / 1e6:.1f} MB, {backward / forward:.2f} as much")
answer("21c.2", forward / 1e6)

# %% [markdown]
r"""
Backward sends 3.3 times as much as forward. The keys and values go around once more, which is 88.1 MB again. With them travel their gradients, in numbers twice as wide and for one hop more: 88.1 · 2 · 8/7 = 201.3 MB.

Can a GPU compute while this travels? Let c = T/n be the tokens of a rank. In each later step of the zigzag it computes half of a c × c tile, which is 2c²C operations in all heads together. Meanwhile 4cC bytes of bf16 travel. Both grow with C, but only the computing grows with c². So from some length on the ring costs no time, and this length does not depend on the width.
For F operations and B bytes a second it is c = 2F/B. (Liu et al. 2023, §3, have F/B, for a full tile.)
Backward needs a little more, c = 2.4F/B: it makes five products where forward makes two, and with the keys and values travel their gradients in float32, 12cC bytes in all.
"""

# %%
for name, link in (("inside a machine", 450e9), ("between machines", 50e9)):
    c = 2 * 0.4 * PEAKS["H100"].half * 1e12 / link  # if 40% of the peak is reached
    print(f"H100, {link / 1e9:.0f} GB a second {name}: {c:,.0f} tokens a rank hide the ring")

# %% [markdown]
r"""
These are calculations, not measurements. The 40% and the links are chapter 20b's assumptions, with one network card for each GPU, because every rank sends through its own. The numbers also assume a fused attention kernel. Ours is not fused. It holds the scores of a tile in float32, which are 201 MB for the row above, and in backward
it waits for each message. (Exercise 3 begins with a fused one.)

Still, the result is clear: context parallelism is for rows of tens of thousands of tokens. With GPT-2's 1,024 the ranks would wait for the network. Llama 3's training used the zigzag, but no ring (Grattafiori et al. 2024, §3.3.2). It first gathers all keys and values, which its grouped heads keep small. Then masks between documents stay easy. A rank sends as many bytes as in the ring.

## What a rank keeps

The chapter began with memory: what a block keeps for backward grows with the length of a row. Here is what one rank of n keeps of its T/n tokens, in numbers for each of the T/n × C entries of its part.
"""

# %%
from nanogpt.labs.roofline.memory import saved_bytes

C, heads = 32, 4
for length in (64, 256, 1024):
    row = []
    for n in (1, 2, 4):
        q, k, v = (torch.randn(1, heads, length // n, C // heads, requires_grad=True) for _ in range(3))
        row.append(saved_bytes(lambda q=q, k=k, v=v: ring_attention(q, k, v)) / 4 / (length // n * C))
    q, k, v = (torch.randn(1, heads, length, C // heads, requires_grad=True) for _ in range(3))
    plain = saved_bytes(lambda q=q, k=k, v=v: attention_weights(q, k) @ v) / 4 / (length * C)
    print(f"T = {length:5}: ", "  ".join(f"n = {n}: {kept:.1f}" for n, kept in zip((1, 2, 4), row)), end="")
    print(f"; chapter 04's attention, on one rank: {plain:.1f}")

# %% [markdown]
r"""
The same number in every line: a rank of four keeps exactly a quarter of what one rank keeps, at every length. (Each part was measured in this one process. What a rank saves are its own q, k, v, output and logsumexp, whoever else is in the ring.) The number does not grow with the length, so no T × T scores are kept. Chapter 04's attention keeps
them: 139 numbers for each entry at 1,024 tokens, and four times as many whenever the row is four times as long.

## A whole model

How do we put this into the GPT? Chapter 08's `cache` is the place. The model asks it where the tokens are, how to attend, and what goes to the head. For generation the cache brought keys from the past. `ContextParallel` is a cache whose keys are on other ranks. So the model itself does not change.
"""


# %%
#| export
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


# %%
#| export
class ContextParallel(ContextParallel):
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


# %%
shape = GPTConfig(block_size=T, vocab_size=97, n_layer=2, n_head=4, n_embd=32)
model = GPT(shape, torch.Generator().manual_seed(0))
wrapped = ContextParallel(model, split=zigzag(RANKS))
print(f"rank 0 of {RANKS} has the places", wrapped.positions(T // RANKS).tolist())

# %% [markdown]
r"""
Two details decide whether this is the same model. First, a token's *position* is its place in the row, as printed here, and not its place on the rank. Second, the ranks have *unequal numbers of targets*. Where a document was masked, a rank may have none at all. A mean of the ranks' means would give its tokens a wrong weight (chapter 20).

With d × n ranks, n for each row, the ring runs in groups of n (`group=`), and gradients are averaged over all.

## Two processes train

Two processes train one small model for a few steps, and one process does the same. Two more runs are wrong on purpose. *Own positions* counts each rank's tokens from 0. *Mean of means* gives ranks with few targets the same weight as those with many. Another drill counts the bytes that a rank sends.

*Predict.* Which of the two mistakes changes the first loss? Both? Neither?
"""


# %%
def report(told):
    """A line a way; those that are wrong on purpose must be, the others not."""
    for way, found in told.items():
        apart, losses = found["apart"].values(), found["losses"]
        wrong = f"{sum(x > 1e-4 for x in apart)} of {len(apart)} gradients are not those of one process"
        assert (max(apart) > 1e-4) == (way in WRONG), f"{way}: {wrong}"
        print(
            f"{way:14} losses {losses[0]:.3f} to {losses[-1]:.3f}: {wrong} (largest distance {max(apart):.0e})"
        )


WRONG = "own positions", "mean of means"
torchrun("21c", N, "drill", "drills.ring:sent", "drills.ring:same", "--data", DATA, "--out", OUT)
told, expected = json.loads(Path(OUT).read_text()), bytes_sent(N, B=2, T=64, C=64, size=4)
sent = told["drills.ring:sent"]
assert tuple(sent.values()) == expected, f"{sent} were sent, not {expected}"
print(f"bytes as predicted: {expected[0]:,} forward, {expected[1]:,} backward")
report(told["drills.ring:same"])

# %% [markdown]
r"""
Both mistakes change the first loss: *own positions* by 0.044 nats, *mean of means* by 0.002. All losses fall, and after three steps both wrong runs are even lower than the right one (6.044 and 6.050 against 6.066). Nobody would notice in a real run. The gradients show it: all 28 of them are wrong.

Why is the right one not equal to the last bit? Float32 addition rounds. The ring adds a row's tiles in another order, and the all-reduce adds the ranks' parts. The difference is a millionth of a gradient's length or less, as printed, and a mistake is orders of magnitude larger.

PyTorch has a ring of its own, `torch.distributed.tensor.experimental.context_parallel`, for CUDA's attention kernels. On a CPU it ends in a `NotImplementedError` (2.13, tried in November 2026). Its order of chunks is the zigzag, and a test of this chapter compares the two. Our `ContextParallel` is for study: the configuration of chapter 21d has no word for it.
"""

# %% [markdown]
r"""
## Appendix: the drills that compare and count
"""

# %%
#| export labs.drills.ring
WAYS = "zigzag", "own positions", "mean of means"  # the last two wrong on purpose


def trained_in_ring(way: str, ranks: Ranks, data: str, steps: int) -> tuple[list[float], dict]:
    """Losses of some steps and the first gradients by name; all ranks read the same rows."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    wrapped, losses, first = ContextParallel(model), [], {}
    if way == "own positions":
        wrapped.positions = torch.arange  # each rank counts from 0
    replica, mean = replicate(wrapped, ranks), None if way == "mean of means" else ranks.mean
    for _ in range(steps):
        batch = [tuple(wrapped.columns(z) for z in pair) for pair in masked(stream)]
        optimizer.zero_grad()
        losses.append(ranks.mean(accumulate_gradients(replica, batch, mean=mean)).item())
        optimizer.step()
        first = first or {name: p.grad.to("cpu", copy=True) for name, p in model.named_parameters()}
    return losses, first


# %%
#| export labs.drills.ring
def compared(ranks: Ranks, data: str, ways, trained, steps: int = 3) -> dict:
    """The same steps in one process and in several ways: losses, and how far the first gradients are apart by name."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    losses, one = [], {}
    for _ in range(steps):
        losses.append(train_step(model, optimizer, masked(stream)).item())
        one = one or {name: p.grad.to("cpu", copy=True) for name, p in model.named_parameters()}
    found = {"one process": {"losses": losses, "apart": dict.fromkeys(one, 0.0)}}
    for way in ways:
        losses, first = trained(way, ranks, data, steps)
        apart = {name: ((first[name] - g).norm() / g.norm()).item() for name, g in one.items()}
        found[way] = {"losses": losses, "apart": apart}
    return found


# %%
#| export labs.drills.ring
def sent_by_ring(ranks: Ranks, data: str, B: int = 2, heads: int = 4, T: int = 64, d: int = 16) -> dict:
    """The bytes that a rank sends for one layer's attention, forward and backward."""
    q = torch.randn(B, heads, T // ranks.size, d, device=ranks.device, requires_grad=True)
    counts, batch = [], dist.batch_isend_irecv

    def counting(ends):
        counts.append(ends[0].tensor.nbytes)
        return batch(ends)

    dist.batch_isend_irecv = counting
    out, forward = ring_attention(q, q, q), sum(counts)
    out.sum().backward()
    dist.batch_isend_irecv = batch
    return {"forward": forward, "backward": sum(counts) - forward}


SAME = partial(compared, ways=WAYS, trained=trained_in_ring)
DRILLS = {"first": first_ring, "orders": two_orders, "sent": sent_by_ring, "same": SAME}

# %% tags=["nbval-ignore-output"]
predictions("21c")

# %%
checkpoint("21c")

# %% [markdown]
r"""
## Exercises

`course exercises release 21c` writes these as a notebook to `released/`; `course check 21c` runs their visible checks.

- **21c-1** A ring waits at every step, 25 minutes: derive how long three ways to deal a row take.
- **21c-2** A query that sees nobody, 20 minutes: repair a merge of pieces that gives NaN where documents are masked.
- **21c-3** A check for a dealer, 20 minutes: write the check that every token is dealt once, and equal work.
- **21c-4** Eight GPUs for a short row, 10 minutes: when a ring is the wrong layout.

To explore:

1. *Striped.* Brandon et al. 2023 give rank r the tokens r, r + n, r + 2n, … Count the pairs by rank for n = 4, T = 64. *Check:* the largest and the smallest differ by T/n × (n − 1); is that much?
   Which tiles would need a mask?
2. *Gather.* Write Llama 3's way: a cache whose `layer` gathers all keys and values (`torch.distributed.nn.functional.all_gather`, which has a backward), sorts them by position, and attends with a mask from positions. *Check:*
   `tests/labs/test_ch21c_ring.py` with your class in place of `ContextParallel`.
3. *Merge.* Let `F.scaled_dot_product_attention` compute two halves of the keys; from both outputs and logsumexps make the whole. *Check:* against `absorb`. This is how a ring uses fused kernels.
4. *Both directions.* A link between two GPUs can send and receive at once. Let the first chunk of each rank's keys and values travel to the right and the second one to the left. *Check:* the tests of this chapter still pass, and each message has half of the bytes. How many tiles does each rank then compute in a step, and is the work still equal?

## Further reading

- Liu, Zaharia and Abbeel 2023, [*Ring Attention with Blockwise Transformers for Near-Infinite Context*](https://arxiv.org/abs/2310.01889), §3. Brandon et al. 2023, [*Striped Attention*](https://arxiv.org/abs/2311.09431): the imbalance, and another cure.
- Grattafiori et al. 2024, [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), §3.3.2: tensor, context, pipeline and data parallelism together.
- Milakov and Gimelshein 2018, [*Online normalizer calculation for softmax*](https://arxiv.org/abs/1805.02867): the running maximum.
"""
