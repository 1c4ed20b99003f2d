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


def kills(held, stops):
    """Megabytes on the disk over time; stops: (when, megabytes on the disk, megabytes in the journal)."""
    fig, ax = plt.subplots()
    ax.plot(held, linewidth=1.2, label="on the disk")
    for n, (when, there, kept) in enumerate(stops):
        ax.plot([when, when], [there, kept], color="C3", linewidth=1.2)
        ax.plot(when, there, "x", color="C3", label="kill -9" if n == 0 else None)
        ax.plot(
            when,
            kept,
            "_",
            color="black",
            label="in the journal: the next run goes on here" if n == 0 else None,
        )
    ax.set(xlabel="time, in samples; each kill is followed by the next run", ylabel="MB of shards")
    if held or stops:
        ax.legend(loc="lower right")
    return fig
