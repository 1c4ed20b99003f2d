"""Figures of chapters 12 and 12b."""

import math

import matplotlib.pyplot as plt

from course.figures import widgets


def kept_by_length(lengths, weights, rows):
    """GiB that attention keeps for backward against T: the T×T weights, and what has T rows."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    ax.loglog(lengths, weights, "o-", label="weights, T×T")
    ax.loglog(lengths, rows, "o-", label="q, k, v and the output, T×d")
    ax.axhline(80, ls=":", c="gray")
    ax.text(lengths[0], 90, "a GPU with 80 GiB", color="gray")
    ax.axvline(1024, ls=":", c="gray")
    ax.text(980, 400, "GPT-2's context", color="gray", ha="right")
    title = "One sequence through GPT-2 small, float32"
    ax.set(xlabel="T (tokens)", ylabel="kept for backward (GiB)", title=title)
    ax.set_xticks(lengths, lengths)
    ax.minorticks_off()
    ax.legend()
    return fig


def one_block(ax, scores, block, step):
    """Bars of exp(score − m) after `step` blocks."""
    seen = min(block * step, len(scores))
    m = scores[:seen].max()
    ax.bar(range(seen), (scores[:seen] - m).exp().tolist(), color="C0")
    ax.bar(range(seen, len(scores)), 0.02, color="0.8")
    for edge in range(block, len(scores), block):
        ax.axvline(edge - 0.5, ls=":", c="gray")
    total = (scores[:seen] - m).exp().sum()
    ax.set(ylim=(0, 1.1), xlabel="key", title=f"after block {step}:\nm = {m:.1f}, total = {total:.2f}")


def after_blocks(scores, block):
    """One panel for each block that has been seen."""
    panels = math.ceil(len(scores) / block)
    fig, axes = plt.subplots(1, panels, figsize=(7, 2.5), sharey=True)
    for step, ax in enumerate(axes, 1):
        one_block(ax, scores, block, step)
    axes[0].set_ylabel("exp(score − m)")
    return fig


def block_widget(scores):
    """Knobs for the size of a block and for how many have been seen."""

    def draw(block_size, blocks_seen):
        ax, blocks = widgets.axes(2.8, top=0.55), math.ceil(len(scores) / block_size)
        step = min(blocks_seen, blocks)
        one_block(ax, scores, block_size, step)
        ax.set_ylabel("exp(score − m)")
        keys = min(block_size * step, len(scores))
        m, total = scores[:keys].max(), (scores[:keys] - scores[:keys].max()).exp().sum()
        return (
            ax,
            f"After {step} of {blocks} blocks of {block_size}: {keys} keys seen, m = {m:.1f}, total = {total:.2f}.",
        )

    return widgets.explorer(draw, block_size=(3, 1, 6), blocks_seen=(2, 1, len(scores)))


def tiles(n):
    """n × n tiles: all of it in the past, masked on the diagonal, skipped in the future."""
    fig, ax = plt.subplots(figsize=(3.2, 3))
    ax.imshow([[(j > i) + (j >= i) for j in range(n)] for i in range(n)], cmap="Blues_r", vmin=0, vmax=2.2)
    for i in range(n):
        for j in range(n):
            text = "skip" if j > i else "mask" if j == i else "all"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if j < i else "black")
    ax.set(xlabel="block of keys", ylabel="block of queries")
    ax.grid(False)
    return fig


def slopes(Ts, panels):
    """Log plots against T. panels: title -> {way: values}; dotted lines have slopes 1 and 2."""
    fig, axes = plt.subplots(1, len(panels), figsize=(7.4, 3.4))
    for ax, (title, series) in zip(axes, panels.items()):
        for (name, values), marker, size in zip(series.items(), "osd^", (4, 4, 8, 4)):
            ax.loglog(
                Ts[: len(values)], values, marker + "-", label=name, ms=size
            )  # tiles and SDPA keep the same
        start = min(min(values) for values in series.values()) / 3
        for power in (1, 2):
            end = start * (Ts[-1] / Ts[0]) ** power
            ax.loglog([Ts[0], Ts[-1]], [start, end], "k:", lw=1)
            ax.text(Ts[-1] * 1.1, end, f"slope {power}", fontsize=8, va="center")
        ax.set(xlabel="T (tokens)", title=title, xlim=(Ts[0] * 0.7, Ts[-1] * 4.5))
        ax.set_xticks(Ts, Ts, fontsize=8)
        ax.minorticks_off()
    fig.legend(*axes[0].get_legend_handles_labels(), ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.06))
    fig.tight_layout()
    return fig


def memory_levels(levels: list[tuple[int, int]], before: int, moments: dict[str, int]):
    """Bytes over the ns of one step, `before` at its start; predicted moments dotted."""
    ns, level = zip(*levels)
    fig, ax = plt.subplots(figsize=(7, 3.2))
    ax.step([(t - ns[0]) / 1e6 for t in ns], [(before + v) / 2**20 for v in level], where="post", lw=1)
    for name, value in moments.items():
        ax.axhline(value / 2**20, c="0.5", ls=":", lw=1)
        ax.text(0, value / 2**20, name, fontsize=8, va="bottom", color="0.3")
    ax.set(xlabel="ms, with the profiler running", ylabel="MiB in use")
    ax.set_ylim(0.98 * before / 2**20)
    return fig
