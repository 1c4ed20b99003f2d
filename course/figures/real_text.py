"""Chapter 16's figures."""

import math

import matplotlib.pyplot as plt


def beginning_again(jobs, hours, mean: float):
    """Hours of work over a job's length: measured, expected, and what a job needs that goes on where it was."""
    fig, ax = plt.subplots()
    ax.plot(jobs, hours, "o", color="C3", label="begins again, 2,000 draws each")
    expected = [mean * (math.exp(job / mean) - 1) for job in jobs]
    ax.plot(jobs, expected, color="C3", linewidth=1, label="τ(exp(T/τ) − 1)")
    ax.plot(jobs, jobs, color="C0", label="goes on where it was")
    ax.set(
        xlabel=f"T, hours that the job takes (τ, hours until it is stopped: {mean})", ylabel="hours of work"
    )
    ax.legend()
    return fig


def kills(stops, whole: float):
    """Megabytes of shards from kill to kill; stops: (on the disk, in the journal) at each; whole: in the end."""
    fig, ax = plt.subplots()
    kept = 0.0
    for n, (there, journaled) in enumerate(stops):
        ax.plot([n, n + 1], [kept, there], color="C0", linewidth=1.2, label="a run" if n == 0 else None)
        ax.plot([n + 1, n + 1], [there, journaled], color="C3", linewidth=1.2)
        ax.plot(n + 1, there, "x", color="C3", label="kill -9" if n == 0 else None)
        ax.plot(
            n + 1,
            journaled,
            "_",
            color="black",
            markersize=12,
            label=None if n else "in the journal: the next goes on here",
        )
        kept = journaled
    ax.plot([len(stops), len(stops) + 1], [kept, whole], color="C0", linewidth=1.2)
    ax.set(xlabel="run", ylabel="MB of shards on the disk")
    if stops:
        ax.legend(loc="lower right")
    return fig
