"""Adapters in the trainer: the steps of chapter 19's loop, the base unmoved, a checkpoint of the adapter alone, resumed bit for bit."""

import hashlib
import json

import pytest
import torch

from nanogpt.cli import main
from nanogpt.corpora.corpus import ensure_corpus, stories
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.sample import load
from nanogpt.gpt.train import scale_init, train
from nanogpt.gpt.weights import load_model, save_model
from nanogpt.run import trainer
from nanogpt.run.assemble import compare
from nanogpt.run.config import config_dict, load_config
from nanogpt.run.lora import add_lora, load_adapter, lora_parameters, merge
from nanogpt.text.data import DocumentStream
from nanogpt.text.shards import open_shards
from nanogpt.text.tokenizer import BPETokenizer

T, B, STEPS, LR = 32, 4, 8, 1e-2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Shards in data/, and a model in base/, saved without its tokenizer."""
    torch.set_num_threads(1)  # sums in another order have other bits
    folder = tmp_path_factory.mktemp("adapters")
    tokenizer = BPETokenizer.train((story.text for story in stories(100)), 300)
    ensure_corpus(folder / "data", tokenizer, n=200)
    shape = GPTConfig(block_size=T, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, n_embd=16)
    save_model(scale_init(GPT(shape, torch.Generator().manual_seed(3))), folder / "base")
    return folder


def words(place, name: str, **changes) -> list[str]:
    """The command line of a run of chapter 19's loop: its optimizer and its schedule."""
    keys = {"model_block_size": T, "model_n_layer": 2, "model_n_head": 2, "model_n_embd": 16, "lora_rank": 3}
    keys |= {
        "data_dir": place / "data",
        "init_from": place / "base",
        "run_dir": place / name,
        "run_device": "cpu",
    }
    keys |= {"train_max_steps": STEPS, "train_batch_tokens": B * T, "train_micro_batch": B, "optim_lr": LR}
    keys |= {
        "optim_warmup": 0,
        "optim_clip": "null",
        "eval_every": 4,
        "eval_tokens": 500,
        "run_checkpoint_every": 4,
    }
    keys |= changes
    base = f"init_from={keys.pop('init_from')}"
    return ["tiny", base, *(f"{key.replace('_', '.', 1)}={value}" for key, value in keys.items())]


def fitted(place, name: str, **changes):
    said, *overrides = words(place, name, **changes)
    return trainer.fit(load_config(said, overrides))


def losses(place, name: str) -> list[float]:
    return [json.loads(line)["loss"] for line in (place / name / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(place):
    """A run that nobody interrupted."""
    return fitted(place, "whole", run_keep=9)


def sha(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def adapted(place) -> GPT:
    return add_lora(load_model(place / "base"), 3, generator=torch.Generator().manual_seed(0))


def test_the_steps_are_those_of_the_chapters_loop_and_the_base_is_unmoved(place, whole):
    base, model = load_model(place / "base"), adapted(place)
    stream = DocumentStream(open_shards(place / "data", "train"), B, T, seed=0)
    assert losses(place, "whole") == train(model, stream, STEPS, LR)
    for name, p in whole.model.named_parameters():
        if name in lora_parameters(model):
            assert torch.equal(p, model.get_parameter(name)) and p.abs().sum() > 0, f"{name} is another one"
        else:
            assert torch.equal(p, base.get_parameter(name)), f"{name} is frozen, and has moved"


def test_a_checkpoint_holds_the_adapter_alone_and_sample_and_eval_find_the_rest(place, whole, capsys):
    kept = {path.name for path in whole.kept.iterdir()}
    assert "adapter.safetensors" in kept and "model.safetensors" not in kept
    merged = merge(load_adapter(load_model(place / "base"), whole.kept))
    model, tokenizer = load(str(place / "whole"))
    assert all(torch.equal(p, merged.get_parameter(name)) for name, p in model.named_parameters())
    assert tokenizer.vocab_size == 300, "the base has no tokenizer, the run has one"
    assert main(["sample", "--checkpoint", str(place / "whole"), "--max-new-tokens", "3"]) == 0
    best = ["--checkpoint", str(place / "whole/best"), "--device", "cpu", "--tokens", "500"]
    assert main(["eval", *best, "--data", str(place / "data")]) == 0
    assert f"{whole.best['val_loss']:.4f}" in capsys.readouterr().out


def test_a_run_that_is_killed_within_a_step_goes_on_bit_for_bit(place, whole, monkeypatch):
    one_step = trainer.one_step

    def killed(run):
        if run.step == 6:
            raise SystemExit(9)
        return one_step(run)

    monkeypatch.setattr(trainer, "one_step", killed)
    with pytest.raises(SystemExit):
        fitted(place, "killed")
    monkeypatch.undo()
    again = fitted(place, "killed")
    assert losses(place, "killed") == losses(place, "whole")
    assert sha(again.kept / "adapter.safetensors") == sha(whole.kept / "adapter.safetensors")
    assert sha(again.kept / "state.safetensors") == sha(whole.kept / "state.safetensors")


def test_a_run_that_is_older_than_the_keys_goes_on(place, capsys):
    config = load_config("tiny", ["init_from=x"])
    saved = config_dict(config)
    del saved["lora"]
    compare(config, saved)
    assert not capsys.readouterr().out
    with pytest.raises(ValueError, match=r"cannot go on with lora.rank=2 \(was 0\)"):
        compare(load_config("tiny", ["lora.rank=2", "init_from=x"]), saved)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"init_from": "null"}, "lora.rank=3 adapts trained weights; set init_from to their folder"),
        ({"lora_rank": 17}, "rank=17 must be an integer from 1 to 16"),
        ({"lora_rank": -1}, "command line: lora.rank=-1 must be greater than or equal to 0"),
        ({"lora_targets": "[c_atn]"}, "lora.targets="),
        ({"lora_rnk": 2}, "there is no key lora.rnk; did you mean lora.rank?"),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence(place, changes, message, capsys):
    assert main(["train", *words(place, "refused", **changes)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_a_base_that_was_trained_further_is_refused(place):
    fitted(place, "orphan", train_max_steps=4)
    other = load_model(place / "base")
    with torch.no_grad():
        other.transformer.ln_f.bias[3] += 1e-6
    before = {path: path.read_bytes() for path in (place / "base").iterdir()}
    try:
        save_model(other, place / "base")
        with pytest.raises(ValueError, match="init_from has other weights than those that the adapter in"):
            fitted(place, "orphan")
    finally:
        for path, data in before.items():
            path.write_bytes(data)


@pytest.fixture(scope="module")
def old(place):
    """Other stories, in the same tokens."""
    ensure_corpus(place / "old", BPETokenizer.load(place / "data/tokenizer.json"), n=100, seed=5)
    return place / "old"


def mixed(place, old, name: str, weights=(3, 1), **changes) -> list[str]:
    """A run with a mixture: two micro-batches a step, so that a micro-batch is not a cycle."""
    mix = f"{{{place / 'data'}: {weights[0]}, {old}: {weights[1]}}}"
    return words(place, name, data_mix=mix, train_micro_batch=2, **changes)


def test_a_mixture_has_exactly_its_shares(place, old, capsys):
    said, *overrides = mixed(place, old, "mixed")
    run = trainer.fit(load_config(said, overrides))
    said = capsys.readouterr().out
    assert "1,536 in adapters beside" in said and f"from {{'{place / 'data'}': 3, '{old}': 1}}" in said
    streams = [DocumentStream(open_shards(folder, "train"), 1, T, seed=0) for folder in (place / "data", old)]
    theirs = [{tuple(s.next_batch()[0][0].tolist()) for _ in range(B * STEPS)} for s in streams]
    run.stream.position = 0
    rows = [tuple(row) for _ in range(2 * STEPS) for row in run.stream.next_batch()[0].tolist()]
    assert [sum(row in known for row in rows) for known in theirs] == [24, 8]


def test_a_mixture_goes_on_bit_for_bit(place, old, monkeypatch):
    said, *overrides = mixed(place, old, "mixed whole")
    trainer.fit(load_config(said, overrides))
    one_step = trainer.one_step

    def killed(run):
        if run.step == 7:
            raise SystemExit(9)
        return one_step(run)

    said, *overrides = mixed(place, old, "mixed killed")
    monkeypatch.setattr(trainer, "one_step", killed)
    with pytest.raises(SystemExit):
        trainer.fit(load_config(said, overrides))
    monkeypatch.undo()
    trainer.fit(load_config(said, overrides))
    assert losses(place, "mixed killed") == losses(place, "mixed whole")


@pytest.mark.parametrize(
    "weight, said", [("0", "greater than 0"), ("0.5", "a valid integer"), ("much", "a valid integer")]
)
def test_a_wrong_weight_is_one_sentence_with_its_key(place, old, weight, said, capsys):
    assert main(["train", *mixed(place, old, "refused", (3, weight))]) == 2
    error = capsys.readouterr().err
    assert error.startswith("train: command line: data.mix=") and said in error and error.count("\n") == 1


def test_a_mixture_without_the_folder_that_is_validated_or_of_two_vocabularies_is_refused(
    place, old, tmp_path, capsys
):
    only = f"{{{old}: 1}}"
    assert main(["train", *words(place, "refused", data_mix=only)]) == 2
    assert "data.mix gives data.dir=" in capsys.readouterr().err
    ensure_corpus(tmp_path, BPETokenizer.train((story.text for story in stories(50)), 290), n=50)
    assert main(["train", *mixed(place, tmp_path, "refused")]) == 2
    assert "was made with tokenizer" in capsys.readouterr().err
    assert main(["train", *mixed(place, place / "nowhere", "refused")]) == 2
    assert "nowhere/manifest.json does not exist" in capsys.readouterr().err
