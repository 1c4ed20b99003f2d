"""What chapter 21 makes several processes do, to be measured: `drill drills.sharding:stages`.

Exported from notebooks/21_sharding.ipynb.
"""

from pathlib import Path

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from nanogpt.drills.ddp import fresh
from nanogpt.gpt.clip import clip_, local_part
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.pretrained import to_hf
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, gathered, replicate
from nanogpt.parallel.fsdp import save_parts, shard, unsharded
from nanogpt.parallel.zero import Moved, PartsOptimizer, in_parts, my_part
from nanogpt.speed.work import peak_memory

WAYS = ["one process", "DDP", "stage 1", "stage 2", "stage 3", "ZeRO optimizer", "FSDP2", "recompute", "bf16"]


def made(way: str, ranks: Ranks, data: str) -> tuple:
    """What trains in this way: the model to call, its optimizer, and this rank's stream."""
    model, optimizer, stream = fresh(ranks, data)
    weights, lr = list(model.parameters()), optimizer.defaults["lr"]
    if way in ("DDP", "ZeRO optimizer"):
        model = replicate(model, ranks)
    if way == "ZeRO optimizer":
        options = {key: optimizer.defaults[key] for key in ("lr", "betas")}
        optimizer = ZeroRedundancyOptimizer(optimizer.param_groups, torch.optim.AdamW, **options)
    elif way in ("stage 1", "stage 2"):
        parts = nn.ParameterList(my_part(w, ranks.rank, ranks.size) for w in weights)
        optimizer = PartsOptimizer(weights, [*parts], make_optimizer(parts, lr), int(way[-1]))
    elif way == "stage 3":
        optimizer = make_optimizer(model := in_parts(model, ranks.rank, ranks.size), lr)
    elif way in ("FSDP2", "recompute", "bf16"):
        shard(model, precision="bf16" if way == "bf16" else "float32", recompute=way == "recompute")
        optimizer = make_optimizer(model, lr)
    return model, optimizer, stream


def held(model: nn.Module, optimizer) -> dict[str, int]:
    """Bytes on this rank: weights and gradients, of the model and of parts of its optimizer's own; and moments."""
    inner = getattr(optimizer, "optimizer", getattr(optimizer, "optim", optimizer))
    weights = {*model.parameters(), *(p for group in inner.param_groups for p in group["params"])}
    gradients = [p.grad for p in weights if p.grad is not None]
    moments = [m for state in inner.state.values() for m in state.values() if m.dim()]
    kinds = {"weights": weights, "gradients": gradients, "moments": moments}
    return {kind: sum(local_part(x)[0].nbytes for x in tensors) for kind, tensors in kinds.items()}


def measured(way: str, ranks: Ranks, data: str, steps: int) -> dict:
    """Losses; bytes that this rank holds at the end of backward, moves in a step, and has at its peak."""
    (model, optimizer, stream), told, losses = made(way, ranks, data), {}, []
    look = lambda loss, norm: told.update(held(model, optimizer)) or True  # noqa: E731

    def step():
        batch = stream.next_batch()
        losses.append(train_step(model, optimizer, [batch], accept=look, mean=ranks.mean).item())

    for _ in range(steps - 2):
        step()
    with Moved() as moved:
        step()
    optimizer.zero_grad()
    start = sum(held(model, optimizer).values())
    return {
        "peak": start + peak_memory(step, ranks.device),
        "losses": losses,
        "moved": dict(moved.bytes),
    } | told


def stages(ranks: Ranks, data: str, steps: int = 5) -> dict:
    """The same steps from the same weights in all ways, each measured."""
    alone = Ranks(device=ranks.device)
    return {way: measured(way, alone if way == WAYS[0] else ranks, data, steps) for way in WAYS}


def norms(ranks: Ranks, data: str) -> dict:
    """What each rank is told of the gradient's norm: of one weight, of all by PyTorch, of all by clip_; and the truth."""
    model, _, stream = fresh(ranks, data)
    shard(model)(*stream.next_batch())[1].backward()
    gradients = [p.grad for p in model.parameters()]
    one = model.transformer.h[0].mlp.c_fc.weight.grad
    total = torch.nn.utils.get_total_norm(gradients)
    told = {
        "one weight, .norm().item()": one.norm().item(),
        "one weight, the truth": one.full_tensor().norm().item(),
        "all, get_total_norm(...).item()": total.item(),
        "all, the truth": torch.cat([g.full_tensor().flatten() for g in gradients]).norm().item(),
        "all, clip_": clip_(model, 1.0).item(),
    }
    return {"ranks": gathered(ranks, told), "placements": str(total.placements)}


def steps_around_a_checkpoint(ranks: Ranks, data: str, before: int = 2, after: int = 2) -> dict:
    """FSDP2 trains `before` steps and saves its parts and an export; then it goes on: the losses."""
    model, optimizer, stream = made("FSDP2", ranks, data)
    step = lambda: train_step(model, optimizer, [stream.next_batch()], mean=ranks.mean).item()  # noqa: E731
    losses, folder = [step() for _ in range(before)], Path(data).parent / "sharded"
    save_parts(folder / "parts", model, optimizer)
    plain = unsharded(model)
    if ranks.rank == 0:
        to_hf(plain, folder / "huggingface")
    return {"losses": losses + [step() for _ in range(after)]}


DRILLS = {"stages": stages, "norms": norms, "parts": steps_around_a_checkpoint}
