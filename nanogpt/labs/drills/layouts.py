"""What chapter 21d makes several processes do: steps in every layout, counted, and a checkpoint in parts.

Exported from notebooks/21d_layouts.ipynb.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

from nanogpt.config import Parallel
from nanogpt.data import DocumentStream
from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.drills.ddp import LR, ROWS, fresh
from nanogpt.labs.drills.flight import flight_record
from nanogpt.labs.drills.sharding import held
from nanogpt.labs.parallel.buckets import my_rows
from nanogpt.labs.parallel.laid_out import (
    LaidOutAdamW,
    build_in_parts,
    draw_weights,
    is_laid_out,
    lay_out,
    take_part,
)
from nanogpt.labs.roofline.memory import peak_memory
from nanogpt.model import GPT
from nanogpt.optim import global_norm, gradients_of, local_part, make_optimizer, scale_to
from nanogpt.training import accumulate_gradients


def grids(n: int) -> dict[str, Parallel]:
    """The layouts of n processes that are compared."""
    two = {"parts × cuts": Parallel(dp=n // 2, shard=True, tp=2)}
    return {"copies": Parallel(dp=n), "parts": Parallel(dp=n, shard=True), "cuts": Parallel(tp=n)} | two


def run_in(grid: Parallel, ranks: Ranks, data: str):
    """Chapter 20's model in this layout: model, stepper, optimizer and stream."""
    model, _, stream = fresh(Ranks(device=ranks.device), data)
    config = SimpleNamespace(parallel=grid, train=SimpleNamespace(dtype="float32"))
    stepper, readers = lay_out(model, config, ranks)
    make = LaidOutAdamW if is_laid_out(model) else make_optimizer
    optimizer = make(model, LR, betas=(0.9, 0.98), weight_decay=0.01)
    dealt = my_rows(ROWS, readers)
    stream = DocumentStream(stream.paths, T=stream.T, device=ranks.device, **dealt)
    return model, stepper, optimizer, stream


MATRIX = "transformer.h.0.mlp.c_proj.weight"


def part_of(model, name: str = MATRIX) -> list[int]:
    """The first and the last row and column of a matrix that this rank has."""
    p = model.get_parameter(name)
    places = torch.arange(p.numel()).view(p.shape)
    places = local_part(take_part(model, name, places))[0] if is_laid_out(model) else places
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


def ways(ranks: Ranks, data: str, steps: int = 3) -> dict:
    """The same steps alone and in each layout: losses, norms, what each rank keeps, and what the last step sends."""
    found = {}
    for name, grid in ({"one process": Parallel()} | grids(ranks.size)).items():
        who = Ranks(device=ranks.device) if name == "one process" else ranks
        model, stepper, optimizer, stream = run_in(grid, who, data)
        told = []
        for _ in range(steps):
            dist.barrier()  # seen in the flight record
            optimizer.zero_grad()
            loss = accumulate_gradients(stepper, [stream.next_batch()], mean=who.mean)
            gradients = gradients_of(model.parameters())
            norm = global_norm(gradients)
            scale_to(gradients, 0.5, norm)
            optimizer.step()
            told.append((loss.item(), norm.item()))
        found[name] = {"told": told, "sent": sizes_sent(), "has": gathered(ranks, part_of(model))}
        found[name]["kept"] = gathered(ranks, held(model, optimizer))
    return found


def making(ranks: Ranks, data: str) -> dict:
    """Bytes of a model's weights and of the largest; the peak on this rank while it is made: complete first, part by part."""
    shape = fresh(Ranks(), data)[0].config
    config = SimpleNamespace(parallel=Parallel(shard=True), train=SimpleNamespace(dtype="float32"))
    weights = lambda: draw_weights(shape, torch.Generator().manual_seed(0))  # noqa: E731
    ways = {
        "complete first": lambda: lay_out(GPT(shape).to(ranks.device), config, ranks),
        "part by part": lambda: build_in_parts(shape, weights(), config, ranks),
    }
    sizes = [x.nbytes for _, x in weights()]
    peaks = {way: peak_memory(call, ranks.device) for way, call in ways.items()}
    return {"weights": sum(sizes), "largest": max(sizes), "peaks": peaks}


DRILLS = {"ways": ways, "making": making}
