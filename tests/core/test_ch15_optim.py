import csv
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import new_model, one_batch

from course.paths import ROOT
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import cosine, decay_groups, make_optimizer, wsd
from nanogpt.training import train_step

# The rate: pure functions of the step

fraction = st.floats(0, 1)
runs = {"steps": st.integers(1, 300), "warmup": st.integers(0, 400), "minimum": fraction}


@st.composite
def schedules(draw):
    """steps, warm-up, minimum, the steepest fall a step, and the factors of steps 0 .. steps + 5."""
    steps, warmup, minimum, decay = (draw(s) for s in (*runs.values(), fraction))
    if draw(st.booleans()):
        factors = [cosine(i, steps, warmup=warmup, minimum=minimum) for i in range(steps + 6)]
        return steps, warmup, minimum, (1 - minimum) * math.pi / 2 / max(1, steps - warmup), factors
    factors = [wsd(i, steps, warmup=warmup, decay=decay, minimum=minimum) for i in range(steps + 6)]
    return steps, warmup, minimum, (1 - minimum) / max(1, decay * steps), factors


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_schedule_rises_by_the_warm_up_falls_once_to_the_minimum_and_makes_no_jump(schedule):
    steps, warmup, minimum, slope, factors = schedule
    assert all(0 <= factor <= 1 for factor in factors)
    assert all(factor <= (i + 1) / max(1, warmup) + 1e-12 for i, factor in enumerate(factors))
    assert all(factor >= min(minimum, (i + 1) / max(1, warmup)) - 1e-12 for i, factor in enumerate(factors))
    turns = [b < a - 1e-12 for a, b in pairwise(factors) if abs(b - a) > 1e-12]
    assert turns == sorted(turns), "it rises again after it has fallen"
    rise = 1 / max(1, warmup)
    assert all(-slope - 1e-9 <= b - a <= rise + 1e-9 for a, b in pairwise(factors)), "it jumps"
    if warmup < steps:
        assert factors[steps:] == pytest.approx([minimum] * 6)


@settings(max_examples=50, deadline=None)
@given(**runs, decay=fraction)
def test_between_warm_up_and_fall_the_factor_is_one(steps, warmup, minimum, decay):
    stable = range(max(0, warmup - 1), math.floor(steps - max(1.0, decay * steps)) + 1)
    assert all(wsd(i, steps, warmup=warmup, decay=decay, minimum=minimum) == 1 for i in stable)
    if 0 < warmup < steps:
        assert cosine(warmup - 1, steps, warmup=warmup, minimum=minimum) == 1
    assert cosine(50, 90, warmup=10, minimum=minimum) == pytest.approx((1 + minimum) / 2)


def test_the_cosine_is_that_of_a_published_log():
    """Megatron-LM, lr 1e-4 to 1e-5, 1,000 iterations, 10 of them warm-up; it counts those that were not skipped."""
    with open(ROOT / "data" / "reference" / "megatron_124m.csv", encoding="utf-8") as file:
        log = list(csv.DictReader(file))
    skipped = 0
    for row in log:
        skipped += int(row["skipped"])
        updates = int(row["iteration"]) - skipped
        if updates > 10:
            expected = float(row["learning_rate"])
            assert 1e-4 * cosine(updates, 1000, warmup=10, minimum=0.1) == pytest.approx(expected, rel=1e-6)
    assert skipped == 21 and len(log) > 20


# What decays


@pytest.mark.parametrize("bias", [True, False])
def test_groups_hold_every_parameter_once_the_tied_one_too_and_by_dimension(bias):
    model = new_model(bias=bias)
    decayed, rest = decay_groups(model, 0.1)
    held = [id(p) for p in decayed["params"] + rest["params"]]
    assert sorted(held) == sorted({id(p) for p in model.parameters()})
    assert {p.dim() for p in decayed["params"]} == {2} and {p.dim() for p in rest["params"]} == {1}
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert sum(p is model.lm_head.weight for p in decayed["params"]) == 1


def test_groups_of_gpt2_are_those_that_nanogpt_prints():
    with torch.device("meta"):
        groups = decay_groups(GPT(GPTConfig(padded_vocab_size=50304)), 0.1)
    counts = [(len(group["params"]), sum(p.numel() for p in group["params"])) for group in groups]
    assert counts == [(50, 124_354_560), (98, 121_344)]


def test_what_is_frozen_is_in_no_group_and_an_empty_group_is_left_out():
    model = new_model()
    for p in model.parameters():
        p.requires_grad = p.dim() < 2
    [group] = decay_groups(model, 0.1)
    assert group["weight_decay"] == 0.0 and all(p.dim() == 1 for p in group["params"])


@pytest.mark.parametrize("asked", [{}, {"betas": (0.8, 0.9), "weight_decay": 0.2}])
def test_the_optimizer_is_fused_and_gives_the_numbers_of_the_plain_one(asked):
    ours, plain = new_model(), new_model()
    how = {"betas": (0.9, 0.98), "weight_decay": 0.01} | asked
    groups = decay_groups(plain, how["weight_decay"])
    fused = make_optimizer(ours, 1e-2, **asked)
    unfused = torch.optim.AdamW(groups, lr=1e-2, betas=how["betas"], foreach=False)
    masters = make_optimizer(new_model(), 1e-2, "bf16-masters", **asked)
    assert all(group["betas"] == how["betas"] for group in masters.param_groups)
    assert [group["weight_decay"] for group in masters.param_groups] == [how["weight_decay"], 0.0]
    assert all(group["fused"] for group in fused.param_groups)
    for step in range(5):  # each with another gradient: of equal ones every average is the same
        for p, q in zip(ours.parameters(), plain.parameters()):
            p.grad = q.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step + p.numel()))
        fused.step()
        unfused.step()
    assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(ours.parameters(), plain.parameters()))


# Accumulation


def batch(counts: list[int], seed: int = 0):
    """x and y, a row for each count, which says how many of its targets count."""
    x, y = one_batch(B=len(counts), T=8, seed=seed)
    y = y.clone()
    for row, count in zip(y, counts):
        row[count:] = -100
    return x, y


def by_train_step(parts, model, clip=None):
    train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), parts, clip=clip)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def apart(g, whole) -> float:
    return ((g - whole).norm() / whole.norm()).item()


counted = st.lists(st.integers(0, 8), min_size=1, max_size=8).filter(any)  # a part may have none


@settings(max_examples=30, deadline=None)
@given(counted, st.lists(st.integers(1, 7), max_size=4), st.integers(0, 99))
def test_micro_batches_have_the_large_batchs_gradient_however_it_is_cut(counts, cuts, seed):
    model, (x, y) = new_model(), batch(counts, seed)
    cuts = sorted({cut for cut in cuts if cut < len(counts)})
    parts = list(zip(x.tensor_split(cuts), y.tensor_split(cuts)))
    assert apart(by_train_step(parts, model), by_train_step([(x, y)], model)) < 1e-5
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), parts)
    assert loss.item() == pytest.approx(model(x, y)[1].item(), rel=1e-5)


# Clipping


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 10), st.integers(0, 99))
def test_clipping_keeps_the_direction_and_bounds_the_length(clip, seed):
    model, parts = new_model(), [batch([8, 8], seed)]
    whole, clipped = by_train_step(parts, model), by_train_step(parts, model, clip=clip)
    assert clipped.norm() <= clip * (1 + 1e-4)
    expected = whole * min(1.0, clip / whole.norm().item())
    assert apart(clipped, expected) < 1e-4, (
        "one factor for all tensors, and none for a gradient that is short enough"
    )
