"""Tensor parallelism on the course's GPT by PyTorch's DTensor: split, with its vocabulary and its loss; and back.

Exported from notebooks/21b_tensor_parallel.ipynb.
"""

from functools import partial

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from nanogpt.labs.parallel.tensor_by_hand import check_heads, vocab_loss
from nanogpt.model import GPT


def by_rank(rows: Tensor, n: int) -> Tensor:
    """c_attn's rows, all of q, of k, of v, in the order in which each of n equal parts has its heads' q, k and v."""
    return rows.unflatten(0, (3, n, -1)).transpose(0, 1).flatten(0, 2)


class Replicated(ParallelStyle):
    """A module whose weights every rank has, with the layouts of its input and its output, which are plain tensors."""

    def __init__(self, inputs=None, outputs=None):
        self.inputs, self.outputs = inputs or Replicate(), outputs or Replicate()

    def _apply(self, module, mesh: DeviceMesh):
        def enter(module, inputs, mesh):
            return DTensor.from_local(inputs[0], mesh, [self.inputs], run_check=False)

        def leave(module, output, mesh):
            return output.redistribute(placements=[self.outputs]).to_local()

        return distribute_module(module, mesh, None, enter, leave)


def by_part(rows: Tensor, n: int) -> Tensor:
    """What by_rank has done, undone."""
    return rows.unflatten(0, (n, 3, -1)).transpose(0, 1).flatten(0, 2)


def plain(model: GPT, named) -> dict[str, Tensor]:
    """Pairs of a parameter's name and a tensor laid out like it (a moment, say), whole and in GPT's order, on all ranks."""
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in named}
    n = model.config.n_head // model.transformer.h[0].attn.n_head
    return {name: by_part(x, n) if ".c_attn." in name else x for name, x in whole.items()}


def full_cut_state(model: GPT) -> dict[str, Tensor]:
    """The weights that a GPT of one process loads, on all ranks, which must all call: by name, a tied one once."""
    return plain(model, ((name, p.detach()) for name, p in model.named_parameters()))


def check_split(model: GPT, mesh: DeviceMesh) -> None:
    """ValueError, in one sentence, where `split` cannot be."""
    config, n = model.config, mesh.size()
    if mesh.ndim != 1:
        raise ValueError(f"split takes a mesh of one dimension, not {mesh.ndim}: pass mesh['tp']")
    check_heads(config.n_head, n)
    if config.vocab_rows <= (n - 1) * -(-config.vocab_rows // n):
        raise ValueError(
            f"vocab_size={config.vocab_size} leaves a rank of {n} without a token; set padded_vocab_size"
        )
    if config.dropout:
        raise ValueError(f"dropout={config.dropout}: the ranks' masks would not fit together; set dropout=0")


def split_head(model: GPT, mesh: DeviceMesh, x: Tensor, targets: Tensor | None = None):
    """GPT.head: each rank has its columns of the logits, which are gathered only where no loss is asked for."""
    config, logits = model.config, model.lm_head(model.transformer.ln_f(x))  # a DTensor
    if targets is None:
        return logits.full_tensor()[..., : config.vocab_size], None
    first = -(-config.vocab_rows // mesh.size()) * mesh.get_local_rank()  # the last rank may have fewer
    local = logits.to_local().flatten(0, 1)
    return logits, vocab_loss(local, targets.flatten(), first, mesh.get_group())


def check_length(n: int, model: GPT, inputs: tuple) -> None:
    """Before forward, with sequence: ValueError where T positions cannot be dealt."""
    if inputs[0].size(1) % n:
        raise ValueError(f"{inputs[0].size(1)} positions cannot be dealt to {n} ranks; take a multiple")


def split(model: GPT, mesh: DeviceMesh, sequence: bool = False) -> GPT:
    """Tensor parallelism over a mesh of one dimension, in place: heads, MLP and vocabulary are dealt to the ranks.

    sequence: between blocks each rank has T/n positions (Korthikanti et al. 2022, §4.2.2). All weights become DTensors,
    rank 0's. With targets, forward returns the logits as a DTensor. Make the optimizer afterwards. ValueError: check_split.
    """
    check_split(model, mesh)
    if (n := mesh.size()) == 1:
        return model
    x, parts = Shard(1) if sequence else Replicate(), model.transformer
    column, row = partial(ColwiseParallel, input_layouts=x), partial(RowwiseParallel, output_layouts=x)
    plan = {"ln_*": Replicated(x, x), "attn.c_attn": column(), "attn.c_proj": row()}
    for block in parts.h:
        for p in block.attn.c_attn.parameters():
            p.data = by_rank(p.data, n)
        block.attn.n_head //= n
        parallelize_module(block, mesh, plan | {"mlp.c_fc": column(), "mlp.c_proj": row()})
    ends = {"wte": row(input_layouts=Replicate()), "wpe": Replicated(outputs=Shard(0) if sequence else None)}
    parallelize_module(parts, mesh, ends | {"ln_f": Replicated(x, x)})
    parallelize_module(model.lm_head, mesh, column(use_local_output=False))
    model.lm_head.weight = parts.wte.weight  # tied
    model.head = partial(split_head, model, mesh)
    model.register_forward_pre_hook(partial(check_length, n if sequence else 1))
    return model
