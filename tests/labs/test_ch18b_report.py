import json
from pathlib import Path

import pytest
import torch

from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.evals import command as report
from nanogpt.labs.formats.hf import to_hf
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import save_model

COURSE = Path(__file__).parents[2] / "nanogpt/resources/hellaswag_course.jsonl"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint and shards of few stories."""
    folder = tmp_path_factory.mktemp("eval")
    tokenizer = BPETokenizer.train((story.text for story in stories(200)), 400)
    ensure_corpus(folder / "stories", tokenizer, n=400)
    config = GPTConfig(block_size=128, vocab_size=tokenizer.vocab_size, n_layer=1, n_head=2, n_embd=16)
    model = GPT(config, torch.Generator().manual_seed(0))
    save_model(model, folder / "model")
    tokenizer.save(folder / "model/tokenizer.json")
    to_hf(model, folder / "hf")
    return folder


def run(place, *options, checkpoint="model"):
    words = "--checkpoint", place / checkpoint, "--data", place / "stories", "--device", "cpu", *options
    report.run(report.parser().parse_args([str(word) for word in words]))


def test_val_and_hellaswag_of_a_checkpoint_and_of_the_same_in_hugging_faces_format(place, capsys):
    both = []
    for checkpoint, more in (("model", []), ("hf", ["--tokenizer", str(place / "model/tokenizer.json")])):
        file = place / f"{checkpoint}.json"
        options = ["--tasks", "val,hellaswag", "--items", str(COURSE), "--json", str(file), *more]
        run(place, *options, checkpoint=checkpoint)
        both.append(json.loads(file.read_text()))
    assert both[0]["val"] == pytest.approx(both[1]["val"], rel=1e-5)
    assert both[0]["hellaswag"] == both[1]["hellaswag"] and both[0]["hellaswag"]["n"] == 48
    val = both[0]["val"]
    assert 0 < val["loss_stderr"] < 0.1 and val["bits_per_byte"] < val["loss"]
    printed = capsys.readouterr().out
    assert "hellaswag (hellaswag_course.jsonl)" in printed and "acc_norm" in printed


def test_the_test_set_is_read_only_when_asked_for_and_each_reading_is_recorded(place, capsys):
    log = place / "stories/test_reads.jsonl"
    with pytest.raises(ValueError, match="--final"):
        run(place, "--split", "test")
    assert not log.exists()
    for n in (1, 2):
        run(place, "--split", "test", "--final")
        assert f"test_readings      {n}" in capsys.readouterr().out
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [set(row) for row in rows] == [{"time", "checkpoint", "loss"}] * 2
    run(place, "--split", "val", "--final")
    assert len(log.read_text().splitlines()) == 2


def test_shards_of_another_tokenizer_are_refused(place, tmp_path):
    other = BPETokenizer.train("another text altogether " * 9, 270)
    other.save(tmp_path / "tokenizer.json")
    named = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    with pytest.raises(ValueError, match=r"has its own tokenizer, .* leave out --tokenizer"):
        run(place, *named)
    with pytest.raises(ValueError, match="was made with tokenizer"):
        run(place, "--checkpoint", str(place / "hf"), *named)  # none is beside these weights


@pytest.mark.parametrize(
    "option, value, named",
    [
        ("--tasks", "val,helaswag", "helaswag"),
        ("--tokens", "1", "--tokens"),
        ("--data", "nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_is_named(place, option, value, named):
    with pytest.raises((ValueError, OSError), match=named):
        run(place, option, value)
