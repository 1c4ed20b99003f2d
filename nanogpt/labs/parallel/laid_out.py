"""The configuration's section `parallel`: a model copied, in parts, or cut; made part by part, and gathered again.

Exported from notebooks/21d_layouts.ipynb.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt import build, trainer
from nanogpt.checkpoint import is_in_parts
from nanogpt.config import Config, Parallel
from nanogpt.distributed import Ranks, replicate
from nanogpt.evaluate import evaluating, padded, windows
from nanogpt.files import save_json
from nanogpt.model import GPT, GPTConfig, init_weight
from nanogpt.optim import decay_groups
from nanogpt.precision import autocast
from nanogpt.training import scale_weight
from nanogpt.weights import WEIGHTS, save_model


def data_parallel(parallel: Parallel, processes: int) -> int:
    """Of so many processes, how many read different rows: processes / tp.

    ValueError where the numbers disagree: without dp, tp must divide the processes; copies must divide dp, the given one
    or what came out for it; and dp × tp must be the processes that were started.
    """
    dp, tp = parallel.dp, parallel.tp
    if dp is None and processes % tp:
        raise ValueError(f"parallel.tp={tp} needs a multiple of {tp} processes; {processes} were started")
    dp = dp or processes // tp
    if dp % parallel.copies:
        raise ValueError(f"parallel.copies={parallel.copies} must divide parallel.dp={dp}")
    if dp * tp != processes:
        started = (
            f"{processes} {'was' if processes == 1 else 'were'} started (torchrun --nproc-per-node {dp * tp})"
        )
        raise ValueError(f"parallel.dp={dp} × parallel.tp={tp} needs {dp * tp} processes; {started}")
    return dp


def lay_out(model: GPT, config, ranks: Ranks) -> tuple[nn.Module, Ranks]:
    """Lay the model out as config.parallel says, in place: what a step calls, and who reads different rows.

    What a step calls is the model, or for copies alone `replicate`'s. The readers are Ranks: this one's number is
    rank // tp, and their size is dp. First comes `recompute`, if it is asked for, on one process as well. Then
    nanogpt.labs.parallel has tensor.split, only where tp > 1 (it refuses dropout), and fsdp.shard with
    config.train.dtype, only where dp > 1: over mesh["copies", "parts"], or mesh["parts"] if there is one copy.
    """
    layout, dp = config.parallel, data_parallel(config.parallel, ranks.size)
    if layout.recompute:
        from nanogpt.labs.parallel.fsdp import recompute_blocks  # here: its imports take a second

        recompute_blocks(model)
    if ranks.size == 1 or (layout.tp == 1 and not layout.shard):
        return replicate(model, ranks), ranks
    from torch.distributed.device_mesh import init_device_mesh

    from nanogpt.labs.parallel.fsdp import shard
    from nanogpt.labs.parallel.tensor import split

    copies = layout.copies if layout.shard else dp
    shape, names = (copies, dp // copies, layout.tp), ("copies", "parts", "tp")
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=names)
    if layout.tp > 1:  # first, so that what is sharded is what a layer's rank has
        split(model, mesh["tp"])
    if dp > 1:
        shard(model, mesh["parts"] if copies == 1 else mesh["copies", "parts"], config.train.dtype)
    return model, Ranks(ranks.rank // layout.tp, ranks.local_rank, dp, ranks.device)


def check(config: Config) -> None:
    """ValueError, naming the keys, for what no number of processes can run."""
    model, parallel = config.model, config.parallel
    heads, tp = model.n_head, parallel.tp
    if heads % tp:  # the width is a multiple of the heads, so it comes out even as well
        fit = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"parallel.tp={tp} must divide model.n_head={heads}, as {fit} do")
    if tp > 1 and model.dropout:
        raise ValueError(
            f"model.dropout={model.dropout} with parallel.tp={tp}: masks would differ; set it to 0"
        )
    if (parallel.shard or tp > 1) and config.train.dtype == "bf16-masters":
        cut = "parallel.shard=true" if parallel.shard else f"parallel.tp={tp}"
        raise ValueError(f"train.dtype=bf16-masters needs complete weights, not {cut}; take bf16")
    if parallel.copies > 1 and not parallel.shard:
        raise ValueError(
            f"parallel.copies={parallel.copies} are of parts; set parallel.shard=true, or leave it out"
        )
    if parallel.save_parts and (tp > 1 or not parallel.shard):
        given = f"parallel.shard={str(parallel.shard).lower()} and parallel.tp={tp}"
        raise ValueError(f"parallel.save_parts=true needs parallel.shard=true and parallel.tp=1, not {given}")


def is_laid_out(model: nn.Module) -> bool:
    """Whether this rank has only parts of it."""
    return any(hasattr(p, "device_mesh") for p in model.parameters())  # of a DTensor, without its import


def count_cuts(model: GPT) -> int:
    """Among how many ranks a layer's heads are dealt."""
    return model.config.n_head // model.transformer.h[0].attn.n_head


def take_part(model: GPT, name: str, x: Tensor) -> Tensor:
    """This rank's part of x, a weight of that name or a moment of it, which all ranks have complete."""
    from torch.distributed.tensor import distribute_tensor

    from nanogpt.labs.parallel.tensor import by_rank

    p = model.get_parameter(name)
    x = by_rank(x, count_cuts(model)) if ".c_attn." in name else x
    return distribute_tensor(x.to(p.device), p.device_mesh, p.placements, src_data_rank=None)


@torch.no_grad()
def fill(model: GPT, weights) -> None:
    """Copy weights into a model in any layout. weights: pairs (name, complete tensor), one at a time."""
    parts = is_laid_out(model)
    for name, x in weights:
        p = model.get_parameter(name)
        p.copy_(take_part(model, name, x.detach()) if parts else x)


def build_in_parts(shape: GPTConfig, weights, config, ranks: Ranks) -> tuple[GPT, Ranks]:
    """A model that is never complete on any rank, laid out and filled; and who reads different rows. For parts or cuts only."""
    with torch.device("meta"):
        model = GPT(shape)
    model, readers = lay_out(model, config, ranks)
    model.to_empty(device=ranks.device)
    model.lm_head.weight = model.transformer.wte.weight  # tied
    fill(model, weights)
    return model, readers


def draw_weights(config: GPTConfig, generator: torch.Generator | None = None) -> Iterator[tuple[str, Tensor]]:
    """The weights of GPT(config, generator), one at a time: name and complete tensor, on the CPU."""
    with torch.device("meta"):
        empty = GPT(config)
    for name, p in empty.named_parameters():
        x = torch.empty(p.shape)
        init_weight(name, x, config.n_layer, generator, config.vocab_size)
        yield name, x


def read_weights(folder: str | Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a folder that save_model wrote, one at a time: name and complete tensor, on the CPU."""
    from safetensors import safe_open

    with safe_open(Path(folder) / WEIGHTS, "pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no dict
            yield name, file.get_tensor(name)


def gather_model(model: GPT) -> GPT | None:
    """On rank 0's CPU the model as one process has it; None elsewhere; itself if it is not laid out. All ranks call it."""
    if not is_laid_out(model):
        return model
    from nanogpt.labs.parallel.fsdp import unsharded
    from nanogpt.labs.parallel.tensor import by_part

    gathered = unsharded(model)
    for block in gathered.transformer.h if gathered else ():
        for p in block.attn.c_attn.parameters():
            p.data = by_part(p.data, count_cuts(model))
    return gathered


@torch.no_grad()
def evaluate_together(model: GPT, shards, eot: int, ranks: Ranks, B=32, precision="float32") -> float:
    """Chapter 18's `evaluate` by a model that is laid out, with the rows dealt to the readers. All ranks call it.

    ranks: all processes; count_cuts(model) of them, neighbours, are one reader. FSDP2 keeps the root gathered until a
    backward, which does not come here: call the model's `reshard` at the end, if it has one, before dist.all_reduce.
    """
    cut = count_cuts(model)
    n, me = ranks.size // cut, ranks.rank // cut  # readers, and which of them this is
    with evaluating(model) as device:
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nats, and tokens
        for tokens in shards:
            rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
            mine = rows[me::n]
            for i in range(0, -(-len(rows) // n), B):
                counted = mine[i : i + B]
                x, y = (ids.to(device) for ids in padded(tokens, counted or rows[:1]))
                with autocast(precision, device):
                    loss = model(x, y)[1]
                if counted:
                    tokens_here = (y != -100).sum()
                    sums += torch.stack([loss.double() * tokens_here, tokens_here])
    if hasattr(model, "reshard"):  # FSDP2 keeps the root gathered until a backward, which does not come
        model.reshard()
    dist.all_reduce(sums)  # tensor parallelism counts a reader's rows several times, tokens as well as nats
    return (sums[0] / sums[1]).item()


def snapshot(run) -> tuple[GPT, dict, Callable]:
    """What a checkpoint of this run holds: model, state, and what writes the weights. All ranks call it."""
    if not (run.config.parallel.save_parts and is_laid_out(run.model)):
        return gather_model(run.model), run.state_dict(), save_model
    from nanogpt.labs.parallel.fsdp import save_parts  # here: its imports take a second

    parts = run.folder / f".step_{run.step:06d}.parts.tmp"
    save_parts(parts, run.model, run.optimizer)  # returns when all have written

    def write(model: GPT, folder: Path) -> None:
        os.rename(parts, folder)
        save_json(folder / "config.json", asdict(model.config))

    return run.model, replace(run, optimizer=None).state_dict(), write


def join(checkpoint: str | Path, folder: str | Path) -> None:
    """Write the model of a checkpoint in parts as save_model does, and its tokenizer, on one process, whose memory must hold it."""
    import torch.distributed.checkpoint as dcp  # here: it takes a second

    model = GPT(GPTConfig(**json.loads((Path(checkpoint) / "config.json").read_bytes())))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process
        dcp.load(weights, checkpoint_id=Path(checkpoint))  # in place
    save_model(model, folder)
    if (tokenizer := Path(checkpoint) / "tokenizer.json").exists():
        shutil.copy(tokenizer, folder)


class LaidOutAdamW(torch.optim.AdamW):
    """AdamW for a model that is laid out. For a checkpoint its moments are gathered, and so a run can go on in any layout."""

    def __init__(self, model: GPT, lr: float, *, betas, weight_decay: float):
        names = {p: name for name, p in model.named_parameters()}
        groups, apart = decay_groups(model, weight_decay), []
        self.model, self.named = model, [[names[p] for p in group["params"]] for group in groups]
        for group in groups:  # a fused update takes no tensors of two meshes
            meshes = dict.fromkeys(p.device_mesh for p in group["params"])
            apart += [{**group, "params": [p for p in group["params"] if p.device_mesh == m]} for m in meshes]
        self.decays = [group["weight_decay"] for group in groups]
        super().__init__(apart, lr=lr, betas=betas, fused=True)

    @property
    def numbered(self) -> list[str]:
        """The names of the parameters, in the order in which one process numbers them."""
        return [name for names in self.named for name in names]

    def state_dict(self) -> dict:
        """As AdamW's of one process, on rank 0's CPU; on the others without moments. All ranks call it."""
        from nanogpt.labs.parallel.tensor import plain

        state, groups, first = {}, [], dist.get_rank() == 0
        for i, name in enumerate(self.numbered):
            moments = self.state[self.model.get_parameter(name)]
            found = {what: plain(self.model, [(name, x)])[name] for what, x in moments.items() if x.dim()}
            found |= {what: x for what, x in moments.items() if not x.dim()}  # how many updates
            state[i] = {what: x.cpu() for what, x in found.items()} if first else {}
        options = {what: value for what, value in self.param_groups[0].items() if what != "params"}
        for decay, names in zip(self.decays, self.named):
            begin = sum(len(group["params"]) for group in groups)
            numbers = list(range(begin, begin + len(names)))
            groups.append(options | {"weight_decay": decay, "params": numbers})
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict) -> None:
        """The moments of a checkpoint of any layout; the options stay this run's."""
        for i, name in enumerate(self.numbered):
            p = self.model.get_parameter(name)
            for what, x in state_dict["state"].get(i, {}).items():
                self.state[p][what] = take_part(self.model, name, x) if x.dim() else x.to(p.device, copy=True)


def check_ranks(config: Config, ranks: Ranks) -> None:
    """ValueError if this is not the number of processes that the layout needs."""
    data_parallel(config.parallel, ranks.size)


def compile_blocks(model: GPT) -> GPT:
    """torch.compile for a model that is laid out, in place: block by block, because ranks talk between them."""
    for block in model.transformer.h:
        block.forward = torch.compile(block.forward)  # not the module: FSDP2's hooks stay around it
    return model


def scaled(weights, shape: GPTConfig) -> Iterator[tuple[str, Tensor]]:
    """Chapter 07's first weights, one complete tensor at a time."""
    for name, x in weights:
        scale_weight(name, x, shape.n_embd)
        yield name, x


def build_parts(config: Config, manifest: dict, ranks: Ranks) -> tuple[GPT, Ranks]:
    """As build_model, but a rank has only its parts; and who reads different rows. ValueError for adapters and answers."""
    if config.lora.rank or config.data.answers_after:
        raise ValueError("adapters and answers need a complete model; leave out parallel.shard, parallel.tp")
    if config.init_from is not None:
        given = build.load_given(config, manifest)
        return build_in_parts(given.config, given.named_parameters(), config, ranks)
    shape = config.model.shape(manifest["vocab_size"])
    weights = draw_weights(shape, torch.Generator().manual_seed(config.run.seed))
    return build_in_parts(shape, scaled(weights, shape), config, ranks)


def place_model(config: Config, manifest: dict, ranks: Ranks) -> tuple[GPT, nn.Module, Ranks]:
    """The run's model as config.parallel says, what a step calls, and the ranks that read different rows."""
    if ranks.size > 1 and (config.parallel.shard or config.parallel.tp > 1):
        model, readers = build_parts(config, manifest, ranks)
        return model, compile_blocks(model) if config.train.compile else model, readers
    model, stepper, readers = trainer.place_model(config, manifest, ranks)
    if config.parallel.recompute:
        from nanogpt.labs.parallel.fsdp import recompute_blocks  # here: its imports take a second

        recompute_blocks(model)
    return model, stepper, readers


def build_optimizer(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it, for a model in any layout."""
    if not is_laid_out(model):
        return build.build_optimizer(config, model)
    return LaidOutAdamW(
        model, config.optim.lr, betas=config.optim.betas, weight_decay=config.optim.weight_decay
    )


def load_weights(run, folder: Path) -> None:
    """Give the run's model, in any layout, the weights of a checkpoint."""
    if is_in_parts(folder):
        return trainer.load_weights(run, folder)
    fill(run.model, read_weights(folder))


def held_loss(run) -> float:
    """The mean loss on the held-out tokens, by all ranks; rows or documents are dealt to them."""
    if not is_laid_out(run.model):
        return trainer.held_loss(run)
    return evaluate_together(run.model, *run.held, run.ranks, precision=run.config.train.dtype)


def whole_model(run) -> GPT | None:
    """On rank 0 the model as one process has it, None elsewhere. All ranks call it."""
    if not is_laid_out(run.model):
        return trainer.whole_model(run)
    model = gather_model(run.model)
    return model and model.to(run.device)
