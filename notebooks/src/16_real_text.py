# %% [markdown]
r"""
# 16 · Real text: any size, in parallel, resumable

(to be written)
"""

# %%
#| default_exp prepare
#| doc sources: Documents from text, JSONL, CSV and parquet files, one at a time.
#| doc prepare: Any text at any size into shards, in parallel, resumable: the command `prepare`.
import contextlib
import time
from unittest import mock


from course.notebook import checkpoint
from nanogpt.tokenizer import BPETokenizer

# %% [markdown]
r"""
## Real text, at any size

The stories fit into memory; a crawl of the web does not. `python -m nanogpt prepare` turns text files, JSONL,
parquet or folders of them into shards, on all cores, in constant memory, and goes on where it was if it is killed.

*Cutting a text.* A document of a gigabyte must be cut to be shared among cores, but not just anywhere: the ids of two
halves need not be those of the whole.
"""

# %%
text = "She won 1234 coins.\n\n  Then it's over."
whole = tokenizer.encode(text)
good = [i for i in range(1, len(text)) if tokenizer.encode(text[:i]) + tokenizer.encode(text[i:]) == whole]
print("may be cut at |:  " + "".join("|" * (i in good) + c.replace("\n", "↵") for i, c in enumerate(text)))

# %% [markdown]
r"""
With this tokenizer, on this text. Which of these places are safe for every text and every vocabulary with GPT-2's
pattern? A match of the pattern must end there in any case, and neither half may look different without the other.
Both hold before a space that follows a visible character. Inside a run of white space they do not: `\s+(?!\S)` leaves
the last space of a run to the word after it, if there is one to be seen.
"""

# %%
#| export sources
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nanogpt.shards import file_sha256, split_of


# %%
#| export sources
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


# %%
cuts, rest = set(), text.encode()
while cut := last_cut(rest):
    cuts.add(cut)
    rest = rest[:cut]
print("last_cut takes |:  " + "".join("|" * (i in cuts) + c.replace("\n", "↵") for i, c in enumerate(text)))
assert cuts <= set(good)

# %% [markdown]
r"""
*Reading.* A source is read in pieces of about a megabyte that end at such a cut, at a line's end (JSONL), or after
blank lines (when each paragraph is a document, as in llm.c's TinyShakespeare). Where a piece ends depends only on where
it begins. That is why a run can stop anywhere and go on with the same result.
"""


# %%
#| export sources
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


# %%
#| export sources
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


# %%
#| export sources
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


# %%
#| export sources
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


# %%
source = folder / "stories.jsonl"
with open(source, "w", encoding="utf-8", newline="\n") as file:
    for t in documents:
        file.write(json.dumps({"text": t}) + "\n")
size = source.stat().st_size
for pieces, place, read in read_blocks([source], [0, 0], 400_000, False, 0.1, 0.1):
    print(
        f"block of {len(pieces)} piece, {len(pieces[0].content):,} bytes; goes on at file {place[0]}, byte {place[1]:,}; {read / size:4.0%}"
    )


# %%
#| export sources
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


# %%
#| export sources
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


# %%
first, _, _ = next(read_blocks([source], [0, 0], 400_000, False, 0.1, 0.1))
print(sum(1 for text in documents_in(first[0]) if text), "documents in the first block")
try:
    list(documents_in(first[0]._replace(content=b'{"text": "fine"}\n{"title": "no text"}\n')))
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
*Encoding.* Each document goes to the split that its hash says, after an `<|endoftext|>`.
"""

# %%
#| export prepare
import argparse
import errno
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanogpt.shards import HEADER_BYTES, SPLITS, file_sha256, identity, save_manifest, shard_header, split_of
from nanogpt.files import save_json
from nanogpt.sources import Piece, describe, documents_in, find_files, read_blocks
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer


# %%
#| export prepare
def encode_pieces(pieces: list[Piece], encoding, eot: int, val: float, test: float) -> dict[str, tuple]:
    """For each split: token ids (uint16) with `<|endoftext|>` before each document; documents; bytes of text."""
    texts, documents, size = {split: [] for split in SPLITS}, Counter(), Counter()
    for piece in pieces:
        for text in filter(None, documents_in(piece)):
            raw = text.encode()
            split = piece.split or split_of(hashlib.sha256(raw).digest(), val, test)
            begins = piece.kind != "text" or piece.start == 0
            texts[split].append((begins, text))
            documents[split] += begins
            size[split] += len(raw)
    return {
        s: (_encode(texts[s], encoding, eot).astype("<u2"), documents[s], size[s]) for s in SPLITS if texts[s]
    }


def _encode(texts: list[tuple[bool, str]], encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` where a document begins. One call for all is faster than a call for each."""
    joined = "".join(EOT + text if begins else text for begins, text in texts)
    if joined.count(EOT) == sum(begins for begins, _ in texts):
        return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
    ids = []  # some document spells <|endoftext|> itself, as ordinary text
    for begins, text in texts:
        ids += [np.array([eot] * begins, np.uint32), encoding.encode_to_numpy(text, disallowed_special=())]
    return np.concatenate(ids)


# %%
common = (tokenizer.to_tiktoken(), tokenizer.eot, 0.1, 0.1)
for split, (ids, n, size) in encode_pieces(first, *common).items():
    print(f"{split:5} {len(ids):,} tokens of {n} documents, {size:,} bytes; begins", ids[:4])

# %% [markdown]
r"""
*All cores.* tiktoken lets go of Python's lock while it encodes, but the Python around it cannot, so blocks go to
processes. Three things are easy to get wrong. The pool's queue must be bounded, or a fast reader fills the memory with
blocks that wait. Processes must be *spawned*, as Windows and macOS do anyway, so what they run must be importable, and
the calling script needs `if __name__ == "__main__":`. And a worker must not outlive a parent that was killed.
"""


# %%
#| export prepare
def _start_worker(*common) -> None:
    """Runs once in each worker: keep what all blocks need, leave Ctrl-C to the parent, and do not outlive it."""
    global _common
    _common = common
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def _encode_in_worker(pieces: list[Piece]) -> dict[str, tuple]:
    return encode_pieces(pieces, *_common)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits until afterwards, where the system can do that (not on Windows)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# %%
#| export prepare
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encode_blocks(blocks: Iterable, common: tuple, workers: int) -> Iterator[tuple]:
    """The blocks encoded, in order. At most two a worker are under way: memory does not grow with the source."""
    if workers == 1:
        yield from ((encode_pieces(pieces, *common), *place) for pieces, *place in blocks)
        return
    # Spawned everywhere: a fork copies the locks that a notebook's other threads hold at that moment.
    pool, waiting = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, common), deque()
    try:
        for pieces, *place in blocks:
            with _without_ctrl_c():  # submit may start a worker, which inherits this and is silent from birth
                waiting.append((pool.submit(_encode_in_worker, pieces), place))
            if len(waiting) > 2 * workers:
                encoded, place = waiting.popleft()
                yield encoded.result(), *place
        yield from ((encoded.result(), *place) for encoded, place in waiting)
    finally:
        pool.shutdown(cancel_futures=True)


# %%
start = time.perf_counter()
blocks = read_blocks([source], [0, 0], 400_000, False, 0.1, 0.1)
for encoded, _, _ in _encode_blocks(blocks, common, workers=1):
    print({split: f"{len(ids):,} tokens of {n} documents" for split, (ids, n, _) in encoded.items()})
print(f"{source.stat().st_size / 1e6 / (time.perf_counter() - start):.1f} MB/s in one process")

# %% [markdown]
r"""
*Surviving.* Tokens are appended to `.part` files with a header of zeros, which nobody takes for a shard.
"""


# %%
#| export prepare
def _append(out: Path, journal: dict, split: str, tokens: np.ndarray, documents: int, size: int) -> None:
    """Add to a split's last .part file, or begin one. Its header is zeros: nobody takes it for a shard."""
    state = journal["splits"][split]
    shards = state["shards"]
    if not shards or shards[-1] >= journal["made_of"]["shard_tokens"]:
        shards.append(0)
    with open(out / f"{split}_{len(shards) - 1:06d}.bin.part", "ab" if shards[-1] else "wb") as file:
        file.write((b"" if shards[-1] else bytes(HEADER_BYTES)) + tokens.tobytes())
    shards[-1] += len(tokens)
    state["documents"] += documents
    state["bytes"] += size


# %%
parts = folder / "parts"
parts.mkdir()
state = {"documents": 0, "bytes": 0, "shards": []}
journal = {"made_of": {"shard_tokens": 100}, "splits": {"train": state}}


def sizes() -> str:
    """What is in the folder, in bytes."""
    return ", ".join(f"{path.name} {path.stat().st_size}" for path in sorted(parts.iterdir()))


for n in (60, 60, 60):
    _append(parts, journal, "train", np.full(n, 7, "<u2"), 1, 4 * n)
print(state)
print(sizes())

# %% [markdown]
r"""
About once a second, when the tokens have reached the disk, a *journal* is written: how far the source is read, and how
long each part is. The run that finds a journal cuts the parts back to those lengths and reads on from that place. The
run before it may have died at any moment.
"""


# %%
#| export prepare
def _parts(out: Path, journal: dict) -> list[tuple[Path, str, int]]:
    """The unfinished shards that a journal speaks of, each with its split and tokens."""
    states = journal["splits"].items()
    return [
        (out / f"{s}_{i:06d}.bin.part", s, n) for s, state in states for i, n in enumerate(state["shards"])
    ]


def _save_journal(out: Path, journal: dict) -> None:
    """What another run needs to go on from here, written after the tokens that it speaks of."""
    for path, _, _ in _parts(out, journal):
        with open(path, "r+b") as file:
            os.fsync(file.fileno())
    save_json(out / "journal.json", journal)


def _rewind(out: Path, journal: dict) -> None:
    """Bring the files back to what the journal says: a run that was killed had gone on after writing it."""
    for path in out.glob("*.bin"):
        os.replace(path, f"{path}.part")
    parts = _parts(out, journal)
    for path in set(out.glob("*.part")) - {path for path, _, _ in parts}:
        path.unlink()
    for path, _, n in parts:
        if not path.exists() or path.stat().st_size < HEADER_BYTES + 2 * n:
            raise ValueError(f"{path} is shorter than journal.json says; delete {out} and prepare it again")
        os.truncate(path, HEADER_BYTES + 2 * n)


# %%
_save_journal(parts, journal)
with open(parts / "train_000001.bin.part", "ab") as file:
    file.write(b"what a run wrote after its last journal")
(parts / "train_000002.bin.part").write_bytes(b"a part that the journal does not know")
print("killed: ", sizes())
_rewind(parts, json.loads((parts / "journal.json").read_bytes()))
print("rewound:", sizes())

# %% [markdown]
r"""
At the end each shard gets its header and its name, and the manifest takes the journal's place.
"""


# %%
#| export prepare
def _finish(out: Path, journal: dict) -> dict:
    """Give each shard its header and its name, then write the manifest, which is returned."""
    states = journal["splits"].items()
    splits = {s: state | {"tokens": sum(state["shards"]), "shards": []} for s, state in states}
    for path, split, n in _parts(out, journal):
        with open(path, "r+b") as file:
            file.write(shard_header(n))
            file.flush()
            os.fsync(file.fileno())
        splits[split]["shards"].append({"file": path.stem, "tokens": n, "sha256": file_sha256(path)})
        os.replace(path, path.with_suffix(""))
    manifest = save_manifest(out, journal["made_of"] | {"splits": splits})
    (out / "journal.json").unlink()
    return manifest


# %%
manifest = _finish(parts, journal)
print(*sorted(path.name for path in parts.iterdir()))
print([len(read_shard(parts / shard["file"])) for shard in manifest["splits"]["train"]["shards"]], "tokens")

# %% [markdown]
r"""
Who finds a journal, or a manifest, may go on only with the same source and the same options.
"""


# %%
#| export prepare
def _begin(out: Path, made_of: dict) -> dict:
    """The journal to go on with, or the manifest if all is done. ValueError if `out` holds anything else."""
    splits = {split: {"documents": 0, "bytes": 0, "shards": []} for split in SPLITS}
    fresh = {"made_of": made_of, "place": [0, 0], "read": 0, "splits": splits}
    for path in (out / "manifest.json", out / "journal.json"):
        if path.exists():
            there = json.loads(path.read_bytes())
            was = there.get("made_of", there)
            if there.get("place") == [0, 0]:
                return fresh  # nothing had come of it yet
            for key, now in made_of.items():
                if was.get(key) != now:
                    what = f"shards whose {key} is {was.get(key)}, not {now}"
                    raise ValueError(f"{out} holds {what}; choose another --out or delete it")
            return there
    if any(out.glob("*.bin*")):
        raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
    return fresh


# %%
for out, made_of in ((folder / "few", {"source": "another text"}), (folder / "two", {})):
    try:
        _begin(out, made_of)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
tiktoken runs the pattern in Rust, and faster if it is written a little differently.
"""


# %%
#| export prepare
def _load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer, as tiktoken runs it in Rust and as chapter 01 has it."""
    ours = BPETokenizer.gpt2() if str(name) == "gpt2" else BPETokenizer.load(name)
    if ours.pattern != GPT2_PATTERN or ours.vocab_size > 65536:
        raise ValueError(f"{name} needs GPT-2's pattern, to cut text, and at most 65,536 tokens, for uint16")
    from tiktoken import Encoding

    # The same matches in about 0.7 of the time: in one group, what needs no lookahead is one automaton to Rust.
    # And white space at the end comes first, or a megabyte of it overflows the lookahead's stack.
    visible, space = ours.pattern.split(r"|\s", 1)
    pattern = rf"(?:{visible})|\s++$|\s{space}"
    return Encoding("nanogpt", pat_str=pattern, mergeable_ranks=ours.ranks, special_tokens=ours.special), ours


# %%
tokenizer.save(folder / "tokenizer.json")
encoding, ours = _load_tokenizer(folder / "tokenizer.json")
print("the same ids:", all(encoding.encode_ordinary(text) == ours.encode(text) for text in documents[:500]))

# %% [markdown]
r"""
All together: the loop over encoded blocks, then the function that begins, resumes and ends it.
"""


# %%
#| export prepare
def _append_all(
    out: Path, journal: dict, encoded_blocks: Iterable, total: int, journal_seconds: float
) -> None:
    """Add block after block to the .part files, with a journal every so many seconds and at the end."""
    saved = time.monotonic()
    with tqdm(total=total, initial=journal["read"], unit="B", unit_scale=True, disable=None) as bar:
        for encoded, place, read in encoded_blocks:
            for split, more in encoded.items():
                _append(out, journal, split, *more)
            bar.update(read - journal["read"])
            journal |= {"place": place, "read": read}
            if time.monotonic() > saved + journal_seconds:
                _save_journal(out, journal)
                saved = time.monotonic()
    _save_journal(out, journal)


# %%
#| export prepare
def prepare(
    source: str | os.PathLike,
    out: str | os.PathLike,
    tokenizer: str | os.PathLike = "gpt2",
    val: float = 0.01,
    test: float = 0.01,
    paragraphs: bool = False,
    workers: int | None = None,
    shard_tokens: int = 100_000_000,
    block: int = 1 << 20,
    journal_seconds: float = 1.0,
) -> dict:
    """Tokenize `source` into shards below `out`, divided by document into train, val and test; the manifest.

    The same call goes on where a killed one stopped, with the same bytes as result; once done, it does nothing.
    """
    if min(val, test) < 0 or val + test >= 1:
        raise ValueError(f"val {val} and test {test} are fractions of all documents; leave some for train")
    source, out, files = Path(source), Path(out), find_files(Path(source))
    encoding, ours = _load_tokenizer(tokenizer)
    made_of = {"source": describe(source, files), "tokenizer": Path(tokenizer).name, **identity(ours)}
    made_of |= {"val": val, "test": test, "paragraphs": paragraphs}
    made_of |= {"shard_tokens": shard_tokens, "block": block}
    out.mkdir(parents=True, exist_ok=True)
    journal = _begin(out, made_of)
    if "place" not in journal:
        return journal  # the manifest: all is done
    save_json(out / "journal.json", journal)
    _rewind(out, journal)
    total = sum(path.stat().st_size for path in files)
    useful = 1 + (total - journal["read"]) // (4 * block)  # for less, no worker is started
    blocks = read_blocks(files, journal["place"], block, paragraphs, val, test)
    common = encoding, ours.eot, val, test
    encoded_blocks = _encode_blocks(blocks, common, min(workers or _cores(), useful))
    _append_all(out, journal, encoded_blocks, total, journal_seconds)
    return _finish(out, journal)


# %% [markdown]
r"""
*Check.* A run that is stopped at random moments, and started again each time, leaves the bytes of a run that was never
stopped. The tests do the same to two processes with `kill -9`. In a notebook one process does all: what a notebook
defines, no worker can import.
"""

# %%
options = dict(val=0.1, test=0.1, workers=1, block=20_000, journal_seconds=-1, shard_tokens=100_000)
manifest = prepare(source, folder / "straight", folder / "tokenizer.json", **options)
fsync, dice = os.fsync, random.Random(0)


class Stopped(Exception):
    """Stands for whatever ends a run."""


def fsync_or_die(file):
    """The system call that brings a file to the disk; one in fifty ends the run."""
    if dice.random() < 0.02:
        raise Stopped
    fsync(file)


# %%
stops, done = 0, False
while not done:
    with mock.patch("os.fsync", fsync_or_die), contextlib.suppress(Stopped):
        prepare(source, folder / "stopped", folder / "tokenizer.json", **options)
        done = True
    stops += not done
for path in (folder / "straight").iterdir():
    assert path.read_bytes() == (folder / "stopped" / path.name).read_bytes(), path.name
shards = [len(held["shards"]) for held in manifest["splits"].values()]
print(f"stopped {stops} times; {sum(shards)} shards and the manifest are the same to the byte")

# %% [markdown]
r"""
Memory does not grow with the source: of one text of 1,001 MB, two workers and their parent together held 233 MB at
most (21 November 2026, `python tests/bench_prepare.py memory`).

The command line has a help text that teaches, and one sentence for each thing that can go wrong.
"""

# %%
#| export prepare
HELP = """Turns text into token shards, from which training reads.

  a .txt file      is one document; with --paragraphs a document ends at each blank line
  a .jsonl file    has one document a line: {"text": "..."}
  a .parquet file  has one document a row, in its column "text"
  a folder         is all such files below it

<|endoftext|> stands before each document. Its hash sends a document to train, val or test, so that val is the same
text however much is added; a single .txt file goes to train whole. What was stopped by Ctrl-C, kill -9 or a full
disk goes on where it was when the same command is given again. The shards are in llm.c's format.

  python -m nanogpt prepare shakespeare.txt --paragraphs --val 0.1
  python -m nanogpt prepare data/downloads/fineweb-edu --out data/built/fineweb-edu
  python -m nanogpt prepare notes/ --tokenizer data/built/tokenizer.json
"""


def _parse(argv: list[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m nanogpt prepare", description=HELP, formatter_class=formatter)
    add = parser.add_argument
    add("source", type=Path, help="a .txt, .jsonl or .parquet file, or a folder of them")
    add("--out", type=Path, help="folder for the shards (default: data/built/ + the source's name)")
    add("--tokenizer", default="gpt2", help="gpt2 (default) or a tokenizer.json from chapter 01")
    add("--val", type=float, default=0.01, help="fraction of documents for validation (0.01)")
    add("--test", type=float, default=0.01, help="fraction of documents for testing (0.01)")
    add("--paragraphs", action="store_true", help="a .txt file's documents end at blank lines")
    add("--workers", type=int, help="processes that tokenize (default: one a core)")
    add("--shard-tokens", type=int, default=100_000_000, help="where a new shard begins (100000000)")
    return parser.parse_args(argv)


# %%
#| export prepare
DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt prepare`. Exit code 0; 2 for bad input, 1 for a failing machine, 130 after Ctrl-C."""
    args = _parse(argv)
    out = args.out = args.out or Path("data/built") / args.source.stem
    try:
        for split, held in prepare(**vars(args))["splits"].items():
            n, shards = held["documents"], len(held["shards"])
            print(f"{split:5} {held['tokens'] - n:,} tokens + {n:,} <|endoftext|> in {shards} shards")
        print(f"in {out}")
        return 0
    except KeyboardInterrupt:
        code, message = 130, f"stopped; the same command goes on from here, or delete {out} to begin again"
    except BrokenProcessPool:
        code, message = 1, "a worker was killed (memory?); the same command with fewer --workers goes on"
    except (OSError, ValueError) as error:
        code, message = 2, error
        if getattr(error, "errno", None) in DISK_FULL:
            code, message = 1, f"no room left for {out}; no shard is half-written; make room and go on"
    print(f"prepare: {message}", file=sys.stderr)
    return code


# %%
with contextlib.chdir(folder):
    code = main(["stories.jsonl", "--tokenizer", "tokenizer.json", "--val", "0.1", "--workers", "1"])

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("16")

# %% [markdown]
r"""
## Exercises

1. **Too many ids.** Take the check out of `write_shard` and write ids up to 100,000. Which ids come back?
2. **Rows that begin with a document.** Write a stream whose rows all begin at `<|endoftext|>`, so that nothing is said of
   facts that cannot be seen. How large a part of the tokens does it leave out at T = 64, and at T = 256?
3. **More places to cut.** Is it safe between a letter and a digit? Between punctuation and a letter? Let hypothesis look
   for counterexamples before you argue, as `tests/test_ch16_prepare.py` does.
4. **TinyShakespeare.** `course data tinyshakespeare`, then prepare it with and without `--paragraphs`. Explain the
   difference in the number of tokens. llm.c takes the first 32,768 tokens for validation: what does that measure
   that a split by hash does not?

## Further reading

- The format: llm.c, `dev/data/data_common.py` (writing) and `llmc/dataloader.h` (reading).
- Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, §2.1: how GPT-2's text was chosen.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Penedo et al. 2024, *The FineWeb Datasets*, §3: what is filtered out of the web, and how each decision was measured.
- Ding et al. 2024, *Fewer Truncations Improve Language Modeling*, §2: what packing costs, and a better packing.
- NumPy's NEP 19: which random numbers are promised to stay the same.
"""
