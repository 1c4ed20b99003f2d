"""`course test`: the notebooks of a small course in two clones, the tests beside them, and the last lines."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from house import ROOT

from course.testing import plugin, run
from course.testing.law import HALVES

NEXT = '''\
# %% [markdown]
"""
# 05 · Next
"""

# %%
#| default_exp next
#| doc next: What follows.
from course.notebook import checkpoint

# %%
#| export
from nanogpt.tiny import area


def twice(r: float) -> float:
    """Two circles."""
    return 2 * area(r)


# %%
print(round(twice(1), 3))

# %%
checkpoint("05")
'''
TESTS = {
    "tests/test_ch05_next.py": "from nanogpt.next import twice\n\ndef test_twice():\n    assert twice(1) > 6\n",
    "tests/test_skips.py": """
import pytest

def test_gpu(): pytest.skip("needs a CUDA device")
def test_package(): pytest.importorskip("no_such_package")
""",
    "tests/labs/test_distributed_a.py": "import os\n\ndef test_a(): print('process', os.getpid())\n",
    "tests/labs/test_distributed_b.py": "import os\n\ndef test_b(): print('process', os.getpid())\n",
}


@pytest.fixture(scope="module")
def built_course(built_house, tmp_path_factory):
    """Two chapters with a seam between them."""
    house = built_house.with_next(tmp_path_factory.mktemp("two") / "house", NEXT)
    for name, text in TESTS.items():
        (house.path / name).parent.mkdir(exist_ok=True)
        (house.path / name).write_text(text)
    for name in ("student_way.py", "nbval.cfg"):
        (house.path / "tests" / name).write_text((ROOT / "tests" / name).read_text(encoding="utf-8"))
    law = house.path / "course/testing/law.py"
    text = law.read_text(encoding="utf-8").replace('SEAM = "17e"', 'SEAM = "05"')
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


def course_test(house) -> tuple[int, str]:
    pipes = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    done = subprocess.run(house.command("test"), cwd=house.path, env=environment(house), **pipes)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_everything_runs_once_and_the_last_lines_say_what_was_skipped(small):
    code, said = course_test(small)
    assert code == 0, said
    lines = said.splitlines()
    assert "skipped    1: a CUDA GPU" in lines and "skipped    1: no_such_package" in lines
    cells = 6 + 5 + 2  # code cells of both notebooks, and a comparison for each half
    assert f"{cells + 4} passed, 2 skipped" in lines[-1]


@pytest.mark.slow
def test_what_a_notebook_exports_otherwise_than_it_is_committed_fails_as_does_a_test(small):
    small.edit("Counter(xs)", "Counter(xs + xs)")
    fails = "def test_fails():\n    assert 1 == 2, 'one is not two'\n"
    (small.path / "tests/test_fails.py").write_text(fails)
    code, said = course_test(small)
    assert code == 1
    assert "nanogpt/tiny.py is not the committed one (04_tiny.ipynb)" in said and "one is not two" in said
    assert "2 failed" in said.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a console's Ctrl-C cannot be sent to one process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_workers_and_their_kernels(small, number):
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
    kill = os.killpg if number == signal.SIGINT else os.kill  # as a terminal does, which asks all
    kill(process.pid, number)
    assert process.wait(60) != 0
    while time.monotonic() < deadline:
        try:
            os.kill(kernel, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the kernel goes on")


@pytest.mark.parametrize(
    ("words", "then"),
    [(["-k", "tokenizer"], ["-k", "tokenizer"]), (["quick", "-x"], [*run.workers(), *run.QUICK, "-x"])],
)
def test_with_words_it_is_one_pytest_in_place(monkeypatch, words, then):
    seen = []
    monkeypatch.setattr(run, "run_pytest", lambda words: seen.append(words) or 3)
    assert run.test(words) == 3 and seen == [then]


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        ("build/student/first/notebooks/05_gpt.ipynb::Cell 3", HALVES[0]),
        ("tests/student_way.py::test_the_notebooks_have_made_the_package[first]", HALVES[0]),
        ("build/student/second/notebooks/20_x.ipynb::Cell 0", HALVES[1]),
        ("tests/labs/test_distributed_a.py::test_a", "distributed"),
        ("tests/core/test_ch00_device.py::TestA::test_a[first]", "tests/core/test_ch00_device.py"),
    ],
)
def test_half_of_the_notebooks_is_one_unit_of_work_and_so_are_files_that_belong_together(test, unit):
    assert plugin.unit(test) == str(unit)


def test_the_second_half_is_left_until_it_can_begin_and_comes_next_then(tmp_path, monkeypatch):
    monkeypatch.setattr(plugin, "HALVES", (tmp_path / "first", tmp_path / "second"))
    sent = []
    node = Mock(send_runtest_some=sent.extend)
    names = [str(tmp_path / "second"), "a", "b", "c"]
    schedule = plugin.Schedule(SimpleNamespace(getvalue=lambda name: ["popen"] * 2, rootpath=tmp_path), None)
    schedule.registered_collections[node] = names
    schedule.workqueue.update({name: {name: False} for name in names})
    schedule._assign_work_unit(node)
    (tmp_path / "second/data/built").mkdir(parents=True)
    for _ in range(3):
        schedule._assign_work_unit(node)
    assert [names[i] for i in sent] == ["a", names[0], "b", "c"]


def test_every_file_of_a_group_is_there():
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    for starts in plugin.TOGETHER.values():
        assert any(file.startswith(starts) for file in files), starts
