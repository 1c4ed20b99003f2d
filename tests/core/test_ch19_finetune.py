"""Chapter 19's other town is told by the grammar's own rules; the configuration `finetune` begins at another model's loss."""

import math

import pytest
import torch
from small_run import fine_tuning_folder, lines

from course.figures.other_town import retold
from course.notebooks.source import notebook_from_source
from course.paths import SOURCES
from nanogpt.cli import main
from nanogpt.data import BatchStream
from nanogpt.labs.corpora.stories import entropy, rules, stories
from nanogpt.labs.evals.floor import readings
from nanogpt.shards import open_shards
from nanogpt.weights import load_model, save_model


def test_it_starts_at_the_loss_of_the_model_it_starts_from_and_leaves_that_alone(tmp_path):
    model = load_model(fine_tuning_folder(tmp_path) / "base")
    with torch.no_grad():
        model.transformer.ln_f.weight *= 5
    save_model(model, tmp_path / "model")
    before = (tmp_path / "model/model.safetensors").read_bytes()
    # the loss of the first batch, as it must be and as it is
    first = BatchStream(open_shards(tmp_path / "data", "train"), 4, 16, seed=0).next_batch()
    expected = model.train()(*first)[1].item()
    sizes = ["model.block_size=16", "train.batch_tokens=64", "train.micro_batch=2", "train.max_steps=3"]
    looks = ["data.source=null", "eval.every=0", "eval.sample_every=0", "run.device=cpu"]
    places = f"init_from={tmp_path}/model data.dir={tmp_path}/data run.dir={tmp_path}/run".split()
    assert main(["train", "finetune", *sizes, *looks, *places]) == 0
    told = lines(tmp_path / "run")
    assert told[0]["loss"] == pytest.approx(expected, abs=1e-5)
    assert abs(expected - math.log(280)) > 1, "the model is as good as a fresh one: this tests nothing"
    assert [line["lr"] for line in told] == [3e-4] * 3, "llm.c's rate is constant"
    assert (tmp_path / "model/model.safetensors").read_bytes() == before


@pytest.fixture(scope="module")
def change() -> dict[str, str]:
    """The chapter's other town."""
    names = {"rules": rules}
    for cell in notebook_from_source(next(SOURCES.glob("19_*.py"))).cells:
        if cell.source.startswith("CHANGE = "):
            exec(cell.source.partition("print(")[0], names)
    return names["CHANGE"]


def test_the_floor_of_the_other_town_is_exact(change):
    """Each story can be told in one way, whose choices give its probability; and in the old town in none."""
    old = list(stories(40, seed=3))
    with retold(change):
        told = list(stories(40, seed=3))
        for story in told:
            (choices,) = readings(story.text)
            assert sum(math.log(n) for _, n in choices) == pytest.approx(-story.logprob)
        assert not any(readings(story.text) for story in old)
    assert not any(readings(story.text) for story in told)


def test_the_old_town_is_as_it_was_afterwards(change):
    before, nats = list(stories(20, seed=3)), entropy()
    with pytest.raises(RuntimeError), retold(change):
        assert list(stories(20, seed=3)) != before
        raise RuntimeError("a cell was interrupted")
    assert list(stories(20, seed=3)) == before and entropy() == nats
