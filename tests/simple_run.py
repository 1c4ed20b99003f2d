"""A run of chapter 17's trainer so small that a step takes milliseconds."""

from pathlib import Path

import numpy as np
import torch

from nanogpt.data import DocumentStream
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.shards import open_shards, read_shard
from nanogpt.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.trainer import Training

LR, STEPS, EVERY = 1e-2, 12, 4


def tell(folder: Path) -> BPETokenizer:
    """Write some stories as shards into a folder; their tokenizer."""
    tokenizer = BPETokenizer.train((story.text for story in stories(20, seed=3)), 280)
    ensure_corpus(folder, tokenizer, n=200)
    return tokenizer


def new_run(data: Path, tokenizer: BPETokenizer, folder: Path, dropout: float = 0.0) -> Training:
    """A run at its beginning, in `folder`, on the shards in `data`."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    shape = GPTConfig(
        block_size=16, vocab_size=tokenizer.vocab_size, n_layer=1, n_head=2, n_embd=16, dropout=dropout
    )
    model = GPT(shape, torch.Generator().manual_seed(0))
    held = np.concatenate([read_shard(path) for path in open_shards(data, "val")])[:200]
    parts = model, make_optimizer(model, LR), DocumentStream(open_shards(data, "train"), 2, 16, seed=0)
    return Training(folder, *parts, tokenizer, ([held], tokenizer.eot), STEPS, LR, EVERY)
