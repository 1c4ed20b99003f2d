"""The figures of chapters 23 to 23d: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def programs(n: int, block: int) -> plt.Figure:
    """n numbers in a row, cut into programs of `block`; lanes behind the end are masked."""
    fig, ax = plt.subplots(figsize=(7, 1.3), layout="tight")
    count = -(-n // block)
    for at in range(count * block):
        color = f"C{at // block}" if at < n else "white"
        ax.add_patch(plt.Rectangle((at, 0), 0.9, 0.9, fc=color, ec="0.4", hatch="" if at < n else "///"))
    for program in range(count):
        ax.text((program + 0.5) * block, 1.2, f"program {program}", ha="center")
    ax.set(xlim=(-0.2, count * block + 0.2), ylim=(-0.1, 1.8))
    ax.axis("off")
    return fig


def levels(curves: dict[str, list[tuple[int, int]]]) -> plt.Figure:
    """Allocated memory over time of several calls; each curve is a list of (ns, bytes)."""
    fig, ax = plt.subplots(figsize=(7, 2.6), layout="tight")
    for name, points in curves.items():
        start, end = points[0][0], points[-1][0]
        ax.step(
            [(at - start) / (end - start) for at, _ in points], [n / 2**20 for _, n in points], label=name
        )
    ax.set(xlabel="time, each call from its start to its end", ylabel="MiB", ylim=(0, None))
    ax.legend()
    return fig


def walks(n: int) -> plt.Figure:
    """The n (n + 1) / 2 tiles of causal attention twice: programs that walk along rows, and down columns."""
    fig, axes = plt.subplots(1, 2, figsize=(6.5, 2.9), layout="tight")
    for ax, down, title in zip(
        axes, (False, True), ("forward, and dq: a block of rows", "dk, dv: a block of keys")
    ):
        for row in range(n):
            for column in range(row + 1):
                color = f"C{column if down else row}"
                ax.add_patch(plt.Rectangle((column, row), 0.92, 0.92, fc=color, alpha=0.5))
        for k in range(n):
            start, end = (
                ((k + 0.46, k + 0.2), (k + 0.46, n - 0.2)) if down else ((0.2, k + 0.46), (k + 0.8, k + 0.46))
            )
            ax.annotate("", end, start, arrowprops={"arrowstyle": "->"})
        ax.set(xlim=(-0.1, n), ylim=(n, -0.1), aspect="equal", title=title, xlabel="blocks of keys")
        ax.set(ylabel="blocks of rows", xticks=[], yticks=[])
    return fig
