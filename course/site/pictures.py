"""`course pictures`: the pictures of README and site, drawn from what is recorded, and a widget as JupyterLab shows it.

Each carries a digest of what it shows, so that a test finds a picture that is older than its data.
"""

import hashlib
import inspect
import io
import json
from pathlib import Path

from course.files import read_notebook
from course.paths import ROOT, notebook_path, relative

PICTURES = ROOT / "site" / "pictures"
FIRST = ROOT / "data" / "measurements" / "readme-model.json"
LADDER = ROOT / "data" / "measurements" / "amd-epyc-2-threads.json"
H100 = ROOT / "data" / "measurements" / "h100.json"
STAIRS = {  # name: the line below it
    "staircase": "two cores of a server CPU, B=4, T=64 · thin line: predicted",
    "staircase-h100": "one H100, B=16, T=1024 · thin line: forecast before the climb",
}
NAMES = {  # of the recording, as a reader knows them before chapter 14
    "float32": "PyTorch, float32",
    "kept memory": "memory kept",
    "TF32": "TF32",
    "bf16": "bf16 autocast",
    "compile": "torch.compile",
    "flash": "flash attention",
    "nice numbers": "vocabulary 50304",
    "fused AdamW": "fused AdamW",
    "bf16 weights": "bf16 weights",
}
PALETTES = {  # of a light page and a dark one: GitHub's and the site's
    "light": {
        "page": "#ffffff",
        "ink": "#1f2328",
        "soft": "#59636e",
        "edge": "#0969da",
        "step": "#dcebfb",
        "worse": "#fbdcb8",
    },
    "dark": {
        "page": "#0d1117",
        "ink": "#f0f6fc",
        "soft": "#a5adb6",
        "edge": "#4493f8",
        "step": "#14304f",
        "worse": "#5f3c10",
    },
}


def pictures() -> int:
    """Draw all of them into site/pictures; the widget only where it has changed, since a browser takes a minute."""
    for name, draw in drawings().items():
        write(PICTURES / f"{name}.png", png(draw()), digest(name))
        print(relative(PICTURES / f"{name}.png"))
    if shown(PICTURES / "widget.png") != widget_digest():
        from course.site.widget_picture import photograph

        write(PICTURES / "widget.png", photograph(*widget_cells()), widget_digest())
        print(relative(PICTURES / "widget.png"))
    return 0


def widget_cells() -> tuple[str, str]:
    """Code of chapter 08's last two cells before its widget is shown: what it draws, and the widget."""
    code = [cell.source for cell in read_notebook(notebook_path("08")).cells if cell.cell_type == "code"]
    at = next(i for i, source in enumerate(code) if source.startswith("figures.playground_widget("))
    return code[at - 1], code[at]


def widget_digest() -> str:
    """Of the widget's cells, of the functions that draw it, and of the look of all."""
    from course import widgets
    from course.figures import sampling

    drawing = map(inspect.getsource, (sampling.as_drawn, sampling.playground_widget, widgets.control))
    return hashlib.sha256("\n".join([*widget_cells(), *drawing, widgets.LOOK]).encode()).hexdigest()[:16]


def shown(path: Path) -> str:
    """The digest that a picture carries; empty where there is no picture."""
    from PIL import Image

    return Image.open(path).text.get("shows", "") if path.exists() else ""


def drawings() -> dict:
    """The pictures by name, each a function that draws it."""
    first, made = first_run(recorded(FIRST)), {}
    for theme, colors in PALETTES.items():
        made[f"loss-{theme}"] = lambda colors=colors: loss(first, colors)
        for name in STAIRS:
            made[f"{name}-{theme}"] = lambda name=name, colors=colors: staircase(
                stairs(name), STAIRS[name], colors
            )
    return made


def recorded(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def digest(name: str) -> str:
    """Of what a picture shows: another value, another digest."""
    kind, theme = name.rsplit("-", 1)
    values = [stairs(kind), STAIRS[kind]] if kind in STAIRS else first_run(recorded(FIRST))
    return hashlib.sha256(json.dumps([values, PALETTES[theme]], sort_keys=True).encode()).hexdigest()[:16]


# The first model's loss, and its floor


def first_run(record: dict) -> dict:
    """Of the recorded run what the picture shows."""
    return {key: record[key] for key in ("losses", "steps", "parameters", "val_loss", "floor")} | {
        "start": record["lines"]["ln V: knows nothing"]
    }


def loss_in_words(first: dict) -> str:
    """The picture for who does not see it: the alternative text of README and site."""
    return (
        f"Loss of the first model, {first['parameters']:,} parameters, over {first['steps']:,} training steps: from"
        f" {first['losses'][0]:.2f} nats a token down to {first['losses'][-1]:.2f}. A dashed line marks the floor,"
        f" {first['floor']:.3f}, which no model can go below; another marks {first['start']:.2f}, the loss of a model"
        " that knows nothing."
    )


def loss(first: dict, colors: dict):
    """A figure: the training loss, the line where it begins, and the floor that it ends on."""
    from matplotlib.figure import Figure

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


# The staircase


def stairs(name: str) -> list[dict]:
    """The steps of a staircase. What was expected of the H100 is the forecast of chapter 14, from its data sheet."""
    if name == "staircase":
        return staircase_steps(recorded(LADDER))
    run, expected = recorded(H100), forecast(recorded(H100))
    rungs = [rung | {"predicted_ms": expected[rung["name"]]} for rung in run["rungs"]]
    return staircase_steps(run | {"rungs": rungs})


def forecast(run: dict) -> dict[str, float]:
    """{rung: milliseconds} of a GPU's recorded ladder, as chapter 14 forecasts them from its data sheet."""
    # here: a course whose package is still empty has a README, too
    from nanogpt.labs.ladder.forecast import REACHED, START, predict_ladder
    from nanogpt.labs.roofline.sheets import peak_of
    from nanogpt.model import GPTConfig

    ladder = predict_ladder(peak_of(run["device"]), GPTConfig(), run["batch"], run["seq"], REACHED, START)
    return {rung: 1e3 * sum(parts.values()) for rung, parts in ladder.items()}


def staircase_steps(recorded: dict) -> list[dict]:
    """The recorded rungs: name, ms, predicted ms, the text beside it, and whether it made a step slower.

    A factor is that of the milliseconds as they are shown. It is told where the gain, measured in turns, is sure (chapter 14b).
    """
    steps, before = [], None
    for rung in recorded["rungs"]:
        ms = {key: round(rung[key]) for key in ("ms", "predicted_ms")}
        says, slower = f"predicted {ms['predicted_ms']:,} ms", False
        if before:
            gain, predicted = (before[key] / ms[key] for key in ms)
            slower = rung["gain"]["sure"] and gain < 1
            says = f"{gain:.2f} ×{', slower' if slower else ''}" if rung["gain"]["sure"] else "not measurable"
            says += f" · predicted {predicted:.2f} ×"
        steps.append({"name": NAMES[rung["name"]], "says": says, "slower": slower, **ms})
        before = ms
    return steps


def in_words(name: str) -> str:
    """A staircase for who does not see it: the alternative text of README and site."""
    steps = stairs(name)
    told = "; ".join(f"{step['name']} {step['ms']} ms ({step['says']})" for step in steps)
    return f"Milliseconds of one training step of GPT-2 124M, rung by rung, on {STAIRS[name].partition(' ·')[0]}: {told}."


def staircase(steps: list[dict], below: str, colors: dict):
    """A figure: a row a rung, as long as its step takes, so that the rows' ends are stairs; a thin line as predicted.

    below: the line below it, which says what machine it was.
    """
    from matplotlib.figure import Figure

    fig = Figure(figsize=(7.2, 7.4), facecolor=colors["page"])
    ax = fig.add_axes((0.02, 0.075, 0.96, 0.86))
    ink, soft, longest = colors["ink"], colors["soft"], max(step["ms"] for step in steps)
    for row, step in enumerate(steps):
        inside = step["ms"] > 0.75 * longest  # no room beside the step
        where, side = (
            (step["ms"] - 0.01 * longest, "right") if inside else (step["ms"] + 0.01 * longest, "left")
        )
        ax.barh(row, step["ms"], 1, color=colors["worse" if step["slower"] else "step"])
        ax.hlines(row + 0.36, 0, step["predicted_ms"], color=soft, lw=2.5)
        name, ms = step["name"], f"{step['ms']:,} ms"
        if step["ms"] > 0.35 * longest:
            ax.text(0.01 * longest, row - 0.1, name, color=ink, fontsize=15.5, weight="bold", va="center")
            ax.text(where, row - 0.2, ms, color=ink, fontsize=16.5, ha=side, va="center")
            ax.text(where, row + 0.13, step["says"], color=ink, fontsize=14, ha=side, va="center")
        else:  # a step that is too short for its name
            ax.text(where, row - 0.2, name, color=ink, fontsize=15.5, weight="bold", va="center")
            ax.text(where, row + 0.13, f"{ms} · {step['says']}", color=ink, fontsize=14, va="center")
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


def png(fig) -> bytes:
    fig.savefig(buffer := io.BytesIO(), format="png", dpi=150, bbox_inches=None)
    return buffer.getvalue()


def write(path: Path, picture: bytes, says: str) -> None:
    """A small PNG that carries the digest of what it shows."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("shows", says)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(path, pnginfo=info, optimize=True)
