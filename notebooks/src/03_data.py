# %% [markdown]
r"""
# 03 · Data: from a text to batches

A training loop needs a batch for every step. The part of a program that makes the batches is called a *data loader*.
Our first one takes five lines, and then we remove its faults one at a time: it tokenizes the text again at every start,
it reads the corpus in the order in which it was written, and its rows begin in the middle of a story. At the end, a run
that was interrupted goes on with exactly the batch that would have come next.

Mistakes in a data loader are hard to notice, because nothing crashes. A loader that reads some tokens twice and others
never still makes batches, and the loss can still fall. So we look for a law that a wrong loader breaks.
"""

# %%
#| default_exp data
#| doc labs.corpora.splits: Which split a document belongs to.
#| doc files: Files that are complete or not there.
#| doc shards: Token ids on disk in llm.c's format, with a manifest that says what they are.
#| doc data: Batches from shards: no token lost, none seen twice, resumed at exactly the same token.
import tempfile
from collections import Counter

import numpy as np

from course.figures import data as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.labs.corpora.stories import entropy, stories
from nanogpt.tokenizer import BPETokenizer

# %%
#| export files
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# %% [markdown]
r"""
## One batch

We take the stories of chapter 02 and a tokenizer as in chapter 01, and turn twenty stories into one array of ids. The
token `<|endoftext|>` marks where a story begins.
"""

# %%
documents = Path("../data/stories.txt").read_text(encoding="utf-8").splitlines()
tokenizer = BPETokenizer.train(documents[:5000], 1024)
ids = []
for text in documents[:20]:
    ids += [tokenizer.eot, *tokenizer.encode(text)]
tokens = np.array(ids)
print(f"{len(tokens):,} tokens; the first ones: {tokens[:12]}")

# %% [markdown]
r"""
A language model learns to predict the next token. So a text of *n* tokens is *n* − 1 questions with their answers:
after these tokens, which one came next? Here is a batch of such questions, cut from the array in five lines. The
arrays are called x, the inputs, and y, the *targets*, which are the answers.
"""

# %%
B, T = 2, 5  # rows in a batch, tokens in a row
assert len(tokens) > B * T, f"a batch of {B} × {T} takes {B * T + 1:,} tokens, but there are {len(tokens):,}"
part = tokens[: B * T + 1]
x = part[:-1].reshape(B, T)  # (B, T)
y = part[1:].reshape(B, T)  # (B, T)
print(x, y, sep="\n\n")

# %% [markdown]
r"""
Both arrays have the same shape. Each element of y is the token that comes after the same element of x. Let us follow
the first row as text:
"""

# %%
for t in range(T):
    print(f"{tokenizer.decode(x[0, : t + 1].tolist()):32} → {tokenizer.decode([int(y[0, t])])!r}")

# %% [markdown]
r"""
A row of five tokens asks five questions, and the model answers all of them at once. For question 1 the model sees the
first token of its row of x, for question 2 the first two, and so on. The answer to question t is token t of the same
row of y.

Compare the end of the first row of y with the beginning of the second row of x: both are 574. So no question is lost
between two rows.

## All batches

The second batch begins where the first one ended, and so on. At the end of the array, tokens that do not fill a
complete batch are left out.
"""


# %%
def batches(tokens: np.ndarray, B: int, T: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(tokens) - B * T, B * T):
        part = tokens[start : start + B * T + 1]
        yield part[:-1].reshape(B, T), part[1:].reshape(B, T)


print(f"{len(list(batches(tokens, B, T)))} batches of {B * T} tokens, from an array of {len(tokens):,}")

# %% [markdown]
r"""
This is a complete data loader, and for a small experiment you need nothing more. The rest of the chapter removes the
faults that it would have in a long run on a large text.

PyTorch wants tensors of the type int64, on the device where the model is:
"""

# %%
#| export
from pathlib import Path

import numpy as np
import torch


def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device, each with memory of its own."""
    return tuple(torch.from_numpy(tokens.astype(np.int64)).to(device) for tokens in (x, y))


# %%
print(to_device(x, y, "cpu")[0])

# %% [markdown]
r"""
## Ids in a file

Our program tokenizes its text again at every start. For a large text this takes long, so we do it once and keep the
ids in files. A large corpus is split into several files, called *shards*. We use the format of llm.c, a program by
A. Karpathy that trains GPT-2 in plain C. A shard is a header of 1,024 bytes, and then the ids, two bytes each. Two
bytes are enough for ids up to 65,535, and GPT-2 has only 50,257 different ids. A text of ten billion tokens takes
20 GB. The file has no list of its documents. A document begins wherever the id of `<|endoftext|>` is.

If the computer stops in the middle of writing, the next run would find half a file and take it for a complete one. The
remedy is simple: we write under another name, and rename the file when it is complete. For the operating system,
renaming is a single step, so a reader finds either the old file or the new one. Chapter 01 did this in the method
`save`. Now we write a function for it.
"""


# %%
#| export files
@contextmanager
def atomically(path: str | os.PathLike) -> Iterator:
    """Open a file for writing bytes. It gets its name when it is complete; until then the old file stays as it was."""
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


# %% [markdown]
r"""
`os.fsync` waits until the bytes are on the disk, `os.replace` renames, and `copymode` gives the new file the permissions
of the old one. The next two cells use `atomically` to write a shard. The first three numbers of the header are a fixed number that marks the file as a shard (*magic*), the version
of the format, and the number of tokens that follow.
"""

# %%
#| export shards
import hashlib
import json
from pathlib import Path

import numpy as np

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, three of them used and the others zero."""
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


# %%
#| export shards
def write_shard(path: str | Path, tokens) -> None:
    """Write token ids as a shard in llm.c's format, atomically. ValueError if they do not fit into uint16."""
    tokens = np.asarray(tokens)
    header = shard_header(tokens.size)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > 65535:
        raise ValueError(f"{path}: a shard takes one row of ids from 0 to 65,535 (uint16)")
    with atomically(path) as file:
        file.write(header + tokens.astype("<u2").tobytes())


# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # gone at the end
path = Path(scratch.name) / "val_000000.bin"
write_shard(path, tokens)
print(f"{len(tokens):,} tokens, {path.stat().st_size:,} bytes")
show(figures.shard_bytes(path, tokenizer), alt="A shard's first bytes: the header, then two for each id")

# %% [markdown]
r"""
The picture shows the bytes in hexadecimal: three header numbers of four bytes each, a zero, and the first ids after the
header. The low byte of a number comes first (*little-endian*). So the bytes of `It`, 11 02, are the number 0x0211, which
is the 529 that we saw above. The bytes of the magic number make 20240520 in decimal, which looks like a date.

To read a shard, we use a *memory map*. The file then looks like an array, and the operating system fetches only those
parts of it that the program uses. So a corpus may be larger than the memory; of a shard that is in use, the memory holds the parts that are read. When we open a shard, we make three fast
checks: the magic number, the version, and whether the file is as long as its header says.
"""


# %%
#| export shards
def read_shard(path: str | Path) -> np.ndarray:
    """The tokens of a shard, a read-only uint16 memory map. ValueError if it is another file, or a damaged one."""
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    stored = (Path(path).stat().st_size - HEADER_BYTES) / 2
    if n < 1 or stored != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {stored:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


# %%
print("read as written:", np.array_equal(read_shard(path), tokens))

# %% [markdown]
r"""
## Train, validation, test

We judge a model on text that it was not trained on. So we divide the documents into three *splits*. Most documents are
for training (*train*). Some are for measuring during the work (*val*, for validation), and some for the very end
(*test*).

How should we choose them? We could shuffle all documents and take a tenth. But when documents are added next month,
the shuffle chooses other ones, and a model may then be trained on last month's validation text. It is better if the
choice depends on nothing but the document. We compute its SHA-256, a hash that looks random but is always the same for
the same text, and read the hash as a number u from 0 to 1. Below, a document with u < 0.05 is in val, one with
0.05 ≤ u < 0.10 is in test, and all others are in train.
"""


# %%
#| export labs.corpora.splits
#| blank split_of: int.from_bytes makes a number of eight bytes; divide it by 2**64 and compare it with the fractions
def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions.

    u is the hash's first eight bytes as a big-endian integer, divided by 2**64: val if u < val, test if u < val + test.
    """
    u = int.from_bytes(sha256[:8], "big") / 2**64
    if u < val:
        return "val"
    if u < val + test:
        return "test"
    return "train"


# %%
splits = Counter(split_of(hashlib.sha256(text.encode()).digest(), 0.05, 0.05) for text in documents)
print(dict(splits))

# %% [markdown]
r"""
About 5% of the documents are in val and about 5% in test. Equal documents have equal hashes, so two equal documents are
always in the same split. Two documents that differ in a single space can be in different splits. Web texts have many
such near-copies (Lee et al. 2022, §4).

## The corpus of this course

Ids do not say which tokenizer made them, and with another vocabulary the same ids are a different text. So beside the
shards we write a *manifest*. It is a small JSON file, which says how the text was made, which tokenizer made the ids,
and how many tokens are in which file. `open_shards` reads it and returns the paths of one split.
"""


# %%
#| export shards
def file_sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(tokenizer) -> dict:
    """What a manifest says about the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


def save_manifest(folder: str | Path, manifest: dict) -> dict:
    """Write folder/manifest.json, atomically; returns what it says."""
    save_json(Path(folder) / "manifest.json", manifest)
    return manifest


def load_manifest(folder: str | Path) -> dict:
    """What folder/manifest.json says."""
    return json.loads((Path(folder) / "manifest.json").read_bytes())


def open_shards(folder: str | Path, split: str) -> list[Path]:
    """The paths of a split's shards. ValueError if it has none, or if one is damaged."""
    listed = load_manifest(folder)["splits"].get(split, {}).get("shards")
    if not listed:
        raise ValueError(f"{folder} has no tokens in a split named {split!r}")
    for shard in listed:
        if len(read_shard(Path(folder) / shard["file"])) != shard["tokens"]:
            raise ValueError(f"{shard['file']} in {folder} is damaged: its manifest describes another file")
    return [Path(folder) / shard["file"] for shard in listed]


# %% [markdown]
r"""
Later chapters train on 50,000 stories. `ensure_corpus` writes them if they are not there yet, with the tokenizer that
chapter 01 saved in `data/built`. If there is none, it trains the same one. The manifest also gets the floor of the
validation split. `write_corpus` and `ensure_corpus` put together what we have: stories, splits, ids, shards, and the manifest.
"""

# %%
#| export labs.corpora.stories
import hashlib
from collections import Counter


def write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """Write the stories that `source` describes, a shard for each split, and last the manifest, which is returned."""
    # the hash of a story's text says which split it belongs to
    texts = {split: [] for split in SPLITS}
    nats = Counter()
    for story in stories(source["stories"], source["seed"]):
        split = split_of(hashlib.sha256(story.text.encode()).digest(), 0.05, 0.05)
        texts[split].append(story.text)
        nats[split] -= story.logprob
    if not all(texts.values()):
        raise ValueError(f"{source['stories']} stories leave none for val or test; take 200 or more")
    # a shard for each split
    encoding = tokenizer.to_tiktoken()
    splits = {}
    for split, told in texts.items():
        path = folder / f"{split}_000000.bin"
        ids = encoding.encode_to_numpy(
            "".join(f"<|endoftext|>{text}" for text in told), allowed_special="all"
        )
        write_shard(path, ids)
        size = sum(len(text.encode()) for text in told)
        shard = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
        splits[split] = {"documents": len(told), "bytes": size, "tokens": len(ids), "shards": [shard]}
    # its tokenizer, and last what all this is
    tokenizer.save(folder / "tokenizer.json")
    about = {"source": source, "tokenizer": "tokenizer.json"} | identity(tokenizer)
    floor = nats["val"] / splits["val"]["tokens"]
    return save_manifest(folder, about | {"splits": splits, "floor": floor})


# %%
#| export labs.corpora.stories
import os
from contextlib import suppress
from pathlib import Path


def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The manifest of n stories as shards in `folder`. They are made if they are absent, damaged or of other stories.

    tokenizer: by default the one that chapter 01 left in the folder above, or the same one, trained here.
    """
    from nanogpt.tokenizer import BPETokenizer  # here: telling stories needs no packages

    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # changes with the grammar
    with suppress(OSError, ValueError, LookupError):  # absent or damaged: made again
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source and all(open_shards(folder, split) for split in SPLITS):
            return manifest
    (folder / "manifest.json").unlink(missing_ok=True)  # first: it must not describe what is replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return write_corpus(folder, tokenizer, source)


# %%
corpus = Path("../data/built/stories")
manifest = ensure_corpus(corpus)
tokenizer = BPETokenizer.load(corpus / "tokenizer.json")
for split, held in manifest["splits"].items():
    print(f"{split:5} {held['documents']:6,} stories, {held['tokens']:9,} tokens, {held['bytes']:10,} bytes")
print(f"floor of val: {manifest['floor']:.3f} nats a token")

# %% [markdown]
r"""
## Why we shuffle

Is it a problem that our loader reads the corpus in the order in which it was written? A corpus from the web can be
ordered by site, and then neighbours are alike. We imitate that by sorting the stories, and compare the first words of
100 neighbours in sorted and in shuffled order. `permutation` gives each index a random number, and sorts the indices by
these numbers.
"""


# %%
#| export shards
#| blank permutation: draw n raw numbers from np.random.PCG64(key); np.argsort gives their indices in the numbers' order
def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, numbers from 0 on."""
    # NumPy promises never to change these raw bits, but not what Generator.permutation makes of them (NEP 19).
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


# %%
in_order = sorted(documents)
shuffled = [in_order[i] for i in permutation(len(in_order), 0)]
for texts in (in_order, shuffled):
    for start in (0, 100):
        first = Counter(text.split()[0] for text in texts[start : start + 100])
        print(f"stories {start} to {start + 99} begin with {dict(first.most_common(4))}")

# %% [markdown]
r"""
In the sorted corpus the first 100 stories all begin with the same word. The gradient of such a batch teaches the model
that every story begins like this, and a later batch teaches something else. But a training step should follow the
gradient of the whole corpus. The gradient of a batch is a fair estimate of it if the documents of the batch are a
random sample.

One pass over the corpus is called an *epoch*. Each epoch gets a new order, so it makes new batches of the same stories.
The order depends on nothing but the numbers that `permutation` gets, such as the seed and the epoch. A program that was
restarted can compute it again and need not have stored it.

## A stream of batches

Now we put the parts together: an endless stream of tokens, which has a new order in every epoch, cut into rows as in the
first section. `shuffle_documents` shuffles the documents of one shard, and `describe_shards` reads from the manifest
which id begins a document.
"""


# %%
#| export shards
def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer document may be."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> np.ndarray:
    """The same tokens with their documents in another order."""
    documents = np.split(tokens, document_starts(tokens, eot)[1:])
    return np.concatenate([documents[i] for i in permutation(len(documents), *key)])


def describe_shards(paths: list[Path]) -> tuple[int, int]:
    """vocab_size and eot, as the manifest in the shards' folder says; without one, GPT-2's."""
    if not (paths[0].parent / "manifest.json").exists():
        return 50257, 50256
    manifest = load_manifest(paths[0].parent)
    return manifest["vocab_size"], manifest["eot"]


# %%
small = np.array([9, 1, 1, 1, 9, 2, 9, 3, 3, 9, 4, 4, 4])  # four documents; here 9 is <|endoftext|>
for epoch in range(3):
    print(f"epoch {epoch}:", shuffle_documents(small, 9, epoch))

# %% [markdown]
r"""
Every document stays in one piece; only the order changes.

The class below is written in four cells, and a line like `class BatchStream(BatchStream)` continues it. You may change
one of these cells and run it alone: the course runs the others again if they depend on it, and says so.
"""


# %%
#| export
class BatchStream:
    """Batches from an endless stream of tokens, each of which is an input once an epoch."""

    def __init__(self, shards, B: int, T: int, seed=0, device="cpu"):
        if min(B, T) < 1:
            raise ValueError(f"a stream needs B, T >= 1: {B, T}")
        self.B, self.T = B, T
        self.seed, self.device = seed, device
        self.position = 0  # how many tokens the batches so far have consumed
        self.paths = sorted(map(Path, shards))
        self.vocab_size, self.eot = describe_shards(self.paths)[:2]
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.epoch_length = sum(map(len, self.tokens))
        self._shuffled = {}

    @property
    def epoch(self) -> int:
        return self.position // self.epoch_length


# %% [markdown]
r"""
`position` counts the tokens that the batches so far have used. `read` returns *n* tokens of the stream, beginning at any
place. It finds the epoch and the shard of this place, shuffles the shard, and goes on to the next shard or the next
epoch if it needs more. The last number of the key is 0 for the order of the shards and i + 1 for the documents of shard
i, so that no two orders are equal. `next_batch` then cuts these tokens into rows. The last two methods save and restore
the place in the stream.
"""


# %%
#| export
class BatchStream(BatchStream):
    def read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            # the shard that has token `start`, and the token's place in it
            epoch, offset = divmod(start, self.epoch_length)
            for i in permutation(len(self.tokens), self.seed, epoch, 0).tolist():
                if offset < len(self.tokens[i]):
                    break
                offset -= len(self.tokens[i])
            # its documents in this epoch's order; the last shard's are kept
            key = (self.seed, epoch, i)
            if key not in self._shuffled:
                self._shuffled = {key: shuffle_documents(self.tokens[i], self.eot, self.seed, epoch, i + 1)}
            part = self._shuffled[key][offset : offset + n]
            parts.append(part)
            start += len(part)
            n -= len(part)
        return np.concatenate(parts)


# %%
#| export
#| blank BatchStream.next_batch: x is each row without its last token, y is each row without its first
class BatchStream(BatchStream):
    def rows(self) -> np.ndarray:  # (B, T + 1): the last token of each is the first of the next
        n = self.B * self.T
        if self.epoch_length <= n:
            length = f"{self.epoch_length:,} tokens"
            raise ValueError(f"{length}, but a step takes {n:,} + 1; lower B or T, or add text")
        tokens = self.read(self.position, n + 1)
        self.position += n
        return np.stack([tokens[at : at + self.T + 1] for at in range(0, n, self.T)])

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        rows = self.rows()
        return to_device(rows[:, :-1], rows[:, 1:], self.device)


# %%
#| export
class BatchStream(BatchStream):
    def state_dict(self) -> dict:
        """What resumes the stream at exactly this place, with any B and T."""
        return {"seed": self.seed, "position": self.position}

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = state["seed"], state["position"]


# %%
paths = open_shards(corpus, "train")
print(*map(tokenizer.decode, BatchStream(paths, B=3, T=12).next_batch()[0].tolist()), sep="\n")

# %% [markdown]
r"""
*Check.* A correct loader obeys this law: **in every epoch each token is an input exactly once.** We test it with 6,500
tokens in two shards. The size of a batch does not divide their number. The tokens are the numbers 0 to 6,499, so we can
tell them apart. Only every seventh is replaced by `<|endoftext|>`, so that there are documents to shuffle: without it
each shard would be a single document. A manifest says which id this is. The targets obey a law, too: the target of an
input is the next input.
"""

# %%
N, EOT = 6_500, 6_500
numbers = np.where(np.arange(N) % 7 == 0, EOT, np.arange(N))
law = [Path(scratch.name) / "law" / f"train_{i:06d}.bin" for i in range(2)]
listed = []
for shard, part in zip(law, np.split(numbers, [3 * N // 5])):
    write_shard(shard, part)
    listed.append({"file": shard.name, "tokens": len(part)})
save_manifest(law[0].parent, {"vocab_size": N + 1, "eot": EOT, "splits": {"train": {"shards": listed}}})

stream, seen, targets = BatchStream(law, 5, 77), [], []
while stream.epoch < 2:
    x, y = stream.next_batch()
    seen += x.flatten().tolist()
    targets += y.flatten().tolist()
for epoch in (seen[:N], seen[N : 2 * N]):
    assert sorted(epoch) == sorted(numbers), "a token was read twice, or never"
assert seen[:N] != seen[N : 2 * N] and seen[:N] != numbers.tolist(), "nothing was shuffled"
assert targets[:-1] == seen[1:], "a target is not the next input"
print(
    f"two epochs of {N:,} tokens in {len(numbers[numbers == EOT])} documents: each token was an input once an epoch"
)

# %% [markdown]
r"""
## What a row can see

Look again at the three rows printed above the check. The first row begins with a story, because the stream does. The
other rows begin in the middle of a story, and there the model cannot see where the story takes place, or who is meant.

*Predict.* Suppose that rows of 128 tokens begin at random places. What share of all tokens belongs to a story that
began before their row?
"""

# %%
predict("03.1", "tokens whose story began before their row, T = 128", guess=None, unit="%")


# %%
def unseen_share(lengths: list[int], T: int) -> float:
    unseen = [min(before, T) / T for n in lengths for before in range(n)]
    return sum(unseen) / len(unseen)


lengths = [len(tokenizer.encode(text)) + 1 for text in documents[:300]]
print(f"stories have {min(lengths)} to {max(lengths)} tokens; share whose story began before the row:")
for row in (1024, 512, 256, 128):
    print(f"T = {row:4}: {unseen_share(lengths, row):4.0%}")
answer("03.1", 100 * unseen_share(lengths, 128))

# %% [markdown]
r"""
The computation is as follows. Take a token that has `before` tokens of its story in front of it. The row that contains
it can begin at T places. At `min(before, T)` of them, the row begins after the beginning of the story.

For these tokens, the model cannot see facts that were said before the row. So the loss on such rows has a higher floor
than the one of chapter 02. If documents are about as long as a row, it is better to begin every row with a document, as
nanochat does. Chapter 07 trains on such rows. The law above does not hold for them: a row runs on into the next story, so many tokens are inputs twice in an epoch, and each *document* begins one row. In the class below, `position` counts rows, and an epoch ends when each
document has begun one row. The documents are numbered through all shards: `ends` says after how many documents each
shard ends, and `searchsorted` finds the shard of a document. At the end of a shard, a row goes on at its beginning
(`mode="wrap"`).
"""


# %%
#| export
class DocumentStream(BatchStream):
    """Batches whose rows each begin with a document and run on into the next. Each begins one row an epoch."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        starts = [np.flatnonzero(tokens == self.eot) for tokens in self.tokens]
        self.starts = np.concatenate(starts)
        self.ends = np.cumsum([len(places) for places in starts])
        self.epoch_length = len(self.starts)

    def rows(self) -> np.ndarray:
        rows = []
        for n in range(self.position, self.position + self.B):
            # the document that begins row n of the stream
            epoch, number = divmod(n, self.epoch_length)
            if (self.seed, epoch) not in self._shuffled:
                self._shuffled = {(self.seed, epoch): permutation(self.epoch_length, self.seed, epoch)}
            document = self._shuffled[self.seed, epoch][number]
            # its tokens and what follows
            tokens = self.tokens[np.searchsorted(self.ends, document, side="right")]
            if len(tokens) <= self.T:
                length = f"{len(tokens)} tokens"
                raise ValueError(f"{length}, but a row takes {self.T} + 1; lower T, or add text")
            rows.append(tokens.take(self.starts[document] + np.arange(self.T + 1), mode="wrap"))
        self.position += self.B
        return np.stack(rows)


# %%
print(*map(tokenizer.decode, DocumentStream(paths, B=2, T=128).next_batch()[0].tolist()), sep="\n\n")

# %% [markdown]
r"""
Each row begins with a story. When the story is over, the row continues with the story that is next in the file. When
the model reads this second story, it can look back at the *first* story, which has nothing to do with it. Is that
harmful?

It can be. The model has to learn to ignore the text before an `<|endoftext|>`. GPT-3 was trained like that: its authors
put several documents into one row, and relied on the end-of-text token to tell the model that they are unrelated
(Brown et al. 2020, appendix B). We could also hide the first story with a *mask*, so that every token sees only its own
document. The authors of Llama 3 found that such a mask made little difference at ordinary lengths, but mattered for
very long rows (Dubey et al. 2024, §3.2). A mask makes attention more complicated, so this course trains without one.

Rows that begin with a document have a disadvantage, too. If documents are much longer than a row, only their beginnings
are read. For such texts there are better ways to fill the rows; the reading list names two.

## Going on after a crash

A long run may be interrupted. A run that simply starts its stream again reads the first batches of the corpus a second
time, and perhaps never reaches the last ones. It should go on with exactly the batch that would have come next. With our
stream this is easy, because its order can be computed from the seed: `state_dict` saves only two numbers, the seed and
the position. What is lost are the steps after the last save, and the same batches come again for them. The text must
be the same, of course; the state does not check it yet.
"""


# %%
stream, again = BatchStream(paths, 5, 77, seed=7), BatchStream(paths, 5, 77)
for _ in range(100):
    stream.next_batch()
again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
assert torch.equal(stream.next_batch()[0], again.next_batch()[0]), "the resumed stream goes on elsewhere"
print(f"both streams are at token {again.position:,} and read the same batch")

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

- **03-1** Ranks that part company, 25 minutes: repair `Loader`, so that no token is lost and no rank decides.
- **03-2** A resume that reads the wrong rows, 20 minutes: repair it, as two repositories had to.
- **03-3** A shard, byte by byte, 15 minutes: sizes, places, and what comes back of an id that is too large.
- **03-4** How often is a token learned?, 30 minutes: count what rows that begin with a document read and leave out.
- **03-5** A check for loaders, 40 minutes: write the check that finds lost and repeated tokens.
- **03-6** Six in place of eight, 10 minutes: say what changes when a run goes on with fewer GPUs.

To explore:

- **Rows and what they leave out.** Which share of the stories' tokens does `DocumentStream` never read as a target at
  T = 32, and how often does it read the others in an epoch? Which documents of a web text does it favour?
- **One wrong bit.** Change one bit of a shard in a folder of your own. Which changes does `read_shard` notice, and
  which does nothing in this chapter notice? What would you store to notice all of them?

## Further reading

- The format: [llm.c](https://github.com/karpathy/llm.c), `dev/data/data_common.py` (writing) and `llmc/dataloader.h` (reading).
- Rows that begin with a document: [nanochat](https://github.com/karpathy/nanochat), `nanochat/dataloader.py`, which also chooses the documents of a row so
  that little is cut off, and says how much still is.
- Brown et al. 2020, [*Language Models are Few-Shot Learners*](https://arxiv.org/abs/2005.14165), appendix B: several documents in a row.
- Dubey et al. 2024, [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), §3.2: a mask between documents.
- Lee et al. 2022, [*Deduplicating Training Data Makes Language Models Better*](https://arxiv.org/abs/2107.06499), §4: near-duplicates, and what they do.
- Ding et al. 2024, [*Fewer Truncations Improve Language Modeling*](https://arxiv.org/abs/2404.10830), §2: what packing costs, and a better packing.
- NumPy's [NEP 19](https://numpy.org/neps/nep-0019-rng-policy.html): which random numbers are promised to stay the same.
"""
