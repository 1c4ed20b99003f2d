"""The command `prepare`: any text at any size into shards, in parallel, resumable, in parts.

Exported from notebooks/16b_preparing.ipynb, grown by notebooks/22b_formats.ipynb.
"""

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

from tqdm import tqdm

from nanogpt.files import alone_in
from nanogpt.labs.corpora.chunks import CHUNKS, adopt, finished, make_chunk, merge_chunks, shards_in
from nanogpt.labs.corpora.encode import bytes_per_token, encode_texts, load_tokenizer
from nanogpt.labs.corpora.sources import Span, blocks_in, cut_files, find_files, kind_of, print_remarks
from nanogpt.labs.corpora.splits import split_of
from nanogpt.labs.formats.megatron import shards_to_megatron
from nanogpt.shards import identity


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


def start_worker(work: Callable) -> None:
    """Runs once in each worker: keep what all chunks need, leave Ctrl-C to the parent, and do not outlive it."""
    global work_here
    work_here = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def do_task(task: tuple):
    return work_here(*task)


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


def out_of(args: argparse.Namespace) -> Path:
    """The folder that the command writes into: --out, or one named after the source; shards of others stay where they are."""
    if args.adopt:
        return args.source
    source = args.source.resolve()
    return args.out or Path("data/built", source.name if source.is_dir() else source.stem)


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


def as_megatron(folder: Path, manifest: dict) -> None:
    """Write Megatron's files beside the shards, and say which."""
    for prefix, tokens in shards_to_megatron(folder, manifest).items():
        print(f"{prefix}.bin and .idx: {tokens:,} tokens")


FORMATS = {"shards": None, "megatron": as_megatron}  # what is made of the shards besides


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


DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def refuse_idle(args: argparse.Namespace) -> None:
    """ValueError for an option that would do nothing, since the source has no file of the kind that it is for."""
    kinds = {kind_of(path) or "text" for path in find_files(args.source)}
    if args.column != "text" and kinds == {"text"}:
        raise ValueError(f"--column {args.column}: {args.source} has no columns; leave it out")
    if args.paragraphs and "text" not in kinds:
        raise ValueError(f"--paragraphs: {args.source} has no text file; leave it out")


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
