# %% [markdown]
r"""
# Exercises 21b · Tensor parallel

Chapter 21b: one layer on several ranks. All of it runs in one process here: a list has an entry for each rank. No task needs another one's
solution. `course check 21b` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import torch
import torch.nn.functional as F
from torch import Tensor

from course.variants import variant

# %% [markdown]
r"""
## 21b-1 · Heads, not halves

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

GPT-2's `c_attn` is three matrices in one: its rows are first all of q, then all of k, then all of v, and each of the three has the rows of head 0, of head 1, and so on. `pieces(w, n)` returns
a list with the rows of each of n ranks: rank r gets the q, k and v of the r-th n-th of the heads, again first q, then k, then v, so that `piece.chunk(3)` gives this rank's q, k and v.

The code below cuts at the wrong places. No error is raised and all shapes fit. Fix it, **without a loop**. It must also work for the bias, which has one dimension.

<details><summary>Hint 1</summary>

Print what each rank gets for a w whose rows are 0 to 11, with 2 ranks. Which of them are q?
</details>

<details><summary>Hint 2</summary>

`w.unflatten(0, (3, -1))` has one dimension more: q, k and v. Along which dimension do you cut now?
</details>
"""


# %%
#| solution 21b-1
#| forbids loop
def pieces(w: Tensor, n: int) -> list[Tensor]:
    """The rows of c_attn of each of n ranks: its heads' q, then their k, then their v."""
    ### BEGIN SOLUTION
    split = w.unflatten(0, (3, n, -1))  # (q k v, rank, rows of a rank, ...)
    return list(split.transpose(0, 1).flatten(1, 2))
    ### INSTEAD
    # return list(w.chunk(n))
    ### END SOLUTION


# %%
#| check 21b-1
rows = torch.arange(12)  # four heads of one row each: q is 0 to 3, k is 4 to 7, v is 8 to 11
got = [piece.tolist() for piece in pieces(rows, 2)]
assert got == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]], (
    f"the ranks get the rows {got}; rank 0 should have heads 0 and 1 of q, of k and of v: 0 1, 4 5, 8 9"
)
assert pieces(torch.zeros(12, 4), 4)[3].shape == (3, 4), "on four ranks, each has three rows of width 4"

# %% [markdown]
r"""
## 21b-2 · One sum for an MLP

*Build · difficulty 3/5 · importance 5/5 · 30 minutes*

GPT-2's MLP is `F.linear(gelu(F.linear(x, w_1, b_1)), w_2, b_2)`. Write `mlp`, which computes it on n ranks. Every rank has x. Rank r keeps the r-th n-th of the outputs of the first layer, and what belongs to them of
the second layer. Each rank computes a summand from its own pieces alone. `total(summands)` takes the list of all ranks' summands and returns their sum. It is the all-reduce, so it may be called **once**, and its result is
all that leaves the ranks. The second bias is added after it.

<details><summary>Hint 1</summary>

`nn.Linear` keeps its weight as (out, in). Along which dimension is w_1 cut, and along which w_2?
</details>

<details><summary>Hint 2</summary>

Where does b_1 belong? It has one number for each output of the first layer.
</details>
"""


# %%
def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


# %%
#| solution 21b-2
def mlp(x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor, n: int, total) -> Tensor:
    """GPT-2's MLP on n ranks: (B, T, C) -> (B, T, C). total: the sum over the ranks' tensors, to be called once."""
    ### BEGIN SOLUTION
    summands = []
    for weight, bias, second in zip(w_1.chunk(n), b_1.chunk(n), w_2.chunk(n, dim=1)):
        hidden = gelu(F.linear(x, weight, bias))  # (B, T, 4C/n), this rank's
        summands.append(F.linear(hidden, second))
    return total(summands) + b_2
    ### END SOLUTION


# %%
#| check 21b-2
g = torch.Generator().manual_seed(0)
x, b_1, b_2 = (torch.randn(shape, generator=g) for shape in ((2, 3, 4), (16,), (4,)))
w_1, w_2 = torch.randn(16, 4, generator=g), torch.randn(4, 16, generator=g)
calls = []


def total(summands: list[Tensor]) -> Tensor:
    calls.append([tuple(summand.shape) for summand in summands])
    return torch.stack(list(summands)).sum(0)


y = mlp(x, w_1, b_1, w_2, b_2, 2, total)
assert len(calls) == 1, f"`total` was called {len(calls)} times; one sum is enough"
assert calls[0] == [(2, 3, 4)] * 2, f"two ranks' summands have the shape of x, and yours are {calls[0]}"
expected = F.linear(gelu(F.linear(x, w_1, b_1)), w_2, b_2)
assert torch.allclose(y, expected, atol=1e-4), (
    "the ranks' MLP is another one: is each bias added once, and does GELU see complete numbers?"
)

# %% [markdown]
r"""
## 21b-3 · Three numbers for each token

*Build · difficulty 4/5 · importance 4/5 · 35 minutes*

The vocabulary is cut: each rank has some columns of the logits. The loss of a token is log Σ exp(logits) − logit of its target, in which the sum goes over the columns of all ranks. In chapter 21b the ranks agree on the maximum
first. Here nobody waits: each rank makes three numbers for each token from its own columns, and one exchange merges them, as chapter 12 merges parts of a softmax.

`summary(logits, targets, first)` gets one rank's columns (N, V/n), those from token `first` on, and all N targets. It returns (3, N): the largest logit m of these columns, Σ exp(logit − m) over these columns, and the target's logit, or 0 if
another rank has it. `merged(summaries)` gets the list of all ranks' summaries and the targets, and returns the mean loss in nats. A target of −100 does not count. Logits may be large: 1,000 must not overflow.

<details><summary>Hint 1</summary>

Two ranks' sums were made with different m. By what do you multiply one of them, before you may add it to the other?
</details>

<details><summary>Hint 2</summary>

Which targets does this rank have? Mind the index for the others: `gather` wants a valid one, whatever you do with the result.
</details>

<details><summary>Hint 3</summary>

The mean divides by the number of targets that count, and not by N.
</details>
"""


# %%
#| solution 21b-3
def summary(logits: Tensor, targets: Tensor, first: int) -> Tensor:
    """Of one rank's columns (N, V/n), those from `first` on: maximum, sum of exponentials, the target's logit or 0; (3, N)."""
    ### BEGIN SOLUTION
    highest = logits.amax(-1)
    sums = (logits - highest[:, None]).exp().sum(-1)
    held = (targets >= first) & (targets < first + logits.size(-1))
    place = torch.where(held, targets - first, 0)
    score = logits.gather(-1, place[:, None]).squeeze(-1)
    return torch.stack([highest, sums, torch.where(held, score, 0.0)])
    ### END SOLUTION


def merged(summaries: list[Tensor], targets: Tensor) -> Tensor:
    """The mean loss in nats of the targets that count, from all ranks' summaries, each (3, N)."""
    ### BEGIN SOLUTION
    highest, sums, scores = torch.stack(summaries).unbind(1)  # each (ranks, N)
    top = highest.amax(0)
    complete = (sums * (highest - top).exp()).sum(0)
    losses = top + complete.log() - scores.sum(0)
    return losses[targets != -100].mean()
    ### END SOLUTION


# %%
#| check 21b-3
g = torch.Generator().manual_seed(1)
logits = 3 * torch.randn(6, 10, generator=g)
targets = torch.tensor([0, 9, 4, 5, 3, -100])
parts = [summary(logits[:, :4], targets, 0), summary(logits[:, 4:], targets, 4)]
assert [tuple(part.shape) for part in parts] == [(3, 6)] * 2, (
    f"a summary is three numbers for each of six tokens, and yours are {[tuple(part.shape) for part in parts]}"
)
assert torch.allclose(parts[0][0], logits[:, :4].amax(-1)), (
    "the first number is the largest logit of this rank's columns"
)
assert torch.allclose(parts[1][2, 1], logits[1, 9]) and parts[0][2, 1] == 0, (
    "token 9 belongs to the second rank, which knows its logit; the first rank says 0"
)
got, expected = merged(parts, targets), F.cross_entropy(logits, targets)
assert torch.allclose(got, expected, atol=1e-5), f"the loss is {got:.4f}, and one process has {expected:.4f}"

# %% [markdown]
r"""
## 21b-4 · Counting collectives

*Derive · difficulty 3/5 · importance 4/5 · 25 minutes*

A GPT of L layers is cut as in chapter 21b: every block, the token embedding and the head, with the loss of the cut vocabulary. Nothing is recomputed, and there is no sequence parallelism. Write

- `stream_sums(layers)`: how many all-reduces of a tensor (B, T, C) a step makes, forward and backward. Count those of the blocks, then look at both ends: where does the embedding send forward, and where does the head send backward?
- `bytes_in(layers, tokens, width)`: the bytes that a rank puts into **all** all-reduces of a step with so many tokens. The stream is float32 and `width` wide, and the loss sums three float32 numbers for each token.
- `even(parameters, layers, width)`: the number of tokens for which these are as many bytes as data parallelism puts in, which all-reduces one float32 gradient for each parameter.

`answers` is the list of the three at the values in `mine`.

<details><summary>Hint 1</summary>

Each of f and g sends in one direction only. A block has two of each.
</details>

<details><summary>Hint 2</summary>

The embedding ends with a g and begins with no f: ids have no gradient. The head begins with an f, and its g is the loss's three sums.
</details>
"""

# %%
mine = variant(
    "21b-4",
    STUDENT,
    shape=[(12, 768, 124_439_808), (24, 1024, 354_823_168), (36, 1280, 774_030_080)],
    tokens=[4096, 8192, 16384],
)


# %%
#| solution 21b-4
def stream_sums(layers: int) -> int:
    """All-reduces of (B, T, C) in a step, forward and backward."""
    ### BEGIN SOLUTION
    return 4 * layers + 2
    ### END SOLUTION


def bytes_in(layers: int, tokens: int, width: int) -> int:
    """Bytes that a rank puts into all all-reduces of a step."""
    ### BEGIN SOLUTION
    return 4 * tokens * ((4 * layers + 2) * width + 3)
    ### END SOLUTION


def even(parameters: int, layers: int, width: int) -> float:
    """Tokens a step with which data parallelism puts in as many bytes."""
    ### BEGIN SOLUTION
    return 4 * parameters / bytes_in(layers, 1, width)
    ### END SOLUTION


layers, width, parameters = mine["shape"]
answers = [
    ### BEGIN SOLUTION
    stream_sums(layers),
    bytes_in(layers, mine["tokens"], width),
    even(parameters, layers, width),
    ### INSTEAD
    # 0,  # stream_sums
    # 0,  # bytes_in
    # 0.0,  # even
    ### END SOLUTION
]

# %%
#| check 21b-4
assert stream_sums(2) - stream_sums(1) == 4, "a block sums twice in forward and twice in backward"
assert bytes_in(3, 20, 8) == 2 * bytes_in(3, 10, 8), "twice as many tokens are twice as many bytes"
assert bytes_in(5, 1, 64) - bytes_in(5, 1, 63) == 4 * stream_sums(5), (
    "one channel more is one float32 number more in each of the stream's sums"
)
assert abs(even(10**6, 2, 32) * bytes_in(2, 1, 32) - 4 * 10**6) < 1, (
    "`even` tokens are as many bytes as the gradients"
)

# %% [markdown]
r"""
## 21b-5 · A check for a cut embedding

*Check · difficulty 4/5 · importance 4/5 · 25 minutes*

`embed(ids, tables)` looks up token ids in a table whose rows are cut: `tables[r]` has the rows of rank r, and the ranks' rows follow each other. Ranks may have different numbers of rows. It returns the embeddings, of shape (\*ids.shape, C), that
`torch.cat(tables)[ids]` would give. A lookup with an index that a rank does not have often raises no error, but finds another row.

Write `check_embedding(embed)`, which raises an `AssertionError` if an embedding is wrong and accepts every right one.

<details><summary>Hint 1</summary>

Which ids are special? The first and the last row of each rank. And which tables? Three ranks, of which the last one has fewer rows.
</details>

<details><summary>Hint 2</summary>

What does `table[-1]` give? Does your check try an id that belongs to an earlier rank than the one that looks it up?
</details>
"""


# %%
#| solution 21b-5
def check_embedding(embed) -> None:
    """Raises AssertionError unless embed(ids, tables) gives the rows of all tables, one below the other."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(2)
    for rows in ([5], [4, 4], [4, 4, 1], [2, 3, 4], [3, 3, 3, 2]):
        tables = [torch.randn(each, 3, generator=g) for each in rows]
        whole = torch.cat(tables)
        for ids in (torch.arange(sum(rows)), torch.randint(sum(rows), (2, 5), generator=g)):
            got, expected = embed(ids, tables), whole[ids]
            assert got.shape == expected.shape, f"{rows}: the shape is {tuple(got.shape)}"
            assert torch.allclose(got, expected, atol=1e-6), f"{rows}: ids {ids.tolist()} have other rows"
    ### END SOLUTION


# %%
#| check 21b-5
def refused(embed) -> bool:
    try:
        check_embedding(embed)
    except AssertionError:
        return True
    return False


def summed_up(ids: Tensor, tables: list[Tensor]) -> Tensor:
    """As the ranks do it: each looks up its own, takes zero for the others, and all are added."""
    y, first = 0, 0
    for table in tables:
        held = (ids >= first) & (ids < first + len(table))
        y = y + table[torch.where(held, ids - first, 0)] * held[..., None]
        first += len(table)
    return y


def zero_forgotten(ids: Tensor, tables: list[Tensor]) -> Tensor:
    y, first = 0, 0
    for table in tables:
        held = (ids >= first) & (ids < first + len(table))
        y = y + table[torch.where(held, ids - first, 0)]
        first += len(table)
    return y


assert not refused(summed_up) and not refused(lambda ids, tables: torch.cat(tables)[ids]), (
    "a right embedding is refused"
)
assert refused(zero_forgotten), (
    "here a rank adds its first row for ids that it does not have, and your check accepts it"
)

# %% [markdown]
r"""
#| manual 21b-6
## 21b-6 · Sixteen GPUs in two machines

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

Two machines have eight GPUs each. Inside a machine the GPUs are joined by NVLink, and between the machines there is a network that is ten times as slow. A colleague sets tensor parallelism to 16, "because then each GPU has the
least to compute". In four sentences: how often does each rank wait for the network in a step, and why can these sums not hide behind computing; which layout would you take instead; and which sum then crosses the network, and why is it easier to hide?
"""
