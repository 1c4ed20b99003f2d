# %% [markdown]
r"""
# 07 · Training: from ln V to the floor

The model of chapter 05 knows nothing, and the loop that teaches it has five lines. What takes days is everything
around the loop: a loss that cannot be compared with yesterday's, a validation that counts some tokens twice, a model
that never learns to look back and whose falling loss does not say so. So this chapter draws a map first: where can a loss
be, and what does a model know that is there?
"""

# %%
#| default_exp train
#| doc train: The training step and the loop around it.
#| doc weights: A model on disk: weights as safetensors, configuration as JSON.
#| doc evals: How good a model is: its loss on whole documents, and how often its answers are right.
#| doc optim: The learning rate as a function of the step.
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import display

from course.notebook import checkpoint, show
from nanogpt.corpus import stories
from nanogpt.corpus import ensure_corpus
from nanogpt.data import BatchStream
from nanogpt.shards import document_starts, open_shards, read_shard
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.precision import best_precision
from nanogpt.roofline import synchronize
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.tokenizer import BPETokenizer

# %%
#| export
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from nanogpt.model import GPT
from nanogpt.optim import decayed  # below
from nanogpt.precision import LossScaler, MasterAdamW, autocast

# %% [markdown]
r"""
Sizes come from the scale: a laptop trains half a million parameters in about a minute, a GPU trains GPT-2's 12 layers. Set
`TEXT` (or the variable `NANOGPT_TEXT`) to `tinyshakespeare` and everything below happens to Shakespeare, after
`course data tinyshakespeare`.
"""

# %%
TEXT = os.environ.get("NANOGPT_TEXT", "stories")
BUILT = Path("../data/built")
MODEL = BUILT / ("model" if TEXT == "stories" else f"model-{TEXT}")
device = pick_device()
small = GPTConfig(block_size=128, n_layer=2, n_head=8, n_embd=128)
config, B, steps, lr = {
    "ci": (small, 4, 600, 2e-3),
    "laptop": (small, 4, 1800, 2e-3),
    "gpu": (GPTConfig(), 32, 2000, 3e-4),
}[pick_scale(device)]
precision = "float32" if device.type == "cpu" else best_precision(device)
print(f"{TEXT}: {steps} steps of {B} rows of {config.block_size} tokens")


# %%
def prepared() -> Path:
    """The folder with the text's shards, made if it is not there."""
    if TEXT == "stories":
        ensure_corpus(BUILT / "stories")
        return BUILT / "stories"
    from nanogpt.prepare import prepare

    source = Path("../data/downloads") / f"{TEXT}.txt"
    if not source.exists():
        raise FileNotFoundError(f"{source} is not there; `course data {TEXT}` downloads it")
    tokenizer = BPETokenizer.train(source.read_text(encoding="utf-8"), 1024)
    tokenizer.save(BUILT / TEXT / "tokenizer.json")
    prepare(source, BUILT / TEXT, BUILT / TEXT / "tokenizer.json", val=0.1, paragraphs=True)
    return BUILT / TEXT


folder = prepared()
manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
config = replace(config, vocab_size=tokenizer.vocab_size)
train_shards, val_shards = open_shards(folder, "train"), open_shards(folder, "val")
val = [read_shard(path) for path in val_shards]
print(f"{sum(map(len, val)):,} tokens to validate on; {num_params(config):,} parameters to train")

# %% [markdown]
r"""
## The map

*Predict.* There are 1,024 tokens. What is the loss of a model that knows nothing? Of one that knows how frequent each token
is, and nothing else? Of one that also sees the token before? And what is left, after chapter 02, for one that knows
everything?

Each of these is a table that can be counted. `bigram[i]` are the log-probabilities of what follows token `i`, with a
little of the unigram mixed in, so that nothing new is impossible.
"""


# %%
def count_tables(shards: list[Path], V: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of a token alone, (V,), and after the one before it, (V, V)."""
    pairs = np.zeros(V * V)
    for path in shards:
        tokens = read_shard(path).astype(np.int64)
        pairs += np.bincount(tokens[:-1] * V + tokens[1:], minlength=V * V)
    pairs = pairs.reshape(V, V)
    unigram = (pairs.sum(0) + 0.1) / (pairs.sum() + 0.1 * V)
    bigram = (pairs + unigram) / (pairs.sum(1, keepdims=True) + 1)
    return torch.tensor(unigram).log(), torch.tensor(bigram).log()


unigram, bigram = count_tables(train_shards, config.vocab_size)
x, y = (
    torch.from_numpy(np.concatenate([t[s] for t in val]).astype(np.int64))
    for s in (slice(0, -1), slice(1, None))
)
lines = {
    "ln V: knows nothing": math.log(config.vocab_size),
    "unigram: knows frequencies": -unigram[y].mean().item(),
    "bigram: sees one token back": -bigram[x, y].mean().item(),
}
if "floor" in manifest:
    lines["floor: knows the grammar"] = manifest["floor"]
for name, nats in lines.items():
    print(f"{nats:.3f}  {name}")

# %%
fig, ax = plt.subplots(figsize=(7, 1.8))
for i, (name, nats) in enumerate(lines.items()):
    ax.plot([nats, nats], [0, 1 + 0.5 * (i % 2)], lw=2, c=f"C{i}")
    ax.text(nats, 1.1 + 0.5 * (i % 2), name.replace(": ", "\n"), ha="center", va="bottom", fontsize=8)
left, right = sorted(lines.values())[:2]
ax.annotate("", (right, 0.3), (left, 0.3), arrowprops={"arrowstyle": "<->"})
ax.text((left + right) / 2, 0.35, "needs attention", ha="center", va="bottom", fontsize=8)
ax.set(yticks=[], xlabel="loss (nats per token)", xlim=(-0.6, 7.5), ylim=(0, 2.2))
show(fig, alt="A line of losses from 0 to ln V, with the unigram, the bigram and the floor marked.")

# %% [markdown]
r"""
Everything left of the bigram line needs the past, and only attention brings it. A loss that stops near that line says that
the model has learned phrases and no facts.

## Before the first step

*Predict.* ln V is what equal probabilities cost. What does the untrained model's loss come to?
"""

# %%
g = seed_everything(0)
model = GPT(config, generator=g)
batch = BatchStream(train_shards, B=4, T=128).next_batch()
with torch.no_grad():
    print(f"ln V {math.log(config.vocab_size):.3f}, untrained model {model(*batch)[1]:.3f}")

# %% [markdown]
r"""
As it should be. If it were much higher, the initialisation would be wrong, and the first steps would be spent on
unlearning it.

But it hides something. GPT-2's 0.02 was chosen for models 768 to 1,600 wide. A matrix of standard deviation σ turns
inputs of variance one, which LayerNorm provides, into outputs of standard deviation σ√C. How strong is the signal in
a model that is as narrow as ours?
"""

# %%
for C in (1600, 768, 128):
    print(f"n_embd {C:4}: 0.02 × √{C} = {0.02 * math.sqrt(C):.2f}")

# %% [markdown]
r"""
Attention multiplies three such signals, query, key and value, before its output reaches anything, so at width 128 it
whispers. The MLPs hear the current token well enough and the loss falls, but heads that look a name up come several
times later (exercise 1 measures it). So the matrices are scaled to give the signal that they have in GPT-2 small. At
width 768 this does nothing.
"""


# %%
#| export
@torch.no_grad()
def scale_init(model: GPT) -> GPT:
    """Scale all matrices of a new model by √(768 / n_embd), so that 0.02 means what it means in GPT-2 small.

    A matrix with standard deviation σ gives signals of size σ√n_embd (Glorot and Bengio 2010, §4.2). Returns the model.
    """
    for p in model.parameters():
        if p.dim() == 2:
            p *= math.sqrt(768 / model.config.n_embd)
    return model


# %%
def new_model(seed: int = 0, **changes) -> GPT:
    """A fresh model on the device, drawn from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    return scale_init(GPT(replace(config, **changes), generator=generator)).to(device)


with torch.no_grad():
    print(f"untrained, scaled: {new_model().cpu()(*batch)[1]:.3f}, still close to ln V")

# %% [markdown]
r"""
## Steps

Of the five lines, four are one function; the fifth gets the next batch. Autocast, chapter 10's, wants the *type* of the
device: given `cuda:0`, as configs tend to say, it has crashed programs that ran well on their authors' machines.
"""


# %%
#| export
def target_shares(micro_batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Of all targets that count, those that are not -100, the share in each micro-batch."""
    if not micro_batches:
        raise ValueError("a step needs at least one micro-batch (x, y)")
    counts = torch.stack([(y != -100).sum() for _, y in micro_batches])
    return counts / counts.sum()


def gradient_is_fine(model: GPT, loss: Tensor, clip: float | None, scaler: LossScaler | None) -> bool:
    """Unscales and clips the gradient in place. False if the scaler says skip; FloatingPointError if not finite."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    if scaler is not None:
        finite = scaler.unscale(parameters)
        scaler.update(finite)
        if not finite:
            return False
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    if scaler is None and not torch.isfinite(norm + loss):  # the one wait for the device
        raise FloatingPointError(
            f"loss {loss:.3g} with a gradient of norm {norm:.3g}; the weights are as they were before this step"
        )
    if clip is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    return True


# %%
#| export
def train_step(
    model: GPT,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    precision: str = "float32",
    clip: float | None = None,
    scaler: LossScaler | None = None,
) -> Tensor:
    """One update from micro-batches (x, y), each (B, T): the mean loss before it, in nats per token, on the device.

    The mean is over all targets but -100, however they are dealt to micro-batches. precision: chapter 10's word; fp16
    takes a scaler, which skips an update that overflowed. clip: the largest norm that the gradient may have.
    FloatingPointError, the weights untouched, if loss or gradient is not finite.
    """
    shares = target_shares(micro_batches)
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    optimizer.zero_grad()
    loss = torch.zeros((), device=shares.device)
    for (x, y), share in zip(micro_batches, shares):
        with autocast(precision, x.device):
            part = share * model(x, y)[1]
        (part if scaler is None else part * scaler.scale).backward()
        loss += torch.where(share > 0, part.detach(), 0.0)
    if gradient_is_fine(model, loss, clip, scaler):
        optimizer.step()
    return loss


# %%
model, (x, y) = new_model(), (t.to(device) for t in batch)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
print("two steps on the same batch:", *(f"{train_step(model, optimizer, [(x, y)]):.2f}" for _ in range(2)))

# %% [markdown]
r"""
Two decisions stand around them.

*Which random numbers?* People report that their curve differs on every run. Dropout draws from PyTorch's global
generator, which any cell may have moved. So each step reseeds it, from a seed that the caller's generator gave, and the caller's
own state is put back at the end.

*Which learning rate?* Constant, and for the last 30% of the steps falling to zero, which takes out the noise that small
batches leave. Warm-up, cosine and decay groups are chapter 15's.
"""


# %%
#| export optim
def decayed(step: int, steps: int, decay: float) -> float:
    """The factor of the learning rate: 1, and over the last `decay` of the steps linearly to zero."""
    return min(1.0, (steps - step) / max(1.0, decay * steps))


# %%
print("of ten steps, decay 0.3:", *(f"{decayed(step, 10, 0.3):.2f}" for step in range(10)))


# %%
#| export
from nanogpt.optim import decayed


def train(
    model: GPT,
    stream,
    steps: int,
    lr: float,
    *,
    decay: float = 0.3,
    generator: torch.Generator | None = None,
    precision: str = "float32",
    clip: float | None = None,
    on_step: Callable[[int, Tensor], object] | None = None,
) -> list[float]:
    """Train in place with AdamW (Loshchilov and Hutter 2019) on `steps` batches; the loss of each, in nats per token.

    stream: has next_batch() -> (x, y), both (B, T), on the model's device. decay: see `decayed`. generator seeds
    dropout; nothing else is random. precision, clip: see `train_step`. on_step(step, loss) is called after each step;
    the loss is on the device, and whoever reads it waits. FloatingPointError once loss or gradient is not finite.
    """
    device = next(model.parameters()).device
    options = dict(lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    if precision == "bf16-masters":
        optimizer = MasterAdamW(model.parameters(), **options)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **options, fused=True)
    scaler = LossScaler() if precision == "fp16" else None
    seed = int(torch.randint(2**31, (), generator=generator or torch.Generator()))
    losses: list[Tensor] = []
    model.train()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for step in tqdm(range(steps), unit="step", disable=None):
            torch.manual_seed(seed + step)  # dropout depends on the step, not on what ran before
            optimizer.param_groups[0]["lr"] = lr * decayed(step, steps, decay)
            try:
                losses.append(train_step(model, optimizer, [stream.next_batch()], precision, clip, scaler))
            except FloatingPointError as error:
                raise FloatingPointError(f"step {step}: {error}; lower lr={lr:g}") from None
            if on_step:
                on_step(step, losses[-1])
    return torch.stack(losses).tolist()


# %% [markdown]
r"""
## One batch first

Before a long run: can this model, with this loop, learn four rows by heart? It must reach a loss near zero. If not, something is
broken that no amount of data mends: the targets are not shifted, the mask looks ahead, the optimiser holds other
parameters than the model's.

*Predict.* Memorising four rows of 128 tokens: how many steps?
"""

# %%
one_batch = SimpleNamespace(next_batch=lambda: tuple(t.to(device) for t in batch))
losses = train(new_model(), one_batch, steps=200, lr=lr)
for goal in (1, 0.01):
    reached = next(i for i, nats in enumerate(losses) if nats < goal)
    print(f"below {goal} within {math.ceil((reached + 1) / 25) * 25} steps")
assert losses[-1] < 0.01

# %% [markdown]
r"""
*Check.* Reproducible means bit for bit, whatever ran before, and with dropout on. And training leaves the global
generator as it found it.
"""


# %%
def short_run(seed: int) -> list[float]:
    stream = BatchStream(train_shards, B, config.block_size, seed=seed, device=device)
    return train(new_model(seed, dropout=0.1), stream, 5, lr, generator=torch.Generator().manual_seed(seed))


first = short_run(seed=1)
torch.rand(1000)  # some other cell draws
state = torch.get_rng_state()
second = short_run(seed=1)
assert torch.equal(torch.get_rng_state(), state)
assert short_run(seed=2) != first
print("largest difference:", max(abs(a - b) for a, b in zip(first, second)))
assert first == second or device.type != "cpu"  # GPU kernels may add in any order

# %% [markdown]
r"""
## What the first hundred steps learn

The cheapest way down from ln V is to say how frequent tokens are, and to say the same everywhere. Is that what
happens? Let a model train for a hundred steps, look at its predictions on the way, and compare them with the counts.
"""

# %%
learner, snapshots = new_model(), {}
probe = torch.from_numpy(val[0][: 16 * 128].astype(np.int64)).view(16, 128).to(device)


def snapshot(step: int, loss: torch.Tensor | None = None) -> None:
    """Mean prediction over all positions, and the distance to the counts of that mean and of each prediction."""
    if step + 1 in (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100):
        with torch.no_grad():
            logp = learner(probe)[0].log_softmax(-1).flatten(0, 1).cpu().double()  # (N, V)
        p = unigram.exp()
        mean = logp.exp().mean(0)
        own = (logp.exp() * (logp - mean.log())).sum(-1).mean().item()
        snapshots[step + 1] = mean, (p * (unigram - mean.log())).sum().item(), own


snapshot(-1)
stream = BatchStream(train_shards, B, config.block_size, seed=1, device=device)
losses = train(learner, stream, 100, lr, decay=0.0, on_step=snapshot)

# %%
fig, axes = plt.subplots(1, 4, figsize=(7.4, 2.3), width_ratios=[1, 1, 1, 1.5], layout="constrained")
for ax, step in zip(axes, (0, 20, 100)):
    ax.loglog(unigram.exp(), snapshots[step][0], ".", ms=3, alpha=0.5)
    ax.plot([1e-7, 0.1], [1e-7, 0.1], "k", lw=0.7)
    ax.set(xlim=(1e-7, 0.2), ylim=(1e-7, 0.2), title=f"step {step}", xlabel="frequency")
axes[0].set_ylabel("mean prediction")
for i, label, at in (
    (1, "mean prediction\nvs counts", (98, 0.2)),
    (2, "each prediction\nvs their mean", (55, 2.1)),
):
    axes[3].plot(snapshots.keys(), [s[i] for s in snapshots.values()], ".-")
    axes[3].text(*at, label, c=f"C{i - 1}", fontsize=7, ha="right")
axes[3].set(xlabel="step", ylabel="distance (KL, nats)")
show(
    fig,
    alt="Predicted against counted token frequencies: a flat cloud at step 0, near the diagonal at step 20; then predictions begin to differ by context.",
)

# %% [markdown]
r"""
The two curves tell it in order. The distance between the model's mean prediction and the counts falls first: the frequencies are
learned in a few dozen steps. How much the single predictions differ from their own mean is what the model makes of its
context: almost nothing at first, and most of the progress from step 20 on.

## Measuring a loss

*Find the bug.* A loss for a held-out text, as it is often written:
"""


# %% tags=["nbval-ignore-output"]
def careless_loss(model: GPT, tokens: np.ndarray, B: int, T: int) -> float:
    """Mean of the batches' mean losses."""
    rows = (len(tokens) - 1) // T
    x, y = (
        torch.from_numpy(tokens[i : i + rows * T].astype(np.int64)).view(rows, T).to(device) for i in (0, 1)
    )
    with torch.no_grad():
        return torch.stack([model(x[i : i + B], y[i : i + B])[1] for i in range(0, rows, B)]).mean().item()


with_dropout = new_model(dropout=0.1)
with_dropout.load_state_dict(learner.state_dict())
for B_eval in (7, 64, 64):
    print(f"B = {B_eval:2}: {careless_loss(with_dropout, val[0][:9000], B_eval, 128):.3f}")

# %% [markdown]
r"""
Three numbers for one model and one text, and none of them right. Dropout is still on, so that even the same call differs. The last
batch is smaller and counts as much as the others, so that the batch size changes the result; with several
processes their number does. The last tokens, which fill no row, are not counted at all. And a row starts where the last one
stopped, so that many stories are judged without their beginning.

Here is what should hold. Every token is predicted once. Its context is its own document, from the beginning if that fits, else
at least half a context. The result is a sum over tokens divided by their number.
"""


# %%
#| export evals
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

from nanogpt.model import GPT
from nanogpt.precision import autocast
from nanogpt.shards import document_starts


# %%
#| export evals
def windows(tokens: np.ndarray, T: int, eot: int) -> Iterator[tuple[int, int, int]]:
    """(start, new, stop): tokens start..stop-1 go in, and those after new, up to stop, are to be predicted.

    Documents, which begin at eot, are kept apart. One longer than T is covered by windows that overlap by half.
    Every token but the first of the shard is predicted exactly once.
    """
    starts = document_starts(tokens, eot)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(tokens) - 1]):
        new = start
        while new < end:
            stop = min(start + T, end)
            yield start, new, stop
            start, new = max(start, min(stop - T // 2, end - T)), stop


# %%
for case in ([9, 1, 2, 3, 9, 4], [9, *range(9)]):
    print(f"{case} with T = 4: {list(windows(np.array(case), 4, eot=9))}")


# %%
#| export evals
@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Dropout off within the block, and each module's mode restored after it; gives the model's device."""
    training = [module for module in model.modules() if module.training]  # some may be frozen
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        for module in training:
            module.training = True


# %%
was = with_dropout.training
with evaluating(with_dropout):
    print("dropout on:", with_dropout.training)
print("as before:", with_dropout.training == was)


# %%
#| export evals
@torch.no_grad()
def total_loss(
    model: GPT, tokens: np.ndarray, eot: int, B: int = 32, precision: str = "float32"
) -> tuple[float, int]:
    """Sum of the losses of a shard's tokens, in nats, and how many they are: all but the first, each once.

    Sums over several shards, on however many processes, add up to the whole.
    """
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats, count = 0.0, 0
    with evaluating(model) as device:
        for i in range(0, len(rows), B):
            longest = max(stop - start for start, _, stop in rows[i : i + B])
            x = torch.zeros(len(rows[i : i + B]), longest, dtype=torch.int64)
            y = torch.full_like(x, -100)  # what cross_entropy leaves out
            for row, (start, new, stop) in enumerate(rows[i : i + B]):
                piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
                x[row, : stop - start] = piece[:-1]
                y[row, new - start : stop - start] = piece[1 + new - start :]
            with autocast(precision, device):
                logits, _ = model(x.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten().to(device), reduction="sum")
            nats, count = nats + loss.item(), count + int((y != -100).sum())
    return nats, count


# %%
#| export evals
def evaluate(
    model: GPT, shards: Iterable[np.ndarray], eot: int, B: int = 32, precision: str = "float32"
) -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    totals = [total_loss(model, tokens, eot, B, precision) for tokens in shards]
    if not sum(count for _, count in totals):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return sum(nats for nats, _ in totals) / sum(count for _, count in totals)


# %% tags=["nbval-ignore-output"]
some = val[0][:9000]
for B_eval in (7, 64, 64):
    print(f"B = {B_eval:2}: {evaluate(with_dropout, [some], tokenizer.eot, B_eval):.3f}")
whole, parts = total_loss(learner, some, tokenizer.eot), [some[:5001], some[5000:]]
assert sum(total_loss(learner, part, tokenizer.eot)[1] for part in parts) == whole[1] == len(some) - 1
assert with_dropout.training  # left as it was

# %% [markdown]
r"""
## Who has how many?

The mean loss is mostly small talk. Whether the model uses facts is a question with answers that are right or wrong:
every story says who has how many, in number words that follow from what was said before, and chapter 02 knows where they
stand. Does the model put its highest probability on the right word?
"""


# %%
#| export evals
@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's; one longer than the model's context is read
    through `windows`. model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    right, asked = Counter(), Counter()
    with evaluating(model) as device:
        for story in stories:
            ids = np.array([tokenizer.eot, *tokenizer.encode(story.text)])
            limit = model.config.block_size if hasattr(model, "config") else len(ids)
            hit = []  # of ids[1:], whether it was the first choice
            for start, new, stop in windows(ids, limit, tokenizer.eot):
                logits, _ = model(torch.from_numpy(ids[None, start:stop]).to(device))
                best = logits[0, new - start :].argmax(-1).cpu().numpy()
                hit += (best == ids[new + 1 : stop + 1]).tolist()
            ends = np.cumsum(
                [len(tokenizer.decode([i])) for i in ids[1:].tolist()]
            )  # of each token, in the text
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                for which in (kind, "all"):
                    right[which] += all(hit[first : last + 1])
                    asked[which] += 1
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {which: right[which] / asked[which] for which in sorted(asked)}


# %% [markdown]
r"""
*Predict.* After `had` come some twelve number words, not equally often. How often is a table of pairs right?

A bigram model is an embedding whose rows are logits, so the same function measures it:
"""


# %%
class Bigram(torch.nn.Embedding):
    def forward(self, idx: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(idx), None


asked = list(stories(400, seed=1))  # from another seed than the shards: the model has not read these
if TEXT == "stories":
    baseline = answer_accuracy(Bigram.from_pretrained(bigram), asked, tokenizer)["all"]
    print(f"{sum(len(story.answers) for story in asked)} answers, of which the bigram knows {baseline:.0%}")

# %% [markdown]
r"""
## The run

*What is a row?* `BatchStream` cuts rows from the stream wherever they fall. Chapter 03 counted: at T = 128, a third of all tokens
belong to a story whose beginning is out of sight, and such tokens teach a model to guess names rather than to look them
up. For documents shorter than a row there is a better way: begin every row where a story begins. A row then goes on
into the next story, which it also sees from its beginning.
"""


# %%
class WholeStories:
    """Batches whose rows each begin at a document, drawn at random, and run on for T tokens."""

    def __init__(self, paths: list[Path], B: int, T: int, seed: int):
        self.tokens = np.concatenate([read_shard(path) for path in paths])
        starts = document_starts(self.tokens, tokenizer.eot)
        self.starts, self.T = starts[starts < len(self.tokens) - T], T
        self.B, self.generator = B, torch.Generator().manual_seed(seed)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(len(self.starts), (self.B,), generator=self.generator)
        at = self.starts[drawn.numpy()][:, None] + np.arange(self.T + 1)  # (B, T + 1)
        rows = torch.from_numpy(self.tokens[at].astype(np.int64)).to(device)
        return rows[:, :-1], rows[:, 1:]


if TEXT == "stories":
    stream = WholeStories(train_shards, B, config.block_size, seed=0)
else:
    stream = BatchStream(train_shards, B, config.block_size, seed=0, device=device)
for row in stream.next_batch()[0][:2].tolist():
    print(tokenizer.decode(row[:12]), "…")

# %% [markdown]
r"""
A live plot shows the loss as it comes: one figure, updated in place. In a terminal, `train` has a plain progress bar instead.
"""


# %%
class LivePlot:
    """Draws losses as they come: every `every` steps the figure is replaced. Call it with (step, loss)."""

    def __init__(self, lines: dict[str, float], steps: int, every: int = 100):
        self.lines, self.steps, self.every, self.losses = lines, steps, every, []
        self.handle = display({"text/plain": "waiting for the first losses"}, raw=True, display_id=True)

    def __call__(self, step: int, loss: float) -> None:
        self.losses.append(loss.item())
        if (step + 1) % self.every == 0 or step + 1 == self.steps:
            show(
                self.draw(), alt="The training loss so far, between the lines of the map.", handle=self.handle
            )

    def draw(self) -> plt.Figure:
        fig, ax = plt.subplots(figsize=(7, 3.4))
        ax.semilogy(self.losses, lw=0.4, alpha=0.5, c="C0")
        smooth = np.convolve(self.losses, np.ones(50) / 50, "valid")
        ax.plot(np.arange(len(smooth)) + 25, smooth, c="C0", label="mean of 50 batches")
        for i, (name, nats) in enumerate(self.lines.items()):
            ax.axhline(nats, c=f"C{i + 1}", lw=1, ls="--")
            ax.text(self.steps, nats, name.split(":")[0], c=f"C{i + 1}", ha="right", va="bottom", fontsize=8)
        ax.set(xlim=(0, self.steps), xlabel="step", ylabel="loss (nats per token)")
        ax.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        ax.minorticks_off()
        ax.legend(fontsize=8)
        return fig


# %% [markdown]
r"""
*Predict.* Half a million parameters, 512 tokens a step. How far above the floor will the loss on held-out stories end, in per
cent? When does the model begin to know who has how many: with the grammar, or after it?
"""

# %% tags=["nbval-ignore-output"]
model, live, right = new_model(), LivePlot(lines, steps), {}


def watch(step: int, loss: float) -> None:
    live(step, loss)
    if TEXT == "stories" and (step + 1) % 100 == 0:
        right[step + 1] = answer_accuracy(model, asked[:60], tokenizer)["all"]


start = time.perf_counter()
losses = train(
    model, stream, steps, lr, generator=torch.Generator().manual_seed(0), precision=precision, on_step=watch
)
synchronize(device)
seconds = time.perf_counter() - start
live.handle.update({"text/plain": "trained; the same figure stands below"}, raw=True)

# %% tags=["nbval-ignore-output"]
tokens = steps * B * config.block_size
print(f"{steps} steps, {tokens:,} tokens, {seconds:.0f} s, {tokens / seconds:,.0f} tokens/s")
show(
    live.draw(),
    alt="Training loss against steps: below the bigram line after some 100 steps, then slowly towards the floor.",
)
if right:
    fig, ax = plt.subplots(figsize=(7, 2.2))
    ax.plot(right.keys(), right.values(), ".-", label="model")
    ax.axhline(baseline, c="C3", lw=1, ls="--", label="bigram")
    ax.set(xlim=(0, steps), ylim=(0, 1), xlabel="step", ylabel="answers right")
    ax.legend(fontsize=8)
    show(
        fig,
        alt="Share of right answers against steps: at the bigram's level for some hundred steps, then a sudden rise.",
    )

# %% [markdown]
r"""
The loss falls smoothly; the accuracy does not. For some hundred steps it stays where a table of pairs is, and then
rises within a hundred or two. To copy a number, a head must look for numbers *and* pass on what it finds; half of that is
worth nothing, so that nothing pulls it into place until chance has made a beginning. The loss hides this, since numbers are
few of its tokens. Measure what you care about.

## Check

All held-out tokens, against the floor of the very same stories; then the answers. Expect a smaller loss than the curve's
last one: rows of `WholeStories` hold more beginnings than ends, and beginnings are where the choices are.
"""

# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
loss = evaluate(model, val, tokenizer.eot, precision=precision)
record = {
    "text": TEXT,
    "steps": steps,
    "tokens": tokens,
    "seconds": seconds,
    "val_loss": loss,
    "lines": lines,
}
record |= {"losses": losses[:: max(1, steps // 200)], "parameters": num_params(config), "device": str(device)}
print(f"held-out loss {loss:.3f} nats per token, on {sum(map(len, val)):,} tokens")
if TEXT == "stories":
    accuracy = answer_accuracy(model, asked, tokenizer)["all"]
    record |= {"floor": manifest["floor"], "accuracy": accuracy, "bigram_accuracy": baseline}
    print(f"floor {manifest['floor']:.3f}, {loss / manifest['floor'] - 1:.1%} above it")
    print(f"who has how many: {accuracy:.0%} right; the bigram {baseline:.0%}")
print(f"measured in {time.perf_counter() - start:.0f} s")

# %%
if TEXT == "stories" and steps >= 1800:
    assert manifest["floor"] < loss < 1.15 * manifest["floor"]
    assert accuracy > 2 * baseline and accuracy > 0.6
assert loss < lines["bigram: sees one token back"]

# %% [markdown]
r"""
The loss must also stay *above* the floor, on tokens that were not trained on. If a run ever falls below it, celebrate
later: it has seen the validation set, or the future.

## See

Chapter 02 shaded a story by what a perfect reader has to pay. This is what our model pays, token by token; framed, the
answers. Free choices should be dark, and what follows from a fact should be white.
"""


# %%
def draw_costs(ax, story, width: int = 76) -> None:
    """The story's tokens, shaded by the nats that the model pays for them."""
    ids = [tokenizer.eot, *tokenizer.encode(story.text)]
    with evaluating(model) as where, torch.no_grad():
        logits, _ = model(torch.tensor([ids[:-1]], device=where))
    nats = torch.nn.functional.cross_entropy(logits[0].float().cpu(), torch.tensor(ids[1:]), reduction="none")
    x, y, at = 0, 0, 0
    for token, cost in zip(map(lambda i: tokenizer.decode([i]), ids[1:]), nats.tolist()):
        x, y = (0, y - 1) if x + len(token) > width else (x, y)
        answer = any(at < end and start < at + len(token) for start, end in story.answers)
        box = {
            "facecolor": plt.cm.Blues(min(1, cost / 4.5)),
            "edgecolor": "crimson" if answer else "none",
            "pad": 1,
        }
        color = "white" if cost > 2.4 else "black"
        indent = len(token) - len(token.lstrip())
        ax.text(x + indent, y, token.strip(), family="monospace", fontsize=8.5, color=color, bbox=box)
        x, at = x + len(token), at + len(token)
    ax.set(xlim=(0, width), ylim=(y - 0.6, 0.9))
    ax.axis("off")


# %% tags=["nbval-ignore-output"]
if TEXT == "stories":
    fig, axes = plt.subplots(2, figsize=(7.2, 3.2), layout="constrained")
    for ax, story in zip(axes, asked[2:4]):
        draw_costs(ax, story)
    show(
        fig,
        alt="Two stories, each token shaded by the nats the model pays: names and things are dark once, then white.",
    )

# %% [markdown]
r"""
## Saving

A checkpoint is often `torch.save(config_object_and_weights)`. It stores the *path* of the config's class, so that it
breaks when the class moves, and whoever loads it must let it run code. Ours is two files: weights as safetensors, which
can hold nothing else, and the config as JSON. The tied matrix is stored once.
"""


# %%
#| export weights
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig


# %%
#| export weights
def digest(config: dict, weights: bytes) -> str:
    """SHA-256 of both files: the configuration as canonical JSON, then the weights."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode() + weights).hexdigest()


def save_model(model: GPT, folder: str | Path) -> None:
    """Write model.safetensors and config.json, with the SHA-256 of both, into a folder, each atomically."""
    config = asdict(model.config)
    tensors = {n: p.detach().cpu().contiguous() for n, p in model.named_parameters()}  # tied ones come once
    weights = save(tensors)
    with atomically(Path(folder) / "model.safetensors") as file:
        file.write(weights)
    save_json(Path(folder) / "config.json", config | {"sha256": digest(config, weights)})


# %%
save_model(model, MODEL)
tokenizer.save(MODEL / "tokenizer.json")
save_json(MODEL / "train.json", record)
print(*sorted(path.name for path in MODEL.iterdir()))


# %%
#| export weights
def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The GPT that save_model wrote, in evaluation mode and the dtype it was saved in.

    OSError or ValueError, in one sentence, if it cannot be, or if a bit of either file has changed.
    """
    folder = Path(folder)
    for path in (folder / "config.json", folder / "model.safetensors"):
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is not there; chapter 07 writes it, or save_model(model, folder)"
            )
    try:
        fields = json.loads((folder / "config.json").read_bytes())
        sha256 = fields.pop("sha256", None)
        data = (folder / "model.safetensors").read_bytes()
        weights = load(data)
        model = empty_model(GPTConfig(**fields), weights)
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        SafetensorError,
    ) as error:
        raise ValueError(f"{folder} holds no model that save_model wrote whole: {error}") from None
    if sha256 != digest(fields, data):
        raise ValueError(
            f"{folder}: config.json or model.safetensors was changed since save_model wrote them"
        )
    if bad := [name for name, p in weights.items() if not p.isfinite().all()]:
        raise ValueError(
            f"{folder}: {bad[0]} holds NaN or infinity; it was saved after its training had failed"
        )
    model.load_state_dict(weights, strict=False, assign=True)
    model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.to(device).eval()


# %%
#| export weights
def empty_model(config: GPTConfig, weights: dict[str, torch.Tensor]) -> GPT:
    """A GPT without memory, on the meta device, whose names and shapes are those of weights; else ValueError."""
    layers = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    if layers != config.n_layer:  # first: even without memory, a hundred thousand layers take minutes
        raise ValueError(f"config.json says n_layer={config.n_layer}, model.safetensors has {layers}")
    with torch.device("meta"):
        model = GPT(config)
    expected = {name: p.shape for name, p in model.named_parameters()}
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    found = {name: p.shape if p.dtype in kinds else p.dtype for name, p in weights.items()}
    if wrong := sorted({name for name, _ in expected.items() ^ found.items()}):
        raise ValueError(f"config.json and model.safetensors disagree about {', '.join(wrong[:3])}")
    return model


# %%
again = load_model(MODEL, device)
with torch.no_grad(), evaluating(model):
    print("the same logits, bit for bit:", torch.equal(model(probe)[0], again(probe)[0]))

# %%
checkpoint("07")

# %% [markdown]
r"""
## Exercises

1. Leave `scale_init` out and train again. Where does the curve stay, and for how long? Check the accuracy, not only the loss.
2. `n_layer=1` has one round of attention. Which facts can it still use, and which not? Check by counting right answers that are
   copied (the story said this number before) and those that are computed, apart.
3. Write `loss_by_position`: the mean held-out loss of tokens 0 to 15 of a story, 16 to 31, and so on. Why does it fall? Check:
   weighted by their numbers, the parts add up to `evaluate`.
4. Train on `BatchStream` instead of `WholeStories`, with three seeds each. Check the step at which the accuracy
   passes one half: how far apart are the seeds?
5. Set `decay=0.0`. How much of the distance to the floor did the falling learning rate bring? Check with three seeds,
   and say how large the difference between seeds is.

## Further reading

- Loshchilov and Hutter 2019, *Decoupled Weight Decay Regularization*, §2: what the W in AdamW changes.
- Olsson et al. 2022, *In-context Learning and Induction Heads*: the sudden falls, in models from one layer up.
- Karpathy 2019, *A Recipe for Training Neural Networks*: overfit one batch, verify the loss at the start.
- Glorot and Bengio 2010, *Understanding the difficulty of training deep feedforward neural networks*, §4.2.
"""
