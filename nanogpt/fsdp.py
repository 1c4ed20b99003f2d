"""A model in shards by FSDP2; whole again for a file; its checkpoint for any number of ranks.

Exported from notebooks/21_sharding.ipynb.
"""

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
