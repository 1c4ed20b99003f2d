"""Chapter 25's recipe against nanoGPT's on Shakespeare, and 25b's against chapter 07's on the stories, on this machine, in turns.

    python bench/speedrun.py [--track stories] [--seeds 5] [--table] [--quick] [--out data/measurements/speedrun.json]

Shakespeare: the reference is nanoGPT's configuration for a CPU: its README, "I only have a macbook", with config/train_shakespeare_char.py and
the defaults of train.py and model.py (no biases, betas 0.9 and 0.99, weight decay 0.1, clipping at 1, float32, eager). Its loss
there is 1.88. It is built of this package's parts; its AdamW is fused, which nanoGPT's is on a GPU only, and which helps it.
The loss is that of the complete validation split, each character a target once, after at most 64.

Stories: the reference is chapter 07's recipe with REFERENCE_STEPS. The bar is 5% above the floor. The loss is that of all held-out stories, each
read from its beginning.

The reference and our runs take turns in one process, a fifth of the reference before each of our runs. The time is that of the training steps:
drawing the batch, forward, backward, update. Evaluation and compilation do not count, for either side.

--table: what each ingredient is worth, one left out at a time, with three seeds (one on the stories). Losses do not depend on how busy the
machine is; the times of a step are measured in turns. On the stories it has each first model's excess by kind, too. Then the controls: the
reference at other rates, batches and lengths, and our recipe with fewer steps or without several ideas. Without --table, the table and the
controls of the file that --out names are kept.
--only-table: no race; the record of the file that --out names is kept.
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

import numpy as np
import torch

from course.figures.speedrun import rows
from course.paths import ROOT
from nanogpt.evaluate import evaluate, token_losses
from nanogpt.files import save_json
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.labs.evals.excess import KINDS, Floor
from nanogpt.labs.speedrun.record import TRACKS, objections, put_on_board, share
from nanogpt.labs.speedrun.speedrun import OURS, Recipe, race, validation_loss, windows_at_random
from nanogpt.labs.speedrun.stories_race import CONTEXT, NEAR, chapter_07, story_batches, story_loss, text_of
from nanogpt.shards import read_shard
from nanogpt.tokenizer import BPETokenizer

PLACES = [ROOT / "data/downloads/tinyshakespeare.txt", ROOT.parent / "shared/data/tinyshakespeare.txt"]
REFERENCE_STEPS = 3000  # of chapter 07's recipe, half as many again as in chapter 07
PART = 60_000  # tokens of held-out stories, for the rows of the table
SAME_STEP = {"decay", "rate", "scaled"}  # what does not change the work of a step
ONLY_FASTER = {
    "bf16": {"precision": "bf16"}
}  # of these the times of a step, and with --compile of "compiled"


ON_SHAKESPEARE = {  # the recipe with one thing changed
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
ON_STORIES = {
    "nothing": {},
    "GELU, not squared ReLU": {"relu_squared": False},
    "a table of positions, not rotary": {"rotary": False},
    "queries and keys not normalized": {"normalized": False},
    "no tables of recent tokens": {"recent": 1},
    "AdamW at a quarter of the rate": {"muon": False, "rate": NEAR.rate / 4},
    "AdamW at an eighth of the rate": {"muon": False, "rate": NEAR.rate / 8},
}
FIVE = {"relu_squared": False, "rotary": False, "normalized": False, "scaled": False, "decay": None}
# The controls: changes of our recipe with the number of seeds, and (steps, rate, rows) of the reference
TRIED_ON_SHAKESPEARE = [({"steps": 75}, 5), ({"steps": 85}, 5), ({"rate": OURS.rate / 2}, 3), (FIVE, 3)]
REFERENCES_ON_SHAKESPEARE = [(500, 2e-3, 12), (500, 4e-3, 12), (1000, 2e-3, 12), (1000, 4e-3, 12)]
NONE = {
    "relu_squared": False,
    "rotary": False,
    "normalized": False,
    "recent": 1,
    "muon": False,
    "rate": NEAR.rate / 8,
}
ADAMW = {"muon": False, "rate": NEAR.rate / 4}
PAIRS = {"recent": 1, "rotary": False}, {"recent": 1} | ADAMW, {"rotary": False} | ADAMW
TRIED_ON_STORIES = [({"steps": 338}, 1), ({"steps": 390}, 1), *((pair, 1) for pair in PAIRS), (NONE, 1)]
REFERENCES_ON_STORIES = [(1350, 5e-4, 4), (1350, 1e-3, 4), (1350, 2e-3, 4), (450, 2e-3, 12), (2000, 1e-3, 4)]


class Shakespeare:
    """The characters as ids, and the two splits, as nanoGPT's data/shakespeare_char/prepare.py makes them."""

    name, context, ours, table_seeds = "shakespeare", 64, OURS, 3
    changed = ON_SHAKESPEARE
    curve = (0.1, 0.3, 0.6, 1.5)  # shares of the recipe's steps: on the way to its loss, and beyond
    tried, reference_tried = TRIED_ON_SHAKESPEARE, REFERENCES_ON_SHAKESPEARE

    def __init__(self, path: Path | None):
        path = next((place for place in [path, *PLACES] if place and place.exists()), None)
        if path is None:
            sys.exit("TinyShakespeare is not here: `course data tinyshakespeare` downloads it (1.1 MB)")
        raw = path.read_bytes()
        text = raw.decode()
        letters = sorted(set(text))
        ids = torch.tensor([letters.index(letter) for letter in text])
        self.sha256, self.vocab_size = hashlib.sha256(raw).hexdigest(), len(letters)
        self.train, self.held = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
        self.reference_recipe = Recipe()
        self.reference_settings = asdict(self.reference_recipe)

    def shorten(self) -> None:
        """For --quick."""
        self.reference_recipe = replace(self.reference_recipe, steps=20)
        self.held = self.held[:5000]

    def deal(self, seed: int):
        return windows_at_random(self.train, 64, seed)

    def loss(self, model, part: bool = False) -> tuple[float, int]:
        return validation_loss(model, self.held, 64)

    def more(self, model) -> dict:
        return {}

    def reference(self, steps: int | None = None, **changes):
        recipe = replace(self.reference_recipe, steps=steps or self.reference_recipe.steps, **changes)
        return race(recipe, self.vocab_size, 64, self.deal(1337), 1337)

    @property
    def reference_steps(self) -> int:
        return self.reference_recipe.steps


class Stories:
    """Chapter 03's shards of 50,000 stories."""

    name, context, ours, table_seeds = "stories", CONTEXT, NEAR, 1
    changed = ON_STORIES
    curve = (0.75,)
    tried, reference_tried = TRIED_ON_STORIES, REFERENCES_ON_STORIES

    def __init__(self, folder: Path | None):
        self.folder = folder or ROOT / "data/built/stories"
        manifest = ensure_corpus(self.folder)
        self.sha256, self.vocab_size, self.floor = (
            text_of(self.folder),
            manifest["vocab_size"],
            manifest["floor"],
        )
        self.tokenizer = BPETokenizer.load(self.folder / "tokenizer.json")
        self.asked = list(stories(300, seed=1))  # chapter 07's, another seed than the shards'
        self.understood = Floor.of((story.text for story in self.asked[:100]), self.tokenizer)
        self.reference_steps, self.eot = REFERENCE_STEPS, manifest["eot"]
        held = manifest["splits"]["val"]
        self.targets = held["tokens"] - len(held["shards"])  # all but the first of each shard
        self.reference_settings = {"recipe": "chapter 07", "steps": self.reference_steps}

    def shorten(self) -> None:
        self.reference_steps, self.asked = 20, self.asked[:10]

    def deal(self, seed: int):
        return story_batches(self.folder, seed)

    def loss(self, model, part: bool = False) -> tuple[float, int]:
        """part: of the first stories only, for the table; its rows are compared with each other."""
        if not part:
            return story_loss(model, self.folder), self.targets
        tokens = read_shard(self.folder / "val_000000.bin")[:PART]
        return evaluate(model, [tokens], self.eot), len(tokens) - 1

    def more(self, model) -> dict:
        """On stories of another seed: what the model pays above the floor by kind, in nats a story, and its right answers."""
        paid = token_losses(model, self.understood.ids, self.eot) - self.understood.nats
        sums = (
            np.bincount(self.understood.kinds, weights=paid, minlength=len(KINDS)) / self.understood.stories
        )
        answers = answer_accuracy(model, self.asked, self.tokenizer)
        return {"answers": answers, "excess": dict(zip(KINDS, sums.tolist()))}

    def reference(self, steps: int | None = None, **changes):
        return chapter_07(self.vocab_size, self.deal(0), steps or self.reference_steps, seed=0, **changes)


TRACK = {track.name: track for track in (Shakespeare, Stories)}


def runner(track, recipe: Recipe, seed: int):
    """A race of chapter 25 on this track."""
    return race(recipe, track.vocab_size, track.context, track.deal(seed), seed)


def finished(track, recipe: Recipe, seed: int) -> tuple[torch.nn.Module, float]:
    """The model and the seconds of a complete run."""
    *_, (model, seconds) = runner(track, recipe, seed)
    return model, seconds


def in_turns(track, ours: Recipe, seeds: list[int]) -> dict:
    """Losses and seconds of the reference and of our runs; before each of ours, an equal part of the reference."""
    slow, losses, times, parts, more = track.reference(), [], [], [0.0], {}
    for i, seed in enumerate(seeds):
        here, there = (track.reference_steps * n // len(seeds) for n in (i, i + 1))
        *_, (model, seconds) = islice(slow, there - here)
        parts.append(seconds)
        our_model, ours_took = finished(track, ours, seed)
        losses.append(track.loss(our_model)[0])
        more = more or track.more(our_model)  # of the first seed
        times.append(ours_took)
        print(
            f"reference {seconds:6.1f} s for {there} steps; ours, seed {seed}: {ours_took:5.1f} s, {losses[-1]:.4f}",
            flush=True,
        )
    reference_loss, targets = track.loss(model)
    record = {
        "seeds": seeds, "losses": losses, "seconds": times, "targets": targets, "reference_loss": reference_loss,
        "reference_seconds": seconds, "reference_parts": [b - a for a, b in pairwise(parts)],
    }  # fmt: skip
    if more:
        record |= {"more": more, "reference_more": track.more(model)}
    return record


def step_times(track, recipes: dict[str, Recipe], rounds: int) -> dict[str, float]:
    """Seconds of a step of each, and of the reference. In each round all make one step in turn, so that all see the same machine.

    The median of the first half of the rounds and that of the second, averaged: a batch may grow in between.
    """
    warm = 2
    runs = {"reference": track.reference(rounds + warm)}
    runs |= {name: runner(track, replace(r, steps=rounds + warm), 0) for name, r in recipes.items()}
    before, taken = dict.fromkeys(runs, 0.0), {name: [] for name in runs}
    for _ in range(rounds + warm):
        for name, run in runs.items():
            _, seconds = next(run)
            taken[name].append(seconds - before[name])
            before[name] = seconds
    half = (rounds + warm) // 2
    return {name: (median(times[warm:half]) + median(times[half:])) / 2 for name, times in taken.items()}


def table(track, ours: Recipe, seeds: range) -> dict:
    """Losses of the recipe with one thing changed, and of the recipe in shorter and longer runs; `more` of the first seed's models."""
    ours = replace(ours, compiled=False)  # the same numbers, and nothing to compile for each row

    def models(recipe: Recipe) -> list[torch.nn.Module]:
        return [finished(track, recipe, seed)[0] for seed in seeds]

    losses, more, curve = {}, {}, {}
    for name, changes in track.changed.items():
        trained = models(replace(ours, **changes))
        losses[name] = [track.loss(model, part=True)[0] for model in trained]
        more[name] = track.more(trained[0])
        print(f"{name:40}", *(f"{loss:.4f}" for loss in losses[name]), flush=True)
    for part in track.curve:
        steps = round(part * ours.steps)
        curve[steps] = [track.loss(model, part=True)[0] for model in models(replace(ours, steps=steps))]
        print(f"{steps} steps", *(f"{loss:.4f}" for loss in curve[steps]), flush=True)
    curve[ours.steps] = losses["nothing"]
    return {"seeds": list(seeds), "losses": losses, "more": more, "curve": curve}


def controls(track, ours: Recipe, quick: bool) -> dict:
    """The reference tuned in its rate, batch and length, and our recipe with fewer steps: losses on all that is held out."""
    theirs, found = [], []
    for steps, rate, batch in track.reference_tried:
        *_, (model, _) = track.reference(20 if quick else steps, rate=rate, rows=batch)
        theirs.append({"steps": steps, "rate": rate, "rows": batch, "loss": track.loss(model)[0]})
        print("reference", theirs[-1], flush=True)
    for changes, seeds in track.tried:
        recipe = replace(ours, **changes | ({"steps": 10} if quick else {}))
        trained = [finished(track, recipe, seed)[0] for seed in range(seeds)]
        losses = [track.loss(model)[0] for model in trained]
        found.append({"changes": changes, "losses": losses} | track.more(trained[0]))
        print("ours", changes, *(f"{loss:.4f}" for loss in losses), flush=True)
    return {"reference": theirs, "ours": found, "threads": torch.get_num_threads()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--track", choices=TRACK, default="shakespeare")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--only-table", action="store_true")
    parser.add_argument("--compile", action="store_true", help="time a step of the compiled model, too")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--text", type=Path, help="tinyshakespeare.txt, or the folder of the stories, if it is elsewhere"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--board", type=Path, help="the board that the record joins, if it keeps the rules; needs --out"
    )
    args = parser.parse_args()
    if args.board and not args.out:
        parser.error("--board needs --out, which keeps the record of a run that breaks a rule")
    track, rounds = TRACK[args.track](args.text), 20
    ours = track.ours
    if args.quick:
        track.shorten()
        ours, rounds = replace(ours, steps=10), 4
    old = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    command = shlex.join(["python", "bench/speedrun.py", *sys.argv[1:]])
    losses, tuned = old.get("table"), old.get("controls")
    if args.table or args.only_table:
        losses = table(track, ours, range(1 if args.quick else track.table_seeds)) | {"command": command}
        tuned = controls(track, ours, args.quick) | {"command": command, "date": f"{date.today()}"}
    if args.only_table:
        record = old["record"]
    else:
        record = in_turns(track, ours, list(range(args.seeds)))
        record |= {
            "track": track.name,
            "text": track.sha256,
            "context": track.context,
            "command": command,
            "date": f"{date.today()}",
            "device": f"CPU, {platform.machine()}, threads: {torch.get_num_threads()}",
            "torch": torch.__version__,
            "recipe": asdict(ours),
            "reference": track.reference_settings,
        }
    changed = track.changed if args.quick else track.changed | ONLY_FASTER
    changed = changed | {"compiled": {"compiled": True}} if args.compile else changed
    other = {
        name: replace(ours, **changes) for name, changes in changed.items() if not changes.keys() <= SAME_STEP
    }
    took = step_times(track, {"nothing": ours} | other, rounds)
    took |= {name: took["nothing"] for name in track.changed if name not in took}
    contents = {"record": record, "table": losses, "controls": tuned, "step_seconds": took}
    say(contents)
    keep(contents, args.out, None if args.only_table else args.board)


def keep(contents: dict, out: Path | None, board: Path | None) -> None:
    """Write the file, then let the record join the board. One that breaks a rule is in the file; the exit code is 1."""
    if out:
        save_json(out, contents)
    if not board:
        return
    try:
        place = put_on_board(contents["record"], board)
    except ValueError as error:
        sys.exit(f"{error}; it is kept in {out}")
    print(f"place {place} on {board.name}")


def say(contents: dict) -> None:
    """The race, whether it keeps the rules, and the table."""
    record = contents["record"]
    bar = TRACKS[record["track"]]["bar"]
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
