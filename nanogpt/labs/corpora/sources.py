"""Documents from text, JSONL, CSV and parquet files of any size, in chunks.

Exported from notebooks/16_real_text.ipynb.
"""

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from nanogpt.labs.corpora.cuts import bytes_between, line_of, safe_cut, seek_cut
from nanogpt.labs.corpora.splits import split_of
from nanogpt.shards import file_sha256

KINDS = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet"}
PLACES = {  # where a match ends, a file may be cut
    "paragraphs": re.compile(rb"[^\r\n][\r\n]*?\n\r?\n[\r\n]*(?=[^\r\n])"),
    "jsonl": re.compile(rb"\n"),
    "csv": re.compile(rb"\n"),
}


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
        needs = f"reading needs pyarrow and a column of strings named {column} (--column names another)"
        raise ValueError(f"{path}: {needs} ({' '.join(str(error).split())})") from None


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
    kind: str  # "text", "paragraphs", "jsonl", "csv" or "parquet"
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
        kind, split, start, end = KINDS.get(path.suffix.lower(), "text"), None, 0, path.stat().st_size
        if kind == "text" and paragraphs:
            kind = "paragraphs"
        elif kind == "text":  # one document; a single file cannot be divided
            split = split_of(bytes.fromhex(file_sha256(path)), val, test) if len(files) > 1 else "train"
        while start < end:
            stop = end if start + room >= end else next_cut(path, kind, start, start + room)
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
    """The document in each line. ValueError(n, what) if line n, counted from 0, has none."""
    for n, line in enumerate(raw.split(b"\n")):
        try:
            text = json.loads(line)[column] if line.strip() else ""
            text.encode()
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
            if text.lower() == "nan":
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
    cuts = [found.end() for found in PLACES["paragraphs"].finditer(raw)] if span.kind == "paragraphs" else []
    return [raw[a:b].decode() for a, b in pairwise([0, *cuts, len(raw)])]


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


def refuse(error: OSError) -> None:
    """What cannot be read is an error; os.walk would leave it out without a word."""
    raise error


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
