"""Laws of shards and batches: nothing damaged gets through, and every token is read once an epoch."""

import json
import os
import struct
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanogpt.corpus import stories
from nanogpt.data import BatchStream
from nanogpt.shards import (
    document_starts,
    file_sha256,
    identity,
    open_shards,
    permutation,
    read_shard,
    save_manifest,
    split_of,
    write_shard,
)
from nanogpt.tokenizer import BPETokenizer

EOT = 50256


@pytest.fixture(scope="session")
def tokenizer() -> BPETokenizer:
    return BPETokenizer.train((story.text for story in stories(300)), 400)


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


# Shards


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=2000))
@settings(max_examples=30, deadline=None)
def test_a_shard_is_what_llm_c_reads(tmp_path_factory, ids):
    path = tmp_path_factory.mktemp("shard") / "x.bin"
    write_shard(path, ids)
    raw = path.read_bytes()
    assert struct.unpack("<3i", raw[:12]) == (20240520, 1, len(ids)) and raw[12:1024] == bytes(1012)
    assert list(struct.unpack(f"<{len(ids)}H", raw[1024:])) == ids
    tokens = read_shard(path)
    assert tokens.dtype == np.uint16 and tokens.tolist() == ids and isinstance(tokens, np.memmap)


@pytest.mark.parametrize("ids", [[], [-1], [65536], [[1, 2]], [0.5]])
def test_what_is_no_row_of_ids_is_refused(tmp_path, ids):
    with pytest.raises(ValueError, match=r"1 to 2,147,483,647|uint16"):
        write_shard(tmp_path / "x.bin", ids)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_appears_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    write_shard(path, [1, 2, 3])

    def crash(*names):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        write_shard(path, [4, 5])
    assert read_shard(path).tolist() == [1, 2, 3] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-2], "is damaged: 5 tokens in its header, 4.0 in it; prepare"),
        (lambda raw: raw[:-1], "is damaged"),
        (lambda raw: raw + b"\0\0", "is damaged"),
        (lambda raw: raw[:1000], "is not a shard|is damaged"),
        (lambda raw: b"", "is not a shard"),
        (lambda raw: b"PK\3\4" + raw[4:], "is not a shard"),
        (
            lambda raw: struct.pack("<2i", 20240801, 7) + raw[8:],
            "is not a shard",
        ),  # llm.c's uint32 shards for Llama 3
        (lambda raw: raw[:4] + struct.pack("<i", 2) + raw[8:], "is not a shard"),
        (lambda raw: raw[:8] + struct.pack("<i", -5) + raw[12:], "is damaged"),
    ],
)
def test_damaged_and_foreign_files_are_one_clear_error(tmp_path, damage, message):
    path = tmp_path / "x.bin"
    write_shard(path, [1, 2, 3, 4, 5])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as caught:
        read_shard(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_manifest_guards_shards(tmp_path, tokenizer):
    path = tmp_path / "train_000000.bin"
    write_shard(path, [tokenizer.eot, *range(3000)])
    listed = {"file": path.name, "tokens": 3001, "sha256": file_sha256(path)}
    splits = {"train": {"tokens": 3001, "shards": [listed]}}
    save_manifest(tmp_path, {"source": "", **identity(tokenizer), "splits": splits})
    assert open_shards(tmp_path, "train", tokenizer.fingerprint) == [path]
    with pytest.raises(ValueError, match="was made with tokenizer"):
        open_shards(tmp_path, "train", "0" * 64)
    with pytest.raises(ValueError, match="no tokens in a split named 'valid'"):
        open_shards(tmp_path, "valid")
    with pytest.raises(FileNotFoundError, match=r"nanogpt prepare"):
        open_shards(tmp_path / "elsewhere", "train")
    raw = bytearray(path.read_bytes())
    raw[5000] ^= 4  # one bit: the length is right and the id valid, so only the hash can tell
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="not what its manifest describes"):
        open_shards(tmp_path, "train")
    (tmp_path / "manifest.json").write_text('{"splits": 1')
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        open_shards(tmp_path, "train")


def test_document_starts():
    assert document_starts(np.array([9, 1, 2, 9, 9, 3]), 9).tolist() == [0, 3, 4]
    assert document_starts(np.array([1, 2, 9, 3]), 9).tolist() == [
        0,
        2,
    ]  # the rest of a document of the shard before
    assert document_starts(np.array([1, 2]), 9).tolist() == [0]


@given(st.binary(min_size=32, max_size=32), st.floats(0, 0.5), st.floats(0, 0.4))
def test_split_depends_on_the_document_alone_and_grows_with_its_fraction(digest, val, more):
    assert split_of(digest, 0, 0) == "train"
    if split_of(digest, val, 0) == "val":
        assert split_of(digest, val + more, 0) == "val"  # a larger validation set contains the smaller one
    assert split_of(digest, val, 1 - val) in ("val", "test")


def test_splits_have_their_share():
    splits = Counter(split_of(np.random.PCG64(i).random_raw(4).tobytes(), 0.1, 0.2) for i in range(5000))
    assert abs(splits["val"] / 5000 - 0.1) < 0.02 and abs(splits["test"] / 5000 - 0.2) < 0.03


# Batches


@given(
    shards=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=4),
    B=st.integers(1, 3),
    T=st.integers(1, 7),
    world_size=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@example(shards=[[3], [1, 1], [4], [1]], B=1, T=8, world_size=1, seed=0)
@settings(max_examples=80, deadline=None)
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


def test_documents_change_their_order_with_epoch_and_seed(tmp_path):
    paths = write_documents(tmp_path, [[5] * 20, [5] * 20])
    orders = {}
    for seed in range(3):
        x, _ = read_stream([BatchStream(paths, 4, 10, seed=seed)], 10)
        for epoch in range(2):
            orders[seed, epoch] = tuple(split_documents(x[epoch * 200 : (epoch + 1) * 200]))
    assert len(set(orders.values())) == 6


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


def test_a_state_of_other_shards_is_refused(tmp_path):
    state = BatchStream(write_documents(tmp_path / "a", [[50]]), 1, 5).state_dict()
    with pytest.raises(ValueError, match="does not hold the shards"):
        BatchStream(write_documents(tmp_path / "b", [[51]]), 1, 5).load_state_dict(state)


def test_a_corpus_shorter_than_a_step_is_one_clear_error(tmp_path):
    paths = write_documents(tmp_path, [[5, 8], [4]])
    BatchStream(paths, 2, 4, world_size=2)
    with pytest.raises(ValueError, match=r"17 tokens, but one step takes 2 ranks × B=3 × T=3 \+ 1 = 19"):
        BatchStream(paths, 3, 3, world_size=2)
    for B, T, rank in ((0, 1, 0), (1, 0, 0), (1, 1, 2), (1, 1, -1)):
        with pytest.raises(ValueError, match="a stream needs"):
            BatchStream(paths, B, T, rank, 2)


def test_an_id_beyond_the_vocabulary_is_one_clear_error(tmp_path, tokenizer):
    write_shard(tmp_path / "train_000000.bin", [tokenizer.eot, 1, 2, tokenizer.vocab_size, 3, 4, 5])
    path = tmp_path / "train_000000.bin"
    shard = {"file": path.name, "tokens": 7, "sha256": file_sha256(path)}
    splits = {"train": {"tokens": 7, "shards": [shard]}}
    save_manifest(tmp_path, {"source": "", "splits": splits, **identity(tokenizer)})
    stream = BatchStream([path], 1, 2)
    stream.next_batch()
    with pytest.raises(ValueError, match=r"train_000000.bin holds id 400, but its vocabulary has 400"):
        stream.next_batch()


def test_masking_targets_leaves_inputs_alone(tmp_path):
    x, y = BatchStream(write_documents(tmp_path, [[50]]), 2, 5).next_batch()
    before = x.clone()
    y.fill_(-1)
    assert torch.equal(x, before)


def test_permutation_is_one_and_never_changes():
    for n in (0, 1, 2, 1000):
        assert sorted(permutation(n, 1, 2)) == list(range(n))
    # A run must resume on any NumPy: if this fails, saved positions mean other batches than they did.
    assert permutation(8, 0, 0, 1).tolist() == [7, 6, 4, 5, 3, 1, 0, 2]
    orders = {tuple(permutation(20, *key)) for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 1)]}
    assert len(orders) == 5


@pytest.mark.gpu
def test_a_gpu_gets_the_same_batches(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    paths = write_documents(tmp_path, [[100, 200], [300]])
    here, there = BatchStream(paths, 4, 8), BatchStream(paths, 4, 8, device="cuda")
    for _ in range(50):
        for a, b in zip(here.next_batch(), there.next_batch()):
            assert b.is_cuda and torch.equal(a, b.cpu())


def test_reading_and_preparing_data_needs_no_torch():
    code = "import sys, nanogpt.shards, nanogpt.prepare; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
