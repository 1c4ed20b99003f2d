# %% [markdown]
r"""
# 02 · Corpus: text with a known floor

Is a loss of 1.3 good? On text from the web nobody knows, because nobody knows how surprising that text is. So this
course trains on a text of which we do know: small stories drawn from a grammar by known choices. No model can be
surprised by them less than the choices are surprising. This chapter says why, writes the grammar, and works
out this *floor* to as many digits as you like.
"""

# %%
#| default_exp corpora.corpus
#| doc corpora.grammar: The grammar of the stories: its text, and the parts that its lines are made of.
#| doc corpora.corpus: Stories from a grammar whose every choice can be read back, so that the floor of a loss is known.
import bz2
import statistics
from types import SimpleNamespace

from course.figures import corpus as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.text.tokenizer import BPETokenizer

# %%
#| export corpora.grammar
import difflib
import re
from functools import cache
from typing import NamedTuple

# %%
#| export
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

# corpus.py finds the grammar in the package; the cells below build it anew, as you change it.
from nanogpt.corpora.grammar import NUMBERS, POOLS, Count, Draw, Part, Pick, Recall, Text, alternatives, check

# %% [markdown]
r"""
## What a loss is

A language model reads a text word by word. Before each word it gives every word of its vocabulary a probability, and
its loss is −log of what it gave to the word that came. With the natural logarithm the unit is the *nat*.
"""

# %%
for probability in (1, 1 / 2, 1 / 10, 1 / 1000):
    print(f"a word that was given {probability:5} costs {math.log(1 / probability):.3f} nats")

# %% [markdown]
r"""
What was certain costs nothing, a coin toss ln 2 = 0.693 nats, one of *k* equally likely words ln *k*. Probabilities
of successive words multiply, so their losses add: summed over a text, the loss is −log of the probability that the
model gave to the whole text.

*Predict.* Somewhere the sun shines on 80% of the days, and no day tells anything about the next. Every morning a model
says the same q(sun). Which q has the least mean loss, and how much is that?
"""

# %%
predict("02.1", "the q(sun) that loses least", guess=None)
predict("02.2", "what it loses a day, in nats", guess=None)


# %%
def mean_loss(p: dict[str, float], q: dict[str, float]) -> float:
    """What a model that says q loses on average, in nats, where words come with probabilities p."""
    return sum(p[word] * math.log(1 / q[word]) for word in p if p[word])


p = {"sun": 0.8, "rain": 0.2}
for sun in (0.5, p["sun"], 0.95, 0.999):
    loss = mean_loss(p, {"sun": sun, "rain": 1 - sun})
    print(f"q(sun) = {sun:5}: {loss:.3f} nats a day, {loss - mean_loss(p, p):.3f} too many")
answer("02.1", p["sun"])
answer("02.2", mean_loss(p, p))

# %%
qs = [i / 100 for i in range(1, 100)]
losses = [mean_loss(p, {"sun": q, "rain": 1 - q}) for q in qs]
alt = (
    "Mean loss against q(sun): a valley whose lowest point, above zero, lies at q = p; it rises at both sides"
)
show(figures.mean_losses(qs, losses, p["sun"], mean_loss(p, p)), alt)

# %% [markdown]
r"""
The best q is p itself, and still it loses: the weather is surprising. That rest, Σ p log 1/p, is the *entropy* of p.
What another q loses more is their *Kullback–Leibler divergence*, Σ p log p/q. It is never negative: since log x ≤ x − 1,
Σ p log q/p ≤ Σ q − Σ p = 0.

*Check.* A thousand models and truths about ten words, none of which beats the truth.
"""

# %%
rng = random.Random(0)
for _ in range(1000):
    p, q = ({word: rng.random() for word in range(10)} for _ in "pq")
    p, q = ({word: x / sum(d.values()) for word, x in d.items()} for d in (p, q))
    assert mean_loss(p, q) > mean_loss(p, p), "a wrong q has lost less than the right one"
print("1,000 times the right probabilities lose least")

# %% [markdown]
r"""
So a mean loss has a floor, the entropy of the text, and who knows the right probabilities reaches it. We shall know
them, since we tell the stories.

A table of which word follows which would do well on a simple grammar. So these stories have facts: who is there, what
they hold, how many, what was promised. Each is chosen once and decides words far behind it: a reason to look
back, which is what attention does.

## Facts

A fact is drawn from a *pool*, every entry equally likely. An entry may have two forms: whoever promised to "light the
lamp" has later "lit the lamp". Sums of numbers must stay within `NUMBERS`.
"""

# %%
#| export corpora.grammar
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

A *symbol* stands for any of the alternatives below it, all equally likely; in one of them it stands in braces. `{A:girl}` draws a
fact and says it; `{A}` recalls it. `{n-k}` is arithmetic on two facts. A question mark, `{?n-k}`, changes no
text: it marks an answer to "who has how many", and chapter 07 asks how often a model gets just these words
right. A story is one of seven rows of sentences. Read this first cell of the grammar and pass over the next five; they
are more of the same.
"""

# %%
#| export corpora.grammar
PLOTS = """
story =
  {open} {both} {proud} {aside} {tell_both} {give} {thanks} {gave} {close}
  {open} {one} {proud} {aside} {tell} {more} {now_more} {close}
  {open} {one} {proud} {tell} {aside} {bad} {feel} {now_less} {close}
  {open} {both} {proud} {vow} {tell_both} {kept} {gave} {close}
  {open} {one} {proud} {wish} {aside} {tell} {deal} {traded} {close}
  {open} {both} {proud} {aside} {tell_both} {feel} {together} {close}
  {open} {hid} {aside} {seek} {found} {feel} {close}
open = One {weather} {day}, {A:girl} went to the {P:place} with {B:boy}.
  On a {weather} {day}, {A:girl} met {B:boy} at the {P:place}.
  {A:girl} and {B:boy} walked to the {P:place} on a {weather} {day}.
  It was a {weather} {day} at the {P:place}. {A:girl} was there with {B:boy}.
close = "What a {good} {day}," said {A}. | Then they left the {P} and went home.
  {A} and {B} stayed there until {late}. | They played {where} until {late}.
  {A} ate some {food} and {B} had {food}.
"""

# %%
#| export corpora.grammar
COUNTS = """
both = {A} had {n:many} {color} {T:things}, and {B} had {m:few}.
  {A} brought {n:many} {color} {T:things}, but {B} brought only {m:few}.
  {B} had {m:few} {color} {T:things}. {A} had {n:many}.
one = {A} had {n:many} {color} {T:things} in her {bag}.
  {A} carried {n:many} {color} {T:things} in a {bag}. | In her {bag}, {A} had {n:many} {color} {T:things}.
proud = {A} was proud of her {?n} {T}. | {A} loved her {?n} {T}. | "Look at my {?n} {T}," said {A}.
tell = "How many {T} do you have?" asked {B}. "I have {?n} {T}," said {A}. | {A} showed {B} her {?n} {T}.
  "I have {?n} {T}," said {A}.
tell_both = "I have {?n} {T}," said {A}. "I have {?m} {T}," said {B}.
  "How many {T} do you have?" asked {A}. "I have {?m} {T}," said {B}.
  {A} counted her {?n} {T} and {B} counted his {?m} {T}.
"""

# %%
#| export corpora.grammar
CHANGES = """
give = {A} {handed} {k:some} of them to {B}. | {B} asked for some, so {A} {handed} {B} {k:some}.
gave = Now {A} had {?n-k} {T} and {B} had {?m+k} {T}. | So {B} had {?m+k} {T} and {A} had {?n-k} {T}.
  "Now I have {?n-k} {T}," said {A}. "Now I have {?m+k} {T}," said {B}.
more = {Where}, {A} found {k:some} more. | Then {A} found {k:some} more {where}.
now_more = "How many {T} do you have now?" asked {B}. "Now I have {?n+k} {T}," said {A}.
  So {A} had {?n+k} {T} in the end.
bad = But {k:some} of them fell into the {hole}. | A {look} {animal} ran off with {k:some} of them.
now_less = "How many {T} are left?" asked {B}. "Now I have {?n-k} {T}," said {A}.
  So {A} had only {?n-k} {T} left.
together = Together they had {?n+m} {T}. | They put the {T} together and counted {?n+m} {T}.
"""

# %%
#| export corpora.grammar
DEEDS = """
vow = "I will {V:promise}," said {B}. "I promise." | {B} promised to {V:promise}.
kept = {B} kept his promise and {V.did}, so {A} {handed} {B} {k:some} of the {T}.
  Later {B} {V.did}. To thank him, {A} {handed} {B} {k:some} of the {T}.
wish = {B} had a {color} {O:toy}. {A} wanted the {O}.
  "I have a {color} {O:toy}," said {B}. {A} wanted the {O}.
deal = {A} {handed} {B} {k:some} of the {T} for the {O}.
  So {B} sold the {O} to {A} for {k:some} of the {T}.
traded = Now {A} had the {O} and {?n-k} {T}. | The {O} was hers now, and {A} still had {?n-k} {T}.
seek = {B} looked {where}, and then {where}.
  "Are the {T} {where}?" asked {B}. "No, look {where}," said {A}.
found = There {B} found {?n} {T}. | "How many {T} are there?" asked {A}. "There are {?n} {T}," said {B}.
"""

# %%
#| export corpora.grammar
DETAILS = """
hid = {A} hid {n:many} {color} {T:things} in a {box}.
  {A} put {n:many} {color} {T:things} into a {box} and closed it.
aside = A {look} {animal} {acted} {where}. | {Where}, a {look} {animal} {acted}.
  "Look, a {look} {animal}," said {B}. It {acted} {where}. | {A} was {mood}, and {B} was {mood}.
  {B} talked about a {look} {animal}. That made {A} {mood}.
feel = {A} was {mood}. | She felt {mood}. | "I am {mood}," said {A}. | "You look {mood}," said {B}.
thanks = "Thank you, {A}," said {B}. | "How {good} of you," said {B}. | He was {mood}.
  That made him {mood}.
"""

# %%
#| export corpora.grammar
WORDS = """
where = {near} the {spot}
Where = {Near} the {spot}
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
That is written for people. A program wants a dictionary, and one clear sentence where the grammar is wrong. A line
that stands twice is: then two series of choices tell the same story, and its probability is the sum of both.
"""


# %%
#| export corpora.grammar
def check(lines: list[str], where: str) -> None:
    """ValueError if a line stands twice, or a brace alone."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} stands twice under {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner under {where}: {line}")


# %%
#| export corpora.grammar
@cache
def rules() -> dict[str, list[str]]:
    """Symbol → its alternatives: those between bars and on lines of their own, or the words behind a colon."""
    text, rule = PLOTS + COUNTS + CHANGES + DEEDS + DETAILS + WORDS, r"(?m)^(\w+)( =|:)((?:.|\n  )*)"
    if stray := re.sub(rule, "", text).strip():
        raise ValueError(f"no symbol is defined by: {stray.splitlines()[0]}")
    found: dict[str, list[str]] = {}
    for symbol, mark, rest in re.findall(rule, text):
        if symbol in found:
            raise ValueError(f"the grammar says twice what {symbol} is; give one another name")
        found[symbol] = rest.split() if mark == ":" else re.split(r" \| |\n  ", rest.strip())
        check(found[symbol], symbol)
    return found


# %%
print(f"{len(rules())} symbols; three of them:")
for symbol in ("gave", "feel", "handed"):
    print(f"{symbol}: {' | '.join(rules()[symbol])}")

# %% [markdown]
r"""
Each line is cut into parts, of five kinds:
"""


# %%
#| export corpora.grammar
class Text(NamedTuple):
    words: str


class Pick(NamedTuple):
    symbol: str


class Draw(NamedTuple):
    key: str
    pool: str


class Recall(NamedTuple):
    key: str
    form: int  # 0: as it was drawn, -1: its last form


class Count(NamedTuple):
    terms: tuple[tuple[int, str], ...]  # (sign, key)
    asked: bool  # does it answer who has how many?


# %%
#| export corpora.grammar
Part = Text | Pick | Draw | Recall | Count


@cache
def alternatives(symbol: str) -> list[list[Part]]:
    """A symbol's lines, each cut into parts."""
    cut = [re.findall(r"([^{}]+)|\{([^{}]*)\}", line) for line in rules()[symbol]]
    return [[Text(words) if words else parse(inside, symbol) for words, inside in line] for line in cut]


def parse(inside: str, symbol: str) -> Part:
    """What stands in braces, in a line of symbol. ValueError if it is no part."""
    if inside in rules():
        return Pick(inside)
    if re.fullmatch(r"\w:\w+", inside) and inside[2:] in POOLS:
        return Draw(inside[0], inside[2:])
    if re.fullmatch(r"[A-Z](\.did)?", inside):
        return Recall(inside[0], -1 if inside.endswith(".did") else 0)
    if re.fullmatch(r"\??[a-z]([+-][a-z])*", inside):
        signed = re.findall("([+-]?)([a-z])", inside)
        return Count(tuple((-1 if sign == "-" else 1, key) for sign, key in signed), inside[0] == "?")
    near = difflib.get_close_matches(inside, [*rules(), *(f"{inside[:1]}:{pool}" for pool in POOLS)], 1)
    hint = f"; did you mean {{{near[0]}}}?" if near else ""
    raise ValueError(f"{{{inside}}} under {symbol} is no symbol, draw, fact or sum{hint}")


# %%
for part in alternatives("gave")[1]:
    print(part)

# %% [markdown]
r"""
What a part says follows from the facts, except where it picks or draws:
"""


# %%
#| export
@cache
def entries(pool: str) -> list[tuple[str, ...]]:
    """What a fact of this pool can be, in all its forms; the first is the one that is drawn."""
    check(POOLS[pool].split(", "), pool)
    return [tuple(entry.split("/")) for entry in POOLS[pool].split(", ")]


def fact(key: str, facts: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    if key not in facts:
        raise ValueError(f"{{{key}}} recalls a fact that no sentence before it has drawn")
    return facts[key]


# %%
#| export
def said(part: Text | Recall | Count, facts: dict[str, tuple[str, ...]]) -> str:
    """The words of a part that has no choice."""
    if isinstance(part, Text):
        return part.words
    if isinstance(part, Recall):
        return fact(part.key, facts)[part.form]
    total, words = 0, [fact(key, facts)[0] for _, key in part.terms]
    for (sign, _), word in zip(part.terms, words):
        if word not in NUMBERS:
            raise ValueError(f"{word} is no number word; NUMBERS holds {NUMBERS[0]} to {NUMBERS[-1]}")
        total += sign * NUMBERS.index(word)
    if not 0 <= total < len(NUMBERS):
        how = f"a sum or difference of {' and '.join(words)} is {total}"
        raise ValueError(f"{how}; NUMBERS holds {NUMBERS[0]} to {NUMBERS[-1]}")
    return NUMBERS[total]


# %%
print(len(entries("promise")), "promises, of which the first is", entries("promise")[0])
print("six less two:", said(parse("n-k", "gave"), {"n": ("six",), "k": ("two",)}))

# %% [markdown]
r"""
## Telling a story

Telling is one walk through the parts. Every choice among *k* possibilities costs ln *k* nats, and the story's
log-probability is minus their sum.
"""


# %%
#| export
@dataclass
class Telling:
    """A story as it is told: its text, its facts, and each choice as (where in the text, out of how many)."""

    text: str = ""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    choices: list[tuple[int, int]] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)  # text[start:end] says who has how many,
    kinds: list[str] = field(default_factory=list)  # a fact "copied", or "computed" from two


# %%
#| export
#| blank tell: choose one of the symbol's lines and tell its parts in order; a Pick is a symbol again
def tell(symbol: str, rng: random.Random, told: Telling) -> None:
    """Adds one random expansion of symbol to what was told."""
    for part in choose(alternatives(symbol), rng, told):
        if isinstance(part, Pick):
            tell(part.symbol, rng, told)
            continue
        if isinstance(part, Draw):
            told.facts[part.key] = choose(entries(part.pool), rng, told)
            words = told.facts[part.key][0]
        else:
            words = said(part, told.facts)
        if isinstance(part, Count) and part.asked:
            told.answers.append((len(told.text), len(told.text) + len(words)))
            told.kinds.append("copied" if len(part.terms) == 1 else "computed")
        told.text += words


def choose(options: list, rng: random.Random, told: Telling):
    told.choices.append((len(told.text), len(options)))
    return options[int(rng.random() * len(options))]


# %%
told = Telling()
tell("story", random.Random(3), told)
print(told.text, "\n\nfacts:  ", ", ".join(f"{key} = {entry[0]}" for key, entry in told.facts.items()))
print("choices:", *(options for _, options in told.choices))
print(f"probability e^-{sum(math.log(options) for _, options in told.choices):.3f}")

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
    says of each whether it is "copied" from there or "computed" from two numbers.
    """

    text: str
    logprob: float
    answers: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...] = ()


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng, number = random.Random(seed), 0
    while n is None or number < n:
        told = Telling()
        tell("story", rng, told)
        logprob = -sum(math.log(options) for _, options in told.choices)
        yield Story(told.text, logprob, tuple(told.answers), tuple(told.kinds))
        number += 1


# %%
for story in stories(3, seed=1):
    found = [f"{story.text[start:end]} ({kind})" for (start, end), kind in zip(story.answers, story.kinds)]
    print(f"{story.text}\nanswers: {', '.join(found)}\n")

# %% [markdown]
r"""
Now it is visible where a perfect reader is surprised. The darker a word, the more nats the choices cost that are made
where it begins; on white there is no choice left. Framed: the answers to who has how many.
"""


# %%
def surprise(told: Telling) -> list[tuple[str, float, bool]]:
    """Each word of a story, the nats of the choices made in it, and whether an answer begins in it."""
    shaded = []
    for word in re.finditer(r"\S+", told.text):
        inside = range(*word.span())
        nats = sum(math.log(options) for at, options in told.choices if at in inside)
        shaded.append((word.group(), nats, any(start in inside for start, _ in told.answers)))
    return shaded


# %%
rng, shown = random.Random(5), [Telling(), Telling()]
for told in shown:
    tell("story", rng, told)
alt = "Two stories, each word shaded by its nats: names and counts are dark at first, and white when repeated"
show(figures.surprise([surprise(told) for told in shown]), alt)

# %% [markdown]
r"""
## Reading the choices back

Is that the log-probability of the *text*? Only if no other choices lead to the same text, for their probability
would have to be added. So read stories backwards, from the text to the choices, trying every alternative at every
place. (You may pass over the code. Chapter 08 asks with it which share of a model's stories follow the grammar.)
"""


# %%
#| export
def readings(text: str) -> list[tuple[tuple[int, int], ...]]:
    """All ways to tell a text, each as its choices (where, out of how many); none if the grammar does not tell it."""
    return list(read([Pick("story")], text, 0, {}, ()))


def read(parts: list[Part], text: str, at: int, facts: dict, choices: tuple) -> Iterator[tuple]:
    """The same for parts that are to be all of text[at:], after some choices."""
    if not parts:
        yield from [choices] if at == len(text) else []
        return
    part, *rest = parts
    if isinstance(part, Pick):
        made = (*choices, (at, len(alternatives(part.symbol))))
        for line in alternatives(part.symbol):
            yield from read([*line, *rest], text, at, facts, made)
    elif isinstance(part, Draw):
        made = (*choices, (at, len(entries(part.pool))))
        for entry in entries(part.pool):
            if text.startswith(entry[0], at):
                yield from read(rest, text, at + len(entry[0]), facts | {part.key: entry}, made)
    elif text.startswith(words := said(part, facts), at):
        yield from read(rest, text, at + len(words), facts, choices)


# %% [markdown]
r"""
*Check.* One way each, which has the probability stated. What begins a story is no story yet, so its end costs
nothing: whoever knows the grammar sees it coming. The chapter's tests show both for all stories, not only for sampled
ones.
"""

# %%
for story in stories(300, seed=4):
    found = readings(story.text)
    assert len(found) == 1, f"{len(found)} readings, so its probability is another: {story.text}"
    logprob = -sum(math.log(options) for _, options in found[0])
    assert math.isclose(logprob, story.logprob), f"told with {story.logprob}, read with {logprob}"
print("300 stories, one reading each; without its last letter:", len(readings(story.text[:-1])))

# %% [markdown]
r"""
## The entropy, without a sample

The mean of −log p over all stories is their entropy, and the grammar gives it exactly. A line costs the sum of its
parts; a symbol costs ln *k* for the choice among its lines, and then what they cost on average; a draw costs ln *k*.

*Predict.* How many bytes does a story need at least, if teller and reader share the grammar? How many does a good
general compressor need, bz2, which knows only what it has seen?
"""

# %%
predict("02.3", "bytes a story, at least", guess=None)
predict("02.4", "bytes a story, by bz2", guess=None)


# %%
#| export
#| blank entropy: the log of the number of lines, plus the mean over the lines of what their parts cost
def entropy(symbol: str = "story") -> float:
    """Mean of -log p over all expansions of symbol, in nats, exact (Cover & Thomas 2006, theorem 2.5.1)."""
    lines, total = alternatives(symbol), 0.0
    for part in (part for line in lines for part in line):
        if isinstance(part, Pick):
            total += entropy(part.symbol)
        elif isinstance(part, Draw):
            total += math.log(len(entries(part.pool)))
    return math.log(len(lines)) + total / len(lines)


# %%
SAMPLE, SEED = 10_000, 6
sample = list(stories(SAMPLE, SEED))
costs = [-story.logprob for story in sample]
mean, error = statistics.fmean(costs), statistics.stdev(costs) / math.sqrt(SAMPLE)
print(f"entropy from the grammar   {entropy():.3f} nats a story")
print(f"mean over {SAMPLE:,} stories   {mean:.3f} ± {error:.3f}")
text = "\n".join(story.text for story in sample).encode()
zipped = len(bz2.compress(text)) / SAMPLE
print(
    f"bytes a story: {len(text) / SAMPLE:.0f} as text, {zipped:.0f} by bz2, {entropy() / math.log(256):.1f} needed"
)
answer("02.3", entropy() / math.log(256))
answer("02.4", zipped)
off = abs(mean - entropy()) / error
assert off < 4, f"{off:.1f} standard errors apart: is a choice not counted? By chance, one seed in 16,000"

# %% [markdown]
r"""
## The floor, in nats per token

A model reports its mean loss per *token*. A tokenizer turns a text into ids in one way only, so the ids have the
text's probability, and the floor is the stories' −log p over their number of tokens. One more token counts: the
`<|endoftext|>` between stories. It costs nothing, but it is predicted and averaged like any other.
"""


# %%
#| export
#| blank floor_per_token: all nats over all tokens; every story has one token more than its text
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
few, coders = sample[:1000], {"bytes": SimpleNamespace(encode=str.encode)}  # one that does nothing
for size in (512, 900):
    coders[f"BPE, {size:,}"] = BPETokenizer.train((story.text for story in stories(1000)), size)
for name, coder in coders.items():
    tokens, floor = statistics.fmean(len(coder.encode(s.text)) + 1 for s in few), floor_per_token(few, coder)
    print(
        f"{name:10} {tokens:5.1f} tokens a story × {floor:.3f} nats each = {tokens * floor:.2f} nats a story"
    )

# %% [markdown]
r"""
The same stories, the same nats, three floors: a loss per token says nothing without its tokenizer.

## When can a model reach it?

It gets close when three things hold.

1. *It has learned the grammar*: which sentences follow, which words are equally likely. Every wrong probability
   costs its divergence.
2. *It sees the facts.* If its text begins in the middle of a story, names and counts are out of sight, and no model
   can know them. Chapter 03 counts how often that happens, and makes rows that begin with a story.
3. *It is measured on enough.* A lucky set of stories is less surprising than the entropy says. So the floor is always
   that of the very stories the loss was measured on, not the grammar's mean.

On text that people wrote, nobody knows the floor. Shannon had people guess letters, and concluded between
0.6 and 1.3 bits a letter for printed English (*Prediction and Entropy of Printed English*, 1951, table I and fig. 4).

## The corpus on disk

Later chapters ask for the stories as token ids in files. What these files hold, and why a story's hash decides whether
it is trained on (*train*) or kept for measuring (*val*, *test*), is chapter 03's subject; here its module
`nanogpt/text/shards.py` is used as it comes. Equal stories have equal hashes, so none is in two of the three.
"""


# %%
#| export
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from nanogpt.text import shards


# %%
#| export
def _write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    members: dict[str, list[Story]] = {split: [] for split in shards.SPLITS}
    for story in stories(source["stories"], source["seed"]):
        digest = hashlib.sha256(story.text.encode()).digest()
        members[shards.split_of(digest, val=0.05, test=0.05)].append(story)
    if empty := [split for split, told in members.items() if not told]:
        raise ValueError(
            f"{source['stories']} stories leave none for {empty[0]}, a twentieth; take 200 or more"
        )
    encoding, held = tokenizer.to_tiktoken(), {}
    for split, told in members.items():
        text, path = "".join(f"<|endoftext|>{story.text}" for story in told), folder / f"{split}_000000.bin"
        ids = encoding.encode_to_numpy(text, allowed_special="all")
        shards.write_shard(path, ids)
        shard = {"file": path.name, "tokens": len(ids), "sha256": shards.file_sha256(path)}
        size = sum(len(story.text.encode()) for story in told)
        held[split] = {"documents": len(told), "bytes": size, "tokens": len(ids), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    made_of = {"source": source, "tokenizer": "tokenizer.json", **shards.identity(tokenizer), "splits": held}
    floor = -sum(story.logprob for story in members["val"]) / held["val"]["tokens"]
    return shards.save_manifest(folder, made_of | {"floor": floor})


# %%
#| export
def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The stories as shards in `folder`, with tokenizer.json and manifest.json; made where absent, other or damaged.

    tokenizer: a BPETokenizer; by default the one that chapter 01 left in the folder above, or else the same, trained
    here. n: stories. Returns the manifest; its "floor" is val's entropy in nats per token.
    """
    from nanogpt.text.tokenizer import BPETokenizer  # here: telling stories needs none of its packages

    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # another grammar, another corpus
    with suppress(OSError, ValueError):  # absent or damaged: made again
        manifest = shards.load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source:
            shards.check_shards(folder, manifest)
            return manifest
    (folder / "manifest.json").unlink(missing_ok=True)  # first: it must not describe what is replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return _write_corpus(folder, tokenizer, source)


# %%
manifest = ensure_corpus("../data/built/stories")
for split, held in manifest["splits"].items():
    print(f"{split:5} {held['documents']:6,} stories, {held['tokens']:9,} tokens, {held['bytes']:10,} bytes")
print(
    f"floor of val: {manifest['floor']:.3f} nats a token; who knows nothing: {math.log(manifest['vocab_size']):.3f}"
)

# %%
predictions("02")

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("02")

# %% [markdown]
r"""
## Exercises

`course exercises release 02` writes these as a notebook to `released/`; `course check 02` runs their visible checks.

- **02-1** A floor by hand, 30 minutes: entropy, floor and excess of a small grammar with your own numbers.
- **02-2** When some things are said more often, 25 minutes: the entropy of a grammar whose lines have weights.
- **02-3** One seed for everyone, 15 minutes: mend a seed that is another one in every process.
- **02-4** A check for honest probabilities, 50 minutes: write the check that finds a teller whose floor is false.
- **02-5** Below the floor, 10 minutes: explain how a loss can get there.

To explore:

- **A lie that pays.** In the weather's mean loss, take the probability that the model gave instead of −log of it
  (its mean, the larger the better). Which q is best now? So why is the logarithm right?
- **One more fact.** Let the girl wear a coloured hat in `{open}` and be called "the girl with the green hat" in
  `{close}`. By how much does the entropy rise, by hand? Does the test that finds two readings still pass?
- **Too much.** Put "twelve" into `many`. Which sentence breaks, and after how many stories? What is the largest
  number that `few` may hold?
- **How lucky?** How many stories must a validation set have, so that its own floor is within 0.1% of the entropy
  in two of three cases?

## Further reading

- Shannon 1948, *A Mathematical Theory of Communication*, §6 and §7: entropy, and of texts.
- Cover & Thomas 2006, *Elements of Information Theory*, §2.1 to §2.6: entropy, divergence, the inequality above.
- Eldan & Li 2023, *TinyStories*, §2: small stories by a large model; how small a model can be that tells them.
- Allen-Zhu & Li 2023, *Physics of Language Models: Part 1, Learning Hierarchical Language Structures*, §2: grammars as
  training text, and what a model makes of them.
"""
