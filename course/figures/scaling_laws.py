"""Chapter 22c's figures: each function takes data, and returns a figure or prints."""

import matplotlib.pyplot as plt
import numpy as np


def curves(runs: list[dict], floor: float, law=None) -> plt.Figure:
    """Loss against tokens, a colour a width; law(width, tokens) as lines, else the means over seeds."""
    fig, ax = plt.subplots(figsize=(6.8, 3.4), layout="constrained")
    widths = sorted({run["width"] for run in runs})
    for i, width in enumerate(widths):
        mine = [run for run in runs if run["width"] == width]
        color = plt.get_cmap("viridis")(0.9 * i / max(1, len(widths) - 1))
        ax.plot([run["tokens"] for run in mine], [run["loss"] for run in mine], "o", ms=3.5, color=color)
        at = np.array(sorted({run["tokens"] for run in mine}))
        mean = [np.mean([run["loss"] for run in mine if run["tokens"] == n]) for n in at]
        ax.plot(at, law(width, at) if law else mean, color=color, lw=1.2, label=f"width {width}")
    ax.axhline(floor, ls=":", c="k", label="floor")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = [0.6, 0.8, 1, 1.5, 2, 2.5]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set(xlabel="tokens read", ylabel="held-out loss [nats a token]", ylim=(0.45, 2.9))
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return fig


def estimates(ways: dict[str, np.ndarray], truth: float) -> plt.Figure:
    """One row of dots a way, each an estimate; the middle 95% as a bar; the truth as a line."""
    fig, ax = plt.subplots(figsize=(6.8, 0.55 * len(ways) + 0.9), layout="constrained")
    jitter = np.random.default_rng(0).uniform(-0.25, 0.25, max(map(len, ways.values())))
    for i, values in enumerate(ways.values()):
        ax.plot(values, i + jitter[: len(values)], ".", ms=2.5, alpha=0.5, color=f"C{i}")
        ax.plot(np.percentile(values, [2.5, 97.5]), [i, i], color=f"C{i}", lw=3, solid_capstyle="butt")
    ax.axvline(truth, ls=":", c="k")
    ax.annotate("the truth", (truth, -0.55), (4, 0), textcoords="offset points", fontsize=8)
    ax.set_yticks(range(len(ways)), ways)
    ax.invert_yaxis()
    ax.set(xlabel="fitted E [nats a token]", xlim=(-0.03, None))
    return fig


def budget(law: dict[int, tuple[int, float]], ran: dict[int, float], floor: float) -> plt.Figure:
    """Loss against width at one budget: the law's as a line, those of runs as points."""
    fig, ax = plt.subplots(figsize=(5.6, 2.8), layout="constrained")
    ax.plot(list(law), [loss for _, loss in law.values()], label="law, fitted to the recorded runs")
    ax.plot(list(ran), list(ran.values()), "o", c="C3", label="run now")
    ax.axhline(floor, ls=":", c="k", label="floor")
    ax.set_xscale("log", base=2)
    ticks = [width for width in law if width in (4, 8, 12, 16, 24, 32, 48, 64)]
    ax.set_xticks(ticks, ticks)
    ax.minorticks_off()
    ax.set(xlabel="width", ylabel="held-out loss", ylim=(0.4, 1.25 * max(ran.values())))
    ax.legend(fontsize=8)
    return fig


def profiles(
    by_budget: dict[float, tuple[list[float], list[float]]], lowest: dict[float, float]
) -> plt.Figure:
    """IsoFLOP profiles: loss over parameters, a colour a budget, with the lowest point of each valley as a line."""
    fig, ax = plt.subplots(figsize=(6.4, 3.0), layout="constrained")
    for i, (budget, (sizes, losses)) in enumerate(by_budget.items()):
        color = plt.get_cmap("viridis")(0.9 * i / max(1, len(by_budget) - 1))
        c, b, a = np.polyfit(np.log(sizes), losses, 2)
        at = np.geomspace(min(sizes), max(sizes), 60)
        ax.plot(sizes, losses, "o", ms=4, color=color, label=f"{budget:.1e} FLOPs")
        ax.plot(at, c * np.log(at) ** 2 + b * np.log(at) + a, lw=1.2, color=color)
        ax.axvline(lowest[budget], ls=":", lw=1, color=color)
    ax.set_xscale("log")
    ax.set(xlabel="parameters", ylabel="held-out loss [nats a token]")
    ax.legend(fontsize=8)
    return fig


def say_errors(runs: list[dict], off) -> None:
    """Print the errors `off` of a law, a line for each width and a column for each length; means over the seeds."""
    lengths = sorted({run["tokens"] for run in runs})
    for width in sorted({run["width"] for run in runs}):
        texts = []
        for n in lengths:
            mine = [e for e, run in zip(off, runs) if (run["width"], run["tokens"]) == (width, n)]
            texts.append(f"{sum(mine) / len(mine):+6.1%}")
        print(f"width {width:3}:", *texts)
