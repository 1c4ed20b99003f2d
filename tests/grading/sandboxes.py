"""Which sandboxes can be tried here, and how the command line is called in each."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "bubblewrap"]


def why_no_bubblewrap() -> str | None:
    """Why bubblewrap cannot be tried; in CI, or where COURSE_TESTS_INSTALL is set, it is installed first."""
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if shutil.which("bwrap") is None and is_root and {"CI", "COURSE_TESTS_INSTALL"} & set(os.environ):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 300}
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["apt-get", "update"], **quiet)
            subprocess.run(INSTALL, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, **quiet)
    if shutil.which("bwrap") is None:
        return f"no bwrap here: {' '.join(INSTALL)}, or set COURSE_TESTS_INSTALL=1 as root"
    from course.grade.sandbox import bubblewrap_works

    return None if bubblewrap_works() else "bwrap may not make namespaces here"


def why_no_container() -> str | None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "the container's backend takes root"
    from course.grade.sandbox import runs_under_a_uid

    if not runs_under_a_uid() and why_no_bubblewrap():
        return "Python lies below a folder that only root may enter"
    return None


def why_no_engine(name: str) -> str | None:
    """docker and podman take an image with PyTorch, such as the Dockerfile's."""
    if not os.environ.get("COURSE_TESTS_IMAGE"):
        return f"{name}: COURSE_TESTS_IMAGE names no image"
    from course.grade.sandbox import succeeds

    return None if succeeds([name, "info"]) else f"{name} does not work here"


def command(backend: str) -> list[str]:
    """`course`, for a backend. Where only root may enter Python's folder, as one that lies in /root, the container's
    root is one in which everybody may."""
    words = [sys.executable, "-m", "course.cli"]
    from course.grade.sandbox import parents, runs_under_a_uid

    if backend != "container" or runs_under_a_uid():
        return words
    hidden = ["--tmpfs", "/root", *parents(sys.base_prefix), "--ro-bind", sys.base_prefix, sys.base_prefix]
    return ["bwrap", "--dev-bind", "/", "/", *hidden, "--die-with-parent", "--", *words]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
