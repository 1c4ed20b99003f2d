"""A model in shards by FSDP2: made part by part; complete again for a file; its checkpoint for any number of ranks.

Exported from notebooks/21_sharding.ipynb.
"""

import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint as recomputed

from nanogpt.model import GPT
from nanogpt.precision import PRECISIONS


def shard(model: GPT, mesh: DeviceMesh | None = None, precision="float32") -> GPT:
    """FSDP2, in place: this rank keeps a part of each tensor. Make the optimizer afterwards. wte stays lm_head.

    mesh: of one dimension, or copies × parts; by default all ranks; without a process group nothing happens. precision:
    chapter 10's word. Weights are gathered and used in it, and autocast is off; parts and mean gradients stay float32.
    """
    if precision not in PRECISIONS or precision == "bf16-masters":
        raise ValueError(
            f"precision={precision!r} is not for shards; take bf16, whose parts are float32 masters"
        )
    if mesh is None and not dist.is_initialized():
        return model
    mesh = mesh or init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=PRECISIONS[precision], reduce_dtype=torch.float32)
    # GPT returns logits as a view; that nobody may write into it is nothing new here
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for part in *model.transformer.h, model:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    if policy.param_dtype:  # autocast has nothing left to cast
        model.forward = torch.autocast(mesh.device_type, enabled=False)(model.forward)
    return model


def recompute_blocks(model: GPT) -> GPT:
    """Of each block keep its input alone, and run the block again in backward (Chen et al. 2016, §4); in place."""
    for block in model.transformer.h:
        block.forward = partial(recomputed, block.forward, use_reentrant=False)
    return model


@torch.no_grad()
def full_state(model: GPT) -> dict[str, Tensor]:
    """All weights by name, complete, on the CPU of rank 0, the tied one once; {} on the others. All ranks call it."""
    first, state = not dist.is_initialized() or dist.get_rank() == 0, {}
    for name, p in model.named_parameters():
        x = p.full_tensor() if isinstance(p, DTensor) else p
        if first:
            state[name] = x.detach().cpu()
    return state


def parts_of(model: GPT, optimizer) -> dict[str, Tensor]:
    """This rank's part of each weight and of its moments, by name. They share memory with model and optimizer."""
    parts = {}
    for name, p in model.named_parameters():
        if not optimizer.state[p]:
            empty = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            optimizer.state[p] = {"step": torch.zeros((), device=p.device), **empty}
        parts[name] = p.detach()
        parts |= {f"{name}.{what}": x for what, x in optimizer.state[p].items()}
    return parts


def save_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """Weights and moments into a folder; each rank writes its own parts. All ranks call it."""
    dcp.save(parts_of(model, optimizer), checkpoint_id=folder)


def load_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """What save_parts wrote, on any number of ranks, into a model and its AdamW, in place; one process as well."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process
        dcp.load(parts_of(model, optimizer), checkpoint_id=folder)


def unsharded(model: GPT) -> GPT | None:
    """On rank 0 a plain GPT on the CPU, for save_model and to_hf, with the weights of a sharded one; None elsewhere."""
    state = full_state(model)
    if not state:
        return None
    with torch.device("meta"):
        plain = GPT(model.config)
    plain.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, assign=True)
    plain.lm_head.weight = plain.transformer.wte.weight  # tied
    return plain.train(model.training)
