"""A text in chunks, each of which is complete or absent; chunks merged into shards; shards of others.

Exported from notebooks/16b_preparing.ipynb.
"""

import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from nanogpt.files import atomically
from nanogpt.labs.corpora.encode import load_tokenizer
from nanogpt.labs.corpora.sources import Span, hash_of
from nanogpt.shards import (
    HEADER_BYTES,
    SPLITS,
    check_shards,
    file_sha256,
    identity,
    load_manifest,
    read_shard,
    save_manifest,
    shard_header,
    write_shard,
)
from nanogpt.tokenizer import BPETokenizer


def shard_entry(path: Path, tokens: int) -> dict:
    return {"file": path.name, "tokens": tokens, "sha256": file_sha256(path)}


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


def counts_of(path: Path) -> np.ndarray:
    """How often each id from 0 to 65,535 occurs in a shard; read in parts, since a shard may have a billion."""
    shard, counts, part = read_shard(path), np.zeros(65536, np.int64), 1 << 24
    for at in range(0, len(shard), part):
        counts += np.bincount(shard[at : at + part], minlength=65536)
    return counts


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
