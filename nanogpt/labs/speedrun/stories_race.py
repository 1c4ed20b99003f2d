"""The race on the stories: its batches, its loss, chapter 07's recipe as the reference, and our recipe.

Exported from notebooks/25b_near_the_floor.ipynb.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.speedrun.speedrun import Recipe
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import wsd
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.training import scale_init, train_step

CONTEXT = 128  # ids; the longest story has fewer


def story_loss(model: GPT, folder: Path) -> float:
    """The mean loss in nats over all held-out stories, each read from its beginning."""
    eot = load_manifest(folder)["eot"]
    shards = [read_shard(path) for path in open_shards(folder, "val")]
    return evaluate(model, shards, eot)


def story_batches(folder: Path, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A function that takes a number of rows and gives x and y, (rows, CONTEXT): each row begins with a training story."""
    stream = DocumentStream(open_shards(folder, "train"), 1, CONTEXT, seed=seed)

    def deal(rows: int) -> tuple[Tensor, Tensor]:
        stream.B = rows
        return stream.next_batch()

    return deal


def chapter_07(vocab_size: int, deal, steps: int, seed: int, rate: float = 5e-4, rows: int = 4) -> Iterator:
    """Chapter 07's training as a race: after each step the model, and the seconds that all steps have taken.

    deal(rows) gives x and y. The model is drawn from a generator with this seed. The seconds are those of rates,
    batches and steps, as in chapter 25's race, and not the caller's. Another rate or batch is no longer chapter 07's.
    """
    config = GPTConfig(CONTEXT, vocab_size, n_layer=2, n_head=4, n_embd=128)
    model = scale_init(GPT(config, torch.Generator().manual_seed(seed)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    seconds = 0.0
    for step in range(steps):
        start = perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate * wsd(step, steps, decay=0.5)
        train_step(model, optimizer, [deal(rows)])
        seconds += perf_counter() - start
        yield model, seconds


NEAR = Recipe(
    n_layer=2, n_embd=128, relu_squared=True, rotary=True, normalized=True, recent=3, table_rows=4096, scaled=True,
    muon=True, rate=2e-2, clip=None, decay=1.0, warmup=0, steps=450, rows=12,
)  # fmt: skip


def text_of(folder: Path) -> str:
    """One SHA-256 that names the stories of train and val, with their tokenizer."""
    splits = load_manifest(folder)["splits"]
    names = [shard["sha256"] for split in ("train", "val") for shard in splits[split]["shards"]]
    return hashlib.sha256(" ".join(names).encode()).hexdigest()
