"""What chapter 07b compares its model with: both owners' numbers from one pool, one layer, and a longer run.

    python tests/bench/bench_learned.py [--steps 1600] [--out data/measurements/one-pool.json]

Model, rate and batches are chapter 07's on a laptop. Each of three seeds draws other weights and other batches. One layer
and the longer run, which has twice the steps, read the released stories. Some one to two minutes for each 1,600 steps.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch

from course.files import write_atomically
from course.other_town import retold
from course.paths import BUILT, ROOT
from nanogpt.data import DocumentStream
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.evals.facts import costs_of_facts, exchange_numbers, noted_story
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

STEPS, LR, DECAY, B, T = 1600, 2e-3, 0.5, 4, 128  # chapter 07's
POOL = "three | four | five | six | seven | eight"
SEEDS = (0, 1, 2)
STORIES = range(1_000_000, 1_000_300)  # their facts are counted
EXCHANGED = range(2_000_000, 2_000_400)  # about half of them have two numbers
OUT = ROOT / "data/measurements/one-pool.json"
COMMAND = "python tests/bench/bench_learned.py"


def trained(
    folder: Path, tokenizer: BPETokenizer, steps: int, seed: int, n_layer: int = 2
) -> tuple[GPT, float]:
    """A model after some steps on the stories in a folder, and the seconds that they took."""
    ensure_corpus(folder, tokenizer)
    config = GPTConfig(T, tokenizer.vocab_size, n_layer, n_head=8, n_embd=128)
    model = scale_init(GPT(config, torch.Generator().manual_seed(seed)))
    start = time.perf_counter()
    train(model, DocumentStream(open_shards(folder, "train"), B, T, seed=seed), steps, LR, decay=DECAY)
    return model.eval(), round(time.perf_counter() - start, 1)


def rounded(value):
    """Floats in nested dicts with four digits."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def facts(model: GPT, tokenizer: BPETokenizer) -> dict[str, dict]:
    return costs_of_facts(model, tokenizer, [noted_story(seed) for seed in STORIES])


def exchange(model: GPT, tokenizer: BPETokenizer) -> dict[str, dict]:
    return {key: exchange_numbers(model, tokenizer, EXCHANGED, key) for key in "nm"}


def measured(model: GPT, tokenizer: BPETokenizer) -> dict:
    """Costs by fact and exchanged numbers, of the model as it is, and without attention in its second layer."""
    found = {"facts": facts(model, tokenizer), "exchange": exchange(model, tokenizer)}
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight.zero_()
    copied = facts(model, tokenizer)["copied number"]["right"]
    found["without layer 1"] = {"copied": copied, "exchange": exchange(model, tokenizer)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=lambda name: Path(name).resolve(), default=OUT)
    args = parser.parse_args()
    ensure_corpus(BUILT / "stories")
    tokenizer = BPETokenizer.load(BUILT / "stories" / "tokenizer.json")
    with tempfile.TemporaryDirectory() as folder, retold({"many": POOL, "few": POOL}):
        one_pool = {}
        for seed in SEEDS:
            model, seconds = trained(Path(folder), tokenizer, args.steps, seed)
            one_pool[seed] = {"seconds": seconds} | measured(model, tokenizer)
            print("one pool, seed", seed, rounded(one_pool[seed]), flush=True)
    single, _ = trained(BUILT / "stories", tokenizer, args.steps, 0, n_layer=1)
    model, seconds = trained(BUILT / "stories", tokenizer, 2 * args.steps, 0)
    record = {
        "what": "chapter 07's model where both owners' numbers are from one pool, where it has one layer, and where it trains twice as long",
        "command": COMMAND + (f" --steps {args.steps}" if args.steps != STEPS else ""),
        "date": date.today().isoformat(),
        "device": f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pool": POOL.split(" | "),
        "steps": args.steps,
        "one pool": one_pool,
        "one layer": facts(single, tokenizer),
        "longer": {"steps": 2 * args.steps, "seconds": seconds, "facts": facts(model, tokenizer)},
    }
    write_atomically(args.out, (json.dumps(rounded(record), indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
