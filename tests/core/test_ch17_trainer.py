"""Chapter 17: the trainer of one process. The law: a run that was interrupted is the run that was not."""

import pytest
import simple_run
import torch
from simple_run import EVERY, LR, STEPS, lines

from nanogpt.metrics import read_metrics
from nanogpt.optim import cosine
from nanogpt.trainer import fit, one_step, resume
from nanogpt.training import train_step

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def new_run(data, tmp_path):
    return lambda name: simple_run.new_run(*data, tmp_path / name)


def test_the_trainer_makes_the_steps_that_chapter_07_makes_by_hand(new_run):
    run, plain = new_run("run"), new_run("plain")
    losses = []
    for step in range(STEPS):
        for group in plain.optimizer.param_groups:
            group["lr"] = LR * cosine(step, STEPS)
        losses.append(train_step(plain.model, plain.optimizer, [plain.stream.next_batch()], clip=1.0).item())
    made = read_metrics(fit(run).folder)
    assert [line["loss"] for line in made] == losses, "the trainer makes other steps than the loop"
    assert [line["lr"] for line in made] == [LR * cosine(step, STEPS) for step in range(STEPS)]
    assert losses[-1] < losses[0], "the loss does not fall"


def fit_until(run, stop: int) -> None:
    """Train, and interrupt the run, as Ctrl-C would, before the batch that follows step `stop`."""
    real, given = run.stream.next_batch, []

    def next_batch():
        if len(given) == stop:
            raise KeyboardInterrupt
        given.append(1)
        return real()

    run.stream.next_batch = next_batch
    with pytest.raises(KeyboardInterrupt):
        fit(run)
    run.stream.next_batch = real


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The run that was not interrupted."""
    return fit(simple_run.new_run(*data, tmp_path_factory.mktemp("runs") / "whole"))


@pytest.mark.parametrize("stop", [EVERY, EVERY + 1, 2 * EVERY - 1, STEPS - 1])
def test_interrupted_after_any_step_the_run_is_the_one_that_was_not(new_run, whole, stop, capsys):
    fit_until(new_run("broken"), stop)
    again = fit(new_run("broken"))
    assert lines(again.folder) == lines(whole.folder), "the lines differ"
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters())), "the weights differ"
    said = capsys.readouterr().out
    assert "a new run" in said and f"goes on after step {stop // EVERY * EVERY}" in said


@pytest.mark.parametrize("part", ["model", "optimizer", "stream", "step"])
def test_all_that_a_step_changes_is_loaded(new_run, part):
    """What is put back to the beginning after loading makes another run: so each part is needed, and is there."""
    run, fresh = new_run("run"), new_run("fresh")
    fit_until(run, EVERY)
    loaded, poorer = resume(new_run("run")), resume(new_run("run"))
    if part == "step":
        poorer.step = poorer.updates = 0  # the learning rate follows the updates, once they are counted
    else:
        getattr(poorer, part).load_state_dict(getattr(fresh, part).state_dict())
    losses, same, other = ([one_step(one)["loss"] for _ in range(3)] for one in (run, loaded, poorer))
    assert same == losses and other != losses, f"{part} is not what was kept"
