# %% [markdown]
r"""
# 16a ◇ · Any file: where a text may be cut

Chapter 16 read a text as a whole. A crawl of the web does not fit into memory, so it has to be read in pieces, and there one mistake raises no error: a cut at the wrong place changes the ids. We shall find places where a cut changes nothing, in any vocabulary. Then the same rule takes files of any size, and with a second rule for each kind files of other kinds: JSONL, CSV, parquet, and packed ones.

The second half of the sitting is about the vocabulary: one number that shows a wrong tokenizer before a run of several days begins, and GPT-2's own two files. The optional sitting 16b builds its command on all of this.
"""

# %%
#| default_exp labs.corpora.cuts
#| doc labs.corpora.cuts: Where a text may be cut so that no id changes, in memory and in a file of any size.
#| doc labs.corpora.sources: Documents from text, JSONL, CSV and parquet files of any size, in chunks.
#| doc labs.corpora.encode: Texts encoded by tiktoken, and bytes of text per token.
#| doc labs.formats.merges: GPT-2's vocab.json and merges.txt, read and written.
import contextlib
import csv
import io
import json
import os
import tempfile
import time
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path

import regex

from course.figures import real_text as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.shards import document_starts
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import GPT2_PATTERN, BPETokenizer

# %% [markdown]
r"""
All sizes are set here. `PIECE` is the size of a piece in the first experiment, `CHUNK` in the later ones, and `BLOCK` is how much of a piece is read at a time. (Chapter 16b's command takes pieces of 4 to 64 megabytes.)
"""

# %%
STORIES, VOCAB = 1000, 400  # this chapter's text, and the tokens that are learned from it
PIECE, CHUNK, BLOCK = 1000, 10_000, 2_000  # bytes

# %% [markdown]
r"""
The text is the one of chapter 16: a thousand stories with blank lines between them, in a file, and a small tokenizer that is trained on them.
"""

# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
path = folder / "stories.txt"
documents = [story.text for story in stories(STORIES)]
text = "\n\n".join(documents)
path.write_text(text, encoding="utf-8", newline="\n")
tokenizer = BPETokenizer.train(documents, VOCAB)
encode = tokenizer.encode
print(f"{path.stat().st_size:,} bytes of text, {tokenizer.vocab_size} tokens in the vocabulary")

# %% [markdown]
r"""
## A piece at a time

We read the file in pieces, encode each piece, and write the ids one after another. The simplest way takes a fixed number of bytes for each
piece.

*Predict.* We cut the text every thousand bytes and encode each piece by itself. Of a hundred such cuts, how many change the ids?
"""

# %%
predict("16a.1", "of 100 cuts, how many change the ids", guess=None)

# %%
assert 0 < PIECE < len(text) // 2, "PIECE: more than no byte, and less than half of the text"
pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
harmed = [(a, b) for a, b in pairwise(pieces) if encode(a) + encode(b) != encode(a + b)]
print(f"{len(harmed)} of {len(pieces) - 1} cuts change the ids")
answer("16a.1", round(100 * len(harmed) / (len(pieces) - 1)))
for a, b in harmed[:2]:
    a, b = a[-12:], b[:12]
    print("as one text:", "|".join(tokenizer.decode([i]) for i in encode(a + b)))
    print("   in two:  ", "|".join(tokenizer.decode([i]) for i in encode(a) + encode(b)))

# %% [markdown]
r"""
More than every second cut changes the ids, 244 of 444, because it falls into the middle of a word or between a space and its word. The last lines show two examples, with a bar between tokens. The text is still the same, letter by letter. But
at these places the model sees a word in other tokens than elsewhere: ` cou|nt|e|d` in place of ` counted`. The damage is small with long pieces. Still, the ids should depend
on the text, and not on the size of a buffer.

## Where a text may be cut

At which places is a cut harmless? Let us try all places of one sentence. A place is harmless if the ids of the two halves, one after the other, are the ids of the sentence.

*Predict.* The sentence below has 37 places between two characters. At how many of them may it be cut?
"""

# %%
predict("16a.2", "places where the sentence may be cut", guess=None)

# %%
sentence = "She won 1234 coins.\n\n  Then it's over."
good = [i for i in range(1, len(sentence)) if encode(sentence[:i]) + encode(sentence[i:]) == encode(sentence)]


def marked(places) -> str:
    """The sentence with | at these places."""
    bars = {place: "|" for place in places}
    return "".join(bars.get(i, "") + c for i, c in enumerate(sentence)).replace("\n", "↵")


print(f"may be cut at |:   {marked(good)}   ({len(good)} of {len(sentence) - 1} places)")
answer("16a.2", len(good))

# %% [markdown]
r"""
25 of the 37 places are harmless, but this result depends on our vocabulary, which never learned to merge `1` and `2`. We want places that are safe in *every* vocabulary. Remember how
GPT-2's tokenizer works: first a pattern splits the text into words, and then merges happen inside each word. So a cut between two words of the
pattern is safe, if neither half is split differently when the other half is missing.

Does this depend on the two characters beside the cut? We try it. The next cell takes all texts of six characters, each of one of six kinds, and cuts them in the
middle. It counts how often the pattern splits the two halves differently from the complete text, separately for each pair of characters beside the cut.
"""

# %%
NAMES = {"s": "letter", "1": "digit", ".": ".", "'": "'", " ": "space", "\n": "line break"}
threes = ["".join(three) for three in product(NAMES, repeat=3)]
words = regex.compile(GPT2_PATTERN).findall
changed = {pair: 0 for pair in product(NAMES, repeat=2)}
for left, right in product(threes, repeat=2):
    if words(left) + words(right) != words(left + right):
        changed[left[-1], right[0]] += 1
share = [
    [changed[a, b] / len(NAMES) ** 4 for b in NAMES] for a in NAMES
]  # the other four characters are free
framed = [(i, j) for i, a in enumerate(NAMES) for j, b in enumerate(NAMES) if not a.isspace() and b.isspace()]
assert not any(share[i][j] for i, j in framed), "with this pattern, a cut before white space changes the ids"
alt = "Share of texts that a cut changes, by the characters beside it: none before white space that follows a visible one"
show(figures.places(share, list(NAMES.values()), framed), alt=alt)

# %% [markdown]
r"""
Read the figure by rows: the row is the character before the cut, the column the character after it. The framed places are those before a space or a line break that
follows a visible character. There no text was changed, and there is a reason. No word of the pattern continues from a visible character to white
space. The left half ends with a visible character, so nothing in it depends on what follows. And the pattern never looks back, so the
right half is split as before. Nine other cells are 0%, too, for example between a letter and a digit. We do not take them: text has enough white space, and a
rule about letters and
digits would have to know all of Unicode.

After a space it is different. A space before a visible character belongs to the word of that character, so a cut between the two changes every text. Inside a run
of white space before a word, the pattern takes all characters but the last as one piece. So a cut just before the last character is harmless, and an earlier cut divides the piece. It is an earlier cut if the second character after it is white, too, which is so in two cases of six: 33%. A line break never belongs to the word after it. In the last row, a cut before a visible character is therefore harmless if the line break is alone. If white space comes before the line break (again two cases of six), the left half alone takes both as one piece, and the complete text does not.

The framed rule becomes our first function. It works on bytes, because files consist of bytes. A visible character may have up to four
of them in UTF-8, and some white space has more than one. So the function works in two steps. The pattern `EDGE` finds each space or line break before which there is no white space of a single byte (`\x1c` to `\x1f` are control characters that Python counts as
white space). Then the function decodes the four bytes before this place, and looks whether the last character is visible. It returns the first safe place from a given byte on. We call it again and again, until it has found all of them in our sentence.
"""

# %%
#| export
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# %%
#| export
#| blank safe_cut: for each match from `at` on, decode the last four bytes before it: is the last character visible?
EDGE = re.compile(rb"(?<![\s\x1c-\x1f])(?=[ \n])")  # white space comes, and none was before it


def safe_cut(text: bytes, at: int = 1) -> int | None:
    """The first place from byte `at` on where a cut changes no id in any vocabulary with GPT-2's pattern, or None."""
    for edge in EDGE.finditer(text, max(at, 1)):
        before = text[max(0, edge.start() - 4) : edge.start()].decode("utf-8", "ignore")
        if not before[-1:].isspace():
            return edge.start()
    return None


# %%
raw, cuts, at = sentence.encode(), [], safe_cut(sentence.encode())
while at is not None:
    cuts.append(len(raw[:at].decode()))
    at = safe_cut(raw, at + 1)
print("safe_cut takes |: ", marked(cuts))
assert set(cuts) <= set(good), f"a cut at {sorted(set(cuts) - set(good))} changes the ids"

# %% [markdown]
r"""
It takes fewer places than our vocabulary would allow, and each of them is safe in all vocabularies. The widget lets you try your own text. A green bar is a place that `safe_cut` takes. At
a red dot a cut would change the ids of this vocabulary.

*Predict:* can a place have both? Then try to write a text that has no green bar at all.
"""

# %% tags=["nbval-ignore-output"]
figures.cutting_widget(sentence, encode, safe_cut)

# %% [markdown]
r"""
No place has both, because a green place is safe in every vocabulary. A text without any white space has no green bar: one long word, or a line of Chinese.

## A large file

With `safe_cut` we can divide a file of any size. We go about `CHUNK` bytes ahead, read 64 kilobytes from there, and take the first safe place. If there is none, we
read more. A file that has no safe place in 64 megabytes is not text, and we raise an error.

`seek_cut` does this. It has two helpers. `bytes_between` reads a stretch of a file in small portions, so that no stretch has to fit into memory. `line_of` turns a place into the number of a line, for the error message.
"""

# %%
#| export
LIMIT = 1 << 26  # bytes without a place to cut


def bytes_between(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """A stretch of a file, a megabyte at a time."""
    with open(path, "rb") as file:
        file.seek(start)
        while raw := file.read(min(1 << 20, stop - start)):
            yield raw
            start += len(raw)


def line_of(path: Path, place: int) -> int:
    """Which line of a file holds byte `place`, counted from 1."""
    return 1 + sum(raw.count(b"\n") for raw in bytes_between(path, 0, place))


# %%
#| export
#| blank seek_cut: read from 4 bytes before `at`, ask `first` for a place, and read four times as much if there is none
def seek_cut(path: Path, start: int, at: int, first: Callable = safe_cut) -> int:
    """The first place from byte `at` on where a file may be cut, by first(bytes, at); or its end. start: the last cut.

    Nothing before `start` is read. `first` gets what was read, and where `at` is in it. If LIMIT bytes, the most that
    are read, have no place, ValueError, which names the file and the line of `at`.
    """
    base = max(start, at - 4)  # the character before `at` is in these 4 bytes
    length = min(1 << 16, LIMIT)
    while True:
        text = b"".join(bytes_between(path, base, base + length))
        cut = first(text, at - base)
        if cut:
            return base + cut
        if len(text) < length:
            return path.stat().st_size
        if length >= LIMIT:
            raise ValueError(f"{path}, line {line_of(path, at)}: no place to cut in {length:,} bytes")
        length = min(4 * length, LIMIT)


# %% [markdown]
r"""
We cut our file, encode each piece by itself, and compare the ids with those of the complete text.
"""

# %%
assert CHUNK > 0 and BLOCK > 0, "CHUNK and BLOCK are numbers of bytes, 1 or more"
starts = [0]
while starts[-1] < path.stat().st_size:
    starts.append(seek_cut(path, starts[-1], starts[-1] + CHUNK))
for start, stop in list(pairwise(starts))[:3]:
    print(f"bytes {start:,} to {stop:,}")
pieces = [path.read_bytes()[start:stop].decode() for start, stop in pairwise(starts)]
in_pieces = [i for piece in pieces for i in encode(piece)]
assert in_pieces == encode(text), "the ids of the pieces are not those of the text"
print(f"{len(pieces)} pieces give the same {len(in_pieces):,} ids as the text in one go")

# %% [markdown]
r"""
The pieces are a few bytes longer than asked for, and the ids are exactly those of the complete text. So the size of a piece changes nothing, and a file of any size can be encoded in constant memory.

## Other kinds of files

Text for training comes in other kinds of files, too, and each has its own safe places. JSONL is cut at a line's end. A text whose paragraphs are documents (as llm.c takes TinyShakespeare) is cut after blank lines. In CSV
a quoted field may itself contain line breaks. A line break ends a row if the number of quotes before it is even: a field has two quotes, and a `""` inside it has two as
well. A text with lines `<|endoftext|>`, such as TinyStories, is cut behind them. A packed file (`.gz`, `.zst`) cannot be cut. It is unpacked into a
temporary file, and is one chunk.

`first_cut` has the rule of each kind, and `next_cut` applies it to a file.
"""

# %%
#| export labs.corpora.sources
import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from nanogpt.shards import file_sha256
from nanogpt.labs.corpora.splits import split_of
from nanogpt.labs.corpora.text import SEPARATOR

# %%
#| export labs.corpora.sources
KINDS = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
PACKED = ".gz", ".zst"  # endings of files that are unpacked when they are read
PLACES = {  # where a match ends, a file may be cut
    "paragraphs": re.compile(rb"\S[^\S\n]*\n(?:[^\S\n]*\n)+(?=[^\S\n]*\S)"),
    "separated": re.compile(rb"(?<=\n)<\|endoftext\|>[ \t\r]*\n"),
    "jsonl": re.compile(rb"\n"),
    "csv": re.compile(rb"\n"),
}


def is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED


def kind_of(path: Path) -> str | None:
    """What a file is, by its name; None if the name does not say."""
    if is_packed(path):
        path = path.with_suffix("")
        if path.suffix.lower() == ".json":  # packed, this is JSON lines: C4's and Dolma's files
            return "jsonl"
    return KINDS.get(path.suffix.lower())


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """What is in a file, unpacked. ValueError if it cannot be read."""
    try:
        if path.suffix.lower() == ".zst":
            import pyarrow

            with pyarrow.input_stream(str(path), compression="zstd") as file:
                yield file
        else:
            with gzip.open(path) if is_packed(path) else open(path, "rb") as file:
                yield file
    except (EOFError, OSError, ValueError, ImportError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def beginning(path: Path) -> bytes:
    """The first megabyte of what is in a file."""
    with opened(path) as file:
        return file.read(1 << 20)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A file with what is in a packed one, as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, path.stem)
        with opened(path) as file, plain.open("wb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
        yield plain


def first_cut(kind: str, text: bytes, at: int = 1, quoted: bool = False) -> int | None:
    """The first place from `at` on where text may be cut, or None. quoted: does it begin within quotes? (CSV)"""
    if kind == "text":
        return safe_cut(text, at)
    cut = 0
    for found in PLACES[kind].finditer(text):
        before, cut = cut, found.end()
        if kind == "csv" and text.count(b'"', before, cut) % 2 == 1:
            quoted = not quoted
        if cut >= at and not quoted:
            return cut
    return None


# %%
#| export labs.corpora.sources
def next_cut(path: Path, kind: str, start: int, at: int) -> int:
    """The first place from byte `at` on where a file may be cut that may be cut at `start`; or its end."""
    if kind == "parquet":
        with parquet(path) as (_, begins):
            return next((begin for begin in begins if begin >= at), path.stat().st_size)
    quotes = 0
    if kind == "csv":  # all from the last cut to where seek_cut begins to read
        quotes = sum(raw.count(b'"') for raw in bytes_between(path, start, max(start, at - 4)))
    return seek_cut(path, start, at, partial(first_cut, kind, quoted=quotes % 2 == 1))


# %%
rows = b'id,text\n1,"two\nlines, a ""quote""\n"\n2,one line\n'
print("a CSV file's first row ends at byte", first_cut("csv", rows, 9), "of", rows)

# %% [markdown]
r"""
Two line breaks are inside the quotes of the first row, at bytes 14 and 33, and are passed over. The row ends with the line break at byte 35, so the file may be cut at byte 36.

## Chunks of files

A *chunk* is what is encoded at one go: a list of *spans*, which are one stretch of a large file, or many small files. A
`.txt` file is one document, so the hash of the complete file says whether it goes to train, val or test (chapter 03),
wherever it is cut. In the other kinds each document is hashed by itself, when it is read. `cut_files` goes through the files and begins a new chunk after about every `size` bytes.
"""


# %%
#| export labs.corpora.sources
@dataclass(frozen=True)
class Span:
    """A stretch of a file, from a place where it may be cut to another, in bytes."""

    path: Path
    kind: str  # "text", "paragraphs", "separated", "jsonl", "csv" or "parquet"
    start: int
    stop: int
    split: str | None = None  # None: each document's hash decides
    column: str = "text"  # of JSONL, CSV and parquet: what holds the documents


# %%
#| export labs.corpora.sources
def cut_files(
    files: list[Path], size: int, paragraphs=False, val=0.01, test=0.01, column="text"
) -> Iterator[list[Span]]:
    """The chunks: the files one after another, cut after about every `size` bytes."""
    spans, room = [], size
    for path in files:
        kind, split, start, end = kind_of(path) or "text", None, 0, path.stat().st_size
        if kind == "text" and PLACES["separated"].search(beginning(path)):  # as in TinyStories
            kind = "separated"
        elif kind == "text" and paragraphs:
            kind = "paragraphs"
        elif kind == "text":  # one document; a single file cannot be divided
            split = split_of(bytes.fromhex(file_sha256(path)), val, test) if len(files) > 1 else "train"
        while start < end:
            whole = is_packed(path) or start + room >= end
            stop = end if whole else next_cut(path, kind, start, start + room)
            spans.append(Span(path, kind, start, stop, split, column))
            start, room = stop, room - (stop - start)
            if room <= 0:
                yield spans
                spans, room = [], size
    if spans:
        yield spans


# %%
#| export labs.corpora.sources
def hash_of(spans: list[Span]) -> str:
    """Hex SHA-256 of all that a chunk is made of."""
    seen = hashlib.sha256()
    for span in spans:
        seen.update(f"{span.kind} {span.split}".encode())
        for raw in bytes_between(span.path, span.start, span.stop):
            seen.update(raw)
    return seen.hexdigest()


# %%
json_path = folder / "stories.jsonl"
lines = [json.dumps({"text": document}) + "\n" for document in documents]
json_path.write_text("".join(lines), encoding="utf-8", newline="\n")
chunks = list(cut_files([json_path], 5 * CHUNK))
for [span] in chunks[:3]:
    print(f"bytes {span.start:,} to {span.stop:,}, SHA-256 {hash_of([span])[:8]}...")
print(f"{len(chunks)} chunks in all")

# %% [markdown]
r"""
The file gives ten chunks. Nine have a little more than 50,000 bytes, because each goes on to the end of a line. The tenth has the rest, about 4,500 bytes. The hash of a chunk's text is what chapter 16b compares to find out whether the text has changed.

## Documents

A span is read a block at a time and cut by the same rule, so memory holds one block, however large the file is. Each kind of
file keeps its documents in another way, and has its own reader. Where a document is broken, the error names file, line and remedy. A CSV cell that says `nan` is such a case: pandas and Python write a
missing value in this way (`str(float("nan"))`), and it would become a document that consists of this word. In JSONL it is too late to notice: `{"text": "nan"}` is a text like any other, and it is read as one.
A program that writes JSONL should write `null`, which is no document.
"""


# %%
#| export labs.corpora.sources
def from_jsonl(raw: bytes, column: str) -> Iterator[str]:
    """The document in each line, null being none. ValueError(n, what) if line n, counted from 0, has no text.

    Half a surrogate pair is no character: U+FFFD takes its place, as in tiktoken.
    """
    for n, line in enumerate(raw.split(b"\n")):
        try:
            text = json.loads(line)[column] if line.strip() else ""
            text = "" if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise ValueError(n, f"not a JSON object with a string under {column!r}") from None
        yield text


# %%
for line in from_jsonl(b'{"text": "one"}\n{"text": null}\n{"text": "two\\nlines"}\n', "text"):
    print(repr(line))

# %% [markdown]
r"""
The second document is none, so it is empty, and is left out later; so is what comes after the last line's end. CSV rows are read by Python's `csv`, after the header has said which field is the text.
"""


# %%
#| export labs.corpora.sources
def from_csv(raw: bytes, at: int, path: Path, column: str) -> Iterator[str]:
    """What each row has in a column of the file, whose byte `at` is the first of raw. Raises as above."""
    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    if column not in names:
        there = ", ".join(map(repr, names))
        raise ValueError(0, f"no column {column!r} among {there}; --column names the one that holds the text")
    rows = csv.reader(io.StringIO(raw.decode("utf-8" if at else "utf-8-sig"), newline=""), strict=True)
    try:
        for row in filter(None, rows):
            if len(row) != len(names):
                raise ValueError(rows.line_num - 1, f"{len(row)} fields under a header of {len(names)}")
            text = row[names.index(column)]
            if text in ("nan", "NaN"):  # what programs write for a missing value; Nan may be a name, or bread
                raise ValueError(
                    rows.line_num - 1, f"{text!r} is a missing value, not a text; leave it empty"
                )
            yield text
    except csv.Error as error:
        raise ValueError(rows.line_num - 1, f"quotes that do not close ({error})") from None


# %% [markdown]
r"""
Parquet keeps each column of a group of rows together, compressed. So a file is cut where a group begins, and read with
pyarrow, if that is installed.
"""


# %%
#| export labs.corpora.sources
@contextmanager
def parquet(path: Path, column: str = "text") -> Iterator[tuple]:
    """A parquet file, and the byte that each of its groups of rows begins at. ValueError if it has no such text."""
    try:
        import pyarrow.parquet as pq

        with open(path, "rb") as raw:  # given a path, pyarrow refuses names that are not UTF-8
            file = pq.ParquetFile(raw, buffer_size=1 << 20)
            first = [file.metadata.row_group(i).column(0) for i in range(file.num_row_groups)]
            yield file, [column.dictionary_page_offset or column.data_page_offset for column in first]
    except (ImportError, ValueError, LookupError, TypeError) as error:
        needs = (
            f"it needs pyarrow, a whole file and a column of strings named {column} (--column names another)"
        )
        raise ValueError(f"{path}: {' '.join(str(error).split())}; {needs}") from None


# %%
#| export labs.corpora.sources
def from_parquet(span: Span) -> Iterator[list[str]]:
    """The documents in the groups of rows that begin in a span, 256 at a time."""
    with parquet(span.path, span.column) as (file, begins):
        for i in [i for i, begin in enumerate(begins) if span.start <= begin < span.stop]:
            for batch in file.iter_batches(
                256, [i], [span.column]
            ):  # of all groups, it would read many at once
                texts = batch.column(span.column).to_pylist()
                if not all(isinstance(text, str | None) for text in texts):
                    raise TypeError(f"something else in row group {i}")
                yield list(filter(None, texts))


# %% [markdown]
r"""
`documents_in` picks the reader of a kind, and `blocks_in` goes through a span block by block: for each block it says whether documents begin with its texts (in the middle of a long text file none begins), and gives the texts.
"""


# %%
#| export labs.corpora.sources
def documents_in(span: Span, at: int, raw: bytes) -> Iterable[str]:
    """The documents in a block of a span, or what it has of one."""
    if span.kind == "jsonl":
        return from_jsonl(raw, span.column)
    if span.kind == "csv":
        return list(from_csv(raw, at, span.path, span.column))[at == 0 :]  # without the header
    raw.decode()
    if span.kind == "separated":
        return map(str.strip, SEPARATOR.split(raw.decode("utf-8-sig")))
    if at == 0:  # without the mark at its beginning that Windows writes
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    cuts = [found.end() for found in PLACES["paragraphs"].finditer(raw)] if span.kind == "paragraphs" else []
    return [raw[a:b].decode() for a, b in pairwise([0, *cuts, len(raw)])]


# %%
#| export labs.corpora.sources
def blocks_in(span: Span, block: int) -> Iterator[tuple[bool, list[str]]]:
    """Its texts, about `block` bytes at a time: whether documents begin with them, and they."""
    if is_packed(span.path):
        with unpacked(span.path) as plain:
            try:
                yield from blocks_in(replace(span, path=plain, stop=plain.stat().st_size), block)
            except ValueError as error:
                raise ValueError(str(error).replace(str(plain), str(span.path))) from None
        return
    at = span.start
    if span.kind == "parquet":
        yield from ((True, texts) for texts in from_parquet(span))
    while at < span.stop and span.kind != "parquet":
        stop = span.stop if at + block >= span.stop else next_cut(span.path, span.kind, at, at + block)
        raw = b"".join(bytes_between(span.path, at, stop))
        try:
            yield span.kind != "text" or at == 0, list(filter(None, documents_in(span, at, raw)))
        except UnicodeDecodeError as error:
            bad = f"byte {at + error.start:,} is not UTF-8; convert it, say with iconv"
            raise ValueError(f"{span.path}: {bad}") from None
        except ValueError as error:
            n, what = error.args
            raise ValueError(f"{span.path}, line {line_of(span.path, at) + n}: {what}") from None
        at = stop


# %% [markdown]
r"""
*Check.* The same documents, written as each kind of file, are read back, wherever the files are cut. Some of them are
difficult: they have quotes, line breaks, and letters of several bytes. The source is a file, or a folder with any such files below it, which `find_files` lists.
"""


# %%
#| export labs.corpora.sources
def paths_below(folder: Path) -> Iterator[Path]:
    """The files below a folder, and the links to other folders, which are not followed.

    What is hidden is passed over, and what the course makes: folders `data/built`.
    """
    for at, below, names in os.walk(folder, onerror=refuse):
        here = Path(at).resolve().name
        below[:] = [name for name in below if name[0] != "." and (here, name) != ("data", "built")]
        links = [name for name in below if Path(at, name).is_symlink()]
        yield from (Path(at, name) for name in [*names, *links] if name[0] != ".")


def find_files(source: Path) -> list[Path]:
    """The source itself, or all files below it whose names say what they are, in the order of the names; packed ones, too."""
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; give a file (.txt, .jsonl ...) or a folder")
    there = paths_below(source) if source.is_dir() else [source]
    files = sorted(path for path in there if path.is_file() and (kind_of(path) or path == source))
    if not any(path.stat().st_size for path in files):
        raise ValueError(f"{source} is empty: no {', '.join(KINDS)} file with anything in it")
    return files


def refuse(error: OSError) -> None:
    """What cannot be read is an error; os.walk would leave it out without a word."""
    raise error


# %%
def write_as(kind: str, texts: list[str]) -> Path:
    """The texts as documents of a file, or of many in a folder."""
    where = Path(tempfile.mkdtemp(dir=folder), f"a.{kind}")
    if kind == "jsonl":
        where.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    elif kind == "csv":
        with open(where, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts}), where, row_group_size=100)
    else:
        where.mkdir()
        for i, text in enumerate(texts):
            (where / f"{i:06}.txt").write_bytes(text.encode())
    return where


# %%
def read(source: Path, size: int) -> list[str]:
    """The documents of a source, read in chunks of about `size` bytes."""
    found = []
    for span in [span for chunk in cut_files(find_files(source), size) for span in chunk]:
        for begin, texts in blocks_in(span, BLOCK):
            found += texts if begin else [found.pop() + "".join(texts)]  # a long .txt file goes on
    return found


mixed = [*documents[:300], 'She said "no", and\nleft.', '""\r\n,', "naïve 写 🙂"]
for kind in ["txt", "jsonl", "csv", *["parquet"] * (find_spec("pyarrow") is not None)]:
    source = write_as(kind, mixed)
    for size in (99, 5000, 5 * CHUNK):
        assert read(source, size) == mixed, f"{kind}: chunks of {size:,} bytes give other documents"
    cuts = [len(list(cut_files(find_files(source), size))) for size in (99, 5000, 5 * CHUNK)]
    print(f"{kind:8} {len(mixed)} documents, the same in {cuts[0]}, {cuts[1]} and {cuts[2]} chunks")

# %% [markdown]
r"""
All kinds give back the same 303 documents, whether a chunk has 99 bytes or 50,000. With chunks of 99 bytes the JSONL and the CSV file are cut after nearly every document. The text files are cut within documents, too, into 1,316 chunks. And the parquet file has four groups of rows, so it cannot be cut into more than four.
"""

# %% [markdown]
r"""
A broken file is reported with its name and the place.
"""

# %%
broken = {
    "title.jsonl": b'{"text": "one"}\n{"title": "two"}\n',
    "open.csv": b'id,text\n1,one\n2,"two\n',
    "column.csv": b"id,body\n1,one\n",
    "missing.csv": b"id,text\n1,one\n2,nan\n",
    "latin.txt": "naïve".encode("latin-1"),
}
for name, raw in broken.items():
    (folder / name).write_bytes(raw)
    try:
        read(folder / name, CHUNK)
    except ValueError as error:
        print(str(error).removeprefix(f"{folder}{os.sep}"))

# %% [markdown]
r"""
Each error says where. And a file that is of no known kind? It is left out, and nothing is worse than to train on half a corpus without knowing it. So `print_remarks` names what is left out, and why.
"""


# %%
#| export labs.corpora.sources
def about(path: Path) -> str | None:
    """Why a path is left out, or what is remarkable about its text; None if nothing is."""
    if not path.is_file():
        return "left out: a link to a folder" if path.is_dir() else "left out: a link to nothing"
    if (kind := kind_of(path)) not in ("text", None):
        return None
    if kind is None:
        return f"left out: its name does not end in {', '.join(KINDS)}, with or without {' or '.join(PACKED)}"
    text = beginning(path)
    if PLACES["separated"].search(text):
        return "a document ends at each line <|endoftext|>"
    return "has line ends of Windows, of which each has one character more" if b"\r\n" in text else None


def print_remarks(source: Path, shown: int = 5) -> None:
    """A line on stderr for each thing in a source that its owner may not expect."""
    paths = sorted(paths_below(source)) if source.is_dir() else [source]
    said = [f"{path}: {what}" for path in paths if (what := about(path))]
    if source.is_file() and kind_of(source) is None:
        said = [f"{source}: read as plain text, since its name does not end in {', '.join(KINDS)}"]
    more = [f"and {len(said) - shown} more such files"] if len(said) > shown else []
    for line in [*said[:shown], *more]:
        print(line, file=sys.stderr)


# %%
(folder / "mixed").mkdir(exist_ok=True)
for name, raw in {"a.txt": b"one", "b.pdf": b"two", "c.txt": b"three\r\nfour"}.items():
    (folder / "mixed" / name).write_bytes(raw)
with contextlib.redirect_stderr(said := io.StringIO()):
    print_remarks(folder / "mixed")
print(said.getvalue().replace(f"{folder}{os.sep}", "").replace(os.sep, "/"), end="")
print([found.name for found in find_files(folder / "mixed")])

# %% [markdown]
r"""
## Bytes per token

Now to the vocabulary. Before a run of several days begins, one simple number can reveal a wrong tokenizer: how many bytes of text does a token stand for? `bytes_per_token` computes it, and warns if nearly every byte is a token.

*Predict* the number for a vocabulary whose merges were never applied. It has the 256 single bytes and `<|endoftext|>`. And how many bytes of ids does it need
for each byte of text, if an id takes two bytes?
"""

# %%
#| export labs.corpora.encode
FEW = 1.1  # bytes of text per token


def bytes_per_token(size: int, tokens: int) -> str:
    """The ratio in words, with a warning where nearly every byte is a token. tokens: without `<|endoftext|>`."""
    ratio = size / max(tokens, 1)
    said = f"{ratio:.2f} bytes of text per token"
    if ratio < FEW:
        said += "; nearly every byte is a token: a vocabulary without its merges, or one for another script?"
    return said


# %%
predict("16a.3", "bytes of text per token without merges", guess=None)
predict("16a.4", "bytes of ids per byte of text without merges", guess=None)

# %%
GREEK = "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα."
bare, sample = BPETokenizer.train("", 257), text[:30_000]
for name, coder in (("with merges", tokenizer), ("without", bare)):
    for what, words in (("stories", sample), ("Greek", GREEK)):
        print(f"{name}, {what}: {bytes_per_token(len(words.encode()), len(coder.encode(words)))}")
ratio = len(sample.encode()) / len(bare.encode(sample))
answer("16a.3", ratio)
answer("16a.4", 2 / ratio)

# %% [markdown]
r"""
With its merges our small vocabulary has 2.35 bytes per token; without them each byte is a token, and each byte of text becomes two bytes of ids. The warning for Greek is not caused by a mistake. A vocabulary that was learned from English stories has no merges for Greek, and each Greek letter has two bytes. The number
cannot tell the two causes apart, but it tells you to look. Here is a published case in which nobody looked:
"""

# %%
with open("../data/reference/megatron_preprocess.csv", encoding="utf-8") as file:
    published = {row["item"]: float(row["value"]) for row in csv.DictReader(file)}
mib = published["documents"] / published["documents a second"] * published["MiB a second"]
print(
    f"published: {published['MiB of ids']:.0f} MiB of ids for {mib:.1f} MiB, {published['MiB of ids'] / mib:.2f} per byte"
)
print(f"this chapter's stories: {2 * len(encode(text)) / path.stat().st_size:.2f} per byte")

# %% [markdown]
r"""
The numbers come from a log of Megatron-LM's preprocessing of 10,000 documents (`data/reference`, with the lines). At its end it reports documents and MiB a
second, from which we get the size of its input. Megatron counts the characters of the JSON lines, so the text itself is a little smaller. The size of the ids is from a file
listing beside the log, of another run over as many documents. Megatron stores an id in two bytes if the
vocabulary has fewer than 65,500 tokens (`optimal_dtype` in its `indexed_dataset.py`), and GPT-2's has 50,257.

Two bytes of ids for one byte of input is just what a vocabulary without merges gives. So most likely no merge was applied in this run, although its
command names a merge file, and every byte became a token. Nobody was warned. Chapter 16b's command prints the number when it is done, with a warning below 1.1.

## GPT-2's own files

How can a vocabulary lose its merges? GPT-2's authors published it as two files, `encoder.json` and `vocab.bpe`. Hugging Face has the same two under the names that are usual today: `vocab.json` has an id for each token, and `merges.txt` has the
pairs in the order in which they were learned. Without the second, the first is a list of tokens that are never made. JSON holds text, but a token
is bytes, and these need not be UTF-8. So each byte got a character: its own if that is visible, or else the next one from U+0100 on. Some instructions tell you to "convert" a `vocab.json` before you use it. Leave it
as it is. A file in which `Ġ`, which stands for the space, was replaced, or in which ids and tokens have changed sides, is refused in one sentence.
"""

# %%
#| export labs.formats.merges
import json
import os
import re
from functools import cache
from pathlib import Path

from nanogpt.files import atomically
from nanogpt.tokenizer import EOT, BPETokenizer, merge_chunk


# %%
#| export labs.formats.merges
#| blank byte_characters: visible bytes are themselves, all others take characters from 256 on in turn
@cache
def byte_characters() -> str:
    """The character that stands for each of the 256 bytes in GPT-2's files (its encoder.py, bytes_to_unicode).

    Visible are the bytes 33 to 126, 161 to 172 and 174 to 255.
    """
    visible, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, iter(range(256, 512))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A token as GPT-2's files spell it."""
    return "".join(byte_characters()[byte] for byte in token)


# %%
print("space, line break, é:", *(spelled(text.encode()) for text in (" ", "\n", "é")))
print("She won coins:", *(spelled(tokenizer.tokens[i]) for i in tokenizer.encode("She won coins")))

# %% [markdown]
r"""
Chapter 01 keeps no list of pairs: of all neighbours, those that make the token of lowest rank are merged. The pairs can be
recovered, because a token's pair is the result of merging its bytes with only the tokens before it. So we can write `merges.txt` from a
vocabulary, and we can prove that a file that is read belongs to it.
"""


# %%
#| export labs.formats.merges
#| blank merge_lines: split each token with the ranks of those before it, then add it to them
def merge_lines(vocab: list[bytes]) -> list[str]:
    """The lines of merges.txt: the two tokens that each longer one is made of, when only those before it exist.

    Both as `spelled`, with a space between; a single byte has no line.
    """
    ranks, lines = {}, []
    for token in vocab:
        if len(token) > 1:
            lines.append(" ".join(spelled(vocab[i]) for i in merge_chunk(token, ranks)))
        ranks[token] = len(ranks)
    return lines


def ids_of(vocab: list[bytes], special: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate([*map(spelled, vocab), *special])}


def write_vocab(tokenizer: BPETokenizer, folder: str | os.PathLike) -> None:
    """Write vocab.json and merges.txt, as transformers reads them (GPT-2's encoder.json and vocab.bpe)."""
    lines = ["#version: 0.2", *merge_lines(tokenizer.vocab), ""]
    ids = json.dumps(ids_of(tokenizer.vocab, [*tokenizer.special]), ensure_ascii=False)
    for name, text in ("vocab.json", ids), ("merges.txt", "\n".join(lines)):
        with atomically(Path(folder) / name) as file:
            file.write(text.encode())


# %%
#| export labs.formats.merges
def stored_vocab(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The ids of all tokens, and the lines of the merges. Newer programs write both into one tokenizer.json, with more about it."""
    if (folder / "vocab.json").exists() or not (folder / "tokenizer.json").exists():
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8")
        return ids, [line for line in lines.split("\n")[lines.startswith("#version") :] if line]
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    cut, model = saved["pre_tokenizer"], saved["model"]
    if saved["normalizer"] or cut["type"] != "ByteLevel" or cut["add_prefix_space"]:
        raise ValueError("it changes or cuts a text in another way than GPT-2")
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    return model["vocab"] | added, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def read_vocab(folder: str | os.PathLike) -> BPETokenizer:
    """The tokenizer of a Hugging Face folder; OSError or ValueError in one sentence if it is not of GPT-2's kind."""
    known = {character: byte for byte, character in enumerate(byte_characters())}
    try:
        ids, lines = stored_vocab(Path(folder))
        special = [name for name in ids if re.fullmatch(r"<\|.*\|>", name)]
        vocab = [bytes(known[c] for c in name) for name in sorted(ids, key=ids.get) if name not in special]
        tokenizer = BPETokenizer(vocab, special=sorted(special, key=ids.get))
        whole = ids == ids_of(vocab, list(tokenizer.special))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{folder}: its vocabulary does not give bytes, merges and last {EOT} their ids, from 0 on"
        )
    if lines != (needed := merge_lines(vocab)):
        what = f"{len(lines):,} merges, but its vocabulary needs {len(needed):,} in its order"
        raise ValueError(f"{folder} has {what}; without them, bytes stay single: copy both again")
    return tokenizer


# %%
write_vocab(tokenizer, folder / "vocab")
lines = (folder / "vocab/merges.txt").read_text(encoding="utf-8").split("\n")
print(*lines[:4], f"... {len(lines) - 2} merges", sep=" | ")
assert read_vocab(folder / "vocab").fingerprint == tokenizer.fingerprint, "the tokenizer read is another"
(folder / "vocab/merges.txt").write_text("#version: 0.2\n")
try:
    read_vocab(folder / "vocab")
except ValueError as error:
    print(str(error).removeprefix(str(folder)))

# %% [markdown]
r"""
There are 143 merges, one for each token that was learned, and the vocabulary that is read has the same fingerprint. When the merges are gone, `read_vocab` says so: a mistake like the published one is found before the first token is made. The tests give both files to transformers' tokenizer and compare its ids, for GPT-2's vocabulary and for one of our own.

## Appendix: ids, fast

Chapter 01's tokenizer is written to be understood; tiktoken does the same in Rust. It finds the pattern's matches faster if the
pattern is written a little differently. (`bench/prepare.py` measures a complete preparation with it.) `load_tokenizer` gives both.
"""

# %%
#| export labs.corpora.encode
import os
from itertools import pairwise

import numpy as np
import regex

from nanogpt.labs.corpora.vocab import read_tokenizer
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer


# %%
#| export labs.corpora.encode
def load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer as tiktoken runs it in Rust, and as chapter 01 has it; OSError or ValueError in one sentence."""
    try:
        ours = read_tokenizer(name)
    except OSError as error:
        if str(name) != "gpt2":
            raise
        raise OSError(f"{error}; or give --tokenizer data/built/tokenizer.json (chapter 01)") from None
    if ours.pattern != GPT2_PATTERN or ours.vocab_size > 65536:
        raise ValueError(f"{name} needs GPT-2's pattern, to cut text, and at most 65,536 tokens, for uint16")
    from tiktoken import Encoding

    # The same matches in less time: in one group, what needs no lookahead is one automaton to Rust.
    # And white space at the end comes first, or a megabyte of it overflows the lookahead's stack.
    visible, space = ours.pattern.split(r"|\s", 1)
    pattern = rf"(?:{visible})|\s++$|\s{space}"
    return Encoding("nanogpt", pat_str=pattern, mergeable_ranks=ours.ranks, special_tokens=ours.special), ours


# %% [markdown]
r"""
If a million white-space characters come before a visible one, as in a broken log, the pattern's lookahead goes back
through all of them, and tiktoken's regular expressions refuse when their stack is full. Then we cut the text where the
pattern cuts anyway, before the last character of the run.

Otherwise all documents of a block are encoded in one call, each after an `<|endoftext|>`. A document may contain this name as
ordinary text, as this chapter does. Then it stays text.
"""


# %%
#| export labs.corpora.encode
#| blank cut_long_runs: find the runs with regex; the cuts are one before their ends
def cut_long_runs(text: str) -> list[str]:
    """The text cut before the last character of each long run of white space, where GPT-2's pattern cuts anyway.

    Long are 1,000 characters and more. A run at the end of the text is not cut: there the pattern takes it whole.
    """
    cuts = [run.end() - 1 for run in regex.finditer(r"\s{1000,}+(?=\S)", text)]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


# %%
#| export labs.corpora.encode
def encode_texts(texts: list[str], begin: bool, encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` if they begin. One call for all is faster than one for each."""
    before, begun = (EOT, len(texts)) if begin else ("", 0)
    joined = "".join(before + text for text in texts)
    apart = begin or len(texts) == 1  # else one text's end and the next one's beginning could make a token
    if apart and joined.count(EOT) == begun:  # else a document spells <|endoftext|> itself
        try:
            return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
        except ValueError:
            pass  # a run of white space that is too long for it (tiktoken 0.12 and later say so, earlier ones panic)
    ids = []
    for text in texts:
        ids.append(np.array([eot] if begin else [], np.uint32))
        ids += [encoding.encode_to_numpy(part, disallowed_special=()) for part in cut_long_runs(text)]
    return np.concatenate(ids)


# %%
tokenizer.save(folder / "tokenizer.json")
encoding, ours = load_tokenizer(folder / "tokenizer.json")
fresh, size = BPETokenizer(ours.vocab), sum(len(t.encode()) for t in documents)
start = time.perf_counter()
expected = [i for t in documents for i in [fresh.eot, *fresh.encode(t)]]
middle = time.perf_counter()
ids = encode_texts(documents, True, encoding, ours.eot)
rates = [size / 1e6 / seconds for seconds in (middle - start, time.perf_counter() - middle)]
assert ids.tolist() == expected, "tiktoken and chapter 01 give other ids"
print(f"the same {len(ids):,} ids: chapter 01 at {rates[0]:.1f} MB/s, tiktoken at {rates[1]:.1f} MB/s")
spelled_out = encode_texts(["<|endoftext|> is text", "a" + " " * 2000 + "b"], True, encoding, ours.eot)
print("documents that begin:", len(document_starts(spelled_out, ours.eot)), "of 2")

# %% [markdown]
r"""
Both give the same ids. How fast each of them is depends on the machine. The last line shows that a document may spell `<|endoftext|>`, and that a run of 2,000 spaces is no problem: two documents begin, and not three.

## Your predictions, and the checkpoint
"""

# %%
predictions("16a")

# %%
checkpoint("16a")

# %% [markdown]
r"""
## Exercises

`course exercises release 16` writes these, and those of 16 and 16b, as a notebook to `released/`; `course check 16` runs their visible checks.

- **16-1** A cut that changes no id, 10 minutes: repair a reader that cuts after the space.
- **16-2** A vocabulary without its merges, 30 minutes: find the tokens that no text will ever use.

To explore:

1. **More places to cut.** Which other cells of the map may `EDGE` take? Between a letter and a digit, say: is
   that safe for every letter and digit of Unicode? *Check:* let hypothesis look for counterexamples before you argue, as
   `tests/labs/test_ch16a_sources.py` does for `first_cut`. Why does the map show a half after an apostrophe, and less than all
   between two letters?
2. **Break the law.** Let `seek_cut` return `at` itself. *Check:* which cell notices first, and what does it say? The `.txt`
   files of the check still pass: why, and what would have to be compared?
3. **A tab between fields.** Read `.tsv` files. *Check:* the law for CSV in `tests/labs/test_ch16a_sources.py`, with
   `delimiter="\t"` in its writer. Which other line of `sources.py` must know the kind?
4. **Bytes per token.** Train a tokenizer of the same size on a page in another script. How many bytes per token, how
   many characters? *Check:* it has more of both than this chapter's tokenizer has on that page.
5. **GPT-2's files.** `write_vocab(BPETokenizer.gpt2(), folder)`. *Check:* the first lines of `merges.txt` are `Ġ t`, `Ġ a`,
   `h e`, and there are 50,000. Which language wrote them? Give `encode_texts` the Greek line in it.

## Further reading

- Petrov et al. 2023, [*Language Model Tokenizers Introduce Unfairness Between Languages*](https://arxiv.org/abs/2305.15425): the same text takes up to fifteen
  times the tokens in another language.
- [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180): CSV, and where a quote may stand.
- [GPT-2's `encoder.py`](https://github.com/openai/gpt-2/blob/master/src/encoder.py): the two files, the characters for bytes, and the pattern.
"""
