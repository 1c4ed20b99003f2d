"""A small exercise set for the tests of what surrounds grading: every kind of cell and of check, nothing slow."""

from pathlib import Path

from course.exercises.sets import ExerciseSet, read

EXERCISE = '''\
# %% [markdown]
r"""
# Exercises 04 · Small
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

RADII = [1.0, 2.0]

# %% [markdown]
r"""
## 04-1 · The area

*Repair · difficulty 1/5 · importance 5/5 · 10 minutes*

<details><summary>Hint 1</summary>

Double the radius. What happens to the area?
</details>
"""


# %%
#| solution 04-1
def area(r: float) -> float:
    """The area of a circle."""
    ### BEGIN SOLUTION
    return math.pi * r * r
    ### INSTEAD
    # return math.pi * r
    ### END SOLUTION


# %%
#| check 04-1
assert area(2.0) == 4 * area(1.0), "twice the radius, four times the area"

# %%
#| show
print([area(r) for r in RADII])

# %% [markdown]
r"""
## 04-2 · The ring

*Build · difficulty 2/5 · importance 3/5 · 20 minutes*

<details><summary>Hint 1</summary>

Two circles.
</details>
"""


# %%
#| solution 04-2
#| forbids loop
#| forbids statistics.fmean
def ring(outer: float, inner: float) -> float:
    ### BEGIN SOLUTION
    widest, hole = area(outer), area(inner)
    return widest - hole
    ### END SOLUTION


# %%
#| check 04-2
assert ring(2.0, 1.0) > 0
assert math.isclose(ring(2.0, 1.0), 3 * math.pi), "what remains of 4π is 3π"

# %% [markdown]
r"""
## 04-3 · A check of your own

*Check · difficulty 3/5 · importance 4/5 · 30 minutes*

<details><summary>Hint 1</summary>

Zero, and a negative number.
</details>
"""


# %%
#| solution 04-3
def check_abs(f) -> None:
    ### BEGIN SOLUTION
    for x in (-2.5, 0.0, 3.0):
        assert f(x) == abs(x), x
    ### END SOLUTION


# %%
#| check 04-3
check_abs(abs)

# %% [markdown]
r"""
#| manual 04-4
## 04-4 · Why π?

*Explain · difficulty 2/5 · importance 2/5 · 5 minutes*

Say it in two sentences.

### BEGIN SOLUTION
The ratio of circumference to diameter, integrated over the radius.
### END SOLUTION
"""
'''

CHECKS = '''\
from course.exercises.checks import Check, CheckOfCheck, Wrong


def radii(draw):
    return [(1.0,), (2.5,)]


def pairs(draw):
    return [(2.0, 1.0), (5.0, 0.5)]


CHECKS = [
    Check("04-1", "the area grows with the square", 2, "area", radii, hidden=False, seconds=5),
    Check("04-1", "a secret radius of our own", 1, "area", radii, seconds=5),
    Check("04-2", "a ring is what remains", 3, "ring", pairs, hidden=False, seconds=5),
    CheckOfCheck(
        "04-3", "what is no absolute value is refused", 4, "check_abs", "f", seconds=5,
        right=("def f(x):\\n    return x if x > 0 else -x",),
        wrong={"keeps the sign": "def f(x):\\n    return x", "minus everywhere": "def f(x):\\n    return -x"},
    ),
]
WRONG = [
    Wrong("04-1", "the radius is not squared", "r * r", "r"),
    Wrong("04-1", "half a circle", "math.pi", "0.5 * math.pi"),
    Wrong("04-2", "the hole is added", "widest - hole", "widest + hole"),
]
MANUAL = {"04-4": 2}
'''  # fmt: skip


def small_set(folder: Path) -> ExerciseSet:
    """The set, in a folder 04_small below `folder`."""
    here = folder / "04_small"
    here.mkdir(parents=True)
    (here / "exercise.py").write_text(EXERCISE, encoding="utf-8")
    (here / "checks.py").write_text(CHECKS, encoding="utf-8")
    return read(here)
