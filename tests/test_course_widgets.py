"""A widget draws what its knobs say, also while a cell that is ending shows all of pyplot's figures."""

import io
import threading

import matplotlib.pyplot as plt
import pytest
from matplotlib._pylab_helpers import Gcf

from course.widgets import axes, explorer

widgets = pytest.importorskip("ipywidgets")


def bars(height):
    ax = axes((3, 2))
    ax.bar(["a", "b"], [1, height])
    ax.set(xlabel="x", title=f"{height} high")
    return ax


def parts(box):
    *knobs, text, picture = box.children
    return knobs, text, picture


def test_the_picture_follows_its_knob_and_is_described_by_its_name():
    (knob,), _, picture = parts(explorer(bars, height=widgets.IntSlider(1, 1, 5)))
    first = bytes(picture.value)
    assert knob.description == "height" and first.startswith(b"\x89PNG")
    knob.value = 5
    assert picture.value != first
    knob.value = 1
    assert picture.value == first


def test_a_text_takes_the_place_of_the_picture_and_gives_it_back():
    def draw(height):
        return bars(height) if height > 1 else "too low"

    (knob,), text, picture = parts(explorer(draw, height=widgets.IntSlider(1, 1, 5)))
    assert text.value == "too low" and (text.layout.display, picture.layout.display) == ("", "none")
    knob.value = 2
    assert (text.layout.display, picture.layout.display) == ("none", "")


def test_a_value_that_cannot_work_says_so_where_the_picture_was():
    def draw(height):
        raise ValueError("1 < 2: too low")

    _, text, _ = parts(explorer(draw, height=widgets.IntSlider(1, 1, 5)))
    assert text.value == "1 &lt; 2: too low"


def test_a_cell_that_ends_does_not_disturb_a_drawing():
    """The inline backend shows all of pyplot's figures then, which clears the canvas of one half drawn."""
    (knob,), _, picture = parts(explorer(bars, height=widgets.IntSlider(1, 1, 5)))
    expected, ended = picture.value, threading.Event()

    def end_cells():
        while not ended.is_set():
            for manager in Gcf.get_all_fig_managers():
                manager.canvas.print_png(io.BytesIO())

    ending = threading.Thread(target=end_cells)
    ending.start()
    try:
        for height in [2, 1] * 10:
            knob.value = height
            assert knob.value != 1 or picture.value == expected
    finally:
        ended.set()
        ending.join()
    assert not plt.get_fignums()
