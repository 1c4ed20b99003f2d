import json

import torch
from small_model import new_model

from nanogpt.weights import load_model, save_model


def test_a_model_survives_the_disk(tmp_path):
    model = new_model().eval()
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.config == model.config and not again.training
    assert again.lm_head.weight is again.transformer.wte.weight
    for (name, p), (other, q) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == other and torch.equal(p, q)
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_weights_and_config_hold_nothing_but_weights_and_config(tmp_path):
    from safetensors import safe_open

    model = new_model()
    save_model(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config.pop("sha256")) == 64 and config == vars(model.config)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == {name for name, _ in model.named_parameters()}
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118


def test_a_padded_vocabulary_is_kept(tmp_path):
    model = new_model(padded_vocab_size=64)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert again.transformer.wte.weight.shape == (64, 32)
    x = torch.arange(10)[None]
    assert torch.equal(again(x)[0], model.eval()(x)[0])


def test_a_compiled_model_is_saved_as_the_model_itself(tmp_path):
    model = new_model()
    save_model(torch.compile(model), tmp_path)
    loaded = load_model(tmp_path).state_dict()
    assert all(torch.equal(p, loaded[name]) for name, p in model.state_dict().items())
