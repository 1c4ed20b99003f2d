"""`course run`: execute the notebooks in order, each checkpointing itself, and say what came of it."""

import json
import os
import platform
import time
from datetime import date
from importlib.metadata import version

from tqdm import tqdm

from course.files import notebook_bytes, read_notebook, write_atomically
from course.notebooks.build import clean, execute
from course.notebooks.summary import summary
from course.notebooks.trust import trusted_environment
from course.paths import RUNS, TIMES, CourseError, chapters, notebook_path, relative

UNKNOWN_SECONDS = 30.0  # for a chapter that nobody has timed yet


def run(chosen: list[str], record: bool = False) -> int:
    """Execute the chosen chapters; executed copies go to runs/, the notebooks themselves stay as they are.

    Raises CourseError at the first failing cell: what was done before it stays done.
    """
    notebooks = {chapter: read_notebook(notebook_path(chapter)) for chapter in chosen}
    expected = {chapter: UNKNOWN_SECONDS for chapter in chosen} | expected_seconds()
    seconds: dict[str, float] = {}
    total = sum(expected[chapter] for chapter in chosen)
    # One bar over all notebooks, in the seconds that they are expected to take; where nobody watches, one line a chapter.
    with tqdm(total=total, bar_format="{desc} |{bar}| {elapsed}<{remaining}", disable=None) as bar:
        for chapter, nb in notebooks.items():
            start = time.perf_counter()
            run_one(chapter, nb, expected[chapter], bar, how_to_go_on(chosen, chapter))
            seconds[chapter] = round(time.perf_counter() - start, 1)
            if bar.disable:
                print(f"{notebook_path(chapter).stem:20} {seconds[chapter]:6.1f} s", flush=True)
    keep_times(seconds, record)
    print("\n".join(summary(chosen, seconds)))
    return 0


def how_to_go_on(chosen: list[str], chapter: str) -> str:
    """What of these chapters is done, and the command that runs `chapter` and those after it, and no others."""
    at, there = chosen.index(chapter), chapters()
    done, left = ", ".join(chosen[:at]), chosen[at:]
    rest = f"--from {chapter}" if left == there[there.index(chapter) :] else " ".join(left)
    return (f"{done} done; " if done else "") + f"`course run {rest}` goes on"


def run_one(chapter: str, nb, expected: float, bar: tqdm, goes_on: str) -> None:
    path = notebook_path(chapter)
    bar.set_description_str(path.stem)
    try:
        execute(
            nb, path.name, trusted_environment(), on_cell=lambda **_: bar.update(expected / len(nb.cells))
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(goes_on) from None
    except CourseError as error:
        remedy = "" if "`course " in str(error).splitlines()[-1] else f"correct {relative(path)}; "
        raise CourseError(f"{error}\n\n{remedy}{goes_on}") from None
    clean(nb)
    write_atomically(RUNS / path.name, notebook_bytes(nb))


def expected_seconds() -> dict[str, float]:
    """Seconds by chapter: this machine's last run where there is one, else the recorded ones."""
    return kept_seconds(TIMES) | kept_seconds(RUNS / "times.json")


def kept_seconds(path) -> dict[str, float]:
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"]
        return {chapter: float(value) for chapter, value in seconds.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or damaged
        return {}


def keep_times(seconds: dict[str, float], record: bool) -> None:
    path = TIMES if record else RUNS / "times.json"
    measurement = {
        "command": "course run --record" if record else "course run",
        "date": date.today().isoformat(),
        "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "torch": version("torch").split("+")[0],
        "python": platform.python_version(),
        "seconds": dict(sorted((kept_seconds(path) | seconds).items())),
    }
    write_atomically(path, (json.dumps(measurement, indent=1) + "\n").encode())
