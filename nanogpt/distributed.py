"""Many processes as one: who this one is, its group, DDP, and a clear end when one is lost.

Exported from notebooks/20_ddp.ipynb, grown by notebooks/20a_many_processes.ipynb.
"""

import atexit
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nanogpt.device import pick_device
from nanogpt.shards import document_starts


@dataclass(frozen=True)
class Ranks:
    """Who this process is among `size` that work together; one alone unless torchrun has started it."""

    rank: int = 0
    local_rank: int = 0  # on its own machine
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all ranks in float32; x itself if there is one. Older gloo has no average: a sum, divided."""
        if self.size == 1:
            return x
        total = x.detach().to(torch.float32, copy=True)
        dist.all_reduce(total)
        return total / self.size


def replicate(model: nn.Module, ranks: Ranks, **options) -> nn.Module:
    """The model in DistributedDataParallel, which holds it as `.module`; the model itself for one process.

    All ranks begin with rank 0's weights. options: DistributedDataParallel's, such as bucket_cap_mb.
    """
    if ranks.size == 1:
        return model
    gpu = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=gpu, **options)


def gathered(ranks: Ranks, thing) -> list:
    """What each rank has given, in their order, on all of them; anything that can be pickled."""
    if ranks.size == 1:
        return [thing]
    things = [None] * ranks.size
    dist.all_gather_object(things, thing)
    return things


def is_lost(error: BaseException) -> bool:
    """Does gloo say that another rank has gone, or does not answer?"""
    said, words = str(error).lower(), ("timed out", "timeout", "connection", "socket")
    return isinstance(error, RuntimeError) and "gloo" in said and any(word in said for word in words)


# Groups that were left. DDP's reducer also holds the group. If it frees it last, the process can hang; if Python ends
# while the group's threads still hold tensors, it aborts (PyTorch 2.13; pytorch#190489).
LEFT = []


def leave_group() -> None:
    """Leave the default group, whose threads end when let_go is called."""
    LEFT.append(dist.group.WORLD)
    dist.destroy_process_group()


@atexit.register
def let_go() -> None:
    """Free the groups that were left, and with them their threads, while Python still runs."""
    gc.collect()  # a DDP in a reference cycle goes first
    LEFT.clear()


def open_group(ranks: Ranks, seconds: float):
    """Meet the others at torchrun's store and open the default group, NCCL on GPUs and gloo on CPUs; the store."""
    store, *_ = next(dist.rendezvous("env://", ranks.rank, ranks.size, timeout=timedelta(seconds=300)))
    lab = import_module("nanogpt.labs.parallel.lost")
    store = dist.PrefixStore(lab.same_life(ranks, store), store)
    options = {"store": store, "rank": ranks.rank, "world_size": ranks.size}
    gpu = {"device_id": ranks.device} if ranks.device.type == "cuda" else {}
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=seconds), **options, **gpu)
    return dist.PrefixStore("ends", store)


@contextmanager
def process_group(ranks: Ranks, seconds: float = 600.0) -> Iterator[None]:
    """Collectives work within the block; for one process it does nothing.

    On gloo, a rank that waits longer than `seconds`, or whose peer has gone, raises a TimeoutError that names the lost
    rank. On NCCL no exception comes: its watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING).
    """
    if ranks.size == 1:
        yield
        return
    store, me = open_group(ranks, seconds), f"{ranks.rank}"
    try:
        dist.barrier()  # all are here; else one that has nothing to say could be gone before another is connected
        yield
        store.set(me, "has ended")
    except BaseException as error:
        store.set(me, "waits" if is_lost(error) else f"failed with {type(error).__name__}: {error}")
        if dist.get_backend() == "gloo":
            leave_group()  # NCCL would wait here for ranks that wait for this one
        if not is_lost(error):
            raise
        lab = import_module("nanogpt.labs.parallel.lost")
        who = lab.who_is_missing(ranks, store, min(seconds, 10))
        raise TimeoutError(f"rank {me}, which waits {seconds:g} s at most, has lost others: {who}") from error
    leave_group()


def torchrun_ranks(prefer: str | None = None) -> Ranks:
    """Who torchrun's environment says this is, on its GPU or the CPU; one process without it. prefer: see pick_device."""
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
    missing = [name for name in names if name not in os.environ]
    if 0 < len(missing) < len(names):
        raise ValueError(f"torchrun sets {', '.join(names)}; here {' and '.join(missing)} is missing")
    rank, local, size = (0, 0, 1) if missing else (int(os.environ[name]) for name in names)
    device = pick_device(prefer)
    if size > 1 and device.type == "cuda":
        gpus = torch.cuda.device_count()
        if local >= gpus:
            raise ValueError(f"local rank {local} has no GPU, since there are {gpus}: lower --nproc-per-node")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    elif size > 1:
        device = torch.device("cpu")  # gloo carries nothing from an Apple GPU
    return Ranks(rank, local, size, device)


def first_reason(ranks: Ranks, reason: str | None) -> str | None:
    """The first rank's reason that has one, to stop for example; on all ranks, which all ask at the same place."""
    if not ranks.mean(torch.tensor(float(reason is not None), device=ranks.device)):
        return None  # one number, in most steps
    return next(filter(None, gathered(ranks, reason)))


def patience() -> float:
    """Seconds that a rank of a run waits for the others: the variable NANOGPT_PATIENCE, else ten minutes."""
    seconds = os.environ.get("NANOGPT_PATIENCE", "600")
    if not seconds.isdecimal() or int(seconds) < 1:
        raise ValueError(f"NANOGPT_PATIENCE is {seconds!r}; it must be a whole number of seconds")
    return float(seconds)


def first_alone(ranks: Ranks, call: Callable, *args):
    """call(*args) on rank 0, and then on the others, who find what it has made."""
    if ranks.size > 1 and ranks.rank > 0:
        dist.barrier()
    made = call(*args)
    if ranks.size > 1 and ranks.rank == 0:
        dist.barrier()
    return made


def my_documents(tokens: np.ndarray, eot: int, ranks: Ranks) -> np.ndarray:
    """A rank's part of a shard: whole documents, and the token behind the last, which is to be predicted too."""
    starts = np.array_split(document_starts(tokens, eot), ranks.size)
    bounds = [part[0] if len(part) else len(tokens) - 1 for part in starts] + [len(tokens) - 1]
    return tokens[bounds[ranks.rank] : bounds[ranks.rank + 1] + 1]
