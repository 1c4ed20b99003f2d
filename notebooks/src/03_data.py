# %% [markdown]
r"""
# 03 · Data: shards, and batches that lose no token

Training asks one question over and over: give me the next batch. It is asked thousands of times an hour, by one process
or by a hundred, of a text that may not fit into memory, and after a crash it goes on at the very token where it
stopped. A loader that gets this wrong does not crash: it reads some tokens twice and others never. This chapter turns
text into files of ids, and files into batches of which each of these things can be proved.
"""

# %%
#| default_exp text.data
#| doc text.files: Files that are whole or not there.
#| doc text.shards: Token ids on disk in llm.c's format, with a manifest that proves them.
#| doc text.data: Batches from shards: no token lost, none seen twice, resumed at exactly the same token.
import tempfile
import time
from itertools import pairwise

from course.figures import data as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpora.corpus import stories
from nanogpt.text.tokenizer import BPETokenizer

# %%
#| export text.files
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# %%
#| export text.shards
import hashlib
import json
import re
from pathlib import Path

import numpy as np

from nanogpt.text.files import atomically, save_json  # for shards.py; this chapter builds them below

# %%
#| export text.data
from pathlib import Path

import numpy as np
import torch

from nanogpt.text.shards import described, document_starts, file_sha256, permutation, read_shard  # the same

# %% [markdown]
r"""
## What a model learns from

A text of *n* tokens is *n* − 1 questions with their answers: after these tokens, which one came next?
"""

# %%
STORIES, left_by_01 = 5000, Path("../data/built/tokenizer.json")
documents = [story.text for story in stories(STORIES)]
tokenizer = BPETokenizer.load(left_by_01) if left_by_01.exists() else BPETokenizer.train(documents, 1024)
ids = tokenizer.encode(" ".join(documents[:20]))
for n in range(1, 7):
    print(f"{tokenizer.decode(ids[:n]):25} → {tokenizer.decode(ids[n : n + 1])!r}, id {ids[n]}")

# %% [markdown]
r"""
All questions of a row are asked at once: a row of x is *T* tokens, and the same row of y is the tokens that come one
later. Where x has its t-th token, the model sees x up to there and is to say y's t-th (that it cannot see more is
chapter 04's work). A batch is `B` such rows, cut from one text:
"""

# %%
B, T = 2, 5
tokens = np.array(ids[: B * T + 1])
x, y = tokens[:-1].reshape(B, T), tokens[1:].reshape(B, T)
for name, row in ((f"{name}[{b}]", rows[b]) for b in range(B) for name, rows in (("x", x), ("y", y))):
    print(name, *(f"{tokenizer.decode([i]):>9}" for i in row.tolist()))

# %% [markdown]
r"""
Each of the first B·T tokens is an input once, each but the first a target once. This function hands both to PyTorch:
"""


# %%
#| export text.data
def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


# %% [markdown]
r"""
## Whole or not there

Tokenizing is slow, so it is done once and the ids are kept in files. A file that takes minutes to write must never be
there by half: the next run would take it for whole, and the good one before it would be gone. So every file of this
course is written aside, brought to the disk, and only then given its name, which the system does in one step. A reader
finds the old contents or the new ones.
"""


# %%
#| export text.files
@contextmanager
def atomically(path: str | os.PathLike) -> Iterator:
    """Open a file for writing bytes, which gets its name when it is whole and on the disk; its folder is made if absent.
    Whatever ends the block early leaves the old file as it was, and no other. Its mode stays, and a symbolic link.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process writes another one
    try:
        with open(aside, "wb") as file:
            if path.exists():
                shutil.copymode(path, aside)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def save_json(path: str | os.PathLike, contents: dict) -> None:
    """Write `contents` as JSON, atomically."""
    with atomically(path) as file:
        file.write((json.dumps(contents, indent=1) + "\n").encode())


# %%
folder = Path((scratch := tempfile.TemporaryDirectory(ignore_cleanup_errors=True)).name)  # gone at the end
save_json(folder / "note.json", {"written": "whole"})
with suppress(OSError), atomically(folder / "note.json") as file:
    file.write(b"half a")
    raise OSError("the disk is full")
print(*(f"{path.name}: {json.loads(path.read_bytes())}" for path in folder.iterdir()))

# %% [markdown]
r"""
## Shards: ids on disk

The format is llm.c's: a header of 256 int32, then the ids. No lengths, no index: a document begins where
`<|endoftext|>` stands, which is *before* each one, the first included.

*Predict.* FineWeb-Edu's sample has ten billion tokens. How many gigabytes is that, with as few bytes an id as GPT-2's
50,257 ids need?
"""

# %%
predict("03.1", "ten billion ids with as few bytes each as they need, in GB", guess=None)
for kind in map(np.dtype, ("int64", "int32", "uint16")):
    print(f"{kind.name:6} {10 * kind.itemsize} GB, ids up to {np.iinfo(kind).max:,}")
answer("03.1", 10 * kind.itemsize)

# %%
#| export text.shards
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


def write_shard(path: str | Path, tokens) -> None:
    """Write token ids as a shard in llm.c's format, atomically. ValueError if they do not fit into uint16."""
    tokens = np.asarray(tokens)
    header = shard_header(tokens.size)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > 65535:
        raise ValueError(f"{path}: a shard takes one row of ids from 0 to 65,535 (uint16)")
    with atomically(path) as file:
        file.write(header + tokens.astype("<u2").tobytes())


# %%
ids = [i for text in documents[:100] for i in (tokenizer.eot, *tokenizer.encode(text))]
path = folder / "stories" / "val_000000.bin"
write_shard(path, ids)
raw = path.read_bytes()
print(f"{len(ids):,} tokens, {len(raw):,} bytes = 1,024 + 2 · {len(ids):,}; <|endoftext|> is {tokenizer.eot}")
fields = [("magic", raw[:4]), ("version", raw[4:8]), ("tokens", raw[8:12]), ("zeros", raw[12:16]), ("", b"")]
fields += [(tokenizer.decode([i]), raw[1024 + 2 * n : 1026 + 2 * n]) for n, i in enumerate(ids[:6])]
show(figures.shard_bytes(fields), alt="A shard's first bytes: magic, version, tokens, zeros; then two an id")

# %% [markdown]
r"""
The bytes are little-endian: the magic number reads backwards, and in decimal it is a date, 2024-05-20. Reading is a
*memory map*: the file appears as an array, and the operating system fetches the pages that are touched. So opening
costs the same for a kilobyte and for twenty gigabytes (a cell below times it). Checked at once is what costs nothing:
magic, version, and that header and file agree on the length.
"""


# %%
#| export text.shards
def read_shard(path: str | Path) -> np.ndarray:
    """The tokens of a shard: a read-only uint16 memory map, of which nothing is read until it is used.

    ValueError if the file is not in llm.c's format, or not as long as its header says.
    """
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
        there = (file.seek(0, 2) - HEADER_BYTES) / 2
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    if n < 1 or there != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {there:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


# %%
for name, content in [("cut.bin", raw[:-7]), ("photo.bin", b"\x89PNG" + raw[4:])]:
    try:
        (folder / name).write_bytes(content)
        read_shard(folder / name)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
## A manifest that proves them

A flipped bit passes: the length is right and the id valid. And ids do not say which tokenizer made them. So a folder of
shards has a `manifest.json` with each file's SHA-256, the tokenizer's fingerprint, and a hash of the manifest
itself. What it says must fit together: sums of tokens, plain file names, none listed twice.
"""


# %%
#| export text.shards
def file_sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def manifest_sha256(manifest: dict) -> str:
    """Hex SHA-256 of all that a manifest says, but for this hash itself."""
    said = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def identity(tokenizer) -> dict:
    """What a manifest says of the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


# %%
#| export text.shards
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
#| export text.shards
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
Training opens shards through it, and reads nothing that is not what it was when it was written.
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
listed = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
splits = {"val": {"tokens": len(ids), "shards": [listed]}}
save_manifest(path.parent, {"source": "100 stories", **identity(tokenizer), "splits": splits})
path.write_bytes(raw[:1100] + bytes([raw[1100] ^ 1]) + raw[1101:])  # one bit
for split, fingerprint in (("val", "0123456789"), ("train", None), ("val", None)):
    try:
        open_shards(path.parent, split, fingerprint)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))
_ = path.write_bytes(raw)

# %% [markdown]
r"""
## Train, validation, test: ask the document

Validation losses can be compared over months only if the validation text stays the same. Shuffle and take a
tenth, and every document added changes the split: what was validation yesterday is trained on today. So nothing
decides but the document itself: its SHA-256, read as a number between 0 and 1.
"""


# %%
#| export text.shards
#| blank split_of: read eight bytes of the hash as a number from 0 to 1 and compare it with the fractions
def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions."""
    u = int.from_bytes(sha256[:8], "big") / 2**64
    return "val" if u < val else "test" if u < val + test else "train"


# %%
def by_hash(texts: list[str]) -> set[str]:
    return {t for t in texts if split_of(hashlib.sha256(t.encode()).digest(), 0.1, 0.1) == "val"}


def by_shuffling(texts: list[str]) -> set[str]:
    return set(np.random.default_rng(0).permutation(texts)[: len(texts) // 10])


for split in (by_shuffling, by_hash):
    val, later = split(documents[: STORIES * 4 // 5]), split(documents)
    print(f"{split.__name__:12} {len(val)} documents, {len(val - later)} of them trained on later")

# %% [markdown]
r"""
Equal documents fall on the same side, so an exact duplicate cannot leak. One that differs in a single space can
(Lee et al. 2022, §4).

## One shard, one reader

Read a shard from its beginning, B·T tokens a step, and x and y are as above. Read it again for the next *epoch*, and
its documents should come in another order. That order is to be a function of (seed, epoch): then where any token of
the stream stands can be computed, and nothing has to be remembered to go on after a crash.
"""


# %%
#| export text.shards
#| blank permutation: draw n raw numbers with this key and sort their indices by them
def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, numbers from 0 on.

    It sorts PCG64's raw bits: NumPy promises never to change those, but not what `Generator.permutation` makes of
    them (NEP 19), and a run may be resumed years later.
    """
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer one may stand."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


# %%
#| export text.data
def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> tuple[np.ndarray, np.ndarray]:
    """An order for a shard's documents: where each ends in it, and by how much it was moved to get there."""
    starts = document_starts(tokens, eot)
    order = permutation(len(starts), *key)
    lengths = np.diff(starts, append=len(tokens))[order]
    ends = np.cumsum(lengths)
    return ends, starts[order] - (ends - lengths)


def read_shuffled(
    tokens: np.ndarray, ends: np.ndarray, moved: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """Tokens start to stop, or to its end, of a shard in the order of `shuffle_documents`, taken at once."""
    stop = min(stop, len(tokens))
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    counts = np.diff(np.minimum(ends[first : last + 1], stop), prepend=start)  # how many from each document
    return tokens[np.arange(start, stop) + np.repeat(moved[first : last + 1], counts)]


# %%
shard = np.array([9, 1, 1, 1, 9, 2, 9, 3, 3, 9, 4, 4, 4])  # four documents; here 9 is <|endoftext|>
for epoch in range(3):
    print(f"epoch {epoch}:", read_shuffled(shard, *shuffle_documents(shard, 9, epoch), 0, 13))

# %% [markdown]
r"""
No loop over tokens or documents: where every token of a batch stands in the file is computed, and one indexing
operation takes them all.

## Many shards, many readers

With several processes, *ranks*, each reads a different part of every step. Often a loader is written like this: the
shards are read one after another, each rank begins at its own offset, and everybody advances by what all ranks read
together. *Find the bugs.* Both show where a shard ends, and the worse one only with more than one rank.
"""


# %%
class Loader:  # next_batch() is the x of a step, as a range of token numbers
    def __init__(self, shards: list[range], BT: int, rank: int, world_size: int):
        self.shards, self.BT, self.rank, self.world_size = shards, BT, rank, world_size
        self.shard, self.position = 0, BT * rank

    def next_batch(self) -> range:
        tokens = self.shards[self.shard][self.position : self.position + self.BT]
        self.position += self.BT * self.world_size
        if self.position + self.BT * self.world_size + 1 > len(self.shards[self.shard]):  # no room for a step
            self.shard = (self.shard + 1) % len(self.shards)
            self.position = self.BT * self.rank
        return tokens


# %%
FIRST, TOTAL, BT, RANKS = 43, 80, 4, 2  # tokens in the first shard, and in both; a rank's tokens a step
loaders = [Loader([range(FIRST), range(FIRST, TOTAL)], BT, rank, RANKS) for rank in range(RANKS)]
reads = [[loader.next_batch() for loader in loaders] for _ in range(TOTAL // (RANKS * BT) - 1)]
alt = "Rank 0 reads the first shard one step longer than rank 1; from then on the ranks are apart, and the shards' last tokens are not read"
show(figures.reads(reads, [FIRST], "a loader with a bug"), alt)
apart = [step for step, ranks in enumerate(reads) if any(b.start != a.stop for a, b in pairwise(ranks))]
times = np.bincount([t for ranks in reads for tokens in ranks for t in tokens], minlength=TOTAL)
print(f"apart in steps {apart}; read", *(f"{n} times: {(times == n).sum()} tokens" for n in np.unique(times)))

# %% [markdown]
r"""
Rank 0 still finds room for a step where rank 1, standing further on, does not. They change shard at different
steps, and then do not stand side by side. Nothing crashes. And the end of each shard, too short for a step, is
never read.

The cure is that no rank decides anything. Let there be one endless stream of tokens, the same for all ranks: epoch
after epoch, each with its shards and their documents in another order. Step k takes the next `world_size * B * T` of
them, rank r the r-th part, across the ends of shards and epochs. Then a law can hold: **each token is an input
exactly once an epoch.** (Shards without a manifest beside them are taken for GPT-2's, as llm.c's are.)
"""


# %%
#| export text.shards
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
class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks so that each token is an input once an epoch.

    Each epoch shuffles the shards, and the documents within each, by (seed, epoch). Step k takes the next
    world_size * B * T tokens, across the ends of epochs, and rank r the r-th part. A row may begin within a document.
    """

    counts = "tokens"

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        if min(B, T) < 1 or rank not in range(world_size):
            raise ValueError(
                f"a stream needs B, T >= 1, 0 <= rank < world_size; got {B, T, rank, world_size}"
            )
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.position = 0  # what all ranks together have consumed
        self.paths = sorted(map(Path, shards))
        self.vocab_size, self.eot, self._sha256 = described(self.paths)
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.epoch_length, self._order = sum(map(len, self.tokens)), {}


# %% [markdown]
r"""
A place in the stream is an epoch, a shard and an offset. A batch may begin in one shard and end in another.
"""


# %%
#| export text.data
#| blank BatchStream.read: find the shard that holds start, take what you need of it, go on with the next one
class BatchStream(BatchStream):
    def read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, offset = divmod(start, self.epoch_length)
            for i in permutation(len(self.tokens), self.seed, epoch, 0).tolist():
                if offset < len(self.tokens[i]):
                    break
                offset -= len(self.tokens[i])
            if (key := (self.seed, epoch, i)) not in self._order:  # the last shard's is kept
                self._order = {key: shuffle_documents(self.tokens[i], self.eot, self.seed, epoch, i + 1)}
            parts.append(read_shuffled(self.tokens[i], *self._order[key], offset, offset + n))
            start, n = start + len(parts[-1]), n - len(parts[-1])
        return np.concatenate(parts)


# %%
#| export text.data
#| blank BatchStream.next_batch: x is each row without its last token, y is each row without its first
class BatchStream(BatchStream):
    def rows(self) -> np.ndarray:
        """This rank's next rows, (B, T + 1): the last token of each is the first of the next."""
        n, step = self.B * self.T, self.world_size * self.B * self.T
        if self.epoch_length <= step:
            needed = f"a step takes {self.world_size} × B={self.B} × T={self.T} + 1; lower them, or add text"
            raise ValueError(f"{self.paths[0].parent}: {self.epoch_length:,} tokens, but {needed}")
        start, self.position = self.position + self.rank * n, self.position + step
        tokens = self.read(start, n + 1)
        return np.stack([tokens[at : at + self.T + 1] for at in range(0, n, self.T)])

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        rows = self.rows()
        if rows.max() >= self.vocab_size:
            what = f"id {rows.max()}, but their vocabulary has {self.vocab_size}"
            raise ValueError(f"the shards in {self.paths[0].parent} hold {what}; prepare them again")
        return to_device(rows[:, :-1], rows[:, 1:], self.device)


# %% [markdown]
r"""
To see where a token comes from, let its id be its place: the numbers 0, 1, 2 … with GPT-2's `<|endoftext|>`, 50,256,
where a document begins. Which one that is, the next token tells.
"""


# %%
def write_places(folder: Path, *shards: list[int]) -> list[Path]:  # shards: the lengths of their documents
    assert sum(map(sum, shards)) <= 50256, "too many tokens for GPT-2's ids to be their places; take fewer"
    place, paths = 0, [folder / f"train_{i:06d}.bin" for i in range(len(shards))]
    for path, lengths in zip(paths, shards):
        places = place + np.arange(sum(lengths))
        write_shard(path, np.where(np.isin(places, place + np.cumsum([0, *lengths])), 50256, places))
        place += sum(lengths)
    return paths


two = write_places(folder / "two", *([10] * (n // 10) + [n % 10] for n in (FIRST, TOTAL - FIRST)))
print("tokens 33 to 41 of the stream:", BatchStream(two, 1, 1).read(33, 8))

# %%
streams = [BatchStream(two, 1, BT, rank, RANKS) for rank in range(RANKS)]
batches = [[stream.next_batch() for stream in streams] for _ in range(TOTAL // (RANKS * BT) + 1)]
reads = [[torch.where(x == 50256, y - 1, x).flatten().tolist() for x, y in ranks] for ranks in batches]
alt = "Both ranks are always in the same document or its neighbour; the shards are read completely; the last step goes on with the next epoch"
show(figures.reads(reads, [FIRST], "BatchStream"), alt)

# %% [markdown]
r"""
*Check.* The law, on documents as long as stories: three ranks, a batch that divides
nothing evenly, two epochs. And the tokens of a step do not depend on how many ranks share them: a run may go on with
another number of GPUs.
"""

# %%
B, T, RANKS = 5, 77, 3
lengths = [len(tokenizer.encode(text)) + 1 for text in documents[:300]]
total, law = sum(lengths), write_places(folder / "law", lengths[:120], lengths[120:])
streams, batches = [BatchStream(law, B, T, rank, RANKS) for rank in range(RANKS)], []
alone = BatchStream(law, B * RANKS, T)
while alone.position <= 2 * total:
    batches += [stream.next_batch() for stream in streams]
    together, one = torch.cat([x for x, _ in batches[-RANKS:]]), alone.next_batch()[0]
    assert torch.equal(together, one), "the ranks together do not read what one reader reads"
x, y = (torch.cat(side).flatten() for side in zip(*batches))
assert torch.equal(y[:-1], x[1:]), "a target is not the next input"
for epoch in torch.where(x == 50256, y - 1, x)[: 2 * total].view(2, total):
    assert torch.equal(epoch.sort().values, torch.arange(total)), "a token was read twice, or never"
print(f"two epochs of {total:,} tokens: each read once an epoch, and every target is the next input")

# %% [markdown]
r"""
A stream resumes at the exact token from a seed and one number. The state also says of which shards it speaks, by their
hashes: a name such as train_000000.bin stands in many folders.
"""


# %%
#| export text.data
class BatchStream(BatchStream):
    @property
    def epoch(self) -> int:
        return self.position // self.epoch_length

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this place, with any B, T and number of ranks."""
        self._sha256 = self._sha256 or [file_sha256(path) for path in self.paths]
        here = {"counts": self.counts, "seed": self.seed, "position": self.position}
        return here | {"shards": self._sha256}

    def load_state_dict(self, state: dict) -> None:
        for what, here in self.state_dict().items():
            if what not in state or (what in ("counts", "shards") and state[what] != here):
                raise ValueError(
                    f"{self.paths[0].parent} is not what this state was saved for: see its {what!r}"
                )
        self.seed, self.position = state["seed"], state["position"]


# %%
stream, again = BatchStream(law, B, T, seed=7), BatchStream(law, B, T)
for _ in range(100):
    stream.next_batch()
again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
assert torch.equal(stream.next_batch()[0], again.next_batch()[0]), "the resumed stream goes on elsewhere"
print(f"both are at token {again.position:,} of shards", *(sha[:8] for sha in again.state_dict()["shards"]))

# %% [markdown]
r"""
Is it fast enough? Training GPT-2's 124M parameters takes some 0.8 GFLOP a token, so a GPU at 400 TFLOP/s eats half a
million tokens a second. Many loaders use worker processes. *Predict.* Does this one need them?
"""

# %% tags=["nbval-ignore-output"]
SIZE, STEPS, EATEN = 25_000_000, 100, 400e12 / 0.8e9  # tokens in a shard; steps; tok/s of that GPU
dice, large = np.random.default_rng(0), folder / "large" / "train_000000.bin"
write_shard(large, np.where(dice.random(SIZE) < 1 / 500, 50256, dice.integers(0, 50256, SIZE)))
start, _, opened = time.perf_counter(), read_shard(large), time.perf_counter()
stream = BatchStream([large], B=16, T=1024)
stream.next_batch()  # finds and shuffles the shard's documents, once an epoch
first, _ = time.perf_counter(), [stream.next_batch() for _ in range(STEPS)]
times = STEPS * 16 * 1024 / (time.perf_counter() - first) / EATEN
print(f"opened in {(opened - start) * 1e6:.0f} µs; {times * EATEN / 1e6:.1f} million tok/s,", end=" ")
print(f"{times:.0f} times that GPU's:", "no worker is needed" if times > 2 else "a worker would help")

# %% [markdown]
r"""
## Rows that begin with a document

A row of `BatchStream` begins where it falls, mostly within a story whose names and counts are out of sight.
*Predict.* In rows of 128 tokens cut at random, which share of all tokens belongs to a story that began before the row?
"""

# %%
predict("03.2", "tokens whose story began before their row, T = 128, in percent", guess=None)


# %%
def unseen(T: int) -> float:
    return sum(min(left, T) / T for n in lengths for left in range(n)) / sum(lengths)


print(f"stories have {min(lengths)} to {max(lengths)} tokens; share whose story began before the row:")
print("\n".join(f"T = {T:4}: {unseen(T):4.0%}" for T in (32, 64, 128, 256, 1024)))
answer("03.2", 100 * unseen(128))

# %% [markdown]
r"""
No model can know what such tokens depend on, so the floor of such rows lies above chapter 02's. The second stream
begins every row with a document, as nanochat's does, and chapter 07 trains on it. It differs from `BatchStream` in
what a row is, and in nothing else. (Of documents much longer than T it would read only the beginnings: real text is
better packed.)
"""


# %%
#| export text.data
class DocumentStream(BatchStream):
    """Batches whose rows each begin with a document, so that a row sees all facts of its first one.

    A row runs on for T tokens into the documents behind, from its shard's end to its beginning. In an epoch every
    document begins one row, in an order that depends on (seed, epoch); ranks take turns with B rows. What lies more
    than T tokens into a document is not read. Opening reads all shards once, to find the documents.
    """

    counts = "rows"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        starts = [np.flatnonzero(tokens == self.eot) for tokens in self.tokens]
        self.starts, self.ends = np.concatenate(starts), np.cumsum([len(found) for found in starts])
        self.epoch_length = len(self.starts)
        if not self.epoch_length:
            raise ValueError(f"{self.paths[0].parent}: no document begins in these shards")


# %%
#| export text.data
class DocumentStream(DocumentStream):
    def rows(self) -> np.ndarray:
        first, rows = self.position + self.rank * self.B, []
        for epoch, number in (divmod(n, self.epoch_length) for n in range(first, first + self.B)):
            if (key := (self.seed, epoch)) not in self._order:
                self._order = {key: permutation(self.epoch_length, *key)}
            document = self._order[key][number]
            tokens = self.tokens[np.searchsorted(self.ends, document, side="right")]
            rows.append(tokens.take(self.starts[document] + np.arange(self.T + 1), mode="wrap"))
        self.position += self.world_size * self.B
        return np.stack(rows)


# %%
for kind in (BatchStream, DocumentStream):
    print(f"{kind.__name__}:")
    for row in kind([path], B=3, T=12).next_batch()[0].tolist():
        print("  ", tokenizer.decode(row))

# %% [markdown]
r"""
*Check.* Its law: in every epoch each document begins one row, whatever the number of ranks.
"""

# %%
n, rows = len(lengths), []
streams = [DocumentStream(law, B, T, rank, RANKS, seed=3) for rank in range(RANKS)]
while streams[0].epoch < 2:
    for x, y in (stream.next_batch() for stream in streams):
        assert (x[:, 0] == 50256).all(), "a row does not begin with a document"
        rows += y[:, 0].tolist()  # which one, the token after <|endoftext|> says
for epoch in (rows[:n], rows[n : 2 * n]):
    assert len(set(epoch)) == n, "a document began two rows of an epoch, or none"
print(f"{n} documents: each begins one row an epoch, in another order: {rows[:n] != rows[n : 2 * n]}")

# %%
predictions("03")

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("03")

# %% [markdown]
r"""
## Exercises

`course exercises release 03` writes these as a notebook to `released/`; `course check 03` runs their visible checks.

- **03-1** Ranks that part company, 25 minutes: mend `Loader`, so that no token is lost and no rank decides.
- **03-2** A resume that reads the wrong rows, 20 minutes: mend it, as two repositories had to.
- **03-3** A shard, byte by byte, 15 minutes: sizes, places, and what comes back of an id that is too large.
- **03-4** How often is a token learned?, 30 minutes: count what rows that begin with a document read and leave out.
- **03-5** A check for loaders, 40 minutes: write the check that finds lost and repeated tokens.
- **03-6** Six in place of eight, 10 minutes: say what changes when a run goes on with fewer GPUs.

To explore:

- **Rows and what they leave out.** Which share of the stories' tokens does `DocumentStream` never read as a target at
  T = 32, and how often does it read the others in an epoch? Which documents of a web text does it favour?
- **One bit more.** Flip one bit of a manifest, in a digit of a token count. What does `open_shards` say? Now also mend
  the manifest's own hash. What is still found, and what is not?

## Further reading

- The format: llm.c, `dev/data/data_common.py` (writing) and `llmc/dataloader.h` (reading).
- Rows that begin with a document: nanochat, `nanochat/dataloader.py`, which also chooses the documents of a row so
  that little is cut off, and says how much still is.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Ding et al. 2024, *Fewer Truncations Improve Language Modeling*, §2: what packing costs, and a better packing.
- NumPy's NEP 19: which random numbers are promised to stay the same.
"""
