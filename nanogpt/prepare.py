"""Any text at any size into shards, in parallel, resumable: the command `prepare`.

Exported from notebooks/16_real_text.ipynb.
"""

import argparse
import errno
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanogpt.files import save_json
from nanogpt.shards import (
    HEADER_BYTES,
    SPLITS,
    file_sha256,
    identity,
    save_manifest,
    shard_header,
    split_of,
)
from nanogpt.sources import Piece, describe, documents_in, find_files, read_blocks
from nanogpt.tokenizer import EOT, GPT2_PATTERN, BPETokenizer


def encode_pieces(pieces: list[Piece], encoding, eot: int, val: float, test: float) -> dict[str, tuple]:
    """For each split: token ids (uint16) with `<|endoftext|>` before each document; documents; bytes of text."""
    texts, documents, size = {split: [] for split in SPLITS}, Counter(), Counter()
    for piece in pieces:
        for text in filter(None, documents_in(piece)):
            raw = text.encode()
            split = piece.split or split_of(hashlib.sha256(raw).digest(), val, test)
            begins = piece.kind != "text" or piece.start == 0
            texts[split].append((begins, text))
            documents[split] += begins
            size[split] += len(raw)
    return {
        s: (_encode(texts[s], encoding, eot).astype("<u2"), documents[s], size[s]) for s in SPLITS if texts[s]
    }


def _encode(texts: list[tuple[bool, str]], encoding, eot: int) -> np.ndarray:
    """Ids of texts, after `<|endoftext|>` where a document begins. One call for all is faster than a call for each."""
    joined = "".join(EOT + text if begins else text for begins, text in texts)
    if joined.count(EOT) == sum(begins for begins, _ in texts):
        return encoding.encode_to_numpy(joined, allowed_special={EOT}, disallowed_special=())
    ids = []  # some document spells <|endoftext|> itself, as ordinary text
    for begins, text in texts:
        ids += [np.array([eot] * begins, np.uint32), encoding.encode_to_numpy(text, disallowed_special=())]
    return np.concatenate(ids)


def _start_worker(*common) -> None:
    """Runs once in each worker: keep what all blocks need, leave Ctrl-C to the parent, and do not outlive it."""
    global _common
    _common = common
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = parent_process().sentinel
    threading.Thread(target=lambda: (connection.wait([end]), os._exit(1)), daemon=True).start()


def _encode_in_worker(pieces: list[Piece]) -> dict[str, tuple]:
    return encode_pieces(pieces, *_common)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C waits until afterwards, where the system can do that (not on Windows)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encode_blocks(blocks: Iterable, common: tuple, workers: int) -> Iterator[tuple]:
    """The blocks encoded, in order. At most two a worker are under way: memory does not grow with the source."""
    if workers == 1:
        yield from ((encode_pieces(pieces, *common), *place) for pieces, *place in blocks)
        return
    # Spawned everywhere: a fork copies the locks that a notebook's other threads hold at that moment.
    pool, waiting = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, common), deque()
    try:
        for pieces, *place in blocks:
            with _without_ctrl_c():  # submit may start a worker, which inherits this and is silent from birth
                waiting.append((pool.submit(_encode_in_worker, pieces), place))
            if len(waiting) > 2 * workers:
                encoded, place = waiting.popleft()
                yield encoded.result(), *place
        yield from ((encoded.result(), *place) for encoded, place in waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _append(out: Path, journal: dict, split: str, tokens: np.ndarray, documents: int, size: int) -> None:
    """Add to a split's last .part file, or begin one. Its header is zeros: nobody takes it for a shard."""
    state = journal["splits"][split]
    shards = state["shards"]
    if not shards or shards[-1] >= journal["made_of"]["shard_tokens"]:
        shards.append(0)
    with open(out / f"{split}_{len(shards) - 1:06d}.bin.part", "ab" if shards[-1] else "wb") as file:
        file.write((b"" if shards[-1] else bytes(HEADER_BYTES)) + tokens.tobytes())
    shards[-1] += len(tokens)
    state["documents"] += documents
    state["bytes"] += size


def _parts(out: Path, journal: dict) -> list[tuple[Path, str, int]]:
    """The unfinished shards that a journal speaks of, each with its split and tokens."""
    states = journal["splits"].items()
    return [
        (out / f"{s}_{i:06d}.bin.part", s, n) for s, state in states for i, n in enumerate(state["shards"])
    ]


def _save_journal(out: Path, journal: dict) -> None:
    """What another run needs to go on from here, written after the tokens that it speaks of."""
    for path, _, _ in _parts(out, journal):
        with open(path, "r+b") as file:
            os.fsync(file.fileno())
    save_json(out / "journal.json", journal)


def _rewind(out: Path, journal: dict) -> None:
    """Bring the files back to what the journal says: a run that was killed had gone on after writing it."""
    for path in out.glob("*.bin"):
        os.replace(path, f"{path}.part")
    parts = _parts(out, journal)
    for path in set(out.glob("*.part")) - {path for path, _, _ in parts}:
        path.unlink()
    for path, _, n in parts:
        if not path.exists() or path.stat().st_size < HEADER_BYTES + 2 * n:
            raise ValueError(f"{path} is shorter than journal.json says; delete {out} and prepare it again")
        os.truncate(path, HEADER_BYTES + 2 * n)


def _finish(out: Path, journal: dict) -> dict:
    """Give each shard its header and its name, then write the manifest, which is returned."""
    states = journal["splits"].items()
    splits = {s: state | {"tokens": sum(state["shards"]), "shards": []} for s, state in states}
    for path, split, n in _parts(out, journal):
        with open(path, "r+b") as file:
            file.write(shard_header(n))
            file.flush()
            os.fsync(file.fileno())
        splits[split]["shards"].append({"file": path.stem, "tokens": n, "sha256": file_sha256(path)})
        os.replace(path, path.with_suffix(""))
    manifest = save_manifest(out, journal["made_of"] | {"splits": splits})
    (out / "journal.json").unlink()
    return manifest


def _begin(out: Path, made_of: dict) -> dict:
    """The journal to go on with, or the manifest if all is done. ValueError if `out` holds anything else."""
    splits = {split: {"documents": 0, "bytes": 0, "shards": []} for split in SPLITS}
    fresh = {"made_of": made_of, "place": [0, 0], "read": 0, "splits": splits}
    for path in (out / "manifest.json", out / "journal.json"):
        if path.exists():
            there = json.loads(path.read_bytes())
            was = there.get("made_of", there)
            if there.get("place") == [0, 0]:
                return fresh  # nothing had come of it yet
            for key, now in made_of.items():
                if was.get(key) != now:
                    what = f"shards whose {key} is {was.get(key)}, not {now}"
                    raise ValueError(f"{out} holds {what}; choose another --out or delete it")
            return there
    if any(out.glob("*.bin*")):
        raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
    return fresh


def _load_tokenizer(name: str | os.PathLike) -> tuple:
    """The tokenizer, as tiktoken runs it in Rust and as chapter 01 has it."""
    ours = BPETokenizer.gpt2() if str(name) == "gpt2" else BPETokenizer.load(name)
    if ours.pattern != GPT2_PATTERN or ours.vocab_size > 65536:
        raise ValueError(f"{name} needs GPT-2's pattern, to cut text, and at most 65,536 tokens, for uint16")
    from tiktoken import Encoding

    # The same matches in about 0.7 of the time: in one group, what needs no lookahead is one automaton to Rust.
    # And white space at the end comes first, or a megabyte of it overflows the lookahead's stack.
    visible, space = ours.pattern.split(r"|\s", 1)
    pattern = rf"(?:{visible})|\s++$|\s{space}"
    return Encoding("nanogpt", pat_str=pattern, mergeable_ranks=ours.ranks, special_tokens=ours.special), ours


def _append_all(
    out: Path, journal: dict, encoded_blocks: Iterable, total: int, journal_seconds: float
) -> None:
    """Add block after block to the .part files, with a journal every so many seconds and at the end."""
    saved = time.monotonic()
    with tqdm(total=total, initial=journal["read"], unit="B", unit_scale=True, disable=None) as bar:
        for encoded, place, read in encoded_blocks:
            for split, more in encoded.items():
                _append(out, journal, split, *more)
            bar.update(read - journal["read"])
            journal |= {"place": place, "read": read}
            if time.monotonic() > saved + journal_seconds:
                _save_journal(out, journal)
                saved = time.monotonic()
    _save_journal(out, journal)


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
    """Tokenize `source` into shards below `out`, divided by document into train, val and test; the manifest.

    The same call goes on where a killed one stopped, with the same bytes as result; once done, it does nothing.
    """
    if min(val, test) < 0 or val + test >= 1:
        raise ValueError(f"val {val} and test {test} are fractions of all documents; leave some for train")
    source, out, files = Path(source), Path(out), find_files(Path(source))
    encoding, ours = _load_tokenizer(tokenizer)
    made_of = {"source": describe(source, files), "tokenizer": Path(tokenizer).name, **identity(ours)}
    made_of |= {"val": val, "test": test, "paragraphs": paragraphs}
    made_of |= {"shard_tokens": shard_tokens, "block": block}
    out.mkdir(parents=True, exist_ok=True)
    journal = _begin(out, made_of)
    if "place" not in journal:
        return journal  # the manifest: all is done
    save_json(out / "journal.json", journal)
    _rewind(out, journal)
    total = sum(path.stat().st_size for path in files)
    useful = 1 + (total - journal["read"]) // (4 * block)  # for less, no worker is started
    blocks = read_blocks(files, journal["place"], block, paragraphs, val, test)
    common = encoding, ours.eot, val, test
    encoded_blocks = _encode_blocks(blocks, common, min(workers or _cores(), useful))
    _append_all(out, journal, encoded_blocks, total, journal_seconds)
    return _finish(out, journal)


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


def _parse(argv: list[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m nanogpt prepare", description=HELP, formatter_class=formatter)
    add = parser.add_argument
    add("source", type=Path, help="a .txt, .jsonl or .parquet file, or a folder of them")
    add("--out", type=Path, help="folder for the shards (default: data/built/ + the source's name)")
    add("--tokenizer", default="gpt2", help="gpt2 (default) or a tokenizer.json from chapter 01")
    add("--val", type=float, default=0.01, help="fraction of documents for validation (0.01)")
    add("--test", type=float, default=0.01, help="fraction of documents for testing (0.01)")
    add("--paragraphs", action="store_true", help="a .txt file's documents end at blank lines")
    add("--workers", type=int, help="processes that tokenize (default: one a core)")
    add("--shard-tokens", type=int, default=100_000_000, help="where a new shard begins (100000000)")
    return parser.parse_args(argv)


DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt prepare`. Exit code 0; 2 for bad input, 1 for a failing machine, 130 after Ctrl-C."""
    args = _parse(argv)
    out = args.out = args.out or Path("data/built") / args.source.stem
    try:
        for split, held in prepare(**vars(args))["splits"].items():
            n, shards = held["documents"], len(held["shards"])
            print(f"{split:5} {held['tokens'] - n:,} tokens + {n:,} <|endoftext|> in {shards} shards")
        print(f"in {out}")
        return 0
    except KeyboardInterrupt:
        code, message = 130, f"stopped; the same command goes on from here, or delete {out} to begin again"
    except BrokenProcessPool:
        code, message = 1, "a worker was killed (memory?); the same command with fewer --workers goes on"
    except (OSError, ValueError) as error:
        code, message = 2, error
        if getattr(error, "errno", None) in DISK_FULL:
            code, message = 1, f"no room left for {out}; no shard is half-written; make room and go on"
    print(f"prepare: {message}", file=sys.stderr)
    return code
