"""The table of all tasks, and three syllabi whose minutes are summed from the sets. exercises/TASKS.md is made of both."""

from course.exercises.checks import CheckOfCheck
from course.exercises.hours import minutes
from course.exercises.sets import EXERCISES, WITHOUT, ExerciseSet, Task, folders, read
from course.files import write_atomically
from course.paths import CourseError, relative, source_chapters

TABLE = EXERCISES / "TASKS.md"

# Chapters, and the least importance of the tasks that belong to it.
SYLLABI = {
    "a weekend": ("00 01 03 04 05 07 08", 5),
    "three weeks": ("00 01 02 03 04 05 06 07 08 09 10 12 15 17 18", 4),
    "a quarter": ("", 1),
}
# The quarter, week by week. Letters belong to their number: 17 is 17 and 17b to 17f.
WEEKS = [
    "00 01", "02 03", "04", "05 06", "07 08", "09 10", "11 12", "13 14", "15 16", "17", "18 19", "20", "21", "22",
    "23 24 25",
]  # fmt: skip
COSTS = ["tasks", "points", "hours of chapters", "hours of tasks"]


def list_tasks(write: bool) -> str:
    """All tasks; write: make exercises/TASKS.md. A class's copy has that page, and no sets to make it from."""
    if not write:
        return TABLE.read_text(encoding="utf-8").strip()
    sets = [read(folder) for folder in folders()]
    if not sets:
        raise CourseError(f"{relative(TABLE)} is not made here; {WITHOUT}")
    write_atomically(TABLE, page(sets).encode())
    return f"{relative(TABLE)} written"


def page(sets: list[ExerciseSet]) -> str:
    planned = minutes()
    return (
        "# All tasks\n\nThree ways through the course come first, then every task. Difficulty and importance go from 1 to 5."
        " The last column\ncounts the wrong solutions that the checks are known to recognise.\n\n## Three syllabi\n\n"
        "The hours of a chapter are an estimate, from its words, lines of code, cells and predictions; those of the tasks are what\n"
        f"each task states.\n\n{syllabi(sets, planned)}\n\n### The quarter, week by week\n\n{weeks(sets, planned)}\n\n"
        f"## Every task\n\n{table(sets)}\n"
    )


def syllabi(sets: list[ExerciseSet], planned: dict[str, int]) -> str:
    rows, parts = [["syllabus", "chapters", *COSTS]], []
    for name, (numbers, importance) in SYLLABI.items():
        wanted = [chapter for chapter in source_chapters() if not numbers or chapter in numbers.split()]
        chosen = tasks_of(wanted, sets, importance)
        rows.append([name, str(len(wanted)), *costs(wanted, chosen, planned)])
        tasks = ", ".join(task.id for _, task in chosen)
        which = f"chapters {', '.join(wanted)}; tasks {tasks}" if numbers else "every chapter and every task"
        parts.append(f"**{name}**: {which}.")
    return "\n\n".join([aligned(rows), *parts])


def weeks(sets: list[ExerciseSet], planned: dict[str, int]) -> str:
    """What a quarter asks of a student, week by week: sittings, tasks and hours."""
    rows = [["week", "chapters", *COSTS]]
    for week, numbers in enumerate(WEEKS, 1):
        sittings = [chapter for chapter in source_chapters() if chapter[:2] in numbers.split()]
        rows.append([str(week), " ".join(sittings), *costs(sittings, tasks_of(sittings, sets), planned)])
    return aligned(rows)


def tasks_of(
    chapters: list[str], sets: list[ExerciseSet], importance: int = 1
) -> list[tuple[ExerciseSet, Task]]:
    tasks = [(made, task) for made in sets if made.number in chapters for task in made.tasks.values()]
    return [(made, task) for made, task in tasks if task.importance >= importance]


def costs(sittings: list[str], chosen: list[tuple[ExerciseSet, Task]], planned: dict[str, int]) -> list[str]:
    points = sum(made.points(task.id) for made, task in chosen)
    reading = sum(planned.get(sitting, 0) for sitting in sittings)
    working = sum(task.minutes for _, task in chosen)
    return [str(len(chosen)), f"{points:g}", f"{reading / 60:.1f}", f"{working / 60:.1f}"]


def table(sets: list[ExerciseSet]) -> str:
    heads = ["task", "title", "kind", "difficulty", "importance", "minutes", "points", "wrong ones caught"]
    rows = [row(made, task) for made in sets for task in made.tasks.values()]
    totals = [f"{sum(float(row[i]) for row in rows if row[i] != '–'):g}" for i in (5, 6, 7)]
    return aligned([heads, *rows, ["", f"{len(rows)} tasks", "", "", "", *totals]])


def row(made: ExerciseSet, task: Task) -> list[str]:
    caught = wrong_ones(made, task.id) or ("–" if task.id in made.manual else 0)
    numbers = [task.difficulty, task.importance, task.minutes, f"{made.points(task.id):g}", caught]
    return [task.id, task.title, task.kind, *map(str, numbers)]


def wrong_ones(made: ExerciseSet, task: str) -> int:
    """How many wrong implementations of a task are known, and caught: tests/repository/test_exercises.py proves it of each."""
    of_checks = [len(c.wrong) for c in made.checks if c.task == task and isinstance(c, CheckOfCheck)]
    return sum(of_checks) + sum(wrong.task == task for wrong in made.wrong)


def aligned(rows: list[list[str]]) -> str:
    """A Markdown table that reads well in a terminal too."""
    wide = [max(map(len, column)) for column in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, wide)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in wide) + "|")
    return "\n".join(lines)
