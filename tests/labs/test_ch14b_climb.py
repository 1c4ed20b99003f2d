"""Chapter 14b: a climb is forecast, climbed in turns, judged, and told; it cannot print the impossible as a result."""

import itertools
import math
from functools import partial

import ladder_steps
import pytest
import torch
from matplotlib.patches import Rectangle

from nanogpt.labs.ladder import climb
from nanogpt.labs.ladder.ladder import MODELS, gains_so_far, staircase, together
from nanogpt.labs.ladder.rungs import RUNGS, make_step, obstacles, rungs_up_to
from nanogpt.labs.roofline.clock import measure_roofline
from nanogpt.model import GPTConfig

CPU = torch.device("cpu")


@pytest.fixture
def measured(monkeypatch):
    return partial(ladder_steps.measured, monkeypatch)


def stairs(rungs):
    """The axes of the drawn ladder."""
    return staircase({"rungs": rungs, "device": "a CPU", "size": "small", "batch": 1, "seq": 64}).axes[0]


# In turns


def test_calls_take_turns_and_nobody_is_always_first():
    order = []
    calls = [lambda name=name: order.append(name) or len(order) for name in "ab"]
    assert climb.in_turns(calls, 3) == [[1, 4, 5], [2, 3, 6]]


def test_every_rung_takes_turns_with_the_one_below_and_ten_at_least(measured):
    rungs, skipped, _, calls = measured()
    names = [rung["name"] for rung in rungs]
    assert {*names} | {*skipped} == set(RUNGS)
    assert calls[:11] == ["float32"] * 11
    for below, name in itertools.pairwise(names):
        first = calls.index(name) + 1  # after the step that says how long one takes
        assert sorted(calls[first : first + 20]) == sorted([below, name] * 10)
    assert all(rung["steps"] == 10 for rung in rungs)


def test_no_gain_where_there_is_none(measured):
    def noise(name, B, n):
        return {"seconds": 1.0 + 0.5 * ((7 * n * n + 3 * n) % 11) / 11}

    rungs, _, said, _ = measured(noise)
    assert said.count("no difference was measured") >= len(rungs) - 2
    assert together(rungs) == pytest.approx(math.prod(r["gain"]["ratio"] for r in rungs[1:]))


def test_a_stair_is_the_first_time_over_the_gains_of_pairs_whatever_the_machine_did_meanwhile(measured):
    """Steps become slower and slower; flash, and nothing else, takes half of a step's time."""

    def slower(name, B, n):
        return {"seconds": (1.0 + 0.02 * n) / (2 if name not in ("float32", "bf16", "compile") else 1)}

    rungs, _, said, _ = measured(slower)
    assert gains_so_far(rungs)[-1] == together(rungs) == pytest.approx(2, rel=0.1)
    assert rungs[0]["ms"] / rungs[-1]["ms"] < 1, "the medians say that nothing was gained"
    assert "timed again, takes" in said
    drawn = stairs(rungs)
    heights = [bar.get_height() for bar in drawn.patches if isinstance(bar, Rectangle)]
    assert heights == pytest.approx([rungs[0]["ms"] / gain for gain in gains_so_far(rungs)])
    assert drawn.texts[-1].get_text().startswith(f"{together(rungs):.2f}×")


@pytest.mark.parametrize(
    ("gain", "wide"), [((1.5, 1.3, 1.7), False), ((1.5, 1.27, 1.6), True), ((1.5, 1.4, 1.73), True)]
)
def test_an_interval_that_reaches_further_than_15_percent_is_of_a_disturbed_rung(gain, wide):
    assert climb.disturbed({"gain": dict(zip(("ratio", "low", "high"), gain))}) == wide
    assert not climb.disturbed({"name": "float32"})


def test_gains_are_paired():
    before, after = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert climb.gain_over(before, after) == {"ratio": 2.0, "low": 2.0, "high": 2.0, "sure": True}


# What cannot be is not a result


TOLD = {"name": "bf16", "loss": 9.5, "grad_norm": 1.7, "predicted_ms": 40, "limit_ms": 30, "peak_mib": 900}


def judged(times, **change):
    return climb.judge_rung(TOLD | change, times, TOLD, MODELS["124M"], (4, 64), 4e11)


def test_a_rung_is_judged_by_its_times():
    rung = judged([2.0, 2.1, 2.2, 2.3, 2.4])
    assert (rung["q1_ms"], rung["ms"], rung["q3_ms"]) == pytest.approx((2100, 2200, 2300))
    assert rung["tokens_per_s"] == pytest.approx(4 * 64 / 2.2) and rung["steps"] == 5
    assert rung["mfu"] == pytest.approx(4 * 64 * 6 * 124.4e6 / 2.2 / 4e11, rel=0.02)
    assert rung["agrees"] and not rung["flags"]


@pytest.mark.parametrize(
    "times, change, word",
    [
        ([0.4] * 5, {}, "MFU 120%"),
        ([2.0] * 5, {"limit_ms": 2100.0}, "faster than its limit"),
        ([1.0, 1.0, 2.0, 3.0, 3.0], {}, "unsteady"),
    ],
)
def test_the_impossible_is_flagged(times, change, word):
    rung = judged(times, **change)
    (flag,) = rung["flags"]
    assert word in flag and f"! {flag}" in climb.row(rung, rung)


def test_a_machine_that_changed_is_told_with_its_rung(measured):
    rungs, _, said, _ = measured(limits=lambda n: 42.3 / 57.8 if n > 40 else 1.0)
    marked = [rung["name"] for rung in rungs if rung["flags"]]
    assert 0 < len(marked) < len(rungs) and "copy: 0.73× the rate before the climb" in said
    assert not any(rung["flags"] for rung in measured(limits=lambda n: 1.1 if n else 1.0)[0])
    assert len(climb.moved({"fresh pages": 1.0}, {"fresh pages": 1.3})) == 1


# Failures


def test_a_failed_rung_takes_along_what_stands_on_it(measured):
    def answer(name, B, n):
        if name == "flash":
            raise RuntimeError("a kernel is missing\nmore of it")
        if name == "bf16":
            raise RuntimeError("no bfloat16")
        return {}

    _, reasons, _, calls = measured(answer)
    assert reasons["flash"] == "it failed: a kernel is missing" and "bf16" in reasons["bf16 weights"]
    assert not {"flash", "bf16 weights"} & set(calls)


@pytest.mark.parametrize(
    "wrong", [{"loss": 9.2}, {"loss": math.nan}, {"grad_norm": math.nan}, {"grad_norm": 0.47}]
)
def test_another_loss_or_gradient_disagrees(measured, wrong):
    rungs, _, said, _ = measured(lambda name, B, n: wrong if name == "flash" else {})
    assert [r["name"] for r in rungs if not r["agrees"]] == ["flash"]
    assert said.count("DISAGREES") == 1
    assert any("loss disagrees" in text.get_text() for text in stairs(rungs).texts)


def test_a_rung_that_sees_the_future_disagrees(monkeypatch):
    skip = ["kept memory", "compile", "bf16", "TF32", "fp16"]
    tiny = GPTConfig(block_size=64, vocab_size=512, n_layer=2, n_head=4, n_embd=64)
    causal = climb.first_steps("flash", tiny, 1, 64, CPU, skip)[1]
    kernel = torch.nn.functional.scaled_dot_product_attention
    unmasked = lambda q, k, v, dropout_p, is_causal: kernel(q, k, v)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", unmasked)
    wrong = climb.first_steps("flash", tiny, 1, 64, CPU, skip)[1]
    assert abs(wrong["loss"] - causal["loss"]) < climb.TOLERANCE["loss"], "the loss alone would tell"
    for told, agrees in ((causal, True), (wrong, False)):
        rung = climb.judge_rung(told | {"limit_ms": 0.0}, [1.0] * 5, causal, tiny, (1, 64), 1e12)
        assert rung["agrees"] == agrees


def test_kept_memory_is_asked_for_on_its_rung_only(monkeypatch):
    asked = []
    monkeypatch.setattr(climb, "keep_memory", lambda: asked.append(True))
    tiny = GPTConfig(block_size=8, vocab_size=50, n_layer=1, n_head=2, n_embd=16)
    skip = ["compile", "TF32", "fp16", "bf16"]
    climb.first_steps("float32", tiny, 1, 8, CPU, skip)
    assert not asked
    climb.first_steps("kept memory", tiny, 1, 8, CPU, skip)
    assert asked


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(RUNGS))
def test_every_rung_runs_on_a_gpu_with_the_first_ones_loss(name):
    device = torch.device("cuda")
    roof = measure_roofline(device)
    skip = obstacles(device, roof, ["bf16"] if name == "fp16" else [])
    if name in skip:
        pytest.skip(skip[name])
    call, rung = climb.first_steps(name, MODELS["small"], 2, 128, device, skip)
    _, first = make_step(MODELS["small"], rungs_up_to("float32"), 2, 128, device)
    losses = [first().item() for _ in range(6)]
    assert abs(rung["loss"] - losses[-1]) < climb.TOLERANCE["loss"]
    assert rung["peak_mib"] > 0 and call() > 0
