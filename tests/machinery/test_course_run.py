"""`course run`, `lab`, `test`: what a student types, and what comes back."""

import errno
import json
import os
import shlex
import subprocess
import sys
import urllib.request

import pytest
from running_lab import running

from course import cli
from course.machine import lab
from course.machine.lab_server import hide_outcomes
from course.notebooks import run
from course.paths import ROOT, plainly


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


def test_a_full_disk_is_not_the_notebooks_fault(house):
    cell = "# %%\nimport errno, os\nraise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
    (house.path / "notebooks/src/05_full.py").write_text(cell, encoding="utf-8")
    house.course("build", "05", "--draft")
    said = house.course("run", "05", code=2)
    assert "the disk is full or cannot be written; `course doctor`" in said and "mend" not in said
    assert "the disk is full (" in plainly(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@pytest.mark.parametrize(
    "args, message",
    [
        (["checkpoint", "9"], "no chapter '9' in notebooks/; there are 04"),
        (["build", "attention"], "no chapter 'attention'"),
        (["run", "--from", "7"], "no chapter '7' in notebooks/; there are 04"),
        (["run", "04", "--to", "04"], "not both"),
        (["checkpoint"], "which chapter?"),
        (["data", "shakespeare"], "no shakespeare"),
    ],
)
def test_bad_arguments_are_one_sentence(house, args, message):
    said = house.course(*args, code=2)
    assert message in said and said.count("\n") == 1


def test_a_range_is_a_range(monkeypatch):
    monkeypatch.setattr(cli, "chapters", lambda: ["00", "02", "04", "16", "16b"])

    def chosen(*args):
        return cli.chosen_chapters(cli.parser().parse_args(["run", *args]))

    assert chosen() == ["00", "02", "04", "16", "16b"] and chosen("--from", "4") == ["04", "16", "16b"]
    assert chosen("--to", "16") == chosen() and chosen("--from", "16b") == chosen("16b") == ["16b"]
    assert chosen("--from", "02", "--to", "4") == ["02", "04"] and chosen("4", "00") == ["00", "04"]
    with pytest.raises(cli.CourseError, match="04 comes after --to 02"):
        chosen("--from", "4", "--to", "2")


def test_going_on_runs_what_was_asked_for_and_no_more(monkeypatch):
    monkeypatch.setattr(run, "chapters", lambda: ["00", "01", "02", "16", "16b"])
    assert run.how_to_go_on(["01"], "01") == "`course run 01` goes on"
    assert run.how_to_go_on(["00", "01", "02"], "01") == "00 done; `course run 01 02` goes on"
    assert run.how_to_go_on(["00", "02", "16", "16b"], "16") == "00, 02 done; `course run --from 16` goes on"


def test_light_commands_import_nothing_heavy():
    code = (
        "import sys; from course.cli import main; code = main(['restore', '77']) + main(['run', '--from', '77'])\n"
        "heavy = {'torch', 'nbformat', 'jupytext', 'nbclient', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert code == 4 and not heavy, (code, heavy)"  # 2 and 2
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 2 and "there are 00 01" in done.stderr


def test_lab_becomes_jupyterlab_at_the_root_with_what_was_asked_for(monkeypatch):
    commands = []
    monkeypatch.setattr(lab, "replace_process", lambda command, env: commands.append(command))
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    cli.main(["lab", "--no-browser", "--port", "8889"])
    (command,) = commands
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={ROOT}" in command and "--allow-root" in command
    assert command[-3:] == ["--no-browser", "--port", "8889"]


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


def test_tests_without_nbval_say_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("course.testing.run.run_pytest", lambda words: 9)  # not all tests within a test
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["test"]) == 2
    assert "the tests need pytest and nbval and xdist: pip install" in capsys.readouterr().err
    assert cli.main(["lab"]) == 2
    assert "JupyterLab is not installed" in capsys.readouterr().err


def test_readme_and_the_end_of_a_run_say_the_same_command():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert run.SAMPLE in [shlex.split(line)[1:] for line in lines if "-m nanogpt sample" in line]
