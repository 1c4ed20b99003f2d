"""The tables and figures of chapters 25 and 25b, of races that `bench/speedrun.py` recorded."""

from itertools import pairwise
from math import exp, log
from statistics import fmean
from types import SimpleNamespace

import matplotlib.pyplot as plt


def equal_steps(loss: float, curve: list[tuple[int, float]]) -> float:
    """After how many steps a run of the complete recipe has this loss: between measured lengths, linear in log steps."""
    for (n, above), (m, below) in pairwise(curve):
        if above >= loss >= below:
            part = (above - loss) / (above - below)
            return exp(log(n) + part * (log(m) - log(n)))
    (first, worst), (last, _) = curve[0], curve[-1]
    return first if loss > worst else last


def rows(recorded: dict) -> list[SimpleNamespace]:
    """For each change: its mean loss, the complete recipe's steps to the same loss, and how many times as fast the part makes the race."""
    table, took = recorded["table"], recorded["step_seconds"]
    curve = sorted((int(steps), fmean(losses)) for steps, losses in table["curve"].items())
    full, found = recorded["record"]["recipe"]["steps"], []
    for name, losses in table["losses"].items():
        steps = equal_steps(fmean(losses), curve)
        worth = full * took[name] / (steps * took["nothing"])
        found.append(SimpleNamespace(name=name, loss=fmean(losses), steps=steps, full=full, worth=worth))
    return found


def worth(found: list[SimpleNamespace]) -> plt.Figure:
    """Bars: how many times as fast the race is than with the change."""
    found = [row for row in found if row.name != "nothing"][::-1]
    fig, ax = plt.subplots(figsize=(7, 3.2), layout="tight")
    ax.barh([row.name for row in found], [row.worth - 1 for row in found], left=1)
    ax.axvline(1, color="0.3", lw=1)
    ax.set_xlabel("times as long with this change; left of 1, the change would be an improvement")
    return fig


def last_nats(paid: dict[str, dict[str, float]]) -> plt.Figure:
    """Nats a story above the floor by kind of decision, a bar for each model."""
    kinds = list(next(iter(paid.values())))
    fig, ax = plt.subplots(figsize=(7, 3.6), layout="tight")
    height = 0.8 / len(paid)
    for n, (name, row) in enumerate(paid.items()):
        places = [place + (n - (len(paid) - 1) / 2) * height for place in range(len(kinds))]
        ax.barh(places, [row[kind] for kind in kinds], height, label=name)
    ax.set_yticks(range(len(kinds)), kinds, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("nats a story above the floor")
    ax.legend(frameon=False)
    return fig


def print_answers(answers: dict[str, dict[str, float]]) -> None:
    """For each model the share of right answers, by kind."""
    for name, row in answers.items():
        print(
            f"{name:10} right answers: {row['copied']:.1%} of the copied ones, {row['computed']:.1%} of the computed ones"
        )
