"""Chapter 06's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def by_depth(distances, epsilons):
    """Distance to the oracle after each block and at the logits: label -> values; epsilons: text -> height."""
    fig, ax = plt.subplots(figsize=(6.5, 3.3))
    for (name, d), style in zip(distances.items(), ("C3o-", "C0o-", "C3s--", "C0s--")):
        ax.semilogy(d[1:], style, ms=4, lw=1, label=name)
    n = len(d) - 2  # blocks
    for text, eps in epsilons.items():
        ax.axhline(eps, color="gray", lw=0.8, ls=":")
        ax.text(n + 0.2, eps / 1.5, text, fontsize=8, color="gray", va="top", ha="right")
    ax.set_xticks(range(n + 1), [*(f"block {i}" for i in range(n)), "logits"], fontsize=8)
    ax.set(ylabel="distance to the oracle", ylim=(1e-17, 30), xlim=(-0.2, n + 0.2))
    ax.legend(fontsize=8, ncols=2, loc="center", bbox_to_anchor=(0.5, 0.32))
    return fig


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
