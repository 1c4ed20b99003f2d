"""Adapters, a mixture and answers on two ranks: the same run as on one, also if it goes on with another number."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ranks import GLOO, in_ranks
from small_run import fine_tuning_folder, lines, small

from nanogpt import checkpoint, trainer
from nanogpt.config import Config, Lora
from nanogpt.labs.long_run.compare import verdict
from nanogpt.metrics import read_metrics

for lab in ("labs.tuning.adapters", "labs.tuning.answers", "labs.corpora.mixture"):
    pytest.importorskip(f"nanogpt.{lab}")  # of chapter 19c, which is optional

pytestmark = [GLOO, pytest.mark.usefixtures("one_thread")]
BOUND = 2e-5  # nats, over 12 steps
in_runs = partial(in_ranks, seconds=None)  # the trainer opens the group


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return fine_tuning_folder(tmp_path_factory.mktemp("fine-tuning"))


def run_of(folder: Path, name: str, **changes) -> Config:
    """12 steps of 4 micro-batches of 4 rows, without dropout, evaluated every 6, with all three keys."""
    said = {"train_max_steps": 12, "train_batch_tokens": 256, "model_dropout": 0.0, "eval_every": 6}
    said |= {"eval_sample_every": 0, "run_dir": str(folder / name), "data_answers_after": " saw"}
    said["data_mix"] = {str(folder / "data"): 3, str(folder / "other"): 1}
    return replace(small(folder, **(said | changes)), init_from=str(folder / "base"), lora=Lora(rank=2))


def fit(ranks, config: Config, stop: int | None = None) -> int:
    """Train; in step `stop` the file `stop` is made."""
    one_step = trainer.one_step

    def stopping(run):
        if run.step + 1 == stop and ranks.rank == 0:
            (run.folder / "stop").touch()
        return one_step(run)

    trainer.one_step = stopping
    return trainer.train_config(config).step


def same(a: Config, b: Config) -> None:
    """Each column of the two runs agrees; so does the place in the data."""
    one, two = read_metrics(a.run.dir), read_metrics(b.run.dir)
    columns = ["loss", "norm", "val_loss"] + [key for key in one[-1] if key.startswith("val_loss of")]
    for name in columns:
        apart, said = verdict(one, two, name)
        assert apart < BOUND, said
    assert [line["step"] for line in two] == list(range(1, 13)), "a line is there twice, or missing"
    states = [checkpoint.load_state(checkpoint.latest(config.run.dir)) for config in (a, b)]
    places = [state["data"]["position"] for state in states]
    assert places[0] == places[1] == 12 * 16, "the place in the data is not the row that both have come to"


def test_two_ranks_are_the_same_run(folder):
    alone, shared = run_of(folder, "one"), run_of(folder, "two")
    trainer.train_config(alone)
    assert in_runs(fit, 2, shared) == [12, 12]
    same(alone, shared)
    assert (checkpoint.latest(shared.run.dir) / "adapter.safetensors").exists()


@pytest.mark.slow
def test_it_goes_on_with_another_number_of_ranks(folder):
    alone, moved = run_of(folder, "never moved"), run_of(folder, "moved")
    trainer.train_config(alone)
    assert in_runs(fit, 2, moved, 5) == [5, 5]
    trainer.train_config(moved)
    same(alone, moved)


@pytest.mark.slow
def test_the_same_number_goes_on_bit_for_bit(folder):
    whole, stopped = (run_of(folder, name, model_dropout=0.2) for name in ("whole", "stopped"))
    assert in_runs(fit, 2, whole) == [12, 12]
    assert in_runs(fit, 2, stopped, 5) == [5, 5]
    assert in_runs(fit, 2, stopped) == [12, 12]
    assert lines(whole.run.dir) == lines(stopped.run.dir), "the losses differ"
    ends = [(checkpoint.latest(c.run.dir) / "adapter.safetensors").read_bytes() for c in (whole, stopped)]
    assert ends[0] == ends[1], "the adapters differ"
