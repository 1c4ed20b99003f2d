# %% [markdown]
r"""
# 21 · Sharding: each rank keeps a part
"""

# %%
#| default_exp zero
#| doc zero: ZeRO by hand, its three stages, and what chapter 21 makes several processes do.
#| doc clip: One gradient norm for a model that may lie in parts on many ranks, and clipping by it.
#| doc fsdp: A model in shards by FSDP2; whole again for a file; its checkpoint for any number of ranks.
from course.notebook import checkpoint

# %%
#| export clip
import torch
import torch.distributed as dist
from torch import Tensor


# %%
#| export clip
def gradients_of(parameters) -> list[Tensor]:
    """Those that there are. One of which the ranks hold summands (a LayerNorm's in chapter 21b) is summed first."""
    parameters = [p for p in parameters if p.grad is not None]
    for p in parameters:
        if getattr(p.grad, "placements", None) != getattr(p, "placements", None):
            p.grad = p.grad.redistribute(placements=p.placements)
    return [p.grad for p in parameters]


def local_part(x: Tensor) -> tuple[Tensor, tuple]:
    """This rank's part of x, which shares its memory, and the process groups over which the others lie; () if x is whole."""
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


# %%
#| export clip
@torch.no_grad()
def scale_to(gradients, max_norm: float, norm: Tensor) -> None:
    """Shorten the gradients, whose global norm is `norm`, to max_norm, in place; no communication."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_([local_part(g)[0] for g in gradients], factor)


def clip_(parameters, max_norm: float) -> Tensor:
    """Clip by the global norm, in place; returns the norm before, on every rank, as a plain tensor.

    parameters: a module, or its parameters, whole or sharded in any way. All ranks call it.
    """
    parameters = parameters.parameters() if isinstance(parameters, torch.nn.Module) else parameters
    gradients = gradients_of(parameters)
    norm = global_norm(gradients)
    scale_to(gradients, max_norm, norm)
    return norm


# %%
#| export fsdp
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint as recomputed

from nanogpt.model import GPT
from nanogpt.precision import PRECISIONS


# %%
#| export fsdp
def policy(precision: str) -> MixedPrecisionPolicy:
    """Of chapter 10's word: weights are gathered and used in 16 bits, gradients averaged in float32, parts kept in it."""
    if precision == "bf16-masters":
        raise ValueError(
            "precision 'bf16-masters' is not for shards, which are float32 masters already: take bf16"
        )
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    return MixedPrecisionPolicy(param_dtype=PRECISIONS[precision], reduce_dtype=torch.float32)


def shard(
    model: GPT, mesh: DeviceMesh | None = None, precision: str = "float32", recompute: bool = False
) -> GPT:
    """FSDP2, in place: this rank keeps a part of each weight, gradient and moment; a block's weights are gathered for
    its use. Make the optimizer afterwards. wte stays tied to lm_head.

    mesh: of one dimension; default: all ranks. Without a process group the model stays whole. recompute: keep only
    each block's input for backward, and run the block again there (Chen et al. 2016).
    """
    options = {"mp_policy": policy(precision)}
    if recompute:
        for block in model.transformer.h:  # no wrapper module: names stay as they are
            block.forward = partial(recomputed, block.forward, use_reentrant=False)
    if mesh is None and not dist.is_initialized():
        return model
    device = next(model.parameters()).device.type
    options["mesh"] = mesh or init_device_mesh(device, (dist.get_world_size(),))
    # GPT returns logits as a view; that nobody may write into it is nothing new here
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for block in model.transformer.h:
        fully_shard(block, **options)
    return fully_shard(model, **options)


# %%
#| export fsdp
@torch.no_grad()
def full_state(model: GPT) -> dict[str, Tensor]:
    """All weights by name, whole, on the CPU, on every rank; the tied one once. All ranks call it."""
    whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in model.named_parameters()}
    return {name: p.detach().cpu() for name, p in whole.items()}


def unsharded(model: GPT) -> GPT:
    """A plain GPT on the CPU with the weights of a sharded one, for save_model and to_hf. All ranks call it."""
    with torch.device("meta"):
        plain = GPT(model.config)
    state = full_state(model)
    plain.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, assign=True)
    plain.lm_head.weight = plain.transformer.wte.weight  # tied
    return plain.train(model.training)


# %%
#| export fsdp
def state_of(model: GPT, optimizer) -> dict:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def save_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """Weights and optimizer into a folder; each rank writes its own parts. All ranks call it."""
    dcp.save(state_of(model, optimizer), checkpoint_id=folder, no_dist=not dist.is_initialized())


def load_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """What save_parts wrote, on any number of ranks, into a model and its optimizer, in place; one process as well."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


# %%
#| export
DRILLS = {}

# %%
checkpoint("21")
