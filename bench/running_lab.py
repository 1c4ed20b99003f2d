"""`course lab` for a browser that a program drives: the lab's test and bench/pictures.py open it."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course.paths import ROOT, CourseError

HOMES = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
WAIT = 300  # seconds until it answers, or has ended, on a busy machine


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
