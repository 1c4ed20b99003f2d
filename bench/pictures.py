"""Draw the pictures of README and site anew, from data/measurements: `python bench/pictures.py`.

Each carries a digest of what it shows, so that a test finds a picture that is older than its data. The widget's picture is
what JupyterLab shows: the real command, a real browser. It is taken only where chapter 08's widget has changed, and needs
chapter 07's model and Chromium.
"""

import hashlib
import inspect
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from browser import chromium  # noqa: E402
from running_lab import WAIT, running  # noqa: E402

from course.figures import sampling, setup, widgets  # noqa: E402
from course.files import notebook_bytes, read_notebook, write_atomically  # noqa: E402
from course.paths import BUILT, NOTEBOOKS, notebook_path, relative  # noqa: E402
from course.site.pictures import FIRST, STAIRS, first_run, in_all, recorded, stairs  # noqa: E402

PICTURES = ROOT / "site" / "pictures"
PALETTES = {  # of a light page and a dark one: GitHub's and the site's
    "light": {
        "page": "#ffffff",
        "ink": "#1f2328",
        "soft": "#59636e",
        "edge": "#0969da",
        "step": "#dcebfb",
        "worse": "#fbdcb8",
        "text": "#d9ead3",
        "rest": "#eeeeee",
    },
    "dark": {
        "page": "#0d1117",
        "ink": "#f0f6fc",
        "soft": "#a5adb6",
        "edge": "#4493f8",
        "step": "#14304f",
        "worse": "#5f3c10",
        "text": "#1d3a1c",
        "rest": "#21262d",
    },
}
BEFORE = """
from pathlib import Path

import torch

from course import notebook
from course.figures import sampling as figures
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.device import pick_device
from nanogpt.sampling import token_probs
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import load_model

BUILT = Path("../data/built")
tokenizer = BPETokenizer.load(BUILT / "stories" / ensure_corpus(BUILT / "stories")["tokenizer"])
device = pick_device()
model = load_model(BUILT / "model", device).eval()
told = list(stories(200, seed=1))
"""


def main() -> None:
    for name, draw in drawings().items():
        write(PICTURES / f"{name}.png", png(draw()), digest(name))
        print(relative(PICTURES / f"{name}.png"))
    if shown(PICTURES / "widget.png") != widget_digest():
        write(PICTURES / "widget.png", photograph(*widget_cells()), widget_digest())
        print(relative(PICTURES / "widget.png"))


def loss(first: dict, colors: dict):
    """A figure: the training loss, the line where it begins, and the floor that it ends on."""
    fig = Figure(figsize=(7.2, 3.6), facecolor=colors["page"])
    ax = fig.add_axes((0.09, 0.16, 0.88, 0.78), facecolor=colors["page"])
    ink, soft, losses, steps = colors["ink"], colors["soft"], first["losses"], first["steps"]
    at = [steps * i / (len(losses) - 1) for i in range(len(losses))]
    ax.plot(at, losses, color=colors["edge"], lw=2.5)
    for value, color in ((first["start"], soft), (first["floor"], ink)):
        ax.axhline(value, color=color, lw=1.5, ls=(0, (5, 4)))
    ax.text(
        steps,
        first["start"] + 0.12,
        f"a model that knows nothing: {first['start']:.2f}",
        color=soft,
        fontsize=13.5,
        ha="right",
    )
    ax.text(
        steps,
        first["floor"] - 0.16,
        f"the floor, {first['floor']:.3f}: no model can do better",
        color=ink,
        fontsize=13.5,
        ha="right",
        va="top",
    )
    ax.text(
        steps,
        first["val_loss"] + 0.32,
        f"this model on new stories: {first['val_loss']:.3f}",
        color=colors["edge"],
        fontsize=13.5,
        ha="right",
        weight="bold",
    )
    ax.set(xlim=(-0.01 * steps, steps * 1.005), ylim=(-0.15, 7.6), xlabel="training step")
    ax.set_ylabel("loss, nats a token")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(soft)
    ax.tick_params(colors=soft, labelsize=12)
    ax.xaxis.label.set(color=soft, fontsize=13)
    ax.yaxis.label.set(color=soft, fontsize=13)
    return fig


def staircase(steps: list[dict], below: str, colors: dict):
    """A figure: a row a rung, as long as its step takes, so that the rows' ends are stairs; a thin line as predicted.

    below: the line below it, which says what machine it was.
    """
    fig = Figure(figsize=(7.2, 7.4), facecolor=colors["page"])
    ax = fig.add_axes((0.02, 0.075, 0.96, 0.86))
    ink, soft, longest = colors["ink"], colors["soft"], max(step["ms"] for step in steps)
    for row, step in enumerate(steps):
        inside = step["ms"] > 0.75 * longest  # no room beside the step
        where, side = (
            (step["ms"] - 0.01 * longest, "right") if inside else (step["ms"] + 0.01 * longest, "left")
        )
        kind = "rest" if step["disturbed"] else "worse" if step["slower"] else "step"
        ax.barh(row, step["ms"], 1, color=colors[kind])
        ax.hlines(row + 0.36, 0, step["predicted_ms"], color=soft, lw=2.5)
        name, ms = step["name"], ""
        if row == 0:
            ms = f"{step['ms']:,} ms"
        if row == len(steps) - 1:
            ms = f"in all {in_all(steps)}"
        if step["ms"] > 0.35 * longest:
            ax.text(0.01 * longest, row - 0.1, name, color=ink, fontsize=15.5, weight="bold", va="center")
            ax.text(where, row - 0.2, ms, color=ink, fontsize=16.5, ha=side, va="center")
            ax.text(where, row + 0.13, step["says"], color=ink, fontsize=14, ha=side, va="center")
        else:  # a step that is too short for its name
            says = f"{step['says']} · {ms}" if ms else step["says"]
            ax.text(where, row - 0.2, name, color=ink, fontsize=15.5, weight="bold", va="center")
            ax.text(where, row + 0.13, says, color=ink, fontsize=14, va="center")
    if any(step["disturbed"] for step in steps):
        below += " · grey: disturbed"
    edges = [row + side for row in range(len(steps)) for side in (-0.5, 0.5)]
    ax.plot([step["ms"] for step in steps for _ in range(2)], edges, color=colors["edge"], lw=3)
    ax.set(xlim=(0, longest * 1.005), ylim=(len(steps) - 0.5, -0.5))
    ax.axis("off")
    fig.text(0.02, 0.962, "One training step of GPT-2 124M", color=ink, fontsize=17, va="center")
    fig.text(
        0.02,
        0.035,
        below,
        color=soft,
        fontsize=14,
        va="center",
    )
    return fig


def course_map(colors: dict):
    """A figure: chapter 00's map."""
    with plt.rc_context({"text.color": colors["ink"], "figure.facecolor": colors["page"]}):
        tints = {setup.GREEN: colors["text"], setup.BLUE: colors["step"], setup.GREY: colors["rest"]}
        fig = setup.course_map(tints)
        plt.close(fig)
        fig.subplots_adjust(0.01, 0.01, 0.99, 0.99)
        return fig


def png(fig) -> bytes:
    fig.savefig(buffer := io.BytesIO(), format="png", dpi=150, bbox_inches=None)
    return buffer.getvalue()


def write(path: Path, picture: bytes, says: str) -> None:
    """A small PNG that carries the digest of what it shows."""
    info = PngInfo()
    info.add_text("shows", says)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(path, pnginfo=info, optimize=True)


def widget_cells() -> tuple[str, str]:
    """Code of chapter 08's last two cells before its widget is shown: what it draws, and the widget."""
    code = [cell.source for cell in read_notebook(notebook_path("08")).cells if cell.cell_type == "code"]
    at = next(i for i, source in enumerate(code) if source.startswith("figures.playground_widget("))
    return code[at - 1], code[at]


def widget_digest() -> str:
    """Of the widget's cells, of the functions that draw it, and of the look of all."""
    drawing = map(inspect.getsource, (sampling.as_drawn, sampling.playground_widget, widgets.control))
    return hashlib.sha256("\n".join([*widget_cells(), *drawing, widgets.LOOK]).encode()).hexdigest()[:16]


def shown(path: Path) -> str:
    """The digest that a picture carries; empty where there is no picture."""
    return Image.open(path).text.get("shows", "") if path.exists() else ""


def drawings() -> dict:
    """The pictures by name, each a function that draws it."""
    first, made = first_run(recorded(FIRST)), {}
    for theme, colors in PALETTES.items():
        made[f"loss-{theme}"] = lambda colors=colors: loss(first, colors)
        made[f"map-{theme}"] = lambda colors=colors: course_map(colors)
        for name in STAIRS:
            made[f"{name}-{theme}"] = lambda name=name, colors=colors: staircase(
                stairs(name), STAIRS[name], colors
            )
    return made


def digest(name: str) -> str:
    """Of what a picture shows: another value, another digest."""
    kind, theme = name.rsplit("-", 1)
    shows = {
        "loss": lambda: first_run(recorded(FIRST)),
        "map": lambda: [setup.BOXES, setup.ARROWS],
        **{name: lambda name=name: [stairs(name), STAIRS[name]] for name in STAIRS},
    }
    values = shows[kind]()
    return hashlib.sha256(json.dumps([values, PALETTES[theme]], sort_keys=True).encode()).hexdigest()[:16]


def photograph(drawing: str, widget: str) -> bytes:
    """A PNG of chapter 08's widget: start `course lab`, run a notebook of these cells in a browser, and take the picture."""
    if not (BUILT / "model" / "config.json").exists():
        raise SystemExit("widget.png shows chapter 07's model, which is not there: course run 07")
    path = NOTEBOOKS / "widget-picture.ipynb"
    nb = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, (BEFORE, drawing, widget))])
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    try:
        write_atomically(path, notebook_bytes(nb))
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            running(Path(folder)) as (_, server),
            chromium(device_scale_factor=1.5) as window,
        ):
            page = window.new_page()
            page.set_viewport_size({"width": 1000, "height": 1000})
            page.set_default_timeout(1000 * WAIT)
            page.goto(f"{server['url']}lab/tree/notebooks/{path.name}?reset&token={server['token']}")
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
            page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            page.locator(".explorer img").wait_for()
            page.add_style_tag(content=".explorer { padding: 8px; }")
            return page.locator(".explorer").screenshot()
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
