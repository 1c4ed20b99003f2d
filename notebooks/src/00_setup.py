# %% [markdown]
r"""
# 00 · Setup: the map, the machine, the dice

In this course you build GPT-2 yourself, in PyTorch, and then you make it fast. You start with the tokenizer and end
with training on many processes. Every step runs on a laptop.

GPT-2 is a *language model*. It reads a text and says, for each possible next piece of text, how likely that piece is.
Training shows the model a lot of text and makes the piece that really came next a little more likely each time. To
write a text, we draw a next piece from the model's probabilities, add it to the text, and ask again.

This notebook has no theory. It shows you what you will have at the end, explains how the notebooks work, and builds
three small functions that every later chapter uses.
"""

# %%
#| default_exp device
#| doc device: Which device, how large, and which random numbers: what every chapter asks first.

import json
from pathlib import Path

from course.figures import setup as figures
from course.notebook import answer, checkpoint, predict, predictions, show

show(
    figures.course_map(),
    alt="The path of the course: text becomes ids (01), ids become batches (03), a model (04 and 05) gives scores for every next token; their loss trains it (07), and a draw from the scores continues the text (08). Below the path are GPT-2's published weights (06), speed (09 to 14), a real run (15 to 19), many processes (20 and 21) and planning (22).",
)

# %% [markdown]
r"""
The numbers are chapters. The upper row is the path of a text through the program. A text (02) is cut into *tokens*,
and each token gets a number, its *id* (01). The ids are cut into batches (03). The model (04 and 05) turns a batch
into a score for every possible next token. Training (07) compares the scores with the tokens that really came next,
and improves the model. Sampling (08) uses the scores to write. The lower row is what comes around this path: loading
the weights that OpenAI published, making all of it fast, running it for days, spreading it over many processes, and
planning it.

## What you will have built by chapter 08

Chapters 01 to 08 take you to a small GPT that you have trained yourself, on a processor or a GPU. The course keeps a
record of one such run. It was written by the command in its first line, so you can make the same record later with
your own model.
"""

# %%
recorded = Path("../data/measurements/first-model.json")
record = json.loads(recorded.read_text(encoding="utf-8"))
for name in ("command", "date", "device", "torch", "parameters", "steps", "seconds"):
    print(f"{name:11}", record[name])
print("\nbefore training:\n" + record["opening"] + record["before"])

# %% [markdown]
r"""
The first two sentences were given. Everything behind them comes from the model, before it has learned anything. All
its tokens are about equally likely, so it draws pieces of words at random. After training, the same model continues
the same two sentences like this:
"""

# %%
print(record["opening"] + record["after"])

# %% [markdown]
r"""
It writes English. It remembers who is there and what Rosa has. Nobody told the model any of these rules: it found
them by predicting the next token. It even counts: six shells and two more are eight. Is that luck? Chapter 07 asks the
model hundreds of such questions. It answers nearly all of those whose answer is in the text, and only half of those
that need arithmetic.

How good is it, as a number? The *loss* says how surprised the model is by the next token, on average, measured in
nats (chapter 02 explains the unit). Training means making the loss small.
"""

# %%
show(
    figures.first_run(record),
    alt="The training loss falls from 7 nats a token quickly to 1 and then slowly towards a dashed line, the floor, at about 0.55.",
)
print(f"on stories that the model has never seen: {record['val_loss']:.3f} nats a token")
print(f"the floor:                                {record['floor']:.3f} nats a token")

# %% [markdown]
r"""
The dashed line is special. In almost every course and paper you see a loss go down, and you cannot tell how far it
could go. Here you can. The stories of this course are told by a small grammar, which draws names, things and numbers
at random. We know the probability of every draw, so we can compute the loss of a model that knows the grammar
perfectly. No model can do better than that on average. We call this loss the *floor*, and you will see it under every
loss in the course.

## What you will have built by chapter 14

The second half of the course is about speed. Chapters 09 to 14 take one training step of GPT-2 with 124 million
parameters and change one thing after another. Before each change you predict what it will bring.
"""

# %%
ladder_file = Path("../data/measurements/amd-epyc-2-threads.json")
ladder = json.loads(ladder_file.read_text(encoding="utf-8"))
show(
    figures.ladder(ladder),
    alt="Bars of the milliseconds for one training step after each change: 1,755 in float32, 581 with bf16, 474 at the end; one of the changes, flash, makes it slower.",
)
print(f"recorded on: {ladder['device']}, batch {ladder['batch']}, context {ladder['seq']}, {ladder['date']}")
print(f"from first to last: {ladder['rungs'][0]['ms'] / ladder['rungs'][-1]['ms']:.1f} times as fast")

# %% [markdown]
r"""
The first bar is the plain program. Each bar below it adds one change to all the changes above it. You need not know
the names yet, but notice how much the changes differ. Some save more than half of the time and some save nothing. One
of them, *flash*, makes the step slower on this processor, although it was invented to make GPUs faster. Which change
pays depends on the machine, so you will measure on yours.

## How to use a notebook

Run the cells from top to bottom with Shift+Enter. Some things are the same in every chapter:

- **Predict.** Before an experiment you are asked for a guess. Write it into the cell in place of `None`. A wrong guess is
  worth more than no guess: the difference is what you are about to learn.
- **Change things.** Change a number and run the cell again. Nothing can break for good: `course restore 00` in a terminal
  brings this chapter back as it was, and keeps your version beside it.
- **Checkpoint.** A cell that begins with `#| export` holds finished code. The last cell of each chapter copies this
  code into the package `nanogpt/` and runs the chapter's tests on it. Save the notebook before you run that cell. Later
  chapters import the code from there.

So the package grows with you: what a chapter uses was built in the chapters before it.

## Two ways to take the course

Your copy of the course came with the finished package, so that everything works from the first minute and you can
read any chapter in any order. If you want that, there is nothing to do.

If you want to build the package yourself, run `course start` in a terminal. It empties `nanogpt/`, and the checkpoint
of every chapter puts its part back. `course start --blank` goes one step further: in each chapter it also removes the
bodies of two to five functions, the ones that carry the chapter's idea. You write them, and the cells below and the
tests tell you whether they are right. When you are stuck, `course solution 00 pick_device` shows ours. We recommend
`--blank` if you have the time: reading code feels like understanding, and writing it shows whether it was. `course
package` brings the finished package back, and keeps yours beside it.

Now to the three functions. Every chapter asks three questions at its start: on which device does it compute, how
large are its experiments, and which random numbers does it use?

## Which device?

PyTorch runs the same code on an NVIDIA or AMD GPU, which it calls `cuda`, on an Apple GPU, `mps`, and on the
processor, `cpu`. What does it find here?
"""

# %%
#| export
import torch


def device_names() -> list[str]:
    """The names of all devices that PyTorch finds here, the best first."""
    names = []
    gpus = torch.cuda.device_count()
    if gpus > 0:
        names.append("cuda")  # without a number: the first one
    for i in range(gpus):
        names.append(f"cuda:{i}")
    if torch.backends.mps.is_available():
        names.append("mps")
    names.append("cpu")
    return names


# %% tags=["nbval-ignore-output"]
print(device_names())

# %% [markdown]
r"""
The first name in the list is a good choice. But sometimes you want another one: a test should run on the CPU, or the
first GPU is busy and you want `cuda:1`. So there are two ways to ask for a device, an argument and the environment
variable `NANOGPT_DEVICE`. Both work without a change to the chapter's code. If the device that you asked for is
missing, the function says so at once. Otherwise PyTorch would raise an error many cells later, where it is harder to
understand.
"""

# %%
#| export
#| blank pick_device: prefer first, then the variable, then the first name; refuse a name that is not in the list
import os


def pick_device(prefer: str | None = None) -> torch.device:
    """The device to compute on: `prefer`, else the variable NANOGPT_DEVICE, else the best of cuda, mps, cpu.

    Raises ValueError if the one that was asked for is not there.
    """
    names = device_names()
    wanted = prefer or os.environ.get("NANOGPT_DEVICE") or names[0]
    if wanted not in names:
        raise ValueError(f"device {wanted!r} is not available; this machine has {', '.join(names)}")
    return torch.device(wanted)


# %% tags=["nbval-ignore-output"]
device = pick_device()
print("this notebook computes on:", device)
try:
    pick_device("tpu")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## How large?

A laptop and a GPU in a data centre run the same notebooks, but not at the same size. Each chapter keeps the sizes of
its experiments in a small table with one row for each *scale*: `ci` is for automatic tests, `laptop` for a processor,
`gpu` for a CUDA device. You never have to edit the sizes. The device decides, and the variable `NANOGPT_SCALE`
overrides it.
"""

# %%
#| export
#| blank pick_scale: the variable first, then the device; refuse a word that is not in SCALES
SCALES = ("ci", "laptop", "gpu")


def pick_scale(device: torch.device) -> str:
    """The size of the experiments: NANOGPT_SCALE if set, else `gpu` on a CUDA device and `laptop` elsewhere."""
    scale = os.environ.get("NANOGPT_SCALE")
    if not scale:
        scale = "gpu" if device.type == "cuda" else "laptop"
    if scale not in SCALES:
        raise ValueError(f"NANOGPT_SCALE is {scale!r}; it must be one of {', '.join(SCALES)}")
    return scale


# %% tags=["nbval-ignore-output"]
steps = {"ci": 10, "laptop": 1600, "gpu": 5000}  # a table as chapters have it
scale = pick_scale(device)
print(f"scale {scale}: such a chapter would train for {steps[scale]} steps")
print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")

# %% [markdown]
r"""
## Which random numbers?

A model starts with random weights, it reads its text in random order, and it draws the tokens that it writes. To
repeat an experiment, you need the same random numbers again. A *seed* does that: it sets the generator of random
numbers to a fixed state.
"""

# %%
torch.manual_seed(1337)
print("first batch: ", torch.randn(4))
print("second batch:", torch.randn(4))

# %% [markdown]
r"""
Run this cell as often as you like: both batches stay the same. Still, many people who follow a course report that
their loss differs from run to run although they set the seed. Here is a common reason. Somewhere between the two
batches, somebody draws a single random number, for example to look at a sample:
"""

# %%
torch.manual_seed(1337)
print("first batch: ", torch.randn(4))
torch.rand(1)  # a look at a sample
print("second batch:", torch.randn(4))

# %% [markdown]
r"""
The second batch is now another one, and so is everything after it. The cause is that PyTorch has one global
generator, which everybody shares. The remedy is to give the experiment a generator of its own, and to pass it to
every function that draws.
"""


# %%
#| export
#| blank seed_everything: seed PyTorch itself, then return a new generator with the same seed
def seed_everything(seed: int) -> torch.Generator:
    """Seed PyTorch's global generators, and return a CPU generator of its own with the same seed.

    Pass the returned one to what draws random numbers: then no other cell can disturb it. Both begin with the same
    numbers, so two things that must be independent are drawn from one of them, not one from each.
    """
    torch.manual_seed(seed)  # also seeds every CUDA and MPS device
    return torch.Generator().manual_seed(seed)


# %% [markdown]
r"""
*Predict.* The experiment below makes both runs, without and with the sample in between. It does so once with the
global generator and once with a generator of its own. In how many of the two cases is the second batch the same in
both runs?
"""

# %%
predict("00.1", "cases in which the second batch stays the same", guess=None)


# %%
def second_batch(own: bool, disturb: bool) -> torch.Tensor:
    generator = seed_everything(1337)
    source = generator if own else None  # None: PyTorch uses its global generator
    torch.randn(4, generator=source)  # the first batch
    if disturb:
        torch.rand(1)  # a look at a sample, from the global generator
    return torch.randn(4, generator=source)


same_global = torch.equal(second_batch(own=False, disturb=False), second_batch(own=False, disturb=True))
same_own = torch.equal(second_batch(own=True, disturb=False), second_batch(own=True, disturb=True))
print("global generator:         the second batch stays the same:", same_global)
print("a generator of your own:  the second batch stays the same:", same_own)
answer("00.1", same_global + same_own)

# %% [markdown]
r"""
A generator of your own cannot be disturbed by somebody who does not have it. From here on, every function of the
course that draws random numbers takes a `generator`, or a `seed` from which it makes its own.

## Checkpoint

The last cell of every chapter exports the cells that begin with `#| export`. It writes the module aside, imports it
in a fresh process and runs the chapter's tests. Only if all of that works does the new module replace the old one in
`nanogpt/`. If something fails, the message names the cell and your package stays as it was.
"""

# %%
predictions("00")

# %%
checkpoint("00")

# %% [markdown]
r"""
## Exercises

1. In a new cell, call `pick_device("cuda:99")`. *Check:* one sentence names the device and what this machine has. Then set
   `os.environ["NANOGPT_DEVICE"] = "cpu"` and call `pick_device()`. *Check:* it returns the CPU on every machine. `del
   os.environ["NANOGPT_DEVICE"]` removes the variable again.
2. Let `second_batch` draw its disturbance from the generator that the run uses: `torch.rand(1, generator=source)`.
   *Check:* now the second batch changes in both cases. What does that say about passing one generator to two things?
3. Draw three numbers from the generator that `seed_everything(7)` returns, and then three from the global one. *Check:*
   they are equal. Why would it be a mistake to draw a model's weights from one of them and its data from the other?
4. The recorded run has 1,024 tokens. A model that knows nothing gives each the probability 1/1024. Its loss is then
   `math.log(1024)`. Compare this with `record["losses"][0]`. *Check:* they differ by less than 0.2.

## Further reading

- PyTorch, *Reproducibility* (notes): what a seed fixes, and what it does not.
- A. Karpathy, *Let's reproduce GPT-2 (124M)*, video lecture, 2024: the same path in four hours, on a GPU.
"""
