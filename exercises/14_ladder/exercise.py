# %% [markdown]
r"""
# Exercises 14 · The ladder

No task needs another one's solution, and none measures anything: predictions and judgements can be right or wrong on any
machine. `course check 14` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
from statistics import median

from course.variants import variant
from nanogpt.labs.roofline.work import predict_step
from nanogpt.model import GPTConfig, num_params
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.labs.roofline.clock import Roofline

# %% [markdown]
r"""
## 14-1 · What is left of a factor

*Derive · difficulty 2/5 · importance 5/5 · 15 minutes*

TF32 multiplies eight times as fast, and the step got three times as fast. Write Amdahl's law in both directions. A step consists of parts that take
`seconds[i]`, one after the other.

`speedup(seconds, factors)`: by what factor the step gets faster if part i gets faster by `factors[i]` (1: stays as it is).

`factor_needed(seconds, i, wanted)`: by what factor part i alone must get faster so that the step gets faster by `wanted`; `None` where no
factor is enough, however large.

Parts of 6, 3 and 1 s, factors 8, 1, 1: the step takes 4.75 s, so 2.105. For a step twice as fast the first part needs a factor of 6; for one
of 2.5, none is enough.

<details><summary>Hint 1</summary>

Factors cannot be averaged, times can be added. What does the step take before, and what afterwards?
</details>

<details><summary>Hint 2</summary>

The step may take sum(seconds) / wanted. How much of that do the other parts leave?
</details>
"""


# %%
#| solution 14-1
def speedup(seconds: list[float], factors: list[float]) -> float:
    """The factor of a whole step whose parts get faster by a factor each."""
    ### BEGIN SOLUTION
    return sum(seconds) / sum(s / f for s, f in zip(seconds, factors))
    ### END SOLUTION


def factor_needed(seconds: list[float], i: int, wanted: float) -> float | None:
    """The factor that part i alone needs, so that the step gets faster by `wanted`; None where none is enough."""
    ### BEGIN SOLUTION
    left = sum(seconds) / wanted - (sum(seconds) - seconds[i])
    return seconds[i] / left if left > 0 else None
    ### END SOLUTION


# %%
#| check 14-1
parts = [6.0, 3.0, 1.0]
assert abs(speedup(parts, [8, 1, 1]) - 10 / 4.75) < 1e-6, (
    "the example: 10 s before, 0.75 + 3 + 1 s afterwards"
)
assert abs(speedup(parts, [2, 2, 2]) - 2) < 1e-6, "all parts twice as fast: the step is twice as fast"
assert abs(factor_needed(parts, 0, 2.0) - 6) < 1e-6, "5 s are allowed, the others take 4: one is left for 6"
assert factor_needed(parts, 0, 2.5) is None, "the other parts alone take as long as the whole step may"
assert factor_needed(parts, 2, 3.0) is None, "a time cannot be negative, nor can a factor"

# %% [markdown]
r"""
## 14-2 · An optimizer, predicted

*Predict · difficulty 2/5 · importance 4/5 · 15 minutes*

The model `mine` (GPT-2's vocabulary and context, float32 weights) is trained on `gpu`; forward and backward take `rest_ms`. AdamW moves nothing but bytes:
twenty passes of 4 bytes over all parameters in pieces, and fused what the chapter says. Take the bandwidth from the data sheet, `PEAKS[...]`, whose unit is 10⁹ bytes a second, and
leave the gradient's norm aside.

- `pieces_ms`, `fused_ms`: the update, in milliseconds;
- `step_gain`: the step with the optimizer in pieces over the step with the fused one;
- `most_gain`: what the step could gain at most by *any* change of the optimizer, were it in pieces before.

<details><summary>Hint 1</summary>

`num_params(GPTConfig(n_layer=..., n_head=..., n_embd=...))`. A fused update reads parameter, gradient and two moments, and writes three of them.
</details>

<details><summary>Hint 2</summary>

At best an optimizer takes no time at all.
</details>
"""

# %%
mine = variant(
    "14-2",
    STUDENT,
    gpu=["T4", "A100-80GB", "A100-40GB", "H100", "RTX 4090", "L4"],
    shape=[(12, 12, 768), (16, 16, 1024), (24, 16, 1024), (20, 20, 1280)],  # n_layer, n_head, n_embd
    rest_ms=[40.0, 65.0, 90.0, 150.0],
)
mine

# %%
#| solution 14-2
### BEGIN SOLUTION
n_layer, n_head, n_embd = mine["shape"]
P = num_params(GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd))
bandwidth = 1e9 * PEAKS[mine["gpu"]].bandwidth
pieces_ms, fused_ms = 1e3 * 80 * P / bandwidth, 1e3 * 28 * P / bandwidth
step_gain = (mine["rest_ms"] + pieces_ms) / (mine["rest_ms"] + fused_ms)
most_gain = (mine["rest_ms"] + pieces_ms) / mine["rest_ms"]
### INSTEAD
# pieces_ms = 0.0
# fused_ms = 0.0
# step_gain = 0.0
# most_gain = 0.0
### END SOLUTION

# %%
#| check 14-2
assert 0 < fused_ms < pieces_ms, "fused, fewer bytes are moved"
assert 1 < step_gain < pieces_ms / fused_ms, "only a part of the step gets faster: see Amdahl"
assert step_gain < most_gain, "an optimizer that took no time would gain more"
assert 1 < pieces_ms < 1000, (
    f"{pieces_ms:g} ms for some hundred million parameters? Check units: 10⁹ bytes, milliseconds"
)

# %% [markdown]
r"""
## 14-3 · No difference where there is none

*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*

`before[i]` and `after[i]` are milliseconds of two rungs that were timed one right after the other. `gain` prints a factor whatever it is given: two rungs that do the
same come out as 1.03×, one step in which another program woke up decides the result, and so does a machine that gets slower while it is measured. Fix it.

A pair sees the same machine, so compare within pairs. The gain is the median of the ratios `before[i] / after[i]`. Its interval of 95% leaves out
`LEFT_OUT[n]` ratios at each end of the sorted n ratios (chapter 09's sign test). Where the interval contains 1, or begins or ends at 1, nothing is known: return `None`. A rung may also be
slower.

<details><summary>Hint 1</summary>

Sort the ratios. With 9 pairs one ratio is left out at each end, so the interval goes from the second to the last but one.
</details>

<details><summary>Hint 2</summary>

An interval leaves 1 out in two ways: it lies above 1, or below it.
</details>
"""

# %%
LEFT_OUT = {6: 0, 9: 1, 12: 2, 15: 3, 20: 5}  # number of pairs: ratios to leave out at each end


# %%
#| solution 14-3
def gain(before: list[float], after: list[float]) -> float | None:
    """The median ratio of the pairs; None where its interval does not tell which of the two is faster."""
    ### BEGIN SOLUTION
    ratios = sorted(b / a for b, a in zip(before, after))
    k = LEFT_OUT[len(ratios)]
    low, high = ratios[k], ratios[-1 - k]
    return median(ratios) if low > 1 or high < 1 else None
    ### INSTEAD
    # return sum(before) / sum(after)
    ### END SOLUTION


# %%
#| check 14-3
slow, fast = (
    [10.0, 10.4, 9.9, 10.2, 10.0, 10.1, 10.0, 9.8, 10.0],
    [5.0, 5.2, 5.0, 5.1, 5.0, 5.0, 5.0, 4.9, 5.0],
)
assert gain(slow, fast) == 2, "most pairs are 10 and 5: a factor of 2"
assert gain(fast, slow) == 0.5, "a rung may be slower: a factor of 0.5, and it can be measured"
assert gain(slow, slow[::-1]) is None, "the same times in another order: no difference can be measured"
assert gain(slow, [*fast[:-1], 60.0]) == 2, "one step in which the machine was busy must decide nothing"

# %% [markdown]
r"""
## 14-4 · A rung that makes a step slower

*Predict · difficulty 3/5 · importance 3/5 · 25 minutes*

Gradient checkpointing keeps the input of each block and nothing within; in the backward pass the whole block runs forward once more (Chen et al. 2016). So a model fits that did
not, and its step takes longer. By how much? Write `with_recomputation`: predicted seconds of a whole step, on chapter 09's roofline. What lies outside the
blocks is not computed again.

`predict_step` gives seconds by part and phase; the cell below prints them. The parts are whole-step sums over all layers.

<details><summary>Hint 1</summary>

Which parts of the list belong to a block of chapter 05, and which come before the first or after the last one?
</details>

<details><summary>Hint 2</summary>

One part is on both sides: a block has two LayerNorms, and the model has one more at its end. All of them cost the same.
</details>
"""

# %%
example = GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)
machine = Roofline("cpu", {"float32": 100e9, "bfloat16": 400e9}, 20e9)

# %%
#| show
for (part, phase), seconds in predict_step(example, 4, 256, machine).items():
    print(f"{part:13} {phase:8} {1e3 * seconds:6.2f} ms")


# %%
#| solution 14-4
def with_recomputation(config: GPTConfig, B: int, T: int, roof: Roofline, dtype: str = "float32") -> float:
    """Predicted seconds of a training step on B × T tokens that recomputes every block."""
    ### BEGIN SOLUTION
    seconds = predict_step(config, B, T, roof, dtype)
    again = sum(seconds[part, "forward"] for part in ("qkv", "attention", "proj", "mlp", "gelu", "residual"))
    norms = 2 * config.n_layer  # of 2 · n_layer + 1: ln_f is outside
    again += seconds["layer norm", "forward"] * norms / (norms + 1)
    return sum(seconds.values()) + again
    ### END SOLUTION


# %%
#| check 14-4
times = predict_step(example, 4, 256, machine)
plain, forward = sum(times.values()), sum(s for (_, phase), s in times.items() if phase == "forward")
found = with_recomputation(example, 4, 256, machine)
assert found > plain, "to compute blocks again takes time on top of the step"
assert found < plain + forward, "not all of the forward pass runs again: what lies outside the blocks?"
assert found > plain + times["mlp", "forward"] + times["attention", "forward"], (
    "a block is more than its products"
)

# %% [markdown]
r"""
## 14-5 · A check for the roofline

*Check · difficulty 3/5 · importance 4/5 · 20 minutes*

A step is a list of kernels, one after the other, each a pair (FLOP, bytes). A kernel computes and moves at the same time, so it takes as long as the slower of the two;
the next one starts when it is done. `step_ms(kernels, flops, bandwidth)` gives the milliseconds of the step on a machine of so many FLOP and bytes a second. You write its
check: `check_step_ms(step_ms)` raises an `AssertionError` if the function is wrong. Refusing a right implementation costs all points; else the
share of wrong ones that are refused counts. Results of right ones agree to six digits.

<details><summary>Hint 1</summary>

Two kernels, one bound by memory and one by arithmetic, tell more than twenty of one kind.
</details>

<details><summary>Hint 2</summary>

Round numbers hide units: with 1 FLOP, 1 byte and rates of 1 many formulas agree. And what is a step without kernels, or a kernel that computes nothing?
</details>
"""


# %%
#| solution 14-5
def check_step_ms(step_ms) -> None:
    """AssertionError if step_ms(kernels, flops, bandwidth) is not the roofline's time of kernels in a row."""
    ### BEGIN SOLUTION
    cases = [
        [],
        [(8e9, 1e6)],
        [(1e6, 3e9)],
        [(0.0, 7e8)],
        [(5e9, 0.0)],
        [(8e9, 1e6), (1e6, 3e9)],
        [(2e9, 4e8), (3e9, 2e9), (7e9, 1e8)],
    ]
    for flops, bandwidth in ((1e11, 2e10), (3e12, 3e11), (4e9, 5e10)):
        for kernels in cases:
            expected = 1e3 * sum(max(f / flops, b / bandwidth) for f, b in kernels)
            found = step_ms(kernels, flops, bandwidth)
            assert abs(found - expected) <= 1e-5 * expected, f"{kernels}: {found} ms, not {expected}"
    ### END SOLUTION


# %%
#| check 14-5
def says(step_ms) -> str:
    try:
        check_step_ms(step_ms)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


right = says(lambda kernels, flops, bandwidth: sum(1e3 * max(f / flops, b / bandwidth) for f, b in kernels))
assert right == "accepted", f"a right implementation is {right}"
both = says(lambda kernels, flops, bandwidth: sum(1e3 * (f / flops + b / bandwidth) for f, b in kernels))
assert both != "accepted", "your check accepts a sum of both times"
arithmetic = says(lambda kernels, flops, bandwidth: sum(1e3 * f / flops for f, b in kernels))
assert arithmetic != "accepted", "your check accepts a function that does not look at bytes"

# %% [markdown]
r"""
#| manual 14-6
## 14-6 · A table that cannot be true

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

An earlier version of this course's ladder printed, on a CPU that other programs used as well: compile 0.58×, flash 6.72× at an MFU of 119.3%, nice numbers
0.20×, "fastest rung: flash". Every loss agreed with the first one, and no assertion failed. Each rung had been measured once, one after the other,
and the roofline once before them. What in the table cannot be, and what probably happened? Which two changes of the measurement would you make? Four to six
sentences.
"""
