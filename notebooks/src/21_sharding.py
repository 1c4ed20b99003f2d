# %% [markdown]
r"""
# 21 · Sharding: each rank keeps a part

In chapter 20 every rank held everything: all weights, all gradients, all of Adam's moments, n times the same. For GPT-2 XL with 1.6 billion parameters that is
25 GB a rank before the first activation, and a GPU of 24 GB cannot begin, however many of them there are. ZeRO (Rajbhandari et al. 2020)
lets each rank keep a part and fetch the rest when it is needed. The arithmetic stays that of one process; what is
paid for memory is traffic, and it is less than one would think. This chapter builds the three stages by hand, proves them equal, counts what they
hold and move, and then does the same with PyTorch's FSDP2, on real processes.
"""

# %%
#| default_exp parallel.zero
#| doc parallel.zero: ZeRO by hand, its three stages, and what chapter 21 makes several processes do.
#| doc drills.sharding: What chapter 21 makes several processes do, to be measured: `drill drills.sharding:stages`.
#| doc parallel.fsdp: A model in shards by FSDP2; whole again for a file; its checkpoint for any number of ranks.
import json
from collections.abc import Iterable
from functools import partial

from course.figures import sharding as figures
from course.local_ranks import local_ranks
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.drills.ddp import ROWS
from nanogpt.gpt.model import SIZES, num_params
from nanogpt.gpt.precision import LossScaler
from nanogpt.gpt.pretrained import from_hf
from nanogpt.speed.work import activation_bytes

DATA, OUT, PARTS = "../data/built/stories", "../data/built/zero.json", "../data/built/sharded"
N, LOCAL = 2, 4  # processes, for which a laptop has two cores; ranks inside this kernel
RANKS, B, T = [1, 2, 4, 8, 16, 32, 64], 4, 1024
_ = ensure_corpus(DATA)

# %%
#| export
from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint as recomputed

from nanogpt.gpt.model import GPT

# %%
#| export drills.sharding
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from nanogpt.drills.ddp import fresh
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.pretrained import to_hf
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, gathered, replicate
from nanogpt.speed.work import peak_memory

# %% [markdown]
r"""
## Where the memory goes

A parameter in training is not one number. There is the weight, its gradient, and Adam's two moments: in float32 four numbers of four bytes. With
16-bit weights and gradients (chapter 10) float32 masters come on top, and it is sixteen bytes again. Megatron keeps its gradients in float32
as well: eighteen.

*Predict.* GPT-2 XL has 1,557,611,200 parameters. How many GB are these, in bf16 with masters, and how many on each of 64 ranks that share
everything?
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

    Stage 0 shares nothing, 1 the optimizer's, 2 the gradients too, 3 all.
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


small, xl = (num_params(SIZES[name]) for name in ("gpt2", "gpt2-xl"))
picture = bars(small / 1e6) | bars(xl / 1e6)
show(figures.models(picture, RANKS), alt="GB a rank: stage 1 falls to a quarter, stage 3 to nothing.")
print(*(f"XL, stage {k}, 64 ranks: {sum(state_bytes(xl, 64, k)) / 1e9:.2f} GB" for k in range(4)), sep="\n")
answer("21.1", sum(state_bytes(xl, 1, 0)) / 1e9)
answer("21.2", sum(state_bytes(xl, 64, 3)) / 1e9)

# %% [markdown]
r"""
*Predict:* how many parameters may a model have whose stage 1 fits cards of 24 GB, whatever their number? Then find out.
"""

# %% tags=["nbval-ignore-output"]
figures.stages_widget(bars, RANKS)

# %% [markdown]
r"""
Stage 1 shares what the optimizer keeps, which is three quarters of all. Stage 2 shares gradients, stage 3 weights. Without stage 3 the weights remain, and
no number of ranks helps a model that is too large for one.

What is not in the picture are activations. They depend on the rows of a rank and not on the number of ranks, so sharding leaves them as they are:
"""

# %%
for name in ("gpt2", "gpt2-xl"):
    print(f"{name:8} {activation_bytes(SIZES[name], B, T) / 1e9:5.1f} GB for {B} rows of {T} in float32")

# %% [markdown]
r"""
Their remedy is another: do not keep them but compute them again (further down).

## Three stages in one kernel

A rank's part of a tensor are some of its rows, as in FSDP2. If the rows do not divide, the last rank gets rows of zeros, since a collective
takes equal parts. It is waste, and harmless: their gradient is zero, and Adam leaves them at zero.
"""


# %%
#| export
#| blank gathered_rows: gather the parts into an empty tensor, then cut the padding off
def padded(x: Tensor, n: int) -> Tensor:
    """x with rows of zeros at its end, so that n ranks get equally many."""
    return torch.cat([x, x.new_zeros(-len(x) % n, *x.shape[1:])])


def my_part(x: Tensor, rank: int, n: int) -> nn.Parameter:
    """A rank's rows of x, to be trained: a copy."""
    return nn.Parameter(padded(x.detach(), n).chunk(n)[rank].clone())


def gathered_rows(part: Tensor, rows: int) -> Tensor:
    """All ranks' parts as one tensor, without the padding."""
    x = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
    dist.all_gather_into_tensor(x, part)
    return x[:rows]


def mean_part(x: Tensor) -> Tensor:
    """This rank's rows of the mean of all ranks' x."""
    x = padded(x, n := dist.get_world_size())
    part = x.new_empty(len(x) // n, *x.shape[1:])
    dist.reduce_scatter_tensor(part, x)
    return part / n


# %%
w = torch.arange(10.0).view(5, 2)
with local_ranks(LOCAL) as ranked:
    part = ranked(lambda rank: my_part(w, rank, LOCAL).detach())
    print(f"{len(w)} rows for {LOCAL} ranks:", part, sep="\n")
    assert torch.equal(ranked.same(gathered_rows(part, len(w))), w), "the parts are not the whole"

# %% [markdown]
r"""
**Stage 1.** The optimizer is made for the parts, so that it has moments for nothing else. After backward each rank's gradient is averaged *in parts*, it
updates its own, and the new parts are gathered into everybody's weights.

**Stage 2.** The same, but a gradient goes as soon as it is complete, while backward computes the next. A hook on the weight does it. No rank ever
holds all gradients.

Both are one class around an optimizer, and they differ in when `keep_part` is called:
"""


# %%
#| export
@torch.no_grad()
def keep_part(weight: Tensor, part: nn.Parameter) -> None:
    """Of a gradient that is complete on this rank, only its part of the mean over all ranks remains."""
    mean = mean_part(weight.grad)
    part.grad = mean if part.grad is None else part.grad + mean  # micro-batches add up
    weight.grad = None


# %%
#| export
#| blank PartsOptimizer.step: in stage 1 reduce the gradients; update the parts; then gather the weights
class PartsOptimizer:
    """ZeRO's stages 1 and 2 around an optimizer of the weights' parts (Rajbhandari et al. 2020, §5.1 and 5.2)."""

    def __init__(self, weights: list[Tensor], parts: list[nn.Parameter], optimizer, stage: int):
        self.pairs, self.optimizer, self.stage = list(zip(weights, parts)), optimizer, stage
        self.zero_grad = optimizer.zero_grad
        for weight, part in self.pairs if stage == 2 else ():
            weight.register_post_accumulate_grad_hook(lambda weight, part=part: keep_part(weight, part))

    @torch.no_grad()
    def step(self) -> None:
        for weight, part in self.pairs if self.stage == 1 else ():
            keep_part(weight, part)
        self.optimizer.step()
        for weight, part in self.pairs:
            weight.copy_(gathered_rows(part, len(weight)))


# %% [markdown]
r"""
**Stage 3.** A rank has parts and nothing else: gather, use, free. Gathering is an operation like any other and has a derivative. The derivative of "take the
parts together" is "deal the gradient's sum out in parts", so that backward does stage 2's work by itself.

And free? The weights that forward has gathered would live until backward, for which autograd keeps them. `torch.utils.checkpoint` keeps the
inputs of a call instead, and in backward makes the call again: it gathers again. (FSDP2 frees without computing again: it takes the storage away from the tensor
that autograd keeps, and fills it before backward.)
"""


# %%
#| export
class GatheredRows(torch.autograd.Function):
    """Forward: a weight from all ranks' parts. Backward: of its gradient this rank's part of the mean."""

    @staticmethod
    def forward(ctx, part: Tensor, rows: int) -> Tensor:
        return gathered_rows(part, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return mean_part(grad), None


def use(module: nn.Module, parts: dict[str, tuple[nn.Parameter, int]], *args):
    """The module's forward on weights gathered for this call: name -> this rank's part, rows of the whole."""
    return functional_call(module, {name: GatheredRows.apply(*each) for name, each in parts.items()}, args)


# %% [markdown]
r"""
What does it cost? Let Ψ be the bytes of all weights. To gather a tensor of Ψ bytes on everybody moves Ψ(n − 1)/n into each rank, and to reduce and scatter
it moves as much; let both count Ψ. An all-reduce is one of each, 2Ψ: that is what chapter 20's data parallelism moves in a step.

*Predict.* How many Ψ a step move stage 1, stage 2 and stage 3?
"""

# %%
predict("21.3", "stages 1 and 2 move a step, each", guess=None, unit="Ψ")
predict("21.4", "stage 3 moves a step", guess=None, unit="Ψ")


# %%
#| export
class Moved(TorchDispatchMode):
    """Bytes by collective within the block: of the whole tensor, an all-reduce twice; single numbers are not counted."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sizes = [t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor) and t.numel() > 1]
        if func.namespace == "c10d" and sizes:
            name = func._schema.name.removeprefix("c10d::").strip("_")
            self.bytes[name] += max(sizes) * (2 if name == "allreduce" else 1)
        return func(*args, **(kwargs or {}))


# %%
WIDTHS, STEPS = (8, 13, 5), 4  # a network with rows that do not divide by the ranks; AdamW's steps
g = torch.Generator().manual_seed(0)
data = [rows.split(WIDTHS[::2], 1) for rows in torch.randn(STEPS, 4 * LOCAL, sum(WIDTHS[::2]), generator=g)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.GELU(), nn.Linear(*WIDTHS[1:]))


def train(step, batches, optimizer) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(step(x), y).backward()
        optimizer.step()


train(one := network(), data, torch.optim.AdamW(one.parameters(), lr=0.05))

# %% [markdown]
r"""
*Check.* The law: after some steps of AdamW the weights are those of one process, in each stage. (In this mode a plain tensor is one that all ranks hold alike;
`ranked.same` asserts that what was gathered is so.)
"""


# %%
def local_stage(stage: int, ranked, model: nn.Module) -> tuple[list[nn.Parameter], Counter]:
    """Train the network on ranks in this kernel: the parts in the end, and what a step has moved."""
    weights = list(model.parameters())
    parts = [nn.Parameter(ranked(lambda r, w=w: my_part(w, r, LOCAL).detach())) for w in weights]
    optimizer = torch.optim.AdamW(parts, lr=0.05, foreach=False)
    named = {name: (part, len(w)) for (name, w), part in zip(model.named_parameters(), parts)}
    step = partial(recomputed, use, model, named, use_reentrant=False) if stage == 3 else model
    optimizer = optimizer if stage == 3 else PartsOptimizer(weights, parts, optimizer, stage)
    deal = lambda x: ranked(lambda rank: x.chunk(LOCAL)[rank].clone())  # noqa: E731
    with Moved() as moved:
        train(step, [(deal(x), deal(y)) for x, y in data], optimizer)
    return parts, moved.bytes


# %%
psi = sum(padded(w.detach(), LOCAL).nbytes for w in one.parameters())
for stage in (1, 2, 3):
    with local_ranks(LOCAL) as ranked:
        parts, moved = local_stage(stage, ranked, network())
        ends = [ranked.same(gathered_rows(part.detach(), len(w))) for part, w in zip(parts, one.parameters())]
    apart = max((end - w).abs().max().item() for end, w in zip(ends, one.parameters()))
    assert apart < 1e-5, f"stage {stage} is {apart:.1e} from one process"
    told = ", ".join(f"{name} {nbytes / psi / STEPS:.0f} Ψ" for name, nbytes in moved.items())
    print(f"stage {stage}: the weights of one process; a step moves {told}")
    if stage < 3:
        answer("21.3", sum(moved.values()) / psi / STEPS)
answer("21.4", sum(moved.values()) / psi / STEPS)
print(f"Ψ is {psi} bytes with padding, {sum(w.nbytes for w in one.parameters())} without")

# %% [markdown]
r"""
Stages 1 and 2 are *free*: a reduce-scatter and an all-gather are what an all-reduce is made of, with the update in between. Stage 3 gathers twice, half as
much again. (The bound is not zero: four ranks add four means where one process adds sixteen rows. Padding is a large share here because the
tensors are tiny. For GPT-2 small on 8 ranks it is seven rows on 50,257, and nowhere else any.)

## The same for GPT

A GPT is cut where it is natural: each block is gathered, used and freed, and at the root lie the embeddings and the last norm, which forward needs at
its beginning *and* at its end. The root is gathered once a step and kept.
"""


# %%
#| export
class InParts(nn.Module):
    """ZeRO's stage 3 (Rajbhandari et al. 2020, §5.3): a module of whose weights this rank keeps parts.

    free: gathered weights live as long as the call, and backward makes it again.
    """

    def __init__(self, module: nn.Module, rank: int, n: int, free: bool = True):
        super().__init__()
        self.module, self.free = (
            [module],
            free,
        )  # in a list: its weights are not this module's, their parts are
        self.inner = nn.ModuleList(m for m in module.modules() if isinstance(m, InParts))
        inside = {id(p) for p in self.inner.parameters()}
        weights = {name: p for name, p in module.named_parameters() if id(p) not in inside}  # a tied one once
        self.rows = {name: len(p) for name, p in weights.items()}
        self.parts = nn.ParameterList(my_part(p, rank, n) for p in weights.values())
        for p in weights.values():
            p.data = p.data.new_empty(0)

    def forward(self, *args):
        parts = {name: (part, rows) for (name, rows), part in zip(self.rows.items(), self.parts)}
        call = use, self.module[0], parts, *args
        return recomputed(*call, use_reentrant=False) if self.free else use(*call[1:])


# %%
#| export
def in_parts(model: GPT, rank: int, n: int) -> nn.Module:
    """A GPT in stage 3: its blocks, then the root."""
    for i, block in enumerate(model.transformer.h):
        model.transformer.h[i] = InParts(block, rank, n)
    return InParts(model, rank, n, free=False)


# %% [markdown]
r"""
`functional_call` knows that `lm_head.weight` is `wte.weight` and gives both the same gathered tensor. Had each its own part, they would drift apart from the first step
on.

## FSDP2

PyTorch's `fully_shard` is stage 3 with care: a block's weights travel in *one* collective rather than twelve, on a GPU the next block is fetched while this one computes, and
what is freed is not computed again. The weights that an optimizer sees are `DTensor`s, tensors that know on which mesh of ranks their rows lie.

Two options belong to it. A `MixedPrecisionPolicy` gathers and computes in bf16 while parts, moments and the mean of the gradients stay in
float32: the parts *are* chapter 10's masters, at 4/n bytes a parameter. And `recompute`
keeps of each block its input alone, at the price of a second forward pass. PyTorch's `apply_activation_checkpointing` does that with a wrapper module, which renames the parameters
(`h.0._checkpoint_wrapped_module.ln_1.weight`) for all who ask the model for them, `save_model` too; replacing the block's `forward` does not.
"""

# %%
#| export parallel.fsdp
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint as recomputed

from nanogpt.gpt.model import GPT
from nanogpt.gpt.precision import PRECISIONS


# %%
#| export parallel.fsdp
def shard(model: GPT, mesh: DeviceMesh | None = None, precision="float32", recompute=False) -> GPT:
    """FSDP2, in place: this rank keeps a part of each tensor. Make the optimizer afterwards. wte stays lm_head.

    mesh: of one dimension, or all ranks; without a process group the model stays whole. precision: chapter 10's word;
    weights are used in it, parts and the mean of gradients stay float32. recompute: of a block keep its input only.
    """
    if precision not in PRECISIONS or precision == "bf16-masters":
        raise ValueError(
            f"precision={precision!r} is not for shards; take bf16, whose parts are float32 masters"
        )
    for block in model.transformer.h if recompute else ():  # no wrapper module: names stay as they are
        block.forward = partial(recomputed, block.forward, use_reentrant=False)
    if mesh is None and not dist.is_initialized():
        return model
    mesh = mesh or init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=PRECISIONS[precision], reduce_dtype=torch.float32)
    # GPT returns logits as a view; that nobody may write into it is nothing new here
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    for part in *model.transformer.h, model:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return model


# %% [markdown]
r"""
Between the two stands `ZeroRedundancyOptimizer`: stage 1 for a DDP model. It gives each rank whole tensors instead of rows of each, and after the step every owner
*broadcasts* its own.

Now all of them on real processes, each for the same steps from the same weights. The drill counts what a rank holds at the end of backward, what it moves, and the peak.
"""


# %%
#| export drills.sharding
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


# %%
#| export drills.sharding
def held(model: nn.Module, optimizer) -> dict[str, int]:
    """Bytes on this rank: weights and gradients, of the model and of parts of its optimizer's own; and moments."""
    inner = getattr(optimizer, "optimizer", getattr(optimizer, "optim", optimizer))
    weights = {*model.parameters(), *(p for group in inner.param_groups for p in group["params"])}
    gradients = [p.grad for p in weights if p.grad is not None]
    moments = [m for state in inner.state.values() for m in state.values() if m.dim()]
    kinds = {"weights": weights, "gradients": gradients, "moments": moments}
    return {kind: sum(local_part(x)[0].nbytes for x in tensors) for kind, tensors in kinds.items()}


# %%
#| export drills.sharding
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


# %%
#| export drills.sharding
def stages(ranks: Ranks, data: str, steps: int = 5) -> dict:
    """The same steps from the same weights in all ways, each measured."""
    alone = Ranks(device=ranks.device)
    return {way: measured(way, alone if way == WAYS[0] else ranks, data, steps) for way in WAYS}


# %% [markdown]
r"""
*Predict.* The drill's model has 536,064 parameters, and there are two ranks. How many bytes of weights, gradients and moments does a rank of FSDP2 hold, in float32? And how
many bytes does it move a step, if the blocks have 396,544 of the parameters?
"""

# %%
predict("21.5", "FSDP2 holds on each of two ranks", guess=None, unit="MB")
predict("21.6", "FSDP2 moves a step", guess=None, unit="MB")

# %% [markdown]
r"""
Two more drills, of which below, and all are measured in one go:
"""


# %%
#| export drills.sharding
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


# %%
#| export drills.sharding
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

# %% [markdown]
r"""
*Check.* The law: the same losses as one process, from the same weights and the same rows, within 10⁻⁵ nats. The difference (5·10⁻⁷ in November 2026) is not zero, since sums are made in another
order and Adam divides them. bf16 rounds each product, so it has a bound of its own (7·10⁻⁴ then).
"""

# %%
drills = [f"drills.sharding:{name}" for name in ("stages", "norms", "parts")]
torchrun("21", N, "drill", *drills, "--data", DATA, "--out", OUT)
found = json.loads(Path(OUT).read_text())
measures, one = found["drills.sharding:stages"], found["drills.sharding:stages"]["one process"]
for way, told in measures.items():
    apart = max(abs(a - b) for a, b in zip(told["losses"], one["losses"], strict=True))
    bound = 1e-2 if way == "bf16" else 1e-5
    assert apart < bound, f"{way} is {apart:.1e} nats from one process"
    print(f"{way:14} last loss {told['losses'][-1]:.2f}, within {bound:g} nats of one process")

# %% [markdown]
r"""
What does a rank hold, and what does the formula say? In float32 the moments count 8 bytes a parameter, weight and gradient 4 each.
"""

# %%
model = fresh(Ranks(), DATA)[0]
P, blocks = (sum(p.numel() for p in part.parameters()) for part in (model, model.transformer.h))
STAGES = {"stage 1": 1, "ZeRO optimizer": 1, "stage 2": 2} | dict.fromkeys(
    ("stage 3", "FSDP2", "recompute", "bf16"), 3
)
for way, told in measures.items():
    stage = STAGES.get(way, 0)
    rule = state_bytes(P, N, stage, "float32")
    has = [told[part] for part in ("weights", "gradients", "moments")]
    moved = sum(told["moved"].values()) / 4 / P
    print(
        f"{way:14} {sum(has) / P:5.2f} bytes a parameter, formula {sum(rule) / P:5.2f}; moves {moved:.2f} Ψ"
    )
traffic = sum(measures["FSDP2"]["moved"].values())
answer("21.5", sum(measures["FSDP2"][part] for part in ("weights", "gradients", "moments")) / 1e6)
answer("21.6", traffic / 1e6)
assert traffic == sum(measures["stage 3"]["moved"].values()), "FSDP2 moves other bytes than our stage 3"
assert traffic == 4 * (3 * blocks + 2 * (P - blocks)), f"FSDP2 moves {traffic} bytes"

# %% [markdown]
r"""
Five things to read there.

- Our stages 1 and 2 hold 4/n bytes more than the formula, since in float32 a part is a copy of what the weights hold already. Under bf16 it is the master.
- Stage 3 moves less than 3 Ψ: the root, a quarter of this small model, is gathered once. FSDP2 moves, to the byte, what ours moves.
- bf16 gathers half the bytes; gradients are still reduced in float32.
- `ZeroRedundancyOptimizer` moves 3 Ψ: DDP's all-reduce has given every rank the whole gradient, of which it needs a part, and the broadcast comes on top. It saves the moments and costs traffic, where
  stage 1 as in the paper costs none.
- Its ranks hold *whole* tensors, so they are as equal as the tensors allow: here almost. In a GPT-2 small on 8 ranks one of them has the moments of `wte`, a third of all.
"""

# %% tags=["nbval-ignore-output"]
show(
    figures.held(measures),
    alt="Weights, gradients and moments shrink with the stage; the peak of a step too.",
)
kept = activation_bytes(model.config, ROWS // N, model.config.block_size)
print(f"activations of {ROWS // N} rows, by chapter 09's formula: {kept / 1e6:.1f} MB")

# %% [markdown]
r"""
The peak is above the bars by what the formula leaves out: activations (one process has all rows, the others half of them), the gathered weights of the root and of a block, whole
gradients on their way into parts, and the buffers in which a collective is packed. On two ranks and so small a model FSDP2 gives much of what it saves for these; what it saves grows with the
ranks and the blocks, what it gathers does not. Recomputation takes away the blocks' activations, and the logits' stay. Not even the line has everything: DDP's buckets, as large as all gradients, were there before the measured step; and
on a GPU come what the allocator loses to fragments, and the libraries.
"""

# %% tags=["nbval-ignore-output"]
predict("21.7", "truth over .norm().item()", guess=None)
told = found["drills.sharding:norms"]
for name in told["ranks"][0]:
    print(f"{name:34}", *(f"{each[name]:.3f}" for each in told["ranks"]))
one = told["ranks"][0]
answer("21.7", one["one weight, the truth"] / one["one weight, .norm().item()"])

# %% [markdown]
r"""
√2, nearly: parts of about equal size have about equal norms, and squares add up. And the total? It depends on PyTorch. In 2.9.1
`clip_grad_norm_` returned a partial norm as well: on four ranks 0.139, where the truth was 0.270. In 2.11.0 and 2.13.0 it comes out whole (measured in November 2026). It clipped rightly even so, since DTensors
multiply correctly. What was wrong was the *log*, by √n, and it looked healthy: on 64 ranks it says an eighth. And a single norm, as in a log by layer, is still a part's in all three.

A second trap waits in a mesh of two dimensions (chapter 21b): PyTorch refuses to add up norms that lie on different meshes. And a third in fp16: each rank asks *its part* for
infinities, and ranks that disagree skip different steps. So one function takes the norm, for all models of this course. Of a part, the square is added up over the groups of ranks over which
the tensor is cut, and over no others:
"""


# %%
#| export gpt.clip
import torch.distributed as dist


# %%
#| export gpt.clip
#| grows gradients_of
def gradients_of(parameters) -> list[Tensor]:
    """Those that there are. One of which the ranks hold summands (a LayerNorm's in chapter 21b) is summed first."""
    parameters = [p for p in parameters if p.grad is not None]
    for p in parameters:
        if getattr(p.grad, "placements", None) != getattr(p, "placements", None):
            p.grad = p.grad.redistribute(placements=p.placements)
    return [p.grad for p in parameters]


def local_part(x: Tensor) -> tuple[Tensor, tuple]:
    """This rank's part of x, which shares its memory, and the process groups over which the others lie; () if x is whole."""
    if not hasattr(x, "device_mesh"):  # no DTensor, whose class takes a second to import
        return x, ()
    cut = (dim for dim, place in enumerate(x.placements) if not place.is_replicate())
    return x.to_local(), tuple(x.device_mesh.get_group(dim) for dim in cut)


# %%
#| export gpt.clip
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
#| export gpt.clip
#| grows scale_to
@torch.no_grad()
def scale_to(gradients, max_norm: float, norm: Tensor) -> None:
    """Shorten the gradients, whose global norm is `norm`, to max_norm, in place; no communication."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    torch._foreach_mul_([local_part(g)[0] for g in gradients], factor)


def clip_(parameters, max_norm: float) -> Tensor:
    """Clip by the global norm, in place; all ranks call it, and get the norm before, a plain tensor.

    parameters: a module, or its parameters, whole or sharded in any way.
    """
    parameters = parameters.parameters() if isinstance(parameters, torch.nn.Module) else parameters
    norm = global_norm(gradients := gradients_of(parameters))
    scale_to(gradients, max_norm, norm)
    return norm


# %% [markdown]
r"""
These take the places of chapter 15's plain `gradients_of`, `global_norm` and `scale_to`, and `train_step` uses them without a change: it clips and
logs the same for a plain model, for DDP and for shards. fp16 asks this norm whether it is finite, so that all ranks skip together. A
scaler must divide shards, too; of a shard it takes the local part:
"""


# %%
#| export gpt.precision
#| grows LossScaler.unscale
class LossScaler(LossScaler):
    def unscale(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any of this rank is not finite: then skip this update."""
        grads = [local_part(p.grad)[0] for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError("no parameter has a gradient; call (loss * scaler.scale).backward() first")
        torch._foreach_mul_(grads, 1 / self.scale)
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())  # the one wait for the device


# %%
grown("global_norm")

# %% [markdown]
r"""
## Into files

A sharded model must come back together in two cases. For a *file that others read*, gathered: `full_state` gathers weight by weight to the CPU, and `unsharded` makes of it a GPT that `save_model` and
`to_hf` know. For *going on*, perhaps with another number of ranks, nobody gathers anything: with `torch.distributed.checkpoint` each rank writes its own parts and
their places in the whole, and each reader takes from the files what its own parts need.
"""


# %%
#| export parallel.fsdp
@torch.no_grad()
def full_state(model: GPT) -> dict[str, Tensor]:
    """All weights by name, whole, on the CPU, on every rank; the tied one once. All ranks call it."""
    named = model.named_parameters()
    return {n: (p.full_tensor() if isinstance(p, DTensor) else p).detach().cpu() for n, p in named}


def unsharded(model: GPT) -> GPT:
    """A plain GPT on the CPU with the weights of a sharded one, for save_model and to_hf. All ranks call it."""
    with torch.device("meta"):
        plain = GPT(model.config)
    state = full_state(model)
    plain.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]}, assign=True)
    plain.lm_head.weight = plain.transformer.wte.weight  # tied
    return plain.train(model.training)


# %%
#| export parallel.fsdp
def state_of(model: GPT, optimizer) -> dict:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def save_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """Weights and optimizer into a folder; each rank writes its own parts. All ranks call it."""
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)


def load_parts(folder: str | Path, model: GPT, optimizer) -> None:
    """What save_parts wrote, on any number of ranks, into a model and its optimizer, in place; one process as well."""
    state = state_of(model, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process
        dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


# %% [markdown]
r"""
The drill has trained two steps on two ranks, saved its parts, exported the model, and gone on. This kernel is one process. It takes up the parts:
"""

# %%
model, optimizer, stream = fresh(Ranks(), DATA)
(idx, _), _ = [stream.next_batch() for _ in range(2)]  # trained on already
load_parts(f"{PARTS}/parts", model, optimizer)
assert torch.equal(from_hf(f"{PARTS}/huggingface")(idx)[0], model.eval()(idx)[0]), "another model"
ours = [train_step(model.train(), optimizer, [stream.next_batch()]).item() for _ in range(2)]
theirs = found["drills.sharding:parts"]["losses"][2:]
apart = max(abs(a - b) for a, b in zip(ours, theirs))
assert apart < 1e-5, f"one process goes on {apart:.1e} nats from two"
print(f"two ranks go on with {theirs[0]:.3f}, {theirs[1]:.3f}, one process with {ours[0]:.3f}, {ours[1]:.3f}")

# %% [markdown]
r"""
Had the moments been lost, the first of the two losses would be the same, since the weights are, and the second would be 5.87 and not 5.74: Adam begins anew (November 2026).

## When to use what

| does it fit a rank? | then |
|---|---|
| weights, gradients, moments and activations | DDP: nothing is cheaper |
| all but the moments | stage 1: the same traffic as DDP, if it is the paper's |
| all but weights and moments of a few blocks | FSDP2: half as much traffic again, hidden behind computing where the network is fast enough |
| not even with FSDP2 | `recompute`; fewer rows a rank and more micro-batches; tensor parallelism (chapter 21b) |

With micro-batches stage 1 keeps its gradients and reduces once a step; FSDP2 reduces after each, and gathers anew for each. `train_step` leaves it so, because that is what saves memory.
"""

# %% tags=["nbval-ignore-output"]
predictions("21")

# %%
checkpoint("21")

# %% [markdown]
r"""
## Exercises

1. A run goes on with another `lr` than it was saved with. Which one is in the optimizer after `load_parts`? Check: `optimizer.param_groups[0]["lr"]`, and what `train` of chapter 07 does with it in each step.
2. Give `PartsOptimizer` one flat vector of all weights in place of a part for each. How many collectives a step, and how many bytes of padding? Check: the law of the three stages still holds.
3. Clip in `PartsOptimizer`'s stage 2. Which norm does a rank know, and what must be added up? Check against `clip_` on one process.
4. Set `reshard_after_forward=False` for the blocks in `shard`. Predict what it moves and what it holds at its peak, then run the drill. Check: 2 Ψ.
5. Train with `WAYS`' bf16 and read the loss at step 100 against float32, both from `fresh`. Check: is the difference larger than between two seeds?

## Further reading

- Rajbhandari et al. 2020, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, §5 and §7: the stages, and their traffic.
- Zhao et al. 2023, *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, §3 and §4: prefetching, and what FSDP2 made simpler.
- Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, §4: recomputation.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*: when to shard and when to split.
"""
