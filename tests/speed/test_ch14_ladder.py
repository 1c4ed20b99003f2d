"""Chapter 14: the ladder is climbed up and down, judged, and told; it cannot print the impossible as a result."""

import json
import math
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

from nanogpt.cli import run_command
from nanogpt.gpt.model import GPTConfig
from nanogpt.speed import ladder
from nanogpt.speed.forecast import predict
from nanogpt.speed.ladder import MODELS, climb, flags, gain, row, staircase
from nanogpt.speed.roofline import Roofline, measure_roofline
from nanogpt.speed.rungs import RUNGS, make_step, obstacles, run_rung, rungs_up_to

DATA = Path(__file__).parents[2] / "data"
CPU = torch.device("cpu")
LIMITS = {
    "roofline": {"device": "cpu", "flops": {"float32": 1e11, "bfloat16": 4e11}, "bandwidth": 2e10},
    "fault_s": 1e-6,
}
EVERY = {
    "device",
    "versions",
    "date",
    "load",
    "peak_flops",
    "peak_source",
    "roofline",
    "fault_s",
    "size",
    "batch",
    "seq",
}
EVERY |= {"rungs", "skipped", "command", "asked_batch"}
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
    "mfu",
}
KEYS |= {"predicted_ms", "agrees"}


@pytest.fixture
def climbed(monkeypatch):
    """Climb with processes that answer at once: climbed(answer) -> (result, what was said, calls).

    answer(name, B, turn) changes what a rung tells, `turn` 0 on the way up and 1 on the way down.
    """
    monkeypatch.setattr(
        ladder, "obstacles", lambda device, roof, skip: obstacles(device, roof, [*skip, "kept memory"])
    )

    def climbed(answer=lambda name, B, turn: {}, size="small", B=1, skip=(), roofs=(1, 1)):
        said, calls, rooflines = [], [], []

        def in_process(call, *args):
            if call is ladder.limits:
                rooflines.append(roofs[min(len(rooflines), 1)])
                rates = {name: rate * rooflines[-1] for name, rate in LIMITS["roofline"]["flops"].items()}
                return LIMITS | {"roofline": LIMITS["roofline"] | {"flops": rates}}
            name, config, batch, _, device, skipped, _ = args
            assert call is run_rung and config == MODELS[size] and device == "cpu"
            turn = sum(n == name and b == batch for n, b, _ in calls)
            calls.append((name, batch, set(skipped)))
            told = {"name": name, "first_step_s": 1.0, "loss": 9.0, "grad_norm": 0.5, "peak_mib": 300.0}
            return told | {"times_ms": [2000.0, 2010.0, 2020.0]} | answer(name, batch, turn)

        monkeypatch.setattr(ladder, "in_process", in_process)
        return climb(size, B, 64, "cpu", skip, say=said.append), "\n".join(said), calls

    return climbed


# Up and down


def test_every_rung_is_measured_on_the_way_up_and_on_the_way_down(climbed):
    result, _, calls = climbed()
    up = [name for name in RUNGS if name not in ("kept memory", "TF32", "fp16")]
    assert [name for name, *_ in calls] == up + up[::-1]
    assert [rung["name"] for rung in result["rungs"]] == up
    assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} == set(RUNGS)
    assert set(result) >= EVERY and all(set(rung) >= KEYS for rung in result["rungs"])
    assert json.loads(json.dumps(result)) == result


def test_a_rung_is_both_passes(climbed):
    times = {0: [2000.0, 2100.0, 2200.0], 1: [2300.0, 2400.0, 2500.0]}
    result, *_ = climbed(lambda name, B, turn: {"times_ms": times[turn]}, size="124M", B=4)
    rung = result["rungs"][0]
    assert (rung["ms"], rung["passes_ms"], rung["steps"]) == (2250.0, [2100.0, 2400.0], 6)
    assert (rung["q1_ms"], rung["q3_ms"]) == (2125.0, 2375.0)
    assert rung["tokens_per_s"] == pytest.approx(4 * 64 / 2.25)
    assert rung["mfu"] == pytest.approx(4 * 64 * 6 * 124.4e6 / 2.25 / 4e11, rel=0.02)
    roof = Roofline(**LIMITS["roofline"])
    predicted = predict(MODELS["124M"], {"float32"}, 4, 64, roof, LIMITS["fault_s"])
    assert rung["predicted_ms"] == pytest.approx(1e3 * sum(predicted.values()))


def test_the_better_roofline_counts_and_a_machine_that_changed_is_told(climbed):
    slow, said, _ = climbed(roofs=(1, 1.5))
    assert slow["peak_flops"] == 6e11 and "not the same throughout: float32: 1.50×" in said
    fast, *_ = climbed(roofs=(1.5, 1))
    assert [r["predicted_ms"] for r in slow["rungs"]] == [r["predicted_ms"] for r in fast["rungs"]]
    assert not climbed(roofs=(1, 1.1))[0]["flags"]


# What cannot be is not a result


RUNG = {
    "name": "bf16",
    "ms": 50.0,
    "q1_ms": 49.0,
    "q3_ms": 52.0,
    "tokens_per_s": 5e3,
    "mfu": 0.4,
    "peak_mib": 900,
}
RUNG |= {"loss": 9.5, "grad_norm": 1.7, "agrees": True, "predicted_ms": 40.0}


@pytest.mark.parametrize(
    "change, word",
    [({"mfu": 1.01}, "MFU 101%"), ({"ms": 39.9}, "faster than its roofline"), ({"q3_ms": 64.0}, "unsteady")],
)
def test_the_impossible_is_flagged(change, word):
    assert not flags(RUNG)
    (flag,) = flags(RUNG | change)
    assert word in flag
    assert f"! {flag}" in row(RUNG | {"flags": [flag]}, RUNG, None)


def test_overlapping_middle_halves_are_no_difference():
    near, far = (
        RUNG | {"ms": 48.0, "q1_ms": 46.0, "q3_ms": 49.5},
        RUNG | {"ms": 25.0, "q1_ms": 24.0, "q3_ms": 26.0},
    )
    assert "no measurable difference" in gain(RUNG, near) and "no measurable difference" in gain(near, RUNG)
    assert gain(RUNG, far).startswith("2.00×") and gain(far, RUNG).startswith("0.50×")


def test_a_noisy_machine_gains_nothing(climbed):
    def noise(name, B, turn):
        return {"times_ms": [1000.0, 3500.0, 4500.0] if turn else [2000.0, 2100.0, 2200.0]}

    _, said, _ = climbed(noise)
    assert "unsteady" in said and said.count("no measurable difference") == 6


# Failures


def test_memory_that_runs_out_halves_the_batch_and_says_so(climbed):
    def too_big(name, B, turn):
        if B > 2 and name == "compile" and turn == (B == 4):  # once on the way up, once on the way down
            raise MemoryError("no")
        return {}

    result, said, _ = climbed(too_big, B=8)
    assert result["batch"] == 2 and "--batch 2" in result["command"] and result["asked_batch"] == 8
    assert [line for line in said.splitlines() if "atch" in line] == [
        "batch 8",
        "out of memory at batch 8: starting over with half of it",
        "batch 4",
        "out of memory at batch 4: starting over with half of it",
        "batch 2",
    ]


def test_nothing_is_left_to_halve(climbed):
    def never(name, B, turn):
        raise MemoryError("no")

    with pytest.raises(RuntimeError, match="shorter --seq"):
        climbed(never, B=2)


def test_a_failed_rung_takes_along_what_stands_on_it(climbed):
    def answer(name, B, turn):
        if name == "compile":
            raise RuntimeError("a kernel is missing")
        return {}

    result, _, calls = climbed(answer)
    reasons = {r["name"]: r["reason"] for r in result["skipped"]}
    assert "a kernel is missing" in reasons["compile"] and reasons["bf16 weights"] == "it stands on compile"
    assert "bf16 weights" not in {name for name, *_ in calls}
    assert all("compile" in skipped for name, _, skipped in calls if name in ("flash", "fused AdamW"))


def test_a_rung_that_fails_on_the_way_down_keeps_one_pass_and_a_flag(climbed):
    def answer(name, B, turn):
        if name == "flash" and turn:
            raise RuntimeError("no answer in 1200 s")
        return {}

    result, *_ = climbed(answer)
    flash = next(rung for rung in result["rungs"] if rung["name"] == "flash")
    assert flash["steps"] == 3 and any("way down" in flag for flag in flash["flags"])


def test_no_rung_left_is_one_sentence(climbed):
    with pytest.raises(RuntimeError, match="no rung is left"):
        climbed(skip=list(RUNGS))


@pytest.mark.parametrize(
    "wrong", [{"loss": 9.2}, {"loss": math.nan}, {"grad_norm": math.nan}, {"grad_norm": 0.47}]
)
def test_another_loss_or_gradient_disagrees(climbed, wrong):
    result, said, _ = climbed(lambda name, B, turn: wrong if name == "flash" else {})
    assert [r["name"] for r in result["rungs"] if not r["agrees"]] == ["flash"]
    assert said.count("DISAGREES") == 1
    assert "loss disagrees" in {t.get_text().split("\n")[-1] for t in staircase(result).axes[0].texts}


def test_a_rung_that_sees_the_future_disagrees(monkeypatch):
    skip = ["kept memory", "compile", "bf16", "TF32", "fp16"]
    tiny = GPTConfig(block_size=64, vocab_size=512, n_layer=2, n_head=4, n_embd=64)
    monkeypatch.setitem(MODELS, "tiny", tiny)
    causal = run_rung("flash", tiny, 1, 64, "cpu", skip, 0)
    kernel = torch.nn.functional.scaled_dot_product_attention
    unmasked = lambda q, k, v, dropout_p, is_causal: kernel(q, k, v)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", unmasked)
    wrong = run_rung("flash", tiny, 1, 64, "cpu", skip, 0)
    assert abs(wrong["loss"] - causal["loss"]) < ladder.TOLERANCE["loss"]  # the loss alone would not tell
    result = {"size": "tiny", "batch": 1, "seq": 64, "fault_s": 0, "peak_flops": 1e12}
    roof = Roofline(**LIMITS["roofline"])
    assert [ladder.judge([rung], result, roof, causal, [])["agrees"] for rung in (causal, wrong)] == [
        True,
        False,
    ]


# The command


def test_files_are_written_whole_or_not_at_all(climbed, monkeypatch, tmp_path, capsys):
    result, *_ = climbed()
    out, plot = tmp_path / "a.json", tmp_path / "a.png"
    call = ["--device", "cpu", "--out", str(out), "--plot", str(plot)]
    monkeypatch.setattr(ladder, "climb", lambda *args: result)
    assert run_command("ladder", call) == 0
    before = out.read_bytes()
    assert json.loads(before) == result and plot.read_bytes()[:4] == b"\x89PNG"

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(ladder, "climb", stop)
    assert run_command("ladder", call) == 130
    assert "no file was written" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.png"]


@pytest.mark.parametrize(
    "bad",
    [
        ["--batch", "0"],
        ["--seq", "9999"],
        ["--out", "no/such/folder/a.json"],
        ["--out", "."],
        ["--plot", "."],
        ["--device", "tpu"],
        ["--seconds", "-1"],
        ["--seconds", "nan"],
        ["--skip", "flesh"],
        ["--predict", "B900"],
    ],
)
def test_bad_input_is_one_sentence_before_the_climb(bad, capsys, monkeypatch):
    monkeypatch.setattr(ladder, "climb", lambda *args: pytest.fail("it climbs"))
    monkeypatch.delenv("NANOGPT_DEVICE", raising=False)
    assert run_command("ladder", bad if "--device" in bad else ["--device", "cpu", *bad]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ladder: ") and error.count("\n") == 1


def test_help_teaches_with_examples(capsys):
    assert run_command("ladder", ["--help"]) == 0
    said = capsys.readouterr().out
    assert "python -m nanogpt ladder --size 124M" in said and "--predict A100-80GB" in said
    assert all(name in said for name in RUNGS)


def test_predict_needs_no_device(capsys, monkeypatch):
    monkeypatch.setattr(ladder, "pick_device", lambda name: pytest.fail("it asks for a device"))
    assert run_command("ladder", ["--predict", "T4", "--batch", "4"]) == 0
    assert "fp16" in capsys.readouterr().out


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
    out = tmp_path / "ladder.json"
    call = ["--device", "cpu", "--size", "small", "--seq", "16", "--seconds", "0", "--skip", "compile"]
    assert run_command("ladder", [*call, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert all(rung["agrees"] and rung["ms"] > 0 and rung["steps"] == 6 for rung in result["rungs"])
    assert {"float32", "flash", "nice numbers", "fused AdamW"} <= {rung["name"] for rung in result["rungs"]}
    assert all(median(rung["passes_ms"]) > 0 and rung["peak_mib"] > 100 for rung in result["rungs"])


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
    rung = run_rung(name, MODELS["small"], 2, 128, "cuda", skip, seconds=1)
    _, first = make_step(MODELS["small"], rungs_up_to("float32"), 2, 128, device)
    losses = [first().item() for _ in range(6)]
    assert abs(rung["loss"] - losses[-1]) < ladder.TOLERANCE["loss"]
    assert rung["peak_mib"] > 0 and len(rung["times_ms"]) == 20
