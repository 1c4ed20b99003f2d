"""`course grade show STUDENT`: all that is known of one student's submission, hidden checks too, in the terminal."""

from course.grade.results.page import clean
from course.paths import CourseError


def show(results: list[dict], student: str) -> str:
    found = next((result for result in results if result["student"] == student), None)
    if found is None:
        near = sorted(r["student"] for r in results if student.lower() in r["student"].lower())
        hint = f"; there is {', '.join(near[:5])}" if near else ""
        raise CourseError(f"no result of a student {student!r}{hint}")
    return clean("\n".join(lines(found)))  # a message may hold what a terminal obeys


def lines(result: dict) -> list[str]:
    score = "no score" if result["score"] is None else f"{result['score']:g} of {result['max_score']:g}"
    told = [f"{result['student']}, {result['exercise']}: {score} ({result['verdict']})"]
    told += [
        f"  {key} {result[key]}"
        for key in ("message", "file", "submitted", "graded", "backend")
        if result.get(key)
    ]
    for id, task in result["tasks"].items():
        told += ["", f"{id}  {task['title']}: {task['points']:g} of {task['max_points']:g}"]
        for check in task["checks"]:
            hidden = " (hidden)" if check["hidden"] else ""
            told.append(
                f"  {check['points']:g}/{check['max_points']:g}  {check['verdict']:13} {check['name']}{hidden}"
            )
            if check["message"]:
                told.append(f"       {check['message']}")
        if code := result.get("solutions", {}).get(id):
            told += [f"    | {line}" for line in code.splitlines()]
    for id, answer in result["manual"].items():
        points = "unmarked" if answer["points"] is None else f"{answer['points']:g}"
        told += [
            "",
            f"{id}  {answer['title']}: {points} of {answer['max_points']:g}  {answer['comment']}".rstrip(),
        ]
        told += [f"    {line}" for line in answer["text"].splitlines()]
    return told
