"""Chapter 21b's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def mlp(n: int) -> plt.Figure:
    """An MLP of which every rank has some of the hidden units: f, columns, GELU, rows, g."""
    fig, ax = plt.subplots(figsize=(7.2, 0.9 + 0.85 * n), layout="constrained")
    middle = (n - 1) / 2

    def box(x, y, text, color, width=1.0, height=0.5):
        ax.add_patch(plt.Rectangle((x - width / 2, y - height / 2), width, height, fc=color, ec="0.3"))
        ax.text(x, y, text, ha="center", va="center", fontsize=9)

    def arrow(x0, y0, x1, y1):
        ax.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": "0.4"})

    for rank in range(n):
        y, color = n - 1 - rank, f"C{rank % 10}"
        for x, text in ((2.6, "columns\nof c_fc"), (4.0, "GELU"), (5.4, "rows\nof c_proj")):
            box(x, y, text, plt.matplotlib.colors.to_rgba(color, 0.25), 1.05, 0.6)
        arrow(1.55, middle, 2.05, y)
        arrow(3.15, y, 3.45, y)
        arrow(4.55, y, 4.85, y)
        arrow(5.95, y, 6.45, middle)
        ax.text(2.0, y + 0.36, f"rank {rank}", fontsize=8, color=color)
    box(0.35, middle, "x", "0.95", 0.5)
    box(1.3, middle, "f", "0.85", 0.45)
    box(6.7, middle, "g", "0.85", 0.45)
    box(7.65, middle, "y", "0.95", 0.5)
    arrow(0.62, middle, 1.05, middle)
    arrow(6.95, middle, 7.38, middle)
    for x, text in ((1.3, "backward:\nall-reduce"), (6.7, "forward:\nall-reduce")):
        ax.text(x, middle - 0.33, text, ha="center", va="top", fontsize=8)
    ax.set(xlim=(0, 8), ylim=(-0.75, n - 0.35))
    ax.axis("off")
    return fig


def bytes_a_step(tokens: list[int], lines: dict[str, list[float]]) -> plt.Figure:
    """What a rank puts into all-reduces in a step, in MB, against the tokens that it computes on."""
    fig, ax = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
    for name, mb in lines.items():
        ax.plot(tokens, mb, label=f"{name} parallel")
    ax.set(xscale="log", yscale="log", xlabel="tokens a step on each rank", ylabel="MB into all-reduces")
    ax.legend()
    return fig
