# %% [markdown]
r"""
# 03 · Data: shards, and batches that lose no token

Training asks one question over and over: give me the next batch. It is asked thousands of times an hour, by one process
or by a hundred, of a text that may not fit into memory, and after a crash it goes on at the very token where it
stopped. A loader that gets this wrong does not crash: it reads some tokens twice and others never. This chapter turns
text into files of ids, and files into batches of which each of these things can be proved.
"""

# %%
#| default_exp data
#| doc files: Files that are whole or not there.
#| doc shards: Token ids on disk in llm.c's format, with a manifest that proves them.
#| doc data: Batches from shards: no token lost, none seen twice, resumed at exactly the same token.
import tempfile
import time
from itertools import pairwise

from course.figures import data as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpus import stories
from nanogpt.tokenizer import BPETokenizer

# %%
#| export files
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# %%
#| export shards
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanogpt.files import atomically, save_json  # for shards.py; this chapter builds them below

# %%
#| export data
from functools import cached_property
from numbers import Integral
from pathlib import Path

import numpy as np
import torch

from nanogpt.shards import described, document_starts, file_sha256, permutation, read_shard  # the same

# %% [markdown]
r"""
## What a model learns from

A text of *n* tokens is *n* − 1 questions with their answers: after these tokens, which one came next?
"""

# %%
STORIES = 5000
documents = [story.text for story in stories(STORIES)]
left_by_01 = Path("../data/built/tokenizer.json")
tokenizer = BPETokenizer.load(left_by_01) if left_by_01.exists() else BPETokenizer.train(documents, 1024)
ids = tokenizer.encode(documents[0])
words = [tokenizer.decode([i]) for i in ids]
for n in range(1, 7):
    print(f"{ids[n - 1]:4} {''.join(words[:n]):32} → {words[n]!r}, which is {ids[n]}")

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
for b in range(B):
    print(f"x[{b}]", *(f"{tokenizer.decode([i]):>9}" for i in x[b].tolist()))
    print(f"y[{b}]", *(f"{tokenizer.decode([i]):>9}" for i in y[b].tolist()), "\n")

# %% [markdown]
r"""
Each of the first B·T tokens is an input once, each but the first a target once. This function hands both to PyTorch:
"""


# %%
#| export data
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
#| export files
@contextmanager
def atomically(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it gets its name when it is whole and on the disk. The folder is made if absent.

    Whatever ends the block early leaves the old file as it was, and no other. A file that is replaced keeps its
    mode; a symbolic link stays one, and the file that it points to is replaced.
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
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # for what is only tried out here
folder = Path(scratch.name)
save_json(folder / "note.json", {"written": "whole"})
try:
    with atomically(folder / "note.json") as file:
        file.write(b'{"written": ')
        raise OSError("the disk is full")
except OSError as error:
    print(f"{error}; in the folder: {[path.name for path in folder.iterdir()]}, which says", end=" ")
    print(json.loads((folder / "note.json").read_bytes()))

# %% [markdown]
r"""
## Shards: ids on disk

The format is llm.c's: a header of 256 int32, then the ids. No lengths, no index: a document begins where
`<|endoftext|>` stands, which is *before* each one, the first included.

*Predict.* FineWeb-Edu's sample has ten billion tokens. How many gigabytes is that with the eight bytes an id that
torch wants for an index? With as few as GPT-2's 50,257 ids need?
"""

# %%
predict("03.1", "ten billion ids with eight bytes each, in GB", guess=None)
predict("03.2", "with as few bytes as they need, in GB", guess=None)

# %%
for name in ("int64", "int32", "uint16"):
    size, most = 10e9 * np.dtype(name).itemsize / 1e9, np.iinfo(name).max
    print(f"{name:6} {size:3.0f} GB, ids up to {most:,}")
answer("03.1", 10 * np.dtype("int64").itemsize)
answer("03.2", 10 * np.dtype("uint16").itemsize)

# %%
#| export shards
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


def write_shard(path: str | os.PathLike, tokens: Iterable[int]) -> None:
    """Write token ids as a shard in llm.c's format, atomically. ValueError if they do not fit into uint16."""
    tokens = np.asarray(tokens)
    header = shard_header(tokens.size)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > 65535:
        raise ValueError(f"{path}: a shard takes one row of ids from 0 to 65,535 (uint16)")
    with atomically(path) as file:
        file.write(header + tokens.astype("<u2").tobytes())


# %%
ids = [i for text in documents[:3] for i in (tokenizer.eot, *tokenizer.encode(text))]
write_shard(folder / "three.bin", ids)
raw = (folder / "three.bin").read_bytes()
print(f"{len(ids)} tokens, {len(raw):,} bytes = 1,024 + 2 · {len(ids)}; <|endoftext|> is {tokenizer.eot}")
fields = [("magic", raw[:4]), ("version", raw[4:8]), ("tokens", raw[8:12]), ("zeros", raw[12:16]), ("", b"")]
fields += [(tokenizer.decode([i]), raw[1024 + 2 * n : 1026 + 2 * n]) for n, i in enumerate(ids[:6])]
show(
    figures.shard_bytes(fields),
    alt="The first bytes of a shard: magic, version, number of tokens, zeros up to byte 1024, then two bytes for each id",
)

# %% [markdown]
r"""
The bytes are little-endian: the magic number reads backwards, and in decimal it is a date, 2024-05-20. Reading is a
*memory map*: the file appears as an array, and the operating system fetches the pages that are touched. So opening
costs the same for a kilobyte and for twenty gigabytes. Checked at once is what costs nothing: magic, version, and
that header and file agree on the length.
"""


# %%
#| export shards
def read_shard(path: str | os.PathLike) -> np.ndarray:
    """The tokens of a shard: a read-only uint16 memory map, of which nothing is read until it is used.

    ValueError if the file is not in llm.c's format, or not as long as its header says.
    """
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
        there = (file.seek(0, os.SEEK_END) - HEADER_BYTES) / 2
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    if n < 1 or there != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {there:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


# %%
print(tokenizer.decode(read_shard(folder / "three.bin")[:40]))
for name, content in [("cut.bin", raw[:-7]), ("photo.bin", b"\x89PNG" + raw[4:])]:
    (folder / name).write_bytes(content)
    try:
        read_shard(folder / name)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %%
LARGE = 25_000_000  # tokens, in documents of about 500
noise = np.random.default_rng(0).integers(0, 50_257, LARGE, dtype=np.uint16)
noise[np.random.default_rng(1).integers(0, LARGE, LARGE // 500)] = 50256
write_shard(folder / "large" / "train_000000.bin", noise)
start = time.perf_counter()
tokens = read_shard(folder / "large" / "train_000000.bin")
opened = time.perf_counter()
some = tokens[LARGE // 2 : LARGE // 2 + 8192].sum()
touched = time.perf_counter()
whole = np.fromfile(folder / "large" / "train_000000.bin", "<u2")
print(f"open {(opened - start) * 1e6:.0f} µs, use 8,192 tokens {(touched - opened) * 1e6:.0f} µs, ")
print(
    f"read the whole file of {2 * LARGE / 1e6:.0f} million bytes instead {(time.perf_counter() - touched) * 1e3:.0f} ms"
)

# %% [markdown]
r"""
## A manifest that proves them

A flipped bit passes: the length is right and the id valid. And ids do not say which tokenizer made them. So a folder of
shards has a `manifest.json` with each file's SHA-256, the tokenizer's fingerprint, and a hash of the manifest
itself. What it says must fit together: sums of tokens, plain file names, none listed twice.
"""


# %%
#| export shards
def file_sha256(path: str | os.PathLike) -> str:
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
#| export shards
def manifest_fault(manifest: dict) -> str | None:
    """What is wrong with a manifest, in a few words, or None."""
    try:
        splits = manifest["splits"]
        shards = [shard for split in splits.values() for shard in split["shards"]]
        names, sizes = [shard["file"] for shard in shards], [shard["tokens"] for shard in shards]
        sums = [sum(shard["tokens"] for shard in split["shards"]) for split in splits.values()]
        right = {
            "its own hash": manifest["sha256"] == manifest_sha256(manifest),
            "source or fingerprint": "source" in manifest and isinstance(manifest["fingerprint"], str),
            "eot or vocab_size": 0 <= manifest["eot"] < manifest["vocab_size"] <= 65536,
            "a split's name": set(splits) <= set(SPLITS),
            "a file's name": all(re.fullmatch(r"\w[\w.-]*", name) for name in names),
            "a file listed twice": len(set(names)) == len(names),
            "a file's hash": all(re.fullmatch("[0-9a-f]{64}", shard["sha256"]) for shard in shards),
            "a file's tokens": all(type(size) is int and size > 0 for size in sizes),
            "a sum of tokens": sums == [split["tokens"] for split in splits.values()],
        }
        return next((what for what in right if not right[what]), None)
    except (LookupError, TypeError, AttributeError) as error:
        return f"no {error}" if isinstance(error, KeyError) else "not in a manifest's form"


# %%
#| export shards
def save_manifest(folder: str | os.PathLike, manifest: dict) -> dict:
    """Write folder/manifest.json with a hash of itself, atomically; returns it. ValueError if it cannot be right."""
    manifest = manifest | {"sha256": manifest_sha256(manifest)}
    if fault := manifest_fault(manifest):
        raise ValueError(f"{folder}: this manifest cannot be right ({fault})")
    save_json(Path(folder) / "manifest.json", manifest)
    return manifest


def load_manifest(folder: str | os.PathLike) -> dict:
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
#| export shards
def check_shards(folder: str | os.PathLike, manifest: dict, *splits: str) -> None:
    """Compare all bytes of these splits' shards, or of all, with the manifest. ValueError names the first damage."""
    for split in splits or manifest["splits"]:
        for shard in manifest["splits"][split]["shards"]:
            path = Path(folder) / shard["file"]
            if not path.exists():
                raise ValueError(f"{path} is gone, and its manifest lists it; prepare it again")
            if len(read_shard(path)) != shard["tokens"] or file_sha256(path) != shard["sha256"]:
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")


def open_shards(folder: str | os.PathLike, split: str, fingerprint: str | None = None) -> list[Path]:
    """The paths of a split's shards, after comparing all their bytes with the manifest beside them.

    fingerprint: the tokenizer's; ValueError if the shards were made with another.
    """
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
path = folder / "small" / "val_000000.bin"
write_shard(path, ids)
listed = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
splits = {"val": {"tokens": len(ids), "shards": [listed]}}
manifest = save_manifest(path.parent, {"source": "three stories", **identity(tokenizer), "splits": splits})
print([shard.name for shard in open_shards(path.parent, "val", tokenizer.fingerprint)])
path.write_bytes(raw[:1100] + bytes([raw[1100] ^ 1]) + raw[1101:])  # one bit
for split, fingerprint in (("val", "0123456789"), ("train", None), ("val", None)):
    try:
        open_shards(path.parent, split, fingerprint)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))
for change in ({"eot": 7}, {"splits": {"val": {"tokens": 9, "shards": [listed | {"file": "../val.bin"}]}}}):
    print("a manifest with", *change, "changed:", manifest_fault(manifest | change), end="; ")
    sealed = manifest | change | {"sha256": manifest_sha256(manifest | change)}
    print("and sealed again:", manifest_fault(sealed))

# %% [markdown]
r"""
(A seal that anybody can renew proves no honesty, only that nothing changed by accident: the first change passes then.)

## Train, validation, test: ask the document

Validation losses can be compared over months only if the validation text stays the same. Shuffle and take a
tenth, and every document added changes the split: what was validation yesterday is trained on today. So nothing
decides but the document itself: its SHA-256, read as a number between 0 and 1.
"""


# %%
#| export shards
def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions."""
    u = int.from_bytes(sha256[:8], "big") / 2**64
    return "val" if u < val else "test" if u < val + test else "train"


# %%
def by_hash(texts: list[str]) -> set[str]:
    return {t for t in texts if split_of(hashlib.sha256(t.encode()).digest(), 0.1, 0.1) == "val"}


def by_shuffling(texts: list[str]) -> set[str]:
    return set(np.random.default_rng(0).permutation(texts)[: len(texts) // 10])


before = documents[: STORIES * 4 // 5]
print(
    f"val of {len(before):,} documents, and how many of it are trained on after {STORIES - len(before):,} more:"
)
for split in (by_shuffling, by_hash):
    yesterday, today = split(before), split(documents)
    print(f"{split.__name__:12} {len(yesterday)} documents, {len(yesterday - today)} trained on")

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
#| export shards
def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, one or more numbers from 0 on.

    It sorts PCG64's raw bits: NumPy promises never to change those, but not what `Generator.permutation` makes of
    them (NEP 19), and a run may be resumed years later.
    """
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer one may stand."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


# %%
#| export data
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
    """Tokens start to stop of a shard in the order of `shuffle_documents`, taken from the memory map at once."""
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    counts = np.diff(np.minimum(ends[first : last + 1], stop), prepend=start)  # how many from each document
    return tokens[np.arange(start, stop) + np.repeat(moved[first : last + 1], counts)]


# %%
EOT = 9  # in this example
shard = np.array([EOT, 1, 1, 1, EOT, 2, EOT, 3, 3, EOT, 4, 4, 4])
for epoch in range(3):
    ends, moved = shuffle_documents(shard, EOT, epoch)
    everything, some = (read_shuffled(shard, ends, moved, *span) for span in ((0, len(shard)), (5, 9)))
    print(f"epoch {epoch}: {everything}   tokens 5 to 9: {some}")

# %% [markdown]
r"""
No loop over tokens or documents: where every token of a batch stands in the file is computed, and one indexing
operation takes them all.

## Many shards, many readers

With several processes, *ranks*, each reads a different part of every step. Often a loader is written like this: the
shards are read one after another, each rank begins at its own offset, and everybody advances by what all ranks read
together. *Find the bug.* It shows only with more than one rank, and only where a shard ends.
"""


# %%
class Loader:
    """x of each step, as a range of token numbers: BT tokens a step for each rank."""

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
FIRST, SECOND, BT, RANKS = 43, 37, 4, 2  # two shards' tokens; a rank's tokens a step
TOTAL = FIRST + SECOND
ranges = [range(FIRST), range(FIRST, TOTAL)]
loaders = [Loader(ranges, BT, rank, RANKS) for rank in range(RANKS)]
reads = [[loader.next_batch() for loader in loaders] for _ in range(TOTAL // (RANKS * BT) - 1)]
show(
    figures.reads(reads, [FIRST], "a loader with a bug"),
    alt="Rank 0 reads the first shard one step longer than rank 1; afterwards they are never side by side, and the last tokens of both shards are not read",
)
apart = [step for step, ranks in enumerate(reads) if any(b.start != a.stop for a, b in pairwise(ranks))]
print(f"of {len(reads)} steps the ranks are apart in {len(apart)}:", *apart)
times = np.bincount([t for ranks in reads for tokens in ranks for t in tokens], minlength=TOTAL)
print("read", ", ".join(f"{n} times: {(times == n).sum()} tokens" for n in np.unique(times)))

# %% [markdown]
r"""
Rank 0 still finds room for a step where rank 1, standing further on, does not. They change shard at different
steps, and then do not stand side by side. Nothing crashes. And the end of each shard, too short for a step, is
never read.

The cure is that no rank decides anything. Let there be one endless stream of tokens, the same for all ranks: epoch
after epoch, each with its shards and their documents in another order. Step k takes the next `world_size * B * T` of
them, rank r the r-th part, across the ends of shards and epochs. Then a law can hold: **each token is an input
exactly once an epoch.** First the shards. What a manifest says of them counts; without one they are GPT-2's, as llm.c's
are.
"""


# %%
#| export shards
def described(path: Path) -> dict:
    """What the manifest beside a shard says of it and of its tokenizer; without one it is GPT-2's, as in llm.c."""
    if not (path.parent / "manifest.json").exists():
        return {"fingerprint": None, "vocab_size": 50257, "eot": 50256}
    manifest = load_manifest(path.parent)
    for shard in (shard for split in manifest["splits"].values() for shard in split["shards"]):
        if shard["file"] == path.name:
            return {key: manifest[key] for key in ("fingerprint", "vocab_size", "eot")} | shard
    raise ValueError(
        f"{path} is not in the manifest beside it; prepare it again, or keep it in another folder"
    )


# %%
#| export data
class Shards:
    """Shards that belong together: their tokens as memory maps, and the vocabulary of their ids."""

    def __init__(self, paths):
        self.paths = sorted(map(Path, paths))
        if not self.paths:
            raise ValueError("a stream needs at least one shard; got none")
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.total = sum(map(len, self.tokens))
        self.described = [described(path) for path in self.paths]
        for path, tokens, said in zip(self.paths, self.tokens, self.described):
            if said.get("tokens", len(tokens)) != len(tokens):
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")
            if said["fingerprint"] != self.described[0]["fingerprint"]:
                raise ValueError(f"{path} and {self.paths[0]} were made with different tokenizers")
        self.eot, self.vocab_size = self.described[0]["eot"], self.described[0]["vocab_size"]
        self._order = {}


# %%
#| export data
class Shards(Shards):
    @cached_property
    def sha256(self) -> list[str]:
        """What tells these shards from others, even of equal names: their hashes, computed if no manifest has them."""
        return [said.get("sha256") or file_sha256(path) for path, said in zip(self.paths, self.described)]

    def order(self, i: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """How the documents of shard i are shuffled in an epoch. The last order asked for is kept."""
        key = seed, epoch, i
        if key not in self._order:
            self._order = {key: shuffle_documents(self.tokens[i], self.eot, seed, epoch, i + 1)}
        return self._order[key]

    def checked(self, tokens: np.ndarray, i: int) -> np.ndarray:
        """Tokens of shard i. ValueError if one is not in the vocabulary."""
        if tokens.max() < self.vocab_size:
            return tokens
        what = f"id {tokens.max()}, but its vocabulary has {self.vocab_size}"
        raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")


# %% [markdown]
r"""
A place in the stream is an epoch, a shard and an offset. A batch may begin in one shard and end in another.
"""


# %%
#| export data
def find(shards: Shards, seed: int, place: int) -> tuple[int, int, int]:
    """Where the stream's token number `place` stands: epoch, shard, and offset in the shuffled shard."""
    epoch, offset = divmod(place, shards.total)
    for i in permutation(len(shards.tokens), seed, epoch, 0).tolist():
        if offset < len(shards.tokens[i]):
            break
        offset -= len(shards.tokens[i])
    return epoch, i, offset


def read(shards: Shards, seed: int, start: int, n: int) -> np.ndarray:
    """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
    parts = []
    while n > 0:
        epoch, i, offset = find(shards, seed, start)
        stop = min(offset + n, len(shards.tokens[i]))
        part = read_shuffled(shards.tokens[i], *shards.order(i, seed, epoch), offset, stop)
        parts.append(shards.checked(part, i))
        start, n = start + len(part), n - len(part)
    return np.concatenate(parts)


# %% [markdown]
r"""
To see where a token comes from, let its id be its place: the numbers 0, 1, 2 … with GPT-2's `<|endoftext|>`, 50,256,
where a document begins. Which one that is, the next token tells.
"""


# %%
def write_places(folder: Path, *shards: list[int]) -> list[Path]:
    """Shards whose documents have these lengths, each at least 2; an id is the token's place in all of them."""
    place, paths = 0, [folder / f"train_{i:06d}.bin" for i in range(len(shards))]
    for path, lengths in zip(paths, shards):
        starts = place + np.cumsum([0, *lengths[:-1]])
        places = np.arange(place, place + sum(lengths))
        write_shard(path, np.where(np.isin(places, starts), 50256, places))
        place += sum(lengths)
    return paths


two = write_places(folder / "two", [10] * (FIRST // 10) + [FIRST % 10], [10] * (SECOND // 10) + [SECOND % 10])
opened = Shards(two)
print(f"{opened.total} tokens in shards of {list(map(len, opened.tokens))}, vocabulary {opened.vocab_size:,}")
for place in (0, SECOND - 1, SECOND, TOTAL - 1, TOTAL):
    print("token {:2} is in epoch {}, shard {}, at {}".format(place, *find(opened, 0, place)))
print(f"tokens {SECOND - 4} to {SECOND + 4}:", read(opened, 0, SECOND - 4, 8))

# %% [markdown]
r"""
What a training loop calls:
"""


# %%
#| export data
def check_sizes(B: int, T: int, rank: int, world_size: int) -> None:
    """ValueError unless rank is one of world_size that each take B rows of T tokens."""
    whole = all(isinstance(n, Integral) for n in (B, T, rank, world_size))
    if not whole or min(B, T) < 1 or not 0 <= rank < world_size:
        given = f"B={B}, T={T}, rank={rank}, world_size={world_size}"
        raise ValueError(f"a stream needs integers, B and T from 1 on, 0 <= rank < world_size; got {given}")


def resumed(state: dict, counts: str, shards: Shards) -> tuple[int, int]:
    """Seed and position from a state. ValueError if it is of other shards or of another kind of stream."""
    if missing := {"counts", "seed", "position", "shards"} - set(state):
        raise ValueError(f"this is no stream's state: it lacks {', '.join(sorted(missing))}")
    if state["counts"] != counts:
        raise ValueError(f"this state counts {state['counts']}, and this stream counts {counts}")
    if state["shards"] != shards.sha256:
        raise ValueError(
            f"{shards.paths[0].parent} does not hold the shards of this state, which their hashes tell"
        )
    return state["seed"], state["position"]


# %%
#| export data
class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    Each epoch shuffles the shards, and the documents within each, by (seed, epoch). Step k takes the next
    world_size * B * T tokens, and rank r the r-th part. So every token is an input exactly once an epoch; what is left
    at an epoch's end is completed with the beginning of the next. A row may begin within a document.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards, self.step = Shards(shards), world_size * B * T
        self.B, self.T, self.rank, self.seed, self.device = B, T, rank, seed, device
        self.position = 0  # tokens that all ranks together have consumed
        if self.shards.total <= self.step:
            needed = f"{world_size} ranks × B={B} × T={T} + 1 = {self.step + 1:,}; lower B or T, or add text"
            raise ValueError(
                f"{self.shards.paths[0].parent}: {self.shards.total:,} tokens, but one step takes {needed}"
            )

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = read(self.shards, self.seed, self.position + self.rank * n, n + 1)
        self.position += self.step
        return to_device(tokens[:-1].reshape(self.B, self.T), tokens[1:].reshape(self.B, self.T), self.device)


# %%
streams = [BatchStream(two, B=1, T=BT, rank=rank, world_size=RANKS) for rank in range(RANKS)]
xs = [
    [stream.next_batch()[0].flatten().tolist() for stream in streams]
    for _ in range(TOTAL // (RANKS * BT) + 1)
]
flat = [t for ranks in xs for tokens in ranks for t in tokens]
places = iter([after - 1 if t == 50256 else t for t, after in zip(flat, [*flat[1:], 1])])
reads = [[[next(places) for _ in tokens] for tokens in ranks] for ranks in xs]
show(
    figures.reads(reads, [FIRST], "BatchStream"),
    alt="Both ranks are always in the same document or its neighbour; the shards are read completely; the last step continues with the next epoch",
)

# %% [markdown]
r"""
*Check.* The law, on as many places as there are ids, in documents as long as stories: three ranks, a batch that divides
nothing evenly, two epochs. And the tokens of a step do not depend on how many ranks share them: a run may go on with
another number of GPUs.
"""

# %%
B, T, RANKS = 5, 77, 3
lengths = [len(tokenizer.encode(text)) + 1 for text in documents[:500]]
law = write_places(folder / "law", lengths[:200], lengths[200:])
streams = [BatchStream(law, B, T, rank, RANKS) for rank in range(RANKS)]
alone, total = BatchStream(law, B * RANKS, T), streams[0].shards.total
xs, ys = [], []
while streams[0].position <= 2 * total:
    x, y = zip(*(stream.next_batch() for stream in streams))
    assert torch.equal(torch.cat(x), alone.next_batch()[0]), (
        "the ranks together do not read what one reader reads"
    )
    xs, ys = [*xs, *x], [*ys, *y]
x, y = (torch.cat([tokens.flatten() for tokens in batches]) for batches in (xs, ys))
places = torch.where(x == 50256, y - 1, x)
for epoch in range(2):
    seen = places[epoch * total : (epoch + 1) * total].sort().values
    assert torch.equal(seen, torch.arange(total)), "a token was read twice in an epoch, or never"
assert torch.equal(y[:-1], x[1:]), "a target is not the next input"
print(f"two epochs of {total:,} tokens: each read once an epoch, and every target is the next input")

# %% [markdown]
r"""
A stream resumes at the exact token from a seed and one number. The state also says of which shards it speaks, by their
hashes: a name such as train_000000.bin stands in many folders.
"""


# %%
#| export data
class BatchStream(BatchStream):
    @property
    def epoch(self) -> int:
        return self.position // self.shards.total

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        return {
            "counts": "tokens",
            "seed": self.seed,
            "position": self.position,
            "shards": self.shards.sha256,
        }

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = resumed(state, "tokens", self.shards)


# %%
stream, again = BatchStream(law, B, T, seed=7), BatchStream(law, B, T)
for _ in range(100):
    stream.next_batch()
state = stream.state_dict()
again.load_state_dict(json.loads(json.dumps(state)))
assert torch.equal(stream.next_batch()[0], again.next_batch()[0]), "the resumed stream goes on elsewhere"
print(
    f"goes on at token {state['position']:,} of epoch {stream.epoch}, of",
    *(sha[:8] for sha in state["shards"]),
)
try:
    BatchStream(two, 1, BT).load_state_dict(state)
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
Is it fast enough? Training GPT-2's 124M parameters takes some 0.8 GFLOP a token, so a GPU at 400 TFLOP/s eats half a
million tokens a second. Many loaders use worker processes. *Predict.* Does this one need them?
"""

# %% tags=["nbval-ignore-output"]
stream = BatchStream(folder.glob("large/*.bin"), B=16, T=1024)
stream.next_batch()  # finds and shuffles the shard's documents, once an epoch
start, steps = time.perf_counter(), 100
for _ in range(steps):
    stream.next_batch()
rate = steps * stream.step / (time.perf_counter() - start)
print(f"{rate / 1e6:.1f} million tok/s, {rate / (400e12 / 0.8e9):.0f} times what that GPU eats:", end=" ")
print("no worker is needed" if rate > 2 * 400e12 / 0.8e9 else "too close: a worker would help")

# %% [markdown]
r"""
## Rows that begin with a document

A row of `BatchStream` begins where it falls, mostly within a story whose names and counts are out of sight.
*Predict.* In rows of 128 tokens cut at random, which share of all tokens belongs to a story that began before the row?
"""

# %%
predict("03.3", "tokens whose story began before their row, T = 128, in percent", guess=None)


# %%
def unseen(lengths: list[int], T: int) -> float:
    """The share of tokens that stand, in a row of T cut at random, before the first beginning of a document."""
    return sum(min(left, T) / T for n in lengths for left in range(n)) / sum(lengths)


print(f"a story has {min(lengths)} to {max(lengths)} tokens, {np.mean(lengths):.0f} on average")
for T in (32, 64, 128, 256, 1024):
    print(f"T = {T:4}: {unseen(lengths, T):4.0%} of all tokens belong to a story that began before their row")
answer("03.3", 100 * unseen(lengths, 128))

# %% [markdown]
r"""
No model can know what such tokens depend on, so they teach little, and no loss on them comes near the floor of chapter
02. (Where documents are long beside T, most tokens must be like this.) The second stream begins every row with a
document, as nanochat's does. Chapter 07 trains on it.
"""


# %%
#| export data
class DocumentStream:
    """Batches whose rows each begin with a document, at `<|endoftext|>`, so that a row sees all facts of its first one.

    A row runs on for T tokens into the documents behind, and from its shard's end to its beginning. In each epoch every
    document begins one row, in an order that depends on (seed, epoch); ranks take turns with B rows. What lies more
    than T tokens into a document is not read. Opening reads all shards once, to find the documents.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards, self.step = Shards(shards), world_size * B
        self.B, self.T, self.rank, self.seed, self.device = B, T, rank, seed, device
        self.position = 0  # rows that all ranks together have consumed
        starts = [np.flatnonzero(tokens == self.shards.eot) for tokens in self.shards.tokens]
        self.starts, self.ends = np.concatenate(starts), np.cumsum(list(map(len, starts)))
        self._order = {}
        if not len(self.starts):
            raise ValueError(f"{self.shards.paths[0].parent}: no document begins in these shards")


# %%
#| export data
class DocumentStream(DocumentStream):
    @property
    def epoch(self) -> int:
        return self.position // len(self.starts)

    def row(self, number: int) -> np.ndarray:
        """The T + 1 tokens of the stream's row with this number."""
        epoch, number = divmod(number, len(self.starts))
        if (key := (self.seed, epoch)) not in self._order:
            self._order = {key: permutation(len(self.starts), *key)}
        document = self._order[key][number]
        i, start = int(np.searchsorted(self.ends, document, side="right")), self.starts[document]
        return self.shards.checked(
            self.shards.tokens[i].take(range(start, start + self.T + 1), mode="wrap"), i
        )

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        first = self.position + self.rank * self.B
        rows = np.stack([self.row(number) for number in range(first, first + self.B)])  # (B, T + 1)
        self.position += self.step
        return to_device(rows[:, :-1], rows[:, 1:], self.device)


# %%
#| export data
class DocumentStream(DocumentStream):
    def state_dict(self) -> dict:
        """What resumes the stream at exactly this row, with any B and number of ranks."""
        return {"counts": "rows", "seed": self.seed, "position": self.position, "shards": self.shards.sha256}

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = resumed(state, "rows", self.shards)


# %%
path = folder / "stories" / "train_000000.bin"
ids = [i for text in documents[:100] for i in (tokenizer.eot, *tokenizer.encode(text))]
write_shard(path, ids)
listed = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
splits = {"train": {"tokens": len(ids), "shards": [listed]}}
save_manifest(path.parent, {"source": "100 stories", **identity(tokenizer), "splits": splits})
for kind in (BatchStream, DocumentStream):
    print(f"{kind.__name__}:")
    for row in kind([path], B=3, T=12).next_batch()[0].tolist():
        print("  ", tokenizer.decode(row))

# %% [markdown]
r"""
*Check.* Its law: in every epoch each document begins one row, whatever the number of ranks.
"""

# %%
streams = [DocumentStream(law, B, T, rank, RANKS, seed=3) for rank in range(RANKS)]
rows = []
while streams[0].epoch < 2:
    for x, y in (stream.next_batch() for stream in streams):
        assert (x[:, 0] == 50256).all(), "a row does not begin with a document"
        rows += y[:, 0].tolist()  # which one, the token after <|endoftext|> says
n = len(lengths)
first, second = rows[:n], rows[n : 2 * n]
assert len(set(first)) == n and set(first) == set(second), "a document began two rows of an epoch, or none"
assert first != second, "two epochs have one order"
print(f"{n} documents: each begins one row an epoch, in another order")

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

1. **Too many ids.** Take the check out of `write_shard` and write ids up to 100,000. Which ids come back?
2. **Rows and what they leave out.** Which share of the stories' tokens does `DocumentStream` never read as a target at
   T = 32, and how often does it read the others in an epoch? Which documents of a web text does it favour?
3. **One bit more.** Flip one bit of a manifest, in a digit of a token count. What does `open_shards` say? Now also mend
   the manifest's own hash. What is still found, and what is not?
4. **Mend the loader.** Change `Loader` so that all ranks change shard in the same step. Which tokens does it never
   read, and does the law hold?

## Further reading

- The format: llm.c, `dev/data/data_common.py` (writing) and `llmc/dataloader.h` (reading).
- Rows that begin with a document: nanochat, `nanochat/dataloader.py`, which also chooses the documents of a row so
  that little is cut off, and says how much still is.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Ding et al. 2024, *Fewer Truncations Improve Language Modeling*, §2: what packing costs, and a better packing.
- NumPy's NEP 19: which random numbers are promised to stay the same.
"""
