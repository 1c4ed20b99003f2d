"""Widgets: every chapter's answers every value of every knob, with a picture in words or one sentence."""

import re
import warnings
from functools import cache

import pytest

from course.files import read_cells
from course.paths import ROOT, SOURCES, chapters, notebook_path

ipywidgets = pytest.importorskip("ipywidgets")

from chapter_widgets import WIDGETS  # noqa: E402
from widgets import knobs_of, moved  # noqa: E402

PNG = re.compile(r'src="data:image/png;base64,([^"]+)"')
CALLED = re.compile(r"\b\w+_widget\(")


def alternative(said: str) -> str:
    return re.search(r'<img alt="([^"]*)"', said)[1]


def widget_cells(cells) -> list[int]:
    """Where in a notebook cells make a widget."""
    return [i for i, cell in enumerate(cells) if cell.cell_type == "code" and CALLED.search(cell.source)]


def test_every_chapters_widget_is_on_the_list_and_made_by_the_one_function():
    every = {chapter: read_cells(notebook_path(chapter)).cells for chapter in chapters()}
    assert {chapter for chapter, cells in every.items() if widget_cells(cells)} == set(WIDGETS)
    files = [*(ROOT / "course").rglob("*.py"), *SOURCES.glob("*.py")]
    makers = [path.name for path in files if "import ipywidgets" in path.read_text(encoding="utf-8")]
    assert makers == ["widgets.py"]


@cache
def walk(chapter: str) -> tuple:
    """A chapter's widget, and what it answered to every value; a warning would land in the student's notebook."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        box = WIDGETS[chapter]()
        return box, list(moved(box))


@pytest.mark.parametrize("chapter", WIDGETS)
class TestWidget:
    def test_answers_every_value_with_a_picture_in_words_or_one_sentence(self, chapter):
        for name, value, said, _ in walk(chapter)[1]:
            assert not re.search(r"\b[A-Z]\w*(Error|Warning)\b", said), f"{name}={value}: {said}"
            words = alternative(said) if "<img" in said else re.sub("<[^>]*>", "", said)
            assert len(words.split()) >= 4 and "None" not in words, f"{name}={value}: {words}"

    def test_every_knob_changes_what_is_seen_and_what_is_said(self, chapter):
        box, answers = walk(chapter)
        for knob in knobs_of(box):
            seen = [said for name, _, said, _ in answers if name == knob.description]
            assert len(set(seen)) > 1, f"{knob.description} changes no picture"
            assert len({PNG.sub("", said) for said in seen}) > 1, f"{knob.description} changes no words"
