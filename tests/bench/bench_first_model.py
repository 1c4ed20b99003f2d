"""Record what chapter 07's run made, for chapter 00 and README, which show it before anything is built.

For README's story and loss, whose text need not be the one that chapter 00 talks about:

    course run 07 && python tests/bench/bench_first_model.py --out data/measurements/readme-model.json

    course run 07 && python tests/bench/bench_first_model.py [--model data/built/model] [--out data/measurements/first-model.json]

Chapter 07 trains the course's first model and leaves its weights, its losses and the floor in data/built/model. This command
copies losses and floor from there, and lets the model continue one opening twice: as it was drawn, before training, and as
chapter 07 left it. Last, it gives README's command, STORY, and keeps the story that the trained model writes.
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
from nanogpt.model import GPT
from nanogpt.sampling import generate
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import load_model

OPENING = "It was a sunny morning at the market. Rosa was there with Sam."
STORY = 'python -m nanogpt sample --checkpoint data/built/model --prompt "One sunny day," --temperature 0.5'
COPIED = ("steps", "tokens", "seconds", "val_loss", "floor", "device")  # of train.json
OUT = ROOT / "data/measurements/first-model.json"
COMMAND = "course run 07 && python tests/bench/bench_first_model.py"


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
    tokenizer = BPETokenizer.load(args.model / "tokenizer.json")
    trained = load_model(args.model)
    untrained = GPT(trained.config, torch.Generator().manual_seed(0))
    record = {
        "what": "chapter 07's run: training losses at equal distances, the floor, and one opening continued",
        "command": COMMAND + (f" --out {relative(args.out)}" if args.out != OUT else ""),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "parameters": sum(p.numel() for p in trained.parameters()),
        **{name: round(run[name], 5) if isinstance(run[name], float) else run[name] for name in COPIED},
        "lines": {name: round(loss, 5) for name, loss in run["lines"].items()},
        "losses": [round(loss, 4) for loss in run["losses"]],
        "opening": OPENING,
        "before": continued(untrained, tokenizer),
        "after": continued(trained, tokenizer),
        "story": {"command": STORY, "text": told(args.model)},
    }
    write_atomically(args.out, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(record["before"], record["after"], sep="\n---\n")
    return 0


def told(model: Path) -> str:
    """What README's command prints, for the model in this folder."""
    words = [str(model) if word == "data/built/model" else word for word in shlex.split(STORY)[1:]]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def continued(model: GPT, tokenizer: BPETokenizer) -> str:
    """What the model writes behind OPENING: at most 90 tokens, at temperature 0.5, up to the end of its story."""
    ids = [tokenizer.eot, *tokenizer.encode(OPENING)]
    draws = torch.Generator().manual_seed(0)
    new = generate(model.eval(), ids, 90, stop={tokenizer.eot}, temperature=0.5, generator=draws)
    text = tokenizer.decode(new)
    return "".join(
        c if c.isprintable() else "\ufffd" for c in text
    )  # an untrained model draws control characters, too


if __name__ == "__main__":
    sys.exit(main())
