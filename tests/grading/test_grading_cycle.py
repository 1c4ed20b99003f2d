"""Release, check, run, feedback, export: the commands of exercises/README.md, in its order, on a class of twenty."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from simulated_class import submissions
from small_set import small_set

import course.exercises.check
import course.exercises.sets
from course.cli import main
from course.exercises.checks import Check
from course.grade.results.alike import alike
from course.grade.sandbox import sandbox
from course.grade.score.local import said_of
from course.paths import CourseError

README = Path(__file__).parents[2] / "exercises" / "README.md"
CANVAS = "Student,ID,SIS Login ID,Section,04_small (7)\r\nPoints Possible,,,,12\r\n"
MOODLE = "Identifier,Full name,Username,Grade,Maximum Grade\n"


def commands() -> list[list[str]]:
    """Those in the blocks of the README, as they stand."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for language, block in blocks if not language for line in block.splitlines()]


@pytest.fixture
def class_of_twenty(tmp_path, monkeypatch):
    """A folder to work in, in which chapter 04 is the small set."""
    try:
        if sandbox.choose() != "bubblewrap":
            pytest.skip("bubblewrap does not work here")
    except CourseError as error:
        pytest.skip(str(error))
    made = small_set(tmp_path / "exercises")
    for name in course.exercises.sets.PAPERS:
        shutil.copy(README.with_name(f"{name}.md"), tmp_path / "exercises")
    monkeypatch.setattr(course.exercises.sets, "EXERCISES", tmp_path / "exercises")
    monkeypatch.setattr(course.exercises.check, "PASSED", tmp_path / "progress.json")
    monkeypatch.chdir(tmp_path)
    return made


def test_the_cycle_of_the_readme(class_of_twenty, tmp_path):
    made, due = class_of_twenty, {}
    for command in commands():
        words = [word.replace("04_attention", made.name) for word in command[1:]]
        if words[:2] == ["grade", "selfcheck"]:
            continue  # has tests of its own, and takes longer than this class
        code = main(words)
        assert code == (words[0] == "check"), words  # what is handed out passes no check
        if words[:3] == ["exercises", "release", "04"]:
            released = tmp_path / f"handout/{made.name}/{made.name}.ipynb"
            due = submissions(made, released, tmp_path / "submissions")
            files_of_other_systems(tmp_path, list(due))
        if words[:2] == ["grade", "marks"]:
            mark(tmp_path / "results" / made.name / "marks.csv")
    results = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "results" / made.name).glob("*.json")}
    assert len(due) == len(results) == 20
    scores = {name: result["score"] for name, result in results.items()}
    for name, word in due.items():
        assert results[name]["verdict"] == ("invalid_submission" if word == "invalid" else "graded"), name
        low, high = {"full": (10, 10), "part": (1, 9), "none": (0, 0), "invalid": (0, 0)}[word]
        assert low <= scores[name] <= high, (name, word, scores[name])
    for name in ("finn", "gina", "hugo", "ines", "jan"):  # by the grading in this process, of the same code
        solutions = results[name]["solutions"]
        compared = [check for check in made.checks if isinstance(check, Check)]
        right = [check.points for check in compared if not said_of(made, check, solutions, name)]
        tasks = results[name]["tasks"]
        assert sum(right) == tasks["04-1"]["points"] + tasks["04-2"]["points"], name
    check_exports(tmp_path, made.name, scores)
    same_code = [(pair.one, pair.other, pair.similarity) for pair in alike(list(results.values()), made)]
    assert same_code == [("quin", "rosa", 1.0)], "under other names; and there is no other pair"
    feedback = {p.stem: p.read_text() for p in (tmp_path / "results" / made.name / "feedback").glob("*.html")}
    assert set(feedback) == set(due)
    assert "&lt;b&gt;because&lt;/b&gt;" in feedback["ann"] and "<b>because" not in feedback["ann"]
    assert "11.5 of 12 points" in feedback["ann"] and "could not be graded" in feedback["tara"]


def mark(path: Path) -> None:
    """One and a half points for every answer."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 19, "tara's file holds no answers"
    lines = [f"{row['student_id']},{row['task']},1.5,fine\n" for row in rows]
    path.write_text("student_id,task,points,comment\n" + "".join(lines))


def files_of_other_systems(folder: Path, students: list[str]) -> None:
    roster = "".join(f"{s},{s.title()},{s[0].upper()}.,{s}@uni.de\n" for s in students)
    (folder / "roster.csv").write_text("student_id,last_name,first_name,email\n" + roster)
    due = "04,,2026-11-20T23:59\n04,ann,2026-11-22T23:59\n"
    (folder / "deadlines.csv").write_text(f"set,student_id,due\n{due}")
    rows = "".join(f'"X, {s}",1,{s},A,\r\n' for s in students)
    (folder / "canvas.csv").write_text(CANVAS + rows, newline="")
    (folder / "moodle.csv").write_text(MOODLE + "".join(f"Participant 1,{s},{s},,12.00\n" for s in students))


def check_exports(folder: Path, name: str, scores: dict[str, float]) -> None:
    here = folder / "results" / name
    with (here / "nbgrader.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    keys = ("raw_score", "late_submission_penalty", "score")
    assert len(rows) == 20 and [rows["ann"][key] for key in keys] == ["11.5", "0.0", "11.5"]
    assert [rows["nina"][key] for key in keys] == ["11.5", "4.0", "7.5"], "two days begun"
    for system, line in {
        "canvas": '"X, ann",1,ann,A,11.5',
        "moodle": "Participant 1,kim,kim,1.5,12.00",
    }.items():
        text = (here / f"{system}.csv").read_text()
        assert line in text and len(text.splitlines()) == (22 if system == "canvas" else 21)
    for system in ("gradescope", "prairielearn"):
        assert len(list((here / system).glob("*.json"))) == 20 and (folder / f"{system}-04.zip").exists()
    found = json.loads((here / "gradescope" / "finn.json").read_text())
    assert found["score"] == scores["finn"], "without a person's points"
