"""Record what chapter 07's run made, for README, its picture, and the line of chapter 00 that quotes it.

    course run 07 && python bench/first_model.py [--model data/built/model] [--out data/measurements/readme-model.json]

Chapter 07 trains the course's first model and leaves its weights, its losses and the floor in data/built/model. This command
copies losses and floor from there, gives README's command, STORY, and keeps the story that the trained model writes.
"""

import argparse
import json
import platform
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import torch

from course.files import write_atomically
from course.paths import ROOT, relative
from nanogpt.weights import load_model

STORY = 'python -m nanogpt sample --checkpoint data/built/model --prompt "One sunny day," --temperature 0.5'
COPIED = ("steps", "tokens", "seconds", "val_loss", "floor", "device")  # of train.json
OUT = ROOT / "data/measurements/readme-model.json"
COMMAND = "course run 07 && python bench/first_model.py"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "data/built/model")
    parser.add_argument("--out", type=lambda name: Path(name).resolve(), default=OUT)
    args = parser.parse_args()
    if not (args.model / "train.json").exists():
        print(f"no train.json in {args.model}; `course run 07` writes it", file=sys.stderr)
        return 2
    run = json.loads((args.model / "train.json").read_text(encoding="utf-8"))
    trained = load_model(args.model)
    record = {
        "what": "chapter 07's run: training losses at equal distances, the floor, and a story",
        "command": COMMAND + (f" --out {relative(args.out)}" if args.out != OUT else ""),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "parameters": sum(p.numel() for p in trained.parameters()),
        **{name: round(run[name], 5) if isinstance(run[name], float) else run[name] for name in COPIED},
        "lines": {name: round(loss, 5) for name, loss in run["lines"].items()},
        "losses": [round(loss, 4) for loss in run["losses"]],
        "story": {"command": STORY, "text": told(args.model)},
    }
    write_atomically(args.out, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(record["story"]["text"])
    return 0


def told(model: Path) -> str:
    """What README's command prints, for the model in this folder."""
    words = [str(model) if word == "data/built/model" else word for word in shlex.split(STORY)[1:]]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
