# %% [markdown]
r"""
# 16 · Real text: any size, in parallel, resumable

The stories of chapter 02 fit into memory and are tokenized in seconds. A crawl of the web does not, and takes hours on
all cores, or days on one machine: time enough for the disk to be full, the battery empty, the machine taken back by its
cluster. This chapter turns text of any size into the shards of chapter 03, in constant memory, on all cores, or on many
machines. Whatever ends a run, the next one goes on from there, and the shards are the same to the byte.

Is going on worth the trouble? *Predict.* A job takes 12 hours. The machine is taken away every 4 hours on average, at
random, and each time the job begins again from the start. After how many hours of work is it done, on average?
"""

# %%
#| default_exp prepare
#| doc sources: Documents from text, JSONL, CSV and parquet files of any size, and where these may be cut.
#| doc chunks: A text in chunks, each of which is made whole or not at all, and chunks merged into shards.
#| doc vocab: GPT-2's vocabulary as its authors wrote it: vocab.json and merges.txt.
#| doc prepare: The command `prepare`: any text at any size into shards, in parallel, resumable, in parts.
import contextlib
import random
import time
import warnings

from course.figures import real_text as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpus import stories

JOB, TAKEN_AFTER = 12, 4  # hours
STORIES = 4000  # this chapter's text
CHUNK, BLOCK = 50_000, 10_000  # bytes; the command takes 4 to 64 megabytes, and one
KILLS, PARTS = 6, 3
predict("16.1", "hours of work for a job that begins again", guess=None)

# %%
dice, jobs = random.Random(0), range(1, JOB + 1)
assert JOB <= 6 * TAKEN_AFTER, "such a job takes exp(JOB / TAKEN_AFTER) hours; this cell will not wait"


def hours_of_work(job: float) -> float:
    """All the hours spent on a job that begins again whenever the machine is taken away."""
    hours = 0.0
    while (left := dice.expovariate(1 / TAKEN_AFTER)) < job:
        hours += left
    return hours + job


means = [sum(hours_of_work(job) for _ in range(2000)) / 2000 for job in jobs]
print(f"a job of {JOB} hours takes {means[-1]:.0f}, on average")
answer("16.1", round(means[-1]))
alt = "Hours of work over the job's length: beginning again grows exponentially, going on is a straight line"
show(figures.beginning_again(jobs, means, TAKEN_AFTER), alt=alt)

# %% [markdown]
r"""
The expectation is τ(exp(T/τ) − 1) for T hours of work and a mean of τ. A job that goes on where it was needs T.

One idea gives all that was promised. The text is cut into *chunks*, always at the same places. Each is encoded by
itself into a small data set of its own, which is there whole or not at all. Cores and machines take chunks; a run after
one that was stopped makes those that are not there; at the end they are joined in order.

Imports stand here, at the top, so that what you change below is what runs below.
"""

# %%
#| export sources
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

from nanogpt.shards import file_sha256, split_of

# %%
#| export chunks
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nanogpt.files import atomically
from nanogpt.shards import HEADER_BYTES, SPLITS, check_shards, file_sha256, load_manifest, read_shard
from nanogpt.shards import save_manifest, shard_header

# %%
#| export
import argparse
import errno
import hashlib
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import pairwise
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
import regex
from tqdm import tqdm

from nanogpt.shards import identity, split_of
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer

# %% [markdown]
r"""
## Where a text may be cut

A document of a gigabyte must be cut as well, to be shared among cores. But not just anywhere, since the ids of two
halves need not be those of the whole.

*Predict.* At how many places between two characters may `text` be cut so that the ids stay the same?
"""

# %%
documents = [story.text for story in stories(STORIES)]
tokenizer = BPETokenizer.train(documents[:300], 400)
text = "She won 1234 coins.\n\n  Then it's over."
predict("16.2", "places to cut", guess=None)
ids, encode = tokenizer.encode(text), tokenizer.encode
good = [i for i in range(1, len(text)) if encode(text[:i]) + encode(text[i:]) == ids]


def marked(places) -> str:
    """The text with | at these places."""
    return "".join("|" * (i in places) + c.replace("\n", "↵") for i, c in enumerate(text))


print("may be cut at |:  ", marked(good), f"  ({len(good)} of {len(text) - 1} places)")
answer("16.2", len(good))

# %% [markdown]
r"""
With this tokenizer, on this text. Which of these places are safe for every text and every vocabulary with GPT-2's
pattern? A match of the pattern must end there in any case, and neither half may look different without the other.
Both hold before a space or newline that follows a visible character: no match goes on from the one to the other; the
left part ends visibly, so that no lookahead sees another end of white space; the right part's matches do not look back.
Inside a run of white space it is not so: `\s+(?!\S)` leaves the last space of a run to the word after it, if there is one
to be seen.

Other files are cut between documents: JSONL at a line's end; a text whose paragraphs are documents (as llm.c takes
TinyShakespeare) after blank lines. In CSV a quoted field may itself hold line breaks. Which line break ends a row? One
before which the number of quotes is even: a field's two quotes, and a `""` within it, leave it so.
"""


# %%
#| export sources
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
A file is cut at the first such place after every so many bytes. To find it, a few bytes around are read; of CSV, all
quotes from the last cut on are counted as well.
"""


# %%
#| export sources
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
A chunk is a list of *spans*: one stretch of a large file, or many small files. A `.txt` file is one document, so the
hash of the whole file says whether it goes to train, val or test, wherever it is cut. Of the other kinds each document
is hashed by itself, when it is read.
"""


# %%
#| export sources
@dataclass(frozen=True)
class Span:
    """A stretch of a file, from a place where it may be cut to another, in bytes."""

    path: Path
    kind: str  # "text", "paragraphs", "jsonl", "csv" or "parquet"
    start: int
    stop: int
    split: str | None = None  # None: each document's hash decides


# %%
#| export sources
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
#| export sources
def hash_of(spans: list[Span]) -> str:
    """Hex SHA-256 of all that a chunk is made of."""
    seen = hashlib.sha256()
    for span in spans:
        seen.update(f"{span.kind} {span.split}".encode())
        for raw in bytes_between(span.path, span.start, span.stop):
            seen.update(raw)
    return seen.hexdigest()


# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
path = folder / "stories.jsonl"
path.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents), encoding="utf-8", newline="\n")
chunks = list(cut_files([path], CHUNK))
for [span] in chunks[:3]:
    print(f"bytes {span.start:,} to {span.stop:,}, SHA-256 {hash_of([span])[:8]}...")
print(f"... {len(chunks)} chunks")

# %% [markdown]
r"""
## Documents

A span is read a block at a time, cut by the same rule. What is wrong with a file is said with its name and the line.
"""


# %%
#| export sources
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
#| export sources
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


# %%
#| export sources
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
#| export sources
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
*Check.* The law on which all else rests: the documents do not depend on where the chunks end.
"""

# %%
for size in (999, CHUNK, 10**9):
    spans = [span for chunk in cut_files([path], size) for span in chunk]
    found = [text for span in spans for _, texts in blocks_in(span, BLOCK) for text in texts]
    assert found == documents, f"chunks of {size:,} bytes give other documents"
print(f"the same {len(documents):,} documents, in chunks of any size")

# %% [markdown]
r"""
## Encoding

tiktoken encodes all documents of a block in one call. Each goes to the split that its hash says (chapter 03), after an
`<|endoftext|>`.
"""


# %%
#| export
def encode_texts(texts: list[str], begin: bool, encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` if they begin. One call for all is faster than one for each."""
    joined = "".join(EOT * begin + text for text in texts)
    if joined.count(EOT) == begin * len(texts):  # else a document spells <|endoftext|> itself
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
#| export
def encode_spans(spans: list[Span], encoding, eot: int, val, test, block: int) -> Iterator[tuple]:
    """A chunk's ids, block by block: split, ids in uint16, and of how many documents and bytes of text."""
    for span in spans:
        for begin, texts in blocks_in(span, block):
            held = defaultdict(list)
            for text in texts:
                held[span.split or split_of(hashlib.sha256(text.encode()).digest(), val, test)].append(text)
            for split, texts in held.items():
                ids = encode_texts(texts, begin, encoding, eot).astype("<u2")
                yield split, ids, begin * len(texts), sum(len(text.encode()) for text in texts)


# %% [markdown]
r"""
## A chunk is whole, or not there

A chunk becomes a folder in the form of chapter 03: a shard for each split, and a manifest with their hashes and that of
the text. It is made aside and renamed when it is done. So who finds it can prove it: text and shards are hashed, which takes far less
than to encode (both are timed below). A chunk that fails is made again; one made of other text, or with other options,
is refused.
"""


# %%
#| export chunks
CHUNKS = ".chunks"  # the folder below --out where they are, until they are merged


def shards_in(out: Path) -> list[Path]:
    """The files that bear the name of a shard. With chunks beside them, a merge has begun."""
    return [path for path in out.iterdir() if re.fullmatch(r"(train|val|test)_\d{6,}\.bin", path.name)]


def remedy(out: Path) -> str:
    return f"choose another --out, or delete {out} if nothing else is in it"


def refuse_another(out: Path, made_of: dict, was: dict) -> None:
    """ValueError if what `out` holds was made of something else."""
    for key, now in made_of.items():
        if was.get(key) != now:
            raise ValueError(f"{out} holds shards whose {key} is {was.get(key)}, not {now}; {remedy(out)}")


def refuse_change(out: Path, spans: list[Span], was: str) -> None:
    """ValueError if the text of a chunk is not what it was."""
    if hash_of(spans) != was:
        raise ValueError(f"{spans[0].path} has changed since {out} was begun; {remedy(out)}")


# %%
#| export chunks
def make_chunk(folder: Path, spans: list[Span], made_of: dict, encode: Callable, merging=False) -> dict:
    """A chunk's manifest, once it is there. It is made if it is not whole; while it is merged, its shards may be gone."""
    out = folder.parent.parent
    try:
        manifest = load_manifest(folder)
        check_shards(folder, manifest | ({"splits": {}} if merging else {}))
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        refuse_another(out, made_of, manifest)
        refuse_change(out, spans, *manifest["source_sha256"])
        return manifest
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        source = hash_of(spans)
        splits = write_splits(aside, encode(spans))
        manifest = save_manifest(aside, made_of | {"source_sha256": [source], "splits": splits})
        os.rename(aside, folder)
        return manifest
    finally:
        shutil.rmtree(aside, ignore_errors=True)


# %%
#| export chunks
def write_splits(folder: Path, encoded: Iterable[tuple]) -> dict:
    """A shard for each split, which grows block by block; what a manifest says of them."""
    splits = {}
    for split, ids, documents, size in encoded:
        held = splits.setdefault(split, Counter())
        with open(folder / f"{split}.bin", "ab") as file:
            file.write(bytes(HEADER_BYTES * (not held)) + ids.tobytes())
        held.update(documents=documents, bytes=size, tokens=len(ids))
    for split, held in splits.items():
        path = folder / f"{split}.bin"
        with open(path, "r+b") as file:
            file.write(shard_header(held["tokens"]))
        splits[split] = {**held, "shards": [described(path, held["tokens"])]}
    return splits


def described(path: Path, tokens: int) -> dict:
    return {"file": path.name, "tokens": tokens, "sha256": file_sha256(path)}


# %% [markdown]
r"""
## Merging

The shards of a split are its chunks' tokens in order, cut anew after every so many. A chunk's file is deleted as soon
as all its tokens are in a shard that is on the disk, so that little room is taken twice. A merge that was stopped goes
on: a shard that has its name is whole.
"""


# %%
#| export chunks
def merge_split(out: Path, split: str, parts: list[tuple[Path, int]], shard_tokens: int) -> list[dict]:
    """Write a split's shards from its chunks' (path, tokens); what a manifest says of them."""
    shards, total, merged = [], sum(n for _, n in parts), 0  # merged: tokens that are needed no more
    for start in range(0, total, shard_tokens):
        path, stop, here = out / f"{split}_{len(shards):06d}.bin", min(start + shard_tokens, total), merged
        if not path.exists():
            with atomically(path) as file:
                file.write(shard_header(stop - start))
                for part, n in parts:
                    if start < here + n and here < stop:
                        file.write(read_shard(part)[max(0, start - here) : stop - here].tobytes())
                    here += n
        while parts and merged + parts[0][1] <= stop:
            part, n = parts.pop(0)
            part.unlink(missing_ok=True)
            merged += n
        shards.append(described(path, stop - start))
    return shards


# %%
#| export chunks
def merge(out: Path, made_of: dict, chunks: list[tuple[Path, dict]]) -> dict:
    """Join chunks, as (folder, manifest), to the shards of `out`; their manifest."""
    if not any(said["splits"] for _, said in chunks):
        shutil.rmtree(out / CHUNKS)
        raise ValueError(f"{made_of['source']}: no text, all documents are empty")
    splits = {}
    for split in SPLITS:
        held = [(folder, said["splits"][split]) for folder, said in chunks if split in said["splits"]]
        splits[split] = {key: sum(said[key] for _, said in held) for key in ("documents", "bytes", "tokens")}
        parts = [(folder / f"{split}.bin", said["tokens"]) for folder, said in held]
        splits[split]["shards"] = merge_split(out, split, parts, made_of["shard_tokens"])
    sources = [sha256 for _, said in chunks for sha256 in said["source_sha256"]]
    manifest = save_manifest(out, made_of | {"source_sha256": sources, "splits": splits})
    shutil.rmtree(out / CHUNKS)
    return manifest


# %% [markdown]
r"""
## GPT-2's own files

A run over days should not be wrong from its first byte. Which vocabulary is it? GPT-2's authors wrote two files:
`vocab.json` has an id for each token, `merges.txt` the pairs in the order learned. Without the second, the first is a
list of tokens that are never made. JSON holds text, but a token is bytes,
and need not be UTF-8. So each byte got a character: its own if one can see it, or else the next one from U+0100 on.
"""


# %%
#| export vocab
import json
import os
import re
from functools import cache
from pathlib import Path

from nanogpt.bpe import merge_chunk
from nanogpt.files import atomically
from nanogpt.tokenizer import EOT, BPETokenizer


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
#| export vocab
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
#| export vocab
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
assert read_vocab(folder / "vocab").fingerprint == tokenizer.fingerprint, "the tokenizer read is another"
(folder / "vocab/merges.txt").write_text("#version: 0.2\n")
try:
    read_vocab(folder / "vocab")
except ValueError as error:
    print(str(error).removeprefix(str(folder)))

# %% [markdown]
r"""
## As a command, on all cores: cells that you may skip

What follows is needed, and says nothing new about language models: files below a folder, parquet, locks, processes,
signals, a command line. Who is not curious goes on at "Killed".

*Files.* A parquet file is cut where a group of rows begins.
"""


# %%
#| export sources
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


# %%
#| export sources
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
#| export sources
def from_parquet(span: Span) -> Iterator[list[str]]:
    """The documents in the groups of rows that begin in a span, 256 at a time."""
    with parquet(span.path) as (file, begins):
        for i in [i for i, begin in enumerate(begins) if span.start <= begin < span.stop]:
            for batch in file.iter_batches(256, [i], ["text"]):  # of all groups, it would read many at once
                texts = batch.column("text").to_pylist()
                if not all(isinstance(text, str | None) for text in texts):
                    raise TypeError(f"something else in row group {i}")
                yield list(filter(None, texts))


# %% [markdown]
r"""
*The pattern.* tiktoken runs it faster if it is written a little differently (`tests/bench_prepare.py` measures it). And
where a million white-space characters stand before a visible one, as in a broken log, the pattern's lookahead goes back
through all of them, and tiktoken's regular expressions refuse when their stack is full. Then the text is cut where the
pattern cuts anyway, before the last character of the run.
"""


# %%
#| export
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


# %%
#| export
def cut_long_runs(text: str) -> list[str]:
    """The text cut before the last character of each long run of white space, where GPT-2's pattern cuts anyway."""
    cuts = [run.end() - 1 for run in regex.finditer(r"\s{1000,}+(?=\S)", text)]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


# %% [markdown]
r"""
*A folder that is in use, or done.* Two runs that merge in one folder would delete chunks under each other. The system
gives a lock to one of them, or to any number of parts, and takes it back when the process ends, however that happens.
And who finds all done looks whether it still is: a shard may have been damaged or deleted, a text changed.
"""


# %%
#| export chunks
@contextmanager
def alone_in(out: Path, who="prepare", other="choose another --out", shared=False) -> Iterator[None]:
    """The folder, made if absent, is this process's alone while the block lasts, or shared by those who say so."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "ab") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"another {who} writes into {out}; wait, or {other}") from None
        except OSError:
            pass  # a file system without locks
        yield


# %%
#| export chunks
def finished(out: Path, plan: list[list[Span]], made_of: dict) -> dict | None:
    """The manifest, if all is done; None if something is to do, as where a shard was damaged or deleted."""
    if not (out / "manifest.json").exists():
        if shards_in(out) and not (out / CHUNKS).exists():
            raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
        return None
    try:
        manifest = load_manifest(out)
    except ValueError as error:
        raise ValueError(f"{error}, but first {remedy(out)}") from None
    refuse_another(out, made_of, manifest)
    for spans, sha256 in zip(plan, manifest["source_sha256"]):
        refuse_change(out, spans, sha256)
    try:
        check_shards(out, manifest)
    except (OSError, ValueError) as damage:
        print(f"{damage}: doing so", file=sys.stderr)
        for path in [*shards_in(out), out / "manifest.json"]:  # this last: it knows of the damage
            path.unlink()
        return None
    shutil.rmtree(out / CHUNKS, ignore_errors=True)
    return manifest


# %% [markdown]
r"""
*Processes.* tiktoken lets go of Python's lock while it encodes, but the Python around it cannot, so chunks go to
processes. Two things are easy to get wrong. Processes must be *spawned*, as Windows and macOS do anyway, so what they
run must be importable, and the calling script needs `if __name__ == "__main__":`. And a worker must not outlive a parent
that was killed.
"""


# %%
#| export
def start_worker(work: Callable) -> None:
    """Runs once in each worker: keep what all chunks need, leave Ctrl-C to the parent, and do not outlive it."""
    global work_here
    work_here = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def do_task(task: tuple):
    return work_here(*task)


# %%
#| export
def in_processes(work: Callable, tasks: list[tuple], workers: int) -> Iterator:
    """What `work` makes of each task, in order."""
    if workers == 1:
        yield from (work(*task) for task in tasks)
        return
    # Spawned everywhere: a fork copies the locks that a notebook's other threads hold at that moment.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), start_worker, (work,))
    mask = getattr(signal, "pthread_sigmask", lambda how, signals: ())  # Windows has none
    try:
        before = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})  # so that workers are born with it
        waiting = [pool.submit(do_task, task) for task in tasks]
        mask(getattr(signal, "SIG_SETMASK", 0), before)
        yield from (done.result() for done in waiting)
    except BrokenProcessPool:
        raise RuntimeError("a worker was killed (memory?); go on with fewer --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


# %%
#| export
def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_options(out: Path, val, test, workers: int | None, shard_tokens: int, part: str) -> tuple[int, int]:
    """Which part of how many, both from 1. ValueError for a value that cannot work."""
    p, n = map(int, part.split("/")) if re.fullmatch(r"\d{1,6}/\d{1,6}", part) else (0, 0)
    divided, fits = 0 <= val <= val + test < 1, 1 <= shard_tokens <= 2_000_000_000
    wrong = {
        f"--out {out} is a file; it takes a folder": out.exists() and not out.is_dir(),
        f"--val {val} and --test {test} are fractions of all; leave some for train": not divided,
        f"--workers {workers}: it takes at least one process": workers is not None and workers < 1,
        f"--shard-tokens {shard_tokens}: from 1 to 2,000,000,000, since a header has int32": not fits,
        f"--part {part}: which part of how many, from 1/16 to 16/16": not 1 <= p <= n,
    }
    for what in filter(wrong.get, wrong):
        raise ValueError(what)
    return p, n


# %%
#| export
def prepare(source: str | os.PathLike, out: str | os.PathLike, tokenizer: str | os.PathLike = "gpt2", val=0.01,
            test=0.01, paragraphs=False, workers: int | None = None, shard_tokens=100_000_000,
            part: str | None = None, chunk: int | None = None, block=1 << 20) -> dict | None:  # fmt: skip
    """Tokenize `source` into shards below `out`; the manifest, or None for a part. Called again, it goes on."""
    p, n = check_options(out := Path(out), val, test, workers, shard_tokens, part or "1/1")
    files, (encoding, ours) = find_files(source := Path(source)), load_tokenizer(tokenizer)
    size, times = sum(path.stat().st_size for path in files), [path.stat().st_mtime_ns for path in files]
    chunk = chunk or min(max(size >> 10, 1 << 22), 1 << 26)  # a thousand of a large text, but of bounded size
    made_of = dict(source=f"{source.resolve().name}, {len(files)} files, {size} bytes", chunk=chunk)
    made_of |= dict(tokenizer=Path(tokenizer).name, val=val, test=test, paragraphs=paragraphs)
    made_of |= dict(shard_tokens=shard_tokens, **identity(ours))
    encode = partial(encode_spans, encoding=encoding, eot=ours.eot, val=val, test=test, block=block)
    with alone_in(out, shared=bool(part)):
        plan = list(cut_files(files, chunk, paragraphs, val, test))
        if manifest := finished(out, plan, made_of):
            return manifest
        tasks = [(out / CHUNKS / f"{i:06d}", spans) for i, spans in enumerate(plan)][p - 1 :: n]
        make = partial(make_chunk, made_of=made_of, encode=encode, merging=bool(shards_in(out)))
        manifests = in_processes(make, tasks, max(1, min(workers or cores(), len(tasks))))
        bar = tqdm(manifests, total=len(tasks), unit="MB", unit_scale=chunk / 1e6, disable=None)
        chunks = [(folder, manifest) for manifest, (folder, _) in zip(bar, tasks)]
        if changed := [path for path, before in zip(files, times) if path.stat().st_mtime_ns != before]:
            raise ValueError(f"{changed[0]} was changed while it was read; prepare it when it is whole")
        return None if part else merge(out, made_of, chunks)


# %% [markdown]
r"""
*The command* is a parser and a function; chapter 17's runner calls them, and turns what goes wrong into one line.
"""


# %%
#| export
HELP = """Turns text into token shards, from which training reads.

  a .txt file      is one document; with --paragraphs a document ends at each blank line
  a .jsonl file    has one document a line: {"text": "..."}
  a .csv or .parquet file   has one document a row, in its column "text"
  a folder         is all such files below it

<|endoftext|> stands before each document. Its hash sends a document to train, val or test, so that val is the same
text however much is added; a single .txt file goes to train whole. What was stopped by Ctrl-C, kill -9 or a full
disk goes on where it was when the same command is given again. The shards are in llm.c's format.

  python -m nanogpt prepare shakespeare.txt --paragraphs --val 0.1
  python -m nanogpt prepare data/downloads/fineweb-edu --out data/built/fineweb-edu
  python -m nanogpt prepare notes/ --tokenizer data/built/tokenizer.json

Where one machine would take days: give the command with --part 1/16 ... --part 16/16, in any order, to machines that
share the folder --out, or to a Slurm array (--part $SLURM_ARRAY_TASK_ID/16); those that failed again. Then the command
without --part makes what is missing, and merges: the same bytes as from one run.
"""


# %%
#| export
def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, help="a .txt, .jsonl, .csv or .parquet file, or a folder of them")
    add("--out", type=Path, help="folder for the shards (default: data/built/ + the source's name)")
    known = "gpt2 (default), a tokenizer.json of chapter 01, or a folder with vocab.json and merges.txt"
    add("--tokenizer", default="gpt2", help=known)
    add("--val", type=float, default=0.01, help="fraction of documents for validation (0.01)")
    add("--test", type=float, default=0.01, help="fraction of documents for testing (0.01)")
    add("--paragraphs", action="store_true", help="a .txt file's documents end at blank lines")
    add("--workers", type=int, help="processes that tokenize (default: one a core)")
    add("--part", metavar="P/N", help="only the P-th of N parts, for many machines (see above)")
    add("--shard-tokens", type=int, default=100_000_000, help="where a new shard begins (100000000)")
    return parser


# %%
#| export
DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt prepare`, its options parsed."""
    source = args.source.resolve()
    out = args.out or Path("data/built", source.name if source.is_dir() else source.stem)
    try:
        manifest = prepare(**vars(args) | {"out": out})
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command goes on from here, and what is in {out} is kept") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no room left for {out}; no shard is half-written; make room and go on") from None
    print(report(manifest) if manifest else f"part {args.part} is made; without --part, all parts are merged")
    print(f"in {os.fsencode(out).decode(errors='replace')}")


# %%
#| export
def report(manifest: dict) -> str:
    """What was made, and the bytes of text per token, with a warning where these are few."""
    lines, held = [], manifest["splits"].values()
    for split, said in manifest["splits"].items():
        n, shards = said["documents"], len(said["shards"])
        lines.append(f"{split:5} {said['tokens'] - n:,} tokens + {n:,} <|endoftext|> in {shards} shards")
    ratio = sum(said["bytes"] for said in held) / sum(said["tokens"] - said["documents"] for said in held)
    few = "; nearly every byte is a token: a vocabulary without its merges, or one for another script?"
    return "\n".join([*lines, f"{ratio:.2f} bytes of text per token" + few * (ratio < 1.1)])


# %% [markdown]
r"""
## Killed

*Check.* A run that is killed at any moment and begun again, however often, leaves the bytes of one that was never
stopped. What ends it here is no exception, after which Python would still tidy up, but `kill -9` from outside, at random
moments. *Predict.* At a kill, how many chunks are lost that were done?
"""


# %%
def work(out: str, part: str | None = None) -> None:
    """The chapter's text into a folder, in this process."""
    how = dict(val=0.1, test=0.1, workers=1, shard_tokens=100_000, part=part, chunk=CHUNK, block=BLOCK)
    prepare(path, folder / out, folder / "tokenizer.json", **how)


def names_in(out: str, below: str = CHUNKS) -> set[str]:
    return {path.name for path in (folder / out / below).glob("[0-9a-z]*")}


def assert_same(out: str) -> None:
    for name in (names := names_in("straight", ".")) | names_in(out, "."):
        same = (folder / out / name).read_bytes() == (folder / "straight" / name).read_bytes()
        assert same, f"{name} is not that of a run that was never stopped"
    print(f"{out}: all {len(names)} files are the same to the byte")


# %% tags=["nbval-ignore-output"]
predict("16.3", "chunks lost at a kill, of those that were done", guess=None)
tokenizer.save(folder / "tokenizer.json")
start = time.perf_counter()
work("straight")
seconds = time.perf_counter() - start
print(f"never stopped: {seconds:.2f} s, {path.stat().st_size / 1e6 / seconds:.1f} MB/s in one process")
start = time.perf_counter()
work("straight")
print(f"to find that all is done and whole: {time.perf_counter() - start:.3f} s")
done = [set()]
for _ in range(KILLS if hasattr(os, "fork") else 0):  # Windows has none; the tests start processes there
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        (child := get_context("fork").Process(target=work, args=("killed",))).start()
    time.sleep(dice.uniform(0.05, 0.25) * seconds)
    child.kill()
    child.join()
    if (folder / "killed/manifest.json").exists():
        break
    done.append(names_in("killed"))
work("killed")
assert_same("killed")
answer("16.3", sum(len(before - after) for before, after in pairwise(done)))
alt = "Chunks that are whole, from kill to kill: each run adds some, and none is lost"
show(figures.kills([len(names) for names in done], len(chunks)), alt=alt)

# %% [markdown]
r"""
## Parts for many machines

Nothing in this asks who makes a chunk, or when. So *part* p of n is each n-th chunk, from the p-th on: sixteen machines
that see one file system, or sixteen tasks of a Slurm array, take a part each. One that failed is run again alone. Then
the command without a part makes what is missing, and merges.
"""

# %%
for p in random.Random(PARTS).sample(range(1, PARTS + 1), PARTS):  # in any order
    work("parts", f"{p}/{PARTS}")
    print(f"after part {p}/{PARTS}: {len(names_in('parts'))} of {len(chunks)} chunks")
shutil.rmtree(folder / "parts" / CHUNKS / min(names_in("parts")))  # as if its machine had died
work("parts")
assert_same("parts")

# %% [markdown]
r"""
## Bytes per token

A simple number shows much of what can be wrong: bytes of text per token. *Predict* it for a vocabulary whose merges were
never applied: 256 bytes, and `<|endoftext|>`. And the bytes of ids, two each, per byte of text?
"""

# %%
predict("16.4", "bytes of text per token without merges", guess=None)
predict("16.5", "bytes of ids per byte of text without merges", guess=None)
BPETokenizer.train(documents[:1], 257).save(folder / "no_merges.json")
with contextlib.chdir(folder):
    for name in ("tokenizer.json", "no_merges.json"):
        run(parser().parse_args(["stories.jsonl", "--tokenizer", name, "--workers", "1", "--out", name[:-5]]))
held = load_manifest(folder / "no_merges")["splits"]["train"]
answer("16.4", held["bytes"] / (held["tokens"] - held["documents"]))
answer("16.5", 2 * (held["tokens"] - held["documents"]) / held["bytes"])
with open("../data/reference/megatron_preprocess.csv", encoding="utf-8") as file:
    published = {row["item"]: float(row["value"]) for row in csv.DictReader(file)}
mib = published["documents"] / published["documents a second"] * published["MiB a second"]
ratio = published["MiB of ids"] / mib
print(f"published: {published['MiB of ids']:.0f} MiB of ids for {mib:.1f} MiB of text, {ratio:.2f} per byte")

# %% [markdown]
r"""
The last line is from a log of Megatron-LM's preprocessing (`data/reference`, with its lines). It reports documents and
MiB a second at its end, so the text has that many MiB. A listing beside it, from an earlier run over as many documents,
shows the file of ids. These take two bytes each, as ours do, since GPT-2 has 50,257. So each byte became a token: no merge
was applied, and nobody was told. Ours says the number at its end, and warns below 1.1.

## Your predictions, and the checkpoint
"""

# %%
predictions("16")

# %%
checkpoint("16")

# %% [markdown]
r"""
## Exercises

1. **More places to cut.** Is it safe between a letter and a digit? Between punctuation and a letter? *Check:* let
   hypothesis look for counterexamples before you argue, as `tests/test_ch16_prepare.py` does for `first_cut`.
2. **Break the law.** Let `next_cut` return `at` itself. *Check:* which cell notices first, and what does it say? Then let
   `make_chunk` write into `folder` itself, with no `aside`: all checks pass. Which line saves it, and who would notice if
   the manifest were written first?
3. **How large a chunk?** The machine is taken away every 4 hours; a kill loses half a chunk, on average, of each core;
   to begin one costs 2 ms, and a core encodes 16 MB/s. *Check:* the size that costs least is near Young's √(2·2 ms·4 h)
   of work. What else speaks against very small and very large ones?
4. **A tab between fields.** Read `.tsv` files. *Check:* the law for CSV in `tests/test_ch16_prepare.py`, with
   `delimiter="\t"` in its writer.
5. **Bytes per token.** Give a tokenizer of 1,024 ids, trained on English stories, a text in another script. How many bytes
   per token, how many characters? *Check:* trained on that text itself, it has more of both.
6. **TinyShakespeare.** `course data tinyshakespeare`, then prepare it with and without `--paragraphs`. *Check:* in
   GPT-2's vocabulary there are 7,221 more `<|endoftext|>`, and nearly as many tokens less. Which pair of them became one,
   and why? llm.c takes the first 32,768 tokens for validation: what does that measure that a split by hash does not?

## Further reading

- Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, §2.1: how GPT-2's text was chosen; §2.2:
  why bytes.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Penedo et al. 2024, *The FineWeb Datasets*, §3: what is filtered out of the web, and how each decision was measured.
- Dean and Ghemawat 2004, *MapReduce: Simplified Data Processing on Large Clusters*, §3.3: tasks that are made again, and
  output that is renamed when it is whole.
- Pillai et al. 2014, *All File Systems Are Not Created Equal*, §2 and §4: what survives a crash, and in which order.
- RFC 4180: CSV, and where a quote may stand.
"""
