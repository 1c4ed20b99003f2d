"""Chapter 22's figures and tables: each function takes data, and returns a figure or prints."""

import csv

import matplotlib.pyplot as plt

from course.paths import ROOT

MIB = 2**20
IN_USE = "device memory in use after allocation, before the first forward pass"
THEORY, ALLOCATED = "theoretical memory, weight and optimizer", "allocated after 10 iterations (all skipped)"
NOT_DERIVED = (IN_USE, THEORY, ALLOCATED)
NO_MEMORY = ("gradient accumulation steps", "device memory in all")  # a choice; the card's


def published(name: str) -> list[dict]:
    """A table of data/reference; each row says in which log and line it stands."""
    with open(ROOT / "data" / "reference" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def worded(step, item: str, unit: str, footprint, largest_batch, num_params) -> float:
    """What a log of this step prints under these words, by formula."""
    held, P, N, C, H = (
        footprint(step),
        num_params(step.config),
        step.B * step.T,
        step.config.n_embd,
        step.config.n_head,
    )
    if unit == "count":
        return P
    if unit == "sequence":  # as llm.c reckons: from what is in use with this batch
        return largest_batch(step, 81100 * MIB - (21315 * MIB - sum(held.values())))
    nbytes = {
        "parameters": held["parameters"],
        "model parameters": held["parameters"],
        "parameter gradients": held["gradients"],
        "AdamW optimizer state m": held["moments"] / 2,
        "AdamW optimizer state v": held["moments"] / 2,
        "master copy of params": held.get("masters"),
        "activations": held["activations"],
        "memory per sequence": held["activations"] / step.B,
        "activation gradients": (5 * N * C + N * H * step.T) * (2 if "bf16" in step.program else 4),
        IN_USE: sum(held.values()),
        THEORY: 18 * P,
        ALLOCATED: 12 * P,
    }
    return nbytes[item] / {"byte": 1, "float32 numbers": 4}.get(unit, MIB)


def validation(logs: dict, *formulas) -> tuple[list[str], list[str]]:
    """Print ours, theirs and the difference for each published figure; the items that are equal, and the others."""
    rows, before = {True: [], False: []}, None
    for row in [*published("llmc_memory"), *published("megatron_memory")]:
        if row["item"] not in NO_MEMORY:
            step = next(step for run, step in logs.items() if row["run"].startswith(run))
            ours = worded(step, row["item"], row["unit"], *formulas)
            theirs = float(row["value"])
            cut = round(ours, 2) if theirs % 1 else int(ours)  # logs in whole MiB cut off the rest
            if before != (before := row["run"]):
                print(f"{before:52}{'ours':>16}{'theirs':>16}{'apart':>10}")
            rows[cut == theirs].append(row["item"])
            what = row["item"].partition(",")[0].partition(" (")[0] + ", " + row["unit"].partition(" ")[0]
            apart = "" if cut == theirs else short(ours - theirs)
            print(f"  {what:50}{short(ours):>16}{short(theirs):>16}{apart or '=':>10}")
    print(f"{len(rows[True])} of {len(rows[True]) + len(rows[False])} are equal")
    return rows[True], rows[False]


def short(value: float) -> str:
    """A whole number in full, another to two decimals."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def bars(plans: dict[str, dict[str, float]], mib: float | None = None, ax=None):
    """Stacked bars of bytes by category, one for each plan, and the card's line."""
    ax = ax or plt.subplots(figsize=(7, 0.9 + 0.4 * len(plans)), layout="constrained")[1]
    names = list(dict.fromkeys(name for plan in plans.values() for name in plan))
    left = [0.0] * len(plans)
    for i, name in enumerate(names):
        widths = [plan.get(name, 0) / 2**30 for plan in plans.values()]
        ax.barh(list(plans), widths, left=left, label=name, color=f"C{i}")
        left = [a + b for a, b in zip(left, widths)]
    if mib:
        ax.axvline(mib / 1024, color="black", ls="--")
    ax.invert_yaxis()
    ax.set_xlabel("GiB on a GPU" + ("; dashed: what the card has" if mib else ""))
    ax.set_xlim(0, 1.05 * max(*left, (mib or 0) / 1024))
    ax.grid(False, axis="y")
    ax.figure.legend(*ax.get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside upper center")
    return ax.figure
