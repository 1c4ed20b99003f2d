import json
import math
import re
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from small_run import lines, small, weights, write_text

from nanogpt.cli import main
from nanogpt.corpora.corpus import stories
from nanogpt.gpt.precision import LossScaler
from nanogpt.gpt.sample import complete
from nanogpt.gpt.sample import load as load_for_sampling
from nanogpt.gpt.weights import load_model
from nanogpt.run import assemble, checkpoint, looks, trainer
from nanogpt.run import metrics as runs
from nanogpt.run.config import config_dict, keys
from nanogpt.text.shards import read_shard

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trainer")
    write_text(folder / "text.txt", paragraphs=60)
    return folder


@pytest.fixture
def config(folder, tmp_path):
    """A run of 12 steps without anything on the way."""
    return partial(
        small, folder, run_dir=str(tmp_path / "run"), train_max_steps=12, eval_every=0, eval_sample_every=0
    )


def losses(run) -> list[float]:
    return [line["loss"] for line in lines(run)]


def stopped_after(config, step: int, monkeypatch) -> None:
    """Train, and stop after a step, as by Ctrl-C."""
    one_step = trainer.one_step

    def stopping(run):
        if run.step == step - 1:
            (run.folder / "stop").touch()
        return one_step(run)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "one_step", stopping)
        assert trainer.fit(config).step == step, "the run did not stop"


class Poisoned(torch.nn.Module):
    """A model whose loss, and with it every gradient, is so many times too large."""

    def __init__(self, model, factor: float):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x, y):
        logits, loss = self.model(x, y)
        return logits, loss * self.factor


@pytest.fixture
def poison(monkeypatch):
    """poison({5: math.nan}): the fifth step that the process makes has such a loss."""

    def poison(factors: dict[int, float]) -> None:
        step, made = trainer.train_step, []

        def poisoned(model, *rest, **named):
            made.append(1)
            return step(Poisoned(model, factors.get(len(made), 1.0)), *rest, **named)

        monkeypatch.setattr(trainer, "train_step", poisoned)

    return poison


# The loop


def test_the_loss_falls_and_what_was_promised_is_written(config, capsys):
    run = trainer.fit(config(train_max_steps=40, eval_every=20, eval_sample_every=20, run_log_every=10))
    told, said = lines(run.folder), capsys.readouterr().out
    assert [line["step"] for line in told] == list(range(1, 41)), "a line for each step"
    assert np.mean(losses(run.folder)[-5:]) < losses(run.folder)[0] - 1, "the loss does not fall"
    assert [line["step"] for line in told if "val_loss" in line] == [20, 40], "validated at other steps"
    whole = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[0])
    assert {"step", "loss", "norm", "lr", "ms", "tokens_per_s"} <= set(whole), "a key is missing"
    assert len(re.findall(r"^step +\d+/40 ", said, re.M)) == 4, f"not every 10th step is shown: {said}"
    assert re.search(r"evaluation \d+\.\d s \(\d+\.\d%\)", said), "what the evaluation cost is not told"
    assert re.search(r"checkpoints \d+\.\d s \(\d+\.\d%\)", said), "what the checkpoints cost is not told"
    model, tokenizer = load_for_sampling(str(run.kept))
    sample = (run.folder / "samples/step_000040.txt").read_text()
    assert sample == "the cat" + complete(model, tokenizer, "the cat", 200), "not the sample of these weights"


def test_evaluation_and_samples_change_no_loss(config, tmp_path, monkeypatch):
    evaluate = looks.evaluate
    monkeypatch.setattr(
        looks, "evaluate", lambda *args, **options: evaluate(*args, **options) + 0 * torch.rand(()).item()
    )
    quiet, curious = config(), config(run_dir=str(tmp_path / "curious"), eval_every=2, eval_sample_every=3)
    trainer.fit(quiet)
    trainer.fit(curious)
    assert quiet.model.dropout > 0, "without dropout nothing is random, and this says nothing"
    assert losses(quiet.run.dir) == losses(curious.run.dir), "looking at the model changes its training"


def test_a_step_is_saved_before_it_is_evaluated(config, monkeypatch):
    def out_of_memory(*args, **options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(looks, "evaluate", out_of_memory)
        with pytest.raises(MemoryError):
            trainer.fit(config(eval_every=6))
    assert checkpoint.latest(config().run.dir).name == "step_000006", "what was trained is lost"
    trainer.fit(config(eval_every=6))
    assert [line["step"] for line in lines(config().run.dir) if "val_loss" in line] == [6, 12], (
        "not evaluated"
    )


@pytest.mark.slow
def test_nothing_draws_from_the_generators_that_are_not_saved(config):
    import random

    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    trainer.fit(config(eval_every=4, eval_sample_every=4))
    assert before == (random.getstate(), np.random.get_state()[1].tolist()), (
        "Python's or NumPy's generator was used: its state must be part of a checkpoint"
    )


SLOW = [(kind, schedule) for kind in (True, False) for schedule in ("wsd", "constant")] + [(False, "cosine")]


@pytest.mark.parametrize(
    ("documents", "schedule"),
    [(True, "cosine"), *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_a_run_stopped_anywhere_ends_the_same_after_the_end_of_an_epoch_too(
    config, tmp_path, monkeypatch, documents, schedule
):
    options = dict(data_documents=documents, optim_schedule=schedule, train_max_steps=16, eval_every=8)
    run = trainer.fit(whole := config(run_dir=str(tmp_path / "whole"), **options))
    assert run.stream.epoch >= 1, "no epoch has ended: the test says nothing about that"
    stopped = config(run_dir=str(tmp_path / "stopped"), **options)
    for step in (3, 8, 13):
        stopped_after(stopped, step, monkeypatch)
    trainer.fit(stopped)
    assert lines(stopped.run.dir) == lines(whole.run.dir), "the losses differ"
    assert weights(stopped.run.dir) == weights(whole.run.dir), "the weights differ"


def test_windows_and_counts_survive(config, tmp_path, monkeypatch, poison):
    monkeypatch.setattr(runs, "WINDOW", 4)
    poison({3: math.nan})
    trainer.fit(whole := config(run_dir=str(tmp_path / "whole")))
    poison({})
    monkeypatch.undo()
    monkeypatch.setattr(runs, "WINDOW", 4)
    poison({3: math.nan})
    stopped_after(config(), 7, monkeypatch)
    run = trainer.fit(config())
    assert lines(whole.run.dir)[-1]["loss_z"] is not None, "no z-score: the test says nothing about windows"
    assert lines(run.folder) == lines(whole.run.dir), "z-scores or learning rates differ after resuming"
    assert run.updates == 11 and run.skipped == {"not finite": 1}, "the counts begin again"


@pytest.mark.slow
def test_micro_batches_are_accumulated(config, tmp_path):
    trainer.fit(config(model_dropout=0.0))
    trainer.fit(config(model_dropout=0.0, run_dir=str(tmp_path / "one"), train_micro_batch=12))
    assert np.allclose(losses(tmp_path / "run"), losses(tmp_path / "one"), atol=1e-4), (
        "three micro-batches of 4 rows are not one of 12"
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_run_resumes_bit_for_bit_and_samples_on_the_way(config, tmp_path, monkeypatch):
    options = dict(train_compile=True, eval_every=4, eval_sample_every=4)
    trainer.fit(whole := config(run_dir=str(tmp_path / "whole"), **options))
    stopped_after(config(**options), 6, monkeypatch)
    trainer.fit(config(**options))
    assert lines(config().run.dir) == lines(whole.run.dir), "the losses differ"
    trainer.fit(quiet := config(run_dir=str(tmp_path / "quiet"), train_compile=True))
    assert losses(quiet.run.dir) == losses(whole.run.dir), "evaluation changes a compiled run"
    assert (tmp_path / "run/samples/step_000012.txt").exists()


# Steps that are not taken


def test_a_step_that_is_not_finite_is_skipped_counted_and_its_batch_kept(config, tmp_path, poison):
    poison({5: math.nan, 6: math.inf, 9: math.nan})
    run = trainer.fit(config(optim_schedule="constant", optim_warmup=10))
    told = lines(run.folder)
    assert [line["step"] for line in told if "skipped" in line] == [5, 6, 9], "other steps were skipped"
    assert told[4]["loss"] is None and told[4]["norm"] is None, "NaN is no JSON"
    assert run.skipped == {"not finite": 3} and run.updates == 9 and run.bad == 0
    rates = [round(line["lr"] / 1e-3) for line in told]
    assert rates == [1, 2, 3, 4, 5, 5, 5, 6, 7, 7, 8, 9], "the learning rate advances with what was not done"
    assert all(p.isfinite().all() for p in run.model.parameters()), "the weights are spoilt"
    ids = read_shard(run.folder / "skipped/step_000005.bin").reshape(12, 16)
    stream = assemble.assemble(config(run_dir=str(tmp_path / "again"))).stream
    batches = [stream.next_batch()[0] for _ in range(15)][-3:]
    assert np.array_equal(ids, torch.cat(batches).numpy()), "not the batch of step 5"


def test_so_many_bad_steps_in_a_row_end_the_run_and_name_the_last_good_checkpoint(config, poison):
    poison(dict.fromkeys((3, 6, 7, 8, 9), math.nan))
    with pytest.raises(FloatingPointError) as error:
        trainer.fit(config(train_bad_steps=3))
    said = str(error.value)
    assert "step 8: loss or gradient were not finite 3 times in a row" in said, said
    assert "the last good checkpoint is" in said and "step_000004" in said, said
    assert len(lines(config().run.dir)) == 8, "the last line is missing"


def test_an_overflow_of_float16_is_no_error(config, monkeypatch):
    """Megatron's log: 21 of the first 30 iterations skipped, and the rate has made 9 of its 10 steps of warm-up."""
    monkeypatch.setattr(assemble, "LossScaler", lambda: LossScaler(scale=2.0**40))
    run = trainer.fit(
        config(train_dtype="fp16", train_max_steps=30, train_bad_steps=2, optim_schedule="constant")
    )
    told = lines(run.folder)
    skipped = [line["step"] for line in told if line.get("skipped") == "overflow"]
    assert skipped[:9] == list(range(1, 10)), f"skipped: {skipped}"
    assert run.skipped == {"overflow": len(skipped)} and run.updates == 30 - len(skipped) > 3
    assert {line["lr"] for line in told[:9]} == {told[0]["lr"]} and max(
        line["lr"] for line in told
    ) == 0.01, "the learning rate advances with updates that were not made"
    assert run.scaler.scale == 2.0 ** (40 - len(skipped)), "the scale is not halved"
    assert not (run.folder / "skipped").exists(), "an overflow is no batch to look at"


def test_a_spike_is_skipped_only_if_asked_and_its_batch_kept(config, tmp_path, monkeypatch, poison):
    monkeypatch.setattr(runs, "WINDOW", 8)
    poison({10: 100.0, 22: 100.0})
    kept = trainer.fit(config())
    assert lines(kept.folder)[9]["loss_z"] > 2.4 and not kept.skipped, "a spike is skipped unasked"
    run = trainer.fit(config(run_dir=str(tmp_path / "b"), train_skip_spikes=2.4))
    assert [line["step"] for line in lines(run.folder) if line.get("skipped") == "spike"] == [10]
    assert run.updates == 11 and (run.folder / "skipped/step_000010.bin").exists(), "its batch is not kept"


# Going on


def test_a_torn_last_line_and_lines_after_the_checkpoint_are_written_again(config, tmp_path, monkeypatch):
    trainer.fit(whole := config(run_dir=str(tmp_path / "whole")))
    stopped_after(config(), 8, monkeypatch)
    path = tmp_path / "run/metrics.jsonl"
    whole_lines = Path(whole.run.dir, "metrics.jsonl").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole_lines[:10]) + whole_lines[10][:25])
    trainer.fit(config())
    assert lines(config().run.dir) == lines(whole.run.dir), "the file is not the uninterrupted run's"


@pytest.mark.slow
def test_what_may_change_is_said_and_done(config, monkeypatch, capsys):
    stopped_after(config(), 4, monkeypatch)
    run = trainer.fit(config(train_max_steps=14, eval_every=7, run_keep=1))
    said = capsys.readouterr().out
    assert "train.max_steps=14 (was 12), eval.every=7 (was 0), run.keep=1 (was 2)" in said, said
    assert run.step == 14 and [p.name for p in checkpoint.checkpoints(run.folder)] == ["step_000014"]


def test_a_finished_run_stays_finished(config, capsys):
    trainer.fit(config(eval_every=6))
    before = lines(config().run.dir)
    assert trainer.fit(config(eval_every=6)).step == 12 and lines(config().run.dir) == before


def test_the_best_checkpoint_outlives_the_last_ones(config, monkeypatch):
    values = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0])
    monkeypatch.setattr(looks, "evaluate", lambda *args, **options: next(values))
    run = trainer.fit(config(eval_every=2, run_keep=2))
    assert run.best == {"step": 4, "val_loss": 1.0}
    assert [int(p.name[5:]) for p in checkpoint.checkpoints(run.folder)] == [4, 10, 12], (
        "not best and last two"
    )


# Beside the screen


@pytest.mark.slow
def test_tensorboard_gets_the_same_numbers(config):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = trainer.fit(config(run_tensorboard=True))
    board = EventAccumulator(str(run.folder / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == list(range(1, 13))
    assert np.allclose([event.value for event in board.Scalars("loss")], losses(run.folder), rtol=1e-6)


def test_wandb_gets_the_same_numbers_or_is_asked_for_in_one_line(config, monkeypatch, tmp_path, capsys):
    sent = {}
    fake = SimpleNamespace(
        init=lambda **options: sent.update(options), log=lambda line, step: sent.update({step: line["loss"]})
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = trainer.fit(config(run_wandb=True))
    assert [sent[step] for step in range(1, 13)] == losses(run.folder), "other losses are sent"
    assert sent["name"] == "run" and sent["resume"] == "allow", "a resumed run would be a new one"
    first = sent["id"]
    trainer.fit(config(run_wandb=True))
    assert sent["id"] == first, "a resumed run is another one"
    trainer.fit(config(run_wandb=True, run_dir=str(tmp_path / "b/run")))
    assert sent["id"] != first and sent["name"] == "run", "two folders of one name are one run"
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(config_dict(config(run_dir=str(tmp_path / "x"), run_wandb=True)))
    )
    assert main(["train", str(tmp_path / "c.yaml")]) == 2
    assert "wandb" in (said := capsys.readouterr().err) and said.count("\n") == 1, said


def test_a_terminal_shows_every_step_in_one_place(config, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    trainer.fit(config(run_log_every=6))
    said = capsys.readouterr().out
    assert said.count("\r") == 1 + 12 and len(re.findall(r"^.*step .*$", said, re.M)) == 2 + 0, said


def test_a_sample_and_the_end_stand_on_lines_of_their_own_on_a_terminal(config, monkeypatch, capsys):
    """A step's line that does not stay is overwritten, not continued."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    one_step = trainer.one_step
    monkeypatch.setattr(
        trainer, "one_step", lambda run: (run.step == 4 and (run.folder / "stop").touch()) or one_step(run)
    )
    trainer.fit(config(run_log_every=100, eval_sample_every=3))
    rows = [row for line in capsys.readouterr().out.split("\n") for row in line.split("\r\033[K")]
    assert sum(row.startswith("--- step 3: ") for row in rows) == 1, rows
    assert sum(row.startswith("stopped by the file") for row in rows) == 1, rows


def test_a_run_says_what_it_is_and_how_long_it_will_take(config, capsys):
    run = trainer.fit(config(run_log_every=4))
    first, *steps = capsys.readouterr().out.splitlines()
    n = sum(p.numel() for p in run.model.parameters())
    assert f"{n:,} parameters in float32 on cpu; 12 steps of 192 tokens, 2,304 in all" in first, first
    assert [bool(re.search(r"\| \d+\.\d (s|min) left$", line)) for line in steps[:3]] == [
        True,
        True,
        False,
    ], steps


@pytest.mark.parametrize("steps, rises", [(12, False), (24, True)])
def test_a_rate_that_rises_where_a_run_goes_on_is_said(config, monkeypatch, capsys, steps, rises):
    """A cosine that was made longer has another rate from here on, and the curve belongs to neither."""
    stopped_after(config(), 8, monkeypatch)
    capsys.readouterr()
    trainer.fit(config(train_max_steps=steps))
    said = re.search(r"the learning rate was (\S+) and is (\S+) from here on", capsys.readouterr().out)
    assert bool(said) == rises
    if rises:  # the last rate of the old schedule, and the next one of the new
        rates = [trainer.learning_rate(config(), 7), trainer.learning_rate(config(train_max_steps=steps), 8)]
        assert [float(said[1]), float(said[2])] == pytest.approx(rates, rel=0.01)


# The command


def written(path: Path, config) -> str:
    path.write_text(yaml.safe_dump(config_dict(config)))
    return str(path)


def test_the_command_trains_and_its_faults_are_one_line(config, tmp_path, capsys):
    path = written(tmp_path / "c.yaml", config())
    assert main(["train", path, "train.max_steps=4"]) == 0 and len(lines(tmp_path / "run")) == 4
    capsys.readouterr()
    for fault in (
        ["train.max_step=4"],
        ["run.seed=1"],
        ["run.device=tpu"],
        ["train.dtype=tf32"],
        ["--depth", "0"],
    ):
        assert main(["train", path, *fault]) == 2, f"{fault} is accepted"
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and len(said) < 250, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_exit_code_is_the_shells(config, tmp_path, monkeypatch, number, capsys):
    """A loop over seeds stops at it, and `train && eval` does not evaluate half a run. The checkpoint is there."""
    one_step, path = trainer.one_step, written(tmp_path / "c.yaml", config())
    monkeypatch.setattr(
        trainer, "one_step", lambda run: (run.step == 4 and signal.raise_signal(number)) or one_step(run)
    )
    assert main(["train", path]) == 128 + number
    assert checkpoint.latest(config().run.dir).name == "step_000005"
    monkeypatch.undo()
    (Path(config().run.dir) / "stop").touch()
    assert main(["train", path]) == 0, "who asks by a file has asked for just that"
    assert main(["train", path]) == 0 and len(lines(config().run.dir)) == 12


@pytest.mark.slow
def test_tinyshakespeare_trains_by_one_command_without_gpt2s_vocabulary(
    tinyshakespeare, tmp_path, monkeypatch
):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.chdir(tmp_path)
    call = ["train", "shakespeare", f"data.source={tinyshakespeare}", "train.max_steps=3", "run.log_every=1"]
    assert main([*call, "optim.warmup=1", "eval.tokens=2000", "run.device=cpu"]) == 0
    assert len(lines(tmp_path / "runs/shakespeare")) == 3


def test_a_mistake_is_one_line_of_the_command_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny", "optim.lrr=1e-3"]) == 2
    assert (
        capsys.readouterr().err == "train: command line: there is no key optim.lrr; did you mean optim.lr?\n"
    )


@pytest.mark.slow
def test_overfit_learns_one_batch_by_heart(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(story.text for story in stories(300)), encoding="utf-8")
    mine = [
        f"data.source={text}",
        f"data.dir={tmp_path / 'data'}",
        "data.tokenizer=300",
        f"run.dir={tmp_path}",
    ]
    assert main(["train", "overfit", *mine, "run.device=cpu"]) == 0
    told = losses(tmp_path)
    assert len(told) == 200 and told[0] > 5 and told[-1] < 0.05, f"the last loss is {told[-1]}"


def test_each_start_is_noted_with_its_software_and_command(config):
    trainer.fit(config(run_minutes=1e-9), "first")
    run = trainer.fit(config(), "second")
    noted = [json.loads(line) for line in (run.folder / "started.jsonl").read_text().splitlines()]
    assert [line["command"] for line in noted] == ["first", "second"]
    assert noted[0]["step"] == 0 < noted[1]["step"] and noted[0]["torch"] == torch.__version__


def test_a_runs_folder_is_its_newest_checkpoint_and_best_its_best(config, capsys):
    run = trainer.fit(config(eval_every=4, run_checkpoint_every=4, run_keep=9))
    assert f"sample --checkpoint {run.folder}/best\n" in capsys.readouterr().out
    said = lines(run.folder)
    for line in said:
        if line["step"] == 8:
            line["val_loss"] = 0.1  # as if the middle one had been the best: newest and best must differ
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    best = run.folder / "step_000008"
    assert checkpoint.chosen(run.folder) == run.kept == run.folder / "step_000012"
    assert checkpoint.chosen(run.folder / "best") == best
    assert checkpoint.chosen(best) == best and checkpoint.chosen("openai-community/gpt2") == Path(
        "openai-community/gpt2"
    )
    for place, same in ((run.folder, run.kept), (run.folder / "best", best)):
        model, tokenizer = load_for_sampling(str(place))
        assert all(map(torch.equal, model.parameters(), load_model(same).parameters())) and tokenizer
    never = trainer.fit(config(eval_every=0, run_dir=str(run.folder.parent / "never")))
    assert f"sample --checkpoint {never.folder}\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="was never validated"):
        checkpoint.chosen(never.folder / "best")


def test_a_runs_folder_is_enough_to_go_on_wherever_it_is_now(config, tmp_path, monkeypatch):
    stopped_after(config(), 5, monkeypatch)
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    assert main(["train", str(moved)]) == 0
    trainer.fit(whole := config(run_dir=str(tmp_path / "whole")))
    assert lines(moved) == lines(whole.run.dir), "the run that went on by its folder ends otherwise"


def test_help_lists_every_key_with_its_meaning(capsys):
    assert main(["train", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {key}=" in said for key in keys()), "a key is missing"
    lines = {line.partition("=")[0].strip(): line for line in said.splitlines() if line.startswith("  ")}
    mute = [key for key in keys() if "  " not in lines[key].strip()]
    assert not mute, f"keys without a meaning: {', '.join(mute)}"
    assert "\n  optim.clip=1.0  the longest gradient; null clips none\n" in said
