# %% [markdown]
r"""
# 17e · A long run: judged, looked at, ended

Nobody watches a run at three in the morning. A batch of garbage may arrive, a loss may become NaN, somebody may need the machine back in ten minutes, an evaluation may run out of memory. In each case the run must act as its operator
would. This sitting builds a loop that does. It contains chapter 17's loop, checkpoints that forget nothing (17b), and a run that comes from a file (17c, 17d).

```
batch ─> loss and norm ─> judged ── usual ────> update ────────┬─> due? ─> checkpoint ─> evaluation, samples ─> the step's line ─> next
                             └──── unusual ──> kept, counted ──┘
                                        kill -9, at any place: the same command goes on, to the same bits
```

Three questions decide how we build it. How can the run recognise an unusual loss, if nobody tells it which losses are usual? How can we evaluate a run without changing it? And how often should it be
saved?

The sitting is long. The sections about speed, the screen and the files are called appendices, and you may skip them.
"""

# %%
#| default_exp run.trainer
#| doc run.compare: Where two runs part; the command `compare`.
#| doc run.log: The line of a step: on the screen, in metrics.jsonl, TensorBoard and wandb; and what a run came to.
#| doc run.looks: What is measured and written on the way, which no later step notices.
#| doc run.stopping: What asks a run to end, and what it says when it ends for good.
#| doc run.trainer: The trainer: a run from a configuration that survives kill -9, bit for bit; the command `train`.
import contextlib
import csv
import io
import shutil

from course import kills
from course.figures import long_run as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.run.metrics import WINDOW, read_metrics
from nanogpt.text.shards import read_shard

# %%
STEPS, EVERY, KILLS = 60, 10, 3  # of the small run; from checkpoint to checkpoint; how often it is killed
BAD, FAILS = 6, 24  # batches of garbage; hours from one failure of the machine to the next
assert BAD > 0 < FAILS, f"BAD={BAD} and FAILS={FAILS} must be above 0"
HALF = STEPS // 2 // EVERY * EVERY
assert HALF, f"there is no checkpoint before the middle: STEPS={STEPS} must be at least twice EVERY={EVERY}"
print(f"{STEPS} steps, with a checkpoint after every {EVERY}")


# %% [markdown]
r"""
## A run to try it on

All experiments of this sitting are short runs of the ready configuration `tiny`, on a small corpus, with dropout. Each run has a folder of its own. The function `tiny` makes their configurations: it loads the file and
changes some of its keys. (The two cells before it are the imports of the trainer's module.)
"""


# %%
#| export run.trainer
import argparse
import math
import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nanogpt.corpora.chunks import alone_in
from nanogpt.gpt import optim
from nanogpt.gpt.train import train_step
from nanogpt.run.assemble import resume


# %%
#| export run.trainer
from nanogpt.run.checkpoint import prune, save
from nanogpt.run.config import Config, from_depth, load_config
from nanogpt.run.dryrun import dry_run
from nanogpt.run.simple import due
from nanogpt.run.training import Training
from nanogpt.speed.roofline import synchronize
from nanogpt.text.shards import write_shard


# %%
def tiny(name: str, *changes: str) -> Config:
    """The ready configuration, shorter, with dropout, in a folder of its own."""
    here = [f"data.dir={RUNS}/stories", f"run.dir={RUNS}/{name}", "run.device=cpu"]
    often = [f"run.checkpoint_every={EVERY}", "run.keep=99", f"eval.every={2 * EVERY}", "eval.tokens=2000"]
    steps = [f"train.max_steps={STEPS}", f"optim.warmup={STEPS // 6}", f"run.log_every={STEPS}"]
    return load_config("tiny", [*here, *often, *steps, "model.dropout=0.1", *changes])


threads = torch.get_num_threads()
torch.set_num_threads(1)  # sums in another order have other bits, and a forked child can have no more
shutil.rmtree(RUNS := Path("../data/built/long_run"), ignore_errors=True)
_ = ensure_corpus(RUNS / "stories", n=1000)
print(len(resume(tiny("first")).tokenizer.tokens), "tokens; the run is at its beginning")


# %% [markdown]
r"""
## A step, and whether it counts

Chapter 07's `train_step` makes the update. Since chapter 10b it first asks a function `accept` whether this loss and this gradient should be used. So far the answer was always yes, unless they were not finite. Now there are
three reasons to leave an update out.

- *Not finite.* The loss or the gradient is NaN or infinite. The batch is kept, so that somebody can look at it, and after `train.bad_steps` such steps in a row the run ends.
- *A spike.* The loss or the norm is, for example, more than 6 standard deviations above the mean of the last 128 steps. Such a step is left out if the configuration sets `train.skip_spikes`. Its batch is kept, too.
- *An overflow of float16.* This is no error. The loss scaler is looking for its scale (chapter 10b).

If a step is left out, the weights do not change. Should the learning rate change nevertheless, as it does from step to step? Look at the log of a Megatron-LM run in float16. Its warm-up adds 1e-5 to the rate with each update:
"""


# %%
log = csv.DictReader(Path("../data/reference/megatron_124m.csv").read_text().splitlines())
skipped = 0
for line in [dict(line) for line in log][:3]:
    skipped += int(line["skipped"])
    updates = int(line["iteration"]) - skipped
    print(
        f"iteration {line['iteration']}: {skipped} skipped so far, {updates} updates, lr {float(line['learning_rate']):.0e}"
    )
    assert abs(float(line["learning_rate"]) - 1e-5 * updates) < 1e-9, "the rate does not follow the updates"

# %% [markdown]
r"""
Megatron-LM counts updates and not iterations. If it counted iterations, the rate would rise while the model learns nothing. So our rate is a function of the number of updates, too. `learning_rate` chooses one of chapter 15's three schedules, as the configuration says. We print
the rate of the schedule wsd (warm up, stay, decay) at three places.
"""


# %%
#| export run.trainer
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
falls = tiny("falls", "optim.schedule=wsd")
print("wsd:", *(f"update {n}: {learning_rate(falls, n):.1e}" for n in (0, STEPS // 2, STEPS - 1)), sep="  ")

# %% [markdown]
r"""
`judged` decides whether an update is made. It compares the loss and the norm with the last 128 losses and norms (`Window`, chapter 17d). An absolute limit would not work: a norm of 2 is usual in one run and a catastrophe in another. `judged` returns a part of the
step's line: the norm, the two z-scores, and the word "skipped" with a reason if the update must not be made.

We ask it about a usual loss and about a NaN.
"""


# %%
#| export run.trainer
#| blank judged: not finite first; then how unusual loss and norm are, and the limit if there is one
def judged(run: Training, loss: float, norm: float) -> dict:
    """The norm and both z-scores, for the step's line; with "skipped" if the update must not be made."""
    if not math.isfinite(loss + norm):
        return {"norm": norm, "skipped": "not finite"}
    z = {"loss_z": run.windows["loss"].z(loss), "norm_z": run.windows["norm"].z(norm)}
    limit = run.config.train.skip_spikes
    spike = limit and max(value or 0 for value in z.values()) > limit
    return {"norm": norm} | z | ({"skipped": "spike"} if spike else {})


# %%
run = resume(tiny("first"))
print({name: z if z is None else round(z, 2) for name, z in judged(run, 7.0, 2.0).items()})
print(judged(run, math.nan, 2.0))

# %% [markdown]
r"""
The scores of the first losses are None, because the window is not full yet. NaN is always refused.

Now we write the step itself, in three parts. `update` sets the rate, takes the micro-batches of one update, and calls `train_step`. Its `accept` asks `judged`, and notes the result in the dictionary `said`. If the loss scaler has found an overflow, `train_step` does not
call `accept` at all, and `update` notes that.

`count` counts the step, and the update if there was one. `keep_batch` writes the batch of a refused step into a file. After the two cells we count two steps by hand, one of them skipped.
"""


# %%
#| export run.trainer
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
#| export run.trainer
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
## Appendix: how fast a step is

You may skip to "A step and its line". The line should also say how fast the run is: milliseconds, tokens per second, and the MFU of chapter 09. The MFU needs the device's peak, which we know for GPUs whose data sheet chapter 09 has. For other devices it is left out. The imports of the
module `run.log` come first. Below the functions we ask for the pace of a step that took 0.1 seconds.
"""


# %%
#| export run.log
import json
import platform
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
import yaml

import nanogpt
from nanogpt.gpt.model import num_params
from nanogpt.run.training import Training
from nanogpt.run.config import Config, config_dict
from nanogpt.run.metrics import span, step_line
from nanogpt.speed.roofline import peak_of
from nanogpt.speed.work import mfu, step_flops
from nanogpt.text.files import atomically


# %%
#| export run.log
def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s by the GPU's data sheet, where there is one."""
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    rate = sheet and {"float32": sheet.float32, "tf32": sheet.tf32}.get(precision, sheet.half)
    return rate and 1e12 * rate


# %%
#| export run.log
def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, tokens a second, and MFU where the device's peak is known."""
    tokens, T = run.config.train.batch_tokens, run.config.model.block_size
    said = {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        said["mfu"] = mfu(step_flops(run.model.config, tokens // T, T), seconds, peak)
    return said


# %%
print({name: round(value) for name, value in pace(run, 0.1).items()})


# %% [markdown]
r"""
## A step and its line

Now `one_step` can make a step and its line. It measures the time, calls `update`, counts, and keeps the batch if it was refused. `pace` adds the milliseconds and the tokens per second. JSON has no NaN, so a value that is not finite is written as null.

The line becomes text in llm.c's form. `step_line` of chapter 17 grows by the numbers that a long run has more of: z-scores, a loss that is
not a number, a step that was left out. And `say` prints a text. On a terminal each step's line is overwritten by the next one, so `say` first clears the line that is there. We make a first step and print its line.
"""


# %%
#| export run.trainer
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


# %%
#| export run.metrics
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
#| export run.log
def say(text: str, end: str = "\n") -> None:
    """Print a line; on a terminal in the place of a step's line that does not stay."""
    print(("\r\033[K" if sys.stdout.isatty() else "") + text, end=end, flush=True)


# %% tags=["nbval-ignore-output"]
say(step_line(one_step(run), STEPS))

# %%
grown("step_line", "17e")

# %% [markdown]
r"""
*See.* Does it find bad batches? We train on stories, and after 128 steps we put in six batches of random ids, one in every second step. A person would see each of them in the curve. `skip_spikes` is 6. `spoilt` makes the steps: it replaces the stream's
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
Not all of them are left out, and the reason is arithmetic. Like llm.c's, our window takes in every value before it computes the value's score (chapter 17d), also a bad one. No value among n can be further from their mean than $\sqrt{n-1}$
deviations (Samuelson 1968), which is 11.3 for 128. If k of the values are equal spikes, each of them is $\sqrt{(n-k)/k}$ deviations from the mean: 11.3 for one spike, 7.9 for two, 6.5 for three, and 5.6 for four. So the first spikes hide the
later ones, and with a limit of 6 a run can leave out at most three equal spikes in 128 steps. From the fourth on, the model learns the garbage, and its loss on garbage falls. If a run meets more bad batches than that, it has a
problem that skipping does not solve. The files with the refused batches help to find it. We decode the first tokens of one:
"""


# %% tags=["nbval-ignore-output"]
ids = read_shard(sorted((run.folder / "skipped").iterdir())[0])
print(len(ids), "tokens:", run.tokenizer.decode(ids[:12].tolist()).encode("ascii", "replace").decode())
assert len(ids) == run.config.train.batch_tokens, "what is kept is not a batch"


# %% [markdown]
r"""
The text is a sequence of random tokens, so here the cause is plain.

## Evaluating a run without changing it

After every so many steps the run is validated and writes a sample. Each such look must follow two rules. First, it puts the random state back. Otherwise dropout would continue with other numbers, and the run would be another one. Second, it uses the plain model and not
the compiled one, because `torch.compile` would compile the model again for every new length of text.

`validate` and `write_sample` are two looks. The table `LOOKS` says when each look is due: its keys are names in the configuration's section `eval`, which hold a number of steps. A later chapter can add a row to the table. `due_looks` finds the looks that are due
after a step, and `look` makes them.
"""


# %%
#| export run.looks
import math
from collections.abc import Callable

from nanogpt.evals.losses import evaluate
from nanogpt.gpt.model import GPT
from nanogpt.gpt.sample import complete
from nanogpt.run.checkpoint import random_states, set_random_states
from nanogpt.run.simple import due
from nanogpt.run.training import Training
from nanogpt.text.files import atomically
from nanogpt.text.shards import load_manifest


# %%
#| export run.looks
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
#| export run.looks
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
We pretend that a run is at step 20, ask which looks are due, and make them. The generator's state must be the same before and after.
"""

# %%
run = resume(tiny("first"))
run.step = 2 * EVERY
print("due:", *(each.__name__ for each in due_looks(run)))
torch.manual_seed(0)
before = torch.get_rng_state()
print({name: round(float(value), 3) for name, value in look(run, due_looks(run)).items()})
assert torch.equal(before, torch.get_rng_state()), "the look has drawn from the run's generator"

# %% [markdown]
r"""
When both are due, the checkpoint is written *before* the looks. If the evaluation then runs out of memory, the steps since the last checkpoint are not lost.

`keep_run` writes a checkpoint with chapter 17b's `save`. First it flushes the file of lines to the disk, so that the file is never behind the checkpoint. `tidy` deletes old checkpoints but keeps the best. `finish_step` does all that is due after a step. The call below asks
the run to stop after its first step, so a checkpoint is due at once.
"""


# %%
#| export run.trainer
def keep_run(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept != folder:
        os.fsync(metrics.fileno())
        save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)
        run.kept = folder


def tidy(run: Training) -> None:
    """Remove old checkpoints, but for the newest ones and the best."""
    prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


# %%
#| export run.trainer
def finish_step(run: Training, metrics) -> None:
    """Do everything that is due after a step. The checkpoint comes first: an evaluation may run out of memory."""
    last = run.step >= run.config.train.max_steps
    looks = [] if run.stopped else due_looks(run)
    often = due(run.config.run.checkpoint_every, run.step) and not run.bad
    if run.stopped or last or looks or often:
        with run.timed("checkpoints"):
            keep_run(run, metrics)
    if looks:
        with run.timed("evaluation"):
            run.record |= look(run, looks)
    tidy(run)


# %%
run = resume(tiny("one-step"))
run.record, run.stopped = one_step(run), "somebody who asked"
run.folder.mkdir(exist_ok=True)
with open(run.folder / "metrics.jsonl", "ab") as metrics:
    finish_step(run, metrics)
print(*sorted(path.name for path in run.folder.iterdir()))

# %% [markdown]
r"""
## Ending a run

There are four ways to ask a run to stop. A cluster sends the signal SIGTERM, and a person presses Ctrl-C, which sends SIGINT. A scheduler's time limit is in the configuration (`run.minutes`). And if you cannot send a signal to the machine, you create a file named `stop` in the run's folder. In all four cases
the run finishes its step, saves, and prints the command with which it goes on. After a signal the exit code is 128 plus the signal's number, so 130 or 143 (chapter 17d). Therefore a loop over seeds in a shell stops at it, and
`train … && eval …` does not evaluate an unfinished run. A second Ctrl-C ends the run at once.

`asked_to_stop` replaces the handlers of the two signals while the run is training, and puts the old ones back afterwards. It gives the loop a function that returns the reason to stop, or None. The time limit must leave room for another step, a checkpoint and an evaluation, so the function
looks at the longest of each so far. We send ourselves a SIGTERM to try it.
"""


# %%
#| export run.stopping
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nanogpt.corpora.prepare import DISK_FULL
from nanogpt.run.training import Training


def last_good(training: Training) -> str:
    return f"the last good checkpoint is {training.kept}" if training.kept else "there is no checkpoint yet"


# %%
#| export run.stopping
@contextmanager
def asked_to_stop(training: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, a file, the time limit."""
    began, minutes, noted, file = time.monotonic(), training.config.run.minutes, [], training.folder / "stop"
    training.stopped = None  # what ends it before its last step

    def note(number, frame):
        if noted:
            raise KeyboardInterrupt(f"{last_good(training)}, and the same command goes on from it")
        noted.append(signal.Signals(number).name)

    def reason() -> str | None:
        if file.exists():
            file.unlink(missing_ok=True)
            noted.append(f"the file {file}")
        reserve = 1.5 * sum(training.longest.values())  # a step, a checkpoint, an evaluation
        if time.monotonic() - began + reserve > 60 * (minutes or math.inf):
            noted.append(f"run.minutes={minutes:g}")
        return noted[0] if noted else None

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
"""

# %% [markdown]
r"""
## Appendix: the screen, the files, and errors

The functions of this section print and write what a person wants to know about a run. None of them changes the training, so you may skip to "The loop".

Two errors end a run for good: too many losses in a row that are not finite, and a full disk. `naming_last_good` adds to their message the checkpoint from which the run can go on.
"""


# %%
#| export run.stopping
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
try:
    with naming_last_good(run):
        raise FloatingPointError("loss or gradient were not finite 10 times in a row")
except FloatingPointError as error:
    print(str(error).replace(str(RUNS), "…"))

# %% [markdown]
r"""
Before the first step, `introduce` describes the run in one line, and `note_start` adds a line to `started.jsonl`: the step, the versions, git's commit and the command. Months later somebody will ask with which version of the code the
run was made. `keep_config` writes the complete configuration into the folder, so that the folder is enough to go on: `python -m nanogpt train runs/tiny`. If the schedule has become longer, `say_rate` warns that the rate rises.
"""


# %%
#| export run.log
def introduce(training: Training) -> None:
    """One line: what is about to run, on what, and where it is kept."""
    c, train = training.config, training.config.train
    tokens = f"{train.max_steps:,} steps of {train.batch_tokens:,} tokens, {train.max_steps * train.batch_tokens:,} in all"
    what = f"{num_params(training.model.config):,} parameters in {train.dtype} on {training.device}"
    say(f"{c.run.dir}: {what}; {tokens}, from {c.data.dir}")


# %%
#| export run.log
def keep_config(training: Training) -> None:
    """Write config.yaml into the run's folder: `train FOLDER` goes on with it."""
    with atomically(training.folder / "config.yaml") as file:
        file.write(yaml.safe_dump(config_dict(training.config), sort_keys=False).encode())


# %%
#| export run.log
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
#| export run.trainer
def say_rate(run: Training) -> None:
    """Say that the learning rate rises: behind the warm-up no schedule does, so the run has another one than before."""
    before, now = run.optimizer.param_groups[0]["lr"], learning_rate(run.config, run.updates)
    if run.updates > run.config.optim.warmup and now > 1.01 * before:
        say(
            f"the learning rate was {before:.2e} and is {now:.2e} from here on: the schedule has become longer"
        )


# %% tags=["nbval-ignore-output"]
introduce(run)
note_start(run, "python -m nanogpt train tiny")
keep_config(run)
print("started.jsonl:", *json.loads((run.folder / "started.jsonl").read_text()))

# %% [markdown]
r"""
Each step's line goes into `metrics.jsonl`, at once and unbuffered, so that a kill loses no line that was written. The same line goes to the screen. It shows the tokens per second of this one step, because a moving mean would hide a slow-down. On a
terminal every step is shown, each in the place of the one before. In a log file only each `run.log_every`-th step is shown. (TensorBoard and wandb get the lines too if the configuration asks for it. That code is in a later appendix.)
"""


# %%
#| export run.log
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


# %% [markdown]
r"""
At its end a run prints its results, and how its time was spent: on training, checkpoints and evaluation.
"""


# %%
#| export run.log
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
report(run)

# %% [markdown]
r"""
## The loop

Now we call everything in its order. `make_steps` is the loop: make a step, ask whether to stop, do what is due, and hand the step's line to the writers of the screen and of the file.

One detail needs care. A step's evaluation comes after its checkpoint, and the step's line comes after its evaluation. What if the run is killed between the checkpoint and the line? For this case the checkpoint contains the unfinished line (`run.record`). When the run goes on, it begins with this line:
it makes the evaluation again and writes the line. So no line is missing, and none is there twice.

`begin` does everything that comes before the first step: it notes the start, keeps the configuration, prints the header, and makes the writers. `say_end` prints how the run ended. `fit` is the call that starts a run or goes on with it. `alone_in` (chapter 16b) makes sure that no other process trains in the same folder,
and `naming_last_good` completes the message of an error that ends the run.
"""


# %%
#| export run.trainer
#| blank make_steps: a step unless its line is already there; ask why; finish the step; hand the line to the writers
def make_steps(run: Training, metrics, why: Callable, write: list[Callable]) -> None:
    """Make steps up to the last one, or until why() gives a reason to stop. FloatingPointError if too many are not finite."""
    steps, bad = run.config.train.max_steps, run.config.train.bad_steps
    while (run.step < steps and not run.stopped) or run.record:
        run.record = run.record or one_step(run)
        run.stopped = why()
        finish_step(run, metrics)
        for each in write:
            each(run.record)
        run.record = None
        if run.bad >= bad:
            raise FloatingPointError(f"loss or gradient were not finite {run.bad} times in a row")


def begin(run: Training, metrics, command: str) -> list[Callable]:
    """Print and write down what is about to run; return the functions that take each step's line."""
    note_start(run, command)
    keep_config(run)
    introduce(run)
    say_rate(run)
    return list(writers(run.config, metrics, run.step))


# %%
#| export run.trainer
def say_end(run: Training, command: str) -> None:
    """Why it stopped and how to go on, or what it came to."""
    if run.step < run.config.train.max_steps:
        say(f"stopped by {run.stopped} after step {run.step}; to go on: {command}")
    else:
        report(run)


def fit(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until it is asked to stop."""
    with alone_in(Path(config.run.dir), "trainer", "choose another run.dir"):
        run = resume(config)
        path = run.folder / "metrics.jsonl"
        with open(path, "ab", 0) as metrics, asked_to_stop(run) as why, naming_last_good(run):
            make_steps(run, metrics, why, begin(run, metrics, command))
        say_end(run, command)
    return run


# %% [markdown]
r"""
## A run that is killed and goes on

We train the same run twice. The first one is never stopped.
"""


# %% tags=["nbval-ignore-output"]
unbroken = fit(tiny("whole"))


# %% [markdown]
r"""
The second one trains in a child process, which is killed with `kill -9` when its file has a certain number of lines (`kills.at_line`, as in chapter 17b). This happens three times. Then the last call trains to the end.

*Predict.* The run has a checkpoint after every tenth step. How many of its steps are made twice?
"""

# %%
predict("17e.2", f"steps made twice after {KILLS} kills", guess=None)


# %% tags=["nbval-ignore-output"]
moments = [min(STEPS - 1, STEPS * (i + 1) // (KILLS + 1) + 3) for i in range(KILLS)]
log = RUNS / "killed/metrics.jsonl"
deaths = [kills.at_line(lambda: fit(tiny("killed")), log, step) for step in moments if kills.POSSIBLE]
twice = sum(death % EVERY for death in deaths)
print(f"killed after steps {deaths}: {twice} of {STEPS} steps are made twice")
answer("17e.2", twice)
again = fit(tiny("killed"))
a, b = read_metrics(RUNS / "whole"), read_metrics(RUNS / "killed")
show(
    figures.killed_run([line["loss"] for line in a], [line["loss"] for line in b], deaths, EVERY),
    alt="Loss over steps: the points of the killed run lie on the line of the one that was not.",
)


# %% [markdown]
r"""
The points lie on the line. But curves that look alike prove little, after a resume, on a new machine, or after a change of the code. So we compare numbers. `verdict` compares one column of two runs in the steps that both have. It names the first step that differs and the largest difference.
The command `python -m nanogpt compare RUN RUN` in the appendix prints its sentences.
"""


# %%
#| export run.compare
import argparse
import math

from nanogpt.run.metrics import column, read_metrics


def verdict(a: list[dict], b: list[dict], name: str) -> tuple[float, str]:
    """The largest difference of two runs in one column, and a sentence that says where they part.

    A finite number against none is infinitely far. ValueError if no step is common.
    """
    steps = sorted({line["step"] for line in a} & {line["step"] for line in b})
    x, y = (dict(zip(*column(lines, name))) for lines in (a, b))
    apart = {s: abs(x.get(s, math.inf) - y.get(s, math.inf)) for s in steps if x.get(s) != y.get(s)}
    if not steps:
        raise ValueError("the two runs have no step in common")
    if not apart:
        return 0.0, f"{name}: equal to the last bit in all {len(steps)} common steps"
    first, most = min(apart), max(apart, key=apart.get)
    where = f"first differs at step {first}, by {apart[first]:.3g}; most at step {most}, by {apart[most]:.3g}"
    return apart[most], f"{name}: {where}; in {len(apart)} of {len(steps)} steps"


# %%
print(verdict(a, b, "loss")[1])
for name in ("loss", "norm", "lr", "val_loss"):
    assert not verdict(a, b, name)[0], f"after being killed the run has another {name}"
assert all(map(torch.equal, unbroken.model.parameters(), again.model.parameters())), "the weights differ"

# %% [markdown]
r"""
All four columns are equal to the last bit, and so are the weights.

*What if one part is forgotten?* Chapter 17b asked which loss is the first to differ. Now we ask how large the damage is. We resume the run from the checkpoint in its middle, reset one thing to its value in a new run, and compare the next ten losses with those of the run that was never stopped.

*Predict.* If AdamW's two means are empty, by how much are the next ten losses too high, on average?
"""

# %%
predict("17e.3", "10 losses after AdamW's means are lost: too high by", guess=None, unit="nats")


# %%
shutil.copytree(unbroken.folder / f"step_{HALF:06d}", RUNS / f"half/step_{HALF:06d}", dirs_exist_ok=True)
forget = {
    "nothing": lambda run: None,
    "the place in the data": lambda run: setattr(run.stream, "position", 0),
    "dropout's generator": lambda run: torch.manual_seed(0),
    "AdamW's means": lambda run: run.optimizer.state.clear(),
    "the count of updates": lambda run: setattr(run, "updates", 0),
}
should, above = [line["loss"] for line in a[HALF : HALF + 10]], {}
for what, of in forget.items():
    with contextlib.redirect_stdout(None):
        half = resume(tiny("half"))
    of(half)
    above[what] = sum(one_step(half)["loss"] - loss for loss in should) / len(should)
    print(f"{what:22} forgotten: {above[what]:+.3f} nats over the next {len(should)} steps")
answer("17e.3", round(above["AdamW's means"], 3))
assert above["nothing"] == 0, "what is loaded is not what was saved"
torch.set_num_threads(threads)

# %% [markdown]
r"""
No error is raised, and no single loss looks wrong. A forgotten place in the data can even look like progress, since batches that were seen before have a lower loss. Only the comparison with a run
that was not stopped shows the mistake. This is why the tests make this comparison. In each of four precisions they kill a run five times: of the twenty kills, ten are within a step or a look, and ten at a change of the disk.

## Longer than planned

Suppose that the run has ended, the loss is still falling, and we can pay for as many steps again. May we simply set `train.max_steps` to twice the number? We print the learning rates of a short run and of one that is twice as long, for two schedules.
"""

# %%
updates = (STEPS // 3, STEPS // 2, STEPS - 1)
for schedule in ("cosine", "wsd"):
    print(schedule, "at updates", *updates)
    for steps in (STEPS, 2 * STEPS):
        planned = tiny("plan", f"optim.schedule={schedule}", f"train.max_steps={steps}")
        print(f"  {steps:3} steps:", *(f"{learning_rate(planned, n):.1e}" for n in updates))

# %% [markdown]
r"""
With the cosine, the two runs have different rates from the end of the warm-up on. So a run of 60 steps is never the first half of a run of 120. If we extend it, the rate jumps from a low value to a high one, and the trainer prints a warning (`say_rate`). With wsd (chapter 15: warm up, stay, decay) both runs have the same rate until the shorter one begins
to decay, after 70% of its steps. So keep a checkpoint from the constant part. To extend the run, go back to this checkpoint: move the later checkpoints away and start again with more steps. No step of the constant part is wasted, and the decay happens only once, at the end.

## How often should a run be saved?

A checkpoint takes c seconds, and we write one every t seconds. So checkpoints take the share $c/t$ of the time. The machine fails every M seconds on average, and each failure costs the steps since the last checkpoint, which took t/2 seconds on average. This is a share of $t/2M$. The sum
$c/t + t/2M$ is smallest where the two parts are equal: $t=\sqrt{2cM}$ (Young 1974).

This run has measured c. M depends on the machine. Llama 3 was trained on 16,384 GPUs. They were
interrupted unexpectedly 419 times in 54 days (Grattafiori et al. 2024, §3.3.4), which is every 3.1 hours. A single machine may run for months.

*Predict.* We saved after every tenth step. If the machine fails once in 24 hours, how many steps should there be between two checkpoints of *this* run?
"""

# %%
predict("17e.4", f"best steps between checkpoints, a failure every {FAILS} h", guess=None)


# %% tags=["nbval-ignore-output"]
c = unbroken.seconds["checkpoints"] / len(list(unbroken.folder.glob("step_*")))
step = unbroken.seconds["steps"] / STEPS
best = math.sqrt(2 * c * 3600 * FAILS)
answer("17e.4", round(best / step))
print(f"a checkpoint takes {1000 * c:.0f} ms, a step {1000 * step:.0f} ms")
print(
    f"every {EVERY} steps: {c / (EVERY * step):.1%} on top of the steps; best: every {best / step:,.0f} steps"
)
show(
    figures.young(c, step, EVERY, {f"{FAILS} h": FAILS, "3.1 h (16,384 GPUs)": 54 * 24 / 419}),
    alt="Share of time lost over the steps between checkpoints: falls as they get fewer, then rises again.",
)


# %% [markdown]
r"""
Every tenth step is far too often. We saved so often only because a kill in a short run should find a new checkpoint each time. But the valley in the figure is wide. At half or twice the best interval, the lost time is only a quarter larger than at best.

What does a checkpoint spend its c seconds on? One thinks of the disk first. But there are five parts. The tensors are copied, so that the next step cannot change them. The copies are joined into one block of bytes. The block is written to a file. It is read again for its hash. And at last the file is flushed to the disk. We measure each part for 80 MB, which is the size of AdamW's averages for ten million
parameters:
"""


# %%
from nanogpt.run.checkpoint import pack, serialize, to_disk
from nanogpt.text.shards import file_sha256


def took(call: Callable, *args) -> tuple:
    """The result of a call, and its milliseconds."""
    began = time.perf_counter()
    result = call(*args)
    return result, 1000 * (time.perf_counter() - began)


# %% tags=["nbval-ignore-output"]
tensors, block = {}, RUNS / "block"
_, copied = took(pack, {"moments": torch.zeros(20_000_000)}, "state", tensors)
data, joined = took(serialize, tensors)
_, written = took(block.write_bytes, data)
_, hashed = took(file_sha256, block)
_, flushed = took(to_disk, block)
print(f"copied {copied:.0f} ms, joined {joined:.0f} ms, written {written:.0f} ms", end=", ")
print(f"hashed {hashed:.0f} ms, on the disk {flushed:.0f} ms")
block.unlink()

# %% [markdown]
r"""
Each part grows with the model. A checkpoint of 124 million parameters has 1.5 GB, which go through all five of them. In runs on many machines, people only wait for the copies. The run goes on, and the other parts happen in the background.
"""

# %% [markdown]
r"""
## Appendix: TensorBoard and wandb

Both are imported only if the configuration asks for them.
"""


# %%
#| export run.log
def numbers(line: dict) -> dict:
    """What can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


# %%
#| export run.log
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
#| export run.log
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
print(numbers({"step": 3, "loss": 1.5, "norm": None, "skipped": "spike"}))

# %% [markdown]
r"""
## Appendix: the commands `compare` and `train`
"""


# %%
#| export run.compare
HELP = """Where do two runs part? The steps that both have are compared, number by number.

  python -m nanogpt compare runs/a runs/b                 are they equal to the last bit?
  python -m nanogpt compare runs/a runs/b --bound 1e-3    do their losses differ by at most 0.001 nats?

Exit code 0: within the bound; 2: beyond it, and one line says by how much and where.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt compare`."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs", nargs=2, metavar="RUN", help="a folder, its metrics.jsonl, or a main.log of llm.c"
    )
    parser.add_argument("--bound", type=float, default=0.0, help="how far losses may differ, in nats (0)")
    return parser


# %%
#| export run.compare
def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt compare`, its options parsed. ValueError if the losses differ by more than the bound."""
    if not args.bound >= 0:
        raise ValueError(f"--bound {args.bound} is a difference, at least 0")
    a, b = map(read_metrics, args.runs)
    (worst, loss), *others = (verdict(a, b, name) for name in ("loss", "norm", "lr"))
    if worst > args.bound:
        raise ValueError(f"{loss}: beyond the bound of {args.bound:g}")
    print(loss, *(sentence for _, sentence in others), f"within the bound of {args.bound:g}", sep="\n")


# %%
with contextlib.redirect_stdout(io.StringIO()) as said:
    run(parser().parse_args([str(RUNS / "whole"), str(RUNS / "killed")]))
print(said.getvalue().splitlines()[0])


# %%
#| export run.trainer
HELP = """Start a run, or go on with it where its newest checkpoint is: the same command does both.

  python -m nanogpt train tiny
  python -m nanogpt train shakespeare data.source=mine.txt data.dir=data/built/mine
  python -m nanogpt train gpt2-124M train.micro_batch=8 --dry-run
  python -m nanogpt train runs/tiny                              go on with the run in this folder

Ctrl-C, SIGTERM, a file named `stop` in run.dir and run.minutes end it after the step, with a checkpoint. After
Ctrl-C the exit code is 130, after SIGTERM 143.
"""


# %% [markdown]
r"""
A run has about fifty keys, and nobody knows them by heart. Each is a field of a dataclass in chapter 17c, with a comment behind it that says what it means. So the source itself can be the list: `key_lines` reads the comments, and `--help` prints them.
"""


# %%
#| export run.configfile
import inspect
import json
import re
from dataclasses import fields, is_dataclass


# %%
#| export run.configfile
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


# %%
#| export run.trainer
def parser() -> argparse.ArgumentParser:
    """The command's options."""
    every_key = "\n".join(["keys and their defaults:", *key_lines(Config)])
    looks = {"description": HELP, "epilog": every_key}
    parser = argparse.ArgumentParser(**looks, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a YAML file, the name of one in configs/, or the folder of a run")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="all keys are below")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would take, and end")
    parser.add_argument(
        "--depth", type=int, metavar="N", help="layers; width, heads, lr and max_steps follow"
    )
    parser.parse_args = parser.parse_intermixed_args  # an override may stand after an option
    return parser


# %%
#| export run.trainer
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
    if done.step < config.train.max_steps and done.stopped in ("SIGINT", "SIGTERM"):
        raise SystemExit(128 + signal.Signals[done.stopped])


# %% tags=["nbval-ignore-output"]
run(parser().parse_args(["tiny", f"data.dir={RUNS}/stories", "--dry-run"]))

# %% [markdown]
r"""
## Checkpoint

Four commands belong together now: `train` makes a run, `plot` and `compare` read its lines, and `sample` takes one of its checkpoints.
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

1. Set `EVERY = 1` and `KILLS = 10`: most kills then fall into the writing of a checkpoint. Check: `verdict` still says "equal to the last bit".
   What does it cost? The last line of the run says it.
2. Let `Window.z` judge before it takes a value in, and take in none that was skipped. Check with `spoilt`: how many of six are left out now? What happens to a run
   whose loss really has moved, after a change of the data, say?
3. Train `tiny` with `train.skip_spikes=3`. Decode the files in `skipped/`. Check: are these batches unlike others, or is it chance? Of 1,600 normal
   deviates, how many exceed 3?
4. How long does a checkpoint of GPT-2 small take? Predict it from 12 bytes a parameter and your disk's rate, then train two steps
   with `--depth 12` and small batches. Check: the share that the last line gives for checkpoints; and Young's interval for it.
5. Let `look` sample with dropout on and without giving the random state back. Check: which test fails, and what does `python -m nanogpt compare` say of the two runs?
6. Store the weights of a checkpoint as bfloat16. Check with `compare`: at which step do the runs part, and by how much?

## Further reading

- Young 1974, *A First Order Approximation to the Optimum Checkpoint Interval*, CACM 17(9).
- Grattafiori et al. 2024, *The Llama 3 Herd of Models*, §3.3.4: what interrupted 54 days on 16,384 GPUs.
- Chowdhery et al. 2022, *PaLM*, §5.1: loss spikes in a large run, and batches that were skipped.
- Samuelson 1968, *How Deviant Can You Be?*, JASA 63: no value of n is further than $\sqrt{n-1}$ deviations from their mean.
- llm.c, `outlier_detector.h` and `train_gpt2.cu`: z-scores, skipped updates, and a resume that is checked to be deterministic.
- Micikevicius et al. 2018, *Mixed Precision Training*, §3.2: why a step that overflows is no error.
"""
