"""A key that says what data are made of acts, or is refused: shards are known by what they were made of, not by their place."""

import gzip
import json
from dataclasses import replace

import pytest

from nanogpt.build import ensure_data
from nanogpt.config import Data, keys, load_config
from nanogpt.labs.plan.idle import ACTS
from nanogpt.shards import load_manifest
from nanogpt.tokenizer import BPETokenizer

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
        ({"tokenizer": 300}, "vocab_size"),
        ({"tokenizer": "other.json"}, "fingerprint"),
        ({"val": 0.5}, "val"),
        ({"paragraphs": False}, "paragraphs"),
        ({"source": "stories"}, "source"),
    ],
)
def test_another_source_vocabulary_or_division_is_refused(data, tmp_path, change, key):
    BPETokenizer.train(DOGS, 280).save(tmp_path / "other.json")
    files = {k: str(tmp_path / name) for k, name in change.items() if str(name).endswith((".txt", ".json"))}
    before = load_manifest(data.dir)
    with pytest.raises(ValueError, match=f"holds shards whose {key} is .*; choose another data.dir"):
        ensure_data(replace(data, **change | files))
    assert load_manifest(data.dir) == before


def test_another_text_of_the_same_name_is_another_text(data, tmp_path):
    (tmp_path / "cats.txt").write_text(DOGS)
    with pytest.raises(ValueError, match="whose source_sha256 is"):
        ensure_data(data)


@pytest.mark.parametrize(
    "idle, master",
    {
        "data.val=0.3": "data.source=my.txt",
        "data.paragraphs=false": "data.source=my.txt",
        "data.tokenizer=300": "data.source=my.txt",
        "optim.decay=0.5": "optim.schedule=wsd",
        "optim.minimum=0.5": "optim.schedule=cosine",
        "eval.tokens=500": "eval.every=5",
        "eval.prompt=Once": "eval.sample_every=5",
        "lora.alpha=4": "lora.rank=2",
        "model.padded_vocab_size=1088": "init_from=null",
    }.items(),
)
def test_a_key_without_effect_is_refused_and_acts_with_what_it_needs(idle, master):
    base, key = ["optim.schedule=constant", "eval.every=0", "init_from=runs/x"], idle.partition("=")[0]
    with pytest.raises(ValueError, match=f"{key} would have no effect; it needs"):
        load_config("tiny", [*base, idle])
    load_config("tiny", [*base, idle, master])


def test_each_key_that_may_be_idle_is_a_key():
    assert ACTS.keys() <= keys().keys()


def test_a_text_that_is_one_document_can_be_trained_on(tmp_path):
    (tmp_path / "names.txt").write_text(DOGS.replace("\n", " "))
    made = ensure_data(Data(str(tmp_path / "shards"), source=str(tmp_path / "names.txt"), tokenizer=280))
    train, val = (made["splits"][split]["tokens"] for split in ("train", "val"))
    assert 0.05 < val / (train + val) < 0.15


@pytest.mark.parametrize("name", ["rows, of cats.jsonl.gz", "corpus"])
def test_files_of_other_kinds_and_folders_train_too_and_are_known_again(tmp_path, capsys, name):
    pytest.importorskip("nanogpt.labs.corpora.prepare")  # chapter 16b
    rows = "".join(json.dumps({"text": text}) + "\n" for text in CATS.split("\n\n"))
    if name == "corpus":
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.ndjson").write_text(rows)
        (tmp_path / name / "rows.json").write_text("[]")
    else:
        (tmp_path / name).write_bytes(gzip.compress(rows.encode()))
    data = Data(str(tmp_path / "shards"), source=str(tmp_path / name), tokenizer=270)
    made = ensure_data(data)
    assert made["splits"]["train"]["documents"] > 100 and ensure_data(data) == made
    assert ("rows.json: left out" in capsys.readouterr().err) == (name == "corpus")
    with pytest.raises(ValueError, match="whose source is"):
        ensure_data(replace(data, source=str(tmp_path / "other.jsonl")))
