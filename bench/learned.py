"""What chapters 07 and 07b compare their model with: other seeds, one layer, random positions, a shortcut, and a longer run.

    python bench/learned.py [--steps 2000] [--out data/measurements/learned.json]

Model, rate and batches are chapter 07's on a laptop; another seed draws other weights and other batches. The shortcut is a
corpus in which her number always comes first. About a minute for each 2,000 steps.
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

from course.figures.other_town import retold
from course.files import write_atomically
from course.paths import BUILT, ROOT
from nanogpt.data import DocumentStream
from nanogpt.labs.corpora.stories import ensure_corpus, rules
from nanogpt.labs.evals.facts import costs_of_facts, exchange_numbers, noted_story
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

STEPS, LR, DECAY, B, T = 2000, 5e-4, 0.5, 4, 128  # chapter 07's
STORIES = range(1_000_000, 1_000_300)  # their facts are counted
EXCHANGED = range(2_000_000, 2_000_400)  # six of seven have two different numbers
OUT = ROOT / "data/measurements/learned.json"
COMMAND = "python bench/learned.py"


def trained(
    folder: Path, tokenizer: BPETokenizer, steps: int, seed: int, n_layer: int = 2, waves: bool = True
) -> GPT:
    """A model after some steps on the stories in a folder."""
    config = GPTConfig(T, tokenizer.vocab_size, n_layer, n_head=4, n_embd=128)
    model = scale_init(GPT(config, torch.Generator().manual_seed(seed)))
    if not waves:  # as large as the vectors of the words
        wpe, generator = model.transformer.wpe.weight, torch.Generator().manual_seed(seed)
        torch.nn.init.normal_(wpe, 0.0, model.transformer.wte.weight.std().item(), generator)
    train(model, DocumentStream(open_shards(folder, "train"), B, T, seed=seed), steps, LR, decay=DECAY)
    return model.eval()


def rounded(value):
    """Floats in nested dicts with four digits."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def measured(model: GPT, tokenizer: BPETokenizer) -> dict:
    """Costs by fact, and how often the right owner's number is named before and after an exchange."""
    found = {"facts": costs_of_facts(model, tokenizer, [noted_story(seed) for seed in STORIES])}
    for key, whose in {"n": "hers", "m": "his"}.items():
        found[whose] = exchange_numbers(model, tokenizer, EXCHANGED, key)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=5, help="of the model as it is; three of the others")
    parser.add_argument("--out", type=lambda name: Path(name).resolve(), default=OUT)
    args = parser.parse_args()
    ensure_corpus(BUILT / "stories")
    tokenizer = BPETokenizer.load(BUILT / "stories" / "tokenizer.json")
    runs = {}

    def run(name: str, seed: int, steps: int = args.steps, change: dict | None = None, **changes):
        with tempfile.TemporaryDirectory() as folder, retold(change or {}):
            stories = Path(folder) if change else BUILT / "stories"
            ensure_corpus(stories, tokenizer)
            start = time.perf_counter()
            model = trained(stories, tokenizer, steps, seed, **changes)
            found = {"seed": seed, "steps": steps, "seconds": round(time.perf_counter() - start, 1)}
            own = costs_of_facts(model, tokenizer, [noted_story(seed) for seed in STORIES])
        if change:
            found["copied in its own stories"] = own["copied number"]["right"]
        runs.setdefault(name, []).append(rounded(found | measured(model, tokenizer)))
        print(name, {k: v for k, v in runs[name][-1].items() if k != "facts"}, flush=True)

    some = range(min(3, args.seeds))
    for seed in range(args.seeds):
        run("as in chapter 07", seed)
    for seed in some:
        run("one layer", seed, n_layer=1)
    for seed in some:
        run("random positions", seed, waves=False)
    run("twice as long", 0, 2 * args.steps)
    for seed in some:
        run("hers first", seed, change={"both": rules()["both"][0]})
    record = {
        "what": "chapter 07's model with other seeds, one layer, random positions, twice the steps, and stories in which hers comes first",
        "command": COMMAND + (f" --steps {args.steps}" if args.steps != STEPS else ""),
        "date": date.today().isoformat(),
        "device": f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "runs": runs,
    }
    write_atomically(args.out, (json.dumps(record, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
