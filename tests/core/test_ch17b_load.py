import json
import math

import pytest
import torch
from safetensors.torch import load, save
from small_model import new_model
from wording import in_our_words

from nanogpt.weights import digest, load_model, read_unchanged, save_model


def test_loading_draws_no_random_numbers(tmp_path):
    save_model(new_model(), tmp_path)
    state = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_dtype_is_kept(tmp_path, dtype):
    model = new_model().to(dtype)
    save_model(model, tmp_path)
    assert {p.dtype for p in load_model(tmp_path).parameters()} == {dtype}


@pytest.fixture
def saved(tmp_path):
    """A folder with a saved model, and a function that writes other files with a hash that fits."""
    save_model(new_model(), tmp_path)

    def write(changes=(), weights=None):
        config = json.loads((tmp_path / "config.json").read_bytes()) | dict(changes)
        config.pop("sha256")
        data = weights or (tmp_path / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(data)
        (tmp_path / "config.json").write_text(json.dumps(config | {"sha256": digest(config, data)}))

    return tmp_path, write


def test_a_missing_file_is_named(tmp_path):
    for name in ("config.json", "model.safetensors"):
        save_model(new_model(), tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"{name} is not there; chapter 07 writes it"):
            load_model(tmp_path)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"n_layer": 100_000}, "n_layer=100000, model.safetensors has 2"),
        ({"vocab_size": 400_000_000}, "disagree about transformer.wte.weight"),
        ({"n_embd": 10**12}, "holds no model"),
        ({"n_layers": 3}, "n_layers"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_allocates_nothing(saved, changes, says):
    folder, write = saved
    write(changes)
    with pytest.raises(ValueError, match=says):
        load_model(folder)


def test_a_changed_bit_is_noticed(saved):
    folder, _ = saved
    config, weights = folder / "config.json", folder / "model.safetensors"
    whole = config.read_bytes(), weights.read_bytes()
    for path, damaged in [
        (config, whole[0].replace(b'"n_head": 2', b'"n_head": 4')),
        (config, whole[0][:-5]),
        (config, b"[1, 2]"),
        (weights, whole[1][:-1] + bytes([whole[1][-1] ^ 1])),
        (weights, whole[1][:-9]),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="holds no model that save_model wrote whole: "):
            load_model(folder)
        config.write_bytes(whole[0])
        weights.write_bytes(whole[1])
    load_model(folder)


def test_weights_that_are_no_numbers_are_refused(saved):
    folder, write = saved
    weights = load((folder / "model.safetensors").read_bytes())
    name = "transformer.h.1.mlp.c_fc.weight"
    write(weights=save(weights | {name: weights[name].int()}))
    with pytest.raises(ValueError, match=f"disagree about {name}"):
        load_model(folder)
    weights[name][0, 0] = math.nan
    write(weights=save(weights))
    with pytest.raises(ValueError, match=in_our_words(read_unchanged, f"{name} holds NaN", name)):
        load_model(folder)
