"""Chapter 17c's figures: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def killed_run(whole: list[float], killed: list[float], deaths: list[int], every: int) -> plt.Figure:
    """Losses of a run that was never stopped, of one that was killed, where, and from where it went on."""
    fig, ax = plt.subplots(figsize=(7, 3.2))
    ax.plot(range(1, len(whole) + 1), whole, lw=4, c="0.8", label="never stopped")
    ax.plot(range(1, len(killed) + 1), killed, ".", ms=4, c="C0", label="killed, and gone on")
    for death in deaths:
        ax.axvline(death, c="C3", lw=1)
        ax.axvspan(death // every * every, death, color="C3", alpha=0.12, lw=0)
    if deaths:
        ax.axvline(deaths[0], c="C3", lw=1, label="kill -9; shaded: steps that were made twice")
    ax.set(xlabel="step", ylabel="loss (nats per token)")
    ax.legend()
    return fig
