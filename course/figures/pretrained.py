"""Chapter 06's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def mistakes(distance, own, eps):
    """One bar for each mistake, on a log scale, and one for the distance of the model without a mistake."""
    fig, ax = plt.subplots(figsize=(5.2, 2.6))
    bars = {"none: our model in float32": own} | dict(reversed(distance.items()))
    ax.barh(list(bars), list(bars.values()), color=["C0", *["C3"] * len(distance)], height=0.6)
    ax.axvline(eps, color="gray", lw=0.8, ls=":")
    ax.text(eps, len(bars) - 0.4, "ε of float32", fontsize=8, color="gray", ha="center")
    ax.set(xscale="log", xlim=(1e-8, 4), xlabel="distance of the logits")
    ax.grid(axis="y", visible=False)
    return fig
