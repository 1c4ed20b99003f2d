# %% [markdown]
r"""
# 17 · A trainer that you can hold in your head

Chapter 07's loop trains for a minute, and you watch it. A run of an hour is different. You want to know when it will be done. You want to
see the curve, and to read what the model writes on the way. And when the laptop's lid closes after fifty minutes, you do not want to start again.

This sitting adds these things to the loop, one at a time: a line for each step with the time that is left, a log file and a plot, a look at text that the
model was not trained on, and a file from which the run goes on. There is no configuration file, no second process and no
command yet. The result is short enough to know by heart, and it is a real trainer: it finishes what it began.

The next sittings make it fit for days. 17b asks what our simple file forgets and what a power cut leaves of it. 17c puts a run's numbers
into a file, and 17d lets the trainer read them there. 17e and 17f look after a run at night. Each of them replaces some of the functions of this sitting, and the trainer stays one trainer.
"""

# %%
#| default_exp trainer
#| doc trainer: The trainer: a loop, a log, looks at the model, and checkpoints from which a run goes on.
#| doc metrics: What a run writes: a step's line as text, and the lines read back.
import shutil

import numpy as np

from course.figures import simple as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device
from nanogpt.model import GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.shards import open_shards, read_shard
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.tokenizer import BPETokenizer

# %% [markdown]
r"""
All sizes are set here. The model is a small one, so that a run takes seconds and you can play with the trainer.
"""

# %%
STEPS, EVERY, STOP = 240, 60, 150  # of the run; from one look to the next; where it is interrupted
B, T, LR, SEED = 4, 128, 3e-3, 0  # rows of a batch, their tokens, the highest learning rate
if not EVERY <= STOP < STEPS:
    raise ValueError(
        f"EVERY={EVERY} ≤ STOP={STOP} < STEPS={STEPS}: the run must be saved before it is stopped"
    )
device, corpus = pick_device(), "../data/built/stories"
floor = ensure_corpus(corpus)["floor"]
tokenizer = BPETokenizer.load(f"{corpus}/tokenizer.json")
paths = {split: open_shards(corpus, split) for split in ("train", "val")}
val = np.concatenate([read_shard(path) for path in paths["val"]])[:10_000]
shape = GPTConfig(block_size=T, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_embd=64)
print(f"{STEPS} steps of {B} rows of {T} tokens; {len(val):,} tokens to validate on")

# %% [markdown]
r"""
## The loop, once more

This is chapter 07's loop with chapter 15's optimizer. `train_step` takes a batch, computes the gradient and updates the weights. Nothing is saved, and only every tenth
loss is printed. (The first of the two cells imports what the functions of this chapter need. Those functions go into the module `nanogpt/trainer.py`.)
"""

# %%
#| export
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.model import GPT, num_params
from nanogpt.optim import cosine
from nanogpt.sampling import complete
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train_step

# %%
model = GPT(shape, torch.Generator().manual_seed(SEED)).to(device)
optimizer = make_optimizer(model, LR)
stream = DocumentStream(paths["train"], B, T, seed=SEED, device=device)
for step in range(60):
    loss = train_step(model, optimizer, [stream.next_batch()])
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
r"""
In fifty steps the loss falls from 6.9, which is a guess among all tokens, to 2.6. This cell contains all the parts of a run: a model, an optimizer, a stream of batches, and the number of steps that have been made.
We put these four into one object, together with the settings that stay the same during the run. Then a function can take the complete run as its argument.
"""


# %%
#| export
@dataclass
class Training:
    """A run in memory. Steps change its model, optimizer, stream and step; the other fields are its settings."""

    folder: Path  # where its files are
    model: GPT
    optimizer: torch.optim.Optimizer
    stream: DocumentStream
    tokenizer: BPETokenizer
    held: tuple  # arrays of validation tokens, and the id between their documents
    max_steps: int
    lr: float  # the highest
    every: int  # steps from one look to the next
    step: int = 0  # how many have been made


# %% [markdown]
r"""
We shall need several runs that begin equally. `new_run` makes one. It seeds both generators, the one that draws the weights and PyTorch's global one, and gives the run a folder of its own.
The folders of earlier tries are deleted first.
"""


# %%
RUNS = Path("../data/built/simple")
shutil.rmtree(RUNS, ignore_errors=True)


def new_run(name: str, dropout: float = 0.0) -> Training:
    """A run at its beginning, in a folder of its own."""
    (RUNS / name).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    made = GPT(shape, torch.Generator().manual_seed(SEED)).to(device)
    rows = DocumentStream(paths["train"], B, T, seed=SEED, device=device)
    parts = made, make_optimizer(made, LR), rows, tokenizer, ([val], tokenizer.eot)
    return Training(RUNS / name, *parts, STEPS, LR, EVERY)


run = new_run("first")
print(f"{run.folder.name}: step {run.step} of {run.max_steps}, {num_params(run.model.config):,} parameters")

# %% [markdown]
r"""
## One step, one line

One step sets the learning rate (chapter 15's cosine, without a warm-up), takes a batch and makes the update, with the gradient clipped to a length of 1 (chapter 15). It returns a *line*: a dictionary that describes this
step. For now it holds the step's number (`step`), its loss (`loss`) and its learning rate (`lr`). Later parts of the trainer add more. We make three steps and print their lines.
"""


# %%
#| export
#| blank one_step: set the rate of each parameter group; one train_step on the next batch; count the step
def one_step(run: Training) -> dict:
    """Take a batch and update the weights: the step's line, with the numbers `step`, `loss` and `lr`.

    The rate is run.lr times the cosine of the steps made before; the line's step counts this one, too. The gradient is
    clipped to a length of 1.
    """
    lr = run.lr * cosine(run.step, run.max_steps)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    loss = train_step(run.model, run.optimizer, [run.stream.next_batch()], clip=1.0)
    run.step += 1
    return {"step": run.step, "loss": loss.item(), "lr": lr}


# %%
for _ in range(3):
    print({name: round(value, 4) for name, value in one_step(run).items()})

# %% [markdown]
r"""
A dictionary is good for a program to read. People want something shorter, and they want to know how long the run will take. `step_line` makes a dictionary into a text in the style
of llm.c. `span` writes a number of seconds in a convenient unit: seconds, minutes, hours or days. Both go into a second module, `metrics`, because the
trainer of chapter 17e and the command that draws runs use them as well.

After the two definitions we make twenty more steps, measure their mean time, and print the last line with the time that is left.
"""


# %%
#| export metrics
import json
from pathlib import Path

SHOWN = {"loss": "loss {:.4f}", "val_loss": "val loss {:.4f}", "lr": "lr {:.2e}"}


def step_line(line: dict, steps: int) -> str:
    """A step's line as text. What it does not have is left out."""
    parts = [f"step {line['step']:5}/{steps}"]
    for name, form in SHOWN.items():
        if name in line:
            parts.append(form.format(line[name]))
    return " | ".join(parts)


# %%
#| export metrics
def span(seconds: float) -> str:
    """In words: 12.0 s, 3.4 min, 5.6 h, 7.8 days."""
    for name, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"


# %% tags=["nbval-ignore-output"]
began = time.monotonic()
for _ in range(20):
    line = one_step(run)
pace = (time.monotonic() - began) / 20  # seconds a step
print(step_line(line, STEPS), "|", span(pace * (STEPS - run.step)), "left")
print(span(3), span(200), span(7200), span(800_000), sep=", ")

# %% [markdown]
r"""
The time that is left is the number of steps that are left, times the mean seconds of a step so far.

*Predict.* You have just seen how long a step takes. The run will have more to do than its steps: it will look at the model every now and then, and
save it. How many seconds will the whole run take?
"""

# %%
predict("17.1", f"seconds of a run of {STEPS} steps", guess=None, unit="s")

# %% [markdown]
r"""
## A file of lines

The text on the screen is gone when the window closes. So each line also goes into a file, `metrics.jsonl`, as soon as the step is done: one JSON
object in each row of the file. Such a file can be read while the run still writes it. Writing it takes one `print`, as the second cell shows. Reading it back is the function
`read_metrics`. It allows for a step that is in the file twice, and takes the later row. We shall soon see how that can happen.
"""


# %%
#| export metrics
def read_metrics(path: str | Path) -> list[dict]:
    """The steps in a run's folder, in order. A step that was made twice counts as it was made last."""
    steps = {}
    for text in (Path(path) / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        steps[line["step"]] = line
    return [steps[step] for step in sorted(steps)]


# %% tags=["nbval-ignore-output"]
with open(run.folder / "metrics.jsonl", "w", encoding="utf-8") as metrics:
    while run.step < 2 * EVERY:
        line = one_step(run)
        print(json.dumps(line), file=metrics, flush=True)
written = read_metrics(run.folder)
print(len(written), "lines; the last one:", step_line(written[-1], STEPS))
show(figures.curve(written, floor), alt="The loss of the first steps, falling; the floor far below.")

# %% [markdown]
r"""
`flush=True` hands each line to the operating system at once. Without it Python keeps some thousand characters back, and a process that is killed takes
them with it.

The figure shows the loss of each step, and as a dashed line the floor of chapter 02, below which no model can get.

## A look at the model

The loss of a batch is noisy, and it is measured on text that the model learns from. So after every `EVERY` steps we look at the model in two ways: `evaluate` of chapter 07
gives the loss on stories that it has never seen, and `complete` of chapter 08 writes a story. `look` does both. `due` answers a small question for the loop: is it time for a look
after this step? It is if the step's number is divisible by `every`, or if the step is the last one. With `every=0` it is never time.
"""


# %%
#| export
def due(every: int, step: int, last: bool = False) -> bool:
    """Whether it is time, after this step, for something that is done after every `every` steps and after the last; 0: never."""
    return every > 0 and (step % every == 0 or last)


def look(run: Training) -> dict:
    """Measure the loss on the validation text and write a story: for the step's line."""
    story = complete(run.model, run.tokenizer, "", 50)
    return {"val_loss": evaluate(run.model, *run.held), "sample": story.strip()}


# %% tags=["nbval-ignore-output"]
print("due after steps", [step for step in range(1, STEPS + 1) if due(EVERY, step)])
found = look(run)
print(f"val loss {found['val_loss']:.3f} nats, where {floor:.3f} is the least possible")
print(found["sample"])

# %% [markdown]
r"""
Neither look changes the run. `evaluate` turns dropout off and on again, and `complete` draws from a generator of its own, which begins with the same numbers each time. So a run with many looks should have
the same losses as a run without any. We shall check that as soon as there is a loop.

*Predict.* Which percentage of the run's time will go into looking and saving?
"""

# %%
predict("17.2", "of the time goes into looks and checkpoints", guess=None, unit="%")

# %% [markdown]
r"""
## A file to go on from

The lid closes, and the contents of the memory are lost. What must be on the disk so that the run can go on? Exactly the four things that a step changes:
the weights, the optimizer's state (for each weight two moving averages, chapter 15), the stream's place in the data, and the number of the step. The model, the optimizer and the stream
can each give their state as a dictionary, and `torch.save` writes dictionaries. Such a file is called a *checkpoint*. `save_checkpoint` writes it, and `resume` loads it into a new run.

To test them, we save the run, load it into a second one, and let both make the next two steps.
"""


# %%
#| export
def save_checkpoint(run: Training) -> None:
    """Write checkpoint.pt: what a step changes."""
    state = {
        "step": run.step,
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "stream": run.stream.state_dict(),
    }
    torch.save(state, run.folder / "checkpoint.pt")


def resume(run: Training) -> Training:
    """Load checkpoint.pt into a run, if it is there. Returns the run."""
    path = run.folder / "checkpoint.pt"
    if path.exists():
        state = torch.load(path, weights_only=True, map_location="cpu")
        run.step = state["step"]
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.stream.load_state_dict(state["stream"])
    return run


# %%
save_checkpoint(run)
other = resume(new_run("first"))
size = (run.folder / "checkpoint.pt").stat().st_size
print(f"step {other.step}; {size / num_params(shape):.1f} bytes for each parameter")
for _ in range(2):  # a loss is computed before its update: only the second one shows the first update
    assert one_step(other) == one_step(run), "the loaded run makes another step than the one that was saved"

# %% [markdown]
r"""
`weights_only=True` matters. `torch.save` writes Python's pickle format, and a pickle can contain any program, which runs when the file is loaded. With this option
PyTorch loads tensors and plain data only.

Twelve bytes for each parameter are four for the weight and eight for AdamW's two averages. The loaded run makes the same two steps as the one
that was saved, to the last digit. One step would not be enough: its loss is computed before AdamW's averages are used.

## The trainer

Now we put the parts together. `introduce` prints a header that describes the run, so that you notice a mistake in the first second and not after an hour. `fit` is the loop. It loads the checkpoint if there
is one. For each step it makes the line, looks at the model when a look is due, and writes the line to the file. After each look it writes a checkpoint.
"""


# %%
#| export
def introduce(run: Training) -> None:
    """One line: what is about to run, on what, and where it is kept."""
    began = f"goes on after step {run.step}" if run.step else "a new run"
    parameters, device = num_params(run.model.config), next(run.model.parameters()).device
    tokens = run.stream.B * run.stream.T
    print(f"{run.folder.name}: {began}; {parameters:,} parameters in float32 on {device}")
    print(f"{run.max_steps:,} steps of {tokens:,} tokens, {run.max_steps * tokens:,} in all")


# %%
#| export
#| blank fit: a loop of one_step; when a look is due, print the line and the sample; write the line; then save a checkpoint
def fit(run: Training) -> Training:
    """Train a run, or go on with it, to its last step. Each step's line is appended to metrics.jsonl. Returns the run.

    First the checkpoint is loaded, if there is one, and the run introduced. After each look its line is printed, with
    the time that is left (step_line, span), and the sample; the checkpoint follows when the line is in the file.
    """
    resume(run)
    introduce(run)
    first, began = run.step, time.monotonic()
    with open(run.folder / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        while run.step < run.max_steps:
            line = one_step(run)
            looking = due(run.every, run.step, last=run.step == run.max_steps)
            if looking:
                line |= look(run)
                left = (time.monotonic() - began) / (run.step - first) * (run.max_steps - run.step)
                print(step_line(line, run.max_steps), "|", span(left), "left")
                print("   ", line["sample"])
            print(json.dumps(line), file=metrics, flush=True)
            if looking:
                save_checkpoint(run)
    return run


# %% [markdown]
r"""
We let it make a complete run and take the time.
"""


# %% tags=["nbval-ignore-output"]
began = time.monotonic()
whole = fit(new_run("whole"))
seconds = time.monotonic() - began
print(span(seconds))
answer("17.1", seconds)

# %% [markdown]
r"""
The pace of twenty steps, times the number of steps, is too low an estimate for one reason that is certain and another that is chance. Looks and checkpoints take time, too: we measure their share below. And twenty steps do not know what else the machine will do in the meantime. If the whole run took twice the estimate, it is the second reason. The trainer's own estimate counts
the looks, and it is corrected at every look. The screen had a line and a story for each look. The file has all the steps, and we draw it.
"""

# %% tags=["nbval-ignore-output"]
lines = read_metrics(whole.folder)
show(
    figures.curve(lines, floor),
    alt="Loss of each step, thin, and the validation loss as dots: both fall towards the floor.",
)
print([round(line["val_loss"], 3) for line in lines if "val_loss" in line], f"floor {floor:.3f}")

# %% [markdown]
r"""
The thin line is the loss of each batch, the dots are the validation loss. They agree, because no batch was seen twice: 2.325 after 60 steps, and 1.424 at the end, where 0.489 is the least possible. Compare the stories above from
top to bottom: the model learns words first and then sentences. It does not yet remember who has what.

Now the check from above: the same run without any look.
"""

# %%
unseen = new_run("unseen")
unseen.every = 0
fit(unseen)
same = [line["loss"] for line in read_metrics(unseen.folder)] == [line["loss"] for line in lines]
print(f"{STEPS // EVERY} looks or none: the same {len(lines)} losses: {same}")
assert same or device.type != "cpu", "looking at the run has changed it"

# %% [markdown]
r"""
Looks are free of consequences, then. Are they free of cost? We measure one look and one checkpoint, and multiply by the number of looks.
"""

# %% tags=["nbval-ignore-output"]
began = time.monotonic()
look(whole)
save_checkpoint(whole)
share = 100 * (time.monotonic() - began) * (STEPS // EVERY) / seconds
answer("17.2", share)

# %% [markdown]
r"""
A little more than a tenth of the time, on the page you read. A look and a checkpoint cost the same whenever they are made, so with ten times as many steps between two looks the share would be a tenth of this. This run looks often because it is short.

## Interrupted

Now we close the lid. We stop a run in the middle, as Ctrl-C would stop it. For this, `closing_lid` replaces the stream's `next_batch` by a function that raises an exception after a number of batches.
We catch the exception, and afterwards we do not use the object `run` again, as if the process and its memory were lost.
"""


# %%
class Lid(Exception):
    """Somebody closed the laptop."""


def closing_lid(stream: DocumentStream, batches: int) -> None:
    """Let the stream fail after so many batches."""
    real, given = stream.next_batch, []

    def next_batch():
        if len(given) == batches:
            raise Lid
        given.append(1)
        return real()

    stream.next_batch = next_batch


# %% tags=["nbval-ignore-output"]
run = new_run("halves")
closing_lid(run.stream, STOP)
try:
    fit(run)
except Lid:
    print(f"interrupted after step {len(read_metrics(run.folder))}")

# %% [markdown]
r"""
The newest checkpoint is older than the last step: a checkpoint is written only after a look. So when we call the trainer again, it goes back to that checkpoint and makes some steps a second time.

*Predict.* Compare the losses of this run with those of the run that was never interrupted, step by step. What is the largest difference?
"""

# %%
predict("17.3", "largest difference of a loss, interrupted or not", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
again = fit(new_run("halves"))

# %%
halves = read_metrics(again.folder)
apart = [abs(a["loss"] - b["loss"]) for a, b in zip(lines, halves, strict=True)]
answer("17.3", max(apart))
assert max(apart) == 0, f"interrupted, the run has another loss: {max(apart)} nats at most"
rows = (again.folder / "metrics.jsonl").read_text(encoding="utf-8").count("\n")
print(f"{len(halves)} steps, {rows} rows in the file: {rows - len(halves)} steps were made twice")

# %% [markdown]
r"""
The difference is exactly zero, and 30 steps were made twice. The second half computed the same numbers as the run without a break, because everything that a step changes was on the
disk. (On a GPU some kernels add their numbers in another order each time, and then even two runs without a break differ in their last digits. If the cell above complains there, that is the reason, and 17f has the list.) Every trainer should obey this law. Keep it in mind: chapter 17b will break it in several ways, and each of them looks harmless.

*Predict.* How long is our trainer? Guess the number of lines of its seven functions, without blank ones.
"""

# %%
predict("17.4", "lines of the trainer that we have written", guess=None)

# %%
functions = (one_step, due, look, save_checkpoint, resume, introduce, fit)
counted = [figures.code_lines(part) for part in functions]
print(dict(zip([part.__name__ for part in functions], counted)))
answer("17.4", sum(counted))

# %% [markdown]
r"""
65 lines, and you know each of them. nanoGPT's `train.py` has a little over 300, without the model; besides what ours does, it has processes, precisions and a compiler, which come later in the course. Here is what our trainer still lacks, in the order in which the next sittings add it:

- A kill while `torch.save` writes leaves half a file, and the old one is already overwritten. And with dropout the law breaks, because there is one more thing that a step changes (17b).
- The sizes are constants in a notebook. Yesterday's run had others, and nobody knows which (17c).
- Nobody stops the run when its loss becomes NaN. And when the operating system asks the process to end (the signal SIGTERM), it ends in the middle of a step (17e). When it is killed, nobody knows what is left (17f).
- Several processes that train together: part V of the course.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17")

# %%
checkpoint("17")

# %% [markdown]
r"""
## Exercises

`course exercises release 17` writes the exercises of 17 to 17f as a notebook to `released/`; `course check 17` runs their visible checks. To explore here:

1. Leave the stream out of `save_checkpoint`. Does the resumed run fail? Does its loss look wrong? Check: at which step does the assertion on `apart` see it first?
2. Leave the optimizer out. Check: how far are the losses apart right after the break, and 50 steps later? What does AdamW have to learn again?
3. Put `save_checkpoint(run)` before the line is written. Stop the run between the two. Check: is a line missing in `metrics.jsonl`?
4. Let `fit` print a line every 10 steps, in one place of the screen (`end="\r"`). Check that the file does not change.
5. Add the step's seconds to its line, and the tokens per second. Check: what does the first step cost, compared with the others, and why?

## Further reading

- Karpathy, [*nanoGPT*](https://github.com/karpathy/nanoGPT), `train.py`, and [*build-nanogpt*](https://github.com/karpathy/build-nanogpt), `train_gpt2.py`: the same parts in a script. nanoGPT keeps model, optimizer, step and configuration, and forgets its random generators; since it draws its batches at random, the place in the data is forgotten with them. build-nanogpt keeps the model, the step and the validation loss, and a comment says that the optimizer and the generators would have to follow.
- PyTorch documentation, [*Saving and loading models*](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html), and [`torch.load`](https://docs.pytorch.org/docs/stable/generated/torch.load.html), `weights_only`.
- [llm.c](https://github.com/karpathy/llm.c), `train_gpt2.cu`: the form of the step's line.
"""
