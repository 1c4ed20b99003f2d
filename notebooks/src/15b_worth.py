# %% [markdown]
r"""
# 15b · Worth: which ingredients earn their place

Chapter 15 built a recipe: warm-up, a schedule, clipping, decay groups. Which of these does a run need? To answer we must compare runs, and this is harder
than it looks. Two runs of the same recipe with different seeds differ by more than many ingredients are worth. And an ingredient that looks useful at one
learning rate may be useless at another.

This chapter is about fair comparisons. We ask four questions. How large should a batch be, and which rate goes with it? What can another optimizer do? What
does each ingredient cost when we leave it out? And is the whole recipe better than the plainest loop?
"""

# %%
import json
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from course.figures import recipe as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device, pick_scale
from nanogpt.evaluate import evaluate
from nanogpt.labs.evals.floor import floor_per_token
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import cosine, make_optimizer, wsd
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train_step

# %%
device, SEEDS = pick_device(), (0, 1, 2, 3)
B, steps = {"ci": (4, 60), "laptop": (4, 108), "gpu": (16, 400)}[pick_scale(device)]
assert steps >= 60, f"steps={steps} is too short for this chapter's experiments: take at least 60"
folder = Path("../data/built/stories")
ensure_corpus(folder)
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
eot, told = tokenizer.eot, list(stories(60, seed=1))  # another seed than the shards'
ids = [eot]
for story in told:
    ids += [*tokenizer.encode(story.text), eot]
held = np.array(ids)
floor = floor_per_token(told, tokenizer)
config = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=128, n_layer=1, n_head=4, n_embd=64)
print(f"{steps} steps of {B} rows; a perfect reader has a loss of {floor:.3f} nats")

# %% [markdown]
r"""
These are chapter 15's sizes, and the next cell has its experiment in a form in which every ingredient is a setting. `RECIPE` holds the settings, and a call changes some
of them: `experiment(seed=1, clip=None)` is the recipe without clipping, made with seed 1. Its result has `above`, the number of nats above the floor, which is the loss of a perfect reader (chapter 02).
(A run that was made is not made again. If you change the sizes or `RECIPE`, run the cell of `experiment` again: it then forgets the old results.)
"""

# %%
RECIPE = {"lr": 1e-2, "steps": steps, "stop": None, "rows": B, "config": config, "scaled": True}
RECIPE |= {"schedule": cosine, "warmup": steps // 6, "minimum": 0.1, "clip": 1.0}
RECIPE |= {"make": make_optimizer, "betas": (0.9, 0.95), "weight_decay": 0.1, "all_decay": False}


def batches(rows: int, seed: int) -> DocumentStream:
    return DocumentStream([folder / "train_000000.bin"], rows, config.block_size, seed=seed, device=device)


@cache  # a run that was made is not made again
def experiment(seed: int = 0, **changes) -> SimpleNamespace:
    """A run by RECIPE and some changes: its model, the loss of each step, and nats above the floor in the end."""
    r = SimpleNamespace(**RECIPE | changes)
    model = GPT(r.config, generator=torch.Generator().manual_seed(seed)).to(device)
    model = scale_init(model) if r.scaled else model
    optimizer = r.make(model, r.lr, betas=r.betas, weight_decay=r.weight_decay)
    if r.all_decay:
        for group in optimizer.param_groups:
            group["weight_decay"] = r.weight_decay
    stream, losses = batches(r.rows, seed), []
    for step in range(r.steps if r.stop is None else r.stop):
        for group in optimizer.param_groups:
            group["lr"] = r.lr * r.schedule(step, r.steps, warmup=r.warmup, minimum=r.minimum)
        losses.append(train_step(model, optimizer, [stream.next_batch()], clip=r.clip).item())
    return SimpleNamespace(model=model, losses=losses, above=evaluate(model, [held], eot) - floor)


# %% tags=["nbval-ignore-output"]
base = experiment()
print(f"the recipe: {base.above:.3f} nats above the floor after {steps} steps")

# %% [markdown]
r"""
## How large must a batch be?

The gradient of a batch is the true gradient G plus noise, because a batch is only a sample. With more rows the noise becomes weaker:
the square of its length is $\operatorname{tr}\Sigma / B$ for B rows, where Σ is the covariance of single rows' gradients. At $B = \operatorname{tr}\Sigma / \lvert G\rvert^2$ noise and gradient have the same length. McCandlish et al. (2018, §2.2
and appendix A.1) call this batch size the *simple noise scale*. Much smaller batches mostly follow noise, and in much larger ones most rows repeat what the
others say.

We can measure it with the gradients of single rows. Two numbers are needed: the mean of their squared lengths, and the squared length of their mean. They give two equations for the
two unknowns.

*Predict.* After five steps, at how many rows is the noise as strong as the gradient? And at the end of the run?
"""


# %%
def noise_scale(model: GPT, rows: list[tuple[Tensor, Tensor]]) -> float:
    """tr Σ / |G|², in rows, from the gradients of single rows (McCandlish et al. 2018, appendix A.1)."""
    total, squares, n = 0.0, 0.0, len(rows)
    for x, y in rows:
        model.zero_grad()
        model(x, y)[1].backward()
        g = torch.cat([p.grad.flatten() for p in model.parameters()])
        total, squares = total + g, squares + (g @ g).item() / n
    mean_squared = (total @ total).item() / n**2
    signal = (n * mean_squared - squares) / (n - 1)
    noise = (squares - mean_squared) / (1 - 1 / n)
    return noise / signal if signal > 0 else math.inf


# %%
predict("15b.1", "rows at which noise equals gradient, after 5 steps", guess=None)
predict("15b.2", "the same at the end", guess=None)

# %%
x, y = batches(1, seed=99).next_batch()
assert abs(noise_scale(base.model, [(x, y)] * 4)) < 1e-3, "the same row four times holds no noise"

# %% tags=["nbval-ignore-output"]
x, y = batches(128, seed=98).next_batch()
rows = list(zip(x.split(1), y.split(1)))
scales = {}
for stop in (5, steps // 6, steps // 2, steps):
    done = experiment(stop=stop) if stop < steps else base
    scales[stop] = noise_scale(done.model, rows)
    print(f"after {stop:3} steps, loss {done.losses[-1]:.2f}: {scales[stop]:5.1f} rows,", end=" ")
    print(f"{scales[stop] * config.block_size:,.0f} tokens")
answer("15b.1", scales[5])
answer("15b.2", scales[steps])

# %% [markdown]
r"""
Early on, every row's gradient says the same: which tokens are frequent. A few rows suffice. Later the model knows what is common to all
rows, the rows disagree, and the gradient is a small mean of large, different vectors. So a batch may grow during a run, as GPT-3's
does; its authors measured this scale to choose their batch sizes (§2.3).

**Batch and rate.** A larger batch has less noise, so it should allow a larger rate. How much larger? For SGD the answer is
"in proportion" (Goyal et al. 2017), for Adam "with the square root" (Malladi et al. 2022), and both only up to the noise scale. We recorded a sweep: five batch sizes, each with several rates, and all runs read
the same number of tokens, so that a run with twice the batch makes half as many updates.
"""

# %%
recorded = json.loads(Path("../data/measurements/ablation.json").read_text(encoding="utf-8"))
print(recorded["command"], "·", recorded["date"], "·", recorded["device"])


def best(above: dict[float, list[float]]) -> float:
    """The rate with the lowest mean over the seeds."""
    return min(above, key=lambda lr: np.mean(above[lr]))


by_batch = {}
for row in recorded["batches"]:
    by_batch.setdefault(row["rows"], {}).setdefault(row["lr"], []).append(row["above"])
for n, above in by_batch.items():
    print(f"{n:3} rows: best rate {best(above):g}, {np.mean(above[best(above)]):.3f} nats above the floor")
show(
    figures.rates({f"{n} rows": above for n, above in by_batch.items()}), alt="A valley for each batch size."
)

# %% [markdown]
r"""
Each line is a valley. Is its lowest point at a larger rate if the batch is larger? Go down the printed list. From one line to the next the batch doubles. If the best rate doubled as well, the
rule would be "in proportion"; if it doubled in every second line, it would be the square root. The grid of rates is coarse, each rate twice the one before, so it can only tell these two apart over several
lines. Here the best rate is 0.01 in all five lines, and neither rule shows. One reason may be that all runs read the same text, so that 32 rows make 13 updates and 2 rows 216. Look also at the last column. All runs have read the same text, so a column that rises says that the large batches have wasted some of it: they made too few updates.

## Muon: a matrix is more than its entries

AdamW treats each number of a matrix by itself. But a matrix is a map from vectors to vectors, and its update is one, too. How does an update act on a vector? In
each of certain directions it stretches the vector by a factor. These factors are its *singular values*. The next cell takes the gradient of one matrix of our trained model and prints its
singular values: the first, the second, those at an eighth, a quarter and a half of the list, and the last. The second line shows the same for the matrix that `orthogonal` makes from the gradient.
"""


# %%
def orthogonal(G: Tensor) -> Tensor:
    """A matrix with the directions of G and singular values near 1: five Newton–Schulz steps (Jordan et al. 2024)."""
    X = G / G.norm()
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X - 4.7750 * A @ X + 2.0315 * A @ A @ X
    return X


# %% tags=["nbval-ignore-output"]
x, y = batches(B, seed=98).next_batch()
base.model.zero_grad()
base.model(x, y)[1].backward()
G = base.model.transformer.h[0].mlp.c_proj.weight.grad
for name, matrix in {"gradient": G / G.norm(), "orthogonalized": orthogonal(G)}.items():
    s = torch.linalg.svdvals(matrix)  # from the largest to the smallest
    print(f"{name:15}", *(f"{s[i]:.3f}" for i in (0, 1, len(s) // 8, len(s) // 4, len(s) // 2, -1)))

# %% [markdown]
r"""
The gradient acts in a few directions. Its first singular values are many times as large as the others, so a step of gradient descent moves the
matrix in these directions and hardly in any other. The last singular value is 0: the final LayerNorm takes off the mean of a vector, so adding the same number
to all its entries changes nothing. `orthogonal` keeps all other directions and makes their
stretches nearly equal. It needs no decomposition: each of the five steps consists of matrix products, and the polynomial in it multiplies
small singular values by 3.4 and keeps large ones near 1. It does not converge to 1: after five steps every value that was above 0.02 is between 0.68 and 1.2.

An optimizer that does this with a running mean of the gradients is **Muon** (Jordan et al. 2024). Its authors suggest that the rare directions, which a gradient
nearly ignores, are important for learning; this is a conjecture. Muon is meant for the matrices inside the blocks. Embeddings, biases and gains
stay with AdamW. It also needs less memory: one running mean where AdamW has two.

Since 2024 the records for training a model of GPT-2's size as fast as possible ("speedruns") use Muon. How much is it worth? Wen et al. (2025) tuned
the settings of both sides. The speedup of optimizers like Muon over AdamW was 1.4 for models of 0.1 billion parameters and fell to 1.1 for 1.2 billion. Earlier papers had claimed up to 2. Wen et al. give
as one reason that the AdamW of those comparisons was not tuned as well as the new optimizer.

PyTorch has Muon since version 2.9. With `match_rms_adamw` its steps are about as long as AdamW's usually are (Liu et al. 2025, §2.2), so one learning rate can serve both.
"""


# %%
class MuonAndAdamW:
    """Muon for the matrices inside the blocks, AdamW for the rest, used like one optimizer."""

    def __init__(self, model: GPT, lr: float, *, betas, weight_decay):
        hidden = [p for p in model.transformer.h.parameters() if p.dim() == 2]
        inside = {id(p) for p in hidden}
        rest = [p for p in model.parameters() if id(p) not in inside]
        muon = torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=0.0)
        self.parts = muon, adamw
        self.param_groups = muon.param_groups + adamw.param_groups

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()


# %% tags=["nbval-ignore-output"]
print(f"AdamW {base.above:.3f}, Muon {experiment(make=MuonAndAdamW).above:.3f} nats above the floor")

# %% [markdown]
r"""
One run each, at a rate that nobody has tuned for Muon, says nothing yet. The next section says how to do better.

## Comparing runs

What is clipping worth in a run without an accident? The obvious experiment makes one run with it and one without. Here it is, with four seeds in place of one.
"""

# %% tags=["nbval-ignore-output"]
with_it = [experiment(seed).above for seed in SEEDS]
without = [experiment(seed, clip=None).above for seed in SEEDS]
cost = np.subtract(without, with_it)
print("with clipping:   ", *(f"{nats:.3f}" for nats in with_it), "nats above the floor")
print("without clipping:", *(f"{nats:.3f}" for nats in without))
print("the difference:  ", *(f"{nats:+.3f}" for nats in cost))
print(f"seeds differ by {np.ptp(with_it):.3f} from the best to the worst")

# %% [markdown]
r"""
Look at the columns. All four pairs say that clipping helps, but not by how much: 0.26 to 0.42 nats. Where an effect is smaller than this spread, a single pair may have the wrong sign. And a comparison of two runs with *different* seeds
would mix the difference of the seeds into the result. So two rules:

1. **Compare in pairs.** Both runs of a pair have the same first weights and read the same rows in the same order. What the seed does to both of them cancels in their
   difference.
2. **Say how sure you are.** The mean of n differences has a standard error of s/√n, where s is their standard deviation. With few pairs we do not know s well,
   and Student's t corrects for that: the 95% interval is the mean ± t · s/√n, with t = 3.18 for four pairs.

If zero is inside the interval, the experiment has not decided. Even if there is no effect at all, zero is outside in one of 20 experiments. So in a table with ten rows, expect one such row in
every second table.
"""

# %%
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's t by the number of pairs


def interval(differences) -> tuple[float, float]:
    """The mean of paired differences, and half the width of its 95% interval."""
    n = len(differences)
    assert n in T95, f"{n} pairs: an interval needs 2 to 8 (SEEDS)"
    return np.mean(differences), T95[n] * np.std(differences, ddof=1) / math.sqrt(n)


# %%
predict("15b.3", "what clipping is worth without an accident", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
mean, half = interval(cost)
print(f"leaving out clipping costs {mean:+.3f} ± {half:.3f} nats")
answer("15b.3", mean)

# %% [markdown]
r"""
## Switched off, one by one

Now we do this with every ingredient: we leave it out or replace it, and keep the rest of the recipe. Each variant was run with each of several rates, because of the lesson of the warm-up. The
two schedules end at the same minimum, so that their row compares shapes. A rate that falls further, to zero, has a row of its own.

These are many runs, so they were recorded, with the same functions.

*Predict.* Which row costs most if both sides use the recipe's best rate?
"""

# %%
predict("15b.4", "the row that costs most at the recipe's best rate", guess=None)


# %%
SWITCHED_OFF = {
    "nothing": {},
    "clipping": {"clip": None},
    "warm-up": {"warmup": 0},
    "decay of the rate": {"minimum": 1.0},
    "cosine (stable–decay instead)": {"schedule": wsd},
    "end at a tenth (at zero instead)": {"minimum": 0.0},
    "weight decay": {"weight_decay": 0.0},
    "groups (all decayed)": {"all_decay": True},
    "betas (0.9, 0.999 instead)": {"betas": (0.9, 0.999)},
    "scaled initialisation": {"scaled": False},
    "AdamW (Muon instead)": {"make": MuonAndAdamW},
}


# %%
def costs(rows: list[dict]) -> dict[str, tuple]:
    """For each variant: cost and half width at the recipe's best rate, the same at its own best rate, and that rate."""
    above = {name: {} for name in SWITCHED_OFF}
    for row in rows:  # in the order of the seeds
        above[row["off"]].setdefault(row["lr"], []).append(row["above"])
    recipe, found = above.pop("nothing"), {}
    best_of_recipe = recipe[best(recipe)]
    for name, mine in above.items():
        same = interval(np.subtract(mine[best(recipe)], best_of_recipe))
        own = interval(np.subtract(mine[best(mine)], best_of_recipe))
        found[name] = (*same, *own, best(mine))
    return found


# %%
for name, (same, half, own, own_half, lr) in costs(recorded["runs"]).items():
    print(f"{name:33} {same:+.3f} ± {half:.3f}   at its best rate {lr:<6g} {own:+.3f} ± {own_half:.3f}")
show(figures.worth(costs(recorded["runs"])), alt="A row for each ingredient, with two intervals.")
answer("15b.4", max(costs(recorded["runs"]).items(), key=lambda row: row[1][0])[0])

# %% [markdown]
r"""
How to read a row: the first interval compares at the one rate that is best for the whole recipe. The second one lets the changed run use its own best rate. Where the first is far from zero
and the second is not, the ingredient buys a larger rate and nothing else. Where both exclude zero, the ingredient is worth something in itself. Where both contain zero, these runs cannot decide; it does not mean
that the ingredient does nothing.

Three ingredients are worth something here: clipping 0.31 nats, warm-up 0.24 even at the best of its rates, and an end at a tenth instead of zero 0.07. Two changes would make the recipe better: the stable–decay schedule in place of the cosine, by 0.09, and Muon, by 0.26 at a rate of 0.04. That is the largest rate
that was tried, so its best one may be larger still. The betas, weight decay, the groups, the falling rate and the scale of the first weights decide nothing in runs of this length.

Three warnings. The best rate was chosen with the same runs that are then compared, which flatters both sides a little. The model is small and the runs are short: weight decay takes 6%
off a weight in so few steps, so a run a hundred times as long may answer differently. And a table with this many intervals may have one that leaves out zero by chance.

**What has the pairing brought?** Rule 1 says that the seed's part cancels. The record can show it: each changed run is compared with the recipe's run of the
*same* seed, and then with the recipe's runs of the *other* seeds. How far do the differences spread?
"""

# %%
above = {name: {} for name in SWITCHED_OFF}
for row in recorded["runs"]:
    if row["lr"] == 1e-2:
        above[row["off"]][row["seed"]] = row["above"]
recipe = above.pop("nothing")
for name, mine in above.items():
    pairs = [mine[seed] - recipe[seed] for seed in recipe]
    strangers = [mine[one] - recipe[other] for one in mine for other in recipe if one != other]
    print(f"{name:33} pairs {np.std(pairs, ddof=1):.3f}, strangers {np.std(strangers, ddof=1):.3f}")

# %% [markdown]
r"""
For weight decay and for the end of the rate, pairing has removed five sixths of the spread and more. For the end of the rate, the four pairs say 0.065 to 0.080. Two runs with different
seeds say anything from 0.00 to 0.14. Without its pairs, the same eight runs would give 0.07 ± 0.05 in place of 0.071 ±
0.010. But for the betas and the first weights it has removed nothing. Weight decay moves a weight by little in each step. Other betas or other
first weights make another run of it, and in the end the two have as little in common as runs with two seeds. So pair your runs, and let the interval show whether it helped.

## And the whole recipe?

A table like this leaves out one thing at a time. It cannot see ingredients that only repair each other. So here is the plainest loop: a constant rate, no warm-up, no fall
and no clipping. (Weight decay and its groups stay: by the table they decide nothing here.) Both sides get their own best rate, 0.005 and 0.01 (of rates that double).

*Predict.* How many nats does the recipe win over the plainest loop?
"""

# %%
predict("15b.5", "what the whole recipe wins over the plainest loop", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
plain = [experiment(seed, lr=5e-3, minimum=1.0, warmup=0, clip=None).above for seed in SEEDS]
print("plainest loop:", *(f"{nats:.3f}" for nats in plain), "nats above the floor")
print("the recipe:   ", *(f"{nats:.3f}" for nats in with_it))
mean, half = interval(np.subtract(plain, with_it))
print(f"the recipe wins {mean:+.3f} ± {half:.3f} nats")
answer("15b.5", mean)

# %% [markdown]
r"""
Nothing measurable. In a run of this length, everything that this chapter and the one before have built is worth no more than a rate that is half as large. How can that be, if clipping is worth 0.31
nats and warm-up 0.24 by the table? Because each of them was taken away from a recipe that *needs* it. The recipe's cosine spends few steps near its highest rate, so it wants a high one. (In the record, the
recipe has 1.09 nats at 0.01 and 1.35 at 0.005. With a constant rate it has 1.06 and 1.09.) And a high
rate at the start wants a warm-up and clipping. Here is warm-up with both schedules, each of the four at its own best rate. Without warm-up this is 0.007, which the record does not have.
"""

# %% tags=["nbval-ignore-output"]
rows = {}
for row in recorded["runs"]:
    rows.setdefault(row["off"], {}).setdefault(row["lr"], []).append(row["above"])
warm = {"cosine": rows["nothing"], "stable–decay": rows["cosine (stable–decay instead)"]}
for name, schedule in {"cosine": cosine, "stable–decay": wsd}.items():
    with_warmup = np.mean(warm[name][best(warm[name])])
    without = np.mean([experiment(seed, lr=7e-3, schedule=schedule, warmup=0).above for seed in SEEDS])
    told = f"with warm-up {with_warmup:.3f} at {best(warm[name]):g}, without {without:.3f} at 0.007"
    print(f"{name:12} {told}; worth {without - with_warmup:.2f} nats")

# %% [markdown]
r"""
With the cosine, warm-up is worth 0.15 nats; with the stable–decay schedule 0.02. (The table said 0.24. That was chapter 15's trap: its rates double, and without warm-up the best
rate lies between two of them. With warm-up, 0.007 and 0.014 are no better than 0.01.)

"What is warm-up worth?" has no answer until somebody says in which recipe. Chapter 15 found nothing, and it used the second schedule, without clipping. Both chapters were right.

A table that leaves out one ingredient at a time flatters all that repair each other. Before you believe one, yours or a paper's, look for the row "none of them".
One part of the recipe pays when something goes wrong: in chapter 15, a batch of noise made the next ten losses 0.18 nats higher, and 0.01 with clipping. What the other parts are worth in
long runs, we have not measured.
"""

# %% tags=["nbval-ignore-output"]
predictions("15b")

# %%
checkpoint("15b")

# %% [markdown]
r"""
This chapter adds no module: it has measured what chapter 15 built.

## Exercises

`course exercises release 15` writes the tasks of chapters 15 and 15b; **15-6**, two recipes with one run each, belongs to this one.

To explore:

1. Find out whether your machine agrees with the record: `experiment(seed, warmup=0, lr=…)` for four seeds and two rates, and `interval` for the differences. *Check*: a
   variant that changes nothing, such as `clip=1e9` beside `clip=None`, has the interval 0 ± 0.
2. A schedule whose fall follows 1 − √(share of the fall that is done) (Hägele et al. 2024), as `schedule=`. *Check*: it is never above `wsd`. What does `interval` say?
3. Average instead of falling: keep the rate constant (`minimum=1.0`), and evaluate the mean of the weights of the last 30 steps. *Check*: the mean of one step is that
   step's model. How much of what the falling rate is worth does the mean bring back?
4. Measure the noise scale of a run with 16 rows a batch at the same *loss*, not the same step. *Check*: at a loss of 2.2 both runs' scales agree within a factor of two.

## Further reading

- Godbole et al. 2023, [*Deep Learning Tuning Playbook*](https://github.com/google-research/tuning_playbook) (Google): how to compare recipes, and which settings to tune again for each.
- McCandlish et al. 2018, [*An Empirical Model of Large-Batch Training*](https://arxiv.org/abs/1812.06162), §2 and appendix A: the noise scale.
- Goyal et al. 2017, [*Accurate, Large Minibatch SGD*](https://arxiv.org/abs/1706.02677), §2, and Malladi et al. 2022, [*On the SDEs and Scaling Rules for Adaptive Gradient Algorithms*](https://arxiv.org/abs/2205.10287): rate and batch.
- Jordan et al. 2024, [*Muon: An optimizer for hidden layers in neural networks*](https://kellerjordan.github.io/posts/muon/); Liu et al. 2025, [*Muon is Scalable for LLM Training*](https://arxiv.org/abs/2502.16982).
- Wen et al. 2025, [*Fantastic Pretraining Optimizers and Where to Find Them*](https://arxiv.org/abs/2509.02046): ten optimizers, each of them tuned.
"""
