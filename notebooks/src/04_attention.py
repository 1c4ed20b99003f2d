# %% [markdown]
r"""
# 04 · Attention: fetch what an earlier position knows

*Ann has seven marbles. Tom has two. Ann has …* The next word stands seven words back, and in the next story it
stands somewhere else. A model that sees only the last word cannot know it: after *has*, any number is as good
as another. Each position needs a way to fetch something from an earlier one, from a place that it chooses by
what stands there. It must never fetch from a later one, since that is what the model is asked to guess.
"""

# %%
#| default_exp attention
#| doc attention: Causal self-attention, from weights over the past to many heads.
from io import BytesIO
from types import SimpleNamespace

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from course.notebook import checkpoint, show
from nanogpt.device import seed_everything

g = seed_everything(0)

# %%
words = ["Ann", "has", "seven", "marbles", ".", "Tom", "has", "two", ".", "Ann", "has", "?"]
at, x = [], 0.0
fig, ax = plt.subplots(figsize=(7, 1.8))
for word in words:
    at.append(x + len(word) / 2)
    ax.text(at[-1], 0, word, ha="center", va="top", family="monospace")
    x += len(word) + 1.2
for asks, found, colour, text, shift in [(9, 0, "C0", "the same name", -5), (11, 2, "C3", "how many?", 5)]:
    arc = dict(arrowstyle="->", connectionstyle="arc3,rad=0.3", color=colour, lw=2)
    ax.annotate("", (at[found], 0.1), (at[asks], 0.1), arrowprops=arc)
    ax.text((at[asks] + at[found]) / 2 + shift, 1.75, text, color=colour, ha="center")
ax.set(xlim=(0, x), ylim=(-0.4, 2.1))
ax.axis("off")
show(
    fig,
    alt="A sentence with two arcs: from the second Ann back to the first, and from the unknown word back to seven.",
)

# %% [markdown]
r"""
## Predict

Write three answers down before you run on.

1. Take 32 random scores with standard deviation 8. Which share of their softmax falls on the largest?
2. If the words before the last one are shuffled, does attention's output at the last position change?
3. A model sees random letters and then the same letters once more. How many attention layers does it need to
   predict the second half?

## Build: from an average to a head

The plainest way to use the past is to average it. Four positions, two numbers each:
"""

# %%
x = torch.tensor([[2.0, 0.0], [4.0, 2.0], [0.0, 4.0], [2.0, 2.0]])  # (T, C)
T, C = x.shape
averages = torch.zeros(T, C)
for t in range(T):
    averages[t] = x[: t + 1].mean(dim=0)
print(averages)

# %% [markdown]
r"""
A loop over positions leaves a GPU idle. The same sums are one matrix product: row *t* of a triangular matrix
holds the weights with which position *t* looks at positions 0 … *t*.
"""

# %%
weights = torch.ones(T, T).tril()
weights = weights / weights.sum(dim=1, keepdim=True)  # (T, T), rows sum to one
print(weights)
assert torch.allclose(weights @ x, averages)

# %% [markdown]
r"""
Now the step that makes the weights *learnable*. Give every pair of positions a score, put −∞ where the key lies
in the future, and let softmax turn each row into weights. Equal scores give the average back.
"""

# %%
future = torch.ones(T, T, dtype=torch.bool).triu(1)
scores = torch.zeros(T, T).masked_fill(future, float("-inf"))
print(scores)
assert torch.allclose(scores.softmax(dim=-1), weights)

# %% [markdown]
r"""
Scores that are not equal give any weighting of the past, and still nothing of the future:
"""

# %%
scores = torch.randn(8, 8, generator=g) * 1.5
masked = scores.masked_fill(torch.ones(8, 8, dtype=torch.bool).triu(1), float("-inf"))
average = torch.ones(8, 8).tril() / torch.arange(1, 9).unsqueeze(1)
fig, axes = plt.subplots(1, 3, figsize=(7, 2.7))
for ax, matrix, title in zip(
    axes,
    [average, masked, masked.softmax(-1)],
    ["average of the past", "scores, future masked", "their softmax"],
):
    cmap = "RdBu" if title.startswith("scores") else "Blues"
    ax.imshow(matrix, cmap=cmap, vmin=-4 if cmap == "RdBu" else 0, vmax=4 if cmap == "RdBu" else 1)
    ax.set(title=title, xlabel="key (looked at)", xticks=range(0, 8, 2), yticks=range(0, 8, 2))
    ax.set_facecolor("0.9")  # shows where the score is −∞
    ax.grid(False)
axes[0].set_ylabel("query (looks)")
show(
    fig,
    alt="Three 8 by 8 matrices, lower triangles only: the uniform average, random scores with the future masked, and the softmax of those scores.",
)

# %% [markdown]
r"""
## Where do scores come from?

From content. Each position publishes a *key*, what it can be found by, and a *value*, what it hands over. It
also asks with a *query*. The score is the product q · k. Below, two positions say who has how many, and a third
asks for Tom. The answer is a weighted mean of values, and its sharpness grows with the length of the query:
"""

# %%
ann, tom = torch.eye(2)
keys, values = torch.stack([ann, tom]), torch.tensor([7.0, 2.0])
for length in (0, 1, 4, 16):
    found = (length * tom @ keys.T).softmax(dim=-1)
    print(f"|q| = {length:2}   weights {found[0]:.3f} {found[1]:.3f}   answer {found @ values:.2f}")

# %% [markdown]
r"""
This is a dictionary whose look-up has a gradient. In a model, queries, keys and values are three linear maps of
the same positions, so training decides what to look for, what to be found by and what to hand over.

## Why divide by √d?

A score is a sum of d products. If the numbers in q and k are independent with variance one, the variance of the
sum is d:
"""

# %%
for d in (4, 16, 64, 256):
    q, k = torch.randn(2, 20_000, d, generator=g)
    print(f"d = {d:3}   standard deviation of q · k: {(q * k).sum(-1).std():5.1f}   √d: {d**0.5:4.1f}")

# %% [markdown]
r"""
GPT-2's heads have d = 64, so scores of ±8 would be ordinary. What softmax makes of them was question 1. The
second line below is the trace of softmax's Jacobian, Σ p(1−p): how much gradient comes through.
"""

# %%
draws = torch.randn(5000, 32, generator=g)  # 32 keys
spread = torch.logspace(-1, 1.5, 60)
p = (spread[:, None, None] * draws).softmax(-1)  # (60, draws, keys)
fig, ax = plt.subplots(figsize=(6, 3))
ax.semilogx(spread, p.amax(-1).mean(1))
ax.semilogx(spread, (p * (1 - p)).sum(-1).mean(1))
ax.text(0.1, 0.2, "weight on the largest score", color="C0")
ax.text(0.1, 0.8, "gradient let through, Σ p(1−p)", color="C1")
for at, text in [(1, "divided by √64"), (8, "as they come")]:
    ax.axvline(at, c="gray", ls=":")
    ax.text(at * 1.05, 1.03, text, color="gray", fontsize=9)
ax.set(xlabel="standard deviation of the scores (32 keys)", ylabel="weight, gradient", ylim=(0, 1.12))
show(
    fig,
    alt="As the scores spread, the largest takes nearly all the weight and the gradient that softmax lets through falls; standard deviations 1 and 8 are marked.",
)
for at in (8, 1):
    p = (at * draws).softmax(-1)
    print(
        f"standard deviation {at}: largest {p.amax(-1).mean():.2f}, gradient {(p * (1 - p)).sum(-1).mean():.2f}"
    )

# %% [markdown]
r"""
Undivided, a head has made up its mind before it has learned anything, and the gradient that could change it is
mostly gone. So the division belongs where scores are made, and the finished weights are:
"""

# %%
#| export
import math

import torch
from torch import Tensor


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights: softmax of qkᵀ/√d over the past (Vaswani et al. 2017, §3.2.1).

    q, k: (..., T, d). Returns (..., T, T): row t sums to one over keys 0..t and is zero after t.
    """
    T, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # (..., T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


# %% [markdown]
r"""
*Check.* Two laws at once: rows sum to one, and changing the future does not change the past.
"""

# %%
q, k = torch.randn(2, 8, 16, generator=g)  # (T, d)
before = attention_weights(q, k)
assert torch.allclose(before.sum(-1), torch.ones(8))
k[5:] += 1.0
changed = (attention_weights(q, k) != before).any(dim=-1)
print("rows that changed after keys 5, 6, 7 did:", changed.nonzero().flatten().tolist())

# %% [markdown]
r"""
## One head, many heads

A head is these weights applied to values.
"""


# %%
def one_head(x, w_q, w_k, w_v):
    """(B, T, C) and three (C, d) matrices -> (B, T, d)."""
    return attention_weights(x @ w_q, x @ w_k) @ (x @ w_v)


B, T, C, n_head = 2, 6, 12, 3
d = C // n_head
x = torch.randn(B, T, C, generator=g)
w_q, w_k, w_v = torch.randn(3, n_head, C, d, generator=g)  # a (C, d) matrix for each head
print("one head:", tuple(one_head(x, w_q[0], w_k[0], w_v[0]).shape))

# %% [markdown]
r"""
A head returns one mean per position. To fetch both *who* and *how many* a position needs two sets of weights:
two heads. GPT-2 small has 12 per layer, each of width d = C / 12, so that together they cost as much as one head
of full width. First as a loop:
"""

# %%
looped = torch.cat([one_head(x, w_q[h], w_k[h], w_v[h]) for h in range(n_head)], dim=-1)
print("heads side by side:", tuple(looped.shape))

# %% [markdown]
r"""
Then without one. Put the heads' matrices side by side, multiply once, and give the heads an axis of their own.
Matrix products work on the last two axes, so `n_head` moves in front of T and behaves like a batch.
"""

# %%
side_by_side = [torch.cat(list(w), dim=1) for w in (w_q, w_k, w_v)]  # three (C, C)
q, k, v = [(x @ w).view(B, T, n_head, d).transpose(1, 2) for w in side_by_side]
y = attention_weights(q, k) @ v
print("q:", tuple(q.shape), " weights:", tuple(attention_weights(q, k).shape), " y:", tuple(y.shape))
together = y.transpose(1, 2).reshape(B, T, C)
assert torch.allclose(together, looped, atol=1e-5)
print("heads apart and together differ by less than 1e-5")

# %% [markdown]
r"""
GPT-2 goes one step further: one matrix, `c_attn`, makes queries, keys and values at once. A second one,
`c_proj`, mixes what the heads found, since side by side head 0 could only ever write to the first d channels.
The heads must share the width evenly, which is the first thing to check.
"""


# %%
#| export
def head_size(config) -> int:
    """Width of one head, n_embd / n_head. Raises ValueError where the heads cannot share n_embd evenly."""
    if config.n_embd % config.n_head:
        raise ValueError(
            f"n_embd={config.n_embd} cannot be shared by n_head={config.n_head} heads of equal width; "
            "choose an n_head that divides n_embd"
        )
    return config.n_embd // config.n_head


# %%
print("GPT-2 small:", head_size(SimpleNamespace(n_embd=768, n_head=12)))
try:
    head_size(SimpleNamespace(n_embd=768, n_head=10))
except ValueError as error:
    print(error)

# %%
#| export
import torch.nn.functional as F
from torch import nn


def split_heads(x: Tensor, n_head: int) -> list[Tensor]:
    """c_attn's output, (B, T, 3·C), as q, k and v, (B, n_head, T, d) each: views, nothing is copied."""
    return [z.unflatten(2, (n_head, -1)).transpose(1, 2) for z in x.chunk(3, dim=2)]


# %%
#| export
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

    def forward(self, x: Tensor, cache=None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        if cache is not None:  # keys and values of earlier tokens, kept since they were computed: chapter 08
            k, v, past = cache(k, v)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=past)
        elif self.flash:  # the same sum in one kernel that never stores a (T, T) matrix: chapter 12
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            y = F.dropout(attention_weights(q, k), p) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


# %%
config = SimpleNamespace(n_embd=12, n_head=3, dropout=0.0, bias=True, flash=False)
attention = CausalSelfAttention(config)
for name, parameter in attention.named_parameters():
    print(f"{name:14} {tuple(parameter.shape)}")
print("in and out:", tuple(x.shape), tuple(attention(x).shape))

# %% [markdown]
r"""
## Check: laws

**Which input can move which output?** The Jacobian answers for all pairs at once. Beside our layer stands one
with a bug, in a line that is often written so. All shapes fit and nothing crashes. Find the bug before you look
at the picture.
"""


# %%
class Buggy(CausalSelfAttention):
    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (z.view(B, T, self.n_head, -1).transpose(1, 2) for z in self.c_attn(x).split(C, dim=2))
        y = attention_weights(q, k) @ v
        return self.c_proj(y.reshape(B, T, C))


def influence(layer, x):
    """(T, T): the size of the derivative of output t by input s; x is (T, C)."""
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], x)  # (T, C, T, C)
    return jacobian.norm(dim=(1, 3))


# %%
one = x[0]  # (T, C)
correct, buggy = influence(attention, one), influence(Buggy(config), one)
fig, axes = plt.subplots(1, 2, figsize=(6, 2.9))
for ax, matrix, title in zip(axes, [correct, buggy], ["CausalSelfAttention", "Buggy"]):
    ax.imshow(matrix, cmap="Blues", vmin=0)
    ax.set(title=title, xlabel="input position", ylabel="output position")
    ax.grid(False)
show(
    fig,
    alt="Influence of input position on output position: lower triangular for our layer, blocks above the diagonal for the buggy one.",
)
print(
    "future inputs that move an output: ",
    int((correct.triu(1) > 0).sum()),
    "in ours,",
    int((buggy.triu(1) > 0).sum()),
    "in the buggy one",
)

# %% [markdown]
r"""
`(B, n_head, T, d)` reshaped without `transpose(1, 2)` puts neighbouring *positions* of one head side by side, so
early rows hold later positions. In training such a model can read part of the answer, so its loss looks good; when
it writes, there is no future to read. A test on shapes passes. The law does not.

**Heads have no order.** Permute the heads' weights, on both sides, and nothing changes:
"""


# %%
def permute_heads(layer, order):
    """Reorder the heads: their rows of c_attn, in q, k and v alike, and their columns of c_proj."""
    d, C = layer.head_size, layer.n_head * layer.head_size
    channels = torch.cat([torch.arange(h * d, (h + 1) * d) for h in order])
    rows = torch.cat([part * C + channels for part in range(3)])
    with torch.no_grad():
        layer.c_attn.weight.copy_(layer.c_attn.weight[rows])
        layer.c_attn.bias.copy_(layer.c_attn.bias[rows])
        layer.c_proj.weight.copy_(layer.c_proj.weight[:, channels])


before = attention(x)
permute_heads(attention, [2, 0, 1])
assert torch.allclose(attention(x), before, atol=1e-6)
print("heads permuted: same output")

# %% [markdown]
r"""
**The past has no order.** Question 2. A weighted mean does not know where its terms stood:
"""

# %%
shuffled = x[:, [3, 0, 4, 1, 2, 5]]  # the last position stays last
assert torch.allclose(attention(shuffled)[:, -1], attention(x)[:, -1], atol=1e-6)
print("past shuffled: same output at the last position")

# %% [markdown]
r"""
To a layer of attention *Tom sees Ann* and *Ann sees Tom* are the same past. A stack of causal layers can work some of
the order out (Haviv et al. 2022); GPT-2 is told. Chapter 05 adds a vector for each position to the input, and so does
the experiment below.

**One kernel or four steps.** `flash=True` calls PyTorch's fused kernel. It must give the same output and the same
gradients. What differs is time and memory, the subject of chapter 12.
"""

# %%
fused = CausalSelfAttention(SimpleNamespace(**vars(config) | {"flash": True}))
fused.load_state_dict(attention.state_dict())
for layer in (attention, fused):
    layer.zero_grad()
    layer(x).square().sum().backward()
assert torch.allclose(attention(x), fused(x), atol=1e-5)
for ours, theirs in zip(attention.parameters(), fused.parameters()):
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-4)
print("outputs and all gradients agree")

# %% [markdown]
r"""
## See: two layers learn to copy

Question 3. The data are random characters, 6 to 24 different ones, repeated to the end of the context. On the
first pass a model can only guess. From the second character of the repetition on, everything is certain for a
model that finds where the current character stood before and reads the one *after* it. The period is random, so
counting back a fixed distance does not help.
"""

# %%
alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
V, T = len(alphabet), 48


def repeated(n, g):
    """n sequences (n, T) of distinct characters that repeat, and their periods (n, 1)."""
    first = torch.rand(n, V, generator=g).argsort(1)[:, :T]
    period = torch.randint(6, 25, (n, 1), generator=g)
    return first.gather(1, torch.arange(T) % period), period


idx, period = repeated(3, g)
for row, p in zip(idx, period):
    print("".join(alphabet[i] for i in row), " period", p.item())

# %% [markdown]
r"""
The model is embeddings and attention, nothing else. Each layer adds its output to what is there.
"""


# %%
class AttentionOnly(torch.nn.Module):
    def __init__(self, n_layer, n_embd=64, n_head=2):
        super().__init__()
        config = SimpleNamespace(n_embd=n_embd, n_head=n_head, dropout=0.0, bias=False, flash=False)
        self.wte, self.wpe = torch.nn.Embedding(V, n_embd), torch.nn.Embedding(T, n_embd)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(n_embd) for _ in range(n_layer))
        self.layers = torch.nn.ModuleList(CausalSelfAttention(config) for _ in range(n_layer))
        self.head = torch.nn.Linear(n_embd, V, bias=False)

    def forward(self, idx):
        """(B, T) -> logits (B, T, V), and the attention weights of each layer, (B, n_head, T, T)."""
        x, maps = self.wte(idx) + self.wpe(torch.arange(idx.size(1))), []
        for norm, layer in zip(self.norms, self.layers):
            q, k, _ = layer.c_attn(norm(x)).unflatten(2, (3, layer.n_head, -1)).permute(2, 0, 3, 1, 4)
            maps.append(attention_weights(q, k))
            x = x + layer(norm(x))
        return self.head(x), maps


# %%
def losses(model, idx, period):
    """The loss in nats over all characters, and over those that a perfect model is sure of."""
    logits, _ = model(idx[:, :-1])
    loss = F.cross_entropy(logits.transpose(1, 2), idx[:, 1:], reduction="none")  # (B, T-1)
    return loss.mean(), loss[torch.arange(1, T) > period].mean()


def train(n_layer, steps=300, lr=0.01):
    """Returns the model, and its loss on the repeated characters of each step's fresh batch."""
    g = seed_everything(1)
    model, curve = AttentionOnly(n_layer), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(steps):
        loss, on_repeats = losses(model, *repeated(64, g))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        curve.append(on_repeats.item())
    return model, curve


torch.set_num_threads(1)  # matrices this small gain nothing from a second thread
runs = {n_layer: train(n_layer) for n_layer in (1, 2)}

# %% tags=["nbval-ignore-output"]
idx, period = repeated(1000, g)
certain = torch.arange(1, T) > period
seen = period.log().expand_as(certain)[certain].mean()  # nats, when all that is known is which ones occurred
fig, ax = plt.subplots(figsize=(6, 2.8))
for n_layer, (_, curve) in runs.items():
    ax.plot(curve, label=f"{n_layer} layer{'s' * (n_layer > 1)}")
    print(f"{n_layer} layer{'s' * (n_layer > 1)}: loss on repeated characters {curve[-1]:.2f} nats")
for y, text in [(math.log(V), "ln V: any character"), (seen, "one of those that occurred")]:
    ax.axhline(y, ls=":", c="gray")
    ax.text(298, y + 0.07, text, color="gray", ha="right")
ax.set(xlabel="step", ylabel="loss on repeats (nats)", ylim=(0, None))
ax.legend(loc="center right", bbox_to_anchor=(1, 0.35))
show(
    fig,
    alt="Loss on repeated characters: one layer stays above the line of characters that occurred, two layers fall steeply towards zero.",
)

# %%
assert runs[1][1][-1] > seen and runs[2][1][-1] < 0.2

# %% [markdown]
r"""
Two layers. With one, the key of a position can say which character stands *there*, but what the model must find is
the position *after* an earlier copy. That takes a first layer in which each position learns what stood before it,
and a second that searches for it: an *induction head* (Elhage et al. 2021; Olsson et al. 2022). The steep fall is
the moment when both halves fit together. Nobody built this in. Is it there? Measure where each head looks, and
what the loss becomes when that head is switched off:
"""

# %% tags=["nbval-ignore-output"]
model = runs[2][0].requires_grad_(False)
idx, period = repeated(256, g)
maps = model(idx)[1]
before = F.pad(idx[:, :-1], (1, 0), value=-1)  # the character before each position
found = (
    before[:, None, :] == idx[:, :, None]
).tril()  # (B, T, T): key s stands right after a copy of query t
certain = torch.arange(T) > period
print(f"{'weight on':15}  previous position   after an earlier copy   loss without the head")
for i, layer in enumerate(model.layers):
    for h in range(layer.n_head):
        w = maps[i][:, h]  # (B, T, T)
        previous = w.diagonal(-1, 1, 2)[:, :23].mean()  # the first copy ends there at the latest
        induction = (w * found).sum(-1)[certain].mean()
        columns = layer.c_proj.weight[:, h * layer.head_size : (h + 1) * layer.head_size]
        kept = columns.clone()
        columns.zero_()
        _, loss = losses(model, idx, period)
        columns.copy_(kept)
        print(f"layer {i}, head {h} {previous:18.2f} {induction:22.2f} {loss:22.2f}")
print(f"loss of the whole model {losses(model, idx, period)[1]:43.2f}")

# %% [markdown]
r"""
One head of layer 0 is a previous-position head, and without it the model is worse than a blind guess. Layer 1 is
two induction heads, which share the work.

The model has never seen a word. Does it do the same on a sentence? Row: the character that looks. Column: the
character looked at.
"""


# %%
def encode(text):
    """(1, T') ids of the characters that the alphabet has, at most T of them."""
    return torch.tensor([[alphabet.index(c) for c in text if c in alphabet][:T]])


def draw(ax, idx, weights):
    ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    characters = [alphabet[i].replace(" ", "·") for i in idx[0]]
    ax.set_xticks(range(len(characters)), characters, fontsize=7, family="monospace")
    ax.set_yticks(range(len(characters)), characters, fontsize=7, family="monospace")
    ax.grid(False)


# %% tags=["nbval-ignore-output"]
idx = encode("Tom likes figs. Tom likes figs")
logits, maps = model(idx)
fig, axes = plt.subplots(2, 2, figsize=(7, 7.2))
for i, h in [(0, 0), (0, 1), (1, 0), (1, 1)]:
    draw(axes[i, h], idx, maps[i][0, h])
    axes[i, h].set_title(f"layer {i}, head {h}")
show(
    fig,
    alt="Four attention maps on a sentence written twice; in layer 1 the second copy looks at the first, one character further on.",
)
right = logits[0, 16:-1].argmax(-1) == idx[0, 17:]
print(f"second copy: {right.sum()} of {len(right)} characters predicted")

# %% [markdown]
r"""
Two things to see in it. Layer 1 looks at position 0 when it has nothing to find: the weights must sum to one, so
a head at rest needs a place to look at (an *attention sink*, Xiao et al. 2023). And the previous-position head stops
where no first copy was still running in training. A head learns what its data needed, no more.

Type a sentence of your own, with a repetition in it, and choose a layer and a head. (Characters outside the
alphabet are left out; at most 48 are read.) What happens where a letter occurs twice within one copy?
"""


# %% tags=["nbval-ignore-output"]
import ipywidgets as widgets

knobs = {
    "sentence": widgets.Text("the cat sat. the cat sat", continuous_update=False),
    "layer": widgets.ToggleButtons(options=[0, 1]),
    "head": widgets.ToggleButtons(options=[0, 1]),
}
picture = widgets.Image(format="png", layout={"align_self": "flex-start"})


def look(_=None):
    idx = encode(knobs["sentence"].value)
    if idx.numel() == 0:
        return
    fig, ax = plt.subplots(figsize=(5, 5))
    draw(ax, idx, model(idx)[1][knobs["layer"].value][0, knobs["head"].value])
    ax.set(xlabel="key (looked at)", ylabel="query (looks)")
    png = BytesIO()
    fig.savefig(png)
    plt.close(fig)
    picture.value = png.getvalue()


for name, knob in knobs.items():
    knob.description = name
    knob.observe(look, "value")
look()
widgets.VBox([*knobs.values(), picture])

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("04")

# %% [markdown]
r"""
## Exercises

1. Write `CausalSelfAttention.forward` for *one* head as a loop over positions with nothing but dot products and
   `exp`. *Check:* it agrees with `one_head` to 1e-5.
2. Leave out the division by √d in `attention_weights` and train the two-layer model again. Then put it back, but
   multiply the rows of `c_attn.weight` that make q and k by 16 at the start. *Check:* the fall comes later in the
   first case and not within 300 steps in the second. Explain both with the figure of saturation.
3. Let each query see only the last 16 positions (sliding-window attention, Beltagy et al. 2020, §3.1). *Check:* the
   influence matrix is a band. Which periods does the two-layer model still copy?
4. After chapter 07, load the trained model and compute `found` on stories in place of random characters. *Check:*
   compare each head with what an average of the past would put there. Did stories, too, grow an induction head?

## Further reading

- D. Bahdanau, K. Cho, Y. Bengio, *Neural Machine Translation by Jointly Learning to Align and Translate*, 2014, §3.1:
  attention before the Transformer.
- A. Vaswani et al., *Attention Is All You Need*, 2017, §3.2: scaled dot products, heads, and footnote 4 on √d.
- N. Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021: what one and two layers can do.
- C. Olsson et al., *In-context Learning and Induction Heads*, 2022: the sudden fall in large models.
- A. Haviv et al., *Transformer Language Models without Positional Encodings Still Learn Positional Information*, 2022.
- G. Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2023, §3.1.
"""
