"""Keys and values of the past, kept: the model reads every token once.

Exported from notebooks/08_sampling.ipynb, grown by notebooks/24_llama.ipynb.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.evals.losses import evaluating
from nanogpt.gpt.model import GPT


def attend(
    keys: Tensor, values: Tensor, at: Tensor, visible: Tensor, shared: bool, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Store new k and v (B, kv heads, T, d) at positions `at` (B, T), then attend with q to what is `visible`, (B, 1, T, S).

    shared: whether there are fewer heads of keys than of queries.
    """
    texts = torch.arange(len(k), device=k.device)[:, None]  # (B, 1)
    keys[texts, :, at] = k.transpose(1, 2).to(keys.dtype)  # (B, T, kv heads, d)
    values[texts, :, at] = v.transpose(1, 2).to(values.dtype)
    past = keys[:, :, : visible.size(-1)], values[:, :, : visible.size(-1)]
    return F.scaled_dot_product_attention(q, *past, attn_mask=visible, enable_gqa=shared)


class KVCache:
    """Keys and values of B texts, each (n_layer, B, n_head, size, d); `lengths`: how many tokens of each are stored."""

    def __init__(self, model: GPT, B: int, size: int):
        weight, c = model.transformer.wte.weight, model.config
        heads = getattr(c, "n_kv_head", c.n_head)  # a GPT has as many as heads of queries
        d = getattr(c, "head_size", c.n_embd // c.n_head)
        self.shared = heads < c.n_head
        # Zeros: what is masked has weight 0, but 0 times a NaN left in memory would be NaN.
        self.keys = weight.new_zeros(c.n_layer, B, heads, size, d)
        self.values, self.lengths = self.keys.clone(), [0] * B

    def positions(self, T: int) -> Tensor:
        """The positions of T new tokens of each text, (B, T); a token sees all places up to its own."""
        steps = torch.arange(max(self.lengths) + T, device=self.keys.device)  # (S,)
        self.at = torch.tensor(self.lengths, device=steps.device)[:, None] + steps[:T]  # (B, T)
        self.visible = steps <= self.at[:, None, :, None]  # (B, 1, T, S)
        return self.at

    def layer(self, i: int) -> partial:
        return partial(attend, self.keys[i], self.values[i], self.at, self.visible, self.shared)

    def newest(self, x: Tensor) -> Tensor:
        """Of x (B, T, C), the last new token of each text, (B, 1, C); `read` says how many are new."""
        return torch.stack([row[n - 1 : n] for row, n in zip(x, self.counts)])


@torch.no_grad()
def read(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read the new tokens of each text into the cache; logits (B, vocab_size) after each text. Dropout is off."""
    cache.counts = [len(text) for text in texts]
    T = max(cache.counts)
    idx = torch.tensor([[*text, *[0] * (T - len(text))] for text in texts], device=cache.keys.device)
    with evaluating(model):
        logits, _ = model(idx, cache=cache)  # (B, 1, vocab_size)
    cache.lengths = [n + count for n, count in zip(cache.lengths, cache.counts)]
    return logits[:, 0]


def next_logits(model: GPT, cache: KVCache, texts: Sequence[list[int]]) -> Tensor:
    """Logits (B, V) after each text, reading what is new; a window of block_size that is full restarts with its last half."""
    limit = model.config.block_size
    if not any(cache.lengths):
        return read(model, cache, [text[-limit:] for text in texts])
    for b, text in enumerate(texts):
        if cache.lengths[b] == limit:
            half = KVCache(model, B=1, size=limit)
            tail = text[-max(1, limit // 2) : -1]
            if tail:
                read(model, half, [tail])
            cache.keys[:, b], cache.values[:, b] = half.keys[:, 0], half.values[:, 0]
            cache.lengths[b] = len(tail)
    return read(model, cache, [text[-1:] for text in texts])
