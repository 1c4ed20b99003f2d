"""A model laid out over processes as the configuration says: copied, in parts, cut; and whole again.

Exported from notebooks/21d_layouts.ipynb.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.gpt.model import GPT
from nanogpt.gpt.optim import decay_groups, make_optimizer
from nanogpt.parallel.distributed import Ranks, replicate
from nanogpt.parallel.layout import data_parallel


def lay_out(model: GPT, config, ranks: Ranks) -> tuple[nn.Module, Ranks]:
    """Lay the model out over the ranks as config.parallel says, in place; make the optimizer afterwards.

    Returns what train_step takes, and who reads different rows: of ranks that share a layer's work, one.
    """
    layout, dp = config.parallel, data_parallel(config.parallel, ranks.size)
    if ranks.size == 1 or (layout.tp == 1 and not layout.shard):
        return replicate(model, ranks), ranks
    from torch.distributed.device_mesh import init_device_mesh  # here: what follows takes a second to import

    from nanogpt.parallel.fsdp import shard
    from nanogpt.parallel.tensor import split

    shape = (1, dp, layout.tp) if layout.shard else (dp, 1, layout.tp)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("copies", "parts", "tp"))
    if layout.tp > 1:  # first, so that what is sharded is what a layer's rank has
        split(model, mesh["tp"])
    if dp > 1:
        shard(model, mesh["parts"] if layout.shard else mesh["copies", "parts"])
    rows = "parts" if layout.shard else "copies"
    return model, Ranks(mesh.get_local_rank(rows), ranks.local_rank, dp, ranks.device)


def is_laid_out(model: nn.Module) -> bool:
    """Whether this rank has only parts of it."""
    return any(hasattr(p, "device_mesh") for p in model.parameters())  # of a DTensor, without its import


def cuts(model: GPT) -> int:
    """Among how many ranks a layer's heads are dealt."""
    return model.config.n_head // model.transformer.h[0].attn.n_head


def whole_model(model: GPT) -> GPT:
    """The model as one process has it, on the CPU of each rank; itself if it is not laid out. All ranks call it."""
    if not is_laid_out(model):
        return model
    from nanogpt.parallel.fsdp import unsharded
    from nanogpt.parallel.tensor import by_part

    gathered = unsharded(model)
    for block in gathered.transformer.h:
        for p in block.attn.c_attn.parameters():
            p.data = by_part(p.data, cuts(model))
    return gathered


def laid_out(model: GPT, name: str, x: Tensor) -> Tensor:
    """This rank's part of x, a weight of that name or a moment of it, which all ranks have whole."""
    from torch.distributed.tensor import distribute_tensor

    from nanogpt.parallel.tensor import by_rank

    p = model.get_parameter(name)
    x = by_rank(x, cuts(model)) if ".c_attn." in name else x
    return distribute_tensor(x.to(p.device), p.device_mesh, p.placements, src_data_rank=None)


@torch.no_grad()
def fill(model: GPT, weights: GPT) -> None:
    """Take over another model's weights, which each rank has whole."""
    if not is_laid_out(model):
        model.load_state_dict(weights.state_dict())
        return
    for name, x in weights.named_parameters():
        model.get_parameter(name).copy_(laid_out(model, name, x.detach()))


class LaidOutAdamW(torch.optim.AdamW):
    """AdamW for a model that is laid out. For a checkpoint its moments are gathered, and so a run can go on in any layout."""

    def __init__(self, model: GPT, lr: float, *, betas, weight_decay: float):
        names = {p: name for name, p in model.named_parameters()}
        groups, apart = decay_groups(model, weight_decay), []
        self.model, self.named = model, [[names[p] for p in group["params"]] for group in groups]
        for group in groups:  # a fused update takes no tensors of two meshes
            meshes = dict.fromkeys(p.device_mesh for p in group["params"])
            apart += [{**group, "params": [p for p in group["params"] if p.device_mesh == m]} for m in meshes]
        self.decays = [group["weight_decay"] for group in groups]
        super().__init__(apart, lr=lr, betas=betas, fused=True)

    @property
    def numbered(self) -> list[str]:
        """The names of the parameters, in the order in which one process numbers them."""
        return [name for names in self.named for name in names]

    def state_dict(self) -> dict:
        """As AdamW's of one process, on rank 0's CPU; on the others without moments. All ranks call it."""
        from nanogpt.parallel.tensor import plain

        state, groups, first = {}, [], dist.get_rank() == 0
        for i, name in enumerate(self.numbered):
            moments = self.state[self.model.get_parameter(name)]
            found = {what: plain(self.model, [(name, x)])[name] for what, x in moments.items() if x.dim()}
            found |= {what: x for what, x in moments.items() if not x.dim()}  # how many updates
            state[i] = {what: x.cpu() for what, x in found.items()} if first else {}
        options = {what: value for what, value in self.param_groups[0].items() if what != "params"}
        for decay, names in zip(self.decays, self.named):
            begin = sum(len(group["params"]) for group in groups)
            numbers = list(range(begin, begin + len(names)))
            groups.append(options | {"weight_decay": decay, "params": numbers})
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict) -> None:
        """The moments of a checkpoint of any layout; the options stay this run's."""
        for i, name in enumerate(self.numbered):
            p = self.model.get_parameter(name)
            for what, x in state_dict["state"].get(i, {}).items():
                self.state[p][what] = laid_out(self.model, name, x) if x.dim() else x.to(p.device, copy=True)


def optimizer_for(
    model: GPT, lr: float, precision: str, compiled: bool = False, **options
) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, or the same for a model that is laid out."""
    if is_laid_out(model):
        return LaidOutAdamW(model, lr, **options)
    return make_optimizer(model, lr, precision, compiled=compiled, **options)
