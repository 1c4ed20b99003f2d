# %% [markdown]
r"""
# 21d ◇ · Layouts: who holds what

Chapters 20 to 21b have given three ways to share a model: copies (DDP), parts (FSDP2), and layers cut across ranks (tensor parallelism). A run takes
one number of each. In this sitting these numbers become words in the run's configuration, and the trainer does the rest. The law stays what it
was: however a run is laid out, the losses are those of one process.

```
                     tp: ranks that share the work of a layer, inside a machine
                 ┌────────┬────────┐
   dp: ranks     │ rank 0 │ rank 1 │   read rows 0, 1      parallel:
   that read     ├────────┼────────┤                         dp: 2
   other rows    │ rank 2 │ rank 3 │   read rows 2, 3        shard: true    each of the dp keeps a part of what it has
                 └────────┴────────┘                         tp: 2
```

We begin with one small matrix on this grid, all in this kernel. Then four processes train one model in four layouts, and a picture shows which rank holds which part of a matrix. Then come the things that a trainer does beside the step. A layout that cannot work must be
refused before a hundred processes wait for each other. A model that no rank can hold must be made part by part. Validation and checkpoints need all ranks. At the end we ask which layout to choose.
"""

# %%
#| default_exp labs.parallel.laid_out
#| doc labs.parallel.laid_out: The configuration's section `parallel`: a model copied, in parts, or cut; made part by part, and gathered again.
#| doc labs.drills.layouts: What chapter 21d makes several processes do: steps in every layout, counted, and a checkpoint in parts.
import json
import os
import shutil
from pathlib import Path

from course.figures import layouts as figures
from course.notebook import answer, as_module, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.labs.corpora.stories import ensure_corpus

N = 4  # processes of the grids below
DATA, RUNS, OUT = "../data/built/stories", Path("../data/built/layouts"), "../data/built/layouts.json"
assert N in (2, 4), f"N={N} processes: take an even number that divides the model's 4 heads and its 8 rows"
_ = ensure_corpus(DATA)

# %% [markdown]
r"""
## One matrix on four ranks

Who holds what? Let us look before we start any process. `local_ranks(4)` imitates four ranks in this kernel (chapter 20). PyTorch calls the grid a *device mesh*, and a DTensor (chapter 21b) has one placement for each dimension of it: `Replicate()` gives every rank the same, `Shard(0)` deals out rows, and `Shard(1)` columns. Here is a matrix of 4 × 4 numbers on the grid of the picture:
"""

# %%
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from course.figures.local_ranks import local_ranks

matrix = torch.arange(16).view(4, 4)
placed = {
    "copies along dp, cut along tp": (Replicate(), Shard(1)),
    "in parts along dp, cut along tp": (Shard(0), Shard(1)),
}
with local_ranks(4):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for words, placements in placed.items():
        print(f"{words}:", distribute_tensor(matrix, mesh, placements).to_local(), sep="\n")

# %% [markdown]
r"""
In the first layout ranks 0 and 2 hold the same two columns: they are copies of each other, and so are ranks 1 and 3. In the second layout each rank holds a quarter. Before rank 0 multiplies, it gathers rows 2 and 3 of *its* columns from rank 2, its neighbour along dp. It never sees the other two columns. Those are rank 1's, and what the two compute is added up.

So each dimension of the grid has messages of its own. Along tp ranks add up activations, along dp they gather weights and average gradients. The rest of this sitting makes a training run of that.

## The words

`dp` may be left out: then it is whatever the number of processes allows, and a run without the section is DDP, as in chapter 20a. Two words are options of chapter 21. With `recompute`, each block keeps its input alone. With `copies`, the parts need not
reach across all machines: `shard: true` and `copies: 4` on 32 processes make four groups of eight, each group holds all parts among its eight, and the four groups average their gradients. This is called *hybrid sharding*. If a group is a machine, weights are gathered inside the
machine only. `save_parts` decides how a checkpoint is written, which we come to at the end.
"""

# %%
from nanogpt.config import Parallel, key_lines

print(*key_lines(Parallel), sep="\n")

# %% [markdown]
r"""
Ranks that share the work of a layer read the same rows. So there can be fewer readers than processes. `data_parallel` says how many processes read different rows, and it refuses numbers that disagree:
"""


# %%
#| export
#| blank data_parallel: without dp, divide the processes by tp; with dp, their product must be the processes
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


# %%
some = {
    "nothing": Parallel(),
    "tp: 2": Parallel(tp=2),
    "shard: true, copies: 2": Parallel(shard=True, copies=2),
}
for section, layout in some.items():
    print(f"8 processes, the section says {section}: {data_parallel(layout, 8)} read different rows")

# %% [markdown]
r"""
## Laying out

Only `tp` makes fewer readers: with `tp: 2`, each pair of the eight processes reads the same rows, so there are four readers. With parts or copies all eight read different rows.

Each dimension of the grid is a set of process groups: rank 2 above meets rank 3 for a layer's sums and rank 0 for gradients.
Our mesh has three dimensions, *copies × parts × tp*, of which one or two may have size one. FSDP2 takes the first two: it gathers weights over the parts and averages gradients over the copies as well. So `dp × tp` without shards needs
no code of its own; it is many copies of one part each. The order matters. First layers are cut, then what a rank has of them is put into parts, since FSDP gathers what a layer
needs *on this rank*.

`shard` gets the run's precision, because autocast would keep 16-bit copies of all weights on every rank (chapter 21).
"""


# %%
#| export
import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.distributed import Ranks, replicate
from nanogpt.evaluate import evaluating, padded, windows
from nanogpt.model import GPT, GPTConfig, init_weight
from nanogpt.optim import decay_groups
from nanogpt.precision import autocast
from nanogpt.weights import WEIGHTS, save_model


# %%
#| export
#| blank lay_out: plain copies: `replicate`; else a mesh copies × parts × tp: split over its tp, shard over the rest
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


# %% [markdown]
r"""
One process has nothing to lay out: it gets its model back.
"""

# %%
from types import SimpleNamespace

little = GPTConfig(block_size=8, vocab_size=16, n_layer=1, n_head=2, n_embd=8)
config = SimpleNamespace(parallel=Parallel(), train=SimpleNamespace(dtype="float32"))
model = GPT(little, torch.Generator().manual_seed(0))
stepper, readers = lay_out(model, config, Ranks())
print(f"the same object: {stepper is model}; readers: {readers.size}")

# %% [markdown]
r"""
The second thing that `lay_out` returns answers the questions of data. Rows are dealt to those who read different ones, and ranks that share a layer's work get the same: there are fewer readers than processes. (What a step averages over
*all* ranks needs no change, since equal numbers leave a mean what it is. A sum would count them twice.)
"""

# %% [markdown]
r"""
## Four grids

Does it change anything? A drill makes three steps in each layout, with chapter 20's small model and its batch of 8 rows, and notes losses, norms, what a rank keeps between two steps, and which part of one matrix it has.

The code of the drill, which only measures, is in an appendix. So is `LaidOutAdamW`, which is AdamW for a model in parts. `torchrun` runs the exported cells of this notebook, also those that you have not come to yet.
"""


# %%
#| export labs.drills.layouts
from types import SimpleNamespace

from nanogpt.config import Parallel
from nanogpt.data import DocumentStream
from nanogpt.distributed import Ranks
from nanogpt.labs.parallel.buckets import my_rows
from nanogpt.labs.drills.ddp import LR, ROWS, fresh
from nanogpt.model import GPT
from nanogpt.optim import make_optimizer


# %%
#| export labs.drills.layouts
def grids(n: int) -> dict[str, Parallel]:
    """The layouts of n processes that are compared."""
    two = {"parts × cuts": Parallel(dp=n // 2, shard=True, tp=2)}
    return {"copies": Parallel(dp=n), "parts": Parallel(dp=n, shard=True), "cuts": Parallel(tp=n)} | two


# %%
for name, grid in grids(N).items():
    print(f"{name:12} {grid}")


# %%
#| export labs.drills.layouts
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


# %% [markdown]
r"""
`run_in` prepares one of them: what takes the steps, the optimizer, and this rank's rows. The drill `ways` calls it for one process and for each of the four grids.

*Predict.* The model has 0.536 million parameters. For each of them one process keeps its weight, its gradient and two moments, four bytes each, which makes 8.58 MB. What does a rank keep on the grid *parts × cuts*, and
with cuts alone, where every rank has all LayerNorms and positions?
"""

# %%
predict("21d.1", "MB that a rank keeps on parts × cuts", guess=None, unit="MB")

# %%
os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # PyTorch 2.9 keeps no flight record else
torchrun("21d", N, "drill", "drills.layouts:ways", "--data", DATA, "--out", OUT)
told = json.loads(Path(OUT).read_text())["drills.layouts:ways"]
one = told["one process"]["told"]
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
answer("21d.1", sum(keeps["parts × cuts"].values()) / 1e6)

# %% [markdown]
r"""
Five runs, one loss: 6.049 after three steps, and a norm of 1.908. The layouts differ in what a rank keeps. Copies save nothing; each rank has the 8.58 MB of one process. Parts divide everything by the number of ranks, which leaves 2.14 MB. Cuts divide
everything but what every rank has in full: positions, LayerNorms, and the biases that are added after a sum. These are 9,984 numbers, and they are the whole difference to 2.26 MB. On the grid two ranks share even these, so it keeps 2.18 MB. One matrix of the MLP, `c_proj`, shows who holds which part. It has 128 outputs (rows) and
512 inputs (columns):
"""

# %%
held = {name: way["has"] for name, way in told.items() if name != "one process"}
show(
    figures.holders(held, (128, 512)),
    alt="One matrix on four ranks: copies hold all, parts a band of rows, cuts a band of columns, the grid a quarter of each.",
)

# %% [markdown]
r"""
A *part* is some rows: the matrix is gathered before it is used, and no rank computes with its rows alone. A *cut* is a block of columns. Its inputs are what this rank's share of `c_fc` computes. The rank
multiplies by it, and the results are summed. On the grid ranks 0 and 2 have the same columns and gather them from each other, as ranks 1 and 3 do.

What travels in a step? There are two kinds:
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.labs.drills.ddp import ROWS, SHAPE

for name, grid in grids(N).items():
    calls, B = told[name]["sent"], ROWS // data_parallel(grid, N)
    stream_size = B * SHAPE["block_size"] * SHAPE["n_embd"]  # of (B, T, C), this rank's rows
    text = ", ".join(f"{len(n)} {kind}, {4 * sum(n) / 1e6:.2f} MB" for kind, n in calls.items())
    print(f"{name:12} {text}; of (B, T, C): {sum(n == stream_size for n in calls.get('all_reduce', []))}")

# %% [markdown]
r"""
Copies and parts move *parameters*. The 2.14 MB of the copies are the gradients of 536,064 parameters, four bytes each, and they would be as many bytes for a longer text. Cuts move *activations*: (B, T, C) twice in forward and twice in backward of each of two
layers, once for the embedding and once for the head. These ten messages of 0.26 MB are 2.62 of the 2.63 MB, and they would be as many bytes for a larger vocabulary or MLP. On the grid they have half the rows, and each rank has half the parameters to average.

(These are rank 0's collectives in one step, from chapter 20b's flight recorder. Gloo implements reduce-scatter as an all-reduce, so the complete gradient of the parts shows up there. Of an all_gather
the record has what this rank gives, a quarter of what it gets.)
"""

# %% [markdown]
r"""
## What cannot be run

Some combinations cannot work, however many processes there are. `check` refuses each of them by one sentence, which names the keys and says what would do. Chapter 17c's table `LABS` names this sitting's module for the section `parallel`, so `check` is called
as soon as a configuration with such a section is read. (`as_module` lets it be found in the notebook, before the checkpoint has written the module.)
"""


# %%
#| export
from nanogpt.config import Config, Parallel


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


# %%
as_module("labs.parallel.laid_out")

# %% [markdown]
r"""
Other combinations depend on the number of processes, and `data_parallel` refuses those. Of a layer's sizes only the heads are asked for: the width is a multiple of them, the MLP four times the width, and a vocabulary that does not come out even gives the last
rank fewer rows (chapter 21b). The number of processes is known only when they have been started, so that question waits until then, and
is asked before the processes meet.

*Predict.* Of the nine wishes in the cell after the next one, made for `tiny` with its 4 heads, how many can be run? Read them before you guess.
"""

# %%
predict("21d.2", "wishes that can be run", guess=None)

# %%
WISHES = [  # processes started, and what the command line says
    (4, "parallel.dp=2 parallel.tp=2 parallel.shard=true"),
    (2, "parallel.dp=2 parallel.tp=2"),
    (3, "parallel.tp=3"),
    (6, "parallel.tp=4"),
    (1, "parallel.dp=2"),
    (2, "parallel.tp=2 model.dropout=0.1"),
    (2, "parallel.shard=true train.dtype=bf16-masters"),
    (8, "parallel.shard=true parallel.copies=2"),
    (4, "parallel.copies=2"),
]

# %%
from nanogpt.config import load_config

can = 0
for processes, words in WISHES:
    try:
        config = load_config("tiny", words.split())
        rows = data_parallel(config.parallel, processes)
        print(f"{processes} processes, {words}: {rows} read different rows")
        can += 1
    except ValueError as error:
        print(error)
answer("21d.2", can)

# %% [markdown]
r"""
Two of the nine can be run: the grid on four processes, and the two copies of parts on eight. `check` has refused four of the others, which no number of processes could run, and `data_parallel` three whose numbers disagree. Each sentence names the keys and
what would do. And it comes before the processes have met.
"""

# %% [markdown]
r"""
## A model that no rank can hold

So far each rank made the complete model and then cut it. A model that needs this chapter cannot be made so. Its weights must come into being in parts.

PyTorch's *meta device* has tensors with a shape and without memory. We make the model there, lay it out, and only then ask for memory, of which each rank needs its part. Then the weights are filled in, one after the other: a rank
draws one complete tensor, keeps its part of it, and forgets the rest. All ranks draw with the same generator and in the same order as one process does, so the model is the same in every layout.

One thing DTensor does not know: chapter 21b has put `c_attn`'s rows into another order, so that a rank has q, k and v of its own heads. What is dealt out must be put into that order first:
"""


# %%
#| export
#| blank count_cuts: compare the heads of the configuration with those of a layer on this rank
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


# %%
#| export
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


# %%
other = GPT(little, torch.Generator().manual_seed(1))
fill(other, model.named_parameters())
same = all(torch.equal(p, q) for p, q in zip(other.parameters(), model.parameters()))
print("another model, filled weight by weight, is the same:", same)


# %% [markdown]
r"""
Where do weights come from, one at a time? From a file, which need not be read at once. Or from a generator; chapter 05's `init_weight` draws one weight, so the model need not exist:
"""


# %%
#| export
def draw_weights(config: GPTConfig, generator: torch.Generator | None = None) -> Iterator[tuple[str, Tensor]]:
    """The weights of GPT(config, generator), one at a time: name and complete tensor, on the CPU."""
    with torch.device("meta"):
        empty = GPT(config)
    for name, p in empty.named_parameters():
        x = torch.empty(p.shape)
        init_weight(name, x, config.n_layer, generator, config.vocab_size)
        yield name, x


# %%
#| export
def read_weights(folder: str | Path) -> Iterator[tuple[str, Tensor]]:
    """The weights of a folder that save_model wrote, one at a time: name and complete tensor, on the CPU."""
    from safetensors import safe_open

    with safe_open(Path(folder) / WEIGHTS, "pt") as file:
        for name in file.keys():  # noqa: SIM118  it is no dict
            yield name, file.get_tensor(name)


# %%
drawn = dict(draw_weights(little, torch.Generator().manual_seed(0)))
assert all(torch.equal(drawn[name], p) for name, p in model.named_parameters()), "other weights than GPT's"
print(f"{len(drawn)} weights, one at a time: those that GPT draws")


# %% [markdown]
r"""
Does a rank hold no more than its part while the model is made? The drill `making` makes it in both ways, in parts on all four ranks, and looks at the peak:
"""

# %%
torchrun("21d", N, "drill", "drills.layouts:making", "--data", DATA, "--out", OUT)
making = json.loads(Path(OUT).read_text())["drills.layouts:making"]
for way, peak in making["peaks"].items():
    print(f"{way:14} a peak of {peak / making['weights']:.2f} × the weights on a rank")
share = 1 / N + making["largest"] / making["weights"]
print(f"a part and the largest tensor: {share:.2f} × the weights")
assert making["peaks"]["part by part"] < making["weights"], "a rank has held the complete model"

# %% [markdown]
r"""
If the model is cut after it was made, every rank holds the complete weights and then its quarter of them: 1.25 times the weights. That 1 stays, however many ranks there are. Part by part the peak is 0.56 times the weights: the rank's quarter, and a tensor or two, of
which the token table is the largest and another quarter. With more ranks, the share falls.
"""

# %% [markdown]
r"""
## Complete again

A checkpoint stays what chapter 17b made it: one model, one optimizer, hashed, written by rank 0, readable by `sample` on a laptop. So what was laid out is gathered before it is written,
and laid out when it is read. Then a layout is no property of a run but of its processes, and may change on the way. The gathered `c_attn` is in the order of the ranks' heads, and must be put back:
"""


# %%
#| export
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


# %%
print("one process gets its own model back:", gather_model(model) is model)


# %% [markdown]
r"""
Gathering has its price: rank 0 holds weights and moments on its CPU, twelve bytes a parameter. It is simple, and enough for every model of this course. Samples are written by this gathered model too.

Validation is different. It comes often, and its loss can be computed by the model as it is laid out. But a rank that calls such a model alone waits for the others for ever (chapter 20b): in each forward pass *every* rank must take part. So rows are dealt to the readers like cards, and whoever has no row left
when others have runs one that does not count:
"""


# %%
#| export
#| blank evaluate_together: every reader's rows, B at a time; as many passes on all; then an all-reduce of two sums
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


# %% [markdown]
r"""
The optimizer's moments are gathered and dealt out in the same way (`LaidOutAdamW`, in the appendix). The trainer asks for all this by short functions, also in the appendix. The gradient's norm needs none, since `global_norm` has known parts since chapter 21.
"""

# %% [markdown]
r"""
## One run, two layouts

Now the trainer, which finds the layout's functions in the appendix: the run `tiny`, a short one with a constant rate, first by one process alone. Then four processes on the grid train the first half, and one process trains the second half. *Predict.* How far apart are the two
curves at most?
"""

# %%
predict("21d.3", "the curves are apart by", guess=None, unit="nats")

# %%
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
from nanogpt.labs.long_run.compare import verdict
from nanogpt.metrics import read_metrics

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
The two curves are one. After 24 steps the logs agree to the last digit or the one before, and no step is further apart than a millionth of a nat. The logs also say what it costs here: a step on the grid takes several times as long as one in one process, because four processes share this
machine's cores and talk through gloo. On one machine a layout saves memory, not time.

Why not zero? A sum over ranks adds in another order than one process does; float32 rounds each sum, and Adam's division carries a rounding on. In the *same* layout a run that was stopped goes on bit for bit, as
one process does: a test holds that. And since the checkpoint is the usual one, so is everything that reads it.
"""

# %%
from nanogpt.checkpoint import latest
from nanogpt.pretrained import from_hf
from nanogpt.labs.formats.hf import to_hf
from nanogpt.weights import load_model

for name in runs:
    to_hf(load_model(latest(RUNS / name)), RUNS / f"{name}-hf")
ours, theirs = (from_hf(RUNS / f"{name}-hf").state_dict() for name in ("laid", "one"))
apart = max((ours[name] - theirs[name]).abs().max().item() for name in theirs)
assert apart < 1e-2, f"the exported weights are {apart:.1e} apart"
print(f"exported for transformers: {len(ours)} arrays, the same to 0.01")

# %% [markdown]
r"""
## A checkpoint in parts

For a model of 175 billion parameters, gathering brings 2.1 TB through one process. Few machines have so much memory, and all other GPUs wait. So large runs save in parts. With `parallel.save_parts=true` each rank writes its own parts, by chapter 21's `save_parts`, and nobody gathers anything. The rules of chapter 17b stay the same. The parts go into a folder with a
temporary name. When the last rank has written, rank 0 adds the rest of the run's state and the manifest of hashes, and gives the folder its name. If a rank is killed before that, the checkpoint before it is still the newest one, and complete.

Megatron-LM saves in the same way. A published log says `ckpt_format torch_dist`, PyTorch's format of parts. Its line about a saved checkpoint ends in `[ t 1/2, p 1/1 ]`: the first of two ranks of tensor parallelism, in the first of one stage of a pipeline.

`snapshot` says what goes into a checkpoint: the gathered model and the state, or all ranks' parts; and the function with which chapter 17b's `save` writes the weights. The trainer has a function of this name since chapter 17e, and calls a lab's in its place if there is one. Our module is the lab of the section `parallel`.
"""


# %%
#| export
import os
from collections.abc import Callable
from dataclasses import asdict, replace

from nanogpt.files import save_json


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


# %% [markdown]
r"""
We run the first half of our run once more, on four ranks with parts:
"""

# %% tags=["nbval-ignore-output"]
split_up = {"run.dir": (RUNS / "parts").as_posix(), "parallel.shard": "true", "parallel.save_parts": "true"}
_ = torchrun("21d", N, *words(**split_up, **{"train.max_steps": STEPS // 2}))

# %%
half = f"step_{STEPS // 2:06d}"
for path in sorted((RUNS / "parts" / half).iterdir()):
    print(path.name)

# %% [markdown]
r"""
There is one file of parts for each rank. `.metadata` says which part of which tensor is where in them. `state.json` and `state.safetensors` are as before, but without the optimizer's moments, because these are in parts as well.

Such a checkpoint can be continued on any number of ranks without cuts, also on one. On the same number the run goes on bit for bit (a test kills a rank in the middle of a checkpoint, and goes on). On another number sums have another order again.

The price is that such a folder is no model yet. The last line of the run proposes `sample` nevertheless, because `print_results` does not know how the checkpoint was written. `sample` and `eval` find their checkpoint by `pick_checkpoint`, which chapter 21 has taught to refuse it:
"""

# %%
from nanogpt.checkpoint import pick_checkpoint

try:
    pick_checkpoint(RUNS / "parts")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
`join` reads all parts in one process and writes the model as `save_model` does. It must be the model that the grid had after as many steps:
"""


# %%
#| export
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


# %%
join(RUNS / "parts" / half, RUNS / "joined")
theirs = load_model(RUNS / "laid" / half).state_dict()
apart = max(
    (p - theirs[name]).abs().max().item() for name, p in load_model(RUNS / "joined").state_dict().items()
)
assert apart < 1e-2, f"the joined weights are {apart:.1e} from those of the grid"
print("the joined parts are the grid's model, to 0.01")

# %% [markdown]
r"""
Two limits remain. Rank 0 still reads each part once to compute its hash, and every rank compares all hashes when it goes on. And `save_parts` refuses `tp`. The list of parts says nothing of what DTensor does not know: on a grid with cuts, `c_attn` would be written in the order of the ranks' heads, and a reader with another `tp` would take the
wrong rows without a complaint.

## Which layout?

Two questions decide. Does the model fit: 16 bytes a parameter, divided by the ranks that share them, and the activations of at least one row? And how long is the link busy with what travels, against the time of computing? We answer them for 64 GPUs, eight a machine, with eight rows
each, at chapter 20b's assumptions: 450 GB/s inside a machine, a network card of 50 GB/s for each GPU, 40% of the peak, and nothing hidden behind computing.

*Predict.* For GPT-3, tensor parallelism over all 64 GPUs takes the place of the 8 of a machine. By what factor is the link busy longer? (Here we only
ask about the link. `check` would refuse this layout, since 96 heads cannot be dealt to 64 ranks, and also `tp` 8 for the 12 and 25 heads of the two
smaller models.)
"""

# %%
predict("21d.4", "tp over all GPUs keeps the link busy, times tp in a machine", guess=None, unit="×")

# %%
from nanogpt.labs.plan.budget import Cluster, average_seconds
from nanogpt.labs.roofline.memory import activation_bytes
from nanogpt.model import SIZES, GPTConfig, num_params
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.model import step_flops

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
    across = replace(gpu, per_machine=max(1, INSIDE // tp))  # of each machine, one GPU in tp
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
        states = 16 * num_params(config) / (tp * (dp if shard else 1)) / 1e9
        row = activation_bytes(config, 1, config.block_size) / 2 / 1e9  # in 16 bits
        if tp > 1:  # the stream and the norms' outputs, twice each in a block, are complete on every rank
            complete = 2 * 4 * config.n_layer * config.block_size * config.n_embd / 1e9
            row = complete + (row - complete) / tp
        shares.setdefault(model_name, {})[layout] = share, states + row  # what the figure draws
        print(f"{model_name:8} {layout:20} {states:8.2f} GB", end=" ")
        print(f"and {row:.2f} for a row; link/computing {share:.2f}")
inside, across = (shares["GPT-3"][layout][0] for layout in list(LAYOUTS)[2:])
answer("21d.4", across / inside)

# %%
show(
    figures.traffic(shares, ROOM),
    alt="Link time over computing, by layout and model; red where 80 GB do not hold the model and one row.",
)

# %% [markdown]
r"""
Read each model from the top, and stop at the first layout that fits. GPT-2 and GPT-2 XL fit as copies, and their averaging takes a fraction of the time of computing, most of which hides behind backward (chapter 20b). Parts
move half as many bytes again and divide weights, gradients and moments by 64. They are the choice when copies do not fit, or leave no room for the activations.

GPT-3 in parts nearly fits: 44 GB of the card's 80. *The weights and moments fit, the rows do not.* A single row of 2,048 tokens has 78 GB of activations, and each of 64 GPUs needs a row of its own. With `recompute` it would fit (chapter 22 computes how much). With `tp` inside a machine, eight GPUs share a row. Each of
them keeps 27 GB of the 78: what is inside attention and MLP is divided by eight, and the stream and the norms' outputs are complete on every rank.
So it fits. This is what `tp` is for: *fewer rows than GPUs*.

It is not for the network. By the link alone, parts across all 64 GPUs are the faster layout for GPT-3. A ring between machines has all eight network cards of a machine together, so it is nearly as fast as the link inside, and `tp` sends activations four times in each layer. Over all 64 GPUs each
sum carries eight times as many rows, and the link is busy for 1.09 of the time of computing. With `tp` in a machine it is busy for 0.21, which was the question: 5.2 times as long. (Why not eight times? Half of the 0.21 is for weights and gradients in
parts, which travel no more when `tp` takes all GPUs. The sums alone take ten times as long.)

So `tp` stays inside a machine and is no larger than needed, `shard` reaches across machines, and `copies` makes several groups where one is enough to hold the model. The figure's two questions assume different passes. The memory is that of one row at a time, and the link's time is that of one pass with all rows of a step. With one row a pass, FSDP gathers the weights again for each row, and `recompute` makes room for more rows. Four things are left out here: the activations of more than one row, context parallelism (chapter 21c), for which `parallel` has no word, pipelines
(chapter 21e), and communication that is hidden behind computing. Chapter 22 plans with them.
"""

# %% [markdown]
r"""
## Appendix: the drills that measure

`part_of` looks up which part of a matrix this rank has, and `sizes_sent` reads the flight recorder of chapter 20b.
"""

# %%
#| export labs.drills.layouts
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

from nanogpt.distributed import gathered
from nanogpt.labs.drills.flight import flight_record
from nanogpt.labs.drills.sharding import held
from nanogpt.labs.roofline.memory import peak_memory
from nanogpt.optim import global_norm, gradients_of, local_part, scale_to
from nanogpt.training import accumulate_gradients

MATRIX = "transformer.h.0.mlp.c_proj.weight"


# %%
#| export labs.drills.layouts
def part_of(model, name: str = MATRIX) -> list[int]:
    """The first and the last row and column of a matrix that this rank has."""
    p = model.get_parameter(name)
    places = torch.arange(p.numel()).view(p.shape)
    places = local_part(take_part(model, name, places))[0] if is_laid_out(model) else places
    rows, columns = places // p.size(1), places % p.size(1)
    return [int(end) for x in (rows, columns) for end in (x.min(), x.max())]


# %%
#| export labs.drills.layouts
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


# %%
#| export labs.drills.layouts
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


# %%
#| export labs.drills.layouts
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

# %% [markdown]
r"""
## Appendix: an optimizer for any layout

The rest of this sitting is plumbing. AdamW's moments are laid out as their parameters are. One kernel updates many tensors at once but takes none of two meshes together, so the groups of chapter 15 are cut further; in
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


# %%
#| export
class LaidOutAdamW(LaidOutAdamW):
    def load_state_dict(self, state_dict: dict) -> None:
        """The moments of a checkpoint of any layout; the options stay this run's."""
        for i, name in enumerate(self.numbered):
            p = self.model.get_parameter(name)
            for what, x in state_dict["state"].get(i, {}).items():
                self.state[p][what] = take_part(self.model, name, x) if x.dim() else x.to(p.device, copy=True)


# %% [markdown]
r"""
## Appendix: the layout in the trainer

The trainer knows many processes since chapter 20a, and each of them has a complete model. No function of it grows now. Chapter 17c's table `LABS` names this module for the section `parallel`, and where the trainer makes, reads, validates or writes a model, it asks `hook` whether a lab has a function for that. Below are ours. Where the model is complete, each of them calls the trainer's own function.

Whether the number of processes fits is asked before they meet, by `check_ranks`.
"""


# %%
#| export
from nanogpt import build, trainer
from nanogpt.checkpoint import is_in_parts
from nanogpt.training import scale_weight


def check_ranks(config: Config, ranks: Ranks) -> None:
    """ValueError if this is not the number of processes that the layout needs."""
    data_parallel(config.parallel, ranks.size)


# %% [markdown]
r"""
`torch.compile` gets one block at a time. PyTorch 2.13 cannot compile the complete model in every layout: with `tp` it expects a DTensor's gradient for the logits, which the loss leaves aside, and gets none. So `compile_blocks` puts `torch.compile` around each
block. (A test compares losses and norms with those of one process, in every layout that can be compiled.)
"""


# %%
#| export
def compile_blocks(model: GPT) -> GPT:
    """torch.compile for a model that is laid out, in place: block by block, because ranks talk between them."""
    for block in model.transformer.h:
        block.forward = torch.compile(block.forward)  # not the module: FSDP2's hooks stay around it
    return model


# %% [markdown]
r"""
A model in parts is made part by part. Only a model that a run begins with (`init_from`) is read in full, into the CPU's memory. The adapters and the mask of chapter 19c need a complete model, and are refused. Every other model is the trainer's own: complete on one process, or as copies in DDP.
"""


# %%
#| export
def scaled(weights, shape: GPTConfig) -> Iterator[tuple[str, Tensor]]:
    """Chapter 07's first weights, one complete tensor at a time."""
    for name, x in weights:
        scale_weight(name, x, shape.n_embd)
        yield name, x


# %%
#| export
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


# %% [markdown]
r"""
A checkpoint is read weight by weight from its file. The trainer itself can read one in parts since chapter 21. All ranks together validate the model as it is laid out. For samples and other looks the model is gathered on rank 0. All ranks must take part in this, also those that do not write.
"""


# %%
#| export
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


# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("21d")

# %%
checkpoint("21d")

# %% [markdown]
r"""
## Exercises

`course exercises release 21d` writes these as a notebook to `released/`; `course check 21d` runs their visible checks.

- **21d-1** Who meets whom, 25 minutes: the groups of a mesh, and which of them use the network.
- **21d-2** Fewer rows than GPUs, 30 minutes: derive the smallest `tp` with which a model and its rows fit.
- **21d-3** The norm of a grid, 15 minutes: repair a norm that counts LayerNorms once for each cut.
- **21d-4** A check for readers, 20 minutes: write the check that each row is read by one group.
- **21d-5** A checkpoint from another layout, 10 minutes: why nothing complains, and the loss is 9.4.

To explore:

1. Start the grid with `NANOGPT_PATIENCE=10` and `eval.sample_every=12`, and let `whole_model` return `run.model` on rank 0 and None elsewhere, without gathering. Which collective does rank 0 wait in? Check with chapter 20b's `flight`.
2. Log the norm of this rank's part: let `global_norm` leave its `all_reduce` out. By which factor is the curve of norms too small on two ranks and on four, and from which step do losses differ? Check with `compare`.
3. Train `tiny` with `train.dtype=bf16 parallel.shard=true`, and let `lay_out` call `shard` without the precision. How many bytes of 16-bit copies are alive after forward? Check with chapter 21's `copies_kept`.
4. Save a model on *cuts* with `save_parts`, and read it with one process. Which weights are wrong, and does anything complain? Check: `by_part` puts them right.
5. Set `EACH` to 1 and to 64 rows. Which layouts' ratios change, and which do not? Check against the formula: what travels for copies does not depend on the rows.

## Further reading

- Narayanan et al. 2021, [*Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*](https://arxiv.org/abs/2104.04473), §3: why tensor parallelism stays inside a server, measured.
- Rajbhandari et al. 2020, [*ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*](https://arxiv.org/abs/1910.02054), §5 and §7: what parts save, and what they send.
- Zhao et al. 2023, [*PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*](https://arxiv.org/abs/2304.11277), §3.2: copies of parts (hybrid sharding).
- Liang et al. 2024, [*TorchTitan*](https://arxiv.org/abs/2410.06511), §2: the same grid, with pipelines and context parallelism as further dimensions.
"""
