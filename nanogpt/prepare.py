"""The command `prepare`: any text at any size into shards, in parallel, resumable.

Exported from notebooks/16_real_text.ipynb.
"""

import argparse
import errno
import hashlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
import regex

from nanogpt.journal import Encoded, alone_in, finished, go_on
from nanogpt.shards import SPLITS, identity, split_of
from nanogpt.sources import Piece, Place, Source, documents_in, find_files, size_of
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer


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


def cut_long_runs(text: str) -> list[str]:
    """The text cut before the last character of each long run of white space, where GPT-2's pattern cuts anyway."""
    cuts = [run.end() - 1 for run in regex.finditer(r"\s{1000,}+(?=\S)", text)]
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


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
