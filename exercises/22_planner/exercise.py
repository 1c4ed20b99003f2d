# %% [markdown]
r"""
# Exercises 22 · Planner

Chapters 22 and 22a: what a run keeps, how long it takes, and what it costs, before a GPU is rented. No task needs another one's solution.
`course check 22` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
from collections.abc import Callable

from course.variants import variant

# %% [markdown]
r"""
## 22-1 · Which stage is full?

*Derive · difficulty 3/5 · importance 5/5 · 25 minutes*

A pipeline has `pp` stages, from 0 to pp − 1, and each stage has the same number of layers. A layer keeps `states` bytes for its weights, gradients and moments, and `kept` bytes of activations for each micro-batch whose backward is still to come. With the usual
schedule (1F1B), stage s has pp − s micro-batches under way, or all of them if there are only fewer. The token table's states, `table` bytes, are on the first stage and on the last. The last stage also keeps `loss` bytes, the logits and their
gradients, for each micro-batch that it has under way.

Write `stage_bytes(s, pp, layers, micro, states, kept, table, loss)` for pp of at least 2, and `fullest(pp, layers, micro, states, kept, table, loss)`, the number of the stage that keeps most (the first of them, if several do). `layers` are those of the
model, and pp divides them. `answers` is the list of both, `stage_bytes` for stage 0, at the values in `mine`.

<details><summary>Hint 1</summary>

Draw the four stages of a pipeline and write below each how many micro-batches it has under way. What is that for the last one?
</details>

<details><summary>Hint 2</summary>

A list of all stages' bytes has an index for its largest entry. Which index does `list.index` give if there are two?
</details>
"""

# %%
mine = variant(
    "22-1",
    STUDENT,
    pp=[4, 8],
    layers=[32, 48],
    micro=[3, 16],
    states=[3_200_000_000, 800_000_000],
    kept=[140_000_000, 560_000_000],
    table=[3_300_000_000, 1_200_000_000],
    loss=[800_000_000, 2_400_000_000],
)


# %%
#| solution 22-1
def stage_bytes(
    s: int, pp: int, layers: int, micro: int, states: int, kept: int, table: int, loss: int
) -> int:
    """Bytes that stage s of a pipeline keeps."""
    ### BEGIN SOLUTION
    under_way = min(micro, pp - s)
    total = layers // pp * (states + under_way * kept)
    if s in (0, pp - 1):
        total += table
    if s == pp - 1:
        total += under_way * loss
    return total
    ### END SOLUTION


def fullest(pp: int, layers: int, micro: int, states: int, kept: int, table: int, loss: int) -> int:
    """The stage that keeps most, the first of them."""
    ### BEGIN SOLUTION
    every = [stage_bytes(s, pp, layers, micro, states, kept, table, loss) for s in range(pp)]
    return every.index(max(every))
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    stage_bytes(0, **mine),
    fullest(**mine),
    ### INSTEAD
    # 0,  # bytes of stage 0
    # 0,  # the fullest stage
    ### END SOLUTION
]

# %%
#| check 22-1
got = [stage_bytes(s, 4, 8, 100, 1000, 10, 0, 0) for s in range(4)]
assert got == [2080, 2060, 2040, 2020], (
    f"four stages of two layers keep {got}; stage 0 has 4 micro-batches under way, stage 3 has 1: [2080, 2060, 2040, 2020]"
)
assert stage_bytes(0, 4, 8, 2, 1000, 10, 0, 0) == 2040, (
    "with two micro-batches in all, no stage has four under way"
)
got = [stage_bytes(s, 4, 8, 100, 0, 0, 7, 5) for s in range(4)]
assert got == [7, 0, 0, 12], (
    f"the token table is on the first and the last stage, the loss on the last: not {got}"
)
assert fullest(4, 8, 100, 1000, 10, 0, 0) == 0 and fullest(4, 8, 100, 1000, 10, 0, 1000) == 3, (
    "a small loss leaves the first stage the fullest, and a large one makes it the last"
)

# %% [markdown]
r"""
## 22-2 · A line with a corner

*Repair · difficulty 3/5 · importance 4/5 · 15 minutes*

`stages` is a list of functions: `stage(B)` is the number of bytes that one stage of a pipeline keeps with B rows in a micro-batch. Each of them is a straight line in B that rises. `largest(stages, room)` returns the
largest B with which **every** stage fits into `room` bytes, or 0 if not even one row does.

The code below takes the fullest stage for B = 1 and for B = 2 and lays a line through the two numbers. It is often right, and sometimes far too large. Fix it. All bytes are whole numbers.

<details><summary>Hint 1</summary>

The fullest stage for one row is not always the fullest for a hundred. Draw two lines that cross.
</details>

<details><summary>Hint 2</summary>

Two points give a line. Which two points belong to the same line?
</details>
"""


# %%
#| solution 22-2
def largest(stages: list[Callable[[int], int]], room: int) -> int:
    """The largest B for which every stage keeps at most `room` bytes; 0 if there is none."""
    ### BEGIN SOLUTION
    most = []
    for stage in stages:
        one, two = stage(1), stage(2)
        most.append((room - one) // (two - one) + 1)
    return max(0, min(most))
    ### INSTEAD
    # one, two = (max(stage(B) for stage in stages) for B in (1, 2))
    # return max(0, (room - one) // (two - one) + 1)
    ### END SOLUTION


# %%
#| check 22-2
first, last = lambda B: 1000 + 2 * B, lambda B: 100 + 50 * B
assert largest([first], 1010) == 5, (
    f"1000 + 2 · 5 = 1010 bytes fit into 1010, and you say {largest([first], 1010)}"
)
assert largest([first], 1001) == 0, "where one row does not fit, the answer is 0"
got = largest([first, last], 1100)
assert got == 20, (
    f"with {got} rows the stages keep {first(got)} and {last(got)} bytes of 1100; 20 rows fit, and 21 do not"
)

# %% [markdown]
r"""
## 22-3 · A pipeline's clock

*Build · difficulty 4/5 · importance 4/5 · 35 minutes*

GPipe runs all forward passes of m micro-batches and then all backward passes. Stage s takes `forward[s]` seconds for a forward pass and `backward[s]` for a backward pass. A stage does one thing at a time. It can begin the forward pass of a micro-batch
when the stage before has finished that micro-batch, and the backward pass when the stage behind has. The last stage begins with backward when it has finished all its forward passes. Sending takes no time.

Write `finish(forward, backward, m)`, the seconds until all stages have finished, and `idle(forward, backward, m)`, a list with each stage's share of that time in which it does nothing. `mine` gives seconds that are yours, and `answers` is
the list of `finish` and of stage 0's idle share.

<details><summary>Hint 1</summary>

Keep, for each stage, the time at which it is free again. A forward pass begins at the later of two times.
</details>

<details><summary>Hint 2</summary>

Backward is the same clock, with the stages in reverse order.
</details>

<details><summary>Hint 3</summary>

With equal stages the answer is (m + pp − 1) times forward plus backward. Which stage sets the pace if they are unequal?
</details>
"""

# %%
mine = variant(
    "22-3",
    STUDENT,
    forward=[[1.0, 1.0, 1.0, 1.4], [1.2, 1.0, 1.0, 1.5], [0.9, 1.1, 1.1, 1.6]],
    backward=[[2.0, 2.0, 2.0, 2.9], [2.4, 2.1, 2.1, 3.0]],
    m=[4, 8, 16],
)


# %%
#| solution 22-3
def finish(forward: list[float], backward: list[float], m: int) -> float:
    """Seconds until every stage has done m forward and m backward passes, by GPipe's schedule."""
    ### BEGIN SOLUTION
    clock = 0.0
    for order in (forward, backward[::-1]):
        free = [clock] * len(order)  # when each stage, in this order, is free
        for _ in range(m):
            arrived = clock
            for s, time in enumerate(order):
                free[s] = max(free[s], arrived) + time
                arrived = free[s]
        clock = free[-1]
    return clock
    ### END SOLUTION


def idle(forward: list[float], backward: list[float], m: int) -> list[float]:
    """The share of the time in which each stage does nothing."""
    ### BEGIN SOLUTION
    total = finish(forward, backward, m)
    return [1 - m * (f + b) / total for f, b in zip(forward, backward)]
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    finish(**mine),
    idle(**mine)[0],
    ### INSTEAD
    # 0.0,  # finish
    # 0.0,  # the idle share of stage 0
    ### END SOLUTION
]

# %%
#| check 22-3
assert abs(finish([1.0] * 4, [2.0] * 4, 8) - 33) < 1e-9, (
    f"four equal stages and eight micro-batches take (8 + 3) · 3 = 33 seconds, not {finish([1.0] * 4, [2.0] * 4, 8)}"
)
assert abs(idle([1.0] * 4, [2.0] * 4, 8)[2] - 3 / 11) < 1e-9, "of 33 seconds each of these stages works 24"
assert finish([1.0], [2.0], 5) == 15 and idle([1.0], [2.0], 5) == [0], "one stage alone is never idle"
assert abs(finish([1.0, 3.0], [1.0, 1.0], 2) - 10) < 1e-9, (
    f"stage 1 begins after 1 second and needs 3 for each forward pass: 7, then 3 for backward, not {finish([1.0, 3.0], [1.0, 1.0], 2)}"
)

# %% [markdown]
r"""
## 22-4 · Days and money

*Derive · difficulty 3/5 · importance 5/5 · 25 minutes*

n GPUs train with data parallelism. A step reads `tokens` tokens on **each** GPU, in `micro` micro-batches of equal size, and a token takes `flops` FLOPs, forward and backward together, of which backward has two thirds. A GPU computes at the share `mfu` of its data sheet's `sheet` FLOP/s.
Averaging the gradients takes `sending` seconds. It can hide only behind the backward pass of the **last** micro-batch, and what does not hide is added to the step.

Write `step_seconds(tokens, flops, sheet, mfu, micro, sending)` and `price(seconds, tokens, n, run_tokens, dollars)`: what a run of `run_tokens` tokens costs, if a step takes so many seconds and a GPU costs `dollars` for an hour. `answers`
is the list of the seconds and the price at the values in `mine`.

<details><summary>Hint 1</summary>

Computing first. How long is one micro-batch, and how long is its backward pass?
</details>

<details><summary>Hint 2</summary>

How many tokens does a step of all GPUs read? Every GPU is paid for all the time.
</details>
"""

# %%
mine = variant(
    "22-4",
    STUDENT,
    tokens=[65_536, 131_072],
    flops=[8.6e8, 2.4e9],
    sheet=[312e12, 989e12],
    mfu=[0.35, 0.5],
    micro=[2, 4, 8],
    sending=[0.06, 0.2],
    n=[8, 16],
    run_tokens=[10e9, 100e9],
    dollars=[1.5, 2.5],
)


# %%
#| solution 22-4
def step_seconds(tokens: int, flops: float, sheet: float, mfu: float, micro: int, sending: float) -> float:
    """Seconds of a step: computing, and the sending that does not hide behind the last backward pass."""
    ### BEGIN SOLUTION
    computing = tokens * flops / (sheet * mfu)
    cover = computing / micro * 2 / 3
    return computing + max(0.0, sending - cover)
    ### END SOLUTION


def price(seconds: float, tokens: int, n: int, run_tokens: float, dollars: float) -> float:
    """What a run costs whose step takes so many seconds and reads `tokens` tokens on each of n GPUs."""
    ### BEGIN SOLUTION
    steps = run_tokens / (tokens * n)
    return steps * seconds / 3600 * n * dollars
    ### END SOLUTION


seconds = step_seconds(
    **{name: mine[name] for name in ("tokens", "flops", "sheet", "mfu", "micro", "sending")}
)
answers = [
    ### BEGIN SOLUTION
    seconds,
    price(seconds, mine["tokens"], mine["n"], mine["run_tokens"], mine["dollars"]),
    ### INSTEAD
    # 0.0,  # seconds
    # 0.0,  # price
    ### END SOLUTION
]

# %%
#| check 22-4
assert abs(step_seconds(100, 6.0, 1200.0, 0.5, 1, 0.0) - 1) < 1e-9, (
    "600 FLOPs at half of 1,200 a second take one second"
)
assert abs(step_seconds(100, 6.0, 1200.0, 0.5, 1, 0.6) - 1) < 1e-9, (
    "0.6 s of sending hide behind 0.667 s of backward"
)
got = step_seconds(100, 6.0, 1200.0, 0.5, 4, 0.6)
assert abs(got - 1.4333333) < 1e-6, (
    f"with four micro-batches the last backward takes 0.167 s, so 0.433 s of sending are left: 1.433 s, not {got:.3f}"
)
assert abs(price(3.6, 10, 2, 20_000, 5.0) - 10) < 1e-9, (
    "20,000 tokens at 20 a step are 1,000 steps, one hour: two GPUs at 5 dollars cost 10"
)

# %% [markdown]
r"""
## 22-5 · A check for a schedule

*Check · difficulty 5/5 · importance 3/5 · 45 minutes*

`schedule(pp, m)` is a pipeline's plan: a list with one list for each stage, and in it what the stage does, in this order. `("F", i)` is the forward pass of micro-batch i, `("B", i)` its backward pass. A plan is right if

- every stage does each of the m forward and m backward passes once, and nothing else;
- stage s never has more than pp − s micro-batches under way, of which it has done the forward pass and not the backward pass;
- it does not deadlock. A stage can do `("F", i)` when the stage before has done it, and `("B", i)` when the stage behind has done it; the last stage when it has done its own forward pass. A stage that cannot do what comes next waits.

Write `check_schedule(schedule)`, which raises an `AssertionError` if a rule is broken and accepts all plans that keep them.

<details><summary>Hint 1</summary>

Run the plan. Keep for each stage how far it is in its list, and go around all stages until nobody can do anything.
</details>

<details><summary>Hint 2</summary>

If nobody can go on and somebody has not finished, that is the deadlock.
</details>

<details><summary>Hint 3</summary>

Which pp and m are special? Fewer micro-batches than stages, one stage, one micro-batch.
</details>
"""


# %%
#| solution 22-5
def check_schedule(schedule) -> None:
    """Raises AssertionError unless schedule(pp, m) is complete, keeps 1F1B's memory and does not deadlock."""
    ### BEGIN SOLUTION
    for pp, m in ((1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (4, 4), (4, 9)):
        plan = schedule(pp, m)
        assert len(plan) == pp, f"pp={pp}, m={m}: {len(plan)} stages"
        every = sorted((what, i) for what in "BF" for i in range(m))
        done = [[] for _ in range(pp)]
        for s, todo in enumerate(plan):
            assert sorted((what, i) for what, i in todo) == every, f"pp={pp}, m={m}: stage {s} does {todo}"
        moved = True
        while moved:
            moved = False
            for s, todo in enumerate(plan):
                if len(done[s]) == len(todo):
                    continue
                what, i = todo[len(done[s])]
                forward_ready = what == "F" and (s == 0 or ("F", i) in done[s - 1])
                source = done[s + 1] if s + 1 < pp else [("B", i)]
                backward_ready = what == "B" and ("F", i) in done[s] and ("B", i) in source
                if forward_ready or backward_ready:
                    done[s].append((what, i))
                    moved = True
                    under_way = sum(1 if kind == "F" else -1 for kind, _ in done[s])
                    assert under_way <= pp - s, f"pp={pp}, m={m}: stage {s} has {under_way} under way"
        assert all(len(d) == 2 * m for d in done), f"pp={pp}, m={m}: nobody can go on"
    ### END SOLUTION


# %%
#| check 22-5
def refused(schedule) -> bool:
    try:
        check_schedule(schedule)
    except AssertionError:
        return True
    return False


def one_forward_one_backward(pp, m):
    plan = []
    for s in range(pp):
        ahead = min(m, pp - s)  # forward passes before the first backward pass
        todo = [("F", i) for i in range(ahead)]
        for i in range(m):
            todo.append(("B", i))
            if ahead + i < m:
                todo.append(("F", ahead + i))
        plan.append(todo)
    return plan


def all_forward_first(pp, m):
    return [[("F", i) for i in range(m)] + [("B", i) for i in range(m)] for _ in range(pp)]


assert not refused(one_forward_one_backward), (
    "your check refuses the usual schedule, one forward and one backward"
)
assert refused(all_forward_first), "GPipe keeps all micro-batches at once, and your check accepts it"
assert refused(lambda pp, m: one_forward_one_backward(pp, m)[:-1]), (
    "here the last stage is missing, and your check accepts it"
)

# %% [markdown]
r"""
#| manual 22-6
## 22-6 · Before you rent

*Explain · difficulty 3/5 · importance 5/5 · 10 minutes*

The planner says that a run of ten billion tokens takes 2 to 5 days on eight rented cards. In four sentences: which one number does the range come from, and why can no formula give it; how would you measure it before you rent eight
cards for days, on how many cards and for how long; and name one cause, with the line of the planner where it would show, for which the eight cards together may still be slower than eight times one.
"""
