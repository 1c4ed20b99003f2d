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
#| default_exp tokenizer
#| doc tokenizer: Byte-level BPE: training it, and GPT-2's ids exactly.
import random
import time

import matplotlib.pyplot as plt

from course.notebook import checkpoint, show
from nanogpt.corpus import stories

documents = [story.text for story in stories(5000, seed=0)]
held_out = [story.text for story in stories(500, seed=1)]
print(f"{len(documents)} stories, {sum(map(len, documents)) / 1e6:.2f} MB; the first one begins:")
print(documents[0][:120])

# %% [markdown]
r"""
The text is the course's own: small stories from a grammar, which chapter 02 explains. Here they are any text.
One sentence of them, changed a little, and cut both ways:
"""


# %%
def visible(piece: bytes) -> str:
    """A token for human eyes: spaces as ·, line ends as ↵, and in hex what is not UTF-8 by itself."""
    try:
        return piece.decode("utf-8").replace(" ", "·").replace("\n", "↵")
    except UnicodeDecodeError:
        return piece.hex(" ")


def draw_cuts(ax, y: float, pieces: list[bytes], wrong=()) -> None:
    """One row of boxes, as wide as what is written in them; pieces named in `wrong` are red."""
    x, colours = 0.0, ["#cfe2f3", "#d9ead3", "#fff2cc", "#ead1dc", "#d9d2e9"]
    for i, piece in enumerate(pieces):
        label = visible(piece)
        width = max(1, len(label))
        face = "#f4a6a0" if piece in wrong else colours[i % len(colours)]
        ax.add_patch(plt.Rectangle((x, y), width, 0.7, facecolor=face, edgecolor="white"))
        ax.text(x + width / 2, y + 0.35, label, ha="center", va="center", family="monospace", fontsize=8)
        x += width
    ax.set_xlim(0, max(x, ax.get_xlim()[1]))


# %%
sentence = "Rosa gave three unicorns to Leo."
words = {word.strip('.,"?!') for text in documents for word in text.split()}
as_words = [word.encode() for word in sentence.rstrip(".").split()]
unknown = [word for word in as_words if word.decode() not in words]

fig, ax = plt.subplots(figsize=(6.5, 1.5))
draw_cuts(ax, 1, [bytes([b]) for b in sentence.encode()])
draw_cuts(ax, 0, as_words, wrong=unknown)
ax.set(
    ylim=(-0.1, 1.9),
    yticks=[0.35, 1.35],
    yticklabels=[f"{len(as_words)} words", f"{len(sentence)} bytes"],
    xticks=[],
)
ax.grid(False)
ax.spines[:].set_visible(False)
show(fig, alt="A sentence cut into 32 bytes, each known, and into 6 words, of which unicorns is unknown")

# %% [markdown]
r"""
Red: the word is not in the stories, so a vocabulary of words has nothing to say here.

*Predict.* Write three numbers down. In these stories, what share of the length is left after the single most
frequent pair of neighbours has become one token? How many bytes does a token cover on average when there are
1,024 of them? And how many code points are in the one emoji below that shows a woman astronaut?

## Code points and bytes

Python's `str` is a sequence of code points, the numbers up to 1,114,111 to which Unicode gives meanings. UTF-8 writes each as
one to four bytes (RFC 3629, §3).
"""

# %%
for text in ["A", "ë", "и", "写", "\u200d", "🙂", "👩\u200d🚀"]:
    points = " ".join(f"U+{ord(c):04X}" for c in text)
    print(f"{len(text)} code points, {len(text.encode()):2} bytes: {points:23} {text.encode().hex(' ')}")

# %% [markdown]
r"""
What looks like one character may be several code points: the astronaut is a woman, a joiner and a rocket.
ASCII costs one byte, most other alphabets two, Chinese three, emoji four. Ids for code points would need a table
of a million rows, nearly all of them never trained; ids for bytes need 256, and no text is ever unknown. The price
is that a byte is not a character, so a sequence of ids can end in the middle of one.

One kind of `str` has no bytes. A *lone surrogate* is half of a UTF-16 pair, left behind by a broken decoder.
tiktoken replaces it by U+FFFD without a word; here it is refused, with its place, because text that changes
silently is the worst kind of bug in a data set.
"""


# %%
#| export
def utf8(text: str) -> bytes:
    """`text` in UTF-8; ValueError with the place of a lone surrogate, which UTF-8 cannot express."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start} of the text is the lone surrogate U+{ord(text[error.start]):04X}, which UTF-8 "
            "cannot express; replace it, for example with text.encode('utf-8', 'replace').decode()"
        ) from None


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
#| export
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
merged; among equally frequent ones, the pair with the smallest ids**, the left id compared first. Gage's own
example, followed by hand:
"""

# %%
from collections import Counter

ids, vocab = list(b"aaabdaaabac"), [bytes([i]) for i in range(256)]
for new in range(256, 260):
    counts = Counter(pairwise(ids))
    pair = min(counts, key=lambda p: (-counts[p], p))
    vocab.append(vocab[pair[0]] + vocab[pair[1]])
    ids = replace(ids, pair, new)
    print(
        f"{new} = {vocab[pair[0]]!r} + {vocab[pair[1]]!r} ({counts[pair]}×): ",
        *[vocab[i].decode() for i in ids],
    )

# %% [markdown]
r"""
`ab` came second because its ids are smaller than those of `aa` + `a`, which was as frequent. The last merge joins
a pair that occurs once: BPE stops when the vocabulary is full, or when a single token is left, whichever is first.

## Step 2: where a token may not reach

What does this learn from stories? Each one is a sequence; the counts are summed.
"""


# %%
def learn_by_recount(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """`n` merges, straight from the definition: count every pair anew for each merge."""
    words = [(list(chunk), times) for chunk, times in chunks.items()]
    merges = []
    while len(merges) < n:
        counts = Counter()
        for ids, times in words:
            for pair in pairwise(ids):
                counts[pair] += times
        pair = min(counts, key=lambda p: (-counts[p], p))
        words = [(replace(ids, pair, 256 + len(merges)), times) for ids, times in words]
        merges.append(pair)
    return merges


# %% [markdown]
r"""
A list of pairs of ids is hard on the eyes. Spelled out:
"""


# %%
#| export
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

The space belongs to the word behind it. So `the` at the start of a line and ` the` inside it are different tokens,
and text comes back without any rule about where spaces go.
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
    f"{sum(chunks.values())} chunks, {len(chunks)} of them distinct:",
    *[visible(c) for c, _ in chunks.most_common(9)],
)

# %% [markdown]
r"""
This cut also makes training cheap. A merge happens inside a chunk, so it is enough to look at each distinct chunk
once and to weigh it by how often it occurs.

It remains wasteful to recount everything after each merge. A merge changes only the chunks that contain the pair:
take their old pairs out of the counts, put their new pairs in. `places` says which chunks those are, and a heap
says which pair is the most frequent. When a count changes, the pair enters the heap again; an entry whose count is
out of date is dropped on its way out.
"""

# %%
#| export
import heapq
from collections import defaultdict


def learn_merges(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """At most `n` merges of byte-level BPE; merge k makes id 256 + k (Sennrich et al. 2016, §3.2).

    chunks: how often each byte string occurs. The most frequent pair is merged; among equals, the pair with the
    smallest ids, left first. Fewer than `n` come back if nothing is left to merge.
    """
    words, times = [list(chunk) for chunk in chunks], list(chunks.values())
    counts, places, changed, merges = Counter(), defaultdict(set), set(), []

    def tally(w: int, sign: int) -> None:
        for pair in pairwise(words[w]):
            counts[pair] += sign * times[w]
            places[pair].add(w)
            changed.add(pair)

    for w in range(len(words)):
        tally(w, +1)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    while heap and len(merges) < n:
        count, pair = heapq.heappop(heap)
        if count == 0 or counts[pair] != -count:
            continue  # out of date
        changed.clear()
        for w in places.pop(pair):
            tally(w, -1)
            words[w] = replace(words[w], pair, 256 + len(merges))
            tally(w, +1)
        merges.append(pair)
        for p in changed:
            heapq.heappush(heap, (-counts[p], p))
    return merges


# %%
start = time.perf_counter()
recounted = learn_by_recount(chunks, 300)
middle = time.perf_counter()
merges = learn_merges(chunks, 300)
end = time.perf_counter()
assert merges == recounted
print(f"300 merges: {middle - start:.2f} s by recounting, {end - middle:.3f} s by updating")
print("first:  ", *[visible(token) for token in spell(merges)[256:268]])
print("longest:", *[visible(token) for token in sorted(spell(merges), key=len)[-6:]])

# %% [markdown]
r"""
The merges are the same, all of them, ties included. The gap grows with the text: these stories have few distinct
chunks, a book has thousands. And the first prediction:
"""

# %%
saved = sum(
    times * (len(chunk) - len(replace(list(chunk), merges[0], 256))) for chunk, times in chunks.items()
)
length = sum(times * len(chunk) for chunk, times in chunks.items())
print(f"one merge leaves {1 - saved / length:.1%} of the length")

# %% [markdown]
r"""
## From merges to ids

To encode a chunk, apply the merges to it in the order in which they were learned. There is a shortcut. No two
merges spell the same bytes: where two neighbours spell `s`, the merges made so far have already decided how `s` is
cut, in the same way wherever it stands, so there is one pair that can become `s`, and after its merge there is
none. Hence the list of byte strings says everything that the list of pairs says. A token's id is its *rank*, and
two neighbours may merge exactly if their bytes, joined, have one. The lowest rank goes first.
"""

# %%
vocab = spell(merges)
assert len(set(vocab)) == len(vocab)

# %% [markdown]
r"""
The function below keeps a chunk's possible merges in a heap, each with where it starts and ends in the chunk.
So `n` bytes without a space, a web address or a line of base64, take O(n log n) steps; searching for the best pair
again after each merge would take n².
"""


# %%
#| export
def merge_chunk(chunk: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of one chunk: of all neighbours whose joined bytes have a rank, the lowest merges first.

    Equal ranks go from left to right. Every single byte must have a rank.
    """
    n = len(chunk)
    stop = [*range(1, n + 1), 0]  # the token at i is chunk[i:stop[i]]
    start = list(range(-1, n))  # the token that ends at j begins at start[j]
    heap = [(ranks[chunk[i : i + 2]], i, i + 2) for i in range(n - 1) if chunk[i : i + 2] in ranks]
    heapq.heapify(heap)
    while heap:
        _, i, j = heapq.heappop(heap)
        middle = stop[i]
        if stop[middle] != j:
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


# %%
ranks = {token: i for i, token in enumerate(vocab)}
for word in [b" marbles", b" marvellous", "naïve".encode()]:
    ids = merge_chunk(word, ranks)
    print(f"{visible(word):11}", ids, "=", *[visible(vocab[i]) for i in ids])

# %% [markdown]
r"""
*Check.* The shortcut against the definition, on every chunk of the stories and on noise that the merges have never
seen:
"""


# %%
def merge_in_order(chunk: bytes, merges: list[tuple[int, int]]) -> list[int]:
    """The definition: every merge, in the order learned."""
    ids = list(chunk)
    for k, pair in enumerate(merges):
        ids = replace(ids, pair, 256 + k)
    return ids


rng = random.Random(0)
noise = [bytes(rng.choices(b" aehnorst", k=rng.randrange(1, 40))) for _ in range(500)]
for chunk in [*chunks, *noise]:
    assert merge_chunk(chunk, ranks) == merge_in_order(chunk, merges)
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

What the steps make together is a list of byte strings. Three ways lead to one. The first is to learn it. A text
that has fewer merges in it than were asked for is an error: a shorter list than promised would surface much later,
as a model of the wrong size.
"""


# %%
#| export
def learn_vocab(texts: Iterable[str], vocab_size: int) -> list[bytes]:
    """256 bytes and `vocab_size` - 257 merges learned from `texts`; the last id is left for `<|endoftext|>`.

    ValueError if `vocab_size` is below 257, or more than the texts have merges for.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size {vocab_size} is too small; 256 bytes and {EOT} need 257")
    merges = learn_merges(count_chunks(texts), vocab_size - 257)
    if 257 + len(merges) < vocab_size:
        raise ValueError(
            f"vocab_size {vocab_size} is too large: after {len(merges)} merges nothing is left to merge in this text; "
            f"ask for at most {257 + len(merges)}, or train on more text"
        )
    return spell(merges)


# %%
start = time.perf_counter()
vocab = learn_vocab(documents, 1024)
print(f"{len(vocab)} tokens learned in {time.perf_counter() - start:.2f} s; the last: {visible(vocab[-1])}")
try:
    learn_vocab(["to be or not to be"], 300)
except ValueError as error:
    print(error)

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
        raise OSError(
            f"GPT-2's vocabulary is not in tiktoken's cache and its download {why}; connect to the network once, or "
            "set TIKTOKEN_CACHE_DIR to a folder that has it"
        ) from None
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
        whole = pack(*parts) == saved
    except FileNotFoundError:
        raise FileNotFoundError(f"no tokenizer at {path}; chapter 01 trains one and saves it") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{path} is damaged, or not a tokenizer; delete it and save it there again")
    return parts


# %%
packed = pack(vocab, GPT2_PATTERN, [EOT])
print(packed["fingerprint"][:16], packed["special"], "...", packed["vocab"][-6:])

# %%
#| export
from nanogpt.files import save_json


# %%
saved = Path("../data/built/tokenizer.json")
save_json(saved, packed)

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


# %%
cache, ranks = {}, {token: i for i, token in enumerate(vocab)}
print(encode_ordinary("to be or not to be", regex.compile(GPT2_PATTERN), ranks, cache))
print(cache)

# %% [markdown]
r"""
The class holds the parts together; nearly every method is one line.
"""


# %%
#| export
class BPETokenizer:
    """Byte-level BPE as in GPT-2 (Radford et al. 2019, §2.2).

    vocab: the bytes of each ordinary id in the order learned, the 256 single bytes first. Special tokens come after.
    """

    def __init__(self, vocab: list[bytes], pattern: str = GPT2_PATTERN, special: Iterable[str] = (EOT,)):
        self.vocab, self.pattern = vocab, pattern
        self.ranks = {token: i for i, token in enumerate(vocab)}
        self.special = {name: len(vocab) + i for i, name in enumerate(special)}
        self.tokens = vocab + [utf8(name) for name in self.special]  # the bytes of every id
        self.vocab_size, self.eot = len(self.tokens), self.special[EOT]
        self.fingerprint = pack(vocab, pattern, list(self.special))["fingerprint"]
        self._compiled, self._cache = regex.compile(pattern), {}


# %%
small = BPETokenizer(vocab)
print(f"{small.vocab_size} ids, {small.special}, fingerprint {small.fingerprint[:16]}")

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
        """Token ids. The name of a special token is plain text, unless `allowed_special` contains it.

        ValueError for a lone surrogate, or for a name that is not a special token's.
        """
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

    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8, as in half a character, become U+FFFD. ValueError for a foreign id."""
        ids = [operator.index(i) for i in ids]
        if foreign := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(
                f"id {foreign[0]} is outside this tokenizer's {self.vocab_size} ids; is it another's?"
            )
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

from nanogpt.files import save_json


class BPETokenizer(BPETokenizer):
    @classmethod
    def train(cls, text: str | Iterable[str], vocab_size: int) -> "BPETokenizer":
        """Learn from one text or from many; see `learn_vocab`. `<|endoftext|>` gets the last id."""
        return cls(learn_vocab([text] if isinstance(text, str) else text, vocab_size))

    @classmethod
    def gpt2(cls) -> "BPETokenizer":
        """GPT-2's own 50,257 ids; OSError in one sentence where its vocabulary is not to be had."""
        return cls(gpt2_vocab())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "BPETokenizer":
        """What `save` wrote; ValueError in one sentence if the file is damaged."""
        return cls(*unpack(Path(path)))

    def save(self, path: str | os.PathLike) -> None:
        """Write a JSON file, atomically (see `save_json`)."""
        save_json(path, pack(self.vocab, self.pattern, list(self.special)))

    def to_tiktoken(self):
        """A `tiktoken.Encoding` with the same ids. It replaces lone surrogates where `encode` refuses them."""
        from tiktoken import Encoding

        return Encoding(
            "nanogpt", pat_str=self.pattern, mergeable_ranks=self.ranks, special_tokens=self.special
        )


# %%
tokenizer = BPETokenizer.train(documents, 1024)
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

*Check.* Six laws, on strings made to hurt:
"""

# %%
again = BPETokenizer.load("../data/built/tokenizer.json")
assert (
    again.fingerprint == tokenizer.fingerprint and again.encode(text) == ids
)  # what is loaded is what was saved

alphabet = (
    [chr(c) for c in range(0x250)] + list("写字アب🙂👩\u200d🚀\u2028\u3000") + [" ", "\n", "'s", EOT] * 40
)
strings = ["".join(rng.choices(alphabet, k=rng.randrange(60))) for _ in range(2000)]
in_rust = tokenizer.to_tiktoken()
for string in strings:
    ids = tokenizer.encode(string)
    assert tokenizer.decode(ids) == string  # decoding undoes encoding
    assert tokenizer.eot not in ids  # typing a special token's name does not make one
    assert in_rust.encode_ordinary(string) == ids  # Rust agrees
    assert tokenizer.encode(string, {EOT}).count(tokenizer.eot) == string.count(
        EOT
    )  # unless it is allowed to

small = BPETokenizer.train(documents, 600)
assert small.vocab == tokenizer.vocab[: len(small.vocab)]  # a small vocabulary begins a larger one
print(f"{len(strings)} strings, {sum(map(len, strings))} code points: all laws hold")

# %% [markdown]
r"""
## See: what a larger vocabulary buys

By the last law one training gives all smaller vocabularies too: cut the list short. How many bytes does a token
cover, on stories that were not trained on? The second curve is recorded: Shakespeare's plays, trained on the first
nine tenths of TinyShakespeare and measured on the last one by `python tests/bench_tokenizer.py --record`.
"""


# %%
def bytes_per_token(vocab: list[bytes], texts: list[str]) -> float:
    coder = BPETokenizer(vocab)
    return sum(len(text.encode()) for text in texts) / sum(len(coder.encode(text)) for text in texts)


everything = spell(learn_merges(chunks, 100_000))
sizes = [size for size in (256, 288, 320, 384, 448, 512, 640, 768, 1023) if size < len(everything)] + [
    len(everything)
]
curve = [bytes_per_token(everything[:size], held_out) for size in sizes]
for size, ratio in zip(sizes, curve):
    print(f"{size:5} tokens: {ratio:.2f} bytes per token")

# %%
recorded = json.loads(Path("../data/measurements/tokenizer.json").read_text(encoding="utf-8"))
fig, ax = plt.subplots()
ax.plot(sizes, curve, "o-", label="stories, measured here")
ax.plot(recorded["vocab"], recorded["bytes_per_token"], "s-", label="Shakespeare, recorded")
ax.plot(50_256, recorded["gpt2_bytes_per_token"], "k*", markersize=10, label="GPT-2's tokens on Shakespeare")
ax.set(xscale="log", xlabel="vocabulary (tokens)", ylabel="bytes per token", ylim=(0, None))
ax.set_xticks([256, 1024, 4096, 16384, 50256], ["256", "1,024", "4,096", "16,384", "50,256"])
ax.minorticks_off()
ax.legend(loc="lower right")
show(
    fig,
    alt="Bytes per token against vocabulary size: stories rise steeply and stop early, Shakespeare rises slowly and bends",
)

# %% [markdown]
r"""
An early id saves a place each time its pair occurs; a late one, hardly ever. The stories run out of merges, because
their grammar knows few words: then every chunk is one token. Shakespeare goes on, and then bends too. GPT-2's tokens were learned from the web, and on Shakespeare they do what a fraction of their number does
when it is learned from him. More ids also cost: each needs a row of the embedding, and rare ids get little training.

How the first sentence comes together, each row some merges further:
"""


# %%
def merge_steps(text: str, tokenizer: BPETokenizer) -> list[list[bytes]]:
    """The pieces of `text` at the start and after each merge, in order of rank."""
    chunks = [[bytes([b]) for b in utf8(chunk)] for chunk in regex.findall(tokenizer.pattern, text)]
    steps = []
    while True:
        steps.append([piece for chunk in chunks for piece in chunk])
        joined = {a + b for chunk in chunks for a, b in pairwise(chunk)} & tokenizer.ranks.keys()
        if not joined:
            return steps
        token = min(joined, key=tokenizer.ranks.get)
        for chunk in chunks:
            for i in range(len(chunk)):
                if len(pair := chunk[i : i + 2]) == 2 and pair[0] + pair[1] == token:
                    chunk[i : i + 2] = [token]


steps = merge_steps(sentence, tokenizer)
shown = [round(k * (len(steps) - 1) / 4) for k in range(5)]
fig, ax = plt.subplots(figsize=(6.5, 2.6))
for row, k in enumerate(shown):
    draw_cuts(ax, 4 - row, steps[k])
labels = [f"{k} merges: {len(steps[k])} tokens" for k in shown]
ax.set(ylim=(-0.1, 4.8), yticks=[4.35 - row for row in range(5)], yticklabels=labels, xticks=[])
ax.grid(False)
ax.spines[:].set_visible(False)
show(fig, alt="The sentence after more and more merges: letters join until each known word is one token")

# %% [markdown]
r"""
The same for a sentence of yours. Type, then move the slider.
"""

# %% tags=["nbval-ignore-output"]
import html

import ipywidgets as widgets

PASTEL = ["#cfe2f3", "#d9ead3", "#fff2cc", "#ead1dc", "#d9d2e9", "#d0e0e3"]


def as_html(text: str, step: int) -> str:
    steps = merge_steps(text[:300], tokenizer)
    pieces = steps[min(step, len(steps) - 1)]
    box = "<span style='background:{};color:black;padding:2px 3px;margin:1px;font-family:monospace'>{}</span>"
    boxes = [box.format(PASTEL[tokenizer.ranks[p] % len(PASTEL)], html.escape(visible(p))) for p in pieces]
    return (
        f"<p>{len(pieces)} tokens after {min(step, len(steps) - 1)} of {len(steps) - 1} merges</p>"
        + " ".join(boxes)
    )


sentence_box = widgets.Text(sentence, description="text", layout=widgets.Layout(width="90%"))
slider = widgets.IntSlider(0, 0, len(steps) - 1, description="merges", layout=widgets.Layout(width="90%"))
picture = widgets.HTML(as_html(sentence, 0))


def redraw(change) -> None:
    try:
        slider.max = len(merge_steps(sentence_box.value[:300], tokenizer)) - 1
        picture.value = as_html(sentence_box.value, slider.value)
    except ValueError as error:
        picture.value = html.escape(str(error))


sentence_box.observe(redraw, "value")
slider.observe(redraw, "value")
widgets.VBox([sentence_box, slider, picture])

# %% [markdown]
r"""
## GPT-2's own tokens

The same class with GPT-2's list. *Predict:* how many tokens are `1234`, `12345` and `123456`? And the years 2022,
2023 and 2024?
"""

# %% tags=["nbval-ignore-output"]
try:
    gpt2 = BPETokenizer.gpt2()
except OSError as error:
    gpt2 = None
    print(error)
else:
    import tiktoken

    published = tiktoken.get_encoding("gpt2")
    assert all(gpt2.encode(string) == published.encode_ordinary(string) for string in strings + held_out)
    print(f"{gpt2.vocab_size} ids; the same as tiktoken's on {len(strings) + len(held_out)} strings")
    for text in ["Hello", " Hello", " hello", " HELLO", "1234", "12345", "123456", " 2022", " 2023", " 2024"]:
        ids = gpt2.encode(text)
        print(f"{visible(text.encode()):11}", *[f"{visible(gpt2.tokens[i])}={i}" for i in ids])

# %% [markdown]
r"""
One word has a different id at the start of a line, in a sentence and in capitals; the model has to learn that these
belong together. Numbers fare worse. Digits were merged like letters, by how often they stood together on the web:
"""

# %% tags=["nbval-ignore-output"]
if gpt2 is None:
    print("This figure needs GPT-2's vocabulary.")
else:
    lengths = [[len(gpt2.encode(f" {100 * row + column}")) for column in range(100)] for row in range(100)]
    fig, ax = plt.subplots(figsize=(5, 4))
    picture = ax.imshow(lengths, cmap="viridis", vmin=1, vmax=3, origin="lower")
    ax.set(xlabel="last two digits", ylabel="the digits before", title="tokens for the numbers 0 to 9999")
    ax.grid(False)
    fig.colorbar(picture, ticks=[1, 2, 3], shrink=0.8)
    show(
        fig,
        alt="One token for small numbers, the years since 1900 and round numbers; two for most others, three for some",
    )

# %% [markdown]
r"""
Small numbers, most years since 1900 and round numbers are one token, their neighbours two or three. What a token is
worth depends on what follows it: the same `123` counts hundreds in `12345` and thousands in `123456`. Adding in
columns is hard when the columns move. Later models cut numbers into single digits or into threes, and then it
matters from which end (Singh & Strouse 2024).

Code meets another gap in the vocabulary:
"""

# %% tags=["nbval-ignore-output"]
code = """def total(rows):
    result = 0
    for row in rows:
        if row.valid:
            result += row.value
    return result
"""
if gpt2 is None:
    print("This figure needs GPT-2's vocabulary.")
else:
    fig, ax = plt.subplots(figsize=(6, 2.4))
    for row, line in enumerate(code.splitlines(keepends=True)):
        draw_cuts(ax, 5 - row, [gpt2.tokens[i] for i in gpt2.encode(line)], wrong=[b" "])
    ax.set(ylim=(-0.1, 5.8), xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)
    show(
        fig,
        alt="A Python function in GPT-2's tokens; every space of the indentation but the last is its own token",
    )
    ids = gpt2.encode(code)
    print(f"{len(ids)} tokens, {ids.count(gpt2.ranks[b' '])} of them single spaces (red)")
    print(
        "tokens of two or more spaces in the vocabulary:", sum(t.isspace() and b"  " in t for t in gpt2.vocab)
    )

# %% [markdown]
r"""
The pattern would have allowed a token for a run of spaces; the text that it was learned from had no use for one. So
indentation fills the context, and the model has to count. For Codex, tokens for runs of spaces were added, and code
became about 30 % shorter (Chen et al. 2021, §3.2).

## How fast?
"""

# %%
text = "\n".join(documents)
megabytes = len(text.encode()) / 1e6


def rate(call) -> float:
    start = time.perf_counter()
    call()
    return megabytes / (time.perf_counter() - start)


in_rust = tokenizer.to_tiktoken()
print(f"training:              {rate(lambda: BPETokenizer.train(documents, 1024)):.1f} MB/s")
print(f"encoding:              {rate(lambda: tokenizer.encode(text)):.1f} MB/s")
print(f"tiktoken, one thread:  {rate(lambda: in_rust.encode_ordinary(text)):.1f} MB/s")

# %% [markdown]
r"""
The cache does most of the work: what remains for each chunk is a match of the pattern, a look-up and an append.
`python tests/bench_tokenizer.py` measures the same on Shakespeare, where the first pass counts too, and puts Hugging
Face's trainer beside it.

## Checkpoint

The exported cells become `nanogpt/files.py` and `nanogpt/tokenizer.py`, if they pass this chapter's tests.
"""

# %%
checkpoint("01")

# %% [markdown]
r"""
## Exercises

1. **Longest match first.** Write an encoder that takes, from left to right, the longest token that fits. Does it need
   fewer tokens than BPE on `held_out`? Find a word that the two cut differently. *Check:* both decode to the same text.
2. **Two spellings.** Find two lists of ids that `decode` to the same text. Which of them can a model have seen in
   training? *Check:* `tokenizer.encode(tokenizer.decode(ids)) == ids` holds for one of them only.
3. **Digits.** Change the pattern so that every digit is a chunk of its own, then so that digits go in threes counted
   from the right. Draw the 100 × 100 figure for both. *Check:* with the second, `1234567` is cut into 1, 234 and 567.
4. **A new special token.** Add `<|user|>` to the trained tokenizer without training again. *Check:* all old ids are
   unchanged, the fingerprint is not, and the name in plain text is still plain text.

## Further reading

- Gage (1994), *A new algorithm for data compression*, The C Users Journal 12(2): the algorithm.
- Sennrich, Haddow & Birch (2016), *Neural machine translation of rare words with subword units*, §3.2: BPE for text.
- Radford et al. (2019), *Language models are unsupervised multitask learners*, §2.2: bytes, and the split by category.
- Zouhar et al. (2023), *A formal perspective on byte-pair encoding*: how far from the best compression greedy merges are.
- Singh & Strouse (2024), *Tokenization counts*, arXiv:2402.14903: which end digits are cut from, and arithmetic.
- Chen et al. (2021), *Evaluating large language models trained on code*, §3.2: tokens for white space.
"""
