# %% [markdown]
r"""
# Exercises 02 · Corpus

Work from top to bottom, or begin where you like: no task needs another one's solution. `course check 02` runs the
visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import hashlib
import math
import random
from collections import Counter
from itertools import pairwise

from course.variants import variant

# %% [markdown]
r"""
## 02-1 · A floor by hand

*Derive · difficulty 3/5 · importance 5/5 · 30 minutes*

A small grammar in the chapter's notation: `{A:name}` draws a fact and says it, `{A}` recalls it, `{animal}` picks one
anew. Everything that can be chosen is equally likely.

    story = {A:name} saw a {animal}. "Run," said {A}.
      {A:name} had a {color} {T:toy}. A {animal} took the {T}. {A} was sad.

How many names, animals, colors and toys there are is in `mine`, and also how many tokens a story of the first kind
has (`short`) and of the second (`long`), the mark between stories included. Each fact and each pick is one token.
Give three numbers, in nats:

- `entropy`: how surprising a story is on average;
- `floor`: the mean loss per token of a model that knows the grammar, over a long corpus;
- `excess`: by how much per token a model lies above the floor that knows all of it except that the second toy is the
  first one: where the story says *took the*, it gives every toy the same probability.

<details><summary>Hint 1</summary>

Go through a story choice by choice. Which of its words were certain?
</details>

<details><summary>Hint 2</summary>

A story of the second kind is told every other time, so what only it holds counts half.
</details>

<details><summary>Hint 3</summary>

The loss per token of a corpus is all its nats over all its tokens. A long story has more of both, so this is not the
mean of the two kinds' losses per token.
</details>
"""

# %%
mine = variant(
    "02-1",
    STUDENT,
    names=[3, 5, 7, 11],
    animals=[4, 6, 9, 10],
    colors=[3, 5, 8, 12],
    toys=[6, 7, 10, 13],
    short=[12, 13, 14],
    long=[19, 20, 21, 22],
)
mine

# %%
#| solution 02-1
entropy = floor = excess = 0.0
### BEGIN SOLUTION
entropy = (
    math.log(2)
    + math.log(mine["names"])
    + math.log(mine["animals"])
    + (math.log(mine["colors"]) + math.log(mine["toys"])) / 2
)
tokens = (mine["short"] + mine["long"]) / 2
floor = entropy / tokens
excess = math.log(mine["toys"]) / 2 / tokens
### END SOLUTION


# %%
#| check 02-1
def told(rng: random.Random) -> tuple[float, int, float]:
    """A story's nats, its tokens, and what the forgetful model loses more."""
    nats = math.log(2 * mine["names"] * mine["animals"])
    if rng.random() < 0.5:
        return nats, mine["short"], 0.0
    return nats + math.log(mine["colors"] * mine["toys"]), mine["long"], math.log(mine["toys"])


rng = random.Random(0)
nats, tokens, more = map(sum, zip(*(told(rng) for _ in range(20_000))))
assert abs(entropy / (nats / 20_000) - 1) < 0.02, (
    f"entropy is {entropy:.3f}; 20,000 stories have {nats / 20_000:.2f} nats on average. Does a recalled fact cost anything? Is it ln?"
)
assert abs(floor / (nats / tokens) - 1) < 0.02, (
    f"floor is {floor:.4f}; on 20,000 stories it is {nats / tokens:.3f}: all nats over all tokens"
)
assert abs(excess / (more / tokens) - 1) < 0.05, (
    f"excess is {excess:.4f}; on 20,000 stories it is {more / tokens:.3f}: one word of every other story, over all tokens"
)

# %% [markdown]
r"""
## 02-2 · When some things are said more often

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

In the chapter all lines of a symbol are equally likely. Real text is not like that. Write `nats(grammar, symbol)`,
the mean of −ln p over all that `symbol` can become, where lines have weights: a symbol's line is chosen with
probability weight over the sum of its weights.

A grammar is a dictionary from a symbol to its lines, each `[weight, parts]`. A part that is a key of the grammar is a
symbol, which is expanded anew wherever it stands; any other part is a word. No symbol contains itself, and no two
series of choices tell the same text. For example

    {"S": [[3, ["A", "and", "A"]], [1, ["nobody"]]], "A": [[1, ["Ann"]], [1, ["Tom"]]]}

has, from S, 0.562 nats for the line and, three times in four, twice ln 2: 1.602 in all.

<details><summary>Hint 1</summary>

The chapter's `entropy` is the case of equal weights. Where does ln k come from, if you write it as a sum over lines?
</details>

<details><summary>Hint 2</summary>

With probability p you take a line: it costs ln 1/p, and then what its parts cost on average.
</details>

<details><summary>Hint 3</summary>

A line that is rare adds little by its parts: they count with its p, too.
</details>
"""


# %%
#| solution 02-2
def nats(grammar: dict, symbol: str) -> float:
    """The entropy of what `symbol` can become, in nats."""
    ### BEGIN SOLUTION
    total = sum(weight for weight, _ in grammar[symbol])
    mean = 0.0
    for weight, parts in grammar[symbol]:
        p = weight / total
        inside = sum(nats(grammar, part) for part in parts if part in grammar)
        mean += p * (math.log(1 / p) + inside)
    return mean
    ### END SOLUTION


# %%
#| check 02-2
example = {"S": [[3, ["A", "and", "A"]], [1, ["nobody"]]], "A": [[1, ["Ann"]], [1, ["Tom"]]]}
assert math.isclose(nats(example, "A"), math.log(2)), (
    f"a fair coin has ln 2 = 0.693 nats, not {nats(example, 'A'):.3f}"
)
coin = {"S": [[4, ["sun"]], [1, ["rain"]]]}
assert math.isclose(nats(coin, "S"), 0.5004, abs_tol=1e-4), (
    f"sun on four days of five has 0.500 nats, as in the chapter, not {nats(coin, 'S'):.3f}: each line with its own probability"
)
assert math.isclose(nats(example, "S"), 1.6021, abs_tol=1e-4), (
    f"S has 1.602 nats, not {nats(example, 'S'):.3f}: `nobody` holds no A, and is said once in four times"
)

# %% [markdown]
r"""
## 02-3 · One seed for everyone

*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*

A class tells its corpus together: whoever is called `name` tells part `number`, from the seed `seed_of(name,
number)`. Next day the parts cannot be told again: in another process the same name gives another seed. And before
that, two parts were found that were the same stories. Repair both.

A seed that others must be able to compute has to be written down, so here is what it shall be: the first eight bytes,
as a big-endian integer, of the SHA-256 of the text `name/number` in UTF-8. Say to yourself why a slash.

<details><summary>Hint 1</summary>

Run `python -c "print(hash('ann'))"` twice. What does `PYTHONHASHSEED` do, and why was it introduced?
</details>

<details><summary>Hint 2</summary>

With `+ number`, which part of whose name has the seed that part 1 of another name has? And what if name and number
were put together without anything between: ann1 and 2, ann and 12?
</details>

<details><summary>Hint 3</summary>

`hashlib.sha256(data).digest()` takes bytes and gives 32 of them; `int.from_bytes` makes a number of the first eight.
</details>
"""


# %%
#| solution 02-3
def seed_of(name: str, number: int) -> int:
    """The seed of part `number` by `name`: the same in every process and on every machine."""
    ### BEGIN SOLUTION
    return int.from_bytes(hashlib.sha256(f"{name}/{number}".encode()).digest()[:8], "big")
    ### INSTEAD
    # return hash(name) + number
    ### END SOLUTION


# %%
#| check 02-3
assert seed_of("ann", 3) != hash("ann") + 3, (
    "hash() of a text is salted anew in every process, unless PYTHONHASHSEED is set: nobody can tell these stories again"
)
assert seed_of("ann1", 2) != seed_of("ann", 12), (
    "ann1's part 2 and ann's part 12 have one seed: something must stand between"
)
assert seed_of("ann", 1) != seed_of("nan", 1), (
    "ann and nan have one seed: the order of the letters must count"
)
assert seed_of("ann", 3) == 17163478866922591935, (
    f"seed_of('ann', 3) is {seed_of('ann', 3)}, not 17163478866922591935"
)

# %% [markdown]
r"""
## 02-4 · A check for honest probabilities

*Check · difficulty 5/5 · importance 4/5 · 50 minutes*

The floor is only as good as the log-probabilities that come with the stories. You write the check.
`check_teller(tell)` gets a function: `tell(n, seed)` returns n stories as a list of (text, logprob). Its grammar is
not known to you, and differs: it has 2 to 12 texts, each with a probability of at least 1/50. What a right teller
promises:

- logprob is the natural logarithm of the text's probability, and no more likely or less likely is it told;
- the same seed gives the same stories, another seed others, and the first n are the same if more are asked for;
- stories are independent: none depends on the one before.

Raise an `AssertionError` if a promise is broken. You are graded by the tellers that break one and are refused; a
right one refused costs all. They run elsewhere: keep to a few hundred calls, and a few thousand stories in a call.

<details><summary>Hint 1</summary>

Some laws hold to the last digit: one text has one logprob; the probabilities of all texts sum to one. In 3,000
stories none of the texts is missing.
</details>

<details><summary>Hint 2</summary>

Frequencies are not exact. Of n stories a text with probability p comes np times, give or take √(np(1−p)). Five of
those deviations are a fair limit: by chance it is passed once in a million.
</details>

<details><summary>Hint 3</summary>

Many seeds and one story each must have the same frequencies as one seed and many stories.
</details>

<details><summary>Hint 4</summary>

Two neighbours are the same text with probability Σ p². A teller that deals its stories like cards has all frequencies
right, and its neighbours wrong.
</details>
"""


# %%
#| solution 02-4
def check_teller(tell) -> None:
    """AssertionError if tell(n, seed) breaks a promise."""
    ### BEGIN SOLUTION
    many = tell(2000, 0)
    stated = dict(many)
    assert all(logprob == stated[text] for text, logprob in many), "one text has two probabilities"
    p = {text: math.exp(logprob) for text, logprob in stated.items()}
    assert abs(sum(p.values()) - 1) < 1e-6, f"the probabilities sum to {sum(p.values()):.3f}"

    def as_often(texts, what):
        n, counts = len(texts), Counter(texts)
        assert set(counts) <= set(p), f"{what}: a text is new"
        for text, q in p.items():
            limit = 5 * math.sqrt(n * q * (1 - q)) + 1
            assert abs(counts[text] - n * q) < limit, (
                f"{what}: {text} comes {counts[text]} times in {n}, not {n * q:.0f}"
            )

    as_often([text for text, _ in many], "many stories")
    assert tell(50, 0) == many[:50], "the first stories are others if fewer are asked for, or asked for again"
    assert tell(50, 1) != many[:50], "another seed, and the same stories"
    as_often([tell(1, seed)[0][0] for seed in range(50)], "first stories")
    same, n = sum(a == b for (a, _), (b, _) in pairwise(many)), len(many) - 1
    q = sum(x * x for x in p.values())
    assert abs(same - n * q) < 6 * math.sqrt(n * q), (
        f"{same} of {n} stories equal the one before, not {n * q:.0f}"
    )
    ### END SOLUTION


# %%
#| check 02-4
def honest(n, seed):  # three texts
    rng = random.Random(seed)
    texts = [rng.choices(["sun", "rain", "snow"], [5, 3, 2])[0] for _ in range(n)]
    return [(text, math.log({"sun": 0.5, "rain": 0.3, "snow": 0.2}[text])) for text in texts]


def in_bits(n, seed):
    return [(text, logprob / math.log(2)) for text, logprob in honest(n, seed)]


def without_a_seed(n, seed):
    return honest(n, None)


def says(tell) -> str:
    try:
        check_teller(tell)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


assert says(honest) == "accepted", f"an honest teller is {says(honest)}"
assert says(in_bits) != "accepted", (
    "your check accepts logarithms to base 2: then the probabilities do not sum to one"
)
assert says(without_a_seed) != "accepted", (
    "your check accepts a teller that tells other stories when asked again"
)

# %% [markdown]
r"""
#| manual 02-5
## 02-5 · Below the floor

*Explain · difficulty 3/5 · importance 5/5 · 10 minutes*

On the corpus of this chapter a fellow student's model has a validation loss of 0.02 nats per token *below* the
entropy per token. Name three things that could explain it, at least one that is no mistake, and for each say in a
sentence how you would find out whether it is the cause.
"""
