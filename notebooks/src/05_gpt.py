# %% [markdown]
r"""
# 05 · GPT-2: every number accounted for

Attention moves what positions know; apart from softmax's weights, all it does is linear in the values. GPT-2
alternates it with a small network that works on each position alone. Both *add* to a stream that runs from the
embedding to the logits. That is the whole architecture. Without knowing where its parameters, its FLOPs and its first
loss come from, a bug that costs a nat, or half the speed, looks like a model that happens to be no better.
"""

# %%
#| default_exp gpt.model
#| doc gpt.model: GPT-2: the model, its initialisation, and counts of its parameters and FLOPs.
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from course.figures import gpt as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import seed_everything

g = seed_everything(0)

# %%
show(
    figures.architecture(),
    alt="GPT-2: token and position vectors start a stream; in each of n_layer blocks, attention and MLP read a normalised copy and add to it; a last LayerNorm and lm_head give logits.",
)

# %% [markdown]
r"""
## Predict

Replace `None` by your guess, or run on.
"""

# %%
predict("05.1", "the token table's share of GPT-2 small's parameters", guess=None, unit="%")
predict("05.2", "first loss of the untrained model, 50,257 tokens", guess=None, unit="nats")
predict("05.3", "GPT-2 small, T = 1024: MFLOPs to train on one token", guess=None)
predict("05.4", "first loss if wte is drawn from N(0, 1), C = 128", guess=None, unit="nats")

# %% [markdown]
r"""
## Build

The shape is a handful of numbers. The defaults are GPT-2 small's; the other three sizes differ in three of them. (The
paper's table 2 gives layers and widths, no heads, and calls the sizes 117M, 345M, 762M and 1542M. Those counts were
wrong, as OpenAI later noted beside the released code, which has the heads. The right ones are below.)
"""

# %%
#| export
from dataclasses import dataclass

from nanogpt.gpt.attention import CausalSelfAttention, head_size


def check_shape(config) -> None:
    """ValueError, naming the field, where no GPT can have this shape."""
    least = dict.fromkeys(("block_size", "vocab_size", "n_layer", "n_head", "n_embd"), 1)
    if config.padded_vocab_size is not None:
        least["padded_vocab_size"] = config.vocab_size
    for name, limit in least.items():
        value = getattr(config, name)
        if type(value) is not int or value < limit:
            raise ValueError(f"{name}={value!r} must be an integer of at least {limit}")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout={config.dropout} must be at least 0 and below 1")
    head_size(config)


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
        check_shape(self)

    @property
    def vocab_rows(self) -> int:
        """Rows that the token table has."""
        return self.padded_vocab_size or self.vocab_size


# %%
#| export
SIZES = {  # Radford et al. 2019, table 2; heads from the released hparams.json
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
for bad in ({"n_embd": 100}, {"n_layer": 0}, {"n_embd": 768.0}, {"dropout": 1.5}):
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
assert torch.allclose(by_hand, tanh, atol=1e-6), "PyTorch's tanh-GELU is another"
show(
    figures.gelu(z, tanh, exact, F.relu(z)),
    alt="GELU beside ReLU, and the difference between tanh-GELU and exact GELU, a few ten-thousandths.",
)
print(f"largest difference: {(tanh - exact).abs().max():.1e}")

# %% [markdown]
r"""
The approximation is off by less than a thousandth. Training from scratch works with either form, but weights trained
with one give other logits with the other: chapter 06 measures that.

**LayerNorm** subtracts a position's mean over its channels and divides by their standard deviation, then applies a
learned gain and bias. By hand:
"""

# %%
x = 5 + 3 * torch.randn(2, 4, 8, generator=g)
by_hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
assert torch.allclose(by_hand, nn.LayerNorm(x.size(-1))(x), atol=1e-5), "PyTorch's LayerNorm is another"
print(f"before: mean {x.mean():.2f}, standard deviation {x.std(unbiased=False):.2f}")
print(f"after:  mean {by_hand.mean().abs():.2f}, standard deviation {by_hand.std(unbiased=False):.2f}")

# %% [markdown]
r"""
The Transformer of 2017 normalised the stream itself, after each addition. GPT-2 normalises the *copy* that a layer reads
(pre-norm), so from `ln_f` back to the embedding there is a path on which the gradient meets nothing but additions
(Radford et al. 2019, §2.3; Xiong et al. 2020, §3).
"""


# %%
#| export
#| blank Block.forward: attention, then the MLP; each reads the normalized x and adds its result to x
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

OpenAI's code draws the matrices from N(0, 0.02²), `wpe` from N(0, 0.01²), and biases are zero. Here, as at Hugging
Face, `wpe` gets 0.02 too (the last experiment below). But each block adds twice to the stream. If each of the 2·n_layer additions is
independent and of the same size, the stream's variance grows with the depth, its standard deviation with √(2·n_layer).
So the matrices that *write* to the stream, both `c_proj`, start smaller by just this factor (Radford et al. 2019, §2.3).
"""

# %%
#| export
#| blank init_weights: draw every matrix, c_proj with a smaller spread; biases are 0, gains are 1
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
What does the factor buy? Follow the stream's root mean square through the blocks, with the small `c_proj` and with
plain 0.02, and see how much of what arrives at the end is still the embedding.
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
labels = ["c_proj 0.02 / √(2·n_layer)", "all 0.02"]
small, by_depth = stream_scales(12, 768, 12), {depth: stream_scales(depth, 256, 4) for depth in depths}
shares = {
    label: {depth: scales[i][0] / scales[i][-1] for depth, scales in by_depth.items()}
    for i, label in enumerate(labels)
}
show(
    figures.stream(dict(zip(labels, small)), shares),
    alt="Left: without the factor the stream grows with every block, with it far less. Right: the embedding's share of the stream at the end stays at a third with the factor at any depth, and falls to 4 percent at 32 layers without.",
)
for label, share in shares.items():
    print(
        f"{label:28} embedding / stream, by depth: " + "  ".join(f"{value:.3f}" for value in share.values())
    )

# %% [markdown]
r"""
With the factor the embedding keeps its share of the stream, whatever the depth. Without it the first additions drown it,
and the head, which compares the stream with the embeddings, reads almost nothing of it.

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
#| export
def check_input(idx: Tensor, config: GPTConfig) -> None:
    """ValueError where idx (B, T) is longer than block_size or, looked at on the CPU only, holds a wrong id."""
    limit = config.block_size
    if idx.size(1) > limit:
        raise ValueError(f"{idx.size(1)} tokens exceed block_size={limit}; keep the last: idx[:, -{limit}:]")
    if idx.device.type == "cpu" and not torch.compiler.is_compiling():
        check_ids(idx, config.vocab_size)


# %%
for idx in (torch.tensor([[5, 50257]]), torch.zeros(1, 1025, dtype=torch.long)):
    try:
        check_input(idx, GPTConfig())
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
def table(rows: int, columns: int) -> nn.Embedding:
    """A vector for each row. nn.Embedding(...) draws values even on `meta`, and loads PyTorch's compiler for it: 0.7 s."""
    return nn.Embedding.from_pretrained(torch.empty(rows, columns), freeze=False)


def empty_modules(config: GPTConfig) -> tuple[nn.ModuleDict, nn.Linear]:
    """The modules of a GPT by GPT-2's names, and the head, which is wte. Memory without values: see init_weights."""
    with torch.device("meta"):
        modules = {
            "wte": table(config.vocab_rows, config.n_embd),
            "wpe": table(config.block_size, config.n_embd),
            "drop": nn.Dropout(config.dropout),
            "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
            "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
        }
        lm_head = nn.Linear(config.n_embd, config.vocab_rows, bias=False)
    transformer = nn.ModuleDict(modules)  # to_empty() would load the compiler's algebra of shapes: 0.3 s
    memory = {name: torch.empty(p.shape) for name, p in transformer.state_dict().items()}
    transformer.load_state_dict(memory, assign=True)
    lm_head.weight = transformer.wte.weight
    return transformer, lm_head


# %%
#| export
#| blank next_token_loss: make one row of logits for each target, then take the cross-entropy
def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 at least; rows that pad the vocabulary count: chapter 13."""
    logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten())


# %% [markdown]
r"""
The forward pass is the figure, read from left to right. The head is a method of its own, so that later chapters can
compile it apart; `cache` is chapter 08's, rows that are no token chapter 13's.
"""


# %%
#| export
#| blank GPT.forward: add token and position embeddings, apply drop, run the blocks, call head
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
        """ln_f, lm_head and the loss: from the last block's x (B, T, C)."""
        logits = self.lm_head(self.transformer.ln_f(x))  # (B, T, vocab_rows)
        loss = None if targets is None else next_token_loss(logits, targets)
        return logits[..., : self.config.vocab_size], loss


# %%
model = GPT(GPTConfig(), generator=torch.Generator().manual_seed(1337))
print(f"parameters: {sum(p.numel() for p in model.parameters()):,}")
print("the head is the table:", model.lm_head.weight is model.transformer.wte.weight)
C, V = model.config.n_embd, model.config.vocab_size
idx = torch.randint(V, (4, 129), generator=g)
with torch.no_grad():
    logits, loss = model(idx[:, :-1], idx[:, 1:])
print("logits:", tuple(logits.shape))

# %% [markdown]
r"""
## Check: the first loss

Question 2. A model that knows nothing spreads its bets over V tokens and loses ln V. Ours is a little worse, and by
a known amount. After `ln_f` a position has length √C. Its product with a random row of `wte` is then normal with
variance σ² = 0.02²·C. Such noise in the logits costs σ²/2 on average, since E[e^z] = e^{σ²/2}.
"""

# %%
variance = 0.02**2 * C
print(f"standard deviation of the logits: {logits.std():.3f}, predicted {variance**0.5:.3f}")
print(f"ln V = {math.log(V):.3f}   ln V + σ²/2 = {math.log(V) + variance / 2:.3f}")
print(f"first loss: {loss:.2f}")
answer("05.2", round(loss.item(), 2))
assert abs(loss - math.log(V) - variance / 2) < 0.05, (
    "the first loss is not ln V + σ²/2: something is wired wrong"
)

# %% [markdown]
r"""
What does such a model write? A tiny one, over the 95 printable ASCII characters:
"""

# %%
tiny = GPTConfig(block_size=64, vocab_size=1024, n_layer=2, n_head=4, n_embd=128)
writer, text = GPT(replace(tiny, vocab_size=95), generator=g), torch.tensor([[0]])
while text.size(1) < tiny.block_size:
    p = writer(text)[0][:, -1].softmax(-1)
    text = torch.cat([text, p.multinomial(1, generator=g)], dim=1)
print("".join(chr(32 + i) for i in text[0].tolist()))

# %% [markdown]
r"""
Write the check of the first loss into every training script: one that is off tells of a bug before any step is taken.
Here is a bug. Someone leaves the embeddings as PyTorch makes them, N(0, 1), and ties them. Where does this loss come from?
"""

# %%
wrong = GPT(tiny, generator=g)
nn.init.normal_(wrong.transformer.wte.weight, generator=g)
ids = torch.randint(tiny.vocab_size, (8, tiny.block_size + 1), generator=g)
x, y = ids[:, :-1], ids[:, 1:]
logits, loss = wrong(x, y)
print(f"ln V = {math.log(tiny.vocab_size):.2f}, first loss {loss:.0f}, C = {tiny.n_embd}")
print(f"positions where it bets on the token just read: {(logits.argmax(-1) == x).float().mean():.0%}")
answer("05.4", round(loss.item()))

# %% [markdown]
r"""
The stream is still nearly the token's own vector w, which `ln_f` leaves at length √C. The tied head compares it with
every row and finds itself: w · w is about C, the other products scatter around zero. The model bets everything on the
token it has just read and pays the whole difference, about C nats.

## Check: laws
"""

# %%
small = GPT(tiny, generator=torch.Generator().manual_seed(0)).eval()  # no dropout: laws are exact
logits, loss = small(x, y)

by_hand = -logits.log_softmax(-1).gather(2, y[..., None]).mean()
assert torch.allclose(loss, by_hand), "the loss is not the mean of −ln p(next token)"

changed, t = x.clone(), x.size(1) // 2
changed[:, t:] = (changed[:, t:] + 1) % tiny.vocab_size
assert torch.allclose(small(changed)[0][:, :t], logits[:, :t], atol=1e-5), "the future changed the past"

# Chapter 04: without positions, one layer cannot tell order.
layer = GPT(replace(tiny, n_layer=1), generator=g).eval()
shuffled = x[:, [*torch.randperm(x.size(1) - 1, generator=g).tolist(), x.size(1) - 1]]
assert not torch.allclose(layer(shuffled)[0][:, -1], layer(x)[0][:, -1], atol=1e-4), "order does not matter"

assert torch.allclose(small(x[:1])[0], logits[:1], atol=1e-5), "rows of a batch see each other"
print("loss by hand, causality, order, independence within a batch: hold")

# %% [markdown]
r"""
And the seed that is passed decides alone, whatever was drawn before:
"""

# %%
torch.rand(1000)
state = torch.get_rng_state()
again = GPT(tiny, generator=torch.Generator().manual_seed(0))
assert all(map(torch.equal, small.parameters(), again.parameters())), "the same seed gave other weights"
assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
print("same weights; the global generator was not touched")

# %% [markdown]
r"""
## What the path is for

Take the additions away: each layer *replaces* the stream. Everything has the same shapes. Compare the gradient that
reaches each depth, how alike neighbouring positions are, and whether one batch can be learned by heart.
"""


# %%
class NoPath(Block):
    def forward(self, x, cache=None):
        return self.mlp(self.ln_2(self.attn(self.ln_1(x), cache)))


def follow(kind, config, steps=60):
    """Gradient norms and likeness of positions by depth before training, and the loss of each step on one batch."""
    model, stream = GPT(config, generator=torch.Generator().manual_seed(0)), []
    for block in model.transformer.h:
        block.__class__ = kind
    for part in (model.transformer.drop, *model.transformer.h):
        part.register_forward_hook(lambda part, args, out: stream.append(out))
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(steps):
        loss = model(x[:4, :32] % config.vocab_size, y[:4, :32] % config.vocab_size)[1]
        if not losses:
            gradients = [grad.norm().item() for grad in torch.autograd.grad(loss, stream, retain_graph=True)]
            alike = [F.cosine_similarity(s[:, 1:], s[:, :-1], dim=-1).mean().item() for s in stream]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return gradients, alike, losses


# %%
torch.set_num_threads(1)  # sums in one order: what is printed does not hang on the number of threads
config = replace(tiny, vocab_size=256, n_layer=6, n_embd=64)
results = {name: follow(kind, config) for name, kind in {"with the path": Block, "without": NoPath}.items()}
show(
    figures.path(*({name: result[i] for name, result in results.items()} for i in range(3))),
    alt="With the path gradients are moderate, positions stay different and the loss falls to zero; without it gradients are no smaller, but all positions become alike after one block and the loss stays above 4.",
)
counts = (y[:4, :32] % config.vocab_size).flatten().bincount().float()
p = counts[counts > 0] / counts.sum()
print(f"counting the batch's tokens would give {-(p * p.log()).sum():.2f} nats")
for name, (_, alike, losses) in results.items():
    print(f"{name}: after block 1 a cosine of {alike[1]:.2f}, in the end {losses[-1]:.1f} nats")

# %% [markdown]
r"""
Not the size of the gradient is what is lost (each LayerNorm scales small signals up again, and their gradients with
them). Untrained attention averages almost evenly, so after one block all positions hold the same vector, and no later
layer can tell them apart (Dong et al. 2021). What remains is to learn how frequent each token is. The path carries
every position's own token past the averages.

## Where are the parameters?

A linear layer from m to n has m·n weights and n biases. With C = n_embd: `c_attn` is C → 3C and its
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
    counts = [*params_by_part(config).values(), num_params(config)]
    print(f"{name:12}" + "".join(f"{n:15,}" for n in counts))
    with torch.device("meta"):  # the real modules, without their memory
        assert sum(p.numel() for p in GPT(config).parameters()) == counts[-1], f"{name}: the formula is wrong"

# %%
parts = {name: params_by_part(config) for name, config in SIZES.items()}
show(
    figures.shares(parts),
    alt="Share of the parameters by part for the four sizes: the token table shrinks from a third to a twentieth, the MLPs grow to nearly two thirds.",
)
answer("05.1", round(100 * parts["gpt2"]["wte"] / num_params(SIZES["gpt2"])))

# %% [markdown]
r"""
In the small model the token table outweighs all of attention, and untied it would count twice. In the largest one
attention and MLPs are nearly everything, at one to two.

## Where do the FLOPs go?

A product of (1, m) by (m, n) takes m·n multiplications and as many additions: 2·m·n. So each weight of a
linear layer costs 2 FLOPs per token. Attention adds products without weights: T scores of C channels, and a sum of T
values of C channels, 2·T·C each per layer. The backward pass makes two products for each product of the forward pass,
one for the gradient of either factor: three times the forward pass in all.
"""


# %%
#| export
#| blank flops_by_part: a product with an m × n matrix costs 2mn FLOPs for each token
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
for name in ("gpt2", "gpt2-medium"):
    config = replace(SIZES[name], flash=False)  # every product in the open
    with torch.device("meta"):
        meta, ids = GPT(config), torch.zeros(1, 1024, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        _, loss = meta(ids, ids)
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == 1024 * sum(flops_by_part(config).values()), "forward: the formula and PyTorch differ"
    assert counter.get_total_flops() == 1024 * flops_per_token(config), "forward and backward: they differ"
    print(f"{name:12} {flops_per_token(config):14,} FLOPs to train on a token: formula and PyTorch agree")
answer("05.3", round(flops_per_token(SIZES["gpt2"]) / 1e6))

# %% [markdown]
r"""
A rule of thumb counts six FLOPs for each of N parameters, where Kaplan et al. (2020, §2.1) leave the embeddings out of
N. What does the rule leave out?
"""

# %%
print(f"{'MFLOPs':14}{'all':>7}{'6·N':>9}{'lm_head':>9}{'T×T':>9}{'6·(N and tables)':>18}")
for name, config in SIZES.items():
    parts, params = flops_by_part(config), params_by_part(config)
    tables = params["wte"] + params["wpe"]
    row = [flops_per_token(config), 6 * (num_params(config) - tables)]
    row += [3 * parts["lm_head"], 3 * parts["attention, T×T"]]
    print(f"{name:12}" + "".join(f"{n / 1e6:9.0f}" for n in row) + f"{6 * num_params(config) / 1e6:18.0f}")

# %% [markdown]
r"""
In the small model 6·N misses two fifths: most of it is `lm_head`, which has no parameters of its own when tied but
costs like any matrix, the rest T×T. The larger the model, the better the rule. With the tables counted into N, about T×T is
missing, which grows with the context:
"""

# %%
config, lengths = SIZES["gpt2"], list(range(512, 16385, 512))
parts = {part: [flops_by_part(config, T)[part] / 1e6 for T in lengths] for part in flops_by_part(config)}
show(
    figures.flops(lengths, parts, marked=config.block_size),
    alt="Forward FLOPs per token of GPT-2 small against context length: linear layers and lm_head are constant, attention's T by T part grows as a straight line and overtakes all others.",
)
for T in (1024, 16384):
    share = flops_by_part(config, T)["attention, T×T"] / sum(flops_by_part(config, T).values())
    print(f"T = {T:5}: {share:.0%} of the FLOPs are attention's T×T")

# %% [markdown]
r"""
In GPT-2's context attention's T×T is a small part of the FLOPs. Its part of the *time* is another matter: chapters 09
and 12 measure it.

## Checkpoint
"""

# %%
predictions("05")

# %%
checkpoint("05")

# %% [markdown]
r"""
## Exercises

`course exercises release 05` writes these as a notebook to `released/`; `course check 05` runs their visible checks.

- **05-1** Nearly LayerNorm, 15 minutes: mend one that differs from GPT-2's in two places.
- **05-2** Count a model that nobody has built, 30 minutes: parameters and FLOPs with shared keys and values.
- **05-3** Counted twice, 5 minutes: mend a count that finds 39 million parameters too many.
- **05-4** A block that adds three times, 25 minutes: mend an initialisation, for any number of additions.
- **05-5** A check for an untrained model, 45 minutes: write the check of five laws, the first loss among them.
- **05-6** A first loss that is too good, 10 minutes: find the mistake that lowers it by one nat.

To explore:

- Design a model of 24 layers with GPT-2 small's parameter count to within 1%, its width a multiple of 64. Do its FLOPs
  per token rise or fall, and which part does it?
- Untie `lm_head`. `num_params` should grow by exactly `vocab_size * n_embd`, `flops_per_token` by nothing.
- Take out all MLPs of GPT-2 small and add attention layers until the parameter count is the same again. How
  do the FLOPs per token compare at T = 1024, and at T = 16384?
- OpenAI's code draws `wpe` with 0.01, not 0.02. Does the first loss change, and should it, by the argument
  above?

## Further reading

- A. Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019, §2.3: the changes from GPT to GPT-2,
  in one paragraph. The code, github.com/openai/gpt-2, `src/model.py`, has the rest.
- D. Hendrycks, K. Gimpel, *Gaussian Error Linear Units*, 2016, §2.
- O. Press, L. Wolf, *Using the Output Embedding to Improve Language Models*, 2017: tied embeddings.
- Y. Dong, J.-B. Cordonnier, A. Loukas, *Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
  with Depth*, 2021.
- R. Xiong et al., *On Layer Normalization in the Transformer Architecture*, 2020, §3: pre-norm and post-norm.
- J. Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, §2.1: where 6·N comes from.
"""
