"""`course lab`: JupyterLab on the repository, quiet and offline. Its settings are in course/machine/jupyter/labconfig/."""

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course.paths import ROOT, CourseError

SETTINGS = Path(__file__).parent / "jupyter"
HOMES = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
# Not in the list of files; students never need notebooks/src.
HIDDEN = ["src", "__pycache__", "*.pyc", ".DS_Store", "*~"]
WAIT = 300  # seconds until it answers, or has ended, on a busy machine


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


@contextmanager
def running(folder: Path, cwd: Path = ROOT, **env: str) -> Iterator[tuple[subprocess.Popen, dict]]:
    """The command, for a browser that a program drives and a student who has never used Jupyter: all of Jupyter's own
    files lie below `folder`. Gives the process, and what the server says of itself: url, token, root_dir, pid."""
    words = ["lab", "--no-browser", "--port=0", f"--IdentityProvider.token={secrets.token_hex(8)}"]
    env = os.environ | {name: str(folder / name) for name in HOMES} | env
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        command = [sys.executable, "-m", "course.cli", *words]
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log)
    try:
        yield process, about(process, folder)
    finally:
        process.terminate()
        process.wait(timeout=WAIT)


def about(process: subprocess.Popen, folder: Path) -> dict:
    until = time.monotonic() + WAIT
    while not (found := list((folder / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"))):
        if process.poll() is not None or time.monotonic() > until:
            said = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise CourseError(
                f"JupyterLab has not started ({(said or ['no message'])[-1]}): try `course lab`"
            )
        time.sleep(0.2)
    return json.loads(found[0].read_text(encoding="utf-8"))
