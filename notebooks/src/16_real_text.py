# %% [markdown]
r"""
# 16 · Real text: where it may be cut, and what a vocabulary makes of it

The stories of chapter 02 came from a generator, one string each, and all of them fit into memory. Real text lies in files
that others wrote, of four kinds and of any size, so it is read piece by piece. Two mistakes go through without an
error. A file is cut where the ids of the two halves are not those of the whole. And a vocabulary has lost its merges, so
that every byte becomes a token, as in a published log that this chapter ends with. A model trains on either, and nobody
is told.

This chapter reads any text in pieces that change nothing, and finds out what a vocabulary makes of it. Chapter 16b does
so on all cores and on many machines.

*Predict.* A text is read a thousand bytes at a time, and each piece is encoded by itself. Of a hundred cuts, how many
change the ids?
"""

# %%
#| default_exp corpora.sources
#| doc corpora.sources: Documents from text, JSONL, CSV and parquet files of any size, and where these may be cut.
#| doc corpora.vocab: GPT-2's vocab.json and merges.txt, texts encoded by tiktoken, and bytes of text per token.
import tempfile
import time
from importlib.util import find_spec
from itertools import product

from course.figures import real_text as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.corpora.corpus import stories
from nanogpt.text.data import BatchStream, DocumentStream, to_device
from nanogpt.text.files import save_json
from nanogpt.text.shards import MAGIC, SPLITS, VERSION, document_starts, identity, read_shard, write_shard

STORIES, VOCAB = 1000, 400  # this chapter's text, and the tokens that are learned from it
PIECE = 1000  # bytes, in the first experiment
CHUNK, BLOCK = 50_000, 10_000  # bytes; chapter 16b's command takes 4 to 64 megabytes, and one
predict("16.1", "of 100 cuts, how many change the ids", guess=None)
predict("16.2", "places where the sentence may be cut", guess=None)

# %% [markdown]
r"""
Imports stand here, at the top, so that what you change below is what runs below.
"""

# %%
#| export corpora.sources
import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nanogpt.text.shards import file_sha256, split_of

# %%
#| export text.data
import torch

from nanogpt.text.shards import file_sha256

# %%
#| export corpora.vocab
import json
import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex

from nanogpt.text.bpe import merge_chunk
from nanogpt.text.files import atomically
from nanogpt.text.tokenizer import EOT, GPT2_PATTERN, BPETokenizer

# %%
documents = [story.text for story in stories(STORIES)]
assert 0 < PIECE < len("".join(documents)) // 2, "PIECE: more than no byte, and less than half of the text"
tokenizer = BPETokenizer.train(documents, VOCAB)
encode = tokenizer.encode
long = "".join(documents)
pieces = [long[i : i + PIECE] for i in range(0, len(long), PIECE)]
changed = [encode(a) + encode(b) != encode(a + b) for a, b in pairwise(pieces)]
print(f"{sum(changed)} of {len(changed)} cuts change the ids")
answer("16.1", round(100 * sum(changed) / len(changed)))
for i in [i for i, it_does in enumerate(changed) if it_does][:2]:
    a, b = pieces[i][-12:], pieces[i + 1][:12]
    whole, cut = ([tokenizer.decode([i]) for i in ids] for ids in (encode(a + b), encode(a) + encode(b)))
    print("whole:", "|".join(whole), "   cut:", "|".join(cut))

# %% [markdown]
r"""
## Where a text may be cut

So the ids would depend on where a file happens to be cut. Where is a cut harmless? *Predict*: at how many places between
two characters of the sentence below?
"""

# %%
text = "She won 1234 coins.\n\n  Then it's over."
good = [i for i in range(1, len(text)) if encode(text[:i]) + encode(text[i:]) == encode(text)]


def marked(places) -> str:
    """The text with | at these places."""
    return "".join("|" * (i in places) + c.replace("\n", "↵") for i, c in enumerate(text))


print("may be cut at |:  ", marked(good), f"  ({len(good)} of {len(text) - 1} places)")
answer("16.2", len(good))

# %% [markdown]
r"""
That is so with this vocabulary, in this sentence. A cut that suits every vocabulary with GPT-2's pattern must fall between
two of the pattern's matches, and neither half may be matched differently without the other. Does it depend on
the two characters beside it? Here all texts of six characters from six kinds are cut in the middle:
"""

# %%
NAMES = {"s": "letter", "1": "digit", ".": ".", "'": "'", " ": "space", "\n": "line break"}
threes = ["".join(three) for three in product(NAMES, repeat=3)]
matches = regex.compile(GPT2_PATTERN).findall
harmed = {pair: 0 for pair in product(NAMES, repeat=2)}
for left, right in product(threes, repeat=2):
    harmed[left[-1], right[0]] += matches(left) + matches(right) != matches(left + right)
share = [[harmed[a, b] / len(NAMES) ** 4 for b in NAMES] for a in NAMES]
framed = [(i, j) for i, a in enumerate(NAMES) for j, b in enumerate(NAMES) if not a.isspace() and b in " \n"]
assert not any(share[i][j] for i, j in framed), "with this pattern, a cut before white space changes the ids"
alt = "Share of texts that a cut changes, by the characters beside it: none before white space that follows a visible one"
show(figures.places(share, list(NAMES.values()), framed), alt=alt)

# %% [markdown]
r"""
The places with a frame, before a space or a line break that follows a visible character, are safe in every text. No
match goes on from a visible character to white space. The left part ends visibly, so no lookahead sees another
end of white space; and the right part's matches do not look back. Inside a run of white space it is not so:
`\s+(?!\S)` leaves the last space of a run to the word after it, if there is one to be seen. Exercise 1 asks which of the
other zeros can be relied on.

Other files are cut between documents: JSONL at a line's end; a text whose paragraphs are documents (as llm.c takes
TinyShakespeare) after blank lines. In CSV a quoted field may itself hold line breaks. Which line break ends a row? One
before which the number of quotes is even: a field's two quotes, and a `""` within it, leave it so.
"""


# %%
#| export corpora.sources
#| blank first_cut: go through the kind's places; note whether a quote is open and whether white space goes on
KINDS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
LIMIT = 1 << 26  # bytes without a place to cut
PLACES = {  # where a match ends, a file may be cut
    "text": re.compile(rb"(?<![\s\x1c-\x1f])(?=[ \n])"),
    "paragraphs": re.compile(rb"[^\r\n][\r\n]*?\n\r?\n[\r\n]*(?=[^\r\n])"),
    "jsonl": re.compile(rb"\n"),
    "csv": re.compile(rb"\n"),
}


def first_cut(kind: str, text: bytes, at: int = 1, quoted: bool = False) -> int | None:
    """The first place from `at` on where text may be cut, or None. quoted: does it begin within quotes? (CSV)"""
    cut = 0
    for found in PLACES[kind].finditer(text):
        before, cut = cut, found.end()
        if kind == "csv":
            quoted ^= text.count(b'"', before, cut) % 2 == 1
        # A visible character may be one of up to four bytes; not all white space is one of one.
        hidden = kind == "text" and text[max(0, cut - 4) : cut].decode("utf-8", "ignore")[-1:].isspace()
        if cut >= at and not quoted and not hidden:
            return cut


# %%
raw, cuts, at = text.encode(), set(), 0
while at := first_cut("text", raw, at + 1):
    cuts.add(len(raw[:at].decode()))
print("first_cut takes |: ", marked(cuts))
assert cuts <= set(good), f"a cut at {sorted(cuts - set(good))} changes the ids"
rows = b'id,text\n1,"two\nlines, a ""quote""\n"\n2,one line\n'
print("a CSV file's first row ends at byte", first_cut("csv", rows, 9), "of", rows)

# %% [markdown]
r"""
A green bar is a place that `first_cut` takes; at a red dot a cut would change this vocabulary's
ids. *Predict:* can a place have both? Then try to write a text with such a place, and one in which no place is taken.
"""

# %% tags=["nbval-ignore-output"]
figures.cutting_widget(text, encode, lambda raw, at: first_cut("text", raw, at))

# %% [markdown]
r"""
A file is cut at the first such place after every so many bytes. To find it, a few bytes around are read; of CSV, all
quotes from the last cut on are counted as well.
"""


# %%
#| export corpora.sources
def bytes_between(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """A stretch of a file, a megabyte at a time."""
    with open(path, "rb") as file:
        file.seek(start)
        while raw := file.read(min(1 << 20, stop - start)):
            yield raw
            start += len(raw)


def next_cut(path: Path, kind: str, start: int, at: int) -> int:
    """The first place from byte `at` on where a file may be cut that may be cut at `start`; or its end."""
    if kind == "parquet":
        with parquet(path) as (_, begins):
            return next((begin for begin in begins if begin >= at), path.stat().st_size)
    base, length = max(start, at - 4), min(1 << 16, LIMIT)  # the character before lies in the 4 bytes before
    quotes = sum(raw.count(b'"') for raw in bytes_between(path, start, base)) if kind == "csv" else 0
    while True:
        text = b"".join(bytes_between(path, base, base + length))
        cut = first_cut(kind, text, at - base, quotes % 2 == 1)
        if cut or len(text) < length:
            return base + (cut or len(text))
        if length >= LIMIT:
            raise ValueError(f"{path}, line {line_of(path, at)}: no place to cut in {length:,} bytes")
        length = min(4 * length, LIMIT)


# %% [markdown]
r"""
A *chunk* is what is encoded at one go: a list of *spans*, which are one stretch of a large file, or many small files. A
`.txt` file is one document, so the hash of the whole file says whether it goes to train, val or test (chapter 03),
wherever it is cut. Of the other kinds each document is hashed by itself, when it is read.
"""


# %%
#| export corpora.sources
@dataclass(frozen=True)
class Span:
    """A stretch of a file, from a place where it may be cut to another, in bytes."""

    path: Path
    kind: str  # "text", "paragraphs", "jsonl", "csv" or "parquet"
    start: int
    stop: int
    split: str | None = None  # None: each document's hash decides


# %%
#| export corpora.sources
def cut_files(files: list[Path], size: int, paragraphs=False, val=0.01, test=0.01) -> Iterator[list[Span]]:
    """The chunks: the files one after another, cut after about every `size` bytes."""
    spans, room = [], size
    for path in files:
        kind, split, start, end = KINDS.get(path.suffix.lower(), "text"), None, 0, path.stat().st_size
        if kind == "text" and paragraphs:
            kind = "paragraphs"
        elif kind == "text":  # one document; a source that is but one cannot be divided
            split = split_of(bytes.fromhex(file_sha256(path)), val, test) if len(files) > 1 else "train"
        while start < end:
            stop = end if start + room >= end else next_cut(path, kind, start, start + room)
            spans.append(Span(path, kind, start, stop, split))
            start, room = stop, room - (stop - start)
            if room <= 0:
                yield spans
                spans, room = [], size
    if spans:
        yield spans


# %%
#| export corpora.sources
def hash_of(spans: list[Span]) -> str:
    """Hex SHA-256 of all that a chunk is made of."""
    seen = hashlib.sha256()
    for span in spans:
        seen.update(f"{span.kind} {span.split}".encode())
        for raw in bytes_between(span.path, span.start, span.stop):
            seen.update(raw)
    return seen.hexdigest()


# %%
assert CHUNK > 0 and BLOCK > 0, "CHUNK and BLOCK are numbers of bytes, 1 or more"
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
path = folder / "stories.jsonl"
path.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents), encoding="utf-8", newline="\n")
chunks = list(cut_files([path], CHUNK))
for [span] in chunks[:3]:
    print(f"bytes {span.start:,} to {span.stop:,}, SHA-256 {hash_of([span])[:8]}...")
print(f"{len(chunks)} chunks in all")

# %% [markdown]
r"""
## Documents

A span is read a block at a time, cut by the same rule: so memory holds a block, however large the file. Each kind of
file has its documents elsewhere, and its own ways to be broken.
"""


# %%
#| export corpora.sources
def line_of(path: Path, place: int) -> int:
    """Which line of a file holds byte `place`, counted from 1."""
    return 1 + sum(raw.count(b"\n") for raw in bytes_between(path, 0, place))


def from_jsonl(raw: bytes) -> Iterator[str]:
    """The document in each line. ValueError(n, what) if line n, counted from 0, has none."""
    for n, line in enumerate(raw.split(b"\n")):
        try:
            text = json.loads(line)["text"] if line.strip() else ""
            text.encode()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise ValueError(n, "not a JSON object with a string under 'text'") from None
        yield text


# %%
#| export corpora.sources
def from_csv(raw: bytes, at: int, path: Path) -> Iterator[str]:
    """What each row has in the column `text` of the file, whose byte `at` is the first of raw. Raises as above."""
    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    if "text" not in names:
        raise ValueError(0, f"no column 'text' among {', '.join(map(repr, names))}")
    rows = csv.reader(io.StringIO(raw.decode("utf-8" if at else "utf-8-sig"), newline=""), strict=True)
    try:
        for row in filter(None, rows):
            if len(row) != len(names):
                raise ValueError(rows.line_num - 1, f"{len(row)} fields under a header of {len(names)}")
            yield row[names.index("text")]
    except csv.Error as error:
        raise ValueError(rows.line_num - 1, f"quotes that do not close ({error})") from None


# %% [markdown]
r"""
Parquet keeps each column of a group of rows together, compressed. So it is cut where a group begins, and read with
pyarrow, if that is installed.
"""


# %%
#| export corpora.sources
@contextmanager
def parquet(path: Path) -> Iterator[tuple]:
    """A parquet file, and the byte that each of its groups of rows begins at. ValueError if it has no such text."""
    try:
        import pyarrow.parquet as pq

        with open(path, "rb") as raw:  # given a path, pyarrow refuses names that are not UTF-8
            file = pq.ParquetFile(raw, buffer_size=1 << 20)
            first = [file.metadata.row_group(i).column(0) for i in range(file.num_row_groups)]
            yield file, [column.dictionary_page_offset or column.data_page_offset for column in first]
    except (ImportError, ValueError, LookupError, TypeError) as error:
        needs = "reading needs pyarrow and a column of strings named text"
        raise ValueError(f"{path}: {needs} ({' '.join(str(error).split())})") from None


# %%
#| export corpora.sources
def from_parquet(span: Span) -> Iterator[list[str]]:
    """The documents in the groups of rows that begin in a span, 256 at a time."""
    with parquet(span.path) as (file, begins):
        for i in [i for i, begin in enumerate(begins) if span.start <= begin < span.stop]:
            for batch in file.iter_batches(256, [i], ["text"]):  # of all groups, it would read many at once
                texts = batch.column("text").to_pylist()
                if not all(isinstance(text, str | None) for text in texts):
                    raise TypeError(f"something else in row group {i}")
                yield list(filter(None, texts))


# %%
#| export corpora.sources
def documents_in(span: Span, at: int, raw: bytes) -> Iterable[str]:
    """The documents in a block of a span, or what it has of one."""
    if span.kind == "jsonl":
        return from_jsonl(raw)
    if span.kind == "csv":
        return list(from_csv(raw, at, span.path))[at == 0 :]  # without the header
    raw.decode()
    cuts = [found.end() for found in PLACES["paragraphs"].finditer(raw)] if span.kind == "paragraphs" else []
    return [raw[a:b].decode() for a, b in pairwise([0, *cuts, len(raw)])]


# %%
#| export corpora.sources
def blocks_in(span: Span, block: int) -> Iterator[tuple[bool, list[str]]]:
    """Its texts, about `block` bytes at a time: whether documents begin with them, and they."""
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
What is given is a file, or a folder with any of these below it.
"""


# %%
#| export corpora.sources
def find_files(source: Path) -> list[Path]:
    """The source itself, or all .txt, .jsonl, .csv and .parquet files below it, in the order of their names.

    What is hidden is left out, and what the course makes: folders `data/built`.
    """
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; give a file (.txt, .jsonl ...) or a folder")
    files = [] if source.is_dir() else [source]
    for folder, below, names in os.walk(source, onerror=refuse) if not files else ():
        here = Path(folder).resolve().name
        below[:] = [name for name in below if name[0] != "." and (here, name) != ("data", "built")]
        files += [Path(folder, n) for n in names if n[0] != "." and Path(n).suffix.lower() in KINDS]
    files = sorted(path for path in files if path.is_file())
    if not any(path.stat().st_size for path in files):
        raise ValueError(f"{source} is empty: no {', '.join(KINDS)} file with anything in it")
    return files


def refuse(error: OSError) -> None:
    """What cannot be read is an error; os.walk would leave it out without a word."""
    raise error


# %% [markdown]
r"""
*Check.* The same documents, written as each kind of file, are read back, wherever the files are cut. Among them are those
that make trouble: quotes, line breaks, letters of several bytes.
"""


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
    for size in (99, 5000, CHUNK):
        assert read(source, size) == mixed, f"{kind}: chunks of {size:,} bytes give other documents"
    cuts = [len(list(cut_files(find_files(source), size))) for size in (99, 5000, CHUNK)]
    print(f"{kind:8} {len(mixed)} documents, the same in {cuts[0]}, {cuts[1]} and {cuts[2]} chunks")

# %% [markdown]
r"""
What is wrong with a file is said with its name and the place.
"""

# %%
broken = {
    "title.jsonl": b'{"text": "one"}\n{"title": "two"}\n',
    "open.csv": b'id,text\n1,one\n2,"two\n',
    "column.csv": b"id,body\n1,one\n",
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
## GPT-2's own files

A run over days should not be wrong from its first byte. Which vocabulary is it? GPT-2's authors wrote two files:
`vocab.json` has an id for each token, `merges.txt` the pairs in the order learned. Without the second, the first is a
list of tokens that are never made. JSON holds text, but a token is bytes, and need not be UTF-8. So each byte got a
character: its own if one can see it, or else the next one from U+0100 on.
"""


# %%
#| export corpora.vocab
#| blank byte_characters: visible bytes are themselves, all others take characters from 256 on in turn
@cache
def byte_characters() -> str:
    """The character that stands for each of the 256 bytes in GPT-2's files (its encoder.py, bytes_to_unicode)."""
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
Chapter 01 keeps no pairs: of all neighbours, those that make the token of lowest rank are merged. The pairs can be found
again: a token's pair is what its bytes are merged to by the tokens before it. So `merges.txt` can be written from a
vocabulary, and one that is read can be proved to belong to it.
"""


# %%
#| export corpora.vocab
#| blank merge_lines: split each token with the ranks of those before it, then add it to them
def merge_lines(vocab: list[bytes]) -> list[str]:
    """The lines of merges.txt: the two tokens that each longer one is made of, when only those before it exist."""
    ranks, lines = {}, []
    for token in vocab:
        if len(token) > 1:
            lines.append(" ".join(spelled(vocab[i]) for i in merge_chunk(token, ranks)))
        ranks[token] = len(ranks)
    return lines


def ids_of(vocab: list[bytes], special: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate([*map(spelled, vocab), *special])}


def write_vocab(tokenizer: BPETokenizer, folder: str | os.PathLike) -> None:
    """Write vocab.json and merges.txt, as GPT-2's authors did and transformers reads them."""
    lines = ["#version: 0.2", *merge_lines(tokenizer.vocab), ""]
    ids = json.dumps(ids_of(tokenizer.vocab, [*tokenizer.special]), ensure_ascii=False)
    for name, text in ("vocab.json", ids), ("merges.txt", "\n".join(lines)):
        with atomically(Path(folder) / name) as file:
            file.write(text.encode())


# %%
#| export corpora.vocab
def read_vocab(folder: str | os.PathLike) -> BPETokenizer:
    """What vocab.json and merges.txt hold; OSError or ValueError in one sentence if they are not of GPT-2's kind."""
    known = {character: byte for byte, character in enumerate(byte_characters())}
    paths = [Path(folder) / name for name in ("vocab.json", "merges.txt")]
    saved, lines = [path.read_text(encoding="utf-8") for path in paths]
    try:
        ids = json.loads(saved)
        special = [name for name in ids if re.fullmatch(r"<\|.*\|>", name)]
        vocab = [bytes(known[c] for c in name) for name in sorted(ids, key=ids.get) if name not in special]
        tokenizer = BPETokenizer(vocab, special=sorted(special, key=ids.get))
        whole = ids == ids_of(vocab, list(tokenizer.special))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{paths[0]} does not give bytes, merges and last {EOT} their ids, from 0 on")
    lines = [line for line in lines.split("\n")[lines.startswith("#version") :] if line]
    if lines != (needed := merge_lines(vocab)):
        what = f"{len(lines):,} merges, but vocab.json needs {len(needed):,} in its order"
        raise ValueError(f"{paths[1]} has {what}; without them, bytes stay single: copy both again")
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
The tests give both files to transformers' tokenizer and compare its ids, in GPT-2's vocabulary and in one of our own.

## Ids, fast

Chapter 01's tokenizer explains itself; tiktoken does the same in Rust. It runs the pattern faster if that is written a
little differently (`tests/bench/bench_prepare.py` measures it).
"""


# %%
#| export corpora.vocab
def load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer as tiktoken runs it in Rust, and as chapter 01 has it; OSError or ValueError in one sentence."""
    try:
        load = read_vocab if Path(name).is_dir() else BPETokenizer.load
        ours = BPETokenizer.gpt2() if str(name) == "gpt2" else load(name)
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
Where a million white-space characters stand before a visible one, as in a broken log, the pattern's lookahead goes back
through all of them, and tiktoken's regular expressions refuse when their stack is full. Then the text is cut where the
pattern cuts anyway, before the last character of the run.

Otherwise all documents of a block are encoded in one call, each after an `<|endoftext|>`. A document may spell that name
itself, as this chapter does. Then it is text.
"""


# %%
#| export corpora.vocab
#| blank cut_long_runs: find the runs with regex; the cuts are one before their ends
def cut_long_runs(text: str) -> list[str]:
    """The text cut before the last character of each long run of white space, where GPT-2's pattern cuts anyway."""
    cuts = [run.end() - 1 for run in regex.finditer(r"\s{1000,}+(?=\S)", text)]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


# %%
#| export corpora.vocab
def encode_texts(texts: list[str], begin: bool, encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` if they begin. One call for all is faster than one for each."""
    joined = "".join(EOT * begin + text for text in texts)
    apart = begin or len(texts) == 1  # else one text's end and the next one's beginning could make a token
    if apart and joined.count(EOT) == begin * len(texts):  # else a document spells <|endoftext|> itself
        try:
            return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
        except ValueError:
            pass  # a run of white space that is too long for it (tiktoken 0.12 and later say so, earlier ones panic)
    ids = []
    for text in texts:
        ids.append(np.array([eot] * begin, np.uint32))
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
## Bytes per token

A simple number shows much of what can be wrong: bytes of text per token. *Predict* it for a vocabulary whose merges were
never applied: 256 bytes, and `<|endoftext|>`. And the bytes of ids, two each, per byte of text?
"""


# %%
#| export corpora.vocab
FEW = 1.1  # bytes of text per token


def bytes_per_token(size: int, tokens: int) -> str:
    """The ratio in words, with a warning where nearly every byte is a token. tokens: without `<|endoftext|>`."""
    why = "; nearly every byte is a token: a vocabulary without its merges, or one for another script?"
    return f"{(ratio := size / max(tokens, 1)):.2f} bytes of text per token" + why * (ratio < FEW)


# %%
predict("16.3", "bytes of text per token without merges", guess=None)
predict("16.4", "bytes of ids per byte of text without merges", guess=None)
OTHER = "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα."
bare, sample = BPETokenizer.train("", 257), "".join(documents[:100])
for name, coder in {"with merges": tokenizer, "without": bare}.items():
    for what, text in {"stories": sample, "another script": OTHER}.items():
        print(f"{name}, {what}: {bytes_per_token(len(text.encode()), len(coder.encode(text)))}")
ratio = len(sample.encode()) / len(bare.encode(sample))
answer("16.3", ratio)
answer("16.4", 2 / ratio)

# %% [markdown]
r"""
Greek is no mistake: a vocabulary learned from English stories has no merges for it, and each of its letters is two bytes.
The number cannot tell the two causes apart, but it makes somebody look. Here is a case where nobody did:
"""

# %%
with open("../data/reference/megatron_preprocess.csv", encoding="utf-8") as file:
    published = {row["item"]: float(row["value"]) for row in csv.DictReader(file)}
mib = published["documents"] / published["documents a second"] * published["MiB a second"]
ratio = published["MiB of ids"] / mib
print(f"published: {published['MiB of ids']:.0f} MiB of ids for {mib:.1f} MiB of text, {ratio:.2f} per byte")
print(f"this chapter's stories: {2 * len(ids) / size:.2f} per byte")

# %% [markdown]
r"""
This is from a log of Megatron-LM's preprocessing (`data/reference`, with its lines). It reports documents and
MiB a second at its end, so the text has that many MiB. A listing beside it, from an earlier run over as many documents,
shows the file of ids. These take two bytes each, as ours do, since GPT-2 has 50,257. So each byte became a token: no merge
was applied, and nobody was told. Chapter 16b's command says the number at its end, and warns below 1.1.
"""

# %% [markdown]
r"""
## A manifest that proves its shards

The stories of chapter 02 are made again in seconds. The ids of a real text cost hours, travel between machines, and lie on
disks for months. A flipped bit in them passes unnoticed so far: the length is right, and the id is valid. So from here on
the manifest proves that all bytes are what was written. It holds the SHA-256 of each file already. Now it gets one of
itself, and what it says must fit together: sums of tokens, plain file names, none of them listed twice.
"""


# %%
#| export text.shards
def manifest_sha256(manifest: dict) -> str:
    """Hex SHA-256 of all that a manifest says, but for this hash itself."""
    said = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


# %%
#| export text.shards
import re


def manifest_fault(manifest: dict) -> str | None:
    """What is wrong with a manifest, in a few words, or None."""
    try:
        splits = manifest["splits"]
        shards = [shard for split in splits.values() for shard in split["shards"]]
        names = [shard["file"] for shard in shards]
        sums = [sum(shard["tokens"] for shard in split["shards"]) for split in splits.values()]
        right = {
            "its own hash": manifest["sha256"] == manifest_sha256(manifest),
            "source or fingerprint": "source" in manifest and isinstance(manifest["fingerprint"], str),
            "eot or vocab_size": 0 <= manifest["eot"] < manifest["vocab_size"] <= 65536,
            "a split's name": set(splits) <= set(SPLITS),
            "a file's name": all(re.fullmatch(r"\w[\w.-]*", name) for name in names),
            "a file listed twice": len(set(names)) == len(names),
            "a file's hash": all(len(shard["sha256"]) == 64 for shard in shards),
            "a file's tokens": all(type(shard["tokens"]) is int and shard["tokens"] > 0 for shard in shards),
            "a sum of tokens": sums == [split["tokens"] for split in splits.values()],
        }
        return next((what for what in right if not right[what]), None)
    except (LookupError, TypeError, AttributeError) as error:
        return f"no {error}" if isinstance(error, KeyError) else "not in a manifest's form"


# %%
print(manifest_fault({"splits": {"val": {"tokens": 9, "shards": []}}}))


# %%
#| export text.shards
#| grows save_manifest load_manifest
def save_manifest(folder: str | Path, manifest: dict) -> dict:
    """Write folder/manifest.json with a hash of itself, atomically; returns it. ValueError if it cannot be right."""
    manifest = manifest | {"sha256": manifest_sha256(manifest)}
    if fault := manifest_fault(manifest):
        raise ValueError(f"{folder}: this manifest cannot be right ({fault})")
    save_json(Path(folder) / "manifest.json", manifest)
    return manifest


def load_manifest(folder: str | Path) -> dict:
    """What folder/manifest.json says. FileNotFoundError or ValueError, in one sentence, if it cannot."""
    path = Path(folder) / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; `python -m nanogpt prepare` writes it")
    try:
        manifest = json.loads(path.read_bytes())
        fault = manifest_fault(manifest)
    except (ValueError, RecursionError):
        fault = "not JSON"
    if fault:
        raise ValueError(f"{path} is damaged ({fault}); prepare the data again")
    return manifest


# %% [markdown]
r"""
`check_shards` compares every byte, and `open_shards` now calls it, so training refuses a file that has changed since. This reads
all shards once when a run begins.

The stream of chapter 03 becomes stricter, too. It takes shards of one folder only, which its manifest must list. It refuses
an id that the vocabulary does not have. A shard of zero tokens, or of too many, is refused. And the stream's state names the shards by their hashes, because a name such as
`train_000000.bin` is used in many folders, and going on in another text would be a silent mistake. On a GPU its batches are
copied while the GPU computes.
"""


# %%
#| export text.shards
def check_shards(folder: str | Path, manifest: dict, *splits: str) -> None:
    """Compare all bytes of these splits' shards, or of all, with the manifest. ValueError names the first damage."""
    for split in splits or manifest["splits"]:
        for shard in manifest["splits"][split]["shards"]:
            path = Path(folder) / shard["file"]
            if not path.exists():
                raise ValueError(f"{path} is gone, and its manifest lists it; prepare it again")
            if len(read_shard(path)) != shard["tokens"] or file_sha256(path) != shard["sha256"]:
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")


# %%
#| export text.shards
#| grows shard_header
def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


# %%
#| export text.shards
#| grows open_shards
def open_shards(folder: str | Path, split: str, fingerprint: str | None = None) -> list[Path]:
    """The paths of a split's shards, after comparing all their bytes, and a tokenizer's fingerprint, with the manifest."""
    manifest, folder = load_manifest(folder), Path(folder)
    if fingerprint not in (None, manifest["fingerprint"]):
        made, asked = manifest["fingerprint"][:8], fingerprint[:8]
        raise ValueError(f"{folder} was made with tokenizer {made}, not {asked}; prepare it again")
    shards = manifest["splits"].get(split, {}).get("shards")
    if not shards:
        raise ValueError(f"{folder} has no tokens in a split named {split!r}")
    check_shards(folder, manifest, split)
    return [folder / shard["file"] for shard in shards]


# %%
#| export text.shards
#| grows described
def described(paths: list[Path]) -> tuple[int, int, list[str] | None]:
    """Of shards in one folder: vocab_size and eot, by the manifest beside them or else GPT-2's, and its hashes."""
    if len({path.parent for path in paths}) != 1:
        raise ValueError(f"a stream reads the shards of one folder; got {len(paths)} files")
    if not (paths[0].parent / "manifest.json").exists():
        return 50257, 50256, None
    manifest = load_manifest(paths[0].parent)
    listed = {s["file"]: s for split in manifest["splits"].values() for s in split["shards"]}
    for path in paths:
        if path.name not in listed or listed[path.name]["tokens"] != len(read_shard(path)):
            raise ValueError(f"{path} is not what the manifest beside it describes; prepare it again")
    return manifest["vocab_size"], manifest["eot"], [listed[path.name]["sha256"] for path in paths]


# %%
#| export text.data
#| grows to_device
def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


# %%
#| export text.data
#| grows BatchStream.next_batch
class BatchStream(BatchStream):
    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        if not self.epoch_length:
            raise ValueError(f"{self.paths[0].parent}: no document begins in these shards")
        rows = self.rows()
        if rows.max() >= self.vocab_size:
            what = f"id {rows.max()}, but their vocabulary has {self.vocab_size}"
            raise ValueError(f"the shards in {self.paths[0].parent} hold {what}; prepare them again")
        return to_device(rows[:, :-1], rows[:, 1:], self.device)


# %%
#| export text.data
#| grows BatchStream.state_dict BatchStream.load_state_dict
class BatchStream(BatchStream):
    def state_dict(self) -> dict:
        """What resumes the stream at exactly this place, with any B, T and number of ranks."""
        if "shards" not in vars(self):  # their hashes, by the manifest or computed once
            self.shards = described(self.paths)[2] or [file_sha256(path) for path in self.paths]
        here = {"counts": "tokens", "seed": self.seed, "position": self.position}
        return here | {"shards": self.shards}

    def load_state_dict(self, state: dict) -> None:
        for what, here in self.state_dict().items():
            if what not in state or (what in ("counts", "shards") and state[what] != here):
                raise ValueError(
                    f"{self.paths[0].parent} is not what this state was saved for: see its {what!r}"
                )
        self.seed, self.position = state["seed"], state["position"]


class DocumentStream(DocumentStream):
    def state_dict(self) -> dict:
        return BatchStream.state_dict(self) | {"counts": "rows"}  # its position is a number of rows


# %%
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
    shard, coder = Path(name) / "val_000000.bin", BPETokenizer.train(["abc"], 257)
    write_shard(shard, np.arange(256))
    listed = {"file": shard.name, "tokens": 256, "sha256": file_sha256(shard)}
    held = {"val": {"tokens": 256, "shards": [listed]}}
    save_manifest(name, {"source": "256 numbers", **identity(coder), "splits": held})
    raw = shard.read_bytes()
    shard.write_bytes(raw[:1100] + bytes([raw[1100] ^ 1]) + raw[1101:])  # one bit
    try:
        open_shards(name, "val")
    except ValueError as error:
        print(str(error).replace(name, "..."))
grown("open_shards")

# %% [markdown]
r"""
## Your predictions, and the checkpoint
"""

# %%
predictions("16")

# %%
checkpoint("16")

# %% [markdown]
r"""
## Exercises

`course exercises release 16` writes these as a notebook to `released/`; `course check 16` runs their visible checks.

- **16-1** A cut that changes no id, 10 minutes: mend a reader that cuts behind the blank.
- **16-2** A vocabulary without its merges, 30 minutes: find the tokens that no text will ever use.

16b has the other three. To explore:

1. **More places to cut.** Which other cells of the map may `PLACES["text"]` take? Between a letter and a digit, say: is
   that safe for every letter and digit of Unicode? *Check:* let hypothesis look for counterexamples before you argue, as
   `tests/corpora/test_ch16_sources.py` does for `first_cut`. Why does the map show a half after an apostrophe, and less than all
   between two letters?
2. **Break the law.** Let `next_cut` return `at` itself. *Check:* which cell notices first, and what does it say? The `.txt`
   files pass all the same: why, and what would have to be compared?
3. **A tab between fields.** Read `.tsv` files. *Check:* the law for CSV in `tests/corpora/test_ch16_sources.py`, with
   `delimiter="\t"` in its writer. Which other line of `sources.py` must know the kind?
4. **Bytes per token.** Train a tokenizer of the same size on a page in another script. How many bytes per token, how
   many characters? *Check:* it has more of both than this chapter's tokenizer has on that page.
5. **GPT-2's files.** `write_vocab(BPETokenizer.gpt2(), folder)`. *Check:* the first lines of `merges.txt` are `Ġ t`, `Ġ a`,
   `h e`, and there are 50,000. Which language wrote them? Give `encode_texts` the Greek line in it.

## Further reading

- Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, §2.1: how GPT-2's text was chosen; §2.2:
  why bytes.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Penedo et al. 2024, *The FineWeb Datasets*, §3: what is filtered out of the web, and how each decision was measured.
- Petrov et al. 2023, *Language Model Tokenizers Introduce Unfairness Between Languages*: the same text takes up to fifteen
  times the tokens in another language.
- RFC 4180: CSV, and where a quote may stand.
"""
