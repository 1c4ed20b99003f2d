"""Chapter 14: the ladder's command measures each rung in its own process and tells the truth about it."""

import json
import math
import platform
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from nanogpt.limits import measure_roofline, obstacles, why_not_kept

from nanogpt import ladder, limits
from nanogpt.ladder import climb, draw, main
from nanogpt.roofline import Roofline
from nanogpt.rungs import RUNGS, make_step, rungs_up_to

DATA = Path(__file__).parents[1] / "data"
CPU = torch.device("cpu")
ROOF = Roofline("test", {"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11}, 2e10)
KEYS = {"name", "ms", "tokens_per_s", "mfu", "peak_mib", "loss", "predicted_ms"}

# What a device cannot do


def test_obstacles_name_their_reason(monkeypatch):
    assert set(obstacles(CPU, ROOF)) <= {"kept memory", "TF32", "compile", "bf16 weights"}
    slow = replace(ROOF, flops={"float32": 2e11, "bfloat16": 1e11})
    assert "slower than float32" in obstacles(CPU, slow)["bf16"]
    assert {"kept memory", "TF32", "compile"} <= set(obstacles(torch.device("mps"), ROOF))
    monkeypatch.setattr(limits.platform, "libc_ver", lambda: ("", ""))
    assert "glibc" in obstacles(CPU, ROOF)["kept memory"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "C++ compiler" in obstacles(CPU, ROOF)["compile"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert {"TF32", "bf16"} <= set(obstacles(torch.device("cuda"), ROOF))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(limits.importlib.util, "find_spec", lambda name: None)
    assert set(obstacles(torch.device("cuda"), ROOF)) == {"kept memory", "compile", "bf16 weights"}
    assert "Windows" in obstacles(torch.device("cuda"), ROOF)["compile"]


# The command, with rungs that answer at once


def answers(monkeypatch, answer=None):
    """Replace the rungs' processes by a function; the roofline is ROOF."""
    calls = []

    def in_process(arguments, keep=False):
        name = arguments[arguments.index("--rung") + 1]
        calls.append([*arguments, f"keep={keep}"])
        if name == "roofline":
            return {"roofline": asdict(ROOF), "fault_s": 1e-6}
        rung = {
            "name": name,
            "ms": 10.0,
            "q1_ms": 9.0,
            "q3_ms": 11.0,
            "steps": 20,
            "peak_mib": 1.0,
            "loss": 9.0,
            "grad_norm": 0.5,
            "first_step_s": 1.0,
        }
        return rung | {"tokens_per_s": 1.0} | (answer(name, arguments) if answer else {})

    monkeypatch.setattr(ladder, "in_process", in_process)
    return calls


def test_result_has_the_promised_fields_and_every_rung_has_its_process(monkeypatch):
    calls = answers(monkeypatch)
    result = climb("124M", 4, 64, CPU, say=lambda text: None)
    assert {"device", "versions", "rungs", "date", "command", "load"} <= set(result)
    assert all(set(rung) >= KEYS for rung in result["rungs"])
    assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} == set(RUNGS)
    assert len(calls) == 1 + len(result["rungs"])
    if not why_not_kept(CPU):  # the first rung and the roofline pay for fresh pages, all others keep theirs
        assert [call[-1] for call in calls[:3]] == ["keep=False", "keep=False", "keep=True"]
        assert all(call[-1] == "keep=True" for call in calls[3:])
    assert result["rungs"][0]["mfu"] == pytest.approx(4 * 64 * 6 * 124.4e6 / 0.01 / 4e11, rel=0.02)
    json.dumps(result)


def test_memory_that_runs_out_halves_the_batch_and_says_so(monkeypatch):
    def too_big(name, arguments):
        if int(arguments[arguments.index("--batch") + 1]) > 2:
            raise MemoryError("no")
        return {}

    answers(monkeypatch, too_big)
    said = []
    result = climb("small", 8, 64, CPU, say=said.append)
    assert result["batch"] == 2 and "--batch 2" in result["command"]
    assert result["asked_batch"] == 8
    assert [line for line in said if "atch" in line] == [
        "batch 8",
        "out of memory at batch 8: starting over with half of it",
        "batch 4",
        "out of memory at batch 4: starting over with half of it",
        "batch 2",
    ]
    calls = answers(monkeypatch, lambda name, arguments: too_big(name, ["--batch", "9"]))
    with pytest.raises(RuntimeError, match="shorter --seq"):  # nothing is left to halve
        climb("small", 2, 64, CPU, say=lambda text: None)
    assert [call[call.index("--batch") + 1] for call in calls if "float32" in call] == ["2", "1"]


def test_a_wrong_loss_is_marked_and_a_failed_rung_is_skipped_with_its_error(monkeypatch):
    def answer(name, arguments):
        if name == "nice numbers":
            raise RuntimeError("a kernel is missing")
        return {"loss": 9.2} if name == "flash" else {}

    calls = answers(monkeypatch, answer)
    said = []
    result = climb("small", 1, 64, CPU, say=said.append)
    assert [r["name"] for r in result["rungs"] if not r["agrees"]] == ["flash"]
    assert any("DISAGREES" in line for line in said)
    reasons = {r["name"]: r["reason"] for r in result["skipped"]}
    assert "a kernel is missing" in reasons["nice numbers"]
    assert "nice numbers" in calls[-1][calls[-1].index("--skip") :]  # later rungs go on without it
    assert "loss disagrees" in {t.get_text().split("\n")[-1] for t in draw(result).axes[0].texts}


@pytest.mark.parametrize("wrong", [{"loss": math.nan}, {"grad_norm": math.nan}, {"grad_norm": 0.47}])
def test_a_nan_or_another_gradient_disagrees(monkeypatch, wrong):
    answers(monkeypatch, lambda name, arguments: wrong if name == "flash" else {})
    result = climb("small", 1, 64, CPU, say=lambda text: None)
    assert [r["name"] for r in result["rungs"] if not r["agrees"]] == ["flash"]


def test_a_rung_that_sees_the_future_disagrees(monkeypatch):
    small = ladder.SIZES["small"]
    causal = ladder.run_rung("flash", small, 1, 128, CPU, ["compile", "bf16"], 0)
    kernel = torch.nn.functional.scaled_dot_product_attention
    unmasked = lambda q, k, v, dropout_p, is_causal: kernel(q, k, v)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", unmasked)
    wrong = ladder.run_rung("flash", small, 1, 128, CPU, ["compile", "bf16"], 0)
    assert abs(wrong["loss"] - causal["loss"]) < ladder.TOLERANCE["loss"]  # the loss alone would not tell
    machine = {
        "roofline": asdict(ROOF),
        "fault_s": 0,
        "peak_flops": 1,
        "size": "small",
        "batch": 1,
        "seq": 128,
    }
    judged = [ladder.judge(rung, machine | {"rungs": [causal]}, []) for rung in (causal, wrong)]
    assert [rung["agrees"] for rung in judged] == [True, False]


def test_the_top_rung_is_left_out_with_what_it_stands_on(monkeypatch):
    answers(monkeypatch)
    result = climb("small", 1, 64, CPU, skip=["compile"], say=lambda text: None)
    reasons = {r["name"]: r["reason"] for r in result["skipped"]}
    assert reasons["compile"] == "left out by --skip" and "compile" in reasons["bf16 weights"]


def test_files_are_written_whole_or_not_at_all(monkeypatch, tmp_path, capsys):
    answers(monkeypatch)
    out, plot = tmp_path / "a.json", tmp_path / "a.png"
    call = ["--device", "cpu", "--out", str(out), "--plot", str(plot)]
    assert main(call) == 0
    before = out.read_bytes()
    assert json.loads(before)["rungs"] and plot.read_bytes()[:4] == b"\x89PNG"

    def stop(name, arguments):
        if name == "flash":
            raise KeyboardInterrupt
        return {"ms": 5.0}

    answers(monkeypatch, stop)
    assert main(call) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.png"]


@pytest.mark.parametrize(
    "bad",
    [
        ["--batch", "0"],
        ["--seq", "9999"],
        ["--out", "no/such/folder/a.json"],
        ["--device", "tpu"],
        ["--seconds", "-1"],
    ],
)
def test_bad_input_is_one_sentence_and_two(bad, capsys):
    assert main(["--device", "cpu", *bad]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ladder: ") and error.count("\n") == 1


def test_help_teaches_with_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "example: python -m nanogpt ladder --size 124M" in capsys.readouterr().out


# Processes for real


@pytest.mark.parametrize(
    "child, error",
    [
        (
            "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate')",
            MemoryError,
        ),
        ('import sys; sys.exit("DefaultCPUAllocator: can\'t allocate memory")', MemoryError),
        ("import sys; sys.exit('a kernel is missing')", RuntimeError),
        (
            "import sys; sys.exit('ladder: C++ compile error\\n\\nCommand: g++\\nSet TORCHDYNAMO_VERBOSE=1')",
            RuntimeError,
        ),
    ],
)
def test_a_child_that_fails_is_understood(monkeypatch, child, error):
    monkeypatch.setattr(ladder, "CHILD", child)
    with pytest.raises(error, match=r"memory|kernel|C\+\+ compile error$"):
        ladder.in_process([])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_child_that_the_system_kills_ran_out_of_memory(monkeypatch):
    monkeypatch.setattr(ladder, "CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(MemoryError):
        ladder.in_process([])


def test_a_child_keeps_its_memory_where_it_is_told_to(monkeypatch):
    for name in ladder.KEEP:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ladder, "CHILD", "import json, os; print(json.dumps(dict(os.environ)))")
    assert not set(ladder.KEEP) & set(ladder.in_process([]))
    assert set(ladder.KEEP.items()) <= set(ladder.in_process([], keep=True).items())


def test_a_bare_checkout_is_enough():
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'regex', 'tiktoken', 'safetensors', 'yaml', 'tqdm', 'IPython', 'course'):\n"
        "    sys.modules[name] = None\n"
        "import nanogpt.ladder"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(ladder.__file__).parents[1])


@pytest.mark.slow
def test_a_real_climb(tmp_path):
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
    assert main(call) == 0
    result = json.loads(out.read_text())
    assert all(rung["agrees"] and rung["ms"] > 0 and rung["steps"] >= 5 for rung in result["rungs"])
    assert {"float32", "flash", "nice numbers", "fused AdamW"} <= {rung["name"] for rung in result["rungs"]}


# What is recorded


def test_recorded_ladders_are_what_the_command_writes(monkeypatch):
    answers(monkeypatch)
    fresh = climb("small", 1, 64, CPU, say=lambda text: None)
    paths = sorted((DATA / "measurements").glob("*.json"))
    recorded = [path for path in paths if "rungs" in json.loads(path.read_text())]
    assert recorded, (
        "record one: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out data/measurements/NAME.json"
    )
    for path in recorded:
        result = json.loads(path.read_text())
        assert set(result) == set(fresh)
        assert all(set(rung) == set(fresh["rungs"][0]) for rung in result["rungs"])
        assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} == set(RUNGS)
        assert platform.node() not in path.read_text() or not platform.node()


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(RUNGS))
def test_every_rung_runs_on_a_gpu_with_the_first_ones_loss(name):
    device = torch.device("cuda")
    roof = measure_roofline(device)
    skip = obstacles(device, roof)
    if name in skip:
        pytest.skip(skip[name])
    rung = ladder.run_rung(name, ladder.SIZES["small"], 2, 128, device, skip, seconds=1)
    _, first = make_step(ladder.SIZES["small"], rungs_up_to("float32"), 2, 128, device)
    losses = [first().item() for _ in range(ladder.LOSS_STEPS)]
    assert abs(rung["loss"] - losses[-1]) < ladder.TOLERANCE["loss"]
    assert rung["peak_mib"] > 0 and rung["steps"] >= 5
