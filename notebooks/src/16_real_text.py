# %% [markdown]
r"""
# 16 · Real text into shards

The stories of chapter 02 come from a generator, one string each. Real text comes in files that other people wrote. Before a model can
train on it, somebody has to turn it into token ids and write these to disk in the form of chapter 03, as *shards*.

For one file this takes five lines, and we begin with them. What takes more thought is that the shards stay on a disk for months, and are read by other programs on other machines. Then three things can
go wrong. A different vocabulary reads the same ids as other words. A run that is stopped leaves
half a file behind. A training run that is resumed goes on in other shards with the same names. None of these raises an error when it happens. We shall cause each mistake here, look at it,
and remove it.

This chapter reads a text as a whole. Files that do not fit into memory, and files of other kinds, are the subject of the optional sittings 16a and 16b.
"""

# %%
#| default_exp labs.corpora.text
#| doc labs.corpora.text: One text file into shards, in one process.
#| doc labs.corpora.vocab: The tokenizer that a name, a file or a folder stands for.
import hashlib
import json
import os
import random
import tempfile
import time
import warnings
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from course.figures import real_text as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.files import save_json
from nanogpt.shards import MAGIC, SPLITS, VERSION, file_sha256, identity, load_manifest
from nanogpt.shards import read_shard, save_manifest, shard_header, write_shard
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import BPETokenizer

# %%
#| export labs.corpora.text
import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanogpt.shards import SPLITS, file_sha256, identity, save_manifest, write_shard
from nanogpt.labs.corpora.splits import split_of
from nanogpt.tokenizer import BPETokenizer

# %% [markdown]
r"""
All sizes are set here. `A_FILE` says how many stories go into one file of the kill experiment, and `KILLS` how often we shall kill a run.
"""

# %%
STORIES, VOCAB = 1000, 400  # this chapter's text, and the tokens that are learned from it
A_FILE, KILLS = 20, 8

# %% [markdown]
r"""
## One file, one shard

Here is a text file. It holds a thousand stories with blank lines between them. We train a small tokenizer on the same text, so that the chapter
runs without a download. The next cell writes the file into a temporary folder, trains the tokenizer, and prints the beginning of the text.
"""

# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
path = folder / "stories.txt"
documents = [story.text for story in stories(STORIES)]
path.write_text("\n\n".join(documents), encoding="utf-8", newline="\n")
tokenizer = BPETokenizer.train(documents, VOCAB)
encode = tokenizer.encode
print(f"{path.stat().st_size:,} bytes of text, {tokenizer.vocab_size} tokens in the vocabulary")
print(documents[0][:70], "...")

# %% [markdown]
r"""
Now the complete preparation of a small text: read the file, encode it, put `<|endoftext|>` in front, and write the ids. The token in front
says where a document begins (chapter 03).
"""

# %%
text = path.read_text(encoding="utf-8")
ids = np.array([tokenizer.eot, *encode(text)])
write_shard(folder / "train_000000.bin", ids)
print(f"{len(text):,} characters became {len(ids):,} ids")

# %% [markdown]
r"""
It is always worth looking at what was written. We read the shard back, print the first ids, and decode each of them alone. Then we compare the size of the
file with what we expect: a header of 1,024 bytes, and two bytes for each id.
"""

# %%
shard = read_shard(folder / "train_000000.bin")
print(shard[:9].tolist())
print("|".join(tokenizer.decode([i]) for i in shard[:9]))
size = (folder / "train_000000.bin").stat().st_size
print(f"{size:,} bytes = 1,024 + 2 × {len(shard):,}")
assert size == 1024 + 2 * len(shard), "the file has another size than its header promises"
assert tokenizer.decode(shard[1:].tolist()) == text, "decoding the shard gives another text"

# %% [markdown]
r"""
The shard begins with id 399, which is `<|endoftext|>`, and then spells "It was a fogg": the first story. That is all there is to it, as long as one person writes the shard and reads it on the same day.

## Which vocabulary?

A shard contains numbers, and nothing in the shard says what they mean. Suppose a colleague trained a tokenizer of the same size on another text, here
on the same stories with their letters in reverse.

*Predict.* Of a hundred ids of our shard, how many stand for the same bytes in the colleague's vocabulary?
"""

# %%
predict("16.1", "of 100 ids, how many mean the same in both vocabularies", guess=None)

# %%
other = BPETokenizer.train([document[::-1] for document in documents], VOCAB)
same = np.array([ours == theirs for ours, theirs in zip(tokenizer.tokens, other.tokens)])
print(f"{100 * same[shard].mean():.0f} of 100 ids mean the same")
answer("16.1", round(100 * same[shard].mean()))
print(
    f"the same are {same[:256].sum()} of 256 single bytes and {same[256:-1].sum()} of {VOCAB - 257} learned tokens"
)
for name, reader in (("ours", tokenizer), ("another", other)):
    print(f"{name:8}", "|".join(reader.decode([i]) for i in shard[1:13]))
print("fingerprints", tokenizer.fingerprint[:8], "and", other.fingerprint[:8])

# %% [markdown]
r"""
38 of 100 ids mean the same. These are the single bytes, which have the same ids in every vocabulary of chapter 01, and `<|endoftext|>`. Of the 143 learned tokens none is the same. So the colleague's tokenizer reads "It was a foggy day at" as "It xis . ,oggyruof arailop", and some of it looks like text. Every id is valid, and nothing fails. A model would train on this, and its loss would fall. Only its samples would look odd, hours later.

The remedy is to write down which vocabulary made the ids. Chapter 01 gave each tokenizer a *fingerprint*, a hash of all its tokens, and chapter 03 wrote it to the
`manifest.json` beside the shards. From now on `open_shards` compares it. While we are at it, we close a second hole. The ids of a large text take hours to make and stay on disks for
months. If one bit flips in the meantime, the length is still right, and the id may be valid, too. The manifest has the SHA-256 of each file, so we can
compare that as well.

`check_shards` compares the bytes of the shards with the manifest. `open_shards` grows by two checks: first the fingerprint, if the caller gives one, then the bytes.
"""


# %%
#| export shards
def check_shards(folder: str | Path, manifest: dict, *splits: str) -> None:
    """Compare all bytes of these splits' shards, or of all, with the manifest. ValueError names the first damage."""
    for split in splits or manifest["splits"]:
        for shard in manifest["splits"][split]["shards"]:
            path = Path(folder) / shard["file"]
            if not path.exists():
                raise ValueError(f"{path} is gone, and its manifest lists it; prepare it again")
            if len(read_shard(path)) != shard["tokens"] or file_sha256(path) != shard["sha256"]:
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")


# %%
#| export shards
#| grows open_shards
def open_shards(folder: str | Path, split: str, fingerprint: str | None = None) -> list[Path]:
    """The paths of a split's shards, after comparing all their bytes, and a tokenizer's fingerprint, with the manifest."""
    manifest, folder = load_manifest(folder), Path(folder)
    if fingerprint not in (None, manifest["fingerprint"]):
        made, asked = manifest["fingerprint"][:8], fingerprint[:8]
        raise ValueError(f"{folder} was made with tokenizer {made}, not {asked}; prepare it again")
    shards = manifest["splits"].get(split, {}).get("shards")
    if not shards:
        remedy = "prepare it again with --paragraphs, or with a larger --val or --test"
        raise ValueError(f"{folder} has no tokens in a split named {split!r}; {remedy}")
    check_shards(folder, manifest, split)
    return [folder / shard["file"] for shard in shards]


# %% [markdown]
r"""
We write a manifest for our shard and try three calls: with the right vocabulary, with the other one, and with one flipped bit in the shard. At the end `grown` shows which lines of `open_shards` are new (`+`) and which are gone (`-`).
"""

# %%
listed = {"file": "train_000000.bin", "tokens": len(ids), "sha256": file_sha256(folder / "train_000000.bin")}
held = {"train": {"tokens": len(ids), "shards": [listed]}}
save_manifest(folder, {"source": "stories.txt", **identity(tokenizer), "splits": held})
print("as written:", [shard.name for shard in open_shards(folder, "train", tokenizer.fingerprint)])
try:
    open_shards(folder, "train", other.fingerprint)
except ValueError as error:
    print(str(error).replace(str(folder), "..."))
flipped = bytearray((folder / "train_000000.bin").read_bytes())
flipped[2000] ^= 1
(folder / "train_000000.bin").write_bytes(flipped)
try:
    open_shards(folder, "train")
except ValueError as error:
    print(str(error).replace(str(folder), "..."))
grown("open_shards")

# %% [markdown]
r"""
Both mistakes are refused in one sentence that says what to do. Reading all bytes takes time, but only once, when a run begins.

Who checks the manifest? It is a file like any other, and a wrong digit in its `vocab_size` would not raise an error either. So it gets a hash of itself, and `manifest_fault` looks whether its statements fit together: the sums of
tokens, plain file names, and no file listed twice. `save_manifest` and `load_manifest` grow by this check.
"""


# %%
#| export shards
#| blank manifest_sha256: of a dictionary without the key "sha256", as a text that json.dumps makes with sorted keys
def manifest_sha256(manifest: dict) -> str:
    """Hex SHA-256 of all that a manifest says, as JSON with sorted keys, but for this hash itself (its key "sha256")."""
    contents = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


# %%
#| export shards
import re


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
#| export shards
#| grows save_manifest load_manifest
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
We save a manifest, change one digit of the file, as in an editor, and load it. Then we try to save one whose sum is wrong.
"""

# %%
(folder / "checked").mkdir(exist_ok=True)
saved = save_manifest(folder / "checked", {"source": "stories.txt", **identity(tokenizer), "splits": held})
assert load_manifest(folder / "checked") == saved, "a manifest is another when it is read"
text_of_it = (folder / "checked/manifest.json").read_text()
(folder / "checked/manifest.json").write_text(text_of_it.replace('"vocab_size": 400', '"vocab_size": 401'))
wrong = {"train": {"tokens": len(ids) + 1, "shards": [listed]}}
for attempt in (
    lambda: load_manifest(folder / "checked"),
    lambda: save_manifest(folder / "checked", {"source": "", **identity(tokenizer), "splits": wrong}),
):
    try:
        attempt()
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
The first message is about the digit: the hash in the file is no longer that of the file. The second manifest was never written, because its sum of tokens is not that of its shards.

## A file is complete, or it does not exist

The next mistake happens when a run is interrupted. Encoding a large text takes hours, and machines are switched off, disks fill up, and clusters take
their machines back. We do not want to begin again from the start, so we write a shard for every twenty stories. A run that is started again skips all
files that exist already. `write_pieces` does this, and `write_simply` is the simplest way to write one shard.
"""

# %%
assert 0 < A_FILE <= STORIES // 10, "A_FILE: at least one story, and at most a tenth of them"
pieces = []  # the ids of each file
for at in range(0, STORIES, A_FILE):
    pieces.append([i for story in documents[at : at + A_FILE] for i in (tokenizer.eot, *encode(story))])
assert 0 < KILLS < len(pieces), "KILLS: from 1 to the number of files less one"


def write_pieces(out: Path, write) -> int:
    """Write a shard for each piece that has none; returns how many it wrote."""
    made = 0
    for n, ids in enumerate(pieces):
        if not (out / f"train_{n:06d}.bin").exists():
            write(out / f"train_{n:06d}.bin", ids)
            made += 1
    return made


def write_simply(path: Path, ids: list[int]) -> None:
    """Open the file and write the ids, ten at a time."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        file.write(shard_header(len(ids)))
        for at in range(0, len(ids), 10):
            file.write(np.array(ids[at : at + 10], "<u2").tobytes())


print(f"{write_pieces(folder / 'simple', write_simply)} shards written")

# %% [markdown]
r"""
Now we stop a run in the middle of its third file, and start it again. The function below does what `write_simply` does, but breaks off like a machine
that loses its power.
"""


# %%
def write_until_stopped(path: Path, ids: list[int]) -> None:
    """As write_simply, but the third file breaks off after 150 ids."""
    if path.name == "train_000002.bin":
        write_simply(path, ids)
        path.write_bytes(path.read_bytes()[: 1024 + 2 * 150])
        raise KeyboardInterrupt
    write_simply(path, ids)


try:
    write_pieces(folder / "stopped", write_until_stopped)
except KeyboardInterrupt:
    print("stopped with", len(list((folder / "stopped").iterdir())), "files")
print("started again:", write_pieces(folder / "stopped", write_simply), f"of {len(pieces)} written")
try:
    read_shard(folder / "stopped/train_000002.bin")
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
The second run saw a file with the right name and believed it. Here the header gives the damage away, because it was written first. Usually nobody would
read the file before the training does, perhaps a week later and on another machine.

The remedy is a rule for all files of this course: a file has its name only when it is complete. `write_shard` follows it. It writes to another name in the same
folder, flushes the data to the disk, and then renames the file, which the file system does in one step.

We test this the hard way. A child process writes the pieces. We wait until it has written a random number of files, and
end it with `kill -9`, so that Python gets no chance to tidy up. We do this eight times, and then let a last call finish the work. All files must be equal to those of the first run. As a control, the same is done with `write_simply`.

*Predict.* Of the fifty files, how many are damaged after eight kills if each is written in place?
"""

# %%
predict("16.2", "damaged files after eight kills, written in place", guess=None)


# %% tags=["nbval-ignore-output"]
def damaged_after_kills(out: Path, write) -> list[str]:
    """The files that differ from those of a run that was never stopped, after KILLS kills and a last call."""
    goals = sorted(random.Random(0).sample(range(1, len(pieces)), KILLS))  # files that we wait for
    for goal in goals:
        if not hasattr(os, "fork"):
            break  # Windows has no fork; the tests start processes there
        with warnings.catch_warnings(
            action="ignore"
        ):  # to fork beside threads is unwise; this child dies anyway
            child = get_context("fork").Process(target=write_pieces, args=(out, write))
            child.start()
        while child.is_alive() and len(list(out.glob("train_*.bin"))) < goal:
            time.sleep(0.0005)
        child.kill()
        child.join()
    write_pieces(out, write)
    names = [f"train_{n:06d}.bin" for n in range(len(pieces))]
    return [name for name in names if (out / name).read_bytes() != (folder / "simple" / name).read_bytes()]


in_place = damaged_after_kills(folder / "killed in place", write_simply)
print("written in place:", len(in_place), f"damaged files of {len(pieces)}")
answer("16.2", len(in_place))
damaged = damaged_after_kills(folder / "killed", write_shard)
print("renamed when complete:", len(damaged), f"damaged files of {len(pieces)}")
assert not damaged, f"{damaged[0]} is not the file of a run that was never stopped"
alt = "Fifty files in two rows: among those written in place some are damaged, of those renamed when complete none"
show(figures.files({"written in place": in_place, "renamed when complete": damaged}, len(pieces)), alt=alt)

# %% [markdown]
r"""
Each square is a file, and the red ones are damaged. A file that is written in place is damaged if the kill falls into its writing, and a kill may miss: we cannot aim it. We have repeated the cell twelve times on a busy machine. The eight kills left 4 to 8 damaged files each time when files were written in place, and never one with `write_shard`. However often a run is killed, the files that exist are complete, and the finished folder is the same to the byte. (A kill stands for a lost process. A lost power supply is what the flush is for, and we have not tried that.) The optional sitting 16b builds its command on this rule. It adds pieces
of many files, a manifest for each piece, and several processes.
"""

# %% [markdown]
r"""
## A text file into shards

With these parts, a text becomes shards in one function. Its first part, `read_documents`, reads a file and cuts it into documents, at its blank lines or at lines `<|endoftext|>`.
"""

# %%
#| export labs.corpora.text
#| blank read_documents: cut behind each match of BLANK_LINES, or at SEPARATOR's lines if there are any; refuse what is no text or empty
SEPARATOR = re.compile(r"(?m)^<\|endoftext\|>[ \t\r]*(?:\n|\Z)")
# a document's end with the blank lines behind it, in which there may be spaces
BLANK_LINES = re.compile(r"\S[^\S\n]*\n(?:[^\S\n]*\n)+(?=[^\S\n]*\S)", re.ASCII)


def read_documents(source: str | Path, paragraphs: bool = True) -> list[str]:
    """The documents of a UTF-8 text file: one ends at each blank line, or the text is one. ValueError if it is empty or no text.

    A text with lines <|endoftext|>, as TinyStories has them, is cut there instead.
    """
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8-sig")  # without the mark at its beginning that Windows writes
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start:,} is not UTF-8; convert it, say with iconv") from None
    if SEPARATOR.search(text):
        return list(filter(None, map(str.strip, SEPARATOR.split(text))))
    # a document keeps the blank lines at its end, so that all of them together are the text
    cuts = [found.end() for found in BLANK_LINES.finditer(text)] if paragraphs else []
    documents = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    if not text:
        raise ValueError(f"{path} is empty")
    return documents


# %%
(folder / "three.txt").write_text("One apple.\nTwo pears.\n\nThree plums.\n \n\nFour figs.\n")
for document in read_documents(folder / "three.txt"):
    print(repr(document))

# %% [markdown]
r"""
A line with nothing but a space counts as blank. Each document keeps the blank lines at its end, so that all documents together are the text.

A tokenizer is named in one of three ways: `gpt2`, a `tokenizer.json` of chapter 01, or a folder with the vocabulary files of a model from Hugging Face, which the optional sitting 16a reads. `prepare_text` also takes a number, and then trains a tokenizer of this size on the text.
"""

# %%
#| export labs.corpora.vocab
import os
from importlib import import_module
from pathlib import Path

from nanogpt.tokenizer import BPETokenizer


def read_tokenizer(name: str | os.PathLike) -> BPETokenizer:
    """GPT-2's tokenizer for "gpt2", that of chapter 01's tokenizer.json, or that of a Hugging Face folder or its vocab.json."""
    if str(name) == "gpt2":
        return BPETokenizer.gpt2()
    folder = Path(name).parent if Path(name).name == "vocab.json" else Path(name)
    if folder.is_dir():
        return import_module("nanogpt.labs.formats.merges").read_vocab(folder)  # of chapter 16a
    return BPETokenizer.load(name)


# %%
#| export labs.corpora.text
LEARN = 1 << 24  # characters of a text that a new tokenizer learns from


def to_learn_from(texts: Iterable[str]) -> Iterator[str]:
    """The first of the texts, with LEARN characters together, or a text more."""
    read = 0
    for text in texts:
        if read >= LEARN:
            return
        yield text
        read += len(text)


def tokenizer_for(documents: list[str], tokenizer: int | str | Path, folder: Path) -> BPETokenizer:
    """The one that is named, or a new one of so many tokens, learned from the first documents and saved."""
    if not isinstance(tokenizer, int):
        return read_tokenizer(tokenizer)
    coder = BPETokenizer.train(to_learn_from(documents), tokenizer)
    coder.save(folder / "tokenizer.json")
    return coder


# %%
#| export labs.corpora.text
def prepare_text(
    source: str | Path, folder: str | Path, tokenizer: int | str | Path = "gpt2", val=0.1, paragraphs=True
) -> dict:
    """Write a text file as shards into a folder, and last the manifest, which is returned.

    tokenizer: "gpt2", a tokenizer.json, or how many tokens a new one is to have, which is saved beside the shards. Each
    document's hash sends it to train or, with the probability `val`, to val. If none comes to val, as where a text is one
    document, val is the last part of the text.
    """
    source, folder = Path(source), Path(folder)
    documents = read_documents(source, paragraphs)
    with alone_in(folder, "prepare", "choose another folder"):
        coder = tokenizer_for(documents, tokenizer, folder)
        # the ids of each document, in its split, behind <|endoftext|>
        ids = {split: [] for split in SPLITS}
        for document in documents:
            digest = hashlib.sha256(document.encode()).digest()
            split = split_of(digest, val, 0.0) if len(documents) > 1 else "train"
            ids[split] += [coder.eot, *coder.encode(document)]
        if val and not ids["val"]:
            last = max(1, round(val * len(ids["train"])))
            ids["val"] = [coder.eot, *ids["train"][-last:]]
            del ids["train"][-last:]
        # shards, and what is in them
        splits = {}
        for split, tokens in ids.items():
            if tokens:
                path = folder / f"{split}_000000.bin"
                write_shard(path, np.array(tokens))
                shard = {"file": path.name, "tokens": len(tokens), "sha256": file_sha256(path)}
                counts = {"tokens": len(tokens), "documents": tokens.count(coder.eot)}
                splits[split] = counts | {"shards": [shard]}
        made_of = {"source": source.name, "source_sha256": [file_sha256(source)], "val": val}
        made_of |= {"paragraphs": paragraphs, **identity(coder)}
        return save_manifest(folder, made_of | {"splits": splits})


# %% [markdown]
r"""
`prepare_text` encodes the documents and deals them to training and validation by their hashes (chapter 03). It writes the shards first and the manifest last: so a manifest never lists a shard that is not complete. It reads the text as a whole and works in one process, which is enough for a book.

One thing is still missing. `prepare_text` calls `alone_in`: if two programs wrote into one folder at the same time, each would replace files of the other. `alone_in` keeps the second one out: the operating system gives a lock to one process, and takes it back when that
process ends, however that happens. Nothing is left behind that somebody would have to delete by hand. (`shared` is for chapter 16b, where several programs share the work on purpose.) We ask for the same folder twice:
"""

# %%
#| export files
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_in(out: Path, who="prepare", other="choose another --out", shared=False) -> Iterator[None]:
    """The folder, made if absent, is this process's alone while the block lasts, or shared by those who say so."""
    if out.is_file():
        raise ValueError(f"{out} is a file, and {who} writes a folder; {other}")
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "ab") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"another {who} writes into {out}; wait, or {other}") from None
        except OSError:
            pass  # a file system without locks
        yield


# %%
try:
    with alone_in(Path("../data/built/alone")), alone_in(Path("../data/built/alone")):
        print("two programs would write into it")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
The second call is refused. Now the complete function: one text file, and a folder with shards, a tokenizer and a manifest.
"""

# %%
written = prepare_text(path, folder / "prepared", VOCAB)
for split, said in written["splits"].items():
    print(f"{split}: {said['documents']:,} documents, {said['tokens']:,} tokens")
document = BPETokenizer.load(folder / "prepared/tokenizer.json").decode(
    read_shard(folder / "prepared/val_000000.bin")[1:40].tolist()
)
print(document.splitlines()[0])

# %% [markdown]
r"""
Of the 1,000 stories 894 went to training and 106 to validation: each story's hash decided with a probability of 0.1. The last line is the beginning of the first validation story, decoded with the tokenizer that was saved beside the shards.

## The loader, and its state

Chapter 03's `BatchStream` reads the shards, and its state is the seed and one number: how many tokens have been read. A training run saves it, and goes on at the same token after an interruption. But a position says nothing about the text. Names do not help, because nearly every folder has a `train_000000.bin`. So the state gets
the hashes of the shards. The stream takes shards of one folder only, which the manifest must list, and learns their hashes from it.
"""


# %%
#| export shards
#| grows describe_shards
def describe_shards(paths: list[Path]) -> tuple[int, int, list[str] | None]:
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
#| export data
import torch

from nanogpt.shards import file_sha256


# %%
#| export data
#| grows BatchStream.state_dict BatchStream.load_state_dict
class BatchStream(BatchStream):
    def state_dict(self) -> dict:
        """What resumes the stream at exactly this place, with any B, T and number of ranks."""
        if "shards" not in vars(self):  # their hashes, by the manifest or computed once
            self.shards = describe_shards(self.paths)[2] or [file_sha256(path) for path in self.paths]
        return {"counts": "tokens", "seed": self.seed, "position": self.position, "shards": self.shards}

    def load_state_dict(self, state: dict) -> None:
        folder = self.paths[0].parent
        for what, here in self.state_dict().items():
            if what not in state or (what in ("counts", "shards") and state[what] != here):
                raise ValueError(f"{folder} is not what this state was saved for: see its {what!r}")
        self.seed, self.position = state["seed"], state["position"]


class DocumentStream(DocumentStream):
    def state_dict(self) -> dict:
        return BatchStream.state_dict(self) | {"counts": "rows"}  # its position is a number of rows


# %% [markdown]
r"""
We read five batches of 4 rows with 32 tokens, save the state, and resume twice: in a new stream over the same shards, and in one over the same stories in another order.
"""

# %%
stream = BatchStream(open_shards(folder / "prepared", "train"), 4, 32)
for _ in range(5):
    stream.next_batch()
state = stream.state_dict()
print(state | {"shards": [sha256[:8] for sha256 in state["shards"]]})
x, _ = stream.next_batch()
resumed = BatchStream(open_shards(folder / "prepared", "train"), 8, 32)
resumed.load_state_dict(state)
assert torch.equal(resumed.next_batch()[0][:4], x), "a resumed stream goes on elsewhere"
(folder / "backwards.txt").write_text("\n\n".join(documents[::-1]), encoding="utf-8", newline="\n")
prepare_text(folder / "backwards.txt", folder / "backwards", VOCAB)
paths = open_shards(folder / "backwards", "train")
print("the other folder:", paths[0].name, "with", f"{len(read_shard(paths[0])):,} tokens")
try:
    BatchStream(paths, 4, 32).load_state_dict(state)
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
The state holds the seed, the position and the hash of each shard. `counts` says what the position counts: tokens, or rows in a `DocumentStream`. With the same shards the stream goes on at exactly the same row, also with eight rows a batch in place of four. The other folder has a file of the same name with as many tokens, because it holds the same stories. A seed and a position alone would fit it perfectly, and the run would read some stories twice and others never. The hash refuses it.

Two smaller checks and one change for speed complete the loader. `shard_header` refuses a shard with zero tokens, or with more than its header can count. `next_batch` refuses an id that the vocabulary does not have: the model would stop with `index out of range`, and not say in which file. And `to_device` copies a batch to a GPU from pinned memory, so that the copy can run beside the GPU's work.
"""


# %%
#| export shards
#| grows shard_header
def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


# %%
#| export data
#| grows to_device
def to_device(x: np.ndarray, y: np.ndarray, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets as int64 tensors on the device. They share no memory, so that y may be masked in place."""
    tensors = torch.from_numpy(x.astype(np.int64)), torch.from_numpy(y.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tuple(tensor.to(device) for tensor in tensors)


# %%
#| export data
#| grows BatchStream.next_batch
class BatchStream(BatchStream):
    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        folder = self.paths[0].parent
        if not self.epoch_length:
            raise ValueError(f"{folder}: no document begins in these shards")
        rows = self.rows()
        if rows.max() >= self.vocab_size:
            what = f"id {rows.max()}, but their vocabulary has {self.vocab_size}"
            raise ValueError(f"the shards in {folder} hold {what}; prepare them again")
        return to_device(rows[:, :-1], rows[:, 1:], self.device)


# %%
def refused(attempt) -> None:
    """Print the sentence with which a call is refused."""
    try:
        attempt()
        print("nothing was refused")
    except ValueError as error:
        print(str(error).replace(str(folder), "..."))


(folder / "foreign").mkdir(exist_ok=True)
write_shard(folder / "foreign/train_000000.bin", [50256, 1, 2, 60000, 3, 4])  # and no manifest: GPT-2's
foreign = [folder / "foreign/train_000000.bin"]
refused(lambda: BatchStream(foreign, 1, 4).next_batch())
refused(lambda: describe_shards([*foreign, *paths]))
refused(lambda: shard_header(0))

# %% [markdown]
r"""
Each of the three is refused in one sentence: the id 60,000 in shards without a manifest, which are taken for GPT-2's, shards of two folders, and a shard without tokens.

Where do we stand? A text becomes shards in one call. What is on the disk is complete, and says which vocabulary made it and what its bytes must be. A run that is resumed reads the same text, or is refused. Chapter 17 builds its trainer on this.

## Your predictions
"""

# %% tags=["nbval-ignore-output"]
predictions("16")

# %% [markdown]
r"""
## Checkpoint

Exports the finished functions, imports their modules in a fresh process and runs the chapter's tests.
"""

# %%
checkpoint("16")

# %% [markdown]
r"""
## Exercises

`course exercises release 16` writes these, and those of 16a and 16b, as a notebook to `released/`; `course check 16` runs their visible checks.

- **16-5** What validation measures, 10 minutes: a hash against the tail of a crawl.

The other four belong to 16a and 16b. To explore:

1. **Without the flush.** Let `damaged_after_kills` write with `write_simply` into another name and rename it, but without the flush (`os.replace` is enough). *Check:* does any kill leave a damaged file? What would a lost power supply do that a kill does not?
2. **A book of your own.** Take any text of Project Gutenberg and call `prepare_text` with 1,000 tokens. *Check:* how many documents are there with `paragraphs=True`, and how many with `False`? What does validation consist of in the second case, and what does it measure?
3. **The order of writing.** Let `prepare_text` save the manifest first. *Check:* kill it between the manifest and the first shard. Which function of this chapter notices, and when?
4. **Another state.** Save the state of a `DocumentStream` and load it into a `BatchStream` over the same shards. *Check:* which key refuses it, and what would the position mean?

## Further reading

- Radford et al. 2019, [*Language Models are Unsupervised Multitask Learners*](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf), §2.1: how GPT-2's text was chosen; §2.2:
  why bytes.
- Karpathy 2024, [`fineweb.py` of build-nanogpt](https://github.com/karpathy/build-nanogpt/blob/master/fineweb.py): ten billion tokens into shards, with a process for each core.
- Pillai et al. 2014, [*All File Systems Are Not Created Equal*](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), §2: why a file is flushed before it is renamed.
"""
