"""Results of a small class, in the form that the grader writes, for the tests of what reads them."""

import json
from pathlib import Path

SECRET = "expected 12.566, from the reference"  # what a hidden check says to the instructor alone
SCRIPT = "<script>alert('x')</script>"


def check(name: str, points: float, most: float, verdict="passed", message="", hidden=False) -> dict:
    told = {"name": name, "points": points, "max_points": most}
    return told | {"hidden": hidden, "verdict": verdict, "message": message}


def task(title: str, most: float, checks: list[dict]) -> dict:
    points = sum(one["points"] for one in checks)
    return {"title": title, "points": points, "max_points": most, "checks": checks}


def result(student: str, area: list[dict], ring: list[dict], answer="π is a ratio.", **more) -> dict:
    tasks = {"04-1": task("The area", 3.0, area), "04-2": task("The ring", 7.0, ring)}
    manual = {"04-4": {"title": "Why π?", "text": answer, "points": None, "max_points": 2.0, "comment": ""}}
    return {
        "format": 1,
        "exercise": "04_small",
        "student": student,
        "submitted": "2026-11-20T10:00:00",
        "file": f"{student}.ipynb",
        "sha256": "0" * 64,
        "graded": "2026-11-22T06:00:00Z",
        "verdict": "graded",
        "message": "",
        "backend": "bubblewrap",
        "seconds": 1.25,
        "score": sum(task["points"] for task in tasks.values()),
        "max_score": 12.0,
        "tasks": tasks,
        "manual": manual,
        "solutions": {
            "student": "STUDENT = 'x'",
            "04-1": "def area(r):\n    return 3 * r",
            "04-2": "def ring(a, b):\n    return a",
        },
    } | more


def area(points: float, verdict: str, message: str, *hidden) -> list[dict]:
    return [check("the square", points, 2.0, verdict, message), secret("a secret radius", 1.0, *hidden)]


def ring(points: float, verdict: str, message: str, *hidden) -> list[dict]:
    shown = check("what remains", points, 3.0, verdict, message)
    return [shown, secret("wrong ones are refused", 4.0, *hidden)]


def secret(name: str, most: float, points: float, verdict: str) -> dict:
    return check(name, points, most, verdict, "" if verdict == "passed" else SECRET, hidden=True)


def the_class() -> list[dict]:
    """Right, partly right and late, hostile, a formula for a name, not readable, and our own failure."""
    not_squared = "the radius is not squared (the result is 3.14159, not 6.28319)"
    error = f"ValueError: {SCRIPT} \x1b[31m\x9b31m\u202e\u061c"
    whole = area(2.0, "passed", "", 1.0, "passed"), ring(3.0, "passed", "", 4.0, "passed")
    some = area(0.0, "failed", not_squared, 0.0, "failed"), ring(3.0, "passed", "", 2.0, "failed")
    hostile = (
        area(0.0, "student_error", error, 0.0, "timeout"),
        ring(0.0, "crashed", "the process was ended by SIGSEGV", 0.0, "crashed"),
    )
    codes = {"04-1": f"# {SCRIPT}\nx = 1", "04-2": "y"}
    lost = {"verdict": "infrastructure_error", "message": "the disk is full", "score": None}
    unread = {
        "verdict": "invalid_submission",
        "message": "the solution cell 04-1 is there 2 times",
        "score": 0.0,
    }
    return [
        result("ann", *whole),
        result("=bob,jr", *some, submitted="2026-11-22T09:00:00"),
        result("müller@uni.de", *hostile, answer=f"{SCRIPT} & more", solutions=codes),
        result("eve", [], [], answer="", **unread),
        result("ida", [], [], submitted=None, **lost),
    ]


def write_class(folder: Path, results: list[dict] | None = None) -> Path:
    """The results as files below `folder`; returns the folder of results."""
    for one in results or the_class():
        path = folder / one["exercise"] / f"{one['student']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(one, indent=1) + "\n", encoding="utf-8")
    return folder
