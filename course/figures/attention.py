"""Chapter 04's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np

from course.figures import widgets

WIDE_MAP = 4.8  # inches


def sentence(words, arcs):
    """A sentence whose last word is asked for, at the one before; arcs: (looks, found, colour, label), by position."""
    at, x = [], 0.0
    fig, ax = plt.subplots(figsize=(7, 2.2))
    for i, word in enumerate(words):
        at.append(x + len(word) / 2)
        box = dict(boxstyle="round,pad=0.25", fc="#dbe9f6" if i == len(words) - 2 else "none", ec="none")
        ax.text(at[-1], 0, word, ha="center", va="top", family="monospace", bbox=box)
        x += len(word) + 1.2
    for looks, found, colour, label in arcs:
        reach = at[looks] - at[found]
        rise = 1.3 if reach < 8 else 2.0 if reach < 16 else 3.4  # how far the curve's control point is above
        curve = f"arc3,rad={rise / reach * 4:.2f}"
        arrow = dict(arrowstyle="->", connectionstyle=curve, color=colour, lw=2)
        ax.annotate("", (at[found], 0.1), (at[looks], 0.1), arrowprops=arrow)
        ax.text((at[looks] + at[found]) / 2, 0.25 + rise * 0.62, label, color=colour, ha="center", fontsize=9)
    ax.text(at[-2] + 1, -0.95, "looks", color="gray", ha="right", va="top", fontsize=8)
    ax.text(at[-1] - 0.5, -0.95, "asked for", color="gray", ha="left", va="top", fontsize=8)
    ax.set(xlim=(0, x + 2), ylim=(-1.5, 3))
    ax.axis("off")
    return fig


def matrices(average, scores, weights):
    """Weights and scores of T queries for T keys, with the colours' scales."""
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.6), layout="constrained")
    scores = np.where(np.tril(np.ones(scores.shape)), scores, np.nan)
    titles = ["average of the past", "scores, future masked", "their softmax"]
    for ax, matrix, title in zip(axes, [average, scores, weights], titles):
        cmap, low, high = ("RdBu", -4, 4) if matrix is scores else ("Blues", 0, 1)
        picture = ax.imshow(matrix, cmap=cmap, vmin=low, vmax=high)
        ticks = range(0, len(matrix), 2)
        ax.set(xlabel="key (looked at)", xticks=ticks, yticks=ticks)
        ax.set_title(title, fontsize=10)
        ax.set_facecolor("0.9")  # shows where the score is −∞
        ax.grid(False)
        if ax is not axes[0]:
            fig.colorbar(picture, ax=ax, shrink=0.75, label="score" if matrix is scores else "weight")
    axes[0].set_ylabel("query (looks)")
    return fig


def influence(maps):
    """Title -> (T, T) matrix: which input moves which output."""
    fig, axes = plt.subplots(1, len(maps), figsize=(6, 2.9))
    largest = max(matrix.max() for matrix in maps.values())  # one scale, so that the colours can be compared
    for ax, (title, matrix) in zip(axes, maps.items()):
        ax.imshow(matrix, cmap="Blues", vmin=0, vmax=largest)
        ax.set(title=title, xlabel="input position", ylabel="output position")
        ax.grid(False)
    return fig


def learning(curves, lines):
    """curves: label -> loss of each step; lines: label -> height, drawn across and named. Labels tell where curves end."""
    fig, ax = plt.subplots(figsize=(7.2, 3.2))
    for label, curve in curves.items():
        last = curve[-20:]
        ax.plot(curve, label=f"{label}: {sum(last) / len(last):.2f} in the last {len(last)} steps")
    for label, y in lines.items():
        ax.axhline(y, ls=":", c="gray")
        ax.annotate(
            f"{label}, {y:.2f}", (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8
        )
    ax.set(xlabel="step", ylabel="loss on repeats (nats)", ylim=(0, 4.9))
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, frameon=False)
    return fig


def draw_map(ax, characters, weights):
    """One head's weights (T, T), named by character on both axes."""
    ax.imshow(weights.numpy(force=True), cmap="Blues", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])  # a tick takes three times as long to draw as its text
    for i, name in enumerate(c.replace(" ", "·") for c in characters):
        ax.text(i, len(characters) - 0.3, name, fontsize=7, family="monospace", ha="center", va="top")
        ax.text(-0.8, i, name, fontsize=7, family="monospace", ha="right", va="center")
    ax.grid(False)


def head_maps(characters, maps):
    """Title -> one head's weights (T, T), side by side."""
    fig, axes = plt.subplots(1, len(maps), figsize=(7, 3.6), squeeze=False)
    for ax, (title, weights) in zip(axes[0], maps.items()):
        draw_map(ax, characters, weights)
        ax.set_title(title, fontsize=10)
    return fig


def hops(characters, first, second):
    """Where two heads look, each (T, T): `first` from the middle row to the lowest, `second` from the last of the top row."""
    fig, ax = plt.subplots(figsize=(6, 2.8))
    rows = ["comes in", "after layer 0", "after layer 1"]
    for y, name in enumerate(rows):
        ax.text(-0.7, y, name, ha="right", va="center", color="gray", fontsize=9)
        for x, character in enumerate(characters):
            ax.text(x, y, character, ha="center", va="center", family="monospace", fontsize=12)
    last = len(characters) - 1
    for y, weights, looks, colour in [(1, first, range(len(characters)), "C0"), (2, second, [last], "C3")]:
        for t in looks:
            for s in range(t + 1):
                weight = weights[t, s].item()
                ends = [s + 0.15 * (t - s), t - 0.15 * (t - s)]
                ax.plot(
                    ends, [y - 0.85, y - 0.15], color=colour, lw=5 * weight, alpha=min(1.0, 0.15 + weight)
                )
    ax.set(xlim=(-2.6, last + 0.6), ylim=(-0.4, 2.4))
    ax.axis("off")
    return fig


def map_widget(sentence, alphabet, maps_of):
    """A sentence, a layer and a head; maps_of(text) gives every layer's weights (1, n_head, T, T) on its characters."""
    first_maps = maps_of(sentence)

    def draw(sentence, layer, head):
        characters = [c for c in sentence if c in alphabet]
        if len(characters) < 2:
            raise ValueError(f"{len(characters)} characters of the alphabet are too few: type two or more")
        weights = maps_of(sentence)[layer][0, head]
        characters = characters[: len(weights)]  # a longer text is cut
        ax = widgets.axes(WIDE_MAP, left=0.9, right=0.9)
        draw_map(ax, characters, weights)
        ax.set_xlabel("key (looked at)", labelpad=14)
        ax.set_ylabel("query (looks)", labelpad=14)
        before, first = weights.diagonal(-1).mean(), weights[1:, 0].mean()
        left_out = len(sentence) - len(characters)
        words = f"Layer {layer}, head {head}, {len(characters)} characters" + (
            f", {left_out} left out" if left_out else ""
        )
        return (
            ax,
            f"{words}: {before:.0%} of the weight lies on the character before, {first:.0%} on the first.",
        )

    layers, heads = list(range(len(first_maps))), list(range(first_maps[0].size(1)))
    return widgets.explorer(draw, sentence=sentence, layer=(layers[-1], layers), head=(0, heads))
