"""Chapter 15's figures and its widget: each function takes data and returns a figure."""

from collections.abc import Callable

import matplotlib.pyplot as plt

from course import widgets


def schedule_widget(rates: Callable):
    """Sliders over the factors of the rate, step by step, as rates(steps, warmup, minimum, decay) gives them by name."""

    def draw(**knobs):
        ax, curves = widgets.axes(2.6), rates(**knobs)
        for name, factors in curves.items():
            ax.plot(factors, label=name)
        ax.set(xlabel="step", ylabel="factor of the rate", ylim=(0, 1.05))
        ax.legend(loc="lower center")
        parts = [
            f"{name} has a mean of {sum(f) / len(f):.3f} and ends at {f[-1]:.2f}"
            for name, f in curves.items()
        ]
        return ax, f"Over {knobs['steps']} steps the factor of {'; '.join(parts)}."

    return widgets.explorer(
        draw,
        steps=(1000, 10, 2000, 10),
        warmup=(50, 0, 1000, 10),
        minimum=(0.1, 0.0, 1.0, 0.05),
        decay=(0.3, 0.0, 1.0, 0.05),
    )


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
