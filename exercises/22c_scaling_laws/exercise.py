# %% [markdown]
r"""
# Exercises 22c · Scaling laws

Chapter 22c: laws that are fitted to small runs, and what they say of larger ones. Nothing is trained here. No task needs another one's
solution. `course check 22c` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math
from dataclasses import dataclass

import numpy as np

from course.variants import variant

# %% [markdown]
r"""
## 22c-1 · The constant that one does not see

*Predict · difficulty 3/5 · importance 5/5 · 30 minutes*

Losses of one model after D tokens follow L = E + A / D^b. If E is known, log(L − E) is a straight line over log D. Write

- `fit(D, losses, E)`: the A and b of the line that has the least squares in log(L − E) over log D;
- `predict(D, losses, E, tokens)`: the loss after `tokens` tokens by this fit;
- `best_E(D, losses, candidates)`: the candidate whose fit has the smallest sum of squares of log(predicted / measured loss) over the runs. A candidate that is not below all losses is left out.

The runs in `D` and `losses` are yours. Draw them on log-log paper in your mind: they look like a straight line, as if E were 0. By how many per cent is a prediction with E = 0 wrong, for a run a hundred times as long as the longest? Write down a guess, then look. `answers` is the list of four numbers: the prediction for a hundred times the last D with E = 0, the one
with the true E, `best_E` over `CANDIDATES`, and the prediction with this one.

<details><summary>Hint 1</summary>

`np.polyfit(x, y, 1)` gives the slope and the intercept. What is the slope of log(L − E), and how does b follow from it?
</details>

<details><summary>Hint 2</summary>

Why are candidates compared by log L, and not by log(L − E)? Near L = E the second one is large for the smallest noise.
</details>
"""

# %%
mine = variant("22c-1", STUDENT, E=[1.1, 1.4, 1.7], A=[25.0, 32.0, 40.0], b=[0.28, 0.31, 0.34])
CANDIDATES = [0.05 * i for i in range(60)]
D = [2.0**k for k in range(13, 21)]
NOISE = [0.011, -0.008, -0.006, 0.014, -0.009, 0.003, -0.01, 0.007]  # of the logs, as between seeds
losses = [(mine["E"] + mine["A"] / d ** mine["b"]) * math.exp(z) for d, z in zip(D, NOISE)]


# %%
#| solution 22c-1
def fit(D: list[float], losses: list[float], E: float) -> tuple[float, float]:
    """A and b of L = E + A / D^b, by least squares of log(L - E)."""
    ### BEGIN SOLUTION
    slope, intercept = np.polyfit(np.log(D), np.log(np.array(losses) - E), 1)
    return float(np.exp(intercept)), float(-slope)
    ### END SOLUTION


def predict(D: list[float], losses: list[float], E: float, tokens: float) -> float:
    """The loss after so many tokens, by the fit to these runs."""
    ### BEGIN SOLUTION
    A, b = fit(D, losses, E)
    return E + A / tokens**b
    ### END SOLUTION


def best_E(D: list[float], losses: list[float], candidates: list[float]) -> float:
    """The candidate whose fit is nearest to the losses, in their logs."""
    ### BEGIN SOLUTION
    errors = {}
    for E in candidates:
        if all(loss > E for loss in losses):
            A, b = fit(D, losses, E)
            logs = [math.log((E + A / d**b) / loss) for d, loss in zip(D, losses)]
            errors[E] = sum(z * z for z in logs)
    return min(errors, key=errors.get)
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    predict(D, losses, 0.0, 100 * D[-1]),
    predict(D, losses, mine["E"], 100 * D[-1]),
    best_E(D, losses, CANDIDATES),
    predict(D, losses, best_E(D, losses, CANDIDATES), 100 * D[-1]),
    ### INSTEAD
    # 0.0,  # with E = 0
    # 0.0,  # with the true E
    # 0.0,  # best_E
    # 0.0,  # with best_E
    ### END SOLUTION
]

# %%
#| check 22c-1
exact = [2 + 8 / d**0.5 for d in (4, 16, 64)]
A, b = fit([4, 16, 64], exact, 2.0)
assert abs(A - 8) < 1e-6 and abs(b - 0.5) < 1e-6, (
    f"these are losses of 2 + 8 / D^0.5, and your fit says A={A}, b={b}"
)
got = predict([4, 16, 64], exact, 2.0, 256)
assert abs(got - 2.5) < 1e-6, f"after 256 tokens that law says 2.5, and you say {got}"
got = best_E([4, 16, 64], exact, [0.0, 1.0, 2.0, 2.5, 4.0])
assert got == 2.0, f"with E = 2 the fit is exact; 4.0 is above a loss: not {got}"

# %% [markdown]
r"""
## 22c-2 · The bottom of a valley

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

An IsoFLOP profile has the losses of models of several sizes, all with one budget. `lowest(sizes, losses)` lays the parabola with the least squares through the losses over log N and returns the N at its lowest point. If the parabola has no lowest point, or if that is smaller than the smallest size or larger than the largest, the
profile does not show a valley: then return None.

`exponent(budgets, bottoms)` is the power with which the lowest N grows with the budget: the slope of a straight line with the least squares through log N over log C. Budgets whose bottom is None are left out.

<details><summary>Hint 1</summary>

The parabola a x² + b x + c has its extremum at −b / 2a. When is that a lowest point, and what is x here?
</details>

<details><summary>Hint 2</summary>

The smallest of the measured losses is not the answer: with sizes that differ by factors of two the valley's bottom is between them.
</details>
"""


# %%
#| solution 22c-2
def lowest(sizes: list[float], losses: list[float]) -> float | None:
    """The size at the bottom of the parabola over log N; None if there is no bottom between the sizes."""
    ### BEGIN SOLUTION
    a, b, _ = np.polyfit(np.log(sizes), losses, 2)
    if a <= 0:
        return None
    bottom = float(np.exp(-b / (2 * a)))
    return bottom if min(sizes) <= bottom <= max(sizes) else None
    ### END SOLUTION


def exponent(budgets: list[float], bottoms: list[float | None]) -> float:
    """The power with which the best size grows with the budget."""
    ### BEGIN SOLUTION
    known = [(math.log(C), math.log(N)) for C, N in zip(budgets, bottoms) if N is not None]
    return float(np.polyfit(*zip(*known), 1)[0])
    ### END SOLUTION


# %%
#| check 22c-2
sizes = [1e4, 2e4, 4e4, 8e4]
valley = [1.0 + 0.1 * math.log(N / 3e4) ** 2 for N in sizes]
got = lowest(sizes, valley)
assert got is not None and abs(got / 3e4 - 1) < 1e-6, (
    f"this valley has its bottom at 30,000 parameters, not at {got}"
)
assert lowest(sizes, [-z for z in valley]) is None, "this is a hill, and you name its top"
assert lowest(sizes, [1.0 + 0.1 * math.log(N / 5e5) ** 2 for N in sizes]) is None, (
    "here the losses fall until the largest size: the bottom is somewhere beyond it, and nobody has measured there"
)
got = exponent([1e10, 1e12, 1e14], [2e4, None, 2e6])
assert abs(got - 0.5) < 1e-6, (
    f"a hundred times the size for 10,000 times the budget is the power 0.5, not {got}"
)

# %% [markdown]
r"""
## 22c-3 · A model that will be used

*Derive · difficulty 4/5 · importance 4/5 · 35 minutes*

The best size for a budget leaves out that somebody wants to use the model. Training N parameters with D tokens costs 6 N D FLOPs, and reading or writing one token later costs 2 N. A model will be asked for `used` tokens in its life, and `budget` pays for both. The loss is E + A / N^α + B / D^β.

Write `best(law, budget, used)`, the N and D with the lowest loss. `used` may be 0. There is no formula for it, so search. A thousandth of N is precise enough. `answers` is the list of four numbers for `mine`: the best N if nobody uses the model, its tokens a parameter, the best N for `mine["used"]` tokens, and its tokens a parameter. Which of the two models is
smaller?

<details><summary>Hint 1</summary>

For a given N, what is left of the budget for training, and how many tokens D is that? For which N is nothing left?
</details>

<details><summary>Hint 2</summary>

Over log N the loss is a valley with one bottom. A fine grid, and a finer one around its lowest point, is enough.
</details>
"""


# %%
@dataclass(frozen=True)
class Law:
    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, N: float, D: float) -> float:
        return self.E + self.A / N**self.alpha + self.B / D**self.beta


mine = variant("22c-3", STUDENT, budget=[1e21, 1e22, 1e23], used=[1e12, 2e12, 4e12])
LAW = Law(E=1.8172, A=482.01, alpha=0.3478, B=2085.43, beta=0.3658)  # Besiroglu et al. 2024


# %%
#| solution 22c-3
def best(law: Law, budget: float, used: float) -> tuple[float, float]:
    """N and D with the lowest loss, if training and `used` tokens of inference together cost the budget."""

    ### BEGIN SOLUTION
    def tokens(N: float) -> float:
        return (budget / N - 2 * used) / 6

    low, high = 0.0, math.log(budget / (2 * used) if used else budget)
    for _ in range(80):  # leave out the third that cannot have the bottom
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if law.loss(math.exp(a), tokens(math.exp(a))) < law.loss(math.exp(b), tokens(math.exp(b))):
            high = b
        else:
            low = a
    N = math.exp(low)
    return N, tokens(N)
    ### END SOLUTION


(alone, read), (shared, more) = (best(LAW, mine["budget"], used) for used in (0.0, mine["used"]))
answers = [
    ### BEGIN SOLUTION
    alone,
    read / alone,
    shared,
    more / shared,
    ### INSTEAD
    # 0.0,  # N, if nobody uses the model
    # 0.0,  # its tokens a parameter
    # 0.0,  # N, if it is used
    # 0.0,  # its tokens a parameter
    ### END SOLUTION
]

# %%
#| check 22c-3
N, tokens = best(LAW, 6e18, 0.0)
assert abs(6 * N * tokens / 6e18 - 1) < 1e-6, (
    f"training costs 6 N D, so {6 * N * tokens:.3e} FLOPs in place of 6e18"
)
even = Law(1.0, 100.0, 0.3, 100.0, 0.3)
N, tokens = best(even, 6e18, 0.0)
assert abs(N / 1e9 - 1) < 2e-3, (
    f"a law that treats N and D alike wants a billion of each, not {N:.3e} and {tokens:.3e}"
)
N, tokens = best(even, 6e18, 5e8)
assert abs((6 * N * tokens + 2 * N * 5e8) / 6e18 - 1) < 1e-6, "training and use together cost the budget"
assert N < 0.99e9, "a model that has to be used as well should be smaller"

# %% [markdown]
r"""
## 22c-4 · A check for a compute-optimal size

*Check · difficulty 4/5 · importance 4/5 · 25 minutes*

`best(E, A, alpha, B, beta, flops)` returns the N and D that have the lowest loss E + A / N^α + B / D^β among all with 6 N D = flops. It is right if its N is within a thousandth of the best one, whatever way it is computed.

Write `check_best(best)`, which raises an `AssertionError` if it is not, and accepts all right ones. You need no formula for the best N: what must be true of the lowest point of a valley?

<details><summary>Hint 1</summary>

Two per cent to the left and to the right of the bottom, with the same budget, the loss is higher.
</details>

<details><summary>Hint 2</summary>

With alpha = beta and A = B many mistakes are hidden. Try laws in which all numbers differ, and two budgets.
</details>
"""


# %%
#| solution 22c-4
def check_best(best) -> None:
    """Raises AssertionError unless best(E, A, alpha, B, beta, flops) is the bottom of the valley 6 N D = flops."""
    ### BEGIN SOLUTION
    laws = Law(1.7, 400.0, 0.34, 410.0, 0.28), Law(0.0, 50.0, 0.2, 3000.0, 0.45), Law(1, 9, 0.3, 9, 0.3)
    for law in laws:
        for flops in (1e12, 6e18, 1e24):
            N, D = best(law.E, law.A, law.alpha, law.B, law.beta, flops)
            assert abs(6 * N * D / flops - 1) < 1e-6, f"{law}: {6 * N * D:.3e} FLOPs in place of {flops:.3e}"
            for factor in (0.5, 0.98, 1.02, 2):
                assert law.loss(N, D) < law.loss(N * factor, D / factor), f"{law}: {factor} N is better"
    ### END SOLUTION


# %%
#| check 22c-4
def refused(best) -> bool:
    try:
        check_best(best)
    except AssertionError:
        return True
    return False


def by_search(E, A, alpha, B, beta, flops):
    """Right up to a thousandth: the derivative along the budget is zero, by bisection."""
    low, high = 0.0, math.log(flops)
    for _ in range(100):
        x = (low + high) / 2
        rises = beta * B * (6 * math.exp(x) / flops) ** beta > alpha * A * math.exp(-alpha * x)
        low, high = (low, x) if rises else (x, high)
    N = math.exp(low)
    return N, flops / 6 / N


def twenty(E, A, alpha, B, beta, flops):
    N = math.sqrt(flops / 120)
    return N, 20 * N


assert not refused(by_search), "your check refuses a right way: a search for the bottom"
assert refused(twenty), "twenty tokens a parameter, whatever the law says, and your check accepts it"
assert refused(lambda *law: by_search(*law)[::-1]), "here D comes before N, and your check accepts it"

# %% [markdown]
r"""
#| manual 22c-5
## 22c-5 · The entropy of English

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A report fits L = E + A / N^α + B / D^β to forty runs. It says: "E is 1.69 ± 0.01, so the entropy of English is 1.69 nats a token. The fit's error on our runs is 0.4%, so its predictions for a run a hundred times as large are right to about that." The forty runs are eight trunks with five lengths each, and the interval is from drawing single runs with
replacement. In four sentences: what is wrong with the interval; what would you try to see whether the runs determine E at all; why does an error of 0.4% on these runs say little about larger ones; and what does "a token" do to the sentence on English?
"""
