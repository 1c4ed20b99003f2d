"""`course readme`: what README and pages of the site list and count.

Each block between two comments is made here or in course/site/results.py, from the repository as it is.
"""

import re
from pathlib import Path

from course.exercises.hours import in_hours, minutes
from course.exercises.progress import title_of
from course.exercises.sets import WITHOUT, folders, read
from course.files import diff, write_atomically
from course.paths import ROOT, TIMES, CourseError, chapters, module_file, notebook_path, relative
from course.site import pictures, results
from course.site.chapters import OPTIONAL, PARTS, part
from course.site.pictures import recorded
from course.site.results import table
from course.states.released import writers

README = ROOT / "README.md"
PAGES = [README, *(ROOT / "site" / name for name in ("index.md", "keys.md", "results.md"))]
BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def readme(write: bool) -> int:
    """Write the blocks of all pages, or show what differs; 1 where something does."""
    if not folders():
        raise CourseError(f"the hours of exercises cannot be counted; {WITHOUT}")
    changed = 0
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = filled(old, path)
        if old == new:
            print(f"{relative(path)} agrees with the repository")
        elif write:
            write_atomically(path, new.encode())
            print(f"{relative(path)} written")
        else:
            changed = 1
            print(diff(old, new, relative(path), "as the repository is"))
    return changed


def filled(text: str, path: Path) -> str:
    def block(found: re.Match) -> str:
        made = BLOCKS[found[2]]()
        if path != README:  # it lies beside the pictures
            made = made.replace('"site/pictures/', '"pictures/')
        return f"{found[1]}{made}\n{found[3]}"

    return BLOCK.sub(block, text)


def loss() -> str:
    return picture("loss", 540, pictures.loss_in_words(pictures.first_run(recorded(pictures.FIRST))))


def staircase() -> str:
    """The CPU's stairs and the H100's, side by side where there is room."""
    return "\n".join(picture(name, 400, pictures.in_words(name)) for name in pictures.STAIRS)


def picture(name: str, width: int, alt: str) -> str:
    """A picture for a light page, and one for a dark page."""
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="site/pictures/{name}-dark.png">\n'
        f'<img src="site/pictures/{name}-light.png" width="{width}" alt="{alt}"></picture>'
    )


def exercise_minutes() -> dict[str, int]:
    return {made.number: sum(task.minutes for task in made.tasks.values()) for made in map(read, folders())}


def roads() -> str:
    """A row for each part, and one for all of them: sittings on the main road and beside it, and their hours."""
    planned, tasks = minutes(), exercise_minutes()
    parts = [
        (f"[{name}]({relative(notebook_path(first))})", can, part(name, chapters()))
        for name, (first, can) in PARTS.items()
    ]
    rows = []
    for name, can, inside in [*parts, ("all", "", chapters())]:
        road, beside = [c for c in inside if c not in OPTIONAL], [c for c in inside if c in OPTIONAL]
        exercises = f"{sum(tasks.get(c, 0) for c in inside) / 60:.0f} h"
        rows.append((name, can, counted(road, planned), counted(beside, planned), exercises))
    return table("part | afterwards you can | main road | ◇ optional | exercises", rows, "---")


def counted(some: list[str], planned: dict[str, int]) -> str:
    return f"{len(some)} sittings, {sum(planned.get(c, 0) for c in some) / 60:.0f} h" if some else "–"


def sittings() -> str:
    """A row for each sitting: title, hours to read it, minutes of its exercises, modules it begins (or changes, if it begins none), time to run."""
    planned, tasks = minutes(), exercise_minutes()
    ran = recorded(TIMES)["seconds"]
    rows = []
    for chapter in chapters():
        mark = " ◇" if chapter in OPTIONAL else ""
        name = f"[{title_of(notebook_path(chapter))}]({relative(notebook_path(chapter))})"
        times = in_hours(planned.get(chapter, 0)), in_hours(tasks[chapter]) if chapter in tasks else "–"
        exported = [module for module, by in writers().items() if chapter in by]
        begun = [module for module in exported if writers()[module][0] == chapter] or exported
        files = " ".join(f"`{module_file(module).removeprefix('nanogpt/')}`" for module in begun)
        rows.append((f"{chapter}{mark}", name, *times, files or "–", f"{ran.get(chapter, 0):.0f} s"))
    summary = f"All {len(rows)} sittings: how long each takes, what it writes, and how long it runs on two CPU cores, {sum(ran.values()) / 60:.0f} minutes in all"
    made = table(" | sitting | takes | exercises | writes | runs in", rows, "---")
    return f"<details><summary>{summary}</summary>\n\n{made}\n</details>"


def keys() -> str:
    """Every key of a run's configuration, with its default and its meaning, as `python -m nanogpt train --help` has them."""
    from nanogpt.config import Config, key_lines  # here: a course without the package has this command, too

    rows = []
    for line in key_lines(Config):
        setting, _, meaning = line.strip().partition("  ")
        key, _, default = setting.partition("=")
        rows.append((f"`{key}`", f"`{default}`", meaning.replace("|", "&#124;")))
    return table("key | default | meaning", rows, "---")


BLOCKS = {block.__name__: block for block in (*results.BLOCKS, loss, staircase, roads, sittings, keys)}
