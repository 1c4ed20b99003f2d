"""Seconds a submission: `course grade run` for one alone and for a batch by two processes, beside `nbgrader autograde`.

    python bench/grading.py [N] [EX]      # N submissions (default 20) of exercise EX (default 04)

nbgrader grades the same notebooks, with the visible checks that the release holds, one after another, as it does.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from course.exercises.release import release
from course.exercises.sets import load

ROOT = Path(__file__).parents[1]
NBGRADER_AT_MOST = 20  # of a batch of 300 as many as tell its rate


def main(number: int = 20, chapter: str = "04") -> None:
    made = load(chapter)
    with tempfile.TemporaryDirectory(prefix="bench-grading-") as name:
        folder = Path(name)
        release(made, folder / "source")
        released = folder / "source" / made.name / f"{made.name}.ipynb"
        solved = filled(json.loads(released.read_text(encoding="utf-8")), made.solutions)
        for where, count in {"alone": 1, "batch": number}.items():
            (folder / where).mkdir()
            for i in range(count):
                (folder / where / f"student{i:03}.ipynb").write_text(solved)
        rows = [("course grade run, one alone", 1, graded(folder, made.name, "alone", chapter, 1))]
        rows.append(("course grade run --jobs 2", number, graded(folder, made.name, "batch", chapter, 2)))
        theirs = min(number, NBGRADER_AT_MOST)
        rows.append(("nbgrader autograde", theirs, autograded(folder, made.name, solved, theirs)))
        print(f"{made.name}, {os.cpu_count()} cores\n{'':34}{'submissions':>12}{'seconds':>9}{'each':>8}")
        for what, count, seconds in rows:
            print(f"{what:34}{count:12}{seconds:9.1f}{seconds / count:8.2f}")


def filled(nb, solutions: dict[str, str]) -> str:
    """The released notebook with the reference in its solution cells."""
    for cell in nb["cells"]:
        marks = cell["metadata"].get("nbgrader", {})
        if marks.get("solution") and marks["grade_id"] in solutions:
            cell["source"] = solutions[marks["grade_id"]]
    return json.dumps(nb)


def graded(folder: Path, name: str, where: str, chapter: str, jobs: int) -> float:
    words = [
        sys.executable,
        "-m",
        "course.cli",
        "grade",
        "run",
        chapter,
        "--submissions",
        str(folder / where),
    ]
    began = time.perf_counter()
    subprocess.run(
        [*words, "--results", str(folder / "results" / where), "--jobs", str(jobs)], check=True, cwd=ROOT
    )
    seconds = time.perf_counter() - began
    for path in (folder / "results" / where / name).iterdir():
        result = json.loads(path.read_text())
        due = result["max_score"] - sum(answer["max_points"] for answer in result["manual"].values())
        assert result["score"] == due, f"{path.name}: {result['score']} of {due}, {result['message']}"
    return seconds


def autograded(folder: Path, name: str, solved: str, number: int) -> float:
    for i in range(number):
        to = folder / "submitted" / f"student{i:03}" / name / f"{name}.ipynb"
        to.parent.mkdir(parents=True)
        to.write_text(solved)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    words = [shutil.which("nbgrader", path=path), "generate_assignment", name, f"--course-dir={folder}"]
    subprocess.run(words, cwd=folder, env=env, capture_output=True, check=True)
    began = time.perf_counter()
    words[1] = "autograde"
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    made = list((folder / "autograded").glob(f"*/{name}/{name}.ipynb"))
    assert done.returncode == 0 and len(made) == number, done.stderr[-2000:]
    return seconds


if __name__ == "__main__":
    main(*([int(sys.argv[1])] if sys.argv[1:] else []), *sys.argv[2:3])
