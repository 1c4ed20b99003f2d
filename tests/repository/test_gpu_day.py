"""The GPU day's command, without a GPU: what it runs, skips, keeps and says."""

import ast
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import gpu_day
import gpu_notebook
import pytest
import torch

# In place of a step. "slow" starts a process that would live on.
STEP = """
import json, subprocess, sys
out, step, outcome = sys.argv[1:]
if outcome == "slow":
    slow = "import time; print('begun', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", slow])
    print("child", child.pid, flush=True)
    child.wait()
if outcome == "broken":
    raise RuntimeError("no kernel image")
print(step, "at work")
result = {"summary": step + " was fine", "took_s": 1.0, "failed": ["a cell"] * (outcome == "failed")}
json.dump(result, open(f"{out}/{step}.json", "w"))
"""


@pytest.fixture
def fake(monkeypatch):
    """A CUDA device that is said to be there, and steps that do little: what `outcome` says of each."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_day, "card", lambda: gpu_day.Card("T4", 4, "fp16"))
    state = SimpleNamespace(ran=[], outcome={})
    popen = subprocess.Popen

    def instead(call, **options):
        if "--step" not in call:
            return popen(call, **options)
        step, out = call[call.index("--step") + 1], call[call.index("--out") + 1]
        state.ran.append(step)
        outcome = state.outcome.get(step, "fine")
        return popen([sys.executable, "-S", "-c", STEP, out, step, outcome], **options)

    monkeypatch.setattr(gpu_day.subprocess, "Popen", instead)
    return state


def test_the_same_command_goes_on_where_it_was(tmp_path, fake, capsys):
    out = str(tmp_path)
    fake.outcome = {"peers": "broken", "10": "failed"}
    assert gpu_day.main(["--out", out]) == 1
    assert fake.ran == list(gpu_day.STEPS)
    said = capsys.readouterr().out
    assert "ladder   | ladder at work" in said, "its lines are shown as they come"
    assert "peers: failed (RuntimeError: no kernel image)" in said
    assert "FAILED  10 was fine" in said, "a step that ran and found failures is no success"
    assert "no kernel image" in (tmp_path / "peers.log").read_text()
    (tmp_path / "10.json").unlink()
    fake.ran, fake.outcome = [], {}
    assert gpu_day.main(["--out", out]) == 0
    assert fake.ran == ["peers", "10"], "what is done is not done again"
    gpu_day.main(["--out", out, "--only", "machine"])
    assert fake.ran[2:] == ["machine"], "unless it is chosen"
    assert (tmp_path / "summary.txt").read_text().count("was fine") == len(gpu_day.STEPS)


@pytest.mark.skipif(os.name == "nt", reason="groups of processes are killed on POSIX")
def test_a_step_whose_time_is_up_is_stopped_with_all_that_it_has_started(tmp_path, fake):
    """Otherwise its child goes on computing beside the next step, which is timed."""
    fake.outcome = {"ladder": "slow"}
    said = gpu_day.run_step("ladder", SimpleNamespace(out=tmp_path, smoke=False), seconds=2)
    assert said.startswith("ladder: stopped after 2 s; ladder.log has its lines")
    first, second = (tmp_path / "ladder.log").read_text().splitlines()
    assert second == "begun"
    for _ in range(100):  # a killed process can be seen until its parent has collected it
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", first.split()[1]], capture_output=True, text=True
        ).stdout
        if not state.strip() or state.startswith("Z"):
            return
        time.sleep(0.05)
    raise AssertionError(f"the child of the stopped step lives on: {state}")


CARDS = [  # as the driver names it, GiB that it shows, the batch that fits both
    ("Tesla T4", 14.7, 4),
    ("NVIDIA L4", 22, 8),
    ("NVIDIA A100-SXM4-40GB", 39.4, 16),
    ("NVIDIA H100 80GB HBM3", 79, 16),
    ("a card without a data sheet", 3, 1),
]


@pytest.mark.parametrize(("name", "gib", "batch"), CARDS, ids=[name for name, *_ in CARDS])
def test_the_batch_and_every_step_fit_the_card(monkeypatch, name, gib, batch):
    """Into its memory by chapter 14's formula, and by estimate into the eight minutes of a step."""
    monkeypatch.setattr("nanogpt.device.pick_device", lambda: torch.device("cuda"))
    monkeypatch.setattr("nanogpt.precision.why_not", lambda word, device: "before Ampere")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    memory = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    card = gpu_day.card()
    assert (card.batch, card.half) == (batch, "fp16")
    told, has_sheet = gpu_day.estimates(card), "without" not in name
    assert set(told) == {*gpu_day.NOTEBOOKS} | ({"ladder", "peers"} if has_sheet else set())
    assert all(5 < seconds < gpu_day.LIMIT for seconds in told.values()), told


def cell(source, tags=()):
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}, "outputs": []}


CELL_BY_CELL = """
import json, sys, gpu_notebook
saved = []
nb = json.load(open(sys.argv[1]))
failed = gpu_notebook.cell_by_cell(nb, lambda nb: saved.append(json.dumps(nb)))
json.dump([json.loads(saved[-1]), failed], open(sys.argv[1], "w"))
"""  # in a process of its own: it changes the folder and puts stand-ins in place


def test_the_stand_in_has_every_name_that_the_chapters_import():
    for chapter in gpu_day.NOTEBOOKS:
        text = next((gpu_day.ROOT / "notebooks/src").glob(f"{chapter}_*.py")).read_text(encoding="utf-8")
        imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
        names = {a.name for n in imports if n.module == "course.notebook" for a in n.names}
        missing = {name for name in names if not hasattr(gpu_notebook.stand_in([]), name)}
        assert names and not missing, f"{chapter}: {missing}"


def test_a_notebook_runs_without_jupyter(tmp_path):
    cells = [
        cell("from course.notebook import checkpoint, predict, show\nprint('one')"),
        cell("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nshow(fig, alt='nothing')"),
        cell("1 / 0"),
        cell("int('x')", ["raises-exception"]),
        cell("predict('09.1', 'how many?')\nprint('two')"),
        cell("checkpoint('09') or 1 / 0"),
    ]
    (tmp_path / "nb.json").write_text(json.dumps({"cells": cells}))
    env = os.environ | {"PYTHONPATH": f"{gpu_day.ROOT / 'bench'}", "MPLBACKEND": "Agg"}
    subprocess.run([sys.executable, "-c", CELL_BY_CELL, str(tmp_path / "nb.json")], env=env, check=True)
    nb, failed = json.loads((tmp_path / "nb.json").read_text())
    outputs = [c["outputs"] for c in nb["cells"]]
    assert outputs[0][0]["text"] == "one\n" and outputs[4][0]["text"] == "two\n"
    assert outputs[1][0]["data"]["image/png"] and outputs[1][0]["data"]["text/plain"] == "nothing"
    assert failed == ["cell 3: ZeroDivisionError: division by zero"]
    assert outputs[5] == [], "the checkpoint would export into the package"


def test_every_precision_has_a_curve(tmp_path):
    """The real step at its smallest size, on whatever device is here."""
    result = gpu_day.curves(tmp_path, smoke=True)
    assert result["losses"]["float32"] and set(result["losses"]) | set(result["left_out"]) == set(
        gpu_day.CURVES
    )
    assert all(len(losses) == 3 for losses in result["losses"].values())
    assert len(result["scales"]) == 3 * ("fp16" in result["losses"])
