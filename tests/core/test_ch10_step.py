"""Chapter 10's step and its held-out loss, in any precision."""

import math

import numpy as np
import pytest
import torch

from nanogpt.evaluate import evaluate
from nanogpt.model import GPT, GPTConfig
from nanogpt.training import scale_init, train_step

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def one_batch(B=2, T=16, seed=0):
    x = torch.randint(0, 40, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return x[:, :-1], x[:, 1:]


def test_the_loss_stays_on_the_device_and_remembers_no_graph():
    model = new_model()
    loss = train_step(model, torch.optim.AdamW(model.parameters()), [one_batch()])
    assert isinstance(loss, torch.Tensor) and loss.shape == () and not loss.requires_grad


def test_a_step_forgets_the_gradient_of_the_step_before():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train_step(model, optimizer, [one_batch()])
    once = [p.grad.clone() for p in model.parameters()]
    train_step(model, optimizer, [one_batch()])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), once))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_leaves_the_weights_untouched_even_if_the_loss_is(bad):
    model = new_model()
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * bad)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(FloatingPointError, match=r"the loss is 3\.\d+ and its gradient's norm (nan|inf)"):
        train_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), [one_batch()])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_word_for_precision_reaches_the_products(precision, dtype):
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train_step(model, optimizer, [one_batch()], precision)
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
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for seed in range(2):
        train_step(model, optimizer, [one_batch(seed=seed)], precision)
    inside = "high" if precision == "tf32" else "highest"
    assert seen == [("forward", inside), ("backward", inside)] * 2
    assert setting() == found
    evaluate(model, [np.array([EOT, 1, 2, 3, 4, 5], dtype=np.uint16)], EOT, precision=precision)
    assert seen[-1] == ("forward", inside) and setting() == found


def test_an_error_within_leaves_the_setting_as_found(setting):
    torch.set_float32_matmul_precision("high")
    model, (x, y) = new_model(), one_batch()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match="token id 40"):
        train_step(model, optimizer, [(x + 40, y)])
    assert setting() == "high"
    with pytest.raises(ValueError, match="NVIDIA"):
        train_step(model, optimizer, [one_batch()], "tf32")
    assert setting() == "high"
