"""Causal self-attention, from weights over the past to many heads.

Exported from notebooks/04_attention.ipynb.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights: softmax of qkᵀ/√d over the past (Vaswani et al. 2017, §3.2.1).

    q, k: (..., T, d). Returns (..., T, T): row t sums to one over keys 0..t and is zero after t.
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
        if cache is not None:  # it attends to keys and values that are not in x as well: chapters 08 and 21c
            y = cache(q, k, v)
        elif self.flash:  # the same sum in one kernel that never stores a (T, T) matrix: chapter 12
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            y = F.dropout(attention_weights(q, k), p) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)
