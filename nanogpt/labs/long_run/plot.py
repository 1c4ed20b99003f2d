"""Several runs in one figure: loss, norm, rate, throughput; the command `plot`.

Exported from notebooks/17d_assembly.ipynb.
"""

import argparse
import math
from collections.abc import Sequence
from importlib import import_module
from statistics import fmean

from nanogpt.metrics import read_metrics


def column(lines: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of those lines that have a finite number there."""
    known = {x["step"]: x[name] for x in lines if x.get(name) is not None and math.isfinite(x[name])}
    return list(known), list(known.values())


PANELS = dict(loss="loss (nats)", norm="norm of the gradient", lr="learning rate", tokens_per_s="tokens/s")


def draw_run(ax, name: str, lines: Sequence[dict], color: str, label: str) -> None:
    """One run in one panel: faint step by step, bold as the means of about 100 stretches."""
    steps, values = column(lines, name)
    ax.plot(steps, values, color=color, alpha=0.3, lw=0.7)
    n = 1 if name == "lr" else max(1, len(steps) // 100)
    stretches = [slice(at, at + n) for at in range(0, len(steps), n)]
    ax.plot([fmean(steps[s]) for s in stretches], [fmean(values[s]) for s in stretches], color, label=label)
    if name == "loss":
        ax.plot(*column(lines, "val_loss"), "o", color=color, ms=4)
        ax.plot(*column([line for line in lines if "skipped" in line], name), "x", color=color)
        for floor in column(lines, "floor")[1][-1:]:
            ax.axhline(floor, color=color, ls=":")


def draw_runs(runs: dict[str, Sequence[dict]]):
    """A figure of several runs by name: loss, norm, learning rate and throughput against the step, as far as known.

    Dots are validation losses, crosses updates that were left out, a dotted line the floor where a run knows one.
    """
    from matplotlib.figure import Figure

    values = {name: [v for lines in runs.values() for v in column(lines, name)[1]] for name in PANELS}
    shown = [name for name in PANELS if values[name]] or ["loss"]
    fig = Figure(figsize=(10, 3.25 * math.ceil(len(shown) / 2)), layout="constrained")
    for number, name in enumerate(shown, 1):
        ax = fig.add_subplot(math.ceil(len(shown) / 2), 2, number, xlabel="step", ylabel=PANELS[name])
        for color, (label, lines) in enumerate(runs.items()):
            draw_run(ax, name, lines, f"C{color}", label)
        low, high = min(values[name], default=0), max(values[name], default=0)
        if low > 0 and (name == "norm" or (name == "loss" and high > 20 * low)):
            ax.set_yscale("log")
        ax.set_ylim(bottom=0 if name == "tokens_per_s" else None)
        ax.grid(alpha=0.3)
    fig.axes[0].legend()
    return fig


def read_lines(path: str) -> list[dict]:
    """The steps of a run's folder or its metrics.jsonl; of llm.c's main.log by a lab, which is loaded for that (chapter 22b)."""
    if path.endswith(".log"):
        return import_module("nanogpt.labs.formats.llmc").read_log(path)
    return read_metrics(path)


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(description="Draw loss, norm, rate and throughput of runs together.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder, a metrics.jsonl or llm.c's log")
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_lines(name) for name in args.runs})
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")
