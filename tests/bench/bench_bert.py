"""Hidden tokens on the stories, found by a small Llama that sees both sides and by one that sees the left only.

python tests/bench/bench_bert.py --out data/measurements/bert.json

Same weights at the beginning, same batches, same hidden places; one seed. Four minutes on a busy pair of cores.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean

import torch
import torch.nn.functional as F

from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.bert import hide
from nanogpt.gpt.llama import GroupedAttention, Llama, LlamaConfig, rotate
from nanogpt.gpt.train import scale_init, train
from nanogpt.text.data import DocumentStream
from nanogpt.text.files import save_json
from nanogpt.text.shards import open_shards

T, B, RATE = 128, 8, 2e-3


class BothSides(GroupedAttention):
    """Chapter 24's attention without is_causal."""

    def forward(self, x, angles, cache=None):
        q, k, v = (
            c(x).unflatten(2, (-1, self.head_size)).transpose(1, 2) for c in (self.c_q, self.c_k, self.c_v)
        )
        y = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, enable_gqa=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Hidden:
    def __init__(self, stream, mask_id: int):
        self.stream, self.mask_id, self.generator = stream, mask_id, torch.Generator().manual_seed(0)

    def next_batch(self):
        return hide(self.stream.next_batch()[0], self.mask_id, self.generator)


def run(task: str, folder: Path, V: int, steps: int) -> dict:
    """The mean training loss of each 50 steps, and the loss on 64 rows of the validation text."""
    shape = LlamaConfig(
        T,
        V + 1,
        n_layer=2,
        n_head=8,
        n_kv_head=8,
        n_embd=128,
        n_hidden=352,
        head_size=16,
        rope_theta=1e4,
        tied=True,
    )
    model = scale_init(Llama(shape, torch.Generator().manual_seed(0)))
    for block in model.transformer.h:
        block.attn.__class__ = BothSides if task == "both sides" else GroupedAttention
    stream = Hidden(DocumentStream(open_shards(folder, "train"), B, T, seed=0), V)
    losses = train(model, stream, steps, RATE, clip=1.0, generator=torch.Generator().manual_seed(0))
    x, y = Hidden(DocumentStream(open_shards(folder, "val"), 64, T, seed=0), V).next_batch()
    with torch.no_grad():
        val = model.eval()(x, y)[1].item()
    means = [fmean(losses[i : i + 50]) for i in range(0, steps, 50)]
    print(f"{task:10} {' '.join(f'{mean:.2f}' for mean in means)}, validation {val:.3f}", flush=True)
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
