"""What a run is made of: all that its steps change comes back, and what makes it another run is refused."""

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from small_run import COMPUTING, WRITING, lines, run_in_child, weights, write_text

from nanogpt import build, checkpoint
from nanogpt.config import Data, Model
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.plan import dryrun
from nanogpt.model import GPT, GPTConfig
from nanogpt.trainer import build_run, learning_rate, one_step, resume
from nanogpt.weights import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


def losses(run, n: int) -> list[float]:
    """Of the next n steps."""
    return [one_step(run)["loss"] for _ in range(n)]


def resumed(config):
    """The run in config.run.dir, as its newest checkpoint has it."""
    return resume(build_run(config))


def begun(config, place):
    """A run before its first step, whose model is the one in a folder."""
    return build_run(replace(config, init_from=str(place)))


def saved(config, n: int = 3):
    """A run after so many steps, with a checkpoint."""
    run = resumed(config)
    losses(run, n)
    run.notes["a lab"] = [1.5, 2]
    checkpoint.save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)
    return run


@pytest.mark.parametrize("dtype", ["float32", "bf16", "bf16-masters", "fp16"])
def test_a_resumed_run_is_the_one_that_was_saved(config, dtype):
    run = saved(config(train_dtype=dtype))
    torch.manual_seed(99)  # whatever the process has drawn since
    again = resumed(config(train_dtype=dtype))
    assert again.state_dict()["scaler"] == run.state_dict()["scaler"], "a scale is looked for again"
    assert (again.step, again.updates, again.notes) == (3, run.updates, run.notes), "counts or notes differ"
    after = losses(again, 8)
    whole = build_run(config(train_dtype=dtype, run_dir="none"))
    assert losses(whole, 11)[3:] == after, "the resumed run has other losses than the one that went on"
    assert config().model.dropout > 0, "without dropout nothing is random, and this says nothing"


def test_a_tokenizer_is_the_shards_own_or_none(config):
    """With another one of the same size every id would mean another word, and nothing would fail."""
    manifest = build.ensure_data(config().data)
    found = build.find_tokenizer(config().data, manifest)
    assert found.fingerprint == manifest["fingerprint"]
    assert build.find_tokenizer(config().data, manifest | {"fingerprint": "another"}) is None


def test_only_a_plain_text_is_read_as_a_whole(tmp_path):
    """All other kinds of files are left to chapter 16a's readers."""
    sources = pytest.importorskip("nanogpt.labs.corpora.sources")  # chapter 16a
    from nanogpt.labs.corpora.make import is_small

    assert not is_small(tmp_path)
    ends = ["", ".txt", ".TXT", ".md", ".json", ".txt.gz", ".zst", ".CSV"]
    for end in (*ends, *sources.KINDS, *sources.PACKED):
        file = tmp_path / f"a{end}"
        file.write_text("text")
        plain = not sources.is_packed(file) and sources.kind_of(file) in ("text", None)
        assert is_small(file) == plain, end


def test_a_folder_and_a_large_text_make_the_same_shards(tmp_path, monkeypatch):
    """They are left to the lab, and the tokenizer is learned from them all the same."""
    pytest.importorskip("nanogpt.labs.corpora.prepare")  # chapter 16b
    text = tmp_path / "text" / "a.txt"
    text.parent.mkdir()
    text.write_text("\n\n".join(f"Anna has {n} apples, and Ben has {n % 7}." for n in range(60)))
    made = {}
    for name, source, large in (("one", text, 1 << 28), ("folder", text.parent, 1 << 28), ("large", text, 0)):
        monkeypatch.setattr("nanogpt.labs.corpora.make.LARGE", large)
        data = Data(dir=str(tmp_path / name), source=str(source), tokenizer=300, val=0.2)
        splits = build.ensure_data(data)["splits"].values()
        made[name] = [shard["sha256"] for split in splits for shard in split["shards"]]
    assert made["one"] == made["folder"] == made["large"] and len(made["one"]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"model_n_layer": 2},
        {"data_documents": False},
        {"run_seed": 1},
        {"optim_lr": 1e-3},
        {"train_dtype": "bf16"},
        {"eval_tokens": 77},  # losses on another text would compete for the best
    ],
)
def test_what_makes_it_another_run_is_refused_in_one_line(config, change):
    saved(config())
    key = next(iter(change)).replace("_", ".", 1)
    with pytest.raises(ValueError, match=f"^.*cannot go on with {key}=.*; choose another run.dir$"):
        resumed(config(**change))


def test_the_shards_may_move_but_not_change(config, folder, tmp_path):
    saved(config())
    moved = shutil.copytree(folder / "data", tmp_path / "moved")
    resumed(config(data_dir=str(moved)))
    other = write_text(tmp_path / "other.txt", paragraphs=40)
    with pytest.raises(ValueError, match="is not what this state was saved for: see its 'shards'"):
        resumed(config(data_dir=str(tmp_path / "new"), data_source=str(other)))


def test_init_from_begins_with_those_weights(config):
    first = saved(config())
    newest = checkpoint.latest(first.folder)
    run, other = begun(config(model_dropout=0.0), newest), load_model(newest)
    assert all(map(torch.equal, run.model.state_dict().values(), other.state_dict().values()))
    assert run.model.config.dropout == 0.0, "dropout is this run's to choose"
    assert all(map(torch.equal, begun(config(), first.folder).model.parameters(), other.parameters()))
    plain = replace(config(), model=Model(block_size=16), init_from=str(first.folder))
    assert dryrun.shape_of(plain, 280).n_layer == 1, "a dry run has another shape"
    with pytest.raises(ValueError, match=r"context of 16; the run needs model.block_size=32"):
        begun(config(train_micro_batch=2, model_block_size=32), newest)


def test_init_from_of_another_vocabulary_is_refused(config, tmp_path):
    """It would train without an error: ids and shapes fit, and every id means another word."""
    first, other = saved(config()), write_text(tmp_path / "other.txt", paragraphs=30)
    other.write_text(other.read_text().upper())
    there = {"data_source": str(other), "data_dir": str(tmp_path / "shards")}
    with pytest.raises(ValueError, match=r"shards was made with .*init_from=.* learned .*; set data.tok"):
        begun(config(**there, run_dir=str(tmp_path / "new")), first.folder)


@pytest.mark.parametrize("key, value", [("n_layer", 2), ("n_head", 4), ("n_embd", 32), ("bias", False)])
def test_init_from_brings_its_own_shape_and_another_one_that_was_asked_for_is_refused(config, key, value):
    first = saved(config()).folder
    with pytest.raises(ValueError, match=f"model.{key}={value}"):
        begun(config(**{f"model_{key}": value}), first)
    run = begun(replace(config(), model=Model(block_size=16)), first)  # nobody asked for its default
    assert getattr(run.model.config, key) != getattr(Model, key), "the shape is not init_from's"


@pytest.mark.parametrize("tokens, fits", [(279, False), (280, True), (407, True), (408, False)])
def test_hugging_faces_model_is_read_unless_it_has_another_number_of_tokens(config, tmp_path, tokens, fits):
    """GPT-2's weights on shards of a small vocabulary would train without an error. Rows of padding are no other tokens."""
    model = GPT(GPTConfig(block_size=16, vocab_size=tokens, n_layer=1, n_head=2, n_embd=16))
    to_hf(model, tmp_path)  # has no tokenizer of ours beside it; the shards have 280 tokens
    if fits:
        read = begun(config(), tmp_path).model.transformer.wte.weight
        assert torch.equal(read, model.transformer.wte.weight), "other weights"
    else:
        with pytest.raises(ValueError, match=rf"has {tokens} tokens, .* 280; set data.tokenizer"):
            begun(config(), tmp_path)


def test_the_line_of_the_last_step_keeps_its_validation(config):
    """It is written after its checkpoint, which does not know of it."""
    run, path = saved(config()), Path(config().run.dir) / "metrics.jsonl"
    lines = [f'{{"step": {step}, "val_loss": {step}.5}}\n' for step in range(1, 6)]
    path.write_text("".join(lines))
    again = resumed(config())
    assert again.record == {"step": 3, "val_loss": 3.5}, "the validation after the last step is lost"
    assert path.read_text() == "".join(lines[:2]), "the step's line would be there twice"
    path.write_text("".join(lines[:2]) + lines[2][:-3])
    assert resumed(config()).record == run.record, "a torn line is taken for the step's"


def test_what_is_missing_is_named(config, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; `python -m nanogpt prepare`"):
        resumed(config(data_dir=str(tmp_path / "none"), data_source=None))
    build_run(config())  # makes the shards
    shutil.copytree(config().data.dir, data := tmp_path / "data")
    (data / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="samples need the tokenizer that made"):
        resumed(config(data_dir=str(data), data_source=None, eval_sample_every=4))


def test_the_learning_rate_is_that_of_the_configured_schedule(config):
    names = "cosine", "wsd", "constant"
    rate = {name: partial(learning_rate, config(optim_schedule=name)) for name in names}
    for name, at in rate.items():
        assert at(0) == pytest.approx(1e-2 / 3), f"{name} does not warm up in three steps"
        assert at(3) == pytest.approx(1e-2), f"{name} is not at its highest after the warm-up"
    assert rate["constant"](11) == 1e-2 > rate["wsd"](11) > 0
    assert 1e-3 < rate["cosine"](11) < rate["cosine"](6) < 1e-2, "the cosine does not fall towards a tenth"
    run = build_run(config())
    assert [one_step(run)["lr"] for _ in range(4)] == [rate["cosine"](n) for n in range(4)]


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot fork")
@pytest.mark.parametrize("among, die_at", [(COMPUTING, 20), (WRITING, 31)])
def test_a_run_from_a_file_that_is_killed_goes_on_bit_for_bit(config, tmp_path, among, die_at):
    looking = partial(config, eval_every=5, eval_sample_every=6)
    killed, whole = (looking(run_dir=str(tmp_path / name)) for name in ("killed", "whole"))
    assert run_in_child(killed, die_at, among)[0] < 0, "it was not killed"
    for one in (killed, whole):
        assert run_in_child(one)[1]["ended"] == 12, "the run does not end"
    assert lines(killed.run.dir) == lines(whole.run.dir), "the killed run has other lines"
    assert weights(killed.run.dir) == weights(whole.run.dir), "the weights differ"
