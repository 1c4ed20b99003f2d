"""Reading and drawing runs. The law: nothing that a run wrote is lost or invented by whoever reads it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_run import a_run, write

from nanogpt.cli import main
from nanogpt.labs.long_run.plot import column
from nanogpt.metrics import read_metrics


@given(st.integers(0, 60))
def test_a_run_killed_while_it_wrote_loses_at_most_its_last_line(tmp_path_factory, cut):
    folder = write(tmp_path_factory.mktemp("run"), a_run(5))
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[: -cut or None])
    assert read_metrics(folder) == a_run(5)[: 5 if cut <= 1 else 4]


def test_a_torn_last_line_is_said(tmp_path, capsys):
    folder = write(tmp_path / "a", a_run(3), tail='{"step": 4, "lo')
    assert read_metrics(folder / "metrics.jsonl") == a_run(3)
    assert "the last line is torn and left out" in capsys.readouterr().err


def test_steps_made_again_count_as_made_last_and_come_in_order(tmp_path):
    again = [line | {"loss": 9.0} for line in a_run(3)[1:]]
    assert [line["loss"] for line in read_metrics(write(tmp_path, a_run(3) + again))][1:] == [9.0, 9.0]
    assert [line["step"] for line in read_metrics(write(tmp_path, a_run(4)[::-1]))] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "no step"),
        ("[1]\n" + '{"step": 1}\n', "line 1"),
        ('{"loss": 1}\n{"step": 1}\n', "line 1"),
        ('{"step": [1]}\n{"step": 1}\n', "line 1"),
        ("\x00" * 100 + '\n{"step": 1}\n', "line 1"),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path, capsys, text, says):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "x.png")]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / "x.png").exists()


def test_a_column_holds_finite_numbers():
    some = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}, {"step": 3}, {"step": 4, "loss": math.nan}]
    assert column(some, "loss") == ([1], [1.0])


def test_plot_writes_a_picture_also_of_a_run_without_rates(tmp_path, capsys):
    a, b, out = write(tmp_path / "a", a_run(9)), write(tmp_path / "b", [{"step": 1}]), tmp_path / "runs.png"
    assert main(["plot", str(a), str(b), "--out", str(out)]) == 0
    assert out.read_bytes()[:4] == b"\x89PNG" and str(out) in capsys.readouterr().out
