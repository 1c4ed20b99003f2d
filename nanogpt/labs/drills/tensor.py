"""What chapter 21b makes several processes do: the same steps in all ways, and what each way keeps.

Exported from notebooks/21b_tensor_parallel.ipynb.
"""

import time
from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.drills.ddp import LR, fresh, masked
from nanogpt.labs.parallel.tensor import plain, split
from nanogpt.labs.parallel.tensor_by_hand import SEQUENCE, enter, leave, split_block
from nanogpt.labs.roofline.memory import saved_bytes
from nanogpt.model import GPT
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.training import accumulate_gradients


def cutter(ranks: Ranks):
    """cut(x, dim): this rank's piece of a plain tensor, a copy."""

    def cut(x, dim):
        return x.detach().chunk(ranks.size, dim)[ranks.rank].clone()

    return cut


def memory(ranks: Ranks, data: str, rows: int = 4) -> dict:
    """Bytes that autograd saves in a block, without weights: whole, split, with sequence parallelism; and B × T × C."""
    found = {}
    for way in ("one process", "split", "sequence"):
        model, _, _ = fresh(Ranks(device=ranks.device), data)
        block, T = model.transformer.h[0], model.config.block_size
        if way != "one process":
            split_block(block, cutter(ranks), ends=SEQUENCE if way == "sequence" else (enter, leave))
        T //= ranks.size if way == "sequence" else 1
        x = torch.randn(rows, T, model.config.n_embd, device=ranks.device, requires_grad=True)
        found[way] = saved_bytes(partial(block, x), exclude=block.parameters())
    return found | {"numbers": rows * model.config.block_size * model.config.n_embd}


WAYS = "one process", "by hand", "split", "sequence"


def in_way(model: GPT, way: str, ranks: Ranks) -> GPT:
    """The model in one of WAYS, in place, over all ranks."""
    if way == "by hand":
        for block in model.transformer.h:
            split_block(block, cutter(ranks))
    elif way != "one process":
        split(model, init_device_mesh(ranks.device.type, (ranks.size,)), way == "sequence")
    return model


def curve(ranks: Ranks, data: str, way: str, clip: float | None, steps: int) -> dict:
    """Losses, norms and the shortest milliseconds of a few steps, and of the first gradient the token table's."""
    model, _, stream = fresh(Ranks(device=ranks.device), data, 4)  # on all ranks the same rows
    optimizer = make_optimizer(in_way(model, way, ranks), LR)
    losses, norms, ms = [], [], []
    for step in range(steps):
        batch = [tuple(map(torch.cat, zip(*masked(stream, row=2))))]  # in one piece
        began = time.perf_counter()
        optimizer.zero_grad()
        losses.append(accumulate_gradients(model, batch).item())
        gradients = gradients_of(model.parameters())
        norm = global_norm(gradients)
        norms.append(norm.item())
        if clip is not None:
            scale_to(gradients, clip, norm)
        optimizer.step()
        ms.append(1e3 * (time.perf_counter() - began))
        if step == 0:
            gradient = plain(model, [("table", model.transformer.wte.weight.grad)])["table"]
    gain = plain(model, [("gain", model.transformer.ln_f.weight.detach())])["gain"].cpu()
    return {"losses": losses, "norms": norms, "ms": min(ms), "gradient": gradient, "gain": gain}


def steps_in_all_ways(ranks: Ranks, data: str, steps: int = 6) -> dict:
    """The same steps in all WAYS, unclipped: losses, ms, and how far the first gradient is from that of one process."""
    found = {way: curve(ranks, data, way, None, steps) for way in WAYS}
    one = found["one process"]["gradient"]
    apart = {way: ((told["gradient"] - one).norm() / one.norm()).item() for way, told in found.items()}
    return {
        way: {"losses": told["losses"], "ms": told["ms"], "gradient": apart[way]}
        for way, told in found.items()
    }


def clipped(ranks: Ranks, data: str, steps: int = 2) -> dict:
    """The same, clipped by what each rank takes for the norm: all ranks' norms in step 1, and how far ln_f's gains part."""
    found = {}
    for way in ("one process", "by hand", "split"):
        told = curve(ranks, data, way, 0.1, steps)
        gains = gathered(ranks, told["gain"])
        apart = max((gain - gains[0]).abs().max().item() for gain in gains)
        found[way] = {"norms": gathered(ranks, told["norms"][0]), "apart": apart}
    return found


DRILLS = {"memory": memory, "same": steps_in_all_ways, "clipped": clipped}
