"""The step of chapter 10 as chapter 10b grows it, with the scaler."""

import math

import pytest
import torch
from small_model import new_model, one_batch, updated

from nanogpt.precision import LossScaler
from nanogpt.training import train_step


def test_a_scaler_changes_no_update_and_skips_one_that_overflowed():
    (loss, plain), (same, scaled) = updated([one_batch()]), updated([one_batch()], scaler=LossScaler(2.0**10))
    assert torch.equal(loss, same) and torch.allclose(plain, scaled, atol=1e-6)
    model, scaler = new_model(), LossScaler(scale=2.0**10)
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * math.inf)
    before = [p.detach().clone() for p in model.parameters()]
    train_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), [one_batch()], scaler=scaler)
    assert scaler.scale == 2.0**9 and all(map(torch.equal, model.parameters(), before))


def test_a_run_in_fp16_learns_a_batch_and_its_weights_stay_float32():
    model, scaler, seen = new_model(), LossScaler(), set()
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.add(y.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = [train_step(model, optimizer, [one_batch()], "fp16", scaler=scaler).item() for _ in range(6)]
    assert losses[-1] < losses[0] - 0.3
    assert seen == {torch.float16} and {p.dtype for p in model.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="scaler"):
        train_step(model, optimizer, [one_batch()], "fp16")
