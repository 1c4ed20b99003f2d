"""`course test`: the notebooks as a student runs them, in two halves side by side, and the tests in a process behind them.

The first half begins in a clone whose package is empty, the second where the first ends (course/testing/law.py). When a half
has ended, its row helps with the tests.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from course.files import write_atomically
from course.package.checkpoint import PASSED
from course.paths import NOTEBOOKS, ROOT, CourseError, number_of, numbered, relative
from course.testing.forks import Forks
from course.testing.law import CLONE, SEAM, SECOND, before_the_seam, built_in, student_clone
from course.testing.share import BEHIND, CLAIMS, COUNTED, NOTEBOOKS_ENDED

# Every notebook is a test: its fresh outputs must be the committed ones, durations aside.
NBVAL = [
    "--nbval",
    "--nbval-sanitize-with=tests/nbval.cfg",
    # Limits for what never ends; a slow machine with other work stays far below.
    "--nbval-cell-timeout=3600",
    "--nbval-kernel-startup-timeout=600",
]
OWN_KERNELS = "--nbval-current-env"  # kernels of this Python; `course test` without arguments forks them
STUDENT = ROOT / "build" / "student"
SECONDS = ROOT / "build" / "test-seconds.txt"  # of each file, the longest first
OUTCOMES = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")
NOTHING_TO_DO = 5  # pytest's exit code


def test(more: list[str]) -> int:
    """pytest's exit code. With arguments it is one pytest, in place, on what they name."""
    missing = [name for name in ("pytest", "nbval") if importlib.util.find_spec(name) is None]
    if missing:
        raise CourseError(
            f"the tests need {' and '.join(missing)}: pip install -c constraints.txt -e '.[course,dev]'"
        )
    if more:
        return subprocess.run([*pytest(), *NBVAL, OWN_KERNELS, *more], cwd=ROOT).returncode
    start = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the processes would go on
    with tempfile.TemporaryDirectory(prefix="claims-") as claims:
        rows = Rows(claims)
        with rows.forks:
            code = rows.run()
        keep_seconds(Path(claims))
        if rows.forks.refused:
            why = ", ".join(f"{name} ({count})" for name, count in rows.forks.refused.items())
            print(f"new processes instead of forks, for another value of: {why}")
        if (counted := Path(claims) / COUNTED).exists():
            print(
                f"{counted.read_text()} tests have run in checkpoints, on the committed modules, and not again"
            )
    print(closing(rows.counts, time.perf_counter() - start))
    return code


def pytest() -> list[str]:
    return [sys.executable, "-m", "pytest"]


@dataclass
class Pytest:
    """A process of a row."""

    env: dict[str, str]
    words: list[str]
    half: bool = False  # whether it runs notebooks
    waits_for: Path | None = None  # a folder, which the first half makes


class Rows:
    """Three rows of pytest processes, one after the other in each: the two halves of the notebooks, each with tests behind it, and
    tests alone, which take what the notebooks leave of the cores. What they say comes line by line, a failure's text when its process has ended.
    """

    def __init__(self, claims: str):
        first, second = student_clone(STUDENT / "first"), student_clone(STUDENT / "second", before_the_seam())
        share = str(max(1, (os.cpu_count() or 2) // 2))
        self.env = {"OMP_NUM_THREADS": share} | os.environ | {CLAIMS: claims}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes read the same files
        self.forks = Forks(Path(claims) / "forks", self.env | {PASSED: claims})
        tests = ["-p", "course.testing.share", "tests"]
        ours = self.env | self.forks.python
        every = numbered(NOTEBOOKS, ".ipynb")
        halves = [
            self.half(first, [path for path in every if number_of(path) < SEAM], {SECOND: str(second)}),
            self.half(second, [path for path in every if number_of(path) >= SEAM], {}),
        ]
        halves[1].waits_for = built_in(second)
        self.rows = [[half, Pytest(ours, tests)] for half in halves]
        self.rows.append([Pytest(ours | {BEHIND: "1"}, tests)])
        self.counts: dict[str, int] = {}
        self.lock, self.processes, self.stopped = threading.Lock(), [], False
        self.halves = 2  # of the notebooks, that have not ended

    def half(self, clone: Path, notebooks: list[Path], more: dict[str, str]) -> Pytest:
        paths = [str(clone / NOTEBOOKS.name / path.name) for path in notebooks]
        words = [*NBVAL, *self.forks.words, "-p", "course.testing.law", *paths, "tests/student_way.py"]
        return Pytest(self.forks.env | {CLONE: str(clone)} | more, words, half=True)

    def run(self) -> int:
        with ThreadPoolExecutor(len(self.rows)) as pool:
            rows = [pool.submit(self.one_after_the_other, row) for row in self.rows]
            try:
                while wait(rows, timeout=0.5).not_done:  # on Windows a wait without an end hears no Ctrl-C
                    pass
            except BaseException:
                self.stop()
                raise
            codes = [code for row in rows for code in row.result()]
        return next((code for code in codes if code not in (0, NOTHING_TO_DO)), 0)

    def stop(self) -> None:
        """Ctrl-C for the processes, which are not in the terminal's group: each of them ends its kernels and servers."""
        with self.lock:
            self.stopped = True
            for process in self.processes:
                if process.poll() is None and os.name != "nt":  # Windows tells all of a console
                    process.send_signal(signal.SIGINT)

    def one_after_the_other(self, row: list[Pytest]) -> list[int]:
        """The exit codes of a row's processes."""
        codes = []
        for each in row:
            while each.waits_for and not (each.waits_for.exists() or self.halves < 2 or self.stopped):
                time.sleep(0.2)
            command = [*pytest(), "--no-header", "-o", "console_output_style=classic", *each.words]
            with self.lock:
                if self.stopped:
                    break
                command.append(f"--junitxml={self.env[CLAIMS]}/{len(self.processes)}.xml")
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=each.env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                )
                self.processes.append(process)
            self.tell(process)
            codes.append(process.wait())
            with self.lock:
                self.halves -= each.half
                if each.half and not self.halves:
                    (Path(self.env[CLAIMS]) / NOTEBOOKS_ENDED).touch()
        return codes

    def tell(self, process: subprocess.Popen) -> None:
        """Print a file's line when it is complete, and the summary when all are done; count its last line."""
        head, rest, began = [], [], False
        for line in process.stdout:
            if rest or (began and line.startswith("=")):
                rest.append(line)
            elif began:
                self.say(line)
            else:
                head.append(line)
                began = line.startswith("collected ")
        last = rest.pop() if rest and " in " in rest[-1] else ""
        self.say("".join(rest if began else head))
        with self.lock:
            for number, name in re.findall(
                r"(\d+) ([a-z]+)", re.sub(r"\x1b\[[0-9;]*m", "", last).partition(" in ")[0]
            ):
                name = name.removesuffix("s") if name in ("errors", "warnings") else name
                self.counts[name] = self.counts.get(name, 0) + int(number)

    def say(self, text: str) -> None:
        if text.strip():
            with self.lock:
                print(text, end="", flush=True)


def keep_seconds(folder: Path) -> None:
    """Write which file took how long, from pytest's reports in a folder."""
    seconds: dict[str, float] = {}
    for report in folder.glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            name = re.search(r"([\w-]+)(\.ipynb|\.Test\w*)?$", case.get("classname") or "other")[1]
            seconds[name] = seconds.get(name, 0) + float(case.get("time"))
    lines = [f"{value:7.1f} s  {name}" for name, value in sorted(seconds.items(), key=lambda item: -item[1])]
    write_atomically(SECONDS, ("\n".join(lines) + "\n").encode())
    used = os.times()
    print(
        f"seconds of each file: {relative(SECONDS)}; {used.children_user + used.children_system:.0f} s of"
        f" processor time on {os.cpu_count()} cores"
    )


def closing(counts: dict[str, int], seconds: float) -> str:
    """pytest's own last line, of all processes together."""
    found = [
        f"{counts[name]} {name}{'s' * (name in ('error', 'warning') and counts[name] > 1)}"
        for name in OUTCOMES
        if name in counts
    ]
    minutes = f" ({int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02})"
    return f" {', '.join(found) or 'no tests ran'} in {seconds:.2f}s{minutes} ".center(80, "=")
