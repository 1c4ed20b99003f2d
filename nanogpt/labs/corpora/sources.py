"""Documents from text, JSONL, CSV and parquet files of any size, in chunks.

Exported from notebooks/16a_any_file.ipynb.
"""

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

from nanogpt.labs.corpora.cuts import bytes_between, line_of, safe_cut, seek_cut
from nanogpt.labs.corpora.splits import split_of
from nanogpt.labs.corpora.text import SEPARATOR
from nanogpt.shards import file_sha256

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


def next_cut(path: Path, kind: str, start: int, at: int) -> int:
    """The first place from byte `at` on where a file may be cut that may be cut at `start`; or its end."""
    if kind == "parquet":
        with parquet(path) as (_, begins):
            return next((begin for begin in begins if begin >= at), path.stat().st_size)
    quotes = 0
    if kind == "csv":  # all from the last cut to where seek_cut begins to read
        quotes = sum(raw.count(b'"') for raw in bytes_between(path, start, max(start, at - 4)))
    return seek_cut(path, start, at, partial(first_cut, kind, quoted=quotes % 2 == 1))


@dataclass(frozen=True)
class Span:
    """A stretch of a file, from a place where it may be cut to another, in bytes."""

    path: Path
    kind: str  # "text", "paragraphs", "separated", "jsonl", "csv" or "parquet"
    start: int
    stop: int
    split: str | None = None  # None: each document's hash decides
    column: str = "text"  # of JSONL, CSV and parquet: what holds the documents


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


def hash_of(spans: list[Span]) -> str:
    """Hex SHA-256 of all that a chunk is made of."""
    seen = hashlib.sha256()
    for span in spans:
        seen.update(f"{span.kind} {span.split}".encode())
        for raw in bytes_between(span.path, span.start, span.stop):
            seen.update(raw)
    return seen.hexdigest()


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


def refuse(error: OSError) -> None:
    """What cannot be read is an error; os.walk would leave it out without a word."""
    raise error


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
