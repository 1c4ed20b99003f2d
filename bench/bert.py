"""Hidden tokens on the stories, found by a small GPT that sees both sides and by one that sees the left only.

python bench/bert.py --out data/measurements/bert.json

Same weights at the beginning, same batches, same hidden places; one seed.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F

from nanogpt.data import DocumentStream
from nanogpt.files import save_json
from nanogpt.labs.bert import both_sides, hide
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards
from nanogpt.training import scale_init, train

T, B, RATE = 128, 8, 2e-3


class Hidden:
    def __init__(self, stream, mask_id: int):
        self.stream, self.mask_id, self.generator = stream, mask_id, torch.Generator().manual_seed(0)

    def next_batch(self):
        return hide(self.stream.next_batch()[0], self.mask_id, self.generator)


def run(task: str, folder: Path, V: int, steps: int) -> dict:
    """The mean training loss of each 50 steps, and the loss on 64 rows of the validation text."""
    shape = GPTConfig(block_size=T, vocab_size=V + 1, n_layer=2, n_head=4, n_embd=128)
    model = scale_init(GPT(shape, torch.Generator().manual_seed(0)))
    if task == "both sides":
        both_sides(model)
    stream = Hidden(DocumentStream(open_shards(folder, "train"), B, T, seed=0), V)
    start = time.perf_counter()
    losses = train(model, stream, steps, RATE, clip=1.0, generator=torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - start
    x, y = Hidden(DocumentStream(open_shards(folder, "val"), 64, T, seed=0), V).next_batch()
    with torch.no_grad():
        val = model.eval()(x, y)[1].item()
    means = [fmean(losses[i : i + 50]) for i in range(0, steps, 50)]
    print(
        f"{task:10} {' '.join(f'{mean:.2f}' for mean in means)}, validation {val:.3f}, {seconds:.0f} s",
        flush=True,
    )
    return {
        "task": task,
        "means of 50 steps": [round(mean, 4) for mean in means],
        "validation": round(val, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", help="write the table here")
    args = parser.parse_args()
    folder = Path("data/built/stories")
    V = ensure_corpus(folder)["vocab_size"]
    counts = torch.bincount(
        DocumentStream(open_shards(folder, "train"), 2000, T).next_batch()[0].flatten(), minlength=V
    )
    _, y = Hidden(DocumentStream(open_shards(folder, "val"), 64, T, seed=0), V).next_batch()
    guess = F.cross_entropy((counts + 1).log().expand(*y.shape, V).flatten(0, 1), y.flatten()).item()
    rows = [run(task, folder, V, args.steps) for task in ("both sides", "left side")]
    if args.out:
        what = {"command": f"python {' '.join(sys.argv)}", "date": time.strftime("%Y-%m-%d"), "device": "cpu"}
        save_json(
            args.out,
            what
            | {"torch": torch.__version__, "steps": args.steps, "frequency": round(guess, 4), "rows": rows},
        )
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
