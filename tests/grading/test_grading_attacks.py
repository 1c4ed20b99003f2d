"""Submissions that try to fool the grader, under every sandbox that runs here: the verdict, the score, an unchanged host."""

import functools
import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from cases import RIGHT, Case, attacks, notebook
from sandboxes import ROOT, command, environment, why_no_bubblewrap, why_no_container, why_no_engine

from course.exercises import sets as exercises
from course.grade.sandbox.processes import pids, uid_of
from course.grade.sandbox.sandbox import UIDS

HERE = Path(__file__).parent
ALWAYS = ("correct", "torch_right")  # what another one reads, and no folder is empty
BACKENDS = {
    "bubblewrap": why_no_bubblewrap,
    "container": why_no_container,
    "docker": lambda: why_no_engine("docker"),
    "podman": lambda: why_no_engine("podman"),
}


class Host:
    """What a submission is not to read, write or reach."""

    def __init__(self, folder: Path):
        self.folder, self.canary = folder, folder / "canary"
        self.sources = ROOT / "exercises"
        self.submissions, self.results, self.exercises = (
            folder / name for name in ("submissions", "results", "exercises")
        )
        folder.chmod(0o755)
        self.canary.write_text("what only the instructor may read")
        self.canary.chmod(0o600)
        for name in ("05_small", "06_tensors"):
            shutil.copytree(HERE / name, self.exercises / name)
        self.submissions.mkdir()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        while True:
            try:
                self.listener.accept()
            except OSError:
                return
            self.connections += 1

    def submit(self, case: Case) -> None:
        first = "05-1" if case.exercise == "05_small" else "06-1"
        solutions = the(case.exercise).solutions | ({first: case.code} if case.code else {}) | case.solutions
        path = self.submissions / case.exercise / f"{case.name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        made = notebook(solutions, {"05-4": "because <b>"} if case.exercise == "05_small" else {})
        if case.name in ("symlink", "fifo"):
            case.change(path)
            return
        changed = case.change(made) if case.change else made
        path.write_bytes(changed if isinstance(changed, bytes) else json.dumps(changed).encode())

    def grade(self, exercise: str, backend: str, *more: str) -> subprocess.CompletedProcess:
        words = [*command(backend), "grade", "run", str(self.exercises / exercise), "--backend", backend]
        words += ["--submissions", str(self.submissions / exercise), "--results", str(self.results), *more]
        seconds = 300
        if backend in ("docker", "podman"):  # they take a second and more for each sandbox
            words, seconds = [*words, "--image", os.environ["COURSE_TESTS_IMAGE"]], 1800
        about = {"env": environment(), "cwd": ROOT, "timeout": seconds}
        return subprocess.run(words, capture_output=True, text=True, **about)

    def result(self, exercise: str, student: str) -> dict:
        return json.loads((self.results / exercise / f"{student}.json").read_text())


@functools.cache
def the(name: str):
    return exercises.read(HERE / name)


@pytest.fixture(scope="module", params=BACKENDS)
def host(request, tmp_path_factory):
    """All cases handed in and graded, by two processes."""
    if why := BACKENDS[request.param]():
        pytest.skip(why)
    host = Host(tmp_path_factory.mktemp(request.param))
    host.backend = request.param
    host.before, host.left = state_of(host), left_by_boxes(host)
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    for case in attacks(host):
        if host.backend in case.backends and case.name in {*chosen, *ALWAYS}:
            host.submit(case)
    (host.submissions / "06_tensors" / "torch.py").write_text("raise SystemExit('the torch.py beside')")
    for name in ("05_small", "06_tensors"):
        done = host.grade(name, host.backend, "--jobs", "2")
        assert done.returncode == 0, (name, done.stdout, done.stderr)
    yield host
    host.listener.close()


def state_of(host: Host) -> dict:
    """What no submission may change."""
    return {
        "files": {path.name for path in host.folder.iterdir()} - {"results"},
        "canary": (host.canary.read_text(), host.canary.stat().st_mode),
        "grader": {path: path.stat().st_mtime_ns for path in (ROOT / "course").rglob("*.py")},
        "connections": host.connections,
    }


def left_by_boxes(host: Host) -> set:
    """Files and processes of the sandboxes' users. Another grader's, on a machine with several, have a parent."""
    entries = [entry for at in ("/tmp", "/var/tmp", "/dev/shm") for entry in os.scandir(at)]
    files = {entry.path for entry in entries if entry.stat(follow_symlinks=False).st_uid in UIDS}
    return files | {pid for pid in pids() if uid_of(pid) in UIDS and parent_of(pid) == 1}


NAMES = [case.name for case in attacks(MagicMock(**{"sources.parent": ROOT}))]


@pytest.mark.parametrize("name", NAMES)
def test_a_submission_gets_what_is_due(host, name):
    case = next(case for case in attacks(host) if case.name == name)
    if host.backend not in case.backends:
        pytest.skip(f"a question for {case.backends[0]} alone")
    result = host.result(case.exercise, name)
    assert result["verdict"] == case.verdict, result["message"]
    assert result["score"] == case.score, result["tasks"]
    said = [result["message"]]
    if case.verdict == "graded":
        first, *others = result["tasks"].values()
        verdicts = [check["verdict"] for check in first["checks"]]
        for verdict, allowed in zip(verdicts, case.verdicts, strict=True):
            assert verdict in allowed.split("|"), first["checks"]
        said += [check["message"] for task in (first, *others) for check in task["checks"]]
    assert case.says in " ".join(said), said
    assert result["max_score"] == (16.0 if case.exercise == "05_small" else 5.0)


def test_the_host_is_unchanged(host):
    assert state_of(host) == host.before
    assert left_by_boxes(host) <= host.left


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_later_crash_takes_the_earlier_score(host, tmp_path):
    own = Host(tmp_path)

    def graded() -> dict:
        own.grade("05_small", host.backend)
        return own.result("05_small", "ann")

    own.submit(Case("ann", RIGHT))
    first = graded()
    own.submit(Case("ann", "import os\nos._exit(0)"))
    second = graded()
    own.submit(Case("ann", change=lambda nb: b"{}"))
    third = graded()
    own.listener.close()
    assert [one["score"] for one in (first, second, third)] == [14.0, 9.0, 0.0]
    assert second["sha256"] != first["sha256"] and third["verdict"] == "invalid_submission"
