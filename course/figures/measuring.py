"""The figures of chapters 09 and 09b."""

import matplotlib.pyplot as plt
import numpy as np


def queue(rows: dict[bool, list]):
    """rows: synchronised after each part or not -> the host's log and the queue's, of (name, start, end)."""
    fig, axes = plt.subplots(2, 1, figsize=(7, 3.4), sharex=True)
    colours = {"forward": "C0", "backward": "C1", "loss.item()": "C3"}
    for ax, (each, logs) in zip(axes, rows.items()):
        begin = logs[0][0][1]
        for y, log in enumerate(logs):
            for name, start, end in log:
                at, width = 1e3 * (start - begin), 1e3 * (end - start)
                ax.barh(y, width, left=at, color=colours[name], edgecolor="white", height=0.6)
                if y == 0 and width > 20:
                    label = f"{name} {width:.0f} ms"
                    ax.text(at + width / 2, 0, label, ha="center", va="center", fontsize=8)
        ax.set_yticks([0, 1], ["the host's clock", "the queue"])
        ax.set_axisbelow(True)
        ax.set_title(
            "synchronized after each part" if each else "the clock read between the parts", fontsize=10
        )
        ax.invert_yaxis()
    axes[-1].set_xlabel("ms (model of a GPU)")
    fig.tight_layout()
    return fig


def step_times(times: list[float]):
    """Seconds of each step in order, with mean and median."""
    fig, ax = plt.subplots(figsize=(6.5, 2.6))
    ax.plot(range(1, len(times) + 1), [1e3 * t for t in times], "o-")
    ax.axhline(1e3 * np.mean(times), c="C3", ls=":", label="mean")
    ax.axhline(1e3 * np.median(times), c="gray", ls=":", label="median")
    ax.set(xlabel="call", ylabel="ms", ylim=(0, 1.1e3 * max(times)))
    ax.set_title("Training steps in the order in which they came")
    ax.legend()
    return fig


def roofline(roof, points: dict[str, float]):
    """The attainable rate of each format, and points of float32 by name -> FLOP/byte, labelled in a column each side."""

    def attainable(intensity: float, dtype: str = "float32") -> float:
        """The FLOP/s that an operation of this intensity can reach."""
        return min(roof.flops[dtype], intensity * roof.bandwidth)

    fig, ax = plt.subplots(figsize=(7, 4))
    line = np.logspace(np.log10(min(points.values())) - 0.5, np.log10(max(points.values())) + 0.7, 200)
    for dtype in roof.flops:
        ax.loglog(line, [attainable(i, dtype) / 1e9 for i in line], label=dtype)
    ridge = roof.ridge()
    ax.axvline(ridge, c="0.3", ls=":", lw=1)
    top, bottom = roof.flops["float32"] / 1e9, attainable(line[0]) / 1e9
    ordered = sorted(points.items(), key=lambda item: item[1])
    heights = np.geomspace(bottom * 1.2, top * 0.55, len(ordered))
    for (name, intensity), height in zip(ordered, heights):  # labels below the roof, one under the other
        at = attainable(intensity) / 1e9
        ax.plot(intensity, at, "o", c="C0" if intensity < ridge else "C3", ms=5, zorder=3)
        ax.plot([intensity, intensity * 1.6], [at, height / 1.15], c="0.7", lw=0.5)
        ax.text(intensity * 1.7, height / 1.2, name, fontsize=8, va="center")
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="attainable GFLOP/s", ylim=(bottom / 2, None))
    ax.set_title("left of float32's dotted ridge: memory-bound")
    ax.legend(loc="upper left")
    return fig
