"""GPT-2: attention, blocks and the model, its initialisation, and counts of its parameters and FLOPs.

Exported from notebooks/04_attention.ipynb, grown by notebooks/05_gpt.ipynb, notebooks/06_pretrained.ipynb,
notebooks/08_sampling.ipynb and notebooks/09_measuring.ipynb.
"""

import math
from dataclasses import dataclass
from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights: softmax of qkᵀ/√d over the past (Vaswani et al. 2017, §3.2.1).

    q, k: (..., T, d). Returns (..., T, T) on their device: row t sums to one over keys 0..t and is zero after t.
    """
    T, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # (..., T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)


def head_size(config) -> int:
    """Width of one head, n_embd / n_head. Raises ValueError where the heads cannot share n_embd evenly."""
    if config.n_embd % config.n_head:
        what = f"n_embd={config.n_embd} cannot be shared by n_head={config.n_head} heads of equal width"
        raise ValueError(f"{what}; choose an n_head that divides n_embd")
    return config.n_embd // config.n_head


def split_heads(x: Tensor, n_head: int) -> list[Tensor]:
    """c_attn's output, (B, T, 3·C), as q, k and v, (B, n_head, T, d) each: views, nothing is copied."""
    return [z.unflatten(2, (n_head, -1)).transpose(1, 2) for z in x.chunk(3, dim=2)]


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
        if cache is not None:  # it attends to keys and values that are not in x as well
            y = cache(q, k, v)
        elif self.flash:  # the same sum in one kernel that never stores a (T, T) matrix: chapter 12
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            y = F.dropout(attention_weights(q, k), p) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


class MLP(nn.Module):
    """c_fc widens to 4 C, tanh-GELU, c_proj narrows; every position alone. (B, T, C) -> (B, T, C)."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.c_fc(x), approximate="tanh")  # (B, T, 4·C)
        return self.dropout(self.c_proj(x))  # (B, T, C)


class Block(nn.Module):
    """Attention, then MLP, each reading a normalised copy of the stream and adding to it. (B, T, C) -> (B, T, C)."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache=None) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


def init_weight(name: str, p: Tensor, n_layer: int, generator=None, vocab_size: int | None = None) -> None:
    """GPT-2's initialisation of one weight, in place: see init_weights."""
    if p.dim() == 2:
        std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
        real = p[:vocab_size] if name.endswith("wte.weight") else p
        nn.init.normal_(real, std=std, generator=generator)
        p[len(real) :] = 0
    else:
        nn.init.constant_(p, 0.0 if name.endswith("bias") else 1.0)


@torch.no_grad()
def init_weights(model: nn.Module, n_layer: int, generator=None, vocab_size: int | None = None) -> None:
    """GPT-2's initialisation, in place: matrices N(0, 0.02²), those that write to the stream less by √(2·n_layer).

    Draws from `generator`, or from PyTorch's global one where it is None. Rows of wte from vocab_size on are zero.
    """
    for name, p in model.named_parameters():  # a tied matrix comes once
        init_weight(name, p, n_layer, generator, vocab_size)


def check_ids(idx: Tensor, vocab_size: int) -> None:
    """ValueError where idx is empty or holds an id outside 0..vocab_size-1."""
    if idx.numel() == 0:
        raise ValueError("idx holds no token; begin with at least one, such as <|endoftext|>")
    for extreme in (int(idx.min()), int(idx.max())):
        if not 0 <= extreme < vocab_size:
            fitting = f"use the tokenizer for which vocab_size={vocab_size} was chosen"
            raise ValueError(f"token id {extreme} is outside 0..{vocab_size - 1}; {fitting}")


def check_input(idx: Tensor, config) -> None:
    """ValueError where idx (B, T) is longer than block_size or, looked at on the CPU only, holds a wrong id."""
    limit = config.block_size
    if idx.size(1) > limit:
        raise ValueError(f"{idx.size(1)} tokens exceed block_size={limit}; keep the last: idx[:, -{limit}:]")
    if idx.device.type == "cpu" and not torch.compiler.is_compiling():
        check_ids(idx, config.vocab_size)


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
        least = dict.fromkeys(("block_size", "vocab_size", "n_layer", "n_head", "n_embd"), 1)
        if self.padded_vocab_size is not None:
            least["padded_vocab_size"] = self.vocab_size
        for name, limit in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < limit:
                raise ValueError(f"{name}={value!r} must be an integer of at least {limit}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        head_size(self)  # n_head must divide n_embd

    @property
    def vocab_rows(self) -> int:
        """Rows that the token table has."""
        return self.padded_vocab_size or self.vocab_size


SIZES = {  # Radford et al. 2019, table 2; heads from the released hparams.json
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
}


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 at least, over all rows of the token table."""
    logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten())


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019, §2.3). Build it on the CPU and move it: a seed then gives the same weights anywhere."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation, replaced below, draws numbers
            modules = {
                "wte": nn.Embedding(config.vocab_rows, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
            }
            self.transformer = nn.ModuleDict(modules)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_rows, bias=False)
        self.lm_head.weight = self.transformer.wte.weight  # tied: one matrix reads tokens and predicts them
        init_weights(self, config.n_layer, generator, config.vocab_size)

    def forward(self, idx: Tensor, targets: Tensor | None = None, cache=None) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, vocab_size), and if targets (B, T) are given their mean loss in nats; -100 does not count."""
        check_input(idx, self.config)
        parts = self.transformer
        # a vector for each token, and one for its position
        T = idx.size(1)
        positions = torch.arange(T, device=idx.device) if cache is None else cache.positions(T)
        x = parts.drop(parts.wte(idx) + parts.wpe(positions))  # (B, T, C)
        # the blocks add to it; with a cache, x is what is new since the last call
        for i, block in enumerate(parts.h):
            x = block(x) if cache is None else block(x, cache.layer(i))
        # a score for each token that may come next
        return self.head(x if cache is None else cache.newest(x), targets)

    def head(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """ln_f, lm_head and the loss: from the last block's x (B, T, C)."""
        logits = self.lm_head(self.transformer.ln_f(x))  # (B, T, vocab_rows)
        loss = None if targets is None else next_token_loss(logits, targets)
        return logits[..., : self.config.vocab_size], loss

    @classmethod
    def from_pretrained(cls, name_or_dir, **options) -> "GPT":
        """GPT-2's weights from a Hugging Face folder or repository, such as "gpt2": `nanogpt.pretrained.from_hf`."""
        from nanogpt.pretrained import from_hf  # here: pretrained builds GPTs itself

        return from_hf(name_or_dir, **options)


@singledispatch
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


@singledispatch
def flops_by_part(config: GPTConfig, T: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token by part, in a context of T tokens (default: block_size).

    The parts: "attention, linear", "attention, T×T", "mlp", "lm_head" (with vocab_rows rows), each over all blocks.
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


def step_flops(config: GPTConfig, B: int, T: int) -> int:
    """FLOPs of a training step on B × T tokens, forward and backward: the model's matrix products (chapter 05)."""
    return B * T * flops_per_token(config, T)


def mfu(flops: float, seconds: float, peak_flops: float) -> float:
    """Model FLOPs utilization: the share of `peak_flops` (FLOP/s) that the model's own products were, nothing else."""
    if not (seconds > 0 and peak_flops > 0):
        raise ValueError(f"seconds={seconds} and peak_flops={peak_flops} must both be positive")
    return flops / seconds / peak_flops
