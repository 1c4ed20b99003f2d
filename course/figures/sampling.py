"""Figures of chapter 08."""

from collections.abc import Callable

import matplotlib.pyplot as plt

from course import widgets


def as_drawn(labels: list[str], plain, drawn):
    """Pale bars for the model's probabilities, dark ones for those that are drawn from."""
    ax = widgets.axes()
    ax.bar(range(len(labels)), plain, 0.8, color="C0", alpha=0.3, label="the model")
    ax.bar(range(len(labels)), drawn, 0.5, color="C0", label="drawn from")
    ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1), title=f"{(drawn > 0).sum()} of these tokens left")
    ax.legend()
    return ax.figure


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


def playground(bars: Callable, prompt: str):
    """A text field and three sliders; bars(prompt, temperature, top_k, top_p) draws the figure below them."""
    from ipywidgets import FloatSlider, IntSlider, Text

    return widgets.explorer(
        lambda **knobs: bars(**knobs).axes[0],
        prompt=Text(prompt, continuous_update=False),
        temperature=FloatSlider(value=0.8, min=0, max=3, step=0.1),
        top_k=IntSlider(value=8, min=1, max=50),
        top_p=FloatSlider(value=0.95, min=0.05, max=1, step=0.05),
    )
