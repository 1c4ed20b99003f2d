# %% [markdown]
r"""
# 12 · Flash attention: never write the T×T matrix

Attention gives every token a weight for every earlier token: for T tokens a matrix of T×T, per head, per layer.
It is computed, used once, and kept for the backward pass. Twice the context, four times the memory. The answer
has only T rows. Does the matrix have to exist at all?
"""

# %%
#| default_exp speed.flash
#| doc speed.flash: Attention in tiles with an online softmax: no T×T matrix.
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course.figures import flash_attention as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.gpt.attention import attention_weights
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.precision import why_not
from nanogpt.speed.roofline import measure, peak_of
from nanogpt.speed.work import memory_by_category, saved_bytes

device, g = pick_device(), seed_everything(0)
scale = pick_scale(device)

# %%
lengths = [2**n for n in range(8, 16)]
heads, layers, C = 12, 12, 768  # GPT-2 small
weights = [layers * heads * T**2 * 4 / 2**30 for T in lengths]
rows = [layers * 4 * T * C * 4 / 2**30 for T in lengths]
show(
    figures.kept_by_length(lengths, weights, rows),
    alt="Memory of attention for one sequence, log scale: the T by T weights grow with slope 2 and pass 80 GiB, what has T rows grows with slope 1.",
)

# %% [markdown]
r"""
## Predict

1. Softmax divides by a sum over *all* scores, after subtracting the largest of *all*. Can it be computed from
   scores that arrive in pieces, each piece seen once and thrown away?
2. A version that keeps no weights must compute them a second time in the backward pass. At a context of 2,048 tokens, how
   many times as long as the manual version does it take?
3. `F.scaled_dot_product_attention` is called "flash attention" in many scripts. With `dropout_p=0.1` on a CPU: how many
   T×T matrices a head does it keep?
4. With fused attention, when does a whole training step need the most memory: at the end of the forward pass, in the loss,
   in the middle of the backward pass, or during the update? And how much does GPT-2 small need then?
"""

# %%
predict("12.1", "time of fused attention, manual = 1", guess=None)
predict("12.2", "T×T matrices a head that dropout brings back", guess=None)
predict("12.3", "peak of a step of GPT-2 small, 4 × 1024 tokens, float32", guess=None, unit="GiB")

# %% [markdown]
r"""
## What is kept

`attention_weights` from chapter 04, and what autograd holds on to until the backward pass:
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
    kept = saved_bytes(lambda: manual_attention(*random_qkv(T)))  # noqa: B023
    print(f"T={T:4}   kept {kept:10,} bytes   one T×T matrix per head {2 * T * T * 4:10,} bytes")

# %% [markdown]
r"""
q, k and v, one float32 matrix of weights for each head, and the boolean mask. On the way there were more T×T
matrices: scores, scaled scores, masked scores, each written to memory and read again. So it is also a matter of
bytes moved.

## Build: softmax of a stream

Begin with one query. Its scores arrive in blocks, each with the values that they weigh. Softmax subtracts the
largest score m first, so that no exponential overflows:

$$o = \frac{\sum_t e^{s_t - m}\, v_t}{\sum_t e^{s_t - m}}$$

Suppose that m is only the largest score *so far*. Keep the two sums apart, numerator $o$ and denominator
$\text{total}$. When a block brings a larger score m′, every term summed so far is too large by the same factor:
$e^{s - m'} = e^{s - m}\, e^{m - m'}$. One multiplication repairs both sums, and the past itself is not needed.
(Milakov and Gimelshein 2018, algorithm 3; Dao et al. 2022, §3.1.)
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


# %% [markdown]
r"""
Seven scores in blocks of three, two values each. Follow m, total and o:
"""


# %%
def stream(scores, values, block, order=None):
    """Softmax-weighted mean of values (n, d), seeing `block` scores at a time; yields m, total, o after each."""
    blocks = list(zip(scores.split(block), values.split(block)))
    m, total, o = torch.tensor([[-math.inf]]), torch.zeros(1, 1), torch.zeros_like(values[:1])
    for i in order or range(len(blocks)):
        s, v = blocks[i]
        m, total, o = absorb(s[None], v, m, total, o)
        yield m, total, o


scores = torch.tensor([1.0, 3.0, 2.0, 0.0, 5.0, 1.0, 4.0])
values = torch.arange(14.0).view(7, 2)
for m, total, o in stream(scores, values, block=3):
    mean = [round(x, 3) for x in (o / total)[0].tolist()]
    print(f"m = {m.item():.0f}   total = {total.item():.3f}   o / total = {mean}")
print("softmax at once:         ", [round(x, 3) for x in (scores.softmax(0) @ values).tolist()])

# %% [markdown]
r"""
*Check.* The law: any block size, any order of blocks, also for scores whose exponential does not exist in float32.
"""

# %%
scores, values = 200 * torch.randn(37, generator=g), torch.randn(37, 8, generator=g)
assert scores.exp().isinf().any(), "these scores are too small to overflow: take larger ones"
for block in range(1, 38):
    order = torch.randperm(math.ceil(37 / block), generator=g).tolist()
    *_, (m, total, o) = stream(scores, values, block, order)
    assert torch.allclose(o / total, scores.softmax(0) @ values, atol=1e-6), f"block={block}: another mean"
print("37 block sizes, each in a random order: the same mean")

# %% [markdown]
r"""
Answer 1: yes. Per row, two numbers and a vector carry everything: m, total and o. The figure shows the weights as
they stand after each block. A block with a new maximum pushes all earlier ones down.
"""

# %%
shown = torch.tensor([0.5, 1.5, 1.0, 0.0, 2.5, 2.0, 0.5, 1.0, 3.2, 1.4, 0.2, 2.2])

show(
    figures.after_blocks(shown, block=4),
    alt="Bars of exp(score minus m) after one, two and three blocks of four keys: each new maximum shrinks the earlier bars.",
)


# %% [markdown]
r"""
*Predict:* does the picture after the last block depend on the size of a block? Does one on the way? Choose a size, then feed in
one block after the other.
"""

# %% tags=["nbval-ignore-output"]
figures.block_widget(shown)

# %% [markdown]
r"""
## Build: tiles

Now all queries. Cut them into blocks of rows and the keys into blocks of columns. A block of queries walks over
the blocks of keys and holds m, total and o for its rows. What exists at any moment is one tile of scores. With a
causal mask there are three kinds of tile: in the past, on the diagonal, in the future. The last kind is never
computed.
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
Scores are made in float32 at least, whatever the inputs are: a sum over thousands of keys is no place for
bfloat16's 8 bits (chapter 10). In the published kernel it is the same.
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


# %% [markdown]
r"""
The forward pass is two loops. Besides the output it returns one number per row, the log of the softmax's
denominator, $L = m + \ln \text{total}$. With it any weight can be had again later, alone:
$p_{ts} = e^{s_{ts} - L_t}$.
"""


# %%
#| export
#| blank flash_forward: for each tile of queries absorb all tiles of keys up to the diagonal, then divide
def flash_forward(q: Tensor, k: Tensor, v: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Causal attention tile by tile (Dao 2023, algorithm 1): the output (..., T, d) and logsumexp (..., T, 1)."""
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
    print(
        f"block {block:3}: out {tuple(out.shape)}, logsumexp {tuple(logsumexp.shape)}, agrees: {worst < 1e-5}"
    )

# %% [markdown]
r"""
## Build: backward without the weights

From $o_t = \sum_s p_{ts} v_s$ and the gradient $g_t$ of the loss with respect to $o_t$:

$$dv_s = \sum_t p_{ts}\, g_t \qquad dp_{ts} = g_t \cdot v_s$$

Softmax's derivative couples all keys of a row: $ds_{ts} = p_{ts}\,(dp_{ts} - \sum_u p_{tu}\, dp_{tu})$. That sum
looks as if it needed the whole row. But

$$\sum_u p_{tu}\, dp_{tu} = \sum_u p_{tu}\; g_t \cdot v_u = g_t \cdot o_t$$

which is a product of two vectors that we have. Call it $D_t$. Then every tile of $ds$ can be made alone: recompute
the scores, get p from L, and

$$ds_{ts} = p_{ts}\,(dp_{ts} - D_t), \qquad dq_t = \tfrac{1}{\sqrt d} \sum_s ds_{ts}\, k_s, \qquad
dk_s = \tfrac{1}{\sqrt d} \sum_t ds_{ts}\, q_t$$

(Dao et al. 2022, appendix B.2.) Here the outer loop goes over keys, so that dk and dv are each written once.
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
        k_j, v_j = tile(k, j, block), tile(v, j, block)
        for i in range(j, T, block):  # queries before these keys never saw them
            rows, columns = slice(i, i + block), slice(j, j + block)
            q_i, g_i = tile(q, i, block), tile(grad, i, block)
            row = logsumexp[..., rows, :], D[..., rows, :]
            parts = tile_backward(q_i, k_j, v_j, g_i, *row, diagonal=i == j)
            for whole, place, part in zip((dq, dk, dv), (rows, columns, columns), parts):
                whole[..., place, :] += part
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


# %%
q, k, v = random_qkv(100)
grad = torch.randn(q.shape, generator=g)
expected = torch.autograd.grad(manual_attention(q, k, v), (q, k, v), grad)
with torch.no_grad():
    out, logsumexp = flash_forward(q, k, v, 32)
    found = flash_backward(grad, q, k, v, out, logsumexp, 32)
for name, ours, autograd in zip(("dq", "dk", "dv"), found, expected):
    print(f"{name}: agrees with autograd through the T×T matrix: {torch.allclose(ours, autograd, atol=1e-5)}")

# %% [markdown]
r"""
`torch.autograd.Function` joins the two. Its forward runs without a graph, so nothing is kept but what it saves
itself: the inputs, the output and L.
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
## Check: laws

**It is the derivative.** `gradcheck` compares the backward pass with finite differences, in float64:
"""

# %%
q, k, v = random_qkv(5, heads=1, d=2, dtype=torch.float64)
for block in (1, 2, 3, 5, 8):
    fine = torch.autograd.gradcheck(lambda q, k, v: flash_attention(q, k, v, block), (q, k, v))  # noqa: B023
    assert fine, f"block={block}: the backward pass is not the derivative of the forward pass"
print("gradcheck passed for 5 block sizes")

# %% [markdown]
r"""
**The future cannot be seen**, not even a NaN in it. The manual version computes scores with the future first and
masks them afterwards; ours never touches a tile of it. One difference follows:
"""

# %%
q, k, v = random_qkv(64)
with torch.no_grad():
    v[..., 40:, :] = math.nan
    ours, manual = flash_attention(q, k, v, block=8), manual_attention(q, k, v)
clean = lambda y: [t for t in range(64) if not y[0, 0, t].isnan().any()]  # noqa: E731
print(
    f"a NaN in values 40 and later: {len(clean(ours))} clean rows in ours, {len(clean(manual))} in the manual version"
)

# %% [markdown]
r"""
Zero times NaN is NaN: a weight of exactly zero does not shield a row from a bad value, a skipped tile does.

**Fewer operations, counted.** Causal skipping saves nearly half of the tiles. The backward pass makes the scores
once more: 5 products of a tile instead of 4. With n blocks, all in all $\frac{7}{6} \cdot \frac{n+1}{2n}$ of the
manual version's operations:
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
    ours = count_flops(lambda q, k, v: flash_attention(q, k, v, block), q, k, v)  # noqa: B023
    n = 512 // block
    print(
        f"block {block:3}: {ours / manual:.4f} of the manual operations, predicted {7 / 6 * (n + 1) / (2 * n):.4f}"
    )
    assert ours * 12 * n == manual * 7 * (n + 1), f"block={block} computes more tiles than the past, or fewer"

# %% [markdown]
r"""
Half of answer 2: recomputing is paid for by skipping. The clock has the other half, at the end. And what does it
save? Count the numbers that a forward pass moves, if a tile and its rows stay in the fastest memory (on a GPU: registers and
shared memory). The manual version writes and reads T×T at each of its steps: product, scaling, mask,
softmax, product. The tiled one reads all earlier keys and values once per block of queries. For one head
with d = 64:
"""


# %%
def numbers_moved(T, d, block=None):
    """Numbers read and written in the forward pass of one head; block=None: the manual version."""
    if block is None:
        return 4 * T * d + 8 * T * T  # q, k, v, out; T×T: 4 times written, 4 times read
    n = math.ceil(T / block)
    return 2 * T * d + n * (n + 1) // 2 * block * 2 * d  # q, out; keys and values of each tile


T, d = 1024, 64
for block in (None, 16, 64, 128, 256):
    moved, n = numbers_moved(T, d, block), math.ceil(T / (block or T))
    flops = 4 * d * T * T * (n + 1) / (2 * n)  # two products for each tile computed
    once = moved if block is None else 4 * T * d  # q, k, v and the output
    name = "manual" if block is None else f"block {block}"
    print(f"{name:10} {moved / 2**20:6.2f} million numbers: {flops / (2 * moved):4.0f} FLOP/byte", end=" ")
    print(f"in bfloat16; {flops / (2 * once):4.0f} where memory is read once")
for name in ("A100-SXM4-80GB", "H100 80GB HBM3"):
    peak = peak_of(f"NVIDIA {name}")
    print(f"ridge of the {name}'s roofline: {1e3 * peak.half / peak.bandwidth:.0f} FLOP/byte ({peak.source})")

# %% [markdown]
r"""
By the first column a block of 128 would leave an H100 at a third of its peak; FlashAttention-3 reports 75% (Shah et al.
2024, abstract). The first column charges every reading of keys and values to memory. But one head's are 256 KiB here, and
the L2 cache of such a GPU holds 40 to 50 MiB: the second reading need not reach memory. If none does, the last column
counts, and it is right of the ridge. The manual version has no such help: its matrices are T×T for all heads and
sequences at once, 384 MiB each for 16 sequences of GPT-2 in bfloat16. That difference is the paper's point, in its title: *IO-awareness* (Dao
et al. 2022, theorem 2).

A block cannot grow at will. With 128 rows and d = 64 in bfloat16, tiles of q, k and v take 48 KiB and their scores
64 KiB in float32; a multiprocessor of an H100 has 228 KiB of shared memory and 256 KiB of registers (NVIDIA, *H100 white
paper*, 2022).

## `scaled_dot_product_attention`: which one did I get?

PyTorch has the same algorithm as compiled kernels, behind one function with several *backends*: flash,
memory-efficient, cuDNN, and *math*, which is the manual version. It chooses by device, dtype, shape and options,
and does not say so. Two questions have an answer on every device. Which one ran? The result's place in the
autograd graph carries the kernel's name. Why not flash? Allow nothing else, and read the complaint. (A T4 gets
"Efficient": the flash kernel wants compute capability 8.0. Memory is linear in T all the same.)
"""

# %%
#| export
import torch.nn.functional as F


def sdpa_backend(q: Tensor, k: Tensor, v: Tensor, **options) -> str:
    """The kernel that F.scaled_dot_product_attention chooses when it trains on these tensors, such as "Flash".

    "math" means step by step, with T×T in memory. options: as for that function. Tensors (B, n_head, T, d).
    """
    q, k, v = (z.detach().requires_grad_() for z in (q, k, v))
    name = F.scaled_dot_product_attention(q, k, v, **options).grad_fn.name()
    if not name.startswith("ScaledDotProduct"):
        return "math"  # several operations in a row, each with a name of its own
    return name.removeprefix("ScaledDotProduct").split("Attention")[0] or "fused"


# %% tags=["nbval-ignore-output"]
half = torch.float16 if why_not("bf16", device) else torch.bfloat16  # a GPU before Ampere has no bfloat16
for kind in (torch.float32, half):
    qkv = random_qkv(64, device=device, dtype=kind)
    print(f"{device.type}, {str(kind)[6:]}: {sdpa_backend(*qkv, is_causal=True)}")

# %% [markdown]
r"""
Now on the CPU, where everybody sees the same. *Predict:* which of these keep the flash kernel?
"""

# %%
T = 1024
q, k, v = random_qkv(T)
past = torch.ones(T, T, dtype=torch.bool).tril()
bias = torch.zeros(T, T).masked_fill(~past, -math.inf)
cases = {
    "is_causal=True": dict(is_causal=True),
    "a boolean mask": dict(attn_mask=past),
    "a fixed bias": dict(attn_mask=bias),
    "a learned bias": dict(attn_mask=bias.clone().requires_grad_()),
    "dropout_p=0.1": dict(is_causal=True, dropout_p=0.1),
}
print(f"{'kept for backward, in T×T per head':>44}")
for name, options in cases.items():
    kept = saved_bytes(lambda: F.scaled_dot_product_attention(q, k, v, **options))  # noqa: B023
    print(f"{name:16} {sdpa_backend(q, k, v, **options):6} {kept / (2 * T * T * 4):19.2f}")
answer("12.2", kept // (2 * T * T * 4))

# %% [markdown]
r"""
Answer 3 is in the last row: on the CPU, dropout brings T×T matrices back, and nothing is said. (On CUDA the flash kernel has
dropout: it draws the same random numbers again in the backward pass, from a saved seed and offset.) A transposed
head, float32 on a GPU, a head that is too wide: each may end elsewhere. Ask for the reason:
"""


# %%
def why_not_flash(q, k, v, **options):
    """PyTorch's own words for why the flash kernel cannot run, or None where it can."""
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        warnings.simplefilter("always")
        try:
            F.scaled_dot_product_attention(q, k, v, **options)
        except RuntimeError:
            reasons = [str(w.message).split(" (Triggered")[0] for w in caught][1:]  # the first is a heading
            return " ".join(reasons) or "refused without a word"


# %% tags=["nbval-ignore-output"]
for name in ("is_causal=True", "a learned bias", "dropout_p=0.1"):
    reason = why_not_flash(q, k, v, **cases[name])
    runs = sdpa_backend(q, k, v, **cases[name]) == "Flash"
    assert (reason is None) == runs, (
        f"{name}: flash {'runs' if runs else 'does not run'}, but the reason is {reason}"
    )
    print(f"{name}: {reason or 'flash runs'}")

# %% [markdown]
r"""
For a training script that counts on the memory, forbid *math* and nothing else. Then a silent fallback is an error, and
PyTorch still chooses among the fused kernels; which of them is the fastest differs by GPU and by release.
"""

# %%
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
with sdpa_kernel(FUSED), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the reasons again
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
    try:
        F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
    except RuntimeError as error:
        print("dropout:", str(error).split(".")[0])

# %% [markdown]
r"""
**Masks.** `is_causal=True` and a boolean triangle give the same output. But a mask is itself T×T, and to the
kernel it is data: it cannot skip tiles that it has to look up.
"""

# %%
with torch.no_grad():
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    masked = F.scaled_dot_product_attention(q, k, v, attn_mask=past)
    assert torch.allclose(causal, masked, atol=1e-5), "is_causal and the boolean triangle differ"
    assert torch.allclose(causal, flash_attention(q, k, v, block=48), atol=1e-5), "our tiles differ from SDPA"
print("is_causal, the mask and our tiles: the same output")

# %% tags=["nbval-ignore-output"]
T = {"ci": 256, "laptop": 2048, "gpu": 8192}[scale]
q, k, v = random_qkv(T, device=device)
past = torch.ones(T, T, dtype=torch.bool, device=device).tril()
with torch.no_grad():
    skipping = measure(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), device, repeats=7)
    reading = measure(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=past), device, repeats=7)
print(f"T={T}: is_causal {skipping}, mask {reading}: {reading.median / skipping.median:.1f} ×")

# %% [markdown]
r"""
**A trap.** One new query, five keys: the last step of a generation with a cache (chapter 08). `is_causal=True`
aligns the triangle at the *top left*, as if the query stood at position 0:
"""

# %%
from torch.nn.attention.bias import causal_lower_right

query, keys = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 5, 4)  # equal scores: a plain mean
values = torch.arange(5.0).view(1, 1, 5, 1).expand(1, 1, 5, 4)
for name, options in {
    "is_causal=True": dict(is_causal=True),
    "causal_lower_right": dict(attn_mask=causal_lower_right(1, 5)),
    "no mask": {},
}.items():
    y = F.scaled_dot_product_attention(query, keys, values, **options)
    print(f"{name:18} mean of the values it saw: {y[0, 0, 0, 0].item():.1f}")

# %% [markdown]
r"""
The values are 0 to 4. With `is_causal` the newest token sees the oldest one only. That is why chapter 08's
cache builds its own mask, and why `flash_attention` asks for equal shapes.

## See: slopes 2 and 1

Memory first: what is kept for the backward pass (chapter 09's `saved_bytes`), and the most that both passes need at any
moment. On a GPU the allocator remembers that. On a CPU the profiler notes every allocation and release:
"""

# %%
#| export speed.work
import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def memory_levels(call: Callable[[], object]) -> list[tuple[int, int]]:
    """(ns, bytes above the level at the start) after each allocation and release on the CPU while `call` runs."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as prof:
        call()
    changes = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    levels = accumulate(event.nbytes() for event in changes)
    return [(event.start_ns(), level) for event, level in zip(changes, levels)]


# %%
#| export speed.work
def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Bytes that `call` needs at most, above what is allocated when it starts. On cuda and cpu; ValueError elsewhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"PyTorch keeps no peak of memory on {device.type}; measure on cuda or cpu")
    return max((level for _, level in memory_levels(call)), default=0)


# %%
def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def sdpa_math(q, k, v):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(q, k, v)


ways = {"manual": manual_attention, "SDPA, math": sdpa_math, "our tiles": flash_attention, "SDPA": sdpa}
Ts = {"ci": [128, 256, 512], "laptop": [256, 512, 1024, 2048], "gpu": [1024, 2048, 4096, 8192]}[scale]
on = dict(device=device, dtype=half if device.type == "cuda" else torch.float32)
long = len(Ts) > 1 and Ts[-1] >= 256
assert long, f"{Ts}: a slope needs two lengths, the last at least 256, or what has T rows hides T×T"

# %% [markdown]
r"""
*Predict* the slope between the two largest T, on log scales. 2 means four times as much for twice the context:
"""

# %%
counted = device if device.type == "cuda" else torch.device("cpu")
kept, peak = ({name: [] for name in ways} for _ in range(2))
for name, way in ways.items():
    for T in Ts:
        q, k, v = random_qkv(T, device=counted)
        way(q, k, v).sum().backward()  # libraries take their workspace once
        q.grad = k.grad = v.grad = None
        kept[name].append(saved_bytes(lambda: way(q, k, v)))  # noqa: B023
        peak[name].append(peak_memory(lambda: way(q, k, v).sum().backward(), counted))  # noqa: B023


def slope(y, x):
    return math.log(y[-1] / y[-2]) / math.log(x[len(y) - 1] / x[len(y) - 2])


for name in ways:
    print(f"{name:11} kept: slope {slope(kept[name], Ts):.2f}")
for name, tiled in {"manual": False, "SDPA, math": False, "our tiles": True, "SDPA": True}.items():
    s = slope(kept[name], Ts)  # 1 for T rows; with a T×T matrix towards 2, as q, k, v are in it as well
    assert abs(s - 1) < 0.01 if tiled else s > 1.3, f"{name}: what it keeps has slope {s:.2f} at T={Ts[-1]}"

# %% tags=["nbval-ignore-output"]
for name in ways:
    print(
        f"{name:11} peak: {peak[name][-1] / 2**20:6.1f} MiB at T={Ts[-1]}, slope {slope(peak[name], Ts):.2f}"
    )
    s = slope(peak[name], Ts)
    assert s < 1.05 if name in ("our tiles", "SDPA") else s > 1.3, f"{name}: slope {s:.2f} at T={Ts[-1]}"

# %% [markdown]
r"""
A peak below slope 1 still holds scratch of a fixed size: a tile, or some tiles for each thread. The rows will
outgrow it.

And the time of a forward and backward pass on this device. *Predict* the slopes. Flash attention leaves out the
future, but what remains are still T²/2 pairs.
"""

# %% tags=["nbval-ignore-output"]
seconds = {name: [] for name in ways}
for T in Ts:
    q, k, v = random_qkv(T, **on)
    for name, way in ways.items():
        if name == "our tiles" and device.type == "cuda" and T > 2048:
            continue  # 51 small kernels for each tile: a hundred thousand starts at T = 8192
        timing = measure(lambda: way(q, k, v).sum().backward(), device, repeats=5, warmup=1)  # noqa: B023
        seconds[name].append(min(timing.times))  # what the machine can do, whoever else is on it
for name, times in seconds.items():
    T, faster = Ts[len(times) - 1], seconds["manual"][len(times) - 1] / times[-1]
    print(
        f"{name:11} {1e3 * times[-1]:6.1f} ms at T={T}, {faster:.1f} × as fast, slope {slope(times, Ts):.2f}"
    )
share = seconds["SDPA"][-1] / seconds["manual"][-1]
print(f"answer 2: at T={Ts[-1]} the fused kernel takes {share:.2f} of the manual version's time")
answer("12.1", share)

# %% tags=["nbval-ignore-output"]
scaled = {
    "kept (MiB)": {name: [y / 2**20 for y in ys] for name, ys in kept.items()},
    "peak (MiB)": {name: [y / 2**20 for y in ys] for name, ys in peak.items()},
    "time (ms)": {name: [1e3 * y for y in ys] for name, ys in seconds.items()},
}
show(
    figures.slopes(Ts, scaled),
    alt="Log plots against T of memory kept, peak memory and time, with dotted lines of slope 1 and 2: manual and math memory rises with slope 2, that of tiles and SDPA with slope 1 or less.",
)

# %% [markdown]
r"""
Memory changes its power; time changes its factor. Both kinds of attention do work for each pair of tokens, so for
long contexts time has slope 2 with flash attention too. Below that, constant costs hide it; a slope above 2 can be memory
again, of matrices that no cache holds any more and that the system has to clear (chapter 09). Between our tiles and
SDPA lies no other algorithm: our loop pays for a Python call and several small kernels per tile.

A short context is another matter: there is little to save, and recomputing is still to be paid. The forward pass alone and
both passes, at 64 tokens and at more:
"""

# %% tags=["nbval-ignore-output"]
short = (64, Ts[-1] // 4)
for T in short:
    q, k, v = random_qkv(T, **on)
    both = {name: lambda way=way: way(q, k, v).sum().backward() for name, way in ways.items()}  # noqa: B023
    for what, calls in ("forward", {n: lambda w=w: w(q, k, v) for n, w in ways.items()}), ("both", both):  # noqa: B023
        times = {name: [] for name in ("manual", "SDPA")}
        for name in 3 * list(times):  # in turns
            times[name].append(min(measure(calls[name], device, repeats=5, warmup=1).times))
        print(f"T={T:4} {what:8} SDPA is {min(times['manual']) / min(times['SDPA']):.2f} × as fast")

# %% [markdown]
r"""
A factor below 1 says that at this context the fused kernel costs this machine more than it saves. Where it stands above 1 for the
forward pass and falls with the backward pass, recomputing is what costs.

And in a model? Two layers, one switch, the same loss. The difference in what is kept is that of the T×T matrices:
"""

# %%
loss, kept = {}, {}
for T in (128, 512):
    idx = torch.randint(0, 64, (2, T + 1), generator=g)
    for flash in (False, True):
        config = GPTConfig(block_size=T, vocab_size=64, n_layer=2, n_head=4, n_embd=64, flash=flash)
        model = GPT(config, generator=torch.Generator().manual_seed(0))
        kept[flash] = saved_bytes(lambda: model(idx[:, :-1], idx[:, 1:])[1], exclude=model.parameters())  # noqa: B023
        loss[flash] = model(idx[:, :-1], idx[:, 1:])[1].item()
    matrices = config.n_layer * 2 * config.n_head * T * T * 4
    print(
        f"T={T}: loss {loss[False]:.3f} and {loss[True]:.3f}, kept {kept[False] / 2**20:.2f} and {kept[True] / 2**20:.2f} MiB, weights T×T {matrices / 2**20:.2f} MiB"
    )

# %% [markdown]
r"""
## The peak of a step

Chapter 09's categories of memory do not all exist at once: gradients appear while activations go. So when is the peak? At
the end of the forward pass all activations exist, and the logits. The backward pass begins with the loss: a gradient of
the log-probabilities, and from it one of the logits, N × V numbers each. During the update all gradients exist; AdamW on
the CPU needs two more buffers as large as the largest matrix.
"""


# %%
def peak_by_moment(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes at three moments of a float32 step with AdamW, by a loop that holds the logits until the step ends.

    With a vocabulary of no more than a few C, a moment within the last layer's backward pass can lie a little higher.
    """
    memory, table = memory_by_category(config, B, T), 4 * B * T * config.vocab_rows
    held = memory["parameters"] + memory["optimizer"] + table
    largest = 4 * max(config.vocab_rows, config.block_size, 4 * config.n_embd) * config.n_embd
    return {
        "end of forward": held + memory["activations"],
        "loss, backward": held + memory["activations"] + 2 * table,
        "update": held + 16 * B * T + memory["gradients"] + 2 * largest,
    }


# %%
B, T = 2, 128
config = GPTConfig(block_size=T, vocab_size=4096, n_layer=4, n_head=4, n_embd=128)
model, idx = GPT(config, generator=g), torch.randint(config.vocab_size, (2, B, T), generator=g)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    _, loss = model(*idx)  # `_` holds the logits until the step returns
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


step()  # makes the moments
states = [t for state in optimizer.state.values() for t in state.values()]
before = sum(t.nbytes for t in (*model.parameters(), *states, idx))

# %% tags=["nbval-ignore-output"]
moments, levels = peak_by_moment(config, B, T), memory_levels(step)
show(
    figures.memory_levels(levels, before, moments),
    alt="Memory during one step: it climbs through the forward pass, jumps at the start of the backward pass, then falls. Three predicted levels are dotted.",
)
share = (before + max(level for _, level in levels)) / max(moments.values())
print(
    f"measured peak: {share:.4f} of the highest of", {m: f"{n / 2**20:.2f} MiB" for m, n in moments.items()}
)
assert 0.99 < share < 1.05, "the peak lies elsewhere: is the vocabulary much larger than n_embd?"

# %% [markdown]
r"""
The peak is a needle. It lies in the loss: logits, log-probabilities and both of their gradients, four tables of N × V
numbers. (Three, where the loop lets the logits go: `loss = model(x, y)[1]`, as chapter 07's step does.) Gradient
checkpointing, which drops activations, does not touch it. A loss in pieces does (at the end, to explore). For GPT-2's vocabulary:
"""

# %%
for size in (1, 4, 16):
    peak, tables = max(peak_by_moment(GPTConfig(), size, 1024).values()), 4 * 4 * size * 1024 * 50257
    print(f"GPT-2 small, B={size:2}: peak {peak / 2**30:5.1f} GiB, four tables {tables / 2**30:5.1f} GiB")
answer("12.3", max(peak_by_moment(GPTConfig(), 4, 1024).values()) / 2**30)

# %% tags=["nbval-ignore-output"]
predictions("12")

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("12")

# %% [markdown]
r"""
## Exercises

`course exercises release 12` writes these as a notebook to `released/`; `course check 12` runs their visible checks.

- **12-1** Two streams become one, 20 minutes: two softmax states become one, as when many workers share one query.
- **12-2** Tiles of a window, 30 minutes: the mask, and the tiles that must be computed.
- **12-3** New queries, old keys, 10 minutes: a chunk of new queries after a cache, and `is_causal`.
- **12-4** What attention keeps, 15 minutes: bytes kept with and without the matrix, for a model of your own numbers.
- **12-5** A check for attention in tiles, 30 minutes: a check that tells attention from what only looks like it.
- **12-6** More arithmetic, less time, 10 minutes: more arithmetic and less time, in words.

To explore:

1. Sliding window: let `flash_forward` and `flash_backward` compute the tiles of 12-2 only. *Check:* equal to
   a masked manual version for w = 1, 5, T; `FlopCounterMode` grows linearly in T for fixed w.
2. Dropout: give `flash_attention` a `p` and a seed. Draw the mask of tile (i, j) from a generator seeded with
   (seed, i, j), in the forward pass and again in the backward pass. *Check:* `gradcheck` passes with the seed
   fixed, and `saved_bytes` is the same as without dropout. What becomes of $D_t = g_t \cdot o_t$?
3. Time `flash_attention` against `block` from 16 to 1024 at T = 2048. *Check:* explain both ends of the curve
   with `numbers_moved`, the number of tiles and the size of your caches.
4. Compute the loss in four pieces of the batch, with `lm_head` and `cross_entropy` inside
   `torch.utils.checkpoint.checkpoint`. *Check:* the same loss and gradients to 1e-6; `peak_memory` falls, by what
   `peak_by_moment` says.

## Further reading

- M. Milakov, N. Gimelshein, *Online normalizer calculation for softmax*, 2018, §3.
- M. Rabe, C. Staats, *Self-attention Does Not Need O(n²) Memory*, 2021: the same identity, for memory alone.
- T. Dao et al., *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness*, 2022, §3 and
  appendix B: the algorithms, and theorem 2 on bytes moved.
- T. Dao, *FlashAttention-2*, 2023, §3.1: queries in the outer loop, one logsumexp; and J. Shah et al.,
  *FlashAttention-3*, 2024, for what Hopper adds.
- PyTorch documentation, `torch.nn.attention.sdpa_kernel` and `torch.nn.functional.scaled_dot_product_attention`:
  backends and their conditions.
"""
