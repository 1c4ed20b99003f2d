# %% [markdown]
r"""
# 02 · Corpus: text with a known floor

A model has been trained, and its loss is 1.3. Is that good? Could it be 0.9? On text from the web nobody can say,
because nobody knows how predictable that text is.

A collection of text to train on is called a *corpus*. The corpus of this course consists of small stories that a
program makes up by rolling dice. We know every die, so we can compute the lowest loss that any model can reach on
average. We call it the *floor*. In this chapter we tell a first story with a few lists, look at the stories of the course and at
three very simple models of them, and then write the program that tells these stories. With it we compute the floor.
"""

# %%
#| default_exp labs.corpora.stories
#| doc labs.corpora.stories: The generated stories: a grammar that writes them, and their exact log-probability.
#| doc labs.evals.floor: What the best possible model loses on stories, and from a text back to the choices behind it.
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from course.figures import corpus as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.tokenizer import BPETokenizer

# %%
#| export
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

# %% [markdown]
r"""
## A story from lists

How does a program make up a story? It needs words that are always the same, and places where it can choose. In the
next cell, a string is told as it is. A list is a choice: one of its elements is told. A tuple has parts, which are
told one after the other. Lists and tuples may contain each other.
"""


# %%
def tell_lists(part, rng: random.Random) -> str:
    if isinstance(part, str):  # words
        return part
    if isinstance(part, list):  # a choice
        return tell_lists(rng.choice(part), rng)
    return "".join(tell_lists(p, rng) for p in part)  # parts in order


girl, thing = ["Anna", "Mia", "Zoe"], ["coins", "nuts", "shells", "stones"]
proud = [(girl, " was ", ["glad", "happy", "proud"], "."), ("She liked her ", thing, ".")]
story = (girl, [" had ", " found "], ["six", "seven", "eight"], " ", thing, ". ", proud)
rng = random.Random(2)
for _ in range(4):
    print(tell_lists(story, rng))

# %% [markdown]
r"""
The lists tell 936 different stories: 3 · 2 · 3 · 4 = 72 first sentences, and after each of them one of 9 + 4 second
ones. Two things are wrong with them. Anna has the shells, and Zoe is proud; and a girl who found six coins likes her
stones. The lists choose anew at each place, and remember nothing. A story needs *facts*: a name that is drawn once
and then comes back. Our grammar will have them.

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
as a girl's name when it appears for the first time. Other words you can guess if you have paid attention. Behind
*her* and *his* there is a number that was given before, and what somebody has *now* follows from two numbers.

## Three simple models

How well can one guess? Let us try three models that need no neural network, and look at their loss on 500 stories
that they have not seen. The text is cut into tokens, and the vocabulary has 1,024 of them, as in chapter 01. Before
each token of a text, a model gives a probability to every token of the vocabulary. Then it sees which token really
came. Its loss is −log of the probability that it gave to this token, averaged over the whole text. We take the
natural logarithm; the unit of the loss is then called the *nat*.

- The *uniform* model gives all tokens the same probability.
- The *unigram* model knows how frequent each token is.
- The *bigram* model knows how frequent each token is after the token before it.

*Predict.* The uniform model gives each token the probability 1/1,024, so it loses ln 1,024 = 6.93 nats a token. How
much does the bigram model lose? And how low is the loss of the best possible model?
"""

# %%
predict("02.1", "loss of the bigram model", guess=None, unit="nats a token")
predict("02.2", "loss of the best possible model", guess=None, unit="nats a token")

# %% [markdown]
r"""
We count in all stories but the last 500. The tokenizer may see all of them, because it gives no probabilities. The
token `<|endoftext|>` is put before and after each story, and a model has to predict the one at the end as well. In the
cell, `ones` counts how often each token comes, `pairs` counts each pair of neighbours, and `before` counts how often
each token is the first of a pair.
"""

# %%
HELD_OUT = 500
assert 0 < HELD_OUT < len(documents), f"HELD_OUT is {HELD_OUT}: hold out 1 to {len(documents) - 1} stories"
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
A count of zero must not become a probability of zero, because −log 0 is infinite. So the unigram model adds one to
every count. The bigram model has a row of counts for each token *a*. It adds one imaginary observation to each row,
and divides it among all tokens *b* in proportion to their unigram probabilities.
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

The bigram model does well for a model that sees only one token. What does it write? We start it with
`<|endoftext|>` and draw one token after another from its counts, until it draws `<|endoftext|>` itself.
"""

# %%
rng, text = random.Random(0), [tokenizer.eot]
while len(text) < 90:
    after = {b: n for (a, b), n in pairs.items() if a == text[-1]}
    text += rng.choices(list(after), list(after.values()))
    if text[-1] == tokenizer.eot:
        break
print(tokenizer.decode(text[1:]))

# %% [markdown]
r"""
It babbles. Every pair of neighbours is fine, but the names change from one sentence to the next, and the
numbers do not fit each other. To do better, a model must look further back, to the name and to the numbers. Attention
makes this possible, from chapter 04 on.

There is room below the bigram's loss. How much? The table needs a fourth line, for the best possible model.
The rest of this chapter computes it.

## The lowest loss for a simple text

We begin with a text that is simpler than a story. Somewhere the sun shines on 80% of the days, and no day tells us
anything about the next one. Every evening the text gets one more word, *sun* or *rain*. Every morning a model says
the same probability q(sun) for the word of this day. Which q has the lowest mean loss?
"""


# %%
def mean_loss(p: dict[str, float], q: dict[str, float]) -> float:
    """The mean loss, in nats, of a model that says q, where words really come with probabilities p."""
    if min(q.values()) == 0:
        return math.inf  # a word that the model excludes comes some day
    return sum(p[word] * -math.log(q[word]) for word in p)


p = {"sun": 0.8, "rain": 0.2}
for sun in (0.5, 0.8, 0.95, 0.999):
    print(f"q(sun) = {sun:5}: {mean_loss(p, {'sun': sun, 'rain': 1 - sun}):.3f} nats a day")
alt = "Mean loss against q(sun): a valley whose lowest point, above zero, is at q = p"
show(figures.mean_losses(mean_loss, p), alt)

# %% [markdown]
r"""
The best model says the true probability, 0.8. It still loses 0.500 nats a day, because the weather is surprising even
to somebody who knows it perfectly. This unavoidable loss, Σ p log 1/p, is the *entropy* of p. It is the dashed line
in the figure. A model that is too careful (0.5) loses more, and so does one that is too sure (0.999). A model that
said 1 would have an infinite loss on the first rainy day.

The wrong q loses Σ p log 1/q. The difference to the entropy is Σ p log p/q. It is called the *Kullback–Leibler
divergence* of p and q, and it is never negative. The proof takes one line. Since log x ≤ x − 1, Σ p log q/p ≤
Σ p (q/p − 1) = Σ q − Σ p = 0, and the divergence is the left side with the opposite sign.

Three special cases are worth remembering. The entropy of a word that is certain is 0. The entropy of a coin toss is
ln 2 = 0.693 nats. The entropy of a choice among *k* equally likely words is ln *k*.

## A small grammar

Our stories are made of choices of the last kind, among *k* equally likely possibilities. The lists above made such
choices. A *grammar* is the same in a file: it has a name for each list, and marks for the facts that come back. The
next cell contains a small one. The stories of the course come from a larger grammar in the same notation, later in
this chapter.

A *symbol*, such as `open`, is the name of a list. Its elements are called *lines*, and bars separate them. If the
symbol is followed by a colon instead of an equals sign, each word is a line. A pair of braces marks a place where the
program puts in words:

- `{open}` is a symbol: choose one of its lines.
- `{A:girl}` draws a *fact*: it chooses one of the lines of `girl`, remembers it under the name `A`, and says it. A
  symbol from which facts are drawn is called a *pool*. The pools are the last lines of the grammar.
- `{A}` says the fact again. No choice is left.
- `{n-k}` is arithmetic on two facts that are numbers. No choice is left here either.
- A question mark, as in `{?n-k}`, does not change the text. It marks the answer to "who has how many?". Later
  chapters count how many of these answers a model gets right.

The functions below call `grammar()` for the text of the grammar, so that we can exchange the grammar later. If you
change the grammar, run all cells from there on again, because the functions remember what they have read.
"""

# %%
GRAMMAR = """
story = {open} {proud} {gift} {now}
open = {A:girl} had {n:many} {T:things}. | {A:girl} found {n:many} {T:things}.
proud = {A} was {mood}. | "I have {?n} {T}," said {A}.
gift = She gave {k:some} to {B:boy}.
now = Now {A} had {?n-k} {T}.
mood: glad happy proud
girl: Anna Mia Zoe
boy: Ben Tom
things: coins nuts shells stones
many: six seven eight
some: one two
"""


def grammar() -> str:
    return GRAMMAR


# %% [markdown]
r"""
You can read this grammar as it is. A program needs two steps. The first makes lists of lines from the text. Its regular expression finds, at the
beginning of a line of the file (`(?m)^`), a symbol (`\w+`), then an equals sign or a colon, then all the rest, to which further lines belong if
they begin with two spaces (`\n  `). The rest is cut at white space after a colon, and at bars and before such further lines after an equals sign.
`@cache` keeps the result of a function, so that the grammar is read only once.
"""


# %%
#| export
import re
from functools import cache
from importlib.resources import files


@cache
def read_rules(grammar: str) -> dict[str, list[str]]:
    lines = {}
    for symbol, mark, rest in re.findall(r"(?m)^(\w+)( =|:)((?:.|\n  )*)", grammar):
        if symbol in lines:
            raise ValueError(f"the grammar defines {symbol} twice; give one of them another name")
        lines[symbol] = rest.split() if mark == ":" else re.split(r" \| |\n  ", rest.strip())
    return lines


def rules() -> dict[str, list[str]]:
    """Symbol → its lines."""
    return read_rules(grammar())


# %%
print(rules()["girl"])
print(rules()["proud"])

# %% [markdown]
r"""
These are lists as before. The second step cuts a line into parts. Two kinds of parts are known from our first story:

- `Text` is a string, told as it is.
- `Pick` is a choice: one of the lines of a symbol, told in its turn.

Three are new, because they remember:

- `Draw` chooses a fact from a pool and gives it a name.
- `Recall` tells a fact again.
- `Count` adds and subtracts facts that are numbers.

`parse` makes a part from the text between two braces. A colon means a draw. A single capital letter (`[A-Z]`) recalls a
fact; the ending `.did` is for facts with two forms, and the next section needs it. Small letters with plus or minus
signs between them (`[a-z]([+-][a-z])*`), perhaps after a question mark, are a sum, and `findall` gives each letter with
the sign before it. Everything else is a symbol.
"""

# %%
#| export
from collections import namedtuple

Text = namedtuple("Text", "words")  # said as it is
Pick = namedtuple("Pick", "symbol")  # one of the symbol's lines
Draw = namedtuple("Draw", "key pool")  # a new fact
Recall = namedtuple("Recall", "key form")  # a fact again, in its first form (0) or its last (-1)
Count = namedtuple("Count", "terms asked")  # a sum of facts: terms are (sign, key) pairs
Part = Text | Pick | Draw | Recall | Count


# %%
#| export
def parse(inside: str) -> Part:
    """The part for a text between two braces."""
    if ":" in inside:
        return Draw(*inside.split(":"))
    if re.fullmatch(r"[A-Z](\.did)?", inside):
        return Recall(inside[0], -1 if inside.endswith(".did") else 0)
    if re.fullmatch(r"\??[a-z]([+-][a-z])*", inside):
        signed = re.findall("([+-]?)([a-z])", inside)  # "n-k" gives ("", "n") and ("-", "k")
        terms = [(-1 if sign == "-" else 1, key) for sign, key in signed]
        return Count(tuple(terms), asked=inside.startswith("?"))
    return Pick(inside)


# %%
for inside in ("open", "A:girl", "A", "?n-k"):
    print(f"{{{inside}}}".ljust(10), parse(inside))

# %% [markdown]
r"""
The last one is a sum of two terms, +n and −k, and it is an answer. `alternatives` cuts all lines of a symbol. Its regular expression finds either words
without braces (`[^{}]+`) or what is between two braces:
"""


# %%
#| export
@cache
def alternatives(symbol: str) -> list[list[Part]]:
    """A symbol's lines, each cut into parts."""
    if symbol not in rules():
        raise ValueError(f"the grammar has no symbol {{{symbol}}}; is it spelled right?")
    lines = []
    for line in rules()[symbol]:
        pieces = re.findall(r"([^{}]+)|\{([^{}]*)\}", line)  # (words, "") or ("", text between braces)
        lines.append([Text(words) if words else parse(inside) for words, inside in pieces])
    return lines


# %%
for line in alternatives("proud"):
    print(*line, sep="\n", end="\n\n")

# %% [markdown]
r"""
## Telling a story

In the course's grammar, some facts have two forms with a slash between them. For example, `light the lamp/lit the lamp`
is a promise: `{V}` says what a boy promised, and `{V.did}` says later that he did it. In our small grammar every fact
has one form.

Numbers are words in our stories, so the program needs a function that adds number words:
"""

# %%
#| export
NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
]  # fmt: skip


def add(terms: list[tuple[int, str]]) -> str:
    """The number word for a sum: (1, "six") and (-1, "two") are "four"."""
    for _, word in terms:
        if word not in NUMBERS:
            raise ValueError(f"{word} is not a number word; NUMBERS holds zero to sixteen")
    total = sum(sign * NUMBERS.index(word) for sign, word in terms)
    if not 0 <= total < len(NUMBERS):
        words = " and ".join(word for _, word in terms)
        raise ValueError(f"a sum or difference of {words} is {total}; NUMBERS holds zero to sixteen")
    return NUMBERS[total]


# %%
print("six less two is", add([(1, "six"), (-1, "two")]))

# %% [markdown]
r"""
`entries` lists the facts of a pool. `words_of` gives the words of a part that leaves no choice.
"""


# %%
#| export
@cache
def entries(pool: str) -> list[tuple[str, ...]]:
    """What a fact of this pool can be, in all its forms; the first form is the one that is drawn."""
    lines = rules().get(pool)
    if lines is None or "{" in "".join(lines):
        raise ValueError(f"the grammar has no pool {pool!r}, a symbol without braces; is it spelled right?")
    if len(set(lines)) < len(lines):
        raise ValueError(f"{pool} has an entry twice, so two choices give the same text; remove one")
    return [tuple(line.split("/")) for line in lines]


def words_of(part: Text | Recall | Count, facts: dict[str, tuple[str, ...]]) -> str:
    """The words of a part that leaves no choice."""
    try:
        if isinstance(part, Text):
            return part.words
        if isinstance(part, Recall):
            return facts[part.key][part.form]
        return add([(sign, facts[key][0]) for sign, key in part.terms])
    except KeyError as key:
        raise ValueError(f"{{{key.args[0]}}} recalls a fact that no sentence before it has drawn") from None


# %%
facts = {"A": ("Mia",), "n": ("six",), "k": ("two",)}
print([words_of(parse(inside), facts) for inside in ("A", "n", "n-k")])

# %% [markdown]
r"""
Now we can tell a story. The function `tell` goes through the parts of a line. Where there is a choice, it calls
`choose`, which rolls the dice and writes down how many possibilities there were. It also notes where the answers are,
and whether an answer repeats one fact or is computed from two. `choose` does not use `rng.choice`, because Python
promises the same numbers in every version for `rng.random` only.
"""


# %%
#| export
@dataclass
class Story:
    """A text, and what is known about it because it was made by rolling dice."""

    text: str = ""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # key -> the forms of what was drawn
    choices: list[tuple[int, int]] = field(default_factory=list)  # where in the text, out of how many
    answers: list[tuple[int, int]] = field(default_factory=list)  # text[start:end] says who has how many
    kinds: list[str] = field(default_factory=list)  # of each answer: "copied", or "computed" from two facts


# %%
#| export
#| blank tell: choose one of the symbol's lines; a Pick is a symbol again, a Draw is chosen, words_of says the rest
def tell(symbol: str, rng: random.Random, story: Story) -> None:
    """Adds one random expansion of symbol to the story: its text, facts, choices, answers and kinds.

    All dice are rolled by `choose`, also among a single option. A fact is kept in all its forms, under its key.
    """
    for part in choose(alternatives(symbol), rng, story):
        if isinstance(part, Pick):
            tell(part.symbol, rng, story)
            continue
        if isinstance(part, Draw):
            story.facts[part.key] = choose(entries(part.pool), rng, story)
            words = story.facts[part.key][0]
        else:
            words = words_of(part, story.facts)
        if isinstance(part, Count) and part.asked:
            story.answers.append((len(story.text), len(story.text) + len(words)))
            story.kinds.append("copied" if len(part.terms) == 1 else "computed")
        story.text += words


def choose(options: list, rng: random.Random, story: Story):
    """One of the options, by the dice; the story notes where it was, and out of how many."""
    story.choices.append((len(story.text), len(options)))
    return options[int(rng.random() * len(options))]


# %% [markdown]
r"""
Let us follow one story by hand. Every row below is one choice. It shows the number of possibilities, the nats that
the choice costs, the sum so far, and the text that begins there.
"""

# %%
story, total = Story(), 0.0
tell("story", random.Random(3), story)
print(story.text, "\n")
for at, options in story.choices:
    total += math.log(options)
    print(f"1 of {options}: {math.log(options):.3f} nats, {total:.3f} so far   {story.text[at : at + 20]}…")

# %% [markdown]
r"""
The first three choices are made at the same place, before any word: the line of `story`, the line of `open`, and the
girl. The rows with "1 of 1" are symbols that have a single line. They leave no choice and cost nothing. The number of
shells after the gift has no row at all. It is the result of a subtraction, and a reader who remembers both numbers
can compute it.

The choices are independent, so their probabilities multiply and their logarithms add. The last sum is −log of the
probability of this story. A model that knows the grammar loses exactly this much on it, over all its tokens together,
and no model can lose less on average over all stories.

## Checking the probabilities

The floor is right only if these sums are right. *Check.* The probabilities of all possible stories must add up to one.
The small grammar has few stories, so we can tell stories until we have seen all of them. How many are there? `open`
makes 2 · 3 · 3 · 4 = 72 different sentences, `proud` makes 3 + 1 = 4, and `gift` makes 2 · 2 = 4, so we expect
72 · 4 · 4 = 1,152 stories. A `Story` gets its `logprob`, the sum above with a minus sign, and `stories`
tells as many as one wants:
"""


# %%
#| export
from itertools import count


class Story(Story):
    @property
    def logprob(self) -> float:
        """The natural logarithm of the story's probability."""
        return -sum(math.log(options) for _, options in self.choices)


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng = random.Random(seed)
    for _ in range(n) if n is not None else count():
        story = Story()
        tell("story", rng, story)
        yield story


# %%
different = {story.text: math.exp(story.logprob) for story in stories(20_000)}
print(f"{len(different):,} different stories; their probabilities add up to {sum(different.values()):.6f}")
assert sum(different.values()) < 1 + 1e-9, "more than one: a choice is not counted"

# %% [markdown]
r"""
A sum above one would mean that a choice was not counted. But there is a second way to go wrong. If two different series
of choices lead to the same text, the probability of that text is the sum of both, and each of them alone is too
small. In this case the sum above is below one.

The grammar of the course has far too many stories to see them all. Its check goes the other way, from the text of a
story to the choices that lead to it. Exactly one series of choices must be found. This check is in the appendix.
"""


# %% [markdown]
r"""
## The entropy of a grammar

Some stories cost more nats than others. The mean cost of a story is the entropy of the grammar, and we can compute it
without telling a single story. A symbol costs ln *k* for the choice among its *k* lines, plus the mean cost of these
lines. A line costs the sum of its parts. A draw costs the logarithm of the pool's size. All other parts cost nothing.
"""


# %%
#| export
#| blank entropy: the log of the number of lines, plus the mean over the lines of what their parts cost
def entropy(symbol: str = "story") -> float:
    """Mean of -log p over all expansions of symbol, in nats, exact (Cover & Thomas 2006, theorem 2.5.1)."""
    lines, total = alternatives(symbol), 0.0
    for line in lines:
        for part in line:
            if isinstance(part, Pick):
                total += entropy(part.symbol)
            elif isinstance(part, Draw):
                total += math.log(len(entries(part.pool)))
    return math.log(len(lines)) + total / len(lines)


# %% [markdown]
r"""
*Check.* For the small grammar we can compute it by hand. `open` has 2 lines, 3 girls, 3 numbers and 4 things. `proud`
has 2 lines. Only one of them picks among the 3 moods, so the moods count half. `gift` draws from 2 numbers and 2 boys.
"""

# %%
by_hand = math.log(2 * 3 * 3 * 4) + math.log(2) + math.log(3) / 2 + math.log(2 * 2)
mean = sum(-story.logprob for story in stories(20_000)) / 20_000
print(f"by hand {by_hand:.4f}, by the function {entropy():.4f}, mean of 20,000 stories {mean:.4f} nats")

# %% [markdown]
r"""
The three numbers agree. The last one is a mean over a sample, so it is only close.

## The stories of this course

Now we take the grammar of the course. It is larger, but the notation and the code are the same. It is in the file
`nanogpt/resources/grammar.txt`. A story follows one of seven plots. In each of them, facts come back later: who was
there, where they were, what they had and how many. In some plots a toy or a promise comes back as well.
"""


# %%
#| export
@cache
def grammar() -> str:
    """The grammar of the course's stories. It is read when it is needed, so a server can do without the file."""
    return (files("nanogpt") / "resources/grammar.txt").read_text(encoding="utf-8")


# %%
print(grammar()[grammar().index("story =") : grammar().index("proud =")])

# %% [markdown]
r"""
These are the seven plots, four ways to begin, and two ways to say who has how many. The rest of the file is similar.
From here on, all functions use this grammar.

One decision cannot be seen in a single story. Both owners draw their number from the same words, either may come
first, and sentences about hers and about his have equally many words. So neither the number, nor the form of a
question, nor its place says whose number is asked for. Only *her* or *his* in front of it does, and whoever wants to
answer must know which number stood behind this word before. If the girl always had six things or more and the boy
five or fewer, *eight* alone would say whose it is. Such a rule is called a *shortcut*: it is right wherever the data
are made in this way, and wrong as soon as they are not (Geirhos et al. 2020). A question mark is only put where no
shortcut helps. The second number of a sentence, for example, is always the other one, so it has none. Does our
model read whose number it is? Chapter 07b exchanges the two numbers of a story and finds out.

Two mistakes happen easily when one writes such a grammar: a brace is missing, or a line is there twice. The second
mistake is worse than it looks. Two different choices then tell the same text, and the probability of this text is the
sum of both.
"""


# %%
#| export labs.evals.floor
import re


def check_lines(lines: list[str], where: str) -> None:
    """ValueError if a line is there twice, or if a brace has no partner."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} is twice in {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner in {where}: {line}")


# %%
alternatives.cache_clear()  # forget the small grammar
entries.cache_clear()
for symbol, lines in rules().items():
    check_lines(lines, symbol)
print(f"{len(rules())} symbols")
if [story.text for story in stories(len(documents))] == documents:
    print(f"Its first {len(documents):,} stories are those in data/stories.txt.")
else:
    print("It tells other stories than data/stories.txt: somebody has changed it.")

# %% [markdown]
r"""
The stories from chapter 01 come from this grammar. Where do they surprise a reader who knows the grammar? In the
figure below, the darker a word, the more nats were lost on it, because the grammar made choices there. A white word
was certain. The framed words answer who has how many.
"""


# %%
shown = list(stories(2, seed=5))
alt = "Two stories, each word shaded by its nats: names and counts are dark at first, and white when repeated"
show(figures.surprise(shown), alt)

# %% [markdown]
r"""
Follow a name or a number from left to right. It is shaded when it is drawn and white when it comes back. The first
word of a sentence can be shaded for another reason: the grammar chooses the whole sentence there. At the very first
word it also chooses the plot, so this word is the darkest. All framed words are white. A reader who remembers the
numbers and can add and subtract is certain of them.

## The floor, in nats a token

The loss of a model is measured per *token*, averaged over a text. A tokenizer turns each story into ids in exactly one
way, so the ids have the same probability as the story. The floor is therefore the nats of all stories divided by the
number of all tokens. The `<|endoftext|>` that ends a story is a token, too. It costs nothing, because the end of a
story is certain, but it is predicted and counted like the others.
"""


# %%
#| export labs.evals.floor
#| blank floor_per_token: all nats over all tokens; every story has one token more than its text
from collections.abc import Iterable


def floor_per_token(stories: Iterable[Story], tokenizer) -> float:
    """The mean loss, in nats per token, of a model that knows the grammar, on these stories.

    stories: read once, so it may be a generator.
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
Now we can add the fourth line to the first table, for the same 500 stories.
"""

# %%
last = list(stories(len(documents)))[-HELD_OUT:]
ladder["floor"] = floor_per_token(last, tokenizer)
for name, nats in ladder.items():
    print(f"{name:8} {nats:.2f} nats a token, perplexity {math.exp(nats):6.1f}")
answer("02.2", ladder["floor"])
print(f"\na story: {entropy():.2f} nats on average, as many as {entropy() / math.log(256):.1f} random bytes")

# %% [markdown]
r"""
You will need this table in the rest of the course. The loss of a trained model will be between the bigram's loss and
the floor, and its distance to the floor says how much the model still has to learn. The perplexity of the floor shows
that our text is unusual. The next token is, on average, as uncertain as a choice among fewer than two possibilities,
because so many words repeat a fact or belong to a sentence that has already begun.

The last line is about whole stories. One byte has 256 values, so a byte that is as random as possible holds
ln 256 = 5.55 nats, and the line says how many such bytes a story is worth. A story has several hundred characters. Two people
who both know the grammar could still send each other a story in these few bytes, by sending only the choices.

*Try it.* What happens to the floor if we count single bytes instead of the 1,024 tokens? `floor_per_token` takes
anything with a method `encode`, and `SimpleNamespace` makes an object whose `encode` turns text into bytes.
"""

# %%
for name, coder in [("bytes", SimpleNamespace(encode=str.encode)), ("1,024 tokens", tokenizer)]:
    tokens, floor = sum(len(coder.encode(s.text)) + 1 for s in last), floor_per_token(last, coder)
    print(f"{name:12} {tokens:7,} tokens × {floor:.3f} nats each = {tokens * floor:,.0f} nats in all")

# %% [markdown]
r"""
The stories are the same, and so is the sum of their nats. Only the number of tokens differs. A loss per token means
nothing unless we also know the tokenizer.

## When does a model reach the floor?

A model gets close to the floor if two things are true.

1. *It has learned the grammar.* It must know which sentences can follow, and which words are equally likely. Where its
   probabilities are wrong, it loses the divergence in addition to the entropy.
2. *It sees the facts.* If its text begins in the middle of a story, the model has not seen the names and numbers, and
   cannot know them. Chapter 03 counts how often that happens, and makes inputs that begin with a story.

A comparison needs one more precaution: take the floor of the same stories on which the loss was measured. Some
stories are less surprising than others, so on a lucky set even a perfect model loses less than the entropy. For the
same reason the floor is a limit *on average*. A wrong model may be below it by luck on a few stories, but not on many.

On text that people wrote, nobody knows the floor. Shannon had people guess the letters of printed English. He
concluded that its entropy is between 0.6 and 1.3 bits a letter (*Prediction and Entropy of Printed English*, 1951,
table I and fig. 4). One bit is ln 2 = 0.693 nats.
"""

# %% [markdown]
r"""
## Appendix: from a text back to its choices

The cells from here to the checkpoint contain no new idea. We take a story and go the other way, from the text to the
choices: `readings` tries every possibility at every place and keeps those that fit the text. Chapters 07 and 08 use it
to see whether a model's stories follow the grammar.
"""


# %%
#| export labs.evals.floor
from collections.abc import Iterator


def readings(text: str) -> list[tuple[tuple[int, int], ...]]:
    """All ways to tell a text, each as its choices (where, out of how many); none if the grammar does not tell it."""
    return list(read_parts([Pick("story")], text, 0, {}, ()))


def read_parts(parts: list[Part], text: str, at: int, facts: dict, choices: tuple) -> Iterator[tuple]:
    """The same for parts that are to be all of text[at:], after some choices."""
    if not parts:
        yield from [choices] if at == len(text) else []
        return
    part, *rest = parts
    if isinstance(part, Pick):
        made = (*choices, (at, len(alternatives(part.symbol))))
        for line in alternatives(part.symbol):
            yield from read_parts([*line, *rest], text, at, facts, made)
    elif isinstance(part, Draw):
        made = (*choices, (at, len(entries(part.pool))))
        for entry in entries(part.pool):
            if text.startswith(entry[0], at):
                yield from read_parts(rest, text, at + len(entry[0]), facts | {part.key: entry}, made)
    elif text.startswith(words := words_of(part, facts), at):
        yield from read_parts(rest, text, at + len(words), facts, choices)


# %% [markdown]
r"""
*Check.* Does each story have exactly one reading, and do its choices give the probability that we stored?
We read 300 stories. At the end we also try to read a story whose last character, a full stop, was removed.
"""

# %%
for story in stories(300, seed=4):
    found = readings(story.text)
    assert len(found) == 1, f"{len(found)} readings, so its probability is another: {story.text}"
    logprob = -sum(math.log(options) for _, options in found[0])
    assert math.isclose(logprob, story.logprob), f"told with {story.logprob}, read with {logprob}"
shortened = len(readings(story.text[:-1]))
print(f"300 stories, one reading each; without its last character the last one has {shortened}")

# %% [markdown]
r"""
The last number, 0, means that the story without its full stop is not a story. This is true in general: no story is
the beginning of another one, and a reader who knows the grammar always knows when a story is over. The chapter's tests
prove both facts for all stories, by comparing the lines of the grammar.
"""

# %% [markdown]
r"""
## Checkpoint

The checkpoint writes two modules. `nanogpt/labs/corpora/stories.py` tells the stories. `nanogpt/labs/evals/floor.py` has the check of
the lines, the floor and `readings`. Both are in `nanogpt/labs`, where everything goes that a model and its training do not
need themselves. A training run reads tokens from files, and it does not matter to it who has written them.
"""

# %%
predictions("02")

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
- **One more fact.** In `nanogpt/resources/grammar.txt`, let the girl wear a coloured hat in `{open}` and be called "the girl with
  the green hat" in `{close}`. By how much does the entropy rise, by hand? Does the test that finds two readings still
  pass?
- **Too much.** Put "sixteen" into the pool of the owners' numbers. Which sentence breaks, and after how many stories? What is the
  largest number that the pool may hold?

## Further reading

- Shannon 1948, [*A Mathematical Theory of Communication*](https://doi.org/10.1002/j.1538-7305.1948.tb01338.x), §6 and §7: entropy, and the entropy of texts.
- Cover & Thomas 2006, [*Elements of Information Theory*](https://doi.org/10.1002/047174882X), §2.1 to §2.6: entropy, divergence, the inequality above.
- Eldan & Li 2023, [*TinyStories*](https://arxiv.org/abs/2305.07759), §2: small stories by a large model; how small a model can be that tells them.
- Geirhos et al. 2020, [*Shortcut Learning in Deep Neural Networks*](https://arxiv.org/abs/2004.07780), §1 and §2: rules that fit the data and not the task.
- Allen-Zhu & Li 2023, [*Physics of Language Models: Part 1, Learning Hierarchical Language Structures*](https://arxiv.org/abs/2305.13673), §2: grammars
  as training text, and what a model makes of them.
"""
