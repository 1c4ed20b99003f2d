"""`course run` and `course lab`: what a student types, and what comes back."""

import json
import os
import urllib.request

import pytest
from running_lab import running

from course.machine.lab_server import hide_outcomes
from course.paths import ROOT


def test_run_names_the_failing_cell_and_leaves_the_rest_whole(house):
    sources = house.path / "notebooks/src"
    (sources / "05_bad.py").write_text("# %%\nx = 1\n\n# %%\nprint(x / 0)\n", encoding="utf-8")
    (sources / "06_after.py").write_text("# %%\nx = 1\n", encoding="utf-8")
    house.course("build", "05", "06", "--draft")
    before = {p.name: p.read_bytes() for p in house.path.glob("notebooks/*.ipynb")}
    said = house.course("run", code=2)
    assert "05_bad.ipynb, `print(x / 0)` fails:" in said and "ZeroDivisionError" in said
    assert "correct notebooks/05_bad.ipynb; 04 done; `course run --from 05` goes on" in said
    assert said.count("04_tiny") == 1 and "|" not in said.split("fails")[0], "no terminal: one line a chapter"
    runs = house.path / "runs"
    assert (runs / "04_tiny.ipynb").exists() and not (runs / "05_bad.ipynb").exists()
    assert before == {p.name: p.read_bytes() for p in house.path.glob("notebooks/*.ipynb")}
    assert "def area" in house.module.read_text(), "chapter 04 was checkpointed"
    times = house.path / "data/measurements/chapter-times.json"
    assert "1 chapter in" in house.course("run", "6") and not times.exists()
    house.course("run", "6", "--record")
    assert json.loads(times.read_text())["seconds"]["06"] > 0


@pytest.mark.parametrize(
    "args, message",
    [
        (["checkpoint", "9"], "no chapter '9' in notebooks/; there are 04"),
        (["run", "04", "--to", "04"], "not both"),
    ],
)
def test_bad_arguments_are_one_sentence(house, args, message):
    said = house.course(*args, code=2)
    assert message in said and said.count("\n") == 1


CELLS = [
    ('predict("04.1", "a share", guess=None)', ""),
    ('print(1)\nanswer("04.1", 0.81)', "04.1, a share: 0.81"),
    ('predict("04.2", "another", guess=3)', "04.2: you say 3"),
    ('answer("04.2", 3)', "04.2: 3"),
    ('predictions("04")', "a table"),
    ("print(1)", "1"),
]


def test_no_outcome_stands_below_a_question_that_has_no_guess():
    def opened(cells, **course) -> list[bool]:
        ran = {"cell_type": "code", "execution_count": 1}
        made = [ran | {"source": source, "outputs": [text]} for source, text in cells]
        nb = {"metadata": {"course": course}, "cells": made}
        hide_outcomes(nb)
        assert nb["metadata"]["course"]["opened"]
        return [bool(cell["outputs"]) for cell in made]

    assert opened(CELLS) == [True, False, True, True, False, True]
    assert all(opened([(source.replace("None", "0.5"), text) for source, text in CELLS]))
    assert all(opened(CELLS, opened=True)), "what the reader has run and saved stays"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signals")
def test_lab_serves_the_repository_and_ends_with_its_signal(tmp_path):
    with running(tmp_path, tmp_path, PYTHONPATH=str(ROOT)) as (process, server):
        assert server["root_dir"] == str(ROOT) and server["pid"] == process.pid, "no process between"
        url = f"{server['url']}api/contents/notebooks/04_attention.ipynb?token={server['token']}"
        with urllib.request.urlopen(url) as answer:
            cells = json.load(answer)["content"]["cells"]
        assert not any(cell["outputs"] for cell in cells if "\nanswer(" in "".join(cell["source"]))
    said = (tmp_path / "log.txt").read_text(encoding="utf-8").split("[C ")[0].strip().splitlines()
    assert len(said) == 2 and said[0].startswith("The course is open at http://"), said
    assert process.returncode is not None
