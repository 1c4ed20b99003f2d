"""`course grade export`: results in the formats of other systems. tests/grading_export/ has a file of each."""

import csv
import io
import os
from pathlib import Path
from xml.etree import ElementTree

from course.grade.results.late import Late
from course.grade.results.page import clean
from course.grade.results.results import gradable, graded
from course.grade.submission import normal
from course.paths import CourseError, relative

NBGRADER = "assignment duedate timestamp student_id last_name first_name email raw_score late_submission_penalty score max_score"
PERSON = ["student_id", "last_name", "first_name", "email"]


def scored(results: list[dict]) -> list[dict]:
    """Results that have a score; those that our own failure cost theirs are never exported as a zero."""
    return [result for result in results if result["score"] is not None]


def plain(value: str) -> str:
    """Text for a cell of a spreadsheet: what it would take for a formula begins with an apostrophe."""
    value = clean(value)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def read_roster(path: Path | None) -> dict[str, dict[str, str]]:
    """student_id, last_name, first_name, email of each student, from a CSV with these columns among others."""
    if path is None:
        return {}
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    except UnicodeDecodeError:
        raise CourseError(f"{relative(path)} is not in UTF-8: save it as CSV UTF-8") from None
    if not rows or not set(PERSON) <= set(rows[0]):
        raise CourseError(f"{relative(path)}: a roster has the columns {', '.join(PERSON)}")
    return {normal(row["student_id"]): row for row in rows}


def nbgrader(results: list[dict], late: Late, roster: dict[str, dict[str, str]]) -> str:
    """nbgrader's grades.csv, properly quoted. A student of the roster without a submission has zero points, as there."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, NBGRADER.split(), lineterminator="\n")
    writer.writeheader()
    exercise, most = results[0]["exercise"], results[0]["max_score"]
    graded_ones = {result["student"]: result for result in scored(results)}
    lost = {result["student"] for result in results} - set(graded_ones)
    for student in sorted({*graded_ones, *roster} - lost):
        person = {key: plain(roster.get(student, {}).get(key) or "") for key in PERSON} | {
            "student_id": plain(student)
        }
        due = late.extended.get(student, late.due) or ""
        row = {"assignment": plain(exercise), "duedate": due, "max_score": float(most)} | person
        if result := graded_ones.get(student):
            row |= {
                "timestamp": (result.get("submitted") or "").replace("T", " "),
                "raw_score": float(result["score"]),
            }
            row |= {
                "late_submission_penalty": float(late.penalty(result)),
                "score": float(late.final(result)),
            }
        else:
            row |= {"timestamp": "", "raw_score": 0.0, "late_submission_penalty": 0.0, "score": 0.0}
        writer.writerow(row)
    return out.getvalue()


def checks(result: dict) -> list[tuple[str, dict]]:
    return [(id, check) for id, task in result["tasks"].items() for check in task["checks"]]


def said(check: dict) -> str:
    """What a student may read of a check."""
    return "" if check["hidden"] or check["verdict"] == "passed" else check["message"] or check["verdict"]


def whole(result: dict) -> str:
    """What a student may read of the whole submission."""
    waiting = ", ".join(task for task, answer in result["manual"].items() if answer["points"] is None)
    note = f"{waiting}: a person gives these points." if waiting else ""
    return "\n".join(filter(None, [result.get("message", ""), note]))


def gradescope(result: dict) -> dict:
    """results.json of a Gradescope autograder. Names of hidden checks appear when scores are published, their messages never."""
    if result["score"] is None:
        raise CourseError(
            f"{result['student']}: {result.get('message') or result['verdict']}; there is no score to give"
        )
    tests = [
        {
            "name": f"{id}: {check['name']}",
            "score": check["points"],
            "max_score": check["max_points"],
            "status": "passed" if check["verdict"] == "passed" else "failed",
            "output": said(check),
            "visibility": "after_published" if check["hidden"] else "visible",
        }
        for id, check in checks(result)
    ]
    return {
        "score": graded(result),
        "execution_time": result.get("seconds", 0),
        "output": whole(result),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def prairielearn(result: dict) -> dict:
    """/grade/results/results.json of PrairieLearn. What cannot be graded costs no attempt."""
    if result["verdict"] in ("invalid_submission", "infrastructure_error"):
        message = result.get("message") or result["verdict"]
        return {"gradable": False, "message": message, "format_errors": [message]}
    tests = [
        {
            "name": f"{id}: {c['name']}",
            "points": c["points"],
            "max_points": c["max_points"],
            "message": said(c),
        }
        for id, c in checks(result)
    ]
    most = gradable(result)
    return {
        "gradable": True,
        "score": graded(result) / most if most else 0.0,
        "message": whole(result),
        "tests": tests,
    }


def classroom50(result: dict) -> dict:
    """result.json of Classroom 50, whose scores are whole numbers: ours in hundredths of a point.

    The runner names classroom, assignment and submission in the environment.
    """
    if result["score"] is None:
        raise CourseError(
            f"{result['student']}: {result.get('message') or result['verdict']}; there is no score to give"
        )
    named = {
        "classroom": "CLASSROOM",
        "assignment": "ASSIGNMENT",
        "submission": "SUBMISSION_TAG",
        "commit": "COMMIT_URL",
    }
    named |= {"release": "RELEASE_URL", "review": "REVIEW_URL"}
    values = {key: os.environ.get(name, "") for key, name in named.items()}
    values["review"] = values["review"] or values["commit"]
    if missing := [named[key] for key, value in values.items() if not value]:
        raise CourseError(
            f"classroom50's runner sets {', '.join(missing)}; this export runs in its autograder.py"
        )
    tests = [
        {
            "test-name": f"{id}: {check['name']}",
            "passed": check["verdict"] == "passed",
            "score": round(100 * check["points"]),
            "max-score": round(100 * check["max_points"]),
        }
        for id, check in checks(result)
    ]
    return {
        "schema": "classroom50/result/v1",
        **values,
        "datetime": result.get("submitted") or result.get("graded", ""),
        "score": sum(test["score"] for test in tests),
        "max-score": sum(test["max-score"] for test in tests),
        "tests": tests,
    }


def junit(results: list[dict]) -> str:
    """JUnit XML: a suite a student, a case a check."""
    top = ElementTree.Element("testsuites", name=results[0]["exercise"])
    for result in results:
        cases = checks(result)
        failed = [check for _, check in cases if check["verdict"] != "passed"]
        lost = result["verdict"] != "graded"
        suite = ElementTree.SubElement(
            top,
            "testsuite",
            name=clean(result["student"]),
            tests=str(len(cases) + lost),
            failures=str(len(failed)),
            errors=str(int(lost)),
            time=f"{result.get('seconds', 0):g}",
        )
        for id, check in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=id, name=clean(check["name"]))
            if check["verdict"] != "passed":
                words = f"{check['points']:g} of {check['max_points']:g} points. {said(check)}".strip()
                ElementTree.SubElement(
                    case,
                    "failure",
                    type="failed" if check["hidden"] else check["verdict"],
                    message=clean(words),
                )
        if lost:
            case = ElementTree.SubElement(
                suite, "testcase", classname=result["exercise"], name="the submission is graded"
            )
            words = clean(result.get("message") or "")
            ElementTree.SubElement(case, "error", type=result["verdict"], message=words)
    ElementTree.indent(top)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(top, encoding='unicode')}\n"
