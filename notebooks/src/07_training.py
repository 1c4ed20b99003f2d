# %% [markdown]
r"""
# 07 · Training: from ln V to the floor

The model of chapter 05 knows nothing, and the loop that teaches it has five lines. What takes days is everything
around the loop: a loss that cannot be compared with yesterday's, a validation that counts some tokens twice, a falling
loss that does not say what was learned. So this chapter draws a map first: where can a loss be, and what does a model
know that is there?
"""

# %%
#| default_exp gpt.train
#| doc gpt.train: The training step and the loop around it.
#| doc gpt.optim: The learning rate as a function of the step, and the optimizer of a run.
#| doc evals.losses: How good a model is, measured on text that it was not trained on.
#| doc gpt.weights: A model on disk: weights as safetensors, configuration as JSON, and a hash of both.
import os
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from course.figures import training as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus, entries, said, stories
from nanogpt.corpora.grammar import Draw, Pick, alternatives
from nanogpt.device import pick_device, pick_scale
from nanogpt.gpt.model import num_params
from nanogpt.text.data import DocumentStream
from nanogpt.text.shards import document_starts, load_manifest, open_shards, read_shard
from nanogpt.text.tokenizer import BPETokenizer

# %%
#| export
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nanogpt.gpt.model import GPT

# %%
#| export gpt.weights
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.text.files import atomically, save_json

# %% [markdown]
r"""
All sizes stand here: a laptop trains half a million parameters, a GPU trains GPT-2's 12 layers.
Change them: everything below follows. With `TEXT` (or the variable `NANOGPT_TEXT`) set to `tinyshakespeare` it happens to
Shakespeare, after `course data tinyshakespeare`; then there is no floor, and what needs one is left out.
"""

# %%
TEXT, SEED = os.environ.get("NANOGPT_TEXT", "stories"), 0
device = pick_device()
small = GPTConfig(block_size=128, n_layer=2, n_head=8, n_embd=128)
config, B, steps, lr = {
    "ci": (small, 4, 600, 2e-3),
    "laptop": (small, 4, 1600, 2e-3),
    "gpu": (GPTConfig(), 16, 2000, 3e-4),  # in half precision within a T4's 16 GB
}[pick_scale(device)]
T = config.block_size
precision = "float32" if device.type == "cpu" else best_precision(device)
BUILT = Path("../data/built")
MODEL = BUILT / ("model" if TEXT == "stories" else f"model-{TEXT}")
print(f"{TEXT}: {steps} steps of {B} rows of {T} tokens, in {precision}")


# %%
def prepare_text(folder: Path) -> None:
    """Shards of data/downloads/TEXT.txt, every paragraph a document."""
    from nanogpt.corpora.prepare import prepare

    source = Path(f"../data/downloads/{TEXT}.txt")
    if not source.exists():
        raise FileNotFoundError(f"{source} is not there; `course data {TEXT}` downloads it")
    BPETokenizer.train(source.read_text(encoding="utf-8"), 1024).save(folder / "tokenizer.json")
    prepare(source, folder, folder / "tokenizer.json", val=0.1, paragraphs=True)


folder = BUILT / TEXT
_ = ensure_corpus(folder) if TEXT == "stories" else prepare_text(folder)
floor = load_manifest(folder).get("floor")  # in nats per token of val; None where nobody knows it
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
eot, V, fast = tokenizer.eot, tokenizer.vocab_size, tokenizer.to_tiktoken()
config = replace(config, vocab_size=V)
paths = {split: open_shards(folder, split) for split in ("train", "val")}
text, val = (np.concatenate([read_shard(p) for p in paths[s]]).astype(np.int64) for s in ("train", "val"))
print(f"{len(text):,} tokens to train on, {len(val):,} to validate on; {num_params(config):,} parameters")

# %% [markdown]
r"""
## The map

There are 1,024 tokens. What is the loss of a model that knows nothing? Of one that knows how frequent each token is, and
nothing else? Of one that also sees the token before? And what is left, after chapter 02, for one that knows
everything?

All but the last are tables that can be counted. A context seen twice says little, so its counts are mixed with the
guess that a shorter context gives, which weighs as much as the context has had different successors (Witten and Bell
1991).
"""


# %%
def find(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The values of the wanted keys, 0 for a key that is not there."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def refine(p: np.ndarray, context: np.ndarray, context_val: np.ndarray) -> np.ndarray:
    """P(token | context) for each token of val, as counted in text. p: the guess without this context."""
    pairs, n = np.unique(context * V + text[1:], return_counts=True)
    known, first, kinds = np.unique(pairs // V, return_index=True, return_counts=True)
    total = find(known, np.add.reduceat(n, first), context_val)
    kinds = find(known, kinds, context_val).clip(min=1)
    return (find(pairs, n, context_val * V + val[1:]) + kinds * p) / (total + kinds)


def last(tokens: np.ndarray, n: int) -> np.ndarray:
    """The last n tokens at each position, as one number."""
    key = np.zeros(len(tokens) - 1, np.int64)
    for back in range(n):
        key[back:] += tokens[: len(key) - back] * V**back
    return key


# %%
def place(tokens: np.ndarray) -> np.ndarray:
    """How far into its document each token stands."""
    starts = document_starts(tokens, eot)
    return (np.arange(len(tokens)) - np.repeat(starts, np.diff(starts, append=len(tokens))))[:-1]


ngram = [np.full(len(val) - 1, 1 / V)]  # ngram[n]: what one who sees n - 1 tokens gives each token of val
for n in range(5):
    ngram.append(refine(ngram[-1], last(text, n), last(val, n)))
far = max(place(text).max(), place(val).max()) + 1
placed = refine(ngram[2], last(text, 1) * far + place(text), last(val, 1) * far + place(val))
tables = {
    "ln V: knows nothing": ngram[0],
    "unigram: knows frequencies": ngram[1],
    "bigram: sees one token": ngram[2],
    "position: sees one token and where it stands": placed,
    "3-gram: sees two tokens": ngram[3],
    "5-gram: sees four tokens": ngram[5],
}
lines = {name: -np.log(p).mean().item() for name, p in tables.items()}
lines |= {"floor: knows the grammar": floor} if floor else {}
for name, nats in lines.items():
    print(f"{nats:.3f}  {name}")

# %%
best = list(lines.values())
spans = {"needs attention": (floor, best[3]), "needs more than phrases": (floor, best[5])} if floor else {}
show(figures.loss_map(lines, spans), alt="Losses on a line from floor to ln V, each named by what it knows.")

# %% [markdown]
r"""
A GPT without attention sees the token and its position and nothing else. So what lies left of that line is attention's
work. But attention may bring little: whoever sees four tokens back writes good phrases and knows no facts, since who
has how many was said further away. Only left of the 5-gram does a model use what it read.

## Before the first step

*Predict.* ln V is what equal probabilities cost. What does the untrained model's loss come to?
"""

# %%
predict("07.1", "the untrained model's loss", guess=None, unit="nats")
batch = DocumentStream(paths["train"], B, T, seed=SEED, device=device).next_batch()
untrained = GPT(config, generator=torch.Generator().manual_seed(SEED)).to(device)
with torch.no_grad():
    first = untrained(*batch)[1].item()
print(f"ln V {math.log(V):.3f}; with chapter 05's σ²/2 {math.log(V) + config.n_embd * 0.02**2 / 2:.3f}")
print(f"untrained model: {first:.3f}")
answer("07.1", first)

# %% [markdown]
r"""
As it should be. If it were much higher, the initialisation would be wrong, and the first steps would be spent on
unlearning it.

But GPT-2's 0.02 was chosen for models 768 to 1,600 wide. A matrix of standard deviation σ turns inputs of variance one,
which LayerNorm provides, into outputs of standard deviation σ√C. How strong is the signal in a narrow model?
"""

# %%
print(*(f"0.02 × √{C} = {0.02 * math.sqrt(C):.2f}" for C in (1600, 768, config.n_embd)), sep="\n")


# %%
#| export
#| blank scale_init: multiply every parameter that has two dimensions, in place
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
def new_model(seed: int = SEED, **changes) -> GPT:
    """A fresh model on the device, drawn from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    return scale_init(GPT(replace(config, **changes), generator=generator)).to(device)


print(f"untrained, scaled: {new_model()(*batch)[1].item():.3f}, still close to ln V")

# %% [markdown]
r"""
At width 768 the scaling does nothing. At width 128 it pays. Two pairs of runs with these sizes at lr=2e-3 (November 2026):
after the same steps the held-out loss is 0.78 or 0.84 without it and 0.59 with it. The answers that this chapter
counts below come later without it, 100 steps in one pair and 700 in the other; at the end 79% are right instead of 81%, and
77% instead of 85%.

## One step

A step takes a *list* of batches. What does not fit into memory at once is cut into micro-batches, whose gradients add up to that
of the whole, if each counts by its share of the targets; a target of −100 does not count.
"""


# %%
#| export
#| blank target_shares: count the targets that are not -100 in each batch, then divide by their sum
def target_shares(batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Of all targets that count, those that are not -100, the share in each batch (x, y)."""
    if not batches:
        raise ValueError("a step needs at least one micro-batch (x, y)")
    counts = torch.stack([(y != -100).sum() for _, y in batches])
    return counts / counts.sum()


# %% [markdown]
r"""
Between the gradient and the update stands a question. Once a NaN is in the weights, no smaller rate brings them back, so
loss and gradient are looked at before they are used; a long run may ask for more (chapter 17c). The gradient may also be
clipped to a length (chapter 15). The scaler belongs to fp16, chapter 10's, and what says `mean` or `no_sync` to the many
processes of chapter 20.
"""


# %%
#| export
def both_finite(loss: Tensor, norm: Tensor) -> bool:
    """True, or FloatingPointError: whether an update may be made with this loss and a gradient of this norm."""
    if not torch.isfinite(norm + loss):  # the one wait for the device
        raise FloatingPointError(f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}")
    return True


# %%
#| export
#| blank train_step: zero the gradients, run backward on each batch's share, update if loss and norm are finite
def train_step(model: GPT, optimizer, batches) -> Tensor:
    """One update from batches [(x, y), …], each (B, T): the mean loss before it, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches.
    """
    shares = target_shares(batches)
    loss = torch.zeros((), device=shares.device)
    optimizer.zero_grad()
    for (x, y), share in zip(batches, shares):
        part = share * model(x, y)[1]
        part.backward()
        loss += part.detach()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    if both_finite(loss, norm):
        optimizer.step()
    return loss


# %%
#| export gpt.optim
#| blank wsd: the steps that are left, as a part of the steps in which the rate falls, but never more than 1
def wsd(step: int, steps: int, *, decay: float = 0.3) -> float:
    """The factor of the learning rate: 1, and over the last `decay` of the steps linearly to 0."""
    left = (steps - step) / max(1.0, decay * steps)
    return min(1.0, left)


# %% [markdown]
r"""
*Check.* A law: however a batch is cut, loss and gradient are the same. Here most of the last row's targets are taken out, so
that a plain mean over rows would be wrong.
"""


# %%
def gradient(micro_batches) -> torch.Tensor:
    """All of a fresh model's gradient, end to end, as train_step computes it."""
    model = new_model()
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), micro_batches)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


x, y = batch[0][:4], batch[1][:4].clone()
y[-1, 5:] = -100
whole, parts = gradient([(x, y)]), gradient(list(zip(x.split(1), y.split(1))))
difference = ((whole - parts).norm() / whole.norm()).item()
assert difference < 1e-4, f"cut into rows, the gradient differs by {difference:.0e} of its length"
print(f"{len(x)} rows at once or one by one: the same gradient")

# %% [markdown]
r"""
## The optimizer

Plain gradient descent moves a weight by its gradient times a rate. Adam divides first: the running mean of the gradient
by the root of the running mean of its square. `make_optimizer` (chapter 15) sets it up. What does the first step come
to, when both means hold one gradient?
"""

# %%
model = new_model()
optimizer = make_optimizer(model, lr)
before = [p.detach().clone() for p in model.parameters()]
print(f"loss {train_step(model, optimizer, [(x, y)]):.2f}")
after = [(p - w).abs().flatten() / lr for p, w in zip(model.parameters(), before)]
sizes = torch.cat([p.grad.abs().flatten() for p in model.parameters()])
print(f"median gradient {sizes.median():.1e}, median move {torch.cat(after).median():.2f} × lr")
print(f"loss {train_step(model, optimizer, [(x, y)]):.2f} on the same batch")

# %% [markdown]
r"""
The typical weight moves by the rate, against its gradient, and however small that is. So the rate is in units of
weights, and those begin near 0.05: 0.002 changes them by a twenty-fifth, and 0.2 throws all of them away.

## The loop

*Which rate?* Constant, and for the last 30% of the steps falling to zero, which takes out the noise that small
batches leave (the fifth experiment at the end says how much): `wsd`, one of chapter 15's schedules.

*Which random numbers?* People report that their curve differs on every run. Dropout draws from PyTorch's global
generator, which any cell may have moved. So each step reseeds it, from a seed that the caller's generator gave, and the caller's
own state is put back at the end.

*When to look?* A GPU works behind the program's back; whoever asks for the loss as a number waits until it is there. The loop
collects losses as tensors and reads them at the end.
"""


# %%
#| export
def train(model: GPT, stream, steps, lr, *, decay=0.3, generator=None, on_step=None) -> list[float]:
    """Train in place on `steps` batches, stream.next_batch() -> (x, y); the loss of each, in nats per token.

    generator seeds dropout, nothing else is random. on_step(step, loss): after each.
    """
    from tqdm import tqdm  # here, so that a step alone needs torch and nothing else

    device, losses = next(model.train().parameters()).device, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    seed = int(torch.randint(2**31, (), generator=generator or torch.Generator()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for step in tqdm(range(steps), unit="step", disable=None):
            torch.manual_seed(seed + step)  # dropout depends on the step, not on what ran before
            for group in optimizer.param_groups:
                group["lr"] = lr * wsd(step, steps, decay=decay)
            try:
                losses.append(train_step(model, optimizer, [stream.next_batch()]))
            except FloatingPointError as error:
                raise FloatingPointError(f"step {step}: {error}; lower lr={lr:g}") from None
            if on_step:
                on_step(step, losses[-1])
    return [loss.item() for loss in losses]


# %%
#| export evals.losses
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from nanogpt.gpt.model import GPT
from nanogpt.text.shards import document_starts


# %%
#| export evals.losses
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
#| export evals.losses
#| blank evaluate: add up mean loss × number of targets over all pieces, then divide by the number of targets
@torch.no_grad()
def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int) -> float:
    """Mean loss in nats per token of whole documents, one at a time, in pieces of block_size where one is longer."""
    nats, count = 0.0, 0
    with evaluating(model) as device:
        for tokens in shards:
            starts, ids = document_starts(tokens, eot), torch.from_numpy(tokens.astype(np.int64)).to(device)
            for start, end in zip(starts, [*starts[1:], len(tokens) - 1]):
                for at in range(start, end, model.config.block_size):
                    stop = min(at + model.config.block_size, end)
                    loss = model(ids[None, at:stop], ids[None, at + 1 : stop + 1])[1].item()
                    nats, count = nats + loss * (stop - at), count + stop - at
    if not count:
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return nats / count


# %%
#| export evals.losses
@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's. model: ids (1, T) -> (logits (1, T, V),
    anything). ValueError if no story has an answer.
    """
    right, asked = Counter(), Counter()
    with evaluating(model) as device:
        for story in stories:
            ids = torch.tensor([tokenizer.eot, *tokenizer.encode(story.text)])
            logits, _ = model(ids[None, :-1].to(device))
            hits = logits[0].argmax(-1).cpu() == ids[1:]
            ends = np.cumsum(
                [len(tokenizer.decode([i])) for i in ids[1:].tolist()]
            )  # of each token, in the text
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                asked.update([kind, "all"])
                if hits[first : last + 1].all():
                    right.update([kind, "all"])
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


# %% [markdown]
r"""
## One batch first

Before a long run: can this model, with this loop, learn one batch by heart? It must reach a loss near zero. If not,
something is broken that no amount of data mends: the targets are not shifted, the mask looks ahead, the optimizer
holds other parameters than the model's. (Or the rate is wrong; try 1e-4 and 0.2.)

*Predict.* How many steps until a batch of four rows costs less than 0.1 nats a token?
"""

# %%
predict("07.2", "steps until a batch is known by heart", guess=None)
losses = train(new_model(), SimpleNamespace(next_batch=lambda: batch), steps=60, lr=lr, precision=precision)
reached = next((step for step, nats in enumerate(losses) if nats < 0.1), None)
if reached is None:
    print(
        f"not below 0.1 in {len(losses)} steps, {losses[-1]:.2f} at the end: lr={lr:g} does not suit this model"
    )
else:
    print(f"below 0.1 within {math.ceil((reached + 1) / 25) * 25} steps")
answer("07.2", reached)

# %% [markdown]
r"""
*Check.* Reproducible means bit for bit, whatever ran before, and with dropout on. And training leaves the global
generator as it found it.
"""


# %%
def short_run(seed: int) -> list[float]:
    stream = DocumentStream(paths["train"], B, T, seed=seed, device=device)
    generator = torch.Generator().manual_seed(seed)
    return train(new_model(seed, dropout=0.1), stream, 4, lr, precision=precision, generator=generator)


state = torch.get_rng_state()
once = short_run(seed=1)
assert torch.equal(torch.get_rng_state(), state), "training moved the global generator"
torch.rand(1000)  # some other cell draws
difference = max(abs(a - b) for a, b in zip(short_run(seed=1), once))
assert difference == 0 or device.type != "cpu", f"the same seed gave losses that differ by {difference}"
print(f"largest difference between runs: {difference:.3f}")  # GPU kernels may add in any order

# %% [markdown]
r"""
## Two measures

Chapter 18 builds them and shows what a careless version gets wrong. `evaluate` is the held-out loss: every token once, dropout
off, each in the context of its own document, whatever the batch size. A document longer than T is read through
overlapping `windows`.

The mean loss is mostly small talk. Whether the model uses facts is a question with answers that are right or wrong:
every story says who has how many, in number words that follow from what was said before, and chapter 02 knows where they
stand. Some can be *copied* from an earlier sentence, some must be *computed* from two. `answer_accuracy` counts how
often the model puts its highest probability on the right word.
"""

# %% [markdown]
r"""
After `had` come some twelve number words, not equally often. How often is a table of pairs right? A bigram model is
an embedding whose rows are logits, or counts, so the same function measures it:
"""


# %%
class Bigram(torch.nn.Embedding):
    def forward(self, idx: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(idx), None


asked = list(stories(300, seed=1))  # from another seed than the shards: the model has not read these
if floor:
    pairs = np.bincount(last(text, 1) * V + text[1:], minlength=V * V).reshape(V, V)
    baseline = answer_accuracy(Bigram.from_pretrained(torch.from_numpy(pairs).float()), asked, tokenizer)
    counts = Counter(kind for story in asked for kind in story.kinds)
    for kind, number in sorted(counts.items()):
        print(f"{number} answers are {kind}, of which the bigram knows {baseline[kind]:.0%}")


# %% [markdown]
r"""
## The run

Rows begin where a story begins: a row cut from the stream wherever it falls begins with facts out of sight (chapter 03), and
such rows teach a model to guess names rather than to look them up. How much of the text will be read, and how often?
"""

# %%
stream = DocumentStream(paths["train"], B, T, seed=SEED, device=device)
for row in stream.next_batch()[0][:2].tolist():
    print(tokenizer.decode(row[:12]), "…")
epochs = steps * B * T / len(text)
print(f"\n{steps * B * T:,} tokens of {len(text):,}, {epochs:.2f} epochs:", end=" ")
often = f"the text is read {epochs:.0f} times, so watch how far the two curves part"
print("most is read once or never, so nothing can be learned by heart" if epochs < 1 else often)

# %% [markdown]
r"""
*Which floor?* A row of T tokens holds a story's beginning and rarely its end, and beginnings are where the choices are. So
the loss on such rows has a higher floor than the loss on whole documents, and a curve must be compared with its own.
The grammar gives that one too: the probability that a story *begins* with these tokens is that of all ways to tell it
on from there, summed. A token may be the beginning of a longer word, so they are told on to the next space.
"""


# %%
def ways(parts: list, opening: str, told: str, facts: dict, p: float):
    """All ways in which these parts begin with `opening`: what they tell up to the next space, and its probability."""
    if not parts or " " in told[len(opening) :]:
        yield told, p
        return
    part, *rest = parts
    if isinstance(part, Pick):
        for line in (choices := alternatives(part.symbol)):
            yield from ways([*line, *rest], opening, told, facts, p / len(choices))
        return
    choices = [(said(part, facts), facts)] if not isinstance(part, Draw) else []
    if isinstance(part, Draw):
        choices = [(entry[0], facts | {part.key: entry}) for entry in entries(part.pool)]
    for words, known in choices:
        if opening.startswith((told + words)[: len(opening)]):
            yield from ways(rest, opening, told + words, known, p / len(choices))


def nats_of_beginning(ids: list[int]) -> float:
    """-ln P(a story's ids begin with these), exact."""
    told = ways([Pick("story")], tokenizer.decode(ids), "", {}, 1.0)
    return -math.log(sum(p for text, p in told if fast.encode_ordinary(text)[: len(ids)] == ids))


# %% [markdown]
r"""
*Check.* For a whole story it must give the story's own probability; and one more token can only cost something.
"""

# %%
if floor:
    for story in stories(10, seed=2):
        ids = tokenizer.encode(story.text)
        costs = [nats_of_beginning(ids[:n]) for n in range(1, len(ids) + 1)]
        assert abs(costs[-1] + story.logprob) < 1e-9, f"{costs[-1]} nats, but told with {-story.logprob}"
        assert min(np.diff(costs)) > -1e-9, f"a longer beginning is likelier than a shorter one: {story.text}"
    print("10 stories, each token of them: no probability is made or lost")

# %% [markdown]
r"""
Beside the training loss goes that of 64 held-out rows, cut in the same way, and all lines of the map for just these rows.
"""

# %%
starts = document_starts(val, eot)
starts = starts[starts + T < len(val)]
assert len(starts), f"no document has {T} tokens behind it: lower block_size, or take a longer text"
at = starts[np.linspace(0, len(starts) - 1, 64).astype(int)][:, None] + np.arange(T + 1)  # (64, T + 1)
held = [torch.from_numpy(val[rows]).to(device) for rows in (at[:, :-1], at[:, 1:])]
row_lines = {name: -np.log(p[at[:, :-1]]).mean().item() for name, p in tables.items()}
if floor:
    begun = [ids[1:].tolist() for row in val[at] for ids in np.split(row, np.flatnonzero(row == eot))]
    row_floor = sum(nats_of_beginning(ids) for ids in begun if ids) / held[0].numel()
    row_lines["floor: knows the grammar"] = row_floor
    print(f"floor: {floor:.3f} on documents, {row_floor:.3f} on these rows")
    if far > T:
        print(
            f"a story may have {far} tokens: with block_size={T} first facts get out of sight, a floor out of reach"
        )

# %% [markdown]
r"""
*Predict.* How far above the floor, in per cent, will the loss on held-out stories end? Of the computed answers, how
many will be right?
"""

# %%
predict("07.3", "held-out loss above the floor", guess=None, unit="%")
predict("07.4", "computed answers that are right", guess=None, unit="%")
model, right = new_model(), {}
OPENING = tokenizer.decode(val[1:10].tolist())


def continued(model: GPT, opening: str, n: int = 100) -> str:
    """The opening, continued by n tokens that are drawn one by one, or to <|endoftext|>. Chapter 08 does this well."""
    ids, generator = [eot, *tokenizer.encode(opening)], torch.Generator().manual_seed(SEED)
    with evaluating(model), torch.no_grad():
        while len(ids) < n and (ids[-1] != eot or len(ids) == 1):
            logits = model(torch.tensor([ids[-T:]], device=device))[0][0, -1].float().cpu()
            ids.append(torch.multinomial(logits.softmax(-1), 1, generator=generator).item())
    return textwrap.fill(tokenizer.decode(ids[1:]).replace("<|endoftext|>", ""), 100)


# %% tags=["nbval-ignore-output"]
print(continued(model, OPENING))

# %% tags=["nbval-ignore-output"]
live = figures.LivePlot(row_lines, steps, every=200)


def watch(step: int, loss: torch.Tensor) -> None:
    if (step + 1) % 100 == 0:
        with evaluating(model), torch.no_grad(), autocast(precision, device):
            live.held[step + 1] = model(*held)[1].item()
        if floor:
            right[step + 1] = answer_accuracy(model, asked[:40], tokenizer)
    live(step, loss)


start = time.perf_counter()
generator = torch.Generator().manual_seed(SEED)
losses = train(model, stream, steps, lr, precision=precision, generator=generator, on_step=watch)
seconds = time.perf_counter() - start
live.close()

# %% tags=["nbval-ignore-output"]
print(f"{steps} steps, {steps * B * T:,} tokens, {seconds:.0f} s, {steps * B * T / seconds:,.0f} tokens/s")
show(
    live.draw(),
    alt="Training and held-out loss against steps: below the bigram's line after some 100 steps, then slowly towards the floor.",
)
if floor:
    show(
        figures.answers(right, baseline, steps),
        alt="Share of right answers against steps: copied ones rise to nearly all, computed ones later and to about half.",
    )

# %% [markdown]
r"""
The loss falls smoothly; the answers do not. For some hundred steps copied ones stay where a table of pairs is, then
nearly all are right within a few hundred. Computed ones rise later and stay far below: to take two numbers from two
sentences and add them is more than to find one. The mean loss shows neither, since numbers are few of its
tokens. Measure what you care about.

## Check

All held-out tokens, document by document, against the floor of the very same stories; then the answers; then a story.
"""

# %% tags=["nbval-ignore-output"]
loss = evaluate(model, [val], eot, precision=precision)
print(f"held-out loss {loss:.3f} nats per token; perplexity e^{loss:.3f} = {math.exp(loss):.2f}")
record = {"text": TEXT, "steps": steps, "tokens": steps * B * T, "seconds": seconds, "val_loss": loss}
record |= {"lines": lines, "losses": losses[:: max(1, steps // 200)], "device": str(device)}
if floor:
    above = (loss - floor) * len(val) / (val == eot).sum()  # nats a story
    print(f"floor {floor:.3f}: {loss / floor - 1:.1%} above it, or {above:.1f} nats a story")
    print(f"it gives a story e^-{above:.1f} = {math.exp(-above):.2g} of its probability, geometric mean")
    accuracy = answer_accuracy(model, asked, tokenizer)
    for kind, share in accuracy.items():
        print(f"{kind:8} answers: {share:4.0%} right; the bigram {baseline[kind]:4.0%}")
    record |= {"floor": floor, "accuracy": accuracy["all"], "bigram_accuracy": baseline["all"]}
    answer("07.3", 100 * (loss / floor - 1))
    answer("07.4", 100 * accuracy["computed"])

# %% tags=["nbval-ignore-output"]
print(continued(model, OPENING))

# %%
print("below the bigram:", loss < lines["bigram: sees one token"])
if floor:
    print("below the 5-gram:", loss < lines["5-gram: sees four tokens"])
    print("within 15% of the floor:", loss < 1.15 * floor)
    assert loss > floor, f"{loss:.4f} is below the floor: it has seen the validation set, or the future"

# %% [markdown]
r"""
The loss must stay *above* the floor, on tokens that were not trained on. If a run ever falls below it, celebrate
later: it has seen the validation set, or the future.

*How deep?* Two layers are no better than one here. These are runs with the chapter's sizes at lr=2e-3 and with 1,800 steps,
two seeds each but for the last (November 2026, CPU):

| layers | held-out loss | answers | copied | computed |
|---|---|---|---|---|
| 1 | 0.586, 0.587 | 82%, 82% | 98%, 98% | 51%, 51% |
| 2 | 0.592, 0.591 | 85%, 82% | 99%, 98% | 60%, 53% |
| 3 | 0.594 | 82% | 98% | 52% |

An earlier set with other random rows has 0.583 and 0.585 for one layer, 0.585 and 0.586 for two, 0.595 for three. So
the differences between depths are hardly larger than those between seeds: a single head can find a number, and
nothing in these stories was seen to need two rounds of attention at this size. GPT-2's twelve layers are for other texts.

## See

Chapter 02 shaded a story by what a perfect reader has to pay. This is what our model pays, token by token; framed, the
answers. Free choices should be dark, and what follows from a fact should be white.
"""


# %%
def token_costs(story) -> list[tuple[str, float, bool]]:
    """Each token of a story, the nats that the model pays for it, and whether it is part of an answer."""
    ids = torch.tensor([eot, *tokenizer.encode(story.text)])[: T + 1]
    with evaluating(model), torch.no_grad():
        logits = model(ids[None, :-1].to(device))[0][0].float().cpu()
    nats = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").tolist()
    costs, end = [], 0
    for piece, cost in zip(map(lambda i: tokenizer.decode([i]), ids[1:].tolist()), nats):
        start, end = end, end + len(piece)
        costs.append((piece, cost, any(a < end and start < b for a, b in story.answers)))
    return costs


# %% tags=["nbval-ignore-output"]
if floor:
    show(
        figures.costs([token_costs(story) for story in asked[2:4]]),
        alt="Two stories, each token shaded by the nats the model pays: names and things are dark once, then white.",
    )

# %% [markdown]
r"""
## Saving

A checkpoint is often `torch.save(config_object_and_weights)`. It stores the *path* of the config's class, so that it
breaks when the class moves, and whoever loads it must let it run code. Ours is two files: weights as safetensors, which
can hold nothing else, and the config as JSON. The tied matrix is stored once. One number more, a hash of both: a model whose
`n_head` was edited would load and write nonsense.
"""


# %%
#| export gpt.weights
WEIGHTS = "model.safetensors"
UNREADABLE = AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError, SafetensorError


def digest(config: dict, weights: bytes) -> str:
    """SHA-256 of both files: the configuration as canonical JSON, then the weights."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode() + weights).hexdigest()


def save_model(model: GPT, folder: str | Path) -> None:
    """Write model.safetensors and config.json, with the SHA-256 of both, into a folder, each atomically."""
    config = asdict(model.config)
    tensors = {n: p.detach().cpu().contiguous() for n, p in model.named_parameters()}  # tied ones come once
    weights = save(tensors)
    with atomically(Path(folder) / WEIGHTS) as file:
        file.write(weights)
    save_json(Path(folder) / "config.json", config | {"sha256": digest(config, weights)})


# %%
save_model(model, MODEL)
tokenizer.save(MODEL / "tokenizer.json")
save_json(MODEL / "train.json", record)
print(*sorted(path.name for path in MODEL.iterdir()))

# %% [markdown]
r"""
Loading believes neither file. Names and shapes are compared first, with a model on the *meta* device, which has shapes and no
memory: a `vocab_size` of 400 million would otherwise be allocated before anybody noticed.
"""


# %%
#| export gpt.weights
def empty_model(config: GPTConfig, weights: dict[str, torch.Tensor]) -> GPT:
    """A GPT without memory, on the meta device, whose names and shapes are those of weights; else ValueError."""
    layers = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    if layers != config.n_layer:  # first: even without memory, a hundred thousand layers take minutes
        raise ValueError(f"config.json says n_layer={config.n_layer}, {WEIGHTS} has {layers}")
    with torch.device("meta"):
        model = GPT(config)
    expected = {name: p.shape for name, p in model.named_parameters()}
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    found = {name: p.shape if p.dtype in kinds else p.dtype for name, p in weights.items()}
    if wrong := sorted({name for name, _ in expected.items() ^ found.items()}):
        raise ValueError(f"config.json and {WEIGHTS} disagree about {', '.join(wrong[:3])}")
    return model


# %%
#| export gpt.weights
def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The GPT that save_model wrote, in evaluation mode and the dtype it was saved in.

    OSError or ValueError, in one sentence, if it cannot be, or if a bit of either file has changed.
    """
    folder = Path(folder)
    try:
        fields, data = json.loads((folder / "config.json").read_bytes()), (folder / WEIGHTS).read_bytes()
        sha256, weights = fields.pop("sha256", None), load(data)
        model = empty_model(GPTConfig(**fields), weights)
        if sha256 != digest(fields, data):
            raise ValueError(f"config.json or {WEIGHTS} has changed since")
        if bad := [name for name, p in weights.items() if not p.isfinite().all()]:
            raise ValueError(f"{bad[0]} holds NaN or infinity")
    except FileNotFoundError as error:
        how = "chapter 07 writes it, or save_model(model, folder)"
        raise FileNotFoundError(f"{error.filename} is not there; {how}") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no model that save_model wrote whole: {error}") from None
    model.load_state_dict(weights, strict=False, assign=True)
    model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.to(device).eval()


# %%
again = load_model(MODEL, device)
with torch.no_grad(), evaluating(model):
    print("the same logits, bit for bit:", torch.equal(model(held[0])[0], again(held[0])[0]))
with tempfile.TemporaryDirectory() as other:
    save_model(model, other)
    edited = json.loads((MODEL / "config.json").read_text()) | {"n_head": 1}
    save_json(Path(other) / "config.json", edited)
    try:
        load_model(other)
    except ValueError as error:
        print(str(error).replace(other, "with n_head edited"))

# %% tags=["nbval-ignore-output"]
predictions("07")

# %%
checkpoint("07")

# %% [markdown]
r"""
## Exercises

`course exercises release 07` writes these as a notebook to `released/`; `course check 07` runs their visible checks.

- **07-1** A loop that learns nothing, 15 minutes: mend its four faults.
- **07-2** A validation loss that depends on the batch size, 20 minutes: mend a mean of means, and leave the run undisturbed.
- **07-3** A check for a loss, 20 minutes: write the check; it is tried on wrong losses.
- **07-4** The map of a small language, 30 minutes: from ln V to the floor, for a language of your own.
- **07-5** Three curves, 5 minutes: name the cause of each.

To explore:

1. Leave `scale_init` out and train again. Compare loss and answers with the run above, for two seeds. Which tokens pay?
   Check with `token_costs`, on ten stories.
2. Train with `n_layer=1` and two values of `SEED`. Is the difference from two layers larger than that between seeds, for the
   loss, and for copied and computed answers?
3. Write `loss_by_position`: the mean held-out loss of tokens 0 to 15 of a story, 16 to 31, and so on. Why does it fall? Check:
   weighted by their numbers, the parts add up to `evaluate`.
4. Train on `BatchStream` instead of `DocumentStream`, with three seeds each. Check the step at which half of the copied answers
   are right: how far apart are the seeds?
5. Set `decay=0.0`. How much of the distance to the floor did the falling learning rate bring? Check with three seeds,
   and say how large the difference between seeds is.
6. How many of the nats above the floor are paid for computed answers? A perfect reader pays nothing for them, so sum
   `token_costs` over the framed tokens of 100 stories.

## Further reading

- Loshchilov and Hutter 2019, *Decoupled Weight Decay Regularization*, §2: what the W in AdamW changes.
- Karpathy 2019, *A Recipe for Training Neural Networks*: overfit one batch, verify the loss at the start.
- Olsson et al. 2022, *In-context Learning and Induction Heads*: sudden improvements, and two-layer mechanisms of copying.
- Chen and Goodman 1999, *An Empirical Study of Smoothing Techniques for Language Modeling*, §2: tables, and Witten and Bell's.
- Glorot and Bengio 2010, *Understanding the difficulty of training deep feedforward neural networks*, §4.2.
"""
