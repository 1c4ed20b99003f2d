"""Run by `course check` as a script of its own: a notebook's given, solution and check cells, in order, in one namespace.

    python try_tasks.py SECONDS < CELLS.json

CELLS.json: [[grade_id, source, what its task forbids], ...]. What is wrong with each is a line of JSON in the output; what the
cells print goes nowhere. A cell that takes more than SECONDS ends this process, and Python says "Timeout" in the output.
"""

import faulthandler
import json
import os
import sys
import traceback

from course.exercises.cells import new_names, run_cell
from course.grade.without import without


def main(seconds: float) -> None:
    cells = json.load(sys.stdin.buffer)
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    if hasattr(os, "register_at_fork"):  # whoever a cell forks is not waited for either
        os.register_at_fork(after_in_child=told.close)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    names = new_names()
    for name, source, forbids in cells:
        faulthandler.dump_traceback_later(seconds, exit=True, file=told)
        said = said_of(name, source, names, forbids)
        faulthandler.cancel_dump_traceback_later()
        told.write(json.dumps(said) + "\n")
        told.flush()
    os._exit(0)  # no thread of theirs is waited for


def said_of(name: str, source: str, names: dict, forbids=()) -> str:
    """Run a cell: "" if it runs to its end, else what is wrong, in one line."""
    try:
        with without(name.removesuffix("-check"), forbids, names):
            run_cell(name, source, names)
    except SyntaxError as error:
        return f"{error.msg}, in line {error.lineno} of its cell: {(error.text or '').strip()}"
    except BaseException as error:  # sys.exit() too
        return describe(error, name)
    return ""


def describe(error: BaseException, name: str) -> str:
    """A check's own message; of an error the line of the student's code in which it came up."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<")]
    places = [f.filename[1:-1] for f in frames]
    message = " ".join(str(error).split())
    if isinstance(error, AssertionError) and name.endswith("-check") and places[-1:] == [name]:
        return message or f"this does not hold: {frames[-1].line}"
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if not frames:
        return what
    theirs = [i for i, place in enumerate(places) if not place.endswith("-check")]
    at = theirs[-1] if theirs else -1
    place = f"the cell {places[at]}" if theirs else "the check"
    return f"{what}, in line {frames[at].lineno} of {place}: {frames[at].line}"


if __name__ == "__main__":
    main(float(sys.argv[1]))
