import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nanogpt.evals.losses import evaluate
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.precision import LossScaler
from nanogpt.gpt.train import scale_init, train, train_step
from nanogpt.text.data import BatchStream
from nanogpt.text.shards import write_shard

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def documents(lengths, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([[EOT, *rng.integers(0, EOT, n)] for n in lengths]).astype(np.uint16)


@pytest.fixture
def stream(tmp_path):
    write_shard(tmp_path / "train_000000.bin", documents([10] * 60))
    return lambda **kw: BatchStream([tmp_path / "train_000000.bin"], B=4, T=16, **kw)


def one_batch(B=2, T=16, seed=0):
    x = torch.randint(0, 40, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return x[:, :-1], x[:, 1:]


# One step


def updated(micro_batches, **options):
    """The loss and all weights after one step of plain gradient descent, so that a weight moves by its gradient."""
    model = new_model()
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), micro_batches, **options)
    return loss, torch.cat([p.detach().flatten() for p in model.parameters()])


def test_however_a_batch_is_cut_the_update_is_the_same():
    x, y = one_batch(B=4)
    y = y.clone()
    y[1, 3:] = y[2] = -100  # the third micro-batch has no target that counts
    loss, weights = updated([(x, y)])
    other_loss, others = updated(list(zip(x.split(1), y.split(1))))
    assert torch.allclose(loss, other_loss, rtol=1e-5), "the loss depends on how the batch was cut"
    assert torch.allclose(weights, others, atol=1e-6), "the update depends on how the batch was cut"


def test_the_loss_stays_on_the_device_and_remembers_no_graph():
    loss, _ = updated([one_batch()])
    assert isinstance(loss, torch.Tensor) and loss.shape == () and not loss.requires_grad


def test_clipping_bounds_the_gradients_length_and_keeps_its_direction():
    start = torch.cat([p.detach().flatten() for p in new_model().parameters()])
    free, clipped = (updated([one_batch()], clip=clip)[1] - start for clip in (None, 0.01))
    assert free.norm() > 0.1
    assert clipped.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert torch.cosine_similarity(free, clipped, dim=0) > 0.9999


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_leaves_the_weights_untouched_even_if_the_loss_is(bad):
    model = new_model()
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * bad)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(FloatingPointError, match=r"the loss is 3\.\d+ and its gradient's norm (nan|inf)"):
        train_step(model, make_optimizer(model, 1e-3), [one_batch()])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_scaler_changes_no_update_and_skips_one_that_overflowed():
    plain, scaled = updated([one_batch()])[1], updated([one_batch()], scaler=LossScaler(scale=2.0**10))[1]
    assert torch.allclose(plain, scaled, atol=1e-6)
    model, scaler = new_model(), LossScaler(scale=2.0**10)
    model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda grad: grad * math.inf)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_step(model, make_optimizer(model, 1e-3), [one_batch()], scaler=scaler)
    assert scaler.scale == 2.0**9 and all(
        torch.equal(p, before[name]) for name, p in model.named_parameters()
    )


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


def test_a_step_that_cannot_be_is_one_clear_error():
    model = new_model()
    with pytest.raises(ValueError, match="fp16 needs a scaler"):
        train_step(model, make_optimizer(model, 1e-3), [one_batch()], "fp16")
    with pytest.raises(ValueError, match="at least one micro-batch"):
        train_step(model, make_optimizer(model, 1e-3), [])


def test_the_first_step_moves_every_weight_by_the_rate():
    model = new_model(bias=False)
    before = [p.detach().clone() for p in model.parameters()]
    train_step(model, make_optimizer(model, 1e-3), [one_batch(B=8)])
    for p, w in zip(model.parameters(), before):
        decay = 0.01 * 1e-3 if p.dim() > 1 else 0
        moved = (p - (1 - decay) * w).abs()[p.grad.abs() > 1e-5]
        assert torch.allclose(moved, torch.tensor(1e-3), rtol=5e-3)


# Training


def test_one_batch_is_learned_by_heart():
    losses = train(new_model(n_layer=1), SimpleNamespace(next_batch=one_batch), 40, 1e-2)
    assert losses[0] > 3 and losses[-1] < 0.1, f"40 steps on one batch end at {losses[-1]:.2f} nats"


def test_the_same_seed_gives_the_same_losses_bit_for_bit_whatever_ran_before(stream):
    def run(seed=3):
        g = torch.Generator().manual_seed(seed)
        return train(new_model(dropout=0.2), stream(), 4, 1e-3, generator=g)

    torch.manual_seed(1)
    first = run()
    torch.rand(100)
    assert run() == first
    assert run(seed=4) != first  # dropout does depend on the generator


def test_training_leaves_the_global_random_state_alone_and_is_not_disturbed_by_callbacks(stream):
    def run(on_step=None):
        return train(new_model(dropout=0.2), stream(), 4, 1e-3, on_step=on_step)

    before = torch.get_rng_state()
    quiet = run()
    assert torch.equal(torch.get_rng_state(), before)
    assert run(on_step=lambda step, loss: torch.rand(step + 1)) == quiet


def test_callback_sees_every_step(stream):
    seen = []
    losses = train(
        new_model(), stream(), 5, 1e-3, on_step=lambda step, loss: seen.append((step, loss.item()))
    )
    assert seen == list(enumerate(losses))


def rate_of(optimizer) -> float:
    [rate] = {group["lr"] for group in optimizer.param_groups}  # all groups have the same
    return rate


def test_the_learning_rate_is_constant_and_then_falls_to_zero(stream, monkeypatch):
    rates = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: (rates.append(rate_of(self)), step(self))[1])
    train(new_model(), stream(), 10, 1e-3, decay=0.5)
    assert rates[:6] == [1e-3] * 6 and rates[-1] == pytest.approx(0.2e-3)
    assert np.allclose(np.diff(rates[5:]), -0.2e-3)
    rates.clear()
    train(new_model(), stream(), 10, 1e-3, decay=0.0)
    assert rates == [1e-3] * 10


def test_dropout_is_on_and_another_in_every_step():
    model = new_model(dropout=0.5).eval()
    losses = train(model, SimpleNamespace(next_batch=one_batch), 4, lr=0.0)
    assert len(set(losses)) == 4, (
        f"with a rate of 0 only dropout can change the loss, and it did not: {losses}"
    )


@pytest.mark.parametrize("precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_word_for_precision_reaches_the_products(stream, precision, dtype):
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    train(model, stream(), 2, 1e-3, precision=precision)
    evaluate(model, [documents([5])], EOT, precision=precision)
    assert set(seen) == {dtype} and len(seen) == 3
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_training_in_fp16_scales_the_loss_and_with_masters_leaves_bf16_weights(stream):
    half, masters = new_model(), new_model()
    assert train(half, stream(), 3, 1e-3, precision="fp16")[-1] < 5
    assert train(masters, stream(), 3, 1e-3, precision="bf16-masters")[-1] < 5
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    assert {p.dtype for p in masters.parameters()} == {torch.bfloat16}


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_lower(stream):
    model = new_model()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"step 0: the loss is nan.*; lower lr=0\.001, or set clip"):
        train(model, stream(), 3, 1e-3)


def test_no_steps_are_no_losses(stream):
    assert train(new_model(), stream(), 0, 1e-3) == []


def test_modules_for_training_need_no_tokenizer():
    code = """import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("regex", "tiktoken"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import nanogpt.gpt.train, nanogpt.gpt.weights, nanogpt.evals.losses, nanogpt.text.data"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr


def test_scale_init_changes_nothing_at_width_768_and_keeps_the_signal_elsewhere():
    for C in (64, 768):
        config = GPTConfig(block_size=8, vocab_size=50, n_layer=1, n_head=4, n_embd=C)
        plain, scaled = (GPT(config, torch.Generator().manual_seed(0)) for _ in range(2))
        scale_init(scaled)
        w = scaled.transformer.h[0].mlp.c_fc.weight
        assert w.std().item() * math.sqrt(C) == pytest.approx(0.02 * math.sqrt(768), rel=0.05)
        assert torch.equal(w, plain.transformer.h[0].mlp.c_fc.weight) == (C == 768)
        assert scaled.lm_head.weight is scaled.transformer.wte.weight  # tied, and scaled once
        assert torch.equal(scaled.transformer.ln_f.weight, torch.ones(C))
