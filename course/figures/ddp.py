"""Chapter 20's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np

from course.figures import widgets


def ring(n: int) -> plt.Figure:
    """A ring of n ranks: of how many each part is the sum. A square a step, a row a rank, a column a part."""
    holds = [np.ones((n, n), int)]
    for step in range(2 * (n - 1)):
        before, after = holds[-1], holds[-1].copy()
        for rank in range(n):
            part, left = (rank - step - 1) % n, (rank - 1) % n
            after[rank, part] = before[left, part] + (before[rank, part] if step < n - 1 else 0)
        holds.append(after)
    fig, panels = plt.subplots(1, len(holds), figsize=(7.2, 1.6), layout="constrained")
    for step, (ax, counts) in enumerate(zip(panels, holds)):
        ax.imshow(counts, cmap="Blues", vmin=0, vmax=1.3 * n)
        for (rank, part), count in np.ndenumerate(counts):
            ax.text(part, rank, count, ha="center", va="center", fontsize=8)
        ax.set(xticks=[], yticks=[], title="start" if not step else f"step {step}")
        ax.title.set_fontsize(9)
        ax.grid(False)
    panels[0].set(ylabel="rank", xlabel="part")
    return fig


def timelines(seen: dict[str, dict]) -> plt.Figure:
    """One picture a run, on one axis of time in ms: a row for what computes, one for the buckets that travel."""
    fig, panels = plt.subplots(
        len(seen), figsize=(7, 1.35 * len(seen) + 0.4), sharex=True, layout="constrained", squeeze=False
    )
    for ax, (title, rows) in zip(panels[:, 0], seen.items()):
        for row, (spans, color) in enumerate(zip(rows.values(), ("C0", "C1"))):
            for name, (start, end) in spans.items():
                ax.broken_barh([(start, end - start)], (row - 0.4, 0.8), color=color, alpha=0.5, ec="white")
                ax.text((start + end) / 2, row, name, ha="center", va="center", fontsize=8)
        ax.set_yticks(range(len(rows)), rows)
        ax.invert_yaxis()
        ax.set_title(f"{title}: {last_end(rows):.1f} ms", fontsize=9, loc="left")
    panels[-1, 0].set_xlabel("ms since the step began")
    return fig


def last_end(rows: dict) -> float:
    return max(end for spans in rows.values() for _, end in spans.values())


def timelines_in_words(seen: dict[str, dict]) -> str:
    """For a reader who does not see the picture."""
    words = []
    for title, rows in seen.items():
        ready, sent = rows["computing"]["backward"][1], rows["communicating"]
        early = sum(end <= ready for _, end in sent.values())
        words.append(f"{title}: of {len(sent)} messages, {early} have arrived when backward ends")
    return "Two rows, computing and communicating. " + "; ".join(words) + "."


def scaling(curves: dict[str, list[tuple[int, float]]], ax=None) -> plt.Figure:
    """Efficiency against the number of GPUs."""
    ax = ax or plt.subplots(figsize=(6.5, 2.8))[1]
    for name, points in curves.items():
        ax.plot(*zip(*points), "o-", ms=3, label=name)
    ax.set_xscale("log", base=2)
    counts = [n for n, _ in max(curves.values(), key=len)]
    ax.set_xticks(counts, counts)  # 2¹⁰ as mathematics takes a third of the drawing
    ax.minorticks_off()
    ax.set(xlabel="GPUs", ylabel="efficiency", ylim=(0, 1.05))
    ax.legend()
    return ax.figure


def scaling_widget(curves):
    """Knobs over `scaling(curves(mfu=…, per_machine=…, inside=…, between=…, latency=…, overlap=…))`."""

    def draw(mfu, GPUs_a_machine, GBs_inside, GBs_between, latency_µs, overlap):
        cluster = {"per_machine": GPUs_a_machine, "inside": GBs_inside * 1e9, "between": GBs_between * 1e9}
        found, ax = curves(mfu=mfu, latency=latency_µs * 1e-6, overlap=overlap, **cluster), widgets.axes(2.8)
        scaling(found, ax)
        parts = []
        for name, points in found.items():
            parts.append(f"{name}: " + ", ".join(f"{share:.0%} on {n:,} GPUs" for n, share in points[::3]))
        return ax, "; ".join(parts) + "."

    return widgets.explorer(
        draw,
        mfu=(0.4, 0.1, 0.7, 0.05),
        GPUs_a_machine=(8, [1, 2, 4, 8, 16, 72]),
        GBs_inside=(450, [16, 32, 64, 200, 300, 450, 900]),
        GBs_between=(50, [0.1, 1, 3, 12.5, 25, 50, 100]),
        latency_µs=(10, 0, 200, 10),
        overlap=(0.8, 0.0, 1.0, 0.1),
    )


def latency_and_bandwidth(sizes, seconds, fitted) -> plt.Figure:
    """Seconds of an all-reduce against its bytes: measured points, and the line that was fitted."""
    fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
    ax.loglog(sizes, seconds, "o", label="measured")
    ax.loglog(sizes, fitted, "-", label="2α + bytes / β")
    ax.set(xlabel="bytes", ylabel="seconds")
    ax.legend()
    return fig


def bandwidths(rates: dict[str, dict[int, float]]) -> plt.Figure:
    """GB/s of an all-reduce against the number of machines, a curve each."""
    fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
    for name, by in rates.items():
        ax.plot(*zip(*by.items()), "o-", ms=4, label=name)
    ax.set_xscale("log", base=2)
    machines = list(max(rates.values(), key=len))
    ax.set_xticks(machines, machines)
    ax.minorticks_off()
    ax.set(xlabel="machines of 8 GPUs", ylabel="GB/s", ylim=(0, 480))
    ax.legend()
    return fig
