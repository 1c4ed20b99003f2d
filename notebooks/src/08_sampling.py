# %% [markdown]
r"""
# 08 · Sampling: the model writes

A model gives a probability to each token of its vocabulary, and nothing else. To write, somebody must choose one,
append it, and ask again. Choose badly, and a good model repeats itself or falls into nonsense. Ask again from the
beginning, and every token costs more than the one before.

This chapter chooses in four ways, then builds the cache that makes the hundredth token as cheap as the first, and
shows that the cache changes nothing but the time.
"""

# %%
#| default_exp sample
#| doc sample: Text from a model: temperature, top-k, top-p, penalties, and the command `sample`.
#| doc cache: Keys and values of the past, kept: sampling that reads every token once.
#| doc cli: `python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np

from course.notebook import checkpoint, show
from nanogpt.corpus import ensure_corpus
from nanogpt.data import BatchStream
from nanogpt.device import seed_everything
from nanogpt.roofline import copy_bandwidth, measure

# %%
#| export
import codecs
import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.cache import by_columns, logits_after  # the second half of this chapter writes it
from nanogpt.device import pick_device
from nanogpt.model import GPT, GPTConfig, check_ids
from nanogpt.pretrained import from_hf, read_json
from nanogpt.tokenizer import EOT, BPETokenizer
from nanogpt.weights import load_model

# %% [markdown]
r"""
The model is chapter 07's, from `data/built/model`. Where that is missing, a small one is trained here for a few
seconds, and writes worse.
"""


# %%
def quickly_trained(steps: int = 200) -> GPT:
    """A small GPT after some steps on the embedded corpus, for a machine on which chapter 07 has not run."""
    config = GPTConfig(block_size=128, vocab_size=manifest["vocab_size"], n_layer=2, n_head=4, n_embd=128)
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    stream = BatchStream(train_shards, B=16, T=64, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.03, total_iters=30)
    for _ in range(steps):
        loss = model(*stream.next_batch())[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
    return model.eval()


# %% tags=["nbval-ignore-output"]
BUILT = Path("../data/built")
manifest = ensure_corpus(BUILT / "stories")
train_shards = [BUILT / "stories" / shard["file"] for shard in manifest["splits"]["train"]["shards"]]
tokenizer = BPETokenizer.load(BUILT / "stories" / manifest["tokenizer"])
if (BUILT / "model" / "config.json").exists():
    model = load_model(BUILT / "model")
else:
    print(
        "data/built/model is missing, chapter 07 makes it; here is a small model, trained now for 200 steps"
    )
    model = quickly_trained()
print(model.config)

# %% [markdown]
r"""
One question to the model, and its answer as a picture. At temperature ½ it seems surer, at 2 less sure. The model is
the same; what differs is how we read it.
"""


# %% tags=["nbval-ignore-output"]
def next_logits(text: str) -> Tensor:
    """The model's logits (V,) for the token after `text`."""
    ids = (tokenizer.encode(text) or [tokenizer.eot])[-model.config.block_size :]
    with torch.no_grad():
        return model(torch.tensor([ids]))[0][0, -1]


text = "Anna had six red apples. Then Anna gave Ben two of them. Now Anna had"
logits = next_logits(text)
ids = logits.topk(12).indices
fig, ax = plt.subplots()
for i, T in enumerate((0.5, 1.0, 2.0)):
    ax.bar(np.arange(12) + 0.27 * (i - 1), (logits / T).softmax(-1)[ids], 0.25, label=f"temperature {T}")
ax.set_xticks(range(12), [tokenizer.decode([i]) for i in ids], rotation=45, ha="right")
ax.set(ylabel="probability", title=f"… {text[-35:]}")
ax.legend()
show(fig, alt="Bars: the twelve likeliest next tokens after a story about apples, at three temperatures.")

# %% [markdown]
r"""
## A bug to find

Everybody wants to see samples while a model trains. Here is a training loop whose batches come from a stream with
a seed of its own, and a sampler as many tutorials print it. One run takes a sample after the third step, the other
does not.

*Predict.* From which step on do the two losses differ, if at all? There are two bugs. Find both before reading on.
"""


# %%
def first_sampler(model, ids: list[int], n: int) -> list[int]:
    """A sampler as many tutorials print it."""
    ids = list(ids)
    for _ in range(n):
        idx = torch.tensor([ids[-model.config.block_size :]])
        with torch.no_grad():
            logits, _ = model(idx)
        probs = logits[0, -1].softmax(-1)
        ids.append(torch.multinomial(probs, 1).item())
    return ids


# %%
SMALL = GPTConfig(
    block_size=64, vocab_size=manifest["vocab_size"], n_layer=2, n_head=2, n_embd=64, dropout=0.1
)


def six_losses(sample=None) -> list[float]:
    """Train six steps, with a sample after the third where one is asked for."""
    model = GPT(SMALL, generator=seed_everything(0))
    stream = BatchStream(train_shards, B=8, T=64, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        loss = model(*stream.next_batch())[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 2 and sample:
            sample(model)
    return losses


# %% tags=["nbval-ignore-output"]
undisturbed = six_losses()
disturbed = six_losses(lambda model: first_sampler(model, [tokenizer.eot], 20))
for step, (a, b) in enumerate(zip(undisturbed, disturbed), 1):
    print(f"step {step}: {a:.6f}  with a sample after step 3: {b:.6f}  {'' if a == b else '<- differs'}")

# %%
print("equal before the sample:", undisturbed[:3] == disturbed[:3])
print("equal after the sample: ", undisturbed[3:] == disturbed[3:])

# %% [markdown]
r"""
The batches were the same. But `torch.multinomial` drew from torch's global generator, and so does dropout, which takes
no other. After the sample, dropout strikes other neurons.

The second bug: the model was in training mode, so dropout also struck while it wrote. Switching to `eval()` and
back is the usual cure, and the next bug if an error comes between. The sampler below calls the model's layers and
never its dropout, so it has no mode to switch; and it has a generator of its own.

## Which token?

**Temperature** divides the logits before the softmax (Ackley et al. 1985). Below 1 the likely becomes likelier; at
the limit 0 only the largest is left, which is *greedy* decoding.

Drawing from the whole distribution, the trouble is its tail: many tokens, each unlikely, together likely. **Top-k**
keeps the k largest, whatever their shares. **Top-p**, the *nucleus*, keeps the fewest tokens that together reach
mass p: many where the model is unsure, few where it is sure.

*Predict.* Probabilities 0.5, 0.3, 0.1, 0.06, 0.04. How many survive top-p 0.79? And 0.81?
"""


# %%
#| export
def smallest_kept(logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """The smallest logit, (B, 1), that top-k and then top-p keep, of logits (B, V).

    top_k: the k largest (Fan et al. 2018, §5.4). top_p: the fewest that reach the mass (Holtzman et al. 2020, §3.1).
    """
    V = logits.size(-1)
    k = min(top_k or 1024, V)  # a nucleus rarely needs all 50,257 sorted, so first the largest 1,024
    top = logits.topk(k).values  # (B, k), largest first
    p = (top - (top if top_k else logits).logsumexp(-1, keepdim=True)).exp()
    if not top_k and k < V and p.sum(-1).min() < top_p:
        top = logits.topk(V).values
        p = top.softmax(-1)
    before = F.pad(p.cumsum(-1)[:, :-1], (1, 0))  # the mass of all larger ones
    outside = before >= (top_p if top_p < 1 else math.inf)  # rounding may bring it to 1 too early
    return top.masked_fill(outside, math.inf).amin(-1, keepdim=True)


# %%
five = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04]]).double().log()
for top_k, top_p in ((2, 1.0), (None, 0.79), (None, 0.81), (3, 0.81)):
    kept = five >= smallest_kept(five, top_k, top_p)
    print(f"top_k {top_k}, top_p {top_p}: keeps {kept.sum().item()}")

# %% [markdown]
r"""
The last line keeps fewer than the one before: top-k's three survivors are normalised first, and then two reach 0.81.
Order matters, and ours is that of `transformers`: temperature, top-k, top-p.
"""


# %%
#| export
def token_probs(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0
) -> Tensor:
    """Probabilities (B, V) of the next token from logits (B, V): temperature, then top-k, then top-p.

    temperature 0 gives all mass to the largest logit. Of equal logits, either all are kept or none.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or a positive number")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1; leave it out to keep every token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, which keeps every token")
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float()
    logits = logits.float() / temperature
    if top_k or top_p < 1:
        logits = logits.masked_fill(logits < smallest_kept(logits, top_k, top_p), -math.inf)
    return logits.softmax(-1)


# %%
for knobs in ({}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.81}, {"temperature": 0}):
    print(f"{knobs!s:20}", token_probs(five, **knobs)[0].numpy().round(2))

# %% [markdown]
r"""
**Repetition penalty.** Greedy decoding likes to repeat itself, and each repetition makes the next one likelier (Xu et
al. 2022). CTRL (Keskar et al. 2019, §4.1) divides the logits of tokens already written by a penalty θ > 1. That makes a
*negative* logit larger, so `transformers` multiplies those instead, and so do we. Tokens of the prompt count as
written.
"""


# %%
#| export
def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (CTRL, Keskar et al. 2019, §4.1) on logits (B, V) of the tokens in `seen`, (B, V) bool.

    Positive logits are divided by the penalty, negative ones multiplied, as in transformers: always downwards.
    """
    if not penalty > 0:
        raise ValueError(f"repetition_penalty={penalty} must be positive; 1 changes nothing")
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


# %%
three = torch.tensor([[2.0, 1.0, -1.0]])
print(penalize(three, torch.tensor([[True, False, True]]), 1.25))

# %% [markdown]
r"""
**The draw.** One uniform number in [0, 1), and the cumulative probabilities as a ruler: the token on whose piece it
falls. The number comes from a generator of our own, on the CPU, so that a seed means the same numbers on every
device.
"""


# %%
#| export
def draw(probs: Tensor, generator: torch.Generator) -> list[int]:
    """One id per row of probs (B, V); takes B numbers from `generator` and none from anywhere else."""
    # float64: 50,257 float32 sums would leave a rounding error larger than the rarest tokens.
    cdf = probs.to("cpu", torch.float64).cumsum(-1)
    u = torch.rand(len(cdf), 1, generator=generator, device=generator.device).cpu()
    return torch.searchsorted(cdf, u * cdf[:, -1:], right=True).squeeze(1).tolist()


# %% [markdown]
r"""
*Check.* Draw 20,000 times. A frequency may miss its probability by a few standard deviations √(p(1−p)/n), not by
more; and a token of probability zero never comes.
"""

# %%
n, p = 20_000, torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
drawn = torch.tensor(draw(p.expand(n, 5), torch.Generator().manual_seed(0)))
frequency = drawn.bincount(minlength=5) / n
print("frequencies:", frequency.numpy().round(3))
assert ((frequency - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all()


# %%
#| export
def choose(
    logits: Tensor,
    generator: torch.Generator,
    seen: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
) -> list[int]:
    """The next id of each text, from logits (B, V): penalize, then token_probs, then draw. Greedy draws nothing."""
    if repetition_penalty != 1:
        logits = penalize(logits, seen, repetition_penalty)
    if temperature == 0:
        return logits.argmax(-1).tolist()
    return draw(token_probs(logits, temperature, top_k, top_p), generator)


# %% [markdown]
r"""
## What it costs

*Predict.* The naive loop reads the whole text again for each new token. Per token, how does its time grow with the
length of the text? How would it grow if nothing were computed twice?

Append a token to a text, and look at the keys of each layer, before and after.
"""

# %%
probe = GPT(replace(SMALL, dropout=0.0), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    for p in probe.transformer.h.parameters():
        p.mul_(
            10 if p.dim() == 2 else 1
        )  # as GPT-2 begins, it repeats its last token; now the context matters
idx = torch.randint(0, 1000, (1, 9), generator=torch.Generator().manual_seed(1))


def keys_of_all_layers(idx: Tensor) -> list[Tensor]:
    """What c_attn gives as keys, (1, T, C) per layer, while the model reads idx."""
    keys, C = [], probe.config.n_embd
    hooks = [
        block.attn.c_attn.register_forward_hook(lambda _, __, out: keys.append(out[..., C : 2 * C]))
        for block in probe.transformer.h
    ]
    with torch.no_grad():
        probe(idx)
    for hook in hooks:
        hook.remove()
    return keys


for layer, (short, long) in enumerate(zip(keys_of_all_layers(idx[:, :8]), keys_of_all_layers(idx))):
    print(f"layer {layer}: keys {tuple(short.shape)} and {tuple(long.shape)},", end=" ")
    print("first 8 equal:", torch.allclose(short, long[:, :8], atol=1e-6))

# %% [markdown]
r"""
Causality, seen from the other side: position t never looks ahead, so nothing that is appended changes its keys and
values, in any layer. They can be kept. Then every step sends a single row through every matrix.

## One row at a time

A product with one row uses each weight for a multiply and an add, and must read its four bytes from memory: 0.5 FLOP
per byte, far to the left on chapter 00's roofline.

*Predict.* GPT-2's `lm_head` has 50257 × 768 float32 weights. From your machine's bandwidth in chapter 00: how many
milliseconds does one row take at best? And does `nn.Linear` reach that?
"""


# %%
#| export cache
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


# %%
row, layer = torch.randn(1, 1, 1024), nn.Linear(1024, 1000)
print("as nn.Linear:", torch.allclose(linear(row, layer), layer(row), atol=1e-5))


# %%
#| export cache
def by_columns(model: GPT) -> GPT:
    """Store each weight column by column: the same numbers, read faster by `linear`. For a model that only writes.

    Training goes on from it as well, but not bit for bit: sums come in another order.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.T.contiguous().T
    return model


# %% tags=["nbval-ignore-output"]
head = nn.Linear(768, 50257, bias=False)
row, nbytes, cpu = torch.randn(1, 1, 768), 50257 * 768 * 4, torch.device("cpu")
with torch.no_grad():
    times = {
        "nn.Linear": measure(lambda: head(row), cpu).times,
        "shared rows": measure(lambda: linear(row, head), cpu).times,
    }
    expected, head = head(row), by_columns(head)
    times["shared columns"] = measure(lambda: linear(row, head), cpu).times
    assert torch.allclose(expected, linear(row, head), atol=1e-5)
copy = copy_bandwidth(cpu, 256)
print(
    f"{torch.get_num_threads()} threads; a copy moves {copy / 1e9:.0f} GB/s, so at best {1e3 * nbytes / copy:.1f} ms"
)
for name, ts in times.items():
    print(f"{name:14} {1e3 * min(ts):5.1f} ms, {nbytes / min(ts) / 1e9:.0f} GB/s")

# %% [markdown]
r"""
Where `nn.Linear` stays well below the copy on several threads, the BLAS library gave the product to one of them; here
each thread gets a share of the weight. The order in memory can matter too: by rows, each output is a sum that must be
collected across a vector register; by columns, whole registers of outputs grow together.

## The cache

One layer's attention becomes: write the new keys and values behind the old ones, attend to all of them. The memory is
taken once; `torch.cat` would copy the whole cache for every token.
"""


# %%
#| export cache
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


# %%
cache = KVCache.empty(probe, B=1, size=16)
print("keys", tuple(cache.keys.shape), "filled", cache.lengths)
gpt2 = GPTConfig()
print(
    f"GPT-2 small, full context: {2 * gpt2.n_layer * gpt2.block_size * gpt2.n_embd * 4 / 2**20:.0f} MiB per text"
)


# %%
#| export cache
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


# %% [markdown]
r"""
*Check*, for one layer: eight tokens, then one more through the cache, against all nine at once.
"""

# %%
attn, C = probe.transformer.h[0].attn, probe.config.n_embd
x = torch.randn(1, 9, C, generator=torch.Generator().manual_seed(2))
keys, values, causal = torch.zeros(1, 9, C), torch.zeros(1, 9, C), torch.ones(9, 9, dtype=torch.bool).tril()
text0 = torch.zeros(1, 1, dtype=torch.long)
with torch.no_grad():
    for new in (torch.arange(8), torch.arange(8, 9)):
        last = cached_attention(attn, x[:, new], keys, values, (text0, new[None]), causal[None, None, new])
    whole = attn(x)
print("last output, cached and whole, equal:", torch.allclose(last[:, -1], whole[:, -1], atol=1e-6))

# %% [markdown]
r"""
A whole model is a loop over layers. Only the last token's logits are wanted, and the head is the largest matrix of
all, so it sees one row of each text. `counts` is for texts of different length, below.
"""


# %%
#| export cache
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


# %% [markdown]
r"""
*Check*, for the model, at every position: logits with the cache against logits without.
"""

# %%
idx = torch.randint(0, 1000, (1, 64), generator=torch.Generator().manual_seed(3))
with torch.no_grad():
    without = probe(idx)[0][0]  # (T, V)
cache = KVCache.empty(probe, B=1, size=64)
largest = 0.0
for t in range(64):
    with_cache = cached_logits(probe, idx[:, t : t + 1], cache)[0]
    largest = max(largest, (with_cache - without[t]).abs().max().item())
print(f"{cache.lengths[0]} tokens one at a time; logits differ by less than 1e-5:", largest < 1e-5)

# %% [markdown]
r"""
Only the time differs. A somewhat larger model, and the time for one more token after n others:
"""

# %% tags=["nbval-ignore-output"]
larger = GPT(GPTConfig(512, 1024, 4, 4, 256), generator=torch.Generator().manual_seed(0))
idx, lengths = torch.randint(0, 1024, (1, 512)), np.arange(32, 512, 32)
cache = KVCache.empty(larger, B=1, size=512)
cached_logits(larger, idx[:, :511], cache)


@torch.no_grad()
def all_again(n: int) -> Tensor:
    return larger(idx[:, : n + 1])[0]


def one_more(cache: KVCache, new: Tensor) -> Tensor:
    return cached_logits(larger, new, replace(cache))  # a copy, so that the lengths stay as they are


ms = {"without cache": [], "with cache": []}
for n in lengths:
    filled = replace(cache, lengths=[n])
    for name, call in zip(ms, (partial(all_again, n), partial(one_more, filled, idx[:, n : n + 1]))):
        ms[name].append(1e3 * measure(call, cpu, repeats=6).fastest)  # the least disturbed of several


# %% tags=["nbval-ignore-output"]
fig, ax = plt.subplots()
for name, y in ms.items():
    ax.plot(lengths, y, "o-", ms=3, label=name)
    slope = 1e3 * np.polyfit(lengths, y, 1)[0]
    print(
        f"{name:13}: {y[0]:.2f} ms after 32 tokens, {y[-1]:.2f} ms after 480; {slope:.1f} µs for each earlier token"
    )
ax.set(xlabel="tokens before", ylabel="ms for one more token", ylim=0)
ax.legend()
show(
    fig, alt="Time for one more token against position: a rising line without the cache, a flat one with it."
)

# %% [markdown]
r"""
Without the cache, the time of a token grows with its position, and the time of a text with the square of its length.
With it, what still grows is attention's look at the kept keys, a small slope on a constant: reading the weights.

## Texts of different length

Reading the weights once serves a whole batch. How much is that worth?
"""

# %% tags=["nbval-ignore-output"]
for B in (1, 4, 16):
    cache = KVCache.empty(larger, B, size=128)
    cached_logits(larger, torch.randint(0, 1024, (B, 127)), cache)
    t = measure(partial(one_more, cache, torch.randint(0, 1024, (B, 1))), cpu, repeats=6).fastest
    print(f"{B} texts: {1e3 * t:.2f} ms for one token of each, {B / t:.0f} tok/s")

# %% [markdown]
r"""
So prompts of different lengths are continued together. Padding on the left moves every token to another position, and
needs masks and shifted positions to undo that. On the right it costs nothing but time while the prompts are read: a
causal model never looks right. After that each text goes on at its own position, and its next token overwrites the
padding.
"""


# %%
#| export cache
def prefill(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read whole texts, of any lengths, into an empty cache; logits (B, V) after each."""
    longest = max(map(len, texts))
    idx = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return cached_logits(model, idx.to(cache.keys.device), cache, [len(text) for text in texts])


# %%
prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15]]
cache = KVCache.empty(probe, B=3, size=16)
together = prefill(probe, cache, prompts)
print("filled:", cache.lengths)
alone = torch.cat([prefill(probe, KVCache.empty(probe, 1, 16), [p]) for p in prompts])
print("each as if alone:", torch.allclose(together, alone, atol=1e-5))
together = cached_logits(probe, torch.tensor([[1], [2], [3]]), cache)
print("filled:", cache.lengths)
alone = [prefill(probe, KVCache.empty(probe, 1, 16), [[*p, i]]) for p, i in zip(prompts, (1, 2, 3))]
print("and one token later:", torch.allclose(together, torch.cat(alone), atol=1e-5))

# %% [markdown]
r"""
## Past the context

The position table has `block_size` rows. What then? Dropping the oldest key and going on looks natural, a *rolling*
cache. *Predict*: is it equal to reading the last `block_size` tokens afresh?
"""

# %%
T = probe.config.block_size
idx = torch.randint(0, 1000, (1, T + 1), generator=torch.Generator().manual_seed(4))
cache = KVCache.empty(probe, B=1, size=T)
cached_logits(probe, idx[:, :T], cache)
rolled = KVCache(cache.keys.roll(-1, dims=2), cache.values.roll(-1, dims=2), [T - 1])
rolled = cached_logits(probe, idx[:, T:], rolled)
fresh = prefill(probe, KVCache.empty(probe, 1, T), idx[:, 1:].tolist())
print("equal within 1e-3:", torch.allclose(rolled, fresh, atol=1e-3))

# %% [markdown]
r"""
No. GPT-2's positions are absolute: a key computed at position 7 has row 7 of `wpe` in it, and does not become the key
of position 6 by moving. So the model reads again, but not for every token:

> The model sees a window of the text: at first the prompt's last `block_size` tokens at most. When the window is
> full, it starts again with the last `block_size // 2` tokens.

So each written token costs one that is read again, and reading many at once is cheap.
"""


# %%
#| export cache
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


# %%
#| export cache
def logits_after(model: GPT, texts: Sequence[list[int]], room: int) -> Iterator[Tensor]:
    """Logits (B, V) after the texts, again and again: before each further one the caller appends a token to every text.

    room: at most how many tokens will be appended; what the cache needs for them is taken at once.
    """
    limit = model.config.block_size
    cache = KVCache.empty(model, len(texts), min(limit, max(map(len, texts)) + room))
    yield prefill(model, cache, [text[-limit:] for text in texts])
    while True:
        yield extend(model, cache, texts)


# %%
texts = [[5, 6, 7], [8]]
source = logits_after(probe, texts, room=200)
for _ in range(200):
    for written, i in zip(texts, next(source).argmax(-1).tolist()):
        written.append(i)
print("texts of", *map(len, texts), "tokens, through a context of", probe.config.block_size)

# %% [markdown]
r"""
## The loop

First what can be wrong with a prompt:
"""


# %%
#| export
def checked(prompts: Sequence[Sequence[int]], max_new_tokens: int, config: GPTConfig) -> list[list[int]]:
    """The prompts as lists; ValueError where one is empty or holds an id that the model does not have."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    texts = [[int(i) for i in prompt] for prompt in prompts]
    if not texts or not all(texts):
        raise ValueError("a prompt has no tokens; begin with the end-of-text token, [tokenizer.eot]")
    check_ids(torch.tensor([i for text in texts for i in text]), config.vocab_size)
    return texts


# %%
for prompt in ([], [5, 5000]):
    try:
        checked([prompt], 10, probe.config)
    except ValueError as error:
        print(error)

# %% [markdown]
r"""
Then: choose, hand out, append, until every text has met a stop token or its length.
"""


# %%
#| export
def stream_batch(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    stop: Collection[int] = (),
    vocab_size: int | None = None,
    generator: torch.Generator | None = None,
    **how,
) -> Iterator[list[int | None]]:
    """Continue all prompts; yields one new id for each, again and again, or None for a text that has ended.

    how: see choose. A text ends before the first id in `stop`. Ids from vocab_size on, which a padded vocabulary has,
    are never chosen. All randomness comes from `generator`, one number per text and token; by default from a new one
    with seed 0. Nothing else is changed, neither global generators nor the model's mode. Any length is possible.
    """
    texts = checked(prompts, max_new_tokens, model.config)
    generator = generator or torch.Generator().manual_seed(0)
    shape, device = (len(texts), model.config.vocab_size), model.transformer.wte.weight.device
    seen, ended = torch.zeros(shape, dtype=torch.bool, device=device), [False] * len(texts)
    for row, text in zip(seen, texts):
        row[text] = True
    for logits in islice(logits_after(model, texts, max_new_tokens), max_new_tokens):
        ids = choose(logits[:, :vocab_size], generator, seen[:, :vocab_size], **how)
        ended = [was or i in stop for was, i in zip(ended, ids)]
        if all(ended):
            return
        yield [None if end else i for i, end in zip(ids, ended)]
        for text, row, i in zip(texts, seen, ids):
            text.append(i)
            row[i] = True


# %%
for ids in stream_batch(probe, [[5, 6, 7], [8]], 4, temperature=0.5):
    print(ids)


# %%
#| export
def stream(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> Iterator[int]:
    """Continue one prompt, id by id as they come; options as for stream_batch."""
    for (i,) in stream_batch(model, [prompt], max_new_tokens, **options):
        yield i


def generate(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> list[int]:
    """The ids that continue one prompt, without it; options as for stream_batch."""
    return list(stream(model, prompt, max_new_tokens, **options))


# %%
def without_cache(model: GPT, prompt: list[int], n: int) -> list[int]:
    """Greedy, by the window's definition: everything is read again for every token."""
    text, start, limit = list(prompt), max(0, len(prompt) - model.config.block_size), model.config.block_size
    for _ in range(n):
        if len(text) - start > limit:
            start = len(text) - limit // 2
        with torch.no_grad():
            logits, _ = model(torch.tensor([text[start:]]))
        text.append(logits[0, -1].argmax().item())
    return text[len(prompt) :]


# %% [markdown]
r"""
*Check.* Greedy, 150 tokens through a context of 64: the same ids with the cache and without, and together as alone.
"""

# %%
start = torch.randint(0, 1000, (90,), generator=torch.Generator().manual_seed(5)).tolist()
prompts = [start[:1], start[:40], start]
expected = [without_cache(probe, prompt, 150) for prompt in prompts]
print("alone:   ", [generate(probe, prompt, 150, temperature=0) for prompt in prompts] == expected)
print("together:", list(map(list, zip(*stream_batch(probe, prompts, 150, temperature=0)))) == expected)

# %% [markdown]
r"""
And the bug from the beginning: the same training run, with this sampler in the place of the first.
"""

# %%
ours = six_losses(
    lambda model: generate(model, [tokenizer.eot], 20, generator=torch.Generator().manual_seed(1))
)
print("equal to the run without samples, bit for bit:", ours == undisturbed)

# %% [markdown]
r"""
## From tokens to text, as it comes

A character may be spread over several tokens. Decoding token by token would print half characters.
"""

# %%
bytes_only = BPETokenizer.train("no merges", 257)
ids = bytes_only.encode("Zoë 🦉")
print([bytes_only.decode([i]) for i in ids])

# %% [markdown]
r"""
Python's incremental decoder holds back the first bytes of a character until the rest arrives. A stop *text* may begin
in one token and end in another, so what could still become one is held back as well.
"""


# %%
#| export
def as_text(tokens: Iterator[int], tokenizer: BPETokenizer, stop: Collection[str] = ()) -> Iterator[str]:
    """Decode ids as they come, never half a character; the text ends before the first of the texts in `stop`."""
    utf8, text = codecs.getincrementaldecoder("utf-8")(errors="replace"), ""
    for token in tokens:
        text += utf8.decode(tokenizer.tokens[token])
        if found := [text.index(s) for s in stop if s in text]:
            text = text[: min(found)]
            break
        held = max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        if ready := text[: len(text) - held]:
            yield ready
        text = text[len(text) - held :]
    else:
        text += utf8.decode(b"", final=True)
    if text:
        yield text


# %%
print(list(as_text(iter(ids), bytes_only)))
print(list(as_text(iter(bytes_only.encode("one, two, END three")), bytes_only, stop=["END"])))


# %%
#| export
def stream_text(
    model: GPT,
    tokenizer: BPETokenizer,
    prompt: str,
    max_new_tokens: int,
    *,
    stop: Collection[str] = (),
    **options,
) -> Iterator[str]:
    """Continue a text, piece by piece, to its end-of-text token, a text in `stop`, or max_new_tokens.

    An empty prompt begins a new document. `<|endoftext|>` in the prompt is that token. Options: see stream_batch.
    """
    if "" in stop or isinstance(stop, str):
        raise ValueError(f"stop={stop!r} must be a list of texts, none of them empty")
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.config.vocab_size}: "
            f"they do not belong together; use the tokenizer that the model was trained with"
        )
    ids = tokenizer.encode(prompt, allowed_special={EOT}) or [tokenizer.eot]
    options = {"stop": {tokenizer.eot}, "vocab_size": tokenizer.vocab_size} | options
    yield from as_text(stream(model, ids, max_new_tokens, **options), tokenizer, stop)


def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options) -> str:
    """The text that continues `prompt`, without it; options as for stream_text."""
    return "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))


# %% [markdown]
r"""
Four ways to read the same model. Greedy always writes the same. A high temperature is lively and soon wrong: look at
the numbers, at who gave what to whom. Top-p takes back part of that.
"""

# %% tags=["nbval-ignore-output"]
ways = {
    "greedy": {"temperature": 0},
    "temperature 1": {},
    "temperature 1.5": {"temperature": 1.5},
    "temperature 1.5, top-p 0.9": {"temperature": 1.5, "top_p": 0.9},
}
for name, how in ways.items():
    story = complete(model, tokenizer, "", 120, generator=torch.Generator().manual_seed(7), **how)
    print(f"{name}:\n{story}\n")

# %% [markdown]
r"""
## See: the distribution under your hand

Type a prompt and move the sliders. Pale bars are the model's own probabilities, dark ones what `token_probs` makes of
them.
"""


# %%
def bars(prompt: str, temperature: float, top_k: int, top_p: float):
    """The sixteen likeliest next tokens, as the model has them and as they are drawn."""
    logits = next_logits(prompt)[None]
    plain, drawn = logits.softmax(-1)[0], token_probs(logits, temperature, top_k, top_p)[0]
    ids = plain.topk(16).indices
    fig, ax = plt.subplots()
    ax.bar(range(16), plain[ids], 0.8, color="C0", alpha=0.3, label="the model")
    ax.bar(range(16), drawn[ids], 0.5, color="C0", label="drawn from")
    ax.set_xticks(range(16), [repr(tokenizer.decode([i])) for i in ids], rotation=45, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1), title=f"{(drawn > 0).sum()} tokens left")
    ax.legend()
    return fig


# %% tags=["nbval-ignore-output"]
show(
    bars(text, 0.8, 8, 0.95),
    alt="Bars: the model's next-token probabilities and what temperature 0.8, top-k 8 and top-p 0.95 leave.",
)

# %% tags=["nbval-ignore-output"]
import ipywidgets as widgets

knobs = {
    "prompt": widgets.Text(text, continuous_update=False, layout={"width": "90%"}),
    "temperature": widgets.FloatSlider(value=0.8, min=0, max=3, step=0.1),
    "top_k": widgets.IntSlider(value=8, min=1, max=50),
    "top_p": widgets.FloatSlider(value=0.95, min=0.05, max=1, step=0.05),
}
picture = widgets.Image(format="png", layout={"align_self": "flex-start"})


def redraw(_=None) -> None:
    fig, png = bars(**{name: knob.value for name, knob in knobs.items()}), BytesIO()
    fig.savefig(png)
    plt.close(fig)
    picture.value = png.getvalue()


for name, knob in knobs.items():
    knob.description, knob.style.description_width = name, "initial"
    knob.observe(redraw, "value")
redraw()
widgets.VBox([*knobs.values(), picture])

# %% [markdown]
r"""
## From the terminal

A checkpoint is a folder of the course, a folder of Hugging Face's, or a name on the hub. Its tokenizer is looked for
beside it.
"""


# %%
#| export
def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a course checkpoint, a Hugging Face GPT-2 folder, or a name on the hub.

    tokenizer: "gpt2" or a tokenizer.json; by default the one beside the checkpoint, or GPT-2's for GPT-2's
    vocabulary. OSError or ValueError in one sentence where something is missing or does not fit.
    """
    folder = Path(checkpoint)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} has no config.json, so it is no checkpoint; chapter 07 writes one")
    ours = folder.is_dir() and "model_type" not in read_json(folder / "config.json")
    model = load_model(folder) if ours else from_hf(checkpoint)
    beside = folder / "tokenizer.json"
    if tokenizer is None and ours and beside.exists():
        tokenizer = str(beside)
    # GPT-2's vocabulary, or padded as in chapter 13
    if tokenizer is None and 50257 <= model.config.vocab_size <= 50304:
        tokenizer = "gpt2"
    if tokenizer is None:
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer == "gpt2" else BPETokenizer.load(tokenizer)


# %%
#| export
HELP = """Continue a prompt with a trained model; the text appears as it is written.

  python -m nanogpt sample --checkpoint data/built/model --prompt "One sunny morning"
  python -m nanogpt sample --checkpoint openai-community/gpt2 --prompt "Hello, I'm a language model," --top-k 50

A prompt longer than the model's context is read from its last tokens on; so is a text that outgrows it.
"""


def parser() -> ArgumentParser:
    """The options of `python -m nanogpt sample`."""
    parser = ArgumentParser(description=HELP, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--checkpoint", required=True, help="folder with config.json and model.safetensors, or hub name")
    add("--prompt", default="", help="the text to continue (default: begin a new document)")
    add("--tokenizer", help="gpt2 or a tokenizer.json (default: the one beside the checkpoint)")
    add("--max-new-tokens", type=int, default=200, metavar="N", help="stop after so many tokens (200)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0: greedy, 1: the model as it is (1)")
    add("--top-k", type=int, metavar="K", help="only the K likeliest tokens")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the fewest tokens with mass P (1)")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: avoid tokens used (1)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    add("--seed", type=int, default=0, help="the same seed writes the same text (0)")
    add("--device", help="cuda, mps or cpu (default: the best there is)")
    return parser


# %%
#| export
def run(args: Namespace) -> None:
    """`python -m nanogpt sample`, its options parsed: the text goes to stdout, piece by piece."""
    how = {k: getattr(args, k) for k in ("temperature", "top_k", "top_p", "repetition_penalty", "stop")}
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    model = by_columns(model) if device.type == "cpu" else model.to(device)
    how["generator"] = torch.Generator().manual_seed(args.seed)
    print(args.prompt, end="", flush=True)
    for piece in stream_text(model, tokenizer, args.prompt, args.max_new_tokens, **how):
        print(piece, end="", flush=True)
    print(flush=True)


# %% [markdown]
r"""
## Commands: a section that you may skip

The package has several commands, and all end alike: exit code 0 when all went well, 2 after one line that says what
is wrong, 130 after Ctrl-C. So one small runner calls them. A command is a module with a `parser()` and a `run(args)`;
the module is imported only when its command is given, so that help needs no PyTorch.
"""


# %%
#| export cli
import difflib
import importlib
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

COMMANDS = {
    "prepare": ("nanogpt.prepare", "text, JSONL or parquet -> shards of tokens (chapter 16)"),
    "sample": ("nanogpt.sample", "continue a prompt with a trained model (chapter 08)"),
    "ladder": ("nanogpt.ladder", "every speed-up on this machine, one on top of the other (chapter 14)"),
}


def usage() -> str:
    """What `python -m nanogpt --help` prints."""
    lines = [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        ["usage: python -m nanogpt COMMAND [options]", "", *lines, ""]
        + ["  python -m nanogpt COMMAND --help    options and examples of a command"]
        + ["Exit codes: 0 all went well, 2 something is wrong (one line says what), 130 stopped by Ctrl-C."]
    )


# %% [markdown]
r"""
A library that is missing gets its install line; a module of the package that is missing, the chapter that makes it.
"""


# %%
#| export cli
def missing(error: ModuleNotFoundError) -> str:
    """What to do about a module that is not there."""
    name, _, module = (error.name or "").partition(".")
    if name != "nanogpt":
        package = {"yaml": "pyyaml"}.get(name, name)
        return f"needs {name}: pip install {package}" if name else str(error)
    chapters = Path(__file__).parent.parent.glob("notebooks/*.ipynb") if "__file__" in globals() else []
    owners = [c.name[:2] for c in chapters if f"#| doc {module}:" in c.read_text(encoding="utf-8")]
    remedy = f"`course restore {owners[0]}` brings it back" if owners else "copy it here again"
    return f"nanogpt/{module}.py is missing; {remedy}"


def in_one_line(error: BaseException) -> str:
    """What went wrong, without line breaks."""
    if isinstance(error, ModuleNotFoundError):
        return missing(error)
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split()) or {MemoryError: "out of memory"}.get(type(error), type(error).__name__)


# %%
#| export cli
def reader_has_gone(text: str = "") -> bool:
    """Write out `text` and all before it; true if nobody reads stdout any more, as `head` when it has enough."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # What follows goes nowhere: Python's own flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def outcome(name: str, call: Callable[[], None]) -> int:
    """Call it; 0, or 2 or 130 after one line on stderr.

    A command that leaves something behind when it is stopped raises KeyboardInterrupt with a sentence that says what.
    """
    try:
        call()
    except (ValueError, OSError, RuntimeError, MemoryError, FloatingPointError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone("\n"):
            return 0
        print(f"{name}: {in_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"\n{name}: stopped; {stop if stop.args else 'no file was written'}", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help
        return end.code or 0
    return 0


# %%
#| export cli
def run_command(name: str, argv: list[str]) -> int:
    """`python -m nanogpt name *argv`, called from Python; the exit code."""

    def refuse(message: str):
        raise ValueError(f"{message} (python -m nanogpt {name} --help)")

    def call():
        module = importlib.import_module(COMMANDS[name][0])
        if not hasattr(module, "parser"):
            raise SystemExit(module.main(argv))
        parser: ArgumentParser = module.parser()
        parser.prog, parser.error = f"python -m nanogpt {name}", refuse
        module.run(parser.parse_args(argv))

    return outcome(name, call)


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt`: pick the command, run it, give its exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # not every terminal can show every character
    if name in COMMANDS:
        code = run_command(name, rest)
    elif name in ("-h", "--help"):
        code = outcome("nanogpt", lambda: print(usage()))
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1) or ["--help"]
        print(f"nanogpt: no command {name!r}; try python -m nanogpt {near[0]}", file=sys.stderr)
        code = 2
    reader_has_gone()
    return code


# %% tags=["nbval-ignore-output"]
if (BUILT / "model" / "config.json").exists():
    options = ["--checkpoint", str(BUILT / "model"), "--prompt", "One sunny morning", "--temperature", "0.8"]
    outcome("sample", lambda: run(parser().parse_args(options)))
else:
    print("data/built/model is missing; after chapter 07 this cell writes a story")

# %%
with redirect_stderr(sys.stdout):
    nothing = parser().parse_args(["--checkpoint", "../data", "--prompt", "Hello"])
    print("exit code", outcome("sample", lambda: run(nothing)))
    print("exit code", main(["smaple"]))

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("08")

# %% [markdown]
r"""
## Exercises

1. **Min-p.** Keep the tokens whose probability is at least p times the largest one's. Add it to `smallest_kept` as one
   more threshold. Check: with p = 1 only the largest is left.
2. **A penalty that knows no zero.** Softmax does not change when every logit grows by 10, but `penalize` does: show it
   on three logits. Define a penalty that subtracts instead, and check that it passes that test.
3. **Speculative decoding** (Leviathan et al. 2023, §2.3). Let a small model propose four tokens, check them with the large
   one in one call, for which `cached_logits` must return all positions, and keep the longest prefix that it agrees
   with. Check: greedily, the ids are those of the large model alone, whatever the small one proposes.
4. **A smaller cache.** Keep keys and values in bfloat16 while the weights stay float32. Predict the largest difference
   in the logits, then measure it, and the time for one token at position 1000.

## Further reading

- Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*, §3.1 (nucleus) and §4.3 (natural text does not
  maximise probability)
- Fan et al. 2018, *Hierarchical Neural Story Generation*, §5.4 (top-k)
- Keskar et al. 2019, *CTRL*, §4.1 (the repetition penalty); Xu et al. 2022, *Learning to Break the Loop* (why it is needed)
- Pope et al. 2023, *Efficiently Scaling Transformer Inference*, §2 (what decoding reads from memory)
- Xiao et al. 2024, *Efficient Streaming Language Models with Attention Sinks*
"""
