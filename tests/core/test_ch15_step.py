"""Chapter 10b's step and chapter 07's loop, grown by chapter 15: accumulation, clipping, the optimizer of the recipe."""

import math
from types import SimpleNamespace

import pytest
import torch
from small_model import new_model, one_batch, updated

from nanogpt.optim import make_optimizer
from nanogpt.precision import LossScaler
from nanogpt.training import accumulate_gradients, train, train_step


def test_a_scaler_multiplies_the_gradient_and_not_the_loss_that_is_returned():
    plain, scaled = new_model(), new_model()
    loss = accumulate_gradients(plain, [one_batch()])
    assert torch.equal(accumulate_gradients(scaled, [one_batch()], scaler=LossScaler(2.0**4)), loss)
    for p, q in zip(plain.parameters(), scaled.parameters()):
        assert torch.allclose(2.0**4 * p.grad, q.grad, atol=1e-5)
    for batches, precision in (([], "float32"), ([one_batch()], "fp16")):  # no batch, no scaler
        with pytest.raises(ValueError):
            accumulate_gradients(plain, batches, precision)


def test_tf32_is_on_for_each_micro_batch_and_the_setting_is_left_as_found(monkeypatch):
    monkeypatch.setattr("nanogpt.precision.why_not", lambda precision, device: None)
    model, seen, setting = new_model(), [], torch.get_float32_matmul_precision
    layer = model.transformer.h[0].mlp.c_fc
    layer.register_forward_hook(lambda *_: seen.append(("forward", setting())))
    layer.weight.register_hook(lambda grad: seen.append(("backward", setting())))
    found = setting()
    accumulate_gradients(model, [one_batch(), one_batch(seed=1)], "tf32")
    assert seen == [("forward", "high"), ("backward", "high")] * 2
    assert setting() == found


def test_clipping_follows_unscaling():
    plain = updated([one_batch()], clip=0.01)[1]
    scaled = updated([one_batch()], clip=0.01, scaler=LossScaler(scale=2.0**10))[1]
    assert torch.allclose(plain, scaled, atol=1e-6), "the clipped update depends on the scale"


def state_of(model, optimizer):
    moments = [v for p in model.parameters() for v in optimizer.state[p].values()]
    return [t.clone() for t in [*model.parameters(), *moments]]


def test_an_overflow_is_skipped_and_nan_refused_and_both_leave_weights_and_optimizer_untouched():
    model, scaler = new_model(), LossScaler(scale=2.0**10)
    optimizer = make_optimizer(model, 1e-2)
    train_step(model, optimizer, [one_batch()], clip=1.0)
    before = state_of(model, optimizer)
    hook = model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * math.inf)
    loss = train_step(model, optimizer, [one_batch(seed=1)], clip=1.0, scaler=scaler)
    assert loss.isfinite() and scaler.scale == 2.0**9
    assert all(map(torch.equal, before, state_of(model, optimizer)))
    with pytest.raises(FloatingPointError, match=r"its gradient's norm (inf|nan)"):
        train_step(model, optimizer, [one_batch(seed=1)], clip=1.0)
    assert all(map(torch.equal, before, state_of(model, optimizer)))
    hook.remove()
    train_step(model, optimizer, [one_batch(seed=1)], clip=1.0)
    assert not any(map(torch.equal, before[:10], state_of(model, optimizer)))


STREAM = SimpleNamespace(next_batch=lambda: one_batch(B=4))


@pytest.mark.parametrize(
    "precision, products, weights",
    [
        ("bf16", torch.bfloat16, torch.float32),
        ("fp16", torch.float16, torch.float32),  # which needs a scaler
        ("bf16-masters", torch.bfloat16, torch.bfloat16),
    ],
)
def test_training_hands_on_the_word_for_precision(precision, products, weights):
    model, seen = new_model(), set()
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.add(y.dtype))
    assert train(model, STREAM, 3, 1e-3, precision=precision)[-1] < 5
    assert seen == {products} and {p.dtype for p in model.parameters()} == {weights}


def test_training_clips():
    model = new_model()
    train(model, STREAM, 1, 1e-3, clip=1e-3)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_the_same_seed_gives_the_same_losses_bit_for_bit_and_leaves_the_global_random_state_alone():
    def run(seed=3, on_step=None):
        g = torch.Generator().manual_seed(seed)
        return train(new_model(dropout=0.2), STREAM, 4, 1e-3, generator=g, on_step=on_step)

    before = torch.get_rng_state()
    first = run()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    assert run() == run(on_step=lambda step, loss: torch.rand(step + 1)) == first
    assert run(seed=4) != first  # dropout does depend on the generator
