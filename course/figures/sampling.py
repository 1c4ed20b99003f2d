"""Figures of chapter 08."""

from collections.abc import Callable

import matplotlib.pyplot as plt

from course import widgets


def as_drawn(labels: list[str], plain, drawn):
    """Pale bars for the model's probabilities, dark ones for those that are drawn from; and that in words."""
    ax, plain, drawn = widgets.axes(3.0, bottom=0.85), plain.tolist(), drawn.tolist()
    ax.bar(range(len(labels)), plain, 0.8, color="C0", alpha=0.3, label="the model")
    ax.bar(range(len(labels)), drawn, 0.5, color="C0", label="drawn from")
    ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1))
    ax.legend()
    left = sum(p > 0 for p in drawn)
    words = (
        f"{left} of the {len(labels)} likeliest tokens can be drawn" if left > 1 else "One token can be drawn"
    )
    return (
        ax,
        f"{words}; {labels[0]} with probability {drawn[0]:.2f}, where the model gives it {plain[0]:.2f}.",
    )


def time_per_token(lengths, ms: dict[str, list[float]]):
    """Milliseconds for one more token against the tokens before it, a line for each name."""
    fig, ax = plt.subplots()
    for name, y in ms.items():
        ax.plot(lengths, y, "o-", ms=3, label=name)
    ax.set(xlabel="tokens before", ylabel="ms for one more token", ylim=(0, None))
    ax.legend()
    return fig


def shares_right(shares: dict[str, float], n: int):
    """Percent of n stories that are right, a bar with its standard deviation for each way of drawing."""
    fig, ax = plt.subplots()
    error = [100 * (p / 100 * (1 - p / 100) / n) ** 0.5 for p in shares.values()]
    ax.bar(range(len(shares)), list(shares.values()), 0.6, yerr=error, ecolor="0.4")
    ax.set_xticks(range(len(shares)), shares, rotation=20, ha="right")
    ax.set(ylabel=f"% of {n} stories that are right", ylim=(0, 100))
    return fig


def playground_widget(bars: Callable, prompt: str):
    """A field and three sliders over `as_drawn(*bars(prompt, temperature, top_k, top_p))`."""
    return widgets.explorer(
        lambda **knobs: as_drawn(*bars(**knobs)),
        prompt=prompt,
        temperature=(0.8, 0.0, 3.0, 0.1),
        top_k=(8, 1, 50),
        top_p=(0.95, 0.05, 1.0, 0.05),
    )
