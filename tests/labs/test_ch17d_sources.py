"""A key that says what data are made of acts, or is refused: shards are known by what they were made of, not by their place."""

from dataclasses import replace

import pytest

from nanogpt.build import ensure_data
from nanogpt.config import Data, load_config
from nanogpt.shards import load_manifest

CATS = "".join(f"The cat number {i} sat.\n\n" for i in range(200))
DOGS = "".join(f"Der Hund Nummer {i} lief.\n\n" for i in range(200))


@pytest.fixture
def data(tmp_path):
    """Shards of a text about cats, made by the configuration that names it."""
    (tmp_path / "cats.txt").write_text(CATS)
    (tmp_path / "dogs.txt").write_text(DOGS)
    made = Data(str(tmp_path / "shards"), source=str(tmp_path / "cats.txt"), tokenizer=280)
    ensure_data(made)
    return made


def test_the_same_text_again_is_what_is_there(data, tmp_path):
    before = load_manifest(data.dir)
    assert ensure_data(data) == before
    assert ensure_data(replace(data, source=None)) == before, "whoever names no source takes what is there"
    assert ensure_data(replace(data, tokenizer=f"{data.dir}/tokenizer.json")) == before
    (tmp_path / "cats.txt").unlink()  # its shards are all that is needed
    assert ensure_data(data) == before


@pytest.mark.parametrize(
    "change, key",
    [
        ({"source": "dogs.txt"}, "source"),
        ({"source": "nowhere.txt"}, "source"),
        ({"tokenizer": 300}, "vocab_size"),
        ({"tokenizer": "other.json"}, "fingerprint"),
        ({"val": 0.5}, "val"),
        ({"paragraphs": False}, "paragraphs"),
        ({"source": "stories"}, "source"),
    ],
)
def test_another_source_vocabulary_or_division_is_refused(data, tmp_path, change, key):
    from nanogpt.tokenizer import BPETokenizer

    BPETokenizer.train(DOGS, 280).save(tmp_path / "other.json")
    for name in change.keys() & {"source", "tokenizer"}:
        if isinstance(change[name], str) and change[name] != "stories":
            change = change | {name: str(tmp_path / change[name])}
    before = load_manifest(data.dir)
    with pytest.raises(ValueError, match=f"holds shards whose {key} is .*; choose another data.dir"):
        ensure_data(replace(data, **change))
    assert load_manifest(data.dir) == before


def test_another_text_of_the_same_name_is_another_text(data, tmp_path):
    (tmp_path / "cats.txt").write_text(DOGS)
    with pytest.raises(ValueError, match="whose source_sha256 is"):
        ensure_data(data)


@pytest.mark.parametrize("key", ["data.val=0.3", "data.paragraphs=false", "data.tokenizer=300"])
def test_a_key_that_describes_a_text_needs_one(key):
    with pytest.raises(ValueError, match=r"describes a text, and data.source=stories is none"):
        load_config("tiny", [key])
    if "tokenizer" not in key:  # without a source it names the one that made the shards
        with pytest.raises(ValueError, match=r"describes a text, and data.source=None is none"):
            load_config("tiny", ["data.source=null", key])
    load_config("tiny", ["data.source=my.txt", key])


def test_a_text_that_is_one_document_can_be_trained_on(tmp_path):
    (tmp_path / "names.txt").write_text(DOGS.replace("\n", " "))
    made = ensure_data(Data(str(tmp_path / "shards"), source=str(tmp_path / "names.txt"), tokenizer=280))
    train, val = (made["splits"][split]["tokens"] for split in ("train", "val"))
    assert 0.05 < val / (train + val) < 0.15
