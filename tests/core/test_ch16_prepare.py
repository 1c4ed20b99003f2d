"""A text file into shards: the same tokens as the command makes, or one sentence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.labs.corpora.text import prepare_text, read_documents
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer

TEXT = "\n\n".join(f"Anna has {n} apples and Ben has {n % 7}.\nThey are happy." for n in range(60))


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="ab \n\r", min_size=1))
def test_the_documents_are_the_text(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_bytes(text.encode())
    assert "".join(read_documents(file)) == text and read_documents(file, paragraphs=False) == [text]


def test_the_shards_are_those_of_the_command(tmp_path):
    prepare = pytest.importorskip("nanogpt.labs.corpora.prepare").prepare  # chapter 16b
    (tmp_path / "text.txt").write_text(TEXT)
    prepare_text(tmp_path / "text.txt", tmp_path / "ours", 300, val=0.2)
    tokenizer = tmp_path / "ours/tokenizer.json"
    prepare(tmp_path / "text.txt", tmp_path / "theirs", tokenizer, 0.2, 0.0, True, workers=1)
    for split in ("train", "val"):
        ours, theirs = (load_manifest(tmp_path / name)["splits"][split] for name in ("ours", "theirs"))
        assert ours["shards"] == theirs["shards"] and ours["documents"] == theirs["documents"]


def test_all_documents_are_there(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    manifest = prepare_text(tmp_path / "text.txt", tmp_path / "out", 300, val=0.2)
    tokenizer = BPETokenizer.load(tmp_path / "out/tokenizer.json")
    shards = [path for split in ("train", "val") for path in open_shards(tmp_path / "out", split)]
    told = "".join(tokenizer.decode(read_shard(path).tolist()) for path in shards)
    told = told.replace("<|endoftext|>", "")
    assert sorted(told) == sorted(TEXT) and manifest["vocab_size"] == tokenizer.vocab_size == 300


def test_what_cannot_be_is_one_sentence(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_bytes(b"")
    for name in ("latin.txt", "empty.txt"):
        with pytest.raises(ValueError, match=name):
            prepare_text(tmp_path / name, tmp_path / "out", 300)
