"""`course test`: the notebooks of a small course in two clones, the tests beside them, and the last lines."""

import os
import signal
import subprocess
import time

import pytest
from house import NEXT, ROOT

from course.testing import plugin

TESTS = {
    "tests/test_ch05_next.py": "from nanogpt.next import twice\n\ndef test_twice():\n    assert twice(1) > 6\n",
    "tests/test_skips.py": """
import pytest

@pytest.mark.weekly
def test_on_mondays(): raise AssertionError

def test_gpu(): pytest.skip("needs a CUDA device")
def test_package(): pytest.importorskip("no_such_package")
""",
}


@pytest.fixture(scope="module")
def built_course(built_house, tmp_path_factory):
    """Two chapters with a seam between them."""
    house = built_house.with_next(tmp_path_factory.mktemp("two") / "house", NEXT)
    for name, text in TESTS.items():
        (house.path / name).write_text(text)
    for name in ("student_way.py", "nbval.cfg"):
        (house.path / "tests" / name).write_text((ROOT / "tests" / name).read_text(encoding="utf-8"))
    law = house.path / "course/testing/law.py"
    text = law.read_text(encoding="utf-8").replace('SEAMS = "17", "20a"', 'SEAMS = "05", "06"')
    # house.py's course has a device that no notebook exports
    law.write_text(text.replace('"__main__.py")', '"__main__.py", "device.py")'), encoding="utf-8")
    house.course("build", "05")
    return house


@pytest.fixture
def small(built_course, tmp_path):
    return built_course.copied(tmp_path / "house")


def environment(house) -> dict[str, str]:
    """Without what this pytest would tell another."""
    return {name: value for name, value in house.environment().items() if not name.startswith("PYTEST_")}


@pytest.mark.slow
def test_everything_runs_once_and_what_is_exported_otherwise_than_committed_fails_as_does_a_test(small):
    small.edit("Counter(xs)", "Counter(xs + xs)")
    fails = "def test_fails():\n    assert 1 == 2, 'one is not two'\n"
    (small.path / "tests/test_fails.py").write_text(fails)
    pipes = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    done = subprocess.run(small.command("test"), cwd=small.path, env=environment(small), **pipes)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "nanogpt/tiny.py is not the committed one (04_tiny.ipynb)" in said and "one is not two" in said
    lines = said.splitlines()
    assert "skipped    1: a CUDA GPU" in lines and "skipped    1: no_such_package" in lines
    cells = 6 + 5 + 3  # code cells of both notebooks, and a comparison for each part; both make tiny.py
    assert f"3 failed, {cells + 3 - 3} passed, 2 skipped" in lines[-1]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a console's Ctrl-C cannot be sent to one process")
def test_ctrl_c_ends_the_workers_and_their_kernels(small):
    nb = "import os, time; open('started', 'w').write(str(os.getpid())); time.sleep(600)"
    small.edit("print(round(area(2), 3))", nb)
    started = small.path / "build/student/first/notebooks/started"
    apart = {"stdout": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(small.command("test"), cwd=small.path, env=environment(small), **apart)
    deadline = time.monotonic() + 120
    while not (started.exists() and started.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    kernel = int(started.read_text())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, which asks all
    assert process.wait(60) != 0
    while time.monotonic() < deadline:
        try:
            os.kill(kernel, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the kernel goes on")


def test_every_file_of_a_group_is_there():
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    for starts in plugin.TOGETHER.values():
        assert any(file.startswith(starts) for file in files), starts
