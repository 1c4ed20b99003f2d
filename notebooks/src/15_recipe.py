# %% [markdown]
r"""
# 15 · Recipe: what else a run needs, and what each ingredient is worth

Chapter 07's run had a constant rate that falls at the end, no clipping, one batch a step. A published recipe has more: warm-up,
a cosine, clipping, decay for some of the weights, a batch of half a million tokens. One paper copies it from another. Which part of it does
anything? This chapter builds each ingredient, and in the end switches off one after the other and counts in nats above the
floor.

This is the recipe that most copy, GPT-3's (Brown et al. 2020, table 2.1):

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

Larger models take larger batches and smaller rates. All eight share the rest (appendix B): Adam with betas (0.9, 0.95),
clipping at a norm of 1, weight decay 0.1, a warm-up over 375 million tokens, then a cosine down to a tenth of the rate over
260 billion; and the batch itself grows, from 32,000 tokens to its full size over the first 4 to 12 billion. Why that can be
is measured below.
"""

# %%
#| default_exp gpt.optim
#| doc gpt.clip: The length of a model's gradient, and clipping by it.
#| doc run.compare: Where two runs part; the command `compare`.
#| doc run.metrics: What a run has written: read, drawn, and how far out its newest step is; and the command `plot`.
import json
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from torch.nn.utils.rnn import pad_sequence

from course.figures import recipe as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus, floor_per_token, stories
from nanogpt.device import pick_device, pick_scale
from nanogpt.evals.losses import evaluate
from nanogpt.gpt.model import GPTConfig
from nanogpt.gpt.precision import LossScaler, autocast
from nanogpt.gpt.train import both_finite, scale_init, target_shares
from nanogpt.speed.roofline import measure
from nanogpt.text.data import DocumentStream
from nanogpt.text.tokenizer import BPETokenizer

device = pick_device()

# %%
#| export
import math

import torch

from nanogpt.gpt.model import GPT
from nanogpt.gpt.precision import MasterAdamW

# %% [markdown]
r"""
## The rate, a function of the step

A run that is stopped and goes on must find its rate again. So the rate is no state that something advances; it is a pure
function of the step. Both schedules begin with a warm-up and end at a minimum. A test compares `cosine` with the rates in a published log of
Megatron-LM, which counts updates, not steps: the 21 that its scaler skipped do not advance the rate.

- *Cosine* falls from the end of the warm-up to the end of the run. Its length must be known at the start: whoever goes on after the
  end goes on at the minimum, and whoever stops early stops at a high rate.
- *Warm-up–stable–decay* (Hu et al. 2024, §4) is constant for most of the run and falls over its last part. A run can be
  prolonged from before the fall, as often as one likes. This is chapter 07's `wsd`; it grows by the warm-up and by a minimum.
"""


# %%
#| export
#| blank cosine: how much of the time after the warm-up is done, as an angle from 0 to π
def warm_up(step: int, warmup: int) -> float:
    """1 / warmup in step 0, rising linearly to 1 in step warmup - 1."""
    return min(1.0, (step + 1) / max(1, warmup))


def cosine(step: int, steps: int, *, warmup: int = 0, minimum: float = 0.1) -> float:
    """The factor of the learning rate: warm-up, then half a cosine from 1 to the minimum (Loshchilov and Hutter 2017).

    The minimum is reached in step `steps`, the first after the run, and kept.
    """
    done = (step - warmup) / max(1, steps - warmup)
    falling = minimum + (1 - minimum) * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    return min(warm_up(step, warmup), falling)


# %%
#| export
#| grows wsd
def wsd(step: int, steps: int, *, warmup: int = 0, decay: float = 0.3, minimum: float = 0.0) -> float:
    """The factor of the learning rate: warm-up, then 1, and over the last `decay` of the steps linearly to the minimum."""
    left = min(max((steps - step) / max(1.0, decay * steps), 0.0), 1.0)
    return min(warm_up(step, warmup), minimum + (1 - minimum) * left)


# %%
def rates(steps: int, warmup: int, minimum: float, decay: float) -> dict[str, list[float]]:
    """Both schedules, step by step."""
    both = {"cosine": cosine, "warm-up–stable–decay": partial(wsd, decay=decay)}
    return {
        name: [f(i, steps, warmup=warmup, minimum=minimum) for i in range(steps)] for name, f in both.items()
    }


for name, factors in rates(10, 3, 0.1, 0.3).items():
    print(f"{name:21}", *(f"{factor:.2f}" for factor in factors))

# %% [markdown]
r"""
*Predict:* which has the higher mean? What becomes of the plateau if both slopes outlast the run?
"""

# %% tags=["nbval-ignore-output"]
figures.schedule_widget(rates)

# %% [markdown]
r"""
## What decays, and what does not

Weight decay shrinks a weight by lr × decay in each step, whatever its gradient. For a matrix it is a pull to smaller products. A
LayerNorm's gain has no reason to be small: it begins at 1, and decay pulls it to 0. So parameters are dealt into two groups,
by dimension: what has two is decayed, what has one (biases, gains) is not.

*Predict.* Of GPT-2's 124 million parameters, how many per cent are in the group that is not decayed? And to which group belong the
embeddings?
"""


# %%
#| export
#| blank decay_groups: matrices in one group, vectors in the other, no group that is empty
def decay_groups(model: GPT, weight_decay: float) -> list[dict]:
    """Parameter groups for an optimizer, a tied weight once: what has two dimensions is decayed, biases and gains are not.

    Embeddings have two, and are decayed. Frozen parameters are in no group.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


# %%
predict("15.1", "parameters of GPT-2 that are not decayed", guess=None, unit="%")
with torch.device("meta"):  # shapes are enough
    gpt2 = GPT(GPTConfig())
for group in decay_groups(gpt2, 0.1):
    count = sum(p.numel() for p in group["params"])
    print(f"weight decay {group['weight_decay']}: {len(group['params'])} tensors, {count:,} parameters")
tables, everything = (sum(p.numel() for p in part.parameters()) for part in (gpt2.transformer.wte, gpt2))
print(f"wte alone, decayed: {tables:,} of {everything:,}")
answer("15.1", 100 * count / everything)

# %% [markdown]
r"""
The rule has one doubtful case, and it is a third of the model: an embedding has two dimensions, so that it is decayed. With
tied weights it is the output's matrix as well. minGPT left embeddings out; nanoGPT and llm.c decay them, and this is what we do. A decay
of 0.1 at a rate of 6e-4 halves a weight that gets no gradient in ln 2 / 0.00006 = 11,552 steps: nothing that a short
run could see.

## One pass over memory

Chapter 09 has counted what AdamW moves: 80 bytes for each weight in every step when it is done in pieces, 28 when one kernel does
all. `fused=True` is that kernel. The numbers are the same:
"""


# %%
#| export
def make_optimizer(
    model: GPT, lr: float, precision: str = "float32", *, betas=(0.9, 0.98), weight_decay=0.01
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where it exists: one kernel for all, the same numbers.

    Its means reach back 1 / (1 - beta) steps: 10 for the gradient, 50 for its square, which suits short runs (PyTorch's
    default is 1,000). Weight decay shrinks each weight of two dimensions by lr × weight_decay a step.
    """
    groups = decay_groups(model, weight_decay)
    if precision == "bf16-masters":  # chapter 10
        return MasterAdamW(groups, lr=lr, betas=betas)
    device = next(model.parameters()).device
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=device.type in ("cpu", "cuda", "mps"))


# %% tags=["nbval-ignore-output"]
weights = [torch.nn.Parameter(torch.ones(1000, 1000, device=device)) for _ in range(8)]
for p in weights:
    p.grad = torch.ones_like(p)
ways = [torch.optim.AdamW(weights, foreach=True), torch.optim.AdamW(weights, fused=True)]
seconds = [[measure(way.step, device, repeats=3).median for way in ways] for _ in range(3)]  # in turn
pieces, fused = map(min, zip(*seconds))
print(
    f"AdamW, 8 million weights: in pieces {1e3 * pieces:.2f} ms, fused {1e3 * fused:.2f} ms: {pieces / fused:.2f}×"
)

# %% [markdown]
r"""
## The gradient's norm

All parameters together are one vector, and so is the gradient. Its length is the cheapest instrument of a run: one number a
step, known before the update is made. Clipping (Pascanu et al. 2013, §3.2) shortens a gradient g that is longer than c:

$$ g \leftarrow g \cdot \min(1,\ c / \lVert g \rVert) $$

One factor for all tensors. To clip each tensor by itself would bound the length as well, and turn the gradient.
"""


# %%
#| export gpt.clip
import torch
from torch import Tensor


def gradients_of(parameters) -> list[Tensor]:
    """The gradients that there are."""
    return [p.grad for p in parameters if p.grad is not None]


def global_norm(gradients) -> Tensor:
    """The norm of all gradients as one vector."""
    return torch.nn.utils.get_total_norm(gradients)


@torch.no_grad()
def scale_to(gradients, max_norm: float, norm: Tensor) -> None:
    """Shorten the gradients, whose global norm is `norm`, to max_norm, in place."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_(gradients, factor)


# %% [markdown]
r"""
`train_step` takes the length as `clip`. And it takes a function `accept(loss, norm)`, which it asks before it clips and updates. Until
now it asked `both_finite`, which raises an error. A caller who passes another function can keep the norm for a
plot, or leave out a bad batch. Where a micro-batch has no target at all, its mean loss is NaN, which must not spoil the sum.
"""


# %%
#| export gpt.train
#| grows gradient_is_fine
def gradient_is_fine(model: GPT, loss: Tensor, clip, scaler: LossScaler | None, accept) -> bool:
    """Unscales the gradient, asks accept(loss, norm), clips, all in place. False if the scaler or accept says skip."""
    gradients = gradients_of(model.parameters())
    if scaler is not None:
        scaler.unscale(model.parameters())
    norm = global_norm(gradients)
    if scaler is not None:
        scaler.update(finite := bool(norm.isfinite()))
        if not finite:
            return False
    if not accept(loss, norm):
        return False
    if clip is not None:
        scale_to(gradients, clip, norm)
    return True


# %%
#| export gpt.train
#| grows train_step
def train_step(
    model: GPT, optimizer, batches, precision="float32", clip=None, scaler=None, accept=None
) -> Tensor:
    """One update from batches [(x, y), …], each (B, T): the mean loss before it, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches. precision: chapter 10's word; fp16 takes a
    LossScaler, which skips what overflowed. clip: the largest norm. accept(loss, norm before clipping) -> bool: whether
    to update (both_finite).
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    shares = target_shares(batches)
    loss = torch.zeros((), device=shares.device)
    optimizer.zero_grad()
    for (x, y), share in zip(batches, shares):
        with autocast(precision, x.device):
            part = share * model(x, y)[1]
        (part if scaler is None else part * scaler.scale).backward()
        loss += torch.where(share > 0, part.detach(), 0.0)
    if gradient_is_fine(model, loss, clip, scaler, accept or both_finite):
        optimizer.step()
    return loss


# %%
grown("train_step", "15")

# %% [markdown]
r"""
`train` takes what this chapter has made: `make_optimizer` in place of the plain AdamW, `clip`, and the word for the precision.
"""


# %%
#| export gpt.train
#| grows train
def train(
    model: GPT, stream, steps, lr, *, precision="float32", clip=None, decay=0.3, generator=None, on_step=None
) -> list[float]:
    """Train in place on `steps` batches, stream.next_batch() -> (x, y); the loss of each, in nats per token.

    precision, clip: see train_step. generator seeds dropout, nothing else is random. on_step(step, loss): after each.
    """
    from tqdm import tqdm  # here, so that a step alone needs torch and nothing else

    device, losses = next(model.train().parameters()).device, []
    optimizer, scaler = make_optimizer(model, lr, precision), LossScaler() if precision == "fp16" else None
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


# %% [markdown]
r"""
## A run to experiment with

All sizes stand here: a small model on the stories of chapter 02, at ten times the rate of chapter 07, since an
ingredient shows what it is worth where things are about to go wrong. Runs of one seed begin with the same weights and read the same rows.
So a change is judged by its difference from the recipe with the *same* seed, and two seeds say whether that difference
holds.
"""

# %%
SEEDS, CUT = (0, 1), 4  # CUT: micro-batches that a batch is cut into, below
sizes = {"block_size": 96, "n_layer": 1, "n_head": 4, "n_embd": 64}
B, steps, lr = {"ci": (4, 60, 2e-2), "laptop": (4, 108, 2e-2), "gpu": (16, 400, 2e-2)}[pick_scale(device)]
folder = Path("../data/built/stories")
ensure_corpus(folder)
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
eot, told = tokenizer.eot, list(stories(60, seed=1))  # another seed than the shards'
held = np.concatenate([*([eot, *tokenizer.encode(story.text)] for story in told), [eot]])
floor = floor_per_token(told, tokenizer)
config = GPTConfig(vocab_size=tokenizer.vocab_size, **sizes)
RECIPE = {"config": config, "steps": steps, "lr": lr, "schedule": cosine, "warmup": steps // 6, "clip": 1.0}
RECIPE |= {"betas": (0.9, 0.95), "weight_decay": 0.1, "groups": True, "scaled": True}
RECIPE |= {"spoil": None, "limit": math.inf, "factor": 1.0, "stop": None}


def new_model(config: GPTConfig = config, seed: int = 0, scaled: bool = True) -> GPT:
    model = GPT(config, generator=torch.Generator().manual_seed(seed)).to(device)
    return scale_init(model) if scaled else model


def batches(rows: int = B, seed: int = 0) -> DocumentStream:
    return DocumentStream([folder / "train_000000.bin"], rows, config.block_size, seed=seed, device=device)


# %%
@cache  # a run that was made is not made again
def experiment(seed: int = 0, **changes) -> SimpleNamespace:
    """A run by RECIPE and some changes: its model, each step's loss and norm, and nats above the floor in the end."""
    r = SimpleNamespace(**RECIPE | changes)
    model, stream, losses, norms = new_model(r.config, seed, r.scaled), batches(seed=seed), [], []
    optimizer = make_optimizer(model, r.lr, betas=r.betas, weight_decay=r.weight_decay)
    for group in optimizer.param_groups if not r.groups else []:
        group["weight_decay"] = r.weight_decay

    def look(loss, norm) -> bool:  # train_step asks before it clips
        norms.append(norm.item())
        return norms[-1] < r.limit

    for step in range(r.stop or r.steps):
        for group in optimizer.param_groups:
            group["lr"] = r.factor * r.lr * r.schedule(step, r.steps, warmup=r.warmup)
        x, y = r.spoil(step, *stream.next_batch()) if r.spoil else stream.next_batch()
        losses.append(train_step(model, optimizer, [(x, y)], clip=r.clip, accept=look).item())
    above = evaluate(model, [held], eot) - floor
    return SimpleNamespace(model=model, losses=losses, norms=norms, above=above)


# %% [markdown]
r"""
Does clipping keep the direction?
"""

# %%
model, (x, y) = new_model(), batches().next_batch()


def gradient(micro_batches: list, clip: float | None = None) -> torch.Tensor:
    """All of the model's gradient, end to end, as train_step leaves it."""
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), micro_batches, clip=clip)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


whole, clipped = gradient([(x, y)]), gradient([(x, y)], clip=0.1)
print(f"length {whole.norm():.2f}, clipped {clipped.norm():.2f}")
assert torch.cosine_similarity(whole, clipped, dim=0) > 0.9999, "clipping has turned the gradient"

# %% tags=["nbval-ignore-output"]
base = experiment()
over, median = [step for step, norm in enumerate(base.norms) if norm > RECIPE["clip"]], np.median(base.norms)
print(
    f"{len(over)} of {steps} steps clipped, the last is {max(over, default=None)}; median norm {median:.2f}"
)
show(figures.panels({"recipe": base}, RECIPE["clip"]), alt="Loss and norm; the norm is high at first.")

# %% [markdown]
r"""
**What does a spike look like?** Real runs have them: a page of the shard that the disk returned wrongly, a document of one
character repeated. Here one batch of the run is replaced by ids drawn at random. The same run is made again without clipping, with
clipping, and with a step that is left out where the norm is above 5: `train_step` asks its caller's `accept` before it updates.

*Predict.* One bad batch, no clipping. By how many nats are the next ten batches dearer?
"""


# %%
BAD = 2 * steps // 3
predict("15.2", "harm of a bad batch to the next ten, without clipping", guess=None, unit="nats")


def damaged(step: int, *batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The batch, or in step BAD random ids in its place."""
    ids = torch.randint(config.vocab_size, (2, *batch[0].shape), generator=torch.Generator().manual_seed(0))
    return tuple(ids.to(device)) if step == BAD else batch


# %% tags=["nbval-ignore-output"]
ways = {"no clipping": {"clip": None}, "clipped at 1": {}, "left out": {"clip": None, "limit": 5.0}}
spiked = {name: experiment(spoil=damaged, **how) for name, how in ways.items()}
for what in ("losses", "norms"):
    around = vars(spiked["no clipping"])[what][BAD - 2 : BAD + 4]
    print(what, "around the bad batch:", *(f"{value:.2f}" for value in around))
apart = {name: np.subtract(run.losses, experiment(**ways[name]).losses) for name, run in spiked.items()}
for name, nats in apart.items():
    print(
        f"{name:13} next 10 steps {nats[BAD + 1 :][:10].mean():+.3f} nats, last 10 {nats[-10:].mean():+.3f}"
    )
answer("15.2", apart["no clipping"][BAD + 1 :][:10].mean())
show(figures.spike(spiked, apart, BAD), alt="A spike; then, without clipping, a loss that stays higher.")

# %% [markdown]
r"""
The spike in the loss is the batch, not the model: random ids cost any model that much. The harm is what comes after. Adam
divides by the root of a running mean of squares, and one gradient that is many times as long as the others takes over both means: with
betas of 0.9 and 0.95 weights go on in the bad batch's direction for about ten steps. Clipped, it is one batch
among others. Left out, it is none; but a rule that leaves out must know what is usual, which chapter 17c's does.

Without bad batches clipping is worth little here: in runs of November 2026 (laptop scale, CPU) it touched 42 of 108
steps, most of them early, and saved 0.04 nats. It is an insurance.

## A batch larger than memory

GPT-2's runs take $2^{19}$ tokens a step. Of 1,024 tokens each that is 512 rows, where a GPU holds 16: so the gradients of 32
micro-batches are added up before one update. *Find the bug.*
"""


# %%
def added_up(micro_batches, divide: float) -> torch.Tensor:
    """The gradient of micro-batches, each with its mean loss, as backward() adds it up."""
    model.zero_grad()
    for x, y in micro_batches:
        loss = model(x, y)[1] / divide
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def off(g: torch.Tensor, whole: torch.Tensor) -> str:
    return f"length × {g.norm() / whole.norm():.3f}, off by {100 * (g - whole).norm() / whole.norm():.2f}%"


parts = list(zip(x.chunk(CUT), y.chunk(CUT)))
print("as it is:          ", off(added_up(parts, divide=1), whole))
print("loss /= steps:     ", off(added_up(parts, divide=len(parts)), whole))

# %% [markdown]
r"""
`backward()` adds. Four means added are four times the mean, so each loss must be divided by their number. *Predict.*
What does it do to a run with AdamW, if the division is forgotten? By how many nats does the loss after 40 steps differ?
"""

# %%
predict("15.3", "what the forgotten division costs after 40 steps", guess=None, unit="nats")
for name in ("SGD", "AdamW"):
    ends = []
    for divide in (len(parts), 1):
        model = new_model()
        plain = torch.optim.SGD(model.parameters(), 0.05)
        optimizer = make_optimizer(model, 2e-3) if name == "AdamW" else plain
        for _ in range(40):
            added_up(parts, divide)
            optimizer.step()
        ends.append(model(x, y)[1].item())
    print(f"{name:5} 40 steps on one batch: {ends[0]:.1f}; without the division {ends[1]:.1f}")
answer("15.3", abs(ends[1] - ends[0]))

# %% [markdown]
r"""
With plain gradient descent the bug is a rate four times as large, and shows (here even as a better loss). AdamW divides the factor out again, so that the
loss looks right. Only the norm in the log is four times too large; and clipping at 1 becomes clipping at a quarter. A bug that the loss does not
show is found by a law.

**The second bug** is in the line that mended the first. A mean of means is the mean only if all have the same count. Micro-batches of
documents that end do not: here each row is one story, and what follows its end has the target −100. Large libraries shipped this
for years (Hugging Face, *Fixing Gradient Accumulation*, October 2024).
"""

# %%
model = new_model()
documents = sorted((torch.tensor([eot, *tokenizer.encode(story.text), eot]) for story in told), key=len)
rows = [ids[: config.block_size + 1].to(device) for ids in (*documents[: B - 1], documents[-1])]
x_told = pad_sequence([ids[:-1] for ids in rows], batch_first=True)
y_told = pad_sequence([ids[1:] for ids in rows], batch_first=True, padding_value=-100)
parts = list(zip(x_told.chunk(CUT), y_told.chunk(CUT)))
print("targets that count:", [int((y != -100).sum()) for _, y in parts])
whole, shared = gradient([(x_told, y_told)]), gradient(parts)
print("mean of means:      ", off(added_up(parts, divide=len(parts)), whole))
print("train_step's shares:", off(shared, whole))
assert (shared - whole).norm() < 1e-4 * whole.norm(), "train_step depends on how a batch is cut"

# %% [markdown]
r"""
`train_step` counts the targets of all micro-batches first and weights each loss by its share. The law is tested for any
way to cut a batch. A hand-written loop that takes micro-batches one at a time cannot know the shares; it can add up *sums* of losses, and divide the
gradient by the count at the end.

## How large must a batch be?

A batch's gradient is the true one plus noise, whose square falls with the number of rows: $\lvert G\rvert^2 + \operatorname{tr}\Sigma / B$. Where
both are equal, at $B = \operatorname{tr}\Sigma / \lvert G\rvert^2$, a step makes half the progress of one with an endless batch. McCandlish et al.
(2018, §2.2 and appendix A.1) call that the *simple noise scale*. Micro-batches measure it for nothing: their gradients' mean square, and
the square of their mean, are two equations for the two unknowns.

*Predict.* After five steps, at how many rows is the noise as strong as the gradient? And at the end?
"""


# %%
def noise_scale(model: GPT, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """tr Σ / |G|², in rows, from the gradients of single rows (McCandlish et al. 2018, appendix A.1)."""
    total, squares, n = 0.0, 0.0, len(rows)
    for x, y in rows:
        model.zero_grad()
        model(x, y)[1].backward()
        g = torch.cat([p.grad.flatten() for p in model.parameters()])
        total, squares = total + g, squares + (g @ g).item() / n
    mean_squared = (total @ total).item() / n**2
    signal, noise = (n * mean_squared - squares) / (n - 1), (squares - mean_squared) / (1 - 1 / n)
    return noise / signal if signal > 0 else math.inf


predict("15.4", "rows at which noise equals gradient, after 5 steps", guess=None)
predict("15.5", "the same at the end", guess=None)
assert abs(noise_scale(model, [(x[:1], y[:1])] * 4)) < 1e-3, "the same row four times holds no noise"

# %% tags=["nbval-ignore-output"]
rows, scales = list(zip(*(part.split(1) for part in batches(128, seed=99).next_batch()))), {}
for stop in (5, steps // 6, steps // 2, steps):
    done = experiment(stop=stop) if stop < steps else base
    scales[stop] = n = noise_scale(done.model, rows)
    print(f"{stop:4} steps, loss {done.losses[-1]:.2f}: {n:5.1f} rows, {n * config.block_size:,.0f} tokens")
answer("15.4", scales[5])
answer("15.5", scales[steps])

# %% [markdown]
r"""
Early all rows say the same: which tokens are frequent. One or two rows are enough to hear that, and more would be waste. Later what
is common is known, rows disagree, and the gradient is a small mean of large, different vectors. In a run of
November 2026 (laptop scale, CPU) the scale rose from 2 rows to 17 within 108 steps. So a batch may grow during a run, as GPT-3's does; its
authors measured this scale to choose their batch sizes (§2.3).

## Switched off, one by one

One ingredient at a time is left out or replaced. The second row is a placebo: a rate lower by a thousandth, which can do no more than
rounding does. What it changes says how finely these runs can measure.

*Predict.* What costs most to leave out? What is warm-up worth, and what clipping?
"""

# %%
PLACEBO = "a thousandth of the rate"
SWITCHED_OFF = {
    "nothing": {},
    PLACEBO: {"factor": 0.999},
    "clipping": {"clip": None},
    "warm-up": {"warmup": 0},
    "decay of the rate": {"schedule": partial(wsd, decay=0.0)},
    "cosine (stable–decay instead)": {"schedule": wsd},
    "weight decay": {"weight_decay": 0.0},
    "groups (all decayed)": {"groups": False},
    "betas (0.9, 0.999 instead)": {"betas": (0.9, 0.999)},
    "scaled initialisation": {"scaled": False},
}


# %%
predict("15.6", "what warm-up is worth", guess=None, unit="nats")
predict("15.7", "what clipping is worth", guess=None, unit="nats")


def table(rows: list[dict]) -> dict[str, float]:
    """Prints what leaving out costs, seed by seed: clear if more than seeds differ by, and twice the placebo's."""
    above = {(row["off"], row["seed"]): row["above"] for row in rows}
    seeds = sorted({seed for _, seed in above})
    print("nothing off:", *(f"{above['nothing', seed]:.3f}" for seed in seeds), "nats above the floor")
    costs = {name: [above[name, s] - above["nothing", s] for s in seeds] for name, _ in above}
    del costs["nothing"]
    noise = 2 * max(map(abs, costs[PLACEBO]))
    for name, nats in costs.items():
        clear = min(map(abs, nats)) > max(noise, np.ptp(nats))
        print(f"{name:30}", *(f"{n:+.3f}" for n in nats), "" if clear else " no clear difference")
    return {name: np.mean(nats) for name, nats in costs.items()}


# %% tags=["nbval-ignore-output"]
runs = [(off, seed, experiment(seed, **how)) for off, how in SWITCHED_OFF.items() for seed in SEEDS]
rows = [{"off": off, "seed": seed, "lr": lr, "above": done.above} for off, seed, done in runs]
worth = table(rows)
answer("15.6", worth["warm-up"])
answer("15.7", worth["clipping"])
show(figures.ablation(rows), alt="Dots: far right without warm-up and without scaled initialisation.")

# %% [markdown]
r"""
The model is small, the run short, its rate high. So the same was recorded with chapter 07's model and 400 steps, at chapter
07's rate and at one five times as large (`python tests/bench/bench_recipe.py`, November 2026):
"""

# %%
recorded = json.loads(Path("../data/measurements/ablation.json").read_text(encoding="utf-8"))
for rate in sorted({row["lr"] for row in recorded["runs"]}):
    print(f"\nlr {rate:g}, {recorded['steps']} steps, {recorded['config']['n_layer']} layers")
    table([row for row in recorded["runs"] if row["lr"] == rate])
show(figures.ablation(recorded["runs"]), alt="The same for chapter 07's model, at two rates.")

# %% [markdown]
r"""
What the three tables say (the first one at laptop scale on the CPU of November 2026):

- *Warm-up* is worth 0.4 to 0.7 nats at a high rate. At the low one its differences, 0.01 and 0.06, are not clear. It does not
  make a run better; it lets the rate be higher.
- *The rate's decay* is worth about 0.2 nats at a high rate. At the low one the constant rate was, if anything, better, and
  stable–decay beat the cosine by 0.1, where it loses 0.01 to 0.05 at the high ones: whoever is far from the floor with a small rate gains from
  each step at full rate. That is a statement about the rate, not about the shape.
- *Scaled initialisation* (chapter 07) is worth something everywhere: 0.3 to 0.7 nats in the small model, 0.1 to 0.2 and 0.01 in the
  larger one.
- *Clipping* is worth 0.04 nats or less; more on the day of a bad batch.
- Decay of gains, too (*groups*), and other *betas* cost 0.01 where the difference is clear at all. *Weight decay* makes none in any. In 400 steps at
  0.002 a decay of 0.1 takes 4% off a weight: if it matters, then in runs a hundred times as long, and that is not shown here.

Seeds are up to 0.06 apart, while the placebo moves a run by 0.002 at most. Whoever compares two recipes by one run each, with
different seeds, does not see clipping at all.
"""

# %% [markdown]
r"""
## A run on paper

Runs of days are not watched; they are read. Each step is one line of JSON in `metrics.jsonl`, written when the step is done, so that
a crash tears one line at most.

How far out is a loss? A fixed limit ages: 4 nats are good at step 100 and an alarm at 10,000. llm.c compares with the last 128 steps, in
standard deviations. The new value is part of its own window.

*Predict.* Then one value cannot lie arbitrarily far out. How far at most, among 128?
"""


# %%
#| export run.metrics
import argparse
import json
import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

WINDOW = 128

# %%
predict("15.8", "the largest z-score that one of 128 values can have", guess=None)


# %%
#| export run.metrics
#| blank Window.z: take the value in, then compare it with the mean and deviation of all that is kept
class Window(deque):
    """The last 128 finite values of a run. The list of them is its state."""

    def __init__(self, values: Iterable[float] = ()):
        super().__init__(values, maxlen=WINDOW)

    def z(self, value: float) -> float | None:
        """Take a value in: its distance from the window's mean in standard deviations (llm.c, outlier_detector.h).

        None while the window is not full, and for a value that is not finite, which is not taken in.
        """
        if not math.isfinite(value):
            return None
        self.append(value)
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return None if len(self) < WINDOW else (value - mean) / deviation if deviation else 0.0


# %%
largest = Window([0.0] * (WINDOW - 1)).z(1e6)
print(f"{largest:.2f}, which is √{WINDOW - 1}")
answer("15.8", largest)

# %% [markdown]
r"""
So the usual limit of 6 is half of what is possible, and a value that comes back every second step is never an outlier. A value that is
not finite stays out: in llm.c it would sit in the running sums for ever.

A step as llm.c prints it, and a run as it lies on disk:
"""


# %%
#| export run.metrics
SPEED = dict(lr="lr {:.2e}", ms="{:.2f} ms", mfu="{:.1%} MFU", tokens_per_s="{:.0f} tok/s")
SEEN = dict(val_loss="val loss {:.6f}", hellaswag="HellaSwag {:.4f}", skipped="skipped: {}")


def step_line(line: dict, steps: int) -> str:
    """A line of metrics.jsonl as llm.c prints a step. What is not known is left out; nan stands for what is not finite."""
    text = f"step {line['step']:5}/{steps}"
    for name, digits in (("loss", 6), ("norm", 4)):
        value, z = line.get(name), line.get(f"{name}_z")
        text += f" | {name} {math.nan if value is None else value:.{digits}f}"
        text += "" if z is None else f" ({z:+.2f}z)"
    more = [form.format(line[name]) for name, form in (SPEED | SEEN).items() if line.get(name) is not None]
    return " | ".join([text, *more])


# %%
#| export run.metrics
def read_metrics(run: str | Path) -> list[dict]:
    """The steps of a run's metrics.jsonl, in order; a run is that file or the folder that holds it.

    A step that was made again after a crash counts as it was made last. A torn last line is left out, and stderr says so.
    """
    path = Path(run) / "metrics.jsonl" if Path(run).is_dir() else Path(run)
    if path.suffix == ".log":
        from nanogpt.plan.llmc import read_log  # chapter 22b

        return read_log(path)
    lines, steps = path.read_text(encoding="utf-8", errors="replace").splitlines(), {}
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            steps[line["step"]] = line
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a step of a run: {text[:40]}") from None
            print(f"{path}: the last line is torn and left out", file=sys.stderr)
    if not steps:
        raise ValueError(f"{path} holds no step yet")
    return [steps[step] for step in sorted(steps)]


# %%
#| export run.metrics
def column(lines: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of those lines that have a finite number there."""
    known = {x["step"]: x[name] for x in lines if x.get(name) is not None and math.isfinite(x[name])}
    return list(known), list(known.values())


# %% [markdown]
r"""
The run of above once more, long enough for a window, with one batch replaced by noise; and the same run without.
"""

# %% tags=["nbval-ignore-output"]
LONG, SPOILT = WINDOW + 60, WINDOW + 40
assert WINDOW <= SPOILT < LONG, (
    f"step SPOILT={SPOILT} must find a full window of {WINDOW}, and steps after it before LONG={LONG}"
)


def spoilt(step: int, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch; in step SPOILT, with random targets."""
    noise = torch.randint(config.vocab_size, y.shape, generator=torch.Generator().manual_seed(0))
    return (x, noise.to(y.device)) if step + 1 == SPOILT else (x, y)


both = {}
for name, how in {"sound": {}, "spoilt": {"spoil": spoilt}}.items():
    made, loss, norm = experiment(steps=LONG, **how), Window(), Window()
    pairs = enumerate(zip(made.losses, made.norms), 1)
    both[name] = [dict(step=n, loss=x, loss_z=loss.z(x), norm=y, norm_z=norm.z(y)) for n, (x, y) in pairs]
print(*(step_line(line, LONG) for line in both["spoilt"][SPOILT - 2 : SPOILT + 1]), sep="\n")


# %% [markdown]
r"""
A trainer can leave such a step out, and keep its batch to be looked at: chapter 17c's `train.skip_spikes`. It is asked before the update.

**Several runs together.** A curve alone says little. `python -m nanogpt plot RUN RUN` draws what runs have in common: faint each step, bold the means of
stretches, since a mean alone would hide a step that took ten times as long.
"""


# %%
#| export run.metrics
PANELS = dict(loss="loss [nats]", norm="norm of the gradient", lr="learning rate", tokens_per_s="tokens/s")


def draw_run(ax, name: str, lines: Sequence[dict], color: str, label: str) -> None:
    """One run in one panel: faint step by step, bold as the means of up to 100 stretches."""
    steps, values = column(lines, name)
    ax.plot(steps, values, color=color, alpha=0.3, lw=0.7)
    n = 1 if name == "lr" else max(1, math.ceil(len(steps) / 100))
    stretches = [slice(at, at + n) for at in range(0, len(steps), n)]
    ax.plot([fmean(steps[s]) for s in stretches], [fmean(values[s]) for s in stretches], color, label=label)
    if name == "loss":
        ax.plot(*column(lines, "val_loss"), "o", color=color, ms=4)
        ax.plot(*column([line for line in lines if "skipped" in line], name), "x", color=color)
        for floor in column(lines, "floor")[1][-1:]:
            ax.axhline(floor, color=color, ls=":")


# %%
#| export run.metrics
def draw_runs(runs: dict[str, Sequence[dict]]):
    """A figure of several runs by name: loss, norm, learning rate and throughput against the step, as far as known.

    Dots are validation losses, crosses updates that were left out, a dotted line the floor where a run knows one.
    """
    from matplotlib.figure import Figure

    values = {name: [v for lines in runs.values() for v in column(lines, name)[1]] for name in PANELS}
    shown = [name for name in PANELS if values[name]] or ["loss"]
    fig = Figure(figsize=(10, 3.25 * math.ceil(len(shown) / 2)), layout="constrained")
    for number, name in enumerate(shown, 1):
        ax = fig.add_subplot(math.ceil(len(shown) / 2), 2, number, xlabel="step", ylabel=PANELS[name])
        for color, (label, lines) in enumerate(runs.items()):
            draw_run(ax, name, lines, f"C{color}", label)
        low, high = min(values[name], default=0), max(values[name], default=0)
        if low > 0 and (name == "norm" or (name == "loss" and high > 20 * low)):
            ax.set_yscale("log")
        ax.set_ylim(bottom=0 if name == "tokens_per_s" else None)
        ax.grid(alpha=0.3)
    fig.axes[0].legend()
    return fig


# %% tags=["nbval-ignore-output"]
show(draw_runs(both), alt="Two runs on top of each other up to the spoilt step, where one leaps.")


# %%
#| export run.metrics
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(description="Draw loss, norm, rate and throughput of runs together.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder, its metrics.jsonl, or a main.log of llm.c"
    )
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_metrics(name) for name in args.runs})
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")


# %% [markdown]
r"""
**Are two runs the same?** After a resume, a new machine, a refactoring, curves that lie on top of each other prove little. Numbers do:
`python -m nanogpt compare RUN RUN` names the first step that differs, to the last bit, the largest difference, and whether that keeps within a bound.

*Predict.* In which step do the two runs part, and where are they furthest apart?
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


# %% tags=["nbval-ignore-output"]
for name in ("loss", "norm"):
    print(sentence := verdict(both["sound"], both["spoilt"], name)[1])
    assert f"first differs at step {SPOILT}," in sentence, "the runs differ before the batch does"


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


# %% tags=["nbval-ignore-output"]
predictions("15")

# %%
checkpoint("15")

# %% [markdown]
r"""
## Exercises

`course exercises release 15` writes these as a notebook to `released/`; `course check 15` runs their visible checks.

- **15-1** The batch that was cut, 25 minutes: mend gradient accumulation.
- **15-2** One vector, not many, 15 minutes: mend clipping.
- **15-3** What is pulled to zero, 20 minutes: mend decay groups.
- **15-4** AdamW by hand, 30 minutes: build one step.
- **15-5** A check for a schedule, 25 minutes: its ends above all.
- **15-6** Two recipes, one run each, 10 minutes: say what they show.

To explore:

1. Find the largest rate at which the run without warm-up is as good as the one with it. *Check*: `experiment(warmup=0, lr=…)`
   and `experiment(lr=…)` differ by less than their placebo at that rate.
2. A schedule whose fall follows 1 − √(share of the fall that is done) (Hägele et al. 2024). *Check*: never above `wsd`. Which is better, for
   two seeds?
3. Measure the noise scale of a run with 16 rows a batch at the same *loss*, not the same step. *Check*: at a loss of 2.2
   both runs' scales agree within a factor of two.

## Further reading

- Brown et al. 2020, *Language Models are Few-Shot Learners*, table 2.1 and appendix B: the recipe.
- Pascanu, Mikolov and Bengio 2013, *On the difficulty of training recurrent neural networks*, §3.2: clipping.
- Loshchilov and Hutter 2017, *SGDR*, and 2019, *Decoupled Weight Decay Regularization*: the cosine; the W in AdamW.
- McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, §2 and appendix A.
- Hu et al. 2024, *MiniCPM*, §4: warm-up–stable–decay. Hägele et al. 2024, *Scaling Laws and Compute-Optimal Training Beyond
  Fixed Training Durations*.
- Hugging Face 2024, *Fixing Gradient Accumulation*: the mean of means, found after years.
"""
