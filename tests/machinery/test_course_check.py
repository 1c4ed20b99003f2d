"""`course check` and `course progress`: a student's own work, in a line a task."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest

pytest.importorskip("nbgrader")

from small_set import small_set

import course.exercises.check
import course.exercises.progress
import course.package.passed
from course.cli import main
from course.exercises.release import release
from course.exercises.try_tasks import said_of


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


def write(path: Path, **cells: str) -> None:
    """Put code into cells by id, `t04_1=...`."""
    nb = nbformat.read(path, as_version=4)
    for cell in nb.cells:
        key = "t" + cell.get("id", "").replace("-", "_")
        if key in cells:
            cell.source = cells[key]
    nbformat.write(nb, path)


@pytest.fixture
def solve(made):
    def solve(path: Path, *tasks: str) -> None:
        write(
            path, **{"t" + task.replace("-", "_"): made.solutions[task] for task in tasks or made.solutions}
        )

    return solve


def checked(path, capsys, seconds=60.0) -> tuple[int, dict[str, str], str]:
    code = course.exercises.check.call_check(str(path), seconds)
    out = capsys.readouterr().out
    return code, {line[:4]: line for line in out.splitlines() if line[:2] == "04"}, out


def test_what_is_handed_out_passes_nothing(notebook, capsys):
    code, lines, out = checked(notebook, capsys)
    assert code == 1 and list(lines) == ["04-1", "04-2", "04-3", "04-4"]
    begun = [task for task in ("04-1", "04-2", "04-3") if not lines[task].endswith("  not begun")]
    assert not begun, "what the checks say of our own code would answer a repair task"
    assert lines["04-4"].endswith("a person reads this answer")
    assert "0 of 3 tasks pass their visible checks; a person reads 1 more" in out
    assert "is your work saved?" in out and "Traceback" not in out
    assert not course.exercises.check.progress()


def test_the_solution_passes_and_is_recorded(notebook, solve, capsys):
    solve(notebook)
    code, lines, out = checked(notebook, capsys)
    assert code == 0 and [lines[t].split()[-1] for t in ("04-1", "04-2", "04-3")] == ["passed"] * 3, out
    assert "3 of 3 tasks pass" in out and "saved?" not in out
    kept = course.exercises.check.progress()
    assert {task: kept[task]["minutes"] for task in kept} == {"04-1": 10, "04-2": 20, "04-3": 30}
    write(notebook, t04_2="def ring(outer, inner):\n    return 0.0")
    checked(notebook, capsys)
    assert list(course.exercises.check.progress()) == ["04-1", "04-3"], (
        "what passes no longer is not recorded"
    )


def test_the_checks_message_and_no_traceback(notebook, solve, capsys):
    solve(notebook, "04-1")
    write(
        notebook,
        t04_2="def ring(outer, inner):\n    return area(outer)",
        t04_3="def check_abs(f):\n    assert f(-1.0) == -1.0",
    )
    code, lines, out = checked(notebook, capsys)
    assert lines["04-1"].endswith("passed") and code == 1
    assert lines["04-2"].endswith("  what remains of 4π is 3π")
    assert lines["04-3"].endswith("AssertionError, in line 2 of the cell 04-3: assert f(-1.0) == -1.0")
    assert "saved?" not in out and "Traceback" not in out
    write(notebook, t04_2="def ring(outer, inner):\n    return -1")
    _, lines, _ = checked(notebook, capsys)
    assert lines["04-2"].endswith("  this does not hold: assert ring(2.0, 1.0) > 0")


def test_what_a_task_forbids_is_named(notebook, solve, capsys):
    solve(notebook, "04-1")
    right = "\n    return area(outer) - area(inner)"
    write(notebook, t04_2=f"def ring(outer, inner):\n    [0 for _ in 'ab']{right}")
    _, lines, _ = checked(notebook, capsys)
    assert lines["04-2"].endswith("  task 04-2 is to be solved without a loop (line 2 of its cell)")
    mean = "vars(statistics)['f' + 'mean']([1])"
    write(notebook, t04_2=f"import statistics\n\n\ndef ring(outer, inner):\n    {mean}{right}")
    _, lines, _ = checked(notebook, capsys)
    assert "Forbidden: task 04-2 is to be solved without statistics.fmean" in lines["04-2"]


def test_an_error_names_the_line_of_the_students_code(notebook, capsys):
    write(notebook, t04_1="def area(r):\n    square = r ** 'two'\n    return square")
    _, lines, out = checked(notebook, capsys)
    assert "TypeError: " in lines["04-1"]
    assert lines["04-1"].endswith(", in line 2 of the cell 04-1: square = r ** 'two'")
    assert "Traceback" not in out
    write(notebook, t04_1="def area(r:\n    return r")
    _, lines, _ = checked(notebook, capsys)
    assert "in line 1 of its cell: def area(r:" in lines["04-1"]
    write(notebook, t04_1="def surface(r):\n    return r")
    _, lines, _ = checked(notebook, capsys)
    assert (
        "NameError: name 'area' is not defined" in lines["04-1"]
        and "of the check: assert area" in lines["04-1"]
    )
    write(notebook, t04_1="raise SystemExit('enough')")
    _, lines, _ = checked(notebook, capsys)
    assert "SystemExit: enough" in lines["04-1"]


def test_what_hangs_or_ends_python_costs_its_own_task(notebook, solve, capsys):
    solve(notebook, "04-1")
    write(
        notebook,
        t04_2="while True:\n    pass",
        t04_3="def check_abs(f):\n    import os\n    os._exit(0)",
    )
    code, lines, _ = checked(notebook, capsys, seconds=3)
    assert lines["04-2"].endswith("does not end within 3 s")
    assert lines["04-3"].endswith("ends Python (out of memory, or an exit?)")
    assert lines["04-1"].endswith("passed") and code == 1
    write(notebook, t04_2="import ctypes\nctypes.string_at(0)")
    _, lines, _ = checked(notebook, capsys)
    assert "ends Python" in lines["04-2"] and lines["04-1"].endswith("passed")


def test_prints_and_files_beside_change_nothing(notebook, solve, capsys):
    """A line that looks like a report, and a torch.py in the notebook's folder."""
    solve(notebook)
    (notebook.parent / "math.py").write_text("raise RuntimeError('the wrong math')")
    (notebook.parent / "json.py").write_text("raise RuntimeError('the wrong json')")
    write(
        notebook,
        t04_1='print(\'{"end": "04-1", "said": ""}\\nno report\', flush=True)\nraise ValueError("after the print")',
    )
    _, lines, _ = checked(notebook, capsys)
    assert "ValueError: after the print" in lines["04-1"] and lines["04-3"].endswith("passed")


def test_the_courses_own_modules_are_no_names_of_the_students(notebook, capsys):
    """The script that runs the cells lies in course/, beside files.py and others."""
    write(notebook, t04_1="import files")
    _, lines, _ = checked(notebook, capsys)
    assert "No module named 'files'" in lines["04-1"]


def test_of_an_error_in_a_function_of_the_check_the_students_line_is_told():
    names = {}
    assert said_of("04-3", "def check(f):\n    f('x')", names) == ""
    said = said_of("04-3-check", "def one_more(x):\n    return x + 1\n\ncheck(one_more)", names)
    assert said.startswith("TypeError") and said.endswith("in line 2 of the cell 04-3: f('x')")


def test_a_missing_cell_is_told(notebook, solve, capsys):
    solve(notebook)
    nb = nbformat.read(notebook, as_version=4)
    nb.cells = [cell for cell in nb.cells if cell.get("id") not in ("04-1", "04-2-check")]
    nbformat.write(nb, notebook)
    _, lines, _ = checked(notebook, capsys)
    assert "the solution cell 04-1 is missing" in lines["04-1"]  # the grader's words
    assert "its check cell is gone" in lines["04-2"]


def test_a_file_that_is_not_there_or_no_notebook_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course.exercises.check, "RELEASED", tmp_path / "released")
    (tmp_path / "half.ipynb").write_text('{"cells": [')
    (tmp_path / "list.ipynb").write_text("[1, 2]")
    (tmp_path / "empty.ipynb").write_text('{"cells": [], "nbformat": 4}')
    for which, said in {
        "04": "no exercises for chapter '04' in",
        str(tmp_path / "no.ipynb"): "there is no ",
        str(tmp_path / "half.ipynb"): "the file is not a notebook: it cannot be read as JSON",
        str(tmp_path / "list.ipynb"): "the file is not a notebook of format 4",
        str(tmp_path / "empty.ipynb"): "holds no task",
    }.items():
        assert main(["check", which]) == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1 and "Traceback" not in err


def test_the_chapter_number_finds_the_notebook_in_released(handed_out, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course.exercises.check, "RELEASED", handed_out.parent.parent)
    monkeypatch.setattr(course.exercises.check, "PASSED", tmp_path / "progress.json")
    assert main(["check", "4"]) == 1
    assert "04-1" in capsys.readouterr().out


def test_progress_tells_tasks_minutes_and_predictions(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(course.exercises.check, "PASSED", tmp_path / "progress.json")
    monkeypatch.setattr(course.exercises.progress, "KEPT", tmp_path / "predictions.json")
    monkeypatch.setattr(course.package.passed, "FILE", tmp_path / "built" / "checkpoints.json")
    assert main(["progress"]) == 0
    out = capsys.readouterr().out
    assert "no task passes yet" in out and "no prediction yet" in out and "\n0 of " in out
    assert re.search(r"^04   –  Attention: .*, (\d h )?\d+( min)?$", out, re.MULTILINE), (
        "a title, and its time"
    )
    course.package.passed.note("04")
    assert main(["progress"]) == 0
    out = capsys.readouterr().out
    assert "\n1 of " in out and re.search(r"^04   passed \d{4}-\d\d-\d\d +Attention: ", out, re.MULTILINE)
    course.exercises.check.record({"04-1": ("The mask", 10), "04-2": ("Heads", 25)}, ["04-1", "04-2"])
    made = {"question": "loss", "guess": 8.0, "unit": "nats", "outcome": 10.0}
    (tmp_path / "predictions.json").write_text(
        json.dumps(
            {"07.1": made, "07.2": made | {"guess": None}, "05.1": {"question": "q", "guess": 3, "unit": ""}}
        )
    )
    assert main(["progress"]) == 0
    out = capsys.readouterr().out
    assert "2 tasks pass their visible checks, planned for 35 minutes" in out
    assert "-20%" in out and "8.000 nats" in out and "10.00 nats" in out and "07.2" not in out
    for damaged in ("{", "[]", '{"07.1": 3}'):
        (tmp_path / "predictions.json").write_text(damaged)
        (tmp_path / "progress.json").write_text(damaged if damaged != '{"07.1": 3}' else "[]")
        assert main(["progress"]) == 0
        assert "no prediction yet" in capsys.readouterr().out


LATER = """\
# %%
from nanogpt.tiny import area

print(area.__doc__)
"""


def test_later_chapters_go_on_with_the_students_own_module_where_it_passes_its_tests(house):
    """Edited in the notebook, checkpointed, imported by the next chapter; refused, the one before stays in use."""
    house.course("checkpoint", "04")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "released"]):
        house.git(*command)
    assert "1 of 1 checkpoints have passed" in house.course("progress")
    assert "your own code" not in house.course("progress")
    house.edit(
        '"""The area of a circle."""\n    return math.pi*r**2', '"""My own."""\n    return r*r*math.pi'
    )
    assert "your own code" not in house.course("progress"), "edited, and not yet checkpointed"
    house.course("checkpoint", "04")
    assert ", your own code" in house.course("progress")
    (house.path / "notebooks/src/05_later.py").write_text(LATER)
    house.course("build", "05")
    later = house.path / "notebooks/05_later.ipynb"
    assert "My own." in later.read_text()
    house.edit('"""My own."""\n    return r*r*math.pi', '"""Wrong."""\n    return r*math.pi')
    house.course("checkpoint", "04", code=2)
    house.course("build", "05")
    assert "My own." in later.read_text() and "Wrong." not in later.read_text()
    house.module.unlink()
    assert "a module is missing: checkpoint it again" in house.course("progress")


AS_STUDENTS_WRITE = {
    "magics": "%matplotlib inline\n!pip list\n{code}\nlen?",
    "a timed cell": "%%time\n{code}",
    "display": "{code}\ndisplay('x')",
    "a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n{code}",
    "its own source": "{code}\nimport inspect\ndef helper(x):\n    return x\ninspect.getsource(helper)",
    "a main program": "{code}\nRAN = False\nif __name__ == '__main__':\n    RAN = True\nassert RAN",
}


@pytest.mark.parametrize("what", AS_STUDENTS_WRITE)
def test_a_cell_runs_as_it_does_in_a_notebook(notebook, solve, made, capsys, what):
    solve(notebook)
    write(notebook, t04_2=AS_STUDENTS_WRITE[what].replace("{code}", made.solutions["04-2"]))
    _, lines, _ = checked(notebook, capsys)
    assert lines["04-2"].endswith("  passed"), lines["04-2"]


def test_magics_hide_nothing_that_is_forbidden(notebook, solve, made, capsys):
    solve(notebook)
    looped = made.solutions["04-2"] + "\nfor i in range(2):\n    pass"
    write(notebook, t04_2="%matplotlib inline\n" + looped)
    _, lines, _ = checked(notebook, capsys)
    assert "is to be solved without a loop" in lines["04-2"]


def test_a_cell_that_is_there_twice_costs_its_task_alone(notebook, solve, capsys):
    """JupyterLab's "split cell" leaves the metadata in both halves. The grader says the same (tests/grading)."""
    solve(notebook)
    nb = nbformat.read(notebook, as_version=4)
    at = next(i for i, cell in enumerate(nb.cells) if cell.get("id") == "04-3")
    half = nbformat.from_dict(nb.cells[at] | {"source": "# what I tried first", "id": "half"})
    nb.cells.insert(at, half)
    nbformat.write(nb, notebook)
    code, lines, _ = checked(notebook, capsys)
    assert code == 1 and "the solution cell 04-3 is there 2 times" in lines["04-3"]
    assert lines["04-1"].endswith("  passed") and lines["04-2"].endswith("  passed")
