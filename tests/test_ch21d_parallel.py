"""Chapter 21d: a run in any layout. The law: how a run is laid out over processes changes neither losses nor norms."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from ranks import in_ranks
from small_run import lines, small, weights, write_text

from nanogpt import checkpoint, trainer
from nanogpt.compare import verdict
from nanogpt.layout import Parallel
from nanogpt.runs import read_metrics
from nanogpt.weights import load_model

pytestmark = [
    pytest.mark.skipif(
        not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch without gloo"
    ),
    pytest.mark.usefixtures("one_thread"),
]
BOUND = 2e-5  # nats, over 8 steps at a rate of 1e-2: sums in another order, which Adam's division carries on
LAYOUTS = {
    "dp2": Parallel(dp=2),
    "shard2": Parallel(dp=2, shard=True),
    "tp2": Parallel(tp=2),
    "2x2": Parallel(dp=2, shard=True, tp=2),
    "2x2 copies": Parallel(dp=2, tp=2),
    "shard4": Parallel(dp=4, shard=True),
    "one": Parallel(),
}
SIZE = {"dp2": 2, "shard2": 2, "tp2": 2, "2x2": 4, "2x2 copies": 4, "shard4": 4, "one": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    write_text(folder / "text.txt", paragraphs=60)
    return folder


def config_of(folder: Path, run: Path, layout: str, **changes):
    """8 steps of 4 micro-batches of 4 rows, evaluated every 4."""
    changes = {
        "train_max_steps": 8,
        "train_batch_tokens": 256,
        "model_dropout": 0.0,
        "eval_every": 4,
    } | changes
    config = small(folder, run_dir=str(run), eval_sample_every=0, model_n_layer=2, **changes)
    return replace(config, parallel=LAYOUTS[layout])


@pytest.fixture(scope="module")
def one(folder, tmp_path_factory) -> str:
    """The run of one process."""
    run = tmp_path_factory.mktemp("one") / "run"
    in_ranks(fit, 1, config_of(folder, run, "one"), seconds=None)
    return str(run)


def fit(ranks, config) -> int:
    return trainer.fit(config).step


def fit_and_stop(ranks, config, step: int) -> int:
    """Train; at a step the file `stop` is made."""
    one_step = trainer.one_step

    def stopping(run):
        if run.step == step - 1 and ranks.rank == 0:
            (run.folder / "stop").touch()
        return one_step(run)

    trainer.one_step = stopping
    return trainer.fit(config).step


def train(layout: str, config, call=fit, *rest) -> list:
    config = replace(config, parallel=LAYOUTS[layout])
    done = in_ranks(call, SIZE[layout], config, *rest, seconds=None)  # the trainer opens the group
    assert len({str(each) for each in done}) == 1 and not isinstance(done[0], Exception), done
    return done[0]


def worst(a, b, name: str = "loss") -> float:
    apart, said = verdict(read_metrics(a), read_metrics(b), name)
    print(said)
    return apart


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("one", "dp2")])
def test_every_layout_is_the_same_run(layout, folder, tmp_path, one):
    config = config_of(folder, tmp_path / "run", layout)
    assert train(layout, config) == 8
    for name in ("loss", "norm", "val_loss"):
        assert worst(one, config.run.dir, name) < BOUND, f"{name}: {layout} is another run than one process"
    ours, theirs = (load_model(checkpoint.latest(run)).state_dict() for run in (config.run.dir, one))
    apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
    assert apart < 1e-3, f"a saved weight is {apart} away"


ON = [("2x2", "one"), ("shard4", "tp2"), ("tp2", "shard2"), ("one", "2x2"), ("2x2 copies", "dp2")]


@pytest.mark.parametrize(("first", "then"), ON)
def test_a_checkpoint_goes_on_in_another_layout(first, then, folder, tmp_path, one):
    config = config_of(folder, tmp_path / "run", first)
    assert train(first, config, fit_and_stop, 3) == 3
    assert train(then, config) == 8
    assert worst(one, config.run.dir) < BOUND, "the curve has a seam"


@pytest.mark.parametrize("layout", ["shard2", "tp2", "2x2"])
def test_the_same_layout_goes_on_bit_for_bit_with_dropout_too(layout, folder, tmp_path):
    run = partial(
        config_of, folder, layout=layout, model_dropout=0.0 if "tp" in layout or "x" in layout else 0.2
    )
    whole, stopped = run(tmp_path / "whole"), run(tmp_path / "stopped")
    train(layout, whole)
    train(layout, stopped, fit_and_stop, 3)
    train(layout, stopped)
    assert lines(whole.run.dir) == lines(stopped.run.dir), "the losses differ"
    assert weights(whole.run.dir) == weights(stopped.run.dir), "the weights differ"
