"""Widgets of all chapters: named knobs above a picture that follows them. Their look and behaviour are here alone."""

import base64
import html
from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTH = 6.0  # inches of every picture; on a phone it shrinks and can still be read
LABEL, KNOB, FIELD = "150px", "460px", "700px"
COLUMNS = 70  # characters that a line of a field holds; a longer text gets a field of several lines
# ipywidgets gives its sliders no accessible name (and JupyterLab shows "null" where a tooltip is missing). This runs in
# the page as soon as the style is there; where a page forbids scripts, the knobs work as before.
NAMES = """
for (const knob of this.closest('.explorer').querySelectorAll('.widget-slider')) {
  const name = knob.querySelector('label').textContent, number = knob.querySelector('.widget-readout');
  knob.querySelector('[role=slider]').setAttribute('aria-label', name);
  number.setAttribute('role', 'textbox');
  number.setAttribute('aria-label', name + ' as a number');
}"""
LOOK = f"""<style onload="{NAMES}">
.explorer .explored {{ margin: 4px 0 0; line-height: 1.5; max-width: {FIELD}; overflow-wrap: anywhere; }}
.explorer .widget-textarea {{ flex-wrap: wrap; }}
.explorer textarea {{ field-sizing: content; flex: 1 1 300px; }}
.explorer .explored img {{ display: block; max-width: 100%; height: auto; }}
</style>"""


def axes(height: float = 2.6, left=0.65, right=0.15, top=0.3, bottom=0.5, columns: int = 1):
    """Axes of a picture as wide as all, with these margins in inches; with more columns, an array of axes.

    pyplot does not know their figure: a widget may answer in a thread of its own (JupyterLab 4.4 and later with ipykernel
    7), and pyplot's figures are shown and closed whenever a cell ends, also one that the widget is in the middle of
    drawing. The margins are given because finding them takes as long as drawing.
    """
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left / WIDTH, bottom / height, 1 - right / WIDTH, 1 - top / height)
    return figure.subplots(1, columns, sharey=columns > 1)


def explorer(draw, **knobs):
    """Knobs, described by their keywords, above what draw(**values) gives.

    A knob is (value, low, high) or (value, low, high, step), a slider; (value, [options]), a list; a text, a field.
    draw gives (axes, what they show in words), or a text in HTML, or raises a ValueError that says what cannot work.
    Where no kernel runs, on GitHub and in print, the first picture stands in the widget's place.
    """
    import ipywidgets

    controls = {name: control(name, knob) for name, knob in knobs.items()}
    shown = ipywidgets.HTML()

    def look() -> dict[str, str]:
        try:
            return bundle(draw(**{name: knob.value for name, knob in controls.items()}))
        except ValueError as error:
            return {"text/html": html.escape(str(error))}

    def redraw(_) -> None:
        try:
            shown.value = framed(look())
        except Exception as error:  # a callback's traceback goes to a log that nobody sees
            shown.value = framed({"text/html": html.escape(f"{type(error).__name__}: {error}")})

    first = look()
    shown.value = framed(first)
    for knob in controls.values():
        knob.observe(redraw, "value")
    box = ipywidgets.VBox([*controls.values(), shown, ipywidgets.HTML(LOOK)]).add_class("explorer")
    live = box._repr_mimebundle_
    box._repr_mimebundle_ = lambda **_: still(live(), first)
    return box


def control(name: str, knob):
    """The widget of a knob, in the look of all."""
    import ipywidgets

    if isinstance(knob, str):
        rows = sum(1 + len(line) // COLUMNS for line in knob.split("\n"))
        made = (
            ipywidgets.Textarea(knob, rows=max(4, rows))
            if rows > 1
            else ipywidgets.Text(knob, continuous_update=False)
        )
    elif isinstance(knob[1], list):
        made = ipywidgets.Dropdown(value=knob[0], options=knob[1])
    else:
        value, low, high, *step = knob
        kind = ipywidgets.FloatSlider if any(isinstance(x, float) for x in knob) else ipywidgets.IntSlider
        made = kind(value, min=low, max=high, step=(step or [1])[0])
    made.description, made.tooltip, made.style.description_width = name.replace("_", " "), "", LABEL
    made.layout.width, made.layout.max_width = "98%", FIELD if isinstance(knob, str) else KNOB
    return made


def bundle(drawn) -> dict[str, str]:
    """What draw gave, by MIME type."""
    if isinstance(drawn, str):
        return {"text/html": drawn}
    (ax, words), png = drawn, BytesIO()
    FigureCanvasAgg(ax.figure).print_png(png)
    return {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": words}


def framed(seen: dict[str, str]) -> str:
    """A bundle as HTML: the picture, whose alternative text is the line below it; or the text."""
    if "text/html" in seen:
        return f'<figure class="explored">{seen["text/html"]}</figure>'
    words = html.escape(seen["text/plain"])
    picture = f'<img alt="{words}" src="data:image/png;base64,{seen["image/png"]}">'
    return f'<figure class="explored">{picture}<figcaption aria-hidden="true">{words}</figcaption></figure>'


def still(live: dict, first: dict[str, str]) -> tuple[dict, dict]:
    """A widget's MIME bundle and metadata, with what is shown where no kernel runs."""
    from course.notebook import shrink

    if "image/png" not in first:
        return live | first, {}
    small = base64.b64encode(shrink(base64.b64decode(first["image/png"]))).decode()
    return live | first | {"image/png": small}, {"image/png": {"alt": first["text/plain"]}}
