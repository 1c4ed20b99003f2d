"""pytest's plugin with which several processes share one list of tests: each takes the next file that nobody has taken.

What the chapters' checkpoints run (counted.py) comes last, as far as they have not run it, when the notebooks have ended.
"""

import atexit
import contextlib
import gc
import itertools
import json
import operator
import os
from collections.abc import Iterator
from pathlib import Path

from course.files import write_atomically
from course.testing.counted import left_to_a_checkpoint, passed

CLAIMS = "COURSE_TEST_CLAIMS"  # a folder in which a file stands for each that is taken
BEHIND = "COURSE_TEST_BEHIND"  # set for a process that takes what the others leave of the cores
NICE = 5  # how far it steps back: beside one other it gets a quarter of a core
NOTEBOOKS_ENDED, COUNTED = "notebooks-ended", "counted.txt"  # in it; how many tests the checkpoints have run
LEFT = "left.json"  # which tests are theirs

# Files that one process runs together: they share what takes long to make, or look at all processes of the machine. These
# and the longest single ones come first, so that the processes end at about the same time.
TOGETHER = {
    "grading": "test_grading_",
    "site": ("test_course_site", "test_sheet"),
    "distributed": "test_distributed_",
    "lab": "test_browser_lab",
    "compile": "test_ch11_compile",
    "faults": "test_ch17f_faults",
    "exercises": "test_exercises",
    "machines": "test_repository_machines",
    "tokenizer": "test_ch01_tokenizer",
    "rungs": "test_ch14_rungs",
    "climb": "test_ch14b_command",
}


def group(path: Path) -> str:
    """What is taken at once: a file, or several that belong together."""
    return next((name for name, starts in TOGETHER.items() if path.name.startswith(starts)), path.name)


def in_groups(items: list) -> dict[str, list]:
    """The items of each group, in their order; those of several files first."""
    groups = {name: [] for name in TOGETHER}
    for item in items:
        groups.setdefault(group(item.path), []).append(item)
    return {name: found for name, found in groups.items() if found}


def taken(name: str) -> bool:
    """Whether this process has got the group."""
    try:
        os.close(os.open(Path(os.environ[CLAIMS]) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def mine(items: list) -> Iterator:
    folder = Path(os.environ[CLAIMS])
    left = left_to_checkpoints(items, folder / LEFT)
    groups = in_groups(list(itertools.compress(items, map(operator.not_, left))))
    yield from of_nobody(groups)
    if (folder / NOTEBOOKS_ENDED).exists() and taken("counted"):
        ran, theirs = passed(folder), list(itertools.compress(items, left))
        again = [item for item in theirs if item.nodeid not in ran]
        (folder / COUNTED).write_text(f"{len(theirs) - len(again)}")
        yield from again


def left_to_checkpoints(items: list, known: Path) -> list[bool]:
    """Which items are left to checkpoints; whoever has worked it out writes it down for the rows that come later."""
    if known.exists():
        names = set(json.loads(known.read_text(encoding="utf-8")))
        return [item.nodeid in names for item in items]
    left = list(map(left_to_a_checkpoint, items))
    names = [item.nodeid for item in itertools.compress(items, left)]
    write_atomically(known, json.dumps(names).encode())
    return left


def of_nobody(groups: dict[str, list]) -> Iterator:
    for name, found in groups.items():
        if taken(name):
            yield from found
            step_back()


def step_back() -> None:
    """After its first group: that is grading, where a submission's seconds are those of the clock."""
    if BEHIND in os.environ and hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
        # Linux may share the cores by sessions first, and by `nice` within one
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(f"{NICE}", encoding="ascii")


def pytest_configure(config) -> None:
    gc.disable()  # seven thousand tests are a million objects and no garbage: looking for some takes half of the time
    atexit.register(gc.freeze)  # Python looks again, several times, when it ends


def pytest_collection_finish(session) -> None:
    gc.enable()
    gc.freeze()  # nor is it looked for among them while they run


def pytest_runtestloop(session) -> bool:
    """pytest's own loop, over the items of the groups that this process has got."""
    if session.testsfailed:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    items = mine(session.items)
    item = next(items, None)
    while item:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True
