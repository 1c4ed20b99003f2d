"""Chapter 07's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display

from course.notebook import show

TICKS = [0.25, 0.5, 1, 2, 4, 8]
STEP = 0.602  # the width of a character of DejaVu Sans Mono, in units of its size


def find(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The values of the wanted keys, 0 for a key that is not there."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def refined(p: np.ndarray, contexts, targets, V: int) -> np.ndarray:
    """P(target | context) for each target of the second pair, as counted in the first (Witten and Bell 1991).

    p: the guess without this context. contexts, targets: (of the text, of what is held out), numbers from 0.
    """
    pairs, n = np.unique(contexts[0] * V + targets[0], return_counts=True)
    known, first, kinds = np.unique(pairs // V, return_index=True, return_counts=True)
    total = find(known, np.add.reduceat(n, first), contexts[1])
    kinds = find(known, kinds, contexts[1]).clip(min=1)
    return (find(pairs, n, contexts[1] * V + targets[1]) + kinds * p) / (total + kinds)


def table_losses(text: np.ndarray, val: np.ndarray, V: int, eot: int) -> dict[str, float]:
    """What tables counted in text reach on val, in nats per token, each named by what it knows."""

    def last(tokens, n):  # the last n tokens at each position, as one number
        key = np.zeros(len(tokens) - 1, np.int64)
        for back in range(n):
            key[back:] += tokens[: len(key) - back] * V**back
        return key

    def place(tokens):  # how far into its story each token is
        starts = np.flatnonzero(tokens == eot)
        return (np.arange(len(tokens)) - np.repeat(starts, np.diff(starts, append=len(tokens))))[:-1]

    both, targets = (text, val), (text[1:], val[1:])
    ngram = [np.full(len(val) - 1, 1 / V)]  # ngram[n]: for one who sees n - 1 tokens
    for n in range(5):
        ngram.append(refined(ngram[-1], [last(tokens, n) for tokens in both], targets, V))
    far = max(place(tokens).max() for tokens in both) + 1
    placed = refined(ngram[2], [last(tokens, 1) * far + place(tokens) for tokens in both], targets, V)
    tables = {
        "ln V: knows nothing": ngram[0],
        "unigram: knows frequencies": ngram[1],
        "bigram: sees one token": ngram[2],
        "position: sees one token and where it stands": placed,
        "3-gram: sees two tokens": ngram[3],
        "5-gram: sees four tokens": ngram[5],
    }
    return {name: -np.log(p).mean().item() for name, p in tables.items()}


def heads(model, ids: list[int]):
    """The attention weights of all heads of a GPT on a text: (n_layer, n_head, T, T)."""
    import torch

    from nanogpt.model import attention_weights, split_heads

    seen, training = [], model.training
    keep = lambda module, x, qkv: seen.append(qkv)  # noqa: E731
    hooks = [block.attn.c_attn.register_forward_hook(keep) for block in model.transformer.h]
    with torch.no_grad():
        model.eval()(torch.tensor([ids], device=next(model.parameters()).device))
    model.train(training)
    for hook in hooks:
        hook.remove()
    parts = [split_heads(qkv, model.config.n_head) for qkv in seen]
    return torch.stack([attention_weights(q, k)[0] for q, k, _ in parts]).cpu()


def loss_map(lines: dict[str, float]) -> plt.Figure:
    """Losses, a row each, with their names ("short: what it knows"); from the floor, what needs attention is shaded."""
    by_name = {name.partition(":")[0]: nats for name, nats in lines.items()}
    spans = {
        "needs attention": (by_name["floor"], by_name["position"]),
        "needs more than phrases": (by_name["floor"], by_name["5-gram"]),
    }
    fig, ax = plt.subplots(figsize=(7.2, 0.3 * (len(lines) + len(spans) / 2) + 0.8))
    rows = sorted(lines.items(), key=lambda line: line[1])
    for i, (_, nats) in enumerate(rows):
        ax.plot([0, nats], [i, i], lw=1, c="0.75", zorder=1)
        ax.plot(nats, i, "o", c="C0")
        ax.text(nats + 0.12, i, f"{nats:.2f}", va="center", fontsize=8)
    for i, (name, (low, high)) in enumerate(spans.items()):
        ax.axvspan(low, high, color="C1", alpha=0.13, lw=0)
        y = len(rows) - 0.3 + 0.55 * i
        ax.annotate("", (low, y), (high, y), arrowprops={"arrowstyle": "<->", "color": "C1"})
        ax.text(high + 0.12, y, name, va="center", fontsize=8, color="C1")
    ax.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    ax.set(xlabel="loss (nats per token)", xlim=(0, 7.6), ylim=(-0.6, len(rows) - 0.5 + 0.55 * len(spans)))
    ax.grid(axis="y", visible=False)
    return fig


def curves(losses: dict[str, list[float]], lines: dict[str, float]) -> plt.Figure:
    """Losses against steps, a curve for each name, and dashed lines to compare them with."""
    fig, ax = plt.subplots(figsize=(7.2, 2.8))
    for i, (name, values) in enumerate(losses.items()):
        ax.semilogy(range(1, len(values) + 1), values, lw=1.5, c=f"C{i}", label=name)
    for name, nats in lines.items():
        ax.axhline(nats, c="0.5", lw=1, ls="--", zorder=1)
        ax.annotate(name, (1.01, nats), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    low = 0.8 * min(min(values) for values in losses.values())
    shown = [tick for tick in (0.01, 0.03, 0.1, 0.3, 1, 2, 4, 7) if tick > low]
    ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
    ax.minorticks_off()
    ax.set(xlabel="step", ylabel="loss (nats per token)", ylim=(low, 1.3 * max(lines.values())))
    if len(losses) > 1:
        ax.legend(fontsize=8, loc="lower left")
    return fig


class LivePlot:
    """One figure of a run, replaced in place: call it with (step, loss), and `held` with what was held out.

    A loss stays on its device until the figure is drawn, so that no step waits for it.
    """

    def __init__(self, lines: dict[str, float], steps: int, every: int = 100):
        self.lines, self.steps, self.every, self.losses, self.held = lines, steps, every, [], {}
        self.handle = display({"text/plain": "waiting for the first losses"}, raw=True, display_id=True)

    def __call__(self, step: int, loss) -> None:
        self.losses.append(loss)
        if (step + 1) % self.every == 0 and step + 1 < self.steps:
            show(self.draw(), alt="The losses so far, between the lines of the map.", handle=self.handle)
        if step + 1 == self.steps:
            self.handle.update({"text/plain": "trained; the next cell shows the figure"}, raw=True)

    def draw(self) -> plt.Figure:
        fig, ax = plt.subplots(figsize=(7.2, 3.6))
        self.losses = [float(loss) for loss in self.losses]
        ax.semilogy(self.losses, lw=0.4, alpha=0.4, c="C0")
        width = min(50, len(self.losses))
        smooth = np.convolve(self.losses, np.ones(width) / width, "valid")
        ax.plot(
            np.arange(len(smooth)) + width / 2, smooth, c="C0", label=f"training, mean of {width} batches"
        )
        ax.plot(self.held.keys(), self.held.values(), "o-", ms=3, lw=1, c="C1", label="held out")
        labels = []
        for name, nats in sorted(self.lines.items(), key=lambda line: line[1]):
            ax.axhline(nats, c="C2" if name.startswith("floor") else "0.5", lw=1, ls="--")
            near = labels and nats < 1.08 * labels[-1][1]  # one label for lines that nearly touch
            names = f"{labels.pop()[0]}, " if near else ""
            labels.append((names + name.split(":")[0], nats))
        for label, nats in labels:
            ax.text(1.01 * self.steps, nats, label, va="center", fontsize=8)
        low = 0.85 * min([*self.lines.values(), *self.losses])
        ax.set(xlim=(0, self.steps), ylim=(low, None), xlabel="step", ylabel="loss (nats per token)")
        shown = [tick for tick in TICKS if tick > low]
        ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
        ax.minorticks_off()
        ax.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.82), frameon=True, framealpha=1)
        return fig


def answers(right: dict[int, dict[str, float]], baseline: dict[str, float], steps: int) -> plt.Figure:
    """The share of right answers against steps, by kind, with a table of pairs for comparison."""
    fig, ax = plt.subplots(figsize=(7.2, 2.3))
    for i, kind in enumerate(("copied", "computed")):
        ax.plot(right.keys(), [share[kind] for share in right.values()], ".-", c=f"C{i}", label=kind)
        ax.axhline(baseline[kind], c=f"C{i}", lw=1, ls="--", label=f"{kind}, by the bigram")
    ax.set(xlim=(0, steps), ylim=(0, 1.03), xlabel="step", ylabel="answers right")
    ax.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
    return fig


def table_facts(models: dict[str, dict[str, dict]], nothing: dict[str, float]) -> None:
    """Print what each kind of repeated fact costs the models, beside the nats of a guess; the first model's costs give the order."""
    first = next(iter(models.values()))
    print(f"{'':16} {'times':>6} {'guess':>6}", *(f"| {name:^24}" for name in models))
    print(
        f"{'repeated fact':16} {'a story':>6} {'costs':>5}", *("|  a story    each   right" for _ in models)
    )
    for kind in sorted(first, key=lambda kind: -first[kind]["nats"]):
        guess = f"{nothing[kind]:.2f}" if kind in nothing else ""
        line = [f"{kind:16} {first[kind]['times']:6.2f} {guess:>6}"]
        for facts in models.values():
            row = facts[kind]
            line.append(f"| {row['nats']:8.2f} {row['nats'] / row['times']:7.2f} {row['right']:7.0%}")
        print(*line)


def facts(rows: dict[str, dict], nothing: dict[str, float]) -> plt.Figure:
    """Nats of each kind of repeated fact: in a story, and each time, with a line at what a guess costs."""
    kinds = sorted(rows, key=lambda kind: -rows[kind]["nats"])
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 0.28 * len(kinds) + 0.7), sharey=True)
    bars = (
        [rows[kind]["nats"] for kind in kinds],
        [rows[kind]["nats"] / rows[kind]["times"] for kind in kinds],
    )
    guesses = [nothing[kind] for kind in kinds if kind in nothing]
    for ax, values, more, what in zip(axes, bars, ([], guesses), ("nats a story", "nats each time")):
        ax.barh(range(len(kinds)), values, color="C0")
        ax.set(xlabel=what, xlim=(0, 1.1 * max(*values, *more, 0.1)))
        ax.grid(axis="y", visible=False)
    for i, kind in enumerate(kinds):
        if kind in nothing:
            axes[1].plot([nothing[kind]] * 2, [i - 0.45, i + 0.45], c="k", lw=2)
    axes[0].set_yticks(range(len(kinds)), kinds, fontsize=8)
    axes[0].invert_yaxis()
    return fig


def costs(texts: list[list[tuple[str, float, bool]]], width=84, label="nats", top=4.5) -> plt.Figure:
    """Texts as tokens, each (token, nats, framed) shaded by its nats, in lines of at most `width` characters."""
    placed, y = [], 0
    for tokens in texts:
        x = 0
        for token, nats, framed in tokens:
            x, y = (0, y + 1) if x + len(token) > width else (x, y)
            token = token if x else token.lstrip()
            indent = len(token) - len(token.lstrip())
            placed.append((x + indent, y, token.strip(), nats, framed))
            x += len(token)
        y += 2
    inches, high = 7.2, 0.27 * y
    fig = plt.figure(figsize=(inches, high + 0.5))
    ax = fig.add_axes((0, 0.5 / (high + 0.5), 1, high / (high + 0.5)))
    norm, size = plt.Normalize(0, top), 72 * inches / (width * STEP) * 0.98
    for x, y_, token, nats, framed in placed:
        box = {
            "facecolor": plt.cm.Blues(norm(min(nats, top))),
            "edgecolor": "crimson" if framed else "none",
            "pad": 0.8,
        }
        color = "white" if nats > 0.58 * top else "black"
        ax.text(x + 0.5, -y_, token, family="DejaVu Sans Mono", fontsize=size, color=color, bbox=box)
    ax.set(xlim=(0, width + 1), ylim=(1.7 - y, 0.8))
    ax.axis("off")
    bar = fig.add_axes((0.25, 0.28 / (high + 0.5), 0.5, 0.1 / (high + 0.5)))
    colors = plt.cm.ScalarMappable(norm, "Blues")
    fig.colorbar(colors, cax=bar, orientation="horizontal", label=label, extend="max")
    return fig
