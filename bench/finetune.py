"""Chapter 19's trade-off, measured for many rates: `python bench/finetune.py` writes data/measurements/finetune.json.

Runs those of the chapter's own cells that train nothing, then its `fine_tune` for each way, rate, share of old stories and
seed. Needs chapter 07's model. What is recorded for this model already is not run again, unless --anew. Some four
minutes on two idle cores; `--steps 5` tries it out and writes nothing.
"""

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from course.notebooks.source import notebook_from_source  # noqa: E402
from nanogpt.files import save_json  # noqa: E402
from nanogpt.labs.tuning.lora import add_lora, freeze  # noqa: E402
from nanogpt.weights import load_model  # noqa: E402

SWEEP = [  # way, share of old stories, rates
    ("all weights", 0.0, (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)),
    ("last block", 0.0, (3e-4, 1e-3, 3e-3, 1e-2)),
    ("LoRA, rank 1", 0.0, (3e-4, 1e-3, 3e-3, 1e-2)),
    ("LoRA, rank 4", 0.0, (3e-4, 1e-3, 3e-3, 1e-2)),
    ("LoRA, rank 16", 0.0, (3e-4, 1e-3, 3e-3, 1e-2)),
    ("all weights", 0.1, (3e-4, 1e-3, 3e-3)),
    ("LoRA, rank 16", 0.1, (1e-3, 3e-3)),
    ("all but embeddings", 0.0, (1e-4, 3e-4, 1e-3)),
    ("embeddings", 0.0, (3e-4, 1e-3, 3e-3)),
    ("all weights", 1.0, (1e-3,)),  # old stories alone: what a fresh rate does by itself
]
LINE = "{way:14} replay {replay:3} lr {lr:6g} seed {seed}: new +{new:.3f}, old +{old:.3f}"


CELLS = (  # of the chapter, by something that each contains: its sizes, its towns, its streams and its loop
    *(
        "from nanogpt.device",
        "import json",
        "SEED, RANKS",
        "CHANGE = ",
        "def hold_out",
        "def excess",
        "start = excess",
    ),
    *("new_folder = ", "def batches", "class Replay"),
)


def chapter() -> dict:
    """The chapter's names, without those of its own training runs."""
    os.chdir(ROOT / "notebooks")
    names = {"__name__": "chapter"}
    for cell in notebook_from_source(next((ROOT / "notebooks/src").glob("19_*.py"))).cells:
        if cell.cell_type == "code" and any(what in cell.source for what in CELLS):
            exec(compile(cell.source, "chapter 19", "exec"), names)
    return names


def prepared(names: dict, way: str, seed: int):
    """Chapter 07's model, ready to be trained: "all weights", a part of them, or "LoRA, rank r"."""
    model = load_model(names["MODEL"], names["device"])
    parts = {
        "last block": (f".h.{model.config.n_layer - 1}.", ".ln_f"),
        "embeddings": ("wte", "wpe"),
        "all but embeddings": (".h.", ".ln_f"),
    }
    if way in parts:
        return freeze(model, *parts[way])
    if way.startswith("LoRA"):
        generator = torch.Generator().manual_seed(seed)
        return add_lora(model, int(way.split()[-1]), names["ALPHA"], generator=generator)
    return model


def stream_of(names: dict, replay: float, seed: int):
    """New stories, of which a share of the rows is replaced by old ones."""
    new, old = (names["batches"](names[folder], seed) for folder in ("new_folder", "old_folder"))
    return names["Replay"](new, old, replay) if replay else new


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, help="of each run, in place of the chapter's")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--anew", action="store_true", help="also those runs that are recorded already")
    args = parser.parse_args()
    names, path = chapter(), ROOT / "data/measurements/finetune.json"
    steps = args.steps or names["STEPS"]
    what = "nats a token above the floor, of held-out stories of the new and the old town, after fine-tuning"
    record = {
        "what": what,
        "command": "python bench/finetune.py",
        "date": time.strftime("%Y-%m-%d"),
    }
    record |= {"torch": torch.__version__, "device": str(names["device"]), "steps": steps, "rows": names["B"]}
    record |= {"held_out_stories": names["HELD"], "alpha": names["ALPHA"], "base": names["start"], "runs": []}
    record["town"] = names["new_folder"].name
    if path.exists() and not args.anew:
        found = json.loads(path.read_text())
        record["runs"] = found["runs"] if found["base"] == record["base"] and found["steps"] == steps else []
    done = {(run["way"], run["replay"], run["lr"], run["seed"]) for run in record["runs"]}
    for way, replay, rates in SWEEP:
        for lr, seed in itertools.product(rates, range(args.seeds)):
            if (way, replay, lr, seed) not in done:
                model, stream = prepared(names, way, seed), stream_of(names, replay, seed)
                found = names["excess"](names["fine_tune"](model, stream, lr, steps))
                run = {"way": way, "replay": replay, "lr": lr, "seed": seed} | found
                print(LINE.format(**run), flush=True)
                record["runs"].append(run)
                if not args.steps:
                    save_json(path, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
