"""Chapter 17e: what a run writes down. The law: nothing that a run wrote is lost or invented by whoever reads it."""

import json
import math
import struct
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanogpt.cli import main
from nanogpt.run.compare import verdict
from nanogpt.run.metrics import column, read_metrics, step_line
from nanogpt.run.plot import draw_runs


def lines(n=200, seed=0, **changes):
    """A run of n steps whose loss falls; changes: {"loss_at_150": 9.0}."""
    noise = np.random.default_rng(seed).normal(size=n)
    made = [
        {
            "step": s,
            "loss": 5 * math.exp(-s / 80) + 1 + 0.1 * noise[s - 1],
            "norm": 1 + 0.1 * noise[-s],
            "lr": 1e-3 / s,
        }
        | {"ms": 12.5, "tokens_per_s": 40960.0, "mfu": 0.3125}
        for s in range(1, n + 1)
    ]
    for where, value in changes.items():
        name, step = where.split("_at_")
        made[int(step) - 1][name] = value
    return made


def write(folder: Path, steps: list[dict], tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in steps)
    (folder / "metrics.jsonl").write_text(text + tail, encoding="utf-8")
    return folder


# --- the step line ------------------------------------------------------------------------------------------


def test_the_step_line_is_llmc_s():
    line = lines(3)[2] | {"loss": 4.25, "loss_z": 0.5, "norm": 1.5, "norm_z": -2.0, "lr": 6e-4}
    assert step_line(line, 600) == (
        "step     3/600 | loss 4.250000 (+0.50z) | norm 1.5000 (-2.00z) | lr 6.00e-04 | 12.50 ms | 31.2% MFU | 40960 tok/s"
    )


def test_the_step_line_shows_what_is_missing_and_what_is_more():
    assert step_line({"step": 7, "loss": None, "norm": None, "loss_z": None, "skipped": "not finite"}, 9) == (
        "step     7/9 | loss nan | norm nan | skipped: not finite"
    )
    assert step_line({"step": 9, "loss": 1.0, "norm": 1.0, "val_loss": 1.25}, 9).endswith(
        "| val loss 1.250000"
    )


# --- reading -------------------------------------------------------------------------------------------------


@given(st.integers(0, 60))
def test_a_run_killed_while_it_wrote_loses_at_most_its_last_line(tmp_path_factory, cut):
    folder = write(tmp_path_factory.mktemp("run"), lines(5))
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -cut or None])
    assert read_metrics(folder) == lines(5)[: 5 if cut <= 1 else 4]


def test_a_torn_last_line_is_said(tmp_path, capsys):
    folder = write(tmp_path / "a", lines(3), tail='{"step": 4, "lo')
    assert read_metrics(folder / "metrics.jsonl") == lines(3)
    assert capsys.readouterr().err == f"{folder / 'metrics.jsonl'}: the last line is torn and left out\n"


def test_steps_made_again_count_as_made_last_and_come_in_order(tmp_path):
    again = [line | {"loss": 9.0} for line in lines(3)[1:]]
    assert [line["loss"] for line in read_metrics(write(tmp_path, lines(3) + again))][1:] == [9.0, 9.0]
    assert [line["step"] for line in read_metrics(write(tmp_path, lines(4)[::-1]))] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "holds no step yet"),
        ("[1]\n" + '{"step": 1}\n', "line 1: not a step of a run: [1]"),
        ('{"loss": 1}\n{"step": 1}\n', "line 1: not a step of a run"),
        ('{"step": [1]}\n{"step": 1}\n', "line 1: not a step of a run"),
        ('{"step": 1\n', "holds no step yet"),
        ("\x00" * 100 + "\n" + '{"step": 1}\n', "line 1: not a step of a run"),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path, capsys, text, says):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "x.png")]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "x.png").exists()


def test_a_column_holds_finite_numbers():
    some = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}, {"step": 3}, {"step": 4, "loss": math.nan}]
    assert column(some, "loss") == ([1], [1.0])


# --- plot ----------------------------------------------------------------------------------------------------


def test_plot_draws_runs_together(tmp_path, capsys):
    a = write(tmp_path / "a", lines(300, norm_at_150=40.0, val_loss_at_200=1.4, floor_at_200=0.9))
    b = write(tmp_path / "b", lines(120, seed=1, loss_at_60=None, skipped_at_60="not finite"))
    out = tmp_path / "runs.png"
    with matplotlib.rc_context({"savefig.bbox": "standard"}):  # notebooks cut the margins off
        assert main(["plot", str(a), str(b), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{a}, {b}: drawn to {out}\n"
    head = out.read_bytes()[:24]
    assert head[:4] == b"\x89PNG" and struct.unpack(">2I", head[16:]) == (1200, 780)


def test_the_figure_shows_what_the_runs_hold():
    runs = {
        "a": lines(300, val_loss_at_200=1.4, floor_at_200=0.9, skipped_at_60="spike"),
        "b": lines(1, seed=1),
    }
    loss, norm, lr, rate = draw_runs(runs).axes
    shown = {tuple(np.ravel(line.get_xydata())) for line in loss.lines}
    assert (200.0, 1.4) in shown and (60.0, runs["a"][59]["loss"]) in shown
    assert any(set(line.get_ydata()) == {0.9} for line in loss.lines)
    assert np.array_equal(loss.lines[0].get_xydata(), np.array([(s["step"], s["loss"]) for s in runs["a"]]))
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["a", "b"]
    assert (norm.get_yscale(), lr.get_yscale()) == ("log", "linear") and rate.get_ylim()[0] == 0
    assert loss.get_yscale() == "linear"
    overfit = [{"step": s, "loss": 7 * 0.9**s} for s in range(1, 100)]
    assert draw_runs({"overfit": overfit}).axes[0].get_yscale() == "log"


def test_a_run_without_rates_is_drawn(tmp_path):
    draw_runs({"bare": [{"step": 1}]}).savefig(tmp_path / "x.png")


# --- compare -------------------------------------------------------------------------------------------------


def test_equal_runs_are_equal_to_the_last_bit(tmp_path, capsys):
    a, b = write(tmp_path / "a", lines(50)), write(tmp_path / "b", lines(40))
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert (
        out[0] == "loss: equal to the last bit in all 40 common steps" and out[-1] == "within the bound of 0"
    )


def test_the_first_and_the_largest_difference_are_named(tmp_path, capsys):
    there = [line["loss"] for line in lines(50)]
    changes = {"loss_at_7": there[6] + 2**-12, "loss_at_30": there[29] - 2**-6}
    a, b = write(tmp_path / "a", lines(50)), write(tmp_path / "b", lines(50, **changes))
    assert main(["compare", str(a), str(b), "--bound", "0.1"]) == 0
    said = "loss: first differs at step 7, by 0.000244; most at step 30, by 0.0156; in 2 of 50 steps"
    assert capsys.readouterr().out.splitlines()[0] == said
    assert main(["compare", str(b), str(a), "--bound", "0.001"]) == 2
    assert capsys.readouterr().err == f"compare: {said}: beyond the bound of 0.001\n"


def test_one_bit_is_a_difference():
    a, b = lines(5), lines(5)
    b[3]["loss"] = math.nextafter(b[3]["loss"], 9)
    worst, says = verdict(a, b, "loss")
    assert 0 < worst < 1e-15 and "first differs at step 4," in says and "in 1 of 5 steps" in says


def test_a_number_against_none_is_beyond_every_bound(tmp_path, capsys):
    a, b = write(tmp_path / "a", lines(9, loss_at_4=None)), write(tmp_path / "b", lines(9))
    assert main(["compare", str(a), str(b), "--bound", "1e9"]) == 2
    assert "first differs at step 4, by inf" in capsys.readouterr().err
    assert verdict(lines(9, loss_at_4=None), lines(9, loss_at_4=None), "loss")[0] == 0


@pytest.mark.parametrize(
    "argv, says",
    [
        (["a", "nowhere"], "nowhere: No such file or directory"),
        (["a", "b"], "the two runs have no step in common"),
        (["a", "a", "--bound", "-1"], "--bound -1.0 is a difference, at least 0"),
        (["a", "a", "--bound", "nan"], "--bound nan is a difference, at least 0"),
        (["a"], "the following arguments are required: RUN (python -m nanogpt compare --help)"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path, monkeypatch, capsys, argv, says):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", lines(5))
    write(tmp_path / "b", lines(9)[5:])
    assert main(["compare", *argv]) == 2
    assert capsys.readouterr().err == f"compare: {says}\n"
