"""The learning rate as a function of the step, and the optimizer of a run.

Exported from notebooks/07_training.ipynb, grown by notebooks/14_ladder.ipynb and notebooks/15_recipe.ipynb.
"""

import math

import torch

from nanogpt.gpt.model import GPT
from nanogpt.gpt.precision import MasterAdamW


def wsd(step: int, steps: int, *, warmup: int = 0, decay: float = 0.3, minimum: float = 0.0) -> float:
    """The factor of the learning rate: warm-up, then 1, and over the last `decay` of the steps linearly to the minimum."""
    left = min(max((steps - step) / max(1.0, decay * steps), 0.0), 1.0)
    return min(warm_up(step, warmup), minimum + (1 - minimum) * left)


def make_optimizer(
    model: GPT, lr, precision="float32", *, betas=(0.9, 0.98), weight_decay=0.01, fused=True, compiled=False
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where it exists: one kernel for all, the same numbers.

    Its means reach back 1 / (1 - beta) steps: 10 for the gradient, 50 for its square, which suits short runs (PyTorch's
    default is 1,000). Weight decay shrinks each weight of two dimensions by lr × weight_decay a step. compiled: fuses the
    update of bf16-masters.
    """
    groups = decay_groups(model, weight_decay)
    if precision == "bf16-masters":  # chapter 10b
        return MasterAdamW(groups, lr=lr, betas=betas, compiled=compiled)
    device = next(model.parameters()).device
    return torch.optim.AdamW(
        groups, lr=lr, betas=betas, fused=fused and device.type in ("cpu", "cuda", "mps")
    )


def warm_up(step: int, warmup: int) -> float:
    """1 / warmup in step 0, rising linearly to 1 in step warmup - 1."""
    return min(1.0, (step + 1) / max(1, warmup))


def cosine(step: int, steps: int, *, warmup: int = 0, minimum: float = 0.1) -> float:
    """The factor of the learning rate: warm-up, then half a cosine from 1 to the minimum (Loshchilov and Hutter 2017).

    The minimum is reached in step `steps`, the first after the run, and kept.
    """
    done = (step - warmup) / max(1, steps - warmup)
    falling = minimum + (1 - minimum) * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    return min(warm_up(step, warmup), falling)


def decay_groups(model: GPT, weight_decay: float) -> list[dict]:
    """Parameter groups for an optimizer, a tied weight once: matrices are decayed, biases and gains are not.

    Embeddings are matrices, too. Frozen parameters are in no group.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
