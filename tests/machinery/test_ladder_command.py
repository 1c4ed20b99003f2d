"""The command `python -m nanogpt ladder`: chapter 14b's, called by chapter 17d's."""

import json

import pytest

from nanogpt.cli import run_command
from nanogpt.labs.ladder import ladder

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


@pytest.mark.parametrize("bad", ["batch 0", "out no/such/folder/a.json", "skip flesh"])
def test_bad_input_is_one_sentence_before_the_climb(bad, capsys, monkeypatch):
    monkeypatch.setattr(ladder, "climb", lambda *args: pytest.fail("it climbs"))
    monkeypatch.delenv("NANOGPT_DEVICE", raising=False)
    assert run_command("ladder", ["--device", "cpu", *f"--{bad}".split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ladder: ") and error.count("\n") == 1
