# %% [markdown]
r"""
# 24 ◇ · Llama: GPT-2 with six changes

Download an open language model, for example Llama 3 or Qwen3, and look into its `config.json`. It will say `LlamaForCausalLM` or
`Qwen3ForCausalLM`. Many others have a name of the same family. You may expect something new, but you know nearly all of it. There is a
table of tokens, there are blocks of attention and MLP that add to a stream, and at the end there are a normalization
and a head. Six things have changed since GPT-2, and each change has a few lines.

In this chapter we make these changes one at a time. For each we ask what it is good for, and we measure it against
GPT-2 on our stories. At the end you have a second model in less than 150 lines. It computes exactly what `transformers`
computes for Llama 3 and Qwen3, and the cache, the sampler and the training loop of the earlier chapters take it as they
are.
"""

# %%
#| default_exp labs.llama.model
#| doc labs.llama.model: Llama and Qwen3: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases.
#| doc labs.llama.pretrained: Llama's and Qwen3's weights from Hugging Face's files, and back.
import importlib.util
import json
import math
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from course.figures import llama as figures
from course.figures.llama_changes import CHANGES, changed
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device
from nanogpt.model import GPTConfig
from nanogpt.sampling import KVCache, read
from nanogpt.sampling import draw, token_probs
from nanogpt.shards import open_shards, read_shard
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

# %%
#| export
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.model import check_input, init_weights, next_token_loss

# %% [markdown]
r"""
Which change helps most? `python bench/llama.py` trained chapter 07's small GPT with each of them alone, and
with all together, for three seeds each. The next cell prints the names of the changes. This chapter explains them one
after the other.
"""

# %%
print(", ".join(name for name in CHANGES if name != "GPT-2"))

# %% [markdown]
r"""
*Predict.* Before you see the results, write down which of the single changes lowers the loss most, and by how much all
of them together lower it.
"""

# %%
predict("24.1", "the change that lowers the loss most on our stories", guess=None)
predict("24.2", "how many nats a token all together lower the loss", guess=None, unit="nats")

# %% [markdown]
r"""
## RMSNorm: one step less

LayerNorm does four things with the C numbers of a position. It subtracts their mean, divides by their standard
deviation, multiplies by a gain, and adds a bias. *RMSNorm* (Zhang and Sennrich 2019, §4) leaves out the first and the
last. It divides by the root of the mean square, and multiplies by a gain. The cell after the class compares the two,
and PyTorch's own RMSNorm, on four numbers.
"""


# %%
#| export
#| blank RMSNorm.forward: divide by the root of the mean square plus eps, in float32, then multiply by the gain
class RMSNorm(nn.Module):
    """x / √(mean(x²) + eps) · weight, over the last dimension (Zhang and Sennrich 2019, §4). (..., C) -> (..., C).

    The quotient is computed in float32 and goes back to x's type; then the gain multiplies it, in its own type.
    """

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        long = x.float()  # squares of bfloat16 numbers would lose too much
        short = long * torch.rsqrt(long.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * short.to(x.dtype)


# %%
x = torch.tensor([1.0, 2.0, 3.0, 4.0])
print("LayerNorm:", nn.LayerNorm(4)(x).detach().numpy().round(2))
print("RMSNorm:  ", RMSNorm(4)(x).detach().numpy().round(2))
print("PyTorch's:", F.rms_norm(x, (4,), eps=1e-5).numpy().round(2))

# %% [markdown]
r"""
LayerNorm's result has the mean zero, and RMSNorm's does not. Both have the property that training needs: however large x
is, the result has the same size. So the reason for the change is not the loss but the work. RMSNorm reads the
vector for one sum instead of two, and it has half as many parameters.

## Rotary positions: distance instead of place

GPT-2 adds row t of a table to the token at position t. So the model must learn for each pair of rows how far apart they
are, although attention mostly asks "how far back?" and rarely "at which place?". And the table has 1,024 rows: for a
longer text the model cannot even be called.

*RoPE*, rotary position embedding (Su et al. 2021, §3.2), turns this around. Nothing is added to the stream. Instead,
each query and each key is *rotated* by an angle that grows with its position. Why does this help? Look at two numbers,
as a point in the plane. Rotate a query by 5 steps and a key by 3 steps. Their scalar product depends on the angle
between them, and this angle has changed by 5 − 3 = 2 steps, wherever in the text they are.
"""


# %%
def turned(point: Tensor, steps: float) -> Tensor:
    """A point of the plane, rotated by so many radians."""
    c, s = math.cos(steps), math.sin(steps)
    return torch.stack([point[0] * c - point[1] * s, point[1] * c + point[0] * s])


q, k = torch.tensor([1.0, 0.5]), torch.tensor([0.3, 0.8])
for at_q, at_k in ((5, 3), (105, 103), (5, 4)):
    print(f"query at {at_q:3}, key at {at_k:3}: score {turned(q, at_q) @ turned(k, at_k):.3f}")

# %% [markdown]
r"""
The first two scores are equal, because the distance is 2 both times. The third differs, since the distance is 1.

A head has more than two numbers, for example d = 64. RoPE takes them as d/2 pairs. Each pair turns at a speed of its
own: the first by one radian a position, the last by a little more than 1/θ, with θ = 10,000 or more. It is like the hands of a clock: fast
pairs distinguish neighbours, and slow pairs distinguish far from near. The pairs are made of the first half and the second half of the numbers:
number i and number i + d/2 belong together.
"""


# %%
#| export
#| blank rope_angles: speeds theta^(-2i/d) for i = 0 .. d/2 - 1, times the positions
def rope_angles(positions: Tensor, d: int, theta: float) -> Tensor:
    """Angles of d/2 pairs at positions (T,) or (B, T): (..., T, d/2), in float32 (Su et al. 2021, §3.2.2)."""
    speeds = theta ** (-torch.arange(0, d, 2, device=positions.device).float() / d)  # (d/2,)
    return positions[..., None].float() * speeds


# %%
print(rope_angles(torch.arange(4), d=4, theta=10_000.0))

# %% [markdown]
r"""
Each row is a position, each column a pair. With d = 4 there are two pairs: the first turns by one radian at each position, the
second by a hundredth of that. `rotate` now turns all pairs of all heads at once.
"""


# %%
#| export
#| blank rotate: cut x in two halves (a, b); the rotated ones are a·cos - b·sin and b·cos + a·sin
def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_(i + d/2)) of x (B, heads, T, d) by its angle; angles (T, d/2) or (B, T, d/2).

    The angles are float32, the result has x's type.
    """
    angles = angles.unsqueeze(-3)  # (..., 1, T, d/2): the same for all heads
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


# %% [markdown]
r"""
*Check.* The law from above, now for complete heads: a score depends only on the distance. We compute all scores of 8
positions, then all scores of the same vectors at positions that are 1,000 larger.
"""

# %%
g = torch.Generator().manual_seed(0)
q, k = torch.randn(2, 1, 1, 8, 16, generator=g)
near, far = (rope_angles(torch.arange(8) + start, 16, 10_000.0) for start in (0, 1000))
scores = [rotate(q, angles) @ rotate(k, angles).transpose(-2, -1) for angles in (near, far)]
difference = (scores[0] - scores[1]).abs().max().item()
assert difference < 1e-3, f"moved by 1,000 positions, the scores differ by {difference:.1e}"
plain = q @ k.transpose(-2, -1)
print("positions 0 to 7 and 1000 to 1007 give the same scores, within 0.001")
print("rotation changes the scores:", not torch.allclose(scores[0], plain, atol=0.1))

# %% [markdown]
r"""
## Grouped queries: a smaller cache

While a model writes, it reads its weights and its cache for every token (chapter 08). With long texts and many users
the cache is the larger part. *Grouped-query attention* (Ainslie et al. 2023, §2) makes it smaller: several heads of
queries share one head of keys and values. Llama 3 8B has 32 heads of queries and 8 of keys and values, so its cache is
a quarter as large.

*Predict.* How many MB does the cache of Llama 3 8B take for one text of 8,192 tokens in bfloat16? It has 32 layers, and
heads of 128 numbers.
"""

# %%
predict("24.3", "the cache of Llama 3 8B, 8,192 tokens", guess=None, unit="MB")

# %%
mb = {heads: 2 * 32 * 8192 * heads * 128 * 2 / 1e6 for heads in (32, 8)}
print(f"32 heads of keys and values: {mb[32]:,.0f} MB; 8 heads: {mb[8]:,.0f} MB")
answer("24.3", mb[8])

# %% [markdown]
r"""
*Check.* Sharing must be the same as copying. We repeat each head of keys and values for all queries of its group, and
ordinary attention has to give the same numbers. PyTorch's `scaled_dot_product_attention` shares by itself if we say
`enable_gqa=True`.
"""

# %%
q, k, v = (torch.randn(1, heads, 5, 8, generator=g) for heads in (4, 2, 2))
shared = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
copied = F.scaled_dot_product_attention(q, *(z.repeat_interleave(2, dim=1) for z in (k, v)), is_causal=True)
assert torch.allclose(shared, copied, atol=1e-6), "shared heads give something else than copied ones"
print("4 heads of queries, 2 of keys and values: shared and copied heads give the same")

# %% [markdown]
r"""
The attention layer below has everything so far: queries and keys are rotated, and there are fewer heads of keys and
values. It has two more changes.

- It has no biases. The authors of PaLM found large models more stable without them (Chowdhery et al. 2022, §2).
- If the configuration says `qk_norm`, it normalizes each query and each key with an RMSNorm of its own before the rotation.
  This is *QK-norm* (Henry et al. 2020). Qwen3 has it, and Llama does not. It bounds the scores, which otherwise may grow
  during long training until softmax picks only one position.

With a cache, `forward` leaves the attention to it, as in chapter 08: `cache(q, k, v)` gives y. But the cache attends
with as many heads of queries as there are heads of keys. So the queries take turns: of those that share a head of
keys, first all the first ones ask the cache, then all the second ones, and so on. Their heads stand side by side in
q, so `q.unflatten(1, (n_kv_head, -1))` has them in dimension 2. The answers are put back in the same order.

First comes the configuration with the names of chapter 05 and a few new ones. The last field, `tied`, belongs to the
complete model below.
"""


# %%
#| export
@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama, or with qk_norm of a Qwen3. Defaults: Llama 3 8B (Grattafiori et al. 2024, table 3)."""

    block_size: int = 8192
    vocab_size: int = 128_256
    n_layer: int = 32
    n_head: int = 32
    n_kv_head: int = 8  # heads of keys and values, each shared by n_head / n_kv_head heads of queries
    n_embd: int = 4096
    n_hidden: int = 14_336  # width of the MLP
    head_size: int = 128
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    qk_norm: bool = False
    tied: bool = False  # whether lm_head is wte

    def __post_init__(self):
        if self.n_head % self.n_kv_head or self.head_size % 2:
            what = f"n_head={self.n_head}, n_kv_head={self.n_kv_head}, head_size={self.head_size}"
            raise ValueError(f"{what}: n_kv_head must divide n_head, and head_size must be even")


# %%
#| export
class GroupedAttention(nn.Module):
    """Causal attention with rotary positions; heads of queries share keys and values. (B, T, C) -> (B, T, C)."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        C, self.head_size = config.n_embd, config.head_size
        self.n_head = config.n_kv_head  # of keys and values, for which chapter 08's cache makes room
        self.c_q = nn.Linear(C, config.n_head * config.head_size, bias=False)
        self.c_k = nn.Linear(C, config.n_kv_head * config.head_size, bias=False)
        self.c_v = nn.Linear(C, config.n_kv_head * config.head_size, bias=False)
        self.c_proj = nn.Linear(config.n_head * config.head_size, C, bias=False)
        norm = RMSNorm if config.qk_norm else nn.Identity
        self.q_norm, self.k_norm = (norm(config.head_size, config.norm_eps) for _ in range(2))


# %%
#| export
#| blank GroupedAttention.forward: project, split, norm and rotate q, k; attend, or ask cache in turns; join, project
class GroupedAttention(GroupedAttention):
    def forward(self, x: Tensor, angles: Tensor, cache=None) -> Tensor:
        d = self.head_size
        q = self.c_q(x).unflatten(2, (-1, d)).transpose(1, 2)  # (B, n_head, T, d)
        k = self.c_k(x).unflatten(2, (-1, d)).transpose(1, 2)  # (B, n_kv_head, T, d)
        v = self.c_v(x).unflatten(2, (-1, d)).transpose(1, 2)
        q, k = rotate(self.q_norm(q), angles), rotate(self.k_norm(k), angles)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:  # of the queries that share a head, the first ask the cache, then the second, and so on
            groups = q.unflatten(1, (self.n_head, -1)).unbind(2)
            y = torch.stack([cache(group, k, v) for group in groups], 2).flatten(1, 2)
        return self.c_proj(y.transpose(1, 2).flatten(2))


# %%
small = LlamaConfig(64, 512, n_layer=1, n_head=4, n_kv_head=2, n_embd=32, n_hidden=88, head_size=8)
attention = GroupedAttention(small)
y = attention(torch.randn(1, 5, 32, generator=g), rope_angles(torch.arange(5), 8, small.rope_theta))
print("output", tuple(y.shape))
for name, p in attention.named_parameters():
    print(f"{name:14} {tuple(p.shape)}")

# %% [markdown]
r"""
The matrices for keys and values have half as many rows as the one for queries, because there are half as many heads.

## SwiGLU: an MLP with a gate

GPT-2's MLP has three steps: it widens the stream, applies GELU, and narrows it again. *SwiGLU* (Shazeer 2020, §2) widens twice. One result goes through the
curve silu(x) = x · sigmoid(x) and then multiplies the other, number by number. So the first one is a gate: where it is
near zero, the second one does not get through. Shazeer tried such gates and found lower losses. He closes his paper
with "We offer no explanation as to why these architectures seem to work; we attribute their success, as all else, to
divine benevolence."

There are three matrices now instead of two. GPT-2's MLP has 8·C² parameters. To have as many, each of the three is only
8/3 · C wide instead of 4 · C. The cell below the class counts both.
"""


# %%
#| export
class SwiGLU(nn.Module):
    """c_proj(silu(c_gate(x)) · c_fc(x)): an MLP with a gate (Shazeer 2020, §2). (B, T, C) -> (B, T, C)."""

    def __init__(self, n_embd: int, n_hidden: int):
        super().__init__()
        self.c_gate = nn.Linear(n_embd, n_hidden, bias=False)
        self.c_fc = nn.Linear(n_embd, n_hidden, bias=False)
        self.c_proj = nn.Linear(n_hidden, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x))


# %%
C = 192
gated = sum(p.numel() for p in SwiGLU(C, 8 * C // 3).parameters())
print(f"SwiGLU of width {8 * C // 3}: {gated:,} parameters; GPT-2's MLP of width {4 * C}: {8 * C * C:,}")

# %% [markdown]
r"""
## The loss with each change

Now you have seen all six changes, and here is the record of what they do to the loss. Each run is chapter 07's small model on the stories, 2,000 steps of the same batches, with one change.
A row's parameters are near GPT-2's. Grouped queries have fewer, because half of the matrices for keys and values are
gone. The difference is paired: a run with a change minus the run of GPT-2 with the same seed. Its interval comes from
three seeds, so it is wide. A star marks the intervals that do not contain zero; in the other rows, nothing was shown. The
last row has all six changes at once.
"""

# %%
record = json.loads(Path("../data/measurements/llama.json").read_text(encoding="utf-8"))
print(f"{record['command']}, {record['date']}: {record['steps']} steps, {len(record['seeds'])} seeds")
figures.say_worth(record["rows"])
single = [row for row in record["rows"] if row["name"] in CHANGES and row["name"] != "all together"]
answer("24.1", min(single, key=lambda row: row["difference"])["name"])
answer("24.2", -record["rows"][-1]["difference"])

# %%
show(
    figures.worth(record["rows"]),
    alt="For each change, its difference of loss from GPT-2 with an interval; zero is GPT-2.",
)

# %% [markdown]
r"""
Keep the reasons in mind when you read the rows. RMSNorm, grouped queries and leaving out biases were never meant to
lower the loss. They save work or memory or make training more stable, and the question is whether they cost anything. Rotary positions and SwiGLU
should lower the loss.

Neither does. The single change with the lowest loss is RMSNorm, by 0.002 nats, which is no difference. Rotary positions are worse by 0.035 ± 0.016. Their rival here is not GPT-2's table of random vectors: chapter 07's small models begin with waves, in which one step back is the same at every
position as well. So the row says that these stories need no rotation beside the waves. It says nothing about long texts, which is what rotary positions are for.

All other intervals contain zero, also that of all six together, +0.007 (−0.002 to +0.017). Two of them are wide, those of grouped queries and SwiGLU, because one run of three was late to find out how to copy a number (chapter 07b), and three seeds are few.
SwiGLU is reported to help large models. Is its advantage hidden by a rate that suits GPT-2, or by short runs? Both models were also trained at half the rate, at twice the rate, and for twice as many steps.
"""

# %%
for control in record["controls"]:
    gpt2, gated = (control["losses"][name] for name in ("GPT-2", "SwiGLU"))
    print(f"{control['steps']:4} steps at {control['rate']:g}: GPT-2 {gpt2:.3f}, SwiGLU {gated:.3f}")

# %% [markdown]
r"""
In all three the two are within 0.007 nats of each other (one seed each). So we find no advantage of SwiGLU on this task, at this size. The lesson is an old one. A change that helps a model of ten billion
parameters on the text of the web need not help yours. Measure it, with a control.

## The complete model

A block is built as in chapter 05. It consists of attention and MLP, each reads a normalized copy of the stream, and each adds
to the stream. Only the classes in it are new.
"""


# %%
#| export
class LlamaBlock(nn.Module):
    """Attention, then MLP, each reading a normalized copy of the stream and adding to it. (B, T, C) -> (B, T, C)."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.ln_1, self.ln_2 = (RMSNorm(config.n_embd, config.norm_eps) for _ in range(2))
        self.attn = GroupedAttention(config)
        self.mlp = SwiGLU(config.n_embd, config.n_hidden)

    def forward(self, x: Tensor, angles: Tensor, cache=None) -> Tensor:
        x = x + self.attn(self.ln_1(x), angles, cache)
        return x + self.mlp(self.ln_2(x))


# %% [markdown]
r"""
The model has the outer names of chapter 05 (`transformer.wte`, `transformer.h`, `lm_head`) and the same call,
`forward(idx, targets, cache)`. So everything that was written for GPT works with it. There is no table of positions;
the angles are computed once and passed to all blocks. In large models `lm_head` is a matrix of its own; small ones
share it with `wte` (`tied`). `lora_names` is for chapter 19's adapters: there `c_attn` means the layer that makes queries, keys and
values, and here these are three layers. As in chapter 05, only `init_weights` decides the values, and the global generator stays where it was.
"""


# %%
#| export
class Llama(nn.Module):
    """Llama 3 (Grattafiori et al. 2024, §3.2), or with qk_norm Qwen3. Called, cached and trained like chapter 05's GPT."""

    def __init__(self, config: LlamaConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config, V, C = config, config.vocab_size, config.n_embd
        # what add_lora's words mean here (chapter 19)
        self.lora_names = {"c_attn": ("c_q", "c_k", "c_v"), "c_fc": ("c_fc", "c_gate")}
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation draws numbers; see chapter 05
            blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.n_layer))
            parts = {"wte": nn.Embedding(V, C), "h": blocks, "ln_f": RMSNorm(C, config.norm_eps)}
            self.transformer, self.lm_head = nn.ModuleDict(parts), nn.Linear(C, V, bias=False)
        if config.tied:
            self.lm_head.weight = self.transformer.wte.weight
        init_weights(self, config.n_layer, generator)


# %%
#| export
#| blank Llama.forward: as chapter 08's: check_input, positions, angles, wte, blocks, newest, ln_f, lm_head, loss
class Llama(Llama):
    def forward(self, idx: Tensor, targets: Tensor | None = None, cache=None) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, vocab_size), and if targets (B, T) are given their mean loss in nats; -100 does not count."""
        check_input(idx, self.config)
        positions = (
            torch.arange(idx.size(1), device=idx.device) if cache is None else cache.positions(idx.size(1))
        )
        angles = rope_angles(positions, self.config.head_size, self.config.rope_theta)
        x = self.transformer.wte(idx)  # (B, T, C)
        for i, block in enumerate(self.transformer.h):
            x = block(x, angles, None if cache is None else cache.layer(i))
        logits = self.lm_head(self.transformer.ln_f(x if cache is None else cache.newest(x)))
        return logits, None if targets is None else next_token_loss(logits, targets)


# %% [markdown]
r"""
We need a text to try it on, so we take the stories of chapter 02 and their tokenizer. The model is about as large as
chapter 07's.
"""

# %% tags=["nbval-ignore-output"]
device = pick_device()
folder = Path("../data/built/stories")
manifest = ensure_corpus(folder)
tokenizer = BPETokenizer.load(folder / "tokenizer.json")
print(
    f"{manifest['splits']['train']['tokens']:,} tokens, a vocabulary of {tokenizer.vocab_size:,}, on {device}"
)

# %%
config = LlamaConfig(128, tokenizer.vocab_size, n_layer=2, n_head=4, n_kv_head=2, n_embd=128, n_hidden=368, head_size=32, tied=True)  # fmt: skip
model = Llama(config, torch.Generator().manual_seed(0)).to(device)
ids = torch.tensor([[tokenizer.eot, *tokenizer.encode("One sunny day,")]], device=device)
logits, loss = model(ids[:, :-1], ids[:, 1:])
print(f"{sum(p.numel() for p in model.parameters()):,} parameters; logits {tuple(logits.shape)}")
print(f"first loss {loss.item():.2f}, ln V {math.log(tokenizer.vocab_size):.2f}")

# %% [markdown]
r"""
The loss of the untrained model is near ln V, the loss of a model that gives each token the same probability.

*Check.* Causality, as in chapter 04: we change the last token, and no earlier output may change.
"""

# %%
other = ids.clone()
other[0, -1] = (other[0, -1] + 1) % tokenizer.vocab_size
with torch.no_grad():
    same = torch.allclose(model(ids)[0][:, :-1], model(other)[0][:, :-1], atol=1e-5)
assert same, "a later token changes an earlier output: is is_causal there?"
print("the future changes nothing:", same)

# %% [markdown]
r"""
## The time of a step

A lower loss after the same number of steps may still lose against the clock. So here is a training step of each change
beside one of GPT-2, on your machine, in turns. The changed models are built from the classes that you have just
defined. If the measured interval of a ratio contains 1, the line says that no difference was measured.
"""

# %% tags=["nbval-ignore-output"]
shape = GPTConfig(block_size=128, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=4, n_embd=128)
here = sys.modules["__main__"]  # this notebook
figures.say_times({name: changed(name, shape, here).to(device) for name in CHANGES}, device)

# %% [markdown]
r"""
On the machine of this page three changes make a step slower: QK-norm (0.76 times as fast), rotary positions (0.83) and RMSNorm (0.88). All three are small operations
between the products. RMSNorm's formula is shorter than LayerNorm's, but PyTorch has LayerNorm as one operation, and ours is written with eight. `torch.compile` would fuse them (chapter 11).
For the other three no difference was measured. But look at grouped queries. They were introduced to save something, and save nothing here: their gain is in the cache, and training has none.

## The cache

Chapter 08's cache asks the first layer how many heads it must make room for. `GroupedAttention` answers with `n_kv_head`,
or grouped queries would save nothing. The queries that share a head of keys take turns, as described at the attention
layer. Nothing in chapter 08 has to change.

*Check.* As in chapter 08, the model reads a text in two pieces through the cache, three tokens and then the rest. The logits must be those of the complete text.
"""

# %%
cache = KVCache(model, B=1, size=32)
with torch.no_grad():
    complete = model(ids)[0][:, -1]
read(model, cache, [ids[0, :3].tolist()])
step_by_step = read(model, cache, [ids[0, 3:].tolist()])
difference = (complete - step_by_step).abs().max().item()
assert difference < 1e-4, f"with the cache the logits differ by {difference:.1e}"
print("with the cache, the same logits; its keys have the shape", tuple(cache.keys.shape))

# %% [markdown]
r"""
The cache has 2 heads of 32 numbers for each of 32 positions, although there are 4 heads of queries. The rotated keys go
into the cache. Each key was rotated once, by its own position, and never has to be touched again. A new query meets old
keys at the right distance without any further work.

## Training it

Chapter 07's `train` takes the new model without a change. 150 steps are too few for good stories, but enough to see
that everything is connected.
"""

# %% tags=["nbval-ignore-output"]
scale_init(model)
stream = DocumentStream(open_shards(folder, "train"), 4, 128, seed=0, device=device)
losses = train(model, stream, 150, 2e-3, generator=torch.Generator().manual_seed(0))
print(f"loss {losses[0]:.2f}, after {len(losses)} steps {losses[-1]:.2f}")

# %% [markdown]
r"""
And chapter 08's sampler lets it write, token by token.
"""

# %% tags=["nbval-ignore-output"]
text, new = ids[0].tolist(), ids[0].tolist()
cache, g = KVCache(model, B=1, size=100), torch.Generator().manual_seed(0)
while len(text) < 80:  # chapter 08's loop
    new = draw(token_probs(read(model, cache, [new]), temperature=0.7), g)
    text += new
print(tokenizer.decode(text[1:]))

# %% [markdown]
r"""
After 150 steps it has learned the sentences and not the facts. Anna goes with Finn, then Max speaks, and Ida comes with *his* tickets.

## Longer than it was trained

No weight of this model belongs to a position. So it can read texts that are longer than the rows of 128 tokens which it was trained
on; only the number `block_size` in its configuration stands against it. *Predict.* We give it rows of 512 tokens. Does the loss fall after
position 128, because there is more to look back at? Does it stay, or rise?
"""

# %% tags=["nbval-ignore-output"]
longer = Llama(replace(config, block_size=512)).to(device).eval()
longer.load_state_dict(model.state_dict())
tokens = read_shard(open_shards(folder, "val")[0])[: 64 * 512 + 1].astype("int64")
tokens = torch.from_numpy(tokens).to(device)
x, y = tokens[:-1].view(64, 512), tokens[1:].view(64, 512)
with torch.no_grad():
    logits = longer(x)[0]  # (64, 512, V)
losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(64, 512).mean(0)
for begin in range(0, 512, 64):
    print(f"positions {begin:3} to {begin + 63}: loss {losses[begin : begin + 64].mean().item():.2f}")
with torch.no_grad():
    logits = longer(x[:, -128:])[0][:, -64:]
alone = F.cross_entropy(logits.flatten(0, 1), y[:, -64:].flatten()).item()
print(f"the last 64 again, with only the 64 tokens before them: loss {alone:.2f}")

# %% [markdown]
r"""
It falls to 1.36 in the second half of what it knows, and then rises: 1.68 right behind position 128, 2.00 behind 192, 2.22 at the end. These tokens are not
harder than others. Read with only the 64 tokens before them, the same ones cost 1.39. More text to look back at makes the model *worse*, because it has never seen such
distances in training and has not learned to leave those tokens alone. So RoPE lets a model be called with a longer text. To be good at it, the model must be trained further on
long rows, usually with a larger θ. Llama 3 has θ = 500,000 from the start. The last 800 billion tokens of its training came in rows that grew from
8,192 to 128,000 tokens in six stages (Grattafiori et al. 2024, §3.2 and §3.4.2).

## Loading published weights

`transformers` calls the same tensors by other names. As in chapter 06, loading is a loop over names. Nothing has to be
transposed this time: Llama's files store matrices as `nn.Linear` does.
"""


# %%
#| export labs.llama.pretrained
from pathlib import Path

import torch
from safetensors.torch import save_file

from nanogpt.files import atomically, save_json
from nanogpt.pretrained import NO_EFFECT, SINGLE, find_checkpoint, read_headers, read_json, read_tensor

NAMES = {
    "transformer.wte.": "model.embed_tokens.",
    "transformer.h.": "model.layers.",
    "transformer.ln_f.": "model.norm.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".attn.c_": ".self_attn.",
    ".attn.": ".self_attn.",
    ".mlp.c_gate.": ".mlp.gate_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
}


# %%
#| export labs.llama.pretrained
def hf_name(name: str) -> str:
    """A parameter's name in Hugging Face's Llama and Qwen3: transformer.h.0.attn.c_q.weight -> model.layers.0.self_attn.q_proj.weight."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    for letter in "qkv":
        name = name.replace(f".self_attn.{letter}.", f".self_attn.{letter}_proj.")
    return name


# %%
for name, _ in list(model.named_parameters())[:6]:
    print(f"{name:36} {hf_name(name)}")

# %% [markdown]
r"""
The left column has our names, the right one theirs. This is all that the weights need.
"""

# %% [markdown]
r"""
## The configuration file

The configuration uses other names as well. It may also ask for things that this model does not have, such as stretched
rotary positions (Llama 3.1's) or biases. Then the loader must refuse, because the weights would fit and the numbers
would be wrong. A list of wrong settings is never complete: for years this one was spelled `"type": "linear"`, later `"rope_type"`. So we list what
is right, and refuse everything else by its name. Old files leave settings out; then transformers takes the values in `MISSING`.
The last cell shows one file that is accepted and one that is refused.
"""


# %%
#| export labs.llama.pretrained
SIZES = {
    "block_size": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_embd": "hidden_size",
    "n_hidden": "intermediate_size",
    "head_size": "head_dim",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
KINDS = {"llama": False, "qwen3": True}  # model_type: whether it has QK-norm
MISSING = {  # what transformers takes where an old file says nothing, or null
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
ROPE = {"rope_parameters", "rope_scaling", "rope_theta"}
ONE_VALUE = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "rope_interleaved": False,
    "pruned_heads": {},
}


# %%
#| export labs.llama.pretrained
def config_from_llama(hf: dict) -> LlamaConfig:
    """LlamaConfig from Hugging Face's config.json; ValueError where it asks for what this model does not have, or does not know."""
    said = MISSING | {key: value for key, value in hf.items() if value is not None}
    # positions: newer files describe them in one dictionary, older ones in two keys
    rope = said.get("rope_parameters") or {"rope_theta": said.get("rope_theta", 10_000.0)} | said.get(
        "rope_scaling", {}
    )
    # what must be as it is here
    wrong = [
        f"{key} is {said[key]!r}, not {right!r}"
        for key, right in ONE_VALUE.items()
        if said.get(key, right) != right
    ]
    if said.get("model_type") not in KINDS:
        wrong.append(f"model_type is {said.get('model_type')!r}, not {' or '.join(map(repr, KINDS))}")
    wrong += [
        f"{key} is {value!r}" for key, value in rope.items() if key != "rope_theta" and value != "default"
    ]
    if {*said.get("layer_types", [])} - {"full_attention"}:
        wrong.append(f"layer_types has more than full_attention: {sorted({*said['layer_types']})}")
    # what is not there, and what nobody here knows
    sizes = {"num_key_value_heads": said.get("num_attention_heads")} | said
    if "head_dim" not in sizes and sizes.keys() >= {"hidden_size", "num_attention_heads"}:
        sizes["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
    wrong += [f"{key} is missing" for key in SIZES.values() if sizes.get(key) is None]
    known = {"model_type", "layer_types", *SIZES.values(), *ONE_VALUE, *ROPE, *NO_EFFECT}
    wrong += [
        f"{key} is unknown (remove it if no logit depends on it)" for key in sorted(said.keys() - known)
    ]
    if wrong:
        raise ValueError(f"config.json: this is not a Llama that nanogpt can run: {'; '.join(wrong)}")
    shape = {ours: sizes[theirs] for ours, theirs in SIZES.items()}
    return LlamaConfig(**shape, rope_theta=rope["rope_theta"], qk_norm=KINDS[said["model_type"]])


# %%
described = {theirs: asdict(config)[ours] for ours, theirs in SIZES.items()} | {
    "model_type": "llama",
    "hidden_act": "silu",
}
print(config_from_llama(described | {"rope_theta": 10_000.0}))
try:
    config_from_llama(described | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})
except ValueError as error:
    print(error)

# %% [markdown]
r"""
The chapter began with a model that you have downloaded. Here is what the `config.json` of two of them says about the shape. The models
are made on the meta device, without memory, so they fit into this notebook:
"""

# %%
PUBLISHED = {
    "Qwen3-0.6B": {
        "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "max_position_embeddings": 40_960, "rope_theta": 1_000_000, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
    "Llama 3 8B": {
        "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
        "max_position_embeddings": 8192, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    },
}  # fmt: skip
for name, said_there in PUBLISHED.items():
    with torch.device("meta"):
        published = Llama(config_from_llama(said_there))
    print(f"{name}: {sum(p.numel() for p in published.parameters()):,} parameters")

# %% [markdown]
r"""
596,049,920 and 8,030,261,248: these are the numbers of the models that were published, the "0.6B" and the "8B". The class that you have written in
this chapter is their class, and with their weights `llama_from_hf("Qwen/Qwen3-0.6B")` computes what they compute.

## Reading and writing a model

`config_from_llama` turns a file `config.json` into a `LlamaConfig` and refuses what this model
cannot compute. The rest is the loop over names. `llama_from_hf` first compares the names and shapes of all tensors, so
that a wrong file is refused before any weight is copied. `llama_to_hf` goes the other way.
"""


# %%
#| export labs.llama.pretrained
def llama_from_hf(name_or_dir: str | Path) -> Llama:
    """A Llama or Qwen3 with the weights of a Hugging Face folder or repository, in float32 and eval mode.

    Raises OSError where a file cannot be had, ValueError naming what in it is not this model.
    """
    config_path, paths = find_checkpoint(name_or_dir)
    model, found = Llama(config_from_llama(read_json(config_path))), read_headers(paths)
    wanted = {hf_name(name): p for name, p in model.named_parameters()}
    # Llama 2's files hold the angles' speeds as well, and some hold a tied matrix twice
    found = {name: entry for name, entry in found.items() if not name.endswith(".rotary_emb.inv_freq")}
    if model.config.tied and "lm_head.weight" in found:
        head, wte = (
            read_tensor(*found[name][:2]) for name in ("lm_head.weight", "model.embed_tokens.weight")
        )
        if not torch.equal(head, wte):
            raise ValueError(
                f"{name_or_dir}: config.json ties lm_head to the token table, but the file has two tables"
            )
        del found["lm_head.weight"]
    shapes = {name: tuple(p.shape) for name, p in wanted.items()}
    if wrong := sorted({*shapes.items()} ^ {(name, shape) for name, (_, _, shape, _) in found.items()}):
        raise ValueError(
            f"{name_or_dir} does not hold the weights that its config.json describes: {wrong[0][0]}"
        )
    with torch.no_grad():
        for name, p in wanted.items():
            p.copy_(read_tensor(*found[name][:2]))
            if not p.isfinite().all():
                raise ValueError(f"{name_or_dir}: {name} holds NaN or infinity")
    return model.eval()


# %%
#| export labs.llama.pretrained
def llama_to_hf(model: Llama, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `transformers` and llama_from_hf load; each file atomically."""
    model = getattr(model, "_orig_mod", model)  # torch.compile puts another module around it
    kind = "qwen3" if model.config.qk_norm else "llama"
    fields = {theirs: getattr(model.config, ours) for ours, theirs in SIZES.items()}
    rope = {"rope_theta": model.config.rope_theta, "rope_type": "default"}
    name = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    tensors = {hf_name(n): p.detach().cpu().contiguous() for n, p in model.named_parameters()}
    with atomically(Path(folder) / SINGLE) as file:
        save_file(tensors, file.name, metadata={"format": "pt"})
    fields |= {"model_type": kind, "architectures": [name], "hidden_act": "silu", "rope_parameters": rope}
    save_json(Path(folder) / "config.json", fields)


# %% [markdown]
r"""
We write our small model, read it again, and compare the logits:
"""

# %%
with tempfile.TemporaryDirectory() as scratch:
    llama_to_hf(model, scratch)
    again = llama_from_hf(scratch).to(device)
with torch.no_grad():
    print("written, read, the same logits:", torch.equal(model.eval()(ids)[0], again(ids)[0]))

# %% [markdown]
r"""
The logits are equal, but this proves little, since reading and writing could be wrong in the same way. The proof is a comparison with a program
by others. Where `transformers` is installed, the next cell builds its `LlamaForCausalLM` with random weights, lets it write them, and reads them with `llama_from_hf`.
"""

# %% tags=["nbval-ignore-output"]
if importlib.util.find_spec("transformers"):
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    theirs, read_ids = LlamaForCausalLM(TheirConfig(**sizes, **heads)).eval(), torch.arange(40)[None]
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        theirs.save_pretrained(scratch)
        apart = (llama_from_hf(scratch)(read_ids)[0] - theirs(read_ids).logits).abs().max().item()
    assert apart < 1e-5, f"other logits than LlamaForCausalLM's: {apart:.0e}"
    print("40 rows of logits, all within 0.00001 of LlamaForCausalLM's")

# %% [markdown]
r"""
Our class is theirs. This chapter's tests do the same for `Qwen3ForCausalLM`, compare all gradients as well, and go the other way, from our file to their class.
"""

# %% tags=["nbval-ignore-output"]
predictions("24")

# %%
checkpoint("24")

# %% [markdown]
r"""
## Where to go from here

Three sittings follow, and each can be read without the others. In 24b the trainer learns the second family, so that a Llama is
a run with a file, checkpoints and adapters. 24c reads `tokenizer.model`, the file next to the weights of Llama 2. 24d goes
back to BERT, which is made of GPT's blocks without the mask and has another task.

## Exercises

`course exercises release 24` writes these as a notebook to `released/`; `course check 24` runs their visible checks.

- **24-1** What shared heads save, 15 minutes: count parameters, bytes of the cache, and texts that fit into a GPU.
- **24-2** Two ways to make pairs, 25 minutes: reorder the rows of weights that were trained with other pairs.
- **24-3** A norm that overflows, 15 minutes: repair an RMSNorm for 16 bits.
- **24-4** Shared heads without copies, 25 minutes: write grouped attention by hand.
- **24-5** A check of rotations, 25 minutes: write the check that refuses functions that are no rotary embedding.
- **24-6** A window that slides, 15 minutes: explain what is kept and what is lost when the oldest keys are dropped.

To explore:

1. Train the model on rows of 256 tokens. Where does the loss begin to rise now? Then take the model of this page and train it
   for 50 more steps on rows of 512. *Check*: how much of the rise is left?
2. Set `rope_theta` to 100 and to 1,000,000 and train 400 steps each. *Predict* first which one can no longer tell
   neighbours apart.
3. Multi-query attention is `n_kv_head=1`. How much higher is the loss than with four heads, and how
   much smaller is the cache?
## Further reading

- Grattafiori et al. 2024, [*The Llama 3 Herd of Models*](https://arxiv.org/abs/2407.21783), §3.2 and table 3.
- Yang et al. 2025, [*Qwen3 Technical Report*](https://arxiv.org/abs/2505.09388), §2: QK-norm, no biases.
- Su et al. 2021, [*RoFormer*](https://arxiv.org/abs/2104.09864), §3; Zhang and Sennrich 2019, [*Root Mean Square Layer Normalization*](https://arxiv.org/abs/1910.07467); Ainslie et al. 2023,
  [*GQA*](https://arxiv.org/abs/2305.13245); Shazeer 2020, [*GLU Variants Improve Transformer*](https://arxiv.org/abs/2002.05202).
- Chowdhery et al. 2022, [*PaLM*](https://arxiv.org/abs/2204.02311), §2: no biases. Henry et al. 2020, [*Query-Key Normalization for Transformers*](https://arxiv.org/abs/2010.04245).
"""
