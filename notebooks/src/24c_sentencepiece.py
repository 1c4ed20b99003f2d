# %% [markdown]
r"""
# 24c · SentencePiece: the tokenizer in Llama's folder

Chapter 24 can read a Llama's weights, but weights are of no use without the tokenizer that the model was trained with. The
folders of Llama 2, Mistral and T5 do not have a `tokenizer.json` of our kind. They have a file named `tokenizer.model`,
and a text editor shows only noise. It was written by *SentencePiece* (Kudo and Richardson 2018), a library in C++.

In this sitting you learn to read such a file, byte by byte, and to tokenize with it. There are three new ideas. Spaces
are ordinary letters. Merges follow scores instead of ranks, or a best path takes the place of merges altogether. And the file is in *protobuf*, a format
that you will meet in many places. We need no download: we make a small vocabulary from our stories, write it as
SentencePiece would, and read it again. At the end the original library, where it is installed, must give the same ids.
"""

# %%
#| default_exp text.spm
#| doc text.spm: SentencePiece's model files, read and written; encoding by scored merges or by the best path.
import math
from collections import Counter
from pathlib import Path

from course.figures import sentencepiece as figures
from course.notebook import answer, checkpoint, predict, predictions
from nanogpt.corpora.corpus import stories
from nanogpt.text.bpe import learn_merges

SIZE, TEXTS = 400, 300  # merges to learn; stories to learn them from
texts = [story.text for story in stories(TEXTS)]
EXAMPLE = "Rosa gave three coins to Leo."

# %% [markdown]
r"""
## Spaces are letters

GPT-2's tokenizer first cuts a text into chunks with a regular expression (chapter 01). The expression knows English: it expects spaces between
words. SentencePiece was made for Japanese and Chinese as well, which have none. So it does not cut. It replaces each space by
the visible character `▁` (U+2581) and takes the result as one string of letters. A `▁` is also put in front of the text, so that
a word looks the same at the beginning as in the middle. This is the *dummy prefix*.
"""


# %%
#| export
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanogpt.text.files import atomically

MARK = "▁"


def escaped(text: str, prefix: bool = True, tidy: bool = False) -> str:
    """The text as pieces see it: ▁ for each space, one more in front. tidy: first drop spaces at the ends and doubled ones."""
    if tidy:
        text = " ".join(part for part in text.split(" ") if part)
    text = (MARK if prefix and text else "") + text.replace(" ", MARK)
    return text.rstrip(MARK) if tidy else text


# %%
letters = escaped(EXAMPLE)
print(letters)

# %% [markdown]
r"""
## A vocabulary

Now we need pieces. Chapter 01's `learn_merges` learns them, if we give it letters in place of bytes. We number the letters of the stories and count words, each
with its `▁` in front. The pieces of letters a merge joins are read off as in chapter 01.

A SentencePiece vocabulary is a list of pieces with a *score* each. The higher the score, the earlier a merge is made. For BPE, the
library takes minus the rank.
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
print(f"{len(alphabet)} letters, {len(learned)} merges; the first:", *learned[:8])
print("the last:", *learned[-4:])

# %% [markdown]
r"""
The list of all pieces begins with three that are no text. `<unk>` stands for letters that are not in the vocabulary, and
`<s>` and `</s>` for the beginning and the end of a document. Each piece has a *kind*, which is a number in the file.
"""


# %%
#| export
BPE, UNIGRAM = "bpe", "unigram"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # the kinds, as the format numbers them


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = NORMAL


# %%
special = [Piece("<unk>", kind=UNKNOWN), Piece("<s>", kind=CONTROL), Piece("</s>", kind=CONTROL)]
pieces = special + [Piece(text, -float(rank)) for rank, text in enumerate(learned + alphabet)]
print(len(pieces), "pieces;", *pieces[2:6], sep="\n")

# %% [markdown]
r"""
## Merging by score

To encode, begin with single letters. Of all neighbours that together are a piece, join those with the highest score, and of equal ones the
leftmost. Repeat until nothing can be joined. Chapter 01 looked through all pairs for each merge, which is fine for a chunk of ten
bytes. Here the string is the complete text, so `merge_by_score` keeps the candidates in a *heap*, a list that
gives its smallest entry quickly. An entry can become old, when one of its two parts has been joined with something else. Then the
parts no longer spell it, and it is skipped.
"""


# %%
#| export
#| blank merge_by_score: push all neighbours that are a piece; pop the best, skip it if it is old, join, push the two new pairs
def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Cut a text into pieces by joining neighbours, those with the highest score first, of equals the leftmost."""
    parts, heap = list(text), []
    before, after = [i - 1 for i in range(len(parts))], [i + 1 for i in range(len(parts))]

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < len(parts) and (score := scores.get(parts[i] + parts[j])) is not None:
            heapq.heappush(heap, (-score, i, j, parts[i] + parts[j]))

    for i in range(len(parts) - 1):
        offer(i, i + 1)
    while heap:
        _, i, j, joined = heapq.heappop(heap)
        if not parts[i] or not parts[j] or parts[i] + parts[j] != joined:
            continue  # old
        parts[i], parts[j] = joined, ""
        after[i] = after[j]
        if after[j] < len(parts):
            before[after[j]] = i
        offer(before[i], i)
        offer(i, after[i])
    return [part for part in parts if part]


# %%
scores = {piece.text: piece.score for piece in pieces if piece.kind == NORMAL}
print(*merge_by_score(letters, scores), sep=" | ")

# %% [markdown]
r"""
Each word that is frequent in our stories has become one piece, with its `▁` in front. *Check.* Nothing may be lost: the pieces, joined, are the
text with its marks.
"""

# %%
for text in texts[:50]:
    joined = "".join(merge_by_score(escaped(text), scores))
    assert joined == escaped(text), f"the pieces do not spell the text: {joined[:60]}"
print("the pieces of 50 stories spell the stories")

# %% [markdown]
r"""
## Letters that nobody has seen

Our alphabet comes from the stories, and a text may have an é or a 😀. Without a remedy such a letter becomes `<unk>`, and the text cannot be restored.
Llama's files have *byte fallback* (256 more pieces, `<0x00>` to `<0xFF>`): an unknown letter is written as its UTF-8
bytes, one piece each. They are never used for merges.

*Predict.* How many ids does "Zoë 😀" have in our vocabulary with byte fallback? The stories know a Zoe, but neither the ë nor the 😀.
"""

# %%
predict("24c.1", "ids of 'Zoë 😀'", guess=None)

# %%
fallback = [Piece(f"<0x{value:02X}>", kind=BYTE) for value in range(256)]
pieces = special + fallback + pieces[len(special) :]
print(len(pieces), "pieces:", *(piece.text for piece in pieces[:6]), "…")

# %% [markdown]
r"""
Now everything is there for a class. `encode` escapes, cuts, and looks up the ids. `decode` goes back: bytes in a row are decoded together,
`▁` becomes a space, and the space of the dummy prefix is dropped. A control piece is no text. The field `algorithm` is for
later in this sitting, when a second way to cut a text comes; until then it is "bpe".
"""


# %%
#| export
@dataclass(frozen=True)
class SentencePiece:
    """A vocabulary in SentencePiece's order. Its encode and decode are those of the library, for models without a normalizer."""

    pieces: list[Piece]
    algorithm: str = BPE
    byte_fallback: bool = True
    prefix: bool = True  # ▁ in front of the text
    tidy: bool = False  # drop spaces at the ends and doubled ones
    unk: int = 0  # the id of <unk>

    def __post_init__(self):
        ids = {piece.text: i for i, piece in enumerate(self.pieces)}
        normal = {piece.text: np.float32(piece.score) for piece in self.pieces if piece.kind == NORMAL}
        vars(self).update(ids=ids, scores=normal, longest=max(map(len, normal), default=1))

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)


# %%
#| export
#| blank SentencePiece.encode: escape and cut; a piece that is not normal becomes its bytes, or one <unk> for a run of them
class SentencePiece(SentencePiece):
    def cut(self, text: str) -> list[str]:
        """The pieces of an escaped text; a letter that is in no piece stands alone."""
        if self.algorithm == BPE:
            return merge_by_score(text, self.scores)
        return best_path(text, self.scores, self.longest)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. ValueError for one that has no UTF-8 (a lone surrogate)."""
        ids, was_unknown = [], False
        text.encode()  # raises here, where the error can say the place in the text
        for piece in self.cut(escaped(text, self.prefix, self.tidy)):
            known = piece in self.scores
            if known:
                ids.append(self.ids[piece])
            elif self.byte_fallback:
                ids += [self.ids[f"<0x{value:02X}>"] for value in piece.encode()]
            elif not was_unknown:  # a run of unknown letters is one <unk>
                ids.append(self.unk)
            was_unknown = not known
        return ids


# %%
#| export
def readable(data: bytes) -> str:
    """UTF-8 as text; each byte that does not belong to a character is one U+FFFD."""
    return data.decode("utf-8", errors="surrogateescape").translate(
        dict.fromkeys(range(0xDC80, 0xDD00), 0xFFFD)
    )


# %%
print(readable("Zoë".encode()), readable(b"Zo\xc3"))

# %% [markdown]
r"""
The second text ends within the ë, and its last byte is shown as the replacement character.
"""


# %%
#| export
class SentencePiece(SentencePiece):
    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8 become U+FFFD each; <unk> becomes ⁇ between spaces. ValueError for a foreign id."""
        text, waiting, begun = "", b"", False
        for i in [*ids, None]:
            if i is not None and not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is outside this tokenizer's {self.vocab_size} ids")
            piece = None if i is None else self.pieces[i]
            if piece is not None and piece.kind == BYTE:
                waiting += bytes([int(piece.text[3:5], 16)])
                continue
            text, waiting = text + readable(waiting), b""
            if piece is None or piece.kind == CONTROL:
                continue
            part = " ⁇ " if piece.kind == UNKNOWN else piece.text
            first = not begun and not text and (self.prefix or self.tidy)
            if first and piece.kind == NORMAL and part.startswith(MARK):
                part, begun = part[1:], not self.tidy
            text += part.replace(MARK, " ") if piece.kind == NORMAL else part
        return text


# %%
model = SentencePiece(pieces)
ids = model.encode("Zoë 😀")
for i in ids:
    print(i, model.pieces[i].text)
print(f"{len(ids)} ids, decoded: {model.decode(ids)!r}")
answer("24c.1", len(ids))

# %% [markdown]
r"""
*Check.* With byte fallback and the dummy prefix, decoding gives back every text, whatever is in it. (The single exception is a
text that contains `▁` itself, which comes back as a space.)
"""

# %%
for text in (EXAMPLE, "  two spaces  ", "Zoë 😀", "", " ", "\n\ttabs", "日本語", texts[7]):
    assert model.decode(model.encode(text)) == text, f"{text[:40]!r} does not come back"
print("all texts come back")

# %% [markdown]
r"""
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
    """The number that begins at this place, and the place behind it. ValueError if it does not end."""
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
A field begins with a varint that holds its number and, in the lowest three bits, how the value is written. Only three ways occur in
our files: 0 is a varint, 5 a float in four bytes, and 2 a length followed by that many bytes. A length comes before text, and also before
an inner message, since a message is only bytes, too.
"""


# %%
#| export
#| blank fields: read the key; its lowest three bits say how the value is written, the others are the number
def fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a message: their numbers and values. ValueError if the bytes are no message."""
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
print(message.hex(" "))
print(list(fields(message)))

# %% [markdown]
r"""
Read the bytes: `0a` is field 1 with a length (8 + 2), `06` says six bytes, then comes the text in UTF-8. `15` is field 2 with a
float (16 + 5).

A file has the pieces as fields 1, a *trainer's* message as field 2 (which algorithm, whether there is byte fallback, the id of
`<unk>`) and a *normalizer's* message as field 3 (what is done with the text first). All fields that are not there have a default,
and several defaults are not zero. Some models also change letters first, for example by Unicode's NFKC; they carry a table for this,
which we do not read. `read_model` refuses such a file. A tokenizer that gives almost the right ids is worse than none.
"""


# %%
#| export
def write_model(model: SentencePiece, path: str | Path) -> None:
    """Write a .model file, which SentencePiece reads as well; all of it, or nothing."""
    data = b""
    for piece in model.pieces:
        data += field(1, field(1, piece.text) + field(2, float(piece.score)) + field(3, piece.kind))
    trainer = field(3, 2 if model.algorithm == BPE else 1) + field(4, model.vocab_size)
    trainer += field(35, int(model.byte_fallback)) + field(40, model.unk)
    normal = field(1, "identity") + field(3, int(model.prefix)) + field(4, int(model.tidy))
    with atomically(path) as file:
        file.write(data + field(2, trainer) + field(3, normal))


# %%
#| export
def unknown_to_us(trainer: dict, normal: dict, pieces: list[Piece]) -> str:
    """What a file has that changes ids in a way that is not written here; "" where there is nothing."""
    kinds = {piece.kind for piece in pieces}
    said = {
        "is of type word or char": trainer.get(3, 1) > 2,
        "changes letters by a table": bool(normal.get(2)),
        "keeps spaces as they are": not normal.get(5, 1),
        "marks the ends of words": bool(trainer.get(24, 0)),
        "has pieces of the user's own, or unused ones": bool(kinds & {USER_DEFINED, UNUSED}),
        "has no pieces": not pieces,
    }
    return next((what for what, has in said.items() if has), "")


# %%
#| export
def read_model(path: str | Path) -> SentencePiece:
    """The vocabulary of a .model file. OSError if it is not there, ValueError for what it has and we do not."""
    pieces, sections = [], {2: {}, 3: {}}
    for number, value in fields(Path(path).read_bytes()):
        if number == 1:
            said = {1: b"", 2: 0.0, 3: NORMAL} | dict(fields(value))
            pieces.append(Piece(said[1].decode(), said[2], said[3]))
        elif number in sections:
            sections[number] |= dict(fields(value))
    trainer, normal = sections[2], sections[3]
    if lacks := unknown_to_us(trainer, normal, pieces):
        raise ValueError(f"{path} {lacks}, which this reader does not know; use the library")
    algorithm = BPE if trainer.get(3, 1) == 2 else UNIGRAM
    options = {"byte_fallback": bool(trainer.get(35, 0)), "unk": trainer.get(40, 0)}
    return SentencePiece(
        pieces, algorithm, **options, prefix=bool(normal.get(3, 1)), tidy=bool(normal.get(4, 1))
    )


# %%
place = Path("../data/built/stories-bpe.model")
write_model(model, place)
again = read_model(place)
assert again == model, "another model was read than written"
print(f"{place.stat().st_size:,} bytes; the first are {place.read_bytes()[:24].hex(' ')}")
print(f"read again: {again.vocab_size} pieces, {again.algorithm}, byte fallback {again.byte_fallback}")

# %% [markdown]
r"""
## Unigram: the best path

Llama 2 and Mistral have BPE files. T5's and ALBERT's are of SentencePiece's other kind, *unigram* (Kudo 2018). It has no merges. The
score of a piece is the logarithm of its probability, and a text is cut in the way whose pieces have the largest sum. So
the tokenizer is a small language model, which takes pieces as independent.

There are 2ⁿ⁻¹ ways to cut n letters, but the best one is found without trying them all. The best way to cut the first 10 letters ends with
some piece. Before this piece comes the best way to cut the letters in front of it. So we go from left to right and keep, for each place, the best sum and where its last piece
began. At the end we walk back. This is the algorithm of Viterbi, and it also
lies behind subword regularization and speech recognition. A letter in no piece costs 10 nats more than the worst piece.
"""


# %%
#| export
#| blank best_path: for each start, extend by every piece; keep for each end the best sum and its start; then walk back
def best_path(text: str, scores: dict[str, np.float32], longest: int) -> list[str]:
    """Cut a text into the pieces with the largest sum of scores (Kudo 2018, §3.1); an unknown letter stands alone.

    Sums are in float32, as in the library, so that close ones are decided alike.
    """
    unknown = np.float32(min(scores.values(), default=0.0)) - np.float32(10)
    best = [(np.float32(0), 0)] + [None] * len(
        text
    )  # for each place: the best sum, and where its last piece began
    for start in range(len(text)):
        for end in range(start + 1, min(start + longest, len(text)) + 1):
            score = scores.get(text[start:end], unknown if end == start + 1 else None)
            if score is None:
                continue
            total = best[start][0] + score
            if best[end] is None or total > best[end][0]:
                best[end] = total, start
    cuts, end = [], len(text)
    while end > 0:
        start = best[end][1]
        cuts.append(text[start:end])
        end = start
    return cuts[::-1]


# %%
tiny = {"a": -1.0, "b": -2.0, "ab": -2.5, "ba": -2.8, "aba": -4.5}
tiny = {piece: np.float32(score) for piece, score in tiny.items()}
for text in ("ab", "aba", "abax"):
    print(text, "→", *best_path(text, tiny, 3))

# %% [markdown]
r"""
By hand: "aba" can be a·b·a with the sum −4, ab·a with −3.5, a·ba with −3.8, or aba with −4.5. The second is the best. The letter x
is in no piece.

Where do the probabilities come from? From counting. But to count pieces we must cut the stories, and to cut them we need the
probabilities. So we alternate: cut with the scores that we have, count, take the logarithms as new scores, and cut again. Each round makes the text
more probable, or leaves it as it is. We begin with the counts of the BPE pieces. *Predict.* How many pieces do the stories have after that, compared with BPE: fewer, as
many, or more?
"""

# %%
predict("24c.2", "pieces of unigram, compared with BPE", guess=None, unit="%")

# %%
normal = [piece.text for piece in pieces if piece.kind == NORMAL]
longest = max(map(len, normal))


def scores_of(counts: Counter) -> dict[str, np.float32]:
    """Logarithms of the pieces' shares; a piece that was never used counts a half."""
    total = sum(counts[piece] or 0.5 for piece in normal)
    return {piece: np.float32(math.log((counts[piece] or 0.5) / total)) for piece in normal}


def counted(cut, *how) -> Counter:
    """How often each piece occurs in the words of the stories, cut by cut(word, *how)."""
    counts = Counter()
    for word, times in words.items():
        for piece in cut(word, *how):
            counts[piece] += times
    return counts


# %%
first = counts = counted(merge_by_score, scores)
for step in range(4):
    unigram = scores_of(counts)
    nats = -sum(float(unigram[piece]) * n for piece, n in counts.items()) / sum(words.values())
    print(f"round {step}: {sum(counts.values()):,} pieces, {nats:.4f} nats a word")
    counts = counted(best_path, unigram, longest)
answer("24c.2", 100 * sum(counts.values()) / sum(first.values()))

# %% [markdown]
r"""
The nats fall in the first rounds and then stay. Merges are greedy: an early merge may take a letter that a later piece needs.
The best path looks at the complete word. It aims at probability and not at few pieces, so the number of pieces may go either way.

A unigram model goes into the same file. Only its type differs.
"""

# %%
pieces = special + fallback + [Piece(text, float(unigram[text])) for text in normal]
path_model = SentencePiece(pieces, UNIGRAM)
write_model(path_model, Path("../data/built/stories-unigram.model"))
for name in ("bpe", "unigram"):
    read = read_model(f"../data/built/stories-{name}.model")
    ids = read.encode("Leonardo misplaced his umbrellas.")
    assert read.decode(ids) == "Leonardo misplaced his umbrellas.", "the text does not come back"
    print(f"{name:8}", *(read.pieces[i].text for i in ids))

# %% [markdown]
r"""
## The library as a judge

We have read only what we wrote, so a mistake on both sides would not show. The judge is the library of Kudo himself. The next cell lets it read
both files and encode 300 stories and some difficult texts, where it is installed (`pip install sentencepiece`). The tests of this
sitting also go the other way: the library trains models on English and on several scripts, and our reader has to give
the same ids and the same text for thousands of random strings.
"""

# %% tags=["nbval-ignore-output"]
DIFFICULT = ["", " ", "  a  b  ", "Zoë 😀", "▁", "\n\t", "日本語 テキスト", "x" * 50, "a▁b", "\u200b\ufeff"]
for name in ("bpe", "unigram"):
    path = Path(f"../data/built/stories-{name}.model")
    print(f"{name}: {figures.compared_with_library(read_model(path), path, texts + DIFFICULT)}")

# %% tags=["nbval-ignore-output"]
predictions("24c")

# %%
checkpoint("24c")

# %% [markdown]
r"""
## Exercises

To explore:

1. Print the pieces of a `.model` file that you have (Llama 2's, Mistral's or T5's), by kind. Which of them does `read_model` refuse, and why?
2. Encode a text backwards, by merging the *rightmost* of equal pairs. How many stories get other ids? *Check* against the library.
3. Draw a cut at random, with probability proportional to the product of its pieces (Kudo 2018, §3.2). Encode one word twenty times. *Check*: each cut
   spells the word.
4. Remove the thousand least probable pieces of a trained unigram model one by one, and watch the nats a word. Which letters must never be removed?
5. How many ids do the same 300 stories have with GPT-2's tokenizer, and how many with ours? Why is the smaller vocabulary not worse here?

## Further reading

- Kudo and Richardson 2018, *SentencePiece: A simple and language independent subword tokenizer and detokenizer for Neural Text Processing*.
- Kudo 2018, *Subword Regularization*, §3: the unigram model, its training and sampling.
- Google, *Protocol Buffers: Encoding*, and `sentencepiece_model.proto` of the library: numbers and defaults of all fields.
"""
