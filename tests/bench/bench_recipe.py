"""Chapter 15's ablation, longer and larger: chapter 07's model, two learning rates, one ingredient off at a time.

    python tests/bench/bench_recipe.py [--steps 400] [--rates 2e-3 1e-2] [--seeds 2] [--out data/measurements/ablation.json]

The run and the list of ingredients are the chapter's own: its cells that only define are executed from the source.
"""

import argparse
import ast
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import torch

from course.notebooks.source import notebook_from_source
from course.paths import NOTEBOOKS, ROOT, SOURCES

LOUD = (
    "print(",
    "show(",
    "predict(",
    "answer(",
    "predictions(",
    "checkpoint(",
    "experiment(",
    "widget(",
    "measure(",
)


def chapter() -> dict:
    """What chapter 15 defines up to SWITCHED_OFF, by name: its cells that call nothing which runs, shows or prints."""
    names = {"__name__": "chapter"}
    for cell in notebook_from_source(next(SOURCES.glob("15_*.py"))).cells:
        if cell.cell_type == "code" and "SWITCHED_OFF" not in names:
            body = ast.parse(cell.source).body
            calls = "\n".join(ast.unparse(node) for node in body if not isinstance(node, ast.FunctionDef))
            if not any(word in calls for word in LOUD):
                exec(compile(cell.source, "chapter 15", "exec"), names)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 1e-2])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measurements" / "ablation.json")
    args = parser.parse_args()
    out = args.out.resolve()
    os.environ.setdefault("NANOGPT_SCALE", "laptop")
    os.chdir(NOTEBOOKS)
    names = chapter()
    config = replace(names["config"], n_layer=2, n_head=8, n_embd=128)
    runs = []
    for lr in args.rates:
        for off, changes in names["SWITCHED_OFF"].items():
            for seed in range(args.seeds):
                common = {"config": config, "steps": args.steps, "lr": lr, "warmup": args.steps // 10}
                done = names["experiment"](seed, **common | changes)
                found = {"above": round(done.above, 4), "norm": round(max(done.norms), 2)}
                runs.append({"lr": lr, "off": off, "seed": seed, **found})
                print(*runs[-1].values(), flush=True)
    device = f"CPU, {platform.machine()}, threads: {torch.get_num_threads()}"
    record = {
        "command": shlex.join(["python", "tests/bench/bench_recipe.py", *sys.argv[1:]]),
        "date": f"{date.today()}",
        "device": device,
    }
    record |= {"torch": torch.__version__, "config": asdict(config), "batch": names["B"], "steps": args.steps}
    out.write_text(
        json.dumps(record | {"floor": round(names["floor"], 4), "runs": runs}, indent=1) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
