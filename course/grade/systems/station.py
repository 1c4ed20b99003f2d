"""One submission in the container of Gradescope or PrairieLearn: found, graded, and its results.json written.

    python -m course.grade.systems.station gradescope exercises/04_attention

COURSE_STATION names another folder than /autograder or /grade, for trying it at home.
"""

import ast
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from course.exercises.sets import ExerciseSet, read
from course.files import write_atomically
from course.grade.sandbox import sandbox
from course.grade.sandbox.warm import Options
from course.grade.score.grader import Grader
from course.grade.submission import Found, cells_of, normal, regular_file, texts_of
from course.grade.systems import export


@dataclass(frozen=True)
class Place:
    """Where a system puts the submission, and expects the results."""

    root: str
    submission: str
    results: str
    record: object

    def folder(self, name: str) -> Path:
        return Path(os.environ.get("COURSE_STATION", self.root)) / name


PLACES = {
    "gradescope": Place("/autograder", "submission", "results/results.json", export.gradescope),
    "prairielearn": Place("/grade", "student", "results/results.json", export.prairielearn),
}


def main(system: str, exercise: str, backend: str | None = None) -> int:
    place, made = PLACES[system], read(Path(exercise).resolve())
    found = submission(place.folder(place.submission), made)
    found = Found(who(system, place, found, made), when(place), found.path, found.problem)
    results = place.folder(place.results)
    backend = sandbox.choose(backend)
    if backend == "container":
        sandbox.hide([made.folder, results.parent, found.path.parent])
    grader = Grader(made, Options(backend, ahead=False))
    try:
        result = grader.grade(found)
    finally:
        grader.close()
    if result["score"] is None and system == "gradescope":
        print(
            result["message"]
        )  # for the instructor; without a results.json Gradescope says that the autograder failed
        return 1
    write_atomically(results, (json.dumps(place.record(result), indent=2) + "\n").encode())
    return 0


def submission(folder: Path, made: ExerciseSet) -> Found:
    """The notebook that was handed in: the only one, or the one with the set's name."""
    there = sorted(path for path in folder.rglob("*.ipynb") if not path.name.startswith("."))
    named = [path for path in there if path.name == f"{made.name}.ipynb"]
    if len(there) == 1 or len(named) == 1:
        return Found("", None, (named or there)[0])
    said = f"{len(there)} notebooks were handed in, and {made.name}.ipynb is not one of them"
    if not there:
        said = "no notebook was handed in"
    return Found("", None, folder / f"{made.name}.ipynb", said)


def who(system: str, place: Place, found: Found, made: ExerciseSet) -> str:
    """The student's id: on Gradescope the e-mail address of the account. PrairieLearn names nobody: what the notebook says."""
    if system == "gradescope":
        users = metadata(place).get("users", [])
        return ",".join(sorted(user["email"] for user in users)) or "unknown"
    try:
        texts, _ = texts_of(cells_of(regular_file(found.path)), {"student": "solution"})
        student = str(ast.literal_eval(ast.parse(texts["student"]).body[-1].value))
        student.encode()
        return normal(student)
    except Exception:  # whatever stands there: it is a stranger's text
        return "unknown"


def when(place: Place) -> str | None:
    return metadata(place).get("created_at")


def metadata(place: Place) -> dict:
    path = place.folder("submission_metadata.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
