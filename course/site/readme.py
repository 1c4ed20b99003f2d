"""`course readme`: what README and the site's first page and results count.

Each block between two comments is made here or in course/site/results.py, from the repository as it is.
"""

import json
import re
import textwrap
from pathlib import Path

from course.exercises import table as tasks
from course.exercises.hours import in_hours, minutes
from course.exercises.progress import title_of
from course.exercises.sets import WITHOUT, folders, read
from course.files import diff, write_atomically
from course.notebooks.address import is_published, repository
from course.paths import (
    PACKAGE,
    ROOT,
    TIMES,
    CourseError,
    chapters,
    module_file,
    notebook_path,
    relative,
)
from course.site import pictures, results
from course.site.chapters import OPTIONAL, PARTS, part
from course.states.released import writers

README, INDEX = ROOT / "README.md", ROOT / "site" / "index.md"
BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def readme(write: bool) -> int:
    """Write the blocks of all PAGES, or show what differs; 1 where something does."""
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
    """The text of a page with every block as it has to be now."""

    def block(found: re.Match) -> str:
        made = PAGES[path][found[2]]()
        if path != README:  # it lies beside the pictures, and is narrower than a long command
            made = made.replace('"site/pictures/', '"pictures/').replace(" --prompt", " \\\n    --prompt")
        return f"{found[1]}{made}\n{found[3]}"

    return BLOCK.sub(block, text)


def story() -> str:
    """What the first model writes, and the commands that make it."""
    made = pictures.recorded(pictures.FIRST)
    quoted = textwrap.fill(made["story"]["text"], width=110, initial_indent="> ", subsequent_indent="> ")
    took = round(made["seconds"] / 60)
    time = "about a minute" if took == 1 else f"about {took} minutes"
    return (
        f"{quoted}\n\n"
        f"*Written by a model with {made['parameters'] / 1e6:.1f} million parameters, after {time} of"
        " training on two CPU cores. You can train it before you read anything:*\n\n"
        f"```\ngit clone {repository()} && cd gpt2-course\n"
        "make course ARGS=07      # installs, then runs chapter 07 in about two minutes: it trains the model\n"
        f".venv/bin/{made['story']['command']}\n```\n\n"
        "*Yours may differ in names and numbers. It answers every question whose answer is in its text, and about half of those"
        " that need arithmetic.*"
    )


def loss_picture() -> str:
    return picture("loss", 540, pictures.loss_in_words(pictures.first_run(pictures.recorded(pictures.FIRST))))


def map_picture() -> str:
    from course.figures.setup import MAP  # matplotlib takes a second

    return picture("map", 560, MAP)


def badges() -> str:
    """CI, Colab and Binder, as soon as there is an address at which they are found."""
    if not is_published(repository()):
        return "<!-- badges appear here once there is an address (CONTRIBUTING.md) -->"
    url, name = repository(), repository().removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{name}/blob/main/notebooks/00_setup.ipynb"
    return " ".join(
        (
            f"[![tests]({url}/actions/workflows/test.yml/badge.svg)]({url}/actions/workflows/test.yml)",
            f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})",
            f"[![Binder](https://mybinder.org/badge_logo.svg)](https://mybinder.org/v2/gh/{name}/main)",
        )
    )


def picture(name: str, width: int, alt: str) -> str:
    """A picture for a light page, and one for a dark page."""
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="site/pictures/{name}-dark.png">\n'
        f'<img src="site/pictures/{name}-light.png" width="{width}" alt="{alt}"></picture>'
    )


def package() -> str:
    """How large the core is, and the labs beside it."""
    core, labs = (sorted(folder) for folder in (PACKAGE.glob("[a-z]*.py"), PACKAGE.glob("labs/**/[a-z]*.py")))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in core)
    return (
        f"- **The package `nanogpt/`**: {len(core)} modules with about {round(lines, -2):,} lines, which read GPT-2's weights, train on one core"
        f" or in many\n  processes, and go on after `kill -9`. `nanogpt.labs` has {len(labs)} more: what you have built to study, to measure"
        " or to go further.\n  Each of them was exported by a notebook."
    )


def seconds() -> dict[str, float]:
    return json.loads(TIMES.read_text(encoding="utf-8"))["seconds"]


def exercise_minutes() -> dict[str, int]:
    """The minutes that the tasks of each set state, by chapter."""
    return {made.number: sum(task.minutes for task in made.tasks.values()) for made in map(read, folders())}


def roads() -> str:
    """A row for each part: its sittings on the main road and beside it, and their hours."""
    planned, tasks_of = minutes(), exercise_minutes()
    rows = ["| part | afterwards you can | main road | ◇ optional | exercises |", "|---|---|---|---|---|"]
    for name, (_, can) in PARTS.items():
        inside = part(name, chapters())
        main = [chapter for chapter in inside if chapter not in OPTIONAL]
        beside = [chapter for chapter in inside if chapter in OPTIONAL]
        exercises = hours(sum(tasks_of.get(chapter, 0) for chapter in inside))
        link = f"[{name}]({relative(notebook_path(inside[0]))})"
        cells = [link, can, in_all(main, planned), in_all(beside, planned), exercises]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def in_all(some: list[str], planned: dict[str, int]) -> str:
    """How many sittings these are, and their hours."""
    if not some:
        return "–"
    return f"{len(some)} sitting{'s' if len(some) > 1 else ''}, {hours(sum(planned.get(c, 0) for c in some))}"


def hours(time: float) -> str:
    if 0 < time < 60:
        return f"{time:.0f} min"
    return f"{time / 60:.0f} h" if time else "–"


def asked() -> str:
    """How long the course takes."""
    planned, tasks_of = minutes(), exercise_minutes()
    sets = [read(folder) for folder in folders()]
    main = [chapter for chapter in chapters() if chapter not in OPTIONAL]
    road = sum(planned.get(chapter, 0) for chapter in main) / 60
    return (
        f"About {road:.0f} hours for the {len(main)} sittings of the main road,"
        f" {sum(planned.values()) / 60 - road:.0f} for the {len(planned) - len(main)} optional ones (◇), and"
        f" {sum(tasks_of.values()) / 60:.0f} for the {sum(len(made.tasks) for made in sets)} exercises. The hours of a"
        f" sitting are an estimate\nfrom its words, code, cells and predictions. Running everything takes"
        f" {sum(seconds().values()) / 60:.0f} minutes on two CPU cores. There are"
        f" [shorter ways](exercises/TASKS.md#three-syllabi): a weekend\nof {syllabus('a weekend', sets)} hours takes you to"
        f" stories of your own model, three weeks of {syllabus('three weeks', sets)} hours to a GPT that you have trained and"
        " evaluated."
    )


def syllabus(name: str, sets: list) -> int:
    line = next(line for line in tasks.syllabi(sets, minutes()).splitlines() if line.startswith(f"| {name} "))
    return round(sum(float(cell) for cell in line.strip("| ").split("|")[-2:]))


def sittings() -> str:
    """A row for each sitting: title, hours to read it, minutes of its exercises, modules it writes, time to run."""
    planned, tasks_of, ran = minutes(), exercise_minutes(), seconds()
    rows = ["| | sitting | takes | exercises | writes | runs in |", "|---|---|---|---|---|---|"]
    for chapter in chapters():
        mark = " ◇" if chapter in OPTIONAL else ""
        files = " ".join(f"`{module_file(m).removeprefix('nanogpt/')}`" for m in written(chapter)) or "–"
        name = f"[{title_of(notebook_path(chapter))}]({relative(notebook_path(chapter))})"
        time = f"{ran[chapter]:.0f} s" if chapter in ran else "?"
        tasks_time = in_hours(tasks_of[chapter]) if chapter in tasks_of else "–"
        cells = [f"{chapter}{mark}", name, in_hours(planned.get(chapter, 0)), tasks_time, files, time]
        rows.append(f"| {' | '.join(cells)} |")
    summary = f"All {len(chapters())} sittings: how long each takes, what it writes, and how long it runs"
    return "\n".join([f"<details><summary>{summary}</summary>\n", *rows, "</details>"])


def written(chapter: str) -> list[str]:
    """The modules that a chapter begins; of one that begins none in the core, those of the core that it adds to as well."""
    exports = [module for module, by in writers().items() if chapter in by]
    begun = [module for module in exports if writers()[module][0] == chapter]
    adds = [module for module in exports if "." not in module]
    return begun if any("." not in module for module in begun) else [*adds, *begun] or exports


def staircases() -> str:
    """The CPU's stairs and the H100's, side by side where there is room, and what they show."""
    steps, gpu = pictures.stairs("staircase"), pictures.stairs("staircase-h100")
    slower = sum(step["slower"] for step in steps)
    nothing = sum(step["says"].startswith("not measurable") for step in steps)
    run = pictures.recorded(pictures.H100)
    first, last = run["rungs"][0]["ms"], run["rungs"][-1]["ms"]
    faster = pictures.in_all(gpu).removesuffix(" ×")
    unknown = [step["name"] for step in steps if step["disturbed"]]
    disturbance = ""
    if unknown:
        disturbance = (
            f" The pairs of {' and '.join(unknown)} disagree, so their gains are given as intervals."
        )
    drawn = "\n".join(picture(name, 400, pictures.in_words(name)) for name in pictures.STAIRS)
    return (
        f"{drawn}\n\n"
        "*Each change to the program is predicted from bytes and FLOPs before it is measured (chapter 14). On an H100 such"
        f" changes make a step {faster} times as fast, from {first:.0f} to {last:.0f} ms; the forecast, made before any of"
        f" this code had run on a GPU, was {gpu[0]['predicted_ms']} and {gpu[-1]['predicted_ms']} ms. On the CPU (two cores of an AMD"
        f" EPYC) {in_letters(slower)} of them made the step slower and {in_letters(nothing)} changed nothing measurable."
        f"{disturbance} `python -m nanogpt ladder` measures yours.*"
    )


def in_letters(number: int) -> str:
    return ("none", "one", "two", "three", "four")[number] if number < 5 else str(number)


BLOCKS = {
    "story": story,
    "badges": badges,
    "loss": loss_picture,
    "map": map_picture,
    "staircase": staircases,
    "package": package,
    "asked": asked,
    "roads": roads,
    "sittings": sittings,
}
PAGES = {README: BLOCKS, INDEX: BLOCKS, results.RESULTS: {"loss": loss_picture, **results.BLOCKS}}
