"""Chapter 24b: a Llama in the trainer: counted by formula, read strictly, killed and resumed bit for bit, sampled, adapted."""

import json
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
import yaml
from ranks import in_ranks
from small_run import lines, losses, run_in_child, small, train, weights
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nanogpt import build
from nanogpt.cli import main
from nanogpt.config import Config, LlamaKeys, Lora, config_dict, hook, load_config
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.llama.model import Llama, LlamaConfig, llama_flops, llama_params
from nanogpt.labs.llama.pretrained import llama_to_hf
from nanogpt.labs.llama.runs import dry_run
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.tuning.lora import add_lora, lora_parameters, merge
from nanogpt.model import GPT, GPTConfig, flops_per_token, num_params
from nanogpt.pretrained import load_pretrained
from nanogpt.shards import load_manifest
from nanogpt.trainer import refuse_changes
from nanogpt.weights import digest, load_model, save_model

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = LlamaConfig(16, 280, n_layer=2, n_head=4, n_kv_head=2, n_embd=16, n_hidden=48, head_size=4)
SHAPES = [TINY, replace(TINY, tied=True), replace(TINY, qk_norm=True)]
SHAPES += [replace(TINY, n_kv_head=1, head_size=6, n_hidden=50)]


def drawn(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_of(shape, generator=None):
    """A new model of either family."""
    return (Llama if isinstance(shape, LlamaConfig) else GPT)(shape, generator)


def first_model(config: Config, manifest: dict):
    """The model of a run before its first step, as the trainer asks for it."""
    return hook(config, build.build_model)(config, manifest)


# Counting


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_and_flops_are_those_that_pytorch_counts(shape):
    T, model = 12, model_of(shape)
    real = sum(p.numel() for p in model.parameters())
    assert num_params(shape) == sum(llama_params(shape).values()) == real
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(torch.arange(T)[None])
    assert counter.get_total_flops() == T * sum(llama_flops(shape, T).values())
    assert flops_per_token(shape, T) == 3 * sum(llama_flops(shape, T).values())


def test_llama_3_8b_has_the_parameters_of_its_paper():
    assert num_params(LlamaConfig()) == 8_030_261_248


# Which family


@pytest.mark.parametrize("shape", [*SHAPES, GPTConfig(16, 280, n_layer=2, n_head=4, n_embd=16)])
def test_a_folder_is_read_as_the_family_that_wrote_it(shape, tmp_path):
    model = model_of(shape, drawn())
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert type(again) is type(model) and again.config == shape and not again.training
    for (name, a), (_, b) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(a, b) and a.requires_grad, name


def test_a_folder_that_disagrees_with_itself_is_refused(tmp_path):
    save_model(model_of(TINY), tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    kept = fields.pop("sha256")
    for change, says in [
        ({"n_hidden": 32}, r"transformer\.h\.\d\.mlp"),
        ({"n_layer": 3}, "n_layer=3"),
        ({"rope_theta": 7.0}, r"config\.json"),
        ({"n_kv_head": 3}, "n_kv_head"),
    ]:
        changed = fields | change
        hashed = digest(changed, (tmp_path / "model.safetensors").read_bytes())
        changed["sha256"] = kept if "rope_theta" in change else hashed
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=says):
            load_model(tmp_path)


def test_a_folder_of_others_is_read_as_its_family(tmp_path):
    llama_to_hf(model_of(TINY, drawn()), tmp_path / "llama")
    llama_to_hf(model_of(SHAPES[2], drawn()), tmp_path / "qwen3")
    to_hf(GPT(GPTConfig(16, 280, n_layer=1, n_head=2, n_embd=8), drawn()), tmp_path / "gpt2")
    read = {name: load_pretrained(tmp_path / name) for name in ("llama", "qwen3", "gpt2")}
    assert [type(model) for model in read.values()] == [Llama, Llama, GPT]
    with pytest.raises(OSError):
        load_pretrained(tmp_path / "nothing")


# The keys


def test_a_gpt_keeps_all_its_keys():
    config = load_config("tiny", ["model.dropout=0.1", "model.bias=false", "model.padded_vocab_size=1088"])
    shape = hook(config, build.new_shape)(config, 1024)
    assert shape == GPTConfig(128, 1024, 2, 4, 128, dropout=0.1, bias=False, padded_vocab_size=1088)


@pytest.mark.parametrize(
    "words, says",
    [
        ("family=lama", "family="),
        ("llama.n_kv_head=4", "llama.n_kv_head=4 needs family=llama"),
        ("family=llama llama.n_kv_head=3", "n_head=4, n_kv_head=3"),
        ("family=llama model.n_head=128", "head_size"),
        ("family=llama model.dropout=0.1", "model.dropout=0.1"),
        ("family=llama parallel.shard=true", "parallel.dp"),
        ("family=llama parallel.tp=2", "parallel.dp"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(words, says, tmp_path, capsys):
    assert main(["train", "tiny", f"run.dir={tmp_path / 'run'}", *words.split()]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists(), "something was written before the refusal"


def test_biases_are_refused_only_where_somebody_asks_for_them(whole, tmp_path):
    """A Llama has none, and a run's own config.yaml, which has all keys, is no asking."""
    assert load_config("tiny", ["family=llama", "model.bias=false"]).family == "llama"
    assert load_config("tiny", ["model.bias=true"]).family == "gpt"
    file = tmp_path / "asks.yaml"
    file.write_text("family: llama\nmodel: {bias: true}\n")
    with pytest.raises(ValueError, match="a Llama has no biases"):
        load_config(file)
    assert load_config(whole.folder / "config.yaml") == whole.config


@pytest.mark.parametrize("older, word", {"family": "family=llama", "lora": "lora.rank=2"}.items())
def test_a_run_that_is_older_than_a_key_goes_on_and_not_with_another_value(older, word, capsys):
    config = load_config("tiny", ["init_from=x"])
    saved = config_dict(config)
    del saved[older], saved["llama"]
    refuse_changes(config, saved)
    assert not capsys.readouterr().out
    with pytest.raises(ValueError, match=f"cannot go on with {word}"):
        refuse_changes(load_config("tiny", ["init_from=x", word]), saved)


# A run


def llama_run(folder, family="llama", own=None, **changes) -> Config:
    """A run of 20 steps of a small Llama; own: keys of its section."""
    said = {"model_dropout": 0.0, "model_n_layer": 2, "train_max_steps": 20, "eval_sample_every": 0}
    config = small(folder, **said | changes)
    return replace(config, family=family, llama=LlamaKeys(**{"n_kv_head": 1} | (own or {})))


@pytest.fixture(scope="module")
def config(folder):
    return partial(llama_run, folder)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A run that nobody interrupted."""
    return train(config(run_dir=str(tmp_path_factory.mktemp("whole") / "run"), eval_sample_every=10))


def test_a_run_is_a_llamas_and_learns(whole):
    told = losses(whole.folder)
    assert sum(told[-5:]) / 5 < told[0] - 0.5, "the loss does not fall"
    assert type(whole.model) is Llama and whole.model.config.n_kv_head == 1
    assert type(load_model(whole.kept)) is Llama
    assert (whole.folder / "samples/step_000020.txt").read_text().startswith("the cat")


def test_dry_run_and_run_count_alike(whole, tmp_path, capsys, monkeypatch):
    roof = Roofline("cpu", {"float32": 1e11}, 1e10)  # to measure it takes seconds
    monkeypatch.setattr("nanogpt.labs.llama.runs.measure_roofline", lambda device: roof)
    dry_run(whole.config)
    said = capsys.readouterr().out
    count = sum(p.numel() for p in whole.model.parameters())
    assert f"parameters  {count:,}\n" in said and "ms measured" in said
    adapted = replace(whole.config, init_from=str(whole.folder), lora=replace(whole.config.lora, rank=2))
    dry_run(adapted)
    adapters = lora_parameters(first_model(adapted, load_manifest(adapted.data.dir)))
    numbers = sum(p.numel() for p in adapters.values())
    assert f"parameters  {count:,}, and {numbers:,} in adapters" in capsys.readouterr().out
    words = [f"run.dir={tmp_path / 'run'}", "family=llama", "data.dir=nowhere", "--dry-run"]
    assert main(["train", "tiny", *words]) == 0
    assert "if the vocabulary has 1,024" in capsys.readouterr().out


def test_sample_and_eval_take_its_folder(whole, folder, capsys):
    where = ["--checkpoint", str(whole.folder), "--device", "cpu"]
    assert main(["sample", *where, "--prompt", "the", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the")
    assert main(["eval", *where, "--data", str(folder / "data"), "--tokens", "300"]) == 0
    assert f"{whole.best['val_loss']:.4f}" in capsys.readouterr().out or whole.best["step"] != 20


@pytest.mark.slow  # starting a process that can be killed takes seconds; the sitting itself resumes a run
@pytest.mark.parametrize("at", [3, 7, 16])
def test_killed_with_signal_9_it_goes_on_bit_for_bit(at, whole, config, tmp_path):
    here = config(run_dir=str(tmp_path / "run"), eval_sample_every=10)
    code, said = run_in_child(here, at, ("train_step", "update"))
    assert code == -signal.SIGKILL and "died" in said
    train(here)
    assert lines(here.run.dir) == lines(whole.folder) and weights(here.run.dir) == weights(whole.folder)


def fit(ranks, config) -> list[float]:
    train(config)
    return losses(config.run.dir)


@pytest.mark.slow
def test_two_processes_make_the_run_of_one(config, folder, tmp_path):
    changes = {"train_batch_tokens": 128, "train_max_steps": 6, "eval_every": 3}
    one = train(config(run_dir=str(tmp_path / "one"), **changes))
    both = in_ranks(fit, 2, config(run_dir=str(tmp_path / "two"), **changes), seconds=None)
    alone = losses(one.folder)
    assert both[0] == pytest.approx(alone, abs=1e-5) and len(alone) == 6
    theirs = load_model(tmp_path / "two/step_000006").state_dict()
    for name, p in one.model.state_dict().items():
        assert torch.allclose(p, theirs[name], atol=1e-5), name


@pytest.mark.parametrize(
    "change", [{"parallel_recompute": True}, {"own": {"tied": False}}, {"own": {"qk_norm": True}}]
)
def test_other_keys_run_too(change, config, tmp_path, whole):
    run = train(config(run_dir=str(tmp_path / "run"), train_max_steps=4, **change))
    told = losses(run.folder)
    if "parallel_recompute" in change:
        assert told == losses(whole.folder)[:4], "recomputed blocks compute something else"
    assert told[-1] < told[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "bf16-masters"])
def test_in_16_bits_too(dtype, config, tmp_path, whole):
    run = train(config(run_dir=str(tmp_path / "run"), train_max_steps=4, train_dtype=dtype))
    exact = losses(whole.folder)[:4]
    assert losses(run.folder) == pytest.approx(exact, abs=0.05)


# Beginning with another model


def adapting(config, whole, folder) -> Config:
    """Six steps of adapters beside the model of a run."""
    changed = config(run_dir=str(folder), train_max_steps=6)
    return replace(changed, init_from=str(whole.folder), lora=Lora(rank=2))


def test_adapters_beside_a_llama(whole, config, tmp_path, capsys):
    run = train(adapting(config, whole, tmp_path / "run"))
    kept = {path.name for path in run.kept.iterdir()}
    assert "adapter.safetensors" in kept and "model.safetensors" not in kept
    names = {name.split(".")[-2] for name in lora_parameters(run.model)}
    assert names == {"c_q", "c_k", "c_v", "c_proj", "c_gate", "c_fc"}
    for name, p in load_model(whole.kept).named_parameters():
        assert torch.equal(p, run.model.get_parameter(name)), f"{name} is frozen, and has moved"
    assert "in adapters are trained beside" in capsys.readouterr().out
    where = ["--checkpoint", str(run.folder), "--device", "cpu"]
    assert main(["sample", *where, "--max-new-tokens", "3"]) == 0


@pytest.mark.slow
def test_adapters_that_were_killed_go_on_bit_for_bit(whole, config, tmp_path):
    run, again = train(adapting(config, whole, tmp_path / "run")), adapting(config, whole, tmp_path / "again")
    code, _ = run_in_child(again, 6, ("train_step",))
    assert code == -signal.SIGKILL
    train(again)
    assert lines(again.run.dir) == lines(run.folder), "adapters do not go on bit for bit"


def test_a_word_means_its_relatives_and_no_more():
    model = add_lora(model_of(TINY, drawn()), 2, targets="c_attn")
    assert {name.split(".")[-2] for name in lora_parameters(model)} == {"c_q", "c_k", "c_v"}
    gpt = add_lora(GPT(GPTConfig(8, 16, n_layer=1, n_head=2, n_embd=8)), 2, targets=["c_fc"])
    assert {name.split(".")[-2] for name in lora_parameters(gpt)} == {"c_fc"}
    with pytest.raises(ValueError, match="c_gate is no linear layer of a block"):
        add_lora(merge(gpt), 2, targets=["c_gate"])


def test_weights_of_others_are_where_a_run_begins(whole, config, tmp_path):
    llama_to_hf(load_model(whole.kept), tmp_path / "hf")
    begin = replace(config(run_dir=str(tmp_path / "run"), train_max_steps=3), init_from=str(tmp_path / "hf"))
    model = first_model(begin, {"vocab_size": whole.model.config.vocab_size})
    for name, p in load_model(whole.kept).named_parameters():
        assert torch.equal(p, model.get_parameter(name)), name
    train(begin)
    assert lines(begin.run.dir)[0]["loss"] < lines(whole.folder)[0]["loss"] - 0.3


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"family": "gpt", "own": {"n_kv_head": None}}, "is a llama, not a gpt; set family=llama"),
        ({"own": {"n_kv_head": 2}}, "leave out llama.n_kv_head=2"),
        ({"model_n_layer": 3}, "leave out model.n_layer=3"),
    ],
)
def test_a_given_model_that_is_not_the_runs_is_refused(changes, says, whole, config, tmp_path):
    begin = replace(config(run_dir=str(tmp_path / "run"), **changes), init_from=str(whole.folder))
    with pytest.raises(ValueError, match=says):
        train(begin)
    if "family" in changes:
        words = [f"init_from={whole.folder}", f"run.dir={tmp_path / 'run'}", "--dry-run"]
        assert main(["train", "tiny", *words]) == 2, "a dry run begins with it"


@pytest.mark.slow
def test_the_command_is_the_same_run(folder, whole, tmp_path):
    path = tmp_path / "llama.yaml"
    path.write_text(yaml.safe_dump(config_dict(llama_run(folder))))
    assert main(["train", str(path), f"run.dir={tmp_path / 'run'}"]) == 0
    assert losses(tmp_path / "run") == losses(whole.folder)
