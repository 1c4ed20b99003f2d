"""Chapter 17: a run as a file. The law: every mistake in it is one line that names the key, and none gets through."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt import config as module
from nanogpt.config import Config, Data, Eval, Model, Optim, Run, Train, config_dict, load_config
from nanogpt.labs.plan.depth import from_depth
from nanogpt.precision import PRECISIONS

READY = ["finetune", "gpt2-124M", "gpt2-124M-llmc", "overfit", "shakespeare", "tiny"]


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What load_config says of a YAML text, with `run.yaml` for its path; a Config where it says nothing."""
    monkeypatch.chdir(tmp_path)

    def load(text: str, *overrides: str):
        Path("run.yaml").write_text(text, encoding="utf-8")
        try:
            return load_config("run.yaml", overrides)
        except (ValueError, OSError) as error:
            return str(error)

    return load


# --- mistakes ------------------------------------------------------------------------------------------------

MISTAKES = {  # and what is named
    # unknown keys: the nearest one
    "model: {n_layr: 3}": "model.n_layer",
    "optim: {max_steps: 3}": "train.max_steps",
    # wrong types: no text is a number, no fraction an integer, no number a truth
    "train: {max_steps: 3.5}": "train.max_steps=3.5",
    "run: {minutes: 2:00:00}": 'run.minutes="2:00:00"',  # 7,200 in YAML 1.1
    "train: {compile: 1}": "train.compile=1",
    "optim: {betas: [0.9]}": "optim.betas=[0.9]",
    "train: 3": "train is a section",
    # impossible values
    "optim: {lr: -1.0}": "optim.lr=-1.0",
    "optim: {lr: .nan}": "optim.lr=NaN",
    "model: {n_head: 5}": "n_head=5",
    "train: {batch_tokens: 500000}": "507904",  # the nearest multiple
    # what is no YAML, or another kind of it
    "model: {n_layer: 3": "line 1",
    "optim: {lr: 1, lr: 2}": "lr is there twice",
    "run: {dir: !!python/object:os.system x}": "os.system",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_the_file_is_one_line(told, text):
    says = told(text)
    assert isinstance(says, str) and "\n" not in says and says.startswith("run.yaml"), says
    assert MISTAKES[text] in says, says


def test_what_is_not_there_is_one_line(told, tmp_path):
    for name in ("tinny", "nofile.yaml", "folder/tiny"):
        with pytest.raises(FileNotFoundError, match=f"is not there; ready are {', '.join(READY)}$"):
            load_config(name)
    (tmp_path / "latin.yaml").write_bytes("run: {dir: café}".encode("latin-1"))
    with pytest.raises(ValueError, match=r"^latin.yaml: is no text in UTF-8$"):
        load_config("latin.yaml")


# --- what is right -------------------------------------------------------------------------------------------


def test_an_empty_file_and_empty_sections_are_the_defaults(told):
    assert told("") == told("model:\ntrain: {}\ninit_from:") == Config()


def test_numbers_are_read_as_people_write_them(told):
    c = told("optim: {lr: 6e-4, weight_decay: 1E-1, clip: 1, minimum: 1e-01}\ntrain: {batch_tokens: 524_288}")
    assert (c.optim.lr, c.optim.weight_decay, c.optim.clip, c.optim.minimum) == (6e-4, 0.1, 1.0, 0.1)
    assert c.train.batch_tokens == 524288 and c.micro_batches == 32
    c = told("optim: {lr: .5, weight_decay: 0.10, clip: 1., minimum: 0}\nrun: {seed: 0, minutes: 90}")
    assert (c.optim.lr, c.optim.weight_decay, c.optim.clip) == (0.5, 0.1, 1.0) and c.run.minutes == 90
    assert told("run: {minutes: 1_000.5}").run.minutes == 1000.5
    c = told("run: {seed: 017, minutes: 5}", "train.max_steps=0100")  # octal in YAML 1.1
    assert (c.run.seed, c.train.max_steps) == (17, 100)


def test_overrides_change_one_key_each_and_the_last_wins(told):
    c = told("train: {max_steps: 7}", "train.max_steps=8", "train.max_steps=9", "optim.betas=[0.8, 0.9]")
    assert c == replace(Config(), train=Train(max_steps=9), optim=Optim(betas=(0.8, 0.9)))
    assert told("init_from: gpt2", "init_from=null").init_from is None
    assert told("", "init_from=runs/a").init_from == "runs/a"
    assert told("", "data.tokenizer=1024").data.tokenizer == 1024
    # What is text stays text, whatever YAML would make of it.
    for text in ("Once: upon", "- a", "null", "3", "{", "a # b", "=", ""):
        assert told("", "eval.sample_every=9", f"eval.prompt={text}").eval.prompt == text


CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])
positive, rate = st.integers(1, 10**6), st.floats(1e-9, 1e3)
fraction, below_one = st.floats(0, 1), st.floats(0, 1, exclude_max=True)
texts = st.text(CHARACTERS, max_size=20)
places = texts.filter(lambda text: text and text[0] != "~")  # which would be the home folder


@st.composite
def configs(draw):
    heads, rows, T, steps = (draw(st.integers(1, most)) for most in (64, 64, 2048, 10**6))
    shape = dict(n_layer=draw(positive), n_head=heads, n_embd=heads * draw(positive), block_size=T)
    shape |= dict(dropout=draw(below_one), padded_vocab_size=draw(st.none() | positive))
    shape |= dict(bias=draw(st.none() | st.booleans()))
    data = dict(dir=draw(places), source=draw(st.none() | places))
    if data["source"] is not None:  # what describes a text needs one
        data |= dict(tokenizer=draw(places | positive), val=draw(below_one))
    rates = dict(lr=draw(rate), betas=(draw(below_one), draw(below_one)), clip=draw(st.none() | rate))
    rates |= dict(schedule=draw(st.sampled_from(["cosine", "wsd", "constant"])))
    rates |= dict(warmup=draw(st.integers(0, 2 * steps)))
    train = dict(max_steps=steps, batch_tokens=rows * T * draw(st.integers(1, 99)), micro_batch=rows)
    train |= dict(dtype=draw(st.sampled_from(list(PRECISIONS))), skip_spikes=draw(rate))
    run = dict(dir=draw(places), seed=draw(st.integers(0, 2**63 - 1)), minutes=draw(st.none() | rate))
    parts = Model(**shape), Data(**data), Optim(**rates), Train(**train), Eval(prompt=draw(texts)), Run(**run)
    return Config(*parts, init_from=draw(st.none() | places))


@settings(max_examples=15)
@given(configs())
def test_a_run_survives_the_way_through_a_file(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text(json.dumps(config_dict(config)), encoding="utf-8")
    assert load_config(path) == config


# --- the ready ones ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", READY)
def test_a_ready_configuration_loads_from_anywhere_and_has_its_own_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(name)
    assert config == load_config(module.CONFIGS / f"{name}.yaml")
    assert config.run.dir == f"runs/{name}", "two runs must not share a folder by default"


def test_the_published_schedules():
    """karpathy/build-nanogpt, train_gpt2.py at 6104ab1, and karpathy/llm.c, scripts/run_gpt2_124M.sh at f1e2ace."""
    lecture, llmc = load_config("gpt2-124M"), load_config("gpt2-124M-llmc")
    for c in (lecture, llmc):
        o, m = c.optim, c.model
        assert (o.lr, o.betas, o.weight_decay, o.clip, o.schedule) == (6e-4, (0.9, 0.95), 0.1, 1.0, "cosine")
        assert (m.n_layer, m.n_head, m.n_embd) == (12, 12, 768)
        assert (m.padded_vocab_size, m.block_size) == (50304, 1024)
        assert c.train.batch_tokens == 2**19
    assert (lecture.optim.warmup, lecture.optim.minimum, lecture.train.max_steps) == (715, 0.1, 19073)
    assert (llmc.optim.warmup, llmc.optim.minimum, llmc.train.max_steps) == (700, 0.0, 18865)
    assert (lecture.train.dtype, llmc.train.dtype) == ("bf16", "bf16-masters")
    tune = load_config("finetune")
    assert (tune.train.max_steps, tune.train.batch_tokens, tune.optim.lr) == (74, 4 * 1024, 3e-4)


# --- one dial ------------------------------------------------------------------------------------------------


def test_depth_twelve_is_gpt2_small_and_others_follow_its_width(told):
    small = told("", *from_depth(12, 524_288))
    assert (small.model, small.optim) == (Config().model, Config().optim)
    for depth in (1, 4, 20, 48):
        c = told("", *from_depth(depth, 524_288))
        assert c.model.n_layer == depth and c.model.n_embd == 64 * depth == 64 * c.model.n_head
        assert c.optim.lr == pytest.approx(6e-4 * 768 / c.model.n_embd, rel=1e-5)
        parameters = 12 * depth * c.model.n_embd**2
        tokens = c.train.max_steps * c.train.batch_tokens
        assert 20 * parameters <= tokens < 20 * parameters + c.train.batch_tokens, "20 tokens a parameter"
    assert told("", *from_depth(4, 512), "optim.lr=1e-3").optim.lr == 1e-3  # what the user says comes last
    with pytest.raises(ValueError):
        from_depth(0, 512)


def test_a_tilde_in_a_path_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    keys = "data.dir", "run.dir", "data.source", "init_from"
    config = load_config("shakespeare", [f"{key}=~/{key}" for key in keys])
    found = [config.data.dir, config.run.dir, config.data.source, config.init_from]
    assert [Path(path) for path in found] == [tmp_path / key for key in keys]
