"""The project and the final: pages of Markdown, handed out without the answers that their keys have."""

import re
from pathlib import Path

from course.exercises.key import KEYS
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


def questions(name: str) -> str:
    """What is handed out. CourseError if an answer would be left in it."""
    text = SOLUTION.sub("", text_of(name))
    if BEGIN in text or END in text:
        raise CourseError(f"{name}.md has a {BEGIN} without an {END}, so it is not handed out")
    return re.sub(r"\n{3,}", "\n\n", text)


def release_paper(name: str, to: Path = RELEASED) -> str:
    """Write the page without answers; say where."""
    path = to / f"{name}.md"
    write_atomically(path, questions(name).encode())
    return f"{relative(path)} written"


def write_paper_key(name: str, to: Path = KEYS) -> str:
    """Write the page with its answers; say where. CourseError for a folder that students get."""
    if to.resolve().is_relative_to(RELEASED):
        raise CourseError(f"{relative(to)} is handed out to students; name another folder for keys")
    path = to / f"{name}-key.md"
    write_atomically(path, text_of(name).replace(BEGIN, "**Key**\n").replace(f"{END}\n", "").encode())
    return f"{relative(path)} written"
