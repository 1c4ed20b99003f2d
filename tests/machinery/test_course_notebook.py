"""What notebooks import from the machinery, and what nbval is told to overlook."""

import json
import re

import pytest
import torch
from nbval.plugin import get_sanitize_patterns

from course import predictions as kept
from course.notebook import answer, predict, predictions
from course.parts import run_parts_again
from course.paths import ROOT


@pytest.mark.parametrize("ids", [True, False], ids=["cells have ids", "cells have none, as on Colab"])
def test_a_class_cell_that_is_edited_and_run_alone_works(monkeypatch, ids):
    """Chapters 01 and 03: whoever changed the first cell of a class lost the methods of its other cells."""
    monkeypatch.setattr("course.parts.SEEN", {})
    cells = {
        "first": "class Stream:\n    def rows(self):\n        return 1",
        "second": "class Stream(Stream):\n    def batch(self):\n        return self.rows() + 1",
        "heir": "class Documents(Stream):\n    def both(self):\n        return self.batch(), super().rows()",
        "another": "class Other:\n    pass",
    }
    namespace: dict = {}

    def run(name: str, source: str) -> list[str]:
        exec(source, namespace)
        return run_parts_again(source, name if ids else None, namespace)

    assert [run(name, source) for name, source in cells.items()] == [[], [], [], []]
    assert run("first", cells["first"].replace("return 1", "return 10")) == ["Stream", "Documents"]
    assert namespace["Stream"]().batch() == 11 and namespace["Documents"]().both() == (11, 10)
    assert run("second", cells["second"].replace("+ 1", "+ 2")) == ["Documents"]
    assert namespace["Documents"]().both() == (12, 10)
    assert run("another", cells["another"]) == [] and run_parts_again("%magic", None, namespace) == []


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MADE", {})
    monkeypatch.setattr(kept, "KEPT", tmp_path / "built" / "predictions.json")


def test_a_guess_is_answered_at_once_tabled_and_kept(capsys):
    predict("07.1", "the first loss", guess=7, unit="nats")
    predict("07.2", "who wins", guess="bf16")
    answer("07.1", torch.tensor(6.25))
    answer("07.2", "bf16")
    assert capsys.readouterr().out.splitlines() == [
        "07.1: you say 7 nats",
        "07.2: you say bf16",
        "07.1: 6.250 nats; you said 7 nats (+12%)",
        "07.2: bf16; you said bf16 (right)",
    ]
    predictions("07")
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["error", "+12%", "right"]
    saved = json.loads(kept.KEPT.read_text(encoding="utf-8"))
    assert saved["07.1"] == {"question": "the first loss", "guess": 7, "unit": "nats", "outcome": 6.25}
    kept.MADE.clear()
    predict("08.1", "a later chapter", guess=1)
    assert list(json.loads(kept.KEPT.read_text(encoding="utf-8"))) == ["07.1", "07.2", "08.1"]


@pytest.mark.parametrize("guess", [float("nan"), "six", [1, 2], torch.ones(2), object(), True])
def test_no_guess_stops_a_chapter(guess):
    predict("07.1", "x", guess=guess)
    for value in (0, 0.0, float("inf"), torch.zeros(3), None, 1e-9):
        answer("07.1", value)
        predictions("07")
    answer("07.9", 1)  # the question's cell was not run
    predictions("07")
    predictions("99")


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(kept, "KEPT", tmp_path / "file" / "predictions.json")
    predict("07.1", "x", guess=1)
    answer("07.1", 1)
    assert "exact" in capsys.readouterr().out
    damaged = tmp_path / "damaged.json"
    monkeypatch.setattr(kept, "KEPT", damaged)
    for text in ("{", "[]"):
        damaged.write_text(text)
        predict("07.1", "x", guess=1)
        assert list(json.loads(damaged.read_text())) == ["07.1"]


def masked(text: str) -> str:
    """The text as nbval compares it; it reads the rules itself, and passes over one whose replacement is empty."""
    rules = (ROOT / "tests/nbval.cfg").read_text(encoding="utf-8")
    patterns = get_sanitize_patterns(rules)
    assert len(patterns) == rules.count("regex:")
    for regex, replacement in patterns:
        text = re.sub(regex, replacement, text)
    return text


@pytest.mark.parametrize(
    "same, one, other",
    [
        (True, "took 4 ms", "took 12 ms"),
        (True, "took    4.25 s a step", "took 1,312.0 s a step"),
        (True, "109 GFLOP/s", " 1,009 GFLOP/s"),
        (True, "2.1 GiB/s and 35 stories/s", "0.9 GiB/s and 9 stories/s"),
        (True, "as fast:  2.34×", "as fast: 11.0×"),
        (True, "1.35 × as fast", "0.9 × as fast"),
        (True, "<object at 0x7f3a91>", "<object at 0x55aa10cc>"),
        (True, "07.1, the first loss: 6.951 nats", "07.1, the first loss: 7.02 nats"),
        (False, "th (4×)", "th (5×)"),
        (False, "16384 × 50304", "16384 × 50257"),
        (False, "loss 6.951", "loss 6.952"),
        (False, "3 steps", "4 steps"),
        (False, "3 words/story", "4 words/story"),
        (False, "6.5%", "7.5%"),
        (False, "07.1, the first loss: 6.951 nats", "07.1, the last loss: 6.951 nats"),
        (False, "exported f to nanogpt/a.py", "exported f to nanogpt/b.py"),
    ],
)
def test_what_differs_by_machine_is_masked_and_facts_are_compared(same, one, other):
    assert (masked(one) == masked(other)) == same
