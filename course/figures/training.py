"""Chapter 07's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from course.notebook import show

TICKS = [0.25, 0.5, 1, 2, 4, 8]
STEP = 0.602  # the width of a character of DejaVu Sans Mono, in units of its size


def loss_map(lines: dict[str, float], spans: dict[str, tuple[float, float]]) -> plt.Figure:
    """Losses on an axis, each with its name ("short: what it knows"); spans are arrows between two of them."""
    fig, ax = plt.subplots(figsize=(7.2, 2.3))
    heights = [1.0, 1.65, 2.3]
    for i, (name, nats) in enumerate(sorted(lines.items(), key=lambda line: line[1])):
        ax.plot([nats, nats], [0, heights[i % 3]], lw=2, c=f"C{i}")
        label = name.replace(": ", "\n")
        ax.text(nats, heights[i % 3] + 0.05, label, ha="center", va="bottom", fontsize=7.5)
    for i, (name, (low, high)) in enumerate(spans.items()):
        ax.annotate("", (high, 0.2 + 0.4 * i), (low, 0.2 + 0.4 * i), arrowprops={"arrowstyle": "<->"})
        ax.text(high + 0.08, 0.2 + 0.4 * i, name, va="center", fontsize=7.5, backgroundcolor="white")
    ax.set(yticks=[], xlabel="loss (nats per token)", xlim=(-0.2, 7.6), ylim=(0, 3.1))
    return fig


class LivePlot:
    """One figure of a run, replaced in place: call it with (step, loss), and `held` with what was held out.

    A loss stays on its device until the figure is drawn, so that no step waits for it.
    """

    def __init__(self, lines: dict[str, float], steps: int, every: int = 100):
        self.lines, self.steps, self.every, self.losses, self.held = lines, steps, every, [], {}
        self.handle = display({"text/plain": "waiting for the first losses"}, raw=True, display_id=True)

    def __call__(self, step: int, loss) -> None:
        self.losses.append(loss)
        if (step + 1) % self.every == 0 or step + 1 == self.steps:
            show(self.draw(), alt="The losses so far, between the lines of the map.", handle=self.handle)

    def draw(self) -> plt.Figure:
        fig, ax = plt.subplots(figsize=(7.2, 3.6))
        self.losses = [float(loss) for loss in self.losses]
        ax.semilogy(self.losses, lw=0.4, alpha=0.4, c="C0")
        width = min(50, len(self.losses))
        smooth = np.convolve(self.losses, np.ones(width) / width, "valid")
        ax.plot(
            np.arange(len(smooth)) + width / 2, smooth, c="C0", label=f"training, mean of {width} batches"
        )
        ax.plot(self.held.keys(), self.held.values(), "o-", ms=3, lw=1, c="C1", label="held out")
        for i, (name, nats) in enumerate(self.lines.items()):
            ax.axhline(nats, c=f"C{i + 2}", lw=1, ls="--")
            ax.text(1.01 * self.steps, nats, name.split(":")[0], c=f"C{i + 2}", va="center", fontsize=8)
        low = 0.85 * min([*self.lines.values(), *self.losses])
        ax.set(xlim=(0, self.steps), ylim=(low, None), xlabel="step", ylabel="loss (nats per token)")
        shown = [tick for tick in TICKS if tick > low]
        ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
        ax.minorticks_off()
        ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.9))
        return fig

    def close(self) -> None:
        self.handle.update({"text/plain": "trained; the same figure stands below"}, raw=True)


def answers(right: dict[int, dict[str, float]], baseline: dict[str, float], steps: int) -> plt.Figure:
    """The share of right answers against steps, by kind, with a table of pairs for comparison."""
    fig, ax = plt.subplots(figsize=(7.2, 2.3))
    for i, kind in enumerate(("copied", "computed")):
        ax.plot(right.keys(), [share[kind] for share in right.values()], ".-", c=f"C{i}", label=kind)
        ax.axhline(baseline[kind], c=f"C{i}", lw=1, ls="--", label=f"{kind}, by the bigram")
    ax.set(xlim=(0, steps), ylim=(0, 1.03), xlabel="step", ylabel="answers right")
    ax.legend(fontsize=8, ncols=2, loc="center right", bbox_to_anchor=(1, 0.52))
    return fig


def costs(texts: list[list[tuple[str, float, bool]]], width: int = 84) -> plt.Figure:
    """Texts as tokens, each (token, nats, framed) shaded by its nats, in lines of at most `width` characters."""
    placed, y = [], 0
    for tokens in texts:
        x = 0
        for token, nats, framed in tokens:
            x, y = (0, y + 1) if x + len(token) > width else (x, y)
            indent = len(token) - len(token.lstrip())
            placed.append((x + indent, y, token.strip(), nats, framed))
            x += len(token)
        y += 2
    inches, high = 7.2, 0.27 * y
    fig = plt.figure(figsize=(inches, high + 0.5))
    ax = fig.add_axes((0, 0.5 / (high + 0.5), 1, high / (high + 0.5)))
    norm, size = plt.Normalize(0, 4.5), 72 * inches / (width * STEP) * 0.98
    for x, y_, token, nats, framed in placed:
        box = {
            "facecolor": plt.cm.Blues(norm(min(nats, 4.5))),
            "edgecolor": "crimson" if framed else "none",
            "pad": 0.8,
        }
        color = "white" if nats > 2.6 else "black"
        ax.text(x + 0.5, -y_, token, family="DejaVu Sans Mono", fontsize=size, color=color, bbox=box)
    ax.set(xlim=(0, width + 1), ylim=(1.7 - y, 0.8))
    ax.axis("off")
    bar = fig.add_axes((0.25, 0.28 / (high + 0.5), 0.5, 0.1 / (high + 0.5)))
    colors = plt.cm.ScalarMappable(norm, "Blues")
    fig.colorbar(colors, cax=bar, orientation="horizontal", label="nats", extend="max")
    return fig
