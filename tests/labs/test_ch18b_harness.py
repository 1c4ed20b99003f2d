import logging
from pathlib import Path

import pytest
import torch

from nanogpt.labs.evals.hellaswag import accuracy, for_harness, load_items, score
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init

COURSE = Path(__file__).parents[2] / "nanogpt/resources/hellaswag_course.jsonl"
pytestmark = pytest.mark.slow  # importing the harness takes seconds
ITEMS = load_items(COURSE)
TOKENIZER = BPETokenizer.train(COURSE.read_text(encoding="utf-8"), 400)
SHAPE = GPTConfig(block_size=128, vocab_size=TOKENIZER.vocab_size, n_layer=2, n_head=2, n_embd=32)
MODEL = scale_init(GPT(SHAPE, torch.Generator().manual_seed(0)))


@pytest.fixture
def harness(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is installed for comparisons only")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return lm_eval


def local_task():
    from datasets import Dataset, DatasetDict
    from lm_eval.api.task import ConfigurableTask

    class Local(ConfigurableTask):
        """The course's questions, as the harness's hellaswag asks, without its changes of the prompt."""

        VERSION = 0

        def download(self, dataset_kwargs=None, **_):
            self.dataset = DatasetDict({"validation": Dataset.from_list(ITEMS)})

    names = "acc", "acc_norm", "acc_bytes"
    metrics = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]
    config = {"task": "hellaswag_course", "dataset_path": "none", "output_type": "multiple_choice"}
    config |= {"validation_split": "validation", "metric_list": metrics}
    config |= {"doc_to_text": "{{ctx}}", "doc_to_choice": "endings", "doc_to_target": "{{label}}"}
    return Local(config=config)


def test_the_harness_scores_our_model_as_we_do_item_by_item(harness):
    adapter = for_harness(MODEL, TOKENIZER)
    found = harness.simple_evaluate(model=adapter, tasks=[local_task()], bootstrap_iters=0)
    ours = score(MODEL, ITEMS, TOKENIZER)
    samples = sorted(found["samples"]["hellaswag_course"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(ITEMS)
    for sample, nats in zip(samples, ours):
        assert [-float(answer[0]) for answer in sample["filtered_resps"]] == pytest.approx(nats, rel=1e-4)
    theirs, mine = found["results"]["hellaswag_course"], accuracy(MODEL, ITEMS, TOKENIZER)
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert theirs[f"{name},none"] == pytest.approx(mine[name])
