"""02 · Data: text with a known floor, shards, batches (exported from notebooks/02_data.ipynb)."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nanogpt.corpus import entropy, floor_per_token, stories
from nanogpt.tokenizer import BPETokenizer

__all__ = [
    "MAGIC",
    "VERSION",
    "HEADER_BYTES",
    "SPLITS",
    "atomically",
    "shard_header",
    "write_shard",
    "read_shard",
    "file_sha256",
    "save_json",
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


@contextmanager
def atomically(path: str | os.PathLike) -> Iterator:
    """Open a file for writing bytes. It gets its name only when it is complete and on the disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def shard_header(n: int) -> bytes:
    """The 1,024 bytes before n tokens: 256 little-endian int32, of which the first three say something."""
    if not 0 < n < 2**31:
        raise ValueError(
            f"a shard holds 1 to 2,147,483,647 tokens, for its header counts in int32; not {n:,}"
        )
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
        raise ValueError(
            f"{path} is not a shard in llm.c's format: it does not begin with {MAGIC}, {VERSION}"
        )
    n = int(header[2])
    if n < 1 or there != n:
        raise ValueError(
            f"{path} is damaged: {n:,} tokens in its header, {there:,} in the file; prepare it again"
        )
    return np.memmap(path, "<u2", "r", HEADER_BYTES, (n,))


def file_sha256(path: str | os.PathLike) -> str:
    """Hex SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_json(path: str | os.PathLike, contents: dict) -> None:
    """Write JSON, atomically."""
    with atomically(path) as file:
        file.write((json.dumps(contents, indent=1) + "\n").encode())


def identity(tokenizer: BPETokenizer) -> dict:
    """What a manifest says of the tokenizer that made the ids."""
    return {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eot": tokenizer.eot}


def load_manifest(folder: str | os.PathLike) -> dict:
    """What folder/manifest.json says. FileNotFoundError or ValueError, in one sentence, if it cannot."""
    path = Path(folder) / "manifest.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; `python -m nanogpt prepare` writes it, beside shards"
        )
    try:
        manifest = json.loads(path.read_bytes())
        if {"source", "fingerprint", "vocab_size", "eot", "splits"} <= manifest.keys():
            return manifest
    except (ValueError, AttributeError):
        pass
    raise ValueError(f"{path} is damaged; delete {folder} and prepare the data again")


def open_shards(
    folder: str | os.PathLike, split: str, fingerprint: str | None = None, verify=True
) -> list[Path]:
    """The paths of a split's shards, after comparing them with the manifest beside them.

    fingerprint: the tokenizer's; ValueError if the shards were made with another. verify: also compare each
    SHA-256, at about a gigabyte a second; without it a flipped bit goes unseen.
    """
    manifest, folder = load_manifest(folder), Path(folder)
    if fingerprint not in (None, manifest["fingerprint"]):
        made, asked = manifest["fingerprint"][:8], fingerprint[:8]
        raise ValueError(
            f"{folder} was made with tokenizer {made}, not {asked}: use that one, or prepare it again"
        )
    shards = manifest["splits"].get(split, {}).get("shards")
    if not shards:
        raise ValueError(f"{folder} has no tokens in a split named {split!r}")
    for shard in shards:
        path = folder / shard["file"]
        if len(read_shard(path)) != shard["tokens"] or (verify and file_sha256(path) != shard["sha256"]):
            raise ValueError(
                f"{path} is damaged: not the bytes that the manifest describes; prepare it again"
            )
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
    (seed, epoch). Step k takes the next world_size * B * T tokens, and rank r the r-th part of them: nothing
    depends on the rank but where it reads. So every token is an input exactly once an epoch; what is left at an
    epoch's end is completed with the beginning of the next. Documents are packed: a row may begin within one,
    and its first tokens are then harder to predict than the corpus's floor says.

    shards: paths. The vocabulary comes from the manifest beside them; without one it is GPT-2's, as in llm.c.
    """

    def __init__(
        self, shards, B: int, T: int, rank: int = 0, world_size: int = 1, seed: int = 0, device="cpu"
    ):
        self.paths = sorted(map(Path, shards))
        if not self.paths or min(B, T) < 1 or not 0 <= rank < world_size:
            given = f"{len(self.paths)} shards, B={B}, T={T}, rank={rank}, world_size={world_size}"
            raise ValueError(
                f"a stream needs shards, B and T of at least 1 and 0 <= rank < world_size; got {given}"
            )
        self.B, self.T, self.rank, self.world_size, self.seed, self.device = (
            B,
            T,
            rank,
            world_size,
            seed,
            device,
        )
        folder, gpt2 = self.paths[0].parent, {"eot": 50256, "vocab_size": 50257}
        manifest = load_manifest(folder) if (folder / "manifest.json").exists() else gpt2
        self.eot, self.vocab_size = manifest["eot"], manifest["vocab_size"]
        self.shards = [read_shard(path) for path in self.paths]
        self.tokens = sum(map(len, self.shards))
        if self.tokens <= world_size * B * T:
            step = f"{world_size} ranks × B={B} × T={T} + 1 = {world_size * B * T + 1:,}"
            raise ValueError(
                f"{folder}: {self.tokens:,} tokens, but one step takes {step}; lower B or T, or add text"
            )
        self.position = 0  # tokens that all ranks together have consumed
        self._order_of = self._order = None

    @property
    def epoch(self) -> int:
        return self.position // self.tokens

    def next_batch(self):
        """x, y: int64 tensors (B, T) on the device; y[b, t] is the token that follows x[b, t]."""
        n = self.B * self.T
        tokens = self._read(self.position + self.rank * n, n + 1)
        self.position += self.world_size * n
        return to_device(tokens, self.B, self.T, self.device)

    def _read(self, start: int, n: int) -> np.ndarray:
        """Tokens start to start + n of the stream, which may lie in several shards and epochs."""
        parts = []
        while n > 0:
            epoch, offset = divmod(start, self.tokens)
            for i in permutation(len(self.shards), self.seed, epoch, 0):
                if offset < len(self.shards[i]):
                    break
                offset -= len(self.shards[i])
            if self._order_of != (epoch, i):
                self._order_of = epoch, i
                self._order = shuffle_documents(self.shards[i], self.eot, self.seed, epoch, i + 1)
            part = read_shuffled(self.shards[i], *self._order, offset, min(offset + n, len(self.shards[i])))
            if part.max() >= self.vocab_size:
                what = f"id {part.max()}, but its vocabulary has {self.vocab_size}"
                raise ValueError(f"{self.paths[i]} holds {what}; prepare it again")
            parts.append(part)
            start, n = start + len(part), n - len(part)
        return np.concatenate(parts)

    def state_dict(self) -> dict:
        """What resumes the stream at exactly this token, with any B, T and number of ranks."""
        sizes = {path.name: len(shard) for path, shard in zip(self.paths, self.shards)}
        return {"seed": self.seed, "position": self.position, "shards": sizes}

    def load_state_dict(self, state: dict) -> None:
        if state["shards"] != self.state_dict()["shards"]:
            raise ValueError(
                f"{self.paths[0].parent} does not hold the shards that this state was saved with"
            )
        self.seed, self.position, self._order_of = state["seed"], state["position"], None


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
        if manifest["source"] == source and (
            not tokenizer or tokenizer.fingerprint == manifest["fingerprint"]
        ):
            return manifest
        (folder / "manifest.json").unlink()  # first: it must never describe files that are being replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    members = {split: [] for split in SPLITS}
    for story in stories(n, seed):
        members[split_of(hashlib.sha256(story.text.encode()).digest(), val=0.05, test=0.05)].append(story)
    held = {
        split: _write_stories(folder / f"{split}_000000.bin", members[split], tokenizer) for split in SPLITS
    }
    tokenizer.save(folder / "tokenizer.json")
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    manifest["floor"] = floor_per_token(members["val"], tokenizer)
    save_json(folder / "manifest.json", manifest)
    return manifest


def _write_stories(path: Path, members: list, tokenizer) -> dict:
    """One shard of stories; what the manifest says of it."""
    encode = tokenizer.to_tiktoken().encode_ordinary
    write_shard(path, [i for story in members for i in (tokenizer.eot, *encode(story.text))])
    shard = {"file": path.name, "tokens": len(read_shard(path)), "sha256": file_sha256(path)}
    size = sum(len(story.text.encode()) for story in members)
    return {"documents": len(members), "bytes": size, "tokens": shard["tokens"], "shards": [shard]}
