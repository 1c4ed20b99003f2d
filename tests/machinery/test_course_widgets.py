"""Widgets: every chapter's answers every value of every knob, with a picture in words or one sentence."""

import base64
import re
import warnings
from functools import cache

import pytest
from widgets import shown

from course.figures.widgets import axes, explorer
from course.files import read_cells
from course.notebooks.build import WIDGET
from course.paths import ROOT, SOURCES, chapters, notebook_path

ipywidgets = pytest.importorskip("ipywidgets")

from chapter_widgets import WIDGETS  # noqa: E402
from widgets import knobs_of, moved  # noqa: E402

PNG = re.compile(r'src="data:image/png;base64,([^"]+)"')
CALLED = re.compile(r"\b\w+_widget\(")


def bars(its_height):
    ax = axes(2)
    ax.bar(["a", "b"], [1, its_height])
    return ax, f"b is {its_height} high & a is 1"


def picture(box) -> bytes:
    return base64.b64decode(PNG.search(shown(box))[1])


def alternative(said: str) -> str:
    return re.search(r'<img alt="([^"]*)"', said)[1]


def test_a_value_that_cannot_work_says_so_where_the_picture_was_and_a_fault_its_name():
    def draw(height):
        if height < 2:
            raise ValueError("1 < 2: too low")
        return bars(height) if height < 5 else {}[height]

    box = explorer(draw, height=(1, 1, 5))
    (knob,) = knobs_of(box)
    assert "1 &lt; 2: too low" in shown(box) and "<img" not in shown(box)
    knob.value = 2
    assert picture(box)
    knob.value = 5
    assert "KeyError: 5" in shown(box), "a widget that stands still hides its fault"


def test_without_a_kernel_the_first_picture_stands_in_the_place_of_the_widget():
    box = explorer(bars, its_height=(2, 1, 5))
    data, metadata = box._repr_mimebundle_()
    knobs_of(box)[0].value = 5
    assert WIDGET in data and base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == data["text/plain"] == "b is 2 high & a is 1"


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
