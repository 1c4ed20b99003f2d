"""Chapter 22d's figure: takes data and returns a figure."""

import math

import matplotlib.pyplot as plt


def scale_and_rate(published: list[dict]) -> plt.Figure:
    """Loss scale and learning rate of a published log against iterations, a point a line."""
    fig, (top, bottom) = plt.subplots(
        2, 1, figsize=(6.5, 3.4), sharex=True, layout="constrained", height_ratios=(3, 2)
    )
    at = [int(row["iteration"]) for row in published]
    top.plot([0, *at], [32, *(math.log2(float(row["loss_scale"])) for row in published)], "o-", ms=3)
    for row in published:
        if row["skipped"] != "0":
            where = int(row["iteration"]), math.log2(float(row["loss_scale"]))
            text = f"{row['skipped']} of 10 skipped"
            top.annotate(text, where, (8, 3), textcoords="offset points", fontsize=8)
    bottom.plot(at, [float(row["learning_rate"]) for row in published], "o-", c="C2", ms=3)
    top.set(ylabel="log2 of the loss scale", ylim=(10, 33))
    bottom.set(xlabel="iteration", ylabel="learning rate")
    return fig
