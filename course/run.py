"""`course run`: execute the notebooks in order, each checkpointing itself, and say what came of it."""

import json
import os
import platform
import time
from datetime import date
from importlib.metadata import version

import tqdm

from course.build import clean, execute
from course.doctor import trusted_environment
from course.files import notebook_bytes, read_notebook, write_atomically
from course.paths import RUNS, TIMES, CourseError, notebook_path, relative
from course.summary import summary

UNKNOWN_SECONDS = 30.0  # for a chapter that nobody has timed yet


def run(chosen: list[str], record: bool = False) -> int:
    """Execute the chosen chapters; executed copies go to runs/, the notebooks themselves stay as they are.

    Raises CourseError at the first failing cell: what was done before it stays done.
    """
    if not chosen:
        raise CourseError("no chapters in that range; `course run --from 02 --to 05` takes two-digit numbers")
    notebooks = {chapter: read_notebook(notebook_path(chapter)) for chapter in chosen}
    expected = expected_seconds()
    bar = Bar(sum(expected.get(chapter, UNKNOWN_SECONDS) for chapter in chosen))
    env = trusted_environment()
    seconds = {}
    with bar:
        for chapter, nb in notebooks.items():
            start = time.perf_counter()
            run_one(chapter, nb, expected.get(chapter, UNKNOWN_SECONDS), bar, env)
            seconds[chapter] = round(time.perf_counter() - start, 1)
    keep_times(seconds, record)
    print("\n".join(summary(chosen, seconds)))
    return 0


def run_one(chapter: str, nb, expected: float, bar: "Bar", env: dict) -> None:
    path = notebook_path(chapter)
    cells = sum(cell.cell_type == "code" for cell in nb.cells)

    def on_cell(cell, cell_index, **_):
        done = sum(c.cell_type == "code" for c in nb.cells[: cell_index + 1])
        bar.advance(f"{path.stem} {done}/{cells}", expected / cells)

    bar.advance(f"{path.stem} 0/{cells}", 0)
    try:
        execute(nb, path.name, env, on_cell)
    except CourseError as error:
        raise CourseError(
            f"{error}\n\nchapters before {chapter} are done; mend {relative(path)}, then `course run --from {chapter}` goes on"
        ) from None
    clean(nb)
    write_atomically(RUNS / path.name, notebook_bytes(nb))


class Bar:
    """One progress bar over all notebooks and cells, in expected seconds, with the time it will take in all."""

    def __init__(self, expected: float):
        style = "{desc} |{bar}| {elapsed}{postfix}"
        self.bar = tqdm.tqdm(total=expected, bar_format=style, dynamic_ncols=True)
        self.started = time.perf_counter()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()

    def advance(self, where: str, seconds: float) -> None:
        self.bar.update(min(seconds, self.bar.total - self.bar.n))
        elapsed = time.perf_counter() - self.started
        # The machine's own pace replaces the recorded one as the run goes on.
        whole = self.bar.total if self.bar.n < 20 else elapsed * self.bar.total / self.bar.n
        self.bar.set_description_str(where, refresh=False)
        self.bar.set_postfix_str(f"of about {tqdm.tqdm.format_interval(whole)}")


def expected_seconds() -> dict[str, float]:
    """Seconds by chapter: this machine's last run where there is one, else the recorded ones."""
    seconds: dict[str, float] = {}
    for path in (TIMES, RUNS / "times.json"):
        if path.exists():
            seconds |= json.loads(path.read_text(encoding="utf-8"))["seconds"]
    return seconds


def keep_times(seconds: dict[str, float], record: bool) -> None:
    path = TIMES if record else RUNS / "times.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["seconds"] if path.exists() else {}
    measurement = {
        "command": "course run --record" if record else "course run",
        "date": date.today().isoformat(),
        "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "torch": version("torch").split("+")[0],
        "python": platform.python_version(),
        "seconds": dict(sorted((kept | seconds).items())),
    }
    write_atomically(path, (json.dumps(measurement, indent=1) + "\n").encode())
