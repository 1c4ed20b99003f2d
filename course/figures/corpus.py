"""The drawings of chapter 02."""

import matplotlib.pyplot as plt


def mean_losses(qs: list[float], losses: list[float], best: float, entropy: float) -> plt.Figure:
    """A model's mean loss against what it says, with the least marked."""
    fig, ax = plt.subplots(figsize=(6, 2.8))
    ax.plot(qs, losses)
    ax.axhline(entropy, color="C2", linestyle="--", linewidth=1)
    ax.plot(best, entropy, "o", color="C2")
    ax.annotate(
        f"q = p = {best:g}: {entropy:.3f} nats",
        (best, entropy),
        xytext=(-12, 28),
        textcoords="offset points",
        ha="right",
        arrowprops={"arrowstyle": "-", "color": "C2"},
    )
    ax.text(0.01, entropy, "the entropy of p", color="C2", va="bottom", fontsize=9)
    ax.set(xlim=(0, 1), ylim=(0, 2.5), xlabel="q(sun), which the model says", ylabel="mean loss (nats a day)")
    return fig


def surprise(stories: list[list[tuple[str, float, bool]]], width: int = 74) -> plt.Figure:
    """Stories as words shaded by their nats; a frame around those that are answers."""
    fig, axes = plt.subplots(
        len(stories), figsize=(7, 1.6 * len(stories)), layout="constrained", squeeze=False
    )
    norm = plt.Normalize(0, max(nats for words in stories for _, nats, _ in words))
    for ax, words in zip(axes[:, 0], stories):
        x = y = 0
        for word, nats, answer in words:
            x, y = (0, y - 1) if x + len(word) > width else (x, y)
            box = {
                "facecolor": plt.cm.Blues(norm(nats)),
                "edgecolor": "crimson" if answer else "none",
                "pad": 1.6,
            }
            color = "white" if norm(nats) > 0.6 else "black"
            ax.text(x, y, word, family="monospace", fontsize=8.5, color=color, bbox=box)
            x += len(word) + 1
        ax.set(xlim=(0, width), ylim=(y - 0.6, 0.9))
        ax.axis("off")
    colors = plt.cm.ScalarMappable(norm, "Blues")
    fig.colorbar(colors, ax=axes, label="nats", aspect=40, fraction=0.03)
    return fig
