"""Figures and tables of chapters 14 and 14b: published and predicted times, and the parts of a step."""

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


def from_sheet(run: dict) -> dict[str, dict[str, float]]:
    """Chapter 14's forecast of a GPU's recorded ladder, from the data sheet: {rung: {part: seconds}}."""
    # here: chapter 14 makes it, and imports these figures before
    from nanogpt.labs.ladder.forecast import REACHED, START, predict_ladder
    from nanogpt.labs.roofline.sheets import peak_of
    from nanogpt.model import GPTConfig

    return predict_ladder(peak_of(run["device"]), GPTConfig(), run["batch"], run["seq"], REACHED, START)


def with_sheet_forecast(run: dict) -> dict:
    """A GPU's recorded ladder, with chapter 14's forecast in place of its own."""
    told = from_sheet(run)
    return run | {
        "rungs": [rung | {"predicted_ms": 1e3 * sum(told[rung["name"]].values())} for rung in run["rungs"]]
    }


FORMATS = {"float32": "float32", "TF32": "tf32", "bf16": "bfloat16"}  # of the rungs that are not compiled


def with_the_head(rung: str, parts: dict[str, float], rates: dict[str, dict[str, float]]) -> float:
    """Seconds of a forecast for B=16, T=1024 whose head, of 50,257 columns, has the measured rate."""
    flops = 6 * 16 * 1024 * 768 * 50257  # of its three products
    return sum(parts.values()) - parts["head"] + flops / (1e12 * rates[FORMATS[rung]]["50257"])


def forecasts(gpus: dict[str, dict], rates: dict, by_padded) -> None:
    """Print each rung's measured time over its forecasts, on an H100 and an H200.

    by_padded(on): seconds by part on the H200 with a head of 50,304 columns, for the rungs that read bfloat16.
    """
    print("\nmeasured over the forecast by the fractions of")
    heads = [f"{'an A100':>12} {'and the head':>13} {'the ' + name:>9}" for name in gpus]
    print(f"{'':13}{''.join(heads)} {'with 50,304':>12}")
    without = [rung["name"] for rung in gpus["H200"]["skipped"]]
    by_sheet = {name: from_sheet(run) for name, run in gpus.items()}
    for i, rung in enumerate(gpus["H200"]["rungs"]):
        name, line = rung["name"], f"{rung['name']:13}"
        for gpu, run in gpus.items():
            seconds, parts = run["rungs"][i]["ms"] / 1e3, by_sheet[gpu][name]
            corrected = ""  # a compiled rung pads its head
            if name in FORMATS:
                corrected = f"{seconds / with_the_head(name, parts, rates):.2f}"
            own = run["rungs"][i]["predicted_ms"] / 1e3
            line += f"{seconds / sum(parts.values()):12.2f} {corrected:>13} {seconds / own:9.2f}"
        on = rungs_up_to(name, without)
        if "bf16" in on:
            padded = by_padded(on)
            line += f" {rung['ms'] / 1e3 / sum(padded.values()):12.2f}"
        print(line)
    print(f"attention in the last forecast: {1e3 * padded['attention']:.1f} ms")
