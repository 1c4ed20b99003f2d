"""Where two runs part; the command `compare`.

Exported from notebooks/17f_killed_run.ipynb.
"""

import argparse
import math

from nanogpt.labs.long_run.plot import column, read_lines


def verdict(a: list[dict], b: list[dict], name: str) -> tuple[float, str]:
    """The largest difference of two runs in one column, and a sentence that says where they part.

    A finite number (see column) against none is infinitely far. ValueError if no step is common. The sentences:
    loss: equal to the last bit in all 40 common steps
    loss: first differs at step 7, by 0.000244; most at step 30, by 0.0156; in 2 of 50 steps
    """
    steps = sorted({line["step"] for line in a} & {line["step"] for line in b})
    x, y = (dict(zip(*column(lines, name))) for lines in (a, b))
    apart = {s: abs(x.get(s, math.inf) - y.get(s, math.inf)) for s in steps if x.get(s) != y.get(s)}
    if not steps:
        raise ValueError("the two runs have no step in common")
    if not apart:
        return 0.0, f"{name}: equal to the last bit in all {len(steps)} common steps"
    first, most = min(apart), max(apart, key=apart.get)
    where = f"first differs at step {first}, by {apart[first]:.3g}; most at step {most}, by {apart[most]:.3g}"
    return apart[most], f"{name}: {where}; in {len(apart)} of {len(steps)} steps"


HELP = """Where do two runs part? The steps that both have are compared, number by number.

  python -m nanogpt compare runs/a runs/b                 are they equal to the last bit?
  python -m nanogpt compare runs/a runs/b --bound 1e-3    do their losses differ by at most 0.001 nats?

Exit code 0: within the bound; 2: beyond it, and one line says by how much and where.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt compare`."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runs", nargs=2, metavar="RUN", help="a folder, its metrics.jsonl, or a main.log of llm.c"
    )
    parser.add_argument("--bound", type=float, default=0.0, help="how far losses may differ, in nats (0)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt compare`, its options parsed. ValueError if the losses differ by more than the bound."""
    if not args.bound >= 0:
        raise ValueError(f"--bound {args.bound} is a difference, at least 0")
    a, b = map(read_lines, args.runs)
    (worst, loss), *others = (verdict(a, b, name) for name in ("loss", "norm", "lr"))
    if worst > args.bound:
        raise ValueError(f"{loss}: beyond the bound of {args.bound:g}")
    print(loss, *(sentence for _, sentence in others), f"within the bound of {args.bound:g}", sep="\n")
