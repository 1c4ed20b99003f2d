"""Figures of chapter 14: published and predicted times, and the parts of a step."""

import matplotlib.pyplot as plt

from nanogpt.labs.ladder.rungs import rungs_up_to

GROUPS = {
    "products": ("qkv", "proj", "mlp", "head"),
    "between products": ("embedding", "layer norm", "residual", "gelu", "cross-entropy"),
    "attention": ("attention",),
    "page faults": ("page faults",),
    "weight casts": ("weight casts",),
    "optimizer": ("optimizer",),
    "starts": ("starts",),
}


def published(rows):
    """Milliseconds of the lecture's rungs, as dots."""
    names, ms = [row["rung"] for row in rows], [float(row["ms"]) for row in rows]
    fig, ax = plt.subplots(figsize=(6.5, 2.8))
    ax.plot(names, ms, "o-")
    for i, value in enumerate(ms):
        ax.annotate(f"{value:.0f}", (i, value), xytext=(0, 6), textcoords="offset points", ha="center")
    row = rows[0]
    ax.set(
        ylabel="ms a step", title=f"published: {row['gpu']}, B={row['batch']}, T={row['seq']}", ylim=(0, 1150)
    )
    ax.set_xticks(range(len(names)), names, rotation=25, ha="right")
    return fig


def parts(steps, title):
    """Stacked bars of predicted seconds: {rung: {part: seconds}}, in groups of parts."""
    fig, ax = plt.subplots(figsize=(6.5, 3.2))
    names, bottom = list(steps), [0.0] * len(steps)
    for i, (group, members) in enumerate(GROUPS.items()):
        values = [sum(step.get(part, 0) for part in members) for step in steps.values()]
        ax.bar(names, values, bottom=bottom, label=group, color=f"C{i}")
        bottom = [a + b for a, b in zip(bottom, values)]
    ax.set(ylabel="predicted seconds a step", title=title)
    ax.set_xticks(range(len(names)), names, rotation=25, ha="right")
    ax.legend(fontsize=8)
    return fig


def by_sheet(forecast, limits, spoken, title):
    """Milliseconds by rung: forecast, the data sheet's limits, and published where there are any; log axis, dots."""
    names = list(forecast)
    fig, ax = plt.subplots(figsize=(6.5, 3))
    known = [name for name in names if name.lower() in spoken]
    ax.plot(known, [spoken[name.lower()] for name in known], "o-", color="C2", label="published")
    ax.plot(names, list(forecast.values()), "o:", color="C0", label="forecast")
    ax.plot(names, list(limits.values()), "o--", color="C1", label="limit by the data sheet")
    ax.set(yscale="log", ylabel="ms a step", title=title)
    ax.set_yticks([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1000"])
    ax.minorticks_off()
    ax.set_xticks(range(len(names)), names, rotation=25, ha="right")
    ax.legend()
    return fig


def heads(rates: dict[str, dict[str, float]]) -> None:
    """Print the TFLOP/s of the head's products, by format and columns."""
    for name, by in rates.items():
        print(
            f"{name:9} head: {by['50257']:4.0f} TFLOP/s with 50,257 columns, {by['50304']:4.0f} with 50,304"
        )


FORMATS = {"float32": "float32", "TF32": "tf32", "bf16": "bfloat16"}  # of the rungs that are not compiled


def with_the_head(rung: str, parts: dict[str, float], rates: dict[str, dict[str, float]]) -> float:
    """Seconds of a forecast for B=16, T=1024 whose head, of 50,257 columns, has the measured rate; compiled rungs pad it."""
    if rung not in FORMATS:
        return sum(parts.values())
    flops = 6 * 16 * 1024 * 768 * 50257  # of its three products
    return sum(parts.values()) - parts["head"] + flops / (1e12 * rates[FORMATS[rung]]["50257"])


def forecasts(run: dict, by_a100s: dict[str, dict[str, float]], rates: dict, by_padded) -> None:
    """Print each rung's measured time over four forecasts. by_padded(on): seconds by part, for the rungs that read bfloat16."""
    without = [rung["name"] for rung in run["skipped"]]
    print(
        "\nmeasured over the forecast by     A100's fractions   and the head's   its own   its own with 50,304"
    )
    for rung in run["rungs"]:
        name, ms = rung["name"], rung["ms"]
        on, parts = rungs_up_to(name, without), by_a100s[name]
        head = f"{ms / 1e3 / with_the_head(name, parts, rates):.2f}" if name in FORMATS else ""
        padded = by_padded(on)
        last = f"{ms / (1e3 * sum(padded.values())):.2f}" if "bf16" in on else ""
        told = (
            f"{ms / (1e3 * sum(parts.values())):18.2f} {head:>16} {ms / rung['predicted_ms']:9.2f} {last:>21}"
        )
        print(f"{name:13} {ms:15.1f} ms {told}".rstrip())
    print(f"attention in the last forecast: {1e3 * padded['attention']:.1f} ms")


def eager_forecasts(title: str, run: dict, by_a100s: dict[str, dict[str, float]], rates: dict) -> None:
    """Print the measured time over the forecast with the head's measured rate, for the rungs that are not compiled."""
    ms = {rung["name"]: rung["ms"] for rung in run["rungs"]}
    told = [f"{name} {ms[name] / 1e3 / with_the_head(name, by_a100s[name], rates):.2f}" for name in FORMATS]
    print(f"{title}: {', '.join(told)}")
