"""Chapter 21's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt

PARTS = "weights", "gradients", "optimizer"


def stages(
    bars: dict[str, list[list[tuple[float, float, float]]]], ranks: list[int], axes=None
) -> plt.Figure:
    """GB a rank: a panel a model, a group of four bars a number of ranks, for stages 0 to 3, stacked by part."""
    axes = axes or plt.subplots(1, len(bars), figsize=(7.2, 2.7), layout="constrained", squeeze=False)[1][0]
    for ax, (name, by_ranks) in zip(axes, bars.items()):
        for i, by_stage in enumerate(by_ranks):
            for stage, parts in enumerate(by_stage):
                bottom = 0.0
                for k, (part, nbytes) in enumerate(zip(PARTS, parts)):
                    label = part if i == stage == 0 else None
                    ax.bar(i + 0.2 * stage - 0.3, nbytes / 1e9, 0.18, bottom, color=f"C{k}", label=label)
                    bottom += nbytes / 1e9
                ax.text(i + 0.2 * stage - 0.3, bottom, stage, ha="center", va="bottom", fontsize=6)
        ax.set_xticks(range(len(ranks)), ranks)
        ax.set(title=name, xlabel="ranks (bars: stage 0 to 3)")
        ax.title.set_fontsize(9)
    axes[0].set_ylabel("GB a rank")
    figure = axes[0].figure
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


def stages_widget(bars_of, ranks: list[int]):
    """Sliders over `stages(bars_of(millions, recipe), ranks)`."""
    import ipywidgets as widgets

    from course.widgets import axes, explorer

    def draw(million_parameters, recipe):
        ax = axes((6.5, 2.8), layout="constrained")
        return stages(bars_of(million_parameters, recipe), ranks, [ax])

    return explorer(
        draw,
        million_parameters=widgets.IntSlider(value=1558, min=100, max=10_000, step=50),
        recipe=widgets.Dropdown(options=["bf16", "float32", "Megatron"]),
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
