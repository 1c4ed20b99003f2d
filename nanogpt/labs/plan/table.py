"""Memory, traffic, time and cost of a run as lines of a table, each with the formula that gives its number.

Exported from notebooks/22_planner.ipynb, grown by notebooks/22a_time_and_cost.ipynb.
"""

import argparse
from collections.abc import Iterator

from nanogpt.labs.plan.budget import Card, Cluster, compute_flops, recompute_flops, seconds, traffic
from nanogpt.labs.plan.footprint import (
    OVERHEAD,
    Step,
    footprint,
    fullest_stages,
    largest_batch,
    states,
    tensors,
)

MEMORY = {  # MiB as nvidia-smi shows them; the A800's as an llm.c log prints them
    "B200": 183359, "H200": 143771, "H100": 81559, "H100-PCIe": 81559, "A100-80GB": 81920, "A100-80GB-PCIe": 81920,
    "A100-40GB": 40960, "H800": 81559, "A800": 81100, "A800-PCIe": 81100, "L40S": 46068, "L4": 23034, "A10": 23028,
    "V100": 16160, "V100-PCIe": 16160, "V100S": 32510, "T4": 15360, "A6000": 49140, "RTX 5090": 32607,
    "RTX 4090": 24564, "RTX 4070 SUPER": 12282, "RTX 3090": 24576,
}  # fmt: skip


WHAT = {  # what the numbers of each line are
    "parameters": "parameters",
    "norms": "parameters of norms, which have more",
    "gradients": "gradients",
    "moments": "moments of AdamW",
    "masters": "master weights",
    "casts": "numbers of matrices, cast by autocast",
    "gathered": "gathered: embeddings, the block at work and the next",
}


def formulas(step: Step) -> dict[str, str]:
    """For each category of footprint, a text that computes to its bytes (the activations': see the tensors)."""
    N, p = step.B * step.T, step.row
    texts = {"activations": "the sum of its tensors (--tensors)", "inputs": f"8 B × {N:,} ids and targets"}
    texts["loss"] = f"{p.backward} B × {N:,} tokens × {step.config.vocab_rows:,} rows of logits"
    if step.tp > 1:
        texts["loss"] += f" / {step.tp}"
    for name, (numbers, width, ranks) in states(step).items():
        texts[name] = f"{width} B × {numbers:,} {WHAT[name]}"
        if ranks > 1:
            texts[name] += f" / {ranks}"
    return texts


LETTERS = {"masters": "M", "gathered": "G"}  # in the picture; the others have their first letter


def picture(held: dict[str, int], mib: int, width: int = 60) -> str:
    """The card's memory as `width` signs, a letter for each category; what is beyond the card after the bar."""
    text = ""
    for name, n in held.items():
        text += LETTERS.get(name, name[0]) * min(2 * width, round(width * n / 2**20 / mib))
    return f"[{text[:width]:·<{width}}|{text[width : 2 * width]}"


def legend(held: dict[str, int]) -> str:
    """The letters of the picture, with their categories."""
    return ", ".join(f"{LETTERS.get(name, name[0])} {name}" for name in held)


def fullest(step: Step) -> tuple[str, Step]:
    """The name of the stage of a pipeline that keeps most, and the step as that stage sees it."""
    return max(fullest_stages(step).items(), key=lambda pair: sum(footprint(pair[1]).values()))


def memory_lines(step: Step, mib: int, overhead: float = OVERHEAD, listed: bool = False) -> Iterator[tuple]:
    """Lines of (what, how much, formula), each part after its title. listed: the activations tensor by tensor, too."""
    name, full = fullest(step)
    held, texts = footprint(full) | {"overhead": round(overhead * 2**20)}, formulas(full)
    texts["overhead"] = "not derived: CUDA and libraries, as in an A800's log (--overhead)"
    total, most = sum(held.values()) / 2**20, largest_batch(step, (mib - overhead) * 2**20)
    yield ("memory of a GPU" if step.pp == 1 else f"memory of the fullest GPU: the {name}",)
    for what, n in held.items():
        yield what, f"{n / 2**20:,.1f} MiB", texts[what]
    fits = "fits" if total <= mib else f"does NOT fit, {total / mib:.2f} times too much"
    yield "all", f"{total:,.1f} MiB", f"of {mib:,} MiB: {fits}"
    yield "largest batch", f"{most:,}", "the most sequences that fit, on every stage"
    yield picture(held, mib), "", ""
    yield "", "", legend(held)
    if listed:
        yield ("activations: numbers × bytes × how many",)
        for what, (n, width, many) in tensors(full).items():
            yield what, f"{n * width * many / 2**20:,.1f} MiB", f"{n:,} × {width} B × {many}"


def print_table(lines: Iterator[tuple]) -> None:
    """Print a table: titles, and lines of three columns."""
    for line in lines:
        print("  {:16}{:>16}  {}".format(*line).rstrip() if len(line) == 3 else f"\n{line[0]}")


MFUS = 0.5, 0.2  # of tuned programs, and of one that nobody has tuned: chapter 22a's published runs


def value_range(values: list[float], unit: str, digits: int = 1) -> str:
    """One value, or a range, with its unit."""
    texts = dict.fromkeys(f"{value:,.{digits}f}" for value in values)
    return f"{' to '.join(texts)} {unit}".strip()


def sent_lines(step: Step, cluster: Cluster) -> Iterator[tuple]:
    """Lines of (what, how much, which collectives), after a title."""
    if sent := traffic(step):
        yield ("sent by a GPU in a step",)
    for s in sent:
        each = f"{s.calls:,} × {s.kind} over {s.n}, of {s.nbytes / 1e6:,.1f} MB together"
        yield s.what, f"{s.sent / 1e6:,.1f} MB", f"{each}: {1e3 * s.seconds(cluster):,.1f} ms"


def time_formulas(step: Step, card: Card, mfus: list[float]) -> dict[str, str]:
    """For each line of the time, a text that says how it is computed."""
    shares = " to ".join(f"{mfu:.0%}" for mfu in mfus)
    rate = f"({step.tp * step.pp} × {card.rate(step.program) / 1e12:g} TFLOP/s × {shares})"
    return {
        "compute": f"{compute_flops(step):,} FLOPs / {rate}",
        "recompute": f"{recompute_flops(step):,} FLOPs / {rate}",
        "tensor parallel": "partial sums and loss as above, not hidden",
        "stage to stage": "as above, not hidden",
        "bubble": f"({step.pp} - 1) / {step.accumulate} of the lines above",
        "data parallel": "gradients and weights as above, less what hides behind computing",
    }


def time_lines(step: Step, card: Card, args: argparse.Namespace) -> Iterator[tuple]:
    """Lines as above: the time of a step, and time and cost of a run of --tokens."""
    mfus = [args.mfu] if args.mfu else list(MFUS)
    found = [seconds(step, card, mfu, between=1e9 * args.between) for mfu in mfus]
    texts, total = time_formulas(step, card, mfus), [sum(times.values()) for times in found]
    yield (f"time, at {' to '.join(f'{mfu:.0%}' for mfu in mfus)} of the data sheet (--mfu)",)
    for name in texts:
        if any(times[name] for times in found):
            yield name, value_range([1e3 * times[name] for times in found], "ms"), texts[name]
    tokens = step.B * step.T * step.accumulate * step.dp
    speed = value_range([tokens / s for s in total], "a second", 0)
    yield "step", value_range([1e3 * s for s in total], "ms"), f"{tokens:,} tokens, {speed}"
    if args.tokens:
        days = [args.tokens / tokens * s / 86400 for s in total]
        yield "run", value_range(days, "days", 2), f"{args.tokens:,.0f} tokens / {tokens:,} × step"
        hours = [24 * each * step.dp * step.tp * step.pp for each in days]
        cost = value_range([h * args.price for h in hours], "", 0)
        yield "GPU-hours", value_range(hours, "", 0), f"× {args.price:g} (--price) = {cost}"
