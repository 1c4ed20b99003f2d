"""A class of twenty: notebooks as students hand them in, and what each is due."""

import json
from pathlib import Path

from course.exercises.sets import ExerciseSet

LATE = ("nina", "otto")


def submissions(made: ExerciseSet, released: Path, folder: Path) -> dict[str, str]:
    """Write twenty files, named as an LMS would; what is due to each student, in a word."""
    nb = json.loads(released.read_text(encoding="utf-8"))
    tasks = [task for task in made.solutions if task != "student"]
    right, first = made.solutions, tasks[0]
    wrong = made.wrong
    by_name: dict[str, tuple[str, dict]] = {
        name: ("full", right) for name in ("ann", "ben", "cem", "dana", "nina")
    }
    by_name["eva"] = (
        "full",
        right | {first: f"import sys\nprint('a warning', file=sys.stderr)\n{right[first]}"},
    )
    for name, count in (("finn", 1), ("gina", 2), ("otto", 1)):
        by_name[name] = "part", made.stubs | {task: right[task] for task in tasks[:count]}
    for i, name in enumerate(("hugo", "ines", "jan")):
        one = wrong[i * len(wrong) // 3]
        by_name[name] = "part", right | {one.task: one.solution(right[one.task])}
    by_name["kim"] = "none", made.stubs
    by_name["lea"] = "part", right | {first: "def broken(:\n    pass"}
    by_name["max"] = "part", right | {tasks[-1]: "import os\nos._exit(0)"}
    by_name["pia"] = "part", right | {tasks[-1]: "while True:\n    pass"}
    written = LONG_WAY
    for name in ("quin", "rosa"):  # the same idea under other names
        text = written if name == "quin" else written.replace("alpha", "erste").replace("beta", "zweite")
        by_name[name] = "part", right | {tasks[1]: text}
    for name, (_, solutions) in by_name.items():
        day = "2026-11-22T08-00" if name in LATE else "2026-11-20T18-30"
        write(folder / f"{name}_{day}.ipynb", nb, solutions, name)
    twice = write(folder / "sven_2026-11-20T18-30.ipynb", nb, right, "sven")
    twice["cells"].append(next(c for c in twice["cells"] if c.get("id") == first))
    (folder / "sven_2026-11-20T18-30.ipynb").write_text(json.dumps(twice), encoding="utf-8")
    (folder / "tara_2026-11-20T18-30.ipynb").write_text("%PDF-1.4 not a notebook", encoding="utf-8")
    return {name: due for name, (due, _) in by_name.items()} | {"sven": "part", "tara": "invalid"}


LONG_WAY = """\
def of_the_task(*arguments):
    alpha, beta = [], 0
    for alpha_one in arguments:
        beta = beta + 1
        if beta % 2 == 0:
            alpha.append((beta, alpha_one))
        else:
            alpha.insert(0, (alpha_one, beta))
    return alpha, beta
"""


def write(path: Path, nb: dict, solutions: dict[str, str], student: str) -> dict:
    """The released notebook with these solutions in it, saved by the student."""
    nb = json.loads(json.dumps(nb))
    for cell in nb["cells"]:
        if cell.get("id") in solutions:
            cell["source"] = solutions[cell["id"]].splitlines(keepends=True)
        if cell.get("id") == "student":
            cell["source"] = [f'STUDENT = "{student}"']
        if cell.get("metadata", {}).get("nbgrader", {}).get("grade") and cell["cell_type"] == "markdown":
            cell["source"] = [f"An answer of {student}: <b>because</b>."]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nb), encoding="utf-8")
    return nb
