# %% [markdown]
r"""
# 17f · A killed run goes on

A run can be asked to stop, and then it ends with a checkpoint (17e). But a power cut does not ask. Linux does not ask either when the memory is full: it kills a process. The process ends at once, in the middle of a step or of a file.

The trainer of 17e survives that at any moment. The same command goes on, and the run ends with the same weights, to the last bit, as a run that was never killed. It depends on three things: a checkpoint that is complete or absent (17b), a function that goes on from
it (17d), and the order in which the loop does things. In this sitting we look at this order, and then we kill a run.

```
step ─> checkpoint, if due ─> evaluation, samples ─> the step's line ─> next step
             kill -9 at any place: the same command goes on, to the same bits
```

Then we ask three questions about such runs. How large is the damage if a checkpoint forgets something? May a run become longer than planned? And how often should it be saved?
"""

# %%
#| default_exp labs.long_run.compare
#| doc labs.long_run.compare: Where two runs part; the command `compare`.
#| doc labs.long_run.tensorboard: The lines of a run for TensorBoard: the key run.tensorboard.
#| doc labs.long_run.wandb: The lines of a run for Weights & Biases: the key run.wandb.
import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from course.figures import kills
from course.figures import long_run as figures
from course.notebook import answer, as_module, checkpoint, predict, predictions, show
from nanogpt.checkpoint import checkpoints
from nanogpt.config import Config, load_config
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.trainer import (
    Training,
    build_run,
    due_looks,
    fit,
    learning_rate,
    look,
    one_step,
    resume,
    say_rate,
    train_config,
)

# %%
STEPS, EVERY, KILLS = 60, 10, 3  # of a run; from checkpoint to checkpoint; how often it is killed
FAILS = 24  # hours from one failure of the machine to the next
HALF = STEPS // 2 // EVERY * EVERY
assert HALF, f"there is no checkpoint before the middle: STEPS={STEPS} must be at least twice EVERY={EVERY}"
assert FAILS > 0, f"FAILS={FAILS} must be above 0"
print(f"{STEPS} steps, with a checkpoint after every {EVERY}")


# %% [markdown]
r"""
## What a kill leaves of a run

All experiments of this sitting are short runs of the ready configuration `tiny`, with dropout, each in a folder of its own. `tiny` makes their configurations.

We begin with a loop that is simpler than the trainer's: make a step, make the looks that are due (17e: evaluation and samples), write the step's line into the file. `kills.at_line` runs it in a child process, and sends the child a `kill -9` as soon as its file has 14 lines. (Windows cannot fork a process, so there the notebook skips the kills.)
"""


# %%
def tiny(name: str, *changes: str) -> Config:
    """The ready configuration, shorter, with dropout, in a folder of its own."""
    here = [f"data.dir={RUNS}/stories", f"run.dir={RUNS}/{name}", "run.device=cpu"]
    often = [f"run.checkpoint_every={EVERY}", "run.keep=99", f"eval.every={2 * EVERY}", "eval.tokens=2000"]
    steps = [f"train.max_steps={STEPS}", f"optim.warmup={STEPS // 6}", f"run.log_every={STEPS}"]
    return load_config("tiny", [*here, *often, *steps, "model.dropout=0.1", *changes])


torch.set_num_threads(1)  # sums in another order have other bits, and a forked child can have no more
shutil.rmtree(RUNS := Path("../data/built/killed_run"), ignore_errors=True)
_ = ensure_corpus(RUNS / "stories", n=1000)


# %%
def simple_loop(run: Training) -> None:
    """A step, the looks that are due, the line: until the last step."""
    run.folder.mkdir(parents=True, exist_ok=True)
    # unbuffered: what is written survives the process
    with open(run.folder / "metrics.jsonl", "ab", 0) as metrics:
        while run.step < STEPS:
            line = one_step(run)
            line |= look(run, due_looks(run))
            metrics.write(json.dumps(line).encode() + b"\n")


if kills.POSSIBLE:
    _ = kills.at_line(lambda: simple_loop(build_run(tiny("simple"))), RUNS / "simple/metrics.jsonl", 14)
print(f"a new start begins at step {resume(build_run(tiny('simple'))).step}")

# %% [markdown]
r"""
The run begins again at step 0. Fourteen lines were in the file, but there was no checkpoint to go on from.

## A checkpoint, before the looks

The trainer writes a checkpoint now and then. `run.checkpoint_every` says after how many steps. There is a question of order: sometimes both a checkpoint and an evaluation are due after the same step. Which should come first?

An evaluation may fail, for example because it needs more memory than there is. If it comes first, all steps since the last checkpoint are lost. So in `finish_step` of 17e the checkpoint comes first.

We try it with a look that fails. `run.looks` holds the further looks of a run (17e), and we add one that is due after 20 steps.
"""


# %%
def out_of_memory(run: Training) -> dict:
    """A look that fails."""
    raise MemoryError("the evaluation needs more memory than there is")


run = build_run(tiny("failed"))
run.looks.append((20, out_of_memory))
with contextlib.redirect_stdout(io.StringIO()):
    try:
        fit(run)
    except MemoryError as caught:
        error = caught
print(f"step {run.step}: {error}")
print(
    f"{kills.lines_in(run.folder / 'metrics.jsonl')} lines;", *(path.name for path in checkpoints(run.folder))
)

# %% [markdown]
r"""
The evaluation after step 20 failed, and the checkpoint of step 20 is there. No step is lost.

## The line that is missing

But one line is lost. The checkpoint says that 20 steps were made, and the file has 19 lines. If the run went on with step 21, line 20 would be missing for ever, and so would the first validation loss. Should the loop write the line before the checkpoint? Then it would be there, but without the validation loss, which is not known yet.

The remedy is to save the unfinished line as well. It is in `run.record`, which is one of the fields that a checkpoint keeps (17d). When the run goes on, `resume` deletes from the file the line of the checkpoint's step and all later lines, because the later steps are made again (17d). It puts the line of the checkpoint's own step into `run.record`: with its validation loss if the file had it, and otherwise unfinished, as here. So `fit` does not begin with a step: it first makes the evaluation, and writes the line.

We go on with the run whose evaluation failed, and let it stop after step 22. A reason to stop is a function in `run.reasons`. (`fit` calls `resume` itself, so its line is printed twice. We call it before only to see `run.record`.)
"""


# %% tags=["nbval-ignore-output"]
run = resume(build_run(tiny("failed")))
print("unfinished: the line of step", run.record["step"])
run.reasons.append(lambda: "we have seen enough" if run.step == 22 else None)
_ = fit(run)

# %%
from nanogpt.metrics import read_metrics

lines = read_metrics(run.folder)
assert [line["step"] for line in lines] == list(range(1, 23)), "a line is missing"
print(f"{len(lines)} lines; validated in", *(f"step {line['step']}" for line in lines if "val_loss" in line))

# %% [markdown]
r"""
All 22 lines are there, and line 20 has its validation loss.

## The same run, killed three times

We train the same run twice. The first one is never stopped.
"""


# %% tags=["nbval-ignore-output"]
unbroken = train_config(tiny("whole"))


# %% [markdown]
r"""
The second one trains in a child process, which is killed as soon as its file has 18 lines, then 33, then 48. Then the last call trains to the end.

*Predict.* The run has a checkpoint after every tenth step. How many of its steps are made twice?
"""

# %%
predict("17f.1", f"steps made twice after {KILLS} kills", guess=None)


# %% tags=["nbval-ignore-output"]
moments = [min(STEPS - 1, STEPS * (i + 1) // (KILLS + 1) + 3) for i in range(KILLS)]
log = RUNS / "killed/metrics.jsonl"
deaths = [
    kills.at_line(lambda: train_config(tiny("killed")), log, step) for step in moments if kills.POSSIBLE
]
again = train_config(tiny("killed"))
# each start has left a line (17e)
starts = [json.loads(text)["step"] for text in (log.parent / "started.jsonl").read_text().splitlines()]
twice = sum(deaths) - sum(starts)
print(f"killed after steps {deaths}; went on after {starts[1:]}: {twice} of {STEPS} steps were made twice")
answer("17f.1", twice)
a, b = read_metrics(RUNS / "whole"), read_metrics(RUNS / "killed")
show(
    figures.killed_run([line["loss"] for line in a], [line["loss"] for line in b], deaths, EVERY),
    alt="Loss over steps: the points of the killed run lie on the line of the one that was not.",
)


# %% [markdown]
r"""
The killed run was at step 18, 33 and 48 when it died, and its file of starts says that it went on after steps 10, 30 and 40. So 8 + 3 + 8 = 19 of its 60 steps were made twice, and no other price was paid. The points lie on the line, and the last loss is that of 17e's run, 4.0099. But curves that look alike prove little. So we compare numbers. `verdict` compares one column of two runs in the steps that both have. It names the first step that differs and the largest difference. You can use it after a resume, on a new machine, or after a change of the code:
the command `python -m nanogpt compare RUN RUN` in the appendix prints its sentences.
"""


# %%
#| export
import argparse
import math

from nanogpt.labs.long_run.plot import read_lines
from nanogpt.labs.long_run.plot import column
from nanogpt.metrics import read_metrics


# %%
#| export
#| blank verdict: the values of each run by step; in which common steps they differ, and by how much
def verdict(a: list[dict], b: list[dict], name: str) -> tuple[float, str]:
    """The largest difference of two runs in one column, and a sentence that says where they part.

    A finite number (see column) against none is infinitely far. ValueError if no step is common. The sentences:
    loss: equal to the last bit in all 40 common steps
    loss: first differs at step 7, by 0.000244; most at step 30, by 0.0156; in 2 of 50 steps
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

The kills of this experiment came just after a line was written. The tests of this sitting choose harder moments: in each of four precisions they kill a run five times, before the next update, within an evaluation, before a rename, before a flush. Of the twenty kills, ten are within a step or a look, and ten at a change of the disk.

**On a GPU** there is one more condition: the same step must give the same bits twice. A kernel may add its numbers in another order each time, and then the last bits differ. We made runs of 30 steps of a model of 2 layers with rows of 1,024 tokens (PyTorch 2.11), and compared two that nobody killed:

| card | format | flash attention | compiled | two runs |
|---|---|---|---|---|
| H100 | float32 | no | no | equal |
| H100 | bf16 | no, and yes | no | equal |
| H100 | bf16-masters, fp16 | yes | no | equal |
| H100 | TF32 | yes | no | differ from step 1 on |
| H100 | bf16 | yes | yes | differ from step 2 on |
| H200 | TF32 | no | no | equal |
| H200 | TF32, float32 | yes | no | differ |
| H200 | bf16 | no | yes | differ |
| H200, deterministic | TF32 | yes | no | equal |
| H200, deterministic | bf16 | yes | yes | equal |

Where two runs on the H100 were equal, a killed one was equal, too. So killing a run is never the cause. The causes are flash attention in 32 bits, for which PyTorch takes another kernel than in 16 bits (chapter 12b), and compiling, in whose code for the gradient of the token table many threads add to one row in the order in which they arrive (`tl.atomic_add`).

"Deterministic" means the environment variable `CUBLAS_WORKSPACE_CONFIG=:4096:8`, set before PyTorch is loaded, and `torch.use_deterministic_algorithms(True)`. Our commands use neither. So on a GPU, do not expect two equal runs of `gpt2-124M` (bf16, compiled) or of `tiny` (float32, flash attention). And equal runs in a test are no promise: PyTorch says of each of its fused attention kernels that it "defaults to a non-deterministic algorithm". To know it of your own run, start it twice and ask `compare`.

## What if one part is forgotten?

17b asked which loss is the first to differ if a checkpoint forgets something. Now we ask how large the damage is. We resume the run from the checkpoint in its middle, reset one thing to its value in a new run, and compare the next ten losses with those of the run that was never stopped.

*Predict.* If AdamW's two averages are empty, by how much are the next ten losses too high, on average?
"""

# %%
predict("17f.2", "10 losses after AdamW's averages are lost: too high by", guess=None, unit="nats")


# %%
shutil.copytree(unbroken.folder / f"step_{HALF:06d}", RUNS / f"half/step_{HALF:06d}")
forget = {
    "nothing": lambda run: None,
    "the place in the data": lambda run: setattr(run.stream, "position", 0),
    "dropout's generator": lambda run: torch.manual_seed(0),
    "AdamW's averages": lambda run: run.optimizer.state.clear(),
    "the count of updates": lambda run: setattr(run, "updates", 0),
}
should, above = [line["loss"] for line in a[HALF : HALF + 10]], {}
print("forgotten               mean   of these ten differences")
for what, of in forget.items():
    with contextlib.redirect_stdout(None):
        half = resume(build_run(tiny("half")))
    of(half)
    apart = [one_step(half)["loss"] - loss for loss in should]
    above[what] = sum(apart) / len(apart)
    print(f"{what:22} {above[what]:+.3f} ", *(f"{gap:+.2f}" for gap in apart))
answer("17f.2", round(above["AdamW's averages"], 3))
assert above["nothing"] == 0, "what is loaded is not what was saved"

# %% [markdown]
r"""
No error is raised, and nobody who sees only the new losses would notice. The smallest part of the checkpoint costs most: without the count of updates the warm-up begins again, which costs 0.110 nats, more than four times as much as AdamW's averages, and the gap is still open after ten steps. For the averages the second loss after the break is the worst one, 0.14 nats too high, since the update before it had no averages yet; a few steps later new ones have been collected, and the gap is closed. A forgotten place in the data even looks like
progress: 0.054 nats less. The reason should be that these batches were seen before. Or are batches 1 to 10 simply easier than 31 to 40? As a control we train a second model for as many steps on other rows, and measure both models on both groups of batches.
"""


# %%
def loss_on(run: Training, first: int) -> float:
    """The mean loss on ten batches from a row on, without dropout; the run's place stays where it was."""
    place, run.stream.position = run.stream.position, first
    batches = [run.stream.next_batch() for _ in range(20)]  # micro-batches of two rows
    run.stream.position = place
    with torch.no_grad():
        losses = [run.model.eval()(x, y)[1].item() for x, y in batches]
    run.model.train()
    return sum(losses) / len(losses)


with contextlib.redirect_stdout(None):
    seen = resume(build_run(tiny("half")))
stranger = build_run(tiny("stranger"))
stranger.stream.position = 400  # rows: batches 101 and later
for _ in range(HALF):
    one_step(stranger)
for name, of in (("has seen 1 to 10", seen), ("has seen neither", stranger)):
    print(f"{name}: batches 1 to 10 {loss_on(of, 0):.3f}, batches 31 to 40 {loss_on(of, 4 * HALF):.3f}")

# %% [markdown]
r"""
The model that has seen batches 1 to 10 finds them easier by 0.060 nats, the stranger by 0.015. So a quarter of the difference is luck, and the rest is memory. Only the comparison with a run
that was not stopped shows such a mistake. For this reason the tests make this comparison.

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
With the cosine, the two runs have different rates from the end of the warm-up on. So a run of 60 steps is never the first half of a run of 120. With wsd (chapter 15: warm up, stay, decay) both runs have the same rate until the shorter one begins to decay, after 70% of its steps.

Our run used wsd. We go on with copies of it, and ask for twice the steps: first from its last checkpoint, and then from the one in its middle. `say_rate` (17e) prints a line if the rate rises:
"""

# %%
for last in (STEPS, HALF):
    shutil.copytree(unbroken.folder / f"step_{last:06d}", RUNS / f"longer_{last}/step_{last:06d}")
    longer = resume(build_run(tiny(f"longer_{last}", f"train.max_steps={2 * STEPS}")))
    say_rate(longer)
    print(f"next step: {longer.step + 1}, with rate {learning_rate(longer.config, longer.updates):.1e}\n")

# %% [markdown]
r"""
From the end, the rate jumps from a low value to a high one. No schedule has such a jump, so the result is a run that no plan describes. From the middle nothing jumps: the first 30 steps are those of a run of 120 steps. So a run that must be the one that you would have planned goes back to a checkpoint from the constant part, best to the last one before the decay.
This has a price: the steps of the first decay are thrown away. Which way gives the lower loss? We go on to step 120 from the end, with 60 further steps, and from the last checkpoint before the decay, first with as many further steps and then up to step 120, too.
"""


# %%
def go_on(last: int, steps: int) -> float:
    """The validation loss after so many steps, of a copy of our run that goes on from one of its checkpoints."""
    name = f"from_{last}_to_{steps}"
    shutil.copytree(unbroken.folder / f"step_{last:06d}", RUNS / f"{name}/step_{last:06d}")
    with contextlib.redirect_stdout(io.StringIO()):
        longer = train_config(tiny(name, f"train.max_steps={steps}", f"eval.every={steps}"))
    return read_metrics(longer.folder)[-1]["val_loss"]


flat = int(0.7 * STEPS) // EVERY * EVERY  # the last checkpoint before the decay
for last, steps in ((STEPS, 2 * STEPS), (flat, flat + STEPS), (flat, 2 * STEPS)):
    print(f"from step {last} to {steps:3}, {steps - last} further steps: {go_on(last, steps):.3f}")

# %% [markdown]
r"""
For the same 60 further steps going on from the end is better, 2.685 against 2.863: the work of the first decay is not lost, although the rate jumps. With 20 steps more, the run that went back ends at 2.565. It is the run of 120 steps that one would have planned, and it is the best of the three. So what you save depends on what you want: a lower loss soon, or a run that somebody else can repeat. (One model, one seed and short runs: a question to ask of your own.)

## How often should a run be saved?

A checkpoint takes c seconds, and we write one every t seconds. So checkpoints take the share $c/t$ of the time. The machine fails every M seconds on average, and each failure costs the steps since the last checkpoint, which took t/2 seconds on average. This is a share of $t/2M$. The sum
$c/t + t/2M$ is smallest where the two parts are equal: $t=\sqrt{2cM}$ (Young 1974).

Our run has measured c: its output says what 60 steps and six checkpoints took. M depends on the machine. Llama 3 was trained on 16,384 GPUs. They were
interrupted unexpectedly 419 times in 54 days (Grattafiori et al. 2024, §3.3.4), which is every 3.1 hours. A single machine may run for months.

*Predict.* We saved after every tenth step. If the machine fails once in 24 hours, how many steps should there be between two checkpoints of *this* run?
"""

# %%
predict("17f.3", f"best steps between checkpoints, a failure every {FAILS} h", guess=None)


# %% tags=["nbval-ignore-output"]
c = unbroken.seconds["checkpoints"] / len(checkpoints(unbroken.folder))
step = unbroken.seconds["steps"] / STEPS
best = math.sqrt(2 * c * 3600 * FAILS)
answer("17f.3", round(best / step))
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
Each curve of the figure is for a machine that fails with another frequency, and the point on it is the best interval. The dashed line is our run. The best interval is many times as long as our whole run. So a run this short needs no checkpoint before its end, and every tenth step is far too often: on the page you read it adds more than a tenth to the time of the steps. We saved so often only to have a new checkpoint before each of our kills. But the valley is wide. At half or twice the best interval, the lost time is only a quarter larger than at best.

What does a checkpoint spend its c seconds on? One thinks of the disk first. But there are five parts. The tensors of a GPU are copied to the CPU; here they are there already, so this part costs nothing. The tensors are joined into one block of bytes. The block is written to a file. It is read again for its hash. And at last the file is flushed to the disk. We measure each part for 80 MB, which is the size of AdamW's averages for ten million
parameters:
"""


# %%
import time

from nanogpt.checkpoint import pack, serialize, to_disk
from nanogpt.shards import file_sha256


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
Here the disk itself, the flush, is not the largest part: most of the time goes into writing the block and joining it. (Another disk may differ.) Each part grows with the model. A checkpoint of 124 million parameters has 1.5 GB, which go through all five of them. In runs on many machines, people only wait for the copy to the CPU (`torch.distributed.checkpoint.async_save`). The run goes on, and the other parts happen in the background.
"""

# %% [markdown]
r"""
## Appendix: how near a step is to the peak

On a GPU whose data sheet is in chapter 09's lab `sheets`, the line should also show the MFU, the share of the device's peak that a step uses. For other devices it is left out. So `pace` grows.
"""


# %%
#| export trainer
from importlib import import_module

import torch

from nanogpt.model import mfu, step_flops


# %%
#| export trainer
#| grows pace
#| blank pace: as before; where peak_flops knows the peak, chapter 09's mfu goes into the line
def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s by the GPU's data sheet, where there is one."""
    if device.type != "cuda":
        return None
    sheet = import_module("nanogpt.labs.roofline.sheets").peak_of(torch.cuda.get_device_name(device))
    rate = sheet and {"float32": sheet.float32, "tf32": sheet.tf32}.get(precision, sheet.half)
    return rate and 1e12 * rate


def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: `ms`, `tokens_per_s`, and `mfu` where the device's peak is known."""
    tokens, T = run.config.train.batch_tokens, run.config.model.block_size
    rates = {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        rates["mfu"] = mfu(step_flops(run.model.config, tokens // T, T), seconds, peak)
    return rates


# %%
print({name: round(value) for name, value in pace(run, 0.1).items()})

# %% [markdown]
r"""
## Appendix: other logs

TensorBoard and Weights & Biases draw curves while a run is going on. Each is a lab with a key of its own (`run.tensorboard`, `run.wandb`), and is imported only if the key is set. A lab opens its log when the first line comes. TensorBoard then forgets what it had from this step on, because these steps are made again after a kill.
"""


# %%
#| export labs.long_run.tensorboard
def numbers(line: dict) -> dict:
    """What can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


def attach(run) -> None:
    """Write each line for TensorBoard, too."""
    board = None

    def write(line: dict) -> None:
        nonlocal board
        if board is None:
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(run.folder / "tensorboard", purge_step=line["step"])
        for name, value in numbers(line).items():
            board.add_scalar(name, value, line["step"])
        board.flush()

    run.writers.append(write)


# %%
as_module("labs.long_run.tensorboard")
print(numbers({"step": 3, "loss": 1.5, "norm": None, "skipped": "spike"}))


# %%
#| export labs.long_run.wandb
import secrets

from nanogpt.config import config_dict
from nanogpt.labs.long_run.tensorboard import numbers


def attach(run) -> None:
    """Send each line to wandb, too, which goes on with the page that was begun in this folder."""
    page = None

    def write(line: dict) -> None:
        nonlocal page
        if page is None:
            page = open_page(run)
        page.log(numbers(line), step=line["step"])

    run.writers.append(write)


def open_page(run):
    """The run's page on wandb; another one of this process is finished first."""
    import wandb

    file = run.folder / "wandb-id"  # not the folder's name: two runs may have the same
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    options = {"id": file.read_text(), "name": run.folder.resolve().name, "resume": "allow"}
    options |= {"dir": run.config.run.dir, "config": config_dict(run.config)}
    return wandb.init(project="nanogpt", reinit="finish_previous", **options)


# %% [markdown]
r"""
## Appendix: the command `compare`
"""


# %%
#| export
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
#| export
def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt compare`, its options parsed. ValueError if the losses differ by more than the bound."""
    if not args.bound >= 0:
        raise ValueError(f"--bound {args.bound} is a difference, at least 0")
    a, b = map(read_lines, args.runs)
    (worst, loss), *others = (verdict(a, b, name) for name in ("loss", "norm", "lr"))
    if worst > args.bound:
        raise ValueError(f"{loss}: beyond the bound of {args.bound:g}")
    print(loss, *(sentence for _, sentence in others), f"within the bound of {args.bound:g}", sep="\n")


# %%
with contextlib.redirect_stdout(io.StringIO()) as output:
    run(parser().parse_args([str(RUNS / "whole"), str(RUNS / "killed")]))
print(output.getvalue().splitlines()[0])

# %% [markdown]
r"""
## Checkpoint

Four commands belong together now: `train` makes a run, `plot` and `compare` read its lines, and `sample` takes one of its checkpoints.
"""


# %% tags=["nbval-ignore-output"]
predictions("17f")


# %%
checkpoint("17f")


# %% [markdown]
r"""
## Exercises

`course exercises release 17` writes the exercises of all sittings of chapter 17 as a notebook to `released/`; `course check 17` runs their visible checks. To explore here:

1. Set `EVERY = 1` and `KILLS = 10`. Check: `verdict` still says "equal to the last bit". What do so many checkpoints cost? See the line `60 steps, …` at the end of the run.
2. In `finish_step`, make the looks before the checkpoint. Check: at which step does the run go on after `out_of_memory`?
3. How long does a checkpoint of GPT-2 small take? Predict it from 12 bytes a parameter and your disk's rate, then train two steps
   with `--depth 12` and small batches. Check: the share of checkpoints in the line that begins with the number of steps; and Young's interval for it.
4. Let `look` sample with dropout on and without giving the random state back. Check: which test fails, and what does `python -m nanogpt compare` say of the two runs?
5. Store the weights of a checkpoint as bfloat16. Check with `compare`: at which step do the runs part, and by how much?

## Further reading

- Young 1974, [*A First Order Approximation to the Optimum Checkpoint Interval*](https://doi.org/10.1145/361147.361115), CACM 17(9).
- Grattafiori et al. 2024, [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), §3.3.4: what interrupted 54 days on 16,384 GPUs.
- PyTorch, [*Fault-tolerant Distributed Training with torchrun*](https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html): torchrun starts the processes again when one has died, which our trainer leaves to you. The snapshot of its program, `multigpu_torchrun.py`, holds the model and the number of the epoch. It needs no optimizer's state (plain SGD has none), and a run that goes on makes the saved epoch a second time. Which lines of the tables here and in 17b are these?
- Hu et al. 2024, [*MiniCPM*](https://arxiv.org/abs/2404.06395), §4: the schedule wsd, and runs that are extended from its constant part.
- [llm.c](https://github.com/karpathy/llm.c), `test_gpt2.cu`, its last part: a state is saved and loaded, and ten steps must give the same losses.
"""
