"""The drawings of chapter 03."""

import matplotlib.pyplot as plt


def shard_bytes(fields: list[tuple[str, bytes]]) -> plt.Figure:
    """A file's first bytes in hexadecimal, as boxes with their names; a field without bytes is a gap."""
    fig, ax = plt.subplots(figsize=(7, 1.2))
    x = 0.0
    for n, (label, content) in enumerate(fields):
        width = 1.4 * len(content) or 1.4
        color = ["#cfe2f3", "#d9ead3"][n % 2] if content else "white"
        ax.add_patch(plt.Rectangle((x, 0), width, 1, facecolor=color))
        middle = {"ha": "center", "va": "center"}
        ax.text(x + width / 2, 0.5, content.hex(" ") or "…", family="monospace", fontsize=7, **middle)
        ax.text(x + width / 2, -0.4 - 0.4 * (n % 2), label.replace(" ", "·"), fontsize=8, **middle)
        x += width
    ax.set(xlim=(0, x), ylim=(-1, 1))
    ax.axis("off")
    return fig


def reads(steps: list[list], seams: list[int], title: str) -> plt.Figure:
    """One row a step; what each rank reads of the corpus, in its colour. Lines where a shard begins."""
    fig, ax = plt.subplots(figsize=(6.8, 2.4))
    for step, ranks in enumerate(steps):
        for rank, tokens in enumerate(ranks):
            label = f"rank {rank}" if step == 0 else None
            ax.scatter(list(tokens), [step] * len(tokens), marker="s", s=14, color=f"C{rank}", label=label)
    for seam in seams:
        ax.axvline(seam - 0.5, color="black", linewidth=0.8)
    ax.set(xlabel="token of the corpus; lines: where a shard begins", ylabel="step", title=title)
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return fig
