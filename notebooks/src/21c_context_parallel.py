# %% [markdown]
r"""
# 21c · Context parallel: a row over several ranks, and layers over several ranks

Data parallelism deals out rows, tensor parallelism weights and heads. But what blocks keep for backward grows with the length of a row, and
rows have become long: 131,072 tokens in Llama 3's training, where GPT-2 had 1,024. *Context parallelism* deals out the
tokens of one row. Everything in GPT-2 treats tokens one by one, except attention, and chapter 12 has shown how attention takes its
keys in pieces. Here the pieces lie on other ranks.

The second part cuts the model by layers instead, and asks what the ranks do while they wait: *pipeline parallelism*.
"""

# %%
#| default_exp parallel.ring
#| doc parallel.ring: Context parallelism: a row's tokens over several ranks, attention by keys and values that travel in a ring.
#| doc drills.ring: What chapter 21c makes a ring of processes do, and the same steps compared in several ways.
#| doc drills.pipeline: What chapter 21c makes the stages of a pipeline do, and when.
#| doc parallel.pipeline: Pipeline parallelism: a GPT cut into stages, their schedules simulated, and a step by send and receive.
import itertools
import json
from pathlib import Path

from course.figures import context_parallel as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.speed.roofline import PEAKS

DATA, OUT = "../data/built/stories", "../data/built/drill-21c.json"
N, RANKS, T = 2, 4, 64  # processes, for which a laptop has two cores; ranks on paper; tokens of a row
STAGES, MICRO, CHUNKS = 4, 8, 2  # of a pipeline on paper: stages, micro-batches, chunks of a stage
_ = ensure_corpus(DATA)

# %%
#| export
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nanogpt.gpt.model import GPT
from nanogpt.speed.flash import absorb, tile, tile_backward, tile_scores

# %%
#| export parallel.pipeline
import time
from functools import partial
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.gpt.model import GPT
from nanogpt.gpt.train import target_shares
from nanogpt.parallel.distributed import Ranks
from nanogpt.speed.roofline import synchronize

# %%
#| export drills.ring
from functools import partial

import torch
import torch.distributed as dist

from nanogpt.drills.ddp import fresh, masked
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, replicate

# %%
#| export drills.pipeline
from functools import partial

from nanogpt.drills.ddp import fresh, masked
from nanogpt.parallel.distributed import Ranks, gathered

# %% [markdown]
r"""
## Who has which tokens

A rank holds queries, keys and values of its own tokens, and nothing else. The obvious split gives rank 0 the first quarter of the row, and so
on. Causal attention makes this unfair: a late query sees many keys, an early one few.

*Predict.* Four ranks, contiguous parts. How many times as much as the average has the last rank to do, in pairs of a query and a key? And
the first?
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
    """Where each rank's tokens stand in a row of T, (n, T/n). ValueError where T cannot be cut into equal chunks."""
    count = sum(map(len, split))
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
show(
    figures.masks(wheres), alt="The causal triangle by rank: four growing bands; eight bands, a colour twice."
)

# %% [markdown]
r"""
All wait for the slowest, so the contiguous split costs nearly twice the average on many ranks: (2n − 1)/n, for chunks of many tokens. The *zigzag* pairs each
early chunk with the late one that mirrors it. The sum of positions of a pair is the same for all ranks. So the balance is exact:
"""

# %%
for n in range(1, 17):
    work = (positions(6 * n, zigzag(n)) + 1).sum(1)
    assert work.unique().numel() == 1, f"{n} ranks: {work.tolist()} pairs"
    assert work.sum() == 6 * n * (6 * n + 1) // 2, f"{n} ranks: a pair is missing, or counted twice"
print("1 to 16 ranks: all have the same number of pairs, together the whole triangle")

# %% [markdown]
r"""
## Chapter 12's tiles, spread out

`absorb` takes in scores and values that arrive in pieces, in any order, and keeps m, total and o for each row. A chunk's queries against a chunk's keys are
one tile. Whether it is needed is known from the numbers of the chunks alone: future tiles are skipped, on the diagonal a mask applies, the past counts in full.
"""


# %%
#| export
def cut(z: Tensor, chunks: list[int]) -> tuple[Tensor, ...]:
    """A rank's rows (..., T/n, d) chunk by chunk, in float32 or better."""
    return tile(z, 0, z.size(-2)).chunk(len(chunks), -2)


def tiles(mine: list[int], theirs: list[int]) -> list[tuple[int, int, bool]]:
    """Tiles of my queries and their keys that are not future: place in mine, place in theirs, whether on the diagonal."""
    return [(i, j, a == b) for i, a in enumerate(mine) for j, b in enumerate(theirs) if b <= a]


# %%
#| export
#| blank take_in: for each tile that is not future, absorb its scores and values
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


# %% [markdown]
r"""
First in one process, with a list in place of ranks. In step s rank r looks at what rank r − s held at first: that is what a ring does in which
everybody passes on to the right. Its own keys come first, so that each row has seen one finite score.
"""


# %%
g = torch.Generator().manual_seed(0)
q, k, v = torch.randn(3, 2, 4, T, 16, generator=g)
whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
for name, split in splits.items():
    qs, ks, vs = ([z[..., rows, :] for rows in wheres[name]] for z in (q, k, v))  # each rank's
    seen = [nothing_seen(qs[rank], split[rank]) for rank in range(RANKS)]
    for step, rank in itertools.product(range(RANKS), range(RANKS)):
        owner = (rank - step) % RANKS
        take_in(qs[rank], ks[owner], vs[owner], split[rank], split[owner], seen[rank])
    out = torch.cat([merged(s)[0] for s in seen], -2)
    apart = (out - whole[..., wheres[name].flatten(), :]).abs().max().item()
    assert apart < 1e-5, f"{name}: {apart:.1e} from attention over the whole row"
    work = [[len(tiles(split[r], split[r - s])) for r in range(RANKS)] for s in range(RANKS)]
    print(f"{name:10} is attention over the whole row; tiles by step and rank: {work}")

# %% [markdown]
r"""
Look at the steps. In the contiguous split each step after the first has a rank that computes a full tile and ranks that compute none, and all pass on
together: the row takes as long as without a mask. In the zigzag each rank computes two tiles of a quarter of the size in every later step.

## The ring

Now with ranks. While a rank computes with the keys and values that it has, they are already on their way to the next one, and the previous one's
come in. `batch_isend_irecv` begins both at once. Ranks that each send first and receive afterwards can wait for each other for ever. With NCCL two GPUs do (nccl#479).

*Predict.* GPT-2 small in bf16, one row of 32,768 tokens on 8 ranks. How many MB does a rank send in one layer's forward pass? And in backward, with
gradients in float32, how many times that?
"""

# %%
predict("21c.2", "sent in a layer's forward pass", guess=None, unit="MB")


# %%
#| export
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


# %% [markdown]
r"""
Backward recomputes, as chapter 12 does, so keys and values go around once more. Their gradients are a harder matter: rank r holds $dk$ only of what *its* queries did with
these keys, and the owner needs the sum over all ranks. So the sum travels along, one message behind the keys, and after n steps it is
home. (That is one hop more than the keys make.)
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


# %%
#| export
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


# %% [markdown]
r"""
What is sent, by counting in the code: keys and values make n − 1 hops in forward and again in backward, their gradients n.
"""


# %%
def bytes_sent(n, B, T, C, size, wide=4):
    """Bytes that a rank sends for one layer, forward and backward; size: bytes of a number, wide: of a gradient's."""
    numbers = 2 * B * C * T // n  # keys and values of a rank
    return (n - 1) * numbers * size, (n - 1) * numbers * size + n * numbers * wide


forward, backward = bytes_sent(n=8, B=1, T=32_768, C=768, size=2)
print(f"forward {forward / 1e6:.1f} MB, backward {backward / 1e6:.1f} MB, {backward / forward:.2f} as much")
answer("21c.2", forward / 1e6)

# %% [markdown]
r"""
Can this hide behind the arithmetic? With c = T/n tokens a rank, each zigzag step computes half of a c × c tile, 2c²C operations in all heads, while 4cC bytes of
bf16 travel. Both grow with C; only one grows with c². So there is a length from which on the ring is free, whatever the width: c = 2F/B, for F operations
and B bytes a second (Liu et al. 2023, §3; they have F/B, for a full tile).
"""

# %%
for name, link in (("inside a machine", 450e9), ("between machines", 50e9)):
    c = 2 * 0.4 * PEAKS["H100"].half * 1e12 / link  # if 40% of the peak is reached
    print(f"H100, {link / 1e9:.0f} GB a second {name}: {c:,.0f} tokens a rank hide the ring")

# %% [markdown]
r"""
40% of the peak is chapter 20b's assumption, and so are the links: here one network card a GPU, since each rank sends through its own. The numbers are claimed for a fused attention kernel. Our `ring_attention` is none: it holds the scores of a tile in float32, which for the row above are 201 MB a tile, and in backward it waits for each message. (Exercise 3 begins the fused one.)
The shape of the answer is what counts: context parallelism is for rows of tens of thousands of tokens. GPT-2's 1,024 would wait for the network.
Llama 3's training does it without a ring (Grattafiori et al. 2024, §3.3.2): it first gathers all keys and values, which grouped heads keep small, and then attends, so that masks by document stay easy. A
rank sends as many bytes as in the ring. The split is the zigzag.

## A whole model

The model has a seam for keys and values that are not in x: chapter 08's `cache`, which says where the tokens stand, attends, and picks what goes to the head. Context parallelism is a cache
whose past lies on other ranks. So the model stays what it is.
"""


# %%
#| export
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


# %%
#| export
class ContextParallel(ContextParallel):
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


# %% [markdown]
r"""
Two details decide whether this is the same model. A token's *position* is its place in the row, not on the rank. And ranks have *unequal numbers of targets*: where a document was masked, a rank may have none at all; a mean of the
ranks' means would weigh its tokens wrongly (chapter 20).

With d × n ranks, n to a row, the ring runs in groups of n (`group=`), and gradients are averaged over all.
"""


# %%
#| export drills.ring
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
        losses.append(ranks.mean(train_step(replica, optimizer, batch, mean=mean)).item())
        first = first or {name: p.grad.to("cpu", copy=True) for name, p in model.named_parameters()}
    return losses, first


# %%
#| export drills.ring
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
#| export drills.ring
def sent_by_ring(ranks: Ranks, data: str, B: int = 2, heads: int = 4, T: int = 64, d: int = 16) -> dict:
    """The bytes that a rank sends for one layer's attention, forward and backward."""
    q = torch.randn(B, heads, T // ranks.size, d, device=ranks.device, requires_grad=True)
    batch, counts = dist.batch_isend_irecv, []
    dist.batch_isend_irecv = lambda ops: (counts.append(ops[0].tensor.nbytes), batch(ops))[1]
    out, forward = ring_attention(q, q, q), sum(counts)
    out.sum().backward()
    dist.batch_isend_irecv = batch
    return {"forward": forward, "backward": sum(counts) - forward}


DRILLS = {"sent": sent_by_ring, "same": partial(compared, ways=WAYS, trained=trained_in_ring)}


# %% [markdown]
r"""
What these drills find stands below, under *Two processes*. PyTorch has a ring of its own, `torch.distributed.tensor.experimental.context_parallel`, for CUDA's attention kernels; on a CPU
it ends in a `NotImplementedError` (2.13, tried in November 2026). Its order of chunks is the zigzag, and a test of this chapter compares the two.

## Layers over several ranks

A *pipeline* gives each rank some of the layers, a *stage*. What moves is small: one (B, T, C) from stage to stage, and its gradient back. But a stage can begin only when
the one before is done. With one batch at a time one rank works and the others wait. So the batch is cut into *micro-batches* that follow each other, and the gradients add up (chapter 15).

A schedule is the order in which each stage does its forwards and backwards. *GPipe* (Huang et al. 2019) runs all forwards, then all backwards. *1F1B* (Narayanan et al. 2021,
§2.2.1) starts backward early, and then takes one forward and one backward in turn. A simulator needs one rule: an operation starts when its stage is free and its input is there. (In its pictures
forwards are blue and backwards orange, with the number of the micro-batch.)
"""


# %%
#| export parallel.pipeline
#| blank one_f_one_b: as many forwards ahead as stages come after this one, at most m
def gpipe(stage: int, stages: int, m: int) -> list[tuple]:
    """A stage's order of operations for m micro-batches, (what, micro-batch, chunk): all forwards, then all backwards."""
    return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in reversed(range(m))]


def alternate(ahead: int, forwards: list, backwards: list) -> list[tuple]:
    """Some forwards ahead, then one forward and one backward in turn, then the backwards that are left."""
    pairs = [op for pair in zip(forwards[ahead:], backwards) for op in pair]
    return forwards[:ahead] + pairs + backwards[len(forwards) - ahead :]


def one_f_one_b(stage: int, stages: int, m: int) -> list[tuple]:
    """1F1B with a flush (Narayanan et al. 2021, §2.2.1): a stage is as many forwards ahead as stages follow it."""
    forwards, backwards = ([(what, i, 0) for i in range(m)] for what in "FB")
    return alternate(min(stages - 1 - stage, m), forwards, backwards)


# %%
#| export parallel.pipeline
def simulate(orders: list[list], seconds=lambda stage, what: 1 if what == "F" else 2) -> list[list]:
    """By stage, when each operation of its order runs at the earliest: [(what, micro-batch, chunk, start, end), ...].

    Chunk c of stage s is the model's part c · stages + s. ValueError where the orders wait for each other for ever.
    """
    stages, ended, spans = len(orders), {None: 0}, [[] for _ in orders]
    deepest = stages * (1 + max(op[2] for order in orders for op in order)) - 1

    def needs(what: str, i: int, depth: int):
        before = depth - 1 if what == "F" else depth + 1
        return None if before < 0 else (what, i, before) if before <= deepest else ("F", i, depth)

    for _ in range(sum(map(len, orders))):
        coming = {s: order[len(spans[s])] for s, order in enumerate(orders) if len(spans[s]) < len(order)}
        places = {s: (what, i, chunk * stages + s) for s, (what, i, chunk) in coming.items()}
        s = next((s for s, op in places.items() if needs(*op) in ended), None)
        if s is None:
            raise ValueError(f"the stages wait for each other for ever, before {list(places.values())}")
        start = max(ended[needs(*places[s])], spans[s][-1][-1] if spans[s] else 0)
        ended[places[s]] = start + seconds(s, places[s][0])
        spans[s].append((*coming[s], start, ended[places[s]]))
    return spans


# %%
#| export parallel.pipeline
def idle(spans: list[list]) -> list[float]:
    """Of the time from the first start to the last end, the share in which each stage does nothing."""
    begin, end = min(s[0][-2] for s in spans), max(s[-1][-1] for s in spans)
    return [1 - sum(b - a for *_, a, b in stage) / (end - begin) for stage in spans]


def most_kept(order: list) -> int:
    """How many micro-batches' activations a stage holds at most."""
    return max(accumulate(1 if what == "F" else -1 for what, *_ in order))


# %% [markdown]
r"""
*Predict.* Four stages, eight micro-batches, backward twice as long as forward. Which share of the time is a stage idle in GPipe, and in 1F1B? How many micro-batches' activations does
the first stage hold in each?
"""

# %%
predict("21c.3", "idle in 1F1B, 4 stages, 8 micro-batches", guess=None, unit="%")

# %%
SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b}
pictures = {}
for name, schedule in SCHEDULES.items():
    orders = [schedule(s, STAGES, MICRO) for s in range(STAGES)]
    pictures[name] = simulate(orders)
    shares, held = idle(pictures[name]), [most_kept(order) for order in orders]
    print(f"{name:5} idle {', '.join(f'{share:.1%}' for share in shares)}; micro-batches held at most {held}")
answer("21c.3", 100 * shares[0])
show(figures.schedules(pictures), alt="Timetables of GPipe and 1F1B: the same waiting at both ends.")

# %% [markdown]
r"""
The *bubble* is the same in both: each stage waits for p − 1 others to begin and to end, (p − 1)(f + b) of (m + p − 1)(f + b) seconds. f and b cancel.
What 1F1B saves is memory: p micro-batches instead of m, and so it can afford the many micro-batches that make the bubble small.
"""


# %%
#| export parallel.pipeline
#| blank bubble: stages - 1 steps are lost, and each chunk of each micro-batch is work
def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle share of a pipeline's time (Huang et al. 2019, §2.3); with interleaved chunks Narayanan et al. 2021, §2.2.2."""
    return (stages - 1) / (chunks * micro_batches + stages - 1)


# %%
for p, m, b in itertools.product(range(1, 9), (1, 2, 7, 8, 21), (1, 2, 3.5)):
    for schedule in SCHEDULES.values():
        orders = [schedule(s, p, m) for s in range(p)]
        shares = idle(simulate(orders, lambda stage, what: 1 if what == "F" else b))  # noqa: B023
        assert max(abs(x - bubble(p, m)) for x in shares) < 1e-9, f"{p} stages, {m} micro-batches: {shares}"
    assert most_kept(gpipe(0, p, m)) == m and most_kept(one_f_one_b(0, p, m)) == min(p, m), "another memory"
print("1 to 8 stages, 1 to 21 micro-batches, backward 1 to 3.5 times forward: the formula holds for both")

# %% [markdown]
r"""
## Interleaved

The bubble is the time of passing p − 1 stages, so shorter stages make it smaller. *Interleaving* (Narayanan et al. 2021, §2.2.2) gives each rank v short pieces of the model in place of a long one: rank 0 has the first layers and some from the middle.
A micro-batch goes around v times, and the bubble is (p − 1)/(vm + p − 1).
"""


# %%
#| export parallel.pipeline
def interleaved(stage: int, stages: int, m: int, chunks: int) -> list[tuple]:
    """1F1B with several chunks of the model on a stage, in groups of as many micro-batches as stages (ibid., §2.2.2)."""
    if m % stages:
        raise ValueError(f"{m} micro-batches do not interleave on {stages} stages; take a multiple")

    def op(what: str, k: int) -> tuple:
        group, chunk = divmod(k // stages, chunks)
        return what, group * stages + k % stages, chunk if what == "F" else chunks - 1 - chunk

    forwards, backwards = ([op(what, k) for k in range(m * chunks)] for what in "FB")
    return alternate(min(2 * (stages - 1 - stage) + (chunks - 1) * stages, m * chunks), forwards, backwards)


# %%
orders = [interleaved(s, STAGES, MICRO, CHUNKS) for s in range(STAGES)]
spans = simulate(orders, lambda stage, what: (1 if what == "F" else 2) / CHUNKS)
held = [most_kept(order) / CHUNKS for order in orders]
print(f"{CHUNKS} chunks: idle {idle(spans)[0]:.1%}, formula {bubble(STAGES, MICRO, CHUNKS):.1%}")
print(f"held at most {held}; 1F1B: {[most_kept(one_f_one_b(s, STAGES, MICRO)) for s in range(STAGES)]}")

# %% [markdown]
r"""
It costs v times as many messages, nearly, and memory: more forwards run ahead, and the first stage holds 1 + (p − 1)/(pv) times what it holds in 1F1B (Korthikanti et al. 2022). *Predict:* from four stages with two micro-batches
each, what brings more, twice the micro-batches or two chunks? (Micro-batches must be a multiple of the stages.)
"""

# %% tags=["nbval-ignore-output"]
figures.schedule_widget(interleaved, simulate)

# %% [markdown]
r"""
## Two stages that work

A stage is the GPT with all else removed, and parameters keep their names. One thing is in two places: `wte` embeds in the first stage and is the head in the last. Each computes the part of the gradient
that it sees. *Both* need the sum, or the two copies drift apart and neither is the tied matrix any more.
"""


# %%
#| export parallel.pipeline
def stage_of(model: GPT, stage: int, stages: int) -> GPT:
    """The GPT with only what this stage needs, in place, by the old names. ValueError if there are too many stages."""
    n, parts = model.config.n_layer, model.transformer
    if stages > n:
        raise ValueError(f"n_layer={n} blocks cannot be cut into {stages} stages; take at most {n}")
    mine = torch.arange(n).tensor_split(stages)[stage].tolist()
    parts.h = nn.ModuleDict({str(i): parts.h[i] for i in mine})
    if stage > 0:
        del parts["wpe"]
    if stage < stages - 1:
        del parts["ln_f"], model.lm_head
    if 0 < stage < stages - 1:
        del parts["wte"]
    return model


# %%
#| export parallel.pipeline
def forward_stage(part: GPT, x: Tensor, targets: Tensor) -> Tensor:
    """From ids (B, T) in the first stage, else the activations (B, T, C) before: those after, or in the last the loss."""
    parts = part.transformer
    if "wpe" in parts:
        x = parts.drop(parts.wte(x) + parts.wpe(torch.arange(x.size(1), device=x.device)))
    for block in parts.h.values():
        x = block(x)
    return part.head(x, targets)[1] if "ln_f" in parts else x


# %% [markdown]
r"""
The step follows its stage's order. For autograd the graph ends at the stage's border: what came in is a leaf, whose gradient goes back; what went out gets its gradient from the next stage.

In 1F1B two neighbours often send to each other at the same moment: one an activation, the other a gradient. If each sent first, and waited until the other receives, both would wait for ever. So what an operation has made is sent in one batch with what the next operation needs.
"""


# %%
#| export parallel.pipeline
# A forward's output goes to the next stage and its input comes from the one before; with backward it is the other way.
TO, FROM = {"F": 1, "B": -1}, {"F": -1, "B": 1}


def neighbour(op: tuple | None, ranks: Ranks, by: dict[str, int]) -> int | None:
    """The rank to which an operation's message goes, or from which it comes; None at the pipeline's ends."""
    other = ranks.rank + by[op[0]] if op else -1
    return other if 0 <= other < ranks.size else None


def swap(message: Tensor | None, before: tuple | None, op: tuple | None, shape: tuple, ranks: Ranks):
    """Send what the operation before has made and receive what this one needs, at once (nccl#479): that, or None."""
    to, source = neighbour(before, ranks, TO), neighbour(op, ranks, FROM)
    ends, came = [], None
    if to is not None:
        ends.append(dist.P2POp(dist.isend, message, to))
    if source is not None:
        came = torch.empty(shape, device=ranks.device)
        ends.append(dist.P2POp(dist.irecv, came, source))
    for work in dist.batch_isend_irecv(ends) if ends else []:
        work.wait()
    return came


# %%
#| export parallel.pipeline
def pipeline_step(part: GPT, micro_batches: list, ranks: Ranks, schedule) -> tuple[Tensor, list]:
    """Forward and backward of micro-batches [(x, y), ...]: their mean loss, and spans as simulate's; next is add_tied."""
    shares, held, spans = target_shares(micro_batches), {}, []
    loss, message, before = torch.zeros((), device=ranks.device), None, None
    shape = *micro_batches[0][0].shape, part.config.n_embd  # (B, T, C)
    for op in schedule(ranks.rank, ranks.size, len(micro_batches)):
        came, (what, i, chunk) = swap(message, before, op, shape, ranks), op
        began, before, (x, y) = time.perf_counter(), op, micro_batches[i]
        if what == "F":
            x = x if came is None else came.requires_grad_()
            held[i] = x, forward_stage(part, x, y)
            message = held[i][1].detach()
        else:
            x, out = held.pop(i)
            out.backward(shares[i] if came is None else came)  # d loss / d out
            message = x.grad
            if came is None:  # the last stage: out is the loss
                loss += torch.where(shares[i] > 0, shares[i] * out.detach(), 0.0)
        synchronize(ranks.device)
        spans.append((what, i, chunk, began, time.perf_counter()))
    swap(message, before, None, (), ranks)
    if ranks.size > 1:
        dist.broadcast(loss, ranks.size - 1)
    return loss, spans


# %%
#| export parallel.pipeline
def add_tied(part: GPT, ranks: Ranks) -> None:
    """wte's gradient: what the first stage found as embedding and the last as head, added up at both ends."""
    last = ranks.size - 1
    if last and ranks.rank in (0, last):
        grad, other = part.transformer.wte.weight.grad, last - ranks.rank
        came = torch.empty_like(grad)
        ends = [dist.P2POp(dist.isend, grad, other), dist.P2POp(dist.irecv, came, other)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        grad += came


# %%
#| export drills.pipeline
WAYS = {"1F1B": one_f_one_b, "GPipe": gpipe, "tied not added": one_f_one_b}


def trained_in_stages(way: str, ranks: Ranks, data: str, steps: int) -> tuple[list[float], dict]:
    """Losses of some steps and the first gradients of all stages, by name."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    part, losses, first = stage_of(model, ranks.rank, ranks.size), [], {}
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(pipeline_step(part, masked(stream), ranks, WAYS[way])[0].item())
        if way != "tied not added":
            add_tied(part, ranks)
        first = first or {name: p.grad.to("cpu", copy=True) for name, p in part.named_parameters()}
        optimizer.step()
    return losses, {name: grad for stage in gathered(ranks, first) for name, grad in stage.items()}


# %%
#| export drills.pipeline
def timeline(ranks: Ranks, data: str, steps: int = 8) -> dict:
    """When which operation ran in each stage, in the fastest of some steps: seconds on this machine's clock."""
    model, _, stream = fresh(Ranks(device=ranks.device), data)
    part = stage_of(model, ranks.rank, ranks.size)
    runs = [gathered(ranks, pipeline_step(part, masked(stream), ranks, one_f_one_b)[1]) for _ in range(steps)]
    return {
        "spans": min(runs, key=lambda spans: max(s[-1][-1] for s in spans) - min(s[0][-2] for s in spans))
    }


DRILLS = {"same": partial(compared, ways=WAYS, trained=trained_in_stages), "timeline": timeline}

# %% [markdown]
r"""
## Two processes

Now all of it for real. The drills train one small model for a few steps: in one process, over the ring, in a pipeline, and in three ways that are wrong on purpose. *Own positions* counts each rank's
tokens from 0; *mean of means* weighs ranks that have few targets like those with many; *tied not added* leaves each copy of `wte` with its own part of the gradient.

*Predict.* Which of the three are seen in the first loss? How many of the model's tensors get a wrong gradient from the last?
"""

# %%
predict("21c.4", "wrong gradients if the tied one is not added", guess=None)


# %%
def report(told):
    """A line a way; those that are wrong on purpose must be, the others not."""
    for way, found in told.items():
        apart, losses = found["apart"].values(), found["losses"]
        wrong = f"{sum(x > 1e-4 for x in apart)} of {len(apart)} gradients are not those of one process"
        assert (max(apart) > 1e-4) == (way in WRONG), f"{way}: {wrong}"
        print(f"{way:14} losses {losses[0]:.3f} to {losses[-1]:.3f}: {wrong}")


WRONG = "own positions", "mean of means", "tied not added"
names = "drills.ring:sent", "drills.ring:same", "drills.pipeline:same", "drills.pipeline:timeline"
torchrun("21c", N, "drill", *names, "--data", DATA, "--out", OUT)
told, expected = json.loads(Path(OUT).read_text()), bytes_sent(N, B=2, T=64, C=64, size=4)
sent = told["drills.ring:sent"]
assert tuple(sent.values()) == expected, f"{sent} were sent, not {expected}"
print(f"bytes as predicted: {expected[0]:,} forward, {expected[1]:,} backward")
report(told["drills.ring:same"] | told["drills.pipeline:same"])
answer("21c.4", sum(x > 1e-4 for x in told["drills.pipeline:same"]["tied not added"]["apart"].values()))

# %% [markdown]
r"""
Why are the right ones not equal to the last bit? Float32 addition rounds. The ring adds a row's tiles in another order, the all-reduce adds the ranks' parts, and the tied gradient comes in two parts: a few 10⁻⁷ of a gradient's length
(the tests print it). What is wrong is orders of magnitude beyond, and yet each of these losses falls. The tied matrix is the quietest: the first loss is right, and so are all other gradients. Comparing `wte` at both ends finds it.

Time, now measured: the share in which each stage waits. The formula takes all stages for equally slow, and sending for free. Here the last stage has the head and the loss, and operations of a few milliseconds wait for Python
and for whatever else these cores do: an indication, no more.
"""

# %% tags=["nbval-ignore-output"]
spans = told["drills.pipeline:timeline"]["spans"]
shares, m = ", ".join(f"{share:.0%}" for share in idle(spans)), len(spans[0]) // 2
print(f"1F1B, {N} stages, {m} micro-batches, idle: measured {shares}, formula {bubble(N, m):.0%}")
show(figures.schedules({"measured": spans}, "seconds"), alt="Two stages in turn, with gaps of uneven size.")

# %% tags=["nbval-ignore-output"]
predictions("21c")

# %%
checkpoint("21c")

# %% [markdown]
r"""
## Exercises

1. *Striped.* Brandon et al. 2023 give rank r the tokens r, r + n, r + 2n, … Count the pairs by rank for n = 4, T = 64. *Check:* the largest and the smallest differ by T/n × (n − 1); is that much?
   Which tiles would need a mask?
2. *Gather.* Write Llama 3's way: a cache whose `layer` gathers all keys and values (`torch.distributed.nn.functional.all_gather`, which has a backward), sorts them by position, and attends with a mask from positions. *Check:*
   `tests/parallel/test_ch21c_ring.py` with your class in place of `ContextParallel`.
3. *Merge.* Let `F.scaled_dot_product_attention` compute two halves of the keys; from both outputs and logsumexps make the whole. *Check:* against `absorb`. This is how a ring uses fused kernels.
4. *A slow stage.* Give `simulate` a last stage that takes twice as long. *Check:* for many micro-batches the idle share of the others tends to one half; what would you move?
5. *Blocking.* Let `swap` call `dist.send` first and `dist.recv` afterwards, and run `drill drills.pipeline:same --seconds 5` under torchrun. *Check:* does it end with gloo, for small rows and for large ones? NCCL's send is allowed to wait for the other's receive (nccl#784).

## Further reading

- Liu, Zaharia and Abbeel 2023, *Ring Attention with Blockwise Transformers for Near-Infinite Context*, §3. Brandon et al. 2023, *Striped Attention*: the imbalance, and another cure.
- Grattafiori et al. 2024, *The Llama 3 Herd of Models*, §3.3.2: tensor, context, pipeline and data parallelism together.
- Huang et al. 2019, *GPipe*, §2. Narayanan et al. 2019, *PipeDream*: 1F1B without a flush, and the stale weights that it costs.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, §2.2. Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*.
"""
