"""Chapter 25: our recipe against nanoGPT's on the characters of Shakespeare, on this machine, in turns.

    python tests/bench/bench_speedrun.py [--seeds 5] [--table] [--quick] [--out data/measurements/speedrun.json]

The reference is nanoGPT's configuration for a CPU: its README, "I only have a macbook", with config/train_shakespeare_char.py and
the defaults of train.py and model.py (no biases, betas 0.9 and 0.99, weight decay 0.1, clipping at 1, float32, eager). Its loss
there is 1.88. It is built of this package's parts; its AdamW is fused, which nanoGPT's is on a GPU only, and which helps it.

The reference and our runs take turns in one process, a fifth of the reference before each of our runs. The time is that of the training steps:
drawing the batch, forward, backward, update. Evaluation and compilation do not count, for either side. The loss is that of the complete
validation split, each character a target once, after at most 64.

--table: what each ingredient is worth, one left out at a time, with three seeds. Losses do not depend on how busy the
machine is; the times of a step are measured in turns. Without --table, the table of the file that --out names is kept.
--quick: a hundredth of the work, to see that everything runs; its numbers mean nothing.
"""

import argparse
import hashlib
import json
import platform
import shlex
import sys
from dataclasses import asdict, replace
from datetime import date
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median

import torch

from course.figures.speedrun import rows
from course.paths import ROOT
from nanogpt.gpt.record import TRACKS, join, objections, share
from nanogpt.gpt.speedrun import OURS, Recipe, race, validation_loss, windows_at_random

PLACES = [ROOT / "data/downloads/tinyshakespeare.txt", ROOT.parent / "shared/data/tinyshakespeare.txt"]
REFERENCE = Recipe()
CHANGED = {  # the recipe with one thing changed
    "nothing": {},
    "GELU, not squared ReLU": {"relu_squared": False},
    "a table of positions, not rotary": {"rotary": False},
    "queries and keys not normalized": {"normalized": False},
    "no tables of recent tokens": {"recent": 1},
    "a table of pairs only": {"recent": 2},
    "AdamW, not Muon": {"muon": False},
    "AdamW at half the rate, not Muon": {"muon": False, "rate": OURS.rate / 2},
    "AdamW at a quarter of the rate": {"muon": False, "rate": OURS.rate / 4},
    "a cosine, not a linear decay": {"decay": None},
    "initialization not scaled": {"scaled": False},
    "a batch that grows": {"rows": OURS.rows // 2, "last_rows": 3 * OURS.rows // 2},
    "two layers": {"n_layer": 2},
    "no table of four tokens": {"recent": 3},
    "twice the rate": {"rate": 2 * OURS.rate},
}
SAME_STEP = {"decay", "rate", "scaled"}  # what does not change the work of a step
ONLY_FASTER = {
    "bf16": {"precision": "bf16"}
}  # of these the times of a step, and with --compile of "compiled"
CURVE = (0.1, 0.3, 0.6, 1.5)  # shares of the recipe's steps: on the way to its loss, and beyond


class Text:
    """The characters as ids, and the two splits, as nanoGPT's data/shakespeare_char/prepare.py makes them."""

    def __init__(self, path: Path):
        raw = path.read_bytes()
        text = raw.decode()
        letters = sorted(set(text))
        ids = torch.tensor([letters.index(letter) for letter in text])
        self.sha256, self.vocab_size = hashlib.sha256(raw).hexdigest(), len(letters)
        self.train, self.held = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]


def runner(recipe: Recipe, text: Text, seed: int):
    """A race of chapter 25 on this text."""
    return race(recipe, text.vocab_size, 64, windows_at_random(text.train, 64, seed), seed)


def finished(recipe: Recipe, text: Text, seed: int) -> tuple[float, float]:
    """Loss and seconds of a complete run."""
    *_, (model, seconds) = runner(recipe, text, seed)
    return validation_loss(model, text.held, 64)[0], seconds


def in_turns(reference: Recipe, ours: Recipe, text: Text, seeds: list[int]) -> dict:
    """Losses and seconds of the reference and of our runs; before each of ours, an equal part of the reference."""
    slow, losses, times, parts = runner(reference, text, 1337), [], [], [0.0]
    for i, seed in enumerate(seeds):
        here, there = (reference.steps * n // len(seeds) for n in (i, i + 1))
        *_, (model, seconds) = islice(slow, there - here)
        parts.append(seconds)
        loss, ours_took = finished(ours, text, seed)
        losses.append(loss)
        times.append(ours_took)
        print(
            f"reference {seconds:6.1f} s for {there} steps; ours, seed {seed}: {ours_took:5.1f} s, {loss:.4f}",
            flush=True,
        )
    reference_loss, targets = validation_loss(model, text.held, 64)
    return {
        "seeds": seeds, "losses": losses, "seconds": times, "targets": targets, "reference_loss": reference_loss,
        "reference_seconds": seconds, "reference_parts": [b - a for a, b in pairwise(parts)],
    }  # fmt: skip


def step_times(recipes: dict[str, Recipe], text: Text, rounds: int) -> dict[str, float]:
    """Seconds of a step of each. In each round every recipe makes one step in turn, so that all see the same machine.

    The median of the first half of the rounds and that of the second, averaged: a batch may grow in between.
    """
    warm = 2
    runs = {name: runner(replace(r, steps=rounds + warm), text, 0) for name, r in recipes.items()}
    before, taken = dict.fromkeys(runs, 0.0), {name: [] for name in runs}
    for _ in range(rounds + warm):
        for name, run in runs.items():
            _, seconds = next(run)
            taken[name].append(seconds - before[name])
            before[name] = seconds
    half = (rounds + warm) // 2
    return {name: (median(times[warm:half]) + median(times[half:])) / 2 for name, times in taken.items()}


def table(ours: Recipe, text: Text, seeds: range) -> dict:
    """Losses of the recipe with one thing changed, and of the recipe in shorter runs."""
    losses, curve = {}, {}
    ours = replace(ours, compiled=False)  # the same numbers, and nothing to compile for each row
    for name, changes in CHANGED.items():
        losses[name] = [finished(replace(ours, **changes), text, seed)[0] for seed in seeds]
        print(f"{name:40}", *(f"{loss:.4f}" for loss in losses[name]), flush=True)
    for part in CURVE:
        steps = round(part * ours.steps)
        curve[steps] = [finished(replace(ours, steps=steps), text, seed)[0] for seed in seeds]
        print(f"{steps} steps", *(f"{loss:.4f}" for loss in curve[steps]), flush=True)
    return {"seeds": list(seeds), "losses": losses, "curve": curve | {ours.steps: losses["nothing"]}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--compile", action="store_true", help="time a step of the compiled model, too")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--text", type=Path, help="tinyshakespeare.txt, if it is elsewhere")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--board", type=Path, help="the board that the record joins, if it keeps the rules")
    args = parser.parse_args()
    path = next((place for place in [args.text, *PLACES] if place and place.exists()), None)
    if path is None:
        sys.exit("TinyShakespeare is not here: `course data tinyshakespeare` downloads it (1.1 MB)")
    text, reference, ours, rounds = Text(path), REFERENCE, OURS, 30
    if args.quick:
        reference, ours, rounds = replace(reference, steps=20), replace(ours, steps=10), 4
        text.held = text.held[:5000]
    old = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    losses = table(ours, text, range(1 if args.quick else 3)) if args.table else old.get("table")
    record = in_turns(reference, ours, text, list(range(args.seeds)))
    record |= {
        "track": "shakespeare",
        "text": text.sha256,
        "context": 64,
        "command": shlex.join(["python", "tests/bench/bench_speedrun.py", *sys.argv[1:]]),
        "date": f"{date.today()}",
        "device": f"CPU, {platform.machine()}, threads: {torch.get_num_threads()}",
        "torch": torch.__version__,
        "recipe": asdict(ours),
        "reference": asdict(reference),
    }
    changed = CHANGED if args.quick else CHANGED | ONLY_FASTER
    changed = changed | {"compiled": {"compiled": True}} if args.compile else changed
    other = {
        name: replace(ours, **changes) for name, changes in changed.items() if not changes.keys() <= SAME_STEP
    }
    took = step_times({"reference": reference, "nothing": ours} | other, text, rounds)
    took |= {name: took["nothing"] for name in CHANGED if name not in took}
    contents = {"record": record, "table": losses, "step_seconds": took}
    say(contents)
    if args.board:
        print(f"place {join(record, args.board)} on {args.board.name}")
    if args.out:
        args.out.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def say(contents: dict) -> None:
    """The race, whether it keeps the rules, and the table."""
    record, bar = contents["record"], TRACKS["shakespeare"]["bar"]
    print(f"reference: {record['reference_seconds']:.1f} s, loss {record['reference_loss']:.4f}")
    print(
        f"ours: {fmean(record['seconds']):.1f} s, loss {fmean(record['losses']):.4f}, bar {bar}: {share(record):.1%} of the time"
    )
    print("\n".join(objections(record)) or "it keeps the rules")
    for name, seconds in contents["step_seconds"].items():
        print(f"{name:40} {1e3 * seconds:6.1f} ms a step")
    if contents["table"]:
        for row in rows(contents):
            print(
                f"{row.name:40} {row.loss:.4f}, as after {row.steps:4.0f} of {row.full} steps; worth {row.worth:.2f}"
            )


if __name__ == "__main__":
    main()
