"""What a run has written: read, drawn, and how far out its newest step is; and the command `plot`.

Exported from notebooks/15_recipe.ipynb.
"""

import argparse
import json
import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

WINDOW = 128


class Window(deque):
    """The last 128 finite values of a run; its list is its state. How far out is the next one?"""

    def __init__(self, values: Iterable[float] = ()):
        super().__init__(values, maxlen=WINDOW)

    def z(self, value: float) -> float | None:
        """Take a value in: its distance from the window's mean in standard deviations (llm.c, outlier_detector.h).

        None while the window is not full, and for a value that is not finite, which is not taken in.
        """
        if not math.isfinite(value):
            return None
        self.append(value)
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return None if len(self) < WINDOW else (value - mean) / deviation if deviation else 0.0


def step_line(line: dict, steps: int) -> str:
    """A line of metrics.jsonl as llm.c prints a step: what is not known, or not finite, is left out or nan."""

    def figure(name: str, digits: int) -> str:
        value, z = line.get(name), line.get(f"{name}_z")
        return f"{name} {math.nan if value is None else value:.{digits}f}" + (
            f" ({z:+.2f}z)" if z is not None else ""
        )

    parts = [f"step {line['step']:5}/{steps}", figure("loss", 6), figure("norm", 4)]
    for name, form in {
        "lr": "lr {:.2e}",
        "ms": "{:.2f} ms",
        "mfu": "{:.1%} MFU",
        "tokens_per_s": "{:.0f} tok/s",
    }.items():
        parts += [form.format(line[name])] if line.get(name) is not None else []
    parts += [f"val loss {line['val_loss']:.6f}"] if line.get("val_loss") is not None else []
    return " | ".join(parts + ([f"skipped: {line['skipped']}"] if "skipped" in line else []))


def read_metrics(run: str | Path) -> list[dict]:
    """The steps of a run's metrics.jsonl, in order; a run is that file or the folder that holds it.

    A step that was made again after a crash counts as it was made last. A torn last line is left out, and stderr says so.
    """
    path = Path(run) / "metrics.jsonl" if Path(run).is_dir() else Path(run)
    steps = {}
    for number, text in enumerate(
        lines := path.read_text(encoding="utf-8", errors="replace").splitlines(), 1
    ):
        try:
            line = json.loads(text)
            steps[line["step"]] = line
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a step of a run: {text[:40]}") from None
            print(f"{path}: the last line is torn and left out", file=sys.stderr)
    if not steps:
        raise ValueError(f"{path} holds no step yet")
    return [steps[step] for step in sorted(steps)]


def column(lines: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of those lines that have a finite number there."""
    known = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    known = [(step, value) for step, value in known if math.isfinite(value)]
    return [step for step, _ in known], [value for _, value in known]


PANELS = {
    "loss": "loss [nats per token]",
    "norm": "norm of the gradient",
    "lr": "learning rate",
    "tokens_per_s": "tokens/s",
}


def draw_run(ax, name: str, lines: Sequence[dict], color: str, label: str) -> None:
    """One run in one panel: faint step by step, bold as the means of up to 100 stretches."""
    steps, values = column(lines, name)
    ax.plot(steps, values, color=color, alpha=0.3, lw=0.7)
    n = 1 if name == "lr" else max(1, math.ceil(len(steps) / 100))
    stretches = [slice(at, at + n) for at in range(0, len(steps), n)]
    ax.plot([fmean(steps[s]) for s in stretches], [fmean(values[s]) for s in stretches], color, label=label)
    if name == "loss":
        ax.plot(*column(lines, "val_loss"), "o", color=color, ms=4)
        left_out = [line for line in lines if "skipped" in line]
        ax.plot(*column(left_out, name), "x", color=color)
        for floor in column(lines, "floor")[1][-1:]:
            ax.axhline(floor, color=color, ls=":")


def draw_runs(runs: dict[str, Sequence[dict]]):
    """A figure of several runs by name: loss, norm, learning rate and throughput against the step.

    Dots are validation losses, crosses updates that were left out, a dotted line the floor where a run knows one.
    """
    from matplotlib.figure import Figure

    fig = Figure(figsize=(10, 6.5), layout="constrained")
    for ax, (name, title) in zip(fig.subplots(2, 2).flat, PANELS.items()):
        for number, (label, lines) in enumerate(runs.items()):
            draw_run(ax, name, lines, f"C{number}", label)
        values = [value for lines in runs.values() for value in column(lines, name)[1]] or [1.0]
        if min(values) > 0 and (name == "norm" or (name == "loss" and max(values) > 20 * min(values))):
            ax.set_yscale("log")
        if name == "tokens_per_s":
            ax.set_ylim(bottom=0)
        ax.set(xlabel="step", ylabel=title)
        ax.grid(alpha=0.3)
    fig.axes[0].legend()
    return fig


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(
        description="Draw loss, norm, learning rate and throughput of runs together."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its metrics.jsonl")
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_metrics(name) for name in args.runs})
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")
