# %% [markdown]
r"""
# 04 · Attention: fetch what an earlier position knows

*Ann has seven marbles. Tom has two. Ann has …* The next word stands far back, and in the next story it stands
somewhere else. A model that sees only the last word cannot know it: after *has*, any number is as good as
another. The position that looks must fetch *who* and *how many* from earlier positions, chosen by what stands
there. It must never fetch from a later one, since that is what the model is asked to guess.
"""

# %%
#| default_exp gpt.attention
#| doc gpt.attention: Causal self-attention, from weights over the past to many heads.
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from course.figures import attention as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import seed_everything

g = seed_everything(0)

# %%
words = ["Ann", "has", "seven", "marbles", ".", "Tom", "has", "two", ".", "Ann", "has", "?"]
fig = figures.sentence(words, looks=10, arcs=[(9, "C0", "who?"), (2, "C3", "how many?")])
show(
    fig,
    alt="A sentence: from its last 'has' one arc goes back to Ann, another to seven; a word is asked for.",
)

# %% [markdown]
r"""
## Predict

Replace `None` by what you expect, or run on and see.
"""

# %%
predict("04.1", "share of softmax on the largest of 32 scores of deviation 8", guess=None)
predict("04.2", "same past, shuffled: does the last position's output change?", guess=None)
predict("04.3", "layers needed to copy random letters", guess=None)

# %% [markdown]
r"""
## Build: from an average to a head

The plainest way to use the past is to average it. Four positions, two numbers each:
"""

# %%
x = torch.tensor([[2, 0], [4, 2], [0, 4], [2, 2]], dtype=torch.float32)  # (T, C)
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
assert torch.allclose(weights @ x, averages), "the product differs from the loop"

# %% [markdown]
r"""
Now the step that makes the weights *learnable*. Give every pair of positions a score, put −∞ where the key lies
in the future, and let softmax turn each row into weights. One row by hand, that of position 2:
"""

# %%
row = torch.full((T,), float("-inf"))
row[:3] = torch.tensor([1.0, 0.0, 2.0])  # the rest is its future
for name, values in {"scores": row, "exp": row.exp(), "weights": row.exp() / row.exp().sum()}.items():
    print(f"{name:8}" + "".join(f"{value:7.2f}" for value in values) + f"   sum {values.sum():.2f}")
print("output  ", row.softmax(-1) @ x, "= the weighted mean of the rows of x")

# %% [markdown]
r"""
Equal scores give the average back, others any *positive* weighting of the past, and nothing of the future:
"""

# %%
future = torch.ones(8, 8, dtype=torch.bool).triu(1)
average = torch.zeros(8, 8).masked_fill(future, float("-inf")).softmax(dim=-1)
assert torch.allclose(average[:T, :T], weights), "equal scores are not the average"
scores = (torch.randn(8, 8, generator=g) * 1.5).masked_fill(future, float("-inf"))
show(
    figures.matrices(average, scores, scores.softmax(-1)),
    alt="Three 8 by 8 lower triangles: the uniform average, random scores, blue positive and red negative, with the future masked, and their softmax.",
)

# %% [markdown]
r"""
## Where do scores come from?

From content. Each position publishes a *key*, what it can be found by, and a *value*, what it hands over. It also
asks with a *query*. The score is the product q · k: large where the query points the way the key does. Below, two
positions say who has how many, and a third asks for Tom. The answer is a weighted mean of values, and its sharpness
grows with the length of the query:
"""

# %%
ann, tom = torch.eye(2)
keys, values = torch.stack([ann, tom]), torch.tensor([7.0, 2.0])
for length in (0, 1, 4, 16):
    found = (length * tom @ keys.T).softmax(dim=-1)
    print(f"|q| = {length:2}   weights {found[0]:.3f} {found[1]:.3f}   answer {found @ values:.2f}")

# %% [markdown]
r"""
This is a dictionary whose look-up has a gradient. In a model q, k and v are three linear maps of each position's
vector, so training decides what to look for, what to be found by and what to hand over. They are kept apart because
they differ: *has* looks for a name, is found as a verb, and hands over neither.

It is *self*-attention because all three come from one sequence. In *cross*-attention the queries come from another,
as when a translator's decoder looks at the sentence to be translated. Without the mask it is *bidirectional*: BERT
reads so, and such a model cannot be trained to predict the next token, since it sees it.

## Why divide by √d?

A score is a sum of d products. If the numbers in q and k are independent with mean *zero* and variance one, so are
the products, and the sum has variance d (Vaswani et al. 2017, footnote 4). With another mean it has not:
"""

# %%
for d in (4, 16, 64, 256):
    q, k = torch.randn(2, 20_000, d, generator=g)
    zero, one = (q * k).sum(-1).std(), ((q + 1) * (k + 1)).sum(-1).std()
    print(
        f"d = {d:3}   standard deviation of q · k: {zero:5.1f}   √d: {d**0.5:4.1f}   with mean one: {one:5.1f}"
    )

# %% [markdown]
r"""
GPT-2's heads have d = 64, and a deviation of 8 is question 1. But has a real layer's q variance one? Measure it: width
768, 12 heads, weights from N(0, 0.02²) as GPT-2 draws them (chapter 05), fed with what a LayerNorm puts out.
"""

# %%
C, n_head, n_keys = 768, 12, 32
x = F.layer_norm(torch.randn(64, n_keys, C, generator=g), (C,))  # 64 texts
q, k = (
    (x @ (0.02 * torch.randn(C, C, generator=g))).unflatten(-1, (n_head, -1)).transpose(1, 2) for _ in "qk"
)
layer = (q[:, :, -1:] @ k.transpose(-2, -1)).std(-1).mean().item()  # the last query's scores
print(f"variance of q: {q.var():.2f}, of 0.02² · {C}: {0.02**2 * C:.2f}")
print(f"deviation of the scores, undivided: {layer:.1f}, divided by √d: {layer / q.size(-1) ** 0.5:.2f}")

# %% [markdown]
r"""
What softmax makes of such scores. The second line below is the trace of softmax's Jacobian, Σ p(1−p): how much
gradient comes through.
"""

# %%
draws = torch.randn(4000, n_keys, generator=g)


def largest_and_gradient(deviation):
    p = (deviation * draws).softmax(-1)
    return p.amax(-1).mean().item(), (p * (1 - p)).sum(-1).mean().item()


root = q.size(-1) ** 0.5
marks = {"layer, divided": layer / root, "variance one, divided": 1, "layer": layer, "variance one": root}
spread = torch.logspace(-1, 1.5, 40).tolist()
show(
    figures.saturation(spread, *zip(*map(largest_and_gradient, spread)), marks),
    alt="As the scores spread, the largest takes more of the weight and the gradient that softmax lets through falls; four deviations are marked: 0.3, 1, 2.4 and 8.",
)
for text, at in marks.items():
    print(
        "{:22} deviation {:.1f}: largest {:.2f}, gradient {:.2f}".format(text, at, *largest_and_gradient(at))
    )
answer("04.1", round(largest_and_gradient(8)[0], 2))

# %% [markdown]
r"""
At initialisation GPT-2 is far from saturated, divided or not: undivided, most of the gradient still comes through,
thanks to its small weights. The division does two things. The deviation no longer depends on d, so that what works
for one width of head works for another. And q and k have room to grow, as they do in training: the end of this chapter
shows by how much, in a model with d = 32. So the division belongs where scores are made, and the finished weights are:
"""

# %%
#| export
#| blank attention_weights: scale the scores by √d, set the future to -inf, then softmax
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
assert torch.allclose(before.sum(-1), torch.ones(len(q))), "a row does not sum to one"
k[5:] += 1.0
changed = (attention_weights(q, k) != before).any(dim=-1)
print("rows that changed after keys 5, 6, 7 did:", changed.nonzero().flatten().tolist())

# %% [markdown]
r"""
## One head, many heads

A head is these weights applied to values. It returns one mean per position. To fetch both *who* and *how many*, a
position needs two sets of weights: two heads. GPT-2 small has 12 per layer, each of width d = C / 12. The heads must
share the width evenly, which is the first thing to check.
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
def one_head(x, w_q, w_k, w_v):
    """(B, T, C) and three (C, d) matrices -> (B, T, d)."""
    return attention_weights(x @ w_q, x @ w_k) @ (x @ w_v)


config = SimpleNamespace(n_embd=12, n_head=3, dropout=0.0, bias=True, flash=False)
B, T, C, d = 2, 6, config.n_embd, head_size(config)
x = torch.randn(B, T, C, generator=g)
w_q, w_k, w_v = torch.randn(3, config.n_head, C, d, generator=g)  # a (C, d) matrix for each head
looped = torch.cat([one_head(x, w_q[h], w_k[h], w_v[h]) for h in range(config.n_head)], dim=-1)
print("one head:", tuple(one_head(x, w_q[0], w_k[0], w_v[0]).shape), " side by side:", tuple(looped.shape))
try:
    head_size(SimpleNamespace(n_embd=768, n_head=10))
except ValueError as error:
    print(error)

# %% [markdown]
r"""
Now without the loop. GPT-2 puts all heads' matrices side by side into one, `c_attn`, that makes queries, keys and values
at once. Matrix products work on the last two axes, so `n_head` moves in front of T and behaves like a batch.
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
c_attn = torch.cat([torch.cat(list(w), dim=1) for w in (w_q, w_k, w_v)], dim=1)  # (C, 3·C)
q, k, v = split_heads(x @ c_attn, config.n_head)
y = attention_weights(q, k) @ v
print("q:", tuple(q.shape), " weights:", tuple(attention_weights(q, k).shape), " y:", tuple(y.shape))
together = y.transpose(1, 2).flatten(2)  # (B, T, C)
assert torch.allclose(together, looped, atol=1e-5), "the loop over heads gives something else"
print("heads apart and together differ by less than 1e-5")

# %% [markdown]
r"""
A second matrix, `c_proj`, mixes what the heads found, since side by side head 0 could only ever write to the first d
channels. *Dropout* sets each number to zero with a given probability, in training only, and scales up the others, so
that no number can be relied on alone. GPT-2 was trained with 0.1; where no text is seen twice, 0 is usual now.
"""


# %%
#| export
#| blank CausalSelfAttention.forward: split, attend (cache, flash or by hand), join the heads, project
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
        if cache is not None:  # it attends to keys and values that are not in x as well: chapters 08 and 21c
            y = cache(q, k, v)
        elif self.flash:  # the same sum in one kernel that never stores a (T, T) matrix: chapter 12
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            y = F.dropout(attention_weights(q, k), p) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


# %%
attention = CausalSelfAttention(config).eval()  # without dropout: the laws below hold to the last digits
for name, parameter in attention.named_parameters():
    print(f"{name:14} {tuple(parameter.shape)}")
print("in and out:", tuple(x.shape), tuple(attention(x).shape))

# %% [markdown]
r"""
## What it costs

Every position scores every other: T² scores. Twice the text costs four times as much, which is why chapter 01 wanted
few tokens. More heads need no more products, each being narrower. But each head has a (T, T) matrix of its own, and
training keeps them all for the backward pass. One layer of GPT-2 small on one text, in float32:
"""

# %%
C = 768
for T in (512, 1024, 2048, 4096):
    products = (
        2 * T * T * C * 2
    )  # a multiply and an add for each of q · k and weights · v, all heads together
    stored = ", ".join(f"{4 * n_head * T * T / 2**20:5.0f} MiB with {n_head} heads" for n_head in (1, 12))
    print(f"T = {T:4}: {products / 1e9:4.1f} GFLOP; weights take {stored}")

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
maps = {cls.__name__: influence(cls(config).eval(), x[0]) for cls in (CausalSelfAttention, Buggy)}
show(
    figures.influence(maps),
    alt="Influence of input position on output position: lower triangular for our layer, blocks above the diagonal for the buggy one.",
)
for name, matrix in maps.items():
    print(f"{name}: {int((matrix.triu(1) > 0).sum())} pairs in which a future input moves an output")

# %% [markdown]
r"""
`(B, n_head, T, d)` reshaped without `transpose(1, 2)` puts neighbouring *positions* of one head side by side, so
early rows hold later positions. In training such a model can read part of the answer, so its loss looks good; when
it writes, there is no future to read. A test on shapes passes. The law does not.

**Heads have no order.** Permute the heads' weights, on both sides, and nothing changes:
"""


# %%
@torch.no_grad()
def permute_heads(layer, order):
    """Reorder the heads: their rows of c_attn, in q, k and v alike, and their columns of c_proj."""
    d, C = layer.head_size, layer.n_head * layer.head_size
    channels = torch.cat([torch.arange(h * d, (h + 1) * d) for h in order])
    rows = torch.cat([part * C + channels for part in range(3)])
    for p in layer.c_attn.parameters():
        p.copy_(p[rows])
    layer.c_proj.weight.copy_(layer.c_proj.weight[:, channels])


before = attention(x)
permute_heads(attention, [*range(1, config.n_head), 0])
assert torch.allclose(attention(x), before, atol=1e-6), "the order of the heads matters"
print("heads permuted: same output")

# %% [markdown]
r"""
**The past has no order.** Question 2. A weighted mean does not know where its terms stood:
"""

# %%
order = [*torch.randperm(x.size(1) - 1, generator=g).tolist(), x.size(1) - 1]  # the last position stays last
same = torch.allclose(attention(x[:, order])[:, -1], attention(x)[:, -1], atol=1e-6)
print(f"past in the order {order[:-1]}: the last output", "stays as it was" if same else "changes")
answer("04.2", "no" if same else "yes")

# %% [markdown]
r"""
To a layer of attention *Tom sees Ann* and *Ann sees Tom* are the same past. A stack of causal layers can work some of
the order out (Haviv et al. 2022); GPT-2 is told. Chapter 05 adds a vector for each position to the input, and so does
the experiment below.

**One kernel or four steps.** `flash=True` calls PyTorch's fused kernel. It must give the same output and the same
gradients. What differs is time and memory, the subject of chapter 12.
"""

# %%
fused = CausalSelfAttention(SimpleNamespace(**vars(config) | {"flash": True})).eval()
fused.load_state_dict(attention.state_dict())
for layer in (attention, fused):
    layer.zero_grad()
    layer(x).square().sum().backward()
assert torch.allclose(attention(x), fused(x), atol=1e-5), "the outputs differ"
for ours, theirs in zip(attention.parameters(), fused.parameters()):
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-4), "the gradients differ"
print("outputs and all gradients agree")

# %% [markdown]
r"""
## See: two layers learn to copy

Question 3. The data are random characters, all different, repeated to the end of the context. On the first pass a
model can only guess. From the second character of the repetition on, everything is certain for a model that finds
where the current character stood before and reads the one *after* it. The period is random, so counting back a fixed
distance does not help.
"""

# %%
alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
V, T, PERIODS, STEPS = len(alphabet), 48, (6, 24), 200
assert PERIODS[0] <= PERIODS[1] < min(T, V), f"PERIODS={PERIODS} must lie below T={T} and the alphabet's {V}"


def repeated(n, g):
    """n sequences (n, T) of distinct characters that repeat, and their periods (n, 1)."""
    first = torch.rand(n, V, generator=g).argsort(1)
    period = torch.randint(PERIODS[0], PERIODS[1] + 1, (n, 1), generator=g)
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
    """(B, T) ids -> (B, T, V) logits."""

    def __init__(self, n_layer, n_embd=64, n_head=2):
        super().__init__()
        config = SimpleNamespace(n_embd=n_embd, n_head=n_head, dropout=0.0, bias=False, flash=False)
        self.wte, self.wpe = torch.nn.Embedding(V, n_embd), torch.nn.Embedding(T, n_embd)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(n_embd) for _ in range(n_layer))
        self.layers = torch.nn.ModuleList(CausalSelfAttention(config) for _ in range(n_layer))
        self.head = torch.nn.Linear(n_embd, V, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(x)


# %%
def losses(model, idx, period):
    """The loss in nats over all characters, and over those that a perfect model is sure of."""
    loss = F.cross_entropy(model(idx[:, :-1]).transpose(1, 2), idx[:, 1:], reduction="none")  # (B, T-1)
    return loss.mean(), loss[torch.arange(1, T) > period].mean()


def train(n_layer, steps=STEPS, lr=0.01):
    """Returns the model, and its loss on the repeated characters of each step's fresh batch."""
    g = seed_everything(1)
    model, curve = AttentionOnly(n_layer), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    for _ in range(steps):
        loss, on_repeats = losses(model, *repeated(48, g))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        curve.append(on_repeats.item())
    return model, curve


torch.set_num_threads(1)  # sums in one order: what is printed does not hang on the number of threads
runs = {n_layer: train(n_layer) for n_layer in (1, 2)}

# %% tags=["nbval-ignore-output"]
idx, period = repeated(1000, g)
certain = torch.arange(1, T) > period
seen = period.log().expand_as(certain)[certain].mean().item()  # nats, when all that is known is what occurred
curves = {f"{n_layer} layer{'s' * (n_layer > 1)}": curve for n_layer, (_, curve) in runs.items()}
lines = {"ln V: any character": math.log(V), "one of those that occurred": seen}
show(
    figures.learning(curves, lines),
    alt="Loss on repeated characters: with one layer it falls slowly and stays above 3 nats, with two it falls steeply towards zero.",
)
for name, curve in curves.items():
    print(
        f"{name}: {sum(curve[-20:]) / 20:.2f} nats in the last 20 steps; guessing one that occurred costs {seen:.2f}"
    )
copies = [n_layer for n_layer, (_, curve) in runs.items() if curve[-1] < 0.2]
answer("04.3", min(copies, default="more, or more steps"))

# %%
assert copies == [2], (
    f"below 0.2 nats after {STEPS} steps: {copies} layers, not [2]; more steps, or a lower lr?"
)

# %% [markdown]
r"""
Two. Is one layer just slower? Trained 30 times as long (6,000 steps of 64 sequences, once) it reached 2.46 nats, just below guessing
among those that occurred. It had not learned to copy but to count back, by distances that suit some periods: after
3,000 steps its loss was 1.1 at period 6 and 2.8 at period 16, where a guess costs ln 16. Its keys can say which
character stands *there*, but what must be found is the position *after* an earlier copy. That takes a first layer in which each position learns what stood before it,
and a second that searches for it: an *induction head* (Elhage et al. 2021; Olsson et al. 2022). The steep fall is
where both halves fit together. Nobody built this in. Is it there? Measure where each head looks, and what the loss
becomes when that head is switched off. (A hook sees what a module puts out, and needs no change of the model.)
"""


# %%
def attention_maps(model, idx):
    """The attention weights of each layer, (B, n_head, T, T), and its undivided scores' deviation in every head."""
    outputs, hooks = [], []
    for layer in model.layers:
        hooks.append(layer.c_attn.register_forward_hook(lambda module, args, out: outputs.append(out)))
    model(idx)
    for hook in hooks:
        hook.remove()
    qk = [split_heads(out, layer.n_head)[:2] for out, layer in zip(outputs, model.layers)]
    last = [(q[:, :, -1:] @ k.transpose(-2, -1)).std(-1).mean((0, 2)) for q, k in qk]
    return [attention_weights(q, k) for q, k in qk], last


# %% tags=["nbval-ignore-output"]
model = runs[2][0].requires_grad_(False)
idx, period = repeated(256, g)
maps, deviations = attention_maps(model, idx)
before = F.pad(idx[:, :-1], (1, 0), value=-1)  # the character before each position
found = (
    before[:, None, :] == idx[:, :, None]
).tril()  # (B, T, T): key s stands right after a copy of query t
certain = torch.arange(T) > period
print(f"{'weight on':13} previous, later  after a copy | loss without  deviation of q · k")
for i, layer in enumerate(model.layers):
    for h in range(layer.n_head):
        w = maps[i][:, h]  # (B, T, T)
        previous = w.diagonal(-1, 1, 2)  # (B, T-1)
        within, later = previous[:, : PERIODS[1] - 1].mean(), previous[:, PERIODS[1] :].mean()
        induction = (w * found).sum(-1)[certain].mean()
        columns = layer.c_proj.weight[:, h * layer.head_size : (h + 1) * layer.head_size]
        kept = columns.clone()
        columns.zero_()
        loss = losses(model, idx, period)[1]
        columns.copy_(kept)
        where = f"layer {i}, head {h}{within:9.2f} {later:6.2f} {induction:13.2f}"
        print(f"{where} | {loss:12.2f} {deviations[i][h]:19.1f}")
print(f"{'the whole model':43} | {losses(model, idx, period)[1]:12.2f}")

# %% [markdown]
r"""
A head of layer 0 puts nearly all its weight on the previous position, as long as a first copy could still run in
training (*later* none did: a head learns what its data needed, no more). Take it away and the copy is lost. In layer 1
the weight lies after an earlier copy: induction heads. The last column is the promise from above: in layer 1 q and k
have grown until their products spread far beyond √32 = 5.7, and it is the division that keeps softmax soft.

The model has never seen a word. Does it do the same on a sentence? Row: the character that looks. Column: the
character looked at.
"""


# %% tags=["nbval-ignore-output"]
def look(text):
    """The characters of a text that are read, T at most, and the maps of all heads."""
    characters = [c for c in text if c in alphabet][:T]
    idx = torch.tensor([[alphabet.index(c) for c in characters]], dtype=torch.long)
    return characters, attention_maps(model, idx)[0] if characters else []


characters, maps = look(2 * "Tom likes figs. ")
half, idx = len(characters) // 2, torch.tensor([[alphabet.index(c) for c in characters]])
show(
    figures.head_maps(characters, maps),
    alt="Four attention maps on a sentence written twice; in layer 1 the second copy looks at the first, one character further on.",
)
right = model(idx)[0, half:-1].argmax(-1) == idx[0, half + 1 :]
missed = sorted({characters[half + i] for i in (~right).nonzero().flatten().tolist()})
print(f"second copy: {right.sum()} of {len(right)} characters predicted; wrong after {missed}")
print(f"layer 1 on position 0 while nothing has come twice: {maps[1][0, :, 1:4, 0].mean():.2f} of the weight")

# %% [markdown]
r"""
Layer 1 looks at position 0 when it has nothing to find: the weights must sum to one, so a head at rest needs a place to
look at (an *attention sink*, Xiao et al. 2023).

What does it miss? Letters that stand twice within one copy: it matches one letter, not two, and finds what follows
either. *Predict:* in `the cat sat. the cat sat`, which earlier character does each head of layer 1 look at from the second
`c`? Look, then type a sentence of your own, with a repetition in it. (Characters outside the alphabet are left out; at most 48
are read.)
"""

# %% tags=["nbval-ignore-output"]
figures.map_widget("the cat sat. the cat sat", look, len(model.layers), model.layers[0].n_head)

# %% [markdown]
r"""
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

- **04-1** Two bugs in four lines, 10 minutes: mend a mask that comes too late, and a scale that grows with the text.
- **04-2** Shapes that fit, 15 minutes: mend heads that were cut by `reshape` alone.
- **04-3** How far scores spread, 25 minutes: derive the deviation of q · k where the mean is not zero.
- **04-4** A window on the past, 25 minutes: sliding-window attention, and a formula for what it costs.
- **04-5** A check for causality, 30 minutes: write the check that finds a layer which sees its future.
- **04-6** Could the weights do it?, 10 minutes: say what is lost without the division by √d.

To explore:

- Leave out the division by √d in `attention_weights` and train the two-layer model again. Then put it back, but
  multiply the rows of `c_attn.weight` that make q and k by 16 at the start. The fall comes later in the
  first case, and not at all in the second. Explain both with the figure of saturation.
- Give the two-layer model `window_weights` of exercise 04-4 with 16 positions. The influence matrix is then a band. Which
  periods does the model still copy?
- After chapter 07, load the trained model and compute `found` on stories in place of random characters. Compare
  each head with what an average of the past would put there. Did stories, too, grow an induction head?

## Further reading

- D. Bahdanau, K. Cho, Y. Bengio, *Neural Machine Translation by Jointly Learning to Align and Translate*, 2014, §3.1:
  attention before the Transformer.
- A. Vaswani et al., *Attention Is All You Need*, 2017, §3.2: scaled dot products, heads, and footnote 4 on √d.
- N. Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021: what one and two layers can do.
- C. Olsson et al., *In-context Learning and Induction Heads*, 2022: the sudden fall in large models.
- A. Haviv et al., *Transformer Language Models without Positional Encodings Still Learn Positional Information*, 2022.
- G. Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2023, §3.1.
"""
