# %% [markdown]
r"""
# 01 · Tokenizer: text into numbers, and back

A model computes with numbers, so text has to become a sequence of ids from a fixed list. Cut it into bytes, and
256 ids are enough for any text there is, but the sequence is long, and attention pays for length squared
(chapter 04). Cut it into words, and the sequence is short, but the list never ends: the first name, typo or
number that is not on it has no id at all. GPT-2 stands between the two, with *byte-level byte pair encoding*
(BPE): start from bytes, then give the most frequent neighbours an id of their own, again and again.

This chapter builds it in three steps: on a bare sequence, then with GPT-2's rule for where a token may not
reach, then with special tokens. The result is quick in pure Python and gives GPT-2's ids exactly.
"""

# %%
#| default_exp text.tokenizer
#| doc text.bpe: Byte pair encoding: merges learned from chunks of bytes, and a chunk's ids by them.
#| doc text.tokenizer: Text to ids and back as GPT-2 does it: chunks, special tokens, files.
import random
import time

from course.figures import tokenizer as figures
from course.figures.tokenizer import visible
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpora.corpus import stories  # chapter 02's; here only a source of text

STORIES, VOCAB = 5000, 1024  # how much text to learn from, and how many tokens to learn
documents = [story.text for story in stories(STORIES, seed=0)]
held_out = [story.text for story in stories(500, seed=1)]
print(f"{len(documents)} stories, {sum(map(len, documents)) / 1e6:.2f} MB; the first one begins:")
print(documents[0][:120])

# %% [markdown]
r"""
The text is the course's own: small stories, whose grammar is chapter 02's subject. For now they are text like any other.
A sentence in their style, but with one word of its own, cut in both ways:
"""

# %%
sentence = "Rosa gave three unicorns to Leo."
known = {word.strip('.,"?!').encode() for text in documents for word in text.split()}
words, letters = sentence.rstrip(".").encode().split(), [bytes([b]) for b in sentence.encode()]
rows = {f"{len(letters)} bytes": letters, f"{len(words)} words": words}
fig = figures.cuts(rows, red=set(words) - known)
show(fig, alt="A sentence cut into 32 bytes, each known, and into 6 words, of which unicorns is unknown")

# %% [markdown]
r"""
Red: the word is not in the stories, so a vocabulary of words has nothing to say here.

*Predict.* Three numbers. In these stories, what share of the length is left after the most frequent pair of neighbours
has become one token? How many bytes does a token cover on average when there are 1,024 of them? How many code points are
in an emoji that shows a woman astronaut?
"""

# %%
predict("01.1", "length left after one merge", guess=None, unit="%")
predict("01.2", "bytes per token with 1,024 tokens", guess=None)
predict("01.3", "code points in a woman astronaut", guess=None)

# %% [markdown]
r"""
## Code points and bytes

Python's `str` is a sequence of code points, the numbers up to 1,114,111 to which Unicode gives meanings. UTF-8 writes each as
one to four bytes (RFC 3629, §3).
"""

# %%
for text in ["A", "ë", "и", "ह", "写", "\u200d", "🙂", "👩\u200d🚀"]:
    points = " ".join(f"U+{ord(c):04X}" for c in text)
    print(f"{len(text)} code points, {len(text.encode()):2} bytes: {points:23} {text.encode().hex(' ')}")
answer("01.3", len(text))

# %% [markdown]
r"""
What looks like one character may be several code points: the astronaut is a woman, a joiner and a rocket.
ASCII costs one byte; Latin letters with accents, Greek, Cyrillic, Hebrew and Arabic cost two; Devanagari and most other
scripts of Asia, Chinese included, three; emoji four. Ids for code points would need a table
of a million rows, nearly all of them never trained; ids for bytes need 256, and no text is ever unknown. The price
is that a byte is not a character, so a sequence of ids can end in the middle of one.

One kind of `str` has no bytes. A *lone surrogate* is half of a UTF-16 pair, left behind by a broken decoder.
tiktoken replaces it by U+FFFD without a word; here it is refused, with its place.
"""


# %%
#| export
def utf8(text: str) -> bytes:
    """`text` in UTF-8; ValueError with the place of a lone surrogate, which UTF-8 cannot express."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = f"character {error.start} of the text is the lone surrogate U+{ord(text[error.start]):04X}"
        raise ValueError(f"{where}; replace it: text.encode('utf-8', 'replace').decode()") from None


# %%
print(list(utf8("Zoë")))
try:
    utf8("half a smile: \ud83d")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## Step 1: merge the most frequent pair

Gage (1994) had the idea for compression; Sennrich et al. (2016, §3.2) brought it to translation. Count all pairs
of neighbours, give the most frequent one a new id, replace it everywhere, repeat.
"""

# %%
#| export text.bpe
#| blank replace: walk from left to right; a match takes two ids away and adds one
from itertools import pairwise


def replace(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """`ids` with every occurrence of `pair`, taken from left to right, replaced by the id `new`."""
    out, i = [], 0
    while i < len(ids):
        if ids[i] == pair[0] and i + 1 < len(ids) and ids[i + 1] == pair[1]:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


# %%
print(replace([97, 97, 97, 98], (97, 97), 256))

# %% [markdown]
r"""
Three a's hold the pair twice, and only one of the two can be replaced: the left one. Such a rule must be fixed,
or two machines learn different vocabularies. A second one is needed for equal counts: **the most frequent pair is
merged; among equally frequent ones, the pair with the smallest ids**, the left id compared first. The
example of Wikipedia's article, followed by hand:
"""

# %%
from collections import Counter

ids, vocab = list(b"aaabdaaabac"), [bytes([i]) for i in range(256)]
for new in range(256, 260):
    counts = Counter(pairwise(ids))
    if not counts:
        break  # a single token is left
    pair = min(counts, key=lambda p: (-counts[p], p))
    vocab.append(vocab[pair[0]] + vocab[pair[1]])
    ids = replace(ids, pair, new)
    print(f"{new} = {vocab[new]!r}, {counts[pair]}×: ", *[visible(vocab[i]) for i in ids])

# %% [markdown]
r"""
`ab` came second because its ids are smaller than those of `aa` + `a`, which was as frequent. The last merge joins
a pair that occurs once. BPE stops when the vocabulary is full, or when nothing is left to merge.

## Step 2: where a token may not reach

What does this learn from stories? Each one is a sequence; the counts are summed.
"""


# %%
def learn_by_recount(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """At most `n` merges, straight from the definition: count every pair anew for each merge."""
    words = [(list(chunk), times) for chunk, times in chunks.items()]
    merges = []
    while len(merges) < n:
        counts = Counter()
        for ids, times in words:
            for pair in pairwise(ids):
                counts[pair] += times
        if not counts:
            break  # every chunk is one token
        pair = min(counts, key=lambda p: (-counts[p], p))
        words = [(replace(ids, pair, 256 + len(merges)), times) for ids, times in words]
        merges.append(pair)
    return merges


# %% [markdown]
r"""
Spelled out:
"""


# %%
#| export text.bpe
def spell(merges: list[tuple[int, int]]) -> list[bytes]:
    """The bytes behind every id: 256 single ones, then one string for each merge."""
    vocab = [bytes([i]) for i in range(256)]
    for left, right in merges:
        vocab.append(vocab[left] + vocab[right])
    return vocab


# %%
whole_stories = Counter(text.encode() for text in documents[:200])
unsplit = spell(learn_by_recount(whole_stories, 150))[256:]
print("first:  ", *[visible(token) for token in unsplit[:12]])
print("longest:", *[visible(token) for token in sorted(unsplit, key=len)[-6:]])

# %% [markdown]
r"""
Tokens reach over the edges of words (`to·the·`) and over punctuation (`,"·said·`), so a word needs a token for each
neighbour that it often has. Radford et al. (2019, §2.2) saw `dog.`, `dog!` and `dog?` take
three places in the vocabulary, and forbade merges across categories of characters. Text is first cut into
*chunks* by a regular expression, and no token reaches over a chunk's edge:

| alternative | takes |
|---|---|
| `'s\|'t\|'re\|'ve\|'m\|'ll\|'d` | an English ending after an apostrophe, in lower case only |
| ` ?\p{L}+` | letters, with one space before them |
| ` ?\p{N}+` | digits, with one space before them |
| ` ?[^\s\p{L}\p{N}]+` | anything else that is not white space, with one space before it |
| `\s+(?!\S)` | white space, all but the last one if something follows |
| `\s+` | that last one |

The space belongs to the word behind it. So `the` at the start of a line and ` the` inside it are different tokens.
"""

# %%
#| export
from collections import Counter
from collections.abc import Iterable

import regex

EOT = "<|endoftext|>"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def count_chunks(texts: Iterable[str], pattern: str = GPT2_PATTERN) -> Counter[bytes]:
    """How often each chunk occurs. A text is cut at `<|endoftext|>`, which separates and is never learned."""
    split, counts = regex.compile(pattern).findall, Counter()
    for text in texts:
        utf8(text)  # names a lone surrogate by its place in the text, not in the chunk
        for document in text.split(EOT):
            counts.update(split(document))
    return Counter({utf8(chunk): times for chunk, times in counts.items()})


# %%
print(regex.findall(GPT2_PATTERN, "She'll pay 1,024 coins,   WON'T she?\n\n  Yes."))
chunks = count_chunks(documents)
print(
    f"{sum(chunks.values())} chunks, {len(chunks)} distinct:", *[visible(c) for c, _ in chunks.most_common(9)]
)

# %% [markdown]
r"""
This cut also makes training cheap. A merge happens inside a chunk, so it is enough to look at each distinct chunk
once and to weigh it by how often it occurs.

It remains wasteful to recount everything after each merge. A merge changes only the words that contain the pair: take their
old pairs out of the counts, put their new pairs in. `places` says which words those are, and a heap says which pair is the
most frequent. When a count changes, the pair enters the heap again; an entry whose count is out of date is dropped on its way
out.
"""

# %%
#| export text.bpe
import heapq
from collections import Counter, defaultdict


class _PairCounts:
    """How often each pair of neighbours occurs in some words, kept up to date while pairs are replaced."""

    def __init__(self, chunks: dict[bytes, int]):
        self.words, self.times = [list(chunk) for chunk in chunks], list(chunks.values())
        self.counts, self.places = Counter(), defaultdict(set)
        for w in range(len(self.words)):
            self.tally(w, +1)
        self.heap = [(-count, pair) for pair, count in self.counts.items()]
        heapq.heapify(self.heap)

    def tally(self, w: int, sign: int) -> None:
        """Add the pairs of word w to the counts, or take them out."""
        for pair in pairwise(self.words[w]):
            self.counts[pair] += sign * self.times[w]
            self.places[pair].add(w)


# %% [markdown]
r"""
With that, learning is a loop of two steps:
"""


# %%
#| export text.bpe
class _PairCounts(_PairCounts):
    def best(self) -> tuple[int, int] | None:
        """The most frequent pair, among equals the one with the smallest ids; None if nothing is left."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if count < 0 and self.counts[pair] == -count:  # else it is out of date
                return pair

    def replace(self, pair: tuple[int, int], new: int) -> None:
        changed = set()
        for w in self.places.pop(pair):
            changed.update(pairwise(self.words[w]))
            self.tally(w, -1)
            self.words[w] = replace(self.words[w], pair, new)
            self.tally(w, +1)
            changed.update(pairwise(self.words[w]))
        for p in changed:
            heapq.heappush(self.heap, (-self.counts[p], p))


# %%
#| export text.bpe
#| blank learn_merges: take the best pair, replace it by its new id, note it, and repeat
def learn_merges(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """At most `n` merges of byte-level BPE; merge k makes id 256 + k (Sennrich et al. 2016, §3.2).

    chunks: how often each byte string occurs. The most frequent pair is merged; among equals, the pair with the
    smallest ids, left first. Fewer than `n` come back if nothing is left to merge.
    """
    pairs, merges = _PairCounts(chunks), []
    while len(merges) < n and (pair := pairs.best()):
        pairs.replace(pair, 256 + len(merges))
        merges.append(pair)
    return merges


# %%
start = time.perf_counter()
recounted = learn_by_recount(chunks, 300)
middle = time.perf_counter()
merges = learn_merges(chunks, 300)
end = time.perf_counter()
assert merges == recounted, "updating the counts learns other merges than recounting"
print(f"300 merges: {middle - start:.2f} s by recounting, {end - middle:.3f} s by updating")
print("first:  ", *[visible(token) for token in spell(merges)[256:268]])
print("longest:", *[visible(token) for token in sorted(spell(merges), key=len)[-6:]])

# %% [markdown]
r"""
The merges are the same, ties included. The gap grows with the text: these stories have few distinct chunks. The first
prediction:
"""

# %%
after = sum(times * len(replace(list(chunk), merges[0], 256)) for chunk, times in chunks.items())
length = sum(times * len(chunk) for chunk, times in chunks.items())
print(f"one merge leaves {after / length:.1%} of the length")
answer("01.1", 100 * after / length)

# %% [markdown]
r"""
## From merges to ids

To encode a chunk, apply the merges to it in the order in which they were learned. No two of them spell the same bytes, so
the list of byte strings says everything that the list of pairs says: a token's id is its *rank*, and two neighbours may
merge exactly if their bytes, joined, have one. The lowest rank goes first.
"""

# %%
vocab = spell(merges)
assert len(set(vocab)) == len(vocab), "two merges spell the same bytes"


def merge_slowly(chunk: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of one chunk: look at all neighbours, merge the pair with the lowest rank, look again."""
    pieces = [bytes([b]) for b in chunk]
    while joined := {i: ranks[a + b] for i, (a, b) in enumerate(pairwise(pieces)) if a + b in ranks}:
        i = min(joined, key=lambda i: (joined[i], i))  # of equal ranks the left one
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return [ranks[piece] for piece in pieces]


# %% [markdown]
r"""
Each merge looks at the whole chunk, so `n` bytes without a space, a web address or a line of base64, take n² steps. The
version that is exported gives the same ids in n log n: it keeps the possible merges in a heap, each with where it starts
and ends in the chunk. Read past its details if you like; the check below is what counts.
"""


# %%
#| export text.bpe
#| blank merge_chunk: join the two neighbours of the lowest rank until no two neighbours can be joined
def merge_chunk(chunk: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of one chunk: the neighbours whose joined bytes have the lowest rank merge first, equal ones from the left."""
    n = len(chunk)
    stop = [*range(1, n + 1), 0]  # the token at i is chunk[i:stop[i]]
    start = list(range(-1, n))  # the token that ends at j begins at start[j]
    heap = [(ranks[chunk[i : i + 2]], i, i + 2) for i in range(n - 1) if chunk[i : i + 2] in ranks]
    heapq.heapify(heap)
    while heap:
        _, i, j = heapq.heappop(heap)
        if stop[middle := stop[i]] != j:
            continue  # one of the two has merged with somebody else
        stop[i], start[j], stop[middle] = j, i, n  # n: a place where no token begins
        for a, b in (start[i], j), (i, stop[j]):
            if a >= 0 and b > 0 and chunk[a:b] in ranks:
                heapq.heappush(heap, (ranks[chunk[a:b]], a, b))
    ids, i = [], 0
    while i < n:
        ids.append(ranks[chunk[i : stop[i]]])
        i = stop[i]
    return ids


# %% [markdown]
r"""
*Check.* Both against the definition, on every chunk of the stories and on noise that the merges have never seen:
"""


# %%
rng, ranks = random.Random(0), {token: i for i, token in enumerate(vocab)}
noise = [bytes(rng.choices(b" aehnorst", k=rng.randrange(1, 40))) for _ in range(500)]
for chunk in [*chunks, *noise]:
    ids = list(chunk)
    for k, pair in enumerate(merges):  # the definition: every merge, in the order learned
        ids = replace(ids, pair, 256 + k)
    assert merge_chunk(chunk, ranks) == merge_slowly(chunk, ranks) == ids, f"{chunk!r} is cut differently"
print(f"{len(chunks) + len(noise)} chunks agree")

# %% [markdown]
r"""
## Step 3: special tokens

A model must know where a document ends. GPT-2 marks it by `<|endoftext|>`, an id that no bytes lead to. But its
name can be typed. If the name in a user's text became the id, anybody could end a document from inside. So the
name is text like any other, unless the caller says otherwise:
"""

# %%
#| export
from collections.abc import Collection


def split_special(text: str, special: Collection[str]) -> list[str]:
    """`text` cut so that each name in `special` stands alone; of overlapping names the longest counts."""
    if not special:
        return [text]
    names = sorted(special, key=len, reverse=True)
    return [part for part in regex.split("(" + "|".join(map(regex.escape, names)) + ")", text) if part]


# %%
print(split_special("one<|endoftext|>two", {EOT}))
print(split_special("one<|endoftext|>two", set()))

# %% [markdown]
r"""
## A vocabulary: learned, published, saved

What the steps make together is a list of byte strings. Three ways lead to one. The first is to learn it:
"""


# %%
#| export
def learn_vocab(texts: Iterable[str], vocab_size: int, pattern: str = GPT2_PATTERN) -> list[bytes]:
    """256 bytes and `vocab_size` - 257 merges learned from `texts`; the last id is left for `<|endoftext|>`.

    ValueError if `vocab_size` is below 257, or more than the texts have merges for.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size {vocab_size} is too small; 256 bytes and {EOT} need 257")
    merges = learn_merges(count_chunks(texts, pattern), vocab_size - 257)
    if 257 + len(merges) < vocab_size:
        what = f"vocab_size {vocab_size} is too large: after {len(merges)} merges nothing is left to merge"
        raise ValueError(f"{what}; ask for at most {257 + len(merges)}, or train on more text")
    return spell(merges)


# %%
start = time.perf_counter()
vocab = learn_vocab(documents, VOCAB)
print(f"{len(vocab)} tokens learned in {time.perf_counter() - start:.2f} s; the last: {visible(vocab[-1])}")

# %% [markdown]
r"""
The second: GPT-2's own list is public. tiktoken keeps it in a cache, or downloads it and compares its SHA-256 with
the published one.
"""


# %%
#| export
def gpt2_vocab() -> list[bytes]:
    """GPT-2's 50,256 byte strings in order of rank, through tiktoken's cache; OSError where it is not to be had."""
    import tiktoken

    try:
        published = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # ValueError: tiktoken compared the hash
        why = "has a wrong SHA-256" if isinstance(error, ValueError) else f"failed: {type(error).__name__}"
        what = f"GPT-2's vocabulary is not in tiktoken's cache and its download {why}"
        raise OSError(f"{what}; connect once, or set TIKTOKEN_CACHE_DIR to a folder that has it") from None
    return [published.decode_single_token_bytes(i) for i in range(published.eot_token)]


# %% [markdown]
r"""
The third: load a file. Models depend on it; with one token moved, a trained model reads gibberish. So the file
carries a *fingerprint*, the SHA-256 of everything that decides an id, and a file that does not match its own is
refused. JSON holds text, not bytes; Latin-1 names each byte by one character, which keeps English legible.
"""

# %%
#| export
import hashlib
import json
from pathlib import Path


def pack(vocab: list[bytes], pattern: str, special: list[str]) -> dict:
    """A tokenizer as JSON values: all that decides an id, and its fingerprint (hex SHA-256)."""
    contents = {"pattern": pattern, "special": special, "vocab": [token.decode("latin-1") for token in vocab]}
    return {"fingerprint": hashlib.sha256(json.dumps(contents).encode()).hexdigest(), **contents}


def unpack(path: Path) -> tuple[list[bytes], str, list[str]]:
    """(vocab, pattern, special) from a file that holds what `pack` made; ValueError if anything in it changed."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        parts = [token.encode("latin-1") for token in saved["vocab"]], saved["pattern"], saved["special"]
        whole = pack(*parts) == saved and all(isinstance(name, str) for name in saved["special"])
    except FileNotFoundError:
        raise FileNotFoundError(f"no tokenizer at {path}; chapter 01 trains one and saves it") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{path} is no tokenizer that `save` wrote, or is damaged; chapter 01 trains one")
    return parts


# %%
packed = pack(vocab, GPT2_PATTERN, [EOT])
print(packed["fingerprint"][:16], packed["special"], "...", packed["vocab"][-6:])

# %% [markdown]
r"""
## The tokenizer

A text repeats its chunks, so most of them can be looked up. The memory is bounded, whatever comes in: it keeps
100,000 chunks of up to 100 characters, and then starts afresh.
"""


# %%
#| export
def encode_ordinary(text: str, pattern: regex.Pattern, ranks: dict[bytes, int], cache: dict) -> list[int]:
    """The ids of a text without special tokens. `cache` remembers the ids of chunks, within bounds."""
    ids: list[int] = []
    for chunk in pattern.findall(text):
        known = cache.get(chunk)
        if known is None:
            known = merge_chunk(utf8(chunk), ranks)
            if len(cache) == 100_000:
                cache.clear()
            if len(chunk) <= 100:
                cache[chunk] = known
        ids += known
    return ids


# %% [markdown]
r"""
The class holds the parts together.
"""


# %%
#| export
class BPETokenizer:
    """Byte-level BPE as in GPT-2 (Radford et al. 2019, §2.2).

    vocab: the bytes of each ordinary id in the order learned, the 256 single bytes first. Special tokens come after.
    """

    def __init__(self, vocab: list[bytes], pattern: str = GPT2_PATTERN, special: Iterable[str] = (EOT,)):
        special = list(special)
        if len(set(vocab) | {bytes([b]) for b in range(256)}) != len(vocab):
            raise ValueError("a vocabulary holds each of the 256 bytes, and nothing twice; this one does not")
        if EOT not in special:
            raise ValueError(f"special={special} lacks {EOT}, which ends a document; add it")
        self.vocab, self.pattern = vocab, pattern
        self.ranks = {token: i for i, token in enumerate(vocab)}
        self.special = {name: len(vocab) + i for i, name in enumerate(special)}
        self.tokens = vocab + [utf8(name) for name in self.special]  # the bytes of every id
        self.vocab_size, self.eot = len(self.tokens), self.special[EOT]
        self.fingerprint = pack(vocab, pattern, special)["fingerprint"]
        self._compiled, self._cache = regex.compile(pattern), {}


# %% [markdown]
r"""
`class BPETokenizer(BPETokenizer)` adds methods to the class that the cell above began; the checkpoint joins the parts
into one class.
"""

# %%
#| export
import operator


class BPETokenizer(BPETokenizer):
    def encode(self, text: str, allowed_special: Collection[str] = ()) -> list[int]:
        """Token ids. A special token's name is plain text, unless allowed. ValueError for a lone surrogate."""
        if not set(allowed_special) <= set(self.special):
            raise ValueError(f"allowed_special takes a set of {list(self.special)}, not {allowed_special!r}")
        utf8(text)  # names a lone surrogate by its place in the text
        ids: list[int] = []
        for part in split_special(text, allowed_special):
            if part in allowed_special:
                ids.append(self.special[part])
            else:
                ids += encode_ordinary(part, self._compiled, self.ranks, self._cache)
        return ids


# %%
#| export
#| blank BPETokenizer.decode: refuse foreign ids; join the bytes of all tokens before you decode them
class BPETokenizer(BPETokenizer):
    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8, as in half a character, become U+FFFD. ValueError for a foreign id."""
        ids = [operator.index(i) for i in ids]
        if foreign := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"id {foreign[0]} is outside this tokenizer's {self.vocab_size} ids")
        return b"".join([self.tokens[i] for i in ids]).decode("utf-8", errors="replace")


# %%
small = BPETokenizer(vocab)
ids = small.encode("Rosa had 3 marbles.")
print(ids, "=", *[visible(small.tokens[i]) for i in ids])
print(small.decode(ids))

# %% [markdown]
r"""
What is left is where a tokenizer comes from and where it goes. For gigabytes there is `to_tiktoken`: the same ranks,
in Rust.
"""


# %%
#| export
import os

from nanogpt.text.files import save_json  # chapter 03 builds it: a file is whole, or not there


class BPETokenizer(BPETokenizer):
    @classmethod
    def train(cls, text: str | Iterable[str], vocab_size: int, pattern: str = GPT2_PATTERN) -> "BPETokenizer":
        """Learn from one text or from many; see `learn_vocab`. `<|endoftext|>` gets the last id."""
        return cls(learn_vocab([text] if isinstance(text, str) else text, vocab_size, pattern), pattern)

    @classmethod
    def gpt2(cls) -> "BPETokenizer":
        """GPT-2's own 50,257 ids; OSError in one sentence where its vocabulary is not to be had."""
        return cls(gpt2_vocab())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "BPETokenizer":
        """What `save` wrote; ValueError in one sentence if the file is damaged."""
        return cls(*unpack(Path(path)))


# %%
#| export
class BPETokenizer(BPETokenizer):
    def save(self, path: str | os.PathLike) -> None:
        """Write a JSON file, atomically (see `save_json`)."""
        save_json(path, pack(self.vocab, self.pattern, list(self.special)))

    def to_tiktoken(self):
        """A `tiktoken.Encoding` with the same ids. It replaces lone surrogates where `encode` refuses them."""
        from tiktoken import Encoding

        names = {"mergeable_ranks": self.ranks, "special_tokens": self.special}
        return Encoding("nanogpt", pat_str=self.pattern, **names)


# %%
tokenizer = BPETokenizer.train(documents, VOCAB)
tokenizer.save("../data/built/tokenizer.json")
text = "Zoë paid <|endoftext|> for 17 marbles 🙂."
ids = tokenizer.encode(text)
print(*[visible(tokenizer.tokens[i]) for i in ids], sep=" | ")
print(f"{len(text)} code points, {len(text.encode())} bytes, {len(ids)} tokens")
print("with the special token allowed:", len(tokenizer.encode(text, allowed_special={EOT})), "tokens")

# %% [markdown]
r"""
Known words are one token; `Zoë` and the emoji fall back to bytes, in hex here because none of them is a character
by itself. Nothing is unknown, and nothing is lost.

*Check.* Five laws, on strings made to hurt:
"""

# %%
again = BPETokenizer.load("../data/built/tokenizer.json")
assert again.fingerprint == tokenizer.fingerprint, "what is loaded is not what was saved"

alphabet = [*map(chr, range(0x250)), *"写字アब🙂👩\u200d🚀\u2028\u3000", *[" ", "\n", "'s", EOT] * 40]
strings = ["".join(rng.choices(alphabet, k=rng.randrange(60))) for _ in range(1000)]
in_rust = tokenizer.to_tiktoken()
for string in strings:
    ids = tokenizer.encode(string)
    assert tokenizer.decode(ids) == string, "decoding does not undo encoding"
    assert tokenizer.eot not in ids, "typing a special token's name made one"
    assert in_rust.encode_ordinary(string) == ids, "tiktoken's ids differ"

smaller = BPETokenizer.train(documents, max(257, VOCAB // 2))
assert smaller.vocab == tokenizer.vocab[: len(smaller.vocab)], (
    "a small vocabulary does not begin a larger one"
)
print(f"{len(strings)} strings, {sum(map(len, strings))} code points: all laws hold")

# %% [markdown]
r"""
## See: what a larger vocabulary buys

By the last law one training gives all smaller vocabularies too: cut the list short. How many bytes does a token
cover, on stories that were not trained on? The second curve is recorded: Shakespeare's plays, trained on the first
nine tenths of TinyShakespeare and measured on the last one by `python tests/bench/bench_tokenizer.py --record`.
"""


# %%
def bytes_per_token(vocab: list[bytes], texts: list[str]) -> float:
    coder = BPETokenizer(vocab)
    return sum(len(text.encode()) for text in texts) / sum(len(coder.encode(text)) for text in texts)


everything = spell(learn_merges(chunks, 100_000))
sizes = [size for size in (256, 288, 320, 384, 448, 512, 640, 768) if size < len(everything)]
sizes.append(len(everything))
curve = [bytes_per_token(everything[:size], held_out) for size in sizes]
answer("01.2", bytes_per_token(vocab, held_out))
print(f"nothing is left to merge after {len(everything)} tokens; with {EOT} that is {len(everything) + 1}")

# %%
recorded = json.loads(Path("../data/measurements/tokenizer.json").read_text(encoding="utf-8"))
fig = figures.bytes_per_token(sizes, curve, recorded)
show(
    fig,
    alt="Bytes per token by vocabulary size: stories rise and stop early, Shakespeare rises slowly and bends",
)

# %% [markdown]
r"""
The stories end at 1,024 because their grammar
knows few words: by then every chunk is one token, and the "subwords" are a table of words. Halfway there, tokens are
what they usually are, pieces that words share:
"""

# %%
held = [chunk.decode() for chunk, _ in count_chunks(held_out).most_common()]
for coder in (smaller, tokenizer):
    whole = sum(len(coder.encode(chunk)) == 1 for chunk in held)
    print(f"{coder.vocab_size} tokens: {whole} of the {len(held)} chunks in held-out stories are one token")
    print(*[f"[{visible(coder.tokens[i])}]" for chunk in held[205:210] for i in coder.encode(chunk)])

# %% [markdown]
r"""
Shakespeare goes on, and then bends too. GPT-2's tokens were learned from the web, and on Shakespeare they do what a
fraction of their number does when it is learned from him. More ids also cost: each needs a row of the embedding, and rare ids get
little training.

How the first sentence comes together, each row some merges further:
"""

# %%
steps = figures.merge_steps(sentence, tokenizer)
shown = [round(k * (len(steps) - 1) / 4) for k in range(5)]
fig = figures.cuts({f"{k} merges: {len(steps[k])} tokens": steps[k] for k in shown}, size=(6.5, 2.6))
show(fig, alt="The sentence after more and more merges: letters join until each known word is one token")

# %% [markdown]
r"""
The same for a sentence of yours. *Predict* before you move the slider: which two letters are joined first, and how many
tokens are left at the end? Then type a word that the stories do not have, or one in another script.
"""

# %% tags=["nbval-ignore-output"]
figures.merging_widget(sentence, tokenizer)

# %% [markdown]
r"""
## GPT-2's own tokens

The same class with GPT-2's list. *Predict:* into how many tokens does it cut `123456`, and which of the years 2022, 2023
and 2024 into more than one?
"""

# %%
predict("01.4", "tokens of 123456", guess=None)
samples = ["Only", " Only", " only", " ONLY", " SolidGoldMagikarp"]
samples += ["1234", "12345", "123456", " 2022", " 2023", " 2024"]

# %% tags=["nbval-ignore-output"]
try:
    gpt2 = BPETokenizer.gpt2()
except OSError as error:
    gpt2 = None
    print(error)
    print("recorded: 12 34, 123 45, 123 456; ·2022 and ·2024 are one token, ·2023 is two")
    answer("01.4", 2)
else:
    import tiktoken

    published = tiktoken.get_encoding("gpt2")
    assert all(gpt2.encode(s) == published.encode_ordinary(s) for s in strings), "ids differ from tiktoken's"
    print(f"{gpt2.vocab_size} ids; the same as tiktoken's on {len(strings)} strings")
    for text in samples:
        ids = gpt2.encode(text)
        print(f"{visible(text.encode()):11}", *[f"{visible(gpt2.tokens[i])}={i}" for i in ids])
    answer("01.4", len(gpt2.encode("123456")))

# %% [markdown]
r"""
One word has a different id at the start of a line, in a sentence and in capitals; the model has to learn that these
belong together. `O` alone is 46 here and 79 in ASCII: GPT-2's list begins with the 188 bytes that print, then come the
other 68. Numbers fare worse than words. Digits were merged like letters, by how often they stood together on the web:
"""

# %% tags=["nbval-ignore-output"]
if gpt2 is None:
    print("This figure needs GPT-2's vocabulary.")
else:
    lengths = [[len(gpt2.encode(f" {100 * row + column}")) for column in range(100)] for row in range(100)]
    fig = figures.token_counts(lengths)
    show(
        fig,
        alt="One token for numbers below 300 and years of the twentieth century; two for most others, three for some",
    )
    few, years = sum(row.count(1) for row in lengths[:10]), lengths[19].count(1)
    print(f"one token: {few} of the numbers 0 to 999, {years} of the years 1900 to 1999")

# %% [markdown]
r"""
What the web counts often has a token of its own: small numbers, and years. But the same `123` stands for hundreds in
`12345` and for thousands in `123456`; adding in columns is hard when the columns move. Later models cut numbers into single digits or into threes, and then it
matters from which end (Singh & Strouse 2024).

Code meets another gap in the vocabulary:
"""

# %% tags=["nbval-ignore-output"]
if gpt2:
    code = "def total(rows):\n    for row in rows:\n        if row.valid:\n            result += row.value\n"
    ids = gpt2.encode(code)
    print("".join(f"[{visible(gpt2.tokens[i])}]" for i in ids))
    print(f"{len(ids)} tokens, {ids.count(gpt2.ranks[b' '])} of them single spaces")

# %% [markdown]
r"""
The pattern would have allowed tokens for runs of spaces; the text that it was learned from had little use for them. So
indentation fills the context, and the model has to count. For Codex, tokens for runs of spaces were added, and code
became about 30 % shorter (Chen et al. 2021, §3.2). Other languages pay as code does, and more:
"""

# %% tags=["nbval-ignore-output"]
greetings = """English: Good morning, how are you?
German:  Guten Morgen, wie geht es dir?
Russian: Доброе утро, как дела?
Hindi:   शुभ प्रभात, आप कैसे हैं?
Chinese: 早上好，你好吗？"""
for line in greetings.splitlines() if gpt2 else ():
    text = line[9:]
    print(f"{line[:8]} {len(text)} characters, {len(text.encode())} bytes, {len(gpt2.encode(text))} tokens")
# %% [markdown]
r"""
A reader of Hindi pays several times as much as one of English for the same question. And some ids stand in hardly any text. ` SolidGoldMagikarp`, one token above, is a user's name that was frequent where the merges were
counted, and rare where the model was trained; asked to repeat it, the model wrote something else (Rumbelow and Watkins 2023).

GPT-4's pattern mends several of these: endings in capitals too, digits in threes, one token for line ends. The vocabulary behind it
was learned anew; the algorithm is this chapter's.
"""

# %%
GPT4_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
text = "SHE'LL pay 1234567 coins.\n\n    Yes"
print("GPT-2:", regex.findall(GPT2_PATTERN, text))
print("GPT-4:", regex.findall(GPT4_PATTERN, text))

# %% [markdown]
r"""
How fast all this is beside tiktoken and Hugging Face's trainer, on Shakespeare: `python tests/bench/bench_tokenizer.py`.

## Checkpoint

The algorithm becomes `nanogpt/text/bpe.py`, what GPT-2 does with it `nanogpt/text/tokenizer.py`, if both pass this chapter's tests.
"""

# %%
predictions("01")

# %%
checkpoint("01")

# %% [markdown]
r"""
## Exercises

`course exercises release 01` writes these as a notebook to `released/`; `course check 01` runs their visible checks.

- **01-1** One merge, 20 minutes: write the step that BPE repeats.
- **01-2** Longest match first, 30 minutes: encode as WordPiece does, and find where BPE does better and where worse.
- **01-3** Digits from the right, 30 minutes: a pattern that cuts 1234567 into 1, 234, 567.
- **01-4** A row of a's, 20 minutes: derive how many tokens a billion a's make, and which stand at the end.
- **01-5** A check that nothing is lost, 30 minutes: write the check that finds a lossy cut.
- **01-6** A space too many, 10 minutes: explain why a prompt should not end with one.

To explore:

- Does longest match need fewer tokens than BPE on `held_out`, with `smaller`'s list? (With `tokenizer`'s, every chunk is
  one token and the two cannot differ.)
- Find two lists of ids that `decode` to the same text. Which of them can a model have seen in training?
  `tokenizer.encode(tokenizer.decode(ids)) == ids` holds for one of them only.
- Give `BPETokenizer.train` a `pattern` so that every digit is a chunk of its own, then the one of exercise 01-3. Draw the
  100 × 100 figure for both, trained on TinyShakespeare and a list of numbers.
- Add `<|user|>` to the trained tokenizer without training again. All old ids are unchanged, the fingerprint is not, and
  the name in plain text is still plain text.

## Further reading

- Gage (1994), *A new algorithm for data compression*, The C Users Journal 12(2): the algorithm.
- Sennrich, Haddow & Birch (2016), *Neural machine translation of rare words with subword units*, §3.2: BPE for text.
- Radford et al. (2019), *Language models are unsupervised multitask learners*, §2.2: bytes, and the split by category.
- Zouhar et al. (2023), *A formal perspective on byte-pair encoding*: how far from the best compression greedy merges are.
- Singh & Strouse (2024), *Tokenization counts*, arXiv:2402.14903: which end digits are cut from, and arithmetic.
- Rumbelow & Watkins (2023), *SolidGoldMagikarp*, LessWrong: tokens that a model never met.
- Chen et al. (2021), *Evaluating large language models trained on code*, §3.2: tokens for white space.
"""
