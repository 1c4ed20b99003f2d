# %% [markdown]
r"""
# 15 · Recipe

"""

# %%
#| default_exp optim
#| doc optim: The optimizer of a run: AdamW with its decay groups, and the learning rate as a function of the step.
#| doc runs: What a run has written: read, drawn, and how far out its newest step is; and the command `plot`.
#| doc compare: Where two runs part; the command `compare`.
from course.notebook import checkpoint

# %%
#| export
import math

import torch

from nanogpt.model import GPT
from nanogpt.precision import MasterAdamW

# %% [markdown]
r"""
## The learning rate
"""


# %%
#| export
def warm_up(step: int, warmup: int) -> float:
    """1 / warmup in step 0, rising linearly to 1 in step warmup - 1."""
    return min(1.0, (step + 1) / max(1, warmup))


def cosine(step: int, steps: int, *, warmup: int = 0, minimum: float = 0.1) -> float:
    """The factor of the learning rate: warm-up, then half a cosine from 1 to the minimum (Loshchilov and Hutter 2017)."""
    done = (step - warmup) / max(1, steps - warmup)
    falling = minimum + (1 - minimum) * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    return min(warm_up(step, warmup), falling)


def wsd(step: int, steps: int, *, warmup: int = 0, decay: float = 0.3, minimum: float = 0.0) -> float:
    """The factor of the learning rate: warm-up, then 1, and over the last `decay` of the steps linearly to the minimum."""
    left = min(max((steps - step) / max(1.0, decay * steps), 0.0), 1.0)
    return min(warm_up(step, warmup), minimum + (1 - minimum) * left)


# %% [markdown]
r"""
## The optimizer
"""


# %%
#| export
def decay_groups(model: GPT, weight_decay: float) -> list[dict]:
    """Parameter groups for an optimizer: what has two dimensions is decayed, biases and LayerNorms are not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


# %%
#| export
def make_optimizer(
    model: GPT, lr: float, precision: str = "float32", *, betas=(0.9, 0.98), weight_decay=0.01
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where it exists: one kernel for all, the same numbers.

    Its means reach back 1 / (1 - beta) steps: 10 for the gradient, 50 for its square, which suits short runs (PyTorch's
    default is 1,000). Weight decay shrinks each weight of two dimensions by lr × weight_decay a step.
    """
    groups = decay_groups(model, weight_decay)
    if precision == "bf16-masters":  # chapter 10
        return MasterAdamW(groups, lr=lr, betas=betas)
    device = next(model.parameters()).device
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=device.type in ("cpu", "cuda", "mps"))


# %% [markdown]
r"""
## A run on paper

TODO
"""


# %%
#| export runs
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


# %%
#| export runs
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


# %%
#| export runs
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


# %%
#| export runs
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


# %%
#| export runs
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


# %% [markdown]
r"""
TODO compare
"""


# %%
#| export compare
import argparse
import math

from nanogpt.runs import column, read_metrics


def differences(a: list[dict], b: list[dict], name: str) -> dict[int, float]:
    """For each step that both runs have, by how much they differ there; inf where one alone has a finite number."""
    values = [dict(zip(*column(lines, name))) for lines in (a, b)]
    steps = sorted({line["step"] for line in a} & {line["step"] for line in b})
    pairs = {step: (values[0].get(step), values[1].get(step)) for step in steps}
    return {
        s: 0.0 if x == y else math.inf if x is None or y is None else abs(x - y)
        for s, (x, y) in pairs.items()
    }


# %%
#| export compare
def verdict(a: list[dict], b: list[dict], name: str) -> tuple[float, str]:
    """The largest difference of two runs in one column, and a sentence that says where they part."""
    apart = differences(a, b, name)
    if not apart:
        raise ValueError("the two runs have no step in common")
    if not (different := [step for step, d in apart.items() if d]):
        return 0.0, f"{name}: equal to the last bit in all {len(apart)} common steps"
    most = max(apart, key=apart.get)
    sentence = f"{name}: first differs at step {different[0]}, by {apart[different[0]]:.3g}"
    return apart[
        most
    ], f"{sentence}; most at step {most}, by {apart[most]:.3g}; in {len(different)} of {len(apart)} steps"


# %%
#| export compare
HELP = """Where do two runs part? The steps that both have are compared, number by number.

  python -m nanogpt compare runs/a runs/b                 are they equal to the last bit?
  python -m nanogpt compare runs/a runs/b --bound 1e-3    do their losses differ by at most 0.001 nats?

Exit code 0: within the bound; 2: beyond it, and one line says by how much and where.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt compare`."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("a", "b"):
        parser.add_argument(name, metavar="RUN", help="a run's folder, or its metrics.jsonl")
    parser.add_argument(
        "--bound", type=float, default=0.0, help="the largest difference of a loss, in nats (0)"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt compare`, its options parsed. ValueError if the losses differ by more than the bound."""
    if not args.bound >= 0:
        raise ValueError(f"--bound {args.bound} is a difference, at least 0")
    a, b = read_metrics(args.a), read_metrics(args.b)
    (worst, loss), *others = (verdict(a, b, name) for name in ("loss", "norm", "lr"))
    if worst > args.bound:
        raise ValueError(f"{loss}: beyond the bound of {args.bound:g}")
    print(loss, *(sentence for _, sentence in others), f"within the bound of {args.bound:g}", sep="\n")


# %%
checkpoint("15")
