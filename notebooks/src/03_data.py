# %% [markdown]
r"""
# 03 · Data: shards, and batches that lose no token

(to be written)
"""

# %%
#| default_exp data
#| doc files: Files that are whole or not there.
#| doc shards: Token ids on disk in llm.c's format, with a manifest that proves them.
#| doc data: Batches from shards: no token lost, none seen twice, resumed at exactly the same token.
import tempfile
import time

import matplotlib.pyplot as plt

from course.notebook import checkpoint, show
from nanogpt.tokenizer import BPETokenizer

# %% [markdown]
r"""
A file that is half written, because the machine was switched off, would be refused too, but the good one before it
would be gone. So every file of this course is written aside, brought to the disk, and only then given its name, which
the system does in one step: a reader finds the old contents or the new ones. These two functions go to a module of
their own, `nanogpt/files.py`, which needs nothing but Python.
"""

# %%
#| export files
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomically(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it gets its name when it is whole and on the disk. The folder is made if absent.

    Whatever ends the block early leaves the old file as it was, and no other. A file that is replaced keeps its
    mode; a symbolic link stays one, and the file that it points to is replaced.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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


# %%
#| export files
def save_json(path: str | os.PathLike, contents: dict) -> None:
    """Write `contents` as JSON, atomically."""
    with atomically(path) as file:
        file.write((json.dumps(contents, indent=1) + "\n").encode())


# %%
saved = Path("../data/built/tokenizer.json")
save_json(saved, packed)
files = set(saved.parent.iterdir())
try:
    with atomically(saved) as file:
        file.write(b"half a")
        raise OSError("the disk is full")
except OSError as error:
    print(f"{error}; the file is whole: {unpack(saved) == (vocab, GPT2_PATTERN, [EOT])}", end=", ")
    print(f"and nothing else is left: {set(saved.parent.iterdir()) == files}")

# %% [markdown]
r"""
## Shards: ids on disk

A training loop reads ids, not text. Tokenizing is slow, so it is done once, and the ids are kept in llm.c's format: a
header of 256 int32, then the ids. No lengths, no index: a document begins where `<|endoftext|>` stands, which is
*before* each one, the first included.

*Predict.* FineWeb-Edu's sample has ten billion tokens. How many gigabytes is that with two bytes an id? With the
eight that torch wants for an index?
"""

# %%
#| export shards
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanogpt.files import atomically, save_json

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")

# %%
largest = {"uint16": 2**16 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}
for name, most in largest.items():
    print(f"{name:6} {10e9 * np.dtype(name).itemsize / 1e9:3.0f} GB, ids up to {most:,}")

# %% [markdown]
r"""
GPT-2 has 50,257 ids, so two bytes do. A file that takes minutes to write must never be there by half: `atomically` is
chapter 01's.
"""


# %%
#| export shards
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
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # for what is only tried out here
folder, left_by_01 = Path(scratch.name), Path("../data/built/tokenizer.json")
documents = [story.text for story in stories(5000)]
tokenizer = BPETokenizer.load(left_by_01) if left_by_01.exists() else BPETokenizer.train(documents, 1024)
ids = [i for text in documents[:3] for i in (tokenizer.eot, *tokenizer.encode(text))]
write_shard(folder / "three.bin", ids)
raw = (folder / "three.bin").read_bytes()
print(f"{len(ids)} tokens, {len(raw):,} bytes = 1,024 + 2 · {len(ids)}; <|endoftext|> is {tokenizer.eot}")

# %% tags=["hide-input"]
fields = [("magic", raw[:4]), ("version", raw[4:8]), ("tokens", raw[8:12]), ("zeros", raw[12:16]), ("", b"")]
fields += [(tokenizer.decode([i]), raw[1024 + 2 * n : 1026 + 2 * n]) for n, i in enumerate(ids[:6])]
fig, ax = plt.subplots(figsize=(7, 1.2))
x = 0
for n, (label, content) in enumerate(fields):
    width = 1.4 * len(content) or 1.4
    ax.add_patch(
        plt.Rectangle((x, 0), width, 1, facecolor=["#cfe2f3", "#d9ead3"][n % 2] if content else "white")
    )
    ax.text(
        x + width / 2, 0.5, content.hex(" ") or "…", ha="center", va="center", family="monospace", fontsize=7
    )
    ax.text(
        x + width / 2, -0.4 - 0.4 * (n % 2), label.replace(" ", "·"), ha="center", va="center", fontsize=8
    )
    x += width
ax.set(xlim=(0, x), ylim=(-1, 1))
ax.axis("off")
show(
    fig,
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
write_shard(folder / "large.bin", np.zeros(50_000_000, np.uint16))  # 100 MB
start = time.perf_counter()
tokens = read_shard(folder / "large.bin")
opened = time.perf_counter()
some = tokens[30_000_000 : 30_000_000 + 8192].sum()
touched = time.perf_counter()
whole = np.fromfile(folder / "large.bin", "<u2")
print(f"open {(opened - start) * 1e6:.0f} µs, use 8,192 tokens {(touched - opened) * 1e6:.0f} µs, ")
print(f"read the whole file instead {(time.perf_counter() - touched) * 1e3:.0f} ms")
(folder / "large.bin").unlink()

# %% [markdown]
r"""
A flipped bit passes: the length is right and the id valid. And ids do not say which tokenizer made them. So a folder
of shards has a `manifest.json` with each file's SHA-256 and the tokenizer's fingerprint, and training opens shards
through it.
"""


# %%
#| export shards
def file_sha256(path: str | os.PathLike) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(tokenizer) -> dict:
    """What a manifest says of the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


# %%
#| export shards
def manifest_sha256(manifest: dict) -> str:
    """Hex SHA-256 of all that a manifest says, but for this hash itself."""
    said = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def manifest_fault(manifest: dict) -> str | None:
    """What is wrong with a manifest, in a few words, or None."""
    try:
        splits = manifest["splits"]
        shards = [shard for split in splits.values() for shard in split["shards"]]
        names, sizes = [shard["file"] for shard in shards], [shard["tokens"] for shard in shards]
        rules = {
            "its own hash": manifest["sha256"] == manifest_sha256(manifest),
            "source or fingerprint": "source" in manifest and isinstance(manifest["fingerprint"], str),
            "vocab_size or eot": 0 <= manifest["eot"] < manifest["vocab_size"] <= 65536,
            "the names of splits": set(splits) <= set(SPLITS),
            "a shard's name": all(re.fullmatch(r"[\w-][\w.-]*", name) for name in names),
            "a shard listed twice": len(set(names)) == len(names),
            "a shard's hash": all(re.fullmatch("[0-9a-f]{64}", shard["sha256"]) for shard in shards),
            "a shard's tokens": all(type(size) is int and size > 0 for size in sizes),
            "a sum of tokens": all(
                s["tokens"] == sum(x["tokens"] for x in s["shards"]) for s in splits.values()
            ),
        }
        return next((what for what, right in rules.items() if not right), None)
    except KeyError as error:
        return f"no {error}"
    except (TypeError, AttributeError):
        return "not in a manifest's form"


# %%
#| export shards
def save_manifest(folder: str | os.PathLike, manifest: dict) -> dict:
    """Write folder/manifest.json with a hash of itself, atomically; returns what it says. ValueError if it is none."""
    manifest = manifest | {"sha256": manifest_sha256(manifest)}
    if fault := manifest_fault(manifest):
        raise ValueError(f"{folder}: this manifest cannot be right: {fault}")
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
held = {"tokens": len(ids), "shards": [{"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}]}
save_json(path.parent / "manifest.json", {"source": "", **identity(tokenizer), "splits": {"val": held}})
print([shard.name for shard in open_shards(path.parent, "val", tokenizer.fingerprint)])
path.write_bytes(raw[:1100] + bytes([raw[1100] ^ 1]) + raw[1101:])  # one bit
for split, fingerprint in (("val", "0123456789"), ("train", None), ("val", None)):
    try:
        open_shards(path.parent, split, fingerprint)
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
## Train, validation, test: ask the document

Validation losses can be compared over months only if the validation text stays the same. Shuffle and take the last
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


for split in (by_shuffling, by_hash):
    yesterday, today = split(documents[:4000]), split(documents)
    moved = len(yesterday - today)
    print(
        f"{split.__name__:12} {len(yesterday)} val documents of 4,000; with 1,000 more, {moved} of them are trained on"
    )

# %% [markdown]
r"""
Equal documents fall on the same side, so an exact duplicate cannot leak. One that differs in a single space can
(Lee et al. 2022, §4).

## Batches

A batch is x, `B` rows of `T` tokens, and y, the same rows one token later. With several processes, *ranks*, each
reads a different part. Often a loader is written like this: the shards are read one after another, each rank begins at
its own offset, and everybody advances by what all ranks read together.

*Find the bug.* It shows only with more than one shard and more than one rank.
"""


# %%
class Loader:
    """x of each step, as a range of token numbers. Two shards, B * T tokens a step for each rank."""

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
shards = [range(0, 43), range(43, 80)]
loaders = [Loader(shards, 4, rank, 2) for rank in range(2)]
reads = [[loader.next_batch() for loader in loaders] for _ in range(9)]


# %% tags=["hide-input"]
def draw(reads, seams, title):
    """One row a step; what each rank reads of the corpus, in its colour."""
    fig, ax = plt.subplots(figsize=(6.8, 2.4))
    for step, ranks in enumerate(reads):
        for rank, tokens in enumerate(ranks):
            ax.scatter(
                list(tokens),
                [step] * len(tokens),
                marker="s",
                s=14,
                color=f"C{rank}",
                label=f"rank {rank}" if step == 0 else None,
            )
    for seam in seams:
        ax.axvline(seam - 0.5, color="black", linewidth=0.8)
    ax.set(xlabel="token of the corpus; lines: where a shard begins", ylabel="step", title=title)
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


show(
    draw(reads, [43], "a loader with a bug"),
    alt="Rank 0 reads the first shard one step longer than rank 1; afterwards they are never side by side again, and the last tokens of both shards are not read",
)

# %%
times = np.zeros(80, int)
for ranks in reads[:9]:
    for tokens in ranks:
        times[list(tokens)] += 1
first_wrong = next(step for step, (a, b) in enumerate(reads) if b.start != a.stop)
print(
    f"ranks drift apart at step {first_wrong}: rank 0 reads from {reads[first_wrong][0].start}, rank 1 from {reads[first_wrong][1].start}"
)
print(
    "after 9 steps of 8 tokens: " + ", ".join(f"{(times == n).sum()} tokens read {n} times" for n in range(3))
)

# %% [markdown]
r"""
Rank 0 still finds room for a step where rank 1, standing further on, does not. They change shard at different
steps, and never stand side by side again. Nothing crashes. And the end of each shard, too short for a step, is never
read.

The cure is that no rank decides anything. Let there be one endless stream of tokens, the same for all ranks. Step k
takes the next `world_size * B * T` of them, rank r the r-th part, across the ends of shards and epochs. Then a law can
hold: **each token is an input exactly once an epoch.**

The stream is epoch after epoch, and every epoch shuffles the documents. If the order is a function of (seed, epoch),
a token can be found without remembering anything:
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
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from nanogpt.shards import document_starts, file_sha256, load_manifest, permutation, read_shard


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
shard = np.array([9, 1, 1, 1, 9, 2, 9, 3, 3, 9, 4, 4, 4])  # four documents, <|endoftext|> is 9
for epoch in range(3):
    ends, moved = shuffle_documents(shard, 9, epoch)
    print(
        f"epoch {epoch}: {read_shuffled(shard, ends, moved, 0, 13)}   tokens 5 to 9: {read_shuffled(shard, ends, moved, 5, 9)}"
    )

# %% [markdown]
r"""
No loop over tokens or documents: where every token of a batch stands in the file is computed, and one indexing
operation takes them all. Ids then become tensors:
"""


# %%
#| export data
def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


# %%
tokens = np.arange(7)
x, y = to_device(tokens[:-1].reshape(2, 3), tokens[1:].reshape(2, 3), "cpu")
print(f"x {x.tolist()}\ny {y.tolist()}")


# %% [markdown]
r"""
A stream knows its shards, who reads how much of them, and `position`: how far all ranks together have come.
"""


# %%
#| export data
def described(path: Path) -> dict:
    """What the manifest beside a shard says of it and of its tokenizer; without one it is GPT-2's, as in llm.c."""
    if not (path.parent / "manifest.json").exists():
        return {"fingerprint": None, "vocab_size": 50257, "eot": 50256}
    manifest = load_manifest(path.parent)
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    for shard in shards:
        if shard["file"] == path.name:
            return {key: manifest[key] for key in ("fingerprint", "vocab_size", "eot")} | shard
    raise ValueError(
        f"{path} is not in the manifest beside it; prepare it again, or keep it in a folder of its own"
    )


class Shards:
    """Shards that belong together: their tokens as memory maps, and the vocabulary of their ids."""

    def __init__(self, paths):
        self.paths = sorted(map(Path, paths))
        if not self.paths:
            raise ValueError("a stream needs at least one shard; got none")
        self.tokens = [read_shard(path) for path in self.paths]
        self.total = sum(map(len, self.tokens))
        self.described = [described(path) for path in self.paths]
        for path, there, said in zip(self.paths, self.tokens, self.described):
            if said.get("tokens", len(there)) != len(there):
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")
            if said["fingerprint"] != self.described[0]["fingerprint"]:
                raise ValueError(f"{path} and {self.paths[0]} were made with different tokenizers")
        self.eot, self.vocab_size = self.described[0]["eot"], self.described[0]["vocab_size"]

    @cached_property
    def sha256(self) -> list[str]:
        """What tells these shards from others, even of equal names: their hashes, read if no manifest has them."""
        return [said.get("sha256") or file_sha256(path) for path, said in zip(self.paths, self.described)]

    def check(self, tokens: np.ndarray, i: int) -> np.ndarray:
        """The tokens, read from shard i. ValueError if one is not in the vocabulary."""
        if tokens.max() >= self.vocab_size:
            what = f"id {tokens.max()}, but its vocabulary has {self.vocab_size}"
            raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")
        return tokens


# %%
for i, tokens in enumerate(
    shards
):  # as above, with a document every ten tokens; ids are places in the corpus
    as_documents = [50256 if t % 10 == 0 else t for t in tokens]
    write_shard(folder / "two" / f"train_{i:06d}.bin", as_documents)
paths = sorted((folder / "two").glob("*.bin"))
small = Shards(paths)
print(f"{small.total} tokens in shards of {list(map(len, small.tokens))}, vocabulary {small.vocab_size}")

# %% [markdown]
r"""
A place in the stream is an epoch, a shard and an offset. A batch may begin in one shard and end in another.
"""


# %%
#| export data
class Epochs:
    """The tokens of shards, epoch after epoch: each shuffles the shards, and the documents within each.

    Where a token stands follows from (seed, epoch) alone, so that nothing has to be remembered.
    """

    def __init__(self, shards: Shards, seed: int):
        self.shards, self.seed, self._order = shards, seed, {}

    def find(self, place: int) -> tuple[int, int, int]:
        """Where token number `place` stands: epoch, shard, and offset in the shuffled shard."""
        epoch, offset = divmod(place, self.shards.total)
        for i in permutation(len(self.shards.tokens), self.seed, epoch, 0).tolist():
            if offset < len(self.shards.tokens[i]):
                break
            offset -= len(self.shards.tokens[i])
        return epoch, i, offset

    def read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, i, offset = self.find(start)
            tokens, key = self.shards.tokens[i], (self.seed, epoch, i)
            if key not in self._order:  # the one shard's whose turn it is
                self._order = {key: shuffle_documents(tokens, self.shards.eot, self.seed, epoch, i + 1)}
            part = read_shuffled(tokens, *self._order[key], offset, min(offset + n, len(tokens)))
            parts.append(self.shards.check(part, i))
            start, n = start + len(part), n - len(part)
        return np.concatenate(parts)


# %%
small = Epochs(Shards(paths), seed=0)
for place in (0, 36, 37, 79, 80):
    print("token {:2} is in epoch {}, shard {}, at {}".format(place, *small.find(place)))
print("tokens 33 to 41:", small.read(33, 8))

# %% [markdown]
r"""
What a training loop calls, and the state that resumes it:
"""


# %%
#| export data
def check_sizes(B: int, T: int, rank: int, world_size: int) -> None:
    """ValueError unless rank is one of world_size that each take B rows of T tokens."""
    whole = all(isinstance(n, int) for n in (B, T, rank, world_size))
    if not whole or min(B, T) < 1 or not 0 <= rank < world_size:
        given = f"B={B}, T={T}, rank={rank}, world_size={world_size}"
        raise ValueError(f"a stream needs integers, B and T from 1 on, 0 <= rank < world_size; got {given}")


def resumed(state: dict, counts: str, shards: Shards) -> tuple[int, int]:
    """Seed and position of a state. ValueError if it is of other shards or of another kind of stream."""
    if state.get("counts") != counts or state.get("shards") != shards.sha256:
        raise ValueError(
            f"{shards.paths[0].parent} does not hold the shards of this state, or it is no {counts}'s"
        )
    return state["seed"], state["position"]


class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    The stream is epoch after epoch. Each epoch shuffles the shards, and the documents within each shard, by
    (seed, epoch). Step k takes the next world_size * B * T tokens, and rank r the r-th part of them. So every token
    is an input exactly once an epoch; what is left at an epoch's end is completed with the beginning of the next.
    Documents are packed: a row may begin within one, whose facts it then does not see.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards = Shards(shards)
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.epochs, self.device, self.position = (
            Epochs(self.shards, seed),
            device,
            0,
        )  # position: of all ranks
        if self.shards.total <= world_size * B * T:
            step = f"{world_size} ranks × B={B} × T={T} + 1 = {world_size * B * T + 1:,}; lower B or T, or add text"
            raise ValueError(
                f"{self.shards.paths[0].parent}: {self.shards.total:,} tokens, but one step takes {step}"
            )

    @property
    def epoch(self) -> int:
        return self.position // self.shards.total

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = self.epochs.read(self.position + self.rank * n, n + 1)
        self.position += self.world_size * n
        return to_device(tokens[:-1].reshape(self.B, self.T), tokens[1:].reshape(self.B, self.T), self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        return {
            "counts": "tokens",
            "seed": self.epochs.seed,
            "position": self.position,
            "shards": self.shards.sha256,
        }

    def load_state_dict(self, state: dict) -> None:
        self.epochs.seed, self.position = resumed(state, "tokens", self.shards)


# %%
#| export data
class DocumentStream:
    """Batches whose rows each begin with a document, so that a row sees all facts of its first one.

    A row runs on for T tokens into the documents behind, and from its shard's end to its beginning. In each epoch
    every document begins one row, in an order that depends on (seed, epoch); ranks share the rows out in turn. What
    lies more than T tokens into a document is not read. All shards are read once at first, to find the documents.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        check_sizes(B, T, rank, world_size)
        self.shards = Shards(shards)
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device, self.position = seed, device, 0  # position: rows of all ranks
        begin = [np.flatnonzero(tokens == self.shards.eot) for tokens in self.shards.tokens]
        self.documents = [(i, start) for i, starts in enumerate(begin) for start in starts.tolist()]
        self._order = {}
        if not self.documents:
            raise ValueError(f"{self.shards.paths[0].parent}: no document begins in these shards")

    @property
    def epoch(self) -> int:
        return self.position // len(self.documents)

    def _row(self, n: int) -> np.ndarray:
        epoch, n = divmod(n, len(self.documents))
        if (key := (self.seed, epoch)) not in self._order:
            self._order = {key: permutation(len(self.documents), *key)}
        i, start = self.documents[self._order[key][n]]
        row = self.shards.tokens[i].take(np.arange(start, start + self.T + 1), mode="wrap")
        return self.shards.check(row, i)

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        first = self.position + self.rank * self.B
        rows = np.stack([self._row(n) for n in range(first, first + self.B)])  # (B, T + 1)
        self.position += self.world_size * self.B
        return to_device(rows[:, :-1], rows[:, 1:], self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this row, with any B and number of ranks."""
        return {"counts": "rows", "seed": self.seed, "position": self.position, "shards": self.shards.sha256}

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = resumed(state, "rows", self.shards)


# %%
streams = [BatchStream(paths, B=1, T=4, rank=rank, world_size=2) for rank in range(2)]
batches = [[stream.next_batch()[0].flatten().tolist() for stream in streams] for _ in range(11)]
# where <|endoftext|> stands follows from the token after it
flat = [t for ranks in batches for tokens in ranks for t in tokens]
places = [b - 1 if a == 50256 else a for a, b in zip(flat, flat[1:] + [flat[0]])]
reads = [[places[8 * step + 4 * rank : 8 * step + 4 * rank + 4] for rank in range(2)] for step in range(11)]
show(
    draw(reads, [43], "BatchStream"),
    alt="Both ranks are always in the same document or its neighbour; the shards are read completely; the last step continues with the next epoch",
)

# %% [markdown]
r"""
*Check.* The law, on the corpus itself: three ranks, a batch that divides nothing evenly, two epochs.
"""

# %%
held_out = documents[4000:]
write_shard(
    folder / "law" / "train_000000.bin", [i for t in held_out[:600] for i in (50256, *tokenizer.encode(t))]
)
write_shard(
    folder / "law" / "train_000001.bin", [i for t in held_out[600:] for i in (50256, *tokenizer.encode(t))]
)
paths = sorted((folder / "law").glob("*.bin"))
corpus = np.concatenate([read_shard(path) for path in paths])
streams = [BatchStream(paths, B=5, T=77, rank=rank, world_size=3) for rank in range(3)]
xs, ys = [], []
while streams[0].epoch < 2:
    for stream in streams:
        x, y = stream.next_batch()
        xs.append(x.flatten())
        ys.append(y.flatten())
x, y = np.concatenate(xs), np.concatenate(ys)
for epoch in range(2):
    assert (np.bincount(x[epoch * len(corpus) : (epoch + 1) * len(corpus)]) == np.bincount(corpus)).all()
assert (y[:-1] == x[1:]).all()
print(f"two epochs of {len(corpus):,} tokens: each read once an epoch, and every target is the next input")

# %% [markdown]
r"""
The tokens of a step do not depend on how many ranks share them, so a run may go on with another number of GPUs. And a
stream resumes at the exact batch, from one number and a seed.
"""

# %%
alone = BatchStream(paths, B=4, T=16)
pair = [BatchStream(paths, B=2, T=16, rank=rank, world_size=2) for rank in range(2)]
for _ in range(100):
    x, y = alone.next_batch()
    assert x.tolist() == [row for stream in pair for row in stream.next_batch()[0].tolist()]
resumed = BatchStream(paths, B=4, T=16)
resumed.load_state_dict(alone.state_dict())
assert all((a == b).all() for a, b in zip(alone.next_batch(), resumed.next_batch()))
print(alone.state_dict())

# %%
stream = BatchStream(paths, B=16, T=1024)
stream.next_batch()
start = time.perf_counter()
for _ in range(100):
    stream.next_batch()
print(f"{100 * 16 * 1024 / (time.perf_counter() - start):,.0f} tok/s")

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
