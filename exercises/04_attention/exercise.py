# %% [markdown]
r"""
# Exercises 04 · Attention

Work from top to bottom, or begin where you like: no task needs another one's solution. `course check 04` runs the
visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor

from course.variants import variant
from nanogpt.model import attention_weights

# %% [markdown]
r"""
## 04-1 · Two bugs in four lines

*Repair · difficulty 2/5 · importance 5/5 · 10 minutes*

A model that answers questions may read the whole question before it writes: the first `prefix` positions may all see
each other, in both directions, and only the answer after them is causal (a *prefix LM*, Raffel et al. 2020, §3.2.1).
`weights_with_prefix(q, k, prefix)` takes q and k, (..., T, d), and returns the weights, (..., T, T). With a prefix of 0
or 1 they are those of `attention_weights`. The function runs, the weights that must be zero are zero, and it has two
bugs. One lets a position know something of its future, although it puts no weight there. The other makes softmax
flatter as the text grows. Repair both.

<details><summary>Hint 1</summary>

Print the weights for T = 4 and the sum of each row. What should the sums be, and what decides by how much they miss
it?
</details>

<details><summary>Hint 2</summary>

Disturb the last key and compare row 0 before and after. Through which step of softmax does the last key get there?
</details>

<details><summary>Hint 3</summary>

A score is a sum. Of how many products? That number belongs under the root.
</details>
"""


# %%
#| solution 04-1
def weights_with_prefix(q: Tensor, k: Tensor, prefix: int) -> Tensor:
    """Causal weights whose first `prefix` positions all see each other. q, k: (..., T, d). Returns (..., T, T)."""
    T, d = q.shape[-2:]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    future[:, :prefix] = False  # everybody may see the prefix
    ### BEGIN SOLUTION
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    ### INSTEAD
    # scores = q @ k.transpose(-2, -1) / math.sqrt(T)
    # return scores.softmax(dim=-1).masked_fill(future, 0.0)
    ### END SOLUTION


# %%
#| check 04-1
q, k = torch.randn(2, 1, 2, 4, 9, generator=torch.Generator().manual_seed(0))
w = weights_with_prefix(q, k, 0)
assert w.shape == (1, 2, 4, 4), f"the shape is {tuple(w.shape)}, not (1, 2, 4, 4)"
assert not w.isnan().any(), (
    "nan: a row in which every score is -inf has no softmax; may a position see itself?"
)
assert not w.triu(1).any(), "a position looks ahead: row t has weight on keys after t"
assert torch.allclose(w.sum(-1), torch.ones(1, 2, 4)), (
    "rows do not sum to one: is the softmax before the mask?"
)
ratio = (
    w[..., 1, 0] / w[..., 1, 1]
).log() * 3  # row 1: the difference of its two scores, times the root of d = 9
assert torch.allclose(ratio, ((k[..., 0, :] - k[..., 1, :]) * q[..., 1, :]).sum(-1), atol=1e-4), (
    "scores are not q · k / 3 where a head is 9 wide: what is divided by must not depend on the length of the text"
)
w = weights_with_prefix(q, k, 2)
seen = [(row > 0).nonzero().flatten().tolist() for row in w[0, 0]]
assert seen == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2, 3]], f"with prefix=2 the rows see {seen}"
assert torch.allclose(w.sum(-1), torch.ones(1, 2, 4)), "with prefix=2 rows do not sum to one"

# %% [markdown]
r"""
## 04-2 · Shapes that fit

*Repair · difficulty 3/5 · importance 5/5 · 15 minutes*

GPT-2's `c_attn` gives all queries, then all keys, then all values. GPT-NeoX's does it head by head: the query, key and
value of head 0, then those of head 1, and so on, 3·d numbers for each head. `heads_together(qkv, n_head)` takes such
an output, (B, T, n_head·3·d), and returns what the next matrix reads, (B, T, C): in channels h·d … (h+1)·d − 1 of
position t the mean of values that head h fetched for t. It is wrong, and no shape says so. Repair it without a
loop (a comprehension is one, too).

<details><summary>Hint 1</summary>

Give it B = 1, T = 3, two heads of d = 2, and the numbers 0 to 35. Which numbers should head 0 get as queries? Which
does it get?
</details>

<details><summary>Hint 2</summary>

Memory holds a position's channels next to each other, head after head. `reshape` never moves a number: it can cut the
last axis in two, and it cannot bring an axis in front of another one.
</details>

<details><summary>Hint 3</summary>

Two axes change places on the way in. The same two must change back before the last two are joined.
</details>
"""


# %%
#| solution 04-2
#| forbids loop
def heads_together(qkv: Tensor, n_head: int) -> Tensor:
    """All heads at once. qkv: (B, T, n_head·3·d), the query, key and value of each head. Returns (B, T, C)."""
    B, T, C = qkv.size(0), qkv.size(1), qkv.size(2) // 3
    d = C // n_head
    ### BEGIN SOLUTION
    q, k, v = qkv.reshape(B, T, n_head, 3 * d).transpose(1, 2).split(d, dim=3)  # (B, n_head, T, d)
    y = attention_weights(q, k) @ v
    return y.transpose(1, 2).reshape(B, T, C)
    ### INSTEAD
    # q, k, v = qkv.reshape(B, n_head, T, 3 * d).split(d, dim=3)  # (B, n_head, T, d)
    # y = attention_weights(q, k) @ v
    # return y.reshape(B, T, C)
    ### END SOLUTION


# %%
#| check 04-2
qkv = torch.randn(1, 6, 3 * 8, generator=torch.Generator().manual_seed(0))
y = heads_together(qkv, 2)
assert y.shape == (1, 6, 8), f"the shape is {tuple(y.shape)}, not (1, 6, 8)"
disturbed = qkv.clone()
disturbed[:, 4:] += 1.0
changed = (heads_together(disturbed, 2) - y).abs().amax((0, 2)) > 1e-5
assert not changed[:4].any(), (
    f"positions {changed[:4].nonzero().flatten().tolist()} changed when 4 and 5 did: a head holds numbers of other positions"
)
values = torch.cat(
    [qkv[:, 0, 8:12], qkv[:, 0, 20:24]], dim=1
)  # of position 0: those of head 0, those of head 1
assert torch.allclose(y[:, 0], values, atol=1e-5), (
    "position 0 sees itself alone, so its output is its own value, channel by channel; here channels change places"
)
disturbed = qkv.clone()
disturbed[..., :4] += torch.randn(6, 4, generator=torch.Generator().manual_seed(1))  # the queries of head 0
assert torch.allclose(heads_together(disturbed, 2)[..., 4:], y[..., 4:], atol=1e-5), (
    "the queries of head 0 move the channels of head 1: the heads were not cut apart channel by channel"
)

# %% [markdown]
r"""
## 04-3 · How far scores spread

*Derive · difficulty 4/5 · importance 4/5 · 25 minutes*

The chapter divides by √d because products of numbers with mean zero and variance one have variance one. Take away the
zero: all entries of q and k are independent, with the mean and the variance that `mine` holds, and d is the width of
a head. Two numbers describe the undivided scores:

- `overall`: the standard deviation of q · k over all pairs of a query and a key;
- `within`: the root of the mean of the variance that *one* query sees over its keys. This is what softmax sees, since
  what all scores of a row share falls out of it.

Give both from a formula; a simulation is not exact enough to pass (1e-5). For mean 0, variance 1 and d = 64 both are
8.

<details><summary>Hint 1</summary>

The variance of a sum of independent parts is the sum of their variances. So begin with one product, d = 1.
</details>

<details><summary>Hint 2</summary>

Var(xy) = E[x²y²] − E[xy]², and for independent x and y both expectations fall apart into factors. E[x²] is the
variance plus the square of the mean.
</details>

<details><summary>Hint 3</summary>

For `within`, hold q fixed: the score is Σ qᵢkᵢ with known qᵢ, its variance is a sum over i, and then you take the
mean over q.
</details>
"""

# %%
mine = variant(
    "04-3", STUDENT, d=[32, 48, 80, 96, 128], mean=[0.5, 1.5, 2.0, 3.0], variance=[0.25, 0.5, 2.0, 4.0]
)
mine

# %%
#| solution 04-3
d, mean, variance = mine["d"], mine["mean"], mine["variance"]
overall = within = 0.0
### BEGIN SOLUTION
square = variance + mean**2  # E[x²]
overall = math.sqrt(d * (square**2 - mean**4))
within = math.sqrt(d * variance * square)
### END SOLUTION

# %%
#| check 04-3
g = torch.Generator().manual_seed(0)
q, k = mine["mean"] + math.sqrt(mine["variance"]) * torch.randn(2, 3000, mine["d"], generator=g)
drawn = q @ k.T  # (queries, keys)
measured = drawn.std().item()
assert abs(overall / measured - 1) < 0.05, (
    f"overall is {overall:.2f}; drawn scores spread by {measured:.2f}. Is it a root? Does the mean take part?"
)
measured = drawn.var(dim=1).mean().sqrt().item()
assert abs(within / measured - 1) < 0.05, (
    f"within is {within:.2f}; the rows of drawn scores spread by {measured:.2f}. What do all scores of a row share?"
)

# %% [markdown]
r"""
## 04-4 · A window on the past

*Build · difficulty 3/5 · importance 3/5 · 25 minutes*

Long texts cost T² scores. In *sliding-window attention* (Beltagy et al. 2020, §3.1) a position sees itself and the
`window` − 1 positions before it. Write the weights, `window_weights(q, k, window)`, q and k (..., T, d), and the
number of scores that are not masked, `pairs(T, window)`: a formula, without a tensor and without a loop, since T may
be a million. For T = 4 and window = 2 there are 7.

<details><summary>Hint 1</summary>

Two things are hidden: keys after the query, as ever, and keys too far before it. `torch.ones(T, T).triu(1)` is the
first. Which triangle is the second?
</details>

<details><summary>Hint 2</summary>

Try window = 1: every position sees itself alone, so the weights are the identity. Try window = T: the mask is the
usual one.
</details>

<details><summary>Hint 3</summary>

For the count: from row window − 1 on, every row has the same number. The rows before it are a triangle. The window
may be longer than the text.
</details>
"""


# %%
#| solution 04-4
#| forbids loop in pairs
#| forbids torch in pairs
def window_weights(q: Tensor, k: Tensor, window: int) -> Tensor:
    """Causal weights over the last `window` positions, the own one included. q, k: (..., T, d). Returns (..., T, T)."""
    ### BEGIN SOLUTION
    T, d = q.shape[-2:]
    pair = torch.ones(T, T, dtype=torch.bool)
    hidden = pair.triu(1) | pair.tril(-window)
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    ### END SOLUTION


def pairs(T: int, window: int) -> int:
    """Number of (query, key) pairs that window_weights does not mask."""
    ### BEGIN SOLUTION
    window = min(window, T)
    return T * window - window * (window - 1) // 2
    ### END SOLUTION


# %%
#| check 04-4
q, k = torch.randn(2, 1, 1, 6, 8, generator=torch.Generator().manual_seed(0))
w = window_weights(q, k, 3)
assert w.shape == (1, 1, 6, 6), f"the shape is {tuple(w.shape)}, not (1, 1, 6, 6)"
assert torch.allclose(w.sum(-1), torch.ones(1, 1, 6)), "rows do not sum to one: mask first, then softmax"
seen = (w[0, 0, 4] > 0).nonzero().flatten().tolist()
assert seen == [2, 3, 4], f"with window=3 position 4 sees {seen}, not [2, 3, 4]: itself and two before it"
assert torch.allclose(window_weights(q, k, 6), attention_weights(q, k)), (
    "a window as long as the text is plain causal attention"
)
assert pairs(4, 2) == 7, f"pairs(4, 2) is {pairs(4, 2)}, not 7: rows see 1, 2, 2, 2 keys"
assert pairs(4, 9) == 10, f"pairs(4, 9) is {pairs(4, 9)}, not 10: no row sees more keys than the text has"

# %% [markdown]
r"""
## 04-5 · A check for causality

*Check · difficulty 4/5 · importance 5/5 · 30 minutes*

A model that sees the future has a wonderful loss and writes nonsense. You write the check that finds it.
`check_causal(layer)` gets a function that maps x, (B, T, 8), to an output of the same shape, for any B and any T from
1 to 64. It raises an `AssertionError` if some output can depend on a later input, and returns without a word if not.

Your check is graded by what it refuses and what it accepts: several layers that leak, each in its own way, and
several that do not, which need not look like attention. Refusing one that is right costs all points. Layers compute
in float32 and give values only, no gradients; they run elsewhere, so keep to some hundreds of calls. Every layer
gives the same output for the same input.

<details><summary>Hint 1</summary>

The law: disturb inputs from position t on, and no output before t may change. A causal layer may do with its past
what it likes, also nothing.
</details>

<details><summary>Hint 2</summary>

Which t? A layer may leak from one position alone, or into one alone. Try them all.
</details>

<details><summary>Hint 3</summary>

Which T? A mask may have been made for 16 positions. And which noise? Sums in another order differ in the last digits:
a tolerance of 1e-5 is more than those, and far less than what a disturbance by numbers of size one does.
</details>

<details><summary>Hint 4</summary>

Which row of the batch? A mask may reach the first one alone. Compare them all.
</details>
"""


# %%
#| solution 04-5
def check_causal(layer) -> None:
    """AssertionError if an output of `layer`, (B, T, 8) -> (B, T, 8), changes when only later inputs do."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    for T in (3, 20):
        x = torch.randn(2, T, 8, generator=g)
        before = layer(x)
        for t in range(1, T):
            disturbed = x.clone()
            disturbed[:, t:] += torch.randn(2, T - t, 8, generator=g)
            after = layer(disturbed)
            assert torch.allclose(after[:, :t], before[:, :t], atol=1e-5), f"T={T}: {t} moves the past"
    ### END SOLUTION


# %%
#| check 04-5
@torch.no_grad()
def causal(x):
    return attention_weights(x, x) @ x


@torch.no_grad()
def without_mask(x):
    return (x @ x.transpose(-2, -1)).softmax(-1) @ x


@torch.no_grad()
def one_ahead(x):  # the mask begins one diagonal too late
    future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(2)
    return (x @ x.transpose(-2, -1)).masked_fill(future, float("-inf")).softmax(-1) @ x


def says(layer) -> str:
    try:
        check_causal(layer)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


assert says(causal) == "accepted", f"causal attention is {says(causal)}"
assert says(lambda x: 2 * x) == "accepted", "a layer that looks at nothing but its own position is causal too"
assert says(without_mask) != "accepted", "your check accepts attention without a mask"
assert says(one_ahead) != "accepted", "your check accepts a mask that begins one diagonal too late"

# %% [markdown]
r"""
#| manual 04-6
## 04-6 · Could the weights do it?

*Explain · difficulty 3/5 · importance 3/5 · 10 minutes*

A colleague deletes the division by √d. "Whatever attention computes with it, it can compute without: let W_q be
smaller by √d." Where is the colleague right, and what is lost all the same? Answer in three to six sentences. Name
one thing that you would measure to decide it.
"""
