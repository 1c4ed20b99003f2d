# %% [markdown]
r"""
# 02 · Corpus: text with a known floor

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
#| doc corpus: Stories from a grammar whose every choice can be read back, so that the floor of a loss is known.
import bz2
import statistics
import time

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

First the templates are cut into parts. The question mark changes no text; chapter 07 asks how often a model gets
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
def tell(
    symbol: str, rng: random.Random, facts: dict, out: list[str], answers: list[tuple[int, str]]
) -> float:
    """Appends one random expansion of symbol to out, and to answers where in out they stand and their kind.

    Returns its log-probability.
    """
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
            answers += [(len(out), "copied" if len(what) == 1 else "computed")] if more[0] else []
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

    For each (start, end) in answers, text[start:end] is a number word that follows from what was said before; kinds
    says of each whether it was "copied" or "computed", that is, whether it had been said or is a sum of what was.
    """

    text: str
    logprob: float
    answers: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...] = ()


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng, told = random.Random(seed), 0
    while n is None or told < n:
        out, answers = [], []
        logprob = tell("story", rng, {}, out, answers)
        starts = [sum(map(len, out[:i])) for i, _ in answers]
        spans = tuple((start, start + len(out[i])) for start, (i, _) in zip(starts, answers))
        yield Story("".join(out), logprob, spans, tuple(kind for _, kind in answers))
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
In training, such tokens teach little. An evaluation that is compared with the floor cannot afford them: chapter 07
measures document by document.

On text that people wrote, nobody knows the floor. Shannon had people guess letters, and concluded between
0.6 and 1.3 bits a letter for printed English (*Prediction and Entropy of Printed English*, 1951, table I and fig. 4).

"""

# %% [markdown]
r"""
GPT-2's 124M parameters take some 0.8 GFLOP a token in training, so a GPU that is used at 400 TFLOP/s eats half a
million tokens a second. Compare: does the loader need worker processes?

## The embedded corpus on disk

All pieces together: the stories, divided by their hashes, as shards with tokenizer and manifest.
"""


# %%
#| export
import hashlib
import os
from pathlib import Path

from nanogpt.shards import (
    SPLITS,
    check_shards,
    file_sha256,
    identity,
    load_manifest,
    save_manifest,
    split_of,
    write_shard,
)


# %%
#| export
def _write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    encode = tokenizer.to_tiktoken().encode_ordinary
    ids = {split: [] for split in SPLITS}
    held = {split: {"documents": 0, "bytes": 0, "tokens": 0, "shards": []} for split in SPLITS}
    nats = 0.0  # of val
    for story in stories(source["stories"], source["seed"]):
        text = story.text.encode()
        split = split_of(hashlib.sha256(text).digest(), val=0.05, test=0.05)
        ids[split] += [tokenizer.eot, *encode(story.text)]
        held[split]["documents"] += 1
        held[split]["bytes"] += len(text)
        nats -= story.logprob if split == "val" else 0
    for split, tokens in ids.items():
        if not tokens:
            raise ValueError(f"{source['stories']} stories leave none for {split}; take 200 or more")
        path = folder / f"{split}_000000.bin"
        write_shard(path, tokens)
        shard = {"file": path.name, "tokens": len(tokens), "sha256": file_sha256(path)}
        held[split] |= {"tokens": len(tokens), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    return save_manifest(folder, manifest | {"floor": nats / len(ids["val"])})


# %%
manifest = _write_corpus(folder / "few", tokenizer, {"stories": 200, "seed": 0})
print({split: held["documents"] for split, held in manifest["splits"].items()}, manifest["splits"]["val"])

# %% [markdown]
r"""
Later chapters call the next function and find their data, made now or before.
"""


# %%
#| export
def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The embedded corpus as shards in `folder`, with tokenizer.json and manifest.json; made where absent or damaged.

    tokenizer: a BPETokenizer; by default the one that chapter 01 left in the folder above, or else the same,
    trained here. n: stories. Returns the manifest; its "floor" is val's entropy in nats per token.
    """
    from nanogpt.tokenizer import BPETokenizer  # here, because the grammar does without its packages

    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # another grammar, another corpus
    try:
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source:
            check_shards(folder, manifest)
            return manifest
    except (OSError, ValueError):
        pass  # absent or damaged
    (folder / "manifest.json").unlink(
        missing_ok=True
    )  # first: it must never describe files that are being replaced
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
   for counterexamples before you argue, as `tests/test_ch16_prepare.py` does.
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
