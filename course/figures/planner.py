"""Chapter 22's figures and tables: each function takes data, and returns a figure or prints."""

import csv
import json
from collections.abc import Callable

import matplotlib.pyplot as plt

from course.figures import widgets
from course.paths import ROOT
from nanogpt.model import GPTConfig, num_params

MIB = 2**20
IN_USE = "device memory in use after allocation, before the first forward pass"
THEORY, ALLOCATED = "theoretical memory, weight and optimizer", "allocated after 10 iterations (all skipped)"
ON_GPU = "memory in use on GPU 0", "memory in use on GPU 1"
NOT_DERIVED = (IN_USE, THEORY, ALLOCATED, *ON_GPU)
SIZES = "tensor-model-parallel", "pipeline-model-parallel", "global-batch"
NO_MEMORY = ("gradient accumulation steps", "device memory in all")  # a choice; the card's


def published(name: str) -> list[dict]:
    """A table of data/reference; each row says in which log and line it stands."""
    with open(ROOT / "data" / "reference" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def megatron_175b() -> dict:
    """The arguments of the published script for GPT-3: a number, or numbers, by name."""
    rows = {row["argument"]: row["value"].split() for row in published("megatron_175b")}
    numbers = {name: [float(v) if "." in v else int(v) for v in values] for name, values in rows.items()}
    return {name: values[0] if len(values) == 1 else values for name, values in numbers.items()}


def problems() -> list[dict]:
    """The ten problems: question, unit, a command line of `plan`, and the line of its table that answers."""
    with open(ROOT / "data" / "planner_problems.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def worded(step, item: str, unit: str, footprint, largest_batch) -> float:
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
        "parameters": held["parameters"] + held.get("norms", 0),
        "model parameters": held["parameters"] + held.get("norms", 0),
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
        **dict.fromkeys(ON_GPU, sum(held.values())),
    }
    return nbytes[item] / {"byte": 1, "float32 numbers": 4}.get(unit, MIB)


def validation(logs: dict, *formulas) -> tuple[list[str], list[str]]:
    """Print ours, theirs and the difference for each published figure; the items that are equal, and the others."""
    rows, before = {True: [], False: []}, None
    for row in [*published("llmc_memory"), *published("megatron_memory")]:
        if row["item"] not in NO_MEMORY:
            step = next(step for run, step in logs.items() if run in row["run"])
            ours = worded(step, row["item"], row["unit"], *formulas)
            theirs = float(row["value"])
            cut = round(ours, 2) if theirs % 1 else int(ours)  # logs in whole MiB cut off the rest
            if before != (before := row["run"]):
                print(f"{before:38}{'ours':>12}{'theirs':>12}{'apart':>10}")
            rows[cut == theirs].append(row["item"])
            item = row["item"].partition(",")[0].partition(" (")[0].removesuffix(" after allocation")
            what = f"{item}, {row['unit'].partition(' ')[0]}"
            apart = "" if cut == theirs else short(ours - theirs)
            print(f"  {what:36.36}{short(ours):>12}{short(theirs):>12}{apart or '=':>10}")
    print(f"{len(rows[True])} of {len(rows[True]) + len(rows[False])} are equal")
    return rows[True], rows[False]


def short(value: float) -> str:
    """A whole number in full, another to two decimals."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


# What a GPU holds, each in a colour of its own in all figures.
HELD = ("parameters", "gradients", "moments", "masters", "casts", "gathered", "activations", "loss")


def bars(plans: dict[str, dict[str, float]], mib: float | None = None, ax=None):
    """Stacked bars of bytes by category, one for each plan, and the card's line."""
    ax = ax or plt.subplots(figsize=(7, 0.9 + 0.4 * len(plans)), layout="constrained")[1]
    names = sorted({name for plan in plans.values() for name in plan}, key=HELD.index)
    left = [0.0] * len(plans)
    for name in names:
        widths = [plan.get(name, 0) / 2**30 for plan in plans.values()]
        ax.barh(list(plans), widths, left=left, label=name, color=f"C{HELD.index(name)}")
        left = [a + b for a, b in zip(left, widths)]
    if mib:
        ax.axvline(mib / 1024, color="black", ls="--")
    ax.invert_yaxis()
    ax.set_xlabel("GiB on a GPU" + ("; dashed: what the card has" if mib else ""))
    ax.set_xlim(0, 1.05 * max(*left, (mib or 0) / 1024))
    ax.grid(False, axis="y")
    ax.tick_params(axis="y", length=0)
    ax.legend(fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))
    return ax.figure


def memory_widget(footprint, memory: dict[str, int]):
    """Knobs over footprint(B=…, T=…, dp=…, shard=…): memory bars against a card's line."""

    def draw(card, rows, context, ranks, shard, recompute):
        held = footprint(B=rows, T=context, dp=ranks, shard=shard, recompute=recompute)
        ax = widgets.axes(1.8, left=0.2, top=0.6)
        bars({"": held}, memory[card], ax)
        gib, has, most = sum(held.values()) / 2**30, memory[card] / 1024, max(held, key=held.get)
        fits = "fits" if gib <= has else "does not fit"
        return (
            ax,
            f"{gib:.1f} GiB {fits} into {has:.0f}; most of it, {held[most] / 2**30:.1f}, is for {most}.",
        )

    return widgets.explorer(
        draw,
        card=("RTX 4090", list(memory)),
        rows=(8, 1, 128),
        context=(1024, [128, 256, 512, 1024, 2048, 4096]),
        ranks=(8, [2**k for k in range(11)]),
        shard=(1, 0, 3),
        recompute=("none", ["none", "gelu", "block"]),
    )


def beside_an_h100(Step: Callable, footprint: Callable) -> None:
    """Print the peak of each rung that neither compiles nor has flash attention, as recorded, and the sum of a footprint."""
    run = json.loads((ROOT / "data/measurements/h100.json").read_text(encoding="utf-8"))
    peaks = {rung["name"]: rung["peak_mib"] for rung in run["rungs"]}
    for name, program in {"float32": "pytorch", "TF32": "pytorch-tf32", "bf16": "pytorch-bf16"}.items():
        by = footprint(Step(GPTConfig(), run["batch"], run["seq"], program, flash=False))
        total, gradients = sum(by.values()) / MIB, by["gradients"] / MIB
        print(
            f"{name:8} ours {total:,.0f} MiB, peak {peaks[name]:,.0f}: {total - peaks[name]:.0f} too many;"
            f" gradients {gradients:,.0f}"
        )
