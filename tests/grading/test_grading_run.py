"""A night of grading: what is kept, what is done again, what is ours, and who is refused."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import CHANNEL, RIGHT, notebook
from sandboxes import ROOT, command, environment, why_no_bubblewrap, why_no_container

from course.exercises import sets as exercises
from course.exercises.checks import Check
from course.grade import cli, run
from course.grade.sandbox import boxes, protocol, sandbox
from course.grade.sandbox.boxes import Box, Ended, SandboxError, program
from course.grade.sandbox.processes import free_uid, pids, segments, sweep, uid_of
from course.grade.sandbox.warm import Boxes, Options, Template
from course.grade.score.grader import Grader
from course.grade.score.judge import judged
from course.grade.score.record import empty_result, write_result
from course.grade.submission import Found, collect
from course.paths import CourseError

HERE = Path(__file__).parent
NO_SANDBOX = why_no_bubblewrap()
sandboxed = pytest.mark.skipif(NO_SANDBOX is not None, reason=str(NO_SANDBOX))


CLASS = ("ann", "bob", "cem")


class Class:
    """An exercise of the tests' own, and the folder in which students hand in."""

    def __init__(self, folder: Path):
        self.exercise = folder / "05_small"
        shutil.copytree(HERE / "05_small", self.exercise)
        self.submissions, self.results = folder / "in", folder / "results"
        self.submissions.mkdir()

    @property
    def made(self):
        return exercises.read(self.exercise)

    def hand_in(self, student: str, code: str = RIGHT, answer: str = "because", others: dict | None = None):
        text = json.dumps(notebook(self.made.solutions | {"05-1": code} | (others or {}), {"05-4": answer}))
        (self.submissions / f"{student}.ipynb").write_text(text)

    def words(self, command: str, *more: str) -> list[str]:
        places = ["--submissions", str(self.submissions), "--results", str(self.results)]
        return [command, str(self.exercise), *places, *more]

    def grade(self, *more: str, command: str = "run") -> int:
        return cli.main(self.words(command, *more))

    def program(self, *more: str) -> dict:
        """What subprocess takes for `course grade run` as a process of its own."""
        words = [*command("bubblewrap"), "grade", *self.words("run", *more)]
        return {"args": words, "env": environment(), "cwd": ROOT}

    def path(self, student: str) -> Path:
        return self.results / "05_small" / f"{student}.json"

    def result(self, student: str) -> dict:
        return json.loads(self.path(student).read_text())


@pytest.fixture
def course(tmp_path):
    return Class(tmp_path)


@sandboxed
def test_a_night_that_was_interrupted_goes_on(course, capsys):
    for student in CLASS:
        course.hand_in(student)
    assert course.grade() == 0
    before = {student: course.path(student).read_bytes() for student in CLASS}
    course.path("bob").unlink()
    course.hand_in("cem", "def double(xs): return 0")
    capsys.readouterr()
    assert course.grade() == 0
    assert "2 graded with bubblewrap, 1 kept" in capsys.readouterr().out
    assert course.path("ann").read_bytes() == before["ann"]
    assert course.result("bob")["score"] == 14.0 and course.result("cem")["score"] == 9.0
    checks = course.exercise / "checks.py"
    checks.write_text(checks.read_text().replace('"a third", 5', '"a third", 6'))
    assert course.grade() == 0
    assert course.result("ann")["score"] == 15.0, "another exercise, another score"


@sandboxed
def test_a_persons_marks_stay_with_the_answer_they_are_for(course):
    course.hand_in("ann")
    course.grade()
    result = course.result("ann")
    result["manual"]["05-4"] |= {"points": 1.5, "comment": "nearly"}
    course.path("ann").write_text(json.dumps(result))
    assert course.grade("--student", "ann", command="regrade") == 0
    assert course.result("ann")["score"] == 15.5
    assert course.result("ann")["manual"]["05-4"]["comment"] == "nearly"
    course.hand_in("ann", answer="another answer")
    course.grade()
    assert course.result("ann")["score"] == 14.0 and course.result("ann")["manual"]["05-4"]["points"] is None


@sandboxed
def test_our_own_failure_is_no_zero(course, monkeypatch, capsys):
    for student in CLASS:
        course.hand_in(student)
    compared = Grader.compared

    def fails_on_bob(self, check, student, cells):
        if student == "bob":
            raise OSError("the disk is full")
        return compared(self, check, student, cells)

    monkeypatch.setattr(Grader, "compared", fails_on_bob)
    assert course.grade() == 1
    assert "infrastructure_error: bob: OSError: the disk is full" in capsys.readouterr().out
    assert course.result("bob")["score"] is None and course.result("cem")["score"] == 14.0
    monkeypatch.undo()
    assert course.grade() == 0
    assert course.result("bob")["score"] == 14.0, "it is graded again"


@sandboxed
def test_a_grading_process_that_dies_takes_nobody_with_it(course, monkeypatch):
    for student in CLASS:
        course.hand_in(student)
    grade = Grader.grade

    def dies_of_bob(self, found):
        return os._exit(9) if found.student == "bob" else grade(self, found)

    monkeypatch.setattr(Grader, "grade", dies_of_bob)
    assert course.grade("--jobs", "2") == 1
    assert course.result("bob")["verdict"] == "infrastructure_error"
    assert {course.result(student)["score"] for student in ("ann", "cem")} <= {14.0, None}
    monkeypatch.undo()
    assert course.grade("--jobs", "2") == 0
    assert {course.result(student)["score"] for student in CLASS} == {14.0}


@sandboxed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_grader_that_is_ended_leaves_whole_results_and_no_process(course, number):
    course.hand_in("ann")
    for i in range(4):
        course.hand_in(f"loop{i}", "def double(xs):\n    while True: pass")
    running = subprocess.Popen(**course.program("--jobs", "2", "--timeout", "60"), stderr=subprocess.PIPE)
    wait_for(lambda: course.path("ann").exists())
    its_own = {pid for pid in pids() if is_below(pid, running.pid)} - {running.pid}
    assert its_own, "no process to be ended"
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == (130 if number == signal.SIGINT else -number) and b"Traceback" not in said
    assert [path.name for path in course.path("ann").parent.iterdir()] == ["ann.json"]
    assert course.result("ann")["score"] == 14.0
    wait_for(lambda: not [pid for pid in its_own if uid_of(pid) is not None])


def is_below(pid: int, ancestor: int) -> bool:
    while pid > 1 and pid != ancestor:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return False
    return pid == ancestor


def wait_for(what) -> None:
    deadline = time.monotonic() + 90
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@sandboxed
def test_a_name_that_is_not_the_students_gives_no_other_numbers(course):
    other = next(s for s in ("bob", "cem", "dan", "eve") if exercise_number(s) != exercise_number("ann"))
    course.hand_in("ann", others={"student": f"STUDENT = {other!r}"})
    course.hand_in(other, others={"05-2": f"third = {exercise_number('ann')} / 3"})
    course.grade()
    assert course.result("ann")["score"] == 14.0
    assert course.result(other)["score"] == 9.0, "ann's number is not theirs"


def exercise_number(student: str) -> int:
    from course.variants import variant

    return variant("05-2", student, n=[3, 5, 7, 11, 13])["n"]


def test_a_judge_that_cannot_read_a_result_says_so_and_its_own_fault_is_raised():
    reads = Check("05-1", "x", 1, "f", judge=lambda got, expected: "" if got["a"] > 0 else "no")
    assert judged(reads, [{"a": 1}], [{"a": 2}], [()]) == ""
    assert "cannot be judged" in judged(reads, ["text"], [{"a": 2}], [()])
    with pytest.raises(ZeroDivisionError):
        judged(Check("05-1", "x", 1, "f", judge=lambda got, expected: 1 / 0), [1], [1], [()])
    for value in (float("nan"), [1.0, float("inf")], {"a": float("nan")}):
        fooled = Check("05-1", "x", 1, "f", judge=lambda got, expected: "")
        assert judged(fooled, [value], [1.0], [()]) == "the result is not finite"
    slow = Check("05-1", "x", 1, "f", seconds=0.2, judge=lambda got, _: "" if got == 1 else time.sleep(9))
    assert "cannot be judged (TimeoutError" in judged(slow, [2], [1], [()])


@pytest.mark.parametrize(
    ("backend", "trusted", "installed", "says"),
    [
        (None, False, True, "bubblewrap is installed and does not work here"),
        (None, False, False, "no sandbox works here; install bubblewrap"),
        ("trusted", False, False, "only with --i-trust-these-submissions"),
        ("container", False, False, "'container' does not work here: it takes root"),
        ("docker", False, False, "docker needs --image"),
    ],
)
def test_without_a_sandbox_that_works_nothing_is_run(monkeypatch, backend, trusted, installed, says):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: "/usr/bin/bwrap" if installed else None)
    monkeypatch.setattr(sandbox, "succeeds", lambda command: False)
    monkeypatch.setattr(sandbox, "bubblewrap_works", lambda: False)
    monkeypatch.setattr(sandbox, "why_no_container", lambda: None if installed else "it takes root")
    with pytest.raises(CourseError, match=says):
        sandbox.choose(backend, trusted)
    assert sandbox.choose(trusted=True) == "trusted"


def test_a_course_that_lies_below_usr_is_not_shown_with_it(monkeypatch):
    monkeypatch.setattr(sandbox, "ROOT", Path("/usr/src/course"))
    words = " ".join(sandbox.view())
    assert words.startswith("--ro-bind /usr /usr --tmpfs /usr/src/course ")
    shown = re.findall(r"--ro-bind (/usr/src/course/\S+)", words)
    assert set(shown) == {"/usr/src/course/course", "/usr/src/course/nanogpt"}


def test_a_disk_that_another_box_fills_is_not_held_against_this_one(monkeypatch):
    """Only the machine's free space is seen at once: what a neighbour wrote took points from who did nothing."""
    box = Boxes(Options("trusted", ahead=False), [], None).ready()
    try:
        monkeypatch.setattr(
            boxes.shutil, "disk_usage", lambda path: SimpleNamespace(free=box.disk - (3 << 29))
        )
        box.watched = 0
        box.watch(time.monotonic() + 60)
        monkeypatch.setattr(boxes, "DISK", 1 << 20)
        (box.home / "mine").write_bytes(b"x" * (2 << 20))
        box.watched = 0
        with pytest.raises(Ended, match="it wrote more than 1 MiB"):
            box.watch(time.monotonic() + 60)
    finally:
        box.close()


LIMITS = (
    "--network none|--read-only|--cap-drop ALL|--pids-limit 64|--user 65534:65534|--security-opt no-new-privileges"
    f"|--memory {4 << 30}|--rm|--interactive|--env=HOME=/tmp"
)


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_container_engine_is_called_with_every_limit(name):
    text = " ".join(sandbox.engine(name, "pytorch/pytorch", "box-1"))
    assert text.startswith(f"{name} run ") and text.endswith(" pytorch/pytorch")
    assert not [limit for limit in LIMITS.split("|") if limit not in text]
    assert "--env=PATH" not in text, "the image knows where its Python is"
    mounted = re.findall(r"--volume (\S+)", text)
    assert mounted == [f"{ROOT}/course:/grade/course:ro", f"{ROOT}/nanogpt:/grade/nanogpt:ro"]


def test_submissions_that_nobody_isolates_are_graded_where_they_are_trusted(course):
    course.hand_in("ann")
    assert course.grade("--i-trust-these-submissions") == 0
    assert course.result("ann")["score"] == 14.0 and course.result("ann")["backend"] == "trusted"


PATTERN = r"(?P<student_id>\w+)_\d+_(?P<timestamp>[\d-]+)_.*\.ipynb"
TWO_ZONES = ["ann_2026-11-20T10-00-00Z.ipynb", "ann_2026-11-20T10-30-00+01-00.ipynb"]  # or 9:30 in UTC
LONG = "\U0001d49c" * 60 + ".ipynb"  # a name to which nothing can be added


@pytest.mark.parametrize(
    ("files", "pattern", "due", "others"),
    [
        (["ann.ipynb", "zoë.ipynb", "notes.txt"], None, {"ann": None, "zoë": None}, ["notes.txt"]),
        (["bob_2026-11-20T10-00-00.ipynb", "bob_2026-11-21.ipynb"], None, {"bob": "2026-11-21T00:00:00"}, []),
        (TWO_ZONES, None, {"ann": "2026-11-20T10:00:00Z"}, []),
        (["0815_77_2026-11-20_x y.ipynb"], PATTERN, {"0815": "2026-11-20T00:00:00"}, []),
        (["a/ann.ipynb", "b/ann.ipynb"], r".*/(?P<student_id>\w+)\.ipynb", {"ann": "two files"}, []),
        ([".hidden.ipynb", "a b.ipynb"], r"(?P<student_id>.*)\.ipynb", {"a b": None}, [".hidden.ipynb"]),
        (["Jose\u0301.ipynb", LONG], None, {"Jos\xe9": None}, [LONG]),  # as macOS writes é
    ],
    ids=["id", "day", "zones", "pattern", "folders", "hidden", "spelling"],
)
def test_the_latest_file_of_each_student_is_taken(tmp_path, files, pattern, due, others):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found, left = collect(tmp_path, *([pattern] if pattern else []))
    assert {one.student: one.problem[:9] or one.submitted for one in found} == due and left == others


@pytest.mark.skipif(sys.platform != "linux", reason="a file's name may be any bytes in Linux alone")
def test_a_strangers_names_reach_no_terminal(course, capfd, monkeypatch):
    course.hand_in("ann")
    (course.submissions / "\x1b[2J\x9b31m\udcff.txt").touch()
    (course.submissions / "bob_2026-11-20_\x1b[2J.ipynb").write_text("{}")
    (course.submissions / "bob_2026-11-20_\udcff.ipynb").write_text("{}")

    def refused(made, found, *_) -> list[dict]:
        told = {"verdict": "invalid_submission", "message": found[1].problem}
        return [empty_result(made, found[1], "") | told]

    monkeypatch.setattr(run, "run", refused)
    pattern = r"(?P<student_id>\w+?)(_(?P<timestamp>[\d-]+)_.*)?\.ipynb"
    course.grade("--pattern", pattern, "--i-trust-these-submissions")
    said = capfd.readouterr().out
    assert "no submissions by their names" in said and "two files of one time" in said
    said.encode()
    assert not {"\x1b", "\x9b"} & set(said), said


@pytest.mark.parametrize(
    ("students", "words", "says"),
    [
        ([], ["run"], "no submissions in"),
        (["ann"], ["regrade", "--student", "bob"], "no submission of bob"),
        (["ann"], ["run", "--pattern", "x"], "needs a group"),
    ],
)
def test_a_wrong_call_is_one_sentence(course, students, words, says):
    for student in students:
        course.hand_in(student)
    with pytest.raises(CourseError, match=says):
        course.grade(*words[1:], command=words[0])


@contextlib.contextmanager
def started(backend: str):
    """A box that is ready; "forked" is bubblewrap's, out of a template."""
    with contextlib.ExitStack() as ends:
        template = Template.started([]) if backend == "forked" else None
        if template:
            ends.callback(template.close)
        box = Box(backend.replace("forked", "bubblewrap"), [], template=template)
        ends.callback(box.close)
        box.wait()
        yield box


def asked(box: Box, code: str):
    """What a sandbox makes of a cell that leaves its result in `x`."""
    deadline = time.monotonic() + 20
    header = {"cells": [["05-1", code]], "task": "05-1", "student": "", "harness": "", "call": "x"}
    box.send(protocol.pack("run", 1, [()], **header), deadline)
    given = None
    while (frame := box.receive(deadline))["kind"] != "ended":
        given = frame["values"][0] if frame["kind"] == "value" else given
    return given


@sandboxed
def test_a_sandbox_is_a_fork_of_the_template_and_ends_with_the_grader():
    template = Template.started([])
    these = Boxes(Options("bubblewrap"), [], template)
    first = these.ready()
    assert these.template is template, "it fell back to a process that imports torch itself"
    numbers = "[os.getpid(), os.getppid(), len(os.listdir('/proc/self/fd'))]"
    pid, parent, descriptors = asked(first, f"import os; x = {numbers}")
    assert pid < 50 and parent < 50 and descriptors <= 7
    assert asked(first, "import os; x = os.environ['HOME']") == "/tmp"
    asked(first, "open('/tmp/left', 'w').write('for the next'); x = 1")
    there = first.processes()
    assert len(there) >= 2
    these.end()
    assert not [pid for pid in there if uid_of(pid) is not None]
    ours = {path.split("/")[2] for path in sandbox.needed() if path.startswith("/tmp/")}  # a clone below /tmp
    assert set(asked(these.ready(), "import os; x = os.listdir('/tmp')")) == ours
    box = these.ready()
    there = box.processes()
    os.close(box.life)  # what a kernel does with the descriptors of a grader that is killed
    box.life = os.open(os.devnull, os.O_RDONLY)
    wait_for(lambda: not [pid for pid in there if uid_of(pid) is not None])
    these.close()
    template.close()


@sandboxed
def test_a_sandbox_has_python_where_venv_holds_a_copy_of_the_program(tmp_path):
    venv.create(tmp_path / ".venv", symlinks=False)  # as course/machine/setup_env.py makes it
    script = (
        "import subprocess; from course.grade.sandbox.sandbox import PYTHON, UIDS, bubblewrap\n"
        "raise SystemExit(subprocess.run([*bubblewrap(UIDS[0], 2), *PYTHON, '-c', 'print(6 * 7)']).returncode)"
    )
    words = [tmp_path / ".venv/bin/python", "-c", script]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr


@sandboxed
@pytest.mark.parametrize("missing", ["libc.setns(entry, ALL)", "libc.capset(version, nothing)"])
def test_a_fork_that_is_not_inside_or_has_rights_runs_nothing(tmp_path, missing):
    """The template as it is, less one call: what it starts ends before a request is read."""
    source = (ROOT / "course/grade/sandbox/template.py").read_text()
    assert source.count(missing) == 1
    broken = tmp_path / "template.py"
    broken.write_text(source.replace(missing, "0"))
    told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [*sandbox.PYTHON, str(broken), program("sandbox/template.py", "bubblewrap", [])[1]]
    pipes = {"stdin": theirs, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(words, env=sandbox.ENVIRONMENT, **pipes)
    template = Template(told, running.pid)
    box = Box("bubblewrap", [], template=template)
    with contextlib.closing(template), contextlib.closing(box), pytest.raises(SandboxError):
        box.wait()
    assert "a sandbox did not start" in running.stderr.read()


# Everything that this process can read of itself is searched; what is sought does not stand in this text.
SEARCHES = """
def double(xs):
    with open("/proc/self/mem", "rb") as memory:
        for line in open("/proc/self/maps"):
            span, rights = line.split()[:2]
            begin, end = (int(at, 16) for at in span.split("-"))
            while rights.startswith("r") and "[v" not in line and begin < end:
                memory.seek(begin)
                try:
                    part = memory.read(min(end - begin, 64 << 20))
                except OSError:
                    break
                if any(bytes.fromhex(one)[::-1] in part for one in SOUGHT):
                    raise ValueError("found")
                begin += len(part)
    return [2 * x for x in xs]
"""


@sandboxed
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_memory_of_a_sandbox_holds_nothing_of_the_grader(course, jobs):
    """Neither its environment nor its arguments, though one import of torch serves both."""
    secret = "of the grader alone"
    sought = [text.encode()[::-1].hex() for text in (secret, str(course.submissions), str(course.results))]
    course.hand_in("annabell-417", f"SOUGHT = {sought}\n{SEARCHES}")
    program = course.program("--jobs", jobs)
    program["env"]["SECRET"] = secret
    subprocess.run(**program, check=True)
    assert course.result("annabell-417")["score"] == 14.0, course.result("annabell-417")
    course.hand_in("annabell-417", f"SOUGHT = {[*sought, b'annabell-417'[::-1].hex()]}\n{SEARCHES}")
    subprocess.run(**program, check=True)
    assert course.result("annabell-417")["score"] < 14.0, "the student's own name is there, and not found"


IPC = """
import ctypes, os, sys
os.setresuid(*[int(sys.argv[1])] * 3)
libc = ctypes.CDLL(None)
made = [libc.shmget(0, 4096, 0o1600), libc.semget(0, 1, 0o1600), libc.msgget(0, 0o1600)]
assert -1 not in made
"""


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="another uid takes root")
def test_what_a_uid_left_in_the_kernel_is_removed():
    uid = free_uid()
    kinds = ("shm", "sem", "msg")
    subprocess.run(["/usr/bin/env", "python3", "-c", IPC, str(uid)], check=True, cwd="/")
    try:
        assert [sum(owner == uid for _, owner in segments(kind)) for kind in kinds] == [1, 1, 1]
    finally:
        sweep(uid)
    assert [sum(owner == uid for _, owner in segments(kind)) for kind in kinds] == [0, 0, 0]


DIES = """
import os, sys, time
from course.grade.sandbox import protocol
from course.grade.sandbox.warm import Boxes, Options, Template
how, stage, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
template = Template.started(["torch"]) if how == "forked" else None
box = None
if stage != "template":
    box = Boxes(Options("bubblewrap"), ["torch"] if template else [], template).ready()
if stage == "loop":
    header = {"cells": [["", "import time\\nwhile True: time.sleep(9)"]], "task": "", "student": "", "harness": "", "call": "x"}
    box.send(protocol.pack("run", 1, [()], **header), time.monotonic() + 9)
time.sleep(seconds)
print(*([template.pid] if template else []), *(box.processes() if box else []), flush=True)
os.kill(os.getpid(), 9)
"""


@sandboxed
@pytest.mark.parametrize(
    "stage",
    ["forked template 0", "forked template 0.005", "forked template 0.03", "forked box 0", "forked loop 0.3", "imported loop 0.3"],
)  # fmt: skip
def test_a_grader_that_is_killed_leaves_no_process(stage):
    done = subprocess.run(
        [sys.executable, "-c", DIES, *stage.split()],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    its_own = list(map(int, done.stdout.split()))
    assert len(its_own) >= (1 if "template" in stage else 3)
    wait_for(lambda: not [pid for pid in its_own if uid_of(pid) is not None])


LOOK = """
import ctypes, os, platform, resource
def status(name):
    return next(line.split(":")[1].split() for line in open("/proc/self/status") if line.startswith(name + ":"))
def size(path):
    about = os.statvfs(path)
    return about.f_blocks * about.f_frsize
x = {
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "mnt", "net", "ipc", "uts")},
    "limits": {name: list(resource.getrlimit(getattr(resource, "RLIMIT_" + name))) for name in LIMITS},
    "environment": {name: value for name, value in os.environ.items() if name not in ("PWD", "LC_CTYPE")},
    "rights": [status(name) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Groups")],
    "session": os.getsid(0) > 0,
    "read_only": [bool(os.statvfs(path).f_flag & os.ST_RDONLY) for path in ("/", "/dev", "/usr", COURSE)],
    "sizes": [size("/tmp"), size("/dev/shm")],
    "host": platform.node(),
    "root": sorted(os.listdir("/")),
    "repository": sorted(os.listdir(os.path.dirname(COURSE))),
    "more_users": ctypes.CDLL(None).unshare(0x10000000),
}
"""


@sandboxed
@pytest.mark.parametrize("backend", ["forked", "bubblewrap"])
def test_a_sandbox_is_what_it_is_said_to_be(monkeypatch, backend):
    """Every line of it that an attack would have to get past two others to notice."""
    monkeypatch.setenv("SECRET", "of the grader's environment")
    look = LOOK.replace("LIMITS", repr([*DUE_LIMITS])).replace("COURSE", repr(str(ROOT / "course")))
    with started(backend) as box:
        seen = asked(box, look)
        uids = {uid_of(pid) for pid in box.processes()}
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in seen["namespaces"]}
    assert not ours.items() & seen["namespaces"].items(), "shared with this process"
    assert seen["limits"] == {name: [value, value] for name, value in DUE_LIMITS.items()}
    assert seen["environment"] == sandbox.ENVIRONMENT
    assert seen["rights"] == [["0" * 16]] * 5 + [["1"], []]
    assert seen["session"] and seen["host"] == "sandbox" and seen["more_users"] == -1
    assert seen["read_only"] == [True] * 4 and seen["sizes"] == [64 << 20] * 2
    system = ["bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr"]
    assert set(seen["root"]) <= {*system, *(Path(folder).parts[1] for folder in sandbox.needed())}
    assert set(seen["repository"]) <= {"course", "nanogpt", ".venv"}
    assert uids == {box.uid} if os.geteuid() == 0 else 0 not in uids


DUE_LIMITS = {"AS": 4 << 30, "NPROC": 64, "FSIZE": 64 << 20, "NOFILE": 256, "CORE": 0, "CPU": 600}


FORKS = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        kept = b'x' * (80 << 20)\n        time.sleep(9)\n"
HOLDS_NONE = "import os, time\nfor _ in range(6):\n    os.write(os.memfd_create('x'), bytes(50 << 20))\ntime.sleep(3)\n"
TALKS = f"{CHANNEL}\nfor _ in range(60):\n    frame({{'kind': 'at', 'id': 1, 'task': ''}})\n    time.sleep(0.05)\n"


@sandboxed
@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (FORKS + TALKS, Ended, "GiB of memory"),
        (HOLDS_NONE, SandboxError, "shared memory"),
    ],
    ids=["talkative", "no_process_holds"],
)
def test_memory_of_a_box_is_watched(monkeypatch, code, error, says):
    """Of all processes together: each stays below its own limit. And of one that sends a frame now and then."""
    monkeypatch.setattr(boxes, "MEMORY", 200 << 20)
    with started("forked") as box, pytest.raises(error, match=says):
        asked(box, f"{code}x = 1")


KEYCTL = {"x86_64": (250, 248), "aarch64": (219, 217)}.get(os.uname().machine)  # and add_key


@sandboxed
@pytest.mark.skipif(not KEYCTL, reason="the numbers of the calls are not known here")
@pytest.mark.parametrize("backend", ["forked", "bubblewrap", "container"])
def test_a_sandbox_has_no_keys_of_ours(backend):
    if backend == "container" and why_no_container():
        pytest.skip(why_no_container())
    libc, (keyctl, add_key) = ctypes.CDLL(None), KEYCTL
    libc.syscall(keyctl, 1, None)  # a session keyring of this test's, with a secret in it
    if libc.syscall(add_key, b"user", b"instructors", b"secret", 6, -3) < 0:
        pytest.skip("the kernel takes no keys here")
    search = f"ctypes.CDLL(None).syscall({keyctl}, 10, -3, b'user', b'instructors', 0)"
    with started(backend) as box:
        assert asked(box, f"import ctypes\nx = {search}") == -1


@sandboxed
def test_selfcheck_finds_the_sandbox_whole(capsys):
    assert cli.main(["selfcheck"]) == 0
    assert "FAILED" not in capsys.readouterr().out


def test_a_result_takes_the_place_of_an_earlier_one_in_one_step(course):
    result = empty_result(course.made, Found("ann", None, course.submissions / "ann.ipynb"), "bubblewrap")
    write_result(course.results, result)
    with open(course.path("ann")) as reader:  # somebody reads the earlier one meanwhile
        write_result(course.results, result | {"message": "later"})
        assert json.loads(reader.read())["message"] == ""
    assert course.result("ann")["message"] == "later"
