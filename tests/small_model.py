"""A GPT so small that a step takes milliseconds, and what it reads: for the tests of chapters 07 to 19."""

from dataclasses import replace

import numpy as np
import torch

from nanogpt.model import GPT, GPTConfig
from nanogpt.training import scale_init

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    return scale_init(GPT(replace(CONFIG, **changes), generator=torch.Generator().manual_seed(seed)))


def one_batch(B=2, T=16, seed=0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 40, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1], ids[:, 1:]


def documents(lengths, seed=0) -> np.ndarray:
    """A shard's tokens: documents of so many random ids behind their EOT."""
    rng = np.random.default_rng(seed)
    return np.concatenate([[EOT, *rng.integers(0, EOT, n)] for n in lengths]).astype(np.uint16)


def updated(batches, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and all weights after one step of plain gradient descent, so that a weight moves by its gradient."""
    from nanogpt.training import train_step  # here: chapter 07 has none

    model = new_model()
    loss = train_step(model, torch.optim.SGD(model.parameters(), lr=1.0), batches, **options)
    return loss, torch.cat([p.detach().flatten() for p in model.parameters()])
