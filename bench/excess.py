"""What models of one and of two layers pay above the floor, by kind of decision, for several seeds.

python bench/excess.py [SEED ...]      trains both depths with each seed (default: 0 1 2)

Adds each run to data/measurements/excess.json, in place of an earlier one of the same seed and depth. Chapter 18 prints
the table. Sizes, rate and steps are chapter 07's, so a run takes about as long as that chapter does.
"""

import json
import sys
from datetime import date
from pathlib import Path

import torch

from nanogpt.data import DocumentStream
from nanogpt.evaluate import token_losses
from nanogpt.files import save_json
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.evals.excess import Floor
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "data/measurements/excess.json"
STEPS, EARLY, B, T, LR = 2000, 400, 4, 128, 5e-4
STORIES, SEED = 200, 1  # judged on


def run(layers: int, seed: int, folder: Path, tokenizer: BPETokenizer, floor: Floor) -> dict:
    """Excess by kind after EARLY steps and at the end, in nats a story, of one training."""
    config = GPTConfig(block_size=T, vocab_size=tokenizer.vocab_size, n_layer=layers, n_head=4, n_embd=128)
    model, found = scale_init(GPT(config, generator=torch.Generator().manual_seed(seed))), {}

    def look(step: int, loss) -> None:
        if step + 1 in (EARLY, STEPS):
            found[step + 1] = floor.excess(token_losses(model, floor.ids, tokenizer.eot))

    stream = DocumentStream(open_shards(folder, "train"), B, T, seed=seed)
    train(model, stream, STEPS, LR, generator=torch.Generator().manual_seed(seed), on_step=look)
    early, end = ({kind: round(nats, 3) for kind, nats in found[step].items()} for step in (EARLY, STEPS))
    print(f"{layers} layers, seed {seed}: {sum(end.values()):.2f} nats a story above the floor", flush=True)
    return {"layers": layers, "seed": seed, "early": early, "end": end}


def main() -> None:
    folder = ROOT / "data/built/stories"
    ensure_corpus(folder)
    tokenizer = BPETokenizer.load(folder / "tokenizer.json")
    floor = Floor.of((story.text for story in stories(STORIES, seed=SEED)), tokenizer)
    seeds = [int(word) for word in sys.argv[1:]] or [0, 1, 2]
    for seed in seeds:
        for layers in (1, 2):
            made = run(layers, seed, folder, tokenizer, floor)
            before = json.loads(RECORD.read_text())["runs"] if RECORD.exists() else []
            others = [r for r in before if (r["layers"], r["seed"]) != (layers, seed)]
            runs = sorted([*others, made], key=lambda r: (r["layers"], r["seed"]))
            about = {
                "what": "excess by kind, in nats a story, of models of one and two layers; chapter 18",
                "command": "python bench/excess.py",
                "date": date.today().isoformat(),
                "torch": torch.__version__,
                "device": "cpu",
                "steps": STEPS,
                "early": EARLY,
                "stories": STORIES,
            }
            save_json(RECORD, about | {"runs": runs})


if __name__ == "__main__":
    main()
