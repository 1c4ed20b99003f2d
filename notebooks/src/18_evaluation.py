# %% [markdown]
r"""
# 18 · Evaluation: what a number means

"The loss is 0.59." On which text, in which context, per token of which tokenizer, and how far from the best
there is? This chapter builds the measures that the course has used since chapter 07, and others by which models are
compared: perplexity, bits per byte, HellaSwag. Its middle is a measure that only a text with a known floor allows: what a
model still has to learn, in nats, for each kind of decision.
"""

# %%
#| default_exp evals
#| doc evals: How good a model is: its loss on whole documents, its error, bits per byte, and how often its answers are right.
#| doc excess: What a model pays above the floor, token by token, and for which kind of decision.
#| doc hellaswag: HellaSwag: each context read once for its four endings, and which of them the model finds likeliest.
#| doc harness: A model as lm-evaluation-harness wants it.
#| doc report: The command `eval`: a checkpoint, some tasks, a line for each.
import copy
import json
import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from course.figures import evaluation as figures
from course.figures.training import costs
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpus import ensure_corpus, stories
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device, pick_scale
from nanogpt.model import GPTConfig
from nanogpt.shards import open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.train import scale_init, train
from nanogpt.weights import load_model, save_model

# %%
#| export
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F

from nanogpt.model import GPT
from nanogpt.precision import autocast
from nanogpt.shards import document_starts

# %% [markdown]
r"""
All sizes stand here. The model is chapter 07's; where it is absent, the longest of this chapter's short runs takes its place.
"""

# %%
STORIES, SEED = 200, 1  # judged on; seed 0 is what the models are trained on
STEPS = {"ci": (30, 100, 300), "laptop": (30, 100, 300), "gpu": (30, 100, 300, 1000)}[
    pick_scale(pick_device())
]
SHAPE = GPTConfig(block_size=128, n_layer=2, n_head=8, n_embd=128)
B, LR = 4, 2e-3
device, built = pick_device(), Path("../data/built")
manifest = ensure_corpus(built / "stories")
tokenizer = BPETokenizer.load(built / "stories/tokenizer.json")
eot, V, T = tokenizer.eot, tokenizer.vocab_size, SHAPE.block_size
paths = {split: open_shards(built / "stories", split) for split in ("train", "val")}
text, val = (np.concatenate([read_shard(p) for p in paths[s]]).astype(np.int64) for s in ("train", "val"))
there = (built / "model/config.json").exists()
print("chapter 07's model is here" if there else "chapter 07's model is absent: short runs must do")

# %% [markdown]
r"""
Checkpoints to compare: one layer and two, each trained by chapter 07's loop, kept after some steps on the way.
"""


# %%
def new_model(layers: int, **changes) -> GPT:
    config = replace(SHAPE, vocab_size=V, n_layer=layers, **changes)
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(0))).to(device)


def stages(layers: int) -> dict[str, GPT]:
    """A model before the first step and after each of STEPS; its last rate falls to zero, as in chapter 07."""
    model, name = new_model(layers), f"{layers} layer" + "s" * (layers > 1)
    kept = {"untrained": copy.deepcopy(model)}

    def keep(step: int, loss) -> None:
        if step + 1 in STEPS:
            kept[f"{name}, {step + 1} steps"] = copy.deepcopy(model).eval()

    stream = DocumentStream(paths["train"], B, T, seed=0, device=device)
    train(model, stream, STEPS[-1], LR, generator=torch.Generator().manual_seed(0), on_step=keep)
    return kept


models = stages(2)
models[f"1 layer, {STEPS[-1]} steps"] = list(stages(1).values())[-1]
if there and load_model(built / "model").config.vocab_size == V:
    models["chapter 07's model"] = load_model(built / "model", device)
best = list(models.values())[-1]
print(len(models), "checkpoints")

# %% [markdown]
r"""
## A loss that can be compared

*Find the bug.* A loss for a held-out text, as it is often written:
"""


# %% tags=["nbval-ignore-output"]
def careless_loss(model: GPT, tokens: np.ndarray, B: int) -> float:
    """Mean of the batches' mean losses."""
    rows = (len(tokens) - 1) // T
    x, y = (torch.from_numpy(tokens[i : i + rows * T]).view(rows, T).to(device) for i in (0, 1))
    with torch.no_grad():
        return torch.stack([model(x[i : i + B], y[i : i + B])[1] for i in range(0, rows, B)]).mean().item()


learner, some = new_model(SHAPE.n_layer, dropout=0.1), val[: 50 * T]
learner.load_state_dict(models[f"{SHAPE.n_layer} layers, {STEPS[-1]} steps"].state_dict())
for rows in (7, 32, 32):
    print(f"B = {rows:2}: {careless_loss(learner, some, rows):.3f}")

# %% [markdown]
r"""
Three numbers for one model and one text, and none of them right. Dropout is still on, so that even the same call differs. The last
batch is smaller and counts as much as the others, so that the batch size changes the result; with several
processes their number does. The last tokens, which fill no row, are not counted at all. And a row starts where the last one
stopped, so that many stories are judged without their beginning.

Here is what should hold. Every token is predicted once. Its context is its own document, from the beginning if that fits, else
about half a context. The result is a sum over tokens divided by their number.
"""


# %%
#| export
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
#| export
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
#| export
def padded(tokens: np.ndarray, rows: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, (rows, longest), of some windows; y is -100 where nothing is to be predicted."""
    x = torch.zeros(len(rows), max(stop - start for start, _, stop in rows), dtype=torch.int64)
    y = torch.full_like(x, -100)
    for i, (start, new, stop) in enumerate(rows):
        piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
        x[i, : stop - start] = piece[:-1]
        y[i, new - start : stop - start] = piece[1 + new - start :]
    return x, y


# %% [markdown]
r"""
The loss of *each* token is what everything below is made of: means, errors, bytes, kinds.
"""


# %%
#| export
@torch.no_grad()
def token_losses(model: GPT, tokens: np.ndarray, eot: int, B=32, precision="float32") -> np.ndarray:
    """The loss of each token of a shard but the first, in nats: (len(tokens) - 1,), float64."""
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats = np.zeros(max(0, len(tokens) - 1))
    with evaluating(model) as device:
        for i in range(0, len(rows), B):
            x, y = padded(tokens, some := rows[i : i + B])
            with autocast(precision, device):
                logits, _ = model(x.to(device))
            loss = (
                F.cross_entropy(logits.float().transpose(1, 2), y.to(device), reduction="none").cpu().numpy()
            )
            for (start, new, stop), row in zip(some, loss):
                nats[new:stop] = row[new - start : stop - start]
    return nats


# %%
#| export
def total_loss(model: GPT, tokens: np.ndarray, eot: int, B=32, precision="float32") -> tuple[float, int]:
    """Sum of the losses of a shard's tokens, in nats, and how many they are: all but the first, each once.

    Sums over several shards, on however many processes, add up to the whole.
    """
    nats = token_losses(model, tokens, eot, B, precision)
    return nats.sum().item(), len(nats)


# %%
#| export
def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int, B=32, precision="float32") -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    totals = [total_loss(model, tokens, eot, B, precision) for tokens in shards]
    if not sum(count for _, count in totals):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return sum(nats for nats, _ in totals) / sum(count for _, count in totals)


# %% tags=["nbval-ignore-output"]
for rows in (7, 32, 32):
    print(f"B = {rows:2}: {evaluate(learner, [some], eot, rows):.3f}")

# %% [markdown]
r"""
## A fixed set, and how sure the number is

The mean of a few documents is an estimate. *Predict.* On 200 stories, some 19,000 tokens: what is the standard error of the
mean loss, in nats per token?

Documents are drawn independently; tokens of one document are not. So the error is that of a ratio of two sums over
documents, nats and tokens (Cochran 1977, §6).
"""

# %%
predict("18.1", "standard error of a loss on 200 stories", guess=None, unit="nats per token")


# %%
#| export
def by_document(nats: np.ndarray, tokens: np.ndarray, eot: int) -> tuple[np.ndarray, np.ndarray]:
    """Nats and number of predicted tokens of each document. nats: those of tokens[1:]."""
    starts = document_starts(tokens[: len(nats)], eot)
    return np.add.reduceat(nats, starts), np.diff(starts, append=len(nats))


def mean_and_error(nats: np.ndarray, tokens: np.ndarray, eot: int) -> tuple[float, float]:
    """Mean loss per token, and its standard error over documents, nan for one."""
    sums, counts = by_document(nats, tokens, eot)
    mean, n = sums.sum() / counts.sum(), len(sums)
    spread = np.sqrt(((sums - mean * counts) ** 2).sum() * n / (n - 1)) if n > 1 else np.nan
    return mean.item(), (spread / counts.sum()).item()


# %% [markdown]
r"""
*Check.* Draw many sets of 200 stories out of all held-out ones, and look how far their means scatter.
"""

# %%
first, second = list(models)[-2:]
held = val[: np.flatnonzero(val == eot)[4 * STORIES] + 1]  # four such sets, to draw from
dice, starts = np.random.default_rng(0), np.flatnonzero(held[:-1] == eot)
nats = {name: token_losses(models[name], held, eot) for name in (first, second)}
draws = [dice.choice(len(starts), STORIES, replace=False) for _ in range(2000)]


def scatter(nats: np.ndarray) -> float:
    """Standard deviation of the mean over STORIES stories, from set to set."""
    sums, counts = by_document(nats, held, eot)
    return np.std([sums[at].sum() / counts[at].sum() for at in draws]) / math.sqrt(1 - STORIES / len(starts))


mean, error = mean_and_error(nats[second][: starts[STORIES]], val[: starts[STORIES] + 1], eot)
assert 0.7 < error / scatter(nats[second]) < 1.4, "the formula and the scatter of 2,000 sets disagree"
print("one set's formula agrees with the scatter of 2,000 sets")
answer("18.1", round(error, 4))

# %% tags=["nbval-ignore-output"]
one, other, both = (scatter(x) for x in (nats[first], nats[second], nats[first] - nats[second]))
print(f"{second}: {mean:.4f} ± {error:.4f} on {STORIES} stories; perplexity {math.exp(mean):.3f}")
print(f"the difference from {first}: ± {math.hypot(one, other):.4f} on two sets, ± {both:.4f} on one")

# %% [markdown]
r"""
That is why the set is *fixed*. What makes one set of stories dearer than another makes it dearer for both models, and drops
out of the difference: two models on the same stories can be told apart where on two sets they could not. During a
run, too: a curve over a fixed set moves because the model moved.

## Perplexity, and bits per byte

Perplexity is e to the loss: the number of equally likely tokens that would be as surprising. It inherits the loss's flaw: both are
*per token*, and a token is whatever the tokenizer says. What is the same for everybody is the text, and its bytes in
UTF-8. So: how many bytes does each token stand for?
"""


# %%
#| export
def token_bytes(tokenizer) -> np.ndarray:
    """The bytes of text that each id stands for, from the vocabulary; 0 for <|endoftext|> and its like."""
    return np.array([len(token) for token in tokenizer.vocab] + [0] * len(tokenizer.special))


def bits_per_byte(nats: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> float:
    """Bits for each byte of the text of tokens[1:], whose losses are nats; sizes: those of `token_bytes`."""
    size = sizes[np.asarray(tokens[1:], dtype=np.int64)].sum()
    if not size:
        raise ValueError("bits per byte need at least one token that stands for text")
    return (nats.sum() / math.log(2) / size).item()


# %% [markdown]
r"""
*Find the bug.* Often the bytes are counted by decoding each token. *Predict.* By how much is the count wrong on a megabyte of many
alphabets?
"""

# %%
predict("18.2", "bytes by decoding, per byte of text", guess=None)
dice = random.Random(SEED)
alphabets = {
    "Greek": (0x3B1, 24),
    "Cyrillic": (0x430, 32),
    "Hangul": (0xAC00, 11172),
    "emoji": (0x1F300, 700),
    "Latin": (97, 26),
}
counted, sizes = np.zeros(3, np.int64), token_bytes(tokenizer)
for name, (begin, n) in alphabets.items():
    words = ["".join(chr(begin + dice.randrange(n)) for _ in range(5)) for _ in range(5000)]
    words = " ".join(words * math.ceil(200_000 / len(" ".join(words).encode())))
    ids = tokenizer.encode(words)
    row = [len(words.encode()), sizes[ids].sum(), sum(len(tokenizer.decode([i]).encode()) for i in ids)]
    print(f"{name:8} {row[0]:9,} bytes, by vocabulary {row[1]:9,}, by decoding {row[2]:9,}")
    counted += row
assert counted[0] == counted[1], "the tokens' bytes do not add up to the text's"
answer("18.2", round(counted[2] / counted[0], 2))

# %% [markdown]
r"""
This tokenizer has read English stories only, so most letters of the others are two to four tokens of one byte each. Half a
character decodes to U+FFFD, the replacement character, whose UTF-8 has three bytes. Three times the bytes is a third
of the bits per byte: the worse the tokenizer fits, the better the result looks.

*Two tokenizers on one text.* A table of pairs of bytes against a table of single tokens: which one is better?
"""

# %%
held = tokenizer.decode(val[1:40_001].tolist()).replace("<|endoftext|>", "\n")


def bigram_nats(train: np.ndarray, test: np.ndarray, size: int, pairs: bool) -> np.ndarray:
    """-ln P of test[1:] by counts of the token alone or of pairs, one added to each (Laplace)."""
    alone = np.bincount(train, minlength=size) + 1.0
    counts = np.bincount(train[:-1] * size + train[1:], minlength=size * size).reshape(size, size) + 1.0
    p = counts / counts.sum(1, keepdims=True) if pairs else np.tile(alone / alone.sum(), (size, 1))
    return -np.log(p[test[:-1], test[1:]])


letters = BPETokenizer([bytes([b]) for b in range(256)])
known = tokenizer.decode(text[1:400_001].tolist()).replace("<|endoftext|>", "\n")
for name, coder, pairs in (
    ("bytes, pairs", letters, True),
    ("tokens, each alone", tokenizer, False),
    ("tokens, pairs", tokenizer, True),
):
    past, ids = (np.array(coder.encode(some)) for some in (known, held))
    some = bigram_nats(past, ids, coder.vocab_size, pairs)
    print(
        f"{name:19} {some.mean():.3f} nats per token, {bits_per_byte(some, ids, token_bytes(coder)):.3f} bits per byte"
    )

# %% [markdown]
r"""
Per token, the table of bytes is the best of the three. Per byte of the text it is the worst, three to four times as dear as pairs of tokens.
Never compare losses per token across tokenizers.

## Who has how many?

The mean loss is mostly small talk. Whether the model uses facts is a question with answers that are right or wrong:
every story says who has how many, in number words that can be *copied* from an earlier sentence or must be *computed*
from two. Chapter 02 knows where they stand. Is the model's first choice the right word?
"""


# %%
#| export
def first_choices(model: torch.nn.Module, ids: np.ndarray, T: int, eot: int) -> list[bool]:
    """Of each id but the first, whether it is what the model found likeliest, given the ids before it."""
    device, right = next(model.parameters()).device, []
    for start, new, stop in windows(ids, T, eot):
        logits, _ = model(torch.from_numpy(ids[None, start:stop]).to(device))
        best = logits[0, new - start :].argmax(-1).cpu().numpy()
        right += (best == ids[new + 1 : stop + 1]).tolist()
    return right


# %%
#| export
@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's; one longer than the model's context is read
    through `windows`. model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    right, asked = Counter(), Counter()
    with evaluating(model):
        for story in stories:
            ids = np.array([tokenizer.eot, *tokenizer.encode(story.text)])
            T = model.config.block_size if hasattr(model, "config") else len(ids)
            hits = first_choices(model, ids, T, tokenizer.eot)
            ends = np.cumsum(
                [len(tokenizer.decode([i])) for i in ids[1:].tolist()]
            )  # of each token, in the text
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                asked.update([kind, "all"])
                right.update([kind, "all"] if all(hits[first : last + 1]) else [])
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


# %% tags=["nbval-ignore-output"]
told = list(stories(STORIES, seed=SEED))
for name in (first, second):
    shares = answer_accuracy(models[name], told, tokenizer)
    print(f"{name:22}", ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))

# %% [markdown]
r"""
## Above the floor, by kind of decision

A share of right answers says nothing of how wrong the wrong ones are, and nothing of what is no answer. The loss says
all, in one number. For these stories it can be taken apart.

Every choice of the grammar is known, so a perfect reader can be written down: one who, of all ways to tell a story that
agree with what was heard, knows each with its probability. What a token costs *that* reader, −ln P(token | all
before it), is the floor token by token. The rest of what a model pays is *excess*: what it has yet to learn.

The reader goes word by word. A reading of the text so far is what is left to tell, with the facts:
"""


# %%
#| export excess
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from nanogpt.corpus import entries, said
from nanogpt.grammar import Count, Draw, Part, Pick, Recall, Text, alternatives


# %%
#| export excess
class Reading(NamedTuple):
    """One way to understand a text so far."""

    parts: tuple  # what is still to be told, each with its kind
    p: float = 1.0
    told: str = ""  # told already, beyond what was read
    facts: dict = {}  # noqa: RUF012 (never changed)
    marks: tuple = ()  # (words, kind) of all parts that were told


# %%
#| export excess
def told_on(reading: Reading) -> Iterator[Reading]:
    """All ways to tell on, up to the next space or the end."""
    if not reading.parts or " " in reading.told[1:]:
        yield reading
        return
    (part, kind), *rest = reading.parts
    if isinstance(part, Pick):
        for line in (choices := lines(part.symbol)):
            yield from told_on(reading._replace(parts=(*line, *rest), p=reading.p / len(choices)))
        return
    draws = (
        [(e[0], reading.facts | {part.key: e}) for e in entries(part.pool)] if isinstance(part, Draw) else []
    )
    for words, facts in draws or [(said(part, reading.facts), reading.facts)]:
        p, marks = reading.p / max(1, len(draws)), (*reading.marks, (words, kind))
        yield from told_on(Reading(tuple(rest), p, reading.told + words, facts, marks))


# %% [markdown]
r"""
Which kind of decision is a word? The part of the grammar that tells it says so. Of phrases, a word that the perfect reader had to
choose is an *opening*: there the next sentence is decided. All others are *fixed*.
"""


# %%
#| export excess
ADJECTIVES = "color", "good", "look", "mood", "weather"
DRAWN = {"girl": "names, new", "boy": "names, new", **dict.fromkeys(("many", "few", "some"), "counts, new")}


def kind_of(part: Part, symbol: str) -> str:
    """What kind of decision the words of a part are, in a line of symbol."""
    if isinstance(part, Draw):
        return DRAWN.get(part.pool, "things, new")
    if isinstance(part, Recall):
        return "names, again" if part.key in "AB" else "things, again"
    if isinstance(part, Count):
        return "counts, copied" if len(part.terms) == 1 else "counts, computed"
    if symbol in ADJECTIVES:
        return "adjectives"
    first = alternatives(symbol)[0]
    return (
        "other words"
        if len(first) == 1 and isinstance(first[0], Text) and " " not in first[0].words
        else "phrases"
    )


# %%
#| export excess
@cache
def lines(symbol: str) -> list[tuple]:
    """A symbol's alternatives, each part with its kind."""
    return [tuple((part, kind_of(part, symbol)) for part in line) for line in alternatives(symbol)]


# %%
#| export excess
def next_words(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    """The words that can come next, each up to its next space, and how a reader who has heard it reads on."""
    found: dict[str, list[Reading]] = {}
    for further in (further for reading in readings for further in told_on(reading)):
        end = further.told.find(" ", 1)
        end = len(further.told) if end < 0 else end
        found.setdefault(further.told[:end], []).append(further._replace(told=further.told[end:]))
    return found


# %%
for words in ("One", "One sunny"):
    so_far = [Reading(((Pick("story"), ""),))]
    for word in re.findall(" ?[^ ]+", words):
        so_far = next_words(so_far)[word]
    after = {w.strip(): sum(r.p for r in some) for w, some in next_words(so_far).items()}
    total = sum(after.values())
    print(f"{words} → " + ", ".join(f"{w} {p / total:.3f}" for w, p in list(after.items())[:4]), "…")

# %% [markdown]
r"""
Tokens are smaller than words. A token that begins several words has the probability of all of them; the next one then decides.
"""


# %%
#| export excess
def perfect_reader(text: str, tokenizer) -> list[tuple[float, str]]:
    """What each token of a story, and its end, costs one who knows the grammar, in nats, and its kind of decision.

    Exact: -ln P(token | all tokens before it), over all ways to tell a story. ValueError if the grammar does not
    tell this text.
    """
    readings, costs, before = [Reading(((Pick("story"), ""),))], [], 1.0
    first, *others = text.split(" ")
    for word in [first, *(" " + other for other in others), ""]:
        heard = next_words(readings)
        if word not in heard:
            raise ValueError(f"the grammar tells no story with {word!r} at this place: {text[:60]} …")
        chances = [(tokenizer.encode(w), sum(r.p for r in some)) for w, some in heard.items()]
        ids = tokenizer.encode(word)
        for n in range(1, len(ids) + 1):
            left = sum(p for other, p in chances if other[:n] == ids[:n])  # of longer words, too
            costs.append(math.log(before / left))
            before = left
        readings = heard[word]
    costs.append(math.log(before / sum(r.p for r in readings)))
    marks = max(readings, key=lambda reading: reading.p).marks
    return list(zip(costs, [*kinds_of_tokens(text, marks, costs, tokenizer), "the end"]))


# %%
#| export excess
KINDS = (
    *("names, new", "names, again", "counts, new", "counts, copied", "counts, computed", "things, new"),
    *("things, again", "adjectives", "other words", "openings", "fixed words", "the end"),
)


def kinds_of_tokens(text: str, marks: tuple, costs: list[float], tokenizer) -> Iterator[str]:
    """The kind of the part in which each token's first letter stands; marks: (words, kind) of all parts."""
    ends, end = np.cumsum([len(words.encode()) for words, _ in marks]), 0
    for token, cost in zip((tokenizer.tokens[i] for i in tokenizer.encode(text)), costs):
        start, end = end, end + len(token)
        kind = marks[np.searchsorted(ends, start + token.startswith(b" "), side="right")][1]
        yield ("openings" if cost > 1e-9 else "fixed words") if kind == "phrases" else kind


# %%
#| export excess
@dataclass(frozen=True)
class Floor:
    """Stories as ids, each behind an <|endoftext|> and with one after the last, and for every id but the first the
    nats that it costs a perfect reader, and its kind: an index into KINDS."""

    ids: np.ndarray  # (n + 1,)
    nats: np.ndarray  # (n,)
    kinds: np.ndarray  # (n,)
    stories: int

    @classmethod
    def of(cls, texts: Iterable[str], tokenizer) -> "Floor":
        ids, costs, texts = [tokenizer.eot], [], list(texts)
        for text in texts:
            ids += [*tokenizer.encode(text), tokenizer.eot]
            costs += perfect_reader(text, tokenizer)
        nats, kinds = zip(*costs)
        return cls(np.array(ids), np.array(nats), np.array([KINDS.index(kind) for kind in kinds]), len(texts))


# %%
#| export excess
class Floor(Floor):
    def by_kind(self, nats: np.ndarray) -> dict[str, float]:
        """The sum of some nats, one for each id but the first, of each kind, per story: the parts of their sum."""
        return dict(zip(KINDS, (np.bincount(self.kinds, nats, len(KINDS)) / self.stories).tolist()))

    def excess(self, nats: np.ndarray) -> dict[str, float]:
        """What a model pays above the floor, by kind, in nats per story. nats: its losses (`token_losses`)."""
        return self.by_kind(nats - self.nats)


# %% [markdown]
r"""
*Check.* The floors of a story's tokens must add up to the story's own −ln p, which chapter 02 knows from telling it; and no
token costs less than nothing.
"""

# %%
floor = Floor.of((story.text for story in told), tokenizer)
entropy = -sum(story.logprob for story in told)
assert abs(floor.nats.sum() - entropy) < 1e-6, f"{floor.nats.sum()} nats, but told with {entropy}"
assert floor.nats.min() > -1e-9, f"a token costs {floor.nats.min()} nats"
print(f"{len(floor.nats):,} tokens of {STORIES} stories: {entropy / STORIES:.3f} nats a story, either way")

# %% [markdown]
r"""
*Predict.* Computed numbers are one or two of some ninety tokens of a story. Of what chapter 07's model pays above the floor, how much goes there?
"""

# %%
predict("18.3", "share of the excess that is paid for computed counts", guess=None, unit="%")


def pair_table(pairs: bool) -> np.ndarray:
    return bigram_nats(text[:1_000_000], floor.ids, V, pairs)


table = {
    "each token alone": floor.excess(pair_table(False)),
    "pairs of tokens": floor.excess(pair_table(True)),
}
for name, model in models.items():
    nats = token_losses(model, floor.ids, eot)
    table[name] = floor.excess(nats)
    whole = (nats.sum() - entropy) / STORIES
    assert abs(sum(table[name].values()) - whole) < 1e-6, f"{name}: the parts do not add up to {whole}"
print("in every row the parts add up to the whole")

# %% tags=["nbval-ignore-output"]
short = [
    kind.replace("counts, ", "").replace("names, ", "n. ").replace("things, ", "t. ")[:7] for kind in KINDS
]
print(" " * 20, "  total", *(f"{kind:>7}" for kind in short))
print(
    f"{'tokens a story':20}",
    f"{len(floor.nats) / STORIES:7.1f}",
    *(f"{n:7.1f}" for n in floor.by_kind(np.ones(len(floor.nats))).values()),
)
print(f"{'the floor':20}", *(f"{x:7.2f}" for x in (entropy / STORIES, *floor.by_kind(floor.nats).values())))
for name, row in table.items():
    print(f"{name:20}", *(f"{x:7.2f}" for x in (sum(row.values()), *row.values())))
show(
    figures.excess(table),
    alt="Bars of nats a story above the floor, split by kind of decision: phrases go first, then names and things, computed counts last.",
)
answer("18.3", 100 * row["counts, computed"] / sum(row.values()))

# %% [markdown]
r"""
Read it downwards: it is the order in which things are learned. The phrases come first, since they are most of the tokens; then
what a free choice is made from, adjectives and openings; those need a table, and no memory. Names and things said again and copied
counts hardly move at first, and then fall to nearly nothing: that is attention, found. Computed counts stay.

A run of 1,600 steps for each depth (chapter 07's sizes, one seed, November 2026) ends with 4.20 nats a story above the floor for one
layer and 4.40 for two. Of these, computed counts are 1.31 and 1.43, and things said again 1.13 and 1.48: toys and places, which few of
the plots recall. So a third of what is missing is arithmetic, paid at 1.2 of 93 tokens, and no part of it was bought by the
second layer. On the way it differs more: after 400 steps, names said again cost the one layer 6.3 nats, and two layers 13.2. (One pair of
runs, so another seed may turn that around.)

Where in a story is it paid? Shaded by excess, with the answers framed:
"""

# %% tags=["nbval-ignore-output"]
excess, rows = token_losses(best, floor.ids, eot) - floor.nats, []
for i in np.flatnonzero(floor.ids == eot)[2:4]:
    story, end = told[np.count_nonzero(floor.ids[:i] == eot)], 0
    rows.append([])
    for j, piece in enumerate(map(tokenizer.decode, ([k] for k in tokenizer.encode(story.text)))):
        begin, end = end, end + len(piece)
        framed = any(a < end and begin < b for a, b in story.answers)
        rows[-1].append((piece, max(0.0, excess[i + j].item()), framed))
show(
    costs(rows),
    alt="Two stories, each token shaded by what the model pays above the floor; framed, the answers.",
)

# %% [markdown]
r"""
## HellaSwag: is the likelier ending the right one?

For text whose floor nobody knows, one asks questions. HellaSwag's (Zellers et al. 2019) are beginnings with four endings, of which one goes on as
the video or the article did; the others were written by a model, and chosen to fool another. A model that has learned to
continue text can answer without having learned to answer: the ending that it finds likeliest is its choice.

Its 10,042 validation questions are 12 MB (`course data hellaswag`). For tests and offline there are 48 of the same format, written for
this course: their wrong endings are absurd, so the two scores cannot be compared.
"""


# %%
#| export hellaswag
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.cache import KVCache, read
from nanogpt.model import GPT
from nanogpt.precision import autocast

# %%
#| export hellaswag
DATA = Path(__file__).parent.parent / "data" if "__file__" in globals() else Path("../data")
COURSE, REAL = DATA / "hellaswag_course.jsonl", DATA / "downloads" / "hellaswag_val.jsonl"


def default_items() -> Path:
    """HellaSwag's validation set where `course data hellaswag` has brought it, else the course's small set."""
    return REAL if REAL.exists() else COURSE


# %%
#| export hellaswag
def load_items(path: str | Path | None = None) -> list[dict]:
    """Questions of a HellaSwag file: each a dict with ctx, endings and label. None: those of default_items().

    ValueError, naming the line, for what is no question.
    """
    path, items = Path(path or default_items()), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            item = json.loads(line)
            whole = item["ctx"] and all(item["endings"]) and 0 <= item["label"] < len(item["endings"])
        except (ValueError, TypeError, LookupError):
            whole = False
        if not whole:
            raise ValueError(
                f"{path.name}, line {number}: a question needs ctx, endings, and label, one of theirs"
            )
        items.append(item)
    if not items:
        raise ValueError(f"{path.name} holds no question")
    return items


# %%
items = load_items(COURSE)
print(
    items[9]["ctx"],
    *(f"\n  {'*' if i == items[9]['label'] else ' '} {e}" for i, e in enumerate(items[9]["endings"])),
)

# %% [markdown]
r"""
Longer endings have more tokens to pay for. So there are several accuracies, and one name is used for two of them:
lm-evaluation-harness's `acc_norm` divides by *characters*, build-nanogpt's and llm.c's by *tokens*. The harness also has
`acc_bytes`; on English text it is `acc_norm`.
"""

# %% [markdown]
r"""
*How fast?* Usually every ending is read with its context, four times the same context. With chapter 08's cache the context is read once.
Then all endings are read at once, side by side behind it, each token seeing the context and its own ending alone. Nothing
is copied. *Predict.* How many times fewer tokens go through the model?
"""


# %%
#| export hellaswag
def ids_of(item: dict, tokenizer) -> tuple[list[int], list[list[int]]]:
    """The ids of a question's context, and of its endings, each after a space."""
    return tokenizer.encode(item["ctx"]), [tokenizer.encode(" " + ending) for ending in item["endings"]]


def fitting(context: list[int], endings: list[list[int]], block_size: int) -> list[int]:
    """What of a context fits before its longest ending, whose last token is predicted and not read."""
    room = block_size + 1 - max(map(len, endings))
    if room < 1:
        raise ValueError(
            f"an ending of {block_size + 1 - room} tokens does not fit into block_size={block_size}"
        )
    return context[-room:]


# %%
#| export hellaswag
@dataclass
class EndingCache(KVCache):
    """Reads all endings of each text at once: a token sees the text and its own ending; the logits are of every token.

    ending, place: (B, T), which ending each new token is of (-2: padding), and its place in it.
    """

    ending: Tensor | None = None
    place: Tensor | None = None

    def positions(self, T: int) -> Tensor:
        slots = super().positions(T)  # where keys and values are kept: the endings lie side by side
        if self.past is not None:
            of = slots.new_full((len(slots), self.past.size(-1)), -1).scatter(
                1, slots, self.ending
            )  # -1: text
            seen = (of == -1)[:, None] | (of[:, None] == self.ending[:, :, None])  # (B, T, S)
            self.past = self.past & seen[:, None]
        return (slots[:, :1] + self.place).where(
            self.ending >= 0, 0
        )  # padding may stand beyond all positions

    def newest(self, x: Tensor) -> Tensor:
        return x[self.ending >= 0][None]  # (1, tokens, C)


# %%
#| export hellaswag
def side_by_side(endings: Sequence[list[list[int]]]) -> Tensor:
    """(4, B, T): of each text's endings, laid end to end, every token that another follows, and -2 or -100 for padding.

    The token, the one that follows, which of the text's endings it is of, and its place in it.
    """
    rows = [
        [(*two, e, at) for e, ids in enumerate(some) for at, two in enumerate(pairwise(ids))]
        for some in endings
    ]
    T = max(1, max(map(len, rows)))
    return torch.tensor([row + [(0, -100, -2, 0)] * (T - len(row)) for row in rows]).permute(2, 0, 1)


# %%
#| export hellaswag
@torch.no_grad()
def score_endings(model: GPT, contexts: Sequence[list[int]], endings: Sequence[list[list[int]]]) -> Tensor:
    """(2, endings): what each costs after its context, in nats, and how many of its tokens are not first choice.

    contexts: ids of B texts, each read once; endings[b]: some lists of ids. The results are flat.
    """
    device, counts = model.transformer.wte.weight.device, torch.tensor([len(some) for some in endings])
    x, y, ending, place = side_by_side(endings).to(device)  # (B, T) each
    cache = KVCache.empty(model, len(contexts), max(map(len, contexts)) + x.size(1))
    first = read(model, cache, contexts).repeat_interleave(counts.to(device), 0)  # (endings, V)
    with evaluating(model):
        beside = EndingCache(cache.keys, cache.values, cache.lengths, ending=ending, place=place)
        rest = model(x, cache=beside)[0][0]  # (tokens, V)
    which = (ending + (counts.cumsum(0) - counts).to(device)[:, None])[ending >= 0]
    begins = torch.tensor([ids[0] for some in endings for ids in some], device=device)
    nats, wrong = first_and_rest = torch.zeros(2, len(begins), device=device)
    for logits, ids, at in (
        (first, begins, torch.arange(len(begins), device=device)),
        (rest, y[ending >= 0], which),
    ):
        nats.index_add_(0, at, F.cross_entropy(logits.float(), ids, reduction="none"))
        wrong.index_add_(0, at, (logits.argmax(-1) != ids).float())
    return first_and_rest


# %% [markdown]
r"""
Questions of about one length are read together, so that little is padding.
"""


# %%
#| export hellaswag
def abreast(endings: list[list[int]], limit: int) -> list[list[list[int]]]:
    """The endings in groups of at most `limit` tokens, since a model takes no more in one pass."""
    groups, left = [], 0
    for ids in endings:
        if len(ids) > left:
            groups, left = [*groups, []], limit
        groups[-1].append(ids)
        left -= len(ids)
    return groups


# %%
#| export hellaswag
def score_ids(model: GPT, asked: Sequence[tuple], *, batch=8, precision="float32") -> list[list[list[float]]]:
    """For each (context's ids, endings' ids): of each ending, its nats and how many tokens are not first choice.

    batch: questions at once, of about one length; it changes only the time. Contexts are cut to what fits.
    """
    from tqdm import tqdm

    size, results = model.config.block_size, [[] for _ in asked]
    pieces = [(i, fitting(c, e, size), some) for i, (c, e) in enumerate(asked) for some in abreast(e, size)]
    order = sorted(range(len(pieces)), key=lambda j: len(pieces[j][1]) + sum(map(len, pieces[j][2])))
    scores, device = {}, model.transformer.wte.weight.device
    for at in tqdm(range(0, len(order), batch), unit="batch", desc="endings", disable=None):
        _, contexts, endings = zip(*(pieces[j] for j in order[at : at + batch]))
        with autocast(precision, device):
            flat = score_endings(model, contexts, endings).T.tolist()
        for j, some in zip(order[at:], endings):
            scores[j], flat = flat[: len(some)], flat[len(some) :]
    for j, (i, *_) in enumerate(pieces):
        results[i] += scores[j]
    return results


# %%
#| export hellaswag
def score(model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32") -> list[list[float]]:
    """The nats of each question's endings."""
    asked = [ids_of(item, tokenizer) for item in items]
    return [[nats for nats, _ in some] for some in score_ids(model, asked, batch=batch, precision=precision)]


# %%
#| export hellaswag
MEASURES = {  # what an ending's nats are divided by before the cheapest is chosen
    "acc": lambda ending, tokenizer: 1,
    "acc_norm": lambda ending, tokenizer: len(ending),
    "acc_bytes": lambda ending, tokenizer: len(ending.encode()),
    "acc_tokens": lambda ending, tokenizer: len(tokenizer.encode(" " + ending)),
}


# %%
#| export hellaswag
def accuracy(
    model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32"
) -> dict[str, float]:
    """The share of questions whose cheapest ending is the right one, by each measure, its standard error, and n.

    acc, acc_norm (per character) and acc_bytes are lm-evaluation-harness's names; acc_tokens, per token, is what
    build-nanogpt and llm.c call acc_norm.
    """
    nats, result = score(model, items, tokenizer, batch=batch, precision=precision), {"n": len(items)}
    for name, length in MEASURES.items():
        each = [
            [x / length(e, tokenizer) for x, e in zip(row, item["endings"])] for row, item in zip(nats, items)
        ]
        p = np.mean([np.argmin(row) == item["label"] for row, item in zip(each, items)]).item()
        result |= {name: p, f"{name}_stderr": (p * (1 - p) / max(1, len(items) - 1)) ** 0.5}
    return result


# %% [markdown]
r"""
*Check.* It must be what one ending at a time gives, to float32's rounding, and choose the same.
"""

# %%
predict("18.4", "times fewer tokens", guess=None)


@torch.no_grad()
def one_at_a_time(item: dict) -> list[float]:
    (context, endings), nats = ids_of(item, tokenizer), []
    context = fitting(context, endings, T)
    for ending in endings:
        ids = torch.tensor([context + ending], device=device)
        with evaluating(best):
            logits = best(ids[:, :-1])[0][0, len(context) - 1 :].float()
        nats.append(F.cross_entropy(logits, ids[0, len(context) :], reduction="sum").item())
    return nats


plain, fast = [one_at_a_time(item) for item in items], score(best, items, tokenizer)
worst = max(abs(a - b) for x, y in zip(plain, fast) for a, b in zip(x, y))
assert worst < 1e-2, f"a score differs by {worst:.1e} nats from one ending at a time"
assert [np.argmin(x) for x in plain] == [np.argmin(x) for x in fast], "the cache chose another ending"
lengths = [(len(c), sum(map(len, e)), len(e)) for c, e in (ids_of(item, tokenizer) for item in items)]
times = sum(n * c + e - n for c, e, n in lengths) / sum(c + e - n for c, e, n in lengths)
print(f"the same scores and choices, with {times:.2f} times fewer tokens")
answer("18.4", round(times, 2))

# %% tags=["nbval-ignore-output"]
for name, value in accuracy(best, items, tokenizer).items():
    print(f"{name:18} {value:.4g}")

# %% [markdown]
r"""
A model that has read stories of six toys and sixteen things knows nothing of dentists: it stands at chance, 25%, within
two standard errors. With 48 questions one such error is 6 points; with 10,042 it is 0.45. A gain of half a point is
within the noise there, too, unless the same questions are compared.

What do the published numbers mean?

| | HellaSwag | source |
|---|---|---|
| chance | 25% | four endings |
| GPT-2 124M, `acc` | 28.59% | build-nanogpt, `hellaswag.py` |
| GPT-2 124M, per token | 29.55% | the same |
| GPT-2 124M, harness's `acc_norm` | 31.14% | the same, citing the harness |
| GPT-3 124M | 33.7% | Brown et al. 2020, table H.1 |

The second and third score one prompt in one way; the harness's task has another prompt (the activity's name and a colon stand before
the context, and bracketed marks are removed) and divides by characters. GPT-3's small model saw 300 billion tokens, and its numbers are
from other code yet. So a number of this kind is the name of a metric, a prompt and a version, or it is nothing.

## The same model in lm-evaluation-harness, which may be skipped

The harness asks a model for log-likelihoods of continuations. So an adapter is short, and every task of the harness that needs no
written answers runs on our checkpoints:
"""


# %%
#| export harness
import numpy as np

from nanogpt.evals import token_losses
from nanogpt.hellaswag import score_ids
from nanogpt.model import GPT


# %%
#| export harness
def log_likelihoods(model: GPT, requests: list, **how) -> list[tuple[float, bool]]:
    """Of each (text, context's ids, continuation's ids): its log-likelihood, and whether it is all first choice."""
    together: dict[tuple, list[int]] = {}  # requests of one context
    for i, (_, context, _) in enumerate(requests):
        together.setdefault(tuple(context), []).append(i)
    asked = [(list(context), [requests[i][2] for i in some]) for context, some in together.items()]
    found = dict.fromkeys(range(len(requests)))
    for some, scores in zip(together.values(), score_ids(model, asked, **how)):
        found.update({i: (-nats, wrong == 0) for i, (nats, wrong) in zip(some, scores)})
    return list(found.values())


# %%
#| export harness
def for_harness(model: GPT, tokenizer, *, batch=8, precision="float32"):
    """The model as an lm_eval.api.model.LM, for tasks that ask for log-likelihoods. Needs the package lm-eval."""
    from lm_eval.api.model import TemplateLM

    class Adapter(TemplateLM):
        eot_token_id = tokenizer.eot

        def tok_encode(self, string, add_special_tokens=None, **_):
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests, **_):
            return log_likelihoods(model, requests, batch=batch, precision=precision)

        def loglikelihood_rolling(self, requests, disable_tqdm=False):
            texts = (np.array([tokenizer.eot, *tokenizer.encode(request.args[0])]) for request in requests)
            return [-token_losses(model, ids, tokenizer.eot, 1, precision).sum().item() for ids in texts]

        def generate_until(self, requests, disable_tqdm=False):
            raise NotImplementedError("the adapter scores texts; `python -m nanogpt sample` writes one")

    return Adapter()


# %% [markdown]
r"""
A test gives the 48 questions to the harness as a local task, and compares each: the four log-likelihoods and the three accuracies are the same.
(`pip install lm-eval` is needed for that and nothing else. `lm_eval.simple_evaluate(model=for_harness(model, tokenizer),
tasks=["hellaswag"])` runs its own.)

## The test set is read once

Whoever tries ten learning rates and keeps the best by validation loss has fitted the validation set, a little. The more choices, the more
the winner's number is luck. So there is a third split, which no choice has seen. It stays so if it is read once, at the
end: the second look is already a choice. The command, whose code may be skipped, refuses `--split test` without `--final`, writes down each reading beside the shards, and says
how many there were.
"""


# %%
#| export report
import json
import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nanogpt import hellaswag
from nanogpt.corpus import stories
from nanogpt.device import pick_device
from nanogpt.evals import answer_accuracy, bits_per_byte, mean_and_error, token_bytes, token_losses
from nanogpt.excess import Floor
from nanogpt.files import save_json
from nanogpt.sample import load
from nanogpt.shards import open_shards, read_shard


# %%
#| export report
def val(model, tokenizer, args: Namespace) -> dict[str, float]:
    """Loss, its error, perplexity and bits per byte on the first --tokens of a split; a reading of test is recorded."""
    if args.split == "test" and not args.final:
        why = "whoever looks at it twice has begun to fit it"
        raise ValueError(
            f"the test set is for the end of all choices, {why}; say --final, and it is recorded"
        )
    paths, parts, left = open_shards(args.data, args.split, tokenizer.fingerprint), [], args.tokens
    for path in paths:
        parts.append(read_shard(path)[:left])
        left -= len(parts[-1])
    tokens = np.concatenate(parts)
    nats = token_losses(model, tokens, tokenizer.eot, args.batch * 4, args.precision)
    if not len(nats):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    loss, error = mean_and_error(nats, tokens, tokenizer.eot)
    result = {"loss": loss, "loss_stderr": error, "perplexity": math.exp(min(loss, 700)), "tokens": len(nats)}
    result["bits_per_byte"] = bits_per_byte(nats, tokens, token_bytes(tokenizer))
    return result | (read_again(args, loss) if args.split == "test" else {})


# %%
#| export report
def read_again(args: Namespace, loss: float) -> dict[str, int]:
    """Append this reading of the test set to test_reads.jsonl beside the shards; how many there are now."""
    log = Path(args.data) / "test_reads.jsonl"
    with log.open("a", encoding="utf-8") as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"time": now, "checkpoint": str(args.checkpoint), "loss": loss}) + "\n")
    return {"test_readings": len(log.read_text(encoding="utf-8").splitlines())}


# %%
#| export report
def excess(model, tokenizer, args: Namespace) -> dict[str, float]:
    """Nats a story above the floor, by kind of decision, on 200 stories that no shard of the course holds."""
    floor = Floor.of((story.text for story in stories(200, seed=1)), tokenizer)
    parts = floor.excess(token_losses(model, floor.ids, tokenizer.eot, args.batch * 4, args.precision))
    return {"all": sum(parts.values())} | parts


# %%
#| export report
TASKS = {
    "val": val,
    "hellaswag": lambda model, tokenizer, args: hellaswag.accuracy(
        model, hellaswag.load_items(args.items), tokenizer, batch=args.batch, precision=args.precision
    ),
    "answers": lambda model, tokenizer, args: answer_accuracy(model, stories(200, seed=1), tokenizer),
    "excess": excess,
}


# %%
#| export report
HELP = """How good is a checkpoint? Of the course, or a Hugging Face GPT-2.

  python -m nanogpt eval --checkpoint data/built/model --tasks val,answers,excess
  python -m nanogpt eval --checkpoint openai-community/gpt2 --tasks hellaswag --precision bf16
"""
OPTIONS = {
    "checkpoint": (None, "folder with config.json and model.safetensors, or hub name"),
    "tasks": ("val", f"some of {','.join(TASKS)} (val)"),
    "data": ("data/built/stories", "folder of shards (data/built/stories)"),
    "split": ("val", "val, or test, which needs --final, too"),
    "tokens": (1_000_000, "of the split, at most its first so many (1,000,000)"),
    "items": (None, "HellaSwag's questions (default: the downloaded ones, or else the course's)"),
    "tokenizer": (None, "gpt2 or a tokenizer.json (default: the one beside the checkpoint)"),
    "batch": (8, "questions at once, and a quarter of the rows (8)"),
    "precision": ("float32", "chapter 10's word (float32)"),
    "device": (None, "cuda, mps or cpu (default: the best there is)"),
    "json": (None, "write the results to this file, too"),
}


# %%
#| export report
def parser() -> ArgumentParser:
    """The options of `python -m nanogpt eval`."""
    parser = ArgumentParser(description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true", help="read the test set, which is recorded beside it")
    for name, (default, what) in OPTIONS.items():
        kind = type(default) if default else str
        parser.add_argument(f"--{name}", required=name == "checkpoint", type=kind, default=default, help=what)
    return parser


# %%
#| export report
def run(args: Namespace) -> None:
    """`python -m nanogpt eval`, its options parsed: a line for each result."""
    names = [name.strip() for name in args.tasks.split(",")]
    if wrong := [name for name in names if name not in TASKS]:
        raise ValueError(f"no task is named {wrong[0]!r}; choose from {', '.join(TASKS)}")
    if args.batch < 1 or args.tokens < 2:
        raise ValueError("--batch must be at least 1, --tokens at least 2")
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    model, results = model.to(pick_device(args.device)).eval(), {}
    for name in names:
        of = f"{args.data}, {args.split}" if name == "val" else "stories that the course's shards do not hold"
        of = Path(args.items or hellaswag.default_items()).name if name == "hellaswag" else of
        print(f"{name} ({of})", flush=True)
        results[name] = TASKS[name](model, tokenizer, args)
        for key, value in results[name].items():
            print(
                f"  {key:18} {value:,}" if isinstance(value, int) else f"  {key:18} {value:.4f}", flush=True
            )
    if args.json:
        save_json(Path(args.json), {"checkpoint": str(args.checkpoint), "split": args.split, **results})


# %%
def command(*options: str) -> None:
    try:
        run(
            parser().parse_args(
                [
                    "--checkpoint",
                    str(folder),
                    "--device",
                    device.type,
                    "--data",
                    str(built / "stories"),
                    *options,
                ]
            )
        )
    except ValueError as error:
        print(error)


with tempfile.TemporaryDirectory() as folder:
    save_model(best, folder)
    tokenizer.save(Path(folder) / "tokenizer.json")
    command("--split", "test")

# %% tags=["nbval-ignore-output"]
with tempfile.TemporaryDirectory() as folder:
    save_model(best, folder)
    tokenizer.save(Path(folder) / "tokenizer.json")
    command("--tasks", "val,answers,excess,hellaswag", "--tokens", "20000", "--items", str(COURSE))

# %% [markdown]
r"""
On the command line: `python -m nanogpt eval --checkpoint data/built/model --tasks val,hellaswag`; with
`--checkpoint openai-community/gpt2` it is GPT-2. During a run, `eval.hellaswag_every` asks every N steps (chapter 17).
"""

# %% tags=["nbval-ignore-output"]
predictions("18")

# %%
checkpoint("18")

# %% [markdown]
r"""
## Exercises

1. Take dropout off in `careless_loss` and keep the rest. How much is left of the difference between B = 7 and B = 32? Check against `evaluate`.
2. Give `kind_of` a kind of its own for toys. Check that the rows still add up, and say how much of "things, again" they are.
3. Excess by position: sum it over the first, second, third … sentence of the stories. Check that it adds up to the total.
4. Ask HellaSwag without its contexts (`ctx` a single space). Which accuracy stays above chance? What does that say of the endings?
5. Train one layer and two with three seeds each for 400 steps. Check whether one layer copies names earlier in all of them.
6. Two checkpoints, one question set: count the questions where exactly one is right, and compute the standard error of the difference from them
   (McNemar 1947). Compare with that of two independent sets.

## Further reading

- Zellers et al. 2019, *HellaSwag: Can a Machine Really Finish Your Sentence?*, §3: how wrong endings were chosen.
- Biderman et al. 2024, *Lessons from the Trenches on Reproducible Evaluation of Language Models*, §3: what a prompt and a normalisation change.
- Gao et al. 2020, *The Pile*, §3.1: bits per byte.
- Miller 2024, *Adding Error Bars to Evals*: standard errors, clusters and pairs.
- Cochran 1977, *Sampling Techniques*, §6: the error of a ratio.
"""
