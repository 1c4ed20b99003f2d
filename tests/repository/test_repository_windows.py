"""What Windows lacks, a student's commands must not need. Windows itself is not to be had in CI: its gaps are made here."""

import json
import subprocess
import sys
from pathlib import Path

from ruff import find_ruff_bin

from course.paths import ROOT

# Modules that Windows does not have
POSIX = ["fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"]

# Only for instructors, and only in the sandbox that `course grade` builds on Linux.
SANDBOX = ["course.grade.sandbox.driver"]
# They read /proc, which is ASCII.
LINUX_FILES = {"nanogpt/labs/ladder/ladder.py", "nanogpt/labs/ladder/rungs.py"}

GONE = """
import importlib, importlib.abc, json, os, pkgutil, signal, sys

class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in {posix}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import subprocess, multiprocessing, asyncio, tempfile, ctypes  # Python's own know what system they are on
import torch, matplotlib.pyplot, IPython, nbclient, nbformat, jupyter_client, psutil, pytest, huggingface_hub
sys.meta_path.insert(0, Gone())
for name in {posix}:
    sys.modules.pop(name, None)
"""
IMPORT_ALL = """
import course, nanogpt
failed = {}
for package in (course, nanogpt):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            try:
                importlib.import_module(found.name)
            except Exception as error:
                failed[found.name] = repr(error)
print(json.dumps(failed))
"""


def without_posix(code: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", GONE.format(posix=POSIX) + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")


def test_every_module_that_a_student_needs_is_imported_without_posix():
    done = without_posix(IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert sorted(failed) == SANDBOX, failed


def test_text_is_read_and_written_as_utf8():
    """Without encoding= Windows takes its own code page: a Japanese story or an arrow ends in a UnicodeError."""
    words = "check --preview --isolated --select PLW1514 --output-format json --exit-zero course nanogpt"
    done = subprocess.run([find_ruff_bin(), *words.split()], cwd=ROOT, capture_output=True, check=True)
    found = {Path(finding["filename"]).relative_to(ROOT).as_posix() for finding in json.loads(done.stdout)}
    assert {path for path in found if not path.startswith("course/grade/")} <= LINUX_FILES
