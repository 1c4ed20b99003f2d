"""Tensor parallelism on the course's GPT by PyTorch's DTensor: split, with its vocabulary and its loss; and back.

Exported from notebooks/21b_tensor_parallel.ipynb.
"""

from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from nanogpt.drills.ddp import LR, fresh, masked
from nanogpt.gpt.model import GPT
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, gathered
from nanogpt.parallel.tensor_by_hand import check_heads, split_block, vocab_loss
from nanogpt.speed.work import saved_bytes


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


def by_rank(rows: Tensor, n: int) -> Tensor:
    """c_attn's rows, all of q, of k, of v, in the order in which each of n equal parts has its heads' q, k and v."""
    return rows.unflatten(0, (3, n, -1)).transpose(0, 1).flatten(0, 2)


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


def cutter(ranks: Ranks):
    """cut(x, dim): this rank's piece of a plain tensor, a copy."""
    return lambda x, dim: x.detach().chunk(ranks.size, dim)[ranks.rank].clone()


def memory(ranks: Ranks, data: str, rows: int = 4) -> dict:
    """Bytes that autograd saves in a block, without weights: whole, split, with sequence parallelism; and B × T × C."""
    found = {}
    for way in ("one process", "split", "sequence"):
        model, _, _ = fresh(Ranks(device=ranks.device), data)
        block, T = model.transformer.h[0], model.config.block_size
        if way != "one process":
            split_block(block, cutter(ranks), sequence=way == "sequence")
        T //= ranks.size if way == "sequence" else 1
        x = torch.randn(rows, T, model.config.n_embd, device=ranks.device, requires_grad=True)
        found[way] = saved_bytes(partial(block, x), exclude=block.parameters())
    return found | {"numbers": rows * model.config.block_size * model.config.n_embd}


WAYS = "one process", "by hand", "split", "sequence"


def in_way(model: GPT, way: str, ranks: Ranks) -> GPT:
    """The model in one of WAYS, in place, over all ranks."""
    if way == "by hand":
        for block in model.transformer.h:
            split_block(block, cutter(ranks))
    elif way != "one process":
        split(model, init_device_mesh(ranks.device.type, (ranks.size,)), way == "sequence")
    return model


def curve(ranks: Ranks, data: str, way: str, clip: float | None, steps: int) -> dict:
    """Losses and norms of a few steps, and of the first gradient the token table's."""
    model, _, stream = fresh(Ranks(device=ranks.device), data, 4)  # on all ranks the same rows
    optimizer = make_optimizer(in_way(model, way, ranks), LR)
    losses, norms, options = [], [], {"clip": clip}
    options["accept"] = lambda loss, norm: not norms.append(norm.item())
    for step in range(steps):
        batch = [tuple(map(torch.cat, zip(*masked(stream, row=2))))]  # in one piece
        losses.append(train_step(model, optimizer, batch, **options).item())
        if step == 0:
            gradient = plain(model, [("table", model.transformer.wte.weight.grad)])["table"]
    gain = plain(model, [("gain", model.transformer.ln_f.weight.detach())])["gain"].cpu()
    return {"losses": losses, "norms": norms, "gradient": gradient, "gain": gain}


def steps_in_all_ways(ranks: Ranks, data: str, steps: int = 6) -> dict:
    """The same steps in all WAYS, unclipped: losses, and how far the first gradient is from that of one process."""
    found = {way: curve(ranks, data, way, None, steps) for way in WAYS}
    one = found["one process"]["gradient"]
    apart = {way: ((told["gradient"] - one).norm() / one.norm()).item() for way, told in found.items()}
    return {way: {"losses": told["losses"], "gradient": apart[way]} for way, told in found.items()}


def clipped(ranks: Ranks, data: str, steps: int = 2) -> dict:
    """The same, clipped by what each rank takes for the norm: all ranks' norms in step 1, and how far ln_f's gains part."""
    found = {}
    for way in ("one process", "by hand", "split"):
        told = curve(ranks, data, way, 0.1, steps)
        gains = gathered(ranks, told["gain"])
        apart = max((gain - gains[0]).abs().max().item() for gain in gains)
        found[way] = {"norms": gathered(ranks, told["norms"][0]), "apart": apart}
    return found


DRILLS = {"memory": memory, "same": steps_in_all_ways, "clipped": clipped}
