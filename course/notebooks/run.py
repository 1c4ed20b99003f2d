"""`course run`: execute the notebooks in order, each checkpointing itself, and say what came of it."""

import json
import os
import platform
import sys
import threading
import time
from datetime import date
from importlib.metadata import version

import tqdm

from course.files import notebook_bytes, read_notebook, write_atomically
from course.notebooks.build import clean, execute
from course.notebooks.summary import summary
from course.notebooks.trust import trusted_environment
from course.paths import RUNS, TIMES, CourseError, chapters, notebook_path, relative
from course.states.state import grows

UNKNOWN_SECONDS = 30.0  # for a chapter that nobody has timed yet


def run(chosen: list[str], record: bool = False) -> int:
    """Execute the chosen chapters; executed copies go to runs/, the notebooks themselves stay as they are.

    Raises CourseError at the first failing cell: what was done before it stays done.
    """
    notebooks = {chapter: read_notebook(notebook_path(chapter)) for chapter in chosen}
    expected = expected_seconds()
    env = trusted_environment()
    seconds: dict[str, float] = {}
    with Bar(sum(expected.get(chapter, UNKNOWN_SECONDS) for chapter in chosen)) as bar:
        for chapter, nb in notebooks.items():
            start = time.perf_counter()
            if grows():
                env = trusted_environment()
            goes_on = how_to_go_on(chosen, chapter)
            run_one(chapter, nb, expected.get(chapter, UNKNOWN_SECONDS), bar, env, goes_on)
            seconds[chapter] = round(time.perf_counter() - start, 1)
            bar.chapter_done(notebook_path(chapter).stem, seconds[chapter])
    keep_times(seconds, record)
    print("\n".join(summary(chosen, seconds)))
    return 0


def how_to_go_on(chosen: list[str], chapter: str) -> str:
    """What of these chapters is done, and the command that runs `chapter` and those after it, and no others."""
    at, there = chosen.index(chapter), chapters()
    done, left = ", ".join(chosen[:at]), chosen[at:]
    rest = f"--from {chapter}" if left == there[there.index(chapter) :] else " ".join(left)
    return (f"{done} done; " if done else "") + f"`course run {rest}` goes on"


def run_one(chapter: str, nb, expected: float, bar: "Bar", env: dict, goes_on: str) -> None:
    path = notebook_path(chapter)
    cells = sum(cell.cell_type == "code" for cell in nb.cells)

    def on_cell(cell, cell_index, **_):
        done = sum(c.cell_type == "code" for c in nb.cells[: cell_index + 1])
        bar.where = f"{path.stem} {done}/{cells}"

    bar.begin(f"{path.stem} 0/{cells}", expected)
    try:
        execute(nb, path.name, env, on_cell)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(goes_on) from None
    except CourseError as error:
        remedy = "" if "`course " in str(error).splitlines()[-1] else f"correct {relative(path)}; "
        raise CourseError(f"{error}\n\n{remedy}{goes_on}") from None
    clean(nb)
    write_atomically(RUNS / path.name, notebook_bytes(nb))


class Bar:
    """One progress bar over all notebooks, in expected seconds, with the time it will take in all.

    It moves once a second, since a cell that trains may take minutes. Where nobody watches (a log, CI) it is one line a
    chapter.
    """

    def __init__(self, expected: float):
        style = "{desc} |{bar}| {elapsed}{postfix}"
        self.watched = sys.stdout.isatty() and sys.stderr.isatty()
        self.bar = tqdm.tqdm(total=expected, bar_format=style, dynamic_ncols=True, disable=not self.watched)
        self.expected, self.done, self.now, self.where = expected, 0.0, 0.0, ""
        self.started = self.begun = time.perf_counter()
        self.over = threading.Event()

    def __enter__(self):
        if self.watched:
            threading.Thread(target=self.tick, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.bar.close()

    def tick(self) -> None:
        while not self.over.wait(1):
            self.draw()

    def begin(self, where: str, seconds: float) -> None:
        """A chapter begins, which is expected to take so long."""
        self.where, self.now, self.begun = where, seconds, time.perf_counter()

    def draw(self) -> None:
        """The chapters that are done, and of this one the time that it has taken, as long as it was expected to."""
        clock = time.perf_counter()
        # The machine's own pace replaces the recorded one as the run goes on.
        pace = self.done / (self.begun - self.started) if self.done >= 20 else 1.0
        here = min((clock - self.begun) * pace, self.now)
        late = max((clock - self.begun) - self.now / pace, 0.0)
        whole = (self.expected - self.done) / pace + (self.begun - self.started) + late
        self.bar.n = self.done + here
        self.bar.set_description_str(self.where, refresh=False)
        self.bar.set_postfix_str(f"of about {tqdm.tqdm.format_interval(whole)}")

    def chapter_done(self, name: str, seconds: float) -> None:
        self.done, self.now = self.done + self.now, 0.0
        if not self.watched:
            print(f"{name:20} {seconds:6.1f} s", flush=True)


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
