"""Chapter 24: what each of Llama's changes is worth on chapter 02's stories, alone and all together, against GPT-2.

    python bench/llama.py [--steps 2000] [--seeds 3] [--out data/measurements/llama.json]

Chapter 07's small model, its batches and its rate. A run with a change and GPT-2's run with the same seed see the same batches; the
interval of their difference is Student's, at 95%.
"""

import argparse
import json
import platform
from datetime import date
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from course.figures.llama_changes import CHANGES, changed
from course.paths import ROOT
from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.llama import model as llama
from nanogpt.model import GPTConfig
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train

RATE = 5e-4  # chapter 07's
CONTROLS = [
    (1, 2.5e-4),
    (1, 1e-3),
    (2, 5e-4),
]  # times as many steps, rate: is the row of SwiGLU one of its rate or of its length?
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}  # Student's t for 95%, by degrees of freedom


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = ROOT / "data" / "built" / "stories"
    ensure_corpus(folder)
    tokenizer = BPETokenizer.load(folder / "tokenizer.json")
    told = stories(150, seed=1)
    held = np.array([i for s in told for i in (tokenizer.eot, *tokenizer.encode(s.text))] + [tokenizer.eot])
    shape = GPTConfig(block_size=128, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_embd=128)

    def run(name: str, seed: int, steps: int, rate: float) -> float:
        model = changed(name, shape, llama, seed)
        parameters[name] = sum(p.numel() for p in model.parameters() if p.requires_grad)
        stream = DocumentStream(open_shards(folder, "train"), 4, 128, seed=seed)
        train(model, stream, steps, rate, decay=0.5, generator=torch.Generator().manual_seed(seed))
        return evaluate(model, [held], tokenizer.eot)

    losses, parameters = {name: [] for name in CHANGES}, {}
    for seed in range(args.seeds):
        for name in CHANGES:
            losses[name].append(run(name, seed, args.steps, RATE))
            print(
                f"seed {seed} {name:18} {parameters[name]:9,} parameters, loss {losses[name][-1]:.3f}",
                flush=True,
            )
    rows = []
    for name, found in losses.items():
        paired = [a - b for a, b in zip(found, losses["GPT-2"])]
        half = T95[len(paired) - 1] * stdev(paired) / sqrt(len(paired)) if len(paired) > 1 else float("inf")
        mean = fmean(paired)
        rows.append(
            {
                "name": name,
                "parameters": parameters[name],
                "loss": fmean(found),
                "losses": found,
                "difference": mean,
                "interval": [mean - half, mean + half],
            }
        )
        print(f"{name:18} {fmean(found):.3f}  {mean:+.3f} ± {half:.3f}")
    record = {"command": "python bench/llama.py", "date": str(date.today()), "steps": args.steps}
    record |= {
        "seeds": list(range(args.seeds)),
        "device": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }
    record["controls"] = []
    for times, rate in CONTROLS:
        pair = {name: run(name, 0, times * args.steps, rate) for name in ("GPT-2", "SwiGLU")}
        record["controls"].append({"steps": times * args.steps, "rate": rate, "losses": pair})
        print(f"{times * args.steps} steps at {rate:g}: {pair}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
