"""A run of chapter 17's trainer so small that a step takes milliseconds, in the form that the trainer has: built by hand, or from a
configuration since chapter 17d."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from nanogpt import trainer
from nanogpt.data import DocumentStream
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.metrics import read_metrics
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.shards import open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.trainer import Training

LR, STEPS, EVERY = 1e-2, 12, 4
TIMES = "ms", "tokens_per_s", "mfu"


def tell(folder: Path) -> BPETokenizer:
    """Write some stories as shards into a folder; their tokenizer."""
    tokenizer = BPETokenizer.train((story.text for story in stories(20, seed=3)), 280)
    ensure_corpus(folder, tokenizer, n=200)
    return tokenizer


def new_run(data: Path, tokenizer: BPETokenizer, folder: Path, dropout: float = 0.0) -> Training:
    """A run at its beginning, in `folder`, on the shards in `data`."""
    folder.mkdir(exist_ok=True)
    if hasattr(trainer, "build_run"):
        return from_configuration(data, folder, dropout)
    torch.manual_seed(0)
    shape = GPTConfig(
        block_size=16, vocab_size=tokenizer.vocab_size, n_layer=1, n_head=2, n_embd=16, dropout=dropout
    )
    model = GPT(shape, torch.Generator().manual_seed(0))
    held = np.concatenate([read_shard(path) for path in open_shards(data, "val")])[:200]
    parts = model, make_optimizer(model, LR), DocumentStream(open_shards(data, "train"), 2, 16, seed=0)
    return Training(folder, *parts, tokenizer, ([held], tokenizer.eot), STEPS, LR, EVERY)


def from_configuration(data: Path, folder: Path, dropout: float) -> Training:
    section = {each.name: each.default_factory for each in fields(trainer.Config)}
    parts = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "dropout": dropout},
        "data": {"dir": str(data)},
        "optim": {"lr": LR},
        "train": {"max_steps": STEPS, "batch_tokens": 32, "micro_batch": 2},
        "eval": {"every": EVERY, "tokens": 200, "sample_every": EVERY},
        "run": {"dir": str(folder), "device": "cpu", "checkpoint_every": 0, "log_every": 1000},
    }
    return trainer.build_run(trainer.Config(**{name: section[name](**keys) for name, keys in parts.items()}))


def lines(folder: Path) -> list[dict]:
    """What metrics.jsonl says of each step, times aside."""
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read_metrics(folder)]
