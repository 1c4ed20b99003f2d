"""The training step and the loop around it.

Exported from notebooks/07_training.ipynb.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from nanogpt.model import GPT
from nanogpt.optim import decayed


@torch.no_grad()
def scale_init(model: GPT) -> GPT:
    """Scale all matrices of a new model by √(768 / n_embd), so that 0.02 means what it means in GPT-2 small.

    A matrix with standard deviation σ gives signals of size σ√n_embd (Glorot and Bengio 2010, §4.2). Returns the model.
    """
    for p in model.parameters():
        if p.dim() == 2:
            p *= math.sqrt(768 / model.config.n_embd)
    return model


def train_step(model: GPT, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, dtype=None) -> float:
    """One step on a batch x, y, both (B, T); the loss before it, in nats per token. dtype: autocast's, or none."""
    with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
        _, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(
    model: GPT,
    stream,
    steps: int,
    lr: float,
    *,
    decay: float = 0.3,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    on_step: Callable[[int, float], object] | None = None,
) -> list[float]:
    """Train in place with AdamW (Loshchilov and Hutter 2019) on `steps` batches; the loss of each, in nats per token.

    stream: has next_batch() -> (x, y), both (B, T), on the model's device. decay: see `decayed`. generator seeds
    dropout; nothing else is random. dtype: autocast's, or none. on_step(step, loss) is called after each step.
    FloatingPointError once a loss is not finite.
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    seed = int(torch.randint(2**31, (), generator=generator or torch.Generator()))
    losses: list[float] = []
    model.train()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for step in tqdm(range(steps), unit="step", disable=None):
            torch.manual_seed(seed + step)  # dropout depends on the step, not on what ran before
            optimizer.param_groups[0]["lr"] = lr * decayed(step, steps, decay)
            losses.append(train_step(model, optimizer, *stream.next_batch(), dtype))
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(f"the loss is {losses[-1]} at step {step}; lower lr={lr}")
            if on_step:
                on_step(step, losses[-1])
    return losses
