"""A result on disk: what it holds, when it still counts, how it takes the place of an earlier one."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from course.exercises.sets import ExerciseSet
from course.files import write_atomically
from course.grade.submission import Found, Invalid, regular_file


def empty_result(made: ExerciseSet, found: Found, backend: str) -> dict:
    tasks = {check.task: made.tasks[check.task].title for check in made.checks}
    return {
        "format": 1,
        "exercise": made.name,
        "student": found.student,
        "submitted": found.submitted,
        "file": found.path.name,
        "sha256": "",
        "exercise_sha256": fingerprint(made),
        "graded": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "verdict": "",
        "message": "",
        "backend": backend,
        "seconds": 0.0,
        "score": 0.0,
        "max_score": float(sum(check.points for check in made.checks) + sum(made.manual.values())),
        "tasks": {
            task: {"title": title, "points": 0.0, "max_points": float(points_of(made, task)), "checks": []}
            for task, title in tasks.items()
        },
        "manual": {
            task: {
                "title": made.tasks[task].title,
                "text": "",
                "points": None,
                "max_points": float(points),
                "comment": "",
            }
            for task, points in made.manual.items()
        },
        "solutions": {},
    }


def points_of(made: ExerciseSet, task: str) -> float:
    return sum(check.points for check in made.checks if check.task == task)


def fingerprint(made: ExerciseSet) -> str:
    """Changes when the exercise or its checks do."""
    texts = [(made.folder / name).read_bytes() for name in ("exercise.py", "checks.py")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def result_path(results: Path, exercise: str, student: str) -> Path:
    return results / exercise / f"{student}.json"


def read_result(path: Path) -> dict | None:
    """An earlier result; None if there is none that can be read."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return made if isinstance(made, dict) and made.get("format") == 1 else None
    except (OSError, ValueError):
        return None


def is_done(found: Found, before: dict | None, exercise: str) -> bool:
    """Was this very file graded by this very exercise? Then the night was interrupted after it."""
    if not before or before["verdict"] not in ("graded", "invalid_submission"):
        return False
    if before.get("exercise_sha256") != exercise or before["file"] != found.path.name:
        return False
    try:
        return before["sha256"] == hashlib.sha256(regular_file(found.path)).hexdigest()
    except Invalid:
        return False


def write_result(results: Path, result: dict) -> None:
    """In place of an earlier one, of which only a person's marks stay, and only for the same answer."""
    path = result_path(results, result["exercise"], result["student"])
    before = read_result(path) or {}
    for task, answer in result["manual"].items():
        old = before.get("manual", {}).get(task, {})
        if old.get("points") is not None and old.get("text") == answer["text"]:
            answer |= {"points": old["points"], "comment": old.get("comment", "")}
    if result["score"] is not None and result["verdict"] == "graded":
        marks = sum(answer["points"] or 0.0 for answer in result["manual"].values())
        result["score"] = round(result["score"] + marks, 4)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
