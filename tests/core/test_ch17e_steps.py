"""The step: what counts, what is left out, and that no look changes it; a step's line; the command `train`."""

import math
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from small_run import before_steps, lines, losses, write_config
from written_run import a_run

from nanogpt import checkpoint, trainer
from nanogpt.cli import main
from nanogpt.config import keys
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.long_run import spikes
from nanogpt.metrics import step_line
from nanogpt.precision import LossScaler
from nanogpt.shards import read_shard

pytestmark = pytest.mark.usefixtures("one_thread")


# Looks


def test_evaluation_and_samples_change_no_loss(config, tmp_path, monkeypatch):
    evaluate = trainer.evaluate

    def drawing(*args, **options):
        torch.rand(())
        return evaluate(*args, **options)

    monkeypatch.setattr(trainer, "evaluate", drawing)
    quiet, curious = config(), config(run_dir=str(tmp_path / "curious"), eval_every=2, eval_sample_every=3)
    trainer.train_config(quiet)
    trainer.train_config(curious)
    assert quiet.model.dropout > 0, "without dropout nothing is random, and this says nothing"
    assert losses(quiet.run.dir) == losses(curious.run.dir), "looking at the model changes its training"


def test_micro_batches_are_accumulated(config):
    three, one = (trainer.build_run(config(model_dropout=0.0, train_micro_batch=rows)) for rows in (4, 12))
    for _ in range(3):
        ours, theirs = trainer.one_step(three), trainer.one_step(one)
        assert all(ours[name] == pytest.approx(theirs[name], rel=1e-4) for name in ("loss", "norm"))


@pytest.mark.skipif(os.name == "nt", reason="Windows gives an open file no number")
def test_the_lines_of_steps_are_on_the_disk_before_the_checkpoint_behind_them(config, monkeypatch):
    """Else a power cut could leave a checkpoint to go on with, and the lines before it lost."""
    flushed, named, fsync, rename = {}, [], os.fsync, os.rename

    def note_fsync(number):
        flushed[os.fstat(number).st_ino] = os.fstat(number).st_size
        fsync(number)

    def note_rename(aside, path):
        metrics = (Path(path).parent / "metrics.jsonl").stat()
        named.append((Path(path).name, flushed.get(metrics.st_ino) == metrics.st_size > 0))
        rename(aside, path)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    trainer.train_config(config())
    checkpoints = {name: behind for name, behind in named if name.startswith("step_")}
    assert checkpoints == {f"step_{step:06d}": True for step in (4, 8, 12)}


# Steps that are not taken


def test_a_step_that_is_not_finite_is_skipped_counted_and_its_batch_kept(config, tmp_path, poison):
    poison({5: math.nan, 6: math.inf, 9: math.nan})
    run = trainer.train_config(config(optim_schedule="constant", optim_warmup=10))
    told = lines(run.folder)
    assert [line["step"] for line in told if "skipped" in line] == [5, 6, 9], "other steps were skipped"
    assert told[4]["loss"] is None and told[4]["norm"] is None, "NaN is no JSON"
    assert run.skipped == {"not finite": 3} and run.updates == 9 and run.bad == 0
    rates = [round(line["lr"] / 1e-3) for line in told]
    assert rates == [1, 2, 3, 4, 5, 5, 5, 6, 7, 7, 8, 9], "the learning rate advances with what was not done"
    assert all(p.isfinite().all() for p in run.model.parameters()), "the weights are spoilt"
    ids = read_shard(run.folder / "skipped/step_000005.bin").reshape(12, 16)
    stream = trainer.build_run(config(run_dir=str(tmp_path / "again"))).stream
    batches = [stream.next_batch()[0] for _ in range(15)][-3:]
    assert np.array_equal(ids, torch.cat(batches).numpy()), "not the batch of step 5"


def test_an_overflow_of_float16_is_no_error(config, monkeypatch):
    """Megatron's log: 21 of the first 30 iterations skipped, and the rate has made 9 of its 10 steps of warm-up."""
    monkeypatch.setattr(trainer, "LossScaler", lambda: LossScaler(scale=2.0**40))
    changes = {"train_max_steps": 30, "train_bad_steps": 2, "optim_schedule": "constant"}
    run = trainer.train_config(config(train_dtype="fp16", **changes))
    told = lines(run.folder)
    skipped = [line["step"] for line in told if line.get("skipped") == "overflow"]
    assert skipped[:9] == list(range(1, 10)), f"skipped: {skipped}"
    assert run.skipped == {"overflow": len(skipped)} and run.updates == 30 - len(skipped) > 3
    rates = [line["lr"] for line in told]
    assert len(set(rates[:9])) == 1 and max(rates) == 0.01, "the rate counts what was not made"
    assert run.scaler.scale == 2.0 ** (40 - len(skipped)), "the scale is not halved"
    assert not (run.folder / "skipped").exists(), "an overflow is no batch to look at"


def test_a_spike_is_skipped_only_if_asked_and_its_batch_kept(config, tmp_path, monkeypatch, poison):
    monkeypatch.setattr(spikes, "WINDOW", 8)
    poison({10: 100.0, 22: 100.0})
    kept = trainer.train_config(config())
    assert "loss_z" not in lines(kept.folder)[9] and not kept.skipped, "a spike is skipped unasked"
    run = trainer.train_config(config(run_dir=str(tmp_path / "b"), train_skip_spikes=2.4))
    assert [line["step"] for line in lines(run.folder) if line.get("skipped") == "spike"] == [10]
    assert lines(run.folder)[9]["loss_z"] > 2.4
    assert run.updates == 11 and (run.folder / "skipped/step_000010.bin").exists(), "its batch is not kept"


def test_the_step_line_is_llmc_s():
    line = a_run(3)[2] | {"loss": 4.25, "loss_z": 0.5, "norm": 1.5, "norm_z": -2.0, "lr": 6e-4}
    assert step_line(line, 600) == (
        "step     3/600 | loss 4.250000 (+0.50z) | norm 1.5000 (-2.00z) | lr 6.00e-04 | 12.50 ms | 31.2% MFU | 40960 tok/s"
    )


# The command


def test_the_command_trains_and_its_faults_are_one_line(folder, capsys):
    path = str(write_config(folder, "faults"))
    assert main(["train", path, "train.max_steps=4"]) == 0 and len(lines(folder / "faults")) == 4
    capsys.readouterr()
    for fault in ("train.max_step=4", "run.seed=1", "run.device=tpu", "train.dtype=tf32", "--depth 0"):
        assert main(["train", path, *fault.split()]) == 2, f"{fault} is accepted"
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and len(said) < 250, said


def test_after_a_signal_the_exit_code_is_the_shells(folder, monkeypatch):
    """A loop over seeds stops at it, and `train && eval` does not evaluate half a run. The checkpoint is there."""
    path = str(write_config(folder, "signal", train_max_steps=12))
    before_steps(monkeypatch, lambda run: run.step == 4 and signal.raise_signal(signal.SIGTERM))
    assert main(["train", path]) == 128 + signal.SIGTERM
    assert checkpoint.latest(folder / "signal").name == "step_000005"
    monkeypatch.undo()
    (folder / "signal/stop").touch()
    assert main(["train", path]) == 1, "a script must not take it for a finished run"
    assert main(["train", path]) == 0 and len(lines(folder / "signal")) == 12


@pytest.mark.slow
def test_overfit_learns_one_batch_by_heart(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(story.text for story in stories(300)), encoding="utf-8")
    mine = [f"data.source={text}", f"data.dir={tmp_path}/data", "data.tokenizer=300", f"run.dir={tmp_path}"]
    assert main(["train", "overfit", *mine, "run.device=cpu"]) == 0
    told = losses(tmp_path)
    assert len(told) == 200 and told[0] > 5 and told[-1] < 0.05, f"the last loss is {told[-1]}"


def test_help_lists_every_key_with_its_meaning(capsys):
    assert main(["train", "--help"]) == 0
    said = capsys.readouterr().out
    mute = [key for key in keys() if not re.search(rf"^  {re.escape(key)}=.*  \S", said, re.M)]
    assert not mute, f"keys that are not there, or have no meaning: {', '.join(mute)}"
