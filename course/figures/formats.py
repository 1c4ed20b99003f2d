"""Chapter 22b's figures."""

import math
import re

import matplotlib.pyplot as plt
import numpy as np


def orders(shapes: dict[str, tuple[int, ...]], ours: list[str]) -> plt.Figure:
    """The tensors of a model in a file, to scale: in the order `ours`, and in that of `shapes`; a colour a block."""
    fig, ax = plt.subplots(figsize=(7.2, 1.9), layout="constrained")
    for row, names in enumerate((ours, list(shapes))):
        at = 0
        for name in names:
            block, size = re.search(r"\.h\.(\d+)\.", name), math.prod(shapes[name])
            ax.barh(
                row,
                size,
                left=at,
                height=0.7,
                color=f"C{block[1]}" if block else "0.75",
                edgecolor="white",
                lw=0.4,
            )
            at += size
    ax.set_yticks((0, 1), ("ours", "llm.c"))
    ax.invert_yaxis()
    ax.set_xlabel("numbers from the beginning of the file (grey: wte, wpe, ln_f; a colour for each block)")
    ax.grid(False)
    return fig


def epochs(lengths: list[int], laid, drawn, T: int, samples: int, tokens: int) -> plt.Figure:
    """Documents as they are laid out, a colour each, and below them the samples; those drawn are filled."""
    fig, ax = plt.subplots(figsize=(7.2, 1.9), layout="constrained")
    left = np.cumsum([0, *lengths])
    colors = {d: plt.get_cmap("tab20")(i % 20) for i, d in enumerate(sorted(set(map(int, laid))))}
    faces = [colors[int(d)] for d in laid]
    ax.broken_barh(list(zip(left, lengths)), (-0.4, 0.8), facecolors=faces, edgecolor="white", lw=0.5)
    taken = set(map(int, drawn))
    faces = ["C0" if i in taken else "white" for i in range(samples)]
    ax.broken_barh(
        [(i * T, T) for i in range(samples)], (0.6, 0.8), facecolors=faces, edgecolor="0.4", lw=0.6
    )
    for end in range(tokens, int(left[-1]), tokens):
        ax.axvline(end, color="black", lw=1.2)
    ax.set_yticks((0, 1), ("documents", "samples"))
    ax.invert_yaxis()
    ax.set_xlabel("tokens; the line: from here on, text that has been before")
    ax.grid(False)
    return fig
