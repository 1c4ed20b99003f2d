"""What a model pays for the facts that a story repeats, and whose numbers it names.

Exported from notebooks/07b_learned.ipynb.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F

from nanogpt.evaluate import evaluating
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
from nanogpt.labs.evals.accuracy import first_choice


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
