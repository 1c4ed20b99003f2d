"""The GPU day's command, without a GPU: what it runs, skips, keeps and says."""

import json
import subprocess
import sys
from types import SimpleNamespace

import gpu_day
import pytest
import torch


@pytest.fixture
def fake(monkeypatch):
    """A CUDA device that is said to be there, and steps that do nothing; a step's outcome is in `outcome`."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    state = SimpleNamespace(ran=[], outcome={})

    def run(call, timeout, **options):
        step, out = call[call.index("--step") + 1], call[call.index("--out") + 1]
        state.ran.append(step)
        outcome = state.outcome.get(step, "fine")
        if outcome == "slow":
            raise subprocess.TimeoutExpired(call, timeout)
        if outcome == "broken":
            return SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nRuntimeError: no kernel image")
        result = {"summary": f"{step} was fine", "took_s": 1.0}
        with open(f"{out}/{step}.json", "w") as file:
            json.dump(result | ({"failed": ["a cell"]} if outcome == "failed" else {}), file)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(gpu_day.subprocess, "run", run)
    return state


def test_without_a_gpu_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_day.main(["--out", str(tmp_path / "day")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "day").exists()


def test_the_same_command_goes_on_where_it_was(tmp_path, fake, capsys):
    out = str(tmp_path)
    fake.outcome = {"ladder": "slow", "peers": "broken"}
    assert gpu_day.main(["--out", out]) == 1
    assert fake.ran == list(gpu_day.STEPS)
    said = capsys.readouterr().out
    assert "ladder: stopped after 480 s" in said and "peers: failed (RuntimeError: no kernel image)" in said
    assert "no kernel image" in (tmp_path / "peers.log").read_text()
    fake.ran, fake.outcome = [], {}
    assert gpu_day.main(["--out", out]) == 0
    assert fake.ran == ["ladder", "peers"], "what is done is not done again"
    assert (tmp_path / "summary.txt").read_text().count("was fine") == len(gpu_day.STEPS)


def test_a_step_that_ran_and_found_failures_is_no_success(tmp_path, fake, capsys):
    fake.outcome = {"10": "failed"}
    assert gpu_day.main(["--out", str(tmp_path)]) == 1
    assert "FAILED  10 was fine" in capsys.readouterr().out


def test_it_starts_nothing_that_has_no_time(tmp_path, fake, capsys):
    assert gpu_day.main(["--out", str(tmp_path), "--minutes", "0.5"]) == 1
    assert fake.ran == []
    assert capsys.readouterr().out.count("no time left, call again") == len(gpu_day.STEPS)


def test_a_chosen_step_is_done_again(tmp_path, fake):
    for _ in range(2):
        gpu_day.main(["--out", str(tmp_path), "--only", "machine"])
    assert fake.ran == ["machine", "machine"]


def cell(source, tags=()):
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}, "outputs": []}


def test_a_notebook_runs_without_jupyter(tmp_path, monkeypatch):
    """In a process of its own, since it changes the folder and puts a stand-in for course.notebook in place."""
    cells = [
        cell("from course.notebook import checkpoint, predict, show\nprint('one')"),
        cell("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nshow(fig, alt='nothing')"),
        cell("1 / 0"),
        cell("int('x')", ["raises-exception"]),
        cell("predict('09.1', 'how many?')\nprint('two')"),
        cell("checkpoint('09') or 1 / 0"),
    ]
    (tmp_path / "nb.json").write_text(json.dumps({"cells": cells}))
    code = (
        "import json, sys, gpu_day; nb, failed = gpu_day.cell_by_cell(json.load(open(sys.argv[1])));"
        "json.dump([nb, failed], open(sys.argv[1], 'w'))"
    )
    env = gpu_day.os.environ | {"PYTHONPATH": f"{gpu_day.ROOT / 'tests'}", "MPLBACKEND": "Agg"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "nb.json")], env=env, check=True)
    nb, failed = json.loads((tmp_path / "nb.json").read_text())
    outputs = [c["outputs"] for c in nb["cells"]]
    assert outputs[0][0]["text"] == "one\n" and outputs[4][0]["text"] == "two\n"
    assert outputs[1][0]["data"]["image/png"] and outputs[1][0]["data"]["text/plain"] == "nothing"
    assert failed == ["cell 3: ZeroDivisionError: division by zero"]
    assert outputs[5] == [], "the checkpoint would export into the package"


@pytest.mark.slow
def test_a_notebook_runs_with_jupyter_as_it_lies_on_disk(tmp_path, monkeypatch):
    """Sources are lists of lines there. Outputs are kept, an expected error is none, and the checkpoint is left out."""
    nbformat = pytest.importorskip("nbformat")
    sources = ["print('one')\nprint('two')", "1 / 0", "int('x')", "raise SystemExit('exported')"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nb.cells[2].metadata["tags"] = ["raises-exception"]
    done, failed = gpu_day.with_nbclient(json.loads(nbformat.writes(nb)))
    assert failed == ["ZeroDivisionError: division by zero"]
    assert "".join(done["cells"][0]["outputs"][0]["text"]) == "one\ntwo\n" and len(done["cells"]) == 3


@pytest.mark.slow
def test_the_machine_is_measured(tmp_path):
    result = gpu_day.machine(tmp_path, smoke=True)
    assert result["roofline"]["bandwidth"] > 0 and "GB/s" in result["summary"]
    json.dumps(result)


def test_every_precision_has_a_curve(tmp_path):
    """The real step at its smallest size, on whatever device is here."""
    result = gpu_day.curves(tmp_path, smoke=True)
    assert result["losses"]["float32"] and set(result["losses"]) | set(result["left_out"]) == set(
        gpu_day.CURVES
    )
    assert all(len(losses) == 3 for losses in result["losses"].values())
    assert len(result["scales"]) == 3 * ("fp16" in result["losses"])
