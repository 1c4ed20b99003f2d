# %% [markdown]
r"""
# 21 · Sharding: each rank keeps a part

In chapter 20 every rank keeps a full copy of everything: all weights, all gradients, and all of Adam's moments. For GPT-2 XL, which has 1.6 billion
parameters, this takes 24.9 billion bytes on each rank, or 23.2 GiB. A card of 24 GiB has no room left for the activations of a single row. More cards do not
help, because each of them needs the same 23.2 GiB.

ZeRO (Rajbhandari et al. 2020) removes the copies. Each rank keeps a part of every tensor, and fetches the other parts when it needs them. The arithmetic
stays that of one process. The price is traffic between the ranks, and it is lower than one would expect.

We first compute what can be saved. Then we build ZeRO's three stages by hand, one after the other, and check each against one process. PyTorch's FSDP2 does the same
with more care, so we use it from there on. We count what a rank holds and moves, take the norm of a gradient that is in parts, and write the model into files.
"""

# %%
#| default_exp labs.parallel.zero
#| doc labs.parallel.zero: ZeRO by hand: a part of each tensor, its three stages, and a count of what they move.
#| doc labs.drills.sharding: What chapter 21 makes several processes do, to be measured: `drill drills.sharding:stages`.
#| doc labs.parallel.fsdp: A model in shards by FSDP2: made part by part; complete again for a file; its checkpoint for any number of ranks.
import json
from functools import partial
from pathlib import Path

from course.figures import sharding as figures
from course.figures.local_ranks import fake_ranks, local_ranks
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.distributed import Ranks
from nanogpt.labs.roofline.memory import activation_bytes
from nanogpt.model import GPT, SIZES, GPTConfig, num_params
from nanogpt.optim import make_optimizer
from nanogpt.pretrained import from_hf
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.training import train_step

DATA, OUT = "../data/built/stories", "../data/built/zero.json"
N, LOCAL = 2, 4  # processes, for which a laptop has two cores; ranks inside this kernel
RANKS, B, T = [1, 2, 4, 8, 16, 32, 64], 4, 1024
_ = ensure_corpus(DATA)
print(f"GPT-2 XL has {num_params(SIZES['gpt2-xl']):,} parameters")

# %% [markdown]
r"""
## Where the memory goes

A parameter in training is more than one number. There are the weight, its gradient, and Adam's two moments. In float32 these are four numbers of four bytes,
sixteen bytes in all. With 16-bit weights and gradients (chapter 10), the optimizer also keeps a float32 master of each weight. The sum is again sixteen bytes. Megatron-LM
keeps its gradients in float32 too, which makes eighteen.

*Predict.* How many GB are GPT-2 XL's weights, gradients, moments and masters? How many GB would a rank hold, if 64 ranks shared everything
equally?
"""

# %%
predict("21.1", "XL's weights, gradients, moments and masters", guess=None, unit="GB")
predict("21.2", "the same on each of 64 ranks", guess=None, unit="GB")

# %%
#| export
#| blank state_bytes: divide a kind by the ranks from the stage on that shares it
# A parameter's weight, gradient, and what the optimizer keeps: two moments, and under 16 bits a master
BYTES = {"float32": (4, 4, 8), "bf16": (2, 2, 12), "Megatron": (2, 4, 12)}


def state_bytes(parameters: int, ranks: int, stage: int, recipe: str = "bf16") -> tuple[float, ...]:
    """Bytes a rank of weights, gradients and optimizer in a stage of ZeRO (Rajbhandari et al. 2020, §5.1 to 5.3).

    Stage 0 shares nothing, 1 what the optimizer keeps, 2 also the gradients, 3 also the weights. ValueError for any
    other stage, and for less than one rank. recipe: a key of BYTES.
    """
    if stage not in range(4) or ranks < 1:
        raise ValueError(f"stage={stage} must be 0 to 3 and ranks={ranks} at least 1")
    shared_from = 3, 2, 1  # weights, gradients, optimizer: the stage that shares them
    return tuple(parameters * b / (ranks if stage >= s else 1) for b, s in zip(BYTES[recipe], shared_from))


# %%
def bars(millions: float, recipe: str = "bf16") -> dict:
    """For the figure: one panel, by ranks and stage."""
    name = f"{millions:,.0f} million parameters, {sum(BYTES[recipe])} bytes each"
    return {name: [[state_bytes(millions * 1e6, n, stage, recipe) for stage in range(4)] for n in RANKS]}


small, xl = num_params(SIZES["gpt2"]), num_params(SIZES["gpt2-xl"])
alt = "GB a rank by ranks and stage: only stage 3 falls towards zero."
show(figures.models(bars(small / 1e6) | bars(xl / 1e6), RANKS), alt=alt)
for stage in range(4):
    print(f"XL, stage {stage}, 64 ranks: {sum(state_bytes(xl, 64, stage)) / 1e9:.2f} GB")
answer("21.1", sum(state_bytes(xl, 1, 0)) / 1e9)
answer("21.2", sum(state_bytes(xl, 64, 3)) / 1e9)

# %% [markdown]
r"""
Each group of bars is a number of ranks, and each bar a stage. XL needs 24.9 GB alone. Stage 1 shares what the optimizer keeps, which is three quarters of the total: 6.5 GB are left on each of 64 ranks. Stage 2 shares the gradients as well, 3.5 GB.
Stage 3 also shares the weights, and only 0.39 GB are left. Without stage 3 each rank still has all weights, and no number of ranks helps a model whose weights do not fit.

*Predict.* Up to how many parameters does stage 1 fit into cards of 24 GB, if you may use any number of them? Then move the knobs.
"""

# %% tags=["nbval-ignore-output"]
figures.stages_widget(bars, RANKS)

# %% [markdown]
r"""
Stage 1 ends just below 6 billion parameters: each rank keeps four bytes of each, however many ranks there are.

The picture leaves out activations. They depend on the rows that a rank computes, and not on the number of ranks, so sharding does not reduce them:
"""

# %%
for name in ("gpt2", "gpt2-xl"):
    print(f"{name:8} {activation_bytes(SIZES[name], B, T) / 1e9:5.1f} GB for {B} rows of {T} in float32")

# %% [markdown]
r"""
The remedy for activations is another one: do not keep them, but compute them again when backward needs them. We come back to this below.

## A part of a tensor

How do we cut a tensor? As in FSDP2, a rank's part is a block of its rows. A collective needs equal parts, so where the number of rows does not divide, we
add rows of zeros at the end. These zeros do no harm: their gradient is zero, and Adam leaves them at zero.
"""

# %%
#| export
from collections import Counter
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as recomputed


# %%
#| export
def pad_rows(x: Tensor, n: int) -> Tensor:
    """x with rows of zeros at its end, so that n ranks get equally many."""
    return torch.cat([x, x.new_zeros(-len(x) % n, *x.shape[1:])])


def my_part(x: Tensor, rank: int, n: int) -> nn.Parameter:
    """A rank's rows of x, to be trained: a copy."""
    return nn.Parameter(pad_rows(x.detach(), n).chunk(n)[rank].clone())


# %%
w = torch.arange(10.0).view(5, 2)
print(*(my_part(w, rank, LOCAL).tolist() for rank in range(LOCAL)), sep="\n")

# %% [markdown]
r"""
Two collectives do all the work of this chapter. An *all-gather* puts the parts together again, on every rank. A *reduce-scatter* adds up the tensors of all ranks and leaves each
rank with its part of the sum. An all-reduce is one of each: a reduce-scatter, then an all-gather.
"""


# %%
#| export
def gathered_rows(part: Tensor, rows: int) -> Tensor:
    """All ranks' parts as one tensor, without the padding."""
    x = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
    dist.all_gather_into_tensor(x, part)
    return x[:rows]


def mean_part(x: Tensor) -> Tensor:
    """This rank's rows of the mean of all ranks' x."""
    n = dist.get_world_size()
    x = pad_rows(x, n)
    part = x.new_empty(len(x) // n, *x.shape[1:])
    dist.reduce_scatter_tensor(part, x)
    return part / n


# %% [markdown]
r"""
We try both on ranks inside this kernel, as in chapter 20. `ranked(f)` makes a tensor that has the value `f(rank)` on each rank, and `ranked.same` checks that all ranks hold
the same. Rank r has the tensor w + r as its "gradient", so the mean over four ranks is w + 1.5:
"""


# %%
def dealt_part(ranked, x: Tensor) -> nn.Parameter:
    """On each rank its part of x."""
    return nn.Parameter(ranked(lambda rank: my_part(x, rank, LOCAL).detach()))


with local_ranks(LOCAL) as ranked:
    again = ranked.same(gathered_rows(dealt_part(ranked, w).detach(), len(w)))
    mean = ranked.same(gathered_rows(mean_part(ranked(lambda rank: w + rank)), len(w)))
assert torch.equal(again, w), "the gathered parts are not the tensor they were cut from"
print("gathered parts:", again.tolist())
print("gathered means:", mean.tolist())

# %% [markdown]
r"""
## Stage 1: the optimizer in parts

The optimizer is made for the parts, so it has moments for the parts only. After backward, each rank reduces its gradients to its part of their mean and updates its own part of
the weights. Then the new parts are gathered into everybody's weights.
"""


# %%
#| export
#| blank PartsOptimizer.step: reduce what gradients there are, by keep_part; update the parts; gather the weights
@torch.no_grad()
def keep_part(weight: Tensor, part: nn.Parameter) -> None:
    """Replace a gradient that is complete on this rank by this rank's part of the mean over all ranks."""
    mean = mean_part(weight.grad)
    part.grad = mean if part.grad is None else part.grad + mean  # micro-batches add up
    weight.grad = None


class PartsOptimizer:
    """ZeRO's stage 1 around an optimizer of the weights' parts (Rajbhandari et al. 2020, §5.1)."""

    def __init__(self, weights: list[Tensor], parts: list[nn.Parameter], optimizer):
        self.pairs, self.optimizer = list(zip(weights, parts)), optimizer
        self.zero_grad = optimizer.zero_grad

    @torch.no_grad()
    def step(self) -> None:
        """One update on all ranks. A weight whose .grad is None has a part that is reduced already (stage 2)."""
        for weight, part in self.pairs:
            if weight.grad is not None:
                keep_part(weight, part)
        self.optimizer.step()
        for weight, part in self.pairs:
            weight.copy_(gathered_rows(part, len(weight)))


# %% [markdown]
r"""
To try it we take a network so small that its 13 and 5 rows do not divide by the ranks, and train it for four steps of AdamW on one process:
"""

# %%
WIDTHS, STEPS = (8, 13, 5), 4
g = torch.Generator().manual_seed(0)
data = [rows.split(WIDTHS[::2], 1) for rows in torch.randn(STEPS, 4 * LOCAL, sum(WIDTHS[::2]), generator=g)]
adamw = partial(torch.optim.AdamW, lr=0.05, foreach=False)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.GELU(), nn.Linear(*WIDTHS[1:]))


def train(model, optimizer, batches) -> list[Tensor]:
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        losses.append(nn.functional.mse_loss(model(x), y))
        losses[-1].backward()
        optimizer.step()
    return losses


one = network()
print("one process:", *(f"{loss.item():.3f}" for loss in train(one, adamw(one.parameters()), data)))

# %% [markdown]
r"""
Next come four ranks, each with a quarter of the rows. *Check.* The law of this chapter: after some steps the weights are those of one process, whatever each rank keeps.

And how much traffic is this? Let Ψ be the bytes of all weights. To gather a tensor of Ψ bytes on every one of n ranks, each must receive Ψ(n − 1)/n. A reduce-scatter moves as much. For many ranks this is
nearly Ψ, so we count Ψ for either, and 2Ψ for an all-reduce. Chapter 20's data parallelism moves 2Ψ a step.

*Predict.* How many Ψ does a step of stage 1 move? And how many will a step of stage 3 move, in which the weights are in parts, too?
"""

# %%
predict("21.3", "stage 1 moves a step", guess=None, unit="Ψ")
predict("21.4", "stage 3 moves a step", guess=None, unit="Ψ")


# %%
#| export
class Moved(TorchDispatchMode):
    """Bytes by collective within the block: of the complete tensor, an all-reduce twice; single numbers do not count."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sizes = [t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor) and t.numel() > 1]
        if func.namespace == "c10d" and sizes and dist.get_world_size() > 1:  # one rank moves nothing
            name = func._schema.name.removeprefix("c10d::").strip("_")
            self.bytes[name] += max(sizes) * (2 if name == "allreduce" else 1)
        return func(*args, **(kwargs or {}))


# %%
psi = sum(pad_rows(w.detach(), LOCAL).nbytes for w in one.parameters())


def trial(stage: int, ranked, model, optimizer, parts) -> float:
    """Train on this kernel's ranks, check the weights against one process; how many Ψ a step moves."""
    deal = lambda x: ranked(lambda rank: x.chunk(LOCAL)[rank].clone())  # noqa: E731
    with Moved() as moved:
        train(model, optimizer, [(deal(x), deal(y)) for x, y in data])
    worst = 0.0
    for part, weight in zip(parts, one.parameters()):
        end = ranked.same(gathered_rows(part.detach(), len(weight)))
        worst = max(worst, (end - weight).abs().max().item())
    assert worst < 1e-5, f"stage {stage} is {worst:.1e} from one process"
    shares = {name: nbytes / psi / STEPS for name, nbytes in moved.bytes.items()}
    words = ", ".join(f"{name} {share:.0f} Ψ" for name, share in shares.items())
    print(f"stage {stage}: the weights of one process, within 1e-5; a step moves {words}")
    return sum(shares.values())


# %%
with local_ranks(LOCAL) as ranked:
    model = network()
    parts = [dealt_part(ranked, w) for w in model.parameters()]
    optimizer = PartsOptimizer([*model.parameters()], parts, adamw(parts))
    answer("21.3", trial(1, ranked, model, optimizer, parts))

# %% [markdown]
r"""
The weights are those of one process. (Not to the last bit: four ranks add four means, where one process adds sixteen rows.) And stage 1 moves 2Ψ, no more than chapter 20's data parallelism. A reduce-scatter and an all-gather are the two halves of an all-reduce, and the update takes place between them.

## Stage 2: the gradients in parts

In stage 1 every rank holds all gradients until backward has ended. But a gradient can be reduced as soon as it is complete, while backward goes on with the layer before. A
hook on the weight does this, and then no rank ever holds all gradients:
"""


# %%
#| export
#| blank keep_parts_early: on each weight chapter 20's hook, which calls keep_part with the weight and its part
def keep_parts_early(optimizer: PartsOptimizer) -> None:
    """From stage 1 to stage 2: reduce each gradient during backward, when it is complete (§5.2 of the paper)."""
    for weight, part in optimizer.pairs:
        weight.register_post_accumulate_grad_hook(partial(keep_part, part=part))


# %%
with local_ranks(LOCAL) as ranked:
    model = network()
    parts = [dealt_part(ranked, w) for w in model.parameters()]
    optimizer = PartsOptimizer([*model.parameters()], parts, adamw(parts))
    keep_parts_early(optimizer)
    trial(2, ranked, model, optimizer, parts)
assert all(w.grad is None for w in model.parameters()), "a rank has kept a complete gradient"

# %% [markdown]
r"""
The same two collectives run, only earlier, so the traffic stays the same. With several micro-batches a step it does not: stage 2 reduces after each of them, because it has no place to keep the
complete gradients, while stage 1 can add them up and reduce once.

## Stage 3: the weights in parts

In stage 3 a rank has parts and nothing else. It gathers a weight, uses it, and frees it. Gathering is an operation like any other, so it has a derivative: where forward puts the parts
together, backward must deal the summed gradient out in parts. This is a reduce-scatter, and it does stage 2's work by itself.
"""


# %%
#| export
#| blank GatheredRows.backward: this rank's part of the mean gradient; rows has no gradient
class GatheredRows(torch.autograd.Function):
    """Forward: a weight from all ranks' parts. Backward: this rank's part of its mean gradient."""

    @staticmethod
    def forward(ctx, part: Tensor, rows: int) -> Tensor:
        return gathered_rows(part, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return mean_part(grad), None


# %% [markdown]
r"""
How do we free a weight? Autograd keeps the gathered weights from forward to backward, because backward needs them. `torch.utils.checkpoint` helps here: it keeps only the inputs of a call, and backward makes
the call again, which gathers the weights again. `functional_call` runs a module with other tensors in the places of its weights:
"""


# %%
#| export
class InParts(nn.Module):
    """ZeRO's stage 3: a module of whose weights this rank keeps parts (Rajbhandari et al. 2020, §5.3).

    part_of(weight): this rank's part, to be trained. Gathered weights live as long as a call.
    """

    def __init__(self, module: nn.Module, part_of):
        super().__init__()
        self.module = [module]  # in a list, so that only the parts are parameters here
        weights = dict(module.named_parameters())  # a tied one comes once
        self.rows = {name: len(p) for name, p in weights.items()}
        self.parts = nn.ParameterList(part_of(p) for p in weights.values())
        for p in weights.values():
            p.data = p.data.new_empty(0)

    def call_gathered(self, *args):
        """The module's forward on weights that are gathered for this call."""
        weights = {}
        for (name, rows), part in zip(self.rows.items(), self.parts):
            weights[name] = GatheredRows.apply(part, rows)
        return functional_call(self.module[0], weights, args)

    def forward(self, *args):
        return recomputed(self.call_gathered, *args, use_reentrant=False)


# %%
with local_ranks(LOCAL) as ranked:
    model = InParts(network(), partial(dealt_part, ranked))
    answer("21.4", trial(3, ranked, model, adamw(model.parameters()), model.parts))
print(f"Ψ is {psi} bytes with padding, {sum(w.nbytes for w in one.parameters())} without")

# %% [markdown]
r"""
Stage 3 gathers twice, once for forward and once for backward, so it moves 3Ψ: half as much again as data parallelism. That is the price for dividing all memory by the number of ranks. (Padding is a large
share here because the tensors are tiny. For GPT-2 small on 8 ranks it is seven rows of 50,257, and nothing elsewhere.)

## FSDP2

Our stage 3 gathers all weights of a network at once. This saves nothing while forward runs. A GPT should be cut where it is natural: each block is gathered, used and freed on its own. The embeddings and the last norm
remain. Forward needs them at its beginning and at its end, so this *root* is gathered once a step and kept.

PyTorch's `fully_shard` (FSDP2) does this, and does it with care. All weights of a block travel in *one* collective instead of twelve. On a GPU the next block is fetched while this one computes. And what
forward frees is not computed again: FSDP2 takes the storage away from the tensor that autograd keeps, and fills it before backward. The parameters that an optimizer sees are
`DTensor`s, tensors that know on which *mesh* of ranks their rows are.

We wrap it in one function, which shards first the blocks and then the root. Its policy says in which format weights are gathered and used. The parts, the moments and the mean of
the gradients stay in float32, so under bf16 the parts *are* chapter 10's masters.
"""

# %%
#| export labs.parallel.fsdp
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint as recomputed

from nanogpt.model import GPT
from nanogpt.precision import PRECISIONS


# %%
#| export labs.parallel.fsdp
def shard(model: GPT, mesh: DeviceMesh | None = None, precision="float32") -> GPT:
    """FSDP2, in place: this rank keeps a part of each tensor. Make the optimizer afterwards. wte stays lm_head.

    mesh: of one dimension, or copies × parts; by default all ranks; without a process group nothing happens. precision:
    chapter 10's word. Weights are gathered and used in it, and autocast is off; parts and mean gradients stay float32.
    """
    if precision not in PRECISIONS or precision == "bf16-masters":
        raise ValueError(
            f"precision={precision!r} is not for shards; take bf16, whose parts are float32 masters"
        )
    if mesh is None and not dist.is_initialized():
        return model
    mesh = mesh or init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=PRECISIONS[precision], reduce_dtype=torch.float32)
    # GPT returns logits as a view; that nobody may write into it is nothing new here
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for part in *model.transformer.h, model:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    if policy.param_dtype:  # autocast has nothing left to cast
        model.forward = torch.autocast(mesh.device_type, enabled=False)(model.forward)
    return model


# %%
TINY = GPTConfig(block_size=8, vocab_size=19, n_layer=2, n_head=2, n_embd=12)
with fake_ranks(LOCAL):  # rank 0 of four; the others do not exist
    model = shard(GPT(TINY))
    for name in ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight"):
        p = model.get_parameter(name)
        print(f"{name}: {tuple(p.shape)}, on this rank {tuple(p.to_local().shape)}")

# %% [markdown]
r"""
Both are cut by rows. Of the 19 rows of wte the first ranks have five and the last has four. FSDP2 pads as we do, out of sight: the last rank's storage
has a fifth row of zeros, which the parameter does not show. wte stays one tensor with lm_head; if each had its own part, the two would drift apart from the first step on.

And recomputation? It is the call that we know already, around a block's forward. PyTorch's
`apply_activation_checkpointing` puts a wrapper module there, which changes the parameters' names (`h.0._checkpoint_wrapped_module.ln_1.weight`). If we replace the method `forward` instead, the names stay:
"""


# %%
#| export labs.parallel.fsdp
def recompute_blocks(model: GPT) -> GPT:
    """Of each block keep its input alone, and run the block again in backward (Chen et al. 2016, §4); in place."""
    for block in model.transformer.h:
        block.forward = partial(recomputed, block.forward, use_reentrant=False)
    return model


# %% [markdown]
r"""
## On real processes

Until now we had ranks inside one kernel. A drill on two real processes trains the same model in several ways, from the same weights and on the same rows. This model has six blocks, so that the blocks and not the
logits take most of the memory, as in a large model.
"""

# %%
#| export labs.drills.sharding
import torch

from nanogpt.data import DocumentStream
from nanogpt.distributed import Ranks
from nanogpt.labs.parallel.buckets import my_rows
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import describe_shards, open_shards

SHAPE = {"n_layer": 6, "n_head": 4, "n_embd": 128, "block_size": 40}
ROWS, LR = 8, 2e-3


# %%
#| export labs.drills.sharding
def start(ranks: Ranks, data: str) -> tuple[GPT, DocumentStream]:
    """A model, on all ranks the same, and a stream of this rank's part of ROWS rows."""
    shards = open_shards(data, "train")
    shape = GPTConfig(**SHAPE, vocab_size=describe_shards(shards)[0])
    model = GPT(shape, torch.Generator().manual_seed(0)).to(ranks.device)
    return model, DocumentStream(shards, T=shape.block_size, device=ranks.device, **my_rows(ROWS, ranks))


# %%
model, stream = start(Ranks(), DATA)
P = num_params(model.config)
blocks = sum(p.numel() for p in model.transformer.h.parameters())
print(f"{P:,} parameters, {blocks:,} of them in the blocks; x is {tuple(stream.next_batch()[0].shape)}")

# %% [markdown]
r"""
The drill `stages` trains this model for a few steps in six ways: one process, DDP, FSDP2, FSDP2 with recomputation, and twice FSDP2 in bf16. These last two differ. *autocast* works as on one GPU (chapter 10), over parts that are gathered in float32. *bf16* uses FSDP2's policy.

In each way we note the losses, the bytes that a rank holds when backward has ended, the bytes that a step moves (by `Moved`), and its peak of memory. One more thing is counted, because it decides whether bf16 saves anything: the copies of the blocks' matrices in 16 bits that are alive between forward and backward. The code of the drill is in the appendix.

A second drill, `parts`, runs in the same call. It saves a sharded model in the middle of its training, and we come to it at the end.

*Predict.* How many MB of weights, gradients and moments does a rank of FSDP2 hold, on two ranks and in float32? How many MB does a step move, where the blocks are gathered twice and the root once? And how many bytes of copies for each
of the blocks' parameters does a rank keep under *autocast*, where one process keeps nearly two?
"""

# %%
predict("21.5", "FSDP2 holds on each of two ranks", guess=None, unit="MB")
predict("21.6", "FSDP2 moves a step", guess=None, unit="MB")
predict(
    "21.7", "autocast keeps in 16-bit copies, for each of the blocks' parameters", guess=None, unit="bytes"
)

# %%
torchrun("21", N, "drill", "drills.sharding:stages", "drills.sharding:parts", "--data", DATA, "--out", OUT)
told = json.loads(Path(OUT).read_text())
measures = told["drills.sharding:stages"]
for way, found in measures.items():
    pairs = zip(found["losses"], measures["one process"]["losses"], strict=True)
    apart = max(abs(a - b) for a, b in pairs)
    bound = 2e-2 if way in ("autocast", "bf16") else 2e-5
    assert apart < bound, f"{way} is {apart:.1e} nats from one process"
    print(f"{way:12} last loss {found['losses'][-1]:.1f}, all within {bound:g} nats of one process")

# %% [markdown]
r"""
The law holds on real processes: all ways have the losses of one process. The bound is not zero because the ranks add sums in another order, and Adam divides by them. bf16 rounds each product, so it has a bound of its own.

What does a rank hold, and what does our formula say?
"""

# %%
for way, found in measures.items():
    stage = 0 if way in ("one process", "DDP") else 3
    rule = sum(state_bytes(P, N, stage, "float32")) / P
    holds = sum(found[part] for part in ("weights", "gradients", "moments")) / P
    moved, copies = sum(found["moved"].values()) / (4 * P), found["copies"] / blocks
    print(f"{way:12} holds {holds:5.2f} bytes a parameter, formula {rule:5.2f};", end=" ")
    print(f"moves {moved:.2f} Ψ; copies {copies:.2f} bytes")
traffic, rule = sum(measures["FSDP2"]["moved"].values()), 4 * (3 * blocks + 2 * (P - blocks))
assert abs(traffic / rule - 1) < 0.01, f"FSDP2 moves {traffic} bytes, not about {rule}: are the blocks freed?"
assert measures["bf16"]["copies"] == 0, "FSDP2's policy keeps copies in 16 bits"
answer("21.5", sum(measures["FSDP2"][part] for part in ("weights", "gradients", "moments")) / 1e6)
answer("21.6", traffic / 1e6)
answer("21.7", measures["autocast"]["copies"] / blocks)

# %% [markdown]
r"""
Read the columns one after the other.

- **Holds.** FSDP2 divides all sixteen bytes by the ranks, as the formula of stage 3 says.
- **Moves.** DDP moves 2Ψ. FSDP2 moves a little less than 3Ψ, because the root is gathered only once. Recomputation moves no more, since FSDP2 gathers a block for backward in any case.
- **Copies.** Under *autocast* each rank keeps a bf16 copy of nearly every matrix from forward to backward: two bytes a parameter, *not divided by the ranks*. On 64 ranks these copies are eight times as large as the rank's share of all sixteen bytes. FSDP2 frees
  what it has gathered, but it knows nothing of the copies that autocast makes of it. With FSDP2's own policy the weights arrive in bf16 and are freed as such, and gathering moves half the bytes.

So a run that trains in bf16 tells `shard` its precision. `shard` then turns autocast off for the model, so `accumulate_gradients` may ask for it as ever. The trainer does this for you (chapter 21d).
"""

# %% tags=["nbval-ignore-output"]
show(
    figures.held(measures),
    alt="A bar a way: weights, gradients and moments on a rank, halved by FSDP2 against DDP; a line marks the peak of a step.",
)
print("peak:", ", ".join(f"{way} {found['peak'] / 1e6:.1f} MB" for way, found in measures.items()))
kept = activation_bytes(model.config, ROWS // N, model.config.block_size)
print(f"activations of {ROWS // N} rows, by chapter 09's formula: {kept / 1e6:.1f} MB")

# %% [markdown]
r"""
The bars are what a rank holds when backward has ended, and the black line is the peak of a step. At the peak a rank has not all gradients yet, but other things that the formula leaves out. Most of them are activations: one process has those of all rows, two ranks have half of them each. Recomputation lowers FSDP2's peak, but by less than the 8.7 MB that the activations of four rows have: without those of the blocks, another moment of the step is the highest. The rest are the gathered weights of the root and of a block, complete gradients on their way into parts, and buffers in which a collective is packed. These do not grow with the number of blocks, so FSDP2 saves more the more
blocks there are. On a GPU more comes on top that we do not see here: the memory that the allocator loses to fragments, and the libraries' own.

And what does it cost in time? Here is the fastest of a few steps in each way, on these two processes:
"""

# %% tags=["nbval-ignore-output"]
for way, found in measures.items():
    print(f"{way:12} {found['ms']:6.1f} ms a step")

# %% [markdown]
r"""
FSDP2 pays for its memory with time: a step is longer than DDP's, because half as many bytes again are sent, and in many more messages. Recomputation is longer still, since it runs the blocks' forward twice. (The two ways in bf16 depend on how well a processor computes in this format.) So where a model fits without sharding, DDP is the better choice.

Must each rank make the complete model first, only to cut it? No: chapter 21d makes a large model part by part.

## The norm of a gradient in parts

Before an update we clip the gradient by its norm, and log the norm (chapter 15). What does a rank see of it, if it has parts only? The drill has taken `.norm().item()` of each weight's gradient and added up the squares, as a log would do it.

*Predict.* On two ranks of FSDP2, by which factor is the true norm larger than the one that a rank reads?
"""

# %%
predict("21.8", "the true norm over the one that is read", guess=None)

# %%
for way in ("DDP", "FSDP2"):
    print(f"{way:6} a rank reads {measures[way]['read']:.2f}, the norm is {measures[way]['norm']:.2f}")
answer("21.8", measures["FSDP2"]["norm"] / measures["FSDP2"]["read"])

# %% [markdown]
r"""
Each rank reads the norm of *its parts*, without a warning. DTensor's `.norm()` returns a sum that is still to be made, and `.item()` takes
this rank's summand. The ranks read different numbers: here 1.94, and so the other one 1.06, since 1.94² + 1.06² is 2.21². Only the squares of these numbers, added up over the ranks, are the square of the true norm. If the parts had equal norms, each rank would read the true norm divided by √n: on 64 ranks an eighth of it, which looks healthy in a log.

There are two more traps. In a mesh of two dimensions (chapter 21b) PyTorch refuses to add up norms of tensors on different meshes. And with fp16 each rank looks for infinities in its own part, and ranks that disagree skip different steps. So one function takes the norm for
all models of this course. It adds up the squares of the parts over the groups of ranks over which a tensor is cut, and over no others:
"""

# %%
#| export optim
import torch.distributed as dist


# %%
#| export optim
def local_part(x: Tensor) -> tuple[Tensor, tuple]:
    """This rank's part of x, which shares its memory, and the groups of ranks that have the others; () if x is complete."""
    if not hasattr(x, "device_mesh"):  # no DTensor, whose class takes a second to import
        return x, ()
    cut = (dim for dim, place in enumerate(x.placements) if not place.is_replicate())
    return x.to_local(), tuple(x.device_mesh.get_group(dim) for dim in cut)


# %%
#| export optim
#| blank global_norm: of the gradients that are cut over the same groups take the parts' norm; all-reduce its square
#| grows global_norm
@torch.no_grad()
def global_norm(gradients) -> Tensor:
    """The norm of all gradients as one vector: on every rank the same number, as a plain tensor.

    Gradients may be plain, or DTensors on different meshes: FSDP's, tensor parallelism's and both together.
    """
    kinds, norms = {}, []
    for part, groups in map(local_part, gradients):
        kinds.setdefault(groups, []).append(part)
    for groups, parts in kinds.items():
        norm = torch.nn.utils.get_total_norm(parts)
        if groups:  # squares add up over the ranks, norms do not
            square = norm.float().square()
            for group in groups:
                dist.all_reduce(square, group=group)
            norm = square.sqrt()
        norms.append(norm)
    return norms[0] if len(norms) == 1 else torch.nn.utils.get_total_norm(norms)


# %%
grown("global_norm")

# %% [markdown]
r"""
It takes the place of chapter 15's `global_norm`, and nobody who calls it has to change: the trainer clips and logs the same for a plain model, for DDP and for shards. fp16 asks this norm whether it is finite, so all ranks skip
together. (Shortening a gradient in parts, and dividing it by the scale of fp16, are in the appendix.)

## Into files

There are two reasons to write a sharded model down. One is a file that others read. For it, `full_state` gathers one weight after the other to the CPU of rank 0, which alone needs them. Of these weights `unsharded`, in the appendix, makes a GPT that `save_model` and
`to_hf` know.
"""


# %%
#| export labs.parallel.fsdp
@torch.no_grad()
def full_state(model: GPT) -> dict[str, Tensor]:
    """All weights by name, complete, on the CPU of rank 0, the tied one once; {} on the others. All ranks call it."""
    first, state = not dist.is_initialized() or dist.get_rank() == 0, {}
    for name, p in model.named_parameters():
        x = p.full_tensor() if isinstance(p, DTensor) else p
        if first:
            state[name] = x.detach().cpu()
    return state


# %% [markdown]
r"""
The other reason is to go on later, perhaps with another number of ranks. Then nobody has to gather anything. With `torch.distributed.checkpoint` each rank writes its own parts, and where they belong in the complete
tensors. Each reader then takes from the files what its own parts need.

It wants one dictionary of tensors by name. `parts_of` makes it: for each weight the rank's part, and beside it what AdamW keeps for this weight, the number of updates and the two moments. Before the first update AdamW has made none, so we put zeros there; `load` copies into them.
"""


# %%
#| export labs.parallel.fsdp
def parts_of(model: GPT, optimizer) -> dict[str, Tensor]:
    """This rank's part of each weight and of its moments, by name. They share memory with model and optimizer."""
    parts = {}
    for name, p in model.named_parameters():
        if not optimizer.state[p]:
            empty = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            optimizer.state[p] = {"step": torch.zeros((), device=p.device), **empty}
        parts[name] = p.detach()
        parts |= {f"{name}.{what}": x for what, x in optimizer.state[p].items()}
    return parts


def save_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """Weights and moments into a folder; each rank writes its own parts. All ranks call it."""
    dcp.save(parts_of(model, optimizer), checkpoint_id=folder)


def load_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """What save_parts wrote, on any number of ranks, into a model and its AdamW, in place; one process as well."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process
        dcp.load(parts_of(model, optimizer), checkpoint_id=folder)


# %% [markdown]
r"""
The drill `parts` trained two steps on two ranks, saved its parts, exported the model, and went on for two steps. This kernel is one process. It loads the parts and goes on as well:
"""

# %%
SAVED = Path(DATA).parent / "sharded"
model, stream = start(Ranks(), DATA)
optimizer = make_optimizer(model, LR)
(idx, _), _ = [stream.next_batch() for _ in range(2)]  # trained on already
load_parts(SAVED / "parts", model, optimizer)
exported = from_hf(SAVED / "huggingface")
assert torch.equal(exported(idx)[0], model.eval()(idx)[0]), "the export is another model than the parts"
ours = [train_step(model.train(), optimizer, [stream.next_batch()]).item() for _ in range(2)]
theirs = told["drills.sharding:parts"]["losses"][2:]
apart = max(abs(a - b) for a, b in zip(ours, theirs))
assert apart < 2e-5, f"one process goes on {apart:.1e} nats from {N} ranks"
print(f"{N} ranks go on with {theirs[0]:.3f}, {theirs[1]:.3f}; one process with {ours[0]:.3f}, {ours[1]:.3f}")

# %% [markdown]
r"""
Would we have noticed if the moments had been lost? We load the same parts and forget them:
"""

# %%
model, stream = start(Ranks(), DATA)
optimizer = make_optimizer(model, LR)
_ = [stream.next_batch() for _ in range(2)]
load_parts(SAVED / "parts", model, optimizer)
optimizer.state.clear()
lost = [train_step(model.train(), optimizer, [stream.next_batch()]).item() for _ in range(2)]
print(f"without the moments: {lost[0]:.3f}, {lost[1]:.3f}")

# %% [markdown]
r"""
The first loss is the same, because the weights are. Then Adam makes another update, and the second loss shows it.

## When to use what

| what fits on one rank? | then use |
|---|---|
| weights, gradients, moments and activations | DDP; nothing moves less |
| weights, gradients and activations, but not the moments | stage 1, which moves no more than DDP |
| one block's weights at a time, its activations, and 1/n of everything | FSDP2; it moves half as much again, which a fast network can hide behind computing |
| not the activations of all blocks | FSDP2 with `recompute_blocks`, or fewer rows a rank and more micro-batches |
| not even the activations of one block | tensor parallelism (chapter 21b) |

With several micro-batches a step, FSDP2 gathers and reduces in each of them. It saves memory this way, so `accumulate_gradients` leaves it on.
"""

# %% [markdown]
r"""
## Appendix: shortening a gradient in parts

The rest of this sitting is plumbing. Clipping shortens a gradient once its norm is known, and fp16's scaler divides it by its scale (chapter 10b). Each rank does both in its own part, and nothing is sent:
"""

# %%
from collections.abc import Iterable

from nanogpt.precision import LossScaler


# %%
#| export optim
#| grows gradients_of
def gradients_of(parameters) -> list[Tensor]:
    """Those that there are. One of which the ranks hold summands (a LayerNorm's in chapter 21b) is summed first."""
    parameters = [p for p in parameters if p.grad is not None]
    for p in parameters:
        if getattr(p.grad, "placements", None) != getattr(p, "placements", None):
            p.grad = p.grad.redistribute(placements=p.placements)
    return [p.grad for p in parameters]


# %%
#| export optim
#| grows scale_to
@torch.no_grad()
def scale_to(gradients, max_norm: float, norm: Tensor) -> None:
    """Shorten the gradients, whose global norm is `norm`, to max_norm, in place; no communication."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_([local_part(g)[0] for g in gradients], factor)


# %%
#| export precision
#| grows LossScaler.unscale
class LossScaler(LossScaler):
    def unscale(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any of this rank is not finite: then skip this update."""
        grads = [local_part(p.grad)[0] for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError("no parameter has a gradient; call (loss * scaler.scale).backward() first")
        torch._foreach_mul_(grads, 1 / self.scale)
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())


# %%
grown("scale_to")

# %% [markdown]
r"""
## Appendix: a plain model of the parts
"""


# %%
#| export labs.parallel.fsdp
def unsharded(model: GPT) -> GPT | None:
    """On rank 0 a plain GPT on the CPU, for save_model and to_hf, with the weights of a sharded one; None elsewhere."""
    state = full_state(model)
    if not state:
        return None
    with torch.device("meta"):
        plain = GPT(model.config)
    plain.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, assign=True)
    plain.lm_head.weight = plain.transformer.wte.weight  # tied
    return plain.train(model.training)


# %% [markdown]
r"""
## Appendix: the drill that measures

`prepared` makes what trains in each way, and `held` counts what a rank has of it.
"""

# %%
#| export labs.drills.sharding
from pathlib import Path

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from nanogpt.distributed import replicate
from nanogpt.labs.roofline.clock import timings
from nanogpt.labs.roofline.memory import peak_memory
from nanogpt.optim import make_optimizer
from nanogpt.precision import autocast
from nanogpt.labs.formats.hf import to_hf
from nanogpt.training import accumulate_gradients

# %%
#| export labs.drills.sharding
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


# %% [markdown]
r"""
Which copies in 16 bits are alive between forward and backward? Autograd calls `pack` with each tensor that it
keeps for backward. After forward we ask each of these tensors how many bytes its storage still has. One process keeps nearly two bytes for each of the blocks' parameters:
"""


# %%
#| export labs.drills.sharding
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


# %%
whole, whole_stream = start(Ranks(), DATA)
for precision in ("float32", "bf16"):
    copies = copies_kept(whole, whole_stream.next_batch(), precision)
    print(f"one process, {precision}: {copies / blocks:.2f} bytes for each of the blocks' parameters")


# %%
#| export labs.drills.sharding
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


# %%
#| export labs.drills.sharding
def stages(ranks: Ranks, data: str) -> dict:
    """The same steps from the same weights in all ways, each measured."""
    alone = Ranks(device=ranks.device)
    return {way: measured(way, alone if way == WAYS[0] else ranks, data) for way in WAYS}


# %% [markdown]
r"""
## Appendix: the drill that saves

It trains for two steps, saves its parts, exports the model, and goes on for two steps. It is the drill `parts` of this chapter.
"""


# %%
#| export labs.drills.sharding
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

# %% [markdown]
r"""
## Appendix: a run's checkpoint in parts

A run needs more than weights and moments: its place in the data, its random states, and hashes. Chapter 21d lets the trainer save in parts: its checkpoint is chapter 17b's, whose `save` takes a function that writes the weights. Some functions have to know that the weights may be in parts. The first one looks:
"""

# %%
from collections import Counter

from nanogpt.checkpoint import latest, set_random_states
from nanogpt.metrics import read_metrics
from nanogpt.trainer import COUNTED, Training
from nanogpt.weights import load_model


# %%
#| export checkpoint
def is_in_parts(checkpoint: Path) -> bool:
    """Whether ranks wrote a checkpoint each its own parts; else it has a model.safetensors."""
    return (checkpoint / ".metadata").exists()


# %%
print("the drill's folder is in parts:", is_in_parts(SAVED / "parts"))

# %% [markdown]
r"""
`pick_checkpoint` of chapter 17d finds the checkpoint that `sample` and `eval` are to read. It refuses one in parts, which is no model yet:
"""


# %%
#| export checkpoint
#| grows pick_checkpoint
def pick_checkpoint(place: str | Path) -> Path:
    """The checkpoint of a run's folder: runs/x is its newest complete one, runs/x/best that of its lowest validation loss.

    A path that is no run's folder is returned unchanged. ValueError for a checkpoint in parts.
    """
    folder = Path(place)
    home = folder.parent if folder.name == "best" else folder
    newest = latest(home)
    picked = newest or folder
    if newest and folder != home:
        seen = [line for line in read_metrics(home) if line.get("val_loss") is not None]
        if not seen:
            raise ValueError(
                f"{home} has no best checkpoint, since it was never validated; name {home} for its newest"
            )
        best = min(seen, key=lambda line: line["val_loss"])
        picked = home / f"step_{best['step']:06d}"
    if is_in_parts(picked):
        how = f"join('{picked}', 'model') of nanogpt.labs.parallel.laid_out (chapter 21d)"
        raise ValueError(f"{picked} is in parts; make a model of it with {how}")
    return picked


# %% [markdown]
r"""
The trainer goes on from such a checkpoint. For it, and only for it, it imports the lab `fsdp`. `load_parts` brings the weights and also the optimizer's moments, so the rest of the state has no moments. A model whose layers are cut (chapter 21b) cannot read parts.
"""

# %%
#| export trainer
#| grows load_weights
from importlib import import_module


def load_weights(run: Training, folder: Path) -> None:
    """Give the run's model the weights of a checkpoint; of one in parts its optimizer the moments as well."""
    if not is_in_parts(folder):
        run.model.load_state_dict(load_model(folder).state_dict())
        return
    if (tp := run.config.parallel.tp) > 1:
        raise ValueError(f"{folder} is in parts, which parallel.tp={tp} cannot read; set 1")
    lab = import_module("nanogpt.labs.parallel.fsdp")  # here: its imports take a second
    lab.load_parts(folder, run.model, run.optimizer)


# %%
#| export trainer
#| grows Training.load_state_dict
class Training(Training):
    def load_state_dict(self, state: dict) -> None:
        if state["optimizer"] is not None:  # else its moments came with the parts of the weights
            self.optimizer.load_state_dict(state["optimizer"])
        self.stream.load_state_dict(state["data"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name in COUNTED:
            setattr(self, name, state[name])
        self.skipped, self.seconds = Counter(state["skipped"]), Counter(state["seconds"])
        set_random_states(state["random"], self.device)


# %%
grown("load_weights", "21")

# %% tags=["nbval-ignore-output"]
predictions("21")

# %%
checkpoint("21")

# %% [markdown]
r"""
## Exercises

`course exercises release 21` writes these as a notebook to `released/`; `course check 21` runs their visible checks.

- **21-1** Parts of equal size, 15 minutes: repair a cut that loses rows.
- **21-2** How many ranks?, 20 minutes: derive the fewest ranks on which a model fits in each stage.
- **21-3** ZeRO 1 by hand, 35 minutes: one update on all ranks, with moments of a part each.
- **21-4** A check for a norm, 25 minutes: write the check that finds norms of one rank's parts.
- **21-5** What a step sends, 20 minutes: derive the bytes of every stage, with several micro-batches.
- **21-6** Sharded, and still full, 10 minutes: why 64 more cards do not help.

To explore:

1. A run goes on with another `lr` than it was saved with. Which one is in the optimizer after `load_parts`? Check: `optimizer.param_groups[0]["lr"]`, and what `train` of chapter 07 does with it in each step.
2. Give `PartsOptimizer` one flat vector of all weights in place of a part for each. How many collectives a step, and how many bytes of padding? Check: the law of the three stages still holds.
3. Clip in stage 2. Which norm does a rank know, and what must be added up? Check against `global_norm` on one process.
4. Set `reshard_after_forward=False` for the blocks in `shard`. Predict what it moves and what it holds at its peak, then run the drill. Check: 2 Ψ; and the assertion on what FSDP2 moves says so.
5. PyTorch has `ZeroRedundancyOptimizer`, a stage 1 around DDP. Add it to `prepared`. How many Ψ does it move, and why more than the paper's stage 1? Check: DDP's all-reduce is 2 Ψ, and each owner broadcasts its weights.

## Further reading

- Rajbhandari et al. 2020, [*ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*](https://arxiv.org/abs/1910.02054), §5 and §7: the stages, and their traffic.
- Zhao et al. 2023, [*PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*](https://arxiv.org/abs/2304.11277), §3 and §4: prefetching, and what FSDP2 made simpler.
- Chen et al. 2016, [*Training Deep Nets with Sublinear Memory Cost*](https://arxiv.org/abs/1604.06174), §4: recomputation.
- Narayanan et al. 2021, [*Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*](https://arxiv.org/abs/2104.04473): when to shard and when to split.
"""
