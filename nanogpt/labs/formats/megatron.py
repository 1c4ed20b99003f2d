"""Megatron's indexed datasets: written, read, made of shards, split by documents and cut into samples.

Exported from notebooks/22b_formats.ipynb.
"""

import math
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanogpt.files import alone_in, atomically
from nanogpt.shards import open_shards, read_shard


def write_ids(file, docs: Iterable, vocab_size: int, dtype: str) -> tuple[list[int], list[int]]:
    """Write the ids of all documents; tokens of each sequence, and the sequence with which each document begins."""
    lengths, marks = [], [0]
    for i, doc in enumerate(docs):
        if len(ids := np.asarray(doc)):
            row = ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) < 2**31
            if not row or ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError(f"document {i} is no row of fewer than 2³¹ ids from 0 to {vocab_size - 1}")
            file.write(ids.astype(dtype).tobytes())
            lengths.append(len(ids))
        marks.append(len(lengths))
    return lengths, marks


MAGIC, HEAD = b"MMIDIDX\0\0", struct.Struct("<9sQBQQ")  # 34 bytes
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats: no tokens


def pair(prefix: str | os.PathLike) -> tuple[Path, Path]:
    """prefix.bin and prefix.idx."""
    return Path(f"{os.fspath(prefix)}.bin"), Path(f"{os.fspath(prefix)}.idx")


def write_indexed_dataset(prefix: str | os.PathLike, docs: Iterable, vocab_size: int = 50257) -> int:
    """Write prefix.bin and prefix.idx, a document for each row of ids in `docs`; the number of tokens.

    ValueError for ids that are not 0..vocab_size-1, and if there is no token at all.
    """
    ids_path, index_path = pair(prefix)
    code = 8 if vocab_size < 65500 else 4  # Megatron-LM, DType.optimal_dtype
    with atomically(ids_path) as file:
        lengths, marks = write_ids(file, docs, vocab_size, TYPES[code])
        if not lengths:
            raise ValueError("no document has a token, and Megatron cannot read such a data set")
        index_path.unlink(missing_ok=True)  # before the .bin gets its name: no index beside other ids
    n = np.array(lengths, "<i4")
    places = (np.cumsum(n, dtype="<i8") - n) * np.dtype(TYPES[code]).itemsize
    with atomically(index_path) as file:
        file.write(HEAD.pack(MAGIC, 1, code, len(n), len(marks)))
        file.write(n.tobytes() + places.tobytes() + np.array(marks, "<i8").tobytes())
    return int(n.sum(dtype=np.int64))


@dataclass(frozen=True)
class IndexedDataset:
    """Token ids in sequences, and sequences in documents, as Megatron has them on disk. ids: a memory map."""

    ids: np.ndarray  # of all sequences, one after the other
    starts: np.ndarray  # where in ids each sequence begins, and the end
    documents: np.ndarray  # the sequence with which each document begins, and the end

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """Sequence i, a view."""
        i = range(len(self))[i]
        return self.ids[self.starts[i] : self.starts[i + 1]]

    def document(self, i: int) -> np.ndarray:
        """All sequences of document i >= 0, a view."""
        return self.ids[self.starts[self.documents[i]] : self.starts[self.documents[i + 1]]]


def read_index(path: Path) -> tuple[np.dtype, np.ndarray, np.ndarray]:
    """The type of the ids, where each sequence begins, and with which each document; ValueError if they disagree."""
    raw = path.read_bytes()
    magic, version, code, n, m = HEAD.unpack(raw[:34].ljust(34, b"\0"))
    if magic != MAGIC or version != 1 or code not in TYPES:
        raise ValueError(f"{path} is no index of token ids, version 1, as Megatron-LM writes it")
    if len(raw) != (asked := 34 + 12 * n + 8 * m):
        what = f"{len(raw):,} bytes, where its head asks for {asked:,}"
        raise ValueError(f"{path} is damaged or multimodal: {what}; write both files again")
    lengths, dtype = np.frombuffer(raw, "<i4", n, 34), np.dtype(TYPES[code])
    places, marks = np.split(np.frombuffer(raw, "<i8", n + m, 34 + 4 * n), [n])
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    right = starts[-1] > 0 <= lengths.min() and np.array_equal(places, starts[:-1] * dtype.itemsize)
    if not right or m < 2 or marks[0] != 0 or marks[-1] != n or np.diff(marks).min() < 0:
        raise ValueError(f"{path} is damaged: lengths, places and marks disagree; write both files again")
    return dtype, starts, marks


def read_indexed_dataset(prefix: str | os.PathLike) -> IndexedDataset:
    """The data set of such a pair. OSError or ValueError, in one sentence, if a file is missing, foreign or damaged."""
    ids, index = pair(prefix)
    for path, other in (index, ids), (ids, index):
        if not path.exists():
            alone = f", and {other.name} alone says nothing: was writing it interrupted? write both again"
            raise FileNotFoundError(f"{path} is not there{alone if other.exists() else ''}")
    dtype, starts, marks = read_index(index)
    if (found := ids.stat().st_size) != (asked := starts[-1] * dtype.itemsize):
        what = f"{found:,} bytes, where its index asks for {asked:,}"
        raise ValueError(f"{ids} has {what}: they are no pair; write both again")
    return IndexedDataset(np.memmap(ids, dtype, "r"), starts, marks)


def whole_documents(shards: list[Path], eot: int) -> Iterator[np.ndarray]:
    """The documents of shards in order, each with `<|endoftext|>` after it instead of before."""
    held = []  # parts of one document; it may go on in the next shard

    def whole() -> np.ndarray:
        ids = np.concatenate(held)
        return np.roll(ids, -1) if ids[0] == eot else np.append(ids, ids.dtype.type(eot))

    for tokens in map(read_shard, shards):
        rest, *others = np.split(tokens, np.flatnonzero(tokens == eot))
        held += [rest] * bool(len(rest))
        for part in others:
            if held:
                yield whole()
            held = [part]
    if held:
        yield whole()


def shards_to_megatron(folder: str | os.PathLike, manifest: dict) -> dict[str, int]:
    """Write a pair beside the shards for each split that has tokens; prefix -> tokens."""
    made, folder = {}, Path(folder)
    with alone_in(folder):
        for split in (split for split, said in manifest["splits"].items() if said["tokens"]):
            docs = whole_documents(open_shards(folder, split), manifest["eot"])
            prefix = f"{folder / split}_text_document"  # as preprocess_data names it
            made[prefix] = write_indexed_dataset(prefix, docs, manifest["vocab_size"])
    return made


def split_ranges(n: int, split: str = "949,50,1") -> list[range]:
    """Which of n sequences are train, validation and test, by their order (Megatron-LM, --split).

    The weights need not add up to anything. ValueError for another number of weights,
    a negative one, or a sum of 0.
    """
    weights = [float(weight) for weight in split.split(",")]
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0:
        raise ValueError(f"split {split!r}: three weights of at least 0, as in 949,50,1")
    shares = np.array(weights) / sum(weights)
    edges = [round(float(edge) * n) for edge in np.cumsum([0, *shares])]
    return [range(a, b) for a, b in pairwise(edges)]


def epochs_and_samples(tokens: int, T: int, wanted: int) -> tuple[int, int]:
    """How often a split is read so that `wanted` samples of T targets come out, and how many samples that are in all.

    At least once. ValueError for a split without tokens.
    """
    if tokens < 1:
        raise ValueError("a split without tokens has no samples; give it a larger weight")
    needed = wanted * T + 1  # one more: the last target
    epochs = max(1, math.ceil(needed / tokens))
    return epochs, (epochs * tokens - 1) // T


def shuffled(parts: list[np.ndarray], dice: np.random.RandomState) -> np.ndarray:
    """The parts one after the other, each of them shuffled."""
    for part in parts:
        dice.shuffle(part)
    return np.concatenate(parts)


def sample_indices(dataset: IndexedDataset, docs: range, T: int, wanted: int, seed: int = 1234) -> tuple:
    """Megatron-LM's document index (n), sample index (samples + 1, 2) and shuffle index (samples) of a split."""
    lengths, dice = np.diff(dataset.starts), np.random.RandomState(seed)
    tokens = int(lengths[docs.start : docs.stop].sum())
    epochs, samples = epochs_and_samples(tokens, T, wanted)
    before = ((epochs - 1) * tokens - 1) // T  # samples of all epochs but the last
    rounds, cuts = [epochs], [0, samples]
    if epochs > 1 and wanted - before < int(0.8 * ((tokens - 1) // T)):
        rounds, cuts = [epochs - 1, 1], [0, before, samples]  # the last epoch by itself
    laid = shuffled([np.tile(np.array(docs, np.int32), n) for n in rounds], dice)
    starts, places = np.append(0, np.cumsum(lengths[laid])), np.arange(samples + 1) * T
    row = np.searchsorted(starts, places, "right") - 1  # the document that holds a sample's first token
    drawn = shuffled([np.arange(a, b, dtype=np.uint32) for a, b in pairwise(cuts)], dice)
    return laid, np.stack([row, places - starts[row]], axis=1), drawn


def read_sample(dataset: IndexedDataset, indices: tuple, T: int, k: int) -> np.ndarray:
    """The T + 1 ids of the k-th sample that training draws. indices: the three of sample_indices."""
    laid, begins, drawn = indices
    (first, offset), (last, _) = begins[drawn[k]], begins[drawn[k] + 1]
    return np.concatenate([dataset[d] for d in laid[first : last + 1]])[offset : offset + T + 1]
