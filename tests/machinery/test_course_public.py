"""The repository that a class gets has no solutions and no hidden checks, and works; the key has both."""

import os
import re
import subprocess
import sys

import nbformat
import pytest

from course.cli import main
from course.exercises.checks import CheckOfCheck
from course.exercises.release import key, release_public, write_key
from course.exercises.sets import BEGIN, RELEASED, WITHOUT, folders, load, read
from course.paths import ROOT, CourseError

SETS = [read(folder) for folder in folders()]


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "course"
    said = release_public([load("04")], folder)
    assert "no solutions" in said[0] and "history" in said[1]
    return folder


@pytest.fixture(scope="module")
def texts(public):
    kinds = (".py", ".md", ".ipynb", ".toml", ".yml", ".json", "")
    files = [path for path in public.rglob("*") if path.is_file() and path.suffix in kinds]
    return {path: path.read_text(encoding="utf-8", errors="replace") for path in files}


@pytest.mark.parametrize("made", SETS, ids=lambda made: made.name)
def test_the_class_has_no_solution_and_no_hidden_check(made, texts):
    secrets = [check.name for check in made.checks if check.hidden and len(check.name.split()) > 6]
    secrets += [text for text in made.solutions.values() if len(text.splitlines()) > 4]
    for check in made.checks:
        secrets += list(check.wrong.values()) if isinstance(check, CheckOfCheck) else []
    leaks = [(path, secret) for path, text in texts.items() for secret in secrets if secret in text]
    assert not leaks


def test_the_class_has_the_course_and_its_sets(public):
    assert not (public / ".git").exists() and not list(public.glob("exercises/*/"))
    assert {path.name for path in (public / "released").iterdir()} == {"04_attention"}
    bench = {path.name for path in (ROOT / "bench").iterdir()} - {"__pycache__"}
    kept_back = {"grading.py", "grading_defences.py"}  # the others are imported by tests that the class has
    assert {path.name for path in (public / "bench").iterdir()} == bench - kept_back
    assert "released" not in (public / ".gitignore").read_text(), "students commit their work"
    words = [sys.executable, "-m", "course", "check", "04"]
    env = os.environ | {"PYTHONPATH": str(public), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(words, cwd=public, env=env, capture_output=True, text=True)
    assert "0 of 5 tasks pass" in done.stdout and "not begun" in done.stdout, done.stderr
    assert release_public([load("04")], public), "a second time, as for the next set"


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["exercises", "release", "--public", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_in_a_classs_copy_what_needs_the_sets_says_where_they_are(tmp_path, monkeypatch, capsys):
    """There the sets' sources and the final are missing."""
    monkeypatch.setattr("course.exercises.sets.EXERCISES", tmp_path)
    assert main(["exercises", "release", "04"]) == 2
    assert WITHOUT in capsys.readouterr().err


@pytest.mark.parametrize("made", SETS, ids=lambda made: made.name)
def test_the_key_has_every_solution_and_all_that_gives_points(made):
    nb = key(made)
    nbformat.validate(nb)
    text = "\n".join(cell.source for cell in nb.cells)
    assert BEGIN not in text and "#| " not in text
    missing = [task for task, solution in made.solutions.items() if solution not in text]
    missing += [check.name for check in made.checks if check.name not in text]
    missing += [rubric for rubric in made.rubric.values() if rubric not in text]
    assert not missing
    points = re.findall(r"^\*\*Key to .*?, ([\d.]+) points", text, re.MULTILINE)
    assert sum(map(float, points)) == sum(made.points(task) for task in made.tasks)


def test_a_key_is_never_written_among_what_is_handed_out(tmp_path):
    assert write_key("04", tmp_path).endswith("04_attention-key.ipynb written")
    with pytest.raises(CourseError, match="handed out"):
        write_key("04", RELEASED / "04_attention")
