# %% [markdown]
r"""
# 00 · Setup: a first model, the map, the machine

In this course you build GPT-2 yourself, in PyTorch, and then you make it fast. You start with the tokenizer and end
with training on many processes. Every step runs on a laptop.

GPT-2 is a *language model*. It reads a text and says, for each possible next piece of text, how likely that piece is.
Training shows the model a lot of text and each time makes the piece that really came next a little more likely. To
write a text, we draw the next piece from the model's probabilities, add it to the text, and ask the model again.

Let us train one, now and on your machine. Press Shift+Enter to run a cell and go on to the next one. The first cell of each
notebook prepares Google Colab; on your own machine it does almost nothing.

## Your first model

The model will read short stories: who meets whom and where, who owns how many things, and what happens to these things.
You write how a story begins, and the model continues it. The stories know names such as Lucy, Nora, Rosa, Leo, Otto and
Sam, and places such as the barn, the castle, the lake and the park. Other words do no harm, but the model will never have
read them.
"""

# %%
#| default_exp device
#| doc device: Which device, how large, and which random numbers: what every chapter asks first.
from course.figures import setup as figures
from course.notebook import answer, checkpoint, predict, predictions, show

OPENING = "One rainy evening, Nora went to the castle with Sam."  # your own words

# %% [markdown]
r"""
*Predict.* At first the model knows nothing. It then trains for 400 steps, and in each step it reads a part of a few stories.
We let it write before the first step, and again after 50, 150 and 400 steps. When will it write in English words, that is,
when will nine of ten of its words be words of the stories? Write your guess into the cell below in place of `None`.
"""

# %%
predict("00.1", "steps until it writes in words", guess=None)

# %% [markdown]
r"""
The next cell prepares everything: the stories, a tokenizer that cuts them into pieces, a stream of batches, and a small GPT.
You build all of these in chapters 01 to 08. For this one chapter we borrow the finished package if yours is not complete.
You need not read the cell now. Read what it prints: one of the stories.
"""

# %%
import json
from pathlib import Path

import torch

from course.figures.preview import borrow_finished_package, shares_of_words, wrapped

borrow_finished_package()
from nanogpt import GPT, BPETokenizer, GPTConfig
from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.sampling import complete
from nanogpt.shards import open_shards, read_shard
from nanogpt.training import scale_init

folder = Path("../data/built/first_run/stories")
floor = ensure_corpus(folder, n=5000)["floor"]
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
stream = DocumentStream(open_shards(folder, "train"), B=4, T=128)
config = GPTConfig(block_size=128, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_embd=128)
model = scale_init(GPT(config, generator=torch.Generator().manual_seed(0)))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
print(wrapped(next(stories(1)).text))

# %% [markdown]
r"""
And now the training. It takes ten to twenty seconds, and the model writes on the way.
"""

# %% tags=["nbval-ignore-output"]
written, losses = {}, []


def write(step):
    written[step] = complete(model, tokenizer, OPENING, 80)
    print(f"after {step} steps:\n{wrapped(OPENING + written[step])}\n")


write(0)
for step in range(1, 401):
    x, y = stream.next_batch()  # pieces of text, and for each of them the piece that comes next
    loss = model(x, y)[1]  # how surprised is the model by what comes next?
    optimizer.zero_grad()
    loss.backward()  # for each weight of the model: which change would make the surprise smaller?
    optimizer.step()  # change all of them a little
    losses.append(loss.item())
    if step in (50, 150, 400):
        write(step)

# %% tags=["nbval-ignore-output"]
shares = shares_of_words(written)
for step, share in shares.items():
    print(f"after {step:3} steps {share:4.0%} of the words are words of the stories")
in_words = [step for step, share in shares.items() if share >= 0.9]
answer("00.1", in_words[0] if in_words else "more than 400")

# %% [markdown]
r"""
Before the first step, every piece of text is about equally likely. The model draws pieces of words at random, and pieces
of characters, which are printed as �. Fifty steps take a second or two, and nearly everything is a word. After 150 steps
there are English sentences, and after 400 most of them are. Nobody told the model any rules. It found them in the
stories, by predicting what comes next.

It has not learned everything. Compare the last text with your opening: who is there, and who owns what? The names and the
numbers change from one sentence to the next, as if the model forgot what it has just written. To remember who has what is
harder than to write English. Chapter 07 trains five times as long, and chapter 07b finds out what such a model remembers.

How good is the model, as a number? The *loss* says how surprised the model is by the next piece, on average. It is measured
in nats, a unit that chapter 02 explains. Training means making the loss small.
"""

# %% tags=["nbval-ignore-output"]
show(figures.first_run(losses, floor))
loss = evaluate(model, [read_shard(path) for path in open_shards(folder, "val")], tokenizer.eot)
print(f"on stories that the model has never seen: {loss:.3f} nats a token")
print(f"the floor of these stories:               {floor:.3f} nats a token")

# %% [markdown]
r"""
The dashed line is special. In almost every course and paper you see a loss go down, and you cannot tell how far it
could go. Here you can. The stories of this course are generated by a small grammar, which draws names, things and
numbers at random. We know the probability of every draw, so we can compute the loss of a model that knows the grammar
perfectly. No model can do better than that on average. We call this loss the *floor*. You will see it again wherever a
model learns from these stories.

Your model is still far above its floor. How close can one come in 2,000 steps? This is a record of chapter 07's run, on
ten times as many stories, whose floor is a little different:
"""

# %%
record = json.loads(Path("../data/measurements/readme-model.json").read_text(encoding="utf-8"))
print(f"{record['steps']:,} steps: {record['val_loss']:.3f} nats a token, floor {record['floor']:.3f}")

# %% [markdown]
r"""
**Your first line of code.** Where did the loss begin? A model that knows nothing gives each of the V pieces of the vocabulary
the same probability, 1/V. The loss of a piece is minus the natural logarithm of its probability. So how large is the loss
of this model? `tokenizer.vocab_size` is V, and `math.log` is the natural logarithm. Write the line in place of `None`, and
run both cells.
"""

# %%
import math

nothing = None  # your line: the loss of a model that knows nothing

# %%
if nothing is None:
    print("no line yet; you can also go on without it")
else:
    print(f"your line: {nothing:.2f}; the first loss of your model: {losses[0]:.2f}")
    assert math.isclose(nothing, losses[0], abs_tol=0.5), (
        "they should be close: is it minus the logarithm of 1/V?"
    )

# %% [markdown]
r"""
A model with random weights knows nothing, so the two numbers are close. From there the loss fell towards the floor.

## The map

You have just used most of the course's first part. The map shows where you build each piece of it.
"""

# %%
show(figures.course_map())

# %% [markdown]
r"""
The numbers are chapters. A text (02, and later 16) is cut into *tokens*, and each token gets a number, its *id* (01). The
ids are grouped into batches (03). The model (04 and 05) turns a batch into a score for every possible next token. Training
(07) compares the scores with the tokens that really came next, and improves the model. Sampling (08) uses the scores to
write. The chapters of the lower row load the weights that OpenAI published, make training fast, run it for days, spread it
over many processes, and plan what it costs.

## How fast it will be

Your model has half a million *parameters*, the numbers that training changes. The smallest GPT-2 has 124 million. Chapters 09
to 14 make one training step of this GPT-2 faster, one change after another, and before each change you predict how much
time it will save. Here are two records, one from a processor with two threads and one from an H100, a GPU for data centres:
"""

# %%
records = {}
for title, name in (("processor, 2 threads", "amd-epyc-2-threads"), ("H100", "h100")):
    records[title] = json.loads(Path(f"../data/measurements/{name}.json").read_text(encoding="utf-8"))
show(figures.ladders(records))
for title, record in records.items():
    first, last = record["rungs"][0]["ms"], record["rungs"][-1]["ms"]
    tokens = record["batch"] * record["seq"]
    print(f"{title}, {tokens:,} tokens a step: {first / last:.1f} times as fast at the end")

# %% [markdown]
r"""
The first bar is the plain program, whose numbers have 32 bits (*float32*). Each bar below it adds one change to those above:

- *kept memory*: the program keeps memory that it will need again, instead of giving it back to the operating system.
- *TF32* and *bf16*: the matrices are multiplied with numbers of fewer bits. *bf16 weights*, the last bar, also keeps a
  copy of the weights in 16 bits.
- *compile*: PyTorch translates the model into fewer and larger operations.
- *flash*: attention, the heart of the model, no longer stores its largest table.
- *nice numbers*: the vocabulary is rounded up to a size that suits the hardware.
- *fused AdamW*: one operation updates all weights.

On the processor, *bf16* saves more than a third of the time that was left, *compile* saves less than a tenth, and *flash*,
which was invented for GPUs, makes the step slower. On the H100, *compile* saves more than half of the time that was left,
and *flash* more than a quarter of the rest. Which changes are worth it depends on the machine, so you will measure them on
yours.

## How to use a notebook

Some things are the same in every chapter:

- **Predict.** Before an experiment you are asked for a guess. A wrong guess is worth more than no guess: it shows you where
  you still have something to learn.
- **Change things.** Change a number and run the cell again, with all cells below it. Nothing can break for good: `course
  restore 00` brings this chapter's notebook and its part of the package back as they were, and keeps your versions beside
  them. Such commands belong in a terminal in which the environment of the course is active, as the README shows.
- **Checkpoint.** A cell that begins with `#| export` holds finished code. The last code cell of each chapter copies this
  code into the package `nanogpt/`, from which later chapters import it. Save the notebook before you run that cell. Other
  lines that begin with `#|` are for the commands of the course.

JupyterLab saves the outputs in the notebook's file, so git lists a notebook that you have only run as changed. This does no
harm. On Colab, the files disappear when the runtime ends; the [FAQ](../site/faq.md#my-work-on-colab) says how to keep them.

## Two ways to take the course

Your copy of the course came with the finished package, so you can read any chapter in any order. If you want that, there is
nothing to do.

If you want to build the package yourself, run `course start` in a terminal. It empties `nanogpt/`, and the checkpoint
of every chapter puts its part back. `course start --blank` goes one step further: in nearly every chapter it also
removes the bodies of two to five functions that carry the chapter's idea. You write them. Above each stand two hints,
folded; the cell below it says whether your function is right, and if not, what was expected and what came. When you are
stuck, `course solution 00 pick_device` shows our body of the function `pick_device`. We recommend `--blank` if you have the time. Code that you read seems clear; when you write it,
you find out whether you have understood it. `course package` brings the finished package back, and keeps yours in `yours/`.

This chapter's part of the package is small: two functions that answer a question of many chapters.

## Which device?

PyTorch runs the same code on different devices. It calls an NVIDIA or AMD GPU `cuda`, an Apple GPU `mps`, and the
processor `cpu`. Which of them does it find on your machine?
"""

# %%
#| export
#| blank device_names: cuda if there is a GPU, then each GPU as cuda:0, cuda:1 …, then mps if it is available, and cpu
import torch


def device_names() -> list[str]:
    """The names of all devices that PyTorch finds here, the best first."""
    gpus = torch.cuda.device_count()
    names = ["cuda"] if gpus > 0 else []  # without a number: the first one
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
The first name in the list is usually a good choice. But sometimes you want another one: a test should run on the CPU,
or the first GPU is busy and you want `cuda:1`. There are two ways to ask for a device. The first is an argument, as in
`pick_device("cpu")`. The second is the environment variable `NANOGPT_DEVICE`, which works without any change to the
code. If you use both, the argument wins. If the device that you asked for is missing, the function says so at once.
Otherwise PyTorch would raise an error many cells later, where it is harder to understand.
"""

# %%
#| export
#| blank pick_device: prefer first, then the variable, then the first name; refuse a name that is not in the list
import os


def pick_device(prefer: str | None = None) -> torch.device:
    """The device to compute on: `prefer`, else the variable NANOGPT_DEVICE, else the best of cuda, mps, cpu.

    Raises ValueError, which names both, if the one that was asked for is not there.
    """
    names = device_names()
    wanted = prefer or os.environ.get("NANOGPT_DEVICE") or names[0]
    if wanted not in names:
        raise ValueError(f"device {wanted!r} is not available; this machine has {', '.join(names)}")
    return torch.device(wanted)


# %% tags=["nbval-ignore-output"]
device = pick_device()
print("pick_device chooses:", device)
try:
    pick_device("tpu")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
The second line is the error: one sentence that says what this machine has.

## Checkpoint

The first cell below lists your prediction beside the result. The checkpoint collects the cells that begin with `#| export`
in a new file, imports this file in a fresh process, and runs the chapter's tests. If all of that works, the new file
replaces the old module in `nanogpt/`. If something fails, the message names the cell, and your package stays as it was.
"""

# %% tags=["nbval-ignore-output"]
predictions("00")

# %%
checkpoint("00")

# %% [markdown]
r"""
## Exercises

1. In a new cell, call `pick_device("cuda:99")`. *Check:* one sentence names the device and what this machine has. Then set
   `os.environ["NANOGPT_DEVICE"] = "cpu"` and call `pick_device()`. *Check:* it returns the CPU on every machine. `del
   os.environ["NANOGPT_DEVICE"]` removes the variable again.
2. The vocabulary of your model has 1,024 tokens. A model that knows nothing gives each of them the probability
   1/1024, and its loss is `math.log(1024)`. Compare this with `losses[0]`. *Check:* they differ by less than 0.2.
3. Write an opening in another language, and run all cells from there. *Check:* the model continues it in words of the
   stories. Where could it have learned others?
4. The *learning rate* `lr` says how far the weights move in each step. Set `lr=2e-5` where the optimizer is made, and run
   all cells from there. *Check:* after 400 steps the model does not write in words.

## Further reading

- A. Karpathy, [*Let's reproduce GPT-2 (124M)*](https://www.youtube.com/watch?v=l8pRSuU81PU), video lecture, 2024: the same path in four hours, on a GPU.
"""
