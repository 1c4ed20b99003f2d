# %% [markdown]
r"""
# 04 · Attention: looking up earlier positions

*Ann has seven marbles. Tom has two. Ann has …* You know the next word. A model that sees only the last word, *has*,
cannot know it: after *has*, any number is as good as another. The word that helps is far back, and its place differs
from story to story. So the model must do two things. It must look back at all earlier positions, and it must choose
among them by what they contain. *Attention* does both. It must never look forward, because the later words are what
the model is asked to predict.

At the end of this chapter you train a small model made of attention alone, in a few seconds. It looks up who has how
many, and you can watch it do so.
"""

# %%
#| default_exp model
#| doc model: GPT-2: attention, blocks and the model, its initialisation, and counts of its parameters and FLOPs.
from types import SimpleNamespace

import torch

from course.figures import attention as figures
from course.notebook import answer, checkpoint, predict, predictions, show

torch.manual_seed(0)
g = torch.Generator().manual_seed(0)  # random numbers for this chapter's examples
torch.set_printoptions(precision=2, sci_mode=False)

# %%
story = ["Ann", "has", "seven", "marbles", ".", "Tom", "has", "two", ".", "Ann", "has"]
arcs = [(10, 9, "C0", "who?"), (10, 2, "C3", "how many?")]
show(figures.sentence([*story, "?"], arcs), alt="From the last 'has' one arc goes to Ann, one to seven.")

# %% [markdown]
r"""
At the last *has* (shaded), a reader asks two questions: who has something (blue), and how many (red)? The first answer
is one word back. The second is harder, because two numbers came earlier, and nothing in the word *seven* says that it
is Ann's. Keep this in mind. We first build a layer that can look back, then find out how such layers can answer the
red question.

## The average of the past

The simplest way to use the past is to average it. For this we shorten the story to four positions: two name a number,
and two ask for one. Each position is a vector of five numbers, which we choose by hand so that we can follow them. In
the code, T is the number of positions and C the width of the vectors (their *channels*), so here T = 4 and C = 5.
Columns 0 and 1 say whose number this is, Ann's or Tom's. Columns 2 and 3 say whose number is wanted here. Column 4 is
the number itself. (In a real model nobody chooses what a column means: training does. And how did the vector of
*seven* learn that it is Ann's? An earlier layer wrote it there. The section *Ann has …* shows how.)
"""

# %%
rows = [
    [1, 0, 0, 0, 7],  # "seven", which is Ann's
    [0, 1, 0, 0, 2],  # "two", which is Tom's
    [0, 0, 1, 0, 0],  # "Ann has": wants Ann's number
    [0, 0, 0, 1, 0],  # "Tom has": wants Tom's number
]
x = torch.tensor(rows, dtype=torch.float32)  # (T, C)
T, C = x.shape
averages = torch.zeros(T, C)
for t in range(T):
    averages[t] = x[: t + 1].mean(dim=0)
print(averages)

# %% [markdown]
r"""
Look at column 4. The position that wants Ann's number gets 3, the mean of 7, 2 and its own 0. The position that wants
Tom's gets 2.25. Neither number is an answer: an average cannot prefer one position to another.

Before we let it choose, we get rid of the loop. The loop computes one position after the other. One matrix product
computes them all: row *t* of a triangular matrix holds the weights with which position *t* looks at positions 0 … *t*.
"""

# %%
weights = torch.ones(T, T).tril()
weights = weights / weights.sum(dim=1, keepdim=True)  # (T, T), rows sum to one
print(weights)
assert torch.allclose(weights @ x, averages), "the product differs from the loop"

# %% [markdown]
r"""
Now the weights must become *learnable*. Any weights would do as long as none is negative, each row sums to one, and
those of the future are zero. Softmax makes such a row from arbitrary numbers, called *scores*: it takes the
exponential of each score and divides by their sum. A score of −∞ gives the weight zero, so we put −∞ wherever the
position looked at is in the future. Here is one row by hand. It belongs to position 2, so position 3 is its future.
"""

# %%
row = torch.tensor([1.0, 0.0, 2.0, float("-inf")])
print("exp    ", row.exp(), " sum", round(row.exp().sum().item(), 2))
print("weights", row.exp() / row.exp().sum())
print("softmax", row.softmax(dim=-1))

# %% [markdown]
r"""
For all rows at once, a *mask* marks the future: the part of the matrix above the diagonal.
"""


# %%
def over_the_past(scores):
    """(..., T, T) scores -> weights: the future is masked, and softmax makes each row sum to one."""
    T = scores.size(-1)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


scores = torch.randn(8, 8, generator=g) * 1.5
alt = "Three 8 by 8 lower triangles: the uniform average, random scores, blue positive and red negative, with the future masked, and their softmax."
show(figures.matrices(over_the_past(torch.zeros(8, 8)), scores, over_the_past(scores)), alt=alt)

# %% [markdown]
r"""
On the left all scores are zero, so every row is an average of its past. The scores in the middle are random. On the
right is their softmax: each row still sums to one, but now a position weighs its past unevenly, most where the score
is bluest. The future, grey in the middle, has no weight. The axes use the names of the next section: a *query* belongs
to the position that looks, a *key* to a position that it can look at.

## Queries, keys and values

Where should the scores come from? We compute them from the vectors of the two positions. Each position has a *key*, by
which others can find it, and a *value*, which it passes on. Each position also has a *query*, with which it searches.
The score of a pair is the dot product q · k: it is large where the query points in the same direction as the key.

In a model q, k and v are three linear maps of the position's vector, with the matrices W_q, W_k and W_v. In our
example we can write these matrices by hand. The query reads the two columns that say whose number is wanted, and
multiplies them by 4 (we shall soon see why). The key reads the two columns that say whose number this is. The value
reads the number.
"""

# %%
w_q = torch.tensor([[0.0, 0], [0, 0], [4, 0], [0, 4], [0, 0]])  # (C, 2): reads columns 2 and 3, times 4
w_k = torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0], [0, 0]])  # (C, 2): reads columns 0 and 1
w_v = torch.tensor([[0.0], [0], [0], [0], [1]])  # (C, 1): reads column 4
q, k, v = x @ w_q, x @ w_k, x @ w_v
print(f"q: {q.tolist()}\nk: {k.tolist()}\nv: {v.tolist()}")

# %% [markdown]
r"""
Position 2 asks with (4, 0). The key of position 0 is (1, 0), so this score is 4·1 + 0·0 = 4. The key of position 1 is
(0, 1), and position 2's own key is (0, 0): both scores are 0. Softmax turns 4, 0, 0 into e⁴ = 54.6 against 1 and 1, so
the first weight is 54.6 / 56.6 = 0.96. Now all pairs at once:
"""

# %%
scores = q @ k.T  # (T, T): row t holds the scores of query t
weights = over_the_past(scores)
print("scores\n", scores)
print("weights\n", weights)
print("output ", (weights @ v).flatten())

# %% [markdown]
r"""
Position 2 receives nearly 7, and position 3 nearly 2: each has found its own number. Positions 0 and 1 want nothing.
Their scores are all zero, so they get the average, as before. The answers are not exactly 7 and 2 because the weights
are soft. How soft they are depends on the size of the scores:
"""

# %%
for size in (0, 1, 4, 16):
    weights = over_the_past(size / 4 * q @ k.T)
    print(f"largest score {size:2}: weights {weights[2]}, answer {(weights[2] @ v).item():.2f}")

# %% [markdown]
r"""
A score of 0 gives the average again. A score of 16 gives the plain look-up of a dictionary. In between, every weight
has a gradient, so training can move the weights towards the positions that help. This is the idea of attention: a
dictionary that can be learned.

The three maps are separate because a position plays three different roles. The word *has* searches for a name (query),
can be found as a verb (key), and passes on something else (value).

The layer is called *self*-attention because q, k and v come from the same sequence. In *cross*-attention the queries
come from another sequence: in a model that translates, the words of the translation look at the words of the original.
Without the mask, attention is *bidirectional*, as in BERT. A bidirectional model cannot be trained to predict the next
token, because it already sees that token.

You have just followed one *head* of attention.

## Why divide by √d?

The head works. Our queries and keys have d = 2 numbers, though, and GPT-2's have 64. A score is a sum of d products.
If the numbers in q and k are independent, with mean zero and variance one, then each product has variance one, and the
sum has variance d, and standard deviation √d (Vaswani et al. 2017, footnote 4). So wider heads have larger scores:
"""

# %%
for d in (4, 16, 64, 256):
    q, k = torch.randn(2, 20_000, d, generator=g)
    spread = (q * k).sum(dim=-1).std()
    print(f"d = {d:3}   standard deviation of q · k: {spread:5.1f}   √d: {d**0.5:4.1f}")

# %% [markdown]
r"""
We have just seen what large scores do: softmax gives nearly everything to one position. *Predict.* Let a query have 32
keys, with random scores of standard deviation 8, as at d = 64. What share of the weight does the largest score get, on
average? (Replace `None` by your guess, or run on and see.)
"""

# %%
predict("04.1", "share of softmax on the largest of 32 scores of deviation 8", guess=None)

# %%
draws = torch.randn(4000, 32, generator=g)
for deviation in (1, 8):
    p = (deviation * draws).softmax(dim=-1)
    largest, gradient = p.amax(-1).mean().item(), (p * (1 - p)).sum(-1).mean().item()
    print(f"deviation {deviation}: largest weight {largest:.2f}, gradient {gradient:.2f}")
answer("04.1", round(largest, 2))

# %% [markdown]
r"""
The second number is Σ p(1 − p), summed over the 32 weights of a query. Each term is the derivative of one weight with
respect to its own score, so the sum says how strongly the weights react to the scores. When one weight is nearly 1 and
the others are nearly 0, a small change of the scores changes almost nothing, and little of the gradient gets through.
Dividing each score by √d brings the deviation back to 1, at every width of head.

These are random numbers of variance one. In a real layer, the size of q and k depends on the weights, and the weights
change in training. So the argument needs a test: at the end of the chapter we train one model with the division and
one without it.

The next function computes the weights, with this division. It is the first one of this chapter that goes into the
package.
"""

# %%
#| export
#| blank attention_weights: scale the scores by √d, set the future to -inf, then softmax
import math

import torch
from torch import Tensor


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights: softmax of qkᵀ/√d over the past (Vaswani et al. 2017, §3.2.1).

    q, k: (..., T, d). Returns (..., T, T) on their device: row t sums to one over keys 0..t and is zero after t.
    """
    T, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # (..., T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


# %% [markdown]
r"""
*Check.* Every row must sum to one, and a change of later keys must not change earlier rows. We add 1 to keys 5, 6 and
7. Which rows may change?
"""

# %%
q, k = torch.randn(2, 8, 16, generator=g)  # (T, d)
before = attention_weights(q, k)
assert torch.allclose(before.sum(-1), torch.ones(len(q))), "a row does not sum to one"
k[5:] += 1.0
changed = (attention_weights(q, k) != before).any(dim=-1).nonzero().flatten().tolist()
print("rows that changed after keys 5, 6, 7 did:", changed)
assert changed == [5, 6, 7], f"rows {changed} changed, not [5, 6, 7]: is the future masked?"

# %% [markdown]
r"""
## Many heads

A head returns one weighted mean per position. The reader at the start of this chapter asked two questions at once,
*who* and *how many*. To fetch two things, a position needs two sets of weights: two heads. GPT-2 small has 12 heads in
each layer. They share the width: each works with C / 12 = 768 / 12 = 64 numbers per position, so all together cost as
much as one wide head. C must be divisible by the number of heads, so we check this first. In the code of the package,
C is called `n_embd` and the number of heads `n_head`.
"""


# %%
#| export
def head_size(config) -> int:
    """Width of one head, n_embd / n_head. Raises ValueError where the heads cannot share n_embd evenly."""
    if config.n_embd % config.n_head:
        what = f"n_embd={config.n_embd} cannot be shared by n_head={config.n_head} heads of equal width"
        raise ValueError(f"{what}; choose an n_head that divides n_embd")
    return config.n_embd // config.n_head


# %% [markdown]
r"""
The plainest version is a loop. Every head has its own three matrices, and the results are put side by side. (From here
on `config` holds the sizes. The next section explains its last three fields. Try `n_head=5`, too.)
"""

# %%
config = SimpleNamespace(n_embd=12, n_head=3, dropout=0.0, bias=True, flash=False)
B, T, C, d = 2, 6, config.n_embd, head_size(config)
x = torch.randn(B, T, C, generator=g)
w_q, w_k, w_v = torch.randn(3, config.n_head, C, d, generator=g)  # a (C, d) matrix for each head
heads = []
for h in range(config.n_head):
    heads.append(attention_weights(x @ w_q[h], x @ w_k[h]) @ (x @ w_v[h]))  # (B, T, d)
looped = torch.cat(heads, dim=-1)
print("one head:", tuple(heads[0].shape), " side by side:", tuple(looped.shape))

# %% [markdown]
r"""
One large product is faster on a GPU than many small ones, so GPT-2 computes all heads together. It puts the matrices
of all heads side by side into one, `c_attn`, whose output holds all queries, then all keys, then all values. We cut
this output into q, k and v, and each of them into heads. A matrix product works on the last two axes and treats all
earlier axes as a batch. So we move `n_head` in front of T, and the heads become part of the batch.
"""

# %%
#| export
#| blank split_heads: cut C in three, cut each third into heads, and move the heads before T
import torch.nn.functional as F
from torch import nn


def split_heads(x: Tensor, n_head: int) -> list[Tensor]:
    """c_attn's output, (B, T, 3·C), as q, k and v, (B, n_head, T, d) each: views, nothing is copied."""
    return [z.unflatten(2, (n_head, -1)).transpose(1, 2) for z in x.chunk(3, dim=2)]


# %%
side_by_side = [torch.cat(list(w), dim=1) for w in (w_q, w_k, w_v)]  # three of (C, C)
q, k, v = split_heads(x @ torch.cat(side_by_side, dim=1), config.n_head)
y = attention_weights(q, k) @ v  # (B, n_head, T, d)
together = y.transpose(1, 2).flatten(2)  # (B, T, C): the heads of a position side by side again
assert torch.allclose(together, looped, atol=1e-5), "the loop over heads gives something else"
print("q:", tuple(q.shape), " y:", tuple(y.shape), " together, as from the loop:", tuple(together.shape))

# %% [markdown]
r"""
## The layer

The layer in the package computes `q, k, v`, then `y`, then `together`, as the last cell did, but its weights can be
trained. `config.bias` says whether its two linear maps add a bias. It has three additions:

- **A second matrix, `c_proj`.** It mixes what the heads found. Without it, head 0 could write only to the first d
  channels of the output.
- **Dropout.** In training, each number is set to zero with a given probability, and the others are scaled up, so that the
  model cannot rely on a single one. The GPT-2 paper names no rate. GPT-1 used 0.1, and so does the default of Hugging
  Face's GPT-2. We train with 0.
- **A faster way to the same result.** With `flash`, PyTorch's `F.scaled_dot_product_attention` computes `y` from `q`, `k`
  and `v` in one step that never stores the (T, T) weights. It masks the future if it gets `is_causal=True`, and
  `dropout_p` is the rate at which it drops weights. Chapter 12 shows how it works. Without `flash`, the layer does what
  the last cell did.
"""


# %%
#| export
#| blank CausalSelfAttention.forward: split, attend (flash or by hand), join the heads (transpose, flatten), project
class CausalSelfAttention(nn.Module):
    """All heads of one layer at once (Vaswani et al. 2017, §3.2.2). (B, T, n_embd) -> (B, T, n_embd), causal.

    config has n_embd, n_head, dropout, bias, flash. Dropout, in training only, hits the weights and the output.
    """

    def __init__(self, config):
        super().__init__()
        self.n_head, self.head_size = config.n_head, head_size(config)
        self.dropout, self.flash = config.dropout, config.flash
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The joined heads are n_head · head_size wide: C here, and less where several GPUs share a layer's heads."""
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        if self.flash:  # the same sum in one kernel that never stores a (T, T) matrix: chapter 12
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            y = F.dropout(attention_weights(q, k), p) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


# %%
attention = CausalSelfAttention(config).eval()  # eval: without dropout
print({name: tuple(parameter.shape) for name, parameter in attention.named_parameters()})
print("in and out:", tuple(x.shape), tuple(attention(x).shape))

# %% [markdown]
r"""
A linear layer of PyTorch stores its matrix as (outputs, inputs), so `c_attn.weight` has 3·C rows and C columns.

**What it costs.** Every position has a score for every other, which makes T² scores. A text twice as long has four
times as many. More heads need no more multiplications, because each head is narrower. But each head has a (T, T)
matrix of weights of its own, and training keeps them all for the backward pass. The next cell computes the cost for
one layer of GPT-2 small (C = 768, 12 heads) on one text, in float32. A GFLOP is a billion multiplications or
additions, and a MiB is 2²⁰ bytes.
"""

# %%
for n in (512, 1024, 2048, 4096):  # T, the length of the text
    gflop = 4 * n * n * 768 / 1e9  # a multiply and an add for each of q · k and weights · v
    mib = 4 * n * n / 2**20  # 4 bytes for each weight of one head
    print(f"T = {n:4}: {gflop:4.1f} GFLOP; weights: {mib:2.0f} MiB a head, {12 * mib:3.0f} MiB in all")

# %% [markdown]
r"""
This is only the part that grows with T². The cost of the two linear layers grows with T, like the cost of everything
else in the model. Chapter 05 adds up all parts and shows at which length this one becomes the largest.

## Two laws

**The future does not move the past.** Above we tested this for the weights, by changing three keys. The *Jacobian*,
the matrix of all derivatives, tests every pair of an input and an output at once. The next cell also has a version of
the layer with a common bug. All its shapes fit, and nothing crashes. Find the bug before you look at the picture.
"""


# %%
class Buggy(CausalSelfAttention):
    def forward(self, x):
        q, k, v = split_heads(self.c_attn(x), self.n_head)
        y = attention_weights(q, k) @ v
        return self.c_proj(y.reshape(x.shape))


def influence(layer, x):
    """(T, T): the size of the derivative of output t by input s; x is (T, C)."""
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], x)  # (T, C, T, C)
    return jacobian.norm(dim=(1, 3))


# %%
ours, buggy = influence(attention, x[0]), influence(Buggy(config).eval(), x[0])
alt = "Influence of input position on output position: lower triangular for our layer, blocks above the diagonal for the buggy one."
show(figures.influence({"CausalSelfAttention": ours, "Buggy": buggy}), alt=alt)
leaks, found = int((ours.triu(1) > 0).sum()), int((buggy.triu(1) > 0).sum())
print(f"pairs in which a later input moves an earlier output: {leaks} in ours, {found} in the buggy one")
assert leaks == 0, "our layer sees its future: is the mask in attention_weights?"

# %% [markdown]
r"""
The darker a cell, the more this input moves this output. Our layer's matrix is zero above the diagonal. The buggy
layer's matrix is not. This layer turns (B, n_head, T, d) into (B, T, C) without `transpose(1, 2)`, so it puts
neighbouring *positions* of one head side by side, and early rows hold later positions: here row 1 holds what head 0
found at positions 3, 4 and 5. In training, such a model can read part of the answer, so its loss can be too low. When it
writes a text, there is no future to read, and the text is bad. A test of the shapes does not find this bug. The
derivatives do.

**The past has no order.** *Predict.* We shuffle all positions but the last, and look at the last output. Does it
change?
"""

# %%
predict("04.2", "same past, shuffled: does the last position's output change?", guess=None)

# %%
order = [*torch.randperm(x.size(1) - 1, generator=g).tolist(), x.size(1) - 1]  # the last position stays last
same = torch.allclose(attention(x[:, order])[:, -1], attention(x)[:, -1], atol=1e-6)
print(f"past in the order {order[:-1]}: the last output", "stays the same" if same else "changes")
answer("04.2", "no" if same else "yes")

# %% [markdown]
r"""
A weighted mean does not know in which order its terms came. For the word that follows, *Tom sees Ann* and *Ann sees
Tom* are the same past to one layer of attention. Several causal layers can work out some of the order (Haviv et al.
2022), but GPT-2 does not rely on this: it adds a vector for each position to the input. The experiment below does this
too, and chapter 05 returns to it.
"""

# %% [markdown]
r"""
## Learning to copy

What can a model do that has nothing but attention? We give it a task in which only the past helps. Each text is a row
of random characters, all different, that repeats until the text has 48 characters. On the first pass a model can only
guess. The second character of the repetition, and every later one, is certain for a model that finds where the
character before it occurred earlier, and reads the one that came *after* it there. The length of the row, its period,
is random, so counting back a fixed number of places does not help.
"""

# %%
alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
V, LENGTH, PERIODS, STEPS = len(alphabet), 48, (6, 24), 200
limit = min(LENGTH, V)
assert PERIODS[0] <= PERIODS[1] < limit, f"PERIODS={PERIODS} must be below {limit}, by LENGTH and alphabet"


def repeated(n, g):
    """n texts of distinct characters that repeat: ids (n, LENGTH), and their periods (n, 1)."""
    characters = torch.rand(n, V, generator=g).argsort(1)  # each row: all ids in random order
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (n, 1), generator=g)
    return characters.gather(1, torch.arange(LENGTH) % period), period


idx, period = repeated(3, g)
for row, p in zip(idx, period):
    print("".join(alphabet[i] for i in row), " period", p.item())

# %% [markdown]
r"""
The model turns each character and each position into a vector, and adds the two. Then come the layers of attention.
Each layer adds its output to its input, so nothing is lost. (The LayerNorm before each layer keeps the size of the
numbers steady; chapter 05 explains it.) A last matrix turns each vector into scores for the next character, one for
each of the V = 64 characters.
"""


# %%
class AttentionOnly(torch.nn.Module):
    def __init__(self, n_layer, n_embd=64, n_head=2):
        super().__init__()
        config = SimpleNamespace(n_embd=n_embd, n_head=n_head, dropout=0.0, bias=False, flash=False)
        self.wte, self.wpe = torch.nn.Embedding(V, n_embd), torch.nn.Embedding(LENGTH, n_embd)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(n_embd) for _ in range(n_layer))
        self.layers = torch.nn.ModuleList(CausalSelfAttention(config) for _ in range(n_layer))
        self.head = torch.nn.Linear(n_embd, V, bias=False)

    def embed(self, idx):
        return self.wte(idx) + self.wpe(torch.arange(idx.size(1)))  # (B, T, n_embd)

    def forward(self, idx):
        x = self.embed(idx)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x)


def losses(model, idx, period):
    """The loss in nats over all characters, and over those that a perfect model is sure of."""
    logits = model(idx[:, :-1])
    each = F.cross_entropy(logits.transpose(1, 2), idx[:, 1:], reduction="none")  # (B, T-1)
    return each.mean(), each[torch.arange(1, LENGTH) > period].mean()


# %% [markdown]
r"""
We train on fresh texts in every step, with the usual loop: loss, gradient, update. The texts come from a generator of
their own, with another seed than the weights. With one seed for both, weights and texts would be made from the same
random numbers.

*Predict.* How many layers of attention does a model need to copy?
"""

# %%
predict("04.3", "layers needed to copy random letters", guess=None)


# %%
def fresh(kind, n_layer):
    torch.manual_seed(1)  # models of the same shape begin with the same weights
    return kind(n_layer)


def train(model, steps=None, lr=0.01):
    """Train the model, for STEPS steps by default. Returns the loss on the repeated characters at each step."""
    texts, curve = torch.Generator().manual_seed(2), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps or STEPS):
        loss, on_repeats = losses(model, *repeated(48, texts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(on_repeats.item())
    return curve


# %% [markdown]
r"""
We train a model with one layer and a model with two. The plot shows the loss on the characters that are certain. Its
two dotted lines are the losses of two guesses: among all 64 characters, ln 64 = 4.16 nats, and among the characters of
the row, ln *period*, which is 2.57 on average.
"""

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)  # sums in one order, so that the same numbers come out on any number of cores
one, two = fresh(AttentionOnly, 1), fresh(AttentionOnly, 2)
curves = {"1 layer": train(one), "2 layers": train(two)}

period = repeated(1000, g)[1]
certain = torch.arange(1, LENGTH) > period
guess = period.log().expand_as(certain)[certain].mean().item()  # nats of a guess among `period` characters
lines = {"ln V: any character": math.log(V), "one of those that occurred": guess}
show(figures.learning(curves, lines), alt="With one layer the loss stays above 3; with two it falls to zero.")

# %%
learned = [name for name, curve in curves.items() if sum(curve[-20:]) / 20 < 0.5]
answer("04.3", " and ".join(learned) or "none: more STEPS, or another lr")

# %% [markdown]
r"""
Two layers learn to copy: their loss falls nearly to zero. After the same 200 steps, one layer still does worse than a
guess among the characters of the row. (Is it only slower? See "To explore".)

Why? Follow the letter `k` when it comes for the second time. The model must find the position *after* the first `k`.
In one layer, each key is made from its own position's vector, which contains its character and its place in the text.
The vector does not say that the character before was a `k`. So the query of `k` can find the first `k`, but not the
position after it.

With two layers, the first can prepare the search: each position fetches the character *before* it and adds it to its
own vector. Then the second layer can search for a position that carries the note "the character before me is a `k`".
Such a head of the second layer is called an *induction head* (Elhage et al. 2021; Olsson et al. 2022).

This explanation can be tested. If the first layer is needed only to fetch the character before, then one layer must be
enough for a model to which we *give* this character. *Predict:* will one layer be enough?
"""


# %% tags=["nbval-ignore-output"]
class Told(AttentionOnly):
    """Each position also gets a vector for the character before it."""

    def __init__(self, n_layer, n_embd=64):
        super().__init__(n_layer, n_embd)
        self.before = torch.nn.Embedding(V, n_embd)

    def embed(self, idx):
        before = F.pad(idx[:, :-1], (1, 0))  # shifted by one; the first position gets id 0
        return super().embed(idx) + self.before(before)


told = fresh(Told, 1)
curves["1 layer, told"] = train(told)
show(figures.learning(curves, lines), alt="One layer that is told the character before falls to zero first.")

# %% [markdown]
r"""
One layer is enough when it is told the character before. It has only half of the trick left to learn, and it learns
earlier than the two layers. (Olsson et al. did a similar experiment with "smeared keys", which mix each key with the
one before it.) So the first of two layers may be needed only to fetch the character before. Nobody built this in. Did
our model with two layers really learn it?

## Where the heads look

To see where a trained model looks, we need its attention weights. The layer uses them inside and does not return them.
So we run the model step by step, as its `forward` does, and compute the weights on the side.
"""


# %%
@torch.no_grad()
def attention_maps(model, idx):
    """The attention weights of each layer, (B, n_head, T, T)."""
    maps, x = [], model.embed(idx)
    for norm, layer in zip(model.norms, model.layers):
        q, k, _ = split_heads(layer.c_attn(norm(x)), layer.n_head)
        maps.append(attention_weights(q, k))
        x = x + layer(norm(x))
    return maps


idx, period = repeated(256, g)
maps = attention_maps(two, idx)
print("layers:", len(maps), " weights of each:", tuple(maps[0].shape))

# %% [markdown]
r"""
We ask two questions about each head. How much weight is on the position just before? (We count only the first 24
positions, because no period is longer, so they hold the first copy of every row.) And how much is on the position
after an earlier copy of the current character, where there is one? `found` marks these positions: row t, column s,
where the character before s is the character at t.
"""

# %% tags=["nbval-ignore-output"]
before = F.pad(idx[:, :-1], (1, 0), value=-1)  # the character before each position; none before the first
found = (before[:, None, :] == idx[:, :, None]).tril()  # (B, T, T)
certain = torch.arange(LENGTH) > period  # (B, T)
one_back, after_copy = [], []  # for each layer, a number for each head
for w in maps:  # (B, n_head, T, T)
    on_last = w.diagonal(-1, 2, 3)  # (B, n_head, T-1): the weight of each position on the one before
    one_back.append(on_last[..., : PERIODS[1] - 1].mean((0, 2)))
    copied = (w * found[:, None]).sum(-1)  # (B, n_head, T): the weight on marked positions
    after_copy.append(copied.transpose(0, 1)[:, certain].mean(1))
print("weight on the one before\n", torch.stack(one_back))
print("weight after a copy\n", torch.stack(after_copy))
fetches, copies = one_back[0].argmax().item(), after_copy[-1].argmax().item()

# %% [markdown]
r"""
In both tables, a row is a layer and a column is a head. One head of layer 0 puts more than three quarters of its
weight on the position before. Both heads of layer 1 put nearly all of theirs on the position after a copy: these are
induction heads. (The other head of layer 0 does neither. Which head gets which job depends on the random start.)

A head may look at the right place without being of any use to the model. So we switch off one head at a time, by
setting to zero the columns of `c_proj` that read its output, and measure the loss. The first line has all heads.
"""


# %% tags=["nbval-ignore-output"]
two.requires_grad_(False)
print(f"with all heads           {losses(two, idx, period)[1]:5.2f} nats")
for i, layer in enumerate(two.layers):
    for h in range(layer.n_head):
        columns = layer.c_proj.weight[:, h * layer.head_size : (h + 1) * layer.head_size]
        kept = columns.clone()
        columns.zero_()
        print(f"without layer {i}, head {h}  {losses(two, idx, period)[1]:5.2f} nats")
        columns.copy_(kept)

# %% [markdown]
r"""
Without the head that fetches the character before, the copy is lost completely: the model does worse than a guess
among all 64 characters. Without the other head of layer 0 the loss changes little. The two induction heads share their
work, so without one of them the loss is between these two.

The model has never seen a word. Does it do the same on a sentence? Here are the two heads on a sentence written twice.
Each row is a character that looks, each column a character that it can look at. A dot is a space.
"""


# %% tags=["nbval-ignore-output"]
def ids(text):
    return torch.tensor([[alphabet.index(c) for c in text if c in alphabet][:LENGTH]], dtype=torch.long)


text = "Ann sat. Ann sat."
maps = attention_maps(two, ids(text))
pair = {"the one before": maps[0][0, fetches], "after a copy": maps[-1][0, copies]}
alt = "Two attention maps on a sentence written twice: a head of layer 0 looks one character back, a head of layer 1 looks, in the second copy, at the character after the same one in the first."
show(figures.head_maps(text, pair), alt=alt)
predicted = [alphabet[i] for i in two(ids(text))[0].argmax(-1)]
print(f"read      {list(text[9:-1])}\nnext      {list(text[10:])}\npredicted {predicted[9:-1]}")

# %% [markdown]
r"""
On the left, the dark diagonal is one place below the main one: each character looks at the one before. On the right,
most rows of the first copy look at position 0. They have nothing to find, but weights must sum to one, so they must
look somewhere (this place is called an *attention sink*, Xiao et al. 2023). The second `n` and the second space
already find an earlier copy. The rows of the second sentence look at the first one, one character further on.

Where is the prediction wrong? It is wrong after characters that came more than once: the `n` of *Ann* and the space.
The head matches one character, not two, so it finds the characters that followed each of the earlier ones. After the
space it divides its weight between `s` and `A`, and in our run the model answers `E`, which is not in the text at all.
*Predict:* in `the cat sat. the cat sat`, which earlier characters does layer 1 look at from the second `c`, and from
the last `a`? Look, then type a sentence of your own, with a repetition in it. (Characters outside the alphabet are
left out, and at most 48 are read.)
"""


# %% tags=["nbval-ignore-output"]
figures.map_widget("the cat sat. the cat sat", alphabet, lambda text: attention_maps(two, ids(text)))

# %% [markdown]
r"""
The second `c` looks at the `a` after the first `c`. The last `a` has three earlier ones, and divides its weight among
the `t`s that follow them.

## Ann has …

Now back to the question at the start of the chapter. We give the trained model three facts in characters that it
knows: `a7` (Ann, seven), `t2` (Tom, two), `e5` (Eve, five). Then we ask for one of the names. The model was not
trained on such texts: nothing here repeats with a fixed period.
"""


# %% tags=["nbval-ignore-output"]
def right(model, n=500):
    """The share of right answers on n random texts of the form a7t2e5t: three pairs, and one of the first halves again."""
    g = torch.Generator().manual_seed(3)
    facts = torch.rand(n, V, generator=g).argsort(1)[:, :6]  # six distinct characters: three pairs
    asked = 2 * torch.randint(3, (n, 1), generator=g)  # the place of the name that is asked for
    text = torch.cat([facts, facts.gather(1, asked)], dim=1)  # (n, 7)
    said = model(text)[:, -1].argmax(-1)
    return (said == facts.gather(1, asked + 1)[:, 0]).float().mean().item()


for name in "ate":
    print(f"a7t2e5{name} ->", alphabet[two(ids("a7t2e5" + name))[0, -1].argmax()])
for name, model in {"1 layer": one, "2 layers": two, "1 layer, told": told}.items():
    print(f"{name:14} {right(model):4.0%} right on 500 random texts of this form")

# %% [markdown]
r"""
The model with two layers looks up who has how many, for names and numbers drawn at random. So does the layer that is
told the character before. The plain model with one layer does worse than a guess among the three numbers, which would
be right one time in three. Here is how the two layers do it. The bottom row is the input, the rows above are the
positions after layer 0 and after layer 1. A line shows where a head looks, one head in each layer; the thicker it is,
the more weight it has.
"""

# %% tags=["nbval-ignore-output"]
text = "a7t2e5t"
maps = attention_maps(two, ids(text))
alt = "Three rows of the characters a7t2e5t. From the last t in the top row a thick line goes down to 2, and from 2 a thick line goes down to the t before it."
show(figures.hops(text, maps[0][0, fetches], maps[-1][0, copies]), alt=alt)

# %% [markdown]
r"""
Read it from the top right. The last `t` looks at `2` (red), because layer 0 has fetched for `2` the `t` before it
(blue). This takes two hops. One layer alone cannot do it, because the `2` itself does not say whose it is. (The first
`a` looks at itself: it has no other position.)

In the sentence *Ann has seven marbles. Tom has two. Ann has …* there is a word between the name and the number. The
same two hops work if the first layer has one head that looks one word back, and one head that looks two words back. We
do not train this one; we write it down. Words are one-hot vectors (a 1 in the word's own column, 0 elsewhere), and a
head that looks back n words shifts them by n. The factor 8 makes the softmax nearly a look-up, as in the example with
five columns.
"""

# %%
vocabulary = sorted(set(story))
words = F.one_hot(torch.tensor([vocabulary.index(w) for w in story])).float()  # (T, V)
one_back = F.pad(words, (0, 0, 1, 0))[:-1]  # a head of layer 0: the word before
two_back = F.pad(words, (0, 0, 2, 0))[:-2]  # another head of layer 0: the word before that
weights = over_the_past(8 * one_back @ two_back.T)  # layer 1: query "one back", key "two back"
for word, weight in zip(story, weights[-1]):
    print(f"{word:8} {weight:.3f}")
print(*story[-2:], "...", vocabulary[(weights[-1] @ words).argmax()])

# %%
arcs = [(10, 9, "C0", "one back"), (2, 0, "C0", "two back"), (10, 2, "C3", "whose “two back” is Ann?")]
show(figures.sentence([*story, "?"], arcs), alt="Arcs from 'has' and seven to Ann, and from 'has' to seven.")

# %% [markdown]
r"""
The last *has* asks: which position has *Ann* two words back, as I have her one word back? Only *seven* does. This
completes the example with five columns: the first layer fetches whose number is wanted and whose number this is, and
W_q and W_k of the second layer read it. With *Tom has …* at the end, the same two layers say *two*. Try it: put *Tom*
in place of the last *Ann* in `story`, at the top, and run that cell and the last two again.

In chapter 07 a model trains on thousands of stories that ask who has how many, and nobody writes its heads by hand. Does it need two
hops? Only if nothing else gives the owner away. Chapter 07b takes the trained model apart and finds out.

## Training without the division by √d

One question is left: does the division by √d matter in training? We train the model of two layers again, from the same
weights, on the same texts, but we cancel the division: we multiply q by √d. A *hook* does this without a change of the
layer: PyTorch calls it with the output of `c_attn`, and uses its return value in place of this output.
"""


# %% tags=["nbval-ignore-output"]
def undivide(module, args, out):
    q, k, v = out.chunk(3, dim=2)
    return torch.cat([q * math.sqrt(two.layers[0].head_size), k, v], dim=2)


def fresh_undivided():
    model = fresh(AttentionOnly, 2)
    for layer in model.layers:
        layer.c_attn.register_forward_hook(undivide)
    return model


pair = {"divided by √d": curves["2 layers"], "not divided": train(fresh_undivided())}
show(figures.learning(pair, lines), alt="With the division the loss falls earlier and lower than without.")

# %% [markdown]
r"""
Without the division the same model learns later, and is far behind after the same number of steps. Or is 0.01 only the
wrong rate for it? A comparison at one learning rate proves little, so we train both at half and at a quarter of the
rate as well, and print the mean loss of the last 20 steps.
"""

# %% tags=["nbval-ignore-output"]
runs = {0.01: list(pair.values())}
for lr in (0.005, 0.0025):
    runs[lr] = [train(fresh(AttentionOnly, 2), lr=lr), train(fresh_undivided(), lr=lr)]
print("rate    divided  not divided")
for lr, (divided, undivided) in runs.items():
    print(f"{lr:<8}{sum(divided[-20:]) / 20:6.2f}{sum(undivided[-20:]) / 20:10.2f}")

# %% [markdown]
r"""
The division is ahead at every rate. At 0.01 the two look furthest apart. With the best rate for each, 0.01 and 0.005, it is still
0.07 against 0.86. The undivided model could compute the same function: a smaller W_q would do what the division does. So the division does not
change what attention can express. It changes how fast this model *learns*.

## Checkpoint
"""

# %%
predictions("04")

# %%
checkpoint("04")

# %% [markdown]
r"""
## Exercises

`course exercises release 04` writes these as a notebook to `released/`; `course check 04` runs their visible checks.

- **04-1** Two bugs in four lines, 10 minutes: repair the attention of a model that may read its question in both directions.
- **04-2** Shapes that fit, 15 minutes: repair heads that were cut by `reshape` alone, in GPT-NeoX's layout.
- **04-3** How far scores spread, 25 minutes: derive the deviation of q · k where the mean is not zero.
- **04-4** A window on the past, 25 minutes: sliding-window attention, and a formula for what it costs.
- **04-5** A check for causality, 30 minutes: write the check that finds a layer which sees its future.
- **04-6** Could the weights do it?, 10 minutes: say what is lost without the division by √d.

To explore:

- Give the model wider heads, `AttentionOnly(2, n_embd=128)`, with and without the division. Does the difference grow with d,
  as the argument says?
- Is one layer only slower? `train(fresh(AttentionOnly, 1), steps=6000)` takes some minutes. Where does it end, compared with
  a guess among the characters that occurred? Split its loss by period. At which periods is it better than a guess, and how
  can it be?
- Give the two-layer model `window_weights` of exercise 04-4 with 16 positions. The influence matrix of one layer
  is then a band. Which periods does the model still copy?
- After chapter 07, load the trained model and compute `found` on stories in place of random characters. Compare
  each head with what an average of the past would put there. Did the model learn an induction head from stories, too?

## Further reading

- D. Bahdanau, K. Cho, Y. Bengio, [*Neural Machine Translation by Jointly Learning to Align and Translate*](https://arxiv.org/abs/1409.0473), 2014, §3.1:
  attention before the Transformer.
- A. Vaswani et al., [*Attention Is All You Need*](https://arxiv.org/abs/1706.03762), 2017, §3.2: scaled dot products, heads, and footnote 4 on √d.
- N. Elhage et al., [*A Mathematical Framework for Transformer Circuits*](https://transformer-circuits.pub/2021/framework/index.html), 2021: what one and two layers can do.
- C. Olsson et al., [*In-context Learning and Induction Heads*](https://arxiv.org/abs/2209.11895), 2022: the sudden fall in large models, and smeared keys.
- A. Haviv et al., [*Transformer Language Models without Positional Encodings Still Learn Positional Information*](https://arxiv.org/abs/2203.16634), 2022.
- G. Xiao et al., [*Efficient Streaming Language Models with Attention Sinks*](https://arxiv.org/abs/2309.17453), 2023, §3.1.
"""
