"""What chapter 21d makes several processes do: steps in every layout, counted, and a checkpoint in parts.

Exported from notebooks/21d_layouts.ipynb.
"""

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from nanogpt.drills.ddp import LR, ROWS, fresh
from nanogpt.drills.flight import flight_record
from nanogpt.gpt.clip import local_part
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, gathered, my_rows
from nanogpt.parallel.laid_out import is_laid_out, laid_out, lay_out, optimizer_for, whole_model
from nanogpt.parallel.layout import Parallel
from nanogpt.text.data import DocumentStream

MATRIX = "transformer.h.0.mlp.c_proj.weight"


def grids(n: int) -> dict[str, Parallel]:
    """The layouts of n processes that are compared."""
    two = {"parts × cuts": Parallel(dp=n // 2, shard=True, tp=2)}
    return {"copies": Parallel(dp=n), "parts": Parallel(dp=n, shard=True), "cuts": Parallel(tp=n)} | two


def made(grid: Parallel, ranks: Ranks, data: str):
    """Chapter 20's model in this layout: model, stepper, optimizer and stream."""
    model, _, stream = fresh(Ranks(device=ranks.device), data)
    stepper, readers = lay_out(model, SimpleNamespace(parallel=grid), ranks)
    optimizer = optimizer_for(model, LR, "float32", betas=(0.9, 0.98), weight_decay=0.01)
    dealt = my_rows(ROWS, readers)
    stream = DocumentStream(stream.paths, T=stream.T, device=ranks.device, **dealt)
    return model, stepper, optimizer, stream


def kept(model, optimizer) -> dict[str, int]:
    """Bytes that this rank has between two steps."""
    parameters = list(model.parameters())
    moments = [x for p in parameters for x in optimizer.state[p].values() if x.dim()]
    lists = {"weights": parameters, "gradients": [p.grad for p in parameters], "moments": moments}
    return {what: sum(local_part(x)[0].nbytes for x in some) for what, some in lists.items()}


def part_of(model, name: str = MATRIX) -> list[int]:
    """The first and the last row and column of a matrix that this rank has."""
    p = model.get_parameter(name)
    places = torch.arange(p.numel()).view(p.shape)
    places = local_part(laid_out(model, name, places))[0] if is_laid_out(model) else places
    rows, columns = places // p.size(1), places % p.size(1)
    return [int(end) for x in (rows, columns) for end in (x.min(), x.max())]


def sizes_sent() -> dict[str, list[int]]:
    """By kind of collective: how many numbers this rank has put into each since the last barrier."""
    calls = {}
    for each in flight_record():
        if "barrier" in each["kind"]:
            calls = {}
        else:
            numbers = sum(torch.Size(size).numel() for size in each["sizes"])
            calls.setdefault(each["kind"], []).append(numbers)
    return calls


def noted(told: list, loss, norm) -> bool:
    """For train_step: goes on, and keeps what it is asked about."""
    told.append((loss.item(), norm.item()))
    return True


def ways(ranks: Ranks, data: str, steps: int = 3) -> dict:
    """The same steps alone and in each layout: losses, norms, what each rank keeps, and what the last step sends."""
    found = {}
    for name, grid in ({"one process": Parallel()} | grids(ranks.size)).items():
        who = Ranks(device=ranks.device) if name == "one process" else ranks
        model, stepper, optimizer, stream = made(grid, who, data)
        told = []
        for _ in range(steps):
            dist.barrier()  # seen in the flight record
            accept = partial(noted, told)
            train_step(stepper, optimizer, [stream.next_batch()], clip=0.5, accept=accept, mean=who.mean)
        found[name] = {"told": told, "sent": sizes_sent(), "has": gathered(ranks, part_of(model))}
        found[name]["kept"] = gathered(ranks, kept(model, optimizer))
    return found


def checkpoint_in_parts(ranks: Ranks, data: str) -> dict:
    """A step on shards, a checkpoint in parts, and the loss of the step after it."""
    from nanogpt.parallel.fsdp import save_parts

    folder = Path(data).parent / "parts"
    if ranks.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    model, stepper, _, stream = made(Parallel(shard=True), ranks, data)
    optimizer = make_optimizer(model, LR)
    train_step(stepper, optimizer, [stream.next_batch()], mean=ranks.mean)
    save_parts(folder, model, optimizer)
    after = train_step(stepper, optimizer, [stream.next_batch()], mean=ranks.mean).item()
    gathering = whole_model(model)  # what one file takes on rank 0: weights and two moments, in float32
    return {"after": after, "gathered": 12 * sum(p.numel() for p in gathering.parameters())}


DRILLS = {"ways": ways, "parts": checkpoint_in_parts}
