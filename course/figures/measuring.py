"""The figures of chapter 09, and its memory widget."""

import matplotlib.pyplot as plt
import numpy as np

from course import widgets

PHASES = {"forward": "C0", "backward": "C1", "update": "C2"}


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


def copy_rates(rates: dict[int, float]):
    """Bytes/s of a copy by the array's size in MiB."""
    fig, ax = plt.subplots(figsize=(6, 2.6))
    ax.semilogx(list(rates), [rate / 1e9 for rate in rates.values()], "o-", base=2)
    ax.axhline(list(rates.values())[-1] / 1e9, ls=":", c="gray")
    ax.set(xlabel="size of the array (MiB)", ylabel="copy rate (GB/s)", ylim=0)
    ax.set_title("Arrays smaller than a cache measure the cache")
    return fig


def roofline(roof, points: dict[str, float]):
    """The attainable rate of each format, and points of float32 by name -> FLOP/byte, labelled in a column each side."""
    fig, ax = plt.subplots(figsize=(7, 4))
    line = np.logspace(np.log10(min(points.values())) - 0.5, np.log10(max(points.values())) + 0.7, 200)
    for dtype in roof.flops:
        ax.loglog(line, [roof.attainable(i, dtype) / 1e9 for i in line], label=dtype)
    ridge = roof.ridge()
    ax.axvline(ridge, c="0.3", ls=":", lw=1)
    top, bottom = roof.flops["float32"] / 1e9, roof.attainable(line[0]) / 1e9
    ordered = sorted(points.items(), key=lambda item: item[1])
    heights = np.geomspace(bottom * 1.2, top * 0.55, len(ordered))
    for (name, intensity), height in zip(ordered, heights):  # labels below the roof, one under the other
        at = roof.attainable(intensity) / 1e9
        ax.plot(intensity, at, "o", c="C0" if intensity < ridge else "C3", ms=5, zorder=3)
        ax.plot([intensity, intensity * 1.6], [at, height / 1.15], c="0.7", lw=0.5)
        ax.text(intensity * 1.7, height / 1.2, name, fontsize=8, va="center")
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="attainable GFLOP/s", ylim=(bottom / 2, None))
    ax.set_title("left of float32's dotted ridge: memory-bound")
    ax.legend(loc="upper left")
    return fig


def memory_bars(rows: dict[str, dict[int, dict[str, int]]]):
    """Panel title -> batch -> bytes by category."""
    fig, axes = plt.subplots(1, len(rows), figsize=(7, 3), sharey=True)
    for ax, (title, by_batch) in zip(axes, rows.items()):
        bottom = np.zeros(len(by_batch))
        for name in next(iter(by_batch.values())):
            height = np.array([memory[name] / 2**30 for memory in by_batch.values()])
            ax.bar([str(batch) for batch in by_batch], height, bottom=bottom, label=name)
            bottom += height
        ax.set(xlabel="batch of 1024 tokens", title=title)
    axes[0].set_ylabel("GiB, float32")
    axes[0].legend(loc="upper left")
    fig.tight_layout()
    return fig


def memory_widget(sizes: list[str], memory_of):
    """Knobs for size, B, T and flash over a bar chart of `memory_of(size, B, T, flash)`, bytes by category."""
    from ipywidgets import Checkbox, Dropdown, IntSlider

    def bars(**knobs):
        memory, ax = memory_of(*knobs.values()), widgets.axes((6, 2))
        ax.barh(list(memory), [v / 2**30 for v in memory.values()])
        ax.axvline(24, c="C3", ls=":")
        ax.set(xlabel="GiB, float32 (dotted: 24)", title=f"{sum(memory.values()) / 2**30:.1f} GiB together")
        ax.invert_yaxis()
        return ax

    B, T = IntSlider(4, 1, 32), IntSlider(1024, 128, 1024, 128)
    return widgets.explorer(bars, size=Dropdown(options=sizes), B=B, T=T, flash=Checkbox(True))


def memory_levels(levels: list[tuple[float, int]], phases: list[dict], before: int, moments: dict[str, int]):
    """Bytes over the µs of one step, its phases (profiler events) shaded, predicted moments dotted."""
    us, level = zip(*levels)
    fig, ax = plt.subplots(figsize=(7, 3.2))
    ax.step([(t - us[0]) / 1e3 for t in us], [(before + v) / 2**20 for v in level], c="k", where="post", lw=1)
    for event in phases:
        start = (event["ts"] - us[0]) / 1e3
        ax.axvspan(
            start, start + event["dur"] / 1e3, color=PHASES[event["name"]], alpha=0.2, label=event["name"]
        )
    for name, value in moments.items():
        ax.axhline(value / 2**20, c="0.5", ls=":", lw=1)
        ax.text(0, value / 2**20, name, fontsize=8, va="bottom", color="0.3")
    ax.set(xlabel="ms, with the profiler running", ylabel="MiB (the axis begins at what is always held)")
    ax.set_ylim(0.98 * before / 2**20)
    ax.legend(loc="center")
    return fig


def parts(found: dict[str, float], predicted: dict[str, float]):
    """Seconds by part, measured beside predicted, the largest on top."""
    names = sorted(found, key=found.get)
    fig, ax = plt.subplots(figsize=(7, 4))
    y = np.arange(len(names))
    ax.barh(y + 0.2, [1e3 * found[n] for n in names], 0.38, label="measured")
    ax.barh(
        y - 0.2,
        [1e3 * predicted.get(n, 0) for n in names],
        0.38,
        color="C0",
        alpha=0.35,
        label="by the roofline",
    )
    ax.set_yticks(y, names)
    ax.set(xlabel="ms in a step")
    ax.legend(loc="lower right")
    return fig
