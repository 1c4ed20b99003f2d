"""Loss scaling against GradScaler, float32 masters against AdamW on float32 weights."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_model import new_model, one_batch
from wording import in_our_words

from nanogpt.labs.ladder.masters import MasterAdamW
from nanogpt.precision import LossScaler
from nanogpt.training import train_step

# Loss scaling


def steps_with_grad_scaler(goods, scale, interval):
    """(scale, weight) after each step of torch.amp.GradScaler with gradients of 1, or of infinity or NaN."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for good in goods:
        weight.grad = scaler.scale(torch.tensor([1.0, good, 1.0]))
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale(), weight.tolist()


def steps_with_ours(goods, scale, interval):
    scaler = LossScaler(scale, interval)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for good in goods:
        weight.grad = torch.tensor([1.0, good, 1.0]) * scaler.scale
        if finite := scaler.unscale([weight]):
            optimizer.step()
        scaler.update(finite)
        yield scaler.scale, weight.tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 1.0, 1.0, math.inf, -math.inf, math.nan]), max_size=40),
    st.integers(40, 125),
    st.integers(1, 5),
)
@example([1.0] * 6, 125, 1)  # grows until float32 would overflow
def test_the_scaler_decides_as_pytorchs_does(goods, exponent, interval):
    case = goods, 2.0**exponent, interval
    assert list(steps_with_ours(*case)) == list(steps_with_grad_scaler(*case))


def test_bad_steps_without_end_are_an_error_not_silence():
    scaler = LossScaler(4.0)
    scaler.update(False)
    scaler.update(False)
    assert scaler.scale == 1
    with pytest.raises(FloatingPointError, match=in_our_words(scaler.update, "even without loss scaling")):
        scaler.update(False)


@pytest.mark.parametrize("bad", [None, 0, 1])
def test_one_bad_number_in_any_parameter_spoils_the_step_and_one_without_gradient_does_not(bad):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    for i, p in enumerate(parameters[:2]):
        p.grad = torch.tensor([2.0**16, math.nan if i == bad else 1.0])
    assert LossScaler().unscale(p for p in parameters) == (bad is None)
    assert parameters[0].grad[0] == 1 and parameters[2].grad is None


def test_a_loss_that_is_nan_is_an_error_in_fp16_too_and_leaves_the_scale():
    """Only a gradient that overflowed is the scaler's business."""
    model = new_model()
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = math.nan
    scaler, before = LossScaler(2.0**4), [p.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), [one_batch()], "fp16", scaler=scaler)
    assert scaler.scale == 2.0**4
    assert all(torch.equal(p, q) or p.isnan().any() for p, q in zip(model.parameters(), before))


def test_a_scaler_goes_on_from_its_saved_state():
    scaler = LossScaler(2.0**10, 5)
    for finite in (True, True, False, True):
        scaler.update(finite)
    again = LossScaler()
    again.load_state_dict(scaler.state_dict())
    for finite in (True,) * 5:
        scaler.update(finite)
        again.update(finite)
        assert again == scaler


# Float32 masters

OPTIONS = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def twins(seed=0):
    """Two equal networks of a few layers."""
    pair = []
    for _ in range(2):
        torch.manual_seed(seed)
        pair.append(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)))
    return pair


def give_gradients(models, step):
    """The same gradients for all, exact in bfloat16."""
    for model in models:
        g = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=g).bfloat16().to(p.dtype)


def decayed(model):
    """Two groups, as for GPT-2: matrices decay, vectors do not."""
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2]},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0, "lr": 3e-3},
    ]


def test_masters_are_what_adamw_makes_of_float32_weights_also_under_a_schedule():
    ours, theirs = twins()
    optimizers = [MasterAdamW(decayed(ours), **OPTIONS), torch.optim.AdamW(decayed(theirs), **OPTIONS)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 30) for o in optimizers]
    for step in range(30):
        give_gradients((ours, theirs), step)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert all(p.grad is None for p in ours.parameters())
    for p, q in zip(ours.parameters(), theirs.parameters()):
        master = optimizers[0].state[p]["master"]
        assert master.dtype == torch.float32 and torch.allclose(master, q, atol=1e-6)
        assert p.dtype == torch.bfloat16 and torch.equal(p, master.bfloat16())


def test_masters_resume_bit_for_bit(tmp_path):
    first, second = twins()
    optimizer = MasterAdamW(decayed(first), **OPTIONS)
    for step in range(5):
        give_gradients([first], step)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 5e-3
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed = MasterAdamW(decayed(second), **OPTIONS)
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for step in range(5, 10):
        assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters()))
        give_gradients((first, second), step)
        optimizer.step()
        resumed.step()
    for p, q in zip(first.parameters(), second.parameters()):
        for name, tensor in optimizer.state[p].items():
            assert tensor.dtype == torch.float32 and torch.equal(tensor, resumed.state[q][name]), name
