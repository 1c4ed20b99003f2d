"""Widgets of all chapters: named knobs above a picture, which is drawn anew when a knob moves."""

import html
from io import BytesIO

from matplotlib.figure import Figure


def axes(size: tuple[float, float] | None = None, **options):
    """The axes of a figure that pyplot does not know.

    A widget may answer in a thread of its own (JupyterLab 4.4 and later with ipykernel 7). pyplot's figures are shown
    and closed whenever a cell ends, also one that the widget is in the middle of drawing.
    """
    return Figure(figsize=size, **options).subplots()


def explorer(draw, **knobs):
    """Knobs, described by their keywords, above what draw(**values) gives: axes, or a text in HTML."""
    import ipywidgets as widgets

    picture = widgets.Image(format="png", layout={"align_self": "flex-start"})
    text = widgets.HTML()
    for name, knob in knobs.items():
        knob.description, knob.style.description_width = name.replace("_", " "), "110px"
        knob.layout.width = "90%" if isinstance(knob, widgets.Text) else "420px"

    def redraw(_=None) -> None:
        try:
            drawn = draw(**{name: knob.value for name, knob in knobs.items()})
        except ValueError as error:  # a value that cannot work says so where the picture was
            drawn = html.escape(str(error))
        if isinstance(drawn, str):
            text.value = drawn
        else:
            png = BytesIO()
            drawn.figure.savefig(png)
            picture.value = png.getvalue()
        text.layout.display, picture.layout.display = ("", "none") if isinstance(drawn, str) else ("none", "")

    for knob in knobs.values():
        knob.observe(redraw, "value")
    redraw()
    return widgets.VBox([*knobs.values(), text, picture])
