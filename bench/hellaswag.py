"""HellaSwag with one context read once for four endings, against one ending at a time: a ratio, interleaved.

python bench/hellaswag.py [--checkpoint data/built/model] [--rounds 7] [--batch 8]
python bench/hellaswag.py --shape gpt2 --rounds 3 --items 8     # GPT-2's 124M, random weights

The plain way is how it is usually written: the whole of context and ending through the model, an ending at a time.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from nanogpt.evaluate import evaluating
from nanogpt.labs.evals import hellaswag
from nanogpt.model import GPT, SIZES
from nanogpt.sampling import load
from nanogpt.tokenizer import BPETokenizer


@torch.no_grad()
def one_at_a_time(model, items, tokenizer) -> list[list[float]]:
    """The nats of each ending, from a forward pass of its own over context and ending."""
    nats, device = [], next(model.parameters()).device
    with evaluating(model):
        for item in items:
            context, endings = hellaswag.example_ids(item, tokenizer)
            context = hellaswag.fitting(context, endings, model.config.block_size)
            nats.append([])
            for ending in endings:
                ids = torch.tensor([context + ending], device=device)
                logits = model(ids[:, :-1])[0][0, len(context) - 1 :]
                nats[-1].append(
                    F.cross_entropy(logits.float(), ids[0, len(context) :], reduction="sum").item()
                )
    return nats


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", default=Path(__file__).parents[1] / "data/built/model", type=Path)
    parser.add_argument(
        "--shape", choices=SIZES, help="random weights of this shape, instead of a checkpoint"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--items", type=int)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    if args.shape:
        model, tokenizer = GPT(SIZES[args.shape], torch.Generator().manual_seed(0)), BPETokenizer.gpt2()
    else:
        model, tokenizer = load(str(args.checkpoint))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, items = model.to(device), hellaswag.load_items()[: args.items]
    ratios, worst = [], 0.0
    for _ in range(args.rounds + 1):  # the first one warms up
        start = time.perf_counter()
        plain = one_at_a_time(model, items, tokenizer)
        middle = time.perf_counter()
        fast = hellaswag.score(model, items, tokenizer, batch=args.batch)
        ratios.append((middle - start) / (time.perf_counter() - middle))
        worst = max(abs(a - b) for x, y in zip(plain, fast) for a, b in zip(x, y))
    print(f"{len(items)} questions, {device}, {torch.get_num_threads()} threads, batch {args.batch}")
    print(f"largest difference of a score: {worst:.1e} nats")
    each = ", ".join(f"{ratio:.1f}" for ratio in ratios[1:])
    print(f"times as fast as one ending at a time: median {median(ratios[1:]):.2f} ({each})")


if __name__ == "__main__":
    main()
