# %% [markdown]
r"""
# 05 · GPT-2: every number accounted for

Attention moves what positions know and computes nothing new from it: once the weights are fixed, its output is a
linear function of the values. GPT-2 alternates it with a small network that works on each position alone.
Both *add* to a stream that runs from the embedding to the logits. That is the whole architecture. Who
cannot say where its parameters, its FLOPs and its first loss come from takes a bug that costs a nat, or half the
speed, for bad luck.
"""

# %%
#| default_exp model
#| doc model: GPT-2: the model, its initialisation, and counts of its parameters and FLOPs.
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from course.notebook import checkpoint, show
from nanogpt.device import seed_everything

g = seed_everything(0)

# %%
fig, ax = plt.subplots(figsize=(7, 2.3))
boxes = {"wte + wpe": 0.6, "ln_1": 2.4, "attn": 3.4, "ln_2": 5.4, "mlp": 6.4, "ln_f": 8.5, "lm_head": 9.9}
ax.plot([-0.6, 11.1], [0, 0], c="C0", lw=3, zorder=0)
for left, right in [(1.7, 4.2), (4.7, 7.2)]:
    ax.plot([left, left, right], [0, 1.1, 1.1], c="gray", zorder=0)
    ax.annotate("", (right, 0.16), (right, 1.1), arrowprops=dict(arrowstyle="->", color="gray"))
    ax.text(
        right, -0.02, "+", ha="center", va="center", bbox=dict(boxstyle="circle,pad=0.1", fc="white", ec="C0")
    )
for name, x in boxes.items():
    box = dict(boxstyle="round,pad=0.3", fc="#dbe9f6" if "ln" not in name else "white", ec="gray")
    ax.text(x, 1.1 if 2 < x < 7 else 0, name, ha="center", va="center", bbox=box, fontsize=9)
ax.text(-0.7, 0, "ids\n(B, T)", ha="right", va="center", fontsize=9)
ax.text(11.2, 0, "logits\n(B, T, V)", ha="left", va="center", fontsize=9)
ax.text(4.5, -0.75, "× n_layer", ha="center", color="gray")
ax.plot([1.5, 1.5, 7.5, 7.5], [-0.4, -0.5, -0.5, -0.4], c="gray", lw=1)
ax.text(2.95, -0.12, "stream (B, T, C)", ha="center", va="top", color="C0", fontsize=8)
ax.set(xlim=(-1.8, 12.6), ylim=(-0.9, 1.4))
ax.axis("off")
show(
    fig,
    alt="GPT-2: token and position vectors start a stream; in each of n_layer blocks, attention and MLP read a normalised copy and add to it; a last LayerNorm and lm_head give logits.",
)

# %% [markdown]
r"""
## Predict

1. Which share of GPT-2 small's parameters is in attention, which in the MLPs, which in the table of tokens?
2. What is the loss of the untrained model, in nats, with 50,257 tokens? To two decimals.
3. How many floating-point operations does training on *one* token take?

## Build

The shape is a handful of numbers. The defaults are GPT-2 small's; the other three sizes differ in three of them.
"""

# %%
#| export
from dataclasses import dataclass

from nanogpt.attention import CausalSelfAttention, head_size


def check_size(name: str, value: int, at_least: int = 1) -> None:
    """ValueError, naming the field, where value is no int or below the limit."""
    if type(value) is not int or value < at_least:
        raise ValueError(f"{name}={value!r} must be an integer of at least {at_least}")


# %%
#| export
@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. ValueError where no model can have it. Defaults: GPT-2 small."""

    block_size: int = 1024  # the longest context, in tokens
    vocab_size: int = 50257  # 256 bytes, 50,000 merges, <|endoftext|>
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True  # in linear layers and LayerNorms; GPT-2 has them
    flash: bool = True  # attention in one fused kernel, or step by step: chapter 12
    padded_vocab_size: int | None = None  # rows of the token table, if more than vocab_size: chapter 13

    def __post_init__(self):
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            check_size(name, getattr(self, name))
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        if self.padded_vocab_size is not None:
            check_size("padded_vocab_size", self.padded_vocab_size, at_least=self.vocab_size)
        head_size(self)

    @property
    def vocab_rows(self) -> int:
        """Rows that the token table has."""
        return self.padded_vocab_size or self.vocab_size


# %%
#| export
SIZES = {  # Radford et al. 2019, table 2
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
}

# %%
for name, config in SIZES.items():
    print(
        f"{name:12} {config.n_layer} layers, {config.n_head} heads of {head_size(config)}, width {config.n_embd}"
    )
for bad in ({"n_embd": 100}, {"n_layer": 0}, {"dropout": 1.5}):
    try:
        GPTConfig(**bad)
    except ValueError as error:
        print(error)

# %% [markdown]
r"""
**MLP.** Widen four times, bend, narrow again. The bend is GELU, x·Φ(x), in the approximation with tanh that GPT-2
was trained with (Hendrycks and Gimpel 2016, §2).
"""

# %%
#| export
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """c_fc widens to 4 C, tanh-GELU, c_proj narrows; every position alone. (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


# %%
z = torch.linspace(-4, 4, 401)
by_hand = 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3)))
tanh, exact = F.gelu(z, approximate="tanh"), F.gelu(z)
assert torch.allclose(by_hand, tanh, atol=1e-6)
fig, axes = plt.subplots(1, 2, figsize=(7, 2.5))
axes[0].plot(z, tanh, label="GELU")
axes[0].plot(z, F.relu(z), ":", c="gray", label="ReLU")
axes[0].set(xlabel="input", ylabel="output")
axes[0].legend()
axes[1].plot(z, 1e4 * (tanh - exact), c="C3")
axes[1].set(xlabel="input", ylabel="tanh − exact (10⁻⁴)")
fig.tight_layout()
show(fig, alt="GELU beside ReLU, and the difference between tanh-GELU and exact GELU, a few ten-thousandths.")
print(f"largest difference: {(tanh - exact).abs().max():.1e}")

# %% [markdown]
r"""
A model trained from scratch would not mind. Equality with pretrained weights would break, and chapter 06 insists on it.

**LayerNorm** subtracts a position's mean over its channels and divides by their standard deviation, then applies a
learned gain and bias. By hand:
"""

# %%
x = 5 + 3 * torch.randn(2, 4, 8, generator=g)
by_hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
assert torch.allclose(by_hand, nn.LayerNorm(8)(x), atol=1e-5)
print(f"before: mean {x.mean():.2f}, standard deviation {x.std(unbiased=False):.2f}")
print(f"after:  mean {by_hand.mean().abs():.2f}, standard deviation {by_hand.std(unbiased=False):.2f}")

# %% [markdown]
r"""
Where it stands decides how easily deep models train. The Transformer of 2017 normalised the stream itself, after each
addition. GPT-2 normalises the *copy* that a layer reads (pre-norm), so from `ln_f` back to the embedding there is a
path on which the gradient meets nothing but additions (Radford et al. 2019, §2.3; Xiong et al. 2020, §3).
"""


# %%
#| export
class Block(nn.Module):
    """Attention, then MLP, each reading a normalised copy of the stream and adding to it. (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache=None) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache)  # cache: chapter 08
        return x + self.mlp(self.ln_2(x))


# %%
block = Block(replace(SIZES["gpt2"], n_embd=96))
x = torch.randn(1, 5, 96, generator=g)
for name, parameter in block.named_parameters():
    print(f"{name:20} {tuple(parameter.shape)}")
print("in and out:", tuple(x.shape), tuple(block(x).shape))

# %% [markdown]
r"""
## Initialisation

GPT-2 draws every matrix from N(0, 0.02²) and every bias as zero. But each block adds twice to the stream. If each
of the 2·n_layer additions is independent and of the same size, the stream's variance grows with the depth, its
standard deviation with √(2·n_layer). So the matrices that *write* to the stream, both `c_proj`, start smaller by
just this factor (Radford et al. 2019, §2.3).
"""

# %%
#| export
import math


@torch.no_grad()
def init_weights(
    model: nn.Module,
    n_layer: int,
    generator: torch.Generator | None = None,
    vocab_size: int | None = None,
) -> None:
    """GPT-2's initialisation, in place: matrices N(0, 0.02²), those that write to the stream less by √(2·n_layer).

    Draws from `generator` alone; from PyTorch's global one where it is None. Rows of wte from vocab_size on are zero.
    """
    for name, p in model.named_parameters():  # a tied matrix comes once
        if p.dim() == 2:
            std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
            real = p[:vocab_size] if name.endswith("wte.weight") else p
            nn.init.normal_(real, std=std, generator=generator)
            p[len(real) :] = 0
        else:
            nn.init.constant_(p, 0.0 if name.endswith("bias") else 1.0)


# %% [markdown]
r"""
Does it do what it says? Follow the stream's root mean square through the blocks, with the small `c_proj` and with
plain 0.02.
"""


# %%
@torch.no_grad()
def stream_scales(n_layer, n_embd, n_head):
    """RMS of the stream before the first block and after each one: with GPT-2's factor, and without it."""
    g = seed_everything(0)
    config = GPTConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head)
    blocks = nn.ModuleList(Block(config) for _ in range(n_layer))
    init_weights(blocks, n_layer, g)
    start = 0.02 * 2**0.5 * torch.randn(1, 64, n_embd, generator=g)  # a token vector plus a position vector
    scales = []
    for factor in (1, math.sqrt(2 * n_layer)):
        for name, p in blocks.named_parameters():
            if name.endswith("c_proj.weight"):
                p *= factor
        stream = [start]
        for block in blocks:
            stream.append(block(stream[-1]))
        scales.append([x.square().mean().sqrt().item() for x in stream])
    return scales


# %%
depths = [2, 4, 8, 16, 32]
small = stream_scales(12, 768, 12)
by_depth = [stream_scales(depth, 256, 4) for depth in depths]
fig, axes = plt.subplots(1, 2, figsize=(7, 2.9))
for i, label in enumerate(["c_proj 0.02 / √(2·n_layer)", "all 0.02"]):
    last = [scales[i][-1] for scales in by_depth]
    axes[0].plot(small[i], "o-", ms=3, label=label)
    axes[1].loglog(depths, last, "o-", ms=3)
    print(f"{label:28} after the last block, by depth: " + "  ".join(f"{value:.2f}" for value in last))
axes[1].loglog(depths, [last[0] * (depth / 2) ** 0.5 for depth in depths], ":", c="gray", label="√depth")
axes[0].set(
    xlabel="block", ylabel="RMS of the stream", title="GPT-2 small's shape", ylim=0, xticks=range(0, 13, 3)
)
axes[1].set(xlabel="n_layer", ylabel="RMS after the last block", title="width 256, by depth")
axes[1].set_xticks(depths, depths)
axes[1].set_yticks([0.1, 0.2, 0.4, 0.8], [0.1, 0.2, 0.4, 0.8])
axes[1].minorticks_off()
for ax in axes:
    ax.legend(fontsize=8)
fig.tight_layout()
show(
    fig,
    alt="Left: without the factor the stream grows with every block, with it far less. Right: without it the last block's scale grows as the root of the depth, with it it hardly depends on depth.",
)

# %% [markdown]
r"""
With the factor, 32 layers leave the stream as large as two do. Without it the stream grows as predicted, and what the
last blocks of a deep model add hardly counts beside what is there.

## The model

An id that the table does not have is a wrong tokenizer. On the CPU we look before the look-up; on a GPU, looking
would make every step wait for the device, so there the shards are checked instead, when they are read (chapter 03).
"""


# %%
#| export
def check_ids(idx: Tensor, vocab_size: int) -> None:
    """Raises ValueError where idx is empty or holds an id outside 0..vocab_size-1."""
    if idx.numel() == 0:
        raise ValueError("idx holds no token; begin with at least one, such as <|endoftext|>")
    low, high = int(idx.min()), int(idx.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"token id {low if low < 0 else high} is outside 0..{vocab_size - 1}; "
            f"use the tokenizer for which vocab_size={vocab_size} was chosen"
        )


# %%
try:
    check_ids(torch.tensor([[5, 50257]]), vocab_size=50257)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
Three decisions remain. Positions are a learned table, `wpe`, added to the token's vector: chapter 04 showed that
a layer of attention knows no order. The matrix that turns the stream into logits *is* the table of tokens, read the
other way (tied embeddings, Press and Wolf 2017). And modules are made on the `meta` device, which allocates
nothing: `nn.Linear` would otherwise fill its weights from the global generator, and a seed that we pass would not
decide alone.
"""


# %%
#| export
def check_input(idx: Tensor, config: GPTConfig) -> None:
    """ValueError where idx (B, T) is longer than block_size or, looked at on the CPU only, holds a wrong id."""
    limit = config.block_size
    if idx.size(1) > limit:
        raise ValueError(f"{idx.size(1)} tokens exceed block_size={limit}; keep the last: idx[:, -{limit}:]")
    if idx.device.type == "cpu" and not torch.compiler.is_compiling():
        check_ids(idx, config.vocab_size)


def empty_modules(config: GPTConfig) -> tuple[nn.ModuleDict, nn.Linear]:
    """The modules of a GPT by GPT-2's names, and the head, which is wte. Memory without values: see init_weights."""
    with torch.device("meta"):
        modules = {
            "wte": nn.Embedding(config.vocab_rows, config.n_embd),
            "wpe": nn.Embedding(config.block_size, config.n_embd),
            "drop": nn.Dropout(config.dropout),
            "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
            "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
        }
        lm_head = nn.Linear(config.n_embd, config.vocab_rows, bias=False)
    transformer = nn.ModuleDict(modules).to_empty(device=torch.get_default_device())
    lm_head.weight = transformer.wte.weight
    return transformer, lm_head


# %%
#| export
def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 at least; rows that pad the vocabulary count: chapter 13."""
    logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten())


# %%
#| export
class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019, §2.3). Build it on the CPU and move it: a seed then gives the same weights anywhere."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        self.transformer, self.lm_head = empty_modules(config)
        init_weights(self, config.n_layer, generator, config.vocab_size)

    def forward(self, idx: Tensor, targets: Tensor | None = None, cache=None) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, vocab_size), and if targets (B, T) are given their mean loss in nats; -100 does not count."""
        check_input(idx, self.config)
        T, parts = idx.size(1), self.transformer
        positions = torch.arange(T, device=idx.device) if cache is None else cache.positions(T)
        x = parts.drop(parts.wte(idx) + parts.wpe(positions))  # (B, T, C)
        for i, block in enumerate(parts.h):  # with a cache, x is what is new since the last call: chapter 08
            x = block(x) if cache is None else block(x, cache.layer(i))
        return self.head(x if cache is None else cache.newest(x), targets)

    def head(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.lm_head(self.transformer.ln_f(x))  # (B, T, vocab_rows)
        loss = None if targets is None else next_token_loss(logits, targets)
        return logits[..., : self.config.vocab_size], loss


# %%
model = GPT(GPTConfig(), generator=torch.Generator().manual_seed(1337))
print(f"parameters: {sum(p.numel() for p in model.parameters()):,}")
print("the head is the table:", model.lm_head.weight is model.transformer.wte.weight)

# %%
model = GPT(GPTConfig(), generator=torch.Generator().manual_seed(1337))
idx = torch.randint(50257, (4, 129), generator=g)
with torch.no_grad():
    logits, loss = model(idx[:, :-1], idx[:, 1:])
print("logits:", tuple(logits.shape))
try:
    model(torch.zeros(1, 1025, dtype=torch.long))
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## Check: the first loss

Question 2. A model that knows nothing spreads its bets over V tokens and loses ln V. Ours is a little worse, and by
a known amount. After `ln_f` a position has length √C. Its product with a random row of `wte` is then normal with
variance σ² = 0.02²·C. Such noise in the logits costs σ²/2 on average, since E[e^z] = e^{σ²/2}.
"""

# %%
C, V = model.config.n_embd, model.config.vocab_size
variance = 0.02**2 * C
print(f"standard deviation of the logits: {logits.std():.3f}, predicted {variance**0.5:.3f}")
print(f"ln V = {math.log(V):.3f}   ln V + σ²/2 = {math.log(V) + variance / 2:.3f}")
print(f"first loss: {loss:.2f}")
assert abs(loss - math.log(V) - variance / 2) < 0.05

# %% [markdown]
r"""
Write this check into every training script: a first loss that is off tells of a bug before any step is taken. Here
is one. Someone leaves the embeddings as PyTorch makes them, N(0, 1), and ties them. Where does this loss come from?
"""

# %%
tiny = GPTConfig(block_size=64, vocab_size=1024, n_layer=2, n_head=4, n_embd=128)
wrong = GPT(tiny, generator=g)
nn.init.normal_(wrong.transformer.wte.weight, generator=g)
ids = torch.randint(1024, (8, 65), generator=g)
logits, loss = wrong(ids[:, :-1], ids[:, 1:])
print(f"ln V = {math.log(1024):.2f}, first loss {loss:.1f}")
same = (logits.argmax(-1) == ids[:, :-1]).float().mean()
print(f"positions where the model bets on the token it has just read: {same:.0%}")

# %% [markdown]
r"""
The stream still holds the token's own vector, and the tied head finds that it is most similar to itself.

## Check: laws
"""

# %%
small = GPT(tiny, generator=torch.Generator().manual_seed(0))
logits, loss = small(ids[:, :-1], ids[:, 1:])

by_hand = -logits.log_softmax(-1).gather(2, ids[:, 1:, None]).mean()
assert torch.allclose(loss, by_hand)  # the loss is the mean of −ln p(next token)

changed = ids[:, :-1].clone()
changed[:, 40:] = (changed[:, 40:] + 1) % 1024
assert torch.allclose(small(changed)[0][:, :40], logits[:, :40], atol=1e-5)  # the future changes no past

layer = GPT(
    replace(tiny, n_layer=1), generator=g
)  # chapter 04: without positions, one layer cannot tell order
shuffled = ids[:, torch.randperm(63, generator=g).tolist() + [63]]
assert not torch.allclose(layer(shuffled)[0][:, -1], layer(ids[:, :-1])[0][:, -1], atol=1e-4)

assert torch.allclose(small(ids[:1, :-1])[0], logits[:1], atol=1e-5)  # rows of a batch are strangers
print("loss by hand, causality, order, independence within a batch: hold")

# %% [markdown]
r"""
And the seed that is passed decides alone, whatever was drawn before:
"""

# %%
state = torch.get_rng_state()
torch.rand(1000)
again = GPT(tiny, generator=torch.Generator().manual_seed(0))
assert all(torch.equal(a, b) for a, b in zip(small.parameters(), again.parameters()))
torch.set_rng_state(state)
GPT(tiny, generator=g)
assert torch.equal(torch.get_rng_state(), state)
print("same weights; the global generator was not touched")

# %% [markdown]
r"""
## Where are the parameters?

Question 1. A linear layer from m to n has m·n weights and n biases. With C = n_embd: `c_attn` is C → 3C and its
`c_proj` C → C; the MLP is C → 4C → C; a LayerNorm has a gain and a bias per channel. The head is tied and costs
nothing.
"""


# %%
#| export
def params_by_part(config: GPTConfig) -> dict[str, int]:
    """Number of parameters by part, from the shape alone."""
    C, L, bias = config.n_embd, config.n_layer, int(config.bias)
    return {
        "wte": config.vocab_rows * C,
        "wpe": config.block_size * C,
        "attention": L * (4 * C * C + bias * 4 * C),
        "mlp": L * (8 * C * C + bias * 5 * C),
        "layer norm": (2 * L + 1) * (1 + bias) * C,
    }


def num_params(config: GPTConfig) -> int:
    """Number of parameters of GPT(config): 124,439,808 for GPT-2 small."""
    return sum(params_by_part(config).values())


# %%
print(f"{'':12}" + "".join(f"{part:>15}" for part in params_by_part(SIZES["gpt2"])) + f"{'in all':>15}")
for name, config in SIZES.items():
    print(
        f"{name:12}"
        + "".join(f"{n:15,}" for n in params_by_part(config).values())
        + f"{num_params(config):15,}"
    )
    with torch.device("meta"):  # the real modules, without their memory
        assert sum(p.numel() for p in GPT(config).parameters()) == num_params(config)

# %%
fig, ax = plt.subplots(figsize=(7, 2.6))
start = torch.zeros(len(SIZES))
for part in params_by_part(GPTConfig()):
    share = torch.tensor([100 * params_by_part(c)[part] / num_params(c) for c in SIZES.values()])
    ax.barh(list(SIZES), share, left=start, label=part)
    for row, (left, width) in enumerate(zip(start, share)):
        if width > 4:
            ax.text(left + width / 2, row, f"{width:.0f}", ha="center", va="center", color="white")
    start += share
ax.set(xlabel="share of the parameters (%)", xlim=(0, 100))
ax.invert_yaxis()
ax.grid(False)
ax.legend(ncol=5, loc="lower center", bbox_to_anchor=(0.45, 1), fontsize=8)
show(
    fig,
    alt="Share of the parameters by part for the four sizes: the token table shrinks from a third to a twentieth, the MLPs grow to nearly two thirds.",
)

# %% [markdown]
r"""
In the small model the token table outweighs all of attention, and untied it would count twice. In the largest one
attention and MLPs are nearly everything, at one to two.

## Where do the FLOPs go?

Question 3. A product of (1, m) by (m, n) takes m·n multiplications and as many additions: 2·m·n. So each weight of a
linear layer costs 2 FLOPs per token. Attention adds products without weights: T scores of C channels, and a sum of T
values of C channels, 2·T·C each per layer. The backward pass makes two products for each product of the forward pass,
one for the gradient of either factor: three times the forward pass in all.
"""


# %%
#| export
def flops_by_part(config: GPTConfig, T: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token by part, in a context of T tokens (default: block_size).

    Counts matrix products, 2 FLOPs for each multiply and add, and attention's T×T in full, although half of it
    is masked. Does not count biases, LayerNorm, GELU, softmax, sums and look-ups.
    """
    C, L, T = config.n_embd, config.n_layer, T or config.block_size
    return {
        "attention, linear": L * 2 * 4 * C * C,
        "attention, T×T": L * 2 * 2 * T * C,
        "mlp": L * 2 * 8 * C * C,
        "lm_head": 2 * C * config.vocab_rows,
    }


def flops_per_token(config: GPTConfig, T: int | None = None) -> int:
    """FLOPs per token of one training step, forward and backward: 3 × the sum of flops_by_part."""
    return 3 * sum(flops_by_part(config, T).values())


# %% [markdown]
r"""
PyTorch can count as well: `FlopCounterMode` watches every operation and knows a formula for those that are matrix
products. On the meta device it counts full-sized models without computing anything. The two must agree to the last
FLOP.
"""

# %%
for name, config in SIZES.items():
    config = replace(config, flash=False)  # every product in the open
    with torch.device("meta"):
        meta, ids = GPT(config), torch.zeros(1, 1024, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        _, loss = meta(ids, ids)
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == 1024 * sum(flops_by_part(config).values())
    assert counter.get_total_flops() == 1024 * flops_per_token(config)
    ratio = flops_per_token(config) / (6 * num_params(config))
    print(f"{name:12} {flops_per_token(config):14,} FLOPs per token, {ratio:.3f} of the rule of thumb 6·N")

# %% [markdown]
r"""
The rule of thumb counts six FLOPs for each of N parameters (Kaplan et al. 2020, §2.1, with N without embeddings). What
it leaves out is T×T, so it holds while T is not much larger than C. Longer contexts:
"""

# %%
lengths = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
config = SIZES["gpt2"]
parts = {part: [flops_by_part(config, T)[part] / 1e6 for T in lengths] for part in flops_by_part(config)}
fig, ax = plt.subplots(figsize=(6.5, 3))
ax.stackplot(range(len(lengths)), list(parts.values()), labels=list(parts), alpha=0.85)
ax.axvline(lengths.index(1024), c="k", ls=":")
ax.set_xticks(range(len(lengths)), lengths)
ax.set(xlabel="context length T (tokens)", ylabel="forward MFLOPs per token", title="GPT-2 small")
ax.legend(loc="upper left")
show(
    fig,
    alt="Forward FLOPs per token of GPT-2 small against context length: linear layers and lm_head are constant, attention's T by T part grows linearly and overtakes all others.",
)
for T in (1024, 16384):
    share = flops_by_part(config, T)["attention, T×T"] / sum(flops_by_part(config, T).values())
    print(f"T = {T:5}: {share:.0%} of the FLOPs are attention's T×T")

# %% [markdown]
r"""
In GPT-2's context attention's T×T is a small part of the FLOPs. Its part of the *time* is another matter: chapters 09
and 11 measure it.

## Checkpoint
"""

# %%
checkpoint("05")

# %% [markdown]
r"""
## Exercises

1. Design a model of 24 layers with GPT-2 small's parameter count to within 1%, its width a multiple of 64. *Check:*
   `num_params`. Do its FLOPs per token rise or fall, and which part does it?
2. Untie `lm_head`. *Check:* `num_params` grows by exactly `vocab_size * n_embd`, `flops_per_token` by nothing.
3. Take out all MLPs of GPT-2 small and add attention layers until the parameter count is the same again. *Check:* how
   do the FLOPs per token compare at T = 1024, and at T = 16384?
4. OpenAI's code draws `wpe` with 0.01, not 0.02. *Check:* does the first loss change, and should it, by the argument
   above?

## Further reading

- A. Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019, §2.3: the changes from GPT to GPT-2,
  in one paragraph. The code, github.com/openai/gpt-2, `src/model.py`, has the rest.
- D. Hendrycks, K. Gimpel, *Gaussian Error Linear Units*, 2016, §2.
- O. Press, L. Wolf, *Using the Output Embedding to Improve Language Models*, 2017: tied embeddings.
- R. Xiong et al., *On Layer Normalization in the Transformer Architecture*, 2020, §3: pre-norm and post-norm.
- J. Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, §2.1: where 6·N comes from.
"""
