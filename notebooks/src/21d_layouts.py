# %% [markdown]
r"""
# 21d · Layouts: who holds what
"""

# %%
#| default_exp parallel
#| doc parallel: A model laid out over several processes by the configuration: copied, sharded, cut, and gathered again.
#| doc layout: The configuration's section `parallel`, and what is impossible in it, each in one line.
from course.notebook import checkpoint

# %%
#| export layout
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

# %%
#| export
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.distributed import Ranks, replicate
from nanogpt.layout import data_parallel
from nanogpt.model import GPT
from nanogpt.optim import decay_groups, make_optimizer


# %%
#| export layout
@dataclass(frozen=True)
class Parallel:
    """How processes share a run: dp × tp of them."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    dp: Annotated[int, Field(gt=0)] | None = None  # parts of the batch; null: as many as the processes allow
    shard: bool = False  # each of dp keeps a part of weights, gradients and moments: chapter 21
    tp: Annotated[int, Field(gt=0)] = 1  # processes among which each layer is cut: chapter 21b


def check_layout(parallel: Parallel, model, train) -> None:
    """ValueError, naming the keys, for what no number of processes can run."""
    heads, tp = model.n_head, parallel.tp
    if heads % tp:  # the width is a multiple of the heads, so it comes out even as well
        fit = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"parallel.tp={tp} must divide model.n_head={heads}, as {fit} do")
    if tp > 1 and model.dropout:
        raise ValueError(
            f"model.dropout={model.dropout} with parallel.tp={tp}: masks would differ; set it to 0"
        )
    if (parallel.shard or tp > 1) and train.dtype == "bf16-masters":
        cut = "parallel.shard=true" if parallel.shard else f"parallel.tp={tp}"
        raise ValueError(f"train.dtype=bf16-masters needs whole weights, not {cut}; take bf16")


def data_parallel(parallel: Parallel, processes: int) -> int:
    """Of so many processes, how many read different rows: processes / tp. ValueError where the numbers disagree."""
    dp, tp = parallel.dp, parallel.tp
    if dp is None and processes % tp == 0:
        return processes // tp
    if dp is None:
        raise ValueError(f"parallel.tp={tp} needs a multiple of {tp} processes; {processes} were started")
    if dp * tp != processes:
        started = (
            f"{processes} {'was' if processes == 1 else 'were'} started (torchrun --nproc-per-node {dp * tp})"
        )
        raise ValueError(f"parallel.dp={dp} × parallel.tp={tp} needs {dp * tp} processes; {started}")
    return dp


# %%
#| export
def lay_out(model: GPT, config, ranks: Ranks) -> tuple[nn.Module, Ranks]:
    """Lay the model out over the ranks as config.parallel says, in place; make the optimizer afterwards.

    Returns what train_step takes, and who reads different rows: of ranks that share a layer's work, one.
    """
    layout, dp = config.parallel, data_parallel(config.parallel, ranks.size)
    if ranks.size == 1 or (layout.tp == 1 and not layout.shard):
        return replicate(model, ranks), ranks
    from torch.distributed.device_mesh import init_device_mesh  # here: what follows takes a second to import

    from nanogpt.fsdp import shard
    from nanogpt.tensor import split

    shape = (1, dp, layout.tp) if layout.shard else (dp, 1, layout.tp)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("copies", "parts", "tp"))
    if layout.tp > 1:  # first, so that what is sharded is what a layer's rank has
        split(model, mesh["tp"])
    if dp > 1:
        shard(model, mesh["parts"] if layout.shard else mesh["copies", "parts"])
    rows = "parts" if layout.shard else "copies"
    return model, Ranks(mesh.get_local_rank(rows), ranks.local_rank, dp, ranks.device, mesh.get_group(rows))


# %%
#| export
def is_laid_out(model: nn.Module) -> bool:
    """Whether this rank has only parts of it."""
    return any(hasattr(p, "device_mesh") for p in model.parameters())  # of a DTensor, without its import


def cuts(model: GPT) -> int:
    """Among how many ranks a layer's heads are dealt."""
    return model.config.n_head // model.transformer.h[0].attn.n_head


def whole(model: GPT) -> GPT:
    """The model as one process has it, on the CPU of each rank; itself if it is not laid out. All ranks call it."""
    if not is_laid_out(model):
        return model
    from nanogpt.fsdp import unsharded
    from nanogpt.tensor import by_part

    gathered = unsharded(model)
    for block in gathered.transformer.h:
        for p in block.attn.c_attn.parameters():
            p.data = by_part(p.data, cuts(model))
    return gathered


# %%
#| export
def laid_out(model: GPT, name: str, x: Tensor) -> Tensor:
    """This rank's part of x, a weight of that name or a moment of it, which all ranks have whole."""
    from torch.distributed.tensor import distribute_tensor

    from nanogpt.tensor import by_rank

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


# %%
#| export
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


# %%
#| export
class LaidOutAdamW(LaidOutAdamW):
    def state_dict(self) -> dict:
        """As AdamW's of one process, on rank 0's CPU; on the others without moments. All ranks call it."""
        from nanogpt.tensor import plain

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
            for what, x in state_dict["state"].get(i, {}).items():
                kept = laid_out(self.model, name, x) if x.dim() else x.clone()
                self.state[self.model.get_parameter(name)][what] = kept


def optimizer_for(model: GPT, lr: float, precision: str, **options) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, or the same for a model that is laid out."""
    if is_laid_out(model):
        return LaidOutAdamW(model, lr, **options)
    return make_optimizer(model, lr, precision, **options)


# %%
checkpoint("21d")
