"""How long an all-reduce takes, by its bytes, and a step of several ranks, computed alone and averaged.

Exported from notebooks/20b_many_machines.ipynb.
"""

import random
import statistics
import time

import torch
import torch.distributed as dist

from nanogpt.device import synchronize
from nanogpt.distributed import Ranks, replicate
from nanogpt.labs.drills.ddp import fresh
from nanogpt.training import accumulate_gradients


def all_reduces(ranks: Ranks, data: str, repeats: int = 40) -> dict:
    """The median seconds of an all-reduce, by its bytes, from 1 kB to 16 MB, in a shuffled order after five of each."""
    found = {2**k: [] for k in range(10, 25, 2)}
    tensors = {nbytes: torch.zeros(nbytes // 4, device=ranks.device) for nbytes in found}
    order = [*found] * (5 + repeats)
    random.Random(0).shuffle(order)  # the same on all ranks
    for nbytes in order:
        began = time.perf_counter()
        dist.all_reduce(tensors[nbytes])
        synchronize(ranks.device)
        found[nbytes].append(time.perf_counter() - began)
    return {nbytes: statistics.median(seconds[5:]) for nbytes, seconds in found.items()}


def steps(ranks: Ranks, data: str, repeats: int = 30) -> dict:
    """Seconds of each of some steps, by each rank alone and together in DDP; and the gradient's bytes."""
    runs, found = {}, {"alone": [], "together": []}
    for way in found:
        model, optimizer, stream = fresh(ranks, data)
        runs[way] = replicate(model, ranks) if way == "together" else model, optimizer, stream
    for way in [*runs] * repeats:
        model, optimizer, stream = runs[way]
        batch, mean = [stream.next_batch()], ranks.mean if way == "together" else None
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        accumulate_gradients(model, batch, mean=mean)
        optimizer.step()
        synchronize(ranks.device)
        dist.barrier()  # a step ends when the slower rank is done
        found[way].append(time.perf_counter() - began)
    gradient = sum(p.grad.nbytes for p in runs["alone"][0].parameters())
    return {way: seconds[5:] for way, seconds in found.items()} | {"bytes": gradient}


DRILLS = {"all_reduces": all_reduces, "steps": steps}
