import json
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_run import before_steps, lines, losses, poisoned_steps, stopped_after, weights

from nanogpt import checkpoint, trainer
from nanogpt.cli import main
from nanogpt.labs.long_run import spikes
from nanogpt.metrics import read_metrics
from nanogpt.sampling import complete
from nanogpt.sampling import load as load_for_sampling
from nanogpt.weights import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


# The loop


def test_the_loss_falls_and_what_was_promised_is_written(config):
    run = trainer.train_config(config(train_max_steps=40, eval_every=20, eval_sample_every=20))
    told = lines(run.folder)
    assert [line["step"] for line in told] == list(range(1, 41)), "a line for each step"
    assert np.mean(losses(run.folder)[-5:]) < losses(run.folder)[0] - 1, "the loss does not fall"
    assert [line["step"] for line in told if "val_loss" in line] == [20, 40], "validated at other steps"
    first = read_metrics(run.folder)[0]
    assert {"step", "loss", "norm", "lr", "ms", "tokens_per_s"} <= set(first), "a key is missing"
    model, tokenizer = load_for_sampling(str(run.kept))
    sample = (run.folder / "samples/step_000040.txt").read_text()
    assert sample == "the cat" + complete(model, tokenizer, "the cat", 200), "not the sample of these weights"


def test_a_step_is_saved_before_it_is_evaluated(config, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "evaluate", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            trainer.train_config(config(eval_every=6))
    assert checkpoint.latest(config().run.dir).name == "step_000006", "what was trained is lost"
    trainer.train_config(config(eval_every=6))
    assert [line["step"] for line in lines(config().run.dir) if "val_loss" in line] == [6, 12]


AGAIN = [(True, "wsd"), (False, "constant")]


@pytest.mark.parametrize(
    ("documents", "schedule"),
    [(True, "cosine"), *(pytest.param(*each, marks=pytest.mark.weekly) for each in AGAIN)],
)
def test_a_run_stopped_anywhere_ends_the_same_after_the_end_of_an_epoch_too(
    config, tmp_path, monkeypatch, documents, schedule
):
    options = dict(data_documents=documents, optim_schedule=schedule, train_max_steps=16, eval_every=8)
    run = trainer.train_config(whole := config(run_dir=str(tmp_path / "whole"), **options))
    assert run.stream.epoch >= 1, "no epoch has ended: the test says nothing about that"
    stopped = config(run_dir=str(tmp_path / "stopped"), **options)
    for step in (3, 8, 13):
        stopped_after(stopped, step, monkeypatch)
    trainer.train_config(stopped)
    assert lines(stopped.run.dir) == lines(whole.run.dir), "the losses differ"
    assert weights(stopped.run.dir) == weights(whole.run.dir), "the weights differ"


def test_windows_and_counts_survive(config, tmp_path, monkeypatch):
    monkeypatch.setattr(spikes, "WINDOW", 4)
    whole = config(run_dir=str(tmp_path / "whole"), train_skip_spikes=9)
    with monkeypatch.context() as patch:
        poisoned_steps(patch, {3: math.nan})
        trainer.train_config(whole)
    poisoned_steps(monkeypatch, {3: math.nan})
    stopped_after(config(train_skip_spikes=9), 7, monkeypatch)
    run = trainer.train_config(config(train_skip_spikes=9))
    assert lines(whole.run.dir)[-1]["loss_z"] is not None, "no z-score: the test says nothing about windows"
    assert lines(run.folder) == lines(whole.run.dir), "z-scores or learning rates differ after resuming"
    assert run.updates == 11 and run.skipped == {"not finite": 1}, "the counts begin again"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_run_resumes_bit_for_bit_and_samples_on_the_way(config, tmp_path, monkeypatch):
    options = dict(train_compile=True, eval_every=4, eval_sample_every=4)
    trainer.train_config(whole := config(run_dir=str(tmp_path / "whole"), **options))
    stopped_after(config(**options), 6, monkeypatch)
    trainer.train_config(config(**options))
    assert lines(config().run.dir) == lines(whole.run.dir), "the losses differ"
    trainer.train_config(quiet := config(run_dir=str(tmp_path / "quiet"), train_compile=True))
    assert losses(quiet.run.dir) == losses(whole.run.dir), "evaluation changes a compiled run"
    assert (tmp_path / "run/samples/step_000012.txt").exists()


# Steps that are not taken


def test_so_many_bad_steps_in_a_row_end_the_run_and_name_the_last_good_checkpoint(config, poison):
    poison(dict.fromkeys((3, 6, 7, 8, 9), math.nan))
    with pytest.raises(FloatingPointError) as error:
        trainer.train_config(config(train_bad_steps=3))
    said = str(error.value)
    assert "step 8: loss or gradient were not finite 3 times in a row" in said, said
    assert "the last good checkpoint is" in said and "step_000004" in said, said
    assert len(lines(config().run.dir)) == 8, "the last line is missing"


# Going on


def test_a_finished_run_stays_finished(config, capsys):
    trainer.train_config(config(eval_every=6))
    before = lines(config().run.dir)
    assert trainer.train_config(config(eval_every=6)).step == 12 and lines(config().run.dir) == before


def test_the_best_checkpoint_outlives_the_last_ones_and_nan_is_never_the_best(config, monkeypatch):
    monkeypatch.setattr(trainer, "evaluate", Mock(side_effect=[math.nan, 1.0, 2.0, 4.0, math.nan, 6.0]))
    run = trainer.train_config(config(eval_every=2, run_keep=2))
    assert run.best == {"step": 4, "val_loss": 1.0}
    assert [int(p.name[5:]) for p in checkpoint.checkpoints(run.folder)] == [4, 10, 12]
    told = [line["val_loss"] for line in lines(run.folder) if "val_loss" in line]
    assert told == [None, 1.0, 2.0, 4.0, None, 6.0], "NaN is no JSON"
    assert checkpoint.pick_checkpoint(run.folder / "best").name == "step_000004"


def test_a_run_that_is_stopped_in_its_last_step_is_finished_with_its_last_look(config, monkeypatch):
    run = stopped_after(config(eval_every=5), 12, monkeypatch)
    assert trainer.exit_code(run) == 0
    assert [line["step"] for line in lines(run.folder) if "val_loss" in line] == [5, 10, 12]


# Beside the screen


@pytest.mark.slow
def test_tensorboard_gets_the_same_numbers_once_each_where_a_run_goes_on_too(config, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stopped_after(config(run_tensorboard=True), 6, monkeypatch)
    run = trainer.train_config(config(run_tensorboard=True))
    board = EventAccumulator(str(run.folder / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == list(range(1, 13))
    assert np.allclose([event.value for event in board.Scalars("loss")], losses(run.folder), rtol=1e-6)


def test_wandb_gets_the_same_numbers_and_a_run_stays_one_run(config, monkeypatch, tmp_path):
    sent = {}
    page = SimpleNamespace(log=lambda line, step: sent.update({step: line["loss"]}))
    fake = SimpleNamespace(init=lambda **options: sent.update(options) or page)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = trainer.train_config(config(run_wandb=True))
    assert [sent[step] for step in range(1, 13)] == losses(run.folder), "other losses are sent"
    assert sent["name"] == "run" and sent["resume"] == "allow", "a resumed run would be a new one"
    first = sent["id"]
    trainer.train_config(config(run_wandb=True))
    assert sent["id"] == first, "a resumed run is another one"
    trainer.train_config(config(run_wandb=True, run_dir=str(tmp_path / "b/run")))
    assert sent["id"] != first and sent["name"] == "run", "two folders of one name are one run"


@pytest.mark.parametrize("steps, rises", [(12, False), (24, True)])
def test_a_rate_that_rises_where_a_run_goes_on_is_said(config, monkeypatch, capsys, steps, rises):
    """A cosine that was made longer has another rate from here on, and the curve belongs to neither."""
    stopped_after(config(), 8, monkeypatch)
    capsys.readouterr()
    trainer.train_config(config(train_max_steps=steps))
    said = re.search(r"the learning rate was (\S+) and is (\S+) from here on", capsys.readouterr().out)
    assert bool(said) == rises
    if rises:  # the last rate of the old schedule, and the next one of the new
        rates = [trainer.learning_rate(config(), 7), trainer.learning_rate(config(train_max_steps=steps), 8)]
        assert [float(said[1]), float(said[2])] == pytest.approx(rates, rel=0.01)


# The command


def test_each_start_is_noted_with_its_software_and_command(config):
    trainer.train_config(config(run_minutes=1e-9), "first")
    run = trainer.train_config(config(), "second")
    noted = [json.loads(line) for line in (run.folder / "started.jsonl").read_text().splitlines()]
    assert [line["command"] for line in noted] == ["first", "second"]
    assert noted[0]["step"] == 0 < noted[1]["step"] and noted[0]["torch"] == torch.__version__


def test_a_runs_folder_is_its_newest_checkpoint_and_best_its_best(config, capsys):
    run = trainer.train_config(config(eval_every=4, run_checkpoint_every=4, run_keep=9))
    assert f"sample --checkpoint {run.folder}/best\n" in capsys.readouterr().out
    said = lines(run.folder)
    said[7]["val_loss"] = 0.1  # as if the middle one had been the best: newest and best must differ
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    best = run.folder / "step_000008"
    assert checkpoint.pick_checkpoint(run.folder) == run.kept == run.folder / "step_000012"
    assert checkpoint.pick_checkpoint(run.folder / "best") == best
    for other in (best, Path("openai-community/gpt2")):
        assert checkpoint.pick_checkpoint(other) == other
    for place, same in ((run.folder, run.kept), (run.folder / "best", best)):
        model, tokenizer = load_for_sampling(str(checkpoint.pick_checkpoint(place)))
        assert all(map(torch.equal, model.parameters(), load_model(same).parameters())) and tokenizer
    never = trainer.train_config(config(eval_every=0, run_dir=str(run.folder.parent / "never")))
    assert f"sample --checkpoint {never.folder}\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="was never validated"):
        checkpoint.pick_checkpoint(never.folder / "best")


def test_a_runs_folder_is_enough_to_go_on_wherever_it_is_now(config, tmp_path, monkeypatch):
    stopped_after(config(), 5, monkeypatch)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["train", str(moved)]) == 0
    trainer.train_config(whole := config(run_dir=str(tmp_path / "whole")))
    assert lines(moved) == lines(whole.run.dir), "the run that went on by its folder ends otherwise"


def test_between_two_checkpoints_as_many_stay_as_are_to_be_kept(config, monkeypatch):
    """The newest one is not deleted by the next step, before another one is written."""
    stopped_after(config(run_keep=1, run_checkpoint_every=4), 6, monkeypatch)
    seen = []
    before_steps(monkeypatch, lambda run: seen.append(len(checkpoint.checkpoints(run.folder))))
    trainer.train_config(config(run_keep=1, run_checkpoint_every=4))
    assert seen == [1] * 6
