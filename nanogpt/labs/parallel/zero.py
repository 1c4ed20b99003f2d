"""ZeRO by hand: a part of each tensor, its three stages, and a count of what they move.

Exported from notebooks/21_sharding.ipynb.
"""

from collections import Counter
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as recomputed

# A parameter's weight, gradient, and what the optimizer keeps: two moments, and under 16 bits a master
BYTES = {"float32": (4, 4, 8), "bf16": (2, 2, 12), "Megatron": (2, 4, 12)}


def state_bytes(parameters: int, ranks: int, stage: int, recipe: str = "bf16") -> tuple[float, ...]:
    """Bytes a rank of weights, gradients and optimizer in a stage of ZeRO (Rajbhandari et al. 2020, §5.1 to 5.3).

    Stage 0 shares nothing, 1 what the optimizer keeps, 2 also the gradients, 3 also the weights. ValueError for any
    other stage, and for less than one rank. recipe: a key of BYTES.
    """
    if stage not in range(4) or ranks < 1:
        raise ValueError(f"stage={stage} must be 0 to 3 and ranks={ranks} at least 1")
    shared_from = 3, 2, 1  # weights, gradients, optimizer: the stage that shares them
    return tuple(parameters * b / (ranks if stage >= s else 1) for b, s in zip(BYTES[recipe], shared_from))


def pad_rows(x: Tensor, n: int) -> Tensor:
    """x with rows of zeros at its end, so that n ranks get equally many."""
    return torch.cat([x, x.new_zeros(-len(x) % n, *x.shape[1:])])


def my_part(x: Tensor, rank: int, n: int) -> nn.Parameter:
    """A rank's rows of x, to be trained: a copy."""
    return nn.Parameter(pad_rows(x.detach(), n).chunk(n)[rank].clone())


def gathered_rows(part: Tensor, rows: int) -> Tensor:
    """All ranks' parts as one tensor, without the padding."""
    x = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
    dist.all_gather_into_tensor(x, part)
    return x[:rows]


def mean_part(x: Tensor) -> Tensor:
    """This rank's rows of the mean of all ranks' x."""
    n = dist.get_world_size()
    x = pad_rows(x, n)
    part = x.new_empty(len(x) // n, *x.shape[1:])
    dist.reduce_scatter_tensor(part, x)
    return part / n


@torch.no_grad()
def keep_part(weight: Tensor, part: nn.Parameter) -> None:
    """Replace a gradient that is complete on this rank by this rank's part of the mean over all ranks."""
    mean = mean_part(weight.grad)
    part.grad = mean if part.grad is None else part.grad + mean  # micro-batches add up
    weight.grad = None


class PartsOptimizer:
    """ZeRO's stage 1 around an optimizer of the weights' parts (Rajbhandari et al. 2020, §5.1)."""

    def __init__(self, weights: list[Tensor], parts: list[nn.Parameter], optimizer):
        self.pairs, self.optimizer = list(zip(weights, parts)), optimizer
        self.zero_grad = optimizer.zero_grad

    @torch.no_grad()
    def step(self) -> None:
        """One update on all ranks. A weight whose .grad is None has a part that is reduced already (stage 2)."""
        for weight, part in self.pairs:
            if weight.grad is not None:
                keep_part(weight, part)
        self.optimizer.step()
        for weight, part in self.pairs:
            weight.copy_(gathered_rows(part, len(weight)))


class Moved(TorchDispatchMode):
    """Bytes by collective within the block: of the complete tensor, an all-reduce twice; single numbers do not count."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sizes = [t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor) and t.numel() > 1]
        if func.namespace == "c10d" and sizes and dist.get_world_size() > 1:  # one rank moves nothing
            name = func._schema.name.removeprefix("c10d::").strip("_")
            self.bytes[name] += max(sizes) * (2 if name == "allreduce" else 1)
        return func(*args, **(kwargs or {}))


def keep_parts_early(optimizer: PartsOptimizer) -> None:
    """From stage 1 to stage 2: reduce each gradient during backward, when it is complete (§5.2 of the paper)."""
    for weight, part in optimizer.pairs:
        weight.register_post_accumulate_grad_hook(partial(keep_part, part=part))


class GatheredRows(torch.autograd.Function):
    """Forward: a weight from all ranks' parts. Backward: this rank's part of its mean gradient."""

    @staticmethod
    def forward(ctx, part: Tensor, rows: int) -> Tensor:
        return gathered_rows(part, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return mean_part(grad), None


class InParts(nn.Module):
    """ZeRO's stage 3: a module of whose weights this rank keeps parts (Rajbhandari et al. 2020, §5.3).

    part_of(weight): this rank's part, to be trained. Gathered weights live as long as a call.
    """

    def __init__(self, module: nn.Module, part_of):
        super().__init__()
        self.module = [module]  # in a list, so that only the parts are parameters here
        weights = dict(module.named_parameters())  # a tied one comes once
        self.rows = {name: len(p) for name, p in weights.items()}
        self.parts = nn.ParameterList(part_of(p) for p in weights.values())
        for p in weights.values():
            p.data = p.data.new_empty(0)

    def call_gathered(self, *args):
        """The module's forward on weights that are gathered for this call."""
        weights = {}
        for (name, rows), part in zip(self.rows.items(), self.parts):
            weights[name] = GatheredRows.apply(part, rows)
        return functional_call(self.module[0], weights, args)

    def forward(self, *args):
        return recomputed(self.call_gathered, *args, use_reentrant=False)
