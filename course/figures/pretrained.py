"""Chapter 06's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def mistakes(distance, eps, right):
    """One bar for each mistake, on a log scale; `right` names the bar that is no mistake."""
    fig, ax = plt.subplots(figsize=(5.2, 2.6))
    names = list(distance)[::-1]
    ax.barh(
        names, [distance[n] for n in names], color=["C0" if n == right else "C3" for n in names], height=0.6
    )
    ax.axvline(eps, color="gray", lw=0.8, ls=":")
    ax.text(eps, len(names) - 0.4, "ε of float32", fontsize=8, color="gray", ha="center")
    ax.set(xscale="log", xlim=(1e-8, 4), xlabel="distance of the logits")
    ax.grid(axis="y", visible=False)
    return fig
