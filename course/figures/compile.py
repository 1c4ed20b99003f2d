"""Figures of chapter 11."""

import matplotlib.pyplot as plt

TWO_INPUTS = (4, 8)  # of GELU's nine operations, these two read two tensors


def nine_or_one(names):
    """Eager mode as boxes, each with an arrow from memory for what it reads, and one back; compiled, one box."""
    fig, ax = plt.subplots(figsize=(7, 2.2))
    box, arrow = dict(boxstyle="round", fc="C0", ec="none", alpha=0.3), dict(arrowstyle="->", color="C3")
    for i, name in enumerate(names):
        ax.text(i, 1, name, ha="center", va="center", fontsize=9, bbox=box)
        reads = [i - 0.25, i - 0.1] if i in TWO_INPUTS else [i - 0.15]
        for x in reads:
            ax.annotate("", (x, 0.8), (x, 0.35), arrowprops=arrow)
        ax.annotate("", (i + 0.15, 0.35), (i + 0.15, 0.8), arrowprops=arrow)
    ax.plot([-0.5, 13.5], [0.25, 0.25], "k", lw=6, solid_capstyle="butt")
    ax.text(6.5, -0.1, "memory", ha="center", va="center")
    registers = "tanh(x + …) …\nin registers"
    ax.text(11.5, 1, registers, ha="center", va="center", bbox=box | {"fc": "C2"})
    for x, ends in [(11.3, (0.35, 0.7)), (11.7, (0.7, 0.35))]:
        ax.annotate("", (x, ends[1]), (x, ends[0]), arrowprops=arrow)
    ax.text(4, 1.55, "eager: one kernel each", ha="center")
    ax.text(11.5, 1.55, "compiled", ha="center")
    ax.set(xlim=(-0.7, 13.7), ylim=(-0.3, 1.8))
    ax.axis("off")
    return fig


def debts(debts_and_savings, last):
    """Seconds won against steps. debts_and_savings: name -> (compile seconds, seconds saved a step or None)."""
    fig, ax = plt.subplots(figsize=(6, 2.8))
    for name, (debt, saving) in debts_and_savings.items():
        label = name if saving else f"{name} (no measurable saving)"
        ax.plot([0, last], [-debt, last * (saving or 0) - debt], label=label)
    ax.axhline(0, ls=":", c="gray")
    ax.set(xlabel="training steps done", ylabel="seconds won", title="The debt, and how fast it is paid")
    ax.legend()
    return fig
