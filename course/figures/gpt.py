"""Chapter 05's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F


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


def gelu():
    """GELU beside ReLU, and how far its approximation with tanh is from it."""
    z = torch.linspace(-4, 4, 401)
    tanh, exact = F.gelu(z, approximate="tanh"), F.gelu(z)
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.5), layout="constrained")
    axes[0].plot(z, tanh, label="GELU")
    axes[0].plot(z, F.relu(z), ":", c="gray", label="ReLU")
    axes[0].set(xlabel="input", ylabel="output")
    axes[0].legend()
    axes[1].plot(z, 1e4 * (tanh - exact), c="C3")
    axes[1].set(xlabel="input", ylabel="tanh − exact (10⁻⁴)")
    return fig


def blocks(recorded):
    """The loss of each run of bench/blocks.py, a row for each kind of block, beside counting."""
    names = list(dict.fromkeys(run["blocks"] for run in recorded["runs"]))
    rates = sorted({run["lr"] for run in recorded["runs"]})
    fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for rate, marker, color in zip(rates, "os^", ("C1", "C0", "C2")):
        runs = [run for run in recorded["runs"] if run["lr"] == rate]
        rows = [names.index(run["blocks"]) for run in runs]
        ax.plot(
            [run["loss"] for run in runs],
            rows,
            marker,
            c=color,
            ms=5,
            alpha=0.8,
            label=f"learning rate {rate}",
        )
    for name, loss in recorded["counting"].items():
        ax.axvline(loss, c="gray", ls=":")
        ax.text(loss, -0.75, f"{name} {loss:.2f}", ha="center", fontsize=8, color="gray")
    ax.set_yticks(range(len(names)), names)
    ax.set(
        xlabel="loss on stories that no run has seen (nats a token)",
        xlim=(0.8, 5.3),
        ylim=(len(names) - 0.5, -1.1),
    )
    ax.set_title(f"{recorded['steps']} steps, {len(recorded['runs'])} runs, {recorded['date']}", fontsize=9)
    ax.legend(fontsize=8, loc="lower right")
    return fig


def likeness(cosines):
    """How alike the positions are after each block: label -> values."""
    fig, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
    for label, values in cosines.items():
        ax.plot(range(1, len(values) + 1), values, "o-", ms=4, label=label)
    ax.set(xlabel="after block", ylabel="mean cosine of two positions", ylim=(-0.05, 1.05))
    ax.legend(fontsize=8)
    return fig


def squares(config):
    """A GPT's parameters as squares of C × C: a column for each block, then the tables, 12 squares a column."""
    C = config.n_embd
    fig, ax = plt.subplots(figsize=(7.2, 3.3), layout="constrained")

    def square(column, row, part=1.0, color="C0", label=None):
        ax.add_patch(plt.Rectangle((column, row), 0.92, 0.92 * part, fc=color, label=label))

    for block in range(config.n_layer):
        for row in range(12):
            part = "attention (4 a block)" if row < 4 else "MLP (8 a block)"
            square(block, row, 1, "C2" if row < 4 else "C3", part if block == 0 and row in (0, 4) else None)
    place = 0
    tables = {"wte, the token table": (config.vocab_rows / C, "C0"), "wpe": (config.block_size / C, "C1")}
    for name, (count, color) in tables.items():
        label = name
        while count > 0:
            square(config.n_layer + 1 + place // 12, place % 12, min(count, 1), color, label)
            count, place, label = count - 1, place + 1, None
    columns = config.n_layer + 1 + (place - 1) // 12 + 1
    ax.set(xlim=(-0.2, columns), ylim=(-0.2, 12.1), aspect="equal")
    ax.set_xticks(
        [(config.n_layer - 1) / 2 + 0.46, (config.n_layer + 1 + columns) / 2],
        [f"{config.n_layer} blocks", "tables"],
    )
    ax.set_yticks([])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.grid(False)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return fig
