"""The command of chapter 14b forecasts first, halves a batch that does not fit, and refuses what cannot be."""

import argparse
import json
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import ladder_steps
import pytest
from ladder_steps import MACHINE, ROOF
from wording import in_our_words

from nanogpt.labs.ladder import ladder
from nanogpt.labs.ladder.forecast import predict
from nanogpt.labs.ladder.ladder import MODELS, checked_sizes, parser, staircase
from nanogpt.labs.ladder.rungs import RUNGS
from nanogpt.labs.roofline.clock import Roofline

DATA = Path(__file__).parents[2] / "data"
EVERY = {*MACHINE, "size", "batch", "seq", "rungs", "skipped", "command", "asked_batch"} - {"start_s"}
KEYS = {"name", "ms", "q1_ms", "q3_ms", "steps", "first_step_s", "tokens_per_s", "peak_mib", "loss"}
KEYS |= {"grad_norm", "mfu", "predicted_ms", "agrees"}


@pytest.fixture
def climbed(monkeypatch):
    return partial(ladder_steps.climbed, monkeypatch)


def test_a_result_has_what_a_record_needs(climbed):
    result, *_ = climbed()
    assert set(result) >= EVERY and all(set(rung) >= KEYS for rung in result["rungs"])
    assert json.loads(json.dumps(result)) == result
    predicted = predict(MODELS["small"], {"float32"}, 1, 64, Roofline(**ROOF), 1e-6, 5e-6)
    assert result["rungs"][0]["predicted_ms"] == pytest.approx(1e3 * sum(predicted.values()))
    assert not result["flags"]
    flags = climbed(limits=lambda n: 42.3 / 57.8 if n > 40 else 1.0)[0]["flags"]
    assert flags == ["copy: 0.73× the rate before the climb"]


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
    tried = []

    def never(name, B, n):
        tried.append(B)
        assert B and len(tried) < 100, "it goes on for ever"
        raise error

    with pytest.raises(RuntimeError, match=in_our_words(ladder.climb, "shorter --seq")):
        climbed(never, B=2)
    assert set(tried) == {1, 2}


def test_no_rung_left_is_refused(climbed):
    with pytest.raises(ValueError, match="no rung is left"):
        climbed(skip=list(RUNGS))


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


@pytest.mark.weekly
def test_a_real_climb(tmp_path):
    """In a process of its own, since kept memory stays kept."""
    out = tmp_path / "ladder.json"
    call = f"--device cpu --size small --seq 16 --seconds 0 --skip compile --out {out}".split()
    code = f"from nanogpt.labs.ladder.ladder import parser, run; run(parser().parse_args({call}))"
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
        known = {*RUNGS, "fused loss", "chunked loss"}  # chapter 23b's, which a package of chapter 14 has not
        assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} <= known
        assert all(rung["agrees"] for rung in result["rungs"])
        assert platform.node() not in path.read_text() or not platform.node()
        staircase(result)
