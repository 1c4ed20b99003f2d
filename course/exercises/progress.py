"""`course progress`: which checkpoints and tasks have passed, the minutes planned for them, and the predictions."""

import json
from pathlib import Path

from course.exercises.check import progress
from course.exercises.hours import in_hours, minutes
from course.package.cells import claimed_modules
from course.package.passed import passed
from course.paths import CourseError, chapters, module_path, notebook_path
from course.predictions import KEPT, aligned, error, shown
from course.site.chapters import OPTIONAL
from course.states.state import described, is_there


def call_progress() -> int:
    parts = [[f"package: {described()}"], chapter_lines(), task_lines(), prediction_lines()]
    print("\n\n".join("\n".join(lines) for lines in parts))
    return 0


def chapter_lines() -> list[str]:
    """A line for each chapter: whether its checkpoint has passed, its title, and the minutes planned for it."""
    done, planned = passed(), minutes()
    rows = [(chapter, state(chapter, done.get(chapter))) for chapter in chapters()]
    wide = max(len(says) for _, says in rows)
    lines = [
        f"{chapter:4} {says:{wide}}  {title(chapter)}, {in_hours(planned.get(chapter, 0))}"
        + (" ◇" if chapter in OPTIONAL else "")
        for chapter, says in rows
    ]
    mine = [chapter for chapter, _ in rows if chapter in done and is_there(chapter)]
    spent, whole = sum(planned.get(chapter, 0) for chapter in mine), sum(planned.values())
    head = f"{len(mine)} of {len(rows)} checkpoints have passed, {in_hours(spent)} of the {in_hours(whole)} that are planned"
    return [head + ("; ◇ is optional" if OPTIONAL & set(chapters()) else ""), *lines]


def title(chapter: str) -> str:
    """The heading of a chapter's notebook."""
    return title_of(notebook_path(chapter))


def title_of(path: Path) -> str:
    """A notebook's heading without its number; its file's name where it has none."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        first = "".join(cells[0]["source"]).splitlines()[0]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return path.stem
    return first.removeprefix("# ").partition(" · ")[2] or first.removeprefix("# ")


def state(chapter: str, made: dict | None) -> str:
    """What is known of a chapter: whether its checkpoint has passed, by whom it was run, and whether its modules are there."""
    try:
        exported = claimed_modules(notebook_path(chapter))
    except CourseError as problem:
        return str(problem)
    if not is_there(chapter):
        return "–"
    says = f"passed {made.get('when', '')}" if made else "–"
    if made and made.get("executed"):
        says += ", by course run"
    if not all(module_path(module).is_file() for module in exported):
        says += ", a module is missing: checkpoint it again"
    return says


def task_lines() -> list[str]:
    passed = progress()
    lines = [f"{task}  {made['title']}" for task, made in passed.items()]
    minutes = sum(made["minutes"] for made in passed.values())
    head = f"{len(passed)} tasks pass their visible checks, planned for {minutes} minutes"
    return [head, *lines] if passed else ["no task passes yet: `course check 04`, when you have solved one"]


def prediction_lines() -> list[str]:
    try:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        kept = {key: made for key, made in kept.items() if made["guess"] is not None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = {}
    if not kept:
        return ["no prediction yet: chapters ask for them"]
    rows = [["", "your predictions", "guess", "outcome", "error"]]
    for key, made in sorted(kept.items()):
        values = [shown(made.get(what), made.get("unit", "")) for what in ("guess", "outcome")]
        rows.append([key, made["question"], *values, error(made)])
    return aligned(rows)
