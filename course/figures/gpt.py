"""Chapter 05's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def architecture():
    """GPT-2 as a stream that attention and MLP read and add to."""
    fig, ax = plt.subplots(figsize=(7, 2.3))
    boxes = {"wte + wpe": 0.6, "ln_1": 2.4, "attn": 3.4, "ln_2": 5.4, "mlp": 6.4, "ln_f": 8.5, "lm_head": 9.9}
    ax.plot([-0.6, 11.1], [0, 0], c="C0", lw=3, zorder=0)
    for left, right in [(1.7, 4.2), (4.7, 7.2)]:
        ax.plot([left, left, right], [0, 1.1, 1.1], c="gray", zorder=0)
        ax.annotate("", (right, 0.16), (right, 1.1), arrowprops=dict(arrowstyle="->", color="gray"))
        box = dict(boxstyle="circle,pad=0.1", fc="white", ec="C0")
        ax.text(right, -0.02, "+", ha="center", va="center", bbox=box)
    for name, x in boxes.items():
        box = dict(boxstyle="round,pad=0.3", fc="#dbe9f6" if "ln" not in name else "white", ec="gray")
        ax.text(x, 1.1 if 2 < x < 7 else 0, name, ha="center", va="center", bbox=box, fontsize=9)
    ax.text(-0.7, 0, "ids\n(B, T)", ha="right", va="center", fontsize=9)
    ax.text(11.2, 0, "logits\n(B, T, V)", ha="left", va="center", fontsize=9)
    ax.text(4.5, -0.75, "× n_layer", ha="center", color="gray")
    ax.plot([1.5, 1.5, 7.5, 7.5], [-0.4, -0.5, -0.5, -0.4], c="gray", lw=1)
    ax.text(2.95, -0.12, "stream (B, T, C)", ha="center", va="top", color="C0", fontsize=8)
    ax.set(xlim=(-1.8, 12.6), ylim=(-0.9, 1.4))
    ax.axis("off")
    return fig


def gelu(z, tanh, exact, relu):
    """GELU beside ReLU, and how far its approximation is from it."""
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.5), layout="constrained")
    axes[0].plot(z, tanh, label="GELU")
    axes[0].plot(z, relu, ":", c="gray", label="ReLU")
    axes[0].set(xlabel="input", ylabel="output")
    axes[0].legend()
    axes[1].plot(z, 1e4 * (tanh - exact), c="C3")
    axes[1].set(xlabel="input", ylabel="tanh − exact (10⁻⁴)")
    return fig


def path(gradients, likeness, losses):
    """With and without the additions (label -> values): gradient and likeness by depth, the loss by step."""
    fig, axes = plt.subplots(1, 3, figsize=(7.6, 2.6), layout="constrained")
    for ax, curves in zip(axes, (gradients, likeness, losses)):
        for label, values in curves.items():
            ax.plot(values, "o-" if ax is not axes[2] else "-", ms=3, label=label)
        ax.set(xlabel="step" if ax is axes[2] else "after block", ylim=(0, None))
    axes[0].set_title("gradient of the loss\nby the stream (norm)", fontsize=9)
    axes[1].set_title("cosine between\nneighbouring positions", fontsize=9)
    axes[2].set_title("loss on one batch\n(nats)", fontsize=9)
    axes[0].legend(fontsize=8)
    return fig


def stream(scales, shares):
    """Left: RMS of the stream after each block. Right: the embedding's share of the last one, by depth (log axes)."""
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained")
    for label, values in scales.items():
        axes[0].plot(values, "o-", ms=3, label=label)
    for by_depth in shares.values():
        axes[1].loglog(list(by_depth), list(by_depth.values()), "o-", ms=3)
    blocks = range(0, max(map(len, scales.values())), 3)
    axes[0].set(
        xlabel="block", ylabel="RMS of the stream", ylim=0, xticks=blocks, title="GPT-2 small's shape"
    )
    axes[1].set(xlabel="n_layer", ylabel="embedding / stream at the end", title="width 256, by depth")
    depths = list(next(iter(shares.values())))
    axes[1].set_xticks(depths, depths)
    axes[1].set_yticks([0.03, 0.1, 0.3], [0.03, 0.1, 0.3])
    axes[1].minorticks_off()
    axes[0].legend(fontsize=8)
    return fig


def shares(parts):
    """Percentages by part, one bar a model: name -> part -> count."""
    fig, ax = plt.subplots(figsize=(7, 2.6))
    start = dict.fromkeys(parts, 0.0)
    for part in next(iter(parts.values())):
        width = {name: 100 * counts[part] / sum(counts.values()) for name, counts in parts.items()}
        ax.barh(list(parts), list(width.values()), left=list(start.values()), label=part)
        for row, name in enumerate(parts):
            if width[name] > 4:
                ax.text(
                    start[name] + width[name] / 2,
                    row,
                    f"{width[name]:.0f}",
                    ha="center",
                    va="center",
                    color="w",
                )
            start[name] += width[name]
    ax.set(xlabel="share of the parameters (%)", xlim=(0, 100))
    ax.invert_yaxis()
    ax.grid(False)
    ax.legend(ncol=5, loc="lower center", bbox_to_anchor=(0.45, 1), fontsize=8)
    return fig


def flops(lengths, parts, marked):
    """Forward MFLOPs per token by context length, stacked: part -> values; `marked` is GPT-2's length."""
    fig, ax = plt.subplots(figsize=(6.5, 3))
    ax.stackplot(lengths, list(parts.values()), labels=list(parts), alpha=0.85)
    ax.axvline(marked, c="k", ls=":")
    ax.text(marked, ax.get_ylim()[1], f" {marked:,}", va="top", fontsize=8)
    ax.set(
        xlabel="context length T (tokens)", ylabel="forward MFLOPs per token", xlim=(lengths[0], lengths[-1])
    )
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(0.12, 1)
    )  # in the order of the stack
    return fig
