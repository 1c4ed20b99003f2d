"""Figures and tables of chapter 19b: each takes data, and returns a figure or prints a table."""

from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np


def table(runs: dict[str, dict[str, float]]) -> None:
    """A line for each run: right answers, and nats a story above the floor."""
    print(f"{'':20} {'right answers':^16} {'nats a story above the floor':^32}")
    print(f"{'':20} {'first':>7} {'drawn':>7} {'computed':>14} {'all else':>14}")
    for way, found in runs.items():
        shares = f"{found['first']:7.0%} {found['drawn']:7.0%}"
        print(f"{way:20} {shares} {found['computed']:14.2f} {found['all else']:14.2f}")


def main_rates(runs: list[dict]) -> dict[str, list[dict]]:
    """Of each way, the runs at the rate that was tried with most seeds, and of several such the one with most right answers."""
    by_way: dict[str, dict[float, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_way[run["way"]][run["lr"]].append(run)

    def seeds_then_right(some: list[dict]) -> tuple:
        return len(some), mean(some, "first")

    return {way: max(rates.values(), key=seeds_then_right) for way, rates in by_way.items()}


def other_rates(runs: list[dict], main: dict[str, list[dict]]) -> list[dict]:
    """The runs that are at another rate than their way's main ones."""
    return [run for run in runs if run["lr"] != main[run["way"]][0]["lr"]]


def listed(runs: list[dict]) -> None:
    """A line for each run."""
    for run in runs:
        what = f"{run['way']:15} rate {run['lr']:<6g} seed {run['seed']}, {run['steps']:3} steps"
        print(f"{what}: first {run['first']:.0%}, drawn {run['drawn']:.0%}, all else {run['all else']:.2f}")


def mean(some: list[dict], what: str) -> float:
    return sum(run[what] for run in some) / len(some)


def compare(best: dict[str, list[dict]], base: dict[str, float], ways: list[str]) -> None:
    """A line for each way: the mean over its seeds, and from the lowest seed to the highest for the first choices."""
    print(f"{'':15} {'rate':7} seeds steps GFLOP   first (seeds)       drawn  computed  all else")
    line = "{:15} {:7} {:>5} {:>5} {:>5}   {:5.0%} {:14} {:4.0%} {:9.2f} {:9.2f}"
    print(
        line.format(
            "before", "", "", "", "", base["first"], "", base["drawn"], base["computed"], base["all else"]
        )
    )
    for way in ways:
        some = best[way]
        firsts = [run["first"] for run in some]
        spread = f"({min(firsts):.0%} to {max(firsts):.0%})"
        sizes = [f"{some[0]['lr']:g}", len(some), some[0]["steps"], f"{mean(some, 'flops') / 1e9:.0f}"]
        means = [mean(some, what) for what in ("drawn", "computed", "all else")]
        print(line.format(way, *sizes, mean(some, "first"), spread, *means))


def noise(measured: dict[str, float]):
    """A bar for each baseline: the variance of the gradient over the squared length of its mean."""
    fig, ax = plt.subplots(figsize=(6.5, 2.0))
    bars = ax.barh(list(measured), list(measured.values()), 0.6, color="C0")
    ax.bar_label(bars, fmt="%.2f", fontsize=9, padding=2)
    ax.set(xlabel="variance ÷ squared length of the mean gradient", xlim=(0, 1.15 * max(measured.values())))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    return fig


def received(rewards: list[float], before: dict[str, float], window: int = 8):
    """The mean reward of each batch and its running mean against steps; dashed, held-out questions before."""
    fig, ax = plt.subplots(figsize=(6.5, 2.6))
    ax.plot(rewards, color="C0", lw=0.8, alpha=0.5, label="mean reward of a batch")
    if len(rewards) >= window:
        running = np.convolve(rewards, np.ones(window) / window, mode="valid")
        ax.plot(range(window - 1, len(rewards)), running, color="C0", label=f"mean of {window} batches")
    ax.axhline(before["drawn"], color="0.5", ls="--", lw=1, label="held-out questions, before")
    ax.set(xlabel="step", ylabel="share right", ylim=(0, None))
    ax.legend()
    return fig


def pushes(p_right: list[float]):
    """Above, how hard each way pushes the right answer's logit at each probability; below, where the questions are."""
    fig, (top, low) = plt.subplots(2, 1, figsize=(6.5, 3.6), sharex=True, height_ratios=(2, 1))
    p = np.linspace(0, 1, 201)
    for label, push in {
        "fine-tuning: 1 − π": 1 - p,
        "GRPO: √(π(1 − π))": np.sqrt(p * (1 - p)),
        "rewards: π(1 − π)": p * (1 - p),
    }.items():
        top.plot(p, push, label=label)
    top.set(ylabel="push on the\nright logit")
    top.legend()
    low.hist(p_right, bins=20, range=(0, 1), color="0.6")
    low.set(xlabel="π, the probability of the right answer", ylabel="questions")
    return fig


def trade_off(runs: list[dict], base: dict[str, float]):
    """The price against the right answers: a point for each run, a colour and a form for each way and rate."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    ax.plot(100 * base["first"], base["all else"], "k*", ms=12, ls="", label="before")
    kinds = sorted({(run["way"], run["lr"]) for run in runs})
    for i, (way, lr) in enumerate(kinds):
        some = [run for run in runs if (run["way"], run["lr"]) == (way, lr)]
        right, price = [100 * run["first"] for run in some], [run["all else"] for run in some]
        ax.plot(right, price, "os^D"[i % 4], color=f"C{i}", ls="", label=f"{way}, {lr:g}")
    ax.set(
        xlabel="first choices right (%)", ylabel="all else above the floor\n(nats a story)", ylim=(0, None)
    )
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig
