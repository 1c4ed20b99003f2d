"""Adapters, mixtures and answers in the trainer: the steps of a loop by hand, the base unmoved, a checkpoint of the adapter alone."""

import json
import shutil

import pytest
import torch

from nanogpt import trainer
from nanogpt.cli import main
from nanogpt.config import Config, Lora, Model, Train, load_config
from nanogpt.data import DocumentStream
from nanogpt.labs.corpora.mixture import MixedStream
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.plan import dryrun
from nanogpt.labs.plan.dryrun import adapter_numbers, dry_run, of_adapters
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import memory_by_category, saved_bytes
from nanogpt.labs.tuning.answers import AnswerStream
from nanogpt.labs.tuning.lora import add_lora, load_adapter, lora_parameters, merge
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.sampling import load
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train, train_step
from nanogpt.weights import load_model, save_model

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
    keys |= {"data_dir": place / "data", "init_from": place / "base", "run_dir": place / name}
    keys |= {"run_device": "cpu", "run_checkpoint_every": 4, "optim_warmup": 0, "optim_clip": "null"}
    keys |= {"train_max_steps": STEPS, "train_batch_tokens": B * T, "train_micro_batch": B, "optim_lr": LR}
    keys |= {"eval_every": 4, "eval_tokens": 500, "eval_sample_every": 0}
    keys |= changes
    base = f"init_from={keys.pop('init_from')}"
    return ["tiny", base, *(f"{key.replace('_', '.', 1)}={value}" for key, value in keys.items())]


def asked(said: list[str]) -> Config:
    name, *overrides = said
    return load_config(name, overrides)


def fitted(place, name: str, **changes):
    return trainer.train_config(asked(words(place, name, **changes)))


def losses(place, name: str) -> list[float]:
    return [json.loads(line)["loss"] for line in (place / name / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(place):
    """A run that nobody interrupted."""
    return fitted(place, "whole", run_keep=9)


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


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"init_from": "null"}, "lora.rank=3"),
        ({"lora_rank": 17}, "rank=17"),
        ({"lora_targets": "[c_atn]"}, "lora.targets="),
        ({"data_mix": "{elsewhere: 1}"}, "data.mix"),
        ({"data_mix": "{data: 0.5}"}, "data.mix="),
    ],
)
def test_what_cannot_work_is_said_in_one_sentence_with_its_key(place, changes, says, capsys):
    assert main(["train", *words(place, "refused", **changes)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_a_base_that_was_trained_further_is_refused(place, tmp_path):
    shutil.copytree(place / "base", base := tmp_path / "base")
    fitted(place, "orphan", init_from=base, train_max_steps=4)
    other = load_model(base)
    with torch.no_grad():
        other.transformer.ln_f.bias[3] += 1e-6
    save_model(other, base)
    with pytest.raises(ValueError, match="was trained beside other weights than this model's"):
        fitted(place, "orphan", init_from=base)


@pytest.fixture(scope="module")
def old(place):
    """Other stories, in the same tokens."""
    ensure_corpus(place / "old", BPETokenizer.load(place / "data/tokenizer.json"), n=200, seed=5)
    return place / "old"


def mixture(place, old) -> str:
    return f"{{{old}: 1, {place / 'data'}: 3}}"


def mixed(place, old, name: str) -> list[str]:
    """A run with a mixture: two micro-batches a step, so that a micro-batch is not a cycle."""
    return words(place, name, data_mix=mixture(place, old), train_micro_batch=2)


def streams_of(place, old) -> list[DocumentStream]:
    return [DocumentStream(open_shards(folder, "train"), 1, T, seed=0) for folder in (old, place / "data")]


def by_hand(place, old, keys: set[str]) -> list[float]:
    """The losses of a loop outside of the trainer that does what these keys ask for."""
    stream = DocumentStream(open_shards(place / "data", "train"), B, T, seed=0)
    if "mix" in keys:
        stream = MixedStream(streams_of(place, old), [1, 3], B)
    if "answers" in keys:
        marker = BPETokenizer.load(place / "data/tokenizer.json").encode(" had")
        if "mix" in keys:
            stream.streams[1] = AnswerStream(stream.streams[1], marker)  # of data.dir alone
        else:
            stream = AnswerStream(stream, marker)
    model = adapted(place) if "lora" in keys else load_model(place / "base")
    return train(model, stream, STEPS, LR)


@pytest.mark.parametrize(
    "keys", [{"mix"}, {"answers"}, {"lora", "mix", "answers"}], ids=lambda keys: "-".join(sorted(keys))
)
def test_each_key_is_the_loop_by_hand_to_the_last_bit(place, old, keys):
    name = " ".join(sorted(keys))
    changes = {} if "lora" in keys else {"lora_rank": 0}
    if "mix" in keys:
        changes["data_mix"] = mixture(place, old)
    if "answers" in keys:
        changes["data_answers_after"] = " had"
    fitted(place, name, **changes)
    assert losses(place, name) == by_hand(place, old, keys)
    assert losses(place, name) != by_hand(place, old, set()), "the keys change nothing"


def test_a_run_that_is_killed_within_a_step_goes_on_bit_for_bit(place, old, monkeypatch):
    """On every system; test_ch19c_kills has signals."""
    one_step = trainer.one_step

    def start(name: str) -> dict[str, bytes]:
        run = trainer.train_config(asked(mixed(place, old, name)))
        return {path.name: path.read_bytes() for path in run.kept.glob("*.safetensors")}

    def killed(run):
        if run.step == 6:
            raise SystemExit(9)
        return one_step(run)

    whole = start("unharmed")
    with pytest.raises(SystemExit), monkeypatch.context() as patch:
        patch.setattr(trainer, "one_step", killed)
        start("killed")
    assert start("killed") == whole and len(whole) > 1
    assert losses(place, "killed") == losses(place, "unharmed")


def test_a_mixture_has_exactly_its_shares(place, old, capsys):
    run = trainer.build_run(asked(mixed(place, old, "mixed")))
    assert f"of each 4 rows 1 of {old}, 3 of {place / 'data'}" in capsys.readouterr().out
    streams = streams_of(place, old)
    theirs = [{tuple(s.next_batch()[0][0].tolist()) for _ in range(B * STEPS)} for s in streams]
    rows = [tuple(row) for _ in range(2 * STEPS) for row in run.stream.next_batch()[0].tolist()]
    assert [sum(row in known for row in rows) for known in theirs] == [8, 24]


def test_a_mixture_of_two_vocabularies_is_refused(place, tmp_path, capsys):
    ensure_corpus(tmp_path, BPETokenizer.train((story.text for story in stories(50)), 290), n=200)
    assert main(["train", *mixed(place, tmp_path, "refused")]) == 2
    assert "was made with tokenizer" in capsys.readouterr().err


# The dry run


SHAPE = GPTConfig(block_size=64, vocab_size=500, n_layer=3, n_head=4, n_embd=64)


def config_of(rank: int, **lora) -> Config:
    sizes = {"model": Model(block_size=64), "train": Train(micro_batch=4, batch_tokens=256)}
    return Config(**sizes, lora=Lora(rank=rank, **lora), init_from="base")


def counted(rank: int) -> dict[str, int]:
    """Bytes by category after a step of a model with these adapters."""
    model = GPT(SHAPE, torch.Generator().manual_seed(0))
    model = add_lora(model, rank) if rank else model
    optimizer, ids = make_optimizer(model, 1e-3), torch.zeros(4, 65, dtype=torch.int64)
    x, y = ids[:, :-1].clone(), ids[:, 1:].clone()
    activations = saved_bytes(lambda: model(x, y), exclude=model.parameters())
    train_step(model, optimizer, [(x, y)])
    held = {"parameters": list(model.parameters()), "activations": []}
    held["gradients"] = [p.grad for p in model.parameters() if p.grad is not None]
    held["optimizer"] = [t for state in optimizer.state.values() for t in state.values()]
    return {name: sum(t.nbytes for t in some) for name, some in held.items()} | {"activations": activations}


@pytest.mark.parametrize("rank", [0, 2, 8])
def test_the_memory_of_an_adapter_run_is_that_of_its_step(rank):
    held = of_adapters(memory_by_category(SHAPE, 4, 64), SHAPE, config_of(rank))
    there = counted(rank)
    for name in ("parameters", "gradients"):
        assert held[name] == pytest.approx(there[name]), name
    assert held["optimizer"] == pytest.approx(there["optimizer"], rel=0.01, abs=200)
    assert held["activations"] == pytest.approx(there["activations"], rel=0.1)
    if rank:
        assert held["optimizer"] < 0.2 * memory_by_category(SHAPE, 4, 64)["optimizer"]


def test_adapters_are_counted_as_they_are_made():
    model = add_lora(GPT(SHAPE), 3, targets=["c_fc"])
    made = sum(p.numel() for p in lora_parameters(model).values())
    assert adapter_numbers(SHAPE, config_of(3, targets=("c_fc",))) == made
    assert adapter_numbers(SHAPE, config_of(0)) == 0


def test_a_dry_run_says_the_epochs_of_each_folder(place, old, capsys, monkeypatch):
    monkeypatch.setattr(dryrun, "measure_roofline", lambda device: Roofline("cpu", {"float32": 1e9}, 1e9))
    dry_run(asked(mixed(place, old, "dry")))
    told = capsys.readouterr().out
    for folder, share in ((place / "data", 3), (old, 1)):
        documents = len(DocumentStream(open_shards(folder, "train"), 1, T).starts)
        epochs = STEPS * B * share / 4 / documents
        assert f"epochs      {epochs:.2f} of {documents} documents in {folder}" in told
