"""Token ids on disk in llm.c's format, with a manifest that says what they are.

Exported from notebooks/03_data.ipynb, grown by notebooks/16_real_text.ipynb.
"""

import hashlib
import json
import re
from pathlib import Path

import numpy as np

from nanogpt.files import atomically, save_json

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
    """The tokens of a shard, a read-only uint16 memory map. ValueError if it is another file, or a damaged one."""
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    stored = (Path(path).stat().st_size - HEADER_BYTES) / 2
    if n < 1 or stored != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {stored:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


def file_sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(tokenizer) -> dict:
    """What a manifest says about the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


def manifest_sha256(manifest: dict) -> str:
    """Hex SHA-256 of all that a manifest says, as JSON with sorted keys, but for this hash itself (its key "sha256")."""
    contents = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


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


def check_shards(folder: str | Path, manifest: dict, *splits: str) -> None:
    """Compare all bytes of these splits' shards, or of all, with the manifest. ValueError names the first damage."""
    for split in splits or manifest["splits"]:
        for shard in manifest["splits"][split]["shards"]:
            path = Path(folder) / shard["file"]
            if not path.exists():
                raise ValueError(f"{path} is gone, and its manifest lists it; prepare it again")
            if len(read_shard(path)) != shard["tokens"] or file_sha256(path) != shard["sha256"]:
                raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")


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


def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, numbers from 0 on."""
    # NumPy promises never to change these raw bits, but not what Generator.permutation makes of them (NEP 19).
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer document may be."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> np.ndarray:
    """The same tokens with their documents in another order."""
    documents = np.split(tokens, document_starts(tokens, eot)[1:])
    return np.concatenate([documents[i] for i in permutation(len(documents), *key)])


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
