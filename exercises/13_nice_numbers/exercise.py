# %% [markdown]
r"""
# Exercises 13 · Nice numbers

No task needs another one's solution, or a GPU. `course check 13` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import torch
import torch.nn.functional as F
from torch import Tensor

from course.variants import variant

# %% [markdown]
r"""
## 13-1 · A head of your own

*Derive · difficulty 2/5 · importance 4/5 · 10 minutes*

The logits of `mine`, (tokens, vocab), are computed in square tiles of `tile` rows and columns by `sms` multiprocessors, each one tile at a time.
They are stored in bfloat16, row after row.

- `tiles` and `waves`: how many;
- `wasted`: the share of all that `waves` full waves could compute which is no logit, 0 to 1;
- `aligned`: every row of the logits starts at a multiple of how many bytes? (the largest power of two; the tensor itself starts at a
  multiple of 4,096);
- `nice`: the smallest number of columns, from `vocab` on, with which every row starts at a multiple of 16 bytes.

<details><summary>Hint 1</summary>

Two roundings, both up, one after the other. Rows and columns are cut separately.
</details>

<details><summary>Hint 2</summary>

Row n starts n · vocab numbers after the first. What is the largest power of two that divides vocab, and how many bytes has a number?
</details>
"""

# %%
mine = variant(
    "13-1",
    STUDENT,
    tokens=[4096, 8000, 8192, 12000, 16384],
    vocab=[32002, 32004, 49156, 50257, 100277, 128258],
    tile=[64, 128, 256],
    sms=[46, 108, 114, 132],
)
mine

# %%
#| solution 13-1
### BEGIN SOLUTION
tokens, vocab, tile, sms = (mine[name] for name in ("tokens", "vocab", "tile", "sms"))
tiles = -(-tokens // tile) * -(-vocab // tile)
waves = -(-tiles // sms)
wasted = 1 - tokens * vocab / (waves * sms * tile**2)
aligned = 2 * (vocab & -vocab)
nice = -(-vocab // 8) * 8
### INSTEAD
# tiles = 0
# waves = 0
# wasted = 0.0  # a share
# aligned = 0  # bytes
# nice = 0  # columns
### END SOLUTION

# %%
#| check 13-1
assert all(isinstance(x, int) for x in (tiles, waves, aligned, nice)), (
    "tiles, waves, bytes and columns are whole"
)
assert tiles * mine["tile"] ** 2 >= mine["tokens"] * mine["vocab"], "so few tiles do not cover the logits"
assert waves * mine["sms"] >= tiles, (
    "so few waves do not hold the tiles: a wave is not shortened, nor is one left out"
)
assert 0 < wasted < 0.5, "a share, of everything that was computed"
assert aligned >= 2, "a number in bfloat16 has two bytes, so every row starts at a multiple of 2 at least"
assert mine["vocab"] <= nice < mine["vocab"] + 16, "the next suitable number of columns is close"

# %% [markdown]
r"""
## 13-2 · Rows for nothing

*Derive · difficulty 3/5 · importance 4/5 · 20 minutes*

By the formula of tiles and waves some rows cost nothing: the last tile has room for them, or the last wave. A product of
`rows` × `columns` is cut into tiles of `tile` = (rows, columns) of a tile, not always square; `sms` tiles make a wave. `free_rows` is the largest number of
rows that takes no more waves. So `free_rows(200, 256, (128, 128), 10)` is 640: 200 rows are 2 × 2 tiles in one wave of ten,
which holds 5 × 2.

Laws: the result is never below `rows`; one row more takes another wave; asked again with the result, it gives the result.

<details><summary>Hint 1</summary>

How many tiles may be computed in as many waves as `rows` needs?
</details>

<details><summary>Hint 2</summary>

Tiles come in whole rows of tiles, each as wide as the columns ask for. How many of these rows of tiles fit?
</details>
"""


# %%
#| solution 13-2
def free_rows(rows: int, columns: int, tile: tuple[int, int], sms: int) -> int:
    """The largest number of rows whose product with so many columns takes no more waves than `rows` does."""
    ### BEGIN SOLUTION
    down, across = -(-rows // tile[0]), -(-columns // tile[1])
    waves = -(-down * across // sms)
    return waves * sms // across * tile[0]
    ### END SOLUTION


# %%
#| check 13-2
assert free_rows(200, 256, (128, 128), 10) == 640, "the example: 5 rows of 2 tiles fill a wave of ten"
assert free_rows(640, 256, (128, 128), 10) == 640, "640 rows fill their wave: nothing is free"
assert free_rows(641, 256, (128, 128), 10) == 1280, "641 rows need a second wave, which has room for 1280"
assert free_rows(100, 64, (128, 64), 1) == 128, "one tile a wave: only the rest of the tile is free"
assert free_rows(100, 256, (64, 128), 132) == 66 * 64, "tiles of 64 × 128: 2 across, 66 down in a wave of 132"

# %% [markdown]
r"""
## 13-3 · Rows that take no part

*Repair · difficulty 3/5 · importance 4/5 · 20 minutes*

Logits (N, rows) with `rows` ≥ `vocab_size`: what follows the first `vocab_size` columns belongs to no token. Both functions below are nearly right.

`real_loss` is to be the mean cross-entropy over real ids only, as if the added rows did not exist; targets of −100 do not count. The caller's logits stay
as they are.

`padding_cost` is what the added rows add to the loss, the mean of −ln(1 − P) over all N positions, P being their probability together. Its
formula is right and its numbers are not: where P is close to 1 it gives `inf`, where P is 10⁻⁹ it gives 0. Let it be exact for both,
and 0 where there are no added rows.

<details><summary>Hint 1</summary>

In `padding_cost`, what is 1 − 10⁻⁹ in float32? And 1 − P, if P has rounded to 1? Never form P.
</details>

<details><summary>Hint 2</summary>

Let a be the logsumexp of the added logits and r that of the real ones. Then P = eᵃ / (eᵃ + eʳ). What is −ln(1 − P)?
</details>

<details><summary>Hint 3</summary>

ln(1 + eᶻ) has a name in `torch.nn.functional`, and is exact for any z there.
</details>
"""


# %%
#| solution 13-3
def real_loss(logits: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Mean cross-entropy over the first vocab_size columns of logits (N, rows); targets (N,), -100 does not count."""
    ### BEGIN SOLUTION
    return F.cross_entropy(logits[:, :vocab_size], targets)
    ### INSTEAD
    # logits[:, vocab_size:] = 0
    # return F.cross_entropy(logits, targets)
    ### END SOLUTION


def padding_cost(logits: Tensor, vocab_size: int) -> Tensor:
    """The mean of -ln(1 - P), P the probability of the columns from vocab_size on. Returns a tensor of no dimension."""
    ### BEGIN SOLUTION
    added, real = logits[:, vocab_size:].logsumexp(1), logits[:, :vocab_size].logsumexp(1)  # (N,)
    return F.softplus(added - real).mean()
    ### INSTEAD
    # P = logits.softmax(1)[:, vocab_size:].sum(1)
    # return -(1 - P).log().mean()
    ### END SOLUTION


# %%
#| check 13-3
logits = torch.tensor([[0.0, 0.0, 5.0, 5.0], [1.0, 0.0, 0.0, 0.0]])  # two ids, two added rows
before, targets = logits.clone(), torch.tensor([0, 1])
loss = real_loss(logits, targets, 2)
assert torch.equal(logits, before), "real_loss has written into the caller's logits"
assert torch.allclose(loss, F.cross_entropy(before[:, :2], targets)), (
    "added rows still take probability: exp(0) is 1"
)
law = F.cross_entropy(before, targets) - padding_cost(before, 2)
assert torch.allclose(loss, law), "loss over all rows = loss over real ids + cost of the added ones"
assert padding_cost(torch.tensor([[0.0, 200.0]]), 1).isfinite(), (
    "the cost is 200 where P rounds to 1, not infinite"
)
tiny = padding_cost(torch.tensor([[20.0, 0.0]]), 1)
assert torch.allclose(1e9 * tiny, torch.tensor(2.0611536)), (
    f"P is 2.06e-9 here, and so is the cost; not {tiny:.3g}"
)

# %% [markdown]
r"""
## 13-4 · One row, and more

*Predict · difficulty 3/5 · importance 4/5 · 15 minutes*

The head of a model that writes: x (rows, `n_embd`) times the weights, (`vocab`, `n_embd`), gives logits (rows, `vocab`). All numbers have `width` bytes. The machine
moves `bandwidth` bytes and computes `flops` FLOP a second, both at best, at the same time. Every tensor is read or written once.

- `ms`: milliseconds of a single row;
- `rows`: the smallest number of rows for which arithmetic takes at least as long as memory. From there on, a row costs what its arithmetic costs.

<details><summary>Hint 1</summary>

Three tensors travel. Which of them grow with the rows? A number of the weights takes a multiply and an add for each row.
</details>

<details><summary>Hint 2</summary>

Write both times as a + b · rows, set them equal, and round up.
</details>
"""

# %%
mine = variant(
    "13-4",
    STUDENT,
    n_embd=[768, 1024, 1280, 1600],
    vocab=[32000, 50257, 50304, 128256],
    width=[2, 4],
    bandwidth=[20e9, 45e9, 90e9, 320e9],
    intensity=[20, 35, 50, 80],  # FLOP a byte at the ridge
)
mine["flops"] = mine.pop("intensity") * mine["bandwidth"]
mine

# %%
#| solution 13-4
### BEGIN SOLUTION
C, V, width = mine["n_embd"], mine["vocab"], mine["width"]
read, each = width * C * V / mine["bandwidth"], width * (C + V) / mine["bandwidth"]  # seconds: weights; a row
product = 2 * C * V / mine["flops"]  # seconds a row
ms = 1e3 * max(read + each, product)
rows = int(-(-read // (product - each)))
### INSTEAD
# ms = 0.0
# rows = 0
### END SOLUTION

# %%
#| check 13-4
weights = mine["n_embd"] * mine["vocab"]
assert ms > 1e3 * weights * mine["width"] / mine["bandwidth"], "reading the weights alone takes longer"
assert ms < 1.01e3 * weights * mine["width"] / mine["bandwidth"], (
    "one row moves little besides the weights; milliseconds?"
)
assert isinstance(rows, int) and rows > 1, "a whole number of rows"
assert 2 * rows * weights / mine["flops"] > weights * mine["width"] / mine["bandwidth"], (
    "with so few rows the products are done before the weights have been read"
)

# %% [markdown]
r"""
## 13-5 · A check for padding

*Check · difficulty 2/5 · importance 3/5 · 15 minutes*

`pad_table(weight, multiple)` takes an embedding (V, C) and returns one whose number of rows is a multiple of `multiple`, no
larger than needed: the rows of before, in place and bit for bit, then rows of zeros. dtype stays. You write its check: `check_pad_table(pad_table)` raises
an `AssertionError` if a law of this paragraph is broken. Refusing a right implementation costs all points; else the share of wrong ones that are
refused counts.

<details><summary>Hint 1</summary>

Which laws are there? Rows, columns, what was there before, what is new, dtype. Each wrong implementation breaks one.
</details>

<details><summary>Hint 2</summary>

Which V? One below a multiple, one above it, the multiple itself, and less than one. And more than one `multiple`, not only powers of two.
</details>
"""


# %%
#| solution 13-5
def check_pad_table(pad_table) -> None:
    """AssertionError if pad_table(weight, multiple) is not the same table with as few rows of zeros as needed."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    for V, multiple in (
        (1, 8),
        (7, 8),
        (8, 8),
        (9, 8),
        (24, 8),
        (50, 64),
        (128, 64),
        (130, 128),
        (35, 12),
        (257, 128),
    ):
        weight = torch.randn(V, 5, generator=g)
        padded = pad_table(weight.clone(), multiple)
        assert padded.dtype == weight.dtype, f"dtype {padded.dtype}"
        assert padded.shape == (-(-V // multiple) * multiple, 5), f"V={V}: shape {tuple(padded.shape)}"
        assert torch.equal(padded[:V], weight), f"V={V}: rows of before have changed"
        assert not padded[V:].any(), f"V={V}: added rows are not zero"
    ### END SOLUTION


# %%
#| check 13-5
def says(pad_table) -> str:
    try:
        check_pad_table(pad_table)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


right = says(lambda weight, multiple: F.pad(weight, (0, 0, 0, -len(weight) % multiple)))
assert right == "accepted", f"a right implementation is {right}"
assert says(lambda weight, multiple: weight) != "accepted", "your check accepts a function that adds no row"
ones = says(lambda weight, multiple: F.pad(weight, (0, 0, 0, -len(weight) % multiple), value=1.0))
assert ones != "accepted", "your check accepts rows of ones"

# %% [markdown]
r"""
#| manual 13-6
## 13-6 · Tiles or alignment

*Explain · difficulty 3/5 · importance 3/5 · 10 minutes*

A colleague pads 50,257 to 50,304. On one GPU the eager step gets 20% faster and the compiled step 1%; on a laptop nothing changes. "Tile
quantisation", says the colleague. Does that fit the numbers? What explains them better, and which measurement (which numbers of columns) would
decide between the two explanations? Four to six sentences.
"""
