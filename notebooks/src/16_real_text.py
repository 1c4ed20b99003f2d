# %% [markdown]
r"""
# 16 · Real text into shards

The stories of chapter 02 come from a generator, one string each. Real text comes in files that other people wrote. Before a model can
train on it, somebody has to turn it into token ids and write these to disk in the form of chapter 03, as *shards*.

For a small file this takes five lines, and we begin with them. A large file has to be read in pieces, and then three things can
go wrong. A cut at the wrong place changes the ids. A different vocabulary reads the same ids as other words. A run that is stopped leaves
half a file behind. None of these raises an error when it happens. In the first two cases a model would simply train on the result. We shall cause each mistake here, look at it,
and remove it.

The chapter ends at "Your predictions", after half of its cells. The other half is an appendix with readers for other kinds of files, which the optional sittings 16b and 16c use. Run it, and read it when you need it.
"""

# %%
#| default_exp labs.corpora.cuts
#| doc labs.corpora.cuts: Where a text may be cut so that no id changes, in memory and in a file of any size.
#| doc labs.corpora.text: One text file into shards, in one process.
#| doc labs.corpora.sources: Documents from text, JSONL, CSV and parquet files of any size, in chunks.
#| doc labs.corpora.vocab: GPT-2's vocab.json and merges.txt, texts encoded by tiktoken, and bytes of text per token.
import csv
import os
import random
import tempfile
import time
import warnings
from importlib.util import find_spec
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import regex

from course.figures import real_text as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.files import save_json
from nanogpt.shards import MAGIC, SPLITS, VERSION, document_starts, file_sha256, identity, load_manifest
from nanogpt.shards import read_shard, save_manifest, shard_header, write_shard
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import GPT2_PATTERN, BPETokenizer

# %% [markdown]
r"""
All sizes are set here. `PIECE` is the size of a piece in the first experiment, `CHUNK` in the later ones. (Chapter 16b's command takes
pieces of 4 to 64 megabytes.) `KILLS` says how often we shall kill a run. `BLOCK` belongs to the appendix.
"""

# %%
STORIES, VOCAB = 1000, 400  # this chapter's text, and the tokens that are learned from it
PIECE, CHUNK, BLOCK = 1000, 10_000, 2_000  # bytes
KILLS = 8

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
The shard begins with id 399, which is `<|endoftext|>`, and then spells "It was a fogg": the first story. That is all there is to it, as long as the text fits into memory. A crawl of the web does not.

## A piece at a time

So we read the file in pieces, encode each piece, and write the ids one after another. The simplest way takes a fixed number of bytes for each
piece.

*Predict.* We cut the text every thousand bytes and encode each piece by itself. Of a hundred such cuts, how many change the ids?
"""

# %%
predict("16.1", "of 100 cuts, how many change the ids", guess=None)

# %%
assert 0 < PIECE < len(text) // 2, "PIECE: more than no byte, and less than half of the text"
pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
harmed = [(a, b) for a, b in pairwise(pieces) if encode(a) + encode(b) != encode(a + b)]
print(f"{len(harmed)} of {len(pieces) - 1} cuts change the ids")
answer("16.1", round(100 * len(harmed) / (len(pieces) - 1)))
for a, b in harmed[:2]:
    a, b = a[-12:], b[:12]
    print("as one text:", "|".join(tokenizer.decode([i]) for i in encode(a + b)))
    print("   in two:  ", "|".join(tokenizer.decode([i]) for i in encode(a) + encode(b)))

# %% [markdown]
r"""
More than every second cut changes the ids, 244 of 444, because it falls into the middle of a word or between a space and its word. The last lines show two examples, with a bar between tokens. The text is still the same, letter by letter. But
the model sees tokens at these places that it would see nowhere else: `cou|nt|e|d` in place of ` counted`. The damage is small with long pieces. Still, the ids should depend
on the text, and not on the size of a buffer.

## Where a text may be cut

At which places is a cut harmless? Let us try all places of one sentence. A place is harmless if the ids of the two halves, one after the other, are the ids of the sentence.

*Predict.* The sentence below has 37 places between two characters. At how many of them may it be cut?
"""

# %%
predict("16.2", "places where the sentence may be cut", guess=None)

# %%
sentence = "She won 1234 coins.\n\n  Then it's over."
good = [i for i in range(1, len(sentence)) if encode(sentence[:i]) + encode(sentence[i:]) == encode(sentence)]


def marked(places) -> str:
    """The sentence with | at these places."""
    bars = {place: "|" for place in places}
    return "".join(bars.get(i, "") + c for i, c in enumerate(sentence)).replace("\n", "↵")


print(f"may be cut at |:   {marked(good)}   ({len(good)} of {len(sentence) - 1} places)")
answer("16.2", len(good))

# %% [markdown]
r"""
25 of the 37 places are harmless, but this result depends on our vocabulary, which never learned to merge `1` and `2`. We want places that are safe in *every* vocabulary. Remember how
GPT-2's tokenizer works: first a pattern splits the text into words, and then merges happen inside each word. So a cut between two words of the
pattern is safe, if neither half is split differently when the other half is missing.

Does this depend on the two characters beside the cut? We try it. The next cell takes all texts of six characters, each of one of six kinds, and cuts them in the
middle. It counts how often the pattern splits the two halves differently from the complete text, separately for each pair of characters beside the cut.
"""

# %%
NAMES = {"s": "letter", "1": "digit", ".": ".", "'": "'", " ": "space", "\n": "line break"}
threes = ["".join(three) for three in product(NAMES, repeat=3)]
words = regex.compile(GPT2_PATTERN).findall
changed = {pair: 0 for pair in product(NAMES, repeat=2)}
for left, right in product(threes, repeat=2):
    if words(left) + words(right) != words(left + right):
        changed[left[-1], right[0]] += 1
share = [
    [changed[a, b] / len(NAMES) ** 4 for b in NAMES] for a in NAMES
]  # the other four characters are free
framed = [(i, j) for i, a in enumerate(NAMES) for j, b in enumerate(NAMES) if not a.isspace() and b.isspace()]
assert not any(share[i][j] for i, j in framed), "with this pattern, a cut before white space changes the ids"
alt = "Share of texts that a cut changes, by the characters beside it: none before white space that follows a visible one"
show(figures.places(share, list(NAMES.values()), framed), alt=alt)

# %% [markdown]
r"""
Read the figure by rows: the row is the character before the cut, the column the character after it. The framed places are those before a space or a line break that
follows a visible character. There no text was changed, and there is a reason. No word of the pattern continues from a visible character to white
space. The left half ends with a visible character, so nothing in it depends on what follows. And the pattern never looks back, so the
right half is split as before. Nine other cells are 0%, too, for example between a letter and a digit. We do not take them: text has enough white space, and a
rule about letters and
digits would have to know all of Unicode.

After a space it is different. A space before a visible character belongs to the word of that character, so a cut between the two changes every text. Inside a run
of several spaces, only the last one belongs to the word after it, if there is a word, and a cut inside the run hides this word. In the last row only a third of the texts change, because a line break never belongs to the word after it.

The framed rule becomes our first function. It works on bytes, because files consist of bytes. A visible character may have up to four
of them in UTF-8, and some white space has more than one. So the function works in two steps. The pattern `EDGE` finds each space or line break before which there is no white space of a single byte (`\x1c` to `\x1f` are control characters that Python counts as
white space). Then the function decodes the four bytes before this place, and looks whether the last character is visible. It returns the first safe place from a given byte on. We call it again and again, until it has found all of them in our sentence.
"""

# %%
#| export
import re
from collections.abc import Callable, Iterator
from pathlib import Path


# %%
#| export
#| blank safe_cut: for each match from `at` on, decode the last four bytes before it: is the last character visible?
EDGE = re.compile(rb"(?<![\s\x1c-\x1f])(?=[ \n])")  # white space comes, and none was before it


def safe_cut(text: bytes, at: int = 1) -> int | None:
    """The first place from byte `at` on where a cut changes no id in any vocabulary with GPT-2's pattern, or None."""
    for edge in EDGE.finditer(text, max(at, 1)):
        before = text[max(0, edge.start() - 4) : edge.start()].decode("utf-8", "ignore")
        if not before[-1:].isspace():
            return edge.start()
    return None


# %%
raw, cuts, at = sentence.encode(), [], safe_cut(sentence.encode())
while at is not None:
    cuts.append(len(raw[:at].decode()))
    at = safe_cut(raw, at + 1)
print("safe_cut takes |: ", marked(cuts))
assert set(cuts) <= set(good), f"a cut at {sorted(set(cuts) - set(good))} changes the ids"

# %% [markdown]
r"""
It takes fewer places than our vocabulary would allow, and each of them is safe in all vocabularies. The widget lets you try your own text. A green bar is a place that `safe_cut` takes. At
a red dot a cut would change the ids of this vocabulary.

*Predict:* can a place have both? Then try to write a text that has no green bar at all.
"""

# %% tags=["nbval-ignore-output"]
figures.cutting_widget(sentence, encode, safe_cut)

# %% [markdown]
r"""
No place has both, because a green place is safe in every vocabulary. A text without any white space has no green bar: one long word, or a line of Chinese.

## A large file

With `safe_cut` we can divide a file of any size. We go about `CHUNK` bytes ahead, read a few kilobytes from there, and take the first safe place. If there is none, we
read more. A file that has no safe place in 64 megabytes is not text, and we raise an error.

`seek_cut` does this. It has two helpers. `bytes_between` reads a stretch of a file in small portions, so that no stretch has to fit into memory. `line_of` turns a place into the number of a line, for the error message.
"""


# %%
#| export
LIMIT = 1 << 26  # bytes without a place to cut


def bytes_between(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """A stretch of a file, a megabyte at a time."""
    with open(path, "rb") as file:
        file.seek(start)
        while raw := file.read(min(1 << 20, stop - start)):
            yield raw
            start += len(raw)


def line_of(path: Path, place: int) -> int:
    """Which line of a file holds byte `place`, counted from 1."""
    return 1 + sum(raw.count(b"\n") for raw in bytes_between(path, 0, place))


# %%
#| export
#| blank seek_cut: read from 4 bytes before `at`, ask `first` for a place, and read four times as much if there is none
def seek_cut(path: Path, start: int, at: int, first: Callable = safe_cut) -> int:
    """The first place from byte `at` on where a file may be cut, by first(bytes, at); or its end. start: the last cut.

    Nothing before `start` is read. `first` gets what was read, and where `at` is in it. If LIMIT bytes, the most that
    are read, have no place, ValueError, which names the file and the line of `at`.
    """
    base = max(start, at - 4)  # the character before `at` is in these 4 bytes
    length = min(1 << 16, LIMIT)
    while True:
        text = b"".join(bytes_between(path, base, base + length))
        cut = first(text, at - base)
        if cut:
            return base + cut
        if len(text) < length:
            return path.stat().st_size
        if length >= LIMIT:
            raise ValueError(f"{path}, line {line_of(path, at)}: no place to cut in {length:,} bytes")
        length = min(4 * length, LIMIT)


# %% [markdown]
r"""
We cut our file, encode each piece by itself, and compare the ids with those of the complete text.
"""

# %%
assert CHUNK > 0 and BLOCK > 0, "CHUNK and BLOCK are numbers of bytes, 1 or more"
starts = [0]
while starts[-1] < path.stat().st_size:
    starts.append(seek_cut(path, starts[-1], starts[-1] + CHUNK))
for start, stop in list(pairwise(starts))[:3]:
    print(f"bytes {start:,} to {stop:,}")
pieces = [path.read_bytes()[start:stop].decode() for start, stop in pairwise(starts)]
in_pieces = [i for piece in pieces for i in encode(piece)]
assert in_pieces == encode(text), "the ids of the pieces are not those of the text"
print(f"{len(pieces)} pieces give the same {len(in_pieces):,} ids as the text in one go")

# %% [markdown]
r"""
The pieces are a few bytes longer than asked for, and the ids are exactly those of the complete text. (The shard has one id more: `<|endoftext|>`.) The first problem is solved: the size of a piece
changes nothing.

## Which vocabulary?

A shard contains numbers, and nothing in the shard says what they mean. Suppose a colleague trained a tokenizer of the same size on another text, here
on the same stories with their letters in reverse. We decode the first ids of our shard with both tokenizers.
"""

# %%
other = BPETokenizer.train([document[::-1] for document in documents], VOCAB)
for name, reader in (("ours", tokenizer), ("another", other)):
    print(f"{name:8}", "|".join(reader.decode([i]) for i in shard[1:13]))
print("fingerprints", tokenizer.fingerprint[:8], "and", other.fingerprint[:8])

# %% [markdown]
r"""
The colleague's tokenizer reads "It was a foggy day at" as "It xis . ,oggyruof arailop". Every id is valid, so nothing fails. A model would train on this, and its loss would fall. Only its samples would look odd, hours later.

The remedy is to write down which vocabulary made the ids. Chapter 01 gave each tokenizer a *fingerprint*, a hash of all its tokens, and chapter 03 wrote it to the
`manifest.json` beside the shards. From now on `open_shards` compares it. While we are at it, we close a second hole. The ids of a large text take hours to make and stay on disks for
months. If one bit flips in the meantime, the length is still right and the id is still valid. The manifest has the SHA-256 of each file, so we can
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

## A file is complete, or it does not exist

The third mistake happens when a run is interrupted. Encoding a large text takes hours, and machines are switched off, disks fill up, and clusters take
their machines back. We do not want to begin again from the start, so we write a shard for each piece. A run that is started again skips all pieces
that have a file already. `encode_pieces` does this, and `write_simply` is the simplest way to write one shard.
"""


# %%
def encode_pieces(out: Path, write) -> int:
    """Write a shard for each piece that has none; returns how many it wrote."""
    made = 0
    for n, piece in enumerate(pieces):
        if not (out / f"train_{n:06d}.bin").exists():
            write(out / f"train_{n:06d}.bin", encode(piece))
            made += 1
    return made


def write_simply(path: Path, ids: list[int]) -> None:
    """Open the file and write the ids, a hundred at a time."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        file.write(shard_header(len(ids)))
        for at in range(0, len(ids), 100):
            file.write(np.array(ids[at : at + 100], "<u2").tobytes())


print(f"{encode_pieces(folder / 'simple', write_simply)} shards written")

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
    encode_pieces(folder / "stopped", write_until_stopped)
except KeyboardInterrupt:
    print("stopped with", len(list((folder / "stopped").iterdir())), "files")
print("started again:", encode_pieces(folder / "stopped", write_simply), f"of {len(pieces)} written")
try:
    read_shard(folder / "stopped/train_000002.bin")
except ValueError as error:
    print(str(error).replace(str(folder), "..."))

# %% [markdown]
r"""
The second run saw a file with the right name and believed it. Here the header gives the damage away, because it was written first. Usually nobody would
read the file before the training does, perhaps a week later and on another machine.

The remedy is a rule for all files of this course: a file has its name only when it is complete. `write_shard` follows it. It writes to another name in the same
folder, flushes the data to the disk, and then renames the file, which the file system does in one step. We test this the hard way. A child process encodes the pieces. We wait until it has written a random number of files, and
end it with `kill -9`, so that Python gets no chance to tidy up. We do this eight times, and then let a last call finish the work. All files must be equal to those of the first run. As a control, the same is done with `write_simply`.
"""


# %% tags=["nbval-ignore-output"]
def damaged_after_kills(out: Path, write) -> list[str]:
    """The files that differ from those of a run that was never stopped, after KILLS kills and a last call."""
    dice = random.Random(0)
    for kill in range(KILLS):
        goal = dice.randrange(len(pieces) * (kill + 1) // (KILLS + 1))  # files that we wait for
        if not hasattr(os, "fork"):
            break  # Windows has no fork; the tests start processes there
        with warnings.catch_warnings(
            action="ignore"
        ):  # to fork beside threads is unwise; this child dies anyway
            child = get_context("fork").Process(target=encode_pieces, args=(out, write))
            child.start()
        while child.is_alive() and len(list(out.glob("train_*.bin"))) < goal:
            time.sleep(0.0005)
        child.kill()
        child.join()
    encode_pieces(out, write)
    names = [f"train_{n:06d}.bin" for n in range(len(pieces))]
    return [name for name in names if (out / name).read_bytes() != (folder / "simple" / name).read_bytes()]


print(
    "written in place:", len(damaged_after_kills(folder / "killed in place", write_simply)), "damaged files"
)
damaged = damaged_after_kills(folder / "killed", write_shard)
print("renamed when complete:", len(damaged), f"damaged files of {len(pieces)}")
assert not damaged, f"{damaged[0]} is not the file of a run that was never stopped"

# %% [markdown]
r"""
A file that is written in place is damaged if the kill falls into its writing, and a kill may miss: we cannot aim it. We have repeated the cell twelve times on a busy machine. The eight kills left 2 to 6 damaged files each time when files were written in place, and never one with `write_shard`. However often a run is killed, the files that exist are complete, and the finished folder is the same to the byte. (A kill stands for a lost process. A lost power supply is what the flush is for, and we have not tried that.) Chapter 16b builds its command on this rule. It adds pieces
of many files, a manifest for each piece, and several processes.
"""

# %% [markdown]
r"""
## A text file into shards

With these parts, a text becomes shards in one function. `read_documents` reads a file and cuts it into documents, at its blank lines. `prepare_text` trains a tokenizer if it is given a number, encodes the documents, deals them to training and validation by their hashes (chapter 03), and
writes the shards and then the manifest. It reads the text as a whole and works in one process: enough for a book. Chapter 16b's command does the same for texts of any size and other kinds of files.
"""


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


# %%
#| export labs.corpora.text
LEARN = 1 << 24  # characters of a text that a new tokenizer learns from
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


def to_learn_from(texts: Iterable[str]) -> Iterator[str]:
    """The first of the texts, with LEARN characters together, or a text more."""
    read = 0
    for text in texts:
        if read >= LEARN:
            return
        yield text
        read += len(text)


def tokenizer_for(documents: list[str], tokenizer: int | str | Path, folder: Path) -> BPETokenizer:
    """GPT-2's, that of a tokenizer.json, or a new one of so many tokens, learned from the first documents and saved."""
    if not isinstance(tokenizer, int):
        return BPETokenizer.gpt2() if tokenizer == "gpt2" else BPETokenizer.load(tokenizer)
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
One thing is still missing. `prepare_text` calls `alone_in`: if two programs wrote into one folder at the same time, each would delete what the other has made. `alone_in` keeps the second one out: the operating system gives a lock to one process, and takes it back when that
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

## Bytes per token

Before a run of several days begins, one simple number can reveal a wrong tokenizer: how many bytes of text does a token stand for? `bytes_per_token` computes it, and warns if nearly every byte is a token.

*Predict* the number for a vocabulary whose merges were never applied. It has the 256 single bytes and `<|endoftext|>`. And how many bytes of ids does it need
for each byte of text, if an id takes two bytes?
"""


# %%
#| export labs.corpora.vocab
FEW = 1.1  # bytes of text per token


def bytes_per_token(size: int, tokens: int) -> str:
    """The ratio in words, with a warning where nearly every byte is a token. tokens: without `<|endoftext|>`."""
    ratio = size / max(tokens, 1)
    said = f"{ratio:.2f} bytes of text per token"
    if ratio < FEW:
        said += "; nearly every byte is a token: a vocabulary without its merges, or one for another script?"
    return said


# %%
predict("16.3", "bytes of text per token without merges", guess=None)
predict("16.4", "bytes of ids per byte of text without merges", guess=None)

# %%
GREEK = "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα."
bare, sample = BPETokenizer.train("", 257), text[:30_000]
for name, coder in (("with merges", tokenizer), ("without", bare)):
    for what, words in (("stories", sample), ("Greek", GREEK)):
        print(f"{name}, {what}: {bytes_per_token(len(words.encode()), len(coder.encode(words)))}")
ratio = len(sample.encode()) / len(bare.encode(sample))
answer("16.3", ratio)
answer("16.4", 2 / ratio)

# %% [markdown]
r"""
With its merges our small vocabulary has 2.35 bytes per token; without them each byte is a token, and each byte of text becomes two bytes of ids. The warning for Greek is not caused by a mistake. A vocabulary that was learned from English stories has no merges for Greek, and each Greek letter has two bytes. The number
cannot tell the two causes apart, but it tells you to look. Here is a published case in which nobody looked:
"""

# %%
with open("../data/reference/megatron_preprocess.csv", encoding="utf-8") as file:
    published = {row["item"]: float(row["value"]) for row in csv.DictReader(file)}
mib = published["documents"] / published["documents a second"] * published["MiB a second"]
print(
    f"published: {published['MiB of ids']:.0f} MiB of ids for {mib:.1f} MiB, {published['MiB of ids'] / mib:.2f} per byte"
)
print(f"this chapter's stories: {2 * len(ids) / path.stat().st_size:.2f} per byte")

# %% [markdown]
r"""
The numbers come from a log of Megatron-LM's preprocessing of 10,000 documents (`data/reference`, with the lines). At its end it reports documents and MiB a
second, from which we get the size of its input. Megatron counts the characters of the JSON lines, so the text itself is a little smaller. The size of the ids is from a file
listing beside the log, of another run over as many documents. Megatron stores an id in two bytes if the
vocabulary has fewer than 65,500 tokens (`optimal_dtype` in its `indexed_dataset.py`), and GPT-2's has 50,257.

Two bytes of ids for one byte of input is just what a vocabulary without merges gives. So most likely no merge was applied in this run, although its
command names a merge file, and every byte became a token. Nobody was warned. Chapter 16b's command prints the number when it is done, with a warning below 1.1.

## Your predictions
"""

# %%
predictions("16")

# %% [markdown]
r"""
## Appendix: other kinds of files, GPT-2's files, stricter shards

The cells from here to the checkpoint are exported and need not be read now. They contain no new idea, but the command of the optional sitting 16b needs
them: readers for JSONL, CSV and parquet, GPT-2's two vocabulary files, and checks of damaged manifests.

*Kinds of files.* JSONL is cut at a line's end. A text whose paragraphs are documents (as llm.c takes TinyShakespeare) is cut after blank lines. In CSV
a quoted field may itself contain line breaks. A line break ends a row if the number of quotes before it is even: a field has two quotes, and a `""` inside it has two as
well. A text with lines `<|endoftext|>`, such as TinyStories, is cut behind them. A packed file (`.gz`, `.zst`) cannot be cut. It is unpacked into a
temporary file, and is one chunk.
"""

# %%
#| export labs.corpora.sources
import csv
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from nanogpt.shards import file_sha256
from nanogpt.labs.corpora.splits import split_of


# %%
#| export labs.corpora.sources
KINDS = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
PACKED = ".gz", ".zst"  # endings of files that are unpacked when they are read
PLACES = {  # where a match ends, a file may be cut
    "paragraphs": re.compile(rb"\S[^\S\n]*\n(?:[^\S\n]*\n)+(?=[^\S\n]*\S)"),
    "separated": re.compile(rb"(?<=\n)<\|endoftext\|>[ \t\r]*\n"),
    "jsonl": re.compile(rb"\n"),
    "csv": re.compile(rb"\n"),
}


def is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED


def kind_of(path: Path) -> str | None:
    """What a file is, by its name; None if the name does not say."""
    if is_packed(path):
        path = path.with_suffix("")
        if path.suffix.lower() == ".json":  # packed, this is JSON lines: C4's and Dolma's files
            return "jsonl"
    return KINDS.get(path.suffix.lower())


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """What is in a file, unpacked. ValueError if it cannot be read."""
    try:
        if path.suffix.lower() == ".zst":
            import pyarrow

            with pyarrow.input_stream(str(path), compression="zstd") as file:
                yield file
        else:
            with gzip.open(path) if is_packed(path) else open(path, "rb") as file:
                yield file
    except (EOFError, OSError, ValueError, ImportError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def beginning(path: Path) -> bytes:
    """The first megabyte of what is in a file."""
    with opened(path) as file:
        return file.read(1 << 20)


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A file with what is in a packed one, as long as the block lasts."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, path.stem)
        with opened(path) as file, plain.open("wb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
        yield plain


def first_cut(kind: str, text: bytes, at: int = 1, quoted: bool = False) -> int | None:
    """The first place from `at` on where text may be cut, or None. quoted: does it begin within quotes? (CSV)"""
    if kind == "text":
        return safe_cut(text, at)
    cut = 0
    for found in PLACES[kind].finditer(text):
        before, cut = cut, found.end()
        if kind == "csv" and text.count(b'"', before, cut) % 2 == 1:
            quoted = not quoted
        if cut >= at and not quoted:
            return cut
    return None


# %%
#| export labs.corpora.sources
def next_cut(path: Path, kind: str, start: int, at: int) -> int:
    """The first place from byte `at` on where a file may be cut that may be cut at `start`; or its end."""
    if kind == "parquet":
        with parquet(path) as (_, begins):
            return next((begin for begin in begins if begin >= at), path.stat().st_size)
    quotes = 0
    if kind == "csv":  # all from the last cut to where seek_cut begins to read
        quotes = sum(raw.count(b'"') for raw in bytes_between(path, start, max(start, at - 4)))
    return seek_cut(path, start, at, partial(first_cut, kind, quoted=quotes % 2 == 1))


# %%
rows = b'id,text\n1,"two\nlines, a ""quote""\n"\n2,one line\n'
print("a CSV file's first row ends at byte", first_cut("csv", rows, 9), "of", rows)

# %% [markdown]
r"""
A *chunk* is what is encoded at one go: a list of *spans*, which are one stretch of a large file, or many small files. A
`.txt` file is one document, so the hash of the complete file says whether it goes to train, val or test (chapter 03),
wherever it is cut. In the other kinds each document is hashed by itself, when it is read.
"""


# %%
#| export labs.corpora.sources
@dataclass(frozen=True)
class Span:
    """A stretch of a file, from a place where it may be cut to another, in bytes."""

    path: Path
    kind: str  # "text", "paragraphs", "separated", "jsonl", "csv" or "parquet"
    start: int
    stop: int
    split: str | None = None  # None: each document's hash decides
    column: str = "text"  # of JSONL, CSV and parquet: what holds the documents


# %%
#| export labs.corpora.sources
def cut_files(
    files: list[Path], size: int, paragraphs=False, val=0.01, test=0.01, column="text"
) -> Iterator[list[Span]]:
    """The chunks: the files one after another, cut after about every `size` bytes."""
    spans, room = [], size
    for path in files:
        kind, split, start, end = kind_of(path) or "text", None, 0, path.stat().st_size
        if kind == "text" and PLACES["separated"].search(beginning(path)):  # as in TinyStories
            kind = "separated"
        elif kind == "text" and paragraphs:
            kind = "paragraphs"
        elif kind == "text":  # one document; a single file cannot be divided
            split = split_of(bytes.fromhex(file_sha256(path)), val, test) if len(files) > 1 else "train"
        while start < end:
            whole = is_packed(path) or start + room >= end
            stop = end if whole else next_cut(path, kind, start, start + room)
            spans.append(Span(path, kind, start, stop, split, column))
            start, room = stop, room - (stop - start)
            if room <= 0:
                yield spans
                spans, room = [], size
    if spans:
        yield spans


# %%
#| export labs.corpora.sources
def hash_of(spans: list[Span]) -> str:
    """Hex SHA-256 of all that a chunk is made of."""
    seen = hashlib.sha256()
    for span in spans:
        seen.update(f"{span.kind} {span.split}".encode())
        for raw in bytes_between(span.path, span.start, span.stop):
            seen.update(raw)
    return seen.hexdigest()


# %%
json_path = folder / "stories.jsonl"
lines = [json.dumps({"text": document}) + "\n" for document in documents]
json_path.write_text("".join(lines), encoding="utf-8", newline="\n")
chunks = list(cut_files([json_path], 5 * CHUNK))
for [span] in chunks[:3]:
    print(f"bytes {span.start:,} to {span.stop:,}, SHA-256 {hash_of([span])[:8]}...")
print(f"{len(chunks)} chunks in all")

# %% [markdown]
r"""
*Documents.* A span is read a block at a time and cut by the same rule, so memory holds one block, however large the file is. Each kind of
file keeps its documents in another way. Where a document is broken, the error names file, line and remedy. A CSV cell that says `nan` is such a case: pandas and Python write a
missing value in this way (`str(float("nan"))`), and it would become a document that consists of this word. In JSONL it is too late to notice: `{"text": "nan"}` is a text like any other, and it is read as one.
A program that writes JSONL should write `null`, which is no document.
"""


# %%
#| export labs.corpora.sources
def from_jsonl(raw: bytes, column: str) -> Iterator[str]:
    """The document in each line, null being none. ValueError(n, what) if line n, counted from 0, has no text.

    Half a surrogate pair is no character: U+FFFD takes its place, as in tiktoken.
    """
    for n, line in enumerate(raw.split(b"\n")):
        try:
            text = json.loads(line)[column] if line.strip() else ""
            text = "" if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise ValueError(n, f"not a JSON object with a string under {column!r}") from None
        yield text


# %%
#| export labs.corpora.sources
def from_csv(raw: bytes, at: int, path: Path, column: str) -> Iterator[str]:
    """What each row has in a column of the file, whose byte `at` is the first of raw. Raises as above."""
    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file), [])
    if column not in names:
        there = ", ".join(map(repr, names))
        raise ValueError(0, f"no column {column!r} among {there}; --column names the one that holds the text")
    rows = csv.reader(io.StringIO(raw.decode("utf-8" if at else "utf-8-sig"), newline=""), strict=True)
    try:
        for row in filter(None, rows):
            if len(row) != len(names):
                raise ValueError(rows.line_num - 1, f"{len(row)} fields under a header of {len(names)}")
            text = row[names.index(column)]
            if text in ("nan", "NaN"):  # what programs write for a missing value; Nan may be a name, or bread
                raise ValueError(
                    rows.line_num - 1, f"{text!r} is a missing value, not a text; leave it empty"
                )
            yield text
    except csv.Error as error:
        raise ValueError(rows.line_num - 1, f"quotes that do not close ({error})") from None


# %% [markdown]
r"""
Parquet keeps each column of a group of rows together, compressed. So a file is cut where a group begins, and read with
pyarrow, if that is installed.
"""


# %%
#| export labs.corpora.sources
@contextmanager
def parquet(path: Path, column: str = "text") -> Iterator[tuple]:
    """A parquet file, and the byte that each of its groups of rows begins at. ValueError if it has no such text."""
    try:
        import pyarrow.parquet as pq

        with open(path, "rb") as raw:  # given a path, pyarrow refuses names that are not UTF-8
            file = pq.ParquetFile(raw, buffer_size=1 << 20)
            first = [file.metadata.row_group(i).column(0) for i in range(file.num_row_groups)]
            yield file, [column.dictionary_page_offset or column.data_page_offset for column in first]
    except (ImportError, ValueError, LookupError, TypeError) as error:
        needs = (
            f"it needs pyarrow, a whole file and a column of strings named {column} (--column names another)"
        )
        raise ValueError(f"{path}: {' '.join(str(error).split())}; {needs}") from None


# %%
#| export labs.corpora.sources
def from_parquet(span: Span) -> Iterator[list[str]]:
    """The documents in the groups of rows that begin in a span, 256 at a time."""
    with parquet(span.path, span.column) as (file, begins):
        for i in [i for i, begin in enumerate(begins) if span.start <= begin < span.stop]:
            for batch in file.iter_batches(
                256, [i], [span.column]
            ):  # of all groups, it would read many at once
                texts = batch.column(span.column).to_pylist()
                if not all(isinstance(text, str | None) for text in texts):
                    raise TypeError(f"something else in row group {i}")
                yield list(filter(None, texts))


# %%
#| export labs.corpora.sources
def documents_in(span: Span, at: int, raw: bytes) -> Iterable[str]:
    """The documents in a block of a span, or what it has of one."""
    if span.kind == "jsonl":
        return from_jsonl(raw, span.column)
    if span.kind == "csv":
        return list(from_csv(raw, at, span.path, span.column))[at == 0 :]  # without the header
    raw.decode()
    if span.kind == "separated":
        return map(str.strip, SEPARATOR.split(raw.decode("utf-8-sig")))
    if at == 0:  # without the mark at its beginning that Windows writes
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    cuts = [found.end() for found in PLACES["paragraphs"].finditer(raw)] if span.kind == "paragraphs" else []
    return [raw[a:b].decode() for a, b in pairwise([0, *cuts, len(raw)])]


# %%
#| export labs.corpora.sources
def blocks_in(span: Span, block: int) -> Iterator[tuple[bool, list[str]]]:
    """Its texts, about `block` bytes at a time: whether documents begin with them, and they."""
    if is_packed(span.path):
        with unpacked(span.path) as plain:
            try:
                yield from blocks_in(replace(span, path=plain, stop=plain.stat().st_size), block)
            except ValueError as error:
                raise ValueError(str(error).replace(str(plain), str(span.path))) from None
        return
    at = span.start
    if span.kind == "parquet":
        yield from ((True, texts) for texts in from_parquet(span))
    while at < span.stop and span.kind != "parquet":
        stop = span.stop if at + block >= span.stop else next_cut(span.path, span.kind, at, at + block)
        raw = b"".join(bytes_between(span.path, at, stop))
        try:
            yield span.kind != "text" or at == 0, list(filter(None, documents_in(span, at, raw)))
        except UnicodeDecodeError as error:
            bad = f"byte {at + error.start:,} is not UTF-8; convert it, say with iconv"
            raise ValueError(f"{span.path}: {bad}") from None
        except ValueError as error:
            n, what = error.args
            raise ValueError(f"{span.path}, line {line_of(span.path, at) + n}: {what}") from None
        at = stop


# %% [markdown]
r"""
The source is a file, or a folder with any such files below it. Other files are left out, and nothing is worse than to train on half a corpus without knowing it. So `print_remarks` names what is left out, and why.
"""


# %%
#| export labs.corpora.sources
def paths_below(folder: Path) -> Iterator[Path]:
    """The files below a folder, and the links to other folders, which are not followed.

    What is hidden is passed over, and what the course makes: folders `data/built`.
    """
    for at, below, names in os.walk(folder, onerror=refuse):
        here = Path(at).resolve().name
        below[:] = [name for name in below if name[0] != "." and (here, name) != ("data", "built")]
        links = [name for name in below if Path(at, name).is_symlink()]
        yield from (Path(at, name) for name in [*names, *links] if name[0] != ".")


def find_files(source: Path) -> list[Path]:
    """The source itself, or all files below it whose names say what they are, in the order of the names; packed ones, too."""
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; give a file (.txt, .jsonl ...) or a folder")
    there = paths_below(source) if source.is_dir() else [source]
    files = sorted(path for path in there if path.is_file() and (kind_of(path) or path == source))
    if not any(path.stat().st_size for path in files):
        raise ValueError(f"{source} is empty: no {', '.join(KINDS)} file with anything in it")
    return files


def refuse(error: OSError) -> None:
    """What cannot be read is an error; os.walk would leave it out without a word."""
    raise error


def about(path: Path) -> str | None:
    """Why a path is left out, or what is remarkable about its text; None if nothing is."""
    if not path.is_file():
        return "left out: a link to a folder" if path.is_dir() else "left out: a link to nothing"
    if (kind := kind_of(path)) not in ("text", None):
        return None
    if kind is None:
        return f"left out: its name does not end in {', '.join(KINDS)}, with or without {' or '.join(PACKED)}"
    text = beginning(path)
    if PLACES["separated"].search(text):
        return "a document ends at each line <|endoftext|>"
    return "has line ends of Windows, of which each has one character more" if b"\r\n" in text else None


def print_remarks(source: Path, shown: int = 5) -> None:
    """A line on stderr for each thing in a source that its owner may not expect."""
    paths = sorted(paths_below(source)) if source.is_dir() else [source]
    said = [f"{path}: {what}" for path in paths if (what := about(path))]
    if source.is_file() and kind_of(source) is None:
        said = [f"{source}: read as plain text, since its name does not end in {', '.join(KINDS)}"]
    more = [f"and {len(said) - shown} more such files"] if len(said) > shown else []
    for line in [*said[:shown], *more]:
        print(line, file=sys.stderr)


# %% [markdown]
r"""
*Check.* The same documents, written as each kind of file, are read back, wherever the files are cut. Some of them are
difficult: they have quotes, line breaks, and letters of several bytes.
"""


# %%
def write_as(kind: str, texts: list[str]) -> Path:
    """The texts as documents of a file, or of many in a folder."""
    where = Path(tempfile.mkdtemp(dir=folder), f"a.{kind}")
    if kind == "jsonl":
        where.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    elif kind == "csv":
        with open(where, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("id", "text"), *enumerate(texts)])
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts}), where, row_group_size=100)
    else:
        where.mkdir()
        for i, text in enumerate(texts):
            (where / f"{i:06}.txt").write_bytes(text.encode())
    return where


# %%
def read(source: Path, size: int) -> list[str]:
    """The documents of a source, read in chunks of about `size` bytes."""
    found = []
    for span in [span for chunk in cut_files(find_files(source), size) for span in chunk]:
        for begin, texts in blocks_in(span, BLOCK):
            found += texts if begin else [found.pop() + "".join(texts)]  # a long .txt file goes on
    return found


mixed = [*documents[:300], 'She said "no", and\nleft.', '""\r\n,', "naïve 写 🙂"]
for kind in ["txt", "jsonl", "csv", *["parquet"] * (find_spec("pyarrow") is not None)]:
    source = write_as(kind, mixed)
    for size in (99, 5000, 5 * CHUNK):
        assert read(source, size) == mixed, f"{kind}: chunks of {size:,} bytes give other documents"
    cuts = [len(list(cut_files(find_files(source), size))) for size in (99, 5000, 5 * CHUNK)]
    print(f"{kind:8} {len(mixed)} documents, the same in {cuts[0]}, {cuts[1]} and {cuts[2]} chunks")


# %% [markdown]
r"""
A broken file is reported with its name and the place.
"""


# %%
broken = {
    "title.jsonl": b'{"text": "one"}\n{"title": "two"}\n',
    "open.csv": b'id,text\n1,one\n2,"two\n',
    "column.csv": b"id,body\n1,one\n",
    "missing.csv": b"id,text\n1,one\n2,nan\n",
    "latin.txt": "naïve".encode("latin-1"),
}
for name, raw in broken.items():
    (folder / name).write_bytes(raw)
    try:
        read(folder / name, CHUNK)
    except ValueError as error:
        print(str(error).removeprefix(f"{folder}{os.sep}"))


# %% [markdown]
r"""
*GPT-2's own files.* GPT-2's authors published their vocabulary as two files: `vocab.json` has an id for each token, and `merges.txt` has the
pairs in the order in which they were learned. Without the second, the first is a list of tokens that are never made. JSON holds text, but a token
is bytes, and these need not be UTF-8. So each byte got a character: its own if that is visible, or else the next one from U+0100 on. Some instructions tell you to "convert" a `vocab.json` before you use it. Leave it
as it is. A file in which `Ġ`, which stands for the space, was replaced, or in which ids and tokens have changed sides, is refused in one sentence.
"""


# %%
#| export labs.corpora.vocab
import json
import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import regex

from nanogpt.files import atomically
from nanogpt.tokenizer import merge_chunk
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer


# %%
#| export labs.corpora.vocab
#| blank byte_characters: visible bytes are themselves, all others take characters from 256 on in turn
@cache
def byte_characters() -> str:
    """The character that stands for each of the 256 bytes in GPT-2's files (its encoder.py, bytes_to_unicode).

    Visible are the bytes 33 to 126, 161 to 172 and 174 to 255.
    """
    visible, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, iter(range(256, 512))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A token as GPT-2's files spell it."""
    return "".join(byte_characters()[byte] for byte in token)


# %%
print("space, line break, é:", *(spelled(text.encode()) for text in (" ", "\n", "é")))
print("She won coins:", *(spelled(tokenizer.tokens[i]) for i in tokenizer.encode("She won coins")))


# %% [markdown]
r"""
Chapter 01 keeps no list of pairs: of all neighbours, those that make the token of lowest rank are merged. The pairs can be
recovered, because a token's pair is the result of merging its bytes with only the tokens before it. So we can write `merges.txt` from a
vocabulary, and we can prove that a file that is read belongs to it.
"""


# %%
#| export labs.corpora.vocab
#| blank merge_lines: split each token with the ranks of those before it, then add it to them
def merge_lines(vocab: list[bytes]) -> list[str]:
    """The lines of merges.txt: the two tokens that each longer one is made of, when only those before it exist.

    Both as `spelled`, with a space between; a single byte has no line.
    """
    ranks, lines = {}, []
    for token in vocab:
        if len(token) > 1:
            lines.append(" ".join(spelled(vocab[i]) for i in merge_chunk(token, ranks)))
        ranks[token] = len(ranks)
    return lines


def ids_of(vocab: list[bytes], special: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate([*map(spelled, vocab), *special])}


def write_vocab(tokenizer: BPETokenizer, folder: str | os.PathLike) -> None:
    """Write vocab.json and merges.txt, as GPT-2's authors did and transformers reads them."""
    lines = ["#version: 0.2", *merge_lines(tokenizer.vocab), ""]
    ids = json.dumps(ids_of(tokenizer.vocab, [*tokenizer.special]), ensure_ascii=False)
    for name, text in ("vocab.json", ids), ("merges.txt", "\n".join(lines)):
        with atomically(Path(folder) / name) as file:
            file.write(text.encode())


# %%
#| export labs.corpora.vocab
def stored_vocab(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The ids of all tokens, and the lines of the merges. Newer programs write both into one tokenizer.json, with more about it."""
    if (folder / "vocab.json").exists() or not (folder / "tokenizer.json").exists():
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8")
        return ids, [line for line in lines.split("\n")[lines.startswith("#version") :] if line]
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    cut, model = saved["pre_tokenizer"], saved["model"]
    if saved["normalizer"] or cut["type"] != "ByteLevel" or cut["add_prefix_space"]:
        raise ValueError("it changes or cuts a text in another way than GPT-2")
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    return model["vocab"] | added, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def read_vocab(folder: str | os.PathLike) -> BPETokenizer:
    """The tokenizer of a Hugging Face folder; OSError or ValueError in one sentence if it is not of GPT-2's kind."""
    known = {character: byte for byte, character in enumerate(byte_characters())}
    try:
        ids, lines = stored_vocab(Path(folder))
        special = [name for name in ids if re.fullmatch(r"<\|.*\|>", name)]
        vocab = [bytes(known[c] for c in name) for name in sorted(ids, key=ids.get) if name not in special]
        tokenizer = BPETokenizer(vocab, special=sorted(special, key=ids.get))
        whole = ids == ids_of(vocab, list(tokenizer.special))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{folder}: its vocabulary does not give bytes, merges and last {EOT} their ids, from 0 on"
        )
    if lines != (needed := merge_lines(vocab)):
        what = f"{len(lines):,} merges, but its vocabulary needs {len(needed):,} in its order"
        raise ValueError(f"{folder} has {what}; without them, bytes stay single: copy both again")
    return tokenizer


# %%
write_vocab(tokenizer, folder / "vocab")
lines = (folder / "vocab/merges.txt").read_text(encoding="utf-8").split("\n")
print(*lines[:4], f"... {len(lines) - 2} merges", sep=" | ")
assert read_vocab(folder / "vocab").fingerprint == tokenizer.fingerprint, "the tokenizer read is another"
(folder / "vocab/merges.txt").write_text("#version: 0.2\n")
try:
    read_vocab(folder / "vocab")
except ValueError as error:
    print(str(error).removeprefix(str(folder)))


# %% [markdown]
r"""
The tests give both files to transformers' tokenizer and compare its ids, for GPT-2's vocabulary and for one of our own.

*Ids, fast.* Chapter 01's tokenizer is written to be understood; tiktoken does the same in Rust. It finds the pattern's matches faster if the
pattern is written a little differently. (`bench/prepare.py` measures a complete preparation with it.)
"""


# %%
#| export labs.corpora.vocab
def read_tokenizer(name: str | os.PathLike) -> BPETokenizer:
    """GPT-2's tokenizer for "gpt2", that of a Hugging Face folder or its vocab.json, or that of chapter 01's tokenizer.json."""
    if str(name) == "gpt2":
        return BPETokenizer.gpt2()
    folder = Path(name).parent if Path(name).name == "vocab.json" else Path(name)
    return read_vocab(folder) if folder.is_dir() else BPETokenizer.load(name)


def load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer as tiktoken runs it in Rust, and as chapter 01 has it; OSError or ValueError in one sentence."""
    try:
        ours = read_tokenizer(name)
    except OSError as error:
        if str(name) != "gpt2":
            raise
        raise OSError(f"{error}; or give --tokenizer data/built/tokenizer.json (chapter 01)") from None
    if ours.pattern != GPT2_PATTERN or ours.vocab_size > 65536:
        raise ValueError(f"{name} needs GPT-2's pattern, to cut text, and at most 65,536 tokens, for uint16")
    from tiktoken import Encoding

    # The same matches in less time: in one group, what needs no lookahead is one automaton to Rust.
    # And white space at the end comes first, or a megabyte of it overflows the lookahead's stack.
    visible, space = ours.pattern.split(r"|\s", 1)
    pattern = rf"(?:{visible})|\s++$|\s{space}"
    return Encoding("nanogpt", pat_str=pattern, mergeable_ranks=ours.ranks, special_tokens=ours.special), ours


# %% [markdown]
r"""
If a million white-space characters come before a visible one, as in a broken log, the pattern's lookahead goes back
through all of them, and tiktoken's regular expressions refuse when their stack is full. Then we cut the text where the
pattern cuts anyway, before the last character of the run.

Otherwise all documents of a block are encoded in one call, each after an `<|endoftext|>`. A document may contain this name as
ordinary text, as this chapter does. Then it stays text.
"""


# %%
#| export labs.corpora.vocab
#| blank cut_long_runs: find the runs with regex; the cuts are one before their ends
def cut_long_runs(text: str) -> list[str]:
    """The text cut before the last character of each long run of white space, where GPT-2's pattern cuts anyway.

    Long are 1,000 characters and more. A run at the end of the text is not cut: there the pattern takes it whole.
    """
    cuts = [run.end() - 1 for run in regex.finditer(r"\s{1000,}+(?=\S)", text)]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


# %%
#| export labs.corpora.vocab
def encode_texts(texts: list[str], begin: bool, encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` if they begin. One call for all is faster than one for each."""
    before, begun = (EOT, len(texts)) if begin else ("", 0)
    joined = "".join(before + text for text in texts)
    apart = begin or len(texts) == 1  # else one text's end and the next one's beginning could make a token
    if apart and joined.count(EOT) == begun:  # else a document spells <|endoftext|> itself
        try:
            return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
        except ValueError:
            pass  # a run of white space that is too long for it (tiktoken 0.12 and later say so, earlier ones panic)
    ids = []
    for text in texts:
        ids.append(np.array([eot] if begin else [], np.uint32))
        ids += [encoding.encode_to_numpy(part, disallowed_special=()) for part in cut_long_runs(text)]
    return np.concatenate(ids)


# %%
tokenizer.save(folder / "tokenizer.json")
encoding, ours = load_tokenizer(folder / "tokenizer.json")
fresh, size = BPETokenizer(ours.vocab), sum(len(t.encode()) for t in documents)
start = time.perf_counter()
expected = [i for t in documents for i in [fresh.eot, *fresh.encode(t)]]
middle = time.perf_counter()
ids = encode_texts(documents, True, encoding, ours.eot)
rates = [size / 1e6 / seconds for seconds in (middle - start, time.perf_counter() - middle)]
assert ids.tolist() == expected, "tiktoken and chapter 01 give other ids"
print(f"the same {len(ids):,} ids: chapter 01 at {rates[0]:.1f} MB/s, tiktoken at {rates[1]:.1f} MB/s")
spelled_out = encode_texts(["<|endoftext|> is text", "a" + " " * 2000 + "b"], True, encoding, ours.eot)
print("documents that begin:", len(document_starts(spelled_out, ours.eot)), "of 2")


# %% [markdown]
r"""
*Stricter shards.* The manifest proves its shards, so it gets a hash of itself, and its statements must fit together: the sums of
tokens, plain file names, and no file listed twice. Chapter 03's stream becomes stricter, too. It takes shards of one folder only, which the manifest must
list. It refuses an id that the vocabulary does not have. It also refuses a shard with zero tokens, or with too many for its header. The stream's state names the shards by their
hashes, because a name such as `train_000000.bin` is used in many folders. On a GPU its batches are copied while the GPU computes.
"""


# %%
#| export data
import torch

from nanogpt.shards import file_sha256


# %%
#| export shards
def manifest_sha256(manifest: dict) -> str:
    """Hex SHA-256 of all that a manifest says, but for this hash itself."""
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
from nanogpt.data import BatchStream, DocumentStream, to_device

print(manifest_fault({"splits": {"val": {"tokens": 9, "shards": []}}}))


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
## Checkpoint

Exports the finished functions, imports their modules in a fresh process and runs the chapter's tests.
"""

# %%
checkpoint("16")

# %% [markdown]
r"""
## Exercises

`course exercises release 16` writes these as a notebook to `released/`; `course check 16` runs their visible checks.

- **16-1** A cut that changes no id, 10 minutes: repair a reader that cuts after the space.
- **16-2** A vocabulary without its merges, 30 minutes: find the tokens that no text will ever use.

16b has the other three. To explore:

1. **More places to cut.** Which other cells of the map may `EDGE` take? Between a letter and a digit, say: is
   that safe for every letter and digit of Unicode? *Check:* let hypothesis look for counterexamples before you argue, as
   `tests/labs/test_ch16_sources.py` does for `first_cut`. Why does the map show a half after an apostrophe, and less than all
   between two letters?
2. **Break the law.** Let `seek_cut` return `at` itself. *Check:* which cell notices first, and what does it say? The `.txt`
   files of the appendix still pass: why, and what would have to be compared?
3. **A tab between fields.** Read `.tsv` files. *Check:* the law for CSV in `tests/labs/test_ch16_sources.py`, with
   `delimiter="\t"` in its writer. Which other line of `sources.py` must know the kind?
4. **Bytes per token.** Train a tokenizer of the same size on a page in another script. How many bytes per token, how
   many characters? *Check:* it has more of both than this chapter's tokenizer has on that page.
5. **GPT-2's files.** `write_vocab(BPETokenizer.gpt2(), folder)`. *Check:* the first lines of `merges.txt` are `Ġ t`, `Ġ a`,
   `h e`, and there are 50,000. Which language wrote them? Give `encode_texts` the Greek line in it.

## Further reading

- Radford et al. 2019, [*Language Models are Unsupervised Multitask Learners*](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf), §2.1: how GPT-2's text was chosen; §2.2:
  why bytes.
- Lee et al. 2022, [*Deduplicating Training Data Makes Language Models Better*](https://arxiv.org/abs/2107.06499), §4: near-duplicates, and what they do.
- Penedo et al. 2024, [*The FineWeb Datasets*](https://arxiv.org/abs/2406.17557), §3: what is filtered out of the web, and how each decision was measured.
- Petrov et al. 2023, [*Language Model Tokenizers Introduce Unfairness Between Languages*](https://arxiv.org/abs/2305.15425): the same text takes up to fifteen
  times the tokens in another language.
- [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180): CSV, and where a quote may stand.
"""
