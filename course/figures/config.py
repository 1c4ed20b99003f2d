"""Chapter 17c's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator

CARDS = {"T4": 16, "RTX 4090": 24, "A100": 40}  # GB


def memory(parts: dict[int, dict[str, float]]) -> plt.Figure:
    """GB by category, stacked, for each micro-batch; dashed, what GPUs have, where a bar comes near."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    rows, bottom = [str(B) for B in parts], [0.0] * len(parts)
    for what in next(iter(parts.values())):
        height = [each[what] for each in parts.values()]
        ax.bar(rows, height, bottom=bottom, label=what)
        bottom = [a + b for a, b in zip(bottom, height)]
    for name, size in CARDS.items():
        if size < 2 * max(bottom):
            ax.axhline(size, c="0.4", ls="--", lw=1)
            ax.annotate(
                f"{name}, {size} GB", (-0.4, size), xytext=(0, 2), textcoords="offset points", fontsize=8
            )
    ax.set(xlabel="rows of 1,024 tokens in a micro-batch", ylabel="GB, all in float32")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return fig


def dry_run(steps: list[tuple[int, float, float | None]]) -> plt.Figure:
    """Of each model: parameters, seconds that the roofline allows, seconds measured or None."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    n, least = [step[0] for step in steps], [step[1] for step in steps]
    ax.plot([x / 1e6 for x in n], [1000 * s for s in least], "o-", c="0.5", label="what the roofline allows")
    known = [(x / 1e6, 1000 * s, s / low) for x, low, s in steps if s]
    if known:
        ax.plot(*list(zip(*known))[:2], "o-", c="C0", label="measured")
    for x, ms, ratio in known:
        ax.annotate(
            f"{ratio:.1f} ×", (x, ms), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=9
        )
    ax.set(xlabel="parameters (millions)", ylabel="ms a step", xscale="log", yscale="log")
    ax.set_xticks([x / 1e6 for x in n], [f"{x / 1e6:.2g}" for x in n])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend()
    return fig
