"""Chapter 19b's comparison, at equal compute: `python bench/rewards.py` writes data/measurements/rewards.json.

Needs chapter 07's model. A run that is recorded for this model already is not made again, unless --anew. Half a minute a run on
one idle core; --seconds 300 stops before a run that would begin later, and the next call goes on. `--steps 3` tries it out and writes nothing.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nanogpt.data import DocumentStream  # noqa: E402
from nanogpt.device import pick_device  # noqa: E402
from nanogpt.evaluate import token_losses  # noqa: E402
from nanogpt.files import save_json  # noqa: E402
from nanogpt.labs.corpora.stories import stories  # noqa: E402
from nanogpt.labs.evals.excess import Floor  # noqa: E402
from nanogpt.labs.tuning.rewards import (  # noqa: E402
    Near,
    QuestionStream,
    Remembering,
    Rewarded,
    from_group,
    from_group_scaled,
    questions,
    share_right,
)
from nanogpt.model import flops_per_token  # noqa: E402
from nanogpt.shards import open_shards  # noqa: E402
from nanogpt.tokenizer import BPETokenizer  # noqa: E402
from nanogpt.training import train  # noqa: E402
from nanogpt.weights import load_model  # noqa: E402

B, ROWS, MORE, STEPS, HELD, TRAIN, TOLD = 24, 4, 16, 80, 180, 1200, 60
BUILT = ROOT / "data/built"
SWEEP = [  # way, rate, seed
    *[("answer alone", 1e-4, seed) for seed in range(3)],
    *[("rewards", 1e-4, seed) for seed in range(3)],
    ("rewards", 5e-5, 0),
    ("rewards, exact", 1e-4, 0),
    ("more stories", 1e-4, 0),
    ("answer, replay", 1e-4, 0),
    ("answer, near", 1e-4, 0),
    ("rewards, GRPO", 1e-4, 0),
    ("rewards, exact", 5e-5, 0),
    ("rewards, GRPO", 5e-5, 0),
    ("rewards, replay", 1e-4, 0),
    ("rewards, near", 1e-4, 0),
    ("answer alone", 2e-4, 0),
    ("more stories", 1e-4, 1),
    ("answer, replay", 1e-4, 1),
    ("answer, near", 1e-4, 1),
    ("rewards, exact", 1e-4, 1),
    ("rewards", 5e-5, 1),
    ("rewards, replay", 1e-4, 1),
    ("rewards, near", 1e-4, 1),
    ("rewards, GRPO", 1e-4, 1),
    ("rewards", 5e-5, 2),
    *[("answer alone", 5e-5, seed) for seed in range(3)],
    ("rewards", 2e-4, 0),
]
LONGER = [
    ("answer alone", 1e-4, 0),
    ("answer alone", 1e-4, 1),
    ("rewards", 1e-4, 0),
    ("rewards", 1e-4, 1),
    ("rewards, exact", 1e-4, 0),
    ("rewards, GRPO", 1e-4, 0),
    ("answer, replay", 1e-4, 0),
    ("answer alone", 5e-5, 0),
    ("rewards, replay", 1e-4, 0),
    ("answer, near", 1e-4, 0),
]
LINE = "{way:20} lr {lr:6g} seed {seed}: {first:.3f} first, {drawn:.3f} drawn, computed {computed:.2f}, all else {all else:.2f}, {steps} steps"


def stream_of(way: str, asked: list, model, seed: int, device):
    """The run's batches: questions, or for the control ordinary stories."""
    if way == "more stories":
        shards = open_shards(BUILT / "stories", "train")
        return DocumentStream(shards, MORE, model.config.block_size, seed=100 + seed, device=device)
    return QuestionStream(asked, B, seed, device)


class Exact(nn.Module):
    """The expected reward itself, as if there were infinitely many samples: the loss is minus the probability of the answer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        logits = self.model(x)[0]
        probs = logits[y != -100].softmax(-1)
        return logits, -probs.gather(1, y[y != -100][:, None]).mean()


def wrapped(way: str, model, seed: int, device):
    """The model as the training loop sees it."""
    if way == "rewards, exact":
        return Exact(model)
    baselines = {"rewards, GRPO": from_group_scaled}
    inner = Rewarded(model, baselines.get(way, from_group), seed=seed) if way.startswith("rewards") else model
    if way.endswith("near"):
        return Near(inner, load_model(BUILT / "model", device))
    if way.endswith("replay"):
        shards = open_shards(BUILT / "stories", "train")
        old = DocumentStream(shards, ROWS, model.config.block_size, seed=100 + seed, device=device)
        return Remembering(inner, model, old)
    return inner


def step_tokens(way: str, question_tokens: float, T: int) -> float:
    """What a step costs in tokens of training, forward and backward: a forward pass alone is a third of one."""
    costs = {"more stories": MORE * T}
    extra = {"near": question_tokens / 3, "replay": ROWS * T}
    return costs.get(way, question_tokens + extra.get(way.split(", ")[-1], 0))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, help="of the plain ways, in place of 80")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after this time")
    parser.add_argument("--anew", action="store_true", help="also those runs that are recorded already")
    args, began = parser.parse_args(), time.monotonic()
    device, tokenizer = pick_device(), BPETokenizer.load(BUILT / "stories/tokenizer.json")
    base = load_model(BUILT / "model", device)
    T, per_token = base.config.block_size, flops_per_token(base.config)
    told = list(stories(300, seed=1))
    held = list(questions(told, tokenizer, T))[:HELD]
    asked = list(questions(stories(TRAIN, seed=2), tokenizer, T))
    floor = Floor.of((story.text for story in told[:TOLD]), tokenizer)
    batches = QuestionStream(asked, B).batches
    padded = sum(len(batch) * (max(len(q.ids) for q in batch) - 1) for batch in batches) / len(batches)

    def measure(model) -> dict[str, float]:
        excess = floor.excess(token_losses(model, floor.ids, tokenizer.eot))
        computed = excess.pop("counts, computed")
        found = share_right(model, held) | {"computed": computed, "all else": sum(excess.values())}
        return {name: round(value, 4) for name, value in found.items()}

    path = ROOT / "data/measurements/rewards.json"
    record = {
        "what": "share of held-out computed answers that are right, and nats a story above the floor, after training",
        "command": "python bench/rewards.py",
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "device": str(device),
        "questions": HELD,
        "batch": B,
        "base": measure(base),
        "runs": [],
        "longer": [],  # the same with twice the compute
    }
    if path.exists() and not args.anew:
        found = json.loads(path.read_text())
        if found["base"] == record["base"]:
            record |= {which: found.get(which, []) for which in ("runs", "longer")}
    done = {
        (which, run["way"], run["lr"], run["seed"]) for which in ("runs", "longer") for run in record[which]
    }
    plan = [("longer", *run) for run in LONGER] + [("runs", *run) for run in SWEEP]
    for which, way, lr, seed in plan:
        if (which, way, lr, seed) in done or time.monotonic() - began > args.seconds:
            continue
        tokens = step_tokens(way, padded, T)
        steps = round((args.steps or STEPS) * padded / tokens) * (2 if which == "longer" else 1)
        model = load_model(BUILT / "model", device)
        train(wrapped(way, model, seed, device), stream_of(way, asked, model, seed, device), steps, lr)
        run = {"way": way, "lr": lr, "seed": seed, "steps": steps, "flops": steps * tokens * per_token}
        run |= measure(model)
        print(LINE.format(**run), flush=True)
        record[which].append(run)
        if not args.steps:
            save_json(path, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
