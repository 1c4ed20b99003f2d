"""Laws of shards and batches: nothing damaged gets through, and every token is read once an epoch."""

import json
import os
import struct
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from small_shards import (
    every_document_begins_one_row_an_epoch,
    every_token_is_an_input_once_an_epoch,
    rows_of,
    split_documents,
    write_corpus,
    write_documents,
)
from texts import files_in

from nanogpt.data import BatchStream, DocumentStream
from nanogpt.labs.corpora.splits import split_of
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.shards import (
    document_starts,
    open_shards,
    permutation,
    read_shard,
    write_shard,
)
from nanogpt.tokenizer import BPETokenizer

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


@pytest.mark.parametrize("ids", [[-1], [65536], [[1, 2]], [0.5]])
def test_what_is_no_row_of_ids_is_refused(tmp_path, ids):
    with pytest.raises(ValueError, match=r"1 to 2,147,483,647|uint16"):
        write_shard(tmp_path / "x.bin", ids)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_appears_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "x.bin"
    write_shard(path, [1, 2, 3])
    monkeypatch.setattr(os, "replace", lambda *names: 1 / 0)  # a power cut
    with pytest.raises(ZeroDivisionError):
        write_shard(path, [4, 5])
    assert read_shard(path).tolist() == [1, 2, 3] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0\0",
        lambda raw: b"",
        lambda raw: struct.pack("<2i", 20240801, 7) + raw[8:],  # llm.c's uint32 shards for Llama 3
        lambda raw: raw[:4] + struct.pack("<i", 2) + raw[8:],
    ],
)
def test_damaged_and_foreign_files_are_one_clear_error(tmp_path, damage):
    path = tmp_path / "x.bin"
    write_shard(path, [1, 2, 3, 4, 5])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError) as caught:
        read_shard(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [9, 11])
def test_a_shard_of_another_length_than_its_manifest_says_is_found(tmp_path, tokenizer, length):
    write_corpus(tmp_path, tokenizer, train=[10], val=[9])
    write_shard(tmp_path / "train_000000.bin", range(length))
    with pytest.raises(ValueError, match=r"train_000000.bin .*is damaged"):
        open_shards(tmp_path, "train")
    assert open_shards(tmp_path, "val")


def test_documents_begin_at_eot_and_at_0_where_the_rest_of_another_may_be():
    for tokens, starts in (([9, 1, 2, 9, 9, 3], [0, 3, 4]), ([1, 2, 9, 3], [0, 2]), ([1, 2], [0])):
        assert document_starts(np.array(tokens), 9).tolist() == starts


@given(st.binary(min_size=32, max_size=32), st.floats(0, 0.5), st.floats(0, 0.4))
def test_split_depends_on_the_document_alone_and_grows_with_its_fraction(digest, val, more):
    assert split_of(digest, 0, 0) == "train"
    if split_of(digest, val, 0) == "val":
        assert split_of(digest, val + more, 0) == "val"  # a larger validation set contains the smaller one
    assert split_of(digest, val, 1 - val) in ("val", "test")


def test_splits_have_their_share():
    splits = Counter(split_of(np.random.PCG64(i).random_raw(4).tobytes(), 0.1, 0.2) for i in range(5000))
    assert abs(splits["val"] / 5000 - 0.1) < 0.02 and abs(splits["test"] / 5000 - 0.2) < 0.03


# The embedded corpus


def test_ensure_corpus_is_deterministic_and_made_once(tmp_path, tokenizer):
    first, second = tmp_path / "first", tmp_path / "second"
    manifest = ensure_corpus(first, tokenizer, n=300)
    assert ensure_corpus(second, tokenizer, n=300) == manifest
    assert files_in(first) == files_in(second)
    times = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert ensure_corpus(first, tokenizer, n=300) == manifest
    assert times == {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert ensure_corpus(first, tokenizer, n=301) != manifest


def test_ensure_corpus_holds_every_story_once_and_states_the_floor(tmp_path, tokenizer):
    manifest = ensure_corpus(tmp_path, tokenizer, n=300, seed=5)
    expected = {story.text: -story.logprob for story in stories(300, 5)}
    found, nats = [], {}
    for split in ("train", "val", "test"):
        [path] = open_shards(tmp_path, split)
        tokens = np.asarray(read_shard(path))
        starts = document_starts(tokens, tokenizer.eot)
        assert (tokens[starts] == tokenizer.eot).all()  # before each document, as in llm.c
        texts = [tokenizer.decode(d[1:]) for d in np.split(tokens, starts[1:])]
        nats[split] = sum(expected[text] for text in texts) / len(tokens)
        assert manifest["splits"][split]["documents"] == len(texts)
        assert manifest["splits"][split]["bytes"] == sum(len(text.encode()) for text in texts)
        found += texts
    assert Counter(found) == Counter(story.text for story in stories(300, 5))
    assert manifest["floor"] == pytest.approx(nats["val"])


def test_ensure_corpus_takes_the_tokenizer_of_chapter_01_and_notices_another(tmp_path, tokenizer):
    tokenizer.save(tmp_path / "tokenizer.json")
    assert ensure_corpus(tmp_path / "stories", n=200)["fingerprint"] == tokenizer.fingerprint
    assert BPETokenizer.load(tmp_path / "stories/tokenizer.json").fingerprint == tokenizer.fingerprint
    other = BPETokenizer.train((story.text for story in stories(300)), 300)
    assert ensure_corpus(tmp_path / "stories", other, n=200)["fingerprint"] == other.fingerprint
    assert max(read_shard(open_shards(tmp_path / "stories", "train")[0])) < 300


@pytest.mark.parametrize("name", ["val_000000.bin", "manifest.json"])
@pytest.mark.parametrize("gone", [True, False], ids=["gone", "cut"])
def test_a_damaged_corpus_is_made_again(tmp_path, tokenizer, name, gone):
    manifest = ensure_corpus(tmp_path, tokenizer, n=200)
    before = files_in(tmp_path)
    if gone:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(before[name][:-2])
    assert ensure_corpus(tmp_path, tokenizer, n=200) == manifest
    assert files_in(tmp_path) == before


def test_too_few_stories_are_one_sentence_and_leave_nothing(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="10 stories leave none for val or test; take 200 or more"):
        ensure_corpus(tmp_path, tokenizer, n=10)
    assert list(tmp_path.iterdir()) == []


# Batches


LENGTHS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=4)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 7), st.integers(0, 5))
@example([[3], [1, 1], [4], [1]], 1, 8, 0)
@settings(max_examples=30, deadline=None)
def test_every_token_is_an_input_once_an_epoch(tmp_path_factory, shards, B, T, seed):
    assume(sum(map(sum, shards)) > B * T)
    paths = write_documents(tmp_path_factory.mktemp("stream"), shards)
    every_token_is_an_input_once_an_epoch([BatchStream(paths, B, T, seed=seed)], paths)


def inputs(stream, steps: int) -> np.ndarray:
    return rows_of([stream], steps)[:, :-1].flatten()


def orders(stream, steps: int, n: int) -> list[tuple]:
    """Of documents of five tokens, n a shard: their numbers within the shards, n at a time."""
    numbers = [document[1] // 4 % n for document in split_documents(inputs(stream, steps))]
    return [tuple(numbers[start : start + n]) for start in range(0, len(numbers), n)]


def test_documents_change_their_order_with_epoch_seed_and_shard(tmp_path):
    paths = write_documents(tmp_path, [[5] * 20, [5] * 20])
    seen = [order for seed in range(3) for order in orders(BatchStream(paths, 4, 10, seed=seed), 10, n=20)]
    assert len(set(seen)) == len(seen) == 3 * 2 * 2


def test_shards_change_their_order_with_the_epoch(tmp_path):
    paths = write_documents(tmp_path, [[5]] * 6)  # one document a shard: only the shards can be shuffled
    assert len(set(orders(BatchStream(paths, 1, 5), 4 * 6, n=6))) == 4


@pytest.mark.parametrize("kind", [BatchStream, DocumentStream])
def test_what_was_read_before_changes_nothing(tmp_path, kind):
    """Neither an epoch nor a seed: only one order is kept, that of this epoch and this seed."""
    paths = write_documents(tmp_path, [[5] * 20])
    stream = kind(paths, 4, 4)
    for seed, epoch in ((0, 0), (0, 1), (1, 1), (0, 1)):
        state = stream.state_dict() | {"seed": seed, "position": epoch * stream.epoch_length}
        stream.load_state_dict(state)
        fresh = kind(paths, 4, 4)
        fresh.load_state_dict(state)
        assert (rows_of([stream], 2) == rows_of([fresh], 2)).all(), (seed, epoch)


@pytest.mark.parametrize("steps", [0, 1, 7, 40])
def test_state_dict_resumes_at_the_exact_batch(tmp_path, steps):
    paths = write_documents(tmp_path, [[7, 30, 2], [11] * 9])
    stream = BatchStream(paths, 2, 5, seed=3)
    for _ in range(steps):
        stream.next_batch()
    state = json.loads(json.dumps(stream.state_dict()))
    resumed = BatchStream(paths, 2, 5, seed=99)
    resumed.load_state_dict(state)
    for _ in range(30):
        for a, b in zip(stream.next_batch(), resumed.next_batch()):
            assert torch.equal(a, b)


def test_a_corpus_shorter_than_a_step_is_one_clear_error(tmp_path):
    paths = write_documents(tmp_path, [[5, 8], [4]])
    BatchStream(paths, 4, 4).next_batch()
    for B, T in ((6, 3), (1, 17)):  # of 17 tokens the last target would be an input of the same step
        with pytest.raises(ValueError, match="17 tokens"):
            BatchStream(paths, B, T).next_batch()
    for B, T in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"{B}, {T}"):
            BatchStream(paths, B, T)


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


# Rows that begin with a document


@given(LENGTHS, st.integers(1, 3), st.integers(1, 30), st.integers(0, 5))
@example([[5]], 2, 17, 0)  # a text that is shorter than a row
@settings(max_examples=40, deadline=None)
def test_every_document_begins_one_row_an_epoch(tmp_path_factory, shards, B, T, seed):
    paths = write_documents(tmp_path_factory.mktemp("documents"), shards)
    stream = DocumentStream(paths, B, T, seed=seed)
    if min(map(sum, shards)) > T:
        every_document_begins_one_row_an_epoch([stream], paths)
    else:
        with pytest.raises(ValueError, match="tokens, but a row takes"):
            rows_of([stream], steps=sum(map(len, shards)))


def test_rows_are_the_same_for_any_batch_and_resume(tmp_path):
    paths = write_documents(tmp_path, [[7, 30, 2, 5, 6], [11] * 9])
    expected = rows_of([DocumentStream(paths, 12, 6, seed=2)], 8)
    for parts in (2, 3, 4):
        assert (rows_of([DocumentStream(paths, 12 // parts, 6, seed=2)], 8 * parts) == expected).all()
    stream = DocumentStream(paths, 4, 6, seed=2)
    rows_of([stream], 5)
    resumed = DocumentStream(paths, 12, 6, seed=99)
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())) | {"position": 24})
    assert (rows_of([resumed], 6) == expected[24:]).all()


def test_document_orders_differ_by_seed_and_epoch_and_never_change(tmp_path):
    paths = write_documents(tmp_path, [[5] * 6, [5] * 6])
    rows = {seed: rows_of([DocumentStream(paths, 12, 1, seed=seed)], 2)[:, 1] // 4 for seed in range(2)}
    orders = {tuple(order.tolist()) for both in rows.values() for order in (both[:12], both[12:])}
    assert len(orders) == 4
    assert rows[0][:12].tolist() == permutation(12, 0, 0).tolist()  # whose numbers are pinned above


@pytest.mark.gpu
def test_a_gpu_gets_the_same_batches(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    paths = write_documents(tmp_path, [[100, 200], [300]])
    here, there = BatchStream(paths, 4, 8), BatchStream(paths, 4, 8, device="cuda")
    for _ in range(50):
        for a, b in zip(here.next_batch(), there.next_batch()):
            assert b.is_cuda and torch.equal(a, b.cpu())
