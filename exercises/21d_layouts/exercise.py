# %% [markdown]
r"""
# Exercises 21d · Layouts

Chapter 21d: who holds what. Nothing here starts a second process: you plan for processes that do not exist. No task needs another one's
solution. `course check 21d` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor

from course.variants import variant

# %% [markdown]
r"""
## 21d-1 · Who meets whom

*Build · difficulty 3/5 · importance 5/5 · 25 minutes*

A mesh has the dimensions copies × parts × tp, and the ranks fill it as the numbers of a tensor of this shape fill memory: the last dimension first. A group of a dimension has the ranks that differ in this dimension alone.

Write `groups(copies, parts, tp)`. It returns a dictionary with the names "copies", "parts" and "tp", in which each name has the list of its groups. A group is a list of ranks in ascending order, and the groups are ordered by their first rank. A dimension of size one has groups of one rank.

Write also `on_the_network(copies, parts, tp, per_machine)`: the list of the names, in the order of the dimensions, that have at least one group with ranks on more than one machine. The ranks fill the machines in order, `per_machine` on each. The last machine may have fewer. `answers` is the list of two things for the mesh in `mine`: the group of `parts`
in which the rank `mine["rank"]` is, and which dimensions use the network.

<details><summary>Hint 1</summary>

`torch.arange(n).view(copies, parts, tp)` is the mesh. Look at a column of it.
</details>

<details><summary>Hint 2</summary>

The groups of a dimension are what you get if you move this dimension to the end, and make all others one.
</details>
"""

# %%
mine = variant("21d-1", STUDENT, copies=[2, 3], parts=[4, 6], tp=[2, 4], per_machine=[8, 12], rank=[5, 9, 14])


# %%
#| solution 21d-1
def groups(copies: int, parts: int, tp: int) -> dict[str, list[list[int]]]:
    """The groups of ranks of each dimension of the mesh copies × parts × tp."""
    ### BEGIN SOLUTION
    mesh = torch.arange(copies * parts * tp).view(copies, parts, tp)
    found = {}
    for dimension, name in enumerate(("copies", "parts", "tp")):
        found[name] = sorted(mesh.movedim(dimension, -1).flatten(0, 1).tolist())
    return found
    ### END SOLUTION


def on_the_network(copies: int, parts: int, tp: int, per_machine: int) -> list[str]:
    """The dimensions that have a group on more than one machine."""
    ### BEGIN SOLUTION
    found = []
    for name, ranks_of in groups(copies, parts, tp).items():
        if any(ranks[0] // per_machine != ranks[-1] // per_machine for ranks in ranks_of):
            found.append(name)
    return found
    ### END SOLUTION


layout = mine["copies"], mine["parts"], mine["tp"]
answers = [
    ### BEGIN SOLUTION
    next(ranks for ranks in groups(*layout)["parts"] if mine["rank"] in ranks),
    on_the_network(*layout, mine["per_machine"]),
    ### INSTEAD
    # [],  # the group of parts that your rank is in
    # [],  # the dimensions that use the network
    ### END SOLUTION
]

# %%
#| check 21d-1
got = groups(1, 2, 2)
assert got.get("tp") == [[0, 1], [2, 3]], (
    f"the picture of chapter 21d: ranks 0 and 1 share a layer's work, not {got.get('tp')}"
)
assert got.get("parts") == [[0, 2], [1, 3]], (
    f"rank 0 and rank 2 have the same cut, and gather it from each other: {got.get('parts')}"
)
assert got.get("copies") == [[0], [1], [2], [3]], (
    f"with one copy each rank is alone in its group: {got.get('copies')}"
)
assert on_the_network(1, 4, 2, 8) == [] and on_the_network(1, 8, 2, 8) == ["parts"], (
    "eight ranks are one machine; with sixteen the parts reach across two, and the layers' sums stay inside"
)

# %% [markdown]
r"""
## 21d-2 · Fewer rows than GPUs

*Derive · difficulty 4/5 · importance 5/5 · 30 minutes*

A batch has `rows` rows, and there are `gpus` GPUs. With `tp` GPUs for each layer, gpus / tp groups read different rows, and each of them has rows / (gpus / tp) rows, all at once. The model is sharded over all groups, so each GPU keeps 16 · parameters / gpus bytes of weights, gradients and moments. Of each row of its group, it keeps `stream` bytes that are complete on
every rank, and `inner` / tp bytes of what is inside attention and MLP.

Write `kept(tp, gpus, rows, parameters, stream, inner)`, in bytes, and `smallest_tp(gpus, per_machine, heads, rows, room, parameters, stream, inner)`: the smallest tp with which a run is possible, or 0 if there is none. A tp is possible if it divides the GPUs and the heads, its group fits into a machine (`per_machine` is a multiple of it), the groups get equally
many whole rows and at least one, and a GPU keeps at most `room` bytes. `answers` is the list of both for `mine`, `kept` at the smallest tp.

<details><summary>Hint 1</summary>

Begin with tp = 1. How many rows has a group, and is that a whole number?
</details>

<details><summary>Hint 2</summary>

A larger tp has fewer groups, and so more rows in each. Which of the two parts of a row's bytes gets smaller on a GPU then, in all? Neither need be monotonous: try each.
</details>
"""

# %%
mine = variant(
    "21d-2",
    STUDENT,
    gpus=[64, 128],
    heads=[96, 40],
    rows=[16, 32],
    room=[60_000_000_000, 76_000_000_000],
    parameters=[13_000_000_000, 65_000_000_000, 175_000_000_000],
    stream=[10_000_000_000, 19_000_000_000],
    inner=[40_000_000_000, 58_000_000_000],
)


# %%
#| solution 21d-2
def kept(tp: int, gpus: int, rows: int, parameters: int, stream: int, inner: int) -> float:
    """Bytes on a GPU: states of its part of the model, and the activations of its group's rows."""
    ### BEGIN SOLUTION
    each = rows / (gpus / tp)  # rows of a group
    return 16 * parameters / gpus + each * (stream + inner / tp)
    ### END SOLUTION


def smallest_tp(
    gpus: int, per_machine: int, heads: int, rows: int, room: int, parameters: int, stream: int, inner: int
) -> int:
    """The smallest possible tp; 0 if there is none."""
    ### BEGIN SOLUTION
    for tp in range(1, per_machine + 1):
        if gpus % tp or heads % tp or per_machine % tp or rows % (gpus // tp):
            continue
        if kept(tp, gpus, rows, parameters, stream, inner) <= room:
            return tp
    return 0
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    smallest_tp(per_machine=8, **mine),
    kept(
        max(1, smallest_tp(per_machine=8, **mine)),
        **{name: mine[name] for name in ("gpus", "rows", "parameters", "stream", "inner")},
    ),
    ### INSTEAD
    # 0,  # smallest_tp in machines of eight GPUs
    # 0.0,  # what a GPU keeps with it (with tp = 1, if there is none)
    ### END SOLUTION
]

# %%
#| check 21d-2
assert kept(1, 4, 8, 100, 0, 0) == 400, "16 bytes for each of 100 parameters, on four GPUs"
assert kept(1, 4, 8, 0, 10, 30) == 80, "with tp = 1 each of four groups has two rows of 10 + 30 bytes"
assert kept(2, 4, 8, 0, 10, 30) == 100, (
    f"with tp = 2 each of two groups has four rows, of which a GPU keeps 10 + 15 bytes, not {kept(2, 4, 8, 0, 10, 30) / 4}"
)
assert smallest_tp(8, 8, 12, 2, 10**9, 100, 1, 1) == 4, "two rows are enough for two groups of four GPUs"
assert smallest_tp(8, 8, 12, 1, 10**9, 100, 1, 1) == 0, (
    "one row would need tp = 8, and 12 heads cannot be dealt to 8 ranks"
)
assert smallest_tp(8, 8, 8, 16, 65, 0, 10, 30) == 0 and smallest_tp(8, 8, 8, 16, 80, 0, 10, 30) == 1, (
    "two rows of 40 bytes fit into 80, and nothing fits into 65"
)

# %% [markdown]
r"""
## 21d-3 · The norm of a grid

*Repair · difficulty 3/5 · importance 5/5 · 15 minutes*

A model's gradients are on a grid: `grid[p][t]` is what the rank with part p and cut t has, a dictionary of tensors by name. Each rank has some rows of what its cut has. A name in `cut` is a parameter whose numbers are divided among the cuts. All other parameters are the same for each t: positions, LayerNorms, the biases that are
added after a sum.

`norm(grid, cut)` returns the norm of the gradient that one process would have. Clipping depends on it. The code below gives another number as soon as there are two cuts. Fix it.

<details><summary>Hint 1</summary>

Four ranks, a LayerNorm of two numbers. In how many of the dictionaries is each number?
</details>
"""


# %%
#| solution 21d-3
def norm(grid: list[list[dict[str, Tensor]]], cut: list[str]) -> float:
    """The norm of the whole gradient. grid[p][t]: the tensors of part p and cut t by name; cut: the names that are cut."""
    ### BEGIN SOLUTION
    squares = 0.0
    for part in grid:
        for t, tensors in enumerate(part):
            for name, x in tensors.items():
                if name in cut or t == 0:  # the others are there once for each t
                    squares += x.double().square().sum().item()
    return math.sqrt(squares)
    ### INSTEAD
    # squares = 0.0
    # for part in grid:
    #     for tensors in part:
    #         squares += sum(x.double().square().sum().item() for x in tensors.values())
    # return math.sqrt(squares)
    ### END SOLUTION


# %%
#| check 21d-3
a, b = torch.tensor([3.0]), torch.tensor([4.0])
assert abs(norm([[{"mlp": a}, {"mlp": b}]], ["mlp"]) - 5) < 1e-9, (
    "two cuts of one matrix, 3 and 4, have the norm 5"
)
assert abs(norm([[{"ln": a}], [{"ln": b}]], []) - 5) < 1e-9, "two parts of one vector, 3 and 4, as well"
got = norm([[{"ln": a}, {"ln": a}], [{"ln": b}, {"ln": b}]], ["mlp"])
assert abs(got - 5) < 1e-9, f"each cut has the same LayerNorm, so its norm is 5 again, not {got:.3f}"

# %% [markdown]
r"""
## 21d-4 · A check for readers

*Check · difficulty 3/5 · importance 5/5 · 20 minutes*

`rows_of(rank, ranks, tp, rows)` is the list of the rows of a batch that a rank reads. Ranks that share the work of a layer are neighbours: the first tp ranks, the next tp, and so on. It is right if

- the ranks of such a group read the same rows, in the same order;
- each row of the batch is read by exactly one group;
- all groups read equally many.

`rows` is a multiple of the number of groups. Write `check_rows(rows_of)`, which raises an `AssertionError` if a rule is broken, and accepts all that keep them.

<details><summary>Hint 1</summary>

Many mistakes are hidden on a grid of 2 × 2. Try one with more groups than cuts, and one with more cuts than groups.
</details>

<details><summary>Hint 2</summary>

With tp = 1 every rank is a group. With one group every rank reads everything.
</details>
"""


# %%
#| solution 21d-4
def check_rows(rows_of) -> None:
    """Raises AssertionError unless rows_of(rank, ranks, tp, rows) deals a batch's rows to groups of tp neighbours."""
    ### BEGIN SOLUTION
    for ranks, tp in ((1, 1), (4, 1), (4, 4), (4, 2), (8, 2), (8, 4), (6, 3), (12, 2)):
        groups = ranks // tp
        for rows in (groups, 3 * groups):
            read = [list(rows_of(rank, ranks, tp, rows)) for rank in range(ranks)]
            case = f"{ranks} ranks, tp={tp}, {rows} rows"
            for rank in range(ranks):
                assert read[rank] == read[rank - rank % tp], f"{case}: rank {rank} reads {read[rank]}"
            firsts = read[::tp]
            assert sorted(row for mine in firsts for row in mine) == list(range(rows)), f"{case}: {firsts}"
            assert all(len(mine) == rows // groups for mine in firsts), f"{case}: not equally many"
    ### END SOLUTION


# %%
#| check 21d-4
def refused(rows_of) -> bool:
    try:
        check_rows(rows_of)
    except AssertionError:
        return True
    return False


def blocks(rank, ranks, tp, rows):
    group, each = rank // tp, rows // (ranks // tp)
    return list(range(group * each, (group + 1) * each))


assert not refused(blocks), "your check refuses a right way: each group reads a block of rows"
assert not refused(lambda rank, ranks, tp, rows: list(range(rank // tp, rows, ranks // tp))), (
    "your check refuses a right way: each group reads every so many-th row"
)
assert refused(lambda rank, ranks, tp, rows: list(range(rank, rows, ranks))), (
    "here ranks of one group read different rows, and your check accepts it"
)
assert refused(lambda rank, ranks, tp, rows: list(range(rows))), (
    "here every group reads every row, and your check accepts it"
)

# %% [markdown]
r"""
#| manual 21d-5
## 21d-5 · A checkpoint from another layout

*Explain · difficulty 4/5 · importance 4/5 · 10 minutes*

A run with `tp: 4` was saved in parts: each rank wrote its own rows and columns, and a list says which part of which tensor is in which file. Read with `tp: 4` again, the run goes on at a loss of 3.1. Read by one process, the first loss is 9.4. No error was raised, and every shape is right. In four sentences: which weights are wrong and why those; why
does the same layout not notice; how could a test find it before anybody trains for a week; and what must the writer or the reader do?
"""
