# %% [markdown]
r"""
# 22c ◇ · Scaling laws: the best model for a budget

*This sitting is optional.* With a given budget of computing you can train a large model on few tokens or a small model on many. Which is better? Hoffmann et al. (2022, "Chinchilla") trained four
hundred models, fitted a law with five numbers to their losses, and used the law to answer the question for budgets that nobody had tried. One of the five numbers is the entropy of the text: no model can have a lower loss. For real text the fit is the only estimate of this number, so nobody knows whether it is right. Here we know it exactly: chapter 02's stories come from a grammar, and their entropy is a sum. So this chapter repeats the experiment with small models, and then
compares the fit with the truth.
"""

# %%
#| default_exp labs.plan.laws
#| doc labs.plan.laws: Scaling laws: losses of small models trained for several lengths, the law fitted to them, and what it says.
import csv
import json
from pathlib import Path

from course.figures import scaling_laws as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.model import flops_per_token, num_params, params_by_part
from nanogpt.labs.corpora.stories import ensure_corpus, entropy
from nanogpt.tokenizer import BPETokenizer

# %%
#| export
import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.evals.floor import floor_per_token
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer, wsd
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import stories
from nanogpt.training import scale_init, train_step

ROWS, T, LAYERS, HEADS = 4, 128, 3, 4  # T: every story is shorter
RATE, WARMUP, DECAY = 0.4, 10, 0.2  # the rate is RATE / width, and falls to zero in the last fifth of a run

# %% [markdown]
r"""
## What was run

We trained one GPT with three layers in seven widths, each for five lengths and with two seeds. These runs take too long for a chapter, so they were recorded once by `python bench/scaling.py`, with date and versions in the file. The figure shows their losses. The dotted line is the floor, the entropy of the stories.
"""

# %%
record = json.loads(Path("../data/measurements/scaling.json").read_text())
runs, floor = record["runs"], record["floor"]
other = {k: v for k, v in {"ROWS": ROWS, "T": T, "LAYERS": LAYERS, "HEADS": HEADS}.items() if record[k] != v}
assert not other, f"{other} is not what was recorded; run bench/scaling.py again"
print(f"{len(runs)} runs, {record['date']}, {record['device']}, torch {record['torch']}")
print(f"floor {floor:.4f} nats a token; lowest loss {min(run['loss'] for run in runs):.4f}")
show(
    figures.curves(runs, floor),
    alt="Loss against tokens read, one line a width, both axes logarithmic: all fall, wider ones lower, with a shelf near one nat that the widest leave; the floor lies below all of them.",
)

# %% [markdown]
r"""
The models differ in nothing but their width. `shape` gives the configuration of a width. `held_out` makes new stories for the evaluation, and computes their floor: the loss of a reader who knows the grammar.
"""


# %%
#| export
def shape(width: int, vocab_size: int) -> GPTConfig:
    """The models of this chapter: they differ in their width alone."""
    return GPTConfig(T, vocab_size, LAYERS, HEADS, width)


def held_out(tokenizer, n: int = 256, seed: int = 1_000_003) -> tuple[np.ndarray, float]:
    """New stories as ids, and the loss on them of one who knows the grammar, in nats per token: exact (chapter 02)."""
    told = list(stories(n, seed))
    text = "".join(f"<|endoftext|>{story.text}" for story in told) + "<|endoftext|>"
    ids = tokenizer.to_tiktoken().encode_to_numpy(text, allowed_special="all")
    return ids, floor_per_token(told, tokenizer)


# %%
DATA = "../data/built/stories"
V = ensure_corpus(DATA)["vocab_size"]
for width in (8, 32, 96):
    print(f"width {width:2}: {num_params(shape(width, V)):>7,} parameters")

# %% [markdown]
r"""
The law is L(N, D) = E + A/N^α + B/D^β. N is the number of parameters and D the number of tokens; the five numbers E, A, α, B, β are fitted to the losses. E is the loss that remains when N and D are infinite.

*Predict* three things:

- Which E will the fit give? (You can see the true value in the figure, but the fit cannot.)
- Take about as much computing as width 16 needs for 65,536 tokens. Which width has the lowest loss for that budget?
- We fit the law to small runs only, and let it predict runs with at least four times as much computing. By how many per cent are its losses wrong?
"""

# %%
predict("22c.1", "the fit's E, all runs", guess=None, unit="nats")
predict("22c.2", "the best width for that budget", guess=None)
predict("22c.3", "error of the law for runs 4 times larger than all it has seen", guess=None, unit="%")

# %% [markdown]
r"""
## One run for several lengths

The law needs the losses of runs of different lengths. We cannot read them off one long run: in the middle of a run the learning rate is still high, while at the end of a shorter run it has fallen to zero. We could train each length from the beginning. It is cheaper to train one run, the trunk, at a constant rate. For each length we copy the model at some point and let the rate of the copy fall (Hägele et al. 2024, §3). Until the copy was made, the trunk did exactly what a run of that length would have done. So the loss is the same, bit for bit.
"""


# %%
#| export
def advance(model, optimizer, stream, start: int, stop: int, steps: int, rate: float, decay: float) -> None:
    """Updates start to stop - 1 of a run of so many steps, whose rate falls to zero in its last part `decay`."""
    for step in range(start, stop):
        for group in optimizer.param_groups:
            group["lr"] = rate * wsd(step, steps, warmup=WARMUP, decay=decay)
        train_step(model, optimizer, [stream.next_batch()], clip=1.0)


# %%
#| export
def losses_after(
    width: int, tokens: Sequence[int], folder, held: np.ndarray, seed: int = 0, decay: float = DECAY
) -> dict[int, float]:
    """Held-out losses of this width after so many tokens, ascending: each that of a run of its own, bit for bit.

    One trunk keeps the rate; for each length a copy leaves it, and lets the rate fall (Hägele et al. 2024, §3).
    """
    stream = DocumentStream(open_shards(folder, "train"), ROWS, T, seed=seed)
    model = scale_init(GPT(shape(width, stream.vocab_size), torch.Generator().manual_seed(seed)))
    optimizer, at, losses = make_optimizer(model, RATE / width), 0, {}
    for n in tokens:
        steps = n // (ROWS * T)
        branch = int((1 - decay) * steps)
        advance(model, optimizer, stream, at, branch, steps, RATE / width, decay)  # before the rate falls
        end, update = copy.deepcopy((model, optimizer))
        advance(end, update, copy.copy(stream), branch, steps, steps, RATE / width, decay)
        at, losses[n] = branch, evaluate(end, [held], stream.eot)
    return losses


# %% [markdown]
r"""
We check this claim with the smallest model and two short lengths: the longer branch must have the same loss as a run of that length alone.
"""

# %%
torch.set_num_threads(1)  # tiny products: a second thread costs more than it does
held, true_E = held_out(BPETokenizer.load(f"{DATA}/tokenizer.json"))
assert abs(true_E - floor) < 0.005, "the recorded runs were evaluated on other stories, or in other tokens"
short, long = 8 * ROWS * T, 16 * ROWS * T
both = losses_after(8, [short, long], DATA, held)
assert both[long] == losses_after(8, [long], DATA, held)[long], "a branch is not the run that it stands for"
print(f"{len(held):,} held-out ids; the branch after {short:,} tokens left no trace in the run of {long:,}")

# %% [markdown]
r"""
How large is the difference that made us do this? The recorded file also has losses at constant rate:
"""

# %%
mine = {run["tokens"]: run["loss"] for run in runs if (run["width"], run["seed"]) == (16, 0)}
for run in record["constant"]:
    n = run["tokens"]
    print(
        f"width 16, {n:9,} tokens: {run['loss']:.3f} in the middle of a run, {mine[n]:.3f} at the end of one"
    )

# %% [markdown]
r"""
The law is about the second number of each line. If you fit it to points of one long curve, you use the first number instead, which is higher.

## The fit

The class `Law` is the law as code. `loss` is the formula. `best` answers the question of this chapter: of all N and D that cost the same computing, 6·N·D FLOPs, which have the lowest loss? The derivative is zero there, which gives a formula for N. Below it we try the constants that Hoffmann et al. published, with the best size for a budget and with a size that is four times too small or too large.
"""


# %%
#| export
#| blank Law.loss: E, plus one term that falls with N, plus one that falls with D
#| blank Law.best: set the derivative along 6ND = FLOPs to zero (eq. 4)
@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats a token (Hoffmann et al. 2022, eq. 2)."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, N, D):
        """Of N parameters after D tokens."""
        return self.E + self.A / N**self.alpha + self.B / D**self.beta

    def best(self, flops: float) -> tuple[float, float]:
        """The N and D with the lowest loss for which 6 N D are so many FLOPs (eq. 4)."""
        G = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        N = G * (flops / 6) ** (self.beta / (self.alpha + self.beta))
        return N, flops / 6 / N


# %%
chinchilla = Law(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)  # Hoffmann et al. 2022, eq. 10
size, tokens = chinchilla.best(6e18)
for times in (0.25, 1, 4):
    loss = chinchilla.loss(times * size, tokens / times)
    print(
        f"{times * size / 1e6:4.0f}M parameters, {tokens / times / 1e9:4.1f}B tokens: {loss:.3f} nats a token"
    )

# %% [markdown]
r"""
For this budget, a model that is four times too small or too large costs 0.13 nats.

To fit the five numbers we follow the paper (§3.3). An error is a difference of log L, because the losses differ by factors. Huber's function counts a small error squared and a large error linearly, so that a single bad run cannot decide the fit:
"""

# %%
#| export
#| blank huber: squared near zero, linear from DELTA on, and the two meet
DELTA = 1e-3  # Huber's: beyond a thousandth of the loss an error counts linearly (§D.2)


def huber(r: np.ndarray) -> np.ndarray:
    """Of each error: half of its square up to DELTA; beyond, a line that goes on with the same value and slope."""
    size = abs(r)
    return np.where(size < DELTA, r * r / 2, DELTA * (size - DELTA / 2))


# %%
for r in (0.0005, 0.001, 0.01):
    print(f"an error of {r:.2%} costs {huber(np.array(r)):.2e}; half its square is {r * r / 2:.2e}")

# %% [markdown]
r"""
The third error is ten times as large as the second, and costs nineteen times as much instead of a hundred times. The sum of these costs has several valleys. So, as in the paper, we start from a grid of points, here 243, and keep the best result. The paper's optimiser was L-BFGS. Ours is a damped least-squares method (Levenberg and Marquardt), which moves all starting points at once. You need not read its code.
"""

# %% [markdown]
r"""
## The least squares

`errors` computes the error of each fit at each run and its derivatives. `fit_law` takes the steps: a step that lowers the cost is kept, and the damping then falls; any other step is undone, and the damping grows.
"""

# %%
#| export
STARTS = np.array(
    list(itertools.product((0, 10, 20), (0, 1, 2), (0, 10, 20), (0, 1, 2), (-1, 0, 1))), dtype=float
)


def errors(p: np.ndarray, x: np.ndarray, y: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Error in log loss of each fit at each run, (S, n), and its derivative by the fit's parameters, (S, n, 5)."""
    e = np.broadcast_to(p[:, 4:], (len(p), len(x)))
    terms = np.stack([p[:, :1] - p[:, 1:2] * x, p[:, 2:3] - p[:, 3:4] * y, e], -1)
    top = terms.max(-1, keepdims=True)
    parts = np.exp(terms - top)
    total = parts.sum(-1, keepdims=True)
    a, b, e = np.moveaxis(parts / total, -1, 0)
    slope = np.stack([a, -a * x, b, -b * y, e], -1)
    return (top + np.log(total))[..., 0] - target, slope


# %%
#| export
def fit_law(N, D, losses, starts=STARTS, weights=1.0, E=None, steps=200) -> tuple[np.ndarray, np.ndarray]:
    """Fit log A, alpha, log B, beta, log E from each start: (S, 5), and what is left of the Huber loss of the logs, (S,).

    Levenberg and Marquardt's steps, all starts at once. weights: of the runs, (n,) or (S, n). E: if it is known.
    """
    x, y, target, p = np.log(N), np.log(D), np.log(losses), np.array(starts, dtype=float)
    fixed = np.array([0, 0, 0, 0, E is not None], dtype=float)
    p[:, 4] = p[:, 4] if E is None else math.log(E)
    (r, slope), damping = errors(p, x, y, target), np.full(len(p), 1e-2)
    left = (weights * huber(r)).sum(-1)
    for _ in range(steps):
        J = slope * (1 - fixed)
        Jw = (J * (weights * DELTA / np.maximum(abs(r), DELTA))[..., None]).swapaxes(1, 2)
        H = Jw @ J
        H += np.eye(5) * (damping[:, None] * (H.diagonal(0, 1, 2) + 1e-9) + fixed)[:, None]
        q = p - np.linalg.solve(H, Jw @ r[..., None])[..., 0]
        r_q, slope_q = errors(q, x, y, target)
        left_q = (weights * huber(r_q)).sum(-1)
        ok = left_q < left
        p[ok], r[ok], slope[ok], left[ok] = q[ok], r_q[ok], slope_q[ok], left_q[ok]
        damping = np.clip(np.where(ok, damping / 3, damping * 4), 1e-9, 1e9)
    return p, left


# %% [markdown]
r"""
## Does the fit find a law that we know?

`best_law` takes the best of all starting points.
"""


# %%
#| export
def law_of(p: np.ndarray) -> Law:
    """The law with these log A, alpha, log B, beta, log E."""
    a, alpha, b, beta, e = p.tolist()
    return Law(math.exp(e), math.exp(a), alpha, math.exp(b), beta)


def best_law(N, D, losses, E=None) -> Law:
    """The best of the fits from all starts. ValueError with fewer runs than the law has numbers."""
    if len(losses) < (free := 5 - (E is not None)):
        raise ValueError(f"{len(losses)} runs cannot tell {free} numbers; fit to {free + 1} or more")
    if not all(0 < x < math.inf for x in (*N, *D, *losses)):
        raise ValueError("a law is fitted to sizes, tokens and losses above zero; one here is none, or NaN")
    p, left = fit_law(N, D, losses, E=E)
    return law_of(p[left.argmin()])


# %% [markdown]
r"""
*Check.* We compute the losses that the published law gives for the sizes of our runs, and fit a law to them. The fit must find the published constants again.
"""


# %%
def sizes(runs: list[dict], embedding: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N, D and losses; without the embeddings, N counts what is in the blocks."""
    parts = [params_by_part(shape(run["width"], V)) for run in runs]
    left_out = () if embedding else ("wte", "wpe")
    N = [sum(n for name, n in part.items() if name not in left_out) for part in parts]
    return np.array(N), np.array([run["tokens"] for run in runs]), np.array([run["loss"] for run in runs])


N, D, losses = sizes(runs)
found = best_law(N, D, chinchilla.loss(N, D))
print(", ".join(f"{name} {value:.4g}" for name, value in vars(found).items()))
assert np.allclose(list(vars(found).values()), list(vars(chinchilla).values()), rtol=1e-3), (
    "the law is not found again"
)


# %% [markdown]
r"""
It does, all five to four digits. How many of the 243 starting points does it need? Now we fit to our own losses and count the starting points that lead to the best result:
"""

# %% tags=["nbval-ignore-output"]
p, left = fit_law(N, D, losses)
near = left < left.min() * 1.01
print(
    f"{near.sum()} of {len(p)} starts end within 1% of the best; there E is {np.exp(p[near, 4]).min():.2f} to {np.exp(p[near, 4]).max():.2f}"
)
print(f"elsewhere {np.exp(p[~near, 4]).min():.2f} to {np.exp(p[~near, 4]).max():.2f}")

# %% [markdown]
r"""
Only 102 of 243 starts find the best result. The others end at an E between 0.00 and 1.16. So the result of a single start would depend on luck. Besiroglu et al. (2024) fitted the law again, to a part of the paper's runs that they had reconstructed from its plots, and got other numbers. They name two causes: the paper's optimiser had stopped too early, and the constants in its text are rounded (those are the ones that we called `chinchilla` above).

## The fitted entropy against the true one

We fit the law twice: once with all five numbers free, and once with E fixed at its true value.
"""

# %%
law, known = best_law(N, D, losses), best_law(N, D, losses, E=floor)


def error(law: Law, N, D, losses) -> float:
    """The root of the mean squared error of the log."""
    return float(np.sqrt(np.mean(np.log(law.loss(N, D) / losses) ** 2)))


for name, each in {"fitted": law, "E known": known}.items():
    print(
        f"{name:10} E {each.E:.2f}  alpha {each.alpha:.2f}  beta {each.beta:.2f}  error {error(each, N, D, losses):.1%}"
    )
print(f"{'the truth':10} E {floor:.2f}")
answer("22c.1", law.E)

# %% [markdown]
r"""
How certain is this E? The bootstrap draws runs with replacement and fits again, many times; the middle 95% of the values of E are its interval. But the five lengths of one width share a trunk, so they are not independent. Therefore we do it twice: once we draw single runs, and once complete
curves. The last two lines leave out the shortest runs. One is tempted to do that, because the law fits them worst.
"""


# %%
def resampled(runs: list[dict], group, embedding: bool = True, B: int = 120, seed: int = 0) -> np.ndarray:
    """The law's five numbers (B, 5), each row fitted to as many groups of runs, drawn with replacement."""
    N, D, losses = sizes(runs, embedding)
    names = [group(run) for run in runs]
    groups = sorted(set(names))
    which = [groups.index(name) for name in names]
    even = np.full(len(groups), 1 / len(groups))
    drawn = np.random.default_rng(seed).multinomial(len(groups), even, B)[:, which]
    p, left = fit_law(N, D, losses)
    starts = p[left.argsort()[:: len(p) // 4]]  # the best, and others
    q, left = fit_law(N, D, losses, np.tile(starts, (B, 1)), np.repeat(drawn, len(starts), 0), steps=60)
    best = left.reshape(B, -1).argmin(1) + np.arange(B) * len(starts)
    return q[best]


def by_run(run: dict) -> tuple:
    return run["width"], run["seed"], run["tokens"]


def by_curve(run: dict) -> tuple:
    return run["width"], run["seed"]


# %% tags=["nbval-ignore-output"]
longer = [run for run in runs if run["tokens"] > min(D)]
longest = [run for run in longer if run["tokens"] > 2 * min(D)]
curves = resampled(runs, by_curve)  # used again below
ways = {
    "all, by run": np.exp(resampled(runs, by_run)[:, 4]),
    "all, by curve": np.exp(curves[:, 4]),
    "one length less, by run": np.exp(resampled(longer, by_run)[:, 4]),
    "two less, by run": np.exp(resampled(longest, by_run)[:, 4]),
}
show(
    figures.estimates(ways, floor),
    alt="Distributions of the fitted E, one a way of choosing runs, against the true value: wide, and around different places.",
)
for name, values in ways.items():
    print(
        f"{name:24} E {np.percentile(values, 2.5):.2f} to {np.percentile(values, 97.5):.2f}, middle {np.median(values):.2f}"
    )

# %% [markdown]
r"""
The fitted E, 0.65, is a third above the true one, 0.49, and the runs allow almost any value. Whether we draw complete curves or single runs, the interval reaches from zero to 0.8, above the lowest loss of any run: it contains the truth because it contains almost everything. Without the shortest runs its middle falls to zero. And when E is fixed at its true value, the fit is no worse: its error is 10.0% instead of 10.7% (the fit makes Huber's sum small, not this error). So these losses
do not determine E. The lowest loss is 0.58, and everything below is extrapolation. For a published law nobody knows how far the runs are from the
entropy of their text, so there the same questions have to be asked of its runs: leave some out, and fix E at another value.

Where does the error of 11% come from: from noise, or from the form of the law? Two runs with different seeds show the noise. The table below shows the error of the law for each width and length.
"""

# %%
pairs = {}
for run in runs:
    pairs.setdefault((run["width"], run["tokens"]), []).append(run["loss"])
seeds = [abs(np.log(a / b)) / np.sqrt(2) for a, b in (pair for pair in pairs.values() if len(pair) == 2)]
off = np.log(law.loss(N, D) / losses)
noise = np.sqrt(np.mean(np.square(seeds)))
print(f"two seeds differ as if each had an error of {noise:.1%}; the law's: {error(law, N, D, losses):.1%}")
figures.say_errors(runs, off)

# %% [markdown]
r"""
We also draw the law over the losses:
"""

# %%
show(
    figures.curves(
        runs, floor, lambda width, n: law.loss(sizes([{"width": width, "tokens": 1, "loss": 1}])[0][0], n)
    ),
    alt="The same curves with the law as lines: straighter than the losses, which fall in steps.",
)

# %% [markdown]
r"""
The error is larger than the noise, and its signs come in blocks. Look at the curves again. They fall, stay near 1.1 nats for a while, and fall again. What is it that a model has not learned on this shelf? Chapter 18's recorded runs can say it, since they have the excess above the floor by kind of word. We take those of two layers after 400 steps, and ask what the loss would be if only the words were missing that follow from earlier ones: repeated names and things, copied and computed numbers.
"""

# %%
measured = json.loads(Path("../data/measurements/excess.json").read_text())
early = [run["early"] for run in measured["runs"] if run["layers"] == 2]
kinds = "names, again", "things, again", "counts, copied", "counts, computed"
back = np.mean([sum(run[kind] for kind in kinds) for run in early])
rest = np.mean([sum(run.values()) for run in early]) - back
print(
    f"after {measured['early']} steps: {back:.0f} nats a story for words that follow from earlier ones, {rest:.0f} for all others"
)
print(
    f"with the first alone the loss is {floor + back * floor / entropy():.2f} nats a token, with neither {floor:.2f}"
)

# %% [markdown]
r"""
A story has `entropy() / floor` tokens, so this is the loss of a model that knows the sentences and does not look back. At 1.12 it is where the shelf is, and what lies below the shelf is looking back (chapter 18 exchanges the earlier words and sees that a model of 150 steps does not mind). Width 96 leaves it between 2^18 and 2^19 tokens. Of width 64's two seeds, one has left it after a million tokens (0.60) and
the other has not (0.92), and this one pair is more than half of the seeds' noise. A sum of powers has no shelves.

Why do published curves look so smooth, then? One explanation, which this chapter does not measure: a model that learns a language learns very many things, each in a step of its own, and the sum of many steps at many scales is a power law (Michaud et al. 2023). A grammar
of a few dozen rules has too few to average. Exercise 4 looks at one step.

## Predicting larger runs

A law is useful if it predicts runs that nobody has made yet. So we fit it to the small runs only, and predict the runs that take at least four times as much computing as the largest of them.
"""

# %%
flops = np.array([flops_per_token(shape(run["width"], V)) * run["tokens"] for run in runs])
small, large = flops <= flops.max() / 16, flops >= flops.max() / 4
seen = best_law(N[small], D[small], losses[small])
wrong = seen.loss(N[large], D[large]) / losses[large] - 1
inside = error(seen, N[small], D[small], losses[small])
print(
    f"fitted to {small.sum()} runs: E {seen.E:.2f}, error {inside:.1%}, lowest loss {losses[small].min():.3f}"
)
print(f"on {large.sum()} larger ones off by {abs(wrong).mean():.1%}, at most {abs(wrong).max():.1%}")
for i in np.flatnonzero(large):
    text = f"  width {runs[i]['width']:3}, {D[i]:9,} tokens, seed {runs[i]['seed']}: {losses[i]:.3f}"
    print(f"{text}, predicted {seen.loss(N[i], D[i]):.3f}")
answer("22c.3", 100 * abs(wrong).mean())

# %% [markdown]
r"""
The predictions are off by 18% on average, and the fit gave no warning: its error on its own runs, in the first line, is small. Look at the signs. Five of the twelve runs have left the shelf (0.58 to 0.76), and all five are predicted too high. The seven others are predicted too low.

No small run has got below the shelf (the lowest of their losses is 1.117), so the law could not learn what comes after it. Is the shelf to blame? An explanation needs a control: what would the fit do without any shelf? We take the losses of a law, the one that we fitted to all runs, with as much noise as
between two seeds. Then we fit to the same small runs and predict the same large ones, five times.
"""

# %%
dice, without = np.random.default_rng(0), []
for _ in range(5):
    made = law.loss(N, D) * np.exp(noise * dice.standard_normal(len(N)))
    again = best_law(N[small], D[small], made[small])
    off = again.loss(N[large], D[large]) / law.loss(N[large], D[large]) - 1
    without.append(f"{abs(off).mean():.0%}")
print("without a shelf, on average:", *without)

# %% [markdown]
r"""
Without a shelf, the same 38 runs predict the larger ones with an average error of 1% to 13%, of 7% on average. So noise and distance explain a part of the 18%, and the shelf more than half of it.

So a law cannot know of a shelf that only larger runs reach, and its error on its own runs gives no warning. Before you trust one, let it predict runs
that you have and that it has not seen.

## The best width for a budget

For each width, the budget buys a certain number of tokens, and the law predicts the loss. We let the law choose the best width of a small budget. Then we really train three widths with that budget and compare. (Computing is counted by chapter 05's `flops_per_token`. The usual 6 N D leaves out attention's T × T,
which is more than a third of all FLOPs at width 8.)
"""


# %%
def choices(law: Law, budget: float, widths, embedding: bool = True) -> dict[int, tuple[int, float]]:
    """Tokens that the budget buys, in whole batches, and the law's loss, by width."""
    found = {}
    for width in widths:
        n = int(budget / flops_per_token(shape(width, V)) / (ROWS * T)) * ROWS * T
        found[width] = n, law.loss(sizes([{"width": width, "tokens": n, "loss": 1}], embedding)[0][0], n)
    return found


BUDGET, TRIED = 1.6e10, (8, 12, 24)
every = choices(law, BUDGET, range(4, 37, 4))
assert all(width in every for width in TRIED), f"TRIED={TRIED}: take widths among {list(every)}"
best = min(every, key=lambda width: every[width][1])
for width in (8, 16, 96):
    part = flops_per_token(shape(width, V)) / (6 * num_params(shape(width, V)))
    print(f"width {width}: {part:.2f} × 6 N FLOPs a token")
print(f"best width by the law: {best}, for {every[best][0]:,} tokens")
answer("22c.2", best)

# %% tags=["nbval-ignore-output"]
handful = []
for width in TRIED:
    n = every[width][0]
    for tokens, loss in losses_after(width, [n // 4, n // 2, n], DATA, held).items():
        handful.append({"width": width, "tokens": tokens, "seed": 0, "loss": loss})
ran = {run["width"]: run["loss"] for run in handful}  # the last of each
show(
    figures.budget(every, ran, floor),
    alt="Loss against width for one budget, the law as a line, runs as points: too small and too large both cost.",
)
for width, loss in ran.items():
    print(f"width {width:3}, {every[width][0]:7,} tokens: predicted {every[width][1]:.3f}, is {loss:.3f}")
few = best_law(*sizes(handful))
print(f"E by these {len(handful)} runs alone: {few.E:.2f}, error {error(few, *sizes(handful)):.1%}")

# %% tags=["nbval-ignore-output"]
predicted = min(TRIED, key=lambda width: every[width][1])
print(f"best of the three by the law: {predicted}; by running them: {min(ran, key=ran.get)}")

# %% [markdown]
r"""
The predicted losses are wrong by a few per cent. The predicted size is nearly right: here (November 2026) width 12 was best, width 8 was 0.03 nats behind, which is less than two seeds differ by, and width 24 was 0.2 behind. The loss changes little near the best size, so a law with an error of 11% can
find the right valley.

We also fitted the law to these nine runs alone. Their losses are far above the floor, and the fit gave an E of zero.

## IsoFLOP profiles

The law above is the paper's third approach. Its second one needs no law of the loss at all. Take a few budgets. For each of them, train models of several sizes with exactly that budget, and draw the loss against the size. Each such curve is a valley, an *IsoFLOP profile*. Its lowest point is the best size for that budget.
Then see how the lowest points move when the budget grows.

We have no runs with equal budgets, but curves over tokens: for each width we read the loss at the number of tokens that the budget buys, between two measured points. A parabola through the losses (over log N) gives the lowest point.
"""


# %%
def profile(budget: float) -> tuple[list[float], list[float]]:
    """N and loss of each width that the recorded lengths reach with this budget; means over seeds, between points."""
    found = [], []
    for width in sorted({run["width"] for run in runs}):
        mine = [run for run in runs if run["width"] == width]
        lengths = sorted({run["tokens"] for run in mine})
        means = [np.mean([np.log(run["loss"]) for run in mine if run["tokens"] == n]) for n in lengths]
        tokens = budget / flops_per_token(shape(width, V))
        if lengths[0] <= tokens <= lengths[-1]:
            found[0].append(num_params(shape(width, V)))
            found[1].append(float(np.exp(np.interp(np.log(tokens), np.log(lengths), means))))
    return found


# %%
profiles, lowest = {C: profile(C) for C in (4e10, 8e10, 1.6e11, 3.2e11)}, {}
for C, (sizes_of, found) in profiles.items():
    c, b, _ = np.polyfit(np.log(sizes_of), found, 2)
    lowest[C] = float(np.exp(-b / (2 * c)))
    print(
        f"budget {C:.1e} FLOPs: {len(found)} widths, best {lowest[C]:,.0f} parameters; the law, with 6 N D, says {law.best(C)[0] / 1e3:.0f},000"
    )
slope = np.polyfit(np.log(list(lowest)), np.log(list(lowest.values())), 1)[0]
print(f"the best N grows with the budget to the power of {slope:.2f}")
show(
    figures.profiles(profiles, lowest),
    alt="Four valleys of loss over parameters, one a budget; the lowest points move to the right.",
)

# %% [markdown]
r"""
The valleys are flat at the bottom: a size that is wrong by a factor of two costs a few per cent. So the position of the lowest point is uncertain. At the largest budget it is not even a measurement: some widths have left the shelf and others have not, and the parabola puts its lowest point at 31,084 parameters, while the smallest model that was measured there has 49,368. So these points determine the exponent poorly. Still, this way needs no formula for the loss and no E.

## Which parameters?

With a vocabulary of a thousand, at these widths most parameters are embeddings. Kaplan et al. (2020) left them out of N, Hoffmann et al. counted them. The exponent with which the best N grows with computing, a = β / (α + β), is
0.73 in the first paper and about 0.5 in the second. We fit the law to our runs with both ways of counting:
"""

# %%
blocks = best_law(*sizes(runs, embedding=False))
for name, each, n in (("all", law, N), ("blocks only", blocks, sizes(runs, embedding=False)[0])):
    a = each.beta / (each.alpha + each.beta)
    other = choices(each, BUDGET, range(4, 37, 4), each is law)
    width = min(other, key=lambda w: other[w][1])
    print(
        f"{name:12} E {each.E:.2f}  alpha {each.alpha:.2f}  a {a:.2f}  error {error(each, n, D, losses):.1%}  best width {width}"
    )
share = {
    w: 1 - sizes([{"width": w, "tokens": 1, "loss": 1}], False)[0][0] / num_params(shape(w, V))
    for w in (8, 32, 96)
}
print("embeddings' share:", ", ".join(f"width {w} {s:.0%}" for w, s in share.items()))

# %% [markdown]
r"""
Two exponents from the same runs, and the errors do not decide between them. For these sizes it makes no difference: the best width is the same, because N is only a label of a run. It does make a difference when the exponent is used at sizes where embeddings are a smaller share.

But are 0.58 and 0.71 different at all? We know how to ask: draw whole curves with replacement, fit both laws to the same draw, and look at both exponents and at their difference.
"""

# %% tags=["nbval-ignore-output"]
others = resampled(runs, by_curve, embedding=False)  # the same draws: the same seed
exponents = {
    "all": curves[:, 3] / (curves[:, 1] + curves[:, 3]),
    "blocks only": others[:, 3] / (others[:, 1] + others[:, 3]),
}
exponents["the difference"] = exponents["blocks only"] - exponents["all"]
for name, values in exponents.items():
    low, middle, high = np.percentile(values, [2.5, 50, 97.5])
    print(f"{name:15} a {low:.2f} to {high:.2f}, middle {middle:.2f}")

# %% [markdown]
r"""
Each exponent alone is nearly unknown: the two intervals overlap over most of their lengths. But the difference is sure, because the draw that makes one large makes the other large as well: counting only the blocks adds about 0.1, in almost every draw. The paired difference is what these runs support, and not the exponents.

It goes towards Kaplan's side. Pearce and Song (2024) show that much of the distance between the two papers is this. Porian et al. (2024) find three causes in runs of their own: the FLOPs of the last layer that were not counted, a warm-up too long for small models, and optimizer settings that were not tuned for each size. Keep the third in mind here, too: our rate is 0.4 / width for all widths, without
tuning, and all our models have three layers.

## The published laws

Now the constants that Hoffmann et al. published, and those of Besiroglu et al., at four budgets: that of GPT-2 small with ten billion tokens, a larger one, that of Chinchilla itself (70B parameters, 1.4T tokens), and a still larger one.

*Predict.* You know the rule of "twenty tokens for each parameter". How many does the paper's own fitted law recommend at Chinchilla's own budget?
"""

# %%
predict("22c.4", "tokens a parameter by the published law, at 5.76e23 FLOPs", guess=None)

# %%
replication = Law(E=1.8172, A=482.01, alpha=0.3478, B=2085.43, beta=0.3658)  # Besiroglu et al. 2024, eq. 9
for name, each in {"Hoffmann et al.": chinchilla, "Besiroglu et al.": replication}.items():
    print(f"{name}: a {each.beta / (each.alpha + each.beta):.2f}")
    for C in (6 * 124e6 * 10e9, 1e21, 5.76e23, 1e25):
        n, d = each.best(C)
        print(
            f"    {C:.2e} FLOPs: {n / 1e9:7.2f}B parameters, {d / 1e9:8,.0f}B tokens, {d / n:4.0f} for each parameter"
        )
n, d = chinchilla.best(5.76e23)
answer("22c.4", d / n)

# %% [markdown]
r"""
The law recommends ninety-three tokens for each parameter, at the budget with which the authors trained a model with twenty. So the rule of twenty does not come from this law. It comes from the paper's first two approaches (the envelope of the training curves, and IsoFLOP profiles), which agree with each other, and from the model that was then trained. That the third approach contradicts the first two is the
finding of Besiroglu et al. Their law says 18 at that budget, and stays between 17 and 24 over six orders of magnitude.

Which of the two laws do the runs support? The paper has no table of them, but a figure, from which Besiroglu et al. read 245 runs: size, FLOPs and loss. We have them in `data/reference/chinchilla_runs.csv`, and we have `best_law`. So we can repeat the replication. We fit to all 245 runs, and then without five of them, those with the fewest tokens for each parameter.

*Predict.* Do five runs of 245 matter?
"""

# %%
with open("../data/reference/chinchilla_runs.csv", encoding="utf-8", newline="") as file:
    table = list(csv.DictReader(file))
N_real, FLOPs, L_real = (
    np.array([float(row[key]) for row in table]) for key in ("parameters", "flops", "loss")
)
D_real = FLOPs / 6 / N_real
order = np.argsort(D_real / N_real)  # the fewest tokens for each parameter first
for at in order[:5]:
    print(f"{N_real[at] / 1e9:.1f}B parameters, {D_real[at] / 1e9:.2f}B tokens: loss {L_real[at]:.2f}")
for kept in (order, order[5:]):
    refit = best_law(N_real[kept], D_real[kept], L_real[kept])
    n, d = refit.best(5.76e23)
    text = f"E {refit.E:.2f}  alpha {refit.alpha:.2f}  beta {refit.beta:.2f}"
    print(f"{len(kept)} runs: {text}; at Chinchilla's budget {d / n:.0f} tokens for each parameter")

# %% [markdown]
r"""
Five runs of 245 decide it. With all of them the law recommends seven tokens for each parameter, and without them eighteen. The second fit is that of Besiroglu et al.: E 1.82, α 0.35 and β 0.37 are theirs as well. (Their program leaves out the five highest losses, and these are the same five.) They are models of two to seven billion parameters that read less than a billion tokens, at most two tokens for five parameters. Nobody would train such a model. Yet they move the advice for a budget of 5.76·10²³ FLOPs by a factor of more than two, although Huber's function counts their errors linearly. Ask it of every fitted law: which runs decide, and are they near the size that I want to know about?

The published intervals of the exponents had a width of 0.001. Besiroglu et al. reckon that this would have taken over 600,000
runs. One way to get an interval that is too narrow is to count what is not independent, such as the lengths of one trunk. Theirs is another one: the
optimiser of each draw stops near where it starts, and all draws start at the same point.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("22c")

# %%
checkpoint("22c")

# %% [markdown]
r"""
## Exercises

`course exercises release 22c` writes these as a notebook to `released/`; `course check 22c` runs their visible checks.

- **22c-1** The constant that one does not see, 30 minutes: fit a law with and without E, and predict far outside.
- **22c-2** The bottom of a valley, 25 minutes: the best size of an IsoFLOP profile, or none.
- **22c-3** A model that will be used, 35 minutes: derive the best size if inference is paid for as well.
- **22c-4** A check for a compute-optimal size, 25 minutes: write the check that needs no formula.
- **22c-5** The entropy of English, 10 minutes: what a fitted E says, and what it does not.

To explore:

1. Fit to losses of constant rate (`decay=0.0`). *Check*: which of E, α and β move by more than their bootstrap intervals?
2. Give `fit_law` another DELTA: 1, which is least squares, and 1e-4. *Check*: E by curve's interval; what do the residuals of width 96 do?
3. Bend the law: replace the sum by a power of it, or let B depend on N. *Check*: the error on the larger runs, not on those that it was fitted to.
4. Where do the steps come from? *Check*: chapter 18's excess by kind of decision for one width at two lengths, before and after a step.
5. `python bench/scaling.py --widths 128 --seeds 0` adds a width, in a copy of the repository. *Check*: predict its five losses before.

## Further reading

- J. Hoffmann et al. 2022, [*Training Compute-Optimal Large Language Models*](https://arxiv.org/abs/2203.15556), §3: three approaches; the second and the third are this chapter's.
- J. Kaplan et al. 2020, [*Scaling Laws for Neural Language Models*](https://arxiv.org/abs/2001.08361), §3 and §6.
- T. Besiroglu et al. 2024, [*Chinchilla Scaling: A Replication Attempt*](https://arxiv.org/abs/2404.10102), §3: the fit that had not converged, and intervals too narrow.
- T. Porian et al. 2024, [*Resolving Discrepancies in Compute-Optimal Scaling of Language Models*](https://arxiv.org/abs/2406.19146): last layer, warm-up, tuning.
- T. Pearce and J. Song 2024, [*Reconciling Kaplan and Chinchilla Scaling Laws*](https://arxiv.org/abs/2406.12907), §3: what counting embeddings does at small sizes.
- A. Hägele et al. 2024, [*Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations*](https://arxiv.org/abs/2405.18392), §3: one trunk, many lengths.
- E. Michaud et al. 2023, [*The Quantization Model of Neural Scaling*](https://arxiv.org/abs/2303.13506), §2: many steps make a power law.
"""
