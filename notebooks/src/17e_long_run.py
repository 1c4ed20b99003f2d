# %% [markdown]
r"""
# 17e · A long run: bad steps, evaluation, and a clean stop

Chapter 17's trainer makes every step that it is told to make, and somebody watches it. Nobody watches a run at three in the morning. A batch of garbage may arrive. The loss may become NaN. Somebody may need the machine back in ten
minutes. In each case the run must act as its operator would.

In this sitting the trainer of 17d learns to do this. It answers three questions:

1. How can the run recognise an unusual loss, if nobody tells it which losses are usual?
2. How can we evaluate a run on its way without changing it?
3. How can we stop a run so that nothing is lost, and so that the script that started it notices?

```
batch ─> loss and norm ─> judge ── usual ────> update ────────┬─> asked to stop? ─> checkpoint, evaluation, samples, if due ─> the step's line
                             └──── unusual ──> kept, counted ──┘
```

At the end one run is stopped and goes on, and another one meets NaN and gives up, with a message that says what to do. Sections called appendix have code that prints, writes files or reads the command line. You may skip their code, but read the sentences before it: `say` and `step_line` are used again below.
"""

# %%
#| default_exp trainer
#| doc labs.long_run.spikes: Leave out an update whose loss or gradient is far above what is usual: the key train.skip_spikes.
#| doc labs.long_run.minutes: End a run while there is time to save it: the key run.minutes.
import csv
import shutil
from statistics import fmean, pstdev
from threading import Thread

from course.figures import kills
from course.figures import long_run as figures
from course.notebook import answer, as_module, checkpoint, grown, predict, predictions, show
from nanogpt.metrics import read_metrics
from nanogpt.shards import read_shard
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.trainer import Training, build_run, due, introduce, learning_rate, resume

# %%
STEPS, BAD, STOP = 60, 6, 7  # of a run; batches of garbage; lines after which a run is asked to stop
assert BAD > 0 and 0 < STOP < STEPS, f"BAD={BAD} must be above 0, and STOP={STOP} between 0 and STEPS={STEPS}"
print(f"{STEPS} steps; {BAD} bad batches; asked to stop after line {STOP}")


# %% [markdown]
r"""
## A run to try it on

All experiments of this sitting are short runs of the ready configuration `tiny`, on a small corpus, with dropout. Each run has a folder of its own. The function `tiny` makes their configurations: it loads the file and
changes some of its keys. `build_run` (17d) makes a run from a configuration. (The first of the two cells has the imports of the trainer's module.)
"""


# %%
#| export
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from nanogpt.checkpoint import prune, random_states, save, set_random_states
from nanogpt.config import Config, hook, load_config
from nanogpt.evaluate import evaluate
from nanogpt.files import alone_in, atomically
from nanogpt.model import GPT
from nanogpt.optim import global_norm, gradients_of, scale_to
from nanogpt.device import synchronize
from nanogpt.sampling import complete
from nanogpt.shards import load_manifest, write_shard
from nanogpt.training import accumulate_gradients
from nanogpt.weights import save_model


# %%
def tiny(name: str, *changes: str) -> Config:
    """The ready configuration, shorter, with dropout, in a folder of its own."""
    here = [f"data.dir={RUNS}/stories", f"run.dir={RUNS}/{name}", "run.device=cpu"]
    short = [f"train.max_steps={STEPS}", "optim.warmup=10", "model.dropout=0.1", "eval.tokens=2000"]
    return load_config("tiny", [*here, *short, *changes])


torch.set_num_threads(1)  # sums in another order have other bits
shutil.rmtree(RUNS := Path("../data/built/long_run"), ignore_errors=True)
_ = ensure_corpus(RUNS / "stories", n=1000)


# %% [markdown]
r"""
## Which steps count

Chapter 15's `train_step` refuses an update only if the loss or the gradient is not finite, and then it ends the program. A long run has
three reasons to leave an update out, and goes on:

- *Not finite.* The loss or the gradient is NaN or infinite. The batch is kept in a file, so that somebody can look at it.
- *A spike.* The loss or the length of the gradient (its norm) is far above the usual values, for example by more than 6 standard deviations. Such a step is left out only if the configuration says so (`train.skip_spikes`). Its batch is kept, too.
- *An overflow of float16.* This is no error: the loss scaler is looking for its scale (chapter 10b). For the same reason a published run of Megatron-LM in fp16 has its own check of NaN switched off (`check_for_nan_in_loss_and_grad` is False).

If a step is left out, the weights do not change. Should the learning rate change nevertheless, as it does from step to step? Look at the log of a Megatron-LM run in float16. Its warm-up adds 1e-5 to the rate with each update:
"""


# %%
log = csv.DictReader(Path("../data/reference/megatron_124m.csv").read_text().splitlines())
skipped = 0
for line in [dict(line) for line in log][:3]:
    skipped += int(line["skipped"])
    updates, rate = int(line["iteration"]) - skipped, float(line["learning_rate"])
    print(f"iteration {line['iteration']}: {skipped} skipped so far, {updates} updates, lr {rate:.0e}")
    assert abs(rate - 1e-5 * updates) < 1e-9, "the rate does not follow the updates"

# %% [markdown]
r"""
After 30 iterations the rate is 9e-05, because 9 updates were made. So Megatron-LM counts updates and not iterations. If it counted iterations, the rate would rise while the model learns nothing.

Our rate is a function of the number of updates, too: `learning_rate` of 17d is called with `run.updates`, and a step that is left out does not count as an update.

## How unusual is this loss?

The gradient of a bad batch, for example a page of digits, teaches the model the wrong thing. Clipping (chapter 15) makes such a gradient no longer than the others, but the update is still made. To leave it out, the run must know which losses are usual. A fixed limit cannot tell: a loss of 4 is good at the beginning of a run, and later it is an alarm.

So the run remembers its last 128 losses, as llm.c does. When a new loss comes, it is compared with their mean. The distance is measured in standard deviations; statisticians call this number the
z-score. A z-score of 1 is ordinary, and one of 6 is not. Here it is by hand, for 127 losses of 2.0 to 2.2 and for two new losses:
"""

# %%
usual = [2.0, 2.2] * 63 + [2.1]
mean, deviation = fmean(usual), pstdev(usual)
print(*(f"{loss}: {(loss - mean) / deviation:.1f} deviations" for loss in (2.3, 4.0)), sep=", ")

# %% [markdown]
r"""
`Window` is this memory. It is a list that drops its oldest value when it is full (Python's `deque`), with one method `z` that takes a new value in and returns its z-score. While the list has fewer than 128 values,
there is no score yet. A value that is not finite stays out of the list. Otherwise every later mean would be NaN.
"""


# %%
#| export labs.long_run.spikes
import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean

WINDOW = 128


# %%
#| export labs.long_run.spikes
#| blank Window.z: take the value in, then compare it with the mean and deviation of all that is kept
class Window(deque):
    """The last 128 finite values of a run. The list of them is its state."""

    def __init__(self, values: Iterable[float] = ()):
        super().__init__(values, maxlen=WINDOW)

    def z(self, value: float) -> float | None:
        """Take a value in: its distance from the window's mean in standard deviations (llm.c, outlier_detector.h).

        None while the window is not full, and for a value that is not finite, which is not taken in. 0.0 if all are equal.
        """
        if not math.isfinite(value):
            return None
        self.append(value)
        if len(self) < WINDOW:
            return None
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return (value - mean) / deviation if deviation else 0.0


# %%
window = Window(usual)
print(*(f"{loss}: {window.z(loss):.1f} deviations" for loss in (2.3, 4.0)), sep=", ")

# %% [markdown]
r"""
The loss of 2.3 has the same score as by hand. But the loss of 4 had a score of 19.1 by hand, and here it has about half of that. The reason is that a new value is part
of its own window, so it moves the mean and the deviation that it is compared with.

*Predict.* So one value cannot be arbitrarily far out. What is the largest z-score among 128 values, for example of a million among 127 zeros?
"""

# %%
predict("17e.1", "the largest z-score that one of 128 values can have", guess=None)

# %%
largest = Window([0.0] * (WINDOW - 1)).z(1e6)
print(f"{largest:.2f}, which is √{WINDOW - 1}")
answer("17e.1", largest)

# %% [markdown]
r"""
The million is 11.27 deviations from the mean, and a billion would be just as far. So 6, the limit that we use below, is about half of the largest possible score. (One script of llm.c has 7.)

## Which update is refused?

A trainer must always refuse an update that is not finite. To refuse spikes is a choice: the key `train.skip_spikes` is 0 in most configurations. So the window does not belong to the trainer. It is a *lab* (17c): a module of its own, which a run loads if its configuration has the key. How does a lab
take part in the trainer's decision?

The run gets a list of *judges*. A judge is a function that is called with the run and the step's line, which holds the loss and the norm. It returns a reason to refuse the update, or None. Four such lists are all that labs need: judges, further reasons to stop, further looks at the model, further writers of lines.
They are fields of `Training` (17d). `judge` asks the judges.
"""


# %%
#| export
def judge(run: Training, line: dict) -> str | None:
    """Why this step must not change the weights; None if it may."""
    if not math.isfinite(line["loss"] + line["norm"]):
        return "not finite"
    refusals = [each(run, line) for each in run.judges]
    return next(filter(None, refusals), None)


# %% [markdown]
r"""
The lab's judge keeps two windows, one of losses and one of norms. They must be in a checkpoint, so they are kept in the run's dictionary `notes` as plain lists. The trainer calls the lab's `attach` when a run has been built (17d). We try it with two losses. The last cell of this notebook will write the lab's module. Until then `as_module` lets the trainer find the functions that we have defined here.
"""


# %%
#| export labs.long_run.spikes
def judge_spike(run, line: dict) -> str | None:
    """Add the z-scores of loss and norm to the line; "spike" if one of them is above train.skip_spikes."""
    last_values = run.notes.setdefault("spikes", {"loss": [], "norm": []})
    for name, values in last_values.items():
        window = Window(values)
        line[f"{name}_z"] = window.z(line[name])
        last_values[name] = list(window)
    highest = max(line["loss_z"] or 0, line["norm_z"] or 0)
    return "spike" if highest > run.config.train.skip_spikes else None


def attach(run) -> None:
    """Judge the run's steps."""
    run.judges.append(judge_spike)


# %%
as_module("labs.long_run.spikes")
run = build_run(tiny("first", "train.skip_spikes=6"))
for loss in (7.0, math.nan):
    line = {"loss": loss, "norm": 2.0}
    print(f"loss {loss}: {judge(run, line) or 'no reason to refuse it'}; the line is {line}")

# %% [markdown]
r"""
The first loss has no z-score yet, because the window is not full. NaN is always refused, and the window does not see it.

Now we can write the step. `update` sets the rate and takes the micro-batches of one update. It computes the gradient with chapter 15's `accumulate_gradients`. Then it asks `judge`, and changes the weights only if there is no reason against it. An overflow of float16 is not judged: there the loss is finite, and the scaler halves its scale.
"""


# %%
#| export
#| blank update: rate, batches, gradient and its norm; ask judge; if it has no reason, clip and step
def update(run: Training) -> tuple[dict, list]:
    """Take a batch, and update the weights unless there is a reason not to: the line's entries, and the micro-batches.

    The entries are loss, lr, norm (before clipping), and `skipped` with the reason if there is one: the judge's, or
    "overflow" where a scaler finds a finite loss with a norm that is not. Only a finite loss changes the scale. Batches
    and data.overfit are as in 17d. At the end it waits for the device (synchronize), so that the time is right.
    """
    config, parameters = run.config, list(run.model.parameters())
    lr = learning_rate(config, run.updates)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if config.data.overfit:
        run.stream.position = 0  # the first batch, again
    batches = [run.stream.next_batch() for _ in range(config.micro_batches)]
    # the gradient of all micro-batches, and its length
    run.optimizer.zero_grad()
    loss = accumulate_gradients(run.stepper, batches, config.train.dtype, run.scaler)
    if run.scaler is not None:
        run.scaler.unscale(parameters)
    gradients = gradients_of(parameters)
    norm = global_norm(gradients)
    line = {"loss": loss.item(), "lr": lr, "norm": norm.item()}
    # a reason against this update?
    overflows = math.isfinite(line["loss"]) and not math.isfinite(line["norm"])
    if run.scaler is not None and math.isfinite(line["loss"]):
        run.scaler.update(not overflows)
    reason = "overflow" if run.scaler is not None and overflows else judge(run, line)
    if reason:
        line["skipped"] = reason
    else:
        if config.optim.clip is not None:
            scale_to(gradients, config.optim.clip, norm)
        run.optimizer.step()
    synchronize(run.device)
    return line, batches


# %%
run = build_run(tiny("first"))
line, batches = update(run)
print({name: round(value, 4) for name, value in line.items()}, f"{len(batches)} micro-batches")

# %% [markdown]
r"""
After the update comes the bookkeeping. `count_step` counts the step, and the update if there was one. `keep_batch` writes the batch of a refused step into a file. We count two steps by hand, one of them skipped.
"""


# %%
#| export
def count_step(run: Training, skipped: str | None) -> None:
    """One more step, and one more update unless there is a reason why it was skipped."""
    run.step += 1
    if skipped is None:
        run.updates += 1
    else:
        run.skipped[skipped] += 1
    run.bad = run.bad + 1 if skipped == "not finite" else 0


def keep_batch(run: Training, batches: list) -> None:
    """Write the ids of a step that was left out to a file, as rows of T tokens."""
    ids = torch.cat([x.flatten() for x, _ in batches]).cpu().numpy()
    write_shard(run.folder / f"skipped/step_{run.step:06d}.bin", ids)


# %%
counted = build_run(tiny("first"))
count_step(counted, "spike")
count_step(counted, None)
print(f"{counted.step} steps, {counted.updates} update; skipped: {dict(counted.skipped)}")

# %% [markdown]
r"""
## The step's line

`one_step` makes a step and returns its line, a dictionary for the file `metrics.jsonl`. It measures the time, calls `update`, counts, and keeps the batch if it was refused. `pace` adds the milliseconds and the tokens per second. JSON has no NaN, so a value that is not finite is written as null.
"""


# %%
#| export
#| grows one_step
def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, and tokens a second."""
    return {"ms": 1000 * seconds, "tokens_per_s": run.config.train.batch_tokens / seconds}


def one_step(run: Training) -> dict:
    """Make a step: its line for metrics.jsonl."""
    began = time.perf_counter()
    with run.timed("steps"):
        line, batches = update(run)
    seconds = time.perf_counter() - began
    count_step(run, line.get("skipped"))
    if line.get("skipped") not in (None, "overflow"):
        keep_batch(run, batches)
    line = {"step": run.step} | line | pace(run, seconds)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


# %% tags=["nbval-ignore-output"]
print(one_step(build_run(tiny("first"))))

# %% [markdown]
r"""
## Appendix: the line as text

The functions of this appendix only print. Chapter 17's `step_line` makes a text of a line. For a long run it grows: it also prints the norm, the z-scores, a loss that is not a number, and the reason why a step was left out. `say` prints a text at once, so that it is not lost in a buffer if the process ends.
On a terminal a step's line may be overwritten by the next one, so `say` first clears the line that is there.
"""


# %%
#| export metrics
#| grows SHOWN
#| grows step_line
import math

SHOWN = {
    "lr": "lr {:.2e}",
    "ms": "{:.2f} ms",
    "mfu": "{:.1%} MFU",
    "tokens_per_s": "{:.0f} tok/s",
    "val_loss": "val loss {:.6f}",
    "hellaswag": "HellaSwag {:.4f}",
    "skipped": "skipped: {}",
}


def step_line(line: dict, steps: int) -> str:
    """A line of metrics.jsonl as llm.c prints a step. What is not known is left out; nan stands for what is not finite."""
    text = f"step {line['step']:5}/{steps}"
    for name, digits in (("loss", 6), ("norm", 4)):
        if name in line:
            value, z = line[name], line.get(f"{name}_z")
            text += f" | {name} {math.nan if value is None else value:.{digits}f}"
            text += "" if z is None else f" ({z:+.2f}z)"
    more = [form.format(line[name]) for name, form in SHOWN.items() if line.get(name) is not None]
    return " | ".join([text, *more])


# %%
#| export
import sys


def say(text: str, end: str = "\n") -> None:
    """Print a line; on a terminal in the place of a step's line that does not stay."""
    print(("\r\033[K" if sys.stdout.isatty() else "") + text, end=end, flush=True)


# %% tags=["nbval-ignore-output"]
say(step_line(one_step(build_run(tiny("first"))), STEPS))

# %%
grown("step_line", "17e")

# %% [markdown]
r"""
## Does the run find bad batches?

We train on stories. After 128 steps the windows are full. Then we put in six batches of random ids, one in every second step. A person would see each of them in the curve. The limit `skip_spikes` is 6 deviations. `spoilt` makes the steps: it replaces the stream's
`next_batch` in the steps that are to be bad.

*Predict.* How many of the six are left out?
"""

# %%
predict("17e.2", f"bad batches, of {BAD}, that are left out at 6 deviations", guess=None)


# %%
def spoilt(run: Training, spoil: list[int]) -> list[dict]:
    """The run's lines; in the steps named it is given random ids."""
    real, g, lines = run.stream.next_batch, torch.Generator().manual_seed(0), []

    def garbage() -> tuple[torch.Tensor, ...]:
        return tuple(torch.randint(run.model.config.vocab_size, (2, *real()[0].shape), generator=g))

    for step in range(1, spoil[-1] + 4):
        run.stream.next_batch = garbage if step in spoil else real
        lines.append(one_step(run))
    return lines


# %% tags=["nbval-ignore-output"]
bad = [WINDOW + 2 * i for i in range(1, BAD + 1)]
half = ["train.micro_batch=2", "train.batch_tokens=256"]
run = build_run(tiny("spikes", *half, "train.skip_spikes=6", f"train.max_steps={bad[-1] + 3}"))
lines = spoilt(run, bad)
for line in lines[bad[0] - 2 : bad[-1] + 1]:
    print(*step_line(line, bad[-1] + 3).split(" | ")[:3], line.get("skipped", ""), sep=" | ")
answer("17e.2", run.skipped["spike"])
show(
    figures.spikes(lines, bad, 6),
    alt="Loss and z-scores: equal spikes, but the z-score of each is lower than the last one's.",
)


# %% [markdown]
r"""
Three of the six are left out, and the reason is arithmetic. The window takes in every value before it computes the value's score, also a bad one. (The window of llm.c, from which ours is taken, does the same.) No value among n can be further from their mean than $\sqrt{n-1}$
deviations (Samuelson 1968), which is 11.3 for 128. If k of the values are equal spikes, each of them is $\sqrt{(n-k)/k}$ deviations from the mean: 11.3 for one spike, 7.9 for two, 6.5 for three, and 5.6 for four. The norms above come close to these numbers. The losses do not: none of them reaches 6. Their window still holds the first losses of the run, near 7, so its deviation is large; only the norm finds these batches. And the
first spikes hide the later ones. With a limit of 6, a run can leave out at most three equal spikes in 128 steps. From the fourth on, the model learns the garbage, and its loss on garbage falls. If a run meets more bad batches than that, it has a
problem that skipping does not solve.

The files with the refused batches help to find the problem. We decode the first tokens of one:
"""


# %% tags=["nbval-ignore-output"]
ids = read_shard(sorted((run.folder / "skipped").iterdir())[0])
print(len(ids), "tokens:", run.tokenizer.decode(ids[:12].tolist()).encode("ascii", "replace").decode())
assert len(ids) == run.config.train.batch_tokens, "what is kept is not a batch"


# %% [markdown]
r"""
The text is a sequence of random tokens, so here the cause is plain. On real text it would be a page of digits, or a file that the disk returned wrongly.

## Evaluating a run without changing it

From time to time we want to validate the run, and to read a sample of its text. We call this a *look*. A look must not change the run. But it can, and no error is raised.

Suppose somebody wants to save time, and validates on a random part of the validation text. `random_part` below does this. It draws the part from PyTorch's global generator. We make eight steps twice: once without a look, and once with this look after the third step.
"""


# %%
def random_part(run: Training) -> dict:
    """A careless look: validate on 500 tokens from a random place."""
    (tokens,), eot = run.held
    start = int(torch.randint(1000, ()))
    return {"part_loss": evaluate(run.model, [tokens[start : start + 500]], eot)}


def looked_at(after_third, *changes: str) -> list[float]:
    """The losses of eight steps of a new run; after the third one, after_third(run) is called."""
    run, losses = build_run(tiny("looks", *changes)), []
    for step in range(1, 9):
        losses.append(one_step(run)["loss"])
        if step == 3:
            after_third(run)
    return losses


# %% tags=["nbval-ignore-output"]
alone = looked_at(lambda run: None)
careless = looked_at(random_part)
for name, losses in (("alone", alone), ("careless", careless)):
    print(f"{name:8}", [round(loss, 4) for loss in losses])
assert alone[:3] == careless[:3] and alone[3] != careless[3], "a look after step 3 should show in loss 4"

# %% [markdown]
r"""
From the fourth loss on the run is another one. The losses are not worse. But the run depends on how often somebody looked at it, and a second run with other looks is not comparable with it.

*Predict.* Who reads the number that the look has taken away? Suppose the model has no dropout, and the same careless look comes after step 3. Which is then the first of the eight losses that differs? (0: none does.)
"""

# %%
predict("17e.3", "first loss that differs, with the same look and no dropout", guess=None)

# %%
pair = [looked_at(each, "model.dropout=0") for each in (lambda run: None, random_part)]
apart = [step for step, (x, y) in enumerate(zip(*pair), 1) if x != y]
answer("17e.3", apart[0] if apart else 0)

# %% [markdown]
r"""
None differs. So the look itself changes nothing: it has drawn one number of PyTorch's global generator, and dropout, the only other reader of this generator, gets other numbers from then on. A team whose models have no dropout would never find this bug, until the first one has.

So a look follows two rules. First, it puts the states of the random generators back. Second, it uses the plain model and not the compiled one. Why? `torch.compile` hands each new graph to a compiler. We give it one that compiles nothing and only counts.
"""

# %%
graphs = []


def counting(graph, inputs):
    """A compiler that leaves a graph as it is, and counts it."""
    graphs.append(graph)
    return graph.forward


other = build_run(tiny("compiled", "model.dropout=0"))
compiled = torch.compile(other.model, backend=counting)
for _ in range(2):
    compiled(*other.stream.next_batch())[1].backward()
print("two steps:            ", len(graphs), "graph")
_ = evaluate(compiled, *other.held)
print("and a validation:     ", len(graphs), "graphs")
_ = complete(compiled, other.tokenizer, "", 30)
print("and 30 tokens of text:", len(graphs), "graphs")

# %% [markdown]
r"""
A validation needs a second graph, without gradients, and a sample two more, for texts of other lengths. With a real compiler each of them takes seconds to minutes (chapter 11), which is longer than the look.

`validate` and `write_sample` are two looks. `validate` measures the loss with `held_loss`, and remembers the step with the lowest one. A lab may replace `held_loss`, and also `whole_model`, if the model is not in one piece (part V). `write_sample` prints the sample and writes it to a file in `samples/`; it is no longer part of the step's line. `due_looks` finds the looks that are due after a step, and `look` now takes this list and makes them. A lab can add a look to the list `run.looks`.
"""


# %%
#| export
def held_loss(run: Training) -> float:
    """The mean loss on the held-out tokens, in nats per token."""
    return evaluate(run.model, *run.held, precision=run.config.train.dtype)


def validate(run: Training) -> dict:
    """The validation loss, and the floor where the data have one. Notes which step was the best."""
    loss = hook(run.config, held_loss)(run)
    if loss < run.best.get("val_loss", math.inf):
        run.best = {"step": run.step, "val_loss": loss}
    floor = {key: value for key, value in load_manifest(run.config.data.dir).items() if key == "floor"}
    return {"val_loss": loss if math.isfinite(loss) else None} | floor  # the floor is for `plot`


def whole_model(run: Training) -> GPT:
    """The model for a look that is no validation."""
    return run.model


def write_sample(run: Training) -> dict:
    """Print a sample and write it to a file. It adds nothing to the step's line."""
    prompt, model = run.config.eval.prompt, hook(run.config, whole_model)(run)
    text = prompt + complete(model, run.tokenizer, prompt, 200)
    say(f"--- step {run.step}: {text}")
    with atomically(run.folder / f"samples/step_{run.step:06d}.txt") as file:
        file.write(text.encode())
    return {}


# %%
#| export
#| grows look
#| blank look: remember the random states, make the looks, and put the states back
def due_looks(run: Training) -> list[Callable]:
    """The looks that are due after this step. At the last step all are due that are done at all."""
    asked = run.config.eval
    last = run.step >= run.config.train.max_steps
    looks = [(asked.every, validate), (asked.sample_every, write_sample), *run.looks]
    return [each for every, each in looks if due(every, run.step, last)]


def look(run: Training, looks: list[Callable]) -> dict:
    """The results of the looks, for the step's line. The random states are put back, so no later step changes."""
    before, line = random_states(run.device), {}
    for each in looks:
        line |= each(run)
    set_random_states(before, run.device)
    return line


# %% [markdown]
r"""
First we ask which looks are due after step 20 of a run that is validated after every 20 steps, and make them. Then we make the eight steps with dropout again. This time the careless look and a validation both go through `look`, and the assertion says that all eight losses are those of the run that nobody looked at.
"""

# %%
run = build_run(tiny("looks", "eval.every=20"))
run.step = 20
print("due:", *(each.__name__ for each in due_looks(run)))
print({name: round(float(value), 3) for name, value in look(run, due_looks(run)).items()})
careful = looked_at(lambda run: look(run, [random_part, validate]))
assert careful == alone, "the looks have changed the run"

# %% [markdown]
r"""
## Asking a run to stop

There are several ways to ask a run to stop. A cluster sends the signal SIGTERM to the process. A person presses Ctrl-C, which sends the signal SIGINT. And if you cannot send a signal to the process, you can create a file named `stop` in the run's folder. A lab may have a further reason, which it adds to `run.reasons`. In all these cases
the run should finish its step, save, and end. A second signal ends the run at once, without a checkpoint of this step.

By default SIGTERM ends a process in the middle of whatever it does. `asked_to_stop` replaces this handler, and the one of SIGINT, while the run is training, and puts the old ones back afterwards. Our handler only notes the signal's name. After each step the loop calls `reason`, which returns the first reason that there is, or None.

We send ourselves a SIGTERM to try it.
"""


# %%
#| export
import signal
from contextlib import ExitStack


def name_last_good(run: Training) -> str:
    """For a message: the checkpoint from which the run can go on."""
    return f"the last good checkpoint is {run.kept}" if run.kept else "there is no checkpoint yet"


def take_stop_file(run: Training) -> str | None:
    """A reason to end: a file `stop` in the run's folder, which is removed."""
    file = run.folder / "stop"
    if file.exists():
        file.unlink(missing_ok=True)
        return f"the file {file}"


# %%
#| export
@contextmanager
def asked_to_stop(run: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, the file `stop`, a lab's reason."""
    signals = []

    def note(number, frame):
        if signals:
            raise KeyboardInterrupt(f"{name_last_good(run)}, and the same command goes on from it")
        signals.append(signal.Signals(number).name)

    def reason() -> str | None:
        limits = [take_stop_file(run), *(each() for each in run.reasons)]
        return next(filter(None, [*signals, *limits]), None)

    with ExitStack() as at_the_end:
        for number in (signal.SIGINT, signal.SIGTERM):
            at_the_end.callback(signal.signal, number, signal.signal(number, note))
        yield reason


# %%
with asked_to_stop(run) as why:
    print("after a step:", why())
    signal.raise_signal(signal.SIGTERM)
    print("after a signal:", why())

# %% [markdown]
r"""
The process is still alive after the signal. It only knows now that it should stop.

A time limit is a lab's reason. The key `run.minutes` says how long a job may take on a cluster. The limit must leave room for another step, a checkpoint and an evaluation, so the lab adds the longest of each that was measured so far, and multiplies the sum by 1.5. Two things it does not know: the time before `attach`, in which PyTorch is imported and the data are made, and the time of an evaluation before the first one. So set
the key some minutes below the limit of the cluster.
"""


# %%
#| export labs.long_run.minutes
import time


def attach(run) -> None:
    """End the run when run.minutes leave no time for another step, a checkpoint and an evaluation."""
    began, minutes = time.monotonic(), run.config.run.minutes

    def reason() -> str | None:
        reserve = 1.5 * sum(run.longest.values())
        if time.monotonic() - began + reserve > 60 * minutes:
            return f"run.minutes={minutes:g}"

    run.reasons.append(reason)


# %%
as_module("labs.long_run.minutes")
limited = build_run(tiny("limited", "run.minutes=0.01"))
print("a new run:", limited.reasons[0]())
limited.longest = {"steps": 0.3, "evaluation": 0.2}  # seconds; half as much again is more than the limit
print("if a step and an evaluation take 0.5 s:", limited.reasons[0]())

# %% [markdown]
r"""
## Appendix: errors, the screen and the files

The functions of this appendix tell the operator about a run, on the screen and in files. None of them changes the training.

Two errors end a run until somebody has done something about them: too many losses in a row that are not finite, and a full disk. `naming_last_good` adds to their message the checkpoint from which the run can go on.
"""


# %%
#| export
import errno

DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


@contextmanager
def naming_last_good(run: Training) -> Iterator[None]:
    """Add the last good checkpoint to the message of an error that ends the run: no finite loss, or a full disk."""
    try:
        yield
    except FloatingPointError as error:
        advice = "begin again in another run.dir, with a lower optim.lr, by init_from if a checkpoint still gives a finite loss"
        raise FloatingPointError(f"step {run.step}: {error}; {name_last_good(run)}; {advice}") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no room left in {run.folder}; {name_last_good(run)}; make room and go on") from None


# %%
try:
    with naming_last_good(run):
        raise FloatingPointError("loss or gradient were not finite 10 times in a row")
except FloatingPointError as error:
    print(str(error).replace(str(RUNS), "…"))

# %% [markdown]
r"""
Before the first step, `begin` writes down what is about to run. `keep_config` writes the complete configuration into the run's folder, so that the folder alone is enough to go on. `note_start` adds a line to `started.jsonl`: the step, the versions, git's commit and the command. Months later somebody will ask with which version of the code the run was made. At its end a run prints its results with `print_results`, and how its time was spent:
on steps, checkpoints and evaluation. `say_rate` compares the next learning rate with the last one. After the warm-up no schedule rises. If the rate rises nevertheless, the schedule has become longer, and the run prints both rates (17f tries it).
"""


# %%
#| export
import platform
import shlex
import subprocess
from contextlib import suppress

import yaml

import nanogpt
from nanogpt.config import config_dict
from nanogpt.metrics import span


def keep_config(run: Training) -> None:
    """Write config.yaml into the run's folder: `train FOLDER` goes on with it."""
    with atomically(run.folder / "config.yaml") as file:
        file.write(yaml.safe_dump(config_dict(run.config), sort_keys=False).encode())


# %%
#| export
def note_start(run: Training, command: str) -> None:
    """One more line in started.jsonl: with which software, and by which command, the run was begun or resumed."""
    git = ["git", "-C", str(Path(nanogpt.__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    git += ["--exclude=*"]  # the commit, no tag; with -dirty where files have been edited since
    commit = None  # where there is no git
    with suppress(OSError):
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    line = {"step": run.step, "time": time.strftime("%Y-%m-%d %H:%M:%S"), "torch": torch.__version__}
    line |= {"python": platform.python_version(), "commit": commit, "command": command}
    with open(run.folder / "started.jsonl", "a", encoding="utf-8") as file:
        print(json.dumps(line), file=file)


# %%
#| export
def print_results(run: Training) -> None:
    """Print the run's results, and how its time was spent."""
    total = sum(run.seconds.values())
    spent = ", ".join(f"{what} {s:.1f} s ({s / total:.1%})" for what, s in run.seconds.items())
    skipped = ", ".join(f"{n} {why}" for why, n in run.skipped.items()) or "none"
    print(f"{run.step} steps, {spent}; skipped: {skipped}")
    if run.best:
        print(f"best val loss {run.best['val_loss']:.6f} at step {run.best['step']}")
    place = run.folder / "best" if run.best else run.folder
    print(f"python -m nanogpt sample --checkpoint {shlex.quote(str(place))}")


# %% [markdown]
r"""
Each step's line goes into `metrics.jsonl`, at once and unbuffered, so that a kill loses no line that was written. The same line goes to the screen. It shows the tokens per second of this one step, because a moving mean would hide a slow-down. On a
terminal every step is shown, each in the place of the one before. In a log file only each `run.log_every`-th step is shown. `open_writers` returns a function for each place that gets the line.

The screen also shows the time that is left. A compiled model needs seconds or minutes for its first step and milliseconds for the next one, so the first step of a process is not counted. A run that goes on compiles again. It first shows the line of its checkpoint's step, which costs nothing; its first step is the one after it.
"""


# %%
#| export
def open_log(run: Training):
    """metrics.jsonl, unbuffered: what is written survives the process."""
    run.folder.mkdir(parents=True, exist_ok=True)
    return open(run.folder / "metrics.jsonl", "ab", 0)


def open_writers(run: Training, metrics) -> list[Callable]:
    """What is called with each step's line: for the screen, for metrics.jsonl, and what labs have added."""
    steps, began = run.config.train.max_steps, time.monotonic()
    first = run.step + 1  # of this process: it compiles, and says nothing about the other steps

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        nonlocal began
        left = steps - line["step"]
        stays = due(run.config.run.log_every, line["step"], not left) or {"val_loss", "skipped"} & line.keys()
        text = step_line(line, steps)
        if line["step"] <= first:
            began = time.monotonic()
        elif left:
            each = (time.monotonic() - began) / (line["step"] - first)
            text += f" | {span(left * each)} left"
        if stays or sys.stdout.isatty():
            say(text, end="\n" if stays else "")

    def append(line: dict) -> None:
        metrics.write(json.dumps(line).encode() + b"\n")

    return [show, append, *run.writers]


# %%
with open_log(run) as metrics:
    for write in open_writers(run, metrics):
        write({"step": 21, "loss": 5.4, "lr": 5e-4, "val_loss": 5.3})
print("and in the file:", (run.folder / "metrics.jsonl").read_text(encoding="utf-8"))

# %% [markdown]
r"""
The same step for people and for programs. The last three functions are called at the beginning and at the end of a run.
"""


# %%
#| export
def say_rate(run: Training) -> None:
    """Say that the learning rate rises: behind the warm-up no schedule does, so the run has another one than before."""
    before, now = run.optimizer.param_groups[0]["lr"], learning_rate(run.config, run.updates)
    if run.updates > run.config.optim.warmup and now > 1.01 * before:
        say(
            f"the learning rate was {before:.2e} and is {now:.2e} from here on: the schedule has become longer"
        )


def begin(run: Training, metrics, command: str) -> list[Callable]:
    """Print and write down what is about to run; return the functions that take each step's line."""
    note_start(run, command)
    keep_config(run)
    introduce(run)
    say_rate(run)
    return open_writers(run, metrics)


def say_end(run: Training, command: str) -> None:
    """Why it stopped and how to go on, or what it came to."""
    if run.step < run.config.train.max_steps:
        say(f"stopped by {run.stopped} after step {run.step}; to go on: {command}")
    else:
        print_results(run)


# %% [markdown]
r"""
## The loop

Now we put the parts together. The loop of 17d stays as it is in its order: make a step, save, look, write the line. Three things are new: bad steps, a question after each step whether to stop, and places for labs.

`finish_step` does everything that is due after a step. There are four reasons for a checkpoint: the run has been asked to stop (`run.stopped`), this is the last step, a look is due, or it is time for one (`run.checkpoint_every`). In the last case no checkpoint is written while losses are not finite (`run.bad`). A run that is asked to stop before its last step is saved and makes no looks: somebody is waiting. `save_checkpoint` grows. Before a checkpoint it flushes the file of lines to the disk, so that after a power cut the lines of all earlier steps are
there. What a checkpoint holds is the answer of `snapshot`, which a lab may replace (19c keeps adapters alone). `tidy` deletes old checkpoints, but keeps the best one.
"""


# %%
#| export
#| grows save_checkpoint
def snapshot(run: Training) -> tuple[GPT, dict, Callable]:
    """What a checkpoint holds: the model, the state, and what writes the model's weights."""
    return run.model, run.state_dict(), save_model


def save_checkpoint(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept == folder:
        return
    model, state, write = hook(run.config, snapshot)(run)
    os.fsync(metrics.fileno())
    save(run.folder, run.step, model, state, run.tokenizer, write)
    run.kept = folder


def tidy(run: Training) -> None:
    """Remove old checkpoints, but for the newest ones and the best."""
    prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


# %%
#| export
#| blank finish_step: the checkpoint if it is due, then the looks, whose results join run.record, then tidy
def finish_step(run: Training, metrics) -> None:
    """Do everything that is due after a step. The checkpoint comes first: a look may run out of memory."""
    last = run.step >= run.config.train.max_steps
    looks = [] if run.stopped and not last else due_looks(run)
    often = due(run.config.run.checkpoint_every, run.step) and not run.bad
    saves = run.stopped or last or looks or often
    if saves:
        with run.timed("checkpoints"):
            save_checkpoint(run, metrics)
    if looks:
        with run.timed("evaluation"):
            run.record |= look(run, looks)
    if saves:
        tidy(run)


# %% [markdown]
r"""
`fit` is the loop. Its helpers `open_log`, `begin` and `say_end` write and print, and `naming_last_good` completes the message of an error; they are in the appendix above. If too many losses in a row are not finite (`train.bad_steps`), the loop gives up.
"""


# %%
#| export
#| grows fit
def fit(run: Training, command: str = "the same call") -> Training:
    """Train a run, or go on with it, to its last step or until it is asked to stop. command: how to go on, for a message."""
    resume(run)
    steps, bad_steps = run.config.train.max_steps, run.config.train.bad_steps
    if run.step > steps:
        raise ValueError(f"{run.folder} has done {run.step} steps already, and train.max_steps={steps}")
    with open_log(run) as metrics, asked_to_stop(run) as why, naming_last_good(run):
        writers = begin(run, metrics, command)
        while (run.step < steps and not run.stopped) or run.record:
            # a step, unless a killed process has left its line unfinished
            run.record = run.record or one_step(run)
            run.stopped = why()
            # save and look, where it is time
            finish_step(run, metrics)
            # the line is complete
            for write in writers:
                write(run.record)
            run.record = None
            if run.bad >= bad_steps:
                raise FloatingPointError(f"loss or gradient were not finite {run.bad} times in a row")
    say_end(run, command)
    return run


# %%
grown("fit", "17e")

# %% [markdown]
r"""
`train_config` is what the command will call. Nobody else may train in the same folder meanwhile: `alone_in` is the lock of chapter 16.
"""


# %%
#| export
def train_config(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until it is asked to stop."""
    with alone_in(Path(config.run.dir), "trainer", "choose another run.dir"):
        return fit(build_run(config), command)


# %% [markdown]
r"""
## A run that is asked to stop

We want to see a run that is stopped. So we start a second thread, which watches the run's file. As soon as the file has seven lines, the thread sends a SIGTERM.
"""


# %% tags=["nbval-ignore-output"]
def ask_to_stop(run_dir: str, lines: int) -> None:
    while kills.lines_in(Path(run_dir, "metrics.jsonl")) < lines:
        time.sleep(0.001)
    signal.raise_signal(signal.SIGTERM)


config = tiny("stopped", "eval.every=20", "run.log_every=5")
Thread(target=ask_to_stop, args=(config.run.dir, STOP), daemon=True).start()
run = train_config(config, "python -m nanogpt train tiny")

# %% [markdown]
r"""
The signal came within step 8. This step was finished, its line was written, and the checkpoint has its number.

*Predict.* A script runs `python -m nanogpt train tiny && python -m nanogpt sample --checkpoint runs/tiny`. The shell runs the second command only if the first one ends with exit code 0. Our run has ended without an error. SIGTERM has the number 15. Which exit code should the process have?
"""

# %%
predict("17e.4", "exit code of a run that SIGTERM has stopped", guess=None)


# %%
#| export
#| blank exit_code: 0 for a finished run, 128 plus the number of the signal that stopped it before its last step, 1 for another stop
def exit_code(run: Training) -> int:
    """For the shell: 0 for a finished run, 128 plus the signal's number for one that a signal stopped, else 1."""
    if run.step >= run.config.train.max_steps:
        return 0
    if run.stopped in ("SIGINT", "SIGTERM"):
        return 128 + signal.Signals[run.stopped]
    return 1


# %%
answer("17e.4", exit_code(run))

# %% [markdown]
r"""
It is 143, which is 128 plus 15. A shell gives the same code to a process that a signal has ended. So the script does not sample from an unfinished run, and a script that trains one seed after the other can stop, too, if it asks for it (`|| break`). After Ctrl-C (signal 2) the code is 130. After the file `stop` and the time limit it is 1. So 0 says that the run is finished, and nothing else does.

The same call goes on with the run, and this time nobody stops it:
"""

# %% tags=["nbval-ignore-output"]
run = train_config(config, "python -m nanogpt train tiny")

# %%
made = [line["step"] for line in read_metrics(config.run.dir)]
assert made == list(range(1, STEPS + 1)), f"a step is missing: {made}"
print(f"{len(made)} lines; exit code {exit_code(run)}")

# %% [markdown]
r"""
A run that is asked to stop loses nothing: sixty lines, none missing and none twice. It ends with a loss of 4.0099 and a validation loss of 3.7809. The next sitting makes the same run without a stop, and gets the same numbers, digit by digit.

## A run that meets NaN

The first reason to leave an update out was a loss that is not finite. Now a run that meets it. Its rate is twenty million times too high, nothing clips the gradient, and a checkpoint is written after every step. `train.bad_steps=5` says that the run gives up after five such steps in a row.
"""

# %% tags=["nbval-ignore-output"]
wild = ["optim.lr=1e4", "optim.clip=null", "optim.warmup=0", "run.log_every=1", "run.checkpoint_every=1"]
try:
    train_config(tiny("wild", *wild, "train.bad_steps=5"))
except FloatingPointError as error:
    print(str(error).replace(str(RUNS), "…"))
print("batches kept:", *sorted(file.name for file in (RUNS / "wild/skipped").iterdir()))
print("checkpoints:", *sorted(place.name for place in (RUNS / "wild").glob("step_*")))

# %% [markdown]
r"""
The first loss is usual, 7.1. One update later it is 3 billion, and after the second update it is NaN for good. None of the five steps that follow changes the weights, no checkpoint is written in them, and their batches are kept. Then the run ends with a message for the operator.

Why does the message say "if a checkpoint still gives a finite loss"? The checkpoint of step 2 is complete, but it is not good: it holds the weights *after* the second update, and with them every loss is NaN. A step notices what the update before it has done. So if a run ends in this way, look at its last lines, and go back to a checkpoint from before the loss began to rise. Here neither of the two is one, since the weights of step 1 already give 3 billion.
"""

# %% [markdown]
r"""
## Appendix: the command `train`

A run has more than sixty keys, and nobody knows them by heart. Each is a field of a dataclass in chapter 17c, with a comment behind it that says what it means. So the source itself can be the list: `key_lines` reads the comments, and `--help` prints them.
"""


# %%
#| export config
import inspect
import json
import re
from dataclasses import fields, is_dataclass


def key_lines(kind: type, before: str = "") -> list[str]:
    """A line for each key of a configuration: its default, and what the comment behind the field says."""
    meanings = dict(re.findall(r"^    (\w+):.*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    lines = []
    for f in fields(kind):
        if is_dataclass(f.default_factory):
            lines += key_lines(f.default_factory, f"{f.name}.")
        else:
            lines.append(f"  {before}{f.name}={json.dumps(f.default)}  {meanings.get(f.name, '')}".rstrip())
    return lines


# %%
print(*key_lines(Config)[8:12], sep="\n")

# %% [markdown]
r"""
The command reads its options, makes the configuration (`read_options`), and calls `train_config`. At the end it raises `SystemExit` with the run's exit code, unless the run is finished.
"""


# %%
#| export
import argparse
from importlib import import_module

HELP = """Start a run, or go on with it where its newest checkpoint is: the same command does both.

  python -m nanogpt train tiny
  python -m nanogpt train shakespeare data.source=mine.txt data.dir=data/built/mine
  python -m nanogpt train gpt2-124M train.micro_batch=8 --dry-run
  python -m nanogpt train runs/tiny                              go on with the run in this folder

Ctrl-C, SIGTERM, a file named `stop` in run.dir and run.minutes end it after the step, with a checkpoint. Its exit
code is then 130, 143, 1 and 1. 0 says that the run is finished.
"""


# %%
#| export
def parser() -> argparse.ArgumentParser:
    """The command's options."""
    every_key = "\n".join(["keys and their defaults:", *key_lines(Config)])
    looks = {"description": HELP, "epilog": every_key}
    parser = argparse.ArgumentParser(**looks, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "config", help="a YAML file, the name of one in nanogpt/configs/, or the folder of a run"
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="all keys are below")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would take, and end")
    parser.add_argument(
        "--depth", type=int, metavar="N", help="layers; width, heads, lr and max_steps follow"
    )
    parser.parse_args = parser.parse_intermixed_args  # an override may stand after an option
    return parser


# %%
#| export
def read_options(args: argparse.Namespace) -> Config:
    """The run that the options ask for; of a run's folder, the one that was begun there."""
    file, place = args.config, []
    if Path(args.config, "config.yaml").is_file():
        file, place = Path(args.config, "config.yaml"), [f"run.dir={args.config}"]
    dial = []
    if args.depth is not None:  # a width of its own may not suit the file's heads
        others = [override for override in args.overrides if not override.startswith("model.n_")]
        lab = import_module("nanogpt.labs.plan.depth")
        dial = lab.from_depth(args.depth, load_config(file, others).train.batch_tokens)
    return load_config(file, [*place, *dial, *args.overrides])


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt train`, its options parsed."""
    config = read_options(args)
    if args.dry_run:
        lab = import_module("nanogpt.labs.plan.dryrun")
        return hook(config, lab.dry_run)(config)
    depth = [] if args.depth is None else ["--depth", str(args.depth)]
    done = train_config(
        config, f"python -m nanogpt train {shlex.join([args.config, *args.overrides, *depth])}"
    )
    if exit_code(done):
        raise SystemExit(exit_code(done))


# %% tags=["nbval-ignore-output"]
run(parser().parse_args(["tiny", f"data.dir={RUNS}/stories", "--dry-run"]))

# %% [markdown]
r"""
## Checkpoint

The package can now train by a command: `python -m nanogpt train tiny`.
"""


# %% tags=["nbval-ignore-output"]
predictions("17e")


# %%
checkpoint("17e")


# %% [markdown]
r"""
## Exercises

`course exercises release 17` writes this one, and those of the other sittings, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-5** A limit that nothing reaches, 20 minutes: derive the highest z of a window, and count false alarms.

To explore:

1. Let `Window.z` judge before it takes a value in, and take in none that was skipped. Check with `spoilt`: how many of six are left out now? What happens to a run
   whose loss really has moved, for example after a change of the data?
2. Train `tiny` with `train.skip_spikes=3`. Decode the files in `skipped/`. Check: are these batches unlike others, or is it chance? Of 2,000 normal
   deviates, how many exceed 3?
3. Remove `set_random_states` from `look`. Check with `looked_at`: with `random_part` the losses differ, and with `validate` alone they do not. Why?
4. Go on with "wild" from its newest checkpoint (`train_config` again). Check: does one finite loss come? And from `step_000001`, with a usual rate in another folder?
5. Give `tiny` the key `run.minutes=0.05`. Check: after which step does the run end, and how many seconds of the three are left?

## Further reading

- Chowdhery et al. 2022, [*PaLM*](https://arxiv.org/abs/2204.02311), §5.1: loss spikes in a large run. The same batches, read from an earlier checkpoint, gave no spike, so bad data alone were not the cause. The remedy was to go back about 100 steps and to leave out 200 to 500 batches.
- Samuelson 1968, [*How Deviant Can You Be?*](https://doi.org/10.1080/01621459.1968.10480944), JASA 63: no value of n is further than $\sqrt{n-1}$ deviations from their mean.
- [llm.c](https://github.com/karpathy/llm.c), `outlier_detector.h`: z-scores and skipped updates.
- Micikevicius et al. 2018, [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), §3.2: why a step that overflows is no error.
- [POSIX.1-2017, Shell Command Language](https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html#tag_18_08_02), §2.8.2: exit status, and what is above 128.
"""
