"""Chapter 18's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np


def excess(table: dict[str, dict[str, float]]) -> plt.Figure:
    """Nats a story above the floor, a bar a model, split by kind: in full on the left, the best models on the right."""
    kinds = [kind for kind in next(iter(table.values())) if max(row[kind] for row in table.values()) > 0.05]
    totals = {name: sum(row.values()) for name, row in table.items()}
    limits = max(totals.values()), 1.15 * sorted(totals.values())[min(2, len(totals) - 1)]
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 0.3 * len(table) + 1.7), sharey=True)
    colors = plt.cm.tab20(np.linspace(0, 1, 20))[: len(kinds)]
    for ax, limit in zip(axes, limits):
        left = np.zeros(len(table))
        for kind, color in zip(kinds, colors):
            width = np.array([max(0.0, row[kind]) for row in table.values()])
            ax.barh(range(len(table)), width, left=left, color=color, label=kind)
            left += width
        for y, total in enumerate(totals.values()):
            if total < 0.9 * limit:
                ax.text(
                    total + 0.01 * limit,
                    y,
                    f"{total:.0f}" if limit > 60 else f"{total:.1f}",
                    va="center",
                    fontsize=7,
                )
        ax.set_xlim(0, limit)
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(table)), table, fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("nats a story above the floor")
    axes[1].set_xlabel("the same, enlarged")
    fig.legend(*axes[0].get_legend_handles_labels(), ncols=4, fontsize=7, loc="upper center", frameon=False)
    fig.tight_layout(rect=(0, 0, 1, 1 - 0.75 / fig.get_figheight()))
    return fig
