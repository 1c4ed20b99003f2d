"""Chapter 07's run with three faults that learning one batch by heart does not show, measured on new stories.

    python bench/faults.py [--steps 2000] [--out data/measurements/without-mask.json]

Model, rate and batches are chapter 07's on a laptop. One model has no causal mask, one is trained on the token that it
sees, one on the token before. Each loss is that of all held-out stories, with the right targets. Some two minutes a model.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from course.figures.stand_in import without_mask
from course.files import write_atomically
from course.paths import BUILT, ROOT
from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

STEPS, LR, DECAY, B, T = 2000, 5e-4, 0.5, 4, 128  # chapter 07's
LOOKS = (250, 600)  # and after the last step
OUT = ROOT / "data/measurements/without-mask.json"
COMMAND = "python bench/faults.py"


def unshifted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


def shifted_back(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    before = torch.full_like(x, -100)
    before[:, 1:] = x[:, :-1]
    return x, before


class Faulty:
    """A stream whose batches are changed."""

    def __init__(self, stream, change: Callable):
        self.stream, self.change = stream, change

    def next_batch(self) -> tuple[Tensor, Tensor]:
        return self.change(*self.stream.next_batch())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=lambda name: Path(name).resolve(), default=OUT)
    args = parser.parse_args()
    folder = BUILT / "stories"
    floor = ensure_corpus(folder)["floor"]
    tokenizer = BPETokenizer.load(folder / "tokenizer.json")
    config = GPTConfig(block_size=T, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_embd=128)
    val = [read_shard(path) for path in open_shards(folder, "val")]
    looks = [step for step in LOOKS if step < args.steps] + [args.steps]

    def losses_of(model: GPT, change: Callable = lambda x, y: (x, y)) -> dict[int, float]:
        """The loss on held-out stories after some steps of a run."""
        losses = {}

        def look(step: int, loss: Tensor) -> None:
            if step + 1 in looks:
                losses[step + 1] = round(evaluate(model, val, tokenizer.eot), 3)
                print(step + 1, losses[step + 1], flush=True)

        stream = DocumentStream(open_shards(folder, "train"), B, T, seed=0)
        train(model, Faulty(stream, change), args.steps, LR, decay=DECAY, on_step=look)
        return losses

    def new_model() -> GPT:
        return scale_init(GPT(config, torch.Generator().manual_seed(0)))

    record = {
        "what": "nats per token of all held-out stories after some steps of chapter 07's run, with a fault",
        "command": COMMAND + (f" --steps {args.steps}" if args.steps != STEPS else ""),
        "date": date.today().isoformat(),
        "device": f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "steps": args.steps,
        "floor": round(floor, 3),
        "losses": {
            "no mask": losses_of(without_mask(new_model())),
            "targets not shifted": losses_of(new_model(), unshifted),
            "targets shifted back": losses_of(new_model(), shifted_back),
        },
    }
    write_atomically(args.out, (json.dumps(record, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
