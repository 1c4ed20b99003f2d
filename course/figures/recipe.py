"""Chapter 15's figures and its widget: each function takes data and returns a figure."""

from collections.abc import Callable

import matplotlib.pyplot as plt

from course.figures import widgets


def schedule_widget(rates: Callable):
    """Sliders over the factors of the rate, step by step, as rates(steps, warmup, minimum, decay) gives them by name."""

    def draw(**knobs):
        ax, curves = widgets.axes(2.6), rates(**knobs)
        for name, factors in curves.items():
            ax.plot(factors, label=name)
        ax.set(xlabel="step", ylabel="factor of the rate", ylim=(0, 1.05))
        ax.legend(loc="lower center")
        parts = [
            f"{name} has a mean of {sum(f) / len(f):.3f} and ends at {f[-1]:.2f}"
            for name, f in curves.items()
        ]
        return ax, f"Over {knobs['steps']} steps the factor of {'; '.join(parts)}."

    return widgets.explorer(
        draw,
        steps=(1000, 10, 2000, 10),
        warmup=(50, 0, 1000, 10),
        minimum=(0.1, 0.0, 1.0, 0.05),
        decay=(0.3, 0.0, 1.0, 0.05),
    )


def panels(runs: dict, clip: float) -> plt.Figure:
    """Loss above, norm below on a logarithmic axis with the length at which it is clipped, of runs by name."""
    fig, (top, low) = plt.subplots(2, 1, figsize=(7, 3.8), sharex=True, layout="constrained")
    for name, run in runs.items():
        top.plot(run.losses, lw=1, label=name)
        low.semilogy(run.norms, lw=1)
    low.axhline(clip, c="0.5", ls="--", lw=1)
    top.set(ylabel="loss (nats per token)")
    low.set(xlabel="step", ylabel="gradient's norm")
    return fig


def spike(runs: dict, apart: dict, at: int) -> plt.Figure:
    """Norms around a bad batch, and how much higher each loss is after it than without it."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained", width_ratios=(1, 2))
    first = max(0, at - 10)
    for i, (name, run) in enumerate(runs.items()):
        around = run.norms[first : at + 15]
        left.semilogy(range(first, first + len(around)), around, lw=1, c=f"C{i}")
        right.plot(range(at + 1, len(apart[name])), apart[name][at + 1 :], lw=1, c=f"C{i}", label=name)
    right.axhline(0, c="0.5", lw=1)
    left.set(xlabel="step", ylabel="gradient's norm")
    right.set(xlabel="step", ylabel="nats above the run\nwithout the bad batch")
    right.legend()
    return fig


def rates(sweeps: dict[str, dict[float, list[float]]]) -> plt.Figure:
    """Nats above the floor against the learning rate: for each sweep the means as a line, and a dot for each run."""
    fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for i, (name, sweep) in enumerate(sweeps.items()):
        ax.semilogx(sweep.keys(), [sum(runs) / len(runs) for runs in sweep.values()], c=f"C{i}", label=name)
        for lr, runs in sweep.items():
            ax.plot([lr] * len(runs), runs, "o", ms=3.5, alpha=0.5, c=f"C{i}")
    all_rates = sorted({lr for sweep in sweeps.values() for lr in sweep})
    ax.set_xticks(all_rates, [f"{lr:g}" for lr in all_rates])
    ax.minorticks_off()
    ax.set(xlabel="learning rate", ylabel="nats per token above the floor")
    fig.legend(loc="outside right upper")  # beside the curves, which fill the axes
    return fig


def worth(costs: dict[str, tuple]) -> plt.Figure:
    """What each variant costs, with its interval: at the recipe's best rate, and at its own.

    costs: name -> (cost and half width at the recipe's rate, the same at its own rate, that rate).
    """
    fig, ax = plt.subplots(figsize=(7.2, 0.36 * len(costs) + 0.9), layout="constrained")
    for i, (column, label) in enumerate([(0, "at the recipe's best rate"), (2, "at its own best rate")]):
        y = [row + 0.3 * (i - 0.5) for row in range(len(costs))]
        nats = [cost[column] for cost in costs.values()]
        half = [cost[column + 1] for cost in costs.values()]
        ax.errorbar(nats, y, xerr=half, fmt="o", ms=4, lw=1.5, c=f"C{i}", label=label)
    ax.axvline(0, c="0.5", lw=1)
    ax.set_yticks(range(len(costs)), costs)
    ax.invert_yaxis()
    ax.set_xlabel("cost in nats per token (right: worse than the recipe)")
    ax.legend()
    return fig
