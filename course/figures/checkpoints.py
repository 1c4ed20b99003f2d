"""Chapter 17b's figures: each function takes data and returns a figure."""

import math

import matplotlib.pyplot as plt

COLOURS = {"the old one": "0.8", "half of the new one": "C3", "the new one": "C0"}


def moments(ways: dict[str, list[str]]) -> plt.Figure:
    """What is left after a kill before each change to the disk, for each way of writing."""
    fig, ax = plt.subplots(figsize=(6.5, 1.9))
    for row, found in enumerate(ways.values()):
        for what, colour in COLOURS.items():
            at = [moment for moment, left in enumerate(found) if left == what]
            ax.scatter(at, [row] * len(at), s=220, marker="s", c=colour, label=None if row else what)
    ax.set(xlabel="changes to the disk before the kill", ylim=(len(ways) - 0.4, -0.6), xlim=(-0.6, None))
    ax.set_yticks(range(len(ways)), ways)
    ax.grid(False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, markerscale=0.6)
    return fig


def bits(moved: list[list[float]]) -> plt.Figure:
    """Change of the loss for each bit of a float32 that was flipped, bit 0 first; a dot a weight."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    least, most = 1e-7, 1e3
    for bit, found in enumerate(moved):
        values = [most if not math.isfinite(v) else max(v, least) for v in found]
        ax.plot([bit] * len(values), values, "o", ms=4, c="C0", alpha=0.6)
    for name, first, last, colour in (
        ("fraction", 0, 22, "0.97"),
        ("exponent", 23, 30, "0.92"),
        ("sign", 31, 31, "0.85"),
    ):
        ax.axvspan(first - 0.5, last + 0.5, color=colour, lw=0, zorder=0)
        ax.annotate(
            name, ((first + last) / 2, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=9
        )
    ax.axhline(0.01, c="C3", lw=1)
    ax.set(xlabel="bit that is flipped", ylabel="change of the loss (nats)", yscale="log", xlim=(31.5, -0.5))
    ax.set_yticks([least, 1e-5, 1e-3, 1e-1, 10, most], ["0", "1e-5", "1e-3", "0.1", "10", "NaN"])
    return fig
