"""Chapter 15b's two recorded experiments: one ingredient off at a time, each at several rates; and rate against batch.

    python bench/recipe.py [--steps 108] [--layers 1] [--seeds 4] [--out data/measurements/ablation.json]

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

LOUD = ("batches(", "show(", "predict(", "answer(", "predictions(", "checkpoint(", "experiment(", "interval(")


def chapter() -> dict:
    """What chapter 15b defines up to SWITCHED_OFF, by name: its cells that call nothing which runs, shows or asks."""
    names = {"__name__": "chapter"}
    for cell in notebook_from_source(next(SOURCES.glob("15b_*.py"))).cells:
        if cell.cell_type == "code" and "SWITCHED_OFF" not in names:
            body = ast.parse(cell.source).body
            defined = (ast.FunctionDef, ast.ClassDef)
            calls = "\n".join(ast.unparse(node) for node in body if not isinstance(node, defined))
            if not any(word in calls for word in LOUD):
                exec(compile(cell.source, "chapter 15b", "exec"), names)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=108)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-3, 1e-2, 2e-2, 4e-2])
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--batch-rates", type=float, nargs="+", default=[5e-3, 1e-2, 2e-2, 4e-2, 8e-2])
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "measurements" / "ablation.json")
    args = parser.parse_args()
    out = args.out.resolve()
    os.environ.setdefault("NANOGPT_SCALE", "laptop")
    os.chdir(NOTEBOOKS)
    names = chapter()
    experiment, B, tokens_rows = names["experiment"], names["B"], names["B"] * args.steps
    config = replace(names["config"], n_layer=args.layers)

    def made(seed: int, lr: float, steps: int, **changes) -> dict:
        common = {"config": config, "lr": lr, "steps": steps, "warmup": steps // 6}
        above = experiment.__wrapped__(
            seed, **common | changes
        ).above  # without the cache, which keeps all models
        print(f"{steps} steps, lr {lr:g}, seed {seed}: {above:.4f}", *changes, flush=True)
        return {"lr": lr, "seed": seed, "above": round(above, 4)}

    runs = [
        {"off": off} | made(seed, lr, args.steps, **changes)
        for off, changes in names["SWITCHED_OFF"].items()
        for lr in args.rates
        for seed in range(args.seeds)
    ]
    batches = [
        {"rows": rows, "steps": tokens_rows // rows} | made(seed, lr, tokens_rows // rows, rows=rows)
        for rows in args.rows
        for lr in args.batch_rates
        for seed in range(2)
    ]
    record = {
        "command": shlex.join(["python", "bench/recipe.py", *sys.argv[1:]]),
        "date": f"{date.today()}",
        "device": f"CPU, {platform.machine()}, threads: {torch.get_num_threads()}",
        "torch": torch.__version__,
        "config": asdict(config),
        "batch": B,
        "steps": args.steps,
        "floor": round(names["floor"], 4),
    }
    text = json.dumps(record | {"runs": runs, "batches": batches}, indent=1) + "\n"
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
