"""The figures of chapters 17e and 17f: each function takes data and returns a figure."""

import matplotlib.pyplot as plt


def killed_run(whole: list[float], killed: list[float], deaths: list[int], every: int) -> plt.Figure:
    """Losses of a run that was never stopped, of one that was killed, where, and from where it went on."""
    fig, ax = plt.subplots(figsize=(7, 3.2))
    ax.plot(range(1, len(whole) + 1), whole, lw=4, c="0.8", label="never stopped")
    ax.plot(range(1, len(killed) + 1), killed, ".", ms=4, c="C0", label="killed, then resumed")
    for death in deaths:
        ax.axvline(death, c="C3", lw=1)
        ax.axvspan(death // every * every, death, color="C3", alpha=0.12, lw=0)
    if deaths:
        ax.axvline(deaths[0], c="C3", lw=1, label="kill -9; shaded: steps that were made twice")
    ax.set(xlabel="step", ylabel="loss (nats per token)")
    ax.legend()
    return fig


def spikes(told: list[dict], bad: list[int], limit: float) -> plt.Figure:
    """Loss, and the larger of its z-score and the norm's, around the bad steps; those that were left out are ringed."""
    fig, (top, low) = plt.subplots(2, 1, figsize=(6.5, 3.8), sharex=True)
    told = told[max(0, bad[0] - 20) :]
    steps, skipped = [line["step"] for line in told], [line for line in told if "skipped" in line]
    top.plot(steps, [line["loss"] for line in told], ".-")
    told_z = [line for line in told if line.get("loss_z") is not None]  # from a full window on
    z = {line["step"]: max(line["loss_z"], line["norm_z"]) for line in told_z}
    low.plot(z.keys(), z.values(), ".-", c="C1")
    ring = dict(s=90, facecolors="none", edgecolors="C3", label="left out")
    top.scatter([line["step"] for line in skipped], [line["loss"] for line in skipped], **ring)
    low.scatter([line["step"] for line in skipped], [z[line["step"]] for line in skipped], **ring)
    low.axhline(limit, c="C3", lw=1)
    top.set(ylabel="loss (nats)")
    low.set(ylabel="deviations", xlabel="step")
    top.legend()
    return fig


def young(c: float, step: float, every: int, fails: dict[str, float]) -> plt.Figure:
    """Share of the time that is lost over steps between checkpoints. c, step: seconds; fails: hours between failures."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    for i, (name, hours) in enumerate(fails.items()):
        M, best = 3600 * hours, (2 * c * 3600 * hours) ** 0.5 / step
        n = [
            max(best, every) * 10 ** (x / 20)
            for x in range(-80, 41)
            if max(best, every) * 10 ** (x / 20) >= 1
        ]
        ax.plot(
            n,
            [100 * (c / (k * step) + k * step / 2 / M) for k in n],
            c=f"C{i}",
            label=f"a failure every {name}",
        )
        ax.plot(best, 100 * (2 * c / M) ** 0.5, "o", c=f"C{i}")
    ax.axvline(every, c="0.4", ls="--", lw=1, label="this run")
    ax.set(xlabel="steps between checkpoints", ylabel="time lost (%)", xscale="log", yscale="log")
    ax.legend()
    return fig
