"""The length of a model's gradient, and clipping by it.

Exported from notebooks/15_recipe.ipynb, grown by notebooks/21_sharding.ipynb.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def gradients_of(parameters) -> list[Tensor]:
    """Those that there are. One of which the ranks hold summands (a LayerNorm's in chapter 21b) is summed first."""
    parameters = [p for p in parameters if p.grad is not None]
    for p in parameters:
        if getattr(p.grad, "placements", None) != getattr(p, "placements", None):
            p.grad = p.grad.redistribute(placements=p.placements)
    return [p.grad for p in parameters]


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


def local_part(x: Tensor) -> tuple[Tensor, tuple]:
    """This rank's part of x, which shares its memory, and the groups of ranks that have the others; () if x is complete."""
    if not hasattr(x, "device_mesh"):  # no DTensor, whose class takes a second to import
        return x, ()
    cut = (dim for dim, place in enumerate(x.placements) if not place.is_replicate())
    return x.to_local(), tuple(x.device_mesh.get_group(dim) for dim in cut)
