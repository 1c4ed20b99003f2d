# %% [markdown]
r"""
# 21b ◇ · Tensor parallel: one layer on several GPUs

Sharding (chapter 21) stores a weight in parts, but it gathers the weight before using it. Every rank still multiplies by the complete matrix. Sometimes this is
not enough: one row of text takes too long on one GPU, or the activations of one layer do not fit. Then several ranks have to share one multiplication. Each rank
keeps a part of the matrix for good and computes with that part alone. The ranks exchange activations instead of weights. This is *tensor parallelism*.

Megatron-LM (Shoeybi et al. 2019) found two ways to cut a matrix that together need very little communication. We begin with one small matrix, cut in two by hand, in one
process. Then we cut the MLP, attention, the vocabulary, and look at the gradients. At the end two processes train the course's GPT this way, and we compare them with one process.
"""

# %%
#| default_exp labs.parallel.tensor
#| doc labs.parallel.tensor: Tensor parallelism on the course's GPT by PyTorch's DTensor: split, with its vocabulary and its loss; and back.
#| doc labs.drills.tensor: What chapter 21b makes several processes do: the same steps in all ways, and what each way keeps.
#| doc labs.parallel.tensor_by_hand: Tensor parallelism on plain tensors: conjugate operators, split linear layers, a split vocabulary.
import copy
import json
from pathlib import Path

from course.figures import tensor_parallel as figures
from course.figures.local_ranks import local_ranks
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.model import split_heads
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.labs.corpora.stories import ensure_corpus

DATA, OUT = "../data/built/stories", "../data/built/tensor.json"
N, PROCESSES = 2, 2  # ranks inside this kernel; processes of the drill
SHAPE = GPTConfig(n_layer=2, n_head=4, n_embd=32, block_size=16, vocab_size=97)
B, T, C = 2, SHAPE.block_size, SHAPE.n_embd
fits = N > 1 and SHAPE.n_head % N == T % N == 0 and SHAPE.bias
assert fits, f"{N} ranks: take 2 or more that divide n_head and block_size, and a model with biases"
_ = ensure_corpus(DATA)

# %%
#| export labs.parallel.tensor_by_hand
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

# %% [markdown]
r"""
## One matrix, cut in two

Here is a linear layer with two inputs and four outputs, and one token x. `nn.Linear` stores its weight as (outputs, inputs), so the layer computes `x @ weight.T`.
"""

# %%
x = torch.tensor([[1.0, 10.0]])  # one token with two inputs
matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])  # four outputs, two inputs
upper, lower = matrix.chunk(2, dim=0)
print("the whole layer:", (x @ matrix.T).tolist())
print("the upper half: ", (x @ upper.T).tolist())
print("the lower half: ", (x @ lower.T).tolist())

# %% [markdown]
r"""
We cut the weight into an upper and a lower half. Each half gives two of the four outputs, and they are complete. So two ranks could each take one half. Both need all of
x, and each gets some of the outputs. The paper writes the product the other way round, as x times a matrix with one *column* for each output. So it calls this the **column split**.

There is a second way. We can cut between the inputs.
"""

# %%
left, right = matrix.chunk(2, dim=1)
a, b = x[:, :1] @ left.T, x[:, 1:] @ right.T
print("the left half: ", a.tolist())
print("the right half:", b.tolist())
print("added up:      ", (a + b).tolist())

# %% [markdown]
r"""
Now each half needs only its own input. It gives a number for every output, but none of them is complete: each is a *summand*. The two must be added. The paper calls this the **row split**.

Remember the difference. After a column split each rank has some of the outputs. After a row split each rank has a summand of all outputs.

## Two ranks

Chapter 20's `local_ranks` runs several ranks in this kernel, so that we can print what each of them holds. `ranked.cut(x, dim)` gives each rank its piece of a tensor.
A collective is then one call in one thread. It shows what each rank has, but it cannot show order, time or a deadlock. For those we take real processes at the end.
"""

# %%
with local_ranks(2) as ranked:
    part = ranked.cut(x, 1) @ ranked.cut(matrix, 1).T
    print("row split, before the sum:", part)
    dist.all_reduce(part)
    print("after it:", part)

# %% [markdown]
r"""
The row split needs one all-reduce. After it, every rank has the complete outputs.

## An MLP

GPT-2's MLP is two matrices with a GELU between them. Each of the two can be cut in either way. Which pair needs the least communication?

Assume that the first matrix has the row split. Then each rank has summands. May it apply GELU to a summand, and add afterwards?
"""

# %%
gelu = partial(F.gelu, approximate="tanh")
a, b = torch.tensor(1.0), torch.tensor(-2.0)
print(f"GELU of the sum {gelu(a + b):.3f}, sum of the GELUs {gelu(a) + gelu(b):.3f}")

# %% [markdown]
r"""
It may not. GELU is not linear, so the sum must be complete before GELU, and the tensor to be summed is 4C wide. After a *column* split the outputs are complete, and each
rank applies GELU to its own. They are just the inputs that the second matrix needs on this rank, if it has the *row* split. So nothing is sent in the middle, and one sum at the end is enough.
"""

# %%
show(figures.mlp(N), alt="An MLP on two ranks: column split, GELU, row split, with f before and g behind.")

# %% [markdown]
r"""
In the figure each line of boxes is a rank. The letters f and g are the paper's names for the two ends. In the forward pass only g sends something. We come to f with the gradients.

*Predict.* Take the forward pass of an MLP. x is (B, T, C) on every rank, before and after. How many times as many bytes does "rows first, then columns" put into collectives as "columns first, then rows"?
"""

# %%
predict("21b.1", "bytes, rows first over columns first", guess=None)

# %%
block = GPT(SHAPE, torch.Generator().manual_seed(0)).transformer.h[0]  # its biases are still zero
x = torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
w_1, w_2 = block.mlp.c_fc.weight, block.mlp.c_proj.weight
with torch.no_grad(), local_ranks(N) as ranked:
    with ranked.counted() as columns_first:
        hidden = gelu(x @ ranked.cut(w_1, 0).T)  # (B, T, 4C/n)
        y = hidden @ ranked.cut(w_2, 1).T  # (B, T, C), a summand
        dist.all_reduce(y)
    assert ranked.apart(y, block.mlp(x)) < 1e-6, "columns, then rows, is not the MLP"
print("columns, then rows:", columns_first)

# %%
with torch.no_grad(), local_ranks(N) as ranked:
    with ranked.counted() as rows_first:
        hidden = ranked.cut(x, 2) @ ranked.cut(w_1, 1).T  # (B, T, 4C), a summand
        dist.all_reduce(hidden)
        part = gelu(hidden) @ ranked.cut(w_2, 0).T  # (B, T, C/n), some of the outputs
        parts = ranked(lambda rank: torch.empty(N * B, T, C // N))
        dist.all_gather_into_tensor(parts, part)
    y = torch.cat(parts.chunk(N), -1)
    assert ranked.apart(y, block.mlp(x)) < 1e-6, "rows, then columns, is not the MLP"
print("rows, then columns:", rows_first)
answer("21b.1", sum(size for _, size in rows_first) / sum(size for _, size in columns_first))

# %% [markdown]
r"""
Each pair in the lists is a collective and the bytes that a rank puts into it. Both orders give the right result. The second order puts in 4.5 times as many bytes: it sums a tensor that is four times as wide, and it has to gather the outputs as well.

## Attention, by heads

Attention is made for this. The heads do not exchange anything until `c_proj` mixes them. So each rank takes some of the heads. `c_attn` gets the column split, `c_proj` gets the row split, and
the softmax in between belongs to one head.

There is a trap. `c_attn` is three matrices in one: its rows are all of q, then all of k, then all of v. What does a rank get, if we cut at the middle?
"""

# %%
rows = [f"{part}{head}" for part in "qkv" for head in range(SHAPE.n_head)]  # of c_attn, a head at a time
for rank, numbers in enumerate(torch.arange(len(rows)).chunk(N)):
    print(f"rank {rank} has", *(rows[i] for i in numbers), "and takes them for q, k, v")

# %% [markdown]
r"""
Rank 0 gets all of q and half of k. Chapter 04's attention then cuts what it has into three equal pieces, and calls them q, k and v. All shapes fit and nothing complains. Let us see how wrong the result is. The right way is to cut q, k and v each for itself.
"""


# %%
def attention(x, c_attn, c_proj, n_head):
    """Chapter 04's attention with these weights, without biases. x: (B, T, C)."""
    q, k, v = split_heads(x @ c_attn.T, n_head)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2) @ c_proj.T


c_attn, c_proj = block.attn.c_attn.weight, block.attn.c_proj.weight
with torch.no_grad(), local_ranks(N) as ranked:
    whole = block.attn(x)
    thirds = c_attn.unflatten(0, (3, -1))  # q, k and v, (3, C, C)
    cuts = {
        "cut at the middle": ranked.cut(c_attn, 0),
        "q, k, v each cut": ranked.cut(thirds, 1).flatten(0, 1),
    }
    for name, piece in cuts.items():
        y = attention(x, piece, ranked.cut(c_proj, 1), SHAPE.n_head // N)
        dist.all_reduce(y)
        apart = ranked.apart(y, whole) / whole.abs().max().item()
        print(f"{name}: {apart:.0%} of the largest output apart")
    assert apart < 1e-5, "heads on several ranks are not the heads of one"


# %% [markdown]
r"""
Again there is one all-reduce, after `c_proj`.

## The vocabulary

The largest matrix of a small GPT is the token table, which is also the head (`lm_head`). We give each rank some of the table's rows. As an embedding, a rank looks up the ids that it has and takes
zero for all others. The sum over the ranks is the embedding. As the head, it is a column split: each rank has the logits of its own tokens.

Then comes the loss. For one token it is the logarithm of Σ exp(logit), minus the logit of the target. To gather all logits would be expensive: GPT-2 has 50,257 of them for each token. But we have
already summed a softmax in pieces, in chapter 12. There the pieces were keys. Here they are pieces of the vocabulary. Five words, of which rank 0 has three and rank 1 has two:
"""

# %%
logits, target = torch.tensor([2.0, 5.0, 1.0, 4.0, 0.0]), 3
parts = logits.chunk(2)
highest = torch.stack([part.max() for part in parts]).max()  # first exchange
sums = [(part - highest).exp().sum() for part in parts]
score = parts[1][0]  # the target's logit; rank 1 has it
loss = highest + (sums[0] + sums[1]).log() - score  # second and third exchange
print(f"each rank's sum: {sums[0]:.3f}, {sums[1]:.3f}")
print(f"the loss in pieces {loss:.3f}, cross_entropy {F.cross_entropy(logits, torch.tensor(target)):.3f}")

# %% [markdown]
r"""
So the ranks exchange three numbers for each token: the largest logit, so that no exponential overflows; the sum of the exponentials; and the target's logit, which one of them has.

## Gradients

So far everything ran forward. What does backward need? Take the small matrix again, in the column split, and let the loss be the sum of all four outputs. The gradient of x is then the sum of each of the matrix's columns: 16 and 20.
"""

# %%
tiny = torch.tensor([[1.0, 10.0]], requires_grad=True)
with local_ranks(2) as ranked:
    (tiny @ ranked.cut(matrix, 0).T).sum().backward()
    print("gradient of x on each rank:", tiny.grad)

# %% [markdown]
r"""
Each rank has only the part of the gradient that comes from its own outputs. The parts add up to 16 and 20, so in backward we need a sum at the place where x enters the columns. That is the paper's *f*. In the forward pass f does nothing. In the backward pass it is an all-reduce.

At the other end, after the rows, *g* is the all-reduce of the forward pass. If y = a + b, then a and b both have the gradient of y. So in the backward pass g has nothing to do.
Each is the mirror image of the other. Autograd does not know `dist.all_reduce`, so we write both as a `torch.autograd.Function` that has one function for forward and another one for backward.
"""


# %%
#| export labs.parallel.tensor_by_hand
class Conjugate(torch.autograd.Function):
    """One function of (tensor, group) in forward, another one in backward."""

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
#| export labs.parallel.tensor_by_hand
#| blank enter: forward leaves x as it is, and backward sums over the ranks
#| blank leave: the reverse of enter: forward sums, and backward leaves the gradient as it is
def enter(x: Tensor, group=None) -> Tensor:
    """Megatron's f, before the ranks' columns (Shoeybi et al. 2019, §3): x, whose gradient is summed over the ranks."""
    return Conjugate.apply(x, as_it_is, summed, group)


def leave(x: Tensor, group=None) -> Tensor:
    """Megatron's g, after the ranks' rows: x summed over the ranks, whose gradient stays as it is."""
    return Conjugate.apply(x, summed, as_it_is, group)


# %%
tiny = torch.tensor([[1.0, 10.0]], requires_grad=True)
with local_ranks(2) as ranked:
    (enter(tiny) @ ranked.cut(matrix, 0).T).sum().backward()
    print("gradient of x on each rank, with f:", ranked.same(tiny.grad).tolist())

# %% [markdown]
r"""
`ranked.same` returns the tensor if all ranks have the same, and they do.

## Two layers

With f and g the two linear layers are short. Mind the biases. A column layer's bias belongs to its outputs, so it is cut with them. A row layer's bias belongs to the complete *sum*, and it is added after g.
"""


# %%
#| export labs.parallel.tensor_by_hand
class Column(nn.Module):
    """A linear layer of which this rank has some outputs. (B, T, in) -> (B, T, out/n)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, into=enter):
        super().__init__()
        self.weight, self.into = nn.Parameter(weight), into
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.into(x), self.weight, self.bias)


class Row(nn.Module):
    """A linear layer of which this rank has some inputs. (B, T, in/n) -> (B, T, out)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, out=leave):
        super().__init__()
        self.weight, self.out = nn.Parameter(weight), out
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias  # once, and not once a rank


# %%
g = torch.Generator().manual_seed(2)
hidden, bias = torch.randn(B, T, 4 * C, generator=g), torch.randn(C, generator=g)
with torch.no_grad(), local_ranks(N) as ranked:
    w, inputs, y = ranked.cut(w_2, 1), ranked.cut(hidden, 2), hidden @ w_2.T
    assert ranked.apart(Row(w, bias)(inputs), y + bias) < 1e-5, "the row layer is another layer"
    early = leave(inputs @ w.T + bias)
    assert ranked.apart(early, y + N * bias) < 1e-5, "the bias on each summand is not there n times"
print(f"a bias that each rank adds to its summand is in the sum {N} times")

# %% [markdown]
r"""
This mistake does not show at initialisation, because GPT-2's biases are zero then.

## A block

Now we do it to a whole block, gradients included. *Predict.* How many all-reduces does a block make, forward and backward together? How many bytes does a rank put into all of them, if x is (B, T, C) = (2, 16, 32) in float32?
"""

# %%
predict("21b.2", "all-reduces of a block, forward and backward", guess=None)
predict("21b.3", "bytes of all of them", guess=None)


# %%
#| export labs.parallel.tensor_by_hand
def column_parallel(layer: nn.Linear, piece, into) -> Column:
    """This rank's outputs of a linear layer; piece(x): its rows of the weight, or of the bias."""
    return Column(piece(layer.weight), None if layer.bias is None else piece(layer.bias), into)


def check_heads(n_head: int, n: int) -> None:
    if n_head % n:  # if it divides, so do n_embd = n_head × d and 4 n_embd
        raise ValueError(f"n_head={n_head} heads cannot be dealt to {n} ranks; take a divisor")


# %%
#| export labs.parallel.tensor_by_hand
def split_block(block: nn.Module, cut, group=None, ends=(enter, leave)) -> nn.Module:
    """A block of GPT with this rank's heads and hidden units, in place. Dropout must be 0.

    cut(x, dim): this rank's piece of a tensor. ends: what is done to x before the columns and after the rows.
    """
    attn, mlp, n = block.attn, block.mlp, dist.get_world_size(group)
    check_heads(attn.n_head, n)
    into, out = (partial(end, group=group) for end in ends)

    def of_heads(x: Tensor) -> Tensor:  # q, k and v each cut
        return cut(x.unflatten(0, (3, -1)), 1).flatten(0, 1)

    attn.c_attn = column_parallel(attn.c_attn, of_heads, into)
    mlp.c_fc = column_parallel(mlp.c_fc, partial(cut, dim=0), into)
    for part in (attn, mlp):
        part.c_proj = Row(cut(part.c_proj.weight, 1), part.c_proj.bias, out)
    attn.n_head //= n
    return block


# %% [markdown]
r"""
To check it, `block_of` makes a block whose biases are not zero, an x, and what one process makes of them: the output y and the gradient of x.
"""


# %%
def block_of(shape: GPTConfig):
    """A block, x, and what one process makes of them: y and x's gradient."""
    g, block = torch.Generator().manual_seed(2), GPT(shape, torch.Generator().manual_seed(0)).transformer.h[0]
    for p in block.parameters():
        p.data += 0.02 * torch.randn(p.shape, generator=g)
    x = torch.randn(B, shape.block_size, shape.n_embd, generator=g, requires_grad=True)
    y = copy.deepcopy(block)(x)
    y.square().sum().backward()
    return block, x.detach(), y.detach(), x.grad


block, x, y, gradient = block_of(SHAPE)
with local_ranks(N) as ranked:
    split_block(block, ranked.cut)
    z = x.clone().requires_grad_()
    with ranked.counted() as forward:
        out = block(z)
    with ranked.counted() as backward:
        out.square().sum().backward()
    assert ranked.apart(out, y) < 1e-5, "the ranks' block is not the block"
    assert ranked.apart(z.grad, gradient) < 1e-3, "nor is its gradient"
print("forward: ", forward)
print("backward:", backward)
answer("21b.2", len(forward + backward))
answer("21b.3", sum(size for _, size in forward + backward))

# %% [markdown]
r"""
A block makes four all-reduces, and each of them has the 4,096 bytes of x. Why are there two each way? LayerNorm needs all C channels of a token, so x must be complete where a branch begins. Each branch ends in a product whose summands are on all ranks. There are two branches, so there are two
sums, and the backward pass mirrors them. (In PaLM and GPT-J the MLP reads the same LayerNorm as attention. Such a block needs one sum. It is another model.)

How does this compare with data parallelism? There each rank all-reduces its gradients, which are 4 bytes for each parameter, no matter how many tokens it reads. Here the ranks exchange
activations, and these grow with the tokens.

*Predict.* Take GPT-2 small in float32. From how many tokens a step on does tensor parallelism put more bytes into all-reduces than data parallelism?
"""

# %%
predict("21b.4", "tokens a step where both put in the same", guess=None)

# %%
small = GPTConfig()
a_token = 4 * small.n_layer * 4 * small.n_embd  # 4 all-reduces a block, of n_embd numbers of 4 bytes
gradients = 4 * num_params(small)
tokens = [2**i for i in range(8, 18)]
lines = {"tensor": [a_token * t / 1e6 for t in tokens], "data": [gradients / 1e6 for _ in tokens]}
alt = "Bytes over tokens: data parallel flat, tensor parallel rising."
show(figures.bytes_a_step(tokens, lines), alt=alt)
crossing = gradients / a_token
print(f"from {crossing:,.0f} tokens on, or {crossing / small.block_size:.1f} rows of {small.block_size:,}")
answer("21b.4", crossing)

# %% [markdown]
r"""
The flat line is data parallelism, the rising one tensor parallelism. They cross at 3,376 tokens, a little more than three rows of text. (This counts
the blocks. The embedding and the head make two more all-reduces beside the 48 of the blocks, so the complete model crosses 4% earlier.)

These bytes are also hard to hide. DDP sends a gradient while backward computes the next one (chapter 20). But the next LayerNorm cannot start before g's sum is complete. Hence the rule (Narayanan et al. 2021, §3):
use tensor parallelism inside a machine, where the links are fast, and data parallelism between machines.

## The vocabulary, with gradients

`vocab_loss` below is to do what we did by hand with five words, for (N, V/n) logits, and with `leave`, so that autograd knows the sums. GPT-2's 50,257 tokens do not divide by two, so the last rank has one row less. (Megatron adds unused rows instead, as chapter 13 did.)

*Predict.* GPT-2's vocabulary, float32, two ranks. How many times as many bytes would a rank put in, if the ranks gathered the logits instead?
"""

# %%
predict("21b.5", "bytes, logits gathered over three sums", guess=None)


# %%
#| export labs.parallel.tensor_by_hand
def mine(ids: Tensor, first, rows) -> tuple[Tensor, Tensor]:
    """Which ids are among this rank's `rows` rows from `first` on, and their place there; 0 for the others."""
    held = (ids >= first) & (ids < first + rows)
    return held, torch.where(held, ids - first, 0)


def vocab_embedding(ids: Tensor, table: Tensor, first, group=None) -> Tensor:
    """Rows of the token table for ids (B, T), from this rank's rows (V/n, C), those from `first` on: (B, T, C)."""
    held, place = mine(ids, first, table.size(0))
    return leave(F.embedding(place, table) * held[..., None], group)


# %%
#| export labs.parallel.tensor_by_hand
#| blank vocab_loss: all-reduce the maximum, without a gradient; then, by leave, the target's score and the sum of exps
def vocab_loss(logits: Tensor, targets: Tensor, first, group=None) -> Tensor:
    """Mean cross-entropy in nats, from this rank's columns of the logits (N, V/n), those from `first` on.

    targets: (N,), all of them on every rank; -100 does not count. Three all-reduces of N numbers each, of which the
    first is of the largest logits (dist.ReduceOp.MAX). Logits of 16 bits are made float32 before.
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
rows = [len(part) for part in torch.arange(V).chunk(N)]
with local_ranks(N) as ranked:
    first = ranked(lambda rank: torch.tensor(sum(rows[:rank])))
    part = ranked.cut(logits, 1).requires_grad_()
    with ranked.counted() as calls:
        theirs = vocab_loss(part, targets, first)
    theirs.backward()
    assert ranked.apart(theirs, loss) < 1e-5, "the ranks' loss is not the loss"
    assert ranked.apart(part.grad, ranked.cut(logits.grad, 1)) < 1e-6, "nor is its gradient"
gathering = 4 * len(targets) * rows[0]
print("rows:", rows, "; all-reduces:", calls, f"; gathering: {gathering:,} bytes")
answer("21b.5", gathering / sum(size for _, size in calls))

# %% [markdown]
r"""
The three sums are 12 bytes for each token. Gathering would put in a rank's 25,129 logits of 4 bytes each, 8,376 times as many bytes. And only the forward pass sends something. (The head is a column split, so the gradient of its input is summed by f, as in a block.) The gradient of a logit is its softmax, minus one at the target, and after the forward pass each rank has all that this needs for its own logits. (PyTorch's `loss_parallel()` does the same with three all-reduces. This chapter's test compares the two.)

## By PyTorch

PyTorch can do all this for us. A *DTensor* is a tensor that knows how it is distributed over the ranks. `Shard(0)` means that each rank has a block of its rows, `Shard(1)` a block of its columns. `Replicate()` means that each rank has all of it, and
`Partial()` that each rank has a summand. Operations on DTensors work out how their result is distributed:
"""

# %%
#| export
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

# %%
with local_ranks(2) as ranked:
    mesh = init_device_mesh("cpu", (2,))
    for placed, cut in ((Replicate(), Shard(0)), (Shard(1), Shard(1))):
        x_placed = distribute_tensor(torch.tensor([[1.0, 10.0]]), mesh, [placed])
        y = x_placed @ distribute_tensor(matrix, mesh, [cut]).T
        print(
            f"x is {placed!r}, the weight {cut!r}: y is {y.placements[0]!r}, in all",
            ranked.same(y.full_tensor()),
        )

# %% [markdown]
r"""
These are our two splits. The column split gives `Shard(1)`, some of the outputs, and the row split gives `Partial`, a summand. To change a DTensor's distribution is a collective, and autograd knows its mirror image.

`parallelize_module` gives the layers of a module such weights. `ColwiseParallel` is our `Column`, and `RowwiseParallel` is our `Row`. Here it cuts the MLP from above:
"""

# %%
model = GPT(SHAPE, torch.Generator().manual_seed(0))
mlp, x = model.transformer.h[0].mlp, torch.randn(B, T, C, generator=torch.Generator().manual_seed(1))
with torch.no_grad(), local_ranks(N) as ranked:
    plan = {"c_fc": ColwiseParallel(), "c_proj": RowwiseParallel()}
    theirs = parallelize_module(copy.deepcopy(mlp), init_device_mesh("cpu", (N,)), plan)
    with ranked.counted() as calls:
        y = theirs(x)
    assert ranked.apart(y, mlp(x)) < 1e-6, "PyTorch's MLP in parts is another one"
    print(
        "c_fc has",
        theirs.c_fc.weight.placements,
        "and this rank's shape",
        tuple(theirs.c_fc.weight.to_local().shape),
    )
print("collectives:", calls)

# %% [markdown]
r"""
It makes the same one all-reduce. For `c_attn` the trap is back, because `ColwiseParallel` cuts at the middle. The simplest way out is to bring the rows of `c_attn` into another order, once, when the model is split. In the new order equal pieces *are* heads.
"""


# %%
#| export
#| blank by_rank: view the rows as (3, n, ...) and exchange the first two dimensions
def by_rank(rows: Tensor, n: int) -> Tensor:
    """c_attn's rows, all of q, of k, of v, in the order in which each of n equal parts has its heads' q, k and v."""
    return rows.unflatten(0, (3, n, -1)).transpose(0, 1).flatten(0, 2)


# %%
rows = torch.arange(3 * SHAPE.n_head)  # of c_attn, a head at a time
for rank, heads in enumerate(by_rank(rows, N).chunk(N)):
    print(f"rank {rank} has", *("qkv"[i // SHAPE.n_head] + str(i % SHAPE.n_head) for i in heads.tolist()))

# %% [markdown]
r"""
The appendix has `split`, which does this to the whole GPT: all blocks, the token table, and the loss. The model itself does not change. Its attention asks for `n_head` heads of whatever width `c_attn` brings, and its method `head` is the one place where the loss is computed.

## Two processes

One thing is still done by every rank for all tokens: LayerNorm and the residual sums between the blocks. What they keep for backward is (B, T, C) on every rank. But they treat each position alone. So each rank may keep T/n positions there. Then f has to *gather* the positions,
and g leaves each rank only its own positions of the sum, which is a reduce-scatter. Chapter 20 made an all-reduce of just these two, so the bytes sent stay the same. This is *sequence parallelism* (Korthikanti et al. 2022). The appendix builds it and counts the bytes.

Now for real processes. Two processes train a small model from the same weights with the same step, in four ways, and half of the rows have lost most of their targets. A second drill counts what autograd keeps of a block on one rank.

*Predict.* What share of the bytes that a block keeps in one process does a rank keep with tensor parallelism on two?
"""

# %%
predict("21b.6", f"share saved on {PROCESSES} ranks", guess=None)

# %%
names = [f"drills.tensor:{name}" for name in ("memory", "same", "clipped")]
torchrun("21b", PROCESSES, "drill", *names, "--data", DATA, "--out", OUT)
found = {name.rpartition(":")[2]: told for name, told in json.loads(Path(OUT).read_text()).items()}

# %%
formulas = {"one process": 16, "split": 4 + 12 / PROCESSES, "sequence": 2 + 14 / PROCESSES}
for way, formula in formulas.items():
    times = found["memory"][way] / found["memory"]["numbers"] / 4  # bytes
    print(f"{way:12} {times:5.2f} times (B, T, C) is kept, by the formula {formula:5.2f}")
answer("21b.6", found["memory"]["split"] / found["memory"]["one process"])

# %% [markdown]
r"""
So a rank of two keeps 10 instead of 16 tables, 0.625 of them and not a half. Where does the formula come from? The two LayerNorms keep their inputs, and so do the two column layers: that is 4. q, k, v and attention's result are 4 more. GELU's input and its output are 4 each. The last 12 are divided among the ranks. Sequence parallelism divides the two inputs of the LayerNorms as well.
The inputs of the column layers stay complete. The paper keeps only a rank's part of them and gathers again in backward, which is an exercise below. (The rest beyond the formula is the statistics of LayerNorm and attention.)

*Check.* The law of this part is that the same step comes out, however many processes share it:
"""

# %%
one = found["same"]["one process"]
for way, told in found["same"].items():
    apart = max(abs(a - b) for a, b in zip(told["losses"], one["losses"]))
    near = "as one process, to rounding" if max(apart, told["gradient"]) < 1e-4 else "ANOTHER gradient"
    print(f"{way:14} first loss {told['losses'][0]:.3f}, last {told['losses'][-1]:.3f}: {near}")

# %% tags=["nbval-ignore-output"]
for way, told in found["same"].items():
    print(
        f"{way:14} gradient apart by {told['gradient']:.1e} of its length; a step takes {told['ms']:.0f} ms"
    )

# %% [markdown]
r"""
The distances are not zero, because a sum over the hidden units is now a sum of sums, in another order. That is rounding, as in chapter 20.

And the time? Two ranks share the blocks' work, and no step takes half as long as in one process. LayerNorms and residual sums are not shared, each block stops four times for a sum, and DTensor has work of its own in each operation, which these small layers do not hide. Tensor parallelism makes one row of text faster only where a layer's multiplication is long against its sums, and that takes wide layers and a fast link.

And clipping? Chapter 15's `global_norm` takes the norm of the gradients that it finds. In the model that was split by hand, each rank finds only its own pieces.
"""

# %%
for way, told in found["clipped"].items():
    norms = ", ".join(f"{norm:.3f}" for norm in told["norms"])
    print(f"{way:12} norms {norms}; LayerNorm's copies {'have PARTED' if told['apart'] else 'are equal'}")
assert found["clipped"]["split"]["apart"] == 0, "the ranks of the split model clip differently"

# %% [markdown]
r"""
By hand, each rank clips by another factor. To add up the squares of both norms would be wrong as well, since the copies would count twice. The copies of LayerNorm's weights, which should be equal on all ranks, drift apart slowly and silently. A DTensor knows whether a rank has a piece or a copy. So chapter 21's `global_norm` adds up
the squares of the pieces over the ranks, and counts a copy once.
"""

# %% [markdown]
r"""
## Appendix: the course's GPT, split

The rest of this sitting is plumbing. The fused optimizer takes no mixture of plain tensors and DTensors. So there is a third style beside `ColwiseParallel` and `RowwiseParallel`, for modules that every rank has complete:
"""

# %%
#| export
from functools import partial

from torch.distributed.tensor.parallel.style import ParallelStyle

from nanogpt.model import GPT


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
When the weights are taken out again, the rows of `c_attn` go back into GPT's order:
"""


# %%
#| export
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


# %% [markdown]
r"""
Some models cannot be split. Heads must be dealt out evenly; if they are, the width and the MLP are too. Dropout is refused. All ranks have copies of the stream between the branches, so all must drop the same numbers of it, but of its heads each rank must drop its own. Megatron keeps two random states for this. GPT-2 is trained without dropout nowadays.
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
## Appendix: sequence parallelism by hand

Between the blocks each rank has its positions only, (B, T/n, C). These two collectives take the place of f's copy and of g's sum:
"""


# %%
#| export labs.parallel.tensor_by_hand
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


# %%
#| export labs.parallel.tensor_by_hand
def from_positions(x: Tensor, group=None) -> Tensor:
    """f with sequence parallelism (Korthikanti et al. 2022, §4.2.2): (B, T/n, C) -> (B, T, C); gradients are summed."""
    return Conjugate.apply(x, gather, scatter, group)


def to_positions(x: Tensor, group=None) -> Tensor:
    """g with sequence parallelism: the sum over the ranks, of which each has its positions. (B, T, C) -> (B, T/n, C)."""
    return Conjugate.apply(x, scatter, gather, group)


# Gradients of the LayerNorms and of c_proj's biases are then summands, to be summed over the ranks
SEQUENCE = from_positions, to_positions

# %% [markdown]
r"""
*Predict.* Every rank sends around a ring, as in chapter 20. How many times as many bytes as the plain split does a block send with sequence parallelism?
"""

# %%
predict("21b.7", "bytes sent, sequence over plain", guess=None)

# %%
# How many times the bytes that are put in does a rank send?
SENT = {"allreduce": 2 * (N - 1) / N, "reduce_scatter_base": (N - 1) / N, "allgather_base": N - 1}
sent = {}
for name, ends in {"plain": (enter, leave), "sequence": SEQUENCE}.items():
    block, x, y, gradient = block_of(SHAPE)
    with local_ranks(N) as ranked:
        split_block(block, ranked.cut, ends=ends)
        if name == "sequence":
            x, y, gradient = (ranked.cut(z, 1) for z in (x, y, gradient))  # each rank's positions
        z = x.clone().requires_grad_()
        with ranked.counted() as calls:
            out = block(z)
            out.square().sum().backward()
        assert ranked.apart(out, y) < 1e-5, f"{name}: the ranks' block is not the block"
        assert ranked.apart(z.grad, gradient) < 1e-3, f"{name}: nor is its gradient"
    sent[name] = sum(SENT[what] * size for what, size in calls)
    print(f"{name:9} {len(calls)} collectives, {sent[name]:,.0f} bytes sent by each rank")
answer("21b.7", sent["sequence"] / sent["plain"])

# %% [markdown]
r"""
There are twice as many calls and the same bytes, and less is kept. One more thing must be summed: a LayerNorm's weights have seen only this rank's positions, so their gradients are summands. DTensor calls them `Partial()`, and chapter 21's clipping sums them before it takes the norm.

## Appendix: two dimensions

Four GPUs as 2 × 2 are a *mesh*. Each row of the mesh is a copy of the model, and each layer is split along a row. Neighbouring ranks are on one machine, so tensor parallelism takes the last dimension. Data parallelism talks less often and can wait, so it takes the first. A block is then split over the groups `tp`, and its gradients are summed over the groups `dp`:
"""

# %%
block, x, _, _ = block_of(SHAPE)
whole = copy.deepcopy(block)
whole(x).square().sum().backward()
with local_ranks(4) as ranked:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def cut_in_row(x, dim):
        return ranked(lambda rank: x.detach().chunk(2, dim)[rank % 2].clone())

    split_block(block, cut_in_row, mesh["tp"].get_group())
    block(ranked(lambda rank: x.chunk(2)[rank // 2])).square().sum().backward()
    gradient = block.mlp.c_fc.weight.grad
    dist.all_reduce(gradient, group=mesh["dp"].get_group())
    assert ranked.apart(gradient, cut_in_row(whole.mlp.c_fc.weight.grad, 0)) < 1e-3, "another gradient"
print("tp groups:", mesh.mesh.tolist(), "dp groups:", mesh.mesh.T.tolist())

# %% [markdown]
r"""
With the package it is one line more: `shard(split(model, mesh["tp"]), mesh["dp"])`, which is chapter 21's FSDP over a model that is split. This chapter's test does it on four processes, and chapter 21d makes it a word of the configuration.

## Appendix: the drills
"""

# %%
#| export labs.drills.tensor
import time
from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.drills.ddp import LR, fresh, masked
from nanogpt.labs.roofline.memory import saved_bytes
from nanogpt.model import GPT
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.training import accumulate_gradients


# %%
#| export labs.drills.tensor
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


# %%
#| export labs.drills.tensor
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
#| export labs.drills.tensor
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


# %%
#| export labs.drills.tensor
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
2. Let `from_positions` keep this rank's part for the weight's gradient and gather again in backward. It must do the product itself, as an operator `gathered_linear`. Check: the drill `memory` prints 16 / n, and `split_block`'s gradients stay.
3. `vocab_loss` sums twice. Stack both into one all-reduce. Check: two collectives, the same bytes; why can the maximum not join them?
4. A block whose MLP reads `ln_1`'s output as well (Chowdhery et al. 2022, §2): one `enter` and one `leave` can serve both branches. Check: one all-reduce forward, one backward.
5. Dropout on a split model: what must the ranks' generators have in common, and where? Check: with p = 0.1 the copies of the stream stay equal over ten steps, and two heads on two ranks drop different weights.

## Further reading

- Shoeybi et al. 2019, [*Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism*](https://arxiv.org/abs/1909.08053), §3: the two cuts, f and g, the vocabulary.
- Korthikanti et al. 2022, [*Reducing Activation Recomputation in Large Transformer Models*](https://arxiv.org/abs/2205.05198), §4: activations by part, sequence parallelism.
- Narayanan et al. 2021, [*Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*](https://arxiv.org/abs/2104.04473), §3: why tensor parallelism stays within a machine.
- PyTorch's tutorials [*Large Scale Transformer model training with Tensor Parallel*](https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html) and [*Getting Started with DeviceMesh*](https://docs.pytorch.org/tutorials/recipes/distributed_device_mesh.html).
"""
