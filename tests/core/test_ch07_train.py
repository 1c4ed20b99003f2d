import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from small_model import new_model, one_batch
from wording import in_our_words

from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import wsd
from nanogpt.training import scale_init, train

STREAM = SimpleNamespace(next_batch=one_batch)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_leaves_the_weights_untouched_even_if_the_loss_is(bad):
    model = new_model()
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * bad)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ours = r"step 0: the loss is 3\.\d+ and its gradient's norm (nan|inf); lower lr=0\.001"
    with pytest.raises(FloatingPointError, match=in_our_words(train, ours, "0.*(nan|inf)")):
        train(model, STREAM, 1, 1e-3, decay=0.5)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_each_step_uses_the_gradient_of_its_batch_alone():
    model, twin = new_model(), new_model()
    batches = [one_batch(seed=seed) for seed in range(3)]
    losses = train(model, SimpleNamespace(next_batch=iter(batches).__next__), 3, 0.0, decay=0.5)
    for loss, (x, y) in zip(losses, batches):
        assert loss == pytest.approx(twin(x, y)[1].item())
    twin(*batches[-1])[1].backward()
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.allclose(p.grad, q.grad, atol=1e-6)


def test_one_batch_is_learned_by_heart():
    losses = train(new_model(n_layer=1), STREAM, 40, 1e-2, decay=0.3)
    assert losses[0] > 3 and losses[-1] < 0.1, f"40 steps on one batch end at {losses[-1]:.2f} nats"


def test_callback_sees_every_step():
    seen = []
    losses = train(
        new_model(), STREAM, 5, 1e-3, decay=0.3, on_step=lambda step, loss: seen.append((step, loss.item()))
    )
    assert seen == list(enumerate(losses))


def test_the_factor_is_one_until_the_rate_falls_and_never_negative():
    factors = [wsd(step, 10, decay=0.5) for step in range(10)]
    assert factors == pytest.approx([1] * 6 + [0.8, 0.6, 0.4, 0.2])
    assert [wsd(step, 10, decay=0.0) for step in range(10)] == [1] * 10


def test_the_learning_rate_is_constant_and_then_falls_to_zero(monkeypatch):
    rates, step = [], torch.optim.AdamW.step

    def watched(optimizer):
        [rate] = {group["lr"] for group in optimizer.param_groups}  # all groups have the same
        rates.append(rate)
        return step(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    train(new_model(), STREAM, 10, 1e-3, decay=0.5)
    assert rates == pytest.approx([1e-3] * 6 + [0.8e-3, 0.6e-3, 0.4e-3, 0.2e-3])


def test_dropout_is_on_and_another_in_every_step():
    model = new_model(dropout=0.5).eval()
    losses = train(model, STREAM, 4, lr=0.0, decay=0.3)
    assert len(set(losses)) == 4, "with a rate of 0 only dropout can change the loss"


def test_no_steps_are_no_losses():
    assert train(new_model(), STREAM, 0, 1e-3, decay=0.3) == []


def test_modules_for_training_need_no_tokenizer():
    code = """import sys
sys.modules |= dict.fromkeys(["regex", "tiktoken"])
import nanogpt.training, nanogpt.weights, nanogpt.evaluate, nanogpt.optim, nanogpt.data"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_scale_init_changes_nothing_at_width_768_and_keeps_the_signal_elsewhere():
    for C in (64, 768):
        config = GPTConfig(block_size=8, vocab_size=50, n_layer=1, n_head=4, n_embd=C)
        plain, scaled = (GPT(config, torch.Generator().manual_seed(0)) for _ in range(2))
        assert scale_init(scaled) is scaled
        w = scaled.transformer.h[0].mlp.c_fc.weight
        assert w.std().item() * math.sqrt(C) == pytest.approx(0.02 * math.sqrt(768), rel=0.05)
        for (name, before), after in zip(plain.named_parameters(), scaled.parameters(), strict=True):
            assert torch.equal(before, after) == (C == 768 or before.dim() == 1), name
        assert scaled.lm_head.weight is scaled.transformer.wte.weight  # tied, and scaled once


def test_small_models_begin_with_positions_of_which_only_the_distance_counts():
    config = GPTConfig(block_size=96, vocab_size=50, n_layer=1, n_head=4, n_embd=64)
    wpe = scale_init(GPT(config)).transformer.wpe.weight
    products = wpe @ wpe.T
    for distance in (0, 1, 7, 60):
        along = products.diagonal(distance)
        assert along.max() - along.min() < 1e-5 * products.max()
    assert wpe.square().mean().sqrt().item() == pytest.approx(2 * 0.02 * math.sqrt(768 / 64), rel=1e-3)
