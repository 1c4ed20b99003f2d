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
    from course.grade.sandbox.sandbox import bubblewrap_works

    return None if bubblewrap_works() else "bwrap may not make namespaces here"


def why_no_container() -> str | None:
    from course.grade.sandbox.sandbox import why_no_container

    why = why_no_container()
    return why if why and (why.startswith("it takes root") or why_no_bubblewrap()) else None


def why_no_engine(name: str) -> str | None:
    """docker and podman take an image with PyTorch, such as the Dockerfile's."""
    if not os.environ.get("COURSE_TESTS_IMAGE"):
        return f"{name}: COURSE_TESTS_IMAGE names no image"
    from course.grade.sandbox.sandbox import succeeds

    return None if succeeds([name, "info"]) else f"{name} does not work here"


def command(backend: str) -> list[str]:
    """`course`, for a backend. Where Python or the course lies in /root, which root alone may enter, the container's
    /root is one that everybody may, with nothing but these."""
    words = [sys.executable, "-m", "course.cli"]
    from course.grade.sandbox.sandbox import parents, why_no_container

    if backend != "container" or not why_no_container():
        return words
    shown = ["--tmpfs", "/root"]
    for folder in (sys.base_prefix, str(ROOT), sys.prefix):
        shown += [*parents(folder), "--bind", folder, folder] if folder.startswith("/root/") else []
    return ["bwrap", "--dev-bind", "/", "/", *shown, "--die-with-parent", "--", *words]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
