# %% [markdown]
r"""
# 16b ◇ · Preparing: any size, in parallel, resumable

Chapter 02's stories are tokenized in seconds. A crawl of the web takes hours on all cores, or days on one core. In that time the disk
can fill up, the battery can run empty, and a cluster can take its machine back. Chapter 16 wrote a text into shards so that each of them is complete or absent, and chapter 16a cut files of any size and kind at safe places. This chapter turns
text of any kind and size into the shards of chapter 03, in constant memory, on all cores or on many machines. Whatever stops a run, the same
command continues it, and the finished shards are the same to the byte. We shall kill it before each single change that a merge makes to the disk, and look.

We build it in three steps: one chunk of the text, all chunks merged, and a loop of ten lines that does both and can be killed. The command with its processes, locks and options comes at the end, as an appendix. The first code cell has the imports and all sizes of this chapter.
"""

# %%
#| default_exp labs.corpora.prepare
#| doc labs.corpora.chunks: A text in chunks, each of which is complete or absent; chunks merged into shards; shards of others.
#| doc labs.corpora.prepare: The command `prepare`: any text at any size into shards, in parallel, resumable, in parts.
import contextlib
import json
import random
import time
import warnings
from itertools import pairwise

from course.figures import kills
from course.figures import preparing as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import BPETokenizer

JOB, TAKEN_AFTER = 12, 4  # hours
STORIES = 4000  # this chapter's text
CHUNK, BLOCK = 50_000, 10_000  # bytes; the command takes 4 to 64 megabytes, and one
SHARD = 100_000  # tokens; the command takes a hundred million
VAL = TEST = 0.1  # of the documents
KILLS, PARTS = 6, 3

# %% [markdown]
r"""
## Is it worth the trouble?

*Predict.* A job takes 12 hours. The machine is taken away every 4 hours on average, at
random, and each time the job begins again from the start. After how many hours of work is it done, on average?
"""

# %%
predict("16b.1", "hours of work for a job that begins again", guess=None)

# %% [markdown]
r"""
We simulate such a job two thousand times. The time until the next interruption is drawn from an exponential distribution, which describes events that come at random. If it is shorter than the job, these hours are lost and the job begins again.
"""

# %%
dice, jobs = random.Random(0), range(1, JOB + 1)
assert 0 < JOB <= 6 * TAKEN_AFTER, (
    "JOB: 1 to 6 * TAKEN_AFTER hours, since beginning again takes exp(JOB / TAKEN_AFTER)"
)


def hours_of_work(job: float) -> float:
    """All the hours spent on a job that begins again whenever the machine is taken away."""
    hours = 0.0
    while (left := dice.expovariate(1 / TAKEN_AFTER)) < job:
        hours += left
    return hours + job


means = [sum(hours_of_work(job) for _ in range(2000)) / 2000 for job in jobs]
print(f"a job of {JOB} hours takes {means[-1]:.0f}, on average")
answer("16b.1", round(means[-1]))
alt = "Hours of work over the job's length: beginning again grows exponentially, going on is a straight line"
show(figures.beginning_again(jobs, means, TAKEN_AFTER), alt=alt)

# %% [markdown]
r"""
75 hours for a job of 12. The expectation is τ(exp(T/τ) − 1), for T hours of work and τ hours between two interruptions on average: 76.3 hours for 12 and 4. It grows exponentially with the length of the job. A job that continues where it was stopped needs T hours, and a little more.

One idea is enough for everything that we promised. The text is cut into *chunks*, always at the same places. Each chunk is encoded by
itself into a small data set of its own, which is either complete or absent. Cores and machines share the chunks among them. A run that follows
an interrupted one makes only the chunks that are absent. At the end all chunks are joined in order.

(The next two cells are the imports of the two modules that this chapter exports.) The third cell makes the chapter's text, four thousand stories in a JSONL file with one story in each line, trains a small tokenizer, and cuts the file into chunks with chapter 16a's
`cut_files`.
"""

# %%
#| export labs.corpora.chunks
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from nanogpt.files import atomically
from nanogpt.labs.corpora.encode import load_tokenizer
from nanogpt.labs.corpora.sources import Span, hash_of
from nanogpt.shards import HEADER_BYTES, SPLITS, check_shards, file_sha256, identity, load_manifest
from nanogpt.shards import read_shard, save_manifest, shard_header, write_shard
from nanogpt.tokenizer import BPETokenizer

# %%
#| export
import argparse
import errno
import hashlib
import os
import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanogpt.labs.corpora.sources import Span, blocks_in, cut_files, find_files, kind_of, print_remarks
from nanogpt.labs.corpora.encode import bytes_per_token, encode_texts, load_tokenizer
from nanogpt.shards import identity
from nanogpt.labs.corpora.splits import split_of

# %%
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
path = folder / "stories.jsonl"
documents = [story.text for story in stories(STORIES)]
path.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents), encoding="utf-8", newline="\n")
BPETokenizer.train(documents[:300], 400).save(folder / "tokenizer.json")
encoding, tokenizer = load_tokenizer(folder / "tokenizer.json")
assert CHUNK > 0 and BLOCK > 0, "CHUNK and BLOCK are numbers of bytes, 1 or more"
chunks = list(cut_files([path], CHUNK))
print(f"{path.stat().st_size:,} bytes in {len(chunks)} chunks")

# %% [markdown]
r"""
## The ids of a chunk

A document's hash decides its split (chapter 03). A chunk consists of *spans*, stretches of files. `encode_spans` reads a span a block at a time and encodes all documents of a block that go to the same
split in one call. Two functions of chapter 16a help. `blocks_in(span, block)` yields for each block whether documents begin with its texts (the middle of a long text file begins none), and the texts. `encode_texts(texts, begin, encoding, eot)` gives their ids. We print the first three portions of the first chunk.
"""


# %%
#| export
#| blank encode_spans: read a span block by block, deal its texts to the splits, encode each split's
def encode_spans(spans: list[Span], encoding, eot: int, val, test, block: int) -> Iterator[tuple]:
    """A chunk's ids, block by block: split, ids in uint16, and of how many documents and bytes of text.

    What a block has of one split is encoded in one call of encode_texts. A span's own split holds for all its texts;
    where it has none, the SHA-256 of each text decides. Where no document begins with the texts, the documents are 0.
    """
    for span in spans:
        for begin, texts in blocks_in(span, block):
            held = defaultdict(list)
            for text in texts:
                split = span.split or split_of(hashlib.sha256(text.encode()).digest(), val, test)
                held[split].append(text)
            for split, texts in held.items():
                ids = encode_texts(texts, begin, encoding, eot).astype("<u2")
                documents = len(texts) if begin else 0
                yield split, ids, documents, sum(len(text.encode()) for text in texts)


# %%
encode = partial(encode_spans, encoding=encoding, eot=tokenizer.eot, val=VAL, test=TEST, block=BLOCK)
for split, ids, n, size in list(encode(chunks[0]))[:3]:
    print(f"{split:5} {len(ids):,} ids of {n} documents, {size:,} bytes")

# %% [markdown]
r"""
The generator yields small portions: the ids of one split in one block, with the number of documents and of bytes of text. The first block has 23 stories: 18 go to train, 1 to val and 4 to test. The generator never holds more than a block in memory. The counts
go into the manifest, and at the end they give the bytes per token of chapter 16a. Note that the split does not depend on the chunk. A document that moves to another chunk, because text was added
before it, still goes to the same split.

## A chunk is complete, or absent

A chunk becomes a folder in the form of chapter 03, with a shard for each split. `write_splits` writes them, block by block. The length of the text is not known before the end, so it leaves room for the header and writes the header last.
"""


# %%
#| export labs.corpora.chunks
def write_splits(folder: Path, encoded: Iterable[tuple]) -> dict:
    """A shard for each split, which grows block by block; what a manifest says of them."""
    splits = {}
    for split, ids, documents, size in encoded:
        held = splits.setdefault(split, Counter())
        with open(folder / f"{split}.bin", "ab") as file:
            if not held:  # the first portion: leave room for the header
                file.write(bytes(HEADER_BYTES))
            file.write(ids.tobytes())
        held.update(documents=documents, bytes=size, tokens=len(ids))
    for split, held in splits.items():
        path = folder / f"{split}.bin"
        with open(path, "r+b") as file:
            file.write(shard_header(held["tokens"]))
        splits[split] = {**held, "shards": [shard_entry(path, held["tokens"])]}
    return splits


def shard_entry(path: Path, tokens: int) -> dict:
    return {"file": path.name, "tokens": tokens, "sha256": file_sha256(path)}


# %%
tried = folder / "tried"
shutil.rmtree(tried, ignore_errors=True)  # of an earlier run of this cell
tried.mkdir()
for split, said in write_splits(tried, encode(chunks[0])).items():
    print(f"{split}.bin has {said['tokens']:,} tokens of {said['documents']} documents")

# %% [markdown]
r"""
If this is interrupted, files without a header are left. So the folder is made under another name and renamed when it is complete, as in chapter 16, and it gets a manifest with the hashes of the shards and of the
text. A later run can verify a chunk that it finds: it hashes the text and
the shards again, which is far cheaper than encoding (both are timed below). A damaged chunk is made again. A chunk that was made of other text, or with
other options, is refused.

`make_chunk` does all this: it looks for the chunk and checks it, and if the chunk is absent or damaged, it makes a new one. Before it come small helpers: `refuse_another` and `refuse_change` raise an error if a chunk was made with other options or from other text, and `shards_in` lists the shards of a folder.
"""


# %%
#| export labs.corpora.chunks
CHUNKS = ".chunks"  # the folder below --out where they are, until they are merged


def shards_in(out: Path) -> list[Path]:
    """The files that bear the name of a shard. With chunks beside them, a merge has begun."""
    return [path for path in out.iterdir() if re.fullmatch(r"(train|val|test)_\d{6,}\.bin", path.name)]


def remedy(out: Path) -> str:
    return f"choose another --out, or delete {out} if nothing else is in it"


def refuse_another(out: Path, made_of: dict, was: dict) -> None:
    """ValueError if what `out` holds was made of something else."""
    for key, now in made_of.items():
        if was.get(key) != now:
            raise ValueError(f"{out} holds shards whose {key} is {was.get(key)}, not {now}; {remedy(out)}")


def refuse_change(out: Path, spans: list[Span], was: str) -> None:
    """ValueError if the text of a chunk is not what it was."""
    if hash_of(spans) != was:
        raise ValueError(f"{spans[0].path} has changed since {out} was begun; {remedy(out)}")


# %%
#| export labs.corpora.chunks
def make_chunk(folder: Path, spans: list[Span], made_of: dict, encode: Callable, merging=False) -> dict:
    """A chunk's manifest, once it is there. It is made if it is not whole; while it is merged, its shards may be gone."""
    out = folder.parent.parent
    try:
        manifest = load_manifest(folder)
        check_shards(folder, manifest | ({"splits": {}} if merging else {}))
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        refuse_another(out, made_of, manifest)
        refuse_change(out, spans, *manifest["source_sha256"])
        return manifest
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        source = hash_of(spans)
        splits = write_splits(aside, encode(spans))
        manifest = save_manifest(aside, made_of | {"source_sha256": [source], "splits": splits})
        os.rename(aside, folder)
        return manifest
    finally:
        shutil.rmtree(aside, ignore_errors=True)


# %% [markdown]
r"""
*Check.* The next cell asks for the same chunk four times. The first time it is interrupted, and the second time the chunk is made. Then we damage the chunk and ask a third time. The fourth time we ask with another option.
"""


# %%
def halfway(spans):
    """A first block is encoded, then somebody presses Ctrl-C."""
    yield next(encode(spans))
    raise KeyboardInterrupt


shutil.rmtree(folder / "few", ignore_errors=True)  # of an earlier run of this cell
first = folder / "few" / CHUNKS / "000000"
made_of = dict(source="stories", val=VAL, **identity(tokenizer))
with contextlib.suppress(KeyboardInterrupt):
    make_chunk(first, chunks[0], made_of, halfway)
print("stopped halfway:", sorted(first.parent.iterdir()))
whole = make_chunk(first, chunks[0], made_of, encode)
print("begun again:    ", sorted(path.name for path in first.iterdir()))
shard = next(first.glob("*.bin"))
damaged = bytearray(shard.read_bytes())
damaged[-1] ^= 1
shard.write_bytes(damaged)
assert make_chunk(first, chunks[0], made_of, encode) == whole, "the chunk made again is another"
assert shard.read_bytes() != damaged, "a damaged chunk was taken for a whole one"
try:
    make_chunk(first, chunks[0], made_of | dict(val=0), encode)
except ValueError as error:
    print("another --val:  ", str(error).split(";")[0].removeprefix(f"{folder}{os.sep}"))

# %% [markdown]
r"""
After the interruption the folder of chunks is empty. The half-made folder had another name, and `finally` removed it. (After `kill -9` it would stay, under a name that
begins with a dot, and nobody would read it.) The chunk that was made again is equal to the first one, which is no accident: the same text and the same options always give the same bytes. That is why a chunk may be thrown away
without a loss whenever something looks wrong with it. The last line shows the other side. A chunk that was made with another option is *not* thrown away silently, because
then two runs with different options would destroy each other's work for ever.

## Merging

The chunks are small data sets, and the training wants large shards. To merge, we take a split's tokens from all chunks in order and cut them into shards of equal size. A chunk's file is deleted as soon
as all its tokens are in a shard on the disk, so the merge needs little extra room. An interrupted merge can be
continued, because a shard that has its name is complete.

`merge_split` does this for one split. For the shard with the tokens `start` to `stop`, it copies from each chunk's file the part that falls between the two. `merge_chunks` does it for all splits, adds the counts of the chunks up, and writes the manifest. We merge the first three chunks.
"""


# %%
#| export labs.corpora.chunks
#| blank merge_split: write one shard after another from the parts in it; delete each part that is used up
def merge_split(out: Path, split: str, parts: list[tuple[Path, int]], shard_tokens: int) -> list[dict]:
    """Write a split's shards from its chunks' (path, tokens); a shard_entry of each, in order.

    They are out/train_000000.bin and so on, with shard_tokens tokens each and the rest in the last one. One that is
    there is complete, and the parts in it may be gone. A part is deleted once, as soon as all its tokens are in shards.
    """
    shards, total, merged = [], sum(n for _, n in parts), 0  # merged: tokens that are needed no more
    for start in range(0, total, shard_tokens):
        path, stop, here = out / f"{split}_{len(shards):06d}.bin", min(start + shard_tokens, total), merged
        if not path.exists():
            with atomically(path) as file:
                file.write(shard_header(stop - start))
                for part, n in parts:
                    if start < here + n and here < stop:
                        file.write(read_shard(part)[max(0, start - here) : stop - here].tobytes())
                    here += n
        while parts and merged + parts[0][1] <= stop:
            part, n = parts.pop(0)
            part.unlink(missing_ok=True)
            merged += n
        shards.append(shard_entry(path, stop - start))
    return shards


# %%
#| export labs.corpora.chunks
def merge_chunks(out: Path, made_of: dict, chunks: list[tuple[Path, dict]]) -> dict:
    """Join chunks, as (folder, manifest), to the shards of `out`; their manifest."""
    if not any(said["splits"] for _, said in chunks):
        shutil.rmtree(out / CHUNKS)
        raise ValueError(f"{made_of['source']}: no text, all documents are empty")
    splits = {}
    for split in SPLITS:
        held = [(folder, said["splits"][split]) for folder, said in chunks if split in said["splits"]]
        splits[split] = {key: sum(said[key] for _, said in held) for key in ("documents", "bytes", "tokens")}
        parts = [(folder / f"{split}.bin", said["tokens"]) for folder, said in held]
        splits[split]["shards"] = merge_split(out, split, parts, made_of["shard_tokens"])
    sources = [sha256 for _, said in chunks for sha256 in said["source_sha256"]]
    manifest = save_manifest(out, made_of | {"source_sha256": sources, "splits": splits})
    shutil.rmtree(out / CHUNKS)
    return manifest


# %%
few = [(first.with_name(f"{i:06}"), spans) for i, spans in enumerate(chunks[:3])]
made = [(where, make_chunk(where, spans, made_of, encode)) for where, spans in few]
parts = [path for split in SPLITS for where, _ in made for path in where.glob(f"{split}.bin")]
before = np.concatenate([read_shard(path) for path in parts])
said = merge_chunks(folder / "few", made_of | dict(shard_tokens=len(before) // 2), made)
shards = [shard for split in SPLITS for shard in said["splits"][split]["shards"]]
for shard in shards:
    print(f"{shard['file']}: {shard['tokens']:,} tokens")
after = np.concatenate([read_shard(folder / "few" / shard["file"]) for shard in shards])
assert np.array_equal(before, after), "the shards are not the chunks in order"

# %% [markdown]
r"""
The three chunks had 49,422 tokens for training, and the shards hold exactly these, 31,117 and 18,305, in the same order. Where one shard ends and the next begins is decided by the number of tokens alone, so a shard
may end in the middle of a document. Chapter 03's streams allow this, because they read all shards of a split as one long text.
"""

# %% [markdown]
r"""
## A run that is killed

Now all parts are there, and a few lines connect them. `work` makes those chunks that are absent, one after the other, and merges them. If there is a manifest, all is done, and it only compares every byte with it. (With a part, as "2/3", it makes only every third chunk, and does not merge: that is for a later section.)
"""


# %%
def work(out: str, part: str = "1/1") -> None:
    """The chapter's text into a folder, in this process: the command without its options."""
    place = folder / out
    first, step = map(int, part.split("/"))
    if (place / "manifest.json").exists():
        manifest = load_manifest(place)
        for spans, sha256 in zip(chunks, manifest["source_sha256"]):
            refuse_change(place, spans, sha256)
        return check_shards(place, manifest)
    merging = place.exists() and bool(shards_in(place))  # then some of the chunks' files are gone already
    made = []
    for n in range(first - 1, len(chunks), step):
        where = place / CHUNKS / f"{n:06}"
        made.append((where, make_chunk(where, chunks[n], made_of, encode, merging)))
    if step == 1:
        merge_chunks(place, made_of | dict(shard_tokens=SHARD), made)


# %% [markdown]
r"""
*Check.* A run that is killed at any moment and started again, however often, must leave the same bytes as a run that was never
stopped. We use `kill -9` from outside, at random moments, because after an exception Python would still tidy up.

*Predict.* How many finished chunks does a kill destroy? And when everything is finished, how much faster does the command find this out than it
made the shards?
"""


# %%
predict("16b.2", "chunks lost at a kill, of those that were done", guess=None)
predict("16b.3", "how much sooner is it known that all is done", guess=None, unit="×")

# %% [markdown]
r"""
Two short functions for this experiment: `names_in` lists the finished chunks, and `assert_same` compares every file with that of the run that was never stopped.
"""


# %%
def names_in(out: str, below: str = CHUNKS) -> set[str]:
    return {path.name for path in (folder / out / below).glob("[0-9a-z]*")}


def assert_same(out: str) -> None:
    for name in (names := names_in("straight", ".")) | names_in(out, "."):
        same = (folder / out / name).read_bytes() == (folder / "straight" / name).read_bytes()
        assert same, f"{name} is not that of a run that was never stopped"
    print(f"{out}: all {len(names)} files are the same to the byte")


# %% [markdown]
r"""
First we call `work` twice without a kill, and take the time of both calls. The second call finds that all is done.
"""


# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
work("straight")
seconds = time.perf_counter() - start
print(f"never stopped: {seconds:.2f} s, {path.stat().st_size / 1e6 / seconds:.1f} MB/s in one process")
start = time.perf_counter()
work("straight")
known = time.perf_counter() - start
print(f"to find that all is done: {known:.3f} s")
answer("16b.3", seconds / known)

# %% [markdown]
r"""
Now a child process does the same work in another folder, and we kill it up to six times. After each kill we note which chunks are finished. At the end it runs without a kill.
"""

# %% tags=["nbval-ignore-output"]
done = [set()]
for _ in range(KILLS if hasattr(os, "fork") else 0):  # Windows has none; the tests start processes there
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        (child := get_context("fork").Process(target=work, args=("killed",))).start()
    time.sleep(dice.uniform(0.05, 0.25) * seconds)
    child.kill()
    child.join()
    if (folder / "killed/manifest.json").exists():
        break
    done.append(names_in("killed"))
work("killed")
assert_same("killed")
answer("16b.2", sum(len(before - after) for before, after in pairwise(done)))
alt = "Complete chunks, from kill to kill: each run adds some, and none is lost"
show(figures.kills([len(names) for names in done], len(chunks)), alt=alt)

# %% [markdown]
r"""
The curve never falls: no kill destroys a finished chunk. A kill costs only the work on the chunks that were not finished, one for each process. So smaller chunks lose less. But each chunk also costs a little time of its own,
for opening files, hashing and renaming, so there is a best size, and exploration 2 asks for it. Checking a finished folder took a fiftieth of the time of making it, or less, because hashing is much faster than encoding. So it is safe to
put the command into a script that runs every night.

But all these kills met the encoding. The delicate part is the merge: it deletes the chunks' files while it writes the shards. A random moment rarely falls into it. So we aim, as in chapter 17b: Python announces each change of the disk before it happens, and `kills.before_change` ends a child just before the change of a given number. We make all chunks once. Then the first child dies before the first
change of the merge, the second before the second change, and so on, until one lives to the end. Each time a last call repairs what is left.
"""

# %%
if kills.POSSIBLE:
    for part in ("1/2", "2/2"):  # all chunks, and no merge
        work("chunks alone", part)
moment, dead = 0, kills.POSSIBLE
while dead:
    moment += 1
    shutil.rmtree(folder / "merged", ignore_errors=True)
    shutil.copytree(folder / "chunks alone", folder / "merged")
    dead = kills.before_change(moment, lambda: work("merged"), folder / "merged")
    work("merged")
    for name in names_in("straight", "."):
        same = (folder / "merged" / name).read_bytes() == (folder / "straight" / name).read_bytes()
        assert same, f"killed before change {moment} of the merge, {name} is another file"
print(f"killed before each of {max(moment - 1, 0)} changes of the merge: always the same files")

# %% [markdown]
r"""
The merge opens and renames nine shards and the manifest, which makes 20 changes. Whichever of them a kill prevents, the next call finds out what is there and finishes the rest. It can do so because of the order in `merge_split`: a chunk's file is deleted only when the shards with its tokens have their names.

## Parts for many machines

It does not matter which process makes a chunk, or when. So we can divide the work: *part* p of n is every n-th chunk, from the p-th on. Sixteen machines
with a common file system, or sixteen tasks of a Slurm array, take one part each. A part that failed is started again alone. Finally
the command without a part makes the chunks that are still absent, and merges.
"""

# %%
assert PARTS >= 1, "PARTS: 1 or more"
shutil.rmtree(folder / "parts", ignore_errors=True)
for p in random.Random(PARTS).sample(range(1, PARTS + 1), PARTS):  # in any order
    work("parts", f"{p}/{PARTS}")
    print(f"after part {p}/{PARTS}: {len(names_in('parts'))} of {len(chunks)} chunks")
shutil.rmtree(folder / "parts" / CHUNKS / min(names_in("parts")))  # as if its machine had died
work("parts")
assert_same("parts")

# %% [markdown]
r"""
The parts ran in any order, and one chunk was deleted as if its machine had died. The merged files are still the same to the byte. This law makes the chapter simple to test: there is only one right result, whichever way it was
made.
"""

# %% [markdown]
r"""
## Appendix: the command, on all cores

`prepare` does what `work` does, and five things more: it takes any source and tokenizer, keeps a second run out of its folder, uses all cores, checks its options, and repairs a finished folder in which a shard is damaged. None of this is a new idea about language models. If you are not curious, run the cells and go on with your predictions.

What do the cores bring? On two cores of a server CPU, `prepare` encodes 256 MB of JSONL at 37 MB/s, 1.2 times the rate of two threads of plain tiktoken (`bench/prepare.py`). For a text of some megabytes more processes do not help: to start them takes seconds.
Nor is a rate in MB/s the same for every text. A published log of Megatron-LM's preprocessing, with 16 workers each time, ends at 13.5 MiB and 1,043 documents a second for long documents, and at 1.7 MiB and 1,830 documents a second for short ones (`data/reference/megatron_preprocess.csv`). A document of
13.3 KiB takes less than twice as long as one of 1.0 KiB. So a large part of the time is a cost for each document, whatever its length.

*A folder that is in use, or finished.* Two runs that merge in one folder would delete each other's chunks. Chapter 16's `alone_in` gives the folder to one of them, or shares it among any number of parts.
A run that finds a finished folder checks it again, because a shard may have been damaged or deleted, or the text may have changed.
"""


# %%
#| export labs.corpora.chunks
def finished(out: Path, plan: list[list[Span]], made_of: dict) -> dict | None:
    """The manifest, if all is done; None if something is to do, as where a shard was damaged or deleted."""
    if not (out / "manifest.json").exists():
        if shards_in(out) and not (out / CHUNKS).exists():
            raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
        return None
    try:
        manifest = load_manifest(out)
    except ValueError as error:
        raise ValueError(f"{error}, but first {remedy(out)}") from None
    refuse_another(out, made_of, manifest)
    for spans, sha256 in zip(plan, manifest["source_sha256"]):
        refuse_change(out, spans, sha256)
    try:
        check_shards(out, manifest)
    except (OSError, ValueError) as damage:
        print(f"{damage}: doing so", file=sys.stderr)
        for path in [*shards_in(out), out / "manifest.json"]:  # this last: it knows of the damage
            path.unlink()
        return None
    shutil.rmtree(out / CHUNKS, ignore_errors=True)
    return manifest


# %% [markdown]
r"""
*Processes.* tiktoken releases Python's global lock while it encodes, but the Python code around it cannot, so chunks are encoded in several
processes. Two things are easy to get wrong. Processes must be *spawned*, as Windows and macOS do anyway, so their function
must be importable, and the calling script needs `if __name__ == "__main__":`. And a worker must not survive a parent
that was killed. (The calls of this page have one worker, since the module is on the disk only after the checkpoint. The tests kill runs with two workers, and compare the bytes.)
"""


# %%
#| export
def start_worker(work: Callable) -> None:
    """Runs once in each worker: keep what all chunks need, leave Ctrl-C to the parent, and do not outlive it."""
    global work_here
    work_here = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def do_task(task: tuple):
    return work_here(*task)


# %%
#| export
def in_processes(work: Callable, tasks: list[tuple], workers: int) -> Iterator:
    """What `work` makes of each task, in order."""
    if workers == 1:
        yield from (work(*task) for task in tasks)
        return
    # Spawned everywhere: a fork copies the locks that a notebook's other threads hold at that moment.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), start_worker, (work,))
    mask = getattr(signal, "pthread_sigmask", lambda how, signals: ())  # Windows has none
    try:
        before = mask(getattr(signal, "SIG_BLOCK", 0), {signal.SIGINT})  # so that workers are born with it
        waiting = [pool.submit(do_task, task) for task in tasks]
        mask(getattr(signal, "SIG_SETMASK", 0), before)
        yield from (done.result() for done in waiting)
    except BrokenProcessPool:
        raise RuntimeError("a worker was killed (memory?); go on with fewer --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


# %%
#| export
def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_options(out: Path, val, test, workers: int | None, shard_tokens: int, part: str) -> tuple[int, int]:
    """Which part of how many, both from 1. ValueError for a value that cannot work."""
    p, n = map(int, part.split("/")) if re.fullmatch(r"\d{1,6}/\d{1,6}", part) else (0, 0)
    divided, fits = 0 <= val <= val + test < 1, 1 <= shard_tokens <= 2_000_000_000
    wrong = {
        f"--out {out} is a file; it takes a folder": out.exists() and not out.is_dir(),
        f"--val {val} and --test {test} are fractions of all; leave some for train": not divided,
        f"--workers {workers}: it takes at least one process": workers is not None and workers < 1,
        f"--shard-tokens {shard_tokens}: from 1 to 2,000,000,000, since a header has int32": not fits,
        f"--part {part}: which part of how many, from 1/16 to 16/16": not 1 <= p <= n,
    }
    for what in filter(wrong.get, wrong):
        raise ValueError(what)
    return p, n


# %%
#| export
from nanogpt.files import alone_in


def prepare(source: str | os.PathLike, out: str | os.PathLike, tokenizer: str | os.PathLike = "gpt2", val=0.01,
            test=0.01, paragraphs=False, workers: int | None = None, shard_tokens=100_000_000,
            part: str | None = None, chunk: int | None = None, block=1 << 20, column="text") -> dict | None:  # fmt: skip
    """Tokenize `source` into shards below `out`; the manifest, or None for a part. Called again, it goes on."""
    p, n = check_options(out := Path(out), val, test, workers, shard_tokens, part or "1/1")
    files, (encoding, ours) = find_files(source := Path(source)), load_tokenizer(tokenizer)
    size, times = sum(path.stat().st_size for path in files), [path.stat().st_mtime_ns for path in files]
    chunk = chunk or min(max(size >> 10, 1 << 22), 1 << 26)  # a thousand of a large text, but of bounded size
    made_of = dict(source=f"{source.resolve().name}, {len(files)} files, {size} bytes", chunk=chunk)
    made_of |= dict(tokenizer=Path(tokenizer).name, val=val, test=test, paragraphs=paragraphs, column=column)
    made_of |= dict(shard_tokens=shard_tokens, **identity(ours))
    encode = partial(encode_spans, encoding=encoding, eot=ours.eot, val=val, test=test, block=block)
    with alone_in(out, shared=bool(part)):
        plan = list(cut_files(files, chunk, paragraphs, val, test, column))
        if manifest := finished(out, plan, made_of):
            return manifest
        tasks = [(out / CHUNKS / f"{i:06d}", spans) for i, spans in enumerate(plan)][p - 1 :: n]
        make = partial(make_chunk, made_of=made_of, encode=encode, merging=bool(shards_in(out)))
        manifests = in_processes(make, tasks, max(1, min(workers or cores(), len(tasks))))
        bar = tqdm(manifests, total=len(tasks), unit="chunk", disable=None)
        chunks = [(folder, manifest) for manifest, (folder, _) in zip(bar, tasks)]
        if changed := [path for path, before in zip(files, times) if path.stat().st_mtime_ns != before]:
            raise ValueError(f"{changed[0]} was changed while it was read; prepare it when it is whole")
        return None if part else merge_chunks(out, made_of, chunks)


# %% [markdown]
r"""
*Shards of others.* llm.c's scripts write shards in the same format, but no manifest, and build-nanogpt's script writes the same ids as NumPy
files. Encoding ten billion tokens again would be a waste, so such a folder can be *adopted*: its files are read once, counted and hashed,
and described in a manifest.
"""


# %%
#| export labs.corpora.chunks
def counts_of(path: Path) -> np.ndarray:
    """How often each id from 0 to 65,535 occurs in a shard; read in parts, since a shard may have a billion."""
    shard, counts, part = read_shard(path), np.zeros(65536, np.int64), 1 << 24
    for at in range(0, len(shard), part):
        counts += np.bincount(shard[at : at + part], minlength=65536)
    return counts


# %%
#| export labs.corpora.chunks
def split_of_others(paths: list[Path], ours: BPETokenizer) -> dict:
    """What a manifest says of a split's shards that another program made: they are counted and hashed."""
    sizes, held, shards = np.array([len(token) for token in ours.vocab]), Counter(), []
    for path in paths:
        counts = counts_of(path)
        if counts[ours.vocab_size :].any():
            raise ValueError(
                f"{path} has ids from {ours.vocab_size:,} on; --tokenizer names another vocabulary"
            )
        size, tokens = int(counts[: len(sizes)] @ sizes), int(counts.sum())
        held.update(documents=int(counts[ours.eot]), bytes=size, tokens=tokens)
        shards.append(shard_entry(path, tokens))
    return {key: held[key] for key in ("documents", "bytes", "tokens")} | {"shards": shards}


# %%
#| export labs.corpora.chunks
def adopt(folder: Path, tokenizer: str | os.PathLike = "gpt2") -> dict:
    """Write a manifest for shards that other programs made, with train, val or test in their names; returns it.

    NumPy files of ids are copied into shards first. ValueError if there is no shard, or an id outside the vocabulary.
    """
    _, ours = load_tokenizer(tokenizer)
    for path in sorted(folder.glob("*.npy")):
        if not path.with_suffix(".bin").exists():
            write_shard(path.with_suffix(".bin"), np.load(path, mmap_mode="r"))
    there = sorted(folder.glob("*.bin"))
    paths = {  # latest_train_0.bin is no test
        split: [path for path in there if re.search(rf"(?<![a-z]){split}(?![a-z])", path.stem.lower())]
        for split in SPLITS
    }
    if not any(paths.values()):
        raise ValueError(f"{folder} has no .bin or .npy file with train, val or test in its name")
    splits = {split: split_of_others(found, ours) for split, found in paths.items()}
    made_of = dict(source=f"{folder.resolve().name}, adopted", **identity(ours))
    return save_manifest(folder, made_of | {"splits": splits})


# %%
(folder / "theirs").mkdir(exist_ok=True)
write_shard(folder / "theirs/fineweb_train_000001.bin", [tokenizer.eot, *tokenizer.encode(documents[0])])
np.save(folder / "theirs/fineweb_val_000000.npy", np.array([tokenizer.eot, *tokenizer.encode(documents[1])]))
for split, held in adopt(folder / "theirs", folder / "tokenizer.json")["splits"].items():
    names = [shard["file"] for shard in held["shards"]]
    print(
        f"{split:5} {held['tokens']} tokens of {held['documents']} documents, {held['bytes']} bytes, in {names}"
    )

# %% [markdown]
r"""
*The command* consists of a parser and a function. Chapter 17d's runner calls them, and turns an error into one line.
"""


# %%
#| export
def out_of(args: argparse.Namespace) -> Path:
    """The folder that the command writes into: --out, or one named after the source; shards of others stay where they are."""
    if args.adopt:
        return args.source
    source = args.source.resolve()
    return args.out or Path("data/built", source.name if source.is_dir() else source.stem)


# %%
#| export
HELP = """Turns text into token shards, from which training reads.

  a .txt file      is one document; with --paragraphs a document ends at each blank line
  a .jsonl file    has one document a line: {"text": "..."}
  a .csv or .parquet file   has one document a row, in its column "text"; --column names another
  a folder         is all such files below it

<|endoftext|> stands before each document. Its hash sends a document to train, val or test, so that val is the same
text however much is added; a single .txt file goes to train whole. What was stopped by Ctrl-C, kill -9 or a full
disk goes on where it was when the same command is given again. The shards are in llm.c's format.

  python -m nanogpt prepare shakespeare.txt --paragraphs --val 0.1
  python -m nanogpt prepare data/downloads/fineweb-edu --out data/built/fineweb-edu
  python -m nanogpt prepare notes/ --tokenizer data/built/tokenizer.json

Where one machine would take days: give the command with --part 1/16 ... --part 16/16, in any order, to machines that
share the folder --out, or to a Slurm array (--part $SLURM_ARRAY_TASK_ID/16). A part that failed is started once more.
Then the command without --part makes what is missing, and merges: the same bytes as from one run.

Shards of llm.c's or build-nanogpt's scripts need no second tokenizing: prepare --adopt FOLDER writes their manifest.
"""


# %%
#| export
FORMATS = {"shards": None}  # what is made of the shards besides; chapter 22b adds Megatron's files


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("source", type=Path, help="a .txt, .jsonl, .csv or .parquet file, or a folder of them")
    add("--out", type=Path, help="folder for the shards (default: data/built/ + the source's name)")
    known = "gpt2 (default), a tokenizer.json of chapter 01, or a folder with vocab.json and merges.txt"
    add("--tokenizer", default="gpt2", help=known)
    add("--val", type=float, default=0.01, help="fraction of documents for validation (0.01)")
    add("--test", type=float, default=0.01, help="fraction of documents for testing (0.01)")
    add("--paragraphs", action="store_true", help="a .txt file's documents end at blank lines")
    add("--column", default="text", help="what holds the text in JSONL, CSV and parquet (text)")
    add("--adopt", action="store_true", help="the source is a folder of shards without a manifest: write it")
    add("--workers", type=int, help="processes that tokenize (default: one a core)")
    add("--part", metavar="P/N", help="only the P-th of N parts, for many machines (see above)")
    add("--shard-tokens", type=int, default=100_000_000, help="where a new shard begins (100000000)")
    add("--format", choices=list(FORMATS), default="shards", help="also files of another program (shards)")
    return parser


# %%
#| export
DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def refuse_idle(args: argparse.Namespace) -> None:
    """ValueError for an option that would do nothing, since the source has no file of the kind that it is for."""
    kinds = {kind_of(path) or "text" for path in find_files(args.source)}
    if args.column != "text" and kinds == {"text"}:
        raise ValueError(f"--column {args.column}: {args.source} has no columns; leave it out")
    if args.paragraphs and "text" not in kinds:
        raise ValueError(f"--paragraphs: {args.source} has no text file; leave it out")


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt prepare`, its options parsed."""
    out = out_of(args)
    options = vars(args) | {"out": out}
    also = FORMATS[options.pop("format")]
    try:
        if not args.adopt:
            refuse_idle(args)
            print_remarks(args.source)
        manifest = adopt(args.source, args.tokenizer) if options.pop("adopt") else prepare(**options)
        if manifest and also:
            also(out, manifest)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command goes on from here, and what is in {out} is kept") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no room left for {out}; no shard is half-written; make room and go on") from None
    print(report(manifest) if manifest else f"part {args.part} is made; without --part, all parts are merged")
    print(f"in {os.fsencode(out).decode(errors='replace')}")


# %%
#| export
def report(manifest: dict) -> str:
    """What was made, and the bytes of text per token, with a warning where these are few."""
    lines, held = [], manifest["splits"].values()
    for split, said in manifest["splits"].items():
        n, shards = said["documents"], len(said["shards"])
        lines.append(f"{split:5} {said['tokens'] - n:,} tokens + {n:,} <|endoftext|> in {shards} shards")
    tokens = sum(said["tokens"] - said["documents"] for said in held)
    lines.append(bytes_per_token(sum(said["bytes"] for said in held), tokens))
    if manifest.get("val", 0) and not manifest["splits"]["val"]["tokens"]:
        lines.append(
            "nothing is left for validation, and training needs it: give a larger --val, or --paragraphs"
        )
    if not manifest["splits"]["train"]["tokens"]:
        lines.append("nothing is left to train on: give a smaller --val and --test")
    return "\n".join(lines)


# %%
BPETokenizer.train("", 257).save(folder / "no_merges.json")
with contextlib.chdir(folder):
    for name in ("tokenizer.json", "no_merges.json"):
        run(parser().parse_args(["stories.jsonl", "--tokenizer", name, "--workers", "1", "--out", name[:-5]]))

# %% [markdown]
r"""
One document in a hundred goes to val and one to test, as the options say by default. The same text has 732,506 tokens for training with the merges and 1,724,921 without: the warning of chapter 16a says so.

*Check.* `prepare` must write the bytes that the simple `work` has written.
"""

# %%
how = dict(val=VAL, test=TEST, workers=1, shard_tokens=SHARD, chunk=CHUNK, block=BLOCK)
prepare(path, folder / "prepared", folder / "tokenizer.json", **how)
names = names_in("straight", ".") - {"manifest.json"}  # which also says how it was made
for name in sorted(names):
    same = (folder / "prepared" / name).read_bytes() == (folder / "straight" / name).read_bytes()
    assert same, f"{name} is another file than that of `work`"
print(f"{len(names)} shards, the same to the byte")

# %% [markdown]
r"""
## Your predictions, and the checkpoint
"""

# %%
predictions("16b")

# %%
checkpoint("16b")

# %% [markdown]
r"""
## Exercises

`course exercises release 16` writes these, and those of 16 and 16a, as a notebook to `released/`; `course check 16` runs their visible checks.

- **16-3** A job that is taken away, 30 minutes: derive what chunks save.
- **16-4** Who makes which chunk, 20 minutes: write the check that finds a chunk lost or made twice.

To explore:

1. **Without `aside`.** Let `make_chunk` write into `folder` itself: all checks of this chapter pass. Which line
   prevents the damage, and which check would fail if the manifest were written first? *Check:* `pytest tests/labs/test_ch16b_prepare.py -k
   renamed` names the reason.
2. **How large a chunk?** The machine is taken away every 4 hours; a kill loses half a chunk, on average, of each core;
   to begin one costs 2 ms, and a core encodes 16 MB/s. *Check:* the size that costs least is near Young's √(2·2 ms·4 h)
   of work. What else speaks against very small and very large ones?
3. **Parts in one piece.** Let part p of n be the p-th n-th of the chunks, one after another. *Check:* "Parts" above
   still gives the same bytes. A folder has many short files first, long ones later: which cut shares the work better?
4. **Another number of parts.** Two machines of three have finished; the third is gone, and five new ones are free. Give them
   1/5 ... 5/5. *Check:* no chunk is made twice (count the calls of `encode_spans`), and the bytes are the same.
5. **TinyShakespeare.** `course data tinyshakespeare`, then prepare it with and without `--paragraphs`. *Check:* in
   GPT-2's vocabulary there are 7,221 more `<|endoftext|>`, and nearly as many tokens fewer. Which two tokens became one,
   and why? llm.c takes the first 32,768 tokens for validation: what does this measure that a split by hash does not?

## Further reading

- Dean and Ghemawat 2004, [*MapReduce: Simplified Data Processing on Large Clusters*](https://www.usenix.org/conference/osdi-04/mapreduce-simplified-data-processing-large-clusters), §3.3: tasks that are repeated, and
  output that is renamed when it is complete.
- Young 1974, [*A First Order Approximation to the Optimum Checkpoint Interval*](https://doi.org/10.1145/361147.361115): two pages, one square root.
- Pillai et al. 2014, [*All File Systems Are Not Created Equal*](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), §2 and §4: what survives a crash, and in which order.
"""
