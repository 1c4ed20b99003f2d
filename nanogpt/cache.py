"""Keys and values of the past, kept: sampling that reads every token once.

Exported from notebooks/08_sampling.ipynb.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.model import GPT


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """layer(x). For a single row on a CPU, each thread reads a share of the weight.

    Reading is all the time there is, and one thread alone cannot use the memory's whole bandwidth; yet BLAS
    libraries may give the product of a matrix and a vector only one.
    """
    n = torch.get_num_threads()
    W, (rows, C) = layer.weight, layer.weight.shape
    if x.device.type != "cpu" or x.numel() != C or n == 1 or rows * C < 2**18:  # small: not worth sharing out
        return layer(x)
    if W.stride(0) == 1 and C % n == 0:  # stored by columns: each thread sums over some of them
        y = torch.bmm(x.view(n, 1, C // n), W.T.view(n, C // n, rows)).sum(0).view(rows)
    else:
        share = rows // n
        shares = W[: n * share].view(n, share, C).transpose(1, 2)  # (n, C, share), the same memory
        y = torch.bmm(x.view(1, 1, C).expand(n, 1, C), shares).view(n * share)
        if n * share < rows:
            y = torch.cat([y, W[n * share :] @ x.view(C)])
    y = y if layer.bias is None else y + layer.bias
    return y.view(*x.shape[:-1], rows)


def by_columns(model: GPT) -> GPT:
    """Store each weight column by column: the same numbers, read faster by `linear`. For a model that only writes.

    Training goes on from it as well, but not bit for bit: sums come in another order.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.T.contiguous().T
    return model


@dataclass
class KVCache:
    """Keys and values of every layer for B texts, each (n_layer, B, size, n_embd); lengths: how many are filled."""

    keys: Tensor
    values: Tensor
    lengths: list[int]

    @classmethod
    def empty(cls, model: GPT, B: int, size: int) -> "KVCache":
        """Room for `size` tokens of B texts: 2 · n_layer · B · size · n_embd numbers of the weights' dtype."""
        weight, shape = model.transformer.wte.weight, (model.config.n_layer, B, size, model.config.n_embd)
        # Zeros: what is masked has weight 0, but 0 times a NaN left in memory would be NaN.
        keys, values = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))
        return cls(keys, values, [0] * B)


def cached_attention(
    attn: nn.Module, x: Tensor, keys: Tensor, values: Tensor, where: tuple, past: Tensor
) -> Tensor:
    """One layer's attention for T new tokens, (B, T, C) -> (B, T, C); writes their keys and values into the cache.

    keys, values: (B, end, C), the part of the cache in use. where: indices (B, 1) and (B, T) of the new tokens in it.
    past: (B, 1, T, end), true where a new token may look.
    """
    B, T, C = x.shape
    q, k, v = linear(x, attn.c_attn).split(C, dim=2)
    keys[where], values[where] = k, v
    q, k, v = (part.view(B, -1, attn.n_head, C // attn.n_head).transpose(1, 2) for part in (q, keys, values))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=past)  # softmax(qkᵀ/√d) v over the past, chapter 12
    return linear(y.transpose(1, 2).reshape(B, T, C), attn.c_proj)


@torch.no_grad()
def cached_logits(model: GPT, idx: Tensor, cache: KVCache, counts: Sequence[int] | None = None) -> Tensor:
    """Logits (B, V) after the last token of each text; keys and values of the new tokens go into the cache.

    idx: (B, T), the tokens that follow those in the cache; of row b the first counts[b] (T by default, at least 1).
    What follows them is padding: on the right, where causal attention never looks, and overwritten by the next call.
    Dropout is never called, so the model's training mode is neither read nor changed.
    """
    B, T = idx.shape
    counts, end = counts or [T] * B, max(cache.lengths) + T
    positions = torch.tensor(cache.lengths, device=idx.device)[:, None] + torch.arange(T, device=idx.device)
    texts = torch.arange(B, device=idx.device)[:, None]  # with positions (B, T): each text its own places
    past = torch.arange(end, device=idx.device) <= positions[:, None, :, None]  # (B, 1, T, end)
    x = model.transformer.wte(idx) + model.transformer.wpe(positions)  # (B, T, C)
    for block, keys, values in zip(model.transformer.h, cache.keys[:, :, :end], cache.values[:, :, :end]):
        x = x + cached_attention(block.attn, block.ln_1(x), keys, values, (texts, positions), past)
        hidden = F.gelu(linear(block.ln_2(x), block.mlp.c_fc), approximate="tanh")
        x = x + linear(hidden, block.mlp.c_proj)
    cache.lengths = [length + count for length, count in zip(cache.lengths, counts)]
    last = torch.tensor(counts, device=idx.device) - 1
    x = x[texts[:, 0], last].unsqueeze(1)  # (B, 1, C)
    return linear(model.transformer.ln_f(x), model.lm_head).squeeze(1)


def prefill(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read whole texts, of any lengths, into an empty cache; logits (B, V) after each."""
    longest = max(map(len, texts))
    idx = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return cached_logits(model, idx.to(cache.keys.device), cache, [len(text) for text in texts])


def extend(model: GPT, cache: KVCache, texts: Sequence[list[int]]) -> Tensor:
    """Logits (B, V) after texts of which the last token is new; a full window restarts with half of it."""
    limit = model.config.block_size
    for b, text in enumerate(texts):
        if cache.lengths[b] == limit:
            cache.lengths[b] = 0
            if tail := text[-max(1, limit // 2) : -1]:
                alone = KVCache(cache.keys[:, b : b + 1], cache.values[:, b : b + 1], [0])  # the same memory
                prefill(model, alone, [tail])
                cache.lengths[b] = len(tail)
    new = torch.tensor([[text[-1]] for text in texts], device=cache.keys.device)
    return cached_logits(model, new, cache)


def logits_after(model: GPT, texts: Sequence[list[int]], room: int) -> Iterator[Tensor]:
    """Logits (B, V) after the texts, again and again: before each further one the caller appends a token to every text.

    room: at most how many tokens will be appended; what the cache needs for them is taken at once.
    """
    limit = model.config.block_size
    cache = KVCache.empty(model, len(texts), min(limit, max(map(len, texts)) + room))
    yield prefill(model, cache, [text[-limit:] for text in texts])
    while True:
        yield extend(model, cache, texts)
