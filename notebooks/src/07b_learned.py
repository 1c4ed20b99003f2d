# %% [markdown]
r"""
# 07b · What has it learned?

Chapter 07 trained a model. It answers every question about a number that only has to be copied, and its loss ended a few per cent above the floor. It is
tempting to say that the model knows who owns what. Does it? A score cannot tell, because it does not say how the answers were found. In this chapter we take the model apart: we look at the
facts that it pays for, we change the text so that a claim about the model predicts something, and we switch parts of the model off.

Before you read on: a story begins "Ida came with her seven blue beads, and Leo came with his four. Leo liked his …". The model says *four*. What does it say if
Ida has four and Leo has seven? And how would a model answer that has only one layer?
"""

# %%
#| default_exp weights
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from course.figures import training as figures
from course.figures.stand_in import small_model
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device
from nanogpt.labs.corpora.stories import ensure_corpus, entries, rules, stories
from nanogpt.labs.evals.accuracy import rule_accuracies
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
configuration, and copy the tensors into it. `load_state_dict` needs `strict=False` because of chapter 05's tied
matrix. The file has it once, as `wte`; in the model,
`lm_head` is the same tensor under a second name.
"""


# %%
#| export
#| blank load_model: config.json without its sha256 has the fields of a GPTConfig; load_state_dict with strict=False
def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The model that save_model wrote into a folder, on the device, in evaluation mode. Nobody checks the hash yet."""
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
    """By kind of fact: "nats" a story, "times" that a story repeats it, and "right", the share of right repeats.

    A repeat is right if the model would have said each of its tokens. Nats and times are means over all stories.

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
A dark token is expensive, and a frame marks a repeated fact. Most framed words are white: the model knew what comes.

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
    alt="Nats of each repeated fact, in a story and each time, with a line at what a guess costs.",
)

# %% [markdown]
r"""
The left bars show what a story loses to each kind of fact. The right bars show what one repeat costs, and a black line is the cost of a guess. (Names are left out: they often begin a sentence, and
whether a name comes there is a choice of the grammar.) These six kinds are 1.79 of the 2.99 nats that a story costs above the floor.

Arithmetic is the largest loss: 55% of the computed numbers are right. A place is remembered. It is said in the first sentence and often again in the last, and it costs 0.14 nats instead of 2.89. Things and copied numbers cost practically nothing.

The toy is another matter. A repeat costs 1.89 nats, little less than a guess, and only 35% of them are right. Is it too hard? The record of a later section has five runs of the same model, and in each of them every toy was right at the end.
One of the five began with the very same weights and batches as this one. It was computed by one thread instead of two, so its sums were rounded in another order, and that was enough. So whether a run has found a rare fact by step 2,000 is partly chance, and your model may know another one.

## Does it know whose?

Copied numbers look perfect. The obvious explanation is that the model looks up who owns what. But an explanation must predict something that could turn out
otherwise. So we change the text. We exchange the two numbers of a story and leave every other word as it is. A reader who knows whose number is asked for
names the right one again. Whoever goes by the size of a number names the wrong one now. And whoever goes by the place, "the first number is hers", is right in half of the stories only, because either owner may come first.
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
    """How often a model names the right number of `key`, n for the girl's or m for the boy's, where the two differ.

    Seeds with n = m are left out; "texts" counts the others. Shares of them: right "before", right "after" the two
    numbers were exchanged, right in "both", and "other": after the exchange it names the other person's number.
    """
    count = Counter()
    for seed in seeds:
        story = noted_story(seed)
        n, m = story.facts["n"], story.facts["m"]
        if n == m:
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
story = told[0]
other = noted_story(1_000_000, n=story.facts["m"], m=story.facts["n"])
for text in (story.text, other.text):
    print(text[:170], "…", end="\n\n")

# %% [markdown]
r"""
*Predict.* We ask for her number in some 340 such stories. In the stories as they are, the model is always right. How often is it right after the exchange?
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
It names the right owner's number in both orders. The claim could have failed here, and it did not.

## What a shortcut looks like

Why are we so careful? Because an easy corpus makes a model look clever. In a corpus in which her number always comes first, "the first number" is as good an answer to "her …" as a search for the owner. Such a rule
is called a *shortcut* (Geirhos et al. 2020): it is right wherever the data were made in this way, and held-out text from the same source cannot show the difference. An earlier version of this course had one. The girl always had six
things or more, and the boy five or fewer. The model answered 98% of the copied questions, and after the exchange it named the other person's number in 200 of 200 stories: it had learned that *eight* is hers.

Two things guard against a shortcut. The first is to look for one. Chapter 07's search found no rule without owners that answers more than 60%. Here it is once more, on stories whose
owners have different numbers:
"""

# %% tags=["nbval-ignore-output"]
different = [story for story in stories(1000, seed=3) if story.facts["n"] != story.facts["m"]]
rules_found = rule_accuracies(stories(5000, seed=2), different)
best_rule = max(rules_found, key=rules_found.get)
print(f"{len(different)} stories: the best rule is {best_rule!r}, right in {rules_found[best_rule]:.0%}")

# %% [markdown]
r"""
The second is to train on a corpus with a shortcut and see what happens. We told the stories with one line less, so that her number always comes first, and trained three models on them.
Then we gave them the course's stories, in which his may come first. Each run takes as long as chapter 07's, so `bench/learned.py` made them, and all others of this chapter, and they are recorded.

*Predict.* Does a model that never had to read whose number it is do so all the same? How often is her number right in both orders?
"""

# %%
predict("07b.3", "trained where hers comes first: right in both orders", guess=None, unit="%")

# %%
recorded = json.loads(Path("../data/measurements/learned.json").read_text(encoding="utf-8"))
print(recorded["device"], recorded["date"])


def print_runs(name: str) -> None:
    for run in recorded["runs"][name]:
        copied = run["facts"]["copied number"]["right"]
        both = run["hers"]["both"], run["his"]["both"]
        print(
            f"{name}, seed {run['seed']}: copied {copied:.0%}; right in both orders: hers {both[0]:.0%}, his {both[1]:.0%}"
        )


print_runs("hers first")
print_runs("as in chapter 07")
answer("07b.3", 100 * recorded["runs"]["hers first"][0]["hers"]["both"])
easy = [run["copied in its own stories"] for run in recorded["runs"]["hers first"]]
print("hers first, copied numbers in stories of their own kind:", *(f"{share:.0%}" for share in easy))

# %% [markdown]
r"""
They do not. On stories of their own kind, these models look perfect. In the course's stories they name the right number in 54% to 57%, and hers happens to come first in 54% of these stories: they go by the place.
The word *her* or *his* stood in front of each number that they had to copy, but they had no reason to use it. So what a model learns depends on what its corpus makes necessary, and its score on the same corpus does not show it.
The course's own models, which saw both orders, are right in both orders in every story, with each of five seeds.

## By name or by pronoun?

"It knows the owner" can still mean two things. A number may be bound to the name, *Ida*, or to the word in front of it, *her*. In these stories both always agree, so no question of the
corpus tells them apart. We can: in the sentence that says who came with how many, we exchange *her* and *his* and nothing else. "Ida came with his seven beads, and Leo came with her four. Leo liked his …":
a reader who goes by the name says *four*, and one who goes by the pronoun says *seven*.

*Predict.* How often does the model go by the name?
"""

# %%
predict("07b.4", "goes by the name", guess=None, unit="%")


# %%
def pronouns_exchanged(story: NotedStory) -> NotedStory:
    """The story, with *her* and *his* exchanged in the sentence that says who came with how many."""
    start = story.text.index("came with")
    end = story.text.index(".", start)
    other = {"her": "his", "his": "her"}
    sentence = re.sub(r"\b(her|his)\b", lambda found: other[found[1]], story.text[start:end])
    return replace(story, text=story.text[:start] + sentence + story.text[end:])


# %% tags=["nbval-ignore-output"]
print(pronouns_exchanged(story).text[:170], "…", end="\n\n")
by = Counter()
for one in told:
    hers, his = one.facts["n"][0], one.facts["m"][0]
    if hers != his:
        said = number_named(model, tokenizer, pronouns_exchanged(one), "n")
        by["name" if said == hers else "pronoun" if said == his else "neither"] += 1
print(", ".join(f"by the {how} in {times} of {by.total()} stories" for how, times in by.items()))
answer("07b.4", 100 * by["name"] / by.total())

# %% [markdown]
r"""
Never. The model does not look up what *Ida* came with. It looks up the number behind *her*. In these stories this is a perfect answer, because there is one *her* and one *his*, and the corpus never asks for more. But the sentence "it knows who owns what" claims more than that,
and this experiment refutes it. What we can say is: the model finds the number that stood behind the same pronoun. A claim about a model is only as good as the experiment that could have refuted it.

## How does it copy?

Chapter 04's model copied with two hops, one in each layer. In the first, the position of a token looks at the token before it. In the second, the model looks for the position that has seen the same word as
the one it stands on. Here that would be: the position of *seven* fetches *her*, and later *her* finds this position. We measure both. At the place where a number was first said, how much attention does a head have on the token before? And at the place where the model has to name it again, how much on
earlier tokens that equal the answer?
"""


# %% tags=["nbval-ignore-output"]
looks, backs, n = torch.zeros(config.n_layer, config.n_head), torch.zeros(config.n_layer, config.n_head), 0
for story in told[:40]:
    ids = torch.tensor([eot, *tokenizer.encode(story.text)])
    weights = figures.heads(model, ids.tolist())  # (n_layer, n_head, T, T)
    tokens = read_story(model, tokenizer, story.text)
    for start, end, part in story.repeats:
        if kind_of(part, story.pools) == "copied number":
            at = tokens.index(tokens_within(tokens, start, end)[0])  # here the model says ids[at + 1]
            same = ids == ids[at + 1]
            first = same.nonzero()[0].item()  # where the number was said first
            looks += weights[:, :, at, same].sum(-1)  # later places have weight 0
            backs += weights[:, :, first, first - 1]
            n, example = n + 1, (ids, at, weights)
for layer in range(config.n_layer):
    print(
        f"layer {layer}: on the token before",
        *(f"{share:4.0%}" for share in backs[layer] / n),
        " on the answer",
        *(f"{share:4.0%}" for share in looks[layer] / n),
    )

# %% tags=["nbval-ignore-output"]
layer, head = divmod(looks.argmax().item(), config.n_head)
ids, at, weights = example
row = weights[layer, head, at, : at + 1].tolist()
pieces = [(tokenizer.decode([i]), weight, False) for i, weight in zip(ids[1 : at + 1].tolist(), row[1:])]
print(f"layer {layer}, head {head}, before it says{tokenizer.decode([ids[at + 1].item()])!r}:")
show(figures.costs([pieces], label="attention", top=1.0), alt="A story; one head looks at few of its tokens.")

# %% [markdown]
r"""
The two hops are visible. In layer 1, head 3 has 94% of its attention on the answer, and head 0 has 65%. No head of layer 0 looks there. Instead, two heads of layer 0 look at the token before, with 18% and 19%, where even attention would have some 4%.

A head that looks at the answer need not be needed. Chapter 04 showed how to find out: switch the head off. A head's output reaches the rest of the model through its own columns of `c_proj`, so we set these to zero, count right answers,
and put the columns back. This is *zero ablation*. A stricter form puts the mean of the head's output over many texts in its place (*mean ablation*), so that the rest of the model sees a usual value.

*Predict.* How many copied numbers are right without the head that looks at the answer most? And without all attention in layer 0, where two heads look at the token before?
"""

# %%
predict("07b.5", "copied numbers right without that head", guess=None, unit="%")
predict("07b.6", "copied numbers right without layer 0's attention", guess=None, unit="%")


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
looking = divmod(looks.argmax().item(), config.n_head)
layers = [without(*((layer, head) for head in range(config.n_head))) for layer in range(config.n_layer)]
for layer, shares in enumerate(layers):
    print_shares(f"without layer {layer}", shares)
answer("07b.5", 100 * alone[looking]["copied number"])
answer("07b.6", 100 * layers[0]["copied number"])

# %% [markdown]
r"""
Without head 1.3 alone, 46% of the copied numbers are right, fewer than with the best rule. In layer 0 no head is needed that much: the worst is to lose 0.0, and then 92% are still right. But without the whole layer 56% are left. So several heads seem to share the first hop. Computed numbers suffer most from the loss of 1.0: they are right half as often, while copied ones stay right.
So the model answers as chapter 04 said a model could, with two hops, and nobody wrote its heads by hand.

## One layer

A model that has lost a layer is not one that never had it: when it was trained, each layer could rely on the other. So we also *trained* models with a single layer, and models of two layers whose position vectors began at random. Two hops need two layers, and the first hop needs to find the token before.

*Predict.* How many of the copied numbers does a model of one layer get right?
"""

# %%
predict("07b.7", "trained with one layer: copied numbers right", guess=None, unit="%")

# %%
for name in ("one layer", "random positions", "as in chapter 07"):
    print_runs(name)
one_layer = [run["facts"]["copied number"]["right"] for run in recorded["runs"]["one layer"]]
answer("07b.7", 100 * sum(one_layer) / len(one_layer))

# %% [markdown]
r"""
A model of one layer gets 54% or 55% of them, about as many as the best rule. So the second layer is worth everything here. It can do what one layer cannot: the first hop tells each number which word stood in front of it, and the
second looks for that word. With random positions one run of three got there. The other two have the layers, but in 2,000 steps they did not learn to copy; we think that they did not find the first hop. This is why chapter 07 begins with waves.

Besides, a model of one layer pays as much for a repeated place as a guess costs. Things and promises it knows nearly as well as ours. Why it misses the place we have not found out: one hop could be enough for it.

## Twice as long

Some facts are still expensive. Is it a limit of the model, or has it not had the time? The record has a run of twice the steps.

*Predict.* How many of the computed numbers are right after 4,000 steps?
"""

# %%
predict("07b.8", "computed numbers right, after twice the steps", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
longer = recorded["runs"]["twice as long"][0]
figures.table_facts({"this model": facts, f"{longer['steps']} steps": longer["facts"]}, nothing)
answer("07b.8", 100 * longer["facts"]["computed number"]["right"])

# %% [markdown]
r"""
For arithmetic, time was missing. (The toys prove nothing here: the five recorded runs knew them after 2,000 steps.) After 4,000 steps 91% of the computed numbers are right, every toy and every promise is, and the six kinds together cost 0.36 nats instead of 1.79.

What has the model learned, then? The grammar's sentences. To carry a place, things, a promise through a story. To find the number behind a pronoun, with two hops, of which the first is found sooner if positions can be compared. It has not learned who owns a number, because
no story ever made it necessary to read the name. And none of this can be read off a loss of 0.519 or a score of 100%.

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

1. *Two girls.* Change the grammar so that both children may be girls (`course.figures.other_town.retold` replaces lines for the length of a block; use *her* for both), and train again. Now the pronoun says nothing. Does the model learn to look for the name? How many steps does it take?
2. Exchange the two *names* in the opening instead of the numbers, or put the boy's sentence first. Predict what the model says from what you know now; then measure it.
3. Leave `scale_init` out in chapter 07, train again and load that model here. Which facts pay for it?
4. Instead of zero, give a head's inputs to `c_proj` their mean over many texts (*mean ablation*). Which rows of the table of heads change?
5. Write `loss_by_position`: the mean held-out loss of tokens 0 to 15 of a story, 16 to 31, and so on. Why does it fall?
   Check: weighted by their numbers, the parts add up to `evaluate`.

## Further reading

- Geirhos et al. 2020, [*Shortcut Learning in Deep Neural Networks*](https://arxiv.org/abs/2004.07780): many such cases, and tests that find them.
- Olsson et al. 2022, [*In-context Learning and Induction Heads*](https://arxiv.org/abs/2209.11895): two-layer mechanisms of copying.
- Michel, Levy and Neubig 2019, [*Are Sixteen Heads Really Better than One?*](https://arxiv.org/abs/1905.10650): heads switched off one at a time.
- [safetensors](https://huggingface.co/docs/safetensors): why weights should not be pickled.
"""
