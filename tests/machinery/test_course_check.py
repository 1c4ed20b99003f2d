"""`course check` and `course progress`: a student's own work, in a line a task."""

import shutil
from pathlib import Path

import nbformat
import pytest
from small_set import small_set

import course.exercises.check
import course.exercises.progress
from course.cli import main
from course.exercises.release import release

GRADED = "04-1", "04-2", "04-3"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_set(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def handed_out(made, tmp_path_factory):
    to = tmp_path_factory.mktemp("released")
    release(made, to)
    return to / made.name / f"{made.name}.ipynb"


@pytest.fixture
def notebook(handed_out, tmp_path, monkeypatch):
    """A student's copy, and a place of its own for what is recorded."""
    monkeypatch.setattr(course.exercises.check, "PASSED", tmp_path / "built" / "progress.json")
    path = tmp_path / "mine" / handed_out.name
    path.parent.mkdir()
    shutil.copy(handed_out, path)
    return path


def write(path: Path, cells: dict[str, str]) -> None:
    """Put code into cells by id."""
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells:
        cell.source = cells.get(cell.get("id"), cell.source)
    nbformat.write(nb, path)


def checked(path, capsys, seconds=60.0) -> tuple[int, dict[str, str], str]:
    """`course check`: its exit code, what it says of each task, and all that it says."""
    code = course.exercises.check.call_check(str(path), seconds)
    out = capsys.readouterr().out
    assert "Traceback" not in out
    lines = [line for line in out.splitlines() if line.startswith("04-")]
    return code, {line[:4]: line.rpartition("  ")[2] for line in lines}, out


def test_what_is_handed_out_passes_nothing(notebook, capsys):
    code, said, out = checked(notebook, capsys)
    assert code == 1 and not course.exercises.check.progress()
    not_begun = dict.fromkeys(GRADED, "not begun")
    repair = "what the checks say of our own code would answer a repair task"
    assert said == not_begun | {"04-4": "a person reads this answer"}, repair
    assert "0 of 3 tasks pass their visible checks; a person reads 1 more" in out
    assert "is your work saved?" in out


def test_the_solution_passes_and_is_recorded(notebook, made, capsys):
    write(notebook, made.solutions)
    code, said, out = checked(notebook, capsys)
    assert code == 0 and {said[task] for task in GRADED} == {"passed"}, out
    assert "3 of 3 tasks pass" in out and "saved?" not in out
    kept = course.exercises.check.progress()
    assert {task: kept[task]["minutes"] for task in kept} == {"04-1": 10, "04-2": 20, "04-3": 30}
    write(notebook, {"04-2": "def ring(outer, inner):\n    return 0.0"})
    checked(notebook, capsys)
    passing = list(course.exercises.check.progress())
    assert passing == ["04-1", "04-3"], "what passes no longer is not recorded"


RING = "def ring(outer, inner):\n    return area(outer) - area(inner)\n"
ENDS = "ends Python (out of memory, or an exit?)"
REPORT = """print('""\\n"passed"', flush=True)\nraise ValueError('after the print')"""
ERROR = ", in line 2 of the cell 04-1: square = r ** 'two'"
NOTEBOOKS_OWN = f"""%%time
%matplotlib inline
!pip list
{RING}
len?
display("x")
import dataclasses, inspect
@dataclasses.dataclass
class P:
    source: str = inspect.getsource(ring)
if __name__ == "__main__":
    RAN = 1
assert RAN
"""
CELLS = {  # of a task, a cell that a student writes, and how that ends which is said of it
    "a check's message": ("04-2", "def ring(outer, inner):\n    return area(outer)", "what remains of 4π is 3π"),
    "their own assert": (
        "04-3", "def check_abs(f):\n    assert f(-1.0) == -1.0", "in line 2 of the cell 04-3: assert f(-1.0) == -1.0",
    ),
    "an error": ("04-1", "def area(r):\n    square = r ** 'two'\n    return square", ERROR),
    "a loop that is forbidden, below a magic": (
        "04-2", f"%matplotlib inline\n{RING}\nfor i in 'ab': pass", "without a loop (line 5 of its cell)",
    ),
    "a function that is forbidden": (
        "04-2", f"import statistics\n{RING}vars(statistics)['f' + 'mean']([1])",
        "task 04-2 is to be solved without statistics.fmean, in line 4 of the cell 04-2: vars(statistics)['f' + 'mean']([1])",
    ),
    "a hang": ("04-2", "while True:\n    pass", "does not end within 5 s"),
    "a quiet exit": ("04-3", "def check_abs(f):\n    import os\n    os._exit(0)", ENDS),
    "a forged report": ("04-1", REPORT, "in line 2 of the cell 04-1: raise ValueError('after the print')"),
    "all that works in a notebook": ("04-2", NOTEBOOKS_OWN, "passed"),
}  # fmt: skip


@pytest.mark.parametrize("what", CELLS)
def test_of_each_task_it_is_told_what_is_wrong_and_the_others_are_not_touched(notebook, made, capsys, what):
    """Also beside files that are named as modules are."""
    (notebook.parent / "math.py").write_text("raise RuntimeError('the wrong math')")
    (notebook.parent / "json.py").write_text("raise RuntimeError('the wrong json')")
    task, code, due = CELLS[what]
    write(notebook, made.solutions | {task: code})
    exit_code, said, _ = checked(notebook, capsys, seconds=5)
    assert said[task].endswith(due) and exit_code == (due != "passed")
    touched = {task, "04-2"} if task == "04-1" else {task}  # the ring needs area
    assert {said[other] for other in {*GRADED} - touched} == {"passed"}


def test_a_missing_cell_is_told_and_one_that_is_there_twice(notebook, made, capsys):
    """JupyterLab's "split cell" leaves the metadata in both halves. The grader says the same (tests/grading)."""
    write(notebook, made.solutions)
    nb = nbformat.read(notebook, as_version=4)
    half = next(cell for cell in nb.cells if cell.get("id") == "04-3")
    nb.cells.append(nbformat.from_dict(half | {"source": "# tried first", "id": "half"}))
    nb.cells = [cell for cell in nb.cells if cell.get("id") not in ("04-1", "04-2-check")]
    nbformat.write(nb, notebook)
    code, said, _ = checked(notebook, capsys)
    assert code == 1 and "the solution cell 04-1 is missing" in said["04-1"]
    assert "its check cell is gone" in said["04-2"]
    assert "the solution cell 04-3 is there 2 times" in said["04-3"]


def test_the_chapter_number_finds_the_notebook_in_released(handed_out, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course.exercises.check, "RELEASED", handed_out.parent.parent)
    monkeypatch.setattr(course.exercises.check, "PASSED", tmp_path / "progress.json")
    assert main(["check", "4"]) == 1
    assert "04-1" in capsys.readouterr().out


def test_a_set_that_is_not_there_or_no_notebook_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course.exercises.check, "RELEASED", tmp_path / "released")
    monkeypatch.chdir(tmp_path)
    Path("half.ipynb").write_text('{"cells": [')
    for which, said in {
        "04": "no exercises for chapter '04' in",
        "half.ipynb": "the file is not a notebook: it cannot be read as JSON",
    }.items():
        assert main(["check", which]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1 and "Traceback" not in err


def test_damaged_records_of_tasks_and_predictions_count_for_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course.exercises.check, "PASSED", tmp_path / "progress.json")
    monkeypatch.setattr(course.exercises.progress, "KEPT", tmp_path / "predictions.json")
    for predictions, tasks in (("{", "{"), ("[]", "[]"), ('{"07.1": 3}', "[]")):
        (tmp_path / "predictions.json").write_text(predictions)
        (tmp_path / "progress.json").write_text(tasks)
        assert main(["progress"]) == 0
        assert "no prediction yet" in capsys.readouterr().out
