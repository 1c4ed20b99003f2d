# %% [markdown]
r"""
# 16c ◇ · Cleaning: which text is worth training on

Chapters 16 and 16b turned text into shards and did not ask what the text says. The people who train large models spend most of their effort on
exactly this question. A crawl of the web contains the same article a thousand times, menus and error messages, and sometimes the
questions of the test on which the model will be judged. A model learns all of it.

This chapter does in small what such teams do in large (Penedo et al. 2024 describe it for fifteen trillion tokens). There are four jobs: remove duplicates, filter out bad
pages, remove the evaluation texts, and mix several sources. We build a small crawl in which we have planted each fault ourselves. So we can *measure* what every
method finds, what it misses, and what it throws away by mistake. On the real web nobody has a list of all faults. There only one judge is left, a model: in the middle of this sitting we train one on a dirty crawl
and one on the cleaned crawl, and compare what they learn.
"""

# %%
#| default_exp labs.corpora.clean
#| doc labs.corpora.clean: Duplicates, rules for bad pages, and evaluation texts in a training set, found and measured.
#| doc labs.corpora.mixture: Batches whose rows come from several streams, in exact proportions, resumed at the same row.
import hashlib
import json
import random
import tempfile
import time
from itertools import combinations
from pathlib import Path

from course.figures import cleaning as figures
from course.notebook import answer, checkpoint, predict, predictions, show
import torch

from nanogpt.data import BatchStream, DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.prepare import prepare
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

# %%
STORIES, COPIES, HELD = 1200, 40, 100  # of the crawl; planted of each kind; of the evaluation
THRESHOLD = 0.7  # documents that are more similar than this are duplicates
BANDS, ROWS = 14, 8  # of the hashes, as in FineWeb
WEIGHTS = (6, 3, 1)  # of three sources
dice = random.Random(0)

# %% [markdown]
r"""
## A small crawl with planted faults

The good pages are stories of chapter 02. To them we add two kinds of duplicates. A *copy* is the same text again. A *near copy* is what one
finds far more often on the web: the same article on another site, with a line above it and a few words changed. We replace between one and six words.
"""


# %%
def near_copy(text: str, changes: int) -> str:
    """The text with a line above it and some of its words replaced."""
    words = text.split()
    for place in dice.sample(range(len(words)), changes):
        words[place] = dice.choice(["really", "maybe", "thing", "place", "quite"])
    return f"Shared by user {dice.randrange(1000)} on our site: " + " ".join(words)


good = [story.text for story in stories(STORIES, seed=3)]
sources = dice.sample(range(STORIES), 2 * COPIES)
copies = [good[i] for i in sources[:COPIES]]
near = [near_copy(good[i], 1 + n % 6) for n, i in enumerate(sources[COPIES:])]
crawl = good + copies + near
print(f"{len(crawl):,} pages")
print("original: ", good[sources[-1]][:88], "...")
print("near copy:", near[-1][:88], "...")

# %% [markdown]
r"""
## Exact duplicates

Finding equal texts is easy: hash each page, and keep the first page with each hash. Hashes are short, so billions of them fit on a few disks, and the work
can be divided by the first digits of the hash.

*Predict.* Of the 80 pages that we planted, how many does this remove?
"""

# %%
predict("16c.1", f"of {2 * COPIES} planted duplicates, found by hashing", guess=None)

# %%
seen, unique = set(), []
for page in crawl:
    key = hashlib.sha256(page.encode()).digest()
    if key not in seen:
        seen.add(key)
        unique.append(page)
print(f"{len(crawl) - len(unique)} pages removed, {len(unique):,} are left")
answer("16c.1", len(crawl) - len(unique))

# %% [markdown]
r"""
All exact copies are gone, and all near copies are still there. One changed letter gives another hash. We need a measure that says *how* similar two texts are.

## How similar are two texts?

Cut a text into all its runs of five words. Such a run is called a *shingle*, because neighbouring runs overlap like the shingles of a roof. Two texts are similar if
they share many shingles. The *Jaccard similarity* is the number of shingles that both have, divided by the number that at least one of them has. It is 1 for equal
texts and 0 for texts without a common run of five words.

We follow one example by hand before we turn to the pages.
"""


# %%
#| export
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np


# %%
#| export
#| blank similarity: shared shingles over all shingles
def shingles(text: str, n: int = 5) -> set[str]:
    """All runs of n words of a text."""
    words = text.split()
    return {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}


def similarity(a: set, b: set) -> float:
    """Jaccard similarity of two sets, from 0 to 1: what both have over what at least one has; 0 for two empty sets."""
    return len(a & b) / max(1, len(a | b))


# %%
one, two = "the cat sat on the mat today", "the cat sat on the mat yesterday"
print(sorted(shingles(one)))
print(sorted(shingles(two)))
print(f"similarity {similarity(shingles(one), shingles(two)):.2f}")
assert similarity(shingles(one), shingles(one)) == 1, "a text is equal to itself"

# %% [markdown]
r"""
Two of the four different shingles are shared, so the similarity is 0.5. Where do we draw the line between similar and different? Before we choose a threshold, we look at both sides: the planted pairs, and pairs of stories that have nothing to do with
each other. The second side is our control: all stories come from the same grammar, so they share phrases.
"""

# %%
sets = [shingles(page) for page in unique]
original = {text: i for i, text in enumerate(unique)}
planted = [(original[good[i]], original[page]) for i, page in zip(sources[COPIES:], near)]
related = [similarity(sets[a], sets[b]) for a, b in planted]
strangers = [similarity(sets[a], sets[b]) for a, b in combinations(range(400), 2)]
print(f"planted pairs: {min(related):.2f} to {max(related):.2f}")
print(f"{len(strangers):,} pairs of strangers: at most {max(strangers):.2f}")
alt = "Histograms of similarities: pairs of strangers below 0.2, planted pairs between 0.3 and 0.9"
show(figures.similarities(related, strangers, THRESHOLD), alt=alt)

# %% [markdown]
r"""
The two groups are far apart: the planted pairs have 0.47 to 0.85, and of 79,800 pairs of strangers none has more than 0.14. Each changed word breaks up to five shingles, so a page with six changed words is much less similar than one with a single changed word. FineWeb aims at a
similarity of 0.75, and we take 0.7. This misses the planted pages with many changes: only 16 of the 40 are at least that similar. A lower one (with bands that fit it) would find them here, but on real text it would also remove
pages that merely quote the same law or the same recipe. Which of the two errors is worse is a decision, and no algorithm makes it.

## A signature of each text

Comparing all pairs is hopeless for a crawl. A billion pages have 5 · 10¹⁷ pairs. *MinHash* (Broder 1997) replaces each set of shingles by a short list
of numbers, so that the lists of similar sets have many equal numbers.

Here is the idea. Take a hash function that gives every shingle a random-looking number, and keep the smallest number of each text. Two texts have the same smallest
number exactly if the shingle with the smallest number of both together is one that both have. Every shingle has the same chance to be this one. So the probability that the two minima are equal is the
number of shared shingles divided by the number of all: the Jaccard similarity. With 112 hash functions we get 112 minima, and the share of equal ones
estimates the similarity.
"""


# %%
#| export
#| blank signature: a[:, None] * x + b[:, None] gives all hashes (hashes, shingles); the minimum goes over the shingles
def signature(shingles: Iterable[str], hashes: int = 112, seed: int = 0) -> np.ndarray:
    """The smallest value of each of `hashes` hash functions over a set of shingles: (hashes,), uint64.

    Function i is a[i] * x + b[i], modulo 2^64. x is a 64-bit hash of a shingle from hashlib, since Python's own hash()
    is another one in each process. The seed alone decides the random a (odd) and b. An empty set always gives the same.
    """
    x = [int.from_bytes(hashlib.blake2b(s.encode(), digest_size=8).digest()) for s in shingles]
    rng = np.random.Generator(np.random.PCG64(seed))
    a, b = rng.integers(0, 2**64, (2, hashes), dtype=np.uint64)
    a |= np.uint64(1)  # odd, so that no two of x get the same hash
    if not x:
        return b  # a text of fewer than five words
    return (a[:, None] * np.array(x, np.uint64) + b[:, None]).min(1)  # uint64 drops what is above 2^64


# %%
signatures = np.stack([signature(found, BANDS * ROWS) for found in sets])
pairs = planted + [(0, n) for n in range(1, 40)]
exact = [similarity(sets[a], sets[b]) for a, b in pairs]
estimates = [(signatures[a] == signatures[b]).mean() for a, b in pairs]
error = np.abs(np.array(exact) - estimates)
of_planted, of_strangers = error[: len(planted)].mean(), error[len(planted) :].mean()
print(f"a page is now {signatures.shape[1]} numbers")
print(f"mean error of the similarity: planted pairs {of_planted:.3f}, strangers {of_strangers:.3f}")
assert error.max() < 0.25, "the estimates are further from the similarities than chance allows"
alt = "Estimated over exact similarity: points along the diagonal, scattered by about 0.04"
show(figures.estimates(exact, estimates), alt=alt)

# %% [markdown]
r"""
Each point is a pair of pages. The estimate is a mean of 112 yes-or-no answers, so its standard error is √(s(1−s)/112), at most 0.05. For the planted pairs this formula gives 0.043 on average, which means an
absolute error of 0.035, and we measure 0.032. For strangers the estimate is nearly exact, because 112 minima of two texts that share almost nothing are almost never equal. So 112 numbers are enough to tell 0.2 from 0.7.

## Finding the pairs without comparing all

The signatures are short, but there are still as many pairs. The last trick avoids most of them. Divide the 112 numbers into 14 *bands* of 8. Two pages become a
candidate pair if they agree in *all* eight numbers of at least one band. To find such pairs we need no comparison at all: we sort the pages into buckets by the content
of each band, and look into the buckets that hold more than one page.

Why does this work? A band agrees with probability s⁸. At a similarity of 0.2 that is 0.000003, and with 14 bands strangers hardly ever meet. At 0.8 it is 0.17, and the chance that at
least one of 14 bands agrees is 1 − (1 − s⁸)¹⁴ = 0.92. FineWeb uses these numbers, 14 and 8.

*Predict.* There are about 770,000 pairs of pages. How many candidates will be compared?
"""


# %%
#| export
#| blank candidates: for each band, a dictionary from its bytes to the pages that have them
def candidates(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of the rows of signatures that agree in all numbers of at least one band."""
    pairs = set()
    for band in np.split(signatures, bands, axis=1):
        buckets = defaultdict(list)
        for page, numbers in enumerate(band):
            buckets[numbers.tobytes()].append(page)
        for pages in buckets.values():
            pairs.update(combinations(pages, 2))
    return pairs


# %%
predict("16c.2", "candidate pairs to compare", guess=None)

# %%
found = candidates(signatures, BANDS)
all_pairs = len(unique) * (len(unique) - 1) // 2
print(f"{len(found)} of {all_pairs:,} pairs are candidates")
answer("16c.2", len(found))
caught = {pair for pair in found if similarity(sets[pair[0]], sets[pair[1]]) >= THRESHOLD}
above = {pair for pair, s in zip(planted, related) if s >= THRESHOLD}
print(f"{len(caught)} of them are at least {THRESHOLD} similar; planted that similar: {len(above)}")
print(f"found of these: {len(caught & above)}; strangers among the candidates: {len(found - set(planted))}")

# %% [markdown]
r"""
22 comparisons replace 768,180, and no pair of strangers is among them. The price is that a pair above the threshold can be missed: of the 16 planted pairs above 0.7 we have found 14. The formula explains it. At a similarity of 0.7 the 14 bands find
only about 56 per cent of the pairs, at 0.8 they find 92 per cent, and at 0.9 practically all. More bands of fewer numbers find more, and compare more.

What should we do with a group of duplicates? Pages 1 and 2 may be similar, and 2 and 3, but 1 and 3 not. The usual answer is to treat all that are connected as one group and keep one page
of it. `without_duplicates` puts all steps together and keeps the first.
"""


# %%
#| export
def without_duplicates(texts: Sequence[str], threshold=0.7, bands=14, rows=8) -> list[int]:
    """Which texts to keep: of each group that is connected by similar pairs, the first. Exact copies are similar."""
    sets = [shingles(text) for text in texts]
    signatures = np.stack([signature(found, bands * rows) for found in sets])
    first = list(range(len(texts)))  # the smallest page of each page's group, as far as it is known

    def group(page: int) -> int:
        while first[page] != page:
            page = first[page]
        return page

    for a, b in candidates(signatures, bands):
        if texts[a] == texts[b] or similarity(sets[a], sets[b]) >= threshold:
            a, b = sorted((group(a), group(b)))
            first[b] = a
    return [page for page in range(len(texts)) if first[page] == page]


# %%
start = time.perf_counter()
kept = without_duplicates(crawl, THRESHOLD, BANDS, ROWS)
print(f"{len(crawl):,} pages, {len(kept):,} kept")
lost = set(range(STORIES)) - set(kept)
print(f"good pages lost: {len(lost)}; near copies kept: {sum(page >= STORIES for page in kept)}")
print(f"took {time.perf_counter() - start:.2f} s")

# %% [markdown]
r"""
No good page is lost. But 26 of the 40 near copies are still there, because with several changed words they are less similar than the threshold. Would a lower threshold find them? Or more bands? We try both.
"""

# %%
for threshold, bands, rows in ((0.7, 14, 8), (0.5, 14, 8), (0.5, 28, 4)):
    left = without_duplicates(crawl, threshold, bands, rows)
    lost = len(set(range(STORIES)) - set(left))
    print(f"threshold {threshold}, {bands} bands of {rows}:", end=" ")
    print(f"{sum(page >= STORIES for page in left)} near copies kept, {lost} good pages lost")

# %% [markdown]
r"""
A lower threshold alone helps little: 19 near copies are kept in place of 26. The bands decide which pairs are looked at, and 14 bands of 8 rarely meet below a similarity of 0.5. With 28 bands of 4 and the
same threshold only 4 are kept. So threshold and bands must be chosen together. (On our crawl nothing speaks against the last row. On the web it would remove pages that quote the same law.)

Is it worth the trouble? We shall ask a model below. Lee et al. 2022 deduplicated several data sets and trained models on both versions. In one of them a single sentence of 61 words was repeated more than 60,000
times. With duplicates removed, the models repeated memorised text ten times less often, and they needed fewer steps for the same accuracy. They also found that over 4% of
the validation texts of standard data sets had a near copy in the training text. We come back to this under "Contamination".

## Filters

Much of the web is not text at all. Teams write rules that throw such pages out. The rules below are most of those of Gopher (Rae et al. 2021, appendix A), which many later data sets
use as well. (Left out are a rule about lines that end with an ellipsis, and those about repetition.) A good page has 50 to 100,000 words of 3 to 10 letters on average. At least 80% of the words contain a letter. Few words are `#` or `...`. Most lines do not begin with a bullet. And at least two words of a short list of very common English words
occur.
"""


# %%
#| export
COMMON = {"the", "be", "to", "of", "and", "that", "have", "with"}


def faults(text: str) -> list[str]:
    """Which of Gopher's rules for good English pages a text breaks (Rae et al. 2021, appendix A)."""
    words, lines = text.split(), [line.strip() for line in text.splitlines() if line.strip()]
    n = max(1, len(words))
    length = sum(map(len, words)) / n
    symbols = len(re.findall(r"#|\.\.\.|…", text)) / n
    letters = sum(any(c.isalpha() for c in word) for word in words) / n
    bullets = sum(line[0] in "-*•" for line in lines) / max(1, len(lines))
    common = len(COMMON & {word.strip('.,!?"').lower() for word in words})
    broken = {
        "number of words": not 50 <= len(words) <= 100_000,
        "length of words": not 3 <= length <= 10,
        "symbols": symbols > 0.1,
        "words without letters": letters < 0.8,
        "bullets": bullets > 0.9,
        "common words": common < 2,
    }
    return [rule for rule in broken if broken[rule]]


# %% [markdown]
r"""
We try the rules on five pages that could come from a crawl: a menu, a price list, a page of keywords, a German text, and a story.

*Predict.* The rules were made for the web. How many per cent of our good stories will they throw away?
"""

# %%
predict("16c.3", "good stories that the rules throw away", guess=None, unit="%")

# %%
pages = {
    "a menu": "- Home\n- About us\n- Log in\n- Cart (0)\n" * 14,
    "a price list": "A4 1,99 2,49 3,10\nB5 2,20 2,70 3,30\n" * 8,
    "keywords": "cheap #shoes best #shoes buy #shoes sale #shoes online now " * 8,
    "German": "Der Hund lief durch den Garten und suchte seinen Ball unter der alten Bank. " * 6,
    "a story": good[0],
}
for name, page in pages.items():
    print(f"{name:13}", ", ".join(faults(page)) or "good")
thrown = [faults(page) for page in good]
share = 100 * sum(map(bool, thrown)) / len(good)
print(f"good stories thrown away: {share:.1f}%, by", sorted({rule for rules in thrown for rule in rules}))
answer("16c.3", share)

# %% [markdown]
r"""
The rules catch all four bad pages, and throw away none of the 1,200 good stories. Is this a good filter, then? It depends on the text. Here are the same rules for the first half of each story, which is as good English as the complete one:
"""

# %%
halves = [" ".join(page.split()[: len(page.split()) // 2]) for page in good]
print(f"shortest story: {min(len(page.split()) for page in good)} words")
gone = [page for page in halves if faults(page)]
print(f"halves thrown away: {100 * len(gone) / len(halves):.0f}%, by", faults(gone[0]))

# %% [markdown]
r"""
All of them are gone. The shortest story has 76 words, and the rule wants 50: our stories are just long enough. This is a general experience with filters. A rule that separates well on one kind
of text removes all of another, and nobody sees the pages that are gone. So a team never trusts a rule because it looks sensible. FineWeb's authors trained a small model with and without each rule
and compared both on a set of tests (Penedo et al. 2024, §3). Only rules that improved the model were kept.

Rules look at form only. The next step is a *model* that looks at content: a small classifier gives each page a mark for how
educational it is, and only pages with a good mark are kept. FineWeb-Edu was made in this way.

## Ask a model

Now we do in small what FineWeb's authors did. We need a crawl that is dirtier than the first one. To the 1,200 stories we add 120 copies of each of the first 20, as of a text that every site repeats, and 400 price lists with random numbers, of which no two are alike. Then we clean
it in two steps, with the functions of this chapter.
"""


# %%
def price_list(numbers: random.Random) -> str:
    """A page without a sentence."""
    return "\n".join(f"A{line} {numbers.randrange(10)},{numbers.randrange(10, 100)}" for line in range(30))


numbers = random.Random(1)
raw = good + 120 * good[:20] + [price_list(numbers) for _ in range(400)]
distinct = [raw[page] for page in without_duplicates(raw, THRESHOLD, BANDS, ROWS)]
clean = [page for page in distinct if not faults(page)]
print(f"{len(raw):,} pages; without duplicates {len(distinct):,}; without bad pages, too, {len(clean):,}")

# %% [markdown]
r"""
Both steps do exactly what they should: the 1,200 good stories are left. We train a small model for 200 steps on each of the three texts, twice with different seeds. `written` makes shards of a text with chapter 16b's `prepare`. `trained_on` returns the model and its mean loss in the last 20 steps, on the text that it
was given. Then we measure each model on stories that it has never seen, and on the 20 that were copied.

*Predict.* Cleaning throws two thirds of the pages away. By how many nats does it lower the loss on new stories?
"""

# %%
predict("16c.4", "cleaning lowers the loss on new stories by", guess=None, unit="nats")

# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
tokenizer = BPETokenizer.train(good[:300], 400)
tokenizer.save(folder / "tokenizer.json")
held = [story.text for story in stories(HELD, seed=1)]


def written(name: str, texts: list[str]) -> list[Path]:
    """The shards of some texts."""
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
    prepare(folder / f"{name}.jsonl", folder / name, folder / "tokenizer.json", val=0, test=0, workers=1)
    return open_shards(folder / name, "train")


def trained_on(shards: list[Path], seed: int) -> tuple[GPT, float]:
    """A small model after 200 steps, and the mean of its last 20 losses."""
    shape = GPTConfig(vocab_size=tokenizer.vocab_size, block_size=192, n_layer=2, n_head=4, n_embd=64)
    model = scale_init(GPT(shape, torch.Generator().manual_seed(seed)))
    losses = train(model, DocumentStream(shards, 4, 192, seed=seed), 200, 3e-3, clip=1.0)
    return model, np.mean(losses[-20:])


def loss_on(model: GPT, texts: list[str]) -> float:
    ids = [i for text in texts for i in (tokenizer.eot, *tokenizer.encode(text))]
    return evaluate(model, [np.array(ids)], tokenizer.eot)


# %% tags=["nbval-ignore-output"]
of_new = {}
print("                    last training losses   new stories   the 20 copied ones")
for name, texts in {"as it came": raw, "without duplicates": distinct, "cleaned": clean}.items():
    shards = written(name.replace(" ", "-"), texts)
    for seed in (0, 1):
        model, last = trained_on(shards, seed)
        of_new[name, seed] = loss_on(model, held)
        print(f"{name:18}  {last:20.2f}   {of_new[name, seed]:11.2f}   {loss_on(model, good[:20]):18.2f}")
answer("16c.4", np.mean([of_new["as it came", seed] - of_new["cleaned", seed] for seed in (0, 1)]))

# %% [markdown]
r"""
Read the first column alone, as somebody does who watches a run: the dirty crawl gives the lowest loss, 1.1 to 1.2, and the cleaned one gives 1.7. The second column says the opposite. On new stories the model of the dirty crawl has 2.2, and the model of the cleaned one 1.65, in the same number of steps and
with a third of the pages. The two seeds differ by at most 0.04, so this is no accident.

The third column shows where the good training loss came from. The model of the dirty crawl has a loss of 0.6 on the 20 copied stories and of 2.2 on new ones: it has begun to learn these 20 by heart. Without the duplicates this gap is gone, and both have about 1.85. The price lists explain the rest. They were a tenth of the dirty pages and a quarter of the distinct ones, and a
model that has to learn random prices has fewer steps for stories.

So a training loss cannot judge a text. It only says how easy the text is to predict, and a page that is read a hundred times is very easy. Every comparison of this kind needs the same number of steps, and a text for measuring that none of the models has read. How to keep such a text unread is the next question.

## Contamination

A model is judged on texts that it has not seen. But the evaluation texts are often on the web themselves, and a crawl takes them along. Then
the model may know the answers by heart, and its score says nothing. This is called *contamination*. Chapter 18b's rule to read a test set only once does not help if the
model has read it a hundred times during training.

The usual check looks for long runs of words that the training text and an evaluation text have in common. GPT-3's authors took 13 words (Brown et al. 2020, appendix C). Let us plant
three evaluation stories in the training text: one complete, one inside a longer page, and one with a word changed in each sentence.
"""


# %%
#| export
#| blank overlap: of the runs of n words of the text, the share that are in `known`
def overlap(text: str, known: set[str], n: int = 13) -> float:
    """The share of a text's different runs of n words (its shingles) that are known; 0 for a text that is shorter."""
    runs = shingles(text, n)
    return len(runs & known) / max(1, len(runs))


# %%
def changed_in_each(text: str) -> str:
    """The text with one word of each sentence replaced."""
    return ". ".join(near_copy(sentence, 1).split(": ")[1] for sentence in text.split(". "))


changed = changed_in_each(held[2])
training = [*good, held[0], good[1] + " " + held[1] + " " + good[2], changed]
for n in (5, 8, 13, 20):
    known = set().union(*(shingles(page, n) for page in training))
    shares = [overlap(text, known, n) for text in held]
    print(
        f"runs of {n:2} words: planted {shares[0]:.2f}, {shares[1]:.2f}, {shares[2]:.2f};",
        f"{sum(share > 0 for share in shares[3:])} of {HELD - 3} others share one, at most {max(shares[3:]):.2f} of theirs",
    )

# %% [markdown]
r"""
Read the table by rows. That a text shares *one* short run says nothing: all 97 others share a run of five words with the training text, because all stories use the same phrases. The *share* says more. The two verbatim texts have 1.00 in every row. The changed text has 0.76 at five words, where no other has more than 0.67, but at
13 words its 0.15 is hardly above the others' 0.14. One example may be luck. So we change fifty evaluation texts in this way, one at a time, and count how many of them have a larger share than every clean text.
"""

# %%
for n in (5, 8, 13, 20):
    of_good = set().union(*(shingles(page, n) for page in good))
    usual = max(overlap(text, of_good, n) for text in held)
    shares = [overlap(text, of_good | shingles(changed_in_each(text), n), n) for text in held[:50]]
    print(f"runs of {n:2} words: {sum(share > usual for share in shares)} of 50 changed texts stand out")

# %% [markdown]
r"""
At 5 words 43 of the 50 stand out, at 8 words 36, and at 13 words none. So it is the choice of 13 words that hides a changed text: few runs of 13 words survive a change in every sentence. Short runs find it, but only if we know which share is usual in this kind of text. GPT-3's authors asked whether there is *any* common run, and for that question a run must be long.

So a small overlap does not prove that an evaluation is clean. Paraphrases, translations and reformatted questions pass this check. What can be done? Remove what is found, from the *training* text. Report the score on the clean
part of the evaluation separately, as GPT-3's authors did, who could not train again after they had found a bug in their removal (Brown et al. 2020, §4). Or evaluate on texts that were written
after the crawl. Our course has another way out, which real text does not have: its evaluation stories are drawn from the grammar with a new seed.

*Remove what is found.* So far we asked for each evaluation text how much of it is in the training text. To remove pages we must ask the other way round: how much of a training *page* is in an evaluation text? Any common run, or a fifth of the page's runs, or ten runs? We try three rules, and then put one evaluation story into longer and longer pages.
"""

# %%
known = set().union(*(shingles(text, 13) for text in held))


def common_runs(page: str) -> int:
    return len(shingles(page, 13) & known)


removed = {
    "any common run": [n for n, page in enumerate(training) if common_runs(page) > 0],
    "more than a fifth of its runs": [n for n, page in enumerate(training) if overlap(page, known) > 0.2],
    "more than ten runs": [n for n, page in enumerate(training) if common_runs(page) > 10],
}
for rule, places in removed.items():
    print(f"pages with {rule}: {len(places)}, of which planted: {sum(n >= STORIES for n in places)}")
for others in (0, 2, 4, 10):
    page = " ".join([held[1], *good[100 : 100 + others]])
    print(f"beside {others:2} other stories: share {overlap(page, known):.2f}, {common_runs(page)} runs")

# %% [markdown]
r"""
A single common run is a weak sign in text that repeats its phrases: it condemns 25 pages, and 22 of them are innocent. A fifth of the page's runs finds exactly the two verbatim copies, and so do ten runs. But the last lines show that these two rules are not equally good. The share depends on the length of the page: beside ten other
stories the same evaluation text has a share of 0.08, and a rule with a fifth lets it through. The number of common runs is 70 in each page. So a rule for removing pages should count runs, and ten was enough here: no good story has more than seven.

## Mixtures

After cleaning, a team has several sources: web pages, books, code, an encyclopedia. They differ in size and in quality. How often should each be read? GPT-3 read 3 billion tokens of Wikipedia about 3.4 times, and its 410 billion tokens of web pages not
even half (Brown et al. 2020, table 2.2). Small good sources are repeated, large ones are sampled. About four repetitions cost little compared with new text (Muennighoff et al. 2023).

Such a *mixture* needs three things from the stream that feeds the training. The proportions must be exact, not only on average, or runs of different length see different mixtures. No token may be lost or read
twice within a source. And a run must resume at exactly the same row. Drawing the source of each row at random gives the first only on average. Instead we use a fixed *cycle*. With weights 6, 3 and 1, each ten rows
contain six of the first source, three of the second and one of the third.

In which order? At every row we take the source that is furthest behind its share. That spreads each source evenly.
"""


# %%
#| export labs.corpora.mixture
import numpy as np
import torch

from nanogpt.data import BatchStream


# %%
#| export labs.corpora.mixture
def cycle_of(weights: list[int]) -> list[int]:
    """The source of each row of a cycle: each source as often as its weight says, spread evenly."""
    total, given, cycle = sum(weights), [0] * len(weights), []
    for n in range(1, total + 1):
        behind = [weight * n - had * total for weight, had in zip(weights, given)]
        source = behind.index(max(behind))
        given[source] += 1
        cycle.append(source)
    return cycle


# %%
print("6, 3, 1:", cycle_of([6, 3, 1]))
print("1, 1:   ", cycle_of([1, 1]))
cycle = cycle_of(list(WEIGHTS))
assert [cycle.count(i) for i in range(len(WEIGHTS))] == list(WEIGHTS), (
    "a source has another share than its weight"
)

# %% [markdown]
r"""
Now row number n of the mixture is a matter of arithmetic. Divide n by the cycle's length: the remainder says which source it is, and quotient and remainder together say how many rows of this source came
before. So every rank can compute its own rows without asking the others, and a run that resumes needs to know a single number. `MixedStream` keeps chapter 03's interface. Each of its sources is a stream of chapter 03 with one row
a batch, which is moved to the right place and asked for its next batch.
"""


# %%
#| export labs.corpora.mixture
class MixedStream:
    """Batches whose rows come from several streams in exact proportions; takes BatchStream's place in a loop.

    streams: each with B = 1, one rank, and the same T and vocabulary. weights: whole numbers; of each sum(weights)
    rows, source i gives weights[i]. ValueError where that cannot be.
    """

    def __init__(self, streams: list[BatchStream], weights: list[int], B: int, rank=0, world_size=1):
        if len(weights) != len(streams) or not all(type(w) is int and w > 0 for w in weights):
            raise ValueError(f"weights={weights}: a whole number above 0 for each of {len(streams)} streams")
        if len({(s.T, s.vocab_size, s.eot) for s in streams}) != 1 or any(s.B != 1 for s in streams):
            raise ValueError("the streams of a mixture need B = 1, and the same T and vocabulary")
        if B < 1 or rank not in range(world_size):
            raise ValueError(f"a stream needs B >= 1, 0 <= rank < world_size; got {B, rank, world_size}")
        self.streams, self.weights, self.cycle = streams, list(weights), cycle_of(list(weights))
        self.B, self.T, self.rank, self.world_size = B, streams[0].T, rank, world_size
        # A row moves its source's own position by T tokens, or by one row of a DocumentStream.
        self.steps = [1 if s.state_dict()["counts"] == "rows" else s.T for s in streams]
        self.position = 0  # rows that all ranks together have consumed


# %%
#| export labs.corpora.mixture
#| blank MixedStream.next_batch: each row: find its place, move that stream there (steps: what a row adds), ask it
class MixedStream(MixedStream):
    def place(self, row: int) -> tuple[int, int]:
        """The source of a row of the mixture, and how many rows of this source came before it."""
        cycles, at = divmod(row, len(self.cycle))
        source = self.cycle[at]
        return source, cycles * self.weights[source] + self.cycle[:at].count(source)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the streams' device; y[b, t] is the token that follows x[b, t].

        A step takes B × world_size rows, the first B for rank 0, and moves self.position by as many. A source is
        moved by its attribute `position`: the rows before, times its self.steps.
        """
        rows = []
        for row in range(self.B):
            source, number = self.place(self.position + self.rank * self.B + row)
            self.streams[source].position = number * self.steps[source]
            rows.append(self.streams[source].next_batch())
        self.position += self.world_size * self.B
        return torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows])

    def epochs(self) -> list[float]:
        """How often each source has been read so far."""
        cycles, at = divmod(self.position, len(self.cycle))
        counts = [cycles * w + self.cycle[:at].count(i) for i, w in enumerate(self.weights)]
        return [n * self.steps[i] / self.streams[i].epoch_length for i, n in enumerate(counts)]


# %%
#| export labs.corpora.mixture
class MixedStream(MixedStream):
    def state_dict(self) -> dict:
        """What resumes the mixture at exactly this row, with any B and number of ranks."""
        here = {"counts": "mixed rows", "position": self.position, "T": self.T, "weights": self.weights}
        return here | {"sources": [stream.state_dict() for stream in self.streams]}

    def load_state_dict(self, state: dict) -> None:
        """Resume. ValueError, and the place unchanged, if the state is another mixture's."""
        for what in ("counts", "T", "weights"):
            if state.get(what) != self.state_dict()[what]:
                raise ValueError(f"this mixture is not what the state was saved for: see its {what!r}")
        for stream, saved in zip(self.streams, state["sources"], strict=True):
            stream.load_state_dict(saved)
        self.position = state["position"]


# %% [markdown]
r"""
We try it with three small sources: the stories, the near copies as a second site, and the page of keywords. After 100 batches we ask how often each
source has been read.
"""

# %%
texts = {"stories": good, "shared": near, "keywords": [pages["keywords"]] * 20}
sources_of_rows = [written(name, some) for name, some in texts.items()]


def mixture(B: int, rank=0, world_size=1) -> MixedStream:
    streams = [BatchStream(shards, 1, 64) for shards in sources_of_rows]
    return MixedStream(streams, list(WEIGHTS), B, rank, world_size)


stream = mixture(B=20)
for _ in range(100):
    x, y = stream.next_batch()
print(tuple(x.shape), "a batch;", stream.position, "rows so far")
for name, epochs in zip(texts, stream.epochs()):
    print(f"{name:9} read {epochs:.2f} times")

# %% [markdown]
r"""
The two small sources have been repeated, 4.4 and 1.9 times, and a third of the large one was read. The keywords get one row in ten, although we have just seen what such pages do to a model: a mixture gives each source exactly the weight that somebody has chosen, and does not ask what it is worth. About four
repetitions is where repeated text begins to cost. So a team looks at such a table before a run begins, and not after it.

*Check.* Four laws. The proportions are exact in every cycle, wherever it begins. The rows of one source, taken in order, are exactly those of its own stream, so nothing is lost or read twice. Two ranks with ten rows each see what one rank with
twenty sees. And a stream that resumes goes on with the same rows.
"""

# %%
single = mixture(B=20)
x, y = single.next_batch()
for start in range(10):
    sources_of = [single.place(start + n)[0] for n in range(sum(WEIGHTS))]
    assert [sources_of.count(i) for i in range(3)] == list(WEIGHTS), (
        f"a cycle from row {start} has other shares"
    )
alone = BatchStream(open_shards(folder / "stories", "train"), 1, 64)
of_stories = [row for row in range(20) if single.place(row)[0] == 0]
for row in of_stories:
    assert torch.equal(alone.next_batch()[0][0], x[row]), f"row {row} is not the source's next row"
ranks = [mixture(10, rank, 2).next_batch()[0] for rank in (0, 1)]
assert torch.equal(torch.cat(ranks), x), "two ranks see other rows than one"
resumed = mixture(B=20)
resumed.load_state_dict(single.state_dict())
assert torch.equal(resumed.next_batch()[0], single.next_batch()[0]), "a resumed mixture goes on elsewhere"
print("exact shares, no row lost, ranks agree, resumed at the same row")

# %% [markdown]
r"""
All four hold. That is why a mixture needs no random numbers.

## Your predictions, and the checkpoint

Exports `labs/corpora/clean.py` and `labs/corpora/mixture.py`, imports them in a fresh process and runs the chapter's tests.
"""

# %%
predictions("16c")

# %%
checkpoint("16c")

# %% [markdown]
r"""
## Exercises

To explore:

1. **More bands.** Take 28 bands of 4 numbers. *Check:* the formula 1 − (1 − s⁴)²⁸ at 0.3 and at 0.7, and then the counts of candidates
   and of found pairs. Which of them grew faster?
2. **Names.** Rename the two persons of a story everywhere. How similar is it to the original? *Check* with `similarity`. Would you call it a duplicate? Write shingles that
   do not see names.
3. **A rule that is measured.** Choose the lower limit of the number of words so that at most one half of a story in a thousand is thrown away. *Check* it on halves of stories of another seed. Does one of the bad pages pass now? And does "Ask a model" notice, if you train on the halves?
4. **A contaminated model.** Add the first ten of `held` to `clean`, twenty times each, and train with `trained_on`. *Check:* compare its loss on
   these ten and on the ninety others. By how much does the mean over all hundred improve? Does a rule of this chapter find the pages?
5. **Random sources.** Replace the cycle by a random draw for each row with the same probabilities. *Check:* how far are the shares from 6, 3 and 1 after 600 rows, for ten seeds? What would a
   resumed run need to know?

## Further reading

- Broder 1997, [*On the Resemblance and Containment of Documents*](https://doi.org/10.1109/SEQUEN.1997.666900): shingles and MinHash.
- Lee et al. 2022, [*Deduplicating Training Data Makes Language Models Better*](https://arxiv.org/abs/2107.06499), §4 and §6: near duplicates, and what they do to a model.
- Rae et al. 2021, [*Scaling Language Models: Methods, Analysis & Insights from Training Gopher*](https://arxiv.org/abs/2112.11446), appendix A: the rules.
- Penedo et al. 2024, [*The FineWeb Datasets*](https://arxiv.org/abs/2406.17557), §3: each decision, with the experiment that decided it.
- Brown et al. 2020, [*Language Models are Few-Shot Learners*](https://arxiv.org/abs/2005.14165), table 2.2, §4 and appendix C: a mixture, and what contamination they found.
- Muennighoff et al. 2023, [*Scaling Data-Constrained Language Models*](https://arxiv.org/abs/2305.16264): what repeated text is worth.
"""
