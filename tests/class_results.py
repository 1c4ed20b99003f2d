"""Results of a small class, in the form that the grader writes, for the tests of what reads them."""

import json
from pathlib import Path

SECRET = "expected 12.566, from the reference"  # what a hidden check says to the instructor alone
SCRIPT = "<script>alert('x')</script>"


def check(name: str, points: float, most: float, verdict="passed", message="", hidden=False) -> dict:
    return {
        "name": name,
        "points": points,
        "max_points": most,
        "hidden": hidden,
        "verdict": verdict,
        "message": message,
    }


def result(
    student: str,
    area: list[dict],
    ring: list[dict],
    answer="π is a ratio.",
    submitted="2026-11-20T10:00:00",
    **more,
):
    tasks = {
        id: {"title": title, "points": sum(c["points"] for c in checks), "max_points": most, "checks": checks}
        for id, title, most, checks in (("04-1", "The area", 3.0, area), ("04-2", "The ring", 7.0, ring))
    }
    manual = {"04-4": {"title": "Why π?", "text": answer, "points": None, "max_points": 2.0, "comment": ""}}
    return {
        "format": 1,
        "exercise": "04_small",
        "student": student,
        "submitted": submitted,
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


def the_class() -> list[dict]:
    """Right, partly right and late, hostile, a formula for a name, not readable, and our own failure."""
    whole = [check("the square", 2.0, 2.0), check("a secret radius", 1.0, 1.0, hidden=True)]
    ring = [check("what remains", 3.0, 3.0), check("wrong ones are refused", 4.0, 4.0, hidden=True)]
    half = [
        check(
            "the square", 0.0, 2.0, "failed", "the radius is not squared (the result is 3.14159, not 6.28319)"
        ),
        check("a secret radius", 0.0, 1.0, "failed", SECRET, hidden=True),
    ]
    some = [
        check("what remains", 3.0, 3.0),
        check("wrong ones are refused", 2.0, 4.0, "failed", SECRET, hidden=True),
    ]
    bad = [
        check("the square", 0.0, 2.0, "student_error", f"ValueError: {SCRIPT} \x1b[31m\x9b31m\u202e\u061c"),
        check("a secret radius", 0.0, 1.0, "timeout", SECRET, hidden=True),
    ]
    none = [
        check("what remains", 0.0, 3.0, "crashed", "the process was ended by SIGSEGV"),
        check("wrong ones are refused", 0.0, 4.0, "crashed", SECRET, hidden=True),
    ]
    lost = {"verdict": "infrastructure_error", "message": "the disk is full", "score": None}
    unread = {
        "verdict": "invalid_submission",
        "message": "the solution cell 04-1 is there 2 times",
        "score": 0.0,
    }
    return [
        result("ann", whole, ring),
        result("=bob,jr", half, some, submitted="2026-11-22T09:00:00"),
        result(
            "müller@uni.de",
            bad,
            none,
            answer=f"{SCRIPT} & more",
            solutions={"04-1": f"# {SCRIPT}\nx = 1", "04-2": "y"},
        ),
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
