"""Chapter 14b: a climb is forecast, climbed in turns, judged, and told; it cannot print the impossible as a result."""

import argparse
import itertools
import json
import math
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanogpt.gpt.model import GPTConfig
from nanogpt.speed import climb as climb_module
from nanogpt.speed import ladder
from nanogpt.speed.climb import first_steps, gain_over, in_turns, judge, moved, row
from nanogpt.speed.forecast import predict
from nanogpt.speed.ladder import MODELS, checked_sizes, climb, parser, staircase, together
from nanogpt.speed.roofline import Roofline, measure_roofline
from nanogpt.speed.rungs import RUNGS, make_step, obstacles, rungs_up_to

DATA = Path(__file__).parents[2] / "data"
CPU = torch.device("cpu")
ROOF = {"device": "cpu", "flops": {"float32": 1e11, "bfloat16": 4e11}, "bandwidth": 2e10}
MACHINE = {"device": "a CPU", "versions": {}, "date": "2026-11-23", "load": 0.0, "roofline": ROOF}
MACHINE |= {"fault_s": 1e-6, "start_s": 5e-6, "peak_flops": 4e11, "peak_source": "measured matrix product"}
EVERY = {*MACHINE, "size", "batch", "seq", "rungs", "skipped", "command", "asked_batch"} - {"start_s"}
KEYS = {
    "name",
    "ms",
    "q1_ms",
    "q3_ms",
    "steps",
    "first_step_s",
    "tokens_per_s",
    "peak_mib",
    "loss",
    "grad_norm",
}
KEYS |= {"mfu", "predicted_ms", "agrees"}


@pytest.fixture
def climbed(monkeypatch):
    """Climb with steps that take no time: climbed(answer) -> (result, what was said, the rungs as they took steps).

    answer(name, B, n) changes what a rung tells; its "seconds" is a step's, n counts the steps of all rungs.
    """
    monkeypatch.setattr(ladder, "measure_machine", lambda device: MACHINE)
    monkeypatch.setattr(ladder, "reached_roofline", lambda *args: Roofline(**ROOF))
    real = ladder.obstacles
    monkeypatch.setattr(ladder, "obstacles", lambda *args: real(*args) | {"kept memory": "not here"})

    def climbed(answer=lambda name, B, n: {}, size="small", B=1, skip=(), limits=lambda n: 1.0):
        said, calls = [], []

        def begin(name, config, B, T, device, skipped):
            told = {
                "name": name,
                "first_step_s": 1.0,
                "loss": 9.0,
                "grad_norm": 0.5,
                "peak_mib": 300.0,
                "faults": 0,
            }
            told |= answer(name, B, len(calls))
            told.pop("seconds", None)

            def call():
                calls.append(name)
                return answer(name, B, len(calls)).get("seconds", 2.0 + 0.001 * (len(calls) % 5))

            return call, told

        monkeypatch.setattr(climb_module, "first_steps", begin)
        monkeypatch.setattr(climb_module, "limits_now", lambda *args: {"copy": limits(len(calls))})
        return climb(size, B, 64, "cpu", skip, 1.0, said.append), "\n".join(said), calls

    return climbed


# In turns, after the forecast


def test_calls_take_turns_and_nobody_is_always_first():
    order = []
    calls = [lambda name=name: order.append(name) or len(order) for name in "ab"]
    assert in_turns(calls, 3) == [[1, 4, 5], [2, 3, 6]]
    assert "".join(order) == "abbaab"


def test_the_forecast_is_said_before_the_first_step(climbed):
    result, said, _calls = climbed()
    lines = said.splitlines()
    assert "forecast" in lines[0].lower() and lines.index(
        "Measured, each rung in turns with the one below:"
    ) == 1 + len(result["rungs"])
    predicted = predict(MODELS["small"], {"float32"}, 1, 64, Roofline(**ROOF), 1e-6, 5e-6)
    assert result["rungs"][0]["predicted_ms"] == pytest.approx(1e3 * sum(predicted.values()))


def test_every_rung_takes_turns_with_the_one_below_and_ten_at_least(climbed):
    result, _, calls = climbed()
    names = [rung["name"] for rung in result["rungs"]]
    assert {*names} | {r["name"] for r in result["skipped"]} == set(RUNGS)
    assert calls[:11] == ["float32"] * 11
    for below, name in itertools.pairwise(names):
        first = calls.index(name) + 1  # after the step that says how long one takes
        assert sorted(calls[first : first + 20]) == sorted([below, name] * 10)
    assert all(rung["steps"] == 10 for rung in result["rungs"])
    assert set(result) >= EVERY and all(set(rung) >= KEYS for rung in result["rungs"])
    assert json.loads(json.dumps(result)) == result


def test_a_slow_phase_hits_both_and_leaves_the_gain(climbed):
    def drifting(name, B, n):
        return {"seconds": (1.0 + 0.05 * n) / (2 if name == "flash" else 1)}

    result, *_ = climbed(drifting)
    gains = {rung["name"]: rung["gain"] for rung in result["rungs"][1:]}
    assert gains["flash"]["ratio"] == pytest.approx(2, rel=0.1) and gains["flash"]["sure"]
    assert gains["nice numbers"]["ratio"] == pytest.approx(0.5, rel=0.1)


def test_no_gain_where_there_is_none(climbed):
    def noise(name, B, n):
        return {"seconds": 1.0 + 0.5 * ((7 * n * n + 3 * n) % 11) / 11}

    result, said, _ = climbed(noise)
    assert said.count("no difference was measured") >= len(result["rungs"]) - 2
    assert together(result["rungs"]) == pytest.approx(
        math.prod(r["gain"]["ratio"] for r in result["rungs"][1:])
    )


def test_gains_are_paired():
    before, after = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert gain_over(before, after) == {"ratio": 2.0, "low": 2.0, "high": 2.0, "sure": True}


# What cannot be is not a result


TOLD = {
    "name": "bf16",
    "loss": 9.5,
    "grad_norm": 1.7,
    "predicted_ms": 40.0,
    "limit_ms": 30.0,
    "peak_mib": 900,
}


def judged(times, **change):
    return judge(TOLD | change, times, TOLD, MODELS["124M"], (4, 64), 4e11)


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
    assert word in flag and f"! {flag}" in row(rung, rung)


def test_a_machine_that_changed_is_told_with_its_rung(climbed):
    result, said, _calls = climbed(limits=lambda n: 42.3 / 57.8 if n > 40 else 1.0)
    marked = [rung["name"] for rung in result["rungs"] if rung["flags"]]
    assert 0 < len(marked) < len(result["rungs"]) and "copy: 0.73× the rate before the climb" in said
    assert result["flags"] == ["copy: 0.73× the rate before the climb"]
    assert not climbed(limits=lambda n: 1.1 if n else 1.0)[0]["flags"]
    assert moved({"fresh pages": 1.0}, {"fresh pages": 1.3}) == [
        "fresh pages: 1.30× the rate before the climb"
    ]


# Failures


def test_memory_that_runs_out_halves_the_batch_and_says_so(climbed):
    def too_big(name, B, n):
        if B > 2 and name == "compile":
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return {}

    result, said, _ = climbed(too_big, B=8)
    if "compile" in {rung["name"] for rung in result["skipped"]}:
        pytest.skip("no compiler here")
    assert result["batch"] == 2 and "--batch 2" in result["command"] and result["asked_batch"] == 8
    assert [line for line in said.splitlines() if "out of memory" in line] == [
        f"out of memory at batch {B}: starting over with half of it" for B in (8, 4)
    ]


@pytest.mark.parametrize(
    "error", [MemoryError("no"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_nothing_is_left_to_halve(climbed, error):
    def never(name, B, n):
        raise error

    with pytest.raises(RuntimeError, match="shorter --seq"):
        climbed(never, B=2)


def test_a_failed_rung_takes_along_what_stands_on_it(climbed):
    def answer(name, B, n):
        if name == "flash":
            raise RuntimeError("a kernel is missing\nmore of it")
        if name == "bf16":
            raise RuntimeError("no bfloat16")
        return {}

    result, _, calls = climbed(answer)
    reasons = {r["name"]: r["reason"] for r in result["skipped"]}
    assert reasons["flash"] == "it failed: a kernel is missing" and "bf16" in reasons["bf16 weights"]
    assert not {"flash", "bf16 weights"} & set(calls)


def test_no_rung_left_is_one_sentence(climbed):
    with pytest.raises(ValueError, match="no rung is left"):
        climbed(skip=list(RUNGS))

    def never(name, B, n):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no rung is left"):
        climbed(never)


@pytest.mark.parametrize(
    "wrong", [{"loss": 9.2}, {"loss": math.nan}, {"grad_norm": math.nan}, {"grad_norm": 0.47}]
)
def test_another_loss_or_gradient_disagrees(climbed, wrong):
    result, said, _ = climbed(lambda name, B, n: wrong if name == "flash" else {})
    assert [r["name"] for r in result["rungs"] if not r["agrees"]] == ["flash"]
    assert said.count("DISAGREES") == 1
    assert any("loss disagrees" in t.get_text() for t in staircase(result).axes[0].texts)


def test_a_rung_that_sees_the_future_disagrees(monkeypatch):
    skip = ["kept memory", "compile", "bf16", "TF32", "fp16"]
    tiny = GPTConfig(block_size=64, vocab_size=512, n_layer=2, n_head=4, n_embd=64)
    causal = first_steps("flash", tiny, 1, 64, CPU, skip)[1]
    kernel = torch.nn.functional.scaled_dot_product_attention
    unmasked = lambda q, k, v, dropout_p, is_causal: kernel(q, k, v)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", unmasked)
    wrong = first_steps("flash", tiny, 1, 64, CPU, skip)[1]
    assert (
        abs(wrong["loss"] - causal["loss"]) < climb_module.TOLERANCE["loss"]
    )  # the loss alone would not tell
    found = [
        judge(told | {"limit_ms": 0.0}, [1.0] * 5, causal, tiny, (1, 64), 1e12) for told in (causal, wrong)
    ]
    assert [rung["agrees"] for rung in found] == [True, False]


def test_first_steps_tell_the_loss_of_the_sixth_and_the_gradient_of_the_first():
    tiny = GPTConfig(block_size=16, vocab_size=100, n_layer=2, n_head=2, n_embd=32)
    model, step = make_step(tiny, {"float32"}, 4, 16, CPU)
    losses, norms = [], []
    for _ in range(6):
        losses.append(step().item())
        norms.append(model.transformer.h[0].attn.c_attn.weight.grad.norm().item())
    call, told = first_steps("float32", tiny, 4, 16, CPU, [])
    assert told["loss"] == losses[5] != losses[4] and told["grad_norm"] == norms[0] != norms[5]
    assert told["first_step_s"] > 0 and told["peak_mib"] > 0 and call() > 0


def test_kept_memory_is_asked_for_on_its_rung_only(monkeypatch):
    asked = []
    monkeypatch.setattr(climb_module, "keep_memory", lambda: asked.append(True))
    tiny = GPTConfig(block_size=8, vocab_size=50, n_layer=1, n_head=2, n_embd=16)
    skip = ["compile", "TF32", "fp16", "bf16"]
    first_steps("float32", tiny, 1, 8, CPU, skip)
    assert not asked
    first_steps("kept memory", tiny, 1, 8, CPU, skip)
    assert asked


# What the command takes


def arguments(*given) -> argparse.Namespace:
    return parser().parse_args(given)


@pytest.mark.parametrize(
    "bad",
    [["--batch", "0"], ["--seq", "9999"], ["--out", "no/such/folder/a.json"], ["--out", "."], ["--plot", "."],
     ["--seconds", "-1"], ["--seconds", "nan"]],
)  # fmt: skip
def test_bad_sizes_and_files_are_refused(bad):
    with pytest.raises((ValueError, OSError)):
        checked_sizes(arguments(*bad), "cpu")


def test_a_forecast_from_a_sheet_takes_a_batch_that_fits(capsys):
    ladder.run(arguments("--predict", "T4"))
    said = capsys.readouterr().out
    assert "fp16" in said and "B=4" in said and "does not fit" not in said
    ladder.run(arguments("--predict", "T4", "--batch", "16"))
    assert "B=16" in (said := capsys.readouterr().out) and "does not fit" in said


def test_a_bare_checkout_is_enough():
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'regex', 'tiktoken', 'safetensors', 'yaml', 'IPython', 'course'):\n"
        "    sys.modules[name] = None\n"
        "import nanogpt.speed.ladder"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(ladder.__file__).parents[1])


@pytest.mark.slow
def test_a_real_climb(tmp_path):
    """In a process of its own, since kept memory stays kept."""
    out = tmp_path / "ladder.json"
    call = [
        "--device",
        "cpu",
        "--size",
        "small",
        "--seq",
        "16",
        "--seconds",
        "0",
        "--skip",
        "compile",
        "--out",
        str(out),
    ]
    code = f"from nanogpt.speed.ladder import parser, run; run(parser().parse_args({call}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    result = json.loads(out.read_text())
    assert all(rung["agrees"] and rung["ms"] > 0 and rung["steps"] == 10 for rung in result["rungs"])
    assert {"float32", "flash", "nice numbers", "fused AdamW"} <= {rung["name"] for rung in result["rungs"]}
    assert all(rung["peak_mib"] > 100 for rung in result["rungs"])


# What is recorded


def test_recorded_ladders_are_what_the_command_writes():
    paths = sorted((DATA / "measurements").glob("*.json"))
    recorded = [path for path in paths if "rungs" in json.loads(path.read_text())]
    how = "python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out data/measurements/NAME.json"
    assert recorded, f"record one: {how}"
    for path in recorded:
        result = json.loads(path.read_text())
        assert set(result) >= EVERY and all(set(rung) >= KEYS for rung in result["rungs"])
        assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} <= set(RUNGS)
        assert all(rung["agrees"] for rung in result["rungs"])
        assert platform.node() not in path.read_text() or not platform.node()
        staircase(result)


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(RUNGS))
def test_every_rung_runs_on_a_gpu_with_the_first_ones_loss(name):
    device = torch.device("cuda")
    roof = measure_roofline(device)
    skip = obstacles(device, roof, ["bf16"] if name == "fp16" else [])
    if name in skip:
        pytest.skip(skip[name])
    call, rung = first_steps(name, MODELS["small"], 2, 128, device, skip)
    _, first = make_step(MODELS["small"], rungs_up_to("float32"), 2, 128, device)
    losses = [first().item() for _ in range(6)]
    assert abs(rung["loss"] - losses[-1]) < climb_module.TOLERANCE["loss"]
    assert rung["peak_mib"] > 0 and call() > 0
