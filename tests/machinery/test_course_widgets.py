"""Widgets: every chapter's, in one look, quick, by keyboard and in words, and with a picture where no kernel runs."""

import base64
import re
import warnings
from functools import cache
from statistics import median

import matplotlib.pyplot as plt
import pytest

from course.figures import widgets
from course.figures.widgets import LABEL, axes, explorer
from course.files import read_cells, read_notebook
from course.notebooks.build import WIDGET
from course.paths import ROOT, SOURCES, chapters, notebook_path

ipywidgets = pytest.importorskip("ipywidgets")

from chapter_widgets import WIDGETS  # noqa: E402
from widgets import empty_picture, knobs_of, moved, shown  # noqa: E402

PNG = re.compile(r'src="data:image/png;base64,([^"]+)"')
CALLED = re.compile(r"\b\w+_widget\(")
QUICK = 6  # times what axes with nothing in them take; those take about 25 ms on a core that has nothing else to do


def bars(its_height):
    ax = axes(2)
    ax.bar(["a", "b"], [1, its_height])
    return ax, f"b is {its_height} high & a is 1"


def picture(box) -> bytes:
    return base64.b64decode(PNG.search(shown(box))[1])


def alternative(said: str) -> str:
    return re.search(r'<img alt="([^"]*)"', said)[1]


def test_picture_and_words_follow_the_knob_that_is_described_by_its_name():
    box = explorer(bars, its_height=(1, 1, 5))
    assert not plt.get_fignums(), "a cell that ends shows and closes pyplot's figures, also one half drawn"
    (knob,), first = knobs_of(box), picture(box)
    assert knob.description == "its height" and first.startswith(b"\x89PNG")
    assert alternative(shown(box)) == "b is 1 high &amp; a is 1"
    knob.value = 5
    assert picture(box) != first and alternative(shown(box)).startswith("b is 5 high")
    knob.value = 1
    assert picture(box) == first


def test_a_knob_is_what_its_values_say():
    knobs = {"a": (1, 0, 9), "b": (0.5, 0.0, 1.0, 0.1), "c": (8, [1, 8]), "d": "x", "e": "x\ny"}
    made = knobs_of(explorer(lambda **values: str(values), **knobs))
    kinds = ["IntSlider", "FloatSlider", "Dropdown", "Text", "Textarea"]
    assert [type(knob).__name__ for knob in made] == kinds
    assert [knob.value for knob in made] == [1, 0.5, 8, "x", "x\ny"]


def test_a_text_is_seen_whole():
    """Chapter 08's prompt is a story's beginning: a field of one line showed its first third."""
    long = "who has how many? " * 12
    (field,) = knobs_of(explorer(lambda text: text, text=long))
    assert type(field).__name__ == "Textarea" and field.rows * widgets.COLUMNS >= len(long)
    assert "field-sizing: content" in widgets.LOOK, "narrower than that: a phone"


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


def test_a_fault_in_the_first_picture_is_the_cells():
    with pytest.raises(KeyError):
        explorer(lambda height: {}[height], height=(1, 1, 5))


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


@pytest.mark.parametrize("chapter", WIDGETS)
def test_a_widget_asks_first_and_stands_still_on_paper(chapter):
    """On GitHub and in print a widget's cell shows its first picture, or its text; before it, the student predicts."""
    cells = read_notebook(notebook_path(chapter)).cells
    for i in widget_cells(cells):
        prose = next(cell.source for cell in reversed(cells[:i]) if cell.cell_type == "markdown")
        assert "*Predict" in prose, "what does the student expect?"
        (output,) = cells[i].outputs
        assert WIDGET not in output.data
        if "text/html" not in output.data:
            assert len(output.data["image/png"]) * 3 / 4 < 60_000
            assert len(output.metadata["image/png"]["alt"].split()) >= 5


@cache
def walk(chapter: str) -> tuple:
    """A chapter's widget, and what it answered to every value; a warning would land in the student's notebook."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        box = WIDGETS[chapter]()
        return box, list(moved(box))


@pytest.mark.parametrize("chapter", WIDGETS)
class TestWidget:
    def test_has_the_one_look_and_a_step_for_the_arrow_keys(self, chapter):
        box, _ = walk(chapter)
        for knob in knobs_of(box):
            assert knob.description and knob.style.description_width == LABEL and knob.tooltip == ""
            assert knob.layout.max_width and "_" not in knob.description
            if hasattr(knob, "max"):
                assert (knob.max - knob.min) / knob.step <= 200, f"{knob.description}: too many key presses"

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

    def test_answers_at_once(self, chapter):
        """A bound that holds on a slow machine too: so many times the time for axes with nothing in them."""
        taken = median(seconds for *_, seconds in walk(chapter)[1])
        least = median(empty_picture() for _ in range(5))
        assert taken < QUICK * least, f"{1e3 * taken:.0f} ms, empty axes {1e3 * least:.0f} ms"
