"""Chapter 16c's figures."""

import matplotlib.pyplot as plt
import numpy as np


def similarities(related, strangers, threshold: float):
    """How similar planted pairs are, and pairs of strangers; the dashed line is the threshold."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8))
    bins = np.linspace(0, 1, 21)
    left.hist(strangers, bins, color="C0")
    left.set(xlabel="similarity", ylabel="pairs", title="pairs of strangers", yscale="log")
    right.hist(related, bins, color="C3")
    right.set(xlabel="similarity", ylabel="pairs", title="planted pairs")
    for ax in (left, right):
        ax.axvline(threshold, color="k", linestyle="--", linewidth=1)
    fig.tight_layout()
    return fig


def estimates(exact, estimated):
    """MinHash's estimate of each pair's similarity over the exact one."""
    fig, ax = plt.subplots(figsize=(4, 3.6))
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    ax.plot(exact, estimated, ".", color="C0")
    ax.set(xlabel="Jaccard similarity", ylabel="share of equal minima")
    fig.tight_layout()
    return fig
