"""`course test`: everything that CI runs, in one pytest whose workers share the notebooks and the tests (plugin.py)."""

import importlib.util
import os
import signal
import subprocess
import sys

from course.paths import NOTEBOOKS, ROOT, CourseError, number_of, numbered
from course.testing.law import COMPARISON, PARTS, before, part_of, student_clone

# Every notebook is a test: its fresh outputs must be the committed ones, durations aside.
NBVAL = [
    "--nbval",
    "--nbval-current-env",
    "--nbval-sanitize-with=tests/nbval.cfg",
    # Limits for what never ends; a slow machine with other work stays far below.
    "--nbval-cell-timeout=3600",
    "--nbval-kernel-startup-timeout=600",
]
LAWS = "laws", "repository", "repository_chapters", "repository_windows"  # and that nothing has drifted
LIGHT = "not slow and not weekly and not gpu"
QUICK = ["-m", LIGHT, "tests/core", *(f"tests/repository/test_{name}.py" for name in LAWS)]


def test(words: list[str]) -> int:
    """pytest's exit code. Without words the notebooks run in clones and the tests beside them; with words it is one pytest, in place."""
    missing = [name for name in ("pytest", "nbval", "xdist") if importlib.util.find_spec(name) is None]
    if missing:
        what = " and ".join(missing)
        raise CourseError(f"the tests need {what}: pip install -c constraints.txt -e '.[course,dev]'")
    if words in ([], ["weekly"]):
        left_out = [] if words else ["-m", "not weekly"]
        return run_pytest([*workers(), *left_out, "--durations=30", *students_way(), "tests"])
    if words[0] == "quick":
        return run_pytest([*workers(), *QUICK, *words[1:]])
    return run_pytest(words)


def workers() -> list[str]:
    """One more than there are cores, since tests also wait: for servers, for ranks, for a deadline."""
    return ["-n", str(min(5, cores() + 1)), "--no-loadscope-reorder"]


def cores() -> int:
    return os.cpu_count() or 2


def students_way() -> list[str]:
    """The notebooks in three clones, each part in its own, and the comparison with the committed package."""
    clones = [student_clone(folder, before(part)) for part, folder in enumerate(PARTS)]
    notebooks = [
        clones[part_of(number_of(path))] / NOTEBOOKS.name / path.name
        for path in numbered(NOTEBOOKS, ".ipynb")
    ]
    return [*map(str, notebooks), "-o", f"python_files=test_*.py {COMPARISON}"]


def run_pytest(words: list[str]) -> int:
    env = {"OMP_NUM_THREADS": str(max(1, cores() // 2))} | os.environ if "-n" in words else dict(os.environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes read the same files
    command = [sys.executable, "-m", "pytest", *NBVAL, "-p", "course.testing.plugin", *words]
    with subprocess.Popen(command, cwd=ROOT, env=env) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:  # which pytest gets from the terminal, too: it ends its workers and kernels
            process.wait()
            raise
