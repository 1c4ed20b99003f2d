"""Where two runs part; the command `compare`.

Exported from notebooks/15_recipe.ipynb.
"""

import argparse
import math

from nanogpt.runs import column, read_metrics


def differences(a: list[dict], b: list[dict], name: str) -> dict[int, float]:
    """For each step that both runs have, by how much they differ there; inf where one alone has a finite number."""
    values = [dict(zip(*column(lines, name))) for lines in (a, b)]
    steps = sorted({line["step"] for line in a} & {line["step"] for line in b})
    pairs = {step: (values[0].get(step), values[1].get(step)) for step in steps}
    return {
        s: 0.0 if x == y else math.inf if x is None or y is None else abs(x - y)
        for s, (x, y) in pairs.items()
    }


def verdict(a: list[dict], b: list[dict], name: str) -> tuple[float, str]:
    """The largest difference of two runs in one column, and a sentence that says where they part."""
    apart = differences(a, b, name)
    if not apart:
        raise ValueError("the two runs have no step in common")
    if not (different := [step for step, d in apart.items() if d]):
        return 0.0, f"{name}: equal to the last bit in all {len(apart)} common steps"
    most = max(apart, key=apart.get)
    sentence = f"{name}: first differs at step {different[0]}, by {apart[different[0]]:.3g}"
    return apart[
        most
    ], f"{sentence}; most at step {most}, by {apart[most]:.3g}; in {len(different)} of {len(apart)} steps"


HELP = """Where do two runs part? The steps that both have are compared, number by number.

  python -m nanogpt compare runs/a runs/b                 are they equal to the last bit?
  python -m nanogpt compare runs/a runs/b --bound 1e-3    do their losses differ by at most 0.001 nats?

Exit code 0: within the bound; 2: beyond it, and one line says by how much and where.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt compare`."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("a", "b"):
        parser.add_argument(name, metavar="RUN", help="a run's folder, or its metrics.jsonl")
    parser.add_argument(
        "--bound", type=float, default=0.0, help="the largest difference of a loss, in nats (0)"
    )
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt compare`, its options parsed. ValueError if the losses differ by more than the bound."""
    if not args.bound >= 0:
        raise ValueError(f"--bound {args.bound} is a difference, at least 0")
    a, b = read_metrics(args.a), read_metrics(args.b)
    (worst, loss), *others = (verdict(a, b, name) for name in ("loss", "norm", "lr"))
    if worst > args.bound:
        raise ValueError(f"{loss}: beyond the bound of {args.bound:g}")
    print(loss, *(sentence for _, sentence in others), f"within the bound of {args.bound:g}", sep="\n")
