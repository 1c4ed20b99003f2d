# %% [markdown]
r"""
# Exercises 21c · Context parallel

Chapter 21c: one row of text on several ranks. All of it runs in one process here: a list has an entry for each rank. No task needs another one's
solution. `course check 21c` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import torch
from torch import Tensor

from course.variants import variant

# %% [markdown]
r"""
## 21c-1 · A ring waits at every step

*Derive · difficulty 3/5 · importance 5/5 · 25 minutes*

`places[r]` is the list of the tokens of rank r, by their places in the row. In step s of the ring, rank r has the keys of rank r − s (modulo n), and computes the pairs of a query of its own and such a key that the query sees: the key's place is at most the query's. No rank
begins a step before all have finished the last one.

Write `work(places)`, a list with one list for each step, in which rank r's number of pairs has the index r. And write `clock(places)`: in pairs, how long the ring takes if all ranks compute equally fast.

Three ways to deal a row are given. `mine` says how many ranks and tokens you have, and `answers` is the list of the three clocks: contiguous, striped, zigzag. Which do you expect to be the fastest, and how much faster than the slowest? Guess before you run it. (Each rank counts pairs alone here; the tiles of a real kernel are
larger than what they need.)

<details><summary>Hint 1</summary>

Two ranks with two tokens each are four tokens: draw the triangle of ten pairs, and write into each pair who computes it and in which step.
</details>

<details><summary>Hint 2</summary>

Contiguous parts on two ranks: in step 1 one rank has nothing to do. Does the ring take less time for it?
</details>
"""

# %%
mine = variant("21c-1", STUDENT, n=[4, 6, 8], T=[96, 144, 240])


def contiguous(n: int, T: int) -> list[list[int]]:
    return torch.arange(T).view(n, -1).tolist()


def striped(n: int, T: int) -> list[list[int]]:
    """Rank r has the tokens r, r + n, r + 2n, ... (Brandon et al. 2023)."""
    return torch.arange(T).view(-1, n).T.tolist()


def zigzag(n: int, T: int) -> list[list[int]]:
    chunks = torch.arange(T).view(2 * n, -1).tolist()
    return [chunks[rank] + chunks[2 * n - 1 - rank] for rank in range(n)]


# %%
#| solution 21c-1
def work(places: list[list[int]]) -> list[list[int]]:
    """Pairs by step and rank."""
    ### BEGIN SOLUTION
    n, steps = len(places), []
    for step in range(n):
        pairs = []
        for rank in range(n):
            keys = places[(rank - step) % n]
            pairs.append(sum(key <= query for query in places[rank] for key in keys))
        steps.append(pairs)
    return steps
    ### END SOLUTION


def clock(places: list[list[int]]) -> int:
    """How many pairs' time the ring takes."""
    ### BEGIN SOLUTION
    return sum(max(pairs) for pairs in work(places))
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    clock(contiguous(**mine)),
    clock(striped(**mine)),
    clock(zigzag(**mine)),
    ### INSTEAD
    # 0,  # contiguous
    # 0,  # striped
    # 0,  # zigzag
    ### END SOLUTION
]

# %%
#| check 21c-1
got = work([[0, 1], [2, 3]])
assert got == [[3, 3], [0, 4]], (
    f"two ranks with two tokens each: three pairs each with their own keys, then rank 1's four with rank 0's, not {got}"
)
got = work([[0], [1], [2]])
assert got == [[1, 1, 1], [0, 1, 1], [0, 0, 1]], (
    f"three ranks of one token: in step 1 rank 2 has the key of rank 1, which it sees: {got}"
)
assert clock([[0, 1], [2, 3]]) == 7, "rank 0 waits in step 1: the two ranks take 3 + 4 pairs' time"

# %% [markdown]
r"""
## 21c-2 · A query that sees nobody

*Repair · difficulty 3/5 · importance 4/5 · 20 minutes*

A fused kernel gives for a piece of the keys the output o (R, d), as if there were no other keys, and the logsumexp of the scores, l (R,). The true output over several pieces is the mean of their outputs, weighted by $e^l$.

When documents are masked, a query may see no key of a piece. Its logsumexp is then −∞, and its output is 0/0, which is NaN. `merge(parts)` gets the list of all pieces' (o, l). It returns the output and the logsumexp over all of them. A query that sees no key at all gets zeros and −∞.

The code below is right as long as every query sees a key of each piece. Fix it. Scores may be large: a logsumexp of 1,000 must not overflow.

<details><summary>Hint 1</summary>

What is 0 · NaN?
</details>

<details><summary>Hint 2</summary>

What is −∞ − (−∞)? Where does the code compute it?
</details>
"""


# %%
#| solution 21c-2
def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Output (R, d) and logsumexp (R,) over all pieces. parts: of each piece its output (R, d) and logsumexp (R,)."""
    ### BEGIN SOLUTION
    outs, logs = (torch.stack(each) for each in zip(*parts))  # (pieces, R, d), (pieces, R)
    top = logs.amax(0)
    weights = (logs - torch.where(top.isinf(), 0.0, top)).exp()  # -inf has weight 0
    seen = weights[..., None] > 0
    summed = (weights[..., None] * torch.where(seen, outs, 0.0)).sum(0)
    total = weights.sum(0)
    return summed / torch.where(total == 0, 1.0, total)[:, None], logs.logsumexp(0)
    ### INSTEAD
    # outs, logs = (torch.stack(each) for each in zip(*parts))  # (pieces, R, d), (pieces, R)
    # weights = logs.softmax(0)
    # return (weights[..., None] * outs).sum(0), logs.logsumexp(0)
    ### END SOLUTION


# %%
#| check 21c-2
def piece(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As a kernel does it: NaN where a query sees no key."""
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


g = torch.Generator().manual_seed(0)
scores, values = torch.randn(5, 12, generator=g), torch.randn(12, 3, generator=g)
expected = piece(scores, values)
out, log = merge([piece(scores[:, :4], values[:4]), piece(scores[:, 4:], values[4:])])
assert torch.allclose(out, expected[0], atol=1e-5) and torch.allclose(log, expected[1], atol=1e-5), (
    "where every query sees keys of both pieces, something else comes out than attention over all keys"
)
scores[1, :4] = scores[2, 4:] = scores[3] = -torch.inf
parts = [piece(scores[:, :4], values[:4]), piece(scores[:, 4:], values[4:])]
out, log = merge(parts)
assert torch.allclose(out[:3], piece(scores[:3], values)[0], atol=1e-5), (
    f"query 1 sees no key of the first piece, query 2 none of the second: their outputs are {out[1].tolist()} and {out[2].tolist()}"
)
assert not out[3].any() and log[3] == -torch.inf, "query 3 sees no key at all: zeros, and minus infinity"

# %% [markdown]
r"""
## 21c-3 · A check for a dealer

*Check · difficulty 3/5 · importance 4/5 · 20 minutes*

`deal(n, T)` deals the tokens of a row to n ranks. It returns a list with one list of places for each rank, in ascending order. T is a multiple of 2n. It is right if each of the T tokens is on exactly one rank, every rank has T/n of them, and all ranks have the same number of pairs of a query and
a key that it sees. The query at place t sees t + 1 keys. The zigzag is right, but not the only right way.

Write `check_deal(deal)`, which raises an `AssertionError` if a rule is broken and accepts all that keep them.

<details><summary>Hint 1</summary>

Which n and T are special? One rank. An odd number of ranks. The smallest T, and one whose chunks have several tokens.
</details>

<details><summary>Hint 2</summary>

A place that is there twice can hide one that is missing, if you only count.
</details>
"""


# %%
#| solution 21c-3
def check_deal(deal) -> None:
    """Raises AssertionError unless deal(n, T) gives each token to one rank, and all ranks the same work."""
    ### BEGIN SOLUTION
    for n in (1, 2, 3, 4, 5, 8):
        for T in (2 * n, 4 * n, 6 * n):
            places = deal(n, T)
            assert len(places) == n, f"{len(places)} ranks in place of {n}"
            assert sorted(place for mine in places for place in mine) == list(range(T)), (
                f"n={n}, T={T}: not every token once"
            )
            assert all(len(mine) == T // n for mine in places), f"n={n}, T={T}: unequal numbers of tokens"
            assert all(list(mine) == sorted(mine) for mine in places), f"n={n}, T={T}: not in order"
            pairs = [sum(place + 1 for place in mine) for mine in places]
            assert len(set(pairs)) == 1, f"n={n}, T={T}: the ranks have {pairs} pairs"
    ### END SOLUTION


# %%
#| check 21c-3
def refused(deal) -> bool:
    try:
        check_deal(deal)
    except AssertionError:
        return True
    return False


def mirrored(n: int, T: int) -> list[list[int]]:
    """Another right way: tokens t and T - 1 - t are always together, and the ranks take turns."""
    return [sorted(p for t in range(r, T // 2, n) for p in (t, T - 1 - t)) for r in range(n)]


assert not refused(zigzag), "your check refuses the zigzag"
assert not refused(mirrored), "your check refuses a right way that is not the zigzag"
assert refused(contiguous), "contiguous parts have unequal work, and your check accepts them"
assert refused(lambda n, T: [places[:-1] for places in zigzag(n, T)]), (
    "here each rank's last token is missing, and your check accepts it"
)

# %% [markdown]
r"""
#| manual 21c-4
## 21c-4 · Eight GPUs for a short row

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

GPT-2's rows have 1,024 tokens. A batch has 64 of them, and there are eight GPUs of one machine. A colleague gives each row to all eight GPUs in a ring, "because activations need most of the memory, and so each GPU keeps an eighth of them". In four sentences: does another layout
keep as few activations on a GPU; why can the ring not hide its messages here, although it could for rows of 131,072 tokens; for which runs is context parallelism then needed; and the first losses of the colleague's run look right: name one mistake in such a run that the
loss hardly shows, and how you would find it.
"""
