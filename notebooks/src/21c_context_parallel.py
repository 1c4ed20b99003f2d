# %% [markdown]
r"""
# 21c · Context parallel: a row over several ranks, and layers over several ranks

Data parallelism deals out rows, tensor parallelism deals out weights. Neither helps a row that is too long for one GPU: what
blocks keep for backward grows with T, whatever is done about weights. *Context parallelism* deals out the
tokens of one row. Everything in GPT-2 treats tokens one by one, except attention, and chapter 12 has shown how attention takes its
keys in pieces. Here the pieces lie on other ranks.

The second part cuts the model by layers instead, and asks what the ranks do while they wait: *pipeline parallelism*.
"""

# %%
#| default_exp ring
#| doc ring: Context parallelism: a row's tokens over several ranks, attention by keys and values that travel in a ring.
import json
from pathlib import Path

import torch

from course.figures import context_parallel as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.attention import attention_weights
from nanogpt.corpus import ensure_corpus
from nanogpt.roofline import PEAKS
from nanogpt.scaling import Cluster

DATA, OUT = "../data/built/stories", "../data/built/drill-21c.json"
N, RANKS, T = 2, 4, 64  # processes, for which a laptop has two cores; ranks on paper; tokens of a row
STAGES, MICRO, CHUNKS = (
    4,
    8,
    2,
)  # of a pipeline on paper: stages, micro-batches, parts of the model that a stage has
g = torch.Generator().manual_seed(0)
_ = ensure_corpus(DATA)

# %%
#| export
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nanogpt.distributed import Ranks, gathered, replicate
from nanogpt.drill import LR, fresh, masked
from nanogpt.flash import absorb, flash_attention, tile, tile_backward, tile_scores
from nanogpt.model import GPT
from nanogpt.optim import make_optimizer
from nanogpt.train import train_step

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
        raise ValueError(
            f"T={T} cannot be cut into {count} equal chunks for {len(split)} ranks; take a multiple of {count}"
        )
    chunks = torch.arange(T).view(count, -1)
    return torch.stack([chunks[held].flatten() for held in split])


# %%
splits = {"contiguous": contiguous(RANKS), "zigzag": zigzag(RANKS)}
for name, split in splits.items():
    pairs = (positions(T, split) + 1).sum(1)  # the query at position t sees t + 1 keys
    print(
        f"{name:10} chunks {split}: pairs by rank {pairs.tolist()}, slowest {pairs.max() / pairs.float().mean():.3f} of the mean"
    )
pairs = (positions(T, splits["contiguous"]) + 1).sum(1)
answer("21c.1", (pairs[-1] / pairs.float().mean()).item())
show(
    figures.masks({name: positions(T, split) for name, split in splits.items()}),
    alt="The causal triangle coloured by the rank of the query: four bands of growing area, and eight bands in which each colour comes twice, once short and once long.",
)

# %% [markdown]
r"""
All wait for the slowest, so the contiguous split costs nearly twice the average on many ranks: (2n − 1)/n, for chunks of many tokens. The *zigzag* pairs each
early chunk with the late one that mirrors it. The sum of positions of a pair is the same for all ranks. So the balance is exact:
"""

# %%
for n in range(1, 17):
    for length in (2 * n, 6 * n, 64 * n):
        work = (positions(length, zigzag(n)) + 1).sum(1)
        assert work.unique().numel() == 1, f"{length} tokens over {n} ranks: {work.tolist()} pairs"
        assert int(work.sum()) == length * (length + 1) // 2, "a pair is missing, or counted twice"
print(
    "1 to 16 ranks, three lengths each: all ranks have the same number of pairs, together the whole triangle"
)

# %% [markdown]
r"""
## Chapter 12's tiles, spread out

`absorb` takes in scores and values that arrive in pieces, in any order, and keeps m, total and o for each row. A chunk's queries against a chunk's keys are
one tile. Whether it is needed is known from the numbers of the chunks alone: future tiles are skipped, on the diagonal a mask applies, the past counts in full.
"""


# %%
#| export
def cut(z: Tensor, chunks: list[int]) -> list[Tensor]:
    """A rank's rows (..., T/n, d) chunk by chunk, in float32 or better."""
    size = z.size(-2) // len(chunks)
    return [tile(z, i * size, size) for i in range(len(chunks))]


def tiles(mine: list[int], theirs: list[int]) -> list[tuple[int, int, bool]]:
    """Tiles of my queries and their keys that are not future: place in mine, place in theirs, whether on the diagonal."""
    return [(i, j, a == b) for i, a in enumerate(mine) for j, b in enumerate(theirs) if b <= a]


# %%
#| export
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
def by_turns(q, k, v, split):
    """Ring attention with n ranks in one process; q, k, v (..., T, d)."""
    n, where = len(split), positions(q.size(-2), split)
    qs, ks, vs = ([z[..., rows, :] for rows in where] for z in (q, k, v))
    seen = [nothing_seen(qs[rank], split[rank]) for rank in range(n)]
    for step in range(n):
        for rank in range(n):
            owner = (rank - step) % n
            take_in(qs[rank], ks[owner], vs[owner], split[rank], split[owner], seen[rank])
    out = torch.cat([merged(s)[0] for s in seen], -2)
    return out[..., where.flatten().argsort(), :]  # back in the order of the row


q, k, v = (z.requires_grad_() for z in torch.randn(3, 2, 4, T, 16, generator=g))
grad = torch.randn(q.shape, generator=g)
whole = attention_weights(q, k) @ v
wanted = torch.autograd.grad(whole, (q, k, v), grad)
for name, split in splits.items():
    out = by_turns(q, k, v, split)
    found = torch.autograd.grad(out, (q, k, v), grad)
    apart = max((a - b).abs().max().item() for a, b in zip((out, *found), (whole, *wanted)))
    assert apart < 1e-5, f"{name}: {apart:.1e} from attention over the whole row"
    work = [[len(tiles(split[r], split[r - s])) for r in range(RANKS)] for s in range(RANKS)]
    print(f"{name:10} equals attention over the whole row, with gradients; tiles by step and rank: {work}")

# %% [markdown]
r"""
Look at the steps. In the contiguous split each step after the first has a rank that computes a full tile and ranks that compute none, and all pass on
together: the row takes as long as without a mask. In the zigzag each rank computes two tiles of a quarter of the size in every later step.

## The ring

Now with ranks. While a rank computes with the keys and values that it has, they are already on their way to the next one, and the previous one's
come in. `batch_isend_irecv` begins both at once: ranks that each send first and receive then could wait for each other for ever.

*Predict.* GPT-2 small in bf16, one row of 32,768 tokens on 8 ranks. How many MB does a rank send in one layer's forward pass? And in backward, with
gradients in float32, how many times that?
"""

# %%
predict("21c.2", "sent in a layer's forward pass", guess=None, unit="MB")
predict("21c.3", "backward, forward = 1", guess=None)


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
    _, n = place(group)
    split = split or zigzag(n)
    if len(split) != n:
        raise ValueError(f"the split is for {len(split)} ranks, the group has {n}")
    positions(q.size(-2) * n, split)
    return RingAttention.apply(q, k, v, split, group)


# %% [markdown]
r"""
One rank alone is a ring of one: nothing is sent, and the law of the derivative can be checked here. It does not test the ring, but every tile of it.
"""

# %%
tiny = [z.requires_grad_() for z in torch.randn(3, 1, 6, 2, generator=g, dtype=torch.float64)]
assert torch.autograd.gradcheck(ring_attention, tiny), "backward is not the derivative of forward"
assert torch.allclose(ring_attention(q, k, v), whole, atol=1e-5), "not attention over the whole row"
print("one rank: chapter 12's attention, and its derivative")


# %% [markdown]
r"""
What is sent, by counting in the code: keys and values make n − 1 hops in forward and again in backward, their gradients n.
"""


# %%
def sent(n, B, T, C, size, wide=4):
    """Bytes that a rank sends for one layer, forward and backward; size: bytes of a number, wide: of a gradient's."""
    numbers = 2 * B * C * T // n  # keys and values of a rank
    return (n - 1) * numbers * size, (n - 1) * numbers * size + n * numbers * wide


forward, backward = sent(n=8, B=1, T=32_768, C=768, size=2)
print(f"forward {forward / 1e6:.1f} MB, backward {backward / 1e6:.1f} MB, {backward / forward:.2f} as much")
answer("21c.2", forward / 1e6)
answer("21c.3", backward / forward)

# %% [markdown]
r"""
Can this hide behind the arithmetic? With c = T/n tokens a rank, each zigzag step computes half of a c × c tile, 2c²C operations in all heads, while 4cC bytes of
bf16 travel. Both grow with C; only one grows with c². So there is a length from which on the ring is free, whatever the model: c = 2F/B, for F operations
and B bytes a second. (Liu et al. 2023, §3, have F/B for a full tile.)
"""

# %%
cluster = Cluster(flops=PEAKS["H100"].half * 1e12)
for name, link in (("inside a machine", cluster.inside), ("between machines", cluster.between)):
    c = 2 * cluster.flops * cluster.mfu / link
    print(
        f"{name}, {link / 1e9:.0f} GB a second for a GPU: {c:,.0f} tokens a rank hide the ring, if {cluster.mfu:.0%} of an H100's peak is reached"
    )

# %% [markdown]
r"""
These are assumptions about links (`Cluster` names them), and the shape of the answer is what counts: context parallelism is for rows of tens of thousands of tokens. GPT-2's 1,024 would wait for the network.
Llama 3's training up to 131,072 tokens does it without a ring (§3.3.2 of the paper): it first gathers all keys and values, which grouped heads keep small, and then attends, so that masks by document stay easy. The
bytes are the same. The split is the zigzag.

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
                f"dropout={model.config.dropout}: ring attention holds no weights that it could drop; set dropout to 0"
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
        device = self.module.transformer.wpe.weight.device
        return positions(whole, self.split)[place(self.group)[0]].to(device)

    def layer(self, i: int):
        return self.attend

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ring_attention(q, k, v, self.group, self.split)

    def newest(self, x: Tensor) -> Tensor:
        return x  # every token has a target


# %% [markdown]
r"""
Two details decide whether this is the same model. A token's *position* is its place in the row, not on the rank. And ranks have *unequal numbers of targets*: where a document was masked, a rank may have none at all; a mean of the
ranks' means would weigh its tokens wrongly (chapter 20).

The drill trains one model in several ways, two of which are wrong on purpose. *Predict.* Which differ from one process in the first loss already, and which only in the gradient?
"""

# %%
predict("21c.4", "ways that differ in the first loss", guess=None)


# %%
#| export
class OwnPositions(ContextParallel):
    """Wrong on purpose: each rank counts its tokens from 0."""

    def positions(self, T: int) -> Tensor:
        return torch.arange(T, device=self.module.transformer.wpe.weight.device)


WAYS = {
    "one process": None,
    "contiguous": lambda model, n: ContextParallel(model, split=contiguous(n)),
    "zigzag": lambda model, n: ContextParallel(model),
    "own positions": lambda model, n: OwnPositions(model),
    "mean of means": lambda model, n: ContextParallel(model),
}


# %%
#| export
def trained(way: str, ranks: Ranks, data: str, steps: int) -> tuple[list[float], Tensor]:
    """Losses of some steps, and the first gradient; all ranks read the same rows."""
    model, _, stream = fresh(Ranks(device=ranks.device), data)
    who = Ranks(device=ranks.device) if way == "one process" else ranks
    wrapped = WAYS[way](model, ranks.size) if WAYS[way] else model
    replica, optimizer, losses = replicate(wrapped, who), make_optimizer(model, LR), []
    for step in range(steps):
        batch = masked(stream)
        if WAYS[way]:
            batch = [tuple(wrapped.columns(z) for z in pair) for pair in batch]
        mean = None if way == "mean of means" else who.mean
        losses.append(ranks.mean(train_step(replica, optimizer, batch, mean=mean)).item())
        if step == 0:
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    return losses, gradient


# %%
#| export
def same(ranks: Ranks, data: str, steps: int = 4) -> dict:
    """The same steps in all ways: losses, and how far the first gradient is from that of one process."""
    found, one = {}, None
    for way in WAYS:
        losses, gradient = trained(way, ranks, data, steps)
        one = gradient if one is None else one
        found[way] = {"losses": losses, "gradient": ((gradient - one).norm() / one.norm()).item()}
    return found


# %%
#| export
def attention(ranks: Ranks, data: str, B: int = 2, heads: int = 4, T: int = 64, d: int = 16) -> dict:
    """Ring attention beside chapter 12's, forward and backward: how far apart on the worst rank, and the bytes sent."""
    whole = torch.randn(4, B, heads, T, d, generator=torch.Generator().manual_seed(0))
    rows, batch, sent = positions(T, zigzag(ranks.size))[ranks.rank], dist.batch_isend_irecv, []
    q, k, v, g = (z[..., rows, :].contiguous().requires_grad_() for z in whole)
    dist.batch_isend_irecv = lambda ops: (sent.append(ops[0].tensor.nbytes), batch(ops))[1]
    found = [out := ring_attention(q, k, v)]
    forward = sum(sent)
    found += torch.autograd.grad(out, (q, k, v), g)
    dist.batch_isend_irecv = batch
    q, k, v, g = (z.requires_grad_() for z in whole)
    wanted = [out := flash_attention(q, k, v), *torch.autograd.grad(out, (q, k, v), g)]
    apart = max((a - b[..., rows, :]).abs().max().item() for a, b in zip(found, wanted))
    return {"apart": max(gathered(ranks, apart)), "forward": forward, "backward": sum(sent) - forward}


DRILLS = {"attention": attention, "same": same}


# %%
torchrun("21c", N, "drill", "ring:attention", "ring:same", "--data", DATA, "--out", OUT)
told = json.loads(Path(OUT).read_text())
ring = told["ring:attention"]
assert ring["apart"] < 4e-6, f"ring attention is {ring['apart']:.1e} from chapter 12's"
expected = sent(N, B=2, T=64, C=64, size=4)
assert (ring["forward"], ring["backward"]) == expected, f"{ring} were sent, not {expected}"
print(
    f"{N} ranks: chapter 12's attention and gradients; sent by each {ring['forward']:,} bytes forward, {ring['backward']:,} backward"
)
same = told["ring:same"]
one = same["one process"]
for way, found in same.items():
    losses = [abs(a - b) for a, b in zip(found["losses"], one["losses"])]
    near = "as one process, to rounding" if max(*losses, found["gradient"]) < 1e-4 else "ANOTHER gradient"
    print(f"{way:14} first loss {found['losses'][0]:.3f}, last {found['losses'][-1]:.3f}: {near}")
answer("21c.4", sum(abs(found["losses"][0] - one["losses"][0]) > 1e-4 for found in same.values()))

# %% tags=["nbval-ignore-output"]
for way, found in same.items():
    apart = max(abs(a - b) for a, b in zip(found["losses"], one["losses"]))
    print(f"{way:14} gradient {found['gradient']:.1e} of its length away, losses up to {apart:.1e} nats")

# %% tags=["nbval-ignore-output"]
predictions("21c")

# %%
checkpoint("21c")
