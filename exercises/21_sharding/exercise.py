# %% [markdown]
r"""
# Exercises 21 · Sharding

Chapter 21: each rank keeps a part. All of it runs in one process here: a list has an entry for each rank. No task needs another one's
solution. `course check 21` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import torch
from torch import Tensor

from course.variants import variant

# %% [markdown]
r"""
## 21-1 · Parts of equal size

*Repair · difficulty 2/5 · importance 5/5 · 15 minutes*

A collective needs parts of equal size on all ranks. `cut(x, n)` returns a list with the part of each of n ranks: equally many rows, as few as possible, in the
order of the ranks. Where the number of rows does not divide, rows of zeros are added at the end of x. `join(parts, rows)` puts the parts together again and
returns the `rows` rows that x had.

The code below loses rows. Fix it. It must also work for a bias, which has one dimension, and for fewer rows than ranks.

<details><summary>Hint 1</summary>

How many rows does each of 4 ranks get of 5 rows? How many rows of zeros are that in all?
</details>

<details><summary>Hint 2</summary>

`-len(x) % n` is the number of rows that are missing. The other dimensions of the zeros are those of x.
</details>
"""


# %%
#| solution 21-1
def cut(x: Tensor, n: int) -> list[Tensor]:
    """The rows of each of n ranks: equally many, with rows of zeros at the end where x has too few."""
    ### BEGIN SOLUTION
    zeros = x.new_zeros(-len(x) % n, *x.shape[1:])
    return list(torch.cat([x, zeros]).chunk(n))
    ### INSTEAD
    # each = len(x) // n
    # return [x[rank * each : (rank + 1) * each] for rank in range(n)]
    ### END SOLUTION


def join(parts: list[Tensor], rows: int) -> Tensor:
    """All ranks' parts as one tensor, which has so many rows."""
    ### BEGIN SOLUTION
    return torch.cat(parts)[:rows]
    ### INSTEAD
    # return torch.cat(parts)
    ### END SOLUTION


# %%
#| check 21-1
x = torch.arange(10.0).view(5, 2) + 1
parts = cut(x, 4)
sizes = [tuple(part.shape) for part in parts]
assert sizes == [(2, 2)] * 4, (
    f"5 rows on 4 ranks: the parts are {sizes}; two rows each are the fewest that hold all five"
)
assert torch.equal(parts[2], torch.tensor([[9.0, 10.0], [0.0, 0.0]])), (
    f"rank 2 keeps the last row and one row of zeros, not {parts[2].tolist()}"
)
assert torch.equal(join(parts, 5), x), "joined, the parts are not the tensor that they were cut from"
bias = torch.tensor([1.0, 2.0, 3.0])
assert torch.equal(join(cut(bias, 2), 3), bias), "a bias of 3 numbers on 2 ranks comes back as another one"

# %% [markdown]
r"""
## 21-2 · How many ranks?

*Derive · difficulty 3/5 · importance 5/5 · 20 minutes*

Training with 16-bit weights and gradients keeps 2 bytes of a weight, 2 of its gradient, and 12 in the optimizer: two moments and a float32 master. ZeRO's stage 1 divides the optimizer's bytes among the
ranks, stage 2 the gradients as well, stage 3 also the weights. A rank also keeps `activations` bytes, which depend on its own rows and not on the number of ranks.

Write `ranks_needed(parameters, card, activations, stage)`: the smallest number of ranks with which everything fits into `card` bytes on each rank, or `None` if no number of ranks is enough.
All arguments are whole numbers, and a card may be full to the last byte. `answers` is the list for stages 1, 2 and 3 at the values in `mine`, which are yours alone.

<details><summary>Hint 1</summary>

For each stage, write down which bytes are on every rank and which are divided. Put the bytes that every rank needs on one side.
</details>

<details><summary>Hint 2</summary>

What is left of the card after the bytes that nobody divides? If nothing is left, what do more ranks change?
</details>

<details><summary>Hint 3</summary>

`-(-a // b)` is a / b, rounded up, for whole numbers of any size.
</details>
"""

# %%
mine = variant(
    "21-2",
    STUDENT,
    parameters=[1_557_611_200, 6_700_000_000, 13_000_000_000],
    card=[40 * 10**9, 80 * 10**9],
    activations=[4 * 10**9, 9 * 10**9],
)


# %%
#| solution 21-2
def ranks_needed(parameters: int, card: int, activations: int, stage: int) -> int | None:
    """The fewest ranks on which a model trains in a stage of ZeRO, 1 to 3; None if no number of them is enough."""
    ### BEGIN SOLUTION
    divided = {1: 12, 2: 14, 3: 16}[stage]  # bytes of each parameter
    room = card - activations - (16 - divided) * parameters
    if room <= 0:
        return None
    return -(-divided * parameters // room)
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    ranks_needed(**mine, stage=1),
    ranks_needed(**mine, stage=2),
    ranks_needed(**mine, stage=3),
    ### INSTEAD
    # 0,  # stage 1
    # 0,  # stage 2
    # 0,  # stage 3
    ### END SOLUTION
]

# %%
#| check 21-2
assert ranks_needed(10, 100, 0, 1) == 2, (
    f"10 parameters: 40 bytes on every rank and 120 shared by two ranks are 100 bytes, and you say {ranks_needed(10, 100, 0, 1)}"
)
assert ranks_needed(10, 99, 0, 1) == 3, "with one byte less two ranks are no longer enough: round up"
assert ranks_needed(10, 40, 0, 1) is None, (
    "40 bytes are on every rank in stage 1, so nothing is left for the rest"
)
assert ranks_needed(10, 40, 0, 3) == 4, "in stage 3 all 160 bytes are divided"
assert ranks_needed(10, 50, 10, 3) == 4, "activations are on every rank, and are not divided"

# %% [markdown]
r"""
## 21-3 · ZeRO 1 by hand

*Build · difficulty 4/5 · importance 5/5 · 35 minutes*

`weights[r]` is rank r's copy of one weight, of shape (rows, C), and `gradients[r]` the gradient that rank r found on its own rows of the batch. Rank r's part is the block of rows r·k … (r + 1)·k − 1, where
k = rows / n for n ranks; here the rows always divide. `states[r]` is a dictionary in which the optimizer, `momentum`, keeps rank r's moment.

Write `zero_step`, one update by stage 1 of ZeRO. Rank r takes its part of the **mean** of all ranks' gradients, updates its part of its weights with `momentum` and its own state, and then all parts are gathered
into every rank's weights, in place. The law: afterwards all ranks hold the weights that one process would have with the mean gradient, and each rank has a moment for its part only.

<details><summary>Hint 1</summary>

A reduce-scatter is two things: a mean over the ranks, and then one block of its rows for each rank.
</details>

<details><summary>Hint 2</summary>

A slice of a tensor shares its memory. What does `momentum` change if you give it `weights[r][a:b]`?
</details>

<details><summary>Hint 3</summary>

The gathering comes after the last rank's update: rank r's weights get from each other rank s the rows of rank s.
</details>
"""


# %%
def momentum(part: Tensor, gradient: Tensor, state: dict, lr: float = 0.1) -> None:
    """One step of gradient descent with momentum on a part of a weight, in place; `state` keeps the moment."""
    if not state:
        state["moment"] = torch.zeros_like(part)
    state["moment"].mul_(0.9).add_(gradient)
    part -= lr * state["moment"]


# %%
#| solution 21-3
def zero_step(weights: list[Tensor], gradients: list[Tensor], states: list[dict]) -> None:
    """One update of all ranks' copies of a weight, in place, by stage 1 of ZeRO."""
    ### BEGIN SOLUTION
    n = len(weights)
    mean = sum(gradients) / n
    parts = [weight.chunk(n)[rank] for rank, weight in enumerate(weights)]
    for part, gradient, state in zip(parts, mean.chunk(n), states):
        momentum(part, gradient, state)
    updated = torch.cat(parts)
    for weight in weights:
        weight.copy_(updated)
    ### END SOLUTION


# %%
#| check 21-3
g = torch.Generator().manual_seed(0)
start, steps = torch.randn(6, 2, generator=g), torch.randn(3, 2, 6, 2, generator=g)  # (step, rank, rows, C)
weights, states = [start.clone(), start.clone()], [{}, {}]
one, state = start.clone(), {}
for gradients in steps:
    zero_step(weights, list(gradients), states)
    momentum(one, gradients.mean(0), state)
assert torch.equal(*weights), "the ranks' weights are no longer equal: has every rank got all parts?"
assert torch.allclose(weights[0], one, atol=1e-6), (
    "the ranks agree, but one process with the mean of the gradients has other weights"
)
shapes = [tuple(each["moment"].shape) for each in states]
assert shapes == [(3, 2), (3, 2)], f"the moments have the shapes {shapes}; each rank keeps that of its 3 rows"

# %% [markdown]
r"""
## 21-4 · A check for a norm

*Check · difficulty 3/5 · importance 4/5 · 25 minutes*

Clipping needs the norm of all gradients as one vector, and each rank holds parts of it. `norm(parts, copies)` returns that norm as a number. `parts[r]` is the list of rank r's parts of the
gradients that are cut, in any shapes, possibly with no rows. `copies` is the list of the gradients that every rank holds whole, such as a LayerNorm's under tensor parallelism. Each of them is one gradient, and counts once.

Write `check_norm(norm)`, which raises an `AssertionError` if a norm is wrong and accepts every right one. Allow for rounding.

<details><summary>Hint 1</summary>

Which wrong norms are right for one rank, or where all parts have equal norms, or where nothing is copied? Choose inputs where they differ.
</details>

<details><summary>Hint 2</summary>

Choose small whole numbers, for which you know the norm: 3 and 4 on two ranks make 5.
</details>
"""


# %%
#| solution 21-4
def check_norm(norm) -> None:
    """Raises AssertionError unless norm(parts, copies) is the length of all gradients as one vector."""
    ### BEGIN SOLUTION
    three, four, twelve = torch.tensor([3.0]), torch.tensor([[4.0]]), torch.tensor([12.0])
    nothing = torch.zeros(0, 2)
    cases = [
        ([[three], [four]], [], 5),
        ([[three], [four]], [twelve], 13),
        ([[three, four], [twelve, nothing]], [], 13),
        ([[three, four]], [twelve], 13),
        ([[twelve], [nothing], [three, four]], [], 13),
        ([[-three], [-four]], [], 5),
        ([[], []], [three, four], 5),
        ([[torch.zeros(2)], [torch.zeros(2)]], [], 0),
        ([[0.1 * three], [0.1 * four]], [], 0.5),
    ]
    for parts, copies, expected in cases:
        assert abs(norm(parts, copies) - expected) < 1e-4, f"the norm of {parts} and {copies} is {expected}"
    ### END SOLUTION


# %%
#| check 21-4
def refused(norm) -> bool:
    try:
        check_norm(norm)
    except AssertionError:
        return True
    return False


def squares(tensors) -> float:
    return sum(x.square().sum().item() for x in tensors)


def right_norm(parts, copies):
    return (sum(squares(rank) for rank in parts) + squares(copies)) ** 0.5


assert not refused(right_norm), "a right norm is refused"
assert refused(lambda parts, copies: (squares(parts[0]) + squares(copies)) ** 0.5), (
    "here rank 0 takes the norm of its own parts, and your check accepts it"
)
assert refused(lambda parts, copies: right_norm([[*rank, *copies] for rank in parts], [])), (
    "here a gradient that all ranks hold counts once for each rank, and your check accepts it"
)

# %% [markdown]
r"""
## 21-5 · What a step sends

*Derive · difficulty 3/5 · importance 4/5 · 20 minutes*

On a ring of n ranks, each rank sends (n − 1)/n of a tensor's bytes to gather it or to reduce-scatter it, and twice that to all-reduce it. Weights and gradients are float32, and there are `micro` micro-batches in a step.

- Stage 0 (DDP) all-reduces the gradients once a step.
- Stage 1 reduce-scatters the gradients once a step and gathers the updated weights.
- Stage 2 keeps parts of the gradients only. What must it do after each micro-batch?
- Stage 3 gathers the weights for forward and again for backward, in each micro-batch, and reduce-scatters the gradients. (All weights are treated alike; FSDP2 keeps its root, which we leave out here.)

Write `sent(parameters, n, stage, micro)`, the bytes that a rank sends in a step, as a number. `sums` is the list of stages 0, 1, 2 and 3 at the values in `mine`.

<details><summary>Hint 1</summary>

Write each stage as a number of gathers and reduce-scatters. An all-reduce is one of each.
</details>

<details><summary>Hint 2</summary>

With one micro-batch stages 0, 1 and 2 send the same. Which of them changes with the second?
</details>
"""

# %%
mine = variant(
    "21-5", STUDENT, parameters=[124_439_808, 354_823_168, 774_030_080], n=[8, 16, 64], micro=[2, 4, 8]
)


# %%
#| solution 21-5
def sent(parameters: int, n: int, stage: int, micro: int) -> float:
    """Bytes that a rank sends in a step of ZeRO's stage 0, 1, 2 or 3."""
    ### BEGIN SOLUTION
    gathers = {0: 1, 1: 1, 2: 1, 3: 2 * micro}[stage]
    reduces = {0: 1, 1: 1, 2: micro, 3: micro}[stage]
    return (gathers + reduces) * (n - 1) / n * 4 * parameters
    ### END SOLUTION


sums = [
    ### BEGIN SOLUTION
    sent(**mine, stage=0),
    sent(**mine, stage=1),
    sent(**mine, stage=2),
    sent(**mine, stage=3),
    ### INSTEAD
    # 0.0,  # stage 0
    # 0.0,  # stage 1
    # 0.0,  # stage 2
    # 0.0,  # stage 3
    ### END SOLUTION
]

# %%
#| check 21-5
assert all(sent(10, 1, stage, 4) == 0 for stage in range(4)), "one rank sends nothing"
assert abs(sent(10, 2, 0, 1) - 40) < 1e-9, (
    f"two ranks all-reduce 40 bytes: each sends half of them twice, 40 bytes, not {sent(10, 2, 0, 1)}"
)
assert sent(10, 4, 0, 1) == sent(10, 4, 1, 1) == sent(10, 4, 2, 1), (
    "with one micro-batch, stages 0 to 2 send the same"
)
assert abs(sent(10, 4, 3, 1) / sent(10, 4, 0, 1) - 1.5) < 1e-9, "stage 3 sends half as much again as DDP"
assert sent(10, 4, 0, 8) == sent(10, 4, 0, 1), (
    "DDP averages once a step, however many micro-batches there are"
)

# %% [markdown]
r"""
#| manual 21-6
## 21-6 · Sharded, and still full

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A model of 3 billion parameters trains under autocast in bf16 with FSDP2 on 64 cards of 24 GB. Stage 3's formula promises 0.75 GB on each rank, and the run stops with "out of memory" in its first step. A colleague wants to
order 64 more cards. In four sentences: name two things that are on every rank and that no number of ranks divides; say for each of them which change removes it or makes it smaller; and say what the 64 more cards would bring.
"""
