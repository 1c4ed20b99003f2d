"""Shards of a few documents, and the laws of a stream, whatever the number of its ranks: for the tests of chapters 03, 16 and 20."""

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from nanogpt.shards import file_sha256, identity, read_shard, save_manifest, write_shard

EOT = 50256


def write_documents(folder: Path, shards: list[list[int]]) -> list[Path]:
    """Shards of documents with the given lengths; apart from EOT no two tokens are equal."""
    paths, unique = [], iter(range(50_000))
    for i, lengths in enumerate(shards):
        tokens = [t for n in lengths for t in (EOT, *(next(unique) for _ in range(n - 1)))]
        paths.append(folder / f"train_{i:06d}.bin")
        write_shard(paths[-1], tokens)
    return paths


def write_corpus(folder: Path, tokenizer, **lengths: list[int]) -> dict:
    """A folder with one shard a split, of documents of these lengths, and its manifest, which is returned."""
    splits = {}
    for split, documents in lengths.items():
        path = folder / f"{split}_000000.bin"
        write_shard(path, [t for n in documents for t in (tokenizer.eot, *range(n - 1))])
        listed = {"file": path.name, "tokens": sum(documents), "sha256": file_sha256(path)}
        splits[split] = {"tokens": sum(documents), "shards": [listed]}
    return save_manifest(folder, {"source": "", **identity(tokenizer), "splits": splits})


def rows_of(streams: list, steps: int) -> np.ndarray:
    """Rows of T + 1 tokens, of all ranks over some steps, in the stream's order: inputs, and behind them the last target."""
    rows = []
    for x, y in (stream.next_batch() for _ in range(steps) for stream in streams):
        assert x.shape == y.shape == (streams[0].B, streams[0].T) and x.dtype == y.dtype == torch.int64
        assert torch.equal(x[:, 1:], y[:, :-1])
        rows += torch.cat([x, y[:, -1:]], 1).tolist()
    return np.array(rows)


def split_documents(tokens: np.ndarray) -> list[tuple]:
    return [tuple(d.tolist()) for d in np.split(tokens, np.flatnonzero(tokens == EOT)) if len(d)]


def every_token_is_an_input_once_an_epoch(streams: list, paths: list[Path]) -> None:
    """Of the BatchStreams of all ranks; and documents stay whole."""
    everything = np.concatenate([read_shard(path) for path in paths])
    total, step = len(everything), len(streams) * streams[0].B * streams[0].T
    rows = rows_of(streams, steps=3 * total // step + 1)
    x = rows[:, :-1].flatten()
    assert (
        rows[:-1, -1] == rows[1:, 0]
    ).all()  # the next token, across rows, ranks, steps, shards and epochs
    documents = {tuple(d) for path in paths for d in split_documents(read_shard(path))}
    for epoch in range(3):
        seen = x[epoch * total : (epoch + 1) * total]
        assert Counter(seen.tolist()) == Counter(everything.tolist())
        assert set(split_documents(seen)) == documents


def every_document_begins_one_row_an_epoch(streams: list, paths: list[Path]) -> None:
    """Of the DocumentStreams of all ranks; each row runs on into the document's neighbours in its shard."""
    expected, T = Counter(), streams[0].T
    for path in paths:
        tokens = read_shard(path)
        for start in np.flatnonzero(tokens == EOT):
            expected[tuple(np.roll(tokens, -start)[np.arange(T + 1) % len(tokens)].tolist())] += 1
    n = expected.total()
    rows = rows_of(streams, steps=2 * n // (streams[0].B * len(streams)) + 1)
    for epoch in range(2):
        assert Counter(map(tuple, rows[epoch * n : (epoch + 1) * n].tolist())) == expected
    assert streams[0].epoch == streams[0].position // n >= 2
