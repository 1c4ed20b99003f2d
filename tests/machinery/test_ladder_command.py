"""The command `python -m nanogpt ladder`: chapter 14b's, called by chapter 17d's."""

import json

import pytest

from nanogpt.cli import run_command
from nanogpt.labs.ladder import ladder
from nanogpt.labs.ladder.rungs import RUNGS

RUNG = {"name": "float32", "ms": 50.0, "q1_ms": 49.0, "q3_ms": 52.0, "predicted_ms": 40.0}
RUNG |= {"agrees": True, "flags": []}
RESULT = {"device": "a CPU", "size": "small", "batch": 1, "seq": 64, "rungs": [RUNG]}


def test_files_are_written_whole_or_not_at_all(monkeypatch, tmp_path, capsys):
    out, plot = tmp_path / "a.json", tmp_path / "a.png"
    call = ["--device", "cpu", "--out", str(out), "--plot", str(plot)]
    monkeypatch.setattr(ladder, "climb", lambda *args: RESULT)
    assert run_command("ladder", call) == 0
    before = out.read_bytes()
    assert json.loads(before) == RESULT and plot.read_bytes()[:4] == b"\x89PNG"

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(ladder, "climb", stop)
    assert run_command("ladder", call) == 130
    assert "no file was written" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.png"]


@pytest.mark.parametrize(
    "bad",
    ["batch 0", "seq 9999", "out no/such/folder/a.json", "out .", "plot .", "device tpu", "seconds -1", "seconds nan",
     "skip flesh", "predict B900"],
)  # fmt: skip
def test_bad_input_is_one_sentence_before_the_climb(bad, capsys, monkeypatch):
    monkeypatch.setattr(ladder, "climb", lambda *args: pytest.fail("it climbs"))
    monkeypatch.delenv("NANOGPT_DEVICE", raising=False)
    assert run_command("ladder", ["--device", "cpu", *f"--{bad}".split()]) == 2
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
