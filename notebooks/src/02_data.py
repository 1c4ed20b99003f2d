# %% [markdown]
r"""
# 02 · Data: text with a known floor, shards, batches

Is a loss of 1.3 good? On text from the web nobody knows, because nobody knows how surprising that text is. So this
course trains on a text of which we do know: small stories drawn from a grammar by known choices. A story's
probability is the product of theirs, and no model can be surprised less than that, on average. The first half
of this chapter writes the grammar and works out this *floor*. The second half turns any text, this one or ten billion
tokens from the web, into files that a training loop can read.

A table of which word follows which would do well on a grammar alone. So these stories have facts: who is there, what
they hold, how many, what was promised. Each is chosen once and decides words far behind it.
"""

# %%
#| default_exp corpus
import bz2
import contextlib
import statistics
import tempfile
import time
from unittest import mock

import matplotlib.pyplot as plt

from course.notebook import checkpoint, show
from nanogpt.tokenizer import BPETokenizer

# %%
#| export
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

# %% [markdown]
r"""
## Facts

A fact is drawn from a *pool*, every entry equally likely. An entry may have two forms: whoever promised to "light the lamp" has later "lit the lamp".
"""

# %%
#| export
NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
]
POOLS = {  # entries are separated by commas, an entry's forms by slashes
    "girl": "Anna, Clara, Ella, Emma, Ida, Julia, Lucy, Mia, Nora, Rosa, Sara, Zoe",
    "boy": "Ben, Carl, Dan, Finn, Hugo, Jack, Leo, Max, Noah, Otto, Sam, Tom",
    "things": "apples, beads, buttons, candles, cards, coins, cookies, feathers, flowers, lemons, marbles, nuts, "
    "pears, plums, shells, stones",
    "place": "bakery, barn, beach, castle, farm, forest, garden, harbor, hill, lake, library, market, meadow, "
    "mill, park, river, school, station",
    "toy": "ball, clock, drum, flute, kite, whistle",
    "promise": "bake a cake/baked a cake, clean the boat/cleaned the boat, close the gate/closed the gate, feed "
    "the hens/fed the hens, light the lamp/lit the lamp, mend the fence/mended the fence, paint the "
    "door/painted the door, sing a song/sang a song, sweep the floor/swept the floor, tell a joke/told a joke",
    "many": "six, seven, eight, nine, ten, eleven",
    "few": "two, three, four, five",
    "some": "one, two",
}

# %% [markdown]
r"""
## A grammar

A *symbol* in braces stands for any of its alternatives, all equally likely. `{A:girl}` draws a fact and says it;
`{A}` recalls it; `{n-k}` is arithmetic on two facts, with `?` where it tells who has how many. A story is one of
seven rows of sentences:
"""

# %%
#| export
PLOTS = """
story
  {open} {both} {proud} {aside} {tell_both} {give} {thanks} {gave} {close}
  {open} {one} {proud} {aside} {tell} {more} {now_more} {close}
  {open} {one} {proud} {tell} {aside} {bad} {feel} {now_less} {close}
  {open} {both} {proud} {vow} {tell_both} {kept} {gave} {close}
  {open} {one} {proud} {wish} {aside} {tell} {deal} {traded} {close}
  {open} {both} {proud} {aside} {tell_both} {feel} {together} {close}
  {open} {hid} {aside} {seek} {found} {feel} {close}
open
  One {weather} {day}, {A:girl} went to the {P:place} with {B:boy}.
  On a {weather} {day}, {A:girl} met {B:boy} at the {P:place}.
  {A:girl} and {B:boy} walked to the {P:place} on a {weather} {day}.
  It was a {weather} {day} at the {P:place}. {A:girl} was there with {B:boy}.
close
  "What a {good} {day}," said {A}.
  Then they left the {P} and went home.
  {A} and {B} stayed there until {late}.
  They played {where} until {late}.
  {A} ate some {food} and {B} had {food}.
"""

# %% [markdown]
r"""
Sentences that say who has how many. They repeat themselves, as children's stories do.
"""

# %%
#| export
COUNTS = """
both
  {A} had {n:many} {color} {T:things}, and {B} had {m:few}.
  {A} brought {n:many} {color} {T:things}, but {B} brought only {m:few}.
  {B} had {m:few} {color} {T:things}. {A} had {n:many}.
one
  {A} had {n:many} {color} {T:things} in her {bag}.
  {A} carried {n:many} {color} {T:things} in a {bag}.
  In her {bag}, {A} had {n:many} {color} {T:things}.
proud
  {A} was proud of her {?n} {T}.
  {A} loved her {?n} {T}.
  "Look at my {?n} {T}," said {A}.
tell
  "How many {T} do you have?" asked {B}. "I have {?n} {T}," said {A}.
  {A} showed {B} her {?n} {T}.
  "I have {?n} {T}," said {A}.
tell_both
  "I have {?n} {T}," said {A}. "I have {?m} {T}," said {B}.
  "How many {T} do you have?" asked {A}. "I have {?m} {T}," said {B}.
  {A} counted her {?n} {T} and {B} counted his {?m} {T}.
"""

# %% [markdown]
r"""
Sentences that change it. If she had `{n:many}` and gives `{k:some}` away, she has `{n-k}` left. The pools are chosen so
that this is never less than two, for then English would want a singular.
"""

# %%
#| export
CHANGES = """
give
  {A} {handed} {k:some} of them to {B}.
  {B} asked for some, so {A} {handed} {B} {k:some}.
gave
  Now {A} had {?n-k} {T} and {B} had {?m+k} {T}.
  So {B} had {?m+k} {T} and {A} had {?n-k} {T}.
  "Now I have {?n-k} {T}," said {A}. "Now I have {?m+k} {T}," said {B}.
more
  {Where}, {A} found {k:some} more.
  Then {A} found {k:some} more {where}.
now_more
  "How many {T} do you have now?" asked {B}. "Now I have {?n+k} {T}," said {A}.
  So {A} had {?n+k} {T} in the end.
bad
  But {k:some} of them fell into the {hole}.
  A {look} {animal} ran off with {k:some} of them.
now_less
  "How many {T} are left?" asked {B}. "Now I have {?n-k} {T}," said {A}.
  So {A} had only {?n-k} {T} left.
together
  Together they had {?n+m} {T}.
  They put the {T} together and counted {?n+m} {T}.
"""

# %% [markdown]
r"""
Sentences about what was promised, who holds what, and what was hidden:
"""

# %%
#| export
DEEDS = """
vow
  "I will {V:promise}," said {B}. "I promise."
  {B} promised to {V:promise}.
kept
  {B} kept his promise and {V.did}, so {A} {handed} {B} {k:some} of the {T}.
  Later {B} {V.did}. To thank him, {A} {handed} {B} {k:some} of the {T}.
wish
  {B} had a {color} {O:toy}. {A} wanted the {O}.
  "I have a {color} {O:toy}," said {B}. {A} wanted the {O}.
deal
  {A} {handed} {B} {k:some} of the {T} for the {O}.
  So {B} sold the {O} to {A} for {k:some} of the {T}.
traded
  Now {A} had the {O} and {?n-k} {T}.
  The {O} was hers now, and {A} still had {?n-k} {T}.
hid
  {A} hid {n:many} {color} {T:things} in a {box}.
  {A} put {n:many} {color} {T:things} into a {box} and closed it.
seek
  {B} looked {where}, and then {where}.
  "Are the {T} {where}?" asked {B}. "No, look {where}," said {A}.
found
  There {B} found {?n} {T}.
  "How many {T} are there?" asked {A}. "There are {?n} {T}," said {B}.
"""

# %% [markdown]
r"""
Animals, moods and thanks decide nothing later. They make the stories differ, and nobody can predict them.
"""

# %%
#| export
DETAILS = """
aside
  A {look} {animal} {acted} {where}.
  {Where}, a {look} {animal} {acted}.
  "Look, a {look} {animal}," said {B}. It {acted} {where}.
  {A} was {mood}, and {B} was {mood}.
  {B} talked about a {look} {animal}. That made {A} {mood}.
feel
  {A} was {mood}.
  She felt {mood}.
  "I am {mood}," said {A}.
  "You look {mood}," said {B}.
thanks
  "Thank you, {A}," said {B}.
  "How {good} of you," said {B}.
  He was {mood}.
  That made him {mood}.
"""

# %% [markdown]
r"""
A symbol whose alternatives are single words takes one line.
"""

# %%
#| export
WORDS = """
where
  {near} the {spot}
Where
  {Near} the {spot}
near: behind beside by near under
Near: Behind Beside By Near Under
spot: bench bridge bush door fence house path rock tree tower wall window
look: big brave clever fat funny huge little lazy lovely old pretty silly small strange thin tiny wild young
animal: bear bird cat cow deer dog dragon duck fox frog goat horse mouse owl pig rabbit sheep wolf
acted: danced ate hid jumped played rested sat sang slept waited
mood: angry bored calm cheerful curious glad happy hungry lonely merry proud sad shy sleepy tired worried
color: black blue brown gold green grey pink purple red silver white yellow
weather: bright calm cloudy cold dark foggy hot quiet rainy snowy stormy sunny warm windy
day: afternoon day evening morning night Sunday
good: good kind nice sweet
handed: gave handed passed
bag: bag basket box bucket hat jar pocket sack
box: bottle bowl box bucket chest cup drawer jar
hole: fire grass mud pond sea snow water well
late: dark dinner five midnight noon six
food: bread cake cheese corn fish honey jam milk pie porridge rice soup
"""


# %% [markdown]
r"""
That is written for people. A program wants a dictionary:
"""


# %%
#| export
@cache
def grammar() -> dict[str, list[str]]:
    """Symbol → its alternatives: the indented lines below it, or the words that stand behind its colon."""
    rules, symbol = {}, ""
    for line in (PLOTS + COUNTS + CHANGES + DEEDS + DETAILS + WORDS).split("\n"):
        if line.startswith("  "):
            rules[symbol].append(line.strip())
        elif line:
            symbol, _, words = line.partition(":")
            rules[symbol] = words.split()
    return rules


# %%
print(f"{len(grammar())} symbols; three of them:")
for symbol in ("gave", "feel", "handed"):
    print(f"{symbol}: {' | '.join(grammar()[symbol])}")

# %% [markdown]
r"""
## Telling a story

First the templates are cut into parts. The question mark changes no text; chapter 06 asks how often a model gets
just these words right.
"""


# %%
#| export
@cache
def alternatives(symbol: str) -> list[list[tuple]]:
    """A symbol's templates, each cut into parts.

    A part is ("text", words), ("pick", symbol), ("draw", key, pool), ("recall", key, form) or
    ("count", terms, asked): a sum of signed facts, and whether it answers who has how many.
    """
    cut = []
    for template in grammar()[symbol]:
        pieces = re.split(r"[{}]", template)
        cut.append([_part(piece) if i % 2 else ("text", piece) for i, piece in enumerate(pieces) if piece])
    return cut


def _part(inside: str) -> tuple:
    key, colon, pool = inside.partition(":")
    if colon:
        return "draw", key, pool
    if inside in grammar():
        return "pick", inside
    if inside[0].isupper():
        return "recall", inside[0], 1 if inside.endswith(".did") else 0
    terms = [(-1 if sign == "-" else 1, key) for sign, key in re.findall(r"([+-]?)(\w)", inside)]
    return "count", terms, inside[0] == "?"


# %%
for part in alternatives("gave")[1]:
    print(part)


# %%
#| export
@cache
def entries(pool: str) -> list[tuple[str, ...]]:
    """What a fact of this pool can be, in all its forms; the first is the one that is drawn."""
    return [tuple(entry.split("/")) for entry in POOLS[pool].split(", ")]


def count(terms: list[tuple[int, str]], facts: dict) -> str:
    """The number word for a sum of signed facts."""
    return NUMBERS[sum(sign * NUMBERS.index(facts[key][0]) for sign, key in terms)]


# %%
print(len(entries("promise")), "promises, of which the first is", entries("promise")[0])
print("six less two:", count([(1, "n"), (-1, "k")], {"n": ("six",), "k": ("two",)}))

# %% [markdown]
r"""
Telling is one walk through the parts. Every choice among *k* possibilities costs log *k* nats, and the story's
log-probability is minus their sum. Two facts of one pool differ, so a second draw has fewer possibilities.
"""


# %%
#| export
def tell(symbol: str, rng: random.Random, facts: dict, out: list[str], answers: list[int]) -> float:
    """Appends one random expansion of symbol to out, and where in out answers stand; returns its log-probability."""
    choices = alternatives(symbol)
    logprob = -math.log(len(choices))
    for kind, what, *more in choices[int(rng.random() * len(choices))]:
        if kind == "pick":
            logprob += tell(what, rng, facts, out, answers)
        elif kind == "draw":
            taken = facts.setdefault(more[0], [])
            free = [entry for entry in entries(more[0]) if entry not in taken]
            facts[what] = free[int(rng.random() * len(free))]
            taken.append(facts[what])
            logprob -= math.log(len(free))
            out.append(facts[what][0])
        elif kind == "recall":
            out.append(facts[what][more[0]])
        elif kind == "count":
            answers += [len(out)] if more[0] else []
            out.append(count(what, facts))
        else:
            out.append(what)
    return logprob


# %%
out, facts = [], {}
logprob = tell("story", random.Random(3), facts, out, [])
print("".join(out))
print(
    f"\nlog-probability {logprob:.3f} nats; facts: {', '.join(f'{key} = {facts[key][0]}' for key in facts if len(key) == 1)}"
)


# %% [markdown]
r"""
`stories` tells as many as one likes from one seeded generator: the first thousand are the same whether a thousand or a
million are asked for.
"""


# %%
#| export
@dataclass(frozen=True)
class Story:
    """A text, the natural logarithm of its probability, and where its who-has-how-many answers stand.

    For each (start, end) in answers, text[start:end] is a number word that follows from what was said before.
    """

    text: str
    logprob: float
    answers: tuple[tuple[int, int], ...]


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng, told = random.Random(seed), 0
    while n is None or told < n:
        out, answers = [], []
        logprob = tell("story", rng, {}, out, answers)
        starts = [sum(map(len, out[:i])) for i in answers]
        spans = tuple((start, start + len(out[i])) for start, i in zip(starts, answers))
        yield Story("".join(out), logprob, spans)
        told += 1


# %%
for story in stories(3, seed=1):
    print(story.text, [story.text[start:end] for start, end in story.answers], "\n")

# %% [markdown]
r"""
## Reading the choices back

Is that the log-probability of the *text*? Only if no other choices lead to the same text, for their probability
would have to be added. So read stories backwards, from the text to the choices, trying every alternative at every
place. The reader is the teller turned around; it carries the facts that it has read so far.
"""


# %%
def read(symbol: str, text: str, at: int, facts: dict):
    """Every way to read symbol at text[at:], as (end, facts, choices); a choice is (where, out of how many)."""
    for parts in alternatives(symbol):
        for end, known, choices in read_parts(parts, text, at, facts):
            yield end, known, [(at, len(alternatives(symbol))), *choices]


def read_parts(parts: list, text: str, at: int, facts: dict):
    """The same for the parts of one template: the first part, then the rest."""
    if not parts:
        yield at, facts, []
    for end, known, first in read_part(*parts[0], text=text, at=at, facts=facts) if parts else ():
        for stop, all_known, rest in read_parts(parts[1:], text, end, known):
            yield stop, all_known, first + rest


def read_part(kind: str, what, *more, text: str, at: int, facts: dict):
    """The same for one part. Only "pick" and "draw" choose; the rest must be what the facts say."""
    if kind == "pick":
        yield from read(what, text, at, facts)
    elif kind == "draw":
        taken = facts.get(more[0], [])
        free = [entry for entry in entries(more[0]) if entry not in taken]
        for entry in free:
            if text.startswith(entry[0], at):
                yield at + len(entry[0]), facts | {what: entry, more[0]: [*taken, entry]}, [(at, len(free))]
    else:
        said = what if kind == "text" else facts[what][more[0]] if kind == "recall" else count(what, facts)
        if text.startswith(said, at):
            yield at + len(said), facts, []


# %%
story = next(stories(1, seed=3))
for end, _, choices in read("story", story.text, 0, {}):
    print(
        f"one way to read all {end} of {len(story.text)} characters, by {len(choices)} choices, each out of:"
    )
    print(*(options for _, options in choices))
    print(f"log-probability of these choices {-sum(math.log(options) for _, options in choices):.3f}")
print(f"log-probability as told          {story.logprob:.3f}")

# %% [markdown]
r"""
*Check.* One way each, which has the probability stated and leaves nothing unread. The reader never stops early
either: what begins a story is not a story yet. So its end costs nothing, for whoever knows the grammar sees it coming.
"""

# %%
for story in stories(500, seed=4):
    ((end, _, choices),) = read("story", story.text, 0, {})
    assert end == len(story.text)
    assert math.isclose(story.logprob, -sum(math.log(options) for _, options in choices), abs_tol=1e-9)
print("500 stories, one reading each")

# %% [markdown]
r"""
Now it is visible where a perfect reader is surprised. The darker a word, the more nats its choice costs; on white
there is no choice left. Framed: the answers to who has how many.
"""


# %%
def draw_surprise(ax, story: Story, width: int = 74) -> None:
    """The story's words, shaded by the nats of the choices that are made where they begin."""
    ((_, _, choices),) = read("story", story.text, 0, {})
    x = y = 0
    for word in re.finditer(r"\S+", story.text):
        start, end = word.span()
        x, y = (0, y - 1) if x + end - start > width else (x, y)
        nats = sum(math.log(options) for at, options in choices if start <= at < end)
        answer = any(start <= a < end for a, _ in story.answers)
        ax.text(
            *(x, y, word.group()),
            fontfamily="monospace",
            fontsize=8.5,
            color="white" if nats > 2.4 else "black",
            bbox={
                "facecolor": plt.cm.Blues(min(1, nats / 4.5)),
                "edgecolor": "crimson" if answer else "none",
                "pad": 1.6,
            },
        )
        x += end - start + 1
    ax.set(xlim=(0, width), ylim=(y - 0.6, 0.9))
    ax.axis("off")


# %%
fig, axes = plt.subplots(2, figsize=(7, 3.1), layout="constrained")
for ax, story in zip(axes, stories(2, seed=5)):
    draw_surprise(ax, story)
fig.colorbar(
    plt.cm.ScalarMappable(plt.Normalize(0, 4.5), "Blues"), ax=axes, label="nats", aspect=40, fraction=0.03
)
show(
    fig,
    alt="Two stories with every word shaded by how many nats its choice costs; repeated names and counts cost none.",
)

# %% [markdown]
r"""
## The entropy, without a sample

*Predict.* How many bytes does a story need at least, if teller and reader share the grammar? How many does a good
general compressor need, which knows only what it has seen?

The mean of −log p over all stories is their entropy, and the grammar gives it exactly. A template costs the sum of its
parts; a symbol costs log *k* for the choice among its alternatives, and then what they cost on average. Only draws
remember anything: how many of their pool are gone.
"""


# %%
#| export
def entropy(symbol: str = "story") -> float:
    """Mean of -logprob over all expansions of symbol, in nats, exact (Cover & Thomas 2006, theorem 2.5.1)."""
    return _entropy(symbol, Counter())[0]


def _entropy(symbol: str, drawn: Counter) -> tuple[float, Counter]:
    """The entropy, after so many draws from each pool, and the draws after it: the same for every alternative."""
    choices = alternatives(symbol)
    total = math.log(len(choices))
    for parts in choices:
        now = drawn.copy()
        for kind, what, *more in parts:
            if kind == "pick":
                inner, now = _entropy(what, now)
                total += inner / len(choices)
            elif kind == "draw":
                total += math.log(len(entries(more[0])) - now[more[0]]) / len(choices)
                now[more[0]] += 1
    return total, now


# %%
sample = list(stories(20_000, seed=6))
costs = [-story.logprob for story in sample]
mean, error = statistics.fmean(costs), statistics.stdev(costs) / math.sqrt(len(costs))
text = "\n".join(story.text for story in sample).encode()
print(f"entropy from the grammar {entropy():.3f} nats a story")
print(f"mean over 20,000 stories {mean:.3f} ± {error:.3f}")
print(
    f"\nbytes a story: {len(text) / len(sample):.0f} as text, {len(bz2.compress(text)) / len(sample):.0f} by bz2,",
    end=" ",
)
print(f"{entropy() / math.log(256):.1f} at least")
assert abs(mean - entropy()) < 2 * error

# %% [markdown]
r"""
## The floor, in nats per token

A model reports its mean loss per *token*. A tokenizer turns a text into ids in one way only, so the ids have the
text's probability, and the floor is the stories' −log p over their number of tokens. One more token counts: the
`<|endoftext|>` between stories. It costs nothing, but it is predicted and averaged like any other.
"""


# %%
#| export
def floor_per_token(stories: Iterable[Story], tokenizer) -> float:
    """The mean loss, in nats per token, of a model that knows the grammar, on these stories.

    Each story counts its tokens and one `<|endoftext|>`, which costs nothing, since a story shows where it ends.
    tokenizer: anything with .encode(text). ValueError without stories.
    """
    nats = tokens = 0
    for story in stories:
        nats -= story.logprob
        tokens += len(tokenizer.encode(story.text)) + 1
    if not tokens:
        raise ValueError("a floor per token needs at least one story")
    return nats / tokens


# %%
class Bytes:
    """The tokenizer that does nothing: one token a byte."""

    encode = staticmethod(str.encode)


held_out = sample[:1000]
for name, coder in [
    ("bytes", Bytes()),
    ("BPE, 512", BPETokenizer.train((story.text for story in stories(2000)), 512)),
    ("BPE, 1,024", BPETokenizer.train((story.text for story in stories(2000)), 1024)),
]:
    nats, tokens = floor_per_token(held_out, coder), sum(len(coder.encode(s.text)) + 1 for s in held_out)
    print(
        f"{name:10}  {tokens / 1000:5.1f} tokens a story × {nats:.3f} nats a token = {nats * tokens / 1000:.2f} nats a story"
    )

# %% [markdown]
r"""
The same stories, the same nats, three floors: a loss per token says nothing without its tokenizer.

## When can a model reach it?

It gets close when three things hold.

1. *It has learned the grammar*: which sentences follow, which words are equally likely. Every imperfect probability
   costs a little.
2. *It sees the facts.* A row of a batch is cut from the stream where it falls. Its first tokens belong to a story whose
   names and counts are out of sight, and no model can know those.
3. *It is measured on enough.* A lucky set of stories is less surprising than the entropy says. So the floor is always
   that of the very stories the loss was measured on, not the grammar's mean.

How much does the second point matter? For a row of *T* tokens cut at random, the share of tokens whose story
begins before the row:
"""

# %%
lengths = [len(coder.encode(story.text)) + 1 for story in held_out]
print(f"a story has {min(lengths)} to {max(lengths)} tokens, {statistics.fmean(lengths):.0f} on average")
for T in (32, 64, 128, 256, 1024):
    unseen = sum(min(offset, T) / T for n in lengths for offset in range(n)) / sum(lengths)
    print(f"T = {T:4}: {unseen:4.0%}")

# %% [markdown]
r"""
In training, such tokens teach little. An evaluation that is compared with the floor cannot afford them: chapter 06
measures document by document.

On text that people wrote, nobody knows the floor. Shannon had people guess letters, and concluded between
0.6 and 1.3 bits a letter for printed English (*Prediction and Entropy of Printed English*, 1951, table I and fig. 4).

## Shards: ids on disk

A training loop reads ids, not text. Tokenizing is slow, so it is done once, and the ids are kept in llm.c's format: a
header of 256 int32, then the ids. No lengths, no index: a document begins where `<|endoftext|>` stands, which is
*before* each one, the first included.

*Predict.* FineWeb-Edu's sample has ten billion tokens. How many gigabytes is that with two bytes an id? With the
eight that torch wants for an index?
"""

# %%
#| export data
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanogpt.corpus import entropy, floor_per_token, stories
from nanogpt.files import atomically, save_json
from nanogpt.tokenizer import BPETokenizer

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")

# %%
largest = {"uint16": 2**16 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}
for name, most in largest.items():
    print(f"{name:6} {10e9 * np.dtype(name).itemsize / 1e9:3.0f} GB, ids up to {most:,}")

# %% [markdown]
r"""
GPT-2 has 50,257 ids, so two bytes do. A file that takes minutes to write must never be there by half: `atomically` is
chapter 01's.
"""


# %%
#| export data
def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


def write_shard(path: str | os.PathLike, tokens: Iterable[int]) -> None:
    """Write token ids as a shard in llm.c's format, atomically. ValueError if they do not fit into uint16."""
    tokens = np.asarray(tokens)
    header = shard_header(tokens.size)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > 65535:
        raise ValueError(f"{path}: a shard takes one row of ids from 0 to 65,535 (uint16)")
    with atomically(path) as file:
        file.write(header + tokens.astype("<u2").tobytes())


# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # for what is only tried out here
folder, left_by_01 = Path(scratch.name), Path("../data/built/tokenizer.json")
documents = [story.text for story in stories(5000)]
tokenizer = BPETokenizer.load(left_by_01) if left_by_01.exists() else BPETokenizer.train(documents, 1024)
ids = [i for text in documents[:3] for i in (tokenizer.eot, *tokenizer.encode(text))]
write_shard(folder / "three.bin", ids)
raw = (folder / "three.bin").read_bytes()
print(f"{len(ids)} tokens, {len(raw):,} bytes = 1,024 + 2 · {len(ids)}; <|endoftext|> is {tokenizer.eot}")

# %% tags=["hide-input"]
fields = [("magic", raw[:4]), ("version", raw[4:8]), ("tokens", raw[8:12]), ("zeros", raw[12:16]), ("", b"")]
fields += [(tokenizer.decode([i]), raw[1024 + 2 * n : 1026 + 2 * n]) for n, i in enumerate(ids[:6])]
fig, ax = plt.subplots(figsize=(7, 1.2))
x = 0
for n, (label, content) in enumerate(fields):
    width = 1.4 * len(content) or 1.4
    ax.add_patch(
        plt.Rectangle((x, 0), width, 1, facecolor=["#cfe2f3", "#d9ead3"][n % 2] if content else "white")
    )
    ax.text(
        x + width / 2, 0.5, content.hex(" ") or "…", ha="center", va="center", family="monospace", fontsize=7
    )
    ax.text(
        x + width / 2, -0.4 - 0.4 * (n % 2), label.replace(" ", "·"), ha="center", va="center", fontsize=8
    )
    x += width
ax.set(xlim=(0, x), ylim=(-1, 1))
ax.axis("off")
show(
    fig,
    alt="The first bytes of a shard: magic, version, number of tokens, zeros up to byte 1024, then two bytes for each id",
)

# %% [markdown]
r"""
The bytes are little-endian: the magic number reads backwards, and in decimal it is a date, 2024-05-20. Reading is a
*memory map*: the file appears as an array, and the operating system fetches the pages that are touched. So opening
costs the same for a kilobyte and for twenty gigabytes. Checked at once is what costs nothing: magic, version, and
that header and file agree on the length.
"""


# %%
#| export data
def read_shard(path: str | os.PathLike) -> np.ndarray:
    """The tokens of a shard: a read-only uint16 memory map, of which nothing is read until it is used.

    ValueError if the file is not in llm.c's format, or not as long as its header says.
    """
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
        there = (file.seek(0, os.SEEK_END) - HEADER_BYTES) / 2
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    if n < 1 or there != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {there:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


# %%
print(tokenizer.decode(read_shard(folder / "three.bin")[:40]))
for name, content in [("cut.bin", raw[:-7]), ("photo.bin", b"\x89PNG" + raw[4:])]:
    (folder / name).write_bytes(content)
    try:
        read_shard(folder / name)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %%
write_shard(folder / "large.bin", np.zeros(50_000_000, np.uint16))  # 100 MB
start = time.perf_counter()
tokens = read_shard(folder / "large.bin")
opened = time.perf_counter()
some = tokens[30_000_000 : 30_000_000 + 8192].sum()
touched = time.perf_counter()
whole = np.fromfile(folder / "large.bin", "<u2")
print(f"open {(opened - start) * 1e6:.0f} µs, use 8,192 tokens {(touched - opened) * 1e6:.0f} µs, ")
print(f"read the whole file instead {(time.perf_counter() - touched) * 1e3:.0f} ms")
(folder / "large.bin").unlink()

# %% [markdown]
r"""
A flipped bit passes: the length is right and the id valid. And ids do not say which tokenizer made them. So a folder
of shards has a `manifest.json` with each file's SHA-256 and the tokenizer's fingerprint, and training opens shards
through it.
"""


# %%
#| export data
def file_sha256(path: str | os.PathLike) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(tokenizer: BPETokenizer) -> dict:
    """What a manifest says of the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


# %%
#| export data
def load_manifest(folder: str | os.PathLike) -> dict:
    """What folder/manifest.json says. FileNotFoundError or ValueError, in one sentence, if it cannot."""
    path = Path(folder) / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; `python -m nanogpt prepare` writes it")
    try:
        manifest = json.loads(path.read_bytes())
        if {"source", "fingerprint", "vocab_size", "eot", "splits"} <= manifest.keys():
            return manifest
    except (ValueError, AttributeError):
        pass
    raise ValueError(f"{path} is damaged; delete {folder} and prepare the data again")


# %%
#| export data
def open_shards(folder: str | os.PathLike, split: str, fingerprint: str | None = None) -> list[Path]:
    """The paths of a split's shards, after comparing all their bytes with the manifest beside them.

    fingerprint: the tokenizer's; ValueError if the shards were made with another.
    """
    manifest, folder = load_manifest(folder), Path(folder)
    if fingerprint not in (None, manifest["fingerprint"]):
        made, asked = manifest["fingerprint"][:8], fingerprint[:8]
        raise ValueError(f"{folder} was made with tokenizer {made}, not {asked}; prepare it again")
    shards = manifest["splits"].get(split, {}).get("shards")
    if not shards:
        raise ValueError(f"{folder} has no tokens in a split named {split!r}")
    for shard in shards:
        path = folder / shard["file"]
        if len(read_shard(path)) != shard["tokens"] or file_sha256(path) != shard["sha256"]:
            raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")
    return [folder / shard["file"] for shard in shards]


# %%
path = folder / "small" / "val_000000.bin"
write_shard(path, ids)
held = {"tokens": len(ids), "shards": [{"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}]}
save_json(path.parent / "manifest.json", {"source": "", **identity(tokenizer), "splits": {"val": held}})
print([shard.name for shard in open_shards(path.parent, "val", tokenizer.fingerprint)])
path.write_bytes(raw[:1100] + bytes([raw[1100] ^ 1]) + raw[1101:])  # one bit
for split, fingerprint in (("val", "0123456789"), ("train", None), ("val", None)):
    try:
        open_shards(path.parent, split, fingerprint)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
## Train, validation, test: ask the document

Validation losses can be compared over months only if the validation text stays the same. Shuffle and take the last
tenth, and every document added changes the split: what was validation yesterday is trained on today. So nothing
decides but the document itself: its SHA-256, read as a number between 0 and 1.
"""


# %%
#| export data
def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions."""
    u = int.from_bytes(sha256[:8], "big") / 2**64
    return "val" if u < val else "test" if u < val + test else "train"


# %%
def by_hash(texts: list[str]) -> set[str]:
    return {t for t in texts if split_of(hashlib.sha256(t.encode()).digest(), 0.1, 0.1) == "val"}


def by_shuffling(texts: list[str]) -> set[str]:
    return set(np.random.default_rng(0).permutation(texts)[: len(texts) // 10])


for split in (by_shuffling, by_hash):
    yesterday, today = split(documents[:4000]), split(documents)
    moved = len(yesterday - today)
    print(
        f"{split.__name__:12} {len(yesterday)} val documents of 4,000; with 1,000 more, {moved} of them are trained on"
    )

# %% [markdown]
r"""
Equal documents fall on the same side, so an exact duplicate cannot leak. One that differs in a single space can
(Lee et al. 2022, §4).

## Batches

A batch is x, `B` rows of `T` tokens, and y, the same rows one token later. With several processes, *ranks*, each
reads a different part. Often a loader is written like this: the shards are read one after another, each rank begins at
its own offset, and everybody advances by what all ranks read together.

*Find the bug.* It shows only with more than one shard and more than one rank.
"""


# %%
class Loader:
    """x of each step, as a range of token numbers. Two shards, B * T tokens a step for each rank."""

    def __init__(self, shards: list[range], BT: int, rank: int, world_size: int):
        self.shards, self.BT, self.rank, self.world_size = shards, BT, rank, world_size
        self.shard, self.position = 0, BT * rank

    def next_batch(self) -> range:
        tokens = self.shards[self.shard][self.position : self.position + self.BT]
        self.position += self.BT * self.world_size
        if self.position + self.BT * self.world_size + 1 > len(self.shards[self.shard]):  # no room for a step
            self.shard = (self.shard + 1) % len(self.shards)
            self.position = self.BT * self.rank
        return tokens


# %%
shards = [range(0, 43), range(43, 80)]
loaders = [Loader(shards, 4, rank, 2) for rank in range(2)]
reads = [[loader.next_batch() for loader in loaders] for _ in range(9)]


# %% tags=["hide-input"]
def draw(reads, seams, title):
    """One row a step; what each rank reads of the corpus, in its colour."""
    fig, ax = plt.subplots(figsize=(6.8, 2.4))
    for step, ranks in enumerate(reads):
        for rank, tokens in enumerate(ranks):
            ax.scatter(
                list(tokens),
                [step] * len(tokens),
                marker="s",
                s=14,
                color=f"C{rank}",
                label=f"rank {rank}" if step == 0 else None,
            )
    for seam in seams:
        ax.axvline(seam - 0.5, color="black", linewidth=0.8)
    ax.set(xlabel="token of the corpus; lines: where a shard begins", ylabel="step", title=title)
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


show(
    draw(reads, [43], "a loader with a bug"),
    alt="Rank 0 reads the first shard one step longer than rank 1; afterwards they are never side by side again, and the last tokens of both shards are not read",
)

# %%
times = np.zeros(80, int)
for ranks in reads[:9]:
    for tokens in ranks:
        times[list(tokens)] += 1
first_wrong = next(step for step, (a, b) in enumerate(reads) if b.start != a.stop)
print(
    f"ranks drift apart at step {first_wrong}: rank 0 reads from {reads[first_wrong][0].start}, rank 1 from {reads[first_wrong][1].start}"
)
print(
    "after 9 steps of 8 tokens: " + ", ".join(f"{(times == n).sum()} tokens read {n} times" for n in range(3))
)

# %% [markdown]
r"""
Rank 0 still finds room for a step where rank 1, standing further on, does not. They change shard at different
steps, and never stand side by side again. Nothing crashes. And the end of each shard, too short for a step, is never
read.

The cure is that no rank decides anything. Let there be one endless stream of tokens, the same for all ranks. Step k
takes the next `world_size * B * T` of them, rank r the r-th part, across the ends of shards and epochs. Then a law can
hold: **each token is an input exactly once an epoch.**

The stream is epoch after epoch, and every epoch shuffles the documents. If the order is a function of (seed, epoch),
a token can be found without remembering anything:
"""


# %%
#| export data
def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, one or more numbers from 0 on.

    It sorts PCG64's raw bits: NumPy promises never to change those, but not what `Generator.permutation` makes of
    them (NEP 19), and a run may be resumed years later.
    """
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer one may stand."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


# %%
#| export data
def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> tuple[np.ndarray, np.ndarray]:
    """An order for a shard's documents: where each ends in it, and by how much it was moved to get there."""
    starts = document_starts(tokens, eot)
    order = permutation(len(starts), *key)
    lengths = np.diff(starts, append=len(tokens))[order]
    ends = np.cumsum(lengths)
    return ends, starts[order] - (ends - lengths)


def read_shuffled(
    tokens: np.ndarray, ends: np.ndarray, moved: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """Tokens start to stop of a shard in the order of `shuffle_documents`, taken from the memory map at once."""
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    counts = np.diff(np.minimum(ends[first : last + 1], stop), prepend=start)  # how many from each document
    return tokens[np.arange(start, stop) + np.repeat(moved[first : last + 1], counts)]


# %%
shard = np.array([9, 1, 1, 1, 9, 2, 9, 3, 3, 9, 4, 4, 4])  # four documents, <|endoftext|> is 9
for epoch in range(3):
    ends, moved = shuffle_documents(shard, 9, epoch)
    print(
        f"epoch {epoch}: {read_shuffled(shard, ends, moved, 0, 13)}   tokens 5 to 9: {read_shuffled(shard, ends, moved, 5, 9)}"
    )

# %% [markdown]
r"""
No loop over tokens or documents: where every token of a batch stands in the file is computed, and one indexing
operation takes them all. Ids then become tensors:
"""


# %%
#| export data
def to_device(tokens: np.ndarray, B: int, T: int, device):
    """x and y, int64 tensors (B, T) on the device, from B * T + 1 ids: y is x one token later."""
    import torch  # here, because prepare's worker processes import this module, and torch is 200 MB for each

    tokens = torch.from_numpy(tokens.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    else:
        tokens = tokens.to(device)
    # y is a copy, so that whoever masks targets in place leaves the inputs alone.
    return tokens[:-1].view(B, T), tokens[1:].clone().view(B, T)


# %%
x, y = to_device(np.arange(7), B=2, T=3, device="cpu")
print(f"x {x.tolist()}\ny {y.tolist()}")


# %% [markdown]
r"""
A stream knows its shards, who reads how much of them, and `position`: how far all ranks together have come.
"""


# %%
#| export data
class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    The stream is epoch after epoch. Each epoch shuffles the shards, and the documents within each shard, by
    (seed, epoch). Step k takes the next world_size * B * T tokens, and rank r the r-th part of them. So every token
    is an input exactly once an epoch; what is left at an epoch's end is completed with the beginning of the next.
    Documents are packed: a row may begin within one, whose facts it then does not see.

    shards: paths. The vocabulary comes from the manifest beside them; without one it is GPT-2's, as in llm.c.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        self.paths = sorted(map(Path, shards))
        if not self.paths or min(B, T) < 1 or not 0 <= rank < world_size:
            given = f"{len(self.paths)} shards, B={B}, T={T}, rank={rank}, world_size={world_size}"
            raise ValueError(f"a stream needs shards, B and T from 1 on, 0 <= rank < world_size; got {given}")
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.shards = [read_shard(path) for path in self.paths]
        self.tokens = sum(map(len, self.shards))
        folder = self.paths[0].parent
        if self.tokens <= world_size * B * T:
            step = f"{world_size} ranks × B={B} × T={T} + 1 = {world_size * B * T + 1:,}; lower B or T, or add text"
            raise ValueError(f"{folder}: {self.tokens:,} tokens, but one step takes {step}")
        gpt2 = {"eot": 50256, "vocab_size": 50257}
        manifest = load_manifest(folder) if (folder / "manifest.json").exists() else gpt2
        self.eot, self.vocab_size = manifest["eot"], manifest["vocab_size"]
        self.position = 0  # tokens that all ranks together have consumed
        self._shuffled = self._order = None  # the shard whose order is at hand, and that order


# %%
for i, tokens in enumerate(
    shards
):  # as above, with a document every ten tokens; ids are places in the corpus
    as_documents = [50256 if t % 10 == 0 else t for t in tokens]
    write_shard(folder / "two" / f"train_{i:06d}.bin", as_documents)
paths = sorted((folder / "two").glob("*.bin"))
small = BatchStream(paths, B=1, T=4)
print(f"{small.tokens} tokens in shards of {list(map(len, small.shards))}, vocabulary {small.vocab_size}")

# %% [markdown]
r"""
A place in the stream is an epoch, a shard and an offset. A batch may begin in one shard and end in another.
"""


# %%
#| export data
class BatchStream(BatchStream):
    def _find(self, place: int) -> tuple[int, int, int]:
        """Where the stream's token number `place` stands: epoch, shard, and offset in the shuffled shard."""
        epoch, offset = divmod(place, self.tokens)
        for i in permutation(len(self.shards), self.seed, epoch, 0).tolist():
            if offset < len(self.shards[i]):
                break
            offset -= len(self.shards[i])
        return epoch, i, offset

    def _read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, i, offset = self._find(start)
            if self._shuffled != (self.seed, epoch, i):
                self._shuffled = self.seed, epoch, i
                self._order = shuffle_documents(self.shards[i], self.eot, self.seed, epoch, i + 1)
            part = read_shuffled(self.shards[i], *self._order, offset, min(offset + n, len(self.shards[i])))
            if part.max() >= self.vocab_size:
                what = f"id {part.max()}, but its vocabulary has {self.vocab_size}"
                raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")
            parts.append(part)
            start, n = start + len(part), n - len(part)
        return np.concatenate(parts)


# %%
small = BatchStream(paths, B=1, T=4)
for place in (0, 36, 37, 79, 80):
    print("token {:2} is in epoch {}, shard {}, at {}".format(place, *small._find(place)))
print("tokens 33 to 41:", small._read(33, 8))

# %% [markdown]
r"""
What a training loop calls, and the state that resumes it:
"""


# %%
#| export data
class BatchStream(BatchStream):
    @property
    def epoch(self) -> int:
        return self.position // self.tokens

    def next_batch(self):
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = self._read(self.position + self.rank * n, n + 1)
        self.position += self.world_size * n
        return to_device(tokens, self.B, self.T, self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        sizes = {path.name: len(shard) for path, shard in zip(self.paths, self.shards)}
        return {"seed": self.seed, "position": self.position, "shards": sizes}

    def load_state_dict(self, state: dict) -> None:
        if state["shards"] != self.state_dict()["shards"]:
            raise ValueError(f"{self.paths[0].parent} does not hold the shards of this state")
        self.seed, self.position = state["seed"], state["position"]


# %%
streams = [BatchStream(paths, B=1, T=4, rank=rank, world_size=2) for rank in range(2)]
batches = [[stream.next_batch()[0].flatten().tolist() for stream in streams] for _ in range(11)]
# where <|endoftext|> stands follows from the token after it
flat = [t for ranks in batches for tokens in ranks for t in tokens]
places = [b - 1 if a == 50256 else a for a, b in zip(flat, flat[1:] + [flat[0]])]
reads = [[places[8 * step + 4 * rank : 8 * step + 4 * rank + 4] for rank in range(2)] for step in range(11)]
show(
    draw(reads, [43], "BatchStream"),
    alt="Both ranks are always in the same document or its neighbour; the shards are read completely; the last step continues with the next epoch",
)

# %% [markdown]
r"""
*Check.* The law, on the corpus itself: three ranks, a batch that divides nothing evenly, two epochs.
"""

# %%
held_out = documents[4000:]
write_shard(
    folder / "law" / "train_000000.bin", [i for t in held_out[:600] for i in (50256, *tokenizer.encode(t))]
)
write_shard(
    folder / "law" / "train_000001.bin", [i for t in held_out[600:] for i in (50256, *tokenizer.encode(t))]
)
paths = sorted((folder / "law").glob("*.bin"))
corpus = np.concatenate([read_shard(path) for path in paths])
streams = [BatchStream(paths, B=5, T=77, rank=rank, world_size=3) for rank in range(3)]
xs, ys = [], []
while streams[0].epoch < 2:
    for stream in streams:
        x, y = stream.next_batch()
        xs.append(x.flatten())
        ys.append(y.flatten())
x, y = np.concatenate(xs), np.concatenate(ys)
for epoch in range(2):
    assert (np.bincount(x[epoch * len(corpus) : (epoch + 1) * len(corpus)]) == np.bincount(corpus)).all()
assert (y[:-1] == x[1:]).all()
print(f"two epochs of {len(corpus):,} tokens: each read once an epoch, and every target is the next input")

# %% [markdown]
r"""
The tokens of a step do not depend on how many ranks share them, so a run may go on with another number of GPUs. And a
stream resumes at the exact batch, from one number and a seed.
"""

# %%
alone = BatchStream(paths, B=4, T=16)
pair = [BatchStream(paths, B=2, T=16, rank=rank, world_size=2) for rank in range(2)]
for _ in range(100):
    x, y = alone.next_batch()
    assert x.tolist() == [row for stream in pair for row in stream.next_batch()[0].tolist()]
resumed = BatchStream(paths, B=4, T=16)
resumed.load_state_dict(alone.state_dict())
assert all((a == b).all() for a, b in zip(alone.next_batch(), resumed.next_batch()))
print(alone.state_dict())

# %%
stream = BatchStream(paths, B=16, T=1024)
stream.next_batch()
start = time.perf_counter()
for _ in range(100):
    stream.next_batch()
print(f"{100 * 16 * 1024 / (time.perf_counter() - start):,.0f} tok/s")

# %% [markdown]
r"""
GPT-2's 124M parameters take some 0.8 GFLOP a token in training, so a GPU that is used at 400 TFLOP/s eats half a
million tokens a second. Compare: does the loader need worker processes?

## The embedded corpus on disk

All pieces together: the stories, divided by their hashes, as shards with tokenizer and manifest.
"""


# %%
#| export data
def _write_corpus(folder: Path, tokenizer: BPETokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    members, held = {split: [] for split in SPLITS}, {}
    for story in stories(source["stories"], source["seed"]):
        members[split_of(hashlib.sha256(story.text.encode()).digest(), val=0.05, test=0.05)].append(story)
    encode = tokenizer.to_tiktoken().encode_ordinary
    for split, told in members.items():
        ids = [i for story in told for i in (tokenizer.eot, *encode(story.text))]
        path, size = folder / f"{split}_000000.bin", sum(len(story.text.encode()) for story in told)
        write_shard(path, ids)
        shard = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
        held[split] = {"documents": len(told), "bytes": size, "tokens": len(ids), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    manifest["floor"] = floor_per_token(members["val"], tokenizer)
    save_json(folder / "manifest.json", manifest)
    return manifest


# %%
manifest = _write_corpus(folder / "few", tokenizer, {"stories": 200, "seed": 0})
print({split: held["documents"] for split, held in manifest["splits"].items()}, manifest["splits"]["val"])

# %% [markdown]
r"""
Later chapters call the next function and find their data, made now or before.
"""


# %%
#| export data
def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The embedded corpus as shards in `folder`, with tokenizer.json and manifest.json; made only where absent.

    tokenizer: a BPETokenizer; by default the one that chapter 01 left in the folder above, or else the same,
    trained here. n: stories. Returns the manifest; its "floor" is val's entropy in nats per token.
    """
    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # another grammar, another corpus
    if (folder / "manifest.json").exists():
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source:
            return manifest
        (folder / "manifest.json").unlink()  # first: it must never describe files that are being replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return _write_corpus(folder, tokenizer, source)


# %%
start = time.perf_counter()
manifest = ensure_corpus("../data/built/stories", tokenizer)
print(f"{time.perf_counter() - start:.1f} s")
for split, held in manifest["splits"].items():
    print(
        f"{split:5} {held['documents']:6,} stories {held['tokens']:9,} tokens  {held['bytes'] / held['tokens']:.2f} bytes a token"
    )
print(
    f"floor of val: {manifest['floor']:.3f} nats a token; ln {manifest['vocab_size']:,} = {np.log(manifest['vocab_size']):.3f}"
)

# %% [markdown]
r"""
## Real text, at any size

The stories fit into memory; a crawl of the web does not. `python -m nanogpt prepare` turns text files, JSONL,
parquet or folders of them into shards, on all cores, in constant memory, and goes on where it was if it is killed.

*Cutting a text.* A document of a gigabyte must be cut to be shared among cores, but not just anywhere: the ids of two
halves need not be those of the whole.
"""

# %%
text = "She won 1234 coins.\n\n  Then it's over."
whole = tokenizer.encode(text)
good = [i for i in range(1, len(text)) if tokenizer.encode(text[:i]) + tokenizer.encode(text[i:]) == whole]
print("may be cut at |:  " + "".join("|" * (i in good) + c.replace("\n", "↵") for i, c in enumerate(text)))

# %% [markdown]
r"""
With this tokenizer, on this text. Which of these places are safe for every text and every vocabulary with GPT-2's
pattern? A match of the pattern must end there in any case, and neither half may look different without the other.
Both hold before a space that follows a visible character. Inside a run of white space they do not: `\s+(?!\S)` leaves
the last space of a run to the word after it, if there is one to be seen.
"""

# %%
#| export sources
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nanogpt.data import file_sha256, split_of


# %%
#| export sources
def last_cut(text: bytes) -> int:
    """The last place where UTF-8 text can be cut so that GPT-2's ids of the parts are those of the whole, or 0.

    That is between a visible character and a space or newline. No match of GPT-2's pattern goes on from the one
    to the other, so one ends there anyway; the left part ends visibly, so that the lookahead `(?!\\S)` sees no
    other end of white space; the right part's matches do not look back.
    """
    space, line = text.rfind(b" "), text.rfind(b"\n")
    while (cut := max(space, line)) > 0:
        if not text[max(0, cut - 4) : cut].decode("utf-8", "ignore")[-1:].isspace():
            return cut
        space, line = (text.rfind(b" ", 0, cut), line) if cut == space else (space, text.rfind(b"\n", 0, cut))
    return 0


# %%
cuts, rest = set(), text.encode()
while cut := last_cut(rest):
    cuts.add(cut)
    rest = rest[:cut]
print("last_cut takes |:  " + "".join("|" * (i in cuts) + c.replace("\n", "↵") for i, c in enumerate(text)))
assert cuts <= set(good)

# %% [markdown]
r"""
*Reading.* A source is read in pieces of about a megabyte that end at such a cut, at a line's end (JSONL), or after
blank lines (when each paragraph is a document, as in llm.c's TinyShakespeare). Where a piece ends depends only on where
it begins. That is why a run can stop anywhere and go on with the same result.
"""


# %%
#| export sources
class Piece(NamedTuple):
    """A stretch of a source file: whole documents, or a part of one that is longer than a block."""

    path: Path
    kind: str  # "text", "paragraphs", "jsonl" or "parquet"
    start: int  # the byte that it begins with; for parquet the row
    content: bytes | list[str]
    split: str | None = None  # None: each document's hash decides


def _last_paragraph(text: bytes) -> int:
    found = re.match(rb"(?s).*\n\r?\n(?=[^\r\n])", text)
    return found.end() if found else 0


def _last_line(text: bytes) -> int:
    return text.rfind(b"\n") + 1


# %%
#| export sources
def _read_text(path: Path, kind: str, start: int, block: int, split: str | None) -> Iterator[tuple]:
    """Pieces of about `block` bytes from byte `start` on, each with its length, its end, and bytes read until there."""
    last = {"text": last_cut, "paragraphs": _last_paragraph, "jsonl": _last_line}[kind]
    with open(path, "rb") as file:
        while True:
            file.seek(start)
            text, end = b"", 0
            while not end:
                more = file.read(block)
                text += more
                if not text:
                    return
                if len(text) > max(1 << 26, 2 * block):
                    raise ValueError(
                        f"{path}: no place to cut in {len(text):,} bytes after {start:,}; is it text?"
                    )
                end = len(text) if len(more) < block else last(text)
            yield Piece(path, kind, start, text[:end], split), end, start + end, start + end
            start += end


# %%
#| export sources
def _read_rows(path: Path, start: int) -> Iterator[tuple]:
    """The same for a parquet file, where places are rows."""
    try:
        import pyarrow.parquet as pq

        file, row = pq.ParquetFile(path, buffer_size=1 << 20), 0  # without the buffer: a row group at a time
        for group in range(file.num_row_groups):
            if row + (rows := file.metadata.row_group(group).num_rows) <= start:
                row += rows
                continue
            for batch in file.iter_batches(256, [group], ["text"]):
                row += len(batch)
                if row > start:
                    texts = [text or "" for text in batch.column("text").to_pylist()]
                    size, read = sum(map(len, texts)), path.stat().st_size * row // file.metadata.num_rows
                    yield Piece(path, "parquet", row - len(batch), texts), size, row, read
    except (ImportError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path}: reading needs pyarrow and a column of strings named text ({error})"
        ) from None


# %%
#| export sources
def read_blocks(files: list[Path], place: list[int], block: int, paragraphs: bool, val: float, test: float):
    """Yields pieces gathered to about `block` bytes, the place after them (file, byte or row), and bytes read."""
    pieces, gathered, before = [], 0, sum(path.stat().st_size for path in files[: place[0]])
    kinds = {".jsonl": "jsonl", ".parquet": "parquet"}
    for i, path in enumerate(files[place[0] :], place[0]):
        size, split, start = path.stat().st_size, None, place[1] if i == place[0] else 0
        kind = kinds.get(path.suffix, "paragraphs" if paragraphs else "text")
        if kind == "text" and len(files) == 1:
            split = "train"  # a single document cannot be divided by document
        elif kind == "text" and size >= block:  # its hash is needed before its end is read
            split = split_of(bytes.fromhex(file_sha256(path)), val, test)
        reader = _read_rows(path, start) if kind == "parquet" else _read_text(path, kind, start, block, split)
        for piece, length, end, read in reader:
            pieces.append(piece)
            gathered += length
            if gathered >= block // 2:
                yield pieces, [i, end], before + read
                pieces, gathered = [], 0
        before += size
    if pieces:
        yield pieces, [len(files), 0], before


# %%
source = folder / "stories.jsonl"
with open(source, "w", encoding="utf-8", newline="\n") as file:
    for t in documents:
        file.write(json.dumps({"text": t}) + "\n")
size = source.stat().st_size
for pieces, place, read in read_blocks([source], [0, 0], 400_000, False, 0.1, 0.1):
    print(
        f"block of {len(pieces)} piece, {len(pieces[0].content):,} bytes; goes on at file {place[0]}, byte {place[1]:,}; {read / size:4.0%}"
    )


# %%
#| export sources
def documents_in(piece: Piece) -> Iterator[str]:
    """The documents, or the part of one, in a piece. ValueError names the file and the line or byte at fault."""
    if piece.kind == "parquet":
        yield from piece.content
    elif piece.kind == "jsonl":
        for n, line in enumerate(piece.content.split(b"\n"), 1):
            try:
                text = json.loads(line)["text"] if line.strip() else ""
                text.encode()
            except (ValueError, TypeError, LookupError, AttributeError):
                with open(piece.path, "rb") as file:
                    while file.tell() < piece.start:
                        n += bool(file.readline())
                raise ValueError(
                    f"{piece.path}, line {n}: not a JSON object with a string under 'text'"
                ) from None
            yield text
    else:
        try:
            text = piece.content.decode()
        except UnicodeDecodeError as error:
            at = piece.start + error.start
            raise ValueError(
                f"{piece.path}: byte {at:,} is not UTF-8; convert it, for example with iconv"
            ) from None
        yield from re.findall(r"(?s).+?(?:\n\r?\n[\r\n]*|$)", text) if piece.kind == "paragraphs" else [text]


# %%
#| export sources
def find_files(source: Path) -> list[Path]:
    """The source itself, or all .txt, .jsonl and .parquet files below it, in the order of their names."""
    if not source.exists():
        raise FileNotFoundError(
            f"{source} does not exist; give a .txt, .jsonl or .parquet file, or a folder of them"
        )
    known = (".txt", ".jsonl", ".parquet")
    files = sorted(p for p in source.rglob("*") if p.suffix in known) if source.is_dir() else [source]
    if not any(path.stat().st_size for path in files):
        raise ValueError(f"{source} is empty: no .txt, .jsonl or .parquet file with anything in it")
    return files


def describe(source: Path, files: list[Path]) -> str:
    """A line by which a source is known again: name, size, and a hash of all names, sizes and beginnings."""
    digest, total = hashlib.sha256(), 0
    for path in files:
        total += (size := path.stat().st_size)
        with open(path, "rb") as file:
            digest.update(
                f"{path.relative_to(source.parent).as_posix()} {size} ".encode() + file.read(1 << 16)
            )
    return f"{source.name}, {len(files)} files, {total} bytes, {digest.hexdigest()[:16]}"


# %%
first, _, _ = next(read_blocks([source], [0, 0], 400_000, False, 0.1, 0.1))
print(sum(1 for text in documents_in(first[0]) if text), "documents in the first block")
try:
    list(documents_in(first[0]._replace(content=b'{"text": "fine"}\n{"title": "no text"}\n')))
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
*Encoding.* Each document goes to the split that its hash says, after an `<|endoftext|>`.
"""

# %%
#| export prepare
import argparse
import errno
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanogpt.data import HEADER_BYTES, SPLITS, file_sha256, identity, shard_header, split_of
from nanogpt.files import save_json
from nanogpt.sources import Piece, describe, documents_in, find_files, read_blocks
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer


# %%
#| export prepare
def encode_pieces(pieces: list[Piece], encoding, eot: int, val: float, test: float) -> dict[str, tuple]:
    """For each split: token ids (uint16) with `<|endoftext|>` before each document; documents; bytes of text."""
    texts, documents, size = {split: [] for split in SPLITS}, Counter(), Counter()
    for piece in pieces:
        for text in filter(None, documents_in(piece)):
            raw = text.encode()
            split = piece.split or split_of(hashlib.sha256(raw).digest(), val, test)
            begins = piece.kind != "text" or piece.start == 0
            texts[split].append((begins, text))
            documents[split] += begins
            size[split] += len(raw)
    return {
        s: (_encode(texts[s], encoding, eot).astype("<u2"), documents[s], size[s]) for s in SPLITS if texts[s]
    }


def _encode(texts: list[tuple[bool, str]], encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` where a document begins. One call for all is faster than a call for each."""
    joined = "".join(EOT + text if begins else text for begins, text in texts)
    if joined.count(EOT) == sum(begins for begins, _ in texts):
        return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
    ids = []  # some document spells <|endoftext|> itself, as ordinary text
    for begins, text in texts:
        ids += [np.array([eot] * begins, np.uint32), encoding.encode_to_numpy(text, disallowed_special=())]
    return np.concatenate(ids)


# %%
common = (tokenizer.to_tiktoken(), tokenizer.eot, 0.1, 0.1)
for split, (ids, n, size) in encode_pieces(first, *common).items():
    print(f"{split:5} {len(ids):,} tokens of {n} documents, {size:,} bytes; begins", ids[:4])

# %% [markdown]
r"""
*All cores.* tiktoken lets go of Python's lock while it encodes, but the Python around it cannot, so blocks go to
processes. Three things are easy to get wrong. The pool's queue must be bounded, or a fast reader fills the memory with
blocks that wait. Processes must be *spawned*, as Windows and macOS do anyway, so what they run must be importable, and
the calling script needs `if __name__ == "__main__":`. And a worker must not outlive a parent that was killed.
"""


# %%
#| export prepare
def _start_worker(*common) -> None:
    """Runs once in each worker: keep what all blocks need, leave Ctrl-C to the parent, and do not outlive it."""
    global _common
    _common = common
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def _encode_in_worker(pieces: list[Piece]) -> dict[str, tuple]:
    return encode_pieces(pieces, *_common)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits until afterwards, where the system can do that (not on Windows)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# %%
#| export prepare
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encode_blocks(blocks: Iterable, common: tuple, workers: int) -> Iterator[tuple]:
    """The blocks encoded, in order. At most two a worker are under way: memory does not grow with the source."""
    if workers == 1:
        yield from ((encode_pieces(pieces, *common), *place) for pieces, *place in blocks)
        return
    # Spawned everywhere: a fork copies the locks that a notebook's other threads hold at that moment.
    pool, waiting = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, common), deque()
    try:
        for pieces, *place in blocks:
            with _without_ctrl_c():  # submit may start a worker, which inherits this and is silent from birth
                waiting.append((pool.submit(_encode_in_worker, pieces), place))
            if len(waiting) > 2 * workers:
                encoded, place = waiting.popleft()
                yield encoded.result(), *place
        yield from ((encoded.result(), *place) for encoded, place in waiting)
    finally:
        pool.shutdown(cancel_futures=True)


# %%
start = time.perf_counter()
blocks = read_blocks([source], [0, 0], 400_000, False, 0.1, 0.1)
for encoded, _, _ in _encode_blocks(blocks, common, workers=1):
    print({split: f"{len(ids):,} tokens of {n} documents" for split, (ids, n, _) in encoded.items()})
print(f"{source.stat().st_size / 1e6 / (time.perf_counter() - start):.1f} MB/s in one process")

# %% [markdown]
r"""
*Surviving.* Tokens are appended to `.part` files with a header of zeros, which nobody takes for a shard.
"""


# %%
#| export prepare
def _append(out: Path, journal: dict, split: str, tokens: np.ndarray, documents: int, size: int) -> None:
    """Add to a split's last .part file, or begin one. Its header is zeros: nobody takes it for a shard."""
    state = journal["splits"][split]
    shards = state["shards"]
    if not shards or shards[-1] >= journal["made_of"]["shard_tokens"]:
        shards.append(0)
    with open(out / f"{split}_{len(shards) - 1:06d}.bin.part", "ab" if shards[-1] else "wb") as file:
        file.write((b"" if shards[-1] else bytes(HEADER_BYTES)) + tokens.tobytes())
    shards[-1] += len(tokens)
    state["documents"] += documents
    state["bytes"] += size


# %%
parts = folder / "parts"
parts.mkdir()
state = {"documents": 0, "bytes": 0, "shards": []}
journal = {"made_of": {"shard_tokens": 100}, "splits": {"train": state}}


def sizes() -> str:
    """What is in the folder, in bytes."""
    return ", ".join(f"{path.name} {path.stat().st_size}" for path in sorted(parts.iterdir()))


for n in (60, 60, 60):
    _append(parts, journal, "train", np.full(n, 7, "<u2"), 1, 4 * n)
print(state)
print(sizes())

# %% [markdown]
r"""
About once a second, when the tokens have reached the disk, a *journal* is written: how far the source is read, and how
long each part is. The run that finds a journal cuts the parts back to those lengths and reads on from that place. The
run before it may have died at any moment.
"""


# %%
#| export prepare
def _parts(out: Path, journal: dict) -> list[tuple[Path, str, int]]:
    """The unfinished shards that a journal speaks of, each with its split and tokens."""
    states = journal["splits"].items()
    return [
        (out / f"{s}_{i:06d}.bin.part", s, n) for s, state in states for i, n in enumerate(state["shards"])
    ]


def _save_journal(out: Path, journal: dict) -> None:
    """What another run needs to go on from here, written after the tokens that it speaks of."""
    for path, _, _ in _parts(out, journal):
        with open(path, "r+b") as file:
            os.fsync(file.fileno())
    save_json(out / "journal.json", journal)


def _rewind(out: Path, journal: dict) -> None:
    """Bring the files back to what the journal says: a run that was killed had gone on after writing it."""
    for path in out.glob("*.bin"):
        os.replace(path, f"{path}.part")
    parts = _parts(out, journal)
    for path in set(out.glob("*.part")) - {path for path, _, _ in parts}:
        path.unlink()
    for path, _, n in parts:
        if not path.exists() or path.stat().st_size < HEADER_BYTES + 2 * n:
            raise ValueError(f"{path} is shorter than journal.json says; delete {out} and prepare it again")
        os.truncate(path, HEADER_BYTES + 2 * n)


# %%
_save_journal(parts, journal)
with open(parts / "train_000001.bin.part", "ab") as file:
    file.write(b"what a run wrote after its last journal")
(parts / "train_000002.bin.part").write_bytes(b"a part that the journal does not know")
print("killed: ", sizes())
_rewind(parts, json.loads((parts / "journal.json").read_bytes()))
print("rewound:", sizes())

# %% [markdown]
r"""
At the end each shard gets its header and its name, and the manifest takes the journal's place.
"""


# %%
#| export prepare
def _finish(out: Path, journal: dict) -> dict:
    """Give each shard its header and its name, then write the manifest, which is returned."""
    states = journal["splits"].items()
    splits = {s: state | {"tokens": sum(state["shards"]), "shards": []} for s, state in states}
    for path, split, n in _parts(out, journal):
        with open(path, "r+b") as file:
            file.write(shard_header(n))
            file.flush()
            os.fsync(file.fileno())
        splits[split]["shards"].append({"file": path.stem, "tokens": n, "sha256": file_sha256(path)})
        os.replace(path, path.with_suffix(""))
    manifest = journal["made_of"] | {"splits": splits}
    save_json(out / "manifest.json", manifest)
    (out / "journal.json").unlink()
    return manifest


# %%
manifest = _finish(parts, journal)
print(*sorted(path.name for path in parts.iterdir()))
print([len(read_shard(parts / shard["file"])) for shard in manifest["splits"]["train"]["shards"]], "tokens")

# %% [markdown]
r"""
Who finds a journal, or a manifest, may go on only with the same source and the same options.
"""


# %%
#| export prepare
def _begin(out: Path, made_of: dict) -> dict:
    """The journal to go on with, or the manifest if all is done. ValueError if `out` holds anything else."""
    splits = {split: {"documents": 0, "bytes": 0, "shards": []} for split in SPLITS}
    fresh = {"made_of": made_of, "place": [0, 0], "read": 0, "splits": splits}
    for path in (out / "manifest.json", out / "journal.json"):
        if path.exists():
            there = json.loads(path.read_bytes())
            was = there.get("made_of", there)
            if there.get("place") == [0, 0]:
                return fresh  # nothing had come of it yet
            for key, now in made_of.items():
                if was.get(key) != now:
                    what = f"shards whose {key} is {was.get(key)}, not {now}"
                    raise ValueError(f"{out} holds {what}; choose another --out or delete it")
            return there
    if any(out.glob("*.bin*")):
        raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
    return fresh


# %%
for out, made_of in ((folder / "few", {"source": "another text"}), (folder / "two", {})):
    try:
        _begin(out, made_of)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
tiktoken runs the pattern in Rust, and faster if it is written a little differently.
"""


# %%
#| export prepare
def _load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer, as tiktoken runs it in Rust and as chapter 01 has it."""
    ours = BPETokenizer.gpt2() if str(name) == "gpt2" else BPETokenizer.load(name)
    if ours.pattern != GPT2_PATTERN or ours.vocab_size > 65536:
        raise ValueError(f"{name} needs GPT-2's pattern, to cut text, and at most 65,536 tokens, for uint16")
    from tiktoken import Encoding

    # The same matches in about 0.7 of the time: in one group, what needs no lookahead is one automaton to Rust.
    # And white space at the end comes first, or a megabyte of it overflows the lookahead's stack.
    visible, space = ours.pattern.split(r"|\s", 1)
    pattern = rf"(?:{visible})|\s++$|\s{space}"
    return Encoding("nanogpt", pat_str=pattern, mergeable_ranks=ours.ranks, special_tokens=ours.special), ours


# %%
tokenizer.save(folder / "tokenizer.json")
encoding, ours = _load_tokenizer(folder / "tokenizer.json")
print("the same ids:", all(encoding.encode_ordinary(text) == ours.encode(text) for text in documents[:500]))

# %% [markdown]
r"""
All together: the loop over encoded blocks, then the function that begins, resumes and ends it.
"""


# %%
#| export prepare
def _append_all(
    out: Path, journal: dict, encoded_blocks: Iterable, total: int, journal_seconds: float
) -> None:
    """Add block after block to the .part files, with a journal every so many seconds and at the end."""
    saved = time.monotonic()
    with tqdm(total=total, initial=journal["read"], unit="B", unit_scale=True, disable=None) as bar:
        for encoded, place, read in encoded_blocks:
            for split, more in encoded.items():
                _append(out, journal, split, *more)
            bar.update(read - journal["read"])
            journal |= {"place": place, "read": read}
            if time.monotonic() > saved + journal_seconds:
                _save_journal(out, journal)
                saved = time.monotonic()
    _save_journal(out, journal)


# %%
#| export prepare
def prepare(
    source: str | os.PathLike,
    out: str | os.PathLike,
    tokenizer: str | os.PathLike = "gpt2",
    val: float = 0.01,
    test: float = 0.01,
    paragraphs: bool = False,
    workers: int | None = None,
    shard_tokens: int = 100_000_000,
    block: int = 1 << 20,
    journal_seconds: float = 1.0,
) -> dict:
    """Tokenize `source` into shards below `out`, divided by document into train, val and test; the manifest.

    The same call goes on where a killed one stopped, with the same bytes as result; once done, it does nothing.
    """
    if min(val, test) < 0 or val + test >= 1:
        raise ValueError(f"val {val} and test {test} are fractions of all documents; leave some for train")
    source, out, files = Path(source), Path(out), find_files(Path(source))
    encoding, ours = _load_tokenizer(tokenizer)
    made_of = {"source": describe(source, files), "tokenizer": Path(tokenizer).name, **identity(ours)}
    made_of |= {"val": val, "test": test, "paragraphs": paragraphs}
    made_of |= {"shard_tokens": shard_tokens, "block": block}
    out.mkdir(parents=True, exist_ok=True)
    journal = _begin(out, made_of)
    if "place" not in journal:
        return journal  # the manifest: all is done
    save_json(out / "journal.json", journal)
    _rewind(out, journal)
    total = sum(path.stat().st_size for path in files)
    useful = 1 + (total - journal["read"]) // (4 * block)  # for less, no worker is started
    blocks = read_blocks(files, journal["place"], block, paragraphs, val, test)
    common = encoding, ours.eot, val, test
    encoded_blocks = _encode_blocks(blocks, common, min(workers or _cores(), useful))
    _append_all(out, journal, encoded_blocks, total, journal_seconds)
    return _finish(out, journal)


# %% [markdown]
r"""
*Check.* A run that is stopped at random moments, and started again each time, leaves the bytes of a run that was never
stopped. The tests do the same to two processes with `kill -9`. In a notebook one process does all: what a notebook
defines, no worker can import.
"""

# %%
options = dict(val=0.1, test=0.1, workers=1, block=20_000, journal_seconds=-1, shard_tokens=100_000)
manifest = prepare(source, folder / "straight", folder / "tokenizer.json", **options)
fsync, dice = os.fsync, random.Random(0)


class Stopped(Exception):
    """Stands for whatever ends a run."""


def fsync_or_die(file):
    """The system call that brings a file to the disk; one in fifty ends the run."""
    if dice.random() < 0.02:
        raise Stopped
    fsync(file)


# %%
stops, done = 0, False
while not done:
    with mock.patch("os.fsync", fsync_or_die), contextlib.suppress(Stopped):
        prepare(source, folder / "stopped", folder / "tokenizer.json", **options)
        done = True
    stops += not done
for path in (folder / "straight").iterdir():
    assert path.read_bytes() == (folder / "stopped" / path.name).read_bytes(), path.name
shards = [len(held["shards"]) for held in manifest["splits"].values()]
print(f"stopped {stops} times; {sum(shards)} shards and the manifest are the same to the byte")

# %% [markdown]
r"""
Memory does not grow with the source: of one text of 1,001 MB, two workers and their parent together held 233 MB at
most (21 November 2026, `python tests/bench_prepare.py memory`).

The command line has a help text that teaches, and one sentence for each thing that can go wrong.
"""

# %%
#| export prepare
HELP = """Turns text into token shards, from which training reads.

  a .txt file      is one document; with --paragraphs a document ends at each blank line
  a .jsonl file    has one document a line: {"text": "..."}
  a .parquet file  has one document a row, in its column "text"
  a folder         is all such files below it

<|endoftext|> stands before each document. Its hash sends a document to train, val or test, so that val is the same
text however much is added; a single .txt file goes to train whole. What was stopped by Ctrl-C, kill -9 or a full
disk goes on where it was when the same command is given again. The shards are in llm.c's format.

  python -m nanogpt prepare shakespeare.txt --paragraphs --val 0.1
  python -m nanogpt prepare data/downloads/fineweb-edu --out data/built/fineweb-edu
  python -m nanogpt prepare notes/ --tokenizer data/built/tokenizer.json
"""


def _parse(argv: list[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m nanogpt prepare", description=HELP, formatter_class=formatter)
    add = parser.add_argument
    add("source", type=Path, help="a .txt, .jsonl or .parquet file, or a folder of them")
    add("--out", type=Path, help="folder for the shards (default: data/built/ + the source's name)")
    add("--tokenizer", default="gpt2", help="gpt2 (default) or a tokenizer.json from chapter 01")
    add("--val", type=float, default=0.01, help="fraction of documents for validation (0.01)")
    add("--test", type=float, default=0.01, help="fraction of documents for testing (0.01)")
    add("--paragraphs", action="store_true", help="a .txt file's documents end at blank lines")
    add("--workers", type=int, help="processes that tokenize (default: one a core)")
    add("--shard-tokens", type=int, default=100_000_000, help="where a new shard begins (100000000)")
    return parser.parse_args(argv)


# %%
#| export prepare
DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt prepare`. Exit code 0; 2 for bad input, 1 for a failing machine, 130 after Ctrl-C."""
    args = _parse(argv)
    out = args.out = args.out or Path("data/built") / args.source.stem
    try:
        for split, held in prepare(**vars(args))["splits"].items():
            n, shards = held["documents"], len(held["shards"])
            print(f"{split:5} {held['tokens'] - n:,} tokens + {n:,} <|endoftext|> in {shards} shards")
        print(f"in {out}")
        return 0
    except KeyboardInterrupt:
        code, message = 130, f"stopped; the same command goes on from here, or delete {out} to begin again"
    except BrokenProcessPool:
        code, message = 1, "a worker was killed (memory?); the same command with fewer --workers goes on"
    except (OSError, ValueError) as error:
        code, message = 2, error
        if getattr(error, "errno", None) in DISK_FULL:
            code, message = 1, f"no room left for {out}; no shard is half-written; make room and go on"
    print(f"prepare: {message}", file=sys.stderr)
    return code


# %%
with contextlib.chdir(folder):
    code = main(["stories.jsonl", "--tokenizer", "tokenizer.json", "--val", "0.1", "--workers", "1"])

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("02")

# %% [markdown]
r"""
## Exercises

1. **Too many ids.** Take the check out of `write_shard` and write ids up to 100,000. Which ids come back?
2. **Rows that begin with a document.** Write a stream whose rows all begin at `<|endoftext|>`, so that nothing is said of
   facts that cannot be seen. How large a part of the tokens does it leave out at T = 64, and at T = 256?
3. **More places to cut.** Is it safe between a letter and a digit? Between punctuation and a letter? Let hypothesis look
   for counterexamples before you argue, as `tests/test_ch02_prepare.py` does.
4. **TinyShakespeare.** `course data tinyshakespeare`, then prepare it with and without `--paragraphs`. Explain the
   difference in the number of tokens. llm.c takes the first 32,768 tokens for validation: what does that measure
   that a split by hash does not?

## Further reading

- The format: llm.c, `dev/data/data_common.py` (writing) and `llmc/dataloader.h` (reading).
- Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, §2.1: how GPT-2's text was chosen.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Penedo et al. 2024, *The FineWeb Datasets*, §3: what is filtered out of the web, and how each decision was measured.
- Ding et al. 2024, *Fewer Truncations Improve Language Modeling*, §2: what packing costs, and a better packing.
- NumPy's NEP 19: which random numbers are promised to stay the same.
"""
