"""What students get: nothing of a solution, nbgrader's own format, and never over a notebook that they edited."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from small_set import small_set

from course.exercises.release import leaked, release, released, secret_lines
from course.exercises.sets import SOLUTION, folders, load, read
from course.exercises.table import TABLE, page
from course.paths import ROOT, CourseError

README = ROOT / "exercises" / "README.md"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_set(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module", params=[folder.name for folder in folders()])
def handed_out(request, tmp_path_factory):
    """Each set of the course, and the folder that students get."""
    made, to = load(request.param), tmp_path_factory.mktemp("released")
    release(made, to)
    return made, to / made.name


def stripped(*texts: str) -> set[str]:
    return {line.strip() for text in texts for line in text.splitlines()}


def test_nothing_that_decides_a_score_is_handed_out(handed_out):
    """Read anew from the files, by rules of this test's own."""
    made, folder = handed_out
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(folder)) for path in files} == {f"{made.name}.ipynb", "AGENTS.md"}
    sources = [cell.source for cell in nbformat.read(folder / f"{made.name}.ipynb", as_version=4).cells]
    given = [cell.source for cell in made.cells if cell.kind in ("given", "check", "show")]
    given = stripped(*given, *made.stubs.values())
    solutions = [found["solution"] for cell in made.cells for found in SOLUTION.finditer(cell.source)]
    assert not {line for line in stripped(*solutions) - given if len(line) > 8} & stripped(*sources)
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert not [mark for mark in ("BEGIN SOLUTION", "INSTEAD", "END SOLUTION") if mark in text]
    hidden = [check.name for check in made.checks if check.hidden and len(check.name.split()) > 3]
    wrong = [wrong.code.strip() for wrong in made.wrong if wrong.code]
    assert not [secret for secret in hidden + wrong if secret in text]


def test_points_of_the_notebook_are_those_of_the_set(handed_out):
    made, folder = handed_out
    cells = nbformat.read(folder / f"{made.name}.ipynb", as_version=4).cells
    found = [cell.metadata.nbgrader for cell in cells if "nbgrader" in cell.metadata]
    marks = {mark.grade_id: mark for mark in found}
    points = {id.removesuffix("-check"): mark.points for id, mark in marks.items() if mark.grade}
    assert points == {id: made.points(id) for id in made.tasks}
    for id in made.tasks:
        if id in made.manual:
            assert marks[id].solution and marks[id].cell_type == "markdown"
        else:
            assert marks[id].solution and not marks[id].grade and marks[f"{id}-check"].locked


def test_nothing_is_released_that_leaks(small, tmp_path, monkeypatch):
    secrets = secret_lines(small)
    monkeypatch.setattr("course.exercises.release.stub", lambda text: text)  # solutions and all
    nb = released(small)
    assert "widest, hole = area(outer), area(inner)" in secrets
    monkeypatch.setattr("course.exercises.release.secret_lines", lambda _: secrets)
    assert set(secrets) - set(leaked(small, nb)) == {
        "The ratio of circumference to diameter, integrated over the radius."
    }
    with pytest.raises(CourseError, match="is not released"):
        release(small, tmp_path)
    assert not list(tmp_path.iterdir())
    text = "Remember a secret radius of our own.\n\ndef f(x):\n    return -x"
    nb.cells = [nbformat.v4.new_markdown_cell(text)]
    assert leaked(small, nb) == ["a secret radius of our own", "def f(x):\n    return -x"]


def test_an_edited_notebook_is_kept_and_an_unedited_one_left_alone(small, tmp_path, capsys):
    path = tmp_path / small.name / f"{small.name}.ipynb"
    assert release(small, tmp_path)[0].endswith("written")
    untouched = path.read_bytes()
    assert release(small, tmp_path)[0].endswith("is up to date")
    nb = nbformat.read(path, as_version=4)
    nb.cells[2].outputs = [nbformat.v4.new_output("stream", text="run")]
    nbformat.write(nb, path)
    release(small, tmp_path)
    assert nbformat.read(path, as_version=4).cells[2].outputs, "outputs alone are no edit: the file stays"
    nb.cells[4].source = "mine = 1"
    edited = nbformat.writes(nb).encode()
    for text in (edited, b"{ half a notebook"):
        path.write_bytes(text)
        release(small, tmp_path)
        assert path.read_bytes() == untouched and "keeps your" in capsys.readouterr().err
        assert text in {kept.read_bytes() for kept in path.parent.glob(f"yours/*/{path.name}")}


def nbgrader(course: Path, *words: str) -> None:
    env = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    command = [sys.executable, "-m", "nbgrader", *words]
    done = subprocess.run(command, cwd=course, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_nbgrader_knows_the_release_and_runs_no_submission(small, tmp_path):
    """With the README's configuration: the gradebook has the points; points given in formgrader come back into marks.csv."""
    Gradebook = pytest.importorskip("nbgrader.api").Gradebook
    from class_results import result, write_class
    from nbgrader.utils import compute_checksum

    from course.grade.results.results import read_results, write_marks

    course, where = tmp_path / "course", f"{small.name}/{small.name}.ipynb"
    release(small, course / "source")
    config = re.search(r"^```python\n(.+?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (course / "nbgrader_config.py").write_text(config[1])
    nbgrader(course, "generate_assignment", small.name)
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        assignment = gradebook.find_assignment(small.name)
        assert assignment.max_score == sum(map(small.points, small.tasks))
        (notebook,) = assignment.notebooks
        assert {cell.name for cell in notebook.solution_cells} == {*small.tasks, "student"}
    nb, theirs = (nbformat.read(course / at / where, as_version=4) for at in ("source", "release"))
    assert [cell.source for cell in nb.cells] == [cell.source for cell in theirs.cells]
    ours = [cell for cell in nb.cells if "checksum" in cell.metadata.get("nbgrader", {})]
    assert {cell.id for cell in ours} == {"student", "04-1", "04-2", "04-3"}
    assert all(compute_checksum(cell) == cell.metadata.nbgrader.checksum for cell in ours)
    for cell in theirs.cells:
        if cell.id == "04-1":
            cell.source = f"open({str(tmp_path / 'canary')!r}, 'w')"
        if cell.id == "04-4":
            cell.source = "Because of the circle."
    submitted = course / "submitted" / "ann" / where
    submitted.parent.mkdir(parents=True)
    nbformat.write(theirs, submitted)
    nbgrader(course, "autograde", small.name)
    assert not (tmp_path / "canary").exists(), "the submission was run"
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        answer = "04-4", small.name, small.name, "ann"
        grade = gradebook.find_grade(*answer)
        assert grade.needs_manual_grade and grade.max_score == 2
        grade.manual_score = 1.5
        gradebook.find_comment(*answer).manual_comment = "which circle, and why?"
        gradebook.db.commit()
    folder = write_class(tmp_path / "results", [result("ann", [], []), result("ben", [], [])])
    assert "1 answers wait" in write_marks(folder, small.name, course / "gradebook.db")
    ann = read_results(folder, small.name)[0]
    assert ann["score"] == 1.5 and ann["manual"]["04-4"]["comment"] == "which circle, and why?"
    with pytest.raises(CourseError, match=r"there is no .*nowhere\.db"):
        write_marks(folder, small.name, tmp_path / "nowhere.db")


def test_the_table_of_tasks_is_true():
    made = page([read(folder) for folder in folders()])
    assert TABLE.read_text(encoding="utf-8") == made, "run `course exercises list --write`"
