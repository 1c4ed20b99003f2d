"""The learning rate as a function of the step, and the optimizer of a run.

Exported from notebooks/07_training.ipynb, grown by notebooks/14_ladder.ipynb, notebooks/15_recipe.ipynb and
notebooks/21_sharding.ipynb.
"""

import math
from importlib import import_module

import torch
import torch.distributed as dist
from torch import Tensor

from nanogpt.model import GPT


def warm_up(step: int, warmup: int) -> float:
    """1 / warmup in step 0, rising linearly to 1 in step warmup - 1, and 1 from there on. Always 1 if warmup is 0."""
    return min(1.0, (step + 1) / max(1, warmup))


def wsd(step: int, steps: int, *, warmup: int = 0, decay: float = 0.3, minimum: float = 0.0) -> float:
    """The factor of the learning rate: warm-up, then 1, and over the last `decay` of the steps linearly to the minimum."""
    left = min(max((steps - step) / max(1.0, decay * steps), 0.0), 1.0)
    return min(warm_up(step, warmup), minimum + (1 - minimum) * left)


MASTERS = "nanogpt.labs.ladder.masters"  # chapter 10b; imported where it is asked for


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


def make_optimizer(
    model: GPT, lr, precision="float32", *, betas=(0.9, 0.98), weight_decay=0.01, fused=True, compiled=False
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where it exists: one kernel for all, the same numbers.

    Its means reach back 1 / (1 - beta) steps: 10 for the gradient, 50 for its square, which suits short runs (PyTorch's
    default is 1,000). Weight decay shrinks each weight of two dimensions by lr × weight_decay a step. compiled: bf16-masters fused.
    """
    groups = decay_groups(model, weight_decay)
    if precision == "bf16-masters":  # chapter 10b
        return import_module(MASTERS).MasterAdamW(groups, lr=lr, betas=betas, compiled=compiled)
    device = next(model.parameters()).device
    return torch.optim.AdamW(
        groups, lr=lr, betas=betas, fused=fused and device.type in ("cpu", "cuda", "mps")
    )


def cosine(step: int, steps: int, *, warmup: int = 0, minimum: float = 0.1) -> float:
    """The factor of the rate: warm-up, then half a cosine from 1 to the minimum in step `steps` (Loshchilov and Hutter 2017)."""
    done = (step - warmup) / max(1, steps - warmup)
    falling = minimum + (1 - minimum) * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    return min(warm_up(step, warmup), falling)


def gradients_of(parameters) -> list[Tensor]:
    """Those that there are. One of which the ranks hold summands (a LayerNorm's in chapter 21b) is summed first."""
    parameters = [p for p in parameters if p.grad is not None]
    for p in parameters:
        if getattr(p.grad, "placements", None) != getattr(p, "placements", None):
            p.grad = p.grad.redistribute(placements=p.placements)
    return [p.grad for p in parameters]


def local_part(x: Tensor) -> tuple[Tensor, tuple]:
    """This rank's part of x, which shares its memory, and the groups of ranks that have the others; () if x is complete."""
    if not hasattr(x, "device_mesh"):  # no DTensor, whose class takes a second to import
        return x, ()
    cut = (dim for dim, place in enumerate(x.placements) if not place.is_replicate())
    return x.to_local(), tuple(x.device_mesh.get_group(dim) for dim in cut)


@torch.no_grad()
def global_norm(gradients) -> Tensor:
    """The norm of all gradients as one vector: on every rank the same number, as a plain tensor.

    Gradients may be plain, or DTensors on different meshes: FSDP's, tensor parallelism's and both together.
    """
    kinds, norms = {}, []
    for part, groups in map(local_part, gradients):
        kinds.setdefault(groups, []).append(part)
    for groups, parts in kinds.items():
        norm = torch.nn.utils.get_total_norm(parts)
        if groups:  # squares add up over the ranks, norms do not
            square = norm.float().square()
            for group in groups:
                dist.all_reduce(square, group=group)
            norm = square.sqrt()
        norms.append(norm)
    return norms[0] if len(norms) == 1 else torch.nn.utils.get_total_norm(norms)


@torch.no_grad()
def scale_to(gradients, max_norm: float, norm: Tensor) -> None:
    """Shorten the gradients, whose global norm is `norm`, to max_norm, in place; no communication."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_([local_part(g)[0] for g in gradients], factor)
