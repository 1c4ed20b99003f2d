"""Chapter 18b: HellaSwag in the trainer."""

import pytest
from small_run import lines, small, write_text

from nanogpt import build, trainer
from nanogpt.cli import main
from nanogpt.labs.evals import hellaswag

pytestmark = pytest.mark.usefixtures("one_thread")


def test_hellaswag_is_scored_on_the_way(tmp_path, monkeypatch):
    items = [{"ctx": "the cat sang", "endings": ["and ran", "but slept", "on a moon", "in red"], "label": 1}]
    monkeypatch.setattr(hellaswag, "load_items", lambda: items)
    write_text(tmp_path / "text.txt", paragraphs=60)
    changes = {"train_micro_batch": 2, "model_block_size": 32, "train_max_steps": 12, "eval_sample_every": 0}
    config = small(tmp_path, **changes, eval_every=0, eval_hellaswag_every=6)
    trainer.train_config(config)
    told = {line["step"]: line["hellaswag"] for line in lines(config.run.dir) if "hellaswag" in line}
    assert set(told) == {6, 12} and set(told.values()) <= {0.0, 1.0}, f"HellaSwag's accuracy: {told}"


def test_a_run_without_a_tokenizer_is_refused_before_it_begins(tmp_path):
    write_text(tmp_path / "text.txt", paragraphs=60)
    config = small(tmp_path, eval_sample_every=0, eval_hellaswag_every=6)
    build.ensure_data(config.data)
    (tmp_path / "data/tokenizer.json").unlink()
    with pytest.raises(ValueError, match="HellaSwag needs the tokenizer"):
        trainer.build_run(config)


def test_eval_takes_the_data_of_the_run(tmp_path, capsys):
    write_text(tmp_path / "text.txt", paragraphs=60)
    config = small(tmp_path, train_max_steps=4, eval_every=4, eval_sample_every=0)
    run = trainer.train_config(config)
    assert main(["eval", "--checkpoint", config.run.dir, "--tokens", str(config.eval.tokens)]) == 0
    said = capsys.readouterr().out
    assert f"val ({config.data.dir}, val)" in said, said
    assert f"{run.best['val_loss']:.4f}" in said, "piece by piece the loss is another than the trainer's"
