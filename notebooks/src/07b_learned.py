# %% [markdown]
r"""
# 07b · What has it learned?

Chapter 07 trained a model. It answers nearly every question about a number that only has to be copied, and its loss ended a few per cent above the floor. It is
tempting to say that the model has understood who owns what. Has it? A score cannot tell. In this chapter we take the model apart: we look at the
facts that it pays for, we change the text so that a claim about the model predicts something, and we switch parts of the model off.

Before you read on: a story begins "Lucy had ten brown beads, and Leo had five. Lucy was proud of her …". The model says *ten*. What does it say if
Lucy has five and Leo has ten?
"""

# %%
#| default_exp weights
import json
import math
import re
from pathlib import Path

from course.figures import training as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.stand_in import small_model
from nanogpt.device import pick_device
from nanogpt.labs.corpora.stories import NUMBERS, ensure_corpus, entries, rules
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import WEIGHTS, save_model

# %%
#| export
import json
from pathlib import Path

import torch
from safetensors.torch import load

from nanogpt.model import GPT, GPTConfig

# %% [markdown]
r"""
## Back from the disk

If you have not run chapter 07, the next cell trains a smaller model for a few seconds. It knows less, and its numbers differ from those in the text.
"""

# %% tags=["nbval-ignore-output"]
BUILT = Path("../data/built")
manifest, device = ensure_corpus(BUILT / "stories"), pick_device()
tokenizer = BPETokenizer.load(BUILT / "stories" / "tokenizer.json")
MODEL = BUILT / "model"
if not (MODEL / "config.json").exists():
    MODEL = BUILT / "model-small"
    save_model(small_model(tokenizer, manifest, device), MODEL)
    tokenizer.save(MODEL / "tokenizer.json")
print(MODEL, *sorted(path.name for path in MODEL.iterdir()))

# %% [markdown]
r"""
`config.json` says how the model is built, and `model.safetensors` has a tensor for every parameter. So loading is short: build a model from the
configuration, and copy the tensors into it. `strict=False` is there because of chapter 05's tied matrix. The file has it once, as `wte`; in the model,
`lm_head` is the same tensor under a second name.
"""


# %%
#| export
#| blank load_model: config.json without its sha256 has the fields of a GPTConfig; load_state_dict with strict=False
def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The model that save_model wrote into a folder, in evaluation mode."""
    fields = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    fields.pop("sha256")  # a hash of both files
    model = GPT(GPTConfig(**fields))
    model.load_state_dict(load((Path(folder) / WEIGHTS).read_bytes()), strict=False)  # lm_head is wte
    return model.to(device).eval()


# %% [markdown]
r"""
A model reads numbers, and a tokenizer says what they mean. If the stories were made with another vocabulary than the model, everything still runs and
nothing is right. Both folders have a `tokenizer.json`, so we compare the two fingerprints.
"""

# %% tags=["nbval-ignore-output"]
model = load_model(MODEL, device)
own = BPETokenizer.load(MODEL / "tokenizer.json")
assert own.fingerprint == manifest["fingerprint"], (
    f"{MODEL} was trained with another vocabulary than {BUILT / 'stories'} has: run chapter 07 again"
)
config, eot = model.config, tokenizer.eot
print(f"{config.n_layer} layers of {config.n_head} heads, vocabulary {own.fingerprint[:8]}")

# %% [markdown]
r"""
## Which repeated facts cost most?

Some nats a story are left above the floor. Which words cost them? A story draws its facts once: two names, a number, things, perhaps a place, a toy or a
promise. Later it says them again. The first time there is a choice, and the grammar pays for it as well. When a fact is *repeated*, the story leaves no choice:
the floor for these words is zero, and every nat that the model pays is lost because it did not know its own text.

So we need to know where a story repeats its facts. `tell_noted` is `tell` of chapter 02 with a note for each repeat. The last argument
lets us replace a fact; we need it below. `noted_story` tells the story of a seed.
"""


# %%
#| export labs.evals.facts
#| doc labs.evals.facts: What a model pays for the facts that a story repeats, and whose numbers it names.
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F

from nanogpt.evaluate import evaluating
from nanogpt.labs.evals.accuracy import first_choice
from nanogpt.labs.corpora.stories import (
    Count,
    Draw,
    Part,
    Pick,
    Recall,
    Story,
    alternatives,
    choose,
    entries,
    words_of,
)


@dataclass
class NotedStory(Story):
    """A story that also knows where it repeats its facts."""

    pools: dict[str, str] = field(default_factory=dict)  # key of a fact -> the pool that it was drawn from
    repeats: list[tuple[int, int, Part]] = field(default_factory=list)  # text[start:end] are the part's words


def tell_noted(symbol: str, rng: random.Random, story: NotedStory, changed: dict) -> None:
    """Chapter 02's `tell`, with notes. A fact in `changed` takes the place of the one that the dice choose."""
    for part in choose(alternatives(symbol), rng, story):
        # one of a symbol's lines
        if isinstance(part, Pick):
            tell_noted(part.symbol, rng, story, changed)
            continue
        # a new fact; the dice are rolled in any case
        if isinstance(part, Draw):
            drawn = choose(entries(part.pool), rng, story)
            story.facts[part.key] = changed.get(part.key, drawn)
            story.pools[part.key] = part.pool
            story.text += story.facts[part.key][0]
            continue
        # words that leave no choice
        start = len(story.text)
        story.text += words_of(part, story.facts)
        if isinstance(part, Recall | Count):
            story.repeats.append((start, len(story.text), part))


def noted_story(seed: int, **changed: tuple[str, ...]) -> NotedStory:
    """The story of this seed. `noted_story(7, n=("five",))` is the same story, but the girl has five things."""
    story = NotedStory()
    tell_noted("story", random.Random(seed), story, changed)
    return story


# %%
told = [noted_story(seed) for seed in range(1_000_000, 1_000_300)]  # no model has read these
print(told[2].text)
for start, end, part in told[2].repeats[:6]:
    print(f"{start:4}–{end:<4} {told[2].text[start:end]:8} {part}")

# %% [markdown]
r"""
Now we let the model read. `read_story` gives each token with its place, its cost, and the token that the model would have said. `costs_of_facts` adds up the costs by
the kind of fact that is repeated.
"""


# %%
#| export labs.evals.facts
#| blank costs_of_facts: read each story, sum nats over the tokens of each repeat, and count those whose every token was chosen
class Token(NamedTuple):
    """A token of a story, text[start:end], what a model pays for it in nats, and what the model would have said."""

    text: str
    start: int
    end: int
    nats: float
    choice: str


@torch.no_grad()
def read_story(model: torch.nn.Module, tokenizer, text: str) -> list[Token]:
    """The tokens of a story, and <|endoftext|> as the last one, which is empty here."""
    ids = torch.tensor([tokenizer.eot, *tokenizer.encode(text), tokenizer.eot])
    with evaluating(model) as device:
        logits = model(ids[None, :-1].to(device))[0][0].float().cpu()  # (T, V)
    nats = F.cross_entropy(logits, ids[1:], reduction="none").tolist()
    tokens, end = [], 0
    for i, cost, best in zip(ids[1:].tolist(), nats, first_choice(logits).tolist()):
        piece = "" if i == tokenizer.eot else tokenizer.decode([i])
        start, end = end, end + len(piece)
        tokens.append(Token(piece, start, end, cost, tokenizer.decode([best])))
    return tokens


def tokens_within(tokens: list[Token], start: int, end: int) -> list[Token]:
    """The tokens that have a letter of text[start:end]."""
    return [token for token in tokens if token.start < end and start < token.end]


def kind_of(part: Part, pools: dict[str, str]) -> str:
    """What a part repeats: the pool of its fact, or a copied or computed number."""
    if isinstance(part, Recall):
        return pools[part.key]
    return "copied number" if len(part.terms) == 1 else "computed number"


def costs_of_facts(model: torch.nn.Module, tokenizer, stories: Iterable[NotedStory]) -> dict[str, dict]:
    """By kind of fact: "nats" a story, "times" that a story repeats it, and "right", the share of first choices.

    The kind "" is everything else, and has only nats. All nats together are the cost of a story.
    """
    nats, times, right, n = Counter(), Counter(), Counter(), 0
    for story in stories:
        tokens = read_story(model, tokenizer, story.text)
        nats[""] += sum(token.nats for token in tokens)
        n += 1
        for start, end, part in story.repeats:
            kind = kind_of(part, story.pools)
            repeated = tokens_within(tokens, start, end)
            cost = sum(token.nats for token in repeated)
            nats[kind] += cost
            nats[""] -= cost
            times[kind] += 1
            right[kind] += all(token.text == token.choice for token in repeated)
    rows = {
        kind: {"nats": nats[kind] / n, "times": times[kind] / n, "right": right[kind] / times[kind]}
        for kind in times
    }
    return rows | {"": {"nats": nats[""] / n}}


# %% tags=["nbval-ignore-output"]
texts = []
for story in told[2:4]:
    framed = set()
    tokens = read_story(model, tokenizer, story.text)
    for start, end, _ in story.repeats:
        framed.update(tokens_within(tokens, start, end))
    texts.append([(token.text, token.nats, token in framed) for token in tokens[:-1]])
show(
    figures.costs(texts),
    alt="Two stories, each token shaded by the nats the model pays; repeated facts have a frame.",
)

# %% [markdown]
r"""
A dark token is expensive, and a frame marks a repeated fact. Most framed words are white: the model knew what comes. The computed numbers are not all white, and neither is *baked* in the second story, although Leo has promised to bake a cake.

*Predict.* There are 18 places. Whoever does not remember the place at all, and only knows the list, pays ln 18 = 2.89 nats for it. What does the
model pay, when a story ends "Then they left the lake and went home"?
"""

# %%
predict("07b.1", "a repeated place costs", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
NAMES = "girl", "boy"
rows = costs_of_facts(model, tokenizer, told)
floor = -sum(story.logprob for story in told) / len(told)
gap = sum(row["nats"] for row in rows.values()) - floor
facts = {kind: row for kind, row in rows.items() if kind and kind not in NAMES}
nothing = {kind: math.log(len(entries(kind))) for kind in facts if kind in rules()}  # all are equally likely
figures.table_facts({"this model": facts}, nothing)
print(f"together {sum(row['nats'] for row in facts.values()):.2f} of {gap:.2f} nats a story above the floor")
answer("07b.1", facts["place"]["nats"] / facts["place"]["times"])

# %% tags=["nbval-ignore-output"]
show(
    figures.facts(facts, nothing),
    alt="Nats of each repeated fact, in a story and each time; a place costs as much as a guess.",
)

# %% [markdown]
r"""
The left bars show what a story loses to each kind of fact. The right bars show what one repeat costs, and a black line is the cost of a guess. (Names are left out: they often begin a sentence, and
whether a name comes there is a choice of the grammar.) These six kinds are most of the gap.

Arithmetic is the largest single loss. But toy, place and promise together cost more, and they need no arithmetic: they only have to be remembered. A repeated place costs 2.90 nats, the
same as a guess, and it is right as often as a guess. **We find no memory of the place at all.** A promise costs as much as a guess as well, and a toy little less. The things, on the other hand, are never wrong.

Why does the model copy *shells* and not *the lake*? The first column suggests a reason. A story repeats its things four times, but only one story in five repeats its place. In the 6,400 rows that the
run has read, each of which begins with a story and runs into the next, there are 26,000 repeats of things and fewer than 1,200 of places. If this is the reason, more training must help the rare facts. The last section tries it.

## Does it know whose?

Copied numbers look perfect: nearly all are right. The obvious explanation is that the model looks up who owns what. An explanation must predict something that could turn out
otherwise. So we change the text. In stories with two owners, we exchange the two numbers and leave every other word as it is. A reader who knows whose number is asked for
names the right one again.
"""


# %%
#| export labs.evals.facts
#| blank exchange_numbers: tell the story of each seed, then again with n and m exchanged, and compare what is named
def number_named(model: torch.nn.Module, tokenizer, story: NotedStory, key: str) -> str:
    """What the model says where the story first repeats the number of this key, "n" or "m"."""
    start, end = next(
        (a, b) for a, b, part in story.repeats if isinstance(part, Count) and part.terms == ((1, key),)
    )
    tokens = read_story(model, tokenizer, story.text)
    return "".join(token.choice for token in tokens_within(tokens, start, end)).strip()


def exchange_numbers(
    model: torch.nn.Module, tokenizer, seeds: Iterable[int], key: str = "n"
) -> dict[str, float]:
    """How often a model names the right number of `key` (n is the girl's, m the boy's) in stories of two numbers.

    Shares of "texts": "before", "after" the two numbers were exchanged, in "both", and "other": after, the other person's.
    """
    count = Counter()
    for seed in seeds:
        story = noted_story(seed)
        n, m = story.facts["n"], story.facts.get("m")
        if m is None or n == m:
            continue
        exchanged = noted_story(seed, n=m, m=n)
        right, other = exchanged.facts[key], story.facts[key]
        said_before = number_named(model, tokenizer, story, key)
        said_after = number_named(model, tokenizer, exchanged, key)
        count["texts"] += 1
        count["before"] += said_before == story.facts[key][0]
        count["after"] += said_after == right[0]
        count["both"] += said_before == story.facts[key][0] and said_after == right[0]
        count["other"] += said_after == other[0]
    shares = {name: count[name] / count["texts"] for name in ("before", "after", "both", "other")}
    return {"texts": count["texts"]} | shares


# %%
story = next(story for story in told if "m" in story.facts)
swapped = {"n": story.facts["m"], "m": story.facts["n"]}
other = noted_story(told.index(story) + 1_000_000, **swapped)
for text in (story.text, other.text):
    print(text[:150], "…", end="\n\n")

# %% [markdown]
r"""
*Predict.* We ask for her number in some 200 such stories. In the stories as they are, the model is nearly always right. How often is it right after the exchange?
"""

# %%
predict("07b.2", "right after the two numbers were exchanged", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
SEEDS = range(2_000_000, 2_000_400)
for key, whose in {"n": "her number", "m": "his number"}.items():
    shares = exchange_numbers(model, tokenizer, SEEDS, key)
    print(f"{whose}, asked for in {shares['texts']} stories: {shares['before']:.0%} right")
    print(f"   exchanged: {shares['after']:.0%} right, {shares['other']:.0%} the other person's number")
answer("07b.2", 100 * exchange_numbers(model, tokenizer, SEEDS, "n")["after"])

# %% [markdown]
r"""
Her number is right in none of them. The model names the *other* person's number, for both owners, in practically every story. So it does not know whose number it names, although it "answers 98% of these questions". What does it know instead? We look into the grammar:
"""

# %%
for key, pool in {"n, hers": "many", "m, his": "few"}.items():
    print(f"{key}: {', '.join(word for (word,) in entries(pool))}")

# %% [markdown]
r"""
The girl begins with six or more things, and the boy with five or fewer. In this corpus the *word itself* says whose number it is, and nobody has to look for its owner. How far does that lead? Here is a rule that never reads who owns a number. From the words just before
the missing number it decides whether the answer is his. Then it takes the first number word of the story that is small enough, or large enough.
"""


# %%
def by_size(before: str) -> str:
    """The answer to a question, from the text before it: his is small, hers is large."""
    girls = "|".join(name for (name,) in entries("girl"))
    his = re.search(rf'\bhis $|(asked|said) ({girls})\. "I have $', before)
    pool = [word for (word,) in entries("few" if his else "many")]
    numbers = [word for word in re.findall("[a-z]+", before) if word in NUMBERS]
    return next((word for word in numbers if word in pool), numbers[0])


# %% tags=["nbval-ignore-output"]
right = []
for story in told:
    for start, end, part in story.repeats:
        if kind_of(part, story.pools) == "copied number":
            right.append(by_size(story.text[:start]) == story.text[start:end])
print(
    f"right copied numbers: the rule {sum(right) / len(right):.1%}, the model {rows['copied number']['right']:.1%}"
)

# %% [markdown]
r"""
The rule is right every time, so the model's 98% was no evidence that it knows the owners. This is called **shortcut learning** (Geirhos et al. 2020): the training data had an easier way to the answer than the one that
we had in mind, and the model took it. On this corpus the shortcut costs nothing: it is right in every story, so held-out stories cannot show the difference, however many there are. Only a text that the corpus
cannot produce can show it. Nor did the baselines of chapter 07 warn us: the bigram and the three rules know nothing of the size of a number.

What would a corpus look like that cannot be answered by size? Both owners must draw their numbers from the same words. We trained the same model on such stories, in which both have three to eight things, with three
seeds. Each run takes as long as chapter 07's, so `tests/bench/bench_learned.py` made them and the results are recorded.

*Predict.* In how many of the stories does that model name her number in both orders, before *and* after the exchange?
"""

# %%
predict("07b.3", "one pool: her number right in both orders", guess=None, unit="%")

# %%
recorded = json.loads(Path("../data/measurements/one-pool.json").read_text(encoding="utf-8"))
print(recorded["device"], recorded["date"], "both have", *recorded["pool"])
for seed, run in recorded["one pool"].items():
    hers, his = run["exchange"]["n"], run["exchange"]["m"]
    copied = run["facts"]["copied number"]["right"]
    print(
        f"seed {seed}: copied {copied:.0%}; right in both orders: hers {hers['both']:.0%}, his {his['both']:.0%}"
    )
answer(
    "07b.3",
    100
    * sum(run["exchange"]["n"]["both"] for run in recorded["one pool"].values())
    / len(recorded["one pool"]),
)

# %% [markdown]
r"""
Her number is right in both orders in every story, and his in 94% to 97%, while 97% of the copied answers are right, nearly as many as before. The same model on other stories names the right owner's number. What a
model learns depends on what its corpus makes necessary, and the exchange shows it, not the score.

But do not claim too much again. With all attention of layer 1 switched off, these models still get 97% or more of the copied answers and all of hers in both orders (the record has both numbers). In layer 0, a number is seen by its word and its position alone, without the words around it. So with one layer of attention nothing follows a number back to its owner's name. The place of the number and the few forms of the opening
sentence must then be enough; we have not tested this. This model finds the right number; that it looks for owners is, again, more than we have measured.

## How does it copy?

Before our model names a number, some head should look back at the place where that number was said. For each head, we add up its attention on earlier tokens that equal the answer:
"""


# %% tags=["nbval-ignore-output"]
looks, n = torch.zeros(config.n_layer, config.n_head), 0
for story in told[:40]:
    ids = torch.tensor([eot, *tokenizer.encode(story.text)])
    weights = figures.heads(model, ids.tolist())  # (n_layer, n_head, T, T)
    tokens = read_story(model, tokenizer, story.text)
    for start, end, part in story.repeats:
        if kind_of(part, story.pools) == "copied number":
            at = tokens.index(
                tokens_within(tokens, start, end)[0]
            )  # at this place the model says ids[at + 1]
            same = ids == ids[at + 1]
            looks += weights[:, :, at, same].sum(-1)  # later places have weight 0
            n, example = n + 1, (ids, at, weights)
for layer, row in enumerate(looks / n):
    print(f"layer {layer}:", *(f"{share:4.0%}" for share in row))

# %% tags=["nbval-ignore-output"]
layer, head = divmod(looks.argmax().item(), config.n_head)
ids, at, weights = example
row = weights[layer, head, at, : at + 1].tolist()
pieces = [(tokenizer.decode([i]), weight, False) for i, weight in zip(ids[1 : at + 1].tolist(), row[1:])]
print(f"layer {layer}, head {head}, before it says{tokenizer.decode([ids[at + 1].item()])!r}:")
show(figures.costs([pieces], label="attention", top=1.0), alt="A story; one head looks at few of its tokens.")

# %% [markdown]
r"""
Two heads of layer 0 look at the answer, head 3 with 75% of its attention and head 2 with 53%. All others look elsewhere, those of layer 1 too.

A head that looks at the answer need not be needed. Chapter 04 showed how to find out: switch the head off. A head's output reaches the rest of the model through its own columns of `c_proj`, so we set these to zero, count right answers,
and put the columns back. This is *zero ablation*. A stricter form puts the mean of the head's output over many texts in its place (*mean ablation*), so that the rest of the model sees a usual value.

*Predict.* Chapter 04's model copied with two hops, one in each layer. How many copied answers of this one are right without the two heads whose absence costs most? And without all attention in layer 1?
"""

# %%
predict("07b.4", "copied answers right without the two heads", guess=None, unit="%")
predict("07b.5", "copied answers right without layer 1", guess=None, unit="%")


# %%
@torch.no_grad()
def without(*heads: tuple[int, int]) -> dict[str, float]:
    """The shares of right numbers while these heads, each (layer, head), say nothing."""
    matrices = [block.attn.c_proj.weight for block in model.transformer.h]
    kept = [matrix.clone() for matrix in matrices]
    d = config.n_embd // config.n_head
    for layer, head in heads:
        matrices[layer][:, head * d : (head + 1) * d] = 0  # these inputs come from this head
    rows = costs_of_facts(model, tokenizer, told[:60])
    for matrix, before in zip(matrices, kept):
        matrix.copy_(before)
    return {kind: rows[kind]["right"] for kind in ("copied number", "computed number")}


def print_shares(name: str, shares: dict[str, float]) -> None:
    print(name.ljust(22), *(f"{kind} {share:4.0%}  " for kind, share in shares.items()))


# %% tags=["nbval-ignore-output"]
print_shares("all heads", without())
alone = {}
for layer in range(config.n_layer):
    for head in range(config.n_head):
        alone[layer, head] = without((layer, head))
        print_shares(f"without {layer}.{head}", alone[layer, head])

# %% tags=["nbval-ignore-output"]
two = sorted(alone, key=lambda pair: alone[pair]["copied number"])[:2]
without_two = without(*two)
without_layer = without(*((1, head) for head in range(config.n_head)))
print_shares("without " + " and ".join(f"{layer}.{head}" for layer, head in two), without_two)
print_shares("without layer 1", without_layer)
answer("07b.4", 100 * without_two["copied number"])
answer("07b.5", 100 * without_layer["copied number"])

# %% [markdown]
r"""
The two heads that look at the answer are the two whose absence costs copied answers: 59% are right without head 0.3, 86% without 0.2, and 20% without both. So the two work together, and each can do part of the other's work. Without head 0.3, computed answers clearly suffer as well: a number
must be found before it can be used.

All of layer 1 can be switched off, and every copied answer stays right. Chapter 04 needed two hops: the first fetched for each number whose it is, and the second looked for the right owner. Here one hop is enough. Size is one reason, and not the only one: the models on one pool of numbers need no second hop either. Layer 1's attention does matter for arithmetic: on these 60 stories, 52% of the computed answers become 39%.

A model that has lost a layer is not one that never had it. Does a model that is *trained* with a single layer do worse? The record has such a run, too:
"""

# %%
for kind in ("copied number", "computed number"):
    print(f"trained with one layer: {kind}, {recorded['one layer'][kind]['right']:.0%} right")

# %% [markdown]
r"""
It is as good at both. After 1,600 steps, a second layer has not helped with numbers.

## Twice as long

We had a guess about the places: they are rarely repeated, so the model has not had time. A longer run can refute it. If rarity is the reason, twice as many steps must help the rare facts, promises and places alike, since both are repeated about equally often. `bench_learned.py` has
trained the same model for 3,200 steps, which takes as long as chapter 07's run once more.

*Predict.* What does a repeated place cost after twice as many steps?
"""

# %%
predict("07b.6", "a repeated place costs, after twice the steps", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
longer = recorded["longer"]
figures.table_facts({"this model": facts, f"{longer['steps']} steps": longer["facts"]}, nothing)
place = longer["facts"]["place"]
answer("07b.6", place["nats"] / place["times"])

# %% [markdown]
r"""
After 3,200 steps toys and promises are always right, and computed answers rise from 42% to 94%: much of what looked like a limit of the model was a lack of training. Which facts a run has learned by step 1,600 is partly
chance: of the three runs with one pool, two knew the toy by then (99% and 83% right), and one did not (13%).

The place still costs a guess. So our explanation is refuted, or at least it is not all: a promise is as rare as a place, and it was learned. What else is different? Let us count how many words lie between a repeat and the last time that the fact was said.
"""

# %%
words = {}
for story in told:
    for start, _, part in story.repeats:
        kind = kind_of(part, story.pools)
        if kind in nothing:
            last = story.text.rindex(story.facts[part.key][0], 0, start)  # where the fact was said before
            words.setdefault(kind, []).append(len(story.text[last:start].split()))
for kind, between in words.items():
    print(f"{kind:8} {sum(between) / len(between):3.0f} words before its repeat")

# %% [markdown]
r"""
From the first sentence to the last, 59 words lie between a place and its repeat, three times as many as for a promise. The distance fits what we see, but it is an explanation that nobody has tried to refute yet. The first experiment below would.

What has the model learned, then? It has learned the grammar's sentences, and to find numbers by their size. It carries things through a story, and after twice the steps toys and promises as well, but never the place. It has not learned who owns a number, because
no story ever made it necessary. None of this can be read off a loss of 0.592 or a score of 98%.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("07b")

# %%
checkpoint("07b")

# %% [markdown]
r"""
## Exercises

To explore:

1. Is it the distance? Change the grammar so that places are repeated in the middle of a story (`course.other_town.retold` replaces lines for the length of a block), and train again. What would refute it?
2. Exchange the two *names* in the opening instead of the numbers, or put the boy's sentence first. Predict what the model says from what you know now; then measure it.
3. Leave `scale_init` out in chapter 07, train again and load that model here. Which facts pay for it?
4. Instead of zero, give a head's inputs to `c_proj` their mean over many texts (*mean ablation*). Which rows of the table of heads change?
5. Write `loss_by_position`: the mean held-out loss of tokens 0 to 15 of a story, 16 to 31, and so on. Why does it fall?
   Check: weighted by their numbers, the parts add up to `evaluate`.

## Further reading

- Geirhos et al. 2020, *Shortcut Learning in Deep Neural Networks*: many such cases, and tests that find them.
- Olsson et al. 2022, *In-context Learning and Induction Heads*: two-layer mechanisms of copying.
- Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?*: heads switched off one at a time.
- [safetensors](https://huggingface.co/docs/safetensors): why weights should not be pickled.
"""
