"""What is on the disk so far, so that the run after one that was killed ends with the same bytes.

Exported from notebooks/16_real_text.ipynb.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanogpt.files import save_json
from nanogpt.shards import (
    HEADER_BYTES,
    SPLITS,
    check_shards,
    file_sha256,
    load_manifest,
    manifest_sha256,
    save_manifest,
    shard_header,
)
from nanogpt.sources import Place, Source, read_blocks, size_of


@dataclass
class Encoded:
    """What a block adds to a split."""

    tokens: np.ndarray  # uint16, with `<|endoftext|>` before each document
    documents: int
    bytes: int  # of text


@dataclass
class Held:
    """What of a split is on the disk."""

    documents: int = 0
    bytes: int = 0  # of text
    shards: list[int] = field(default_factory=list)  # the tokens of each


@dataclass
class Journal:
    """How far a source is read, and what of it is on the disk: all that another run needs to go on."""

    out: Path
    made_of: dict  # source, tokenizer and options; with others nobody may go on
    place: Place = field(default_factory=Place)
    splits: dict[str, Held] = field(default_factory=lambda: {split: Held() for split in SPLITS})

    def parts(self) -> Iterator[tuple[Path, str, int]]:
        """The unfinished shards: path, split and tokens."""
        for split, held in self.splits.items():
            for i, n in enumerate(held.shards):
                yield self.out / f"{split}_{i:06d}.bin.part", split, n

    def append(self, encoded: dict[str, Encoded], place: Place) -> None:
        """Add a block to the last part of each split, or to a new one; `place` is where the block ended."""
        for split, more in encoded.items():
            held = self.splits[split]
            if not held.shards or held.shards[-1] >= self.made_of["shard_tokens"]:
                held.shards.append(0)
            new, name = held.shards[-1] == 0, f"{split}_{len(held.shards) - 1:06d}.bin.part"
            with open(self.out / name, "wb" if new else "ab") as file:
                file.write(bytes(HEADER_BYTES * new) + more.tokens.tobytes())
            held.shards[-1] += len(more.tokens)
            held.documents += more.documents
            held.bytes += more.bytes
        self.place = place

    def save(self) -> None:
        """Write journal.json, once the tokens that it speaks of have reached the disk; with a hash of itself."""
        for path, _, _ in self.parts():
            with open(path, "r+b") as file:
                os.fsync(file.fileno())
        said = {name: value for name, value in asdict(self).items() if name != "out"}
        save_json(self.out / "journal.json", said | {"sha256": manifest_sha256(said)})

    def rewind(self) -> None:
        """Bring the files back to what the journal says: a run that was killed had gone on after writing it."""
        for path in shards_in(self.out):
            if path.suffix == ".bin":
                os.replace(path, f"{path}.part")
        parts = {path: HEADER_BYTES + 2 * n for path, _, n in self.parts()}
        for path in {*shards_in(self.out), *self.out.glob(".*.json.*.tmp")} - parts.keys():
            path.unlink()
        for path, size in parts.items():
            if not path.exists() or path.stat().st_size < size:
                raise ValueError(f"{path} is shorter than journal.json says; {remedy(self.out)}")
            os.truncate(path, size)

    @classmethod
    def load(cls, out: Path) -> "Journal":
        """What `save` wrote; ValueError in one sentence if the file is damaged."""
        try:
            saved = json.loads((out / "journal.json").read_bytes())
            whole = saved.pop("sha256") == manifest_sha256(saved)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise ValueError(f"{out / 'journal.json'} is damaged; {remedy(out)}")
        splits = {split: Held(**held) for split, held in saved["splits"].items()}
        return cls(out, saved["made_of"], Place(**saved["place"]), splits)

    def finish(self, source: Source) -> dict:
        """Give each shard its header and its name, then write the manifest. ValueError if there was no text."""
        if not list(self.parts()):
            (self.out / "journal.json").unlink()
            raise ValueError(f"{source.path} has no text: all its documents are empty")
        splits = {s: asdict(h) | {"tokens": sum(h.shards), "shards": []} for s, h in self.splits.items()}
        for path, split, n in self.parts():
            with open(path, "r+b") as file:
                file.write(shard_header(n))
                file.flush()
                os.fsync(file.fileno())
            splits[split]["shards"].append({"file": path.stem, "tokens": n, "sha256": file_sha256(path)})
            os.replace(path, path.with_suffix(""))
        manifest = save_manifest(self.out, self.made_of | {"source_sha256": source.hashes, "splits": splits})
        (self.out / "journal.json").unlink()
        return manifest


def shards_in(out: Path) -> list[Path]:
    """The files that bear the name of a shard, or of an unfinished one."""
    name = re.compile(r"(train|val|test)_\d{6,}\.bin(\.part)?")
    return [path for path in out.iterdir() if name.fullmatch(path.name)]


def remedy(out: Path) -> str:
    return f"choose another --out, or delete {out} if nothing else is in it"


def begin(out: Path, made_of: dict) -> Journal:
    """The journal to go on with. ValueError if `out` holds anything else."""
    if (out / "journal.json").exists():
        journal = Journal.load(out)
        if journal.place != Place():  # else nothing had come of it yet
            refuse_another(out, made_of, journal.made_of)
            return journal
    elif shards_in(out):
        raise ValueError(f"{out} holds shards that prepare has not written; choose another --out")
    return Journal(out, made_of)


def refuse_another(out: Path, made_of: dict, was: dict) -> None:
    """ValueError if what `out` holds was made of something else."""
    for key, now in made_of.items():
        if was.get(key) != now:
            raise ValueError(f"{out} holds shards whose {key} is {was.get(key)}, not {now}; {remedy(out)}")


def go_on(source: Source, out: Path, made_of: dict, encode_all: Callable, journal_seconds: float) -> dict:
    """Begin in `out`, or go on where another run was stopped, to the end; the manifest.

    encode_all: from pairs (pieces, place) makes pairs (what each split gets, place), in the same order.
    """
    journal = begin(out, made_of)
    journal.rewind()
    journal.save()
    saved, size = time.monotonic(), size_of(source.files)
    with tqdm(total=size, initial=journal.place.read, unit="B", unit_scale=True, disable=None) as bar:
        for encoded, place in encode_all(read_blocks(source, journal.place)):
            bar.update(place.read - journal.place.read)
            journal.append(encoded, place)
            if time.monotonic() > saved + journal_seconds:
                journal.save()
                saved = time.monotonic()
    journal.save()
    return journal.finish(source)


@contextmanager
def alone_in(out: Path, who: str = "prepare", remedy: str = "choose another --out") -> Iterator[None]:
    """The folder, made if absent, is this process's alone while the block lasts; a lock ends with its process."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "ab") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"another {who} writes into {out}; wait, or {remedy}") from None
        except OSError:
            pass  # a file system without locks
        yield


def finished(source: Source, out: Path, made_of: dict) -> dict | None:
    """The manifest, if all is done; None if something is to do, as where a shard was damaged or deleted."""
    if not (out / "manifest.json").exists():
        return None
    try:
        manifest = load_manifest(out)
    except ValueError as error:
        raise ValueError(f"{error}, but first {remedy(out)}") from None
    refuse_another(out, made_of, manifest)
    for path, sha256 in zip(source.files, manifest["source_sha256"]):
        if file_sha256(path) != sha256:
            raise ValueError(f"{path} has changed since it was prepared; {remedy(out)}")
    try:
        check_shards(out, manifest)
    except (OSError, ValueError) as damage:
        print(f"{damage}: doing so", file=sys.stderr)
        Journal(out, made_of).save()
        (out / "manifest.json").unlink()
        return None
    (out / "journal.json").unlink(missing_ok=True)
    return manifest
