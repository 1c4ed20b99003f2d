"""Token ids on disk in llm.c's format, with a manifest that says what they are.

Exported from notebooks/03_data.ipynb.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from nanogpt.text.files import atomically, save_json

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


def write_shard(path: str | Path, tokens) -> None:
    """Write token ids as a shard in llm.c's format, atomically. ValueError if they do not fit into uint16."""
    tokens = np.asarray(tokens)
    header = shard_header(tokens.size)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > 65535:
        raise ValueError(f"{path}: a shard takes one row of ids from 0 to 65,535 (uint16)")
    with atomically(path) as file:
        file.write(header + tokens.astype("<u2").tobytes())


def read_shard(path: str | Path) -> np.ndarray:
    """The tokens of a shard: a read-only uint16 memory map, of which nothing is read until it is used.

    ValueError if the file is not in llm.c's format, or not as long as its header says.
    """
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
        there = (file.seek(0, 2) - HEADER_BYTES) / 2
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    if n < 1 or there != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {there:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


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


def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, numbers from 0 on."""
    # NumPy promises never to change these raw bits, but not what Generator.permutation makes of them (NEP 19).
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


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
