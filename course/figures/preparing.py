"""Chapter 16b's figures."""

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


def kills(done: list[int], chunks: int):
    """Chunks that are whole from kill to kill, and in the end; done: how many before the first run, and at each kill."""
    fig, ax = plt.subplots()
    ax.plot(range(len(done)), done, color="C0", linewidth=1.2, label="chunks that are whole")
    ax.plot(range(1, len(done)), done[1:], "x", color="C3", label="kill -9")
    ax.plot([len(done) - 1, len(done)], [done[-1], chunks], color="C0", linewidth=1.2)
    ax.set(xlabel="run", ylabel="chunks")
    ax.legend(loc="lower right")
    return fig
