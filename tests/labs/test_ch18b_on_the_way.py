"""Chapter 18b: HellaSwag in the trainer."""

import pytest
from small_run import lines

from nanogpt import build, trainer
from nanogpt.cli import main
from nanogpt.labs.evals import hellaswag

pytestmark = pytest.mark.usefixtures("one_thread")


def test_hellaswag_is_scored_on_the_way(config, monkeypatch):
    items = [{"ctx": "the cat sang", "endings": ["and ran", "but slept", "on a moon", "in red"], "label": 1}]
    monkeypatch.setattr(hellaswag, "load_items", lambda: items)
    run = trainer.train_config(config(train_micro_batch=2, model_block_size=32, eval_hellaswag_every=6))
    told = {line["step"]: line["hellaswag"] for line in lines(run.folder) if "hellaswag" in line}
    assert set(told) == {6, 12} and set(told.values()) <= {0.0, 1.0}, f"HellaSwag's accuracy: {told}"


def test_a_run_without_a_tokenizer_is_refused_before_it_begins(config, tmp_path):
    asked = config(data_dir=str(tmp_path / "data"), eval_hellaswag_every=6)
    build.ensure_data(asked.data)
    (tmp_path / "data/tokenizer.json").unlink()
    with pytest.raises(ValueError, match="HellaSwag needs the tokenizer"):
        trainer.build_run(asked)


def test_eval_takes_the_data_of_the_run(config, folder, capsys):
    run = trainer.train_config(config(train_max_steps=4, eval_every=4))
    assert main(["eval", "--checkpoint", str(run.folder), "--tokens", str(run.config.eval.tokens)]) == 0
    said = capsys.readouterr().out
    assert f"val ({folder / 'data'}, val)" in said, said
    assert f"{run.best['val_loss']:.4f}" in said, "piece by piece the loss is another than the trainer's"
