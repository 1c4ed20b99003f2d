"""GPT-2: the model, its initialisation, and counts of its parameters and FLOPs.

Exported from notebooks/05_gpt.ipynb.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.attention import CausalSelfAttention, head_size


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

    def __post_init__(self):
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        head_size(self)


SIZES = {  # Radford et al. 2019, table 2
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
}


class MLP(nn.Module):
    """c_fc widens to 4 C, tanh-GELU, c_proj narrows; every position alone. (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), approximate="tanh")))


class Block(nn.Module):
    """Attention, then MLP, each reading a normalised copy of the stream and adding to it. (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def init_weights(model: nn.Module, n_layer: int, generator: torch.Generator | None = None) -> None:
    """GPT-2's initialisation, in place: matrices N(0, 0.02²), those that write to the stream less by √(2·n_layer).

    Draws from `generator` alone; from PyTorch's global one where it is None.
    """
    for name, p in model.named_parameters():  # a tied matrix comes once
        if p.dim() == 2:
            std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
            nn.init.normal_(p, std=std, generator=generator)
        else:
            nn.init.constant_(p, 0.0 if name.endswith("bias") else 1.0)


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


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019, §2.3), its weights drawn from `generator`: see init_weights.

    Build it on the CPU and move it, so that a seed gives the same weights on every device.
    """

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(config.vocab_size, config.n_embd),
                    "wpe": nn.Embedding(config.block_size, config.n_embd),
                    "drop": nn.Dropout(config.dropout),
                    "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                    "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
                }
            )
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.to_empty(device=torch.get_default_device())
        self.lm_head.weight = self.transformer.wte.weight
        init_weights(self, config.n_layer, generator)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, vocab_size) for the token after each position, and the mean loss in nats if targets are given.

        idx, targets: (B, T) int64, T <= block_size. A target of -100 does not count.
        """
        limit = self.config.block_size
        if idx.size(1) > limit:
            raise ValueError(
                f"{idx.size(1)} tokens exceed block_size={limit}; keep the last: idx[:, -{limit}:]"
            )
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            check_ids(idx, self.config.vocab_size)
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(positions))  # (B, T, C)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))  # (B, T, V)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def params_by_part(config: GPTConfig) -> dict[str, int]:
    """Number of parameters by part, from the shape alone."""
    C, L, bias = config.n_embd, config.n_layer, int(config.bias)
    return {
        "wte": config.vocab_size * C,
        "wpe": config.block_size * C,
        "attention": L * (4 * C * C + bias * 4 * C),
        "mlp": L * (8 * C * C + bias * 5 * C),
        "layer norm": (2 * L + 1) * (1 + bias) * C,
    }


def num_params(config: GPTConfig) -> int:
    """Number of parameters of GPT(config): 124,439,808 for GPT-2 small."""
    return sum(params_by_part(config).values())


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
        "lm_head": 2 * C * config.vocab_size,
    }


def flops_per_token(config: GPTConfig, T: int | None = None) -> int:
    """FLOPs per token of one training step, forward and backward: 3 × the sum of flops_by_part."""
    return 3 * sum(flops_by_part(config, T).values())
