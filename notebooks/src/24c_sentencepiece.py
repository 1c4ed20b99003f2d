# %% [markdown]
r"""
# 24c ◇ · SentencePiece: the tokenizer in Llama 2's folder

Chapter 24 can read a Llama's weights, but weights are of no use without the tokenizer that the model was trained with. The
folders of Llama 2 and Mistral do not have a `tokenizer.json` of our kind. They have a file named `tokenizer.model`, and
in a text editor it looks like noise. It was written by *SentencePiece* (Kudo and Richardson 2018), a library in C++. T5 and
ALBERT have such a file as well and call it `spiece.model`. (Llama 3 went back to byte-level BPE, as in chapter 01.)

In this sitting you learn to read such a file, byte by byte, and to tokenize with it. Three ideas are new. Spaces are
ordinary letters. Merges follow scores, or a best path replaces them. The file format is *protobuf*, which you will meet in
many places. We need no download: we make a small vocabulary from our stories, write it as SentencePiece would, and read it
again. At the end the original library, where it is installed, must give the same ids. Our reader is made for files like those of Llama 2
and Mistral 7B. T5's and ALBERT's files also carry a table that changes letters, so it refuses them.
"""

# %%
#| default_exp labs.formats.sentencepiece
#| doc labs.formats.sentencepiece: SentencePiece's model files, read and written; encoding by scored merges or by the best path.
import importlib.util
import math
from collections import Counter

from course.figures import sentencepiece as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import learn_merges

SIZE, TEXTS = 400, 300  # merges to learn; stories to learn them from
texts = [story.text for story in stories(TEXTS)]
EXAMPLE = "Rosa gave three coins to Leo."

# %% [markdown]
r"""
## Spaces are letters

GPT-2's tokenizer first cuts a text into chunks with a regular expression (chapter 01). The expression expects spaces between
words. SentencePiece was made for Japanese and Chinese as well, which have none. To encode, it does not cut the text first. It
replaces each space by the visible character `▁` (U+2581), and the complete text is one string of letters. A `▁` is also put in
front of the text, so that a word looks the same at the beginning as in the middle. This is the *dummy prefix*.
"""

# %%
#| export
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from nanogpt.files import atomically

MARK = "▁"  # a space


# %%
def marked(text: str) -> str:
    """The text with ▁ for each space, and one more in front."""
    return MARK + text.replace(" ", MARK)


print(marked(EXAMPLE))

# %% [markdown]
r"""
## A vocabulary

Now we need pieces. To learn them, SentencePiece does cut at spaces by default, and so do we: we count words, each with its
`▁` in front. Chapter 01's `learn_merges` then learns the merges, if we give it letters in place of bytes. We number the letters
of the stories. `learn_merges` calls its first merge 256, because it leaves the numbers below for bytes. We have only 51
letters, so the numbers from 51 to 255 stay unused. As in chapter 01, we spell each merge as the text of its two parts.
"""

# %%
words = Counter(MARK + word for text in texts for word in text.split(" "))
alphabet = sorted({letter for word in words for letter in word})
number = {letter: i for i, letter in enumerate(alphabet)}
merges = learn_merges({tuple(number[letter] for letter in word): n for word, n in words.items()}, SIZE)
spelled = dict(enumerate(alphabet))
for k, (left, right) in enumerate(merges):
    spelled[256 + k] = spelled[left] + spelled[right]
learned = [spelled[256 + k] for k in range(len(merges))]
print(f"{len(alphabet)} letters, {len(learned)} merges:", *learned[:8], "…", *learned[-4:])

# %% [markdown]
r"""
The list of all pieces begins with three that are no text. `<unk>` stands for letters that are not in the vocabulary, and
`<s>` and `</s>` for the beginning and the end of a document. Each piece has a *kind*, which is a number in the file, and a
*score*. Merges follow the scores, and the highest comes first. For BPE the score is minus the rank. The single letters come last.
"""

# %%
#| export
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # the kinds, as the format numbers them


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = NORMAL


# %%
special = [Piece("<unk>", kind=UNKNOWN), Piece("<s>", kind=CONTROL), Piece("</s>", kind=CONTROL)]
pieces = special + [Piece(text, float(-rank)) for rank, text in enumerate(learned + alphabet)]
print(len(pieces), "pieces;", *pieces[:6], sep="\n")

# %% [markdown]
r"""
## Merging by score

To encode, begin with single letters. Look at all pairs of neighbours that together are a piece. Join the pair with the
highest score; if several have it, take the leftmost. Repeat until nothing can be joined. As a program:
"""


# %%
def merge_slowly(text: str, scores: dict[str, float]) -> list[str]:
    """The definition: look at all pairs, join the best one, and look again."""
    parts = list(text)
    while True:
        pairs = []
        for i in range(len(parts) - 1):
            joined = parts[i] + parts[i + 1]
            if joined in scores:
                pairs.append((-scores[joined], i))
        if not pairs:
            return parts
        _, i = min(pairs)  # the highest score, and the smallest i among equals
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


scores = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
print(*merge_slowly(marked(EXAMPLE), scores), sep=" | ")

# %% [markdown]
r"""
Every word of this sentence is one piece. The full stop is part of `▁Leo.`, because we cut the stories at spaces only.

For each merge the function looks through all pairs. That was fine for a chunk of ten bytes in chapter 01. Here the string is
the complete text. If it is twice as long, there are twice as many merges, and each looks through twice as many pairs.
`merge_by_score` looks at each pair only once, when it arises. It keeps the pairs in a *heap*, a list that gives its smallest entry quickly. Two parts that are joined stay in the
list as the joined part and an empty one, so that places do not move. `before[i]` and `after[i]` are the places of the neighbours of
part i, with empty ones left out. An entry becomes outdated when one of its two parts has been joined with something
else. Then the two parts no longer spell the piece, and the entry is skipped.
"""


# %%
#| export
#| blank merge_by_score: push all neighbours that are a piece; pop the best, skip it if it is outdated, join, push the two new pairs
def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Cut a text into pieces by joining neighbours, those with the highest score first, of equals the leftmost."""
    parts, heap = list(text), []
    before, after = [i - 1 for i in range(len(parts))], [i + 1 for i in range(len(parts))]

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < len(parts) and parts[i] + parts[j] in scores:
            joined = parts[i] + parts[j]
            heapq.heappush(heap, (-scores[joined], i, j, joined))

    for i in range(len(parts) - 1):
        offer(i, i + 1)
    while heap:
        _, i, j, joined = heapq.heappop(heap)
        if not parts[i] or not parts[j] or parts[i] + parts[j] != joined:
            continue  # outdated
        parts[i], parts[j] = joined, ""
        after[i] = after[j]
        if after[j] < len(parts):
            before[after[j]] = i
        offer(before[i], i)
        offer(i, after[i])
    return [part for part in parts if part]


# %% [markdown]
r"""
*Check.* A faster program is only useful if it gives the same result. And nothing may be lost: the pieces, joined, are the text with its marks. How much faster it is, we
count instead of measuring it: how often does each program ask whether a pair is a piece?
"""


# %% tags=["nbval-ignore-output"]
class Asked(dict):
    """A dictionary that counts how often it is asked whether it has a key."""

    times = 0

    def __contains__(self, key) -> bool:
        self.times += 1
        return super().__contains__(key)


for count in (2, 4, 8):
    long = marked(" ".join(texts[:count]))
    slow, fast = Asked(scores), Asked(scores)
    by_definition, by_heap = merge_slowly(long, slow), merge_by_score(long, fast)
    assert by_heap == by_definition, "the heap joins other pairs than the definition"
    assert "".join(by_heap) == long, "the pieces do not spell the text"
    print(
        f"{len(long):5,} letters: {slow.times:9,} questions by the definition, {fast.times:6,} with the heap"
    )

# %% [markdown]
r"""
With each doubling of the text the definition asks more than four times as often, and `merge_by_score` twice as often. For a page of 3,590 letters it is six million questions against
nine thousand.

## Letters that nobody has seen

Our alphabet comes from the stories, and a text may have an é or a 😀. Without further help such a letter becomes `<unk>`, and the
text cannot be restored. Llama 2's file has *byte fallback*, which is 256 more pieces, `<0x00>` to `<0xFF>`. An unknown letter is
written as its UTF-8 bytes, one piece each. They are never used for merges.
"""

# %%
fallback = [Piece(f"<0x{value:02X}>", kind=BYTE) for value in range(256)]
pieces = special + fallback + pieces[len(special) :]
print(len(pieces), "pieces; with a Z:", *(piece.text for piece in pieces if "Z" in piece.text))

# %% [markdown]
r"""
*Predict.* How many ids does "Zoë 😀" have? Neither the ë nor the 😀 is in our alphabet. In UTF-8 the first takes two bytes and
the second four.
"""

# %%
predict("24c.1", "ids of 'Zoë 😀'", guess=None)

# %%
place = {piece.text: i for i, piece in enumerate(pieces)}
ids = []
for piece in merge_by_score(marked("Zoë 😀"), scores):
    names = [piece] if piece in scores else [f"<0x{value:02X}>" for value in piece.encode()]
    ids += [place[name] for name in names]
    print(piece, "→", *names)
answer("24c.1", len(ids))

# %% [markdown]
r"""
`▁Zo` and `▁` are one id each, and the bytes are the other six. The way back collects bytes: those of the byte pieces, and
those of the texts of all others, with a space for each `▁`. At the end they are decoded together, and the space of the dummy
prefix is dropped. Control pieces are skipped.
"""


# %%
def to_text(ids: list[int]) -> str:
    """The text of ids."""
    data = b""
    for i in ids:
        piece = pieces[i]
        if piece.kind == BYTE:
            data += bytes([int(piece.text[3:5], 16)])
        elif piece.kind == NORMAL:
            data += piece.text.replace(MARK, " ").encode()
    return data.decode()[1:]


print(repr(to_text(ids)))

# %% [markdown]
r"""
Note that no `<s>` was added. SentencePiece leaves this to the program around it. Llama 2's own code puts `<s>` in front of each prompt.

## Unigram: the best path

Llama 2 and Mistral use BPE; T5 and ALBERT use the other kind, *unigram* (Kudo 2018). It has no merges. The score of a piece is
the logarithm of its probability, and a text is cut so that the sum of its pieces' scores is largest. So the tokenizer is a
small language model, in which the pieces are independent of each other.

There are 2ⁿ⁻¹ ways to cut n letters, but the best one is found without trying them all. The best way to cut the first 10
letters ends with some piece. Before this piece comes the best way to cut the letters in front of it. So we go from left to
right and keep two things for each place: the best sum, and where its last piece began. At the end we walk back. This is the
Viterbi algorithm, which speech recognition uses too. A letter that is not a piece by itself costs 10 nats more than the worst
piece, as in the library.
"""


# %%
#| export
#| blank best_path: for each start, extend by every piece; keep for each end the best sum and its start; then walk back
def best_path(text: str, scores: dict[str, np.float32]) -> list[str]:
    """Cut a text into the pieces with the largest sum of scores (Kudo 2018, §3.2); an unknown letter stands alone.

    Sums are in float32, as in the library, so that close ones are decided alike. Of ways with equal sums it takes the
    one whose last piece is longest.
    """
    longest, worst = max(map(len, scores), default=1), np.float32(min(scores.values(), default=0.0))
    best = [(np.float32(0), 0)] * (len(text) + 1)  # for each place: the sum, and where its last piece began
    for end in range(1, len(text) + 1):
        ways = []
        for start in range(max(0, end - longest), end):
            piece = text[start:end]
            if piece in scores:
                ways.append((best[start][0] + scores[piece], start))
            elif len(piece) == 1:
                ways.append((best[start][0] + (worst - np.float32(10)), start))
        best[end] = max(ways, key=lambda way: way[0])  # of equals the first, which is the longest piece
    cuts, end = [], len(text)
    while end > 0:
        start = best[end][1]
        cuts.append(text[start:end])
        end = start
    return cuts[::-1]


# %%
tiny = {"a": -1.0, "b": -2.0, "ab": -2.5, "ba": -2.8, "aba": -4.5}
for text in ("ab", "aba", "abax"):
    print(text, "→", *best_path(text, tiny))
show(
    figures.lattice("aba", tiny, best_path("aba", tiny)),
    alt="The places 0 to 3 of 'aba', and an arrow for each piece with its score; ab and a, the best way, are coloured.",
)

# %% [markdown]
r"""
The numbers in circles are the places between the letters, and each arrow is a piece. "aba" can be a·b·a with the sum −4, ab·a with −3.5, a·ba with −3.8, or aba with −4.5. The second is the best. The letter x
is not a piece, and stands alone.

Where do the probabilities come from? From counting. But to count pieces we must cut the stories, and to cut them we need the
probabilities. So we alternate: cut with the scores that we have, count, take the logarithms as new scores, and cut again. Each
round should make the best cuts more probable. (This is a simplification. The library counts *all* cuts, weighted by their
probability. It also begins with many more pieces, and removes some of them between the rounds.) We begin with the counts of the BPE pieces.

Note that both kinds have the same list of pieces here. Only the scores and the way of cutting differ.

*Predict.* After four rounds, into how many pieces are the stories cut, in percent of BPE's?
"""

# %%
predict("24c.2", "pieces of unigram, in percent of BPE's", guess=None, unit="%")

# %%
normal = [piece.text for piece in pieces if piece.kind == NORMAL]


def scores_of(counts: Counter) -> dict[str, np.float32]:
    """Logarithms of the pieces' shares; a piece that was never used counts a half."""
    often = {piece: counts[piece] or 0.5 for piece in normal}
    total = sum(often.values())
    return {piece: np.float32(math.log(n / total)) for piece, n in often.items()}


def counted(cut, scores: dict) -> Counter:
    """How often each piece occurs in the words of the stories, cut by merge_by_score or best_path."""
    counts = Counter()
    for word, times in words.items():
        for piece in cut(word, scores):
            counts[piece] += times
    return counts


# %%
counts = counted(merge_by_score, scores)
of_bpe = counts.total()
for step in range(4):
    unigram = scores_of(counts)
    nats = -sum(float(unigram[piece]) * n for piece, n in counts.items()) / words.total()
    print(f"round {step}: {counts.total():,} pieces, {nats:.4f} nats a word")
    counts = counted(best_path, unigram)
print(f"then:    {counts.total():,} pieces")
answer("24c.2", 100 * counts.total() / of_bpe)

# %% [markdown]
r"""
The nats fall in the first rounds and then stay. The number of pieces falls from 34,243 to 34,180, which is 99.82%. In one round
it rises, from 34,179 to 34,180, and the nats fall all the same: the best path aims at probability, and not at few pieces.

Where do the two cuts differ? Here is a sentence with words that are not in the stories.
"""

# %%
strange = marked("Leonardo misplaced his umbrellas.")
for name, cut, by in (("bpe", merge_by_score, scores), ("unigram", best_path, unigram)):
    print(f"{name:8}", *cut(strange, by))
for start in (["▁L", "e", "on"], ["▁Leo", "n"]):
    print(f"sum of the unigram scores of {' '.join(start)}: {sum(unigram[piece] for piece in start):.2f}")

# %% [markdown]
r"""
Look at the beginning, `▁Leon`. For BPE, the pair `on` has a higher score than `eo`, so the `o` is joined with the `n`. Then
`▁Leo`, which arises from `▁L` and `eo`, is no longer possible. Merges are greedy: an early one takes a letter that a later one needs. The
best path looks at the complete word, and `▁Leo n` has a much larger sum than `▁L e on`.

## The file

A `.model` file is a *protobuf message*. A message is a row of fields, and each field is a number, a kind of value, and the
value. There are no names in the file: a program must know that field 1 of a piece is its text and field 2 its score. The
names are in a separate description, `sentencepiece_model.proto`, which the library publishes.

Integers are written as *varints*: seven bits in each byte, the lowest first, and the highest bit of a byte says whether another
one follows. Small numbers take one byte.
"""


# %%
#| export
#| blank from_varint: add up seven bits of each byte, until one is below 128
def to_varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first. Negative ones as 64 bits."""
    value, out = value % 2**64, b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def from_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at this place, and the place after it.

    ValueError if it does not end: where the bytes are at their end, or after ten of them (64 bits need no more).
    """
    value = 0
    for k, byte in enumerate(data[at : at + 10]):
        value += (byte & 127) << (7 * k)
        if byte < 128:
            return value, at + k + 1
    raise ValueError("a number is cut off, or has more than ten bytes")


# %%
for value in (5, 127, 128, 300):
    print(value, to_varint(value).hex(" "), from_varint(to_varint(value), 0))

# %% [markdown]
r"""
A field begins with a varint that holds its number and, in the lowest three bits, how the value is written. Only three
ways occur in our files: 0 is a varint, 5 a float32 in four bytes, the lowest first, and 2 a length followed by that
many bytes. A length comes before text, and also before an inner message, since a message is only bytes, too.
"""


# %%
#| export
#| blank fields: read the key; its lowest three bits say how the value is written, the others are the number
def fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a message, one by one: the number, and an int, a float or bytes.

    ValueError if the bytes are not a message: one of the other ways, or a value that is cut off.
    """
    at = 0
    while at < len(data):
        key, at = from_varint(data, at)
        way = key & 7
        if way == 0:
            value, at = from_varint(data, at)
        elif way == 5:
            value, at = np.frombuffer(data[at : at + 4], "<f4")[0].item(), at + 4
        elif way == 2:
            size, at = from_varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"no field of these files is written in way {way}")
        if at > len(data):
            raise ValueError("the last field is cut off")
        yield key >> 3, value


# %%
#| export
def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return to_varint(number << 3) + to_varint(value)
    if isinstance(value, float):
        return to_varint(number << 3 | 5) + np.float32(value).tobytes()
    data = value.encode() if isinstance(value, str) else value
    return to_varint(number << 3 | 2) + to_varint(len(data)) + data


# %%
message = field(1, "▁the") + field(2, -3.0)
print(message.hex(" "), list(fields(message)), sep="\n")

# %% [markdown]
r"""
Read the bytes: `0a` is field 1 with a length (8 + 2), `06` says six bytes, then comes the text in UTF-8. `15` is field 2 with a
float (16 + 5).

In the file, field 1 occurs once for each piece. Field 2 is the message of the *trainer*, field 3 that of the
*normalizer*, which prepares the text. A file may also have a field 5, the *denormalizer*: a table that changes letters after decoding. These fields of theirs decide about ids and texts:

| in | field | name in the `.proto` | default | what it means |
|---|---|---|---|---|
| piece | 1, 2, 3 | `piece`, `score`, `type` | –, 0, 1 | our `Piece` |
| trainer | 3 | `model_type` | 1 | 1 is unigram, 2 BPE |
| | 24 | `treat_whitespace_as_suffix` | false | `▁` is at the end of a word |
| | 35 | `byte_fallback` | false | there are pieces for bytes |
| | 40 | `unk_id` | 0 | the id of `<unk>` |
| | 44 | `unk_surface` | ` ⁇ ` | what `<unk>` is decoded to |
| normalizer | 2 | `precompiled_charsmap` | empty | a table that changes letters, for example by Unicode's NFKC |
| | 3 | `add_dummy_prefix` | true | `▁` in front of the text |
| | 4 | `remove_extra_whitespaces` | true | doubled spaces are made single, and spaces at the ends dropped |
| | 5 | `escape_whitespaces` | true | a space becomes `▁` |

A field that is not in the file has its default, and several defaults are not zero.

## A class for every setting

Our functions so far assumed byte fallback, a prefix, and that no spaces are removed. A file may say something else. `escaped` does the
work of `marked` for all of these settings.
"""


# %%
#| export
def escaped(text: str, prefix: bool = True, tidy: bool = False) -> str:
    """The text as pieces see it: ▁ for each space, one more in front. tidy: first drop spaces at the ends and doubled ones."""
    if tidy:
        text = " ".join(part for part in text.split(" ") if part)
    text = (MARK if prefix and text else "") + text.replace(" ", MARK)
    return text.rstrip(MARK) if tidy else text


# %%
print(escaped("two  spaces "), escaped("two  spaces ", prefix=False), escaped("two  spaces ", tidy=True))

# %% [markdown]
r"""
Now the class. Its fields are what the file says; `cut` is the function that cuts a text, `merge_by_score` or
`best_path`. The tables of ids and scores are made from the pieces when they are first needed.
"""


# %%
#| export
@dataclass(frozen=True)
class SentencePiece:
    """A vocabulary in the order of its ids. Its encode and decode are the library's, for files without a table of letters."""

    pieces: list[Piece]
    cut: Callable = merge_by_score  # or best_path
    byte_fallback: bool = True
    unk: int = 0  # the id of <unk>
    prefix: bool = True  # ▁ in front of the text
    tidy: bool = False  # drop spaces at the ends and doubled ones

    @cached_property
    def ids(self) -> dict[str, int]:
        return {piece.text: i for i, piece in enumerate(self.pieces)}

    @cached_property
    def scores(self) -> dict[str, np.float32]:
        return {piece.text: np.float32(piece.score) for piece in self.pieces if piece.kind == NORMAL}

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)


# %% [markdown]
r"""
`encode` does what we did with "Zoë 😀", with one more case. Without byte fallback an unknown letter becomes `<unk>`, and several in a row become one
`<unk>`. `decode` is `to_text` with three more cases. `<unk>` is shown as ` ⁇ `. The space in front is dropped only if the file asks for
a prefix; if it asks for tidy spaces, all spaces in front are dropped. And bytes may not be UTF-8: a model can sample any ids, also the first
byte of an ë without the second. Python's `decode` would stop with an error. With `surrogateescape` it gives such a byte one of
the numbers U+DC80 to U+DCFF, and `BROKEN` turns these into U+FFFD, the replacement character.
"""


# %%
#| export
#| blank SentencePiece.encode: escape and cut; a piece that is not normal becomes its bytes, or one <unk> for a run of them
class SentencePiece(SentencePiece):
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>. ValueError for one that has no UTF-8 (a lone surrogate)."""
        text.encode()  # raises here, where the error can say the place in the text
        ids = []
        for piece in self.cut(escaped(text, self.prefix, self.tidy), self.scores):
            if piece in self.scores:
                ids.append(self.ids[piece])
            elif self.byte_fallback:
                ids += [self.ids[f"<0x{value:02X}>"] for value in piece.encode()]
            elif ids[-1:] != [self.unk]:
                ids.append(self.unk)
        return ids


# %%
#| export
BROKEN = dict.fromkeys(
    range(0xDC80, 0xDD00), 0xFFFD
)  # what a byte that is not UTF-8 is read as → what is shown


class SentencePiece(SentencePiece):
    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8 become U+FFFD each; <unk> becomes ⁇ between spaces. ValueError for a foreign id."""
        data, drop = b"", self.prefix or self.tidy  # drop: whether a ▁ at the very beginning is left out
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is outside this tokenizer's {self.vocab_size} ids")
            piece = self.pieces[i]
            if piece.kind == BYTE:
                data += bytes([int(piece.text[3:5], 16)])
            elif piece.kind == UNKNOWN:
                data += " ⁇ ".encode()
            elif piece.kind == NORMAL:
                part = piece.text
                if drop and not data and part.startswith(MARK):
                    part, drop = part[1:], self.tidy
                data += part.replace(MARK, " ").encode()
        return data.decode("utf-8", errors="surrogateescape").translate(BROKEN)


# %%
model = SentencePiece(pieces)
for text in (EXAMPLE, "  two spaces  ", "Zoë 😀", "", " ", "\n\ttabs", "日本語", texts[7]):
    assert model.decode(model.encode(text)) == text, f"{text[:40]!r} does not come back"
other = SentencePiece(special + pieces[259:], byte_fallback=False, tidy=True)
print("all texts come back; with other settings:", repr(other.decode(other.encode("  Zoë  😀 "))))
print("without the last byte:", model.decode(model.encode("Zoë")[:-1]))

# %% [markdown]
r"""
With byte fallback, with the prefix, and without `tidy`, every text that has UTF-8 comes back. The single exception is a `▁` that was in the
text: it is a space afterwards. With the other settings the unknown letters are lost, and so are the spaces at the ends and one of two. (Each ⁇ comes with a
space on both sides.)

## Writing and reading

`write_model` puts everything into fields, and `read_model` takes it out again. What is in the table and not in our class makes other
ids: a table of letters (T5's and ALBERT's files have one), spaces that stay spaces, or `▁` at the end of words. Or it makes other texts: another `unk_surface`, or a
denormalizer. `read_model` refuses such a file. A tokenizer that gives almost the right ids is worse than none.
"""


# %%
#| export
def write_model(model: SentencePiece, path: str | Path) -> None:
    """Write a .model file, which SentencePiece reads as well; all of it, or nothing."""
    data = b""
    for piece in model.pieces:
        data += field(1, field(1, piece.text) + field(2, float(piece.score)) + field(3, piece.kind))
    trainer = field(3, 2 if model.cut is merge_by_score else 1) + field(4, model.vocab_size)
    trainer += field(35, int(model.byte_fallback)) + field(40, model.unk)
    normal = field(1, "identity") + field(3, int(model.prefix)) + field(4, int(model.tidy))
    with atomically(path) as file:
        file.write(data + field(2, trainer) + field(3, normal))


# %%
#| export
def unknown_to_us(trainer: dict, normal: dict, denormal: dict, pieces: list[Piece]) -> str:
    """What a file has that changes ids or texts in a way that is not written here; "" where there is nothing."""
    said = {
        "is of type word or char": trainer.get(3, 1) > 2,
        "changes letters by a table": bool(normal.get(2)),
        "changes letters by a table when it decodes": bool(denormal.get(2)),
        "decodes <unk> to something of its own": trainer.get(44, " ⁇ ".encode()) != " ⁇ ".encode(),
        "keeps spaces as they are": not normal.get(5, 1),
        "marks the ends of words": bool(trainer.get(24, 0)),
        "has pieces of the user's own, or unused ones": any(p.kind in (USER_DEFINED, UNUSED) for p in pieces),
        "has no pieces": not pieces,
    }
    return next((what for what, has in said.items() if has), "")


# %%
#| export
def read_model(path: str | Path) -> SentencePiece:
    """The vocabulary of a .model file. OSError if it is not there, ValueError for what it has and we do not."""
    pieces, sections = [], {2: {}, 3: {}, 5: {}}
    for number, value in fields(Path(path).read_bytes()):
        if number == 1:
            said = {1: b"", 2: 0.0, 3: NORMAL} | dict(fields(value))
            pieces.append(Piece(said[1].decode(), said[2], said[3]))
        elif number in sections:
            sections[number] |= dict(fields(value))
    trainer, normal = sections[2], sections[3]
    if lacks := unknown_to_us(trainer, normal, sections[5], pieces):
        raise ValueError(f"{path} {lacks}, which this reader does not know; use the library")
    cut = merge_by_score if trainer.get(3, 1) == 2 else best_path
    fallback, unk = bool(trainer.get(35, 0)), trainer.get(40, 0)
    return SentencePiece(pieces, cut, fallback, unk, bool(normal.get(3, 1)), bool(normal.get(4, 1)))


# %%
scored = [Piece(text, float(unigram[text])) for text in normal]
models = {"bpe": model, "unigram": SentencePiece(special + fallback + scored, best_path)}
for name, model in models.items():
    path = Path(f"../data/built/stories-{name}.model")
    write_model(model, path)
    assert read_model(path) == model, "another model was read than written"
    print(f"{path.name}: {path.stat().st_size:,} bytes; the first are {path.read_bytes()[:16].hex(' ')}")

# %% [markdown]
r"""
The two files have the same format. Their types and the scores of their pieces differ. You can read the first bytes now. They are one piece:

| bytes | what they say |
|---|---|
| `0a 0e` | field 1 of the file, with a length (8 + 2): a piece in 14 bytes |
| `0a 05` `3c 75 6e 6b 3e` | field 1 of the piece, five bytes: the text `<unk>` |
| `15` `00 00 00 00` | its field 2, a float32 (16 + 5): the score 0 |
| `18 02` | its field 3, a varint (24 + 0): the kind 2, `UNKNOWN` |

After these 16 bytes the next piece begins, with `0a` again.

## The library as a judge

We have read only what we wrote. We would not notice a mistake that the writer and the reader share. So we compare with the
original library. The next cell lets it read both files and encode 300 stories and some difficult texts, where it is installed (`pip
install sentencepiece`).
"""

# %% tags=["nbval-ignore-output"]
DIFFICULT = ["", " ", "  a  b  ", "Zoë 😀", "▁", "\n\t", "日本語 テキスト", "x" * 50, "a▁b", "\u200b\ufeff"]
if importlib.util.find_spec("sentencepiece"):
    from sentencepiece import SentencePieceProcessor

    for name in models:
        path = Path(f"../data/built/stories-{name}.model")
        ours, theirs = read_model(path), SentencePieceProcessor(model_file=str(path))
        for text in texts + DIFFICULT:
            ids = theirs.encode(text)
            assert ours.encode(text) == ids, f"other ids for {text[:40]!r}"
            assert ours.decode(ids) == theirs.decode(ids), f"another text for {text[:40]!r}"
        print(f"{name}: the same ids and texts as the library, {len(texts + DIFFICULT)} texts")

# %% [markdown]
r"""
All ids and all texts are the library's. The tests of this sitting also read files that the library has trained, on English and on several
scripts, and compare thousands of random strings.

The command `sample` cannot use such a file yet: its `load` looks for a `tokenizer.json`. In Python you can encode a prompt, call
`generate`, and decode the result.
"""

# %% tags=["nbval-ignore-output"]
predictions("24c")

# %%
checkpoint("24c")

# %% [markdown]
r"""
## Exercises

To explore:

1. Print the pieces of a `.model` file that you have (Llama 2's, Mistral's or T5's), by kind. Does `read_model` refuse it, and why?
2. Change the rule: of equal pairs merge the *rightmost*. Does any story get other ids? *Check*: find a text that does.
3. Draw a cut at random, with probability proportional to the product of its pieces (Kudo 2018, §3.3). Encode one word twenty times. *Check*: each cut
   spells the word.
4. Remove the hundred least probable pieces of our unigram model one by one, and watch the nats a word. Which pieces must never be removed?
5. How many ids do the same 300 stories have with GPT-2's tokenizer, and how many with ours? GPT-2's has 70 times as many pieces, and ours were learned
   from these stories. From which `SIZE` on does ours need fewer?

## Further reading

- Kudo and Richardson 2018, [*SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural Text Processing*](https://arxiv.org/abs/1808.06226).
- Kudo 2018, [*Subword Regularization*](https://arxiv.org/abs/1804.10959), §3: the unigram model, its training and sampling.
- Google, [*Protocol Buffers: Encoding*](https://protobuf.dev/programming-guides/encoding/), and [`sentencepiece_model.proto`](https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto) of the library: numbers and defaults of all fields.
"""
