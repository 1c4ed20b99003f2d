"""`course lab`: JupyterLab on the repository, quiet and offline. Its settings are in course/machine/jupyter/labconfig/."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

from course.paths import ROOT, CourseError

SETTINGS = Path(__file__).parent / "jupyter"
# Not in the list of files; students never need notebooks/src.
HIDDEN = ["src", "__pycache__", "*.pyc", ".DS_Store", "*~"]


def lab(more: list[str]) -> int:
    """JupyterLab takes this process's place, so that a signal sent to it reaches JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise CourseError("JupyterLab is not installed here; `make course`, or pip install -e '.[course]'")
    from course.notebooks.trust import trusted_environment

    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={ROOT}"]
    command += ["--LabApp.default_url=/lab/tree/notebooks/00_setup.ipynb"]
    command += [f"--ContentsManager.hide_globs={HIDDEN}"]
    command += ["--LabApp.extension_manager=readonly"]  # the other one asks the package index
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # a container, a rented machine
    return replace_process([*command, *more], with_settings(trusted_environment()))


def with_settings(env: dict[str, str]) -> dict[str, str]:
    """The course's settings below the student's own ones, and this Python's kernel before one of the same name at home."""
    settings = os.pathsep.join([str(SETTINGS), *filter(None, [env.get("JUPYTER_CONFIG_PATH")])])
    # With `course` in a terminal of the lab.
    programs = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    return env | {"PATH": programs, "JUPYTER_CONFIG_PATH": settings, "JUPYTER_PREFER_ENV_PATH": "1"}


def replace_process(command: list[str], env: dict[str, str]) -> int:
    os.chdir(ROOT)
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, env)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child's to answer
    return subprocess.run(command, env=env).returncode
