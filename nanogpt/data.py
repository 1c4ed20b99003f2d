"""02 · Data: text with a known floor, shards, batches (exported from notebooks/02_data.ipynb)."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanogpt.corpus import entropy, floor_per_token, stories
from nanogpt.files import atomically, save_json
from nanogpt.tokenizer import BPETokenizer

__all__ = [
    "MAGIC",
    "VERSION",
    "HEADER_BYTES",
    "SPLITS",
    "shard_header",
    "write_shard",
    "read_shard",
    "file_sha256",
    "identity",
    "load_manifest",
    "open_shards",
    "split_of",
    "permutation",
    "document_starts",
    "shuffle_documents",
    "read_shuffled",
    "to_device",
    "BatchStream",
    "ensure_corpus",
]


MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024
SPLITS = ("train", "val", "test")


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(f"a shard holds 1 to 2,147,483,647 tokens (int32 in its header), not {n:,}")
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, VERSION, n
    return header.tobytes()


def write_shard(path: str | os.PathLike, tokens: Iterable[int]) -> None:
    """Write token ids as a shard in llm.c's format, atomically. ValueError if they do not fit into uint16."""
    tokens = np.asarray(tokens)
    header = shard_header(tokens.size)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() > 65535:
        raise ValueError(f"{path}: a shard takes one row of ids from 0 to 65,535 (uint16)")
    with atomically(path) as file:
        file.write(header + tokens.astype("<u2").tobytes())


def read_shard(path: str | os.PathLike) -> np.ndarray:
    """The tokens of a shard: a read-only uint16 memory map, of which nothing is read until it is used.

    ValueError if the file is not in llm.c's format, or not as long as its header says.
    """
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"), "<i4")
        there = (file.seek(0, os.SEEK_END) - HEADER_BYTES) / 2
    if header[0] != MAGIC or header[1] != VERSION:
        raise ValueError(f"{path} is not a shard in llm.c's format, which begins with {MAGIC}, {VERSION}")
    n = int(header[2])
    if n < 1 or there != n:
        raise ValueError(f"{path} is damaged: {n:,} tokens in its header, {there:,} in it; prepare it again")
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


def file_sha256(path: str | os.PathLike) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(tokenizer: BPETokenizer) -> dict:
    """What a manifest says of the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


def load_manifest(folder: str | os.PathLike) -> dict:
    """What folder/manifest.json says. FileNotFoundError or ValueError, in one sentence, if it cannot."""
    path = Path(folder) / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; `python -m nanogpt prepare` writes it")
    try:
        manifest = json.loads(path.read_bytes())
        if {"source", "fingerprint", "vocab_size", "eot", "splits"} <= manifest.keys():
            return manifest
    except (ValueError, AttributeError):
        pass
    raise ValueError(f"{path} is damaged; delete {folder} and prepare the data again")


def open_shards(folder: str | os.PathLike, split: str, fingerprint: str | None = None) -> list[Path]:
    """The paths of a split's shards, after comparing all their bytes with the manifest beside them.

    fingerprint: the tokenizer's; ValueError if the shards were made with another.
    """
    manifest, folder = load_manifest(folder), Path(folder)
    if fingerprint not in (None, manifest["fingerprint"]):
        made, asked = manifest["fingerprint"][:8], fingerprint[:8]
        raise ValueError(f"{folder} was made with tokenizer {made}, not {asked}; prepare it again")
    shards = manifest["splits"].get(split, {}).get("shards")
    if not shards:
        raise ValueError(f"{folder} has no tokens in a split named {split!r}")
    for shard in shards:
        path = folder / shard["file"]
        if len(read_shard(path)) != shard["tokens"] or file_sha256(path) != shard["sha256"]:
            raise ValueError(f"{path} is damaged: not what its manifest describes; prepare it again")
    return [folder / shard["file"] for shard in shards]


def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions."""
    u = int.from_bytes(sha256[:8], "big") / 2**64
    return "val" if u < val else "test" if u < val + test else "train"


def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) that depends on nothing but the key, one or more numbers from 0 on.

    It sorts PCG64's raw bits: NumPy promises never to change those, but not what `Generator.permutation` makes of
    them (NEP 19), and a run may be resumed years later.
    """
    return np.argsort(np.random.PCG64(key).random_raw(n), kind="stable")


def document_starts(tokens: np.ndarray, eot: int) -> np.ndarray:
    """Where documents begin: at every `<|endoftext|>`, and at 0, where the rest of a longer one may stand."""
    starts = np.flatnonzero(tokens == eot)
    return starts if starts.size and starts[0] == 0 else np.append(0, starts)


def shuffle_documents(tokens: np.ndarray, eot: int, *key: int) -> tuple[np.ndarray, np.ndarray]:
    """An order for a shard's documents: where each ends in it, and by how much it was moved to get there."""
    starts = document_starts(tokens, eot)
    order = permutation(len(starts), *key)
    lengths = np.diff(starts, append=len(tokens))[order]
    ends = np.cumsum(lengths)
    return ends, starts[order] - (ends - lengths)


def read_shuffled(
    tokens: np.ndarray, ends: np.ndarray, moved: np.ndarray, start: int, stop: int
) -> np.ndarray:
    """Tokens start to stop of a shard in the order of `shuffle_documents`, taken from the memory map at once."""
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    counts = np.diff(np.minimum(ends[first : last + 1], stop), prepend=start)  # how many from each document
    return tokens[np.arange(start, stop) + np.repeat(moved[first : last + 1], counts)]


def to_device(tokens: np.ndarray, B: int, T: int, device):
    """x and y, int64 tensors (B, T) on the device, from B * T + 1 ids: y is x one token later."""
    import torch  # here, because prepare's worker processes import this module, and torch is 200 MB for each

    tokens = torch.from_numpy(tokens.astype(np.int64))
    if torch.device(device).type == "cuda":  # from pinned memory the copy runs beside the GPU's work
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    else:
        tokens = tokens.to(device)
    # y is a copy, so that whoever masks targets in place leaves the inputs alone.
    return tokens[:-1].view(B, T), tokens[1:].clone().view(B, T)


class BatchStream:
    """Batches from an endless stream of tokens, dealt to ranks without gap or overlap.

    The stream is epoch after epoch. Each epoch shuffles the shards, and the documents within each shard, by
    (seed, epoch). Step k takes the next world_size * B * T tokens, and rank r the r-th part of them. So every token
    is an input exactly once an epoch; what is left at an epoch's end is completed with the beginning of the next.
    Documents are packed: a row may begin within one, whose facts it then does not see.

    shards: paths. The vocabulary comes from the manifest beside them; without one it is GPT-2's, as in llm.c.
    """

    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        self.paths = sorted(map(Path, shards))
        if not self.paths or min(B, T) < 1 or not 0 <= rank < world_size:
            given = f"{len(self.paths)} shards, B={B}, T={T}, rank={rank}, world_size={world_size}"
            raise ValueError(f"a stream needs shards, B and T from 1 on, 0 <= rank < world_size; got {given}")
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.shards = [read_shard(path) for path in self.paths]
        self.tokens = sum(map(len, self.shards))
        folder = self.paths[0].parent
        if self.tokens <= world_size * B * T:
            step = f"{world_size} ranks × B={B} × T={T} + 1 = {world_size * B * T + 1:,}; lower B or T, or add text"
            raise ValueError(f"{folder}: {self.tokens:,} tokens, but one step takes {step}")
        gpt2 = {"eot": 50256, "vocab_size": 50257}
        manifest = load_manifest(folder) if (folder / "manifest.json").exists() else gpt2
        self.eot, self.vocab_size = manifest["eot"], manifest["vocab_size"]
        self.position = 0  # tokens that all ranks together have consumed
        self._shuffled = self._order = None  # the shard whose order is at hand, and that order

    def _find(self, place: int) -> tuple[int, int, int]:
        """Where the stream's token number `place` stands: epoch, shard, and offset in the shuffled shard."""
        epoch, offset = divmod(place, self.tokens)
        for i in permutation(len(self.shards), self.seed, epoch, 0).tolist():
            if offset < len(self.shards[i]):
                break
            offset -= len(self.shards[i])
        return epoch, i, offset

    def _read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, i, offset = self._find(start)
            if self._shuffled != (self.seed, epoch, i):
                self._shuffled = self.seed, epoch, i
                self._order = shuffle_documents(self.shards[i], self.eot, self.seed, epoch, i + 1)
            part = read_shuffled(self.shards[i], *self._order, offset, min(offset + n, len(self.shards[i])))
            if part.max() >= self.vocab_size:
                what = f"id {part.max()}, but its vocabulary has {self.vocab_size}"
                raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")
            parts.append(part)
            start, n = start + len(part), n - len(part)
        return np.concatenate(parts)

    @property
    def epoch(self) -> int:
        return self.position // self.tokens

    def next_batch(self):
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = self._read(self.position + self.rank * n, n + 1)
        self.position += self.world_size * n
        return to_device(tokens, self.B, self.T, self.device)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        sizes = {path.name: len(shard) for path, shard in zip(self.paths, self.shards)}
        return {"seed": self.seed, "position": self.position, "shards": sizes}

    def load_state_dict(self, state: dict) -> None:
        if state["shards"] != self.state_dict()["shards"]:
            raise ValueError(f"{self.paths[0].parent} does not hold the shards of this state")
        self.seed, self.position = state["seed"], state["position"]


def _write_corpus(folder: Path, tokenizer: BPETokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    members, held = {split: [] for split in SPLITS}, {}
    for story in stories(source["stories"], source["seed"]):
        members[split_of(hashlib.sha256(story.text.encode()).digest(), val=0.05, test=0.05)].append(story)
    encode = tokenizer.to_tiktoken().encode_ordinary
    for split, told in members.items():
        ids = [i for story in told for i in (tokenizer.eot, *encode(story.text))]
        path, size = folder / f"{split}_000000.bin", sum(len(story.text.encode()) for story in told)
        write_shard(path, ids)
        shard = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
        held[split] = {"documents": len(told), "bytes": size, "tokens": len(ids), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    manifest["floor"] = floor_per_token(members["val"], tokenizer)
    save_json(folder / "manifest.json", manifest)
    return manifest


def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The embedded corpus as shards in `folder`, with tokenizer.json and manifest.json; made only where absent.

    tokenizer: a BPETokenizer; by default the one that chapter 01 left in the folder above, or else the same,
    trained here. n: stories. Returns the manifest; its "floor" is val's entropy in nats per token.
    """
    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # another grammar, another corpus
    if (folder / "manifest.json").exists():
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source:
            return manifest
        (folder / "manifest.json").unlink()  # first: it must never describe files that are being replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return _write_corpus(folder, tokenizer, source)
