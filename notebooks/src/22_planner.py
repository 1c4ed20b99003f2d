# %% [markdown]
r"""
# 22 · Planner: does it fit?

A run that does not fit into a GPU's memory stops in its first step, often after an hour of queueing for that GPU. We can know beforehand. A training step keeps
a list of tensors, and each tensor has a size that follows from the model's shape. In this chapter we write the list down, first by hand for one GPU, then as
functions. We check it against autograd on this machine and against 42 figures that published logs printed.

This sitting is about memory. Chapter 22a adds what is sent between GPUs, the time and the price, and makes a command of all of it: `python -m nanogpt plan`.
"""

# %%
#| default_exp labs.plan.table
#| doc labs.plan.table: Memory, traffic, time and cost of a run as lines of a table, each with the formula that gives its number.
#| doc labs.plan.footprint: What a training step keeps in memory, tensor by tensor, as PyTorch, llm.c and Megatron-LM keep it.
import torch

from course.figures import planner as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.labs.roofline.memory import saved_bytes
from nanogpt.model import GPT, num_params

# %%
#| export labs.plan.footprint
import math
from dataclasses import dataclass, replace

from nanogpt.model import GPTConfig

# %% [markdown]
r"""
## Weights, gradients, moments

Let us count for GPT-2 small in float32, with eight sequences of 1,024 tokens, before we write any function. Every parameter needs four numbers: the weight itself, its gradient, and the two
moments that AdamW keeps. In float32 each number has four bytes.

*Predict.* GPT-2 small has 124,439,808 parameters. How many MiB are that? (1 MiB is 2^20 bytes, about a million.)
"""

# %%
GPT2, MIB = GPTConfig(), 2**20
ROWS, T = 8, 1024  # sequences in a batch, and tokens in each: change them, and all numbers below follow
print(f"a step reads {ROWS} rows of {T:,} tokens, {ROWS * T:,} tokens in all")

# %%
predict("22.1", "weights, gradients and moments of GPT-2 small in float32", guess=None, unit="MiB")

# %%
P = num_params(GPT2)
by_hand = {"weights": 4 * P, "gradients": 4 * P, "moments": 2 * 4 * P}
for name, nbytes in by_hand.items():
    print(f"{name:10} {nbytes / MIB:8,.1f} MiB")
answer("22.1", sum(by_hand.values()) / MIB)

# %% [markdown]
r"""
These three do not depend on the batch. They are the price of the model: 16 bytes for each parameter. A model of a billion parameters needs 16 GB before it has read a single token.

## Activations of one block

The forward pass also keeps tensors, because the backward pass needs them. For a matrix product `y = x @ w`, the gradient of `w` needs `x`. So each product keeps its input, and GELU and the norms keep theirs. Let us walk through a
block and write down what it keeps, in multiples of `N * C`: N = B·T tokens, each with C channels. The names are those of llm.c, whose source has this list as an array.
"""

# %%
block_by_hand = {
    "ln1": 1,  # the first norm's output, which the product for q, k and v reads
    "qkv": 3,  # queries, keys and values, which attention reads
    "atty": 1,  # attention's output, which its projection reads
    "residual2": 1,  # the stream after attention, which the second norm reads
    "ln2": 1,  # the second norm's output, which the MLP's first product reads
    "fch": 4,  # its result, four times as wide, which GELU reads
    "gelu": 4,  # GELU's output, which the second product reads
    "residual3": 1,  # the stream after the MLP, which the next block's norm reads
}
tables = sum(block_by_hand.values())
N, C, L, V = ROWS * T, GPT2.n_embd, GPT2.n_layer, GPT2.vocab_size
print(f"a block keeps {tables} tables of N × C, {4 * tables * N * C / MIB:,.0f} MiB")
print(f"{L} blocks keep {4 * L * tables * N * C / MIB:,.0f} MiB")
print(f"the logits are one table of N × V, {4 * N * V / MIB:,.0f} MiB")

# %% [markdown]
r"""
The activations of eight rows, 4,608 MiB in the blocks and 1,571 for the logits, already take more than three times the memory of the weights, gradients and moments together. Unlike those, they grow with the batch.

Is the list complete? Autograd can tell: chapter 09's `saved_bytes` counts what it really saves. We ask it about a small model, once with three blocks and once with two. The difference is one block.
"""

# %%
small = GPTConfig(64, 512, n_layer=3, n_head=4, n_embd=64)
ids = torch.zeros(2, 4, 64, dtype=torch.long)  # inputs and targets: four rows of 64 tokens
found = {}
for n_layer in (2, 3):
    model = GPT(replace(small, n_layer=n_layer))
    found[n_layer] = saved_bytes(lambda m=model: m(*ids), exclude=model.parameters())
n = 4 * 64
print(f"autograd keeps {found[3] - found[2]:,} bytes for a block; by hand {4 * tables * n * 64:,}")
print(f"missing: {(found[3] - found[2] - 4 * tables * n * 64) / n:.0f} bytes for each token")

# %% [markdown]
r"""
Almost. A few bytes for each token are missing: each of the two norms keeps the mean and the deviation of every token (2 × 2 numbers), and flash attention keeps one sum for each head of every token (4 heads, so 4 numbers). Eight numbers of four bytes are
the 32 bytes.

## Does it fit?

We have nearly all that a step keeps. Two tables are outside of the blocks, the stream that the first block reads and the last norm's output. And one moment is missing, the one at which memory is fullest: the beginning of the backward pass. All activations still exist then, and the loss adds two more tables of N × V, the gradients of the log-probabilities and of the logits (chapter 12 measured this).

*Predict.* How many MiB does GPT-2 small need in all, with the batch from the top of the chapter? And how many rows fit into the 24,564 MiB of an RTX 4090?
"""

# %%
predict("22.2", f"all that GPT-2 small keeps in float32 with {ROWS} rows", guess=None, unit="MiB")
predict("22.3", "rows of GPT-2 small that fit into 24,564 MiB (an RTX 4090), float32", guess=None)

# %%
of_the_model = 16 * P
of_the_batch = {
    "blocks": 4 * L * tables * N * C,
    "outside": 4 * 2 * N * C,
    "logits": 4 * N * V,
    "loss": 2 * 4 * N * V,
}
for name, nbytes in of_the_batch.items():
    print(f"{name:10} {nbytes / MIB:8,.1f} MiB")
total = of_the_model + sum(of_the_batch.values())
answer("22.2", total / MIB)
a_row = sum(of_the_batch.values()) / ROWS
room = (24564 - 851) * MIB  # an RTX 4090's, less what is no tensor
print(f"{of_the_model / MIB:,.0f} MiB for the model and {a_row / MIB:,.0f} for each row")
answer("22.3", int((room - of_the_model) // a_row))

# %% [markdown]
r"""
That is the planner, in two numbers: 16 bytes for each parameter, and here 1,171 MiB for each row. Eighteen rows fit, and not a nineteenth. In GPT-2 small the vocabulary is 65 times as wide as the stream, so the logits and the loss's two tables take as much as all twelve blocks.

We subtracted 851 MiB, which are not tensors. They come from one log, which the section *Against published logs* reads. The log does not say what they are; CUDA's context and the code of its libraries must be among them. No formula gives their size.

The rest of this chapter does the same for other programs, in 16 bits, and on many GPUs, and checks it.

## The list as code

Programs differ in how many bytes they use for a number and in a few tensors that one keeps and another does not. So we write one list, and describe each program by a row of choices.

The first group of fields below is enough for PyTorch, and its defaults are those of float32. The second group describes attention without flash, which keeps a T × T table for each head. (In bf16 autocast on a GPU, the softmax keeps a float32 table, and the next product keeps a 16-bit copy of it. Together they have the bytes of three 16-bit tables, so `tables` is 3 there.) Skip the third group now, but for `projections`, which belongs into the list below. It is for llm.c and Megatron-LM, whose
logs we read later in this chapter.
"""


# %%
#| export labs.plan.footprint
@dataclass(frozen=True)
class Program:
    """How a program stores a step: bytes of a number by kind, and which tensors it keeps besides the common ones."""

    weights: int  # bytes of a parameter, as forward reads it
    gradients: int
    masters: int = 0  # bytes of a float32 copy beside 16-bit weights
    casts: int = 0  # bytes of a number in the copy of each matrix that autocast makes in every step
    stream: int = 4  # bytes of a number on the residual stream
    inside: int = 4  # of what matrix products and attention read
    stats: int = 4  # of the norms' means and deviations
    logits: int = 4  # for each logit, in all tables that are kept
    backward: int = 0  # for each logit, in the loss's backward pass
    ids: bool = False  # tokens, targets, positions as int64, and the loss's divisor, are kept

    tables: int = 1  # T × T tables for each head, without flash attention
    mask: int = 0  # bytes of a number in a layer's T × T mask, without flash attention

    norms: int = 0  # bytes that a LayerNorm's parameter has more than another
    projections: bool = False  # what both projections add to the stream has tensors of its own
    shared_output: bool = False  # the logits' memory serves as scratch too: for qkv, or T × T
    scratch: int = 0  # further numbers of `inside` for each of a token's C
    pad: int = 1  # the token table's rows are a multiple of this


# %% [markdown]
r"""
Now the rows for this course's trainer, one for each of chapter 10's words for precision. `TORCH` collects what all of them have: backward needs two float32 tables as large as the logits (2 × 4 bytes), the mask takes one byte for each entry, and ids are kept as int64.

The second dictionary, `RECOMPUTE`, is for saving memory. If backward computes a tensor again, this tensor has to exist for one layer at a time only. The section *16 bits, and recomputing* uses it; with `none`, the default, nothing is computed again.
"""

# %%
#| export labs.plan.footprint
TORCH, HALF = {"backward": 8, "mask": 1, "ids": True}, {"stream": 2, "inside": 2}
PYTORCH = {  # this course's trainer, by chapter 10's words for precision
    "pytorch": Program(4, 4, **TORCH),  # float32
    "pytorch-tf32": Program(4, 4, **TORCH),
    "pytorch-bf16": Program(4, 4, casts=2, inside=2, tables=3, **TORCH),  # autocast
    "pytorch-fp16": Program(4, 4, casts=2, inside=2, tables=3, **TORCH),
    "pytorch-bf16-masters": Program(2, 2, 4, **HALF, stats=2, **TORCH),  # MasterAdamW
}
BLOCK = "ln1 ln1_stats qkv att mask atty attproj residual2 ln2 ln2_stats fch gelu fcproj"
RECOMPUTE = {  # what backward makes again, and of how many layers it exists at a time
    "none": {},
    "gelu": {"gelu": 1},
    "gelu+norms": {"gelu": 1, "ln1": 0, "ln2": 0},  # llm.c's -r 2: both norms in the memory of the last one
    "block": dict.fromkeys(BLOCK.split(), 1),  # all but a block's input: residual3 of the one before
}

# %%
PROGRAMS = PYTORCH  # for now; llm.c and Megatron-LM get their rows below
for name, p in PROGRAMS.items():
    print(f"{name:21} weight {p.weights} B, gradient {p.gradients} B, input of a product {p.inside} B")

# %% [markdown]
r"""
TF32 and float32 need the same memory, because TF32 changes only how products are computed. bf16 and fp16 are equal as well, since both have two bytes. So there are three different rows.

A `Step` describes one training step: the model, the batch, the program, and the GPUs. Only the first four fields matter for now. The others have defaults that change nothing until the sections *16 bits, and recomputing* and *Many GPUs* use them.

The first function refuses a step that cannot exist, such as twelve heads on five GPUs. The class follows, and then three properties that the lists below will ask for: is this GPU at the beginning or at the end of the model, and which row of `PROGRAMS` applies?
"""


# %%
#| export labs.plan.footprint
def check_step(step) -> None:
    """ValueError, in one sentence, for a step that cannot be."""
    for name in ("B", "T", "accumulate", "dp", "tp", "pp"):
        if getattr(step, name) < 1:
            raise ValueError(f"{name}={getattr(step, name)} must be at least 1")
    for name, ranks, size in ("tp", step.tp, "n_head"), ("pp", step.pp, "n_layer"):
        if getattr(step.config, size) % ranks:
            raise ValueError(f"{name}={ranks} must divide {size}={getattr(step.config, size)}")
    if step.shard not in range(4):
        raise ValueError(f"shard={step.shard} must be 0, 1, 2 or 3")


# %%
#| export labs.plan.footprint
@dataclass(frozen=True)
class Step:
    """A training step on dp × tp × pp GPUs, seen from one GPU of a pipeline's `stage`. ValueError if it cannot be."""

    config: GPTConfig
    B: int = 1  # sequences in a micro-batch of one of the dp ranks
    T: int = 1024
    program: str = "pytorch-bf16"
    flash: bool = True
    recompute: str = "none"
    accumulate: int = 1  # micro-batches
    dp: int = 1  # ranks that read different rows
    shard: int = 0  # ZeRO's stage over the dp ranks
    tp: int = 1  # ranks that share each matrix
    pp: int = 1  # ranks that share the layers
    stage: int = 0  # which of the pp

    def __post_init__(self):
        check_step(self)


# %%
#| export labs.plan.footprint
class Step(Step):
    @property
    def first(self) -> bool:
        """Whether this stage has the embeddings."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this stage has the logits and the loss."""
        return self.stage == self.pp - 1

    @property
    def row(self) -> Program:
        """The program's choices. FSDP2 gathers weights in 16 bits instead of casting them: then all is in 16 bits."""
        p = PROGRAMS[self.program]
        if p.casts and self.shard == 3 and self.dp > 1:
            return replace(p, casts=0, stream=p.casts, stats=p.casts, tables=1)
        return p


# %% [markdown]
r"""
We describe the small model from above as such a step, in float32 on one GPU. One GPU is both the first stage and the last.
"""

# %%
alone = Step(small, 4, 64, "pytorch")
print(f"first stage: {alone.first}, last stage: {alone.last}, bytes inside: {alone.row.inside}")

# %% [markdown]
r"""
Now the list itself: for each tensor, how many numbers it has and how many bytes each number has. It is the list that we wrote by hand, with the choices of the program.
"""


# %%
#| export labs.plan.footprint
#| blank block_tensors: sixteen tables of N × C, two numbers a token for each norm, attention's sums or tables, mask, projections
def block_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What a block keeps of a micro-batch: (numbers, bytes of each), by llm.c's names, those in BLOCK and residual3.

    residual2 and residual3 have the bytes of `stream`, the norms' the bytes of `stats`, all other tables those of
    `inside`. With flash, att is a float32 sum (4 bytes) for each token and head. Without it, att is `tables` numbers
    for each token, head and key, and mask T × T numbers of `mask` bytes, once for all rows. attproj and fcproj, what
    the two projections add, are N × C each where the program has `projections`, and otherwise 0.
    """
    T, N, p, H, C = step.T, step.B * step.T, step.row, step.config.n_head, step.config.n_embd
    return {
        "ln1": (N * C, p.inside),
        "ln1_stats": (2 * N, p.stats),
        "qkv": (3 * N * C, p.inside),
        "att": (N * H, 4) if step.flash else (p.tables * N * H * T, p.inside),  # sums, or all weights
        "mask": (0 if step.flash else p.mask * T * T, 1),
        "atty": (N * C, p.inside),
        "attproj": (N * C if p.projections else 0, p.inside),
        "residual2": (N * C, p.stream),
        "ln2": (N * C, p.inside),
        "ln2_stats": (2 * N, p.stats),
        "fch": (4 * N * C, p.inside),
        "gelu": (4 * N * C, p.inside),
        "fcproj": (N * C if p.projections else 0, p.inside),
        "residual3": (N * C, p.stream),
    }


# %%
print(block_tensors(alone))

# %% [markdown]
r"""
Each entry is a pair: how many numbers, and how many bytes each of them has. You find the tables of the list by hand again, and the two kinds of entries that we had forgotten: `ln1_stats` and `ln2_stats` for the norms, `att` for attention's sums.

Outside of the blocks there are a few more tensors: the sum of the embeddings, the ids, the last norm and the logits.
"""


# %%
#| export labs.plan.footprint
def other_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What is kept outside of the blocks: (numbers, bytes of each). The head's are the last stage's."""
    N, p, c = step.B * step.T, step.row, step.config
    kept = {"encoded": (N * c.n_embd, p.stream)}  # the embeddings' sum, or what the stage before sent
    if p.ids:  # tokens and positions, targets and the loss's divisor
        kept["ids"] = (8 * (N + step.T) * step.first + (8 * N + 4) * step.last, 1)
    if step.last:
        width = max(3 * c.n_embd, c.n_head * step.T, c.vocab_rows) if p.shared_output else c.vocab_rows
        kept["lnf"] = (N * c.n_embd, p.inside)
        kept["lnf_stats"] = (2 * N, p.stats)
        kept["logits"] = (N * width, p.logits)
        kept["losses"] = (0 if p.ids else N, p.stats)
        kept["scratch"] = (p.scratch * N * c.n_embd, p.inside)
    return kept


# %% [markdown]
r"""
One function collects both lists and says how many of each tensor a GPU has. On one GPU each tensor of a block exists once for each layer, and each tensor outside of the blocks exists once. (Skip the lines about `under_way` and `SPLIT` for now. They are about pipelines and tensor parallelism, which come in *Many GPUs*.)
"""

# %%
#| export labs.plan.footprint
SPLIT = {"qkv", "att", "atty", "fch", "gelu", "logits"}  # by tensor parallelism


def tensors(step: Step) -> dict[str, tuple[int, int, int]]:
    """What forward keeps for backward on one GPU: (numbers, bytes of each, how many of such), by name."""
    under_way = min(step.accumulate, step.pp - step.stage)  # micro-batches whose backward is still to come
    layers = step.config.n_layer // step.pp * under_way
    kept = {}
    for name, (numbers, width) in block_tensors(step).items():
        kept[name] = numbers, width, min(layers, RECOMPUTE[step.recompute].get(name, layers))
    for name, (numbers, width) in other_tensors(step).items():
        kept[name] = numbers, width, under_way
    for name in SPLIT & kept.keys():
        numbers, width, many = kept[name]
        kept[name] = math.ceil(numbers / step.tp), width, many
    return {name: each for name, each in kept.items() if math.prod(each)}


# %% [markdown]
r"""
Now we add up all bytes of the small model and compare them with the bytes that autograd saved above.
"""


# %%
def held(step: Step) -> int:
    """Bytes of all activations."""
    return sum(numbers * width * many for numbers, width, many in tensors(step).values())


assert held(alone) == found[3], "autograd keeps another number of bytes"
for name, (numbers, width, many) in tensors(alone).items():
    print(f"{name:10} {numbers:>9,} numbers × {width} B × {many} = {numbers * width * many:>9,} B")
print(f"together {held(alone):,} B; autograd keeps {found[3]:,} B")

# %% [markdown]
r"""
The two are equal to the byte. We write the same kind of list for the weights, gradients and moments. `split_params` counts the parameters by part. `states` makes the list; each of its entries has three numbers: how many numbers there are, how many bytes each has, and how many ranks share them (1 on one GPU).
"""


# %%
#| export labs.plan.footprint
def split_params(step: Step) -> dict[str, int]:
    """Parameters on one GPU, by part. With a pipeline, the first and the last stage each have a token table."""
    C, bias, t, L = step.config.n_embd, int(step.config.bias), step.tp, step.config.n_layer // step.pp
    ends = step.first or step.last
    return {
        "wte": math.ceil(step.config.vocab_rows / t) * C if ends else 0,
        "wpe": step.config.block_size * C if step.first else 0,
        "attention": L * (4 * C * C // t + bias * (3 * C // t + C)),
        "mlp": L * (8 * C * C // t + bias * (4 * C // t + C)),
        "layer norm": (2 * L + step.last) * (1 + bias) * C,
    }


# %%
#| export labs.plan.footprint
def states(step: Step) -> dict[str, tuple[int, int, int]]:
    """What a GPU keeps for its parameters: (numbers, bytes of each, ranks that share them), by name."""
    parts, p, L = split_params(step), step.row, step.config.n_layer // step.pp
    P = sum(parts.values())
    weights, gradients, optimizer = (step.dp if step.shard >= stage else 1 for stage in (3, 2, 1))
    kept = {
        "parameters": (P, p.weights, weights),
        "norms": (parts["layer norm"], p.norms, weights),
        "gradients": (P, p.gradients, gradients),
        "moments": (2 * P, 4, optimizer),
        "masters": (P, p.masters, optimizer),
        "casts": (12 * L * step.config.n_embd**2 // step.tp + parts["wte"] * step.last, p.casts, 1),
    }
    if weights > 1:  # what FSDP2 gathers: the root's, the block at work, and the next one
        blocks = (parts["attention"] + parts["mlp"]) * min(2, L) // L
        kept["gathered"] = (parts["wte"] + parts["wpe"] + blocks, p.inside, 1)
    return {name: each for name, each in kept.items() if math.prod(each)}


# %%
for name, (numbers, width, ranks) in states(alone).items():
    print(f"{name:10} {numbers:>8,} numbers × {width} B, shared by {ranks}")

# %% [markdown]
r"""
These are the three kinds from the beginning of the chapter, now for the small model. `footprint` adds up everything that exists at the fullest moment, when the backward pass begins:
"""


# %%
#| export labs.plan.footprint
def footprint(step: Step) -> dict[str, int]:
    """{category: bytes} on one GPU, all at once; without the driver's and libraries' own."""
    p, N = step.row, step.B * step.T
    held = {name: math.ceil(n * width / ranks) for name, (n, width, ranks) in states(step).items()}
    held["activations"] = sum(math.prod(each) for each in tensors(step).values())
    if step.last:
        held["loss"] = math.ceil(p.backward * N * step.config.vocab_rows / step.tp)
    if not p.ids:
        held["inputs"] = 8 * N  # ids and targets in four bytes each, beside the activations
    return {name: n for name, n in held.items() if n}


# %%
step = Step(GPT2, ROWS, T, "pytorch")
for name, nbytes in footprint(step).items():
    print(f"{name:12} {nbytes / MIB:8,.1f} MiB")
more = sum(footprint(step).values()) - total
print(f"in all {sum(footprint(step).values()) / MIB:,.0f} MiB, {more / MIB:.1f} more than by hand")

# %% [markdown]
r"""
By hand we left out the means and deviations of the norms, the sums of attention and the ids. They are the 6 MiB.

## The largest batch

The memory of the parameters is constant, and each further row of the batch adds the same number of bytes. So the bytes are a straight line in B, and two points are enough to find it. The largest batch is where this line crosses the memory of the card. (With a pipeline, every stage has to fit, so the function takes the smallest answer of the stages.)
"""

# %%
#| export labs.plan.footprint
#| blank largest_batch: the bytes for B = 1 and B = 2 give the line
OVERHEAD = 851  # MiB that an A800's log leaves unexplained; CUDA's context and libraries are among them


def fullest_stages(step: Step) -> dict[str, Step]:
    """The stages of a pipeline that can be the fullest, by name; without one, the only GPU."""
    if step.pp == 1:
        return {"the only stage": step}
    return {"first stage": replace(step, stage=0), "last stage": replace(step, stage=step.pp - 1)}


def largest_batch(step: Step, nbytes: float) -> int:
    """The largest B that fits into so many bytes on every stage, 0 if none: bytes are a line in B."""
    most = []
    for each in fullest_stages(step).values():
        one, two = (sum(footprint(replace(each, B=B)).values()) for B in (1, 2))
        most.append(math.floor((nbytes - one) / (two - one)) + 1)
    return max(0, min(most))


# %%
print(largest_batch(step, room), "rows fit into an RTX 4090")

# %% [markdown]
r"""
These are the eighteen rows from above.

## 16 bits, and recomputing

From here on we change one thing at a time and look at what happens.

Under *autocast* in bfloat16, products read numbers of two bytes, so the tensors *inside* attention and MLP need half the memory. The residual stream stays in float32, and so do weights, gradients and moments. One line is new: autocast keeps a
16-bit copy of each matrix, the *casts*. With *float32 masters* (chapter 10's `bf16-masters`), weights and gradients themselves have two bytes, and a float32 copy is kept beside them.

Recomputing trades time for memory. With `gelu`, backward computes GELU's output again from its input instead of keeping it. (`gelu+norms` does the same for the norms' outputs; it is llm.c's option `-r 2`.) With `block`, only the input of each block is kept, and backward runs the block's forward again.
"""

# %%
choices = {
    "float32": Step(GPT2, ROWS, T, "pytorch"),
    "bf16": Step(GPT2, ROWS, T, "pytorch-bf16"),
    "bf16-masters": Step(GPT2, ROWS, T, "pytorch-bf16-masters"),
    "bf16, recompute gelu": Step(GPT2, ROWS, T, recompute="gelu"),
    "bf16, recompute block": Step(GPT2, ROWS, T, recompute="block"),
}
for name, each in choices.items():
    total = sum(footprint(each).values()) / MIB
    print(f"{name:22} {total:>8,.0f} MiB, largest batch {largest_batch(each, room)}")
alt = "Stacked bars: 16 bits shrink the activations, recomputing blocks removes most of them; the loss stays."
show(figures.bars({name: footprint(each) for name, each in choices.items()}, 24564), alt=alt)

# %% [markdown]
r"""
A 16-bit format does not halve the memory: from 11,273 MiB it falls to 9,480, and 23 rows fit instead of 18, because the loss's tables and the optimizer keep their float32. Recomputed blocks bring more, 33 rows. When blocks are recomputed, a row needs almost no memory except for its logits and their gradients.

*Check.* Autograd on this machine must agree under autocast, too, and with attention that keeps its T × T weights. We run three of the four combinations. The casts are among the tensors that autograd saves, so the formula adds them. The fourth, bf16 without flash attention, cannot be checked here: on a CPU, autocast leaves the softmax in 16 bits, and on a GPU it does not. The next section compares it with the peak that an H100 recorded.
"""

# %%
for name, flash in (("bf16", True), ("bf16-masters", True), ("bf16-masters", False)):
    each = Step(replace(small, flash=flash), 4, 64, f"pytorch-{name}", flash)
    model = GPT(each.config).bfloat16() if name == "bf16-masters" else GPT(each.config)
    with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16"):
        kept = saved_bytes(lambda m=model: m(*ids), exclude=model.parameters())
    formula = held(each) + math.prod(states(each).get("casts", [0]))
    print(f"{name:13} flash {flash!s:6} by formula {formula:>9,} B, autograd {kept:>9,} B")
    assert formula == kept, f"{name}, flash {flash}: autograd keeps {kept - formula:+,} bytes more"

# %% [markdown]
r"""
## Against an H100

In November 2026 the ladder of chapter 14b ran on an H100, with 16 rows of 1,024 tokens, and recorded the peak of PyTorch's allocator on each rung. Its first three rungs neither compile nor use flash attention:
"""

# %%
figures.beside_an_h100(Step, footprint)

# %% [markdown]
r"""
Our sums are too high by about the size of the gradients. This is because the peak is in the loss (chapter 12b), when the first gradient of a weight does not exist yet. From the second micro-batch of a step on, the gradients are there, so we leave them in the sum.

Before this comparison our row for bf16 kept one T × T table, as a CPU does, and the H100 needed 8.6 GiB more than we said.

The other rungs are compiled, and they need less than the list says. With bf16, `torch.compile` and flash attention the peak was 11,676 MiB. The list
without T × T tables has 16,826. A compiled program does not keep all tables that the list has (chapter 14). So for a compiled run, as
`gpt2-124M` is, take our sum as an upper bound: the largest batch will be larger than we say.

## Against published logs

So far we agreed with PyTorch. Logs of other programs print what they allocated on GPUs. llm.c was run on an A800, on an RTX 4070 SUPER, on one H800 and on two, and on three CPUs; Megatron-LM on one GPU and on two. `data/reference` has
their figures, and each row names the log and line. Each of these programs needs a row of its own in our table. We read llm.c's rows from its source, where `train_gpt2.cu` (and the smaller file of spring 2024) allocates every tensor by name. Megatron-LM's row follows Korthikanti et al. 2022, §4, without dropout. Then we describe each published run as a `Step`.
"""

# %%
#| export labs.plan.footprint
OLD = {"projections": True, "shared_output": True}  # llm.c's file of spring 2024
PROGRAMS = PYTORCH | {
    "llm.c": Program(2, 2, 4, **HALF, logits=2, shared_output=True, scratch=5, pad=128),
    "llm.c-2024": Program(4, 4, **OLD),
    "llm.c-2024-bf16": Program(2, 2, norms=2, **HALF, stats=2, logits=2, **OLD),
    "llm.c-cpu": Program(4, 4, logits=8, tables=2, projections=True),
    "megatron": Program(2, 4, 4, **HALF, pad=128),  # fp16, gradients summed in float32
}

# %%
PADDED = GPTConfig(padded_vocab_size=50304)
LOGS = {  # by words in a run's name in data/reference
    "A800": Step(PADDED, 56, 1024, "llm.c", recompute="gelu"),
    "RTX 4070 SUPER": Step(PADDED, 4, 1024, "llm.c-2024", flash=False),
    "H800 1 GPU": Step(GPT2, 4, 1024, "llm.c-2024", flash=False),
    "H800 2 GPUs": Step(GPT2, 4, 1024, "llm.c-2024-bf16", flash=False),
    "CPU": Step(GPT2, 4, 64, "llm.c-cpu", flash=False),  # three of them
    "Megatron-LM 1 GPU": Step(GPTConfig(512, padded_vocab_size=50304), 1, 512, "megatron"),
    "Megatron-LM TP 2": Step(GPTConfig(512, padded_vocab_size=50304), 2, 512, "megatron", tp=2),
}

# %% [markdown]
r"""
*Predict.* The A800 trained GPT-2 small in bf16 with 56 rows of 1,024 tokens. How many MiB did llm.c allocate for activations? And how many would it have been if attention kept its T × T weights?
"""

# %%
predict("22.4", "activations of 56 × 1,024 tokens, bf16", guess=None, unit="MiB")
predict("22.5", "the same with T × T weights kept", guess=None, unit="MiB")

# %% [markdown]
r"""
The table below has one line for each published figure, ours beside theirs.
"""

# %%
answer("22.4", held(LOGS["A800"]) / MIB)
answer("22.5", held(replace(LOGS["A800"], flash=False)) / MIB)
equal, other = figures.validation(LOGS, footprint, largest_batch)
assert set(other) == set(figures.NOT_DERIVED), f"no longer equal, or now equal: {other}"

# %% [markdown]
r"""
In the third column, `=` means that our figure and the log's are the same, to the last digit that was printed. This is so for every tensor that these programs allocate by name. Our formulas also prove something that the log does not say: the A800's attention was fused. If it had kept its T × T weights, the activations would be almost twice as large. The log does say that GELU's output was recomputed
(`recompute 1`, line 135), and the bytes confirm it: if it had been kept in all layers, there would be 3.6 GiB more.

Five figures are not equal to ours. We did not change the formulas to fit them, but we can say what they are:

- The A800 had 21,315 MiB in use before the first step, and its tensors are 20,464. The 851 MiB between them are the `OVERHEAD` from above. It is one card under llm.c. We have no such figure for PyTorch. Measure it on your own card (exercise 5).
- Megatron-LM's "theoretical" 2,121.85 MB is 18 bytes × 123,606,528 parameters. Its formula leaves out the biases of linear layers and the positions, 476,160 of the 124,082,688 that it counts itself.
- What it had allocated after ten steps, all of them skipped, is 44 MiB more than 12 bytes for each parameter would be: weights and gradients in fp16 and both in float32, no moments yet. This explanation of the 12 bytes is a guess.
- `nvidia-smi` shows what a process has reserved, with context, NCCL's buffers and the allocator's cache. On two GPUs with tensor parallelism (two rows of the table) it shows more than twice what the tensors take, and the GPUs are 212 MiB apart, though both hold the same.
  The same print says 99% utilization for GPU 0 and 39% for GPU 1, though both do the same work: this number is no measure of speed (chapter 09). `watch -n 0.1 nvidia-smi` shows it ten times a second.

## Many GPUs

More GPUs can share the work in three ways (chapters 20 to 21e). The planner has one option for each.

**More rows** (`dp`). Each rank reads its own rows. That alone saves no memory, since each rank keeps everything. ZeRO (`shard`) divides the states among the ranks: stage 1 divides the optimizer's numbers, stage 2 the gradients too, and stage 3 the weights too. With stage 3 a rank must gather the weights that
it computes with. FSDP2 keeps the embeddings, the block at work and the next one; in 16 bits it gathers 16-bit numbers, so no casts remain.
"""

# %%
plans = {f"shard {z}": Step(PADDED, 8, dp=8, shard=z) for z in range(4)}
for name, each in plans.items():
    total = sum(footprint(each).values()) / MIB
    print(f"{name}: {total:>7,.0f} MiB, largest batch {largest_batch(each, room)}")
show(figures.bars({name: footprint(each) for name, each in plans.items()}, 24564),
     alt="Bars by ZeRO's stage: moments, gradients and weights shrink from stage to stage, activations stay.")  # fmt: skip

# %% [markdown]
r"""
For a model this small the states are the smaller part, so sharding saves little. (The planner leaves out one tensor: a block's own gradient before it is scattered. For a tiny batch of a wide model, this gradient decides the peak.)

**Shared matrices** (`tp`). Each rank has some of the heads and a part of the MLP. So the tensors inside of both are divided, and so are the logits. Each rank keeps the complete stream and its norms.

**Shared layers** (`pp`). Each stage of a pipeline has L / pp layers. Under the usual schedule (1F1B), stage s has up to pp − s micro-batches under way, so the first stage keeps the most activations of blocks. But the last one has the logits and the loss. Which of them is fuller? That depends on the model, so the planner computes both.
"""

# %%
six = GPTConfig(2048, n_layer=32, n_head=32, n_embd=4096)  # 6.7B (Brown et al. 2020, table 2.1)
ways = {
    "124M, pp 4": Step(GPT2, 1, pp=4, accumulate=8),
    "6.7B, tp 8": Step(six, 1, tp=8),
    "6.7B, pp 8": Step(six, 1, pp=8, accumulate=8),
    "6.7B, tp 2 × pp 4": Step(six, 1, tp=2, pp=4, accumulate=8),
}
for way, each in ways.items():
    total = {name: sum(footprint(s).values()) / MIB for name, s in fullest_stages(each).items()}
    print(f"{way:18}", ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in total.items()))

# %% [markdown]
r"""
The answer differs. In the small model's pipeline the last stage is the fuller one: its logits and its loss are larger than all else. In the large model's pipeline with eight stages the first one is fuller, because it keeps the activations of several micro-batches. With tensor parallelism alone there are no stages, and eight ranks that share each matrix are alike.

## Move it

To compare a step with a card, we need one number of the card: its memory. The sizes below are those that `nvidia-smi` shows. The driver keeps a part of that for itself. The A800's log had 81,100 of the 81,920 MiB that `nvidia-smi` shows on such a card, so for the A800 we take the log's figure.
"""

# %%
#| export
MEMORY = {  # MiB as nvidia-smi shows them; the A800's as an llm.c log prints them
    "B200": 183359, "H200": 143771, "H100": 81559, "H100-PCIe": 81559, "A100-80GB": 81920, "A100-80GB-PCIe": 81920,
    "A100-40GB": 40960, "H800": 81559, "A800": 81100, "A800-PCIe": 81100, "L40S": 46068, "L4": 23034, "A10": 23028,
    "V100": 16160, "V100-PCIe": 16160, "V100S": 32510, "T4": 15360, "A6000": 49140, "RTX 5090": 32607,
    "RTX 4090": 24564, "RTX 4070 SUPER": 12282, "RTX 3090": 24576,
}  # fmt: skip

# %% [markdown]
r"""
The figure below shows one of eight cards of 24 GB. Together they train GPT-2 124M in PyTorch under autocast, with eight rows on each card. *Predict:* how many rows fit on a card with stage 1 of ZeRO, and how many with stage 3? How many with twice the context? Then move the knobs.
"""

# %%
show(figures.bars({"8 rows, shard 1": footprint(Step(PADDED, 8, dp=8, shard=1))}, MEMORY["RTX 4090"]),
     alt="One bar of memory by category against the line of an RTX 4090.")  # fmt: skip

# %% tags=["nbval-ignore-output"]
figures.memory_widget(lambda **knobs: footprint(Step(PADDED, **knobs)), MEMORY)

# %% [markdown]
r"""
24 rows fit with stage 1 and 26 with stage 3. With twice the context 12 and 13 fit, half as many: activations grow with the context as they grow with
the rows, since both make more tokens. Sharding divides only the states, which do not grow.
"""

# %% [markdown]
r"""
## Appendix: a table that can be checked

Chapter 22a turns this chapter into a command, which prints a table. You cannot check a number in a table if you do not see its formula. So each line of the table ends with its formula, with all numbers filled in, and you can check it with a pocket calculator. (One of this chapter's tests computes all of them.) Most of this appendix is about printing: read the tables at its end, and the code only if you like.
"""

# %%
#| export
import math
from collections.abc import Iterator

# %%
#| export
WHAT = {  # what the numbers of each line are
    "parameters": "parameters",
    "norms": "parameters of norms, which have more",
    "gradients": "gradients",
    "moments": "moments of AdamW",
    "masters": "master weights",
    "casts": "numbers of matrices, cast by autocast",
    "gathered": "gathered: embeddings, the block at work and the next",
}


def formulas(step: Step) -> dict[str, str]:
    """For each category of footprint, a text that computes to its bytes (the activations': see the tensors)."""
    N, p = step.B * step.T, step.row
    texts = {"activations": "the sum of its tensors (--tensors)", "inputs": f"8 B × {N:,} ids and targets"}
    texts["loss"] = f"{p.backward} B × {N:,} tokens × {step.config.vocab_rows:,} rows of logits"
    if step.tp > 1:
        texts["loss"] += f" / {step.tp}"
    for name, (numbers, width, ranks) in states(step).items():
        texts[name] = f"{width} B × {numbers:,} {WHAT[name]}"
        if ranks > 1:
            texts[name] += f" / {ranks}"
    return texts


# %% [markdown]
r"""
For example, this is the formula for the moments of the A800's run:
"""

# %%
print(formulas(LOGS["A800"])["moments"])

# %% [markdown]
r"""
The card itself is drawn as a row of 60 letters, one letter for each category. `picture` makes that row.
"""

# %%
#| export
LETTERS = {"masters": "M", "gathered": "G"}  # in the picture; the others have their first letter


def picture(held: dict[str, int], mib: int, width: int = 60) -> str:
    """The card's memory as `width` signs, a letter for each category; what is beyond the card after the bar."""
    text = ""
    for name, n in held.items():
        text += LETTERS.get(name, name[0]) * min(2 * width, round(width * n / 2**20 / mib))
    return f"[{text[:width]:·<{width}}|{text[width : 2 * width]}"


def legend(held: dict[str, int]) -> str:
    """The letters of the picture, with their categories."""
    return ", ".join(f"{LETTERS.get(name, name[0])} {name}" for name in held)


# %%
print(picture(footprint(LOGS["A800"]), MEMORY["A800"]))

# %% [markdown]
r"""
With a pipeline, the table is about the stage that needs the most memory. `fullest` finds it, `memory_lines` makes the lines, and `print_table` prints them.
"""


# %%
#| export
def fullest(step: Step) -> tuple[str, Step]:
    """The name of the stage of a pipeline that keeps most, and the step as that stage sees it."""
    return max(fullest_stages(step).items(), key=lambda pair: sum(footprint(pair[1]).values()))


def memory_lines(step: Step, mib: int, overhead: float = OVERHEAD, listed: bool = False) -> Iterator[tuple]:
    """Lines of (what, how much, formula), each part after its title. listed: the activations tensor by tensor, too."""
    name, full = fullest(step)
    held, texts = footprint(full) | {"overhead": round(overhead * 2**20)}, formulas(full)
    texts["overhead"] = "not derived: CUDA and libraries, as in an A800's log (--overhead)"
    total, most = sum(held.values()) / 2**20, largest_batch(step, (mib - overhead) * 2**20)
    yield ("memory of a GPU" if step.pp == 1 else f"memory of the fullest GPU: the {name}",)
    for what, n in held.items():
        yield what, f"{n / 2**20:,.1f} MiB", texts[what]
    fits = "fits" if total <= mib else f"does NOT fit, {total / mib:.2f} times too much"
    yield "all", f"{total:,.1f} MiB", f"of {mib:,} MiB: {fits}"
    yield "largest batch", f"{most:,}", "the most sequences that fit, on every stage"
    yield picture(held, mib), "", ""
    yield "", "", legend(held)
    if listed:
        yield ("activations: numbers × bytes × how many",)
        for what, (n, width, many) in tensors(full).items():
            yield what, f"{n * width * many / 2**20:,.1f} MiB", f"{n:,} × {width} B × {many}"


# %%
#| export
def print_table(lines: Iterator[tuple]) -> None:
    """Print a table: titles, and lines of three columns."""
    for line in lines:
        print("  {:16}{:>16}  {}".format(*line).rstrip() if len(line) == 3 else f"\n{line[0]}")


# %% [markdown]
r"""
Here are two complete tables: the A800's run from the logs, which fits, and a small run in fp16 on eight T4 with stage 3 of ZeRO.
"""

# %%
print_table(memory_lines(LOGS["A800"], MEMORY["A800"]))
print_table(memory_lines(Step(PADDED, 8, program="pytorch-fp16", dp=8, shard=3), MEMORY["T4"]))

# %% [markdown]
r"""
The bar below each table is the card, and the line under it says which letter is which category. Dots are free memory.
"""

# %% [markdown]
r"""
## Appendix: the dry run, again

Chapter 17c's `--dry-run` printed the memory of a run as if everything were in float32, and it left out the two tables of the loss. For GPT-2 small with 16 rows it printed 15.1 GB, while the list above gives 21.6 GB. Now that we have the list, the dry run can use it, in the run's own precision and layout. `planned` makes the planner's `Step` of a configuration. (`of_adapters` of chapter 19 corrects the list if adapters alone are trained.) With
`parallel.recompute` (chapter 21d), a block's activations exist for one block at a time.
"""

# %%
from nanogpt.labs.plan.dryrun import of_adapters

# %%
#| export labs.plan.dryrun
#| grows say_memory
from nanogpt.config import Config


def planned(shape: GPTConfig, config: Config) -> Step:
    """A micro-batch of the run as the planner counts it: in its precision, with its section `parallel`."""
    c = config.parallel
    program = f"pytorch-{config.train.dtype}".removesuffix("-float32")
    again = "block" if c.recompute else "none"
    layout = {"dp": c.dp or 1, "shard": 3 if c.shard else 0, "tp": c.tp}
    T = config.model.block_size
    return Step(shape, config.train.micro_batch, T, program, shape.flash, again, **layout)


def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a GPU keeps at the peak of a step, in the run's precision, by chapter 22's list."""
    held = of_adapters(footprint(planned(shape, config)), shape, config)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in held.items())
    print(f"memory      {sum(held.values()) / 1e9:.3f} GB in {config.train.dtype}: {text}")


# %% [markdown]
r"""
We print it for the same run in float32, in bf16, and in bf16 with recomputed blocks. Below is the difference between the new `say_memory` and the one before.
"""

# %%
from nanogpt.config import load_config

for changes in ("train.dtype=float32", "train.dtype=bf16", "train.dtype=bf16 parallel.recompute=true"):
    say_memory(GPT2, load_config("gpt2-124M", ["train.micro_batch=16", *changes.split()]))
grown("say_memory", "22")

# %% [markdown]
r"""
The lines with `-` go, and the lines with `+` are new. In float32 the dry run now prints the 21.6 GB. In bf16 it prints 4 GB less, and it names the casts.
"""

# %% [markdown]
r"""
## Checkpoint

Here are your predictions beside the outcomes. The last cell then tests the chapter and writes its modules.
"""

# %%
predictions("22")

# %%
checkpoint("22")

# %% [markdown]
r"""
## Exercises

`course exercises release 22` writes these, and those of 22a, as a notebook to `released/`; `course check 22` runs their visible checks.

- **22-1** Which stage is full?, 25 minutes: derive the bytes of each stage of a pipeline.
- **22-2** A line with a corner, 15 minutes: repair a largest batch that is too large.

To explore:

1. Take the model `six` with `pp=8, accumulate=8`, with and without `recompute="block"`. Which stage is the fullest in each case, and why does it change? Check: `footprint` of both stages.
2. Which is the smallest number of H100 on which the model `six` trains with `shard=3` and one row of 2,048? Check with `dp` one less that it does not fit.
3. Add sequence parallelism (Korthikanti et al. 2022, §4.2): the stream and its norms are divided too. Check: with `tp` 8, a block keeps an eighth of what one GPU keeps.
4. Write the row of `PROGRAMS` for 8-bit moments (Dettmers et al. 2022). The 4 of the moments is fixed in `states`; make it a field. Check that a parameter costs 6 bytes less.
5. Measure what your own GPU uses beyond the sum (`torch.cuda.mem_get_info` before and after a first step), and put it in the place of `OVERHEAD`. Check with the largest batch: does one row more run out of memory?

## Further reading

- Rajbhandari et al. 2020, [*ZeRO*](https://arxiv.org/abs/1910.02054), §3: where the memory goes.
- Korthikanti et al. 2022, [*Reducing Activation Recomputation in Large Transformer Models*](https://arxiv.org/abs/2205.05198), §4: a block's activations, tensor by tensor.
- Hugging Face 2025, [*The Ultra-Scale Playbook*](https://huggingface.co/spaces/nanotron/ultrascale-playbook), and EleutherAI 2023, [*Transformer Math 101*](https://blog.eleuther.ai/transformer-math/): the same question, with other models.
- [nanoGPT](https://github.com/karpathy/nanoGPT), `transformer_sizing.ipynb`: parameters, checkpoints and FLOPs of GPT-2, counted.
- [llm.c](https://github.com/karpathy/llm.c), `train_gpt2.cu`, `fill_in_activation_sizes`: the list, in the program that prints it.
"""
