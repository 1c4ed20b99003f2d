"""Chapter 17's figures: each function takes data and returns a figure."""

import inspect

import matplotlib.pyplot as plt


def curve(lines: list[dict], floor: float) -> plt.Figure:
    """A run's losses against its steps: each batch's as a thin line, the validation loss as dots; the floor dashed."""
    fig, ax = plt.subplots(figsize=(7.2, 2.8))
    ax.plot([line["step"] for line in lines], [line["loss"] for line in lines], lw=0.7, label="each batch")
    held = [(line["step"], line["val_loss"]) for line in lines if "val_loss" in line]
    if held:
        ax.plot(*zip(*held), "o", c="C1", label="validation text")
    ax.axhline(floor, c="0.5", lw=1, ls="--", label="floor")
    ax.set(xlabel="step", ylabel="loss (nats per token)", ylim=(0, None))
    ax.legend()
    return fig


def code_lines(function) -> int:
    """The lines of a function's source that are not blank."""
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines())
