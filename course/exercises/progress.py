"""`course progress`: which checkpoints and tasks have passed, the minutes planned for them, and the predictions."""

from pathlib import Path

from course.exercises.check import progress
from course.exercises.hours import in_hours, minutes
from course.files import read_cells, read_records
from course.package.cells import claimed_modules
from course.package.passed import passed
from course.paths import CourseError, module_path, notebook_path
from course.predictions import KEPT, listed
from course.site.chapters import OPTIONAL
from course.states.state import described, is_there


def call_progress() -> str:
    parts = [[f"package: {described()}"], chapter_lines(), task_lines(), prediction_lines()]
    return "\n\n".join("\n".join(lines) for lines in parts)


def chapter_lines() -> list[str]:
    """A line for each chapter: whether its checkpoint has passed, its title, and the minutes planned for it."""
    done, planned = passed(), minutes()
    says = {chapter: state(chapter, done.get(chapter)) for chapter in planned}
    wide = max(map(len, says.values()))
    mine = [chapter for chapter in planned if chapter in done and is_there(chapter)]
    spent, whole = sum(planned[chapter] for chapter in mine), sum(planned.values())
    head = f"{len(mine)} of {len(planned)} checkpoints have passed, {in_hours(spent)} of the {in_hours(whole)} that are planned"
    return [head + ("; ◇ is optional" if OPTIONAL & planned.keys() else "")] + [
        f"{chapter:4} {says[chapter]:{wide}}  {title_of(notebook_path(chapter))}, {in_hours(time)}"
        + (" ◇" if chapter in OPTIONAL else "")
        for chapter, time in planned.items()
    ]


def title_of(path: Path) -> str:
    """A notebook's heading without its number; its file's name where it has none."""
    try:
        first = read_cells(path).cells[0].source.partition("\n")[0].removeprefix("# ")
    except (CourseError, IndexError):
        return path.stem
    return first.partition(" · ")[2] or first


def state(chapter: str, made: dict | None) -> str:
    """What is known of a chapter: whether its checkpoint has passed, by whom it was run, and whether its modules are there."""
    if not is_there(chapter):
        return "–"
    says = f"passed {made.get('when', '')}" if made else "–"
    says += ", by course run" if made and made.get("executed") else ""
    whole = all(module_path(module).is_file() for module in claimed_modules(notebook_path(chapter)))
    return says if whole else f"{says}, a module is missing: checkpoint it again"


def task_lines() -> list[str]:
    passed = progress()
    if not passed:
        return ["no task passes yet: `course check 04`, when you have solved one"]
    minutes = sum(made["minutes"] for made in passed.values())
    head = f"{len(passed)} tasks pass their visible checks, planned for {minutes} minutes"
    return [head, *(f"{task}  {made['title']}" for task, made in passed.items())]


def prediction_lines() -> list[str]:
    kept = {key: made for key, made in sorted(read_records(KEPT).items()) if made.get("guess") is not None}
    if not kept:
        return ["no prediction yet: chapters ask for them"]
    return listed(kept, "your predictions")
