# %% [markdown]
r"""
# 21d · Layouts: who holds what

Chapters 20 to 21b have given three ways to share a model: copies (DDP), parts (FSDP2), and layers cut across ranks (tensor parallelism). A run takes
one number of each. In this sitting they become three words in the run's configuration, the trainer does the rest, and the law stays what it
was: however a run is laid out, the losses are those of one process.

```
                     tp: ranks that share the work of a layer, inside a machine
                 ┌────────┬────────┐
   dp: ranks     │ rank 0 │ rank 1 │   read rows 0, 1      parallel:
   that read     ├────────┼────────┤                         dp: 2
   other rows    │ rank 2 │ rank 3 │   read rows 2, 3        shard: true    each of the dp keeps a part of what it has
                 └────────┴────────┘                         tp: 2
```

What is hard is not the grid. It is all that a trainer does beside the step: which rows a rank reads, whose gradient norm is logged, what a checkpoint holds,
who may call the model alone. And numbers that cannot work must say so before a hundred processes wait for each other.
"""

# %%
#| default_exp parallel.laid_out
#| doc parallel.laid_out: A model laid out over processes as the configuration says: copied, in parts, cut; and whole again.
#| doc parallel.layout: The configuration's section `parallel`, and what is impossible in it, each in one line.
#| doc drills.layouts: What chapter 21d makes several processes do: steps in every layout, counted, and a checkpoint in parts.
import json
import os
import shutil
import warnings
from pathlib import Path

from course.figures import layouts as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.corpora.corpus import ensure_corpus

N = 4  # processes of the grids below
DATA, RUNS, OUT = "../data/built/stories", Path("../data/built/layouts"), "../data/built/layouts.json"
assert N in (2, 4, 8), f"N={N} processes: take an even number that divides the model's 8 heads and its 8 rows"
_ = ensure_corpus(DATA)

# %% [markdown]
r"""
## Three words

`dp` may be left out: then it is whatever the number of processes allows, and a run without the section is DDP, as in chapter 20a.
"""

# %%
#| export parallel.layout
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field


@dataclass(frozen=True)
class Parallel:
    """How processes share a run: dp × tp of them."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    dp: Annotated[int, Field(gt=0)] | None = None  # parts of the batch; null: as many as the processes allow
    shard: bool = False  # each of dp keeps a part of weights, gradients and moments: chapter 21
    tp: Annotated[int, Field(gt=0)] = 1  # processes among which each layer is cut: chapter 21b


# %%
#| export parallel.layout
def check_layout(parallel: Parallel, model, train) -> None:
    """ValueError, naming the keys, for what no number of processes can run."""
    heads, tp = model.n_head, parallel.tp
    if heads % tp:  # the width is a multiple of the heads, so it comes out even as well
        fit = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"parallel.tp={tp} must divide model.n_head={heads}, as {fit} do")
    if tp > 1 and model.dropout:
        raise ValueError(
            f"model.dropout={model.dropout} with parallel.tp={tp}: masks would differ; set it to 0"
        )
    if (parallel.shard or tp > 1) and train.dtype == "bf16-masters":
        cut = "parallel.shard=true" if parallel.shard else f"parallel.tp={tp}"
        raise ValueError(f"train.dtype=bf16-masters needs whole weights, not {cut}; take bf16")


# %%
#| export parallel.layout
#| blank data_parallel: without dp, divide the processes by tp; with dp, their product must be the processes
def data_parallel(parallel: Parallel, processes: int) -> int:
    """Of so many processes, how many read different rows: processes / tp. ValueError where the numbers disagree."""
    dp, tp = parallel.dp, parallel.tp
    if dp is None and processes % tp == 0:
        return processes // tp
    if dp is None:
        raise ValueError(f"parallel.tp={tp} needs a multiple of {tp} processes; {processes} were started")
    if dp * tp != processes:
        started = (
            f"{processes} {'was' if processes == 1 else 'were'} started (torchrun --nproc-per-node {dp * tp})"
        )
        raise ValueError(f"parallel.dp={dp} × parallel.tp={tp} needs {dp * tp} processes; {started}")
    return dp


# %% [markdown]
r"""
Of a layer's sizes only the heads are asked for: the width is a multiple of them, the MLP four times the width, and a vocabulary that does not come out even gives the last
rank fewer rows (chapter 21b). The number of processes is known only when they have been started, so that question waits until then, and
is asked before the processes meet.

*Predict.* Of these eight wishes, made for `tiny` with its 8 heads, how many can be run?
"""

# %%
predict("21d.1", "wishes that can be run", guess=None)
WISHES = [  # processes started, and what the command line says
    (4, "parallel.dp=2 parallel.tp=2 parallel.shard=true"),
    (2, "parallel.dp=2 parallel.tp=2"),
    (3, "parallel.tp=3"),
    (6, "parallel.tp=4"),
    (1, "parallel.dp=2"),
    (2, "parallel.tp=2 model.dropout=0.1"),
    (2, "parallel.shard=true train.dtype=bf16-masters"),
    (4, "parallel.tp=4"),
]

# %%
import yaml

from nanogpt.run.config import load_config


def layout_of(words: str) -> tuple[Parallel, list[str]]:
    """The layout that a command line asks for, and its other words."""
    pairs = [word.split("=") for word in words.split()]
    inner = {
        key.removeprefix("parallel."): yaml.safe_load(value) for key, value in pairs if "parallel" in key
    }
    return Parallel(**inner), [f"{key}={value}" for key, value in pairs if "parallel" not in key]


# %%
can = 0
for processes, words in WISHES:
    layout, others = layout_of(words)
    config = load_config("tiny", others)
    try:
        check_layout(layout, config.model, config.train)
        rows = data_parallel(layout, processes)
        print(f"{processes} processes, {words}: {rows} read different rows")
        can += 1
    except ValueError as error:
        print(error)
answer("21d.1", can)

# %% [markdown]
r"""
## Laying out

PyTorch calls the grid a *device mesh*. Each dimension of it is a set of process groups: rank 2 above meets rank 3 for a layer's sums and rank 0 for gradients.
Ours has three dimensions, one of them of size one: FSDP2 takes a mesh of two, *copies × parts*, and averages gradients over the copies, so that `dp × tp` without shards needs
no code of its own. The order matters. First layers are cut, then what a rank has of them is put into parts, since FSDP gathers what a layer
needs *on this rank*.
"""

# %%
#| export
import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.gpt.model import GPT
from nanogpt.gpt.optim import decay_groups, make_optimizer
from nanogpt.parallel.distributed import Ranks, replicate


# %%
#| export
def lay_out(model: GPT, config, ranks: Ranks) -> tuple[nn.Module, Ranks]:
    """Lay the model out over the ranks as config.parallel says, in place; make the optimizer afterwards.

    Returns what train_step takes, and who reads different rows: of ranks that share a layer's work, one.
    """
    layout, dp = config.parallel, data_parallel(config.parallel, ranks.size)
    if ranks.size == 1 or (layout.tp == 1 and not layout.shard):
        return replicate(model, ranks), ranks
    from torch.distributed.device_mesh import init_device_mesh  # here: what follows takes a second to import

    from nanogpt.parallel.fsdp import shard
    from nanogpt.parallel.tensor import split

    shape = (1, dp, layout.tp) if layout.shard else (dp, 1, layout.tp)
    mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("copies", "parts", "tp"))
    if layout.tp > 1:  # first, so that what is sharded is what a layer's rank has
        split(model, mesh["tp"])
    if dp > 1:
        shard(model, mesh["parts"] if layout.shard else mesh["copies", "parts"])
    rows = "parts" if layout.shard else "copies"
    return model, Ranks(mesh.get_local_rank(rows), ranks.local_rank, dp, ranks.device)


# %% [markdown]
r"""
The second thing that comes back answers the questions of data. Rows are dealt to those who read different ones, and ranks that share a layer's work get the same: there are fewer readers than processes. (What `train_step` averages over
*all* ranks needs no change, since equal numbers leave a mean what it is. A sum would count them twice.)

## Whole again

A checkpoint stays what chapter 17b made it: one model, one optimizer, hashed, written by rank 0, readable by `sample` on a laptop. So what was laid out is gathered before it is written,
and laid out when it is read. Then a layout is no property of a run but of its processes, and may change on the way.

One thing DTensor does not know: chapter 21b has put `c_attn`'s rows into another order, so that a rank has q, k and v of its own heads. A gathered `c_attn` is in *that*
order.
"""


# %%
#| export
#| blank cuts: compare the heads of the configuration with those of a layer on this rank
def is_laid_out(model: nn.Module) -> bool:
    """Whether this rank has only parts of it."""
    return any(hasattr(p, "device_mesh") for p in model.parameters())  # of a DTensor, without its import


def cuts(model: GPT) -> int:
    """Among how many ranks a layer's heads are dealt."""
    return model.config.n_head // model.transformer.h[0].attn.n_head


def whole_model(model: GPT) -> GPT:
    """The model as one process has it, on the CPU of each rank; itself if it is not laid out. All ranks call it."""
    if not is_laid_out(model):
        return model
    from nanogpt.parallel.fsdp import unsharded
    from nanogpt.parallel.tensor import by_part

    gathered = unsharded(model)
    for block in gathered.transformer.h:
        for p in block.attn.c_attn.parameters():
            p.data = by_part(p.data, cuts(model))
    return gathered


# %%
#| export
def laid_out(model: GPT, name: str, x: Tensor) -> Tensor:
    """This rank's part of x, a weight of that name or a moment of it, which all ranks have whole."""
    from torch.distributed.tensor import distribute_tensor

    from nanogpt.parallel.tensor import by_rank

    p = model.get_parameter(name)
    x = by_rank(x, cuts(model)) if ".c_attn." in name else x
    return distribute_tensor(x.to(p.device), p.device_mesh, p.placements, src_data_rank=None)


@torch.no_grad()
def fill(model: GPT, weights: GPT) -> None:
    """Take over another model's weights, which each rank has whole."""
    if not is_laid_out(model):
        model.load_state_dict(weights.state_dict())
        return
    for name, x in weights.named_parameters():
        model.get_parameter(name).copy_(laid_out(model, name, x.detach()))


# %% [markdown]
r"""
AdamW's moments lie as their parameters do. One kernel updates many tensors at once but takes none of two meshes together, so the groups of chapter 15 are cut further; in
a checkpoint parameters are numbered as one process numbers them.
"""


# %%
#| export
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


# %%
#| export
class LaidOutAdamW(LaidOutAdamW):
    def state_dict(self) -> dict:
        """As AdamW's of one process, on rank 0's CPU; on the others without moments. All ranks call it."""
        from nanogpt.parallel.tensor import plain

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


# %%
#| export
class LaidOutAdamW(LaidOutAdamW):
    def load_state_dict(self, state_dict: dict) -> None:
        """The moments of a checkpoint of any layout; the options stay this run's."""
        for i, name in enumerate(self.numbered):
            p = self.model.get_parameter(name)
            for what, x in state_dict["state"].get(i, {}).items():
                self.state[p][what] = laid_out(self.model, name, x) if x.dim() else x.to(p.device, copy=True)


def optimizer_for(
    model: GPT, lr: float, precision: str, compiled: bool = False, **options
) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, or the same for a model that is laid out."""
    if is_laid_out(model):
        return LaidOutAdamW(model, lr, **options)
    return make_optimizer(model, lr, precision, compiled=compiled, **options)


# %% [markdown]
r"""
Gathering costs. Every rank receives the weights, and rank 0 holds weights and moments on its CPU: twelve bytes a parameter. It is simple, and enough for every model of this course. Validation,
samples and HellaSwag use the gathered model too. A rank that called the laid-out one alone would wait for the others for ever (chapter 20b), and in a forward pass of FSDP *every* rank must take part as
often as the others, also one whose share of the documents has run out.

In the trainer all this is some ten lines, which a later section adds: `lay_out`, `fill`, `optimizer_for` where a run is assembled, `whole_model` where one is looked at or saved, and the readers where rows are dealt. The gradient's norm
needs none, since chapter 21 has taught `train_step` the global one.

## Four grids

The drill makes three steps in each layout, with chapter 20's small model and its batch of 8 rows, and notes losses, norms, what a rank keeps between two steps, and which part of one matrix it has.
"""


# %%
#| export drills.layouts
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
from nanogpt.text.data import DocumentStream


# %%
#| export drills.layouts
MATRIX = "transformer.h.0.mlp.c_proj.weight"


def grids(n: int) -> dict[str, Parallel]:
    """The layouts of n processes that are compared."""
    two = {"parts × cuts": Parallel(dp=n // 2, shard=True, tp=2)}
    return {"copies": Parallel(dp=n), "parts": Parallel(dp=n, shard=True), "cuts": Parallel(tp=n)} | two


# %%
#| export drills.layouts
def made(grid: Parallel, ranks: Ranks, data: str):
    """Chapter 20's model in this layout: model, stepper, optimizer and stream."""
    model, _, stream = fresh(Ranks(device=ranks.device), data)
    stepper, readers = lay_out(model, SimpleNamespace(parallel=grid), ranks)
    optimizer = optimizer_for(model, LR, "float32", betas=(0.9, 0.98), weight_decay=0.01)
    dealt = my_rows(ROWS, readers)
    stream = DocumentStream(stream.paths, T=stream.T, device=ranks.device, **dealt)
    return model, stepper, optimizer, stream


# %%
#| export drills.layouts
#| blank kept: count this rank's part of each parameter, each gradient and each moment
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


# %%
#| export drills.layouts
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


# %%
#| export drills.layouts
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


# %% [markdown]
r"""
PyTorch's own checkpoint (`torch.distributed.checkpoint`) does without gathering: each rank writes its parts, and a list of what lies where lets any number of ranks
read what they need. Chapter 21 has wrapped it as `save_parts` and `load_parts`. The second drill saves in parts, and notes the loss of the step after.
"""


# %%
#| export drills.layouts
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

# %% [markdown]
r"""
*Predict.* The model has 0.53 million parameters, so that one process keeps 8.5 MB: weights, gradients, two moments, four bytes each. What does a rank keep on the grid *parts × cuts*, and
with cuts alone, where every rank has all LayerNorms and positions?
"""

# %%
predict("21d.2", "MB that a rank keeps on parts × cuts", guess=None, unit="MB")
os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # PyTorch 2.9 keeps no flight record else
torchrun("21d", N, "drill", "drills.layouts:ways", "drills.layouts:parts", "--data", DATA, "--out", OUT)
found = json.loads(Path(OUT).read_text())
told, one = found["drills.layouts:ways"], found["drills.layouts:ways"]["one process"]["told"]
for name, way in told.items():
    apart = max(abs(a - b) for ours, theirs in zip(way["told"], one) for a, b in zip(ours, theirs))
    assert apart < 1e-4, f"{name} has another loss or norm than one process, by {apart:.1e}"
    loss, norm = way["told"][-1]
    print(f"{name:12} third loss {loss:.3f}, norm {norm:.3f}: as one process, to rounding")

# %%
keeps = {name: max(way["kept"], key=lambda kept: sum(kept.values())) for name, way in told.items()}
show(
    figures.memory(keeps),
    alt="Bytes a rank keeps by layout: one process and copies 8.5 MB, the others about a quarter.",
)
for name, kinds in keeps.items():
    print(f"{name:12} {sum(kinds.values()) / 1e6:.2f} MB")
answer("21d.2", sum(keeps["parts × cuts"].values()) / 1e6)

# %% [markdown]
r"""
Copies save nothing. Parts divide everything by the number of ranks, cuts all but what every rank has whole: positions, LayerNorms, and the biases that are added after a sum. Which part
that is shows one matrix of the MLP, `c_proj` with 128 outputs (rows) and 512 inputs (columns):
"""

# %%
held = {name: way["has"] for name, way in told.items() if name != "one process"}
show(
    figures.holders(held, (128, 512)),
    alt="One matrix on four ranks: copies hold all, parts a band of rows, cuts a band of columns, the grid a quarter of each.",
)

# %% [markdown]
r"""
A *part* is some rows: the matrix is gathered before it is used, and no rank computes with its rows alone. A *cut* is the columns for the inputs that this rank's share of `c_fc` makes: the rank
multiplies by it, and the results are summed. On the grid ranks 0 and 2 have the same columns and gather them from each other, as ranks 1 and 3 do. What travels is therefore of two kinds:
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.drills.ddp import ROWS, SHAPE

for name, grid in grids(N).items():
    calls, B = told[name]["sent"], ROWS // data_parallel(grid, N)
    stream_size = B * SHAPE["block_size"] * SHAPE["n_embd"]  # of (B, T, C), this rank's rows
    text = ", ".join(f"{len(n)} {kind}, {4 * sum(n) / 1e6:.2f} MB" for kind, n in calls.items())
    print(f"{name:12} {text}; of (B, T, C): {sum(n == stream_size for n in calls.get('all_reduce', []))}")

# %% [markdown]
r"""
(Of rank 0, in one step, as chapter 20b's flight recorder has them. Gloo makes FSDP's reduce-scatter of an all-reduce, which is why parts put the whole gradient into those; NCCL does not.) Copies and parts move
*parameters*: as many bytes however long the text is. Cuts move *activations*, (B, T, C) twice in forward and twice in backward of each of two layers, once for the embedding and once for the head: as many bytes however
large the vocabulary and the MLP are. On the grid these have half the rows, and each rank has half the parameters to average.
"""

# %% [markdown]
r"""
## The layout in the trainer

The trainer knows many processes since chapter 20a, and each of them has a complete model. Now its functions grow once more. First the configuration gets its section `parallel`. It is one more field of `Config`, with the check that was written above:
"""

# %%
from dataclasses import field

from nanogpt.device import pick_device
from nanogpt.gpt.precision import why_not
from nanogpt.gpt.weights import load_model
from nanogpt.run.config import Config, check_together
from nanogpt.run.together import too_large
from nanogpt.run.training import Training


# %%
#| export run.config
#| grows Config.__post_init__
@dataclass(frozen=True)
class Config(Config):
    parallel: Parallel = field(default_factory=Parallel)  # how processes share the run

    def __post_init__(self):
        check_together(self.model, self.optim, self.train)
        check_layout(self.parallel, self.model, self.train)


# %%
print(Config().parallel)

# %% [markdown]
r"""
A layout belongs to the processes and not to the run's identity, so it may change on the way (`FREE`). Whether the number of processes fits is asked before they meet:
"""


# %%
#| export run.together
#| grows check_run
def check_run(config: Config, ranks: Ranks) -> None:
    """ValueError for a run that these ranks cannot do, before they meet."""
    data_parallel(config.parallel, ranks.size)  # is this the number of processes that the layout needs?
    if config.init_from is None and (reason := too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)


# %%
#| export run.assemble
#| grows FREE
#| grows optimizer_of
#| grows take_weights
FREE = "run.", "eval.", "train.", "parallel.", "data.dir", "data.source"  # may change on a run's way


def optimizer_of(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it, for a model in any layout."""
    o, train = config.optim, config.train
    options = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": train.compile}
    return optimizer_for(model, o.lr, train.dtype, **options)


def take_weights(run: Training, folder: Path) -> None:
    """Give the run's model, in any layout, the weights of a checkpoint."""
    fill(run.model, load_model(folder))


# %% [markdown]
r"""
A run is assembled with `lay_out` in the place of DDP, and rows go to those who read different ones. When it is looked at or saved, the model is put together again first. All ranks must take part in this, also those that do not write.
"""

# %%
from collections.abc import Callable

from nanogpt.run.assemble import begun, ensure_data, first_model, stream_of
from nanogpt.run.checkpoint import random_states, save, set_random_states
from nanogpt.run.looks import validate
from nanogpt.run.together import first_alone


# %%
#| export run.assemble
#| grows assemble
def assemble(config: Config, ranks: Ranks | None = None) -> Training:
    """All that a run needs, before its first step. ranks: those that share each batch; else there is one."""
    ranks = ranks or Ranks(device=pick_device(config.run.device))
    if reason := why_not(config.train.dtype, ranks.device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = first_alone(ranks, ensure_data, config.data)
    model = first_model(config, manifest).to(ranks.device).train()
    stepper, readers = lay_out(model, config, ranks)
    run = begun(config, manifest, model, stepper, optimizer_of(config, model), stream_of(config, readers))
    run.ranks = ranks
    return run


# %%
#| export run.looks
#| grows look
def look(run: Training, looks: list[Callable]) -> dict:
    """What the looks find, for the step's line: a validation by all ranks, the rest by rank 0. No later step notices them."""
    before, found = random_states(run.device), {}
    model = whole_model(run.model).to(run.device)  # one that a rank can ask alone
    for each in looks:
        if run.ranks.rank == 0 or each is validate:
            found |= each(run, model)
    set_random_states(before, run.device)
    return found


# %%
#| export run.trainer
#| grows keep_run
def keep_run(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it. Rank 0 writes."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept != folder:
        model, state = whole_model(run.model), run.state_dict()  # all ranks: what was cut is gathered
        if run.ranks.rank == 0:
            os.fsync(metrics.fileno())
            save(run.folder, run.step, model, state, run.tokenizer)
        run.kept = folder


# %%
grown("keep_run", "21d")

# %% [markdown]
r"""
## One run, two layouts

Now the trainer: the run `tiny`, a short one with a constant rate, once by one process; and once by four on the grid, stopped half-way, and gone on with by one. *Predict.* How far apart are the two
curves at most?
"""

# %%
predict("21d.3", "the curves are apart by", guess=None, unit="nats")
STEPS = 24
keys = {"train.max_steps": STEPS, "train.batch_tokens": 1024, "optim.schedule": "constant", "optim.warmup": 4}
keys |= {
    "eval.every": 0,
    "run.log_every": 12,
    "data.dir": DATA,
    "run.device": "cpu",
    "run.dir": (RUNS / "one").as_posix(),
}


def words(**changes) -> list[str]:
    """The command line of the run, changed."""
    return ["train", "tiny", *(f"{key}={value}" for key, value in (keys | changes).items())]


# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS, ignore_errors=True)
_ = torchrun("21d", 1, *words())

# %% tags=["nbval-ignore-output"]
laid = {"run.dir": (RUNS / "laid").as_posix(), "parallel.shard": "true"}
torchrun("21d", N, *words(**laid, **{"parallel.tp": 2, "train.max_steps": STEPS // 2}))
_ = torchrun("21d", 1, *words(**laid))

# %%
from nanogpt.run.compare import verdict
from nanogpt.run.metrics import read_metrics

runs = {name: read_metrics(RUNS / name) for name in ("one", "laid")}
apart = {name: verdict(runs["one"], runs["laid"], name)[0] for name in ("loss", "norm")}
assert max(apart.values()) < 1e-3, f"the layouts are seen in the curve: {apart}"
print(f"{STEPS} steps, half of them by {N} processes: losses and norms agree to 0.001 with those of one")

# %% tags=["nbval-ignore-output"]
losses = {name: [line["loss"] for line in lines] for name, lines in runs.items()}
show(
    figures.curves(losses, STEPS // 2),
    alt="Loss against step: dots of the laid-out run lie on the line of one process, before and after the change.",
)
print(f"losses at most {apart['loss']:.1e} nats apart")
answer("21d.3", apart["loss"])

# %% [markdown]
r"""
Why not zero? A sum over ranks adds in another order than one process does; float32 rounds each sum, and Adam's division carries a rounding on. In the *same* layout a run that was stopped goes on bit for bit, as
one process does: a test holds that. And since the checkpoint is the usual one, so is everything that reads it.
"""

# %%
from nanogpt.gpt.pretrained import from_hf, to_hf
from nanogpt.gpt.weights import load_model
from nanogpt.run.checkpoint import latest

for name in runs:
    to_hf(load_model(latest(RUNS / name)), RUNS / f"{name}-hf")
ours, theirs = (from_hf(RUNS / f"{name}-hf").state_dict() for name in ("laid", "one"))
apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
assert apart < 1e-2, f"the exported weights are {apart:.1e} apart"
print(f"exported for transformers: {len(ours)} arrays, the same to 0.01")

# %% [markdown]
r"""
## In parts, or gathered

What the second drill has saved is a folder with a file a rank. Here, one process reads it, and makes the step after:
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.drills.ddp import LR, fresh
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import train_step
from nanogpt.parallel.fsdp import load_parts

warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as is meant here
written = {path.name: path.stat().st_size for path in sorted((Path(DATA).parent / "parts").iterdir())}
model, _, stream = fresh(Ranks(), DATA)
optimizer = make_optimizer(model, LR)
load_parts(Path(DATA).parent / "parts", model, optimizer)
stream.next_batch()  # the one before the checkpoint
after, theirs = (
    train_step(model, optimizer, [stream.next_batch()]).item(),
    found["drills.layouts:parts"]["after"],
)
assert abs(after - theirs) < 1e-4, f"one process goes on with {after}, {N} ranks with {theirs}"
print(f"saved by {N}, read by one: the next loss {after:.3f} is theirs")
sizes = [size / 1e6 for name, size in written.items() if name.endswith("distcp")]
print(
    f"{len(sizes)} files of {min(sizes):.1f} to {max(sizes):.1f} MB; gathered, rank 0 holds and writes",
    end=" ",
)
print(f"{found['drills.layouts:parts']['gathered'] / 1e6:.1f} MB alone")

# %% [markdown]
r"""
For a model of 175 billion parameters gathering is 2.1 TB through one process: no CPU holds it, and all other GPUs wait. So large runs save in parts. The price is that such a folder is nobody's model until a
program has put it together, and what DTensor does not know, the list does not say: on a grid with cuts, `c_attn` would be written in the order of its ranks' heads, and a reader with another `tp` would take the
wrong rows without a complaint. Here that is why the trainer gathers and reorders.

## Which layout?

Two quotients answer. Does the model fit: 16 bytes a parameter, divided by what divides them? And how long is the link busy with what travels, against the time of computing? For 64 GPUs, eight a machine, with eight rows
each, at chapter 20b's assumptions: 450 GB/s inside a machine, 50 GB/s between machines, 40% of the peak, and here nothing hidden behind computing.

*Predict.* Tensor parallelism over all 64 instead of the 8 of a machine: by what factor does GPT-3's link get slower?
"""

# %%
predict("21d.4", "tp over all GPUs keeps the link busy, times tp in a machine", guess=None, unit="×")

# %%
from nanogpt.gpt.model import SIZES, GPTConfig, num_params
from nanogpt.plan.budget import Cluster, average_seconds
from nanogpt.speed.roofline import PEAKS
from nanogpt.speed.work import step_flops

GPUS, INSIDE, EACH, ROOM = 64, 8, 8, 80  # in all, of a machine; of each: rows, and GB
assert GPUS > INSIDE > 1, (
    f"GPUS={GPUS} must be more than a machine has, INSIDE={INSIDE}, and that more than 1"
)
gpu = Cluster(flops=PEAKS["H100"].half * 1e12, per_machine=INSIDE)
MODELS = {"gpt2": SIZES["gpt2"], "gpt2-xl": SIZES["gpt2-xl"]}
MODELS["GPT-3"] = GPTConfig(
    n_layer=96, n_head=96, n_embd=12288, block_size=2048
)  # Brown et al. 2020, table 2.1


def on_the_link(config: GPTConfig, dp: int, shard: bool, tp: int) -> float:
    """Seconds a step: gradients averaged over dp, weights gathered twice where they are in parts, sums over tp."""
    weights, rows = 4 * num_params(config) / tp, EACH * tp
    across = Cluster(
        flops=gpu.flops, per_machine=INSIDE // tp if tp < INSIDE else 1
    )  # one GPU in tp of a machine
    update = average_seconds(weights, dp, across) * (1.5 if shard else 1) if dp > 1 else 0
    activations = 2 * rows * config.block_size * config.n_embd  # bytes of (B, T, C) in 16 bits
    return update + (4 * config.n_layer * average_seconds(activations, tp, gpu) if tp > 1 else 0)


# %%
LAYOUTS = {f"dp {GPUS}": (GPUS, False, 1), f"dp {GPUS}, shard": (GPUS, True, 1)}
LAYOUTS |= {f"dp {GPUS // t}, shard, tp {t}": (GPUS // t, True, t) for t in (INSIDE, GPUS)}
shares = {}
for model_name, config in MODELS.items():
    compute = EACH * step_flops(config, 1, config.block_size) / (gpu.flops * gpu.mfu)
    for layout, (dp, shard, tp) in LAYOUTS.items():
        share = on_the_link(config, dp, shard, tp) / compute
        gb = 16 * num_params(config) / (tp * (dp if shard else 1)) / 1e9
        shares.setdefault(model_name, {})[layout] = share, gb  # what the figure draws
        print(f"{model_name:8} {layout:20} {gb:8.2f} GB a GPU, link/computing {share:.2f}")
inside, across = (shares["GPT-3"][layout][0] for layout in list(LAYOUTS)[2:])
answer("21d.4", across / inside)

# %%
show(
    figures.traffic(shares, ROOM),
    alt="Link time over computing, by layout and model; red where 80 GB do not hold the model.",
)

# %% [markdown]
r"""
Read each model from the top, and stop at the first row that fits. GPT-2 and GPT-2 XL fit as copies. A ratio near one must hide behind backward (chapter 20b), or is halved by twice the rows, which is simpler than any cut. Parts
cost half as many bytes again and divide the memory by 64: the choice when copies do not fit, or leave no room for activations. GPT-3 in parts fits, but its link is busy nearly as long as its GPUs; cut eight ways inside
a machine, only an eighth of it travels between machines, and the sums stay on the fast link. Over all 64 GPUs they do not, and no model bears that.

So `tp` stays inside a machine and is no larger than needed, `shard` reaches across machines, and `dp` takes the rest. (For a small model `tp` has another use. Its ranks share *rows* too: when a batch has fewer rows
than there are GPUs, copies have nothing left to do.) What is left out here, activations, pipelines and what can be hidden, chapter 22 plans.
"""

# %% tags=["nbval-ignore-output"]
predictions("21d")

# %%
checkpoint("21d")

# %% [markdown]
r"""
## Exercises

1. Start the grid with `NANOGPT_PATIENCE=10` and let only rank 0 call `run.model` in `look`, in place of the gathered one. Which collective does rank 0 wait in? Check with chapter 20b's `flight`.
2. Log the norm of this rank's part: let `global_norm` leave its `all_reduce` out. By which factor is the curve of norms too small on two ranks and on four, and from which step do losses differ? Check with `compare`.
3. Give `lay_out` the option `precision=config.train.dtype` for `shard`. With bf16, how many bytes do the all-gathers take? Check: half, and the losses stay within bf16's rounding.
4. Save a model on *cuts* with `save_parts`, and read it with one process. Which weights are wrong, and does anything complain? Check: `by_part` puts them right.
5. Set `EACH` to 1 and to 64 rows. Which layouts' ratios change, and which do not? Check against the formula: what travels for copies does not depend on the rows.

## Further reading

- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, §3: why tensor parallelism stays inside a server, measured.
- Rajbhandari et al. 2020, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, §5 and §7: what parts save, and what they send.
- Zhao et al. 2023, *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, §3.2: copies of parts (hybrid sharding).
- Liang et al. 2024, *TorchTitan*, §2: the same grid, with pipelines and context parallelism as further dimensions.
"""
