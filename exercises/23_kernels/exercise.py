# %% [markdown]
r"""
# Exercises 23 · Kernels

They belong to chapters 23 and 23b. No task needs another one's solution, and none needs Triton or a GPU.
`course check 23` runs the visible checks.
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
## 23-1 · Eight rows a program

*Derive · difficulty 2/5 · importance 4/5 · 15 minutes*

In chapter 23, each program of `norm_kernel` takes one row. Now let a program take a tile of `rows` rows, with a block that is large enough
for all C numbers of a row. Everything is in float32. A program loads its rows of x and r, and once the gain and the bias. It stores
h and y, and for each of its rows the mean and 1/σ. N is no multiple of `rows`, so the last tile is not full.

For the sizes in `mine` compute:

- `programs`: how many programs run;
- `nbytes`: the bytes that all programs together load and store; masked lanes do not count;
- `idle`: of all lanes of all tiles, how many are masked.

<details><summary>Hint 1</summary>

The gain and the bias are loaded by each program. x, r, h and y are touched once for each number.
</details>

<details><summary>Hint 2</summary>

A block's size is a power of two. How many lanes has a tile, and how many numbers do all tiles hold together?
</details>
"""

# %%
mine = variant("23-1", STUDENT, N=[1001, 2050, 515, 4099], C=[600, 768, 1000, 1600, 3000], rows=[2, 4, 8, 16])
mine

# %%
#| solution 23-1
### BEGIN SOLUTION
N, C, rows = (mine[name] for name in ("N", "C", "rows"))
programs = math.ceil(N / rows)
nbytes = 4 * (4 * N * C + 2 * programs * C + 2 * N)
idle = programs * rows * 2 ** math.ceil(math.log2(C)) - N * C
### INSTEAD
# programs = 0
# nbytes = 0  # bytes
# idle = 0  # lanes
### END SOLUTION

# %%
#| check 23-1
assert all(isinstance(x, int) for x in (programs, nbytes, idle)), "these are whole numbers"
assert programs * mine["rows"] >= mine["N"], "some rows have no program"
assert nbytes > 16 * mine["N"] * mine["C"], "x, r, h and y alone are 16 bytes for each number"
assert idle > 0, "C is no power of two: which lanes of a tile have no number?"

# %% [markdown]
r"""
## 23-2 · The loss of a stream of logits

*Build · difficulty 3/5 · importance 5/5 · 25 minutes*

The logits of N rows come in blocks of columns: first the columns 0 … n − 1, then the next ones, and so on. The blocks can have different
widths. Each block is seen once and then lost. Write `stream_loss(blocks, targets)`: the cross-entropy of each row, (N,). A target of
−100 gives a loss of 0. Logits can be as large as ±1000, and some can be −∞ (a token that is forbidden), but never all of a first block.

One row with the blocks `[1, 2]` and `[3]`, and the target 2, has the loss log(e¹ + e² + e³) − 3 = 0.408.

<details><summary>Hint 1</summary>

Keep three numbers for each row: the largest logit so far, the sum of the exponentials relative to it, and the logit of the target.
</details>

<details><summary>Hint 2</summary>

When a block brings a larger maximum, the old sum refers to the wrong one. By which factor is it too large?
</details>

<details><summary>Hint 3</summary>

A target counts from column 0 of the first block. Which column is it in a block that begins at column `first`?
</details>
"""


# %%
#| solution 23-2
def stream_loss(blocks: list[Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy of each row, (N,); blocks: tensors (N, n), targets: (N,), -100 gives 0."""
    ### BEGIN SOLUTION
    first = 0
    m = torch.full(targets.shape, -math.inf)
    total, right = torch.zeros_like(m), torch.zeros_like(m)
    for z in blocks:
        larger = torch.maximum(m, z.amax(1))
        total = total * (m - larger).exp() + (z - larger[:, None]).exp().sum(1)
        m = larger
        column = targets - first
        here = (column >= 0) & (column < z.size(1))
        found = z.gather(1, column.clamp(0, z.size(1) - 1)[:, None])[:, 0]
        right = torch.where(here, found, right)
        first += z.size(1)
    return torch.where(targets >= 0, m + total.log() - right, 0.0)
    ### END SOLUTION


# %%
#| check 23-2
one = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])]
for target in range(3):
    got = stream_loss(one, torch.tensor([target]))
    expected = F.cross_entropy(torch.cat(one, 1), torch.tensor([target]), reduction="none")
    assert got.shape == (1,), f"one loss for each row is due, not the shape {tuple(got.shape)}"
    assert torch.allclose(got, expected), f"target {target}: {got.item():.3f}, not {expected.item():.3f}"
assert stream_loss(one, torch.tensor([-100])).item() == 0, "a target of -100 gives a loss of 0"

# %% [markdown]
r"""
## 23-3 · A mean of means

*Repair · difficulty 2/5 · importance 5/5 · 15 minutes*

To save memory, a colleague computes the loss in chunks of `rows` rows. Their loss depends on `rows`, and sometimes it is nan. Repair
`chunked_mean`: for each `rows` it must equal `F.cross_entropy(x @ weight.T, targets)`, with its gradients, and never have more than `rows`
rows of logits at a time. At least one target is not −100.

<details><summary>Hint 1</summary>

Five rows in chunks of two: how much does the last row weigh in the colleague's result?
</details>

<details><summary>Hint 2</summary>

The mean over no rows is 0/0. Which sums can be added up chunk by chunk?
</details>
"""


# %%
#| solution 23-3
def chunked_mean(x: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
    """Mean cross-entropy of the logits x @ weight.T, in chunks of rows; -100 does not count. x (N, C), weight (V, C)."""
    ### BEGIN SOLUTION
    total = 0.0
    for start in range(0, len(x), rows):
        logits = x[start : start + rows] @ weight.T
        total = total + F.cross_entropy(logits, targets[start : start + rows], reduction="sum")
    return total / (targets != -100).sum()
    ### INSTEAD
    # losses = []
    # for start in range(0, len(x), rows):
    #     logits = x[start : start + rows] @ weight.T
    #     losses.append(F.cross_entropy(logits, targets[start : start + rows]))
    # return torch.stack(losses).mean()
    ### END SOLUTION


# %%
#| check 23-3
x, weight = torch.arange(10.0).view(5, 2) / 10, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
for targets in (torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 1, -100, -100, 2])):
    for rows in (1, 2, 5):
        got, expected = chunked_mean(x, weight, targets, rows), F.cross_entropy(x @ weight.T, targets)
        assert torch.allclose(got, expected), (
            f"targets {targets.tolist()}, {rows} rows: {got:.4f}, not {expected:.4f}"
        )

# %% [markdown]
r"""
## 23-4 · A check that looks behind the end

*Check · difficulty 3/5 · importance 5/5 · 25 minutes*

A kernel adds two vectors of n numbers. All that it knows are addresses in one large memory:

```python
after = run(memory, x, y, out, n)
```

`memory` is a tensor of float32 with one axis. The vectors begin at the places `x`, `y` and `out` of it, and do not overlap. `run` returns the memory as it is
after the kernel. The given memory stays as it was. Write `check_run(run)`: it raises an `AssertionError` if the kernel does
anything else than to store the sum in its place. Any n from 1 to 200 is possible, and the vectors can be anywhere in the memory.

Your check will be tried on right and wrong kernels that you do not see. Refusing a right one costs all points; else the share of wrong
ones that are refused counts. Leave at least 64 places free in front of the first vector, behind the last one, and between them: a
wrong kernel may go that far. Keep to a hundred calls.

<details><summary>Hint 1</summary>

What should the complete memory look like afterwards? You can compute that with slices, and compare everything at once.
</details>

<details><summary>Hint 2</summary>

Kernels work in blocks. Which n are easy for a block of 4, 16 or 32, and which are not?
</details>

<details><summary>Hint 3</summary>

If the memory around is zero, a kernel that adds to it what is there goes unnoticed. Which numbers should be there? And does `out` always
come last?
</details>
"""


# %%
#| solution 23-4
def check_run(run) -> None:
    """AssertionError if run(memory, x, y, out, n) does anything else than memory[out : out + n] = x + y."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    for n in (1, 2, 3, 4, 5, 16, 31, 32, 33, 64, 100, 130, 200):
        places = [100, 200 + n, 300 + 2 * n]
        for x, y, out in (places, places[::-1], (places[1], places[2], places[0])):
            memory = torch.randn(500 + 3 * n, generator=g)
            expected = memory.clone()
            expected[out : out + n] = memory[x : x + n] + memory[y : y + n]
            after = run(memory.clone(), x, y, out, n)
            assert after.shape == memory.shape, f"n={n}: the memory has another size"
            wrong = (after - expected).abs() > 1e-5
            assert not wrong.any(), f"n={n}, out={out}: wrong from place {int(wrong.nonzero()[0])} on"
    ### END SOLUTION


# %%
#| check 23-4
def says(run) -> str:
    try:
        check_run(run)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


def right(memory, x, y, out, n):
    memory = memory.clone()
    memory[out : out + n] = memory[x : x + n] + memory[y : y + n]
    return memory


def one_too_many(memory, x, y, out, n):
    return right(memory, x, y, out, n + 1)


assert says(right) == "accepted", f"the right kernel is {says(right)}"
assert says(lambda memory, *places: memory) != "accepted", "your check accepts a kernel that does nothing"
assert says(one_too_many) != "accepted", "your check accepts a kernel that stores a number behind the end"

# %% [markdown]
r"""
#| manual 23-5
## 23-5 · Right in the interpreter

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A kernel for the gradient of a bias has one program for each row, and each program adds its row to the same C numbers. In Triton's
interpreter the result is right, for any number of rows. Why may it be wrong on a GPU? Why does the interpreter not show it, and how
can a check on a CPU find it all the same? Name two ways to repair the kernel, and what each of them costs. Four to six sentences.
"""
