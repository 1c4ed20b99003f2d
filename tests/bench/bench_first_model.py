"""Record what chapter 07's run made, for chapter 00, which shows it before anything is built.

    course run 07 && python tests/bench/bench_first_model.py [--model data/built/model] [--out data/measurements/first-model.json]

Chapter 07 trains the course's first model and leaves its weights, its losses and the floor in data/built/model. This command
copies losses and floor from there, and lets the model continue one opening twice: as it was drawn, before training, and as
chapter 07 left it.
"""

import argparse
import json
import platform
import sys
from datetime import date
from pathlib import Path

import torch

from course.files import write_atomically
from course.paths import ROOT
from nanogpt.gpt.model import GPT
from nanogpt.gpt.sample import generate
from nanogpt.gpt.weights import load_model
from nanogpt.text.tokenizer import BPETokenizer

OPENING = "It was a sunny morning at the market. Rosa was there with Sam."
COPIED = ("steps", "tokens", "seconds", "val_loss", "floor", "device")  # of train.json
COMMAND = "course run 07 && python tests/bench/bench_first_model.py"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "data/built/model")
    parser.add_argument("--out", type=Path, default=ROOT / "data/measurements/first-model.json")
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
        "command": COMMAND,
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "parameters": sum(p.numel() for p in trained.parameters()),
        **{name: round(run[name], 4) if isinstance(run[name], float) else run[name] for name in COPIED},
        "lines": {name: round(loss, 4) for name, loss in run["lines"].items()},
        "losses": [round(loss, 4) for loss in run["losses"]],
        "opening": OPENING,
        "before": continued(untrained, tokenizer),
        "after": continued(trained, tokenizer),
    }
    write_atomically(args.out, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    print(record["before"], record["after"], sep="\n---\n")
    return 0


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
