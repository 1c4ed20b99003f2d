"""Chapter 24d's figure."""

import matplotlib.pyplot as plt


def learning(rows: list[dict], of: int) -> plt.Figure:
    """The training loss of each run, a point for the mean of `of` steps."""
    fig, ax = plt.subplots(figsize=(7, 2.8), layout="tight")
    for row in rows:
        means = row[f"means of {of} steps"]
        ax.plot([of * (i + 0.5) for i in range(len(means))], means, label=row["task"])
    ax.set(xlabel="step", ylabel="loss (nats a hidden token)")
    ax.legend()
    return fig
