# %% [markdown]
r"""
# 21b · Tensor parallel: one layer on several GPUs

Sharding (chapter 21) stores a weight in parts, but gathers it before use: every rank still multiplies by the whole matrix, on its own rows. What
if one row is too slow, or one layer's activations do not fit? Then the *product* must be shared: each rank has some columns of
a matrix for good, computes with them alone, and sends activations instead of weights. Megatron-LM (Shoeybi et al. 2019) found the
two cuts that need least talk. This chapter builds them on plain tensors, counts each collective, does the same to the course's GPT by
PyTorch's means, and proves both equal to one process.
"""

# %%
#| default_exp parallel.tensor
#| doc parallel.tensor: Tensor parallelism on the course's GPT by PyTorch's DTensor: split, with its vocabulary and its loss; and back.
#| doc drills.tensor: What chapter 21b makes several processes do: the same steps in all ways, and what each way keeps.
#| doc parallel.tensor_by_hand: Tensor parallelism on plain tensors: conjugate operators, split linear layers, a split vocabulary.
import copy
import json
from pathlib import Path

from course.figures import tensor_parallel as figures
from course.local_ranks import local_ranks
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.model import GPTConfig, num_params

DATA, OUT = "../data/built/stories", "../data/built/tensor.json"
N, PROCESSES = 2, 2  # ranks inside this kernel; processes of the drill
SHAPE = GPTConfig(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=97)
B, T, C = 2, SHAPE.block_size, SHAPE.n_embd
fits = N > 1 and SHAPE.n_head % N == T % N == 0 and SHAPE.bias
assert fits, f"{N} ranks: take 2 or more that divide n_head and block_size, and a model with biases"
_ = ensure_corpus(DATA)

# %%
#| export parallel.tensor_by_hand
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# %%
#| export
from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from nanogpt.gpt.model import GPT

# %%
#| export drills.tensor
from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from nanogpt.drills.ddp import LR, fresh, masked
from nanogpt.gpt.model import GPT
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, gathered
from nanogpt.speed.work import saved_bytes

# %% [markdown]
r"""
## Two cuts of a matrix

`nn.Linear` stores its weight as (out, in). The paper writes products the other way round, so its *column* split deals out **outputs**: a
slice of our dimension 0. Each rank needs all of x and has some of y. Its *row* split deals out **inputs**, our dimension 1: each rank
needs its slice of x only, and has a *summand* of all of y.

In one kernel with several ranks (`local_ranks`, chapter 20) every rank's piece can be printed. There a collective is one call of one thread, so it shows what each rank holds, and neither order nor time nor a deadlock; two processes follow at the end.
"""


# %%
def cut(x, dim):
    return ranked(lambda rank: x.detach().chunk(N, dim)[rank].clone())  # of the cell that calls


x, weight = torch.ones(1, N), torch.arange(2.0 * N * N).view(2 * N, N)
with local_ranks(N) as ranked:
    print("y:", x @ weight.T, "columns: each rank has some of y", x @ cut(weight, 0).T, sep="\n")
    print("rows: each rank has a summand of y", cut(x, 1) @ cut(weight, 1).T, sep="\n")

# %% [markdown]
r"""
An MLP is two matrices with GELU between, and four orders are possible. GELU is not linear: GELU(a + b) is not GELU(a) + GELU(b). So after a *row* split the
summands must be added before GELU, and that sum is 4C wide. After a *column* split each rank applies GELU to whole numbers of its own;
and if the second matrix is split by rows, it wants just these as its input. Nothing is said in between, and the one sum is at the end.
"""

# %%
show(figures.mlp(N), alt="An MLP on two ranks: column split, GELU, row split, with f before and g behind.")

# %% [markdown]
r"""
*Predict.* The forward pass of an MLP, x being (B, T, C) on every rank before and after. How many times the bytes of "columns, then rows" does "rows,
then columns" put into collectives?
"""

# %%
predict("21b.1", "bytes, rows first over columns first", guess=None)

# %%
x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
mlp = GPT(SHAPE, torch.Generator().manual_seed(0)).transformer.h[0].mlp
w_1, w_2, gelu = mlp.c_fc.weight, mlp.c_proj.weight, partial(F.gelu, approximate="tanh")
with torch.no_grad(), local_ranks(N) as ranked:
    with ranked.counted() as columns_first:
        y = gelu(x @ cut(w_1, 0).T) @ cut(w_2, 1).T
        dist.all_reduce(y)
    assert ranked.apart(y, mlp(x)) < 1e-6, "columns, then rows, is not the MLP"
    with ranked.counted() as rows_first:
        h = cut(x, 2) @ cut(w_1, 1).T  # (B, T, 4C), a summand
        dist.all_reduce(h)
        part = gelu(h) @ cut(w_2, 0).T  # (B, T, C/n)
        parts = ranked(lambda rank: torch.empty(N * B, T, C // N))
        dist.all_gather_into_tensor(parts, part)
    y = torch.cat(parts.chunk(N), -1)
    assert ranked.apart(y, mlp(x)) < 1e-6, "rows, then columns, is not the MLP"
for name, calls in {"columns, then rows": columns_first, "rows, then columns": rows_first}.items():
    print(f"{name}:", *(f"{what} {size:,} bytes" for what, size in calls))
answer("21b.1", sum(s for _, s in rows_first) / sum(s for _, s in columns_first))

# %% [markdown]
r"""
## Two conjugate operators

That was forward. For backward the paper puts an operator at each end. *g*, behind the rows, adds up the summands; what flows back through it is the gradient of the
sum, which each summand gets whole: nothing to send. *f*, before the columns, passes x on as it is; but each rank's columns
send back only *their* part of x's gradient, and the parts must be added. Each is the other's mirror image, so autograd has to be told of both: `dist.all_reduce` alone
is no operation that it knows.
"""


# %%
#| export parallel.tensor_by_hand
class Conjugate(torch.autograd.Function):
    """An operator of a tensor and a group in forward, another one in backward."""

    @staticmethod
    def forward(ctx, x: Tensor, forward, backward, group) -> Tensor:
        ctx.backward, ctx.group = backward, group
        return forward(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return ctx.backward(grad, ctx.group), None, None, None


def as_it_is(x: Tensor, group=None) -> Tensor:
    return x.view_as(x)


def summed(x: Tensor, group=None) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


# %%
#| export parallel.tensor_by_hand
#| blank enter: forward leaves x as it is and backward sums; with sequence, gather and scatter
#| blank leave: the reverse of enter: forward sums, and backward leaves the gradient as it is
def enter(x: Tensor, group=None, sequence: bool = False) -> Tensor:
    """Megatron's f, into the ranks' parts (Shoeybi et al. 2019, §3): x, whose gradient is summed over the ranks.

    sequence: from this rank's positions, (B, T/n, C), to all of them (Korthikanti et al. 2022, §4.2.2).
    """
    return Conjugate.apply(x, *((gather, scatter) if sequence else (as_it_is, summed)), group)


def leave(x: Tensor, group=None, sequence: bool = False) -> Tensor:
    """Megatron's g, out of the ranks' parts: x summed over the ranks; sequence: of the sum this rank's positions."""
    return Conjugate.apply(x, *((scatter, gather) if sequence else (summed, as_it_is)), group)


# %% [markdown]
r"""
The two linear layers are then short. Mind the biases. A column layer's bias belongs to its outputs and is dealt out with them. A row layer's belongs to the *sum*: a rank that added it
to its summand would add it n times in all.
"""


# %%
#| export parallel.tensor_by_hand
class Column(nn.Module):
    """A linear layer of which this rank has some outputs. (B, T, in) -> (B, T, out/n); sequence: from (B, T/n, in)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, group=None, sequence: bool = False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)
        self.how = group, sequence

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(enter(x, *self.how), self.weight, self.bias)


class Row(Column):
    """A linear layer of which this rank has some inputs. (B, T, in/n) -> (B, T, out); sequence: to (B, T/n, out)."""

    def forward(self, x: Tensor) -> Tensor:
        y = leave(F.linear(x, self.weight), *self.how)
        return y if self.bias is None else y + self.bias  # once, and not once a rank


def check_heads(n_head: int, n: int) -> None:
    if n_head % n:  # if it divides, so do n_embd = n_head × d and 4 n_embd
        raise ValueError(f"n_head={n_head} heads cannot be dealt to {n} ranks; take a divisor")


# %% [markdown]
r"""
## Heads

Attention is made for this: heads do not speak with each other until `c_proj` mixes them. So each rank takes some heads, `c_attn` by columns and
`c_proj` by rows, and the softmax in between is its own.

There is a trap. `c_attn` is three matrices in one: its rows are all of q, then all of k, then all of v. Cut into two at the middle, the first
rank gets q and half of k, calls them q, k and v as chapter 04's `chunk(3)` says, and computes. Shapes fit. Nothing complains.
"""

# %%
model = GPT(SHAPE, torch.Generator().manual_seed(0))
attn, g = model.transformer.h[0].attn, torch.Generator().manual_seed(1)
rows = [f"{part}{head}" for part in "qkv" for head in range(SHAPE.n_head)]  # of c_attn, a head at a time
for rank, names in enumerate(torch.arange(len(rows)).chunk(N)):
    print(f"rank {rank} has", *(rows[i] for i in names), "and takes them for q, k, v")


def piece(w, wrong=False):
    return cut(w, 0) if wrong else cut(w.unflatten(0, (3, -1)), 1).flatten(0, 1)


with torch.no_grad(), local_ranks(N) as ranked:
    y, theirs = attn(x), copy.deepcopy(attn)
    theirs.n_head //= N
    for wrong in (True, False):
        theirs.c_attn = Column(piece(attn.c_attn.weight, wrong), piece(attn.c_attn.bias, wrong))
        theirs.c_proj = Row(cut(attn.c_proj.weight, 1), attn.c_proj.bias)
        apart = ranked.apart(theirs(x), y) / y.abs().max().item()
        print(
            "cut at the middle" if wrong else "q, k and v each cut",
            f"{apart:.0%} of the largest output apart",
        )
    assert apart < 1e-5, "heads on several ranks are not the heads of one"

# %% [markdown]
r"""
Now a whole block. *Predict.* How many all-reduces in its forward pass, how many in backward, and how many bytes does a rank put into all of them, x being
(B, T, C) = (2, 16, 32) in float32?
"""

# %%
predict("21b.2", "all-reduces of a block, forward and backward", guess=None)
predict("21b.3", "bytes of all of them", guess=None)


# %%
#| export parallel.tensor_by_hand
def split_block(block: nn.Module, cut, group=None, sequence: bool = False) -> nn.Module:
    """A block of GPT with this rank's heads and hidden units, in place. Dropout must be 0.

    cut(x, dim): this rank's piece of a weight. sequence: x and the result are (B, T/n, C), this rank's positions, and
    gradients of the LayerNorms and of c_proj's biases are summands, to be summed over the ranks.
    """
    attn, mlp, how, n = block.attn, block.mlp, (group, sequence), dist.get_world_size(group)
    check_heads(attn.n_head, n)

    def piece(
        x: Tensor | None, dim: int = 0, of: int = 1
    ) -> Tensor | None:  # of so many matrices, one below another
        return None if x is None else cut(x.unflatten(0, (of, -1)), dim + 1).flatten(0, 1)

    attn.c_attn = Column(piece(attn.c_attn.weight, of=3), piece(attn.c_attn.bias, of=3), *how)
    mlp.c_fc = Column(piece(mlp.c_fc.weight), piece(mlp.c_fc.bias), *how)
    for part in (attn, mlp):
        part.c_proj = Row(piece(part.c_proj.weight, 1), part.c_proj.bias, *how)
    attn.n_head //= n
    return block


# %%
def block_of(shape: GPTConfig):
    """A block whose biases are not zero, x, and what one process makes of them: y, x's gradient and ln_1's."""
    g, block = torch.Generator().manual_seed(2), GPT(shape, torch.Generator().manual_seed(0)).transformer.h[0]
    for p in block.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=g)
    x = torch.randn(B, shape.block_size, shape.n_embd, generator=g, requires_grad=True)
    y = copy.deepcopy(block)(x)
    y.square().sum().backward()
    return block, x.detach(), y.detach(), x.grad


block, x, y, gradient = block_of(SHAPE)
with local_ranks(N) as ranked:
    split_block(block, cut)
    z = x.clone().requires_grad_()
    with ranked.counted() as forward:
        out = block(z)
    with ranked.counted() as backward:
        out.square().sum().backward()
    assert ranked.apart(out, y) < 1e-5, "the ranks' block is not the block"
    assert ranked.apart(z.grad, gradient) < 1e-3, "nor is its gradient"
calls = forward + backward
print(f"forward {len(forward)}, backward {len(backward)}, each of {calls[0][1]:,} bytes")
answer("21b.2", len(calls))
answer("21b.3", sum(size for _, size in calls))

# %% [markdown]
r"""
Why exactly two each way? LayerNorm needs all of C, so the stream must be whole where a branch begins, and each branch ends in a product whose
summands lie on all ranks. Two branches, two sums; backward is the mirror image. (A block whose MLP reads the same
LayerNorm as its attention needs one: PaLM and GPT-J are built so. It is another model.)

And the bias that is added too early? It does not show at initialisation, where GPT-2's biases are zero.
"""

# %%
layer, inputs = block_of(SHAPE)[0].mlp.c_proj, torch.randn(B, T, 4 * C)
with torch.no_grad(), local_ranks(N) as ranked:
    early = cut(inputs, 2) @ cut(layer.weight, 1).T + layer.bias
    dist.all_reduce(early)
    apart = ranked.apart(early, layer(inputs) + (N - 1) * layer.bias)
assert apart < 1e-4, "a bias on each summand is not the bias n times"
print(f"added to each summand, the bias is in the sum {N} times")

# %% [markdown]
r"""
What does this cost beside data parallelism? There each rank all-reduces its gradients, 4 bytes a parameter, however much it reads. Here it is
activations, and they grow with the tokens.

*Predict.* GPT-2 small in float32. From how many tokens a step on does tensor parallelism put more bytes into all-reduces than data
parallelism?
"""

# %%
predict("21b.4", "tokens a step where both put in the same", guess=None)

# %%
small = GPTConfig()
a_token = 4 * small.n_layer * 4 * small.n_embd  # 4 all-reduces a block, of n_embd numbers of 4 bytes
gradients = 4 * num_params(small)
tokens = [2**i for i in range(8, 18)]
lines = {"tensor": [a_token * t / 1e6 for t in tokens], "data": [gradients / 1e6 for _ in tokens]}
show(
    figures.bytes_a_step(tokens, lines), alt="Bytes over tokens: data parallel flat, tensor parallel rising."
)
crossing = gradients / a_token
print(f"from {crossing:,.0f} tokens on, or {crossing / small.block_size:.1f} rows of {small.block_size:,}")
answer("21b.4", crossing)

# %% [markdown]
r"""
Worse, these bytes hardly hide. A gradient travels while backward computes the next (chapter 20); g's sum is what the next LayerNorm waits for. Hence the
rule: tensor parallelism within a machine, over NVLink, and data parallelism between machines.

## The vocabulary

The largest matrix of a small GPT is the token table, tied to `lm_head`. Cut by rows of the table, one piece serves both ends. As an embedding: a rank looks up the ids that it has, takes
zero for the others, and g adds up. As the head, it is a column split: each rank has the logits of its own tokens.

50,257 tokens divide by nothing useful. Either rows are added, as Megatron does (`GPTConfig.padded_vocab_size`, chapter 13; they count in the softmax), or the last rank has
fewer. Below nothing needs equal parts.
"""


# %%
#| export parallel.tensor_by_hand
def mine(ids: Tensor, first, rows) -> tuple[Tensor, Tensor]:
    """Which ids are among this rank's `rows` rows from `first` on, and their place there; 0 for the others."""
    held = (ids >= first) & (ids < first + rows)
    return held, torch.where(held, ids - first, 0)


def vocab_embedding(ids: Tensor, table: Tensor, first, group=None) -> Tensor:
    """Rows of the token table for ids (B, T), from this rank's rows (V/n, C), those from `first` on: (B, T, C)."""
    held, place = mine(ids, first, table.size(0))
    return leave(F.embedding(place, table) * held[..., None], group)


# %% [markdown]
r"""
The loss is log Σ exp(logits) − logit of the target. To gather the logits for it would undo all: V numbers a token. But a softmax can be merged from parts,
as chapter 12 has done over keys; here it is over the vocabulary. The ranks need three numbers a token: the maximum, for the exponentials not to overflow, the sum, and the target's logit,
which one of them has.

*Predict.* GPT-2's vocabulary, float32. How many times fewer bytes does a rank of two put in than for gathering the logits?
"""

# %%
predict("21b.5", "bytes, logits gathered over three sums", guess=None)


# %%
#| export parallel.tensor_by_hand
#| blank vocab_loss: share the maximum, then the target's score and the sum of exponentials, by leave
def vocab_loss(logits: Tensor, targets: Tensor, first, group=None) -> Tensor:
    """Mean cross-entropy in nats, from this rank's columns of the logits (N, V/n), those from `first` on.

    targets: (N,), all of them on every rank; -100 does not count. Three all-reduces of N numbers each.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group)
    logits = logits - highest[:, None]  # (N, V/n), none above 0
    held, place = mine(targets, first, logits.size(-1))
    score = torch.where(held, logits.gather(-1, place[:, None]).squeeze(-1), 0.0)
    score, total = leave(score, group), leave(logits.exp().sum(-1), group)
    counts = targets != -100
    return torch.where(counts, total.log() - score, 0.0).sum() / counts.sum()


# %%
V, g = 50_257, torch.Generator().manual_seed(3)
logits, targets = torch.randn(8, V, generator=g, requires_grad=True), torch.randint(V, (8,), generator=g)
targets[-1] = -100
loss = F.cross_entropy(logits, targets)
loss.backward()
with local_ranks(N) as ranked:
    rows = [len(part) for part in torch.arange(V).chunk(N)]
    first, part = ranked(lambda rank: torch.tensor(sum(rows[:rank]))), cut(logits, 1).requires_grad_()
    with ranked.counted() as calls:
        theirs = vocab_loss(part, targets, first)
    theirs.backward()
    assert ranked.apart(theirs, loss) < 1e-5, "the ranks' loss is not the loss"
    assert ranked.apart(part.grad, cut(logits.grad, 1)) < 1e-6, "nor is its gradient"
    gathering = 4 * len(targets) * rows[0]
print("rows:", rows, "; all-reduces:", calls, f"; gathering: {gathering:,} bytes")
answer("21b.5", gathering / sum(size for _, size in calls))

# %% [markdown]
r"""
Only the forward pass talks. The gradient, softmax minus one at the target, needs for each rank's columns what that rank has by now.

PyTorch has the same as `loss_parallel()`, a context in which `F.cross_entropy` takes logits that are a DTensor cut along the vocabulary: the same loss by three all-reduces, says
this chapter's test. Backward must lie in the context, too, of which `train_step` knows nothing; so we keep ours.
"""

# %% [markdown]
r"""
## By PyTorch

A *DTensor* is a tensor that knows how it lies on a mesh of ranks: `Shard(0)`, `Replicate()`, or `Partial()`, a summand. Redistributing one is a collective, and autograd knows them all:
g turns `Partial` into `Replicate` in forward, and f does so in backward. `parallelize_module` gives a layer DTensor weights, and hooks that turn its input into a
DTensor and its output back. `ColwiseParallel` is our `Column`, `RowwiseParallel` our `Row`.

The fused optimizer takes no mixture of plain tensors and DTensors. So a third style is for what every rank has whole:
"""


# %%
#| export
class Replicated(ParallelStyle):
    """A module whose weights every rank has, with the layouts of its input and its output, which are plain tensors."""

    def __init__(self, inputs=None, outputs=None):
        self.inputs, self.outputs = inputs or Replicate(), outputs or Replicate()

    def _apply(self, module, mesh: DeviceMesh):
        def enter(module, inputs, mesh):
            return DTensor.from_local(inputs[0], mesh, [self.inputs], run_check=False)

        def leave(module, output, mesh):
            return output.redistribute(placements=[self.outputs]).to_local()

        return distribute_module(module, mesh, None, enter, leave)


# %% [markdown]
r"""
`ColwiseParallel` cuts `c_attn` into runs of rows, so the trap is back. The simplest way out: bring its rows into the order in which equal parts *are* heads,
once, when the model is split; and back, when its weights are taken out.
"""


# %%
#| export
#| blank by_rank: view the rows as (3, n, ...) and exchange the first two dimensions
def by_rank(rows: Tensor, n: int) -> Tensor:
    """c_attn's rows, all of q, of k, of v, in the order in which each of n equal parts has its heads' q, k and v."""
    return rows.unflatten(0, (3, n, -1)).transpose(0, 1).flatten(0, 2)


def by_part(rows: Tensor, n: int) -> Tensor:
    """What by_rank has done, undone."""
    return rows.unflatten(0, (n, 3, -1)).transpose(0, 1).flatten(0, 2)


def plain(model: GPT, named) -> dict[str, Tensor]:
    """Pairs of a parameter's name and a tensor laid out like it (a moment, say), whole and in GPT's order, on all ranks."""
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in named}
    n = model.config.n_head // model.transformer.h[0].attn.n_head
    return {name: by_part(x, n) if ".c_attn." in name else x for name, x in whole.items()}


def full_cut_state(model: GPT) -> dict[str, Tensor]:
    """The weights that a GPT of one process loads, on all ranks, which must all call: by name, a tied one once."""
    return plain(model, ((name, p.detach()) for name, p in model.named_parameters()))


# %%
rows = torch.arange(3 * SHAPE.n_head)  # of c_attn, a head at a time
for rank, heads in enumerate(by_rank(rows, N).chunk(N)):
    print(f"rank {rank} has", *("qkv"[i // SHAPE.n_head] + str(i % SHAPE.n_head) for i in heads.tolist()))

# %% [markdown]
r"""
**What cannot be split.** Heads are whole; if they divide, so do C and 4C. And dropout is refused. On the stream, of which all ranks have copies, all must drop the same numbers, or the copies part; on the heads
each must drop its own. Megatron keeps two random states for this. GPT-2 is trained without dropout nowadays, and so are we.
"""


# %%
#| export
def check_split(model: GPT, mesh: DeviceMesh) -> None:
    """ValueError, in one sentence, where `split` cannot be."""
    config, n = model.config, mesh.size()
    if mesh.ndim != 1:
        raise ValueError(f"split takes a mesh of one dimension, not {mesh.ndim}: pass mesh['tp']")
    check_heads(config.n_head, n)
    if config.vocab_rows <= (n - 1) * -(-config.vocab_rows // n):
        raise ValueError(
            f"vocab_size={config.vocab_size} leaves a rank of {n} without a token; set padded_vocab_size"
        )
    if config.dropout:
        raise ValueError(f"dropout={config.dropout}: the ranks' masks would not fit together; set dropout=0")


# %%
#| export
def split_head(model: GPT, mesh: DeviceMesh, x: Tensor, targets: Tensor | None = None):
    """GPT.head: each rank has its columns of the logits, which are gathered only where no loss is asked for."""
    config, logits = model.config, model.lm_head(model.transformer.ln_f(x))  # a DTensor
    if targets is None:
        return logits.full_tensor()[..., : config.vocab_size], None
    first = -(-config.vocab_rows // mesh.size()) * mesh.get_local_rank()  # the last rank may have fewer
    local = logits.to_local().flatten(0, 1)
    return logits, vocab_loss(local, targets.flatten(), first, mesh.get_group())


def check_length(n: int, model: GPT, inputs: tuple) -> None:
    """Before forward, with sequence: ValueError where T positions cannot be dealt."""
    if inputs[0].size(1) % n:
        raise ValueError(f"{inputs[0].size(1)} positions cannot be dealt to {n} ranks; take a multiple")


# %%
#| export
def split(model: GPT, mesh: DeviceMesh, sequence: bool = False) -> GPT:
    """Tensor parallelism over a mesh of one dimension, in place: heads, MLP and vocabulary are dealt to the ranks.

    sequence: between blocks each rank has T/n positions (Korthikanti et al. 2022, §4.2.2). All weights become DTensors,
    rank 0's. With targets, forward returns the logits as a DTensor. Make the optimizer afterwards. ValueError: check_split.
    """
    check_split(model, mesh)
    if (n := mesh.size()) == 1:
        return model
    x, parts = Shard(1) if sequence else Replicate(), model.transformer
    column, row = partial(ColwiseParallel, input_layouts=x), partial(RowwiseParallel, output_layouts=x)
    plan = {"ln_*": Replicated(x, x), "attn.c_attn": column(), "attn.c_proj": row()}
    for block in parts.h:
        for p in block.attn.c_attn.parameters():
            p.data = by_rank(p.data, n)
        block.attn.n_head //= n
        parallelize_module(block, mesh, plan | {"mlp.c_fc": column(), "mlp.c_proj": row()})
    ends = {"wte": row(input_layouts=Replicate()), "wpe": Replicated(outputs=Shard(0) if sequence else None)}
    parallelize_module(parts, mesh, ends | {"ln_f": Replicated(x, x)})
    parallelize_module(model.lm_head, mesh, column(use_local_output=False))
    model.lm_head.weight = parts.wte.weight  # tied
    model.head = partial(split_head, model, mesh)
    model.register_forward_pre_hook(partial(check_length, n if sequence else 1))
    return model


# %% [markdown]
r"""
The course's one GPT does the rest. Its attention asks for `n_head` heads of whatever width `c_attn` brings, and its `head` is where the loss is taken, so nothing in chapters 04 and 05
had to change.
"""

# %%
one = GPT(SHAPE, torch.Generator().manual_seed(0))
ids = torch.randint(SHAPE.vocab_size, (2, B, T), generator=torch.Generator().manual_seed(4))  # and targets
with local_ranks(N) as ranked:
    model = split(copy.deepcopy(one), init_device_mesh("cpu", (N,)))
    for name in ("attn.c_attn", "attn.c_proj", "ln_1"):
        weight = model.transformer.h[0].get_submodule(name).weight
        print(f"{name:12} {tuple(weight.shape)} {weight.placements}")
    theirs = ranked(lambda rank: ids)
    with ranked.counted() as calls:
        loss = model(*theirs)[1]
    assert ranked.apart(loss, one(*ids)[1]) < 1e-5, "the split model has another loss"
print(f"embedding, {SHAPE.n_layer} blocks, loss:", *(size for _, size in calls), "bytes into all-reduces")

# %% [markdown]
r"""
## Sequence parallel

One thing is still done n times over: all that lies between the blocks. LayerNorm, the residual sums and what they keep for backward are of size (B, T, C) on every rank. But they
work on each position alone. So give each rank T/n positions there (Korthikanti et al. 2022). Then f has to *gather* the positions, and g has to leave each rank its
own: a reduce-scatter. Chapter 20 has made an all-reduce of these two.
"""


# %%
#| export parallel.tensor_by_hand
def in_front(x: Tensor) -> Tensor:
    """(B, T, C) to (T, B, C) and back: these collectives cut and join a tensor's first dimension."""
    return x.transpose(0, 1).contiguous()


def gather(x: Tensor, group=None) -> Tensor:
    """All ranks' positions, from this rank's: (B, T/n, C) -> (B, T, C)."""
    part = in_front(x)
    whole = part.new_empty(dist.get_world_size(group) * part.size(0), *part.shape[1:])
    dist.all_gather_into_tensor(whole, part, group=group)
    return in_front(whole)


def scatter(x: Tensor, group=None) -> Tensor:
    """This rank's positions of the sum over the ranks: (B, T, C) -> (B, T/n, C)."""
    whole = in_front(x)
    part = whole.new_empty(whole.size(0) // dist.get_world_size(group), *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole, group=group)
    return in_front(part)


# %% [markdown]
r"""
*Predict.* Every rank sends around a ring, as in chapter 20. How many times the bytes of the plain split does a block send with sequence parallelism?
"""

# %%
predict("21b.6", "bytes sent, sequence over plain", guess=None)

# %%
SENT = {
    "allreduce": 2 * (N - 1) / N,
    "reduce_scatter_base": (N - 1) / N,
    "allgather_base": N - 1,
}  # of what is put in
sent = {}
for sequence in (False, True):
    block, x, y, gradient = block_of(SHAPE)
    with local_ranks(N) as ranked:
        split_block(block, cut, sequence=sequence)
        z = (cut(x, 1) if sequence else x.clone()).requires_grad_()
        with ranked.counted() as calls:
            out = block(z)
            out.square().sum().backward()
        assert ranked.apart(out, cut(y, 1) if sequence else y) < 1e-5, "the ranks' block is not the block"
        assert ranked.apart(z.grad, cut(gradient, 1) if sequence else gradient) < 1e-3, "nor is its gradient"
    sent[sequence] = sum(SENT[what] * size for what, size in calls)
    print(
        "sequence:" if sequence else "plain:   ",
        len(calls),
        f"collectives, {sent[sequence]:,.0f} bytes sent by each rank",
    )
answer("21b.6", sent[True] / sent[False])

# %% [markdown]
r"""
Twice as many calls, the same bytes, and less to keep. There is one more thing to sum: a LayerNorm's weights have seen only this rank's positions, so their gradients are
summands. DTensor calls them `Partial()`, and chapter 21's clipping sums them before it takes the norm.

In `split(…, sequence=True)` the embedding's sum is scattered already, and `lm_head` gathers. How much less is kept, the drill says, with real processes: what autograd saves in a block, on one rank.

*Predict.* What share of the bytes that a block saves in one process does a rank of the drill save with tensor parallelism?
"""

# %%
predict("21b.7", f"share saved on {PROCESSES} ranks", guess=None)


# %%
#| export drills.tensor
def cutter(ranks: Ranks):
    """cut(x, dim): this rank's piece of a plain tensor, a copy."""
    return lambda x, dim: x.detach().chunk(ranks.size, dim)[ranks.rank].clone()


def memory(ranks: Ranks, data: str, rows: int = 4) -> dict:
    """Bytes that autograd saves in a block, without weights: whole, split, with sequence parallelism; and B × T × C."""
    found = {}
    for way in ("one process", "split", "sequence"):
        model, _, _ = fresh(Ranks(device=ranks.device), data)
        block, T = model.transformer.h[0], model.config.block_size
        if way != "one process":
            split_block(block, cutter(ranks), sequence=way == "sequence")
        T //= ranks.size if way == "sequence" else 1
        x = torch.randn(rows, T, model.config.n_embd, device=ranks.device, requires_grad=True)
        found[way] = saved_bytes(partial(block, x), exclude=block.parameters())
    return found | {"numbers": rows * model.config.block_size * model.config.n_embd}


# %% [markdown]
r"""
## Two dimensions

4 GPUs as 2 × 2: in a *mesh* each row is a replica of the model, and each layer is dealt along a row. Neighbouring ranks are on one machine, so tensor parallelism takes the last
dimension, and data parallelism, which talks less often and can wait, the first. By hand, a block is split over the groups `tp`, and its gradients are summed over the groups `dp`:
"""

# %%
block, x, _, _ = block_of(SHAPE)
whole = copy.deepcopy(block)
whole(x).square().sum().backward()
with local_ranks(4) as ranked:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = (mesh[name].get_group() for name in ("tp", "dp"))
    split_block(block, lambda x, dim: ranked(lambda rank: x.detach().chunk(2, dim)[rank % 2].clone()), tp)
    block(ranked(lambda rank: x.chunk(2)[rank // 2])).square().sum().backward()
    dist.all_reduce(gradient := block.mlp.c_fc.weight.grad, group=dp)
    expected = ranked(lambda rank: whole.mlp.c_fc.weight.grad.chunk(2)[rank % 2])
    assert ranked.apart(gradient, expected) < 1e-3, "the mesh's gradient is not that of one process"
print("tp groups:", mesh.mesh.tolist(), "dp groups:", mesh.mesh.T.tolist())

# %% [markdown]
r"""
With the package it is one line more: `shard(split(model, mesh["tp"]), mesh["dp"])`, chapter 21's FSDP over what is split. A weight is then a DTensor over both dimensions. This chapter's
test does it on four processes, and the configuration of chapter 21d names it.

*Check.* The law of this part: the same step, however many processes share it and however they do. Training runs from the same weights, with the same `train_step`, in four ways; half of the
rows lose most of their targets.
"""


# %%
#| export drills.tensor
WAYS = "one process", "by hand", "split", "sequence"


def in_way(model: GPT, way: str, ranks: Ranks) -> GPT:
    """The model in one of WAYS, in place, over all ranks."""
    if way == "by hand":
        for block in model.transformer.h:
            split_block(block, cutter(ranks))
    elif way != "one process":
        split(model, init_device_mesh(ranks.device.type, (ranks.size,)), way == "sequence")
    return model


# %%
#| export drills.tensor
def curve(ranks: Ranks, data: str, way: str, clip: float | None, steps: int) -> dict:
    """Losses and norms of a few steps, and of the first gradient the token table's."""
    model, _, stream = fresh(Ranks(device=ranks.device), data, 4)  # on all ranks the same rows
    optimizer = make_optimizer(in_way(model, way, ranks), LR)
    losses, norms, options = [], [], {"clip": clip}
    options["accept"] = lambda loss, norm: not norms.append(norm.item())
    for step in range(steps):
        batch = [tuple(map(torch.cat, zip(*masked(stream, row=2))))]  # in one piece
        losses.append(train_step(model, optimizer, batch, **options).item())
        if step == 0:
            gradient = plain(model, [("table", model.transformer.wte.weight.grad)])["table"]
    gain = plain(model, [("gain", model.transformer.ln_f.weight.detach())])["gain"].cpu()
    return {"losses": losses, "norms": norms, "gradient": gradient, "gain": gain}


# %%
#| export drills.tensor
def steps_in_all_ways(ranks: Ranks, data: str, steps: int = 6) -> dict:
    """The same steps in all WAYS, unclipped: losses, and how far the first gradient is from that of one process."""
    found = {way: curve(ranks, data, way, None, steps) for way in WAYS}
    one = found["one process"]["gradient"]
    apart = {way: ((told["gradient"] - one).norm() / one.norm()).item() for way, told in found.items()}
    return {way: {"losses": told["losses"], "gradient": apart[way]} for way, told in found.items()}


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

# %%
names = [f"drills.tensor:{name}" for name in ("memory", "same", "clipped")]
torchrun("21b", PROCESSES, "drill", *names, "--data", DATA, "--out", OUT)
found = {name.rpartition(":")[2]: told for name, told in json.loads(Path(OUT).read_text()).items()}

# %%
for way, formula in {"one process": 16, "split": 4 + 12 / PROCESSES, "sequence": 2 + 14 / PROCESSES}.items():
    times = found["memory"][way] / found["memory"]["numbers"] / 4  # bytes
    print(f"{way:12} {times:5.2f} times (B, T, C) is kept, by the formula {formula:5.2f}")
answer("21b.7", found["memory"]["split"] / found["memory"]["one process"])

# %% [markdown]
r"""
Where the formula comes from: two LayerNorms keep their inputs and the two column layers theirs, 4 in all; q, k, v and attention's result are 4 more, GELU's input and output 4 each. Those 12 are divided
by the split. Sequence parallelism divides the LayerNorms' two as well. The two gathered inputs stay: the paper keeps each rank's part and gathers again
in backward (Korthikanti et al. 2022, §4.2.2), an exercise below. (What is left beyond the formula: LayerNorm's and attention's statistics.)
"""

# %%
one = found["same"]["one process"]
for way, told in found["same"].items():
    apart = max(abs(a - b) for a, b in zip(told["losses"], one["losses"]))
    near = "as one process, to rounding" if max(apart, told["gradient"]) < 1e-4 else "ANOTHER gradient"
    print(f"{way:14} first loss {told['losses'][0]:.3f}, last {told['losses'][-1]:.3f}: {near}")

# %% tags=["nbval-ignore-output"]
print(
    "gradients, of their length:", *(f"{way} {told['gradient']:.1e};" for way, told in found["same"].items())
)

# %% [markdown]
r"""
Not zero, because a sum over the hidden units is now a sum of sums, in another order: rounding, as in chapter 20.

And clipping? `train_step` takes the norm of the gradients that it finds. By hand, each rank finds its own pieces.
"""

# %%
for way, told in found["clipped"].items():
    norms = ", ".join(f"{norm:.3f}" for norm in told["norms"])
    print(f"{way:12} norms {norms}; LayerNorm's copies {'have PARTED' if told['apart'] else 'are equal'}")
assert found["clipped"]["split"]["apart"] == 0, "the ranks of the split model clip differently"

# %% [markdown]
r"""
Each rank clips by another factor, so what should be copies of one weight drift apart, slowly and silently. A DTensor knows which of its numbers are pieces and which are copies; so chapter 21's `global_norm` adds up
the squares of pieces over the ranks, and those of copies once.
"""

# %% tags=["nbval-ignore-output"]
predictions("21b")

# %%
checkpoint("21b")

# %% [markdown]
r"""
## Exercises

`course exercises release 21b` writes these as a notebook to `released/`; `course check 21b` runs their visible checks.

- **21b-1** Heads, not halves, 20 minutes: repair the cut of `c_attn`, without a loop.
- **21b-2** One sum for an MLP, 30 minutes: compute it on n ranks.
- **21b-3** Three numbers for each token, 35 minutes: the loss of a cut vocabulary, merged from summaries.
- **21b-4** Counting collectives, 25 minutes: derive how many a step makes, and their bytes.
- **21b-5** A check for a cut embedding, 25 minutes: write the check that finds rows of another rank.
- **21b-6** Sixteen GPUs in two machines, 10 minutes: where tensor parallelism belongs.

To explore:

1. Norms by hand: mark which parameters of a block split by hand are pieces, and write its global norm with one all-reduce. Check: the drill `clipped` then prints one process's norm on all ranks.
2. Let `enter` with `sequence` keep this rank's part for the weight's gradient and gather again in backward; it must do the product itself, as an operator `gathered_linear`. Check: the drill `memory` prints 16 / n, and `split_block`'s gradients stay.
3. `vocab_loss` sums twice. Stack both into one all-reduce. Check: two collectives, the same bytes; why can the maximum not join them?
4. A block whose MLP reads `ln_1`'s output as well (Chowdhery et al. 2022, §2): one `enter` and one `leave` can serve both branches. Check: one all-reduce forward, one backward.
5. Dropout on a split model: what must the ranks' generators have in common, and where? Check: with p = 0.1 the copies of the stream stay equal over ten steps, and two heads on two ranks drop different weights.

## Further reading

- Shoeybi et al. 2019, *Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*, §3: the two cuts, f and g, the vocabulary.
- Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, §4: activations by part, sequence parallelism.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, §3: why tensor parallelism stays within a machine.
- PyTorch's tutorials *Large Scale Transformer model training with Tensor Parallel* and *Getting Started with DeviceMesh*.
"""
