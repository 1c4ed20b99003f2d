"""Chapter 03's streams dealt to ranks: what one would read, all together read, and nothing twice."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nanogpt.data import BatchStream, DocumentStream
from nanogpt.shards import read_shard, write_shard

EOT = 50256


def write_documents(folder, shards: list[list[int]]) -> list:
    """Shards of documents with the given lengths; apart from EOT no two tokens are equal."""
    paths, unique = [], iter(range(50_000))
    for i, lengths in enumerate(shards):
        tokens = [t for n in lengths for t in (EOT, *(next(unique) for _ in range(n - 1)))]
        write_shard(folder / f"train_{i:06d}.bin", tokens)
        paths.append(folder / f"train_{i:06d}.bin")
    return paths


def read_stream(streams: list[BatchStream], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of all ranks over some steps, in the order in which the stream has them."""
    xs, ys = [], []
    for _ in range(steps):
        for stream in streams:
            x, y = stream.next_batch()
            assert x.shape == y.shape == (stream.B, stream.T) and x.dtype == y.dtype == torch.int64
            xs.append(x.flatten().numpy())
            ys.append(y.flatten().numpy())
    return np.concatenate(xs), np.concatenate(ys)


@given(
    shards=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=4),
    B=st.integers(1, 3),
    T=st.integers(1, 7),
    world_size=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@example(shards=[[3], [1, 1], [4], [1]], B=1, T=8, world_size=1, seed=0)
@settings(max_examples=30, deadline=None)
def test_every_token_is_an_input_once_an_epoch(tmp_path_factory, shards, B, T, world_size, seed):
    total = sum(map(sum, shards))
    if total <= world_size * B * T:
        return
    paths = write_documents(tmp_path_factory.mktemp("stream"), shards)
    everything = np.concatenate([read_shard(path) for path in paths])
    streams = [BatchStream(paths, B, T, rank, world_size, seed) for rank in range(world_size)]
    x, y = read_stream(streams, steps=3 * total // (world_size * B * T) + 1)
    for epoch in range(3):
        assert Counter(x[epoch * total : (epoch + 1) * total].tolist()) == Counter(everything.tolist())
    assert (
        y[:-1] == x[1:]
    ).all()  # the target is the next token, across rows, ranks, steps, shards and epochs
    documents = {tuple(d) for path in paths for d in split_documents(read_shard(path))}
    for epoch in range(3):
        assert set(split_documents(x[epoch * total : (epoch + 1) * total])) == documents


def split_documents(tokens: np.ndarray) -> list[tuple]:
    return [tuple(d.tolist()) for d in np.split(tokens, np.flatnonzero(tokens == EOT)) if len(d)]


def test_the_batch_of_all_ranks_does_not_depend_on_their_number(tmp_path):
    paths = write_documents(tmp_path, [[7, 30, 2], [11] * 9])
    expected, _ = read_stream([BatchStream(paths, 8, 3)], 20)
    for world_size in (2, 4, 8):
        streams = [BatchStream(paths, 8 // world_size, 3, rank, world_size) for rank in range(world_size)]
        assert (read_stream(streams, 20)[0] == expected).all()


@pytest.mark.parametrize("steps", [0, 1, 7, 40])
def test_state_dict_resumes_at_the_exact_batch(tmp_path, steps):
    paths = write_documents(tmp_path, [[7, 30, 2], [11] * 9])
    for rank in range(2):
        stream = BatchStream(paths, 2, 5, rank, 2, seed=3)
        for _ in range(steps):
            stream.next_batch()
        state = json.loads(json.dumps(stream.state_dict()))
        resumed = BatchStream(paths, 2, 5, rank, 2, seed=99)
        resumed.load_state_dict(state)
        for _ in range(30):
            for a, b in zip(stream.next_batch(), resumed.next_batch()):
                assert torch.equal(a, b)


def test_a_corpus_shorter_than_a_step_is_one_clear_error(tmp_path):
    paths = write_documents(tmp_path, [[5, 8], [4]])
    BatchStream(paths, 2, 4, world_size=2).next_batch()
    with pytest.raises(ValueError, match=r"17 tokens, but a step takes 18 \+ 1; lower B or T, or add text"):
        BatchStream(paths, 3, 3, world_size=2).next_batch()
    with pytest.raises(ValueError, match=r"17 tokens, but a step takes 17 \+ 1"):
        BatchStream(paths, 1, 17).next_batch()  # its last target would be an input of the same step
    for B, T, rank in ((0, 1, 0), (1, 0, 0), (1, 1, 2), (1, 1, -1)):
        with pytest.raises(ValueError, match="a stream needs"):
            BatchStream(paths, B, T, rank, 2)


# Rows that begin with a document


def rows_of(streams: list, steps: int) -> np.ndarray:
    """Rows of T + 1 tokens of all ranks over some steps, in the stream's order."""
    rows = []
    for x, y in (stream.next_batch() for _ in range(steps) for stream in streams):
        assert x.shape == y.shape == (streams[0].B, streams[0].T) and torch.equal(x[:, 1:], y[:, :-1])
        rows += torch.cat([x, y[:, -1:]], 1).tolist()
    return np.array(rows)


@given(
    shards=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=9), min_size=1, max_size=4),
    B=st.integers(1, 3),
    T=st.integers(1, 30),
    world_size=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_every_document_begins_one_row_an_epoch(tmp_path_factory, shards, B, T, world_size, seed):
    paths = write_documents(tmp_path_factory.mktemp("documents"), shards)
    expected = Counter()
    for path in paths:
        tokens = read_shard(path)
        for start in np.flatnonzero(tokens == EOT):
            expected[tuple(np.roll(tokens, -start)[np.arange(T + 1) % len(tokens)].tolist())] += 1
    n = expected.total()
    assume(min(len(read_shard(path)) for path in paths) > T)  # what is shorter is refused: chapter 03's law
    streams = [DocumentStream(paths, B, T, rank, world_size, seed) for rank in range(world_size)]
    rows = rows_of(streams, steps=2 * n // (B * world_size) + 1)
    for epoch in range(2):
        assert Counter(map(tuple, rows[epoch * n : (epoch + 1) * n].tolist())) == expected
    assert streams[0].epoch == streams[0].position // n >= 2


def test_rows_are_the_same_for_any_number_of_ranks_and_resume(tmp_path):
    paths = write_documents(tmp_path, [[7, 30, 2, 5, 6], [11] * 9])
    expected = rows_of([DocumentStream(paths, 12, 6, seed=2)], 8)
    for world_size in (2, 3, 4):
        streams = [
            DocumentStream(paths, 12 // world_size, 6, rank, world_size, seed=2) for rank in range(world_size)
        ]
        assert (rows_of(streams[:], 8) == expected).all()
    stream = DocumentStream(paths, 4, 6, seed=2)
    rows_of([stream], 5)
    resumed = DocumentStream(paths, 12, 6, seed=99)
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())) | {"position": 24})
    assert (rows_of([resumed], 6) == expected[24:]).all()
