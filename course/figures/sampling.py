"""Figures of chapter 08."""

from collections.abc import Callable

import matplotlib.pyplot as plt

from course import widgets


def next_tokens(labels: list[str], rows: dict, title: str):
    """A bar for each token and row; rows: name -> probabilities."""
    fig, ax = plt.subplots()
    width = 0.8 / len(rows)
    for i, (name, p) in enumerate(rows.items()):
        ax.bar([x + width * (i - (len(rows) - 1) / 2) for x in range(len(labels))], p, width, label=name)
    ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    ax.set(ylabel="probability", title=title)
    ax.legend()
    return fig


def as_drawn(labels: list[str], plain, drawn, title: str):
    """Pale bars for the model's probabilities, dark ones for those that are drawn from."""
    ax = widgets.axes()
    ax.bar(range(len(labels)), plain, 0.8, color="C0", alpha=0.3, label="the model")
    ax.bar(range(len(labels)), drawn, 0.5, color="C0", label="drawn from")
    ax.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1), title=title)
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


def shares_right(shares: dict[str, list[float]], n: int):
    """Two bars for each way of drawing: percent grammatical, and percent right."""
    fig, ax = plt.subplots()
    for i, label in enumerate(("grammatical", "and its numbers are right")):
        y = [pair[i] for pair in shares.values()]
        error = [100 * (p / 100 * (1 - p / 100) / n) ** 0.5 for p in y]
        ax.bar([x + 0.4 * i - 0.2 for x in range(len(y))], y, 0.4, yerr=error, label=label, ecolor="0.4")
    ax.set_xticks(range(len(shares)), shares, rotation=20, ha="right")
    ax.set(ylabel=f"% of {n} stories", ylim=(0, 100))
    ax.legend()
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
