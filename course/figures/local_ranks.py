"""Several ranks inside one kernel: PyTorch's local-tensor mode over its fake process group; or one of any number.

Both are private to PyTorch; this is the one place that uses them. They were tried with 2.11 and 2.13; 2.9 has no such mode.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.paths import CourseError


class Counted(TorchDispatchMode):
    """The collectives within the block: name, and the bytes that a rank puts in."""

    def __init__(self, calls: list[tuple[str, int]]):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t.__name__ == "DTensor" for t in types):
            return NotImplemented  # it comes again, as what is done to local tensors
        name = func._schema.name.partition("::")[2].strip("_").replace("all_reduce", "allreduce")
        if func.namespace in ("c10d", "_c10d_functional") and not name.startswith(("wait", "wrap")):
            tensors = [[x for x in tree_leaves(arg) if isinstance(x, torch.Tensor)] for arg in args[:2]]
            put = tensors[1] or tensors[0]  # (output, input) or input alone
            self.calls.append((name, sum(t.nbytes for t in put)))
        return func(*args, **(kwargs or {}))


@dataclass
class Ranked:
    """ranked(f): a tensor that is f(rank) on each rank."""

    mode: Any
    size: int

    def __call__(self, of: Callable[[int], torch.Tensor]) -> torch.Tensor:
        return self.mode.rank_map(of)

    def cut(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Each rank's piece of x along a dimension: a copy without a gradient."""
        return self(lambda rank: x.detach().chunk(self.size, dim)[rank].clone())

    @contextmanager
    def counted(self) -> Iterator[list[tuple[str, int]]]:
        """The collectives within the block, each with the bytes that a rank puts into it; PyTorch's own count agrees."""
        from torch.distributed.tensor.debug import CommDebugMode

        calls: list[tuple[str, int]] = []
        with CommDebugMode() as comm, Counted(calls):
            yield calls
        assert comm.get_total_counts() == len(calls), "CommDebugMode counts other collectives"

    def apart(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """The largest difference, over all ranks, of what they hold as x and what they hold as y."""
        pairs = [
            [getattr(z, "_local_tensors", {}).get(rank, z) for z in (x.detach(), y.detach())]
            for rank in range(self.size)
        ]
        return max((a - b).abs().max().item() for a, b in pairs)

    def same(self, x: torch.Tensor) -> torch.Tensor:
        """What all ranks hold, if all hold the same."""
        values = [x._local_tensors[rank] for rank in range(self.size)]
        assert all(torch.equal(value, values[0]) for value in values), "the ranks hold different values"
        return values[0]


@contextmanager
def local_ranks(size: int) -> Iterator[Ranked]:
    """Within the block this process is `size` ranks at once: a tensor made by `ranked(f)` has a value for each."""
    try:
        from torch.distributed._local_tensor import LocalTensorMode
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError:
        raise CourseError(
            f"PyTorch {torch.__version__} has no local-tensor mode (2.11 has); skip this cell: the drills with "
            "real processes further down show the same"
        ) from None
    if dist.is_initialized():  # a cell that was stopped half-way
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        with LocalTensorMode(size) as mode, warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield Ranked(mode, size)
    finally:
        dist.destroy_process_group()


@contextmanager
def fake_ranks(size: int) -> Iterator[None]:
    """Within the block this process is rank 0 of `size`. Nobody else is there: collectives return at once, unmoved."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():  # a cell that was stopped half-way
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            yield
    finally:
        dist.destroy_process_group()


KINDS = {"allreduce": "all-reduce", "allgather": "all-gather", "reducescatter": "reduce-scatter"}


class Whole(TorchDispatchMode):
    """The collectives within the block: kind, and the bytes of the whole tensor, of which a rank may have a part."""

    def __init__(self, calls: list[tuple[str, int]]):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func._schema.name.partition("::")[2].replace("_", "")
            sizes = [leaf.nbytes for leaf in tree_leaves((args, out)) if isinstance(leaf, torch.Tensor)]
            self.calls += [(kind, max(sizes)) for word, kind in KINDS.items() if name.startswith(word)]
        return out


def traced(model: torch.nn.Module, *args) -> list[tuple[str, int]]:
    """The collectives of model(*args)[1].backward(), forward included: kind, and bytes of the whole tensor."""
    calls: list[tuple[str, int]] = []

    def count(_, bucket):  # DDP's C++ side does not come by a dispatch mode
        calls.append(("all-reduce", bucket.buffer().nbytes))
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.register_comm_hook(None, count)
        model(*args)[1].backward()
    else:
        with Whole(calls), warnings.catch_warnings(action="ignore"):
            model(*args)[1].backward()
    return calls
