"""Chapter 21's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt
import numpy as np

from course.figures import widgets

PARTS = "weights", "gradients", "optimizer"


def stages(ax, by_ranks: list[list[tuple[float, float, float]]], ranks: list[int]) -> None:
    """GB a rank: a group of four bars a number of ranks, for stages 0 to 3, stacked by part."""
    for stage in range(4):
        at, bottom = [i + 0.2 * stage - 0.3 for i in range(len(ranks))], np.zeros(len(ranks))
        for k, part in enumerate(PARTS):
            gb = np.array([by_stage[stage][k] / 1e9 for by_stage in by_ranks])
            ax.bar(at, gb, 0.18, bottom=bottom, color=f"C{k}", label=None if stage else part)
            bottom += gb
        for x, y in zip(at, bottom):
            ax.text(x, y, stage, ha="center", va="bottom", fontsize=6, clip_on=True)
    ax.set_xticks(range(len(ranks)), ranks)
    ax.set_xlabel("ranks (bars: stage 0 to 3)")


def models(bars: dict[str, list], ranks: list[int]) -> plt.Figure:
    """A panel of `stages` for each model."""
    fig, panels = plt.subplots(1, len(bars), figsize=(7.2, 2.7), layout="constrained", squeeze=False)
    for ax, (name, by_ranks) in zip(panels[0], bars.items()):
        stages(ax, by_ranks, ranks)
        ax.set_title(name, fontsize=9)
    panels[0][0].set_ylabel("GB a rank")
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return fig


def stages_widget(bars_of, ranks: list[int]):
    """Knobs over the stages of a model of any size, beside a card's memory."""

    def draw(million_parameters, recipe, card_GB):
        ((name, by_ranks),) = bars_of(million_parameters, recipe).items()
        ax = widgets.axes(2.9)
        stages(ax, by_ranks, ranks)
        ax.axhline(card_GB, color="black", ls="--", lw=1)
        ax.set(ylabel="GB a rank", ylim=(0, 1.5 * card_GB), title="dashed: the card's memory")
        ax.legend(fontsize=8, ncols=3, loc="upper right")
        fits = [
            f"stage {stage} "
            + next(
                (f"from {n} ranks" for n, by in zip(ranks, by_ranks) if sum(by[stage]) <= card_GB * 1e9),
                "never",
            )
            for stage in range(4)
        ]
        return ax, f"{name}. Without activations it fits {card_GB} GB: {', '.join(fits)}."

    return widgets.explorer(
        draw,
        million_parameters=(1600, 100, 20_000, 100),
        recipe=("bf16", ["bf16", "float32", "Megatron"]),
        card_GB=(24, [8, 16, 24, 40, 80, 141]),
    )


def held(found: dict[str, dict]) -> plt.Figure:
    """MB a rank by way: weights, gradients and moments at the end of backward, and the peak of a step as a line."""
    fig, ax = plt.subplots(figsize=(7, 2.7), layout="constrained")
    for i, told in enumerate(found.values()):
        left = 0.0
        for k, part in enumerate(("weights", "gradients", "moments")):
            ax.barh(i, told[part] / 1e6, 0.7, left, color=f"C{k}", label=part if not i else None)
            left += told[part] / 1e6
        ax.plot(
            [told["peak"] / 1e6] * 2, [i - 0.4, i + 0.4], "k", lw=2, label=None if i else "peak of a step"
        )
    ax.set_yticks(range(len(found)), found, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("MB on rank 0")
    ax.legend(fontsize=8)
    return fig
