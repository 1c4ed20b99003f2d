# %% [markdown]
r"""
# 18b ◇ · HellaSwag: is the likelier ending the right one?

Chapter 18 could say how much a model still has to learn, because its texts came from a grammar. Nobody knows the floor of ordinary
text. So for models of ordinary text, people ask questions and count the right answers. A count looks like the simplest of numbers. But it depends on how the question
is asked, on how the scores of long and short answers are compared, on the number of questions, and on how often somebody has looked at the result.

This chapter asks one well-known set of questions, HellaSwag. First we write the simplest program that answers a question. Then we make it faster without changing its answers. Then we ask what the result means, and try the program on questions whose answers the model must know.
"""

# %%
#| default_exp labs.evals.hellaswag
#| doc labs.evals.hellaswag: HellaSwag: each context read once for its four endings, and which of them the model finds likeliest.
#| doc labs.evals.command: The command `eval`: a checkpoint, some tasks, a line for each.
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from course.figures import hellaswag as figures
from course.notebook import answer, as_module, checkpoint, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device
from nanogpt.model import GPTConfig
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import NUMBERS, ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train
from nanogpt.weights import load_model, save_model

# %%
#| export
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import nanogpt
from nanogpt.evaluate import evaluating
from nanogpt.labs.evals.accuracy import first_choice
from nanogpt.model import GPT
from nanogpt.precision import autocast

# %% [markdown]
r"""
All sizes are set here. The model is chapter 07's. If it is absent, we train a model of the same shape for a few steps.
"""

# %%
STEPS, SHAPE = 300, GPTConfig(block_size=128, n_layer=2, n_head=4, n_embd=128)
ASKED, ROUNDS, GUESSERS = 9, 5, 20  # a question to look at, rounds of timing, guessing checkpoints
device, built = pick_device(), Path("../data/built")
manifest = ensure_corpus(built / "stories")
tokenizer = BPETokenizer.load(built / "stories/tokenizer.json")


def short_run(B=4, lr=2e-3) -> GPT:
    """A model for those who have none: chapter 07's shape, few steps."""
    generator = torch.Generator().manual_seed(0)
    model = scale_init(GPT(replace(SHAPE, vocab_size=tokenizer.vocab_size), generator)).to(device)
    stream = DocumentStream(
        open_shards(built / "stories", "train"), B, SHAPE.block_size, seed=0, device=device
    )
    train(model, stream, STEPS, lr, generator=generator)
    return model.eval()


there = (built / "model/config.json").exists()
best = load_model(built / "model", device) if there else None
if best is None or best.config.vocab_size != tokenizer.vocab_size:
    print("chapter 07's model is absent: a short run must do")
    best = short_run()
print(f"a model of {best.config.n_layer} layers, and a context of {best.config.block_size} tokens")

# %% [markdown]
r"""
## A beginning and four endings

A question of HellaSwag (Zellers et al. 2019) is a beginning with four endings. One ending is that of the original video or article. The others were
written by a model, and selected so that they fool another model. A language model can answer such a question although it has never learned to answer questions: we
take the ending that it finds likeliest.

The 10,042 validation questions are 12 MB (`course data hellaswag` downloads them). For tests and for work offline there are 48 questions in the same format, written for
this course. Their wrong endings are absurd, so scores on the two sets cannot be compared.

Each line of the file is a question in JSON: the context `ctx`, a list of `endings`, and the number `label` of the right one. `load_items` reads the file, and names the line if one is not a question. We print one of the course's questions, with a star before the right ending.
"""


# %%
#| export
COURSE = files("nanogpt") / "resources/hellaswag_course.jsonl"
REAL = Path(nanogpt.__file__).parents[1] / "data/downloads/hellaswag_val.jsonl"


def default_items() -> Path:
    """HellaSwag's validation set where `course data hellaswag` has brought it, else the course's small set."""
    return REAL if REAL.exists() else COURSE


# %%
#| export
def load_items(path: str | Path | None = None) -> list[dict]:
    """Questions of a HellaSwag file: each a dict with ctx, endings and label. None: those of default_items().

    ValueError, naming the line, for what is no question.
    """
    path, items = Path(path or default_items()), []
    # "\n" alone ends a line of JSONL: splitlines() would cut at U+2028, too, which a text may hold
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            label = float(item["label"])  # the hub's export has it as text
            whole = item["ctx"] and all(item["endings"]) and label in range(len(item["endings"]))
        except (ValueError, TypeError, LookupError):
            whole = False
        if not whole:
            raise ValueError(
                f"{path.name}, line {number}: a question needs ctx, endings, and label, one of theirs"
            )
        items.append(item | {"label": int(label)})
    if not items:
        raise ValueError(f"{path.name} holds no question")
    return items


# %%
items = load_items(COURSE)
ASKED %= len(items)
print(items[ASKED]["ctx"])
for i, words in enumerate(items[ASKED]["endings"]):
    print("  *" if i == items[ASKED]["label"] else "   ", words)

# %% [markdown]
r"""
## One ending at a time

The cost of an ending is the sum of the losses of its tokens after the context, in nats: −ln P(ending | context). The simplest program makes one
forward pass for each ending. Two details matter. The space before an ending belongs to the ending, because GPT-2's tokens begin with their space (`example_ids`). And if a context is too long, we keep its
*end*, which is next to the ending (`fitting`).
"""


# %%
#| export
#| blank fitting: keep the end of the context, which is next to the ending; refuse an ending with no room
def example_ids(item: dict, tokenizer) -> tuple[list[int], list[list[int]]]:
    """The ids of a question's context, and of its endings, each after a space."""
    return tokenizer.encode(item["ctx"]), [tokenizer.encode(" " + ending) for ending in item["endings"]]


def fitting(context: list[int], endings: list[list[int]], block_size: int) -> list[int]:
    """What of a context fits before its longest ending, whose last token is predicted and not read.

    ValueError, which names both numbers, where not a single token fits.
    """
    room = block_size + 1 - max(map(len, endings))
    if room < 1:
        raise ValueError(
            f"an ending of {block_size + 1 - room} tokens does not fit into block_size={block_size}"
        )
    return context[-room:]


# %%
@torch.no_grad()
def one_at_a_time(item: dict) -> list[float]:
    """The nats of each ending, from a forward pass of its own over context and ending."""
    (context, endings), nats = example_ids(item, tokenizer), []
    context = fitting(context, endings, best.config.block_size)
    for ending in endings:
        ids = torch.tensor([context + ending], device=device)
        logits = best(ids[:, :-1])[0][0, len(context) - 1 :].float()
        nats.append(F.cross_entropy(logits, ids[0, len(context) :], reduction="sum").item())
    return nats


# %% tags=["nbval-ignore-output"]
for nats, words in zip(one_at_a_time(items[ASKED]), items[ASKED]["endings"]):
    print(f"{nats:6.1f} nats  {words}")

# %% [markdown]
r"""
The model's answer is the ending with the lowest cost. (All costs are high, because this model has read nothing but stories about toys.)

But is the comparison fair? Longer endings have more tokens, so they cost more. Therefore people divide the cost by the length of the ending, and there are several accuracies. One name is even used for two of them:
the `acc_norm` of lm-evaluation-harness, a program with many such sets of questions, divides the cost by the number of *characters*, and that of build-nanogpt and llm.c by the number of *tokens*. The harness also has
`acc_bytes`, which on English text is the same as `acc_norm`. `MEASURES` has the four divisors. We compute the costs of all questions, and `by_measure` divides those of one question in the four ways.
"""

# %%
#| export
MEASURES = {  # what an ending's nats are divided by before the cheapest is chosen
    "acc": lambda ending, tokenizer: 1,
    "acc_norm": lambda ending, tokenizer: len(ending),
    "acc_bytes": lambda ending, tokenizer: len(ending.encode()),
    "acc_tokens": lambda ending, tokenizer: len(tokenizer.encode(" " + ending)),
}

# %% tags=["nbval-ignore-output"]
plain = [one_at_a_time(item) for item in items]


def by_measure(number: int) -> dict[str, list[float]]:
    """The costs of a question's endings by each measure."""
    of = [(nats, ending) for nats, ending in zip(plain[number], items[number]["endings"])]
    return {name: [nats / length(e, tokenizer) for nats, e in of] for name, length in MEASURES.items()}


# %% [markdown]
r"""
The figure shows the costs of the endings of a question by each measure. The star marks the right ending, and orange is the one that a measure finds cheapest. *Predict* before you
choose another question: which of its endings does the division by characters favour, a short one or a long one?
"""

# %% tags=["nbval-ignore-output"]
figures.endings_widget(items, by_measure, ASKED)

# %% [markdown]
r"""
For this question `acc` chooses a short ending, and the division by characters or tokens the longest one. No measure finds the right one. Is this a habit? We count over all 48 questions how often the choice has the fewest tokens of the four endings, and how often the most.
"""

# %% tags=["nbval-ignore-output"]
for name in MEASURES:
    shortest = longest = 0
    for number, item in enumerate(items):
        lengths = [len(tokenizer.encode(" " + ending)) for ending in item["endings"]]
        chosen = lengths[np.argmin(by_measure(number)[name])]
        shortest += chosen == min(lengths)
        longest += chosen == max(lengths)
    print(f"{name:10} chooses a shortest ending {shortest} times, a longest one {longest} times")

# %% [markdown]
r"""
The undivided cost chooses the shortest ending in 44 of 48 questions, so for this model `acc` is a measure of length. Dividing ends most of that: shortest endings are then chosen 14 to 18 times and longest ones 7 to 11 times. Somebody who guesses chooses each about 48 / 4 = 12 times (more where two endings have the same length). A little of the habit is left, most of it with tokens. This is why people divide.

## All endings side by side

The program works, but it is slow: four passes read the same context four times. With chapter 08's cache we could read it once, keep its keys and values, and then read the four endings.
A single pass can do the same without a copy. We put the four endings one after another behind the context. Each ending counts its positions from
the end of the context. A mask lets a token see the context and its own ending, but not the other endings. So the keys and values of the context are computed
once and used by all four endings.

*Predict.* By which factor does the number of tokens that go through the model fall?
"""

# %%
predict("18b.1", "times fewer tokens", guess=None)

# %% [markdown]
r"""
The model's `forward` has a parameter `cache` since chapter 08. It asks this object three things: at which `positions` the new tokens are, how each `layer` computes its attention, and from which places (`newest`) it should compute logits. `SideBySide` answers these questions differently. It keeps
nothing for later. It only gives each token its position, and replaces the triangular mask by ours.

`side_by_side` makes the row of tokens for one question. The last token of an ending is predicted but not read, so it is left out. `predicted_at` lists the places in the row at which the tokens of the endings are predicted. The first token of every ending is predicted at the last token of the context.

We follow a small example: a context of five tokens, and endings of four, two and three tokens.
"""


# %%
#| export
@dataclass
class SideBySide:
    """A cache for one pass over texts that are each followed by several endings: all share the text's keys and values.

    ending, place: (B, T), which ending each token is of (-1: the text, -2: padding), and its position.
    at: where logits are wanted, indices into B · T.
    """

    ending: Tensor
    place: Tensor
    at: Tensor

    def positions(self, T: int) -> Tensor:
        keys, queries = self.ending[:, None, :], self.ending[:, :, None]
        self.seen = ((keys == -1) | (keys == queries)).tril()[:, None]  # (B, 1, T, T)
        return self.place

    def layer(self, i: int) -> Callable:
        return partial(F.scaled_dot_product_attention, attn_mask=self.seen)  # nothing is kept for a next pass

    def newest(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)[self.at][None]  # (1, wanted, C)


# %%
#| export
#| blank side_by_side: every ending begins at the place after the context, whatever stands before it
#| blank predicted_at: an ending's first token at the context's end, the others at the token before them
def side_by_side(context: list[int], endings: list[list[int]]) -> Tensor:
    """(T, 3): the context's tokens, and those of the endings that another one follows: id, ending, place."""
    rows = [(token, -1, place) for place, token in enumerate(context)]
    for number, ids in enumerate(endings):
        for i, token in enumerate(ids[:-1]):
            rows.append((token, number, len(context) + i))
    return torch.tensor(rows)


def predicted_at(context: list[int], endings: list[list[int]]) -> list[int]:
    """Where in that row each token of each ending is predicted: the first one at the context's end."""
    places, start = [], len(context)
    for ids in endings:
        places += [len(context) - 1, *range(start, start + len(ids) - 1)]
        start += len(ids) - 1
    return places


# %%
context, endings = [10, 11, 12, 13, 14], [[20, 21, 22, 23], [30, 31], [40, 41, 42]]
_, ending, place = side_by_side(context, endings).T
beside = SideBySide(ending[None], place[None], at=torch.tensor(predicted_at(context, endings)))
beside.positions(len(place))
print("positions:", place.tolist())
print("predicted at:", beside.at.tolist(), "for", list(chain(*endings)))
show(
    figures.seen(beside.seen[0, 0], ending, place),
    alt="Which tokens each token sees: a triangle over the context, below it all of the context, and a triangle for each ending.",
)

# %% [markdown]
r"""
Read the printed lines first. After the five tokens of the context, the positions begin again with 5 for each ending. In the figure, a row is a token and the marked columns are the tokens that it sees: all tokens of the context, and those of its own ending up to itself.

`score_endings` does this for several questions at once. It pads the rows to one length, makes one pass, and adds up the losses of each ending. It also counts the tokens that are not the model's first choice, since the harness asks for this. We give it the question from above.
"""


# %%
#| export
@torch.no_grad()
def score_endings(
    model: GPT, contexts: Sequence[list[int]], endings: Sequence[list[list[int]]]
) -> list[list[float]]:
    """Of all endings in turn: what each costs after its context, in nats, and how many tokens are not first choice.

    contexts: ids of B texts, each read once; endings[b]: some lists of ids.
    """
    device, every = model.transformer.wte.weight.device, list(chain(*endings))
    rows = [side_by_side(*both) for both in zip(contexts, endings)]
    grid = pad_sequence(rows, batch_first=True, padding_value=-2).to(device)  # (B, T, 3)
    x, ending, place = grid.unbind(-1)
    at = [b * x.size(1) + i for b, both in enumerate(zip(contexts, endings)) for i in predicted_at(*both)]
    beside = SideBySide(ending, place.clamp(min=0), torch.tensor(at, device=device))
    y = torch.tensor(list(chain(*every)), device=device)
    logits = model(x.clamp(min=0), cache=beside)[0][0].float()  # (tokens, V)
    nats = F.cross_entropy(logits, y, reduction="none")
    first = logits.gather(
        1, first_choice(logits)[:, None]
    )  # refuses NaN, of which the first ending would be the cheapest
    wrong = (logits.gather(1, y[:, None]) < first)[:, 0]
    both = torch.stack([nats, wrong]).cpu()
    return [some.sum(1).tolist() for some in both.split([len(ids) for ids in every], dim=1)]


# %% tags=["nbval-ignore-output"]
context, endings = example_ids(items[ASKED], tokenizer)
for score, words in zip(score_endings(best, [context], [endings]), items[ASKED]["endings"]):
    print(f"{score[0]:6.1f} nats  {words}")

# %% [markdown]
r"""
These are the same costs as before, from one pass instead of four.

Sometimes the context and all four endings together are longer than the model's context. `abreast` then divides the endings into groups that fit. Here are three endings where only three more tokens fit behind the context (the last token of an ending does not count):
"""


# %%
#| export
def abreast(endings: list[list[int]], room: int) -> list[list[list[int]]]:
    """The endings in groups that fit behind the context, `room` tokens each, the last of each ending not counted."""
    groups, left = [], -1
    for ids in endings:
        if len(ids) - 1 > left:
            groups, left = [*groups, []], room
        groups[-1].append(ids)
        left -= len(ids) - 1
    return groups


# %%
print(abreast([[20, 21, 22], [30, 31], [40, 41, 42, 43]], room=3))

# %% [markdown]
r"""
Three functions complete the program. `score_ids` cuts the contexts, forms the groups, and sorts them by length, so that a batch has little padding. Then it scores batch after batch, and puts the results back into the order of the questions. `score` does this for the texts of questions. `accuracy` divides
the costs by each measure, takes the cheapest ending, and counts how often it is the right one. With each share p of n questions it returns its standard error, √(p (1 − p) / (n − 1)).
"""


# %%
#| export
def score_ids(model: GPT, asked: Sequence[tuple], *, batch=8, precision="float32") -> list[list[list[float]]]:
    """For each (context's ids, endings' ids): of each ending, its nats and how many tokens are not first choice.

    batch: questions at once, of about one length; it changes only the time. Contexts are cut to what fits.
    """
    from tqdm import tqdm

    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    size, scores = model.config.block_size, {}
    cut = [(fitting(context, endings, size), endings) for context, endings in asked]
    pieces = [(i, c, some) for i, (c, endings) in enumerate(cut) for some in abreast(endings, size - len(c))]
    order = sorted(range(len(pieces)), key=lambda j: len(pieces[j][1]) + sum(map(len, pieces[j][2])))
    with evaluating(model) as device, autocast(precision, device):
        for at in tqdm(range(0, len(order), batch), unit="batch", desc="endings", disable=None):
            _, contexts, endings = zip(*(pieces[j] for j in order[at : at + batch]))
            flat = score_endings(model, contexts, endings)
            for j, some in zip(order[at:], endings):
                scores[j], flat = flat[: len(some)], flat[len(some) :]
    results = [[] for _ in asked]
    for j, (i, *_) in enumerate(pieces):
        results[i] += scores[j]
    return results


# %%
#| export
def score(model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32") -> list[list[float]]:
    """The nats of each question's endings."""
    asked = [example_ids(item, tokenizer) for item in items]
    return [[nats for nats, _ in some] for some in score_ids(model, asked, batch=batch, precision=precision)]


# %%
#| export
#| blank accuracy: divide by each measure's length, the lowest wins; the error is that of a share
def accuracy(
    model: GPT, items: Sequence[dict], tokenizer, *, batch=8, precision="float32"
) -> dict[str, float]:
    """The share of questions whose cheapest ending is the right one, by each measure, its standard error, and n.

    Keys: each NAME in MEASURES, NAME_stderr, which is the root of p (1 - p) / (n - 1) for a share p (/ 1 for a single
    question), and n, the number of questions.
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
*Check.* The costs of all 48 questions must be those of one ending at a time, up to float32's rounding, and the choices must be the same. We also count the tokens that go through the model in both ways.
"""

# %%
fast = score(best, items, tokenizer)
worst = max(abs(a - b) for x, y in zip(plain, fast) for a, b in zip(x, y))
assert worst < 1e-2, f"a score differs by {worst:.1e} nats from one ending at a time"
assert [np.argmin(x) for x in plain] == [np.argmin(x) for x in fast], "another ending was chosen"
asked = [example_ids(item, tokenizer) for item in items]
contexts = sum(len(context) for context, _ in asked)
behind = sum(len(ending) - 1 for _, endings in asked for ending in endings)
once, each = contexts + behind, 4 * contexts + behind
print(f"the same scores and choices, with {each / once:.2f} times fewer tokens")
answer("18b.1", round(each / once, 2))

# %% [markdown]
r"""
How much time does this save? We run both ways in turns, so that other work on the machine disturbs both equally, and take the median of the ratios.
"""

# %% tags=["nbval-ignore-output"]
ratios = {1: [], 8: []}  # by the number of questions at once
for _ in range(ROUNDS):
    start = time.perf_counter()
    _ = [one_at_a_time(item) for item in items]
    slow = time.perf_counter() - start
    for batch, found in ratios.items():
        start = time.perf_counter()
        score(best, items, tokenizer, batch=batch)
        found.append(slow / (time.perf_counter() - start))
print(f"the smaller number of tokens explains {each / once:.2f}×")
for batch, found in ratios.items():
    print(f"questions at once: {batch}, {median(found):.2f}× as fast as one ending at a time")

# %% [markdown]
r"""
Three things make it faster, and the lines separate them. Fewer tokens explain a factor of two. With one question at once a single call also takes the place of four; on our machine that brought between nothing and a factor of 1.4. Eight questions at once bring another factor of 1.5, because the weights are read less often and the products of matrices are larger. The factors depend on the machine and on the size of the model. `python bench/hellaswag.py` measures it on your machine, with `--shape
gpt2` also for the shape of GPT-2.

How many answers are right, by each measure?
"""

# %% tags=["nbval-ignore-output"]
for name, value in accuracy(best, items, tokenizer).items():
    print(f"{name:18} {value:.4g}")

# %% [markdown]
r"""
## What the number means

A model that has read only stories of toys and other small things should know nothing about lamps and ladders. Its accuracy is indeed that of guessing, 25%, within
two standard errors. But is the model ignorant, or does the program not work? Two experiments can tell. First we give each question the context of another one. Then we ask the model something that it does know: how a sentence of an unread story goes on, in which it is said again how many somebody has.
"""


# %% tags=["nbval-ignore-output"]
def with_another_context(items: list[dict]) -> list[dict]:
    """Each question with the context of the one before it."""
    return [item | {"ctx": items[i - 1]["ctx"]} for i, item in enumerate(items)]


def story_questions(n: int) -> list[dict]:
    """From n unread stories: who has how many, to be copied from the text. Seven endings differ in the number alone."""
    found = []
    for story in stories(n, seed=1):
        start, end = story.answers[story.kinds.index("copied")]
        rest = story.text[end : story.text.index(".", end) + 1]
        endings = [number + rest for number in NUMBERS[2:9]]
        label = NUMBERS[2:9].index(story.text[start:end])
        found.append({"ctx": story.text[: start - 1], "endings": endings, "label": label})
    return found


known = story_questions(len(items))
print(known[0]["ctx"], known[0]["endings"][:2], "…")
for name, some in {"course's questions": items, "story questions": known}.items():
    own, other = (accuracy(best, each, tokenizer)["acc"] for each in (some, with_another_context(some)))
    print(f"{name}: {own:.0%} right, {other:.0%} with the context of another question")

# %% [markdown]
r"""
The program works. It finds all 48 answers that the model can know, and the accuracy falls to 19%, where guessing gives one in seven. So the answers came from the contexts. For the course's questions another context changes little, 27% and 23%, less than one standard error: the model reads about lamps and ladders, and it makes no difference. Every score near chance needs such a pair of controls before you believe either the model or the program.

With 48 questions a standard error is 6 points, and with 10,042 questions it is 0.45. So even there a gain of half a point is
within the noise, unless two models are compared on the same questions.

| | HellaSwag | source |
|---|---|---|
| chance | 25% | four endings |
| GPT-2 124M, `acc` | 28.59% | build-nanogpt, `hellaswag.py` |
| GPT-2 124M, per token | 29.55% | the same |
| GPT-2 124M, harness's `acc_norm` | 31.14% | the same, citing the harness |
| GPT-2 124M, in the picture of build-nanogpt's run | 29.45% | build-nanogpt, `play.ipynb` |
| build-nanogpt's run, repeated by three readers | 30.1%, 30.4%, 30.6% | the largest value of each log, as they print it |
| GPT-3 124M | 33.7% | build-nanogpt, `play.ipynb` |

The second and third row use the same prompt. The harness's task (`hellaswag.yaml` of version 0.4.13) puts the activity's name and a colon before the
context, begins its last clause with a capital, removes marks in brackets, and divides by characters. GPT-3's small model saw 300 billion tokens, and its number is
from yet another program. So a number of this kind is useful only together with its metric, its prompt and the version of the code.

If you repeat build-nanogpt's run with `gpt2-124M` (19,073 steps), you can see from the table whether it has worked: its accuracy should end near 30%, above GPT-2's 29.45%. The three readers give the largest value of a log, which is a little too good, as the next section shows.

## The test set is read once

If we try ten learning rates and keep the one with the best validation loss, we have fitted the validation set a little. How much can such a choice deceive us? Suppose that twenty checkpoints know nothing and guess. Each of them answers our 48 questions, and we keep the best one.

*Predict.* Which accuracy does the best of the twenty show, on average?
"""

# %%
predict("18b.2", "the best of the guessers", guess=None, unit="%")

# %% [markdown]
r"""
We need no models for this. The number of right guesses has a binomial distribution, so we draw twenty such numbers, take the largest, and repeat this ten thousand times.
"""

# %%
right = np.random.default_rng(0).binomial(len(items), 0.25, (10_000, GUESSERS)).max(1).mean() / len(items)
print(
    f"{len(items)} questions, the best of {GUESSERS} that guess: {right:.1%}; on new questions it gets 25.0%"
)
answer("18b.2", round(100 * right, 1))

# %% [markdown]
r"""
The best guesser looks much better than 25%, by luck alone. The more candidates there are, the more luck is in the winner's number. So there is a third split, the test set, which is not used for any choice. It must be read only once, at the
end, because after a second look we could already choose. The command in the appendix refuses `--split test` without `--final`, writes
each reading into a file beside the shards, and prints how many there were. All this helps only if the test questions were not in the training text. Chapter 16c searches for such questions.

## During a run

The trainer of chapter 17e looks at its model after every so many steps: each look is a number of steps and a function that gets the run. A lab adds its own look in `attach`. The key
`eval.hellaswag_every=1000` asks for this lab, and then the questions are asked after every thousandth step. They need a tokenizer, so a run without one is refused before its first step.

The model is `whole_model`'s (17e). In part V several processes share a run, and then only one of them gets the model and answers the questions.
"""

# %%
#| export
from nanogpt import trainer
from nanogpt.config import hook


def score_hellaswag(run) -> dict:
    """The accuracies on HellaSwag, for the step's line."""
    model = hook(run.config, trainer.whole_model)(run)
    if model is None:  # another process has it
        return {}
    scores = accuracy(model, load_items(), run.tokenizer, precision=run.config.train.dtype)
    return {"hellaswag": scores["acc"], "hellaswag_norm": scores["acc_norm"]}


def attach(run) -> None:
    """Let a run answer HellaSwag's questions every eval.hellaswag_every steps. ValueError if it has no tokenizer."""
    if run.tokenizer is None:
        remedy = "name it in data.tokenizer, or set eval.hellaswag_every=0"
        raise ValueError(f"HellaSwag needs the tokenizer that made {run.config.data.dir}; {remedy}")
    run.looks.append((run.config.eval.hellaswag_every, score_hellaswag))


# %% [markdown]
r"""
We build a run that asks for the lab, without training it, and take its look by hand. Its model is new, so it guesses.
"""

# %%
from nanogpt.config import load_config
from nanogpt.trainer import build_run

as_module("labs.evals.hellaswag")
asking = load_config("tiny", [f"data.dir={built}/stories", "eval.hellaswag_every=1000"])
run = build_run(asking)
every, latest_look = run.looks[-1]
print(f"{latest_look.__name__} after every {every} steps")

# %% tags=["nbval-ignore-output"]
print(latest_look(run))

# %% [markdown]
r"""
An accuracy of 17% and one of 19%: with 48 questions both are within one and a half standard errors of 25%.

## Appendix: the command `eval`

The command makes the measurements of this chapter and the one before: losses, answers, the excess by kind of decision, and HellaSwag. It takes the shards that the run was trained on, unless `--data` names others.
"""


# %%
#| export labs.evals.command
import json
import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nanogpt.checkpoint import pick_checkpoint
from nanogpt.config import load_config
from nanogpt.device import pick_device
from nanogpt.evaluate import token_losses
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.labs.evals.measures import bits_per_byte, mean_and_error, token_bytes
from nanogpt.files import save_json
from nanogpt.labs.evals.excess import Floor
from nanogpt.sampling import load
from nanogpt.shards import open_shards, read_shard
from nanogpt.labs.corpora.stories import stories


# %%
#| export labs.evals.command
def data_of(args: Namespace) -> str:
    """The folder of shards: the one that --data names, else the run's own, else the stories."""
    kept = pick_checkpoint(args.checkpoint).parent / "config.yaml"
    if args.data is None and kept.is_file():
        return load_config(kept).data.dir
    return args.data or "data/built/stories"


# %%
#| export labs.evals.command
def val(model, tokenizer, args: Namespace) -> dict[str, float]:
    """Loss, its error, perplexity and bits per byte on the first --tokens of a split; a reading of test is recorded."""
    if args.split == "test" and not args.final:
        how = "with --final it is read, and the reading is recorded"
        raise ValueError(f"the test set is read once, when all choices are made; {how}")
    paths, parts, left = open_shards(args.data, args.split, tokenizer.fingerprint), [], args.tokens
    for path in paths:
        parts.append(read_shard(path)[:left])
        left -= len(parts[-1])
    tokens = np.concatenate(parts)
    nats = token_losses(model, tokens, tokenizer.eot, args.batch * 4, args.precision, progress=True)
    if not len(nats):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    loss, error = mean_and_error(nats, tokens, tokenizer.eot)
    result = {"loss": loss, "loss_stderr": error, "perplexity": math.exp(min(loss, 700)), "tokens": len(nats)}
    result["bits_per_byte"] = bits_per_byte(nats, tokens, token_bytes(tokenizer))
    return result | (read_again(args, loss) if args.split == "test" else {})


# %%
#| export labs.evals.command
def read_again(args: Namespace, loss: float) -> dict[str, int]:
    """Append this reading of the test set to test_reads.jsonl beside the shards; how many there are now."""
    log = Path(args.data) / "test_reads.jsonl"
    with log.open("a", encoding="utf-8") as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"time": now, "checkpoint": str(args.checkpoint), "loss": loss}) + "\n")
    return {"test_readings": len(log.read_text(encoding="utf-8").splitlines())}


# %%
#| export labs.evals.command
def excess(model, tokenizer, args: Namespace) -> dict[str, float]:
    """Nats a story above the floor, by kind of decision, on 200 stories that no shard of the course holds."""
    floor = Floor.of((story.text for story in stories(200, seed=1)), tokenizer)
    nats = token_losses(model, floor.ids, tokenizer.eot, args.batch * 4, args.precision, progress=True)
    parts = floor.excess(nats)
    return {"all": sum(parts.values())} | parts


# %%
#| export labs.evals.command
TASKS = {
    "val": val,
    "hellaswag": lambda model, tokenizer, args: accuracy(
        model, load_items(args.items), tokenizer, batch=args.batch, precision=args.precision
    ),
    "answers": lambda model, tokenizer, args: answer_accuracy(model, stories(200, seed=1), tokenizer),
    "excess": excess,
}


# %%
#| export labs.evals.command
HELP = """How good is a checkpoint? Of the course, or a Hugging Face GPT-2.

  python -m nanogpt eval --checkpoint data/built/model --tasks val,answers,excess
  python -m nanogpt eval --checkpoint openai-community/gpt2 --tasks hellaswag --precision bf16
"""
OPTIONS = {
    "checkpoint": (None, "a run's folder, or its best as runs/x/best; a model's folder; or a hub name"),
    "tasks": ("val", f"some of {','.join(TASKS)} (val)"),
    "data": (None, "folder of shards (the run's own, else data/built/stories)"),
    "split": ("val", "val, or test, which needs --final, too"),
    "tokens": (1_000_000, "of the split, at most its first so many (1,000,000)"),
    "items": (None, "HellaSwag's questions (default: the downloaded ones, or else the course's)"),
    "tokenizer": (None, "gpt2 or a tokenizer.json (default: the one beside the checkpoint)"),
    "batch": (8, "HellaSwag's questions at once; of other text four times as many rows (8)"),
    "precision": ("float32", "float32, tf32, bf16 or fp16, as in chapter 10 (float32)"),
    "device": (None, "cuda, mps or cpu (default: the best there is)"),
    "json": (None, "write the results to this file, too"),
}


# %%
#| export labs.evals.command
def parser() -> ArgumentParser:
    """The options of `python -m nanogpt eval`."""
    parser = ArgumentParser(description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true", help="read the test set, which is recorded beside it")
    for name, (default, what) in OPTIONS.items():
        kind = type(default) if default else str
        parser.add_argument(f"--{name}", required=name == "checkpoint", type=kind, default=default, help=what)
    return parser


# %%
#| export labs.evals.command
def run(args: Namespace) -> None:
    """`python -m nanogpt eval`, its options parsed: a line for each result."""
    names = [name.strip() for name in args.tasks.split(",")]
    if wrong := [name for name in names if name not in TASKS]:
        raise ValueError(f"no task is named {wrong[0]!r}; choose from {', '.join(TASKS)}")
    if args.batch < 1 or args.tokens < 2:
        raise ValueError("--batch must be at least 1, --tokens at least 2")
    args.data = data_of(args)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    model, results = model.to(pick_device(args.device)).eval(), {}
    for name in names:
        of = f"{args.data}, {args.split}" if name == "val" else "stories that the course's shards do not hold"
        of = Path(args.items or default_items()).name if name == "hellaswag" else of
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
    place = ["--checkpoint", str(folder), "--device", device.type, "--data", str(built / "stories")]
    try:
        run(parser().parse_args([*place, *options]))
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
`--checkpoint openai-community/gpt2` it is GPT-2.
"""

# %% [markdown]
r"""
## Appendix: the same model in lm-evaluation-harness

lm-evaluation-harness asks a model for the log-likelihoods of continuations. So a short adapter is enough to run its tasks on our checkpoints, except those in which the model has to
write an answer. The harness asks for each ending by itself. `log_likelihoods` collects the requests that have the same context, so that the context is read only once.
"""


# %%
#| export
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
#| export
def for_harness(model: GPT, tokenizer, *, batch=8, precision="float32"):
    """The model as an lm_eval.api.model.LM, for tasks that ask for log-likelihoods. Needs the package lm-eval."""
    from lm_eval.api.model import TemplateLM

    from nanogpt.evaluate import token_losses

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
A test gives the 48 questions to the harness as a local task and compares the results: the four log-likelihoods of each question and the three accuracies are the same.
(Only this test needs `pip install lm-eval`. `lm_eval.simple_evaluate(model=for_harness(model, tokenizer),
tasks=["hellaswag"])` runs its own.)
"""

# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("18b")

# %%
checkpoint("18b")

# %% [markdown]
r"""
## Exercises

`course exercises release 18` writes these, and those of 18, as a notebook to `released/`; `course check 18` runs their visible checks.

- **18-4** Two models, one set of questions, 20 minutes: the standard error of a difference.
- **18-5** The best of those who guess, 20 minutes: derive how lucky the luckiest is.
- **18-6** Which `acc_norm`, 10 minutes: two papers divide by different lengths.

To explore:

1. Ask without the contexts (`ctx` a single space). Does any accuracy leave chance by more than two standard errors? Check what always
   choosing the longest ending gives.
2. Leave out the space before an ending in `example_ids`. Check with `tokenizer.decode` what the model is asked then, and count the
   choices that change.
3. Let the endings see each other: in `positions`, keep the triangle alone. Check that `score` fails the comparison with `one_at_a_time`,
   and say for which ending of each question it does not.

## Further reading

- Zellers et al. 2019, [*HellaSwag: Can a Machine Really Finish Your Sentence?*](https://arxiv.org/abs/1905.07830), §3: how wrong endings were chosen.
- Biderman et al. 2024, [*Lessons from the Trenches on Reproducible Evaluation of Language Models*](https://arxiv.org/abs/2405.14782), §3: what a prompt and a normalisation change.
- Dwork et al. 2015, [*The reusable holdout*](https://doi.org/10.1126/science.aaa9375), Science 349: what repeated looks at a held-out set cost.
- Miller 2024, [*Adding Error Bars to Evals*](https://arxiv.org/abs/2411.00640): standard errors, clusters and pairs.
"""
