"""How long a sitting takes to read and think about: an estimate, computed from what the notebook holds.

The speeds are assumptions, chosen so that a chapter of 2,400 words, 280 lines of code, 50 cells and five predictions takes
about an hour and a half.
"""

import re
from pathlib import Path

from course.files import read_cells
from course.paths import CourseError, chapters, notebook_path
from course.states.state import state

WORDS = 150  # words of prose read in a minute
LINES = 5  # lines of code read and understood in a minute
CELL = 0.25  # minutes to run a cell and to look at its output
PREDICTION = 2.0  # minutes to think about a prediction
BLANK = 10.0  # minutes to write a function, where the notebooks have blanks
ROUND = 5  # minutes
HEAD = re.compile(r"\n\n\*about [^\n]*\*(?=\n|\Z)")  # the line that says it (course/notebooks/address.py)
UNREAD = re.compile(r"\s*(import |from \S+ import|#\||$)")  # a line that no reader thinks about


def minutes() -> dict[str, int]:
    return {chapter: minutes_of(notebook_path(chapter)) for chapter in chapters()}


def minutes_of(notebook: Path) -> int:
    """The planned minutes of a notebook; 0 if it cannot be read."""
    try:
        cells = read_cells(notebook).cells
    except CourseError:
        return 0
    blanks = sum(len(re.findall(r"^#\| blank", cell.source, re.MULTILINE)) for cell in cells)
    return rounded(planned(cells) + (BLANK * blanks if state() == "blank" else 0))


def planned(cells: list) -> float:
    """The minutes of a notebook's cells, without the time that the machine computes."""
    texts = [HEAD.sub("", cell.source) for cell in cells if cell.cell_type == "markdown"]
    codes = [cell.source for cell in cells if cell.cell_type == "code"]
    codes = [code for code in codes if not code.startswith("#@title")]  # Colab's, which nobody reads
    words = sum(len(text.split()) for text in texts)
    lines = sum(not UNREAD.match(line) for code in codes for line in code.splitlines())
    predictions = sum(len(re.findall(r"^predict\(", code, re.MULTILINE)) for code in codes)
    return words / WORDS + lines / LINES + len(codes) * CELL + predictions * PREDICTION


def rounded(time: float) -> int:
    return max(ROUND, ROUND * round(time / ROUND))


def in_hours(time: float) -> str:
    """Minutes as hours and minutes: 85 is 1 h 25."""
    whole, rest = divmod(round(time), 60)
    return f"{whole} h {rest:02}" if whole else f"{rest} min"
