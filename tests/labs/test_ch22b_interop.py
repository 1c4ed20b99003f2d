"""Laws of Megatron's data sets: the files are Megatron's to the byte, and a pair is whole or says that it is not."""

import contextlib
import csv
import json
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nanogpt.labs.formats.megatron
from nanogpt import cli
from nanogpt.files import atomically
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.formats.megatron import (
    epochs_and_samples,
    read_indexed_dataset,
    read_sample,
    sample_indices,
    split_ranges,
    whole_documents,
    write_indexed_dataset,
)
from nanogpt.shards import write_shard
from nanogpt.tokenizer import BPETokenizer

from conftest import ROOT  # isort: skip

DOCS = st.lists(st.lists(st.integers(0, 999), max_size=9), min_size=1, max_size=12).filter(any)


@pytest.fixture(scope="module")
def megatron():
    """megatron-core's own reader, writer and samples, where it is installed (extra `peers`)."""
    with warnings.catch_warnings(action="ignore"):  # no Apex, no Transformer Engine
        pytest.importorskip(
            "megatron.core", reason="megatron-core is not installed: pip install -e '.[peers]'"
        )
        from megatron.core.datasets import blended_megatron_dataset_config as config
        from megatron.core.datasets import gpt_dataset, indexed_dataset, utils
    return SimpleNamespace(config=config, gpt=gpt_dataset, indexed=indexed_dataset, split=utils.Split)


def documents(dataset) -> list[list[int]]:
    return [dataset.document(i).tolist() for i in range(len(dataset.documents) - 1)]


@settings(max_examples=50)
@given(DOCS, st.sampled_from([1000, 65_499, 65_500, 100_000]))
def test_any_documents_come_back_also_empty_ones(tmp_path_factory, docs, vocab_size):
    prefix = tmp_path_factory.mktemp("pair") / "some.name"
    assert write_indexed_dataset(prefix, iter(docs), vocab_size) == sum(map(len, docs))
    dataset = read_indexed_dataset(prefix)
    assert documents(dataset) == docs
    assert [ids.tolist() for ids in dataset] == [doc for doc in docs if doc], "an empty one is no sequence"
    assert dataset.ids.dtype == (np.uint16 if vocab_size < 65_500 else np.int32)
    n = len(dataset)
    assert prefix.with_name("some.name.idx").stat().st_size == 34 + 12 * n + 8 * (len(docs) + 1)


def test_ten_thousand_documents_have_the_published_index(tmp_path):
    write_indexed_dataset(tmp_path / "data", ([i % 50] * (1 + i % 3) for i in range(10_000)))
    size = (tmp_path / "data.idx").stat().st_size
    assert size == 200_042 and f"{math.ceil(size / 1024)}K" == log()["size of the .idx as listed"]


@pytest.mark.parametrize(
    "docs, says",
    [([], "no document has a token"), ([[]], "no document has a token")]
    + [([[3], doc], r"document 1 .* from 0 to 99") for doc in ([-1], [100], [0.5], [[1, 2]], ["a"])],
)
def test_what_is_no_ids_is_refused_and_the_old_pair_stays(tmp_path, docs, says):
    write_indexed_dataset(tmp_path / "data", [[1, 2]], 100)
    with pytest.raises(ValueError, match=says):
        write_indexed_dataset(tmp_path / "data", docs, 100)
    assert documents(read_indexed_dataset(tmp_path / "data")) == [[1, 2]]


@pytest.mark.parametrize("step", ["the .bin aside", "before its name", "after it", "the .idx aside"])
def test_an_index_never_stands_beside_other_ids(tmp_path, monkeypatch, step):
    """The same number of bytes, other documents: sizes alone would not tell."""
    write_indexed_dataset(tmp_path / "data", [[1, 2], [3, 4]])
    changed = [[5], [6, 7, 8]]

    @contextlib.contextmanager
    def stopped(path):
        if step == "the .idx aside" and path.suffix == ".idx":
            raise KeyboardInterrupt
        with atomically(path) as file:
            if step == "the .bin aside":
                raise KeyboardInterrupt
            yield file
            if step == "before its name":
                raise KeyboardInterrupt
        if step == "after it":
            raise KeyboardInterrupt

    monkeypatch.setattr(nanogpt.labs.formats.megatron, "atomically", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_indexed_dataset(tmp_path / "data", changed)
    monkeypatch.undo()
    try:
        found = documents(read_indexed_dataset(tmp_path / "data"))
    except FileNotFoundError as error:
        assert "data.idx is not there, and data.bin alone says nothing" in str(error)
    else:
        assert step == "the .bin aside" and found == [[1, 2], [3, 4]]
    write_indexed_dataset(tmp_path / "data", changed)
    assert documents(read_indexed_dataset(tmp_path / "data")) == changed


@settings(max_examples=50)
@given(st.data())
def test_no_torn_or_changed_index_is_read_as_another_data_set(tmp_path_factory, data):
    """Each byte decides: of a changed index nothing is read, or what was written."""
    prefix, docs = tmp_path_factory.mktemp("pair") / "data", [[1, 2, 3], [], [4], [5, 6]]
    write_indexed_dataset(prefix, docs)
    raw = bytearray((index := prefix.with_suffix(".idx")).read_bytes())
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    else:
        marks = len(raw) - 8 * (len(docs) - 1)  # which of the inner marks is right, no other number tells
        raw[data.draw(st.integers(0, marks - 1))] ^= data.draw(st.integers(1, 255))
    index.write_bytes(raw)
    with pytest.raises((ValueError, OverflowError)) as error:
        read_indexed_dataset(prefix)
    assert "\n" not in str(error.value) and isinstance(error.value, ValueError)


def test_what_is_no_pair_is_refused_with_the_files_name(tmp_path):
    write_indexed_dataset(tmp_path / "data", [[1, 2], [3]])
    ids, index = tmp_path / "data.bin", tmp_path / "data.idx"
    whole, raw = ids.read_bytes(), index.read_bytes()
    for path, other, says in [
        (ids, whole[:-1], f"{len(whole) - 1} bytes"),
        (ids, whole + b"\0\0", f"{len(whole) + 2} bytes"),
        (index, raw + b"\0\0", "multimodal"),  # a mode for each of the two sequences
        (index, b"PK\3\4", "data.idx"),
    ]:
        before = path.read_bytes()
        path.write_bytes(other)
        with pytest.raises(ValueError, match=says):
            read_indexed_dataset(tmp_path / "data")
        path.write_bytes(before)
    for gone in ids, index:
        gone.unlink()
        with pytest.raises(FileNotFoundError, match=gone.name):
            read_indexed_dataset(tmp_path / "data")


@settings(max_examples=50)
@given(DOCS, st.data())
def test_shards_may_be_cut_anywhere(tmp_path_factory, docs, data):
    folder, eot = tmp_path_factory.mktemp("shards"), 1000
    stream = np.concatenate([[eot, *doc] for doc in docs])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=4)) if len(stream) > 1 else [])
    paths = [folder / f"train_{i:06}.bin" for i in range(len(cuts) + 1)]
    for path, part in zip(paths, np.split(stream, cuts)):
        write_shard(path, part)
    found = list(whole_documents(paths, eot))
    assert [ids.tolist() for ids in found] == [[*doc, eot] for doc in docs]
    assert {ids.dtype for ids in found} == {np.dtype("uint16")}


def test_shards_that_begin_in_the_middle_lose_nothing(tmp_path):
    write_shard(tmp_path / "a.bin", [7, 8, 9, 5])  # 9 is <|endoftext|>
    assert [ids.tolist() for ids in whole_documents([tmp_path / "a.bin"], 9)] == [[7, 8, 9], [5, 9]]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    texts = [story.text for story in stories(60)]
    texts[3] = "It said <|endoftext|> in the middle."
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "texts.jsonl").write_text(lines, encoding="utf-8", newline="\n")
    BPETokenizer.train(texts, 300).save(folder / "tokenizer.json")
    return folder, texts, BPETokenizer.load(folder / "tokenizer.json")


def prepared(source, out, *more) -> int:
    words = source / "texts.jsonl", "--tokenizer", source / "tokenizer.json", "--out", out, "--workers", 1
    return cli.run_command("prepare", [str(word) for word in (*words, "--format", "megatron", *more)])


def test_the_command_makes_one_pair_of_all_documents_in_order(tmp_path, source, capsys):
    folder, texts, tokenizer = source
    assert prepared(folder, tmp_path / "out", "--val", "0", "--test", "0") == 0
    assert "train_text_document.bin and .idx:" in capsys.readouterr().out
    dataset = read_indexed_dataset(tmp_path / "out/train_text_document")
    assert [ids[-1] for ids in dataset] == [tokenizer.eot] * len(texts)
    assert [tokenizer.decode(ids[:-1].tolist()) for ids in dataset] == texts
    assert sorted(path.suffix for path in (tmp_path / "out").glob("*_text_document.*")) == [".bin", ".idx"]


def test_the_command_again_mends_a_pair_and_parts_make_none(tmp_path, source):
    folder, _, _ = source
    out, split = tmp_path / "out", ["--val", "0.2", "--test", "0.2"]
    assert prepared(folder, out, *split, "--part", "1/2") == 0
    assert not list(out.glob("*_text_document.*"))
    assert prepared(folder, out, *split) == 0
    pairs = {path.name: path.read_bytes() for path in out.glob("*_text_document.*")}
    assert len(pairs) == 6
    (out / "val_text_document.idx").unlink()
    (out / "test_text_document.bin").write_bytes(b"torn")
    assert prepared(folder, out, *split) == 0
    assert {path.name: path.read_bytes() for path in out.glob("*_text_document.*")} == pairs


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.sampled_from(["949,50,1", "1,1,1", "100,0,0", "0.98,0.01,0.01", "0,1,0"]))
def test_splits_follow_each_other_and_leave_nothing_out(n, split):
    ranges = split_ranges(n, split)
    assert [i for r in ranges for i in r] == list(range(n))
    weights = [float(w) for w in split.split(",")]
    assert all(abs(len(r) - n * w / sum(weights)) <= 1 for r, w in zip(ranges, weights))


@settings(max_examples=50)
@given(st.integers(1, 500), st.integers(1, 60), st.integers(0, 90))
def test_as_few_epochs_as_give_the_samples(tokens, T, wanted):
    epochs, samples = epochs_and_samples(tokens, T, wanted)
    assert samples >= wanted and samples == (epochs * tokens - 1) // T
    assert epochs == 1 or ((epochs - 1) * tokens - 1) // T < wanted


def log() -> dict[str, str]:
    with open(ROOT / "data/reference/megatron_split.csv", encoding="utf-8") as file:
        return {row["item"].split(" (")[0]: row["value"] for row in csv.DictReader(file)}


def test_the_published_log_is_reproduced():
    """Samples and epochs bound the tokens of each split; within, ours are the log's; one token outside, they are not."""
    said, bounds = log(), {}
    T, batch = int(said["seq_length"]), int(said["global_batch_size"])
    iterations, every, n = (int(said[key]) for key in ("train_iters", "eval_interval", "eval_iters"))
    names = {"train": iterations, "validation": (iterations // every + 1) * n, "test": n}
    for (name, batches), short in zip(names.items(), ("train", "valid", "test")):
        wanted, samples = int(said[f"target samples, {name}"]), int(said[f"samples, {short}"])
        epochs = int(said[f"epochs, {short}"])
        assert wanted == batches * batch
        low, high = -(-(samples * T + 1) // epochs), (samples + 1) * T // epochs
        assert {epochs_and_samples(x, T, wanted) for x in range(low, high + 1)} == {(epochs, samples)}
        assert epochs_and_samples(low - 1, T, wanted)[1] < samples
        assert epochs_and_samples(high + 1, T, wanted)[1] > samples
        bounds[name] = low, high
    ranges = split_ranges(int(said["documents in the index"]), said["split"])
    assert [len(r) for r in ranges] == [9490, 500, 10]
    assert {(tokens - 1) // T for tokens in bounds["test"]} == {63}, "80 samples are 63 and 17 of them again"


@settings(max_examples=50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 60))
def test_samples_are_the_stream_cut_and_every_text_comes_before_any_comes_twice(
    tmp_path_factory, lengths, T, wanted
):
    prefix = tmp_path_factory.mktemp("pair") / "data"
    write_indexed_dataset(prefix, [list(range(100 * i, 100 * i + n)) for i, n in enumerate(lengths)])
    dataset, docs = read_indexed_dataset(prefix), range(len(lengths))
    laid, begins, drawn = indices = sample_indices(dataset, docs, T, wanted)
    stream = np.concatenate([dataset[d] for d in laid])
    epochs, samples = epochs_and_samples(sum(lengths), T, wanted)
    assert sorted(drawn) == list(range(samples)) and len(begins) == samples + 1
    assert sorted(laid) == sorted([*docs] * epochs)
    before = ((epochs - 1) * sum(lengths) - 1) // T
    if epochs > 1 and wanted - before < (sum(lengths) - 1) // T // 2:  # less than half of the last epoch
        assert sorted(drawn[:before]) == list(range(before)), "text came again before all had come"
    for k, i in enumerate(drawn):
        assert np.array_equal(read_sample(dataset, indices, T, k), stream[i * T : i * T + T + 1])


# What megatron-core itself says.


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [65_499, 65_500])
def test_megatron_writes_the_same_bytes_and_reads_ours(tmp_path, megatron, vocab_size):
    docs = [[1, 2, 3], [], [4], [60_000, 5], []]
    write_indexed_dataset(tmp_path / "ours", docs, vocab_size)
    dtype = megatron.indexed.DType.optimal_dtype(vocab_size)
    builder = megatron.indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype)
    for doc in docs:
        builder.add_document(doc, [len(doc)] if doc else [])  # as preprocess_data does
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in "bin", "idx":
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()
    theirs = megatron.indexed.IndexedDataset(str(tmp_path / "ours"))
    ours = read_indexed_dataset(tmp_path / "theirs")
    assert [ids.tolist() for ids in theirs[:]] == [ids.tolist() for ids in ours]
    assert theirs.document_indices.tolist() == ours.documents.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [5, 20, 40, 48, 100, 130])
@pytest.mark.parametrize("weights", ["949,50,1", "5,1,1"])
def test_splits_and_samples_are_megatrons(tmp_path, megatron, wanted, weights):
    """Some of these epochs are laid out apart and some are not: less than 80% of the last one is used, or more."""
    dice = np.random.default_rng(0)
    write_indexed_dataset(tmp_path / "data", [dice.integers(0, 999, n) for n in dice.integers(1, 90, 1500)])
    ours = read_indexed_dataset(tmp_path / "data")
    theirs = megatron.indexed.IndexedDataset(str(tmp_path / "data"))
    parsed = megatron.config.parse_and_normalize_split(weights)
    normal = megatron.config.convert_split_vector_to_split_matrix(parsed)
    for docs, (a, b), part in zip(split_ranges(len(ours), weights), normal, megatron.split):
        assert docs == range(round(a * 1500), round(b * 1500))
        docs = docs[:9]  # few, so that epochs are many

        class Tokenizer:
            vocab_size, eod, pad, unique_identifiers = 1000, 0, 0, {}

        config = megatron.gpt.GPTDatasetConfig(
            random_seed=1234, sequence_length=16, split=weights, blend=([str(tmp_path / "data")], None),
            tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
            path_to_cache=str(tmp_path / "cache"),
        )  # fmt: skip
        indices = np.arange(docs.start, docs.stop, dtype=np.int32)
        dataset = megatron.gpt.GPTDataset(theirs, str(tmp_path / "data"), indices, wanted, part, config)
        found = sample_indices(ours, docs, 16, wanted)
        for name, mine in zip(("document_index", "sample_index", "shuffle_index"), found):
            assert np.array_equal(getattr(dataset, name), mine), name
        for k in range(len(dataset)):
            row = dataset[k]
            mine = read_sample(ours, found, 16, k)
            assert row["tokens"].tolist() == mine[:-1].tolist()
            assert row["labels"].tolist() == mine[1:].tolist()
