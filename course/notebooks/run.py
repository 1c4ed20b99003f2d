"""`course run`: execute the notebooks in order, each checkpointing itself, and say what came of it."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version

from tqdm import tqdm

from course.files import json_bytes, notebook_bytes, read_notebook, write_atomically
from course.notebooks.build import clean, execute
from course.notebooks.trust import trusted_environment
from course.package.remedies import remedy
from course.paths import BUILT, ROOT, RUNS, TIMES, CourseError, chapters, module_path, notebook_path, relative

# As on README's first screen.
SAMPLE = shlex.split(
    '-m nanogpt sample --checkpoint data/built/model --prompt "One sunny day," --temperature 0.5'
)


def run(chosen: list[str], record: bool = False) -> None:
    """Execute the chosen chapters; copies go to runs/, the notebooks stay as they are. CourseError at the first cell that fails."""
    notebooks = {chapter: read_notebook(notebook_path(chapter)) for chapter in chosen}
    seconds: dict[str, float] = {}
    cells = sum(len(nb.cells) for nb in notebooks.values())
    # One bar over the cells of all notebooks; where nobody watches, one line a chapter.
    with tqdm(total=cells, bar_format="{desc} |{bar}| {elapsed}", disable=None) as bar:
        for chapter, nb in notebooks.items():
            bar.set_description_str(notebook_path(chapter).stem)
            start = time.perf_counter()
            run_one(chapter, nb, bar, how_to_go_on(chosen, chapter))
            seconds[chapter] = round(time.perf_counter() - start, 1)
            if bar.disable:
                print(f"{notebook_path(chapter).stem:20} {seconds[chapter]:6.1f} s", flush=True)
    if record:
        keep_times(seconds)
    said = f"{len(chosen)} chapter{'s' * (len(chosen) != 1)} in {sum(seconds.values()):.0f} s."
    print(f"\n{said} The executed notebooks are in {relative(RUNS)}/; `make lab` opens the course.")
    if (BUILT / "model/train.json").exists() and module_path("cli").is_file():
        print("A story by your model, as `python -m nanogpt sample` writes it:\n", flush=True)
        subprocess.run([sys.executable, *SAMPLE], cwd=ROOT)


def how_to_go_on(chosen: list[str], chapter: str) -> str:
    """What of these chapters is done, and the command that runs `chapter` and those after it, and no others."""
    at, there = chosen.index(chapter), chapters()
    done, left = ", ".join(chosen[:at]), chosen[at:]
    rest = f"--from {chapter}" if left == there[there.index(chapter) :] else " ".join(left)
    return (f"{done} done; " if done else "") + f"`course run {rest}` goes on"


def run_one(chapter: str, nb, bar: tqdm, goes_on: str) -> None:
    path = notebook_path(chapter)
    try:
        execute(nb, path.name, trusted_environment(), on_cell=lambda **_: bar.update())
    except KeyboardInterrupt:
        raise KeyboardInterrupt(goes_on) from None
    except CourseError as error:
        correct = "" if remedy(str(error)) else f"correct {relative(path)}; "
        raise CourseError(f"{error}\n\n{correct}{goes_on}") from None
    clean(nb)
    write_atomically(RUNS / path.name, notebook_bytes(nb))


def keep_times(seconds: dict[str, float]) -> None:
    """Write down this course's measured times, those of other chapters as they were."""
    known = json.loads(TIMES.read_text(encoding="utf-8"))["seconds"] if TIMES.exists() else {}
    measurement = {
        "command": "course run --record",
        "date": date.today().isoformat(),
        "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "torch": version("torch").split("+")[0],
        "python": platform.python_version(),
        "seconds": dict(sorted((known | seconds).items())),
    }
    write_atomically(TIMES, json_bytes(measurement))
