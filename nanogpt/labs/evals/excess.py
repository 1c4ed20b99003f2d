"""What a model pays above the floor, token by token, and for which kind of decision.

Exported from notebooks/18_evaluation.ipynb.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from nanogpt.labs.corpora.stories import (
    Count,
    Draw,
    Part,
    Pick,
    Recall,
    Text,
    alternatives,
    entries,
    words_of,
)


class Reading(NamedTuple):
    """One way to understand a text so far."""

    parts: tuple  # the parts that are still to come, each with its kind
    p: float = 1.0
    told: str = ""  # words that are decided already, beyond those that were read
    facts: dict = {}  # noqa: RUF012 (never changed)
    marks: tuple = ()  # (words, kind) of all parts so far


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


@cache
def lines(symbol: str) -> list[tuple]:
    """A symbol's alternatives, each part with its kind."""
    return [tuple((part, kind_of(part, symbol)) for part in line) for line in alternatives(symbol)]


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


def next_words(readings: Iterable[Reading]) -> dict[str, list[Reading]]:
    """The words that can come next, each up to its next space, and how a reader who has heard it reads on."""
    found: dict[str, list[Reading]] = {}
    for further in (further for reading in readings for further in told_on(reading)):
        end = further.told.find(" ", 1)
        end = len(further.told) if end < 0 else end
        found.setdefault(further.told[:end], []).append(further._replace(told=further.told[end:]))
    return found


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

    def by_kind(self, nats: np.ndarray) -> dict[str, float]:
        """The sum of some nats, one for each id but the first, of each kind, per story: the parts of their sum."""
        return dict(zip(KINDS, (np.bincount(self.kinds, nats, len(KINDS)) / self.stories).tolist()))

    def excess(self, nats: np.ndarray) -> dict[str, float]:
        """What a model pays above the floor, by kind, in nats per story. nats: its losses (`token_losses`)."""
        return self.by_kind(nats - self.nats)
