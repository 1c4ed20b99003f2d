"""Chapter 24c's figure."""

import itertools

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch


def lattice(text: str, scores: dict[str, float], best: list[str]) -> plt.Figure:
    """All ways to cut a text: an arrow for each piece that fits, with its score; the pieces of the best way are coloured."""
    fig, ax = plt.subplots(figsize=(6, 2.2), layout="tight")
    ends = [sum(map(len, best[:i])) for i in range(len(best) + 1)]
    taken = set(itertools.pairwise(ends))
    for start in range(len(text)):
        for end in range(start + 1, len(text) + 1):
            piece, length = text[start:end], end - start
            if piece not in scores:
                continue
            color = "C3" if (start, end) in taken else "0.5"
            side = 1 if start % 2 == 0 else -1  # so that two long arrows do not cross
            bend = 0 if length == 1 else -0.35 * side
            style = {"arrowstyle": "->", "mutation_scale": 14, "shrinkA": 9, "shrinkB": 9, "color": color}
            ax.add_patch(
                FancyArrowPatch((start, 0), (end, 0), connectionstyle=f"arc3,rad={bend}", lw=2, **style)
            )
            y = 0 if length == 1 else side * 0.26 * length
            label = {"ha": "center", "va": "center", "bbox": {"fc": "white", "ec": "none", "pad": 2}}
            ax.text((start + end) / 2, y, f"{piece}  {scores[piece]:g}", color=color, **label)
    for place in range(len(text) + 1):
        ax.text(place, 0, str(place), ha="center", va="center", bbox={"boxstyle": "circle", "fc": "white"})
    ax.set(xlim=(-0.2, len(text) + 0.2), ylim=(-0.75, 0.95))
    ax.axis("off")
    return fig
