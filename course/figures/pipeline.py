"""Chapter 21e's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np

from course.figures import widgets


def timetable(ax, spans: list, name: str, unit: str) -> None:
    """A row a stage, a bar an operation with its micro-batch's number; spans as simulate's."""
    begin, end = min(stage[0][-2] for stage in spans), max(stage[-1][-1] for stage in spans)
    for s, stage in enumerate(spans):
        for kind, chunk in sorted({(what, chunk) for what, _, chunk, _, _ in stage}):
            bars = [(a - begin, b - a) for what, _, c, a, b in stage if (what, c) == (kind, chunk)]
            colour = ("C0", "C1")[kind == "B"]
            ax.broken_barh(bars, (s - 0.4, 0.8), color=colour, alpha=0.85 / (1 + chunk), ec="white", lw=0.8)
        for _, i, _, start, stop in stage:
            if stop - start > (end - begin) / 60:
                middle = (start + stop) / 2 - begin
                ax.text(middle, s, i, ha="center", va="center", fontsize=6, color="black")
    ax.set(ylabel="stage", title=name, xlabel=f"time ({unit})", xlim=(0, end - begin))
    ax.set_yticks(range(len(spans)))
    ax.invert_yaxis()
    ax.grid(False)


def schedules(pictures: dict, unit: str = "forward passes of a stage") -> plt.Figure:
    """Timetables below each other on one scale: forwards blue, backwards orange, later chunks paler."""
    height = sum(0.75 + 0.22 * len(spans) for spans in pictures.values())
    fig, panels = plt.subplots(len(pictures), 1, figsize=(7, height), layout="constrained")
    for ax, (name, spans) in zip(np.atleast_1d(panels), pictures.items()):
        timetable(ax, spans, name, unit)
        ax.label_outer()
    longest = max(ax.get_xlim()[1] for ax in np.atleast_1d(panels))
    for ax in np.atleast_1d(panels):
        ax.set_xlim(0, longest)
    return fig


def schedule_widget(orders, simulate):
    """Knobs over the timetable of orders(stage, stages, micro_batches, chunks), chunks being shorter in time."""

    def draw(stages, micro_batches_a_stage, chunks):
        micro = stages * micro_batches_a_stage  # others do not interleave
        each = [orders(s, stages, micro, chunks) for s in range(stages)]
        spans = simulate(each, lambda stage, what: (1 if what == "F" else 2) / chunks)
        idle = 1 - 3 * micro / max(stage[-1][-1] for stage in spans)
        ax = widgets.axes(2.6)
        timetable(ax, spans, f"idle {idle:.1%}", "forward passes of a stage")
        count = "whole" if chunks == 1 else f"in {chunks} chunks each"
        return (
            ax,
            f"{stages} stages, {count}, and {micro} micro-batches: each waits for {idle:.1%} of the time.",
        )

    return widgets.explorer(draw, stages=(4, 1, 8), micro_batches_a_stage=(2, 1, 6), chunks=(1, 1, 4))
