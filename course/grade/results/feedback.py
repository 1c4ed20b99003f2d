"""`course grade feedback`: an HTML page for each student. Of a hidden check it shows the name and the points, and no more."""

from pathlib import Path

from course.files import write_atomically
from course.grade.results.page import page, table, text
from course.grade.results.results import unmarked
from course.paths import relative

VERDICTS = {
    "passed": "passed",
    "failed": "not yet",
    "student_error": "your code raises an error",
    "forbidden": "your code uses what the task forbids",
    "timeout": "takes too long",
    "crashed": "your code ends Python",
    "output_limit": "prints or returns too much",
    "bad_reply": "gives a value that cannot be read",
    "invalid_cell": "your cell cannot be graded",
}
WHOLE = {
    "invalid_submission": "This file could not be graded",
    "infrastructure_error": "Our grader failed; that is not your fault, and no score was given",
}


def write_feedback(results: list[dict], folder: Path) -> str:
    """Write a page a student below `folder`/feedback; pages of students who have no result any more go."""
    here = folder / "feedback"
    names = {f"{result['student']}.html": result for result in results}
    for old in here.glob("*.html"):
        if old.name not in names:
            old.unlink()
    for name, result in names.items():
        write_atomically(here / name, feedback(result).encode())
    return f"{relative(here)}/: {len(names)} pages"


def feedback(result: dict) -> str:
    """One student's page."""
    parts = [f"<h1>{text(result['exercise'])}</h1>", f"<p class=quiet>{text(about(result))}</p>"]
    if result["verdict"] in WHOLE:
        parts.append(f"<p class=bad>{text(WHOLE[result['verdict']])}. {text(result.get('message', ''))}</p>")
    if result["score"] is not None:
        parts.append(f"<p class=score>{result['score']:g} of {result['max_score']:g} points</p>")
        if result["verdict"] == "graded" and (waiting := unmarked(result)):
            parts.append(
                f"<p class=wait>Without the points for {text(', '.join(waiting))}, which a person gives.</p>"
            )
    if result["verdict"] == "graded":
        parts += [task_part(id, task, result) for id, task in result["tasks"].items()]
        parts += [answer_part(id, answer) for id, answer in result["manual"].items()]
    return page(f"{result['exercise']} · {result['student']}", "\n".join(parts))


def about(result: dict) -> str:
    handed_in = f", handed in {result['submitted']}" if result.get("submitted") else ""
    return f"{result['student']}{handed_in}, graded {result.get('graded', '')}"


def task_part(id: str, task: dict, result: dict) -> str:
    rows = [check_row(check) for check in task["checks"]]
    head = f"<h2>{text(id)} · {text(task['title'])}: {task['points']:g} of {task['max_points']:g}</h2>"
    code = result.get("solutions", {}).get(id)
    shown = f"<details><summary>Your code</summary><pre>{text(code)}</pre></details>" if code else ""
    return "\n".join([head, table(["check", "", "points"], rows, numbers=(2,)), shown])


def check_row(check: dict) -> list[str]:
    points = f"{check['points']:g} / {check['max_points']:g}"
    if check["hidden"]:
        return [text(check["name"]), "", points]
    if check["verdict"] == "student_error" and check["message"].startswith("NotImplementedError"):
        return [
            text(check["name"]),
            "<span class=bad>not begun</span>",
            points,
        ]  # `YOUR CODE HERE`, as handed out
    right = check["verdict"] == "passed"
    said = f"<span class={'good' if right else 'bad'}>{text(VERDICTS.get(check['verdict'], check['verdict']))}</span>"
    if check["message"] and not right:
        said += f"<br>{text(check['message'])}"
    return [text(check["name"]), said, points]


def answer_part(id: str, answer: dict) -> str:
    points = "–" if answer["points"] is None else f"{answer['points']:g}"
    parts = [f"<h2>{text(id)} · {text(answer['title'])}: {points} of {answer['max_points']:g}</h2>"]
    parts.append(f"<pre>{text(answer['text'])}</pre>")
    if answer["comment"]:
        parts.append(f"<p>{text(answer['comment'])}</p>")
    return "\n".join(parts)
