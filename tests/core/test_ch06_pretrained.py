"""Chapter 06: Hugging Face GPT-2 checkpoints in and out, against other implementations of GPT-2."""

import hashlib
import http.server
import json
import logging
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from wording import in_our_words

from nanogpt.labs.formats.hf import to_hf
from nanogpt.model import GPT, GPTConfig
from nanogpt.pretrained import config_from_hf, copy_weights, from_hf

SIZES = [
    {"n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": 8, "vocab_size": 31},
    {
        "n_layer": 3,
        "n_head": 4,
        "n_embd": 32,
        "n_positions": 32,
        "vocab_size": 96,
    },  # all of these fit both ways:
    {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 48,
        "n_positions": 48,
        "vocab_size": 48,
    },  # wte, wpe and c_proj are square
    {"n_layer": 2, "n_head": 12, "n_embd": 96, "n_positions": 20, "vocab_size": 257},
]
SMALL = SIZES[1]
LINEARS = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}


def random_tensors(hf: dict, seed: int = 0) -> dict[str, torch.Tensor]:
    """A GPT-2's tensors as the hub's `gpt2` names and lays them out; every one of them matters to the logits."""
    g = torch.Generator().manual_seed(seed)
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


def reference(W: dict, hf: dict, ids: torch.Tensor) -> torch.Tensor:
    """GPT-2's logits (T, V) in float64 with x @ W on the file's arrays, one position and one head at a time."""
    W = {name: t.double() for name, t in W.items()}

    def linear(x, name):
        return x @ W[f"{name}.weight"] + W[f"{name}.bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * W[f"{name}.weight"] + W[f"{name}.bias"]

    x = W["wte.weight"][ids] + W["wpe.weight"][: len(ids)]
    d = hf["n_embd"] // hf["n_head"]
    for i in range(hf["n_layer"]):
        q, k, v = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").chunk(3, dim=-1)
        y = torch.zeros_like(x)
        for head in range(hf["n_head"]):
            s = slice(head * d, (head + 1) * d)
            for t in range(len(ids)):
                weights = (k[: t + 1, s] @ q[t, s] / math.sqrt(d)).softmax(0)
                y[t, s] = weights @ v[: t + 1, s]
        x = x + linear(y, f"h.{i}.attn.c_proj")
        u = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        x = x + linear(u, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ W["wte.weight"].T


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ / ‖b‖ in units of a's machine epsilon."""
    exact, b = a.detach().double(), b.detach().double()
    return float((exact - b).norm() / b.norm()) / torch.finfo(a.dtype).eps


def some_ids(hf: dict, B: int = 2) -> torch.Tensor:
    return torch.randint(hf["vocab_size"], (B, hf["n_positions"]), generator=torch.Generator().manual_seed(1))


# Parity


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("hf", SIZES, ids=lambda hf: f"C{hf['n_embd']}")
def test_a_hub_checkpoint_computes_what_its_arrays_say(tmp_path, hf, flash, dtype):
    """The distance to a float64 reference is rounding: it falls with the precision, which a mistake does not."""
    W = random_tensors(hf)
    model = from_hf(write(tmp_path / "a", W, hf)).to(dtype)
    for block in model.transformer.h:
        block.attn.flash = flash
    ids = some_ids(hf, B=1)
    assert apart(model(ids)[0][0], reference(W, hf, ids[0])) < 8


def hf_model(hf: dict, seed: int = 0):
    """transformers' GPT-2 with random weights in which no part is negligible."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**hf, **quiet, bos_token_id=0, eos_token_id=0)
    )
    model.load_state_dict({f"transformer.{n}": t for n, t in random_tensors(hf, seed).items()}, strict=False)
    return model


def compare(ours: GPT, theirs, ids: torch.Tensor, limit: float) -> None:
    """Logits, loss and the gradient of every parameter agree to `limit` epsilons."""
    ours.train(), theirs.train()  # dropout is 0: nothing may differ
    logits, loss = ours(ids[:, :-1], ids[:, 1:])
    out = theirs(ids, labels=ids)
    their_loss = out.loss
    if loss.dtype == torch.float64:  # transformers computes its loss in float32 whatever the model's dtype
        their_loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
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
@pytest.mark.parametrize("hf", SIZES, ids=lambda hf: f"C{hf['n_embd']}")
def test_transformers_to_ours(tmp_path, hf, dtype):
    theirs = hf_model(hf)
    theirs.save_pretrained(tmp_path)
    compare(from_hf(tmp_path).to(dtype), theirs.to(dtype), some_ids(hf), 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("hf", SIZES, ids=lambda hf: f"C{hf['n_embd']}")
def test_ours_to_transformers_without_a_warning(tmp_path, hf, dtype, caplog, capfd):
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    transformers.logging.enable_propagation()
    ours = from_hf(write(tmp_path / "in", random_tensors(hf), hf))  # every tensor at work, biases too
    to_hf(ours, tmp_path / "out")
    with caplog.at_level(logging.INFO):
        theirs, info = transformers.GPT2LMHeadModel.from_pretrained(
            tmp_path / "out", output_loading_info=True
        )
    assert not any(info.values()), info
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING], caplog.text
    assert "warn" not in "".join(capfd.readouterr()).lower()
    assert theirs.dtype == torch.float32 and theirs.config.eos_token_id == hf["vocab_size"] - 1
    compare(ours.to(dtype), theirs.to(dtype), some_ids(hf), 32)


def test_auto_classes_read_it_and_generate_the_same(tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = from_hf(write(tmp_path / "in", random_tensors(SMALL), SMALL))
    to_hf(ours, tmp_path / "out")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = some_ids(SMALL, B=1)[:, :4]
    for _ in range(8):
        ids = torch.cat((ids, ours(ids)[0][:, -1:].argmax(-1)), 1)
    theirs.generation_config.eos_token_id = None
    assert theirs.generate(ids[:, :4], max_new_tokens=8, do_sample=False, pad_token_id=0).equal(ids)


@pytest.mark.slow
def test_parity_at_gpt2_small(tmp_path):
    """124,439,808 parameters, both directions, in float32."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    )
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
    prefixed = from_hf(write(tmp_path / "b", clean | tied, SMALL))
    for a, b in zip(plain.parameters(), prefixed.parameters()):
        assert torch.equal(a, b)


def shard(folder: Path, tensors: dict, hf: dict, n: int = 3) -> Path:
    write(folder, {}, hf)
    (folder / "model.safetensors").unlink()
    names = [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)]
    weight_map = {name: names[i % n] for i, name in enumerate(tensors)}
    for file in names:
        save_file({k: t for k, t in tensors.items() if weight_map[k] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder


def test_shards(tmp_path):
    W = random_tensors(SMALL)
    one, three = from_hf(write(tmp_path / "a", W, SMALL)), from_hf(shard(tmp_path / "b", W, SMALL))
    assert all(map(torch.equal, one.parameters(), three.parameters()))


def test_shards_that_transformers_writes(tmp_path):
    theirs = hf_model(SMALL)
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
    W = random_tensors(SMALL)
    folder = write(tmp_path / "a", W | {"ln_f.bias": W["ln_f.bias"].half()}, SMALL)
    assert {p.dtype for p in from_hf(folder).parameters()} == {torch.float32}
    wide = from_hf(folder, dtype=torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert torch.equal(wide.lm_head.weight, W["wte.weight"].double())


def test_the_loaded_model_is_whole(tmp_path):
    """Tied, in eval mode, no buffer lost on the way from meta, and the global random state untouched."""
    folder = write(tmp_path / "a", random_tensors(SMALL), SMALL, attn_pdrop=0.1)
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
    config = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=24, bias=bias)
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    to_hf(model, tmp_path / "a")
    again = from_hf(tmp_path / "a")
    ids = torch.arange(16)[None]
    assert apart(again(ids)[0], model.eval()(ids)[0]) < 4
    if bias:
        assert again.config == config
        assert all(map(torch.equal, again.parameters(), model.parameters()))
    else:
        assert again.config.bias
        assert not any(p.any() for name, p in again.named_parameters() if name.endswith("bias"))


def test_a_padded_vocabulary_is_not_written(tmp_path):
    config = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=24, padded_vocab_size=64)
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.transformer.wte.weight[40:] = 7.0  # as training might leave them
    to_hf(model, tmp_path)
    assert load_file(tmp_path / "model.safetensors")["transformer.wte.weight"].shape == (40, 24)
    again = from_hf(tmp_path)
    assert again.config.vocab_size == 40 and again.config.padded_vocab_size is None
    ids = torch.arange(16)[None]
    torch.testing.assert_close(again(ids)[0], model(ids)[0])


def test_no_bias_model_in_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=24, bias=False)
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    to_hf(model, tmp_path)
    theirs, info = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    ids = torch.arange(16)[None]
    assert apart(model(ids)[0], theirs.eval()(ids).logits) < 8


def test_writing_replaces_whole_files_only(tmp_path, monkeypatch):
    """A writer that dies leaves the old checkpoint, and no debris."""
    config = GPTConfig(block_size=8, vocab_size=20, n_layer=1, n_head=1, n_embd=8)
    to_hf(GPT(config, generator=torch.Generator().manual_seed(0)), tmp_path)
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(old) == {"config.json", "model.safetensors"}

    def dies(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("nanogpt.labs.formats.hf.save_file", dies)
    with pytest.raises(KeyboardInterrupt):
        to_hf(GPT(config, generator=torch.Generator().manual_seed(1)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_the_file_is_plain_safetensors(tmp_path):
    """By hand: eight bytes, a JSON header, and the transposed c_proj where the header says."""
    config = GPTConfig(block_size=8, vocab_size=20, n_layer=1, n_head=1, n_embd=8)
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    to_hf(model, tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt", "n_head": "1"}
    assert "lm_head.weight" not in header and len(header) == len(list(model.parameters()))
    entry = header["transformer.h.0.attn.c_proj.weight"]
    start, stop = entry["data_offsets"]
    array = np.frombuffer(raw[8 + length :][start:stop], "<f4").reshape(entry["shape"])
    assert np.array_equal(array, model.transformer.h[0].attn.c_proj.weight.detach().numpy().T)


def test_a_wrapped_model_is_refused(tmp_path):
    model = GPT(GPTConfig(block_size=8, vocab_size=20, n_layer=1, n_head=1, n_embd=8))
    with pytest.raises(ValueError, match="DataParallel"):
        to_hf(torch.nn.DataParallel(model), tmp_path)
    assert not list(tmp_path.iterdir())


# Errors: one sentence that names what is wrong


def refused(folder, *words: str, error=ValueError) -> str:
    with pytest.raises(error) as info:
        from_hf(folder)
    text = str(info.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    return text


def test_missing_unexpected_and_wrong_shape_in_one_error(tmp_path):
    W = random_tensors(SMALL)
    del W["h.1.attn.c_proj.bias"]
    W["h.7.extra"] = torch.ones(2)
    W["h.0.mlp.c_fc.weight"] = W["h.0.mlp.c_fc.weight"].T.contiguous()
    text = refused(write(tmp_path / "a", W, SMALL), "missing: h.1.attn.c_proj.bias", "unexpected: h.7.extra")
    assert "h.0.mlp.c_fc.weight is (128, 32), not (32, 128)" in text


def test_a_whole_missing_block_is_counted_not_listed(tmp_path):
    W = {n: t for n, t in random_tensors(SMALL).items() if not n.startswith("h.2.")}
    assert len(refused(write(tmp_path / "a", W, SMALL), "and 8 more")) < 300


@pytest.mark.parametrize("key", ["n_positions", "vocab_size", "n_embd", "n_layer"])
def test_config_and_weights_disagree(tmp_path, key):
    folder = write(tmp_path / "a", random_tensors(SMALL), SMALL)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | SMALL | {key: SMALL[key] + 4}))
    refused(folder, "missing: h.3" if key == "n_layer" else "wrong shape")


@pytest.mark.parametrize(
    "setting",
    [
        {"model_type": "llama"},
        {"model_type": None},
        {"activation_function": "gelu"},
        {"layer_norm_epsilon": 1e-6},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"add_cross_attention": True},
        {"tie_word_embeddings": False},
        {"n_inner": 100},
        {"n_layer": "3"},
        {"n_head": 5},
        {"n_embd": 0},
    ],
    ids=str,
)
def test_another_architecture_is_refused_by_name(tmp_path, setting):
    (name, value), *_ = setting.items()
    refused(write(tmp_path / "a", random_tensors(SMALL), SMALL, **setting), name, str(value))


@pytest.mark.parametrize(
    "size",
    [{"vocab_size": 4 * 10**8}, {"n_layer": 100_000}, {"n_positions": 10**30}, {"n_embd": 4 * 10**9}],
    ids=str,
)
def test_a_size_beyond_the_weights_is_refused_before_a_model_is_built(tmp_path, size, monkeypatch):
    folder = write(tmp_path / "a", random_tensors(SMALL), SMALL, **size)
    monkeypatch.setattr("nanogpt.pretrained.GPT", lambda config: pytest.fail("built"))
    (name, value), *_ = size.items()
    refused(folder, f"{name}={value}", "more than anything in the weights")


def test_another_number_of_heads_is_noticed_in_what_to_hf_wrote(tmp_path):
    """2 heads of 16 or 4 of 8: every array fits, so only the note in the file tells."""
    to_hf(from_hf(write(tmp_path / "a", random_tensors(SMALL), SMALL)), tmp_path / "b")
    config = json.loads((tmp_path / "b/config.json").read_text())
    (tmp_path / "b/config.json").write_text(json.dumps(config | {"n_head": 2}))
    refused(tmp_path / "b", "n_head=2", "written with 4")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path, value):
    W = random_tensors(SMALL)
    W["h.1.mlp.c_fc.bias"][3] = value
    name = "h.1.mlp.c_fc.bias"
    refused(
        write(tmp_path / "a", W, SMALL), in_our_words(copy_weights, f"{name} holds NaN or infinity", name)
    )


def test_these_settings_change_nothing(tmp_path):
    extra = {"n_inner": 4 * SMALL["n_embd"], "reorder_and_upcast_attn": True, "n_ctx": 32, "resid_pdrop": 0.1}
    from_hf(write(tmp_path / "a", random_tensors(SMALL), SMALL, **extra))


def test_an_output_head_of_its_own_is_refused(tmp_path):
    W = random_tensors(SMALL)
    refused(
        write(tmp_path / "a", W | {"lm_head.weight": W["wte.weight"] + 1e-3}, SMALL),
        in_our_words(copy_weights, "lm_head.weight", ""),
    )


def test_quantised_weights_are_refused(tmp_path):
    W = random_tensors(SMALL)
    W["h.0.attn.c_attn.weight"] = W["h.0.attn.c_attn.weight"].to(torch.int8)
    refused(write(tmp_path / "a", W, SMALL), "not floating point: h.0.attn.c_attn.weight is I8")


def test_the_same_tensor_twice_is_refused(tmp_path):
    W = random_tensors(SMALL)
    refused(write(tmp_path / "a", W | {"transformer.wte.weight": W["wte.weight"] + 1}, SMALL), "wte.weight")


def test_pickle_is_never_read(tmp_path):
    folder = write(tmp_path / "a", {}, SMALL)
    (folder / "model.safetensors").unlink()
    torch.save(random_tensors(SMALL), folder / "pytorch_model.bin")
    refused(folder, "pickle", "save_pretrained", error=FileNotFoundError)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "a/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "/x.safetensors",
        "x.bin",
        3,
    ],
)
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    folder = shard(tmp_path / "a", random_tensors(SMALL), SMALL)
    save_file(random_tensors(SMALL), tmp_path / "x.safetensors")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["wte.weight"] = name
    index.write_text(json.dumps(content))
    refused(folder, repr(name), "nothing was read")


def test_broken_files(tmp_path):
    refused(tmp_path / "a", "is no folder", error=FileNotFoundError)
    folder = shard(tmp_path / "a", random_tensors(SMALL), SMALL)
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


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of huggingface.co as a download needs: what a commit holds, and /owner/model/resolve/commit/file."""

    root: Path
    asked: list[str]
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0].strip("/")
        if path.startswith("api/models/"):
            body, error = self.listing("/".join(path.split("/")[2:4]), tree="/tree/" in path)
        else:
            repo, _, file = path.partition("/resolve/")
            file = self.root / repo / file.partition("/")[2]
            body, error = (file.read_bytes(), None) if file.is_file() else (b"", "EntryNotFound")
        self.send_response(404 if error else 200)
        self.send_header("X-Repo-Commit", self.COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def listing(self, repo: str, tree: bool) -> tuple[bytes, str | None]:
        """A repository's files, as /tree lists them or as the description of its commit does."""
        if not (self.root / repo).is_dir():
            return b"", "RepoNotFound"
        files = [
            {
                "type": "file",
                "path": path.name,
                "rfilename": path.name,
                "size": path.stat().st_size,
                "oid": "0" * 40,
            }
            for path in sorted((self.root / repo).iterdir())
        ]
        return json.dumps(
            files if tree else {"id": repo, "sha": self.COMMIT, "siblings": files}
        ).encode(), None

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(tmp_path):
    """A hub on this machine, and a function that loads from it in a fresh process with a cache of its own."""
    handler = type("Handler", (Hub,), {"root": tmp_path / "hub", "asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "import sys, torch; from nanogpt.pretrained import from_hf\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(sum(p.double().sum() for p in from_hf(name).parameters()).item())\n"
        "    except OSError as error: print(error)\n"
    )

    def load(*names: str, code: str = code, **env: str) -> list[str]:
        url = f"http://127.0.0.1:{server.server_port}"
        here = {
            "HF_ENDPOINT": url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }
        (script := tmp_path / "load.py").write_text(code)
        done = subprocess.run(
            [sys.executable, str(script), *names],
            env=os.environ | here | {"PYTHONPATH": str(Path(__file__).parents[2])} | env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    load.root, load.asked, load.cache = handler.root, handler.asked, tmp_path / "cache"
    yield load
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_the_hub_its_cache_and_offline_mode(hub):
    (hub.root / "someone").mkdir(parents=True)
    W = random_tensors(SMALL)
    write(hub.root / "someone/whole", W, SMALL)
    shard(hub.root / "someone/shards", W, SMALL)
    pickled = write(hub.root / "someone/pickled", {}, SMALL)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    expected = str(sum(p.double().sum() for p in from_hf(hub.root / "someone/whole").parameters()).item())
    names = ["someone/whole", "someone/shards"]

    whole, shards, pickle, nobody = hub(*names, "someone/pickled", "someone/nobody")
    assert whole == shards == expected
    assert "pickle" in pickle and "RepositoryNotFoundError" in nobody and "check the name" in nobody
    assert not any("pytorch_model" in line for line in hub.asked)
    weights = [line for line in hub.asked if "safetensors" in line]
    assert all(f"/resolve/{Hub.COMMIT}/" in line for line in weights), "all files from config.json's commit"

    hub.asked.clear()
    assert hub(*names) == [expected, expected]
    assert hub(*names, HF_HUB_OFFLINE="1") == [expected, expected]
    assert not hub.asked, "what is in the cache asks nobody"
    (part,) = hub.cache.rglob("model-00002-of-00003.safetensors")
    part.unlink()
    assert hub(names[1]) == [expected], "what a broken download lacks is fetched"

    offline, dead = (
        hub("someone/else", HF_HUB_OFFLINE="1"),
        hub("someone/else", HF_ENDPOINT="http://127.0.0.1:9"),
    )
    assert "not in the cache" in offline[0] and "OfflineModeIsEnabled" in offline[0]
    assert "from ConnectError" in dead[0] and "try again online" in dead[0]


@pytest.mark.slow
def test_a_cache_with_the_config_alone_is_completed(hub):
    """A program that fetched config.json singly leaves such a cache: it must be asked for what it lacks."""
    (hub.root / "someone").mkdir(parents=True)
    write(hub.root / "someone/whole", random_tensors(SMALL), SMALL)
    hub(
        "someone/whole",
        code="import sys, huggingface_hub as h; h.hf_hub_download(sys.argv[1], 'config.json')",
    )
    assert not any(hub.cache.rglob("*.safetensors"))
    (said,) = hub("someone/whole", HF_HUB_OFFLINE="1")
    assert "someone/whole" in said and "nan" not in said
    expected = sum(p.double().sum() for p in from_hf(hub.root / "someone/whole").parameters()).item()
    assert hub("someone/whole") == [str(expected)]


def test_the_class_loads_by_the_name_that_everybody_tries_first(tmp_path):
    model = GPT(GPTConfig(block_size=8, vocab_size=16, n_layer=1, n_head=2, n_embd=8))
    to_hf(model, tmp_path)
    again = GPT.from_pretrained(tmp_path, dropout=0.1)
    assert type(again) is GPT and again.config.dropout == 0.1
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters()))


def test_the_recorded_words_of_gpt2_and_their_ids_agree(gpt2_vocab):
    """By tiktoken. Where OpenAI's weights can be loaded, the notebook compares our model's ids with these."""
    import tiktoken

    path = Path(__file__).parents[2] / "data" / "measurements" / "gpt2-words.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))
    published, first = tiktoken.get_encoding("gpt2"), recorded["openings"][0]
    assert published.decode(first["ids"]) == first["text"]
    assert (
        first["ids"][: len(first["prompt_ids"])] == published.encode(first["prompt"]) == first["prompt_ids"]
    )
    assert len(first["ids"]) == 20, "18 new ones, as the test's max_length=20 demands"
    assert all(opening["text"].startswith(opening["prompt"]) for opening in recorded["openings"])


def test_a_setting_that_nobody_knows_is_refused_by_its_name():
    """A list of what is wrong is never complete: tomorrow's libraries have other settings."""
    with pytest.raises(ValueError, match=r"config.json: .*: logit_softcap is unknown"):
        config_from_hf({"model_type": "gpt2", "logit_softcap": 30.0})


def test_every_setting_that_transformers_writes_is_known():
    transformers = pytest.importorskip("transformers")
    assert config_from_hf(transformers.GPT2Config().to_dict()) == GPTConfig()


def test_settings_of_published_files_are_known():
    """Keys that old versions of transformers wrote into every file, as distilgpt2's and multigen's config.json have them."""
    old = dict(
        _num_labels=1,
        bad_words_ids=None,
        do_sample=False,
        early_stopping=False,
        finetuning_task=None,
        n_ctx=1024,
    )
    old |= dict(
        decoder_start_token_id=None, is_decoder=False, pruned_heads={}, output_past=True, use_bfloat16=False
    )
    old |= dict(
        length_penalty=1.0, max_length=20, no_repeat_ngram_size=0, task_specific_params={}, temperature=1.0
    )
    assert config_from_hf({"model_type": "gpt2"} | old) == GPTConfig()
    with pytest.raises(ValueError, match="pruned_heads is"):
        config_from_hf({"model_type": "gpt2", "pruned_heads": {"0": [1]}})


def test_what_is_there_in_place_of_weights_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="it holds an adapter of PEFT"):
        from_hf(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ValueError, match="but a git-lfs pointer"):
        from_hf(tmp_path)
