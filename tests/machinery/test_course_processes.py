"""Processes that wait for a notebook's orders: they answer, fail, start again, and run the cells as they were run last."""

import re

import pytest

from course.figures import processes
from course.figures.processes import Processes
from course.files import read_cells
from course.paths import NOTEBOOKS, CourseError, notebook_path

BLANK = '#| export labs.parallel.buckets\ndef ring_all_reduce(x: Tensor) -> Tensor:\n    raise NotImplementedError("your turn: ring_all_reduce: a hint")\n'


@pytest.mark.weekly
def test_they_answer_fail_start_again_and_run_what_was_edited(capsys, monkeypatch):
    run = []
    monkeypatch.setattr(processes, "RUN", run)
    monkeypatch.chdir(NOTEBOOKS)  # as a notebook's kernel: `python -m` looks into the working folder first
    two = Processes("20", 2, "drills.ddp")
    two("hello")
    assert {"rank 0 of 2", "rank 1 of 2"} <= {line[:11] for line in capsys.readouterr().out.splitlines()}
    started = [rank.pid for rank in two.ranks]
    assert two("ring")["messages"] == 2
    assert [rank.pid for rank in two.ranks] == started, "each call starts processes of its own"
    with pytest.raises(CourseError, match=r"rank 0: FileNotFoundError(.|\n)*rank 1: FileNotFoundError"):
        two("same_as_one", "no-such-folder", "flat")
    assert "rank 1 does not answer" in two("hang", seconds=1, fails=True)
    cell = next(c.source for c in read_cells(notebook_path("20")).cells if "def hello(" in c.source)
    run.append(re.sub(r'    print\(f"rank .*', '    print("edited", flush=True)', cell))
    capsys.readouterr()
    two("hello")
    assert capsys.readouterr().out.splitlines() == ["edited"] * 2
    with pytest.raises(CourseError, match="this was meant to fail and has not"):
        two("hello", fails=True)
    run.append(BLANK)
    with pytest.raises(NotImplementedError, match="your turn: ring_all_reduce: a hint"):
        two("ring")
    two.close()
    assert two.ranks == []
