"""`course test`: three rows of pytest processes that share the tests, one exit code and one closing line."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from course.package.checkpoint import PASSED, PYTHON
from course.paths import TESTS
from course.testing import run as testing
from course.testing import share
from course.testing.counted import grown_later, needs_of
from course.testing.forks import Forks
from course.testing.run import closing

# A small course of its own: each half of its notebooks is a test file, so that no kernel has to start.
SCRIPT = """
import contextlib, sys
from pathlib import Path
from course.testing import share, run as testing


class NoForks(contextlib.nullcontext):
    words, refused = [], {"OMP_NUM_THREADS": 2}

    def __init__(self, folder, env):
        super().__init__()
        self.env, self.python = dict(env), {}


testing.ROOT = Path(sys.argv[1])
testing.Forks = NoForks
testing.student_clone = lambda folder, chapters=(): folder
testing.before_the_seam = list
testing.NBVAL = []
testing.SECONDS = testing.ROOT / "seconds.txt"
share.TOGETHER.clear()
Rows, Pytest = testing.Rows, testing.Pytest


class Small(Rows):
    def __init__(self, claims):
        super().__init__(claims)
        tests = Pytest(self.env, ["-p", "course.testing.share", "tests"])
        waits_for = testing.ROOT / "made"
        halves = Pytest(self.forks.env, ["first"], True), Pytest(self.forks.env, ["second"], True, waits_for)
        self.rows = [[halves[0], tests], [halves[1], tests], self.rows[2]]


testing.Rows = Small
raise SystemExit(testing.test([]))
"""
NOTED = """
import os
import time


def note(name):
    with open("ran.txt", "a") as file:
        file.write(f"{name} {os.getpid()}\\n")


def wait_until(happened):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not happened([line.split() for line in open("ran.txt")]):
        time.sleep(0.1)


def wait_for_processes(number):
    wait_until(lambda lines: len({process for _, process in lines}) >= number)


def wait_for_test(name):
    wait_until(lambda lines: name in [ran for ran, _ in lines])
"""


@pytest.fixture
def small(tmp_path):
    """Some tests, each of which notes its name and its process; `course test` on them is `small()`."""
    for folder in ("first", "second", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests/conftest.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "noted.py").write_text(NOTED)
    write(tmp_path / "first/test_notebooks.py", "test_first", "pass")
    write(tmp_path / "second/test_more_notebooks.py", "test_second", "pass")
    for i in range(6):
        write(tmp_path / f"tests/test_{i}.py", f"test_a{i}", "pass")
    return tmp_path


def write(path, name: str, body: str) -> None:
    path.write_text(
        f"import time, pytest\nfrom noted import *\n\ndef {name}():\n    note({name!r})\n    {body}\n"
    )


def run(small) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(small)], capture_output=True, encoding="utf-8", env=environment()
    )


def environment() -> dict[str, str]:
    """No installed plugin is asked about here, and hypothesis's is most of what a process's start takes."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return plain | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def ran(small) -> list[list[str]]:
    return [line.split() for line in (small / "ran.txt").read_text().splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="nothing forks elsewhere")
def test_tests_start_forks_and_what_their_checkpoints_pass_does_not_count(tmp_path, monkeypatch):
    """Else a checkpoint of a made-up course would keep a chapter's tests from being run."""
    for name in (PYTHON, PASSED):  # `make test` has set the first for this test itself
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(testing, "student_clone", lambda folder, chapters=(): folder)
    processes = [process for row in testing.Rows(str(tmp_path)).rows for process in row]
    assert all(PYTHON in process.env for process in processes)
    assert [PASSED in process.env for process in processes] == [process.half for process in processes]


def test_each_test_runs_once_and_both_halves_are_followed_by_tests(small):
    write(small / "tests/test_0.py", "test_a0", "wait_for_processes(4)")
    done = run(small)
    assert done.returncode == 0, done.stdout + done.stderr
    names, processes = zip(*ran(small))
    assert sorted(names) == [*(f"test_a{i}" for i in range(6)), "test_first", "test_second"]
    assert len(set(processes)) >= 4, "no half's row has helped with the tests"
    lines = done.stdout.splitlines()
    assert lines[-1].strip("=").strip().startswith("8 passed in ") and lines[-1].startswith("=")
    seconds = [line.split() for line in (small / "seconds.txt").read_text().splitlines()]
    files = [*(f"test_{i}" for i in range(6)), "test_more_notebooks", "test_notebooks"]
    assert sorted(name for *_, name in seconds) == files
    assert seconds == sorted(seconds, key=lambda line: -float(line[0])) and seconds[0][-1] == "test_0"
    assert sum(line.startswith("tests/test_") and line.endswith(" .") for line in lines) == 6


def test_the_second_half_begins_when_the_first_hands_over(small):
    body = "assert 'second' not in open('ran.txt').read(); os.mkdir('made'); wait_for_test('test_second')"
    write(small / "first/test_notebooks.py", "test_first", f"time.sleep(3); {body}")
    done = run(small)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="sessions that share the cores are Linux's")
def test_the_row_of_tests_alone_steps_back_behind_the_notebooks_after_its_first_group(small):
    group = "open('/proc/self/autogroup').read().split()[-1]"
    if not Path("/proc/self/autogroup").exists():
        group = "os.nice(0)"
    tells = f'open(f"NAME-{{os.getpid()}}", "w").write(str(os.nice(0)) + " " + str({group}))'
    for path in small.rglob("test_*.py"):
        write(path, path.stem, f"wait_until(lambda lines: len(lines) >= 4); {tells.replace('NAME', 'last')}")
    for i in range(6):
        write(small / f"tests/test_{i}.py", f"test_a{i}", tells.replace("NAME", "last"))
    with open(small / "tests/test_0.py", "w") as file:
        file.write("from noted import *\n\n")
        for name in ("one", "two", "three"):
            file.write(f"def test_{name}():\n    note('{name}')\n    {tells.replace('NAME', name)}\n\n")
    assert run(small).returncode == 0
    nice = os.nice(0)  # this test may run in the row that has stepped back
    before = f"{nice} {0 if 'autogroup' in group else nice}"
    assert [path.read_text() for path in small.glob("one-*")] == [before]
    told = sorted(path.read_text() for path in small.glob("last-*"))
    assert len(told) >= 2 and told == [before] * (len(told) - 1) + ["5 5"]


def test_a_failure_is_told_whole_and_fails_the_command(small):
    write(small / "tests/test_3.py", "test_a3", "assert 1 == 2, 'one is not two'")
    write(small / "tests/test_4.py", "test_a4", "pytest.skip('not here')")
    done = run(small)
    assert done.returncode == 1 and "one is not two" in done.stdout
    assert "1 failed, 6 passed, 1 skipped in " in done.stdout.splitlines()[-1]


def test_what_cannot_be_imported_fails_the_command(small):
    (small / "tests/test_5.py").write_text("import nothing_of_that_name")
    done = run(small)
    assert done.returncode == 2 and "nothing_of_that_name" in done.stdout


def test_files_that_belong_together_run_in_one_process(small):
    script = SCRIPT.replace("share.TOGETHER.clear()", "share.TOGETHER")
    for i in range(4):
        write(small / f"tests/test_distributed_{i}.py", f"test_d{i}", "time.sleep(0.3)")
    done = subprocess.run(
        [sys.executable, "-c", script, str(small)], capture_output=True, encoding="utf-8", env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({process for name, process in ran(small) if name.startswith("test_d")}) == 1


@pytest.mark.skipif(os.name == "nt", reason="a console's Ctrl-C cannot be sent to one process")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_all_processes_and_says_what_failed_before(small, number, code):
    write(small / "first/test_notebooks.py", "test_first", "time.sleep(600)")
    for i in range(6):
        write(small / f"tests/test_{i}.py", f"test_a{i}", "time.sleep(600)")
    command = [sys.executable, "-c", SCRIPT.replace("raise SystemExit(testing.test([]))", MAIN), str(small)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=environment()
    )
    deadline = time.monotonic() + 120
    while not (small / "ran.txt").exists() or len(ran(small)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == code, said
    for _, child in ran(small):
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)


def test_what_a_checkpoint_has_run_is_not_run_again_and_the_rest_of_it_is(small):
    """Chapter 00's tests, all in their final form: one of two has passed in the checkpoint."""
    (small / "tests/core").mkdir()
    (small / "tests/core/test_ch00_device.py").write_text(
        "from noted import *\n\n\ndef test_one():\n    note('one')\n\n\ndef test_two():\n    note('two')\n"
    )
    passed = 'Path(os.environ["COURSE_TESTS_PASSED"], "passed-00.json").write_text(json.dumps(["tests/core/test_ch00_device.py::test_one"]))'
    write(small / "first/test_notebooks.py", "test_first", f"import json; from pathlib import Path; {passed}")
    done = run(small)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [name for name, _ in ran(small)]
    assert "one" not in names and names.count("two") == 1, "it ran once, after the notebooks"
    assert names.index("two") > names.index("test_first")
    assert "\n1 tests have run in checkpoints" in done.stdout
    assert "\nnew processes instead of forks, for another value of: OMP_NUM_THREADS (2)\n" in done.stdout


def test_what_is_left_to_checkpoints_is_worked_out_by_the_first_row_alone(tmp_path, monkeypatch):
    one, two = SimpleNamespace(nodeid="one"), SimpleNamespace(nodeid="two")
    asked = []
    monkeypatch.setattr(share, "left_to_a_checkpoint", lambda item: asked.append(item) or item is one)
    assert share.left_to_checkpoints([one, two], tmp_path / "left.json") == [True, False]
    assert share.left_to_checkpoints([two, one], tmp_path / "left.json") == [False, True]
    assert asked == [one, two]


def test_what_a_later_chapter_grows_is_tested_again():
    same, grown = (
        grown_later(TESTS / "core/test_ch01_tokenizer.py"),
        grown_later(TESTS / "core/test_ch07_train.py"),
    )
    assert not same and "training" in grown
    assert "training" in grown_later(TESTS / "core/test_ch10_step.py"), "chapter 15 and 17 grow it"
    assert needs_of("cli") >= {"sampling", "trainer"}, "a command is any of its commands"


ENDS = {
    "by its last line": ("", 0),
    "by a number": ("raise SystemExit(3)", 3),
    "by nothing": ("sys.exit()", 0),
    "by a text": ("sys.exit('no corpus here')", 1),
    "by an error": ("1 / 0", 1),
}
LAST = """
import atexit, gc, sys, threading, time

threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
atexit.register(print, "at the end")
print("a line", gc.get_freeze_count() > 100_000, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nothing forks here")
def test_a_fork_ends_as_a_new_process_does_and_looks_for_no_garbage_in_pytorch(tmp_path):
    script = tmp_path / "script.py"
    with Forks(tmp_path / "forks", os.environ | {"OMP_NUM_THREADS": "1"}) as forks:
        for line, code in ENDS.values():
            script.write_text(LAST + line)
            fork, new = (
                subprocess.run([python, script], env=forks.env, capture_output=True, text=True)
                for python in (forks.env[PYTHON], sys.executable)
            )
            assert fork.returncode == new.returncode == code
            assert fork.stdout == new.stdout == "a thread\nat the end\n"
            assert [said.stderr.splitlines()[0] for said in (fork, new)] == ["a line True", "a line False"]
            assert fork.stderr.splitlines()[1:][-1:] == new.stderr.splitlines()[1:][-1:], "what was wrong"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nothing forks here")
def test_the_server_of_a_tests_processes_is_a_fork_and_what_is_spawned_a_new_process(tmp_path):
    asked = tmp_path / "test_asked.py"
    asked.write_text(
        "import multiprocessing, sys\nfrom forking import start_server\n\n"
        "def loaded(): return 'torch' in sys.modules\n\n"
        "def test_asked():\n    start_server()\n"
        "    for kind in ('forkserver', 'spawn'):\n"
        "        with multiprocessing.get_context(kind).Pool(1) as pool: print(kind, pool.apply(loaded))\n"
    )
    with Forks(tmp_path / "forks", os.environ | {"OMP_NUM_THREADS": "1"}) as forks:
        env = forks.env | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, TESTS, TESTS.parent)))}
        command = [sys.executable, "-m", "pytest", "-sq", "-p", "no:cacheprovider", asked]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "forkserver True\nspawn False\n" in done.stdout, done.stdout + done.stderr


FORK = """
import json, os, sys

sys.stderr.reconfigure(encoding="utf-8")  # fails where stderr is taken for a file and is a pipe

loaded = [name for name in sys.modules if name.partition(".")[0] in ("course", "nanogpt")]
seen = [sys.argv, sys.path, os.getcwd(), loaded, os.environ.get("MINE"), sys.stdin.read()]
json.dump([*seen, "torch._dynamo" in sys.modules], sys.stdout)
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nothing forks here")
def test_a_fork_is_as_a_new_process_with_a_folder_a_path_and_streams_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORK)

    def run(program, **env):
        done = subprocess.run(
            [program, script, "a b"],
            cwd=tmp_path,
            env=forks.env | {"PYTHONPATH": str(tmp_path / "clone")} | env,
            input="said",
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == 7 and not done.stderr, done.stderr
        return json.loads(done.stdout)

    with Forks(tmp_path / "forks", os.environ | {"OMP_NUM_THREADS": "1"}) as forks:
        program = forks.env[PYTHON]
        *fork, has_torch = run(program, MINE="1")
        assert fork == run(sys.executable, MINE="1")[:-1] and has_torch
        assert fork[-3:] == [[], "1", "said"], "something of the course is loaded, or it has not read"
        assert not run(program, OMP_NUM_THREADS="3")[-1], "PyTorch has read another number"
        assert run(program, TORCH_FR_BUFFER_SIZE="2000")[-1], "a rank with a flight record"
        assert run(program, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))[-1], (
            "what a process sets that has compiled"
        )
        rank = tmp_path / "rank.py"
        rank.write_text("import os, sys\nprint(os.environ['RANK'], 'torch._dynamo' in sys.modules)\n")
        torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", rank
        env = forks.env | {"PYTHON_EXEC": str(program)}
        said = subprocess.run([program, *torchrun], env=env, capture_output=True, text=True)
        assert sorted(said.stdout.splitlines()) == ["0 True", "1 True"], said.stderr
        flags = subprocess.check_output(
            [program, "-B", "-c", "import sys; print(sys.flags.dont_write_bytecode)"]
        )
        assert flags == b"1\n", "an option that a fork cannot have makes a new process"
        given = os.memfd_create("given", 0)  # a file that is not one of the three streams
        text = "import os, sys; os.write(int(sys.argv[1]), b'read'); print(sys.argv[0], sys.path[0], 'torch' in sys.modules)"
        said = [
            subprocess.check_output([each, "-c", text, str(given)], env=forks.env, pass_fds=[given])
            for each in (program, sys.executable)
        ]
        assert said == [b"-c  True\n", b"-c  False\n"] and os.pread(given, 9, 0) == b"readread"
        os.close(given)
        where = tmp_path / "where.py"
        where.write_text(
            "import os, sys\nprint(os.readlink('/proc/self/ns/net'), 'torch._dynamo' in sys.modules)\n"
        )
        alone = ["unshare", "--net", program, where]
        if shutil.which("unshare") and not subprocess.run(["unshare", "--net", "true"], stderr=-3).returncode:
            network, forked = subprocess.check_output(alone, env=forks.env, text=True).split()
            assert network != os.readlink("/proc/self/ns/net") and forked == "True", "a host of its own"
        dies = tmp_path / "dies.py"
        dies.write_text("import os\nos.kill(os.getpid(), 9)\n")
        assert subprocess.run([program, dies], env=forks.env).returncode == -9
        sleeps = tmp_path / "sleeps.py"
        sleeps.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
        for number in (signal.SIGINT, signal.SIGKILL):
            process = subprocess.Popen(
                [program, sleeps], env=forks.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            child = int(process.stdout.readline())
            process.send_signal(number)
            process.wait(60)
            deadline = time.monotonic() + 60
            while os.path.exists(f"/proc/{child}"):
                assert time.monotonic() < deadline, f"it goes on after {number}"
                time.sleep(0.02)
    assert forks.refused == {"OMP_NUM_THREADS": 1}


MAIN = """
from course import cli
raise SystemExit(cli.main(["test"]))
"""


def test_arguments_go_to_one_pytest_in_place(small, monkeypatch):
    from course.testing import run as testing

    seen = []
    monkeypatch.setattr(
        testing.subprocess,
        "run",
        lambda words, cwd: seen.append(words) or subprocess.CompletedProcess(words, 3),
    )
    assert testing.test(["-k", "tokenizer"]) == 3
    assert seen == [[sys.executable, "-m", "pytest", *testing.NBVAL, testing.OWN_KERNELS, "-k", "tokenizer"]]


@pytest.mark.parametrize(
    "counts, said",
    [
        ({"passed": 3}, "3 passed in 83.50s (0:01:23)"),
        (
            {"passed": 1, "failed": 2, "error": 2, "warning": 1},
            "2 failed, 1 passed, 1 warning, 2 errors in 83.50s (0:01:23)",
        ),
        ({}, "no tests ran in 83.50s (0:01:23)"),
    ],
)
def test_the_closing_line_is_like_pytests(counts, said):
    line = closing(counts, 83.5)
    assert line.strip("= ") == said and line.startswith("==") and line.endswith("==")


def test_garbage_is_not_looked_for_among_the_collected_tests_and_is_looked_for_among_the_rest():
    before = gc.get_freeze_count()
    share.pytest_configure(None)
    assert not gc.isenabled()
    share.pytest_collection_finish(None)
    assert gc.isenabled() and gc.get_freeze_count() > before
