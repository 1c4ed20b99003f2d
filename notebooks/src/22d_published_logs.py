# %% [markdown]
r"""
# 22d · Published logs: what their numbers mean

A log is the only part of a run that others ever see. Whoever can read one knows what was run, and notices when what was run is not what the
script says. This chapter takes the published log of a Megatron-LM run, replays what follows from its arguments alone, and asks of every column by which formula it comes about.
Its first thirty lines hold a question that chapter 10 left open: how float16's loss scale behaves in a long run.
"""

# %%
#| default_exp drills.megatron_logs
#| doc drills.megatron_logs: Megatron-LM's scripts and logs: its loss scaler, its arguments as our keys, and what a log must say.
import csv
from collections import Counter
from datetime import datetime
from itertools import pairwise

import numpy as np
import torch

from course.figures import published_logs as figures
from course.notebook import answer, checkpoint, predict, predictions, show

# %%
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.model import GPT, GPTConfig, flops_per_token, num_params
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import scale_init, train_step
from nanogpt.run.config import Model, Optim, Train
from nanogpt.speed.roofline import PEAKS
from nanogpt.text.data import DocumentStream
from nanogpt.text.shards import open_shards

# of the live run: iterations, good ones until the scale doubles, the highest rate
STEPS, GROWTH, LR = 160, 30, 3e-3
assert STEPS >= 40, f"STEPS={STEPS}: the search for a scale takes about twenty iterations; take 40 or more"


# %%
#| export
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanogpt.gpt.precision import LossScaler
from nanogpt.run.config import Config, load_config
from nanogpt.run.trainer import learning_rate


# %%
def published(name: str) -> list[dict]:
    """A table of data/reference; each row says in which log and line it stands."""
    with open(f"../data/reference/{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


log = published("megatron_124m")
columns = ("iteration", "learning_rate", "lm_loss", "loss_scale", "grad_norm", "skipped")
print("".join(f"{name:>15}" for name in columns))
for row in log[:6]:
    print("".join(f"{row[name] or '-':>15}" for name in columns))

# %% [markdown]
r"""
GPT-2 124M in float16, a line every ten iterations. The scale starts at 2^32, far above what float16 bears, and each iteration whose gradient overflows
is skipped (chapter 10). 21 are. But from 2^32 to 2^12 it takes 20 halvings. Where is the 21st?

*Predict.* The first line comes after ten skipped iterations. Which power of two is the scale then? And the last question of this part: another run, on two GPUs,
published one line, that of iteration 2,500. It does not say how many iterations were skipped on the way. How many do you think?
"""

# %%
predict("22d.1", "after ten overflows from 2^32, log2 of the scale", guess=None)
predict("22d.2", "skipped among the 2,500 of the second run", guess=None)
predict("22d.3", "skipped by our own run before its first update", guess=None)

# %% [markdown]
r"""
## A scaler with patience

Megatron's scaler has a `hysteresis` of 2: an overflow is forgiven until there have been two, and the count starts anew when the scale grows, not with the next
good iteration (Megatron-LM, `grad_scaler.py`). So the search forgives one overflow in all; afterwards each growth is granted one. Chapter 10's scaler is that of PyTorch, with no
patience. What Megatron adds is this:
"""


# %%
#| export
#| blank PatientScaler.update: only the last of `hysteresis` overflows halves the scale; growth forgets them
@dataclass
class PatientScaler(LossScaler):
    """LossScaler with Megatron-LM's hysteresis: of the overflows since the scale last grew, the first do not halve it.

    hysteresis=1 is LossScaler. Megatron stays at a scale of 1 where this one raises FloatingPointError.
    """

    growth_interval: int = 1000
    hysteresis: int = 2
    overflows: int = 0  # since the scale last grew

    def update(self, finite: bool) -> None:
        self.overflows += not finite
        if not finite and self.overflows < self.hysteresis:
            self.good_steps = 0
            return
        before = self.scale
        super().update(finite)
        if self.scale > before:
            self.overflows = 0


# %%
scaler = PatientScaler(2.0**32)
for _ in range(10):
    scaler.update(finite=False)
print(
    f"after ten overflows: 2^{math.log2(scaler.scale):.0f} = {scaler.scale:.0f}; published: {log[0]['loss_scale']}"
)
answer("22d.1", math.log2(scaler.scale))

# %% [markdown]
r"""
## The log, replayed

What of a line follows from the arguments and from the column `skipped`? The iteration and the samples, which count skipped ones too; the learning rate, which
counts updates only; and the scale. First the arguments. Megatron's, as the script has them, become keys of chapter 17c's configuration:
"""


# %%
#| export
def as_config(a: dict[str, str], base: str = "gpt2-124M") -> Config:
    """The run that a Megatron-LM script asks for, by its arguments without dashes. Data and folders are those of `base`.

    Left out is what we do not have: data/reference/megatron_arguments.csv says why. ValueError where ours cannot do it.
    """
    T, rows = int(a["seq-length"]), int(a["global-batch-size"])
    if a["max-position-embeddings"] != a["seq-length"]:
        said = f"max-position-embeddings={a['max-position-embeddings']} is not seq-length={T}"
        raise ValueError(f"{said}; our position table is as long as a row: make them equal")
    keys = model_keys(a, T) | update_keys(a, rows * T) | run_keys(a, rows * T)
    return load_config(base, [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in keys.items()])


# %%
#| export
def update_keys(a: dict[str, str], batch_tokens: int) -> dict[str, Any]:
    """Batch, optimizer and schedule."""
    steps, lr = int(a["train-iters"]), float(a["lr"])
    return {
        "train.micro_batch": int(a["micro-batch-size"]),
        "train.batch_tokens": batch_tokens,
        "train.max_steps": steps,
        "train.compile": False,
        "train.skip_spikes": 0.0,
        "train.dtype": next((name for name in ("fp16", "bf16") if name in a), "float32"),
        "optim.lr": lr,
        "optim.betas": [float(a["adam-beta1"]), float(a["adam-beta2"])],
        "optim.weight_decay": float(a["weight-decay"]),
        "optim.clip": float(a["clip-grad"]),
        "optim.schedule": a["lr-decay-style"],
        "optim.minimum": float(a["min-lr"]) / lr,
        "optim.warmup": round(float(a["lr-warmup-fraction"]) * int(a.get("lr-decay-iters", steps))),
    }


# %%
#| export
def model_keys(a: dict[str, str], T: int) -> dict[str, Any]:
    """The shape, and what Megatron's scripts leave to its defaults: dropout 0.1, 50,257 tokens padded to 128 × tp.

    Ours cannot drop out where layers are cut (chapter 21d): 0 then.
    """
    tp = int(a["tensor-model-parallel-size"])
    names = {"num-layers": "n_layer", "hidden-size": "n_embd", "num-attention-heads": "n_head"}
    return {f"model.{ours}": int(a[theirs]) for theirs, ours in names.items()} | {
        "model.block_size": T,
        "model.flash": a["attention-backend"] in ("auto", "flash", "fused"),
        "model.dropout": float(a.get("hidden-dropout", 0.1)) if tp == 1 else 0.0,
        "model.padded_vocab_size": math.ceil(50257 / (128 * tp)) * 128 * tp,
        "parallel.tp": tp,
    }


# %%
#| export
def run_keys(a: dict[str, str], batch_tokens: int) -> dict[str, Any]:
    """What is evaluated and kept, and how often."""
    train, val, test = (float(part) for part in a["split"].split(","))
    return {
        "data.val": val / (train + val + test),
        "eval.every": int(a["eval-interval"]),
        "eval.tokens": int(a["eval-iters"]) * batch_tokens,
        "run.log_every": int(a["log-interval"]),
        "run.checkpoint_every": int(a["save-interval"]),
        "run.tensorboard": "tensorboard-dir" in a,
    }


# %%
def script(name: str) -> dict[str, str]:
    """The active arguments of a published script whose name holds this."""
    rows = [row for row in published("megatron_scripts") if name in row["script"] and row["active"] == "yes"]
    return {row["argument"]: row["value"] for row in rows}


config = as_config(script("the 1 GPU log"))
print(config.model, config.optim, config.train, sep="\n")
shape = GPTConfig(config.model.block_size, padded_vocab_size=config.model.padded_vocab_size)
figure = {row["item"]: row["value"] for row in published("megatron_figures")}
print(f"{config.micro_batches} micro-batches, {num_params(shape):,} parameters")
assert str(config.micro_batches) == figure["micro-batches a step"], (
    "another number of micro-batches than published"
)
assert str(num_params(shape)) == figure["parameters on rank (0, 0)"], (
    "another number of parameters than published"
)

# %% [markdown]
r"""
The log's own figures agree: as many micro-batches, and as many parameters with a vocabulary padded to a multiple of 128 (chapter 13). Now its lines:
"""


# %%
#| export
#| blank printed_rate: linear warm-up from zero, then the course's schedule, rounded to float32
def printed_rate(config: Config, updates: int) -> float:
    """The rate that Megatron's log shows after so many updates: in float32, since it is sent between ranks as such."""
    o = config.optim
    rate = o.lr * updates / o.warmup if updates < o.warmup else learning_rate(config, updates)
    return float(np.float32(rate))


# %%
#| export
def expected_lines(config: Config, skipped: Iterable[int], scaler: LossScaler) -> Iterator[dict[str, float]]:
    """What Megatron's log must say after each window of run.log_every iterations, of which so many were skipped.

    Within a window the skipped ones are taken to be first. `scaler` is changed.
    """
    every, rows, updates = config.run.log_every, config.train.batch_tokens // config.model.block_size, 0
    for number, bad in enumerate(skipped, 1):
        for i in range(every):
            scaler.update(finite=i >= bad)
        updates += every - bad
        yield {
            "iteration": number * every,
            "of_iterations": config.train.max_steps,
            "consumed_samples": number * every * rows,
            "global_batch": rows,
            "learning_rate": printed_rate(config, updates),
            "loss_scale": scaler.scale,
        }


# %%
#| export
#| blank half_unit: count the digits behind the point, and shift by the exponent
#| blank agrees: the difference is at most half a unit of the last digit, plus a hair for rounding
def half_unit(printed: str) -> float:
    """Half a unit of a printed number's last digit: how far its rounding may have moved it."""
    digits, _, exponent = printed.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def agrees(printed: str, value: float) -> bool:
    """Whether a number, rounded as the printed one was, is the printed one."""
    return abs(float(printed) - value) <= half_unit(printed) * (1 + 1e-9) + 1e-12 * abs(value)


# %%
lines = list(expected_lines(config, [int(row["skipped"]) for row in log], PatientScaler(2.0**32)))
agree = Counter(name for row, line in zip(log, lines) for name in line if agrees(row[name], line[name]))
for name in lines[0]:
    print(f"{name:17} {agree[name]} of {len(log)} rows, digit by digit")
    assert agree[name] == len(log), f"{name} does not follow from the arguments"

# %% [markdown]
r"""
Which of the ten iterations were skipped, the log says in part: the norm, which is that of the window's last iteration, is missing in iterations 10 and 30, so those were skipped, and 20 was not. For
the scale it makes no difference, since nothing grows within 260 iterations. *Check*: put the skipped ones last, and a hysteresis of 1 or 3 in place of 2.
"""

# %%
for hysteresis in (1, 2, 3):
    scaler, same = PatientScaler(2.0**32, hysteresis=hysteresis), []
    for row in log:
        bad = int(row["skipped"])
        for finite in [True] * (10 - bad) + [False] * bad:
            scaler.update(finite)
        same.append(scaler.scale == float(row["loss_scale"]))
    print(f"hysteresis {hysteresis}: {sum(same)} of {len(log)} scales")
    assert all(same) == (hysteresis == 2), "the log does not tell the hysteresis"

# %% [markdown]
r"""
Every digit of the rate is right only if it is rounded to float32 first; without, six of the 26 rows differ in the last one. (Megatron sends it between ranks as a float32 tensor, `reduce_max_stat_across_model_parallel_group`.)

One difference to chapter 17e's trainer. Megatron's schedule begins at zero, so the line after n updates shows n/10 of the rate, and the first update has none: it moves
nothing but the moments. Ours gives the first update a tenth. From the warm-up's end on both are the same function.

## How many were skipped?

The second run's only line. Its rate counts updates; so the rate says how many there were:
"""

# %%
row = published("megatron_tp2")[0]
two = script("the TP 2 log") | {"train-iters": row["of_iterations"]}  # the script says 1000: see below
two = as_config(two | {"log-interval": "1"})
updates = [n for n in range(2401, 2501) if agrees(row["lr"], printed_rate(two, n))]
skipped = [2500 - n for n in updates]
print(f"iteration {row['iteration']}: learning rate {row['lr']}, so {updates} updates and {skipped} skipped")
answer("22d.2", skipped[0])
assert len(skipped) == 1, f"the printed rate allows {len(skipped)} numbers of skipped iterations"
*_, line = expected_lines(two, [1] * skipped[0] + [0] * updates[0], PatientScaler(2.0**32))
print(
    f"the scale after {skipped[0]} overflows and {updates[0]} good ones: {line['loss_scale']:.0f}; published {row['loss_scale']}"
)
assert agrees(row["loss_scale"], line["loss_scale"]), "the scale does not follow"

# %% [markdown]
r"""
Twenty-one again, read off the seventh digit of a learning rate; and the scale, 2^14, is 2^12 doubled after 1,000 and after 2,000 good iterations. Two columns that know
nothing of each other tell the same story. (It is the simplest story. That the search came first, and that neither growth met an overflow, is assumed.)

So the script printed above that log, which says 1,000 iterations, is not the one that was run. A cosine ends where its run ends: whoever takes such a script's
`train-iters` for granted gets another rate from the first step on.

## A run of our own

A small GPT in float16, on the CPU, which may have to emulate it and overflows at the same numbers as a GPU. It starts at 2^32; and since a run is long only against the
scaler's window, that is 30 good iterations in place of 1,000. One run with Megatron's patience, one without.
"""


# %%
def fp16_run(scaler: LossScaler, seed: int = 0) -> list[dict]:
    """Train with the rate counting updates only; an iteration's scale, rate, and norm, None if it was skipped."""
    rows, T = 2, 32
    train, optim = Train(STEPS, rows * T, rows, "fp16"), Optim(lr=LR, warmup=10)
    c = Config(Model(1, 2, 32, T), optim=optim, train=train)
    stream, told, updates = DocumentStream(open_shards(DATA, "train"), rows, T, seed=seed), [], 0
    model = scale_init(GPT(GPTConfig(T, stream.vocab_size, 1, 2, 32), torch.Generator().manual_seed(seed)))
    optimizer = make_optimizer(model, LR)

    def accept(loss, norm) -> bool:  # not asked where the gradient overflowed
        told[-1]["norm"] = norm.item()
        return True

    for _ in range(STEPS):
        told.append({"scale": scaler.scale, "lr": learning_rate(c, updates), "norm": None})
        for group in optimizer.param_groups:
            group["lr"] = told[-1]["lr"]
        train_step(model, optimizer, [stream.next_batch()], "fp16", 1.0, scaler, accept)
        updates += told[-1]["norm"] is not None
    return told


# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)  # tiny products
DATA = "../data/built/stories"
_ = ensure_corpus(DATA)
ours = {h: fp16_run(PatientScaler(2.0**32, GROWTH, hysteresis=h)) for h in (2, 1)}
show(
    figures.scale_and_rate(log, ours[2], GROWTH),
    alt="Loss scale and learning rate against iterations, published and ours: the scale falls from 2^32 while every iteration is skipped and the rate waits; then it stays, in ours it grows after 30 good iterations and falls back.",
)
for h, told in ours.items():
    bad = [i for i, line in enumerate(told, 1) if line["norm"] is None]
    print(f"hysteresis {h}: {len(bad)} of {STEPS} skipped: {bad}")
first = next(i for i, line in enumerate(ours[2]) if line["norm"] is not None)
answer("22d.3", first)

# %%
for h, told in ours.items():
    scaler = PatientScaler(2.0**32, GROWTH, hysteresis=h)
    for line in told:
        assert line["scale"] == scaler.scale, "the scale does not follow from what was skipped"
        scaler.update(line["norm"] is not None)
    assert all(a["lr"] == b["lr"] for a, b in pairwise(told) if a["norm"] is None), (
        "a skipped step moved the rate"
    )
    search = next(i for i, line in enumerate(told) if line["norm"] is not None)
    scale = told[search]["scale"]
    print(
        f"hysteresis {h}: the search for a scale skips log2(2^32 / scale) + {search - round(32 - math.log2(scale))}"
    )
    assert search == 32 - math.log2(scale) + h - 1, "the search is not one halving an iteration"

# %% [markdown]
r"""
In kind it is the published log: a search during which the rate waits, one overflow more than halvings, then updates. What a run of 260 iterations with a window of 1,000 cannot
show is the rest of its life: the scale grows until it overflows, falls back, and tries again. Each such attempt costs one skipped iteration, and with patience 2 up to two. What
is the patience for, then? For an overflow that is the batch's fault, not the scale's: it is forgiven, and the scale stays. In runs as short as this one that is hardly seen, and
the lists above show which of the two came out ahead on this machine.

## Every argument

Forty-five arguments and variables stand in the five published scripts. Each has its place here, or a reason why not:
"""

# %%
table = published("megatron_arguments")


def tell(*groups: str) -> None:
    for row in (row for row in table if row["group"] in groups):
        print(f"{row['argument']:28}{row['ours'] or '-':27}{row['note']}")


tell("environment", "DISTRIBUTED_ARGS", "GPT_MODEL_ARGS", "MODEL_PARALLEL_ARGS")

# %%
tell("TRAINING_ARGS", "DATA_ARGS", "EVAL_AND_LOGGING_ARGS")
print(f"\n{len(table)} arguments, {sum(not row['ours'] for row in table)} without a counterpart")

# %% [markdown]
r"""
Some of them say less than they seem to.

- `NODE_RANK` is set and never handed on. With one node that is harmless; with two, both would be node 0.
- `init-method-std 0.006` comes from the example of 175B parameters, of width 12,288, and stays in all scripts of width 768, where GPT-2 has 0.02.
- The other way round, dropout is in no script: Megatron's default is 0.1, ours 0. `data/reference/megatron_defaults.csv` has it and others, of the over four hundred arguments that the run printed.

- The example wants 8 × 16 GPUs and starts two processes on one node. It is a pattern to fill in, not a run.

All five scripts, as our configurations:
"""

# %%
for name in dict.fromkeys(row["script"] for row in published("megatron_scripts")):
    c, a = as_config(script(name)), script(name)
    batch = f"{c.train.batch_tokens:,} tokens = {a['global-batch-size']} rows × {c.model.block_size}"
    size = num_params(GPTConfig(**vars(c.model)))
    print(f"{name}\n    {size:,} parameters, a batch of {batch}, warm-up {c.optim.warmup}")

# %% [markdown]
r"""
Behind the example's 175 billion, a batch of three million tokens that grows from 16 rows by 16 over the first 5.9 million samples; and a warm-up of 430 updates, as it is a fraction of `lr-decay-iters`, not of
`train-iters`. The targets for samples, which the log prints before the first step, follow from the arguments; note that validation counts one round more than
there are intervals:
"""

# %%
c, every = config, config.eval.every
rows, steps = c.train.batch_tokens // c.model.block_size, c.train.max_steps
round_rows = c.eval.tokens // c.model.block_size  # of one evaluation
targets = {"train": steps * rows, "validation": (steps // every + 1) * round_rows, "test": round_rows}
for split, n in targets.items():
    print(f"{split:11} {n:6}, published {figure[f'target samples, {split}']}")
    assert str(n) == figure[f"target samples, {split}"], f"the target for {split} does not follow"

# %% [markdown]
r"""
## Every column

`data/reference/megatron_columns.csv` has a formula for each column, and its name in our `metrics.jsonl`.
"""

# %%
for row in published("megatron_columns"):
    print(f"{row['column']:17}{row['ours'] or '-':17}{row['formula']}")

# %% [markdown]
r"""
Six were replayed above. What can be checked of the others: the clock, against the mean time of a step and the times of evaluations and checkpoints, printed elsewhere in the log; the
perplexity; and which cells are empty.
"""

# %%
timers = [row for row in published("megatron_timers") if row["run"] == "1 GPU"]
evaluations = [float(row["max_ms"]) for row in timers if row["timer"] == "evaluate"]
saves = [float(row["max_ms"]) for row in timers if row["timer"] == "save-checkpoint"]
between = dict(zip(range(50, 251, 50), evaluations))
saved = dict(zip(range(100, 201, 100), saves))
apart = []
for before, row in pairwise(log):
    clock = (datetime.fromisoformat(row["time"]) - datetime.fromisoformat(before["time"])).total_seconds()
    at = int(before["iteration"])
    said = 10 * float(row["ms"]) + between.get(at, 0) + saved.get(at, 0)
    apart.append(clock - said / 1e3)
print(f"clock against the sum: {min(apart):+.2f} to {max(apart):+.2f} s")
assert max(map(abs, apart)) < 1.1, "the clock and the times of the steps do not agree"

# %%
for row in published("megatron_validation"):
    loss, ppl = row["lm_loss"], row["ppl"]
    off = abs(math.log(float(ppl)) - float(loss))
    assert off <= half_unit(loss) + half_unit(ppl) / float(ppl), f"{ppl} is not exp({loss})"
print("perplexity: exp of the loss in all rows, as far as digits were printed")
empty = [row["iteration"] for row in log if not row["lm_loss"]]
print("no loss:", empty, " skipped throughout:", [row["iteration"] for row in log if row["skipped"] == "10"])
print("no norm:", [row["iteration"] for row in log if not row["grad_norm"]])
assert empty == [row["iteration"] for row in log if row["skipped"] == "10"], "a loss without an update"

# %% [markdown]
r"""
The clock prints whole seconds, so a second is what two of its readings may be off. What cannot be checked from outside are loss, norm and zeros themselves. The first loss has a law: random logits cost ln V.
Its mean over the first four updates lies a little below ln 50304, as it should after updates with 0, 1, 2 and 3 tenths of the rate.

*llm.c's columns.* A published A800 run prints rate, time, MFU, and a running mean of tokens per second, which is llm.c's (`train_gpt2.cu`): 0.95 of the old and 0.05 of the new, divided by 1 - 0.95^n, the first step left out.
"""

# %%
setup = {row["parameter"]: row["value"] for row in published("llmc_a800_setup")}
tokens, mean, off = int(setup["total batch size"]), 0.0, []
rows = [row for row in published("llmc_a800") if row["ms"]]
for row in rows:
    n, rate = int(row["step"]), tokens / float(row["ms"]) * 1e3
    mean = 0.95 * mean + 0.05 * rate if n > 1 else 0.0
    said = mean / (1 - 0.95 ** (n - 1)) if n > 1 else rate
    off.append(abs(said - float(row["tokens_per_s_ema"])))
    lr = float(setup["learning rate (LR)"]) * n / int(setup["warmup iterations"])
    assert agrees(row["lr"], lr), f"step {n}: the rate is not {lr}"
print(
    f"{len(rows)} steps: the running mean is off by up to {max(off):.1f} tok/s, the rate by nothing that is printed"
)
assert max(off) <= 1, "the running mean is another"

# %% [markdown]
r"""
And the MFU? The log says -100% in every row: llm.c looks the device up in a table, does not find an A800, and goes on with a peak of -1 (the setup prints that too). So the column
says nothing of the run. By the A100's data sheet, whose tensor cores the A800 shares (it differs in NVLink), and chapter 09's count:
"""

# %%
rate = np.median([float(row["tokens_per_s_ema"]) for row in rows])
share = rate * flops_per_token(GPTConfig()) / (PEAKS["A100-80GB-PCIe"].half * 1e12)
print(f"{setup['device']}: peak {setup['peak TFlops']} TFLOP/s, MFU {rows[0]['mfu_percent']}% in the log")
print(f"{rate:,.0f} tokens/s are {share:.1%} of {PEAKS['A100-80GB-PCIe'].half} TFLOP/s")

# %% [markdown]
r"""
The norm's distance from its mean is `nan` in all rows: it takes 128 steps (chapter 17e's `Window`), and 22 were published.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("22d")

# %%
checkpoint("22d")

# %% [markdown]
r"""
## Exercises

1. Give `PatientScaler` the state of Megatron at iteration 2,500 of the second run. After how many more good iterations does it reach 2^15? *Check*: `expected_lines` with 3,500 iterations.
2. How many stories fit the second run's line? Let overflows come at other iterations, 21 in all, and count by random trials which end at 2^14. *Check*: `PatientScaler`.
3. Start the live run at 2^16 and at 2^20. How many updates does each save? *Check*: the loss that `train_step` returns, over the last 40 iterations and three seeds: is it more than the seeds' spread?
4. Write `as_config`'s inverse: a Megatron-LM script from one of our configurations. *Check*: there and back gives the same `Config`.
5. Read a log of your own, or one that you find: which of its columns can you replay? *Check*: with `agrees`.

## Further reading

- P. Micikevicius et al. 2018, *Mixed Precision Training*, §3.2: loss scaling.
- Megatron-LM, `megatron/core/optimizer/grad_scaler.py` and `optimizer_param_scheduler.py`: the two laws replayed here.
- D. Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*, §5.1: the FLOPs that such logs count.
- llm.c, `train_gpt2.cu` and `llmc/mfu.h`: the line of a step, and the table of peaks.
"""
