"""The project and the final: pages of Markdown, handed out without the answers that their keys have."""

import re
from pathlib import Path

from course.exercises.key import KEYS, put_key
from course.exercises.sets import BEGIN, END, RELEASED, SOLUTION, WITHOUT
from course.files import write_atomically
from course.paths import ROOT, CourseError, relative

PAPERS = "project", "final"
PAGES = ROOT / "exercises"


def text_of(name: str) -> str:
    path = PAGES / f"{name}.md"
    if not path.is_file():
        raise CourseError(f"there is no {relative(path)}; {WITHOUT}")
    return path.read_text(encoding="utf-8")


def release_paper(name: str, to: Path = RELEASED) -> str:
    """Write the page without answers; say where. CourseError if an answer would be left in it."""
    text = SOLUTION.sub("", text_of(name))
    if BEGIN in text or END in text:
        raise CourseError(f"{name}.md has a {BEGIN} without an {END}, so it is not handed out")
    path = to / f"{name}.md"
    write_atomically(path, re.sub(r"\n{3,}", "\n\n", text).encode())
    return f"{relative(path)} written"


def write_paper_key(name: str, to: Path = KEYS) -> str:
    """Write the page with its answers; say where."""
    text = text_of(name).replace(BEGIN, "**Key**\n").replace(f"{END}\n", "")
    return put_key(to / f"{name}-key.md", text.encode())
