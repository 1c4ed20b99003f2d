"""Gradients averaged by hand: one by one, all in one message, in buckets while backward still computes; and a ring.

Exported from notebooks/20_ddp.ipynb.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.distributed import Ranks


def average_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Data parallelism by hand: after backward, each gradient becomes its mean over all ranks, in place.

    A parameter without a gradient is left out.
    """
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= ranks.size


def my_rows(B: int, ranks: Ranks) -> dict:
    """For a stream whose batches have B rows over all ranks: the arguments B, rank and world_size of this one."""
    if B % ranks.size:
        raise ValueError(f"{B} rows cannot be dealt to {ranks.size} ranks; take a multiple of {ranks.size}")
    return {"B": B // ranks.size, "rank": ranks.rank, "world_size": ranks.size}


def average_flat(model: nn.Module, ranks: Ranks) -> None:
    """The same mean as average_gradients, in one message: by a buffer that holds all gradients one after the other."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= ranks.size
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))


class EagerAverage:
    """Averages each gradient by a message of its own, which starts the moment the gradient is ready."""

    def __init__(self, model: nn.Module, ranks: Ranks):
        self.size, self.sent = ranks.size, []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.send)

    def send(self, p: Tensor) -> None:
        work = dist.all_reduce(p.grad, async_op=True)
        self.sent.append((p, work))

    def wait(self) -> None:
        """After backward: from here on gradients are means."""
        for p, work in self.sent:
            work.wait()
            p.grad /= self.size
        self.sent.clear()


def in_buckets(parameters: list[Tensor], cap: float) -> list[list[Tensor]]:
    """Neighbours together, as long as they have at most `cap` bytes; a larger parameter has a bucket of its own."""
    buckets, room = [], 0.0
    for p in parameters:
        if not buckets or p.nbytes > room:
            buckets.append([])
            room = cap
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets


class Bucket:
    """Parameters whose gradients travel in one message. send(buffer) starts a sum over all ranks; it returns the work."""

    def __init__(self, parameters: list[Tensor], send):
        self.parameters, self.send = parameters, send
        self.sizes = [p.numel() for p in parameters]
        self.buffer = parameters[0].new_zeros(sum(self.sizes))
        self.missing, self.work = len(parameters), None

    def ready(self, p: Tensor) -> None:
        """p's gradient is complete; the last one of the bucket sends it, and `work` is what send returns.

        RuntimeError if the bucket is on its way already: wait() must be called after each backward pass.
        """
        if self.work is not None:
            raise RuntimeError("a bucket is on its way already: call wait() after each backward pass")
        self.missing -= 1
        if self.missing == 0:
            torch.cat([each.grad.flatten() for each in self.parameters], out=self.buffer)
            self.work = self.send(self.buffer)

    def finish(self, size: int) -> None:
        """Wait for the sum; the parameters' gradients become means over `size` ranks."""
        if self.work is None:
            raise RuntimeError(f"{self.missing} parameters of a bucket got no gradient, so it was not sent")
        self.work.wait()
        self.buffer /= size
        for p, part in zip(self.parameters, self.buffer.split(self.sizes)):
            p.grad.copy_(part.view_as(p))
        self.missing, self.work = len(self.parameters), None


def start_sum(x: Tensor) -> dist.Work:
    """Begin to sum x over all ranks, in place."""
    return dist.all_reduce(x, async_op=True)


class Buckets:
    """Averages a model's gradients over all ranks while backward computes: in buckets of at most `cap` bytes.

    Call wait() after each backward pass. send: as for Bucket; an asynchronous all-reduce if not given.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, cap: float = 25e6, send=None):
        self.size, last_first = ranks.size, list(model.parameters())[::-1]
        self.buckets = [Bucket(part, send or start_sum) for part in in_buckets(last_first, cap)]
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(bucket.ready)

    def wait(self) -> None:
        """After backward: from here on gradients are means."""
        for bucket in self.buckets:
            bucket.finish(self.size)


def ring_all_reduce(x: Tensor) -> Tensor:
    """Sum a contiguous x over all ranks, in place; each sends 2(n - 1)/n of its bytes (Patarasuk and Yuan 2009).

    Returns x. How many numbers it has need not divide by n. Each step is one dist.batch_isend_irecv of two dist.P2POp.
    """
    n, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % n, (rank - 1) % n
    parts = x.view(-1).tensor_split(n)
    for step in range(2 * (n - 1)):
        mine, theirs = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        came = torch.empty_like(theirs)
        calls = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, came, left)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        if step < n - 1:
            theirs += came
        else:
            theirs.copy_(came)
    return x
