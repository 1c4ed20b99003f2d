"""Llama and Qwen3: RMSNorm, rotary positions, grouped queries, SwiGLU, no biases.

Exported from notebooks/24_llama.ipynb, grown by notebooks/24b_llama_runs.ipynb.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.model import check_input, flops_by_part, init_weights, next_token_loss, params_by_part


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


def rope_angles(positions: Tensor, d: int, theta: float) -> Tensor:
    """Angles of d/2 pairs at positions (T,) or (B, T): (..., T, d/2), in float32 (Su et al. 2021, §3.2.2)."""
    speeds = theta ** (-torch.arange(0, d, 2, device=positions.device).float() / d)  # (d/2,)
    return positions[..., None].float() * speeds


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_(i + d/2)) of x (B, heads, T, d) by its angle; angles (T, d/2) or (B, T, d/2).

    The angles are float32, the result has x's type.
    """
    angles = angles.unsqueeze(-3)  # (..., 1, T, d/2): the same for all heads
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


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


class SwiGLU(nn.Module):
    """c_proj(silu(c_gate(x)) · c_fc(x)): an MLP with a gate (Shazeer 2020, §2). (B, T, C) -> (B, T, C)."""

    def __init__(self, n_embd: int, n_hidden: int):
        super().__init__()
        self.c_gate = nn.Linear(n_embd, n_hidden, bias=False)
        self.c_fc = nn.Linear(n_embd, n_hidden, bias=False)
        self.c_proj = nn.Linear(n_hidden, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.silu(self.c_gate(x)) * self.c_fc(x))


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


@params_by_part.register(LlamaConfig)
def llama_params(c) -> dict[str, int]:
    """Number of parameters by part, from the shape alone: wte, attention, mlp, norms and lm_head, 0 if it is tied.

    norms: those of C numbers. The norms of queries and keys belong to attention.
    """
    C, L, d = c.n_embd, c.n_layer, c.head_size
    heads = 2 * c.n_head + 2 * c.n_kv_head  # of queries and the projection, and of keys and values
    gains = 2 * d if c.qk_norm else 0  # of the norms of queries and keys
    return {
        "wte": c.vocab_size * C,
        "attention": L * (heads * d * C + gains),
        "mlp": L * 3 * C * c.n_hidden,
        "norms": (2 * L + 1) * C,
        "lm_head": 0 if c.tied else c.vocab_size * C,
    }


@flops_by_part.register(LlamaConfig)
def llama_flops(c, T: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token by part, in a context of T tokens, counted as chapter 05's flops_by_part does."""
    C, L, d, T = c.n_embd, c.n_layer, c.head_size, T or c.block_size
    return {
        "attention, linear": L * 2 * (2 * c.n_head + 2 * c.n_kv_head) * d * C,
        "attention, T×T": L * 2 * 2 * T * c.n_head * d,
        "mlp": L * 2 * 3 * C * c.n_hidden,
        "lm_head": 2 * C * c.vocab_size,
    }
