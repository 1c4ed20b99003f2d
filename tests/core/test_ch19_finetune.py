"""Chapter 19's other town is told by the grammar's own rules; the configuration `finetune` begins at another model's loss."""

import json
import math

import numpy as np
import pytest
import torch

from course.figures import fine_tuning as figures
from course.figures.other_town import retold
from course.notebooks.source import notebook_from_source
from course.paths import SOURCES
from nanogpt import trainer
from nanogpt.data import BatchStream
from nanogpt.labs.corpora.stories import ensure_corpus, entropy, rules, stories
from nanogpt.labs.evals.floor import readings
from nanogpt.labs.tuning.lora import add_lora, load_adapter, save_adapter
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init
from nanogpt.weights import load_model, save_model

T = 32


def test_what_is_forgotten_is_read_along_the_rates_up_to_the_best_one():
    """Behind it the curve turns back: sorted by what is adapted, a rate that is too high would stand between two good ones."""
    curve = {1e-4: (0.4, 0.2), 3e-4: (0.2, 0.4), 1e-3: (0.1, 0.8), 3e-3: (0.14, 5.0)}  # rate: new, old
    runs = [{"way": "a", "replay": 0.0, "lr": lr, "new": new, "old": old} for lr, (new, old) in curve.items()]
    halfway = math.sqrt(0.2 * 0.1)
    assert figures.forgotten_at(halfway, {"runs": runs}, "a") == pytest.approx(0.6)
    assert figures.forgotten_at(0.2, {"runs": runs}, "a") == pytest.approx(0.4)
    assert math.isnan(figures.forgotten_at(0.05, {"runs": runs}, "a"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = BPETokenizer.train((story.text for story in stories(100)), 300)
    ensure_corpus(folder, tokenizer, n=200)
    return folder


@pytest.fixture(scope="module")
def model(corpus, tmp_path_factory):
    """A model on disk whose loss is far from a fresh one's."""
    folder, V = tmp_path_factory.mktemp("model"), BPETokenizer.load(corpus / "tokenizer.json").vocab_size
    config = GPTConfig(block_size=T, vocab_size=V, n_layer=1, n_head=2, n_embd=16)
    model = scale_init(GPT(config, generator=torch.Generator().manual_seed(3)))
    with torch.no_grad():
        model.transformer.ln_f.weight *= 5
    save_model(model, folder)
    return folder


def train(corpus, folder, *overrides) -> list[dict]:
    """metrics.jsonl of `python -m nanogpt train finetune` with these changes."""
    sizes = f"model.block_size={T} train.batch_tokens={4 * T} train.micro_batch=2 train.max_steps=3".split()
    data = f"data.source=null eval.every=0 eval.sample_every=0 data.dir={corpus} run.dir={folder}".split()
    args = trainer.parser().parse_args(["finetune", *sizes, *data, "run.device=cpu", *overrides])
    assert not trainer.run(args)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def first_loss(corpus, model) -> float:
    """What the model pays for the first batch that the run reads."""
    x, y = BatchStream(open_shards(corpus, "train"), 4, T, seed=0).next_batch()
    with torch.no_grad():
        return model.train()(x, y)[1].item()


def test_it_starts_at_the_loss_of_the_model_it_starts_from(corpus, model, tmp_path):
    lines = train(corpus, tmp_path / "run", f"init_from={model}")
    expected = first_loss(corpus, load_model(model))
    assert lines[0]["loss"] == pytest.approx(expected, abs=1e-5)
    assert abs(expected - np.log(300)) > 1, (
        "the model is no better or worse than a fresh one: this tests nothing"
    )
    assert [line["lr"] for line in lines] == [3e-4] * 3, "llm.c's rate is constant"


def test_the_model_that_it_starts_from_is_left_alone(corpus, model, tmp_path):
    before = (model / "model.safetensors").read_bytes()
    train(corpus, tmp_path / "run", f"init_from={model}")
    assert (model / "model.safetensors").read_bytes() == before


def test_an_adapter_does_not_fit_the_model_that_full_fine_tuning_made(corpus, model, tmp_path):
    save_adapter(add_lora(load_model(model), 2), tmp_path / "adapter")
    train(corpus, tmp_path / "run", f"init_from={model}")
    newest = max((tmp_path / "run").glob("step_*"))
    load_adapter(load_model(model), tmp_path / "adapter")
    with pytest.raises(ValueError, match="trained beside other weights"):
        load_adapter(load_model(newest), tmp_path / "adapter")


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


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"gril": "Ann"}, "gril"),
        ({"girl": "Ann | Ann"}, "is twice in girl"),
        ({"feel": "{A} sang. | {A} sang."}, "is twice in feel"),
    ],
)
def test_a_change_that_cannot_be_is_said(wrong, word):
    with pytest.raises(ValueError, match=word), retold(wrong):
        list(stories(20, seed=3))
    assert list(stories(1, seed=3))
