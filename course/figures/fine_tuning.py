"""Figures of chapter 19: each takes data and returns a figure."""

import csv
import math
from collections import defaultdict
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

TOWNS = {"new": ("C0", "new stories: adapted"), "old": ("C3", "old stories: forgotten")}


def logs(folder: Path) -> list[dict[str, dict[int, float]]]:
    """Held-out and training losses of llm.c's logs on TinyShakespeare, on one GPU: run -> updates made before -> loss."""
    found = []
    for table, step, loss in (("val", "steps_done", "val_loss"), ("gpu", "step", "train_loss")):
        curves = defaultdict(dict)
        with open(folder / f"llmc_{table}_losses.csv", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if "1 GPU TF32" in row["run"]:  # a step's training loss is that before its update
                    curves[row["run"].split(" 1 GPU")[0]][int(row[step]) - (step == "step")] = float(
                        row[loss]
                    )
        found.append(dict(curves))
    return found


def forgotten_at(level: float, recorded: dict, way: str, replay: float = 0.0) -> float:
    """Between recorded rates: what is forgotten where new stories are `level` above their floor; NaN outside.

    Along the rates up to the one that adapts best. A higher one adapts worse and forgets more: the curve turns back.
    """
    by_rate = defaultdict(list)
    for run in recorded["runs"]:
        if (run["way"], run["replay"]) == (way, replay):
            by_rate[run["lr"]].append((run["new"], run["old"]))
    new, old = zip(*(np.mean(by_rate[rate], axis=0) for rate in sorted(by_rate)))
    best = int(np.argmin(new))
    new, old = np.log(new[best::-1]), old[best::-1]
    return float(np.interp(math.log(level), new, old, left=math.nan, right=math.nan))


def forgotten_table(recorded: dict, levels: tuple[float, ...]) -> None:
    """A line for each way: what is forgotten at each level of the new stories' loss; and the control, old stories alone."""
    ways = list(dict.fromkeys((run["way"], run["replay"]) for run in recorded["runs"] if run["replay"] < 1))
    head = "forgotten, with new stories above the floor by"
    print(f"{head:46}", "".join(f"{level:7.2f}" for level in levels))
    for way, replay in ways:
        label = f"{way}, {replay:.0%} of the rows old" if replay else way
        row = [forgotten_at(level, recorded, way, replay) for level in levels]
        print(f"{label:46}", "".join("      –" if math.isnan(nats) else f"{nats:7.2f}" for nats in row))
    if control := [run["old"] for run in recorded["runs"] if run["replay"] == 1]:
        print(f"old stories alone: {max(control):.2f}, from {recorded['base']['old']:.2f} before")


def published(held_out: dict[str, dict], in_training: dict[str, dict]):
    """Training losses, pale, and held-out losses of several runs against steps."""
    fig, ax = plt.subplots()
    for i, (run, curve) in enumerate(held_out.items()):
        batches = in_training.get(run, {})
        ax.plot(batches.keys(), batches.values(), color=f"C{i}", lw=0.7, alpha=0.35)
        ax.plot(curve.keys(), curve.values(), "o-", ms=4, color=f"C{i}", label=f"{run}, held out")
    ax.plot([], [], color="0.5", lw=0.7, alpha=0.6, label="the same run's batches")
    ax.set(xlabel="steps of 4,096 tokens", ylabel="loss (nats per GPT-2 token)")
    ax.legend()
    return fig


def adapting(history: dict[int, dict[str, float]]):
    """Nats above the floor against steps, of new and of old stories."""
    fig, ax = plt.subplots(figsize=(6.5, 2.8))
    for town, (color, label) in TOWNS.items():
        ax.plot(
            history.keys(), [found[town] for found in history.values()], "o-", ms=4, color=color, label=label
        )
    ax.set(xlabel="step", ylabel="above the floor\n(nats a token)", ylim=(0, None))
    ax.legend()
    return fig


def by_kind(paid: dict[str, dict[str, float]]):
    """Two bars for each kind of token: what a story pays before and after, in nats."""
    fig, ax = plt.subplots(figsize=(6.5, 2.4))
    kinds = list(paid["before"])
    for i, (which, costs) in enumerate(paid.items()):
        places = [y + 0.4 * i - 0.2 for y in range(len(kinds))]
        bars = ax.barh(places, [costs[kind] for kind in kinds], 0.4, color=("0.65", "C3")[i], label=which)
        ax.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    ax.set_yticks(range(len(kinds)), kinds)
    ax.set(xlabel="nats an old story", xlim=(0, 1.12 * max(max(costs.values()) for costs in paid.values())))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.legend()
    return fig


def memory(small: dict[str, dict[str, int]], full: dict[str, int], low: dict[str, int]):
    """Stacked bars of bytes by category: this model's ways on the left, GPT-2's two on the right."""
    fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), width_ratios=(len(small), 2))
    panels = [(small, 2**20, "MiB", "this model, measured")]
    panels += [({"all weights": full, "LoRA, rank 4": low}, 2**30, "GiB", "GPT-2 small, formula")]
    for ax, (rows, unit, name, title) in zip(axes, panels):
        bottom = [0.0] * len(rows)
        for i, part in enumerate(("parameters", "gradients", "optimizer", "activations")):
            sizes = [row[part] / unit for row in rows.values()]
            ax.bar(range(len(rows)), sizes, 0.6, bottom, color=f"C{i}", label=part)
            bottom = [a + b for a, b in zip(bottom, sizes)]
        ax.set_xticks(range(len(rows)), [way.replace(", ", ",\n") for way in rows], fontsize=8)
        ax.set(ylabel=name)
        ax.set_title(title, fontsize=10)
        ax.grid(axis="x", visible=False)
    fig.legend(
        *axes[0].get_legend_handles_labels(),
        ncols=4,
        fontsize=8,
        loc="lower center",
        bbox_to_anchor=(0.5, -0.07),
    )
    fig.tight_layout()
    return fig


def trade_off(recorded: list[dict], live: dict[str, dict], start: dict, best: dict | None = None):
    """Forgotten against adapted: recorded runs as lines over the rate, a line a way; live ones as crosses."""
    fig, ax = plt.subplots(figsize=(5, 3.8))
    ways = list(dict.fromkeys((run["way"], run["replay"]) for run in recorded if run["replay"] < 1))
    for i, (way, replay) in enumerate(ways):
        mine = [run for run in recorded if (run["way"], run["replay"]) == (way, replay)]
        rates = sorted({run["lr"] for run in mine})
        means = [
            [
                sum(run[town] for run in mine if run["lr"] == lr) / sum(run["lr"] == lr for run in mine)
                for lr in rates
            ]
            for town in ("new", "old")
        ]
        label = way + (f", {replay:.0%} old stories" if replay else "")
        ax.plot(*means, "--" if replay else "-", color=f"C{i}", lw=1, label=label)
        ax.scatter([run["new"] for run in mine], [run["old"] for run in mine], s=12, color=f"C{i}")
    for i, (_, found) in enumerate(live.items()):
        ax.plot(found["new"], found["old"], "kx", ms=7, label=None if i else "this run of the chapter")
    ax.axhline(start["old"], color="0.5", lw=1, ls=":")
    said = f"before; new ones at {start['new']:.1f}"
    ax.text(0.05, start["old"], said, ha="left", va="bottom", fontsize=8, color="0.4")
    if best:
        ax.plot(best["new"], best["old"], "*", color="0.3", ms=10, label="knows both towns")
    ax.set(xlim=(0, 1), xlabel="new stories, above their floor (nats a token): less is better adapted")
    ax.set(ylabel="old stories, above theirs:\nless is less forgotten", ylim=(0, None))
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return fig
