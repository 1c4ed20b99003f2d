# %% [markdown]
r"""
# 18 · Evaluation: what a number means

"The loss is 0.59." On which text? With how much context? Per token of which tokenizer? And how far is it from the best possible loss?
Without the answers, two such numbers cannot be compared, and most comparisons of models consist of two such numbers.

This chapter begins with a loss function that looks right and makes four mistakes. We find them one after the other, measure how much each of them costs, and build a loss that can be compared. Then we ask
how certain such a number is. Two further measures, perplexity and bits per byte, compare texts and tokenizers. The last part needs a text with a known floor: it shows how many nats a model still has to
learn, for each kind of decision. Chapter 18b asks questions on texts whose floor nobody knows.
"""

# %%
#| default_exp evaluate
#| doc labs.evals.measures: What a report of a loss needs besides: its standard error, and bits per byte.
#| doc labs.evals.excess: What a model pays above the floor, token by token, and for which kind of decision.
import copy
import csv
import json
import random
import re
from dataclasses import replace
from collections import Counter
from itertools import pairwise
from pathlib import Path

from course.figures import evaluation as figures
from course.figures.training import costs
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.device import pick_device, pick_scale
from nanogpt.evaluate import evaluating
from nanogpt.labs.evals.accuracy import first_choice
from nanogpt.model import GPTConfig
from nanogpt.shards import open_shards, read_shard
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train
from nanogpt.weights import load_model

# %%
#| export
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from nanogpt.model import GPT
from nanogpt.precision import autocast
from nanogpt.shards import document_starts

# %% [markdown]
r"""
All sizes are set here. The model is chapter 07's. If it is absent, the longest of this chapter's short runs takes its place.
"""

# %%
STORIES, SEED = 200, 1  # judged on; seed 0 is what the models are trained on
STEPS = {"ci": (20, 50, 150), "laptop": (20, 50, 150), "gpu": (20, 50, 150, 1000)}[pick_scale(pick_device())]
SHAPE = GPTConfig(block_size=128, n_layer=2, n_head=4, n_embd=128)
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
We need some models to compare. Chapter 07's loop trains a model of two layers, and we keep copies of it before the first step and after some of the steps. Then it trains a model of a single layer, of which we keep
the last copy only. Chapter 07's own model comes last, if it is here.
"""


# %%
def new_model(layers: int, **changes) -> GPT:
    config = replace(SHAPE, vocab_size=V, n_layer=layers, **changes)
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(0))).to(device)


def stages(layers: int) -> dict[str, GPT]:
    """A model before the first step and after each of STEPS; its last rate falls to zero, as in chapter 07."""
    model, name = new_model(layers), {1: "1 layer", 2: "2 layers"}[layers]
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

*Find the bug.* This is how the loss of a held-out text is often computed. The tokens are cut into rows of T, the rows go through the model in batches of B, and the result is the mean of the batches'
losses. The function makes four mistakes. Read it, and write down those that you find, before you go on.

We apply it to a model of two layers with dropout, and to the first 6,400 tokens of the validation text. The first mistake shows when we call it twice.
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
learner.train()
print("called twice:", *(f"{careless_loss(learner, some, 32):.3f}" for _ in range(2)))
with_dropout = careless_loss(learner, some, 32)
learner.eval()
without = careless_loss(learner, some, 32)
print(f"1. dropout on: {with_dropout:.3f}, off: {without:.3f}, a mistake of {with_dropout - without:+.3f}")

# %% [markdown]
r"""
**The first mistake is that dropout is on.** Nobody called `eval()`. Each call drops other units, so the same call gives another number every time (sometimes only in a digit that is not printed), and the numbers
are too high. From now on dropout is off.

**The second mistake shows when we change the batch size.** The text has 49 rows.
"""

# %% tags=["nbval-ignore-output"]
rows = (len(some) - 1) // T
by_size = {B_now: careless_loss(learner, some, B_now) for B_now in (7, 48, rows)}
for B_now, mean in by_size.items():
    print(f"batches of {B_now:2} rows: {mean:.3f}")
row_mean = by_size[rows]
print(f"2. batches of different size: a mistake of {by_size[48] - row_mean:+.3f}")

# %% [markdown]
r"""
Batches of 7 and of 49 rows give the true mean of the rows, because all batches are equally large. With batches of 48 rows the second one has a single row, but it counts as much as the 48 of the first. So
the batch size changes the result. With several processes, their number would change it, too.

**The third mistake is at the end of the text.** The last tokens do not fill a row, and the function does not count them at all. We compute their loss and add it with its right weight.
"""

# %% tags=["nbval-ignore-output"]
tail = torch.from_numpy(some[rows * T :])[None].to(device)
with torch.no_grad():
    tail_loss = learner(tail[:, :-1], tail[:, 1:])[1].item()
left_out, counted = tail.size(1) - 1, rows * T
all_rows = (row_mean * counted + tail_loss * left_out) / (counted + left_out)
print(f"3. {left_out} tokens left out, at {tail_loss:.3f}: a mistake of {row_mean - all_rows:+.3f}")

# %% [markdown]
r"""
Here it changes little, because only 127 of 6,400 tokens are left out. In a small validation text with long rows it can be a large part of the text.

**The fourth mistake is the place where a row begins.** A row starts where the last one stopped, so most rows begin in the middle of a story. The model must predict
the rest of this story without its beginning. And the next story begins somewhere within the row, where no row of the training ever began one. Guess how much this costs, compared with the other three mistakes. To measure it we need a better loss, and this takes a few functions.

A correct loss should have these properties. Every token is predicted exactly once. Its context is the text of its own document, from the beginning if that fits, or
else at least half a context. The result is the sum over all tokens divided by their number.

`windows` chooses the pieces of text. Each piece is a triple (start, new, stop): the model reads the tokens from `start` to `stop`, and we count the predictions after `new`.
"""


# %%
#| export
#| blank windows: move on by half of T inside a document; predict only what no window before has predicted
def windows(tokens: np.ndarray, T: int, eot: int) -> Iterator[tuple[int, int, int]]:
    """(start, new, stop): tokens start..stop-1 go in, and those after new, up to stop, are to be predicted.

    Documents, which begin at eot, are kept apart. One longer than T is covered by windows of T that overlap by half; the
    last one is moved back to read T as well. Every token but the first of the shard is predicted exactly once.
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

# %% [markdown]
r"""
The 9 marks the beginning of a document. The first text has two documents, and each fits into one window. The second text has a document of nine tokens, which is longer than T. Its second window reads tokens 2 to
5, but only its predictions of tokens 5 and 6 count, since the first window has predicted tokens 1 to 4. Its last window begins at 5 and not at 6: it is moved back to have four tokens, so that its prediction sees more text.

Windows have different lengths. `padded` puts several of them into one tensor. It fills the rest of a row, and sets the target to −100 where nothing is to be predicted: `cross_entropy` ignores
this value.
"""


# %%
#| export
#| blank padded: y is x one further, and -100 up to new and behind stop
def padded(tokens: np.ndarray, rows: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, int64 (rows, longest), of some windows; x is filled up with 0, y is -100 where nothing is predicted."""
    x = torch.zeros(len(rows), max(stop - start for start, _, stop in rows), dtype=torch.int64)
    y = torch.full_like(x, -100)
    for i, (start, new, stop) in enumerate(rows):
        piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
        x[i, : stop - start] = piece[:-1]
        y[i, new - start : stop - start] = piece[1 + new - start :]
    return x, y


# %%
for name, part in zip(("x", "y"), padded(np.array(case), list(windows(np.array(case), 4, eot=9))[:2])):
    print(name, part.tolist())

# %% [markdown]
r"""
Now we can compute the loss of *each* token. All measures below are made from these single losses. `token_losses` sorts the windows by length, so that little is filled up, and writes each loss to its token's place.
"""


# %%
#| export
@torch.no_grad()
def token_losses(
    model: GPT, tokens: np.ndarray, eot: int, B=32, precision="float32", progress=False
) -> np.ndarray:
    """The loss of each token of a shard but the first, in nats: (len(tokens) - 1,), float64.

    progress: show a bar on a terminal. A million tokens of a large model take minutes on a laptop.
    """
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats = np.zeros(max(0, len(tokens) - 1))
    hidden = None if progress else True  # None: only where there is no terminal
    with evaluating(model) as device:
        for i in tqdm(range(0, len(rows), B), "losses", unit="batch", disable=hidden):
            # windows of about one length
            some = rows[i : i + B]
            x, y = padded(tokens, some)
            with autocast(precision, device):
                logits, _ = model(x.to(device))
            loss = F.cross_entropy(logits.float().transpose(1, 2), y.to(device), reduction="none").cpu()
            # each loss to its token's place
            for (start, new, stop), row in zip(some, loss.numpy()):
                nats[new:stop] = row[new - start : stop - start]
    return nats


# %% tags=["nbval-ignore-output"]
found = token_losses(learner, some, eot)
for token, nats in list(zip(some[1:].tolist(), found.tolist()))[:6]:
    print(f"{tokenizer.decode([token])!r:10} {nats:.2f} nats")

# %% [markdown]
r"""
The sum of these numbers and their count are all we need for a mean. Sums and counts of several shards can be added, and means cannot.

Chapter 07's `evaluate` read one document at a time, and it cut a long document into pieces without any context from the piece before. The
new version reads B windows at a time:
"""


# %%
#| export
#| grows evaluate
def evaluate(model: GPT, shards: Iterable[np.ndarray], eot: int, B=32, precision="float32") -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    nats, count = 0.0, 0
    for tokens in shards:
        losses = token_losses(model, tokens, eot, B, precision)
        nats += losses.sum().item()
        count += len(losses)
    if not count:
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return nats / count


# %% tags=["nbval-ignore-output"]
learner.train()  # `evaluate` switches dropout off, and on again at its end
for rows in (32, 32, 7):
    print(f"B = {rows:2}: {evaluate(learner, [some], eot, rows):.3f}")
print(f"4. rows that begin anywhere: a mistake of {all_rows - evaluate(learner, [some], eot):+.3f}")

# %% [markdown]
r"""
Now all three agree, although dropout was on before the call and the batch size is different. The last line shows the size of the fourth mistake. It is as large as the loss itself. And it is the mistake that is hardest to notice,
because the wrong number is the same each time.

Is the missing beginning to blame? Then only the tokens before a row's first `<|endoftext|>` should cost too much. All others belong to a story that begins in the row, so the model sees its beginning. We look at both kinds.
"""

# %% tags=["nbval-ignore-output"]
learner.eval()
n = (len(some) - 1) // T  # rows
x, y = (torch.from_numpy(some[i : i + n * T]).view(n, T).to(device) for i in (0, 1))
with torch.no_grad():
    careless = F.cross_entropy(learner(x)[0].transpose(1, 2), y, reduction="none").cpu().numpy()
better = found[: n * T].reshape(n, T)  # the same tokens, each read in a window
begins_here = (x == eot).cumsum(1).cpu().numpy() > 0
for name, at in {"begins before the row": ~begins_here, "begins in the row": begins_here}.items():
    print(
        f"its story {name}: {at.sum():,} tokens, {careless[at].mean():.3f}, in windows {better[at].mean():.3f}"
    )

# %% [markdown]
r"""
Both kinds cost twice as much as they should. More than half of the mistake is on tokens whose story begins in the row, so the missing beginning is not the main reason. What else is different? In training, every row began with a story (chapter 03's `DocumentStream`). Here a story begins at any place. As a control we train the same shape for as many steps on rows that begin anywhere.
"""

# %% tags=["nbval-ignore-output"]
cut = new_model(SHAPE.n_layer)
stream = BatchStream(paths["train"], B, T, seed=0, device=device)
train(cut, stream, STEPS[-1], LR, generator=torch.Generator().manual_seed(0))
print(
    f"trained on rows that begin anywhere: {careless_loss(cut.eval(), some, n):.3f}, in windows {evaluate(cut, [some], eot):.3f}"
)

# %% [markdown]
r"""
For this model the fourth mistake is gone: a hundredth of a nat is left of 1.4. (Its loss is higher, because it has learned less in as many steps.) But two things differ in careless rows: a story begins at another *place*, and the end of another story is before it. Which of them does our model mind? Each can be changed alone. We give every story a row of its own, with nothing before it,
and move only the places: the token at place i gets the position embedding of place i + 1, i + 8 or i + 32.

*Predict.* Both models read exactly the same words in each line. Whose loss rises?
"""

# %% tags=["nbval-ignore-output"]
begins = np.flatnonzero(some[:-1] == eot).tolist()
short = [(a, a, min(b, a + T - 32)) for a, b in pairwise(begins)]  # 32 places are left
x, y = (t.to(device) for t in padded(some, short))
for by in (0, 1, 8, 32):
    losses = []
    for each in (learner, cut):
        moved = copy.deepcopy(each)
        moved.transformer.wpe.weight.data = torch.roll(each.transformer.wpe.weight.data, -by, 0)
        with torch.no_grad():
            losses.append(F.cross_entropy(moved(x)[0].transpose(1, 2), y).item())
    print(f"moved by {by:2}: {losses[0]:.3f}, trained on rows that begin anywhere {losses[1]:.3f}")

# %% [markdown]
r"""
A move by 8 places alone costs our model 0.9 nats, and one by 32 costs 1.8, more than all of the fourth mistake. The other model does not notice. So our model has learned the words of a story together with their places in the row, and the careless rows moved the places. Evaluate a model on text that is laid out as it was in training, or you measure the layout.

## A fixed set, and how certain the number is

The mean loss of a few documents is only an estimate: other documents would give another number. The *standard error* says how far such numbers scatter.

*Predict.* On 200 stories, some 19,000 tokens, how large is the standard error of the mean loss, in nats per token?
"""

# %%
predict("18.1", f"standard error of a loss on {STORIES} stories", guess=None, unit="nats per token")

# %% [markdown]
r"""
Documents are drawn independently of each other, but the tokens of one document are not. So we must not treat the loss as a mean of 19,000 independent numbers. It is a ratio of two sums over
documents, the nats and the tokens, and we use the standard error of such a ratio (Cochran 1977, §6). For each document it compares the nats with the number that we expect from the document's length, which is
the mean loss times the number of its tokens. Let document i have $s_i$ nats and $c_i$ tokens, and let there be n documents with N tokens in all. The mean loss is $m = \sum s_i / N$, and
its standard error is $\frac{1}{N} \sqrt{\frac{n}{n-1} \sum_i (s_i - m\,c_i)^2}$.
"""


# %%
#| export labs.evals.measures
#| blank mean_and_error: the spread of the documents' sums around what their lengths let expect
import math

import numpy as np

from nanogpt.shards import document_starts


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
*Check.* We take 600 held-out stories, draw 2,000 sets of 200 stories from them, and compute how far the means of these sets scatter. The formula, which sees only one set, should give about the same number. (Sets that are drawn from
only 600 stories overlap, so they scatter too little. The square root in `scatter` corrects this.)
"""

# %%
first, second = f"1 layer, {STEPS[-1]} steps", f"2 layers, {STEPS[-1]} steps"
held = val[: np.flatnonzero(val == eot)[3 * STORIES] + 1]  # three such sets, to draw from
dice, starts = np.random.default_rng(0), np.flatnonzero(held[:-1] == eot)
nats = {name: token_losses(models[name], held, eot) for name in (first, second)}
draws = [dice.choice(len(starts), STORIES, replace=False) for _ in range(2000)]


def scatter(nats: np.ndarray) -> float:
    """Standard deviation of the mean over STORIES stories, from set to set."""
    sums, counts = by_document(nats, held, eot)
    return np.std([sums[at].sum() / counts[at].sum() for at in draws]) / math.sqrt(1 - STORIES / len(starts))


mean, error = mean_and_error(nats[second][: starts[STORIES]], val[: starts[STORIES] + 1], eot)
assert 0.7 < error / scatter(nats[second]) < 1.4, (
    f"the formula says {error:.4f}, the scatter {scatter(nats[second]):.4f}: too few stories?"
)
print("one set's formula agrees with the scatter of 2,000 sets")
answer("18.1", round(error, 4))

# %% [markdown]
r"""
How large must a difference be, before we may say that one model is better? We compare the models of one and of two layers in two ways: on two different sets of stories, and on the same set. In the second case
the scatter is that of the differences, story by story.
"""

# %% tags=["nbval-ignore-output"]
one, other, both = (scatter(x) for x in (nats[first], nats[second], nats[first] - nats[second]))
print(f"{second}: {mean:.4f} ± {error:.4f} on {STORIES} stories; perplexity {math.exp(mean):.3f}")
apart, two = abs((nats[first] - nats[second]).mean()), math.hypot(one, other)
print(f"{first}: {apart:.4f} apart, ± {two:.4f} on two sets, ± {both:.4f} on one")
print(f"so the two models are {apart / two:.1f} standard errors apart on two sets, {apart / both:.1f} on one")

# %% [markdown]
r"""
Look at the last line. A difference of less than about two standard errors may be chance. On two different sets of stories we could not say which of these models is better: they are 1.1 standard errors apart. On one set they are 7.7 apart, and the better one is the model of a single layer. (After 150 steps; the last part of this chapter says when the second layer pays.) The reason is that
some sets are harder than others, but they are harder for both models, and this part cancels in the difference. This is why the validation set is *fixed*. The same holds during a
run: if the loss on a fixed set changes, the model has changed.

A published log shows how much a small set scatters. Megatron-LM evaluated one model three times after step 2,500 of a run, each time on 80 different rows of text:
"""

# %%
with open("../data/reference/megatron_validation.csv", encoding="utf-8") as file:
    published = [row for row in csv.DictReader(file) if row["iteration"] == "2500"]
for row in published:
    print(f"{row['set']:10} {float(row['lm_loss']):.4f}")
validated = [float(row["lm_loss"]) for row in published if row["set"] == "validation"]
print(f"the two validations are {abs(validated[0] - validated[1]):.2f} nats apart")

# %% [markdown]
r"""
The weights were the same each time. If you compared two models in this way, you could easily call the worse one better.

## Perplexity, and bits per byte

Perplexity is e to the power of the loss. A perplexity of 7 means that the model is as uncertain as if it had to choose among seven equally likely tokens. Both numbers have the same flaw: they are
*per token*, and each tokenizer cuts the text into other tokens. The text itself is the same for everybody, and so are its bytes in
UTF-8. So we divide by bytes, and use bits instead of nats, as is usual for bytes. `token_bytes` lists how many bytes of text each token stands for.
"""


# %%
#| export labs.evals.measures
#| blank bits_per_byte: nats to bits, then divide by the bytes of text
def token_bytes(tokenizer) -> np.ndarray:
    """The bytes of text that each id stands for, from the vocabulary; 0 for <|endoftext|> and its like."""
    return np.array([len(token) for token in tokenizer.vocab] + [0] * len(tokenizer.special))


def bits_per_byte(nats: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> float:
    """Bits for each byte of the text of tokens[1:], whose losses are nats; sizes: those of `token_bytes`.

    ValueError where these tokens have no byte.
    """
    size = sizes[np.asarray(tokens[1:], dtype=np.int64)].sum()
    if not size:
        raise ValueError("bits per byte need at least one token that stands for text")
    return (nats.sum() / math.log(2) / size).item()


# %% [markdown]
r"""
*Find the bug.* Often people count the bytes by decoding each token to text and measuring that text. Is this the same number? We try it on a megabyte of random words in five alphabets, a little more than 200,000 bytes of each.

*Predict.* By which factor is the count by decoding wrong?
"""

# %%
predict("18.2", "bytes by decoding, per byte of text", guess=None)

# %%
dice = random.Random(SEED)
alphabets = {"Greek": (0x3B1, 24), "Cyrillic": (0x430, 32)}  # the first letter, and how many there are
alphabets |= {"Hangul": (0xAC00, 11172), "emoji": (0x1F300, 700), "Latin": (97, 26)}
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
The count from the vocabulary is exact. The count by decoding is right for Latin letters only. Our tokenizer has learned from English stories, so most letters of the other alphabets are two to four tokens of one byte each. A single byte of such a letter
decodes to U+FFFD, the replacement character, which has three bytes in UTF-8. If we count three times the bytes, we get a third
of the bits per byte. So the worse a tokenizer fits the text, the better the wrong result looks.

*Two tokenizers on one text.* Now we use the measure. We compare two tokenizers: our own, and one whose tokens are single bytes. The models are the simplest ones, tables of counts. One table counts how often each token occurs, and the others
count pairs of neighbours. Which of the three is best?
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
tables = {"bytes, pairs": (letters, True), "tokens, each alone": (tokenizer, False)}
tables["tokens, pairs"] = tokenizer, True
for name, (coder, pairs) in tables.items():
    past, ids = (np.array(coder.encode(some)) for some in (known, held))
    some = bigram_nats(past, ids, coder.vocab_size, pairs)
    bits = bits_per_byte(some, ids, token_bytes(coder))
    print(f"{name:19} {some.mean():.3f} nats per token, {bits:.3f} bits per byte")

# %% [markdown]
r"""
Per token, the table of bytes has the lowest loss of the three. Per byte of text it has the highest: 3.08 bits, where pairs of tokens need 0.83. Even tokens that are counted each alone, without any context, need only half as many bits as pairs of bytes, because one token stands for several bytes.
Never compare losses per token across tokenizers.
"""

# %% [markdown]
r"""
## Above the floor, by kind of decision

Most tokens of a story are easy, so they dominate the mean loss. The loss contains everything that a model knows and does not know, but in a single number. For our stories we can take this number apart.

We know every choice that chapter 02's grammar can make, so we can write a perfect reader. This reader knows every continuation of the story that is consistent with the text so
far, and its probability. The cost of a token for the perfect reader, −ln P(token | all tokens before it), is the floor of this token: no model can have a lower loss on average. The difference between a model's loss and the floor is its *excess*. It is the
part of the loss that the model can still learn.

The next section builds this reader from chapter 02's grammar. If you believe that it can be built, skip to "What each token costs", where we ask it which words can come next.
"""

# %% [markdown]
r"""
## A reader that knows the grammar

The reader goes through a text word by word. At each place there may be several ways to understand the text so far, because two lines of the grammar can begin with the same words. A `Reading` is one of these ways. It holds the parts of the story that
are still to come, the probability of this way, and the facts that were drawn, such as names and numbers.
"""


# %%
#| export labs.evals.excess
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from nanogpt.labs.corpora.stories import entries, words_of
from nanogpt.labs.corpora.stories import Count, Draw, Part, Pick, Recall, Text, alternatives


# %%
#| export labs.evals.excess
class Reading(NamedTuple):
    """One way to understand a text so far."""

    parts: tuple  # the parts that are still to come, each with its kind
    p: float = 1.0
    told: str = ""  # words that are decided already, beyond those that were read
    facts: dict = {}  # noqa: RUF012 (never changed)
    marks: tuple = ()  # (words, kind) of all parts so far


# %%
print(Reading(((Pick("story"), ""),)))

# %% [markdown]
r"""
This is the only reading before the first word. The grammar's part `Pick("story")` is still to come: one of the story's lines will be picked, and nothing else is known.

`told_on` continues a reading up to the next space. It looks at the first part that is to come. If the part is a `Pick`, the reading branches into one for each line, and the probability is divided by their number. A `Draw`, for example of a
name, branches in the same way into all entries of a pool. All other parts have exactly one text. `next_words` then collects the next words of several readings, and for each word the readings that begin with it.
"""


# %%
#| export labs.evals.excess
def told_on(reading: Reading) -> Iterator[Reading]:
    """All continuations of a reading, up to the next space or the end."""
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
    for words, facts in draws or [(words_of(part, reading.facts), reading.facts)]:
        p, marks = reading.p / max(1, len(draws)), (*reading.marks, (words, kind))
        yield from told_on(Reading(tuple(rest), p, reading.told + words, facts, marks))


# %%
#| export labs.evals.excess
def next_words(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    """The words that can come next, each up to its next space, and how a reader who has heard it reads on."""
    found: dict[str, list[Reading]] = {}
    for further in (further for reading in readings for further in told_on(reading)):
        end = further.told.find(" ", 1)
        end = len(further.told) if end < 0 else end
        found.setdefault(further.told[:end], []).append(further._replace(told=further.told[end:]))
    return found


# %% [markdown]
r"""
Two things are still missing. `lines` lists the alternatives of a symbol of the grammar, and `kind_of` says what kind of decision the words of a part are. The kind depends on the part of the grammar that it comes from: a name that is
drawn, a name that is said again, a count that is copied or computed, and so on. Among the words of fixed phrases we distinguish two kinds. An *opening* is a word that even the perfect reader
cannot know in advance, because the grammar chooses the next sentence there. All others are *fixed words*.
"""


# %%
#| export labs.evals.excess
ADJECTIVES = "color", "look", "mood", "weather"
DRAWN = {"girl": "names, new", "boy": "names, new", **dict.fromkeys(("number", "some"), "counts, new")}


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
#| export labs.evals.excess
@cache
def lines(symbol: str) -> list[tuple]:
    """A symbol's alternatives, each part with its kind."""
    return [tuple((part, kind_of(part, symbol)) for part in line) for line in alternatives(symbol)]


# %% [markdown]
r"""
A token gets the kind of the part in which its first letter is.
"""


# %%
#| export labs.evals.excess
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
for part, kind in lines("open")[0][4:8]:
    print(f"{kind:12}", part)

# %% [markdown]
r"""
## What each token costs

Now we let the perfect reader read. A `Reading` is one way to understand the text so far, and `next_words` returns the words that can come next, each with the readings that begin with it. We give the reader the beginning of a story, one word after another, and ask for the words that can come next. The probability of a word is the sum over all readings that begin
with it, divided by the sum over all readings.
"""

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
After "One", fourteen kinds of weather are equally likely, of which the first four are printed. After "One sunny" there are six words to choose from.

Tokens are smaller than words. If several words begin with the same token, this token has the probability of all of them together, and the next token decides between them. `perfect_reader` computes the cost of each token in
this way, and then goes on with the readings of the word.
"""


# %%
#| export labs.evals.excess
def perfect_reader(text: str, tokenizer) -> list[tuple[float, str]]:
    """The cost of each token of a story, and of its end, for one who knows the grammar, in nats; and its kind.

    Exact: -ln P(token | all tokens before it), over all stories of the grammar. ValueError if the grammar cannot
    generate this text.
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
told = list(stories(STORIES, seed=SEED))
for token, (cost, kind) in list(zip(tokenizer.encode(told[0].text), perfect_reader(told[0].text, tokenizer)))[
    :10
]:
    print(f"{tokenizer.decode([token])!r:10} {cost:.3f} nats  {kind}")

# %% [markdown]
r"""
Fixed words cost the perfect reader nothing. A new name costs ln 16 = 2.773 nats, because there are sixteen names to choose from.

`Floor` does this for many stories. It holds their ids, and for each id its floor and its kind. The method `by_kind` adds some nats up by kind, and `excess` does so with the difference between a model's losses and the floor.
"""


# %%
#| export labs.evals.excess
@dataclass(frozen=True)
class Floor:
    """The ids of stories, an <|endoftext|> before each and after the last. For every id but the first there are the
    nats that it costs a perfect reader, and its kind, an index into KINDS."""

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
#| export labs.evals.excess
class Floor(Floor):
    def by_kind(self, nats: np.ndarray) -> dict[str, float]:
        """The sum of some nats, one for each id but the first, of each kind, per story: the parts of their sum."""
        return dict(zip(KINDS, (np.bincount(self.kinds, nats, len(KINDS)) / self.stories).tolist()))

    def excess(self, nats: np.ndarray) -> dict[str, float]:
        """What a model pays above the floor, by kind, in nats per story. nats: its losses (`token_losses`)."""
        return self.by_kind(nats - self.nats)


# %% [markdown]
r"""
*Check.* The floors of all tokens of a story must add up to −ln p of the story, which chapter 02 computed when it generated the story. And no
token may have a negative floor. We compare the sums over all 200 stories.
"""

# %%
floor = Floor.of((story.text for story in told), tokenizer)
entropy = -sum(story.logprob for story in told)
assert abs(floor.nats.sum() - entropy) < 1e-6, f"{floor.nats.sum()} nats, but generated with {entropy}"
assert floor.nats.min() > -1e-9, f"a token costs {floor.nats.min()} nats"
print(f"{len(floor.nats):,} tokens of {STORIES} stories: {entropy / STORIES:.3f} nats a story, either way")

# %% [markdown]
r"""
*Predict.* Of the hundred tokens of a story, not even one is a computed number on average. Which share of the excess of chapter 07's model is on these tokens?
"""

# %%
predict("18.3", "share of the excess that is paid for computed counts", guess=None, unit="%")

# %% [markdown]
r"""
We compute the excess by kind for two tables of counts and for all models. For each model, the parts must add up to the difference between its total loss and the total floor.
"""


# %%
def pair_table(pairs: bool) -> np.ndarray:
    return bigram_nats(text[:1_000_000], floor.ids, V, pairs)


table = {"each token alone": floor.excess(pair_table(False))}
table["pairs of tokens"] = floor.excess(pair_table(True))
for name, model in models.items():
    nats = token_losses(model, floor.ids, eot)
    table[name] = floor.excess(nats)
    whole = (nats.sum() - entropy) / STORIES
    assert abs(sum(table[name].values()) - whole) < 1e-6, f"{name}: the parts do not add up to {whole}"
print("in every row the parts add up to the whole")

# %% tags=["nbval-ignore-output"]
counted = {"tokens a story": np.ones(len(floor.nats)), "the floor": floor.nats}
figures.print_kinds({name: floor.by_kind(of) for name, of in counted.items()} | table)
alt = "Nats a story above the floor, a bar a model, split by kind of decision, and the same as shares"
show(figures.excess(table), alt=f"{alt}: phrases go first, computed counts last.")
row = list(table.values())[-1]
answer("18.3", 100 * row["counts, computed"] / sum(row.values()))

# %% [markdown]
r"""
The first two columns show how many tokens of each kind a story has, and their floor. All other columns are excesses in nats per story. First come the two tables of counts, for comparison. Then come four stages of one training, a model of one layer, and
chapter 07's model, which was trained longer.

The stages show the order in which a model learns. The first 20 steps teach little more than how often each word occurs: fixed words lose half of their excess, while adjectives and other words even get dearer. By step 150 fixed words, openings and adjectives have lost more than nine tenths of what they cost untrained, and the model is far below the table of pairs there. These kinds need no memory of the story.

Now compare the column "pairs of tokens" with step 150 in the kinds that do. Repeated names cost 37 nats a story in the table and 34 in the model, repeated things 23 and 20, copied counts 12.3 and 12.7, computed ones 2.7 and 2.9. That looks as if the model, with one layer or with two, were still a table of neighbours for everything that has to look back into the story, while chapter 07's model, which was trained longer, looks back: its copied counts have fallen to nothing.

But equal costs are no proof, since a model could look back and be wrong. So we change what it would see there. In all stories we exchange the words that are said for the first time: every new name for another name, then every new count for another count. The later words stay, so they are now wrong.

*Predict.* The cost of the later words, before and after: for a model that does not look back, and for one that does?
"""


# %% tags=["nbval-ignore-output"]
def exchange(kind: str) -> np.ndarray:
    """The ids of the stories, in which each token of this kind is replaced by another one of the kind."""
    ids, at = floor.ids.copy(), 1 + np.flatnonzero(floor.kinds == KINDS.index(kind))
    used = np.unique(ids[at])
    ids[at] = np.roll(used, -1)[np.searchsorted(used, ids[at])]
    return ids


for kind, first_time in {"names, again": "names, new", "counts, copied": "counts, new"}.items():
    at, changed = floor.kinds == KINDS.index(kind), exchange(first_time)
    for name in (first, second, list(models)[-1]):
        as_told, after = (token_losses(models[name], ids, eot)[at].mean() for ids in (floor.ids, changed))
        print(f"{kind:14} {name:20} {as_told:.2f} nats a token as told, {after:.2f} after the exchange")

# %% [markdown]
r"""
After 150 steps the models pay the same for the later words, whoever was introduced and with how many: they do not look back at all. Chapter 07's model pays 7.5 nats for a count that it got for nothing, and 3.3 for a name instead of 0.5. It reads them off the text. What is left of its excess is mostly arithmetic: its largest part, more than a third, is on computed counts; the next ones are repeated things and names.

Is this the same for other seeds, and does a second layer help? The next cell shows recorded runs of chapter 07's length with several seeds for each depth, in nats a story above the floor. (`python
bench/excess.py` made them.)
"""

# %%
recorded = json.loads(Path("../data/measurements/excess.json").read_text())
figures.print_seeds(recorded)

# %% [markdown]
r"""
With one layer, copied counts (4.2 to 4.3 nats, in the file) and repeated things are two thirds of the excess at the end. The second layer takes nearly all of this away: chapter 07b shows why, since one layer cannot follow a number to the word in front of it. Arithmetic becomes a little cheaper with
the second layer, and is then the largest part: between 40% and 55% of what is left, although not even one of a hundred tokens is a computed number. The difference between the depths is far larger than that between the seeds.

At which tokens of a story is the excess? In the next figure each token of two stories is shaded by its excess, and the answers to the questions in the story have a frame:
"""

# %% tags=["nbval-ignore-output"]
excess = nats - floor.nats  # of the last model
begins = np.flatnonzero(floor.ids == eot)
rows = [figures.pieces(told[i], excess[begins[i] :], tokenizer) for i in (2, 3)]
alt = "Two stories, each token shaded by the model's excess over the floor; the answers have a frame."
show(costs(rows), alt=alt)

# %% [markdown]
r"""
With chapter 07's model most tokens are white: it predicts them as well as the perfect reader. The dark ones are few, and you can now say of each which kind of decision it is.

The appendix below asks a simpler question, whether the answers in a story are right.
"""

# %% tags=["nbval-ignore-output"]
predictions("18")

# %% [markdown]
r"""
## Appendix: right and wrong answers

Every story says who has how many. Some of these number words can be *copied* from an earlier sentence, others must be *computed* from two of them. Chapter 02 knows their places. Chapter 07's `answer_accuracy` asked for each of them
whether the model's first choice is the right word, but only in stories that fit into the context. With `windows` the function can ask it for any story.
"""


# %%
#| export labs.evals.accuracy
from collections import Counter
from collections.abc import Iterable

import numpy as np
import torch

from nanogpt.evaluate import evaluating


def first_choices(model: torch.nn.Module, ids: np.ndarray, T: int, eot: int) -> list[bool]:
    """Of each id but the first, whether it is what the model found likeliest, given the ids before it."""
    device = next(model.parameters()).device
    right = []
    for start, new, stop in windows(ids, T, eot):
        logits, _ = model(torch.from_numpy(ids[None, start:stop]).to(device))
        best = first_choice(logits[0, new - start :]).cpu().numpy()
        right += (best == ids[new + 1 : stop + 1]).tolist()
    return right


# %%
#| export labs.evals.accuracy
#| grows answer_accuracy
@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable, tokenizer) -> dict[str, float]:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    By kind, "copied" or "computed", and of "all". stories: chapter 02's; one longer than the model's context is read
    through `windows`. model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    asked, right = Counter(), Counter()
    with evaluating(model):
        for story in stories:
            ids = np.array([tokenizer.eot, *tokenizer.encode(story.text)])
            T = model.config.block_size if hasattr(model, "config") else len(ids)
            hits = first_choices(model, ids, T, tokenizer.eot)
            ends = np.cumsum([len(tokenizer.decode([i])) for i in ids[1:].tolist()])  # of the tokens
            for (start, end), kind in zip(story.answers, story.kinds):
                first, last = np.searchsorted(ends, [start + 1, end])
                is_right = all(hits[first : last + 1])
                for name in (kind, "all"):
                    asked[name] += 1
                    right[name] += is_right
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return {kind: right[kind] / asked[kind] for kind in sorted(asked)}


# %% tags=["nbval-ignore-output"]
for name in (first, second, list(models)[-1]):
    shares = answer_accuracy(models[name], told, tokenizer)
    print(f"{name:22}", ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


# %% [markdown]
r"""
The two short runs guess: a count is one of seven words, so one answer in seven, 14%, is right by chance. Chapter 07's model copies every count and computes about half of the others. That is the table of the excess again, with its 0.03 and 1.22 nats. But a share of right answers does not say how wrong the wrong answers are, and it says nothing about all other words. The excess by kind does both.

## Checkpoint
"""

# %%
checkpoint("18")

# %% [markdown]
r"""
## Exercises

`course exercises release 18` writes these as a notebook to `released/`; `course check 18` runs their visible checks.

- **18-1** The mean of means, 10 minutes: fix a loss that depends on the batch size.
- **18-2** Windows over a long text, 25 minutes: write the check that finds tokens counted twice, or never.
- **18-3** Bits of which bytes, 15 minutes: fix a measure that asks the decoder.

Chapter 18b has the other exercises. To explore:

1. Choose other rows of validation text for `some`, and a longer one. Which of the four mistakes gets smaller with the length of the text, and which does not? Check against `evaluate`.
2. Give `kind_of` a kind of its own for toys. Check that the rows still add up, and say how much of "things, again" they are.
3. Excess by position: sum it over the first, second, third … sentence of the stories. Check that it adds up to the total.
4. After 400 steps two layers pay less for repeated names than one. Is it the depth, or the learning rate? Train one layer with half and twice the LR for 400 steps, and check
   the row "names, again".
5. Compute the bits per byte of `gzip` and `lzma` on the held-out stories: their compressed bits, divided by the bytes. Check that the model is below both,
   and say what they may use and the model may not.

## Further reading

- Gao et al. 2020, [*The Pile*](https://arxiv.org/abs/2101.00027), §3.1: bits per byte.
- Miller 2024, [*Adding Error Bars to Evals*](https://arxiv.org/abs/2411.00640): standard errors, clusters and pairs.
- Cochran 1977, [*Sampling Techniques*](https://www.wiley.com/en-us/Sampling+Techniques%2C+3rd+Edition-p-9780471162407), §6: the error of a ratio.
"""
