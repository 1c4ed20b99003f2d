"""What chapter 21c makes a ring of processes do, and the same steps compared in several ways.

Exported from notebooks/21c_context_parallel.ipynb.
"""

import time
from functools import partial

import torch
import torch.distributed as dist

from nanogpt.device import synchronize
from nanogpt.distributed import Ranks, gathered, replicate
from nanogpt.labs.drills.ddp import fresh, masked
from nanogpt.labs.kernels.flash import absorb, tile_scores
from nanogpt.labs.parallel.ring import ContextParallel, around, arrived, nothing, pass_on, ring_attention
from nanogpt.model import attention_weights
from nanogpt.training import accumulate_gradients, train_step


def first_ring(ranks: Ranks, data: str, T: int = 64, d: int = 16) -> dict:
    """Attention forward, each rank with one part of the row: whose keys came when, and how far all is from one process."""
    row = torch.randn(3, T, d, generator=torch.Generator().manual_seed(0)).to(ranks.device)
    q, k, v = row.chunk(ranks.size, 1)[ranks.rank]  # my tokens
    seen, owners = nothing(q), []
    for owner, (k_o, v_o) in around(torch.stack((k, v))):
        owners.append(owner)
        if owner <= ranks.rank:  # later ranks' keys are future
            seen = absorb(tile_scores(q, k_o, diagonal=owner == ranks.rank), v_o, *seen)
    _, total, o = seen
    whole = (attention_weights(row[0], row[1]) @ row[2]).chunk(ranks.size)[ranks.rank]
    apart = (o / total - whole).abs().max().item()
    return {"owners": gathered(ranks, owners), "apart": max(gathered(ranks, apart))}


def two_orders(ranks: Ranks, data: str, delay: float = 0.2, T: int = 2048, d: int = 64) -> dict:
    """The shortest ms of a step of the ring by when it waits for its message, which takes `delay` seconds at least."""
    q, k, v = torch.randn(3, 4, T // ranks.size, d, device=ranks.device)

    def compute() -> None:
        absorb(tile_scores(q, k, diagonal=False), v, *nothing(q))
        synchronize(ranks.device)

    def wait(message: tuple, began: float) -> None:
        arrived(*message)
        time.sleep(max(0.0, began + delay - time.perf_counter()))

    found = {"compute only": [], "wait, then compute": [], "compute, then wait": []}
    for order, times in [*found.items()] * 5:
        dist.barrier()
        began = time.perf_counter()
        if order != "compute only":
            message = pass_on(torch.stack((k, v)))
        if order == "wait, then compute":
            wait(message, began)
        compute()
        if order == "compute, then wait":
            wait(message, began)
        times.append(1e3 * (time.perf_counter() - began))
    return {order: min(times) for order, times in found.items()}


WAYS = "zigzag", "own positions", "mean of means"  # the last two wrong on purpose


def trained_in_ring(way: str, ranks: Ranks, data: str, steps: int) -> tuple[list[float], dict]:
    """Losses of some steps and the first gradients by name; all ranks read the same rows."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    wrapped, losses, first = ContextParallel(model), [], {}
    if way == "own positions":
        wrapped.positions = torch.arange  # each rank counts from 0
    replica, mean = replicate(wrapped, ranks), None if way == "mean of means" else ranks.mean
    for _ in range(steps):
        batch = [tuple(wrapped.columns(z) for z in pair) for pair in masked(stream)]
        optimizer.zero_grad()
        losses.append(ranks.mean(accumulate_gradients(replica, batch, mean=mean)).item())
        optimizer.step()
        first = first or {name: p.grad.to("cpu", copy=True) for name, p in model.named_parameters()}
    return losses, first


def compared(ranks: Ranks, data: str, ways, trained, steps: int = 3) -> dict:
    """The same steps in one process and in several ways: losses, and how far the first gradients are apart by name."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    losses, one = [], {}
    for _ in range(steps):
        losses.append(train_step(model, optimizer, masked(stream)).item())
        one = one or {name: p.grad.to("cpu", copy=True) for name, p in model.named_parameters()}
    found = {"one process": {"losses": losses, "apart": dict.fromkeys(one, 0.0)}}
    for way in ways:
        losses, first = trained(way, ranks, data, steps)
        apart = {name: ((first[name] - g).norm() / g.norm()).item() for name, g in one.items()}
        found[way] = {"losses": losses, "apart": apart}
    return found


def sent_by_ring(ranks: Ranks, data: str, B: int = 2, heads: int = 4, T: int = 64, d: int = 16) -> dict:
    """The bytes that a rank sends for one layer's attention, forward and backward."""
    q = torch.randn(B, heads, T // ranks.size, d, device=ranks.device, requires_grad=True)
    counts, batch = [], dist.batch_isend_irecv

    def counting(ends):
        counts.append(ends[0].tensor.nbytes)
        return batch(ends)

    dist.batch_isend_irecv = counting
    out, forward = ring_attention(q, q, q), sum(counts)
    out.sum().backward()
    dist.batch_isend_irecv = batch
    return {"forward": forward, "backward": sum(counts) - forward}


SAME = partial(compared, ways=WAYS, trained=trained_in_ring)
DRILLS = {"first": first_ring, "orders": two_orders, "sent": sent_by_ring, "same": SAME}
