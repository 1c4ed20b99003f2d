"""Documents from text, JSONL, CSV and parquet files, one at a time.

Exported from notebooks/16_real_text.ipynb.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nanogpt.shards import file_sha256, split_of


def last_cut(text: bytes) -> int:
    """The last place where UTF-8 text can be cut so that GPT-2's ids of the parts are those of the whole, or 0.

    That is between a visible character and a space or newline. No match of GPT-2's pattern goes on from the one
    to the other, so one ends there anyway; the left part ends visibly, so that the lookahead `(?!\\S)` sees no
    other end of white space; the right part's matches do not look back.
    """
    space, line = text.rfind(b" "), text.rfind(b"\n")
    while (cut := max(space, line)) > 0:
        if not text[max(0, cut - 4) : cut].decode("utf-8", "ignore")[-1:].isspace():
            return cut
        space, line = (text.rfind(b" ", 0, cut), line) if cut == space else (space, text.rfind(b"\n", 0, cut))
    return 0


class Piece(NamedTuple):
    """A stretch of a source file: whole documents, or a part of one that is longer than a block."""

    path: Path
    kind: str  # "text", "paragraphs", "jsonl" or "parquet"
    start: int  # the byte that it begins with; for parquet the row
    content: bytes | list[str]
    split: str | None = None  # None: each document's hash decides


def _last_paragraph(text: bytes) -> int:
    found = re.match(rb"(?s).*\n\r?\n(?=[^\r\n])", text)
    return found.end() if found else 0


def _last_line(text: bytes) -> int:
    return text.rfind(b"\n") + 1


def _read_text(path: Path, kind: str, start: int, block: int, split: str | None) -> Iterator[tuple]:
    """Pieces of about `block` bytes from byte `start` on, each with its length, its end, and bytes read until there."""
    last = {"text": last_cut, "paragraphs": _last_paragraph, "jsonl": _last_line}[kind]
    with open(path, "rb") as file:
        while True:
            file.seek(start)
            text, end = b"", 0
            while not end:
                more = file.read(block)
                text += more
                if not text:
                    return
                if len(text) > max(1 << 26, 2 * block):
                    raise ValueError(
                        f"{path}: no place to cut in {len(text):,} bytes after {start:,}; is it text?"
                    )
                end = len(text) if len(more) < block else last(text)
            yield Piece(path, kind, start, text[:end], split), end, start + end, start + end
            start += end


def _read_rows(path: Path, start: int) -> Iterator[tuple]:
    """The same for a parquet file, where places are rows."""
    try:
        import pyarrow.parquet as pq

        file, row = pq.ParquetFile(path, buffer_size=1 << 20), 0  # without the buffer: a row group at a time
        for group in range(file.num_row_groups):
            if row + (rows := file.metadata.row_group(group).num_rows) <= start:
                row += rows
                continue
            for batch in file.iter_batches(256, [group], ["text"]):
                row += len(batch)
                if row > start:
                    texts = [text or "" for text in batch.column("text").to_pylist()]
                    size, read = sum(map(len, texts)), path.stat().st_size * row // file.metadata.num_rows
                    yield Piece(path, "parquet", row - len(batch), texts), size, row, read
    except (ImportError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path}: reading needs pyarrow and a column of strings named text ({error})"
        ) from None


def read_blocks(files: list[Path], place: list[int], block: int, paragraphs: bool, val: float, test: float):
    """Yields pieces gathered to about `block` bytes, the place after them (file, byte or row), and bytes read."""
    pieces, gathered, before = [], 0, sum(path.stat().st_size for path in files[: place[0]])
    kinds = {".jsonl": "jsonl", ".parquet": "parquet"}
    for i, path in enumerate(files[place[0] :], place[0]):
        size, split, start = path.stat().st_size, None, place[1] if i == place[0] else 0
        kind = kinds.get(path.suffix, "paragraphs" if paragraphs else "text")
        if kind == "text" and len(files) == 1:
            split = "train"  # a single document cannot be divided by document
        elif kind == "text" and size >= block:  # its hash is needed before its end is read
            split = split_of(bytes.fromhex(file_sha256(path)), val, test)
        reader = _read_rows(path, start) if kind == "parquet" else _read_text(path, kind, start, block, split)
        for piece, length, end, read in reader:
            pieces.append(piece)
            gathered += length
            if gathered >= block // 2:
                yield pieces, [i, end], before + read
                pieces, gathered = [], 0
        before += size
    if pieces:
        yield pieces, [len(files), 0], before


def documents_in(piece: Piece) -> Iterator[str]:
    """The documents, or the part of one, in a piece. ValueError names the file and the line or byte at fault."""
    if piece.kind == "parquet":
        yield from piece.content
    elif piece.kind == "jsonl":
        for n, line in enumerate(piece.content.split(b"\n"), 1):
            try:
                text = json.loads(line)["text"] if line.strip() else ""
                text.encode()
            except (ValueError, TypeError, LookupError, AttributeError):
                with open(piece.path, "rb") as file:
                    while file.tell() < piece.start:
                        n += bool(file.readline())
                raise ValueError(
                    f"{piece.path}, line {n}: not a JSON object with a string under 'text'"
                ) from None
            yield text
    else:
        try:
            text = piece.content.decode()
        except UnicodeDecodeError as error:
            at = piece.start + error.start
            raise ValueError(
                f"{piece.path}: byte {at:,} is not UTF-8; convert it, for example with iconv"
            ) from None
        yield from re.findall(r"(?s).+?(?:\n\r?\n[\r\n]*|$)", text) if piece.kind == "paragraphs" else [text]


def find_files(source: Path) -> list[Path]:
    """The source itself, or all .txt, .jsonl and .parquet files below it, in the order of their names."""
    if not source.exists():
        raise FileNotFoundError(
            f"{source} does not exist; give a .txt, .jsonl or .parquet file, or a folder of them"
        )
    known = (".txt", ".jsonl", ".parquet")
    files = sorted(p for p in source.rglob("*") if p.suffix in known) if source.is_dir() else [source]
    if not any(path.stat().st_size for path in files):
        raise ValueError(f"{source} is empty: no .txt, .jsonl or .parquet file with anything in it")
    return files


def describe(source: Path, files: list[Path]) -> str:
    """A line by which a source is known again: name, size, and a hash of all names, sizes and beginnings."""
    digest, total = hashlib.sha256(), 0
    for path in files:
        total += (size := path.stat().st_size)
        with open(path, "rb") as file:
            digest.update(
                f"{path.relative_to(source.parent).as_posix()} {size} ".encode() + file.read(1 << 16)
            )
    return f"{source.name}, {len(files)} files, {total} bytes, {digest.hexdigest()[:16]}"
