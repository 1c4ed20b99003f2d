"""The step of chapter 10 as chapter 10b grows it, with the scaler."""

import math

import pytest
import torch

from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import LossScaler
from nanogpt.training import scale_init, train_step

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def one_batch(B=2, T=16, seed=0):
    x = torch.randint(0, 40, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return x[:, :-1], x[:, 1:]


def updated(batches, **options):
    """The loss and all weights after one step of plain gradient descent, so that a weight moves by its gradient."""
    model = new_model()
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), batches, **options)
    return loss, torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_scaler_changes_no_update_and_skips_one_that_overflowed():
    plain, scaled = updated([one_batch()])[1], updated([one_batch()], scaler=LossScaler(scale=2.0**10))[1]
    assert torch.allclose(plain, scaled, atol=1e-6)
    model, scaler = new_model(), LossScaler(scale=2.0**10)
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * math.inf)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), [one_batch()], scaler=scaler)
    assert scaler.scale == 2.0**9 and all(
        torch.equal(p, before[name]) for name, p in model.named_parameters()
    )


def test_a_run_in_fp16_learns_a_batch_and_its_weights_stay_float32():
    model, scaler = new_model(), LossScaler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = [train_step(model, optimizer, [one_batch()], "fp16", scaler=scaler).item() for _ in range(6)]
    assert losses[-1] < losses[0] - 0.3
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_fp16_without_a_scaler_is_one_clear_error():
    model = new_model()
    with pytest.raises(ValueError, match="fp16 needs a scaler"):
        train_step(model, torch.optim.AdamW(model.parameters()), [one_batch()], "fp16")


def test_the_loss_that_is_returned_is_not_scaled():
    plain, scaled = updated([one_batch()])[0], updated([one_batch()], scaler=LossScaler(scale=2.0**4))[0]
    assert torch.equal(plain, scaled) and not scaled.requires_grad


@pytest.mark.parametrize(
    "precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_step_hands_on_the_word_for_precision_and_leaves_the_global_setting_as_found(precision, dtype):
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    before = torch.get_float32_matmul_precision()
    try:
        for found in ("high", "highest"):
            torch.set_float32_matmul_precision(found)
            scaler = LossScaler() if precision == "fp16" else None
            train_step(model, torch.optim.AdamW(model.parameters()), [one_batch()], precision, scaler=scaler)
            assert torch.get_float32_matmul_precision() == found
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == [dtype] * 2
