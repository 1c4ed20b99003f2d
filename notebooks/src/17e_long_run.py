# %% [markdown]
r"""
# 17e · A long run: bad steps, evaluation, and a clean stop

Chapter 17's trainer makes every step that it is told to make, and somebody watches it. Nobody watches a run at three in the morning. A batch of garbage may arrive. The loss may become NaN. Somebody may need the machine back in ten
minutes. In each case the run must act as its operator would.

This sitting builds a trainer that does this for a run from a file (17c, 17d). It answers three questions:

1. How can the run recognise an unusual loss, if nobody tells it which losses are usual?
2. How can we evaluate a run on its way without changing it?
3. How can we stop a run so that nothing is lost, and so that the script that started it notices?

```
batch ─> loss and norm ─> judged ── usual ────> update ────────┬─> evaluation, samples, if due ─> the step's line ─> asked to stop?
                             └──── unusual ──> kept, counted ──┘
```

The next sitting, 17f, is about runs that are killed without being asked. Sections called appendix have code that prints, writes files or reads the command line. You may skip their code, but read the sentences before it: `say` and `step_line` are used again below.
"""

# %%
#| default_exp labs.long_run.trainer
#| doc labs.long_run.log: The line of a step: on the screen, in metrics.jsonl, TensorBoard and wandb; and the run's results.
#| doc labs.long_run.looks: What is measured and written on the way, which no later step notices.
#| doc labs.long_run.stopping: What asks a run to end, and what it says when it ends for good.
#| doc labs.long_run.trainer: The trainer: a run from a configuration that survives kill -9, bit for bit; the command `train`.
import csv
import shutil
from threading import Thread

from course import kills
from course.figures import long_run as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.labs.long_run.training import WINDOW
from nanogpt.metrics import read_metrics
from nanogpt.shards import read_shard
from nanogpt.stories import ensure_corpus

# %%
STEPS, BAD, STOP = 60, 6, 7  # of a run; batches of garbage; lines after which a run is asked to stop
assert BAD > 0 and 0 < STOP < STEPS, f"BAD={BAD} must be above 0, and STOP={STOP} between 0 and STEPS={STEPS}"
print(f"{STEPS} steps; {BAD} bad batches; asked to stop after line {STOP}")


# %% [markdown]
r"""
## A run to try it on

All experiments of this sitting are short runs of the ready configuration `tiny`, on a small corpus, with dropout. Each run has a folder of its own. The function `tiny` makes their configurations: it loads the file and
changes some of its keys. `resume` (17d) makes a run from a configuration. (The first of the two cells has the imports of the trainer's module.)
"""


# %%
#| export
import json
import math
import time
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.checkpoint import save
from nanogpt.config import Config, load_config
from nanogpt.labs.long_run.assemble import resume
from nanogpt.labs.long_run.training import Training
from nanogpt.roofline import synchronize
from nanogpt.shards import write_shard
from nanogpt.trainer import due
from nanogpt.training import train_step


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

Chapter 07's `train_step` makes the update. Since chapter 15 it first asks a function `accept` whether this loss and this gradient should be used. If the caller passes no `accept`, the answer is yes, unless they are not finite. A long run has
three reasons to leave an update out:

- *Not finite.* The loss or the gradient is NaN or infinite. The batch is kept in a file, so that somebody can look at it.
- *A spike.* The loss or the length of the gradient (its norm) is far above the usual values, for example by more than 6 standard deviations. Such a step is left out only if the configuration says so (`train.skip_spikes`). Its batch is kept, too.
- *An overflow of float16.* This is no error: the loss scaler is looking for its scale (chapter 10b).

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

Our rate is a function of the number of updates, too. `learning_rate` uses one of chapter 15's three schedules, as the configuration says. We print the rate of the schedule wsd (warm up, stay, decay) at three places.
"""


# %%
#| export
#| blank learning_rate: ask the schedule of chapter 15 and multiply by the configured rate
def learning_rate(config: Config, updates: int) -> float:
    """The rate of the next update, after so many updates: steps that were skipped do not count."""
    o, steps = config.optim, config.train.max_steps
    if o.schedule == "cosine":
        return o.lr * optim.cosine(updates, steps, warmup=o.warmup, minimum=o.minimum)
    if o.schedule == "wsd":
        return o.lr * optim.wsd(updates, steps, warmup=o.warmup, decay=o.decay, minimum=o.minimum)
    return o.lr * optim.warm_up(updates, o.warmup)


# %%
print(*(f"update {n}: {learning_rate(tiny('first'), n):.1e}" for n in (0, STEPS // 2, STEPS - 1)), sep="; ")

# %% [markdown]
r"""
## How unusual is this loss?

A fixed limit cannot recognise a spike. A loss of 4 is good at the beginning of a run, and later it is an alarm. So the run compares each new loss with its own last 128 losses. The distance from their mean, measured in standard deviations, is called the z-score. `Window` of
17d keeps the 128 values, and its method `z` takes a new value in and returns the z-score. While there are fewer than 128 values, it returns None.

`judged` decides whether an update is made. It returns a part of the step's line: the norm, the z-scores of the loss and of the norm, and the word "skipped" with a reason if the update must not be made. We ask it about a usual loss and about a NaN.
"""


# %%
#| export
#| blank judged: not finite first; then how unusual loss and norm are, and the limit if there is one
def judged(run: Training, loss: float, norm: float) -> dict:
    """The norm and both z-scores, for the step's line; with "skipped" if the update must not be made."""
    if not math.isfinite(loss + norm):
        return {"norm": norm, "skipped": "not finite"}
    line = {"norm": norm, "loss_z": run.windows["loss"].z(loss), "norm_z": run.windows["norm"].z(norm)}
    limit, highest = run.config.train.skip_spikes, max(line["loss_z"] or 0, line["norm_z"] or 0)
    if limit and highest > limit:
        line["skipped"] = "spike"
    return line


# %%
run = resume(tiny("first"))
print(judged(run, 7.0, 2.0))
print(judged(run, math.nan, 2.0))

# %% [markdown]
r"""
The first loss has no z-score yet, because the window is not full. NaN is always refused.

Now we can write the step. `update` sets the rate, takes the micro-batches of one update (chapter 15), and calls `train_step`. Its `accept` asks `judged`, and notes the result in the dictionary `said`. If the loss scaler has found an overflow, `train_step` does not
call `accept` at all, so `update` notes the overflow itself. We make one update and print what it says.
"""


# %%
#| export
def update(run: Training) -> tuple[float, dict, list]:
    """Take a batch, and update the weights unless it is refused: its loss, entries for the line, its micro-batches."""
    c, lr = run.config, learning_rate(run.config, run.updates)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if c.data.overfit:
        run.stream.position = 0  # the first batch, again
    said, batches = {"lr": lr}, [run.stream.next_batch() for _ in range(c.micro_batches)]

    def accept(loss, norm) -> bool:  # not asked where fp16's scaler has found an overflow
        said.update(judged(run, loss.item(), norm.item()))
        return "skipped" not in said

    loss = train_step(run.stepper, run.optimizer, batches, c.train.dtype, c.optim.clip, run.scaler, accept)
    if "norm" not in said:
        said |= {"norm": math.inf, "skipped": "overflow" if loss.isfinite() else "not finite"}
    synchronize(run.device)
    return loss.item(), said, batches


# %%
loss, said, batches = update(run)
print(f"loss {loss:.3f}, lr {said['lr']:.1e}, norm {said['norm']:.3f}; {len(batches)} micro-batches")

# %% [markdown]
r"""
After the update comes the bookkeeping. `count` counts the step, and the update if there was one. `keep_batch` writes the batch of a refused step into a file. We count two steps by hand, one of them skipped.
"""


# %%
#| export
def count(run: Training, skipped: str | None) -> None:
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
counted = resume(tiny("first"))
count(counted, "spike")
count(counted, None)
print(f"{counted.step} steps, {counted.updates} update; skipped: {dict(counted.skipped)}")

# %% [markdown]
r"""
## The step's line

`one_step` makes a step and returns its line, a dictionary for the file `metrics.jsonl`. It measures the time, calls `update`, counts, and keeps the batch if it was refused. `pace` adds the milliseconds and the tokens per second. JSON has no NaN, so a value that is not finite is written as null.
"""


# %%
#| export labs.long_run.log
from nanogpt.labs.long_run.training import Training


def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, and tokens a second."""
    return {"ms": 1000 * seconds, "tokens_per_s": run.config.train.batch_tokens / seconds}


# %%
#| export
def one_step(run: Training) -> dict:
    """Make a step: its line for metrics.jsonl."""
    began = time.perf_counter()
    with run.timed("steps"):
        loss, said, batches = update(run)
    seconds = time.perf_counter() - began
    count(run, said.get("skipped"))
    if said.get("skipped") in ("not finite", "spike"):
        keep_batch(run, batches)
    line = {"step": run.step, "loss": loss} | said | pace(run, seconds)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


# %% tags=["nbval-ignore-output"]
print(one_step(resume(tiny("first"))))

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
#| export labs.long_run.log
import sys


def say(text: str, end: str = "\n") -> None:
    """Print a line; on a terminal in the place of a step's line that does not stay."""
    print(("\r\033[K" if sys.stdout.isatty() else "") + text, end=end, flush=True)


# %% tags=["nbval-ignore-output"]
say(step_line(one_step(run), STEPS))

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
predict("17e.1", f"bad batches, of {BAD}, that are left out at 6 deviations", guess=None)


# %%
def spoilt(run: Training, spoil: list[int]) -> list[dict]:
    """The run's lines; in the steps named it is given random ids."""
    real, g, told = run.stream.next_batch, torch.Generator().manual_seed(0), []

    def garbage() -> tuple[torch.Tensor, ...]:
        return tuple(torch.randint(run.model.config.vocab_size, (2, *real()[0].shape), generator=g))

    for step in range(1, spoil[-1] + 4):
        run.stream.next_batch = garbage if step in spoil else real
        told.append(one_step(run))
    return told


# %% tags=["nbval-ignore-output"]
bad = [WINDOW + 2 * i for i in range(1, BAD + 1)]
half = ["train.micro_batch=2", "train.batch_tokens=256"]
run = resume(tiny("spikes", *half, "train.skip_spikes=6", f"train.max_steps={bad[-1] + 3}"))
told = spoilt(run, bad)
for line in told[bad[0] - 2 : bad[-1] + 1]:
    print(*step_line(line, bad[-1] + 3).split(" | ")[:3], line.get("skipped", ""), sep=" | ")
answer("17e.1", run.skipped["spike"])
show(
    figures.spikes(told, bad, 6),
    alt="Loss and z-scores: equal spikes, but the z-score of each is lower than the last one's.",
)


# %% [markdown]
r"""
Not all of them are left out, and the reason is arithmetic. The window takes in every value before it computes the value's score, also a bad one. (The window of llm.c, from which ours is taken, does the same.) No value among n can be further from their mean than $\sqrt{n-1}$
deviations (Samuelson 1968), which is 11.3 for 128. If k of the values are equal spikes, each of them is $\sqrt{(n-k)/k}$ deviations from the mean: 11.3 for one spike, 7.9 for two, 6.5 for three, and 5.6 for four. The norms above come close to these numbers. So the first spikes hide the
later ones. With a limit of 6, a run can leave out at most three equal spikes in 128 steps. From the fourth on, the model learns the garbage, and its loss on garbage falls. If a run meets more bad batches than that, it has a
problem that skipping does not solve.

The files with the refused batches help to find the problem. We decode the first tokens of one:
"""


# %% tags=["nbval-ignore-output"]
ids = read_shard(sorted((run.folder / "skipped").iterdir())[0])
print(len(ids), "tokens:", run.tokenizer.decode(ids[:12].tolist()).encode("ascii", "replace").decode())
assert len(ids) == run.config.train.batch_tokens, "what is kept is not a batch"


# %% [markdown]
r"""
The text is a sequence of random tokens, so here the cause is plain.

## Evaluating a run without changing it

From time to time we want to validate the run, and to read a sample of its text. We call this a *look*. A look must not change the run. But it can, and no error is raised.

Suppose somebody wants to save time, and validates on a random part of the validation text. `random_part` below does this. It draws the part from PyTorch's global generator. We make eight steps twice: once without a look, and once with this look after the third step. (The cell before `random_part` has the imports of the module for looks.)

*Predict.* Which is the first of the eight losses that differs? (0: none does.)
"""

# %%
predict("17e.2", "first loss that differs, with a look after step 3", guess=None)


# %%
#| export labs.long_run.looks
import math
from collections.abc import Callable

from nanogpt.checkpoint import random_states, set_random_states
from nanogpt.evaluate import evaluate
from nanogpt.files import atomically
from nanogpt.labs.long_run.training import Training
from nanogpt.model import GPT
from nanogpt.sampling import complete
from nanogpt.shards import load_manifest
from nanogpt.trainer import due


# %%
def random_part(run: Training, model: GPT) -> dict:
    """A careless look: validate on 500 tokens from a random place."""
    (tokens,), eot = run.held
    start = int(torch.randint(1000, ()))
    return {"part_loss": evaluate(model, [tokens[start : start + 500]], eot)}


def looked_at(after_third) -> list[float]:
    """The losses of eight steps of a new run; after the third one, after_third(run) is called."""
    run, losses = resume(tiny("looks")), []
    for step in range(1, 9):
        losses.append(one_step(run)["loss"])
        if step == 3:
            after_third(run)
    return losses


# %% tags=["nbval-ignore-output"]
alone = looked_at(lambda run: None)
careless = looked_at(lambda run: random_part(run, run.model))
for name, losses in (("alone", alone), ("careless", careless)):
    print(f"{name:8}", [round(loss, 4) for loss in losses])
answer("17e.2", [x == y for x, y in zip(alone, careless)].index(False) + 1)
assert alone[:3] == careless[:3] and alone[3] != careless[3], "a look after step 3 should show in loss 4"

# %% [markdown]
r"""
From the fourth loss on the run is another one. The look has drawn one number, so dropout gets other numbers from then on. The losses are not worse. But the run depends on how often somebody looked at it, and a second run with other looks is not comparable with it.

So a look follows two rules. First, it puts the states of the random generators back. Second, it uses the plain model and not the compiled one, because `torch.compile` would compile the model again for every new length of text.

`validate` and `write_sample` are two looks. The table `LOOKS` says when each look is due: its keys are names in the configuration's section `eval`, which hold a number of steps. A later chapter can add a row to the table. `due_looks` finds the looks that are due
after a step, and `look` makes them.
"""


# %%
#| export labs.long_run.looks
def validate(run: Training, model: GPT) -> dict:
    """The validation loss, and the floor where the data have one. Notes which step was the best."""
    loss = evaluate(model, *run.held, precision=run.config.train.dtype)
    if loss < run.best.get("val_loss", math.inf):
        run.best = {"step": run.step, "val_loss": loss}
    floor = {key: value for key, value in load_manifest(run.config.data.dir).items() if key == "floor"}
    return {"val_loss": loss} | floor  # for `plot`


def write_sample(run: Training, model: GPT) -> dict:
    """Print a sample and write it to a file. It adds nothing to the step's line."""
    prompt = run.config.eval.prompt
    text = prompt + complete(model, run.tokenizer, prompt, 200)
    say(f"--- step {run.step}: {text}")
    with atomically(run.folder / f"samples/step_{run.step:06d}.txt") as file:
        file.write(text.encode())
    return {}


# %%
#| export labs.long_run.looks
#| blank look: remember the random states, make the looks, and put the states back
LOOKS = {"every": validate, "sample_every": write_sample}  # a key of `eval`, and what is done so often


def due_looks(run: Training) -> list[Callable]:
    """The looks that are due after this step. At the last step all are due that are done at all."""
    last = run.step >= run.config.train.max_steps
    return [each for key, each in LOOKS.items() if due(getattr(run.config.eval, key), run.step, last)]


def look(run: Training, looks: list[Callable]) -> dict:
    """The results of the looks, for the step's line. The random states are put back, so no later step changes."""
    before, found = random_states(run.device), {}
    for each in looks:
        found |= each(run, run.model)
    set_random_states(before, run.device)
    return found


# %% [markdown]
r"""
First we ask which looks are due after step 20 of a run that is validated after every 20 steps, and make them. Then we make the eight steps again. This time the careless look and a validation both go through `look`.
"""

# %%
run = resume(tiny("looks", "eval.every=20"))
run.step = 20
print("due:", *(each.__name__ for each in due_looks(run)))
print({name: round(float(value), 3) for name, value in look(run, due_looks(run)).items()})
careful = looked_at(lambda run: look(run, [random_part, validate]))
assert careful == alone, "the looks have changed the run"

# %% [markdown]
r"""
## Asking a run to stop

There are four ways to ask a run to stop. A cluster sends the signal SIGTERM to the process. A person presses Ctrl-C, which sends the signal SIGINT. A time limit may be in the configuration (`run.minutes`). And if you cannot send a signal to the process, you can create a file named `stop` in the run's folder. In all four cases
the run should finish its step, save, and end. A second signal ends the run at once, without a checkpoint of this step.

By default SIGTERM ends a process in the middle of whatever it does. `asked_to_stop` replaces this handler, and the one of SIGINT, while the run is training, and puts the old ones back afterwards. Our handler only notes the signal's name. After each step the loop asks `reason`, which returns the noted name, or None.
`limit_reached` knows the two other ways. The time limit must leave room for another step, a checkpoint and an evaluation, so `limit_reached` adds up the longest of each kind that was measured so far, and half as much again. (The loop of this sitting measures only its steps. The loop of 17f measures all three.)

We send ourselves a SIGTERM to try it.
"""


# %%
#| export labs.long_run.stopping
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nanogpt.labs.long_run.training import Training


def last_good(training: Training) -> str:
    return f"the last good checkpoint is {training.kept}" if training.kept else "there is no checkpoint yet"


def limit_reached(training: Training, seconds: float) -> str | None:
    """A reason to end without a signal: a file `stop`, which is removed, or no time for another step in run.minutes."""
    minutes, file = training.config.run.minutes, training.folder / "stop"
    if file.exists():
        file.unlink(missing_ok=True)
        return f"the file {file}"
    reserve = 1.5 * sum(training.longest.values())  # a step, a checkpoint, an evaluation
    if minutes and seconds + reserve > 60 * minutes:
        return f"run.minutes={minutes:g}"


# %%
#| export labs.long_run.stopping
@contextmanager
def asked_to_stop(training: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, a file, the time limit."""
    began, noted = time.monotonic(), []
    training.stopped = None  # what ends it before its last step

    def note(number, frame):
        if noted:
            raise KeyboardInterrupt(f"{last_good(training)}, and the same command goes on from it")
        noted.append(signal.Signals(number).name)

    def reason() -> str | None:
        limit = limit_reached(training, time.monotonic() - began)
        return noted[0] if noted else limit

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

## The loop

Now we put the parts together. `fit` makes the run of a configuration, or goes on with it where it was saved (`resume`). In a loop it makes a step, makes the looks that are due, writes the line into the file, and asks whether to stop. At the end it writes a checkpoint with
17b's `save`, and says how to go on. `keep_config` writes the complete configuration into the run's folder, so that the folder alone is enough to go on.

One detail needs care. When a run goes on, `resume` removes the line of the checkpoint's step and all later lines from the file, because after a kill some of these steps are made again (17d). The checkpoint contains the same line (`run.record`). So `fit` begins by writing it again.
"""


# %%
#| export labs.long_run.log
import yaml

from nanogpt.config import config_dict
from nanogpt.files import atomically


def keep_config(training: Training) -> None:
    """Write config.yaml into the run's folder: `train FOLDER` goes on with it."""
    with atomically(training.folder / "config.yaml") as file:
        file.write(yaml.safe_dump(config_dict(training.config), sort_keys=False).encode())


# %%
#| export
def fit(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until it is asked to stop."""
    run, steps = resume(config), config.train.max_steps
    keep_config(run)
    with open(run.folder / "metrics.jsonl", "a") as metrics, asked_to_stop(run) as why:
        if run.record:  # the line of the checkpoint's step
            print(json.dumps(run.record), file=metrics)
        while run.step < steps and not run.stopped:
            run.record = one_step(run)
            run.record |= look(run, due_looks(run))
            print(json.dumps(run.record), file=metrics, flush=True)
            if due(config.run.log_every, run.step) or "val_loss" in run.record:
                say(step_line(run.record, steps))
            run.stopped = why()
    save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)
    if run.step < steps:
        say(f"stopped by {run.stopped} after step {run.step}; to go on: {command}")
    return run


# %% [markdown]
r"""
We want to see a run that is stopped. So we start a second thread, which watches the run's file. As soon as the file has seven lines, the thread sends a SIGTERM.
"""


# %% tags=["nbval-ignore-output"]
def ask_to_stop(run_dir: str, lines: int) -> None:
    while kills.lines_in(Path(run_dir, "metrics.jsonl")) < lines:
        time.sleep(0.001)
    signal.raise_signal(signal.SIGTERM)


config = tiny("stopped", "eval.every=20", "run.log_every=5")
Thread(target=ask_to_stop, args=(config.run.dir, STOP), daemon=True).start()
run = fit(config, "python -m nanogpt train tiny")

# %% [markdown]
r"""
The signal came within a step. This step was finished, its line was written, and the checkpoint has its number.

*Predict.* A script runs `python -m nanogpt train tiny && python -m nanogpt sample --checkpoint runs/tiny`. The shell runs the second command only if the first one ends with exit code 0. Our run has ended without an error. SIGTERM has the number 15. Which exit code should the process have?
"""

# %%
predict("17e.3", "exit code of a run that SIGTERM has stopped", guess=None)


# %%
#| export labs.long_run.stopping
#| blank exit_code: 0 for a finished run, 128 plus the number of the signal that stopped it before its last step, 1 for another stop
def exit_code(training: Training) -> int:
    """For the shell: 0 for a finished run, 128 plus the signal's number for one that a signal stopped, else 1."""
    if training.step >= training.config.train.max_steps:
        return 0
    if training.stopped in ("SIGINT", "SIGTERM"):
        return 128 + signal.Signals[training.stopped]
    return 1


# %%
answer("17e.3", exit_code(run))

# %% [markdown]
r"""
It is 143, which is 128 plus 15. A shell gives the same code to a process that a signal has ended. So the script does not sample from an unfinished run, and a script that trains one seed after the other can stop, too. After Ctrl-C (signal 2) the code is 130. After the file `stop` and the time limit it is 1. So 0 says that the run is finished, and nothing else does.

The same call goes on with the run, and this time nobody stops it:
"""

# %% tags=["nbval-ignore-output"]
run = fit(config, "python -m nanogpt train tiny")

# %%
made = [line["step"] for line in read_metrics(config.run.dir)]
assert made == list(range(1, STEPS + 1)), f"a step is missing: {made}"
print(f"{len(made)} lines; exit code {exit_code(run)}")

# %% [markdown]
r"""
A run that is asked to stop loses nothing. But it writes a checkpoint only at its end. If the power fails in step 59, the run begins again at step 1. 17f repairs this.
"""

# %% [markdown]
r"""
## Appendix: errors, the screen and the files

The functions of this appendix tell the operator about a run, on the screen and in files. None of them changes the training. The loop of 17f will call them.

Two errors end a run until somebody has done something about them: too many losses in a row that are not finite, and a full disk. `naming_last_good` adds to their message the checkpoint from which the run can go on.
"""


# %%
#| export labs.long_run.stopping
import errno

DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


@contextmanager
def naming_last_good(training: Training) -> Iterator[None]:
    """Add the last good checkpoint to the message of an error that ends the run: no finite loss, or a full disk."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(
            f"step {training.step}: {error}; {last_good(training)}; lower optim.lr"
        ) from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(
            f"no room left in {training.folder}; {last_good(training)}; make room and go on"
        ) from None


# %%
run = resume(config)
try:
    with naming_last_good(run):
        raise FloatingPointError("loss or gradient were not finite 10 times in a row")
except FloatingPointError as error:
    print(str(error).replace(str(RUNS), "…"))

# %% [markdown]
r"""
Before the first step, `introduce` describes the run in one line, and `note_start` adds a line to `started.jsonl`: the step, the versions, git's commit and the command. Months later somebody will ask with which version of the code the run was made. At its end a run prints its results with `report`, and how its time was spent:
on steps, checkpoints and evaluation.
"""


# %%
#| export labs.long_run.log
import json
import platform
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch

import nanogpt
from nanogpt.config import Config
from nanogpt.metrics import span
from nanogpt.model import num_params


# %%
#| export labs.long_run.log
def introduce(training: Training) -> None:
    """One line: what is about to run, on what, and where it is kept."""
    c, train = training.config, training.config.train
    tokens = f"{train.max_steps:,} steps of {train.batch_tokens:,} tokens, {train.max_steps * train.batch_tokens:,} in all"
    what = f"{num_params(training.model.config):,} parameters in {train.dtype} on {training.device}"
    began = f"goes on after step {training.step}" if training.step else "a new run"
    say(f"{c.run.dir}: {began}; {what}; {tokens}, from {c.data.dir}")


# %%
#| export labs.long_run.log
def note_start(training: Training, command: str) -> None:
    """One more line in started.jsonl: with which software, and by which command, the run was begun or resumed."""
    git = ["git", "-C", str(Path(nanogpt.__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    git += ["--exclude=*"]  # the commit, no tag; with -dirty where files have been edited since
    commit = None  # where there is no git
    with suppress(OSError):
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    line = {"step": training.step, "time": time.strftime("%Y-%m-%d %H:%M:%S"), "torch": torch.__version__}
    line |= {"python": platform.python_version(), "commit": commit, "command": command}
    with open(training.folder / "started.jsonl", "a", encoding="utf-8") as file:
        print(json.dumps(line), file=file)


# %%
#| export labs.long_run.log
def report(training: Training) -> None:
    """Print the run's results, and how its time was spent."""
    total = sum(training.seconds.values())
    spent = ", ".join(f"{what} {s:.1f} s ({s / total:.1%})" for what, s in training.seconds.items())
    skipped = ", ".join(f"{n} {why}" for why, n in training.skipped.items()) or "none"
    print(f"{training.step} steps, {spent}; skipped: {skipped}")
    if training.best:
        print(f"best val loss {training.best['val_loss']:.6f} at step {training.best['step']}")
    place = training.folder / "best" if training.best else training.folder
    print(f"python -m nanogpt sample --checkpoint {shlex.quote(str(place))}")


# %% tags=["nbval-ignore-output"]
introduce(run)
note_start(run, "python -m nanogpt train tiny")
print("started.jsonl:", *json.loads((run.folder / "started.jsonl").read_text()))
report(run)

# %% [markdown]
r"""
Each step's line goes into `metrics.jsonl`, at once and unbuffered, so that a kill loses no line that was written. The same line goes to the screen. It shows the tokens per second of this one step, because a moving mean would hide a slow-down. On a
terminal every step is shown, each in the place of the one before. In a log file only each `run.log_every`-th step is shown. TensorBoard and wandb get the lines too if the configuration asks for it; only then are they imported.

`writers` returns a function for each place that gets the line. Here there are two, for the screen and for the file.
"""


# %%
#| export labs.long_run.log
def numbers(line: dict) -> dict:
    """What can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


def tensorboard(folder: Path, step: int) -> Callable[[dict], object]:
    """Writes lines for TensorBoard, which forgets what it had from `step` on."""
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(folder / "tensorboard", purge_step=step)

    def write(line: dict) -> None:
        for name, value in numbers(line).items():
            board.add_scalar(name, value, line["step"])
        board.flush()

    return write


# %%
#| export labs.long_run.log
def wandb(config: Config) -> Callable[[dict], object]:
    """Sends lines to wandb, which goes on with the run that was begun in this folder."""
    import wandb

    folder = Path(config.run.dir)
    file = folder / "wandb-id"  # not the folder's name: two runs may have the same
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    options = {"id": file.read_text(), "name": folder.resolve().name, "resume": "allow"}
    wandb.init(project="nanogpt", dir=config.run.dir, config=config_dict(config), **options)
    return lambda line: wandb.log(numbers(line), step=line["step"])


# %%
#| export labs.long_run.log
def writers(config: Config, metrics, step: int) -> Iterator[Callable[[dict], object]]:
    """What is called with each step's line, from `step` on: for the screen, metrics.jsonl, TensorBoard, wandb."""
    options, steps, began = config.run, config.train.max_steps, time.monotonic()

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        done, left = line["step"] - step, steps - line["step"]
        stays = not left or line["step"] % options.log_every == 0 or "val_loss" in line or "skipped" in line
        text = step_line(line, steps)
        if done and left:
            text += f" | {span(left * (time.monotonic() - began) / done)} left"
        if stays or sys.stdout.isatty():
            say(text, end="\n" if stays else "")

    def append(line: dict) -> None:
        metrics.write(json.dumps(line).encode() + b"\n")  # unbuffered: what is written survives the process

    yield from (show, append)
    if options.tensorboard:
        yield tensorboard(Path(options.dir), step)
    if options.wandb:
        yield wandb(config)


# %%
print(numbers({"step": 3, "loss": 1.5, "norm": None, "skipped": "spike"}))
print([each.__name__ for each in writers(config, None, 0)])

# %% [markdown]
r"""
## Appendix: the command `train`

A run has about fifty keys, and nobody knows them by heart. Each is a field of a dataclass in chapter 17c, with a comment behind it that says what it means. So the source itself can be the list: `key_lines` reads the comments, and `--help` prints them.
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
The command reads its options, makes the configuration (`config_of`), and calls `fit`. At the end it raises `SystemExit` with the run's exit code, unless the run is finished.
"""


# %%
#| export
import argparse
import shlex

from nanogpt.config import from_depth
from nanogpt.labs.plan.dryrun import dry_run

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
def config_of(args: argparse.Namespace) -> Config:
    """The run that the options ask for; of a run's folder, the one that was begun there."""
    file, place = args.config, []
    if Path(args.config, "config.yaml").is_file():
        file, place = Path(args.config, "config.yaml"), [f"run.dir={args.config}"]
    dial = []
    if args.depth is not None:  # a width of its own may not suit the file's heads
        others = [override for override in args.overrides if not override.startswith("model.n_")]
        dial = from_depth(args.depth, load_config(file, others).train.batch_tokens)
    return load_config(file, [*place, *dial, *args.overrides])


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt train`, its options parsed."""
    config = config_of(args)
    if args.dry_run:
        return dry_run(config)
    depth = [] if args.depth is None else ["--depth", str(args.depth)]
    done = fit(config, f"python -m nanogpt train {shlex.join([args.config, *args.overrides, *depth])}")
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
2. Train `tiny` with `train.skip_spikes=3`. Decode the files in `skipped/`. Check: are these batches unlike others, or is it chance? Of 1,600 normal
   deviates, how many exceed 3?
3. Remove `set_random_states` from `look`. Check with `looked_at`: with `random_part` the losses differ, and with `validate` alone they do not. Why?
4. Give `tiny` the key `run.minutes=0.05`. Check: after which step does the run end, and how many seconds of the three are left?

## Further reading

- Chowdhery et al. 2022, *PaLM*, §5.1: loss spikes in a large run, and batches that were skipped.
- Samuelson 1968, *How Deviant Can You Be?*, JASA 63: no value of n is further than $\sqrt{n-1}$ deviations from their mean.
- llm.c, `outlier_detector.h`: z-scores and skipped updates.
- Micikevicius et al. 2018, *Mixed Precision Training*, §3.2: why a step that overflows is no error.
- POSIX.1-2017, Shell Command Language, §2.8.2: exit status, and what is above 128.
"""
