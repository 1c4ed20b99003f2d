"""Chapter 23's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def programs(n: int, block: int) -> plt.Figure:
    """n numbers in a row, cut into programs of `block`; lanes behind the end are masked."""
    fig, ax = plt.subplots(figsize=(7, 1.3), layout="tight")
    count = -(-n // block)
    for at in range(count * block):
        color = f"C{at // block}" if at < n else "white"
        ax.add_patch(plt.Rectangle((at, 0), 0.9, 0.9, fc=color, ec="0.4", hatch="" if at < n else "///"))
    for program in range(count):
        ax.text((program + 0.5) * block, 1.2, f"program {program}", ha="center")
    ax.set(xlim=(-0.2, count * block + 0.2), ylim=(-0.1, 1.8))
    ax.axis("off")
    return fig
