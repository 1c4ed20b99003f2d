"""The trainer on several ranks: one run, whatever their number; stopped, gone on with, refused, together."""

import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ranks import GLOO, in_ranks
from small_run import before_steps, lines, poisoned_steps, weights

from nanogpt import checkpoint, trainer
from nanogpt.cli import main
from nanogpt.config import load_config
from nanogpt.distributed import Ranks, my_documents
from nanogpt.files import alone_in
from nanogpt.labs.long_run.compare import verdict
from nanogpt.labs.parallel import agreement
from nanogpt.labs.plan.too_large import why_too_large
from nanogpt.metrics import read_metrics
from nanogpt.model import GPT, GPTConfig
from nanogpt.trainer import exit_code, held_loss, seed_step

pytestmark = [GLOO, pytest.mark.usefixtures("one_thread")]
BOUND = 2e-5  # nats, over 12 steps at a rate of 1e-2; measured 1e-6


@pytest.fixture
def config(config):
    """12 steps of 4 micro-batches of 4 rows, without dropout, evaluated every 6."""
    return partial(config, train_batch_tokens=256, model_dropout=0.0, eval_every=6)


def fit(ranks: Ranks, config) -> int:
    return trainer.train_config(config).step


def fit_and_stop(ranks: Ranks, config, step: int, who: int, how: str) -> int:
    """Train; at a step one rank gets a signal, or the file `stop` is made."""

    def stop(run):
        if run.step == step - 1 and ranks.rank == who:
            (run.folder / "stop").touch() if how == "file" else signal.raise_signal(signal.SIGTERM)

    before_steps(pytest.MonkeyPatch(), stop)
    return fit(ranks, config)


in_runs = partial(in_ranks, seconds=None)  # the trainer opens the group


def worst(a: str | Path, b: str | Path, name: str = "loss") -> float:
    return verdict(read_metrics(a), read_metrics(b), name)[0]


@pytest.fixture
def one(config, tmp_path) -> str:
    """The run of one process."""
    whole = config(run_dir=str(tmp_path / "one"))
    trainer.train_config(whole)
    return whole.run.dir


# The same run


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
@pytest.mark.parametrize("documents", [True, pytest.param(False, marks=pytest.mark.weekly)])
def test_any_number_of_ranks_is_the_same_run(size, documents, config, tmp_path):
    alone = config(run_dir=str(tmp_path / "one"), data_documents=documents)
    trainer.train_config(alone)
    several = config(data_documents=documents)
    assert in_runs(fit, size, several) == [12] * size
    for name in ("loss", "norm", "val_loss"):
        assert worst(alone.run.dir, several.run.dir, name) < BOUND, f"{name}: another run than one process's"
    assert worst(alone.run.dir, several.run.dir, "lr") == 0
    assert [line["step"] for line in lines(several.run.dir)] == list(range(1, 13))
    assert main(["compare", alone.run.dir, several.run.dir, "--bound", str(BOUND)]) == 0
    state = checkpoint.load_state(checkpoint.latest(several.run.dir))
    assert state["data"] == checkpoint.load_state(checkpoint.latest(alone.run.dir))["data"]


@pytest.mark.parametrize(
    ("first", "then"),
    [(2, 1), *(pytest.param(*each, marks=pytest.mark.weekly) for each in [(4, 2), (4, 1), (1, 4)])],
)
def test_a_checkpoint_goes_on_with_another_number_of_ranks(first, then, config, one):
    stopped = config()
    assert in_runs(fit_and_stop, first, stopped, 5, 0, "file") == [5] * first
    assert in_runs(fit, then, stopped) == [12] * then
    assert worst(one, stopped.run.dir) < BOUND, "the curve has a seam"
    assert len(lines(stopped.run.dir)) == 12


def test_the_same_number_goes_on_bit_for_bit_with_dropout_too(config, tmp_path):
    whole, stopped = config(model_dropout=0.2, run_dir=str(tmp_path / "whole")), config(model_dropout=0.2)
    in_runs(fit, 2, whole)
    in_runs(fit_and_stop, 2, stopped, 5, 0, "file")
    in_runs(fit, 2, stopped)
    assert lines(whole.run.dir) == lines(stopped.run.dir), "the losses differ"
    assert weights(whole.run.dir) == weights(stopped.run.dir), "the weights differ"


# Stopping


@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.weekly)])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(who, config):
    assert in_runs(fit_and_stop, 2, config(), 7, who, "signal") == [7, 7]
    assert checkpoint.latest(config().run.dir).name == "step_000007"


def stop_with_a_slow_disk(ranks: Ranks, config) -> str | None:
    """Rank 1 gets a signal, and rank 0 takes a second to write; the newest checkpoint when this rank leaves the run."""
    save = trainer.save
    trainer.save = lambda *args: (time.sleep(1.0), save(*args))
    fit_and_stop(ranks, config, 7, 1, "signal")
    newest = checkpoint.latest(config.run.dir)
    return newest and newest.name


def test_no_rank_leaves_before_the_checkpoint_is_written(config):
    """torchrun gives the others 30 s when a rank has ended, and then kills them."""
    assert in_runs(stop_with_a_slow_disk, 2, config()) == ["step_000007"] * 2


def nan_on_rank_1(ranks: Ranks, config) -> tuple:
    """Rank 1's loss is NaN in step 5."""
    poisoned_steps(pytest.MonkeyPatch(), {5: float("nan")} if ranks.rank == 1 else {})
    run = trainer.train_config(config)
    return run.updates, dict(run.skipped)


@pytest.mark.slow
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(config):
    """A rank that skipped alone would have other weights from then on."""
    assert in_runs(nan_on_rank_1, 2, config()) == [(11, {"not finite": 1})] * 2
    kept = sorted(path.name for path in Path(config().run.dir, "skipped").iterdir())
    assert kept == ["step_000005.bin", "step_000005.rank1.bin"], "the batch that did it is not kept whole"


# Refusing


def fit_differently(ranks: Ranks, config, other) -> None:
    trainer.train_config(other if ranks.rank == 1 else config)


@pytest.mark.parametrize(
    "change", [{"optim_lr": 2e-2}, pytest.param({"run_dir": "elsewhere"}, marks=pytest.mark.weekly)]
)
def test_a_rank_with_another_configuration_is_refused_at_the_start(change, config):
    for result in in_runs(fit_differently, 2, config(), config(**change)):
        assert isinstance(result, ValueError), result
        assert "rank 1 has another configuration than rank 0" in str(result)
    assert not list(Path(config().run.dir).glob("step_*")), "steps were made"


def fit_with_other_files(ranks: Ranks, config, what: str) -> None:
    if ranks.rank == 1 and what == "code":
        agreement.code_hash = lambda: "0ther"
    if ranks.rank == 1 and what == "checkpoint":
        trainer.latest = lambda folder: None
    trainer.train_config(config)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["code", "checkpoint"])
def test_a_rank_with_other_code_or_another_checkpoint_is_refused(what, config):
    if what == "checkpoint":
        trainer.train_config(config(train_max_steps=4))
    for result in in_runs(fit_with_other_files, 2, config(), what):
        assert isinstance(result, ValueError), result
        assert f"rank 1 has another {what} than rank 0" in str(result)


def test_a_batch_that_cannot_be_dealt_is_one_sentence(config):
    for result in in_runs(fit, 3, config()):
        assert "train.batch_tokens=256" in str(result) and "3 ranks" in str(result), result


def test_another_trainer_in_the_folder_is_refused_by_all(config):
    with alone_in(Path(config().run.dir)):
        first, second = in_runs(fit, 2, config())
    assert "another trainer writes into" in str(first)
    assert "rank 0 failed with ValueError" in str(second)


# Evaluation


def test_the_parts_of_an_evaluation_are_whole_documents_and_add_up():
    eot, generator = 280, np.random.default_rng(0)
    documents = [np.r_[eot, generator.integers(0, eot, n)] for n in generator.integers(1, 40, 23)]
    tokens = np.concatenate(documents).astype(np.uint16)
    for size in (1, 2, 5, 23, 30):
        parts = [my_documents(tokens, eot, Ranks(rank, rank, size)) for rank in range(size)]
        assert sum(len(part) - 1 for part in parts) == len(tokens) - 1, "a token is lost or counted twice"
        assert all(part[0] == eot for part in parts if len(part) > 1), "a document is cut"


def loss_of(ranks: Ranks, tokens, eot: int) -> float:
    shape = GPTConfig(block_size=16, vocab_size=eot + 1, n_layer=1, n_head=2, n_embd=16)
    model, held = GPT(shape, torch.Generator().manual_seed(0)), ([tokens, tokens[:9]], eot)
    return held_loss(SimpleNamespace(model=model, held=held, ranks=ranks, config=load_config("tiny")))


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_a_shared_evaluation_is_the_whole_one(size):
    tokens = np.random.default_rng(0).integers(0, 20, 300).astype(np.uint16)
    tokens[0] = 19
    whole = loss_of(Ranks(), tokens, 19)
    for loss in in_ranks(loss_of, size, tokens, 19):
        assert loss == pytest.approx(whole, abs=1e-6)


def test_dropout_differs_by_rank_and_step_and_is_left_alone_for_one_process():
    def drawn(ranks: Ranks, step: int) -> float:
        seed_step(0, step, SimpleNamespace(rank=ranks.rank, world_size=ranks.size))
        return torch.rand(()).item()

    several = [drawn(Ranks(rank, rank, 4), step) for rank in range(4) for step in range(3)]
    assert len(set(several)) == 12, "two ranks, or two steps, drop the same units"
    assert drawn(Ranks(1, 1, 4), 2) == several[5], "a run that goes on draws other numbers"
    torch.manual_seed(1)
    first = torch.rand(2)[1].item()
    torch.manual_seed(1)
    torch.rand(())
    assert drawn(Ranks(), 0) == first, "a run of one process is disturbed"


TOO_LARGE = [
    ["model.n_layer=1000000000"],
    ["model.block_size=1000000000000", "train.batch_tokens=4000000000000"],
    ["train.micro_batch=100000000", "train.batch_tokens=12800000000"],
]


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="this system does not say how much memory it has")
@pytest.mark.parametrize("asked", TOO_LARGE, ids=lambda asked: asked[0])
def test_what_no_memory_holds_is_refused_before_anything_is_made(asked, tmp_path, monkeypatch, capsys):
    """A billion layers were once built one after the other, until the machine had no memory left."""
    monkeypatch.setattr(trainer, "build_run", None)
    made = [f"run.dir={tmp_path}/run", f"data.dir={tmp_path}/data", "run.device=cpu"]
    assert main(["train", "tiny", *asked, *made]) == 2
    said = capsys.readouterr().err
    assert said.startswith("train: model.n_layer=") and asked[0] in said and said.count("\n") == 1, said
    assert re.search(r"need at least [\d,]+ GB a process .*; cpu has \d+ GB: lower the largest$", said), said
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="this system does not say how much memory it has")
def test_what_fits_is_not_refused():
    """A small model, and a large one whose state is cut over so many ranks that each has room."""
    cpu = torch.device("cpu")
    assert not why_too_large(load_config("tiny"), cpu, 1)
    large = load_config("tiny", ["model.n_layer=1000000", "model.n_embd=1024"])
    assert why_too_large(large, cpu, 1) and not why_too_large(large, cpu, 10**6)


@pytest.mark.parametrize("name, code", [("TORCHELASTIC_RUN_ID", 0), ("ELSEWHERE", 1)])
def test_under_torchrun_a_planned_stop_is_no_failure(monkeypatch, name, code):
    """torchrun would start the ranks again, and the run would go on."""
    monkeypatch.setenv(name, "none")
    half = SimpleNamespace(step=7, stopped="the file stop", config=load_config("tiny"))
    assert exit_code(half) == code
    half.stopped = "SIGTERM"
    assert exit_code(half) == 143
