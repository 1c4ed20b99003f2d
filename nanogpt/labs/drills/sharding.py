"""What chapter 21 makes several processes do, to be measured: `drill drills.sharding:stages`.

Exported from notebooks/21_sharding.ipynb.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from nanogpt.data import DocumentStream
from nanogpt.distributed import Ranks, replicate
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.parallel.buckets import my_rows
from nanogpt.labs.parallel.fsdp import recompute_blocks, save_parts, shard, unsharded
from nanogpt.labs.parallel.zero import Moved
from nanogpt.labs.roofline.clock import timings
from nanogpt.labs.roofline.memory import peak_memory
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import global_norm, gradients_of, local_part, make_optimizer
from nanogpt.precision import autocast
from nanogpt.shards import describe_shards, open_shards
from nanogpt.training import accumulate_gradients

SHAPE = {"n_layer": 6, "n_head": 4, "n_embd": 128, "block_size": 40}
ROWS, LR = 8, 2e-3


def start(ranks: Ranks, data: str) -> tuple[GPT, DocumentStream]:
    """A model, on all ranks the same, and a stream of this rank's part of ROWS rows."""
    shards = open_shards(data, "train")
    shape = GPTConfig(**SHAPE, vocab_size=describe_shards(shards)[0])
    model = GPT(shape, torch.Generator().manual_seed(0)).to(ranks.device)
    return model, DocumentStream(shards, T=shape.block_size, device=ranks.device, **my_rows(ROWS, ranks))


WAYS = ["one process", "DDP", "FSDP2", "recompute", "autocast", "bf16"]


def prepared(way: str, ranks: Ranks, data: str) -> tuple:
    """What trains in this way: the model to call, its optimizer, and this rank's stream."""
    model, stream = start(ranks, data)
    if way == "DDP":
        model = replicate(model, ranks)
    elif way != "one process":
        shard(model, precision="bf16" if way == "bf16" else "float32")
    if way == "recompute":
        recompute_blocks(model)
    return model, make_optimizer(model, LR), stream


def held(model: nn.Module, optimizer) -> dict[str, int]:
    """Bytes of weights, gradients and moments on this rank."""
    weights = list(model.parameters())
    gradients = [p.grad for p in weights if p.grad is not None]
    moments = [m for p in weights for m in optimizer.state[p].values() if m.dim()]
    kinds = {"weights": weights, "gradients": gradients, "moments": moments}
    return {kind: sum(local_part(x)[0].nbytes for x in tensors) for kind, tensors in kinds.items()}


def copies_kept(model: nn.Module, batch, precision: str) -> int:
    """Bytes of the blocks' matrices in 16 bits that are alive after forward, on this rank."""
    C = SHAPE["n_embd"]
    matrices = [{3 * C, C}, {C}, {4 * C, C}]  # the sides of c_attn, of c_proj, of the MLP's two
    kept = {}

    def pack(x: Tensor) -> Tensor:
        if x.dim() == 2 and x.dtype in (torch.bfloat16, torch.float16) and {*x.shape} in matrices:
            storage = x.untyped_storage()
            kept[storage._cdata] = storage
        return x

    with saved_tensors_hooks(pack, lambda x: x), autocast(precision, batch[0].device):
        loss = model(*batch)[1]
    alive = sum(storage.nbytes() for storage in kept.values())
    loss.backward()
    return alive


def measured(way: str, ranks: Ranks, data: str) -> dict:
    """Losses; bytes that this rank holds at the end of backward, moves in a step, keeps as copies, has at its peak; ms."""
    model, optimizer, stream = prepared(way, ranks, data)
    precision, found, losses = "bf16" if way == "autocast" else "float32", {}, []

    def step() -> None:
        optimizer.zero_grad()
        losses.append(accumulate_gradients(model, [stream.next_batch()], precision, mean=ranks.mean).item())
        norm = global_norm(gradients_of(model.parameters())).item()
        squares = [p.grad.norm().item() ** 2 for p in model.parameters()]
        found.update(held(model, optimizer), norm=norm, read=sum(squares) ** 0.5)
        optimizer.step()

    step()
    step()
    with Moved() as moved:
        step()
    optimizer.zero_grad()
    before = sum(held(model, optimizer).values())
    found["peak"] = before + peak_memory(step, ranks.device)
    found["copies"] = copies_kept(model, stream.next_batch(), precision)
    told = found | {"losses": [*losses], "moved": dict(moved.bytes)}
    return told | {"ms": 1e3 * min(timings(step, ranks.device, 6))}


def stages(ranks: Ranks, data: str) -> dict:
    """The same steps from the same weights in all ways, each measured."""
    alone = Ranks(device=ranks.device)
    return {way: measured(way, alone if way == WAYS[0] else ranks, data) for way in WAYS}


def around_a_checkpoint(ranks: Ranks, data: str, before: int = 2, after: int = 2) -> dict:
    """FSDP2 trains `before` steps and saves its parts and an export; then it goes on: the losses."""
    model, optimizer, stream = prepared("FSDP2", ranks, data)
    folder, losses = Path(data).parent / "sharded", []
    for step in range(before + after):
        if step == before:
            save_parts(folder / "parts", model, optimizer)
            plain = unsharded(model)
            if ranks.rank == 0:
                to_hf(plain, folder / "huggingface")
        optimizer.zero_grad()
        losses.append(accumulate_gradients(model, [stream.next_batch()], mean=ranks.mean).item())
        optimizer.step()
    return {"losses": losses}


DRILLS = {"stages": stages, "parts": around_a_checkpoint}
