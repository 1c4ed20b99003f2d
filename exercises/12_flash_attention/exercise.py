# %% [markdown]
r"""
# Exercises 12 · Flash attention

No task needs another one's solution. `course check 12` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from course.variants import variant
from nanogpt.model import attention_weights

# %% [markdown]
r"""
## 12-1 · Two streams become one

*Build · difficulty 3/5 · importance 5/5 · 20 minutes*

A model that writes has one query and many keys. One worker would read them all in a row; a GPU has a hundred. So the keys are cut
into parts, each worker runs the chapter's online softmax over its own, and the states are merged afterwards
(Flash-Decoding, 2023). Ring attention merges states of other machines the same way.

A state is m, total and o as in `absorb`: the largest score, (..., 1); Σ exp(score − m), (..., 1); Σ exp(score − m) · value, (..., d).
Write `merge`: the state of both parts together. One of the two may have seen nothing yet: m = −∞, total = 0, o = 0.

Scores 1 and 3 with values 10 and 20 are the states (1, 1, 10) and (3, 1, 20). Merged: m = 3, total = 1 + e⁻² and
o = 20 + 10 e⁻².

<details><summary>Hint 1</summary>

Both sums of a state refer to its own m. What must they refer to before they can be added?
</details>

<details><summary>Hint 2</summary>

$e^{s - m'} = e^{s - m}\, e^{m - m'}$, for either state. One of the two factors is 1.
</details>

<details><summary>Hint 3</summary>

Scores of ±500 must not overflow: no exponent may be positive.
</details>
"""


# %%
#| solution 12-1
def merge(
    m1: Tensor, total1: Tensor, o1: Tensor, m2: Tensor, total2: Tensor, o2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The state (m, total, o) of two parts of a stream from the states of each. Shapes as in absorb."""
    ### BEGIN SOLUTION
    m = torch.maximum(m1, m2)
    shrink1, shrink2 = (m1 - m).exp(), (m2 - m).exp()
    return m, shrink1 * total1 + shrink2 * total2, shrink1 * o1 + shrink2 * o2
    ### END SOLUTION


# %%
#| check 12-1
one = [torch.tensor([x]) for x in (1.0, 1.0, 10.0)]
three = [torch.tensor([x]) for x in (3.0, 1.0, 20.0)]
for states in ((*one, *three), (*three, *one)):
    m, total, o = merge(*states)
    assert m.item() == 3, f"the largest score of both parts is 3, not {m.item():g}"
    assert torch.allclose(total, torch.tensor(1 + math.exp(-2))), (
        "total: both sums must refer to the same maximum"
    )
    assert torch.allclose(o, torch.tensor(20 + 10 * math.exp(-2))), (
        "o: it is rescaled as total is, not averaged"
    )
m, total, o = merge(torch.tensor([-math.inf]), torch.zeros(1), torch.zeros(1), *one)
assert (m.item(), total.item(), o.item()) == (1, 1, 10), "a part that has seen nothing must change nothing"

# %% [markdown]
r"""
## 12-2 · Tiles of a window

*Derive · difficulty 4/5 · importance 3/5 · 30 minutes*

With a window, a query at t sees the keys s with 0 ≤ t − s < window. Queries and keys are cut into blocks of `block`; tile (i, j) has
queries i·block … (i+1)·block − 1 and keys j·block … (j+1)·block − 1. A kernel must know, before it touches a tile, which kind it is:

- "skip": no pair of it is seen;
- "whole": every pair is seen, so no mask is needed;
- "masked": some are.

Write `kind(i, j, block, window)`, without building a mask: it is asked for millions of tiles. Then `computed(T, block, window)`, the number of
tiles that are not skipped, for T a multiple of `block`: a formula without a loop. With `block=4, window=6` a text of 16 has tiles

```
masked
masked masked
masked masked masked
skip   masked masked masked
```

<details><summary>Hint 1</summary>

Within a tile t − s takes all values from a smallest to a largest one. Which two corners are they?
</details>

<details><summary>Hint 2</summary>

Both depend on i − j alone. So tiles of one diagonal are of one kind, and in a text of n blocks the k-th diagonal below the main one has
n − k tiles.
</details>

<details><summary>Hint 3</summary>

The last diagonal that is computed is the largest k with k · block − (block − 1) < window. The text may end before it.
</details>
"""


# %%
#| solution 12-2
#| forbids torch
#| forbids loop in computed
def kind(i: int, j: int, block: int, window: int) -> str:
    """Whether tile (i, j) of block × block pairs is "skip", "whole" or "masked"."""
    ### BEGIN SOLUTION
    nearest, farthest = (i - j) * block - (block - 1), (i - j) * block + (block - 1)  # t - s in two corners
    if farthest < 0 or nearest >= window:
        return "skip"
    return "whole" if nearest >= 0 and farthest < window else "masked"
    ### END SOLUTION


def computed(T: int, block: int, window: int) -> int:
    """Number of tiles that are not skipped; T is a multiple of block."""
    ### BEGIN SOLUTION
    n = T // block
    last = min((window + block - 2) // block, n - 1)
    return (last + 1) * n - last * (last + 1) // 2
    ### END SOLUTION


# %%
#| check 12-2
said = [[kind(i, j, 4, 6) for j in range(4)] for i in range(4)]
assert said[0][0] == "masked", "a tile on the diagonal holds pairs of the future: it needs its mask"
assert said[0][1:] == ["skip"] * 3, "above the diagonal all pairs are future"
assert said[2][0] == "masked", "tile (2, 0): query 8 sees key 3, at a distance of 5"
assert said[3][0] == "skip", "tile (3, 0): its nearest pair is query 12 and key 3, at a distance of 9"
assert kind(1, 0, 4, 8) == "whole", "tile (1, 0) with window=8: distances 1 to 7, all seen"
assert computed(16, 4, 6) == 9, f"the table above has 9 tiles that are not skipped, not {computed(16, 4, 6)}"
assert computed(16, 4, 100) == 10, "a window beyond the text: all tiles up to the diagonal, and no others"

# %% [markdown]
r"""
## 12-3 · New queries, old keys

*Repair · difficulty 2/5 · importance 4/5 · 10 minutes*

A cache holds the keys and values of all T tokens; the last n of them are new, and have queries: q is (..., n, d), k and v are
(..., T, d), 1 ≤ n ≤ T. The line below is right while the prompt is read (n = T). From then on it is wrong, without an error. Repair it:
each new query sees all keys up to its own, as if the whole text had been read at once. Keep the call of `F.scaled_dot_product_attention`.

<details><summary>Hint 1</summary>

Let all scores be equal and the values be 0, 1, 2, …: the output is the mean of what a query saw. What does n = 1 print?
</details>

<details><summary>Hint 2</summary>

`is_causal=True` puts the triangle at the top left of the (n, T) matrix. Where must it stand?
</details>

<details><summary>Hint 3</summary>

`attn_mask` takes a boolean matrix in which True means: takes part. `tril` has a second argument.
</details>
"""


# %%
#| solution 12-3
def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last n positions of a text. q: (..., n, d); k, v: (..., T, d). Returns (..., n, d)."""
    ### BEGIN SOLUTION
    n, T = q.size(-2), k.size(-2)
    seen = torch.ones(n, T, dtype=torch.bool, device=q.device).tril(T - n)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    ### INSTEAD
    # return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ### END SOLUTION


# %%
#| check 12-3
same, places = (
    torch.zeros(1, 5, 4),
    torch.arange(5.0).view(1, 5, 1).expand(1, 5, 4),
)  # equal scores: a plain mean
for n, means in ((5, [0, 0.5, 1, 1.5, 2]), (1, [2]), (2, [1.5, 2])):
    got = attend(same[:, :n], same, places)[0, :, 0]
    assert torch.allclose(got, torch.tensor(means).float()), (
        f"{n} new of 5 tokens: the means of the places that they saw are {got.tolist()}, not {means}"
    )

# %% [markdown]
r"""
## 12-4 · What attention keeps

*Derive · difficulty 2/5 · importance 4/5 · 15 minutes*

For the model `mine` and a batch of B texts of T tokens, in float32, over all layers:

- `weights`: bytes of the T×T matrices of weights that attention step by step keeps for the backward pass (the boolean mask aside);
- `rows`: bytes that the chapter's `FlashAttention` keeps in their place: what its `save_for_backward` is given;
- `longest`: the greatest T for which `weights`, with this B, stays within `memory` bytes;
- `equal`: the T at which `weights` and `rows` are equally large.

<details><summary>Hint 1</summary>

Each head of each text in each layer has a matrix of its own. All heads together have n_embd channels.
</details>

<details><summary>Hint 2</summary>

It saves five tensors: four are as large as q, and one has a number for each row of each head.
</details>

<details><summary>Hint 3</summary>

For `equal`, divide both sides by what they share. Which of the model's numbers is left?
</details>
"""

# %%
mine = variant(
    "12-4",
    STUDENT,
    n_layer=[12, 24, 36, 48],
    heads_of=[(12, 48), (12, 64), (16, 64), (20, 80), (16, 96), (32, 128)],  # n_head, and the width of one
    B=[2, 4, 8],
    T=[1024, 2048, 3072, 4096],
    memory=[8 * 2**30, 16 * 2**30, 24 * 2**30],
)
n_head, d = mine["heads_of"]
mine |= {"n_head": n_head, "n_embd": n_head * d}
mine

# %%
#| solution 12-4
### BEGIN SOLUTION
L, H, C, B, T = (mine[name] for name in ("n_layer", "n_head", "n_embd", "B", "T"))
weights = 4 * L * B * H * T**2
rows = 4 * L * B * T * (4 * C + H)
longest = math.isqrt(mine["memory"] // (4 * L * B * H))
equal = 4 * C // H + 1
### INSTEAD
# weights = 0  # bytes
# rows = 0  # bytes
# longest = 0  # tokens
# equal = 0  # tokens
### END SOLUTION

# %%
#| check 12-4
assert all(isinstance(x, int) for x in (weights, rows, longest, equal)), "bytes and tokens are whole numbers"
assert weights > 0 and rows > 0, "how many bytes are kept, with and without the matrices?"
assert weights % (4 * mine["T"] ** 2) == 0, "weights: a whole number of T×T matrices of float32"
assert weights // (4 * mine["T"] ** 2) % mine["n_layer"] == 0, "every layer keeps its own matrices"
assert rows % (4 * mine["T"]) == 0, "rows: so many numbers of float32 for each of T positions"
assert longest != mine["T"] or weights <= mine["memory"], "at the longest T the matrices must still fit"
assert 0 < equal < mine["T"], "with these sizes the matrices are larger than the rows well before T"

# %% [markdown]
r"""
## 12-5 · A check for attention in tiles

*Check · difficulty 4/5 · importance 5/5 · 30 minutes*

Attention in tiles has bugs that the plain kind cannot have: they show at some lengths, for some scores, in some rows. You write the
check: `check_attention(attention)` gets a function of q, k, v, each (B, n_head, T, d), any T from 1 to 200, and raises an `AssertionError`
if what comes back is not causal attention. It will be tried on right and wrong functions that you do not see. Refusing a right one costs all points; else the
share of wrong ones that are refused counts. Right ones add in another order than you do (float32, differences up to 1e-5 where scores
are of ordinary size), and return values without gradients. They run elsewhere: keep to a hundred calls.

<details><summary>Hint 1</summary>

Compare with `attention_weights(q, k) @ v` of chapter 04. At which lengths? Tiles have an edge; a text need not end there.
</details>

<details><summary>Hint 2</summary>

Where does the largest score of a row stand? If it comes in the first block, nothing is ever rescaled. Let it come last, too.
</details>

<details><summary>Hint 3</summary>

Scores of a few hundred: exp overflows unless the maximum is subtracted. `nan` is never close to anything.
</details>
"""


# %%
#| solution 12-5
def check_attention(attention) -> None:
    """AssertionError if attention(q, k, v) is not causal attention, on tensors (B, n_head, T, d)."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    for T in (1, 2, 5, 16, 33, 64, 100, 150):
        for size in (1.0, 30.0):  # scores of order 1, and of many hundreds
            q, k, v = torch.randn(3, 2, 3, T, 8, generator=g)
            q, k = size * q, k * torch.linspace(0.1, 1, T)[:, None]  # larger scores come later
            got = attention(q, k, v)
            assert got.shape == q.shape, f"T={T}: shape {tuple(got.shape)}"
            apart = (got - attention_weights(q, k) @ v).abs().max().item()
            assert apart < (1e-4 if size == 1 else 1e-3), f"T={T}, scores × {size:g}: off by {apart:.2g}"
    ### END SOLUTION


# %%
#| check 12-5
def says(attention) -> str:
    try:
        check_attention(torch.no_grad()(attention))
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def first_tile_only(q, k, v):  # right up to 16 tokens
    return fused(q[..., :16, :], k[..., :16, :], v[..., :16, :]).repeat(1, 1, 1 + q.size(2) // 16, 1)[
        :, :, : q.size(2)
    ]


assert says(fused) == "accepted", f"PyTorch's fused kernel is {says(fused)}"
assert says(lambda q, k, v: v) != "accepted", "your check accepts a function that returns v"
assert says(first_tile_only) != "accepted", "your check accepts a function that is right for short texts only"

# %% [markdown]
r"""
#| manual 12-6
## 12-6 · More arithmetic, less time

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

Flash attention computes every score twice, once forward and once backward, and is faster all the same on most devices and lengths. Why?
Name the two quantities that you would compare to predict whether it is, and one situation in which it is slower. Four to six
sentences.
"""
