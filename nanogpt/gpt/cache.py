"""Keys and values of the past, kept: the model reads every token once.

Exported from notebooks/08_sampling.ipynb.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.evals.losses import evaluating
from nanogpt.gpt.model import GPT


@dataclass
class KVCache:
    """Keys and values of every layer for B texts, each (n_layer, B, n_head, size, d); lengths: how many are filled.

    `model(idx, cache=cache)` reads idx (B, T), which follows what is filled, and gives the logits (B, 1, vocab_size)
    of each text's newest token. counts: of row b only the first counts[b] tokens count, the rest is padding.
    """

    keys: Tensor
    values: Tensor
    lengths: list[int]
    counts: list[int] | None = None

    @classmethod
    def empty(cls, model: GPT, B: int, size: int) -> "KVCache":
        """Room for `size` tokens of B texts: 2 · n_layer · B · size · n_embd numbers of the weights' dtype."""
        weight, config = model.transformer.wte.weight, model.config
        shape = (config.n_layer, B, config.n_head, size, config.n_embd // config.n_head)
        # Zeros: what is masked has weight 0, but 0 times a NaN left in memory would be NaN.
        return cls(*(torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2)), [0] * B)

    def positions(self, T: int) -> Tensor:
        """Where T new tokens of each text stand, (B, T)."""
        steps = torch.arange(max(self.lengths) + T, device=self.keys.device)
        self.new = torch.tensor(self.lengths, device=steps.device)[:, None] + steps[:T]  # (B, T)
        everything = T == 1 == len(set(self.lengths))  # is seen by the one new token of texts of equal length
        self.past = None if everything else steps <= self.new[:, None, :, None]  # (B, 1, T, S)
        return self.new

    def layer(self, i: int) -> Callable:
        """What block i calls with its new queries, keys and values, (B, n_head, T, d), to attend to all S so far."""
        return partial(self.attend, self.keys[i], self.values[i])

    def attend(self, keys: Tensor, values: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        texts, S = torch.arange(len(k), device=k.device)[:, None], max(self.lengths) + k.size(2)
        for kept, fresh in ((keys, k), (values, v)):  # each text at its own places
            kept[texts, :, self.new] = fresh.transpose(1, 2).to(kept.dtype)
        return F.scaled_dot_product_attention(q, keys[:, :, :S], values[:, :, :S], attn_mask=self.past)

    def newest(self, x: Tensor) -> Tensor:
        """Each text's last token that counts, of x (B, T, C) -> (B, 1, C). From now on the new tokens are filled."""
        counts, self.counts = self.counts or [x.size(1)] * len(x), None
        self.lengths = [n + count for n, count in zip(self.lengths, counts)]
        return torch.stack([row[n - 1 : n] for row, n in zip(x, counts)])


@torch.no_grad()
def read(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read what is new of each text, of any lengths, into the cache; logits (B, vocab_size) after each. No dropout."""
    longest = max(map(len, texts))
    idx = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=cache.keys.device)
    cache.counts = [len(text) for text in texts]
    with evaluating(model):
        return model(idx, cache=cache)[0][:, 0]


def logits_after(model: GPT, texts: Sequence[list[int]], room: int) -> Iterator[Tensor]:
    """Logits (B, V) after the texts, again and again: before each further one the caller appends a token to every text.

    room: at most how many tokens will be appended; what the cache needs for them is taken at once. The model sees
    the prompt's last block_size tokens; a full window starts again with the last half of it.
    """
    limit = model.config.block_size
    cache = KVCache.empty(model, len(texts), min(limit, max(map(len, texts)) + room))
    yield read(model, cache, [text[-limit:] for text in texts])
    while True:
        for b, text in enumerate(texts):
            if cache.lengths[b] == limit:
                alone = KVCache(cache.keys[:, b : b + 1], cache.values[:, b : b + 1], [0])  # the same memory
                if tail := text[-max(1, limit // 2) : -1]:
                    read(model, alone, [tail])
                cache.lengths[b] = alone.lengths[0]
        yield read(model, cache, [text[-1:] for text in texts])
