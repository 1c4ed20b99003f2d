"""Chapter 06: Hugging Face GPT-2 checkpoints in and out, against transformers."""

import json
import logging
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from nanogpt.labs.formats.hf import to_hf
from nanogpt.model import GPT, GPTConfig
from nanogpt.pretrained import config_from_hf, from_hf

KEYS = "n_layer", "n_head", "n_embd", "n_positions", "vocab_size"
SIZES = [dict(zip(KEYS, sizes)) for sizes in ((1, 1, 16, 8, 31), (3, 4, 32, 32, 96), (2, 12, 96, 20, 257))]
SIZES += [dict(zip(KEYS, (2, 2, 48, 48, 48)))]  # wte, wpe and c_proj are square: all of these fit both ways
SMALL = SIZES[1]
LINEARS = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}


def random_tensors(hf: dict) -> dict[str, torch.Tensor]:
    """A GPT-2's tensors as the hub's `gpt2` names and lays them out; every one of them matters to the logits."""
    g = torch.Generator().manual_seed(0)
    C, T = hf["n_embd"], hf["n_positions"]

    def normal(*shape, mean=0.0, std=0.1):
        return mean + std * torch.randn(shape, generator=g)

    out = {"wte.weight": normal(hf["vocab_size"], C, std=0.5), "wpe.weight": normal(T, C, std=0.3)}
    for ln in ["ln_f", *(f"h.{i}.ln_{j}" for i in range(hf["n_layer"]) for j in (1, 2))]:
        out |= {f"{ln}.weight": normal(C, mean=1.0), f"{ln}.bias": normal(C)}
    for i in range(hf["n_layer"]):
        for name, (a, b) in LINEARS.items():
            out[f"h.{i}.{name}.weight"] = normal(a * C, b * C, std=1 / math.sqrt(a * C))  # Conv1D: (in, out)
            out[f"h.{i}.{name}.bias"] = normal(b * C)
        out[f"h.{i}.attn.bias"] = torch.ones(T, T).tril()[None, None]
        out[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    return out


def write(folder: Path, tensors: dict, hf: dict, **config) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | hf | config))
    return folder


def write_small(folder: Path, tensors: dict | None = None, **config) -> Path:
    """A checkpoint of SMALL with some tensors and settings changed."""
    return write(folder, random_tensors(SMALL) | (tensors or {}), SMALL, **config)


def new_model(seed: int = 0, **changes) -> GPT:
    config = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=24, **changes)
    return GPT(config, generator=torch.Generator().manual_seed(seed))


def same_weights(a: GPT, b: GPT) -> bool:
    return all(map(torch.equal, a.parameters(), b.parameters()))


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖ in units of a's machine epsilon."""
    exact, b = a.detach().double(), b.detach().double()
    return float((exact - b).norm() / b.norm()) / torch.finfo(a.dtype).eps


def some_ids(hf: dict) -> torch.Tensor:
    return torch.randint(hf["vocab_size"], (2, hf["n_positions"]), generator=torch.Generator().manual_seed(1))


# Parity


SHAPES = pytest.mark.parametrize("hf", SIZES, ids=lambda hf: f"C{hf['n_embd']}")


@pytest.fixture(scope="module")
def transformers():
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    return transformers


def hf_model(transformers, hf: dict):
    """transformers' GPT-2 with random weights in which no part is negligible."""
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**hf, **quiet, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    model.load_state_dict({f"transformer.{n}": t for n, t in random_tensors(hf).items()}, strict=False)
    return model


def compare(ours: GPT, theirs, ids: torch.Tensor, limit: float) -> None:
    """Logits, loss and the gradient of every parameter agree to `limit` epsilons."""
    ours.train(), theirs.train()  # dropout is 0: nothing may differ
    logits, loss = ours(ids[:, :-1], ids[:, 1:])
    out = theirs(ids, labels=ids)
    their_loss = out.loss
    if loss.dtype == torch.float64:  # transformers computes its loss in float32 whatever the model's dtype
        their_loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    their_loss.backward()
    assert apart(logits, out.logits[:, :-1]) < limit
    assert apart(loss, their_loss) < limit
    grads = {n.removeprefix("transformer."): p.grad for n, p in theirs.named_parameters()}
    mine = {n.removeprefix("transformer."): p.grad for n, p in ours.named_parameters()}
    assert grads.keys() == mine.keys()
    for name, grad in mine.items():
        if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            grad = grad.T
        assert apart(grad, grads[name]) < limit, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@SHAPES
def test_transformers_to_ours(transformers, tmp_path, hf, dtype):
    theirs = hf_model(transformers, hf)
    theirs.save_pretrained(tmp_path)
    compare(from_hf(tmp_path).to(dtype), theirs.to(dtype), some_ids(hf), 32)


@SHAPES
def test_ours_to_transformers_without_a_warning(transformers, tmp_path, hf, caplog, capfd):
    transformers.logging.enable_propagation()
    ours = from_hf(write(tmp_path / "in", random_tensors(hf), hf))  # every tensor at work, biases too
    to_hf(ours, tmp_path / "out")
    auto = transformers.AutoModelForCausalLM
    with caplog.at_level(logging.INFO):
        theirs, info = auto.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING], caplog.text
    assert "warn" not in "".join(capfd.readouterr()).lower()
    assert theirs.dtype == torch.float32 and theirs.config.eos_token_id == hf["vocab_size"] - 1
    compare(ours, theirs, some_ids(hf), 32)


@pytest.mark.weekly
def test_parity_at_gpt2_small(transformers, tmp_path):
    """Both directions, in float32."""
    theirs = hf_model(transformers, dict(zip(KEYS, (12, 12, 768, 1024, 50257))))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = from_hf(tmp_path / "theirs")
    assert sum(p.numel() for p in ours.parameters()) == 124_439_808
    ids = torch.randint(50257, (1, 128), generator=torch.Generator().manual_seed(0))
    compare(ours, theirs, ids, 64)
    to_hf(ours, tmp_path / "ours")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").state_dict()
    assert all(torch.equal(t, again[name]) for name, t in theirs.state_dict().items())


# Files as they come


def test_prefix_or_not_masks_or_not(tmp_path):
    W = random_tensors(SMALL)
    plain = from_hf(write(tmp_path / "a", W, SMALL))
    clean = {f"transformer.{n}": t for n, t in W.items() if not n.endswith((".attn.bias", ".masked_bias"))}
    tied = {"lm_head.weight": W["wte.weight"].clone()}
    assert same_weights(from_hf(write(tmp_path / "b", clean | tied, SMALL)), plain)


def shard(folder: Path) -> Path:
    """SMALL in three files, with their index."""
    (write_small(folder) / "model.safetensors").unlink()
    names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    weight_map = {name: names[i % 3] for i, name in enumerate(random_tensors(SMALL))}
    for file in names:
        save_file({k: t for k, t in random_tensors(SMALL).items() if weight_map[k] == file}, folder / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_that_transformers_writes(transformers, tmp_path):
    theirs = hf_model(transformers, SMALL)
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    compare(from_hf(tmp_path), theirs, some_ids(SMALL), 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_keep_their_float_type_there_and_back(tmp_path, dtype):
    W = {n: t.to(dtype) for n, t in random_tensors(SMALL).items()}
    model = from_hf(write(tmp_path / "a", W | {"lm_head.weight": W["wte.weight"].clone()}, SMALL))
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert torch.equal(model.transformer.wte.weight, W["wte.weight"])
    to_hf(model, tmp_path / "b")
    assert {t.dtype for t in load_file(tmp_path / "b/model.safetensors").values()} == {dtype}
    again = from_hf(tmp_path / "b")
    assert again.lm_head.weight.dtype == dtype and again.lm_head.weight is again.transformer.wte.weight


def test_another_float_type_can_be_asked_for_and_a_mixture_becomes_the_default(tmp_path):
    folder = write_small(tmp_path, {"ln_f.bias": torch.zeros(32, dtype=torch.half)})
    assert {p.dtype for p in from_hf(folder).parameters()} == {torch.float32}
    wide = from_hf(folder, dtype=torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert torch.equal(wide.lm_head.weight, random_tensors(SMALL)["wte.weight"].double())


def test_the_loaded_model_is_whole(tmp_path):
    """Tied, in eval mode, no buffer lost on the way from meta, and the global random state untouched."""
    folder = write_small(tmp_path, attn_pdrop=0.1)
    before = torch.get_rng_state()
    model = from_hf(folder, dropout=0.25)
    assert torch.equal(before, torch.get_rng_state())
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not model.training and model.config.dropout == 0.25
    assert from_hf(folder).config.dropout == 0.0
    fresh = GPT(model.config)
    fresh.load_state_dict(model.state_dict())  # strict: the same names, buffers included
    ids = some_ids(SMALL)
    assert torch.equal(fresh.eval()(ids)[0], model(ids)[0])


@pytest.mark.parametrize("bias", [True, False])
def test_round_trip(tmp_path, bias):
    model = new_model(bias=bias)
    to_hf(model, tmp_path)
    again = from_hf(tmp_path)
    ids = torch.arange(16)[None]
    assert apart(again(ids)[0], model.eval()(ids)[0]) < 4
    if bias:
        assert again.config == model.config and same_weights(again, model)
    else:
        assert again.config.bias
        assert not any(p.any() for name, p in again.named_parameters() if name.endswith("bias"))


def test_a_padded_vocabulary_is_not_written(tmp_path):
    model = new_model(padded_vocab_size=64)
    with torch.no_grad():
        model.transformer.wte.weight[40:] = 7.0  # as training might leave them
    to_hf(model, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["transformer.wte.weight"].shape == (40, 24)
    again = from_hf(tmp_path)
    assert again.config.vocab_size == 40 and again.config.padded_vocab_size is None
    ids = torch.arange(16)[None]
    torch.testing.assert_close(again(ids)[0], model(ids)[0])


def test_writing_replaces_whole_files_only(tmp_path, monkeypatch):
    """A writer that dies leaves the old checkpoint, and no debris."""
    to_hf(new_model(), tmp_path)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(old) == {"config.json", "model.safetensors"}

    def dies(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("nanogpt.labs.formats.hf.save_file", dies)
    with pytest.raises(KeyboardInterrupt):
        to_hf(new_model(seed=1), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


# Errors: one sentence that names what is wrong


def refused(folder, *words: str, error=ValueError) -> None:
    with pytest.raises(error) as info:
        from_hf(folder)
    assert "\n" not in str(info.value)
    for word in words:
        assert word in str(info.value)


def test_missing_unexpected_and_wrong_shape_in_one_error(tmp_path):
    W = random_tensors(SMALL)
    del W["h.1.attn.c_proj.bias"]
    W["h.7.extra"] = torch.ones(2)
    W["h.0.mlp.c_fc.weight"] = W["h.0.mlp.c_fc.weight"].T.contiguous()
    shape = "h.0.mlp.c_fc.weight is (128, 32), not (32, 128)"
    refused(write(tmp_path, W, SMALL), "missing: h.1.attn.c_proj.bias", "unexpected: h.7.extra", shape)


@pytest.mark.parametrize(
    "name, value",
    [
        ("model_type", "llama"),
        ("activation_function", "gelu"),
        ("layer_norm_epsilon", 1e-6),
        ("logit_softcap", 30.0),  # a list of what matters is never complete: what is unknown is refused
        ("n_inner", 100),
        ("n_layer", "3"),
        ("n_head", 5),
        ("n_embd", 4 * 10**9),  # beyond all that is in the weights
        ("n_layer", 100_000),
    ],
)
def test_another_architecture_is_refused_by_name_before_a_model_is_built(tmp_path, name, value, monkeypatch):
    monkeypatch.setattr("nanogpt.pretrained.GPT", lambda config: pytest.fail("built"))
    refused(write_small(tmp_path, **{name: value}), name)


def test_another_number_of_heads_is_noticed_in_what_to_hf_wrote(tmp_path):
    """2 heads of 16 or 4 of 8: every array fits, so only the note in the file tells."""
    to_hf(from_hf(write_small(tmp_path / "a")), tmp_path / "b")
    config = json.loads((tmp_path / "b/config.json").read_text())
    (tmp_path / "b/config.json").write_text(json.dumps(config | {"n_head": 2}))
    refused(tmp_path / "b", "n_head=2", "written with 4")


WTE = random_tensors(SMALL)["wte.weight"]


@pytest.mark.parametrize(
    "name, tensor",
    [
        ("h.1.mlp.c_fc.bias", torch.full((128,), math.inf)),
        ("lm_head.weight", WTE + 1e-3),  # an output head of its own
        ("h.0.attn.c_attn.weight", torch.ones(32, 96, dtype=torch.int8)),  # quantised
        ("transformer.wte.weight", WTE + 1),  # there twice
    ],
)
def test_a_tensor_that_cannot_be_is_named(tmp_path, name, tensor):
    named = "" if name == "lm_head.weight" else name.removeprefix("transformer.")
    refused(write_small(tmp_path, {name: tensor}), named)


def test_what_is_there_in_place_of_weights_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    torch.save(random_tensors(SMALL), tmp_path / "pytorch_model.bin")
    refused(tmp_path, "pickle", "save_pretrained", error=FileNotFoundError)
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "adapter", error=FileNotFoundError)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refused(tmp_path, "git-lfs pointer")


PLACES = "../x.safetensors", "a/x.safetensors", "..\\x.safetensors", "C:x.safetensors", "/x.safetensors"


@pytest.mark.parametrize("name", [*PLACES, "x.bin", 3])
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    folder = shard(tmp_path / "a")
    save_file(random_tensors(SMALL), tmp_path / "x.safetensors")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["wte.weight"] = name
    index.write_text(json.dumps(content))
    refused(folder, repr(name), "nothing was read")


def test_broken_files(tmp_path):
    refused(tmp_path / "a", "is no folder", error=FileNotFoundError)
    folder = shard(tmp_path / "a")
    part = next(folder.glob("*.safetensors"))
    raw = part.read_bytes()
    part.write_bytes(raw[: len(raw) // 2])
    refused(folder, part.name)
    part.unlink()
    refused(folder, part.name, error=FileNotFoundError)
    index = folder / "model.safetensors.index.json"
    for text in ("{}", "[1]", '{"weight_map": {}}', "{"):
        index.write_text(text)
        refused(folder, index.name)
    write(folder, {}, SMALL)
    (folder / "config.json").write_text("not json")
    refused(folder, "config.json")
    (folder / "config.json").unlink()
    refused(folder, "config.json", error=FileNotFoundError)


# The hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Stands in for huggingface_hub: repositories in `online` are copied into `cache`; and who asked for what."""
    online, cache, asked = tmp_path / "online", tmp_path / "cache", []

    def snapshot_download(repo, local_files_only=False, revision=None, allow_patterns=()):
        if local_files_only and not (cache / repo).is_dir():
            raise FileNotFoundError("not in the cache")
        if not local_files_only:
            asked.append(repo)
            if not (online / repo).is_dir():
                raise ConnectionError("no such repository")
            patterns = shutil.ignore_patterns(*allow_patterns)  # names those that it matches
            names = patterns(online, os.listdir(online / repo))
            (cache / repo).mkdir(parents=True, exist_ok=True)
            for name in names:
                shutil.copy(online / repo / name, cache / repo / name)
        return str(cache / repo)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    (online / "someone").mkdir(parents=True)
    return online, cache, asked


def test_a_repository_is_downloaded_once_completed_and_never_a_pickle(hub):
    online, cache, asked = hub
    names = ["someone/whole", "someone/shards"]
    expected = from_hf(write_small(online / names[0]))
    shard(online / names[1])
    pickled = write(online / "someone/pickled", {}, SMALL)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    for name in names:
        assert same_weights(from_hf(name), expected)
    refused("someone/pickled", "pickle", error=FileNotFoundError)
    assert not list(cache.rglob("pytorch_model.bin"))
    refused("someone/nobody", "someone/nobody", "ConnectionError", "check the name", error=FileNotFoundError)
    # what is in the cache asks nobody; what it lacks is fetched: one part, or all but a config.json that was fetched singly
    for name, file in zip(names, ("model.safetensors", "model-00002-of-00003.safetensors")):
        asked.clear()
        from_hf(name)
        assert not asked
        (cache / name / file).unlink()
        assert same_weights(from_hf(name), expected) and asked == [name]
    # with nobody to ask, the cache is enough, and a config.json alone is not
    shutil.rmtree(online)
    assert same_weights(from_hf(names[0]), expected)
    (cache / names[0] / "model.safetensors").unlink()
    refused(names[0], names[0], "ConnectionError", error=FileNotFoundError)


def test_the_library_itself_says_that_it_is_offline_in_our_sentence():
    refused("someone/nowhere-at-all", "someone/nowhere-at-all", "try again online", error=FileNotFoundError)


def test_the_class_loads_by_the_name_that_everybody_tries_first(tmp_path):
    model = new_model()
    to_hf(model, tmp_path)
    again = GPT.from_pretrained(tmp_path, dropout=0.1)
    assert type(again) is GPT and again.config.dropout == 0.1 and same_weights(again, model)


def test_the_recorded_words_of_gpt2_and_their_ids_agree(gpt2_vocab):
    """By tiktoken. Where OpenAI's weights can be loaded, the notebook compares our model's ids with these."""
    import tiktoken

    path = Path(__file__).parents[2] / "data" / "measurements" / "gpt2-words.json"
    openings = json.loads(path.read_text(encoding="utf-8"))["openings"]
    published, first = tiktoken.get_encoding("gpt2"), openings[0]
    prompt = published.encode(first["prompt"])
    assert published.decode(first["ids"]) == first["text"]
    assert first["ids"][: len(prompt)] == prompt == first["prompt_ids"]
    assert len(first["ids"]) == 20, "18 new ones, as the test's max_length=20 demands"
    assert all(opening["text"].startswith(opening["prompt"]) for opening in openings)


def test_every_setting_that_transformers_writes_is_known(transformers):
    assert config_from_hf(transformers.GPT2Config().to_dict()) == GPTConfig()


def test_settings_of_published_files_are_known():
    """Keys that old versions of transformers wrote into every file, as distilgpt2's and multigen's config.json have them."""
    none = dict.fromkeys(("bad_words_ids", "finetuning_task", "decoder_start_token_id"))
    false = dict.fromkeys(("do_sample", "early_stopping", "is_decoder", "use_bfloat16"), False)
    old = dict(_num_labels=1, n_ctx=1024, pruned_heads={}, output_past=True, length_penalty=1.0)
    old |= dict(max_length=20, no_repeat_ngram_size=0, task_specific_params={}, temperature=1.0)
    old |= dict(n_inner=4 * 768, reorder_and_upcast_attn=True)
    assert config_from_hf({"model_type": "gpt2"} | none | false | old) == GPTConfig()
