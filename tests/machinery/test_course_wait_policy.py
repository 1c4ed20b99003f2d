"""Threads that wait sleep: every process of the course has OMP_WAIT_POLICY=passive before PyTorch is loaded, but for the
user who has chosen otherwise."""

import os
import subprocess
import sys

import pytest

from course.grade.sandbox.sandbox import ENVIRONMENT
from course.notebooks.address import dressed
from course.notebooks.source import notebook_from_text
from course.paths import ROOT

NAME = "OMP_WAIT_POLICY"
TELL = f"print(os.environ[{NAME!r}])"
PROCESSES = {
    "a command of the course": f"import course.cli, os, sys; {TELL}; assert 'torch' not in sys.modules",
    "a program of the package": f"import nanogpt.__main__, os, sys; {TELL}; assert 'torch' not in sys.modules",
}


def said(code: str, **more: str) -> str:
    """What a process prints without the policy that conftest.py has set."""
    env = {name: value for name, value in os.environ.items() if name != NAME}
    env |= {"PYTHONPATH": str(ROOT)} | more
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", PROCESSES)
def test_threads_that_wait_sleep_unless_the_user_wants_otherwise(name):
    assert said(PROCESSES[name]) == "passive"
    assert said(PROCESSES[name], **{NAME: "active"}) == "active"


def test_a_notebooks_first_cell_sets_it_before_anything_is_imported(monkeypatch):
    nb = notebook_from_text("# %% [markdown]\n# # 04 · Tiny\n\n# %%\nimport torch\n")
    first = next(cell for cell in dressed(nb, "04_tiny").cells if cell.cell_type == "code")
    for given, found in ("", "passive"), ("active", "active"):
        monkeypatch.delenv(NAME)
        monkeypatch.setattr(os, "environ", os.environ | ({NAME: given} if given else {}))
        exec(first.source, {})
        assert os.environ[NAME] == found


def test_a_sandbox_and_a_cluster_have_it_too():
    assert ENVIRONMENT[NAME] == "passive"
    assert f"export {NAME}=${{{NAME}:-passive}}" in (ROOT / "slurm/train.sbatch").read_text(encoding="utf-8")
