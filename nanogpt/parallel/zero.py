"""ZeRO by hand, its three stages, and what chapter 21 makes several processes do.

Exported from notebooks/21_sharding.ipynb.
"""

from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as recomputed

from nanogpt.gpt.model import GPT

# A parameter's weight, gradient, and what the optimizer keeps: two moments, and under 16 bits a master
BYTES = {"float32": (4, 4, 8), "bf16": (2, 2, 12), "Megatron": (2, 4, 12)}


def state_bytes(parameters: int, ranks: int, stage: int, recipe: str = "bf16") -> tuple[float, ...]:
    """Bytes a rank of weights, gradients and optimizer in a stage of ZeRO (Rajbhandari et al. 2020, §5.1 to 5.3).

    Stage 0 shares nothing, 1 the optimizer's, 2 the gradients too, 3 all.
    """
    if stage not in range(4) or ranks < 1:
        raise ValueError(f"stage={stage} must be 0 to 3 and ranks={ranks} at least 1")
    shared_from = 3, 2, 1  # weights, gradients, optimizer: the stage that shares them
    return tuple(parameters * b / (ranks if stage >= s else 1) for b, s in zip(BYTES[recipe], shared_from))


def padded(x: Tensor, n: int) -> Tensor:
    """x with rows of zeros at its end, so that n ranks get equally many."""
    return torch.cat([x, x.new_zeros(-len(x) % n, *x.shape[1:])])


def my_part(x: Tensor, rank: int, n: int) -> nn.Parameter:
    """A rank's rows of x, to be trained: a copy."""
    return nn.Parameter(padded(x.detach(), n).chunk(n)[rank].clone())


def gathered_rows(part: Tensor, rows: int) -> Tensor:
    """All ranks' parts as one tensor, without the padding."""
    x = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
    dist.all_gather_into_tensor(x, part)
    return x[:rows]


def mean_part(x: Tensor) -> Tensor:
    """This rank's rows of the mean of all ranks' x."""
    x = padded(x, n := dist.get_world_size())
    part = x.new_empty(len(x) // n, *x.shape[1:])
    dist.reduce_scatter_tensor(part, x)
    return part / n


@torch.no_grad()
def keep_part(weight: Tensor, part: nn.Parameter) -> None:
    """Of a gradient that is complete on this rank, only its part of the mean over all ranks remains."""
    mean = mean_part(weight.grad)
    part.grad = mean if part.grad is None else part.grad + mean  # micro-batches add up
    weight.grad = None


class PartsOptimizer:
    """ZeRO's stages 1 and 2 around an optimizer of the weights' parts (Rajbhandari et al. 2020, §5.1 and 5.2)."""

    def __init__(self, weights: list[Tensor], parts: list[nn.Parameter], optimizer, stage: int):
        self.pairs, self.optimizer, self.stage = list(zip(weights, parts)), optimizer, stage
        self.zero_grad = optimizer.zero_grad
        for weight, part in self.pairs if stage == 2 else ():
            weight.register_post_accumulate_grad_hook(lambda weight, part=part: keep_part(weight, part))

    @torch.no_grad()
    def step(self) -> None:
        for weight, part in self.pairs if self.stage == 1 else ():
            keep_part(weight, part)
        self.optimizer.step()
        for weight, part in self.pairs:
            weight.copy_(gathered_rows(part, len(weight)))


class GatheredRows(torch.autograd.Function):
    """Forward: a weight from all ranks' parts. Backward: of its gradient this rank's part of the mean."""

    @staticmethod
    def forward(ctx, part: Tensor, rows: int) -> Tensor:
        return gathered_rows(part, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return mean_part(grad), None


def use(module: nn.Module, parts: dict[str, tuple[nn.Parameter, int]], *args):
    """The module's forward on weights gathered for this call: name -> this rank's part, rows of the whole."""
    return functional_call(module, {name: GatheredRows.apply(*each) for name, each in parts.items()}, args)


class Moved(TorchDispatchMode):
    """Bytes by collective within the block: of the whole tensor, an all-reduce twice; single numbers are not counted."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sizes = [t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor) and t.numel() > 1]
        if func.namespace == "c10d" and sizes:
            name = func._schema.name.removeprefix("c10d::").strip("_")
            self.bytes[name] += max(sizes) * (2 if name == "allreduce" else 1)
        return func(*args, **(kwargs or {}))


class InParts(nn.Module):
    """ZeRO's stage 3 (Rajbhandari et al. 2020, §5.3): a module of whose weights this rank keeps parts.

    free: gathered weights live as long as the call, and backward makes it again.
    """

    def __init__(self, module: nn.Module, rank: int, n: int, free: bool = True):
        super().__init__()
        self.module, self.free = (
            [module],
            free,
        )  # in a list: its weights are not this module's, their parts are
        self.inner = nn.ModuleList(m for m in module.modules() if isinstance(m, InParts))
        inside = {id(p) for p in self.inner.parameters()}
        weights = {name: p for name, p in module.named_parameters() if id(p) not in inside}  # a tied one once
        self.rows = {name: len(p) for name, p in weights.items()}
        self.parts = nn.ParameterList(my_part(p, rank, n) for p in weights.values())
        for p in weights.values():
            p.data = p.data.new_empty(0)

    def forward(self, *args):
        parts = {name: (part, rows) for (name, rows), part in zip(self.rows.items(), self.parts)}
        call = use, self.module[0], parts, *args
        return recomputed(*call, use_reentrant=False) if self.free else use(*call[1:])


def in_parts(model: GPT, rank: int, n: int) -> nn.Module:
    """A GPT in stage 3: its blocks, then the root."""
    for i, block in enumerate(model.transformer.h):
        model.transformer.h[i] = InParts(block, rank, n)
    return InParts(model, rank, n, free=False)
