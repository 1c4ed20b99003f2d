"""What a manifest proves: nothing damaged, foreign or changed gets into training."""

import json
import random

import pytest
from small_shards import write_corpus, write_documents

from nanogpt.data import BatchStream, DocumentStream
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.shards import (
    check_shards,
    load_manifest,
    manifest_sha256,
    open_shards,
    write_shard,
)


def test_manifest_guards_shards(tmp_path, tokenizer):
    write_corpus(tmp_path, tokenizer, train=[300] * 10, val=[9])
    [path] = open_shards(tmp_path, "train", tokenizer.fingerprint)
    assert path == tmp_path / "train_000000.bin"
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
    assert open_shards(tmp_path, "val")  # whose shard is whole
    path.unlink()
    with pytest.raises(ValueError, match=r"train_000000.bin is gone"):
        check_shards(tmp_path, load_manifest(tmp_path))
    (tmp_path / "manifest.json").write_text('{"splits": 1')
    with pytest.raises(ValueError, match="not JSON"):
        open_shards(tmp_path, "val")


def first(manifest) -> dict:
    return manifest["splits"]["train"]["shards"][0]


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda m: m.update(eot=7), "its own hash"),
        (lambda m: m.update(eot=400), "eot or vocab_size"),
        (lambda m: m["splits"].update(valid=m["splits"].pop("val")), "a split's name"),
        (lambda m: first(m).update(file="../elsewhere.bin"), "a file's name"),
        (lambda m: m["splits"]["train"]["shards"].append(first(m)), "a file listed twice"),
        (lambda m: m["splits"]["train"]["shards"].clear(), "a sum of tokens"),
        (lambda m: m.pop("eot"), "no 'eot'"),
        (lambda m: first(m).update(sha256=""), "a file's hash"),
        (lambda m: m["splits"].update(val=None), "not in a manifest's form"),
    ],
)
def test_a_wrong_manifest_is_one_sentence_even_when_it_is_sealed_again(tmp_path, tokenizer, harm, fault):
    manifest = write_corpus(tmp_path, tokenizer, train=[300] * 10, val=[9])
    harm(manifest)
    if fault != "its own hash":
        manifest["sha256"] = manifest_sha256(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    says = rf"^.*manifest.json is damaged \({fault}\); prepare the data again$"
    with pytest.raises(ValueError, match=says):
        open_shards(tmp_path, "val")


def test_no_changed_byte_of_a_manifest_is_taken_for_another_truth(tmp_path, tokenizer):
    manifest = write_corpus(tmp_path, tokenizer, train=[300] * 10, val=[9])
    raw, dice = (tmp_path / "manifest.json").read_bytes(), random.Random(0)
    for _ in range(150):
        at, byte = dice.randrange(len(raw)), dice.randrange(256)
        (tmp_path / "manifest.json").write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
        try:
            assert load_manifest(tmp_path) == manifest, (at, byte)
        except ValueError as error:
            assert "manifest.json is damaged" in str(error)


def test_a_stream_reads_one_folder_and_what_its_manifest_lists(tmp_path, tokenizer):
    here, there = (write_documents(tmp_path / name, [[50]]) for name in "ab")
    for paths in ([*here, *there], []):  # both are train_000000.bin
        with pytest.raises(ValueError, match=f"the shards of one folder; got {len(paths)} files"):
            BatchStream(paths, 1, 5)
    write_corpus(tmp_path / "c", tokenizer, train=[50])
    for name in ("train_000001.bin", "train_000000.bin"):  # it is not listed, or has another length
        write_shard(tmp_path / "c" / name, [tokenizer.eot, 1, 2])
        with pytest.raises(ValueError, match=f"{name} is not what the manifest beside it describes"):
            BatchStream((tmp_path / "c").glob("*.bin"), 1, 1)


def test_an_id_beyond_the_vocabulary_is_one_clear_error(tmp_path, tokenizer):
    write_corpus(tmp_path, tokenizer, train=[tokenizer.vocab_size + 2])  # whose last id is 400
    stream = BatchStream(tmp_path.glob("*.bin"), 1, 100)
    with pytest.raises(ValueError, match="hold id 400, but their vocabulary has 400; prepare them again"):
        for _ in range(5):
            stream.next_batch()


def test_ensure_corpus_makes_a_corpus_again_of_which_a_bit_has_changed(tmp_path, tokenizer):
    manifest, shard = ensure_corpus(tmp_path, tokenizer, n=200), tmp_path / "val_000000.bin"
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:])
    assert ensure_corpus(tmp_path, tokenizer, n=200) == manifest and shard.read_bytes() == raw


def test_a_state_of_other_shards_is_refused(tmp_path):
    paths = write_documents(tmp_path / "a", [[50]])
    state = BatchStream(paths, 1, 5).state_dict()
    others = write_documents(tmp_path / "b", [[25, 25]])  # the same name, the same length
    for stream in (BatchStream(others, 1, 5), DocumentStream(paths, 1, 5)):
        with pytest.raises(ValueError, match=r"see its '(shards|counts)'"):
            stream.load_state_dict(state)
        assert stream.position == 0


def test_a_state_knows_its_shards_by_the_manifest_or_by_their_bytes(tmp_path, tokenizer):
    manifest = write_corpus(tmp_path, tokenizer, train=[20, 30])
    path = tmp_path / "train_000000.bin"
    state = BatchStream([path], 1, 5).state_dict()
    assert state["shards"] == [manifest["splits"]["train"]["shards"][0]["sha256"]]
    (tmp_path / "manifest.json").unlink()
    assert BatchStream([path], 1, 5).state_dict() == state


def test_shards_without_a_beginning_are_one_clear_error(tmp_path):
    write_shard(tmp_path / "train_000000.bin", [1, 2, 3])
    with pytest.raises(ValueError, match="no document begins"):
        DocumentStream([tmp_path / "train_000000.bin"], 1, 2).next_batch()
