"""Documents from text, JSONL and parquet files of any size, in blocks that another run can go on from.

Exported from notebooks/16_real_text.ipynb.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from nanogpt.shards import file_sha256, split_of


def last_cut(text: bytes) -> int:
    """The last place where UTF-8 text can be cut so that GPT-2's ids of the parts are those of the whole, or 0.

    That is between a visible character and a space or newline. No match of GPT-2's pattern goes on from the one
    to the other, so one ends there anyway; the left part ends visibly, so that the lookahead `(?!\\S)` sees no
    other end of white space; the right part's matches do not look back.
    """
    for cut in range(len(text) - 1, 0, -1):
        if text[cut] in b" \n" and not text[max(0, cut - 4) : cut].decode("utf-8", "ignore")[-1:].isspace():
            return cut
    return 0


KINDS = {".txt": "text", ".jsonl": "jsonl", ".parquet": "parquet"}
LIMIT = 1 << 26  # bytes without a place to cut
PARAGRAPH = re.compile(r"(?s).+?(?:\n\r?\n[\r\n]*|\Z)")  # with the blank lines after it


@dataclass(frozen=True)
class Piece:
    """A stretch of a file: whole documents, or a part of one that is longer than a block."""

    path: Path
    kind: str  # "text", "paragraphs", "jsonl" or "parquet"
    start: int  # the byte that it begins with; for parquet the row
    stop: int  # the byte or row after it
    read: int  # bytes of the file read until there
    content: bytes | list[str]
    split: str | None = None  # None: each document's hash decides


def last_paragraph(text: bytes) -> int:
    found = re.match(rb"(?s).*\n\r?\n(?=[^\r\n])", text)
    return found.end() if found else 0


def read_text(path: Path, kind: str, start: int, block: int, split: str | None) -> Iterator[Piece]:
    """Pieces of about `block` bytes from byte `start` on; longer ones where there is no place to cut."""
    last = {"text": last_cut, "paragraphs": last_paragraph, "jsonl": lambda text: text.rfind(b"\n") + 1}[kind]
    with open(path, "rb") as file:
        file.seek(start)
        while text := file.read(block):
            ended = len(text) < block
            while not (stop := len(text) if ended else last(text)):
                if len(text) >= max(LIMIT, block):
                    raise ValueError(
                        f"{path}, line {line_of(path, start)}: no place to cut in {len(text):,} bytes"
                    )
                more = file.read(len(text))
                ended = len(more) < len(text)
                text += more
            yield Piece(path, kind, start, start + stop, start + stop, text[:stop], split)
            start += stop
            file.seek(start)


def line_of(path: Path, place: int) -> int:
    """Which line of a file begins at byte `place`, counted from 1."""
    with open(path, "rb") as file:
        return 1 + sum(1 for line in file if (place := place - len(line)) >= 0)


@dataclass
class Source:
    """Files in the order of their names, and how they are to be read and divided."""

    path: Path
    files: list[Path]
    paragraphs: bool = False  # a .txt file's documents end at blank lines
    val: float = 0.01
    test: float = 0.01
    block: int = 1 << 20  # bytes that are encoded at once
    hashes: list[str] = field(default_factory=list)  # SHA-256 of each file that was read

    def pieces(self, i: int, start: int) -> Iterator[Piece]:
        """File number i, whose hash is known, from a byte (parquet: a row) on."""
        path, split = self.files[i], None
        kind = KINDS.get(path.suffix.lower(), "text")
        if kind == "parquet":
            return read_rows(path, start)
        if kind == "text" and self.paragraphs:
            kind = "paragraphs"
        elif kind == "text":  # one document; a source that is but one cannot be divided
            split = split_of(bytes.fromhex(self.hashes[i]), self.val, self.test)
            split = "train" if len(self.files) == 1 else split
        return read_text(path, kind, start, self.block, split)


@dataclass(frozen=True)
class Place:
    """How far a source is read."""

    file: int = 0  # the number of the file to go on with
    at: int = 0  # the byte in it; for parquet the row
    read: int = 0  # bytes of all files up to here
    sha256: str = ""  # of all files up to this one


def size_of(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def read_blocks(source: Source, place: Place = Place()) -> Iterator[tuple[list[Piece], Place]]:
    """Pieces gathered to about source.block bytes, from `place` on; with each block, the place after it."""
    pieces, gathered, before, here, seen = [], 0, 0, place, hashlib.sha256()
    source.hashes.clear()
    for i, path in enumerate(source.files):
        status = path.stat()
        source.hashes.append(file_sha256(path))
        seen.update(source.hashes[i].encode())
        if i == place.file and place.sha256 not in ("", seen.hexdigest()):
            raise ValueError(f"{path} or a file before it changed since it was begun; choose another --out")
        for piece in source.pieces(i, place.at if i == place.file else 0) if i >= place.file else ():
            pieces.append(piece)
            gathered += sum(map(len, piece.content)) if piece.kind == "parquet" else len(piece.content)
            here = Place(i, piece.stop, before + piece.read, seen.hexdigest())
            if gathered >= source.block // 2:
                yield pieces, here
                pieces, gathered = [], 0
        if path.stat().st_mtime_ns != status.st_mtime_ns:
            raise ValueError(f"{path} was changed while it was read; prepare it when it is whole")
        before += status.st_size
    if pieces:
        yield pieces, here


def document_in(line: bytes) -> str:
    """The document in a line of JSONL; none in an empty one. ValueError if it is something else."""
    try:
        text = json.loads(line)["text"] if line.strip() else ""
        text.encode()
        return text
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ValueError("not a JSON object with a string under 'text'") from None


def documents_in(piece: Piece) -> Iterator[str]:
    """The documents, or the part of one, in a piece. ValueError names the file and the line or byte at fault."""
    n = 0
    try:
        if piece.kind == "parquet":
            yield from piece.content
        elif piece.kind == "jsonl":
            for line in piece.content.split(b"\n"):
                yield document_in(line)
                n += 1
        else:
            text = piece.content.decode()
            yield from PARAGRAPH.findall(text) if piece.kind == "paragraphs" else [text]
    except UnicodeDecodeError as error:
        at = piece.start + error.start
        raise ValueError(f"{piece.path}: byte {at:,} is not UTF-8; convert it, say with iconv") from None
    except ValueError as error:
        raise ValueError(f"{piece.path}, line {line_of(piece.path, piece.start) + n}: {error}") from None


def find_files(source: Path) -> list[Path]:
    """The source itself, or all .txt, .jsonl and .parquet files below it, in the order of their names.

    What is hidden is left out, and what the course makes: folders `data/built`.
    """
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; give a .txt, .jsonl or .parquet file or a folder")
    files = [] if source.is_dir() else [source]
    for folder, below, names in os.walk(source, onerror=refuse) if not files else ():
        here = Path(folder).resolve().name
        below[:] = [name for name in below if name[0] != "." and (here, name) != ("data", "built")]
        files += [Path(folder, n) for n in names if n[0] != "." and Path(n).suffix.lower() in KINDS]
    files = sorted(path for path in files if path.is_file())
    if not size_of(files):
        raise ValueError(f"{source} is empty: no .txt, .jsonl or .parquet file with anything in it")
    return files


def refuse(error: OSError) -> None:
    """What cannot be read is an error; os.walk would leave it out without a word."""
    raise error


def read_rows(path: Path, start: int) -> Iterator[Piece]:
    """The same for a parquet file, where places are rows. ValueError if it has no strings named text."""
    try:
        import pyarrow.parquet as pq

        with open(path, "rb") as raw:  # given a path, pyarrow refuses names that are not UTF-8
            file, row = pq.ParquetFile(raw, buffer_size=1 << 20), 0
            groups = (file.iter_batches(256, [i], ["text"]) for i in range(file.num_row_groups))
            for batch in chain.from_iterable(
                groups
            ):  # asked for all groups, it reads many at once into memory
                texts = batch.column("text").to_pylist()[max(0, start - row) :]
                row += len(batch)
                if not all(isinstance(text, str | None) for text in texts):
                    raise TypeError(f"something else in rows {row - len(texts)} to {row - 1}")
                read = path.stat().st_size * row // file.metadata.num_rows
                if texts:
                    yield Piece(path, "parquet", row - len(texts), row, read, [text or "" for text in texts])
    except (ImportError, ValueError, LookupError, TypeError) as error:
        needs = "reading needs pyarrow and a column of strings named text"
        raise ValueError(f"{path}: {needs} ({' '.join(str(error).split())})") from None
