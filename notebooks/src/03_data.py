# %% [markdown]
r"""
# 03 · Data: from a text to batches

Training asks one question over and over: give me the next batch. In this chapter we answer it. A first answer takes
five lines. Then we look for what hurts, one thing at a time. The text is tokenized again at every start, so we keep
the ids in files. Neighbours in a corpus are alike, so we shuffle. Rows begin in the middle of a story, so we let them
begin at its start. In the end, a run that was interrupted goes on with exactly the batch that would have come next.

A mistake in this part of a program is treacherous because nothing crashes. A loader that reads some tokens twice and
others never still delivers batches, and the loss still falls. So we shall look for laws that a wrong loader breaks.
"""

# %%
#| default_exp text.data
#| doc text.files: Files that are complete or not there.
#| doc text.shards: Token ids on disk in llm.c's format, with a manifest that says what they are.
#| doc text.data: Batches from shards: no token lost, none seen twice, resumed at exactly the same token.
import tempfile
from collections import Counter

import numpy as np

from course.figures import data as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpora.corpus import Story, entropy, stories
from nanogpt.text.tokenizer import BPETokenizer

# %%
#| export text.files
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
tokens = np.array([id for text in documents[:20] for id in (tokenizer.eot, *tokenizer.encode(text))])
print(f"{len(tokens):,} tokens; the first ones: {tokens[:12]}")

# %% [markdown]
r"""
A language model learns to predict the next token. So a text of *n* tokens is *n* − 1 questions with their answers:
after these tokens, which one came next? Here is a batch of such questions, cut from the array in five lines.
"""

# %%
B, T = 2, 5  # rows in a batch, tokens in a row
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
A row of five tokens asks five questions, and the model answers all of them at once. Where x has its t-th token, the
model sees x up to there and has to say the t-th token of y. (It must not look further to the right. Chapter 04 takes
care of that.)

The last token of the first row, as a target, is the first token of the second row as an input. So no question is lost
between two rows.

## All batches

The second batch begins where the first one ended, and so on to the end of the array.
"""


# %%
def batches(tokens: np.ndarray, B: int, T: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(tokens) - B * T, B * T):
        part = tokens[start : start + B * T + 1]
        yield part[:-1].reshape(B, T), part[1:].reshape(B, T)


print(f"{len(list(batches(tokens, B, T)))} batches of {B * T} tokens, from an array of {len(tokens):,}")

# %% [markdown]
r"""
This is a complete data loader, and for a small experiment it is all you need. The rest of the chapter removes what is
wrong with it for a long run on a large text.

PyTorch wants tensors of the type int64, on the device where the model is:
"""

# %%
#| export text.data
from pathlib import Path

import numpy as np
import torch


def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    return tuple(torch.from_numpy(tokens.astype(np.int64)).to(device) for tokens in (x, y))


# %%
print(to_device(x, y, "cpu")[0])

# %% [markdown]
r"""
## Ids in a file

Our program tokenizes its text again at every start. With a large text that is a waste, so one does it once and keeps
the ids in files. A large corpus is split into several files, called *shards*. We use the format of llm.c: a header of
1,024 bytes, and then the ids, two bytes each, which is enough for ids up to 65,535. GPT-2 has 50,257 different ids,
so a text of ten billion tokens takes 20 GB. There is no index. A document begins wherever the id of `<|endoftext|>`
is.

Before we write such a file, one precaution. Suppose that the computer stops in the middle of writing. The next run
would find half a file and take it for a complete one. If an older version was there, it is lost. The remedy is old
and simple: write under another name, and rename the file when it is complete. For the operating system, renaming is a
single step. A reader finds either the old file or the new one, and never something between.
"""


# %%
#| export text.files
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
The first three numbers of the header say that the file is a shard (*magic*), which version of the format it has, and
how many tokens follow.
"""

# %%
#| export text.shards
import hashlib
import json
from pathlib import Path

import numpy as np

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


# %%
#| export text.shards
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
show(
    figures.shard_bytes(path, tokenizer),
    alt="A shard's first bytes: magic, version, tokens, zeros; then two an id",
)

# %% [markdown]
r"""
Two bytes an id, the low byte first (*little-endian*). Read backwards, the magic number is 20240520 in decimal, a
date.

To read, we use a *memory map*: the file looks like an array, and the operating system fetches only those pages of it
that the program touches. So a shard need not fit into memory. Opening checks what costs nothing: the magic number,
the version, and whether the file is as long as its header says.
"""


# %%
#| export text.shards
def read_shard(path: str | Path) -> np.ndarray:
    """The tokens of a shard, a read-only uint16 memory map. ValueError if it is another file, or a damaged one."""
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
print("read as written:", np.array_equal(read_shard(path), tokens))

# %% [markdown]
r"""
## Train, validation, test

A model is judged on text that it was not trained on. So a part of the documents, *val*, is kept for measuring during
the work, and another, *test*, for the very end.

How should we choose them? One could shuffle all documents and take a tenth. But when documents are added next month,
the shuffle gives another choice, and yesterday's validation text is trained on today. It is better to let each
document decide for itself. We compute its SHA-256, a hash that looks random but is always the same for the same text,
and read it as a number between 0 and 1.
"""


# %%
#| export text.shards
#| blank split_of: read eight bytes of the hash as a number from 0 to 1 and compare it with the fractions
def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions."""
    u = int.from_bytes(sha256[:8], "big") / 2**64
    return "val" if u < val else "test" if u < val + test else "train"


def file_sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(tokenizer) -> dict:
    """What a manifest says of the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


# %%
splits = Counter(split_of(hashlib.sha256(text.encode()).digest(), 0.05, 0.05) for text in documents)
print(dict(splits))

# %% [markdown]
r"""
Equal documents have equal hashes, so a document that is there twice is never in two splits. A copy that differs in a
single space can be (Lee et al. 2022, §4).

## The corpus of this course

A folder of shards needs a label. Ids do not say which tokenizer made them, and a model that reads them with another
vocabulary learns nonsense. So beside the shards we write a *manifest*, a small JSON file: how the text was made, by
which tokenizer, and how many tokens are in which file.
"""


# %%
#| export text.shards
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
Later chapters train on 50,000 stories. `ensure_corpus` writes them if they are not there yet, with the floor of the
validation split in the manifest. (A flipped bit in a shard would go unnoticed. These shards can be made again in
seconds, so we accept that here. Chapter 16 lets the manifest prove that every byte is what was written.)
"""

# %%
#| export corpora.corpus
import hashlib
import os
from contextlib import suppress
from pathlib import Path


def _write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    members: dict[str, list[Story]] = {split: [] for split in SPLITS}
    for story in stories(source["stories"], source["seed"]):
        members[split_of(hashlib.sha256(story.text.encode()).digest(), 0.05, 0.05)].append(story)
    if not all(members.values()):
        raise ValueError(f"{source['stories']} stories leave none for val or test; take 200 or more")
    encoding, held = tokenizer.to_tiktoken(), {}
    for split, told in members.items():
        text, path = "".join(f"<|endoftext|>{story.text}" for story in told), folder / f"{split}_000000.bin"
        write_shard(path, ids := encoding.encode_to_numpy(text, allowed_special="all"))
        size = sum(len(story.text.encode()) for story in told)
        shard = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
        held[split] = {"documents": len(told), "bytes": size, "tokens": len(ids), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    floor = -sum(story.logprob for story in members["val"]) / held["val"]["tokens"]
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    return save_manifest(folder, manifest | {"floor": floor})


# %%
#| export corpora.corpus
def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The manifest of n stories as shards in `folder`, which are made where they are absent, others or damaged.

    tokenizer: by default the one that chapter 01 left in the folder above, or else the same, trained here.
    """
    from nanogpt.text.tokenizer import BPETokenizer  # here: telling stories needs none of its packages

    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # another grammar, another corpus
    with suppress(OSError, ValueError, LookupError):  # absent or damaged: made again
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source and all(open_shards(folder, split) for split in SPLITS):
            return manifest
    (folder / "manifest.json").unlink(missing_ok=True)  # first: it must not describe what is replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return _write_corpus(folder, tokenizer, source)


# %%
corpus = Path("../data/built/stories")
manifest = ensure_corpus(corpus)
tokenizer = BPETokenizer.load(corpus / "tokenizer.json")
for split, held in manifest["splits"].items():
    print(f"{split:5} {held['documents']:6,} stories, {held['tokens']:9,} tokens, {held['bytes']:10,} bytes")
print(f"floor of val: {manifest['floor']:.3f} nats a token")

# %% [markdown]
r"""
## Why one shuffles

Our loader reads the corpus in the order in which it was written. Is that a problem? A corpus from the web comes site
by site, so neighbours are alike. We can imitate that by sorting the stories. With which word do the stories of a
batch begin?
"""


# %%
#| export text.shards
#| blank permutation: draw n raw numbers with this key and sort their indices by them
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
In the sorted corpus a whole batch begins with one word. The gradient of such a batch says "every story begins like
this", and the next batch says something else. But a step of training should follow the gradient of the whole corpus.
A batch is a fair estimate of it if its documents are a random sample of the corpus. That is why one shuffles.

Our stories are drawn independently, so for them the order does not matter in the first pass. From the second pass
(*epoch*) on, a new order still helps: it makes other batches of the same stories.

The order comes from `permutation(n, seed, epoch)`. It depends on nothing else. So a program that was restarted can
compute the order again, and need not have stored it.

## A stream of batches

Now we put it together: an endless stream that shuffles the documents of each shard anew in every epoch, and cuts it
into rows as in the first section.
"""


# %%
#| export text.shards
def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer one may stand."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> np.ndarray:
    """The same tokens with their documents in another order."""
    documents = np.split(tokens, document_starts(tokens, eot)[1:])
    return np.concatenate([documents[i] for i in permutation(len(documents), *key)])


def described(paths: list[Path]) -> tuple[int, int, list[str] | None]:
    """Of shards in one folder: vocab_size and eot, by the manifest beside them or else GPT-2's, and its hashes."""
    if not (paths[0].parent / "manifest.json").exists():
        return 50257, 50256, None
    manifest = load_manifest(paths[0].parent)
    listed = {s["file"]: s["sha256"] for split in manifest["splits"].values() for s in split["shards"]}
    return manifest["vocab_size"], manifest["eot"], [listed[path.name] for path in paths]


# %%
small = np.array([9, 1, 1, 1, 9, 2, 9, 3, 3, 9, 4, 4, 4])  # four documents; here 9 is <|endoftext|>
for epoch in range(3):
    print(f"epoch {epoch}:", shuffle_documents(small, 9, epoch))

# %% [markdown]
r"""
One more question must be answered before we write the class. From chapter 20 on, several processes (*ranks*) train
together, and each must get its own part of every batch. A common mistake is that each rank counts for itself and
decides for itself when to open the next shard. Sooner or later two ranks decide differently, and from then on some
tokens are read twice and others never. (Exercise 03-1 is such a loader, to be repaired.)

Our ranks decide nothing. There is one stream for all. A step takes the next `world_size * B * T` tokens of it, and
rank r takes the r-th part of those. With one rank, which is the default, it is the loader that you know. (The class
continues in the next two cells. After a change in one of them, run the cells below it again.)
"""


# %%
#| export text.data
class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks so that each token is an input once an epoch."""

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        if min(B, T) < 1 or rank not in range(world_size):
            raise ValueError(
                f"a stream needs B, T >= 1, 0 <= rank < world_size; got {B, T, rank, world_size}"
            )
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.position = 0  # what all ranks together have consumed
        self.paths = sorted(map(Path, shards))
        self.vocab_size, self.eot, _ = described(self.paths)
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.epoch_length, self._shuffled = sum(map(len, self.tokens)), {}

    @property
    def epoch(self) -> int:
        return self.position // self.epoch_length


# %%
#| export text.data
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
            key = (self.seed, epoch, i)
            if key not in self._shuffled:  # the last shard's is kept
                self._shuffled = {key: shuffle_documents(self.tokens[i], self.eot, self.seed, epoch, i + 1)}
            parts.append(self._shuffled[key][offset : offset + n])
            start, n = start + len(parts[-1]), n - len(parts[-1])
        return np.concatenate(parts)


# %%
#| export text.data
#| blank BatchStream.next_batch: x is each row without its last token, y is each row without its first
class BatchStream(BatchStream):
    def rows(self) -> np.ndarray:  # (B, T + 1): the last token of each is the first of the next
        n, step = self.B * self.T, self.world_size * self.B * self.T
        if self.epoch_length <= step:
            raise ValueError(
                f"{self.epoch_length:,} tokens, but a step takes {step:,} + 1; lower B or T, or add text"
            )
        start, self.position = self.position + self.rank * n, self.position + step
        tokens = self.read(start, n + 1)
        return np.stack([tokens[at : at + self.T + 1] for at in range(0, n, self.T)])

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        rows = self.rows()
        return to_device(rows[:, :-1], rows[:, 1:], self.device)


# %%
paths = open_shards(corpus, "train")
print(*map(tokenizer.decode, BatchStream(paths, B=3, T=12).next_batch()[0].tolist()), sep="\n")

# %% [markdown]
r"""
*Check.* Here is the law that a right loader obeys: **in every epoch each token is an input exactly once.** We test it
with two shards in which every token is its own number, with three ranks, and with a batch that does not divide the
text evenly. (That every target is the next input, and much else, is in the chapter's tests.)
"""

# %%
N, RANKS = 6_500, 3
law = [Path(scratch.name) / "law" / f"train_{i:06d}.bin" for i in range(2)]
for shard, numbers in zip(law, np.split(np.arange(N), [3 * N // 5])):
    write_shard(shard, numbers)
streams, seen = [BatchStream(law, 5, 77, rank, RANKS) for rank in range(RANKS)], []
while streams[0].epoch < 2:
    for stream in streams:
        seen += stream.next_batch()[0].flatten().tolist()
for epoch in (seen[:N], seen[N : 2 * N]):
    assert sorted(epoch) == list(range(N)), "a token was read twice, or never"
print(f"two epochs of {N:,} tokens on {RANKS} ranks: each token was an input once an epoch")

# %% [markdown]
r"""
## What a row can see

Look again at the rows printed above. The first one begins with a story, because the stream does. All others begin
where they happen to, mostly in the middle of a story. The names and numbers were said before the row began, and the
model cannot see them.

*Predict.* Rows of 128 tokens are cut at random. How many of all tokens belong to a story that began before their row?
"""

# %%
predict("03.1", "tokens whose story began before their row, T = 128", guess=None, unit="%")


# %%
lengths = [len(tokenizer.encode(text)) + 1 for text in documents[:300]]
print(f"stories have {min(lengths)} to {max(lengths)} tokens; share whose story began before the row:")
for T in (1024, 512, 256, 128):
    unseen = sum(min(before, T) / T for n in lengths for before in range(n)) / sum(lengths)
    print(f"T = {T:4}: {unseen:4.0%}")
answer("03.1", 100 * unseen)

# %% [markdown]
r"""
No model can know what such tokens depend on. So the loss on such rows has a higher floor than the one of chapter 02.
For stories that are about as long as a row, it is better to begin every row with a story, as nanochat does. Chapter
07 trains on such rows.
"""


# %%
#| export text.data
class DocumentStream(BatchStream):
    """Batches whose rows each begin with a document and run on into the next. Each begins one row an epoch."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        starts = [np.flatnonzero(tokens == self.eot) for tokens in self.tokens]
        self.starts, self.ends = np.concatenate(starts), np.cumsum([len(found) for found in starts])
        self.epoch_length = len(self.starts)

    def rows(self) -> np.ndarray:
        first, rows = self.position + self.rank * self.B, []
        for n in range(first, first + self.B):
            epoch, number = divmod(n, self.epoch_length)
            if (self.seed, epoch) not in self._shuffled:
                self._shuffled = {(self.seed, epoch): permutation(self.epoch_length, self.seed, epoch)}
            document = self._shuffled[self.seed, epoch][number]
            tokens = self.tokens[np.searchsorted(self.ends, document, side="right")]
            rows.append(tokens.take(self.starts[document] + np.arange(self.T + 1), mode="wrap"))
        self.position += self.world_size * self.B
        return np.stack(rows)


# %%
print(*map(tokenizer.decode, DocumentStream(paths, B=2, T=128).next_batch()[0].tolist()), sep="\n\n")

# %% [markdown]
r"""
Each row begins with a story, and when the story is over, the row runs on into the next one. So look at the second
story of a row. When the model reads it, it can look back at the *first* story, which has nothing to do with it. Is
that harmful?

It can distract: other names and other numbers are in sight. The model has to learn that what comes before an
`<|endoftext|>` does not matter. GPT-3 was trained like that. Its authors put several documents into one row without a
mask, and relied on the end-of-text token to tell the model that they are unrelated (Brown et al. 2020, appendix B).

One may also hide the first story by a *mask*, so that every token sees only its own document. Llama 3 does it. Its
authors found that the mask made little difference at ordinary lengths, and mattered when they went on training with
very long rows (Dubey et al. 2024, §3.2). A mask makes attention more complicated, so this course trains without one.

Rows that begin with a document have a price, too. If documents are much longer than a row, only their beginnings are
read. Real text is better packed differently; the reading list names two ways.

## Going on after a crash

A long run is interrupted sooner or later. It should then go on with exactly the batch that would have come next. With
our stream this is easy, because its order can be computed from the seed. All that has to be saved is the seed and one
number, the position. (It must also be the same text. Chapter 16 adds the hashes of the shards to the state, so that
going on in another text is refused.)
"""


# %%
#| export text.data
class BatchStream(BatchStream):
    def state_dict(self) -> dict:
        """What resumes the stream at exactly this place, with any B, T and number of ranks."""
        return {"seed": self.seed, "position": self.position}

    def load_state_dict(self, state: dict) -> None:
        self.seed, self.position = state["seed"], state["position"]


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

- The format: llm.c, `dev/data/data_common.py` (writing) and `llmc/dataloader.h` (reading).
- Rows that begin with a document: nanochat, `nanochat/dataloader.py`, which also chooses the documents of a row so
  that little is cut off, and says how much still is.
- Brown et al. 2020, *Language Models are Few-Shot Learners*, appendix B: several documents in a row.
- Dubey et al. 2024, *The Llama 3 Herd of Models*, §3.2: a mask between documents.
- Lee et al. 2022, *Deduplicating Training Data Makes Language Models Better*, §4: near-duplicates, and what they do.
- Ding et al. 2024, *Fewer Truncations Improve Language Modeling*, §2: what packing costs, and a better packing.
- NumPy's NEP 19: which random numbers are promised to stay the same.
"""
