"""Chapter 07's gradient and held-out loss, grown by chapter 10: precision."""

import numpy as np
import pytest
import torch

from nanogpt.evaluate import evaluate
from nanogpt.model import GPT, GPTConfig
from nanogpt.training import accumulate_gradients, scale_init

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def one_batch(B=2, T=16, seed=0):
    x = torch.randint(0, 40, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return x[:, :-1], x[:, 1:]


@pytest.mark.parametrize("precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_word_for_precision_reaches_the_products(precision, dtype):
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    for _ in range(2):
        accumulate_gradients(model, [one_batch()], precision)
    evaluate(model, [np.array([EOT, 1, 2, 3, 4, 5], dtype=np.uint16)], EOT, precision=precision)
    assert set(seen) == {dtype} and len(seen) == 3
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.fixture
def setting():
    """Reads the global setting of float32 products, which the test may change."""
    before = torch.get_float32_matmul_precision()
    yield torch.get_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("found", ["highest", "high", "medium"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16", "bf16-masters"])
def test_tf32_is_on_in_forward_and_backward_for_tf32_alone_and_the_setting_is_left_as_found(
    precision, found, setting, monkeypatch
):
    monkeypatch.setattr("nanogpt.precision.why_not", lambda precision, device: None)
    model, seen = new_model(), []
    layer = model.transformer.h[0].mlp.c_fc
    layer.register_forward_hook(lambda *_: seen.append(("forward", setting())))
    layer.weight.register_hook(lambda grad: seen.append(("backward", setting())))
    torch.set_float32_matmul_precision(found)
    accumulate_gradients(model, [one_batch(), one_batch(seed=1)], precision)
    inside = "high" if precision == "tf32" else "highest"
    assert seen == [("forward", inside), ("backward", inside)] * 2
    assert setting() == found
    evaluate(model, [np.array([EOT, 1, 2, 3, 4, 5], dtype=np.uint16)], EOT, precision=precision)
    assert seen[-1] == ("forward", inside) and setting() == found


def test_an_error_within_leaves_the_setting_as_found(setting):
    torch.set_float32_matmul_precision("high")
    x, y = one_batch()
    with pytest.raises(ValueError, match="token id 40"):
        accumulate_gradients(new_model(), [(x + 40, y)])
    assert setting() == "high"
    with pytest.raises(ValueError, match="NVIDIA"):
        accumulate_gradients(new_model(), [one_batch()], "tf32")
    assert setting() == "high"
