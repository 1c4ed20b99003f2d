"""What is uploaded to Gradescope and PrairieLearn: complete, the same every time, and run here as it is run there."""

import json
import os
import subprocess
import sys
import zipfile

import pytest
from simulated_class import write
from small_set import small_set

from course.exercises.release import release
from course.grade.sandbox import sandbox
from course.grade.systems import station
from course.grade.systems.bundle import bundle
from course.paths import CourseError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_set(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def notebook(made, tmp_path_factory):
    to = tmp_path_factory.mktemp("released")
    release(made, to)
    return json.loads((to / made.name / f"{made.name}.ipynb").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def unpacked(made, tmp_path_factory):
    """Both bundles, unpacked."""
    folders = {}
    for system in ("gradescope", "prairielearn"):
        folders[system] = tmp_path_factory.mktemp(system)
        bundle(system, made, folders[system] / "bundle.zip")
        with zipfile.ZipFile(folders[system] / "bundle.zip") as archive:
            archive.extractall(folders[system] / "to")
    return {system: folder / "to" for system, folder in folders.items()}


def test_gradescopes_zip(made, tmp_path):
    for name in ("a.zip", "b.zip"):
        bundle("gradescope", made, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes(), "the same every time"
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["run_autograder"] == modes["setup.sh"] == 0o755 and modes["course/cli.py"] == 0o644
    sets = [name for name in modes if name.startswith("exercises/")]
    assert sets == ["exercises/04_small/checks.py", "exercises/04_small/exercise.py"]
    assert not [name for name in modes if "__pycache__" in name or name.startswith(("tests/", "notebooks/"))]


def graded(unpacked, system: str, place) -> dict:
    """What is in results.json."""
    below = unpacked[system] / ("questions/04_small/tests" if system == "prairielearn" else "")
    done = subprocess.run(
        [sys.executable, "-m", "course.grade.systems.station", system, "exercises/04_small"],
        cwd=below,
        env=os.environ | {"COURSE_STATION": str(place), "PYTHONPATH": str(below)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((place / "results" / "results.json").read_text())


@pytest.fixture
def sandboxed():
    try:
        sandbox.choose()
    except CourseError as error:
        pytest.skip(str(error))


def test_a_submission_is_graded_where_gradescope_puts_it(made, notebook, unpacked, tmp_path, sandboxed):
    """Of two notebooks the one with the set's name."""
    write(tmp_path / "submission" / "scratch.ipynb", notebook, made.stubs, "ann@uni.de")
    some = made.solutions | {"04-2": made.stubs["04-2"]}
    write(tmp_path / "submission" / "04_small.ipynb", notebook, some, "ann@uni.de")
    users = {"users": [{"email": "ann@uni.de", "name": "Ann"}], "created_at": "2026-11-20T10:00:00-07:00"}
    (tmp_path / "submission_metadata.json").write_text(json.dumps(users))
    results = graded(unpacked, "gradescope", tmp_path)
    status = [test["status"] for test in results["tests"]]
    assert results["score"] == 7.0 and status == ["passed", "passed", "failed", "passed"]


def test_a_submission_is_graded_where_prairielearn_puts_it(made, notebook, unpacked, tmp_path, sandboxed):
    write(tmp_path / "student" / "04_small.ipynb", notebook, made.solutions, "ann")
    results = graded(unpacked, "prairielearn", tmp_path)
    assert results["gradable"] is True and results["score"] == 1.0


def test_which_notebook_and_whose(made, notebook, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_STATION", str(tmp_path))
    folder, place = tmp_path / "student", station.PLACES["prairielearn"]
    assert station.submission(folder, made).problem == "no notebook was handed in"
    write(folder / "deep" / "my work.ipynb", notebook, made.solutions, "ann")
    found = station.submission(folder, made)
    assert found.path.name == "my work.ipynb" and not found.problem
    assert station.who("prairielearn", place, found, made) == "ann"
    saved = json.loads(found.path.read_text(encoding="utf-8"))
    named = next(cell for cell in saved["cells"] if cell.get("id") == "student")
    for odd in ("{[]: 1}", '"\\ud800"', "0x" + 9999 * "f", "-" * 50_000 + "1", "print()"):
        named["source"] = f"STUDENT = {odd}"
        found.path.write_text(json.dumps(saved), encoding="utf-8")
        assert station.who("prairielearn", place, found, made) == "unknown", odd[:20]
    write(folder / "b.ipynb", notebook, made.solutions, "ann")
    said = "2 notebooks were handed in, and 04_small.ipynb is not one of them"
    assert station.submission(folder, made).problem == said
    users = [{"email": "zoe@uni.de"}, {"email": "ann@uni.de"}]
    (tmp_path / "submission_metadata.json").write_text(json.dumps({"users": users}))
    assert station.who("gradescope", place, found, made) == "ann@uni.de,zoe@uni.de", "a group"
