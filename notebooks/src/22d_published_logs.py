# %% [markdown]
r"""
# 22d ◇ · Published logs: the 21 skipped steps

*This page is optional, and shorter than a sitting.* A log is the only part of a run that others ever see. If you can read one, you know what was run, and you notice when the script says something else. Here is a small detective story about a published log of a Megatron-LM run: it shows how float16's loss scale behaves in a
long run (chapter 10b introduced it), and how much one can learn from a learning rate that is printed with seven digits. Then we read three other logs, for one question each: how precise is one validation loss, can six devices be compared by their losses, and did a run start well?

First we print the beginning of the log and draw two of its columns.
"""

# %%
#| default_exp labs.formats.megatron_logs
#| doc labs.formats.megatron_logs: Megatron-LM's loss scaler, and what its log must say by its arguments.
import csv
import random
from collections import Counter
from statistics import median

from course.figures import published_logs as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.config import load_config
from nanogpt.model import GPTConfig, flops_per_token
from nanogpt.labs.roofline.sheets import PEAKS

# %%
#| export
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from nanogpt.config import Config
from nanogpt.trainer import learning_rate
from nanogpt.precision import LossScaler


# %%
def published(name: str) -> list[dict]:
    """A table of data/reference; each row names its log and line."""
    with open(f"../data/reference/{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


log = published("megatron_124m")
columns = ("iteration", "learning_rate", "lm_loss", "loss_scale", "grad_norm", "skipped")
print("".join(f"{name:>15}" for name in columns))
for row in log[:6]:
    print("".join(f"{row[name] or '-':>15}" for name in columns))
show(
    figures.scale_and_rate(log),
    alt="Loss scale and learning rate over iterations: the scale falls from 2^32 to 2^12 while steps are skipped and the rate waits; then both run smoothly.",
)

# %% [markdown]
r"""
GPT-2 124M in float16, with a line every ten iterations. The scale starts at 2^32, far above what float16 can hold, and each iteration whose gradient overflows is skipped and halves the scale. The column says that 21 were skipped. But from 2^32 to 2^12 it takes 20 halvings. Where is the 21st?

*Predict.* The first line comes after ten skipped iterations. Which power of two is the scale then? And a second question: another run, on two GPUs,
published one line only, that of iteration 2,500. It does not say how many iterations were skipped before. How many do you think?
"""

# %%
predict("22d.1", "after ten overflows from 2^32, log2 of the scale", guess=None)
predict("22d.2", "skipped among the 2,500 of the second run", guess=None)

# %% [markdown]
r"""
## A scaler with patience

Megatron-LM's scaler has a `hysteresis` of 2: the first overflow is forgiven, and only the second one halves the scale. The count starts again when the scale grows, and not with the next good iteration (`grad_scaler.py`). So the search forgives one overflow in all. Chapter 10's scaler is PyTorch's, which has no such
patience. We add it:
"""


# %%
#| export
#| blank PatientScaler.update: hysteresis - 1 overflows are forgiven, each later one halves; growth forgets them
@dataclass
class PatientScaler(LossScaler):
    """LossScaler with Megatron-LM's hysteresis: of the overflows since the scale last grew, the first do not halve it.

    hysteresis=1 is LossScaler. Megatron stays at a scale of 1 where this one raises FloatingPointError.
    """

    growth_interval: int = 1000
    hysteresis: int = 2
    overflows: int = 0  # since the scale last grew

    def update(self, finite: bool) -> None:
        """As LossScaler's, with patience. A forgiven overflow sets good_steps to 0 as well."""
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

Ten overflows, nine halvings: 2^23 = 8,388,608, and this number is in the log. Let us follow the next two lines by hand. Six more skipped iterations take the scale to 2^17 = 131,072, and five more to 2^12 = 4,096. Both numbers are in the log, so after the first overflow none was forgiven. The learning rate counts along. It
rises to 10⁻⁴ over ten updates, a tenth of it with each. Of the first 20 iterations 16 were skipped, so four updates were made: 4·10⁻⁵. Of the first 30, 21 were skipped, which leaves nine: 9·10⁻⁵. Both are in the log as well.

Do these 21 overflows explain the complete log? Then two columns must follow from the arguments of the script and the column `skipped`: the scale, and the learning rate, which counts updates and not iterations. A printed number is rounded, so "follows" means: the difference is at most half a unit of its last digit.
"""


# %%
#| export
#| blank agrees: the difference is at most half a unit of the last digit, plus a hair for rounding
def half_unit(printed: str) -> float:
    """Half a unit of a printed number's last digit: how far its rounding may have moved it."""
    digits, _, exponent = printed.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def agrees(printed: str, value: float) -> bool:
    """Whether a number, rounded as the printed one was, is the printed one: half a unit away, plus a billionth."""
    return abs(float(printed) - value) <= half_unit(printed) * (1 + 1e-9) + 1e-12 * abs(value)


# %%
for value in (0.4149, 0.4151, 0.4201):
    print(f"0.42 is printed. Can the value be {value}? {agrees('0.42', value)}")

# %% [markdown]
r"""
`printed_rate` computes the rate after so many updates, and `expected_lines` computes both columns for a complete log.
"""


# %%
#| export
#| blank printed_rate: linear warm-up from zero, then the course's schedule, rounded to float32
def printed_rate(config: Config, updates: int) -> float:
    """The rate that Megatron's log shows after so many updates: in float32, since ranks send it to each other as such.

    It rises in a line from 0, before any update, to optim.lr after optim.warmup; then it is learning_rate's. A float.
    """
    o = config.optim
    rate = o.lr * updates / o.warmup if updates < o.warmup else learning_rate(config, updates)
    return float(np.float32(rate))


def expected_lines(
    config: Config, skipped: Iterable[int], scaler: LossScaler, every: int = 10
) -> Iterator[dict]:
    """What the log must say after each window of `every` iterations, of which so many were skipped: the first ones.

    `scaler` is changed.
    """
    updates = 0
    for bad in skipped:
        for i in range(every):
            scaler.update(finite=i >= bad)
        updates += every - bad
        yield {"learning_rate": printed_rate(config, updates), "loss_scale": scaler.scale}


# %%
def megatron(iterations: int) -> Config:
    """The published script as our configuration: as much of it as the rate depends on."""
    schedule = [
        "optim.lr=1e-4",
        "optim.schedule=cosine",
        "optim.minimum=0.1",
        f"optim.warmup={iterations // 100}",
    ]
    return load_config("gpt2-124M", [f"train.max_steps={iterations}", *schedule])


skipped = [int(row["skipped"]) for row in log]
for hysteresis in (1, 2, 3):
    lines = list(expected_lines(megatron(1000), skipped, PatientScaler(2.0**32, hysteresis=hysteresis)))
    same = {name: sum(agrees(row[name], line[name]) for row, line in zip(log, lines)) for name in lines[0]}
    print(
        f"hysteresis {hysteresis}: {same['loss_scale']} of {len(log)} scales agree, {same['learning_rate']} rates"
    )
    assert (same["loss_scale"] == len(log)) == (hysteresis == 2), "the log does not tell the hysteresis"
    assert same["learning_rate"] == len(log), "the rate does not follow from the arguments"

# %% [markdown]
r"""
With a patience of two, all 26 scales of the log follow, digit by digit, and with one or three not a single one. So the 21st skipped iteration is the one that was forgiven. The rates follow as well, but only because we round them to float32 first: without that, six of the 26 rows differ in the last digit (a test checks this). Megatron-LM sends the rate between ranks as a float32 tensor.

(One difference to chapter 17's trainer: Megatron's schedule begins at zero, so its first update has no rate at all. Ours gives the first update a tenth of the rate.)

## How many were skipped?

Now the second run, of which only one line was published. Its rate depends on the number of updates. So we try all numbers from 2,401 to 2,500 and keep those that give the printed rate:
"""

# %%
row = published("megatron_tp2")[0]
two = megatron(int(row["of_iterations"]))
updates = [n for n in range(2401, 2501) if agrees(row["lr"], printed_rate(two, n))]
skipped = [2500 - n for n in updates]
print(f"iteration {row['iteration']}: learning rate {row['lr']}, so {updates} updates and {skipped} skipped")
answer("22d.2", skipped[0])
assert len(skipped) == 1, f"the printed rate allows {len(skipped)} numbers of skipped iterations"
for n in (updates[0] - 1, updates[0], updates[0] + 1):
    print(f"after {n} updates the rate is {printed_rate(two, n):.6E}")
coarse = [n for n in range(2401, 2501) if agrees("1.00E-05", printed_rate(two, n))]
print(f"had three digits been printed, {len(coarse)} numbers of updates would fit")
*_, line = expected_lines(two, [1] * skipped[0] + [0] * updates[0], PatientScaler(2.0**32), every=1)
print(f"the scale would be {line['loss_scale']:.0f}; published {row['loss_scale']}")
assert agrees(row["loss_scale"], line["loss_scale"]), "the scale does not follow"

# %% [markdown]
r"""
It is twenty-one again, and we could read it off the last digits of a learning rate. One update more or less changes only the fifth digit; had the log printed three digits, 38 numbers would have fit. The scale agrees: 2^14 is 2^12, doubled after 1,000 and after 2,000 good iterations. A third column, the consumed samples, counts on: 40,000 are 2,500 × 16. A skipped
iteration has read its rows, and only the update is missing.

Does the scale prove that all 21 came at the beginning? A story that fits is not the only one that fits. Perhaps one or two overflows came later. We let them, at random iterations, 200 times each, and look where the scale ends.

*Predict.* If one of the 21 comes at a random later iteration, how often does the scale end at 2^14 all the same?
"""

# %%
dice = random.Random(0)
for late in (0, 1, 2, 5):
    ends = Counter()
    for _ in range(200):
        early = 21 - late
        overflows = {*range(early), *dice.sample(range(early, 2500), late)}
        scaler = PatientScaler(2.0**32)
        for i in range(2500):
            scaler.update(finite=i not in overflows)
        ends[int(math.log2(scaler.scale))] += 1
    print(f"{late} later: " + ", ".join(f"2^{power} {times} times" for power, times in sorted(ends.items())))

# %% [markdown]
r"""
With one late overflow, 77 of 200 stories end at 2^14, and with two about half. So the scale agrees with our story and does not prove it. The number of skipped iterations is proved, by the rate; when they came is only the simplest guess.

Such a check can also find a wrong script. The script printed above that log says 1,000 iterations, and the line says 2,500. So this is not the script that was run, and a cosine ends where its run ends: with that script's
`train-iters` you would get another rate from the first step on.

With our trainer, the first run's script is:

```
python -m nanogpt train gpt2-124M model.block_size=512 train.batch_tokens=8192 train.micro_batch=1 train.max_steps=1000 \
    train.dtype=fp16 optim.lr=1e-4 optim.warmup=10 model.dropout=0.1 eval.every=50 eval.tokens=40960 run.checkpoint_every=100
```

It has the log's 124,082,688 parameters. The dropout of 0.1 is Megatron-LM's default and not in the script. One argument has no key of ours: the
script's
`--init-method-std 0.006`, where we draw with 0.02.

Read a shell script as carefully as a log. This one makes a folder `LOG_PATH`, and no argument names it, so nothing is written there. And in a command that goes on with `\`, a line that begins with `#` ends the command: what is below it becomes a command of its own.

## How precise is one validation loss?

At iteration 2,500 the second run evaluated the same weights three times, each time on 80 rows of 512 tokens.
"""

# %%
values = {}
for row in published("megatron_validation"):
    if (row["run"], row["iteration"]) == ("TP 2", "2500"):
        values.setdefault(row["set"], []).append(float(row["lm_loss"]))
print(values)
print(
    f"two validations of the same weights: {max(values['validation']) - min(values['validation']):.3f} nats apart"
)
timers = [row for row in published("megatron_timers") if row["run"] == "1 GPU"]
total = 250 * median(float(row["ms"]) for row in log) / 1e3
for name in ("evaluate", "save-checkpoint"):
    spent = sum(float(row["max_ms"]) for row in timers if row["timer"] == name) / 1e3
    print(f"{name}: {spent:.1f} s beside {total:.0f} s of training, {spent / total:.1%}")

# %% [markdown]
r"""
With the same weights, only the rows can differ. They alone make 0.059 nats, because 80 rows are few. Before you call one loss better than another, ask for its standard error (chapter 18). In the first run, evaluations took 5.2% and checkpoints 2.4% as long as the training itself.

## A table of six devices

A published comparison ran llm.c on six devices and gives one loss for each: 3.48 for an RTX 4070 SUPER, 3.52 for an H800, 3.70 for two H800, and 4.02 for each of three CPUs. Does the RTX train better than the H800, then? All six logs are in `data/reference`, so we can look up each loss.
"""

# %%
RUNS = {
    "RTX 4070 SUPER": "RTX 4070 SUPER 1 GPU TF32 B=4 T=1024",
    "H800": "H800 1 GPU TF32 B=4 T=1024",
    "2 × H800": "H800 2 GPUs bf16 B=4 each T=1024",
    "Intel CPU": "Intel CPU fp32 B=4 T=64",
    "Arm CPU": "Arm CPU fp32 B=4 T=64",
    "M1 CPU": "M1 CPU fp32 B=4 T=64",
}
for (device, run), row in zip(RUNS.items(), published("throughput")):
    losses = {int(r["steps_done"]): r["val_loss"] for r in published("llmc_val_losses") if r["run"] == run}
    finite = max(step for step, loss in losses.items() if math.isfinite(float(loss)))
    text = f"{device:15} {losses[finite]} after {finite} steps, {finite * int(row['tokens_per_step']):>7,} tokens"
    print(f"{text}; before training {losses[0]}, at the end {losses[max(losses)]}")

# %% [markdown]
r"""
No two kinds of device can be compared:

- The two single GPUs read the same number of tokens. But their losses differ before the first step, although both start from the same published weights. Their validations read different amounts of text, 8 and 20 batches, so the two numbers are means over different rows.
- The 3.70 of the two H800 is from the middle of the run, after 20 of its 37 steps. The last validation printed `inf`, and the first one `-inf`, as did the training loss of the first step. So the table has an older number.
- The CPUs have rows of 64 tokens instead of 1,024. They read 10,240 tokens, and a GPU 303,104. Their loss before training is already 0.8 nats higher.

What can be compared are the three CPUs. They ran the same program on the same batches, and the logs have the training loss of all 41 steps. How far are they apart?
"""

# %%
curves = {name: [] for name in ("Intel", "M1", "Arm")}
for row in published("llmc_cpu_losses"):
    curves[row["run"].split()[0]].append(float(row["train_loss"]))
for other in ("M1", "Arm"):
    apart = [abs(a - b) for a, b in zip(curves["Intel"], curves[other])]
    print(
        f"Intel and {other:3}: {apart[0]:.6f} apart at the first step, at most {max(apart):.6f} in {len(apart)}"
    )

# %% [markdown]
r"""
The same C code gives slightly different losses on different processors: within 41 steps at most 0.0004 nats apart on Intel and M1, and 0.008 on Intel and Arm. The largest differences come late in the run. So if you repeat a published run and get losses that are a few thousandths away, you have no reason to look for a mistake. If they are 0.1 away, look first at what was averaged.

The comparison also gives a time for each device, and the six times are of three kinds:

| device | printed | which time it is | median without the first step | tokens a second | precision |
|---|---|---|---|---|---|
| RTX 4070 SUPER | 198.34 ms | mean of all steps, the first included | 197.75 ms | 20,713 | TF32 |
| H800 | 36.90 ms | mean without the first step | 36.90 ms | 110,997 | TF32 |
| 2 × H800 | 30.94 ms | mean of all steps, the first included | 30.85 ms | 265,526 | bf16 |
| Intel CPU | 2,635.72 ms | step 32 | 2,625.64 ms | 98 | float32 |
| Arm CPU | 12,103.80 ms | step 35 | 12,218.96 ms | 21 | float32 |
| M1 CPU | 8,128.85 ms | step 40 | 8,130.56 ms | 31 | float32 |

By the printed times a second H800 makes a step 1.19 times as fast. But the step has twice the tokens, so the two read 2.39 times as many in a second.
This is more than two GPUs can bring: the two compute in bf16, and the one in TF32.

## An llm.c log

The A800's log (chapter 22 used its memory) has other columns. We look at the loss and at the norm of the gradient first. Did this run start well?
"""

# %%
rows = [row for row in published("llmc_a800") if row["ms"]]
print(f"first loss {rows[0]['loss']}; ln V + σ²/2 = {math.log(50257) + 768 * 0.02**2 / 2:.3f}")
for i in (0, 5, 20):
    print(f"step {rows[i]['step']:>2}: norm of the gradient {float(rows[i]['grad_norm']):.1f}")

# %% [markdown]
r"""
The first loss is what random logits cost (chapter 05), a little more for this seed: 11.0 is a healthy start, 11.5 is not. The norm falls from 16 to about 2 in the first twenty steps, while the warm-up still keeps the rate small.

The banner above the log is odd. The command line of the compiler defines `MULTI_GPU`, and the log says that multi-GPU support is disabled. So the program that ran is not the one whose compilation is shown.

The other columns are explained quickly:

| column | in the log | what it is |
|---|---|---|
| z of loss and norm | +nan in all 22 steps | the distance from the last 128 steps, in standard deviations; before there are 128, llm.c prints nan |
| lr | 2.86e-06 to 6.29e-05 | the warm-up: 0.002 / 700 × step |
| norm | 1.95 at step 19, 3.20 at step 22 | the fall is over; one batch can raise it by half |
| ms | 2,391.52 at step 2, 2,444.94 at step 21 | 2.2% slower within 20 steps; the log does not say why |
| tok/s | 191,824 to 189,563 | a running mean with weight 0.05 for the newest step; step 21 alone made 458,752 / 2.44494 = 187,633 |

The log also prints an MFU, and it is -100%. We compute it ourselves, from the tokens in a second.
"""

# %%
setup = {row["parameter"]: row["value"] for row in published("llmc_a800_setup")}
rate = median(int(setup["total batch size"]) / float(row["ms"]) * 1e3 for row in rows[1:])
peak = PEAKS["A800-PCIe"].half
print(f"MFU in the log {rows[0]['mfu_percent']}%, as its table of peaks gives {setup['peak TFlops']} TFLOP/s")
print(
    f"{rate:,.0f} tokens in a second are {rate * flops_per_token(GPTConfig()) / (peak * 1e12):.1%} of {peak} TFLOP/s"
)
print(
    f"{setup['train_num_batches']} steps read {int(setup['train_num_batches']) * int(setup['total batch size']):,} tokens"
)

# %% [markdown]
r"""
The MFU of -100% means only that llm.c looked the device up in a table (`llmc/mfu.h`) and did not find an A800. The run really reached half of the card's data sheet. The 21,479 steps were not given: the option was `-x -1`, once through the shards, and the log
prints how many steps that is. Our trainer has no such word; give `train.max_steps`.

The same run with our trainer, if you have such a card, is one line:

```
python -m nanogpt train gpt2-124M-llmc train.batch_tokens=458752 train.micro_batch=56 optim.lr=0.002 train.max_steps=21479 \
    eval.tokens=1146880 eval.sample_every=20000 data.dir=SHARDS
```

SHARDS is the folder of llm.c's shards; `python -m nanogpt prepare --adopt SHARDS` has written its manifest once (chapter 16b). How long would it take?
The planner of chapter 22a says 0.60 days, 14 GPU-hours, if our trainer reached the share that the log reached: 21,479 steps of 2.42 seconds.

How do you find our words for other programs' options? Three tables in `data/reference` are made for looking them up. `megatron_arguments.csv` has the 45 arguments of Megatron-LM's published scripts with our key for each, `megatron_columns.csv` has the formula of each column of its log, also of those that we left out (consumed samples, rows of a batch, zeros in the gradient), and `llmc_options.csv` has the
options of llm.c. We print the first eight of these: the option, its name in the log, its value in this run, and our key.
"""

# %%
for row in published("llmc_options")[:8]:
    print(f"{row['option']:4}{row['parameter']:24}{row['value']:>14}  {row['ours'] or '-'}")

# %% tags=["nbval-ignore-output"]
predictions("22d")

# %%
checkpoint("22d")

# %% [markdown]
r"""
## Exercises

`course exercises release 22d` writes these as a notebook to `released/`; `course check 22d` runs their visible checks.

- **22d-1** Columns that contradict each other, 30 minutes: find the number in a log that cannot be true.
- **22d-2** A mean that hides a pause, 25 minutes: each step's own rate from llm.c's running mean.
- **22d-3** Counted by a learning rate, 25 minutes: derive which numbers of skipped steps a printed rate allows.
- **22d-4** A check for what is printed, 20 minutes: write the check for half a unit of the last digit.
- **22d-5** More than twice as fast, 10 minutes: what a second GPU brings, by a table that mixes three things.

To explore:

1. Give `PatientScaler` the state of Megatron at iteration 2,500 of the second run. After how many more good iterations does it reach 2^15? *Check*: `expected_lines` with 3,500 iterations.
2. The first run has 26 lines, and the second one. How many late overflows does the first run's column of scales allow, if you forget the column `skipped`? *Check*: random trials with `PatientScaler`, compared at all 26 lines.
3. Read a log of your own, or one that you find: which of its columns can you replay? *Check*: with `agrees`.

## Further reading

- P. Micikevicius et al. 2018, [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), §3.2: loss scaling.
- Megatron-LM, [`megatron/core/optimizer/grad_scaler.py`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/optimizer/grad_scaler.py) and [`optimizer_param_scheduler.py`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/optimizer_param_scheduler.py): the two laws replayed here.
- S. Zhang et al. 2022, [*OPT*](https://arxiv.org/abs/2205.01068), and its published [logbook](https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/OPT175B_Logbook.pdf): a long run with spikes, restarts and broken machines.
- S. Bekman, [*Machine Learning Engineering Open Book*](https://github.com/stas00/ml-engineering), the chapter on instabilities: how to read a loss curve.
"""
