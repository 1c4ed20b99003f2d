"""Chapter 07's step and loop, grown by chapter 15: clipping, accept, the optimizer of the recipe."""

import math
from types import SimpleNamespace

import pytest
import torch

from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.precision import LossScaler
from nanogpt.training import scale_init, train, train_step

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)


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


def test_a_batch_without_any_target_changes_nothing():
    x, y = one_batch(B=4)
    y = y.clone()
    y[1, 3:] = y[2] = -100  # the third micro-batch has no target that counts
    loss, weights = updated([(x, y)])
    other_loss, others = updated(list(zip(x.split(1), y.split(1))))
    assert torch.allclose(loss, other_loss, rtol=1e-5), "the loss depends on how the batch was cut"
    assert torch.allclose(weights, others, atol=1e-6), "the update depends on how the batch was cut"


def test_clipping_bounds_the_gradients_length_and_keeps_its_direction():
    start = torch.cat([p.detach().flatten() for p in new_model().parameters()])
    free, clipped = (updated([one_batch()], clip=clip)[1] - start for clip in (None, 0.01))
    assert free.norm() > 0.1
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert torch.cosine_similarity(free, clipped, dim=0) > 0.9999


def state_of(model, optimizer):
    moments = [v for p in model.parameters() for v in optimizer.state[p].values()]
    return [t.clone() for t in [*model.parameters(), *moments]]


@pytest.mark.parametrize("scaler", [None, LossScaler(scale=2.0**10)])
def test_accept_is_asked_once_with_the_loss_and_the_norm_before_clipping(scaler):
    model, asked = new_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loss = train_step(
        model,
        optimizer,
        [one_batch()],
        clip=1e-3,
        scaler=scaler,
        accept=lambda *given: asked.append(given) or True,
    )
    clipped = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    train_step(model, optimizer, [one_batch()])
    whole = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    [(seen, norm)] = asked
    assert seen.shape == norm.shape == () and torch.equal(seen, loss)
    assert norm.item() == pytest.approx(whole.item(), rel=1e-5), (
        "it was scaled or clipped before it was shown"
    )
    assert clipped.item() == pytest.approx(1e-3, rel=1e-3)


def test_what_accept_refuses_leaves_weights_and_optimizer_untouched():
    model = new_model()
    optimizer = make_optimizer(model, 1e-2)
    train_step(model, optimizer, [one_batch()])
    before = state_of(model, optimizer)
    train_step(model, optimizer, [one_batch(seed=1)], accept=lambda loss, norm: False)
    assert all(map(torch.equal, before, state_of(model, optimizer)))
    train_step(model, optimizer, [one_batch(seed=1)], accept=lambda loss, norm: True)
    assert not any(map(torch.equal, before[:10], state_of(model, optimizer)))


def test_accept_replaces_the_check_for_nan_and_an_overflow_is_skipped_without_asking():
    model, asked = new_model(), []
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * math.inf)
    before = [p.detach().clone() for p in model.parameters()]

    def refuse(loss, norm):
        asked.append(norm)
        return False

    train_step(model, make_optimizer(model, 1e-3), [one_batch()], accept=refuse)
    assert len(asked) == 1 and not asked[0].isfinite()
    train_step(model, make_optimizer(model, 1e-3), [one_batch()], scaler=LossScaler(), accept=refuse)
    assert len(asked) == 1, "the scaler skips by itself"
    assert all(map(torch.equal, before, model.parameters()))


def test_the_first_step_moves_every_weight_by_the_rate():
    model = new_model(bias=False)
    before = [p.detach().clone() for p in model.parameters()]
    train_step(model, make_optimizer(model, 1e-3), [one_batch(B=8)])
    for p, w in zip(model.parameters(), before):
        decay = 0.01 * 1e-3 if p.dim() > 1 else 0
        moved = (p - (1 - decay) * w).abs()[p.grad.abs() > 1e-5]
        assert torch.allclose(moved, torch.tensor(1e-3), rtol=5e-3)


STREAM = SimpleNamespace(next_batch=lambda: one_batch(B=4))


def test_training_hands_on_the_word_for_precision():
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    train(model, STREAM, 2, 1e-3, precision="bf16")
    assert seen == [torch.bfloat16] * 2


def test_training_in_fp16_scales_the_loss_and_with_masters_leaves_bf16_weights():
    half, masters = new_model(), new_model()
    assert train(half, STREAM, 3, 1e-3, precision="fp16")[-1] < 5
    assert train(masters, STREAM, 3, 1e-3, precision="bf16-masters")[-1] < 5
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert {p.dtype for p in masters.parameters()} == {torch.bfloat16}


def test_training_clips():
    model = new_model()
    train(model, STREAM, 1, 1e-3, clip=1e-3)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_a_loss_that_is_not_finite_says_to_set_clip():
    model = new_model()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"step 0: the loss is nan.*; lower lr=0\.001, or set clip"):
        train(model, STREAM, 3, 1e-3)
