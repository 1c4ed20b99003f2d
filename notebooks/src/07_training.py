# %% [markdown]
r"""
# 07 · Training: from ln V to the floor

A new model of chapter 05 has random weights and writes nonsense. Training changes the weights until it writes stories. The loop
that does this has five lines, and you will see it work in the first minute.

The rest of the chapter answers three questions. Is the loop right? A wrong loop prints a falling loss, too. How good
can a model get on this text? For our stories we know the answer exactly. And when the loss stops falling, how close is it?
Chapter 07b then looks at what the model has learned.
"""

# %%
#| default_exp training
#| doc training: The training step and the loop around it.
#| doc optim: The learning rate as a function of the step, and the optimizer of a run.
#| doc weights: A model on disk: weights as safetensors, configuration as JSON, and a hash of both.
#| doc labs.evals.accuracy: How many of the stories' questions a model answers right.
#| doc evaluate: How good a model is, measured on text that it was not trained on.
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from course.figures import training as figures
from course.figures.stand_in import without_mask
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device
from nanogpt.labs.evals.floor import floor_per_token, readings
from nanogpt.model import GPTConfig, num_params
from nanogpt.shards import document_starts, open_shards, read_shard
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer

# %%
#| export
import math

import torch
from torch import Tensor

from nanogpt.model import GPT

# %% [markdown]
r"""
A laptop and a GPU in a data centre run the same notebooks, but not at the same size. A chapter that trains keeps its sizes in a small table,
with one entry for each *scale*: `ci` is for automatic tests, `laptop` for a processor or an Apple GPU, and `gpu` for a CUDA device.
The device decides which entry is used, unless you set the variable `NANOGPT_SCALE`.
"""


# %%
#| export device
#| blank pick_scale: the variable first, then the device; refuse a word that is not in SCALES
import os

import torch

SCALES = ("ci", "laptop", "gpu")


def pick_scale(device: torch.device) -> str:
    """The size of the experiments: NANOGPT_SCALE if set, else `gpu` on a CUDA device and `laptop` elsewhere."""
    scale = os.environ.get("NANOGPT_SCALE") or ("gpu" if device.type == "cuda" else "laptop")
    if scale not in SCALES:
        raise ValueError(f"NANOGPT_SCALE is {scale!r}; it must be one of {', '.join(SCALES)}")
    return scale


# %% [markdown]
r"""
All sizes are set here. Change them: everything below follows. A row of `block_size` tokens must have room for a complete story.
"""

# %%
SEED = 0
device = pick_device()
small = GPTConfig(block_size=128, n_layer=2, n_head=4, n_embd=128)
large = GPTConfig(block_size=128, n_layer=6, n_head=6, n_embd=384)
config, B, steps, lr = {
    "ci": (small, 4, 600, 5e-4),
    "laptop": (small, 4, 2000, 5e-4),
    "gpu": (large, 16, 3000, 1e-3),
}[pick_scale(device)]
T = config.block_size
print(f"{steps} steps of {B} rows of {T} tokens, at a rate of {lr:g}")

# %% [markdown]
r"""
The text is chapter 02's stories: `text` to train on, and `val`, which no model sees in training.
"""

# %%
folder = Path("../data/built/stories")
floor = ensure_corpus(folder)["floor"]  # of val, in nats per token
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
eot, V = tokenizer.eot, tokenizer.vocab_size
config = replace(config, vocab_size=V)
paths = {split: open_shards(folder, split) for split in ("train", "val")}
text, val = (np.concatenate([read_shard(p) for p in paths[s]]).astype(np.int64) for s in paths)
longest = np.diff(document_starts(text, eot)).max()
if longest > T:
    raise ValueError(f"block_size={T} is too short for the longest story, which has {longest} tokens")
print(f"{len(text):,} tokens to train on, {len(val):,} held out; {num_params(config):,} parameters")

# %% [markdown]
r"""
## Five lines

A batch has B rows of T tokens. Each row begins with a story, so that the model sees all facts that it needs (chapter 03). The
targets `y` are the same rows, one token further.

*Predict.* The first loss is that of the untrained model. How many nats is it? There are V tokens, and the model prefers none.
"""

# %%
predict("07.1", "the first loss", guess=None, unit="nats")


# %%
def batches(seed: int = SEED) -> DocumentStream:
    return DocumentStream(paths["train"], B, T, seed=seed, device=device)


def first_model() -> GPT:
    return GPT(config, generator=torch.Generator().manual_seed(SEED)).to(device)


first = first_model()
optimizer = torch.optim.AdamW(first.parameters(), lr=lr)
stream, losses = batches(), []
start = time.perf_counter()
for _ in range(100):
    x, y = stream.next_batch()
    loss = first(x, y)[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
pace = (time.perf_counter() - start) / 100  # seconds a step

# %% tags=["nbval-ignore-output"]
print(f"first loss {losses[0]:.3f}, ln V {math.log(V):.3f}; after 100 steps {losses[-1]:.3f}")
answer("07.1", losses[0])
show(figures.curves({"training": losses}, {"ln V": math.log(V)}), alt="The loss falls, fast at first.")

# %% [markdown]
r"""
It works. These are the five lines, in order:

1. `stream.next_batch()` gives the next rows of text.
2. `first(x, y)[1]` is the loss: how surprised the model is by the next token, as a mean over all B × T tokens.
3. `optimizer.zero_grad()` forgets the last gradient. Without this line `backward()` would add the new one to it.
4. `loss.backward()` computes for each weight how the loss changes if this weight grows a little: its gradient.
5. `optimizer.step()` moves every weight a little in the direction in which the loss falls.

The first loss is close to ln V. That is what equal probabilities cost, so the new model is as ignorant as it should be. If the first
loss were much higher, the initialisation would be wrong.

What does the model write after these 100 batches? `continued` draws one token after another.
"""


# %%
OPENING = tokenizer.decode(val[1:10].tolist())


@torch.no_grad()
def continued(model: GPT, n: int = T - 1) -> str:
    """A story that begins with OPENING: n tokens, drawn one by one, or fewer if <|endoftext|> comes."""
    ids, generator = [eot, *tokenizer.encode(OPENING)], torch.Generator().manual_seed(SEED)
    while len(ids) <= n and ids.count(eot) == 1:
        logits = model(torch.tensor([ids], device=device))[0][0, -1].float().cpu()
        ids.append(torch.multinomial(logits.softmax(-1), 1, generator=generator).item())
    return tokenizer.decode(ids[1:]).removesuffix("<|endoftext|>")


# %% tags=["nbval-ignore-output"]
print(textwrap.fill(continued(first), 100))

# %% [markdown]
r"""
Words, but no story. A � is printed where a token is part of a character and the pieces do not fit together. The model needs
more steps. But a long run takes time. Before it, we must know that the loop is right, and that we can repeat a run.
"""

# %% [markdown]
r"""
## The same random numbers again

A model begins with random weights, reads its text in random order, and draws the tokens that it writes. To repeat an experiment, you need the
same random numbers again. A *seed* sets the generator of random numbers to a fixed state. PyTorch has one global generator, which all code
shares. So an experiment gets a generator of its own, which is passed to every function that draws numbers for it:
"""


# %%
#| export device
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
*Predict.* A run draws two batches. Another run with the same seed also looks at a sample in between, which it draws from the global generator.
We compare their second batches twice: first the batches come from the global generator, then from a generator of their own. In how many of these
two cases does the second batch stay the same?
"""

# %%
predict("07.5", "cases in which the second batch stays the same", guess=None)


# %%
def second_batch(own: bool, disturb: bool) -> Tensor:
    generator = seed_everything(SEED)
    source = generator if own else None  # None: PyTorch uses its global generator
    torch.randn(4, generator=source)  # the first batch
    if disturb:
        torch.rand(1)  # a look at a sample, from the global generator
    return torch.randn(4, generator=source)


same = {}
for name, own in (("the global generator", False), ("a generator of its own", True)):
    same[name] = torch.equal(second_batch(own, disturb=False), second_batch(own, disturb=True))
    print(f"{name}: the second batch stays the same: {same[name]}")
answer("07.5", sum(same.values()))

# %% [markdown]
r"""
One. The look at a sample changed the state of the global generator, and with it everything that came after. It could not change a generator
that it was not given.

*Try it.* Let `second_batch` draw its disturbance from the generator of the run, `torch.rand(1, generator=source)`: now the second batch changes in
both cases. Then draw three numbers from `seed_everything(7)` and three from the global generator. They are equal, so a model's weights and its
data must not come one from each.
"""

# %% [markdown]
r"""
## One batch by heart

Here is a popular check: train on one batch, again and again. We take a batch of two rows. The model has far more weights
than the batch has tokens, so it can learn them by heart, and the loss must come close to zero. This takes seconds. But which faults does it find? Let us make four on purpose:

- The optimizer holds the weights of another model.
- The targets are not shifted: the model is asked for the token that it sees.
- The targets are shifted the wrong way: the model is asked for the token before.
- The attention has no causal mask (`without_mask` removes it). Each position sees the complete row, and with it the token that it is asked
  for.

*Predict.* The check finds a fault if the loss stays well above zero. How many of the four faults does it find?
"""


# %%
def learn(model: GPT, x: Tensor, y: Tensor, trained: GPT, n: int = 120) -> list[float]:
    """n steps on one batch; the loss of each. trained: the model whose weights the optimizer moves."""
    optimizer, losses = torch.optim.AdamW(trained.parameters(), lr=lr), []
    for _ in range(n):
        loss = model(x, y)[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %%
predict("07.2", "faults found by learning one batch", guess=None)

# %%
right, blind, unshifted, backwards = (first_model() for _ in range(4))
unmasked = without_mask(first_model())
x, y = (part[:2] for part in batches().next_batch())
before = torch.full_like(x, -100)  # a target of -100 does not count
before[:, 1:] = x[:, :-1]
curves = {
    "right": learn(right, x, y, right),
    "optimizer of another model": learn(blind, x, y, right),
    "targets not shifted": learn(unshifted, x, x, unshifted),
    "targets shifted back": learn(backwards, x, before, backwards),
    "no mask": learn(unmasked, x, y, unmasked),
}

# %% tags=["nbval-ignore-output"]
show(figures.curves(curves, {"ln V": math.log(V)}), alt="Five curves on one batch: only one stays up.")
for name, curve in curves.items():
    print(f"{curve[-1]:5.2f} after {len(curve)} steps: {name}")
answer("07.2", sum(curve[-1] > 1 for curve in curves.values()))

# %% [markdown]
r"""
The check finds one of the four: the fault that keeps the loss up. The other three give the model another task that it can learn by
heart just as well, so their loss falls, too. This is dangerous, because nobody looks for a fault while the loss falls.

More checks are needed. Chapter 04's finds the missing mask: change the last token of a row. In a causal model no earlier output
may change. Another one comes at the end of this chapter: on many new stories, a loss below the floor means that something is wrong.
"""


# %%
@torch.no_grad()
def sees_the_future(model: GPT) -> bool:
    """Whether the last token of a row changes an output before it."""
    other = x.clone()
    other[:, -1] = (other[:, -1] + 1) % V
    return not torch.allclose(model(x)[0][:, :-1], model(other)[0][:, :-1], atol=1e-3)


print(f"right: {sees_the_future(right)}; no mask: {sees_the_future(unmasked)}")

# %% [markdown]
r"""
## A loss on new text

The model `right` knows two rows by heart. Is it a good model? Only text that it has not seen can answer this. We keep the stories of `val`
for the end. With another seed, chapter 02's grammar makes 300 new stories: `asked`. The first 40 of them, as one array of ids, are `held`.
What is the mean loss of their tokens? Three things need care:

- Dropout must be off while we measure, and on again afterwards. A `with evaluating(model):` block does both.
- Each story is judged from its own beginning, not as the continuation of another.
- The mean is over *tokens*. A mean of the stories' means would let a token of a short story count for more.
"""


# %%
#| export evaluate
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from nanogpt.model import GPT
from nanogpt.shards import document_starts


# %%
#| export evaluate
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
#| export evaluate
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


# %% tags=["nbval-ignore-output"]
asked = list(stories(300, seed=1))  # the corpus has seed 0: no model has read these
held = np.array([i for story in asked[:40] for i in (eot, *tokenizer.encode(story.text))] + [eot])
held_floor = floor_per_token(asked[:40], tokenizer)
print(f"two rows by heart: {evaluate(right, [held], eot):.2f} nats on new stories")
print(f"100 batches:       {evaluate(first, [held], eot):.2f}")
print(f"untrained: {math.log(V):.2f}; the floor of these stories: {held_floor:.3f}")

# %% [markdown]
r"""
A model that knows two rows by heart is of little use on new stories: compare it with the untrained one. 100 different batches have brought
much more. From here on, the loss that counts is the one on new text.

## The map

A loss is hard to judge alone. Let us measure simpler models on the same text, and put their losses beside each other. One model knows
nothing, one knows how frequent each token is, one also sees the token before, and so on. At the other end is the floor of chapter 02, the
loss of a model that knows the grammar.

All models but the last are tables of counts, as in chapter 02: how often did each token follow this context in `text`? The *context* is what
the model sees, such as the last four tokens. A context that occurred only twice says little, and its counts are mixed with the guess from a
shorter context. That guess gets more weight if many different tokens have followed the context (Witten and Bell 1991).
"""


# %%
lines = figures.table_losses(text, val, V, eot)
lines["floor: knows the grammar"] = floor
show(figures.loss_map(lines), alt="Losses on a line from floor to ln V, each named by what it knows.")

# %% [markdown]
r"""
Each row is a model, and the dot is its loss. A GPT without attention sees the current token and its position, and nothing else. A model whose loss
is well below that of "position" very probably uses attention. A model that sees four tokens writes good phrases, but it knows no facts: who owns
how many things was said earlier than that. To get below the 5-gram, a model must use what it read before; the two orange ranges show this. The
losses come from counts in this text. They are not bounds: better counting would move them a little.

## Right answers

Most tokens of a story belong to phrases, so a mean loss says little about facts. But our stories also ask questions: who has how many? The
answer is a number word that follows from the story. Some answers can be *copied* from an earlier sentence. Others must be *computed* from two
numbers. Each story of chapter 02 says where its answers are, as places in its text, and we can count how often the model's first choice is right.

An answer is given as a range of characters, but a model predicts tokens. Which tokens are the answer? Let us look at one:
"""

# %% tags=["nbval-ignore-output"]
story = asked[0]
pieces = [tokenizer.decode([i]) for i in tokenizer.encode(story.text)]
ends = np.cumsum([len(piece) for piece in pieces])  # the place in the text where each token ends
start, end = story.answers[0]
lowest, highest = np.searchsorted(ends, [start + 1, end])
print(f"the answer {story.text[start:end]!r} begins at character {start} and ends at {end}")
for number in range(lowest - 2, highest + 3):
    print(f"token {number} ends at {ends[number]:3}: {pieces[number]!r}")
print(f"the answer is token {lowest} to {highest}")

# %% [markdown]
r"""
`ends` grows from token to token, and `searchsorted` finds the first token that ends at a given place or behind it. The answer's first token ends
behind the character `start`, and its last token ends at `end` or behind it.

The function does this for all answers. `hits` says for each token whether it was the model's first choice.
"""


# %%
#| export labs.evals.accuracy
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def first_choice(logits: Tensor) -> Tensor:
    """The likeliest id, along the last dimension. FloatingPointError if a logit is NaN: argmax would choose an id all the same."""
    best = logits.max(-1)
    if best.values.isnan().any():
        raise FloatingPointError("the model's logits are NaN: training or its file failed")
    return best.indices


@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's. model: ids (1, T) -> (logits (1, T, V),
    anything). ValueError if no story has an answer.
    """
    asked, right = Counter(), Counter()
    with evaluating(model) as device:
        for story in stories:
            ids = torch.tensor([tokenizer.eot, *tokenizer.encode(story.text)])
            logits, _ = model(ids[None, :-1].to(device))
            hits = first_choice(logits[0]).cpu() == ids[1:]
            ends = np.cumsum([len(tokenizer.decode([i])) for i in ids[1:].tolist()])  # of the tokens
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                is_right = hits[first : last + 1].all().item()
                for name in (kind, "all"):
                    asked[name] += 1
                    right[name] += is_right
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


# %% [markdown]
r"""
How often is the bigram right, the table of pairs? Its table has a row of counts for each token. In PyTorch such a table is an embedding, and the
largest count of a row is the model's first choice. The same function can ask it:
"""


# %%
class Bigram(torch.nn.Embedding):
    def forward(self, idx: Tensor) -> tuple[Tensor, None]:
        return super().forward(idx), None


pairs = np.bincount(text[:-1] * V + text[1:], minlength=V * V).reshape(V, V)
baseline = answer_accuracy(Bigram.from_pretrained(torch.from_numpy(pairs).float()), asked, tokenizer)
for kind, share in baseline.items():
    print(f"{kind:8} answers: the bigram gets {share:.0%}")

# %% [markdown]
r"""
The bigram always says the word that came most often after the token before. This is a low bar. Is there a rule that answers better and does
not know who owns what? A rule looks at the number words that the story has said so far, and picks one of them. Here are eight ways to pick. The last line
of the output chooses among them: it has seen 5,000 other stories, and takes the way that was right most often in the same situation. A *situation* is how many answers came before, how
many words the story has before its first number, and the words of the sentence, without the names, the pronouns and everything that varies.
"""


# %%
#| export labs.evals.accuracy
import re

from nanogpt.labs.corpora.stories import NUMBERS, rules

PICKS = {  # how to choose from the numbers that a story has said so far, in their order
    "the first": lambda said: said[0],
    "the second": lambda said: said[:2][-1],
    "the last": lambda said: said[-1],
    "the last but one": lambda said: said[-2:][0],
    "the larger of the first two": lambda said: max(said[:2], key=NUMBERS.index),
    "the smaller of the first two": lambda said: min(said[:2], key=NUMBERS.index),
    "the most frequent": lambda said: Counter(said).most_common()[0][0],
    "the least frequent": lambda said: Counter(said).most_common()[-1][0],
}
OWNERS = {"her", "his", "she", "he", "She", "He"}


# %%
#| export labs.evals.accuracy
def copied_questions(stories: Iterable) -> list[tuple[tuple, list[str], str]]:
    """For each copied answer of the stories: its situation, the numbers said before it, and the answer."""
    varied = {
        w for lines in rules().values() if not re.search("[ {]", "".join(lines)) for w in lines
    } | OWNERS
    questions = []
    for story in stories:
        for order, ((start, end), kind) in enumerate(zip(story.answers, story.kinds)):
            if kind == "copied":
                words = re.findall(r"\w+", story.text[:start])
                said = [word for word in words if word in NUMBERS]
                sentence = re.findall(r"\w+|,", re.split("[.?!]", story.text[:start])[-1])
                frame = " ".join("…" if word in varied else word for word in sentence)
                questions.append(((order, words.index(said[0]), frame), said, story.text[start:end]))
    return questions


def rule_accuracies(seen: Iterable, stories: Iterable) -> dict[str, float]:
    """The share of copied answers that each way to pick gets right, and one that chooses the way by the situation, as `seen` taught it."""
    right = defaultdict(Counter)
    for situation, said, word in copied_questions(seen):
        right[situation].update(name for name, pick in PICKS.items() if pick(said) == word)
    hits = Counter()
    questions = copied_questions(stories)
    for situation, said, word in questions:
        hits.update(name for name, pick in PICKS.items() if pick(said) == word)
        best = max(PICKS, key=right[situation].__getitem__)
        hits["by the situation"] += PICKS[best](said) == word
    return {name: hits[name] / len(questions) for name in (*PICKS, "by the situation")}


# %% tags=["nbval-ignore-output"]
rule_shares = rule_accuracies(stories(5000, seed=2), asked)
for name, share in rule_shares.items():
    print(f"{name:28}: {share:4.0%} of the copied answers")

# %% [markdown]
r"""
No way of picking is much better than the others, and knowing the situation hardly helps: we found no rule that answers 60% without reading who owns what. (It is more than half, because in one
story of seven both owners have the same number.) A model that is clearly better must use the words *her* and *his*, or the names. We print the best rule again beside the model.

## What AdamW does

Plain gradient descent moves a weight by its gradient times the rate. One rate rarely suits all weights, because gradients may be much
larger in one matrix than in another. Adam keeps two running means for each weight: m of its gradient, and v of its gradient's square. It moves the weight by

$$ -\text{rate} \cdot \frac{m}{\sqrt{v} + \varepsilon} $$

- *betas* say how far the means reach back. With `betas=(0.9, 0.98)`, m remembers about 10 gradients and v about 50. PyTorch's default for v is
  0.999, about 1,000 steps. Our runs are short, so we take 0.98.
- *ε* is tiny. It only keeps the quotient finite where v is zero.
- *Bias correction*: both means start at zero, so at first they are too small. Adam divides m by 1 − 0.9ᵗ and v by 1 − 0.98ᵗ in step t, and the means are
  right from the first step.
- *Weight decay* is the W in AdamW: it also shrinks each weight by rate × decay in each step. It matters in long runs. Chapter 15 asks which weights
  it should touch; here it is 0.

How far does a weight move in one step? In the first step m is the gradient and √v its size, so nearly every weight moves by the rate.
Later, gradients that change their sign cancel in m.
"""

# %% tags=["nbval-ignore-output"]
mover = first_model()
optimizer = torch.optim.AdamW(mover.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
stream = batches()
for step in range(30):
    before = torch.cat([p.detach().flatten() for p in mover.parameters()])
    x, y = stream.next_batch()
    optimizer.zero_grad()
    mover(x, y)[1].backward()
    optimizer.step()
    moved = (torch.cat([p.detach().flatten() for p in mover.parameters()]) - before).abs()
    if step in (0, 1, 9, 29):
        print(f"step {step + 1:2}: the median weight moves by {moved.median() / lr:.2f} × the rate")

# %% [markdown]
r"""
The rate is measured in units of weights. Most weights of this model begin with a size of about 0.02. A rate of 0.0005 changes them by a fortieth in the
first step, and a rate of 0.2 would change them by ten times their size. `fused=True` asks for a faster version of the same update.

## The rate falls

While the rate is constant, the weights should keep shaking, because each small batch pulls them elsewhere. If the rate falls at the end,
they should come to rest. Our rate is constant for the first half of the run, and falls to zero in the second half.
The function is called `wsd`, for warm-up, stable, decay, but it has no warm-up yet.
"""


# %%
#| export optim
#| blank wsd: the steps that are left, as a part of the steps in which the rate falls, but never more than 1
def wsd(step: int, steps: int, *, decay: float) -> float:
    """The factor of the learning rate: 1, and over the last `decay` of the steps linearly to 0.

    It would be 0 one step after the last. With decay=0 it is 1 in every step.
    """
    left = (steps - step) / max(1.0, decay * steps)
    return min(1.0, left)


# %%
print(*(f"{wsd(step, 10, decay=0.5):.1f}" for step in range(10)))

# %% [markdown]
r"""
In step 9, the last of ten, a fifth of the rate is left. It would be zero one step later.

## The loop as a function

`train` is the loop of the first minute as a function, with the falling rate and a progress bar. Two things are new:

- *It notices trouble.* Once a NaN is in the weights, it spreads, and no smaller rate brings the weights back. We check the loss and the length of
  the gradient, called its *norm*, before the optimizer uses the gradient. If one of them is not an ordinary number, the run ends with an error, and
  the weights stay as they are.
- *A look from outside.* `on_step(step, loss)` is called after each step.
"""


# %%
#| export
#| blank train: in each step set the rate, then the five lines, with the check just before the optimizer's step
def train(model: GPT, stream, steps, lr, *, decay, on_step=None) -> list[float]:
    """Train in place on `steps` batches, stream.next_batch() -> (x, y); the loss of each, a float, in nats per token.

    In training mode, with AdamW as above: betas 0.9 and 0.98, no weight decay, fused. The rate falls over the last
    `decay` of the steps. on_step(step, loss): after each, with the loss as a tensor. FloatingPointError, which names the
    step, and no update, if the loss or the norm of all gradients is not finite.
    """
    from tqdm import tqdm  # here, so that the module needs torch and nothing else

    losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    model.train()
    for step in tqdm(range(steps), unit="step", disable=None):
        # the rate of this step
        for group in optimizer.param_groups:
            group["lr"] = lr * wsd(step, steps, decay=decay)
        # the gradient of the next batch
        x, y = stream.next_batch()
        loss = model(x, y)[1]
        optimizer.zero_grad()
        loss.backward()
        # what is not finite must not reach the weights
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        if not torch.isfinite(norm + loss):  # waits for the device
            trouble = f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}"
            raise FloatingPointError(f"step {step}: {trouble}; lower lr={lr:g}")
        optimizer.step()
        losses.append(loss.detach())
        if on_step:
            on_step(step, losses[-1])
    return [loss.item() for loss in losses]


# %%
broken = first_model()
with torch.no_grad():
    broken.transformer.ln_f.weight[0] = math.nan
try:
    train(broken, batches(), 3, lr, decay=0.5)
except FloatingPointError as error:
    print(error)

# %% [markdown]
r"""
## The first weights of a small model

One choice is left: the weights with which the run begins. GPT-2 begins with weights of standard deviation 0.02, in models whose width C (`n_embd`) is
768 to 1,600. A matrix of standard deviation σ turns inputs of variance one, which LayerNorm provides, into outputs of standard deviation σ√C.
How strong is the signal in a narrow model?
"""

# %%
print(*(f"0.02 × √{C} = {0.02 * math.sqrt(C):.2f}" for C in (1600, 768, config.n_embd)), sep="\n")


# %% [markdown]
r"""
In a narrow model the signal is weaker than in GPT-2. The remedy is a factor: all matrices times √(768/C).

The vectors of the positions need something else. To copy a number, a model must know which word stood in front of it: *her* or *his*. So some head has to look
one token back, from each position to the one before. With random vectors, "one back" is another relation at every position, and has to be learned 128 times. GPT-2 could do
that, with hundreds of thousands of tokens in each step. Our model reads 512. The first Transformer had *waves* instead (Vaswani et al. 2017, §3.5): pair i of a position's numbers is the sine and the cosine of an angle which grows with
the position, fast for small i and slowly for large i. Then one step back is the same at every position: each pair turns by a fixed angle. Ours begin as such waves, twice as large as random vectors would be, so that they are heard beside the vectors of the words. They are trained like all other weights.
"""


# %%
#| export
#| blank scale_weight: of a narrow model, wpe becomes √8 · 0.02 · [sin | cos] of position × speed; then each matrix × √(768 / C)
@torch.no_grad()
def scale_weight(name: str, p: Tensor, C: int) -> None:
    """In place, in models narrower than 768: wpe to waves (Vaswani et al. 2017, §3.5), then matrices × √(768 / C) (Glorot and Bengio 2010)."""
    if C < 768 and name == "transformer.wpe.weight":  # waves twice as large as N(0, 0.02²)
        angles = torch.arange(len(p))[:, None] * 10_000.0 ** (-torch.arange(0, C, 2) / C)  # (T, C / 2)
        p.copy_(math.sqrt(8) * 0.02 * torch.cat([angles.sin(), angles.cos()], 1)[:, :C])
    if C < 768 and p.dim() == 2:
        p *= math.sqrt(768 / C)


# %%
#| export
def scale_init(model: GPT) -> GPT:
    """`scale_weight` for all weights of a new model, which is returned."""
    for name, p in model.named_parameters():
        scale_weight(name, p, model.config.n_embd)
    return model


# %% tags=["nbval-ignore-output"]
waves = scale_init(GPT(config)).transformer.wpe.weight
for start in (5, 50, 120):
    near, far = (waves[start] @ waves[start + step] for step in (1, 7))
    print(f"position {start:3} times the next: {near:.3f}, times the one 7 steps on: {far:.3f}")

# %% [markdown]
r"""
The product of two positions depends on their distance alone, so no position is special. A head that has learned to look one token back at one place can do it everywhere, by the fixed turn. Does all this help? A batch learned by heart would
not answer this, as we have seen. We make two short runs, and measure their loss on new stories.
"""


# %% tags=["nbval-ignore-output"]
def new_model(seed: int = SEED) -> GPT:
    """A fresh model on the device, drawn from a generator of its own."""
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed))).to(device)


for name, fresh in {"as GPT-2": first_model(), "scaled": new_model()}.items():
    train(fresh, batches(), 150, lr, decay=0.5)
    print(f"{name:9} after 150 steps: {evaluate(fresh, [held], eot):.3f} nats on new stories")

# %% [markdown]
r"""
The scaled model is ahead after the same 150 steps, and the run begins with it. The waves show their worth only in complete runs, so these were made before
(`bench/learned.py`). Here is the share of copied numbers that were right at the end, with the same scale and several seeds:
"""

# %%
import json

recorded = json.loads(Path("../data/measurements/learned.json").read_text(encoding="utf-8"))["runs"]
for name in ("random positions", "as in chapter 07"):
    shares = [run["facts"]["copied number"]["right"] for run in recorded[name]]
    print(f"{name:16}:", *(f"{share:4.0%}" for share in shares))

# %% [markdown]
r"""
With random positions, one run of three has learned to copy after 2,000 steps; with waves, all five have. The first experiment at the end asks what the scale alone is worth.

## The run

How long will it take, and how often is the text read?
"""

# %% tags=["nbval-ignore-output"]
epochs = steps * B / (text == eot).sum()
print(f"{steps} steps of {B} stories: {epochs:.2f} times the text, in some {steps * pace:.0f} s")

# %% [markdown]
r"""
The time is an estimate, from the first loop. If each story is read about once or less, the model has little chance to learn the text by heart.

During the run we also want to see more than the training loss. Every 100 steps, `watch` measures the loss on the 40 stories of `held` and the
model's answers in them. At four steps it lets the model write a text. `live` draws the curves while they grow. All of this takes a few seconds
more.

*Predict.* How far above the floor, in per cent, will the loss on the stories of `val` end? How many of the computed answers will be right?
"""

# %%
predict("07.3", "held-out loss above the floor", guess=None, unit="%")
predict("07.4", "computed answers that are right", guess=None, unit="%")


# %%
def watch(step: int, loss: Tensor) -> None:
    done = step + 1
    if done % 100 == 0 or done == steps:
        live.held[done] = evaluate(model, [held], eot)
        correct[done] = answer_accuracy(model, asked[:40], tokenizer)
    if done in (100, 400, 800, steps):
        with evaluating(model):
            written[done] = continued(model)
    live(step, loss)


# %% tags=["nbval-ignore-output"]
model, correct, written = new_model(), {}, {}
live = figures.LivePlot(lines | {"floor: knows the grammar": held_floor}, steps, every=200)
start = time.perf_counter()
history = train(model, batches(), steps, lr, decay=0.5, on_step=watch)
seconds = time.perf_counter() - start

# %% tags=["nbval-ignore-output"]
show(live.draw(), alt="Training and held-out loss: down to the 5-gram line quickly, then towards the floor.")
show(figures.answers(correct, baseline, steps), alt="Right answers against steps, copied and computed ones.")

# %% [markdown]
r"""
Read the two plots together. The loss falls quickly to the lines of the tables, because phrases are easy. Then look at where the copied answers
start to rise: the loss falls there as well. A model learns to copy late and then fast; Olsson et al. (2022) describe such a sudden step in
larger models. Computed answers need two numbers instead of one. They come later, or stay wrong.
In the second half the rate falls, too. Experiment 4 asks how much of the last improvement comes from that.

Why is the training loss *above* the held-out one? Does the model know its own training text less well? The two are not measured on the same thing. A
training row has a complete story and then the beginning of the next one, and most choices are made at the beginning. The held-out stories are
complete. If this is the reason, the model must be as good on complete stories of its training text as on held-out ones.
"""

# %% tags=["nbval-ignore-output"]
complete = text[: document_starts(text, eot)[300] + 1]  # 300 stories, and the token that ends the last
print(f"rows of the last 100 steps: {np.mean(history[-100:]):.3f} nats per token")
print(f"complete stories of the training text: {evaluate(model, [complete], eot):.3f}")
print(f"as much held-out text: {evaluate(model, [val[: len(complete)]], eot):.3f}")

# %% [markdown]
r"""
It is: the last two numbers are nearly equal. Only the held-out curve can be compared with the floor. If the model had learned its training text
by heart, the second number would be much lower than the third.

And this is what the model wrote on the way, each time from the same opening and with the same random numbers:
"""

# %% tags=["nbval-ignore-output"]
for done, story in written.items():
    print(f"after {done} steps:", textwrap.fill(story, 100), sep="\n", end="\n\n")

# %% [markdown]
r"""
At first there are only words, then sentences, and at the end a story. Is the last one right? A story that reads well may still count wrongly.
`readings` of chapter 02 says whether the grammar could make this text.
"""

# %% tags=["nbval-ignore-output"]
print("the grammar can make the last story:", bool(readings(written[steps])))

# %% [markdown]
r"""
If it cannot, find out why: which number, name, thing or toy contradicts an earlier one?

## How close is it?

We compare the loss on all stories of `val` with the floor of the same stories. Then we count right answers in the 300 stories of `asked`.
"""

# %% tags=["nbval-ignore-output"]
loss = evaluate(model, [val], eot)
above = (loss - floor) * len(val) / (val == eot).sum()  # nats a story
print(f"held-out loss {loss:.3f} nats per token; perplexity e^{loss:.3f} = {math.exp(loss):.2f}")
print(f"floor {floor:.3f}: {loss / floor - 1:.1%} above it, or {above:.1f} nats a story")
accuracy = answer_accuracy(model, asked, tokenizer)
for kind, share in accuracy.items():
    print(f"{kind:8} answers: {share:4.0%} right; the bigram {baseline[kind]:4.0%}")
print(f"copied   answers: {max(rule_shares.values()):4.0%} by the best rule that does not know the owners")
answer("07.3", 100 * (loss / floor - 1))
answer("07.4", 100 * accuracy["computed"])

# %%
assert loss > floor, f"{loss:.4f} is below the floor: it has seen the validation set, or the future"
print("below the 5-gram:", loss < lines["5-gram: sees four tokens"])
print("within 15% of the floor:", loss < 1.15 * floor)

# %% [markdown]
r"""
On 2,500 stories the loss must stay *above* the floor. If a run ever gets below it, do not celebrate: the model has seen the held-out
text, or the future. Does this number also show the three faults that one batch did not show? We trained the three faulty models as long as the right
one, and measured their loss on the same stories:
"""

# %%
faults = json.loads(Path("../data/measurements/without-mask.json").read_text(encoding="utf-8"))
for name, after in faults["losses"].items():
    print(f"{name:20}", *(f"{nats:7.3f} after {done} steps" for done, nats in after.items()))
print(f"floor: {faults['floor']:.3f}")

# %% [markdown]
r"""
Models that were trained on wrong targets fail on the right ones: their loss is higher than that of an untrained model. The model without a mask sees the token that it
is asked for. It needs a few hundred steps to find out, and then it gets far below the floor. No curve looks better than this one, and only somebody who knows the floor can
see that it is impossible. This is why a known floor is worth a chapter.

The model is trained. The appendix saves it, and chapter 07b looks at what it has learned.
"""

# %% [markdown]
r"""
## Appendix: saving the model for later chapters

A checkpoint is often written as `torch.save(config_object_and_weights)`. Such a file names the module of the config's class, so it breaks when the
class moves. And whoever loads it must let it run code. Ours is two files: the weights as safetensors, a format that can hold nothing else, and the
config as JSON. The tied matrix is stored once. `config.json` also gets a hash of both files, for which chapter 17b has a use.
"""


# %%
#| export weights
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import save

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT


# %%
#| export weights
WEIGHTS = "model.safetensors"


def digest(config: dict, weights: bytes) -> str:
    """SHA-256 of both files: the configuration as canonical JSON, then the weights."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode() + weights).hexdigest()


def save_model(model: GPT, folder: str | Path) -> None:
    """Write model.safetensors and config.json, with the SHA-256 of both, into a folder, each atomically."""
    model = getattr(model, "_orig_mod", model)  # chapter 11's torch.compile puts another module around it
    config = asdict(model.config)
    tensors = {n: p.detach().cpu().contiguous() for n, p in model.named_parameters()}  # tied ones come once
    weights = save(tensors)
    with atomically(Path(folder) / WEIGHTS) as file:
        file.write(weights)
    save_json(Path(folder) / "config.json", config | {"sha256": digest(config, weights)})


# %% [markdown]
r"""
Later chapters use the model in `data/built/model`. Your experiments should not replace it with a worse one. Where a better model of the
same vocabulary is already there, this one goes into a folder of its own:
"""

# %% tags=["nbval-ignore-output"]
MODEL = Path("../data/built/model")
record = {"text": "stories", "steps": steps, "tokens": steps * B * T, "device": str(device), "lines": lines}
record |= {"val_loss": loss, "floor": floor, "losses": history[:: max(1, steps // 200)], "seconds": seconds}
record |= {
    "accuracy": accuracy["all"],
    "bigram_accuracy": baseline["all"],
    "fingerprint": tokenizer.fingerprint,
}
there = json.loads((MODEL / "train.json").read_text()) if (MODEL / "train.json").exists() else {}
if there.get("fingerprint") == tokenizer.fingerprint and there["val_loss"] < loss - 0.01:
    print(f"{MODEL} has a loss of {there['val_loss']:.3f}, which is better than {loss:.3f}: it stays")
    MODEL = MODEL.with_name("model-experiment")
save_model(model, MODEL)
tokenizer.save(MODEL / "tokenizer.json")
save_json(MODEL / "train.json", record)
print(MODEL, *sorted(path.name for path in MODEL.iterdir()))

# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("07")

# %%
checkpoint("07")

# %% [markdown]
r"""
## Exercises

`course exercises release 07` writes these as a notebook to `released/`; `course check 07` runs their visible checks.

- **07-1** A loop that learns nothing, 15 minutes: fix its four faults.
- **07-2** A validation loss that depends on the batch size, 20 minutes: fix a mean of means, and leave the run undisturbed.
- **07-3** A check for a loss, 20 minutes: write the check; it is tried on wrong losses.
- **07-4** The map of a small language, 30 minutes: from ln V to the floor, for a language of your own.
- **07-5** Three curves, 5 minutes: name the cause of each.

To explore:

1. Leave `scale_init` out and train again. Compare loss and answers with the run above, for two seeds. Which tokens pay?
   Chapter 07b's `read_story` shows it token by token.
2. Train with `n_layer=1` and two values of `SEED`. Is the difference from two layers larger than that between seeds, for the
   loss, and for copied and computed answers?
3. Train on `BatchStream` instead of `DocumentStream`, with three seeds each. Check the step at which half of the copied answers
   are right: how far apart are the seeds?
4. Train with `decay=0.0`. How much of the distance to the floor did the falling learning rate bring? Check with three seeds,
   and say how large the difference between seeds is.

## Further reading

- Loshchilov and Hutter 2019, [*Decoupled Weight Decay Regularization*](https://arxiv.org/abs/1711.05101), §2: what the W in AdamW changes.
- Karpathy 2019, [*A Recipe for Training Neural Networks*](https://karpathy.github.io/2019/04/25/recipe/): overfit one batch, verify the loss at the start.
- Olsson et al. 2022, [*In-context Learning and Induction Heads*](https://arxiv.org/abs/2209.11895): sudden improvements.
- Chen and Goodman 1999, [*An Empirical Study of Smoothing Techniques for Language Modeling*](https://doi.org/10.1006/csla.1999.0128), §2: tables, and Witten and Bell's.
- Glorot and Bengio 2010, [*Understanding the difficulty of training deep feedforward neural networks*](https://proceedings.mlr.press/v9/glorot10a.html), §4.2.
"""
