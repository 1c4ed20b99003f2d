# %% [markdown]
r"""
# 15 · Recipe: what else a run needs, and what each ingredient is worth

Chapter 07 trained a model with a short loop and one learning rate, which falls at the end. Every published run does more. The
rate rises before it falls. Gradients are clipped. Some weights are pulled to zero and others are not. One batch has half a
million tokens. Most of these settings are copied from one paper to the next, and few people know which of them their own
run needs.

In this chapter we start with chapter 07's loop and add one ingredient at a time. Each ingredient comes when something goes
wrong without it. Chapter 15b then leaves out one after the other and measures how much worse the run becomes.

This is the recipe that most others copy, GPT-3's (Brown et al. 2020, table 2.1):

| model | parameters | layers | d_model | heads | tokens a batch | learning rate |
|---|---|---|---|---|---|---|
| Small | 125M | 12 | 768 | 12 | 0.5M | 6.0e-4 |
| Medium | 350M | 24 | 1,024 | 16 | 0.5M | 3.0e-4 |
| Large | 760M | 24 | 1,536 | 16 | 0.5M | 2.5e-4 |
| XL | 1.3B | 24 | 2,048 | 24 | 1M | 2.0e-4 |
| 2.7B | 2.7B | 32 | 2,560 | 32 | 1M | 1.6e-4 |
| 6.7B | 6.7B | 32 | 4,096 | 32 | 2M | 1.2e-4 |
| 13B | 13B | 40 | 5,140 | 40 | 2M | 1.0e-4 |
| 175B | 175B | 96 | 12,288 | 96 | 3.2M | 0.6e-4 |

Larger models take larger batches and smaller rates. All eight models share the rest (appendix B): Adam with betas (0.9, 0.95),
clipping at a norm of 1, a weight decay of 0.1, a warm-up over 375 million tokens, and then a cosine that takes the rate down to a
tenth of its value over 260 billion tokens. The batch itself grows, too, from 32,000 tokens to its full size over the first 4 to 12
billion. Chapter 15b measures why the batch may grow.
"""

# %%
#| default_exp optim
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from torch.nn.utils.rnn import pad_sequence

from course.figures import recipe as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device, pick_scale
from nanogpt.evaluate import evaluate
from nanogpt.labs.evals.floor import floor_per_token
from nanogpt.model import GPTConfig
from nanogpt.optim import MASTERS
from nanogpt.optim import wsd
from nanogpt.precision import LossScaler, autocast, tf32_switch
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train_step

device = pick_device()

# %%
#| export
import math
from importlib import import_module

import torch
from torch import Tensor

from nanogpt.model import GPT

# %% [markdown]
r"""
## The learning rate comes first

The most important number of a recipe is the learning rate, so we begin with it. All sizes of this chapter's experiments are in the next
cell: a very small model, the stories of chapter 02, and runs that are short enough to be repeated many times.

A *seed* decides two things about a run: the first weights of the model, and the order in which it reads the stories. Two runs with the same
seed differ only in what we change. This will be important when we compare.
"""

# %%
SEEDS, CUT = (0, 1), 4  # CUT: the parts of a batch in "A batch larger than memory"
RATES = (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2)
B, steps = {"ci": (4, 60), "laptop": (4, 108), "gpu": (16, 400)}[pick_scale(device)]
assert steps >= 60, f"steps={steps} is too short for this chapter's experiments: take at least 60"
assert B % CUT == 0, f"B={B} rows cannot be cut into CUT={CUT} equal parts: choose a multiple"
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
The smallest program that does the job is chapter 07's loop: an optimizer, a rate for each step, and the step, for which we have chapter 10b's `train_step`. We wrap it into a function,
so that we can call it with many rates. At the end, `run` measures the loss on stories that were held out, and takes off the
*floor*: the loss of a perfect reader, which chapter 02 computed. A perfect model would have 0. The function keeps its results, because several
cells below ask for the same runs. If you change the sizes, run the next cell again as well; it then forgets the old results.
"""


# %%
def new_model(seed: int = 0) -> GPT:
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed))).to(device)


def batches(rows: int = B, seed: int = 0) -> DocumentStream:
    return DocumentStream([folder / "train_000000.bin"], rows, config.block_size, seed=seed, device=device)


falls = partial(wsd, decay=0.3)  # constant, and over the last 30% of the steps down to 0


@cache
def run(lr: float, schedule=falls, seed: int = 0) -> SimpleNamespace:
    """Chapter 07's loop: the loss of each step, and how many nats the model is above the floor at the end."""
    model, stream, losses = new_model(seed), batches(seed=seed), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(step, steps)
        losses.append(train_step(model, optimizer, [stream.next_batch()]).item())
    return SimpleNamespace(losses=losses, above=evaluate(model, [held], eot) - floor)


# %% tags=["nbval-ignore-output"]
one = run(RATES[0])
print(f"loss {one.losses[0]:.2f} in the first step, {one.losses[-1]:.2f} in the last")
print(f"in the end {one.above:.2f} nats above the floor")

# %% [markdown]
r"""
Now the same run with other rates, each twice as large as the one before, and each with all seeds.

*Predict.* If the rate is too small, the model does not get far in so few steps. If it is too large, the run breaks. Which of the
rates in `RATES` is the best?
"""

# %%
predict("15.1", "the best rate for chapter 07's loop", guess=None)


# %%
def sweep(schedule) -> dict[float, list[float]]:
    return {lr: [run(lr, schedule, seed).above for seed in SEEDS] for lr in RATES}


def best(above: dict[float, list[float]]) -> float:
    return min(above, key=lambda lr: np.mean(above[lr]))


# %% tags=["nbval-ignore-output"]
plain = sweep(falls)
for lr, above in plain.items():
    print(f"rate {lr:g}:", *(f"{nats:.3f}" for nats in above), f" mean {np.mean(above):.3f}")
answer("15.1", best(plain))
show(figures.rates({"no warm-up": plain}), alt="Nats above the floor against the learning rate.")

# %% [markdown]
r"""
Every dot is one run, and the line connects the means. The best rate is 0.005, with 1.11 nats above the floor. On the left the rate is too small: the model has not come far in so few steps. On the right the steps are too long,
and at 0.02, four times the best rate, the model ends with 2.18. The way from the best rate to a bad one is short. Whoever trains a large model
cannot make such a sweep. It would help to have a recipe that forgives a wrong guess.

## Warm-up: the first steps

Why does a large rate break a run? We look at its first steps. The next cell trains with the largest rate and measures how far a weight
moves in one step. The unit is the learning rate. The second line is a control: there, all steps read one and the same batch.
"""


# %% tags=["nbval-ignore-output"]
def lengths_of_steps(next_batch) -> dict[int, float]:
    """How far a weight moves on average in some steps, in learning rates."""
    model, lengths = new_model(), {}
    optimizer = torch.optim.AdamW(model.parameters(), RATES[-1], betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(41):
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        train_step(model, optimizer, [next_batch()])
        moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
        lengths[step] = moved.abs().mean().item() / RATES[-1]
    return lengths


one = batches().next_batch()
lengths = {"new batches": lengths_of_steps(batches().next_batch), "one batch": lengths_of_steps(lambda: one)}
for name, of in lengths.items():
    print(f"{name:12}", *(f"step {step}: {of[step]:.2f} " for step in (0, 1, 2, 5, 10, 20, 40)))

# %% [markdown]
r"""
In the first step nearly every weight moves by one learning rate, whether its gradient is large or tiny. (The biases of the keys hardly move: softmax cancels
them, so their gradient is only rounding.) The reason is in Adam. It divides
a mean of the gradients by the root of a mean of their squares. After one step both means consist of one gradient, so the
quotient is +1 or −1. Later, the gradients of different steps disagree. They partly cancel in the mean of the gradients, and the steps become shorter. With so
large a rate, most of
this is the fault of the steps themselves: they overshoot, and the next gradient points back. With one and the same batch in all steps they become
shorter just as fast.

Adam takes its longest steps when it knows least. The remedy is simple: start with a small rate, and let it grow to its full value over the
first steps. This is the *warm-up*.
"""


# %%
#| export
#| blank warm_up: a straight line that reaches 1 in step warmup - 1, and stays there
def warm_up(step: int, warmup: int) -> float:
    """1 / warmup in step 0, rising linearly to 1 in step warmup - 1, and 1 from there on. Always 1 if warmup is 0."""
    return min(1.0, (step + 1) / max(1, warmup))


# %%
print(*(f"{warm_up(step, 4):.2f}" for step in range(8)))

# %% [markdown]
r"""
The factor of the rate is a *pure function of the step*: it does not remember anything. A run that was stopped and goes on needs only the number of
its next step to find its rate again.

Chapter 07's schedule `wsd` is constant and falls at the end. It now grows by two things: the warm-up at its beginning, and a minimum
at its end. The fall takes 30% of the steps, unless we ask for something else.
"""


# %%
#| export
#| grows wsd
def wsd(step: int, steps: int, *, warmup: int = 0, decay: float = 0.3, minimum: float = 0.0) -> float:
    """The factor of the learning rate: warm-up, then 1, and over the last `decay` of the steps linearly to the minimum."""
    left = min(max((steps - step) / max(1.0, decay * steps), 0.0), 1.0)
    return min(warm_up(step, warmup), minimum + (1 - minimum) * left)


# %%
print(*(f"{wsd(step, 12, warmup=4, minimum=0.1):.2f}" for step in range(12)))

# %% [markdown]
r"""
Now the same sweep with a warm-up over the first sixth of the steps.

*Predict.* By how many nats is the run with warm-up better at the largest rate? And by how many if each of the two, with
and without warm-up, may use its own best rate?
"""

# %%
predict("15.2", "what warm-up is worth at the largest rate", guess=None, unit="nats")
predict("15.3", "what it is worth if both sides use their best rate", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
warm = sweep(partial(wsd, warmup=steps // 6))
same = np.mean(plain[RATES[-1]]) - np.mean(warm[RATES[-1]])
tuned = np.mean(plain[best(plain)]) - np.mean(warm[best(warm)])
print(f"both at rate {RATES[-1]:g}: {same:+.3f} nats")
print(f"without at {best(plain):g}, with at {best(warm):g}: {tuned:+.3f} nats")
answer("15.2", same)
answer("15.3", tuned)
show(figures.rates({"no warm-up": plain, "warm-up": warm}), alt="Two curves that part at large rates.")

# %% [markdown]
r"""
At the largest rate, warm-up looks like a miracle: almost a whole nat. If both sides may choose their rate, it is even 0.10 nats *worse*. Is it harmful, then? Look at the figure before you believe a number with three digits: the valley of the run with warm-up lies between two of our rates. So we try a rate between them, and take six seeds in place of two.
"""

# %% tags=["nbval-ignore-output"]
middle = 7e-3  # between two rates of the sweep
sides = (("no warm-up", best(plain), falls), ("warm-up", middle, partial(wsd, warmup=steps // 6)))
for name, lr, schedule in sides:
    above = [run(lr, schedule, seed).above for seed in range(6)]
    print(f"{name:10} at rate {lr:g}: mean {np.mean(above):.3f}, from {min(above):.3f} to {max(above):.3f}")

# %% [markdown]
r"""
With six seeds the run with warm-up has 1.098 at this rate, and the run without has 1.086 at its own best rate. Seeds of one kind differ by 0.06, so the two are equal. The 0.10 came from our coarse grid.

These numbers are the most important lesson of the chapter. At one large rate, warm-up looks like a miracle, and if both sides may really choose their
rate, nothing of it is left. Both numbers are true, and they answer different questions. A paper that compares two recipes at a
rate that was tuned for one of them measures how well that rate suits the other.

Is warm-up useless, then? Look at the figure once more. With warm-up the valley is wide: a rate that is twice too large costs little. Without it the same mistake is expensive. Wortsman et al.
(2023) found the same with larger models. With this schedule, and without clipping, warm-up buys safety rather than a better loss. (In the recipe at the end of this chapter it buys more;
chapter 15b measures it.) It is nearly free: only where the rate is too small
does it cost something, because it makes the rate still smaller.

## How the rate comes down

At the end of a run the rate must fall: large steps keep the weights jumping around the minimum. Two shapes are common.

- **Warm-up–stable–decay** (`wsd`; Hu et al. 2024, §4) is constant for most of the run and falls over its last part. A run can be prolonged
  from any checkpoint before the fall, as often as you like.
- **Cosine** (Loshchilov and Hutter 2017) falls from the end of the warm-up to the end of the run. Its length must be known at the
  start. Train past the end, and you stay at the minimum; stop early, and the rate has not yet fallen.
"""


# %%
#| export
#| blank cosine: how much of the time after the warm-up is done, as an angle from 0 to π
def cosine(step: int, steps: int, *, warmup: int = 0, minimum: float = 0.1) -> float:
    """The factor of the rate: warm-up, then half a cosine from 1 to the minimum in step `steps` (Loshchilov and Hutter 2017)."""
    done = (step - warmup) / max(1, steps - warmup)
    falling = minimum + (1 - minimum) * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    return min(warm_up(step, warmup), falling)


# %%
def rates(steps: int, warmup: int, minimum: float, decay: float) -> dict[str, list[float]]:
    """Both schedules, step by step."""
    shapes = {"cosine": cosine, "warm-up–stable–decay": partial(wsd, decay=decay)}
    return {
        name: [f(i, steps, warmup=warmup, minimum=minimum) for i in range(steps)]
        for name, f in shapes.items()
    }


for name, factors in rates(steps=10, warmup=3, minimum=0.1, decay=0.3).items():
    print(f"{name:21}", *(f"{factor:.2f}" for factor in factors))

# %% [markdown]
r"""
Follow the cosine by hand. Three steps of warm-up end at 1. Seven steps remain, and half-way through them, between step 6 and step 7,
the factor is half-way between 1 and 0.1. A test of this chapter compares `cosine` with the rates in a published log of Megatron-LM.

*Predict* before you move a slider: which of the two shapes has the higher mean? What happens to the plateau when warm-up and
decay together are longer than the run?
"""

# %% tags=["nbval-ignore-output"]
figures.schedule_widget(rates)

# %% [markdown]
r"""
The cosine begins to fall at once, so its mean is lower. If warm-up and decay together are longer than the run, the fall begins before the rate has reached its
full value:
the plateau is gone, and the highest factor is below 1.

## What decays, and what does not

Weight decay shrinks a weight by lr × decay in each step, whatever its gradient is. For a matrix this is a pull towards smaller
products. But a LayerNorm's gain has no reason to be small: it starts at 1, and decay pulls it to 0. Most recipes make two
groups. Parameters with two dimensions (matrices) are decayed. Parameters with one (biases and gains) are not.

*Predict.* Of GPT-2's 124 million parameters, how many per cent are in the group that is not decayed? And to which group do the
embeddings belong?
"""


# %%
predict("15.4", "parameters of GPT-2 that are not decayed", guess=None, unit="%")


# %%
#| export
#| blank decay_groups: matrices in one group, vectors in the other, no group that is empty
def decay_groups(model: GPT, weight_decay: float) -> list[dict]:
    """Parameter groups for an optimizer, a tied weight once: matrices are decayed, biases and gains are not.

    Embeddings are matrices, too. Frozen parameters are in no group.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


# %%
with torch.device("meta"):  # shapes are enough
    gpt2 = GPT(GPTConfig())
for group in decay_groups(gpt2, 0.1):
    count = sum(p.numel() for p in group["params"])
    print(f"weight decay {group['weight_decay']}: {len(group['params'])} tensors, {count:,} parameters")
everything = sum(p.numel() for p in gpt2.parameters())
answer("15.4", 100 * count / everything)

# %% [markdown]
r"""
One case is doubtful, and it is a third of the model, 39 million parameters: an embedding has two dimensions, so it is decayed. With tied weights it is also the
matrix of the output. minGPT left embeddings out; nanoGPT and llm.c decay them, and so do we. A short run cannot tell the difference: with a decay of
0.1 and a rate of 6e-4, a weight without any gradient needs ln 2 / 0.00006 = 11,552 steps to lose half of its value.

`make_optimizer` puts this together. It is the optimizer of all later chapters. For `bf16-masters` it takes chapter 10b's optimizer, and otherwise PyTorch's AdamW with
`fused=True`, one kernel that reads and writes each weight once (chapter 14 measures what this saves). A test compares its numbers with those of the plain one.
"""


# %%
#| export
#| grows make_optimizer
def make_optimizer(
    model: GPT, lr, precision="float32", *, betas=(0.9, 0.98), weight_decay=0.01, fused=True, compiled=False
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where it exists: one kernel for all, the same numbers.

    Its means reach back 1 / (1 - beta) steps: 10 for the gradient, 50 for its square, which suits short runs (PyTorch's
    default is 1,000). Weight decay shrinks each weight of two dimensions by lr × weight_decay a step. compiled: bf16-masters fused.
    """
    groups = decay_groups(model, weight_decay)
    if precision == "bf16-masters":  # chapter 10b
        return import_module(MASTERS).MasterAdamW(groups, lr=lr, betas=betas, compiled=compiled)
    device = next(model.parameters()).device
    return torch.optim.AdamW(
        groups, lr=lr, betas=betas, fused=fused and device.type in ("cpu", "cuda", "mps")
    )


# %%
for group in make_optimizer(new_model(), 1e-2, weight_decay=0.1).param_groups:
    print(len(group["params"]), {name: group[name] for name in ("lr", "betas", "weight_decay")})

# %% [markdown]
r"""
## A batch larger than memory

GPT-2's training uses $2^{19}$ tokens for each update. With 1,024 tokens in a row this is 512 rows, but one GPU may have room for 16. The gradients of 32
*micro-batches* are added up, and then one update is made. In PyTorch this is easy, because `backward()` adds to the gradients that are there already.

We try it with a batch that is cut into equal micro-batches, and compare with the gradient of the whole batch. *Find the bug* before you run the cell.
"""


# %%
def added_up(micro_batches, divide: float) -> Tensor:
    """The gradient of micro-batches, each with its mean loss, as backward() adds it up."""
    model.zero_grad()
    for x, y in micro_batches:
        loss = model(x, y)[1] / divide
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def off(g: Tensor, whole: Tensor) -> str:
    return f"length × {g.norm() / whole.norm():.3f}, off by {100 * (g - whole).norm() / whole.norm():.2f}%"


model, (x, y) = new_model(), batches().next_batch()
whole = added_up([(x, y)], divide=1)
parts = list(zip(x.chunk(CUT), y.chunk(CUT)))
print("added up:            ", off(added_up(parts, divide=1), whole))
print("divided by the number:", off(added_up(parts, divide=CUT), whole))

# %% [markdown]
r"""
The sum of n means is n times the mean. If each loss is divided by the number of micro-batches, the gradient is right.

What happens to a run if somebody forgets the division? We train 40 steps on one batch with AdamW, with the division and without it.

*Predict.* Does the loss show the bug: does it differ by more than 0.01 nats after 40 steps? Answer 1 for yes and 0 for no.
"""

# %%
predict("15.5", "AdamW's loss shows the forgotten division (1 yes, 0 no)", guess=None)

# %% tags=["nbval-ignore-output"]
ends = {}
for divide in (CUT, 1):
    model = new_model()
    optimizer = make_optimizer(model, 2e-3)
    for _ in range(40):
        added_up(parts, divide)
        optimizer.step()
    ends[divide] = model(x, y)[1].item()
print(f"after 40 steps: {ends[CUT]:.3f} with the division, {ends[1]:.3f} without it")
answer("15.5", int(abs(ends[1] - ends[CUT]) > 0.01))

# %% [markdown]
r"""
With plain gradient descent, a gradient that is n times as long means a learning rate that is n times as large. AdamW divides each gradient by its own size, so a constant
factor cancels, and the loss looks right. Only the norm in the log is too large, and clipping at 1 has become clipping at 1/n. No loss curve finds this bug.
A law finds it: the gradient must not depend on how a batch is cut.

**The second bug** is in the repair of the first. We divided by the number of micro-batches: we took a mean of means. That is the mean only if all micro-batches have
the same number of targets. Micro-batches of whole documents have different counts. In the next cell each row is one document: the first sentence of a story, or in the last row a complete story.
What follows its end has the target −100, which does not count. Large libraries had this bug for years (Hugging Face, *Fixing Gradient Accumulation*, October 2024).
"""


# %%
sentences = [story.text.partition(".")[0] + "." for story in told[: B - 1]]
documents = [torch.tensor([eot, *tokenizer.encode(text), eot]) for text in (*sentences, told[B - 1].text)]
rows = [ids[: config.block_size + 1].to(device) for ids in documents]
x_told = pad_sequence([ids[:-1] for ids in rows], batch_first=True)
y_told = pad_sequence([ids[1:] for ids in rows], batch_first=True, padding_value=-100)
parts = list(zip(x_told.chunk(CUT), y_told.chunk(CUT)))
print("targets that count:", [int((y != -100).sum()) for _, y in parts])
whole = added_up([(x_told, y_told)], divide=1)
print("mean of means:        ", off(added_up(parts, divide=CUT), whole))

# %% [markdown]
r"""
The gradient is wrong again. Every *target* should count the same. `target_shares` counts the targets of all micro-batches first. A micro-batch that has a
tenth of them gets the weight 0.1.
"""


# %%
#| export training
#| blank target_shares: count the targets that are not -100 in each batch, then divide by their sum
from collections.abc import Sequence


def target_shares(batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Of all targets that count, those that are not -100, the share in each batch (x, y).

    ValueError without any batch.
    """
    if not batches:
        raise ValueError("a step needs at least one micro-batch (x, y)")
    counts = torch.stack([(y != -100).sum() for _, y in batches])
    return counts / counts.sum()


# %%
print("shares of the targets:", *(f"{share:.3f}" for share in target_shares(parts)))

# %% [markdown]
r"""
`accumulate_gradients` runs forward and backward on one micro-batch after another, as chapter 10b's `train_step` does it with one batch. Each loss is
multiplied by its share, and the sum of these losses is the loss of the batch. One case needs care. A micro-batch without any
target has the mean loss 0/0, which is NaN. Its gradient is zero, but NaN must not get into the sum: `torch.where` puts
a 0 in its place.
"""


# %%
#| export training
#| blank accumulate_gradients: multiply each batch's mean loss by its share, run backward, and add these losses up
def accumulate_gradients(
    model: GPT, batches, precision="float32", scaler: LossScaler | None = None
) -> Tensor:
    """Add the gradient of the mean loss to each .grad; batches [(x, y), …], each (B, T): the loss, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches. The loss is detached. precision: chapter
    10's word. scaler: its scale multiplies the gradient, which fp16 needs; without one ValueError, as in chapter 10b's
    train_step.
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    shares = target_shares(batches)
    loss = torch.zeros((), device=shares.device)
    with tf32_switch(precision == "tf32"):
        for (x, y), share in zip(batches, shares):
            with autocast(precision, x.device):
                part = share * model(x, y)[1]
            scaled = part if scaler is None else part * scaler.scale
            scaled.backward()
            loss += torch.where(share > 0, part.detach(), 0.0)  # without a target, its mean is 0/0
    return loss


# %% [markdown]
r"""
*Check.* The law: however a batch is cut, the gradient is the same, up to rounding. We try it with the stories, whose targets are spread unevenly.
"""

# %%
model.zero_grad()
accumulate_gradients(model, parts)
shared = torch.cat([p.grad.flatten() for p in model.parameters()])
print("shares of targets:    ", off(shared, whole))
assert (shared - whole).norm() < 1e-4 * whole.norm(), "the gradient depends on how a batch is cut"

# %% [markdown]
r"""
A test checks the law for any way to cut a batch. A loop that meets its micro-batches one at a time cannot know the shares. It can add up *sums* of
losses, and divide the gradient by the count at the end.

## The length of the gradient, and clipping

All parameters together are one long vector, and so is the gradient. The length of the gradient is the cheapest instrument of a run: it is one
number for each step, and it is known before the update is made. *Clipping* (Pascanu et al. 2013, §3.2) shortens a gradient g that is longer than
a limit c, and leaves all others alone:

$$ g \leftarrow g \cdot \min(1,\ c / \lVert g \rVert) $$

One factor is used for all tensors. If we clipped each tensor by itself, the gradient would be short enough, too, but it would point in
another direction.
"""


# %%
#| export
def gradients_of(parameters) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [p.grad for p in parameters if p.grad is not None]


def global_norm(gradients) -> Tensor:
    """The norm of all gradients as one vector."""
    return torch.nn.utils.get_total_norm(gradients)


@torch.no_grad()
def scale_to(gradients, max_norm: float, norm: Tensor) -> None:
    """Shorten the gradients, whose global norm is `norm`, to max_norm, in place."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_(gradients, factor)


# %%
two = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]  # √(3² + 0² + 4²) = 5
norm = global_norm(two)
scale_to(two, 1.0, norm)
print(f"norm {norm:.1f}, clipped to 1:", two)

# %% [markdown]
r"""
## The complete recipe

Now all ingredients are there, and `run` grows into `experiment`: warm-up and cosine, decay groups, accumulation, clipping. It makes its step from these parts: gradient, norm, clipping, update. It also keeps the norm of each step. Three of its four arguments are what the next section changes. Like
`run`, it remembers its results until its cell is run again. Its rate is twice the best one of the sweep: the schedule is now a cosine, which falls early, and it wants a higher peak (chapter 15b's
record has both).
"""


# %%
LR = 1e-2


@cache
def experiment(seed: int = 0, clip=1.0, spoil=None, skip=None) -> SimpleNamespace:
    """A run by the whole recipe: losses, norms before clipping, nats above the floor. skip: a step that is left out."""
    model, stream, losses, norms = new_model(seed), batches(seed=seed), [], []
    optimizer = make_optimizer(model, LR, betas=(0.9, 0.95), weight_decay=0.1)

    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LR * cosine(step, steps, warmup=steps // 6)
        x, y = stream.next_batch()
        if spoil:
            x, y = spoil(step, x, y)
        optimizer.zero_grad()
        losses.append(accumulate_gradients(model, [(x, y)]).item())
        gradients = gradients_of(model.parameters())
        norm = global_norm(gradients)
        norms.append(norm.item())
        if clip is not None:
            scale_to(gradients, clip, norm)
        if step != skip:
            optimizer.step()
    return SimpleNamespace(losses=losses, norms=norms, above=evaluate(model, [held], eot) - floor)


# %% tags=["nbval-ignore-output"]
base = experiment()
over = sum(norm > 1.0 for norm in base.norms)
print(f"{base.above:.3f} nats above the floor; {over} of {steps} steps were clipped")
show(figures.panels({"recipe": base}, 1.0), alt="Loss and norm; the norm is high at first.")

# %% [markdown]
r"""
The upper panel is the loss. The lower one is the length of the gradient before clipping, and the dashed line is the limit. A gradient above the line was
shortened to it: 43 of 108. They are the first nine steps, and nearly all from step 16 to step 49, with two spikes of 7 and 10 around the end of the warm-up, where the rate is highest. After step 61 none is clipped. This is usual: clipping works at the beginning, and later only when something happens.

## One bad batch

Real runs meet batches that are garbage: a page of a shard that the disk returned wrongly, or a document that repeats one character. What do they do to a run? We replace one
batch by random ids, two thirds of the way through, and make the run three times: without clipping, with clipping, and with the bad step left out.

A bad batch has a high loss, of course: no model can predict random ids. The question is what happens *afterwards*.

*Predict.* Without clipping, how many nats does the bad batch add to each of the next ten batches?
"""

# %%
predict("15.6", "what a bad batch adds to the next ten, without clipping", guess=None, unit="nats")


# %%
BAD = 2 * steps // 3
assert steps > BAD + 1, f"BAD={BAD}: a step must follow the bad batch, so at most {steps - 2}"


def damaged(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The batch, or in step BAD random ids in its place."""
    if step != BAD:
        return x, y
    ids = torch.randint(config.vocab_size, (2, *x.shape), generator=torch.Generator().manual_seed(0))
    return ids[0].to(device), ids[1].to(device)


# %% tags=["nbval-ignore-output"]
ways = {"no clipping": {"clip": None}, "clipped at 1": {}, "left out": {"clip": None, "skip": BAD}}
spiked = {name: experiment(spoil=damaged, **how) for name, how in ways.items()}
sound = {"no clipping": experiment(clip=None), "clipped at 1": base, "left out": experiment(clip=None)}
print("norms around the bad batch:", *(f"{norm:.2f}" for norm in spiked["left out"].norms[BAD - 2 : BAD + 4]))
harm = {name: np.subtract(spiked[name].losses, sound[name].losses) for name in ways}
for name, nats in harm.items():
    print(
        f"{name:13} next 10 steps {nats[BAD + 1 : BAD + 11].mean():+.3f} nats, last 10 {nats[-10:].mean():+.3f}"
    )
answer("15.6", harm["no clipping"][BAD + 1 : BAD + 11].mean())
show(figures.spike(spiked, harm, BAD), alt="A spike of the norm, and how much higher the loss is after it.")

# %% [markdown]
r"""
The left panel shows the norm around the bad batch: 12.7, where its neighbours have 1. The right panel shows how much higher each later loss is than in the same run without the bad batch. Without clipping the next ten losses are 0.184 nats higher, and the last ten, a quarter of the run later, still 0.108. With clipping they are 0.012 and 0.010 higher, as little as if the step had been left out.

The harm comes from Adam's memory. One gradient that is many times as long as the others takes over the mean of the gradients. With
a beta of 0.9 a third of it is still there after ten steps, and during these steps the weights go on in the
direction of the bad batch. After that the weights are in a worse place, and the loss stays higher. A clipped gradient is one among others. A batch that is left out does no harm, but
somebody must notice that it is bad: chapter 17e builds a rule for that.

Clipping is an insurance. What it is worth in a run without an accident is a question for chapter 15b.
"""

# %% [markdown]
r"""
## The step and the loop of the package

The package's `train_step` is still that of chapter 10b. It grows by accumulation and by clipping. It takes all micro-batches of an update and leaves the gradient to `accumulate_gradients`. And it gets a new argument, `clip`: the
largest length. Where in the step does clipping belong? The gradient must be complete: all micro-batches have been added up, and fp16's scale has been
divided out. The optimizer must not have used it yet. This place is just before the update.
"""


# %%
#| export training
#| grows train_step
def train_step(
    model: GPT, optimizer, batches, precision="float32", clip=None, scaler: LossScaler | None = None
) -> Tensor:
    """One update from batches [(x, y), …], each (B, T): the mean loss before it, in nats, on the device.

    precision: chapter 10's word. clip: the largest norm of the gradient. scaler: for fp16; it skips an update whose
    gradient overflowed. FloatingPointError, and no update, if the loss or the gradient's norm is not finite.
    """
    # the gradient of the batch, and its length
    optimizer.zero_grad()
    loss = accumulate_gradients(model, batches, precision, scaler)
    gradients = gradients_of(model.parameters())
    if scaler is not None:
        scaler.unscale(model.parameters())
    norm = global_norm(gradients)
    # with a scaler: no update if the scaled gradient overflowed
    if scaler is not None and loss.isfinite():
        finite = bool(norm.isfinite())
        scaler.update(finite)
        if not finite:
            return loss
    # what is not finite must not reach the weights
    if not torch.isfinite(norm + loss):  # waits for the device
        raise FloatingPointError(f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}")
    if clip is not None:
        scale_to(gradients, clip, norm)
    optimizer.step()
    return loss


# %%
grown("train_step", "15")

# %% [markdown]
r"""
The loop `train` grows as well. It leaves its step to `train_step`, and takes over what else this chapter has made: `make_optimizer` in place of the plain AdamW, `clip`, and the
word for the precision. It also seeds dropout. Dropout draws from PyTorch's global random numbers, which any cell may have used, and then the same run cannot be made
again. Now each step sets their seed, and at the end the caller's random state is put back. (The model of this chapter has no dropout; the last cell tries it with one that has.)

It does not take over the complete recipe. `train` remains a loop for runs of a minute, with a constant rate that falls at the end, no warm-up, and the memory of `make_optimizer`'s defaults. The recipe needs more numbers than a function should have arguments, and chapter 17c puts them into a file.
"""


# %%
#| export training
#| grows train
def train(
    model: GPT, stream, steps, lr, *, precision="float32", clip=None, decay=0.3, generator=None, on_step=None
) -> list[float]:
    """Train in place on `steps` batches, stream.next_batch() -> (x, y); the loss of each, in nats per token.

    precision, clip: see train_step. generator seeds dropout, nothing else is random. on_step(step, loss): after each.
    """
    from tqdm import tqdm  # here, so that a step alone needs torch and nothing else

    device, losses = next(model.train().parameters()).device, []
    optimizer = make_optimizer(model, lr, precision)
    scaler = LossScaler() if precision == "fp16" else None
    seed = int(torch.randint(2**31, (), generator=generator or torch.Generator()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for step in tqdm(range(steps), unit="step", disable=None):
            torch.manual_seed(seed + step)  # dropout depends on the step, not on what ran before
            for group in optimizer.param_groups:
                group["lr"] = lr * wsd(step, steps, decay=decay)
            try:
                losses.append(train_step(model, optimizer, [stream.next_batch()], precision, clip, scaler))
            except FloatingPointError as error:
                raise FloatingPointError(f"step {step}: {error}; lower lr={lr:g}, or set clip") from None
            if on_step:
                on_step(step, losses[-1])
    return [loss.item() for loss in losses]


# %%
grown("train", "15")


# %%
def short_run() -> list[float]:
    model = GPT(replace(config, dropout=0.1), torch.Generator().manual_seed(0)).to(device)
    return train(model, batches(), 4, 1e-2, clip=1.0, generator=torch.Generator().manual_seed(1))


once = short_run()
torch.rand(1000)  # some other cell draws
difference = max(abs(a - b) for a, b in zip(short_run(), once))
assert difference == 0 or device.type != "cpu", f"the same seed gave losses that differ by {difference}"
print(*(f"{loss:.2f}" for loss in once), f"and again, with a difference of {difference:.3f}")

# %% tags=["nbval-ignore-output"]
predictions("15")

# %%
checkpoint("15")

# %% [markdown]
r"""
## Exercises

`course exercises release 15` writes these as a notebook to `released/`; `course check 15` runs their visible checks.

- **15-1** The batch that was cut, 25 minutes: repair gradient accumulation.
- **15-2** One vector, not many, 15 minutes: repair clipping.
- **15-3** What is pulled to zero, 20 minutes: repair decay groups.
- **15-4** AdamW by hand, 30 minutes: build one step.
- **15-5** A check for a schedule, 25 minutes: look at its ends above all.
- **15-6** Two recipes, one run each, 10 minutes: say what they show (after chapter 15b).

To explore:

1. Warm up over other lengths: `sweep(partial(wsd, warmup=n))` for n = 2, 5, 20, 50. *Check*: n = 1 gives the numbers of `sweep(falls)`. From which length
   on is the largest rate as good as the best one?
2. A schedule whose fall follows 1 − √(share of the fall that is done) (Hägele et al. 2024). *Check*: it is never above `wsd`. Is it better, for each of the seeds?
3. Give the bad batch a rate: let `damaged` spoil every tenth batch. *Check*: without clipping the run ends higher. Up to which share of bad batches does clipping save it?

## Further reading

- Brown et al. 2020, [*Language Models are Few-Shot Learners*](https://arxiv.org/abs/2005.14165), table 2.1 and appendix B: the recipe.
- Wortsman et al. 2023, [*Small-scale proxies for large-scale Transformer training instabilities*](https://arxiv.org/abs/2309.14322): how much the loss depends on the rate, with and without warm-up.
- Pascanu, Mikolov and Bengio 2013, [*On the difficulty of training recurrent neural networks*](https://arxiv.org/abs/1211.5063), §3.2: clipping.
- Loshchilov and Hutter 2017, [*SGDR*](https://arxiv.org/abs/1608.03983), and 2019, [*Decoupled Weight Decay Regularization*](https://arxiv.org/abs/1711.05101): the cosine; the W in AdamW.
- Hu et al. 2024, [*MiniCPM*](https://arxiv.org/abs/2404.06395), §4: warm-up–stable–decay. Hägele et al. 2024, [*Scaling Laws and Compute-Optimal Training Beyond
  Fixed Training Durations*](https://arxiv.org/abs/2405.18392).
- Hugging Face 2024, [*Fixing Gradient Accumulation*](https://huggingface.co/blog/gradient_accumulation): the mean of means, found after years.
"""
