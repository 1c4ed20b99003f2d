"""Figures of chapter 14: published and predicted times, parts of a step, machines beside each other."""

import matplotlib.pyplot as plt

GROUPS = {
    "products": ("qkv", "proj", "mlp", "head"),
    "between products": ("embedding", "layer norm", "residual", "gelu", "cross-entropy"),
    "attention": ("attention",),
    "page faults": ("page faults",),
    "weight casts": ("weight casts",),
    "optimizer": ("optimizer",),
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


def by_sheet(predicted, spoken, title):
    """Milliseconds by rung, predicted from a data sheet, and published where there are any; log axis, dots."""
    names = list(predicted)
    fig, ax = plt.subplots(figsize=(6.5, 3))
    ax.plot(names, list(predicted.values()), "o--", color="C1", label="predicted from the data sheet")
    known = [name for name in names if name.lower() in spoken]
    ax.plot(known, [spoken[name.lower()] for name in known], "o-", color="C2", label="published")
    ax.set(yscale="log", ylabel="ms a step", title=title)
    ax.set_yticks([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1000"])
    ax.minorticks_off()
    ax.set_xticks(range(len(names)), names, rotation=25, ha="right")
    ax.legend()
    return fig


def beside_others(logs, recorded, live):
    """Tokens a second as dots on a log axis: published logs, and the first and fastest rung of ladders."""
    dots = []
    for log in logs:
        if log["tokens_per_step"] and float(log["median_ms"] or 0):
            count = f"{log['devices']} " if log["devices"] != "1" else ""
            label = f"{count}{log['device']}, {log['precision']}, {log['program']}, B={log['batch']}, T={log['seq']}"
            dots.append((label, 1e3 * int(log["tokens_per_step"]) / float(log["median_ms"]), "C2"))
    for result, color in [(result, "C0") for result in recorded] + [(live, "C1")]:
        for rung in (result["rungs"][0], min(result["rungs"], key=lambda rung: rung["ms"])):
            what = f"{result['device']}, {result['size']}, B={result['batch']}, T={result['seq']}"
            dots.append((f"{what}: {rung['name']}", rung["tokens_per_s"], color))
    labels, rates, colors = zip(*dots)
    fig, ax = plt.subplots(figsize=(6.5, 0.3 * len(dots) + 0.9))
    ax.hlines(range(len(dots)), min(rates) / 2, rates, color="0.85", lw=1)
    ax.scatter(rates, range(len(dots)), c=colors, zorder=3)
    ax.set_yticks(range(len(dots)), labels, fontsize=8)
    ax.set(xscale="log", xlabel="tokens/s (green: published; blue: recorded; orange: this run)")
    ax.invert_yaxis()
    return fig
