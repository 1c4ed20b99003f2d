"""Chapter 15's figures and its widget: each function takes data and returns a figure."""

from collections.abc import Callable
from io import BytesIO

import matplotlib.pyplot as plt


def schedules(curves: dict[str, list[float]]) -> plt.Figure:
    """Factors of the rate, step by step."""
    fig, ax = plt.subplots(figsize=(6.5, 2.4))
    for name, factors in curves.items():
        ax.plot(factors, label=name)
    ax.set(xlabel="step", ylabel="factor of the rate", ylim=(0, 1.05))
    ax.legend(loc="lower center")
    return fig


def schedule_widget(rates: Callable):
    """Sliders over `schedules(rates(steps, warmup, minimum, decay))`."""
    import ipywidgets as widgets

    knobs = {
        "steps": widgets.IntSlider(1000, 10, 2000, 10),
        "warmup": widgets.IntSlider(50, 0, 1000, 10),
        "minimum": widgets.FloatSlider(value=0.1, min=0, max=1, step=0.05),
        "decay": widgets.FloatSlider(value=0.3, min=0, max=1, step=0.05),
    }
    picture = widgets.Image(format="png", layout={"align_self": "flex-start"})

    def redraw(_=None) -> None:
        fig, png = schedules(rates(*(knob.value for knob in knobs.values()))), BytesIO()
        fig.savefig(png)
        plt.close(fig)
        picture.value = png.getvalue()

    for name, knob in knobs.items():
        knob.description, knob.style.description_width = name, "initial"
        knob.observe(redraw, "value")
    redraw()
    return widgets.VBox([*knobs.values(), picture])


def panels(runs: dict, clip: float) -> plt.Figure:
    """Loss above, norm below on a logarithmic axis with the length at which it is clipped, of runs by name."""
    fig, (top, low) = plt.subplots(2, 1, figsize=(7, 3.8), sharex=True, layout="constrained")
    for name, run in runs.items():
        top.plot(run.losses, lw=1, label=name)
        low.semilogy(run.norms, lw=1)
    low.axhline(clip, c="0.5", ls="--", lw=1)
    top.set(ylabel="loss (nats per token)")
    low.set(xlabel="step", ylabel="gradient's norm")
    return fig


def spike(runs: dict, apart: dict, at: int) -> plt.Figure:
    """Norms around a bad batch, and how much higher each loss is after it than without it."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained", width_ratios=(1, 2))
    first = max(0, at - 10)
    for i, (name, run) in enumerate(runs.items()):
        around = run.norms[first : at + 15]
        left.semilogy(range(first, first + len(around)), around, lw=1, c=f"C{i}")
        right.plot(range(at + 1, len(apart[name])), apart[name][at + 1 :], lw=1, c=f"C{i}", label=name)
    right.axhline(0, c="0.5", lw=1)
    left.set(xlabel="step", ylabel="gradient's norm")
    right.set(xlabel="step", ylabel="nats above the run\nwithout the bad batch")
    right.legend()
    return fig


def ablation(rows: list[dict], title: str = "") -> plt.Figure:
    """Nats above the floor in the end, a row for what was switched off, a dot a seed, a colour a rate."""
    names, rates = list(dict.fromkeys(row["off"] for row in rows)), sorted({row["lr"] for row in rows})
    fig, ax = plt.subplots(figsize=(7.2, 0.3 * len(names) + 0.9))
    for i, lr in enumerate(rates):
        mine = [row for row in rows if row["lr"] == lr]
        base = [row["above"] for row in mine if row["off"] == names[0]]
        ax.axvspan(min(base), max(base), color=f"C{i}", alpha=0.2, lw=0)
        y = [names.index(row["off"]) + 0.16 * (i - (len(rates) - 1) / 2) for row in mine]
        ax.plot([row["above"] for row in mine], y, "o", ms=4, c=f"C{i}", label=f"lr {lr:g}")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlabel="nats per token above the floor (shaded: nothing switched off)", title=title)
    ax.legend()
    return fig
