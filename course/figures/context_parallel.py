"""Chapter 21c's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

COLOURS = [plt.get_cmap("tab10")(i) for i in range(10)]


def masks(splits: dict) -> plt.Figure:
    """The causal triangle, coloured by the rank that has the query; name -> positions (n, T/n)."""
    fig, panels = plt.subplots(1, len(splits), figsize=(6.6, 3.2), layout="constrained")
    for ax, (name, where) in zip(np.atleast_1d(panels), splits.items()):
        n, T = len(where), where.numel()
        owner = np.empty(T, int)
        for rank, rows in enumerate(where.numpy()):
            owner[rows] = rank
        area = np.ma.masked_where(np.triu(np.ones((T, T), bool), 1), np.repeat(owner[:, None], T, 1))
        colours = ListedColormap([COLOURS[rank % 10] for rank in range(n)])
        ax.imshow(area, cmap=colours, vmin=-0.5, vmax=n - 0.5, interpolation="nearest")
        ax.set(title=name, xlabel="key", ylabel="query")
        ax.grid(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[rank % 10]) for rank in range(n)]
    fig.legend(handles, [f"rank {rank}" for rank in range(n)], loc="outside right center")
    return fig
