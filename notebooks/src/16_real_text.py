# %% [markdown]
r"""
# 16 · Real text: any size, in parallel, resumable

The stories of chapter 02 fit into memory and are tokenized in seconds. A crawl of the web does not, and takes hours on
all cores: time enough for the disk to be full, the battery empty, the machine taken back by its cluster. This chapter
turns text of any size into the shards of chapter 03, in constant memory, on all cores. Whatever ends a run, the next
one goes on from there, and the shards are the same to the byte.

Is going on worth the trouble? *Predict.* A job takes 12 hours. The machine is taken away every 4 hours on average, at
random, and each time the job begins again from the start. After how many hours of work is it done, on average?
"""

# %%
#| default_exp prepare
#| doc sources: Documents from text, JSONL and parquet files of any size, in blocks that another run can go on from.
#| doc journal: What is on the disk so far, so that the run after one that was killed ends with the same bytes.
#| doc prepare: The command `prepare`: any text at any size into shards, in parallel, resumable.
import contextlib
import random
import signal
import tempfile
import warnings

from course.figures import real_text as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpus import stories

JOB, TAKEN_AFTER = 12, 4  # hours
STORIES = 4000  # this chapter's text
BLOCK = 50_000  # bytes that are encoded at once; the command takes a megabyte
VAL = TEST = 0.1  # of the documents
KILLS = 6
predict("16.1", "hours of work for a job that begins again", guess=None)

# %%
dice, jobs = random.Random(0), range(1, JOB + 1)


def hours_of_work(job: float) -> float:
    """All the hours spent on a job that begins again whenever the machine is taken away."""
    hours = 0.0
    while (left := dice.expovariate(1 / TAKEN_AFTER)) < job:
        hours += left
    return hours + job


means = [sum(hours_of_work(job) for _ in range(2000)) / 2000 for job in jobs]
print(f"a job of {JOB} hours takes {means[-1]:.0f}, on average")
answer("16.1", round(means[-1]))
show(
    figures.beginning_again(jobs, means, TAKEN_AFTER),
    alt="Hours of work over the job's length: beginning again grows exponentially, going on is a straight line",
)

# %% [markdown]
r"""
The expectation is τ(exp(T/τ) − 1) for T hours of work and a mean of τ. A job that goes on where it was needs T.

The chapter makes three modules. Their imports stand here, at the top, so that what you change below is what runs below.
"""

# %%
#| export sources
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from nanogpt.shards import file_sha256, split_of

# %%
#| export journal
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanogpt.files import save_json
from nanogpt.shards import HEADER_BYTES, SPLITS, check_shards, file_sha256, load_manifest
from nanogpt.shards import manifest_sha256, save_manifest, shard_header
from nanogpt.sources import Place, Source, read_blocks, size_of

# %%
#| export
import hashlib
import os
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex

from nanogpt.journal import Encoded, alone_in, finished, go_on
from nanogpt.shards import SPLITS, identity, split_of
from nanogpt.sources import Piece, Place, Source, documents_in, find_files, size_of
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer

# %% [markdown]
r"""
## Where a text may be cut

A document of a gigabyte must be cut: to be shared among cores, and so that a run can stop within it. But not just
anywhere, since the ids of two halves need not be those of the whole.

*Predict.* At how many places between two characters may `text` be cut so that the ids stay the same?
"""

# %%
documents = [story.text for story in stories(STORIES)]
tokenizer = BPETokenizer.train(documents[:300], 400)
text = "She won 1234 coins.\n\n  Then it's over."
predict("16.2", "places to cut", guess=None)
whole = tokenizer.encode(text)
good = [i for i in range(1, len(text)) if tokenizer.encode(text[:i]) + tokenizer.encode(text[i:]) == whole]


def marked(places) -> str:
    """The text with | at these places."""
    return "".join("|" * (i in places) + c.replace("\n", "↵") for i, c in enumerate(text))


print("may be cut at |:  ", marked(good), f"  ({len(good)} of {len(text) - 1} places)")
answer("16.2", len(good))

# %% [markdown]
r"""
With this tokenizer, on this text. Which of these places are safe for every text and every vocabulary with GPT-2's
pattern? A match of the pattern must end there in any case, and neither half may look different without the other.
Both hold before a space or newline that follows a visible character. Inside a run of white space they do not:
`\s+(?!\S)` leaves the last space of a run to the word after it, if there is one to be seen.
"""


# %%
#| export sources
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


# %%
cuts, cut = set(), len(text.encode())
while cut := last_cut(text.encode()[:cut]):
    cuts.add(len(text.encode()[:cut].decode()))
print("last_cut takes |:  ", marked(cuts))
assert cuts <= set(good), f"a cut at {sorted(cuts - set(good))} changes the ids"

# %% [markdown]
r"""
## Reading, from any place on

A *source* is a file or many. It is read in *pieces* of about a block that end at such a cut, at a line's end (JSONL), or
after blank lines (when each paragraph is a document, as in llm.c's TinyShakespeare). Where a piece ends depends on
nothing but where it begins: a file, and a byte in it, are all that a run must know to go on.
"""


# %%
#| export sources
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


# %%
#| export sources
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


# %% [markdown]
r"""
A file is hashed before it is read. A `.txt` file is one document, so its hash says whether it goes to train, val or
test, before its end is read. And a place remembers the hash of all files up to its own: no run goes on in a text that
was changed meanwhile.
"""


# %%
#| export sources
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


# %%
#| export sources
@dataclass(frozen=True)
class Place:
    """How far a source is read."""

    file: int = 0  # the number of the file to go on with
    at: int = 0  # the byte in it; for parquet the row
    read: int = 0  # bytes of all files up to here
    sha256: str = ""  # of all files up to this one


def size_of(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


# %%
#| export sources
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


# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
path = folder / "stories.jsonl"
path.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents), encoding="utf-8", newline="\n")
source = Source(path, [path], val=VAL, test=TEST, block=BLOCK)
blocks = list(read_blocks(source))
for pieces, place in blocks[:3]:
    print(
        f"{len(pieces[0].content):,} bytes; go on at byte {place.at:,} if the hash is still {place.sha256[:8]}"
    )

# %% [markdown]
r"""
*Check.* The law of resuming: from every place on, the rest is read as it would have been without a stop.
"""

# %%
for n, (_, place) in enumerate(blocks, 1):
    assert list(read_blocks(source, place)) == blocks[n:], f"from byte {place.at:,} on, the blocks are others"
print(f"the same blocks from each of {len(blocks)} places")

# %% [markdown]
r"""
A piece is bytes; its documents come out where it is encoded, on another core. What is wrong with a file is said with
the file's name and the line or byte.
"""


# %%
#| export sources
def document_in(line: bytes) -> str:
    """The document in a line of JSONL; none in an empty one. ValueError if it is something else."""
    try:
        text = json.loads(line)["text"] if line.strip() else ""
        text.encode()
        return text
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ValueError("not a JSON object with a string under 'text'") from None


# %%
#| export sources
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


# %% [markdown]
r"""
## Encoding

tiktoken encodes all documents of a block in one call. Each goes to the split that its hash says (chapter 03), after an
`<|endoftext|>`.
"""


# %%
#| export
def encode_texts(texts: list[tuple[bool, str]], encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` where a document begins. One call for all is faster than one for each."""
    joined = "".join(EOT + text if begins else text for begins, text in texts)
    if joined.count(EOT) == sum(begins for begins, _ in texts):  # else a document spells <|endoftext|> itself
        try:
            return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
        except ValueError:
            pass  # a run of white space that is too long for it (tiktoken 0.12 and later say so, earlier ones panic)
    ids = []
    for begins, text in texts:
        ids.append(np.array([eot] * begins, np.uint32))
        ids += [encoding.encode_to_numpy(part, disallowed_special=()) for part in cut_long_runs(text)]
    return np.concatenate(ids)


# %%
#| export journal
@dataclass
class Encoded:
    """What a block adds to a split."""

    tokens: np.ndarray  # uint16, with `<|endoftext|>` before each document
    documents: int
    bytes: int  # of text


# %%
#| export
def encode_pieces(pieces: list[Piece], encoding, eot: int, val: float, test: float) -> dict[str, Encoded]:
    """What the pieces add to each split that gets any of their documents."""
    texts, size = {split: [] for split in SPLITS}, dict.fromkeys(SPLITS, 0)
    for piece in pieces:
        for text in filter(None, documents_in(piece)):
            raw = text.encode()
            split = piece.split or split_of(hashlib.sha256(raw).digest(), val, test)
            texts[split].append((piece.kind != "text" or piece.start == 0, text))
            size[split] += len(raw)
    return {
        s: Encoded(encode_texts(held, encoding, eot).astype("<u2"), sum(b for b, _ in held), size[s])
        for s, held in texts.items()
        if held
    }


# %%
encode = partial(encode_pieces, encoding=tokenizer.to_tiktoken(), eot=tokenizer.eot, val=VAL, test=TEST)
for split, more in encode(blocks[0][0]).items():
    print(f"{split:5} {len(more.tokens):6,} tokens of {more.documents} documents; begins", more.tokens[:4])

# %% [markdown]
r"""
## Surviving: a journal

Tokens are appended to `.part` files, whose header is zeros: nobody takes them for shards. About once a second, when
the tokens have reached the disk, a *journal* is written: how far the source is read, and how long each part is. The
run that finds a journal cuts the parts back to those lengths and reads on from that place. The run before it may have
died at any moment.
"""


# %%
#| export journal
@dataclass
class Held:
    """What of a split is on the disk."""

    documents: int = 0
    bytes: int = 0  # of text
    shards: list[int] = field(default_factory=list)  # the tokens of each


@dataclass
class Journal:
    """How far a source is read, and what of it is on the disk: all that another run needs to go on."""

    out: Path
    made_of: dict  # source, tokenizer and options; with others nobody may go on
    place: Place = field(default_factory=Place)
    splits: dict[str, Held] = field(default_factory=lambda: {split: Held() for split in SPLITS})

    def parts(self) -> Iterator[tuple[Path, str, int]]:
        """The unfinished shards: path, split and tokens."""
        for split, held in self.splits.items():
            for i, n in enumerate(held.shards):
                yield self.out / f"{split}_{i:06d}.bin.part", split, n


# %%
#| export journal
class Journal(Journal):
    def append(self, encoded: dict[str, Encoded], place: Place) -> None:
        """Add a block to the last part of each split, or to a new one; `place` is where the block ended."""
        for split, more in encoded.items():
            held = self.splits[split]
            if not held.shards or held.shards[-1] >= self.made_of["shard_tokens"]:
                held.shards.append(0)
            new, name = held.shards[-1] == 0, f"{split}_{len(held.shards) - 1:06d}.bin.part"
            with open(self.out / name, "wb" if new else "ab") as file:
                file.write(bytes(HEADER_BYTES * new) + more.tokens.tobytes())
            held.shards[-1] += len(more.tokens)
            held.documents += more.documents
            held.bytes += more.bytes
        self.place = place

    def save(self) -> None:
        """Write journal.json, once the tokens that it speaks of have reached the disk; with a hash of itself."""
        for path, _, _ in self.parts():
            with open(path, "r+b") as file:
                os.fsync(file.fileno())
        said = {name: value for name, value in asdict(self).items() if name != "out"}
        save_json(self.out / "journal.json", said | {"sha256": manifest_sha256(said)})


# %%
out = folder / "parts"
out.mkdir(exist_ok=True)
journal = Journal(out, {"shard_tokens": 100})
sixty = {"train": Encoded(np.full(60, 7, "<u2"), documents=1, bytes=240)}


def sizes() -> str:
    return ", ".join(f"{path.name} {path.stat().st_size}" for path in sorted(out.glob("*.part")))


for n in range(1, 4):
    journal.append(sixty, Place(0, 240 * n))
journal.save()
print("bytes when the journal was written:", sizes())
journal.append(sixty, Place(0, 960))
print("when the run was killed:           ", sizes())
predict("16.3", "bytes of train_000001.bin.part after the next run's rewind", guess=None)


# %%
#| export journal
def shards_in(out: Path) -> list[Path]:
    """The files that bear the name of a shard, or of an unfinished one."""
    name = re.compile(r"(train|val|test)_\d{6,}\.bin(\.part)?")
    return [path for path in out.iterdir() if name.fullmatch(path.name)]


def remedy(out: Path) -> str:
    return f"choose another --out, or delete {out} if nothing else is in it"


class Journal(Journal):
    def rewind(self) -> None:
        """Bring the files back to what the journal says: a run that was killed had gone on after writing it."""
        for path in shards_in(self.out):
            if path.suffix == ".bin":
                os.replace(path, f"{path}.part")
        parts = {path: HEADER_BYTES + 2 * n for path, _, n in self.parts()}
        for path in {*shards_in(self.out), *self.out.glob(".*.json.*.tmp")} - parts.keys():
            path.unlink()
        for path, size in parts.items():
            if not path.exists() or path.stat().st_size < size:
                raise ValueError(f"{path} is shorter than journal.json says; {remedy(self.out)}")
            os.truncate(path, size)


# %%
#| export journal
class Journal(Journal):
    @classmethod
    def load(cls, out: Path) -> "Journal":
        """What `save` wrote; ValueError in one sentence if the file is damaged."""
        try:
            saved = json.loads((out / "journal.json").read_bytes())
            whole = saved.pop("sha256") == manifest_sha256(saved)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise ValueError(f"{out / 'journal.json'} is damaged; {remedy(out)}")
        splits = {split: Held(**held) for split, held in saved["splits"].items()}
        return cls(out, saved["made_of"], Place(**saved["place"]), splits)


# %%
Journal.load(out).rewind()
print("rewound:", sizes())
answer("16.3", (out / "train_000001.bin.part").stat().st_size)

# %% [markdown]
r"""
The journal carries a hash of itself: with one digit changed in it, the shards would be others.

At the end each shard gets its header and its name, and a manifest takes the journal's place. It also keeps the hash of
each file of the source.
"""


# %%
#| export journal
class Journal(Journal):
    def finish(self, source: Source) -> dict:
        """Give each shard its header and its name, then write the manifest. ValueError if there was no text."""
        if not list(self.parts()):
            (self.out / "journal.json").unlink()
            raise ValueError(f"{source.path} has no text: all its documents are empty")
        splits = {s: asdict(h) | {"tokens": sum(h.shards), "shards": []} for s, h in self.splits.items()}
        for path, split, n in self.parts():
            with open(path, "r+b") as file:
                file.write(shard_header(n))
                file.flush()
                os.fsync(file.fileno())
            splits[split]["shards"].append({"file": path.stem, "tokens": n, "sha256": file_sha256(path)})
            os.replace(path, path.with_suffix(""))
        manifest = save_manifest(self.out, self.made_of | {"source_sha256": source.hashes, "splits": splits})
        (self.out / "journal.json").unlink()
        return manifest


# %% [markdown]
r"""
Who finds a journal may go on only with the same source and options.
"""


# %%
#| export journal
def begin(out: Path, made_of: dict) -> Journal:
    """The journal to go on with. ValueError if `out` holds anything else."""
    if (out / "journal.json").exists():
        journal = Journal.load(out)
        if journal.place != Place():  # else nothing had come of it yet
            refuse_another(out, made_of, journal.made_of)
            return journal
    elif shards_in(out):
        raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
    return Journal(out, made_of)


def refuse_another(out: Path, made_of: dict, was: dict) -> None:
    """ValueError if what `out` holds was made of something else."""
    for key, now in made_of.items():
        if was.get(key) != now:
            raise ValueError(f"{out} holds shards whose {key} is {was.get(key)}, not {now}; {remedy(out)}")


# %% [markdown]
r"""
The loop, for whatever encodes the blocks: here one process, below all cores.
"""


# %%
#| export journal
def go_on(source: Source, out: Path, made_of: dict, encode_all: Callable, journal_seconds: float) -> dict:
    """Begin in `out`, or go on where another run was stopped, to the end; the manifest.

    encode_all: from pairs (pieces, place) makes pairs (what each split gets, place), in the same order.
    """
    journal = begin(out, made_of)
    journal.rewind()
    journal.save()
    saved, size = time.monotonic(), size_of(source.files)
    with tqdm(total=size, initial=journal.place.read, unit="B", unit_scale=True, disable=None) as bar:
        for encoded, place in encode_all(read_blocks(source, journal.place)):
            bar.update(place.read - journal.place.read)
            journal.append(encoded, place)
            if time.monotonic() > saved + journal_seconds:
                journal.save()
                saved = time.monotonic()
    journal.save()
    return journal.finish(source)


# %% [markdown]
r"""
*Check.* The law of this chapter: a run that is killed at any moment and begun again, however often, leaves the bytes of
one that was never stopped. What ends it here is no exception, after which Python would still tidy up, but `kill -9`
from outside, at random moments.
"""


# %%
def work(out: Path) -> dict:
    """The whole run in one process, with a journal every 30 ms."""
    out.mkdir(exist_ok=True)
    made_of = {"source": "stories", **identity(tokenizer), "shard_tokens": 100_000}
    return go_on(source, out, made_of, lambda blocks: ((encode(p), place) for p, place in blocks), 0.03)


def work_in_a_child(out: Path) -> int:
    """The same in a process of its own, whose number is returned."""
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        if child := os.fork():
            return child
    try:
        work(out)
    finally:
        os._exit(0)


# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
work(folder / "straight")
seconds = time.perf_counter() - start
print(f"never stopped: {seconds:.2f} s, {source.path.stat().st_size / 1e6 / seconds:.1f} MB/s in one process")
stops, out = [], folder / "killed"
for _ in range(KILLS if hasattr(os, "fork") else 0):  # Windows has none; the tests start processes there
    child = work_in_a_child(out)
    time.sleep(dice.uniform(0.1, 0.4) * seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if (out / "journal.json").exists():  # else it had just begun, or was done
        kept = sum(1024 + 2 * n for _, _, n in Journal.load(out).parts())
        stops.append((sum(path.stat().st_size for path in shards_in(out)) / 1e6, kept / 1e6))
if not (out / "manifest.json").exists():
    work(out)
for path in (folder / "straight").iterdir():
    assert path.read_bytes() == (out / path.name).read_bytes(), (
        f"{path.name} is not that of a run never stopped"
    )
print(f"killed {len(stops)} times; all {len(list(out.iterdir()))} files are the same to the byte")
show(
    figures.kills(stops, sum(path.stat().st_size for path in shards_in(out)) / 1e6),
    alt="Megabytes on the disk from kill to kill: each throws the next run back to the last journal, a little below",
)

# %% [markdown]
r"""
## As a command, on all cores: cells that you may skip

What follows is needed, and says nothing new about language models: files below a folder, parquet, locks, processes,
signals, a command line. Who is not curious goes on at the checkpoint.

*Files.*
"""


# %%
#| export sources
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


# %%
#| export sources
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


# %% [markdown]
r"""
*The pattern.* tiktoken runs it faster if it is written a little differently (`tests/bench_prepare.py` measures it). And
where a million white-space characters stand before a visible one, as in a broken log, the pattern's lookahead goes back
through all of them, on a stack that may not be so deep: the cell below shows what this version says. Then the text is
cut where the pattern cuts anyway, before the last character of the run.
"""


# %%
#| export
def load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer as tiktoken runs it in Rust, and as chapter 01 has it; OSError or ValueError in one sentence."""
    try:
        ours = BPETokenizer.gpt2() if str(name) == "gpt2" else BPETokenizer.load(name)
    except OSError as error:
        if str(name) != "gpt2":
            raise
        ours = "--tokenizer data/built/tokenizer.json, which chapter 01 makes"
        raise OSError(f"{error}; or give {ours}") from None
    except (ValueError, TypeError, LookupError):
        raise ValueError(f"{name} is no tokenizer that chapter 01 saved, or it is damaged") from None
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


# %% tags=["nbval-ignore-output"]
tokenizer.save(folder / "tokenizer.json")
encoding, _ = load_tokenizer(folder / "tokenizer.json")
log = "started" + " " * 1_200_000 + "done.\n"
try:
    print(f"tiktoken: {len(encoding.encode(log)):,} ids")
except ValueError as error:
    print(f"tiktoken: {str(error)[:76]}")
ids = encode_texts([(True, log)], encoding, tokenizer.eot)
same = ids[1:].tolist() == tokenizer.encode(log)
print(f"cut at the run: {len(ids) - 1:,} ids, the same as from chapter 01's encode: {same}")

# %% [markdown]
r"""
*A folder that is in use, or done.* Two runs that write into one folder would mix their shards. The system gives a lock to
one of them, and takes it back when the process ends, however that happens. And who finds all done looks whether it
still is: a shard may have been damaged or deleted, a text changed.
"""


# %%
#| export journal
@contextmanager
def alone_in(out: Path, who: str = "prepare", remedy: str = "choose another --out") -> Iterator[None]:
    """The folder, made if absent, is this process's alone while the block lasts; a lock ends with its process."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "ab") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"another {who} writes into {out}; wait, or {remedy}") from None
        except OSError:
            pass  # a file system without locks
        yield


# %%
#| export journal
def finished(source: Source, out: Path, made_of: dict) -> dict | None:
    """The manifest, if all is done; None if something is to do, as where a shard was damaged or deleted."""
    if not (out / "manifest.json").exists():
        return None
    try:
        manifest = load_manifest(out)
    except ValueError as error:
        raise ValueError(f"{error}, but first {remedy(out)}") from None
    refuse_another(out, made_of, manifest)
    for path, sha256 in zip(source.files, manifest["source_sha256"]):
        if file_sha256(path) != sha256:
            raise ValueError(f"{path} has changed since it was prepared; {remedy(out)}")
    try:
        check_shards(out, manifest)
    except (OSError, ValueError) as damage:
        print(f"{damage}: doing so", file=sys.stderr)
        Journal(out, made_of).save()
        (out / "manifest.json").unlink()
        return None
    (out / "journal.json").unlink(missing_ok=True)
    return manifest


# %% [markdown]
r"""
*Processes.* tiktoken lets go of Python's lock while it encodes, but the Python around it cannot, so blocks go to
processes. Three things are easy to get wrong. The pool's queue must be bounded, or a fast reader fills the memory with
blocks that wait (the tests compare the peak for a text and for one sixteen times as long). Processes must be *spawned*, as Windows and macOS do anyway, so what they run must be importable, and
the calling script needs `if __name__ == "__main__":`. And a worker must not outlive a parent that was killed.
"""


# %%
#| export
import argparse
import errno
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process


# %%
#| export
def start_worker(encode: Callable) -> None:
    """Runs once in each worker: keep what all blocks need, leave Ctrl-C to the parent, and do not outlive it."""
    global encode_here
    encode_here = encode
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def encode_in_worker(pieces: list[Piece]) -> dict[str, Encoded]:
    return encode_here(pieces)


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits until afterwards, where the system can do that (not on Windows)."""
    mask = getattr(signal, "pthread_sigmask", lambda how, signals: ())
    before = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})
    try:
        yield
    finally:
        mask(getattr(signal, "SIG_SETMASK", 0), before)


# %%
#| export
def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_blocks(blocks: Iterable, encode: Callable, workers: int) -> Iterator[tuple[dict, Place]]:
    """The blocks encoded, in order. At most 2 × workers + 1 are under way: memory does not grow with the source."""
    if workers == 1:
        yield from ((encode(pieces), place) for pieces, place in blocks)
        return
    # Spawned everywhere: a fork copies the locks that a notebook's other threads hold at that moment.
    pool, waiting = ProcessPoolExecutor(workers, get_context("spawn"), start_worker, (encode,)), deque()
    try:
        for pieces, place in blocks:
            with without_ctrl_c():  # submit may start a worker, which inherits this and is silent from birth
                waiting.append((pool.submit(encode_in_worker, pieces), place))
            if len(waiting) > 2 * workers:
                encoded, place = waiting.popleft()
                yield encoded.result(), place
        yield from ((encoded.result(), place) for encoded, place in waiting)
    except BrokenProcessPool:
        raise RuntimeError("a worker was killed (memory?); go on with fewer --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


# %%
#| export
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
    """Tokenize `source` into shards below `out`; the manifest. The same call goes on where a killed one stopped."""
    check_options(out := Path(out), val, test, workers, shard_tokens)
    source = Source(Path(source), find_files(Path(source)), paragraphs, val, test, block)
    encoding, ours = load_tokenizer(tokenizer)
    said = f"{source.path.resolve().name}, {len(source.files)} files, {size_of(source.files)} bytes"
    made_of = dict(source=said, tokenizer=Path(tokenizer).name, val=val, test=test, paragraphs=paragraphs)
    made_of |= dict(shard_tokens=shard_tokens, block=block, **identity(ours))
    encode = partial(encode_pieces, encoding=encoding, eot=ours.eot, val=val, test=test)
    workers = min(workers or cores(), 1 + size_of(source.files) // (4 * block))
    encode_all = partial(encode_blocks, encode=encode, workers=workers)
    with alone_in(out):
        return finished(source, out, made_of) or go_on(source, out, made_of, encode_all, journal_seconds)


# %%
#| export
def check_options(out: Path, val: float, test: float, workers: int | None, shard_tokens: int) -> None:
    """ValueError for a value that cannot work."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; it takes a folder")
    if not (val >= 0 and test >= 0 and val + test < 1):
        raise ValueError(f"--val {val} and --test {test} are fractions of all; leave some for train")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers {workers}: it takes at least one process")
    if not 1 <= shard_tokens <= 2_000_000_000:
        raise ValueError(f"--shard-tokens {shard_tokens}: from 1 to 2,000,000,000, since a header has int32")


# %% [markdown]
r"""
*The command* is a parser and a function; chapter 08's runner calls them, and turns what goes wrong into one line.
"""


# %%
#| export
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


# %%
#| export
def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, help="a .txt, .jsonl or .parquet file, or a folder of them")
    add("--out", type=Path, help="folder for the shards (default: data/built/ + the source's name)")
    add("--tokenizer", default="gpt2", help="gpt2 (default) or a tokenizer.json from chapter 01")
    add("--val", type=float, default=0.01, help="fraction of documents for validation (0.01)")
    add("--test", type=float, default=0.01, help="fraction of documents for testing (0.01)")
    add("--paragraphs", action="store_true", help="a .txt file's documents end at blank lines")
    add("--workers", type=int, help="processes that tokenize (default: one a core)")
    add("--shard-tokens", type=int, default=100_000_000, help="where a new shard begins (100000000)")
    return parser


# %%
#| export
DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt prepare`, its options parsed."""
    whole = args.source.resolve()
    out = args.out or Path("data/built", whole.name if whole.is_dir() else whole.stem)
    try:
        manifest = prepare(**vars(args) | {"out": out})
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command goes on from here, and what is in {out} is kept") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no room left for {out}; no shard is half-written; make room and go on") from None
    for split, held in manifest["splits"].items():
        n, shards = held["documents"], len(held["shards"])
        print(f"{split:5} {held['tokens'] - n:,} tokens + {n:,} <|endoftext|> in {shards} shards")
    print(f"in {os.fsencode(out).decode(errors='replace')}")


# %%
with contextlib.chdir(folder):
    run(
        parser().parse_args(
            ["stories.jsonl", "--tokenizer", "tokenizer.json", "--val", "0.1", "--workers", "1"]
        )
    )

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

1. **More places to cut.** Is it safe between a letter and a digit? Between punctuation and a letter? Let hypothesis look
   for counterexamples before you argue, as `tests/test_ch16_prepare.py` does.
2. **Break the law.** Let `rewind` leave the parts' lengths alone, or `save` do without `fsync`. Which of the two does
   the check above find, and what would have to happen to the machine for the other to show?
3. **Fewer journals.** At what interval between two journals is the work lost plus the time for writing them least, if
   the machine is taken away every 4 hours and a journal takes 20 ms? Compare with Young's formula √(2·20 ms·4 h).
4. **TinyShakespeare.** `course data tinyshakespeare`, then prepare it with and without `--paragraphs`. Explain the
   difference in the number of tokens. llm.c takes the first 32,768 tokens for validation: what does that measure
   that a split by hash does not?

## Further reading

- Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, §2.1: how GPT-2's text was chosen.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Penedo et al. 2024, *The FineWeb Datasets*, §3: what is filtered out of the web, and how each decision was measured.
- Young 1974, *A First Order Approximation to the Optimum Checkpoint Interval*: how often to write a journal.
- Pillai et al. 2014, *All File Systems Are Not Created Equal*, §2 and §4: what survives a crash, and in which order.
"""
