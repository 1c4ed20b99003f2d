# %% [markdown]
r"""
# Exercises 25 · Speedrun

They belong to chapters 25 and 25b. No task needs another one's solution, and nothing is trained. `course check 25` runs the visible checks.
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
## 25-1 · How sure is a record?

*Derive · difficulty 3/5 · importance 5/5 · 20 minutes*

A recipe was run with a few seeds. Its mean loss is `margin` below the bar, and the standard deviation of the runs (as `statistics.stdev`
computes it) is `spread`. A record needs p < 0.01: the margin must be larger than t · spread / √n, where n is the number of runs. `T99`
has Student's t for each n. For the numbers in `mine` compute:

- `needed`: the smallest n from 5 to 10 with which this margin and this spread make a record;
- `least`: the margin that *five* runs with this spread must exceed, in nats;
- `lucky`: somebody tries `recipes` different recipes. For each of them the mean of all possible runs is exactly at the bar, so that
  none is a record. The test wrongly accepts each of them with a probability of 0.01. How probable is it that it accepts at least one?

<details><summary>Hint 1</summary>

`t · spread / √n` falls with n for two reasons. Try the six numbers in turn.
</details>

<details><summary>Hint 2</summary>

The opposite of "at least one" is "none". How probable is it that one recipe is refused, and that all are?
</details>
"""

# %%
T99 = {5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998, 9: 2.896, 10: 2.821}  # Student's t, one-sided p = 0.01
mine = variant(
    "25-1",
    STUDENT,
    margin=[0.0115, 0.012, 0.013, 0.016],
    spread=[0.0100, 0.0105, 0.0115],
    recipes=[8, 12, 20, 30],
)
mine

# %%
#| solution 25-1
### BEGIN SOLUTION
margin, spread, recipes = (mine[name] for name in ("margin", "spread", "recipes"))
needed = min(n for n, t in T99.items() if margin > t * spread / math.sqrt(n))
least = T99[5] * spread / math.sqrt(5)
lucky = 1 - 0.99**recipes
### INSTEAD
# needed = 0  # runs
# least = 0.0  # nats
# lucky = 0.0  # a probability
### END SOLUTION

# %%
#| check 25-1
assert needed in T99, "a record has 5 to 10 runs"
assert least > mine["spread"], "with five runs, t/√n is more than 1: the margin must exceed the spread itself"
assert 0.01 < lucky < 1, "more recipes give more chances than one"

# %% [markdown]
r"""
## 25-2 · No step at rate zero

*Build · difficulty 3/5 · importance 4/5 · 20 minutes*

Write `factors(steps, warmup, cooldown, last)`: the factor of the learning rate for each step, a list of `steps` numbers.

- In the first `warmup` steps the factor rises in equal parts, and the last of them is the first with the factor 1. With `warmup=4`: 0.25, 0.5, 0.75, 1.
- In the last `cooldown` steps the factor falls in equal parts. The step *after* the last one, which is never made, would have the factor `last`.
  With `cooldown=4` and `last=0`: the last four factors are 1, 0.75, 0.5, 0.25.
- Where warm-up and cooldown overlap, the smaller factor counts. All other steps have the factor 1. `warmup` and `cooldown` may be 0,
  and `cooldown` may be as large as `steps`.

So no step is wasted with a rate of zero, neither at the beginning nor at the end.

<details><summary>Hint 1</summary>

In step s (from 0) there are `left = steps - s` steps to go, this one included.
</details>

<details><summary>Hint 2</summary>

During the cooldown the factor is `last` plus a share of `1 - last`. Which share has the first of these steps, and which one has the last?
</details>
"""


# %%
#| solution 25-2
def factors(steps: int, warmup: int, cooldown: int, last: float) -> list[float]:
    """The factor of the learning rate in each step: up in `warmup` steps, 1, and down towards `last` in `cooldown` steps."""
    ### BEGIN SOLUTION
    found = []
    for step in range(steps):
        up = (step + 1) / warmup if warmup else 1.0
        left = (steps - step) / cooldown if cooldown else 1.0
        down = last + (1 - last) * min(1.0, left)
        found.append(min(1.0, up, down))
    return found
    ### END SOLUTION


# %%
#| check 25-2
got = factors(12, 4, 4, 0.0)
assert len(got) == 12, f"12 steps have 12 factors, not {len(got)}"
assert min(got) > 0, f"step {got.index(min(got))} has a rate of zero, so it learns nothing"
for at, expected in ((0, 0.25), (3, 1.0), (6, 1.0), (8, 1.0), (9, 0.75), (11, 0.25)):
    assert abs(got[at] - expected) < 1e-9, f"step {at} has the factor {got[at]:.3f}, not {expected}"
assert abs(factors(12, 0, 4, 0.2)[11] - 0.4) < 1e-9, "with last=0.2 the last step has 0.2 + 0.8 / 4"

# %% [markdown]
r"""
## 25-3 · A norm that sees the future

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

A colleague normalizes queries and keys, and the loss falls below the floor. Such a model must have seen its targets. Find out how, and
repair `scores`: each query and each key (the d numbers of one head at one position) is divided by the root of the mean of its squares, as
`F.rms_norm` does it. The scores are q · k / √d, and −∞ where the key is later than the query. A query of zeros gives scores of 0, not nan. The given tensors stay as they are.

<details><summary>Hint 1</summary>

Change the last position of k. Which scores change, and which ones should?
</details>

<details><summary>Hint 2</summary>

The mean must be over the numbers of one vector. Which of the four axes is that?
</details>

<details><summary>Hint 3</summary>

What is 0 divided by the root of 0? Add something very small, such as 1e-6, below the root.
</details>
"""


# %%
#| solution 25-3
def scores(q: Tensor, k: Tensor) -> Tensor:
    """Causal scores of normalized queries and keys. q, k: (B, n_head, T, d) -> (B, n_head, T, T)."""
    ### BEGIN SOLUTION
    T, d = q.shape[-2:]
    q = q / (q.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    k = k / (k.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
    ### INSTEAD
    # T, d = q.shape[-2:]
    # q = q / q.square().mean(dim=-2, keepdim=True).sqrt()
    # k = k / k.square().mean(dim=-2, keepdim=True).sqrt()
    # future = torch.ones(T, T, dtype=torch.bool).triu(1)
    # return (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
    ### END SOLUTION


# %%
#| check 25-3
q, k = torch.arange(1.0, 17.0).view(1, 1, 4, 4), torch.arange(16.0, 0.0, -1.0).view(1, 1, 4, 4).square()
later = k.clone()
later[..., 3, :] = torch.tensor([9.0, -9.0, 5.0, 1.0])
got = scores(q.clone(), k.clone())
assert got.shape == (1, 1, 4, 4), f"the scores have the shape {tuple(got.shape)}, not (1, 1, 4, 4)"
assert torch.equal(scores(q.clone(), later)[..., :3, :], got[..., :3, :]), (
    "another last key changes what earlier positions see"
)
assert got[got.isfinite()].abs().max() <= 2.001, "the length of both is √d, so no score can exceed √d = 2"
assert not scores(torch.zeros_like(q), k.clone()).isnan().any(), "a query of zeros gives nan"

# %% [markdown]
r"""
## 25-4 · Half of the pairs turn

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

In modded-nanogpt only half of the pairs rotate, those with the high frequencies. The other pairs do not depend on the position. We use simpler
frequencies than modded-nanogpt does. Write `turned(x, base)`: x has the shape (B, n_head, T, d), where d is a multiple of 4. Number i is a pair with number i + d/2, for i = 0 … d/2 − 1.
At position t, pair i turns by the angle

t · base^(−i / (d/4)) for i < d/4, and by 0 for the other pairs.

Turning (a, b) by an angle gives (a · cos − b · sin, b · cos + a · sin). x itself must not change.

<details><summary>Hint 1</summary>

Make a tensor of T × d/2 angles first. Its right half is zero.
</details>

<details><summary>Hint 2</summary>

`x.chunk(2, dim=-1)` gives the first and the second numbers of all pairs.
</details>
"""


# %%
#| solution 25-4
def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions for the first half of the pairs. (B, n_head, T, d) -> the same shape."""
    ### BEGIN SOLUTION
    T, d = x.shape[-2:]
    speeds = base ** -(torch.arange(d // 4) / (d // 4))
    speeds = torch.cat([speeds, torch.zeros(d // 4)])  # (d/2,)
    angles = torch.arange(T)[:, None] * speeds  # (T, d/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
    ### END SOLUTION


# %%
#| check 25-4
x = torch.arange(1.0, 17.0).view(1, 1, 2, 8)
got = turned(x.clone(), 100.0)
assert got.shape == x.shape, f"the shape is {tuple(got.shape)}, not {tuple(x.shape)}"
assert torch.equal(got[0, 0, 0], x[0, 0, 0]), "at position 0 nothing turns"
assert torch.allclose(got.norm(dim=-1), x.norm(dim=-1)), "a rotation keeps the length of a vector"
assert torch.equal(got[0, 0, 1, [2, 3, 6, 7]], x[0, 0, 1, [2, 3, 6, 7]]), "pairs 2 and 3 of d = 8 do not turn"
expected = 9 * math.cos(1) - 13 * math.sin(1)
assert abs(got[0, 0, 1, 0] - expected) < 1e-4, (
    f"pair 0 at position 1 turns by 1: its first number is {expected:.3f}, not {got[0, 0, 1, 0]:.3f}"
)

# %% [markdown]
r"""
## 25-5 · Backward through a squared ReLU

*Derive · difficulty 3/5 · importance 3/5 · 25 minutes*

An MLP without biases computes y = relu(x · upᵀ)² · downᵀ. Somebody gives you the gradient of the loss with respect to y. Write
`backward(x, up, down, dy)`, which computes the gradients of x, of `up` and of `down` by hand and returns them in this order. x and dy have the shape
(N, C), `up` has (H, C), `down` has (C, H). (Autograd could do it. The point is to know what it does.)

<details><summary>Hint 1</summary>

Give names to the steps: h = x · upᵀ, r = relu(h), s = r². Go back through them one by one.
</details>

<details><summary>Hint 2</summary>

The derivative of relu(h)² is 2h where h is positive, and 0 elsewhere. Which of your tensors is that already?
</details>
"""


# %%
#| solution 25-5
def backward(x: Tensor, up: Tensor, down: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (N, C), up (H, C) and down (C, H) for y = relu(x @ up.T)² @ down.T, from dy (N, C)."""
    ### BEGIN SOLUTION
    r = F.relu(x @ up.T)  # (N, H)
    ddown = dy.T @ r.square()
    dh = dy @ down * 2 * r
    return dh @ up, dh.T @ x, ddown
    ### END SOLUTION


# %%
#| check 25-5
x, up, down = (
    torch.tensor([[1.0, -2.0]]),
    torch.tensor([[3.0, 1.0], [1.0, 1.0], [0.0, -1.0]]),
    torch.ones(2, 3),
)
got = backward(x, up, down, torch.tensor([[1.0, 0.0]]))
names, shapes = ("x", "up", "down"), ((1, 2), (3, 2), (2, 3))
for name, gradient, shape in zip(names, got, shapes):
    assert gradient.shape == shape, (
        f"the gradient of {name} has the shape {tuple(gradient.shape)}, not {shape}"
    )
assert torch.equal(got[2], torch.tensor([[1.0, 0.0, 4.0], [0.0, 0.0, 0.0]])), (
    "the gradient of down is dyᵀ · relu(h)²"
)
assert torch.equal(got[1][1], torch.zeros(2)), (
    "hidden number 1 is negative here: its row of up gets no gradient"
)
assert torch.equal(got[0], torch.tensor([[6.0, -2.0]])), "h = (1, −1, 2), so the gradient of h is (2, 0, 4)"

# %% [markdown]
r"""
## 25-6 · A referee for evaluations

*Check · difficulty 4/5 · importance 5/5 · 30 minutes*

A text of n ids is evaluated in windows. Somebody claims that their windows keep rule 2 of the race. All that they show is a function:

```python
windows = plan(n, context)  # a list of (start, new, stop)
```

For each window the model reads the ids `start`, `start` + 1, …, `stop` − 1. Each of them predicts the id after it, and only the
predictions of the ids `new` + 1, …, `stop` count. So a window has `start` ≤ `new` < `stop`, and the last id of the text is n − 1.

Write `check_plan(plan)`. It raises an `AssertionError` unless the windows keep the rule: each id but the first is a target exactly once,
a window reads at most `context` ids, and all of them exist. Windows may overlap, and they may come in any order. n can be any number
from 2 to 1,000, and `context` any number from 1 to 100.

Your check will be tried on right and wrong plans that you do not see. Some keep the rule for most n, and cheat for a few.
Refusing a right plan costs all points; else the share of wrong ones that are refused counts. Keep to 2,000 calls of `plan`.

<details><summary>Hint 1</summary>

Collect the targets of all windows in one list. What must this list be, once it is sorted?
</details>

<details><summary>Hint 2</summary>

The model may read too much although every target is there once. Look at `start` and `stop`, too.
</details>

<details><summary>Hint 3</summary>

Where could somebody cheat? At the end of the text, if it does not fit into windows; if it fits exactly; if it is shorter than one
window; if it is long. Try many n with many contexts.
</details>
"""


# %%
#| solution 25-6
def check_plan(plan) -> None:
    """AssertionError unless plan(n, context) gives windows (start, new, stop) that keep rule 2."""
    ### BEGIN SOLUTION
    for context in (1, 2, 3, 7, 16, 64, 100):
        for n in [*range(2, 70), 100, 128, 129, 130, 200, 256, 257, 300, 301, 500, 513, 700, 999, 1000]:
            targets = []
            for start, new, stop in plan(n, context):
                assert 0 <= start <= new < stop <= n - 1, f"n={n}: the window {start}, {new}, {stop}"
                assert stop - start <= context, f"n={n}: a window reads {stop - start} ids, not {context}"
                targets += range(new + 1, stop + 1)
            assert sorted(targets) == list(range(1, n)), f"n={n}, context={context}: not each target once"
    ### END SOLUTION


# %%
#| check 25-6
def says(plan) -> str:
    try:
        check_plan(plan)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


def side_by_side(n, context):
    return [(at, at, min(at + context, n - 1)) for at in range(0, n - 1, context)]


def one_by_one(n, context):
    return [(max(0, stop - context), stop - 1, stop) for stop in range(1, n)]


assert says(side_by_side) == "accepted", f"windows side by side are {says(side_by_side)}"
assert says(one_by_one) == "accepted", f"a window for each target is {says(one_by_one)}"
assert says(lambda n, context: side_by_side(n, 2 * context)) != "accepted", "twice the context is accepted"
assert says(lambda n, context: []) != "accepted", "no window at all is accepted"
