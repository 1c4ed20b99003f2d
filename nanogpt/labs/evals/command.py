"""The command `eval`: a checkpoint, some tasks, a line for each.

Exported from notebooks/18b_hellaswag.ipynb.
"""

import json
import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nanogpt.checkpoint import pick_checkpoint
from nanogpt.config import load_config
from nanogpt.device import pick_device
from nanogpt.evaluate import token_losses
from nanogpt.files import save_json
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.labs.evals.excess import Floor
from nanogpt.labs.evals.hellaswag import accuracy, default_items, load_items
from nanogpt.labs.evals.measures import bits_per_byte, mean_and_error, token_bytes
from nanogpt.sampling import load
from nanogpt.shards import open_shards, read_shard


def data_of(args: Namespace) -> str:
    """The folder of shards: the one that --data names, else the run's own, else the stories."""
    kept = pick_checkpoint(args.checkpoint).parent / "config.yaml"
    if args.data is None and kept.is_file():
        return load_config(kept).data.dir
    return args.data or "data/built/stories"


def read_again(args: Namespace, loss: float) -> dict[str, int]:
    """Append this reading of the test set to test_reads.jsonl beside the shards; how many there are now."""
    log = Path(args.data) / "test_reads.jsonl"
    with log.open("a", encoding="utf-8") as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"time": now, "checkpoint": str(args.checkpoint), "loss": loss}) + "\n")
    return {"test_readings": len(log.read_text(encoding="utf-8").splitlines())}


def val(model, tokenizer, args: Namespace) -> dict[str, float]:
    """Loss, its error, perplexity and bits per byte on the first --tokens of a split; a reading of test is recorded."""
    if args.split == "test" and not args.final:
        how = "with --final it is read, and the reading is recorded"
        raise ValueError(f"the test set is read once, when all choices are made; {how}")
    paths, parts, left = open_shards(args.data, args.split, tokenizer.fingerprint), [], args.tokens
    for path in paths:
        parts.append(read_shard(path)[:left])
        left -= len(parts[-1])
    tokens = np.concatenate(parts)
    nats = token_losses(model, tokens, tokenizer.eot, args.batch * 4, args.precision, progress=True)
    if not len(nats):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    loss, error = mean_and_error(nats, tokens, tokenizer.eot)
    result = {"loss": loss, "loss_stderr": error, "perplexity": math.exp(min(loss, 700)), "tokens": len(nats)}
    result["bits_per_byte"] = bits_per_byte(nats, tokens, token_bytes(tokenizer))
    return result | (read_again(args, loss) if args.split == "test" else {})


def excess(model, tokenizer, args: Namespace) -> dict[str, float]:
    """Nats a story above the floor, by kind of decision, on 200 stories that no shard of the course holds."""
    floor = Floor.of((story.text for story in stories(200, seed=1)), tokenizer)
    nats = token_losses(model, floor.ids, tokenizer.eot, args.batch * 4, args.precision, progress=True)
    parts = floor.excess(nats)
    return {"all": sum(parts.values())} | parts


TASKS = {
    "val": val,
    "hellaswag": lambda model, tokenizer, args: accuracy(
        model, load_items(args.items), tokenizer, batch=args.batch, precision=args.precision
    ),
    "answers": lambda model, tokenizer, args: answer_accuracy(model, stories(200, seed=1), tokenizer),
    "excess": excess,
}


HELP = """How good is a checkpoint? Of the course, or a Hugging Face GPT-2.

  python -m nanogpt eval --checkpoint data/built/model --tasks val,answers,excess
  python -m nanogpt eval --checkpoint openai-community/gpt2 --tasks hellaswag --precision bf16
"""
OPTIONS = {
    "checkpoint": (None, "a run's folder, or its best as runs/x/best; a model's folder; or a hub name"),
    "tasks": ("val", f"some of {','.join(TASKS)} (val)"),
    "data": (None, "folder of shards (the run's own, else data/built/stories)"),
    "split": ("val", "val, or test, which needs --final, too"),
    "tokens": (1_000_000, "of the split, at most its first so many (1,000,000)"),
    "items": (None, "HellaSwag's questions (default: the downloaded ones, or else the course's)"),
    "tokenizer": (None, "gpt2 or a tokenizer.json (default: the one beside the checkpoint)"),
    "batch": (8, "HellaSwag's questions at once; of other text four times as many rows (8)"),
    "precision": ("float32", "float32, tf32, bf16 or fp16, as in chapter 10 (float32)"),
    "device": (None, "cuda, mps or cpu (default: the best there is)"),
    "json": (None, "write the results to this file, too"),
}


def parser() -> ArgumentParser:
    """The options of `python -m nanogpt eval`."""
    parser = ArgumentParser(description=HELP, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true", help="read the test set, which is recorded beside it")
    for name, (default, what) in OPTIONS.items():
        kind = type(default) if default else str
        parser.add_argument(f"--{name}", required=name == "checkpoint", type=kind, default=default, help=what)
    return parser


def run(args: Namespace) -> None:
    """`python -m nanogpt eval`, its options parsed: a line for each result."""
    names = [name.strip() for name in args.tasks.split(",")]
    if wrong := [name for name in names if name not in TASKS]:
        raise ValueError(f"no task is named {wrong[0]!r}; choose from {', '.join(TASKS)}")
    if args.batch < 1 or args.tokens < 2:
        raise ValueError("--batch must be at least 1, --tokens at least 2")
    args.data = data_of(args)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    model, results = model.to(pick_device(args.device)).eval(), {}
    for name in names:
        of = f"{args.data}, {args.split}" if name == "val" else "stories that the course's shards do not hold"
        of = Path(args.items or default_items()).name if name == "hellaswag" else of
        print(f"{name} ({of})", flush=True)
        results[name] = TASKS[name](model, tokenizer, args)
        for key, value in results[name].items():
            print(
                f"  {key:18} {value:,}" if isinstance(value, int) else f"  {key:18} {value:.4f}", flush=True
            )
    if args.json:
        save_json(Path(args.json), {"checkpoint": str(args.checkpoint), "split": args.split, **results})
