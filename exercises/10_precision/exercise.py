# %% [markdown]
r"""
# Exercises 10 · Precision

Which bits may go, and what must happen in which order when they do. All of it runs on a CPU, and to the last bit: formats are
rounded by hand where the hardware lacks them. `course check 10` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor, nn

from course.variants import variant
from nanogpt.precision import LossScaler

# %% [markdown]
r"""
## 10-1 · Round by bits

*Build · difficulty 4/5 · importance 4/5 · 30 minutes*

A float32 is a sign, 8 bits of exponent and 23 of mantissa, and `x.view(torch.int32)` shows them as an integer. Write
`round_mantissa(x, bits)`: float32 numbers rounded to the nearest one whose mantissa has `bits` bits, 1 ≤ bits ≤ 22, *ties to even*,
as a float32. With `bits=7` that is `x.bfloat16().float()`, with `bits=10` what a tensor core reads of a float32 in TF32 mode; use
integer operations for all of them. Infinity stays infinity and NaN stays NaN, whatever bits it has. Do not write into `x`.

For 1 + 2⁻⁸ and bits 7: 1.0, a tie that goes to the even neighbour. For 1 + 3·2⁻⁸: 1.015625, a tie too, that goes up.

<details><summary>Hint 1</summary>

Clearing the last 23 − bits bits rounds towards zero. What has to be added first, so that it rounds to nearest?
</details>
<details><summary>Hint 2</summary>

A carry that runs out of the mantissa into the exponent is what rounding up to a power of two needs: let it run.
</details>
<details><summary>Hint 3</summary>

Half a step, less one, sends a tie down. Add one more if the last bit that is kept is 1: then it goes up, to an even one.
</details>
<details><summary>Hint 4</summary>

A NaN whose bits are all ones carries into the sign. `torch.where(x.isfinite(), …, x)` keeps out what is no number.
</details>
"""


# %%
#| solution 10-1
def round_mantissa(x: Tensor, bits: int) -> Tensor:
    """float32 x with its mantissa rounded to `bits` bits, to nearest, ties to even."""
    ### BEGIN SOLUTION
    drop = 23 - bits
    whole = x.view(torch.int32)
    odd = (whole >> drop) & 1  # the last bit that is kept
    rounded = (whole + (1 << (drop - 1)) - 1 + odd) & -(1 << drop)
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)
    ### END SOLUTION


# %%
#| check 10-1
some = torch.tensor([1.0, 3.14159, -2.71828, 1e-30, 6.02e23, 0.1])
assert torch.equal(round_mantissa(some, 7), some.bfloat16().float()), (
    f"{round_mantissa(some, 7).tolist()}, where bfloat16 gives {some.bfloat16().float().tolist()}"
)
tie = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8])
assert round_mantissa(tie, 7).tolist() == [1.0, 1.015625, -1.0], (
    f"ties became {round_mantissa(tie, 7).tolist()}: they go to the neighbour whose last bit is 0"
)
assert round_mantissa(torch.tensor([1 + 2**-11]), 10).item() == 1.0, "TF32 has 10 bits: 1 + 2⁻¹¹ is a tie"
assert round_mantissa(torch.tensor([1.9999]), 3).item() == 2.0, "1.9999 rounds up to 2: the carry goes on"
special = round_mantissa(torch.tensor([math.inf, -math.inf, math.nan]), 7)
assert special[:2].tolist() == [math.inf, -math.inf] and special[2].isnan(), (
    "infinity and NaN stay what they are"
)

# %% [markdown]
r"""
## 10-2 · Where it stops

*Derive · difficulty 3/5 · importance 5/5 · 20 minutes*

bfloat16 has 7 bits of mantissa, float16 has 10; float16 rounds to infinity from 65520 on, and its smallest number is
2⁻²⁴. All numbers are rounded to nearest, ties to even. Give, for your own values,

- `"stops at"`: `term` is added again and again, beginning at 0, in `format`, and rounded after each addition. Where does
  the sum stay for ever?
- `"smallest update"`: the smallest power of two that, added to a bfloat16 weight of `weight`, changes it
- `"scale"`: the largest power of two by which a loss can be multiplied so that the largest gradient, `gradient`, stays
  finite in float16
- `"skipped"`: how many steps a run throws away that begins at the loss scale 2^`start` and halves it after each bad step, if
  the largest gradient always has this size
- `"lost"`: with that scale, the largest size of a gradient that is rounded to zero

<details><summary>Hint 1</summary>

Between 2^e and 2^(e+1) numbers of a format with m bits of mantissa are 2^(e−m) apart. An addition of less than half of that
is none.
</details>
<details><summary>Hint 2</summary>

A tie goes to the even neighbour. A power of two is even: its mantissa is all zeros.
</details>
<details><summary>Hint 3</summary>

Half of the smallest number is a tie between it and zero. Zero is even.
</details>
"""

# %%
case = variant(
    "10-2",
    STUDENT,
    format=["bfloat16", "float16"],
    term=[0.0625, 0.125, 0.25, 0.5, 2.0, 4.0],
    weight=[0.125, 0.25, 0.5, 2.0, 4.0],
    gradient=[0.003, 0.011, 0.07, 0.3, 1.7, 9.0],
    start=[24, 28, 30, 32],
)
case

# %%
#| solution 10-2
### BEGIN SOLUTION
mantissa = {"bfloat16": 7, "float16": 10}[case["format"]]
exponent = math.floor(math.log2(65520 / case["gradient"]))
stops = {
    "stops at": case["term"] * 2 ** (mantissa + 1),  # from there on, term is half a step, and the sum is even
    "smallest update": case["weight"] * 2**-7,  # half of that is a tie, and the weight is even
    "scale": 2.0**exponent,
    "skipped": case["start"] - exponent,
    "lost": 2.0**-25 / 2.0**exponent,
}
### INSTEAD
# stops = {"stops at": None, "smallest update": None, "scale": None, "skipped": None, "lost": None}
### END SOLUTION

# %%
#| check 10-2
assert None not in stops.values(), f"still to do: {[name for name, value in stops.items() if value is None]}"
rounding = getattr(torch, case["format"])
total = torch.tensor(stops["stops at"], dtype=rounding)
assert total + torch.tensor(case["term"], dtype=rounding) == total, (
    "the sum does not stay there: it still grows"
)
assert total / 2 + torch.tensor(case["term"], dtype=rounding) != total / 2, (
    "the sum never gets there: it stops at half of that, or earlier"
)
weight = torch.tensor(case["weight"], dtype=torch.bfloat16)
assert weight + torch.tensor(stops["smallest update"], dtype=torch.bfloat16) != weight, (
    "this update changes nothing: half a step is a tie, and the weight is even"
)
assert case["gradient"] * stops["scale"] < 65520, "at this scale the largest gradient is infinite in float16"
assert math.log2(stops["scale"]).is_integer(), "a scale is a power of two, so that nothing is rounded by it"

# %% [markdown]
r"""
## 10-3 · An fp16 step in the wrong order

*Repair · difficulty 4/5 · importance 5/5 · 30 minutes*

`fp16_step` makes one training step in float16 with the chapter's `LossScaler`, and says whether it updated the weights. `device` is a
device's name as torchrun gives it, such as `"cuda:0"`. The version below runs on many machines and is wrong in at least five
places: what autocast is told, the order of unscaling and clipping, what happens to a gradient that is not finite, when
gradients are erased, and what the scaler hears. Mend it.

`Line` stands for a model: its loss is weight · x, so its gradient is x, rounded to float16 as a GPU's would be. At a scale of
65,536 a gradient of 3 overflows: such a step must leave the weights as they are, and halve the scale.

<details><summary>Hint 1</summary>

`torch.device(name).type` is what autocast wants.
</details>
<details><summary>Hint 2</summary>

Clipping compares a norm with `clip`. Whose norm is it before unscaling?
</details>
<details><summary>Hint 3</summary>

`scaler.unscale(parameters)` returns whether all gradients are finite. Three things depend on that: the update, the scaler, and
the result.
</details>
"""


# %%
class Line(nn.Module):
    """A loss of weight · x; the gradient comes in float16."""

    def __init__(self, n: int = 4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.weight.register_hook(lambda gradient: gradient.half().float())

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


class Descent:
    """Plain gradient descent with the two methods of a torch optimizer."""

    def __init__(self, parameters, lr: float = 1.0):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        for p in self.parameters:
            p.data -= self.lr * p.grad


# %%
#| solution 10-3
def fp16_step(model, optimizer, x: Tensor, scaler: LossScaler, device: str, clip: float) -> bool:
    """One step in float16: forward, backward, unscale, and if all is finite clip and update. Was there an update?"""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type, dtype=torch.float16):
        loss = model(x)
    (loss * scaler.scale).backward()
    finite = scaler.unscale(model.parameters())
    scaler.update(finite)
    if finite:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return finite
    ### INSTEAD
    # with torch.autocast(device, dtype=torch.float16):
    #     loss = model(x)
    # (loss * scaler.scale).backward()
    # nn.utils.clip_grad_norm_(model.parameters(), clip)
    # scaler.unscale(model.parameters())
    # optimizer.step()
    # scaler.update(True)
    # return True
    ### END SOLUTION


# %%
#| check 10-3
model, scaler = Line(), LossScaler(2.0**16)
small, large = torch.tensor([0.3, 0.0, 0.4, 0.0]), torch.full((4,), 3.0)
updated = fp16_step(model, Descent(model.parameters()), small, scaler, "cpu", clip=10.0)
assert updated, "no gradient overflows at 65,536 × 0.4: this step counts"
moved = 1 - model.weight.detach()
assert torch.allclose(moved, small, atol=1e-3), (
    f"the weights moved by {moved.tolist()}, not by their gradient: is it clipped before it is unscaled, or scaled without being unscaled, or the other way round?"
)
before = model.weight.detach().clone()
updated = fp16_step(model, Descent(model.parameters()), large, scaler, "cpu", clip=10.0)
assert model.weight.isfinite().all(), "an infinite gradient went into the weights: nothing brings them back"
assert not updated and torch.equal(model.weight, before), "a step whose gradient overflowed changes no weight"
assert scaler.scale == 2.0**15, f"the scale is {scaler.scale:g}: after an overflow it is halved"
assert fp16_step(model, Descent(model.parameters()), small, scaler, "cpu", clip=10.0), (
    "a good step after the overflow is skipped too: is the infinite gradient still there?"
)

# %% [markdown]
r"""
## 10-4 · A check for a loss scaler

*Check · difficulty 3/5 · importance 3/5 · 20 minutes*

Somebody hands you `after_step(scale, good, finite, interval)`: from the loss scale, the number of good steps in a row, and whether this
step's gradients were finite, it gives the scale and the number for the next step, as a pair. A bad step halves the scale; after
`interval` good steps in a row it doubles; either way the count begins again at 0. Write `check_scaler(after_step)`, which raises an
`AssertionError` if it is wrong and passes it if it is right. It is tried on functions that you do not see. Scales stay
between 2 and 2¹⁰⁰, and `interval` is at least 2.

For `after_step(8.0, 2, True, 3)`: `(16.0, 0)`.

<details><summary>Hint 1</summary>

Feed it a sequence of good and bad steps and carry scale and count along.
</details>
<details><summary>Hint 2</summary>

Good, bad, good: do two good steps *in a row* follow from that, if the interval is 2?
</details>
<details><summary>Hint 3</summary>

Which sequence doubles twice? A count that is not set back after doubling shows in the second.
</details>
"""


# %%
#| solution 10-4
def check_scaler(after_step) -> None:
    """AssertionError where after_step is not the dynamic scale's rule."""
    ### BEGIN SOLUTION
    for interval, steps in ((2, "gbgggggbbg"), (3, "ggbgggggggbgg"), (5, "ggggbgggggggggggbbg")):
        scale, good, due = 1024.0, 0, (1024.0, 0)
        for step in steps:
            if step == "b":
                due = (due[0] / 2, 0)
            elif due[1] + 1 == interval:
                due = (due[0] * 2, 0)
            else:
                due = (due[0], due[1] + 1)
            scale, good = after_step(scale, good, step == "g", interval)
            assert (scale, good) == due, f"{(scale, good)} within {steps}, interval {interval}, not {due}"
    ### END SOLUTION


# %%
#| check 10-4
def refused(after_step) -> bool:
    try:
        check_scaler(after_step)
    except AssertionError:
        return True
    return False


def right(scale, good, finite, interval):
    if not finite:
        return scale / 2, 0
    return (2 * scale, 0) if good + 1 == interval else (scale, good + 1)


assert not refused(right), "it refuses a right function"
assert refused(lambda scale, good, finite, interval: (scale, good + 1)), (
    "it accepts a scale that never changes"
)
assert refused(
    lambda scale, good, finite, interval: (right(scale, good, finite, interval)[0], good + finite)
), "it accepts a count that never begins again: which sequence shows that?"

# %% [markdown]
r"""
## 10-5 · Masters that forget

*Repair · difficulty 2/5 · importance 5/5 · 10 minutes*

`descend(start, grads, lr)` makes one step of gradient descent for each row of `grads`, on bfloat16 weights with float32 masters. It
returns the weights (bfloat16) and the masters (float32). It has masters, and forgets them: one thousand updates of 0.001
leave a weight of 1 where it was. Mend it, and do not write into `start`.

With `start` 1, one thousand gradients of −1 and `lr` 0.001, both must end near 2.

<details><summary>Hint 1</summary>

Where does the master come from in the second step? How many bits has it then?
</details>
<details><summary>Hint 2</summary>

In which direction may numbers be copied between weight and master? And before or after the first rounding?
</details>
"""


# %%
#| solution 10-5
def descend(start: Tensor, grads: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """Weights (bfloat16) and masters (float32) after a step for each row of grads, from `start` (float32)."""
    ### BEGIN SOLUTION
    master = start.clone()
    weight = master.bfloat16()
    for grad in grads:
        master -= lr * grad.float()
        weight = master.bfloat16()
    return weight, master
    ### INSTEAD
    # weight = start.bfloat16()
    # for grad in grads:
    #     master = weight.float()
    #     master -= lr * grad.float()
    #     weight = master.bfloat16()
    # return weight, master
    ### END SOLUTION


# %%
#| check 10-5
weight, master = descend(torch.ones(2), -torch.ones(1000, 2), 0.001)
assert weight.dtype == torch.bfloat16 and master.dtype == torch.float32, (
    "weights in bfloat16, masters in float32"
)
assert master.min() > 1, "a thousand updates changed nothing: the master was made from the rounded weight"
assert torch.allclose(master, torch.tensor(2.0), atol=1e-3), (
    f"the masters end at {master.tolist()}, not near 2"
)
assert torch.equal(weight, master.bfloat16()), "the weights are the masters, rounded"

# %% [markdown]
r"""
#| manual 10-6
## 10-6 · Two formats, two failures

*Explain · difficulty 3/5 · importance 4/5 · 5 minutes*

float16 needs a loss scaler, and bfloat16 does not. bfloat16 weights need float32 masters sooner than float16 weights do. Say
why, with one number of each format for each of the two sentences, and say what loss scaling does *not* help against.
"""
