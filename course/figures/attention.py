"""Chapter 04's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt

from course import widgets

WIDE_MAP = 4.8  # inches


def sentence(words, looks, arcs):
    """A sentence whose last word is asked for; position `looks` fetches from (found, colour, label)."""
    at, x = [], 0.0
    fig, ax = plt.subplots(figsize=(7, 1.9))
    for i, word in enumerate(words):
        at.append(x + len(word) / 2)
        box = dict(boxstyle="round,pad=0.25", fc="#dbe9f6" if i == looks else "none", ec="none")
        ax.text(at[-1], 0, word, ha="center", va="top", family="monospace", bbox=box)
        x += len(word) + 1.2
    for found, colour, label in arcs:
        reach = at[looks] - at[found]
        arc = dict(
            arrowstyle="->", connectionstyle=f"arc3,rad={0.9 if reach < 8 else 0.3}", color=colour, lw=2
        )
        ax.annotate("", (at[found], 0.1), (at[looks], 0.1), arrowprops=arc)
        ax.text((at[looks] + at[found]) / 2, 0.8 if reach < 8 else 1.75, label, color=colour, ha="center")
    ax.text(at[looks] + 1, -0.95, "looks", color="gray", ha="right", va="top", fontsize=8)
    ax.text(at[-1] - 0.5, -0.95, "asked for", color="gray", ha="left", va="top", fontsize=8)
    ax.set(xlim=(0, x + 2), ylim=(-1.5, 2.1))
    ax.axis("off")
    return fig


def matrices(average, scores, weights):
    """Weights and scores of T queries for T keys, with the colours' scales."""
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.6), layout="constrained")
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


def saturation(spread, largest, gradient, marks):
    """What softmax does with scores of standard deviation `spread`; marks: text -> deviation."""
    fig, ax = plt.subplots(figsize=(6.5, 3))
    ax.semilogx(spread, largest)
    ax.semilogx(spread, gradient)
    white = dict(fc="white", ec="none", pad=1)
    ax.text(0.105, 0.12, "weight on the largest", color="C0", bbox=white)
    ax.text(0.105, 0.85, "gradient let through, Σ p(1−p)", color="C1", bbox=white)
    for text, at in marks.items():
        ax.axvline(at, c="gray", ls=":", zorder=0)
        style = dict(color="0.3", fontsize=8, ha="center", va="center", rotation=90, bbox=white)
        ax.text(at, 0.5, text.replace(", ", "\n"), **style)
    ax.set(xlabel="standard deviation of the scores", ylabel="weight, gradient", ylim=(0, 1.02))
    return fig


def influence(maps):
    """Title -> (T, T) matrix: which input moves which output."""
    fig, axes = plt.subplots(1, len(maps), figsize=(6, 2.9))
    for ax, (title, matrix) in zip(axes, maps.items()):
        ax.imshow(matrix, cmap="Blues", vmin=0)
        ax.set(title=title, xlabel="input position", ylabel="output position")
        ax.grid(False)
    return fig


def learning(curves, lines):
    """curves: label -> loss of each step; lines: label -> height, drawn across and named under the line."""
    fig, ax = plt.subplots(figsize=(6.2, 3))
    for label, curve in curves.items():
        ax.plot(curve, label=label)
    for label, y in lines.items():
        ax.axhline(y, ls=":", c="gray")
        ax.text(
            len(curve),
            y + (0.05 if y > 4 else -0.08),
            label,
            color="gray",
            fontsize=8,
            ha="right",
            va="bottom" if y > 4 else "top",
        )
    ax.set(xlabel="step", ylabel="loss on repeats (nats)", ylim=(0, 4.7))
    ax.legend(loc="center right", bbox_to_anchor=(1, 0.32))
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
    """All heads of all layers, each (1, n_head, T, T), one row a layer."""
    rows, columns = len(maps), maps[0].size(1)
    fig, axes = plt.subplots(rows, columns, figsize=(7, 7.2 * rows / columns), squeeze=False)
    for i, row in enumerate(axes):
        for h, ax in enumerate(row):
            draw_map(ax, characters, maps[i][0, h])
            ax.set_title(f"layer {i}, head {h}")
    return fig


def map_widget(sentence, look, layers, heads):
    """A sentence, a layer and a head; look(text) gives the characters read and the maps of every layer."""

    def draw(sentence, layer, head):
        characters, maps = look(sentence)
        if len(characters) < 2:
            raise ValueError(f"{len(characters)} characters of the alphabet are too few: type two or more")
        ax, weights = widgets.axes(WIDE_MAP, left=0.9, right=0.9), maps[layer][0, head]
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

    return widgets.explorer(
        draw, sentence=sentence, layer=(layers - 1, list(range(layers))), head=(0, list(range(heads)))
    )
