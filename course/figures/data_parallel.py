"""Chapter 20's instruments: what two processes do so that a version of data parallelism can be judged, and timed.

`course.figures.processes` calls these functions on each rank, by name. A *version* has a function that prepares a model: it returns
the module to call, and what to call between backward and the update.
"""

import math
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import ProfilerActivity, profile

from nanogpt.distributed import Ranks, replicate
from nanogpt.labs.drills.ddp import fresh, masked, weights_apart
from nanogpt.labs.parallel.agreement import code_hash, refuse_differences
from nanogpt.labs.parallel.buckets import (
    Buckets,
    EagerAverage,
    average_flat,
    average_gradients,
    ring_all_reduce,
)
from nanogpt.training import accumulate_gradients

CAP = 0.5e6  # bytes of a small bucket
MICRO = 4  # micro-batches of an accumulated step


def nothing() -> None:
    pass


VERSIONS = {
    "loop": lambda model, ranks: (model, partial(average_gradients, model, ranks)),
    "flat": lambda model, ranks: (model, partial(average_flat, model, ranks)),
    "a hook each": lambda model, ranks: (model, EagerAverage(model, ranks).wait),
    "one bucket": lambda model, ranks: (model, Buckets(model, ranks, math.inf).wait),
    "buckets": lambda model, ranks: (model, Buckets(model, ranks, CAP).wait),
    "DDP": lambda model, ranks: (replicate(model, ranks, bucket_cap_mb=CAP / 2**20), nothing),
}
NOBODY = "nobody averages"


def prepared(version: str, model, ranks: Ranks):
    return (model, nothing) if version == NOBODY else VERSIONS[version](model, ranks)


def one_step(model, finish, optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Chapter 07's five lines, and `finish` between backward and the update; the loss."""
    loss = model(x, y)[1]
    optimizer.zero_grad()
    loss.backward()
    finish()
    optimizer.step()
    return loss.detach()


def messages_in(step) -> int:
    """How many all-reduces the call step() makes, by PyTorch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    return sum(event.name in ("gloo:all_reduce", "nccl:all_reduce") for event in profiled.events())


def flattened(model) -> Tensor:
    """The gradient as one vector; a copy."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# A version and one process


def trained(ranks: Ranks, data: str, version: str, steps: int) -> tuple[list[float], Tensor, int]:
    """The losses of a few steps of this version, its first gradient, and the messages of one step more."""
    model, optimizer, stream = fresh(ranks, data)
    replica, finish = prepared(version, model, ranks)
    losses = []
    for step in range(steps):
        losses.append(ranks.mean(one_step(replica, finish, optimizer, *stream.next_batch())).item())
        if step == 0:
            gradient = flattened(model)
    batch = stream.next_batch()
    return losses, gradient, messages_in(lambda: one_step(replica, finish, optimizer, *batch))


def same_as_one(ranks: Ranks, data: str, version: str, steps: int = 6) -> dict:
    """How far the version's losses (nats) and first gradient (of its length) are from one process's; its messages."""
    alone, one, _ = trained(Ranks(device=ranks.device), data, NOBODY, steps)
    losses, gradient, messages = trained(ranks, data, version, steps)
    apart = max(abs(a - b) for a, b in zip(alone, losses))
    return {"losses": apart, "gradient": ((gradient - one).norm() / one.norm()).item(), "messages": messages}


def beside_ddp(ranks: Ranks, data: str) -> dict:
    """The gradient of one batch by our buckets and by DDP: are all bits equal, and how far apart are they?"""
    gradients = []
    for version in ("buckets", "DDP"):
        model, _, stream = fresh(ranks, data)
        replica, finish = prepared(version, model, ranks)
        replica(*stream.next_batch())[1].backward()
        finish()
        gradients.append(flattened(model))
    ours, theirs = gradients
    return {"equal": torch.equal(ours, theirs), "apart": (ours - theirs).abs().max().item()}


def gradient_bytes(ranks: Ranks, data: str, as_view: bool) -> int:
    """The bytes behind DDP's buckets and the parameters' gradients after two steps, each piece of memory once."""
    model, optimizer, stream = fresh(ranks, data)
    replica, tensors = replicate(model, ranks, gradient_as_bucket_view=as_view), []

    def hook(state, bucket):
        tensors.append(bucket.buffer())
        return allreduce_hook(None, bucket)  # what DDP does without a hook

    replica.register_comm_hook(None, hook)
    for _ in range(2):
        tensors.clear()  # after the first step buckets are cut anew
        one_step(replica, nothing, optimizer, *stream.next_batch())
    tensors += [p.grad for p in model.parameters()]
    pieces = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(pieces.values())


# Time


def timed(ranks: Ranks, data: str, *versions: str, rounds: int = 20) -> dict:
    """The median milliseconds of a step of each version; all versions take turns."""
    runs, ms = [], {version: [] for version in versions}
    for version in versions:
        model, optimizer, stream = fresh(ranks, data)
        runs.append((*prepared(version, model, ranks), optimizer, stream))
    for _ in range(rounds):
        for version, (replica, finish, optimizer, stream) in zip(versions, runs):
            batch = stream.next_batch()
            dist.barrier()
            began = time.perf_counter()
            one_step(replica, finish, optimizer, *batch)
            waited_for(ranks)
            ms[version].append(1e3 * (time.perf_counter() - began))
    return {version: statistics.median(times[3:]) for version, times in ms.items()}  # the first steps warm up


def waited_for(ranks: Ranks) -> None:
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)


def table(ranks: Ranks, data: str) -> dict:
    """Of each version: how far it is from one process, its messages and milliseconds a step."""
    found = {version: same_as_one(ranks, data, version, steps=2) for version in VERSIONS}
    ms = timed(ranks, data, NOBODY, *VERSIONS)
    return {version: found.get(version, {}) | {"ms": took} for version, took in ms.items()}


def table_text(ranks: Ranks, data: str) -> str:
    """`table` as text, with what averaging adds to a step."""
    found = table(ranks, data)
    alone = found[NOBODY]["ms"]
    lines = [f"{'':16} messages    a step   averaging   gradient from one process's"]
    for version, row in found.items():
        added = f"{row['ms'] - alone:5.1f} ms" if version != NOBODY else ""
        apart = f"{row['gradient']:.0e}" if version != NOBODY else ""
        lines.append(
            f"{version:16} {row.get('messages', 0):8} {row['ms']:6.1f} ms {added:>11}   {apart}".rstrip()
        )
    return "\n".join(lines)


class Link:
    """A network that carries one message after the other and notes when; `slow`: further seconds for each MB."""

    def __init__(self, slow: float = 0.0):
        self.slow, self.spans = slow, []
        self.thread = ThreadPoolExecutor(1)

    def send(self, x: Tensor):
        """Begin to sum x over all ranks, in place; an object with wait()."""
        return SimpleNamespace(wait=self.thread.submit(self.carry, x).result)

    def carry(self, x: Tensor) -> None:
        began = time.perf_counter()
        dist.all_reduce(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        time.sleep(self.slow * x.nbytes / 1e6)
        self.spans.append((began, time.perf_counter()))


def timeline(ranks: Ranks, data: str, cap: float, slow: float, steps: int = 10, n_layer: int = 6) -> dict:
    """Of the fastest of a few steps: when rank 0 computed and when each bucket travelled, in ms."""
    model, optimizer, stream = fresh(ranks, data, n_layer=n_layer)
    link, seen = Link(slow), []
    averages = Buckets(model, ranks, cap, link.send)
    for _ in range(steps):
        x, y = stream.next_batch()
        dist.barrier()
        link.spans, times = [], [time.perf_counter()]
        loss = model(x, y)[1]
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        times.append(time.perf_counter())
        averages.wait()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        seen.append((times[-1] - times[0], times, link.spans))
    _, times, spans = min(seen[2:])  # what else the machine does makes steps longer, never shorter
    start, forward, backward, waited, end = [1e3 * (t - times[0]) for t in times]
    computing = {"forward": (start, forward), "backward": (forward, backward), "update": (waited, end)}
    buckets = {f"{i}": [1e3 * (t - times[0]) for t in span] for i, span in enumerate(spans, 1)}
    return {"computing": computing, "communicating": buckets}


def cost_of_averaging(ranks: Ranks, megabytes: float, times: int = 30) -> dict:
    """An all-reduce of so many MB: its milliseconds by the clock, and this process's processor time meanwhile."""
    x = torch.zeros(int(megabytes * 1e6) // 4, device=ranks.device)
    wall, processor = [], []
    for _ in range(times):
        dist.barrier()
        began, worked = time.perf_counter(), time.process_time()
        dist.all_reduce(x)
        waited_for(ranks)
        wall.append(1e3 * (time.perf_counter() - began))
        processor.append(1e3 * (time.process_time() - worked))
    return {"wall": statistics.median(wall), "processor": statistics.median(processor)}


# Accumulation, unequal rows, the ring, the hashes


def accumulate(replica, optimizer, micro_batches, when: str) -> Tensor:
    """The loss of a step of micro-batches. when: no_sync "in time", "forgotten", or its flag set "late", after forward."""
    optimizer.zero_grad()
    total = torch.zeros((), device=micro_batches[0][0].device)
    for i, (x, y) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        waits = when == "in time" and not last
        with replica.no_sync() if waits else nullcontext():
            loss = replica(x, y)[1] / len(micro_batches)
        if when == "late":
            replica.require_backward_grad_sync = last  # wrong on purpose: forward has been
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def flag(ranks: Ranks, data: str, steps: int = 10) -> dict:
    """Accumulation with no_sync in time, forgotten and late: losses, messages and ms a step, and how far the ranks are apart."""
    found = {}
    for when in ("in time", "forgotten", "late"):
        model, optimizer, stream = fresh(ranks, data)
        replica, losses, ms = replicate(model, ranks), [], []
        for _ in range(steps):
            batches = [stream.next_batch() for _ in range(MICRO)]
            dist.barrier()
            began = time.perf_counter()
            loss = accumulate(replica, optimizer, batches, when)
            waited_for(ranks)
            ms.append(1e3 * (time.perf_counter() - began))
            losses.append(ranks.mean(loss).item())
        apart = weights_apart(model, ranks)
        messages = messages_in(partial(accumulate, replica, optimizer, batches, when))
        found[when] = {
            "losses": losses, "messages": messages, "ms": statistics.median(ms[2:]), "apart": apart,
        }  # fmt: skip
    return found


def same(ranks: Ranks, data: str, steps: int = 6) -> dict:
    """Rows of unequal length in three ways: losses, and how far the first gradient is from that of one process."""
    alone, found, gradients = Ranks(device=ranks.device), {}, {}
    ways = {"one process": (alone, None), "DDP": (ranks, ranks.mean), "mean of means": (ranks, None)}
    for way, (who, mean) in ways.items():
        model, optimizer, stream = fresh(who, data)
        replica, losses = replicate(model, who), []
        for step in range(steps):
            optimizer.zero_grad()
            loss = accumulate_gradients(replica, masked(stream), mean=mean)
            optimizer.step()
            losses.append(ranks.mean(loss).item())
            if step == 0:
                gradients[way] = flattened(model)
        one = gradients["one process"]
        found[way] = {"losses": losses, "gradient": ((gradients[way] - one).norm() / one.norm()).item()}
    return found


def ring(ranks: Ranks, numel: int = 1_000_003) -> dict:
    """Our all-reduce beside PyTorch's: the largest difference, and what share of its bytes this rank has sent."""
    ours = torch.randn(numel, generator=torch.Generator().manual_seed(ranks.rank)).to(ranks.device)
    theirs, sent, batch = ours.clone(), [], dist.batch_isend_irecv
    dist.all_reduce(theirs)

    def counted(calls):
        sent.extend(call.tensor.nbytes for call in calls if call.op is dist.isend)
        return batch(calls)

    dist.batch_isend_irecv = counted
    try:
        ring_all_reduce(ours)
    finally:
        dist.batch_isend_irecv = batch
    apart = (ours - theirs).abs().max().item()
    return {"apart": apart, "share": sum(sent) / ours.nbytes, "messages": len(sent)}


def differ(ranks: Ranks) -> str | None:
    """The last rank has older data; what all ranks are told."""
    hashes = {"code": code_hash(), "data": "old" if ranks.rank == ranks.size - 1 else "new"}
    try:
        refuse_differences(ranks, **hashes)
    except ValueError as error:
        return str(error)
