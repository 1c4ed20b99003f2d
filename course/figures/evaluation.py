"""Chapter 18's figures: each function takes data and returns a figure."""

import textwrap

import matplotlib.pyplot as plt
import numpy as np

GROUPS = {"names": 0, "counts": 4, "things": 8, "the end": 16}  # in tab20c, four shades each; all others: 12


def excess(table: dict[str, dict[str, float]]) -> plt.Figure:
    """Nats a story above the floor, a bar a model, split by kind, and on the right as shares of each bar."""
    kinds = [kind for kind in next(iter(table.values())) if max(row[kind] for row in table.values()) > 0.05]
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 0.3 * len(table) + 1.7), sharey=True)
    paid = np.array([[max(0.0, row[kind]) for kind in kinds] for row in table.values()])
    used = dict.fromkeys([*GROUPS.values(), 12], 0)
    for i, kind in enumerate(kinds):
        group = GROUPS.get(kind.split(",")[0], 12)
        color = plt.cm.tab20c(group + used[group])
        used[group] += 1
        for ax, widths in zip(axes, (paid, 100 * paid / paid.sum(1, keepdims=True))):
            ax.barh(
                range(len(table)),
                widths[:, i],
                left=widths[:, :i].sum(1),
                color=color,
                height=0.75,
                label=kind,
            )
            ax.grid(axis="y", visible=False)
    for y, total in enumerate(paid.sum(1)):
        text = f"{total:.0f}" if total > 60 else f"{total:.1f}"
        axes[0].text(total + 0.01 * paid.sum(1).max(), y, text, va="center", fontsize=7)
    axes[0].set_xlim(0, 1.1 * paid.sum(1).max())
    axes[1].set_xlim(0, 100)
    axes[0].set_yticks(range(len(table)), table, fontsize=8)
    axes[0].invert_yaxis()
    axes[0].set_xlabel("nats a story above the floor", fontsize=9)
    axes[1].set_xlabel("share of it (%)", fontsize=9)
    fig.tight_layout(rect=(0, 0, 1, 1 - 0.62 / fig.get_figheight()))
    fig.legend(*axes[0].get_legend_handles_labels(), ncols=4, fontsize=7, loc="upper center", frameon=False)
    return fig


def print_seeds(recorded: dict) -> None:
    """The recorded runs of one and of two layers, lowest and highest over the seeds, in nats a story above the floor."""
    ways = {layers: [run for run in recorded["runs"] if run["layers"] == layers] for layers in (1, 2)}
    heads = f"{len(ways[1])} runs, 1 layer", f"{len(ways[2])} runs, 2 layers"
    print(f"{'':32}{heads[0]:>18}{heads[1]:>18}")
    rows = [("all", "end"), ("counts, computed", "end"), ("things, again", "end"), ("names, again", "early")]
    for kind, when in rows:
        cells = []
        for runs in ways.values():
            found = [sum(run[when].values()) if kind == "all" else run[when][kind] for run in runs]
            cells.append(f"{min(found):.2f} to {max(found):.2f}")
        steps = recorded["steps"] if when == "end" else recorded["early"]
        print(f"{kind + f', {steps:,} steps':32}{cells[0]:>18}{cells[1]:>18}")


def print_kinds(columns: dict[str, dict[str, float]]) -> None:
    """A table of numbers by kind of decision, a column for each name, and their sums in the first row."""
    heads = [textwrap.wrap(name.replace(",", ""), 9) for name in columns]
    for line in range(max(map(len, heads))):
        print(" " * 16, *(f"{' '.join(head[line : line + 1]):>9}" for head in heads))
    for kind in ("all", *next(iter(columns.values()))):
        amounts = [sum(row.values()) if kind == "all" else row[kind] for row in columns.values()]
        print(f"{kind:16}", *(f"{amount:9.2f}" for amount in amounts))


def pieces(story, excess: np.ndarray, tokenizer) -> list[tuple[str, float, bool]]:
    """Each token of a story for `costs`: its text, its excess in nats, 0 if negative, and whether it is in an answer."""
    row, end = [], 0
    for token, nats in zip(tokenizer.encode(story.text), excess.tolist()):
        piece = tokenizer.decode([token])
        begin, end = end, end + len(piece)
        framed = any(first < end and begin < last for first, last in story.answers)
        row.append((piece, max(0.0, nats), framed))
    return row
