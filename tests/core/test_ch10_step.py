"""Chapter 10's step and its held-out loss, in any precision."""

import pytest
import torch
from small_model import EOT, documents, new_model, one_batch

from nanogpt.evaluate import evaluate
from nanogpt.training import train_step


@pytest.mark.parametrize("precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_word_for_precision_reaches_the_products(precision, dtype):
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    optimizer, gradients = torch.optim.SGD(model.parameters(), lr=0.0), []
    for _ in range(2):
        loss = train_step(model, optimizer, [one_batch()], precision)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.equal(*gradients), "a step adds to the gradient of the step before"
    assert loss.shape == () and not loss.requires_grad
    evaluate(model, [documents([5])], EOT, precision=precision)
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
    evaluate(model, [documents([5])], EOT, precision=precision)
    assert seen[-1] == ("forward", inside) and setting() == found


def test_an_error_within_leaves_the_setting_as_found(setting):
    torch.set_float32_matmul_precision("high")
    model, (x, y) = new_model(), one_batch()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch, precision, word in (((x + 40, y), "float32", "token id"), ((x, y), "tf32", "NVIDIA")):
        with pytest.raises(ValueError, match=word):
            train_step(model, optimizer, [batch], precision)
        assert setting() == "high"
