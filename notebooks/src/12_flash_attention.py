# %% [markdown]
r"""
# 12 · Flash attention: never write the T×T matrix

Attention gives every token a weight for every earlier token. For T tokens, these weights are a matrix of T × T numbers, and
every head of every layer has its own. The matrix is computed, used once, and then kept for the backward pass. If the context
gets twice as long, the matrices take four times the memory. But the result of attention has only T rows. Do we need the
matrix at all?

In this chapter we do without it. First we find out how to compute a softmax from scores that arrive in pieces. From this one
idea we build *flash attention* in plain PyTorch, forward and backward. At the end we count what it saves. Chapter 12b then
looks at PyTorch's own kernels, which do the same, and measures them.
"""

# %%
#| default_exp labs.kernels.flash
#| doc labs.kernels.flash: Attention in tiles with an online softmax: no T×T matrix.
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

from course.figures import flash_attention as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import seed_everything
from nanogpt.labs.roofline.memory import saved_bytes
from nanogpt.model import attention_weights
from nanogpt.labs.roofline.sheets import peak_of

g = seed_everything(0)
torch.set_printoptions(precision=3, sci_mode=False)

# %%
lengths = [2**n for n in range(8, 16)]
heads, layers, C = 12, 12, 768  # GPT-2 small
weights = [layers * heads * T**2 * 4 / 2**30 for T in lengths]
rows = [layers * 4 * T * C * 4 / 2**30 for T in lengths]
show(
    figures.kept_by_length(lengths, weights, rows),
    alt="Memory of attention for one sequence, log scale: the T by T weights grow with slope 2 and pass 80 GiB, what has T rows grows with slope 1.",
)
print(f"T={lengths[2]}: weights {weights[2]:.2f} GiB, rows {rows[2]:.2f} GiB")

# %% [markdown]
r"""
The figure shows how much memory one sequence needs in GPT-2 small. At GPT-2's context of 1,024 tokens, the weights take four
times as much as q, k, v and the output together. Both axes are logarithmic, so a straight line with slope 1 is something
that doubles with the context, and a line with slope 2 is something that grows fourfold. At 16,384 tokens the weights of a
single sequence no longer fit into a GPU of 80 GiB.

*Predict.* Replace `None` by your guesses. The first: an attention that keeps no weights has to compute them a second time in
the backward pass. How many operations does it need, compared with chapter 04's attention? The second: softmax computes one
exponential for each score, and a product with q and one with v. On an H100, with GPT-2's heads of 64, how long do the
exponentials take compared with the products?
"""

# %%
predict("12.1", "operations of flash attention with 16 blocks, chapter 04's = 1", guess=None)
predict("12.2", "time of the exponentials on an H100, that of the products = 1", guess=None)

# %% [markdown]
r"""
## What is kept

We begin with chapter 04's attention, and ask what autograd keeps until the backward pass (`saved_bytes` is from chapter
09b). The tensors have the shape (1, heads, T, d), with two heads of d = 64.
"""


# %%
def manual_attention(q, k, v):
    """Chapter 04's attention, step by step. q, k, v: (..., T, d)."""
    return attention_weights(q, k) @ v


def random_qkv(T, heads=2, d=64, **options):
    """q, k, v, each (1, heads, T, d), that ask for gradients."""
    qkv = torch.randn(3, 1, heads, T, d, generator=g).to(**options)
    return [z.requires_grad_() for z in qkv.unbind(0)]


for T in (128, 256, 512, 1024):
    kept = saved_bytes(partial(manual_attention, *random_qkv(T)))
    print(f"T={T:4}   kept {kept:10,} bytes   the weights of two heads {2 * T * T * 4:10,} bytes")

# %% [markdown]
r"""
Check the last line by hand. q, k and v have 3 · 2 · 1024 · 64 numbers of 4 bytes, which is 1.6 million bytes. The weights
are 8.4 million bytes, and the boolean mask of 1024 × 1024 adds one million. Together that makes 11.0 million.

On the way to the weights there were other T × T matrices: the scores, the scaled scores, the masked scores. They are not
kept, but each of them was written to memory and read again. So without the matrices we would also move fewer bytes.

## Softmax of a stream

Take one query. Its scores arrive in blocks, each block with the values that it weighs. Every block is used once and then
thrown away. Attention wants the mean of the values, weighted by softmax. Written out, this is a fraction of two sums:

$$o = \frac{\sum_t e^{s_t}\, v_t}{\sum_t e^{s_t}}$$

Both sums can be collected block by block. That is already the whole algorithm, in its simplest form.
"""


# %%
def mean_of_stream(scores, values, block):
    """Softmax-weighted mean of values (n, d), seeing `block` of the scores (n,) at a time."""
    total, o = 0, 0
    for s, v in zip(scores.split(block), values.split(block)):
        total = total + s.exp().sum()
        o = o + s.exp() @ v
    return o / total


scores = torch.tensor([1.0, 3.0, 2.0, 0.0, 5.0, 1.0, 4.0])
values = torch.arange(14.0).view(7, 2)
print("in blocks of three:    ", mean_of_stream(scores, values, block=3))
print("softmax at once:       ", scores.softmax(0) @ values)
print("the same, scores × 50: ", mean_of_stream(50 * scores, values, block=3))

# %% [markdown]
r"""
The means agree. But larger scores break it: $e^{250}$ is too large for float32 and becomes infinity, and infinity divided by
infinity is `nan`. An ordinary softmax avoids this. It first subtracts the largest score m, so that no exponent is positive.
The factor $e^{-m}$ is in both sums and cancels:

$$o = \frac{\sum_t e^{s_t - m}\, v_t}{\sum_t e^{s_t - m}}$$

In a stream we do not know the largest score yet. So let m be the largest score *so far*. We keep three things: m, the
denominator (`total`), and the numerator (`o`). Suppose that the next block brings a larger score m′. Then every term that we
have summed is too large by the same factor, because

$$e^{s - m'} = e^{s - m}\; e^{m - m'}$$

One multiplication by $e^{m - m'}$ repairs both sums. We do not need the old scores for that. This is called *online softmax*
(Milakov and Gimelshein 2018, algorithm 3; Dao et al. 2022, §3.1).
"""

# %%
#| export
#| blank absorb: find the new maximum, shrink the old sums to it, add the new terms
import math

import torch
from torch import Tensor


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


# %%
def stream(scores, values, block):
    """m, total and o after each block of the scores (n,) with their values (n, d)."""
    m, total, o = torch.tensor([[-math.inf]]), torch.zeros(1, 1), torch.zeros_like(values[:1])
    for s, v in zip(scores.split(block), values.split(block)):
        m, total, o = absorb(s[None], v, m, total, o)
        yield m, total, o


for m, total, o in stream(scores, values, block=3):
    print(f"m = {m.item():.0f}   total = {total.item():.3f}   o / total = {(o / total)[0]}")

# %% [markdown]
r"""
Follow `total` by hand. The first block has the scores 1, 3, 2, so m = 3 and total = $e^{-2} + 1 + e^{-1}$ = 1.503. The
second block, 0, 5, 1, brings a larger score: m = 5. The old total shrinks to $1.503 \cdot e^{3-5}$ = 0.203, and the new
terms $e^{-5} + 1 + e^{-4}$ make it 1.228. The last block has only the score 4. It is no new maximum, so nothing shrinks, and
$e^{-1}$ is added: 1.596. The last mean is the one that softmax gave above.

*Check.* The result must be the same for any size of block and any order of the keys, also for scores whose exponential does
not exist in float32.
"""

# %%
scores, values = 200 * torch.randn(37, generator=g), torch.randn(37, 8, generator=g)
assert scores.exp().isinf().any(), "these scores are too small to overflow: take larger ones"
for block in range(1, 38):
    order = torch.randperm(37, generator=g)
    *_, (m, total, o) = stream(scores[order], values[order], block)
    assert torch.allclose(o / total, scores.softmax(0) @ values, atol=1e-6), f"block={block}: another mean"
print("37 block sizes, the keys in a random order each time: the same mean")

# %% [markdown]
r"""
So softmax can be computed from a stream. For each query, two numbers and one vector hold everything about the past: m, total
and o. The figure shows the terms $e^{s - m}$ after each block. A block with a new maximum shrinks all earlier bars.
"""

# %%
shown = torch.tensor([0.5, 1.5, 1.0, 0.0, 2.5, 2.0, 0.5, 1.0, 3.2, 1.4, 0.2, 2.2])

show(
    figures.after_blocks(shown, block=4),
    alt="Bars of exp(score minus m) after one, two and three blocks of four keys: each new maximum shrinks the earlier bars.",
)


# %% [markdown]
r"""
*Predict.* Does the last picture depend on the size of a block? Do the pictures on the way? Choose a size, then feed in one
block after the other.
"""

# %% tags=["nbval-ignore-output"]
figures.block_widget(shown)

# %% [markdown]
r"""
## Tiles

Now we take all queries. We cut the queries into blocks of rows, and the keys into blocks of columns, so that the T × T
matrix of scores falls into *tiles*. A block of queries walks over the blocks of keys, and keeps m, total and o for each of
its rows. At any moment only one tile of scores exists.

The causal mask makes three kinds of tiles. In the past every score counts. On the diagonal a small mask hides the future. A
tile above the diagonal is all future, so we never compute it.
"""

# %%
show(
    figures.tiles(6),
    alt="Six by six tiles: below the diagonal all of a tile counts, on it a mask applies, above it tiles are skipped.",
)
for n in (1, 2, 6, 16, 64):
    print(f"{n:2} blocks: {n * (n + 1) // 2:5,} of {n * n:5,} tiles computed, {(n + 1) / (2 * n):.3f}")


# %% [markdown]
r"""
With n blocks there are n(n + 1)/2 tiles up to the diagonal, out of n². Many small tiles save nearly half of the work. A
single tile saves nothing.

Two small functions do the work of a tile. The first cuts out some rows, and converts them to float32 if they have 16 bits. A
sum over thousands of keys is no place for bfloat16's 8 bits (chapter 10), and the published kernel sums in float32 as well.
The second computes the scores. It is chapter 04's `attention_weights` up to the softmax.
"""


# %%
#| export
#| blank tile_scores: as in attention_weights, but without the softmax, and masked on the diagonal only
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


# %%
q, k, v = random_qkv(4, heads=1, d=2)
for start in (0, 2):  # four tokens in blocks of two: the two tiles of the second block of queries
    scores = tile_scores(tile(q, 2, 2), tile(k, start, 2), diagonal=start == 2)
    print(f"queries 2 and 3, keys {start} and {start + 1}:\n{scores[0, 0].detach()}")

# %% [markdown]
r"""
The first tile is in the past. The second is on the diagonal: query 2 must not see key 3.

The forward pass is two loops around `absorb`. Besides the output it returns one number for each row, the logarithm of
softmax's denominator, $L = m + \ln \text{total}$. With it any weight can be computed again later, without its neighbours:
$p_{ts} = e^{s_{ts} - L_t}$. The backward pass will need that.
"""


# %%
#| export
#| blank flash_forward: for each tile of queries absorb all tiles of keys up to the diagonal, then divide
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


# %%
q, k, v = random_qkv(100)
for block in (1, 7, 32, 100, 128):
    out, logsumexp = flash_forward(q, k, v, block)
    worst = (out - manual_attention(q, k, v)).abs().max().item()
    assert worst < 1e-5, f"block={block}: differs from chapter 04's attention by up to {worst:.1e}"
    print(f"block {block:3}: out {tuple(out.shape)}, logsumexp {tuple(logsumexp.shape)}, as chapter 04's")

# %% [markdown]
r"""
## Backward without the weights

The forward pass is $o_t = \sum_s p_{ts} v_s$. Let $g_t$ be the gradient of the loss with respect to $o_t$. The gradients of
the values and of the weights follow at once:

$$dv_s = \sum_t p_{ts}\, g_t \qquad dp_{ts} = g_t \cdot v_s$$

Next comes the softmax. Its derivative couples all keys of a row:

$$ds_{ts} = p_{ts}\,\Big(dp_{ts} - \sum_u p_{tu}\, dp_{tu}\Big)$$

The sum seems to need the whole row of weights. But put in $dp_{tu} = g_t \cdot v_u$:

$$\sum_u p_{tu}\, dp_{tu} = \sum_u p_{tu}\; g_t \cdot v_u = g_t \cdot \sum_u p_{tu}\, v_u = g_t \cdot o_t$$

This is a product of two vectors that we already have. We call it $D_t$, one number for each row. Now every tile of $ds$ can
be computed by itself: we compute its scores again, get p from L, and then

$$ds_{ts} = p_{ts}\,(dp_{ts} - D_t), \qquad dq_t = \tfrac{1}{\sqrt d} \sum_s ds_{ts}\, k_s, \qquad
dk_s = \tfrac{1}{\sqrt d} \sum_t ds_{ts}\, q_t$$

(Dao et al. 2022, appendix B.2). In the code, the outer loop goes over the keys, as in the paper: a GPU then writes each row
of dk and dv only once.
"""


# %%
#| export
#| blank tile_backward: p from the logsumexp, then ds = p (grad vᵀ - D)/√d, then three products
def tile_backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, logsumexp: Tensor, D: Tensor, diagonal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What one tile adds to dq, dk and dv, its weights recomputed; logsumexp and D (..., rows, 1) are of its rows."""
    p = (tile_scores(q, k, diagonal) - logsumexp).exp()  # (..., rows, columns)
    ds = p * (grad @ v.transpose(-2, -1) - D) / math.sqrt(q.size(-1))
    return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ grad


# %%
#| export
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


# %%
q, k, v = random_qkv(100)
grad = torch.randn(q.shape, generator=g)
expected = torch.autograd.grad(manual_attention(q, k, v), (q, k, v), grad)
with torch.no_grad():
    out, logsumexp = flash_forward(q, k, v, 32)
    found = flash_backward(grad, q, k, v, out, logsumexp, 32)
for name, ours, autograd in zip(("dq", "dk", "dv"), found, expected):
    assert torch.allclose(ours, autograd, atol=1e-5), f"{name} differs from autograd's"
    print(f"{name}: as autograd's through the T×T matrix")

# %% [markdown]
r"""
Autograd does not know yet that these two functions belong together. `torch.autograd.Function` tells it. Its forward runs
without a graph, so autograd keeps only what we save: q, k, v, the output and L.
"""

# %%
#| export
from torch.autograd.function import once_differentiable


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


# %%
#| export
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


# %% [markdown]
r"""
*Check.* Is the backward pass the derivative of the forward pass? `gradcheck` moves each input by a tiny amount, in float64,
and compares the change of the output with our gradients.
"""

# %%
q, k, v = random_qkv(5, heads=1, d=2, dtype=torch.float64)
for block in (1, 2, 3, 5, 8):
    fine = torch.autograd.gradcheck(partial(flash_attention, block=block), (q, k, v))
    assert fine, f"block={block}: the backward pass is not the derivative of the forward pass"
print("gradcheck passed for 5 block sizes")

# %% [markdown]
r"""
*Check.* Can a row see the future? We put `nan` into the values from position 40 on, and count the rows that stay clean.
There are 64 rows, so 40 of them should.
"""

# %%
q, k, v = random_qkv(64)
with torch.no_grad():
    v[..., 40:, :] = math.nan
    for name, attention in (("manual", manual_attention), ("tiles of 8", partial(flash_attention, block=8))):
        bad = attention(q, k, v)[0, 0].isnan().any(dim=-1)  # (T,)
        print(f"{name:10} {64 - bad.sum().item()} clean rows")
assert bad.sum() == 24, "in tiles, a row that sees no bad value became bad, or the other way round"

# %% [markdown]
r"""
The manual version has no clean row at all, although its mask is right. It gives the future the weight zero, but zero times
`nan` is `nan`. Our version never touches a tile of the future, so nothing can leak from there. (Within a tile on the
diagonal the zeros are multiplied as well. With tiles of 7, position 40 would not be the first of its tile, and the rows
before it in this tile would become bad.)
"""

# %% [markdown]
r"""
## More arithmetic, fewer bytes

Does our version compute more, or less? It skips the future, which saves nearly half of the tiles. On the other hand it
computes the scores twice. The manual version needs two products of T × T × d forward (scores, output) and four backward (dv,
dp, dq, dk). Ours needs a fifth one backward, the scores. So with n blocks we expect a share of
$\frac{7}{6} \cdot \frac{n+1}{2n}$. PyTorch can count the operations:
"""


# %%
def count_flops(attention, q, k, v):
    """FLOPs of the matrix products in a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        attention(q, k, v).sum().backward()
    return counter.get_total_flops()


q, k, v = random_qkv(512)
manual = count_flops(manual_attention, q, k, v)
for block in (512, 128, 32):
    assert 512 % block == 0, f"block={block} does not divide 512, and the formula is for blocks of one size"
    ours, n = count_flops(partial(flash_attention, block=block), q, k, v), 512 // block
    print(f"block {block:3}: {ours / manual:.4f} of the manual operations,", end=" ")
    print(f"expected {7 / 6 * (n + 1) / (2 * n):.4f}")
    assert ours * 12 * n == manual * 7 * (n + 1), f"block={block} computes more tiles than the past, or fewer"
answer("12.1", ours / manual)

# %% [markdown]
r"""
A single block skips nothing, so it pays for seven products instead of six. With 16 blocks, skipping saves more than
recomputing costs.

The larger gain is in the bytes. Suppose that a tile, and the rows that it needs, stay in the fastest memory of the device
(on a GPU: registers and shared memory). How many numbers does a forward pass then read and write in main memory? The manual
version writes and reads T × T numbers in each of its steps: product, scaling, mask, softmax, and the product with v. The
tiled version reads the earlier keys and values once for every block of queries.
"""

# %%
T, d = 1024, 64
manual = 4 * T * d + 8 * T * T  # q, k, v and the output; T×T: four times written, four times read
print(
    f"manual:    {manual / 1e6:5.2f} million numbers, {4 * d * T * T / (2 * manual):4.0f} FLOP/byte in bfloat16"
)
for block in (16, 64, 128, 256):
    n = -(-T // block)  # the last block may be smaller; it counts as a whole one
    tiles = n * (n + 1) // 2
    moved = 2 * T * d + tiles * 2 * block * d  # q and the output; keys and values of each tile
    flops = tiles * 4 * block**2 * d
    print(f"block {block:3}: {moved / 1e6:5.2f} million numbers, {flops / (2 * moved):4.0f} FLOP/byte")
for name in ("A100-80GB", "H100"):
    peak = peak_of(name)
    print(f"the roofline of the {name} has its ridge at {1e3 * peak.half / peak.bandwidth:.0f} FLOP/byte")

# %% [markdown]
r"""
The manual version does about 16 operations for each byte. An A100 could do 153 in the same time, so it waits for memory.
Tiles of 128 move twelve times fewer numbers. This is the point of the paper, and it is in its title: *IO-awareness* (Dao et
al. 2022, theorem 2).

Tiles of 128 are still left of the ridge. For any length and any d, this count allows them 128 operations for each byte at
most, which is 43% of an H100's ridge. And yet FlashAttention-3 reaches up to 75% of the peak (Shah et al. 2024, abstract).
The count is too strict, because it fetches keys and values from main memory for every block of queries. But the keys and
values of a head are only 256 KiB here, and the second-level cache of an H100 holds 50 MiB. So repeated reads need not reach
main memory. The T × T matrices of the manual version are too large for such a cache: for 16 sequences of GPT-2 each of them
takes 384 MiB in bfloat16.

A block cannot grow at will. With 128 rows and d = 64 in bfloat16, the tiles of q, k and v take 48 KiB, and their scores 64
KiB in float32. A multiprocessor of an H100 has 228 KiB of shared memory and 256 KiB of registers (NVIDIA, *H100 white
paper*, 2022).

### Two more limits of a GPU

**Exponentials.** A roofline has two roofs, arithmetic and memory. Attention meets a third one. Exponentials are computed by
units of their own, and there are few of these. An H100 does 989 TFLOP/s of 16-bit matrix products, but only 3.9 trillion
exponentials a second (Shah et al. 2024, §3.1). A tile needs one exponential and 4d operations of products for each score.

**Blocks.** A GPU has many multiprocessors (an H100 has 132), and each block of queries runs on one of them. There are B ·
heads · T/128 blocks of 128 queries. If there are fewer blocks than multiprocessors, the others have nothing to do (Dao 2023,
§3.2).
"""

# %%
shares = {d: (1 / 3.9e12) / (4 * d / 989e12) for d in (64, 128, 256)}
for d, share in shares.items():
    print(f"d = {d:3}: the exponentials take {share:.2f} of the time of the products")
answer("12.2", shares[64])
for B, T in ((1, 128), (1, 1024), (16, 1024)):
    blocks = B * 12 * math.ceil(T / 128)
    print(
        f"B={B:2}, T={T:4}, 12 heads: {blocks:4} blocks, work for {min(blocks, 132)} of 132 multiprocessors"
    )

# %% [markdown]
r"""
GPT-2's heads have d = 64. There the exponentials take as long as all products, so a kernel must do both at the same time,
and FlashAttention-3 does: while one group of threads computes exponentials, another group multiplies (§3.1). With wider
heads the exponentials weigh less. What does a real kernel reach? PyTorch's own on an H100 took 0.048 ms forward for 8 texts of 1,024 tokens with
GPT-2's heads, in float16 (`h100-day.json`). With half of the T × T pairs counted this is 266 TFLOP/s, 27% of the
peak, where large products reach 78%. How much of the difference is due to the exponentials, we have not measured; texts of 1,024 tokens are also short.

The second half of the output is one reason why short texts gain little on a GPU. One text of 128 tokens has 12 blocks, and
leaves nine tenths of an H100 without work. With 16 texts of 1,024 tokens, every multiprocessor gets eleven or twelve blocks.
The backward pass cuts its keys into blocks in the same way.
"""

# %% [markdown]
r"""
## Checkpoint

The package now has flash attention that you can read. Our version is slow, because it pays for a Python call and several
small kernels in each tile. Chapter 12b shows who runs the same algorithm fast.
"""

# %%
predictions("12")

# %%
checkpoint("12")

# %% [markdown]
r"""
## Exercises

`course exercises release 12` writes these as a notebook to `released/`; `course check 12` runs their visible checks. They
belong to chapters 12 and 12b.

- **12-1** Two streams become one, 20 minutes: merge two softmax states, as when many workers share one query.
- **12-2** Tiles of a window, 30 minutes: which tiles a sliding window needs.
- **12-3** New queries, old keys, 10 minutes: repair `is_causal` for a chunk of new queries after a cache.
- **12-4** What attention keeps, 15 minutes: bytes kept with and without the matrix, for a model of your own numbers.
- **12-5** A check for attention in tiles, 30 minutes: write the check; it is tried on wrong implementations.
- **12-6** More arithmetic, less time, 10 minutes: explain it in words.

To explore:

1. Sliding window: let `flash_forward` and `flash_backward` compute only the tiles of 12-2. *Check:* equal to
   a masked manual version for w = 1, 5, T; `count_flops` grows linearly in T for fixed w.
2. Dropout: give `flash_attention` a `p` and a seed. Draw the mask of tile (i, j) from a generator seeded with
   (seed, i, j), in the forward pass and again in the backward pass. *Check:* `gradcheck` passes with the seed
   fixed, and `saved_bytes` is the same as without dropout. What becomes of $D_t = g_t \cdot o_t$?
3. Time `flash_attention` against `block` from 16 to 1024 at T = 2048. *Check:* explain both ends of the curve
   with the number of tiles, the bytes moved, and the size of your caches.

## Further reading

- M. Milakov, N. Gimelshein, [*Online normalizer calculation for softmax*](https://arxiv.org/abs/1805.02867), 2018, §3.
- M. Rabe, C. Staats, [*Self-attention Does Not Need O(n²) Memory*](https://arxiv.org/abs/2112.05682), 2021: the same identity, for memory alone.
- T. Dao et al., [*FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*](https://arxiv.org/abs/2205.14135), 2022, §3 and
  appendix B: the algorithms, and theorem 2 on bytes moved.
- T. Dao, [*FlashAttention-2*](https://arxiv.org/abs/2307.08691), 2023, §3: queries in the outer loop, one logsumexp, and blocks for every multiprocessor.
- J. Shah et al., [*FlashAttention-3*](https://arxiv.org/abs/2407.08608), 2024, §3.1: products and exponentials at the same time.
"""
