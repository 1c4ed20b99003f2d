# %% [markdown]
r"""
# 21b · Tensor parallel: one layer on several GPUs
"""

# %%
#| default_exp tensor
#| doc tensor: Tensor parallelism on the course's GPT by PyTorch's DTensor: split, with its vocabulary and its loss; and back.
#| doc tensor_by_hand: Tensor parallelism on plain tensors: conjugate operators, split linear layers, a split vocabulary.

from course.notebook import checkpoint
from nanogpt.corpus import ensure_corpus

DATA, OUT = "../data/built/stories", "../data/built/tensor.json"
N = 2  # ranks inside this kernel
_ = ensure_corpus(DATA)

# %%
#| export tensor_by_hand
import torch
import torch.distributed as dist
from torch import Tensor

# %%
#| export
from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from nanogpt.model import GPT


# %%
#| export tensor_by_hand
class Spread(torch.autograd.Function):
    """Megatron's f: x as it is, its gradient summed over the ranks (Shoeybi et al. 2019, §3)."""

    @staticmethod
    def forward(ctx, x: Tensor, group=None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Summed(torch.autograd.Function):
    """Megatron's g: x summed over the ranks, its gradient as it is."""

    @staticmethod
    def forward(ctx, x: Tensor, group=None) -> Tensor:
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


# %%
#| export tensor_by_hand
def mine(ids: Tensor, first, rows) -> tuple[Tensor, Tensor]:
    """Which ids are among this rank's `rows` rows from `first` on, and their place there; 0 for the others."""
    held = (ids >= first) & (ids < first + rows)
    return held, torch.where(held, ids - first, 0)


def vocab_loss(logits: Tensor, targets: Tensor, first, group=None) -> Tensor:
    """Mean cross-entropy in nats, from this rank's columns of the logits (N, V/n), of which it has those from `first` on.

    targets: (N,), all of them on every rank; -100 does not count. Three all-reduces of N numbers.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    logits = logits - highest[:, None]  # (N, V/n), none above 0
    held, place = mine(targets, first, logits.size(-1))
    score = torch.where(held, logits.gather(-1, place[:, None]).squeeze(-1), 0.0)
    score, total = Summed.apply(score, group), Summed.apply(logits.exp().sum(-1), group)
    counts = targets != -100
    return torch.where(counts, total.log() - score, 0.0).sum() / counts.sum()


# %%
#| export
class Whole(ParallelStyle):
    """A module whose weights every rank has, with the layouts of its input and its output, which are plain tensors."""

    def __init__(self, inputs=None, outputs=None):
        self.inputs, self.outputs = inputs or Replicate(), outputs or Replicate()

    def _apply(self, module, mesh: DeviceMesh):
        def enter(module, inputs, mesh):
            return DTensor.from_local(inputs[0], mesh, [self.inputs], run_check=False)

        def leave(module, output, mesh):
            return output.redistribute(placements=[self.outputs]).to_local()

        return distribute_module(module, mesh, None, enter, leave)


# %%
#| export
def by_rank(rows: Tensor, n: int) -> Tensor:
    """c_attn's rows, all of q, all of k, all of v, in the order in which n ranks' equal parts have their heads' q, k, v."""
    return rows.unflatten(0, (3, n, -1)).transpose(0, 1).flatten(0, 2)


def by_part(rows: Tensor, n: int) -> Tensor:
    """What by_rank has done, undone."""
    return rows.unflatten(0, (n, 3, -1)).transpose(0, 1).flatten(0, 2)


def plain(model: GPT, named) -> dict[str, Tensor]:
    """Pairs of a parameter's name and a tensor laid out like it (a moment, say), whole and in GPT's order, on all ranks."""
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in named}
    n = model.config.n_head // model.transformer.h[0].attn.n_head
    return {name: by_part(x, n) if ".c_attn." in name else x for name, x in whole.items()}


def full_state(model: GPT) -> dict[str, Tensor]:
    """The weights that a GPT of one process loads, on all ranks, which must all call: by name, a tied one once."""
    return plain(model, ((name, p.detach()) for name, p in model.named_parameters()))


# %%
#| export
def check_split(model: GPT, mesh: DeviceMesh, sequence: bool) -> None:
    """ValueError, in one sentence, where `split` cannot be."""
    config, n = model.config, mesh.size()
    if mesh.ndim != 1:
        raise ValueError(f"split takes a mesh of one dimension, not {mesh.ndim}: pass mesh['tp']")
    if config.n_head % n:  # if it divides, so do n_embd = n_head × d and 4 n_embd
        raise ValueError(f"n_head={config.n_head} heads cannot be dealt to {n} ranks; take a divisor")
    if config.dropout:
        raise ValueError(f"dropout={config.dropout}: the ranks' masks would not fit together; set dropout=0")
    if sequence and config.block_size % n:
        raise ValueError(
            f"block_size={config.block_size} positions cannot be dealt to {n} ranks; take a multiple"
        )


# %%
#| export
def split_head(model: GPT, mesh: DeviceMesh, x: Tensor, targets: Tensor | None = None):
    """GPT.head: each rank has its columns of the logits, which are gathered only where no loss is asked for."""
    config, logits = model.config, model.lm_head(model.transformer.ln_f(x))  # a DTensor
    if targets is None:
        return logits.full_tensor()[..., : config.vocab_size], None
    first = -(-config.vocab_rows // mesh.size()) * mesh.get_local_rank()  # the last rank may have fewer
    local = logits.to_local().flatten(0, 1)
    return logits, vocab_loss(local, targets.flatten(), first, mesh.get_group())


# %%
#| export
def split(model: GPT, mesh: DeviceMesh, sequence: bool = False) -> GPT:
    """Tensor parallelism over a mesh of one dimension, in place: heads, MLP and vocabulary are dealt to the ranks.

    sequence: between blocks each rank has T/n positions (Korthikanti et al. 2022, §4.2.2). All weights become DTensors,
    rank 0's. With targets, forward returns the logits as a DTensor. ValueError: see check_split.
    """
    check_split(model, mesh, sequence)
    if mesh.size() == 1:
        return model
    x, parts = Shard(1) if sequence else Replicate(), model.transformer
    enter, leave = partial(ColwiseParallel, input_layouts=x), partial(RowwiseParallel, output_layouts=x)
    block = {"ln_*": Whole(x, x), "attn.c_attn": enter(), "mlp.c_fc": enter(), "*.c_proj": leave()}
    for part in parts.h:
        with torch.no_grad():
            for p in part.attn.c_attn.parameters():
                p.copy_(by_rank(p, mesh.size()))
        part.attn.n_head //= mesh.size()
        parallelize_module(part, mesh, block)
    ends = {"wte": leave(input_layouts=Replicate()), "wpe": Whole(outputs=Shard(0) if sequence else None)}
    parallelize_module(parts, mesh, ends | {"ln_f": Whole(x, x)})
    parallelize_module(model.lm_head, mesh, enter(use_local_output=False))
    model.lm_head.weight = parts.wte.weight  # tied
    model.head = partial(split_head, model, mesh)
    return model


# %%
checkpoint("21b")
