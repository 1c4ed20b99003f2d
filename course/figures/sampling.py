"""Figures of chapter 08."""

import re
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch

from course.figures import widgets

# Of each of the grammar's plots, words that the others lack; the last is what is left.
PLOTS = {
    "trades them": "wanted the",
    "a promise": "promise",
    "hides them": "closed it|hid (six|seven|eight|nine|ten|eleven)",
    "finds more": " more",
    "loses some": "fell into|ran off",
    "counts together": "together",
    "gives some away": "",
}


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


def plot_of(text: str) -> str:
    """Which of the grammar's plots a story has, also where it goes wrong."""
    return next(name for name, words in PLOTS.items() if re.search(words, text))


def plots_told(written: dict[str, list[str]]):
    """A bar for each way of choosing, cut into the shares of the plots among its stories."""
    fig, ax = plt.subplots()
    left = [0.0] * len(written)
    for number, plot in enumerate(PLOTS):
        shares = [
            100 * sum(plot_of(text) == plot for text in texts) / len(texts) for texts in written.values()
        ]
        ax.barh(range(len(written)), shares, 0.7, left, color=plt.cm.Set2(number), label=plot)
        left = [before + share for before, share in zip(left, shares)]
    ax.set_yticks(range(len(written)), written)
    ax.invert_yaxis()
    ax.set(xlabel="% of the stories", xlim=(0, 100))
    ax.grid(visible=False)
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    return fig


def playground_widget(model, tokenizer, token_probs: Callable, prompt: str):
    """A field and three sliders over the model's sixteen likeliest next tokens, before and after `token_probs`."""

    def draw(prompt: str, temperature: float, top_k: int, top_p: float):
        text = [tokenizer.eot, *tokenizer.encode(prompt)][-model.config.block_size :]
        with torch.no_grad():
            device = next(model.parameters()).device
            logits = model(torch.tensor([text], device=device))[0][0, -1:].cpu()  # (1, V)
        plain, drawn = logits.softmax(-1)[0], token_probs(logits, temperature, top_k, top_p)[0]
        ids = plain.topk(16).indices
        return as_drawn([repr(tokenizer.decode([i])) for i in ids], plain[ids], drawn[ids])

    return widgets.explorer(
        draw,
        prompt=prompt,
        temperature=(0.8, 0.0, 3.0, 0.1),
        top_k=(8, 1, 50),
        top_p=(0.95, 0.05, 1.0, 0.05),
    )
