# %% [markdown]
r"""
# Exercises 24 · Llama

They belong to chapter 24. No task needs another one's solution. `course check 24` runs the visible checks.
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

# %% [markdown]
r"""
## 24-1 · What shared heads save

*Derive · difficulty 2/5 · importance 4/5 · 15 minutes*

A Llama has L layers of width C. Each layer has H heads of queries and K heads of keys and values, all with d numbers, and a SwiGLU
of width `hidden`. There are no biases, and no QK-norm. For the sizes in `mine` compute:

- `params`: the parameters of all layers, their norms included; the token table, the last norm and the head do not count;
- `nbytes`: the bytes of the cache for one text of T tokens in bfloat16;
- `texts`: how many such texts fit into `gb` gigabytes (10⁹ bytes) beside the parameters above, which are in bfloat16 as well.

<details><summary>Hint 1</summary>

H · d need not be C. Which of the four matrices of attention have H heads, and which have K?
</details>

<details><summary>Hint 2</summary>

A layer has two norms, and an RMSNorm has no bias. The cache holds keys and values, each of K heads, for each layer.
</details>
"""

# %%
mine = variant("24-1", STUDENT, L=[20, 28, 36, 40], C=[1024, 2048, 2560], H=[16, 24, 40], K=[2, 4, 8], d=[64, 128], hidden=[3072, 6144, 9728], T=[4096, 8192], gb=[24, 40, 80])  # fmt: skip
mine

# %%
#| solution 24-1
### BEGIN SOLUTION
L, C, H, K, d, hidden, T, gb = (mine[name] for name in ("L", "C", "H", "K", "d", "hidden", "T", "gb"))
params = L * ((2 * H + 2 * K) * d * C + 3 * C * hidden + 2 * C)
nbytes = 2 * L * K * d * T * 2
texts = (gb * 10**9 - 2 * params) // nbytes
### INSTEAD
# params = 0
# nbytes = 0  # bytes
# texts = 0
### END SOLUTION

# %%
#| check 24-1
assert all(isinstance(x, int) for x in (params, nbytes, texts)), "these are whole numbers"
assert params > 3 * mine["L"] * mine["C"] * mine["hidden"], "the three matrices of the MLPs alone are more"
assert nbytes % (mine["T"] * mine["L"]) == 0, "each layer and each token takes the same number of bytes"
assert texts > 0, "something fits: the parameters take less than the memory"

# %% [markdown]
r"""
## 24-2 · Two ways to make pairs

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

Chapter 24 rotates number i of a head together with number i + d/2. The models in Meta's published files were trained with other pairs: the numbers
2i and 2i + 1 belong together, and pair i turns at the same speed. If you load such a file as it is, the model writes nonsense.
No code has to change, only the order of the rows of `c_q` and `c_k`.

Write `reorder(weight, n_head)`: the weight (n_head · d, C) of a query or key matrix of Meta's order, with its rows in the order that
chapter 24's `rotate` needs. Then all scores are those of Meta's model. Nothing else may change, and the given weight stays as it is.

With one head and d = 4, the new rows are the old rows 0, 2, 1, 3.

<details><summary>Hint 1</summary>

First think of one head. Which old row must come first, so that the pair (0, d/2) is the old pair (0, 1)?
</details>

<details><summary>Hint 2</summary>

View the rows as (heads, pairs, 2). Which two axes change places?
</details>
"""


# %%
#| solution 24-2
def reorder(weight: Tensor, n_head: int) -> Tensor:
    """Rows (n_head · d, C) with pairs (2i, 2i + 1), in the order with pairs (i, i + d/2)."""
    ### BEGIN SOLUTION
    pairs = weight.unflatten(0, (n_head, -1, 2))  # (n_head, d/2, 2, C)
    return pairs.transpose(1, 2).flatten(0, 2)
    ### END SOLUTION


# %%
#| check 24-2
rows = torch.arange(4.0)[:, None]
assert reorder(rows, 1).flatten().tolist() == [0, 2, 1, 3], f"one head: {reorder(rows, 1).flatten().tolist()}"
assert reorder(rows, 2).flatten().tolist() == [0, 1, 2, 3], "heads of two numbers have one pair each"

# %% [markdown]
r"""
## 24-3 · A norm that overflows

*Repair · difficulty 2/5 · importance 5/5 · 15 minutes*

A colleague's RMSNorm looks right in float32. But in every type it gives nan for a position of zeros, in float16 it gives zeros for large
inputs, and in bfloat16 it is less exact than it could be. Repair `rms_norm`: for x of any of the three types it must be as exact as float32 allows, and return x's type. `eps` is added to the mean
square, as in the paper.

<details><summary>Hint 1</summary>

The largest number of float16 is 65,504. What is 300 squared?
</details>

<details><summary>Hint 2</summary>

When is the result rounded? Once, at the end, is best.
</details>
"""


# %%
#| solution 24-3
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension, in x's type; weight is in float32."""
    ### BEGIN SOLUTION
    long = x.float()
    short = long * torch.rsqrt(long.square().mean(-1, keepdim=True) + eps)
    return (short * weight).to(x.dtype)
    ### INSTEAD
    # size = x.square().mean(-1, keepdim=True).sqrt()
    # return x / size * weight.to(x.dtype)
    ### END SOLUTION


# %%
#| check 24-3
x = torch.tensor([[3.0, 4.0], [300.0, 400.0], [0.0, 0.0]])
for dtype in (torch.float32, torch.float16):
    y = rms_norm(x.to(dtype), torch.ones(2))
    assert y.dtype == dtype, f"x is {dtype}, the result {y.dtype}"
    for row in range(2):
        assert abs(y[row, 0].item() - 0.8485) < 1e-3, (
            f"{dtype}: {x[row].tolist()} becomes {y[row].tolist()}, not [0.85, 1.13]"
        )
    assert y[2].tolist() == [0, 0], f"{dtype}: a position of zeros becomes {y[2].tolist()}"

# %% [markdown]
r"""
## 24-4 · Shared heads without copies

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

Write causal attention in which H heads of queries share K heads of keys and values: queries 0 … H/K − 1 use the first head of keys,
the next H/K the second, and so on. Keys and values must not be copied: do not create a tensor with H heads of keys or values. (Broadcasting in `@` creates
one, too: PyTorch expands the smaller batch and copies it.) Do not use `scaled_dot_product_attention`.

<details><summary>Hint 1</summary>

Put the rows of a group one below the other: q as (B, K, H/K · T, d). Then keys and values are used as they are.
</details>

<details><summary>Hint 2</summary>

With the group's rows one below the other, the mask is repeated as well.
</details>
"""


# %%
#| solution 24-4
#| forbids aten::scaled_dot_product_attention
def grouped_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention; q (B, H, T, d), k and v (B, K, T, d) with K dividing H. Returns (B, H, T, d)."""
    ### BEGIN SOLUTION
    B, H, T, d = q.shape
    K = k.size(1)
    rows = q.reshape(B, K, H // K * T, d)  # a group's queries below one another
    scores = rows @ k.transpose(-2, -1) / math.sqrt(d)  # (B, K, H/K · T, T)
    scores = scores.unflatten(2, (H // K, T))  # (B, K, H/K, T, T)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return (weights.flatten(2, 3) @ v).reshape(B, H, T, d)
    ### END SOLUTION


# %%
#| check 24-4
g = torch.Generator().manual_seed(0)
for heads, shared in ((4, 2), (4, 4), (6, 1)):
    q, k, v = (torch.randn(2, n, 5, 8, generator=g) for n in (heads, shared, shared))
    got = grouped_attention(q, k, v)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert got.shape == expected.shape, f"{heads} heads: the shape is {tuple(got.shape)}"
    assert torch.allclose(got, expected, atol=1e-5), (
        f"{heads} heads share {shared}: other numbers than SDPA's"
    )

# %% [markdown]
r"""
## 24-5 · A check of rotations

*Check · difficulty 3/5 · importance 5/5 · 25 minutes*

`rotate(x, positions)` should be a rotary embedding: x is (T, d) with an even d, `positions` (T,) are whole numbers from 0 on, and the result has x's shape. Which
numbers are paired, and how fast a pair turns, is left open: chapter 24's is right, and so is Meta's with any θ. What makes it a rotary embedding
are three laws. The score of a query and a key depends on their distance only, it does depend on the distance, and no vector changes
its length.

Write `check_rotation(rotate)`: it raises an `AssertionError` if `rotate` breaks one of these laws. It will be tried on right and wrong
functions that you do not see. Refusing a right one costs all points; else the share of wrong ones that are refused counts. Positions
go up to 5,000, d is between 2 and 64. Keep to a hundred calls.

<details><summary>Hint 1</summary>

Take any q and k. Put them at positions 5 and 3, at 105 and 103, at 4005 and 4003. What must be equal, up to rounding in float32?
</details>

<details><summary>Hint 2</summary>

A function that does nothing obeys two of the three laws.
</details>

<details><summary>Hint 3</summary>

A mistake may be in one pair only, or only at large positions, or only with more than one row. Try several d, and vectors in which a single number is not zero.
</details>
"""


# %%
#| solution 24-5
def check_rotation(rotate) -> None:
    """AssertionError unless scores depend on the distance, and on nothing else, and lengths stay."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    for d in (2, 6, 16, 64):
        q, k = torch.randn(2, d, generator=g)
        steps = torch.tensor([0, 1, 2, 3, 7, 40, 100, 333, 1000, 2500, 4900])
        for apart in (0, 1, 5, 64):
            rows = rotate(q.expand(len(steps), d), steps + apart)
            others = rotate(k.expand(len(steps), d), steps)
            assert rows.shape == (len(steps), d), f"the shape is {tuple(rows.shape)}"
            assert torch.allclose(rows.norm(dim=1), q.norm().expand(len(steps)), rtol=1e-3), (
                "a length has changed"
            )
            scores = (rows * others).sum(1)
            spread = (scores.max() - scores.min()).item()
            assert spread < 2e-2 * (q.norm() * k.norm()).item(), (
                f"d={d}, distance {apart}: scores differ by {spread}"
            )
        for i in range(d):  # each number alone
            one = torch.zeros(3, d)
            one[:, i] = 1.0
            turned = rotate(one, torch.tensor([0, 1, 4000]))
            assert torch.allclose(turned.norm(dim=1), torch.ones(3), rtol=1e-3), (
                f"number {i} changes its length"
            )
        near = (rotate(q[None], torch.tensor([10])) * rotate(q[None], torch.tensor([10]))).sum()
        far = (rotate(q[None], torch.tensor([11])) * rotate(q[None], torch.tensor([10]))).sum()
        assert abs(near - far) > 1e-4 * near, "the distance changes nothing"
    ### END SOLUTION


# %%
#| check 24-5
def says(rotate) -> str:
    try:
        check_rotation(rotate)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


def halves(x, positions, theta=10_000.0):
    d = x.size(1)
    angles = positions[:, None] * theta ** (-torch.arange(0, d, 2).float() / d)
    a, b = x[:, : d // 2], x[:, d // 2 :]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], 1)


assert says(halves) == "accepted", f"chapter 24's rotation is {says(halves)}"
assert says(lambda x, positions: x) != "accepted", "your check accepts a function that does nothing"
assert says(lambda x, positions: x + 0.01 * positions[:, None]) != "accepted", (
    "your check accepts a function that adds the position, as GPT-2 does"
)

# %% [markdown]
r"""
#| manual 24-6
## 24-6 · A window that slides

*Explain · difficulty 4/5 · importance 3/5 · 15 minutes*

Chapter 08's cache has a limit: when the window is full, half of the text is read again. A colleague says: "With GPT-2 this is needed, but not with RoPE. We can simply drop the oldest
key and value of each layer and go on, since only distances count." Why can the trick not work for GPT-2? Does the model with RoPE then compute exactly what it would compute if it read
the last window alone? Which numbers in the cache still depend on the dropped tokens? Name a measurement that would show whether it matters. Four to six sentences.
"""
