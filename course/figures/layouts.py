"""Chapter 21d's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def holders(held: dict[str, list[list[int]]], shape: tuple[int, int]) -> plt.Figure:
    """Which part of one matrix each rank holds: a column a layout, a row a rank; held: first and last row and column."""
    ranks = len(next(iter(held.values())))
    fig, panels = plt.subplots(
        ranks, len(held), figsize=(7, 0.95 * ranks), layout="constrained", squeeze=False
    )
    for column, (name, boxes) in enumerate(held.items()):
        panels[0][column].set_title(name, fontsize=9)
        for rank, (top, bottom, left, right) in enumerate(boxes):
            ax = panels[rank][column]
            ax.add_patch(
                plt.Rectangle((left, top), right - left + 1, bottom - top + 1, color=f"C{rank}", lw=0)
            )
            ax.set(xlim=(0, shape[1]), ylim=(shape[0], 0), xticks=[], yticks=[])
            ax.grid(False)
            if column == 0:
                ax.set_ylabel(f"rank {rank}", fontsize=9)
    panels[-1][0].set_xlabel(f"{shape[1]} inputs", fontsize=8)
    panels[-1][-1].set_xlabel(f"of {shape[0]} × {shape[1]}", fontsize=8)
    return fig


def memory(kept: dict[str, dict[str, int]]) -> plt.Figure:
    """Bytes that a rank keeps between two steps, a bar a layout, by kind."""
    fig, ax = plt.subplots(figsize=(7, 2.4), layout="constrained")
    left = [0.0] * len(kept)
    for i, kind in enumerate(next(iter(kept.values()))):
        sizes = [part[kind] / 1e6 for part in kept.values()]
        ax.barh(list(kept), sizes, left=left, color=f"C{i}", label=kind)
        left = [a + b for a, b in zip(left, sizes)]
    ax.invert_yaxis()
    ax.set_xlabel("MB on each rank")
    ax.legend()
    return fig


def traffic(seconds: dict[str, dict[str, float]]) -> plt.Figure:
    """Seconds of communication a step, a group of bars a model, a bar a layout; and the step's computing as a line."""
    fig, panels = plt.subplots(1, len(seconds), figsize=(7, 2.6), layout="constrained")
    for ax, (model, parts) in zip(panels, seconds.items()):
        compute = parts["computing"]
        names = [name for name in parts if name != "computing"]
        bars = ax.barh(names, [parts[name] / compute for name in names])
        for bar, name in zip(bars, names):
            bar.set_color("C3" if parts[name] > compute else "C0")
        ax.axvline(1, c="0.3", lw=1)
        ax.invert_yaxis()
        ax.set_xscale("log")
        ax.set_title(model, fontsize=9)
    for ax in panels[1:]:
        ax.set_yticklabels([])
    panels[0].set_xlabel("time on the link / time of computing")
    return fig
