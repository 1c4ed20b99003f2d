# %% [markdown]
r"""
# 02 · Corpus: text with a known floor

A model has been trained, and its loss is 1.3. Is that good? Could it be 0.9? On text from the web nobody can say,
because nobody knows how predictable that text is.

This course therefore trains on a text of which we do know it: small stories that a program makes up by rolling dice.
We know every die, so we can compute the lowest loss that any model can reach on average. We call it the *floor*. In
this chapter we first look at the stories and at three very simple models of them. Then we write the program that
tells the stories, and with it we compute the floor.
"""

# %%
#| default_exp corpora.corpus
#| doc corpora.grammar: The grammar of the stories: its text, and the parts that its lines are made of.
#| doc corpora.corpus: Stories from a grammar whose every choice is known, so that the floor of a loss is known.
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from course.figures import corpus as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.text.tokenizer import BPETokenizer

# %%
#| export
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

# %% [markdown]
r"""
## Two stories

You have met the text already: chapter 01 learned its tokens from the file `data/stories.txt`, one story a line. Here
are the first two.
"""

# %%
documents = Path("../data/stories.txt").read_text(encoding="utf-8").splitlines()
print(documents[0], documents[1], sep="\n\n")

# %% [markdown]
r"""
Read them once more, as a model would: from left to right, guessing each next word. Some words you cannot guess, such
as a girl's name when it comes for the first time. Other words you can guess if you have paid attention. When the girl
says how many things she has, the number was given before, or it follows from two numbers that were given.

## Three simple models

How well can one guess? Let us try three models that need no neural network, and look at their loss on 500 stories
that they have not seen. For each token a model gives a probability to every entry of the vocabulary. Its loss is −log
of the probability that it gave to the token that really came, averaged over all tokens. With the natural logarithm
the unit is the *nat*.

- The *uniform* model gives all tokens the same probability.
- The *unigram* model knows how frequent each token is.
- The *bigram* model knows how frequent each token is after the token before it.

*Predict.* The uniform model loses ln 1,024 = 6.93 nats a token. How much does the bigram model lose? And how low
could the best model get that anybody can write?
"""

# %%
predict("02.1", "loss of the bigram model", guess=None, unit="nats a token")
predict("02.2", "loss of the best possible model", guess=None, unit="nats a token")

# %% [markdown]
r"""
We count on all stories but the last 500. Between two stories stands the token `<|endoftext|>`; every model has to
predict it as well.
"""

# %%
HELD_OUT = 500
tokenizer = BPETokenizer.train(documents, 1024)
rows = [[tokenizer.eot, *tokenizer.encode(text), tokenizer.eot] for text in documents]
seen, held_out = rows[:-HELD_OUT], rows[-HELD_OUT:]
ones, pairs, before = Counter(), Counter(), Counter()
for row in seen:
    ones.update(row[1:])
    before.update(row[:-1])
    pairs.update(pairwise(row))

# %% [markdown]
r"""
A count of zero must not become a probability of zero: −log 0 is infinite. So the unigram model adds one to every
count. The bigram model adds one imaginary observation to each row of its table, spread as the unigram model says.
"""


# %%
def uniform(a: int, b: int) -> float:  # the probability of token b after token a
    return 1 / tokenizer.vocab_size


def unigram(a: int, b: int) -> float:
    return (ones[b] + 1) / (ones.total() + tokenizer.vocab_size)


def bigram(a: int, b: int) -> float:
    return (pairs[a, b] + unigram(a, b)) / (before[a] + 1)


ladder = {}
for model in (uniform, unigram, bigram):
    losses = [-math.log(model(a, b)) for row in held_out for a, b in pairwise(row)]
    ladder[model.__name__] = sum(losses) / len(losses)
    perplexity = math.exp(ladder[model.__name__])
    print(f"{model.__name__:8} {ladder[model.__name__]:.2f} nats a token, perplexity {perplexity:6.1f}")
answer("02.1", ladder["bigram"])

# %% [markdown]
r"""
The second column says the same in another unit. *Perplexity* is e to the power of the loss. A model with perplexity 8
is as uncertain, on average, as somebody who chooses among 8 equally likely tokens.

The bigram model sounds good for something that sees one token. What does it write? We let it tell on from
`<|endoftext|>` until it says `<|endoftext|>` itself.
"""

# %%
rng, text = random.Random(0), [tokenizer.eot]
while len(text) < 90 and (len(text) == 1 or text[-1] != tokenizer.eot):
    after = {b: n for (a, b), n in pairs.items() if a == text[-1]}
    text += rng.choices(list(after), list(after.values()))
print(tokenizer.decode(text[1:]))

# %% [markdown]
r"""
It babbles. Every pair of neighbours is fine, but the girl changes her name in mid-story and the numbers do not add
up. To do better, a model must look further back: to the name, to the number, to the promise. That is what attention
does, from chapter 04 on.

So there is room below the bigram's loss. But how much? The fourth line of the table, the best possible model, is
missing. The rest of this chapter computes it.

## A floor for the weather

First a text that is simpler than a story. Somewhere the sun shines on 80% of the days, and no day tells us anything
about the next one. Every morning a model says the same q(sun). Which q has the lowest mean loss?
"""


# %%
def mean_loss(p: dict[str, float], q: dict[str, float]) -> float:
    """The mean loss, in nats, of a model that says q, where words really come with probabilities p."""
    return sum(p[word] * -math.log(q[word]) for word in p)


p = {"sun": 0.8, "rain": 0.2}
for sun in (0.5, 0.8, 0.95, 0.999):
    print(f"q(sun) = {sun:5}: {mean_loss(p, {'sun': sun, 'rain': 1 - sun}):.3f} nats a day")
alt = "Mean loss against q(sun): a valley whose lowest point, above zero, is at q = p"
show(figures.mean_losses(mean_loss, p), alt)

# %% [markdown]
r"""
The best model says the true probability, 0.8. It still loses 0.500 nats a day, because the weather is surprising even
to somebody who knows it perfectly. This unavoidable loss, Σ p log 1/p, is the *entropy* of p: the dashed line in the
figure. A model that is too careful (0.5) loses more, and so does one that is too sure (0.999).

The extra loss of a wrong q is the *Kullback–Leibler divergence* of p and q, Σ p log p/q. It is never negative. The
proof takes one line: log x ≤ x − 1, so Σ p log q/p ≤ Σ p (q/p − 1) = Σ q − Σ p = 0.

Three special cases are worth remembering. A certain word has the entropy 0. A coin toss has ln 2 = 0.693 nats. A
choice among *k* equally likely words has ln *k*.

## A small grammar

Our stories are made of choices of the last kind, among *k* equally likely possibilities. A *grammar* says what there
is to choose from. Here is a small one. The stories of the course use a larger one with the same notation, which comes
later in this chapter.

A *symbol*, such as `open`, can become any of its lines. Bars separate lines, and behind a colon each word is a line.
What stands in braces is filled in:

- `{open}` is a symbol: choose one of its lines.
- `{A:girl}` draws a *fact* from the pool `girl`, remembers it under the name `A`, and says it.
- `{A}` says the fact again. No choice is left.
- `{n-k}` is arithmetic on two facts that are numbers. No choice is left here either.
- A question mark, as in `{?n-k}`, does not change the text. It marks the answer to "who has how many?". Later
  chapters count how many of these answers a model gets right.
"""

# %%
GRAMMAR = """
story = {open} {proud} {gift} {now}
open = {A:girl} had {n:many} {T:things}. | {A:girl} found {n:many} {T:things}.
proud = {A} was {mood}. | "I have {?n} {T}," said {A}.
gift = She gave {k:some} to {B:boy}.
now = Now {A} had {?n-k} {T}.
mood: glad happy proud
"""
POOLS = {"girl": "Anna, Mia, Zoe", "boy": "Ben, Tom", "things": "coins, nuts, shells, stones"}
POOLS |= {"many": "six, seven, eight", "some": "one, two"}


def grammar() -> str:
    return GRAMMAR


# %% [markdown]
r"""
People read this easily. A program wants each line cut into parts. There are five kinds:
"""

# %%
#| export corpora.grammar
import re
from collections import namedtuple
from functools import cache
from pathlib import Path

import nanogpt

Text = namedtuple("Text", "words")  # said as it is
Pick = namedtuple("Pick", "symbol")  # one of the symbol's lines
Draw = namedtuple("Draw", "key pool")  # a new fact
Recall = namedtuple("Recall", "key form")  # a fact again, in its first form (0) or its last (-1)
Count = namedtuple("Count", "terms asked")  # a sum of facts: terms are (sign, key) pairs
Part = Text | Pick | Draw | Recall | Count


# %%
#| export corpora.grammar
def parse(inside: str) -> Part:
    """The part that stands in braces."""
    if ":" in inside:
        return Draw(*inside.split(":"))
    if re.fullmatch(r"[A-Z](\.did)?", inside):
        return Recall(inside[0], -1 if inside.endswith(".did") else 0)
    if re.fullmatch(r"\??[a-z]([+-][a-z])*", inside):
        terms = re.findall("([+-]?)([a-z])", inside)
        return Count(tuple((-1 if sign == "-" else 1, key) for sign, key in terms), inside[0] == "?")
    return Pick(inside)


# %%
for inside in ("open", "A:girl", "A", "?n-k"):
    print(f"{{{inside}}}".ljust(10), parse(inside))

# %% [markdown]
r"""
The next cell reads the grammar: first into a dictionary from each symbol to its lines, then each line into its parts.
"""


# %%
#| export corpora.grammar
@cache
def read_rules(grammar: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for symbol, mark, rest in re.findall(r"(?m)^(\w+)( =|:)((?:.|\n  )*)", grammar):
        if symbol in found:
            raise ValueError(f"the grammar says twice what {symbol} is; give one another name")
        found[symbol] = rest.split() if mark == ":" else re.split(r" \| |\n  ", rest.strip())
    return found


def rules() -> dict[str, list[str]]:
    """Symbol → its lines."""
    return read_rules(grammar())


@cache
def alternatives(symbol: str) -> list[list[Part]]:
    """A symbol's lines, each cut into parts."""
    if symbol not in rules():
        raise ValueError(f"the grammar has no symbol {{{symbol}}}; is it spelled right?")
    cut = [re.findall(r"([^{}]+)|\{([^{}]*)\}", line) for line in rules()[symbol]]
    return [[Text(words) if words else parse(inside) for words, inside in line] for line in cut]


# %%
for line in alternatives("proud"):
    print(*line, sep="\n", end="\n\n")

# %% [markdown]
r"""
## Telling a story

A pool's entries are separated by commas. An entry may have two forms with a slash between them: a boy who promised to
"light the lamp" has later "lit the lamp". `said` gives the words of a part that leaves no choice.
"""

# %%
#| export corpora.grammar
NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
]


# %%
#| export
def add(terms: list[tuple[int, str]]) -> str:
    """The number word for a sum: (1, "six") and (-1, "two") are "four"."""
    for _, word in terms:
        if word not in NUMBERS:
            raise ValueError(f"{word} is no number word; NUMBERS holds zero to sixteen")
    total = sum(sign * NUMBERS.index(word) for sign, word in terms)
    if not 0 <= total < len(NUMBERS):
        words = " and ".join(word for _, word in terms)
        raise ValueError(f"a sum or difference of {words} is {total}; NUMBERS holds zero to sixteen")
    return NUMBERS[total]


# %%
print("six less two is", add([(1, "six"), (-1, "two")]))


# %%
#| export
@cache
def entries(pool: str) -> list[tuple[str, ...]]:
    """What a fact of this pool can be, in all its forms; the first form is the one that is drawn."""
    if pool not in POOLS:
        raise ValueError(f"there is no pool {pool!r}; the pools are {', '.join(POOLS)}")
    found = POOLS[pool].split(", ")
    if len(set(found)) < len(found):
        raise ValueError(
            f"an entry stands twice under {pool}, so two choices would tell one text; remove one"
        )
    return [tuple(entry.split("/")) for entry in found]


def said(part: Text | Recall | Count, facts: dict[str, tuple[str, ...]]) -> str:
    """The words of a part that leaves no choice."""
    if isinstance(part, Text):
        return part.words
    keys = [part.key] if isinstance(part, Recall) else [key for _, key in part.terms]
    for key in keys:
        if key not in facts:
            raise ValueError(f"{{{key}}} recalls a fact that no sentence before it has drawn")
    if isinstance(part, Recall):
        return facts[part.key][part.form]
    return add([(sign, facts[key][0]) for sign, key in part.terms])


# %%
facts = {"A": ("Mia",), "n": ("six",), "k": ("two",)}
print([said(parse(inside), facts) for inside in ("A", "n", "n-k")])

# %% [markdown]
r"""
Now we can tell. `tell` walks through the parts of a line. Where there is a choice, it rolls the dice and writes down
how many possibilities there were.
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


# %% [markdown]
r"""
Let us follow one story by hand. Every row below is one choice: among how many possibilities, what it costs, and the
text that begins there.
"""

# %%
told, total = Telling(), 0.0
tell("story", random.Random(3), told)
print(told.text, "\n")
for at, options in told.choices:
    total += math.log(options)
    print(f"1 of {options}: {math.log(options):.3f} nats, {total:.3f} so far   {told.text[at : at + 20]}…")

# %% [markdown]
r"""
The rows with "1 of 1" are symbols that have a single line. They leave no choice and cost nothing. The number of
shells after the gift has no row at all: it is a subtraction, and whoever remembers both numbers can do it.

Independent choices multiply their probabilities, so their logarithms add. The last sum is −log of the probability of
this very story. A model that knows the grammar loses exactly this much on it, over all its tokens together, and no
model can lose less on average.

## Probabilities that can be trusted

This works only if the sum is right. *Check.* The probabilities of all possible stories must add up to one. The small
grammar has few enough of them that we can tell stories until we have seen them all.
"""


# %%
#| export
@dataclass(frozen=True)
class Story:
    """A text, the natural logarithm of its probability, and where its who-has-how-many answers stand.

    answers: text[start:end] is a number word that follows from the text before. kinds: "copied", or "computed" from two.
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
different = {story.text: math.exp(story.logprob) for story in stories(20_000)}
print(f"{len(different):,} different stories; their probabilities add up to {sum(different.values()):.6f}")
assert sum(different.values()) < 1 + 1e-9, "more than one: a choice is not counted"

# %% [markdown]
r"""
A sum above one would mean that a choice was forgotten. But there is a second way to go wrong. If two different series
of choices lead to the same text, the probability of that text is the sum of both, and each of them alone is too
small. Then the sum above comes out below one.

The real grammar has far too many stories to count them. So we read a story backwards, from the text to the choices:
try every possibility at every place, and keep those that fit. Exactly one reading must be left. (You may pass over
the code. Chapter 08 uses it to see how many of a model's stories follow the grammar.)
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
## The entropy of a grammar

One story costs more than another. The mean over all stories is the entropy of the grammar, and we can compute it
without telling a single one. A symbol costs ln *k* for the choice among its *k* lines, plus the mean over these lines
of what their parts cost. A draw costs the logarithm of the pool's size. Everything else costs nothing.
"""


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


# %% [markdown]
r"""
*Check.* For the small grammar we can do it by hand. `open` has 2 lines, 3 girls, 3 numbers and 4 things. `proud` has
2 lines, and one of them picks among 3 moods, so that the moods count half. `gift` draws from 2 numbers and 2 boys.
"""

# %%
by_hand = math.log(2 * 3 * 3 * 4) + math.log(2) + math.log(3) / 2 + math.log(2 * 2)
mean = sum(-story.logprob for story in stories(20_000)) / 20_000
print(
    f"by hand {by_hand:.4f}, by the function {entropy():.4f}, mean of 20,000 stories {mean:.4f} nats a story"
)

# %% [markdown]
r"""
## The stories of this course

Now the real grammar. It uses the same notation and the same code; there is only more of it. Its lines are in the file
`data/grammar.txt`, and its pools are below. A story follows one of seven plots, and in each of them the facts come
back later: who was there, what they had, how many, and what was promised.
"""

# %%
#| export corpora.grammar
FILE = Path(nanogpt.__file__).resolve().parents[1] / "data" / "grammar.txt"
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


@cache
def grammar() -> str:
    """The sentences of the stories. Who tells none, as on a server, does not need the file."""
    return FILE.read_text(encoding="utf-8")


# %%
print(grammar()[grammar().index("story =") : grammar().index("proud =")])

# %% [markdown]
r"""
These are the plots, three ways to begin and end, and the sentences that say how many things there are. Open the file
to see the rest; it is more of the same. (If you go back to the small grammar and run its cell again, then run the
cells below it again, too.)

Two mistakes happen easily when one writes such a grammar. A brace is missing, or a line is there twice. The second is
worse than it looks: two different choices then tell the same text, and its probability is the sum of both.
"""


# %%
#| export corpora.grammar
def check(lines: list[str], where: str) -> None:
    """ValueError if a line is there twice, or a brace alone."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} stands twice under {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner under {where}: {line}")


# %%
alternatives.cache_clear()  # forget the small grammar
entries.cache_clear()
for where, lines in [*rules().items(), *((pool, text.split(", ")) for pool, text in POOLS.items())]:
    check(lines, where)
print(f"{len(rules())} symbols, {len(POOLS)} pools")
if [story.text for story in stories(len(documents))] == documents:
    print(f"Its first {len(documents):,} stories are those in data/stories.txt.")
else:
    print("It tells other stories than data/stories.txt: somebody has changed it.")

# %% [markdown]
r"""
So the stories from chapter 01 come from this grammar. Where is a perfect reader surprised by them? Below, a dark word
cost many nats: there the grammar chose. A white word was certain. The framed words answer who has how many.
"""


# %%
rng, shown = random.Random(5), [Telling(), Telling()]
for told in shown:
    tell("story", rng, told)
alt = "Two stories, each word shaded by its nats: names and counts are dark at first, and white when repeated"
show(figures.surprise(shown), alt)

# %% [markdown]
r"""
Follow a name or a number from left to right. It is dark when it is drawn and white when it comes back. (The first
word is dark for another reason: the plot and the opening are chosen there.) All framed words are white: a reader who
remembers and can add is certain of them.

*Check.* The real stories, too, have one reading each, and its choices give the probability that we stored.
"""

# %%
for story in stories(300, seed=4):
    found = readings(story.text)
    assert len(found) == 1, f"{len(found)} readings, so its probability is another: {story.text}"
    logprob = -sum(math.log(options) for _, options in found[0])
    assert math.isclose(logprob, story.logprob), f"told with {story.logprob}, read with {logprob}"
print(
    "300 stories, one reading each; without its last letter the last one has", len(readings(story.text[:-1]))
)

# %% [markdown]
r"""
The last number says something about the end of a story. No story is the beginning of another one, so a reader who
knows the grammar always knows when a story is over. (That these 300 were no exception is proved by the chapter's
tests, line by line of the grammar, for all stories.)

## The floor, in nats a token

A model reports its loss per *token*, averaged over a text. A tokenizer turns each story into ids in exactly one way,
so the ids have the same probability as the story. The floor is therefore all nats divided by all tokens. The
`<|endoftext|>` that ends a story is a token, too. It costs nothing, but it is predicted and counted like the others.
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


# %% [markdown]
r"""
Now we can fill in the missing line of the first table, for the same 500 stories.
"""

# %%
last = list(stories(len(documents)))[-HELD_OUT:]
ladder["floor"] = floor_per_token(last, tokenizer)
for name, nats in ladder.items():
    print(f"{name:8} {nats:.2f} nats a token, perplexity {math.exp(nats):6.1f}")
answer("02.2", ladder["floor"])
print(f"\na story: {entropy():.2f} nats on average, which are {entropy() / math.log(256):.1f} bytes")

# %% [markdown]
r"""
This table is the frame for the rest of the course. The loss of a trained model will be between the bigram's and the
floor, and the distance to the floor says how much it still has to learn. The perplexity of the floor shows how
strange our text is: on average there are fewer than two possibilities for the next token, because most of a story
follows from its beginning.

The last line looks at the same number from another side. Teller and reader who share the grammar could send a whole
story in these few bytes.

*Try it.* What happens to the floor if single bytes take the place of the 1,024 tokens?
"""

# %%
for name, coder in [("bytes", SimpleNamespace(encode=str.encode)), ("1,024 tokens", tokenizer)]:
    tokens, floor = sum(len(coder.encode(s.text)) + 1 for s in last), floor_per_token(last, coder)
    print(f"{name:12} {tokens:7,} tokens × {floor:.3f} nats each = {tokens * floor:,.0f} nats in all")

# %% [markdown]
r"""
The stories are the same and so are the nats of a story. Only the number of tokens differs. So a loss per token says
nothing unless one says with which tokenizer it was measured.

## When does a model reach the floor?

A model gets close to the floor if two things are true.

1. *It has learned the grammar*: which sentences can follow, and which words are equally likely. Every wrong
   probability costs its divergence.
2. *It sees the facts.* If its text begins in the middle of a story, the names and numbers are out of sight, and no
   model can know them. Chapter 03 counts how often that happens, and builds rows that begin with a story.

A comparison needs one more precaution: take the floor of the same stories on which the loss was measured. Some
stories are less surprising than others, and on a lucky set a perfect model loses less than the entropy. For the same
reason the floor is a limit *on average*: a wrong model may beat it by luck on a few stories, and loses on many.

On text that people wrote, nobody knows the floor. Shannon had people guess the letters of printed English, and
concluded that it lies between 0.6 and 1.3 bits a letter (*Prediction and Entropy of Printed English*, 1951, table I
and fig. 4).
"""

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
- **02-3** One seed for everyone, 15 minutes: repair a seed that differs from process to process.
- **02-4** A check for honest probabilities, 50 minutes: write the check that finds a teller whose floor is false.
- **02-5** Below the floor, 10 minutes: explain how a loss can get there.

To explore:

- **A better table.** Give the bigram model a second token of memory. How far does the loss fall, and how many of the
  pairs in the held-out stories has it never seen?
- **Another score.** In the weather's mean loss, use the probability that the model gave instead of −log of it (the
  larger the better). Which q is best now? So why is the logarithm the right choice?
- **One more fact.** In `data/grammar.txt`, let the girl wear a coloured hat in `{open}` and be called "the girl with
  the green hat" in `{close}`. By how much does the entropy rise, by hand? Does the test that finds two readings still
  pass?
- **Too much.** Put "twelve" into `many`. Which sentence breaks, and after how many stories? What is the largest
  number that `few` may hold?

## Further reading

- Shannon 1948, *A Mathematical Theory of Communication*, §6 and §7: entropy, and the entropy of texts.
- Cover & Thomas 2006, *Elements of Information Theory*, §2.1 to §2.6: entropy, divergence, the inequality above.
- Eldan & Li 2023, *TinyStories*, §2: small stories by a large model; how small a model can be that tells them.
- Allen-Zhu & Li 2023, *Physics of Language Models: Part 1, Learning Hierarchical Language Structures*, §2: grammars
  as training text, and what a model makes of them.
"""
