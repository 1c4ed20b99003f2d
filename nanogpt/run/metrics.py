"""What a run has written: read, drawn, and how far out its newest step is; and the command `plot`.

Exported from notebooks/17b_checkpoints.ipynb, grown by notebooks/17c_long_run.ipynb.
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
    """The last 128 finite values of a run. The list of them is its state."""

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


SPEED = dict(lr="lr {:.2e}", ms="{:.2f} ms", mfu="{:.1%} MFU", tokens_per_s="{:.0f} tok/s")
SEEN = dict(val_loss="val loss {:.6f}", hellaswag="HellaSwag {:.4f}", skipped="skipped: {}")


def step_line(line: dict, steps: int) -> str:
    """A line of metrics.jsonl as llm.c prints a step. What is not known is left out; nan stands for what is not finite."""
    text = f"step {line['step']:5}/{steps}"
    for name, digits in (("loss", 6), ("norm", 4)):
        value, z = line.get(name), line.get(f"{name}_z")
        text += f" | {name} {math.nan if value is None else value:.{digits}f}"
        text += "" if z is None else f" ({z:+.2f}z)"
    more = [form.format(line[name]) for name, form in (SPEED | SEEN).items() if line.get(name) is not None]
    return " | ".join([text, *more])


def read_metrics(run: str | Path) -> list[dict]:
    """The steps of a run's metrics.jsonl, in order; a run is that file or the folder that holds it.

    A step that was made again after a crash counts as it was made last. A torn last line is left out, and stderr says so.
    """
    path = Path(run) / "metrics.jsonl" if Path(run).is_dir() else Path(run)
    if path.suffix == ".log":
        from nanogpt.plan.llmc import read_log  # chapter 22b

        return read_log(path)
    lines, steps = path.read_text(encoding="utf-8", errors="replace").splitlines(), {}
    for number, text in enumerate(lines, 1):
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
    known = {x["step"]: x[name] for x in lines if x.get(name) is not None and math.isfinite(x[name])}
    return list(known), list(known.values())


PANELS = dict(loss="loss [nats]", norm="norm of the gradient", lr="learning rate", tokens_per_s="tokens/s")


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


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(description="Draw loss, norm, rate and throughput of runs together.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder, its metrics.jsonl, or a main.log of llm.c"
    )
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_metrics(name) for name in args.runs})
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")
