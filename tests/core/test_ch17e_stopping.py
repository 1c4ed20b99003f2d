"""Asking a run to end: by a signal, a file, a time limit."""

import os
import signal
import time
from types import SimpleNamespace

import pytest
from small_run import before_steps, lines, small

from nanogpt import checkpoint, trainer
from nanogpt.trainer import exit_code

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="no SIGTERM to itself on Windows"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_the_step_end_and_saves_it(folder, tmp_path, number, monkeypatch, capsys):
    config = small(folder, run_dir=str(tmp_path / "run"), train_max_steps=12)
    handler = signal.getsignal(number)
    before_steps(monkeypatch, lambda run: run.step == 6 and signal.raise_signal(number))
    run = trainer.train_config(config, "python -m nanogpt train x")
    said = capsys.readouterr().out
    assert run.step == 7 and (tmp_path / "run/step_000007").is_dir(), "the step was not ended and saved"
    assert exit_code(run) == 128 + number, "not as the shell says it"
    assert f"stopped by {number.name} after step 7; to go on: python -m nanogpt train x" in said, said
    assert signal.getsignal(number) is handler, "the handler is not put back"
    monkeypatch.undo()
    trainer.train_config(config)
    trainer.train_config(whole := small(folder, run_dir=str(tmp_path / "whole"), train_max_steps=12))
    assert lines(config.run.dir) == lines(whole.run.dir), "the run that was stopped ends otherwise"


def test_a_second_signal_ends_the_run_at_once(folder, tmp_path, monkeypatch):
    def twice(run):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer, "one_step", twice)
    with pytest.raises(KeyboardInterrupt, match="there is no checkpoint yet"):
        trainer.train_config(small(folder, run_dir=str(tmp_path / "run")))


def test_the_time_limit_ends_the_run_with_a_checkpoint(folder, tmp_path, capsys):
    limits = {"run_minutes": 0.01, "train_max_steps": 100_000, "eval_every": 0}
    config, began = small(folder, run_dir=str(tmp_path / "run"), **limits), time.monotonic()
    run = trainer.train_config(config)
    assert time.monotonic() - began < 20 and 0 < run.step < 100_000, "it does not end in time"
    assert "stopped by run.minutes=0.01" in capsys.readouterr().out
    assert checkpoint.latest(run.folder).name == f"step_{run.step:06d}", "its last step is not saved"


@pytest.mark.parametrize(
    ("stopped", "step", "code"),
    [("SIGTERM", 7, 143), ("SIGINT", 7, 130), ("SIGTERM", 12, 0), ("the file stop", 7, 1), (None, 12, 0)],
)
def test_only_a_finished_run_has_exit_code_0(folder, stopped, step, code):
    run = SimpleNamespace(config=small(folder, train_max_steps=12), step=step, stopped=stopped)
    assert exit_code(run) == code
