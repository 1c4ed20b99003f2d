"""Chapter 22d's figure: takes data and returns a figure."""

import math

import matplotlib.pyplot as plt


def scale_and_rate(published: list[dict], ours: list[dict], window: int) -> plt.Figure:
    """Loss scale and learning rate against iterations: left a published log, a point a line, right every iteration of ours."""
    fig, axes = plt.subplots(2, 2, figsize=(8, 4), sharex="col", layout="constrained", height_ratios=(3, 2))
    (left, right), (left_rate, right_rate) = axes
    at = [int(row["iteration"]) for row in published]
    left.plot([0, *at], [32, *(math.log2(float(row["loss_scale"])) for row in published)], "o-", ms=3)
    for row in published:
        if row["skipped"] != "0":
            where = int(row["iteration"]), math.log2(float(row["loss_scale"]))
            left.annotate(
                f"{row['skipped']} of 10 skipped", where, (8, 3), textcoords="offset points", fontsize=8
            )
    left_rate.plot(at, [float(row["learning_rate"]) for row in published], "o-", c="C2", ms=3)
    steps = range(1, len(ours) + 1)
    right.step(steps, [math.log2(line["scale"]) for line in ours], where="mid")
    bad = [(i, math.log2(line["scale"])) for i, line in zip(steps, ours) if line["norm"] is None]
    right.plot(*zip(*bad), "x", c="C3", ms=5, label="skipped")
    right.legend()
    right_rate.plot(steps, [line["lr"] for line in ours], c="C2")
    left.set(ylabel="log2 of the loss scale", title="published: Megatron-LM, GPT-2 124M")
    right.set(title=f"ours, doubled after {window} good ones")
    left_rate.set(xlabel="iteration", ylabel="learning rate")
    right_rate.set(xlabel="iteration")
    for ax in (left, right):
        ax.set_ylim(10, 33)
    return fig
