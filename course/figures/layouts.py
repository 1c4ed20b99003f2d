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


def traffic(shares: dict[str, dict[str, tuple[float, float]]], room: float) -> plt.Figure:
    """Time on the link over time of computing, a panel a model, a point a layout; red where a GPU has not the GB."""
    fig, panels = plt.subplots(1, len(shares), figsize=(7, 2.2), layout="constrained", sharey=True)
    for ax, (model, layouts) in zip(panels, shares.items()):
        colours = ["C3" if gb > room else "C0" for _, gb in layouts.values()]
        ax.scatter([share for share, _ in layouts.values()], list(layouts), color=colours, s=40)
        ax.axvline(1, c="0.3", lw=1)
        ax.set_xscale("log")
        ax.set_xlim(0.03, 30)
        ax.set_title(model, fontsize=9)
    panels[0].invert_yaxis()
    panels[len(panels) // 2].set_xlabel("time on the link / time of computing")
    return fig


def curves(losses: dict[str, list[float]], change: int) -> plt.Figure:
    """Losses of one process as a line, of the run that was laid out as dots, and where its layout changed."""
    fig, ax = plt.subplots(figsize=(6.5, 2.6), layout="constrained")
    steps = range(1, len(losses["one"]) + 1)
    ax.plot(steps, losses["one"], lw=4, c="0.8", label="one process")
    ax.plot(steps, losses["laid"], ".", c="C0", label="laid out")
    ax.axvline(change + 0.5, c="C3", lw=1, label="another layout")
    ax.set(xlabel="step", ylabel="loss (nats per token)")
    ax.legend()
    return fig
