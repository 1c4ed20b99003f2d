"""Chapter 18b's figures: each function takes data and returns a figure."""

import textwrap

import numpy as np
from torch import Tensor

from course.figures import widgets

UNITS = {"acc": "nats", "acc_norm": "nats per character", "acc_tokens": "nats per token"}


def endings_widget(items: list[dict], by_measure, first: int):
    """What the endings of a question cost by three measures; * the right one, orange the cheapest."""

    def draw(question: int):
        item, costs = items[question], by_measure(question)
        panels = widgets.axes(3.2, left=1.85, right=0.05, top=0.85, bottom=0.45, columns=len(UNITS))
        names = [
            ("* " if i == item["label"] else "") + textwrap.shorten(ending, 44, placeholder=" …")
            for i, ending in enumerate(item["endings"])
        ]
        for ax, (name, unit) in zip(panels, UNITS.items()):
            row = np.array(costs[name])
            ax.barh(
                range(len(row)), row, color=["C1" if i == row.argmin() else "0.75" for i in range(len(row))]
            )
            ax.set_title(name, fontsize=9)
            ax.set_xlabel(unit, fontsize=8)
            ax.tick_params(labelsize=8)
            ax.grid(axis="y", visible=False)
        panels[0].set_yticks(
            range(len(names)), ["\n".join(textwrap.wrap(name, 26)) for name in names], fontsize=8
        )
        panels[0].invert_yaxis()
        panels[0].figure.suptitle("\n".join(textwrap.wrap(item["ctx"] + " …", 88)), fontsize=8)
        right = [name for name in UNITS if np.argmin(costs[name]) == item["label"]]
        return panels[
            0
        ], f"Question {question}: right by {' and '.join(right) or 'none'} of {', '.join(UNITS)}."

    return widgets.explorer(draw, question=(first, 0, len(items) - 1))


def seen(mask: Tensor, ending: Tensor, place: Tensor):
    """Which tokens (columns) each token (rows) sees, coloured by what they are of: the context, or one of the endings."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(4.2, 3.6))
    of = [*((ending[None] + 2) * mask).tolist()]
    ax.imshow(np.ma.masked_equal(of, 0), cmap="tab10", vmin=1, vmax=10)
    labels = [
        f"{'text' if e < 0 else 'ABCDEFGH'[e % 8]} {p}" for e, p in zip(ending.tolist(), place.tolist())
    ]
    ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    ax.set_yticks(range(len(labels)), labels, fontsize=7)
    ax.set_xticks(np.arange(-0.5, len(labels)), minor=True)
    ax.set_yticks(np.arange(-0.5, len(labels)), minor=True)
    ax.grid(which="major", visible=False)
    ax.grid(which="minor", color="0.9", lw=0.5)
    ax.tick_params(which="minor", length=0)
    ax.set(xlabel="a token: whose it is, and its position", ylabel="what it is seen by")
    fig.tight_layout()
    return fig
