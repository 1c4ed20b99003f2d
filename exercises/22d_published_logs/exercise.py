# %% [markdown]
r"""
# Exercises 22d · Published logs

Chapter 22d: what a log says, and what it cannot say. The logs of these tasks are made up, in the form of llm.c's and Megatron's. No task needs another one's
solution. `course check 22d` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

from course.variants import variant

# %% [markdown]
r"""
## 22d-1 · Columns that contradict each other

*Find · difficulty 4/5 · importance 5/5 · 30 minutes*

A line of a log has three printed texts: `ms`, the time of a step; `tok/s`, tokens in a second; and `mfu`, in per cent. Each is rounded to as many digits as it shows: behind "31.0" is a number from 30.95 to 31.05. A step reads `batch` tokens, a token takes `flops` FLOPs, and the card's data sheet says `peak` FLOP/s.

Write `contradictions(line, batch, flops, peak)`. It returns the list of those of "tok/s" and "mfu", in this order, that cannot be true beside `ms`: no time that prints as this `ms` gives a number that prints as this text. Both are judged by `ms` alone. (The log prints this step's own rate, not a running mean.)

`LOG` is a log of yours with five lines, and `answers` is the list of what `contradictions` finds in each. One number of one line is wrong. Look at it first: do you see which?

<details><summary>Hint 1</summary>

`ms` is an interval. What is the interval of tokens in a second then, and of the MFU? A shorter time is a higher rate.
</details>

<details><summary>Hint 2</summary>

Half a unit of the last digit: "0.42" has two digits behind the point, "31" has none.
</details>

<details><summary>Hint 3</summary>

Two intervals have a number in common if each begins before the other ends.
</details>
"""

# %%
mine = variant(
    "22d-1",
    STUDENT,
    batch=[65_536, 131_072, 524_288],
    peak=[312e12, 989e12],
    slips=[("tok/s", 1), ("tok/s", 3), ("mfu", 0), ("mfu", 4)],
    times=[[812.4, 811.7, 814.9, 812.2, 813.6], [655.2, 661.3, 656.8, 655.9, 657.4]],
)
SETUP = {"batch": mine["batch"], "flops": 1.4e14 / mine["batch"] * 0.655, "peak": mine["peak"]}


def printed_line(ms: float, slip: str) -> dict[str, str]:
    """A line of the log; the column `slip` is off by a little."""
    rate = SETUP["batch"] / ms * 1e3
    mfu = 100 * rate * SETUP["flops"] / SETUP["peak"]
    off = {"tok/s": 1.004, "mfu": 1.012}
    rate, mfu = rate * (off["tok/s"] if slip == "tok/s" else 1), mfu * (off["mfu"] if slip == "mfu" else 1)
    return {"ms": f"{ms:.0f}", "tok/s": f"{rate:.0f}", "mfu": f"{mfu:.2f}"}


column, place = mine["slips"]
LOG = [printed_line(ms, column if i == place else "") for i, ms in enumerate(mine["times"])]


# %%
#| solution 22d-1
def contradictions(line: dict[str, str], batch: int, flops: float, peak: float) -> list[str]:
    """Which of "tok/s" and "mfu" cannot be true, if the printed ms is."""
    ### BEGIN SOLUTION
    span = {}
    for name, text in line.items():
        half = 0.5 * 10.0 ** -len(text.partition(".")[2])
        span[name] = float(text) - half, float(text) + half
    rates = [1e3 * batch / ms for ms in reversed(span["ms"])]  # the longest time first: the lowest rate
    follows = {"tok/s": rates, "mfu": [100 * rate * flops / peak for rate in rates]}
    found = []
    for name, (low, high) in follows.items():
        if high < span[name][0] or span[name][1] < low:
            found.append(name)
    return found
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    contradictions(line, **SETUP)
    for line in LOG
    ### INSTEAD
    # [],  # what is wrong in each line of LOG
    # [],
    # [],
    # [],
    # [],
    ### END SOLUTION
]

# %%
#| check 22d-1
exact = {"ms": "500.00", "tok/s": "2000", "mfu": "40.0"}
assert contradictions(exact, 1000, 1.0, 5000.0) == [], (
    "1,000 tokens in half a second are 2,000 a second, and 2,000 of 5,000 FLOP/s are 40%"
)
coarse = {"ms": "3", "tok/s": "300000", "mfu": "39.0"}
assert contradictions(coarse, 1000, 1.0, 1e6) == [], (
    "behind 3 ms are 2.5 to 3.5: 285,714 to 400,000 tokens a second, and 28.6% to 40.0%"
)
assert contradictions(exact | {"tok/s": "2001"}, 1000, 1.0, 5000.0) == ["tok/s"], (
    "500.00 ms are 499.995 to 500.005: at most 2,000.02 tokens a second, and 2001 is more than 2,000.5"
)
assert contradictions(exact | {"mfu": "50.0"}, 1000, 1.0, 5000.0) == ["mfu"], "2,000 of 5,000 are not 50%"

# %% [markdown]
r"""
## 22d-2 · A mean that hides a pause

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

llm.c prints tokens a second as a running mean. With x₁, x₂, … for the steps' own rates, m_s = 0.95 m_{s−1} + 0.05 x_s, m₀ = 0, and the log has p_s = m_s / (1 − 0.95^s), because the first values would be too small else. (The A800's log of chapter 22d begins so with its second step.)

Write `own_rates(printed)`: the list of the x from the list of the p. Then `slowest(printed, batch)`, the number of the slowest step, from 1, and its milliseconds, if a step reads `batch` tokens.

`printed` is a log of yours. One step was interrupted for some seconds. The column falls there by a few per cent and then rises for dozens of steps, as if the card had been slow for a minute. `answers` is the list of the two numbers of `slowest`.

<details><summary>Hint 1</summary>

First get m_s from p_s. Then solve the rule for x_s.
</details>

<details><summary>Hint 2</summary>

A rounded number here is multiplied by about twenty there. Does it matter for the slowest step?
</details>
"""

# %%
mine = variant("22d-2", STUDENT, batch=[458_752, 524_288], pause=[900, 2400, 4100], step=[17, 31, 46])


def running_means(milliseconds: list[float], batch: int) -> list[float]:
    m, found = 0.0, []
    for s, ms in enumerate(milliseconds, 1):
        m = 0.95 * m + 0.05 * batch / ms * 1e3
        found.append(m / (1 - 0.95**s))
    return found


usual = [2400 + 7 * (s * s % 5) for s in range(1, 61)]  # ms
usual[mine["step"] - 1] += mine["pause"]
printed = [round(p) for p in running_means(usual, mine["batch"])]


# %%
#| solution 22d-2
def own_rates(printed: list[float]) -> list[float]:
    """Tokens a second of each step, from the running means."""
    ### BEGIN SOLUTION
    rates, before = [], 0.0
    for s, p in enumerate(printed, 1):
        m = p * (1 - 0.95**s)
        rates.append((m - 0.95 * before) / 0.05)
        before = m
    return rates
    ### END SOLUTION


def slowest(printed: list[float], batch: int) -> tuple[int, float]:
    """The number of the slowest step, from 1, and its milliseconds."""
    ### BEGIN SOLUTION
    rates = own_rates(printed)
    lowest = min(rates)
    return rates.index(lowest) + 1, batch / lowest * 1e3
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    *slowest(printed, mine["batch"]),
    ### INSTEAD
    # 0,  # the slowest step
    # 0.0,  # its milliseconds
    ### END SOLUTION
]

# %%
#| check 22d-2
got = own_rates([100.0, 100.0, 100.0])
assert all(abs(x - 100) < 1e-6 for x in got), f"a constant mean is of constant rates, and you have {got}"
times = [10.0, 20.0, 10.0, 12.5]
got = own_rates(running_means(times, 1000))
assert all(abs(x / 1e6 * ms - 1) < 1e-6 for x, ms in zip(got, times)), (
    f"1,000 tokens in {times} ms are 100,000, 50,000, 100,000 and 80,000 a second, not {got}"
)
step, ms = slowest(running_means(times, 1000), 1000)
assert step == 2 and abs(ms - 20) < 1e-6, f"step 2 took 20 ms, and you say step {step}, {ms} ms"

# %% [markdown]
r"""
## 22d-3 · Counted by a learning rate

*Derive · difficulty 3/5 · importance 4/5 · 25 minutes*

After u updates, a schedule's rate is lr · u / warmup as long as u is smaller than warmup, and then lr · (steps − u) / (steps − warmup), down to 0. An iteration whose gradient overflows makes no update. The log prints the rate after an iteration in the form "6.2914E-05".

`skipped(printed, iteration, lr, warmup, steps)` returns the ascending list of all numbers of skipped iterations that give the printed text, among the `iteration` iterations so far.

`mine` is a line of yours. `answers` is the list of what `skipped` gives for the line's text with four digits behind the point, and how many numbers it would allow with one digit.

<details><summary>Hint 1</summary>

Try all numbers. `f"{rate:.4E}"` prints a rate with four digits behind the point; how many has the text that you are given?
</details>

<details><summary>Hint 2</summary>

A rate in the warm-up comes again on the way down. So two numbers that are far apart may both be possible.
</details>
"""

# %%
mine = variant(
    "22d-3",
    STUDENT,
    bad=[13, 19, 24, 31],
    iteration=[1500, 2500, 4000],
    schedule=[{"lr": 1e-4, "warmup": 50, "steps": 5000}, {"lr": 6e-4, "warmup": 200, "steps": 6000}],
)


def rate_after(updates: int, lr: float, warmup: int, steps: int) -> float:
    return lr * updates / warmup if updates < warmup else lr * (steps - updates) / (steps - warmup)


precise, coarse = (
    f"{rate_after(mine['iteration'] - mine['bad'], **mine['schedule']):.{digits}E}" for digits in (4, 1)
)


# %%
#| solution 22d-3
def skipped(printed: str, iteration: int, lr: float, warmup: int, steps: int) -> list[int]:
    """All numbers of skipped iterations with which the log prints this rate, ascending."""
    ### BEGIN SOLUTION
    digits = len(printed.partition("E")[0].partition(".")[2])
    found = []
    for bad in range(iteration + 1):
        updates = iteration - bad
        rate = lr * updates / warmup if updates < warmup else lr * (steps - updates) / (steps - warmup)
        if f"{rate:.{digits}E}" == printed:
            found.append(bad)
    return found
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    skipped(precise, mine["iteration"], **mine["schedule"]),
    len(skipped(coarse, mine["iteration"], **mine["schedule"])),
    ### INSTEAD
    # [],  # by four digits
    # 0,  # how many by one digit
    ### END SOLUTION
]

# %%
#| check 22d-3
got = skipped("4.0000E-05", 20, 1e-4, 10, 1000)
assert got == [16], f"four updates of ten in the warm-up are 4e-05, so 16 of 20 were skipped, not {got}"
got = skipped("1.0000E-04", 12, 1e-4, 10, 1000)
assert got == [2], f"the full rate is that after ten updates: 2 of 12 were skipped, not {got}"
got = skipped("5.0E-05", 10, 1e-4, 10, 20)
assert got == [5] and skipped("5.0E-05", 15, 1e-4, 10, 20) == [0, 10], (
    "half of the rate is there after 5 updates, and again after 15"
)

# %% [markdown]
r"""
## 22d-4 · A check for what is printed

*Check · difficulty 3/5 · importance 4/5 · 20 minutes*

`agrees(printed, value)` says whether a number that was rounded to the printed digits can be `value`: the two differ by at most half a unit of the last digit that is shown. `printed` may be "4096", "0.420", "-1.5" or "6.29E-05". Write `check_agrees(agrees)`, which raises an `AssertionError` for a wrong one and accepts all right ones. Leave values that lie
exactly half a unit away alone: float64 decides them by chance.

<details><summary>Hint 1</summary>

0.42 and 0.420 allow different values. So do 6.29E-05 and 6.29E+02.
</details>

<details><summary>Hint 2</summary>

Try values on both sides, 0.4 and 0.6 of a unit away, in each form.
</details>
"""


# %%
#| solution 22d-4
def check_agrees(agrees) -> None:
    """Raises AssertionError unless agrees(printed, value) allows half a unit of the last digit, and no more."""
    ### BEGIN SOLUTION
    for text in ("4096", "7", "0", "0.42", "0.420", "-1.5", "-100.0", "6.29E-05", "1.00e-04", "6.29E+02"):
        digits, _, exponent = text.lower().partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
        for units in (0, 0.3, 0.45, -0.3, -0.45, 0.55, -0.55, 0.9, -0.9, 2, -2, 30, -30):
            value = float(text) + units * unit
            assert bool(agrees(text, value)) == (abs(units) < 0.5), f"{text} and {value}"
        if float(text):
            assert not agrees(text, -float(text)), f"{text} has another sign"
    ### END SOLUTION


# %%
#| check 22d-4
def refused(agrees) -> bool:
    try:
        check_agrees(agrees)
    except AssertionError:
        return True
    return False


def by_unit(printed: str, value: float) -> bool:
    digits, _, exponent = printed.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(printed) - value) <= unit / 2


assert not refused(by_unit), "your check refuses a right one"
assert refused(lambda printed, value: math.isclose(float(printed), value, rel_tol=1e-3)), (
    "a thousandth of the value, whatever is printed, and your check accepts it"
)
assert refused(lambda printed, value: float(printed) == value), (
    "only the printed number itself is allowed here, and your check accepts it"
)

# %% [markdown]
r"""
#| manual 22d-5
## 22d-5 · More than twice as fast

*Explain · difficulty 3/5 · importance 5/5 · 10 minutes*

A table of published runs of one program has three rows: one H800, 36.90 ms a step; two H800, 30.94 ms; an RTX 4070 SUPER, 198.34 ms. The logs add: four rows of 1,024 tokens a step on the single cards, four on each of the two; TF32 on the single cards, bf16 on the two; 36.90 leaves out the first step, the others include it. In four sentences: by which factor are two cards faster if
you believe the table, and by which factor in tokens a second; why can the second factor be larger than two; which single run would tell what the second card brings; and what does the first step do to a mean, and how would you print a time instead?
"""
