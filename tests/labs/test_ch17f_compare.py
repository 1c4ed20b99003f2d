"""Where two runs part: the command `compare`."""

import math

import pytest
from wording import in_our_words
from written_run import a_run, write

from nanogpt.cli import main
from nanogpt.labs.long_run.compare import verdict


def test_equal_runs_are_equal_to_the_last_bit(tmp_path, capsys):
    a, b = write(tmp_path / "a", a_run(50)), write(tmp_path / "b", a_run(40))
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "loss: equal to the last bit in all 40 common steps"
    assert out[-1] == "within the bound of 0"


def test_the_first_and_the_largest_difference_are_named(tmp_path, capsys):
    there = [line["loss"] for line in a_run(50)]
    changes = {"loss_at_7": there[6] + 2**-12, "loss_at_30": there[29] - 2**-6}
    a, b = write(tmp_path / "a", a_run(50)), write(tmp_path / "b", a_run(50, **changes))
    assert main(["compare", str(a), str(b), "--bound", "0.1"]) == 0
    said = "loss: first differs at step 7, by 0.000244; most at step 30, by 0.0156; in 2 of 50 steps"
    assert capsys.readouterr().out.splitlines()[0] == said
    assert main(["compare", str(b), str(a), "--bound", "0.001"]) == 2
    assert capsys.readouterr().err == f"compare: {said}: beyond the bound of 0.001\n"


def test_one_bit_is_a_difference():
    a, b = a_run(5), a_run(5)
    b[3]["loss"] = math.nextafter(b[3]["loss"], 9)
    worst, says = verdict(a, b, "loss")
    assert 0 < worst < 1e-15 and "first differs at step 4," in says and "in 1 of 5 steps" in says


def test_a_number_against_none_is_beyond_every_bound(tmp_path, capsys):
    a, b = write(tmp_path / "a", a_run(9, loss_at_4=None)), write(tmp_path / "b", a_run(9))
    assert main(["compare", str(a), str(b), "--bound", "1e9"]) == 2
    assert "first differs at step 4, by inf" in capsys.readouterr().err
    assert verdict(a_run(9, loss_at_4=None), a_run(9, loss_at_4=None), "loss")[0] == 0


@pytest.mark.parametrize(
    "argv, says",
    [
        (["a", "nowhere"], "nowhere"),
        (["a", "b"], in_our_words(verdict, "no step in common", "")),
        (["a", "a", "--bound", "-1"], "--bound -1.0"),
        (["a", "a", "--bound", "nan"], "--bound nan"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path, monkeypatch, capsys, argv, says):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", a_run(5))
    write(tmp_path / "b", a_run(9)[5:])
    assert main(["compare", *argv]) == 2
    said = capsys.readouterr().err
    assert said.startswith("compare: ") and says in said and said.count("\n") == 1
