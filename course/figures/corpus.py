"""The drawings of chapter 02."""

import math
import re

import matplotlib.pyplot as plt


def mean_losses(mean_loss, p: dict[str, float]) -> plt.Figure:
    """A model's mean loss against the probability it gives to the first of two words; p: the true probabilities."""
    (word, best), (other, _) = p.items()
    qs = [i / 100 for i in range(1, 100)]
    losses, entropy = [mean_loss(p, {word: q, other: 1 - q}) for q in qs], mean_loss(p, p)
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
    ax.set(
        xlim=(0, 1), ylim=(0, 2.5), xlabel=f"q({word}), which the model says", ylabel="mean loss (nats a day)"
    )
    return fig


def shaded(told) -> list[tuple[str, float, bool]]:
    """Each word of a story, the nats of the choices made in it, and whether an answer begins in it."""
    words = []
    for word in re.finditer(r"\S+", told.text):
        inside = range(*word.span())
        nats = sum(math.log(options) for at, options in told.choices if at in inside)
        words.append((word.group(), nats, any(start in inside for start, _ in told.answers)))
    return words


def surprise(tellings: list, width: int = 74) -> plt.Figure:
    """Stories as words shaded by their nats; a frame around those that are answers."""
    stories = [shaded(told) for told in tellings]
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
