"""A dry run says what a run would take, and leaves nothing behind."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanogpt.config import CONFIGS, Config, Data, Model, Run, Train, load_config
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.plan import dryrun
from nanogpt.labs.plan.dryrun import dry_run
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.model import GPT, GPTConfig
from nanogpt.weights import save_model


@pytest.fixture
def slow_machine(monkeypatch):
    """A machine of 1 GFLOP/s and 1 GB/s: nothing is measured, unless a step takes under 3 s even there."""
    monkeypatch.setattr(dryrun, "measure_roofline", lambda device: Roofline("cpu", {"float32": 1e9}, 1e9))


def small(folder: Path, **train) -> Config:
    return Config(
        model=Model(n_layer=1, n_head=2, n_embd=16, block_size=16),
        data=Data(dir=str(folder), source="none.txt", tokenizer=280),
        train=Train(**dict(max_steps=12, batch_tokens=192, micro_batch=4) | train),
        run=Run(dir=str(folder / "run"), device="cpu"),
    )


def test_it_counts_as_the_model_does_and_writes_nothing(slow_machine, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dry_run(small(tmp_path / "nowhere"))
    said = capsys.readouterr().out
    model = GPT(GPTConfig(block_size=16, vocab_size=280, n_layer=1, n_head=2, n_embd=16))
    n = sum(p.numel() for p in model.parameters())
    assert f"parameters  {n:,}, if the vocabulary has 280\n" in said, said
    assert "steps       12 of 192 tokens: 3 × 4 rows of 16" in said and "epochs" not in said, said
    assert re.search(r"time +at least .* by the roofline\); .* measured\)", said), said
    assert not any(tmp_path.iterdir()), "a dry run wrote something, or made the data"


@pytest.mark.parametrize("write", [save_model, to_hf])
def test_a_run_from_a_trained_model_has_that_models_shape(write, slow_machine, tmp_path, capsys):
    model = GPT(GPTConfig(block_size=32, vocab_size=300, n_layer=3, n_head=4, n_embd=32))
    write(model, folder := tmp_path / "model")
    begins = replace(small(tmp_path / "nowhere"), model=Model(block_size=16), init_from=str(folder))
    dry_run(begins)
    n = sum(p.numel() for p in model.parameters())
    assert f"parameters  {n:,}" in capsys.readouterr().out, "not the parameters of init_from"
    with pytest.raises(ValueError, match=r"n_layer=3.*model.n_layer=1"):
        dry_run(replace(begins, model=Model(n_layer=1, block_size=16)))
    with pytest.raises(ValueError, match=r"32.*model.block_size=64"):
        dry_run(replace(begins, model=Model(block_size=64), train=Train(batch_tokens=256, micro_batch=4)))


def test_epochs_are_of_documents_or_of_tokens(slow_machine, tmp_path, monkeypatch, capsys):
    manifest = {"vocab_size": 280, "splits": {"train": {"documents": 24, "tokens": 1152}}}
    monkeypatch.setattr(dryrun, "load_manifest", lambda folder: manifest)
    (tmp_path / "manifest.json").touch()
    config = small(tmp_path)
    dry_run(config)
    assert "epochs      6.00 of 24 documents" in capsys.readouterr().out, "a row of 16 tokens is a document"
    object.__setattr__(config.data, "documents", False)
    dry_run(config)
    assert "epochs      2.00 of 1,152 tokens" in capsys.readouterr().out


def test_a_long_step_is_not_measured_and_nothing_draws_from_the_run(slow_machine, capsys):
    dry_run(load_config("gpt2-124M", ["run.device=cpu", "train.dtype=float32"]))
    said = capsys.readouterr().out
    assert "years on this machine" in said and "measured" not in said, said


def test_accumulation_takes_the_time_of_its_micro_batches():
    shape = GPTConfig(block_size=16, vocab_size=280, n_layer=1, n_head=2, n_embd=16)
    config, more = small(Path("x")), small(Path("x"), batch_tokens=1920)
    roof = Roofline("cpu", {"float32": 1e9}, 1e9)
    few, many = (dryrun.step_seconds(shape, c, torch.device("cpu"), roof)[0] for c in (config, more))
    assert 5 < many / few < 10, "thirty micro-batches and one update, against three and one"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_each_ready_configuration_has_a_dry_run_that_writes_nothing(
    name, slow_machine, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(dryrun, "step_seconds", lambda *_: (2.0, 1.0))
    monkeypatch.chdir(tmp_path)
    dry_run(load_config(name))
    said = capsys.readouterr().out
    assert all(word in said for word in ("parameters", "memory", "steps", "time")), said
    assert "the roofline was measured too low" in said, "a step below its bound is not explained"
    assert not any(tmp_path.iterdir()), "a dry run wrote something"
