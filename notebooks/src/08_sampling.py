# %% [markdown]
r"""
# 08 · Sampling: the model writes

A model gives a probability to each token of its vocabulary, and nothing else. To write, somebody must choose one,
append it, and ask again. Choose badly, and a good model repeats itself or falls into nonsense. Ask again from the
beginning, and every token costs more than the one before.

This chapter chooses by temperature, top-k, top-p and a penalty, counts how many of the stories are right, and builds
the cache that makes the hundredth token about as cheap as the first, and changes nothing but the time.
"""

# %%
#| default_exp gpt.sample
#| doc gpt.sample: Text from a model: temperature, top-k, top-p, penalties, and the command `sample`.
#| doc gpt.cache: Keys and values of the past, kept: the model reads every token once.
from dataclasses import replace

from course.figures import sampling as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus, readings, stories
from nanogpt.device import seed_everything
from nanogpt.gpt.train import scale_init, train
from nanogpt.speed.roofline import measure
from nanogpt.text.data import DocumentStream

# %%
#| export
import codecs
import math
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.device import pick_device
from nanogpt.gpt.cache import logits_after  # the second part of this chapter writes it
from nanogpt.gpt.columns import by_columns  # chapter 13
from nanogpt.gpt.model import GPT, GPTConfig, check_ids
from nanogpt.gpt.pretrained import from_hf, read_json
from nanogpt.gpt.weights import load_model
from nanogpt.text.tokenizer import EOT, BPETokenizer

# %% [markdown]
r"""
The model is chapter 07's, from `data/built/model`. Where that is missing, a small one is trained here for a few
seconds, and writes worse. `SMALL` is for experiments that need a fresh model.
"""

# %% tags=["nbval-ignore-output"]
BUILT = Path("../data/built")
manifest = ensure_corpus(BUILT / "stories")
tokenizer = BPETokenizer.load(BUILT / "stories" / manifest["tokenizer"])
shards = [BUILT / "stories" / shard["file"] for shard in manifest["splits"]["train"]["shards"]]
device = pick_device()
SMALL = GPTConfig(block_size=64, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, n_embd=64, dropout=0.1)
if (BUILT / "model" / "config.json").exists():
    model = load_model(BUILT / "model", device)
else:
    print(
        "data/built/model is missing, chapter 07 makes it; here is a small model, trained now for 200 steps"
    )
    config = replace(SMALL, block_size=128, dropout=0.0)
    model = scale_init(GPT(config, generator=seed_everything(0))).to(device)
    train(model.train(), DocumentStream(shards, B=8, T=128, device=device), steps=200, lr=5e-3)
assert model.config.vocab_size == tokenizer.vocab_size, "data/built/model knows another vocabulary"
print(model.eval().config)

# %% [markdown]
r"""
## What stands before a prompt

Chapter 07 trained on rows that begin with `<|endoftext|>`: the model has never seen a story without it. Here are
stories that it has not seen, with the token in front and without. What is predicted is the same, all tokens of a
story but its first.

*Predict.* Without it, the laptop's model has a loss of about 0.7 nats a token. With it?
"""

# %%
predict("08.1", "loss with <|endoftext|> in front of a story", guess=None, unit="nats a token")

# %% tags=["nbval-ignore-output"]
told = list(stories(200, seed=1))  # the corpus was told with another seed
texts = [tokenizer.encode(story.text)[: model.config.block_size] for story in told]


@torch.no_grad()
def loss_after(front: list[int]) -> float:
    """Mean loss of all but the first token of each story, read with `front` before it."""
    nats = 0.0
    for ids in texts:
        row = torch.tensor([[*front, *ids]], device=device)
        logits = model(row[:, :-1])[0][0, len(front) :]  # (T - 1, V)
        nats += F.cross_entropy(logits, row[0, len(front) + 1 :], reduction="sum").item()
    return nats / sum(len(ids) - 1 for ids in texts)


print(f"without {EOT}: {loss_after([]):.3f} nats a token")
print(f"with {EOT}:    {(with_it := loss_after([tokenizer.eot])):.3f}")
answer("08.1", with_it)

# %% [markdown]
r"""
So a prompt that is to begin a text gets `<|endoftext|>` in front, and `stream_text` below puts it there. GPT-2's own
training had that token between its documents (Radford et al. 2019, released code: `encoder.json`), so its
weights are asked in the same way.

## A bug to find

Everybody wants to see samples while a model trains. Here is a sampler as many tutorials print it, called in the middle of a
training run. There are two bugs. Find both before reading on.
"""


# %%
def first_sampler(model, ids: list[int], n: int) -> list[int]:
    """A sampler as many tutorials print it."""
    for _ in range(n):
        with torch.no_grad():
            logits, _ = model(torch.tensor([ids[-model.config.block_size :]]))
        ids = [*ids, torch.multinomial(logits[0, -1].softmax(-1), 1).item()]
    return ids


small = GPT(SMALL, generator=seed_everything(0)).train()
before = torch.get_rng_state()
first_sampler(small, [tokenizer.eot], 20)
print("torch's random state as before:", torch.equal(before, torch.get_rng_state()))
row = torch.tensor([[tokenizer.eot]])
print("asked twice, the same logits:  ", torch.equal(small(row)[0], small(row)[0]))

# %% [markdown]
r"""
`torch.multinomial` drew from torch's global generator, and so does dropout, which takes no other. After the sample, dropout
strikes other neurons, and the run goes on to other losses than without it. The second bug: the model was in training mode,
so dropout also struck while it wrote.

The sampler below has a generator of its own, and calls the model inside chapter 07's `evaluating`, which puts each module's
mode back even if an error comes between.

## Which token?

**Temperature** divides the logits before the softmax (Ackley et al. 1985). Below 1 the likely becomes likelier; at
the limit 0 only the largest is left, which is *greedy* decoding.

Drawing from the whole distribution, the trouble is its tail: many tokens, each unlikely, together likely. **Top-k**
keeps the k largest, whatever their shares. **Top-p**, the *nucleus*, keeps the fewest tokens that together reach
mass p: many where the model is unsure, few where it is sure.

*Predict.* Probabilities 0.5, 0.3, 0.1, 0.06, 0.04. How many survive top-p 0.79? And 0.81?
"""

# %%
predict("08.2", "tokens that survive top-p 0.81", guess=None)


# %%
#| export
#| blank keep: find the smallest logit that is kept, then set all below it to -inf
def keep(logits: Tensor, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Logits (B, V) with -inf for what top-k and then top-p leave out. Equal ones are all kept, or none.

    top_k: the k largest (Fan et al. 2018, §5.4). top_p: the fewest that reach the mass (Holtzman et al. 2020, §3.1).
    """
    if top_k:
        smallest = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    if top_p < 1:
        sorted_logits = logits.sort(descending=True).values
        p = sorted_logits.softmax(-1)
        outside = p.cumsum(-1) - p >= top_p  # those before it, all larger, have the mass already
        outside[:, 0] = False
        smallest = sorted_logits.masked_fill(outside, math.inf).amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < smallest, -math.inf)
    return logits


# %%
five = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04]]).double().log()
for top_k, top_p in ((2, 1.0), (None, 0.79), (None, 0.81), (3, 0.81)):
    kept = keep(five, top_k, top_p).isfinite().sum().item()
    print(f"top_k {top_k}, top_p {top_p}: keeps {kept}")
answer("08.2", keep(five, None, 0.81).isfinite().sum())

# %% [markdown]
r"""
The last line keeps fewer than the one before: top-k's three survivors are normalised first, and then two reach 0.81.
Order matters, and ours is that of `transformers`: temperature, top-k, top-p.
"""


# %%
#| export
def token_probs(logits: Tensor, temperature=1.0, top_k: int | None = None, top_p=1.0) -> Tensor:
    """Probabilities (B, V) of the next token from logits (B, V): temperature, then top-k, then top-p.

    temperature 0 gives all mass to the largest logit. ValueError in one sentence where an option cannot work.
    """
    if temperature != 0 and not 1e-30 <= temperature < math.inf:  # float32 divides by nothing much smaller
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or a number from 1e-30 up")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1; leave it out to keep every token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, which keeps every token")
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float()
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # at most 0, however small that is
    return keep(logits, top_k, top_p).softmax(-1)


# %%
for knobs in ({}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.81}, {"temperature": 0}):
    print(f"{knobs!s:20}", token_probs(five, **knobs)[0].numpy().round(2))

# %% [markdown]
r"""
**Repetition penalty.** Greedy decoding likes to repeat itself, and each repetition makes the next one likelier (Xu et
al. 2022). CTRL (Keskar et al. 2019, §4.1) divides the logits of tokens already written by a penalty θ > 1. That makes a
*negative* logit larger, so `transformers` multiplies those instead, and so do we. Tokens of the prompt count as
written. What it does to a story, which must repeat its names, is counted below.
"""


# %%
#| export
#| blank penalize: divide the positive ones and multiply the negative ones, only where seen
def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (CTRL, Keskar et al. 2019, §4.1) on logits (B, V) of the tokens in `seen`, (B, V) bool.

    Positive logits are divided by the penalty, negative ones multiplied, as in transformers: always downwards.
    """
    if not 0 < penalty < math.inf:
        raise ValueError(f"repetition_penalty={penalty} must be positive; 1 changes nothing")
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


# %%
print(penalize(torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([[True, False, True]]), 1.25))

# %% [markdown]
r"""
**The draw.** One uniform number in [0, 1), and the cumulative probabilities as a ruler: the token on whose piece it
falls. The number comes from a generator of our own, on the CPU, so that a seed means the same numbers on every
device.
"""


# %%
#| export
#| blank draw: sum the probabilities up; u falls between two of the sums
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
assert ((frequency - p).abs() <= 4 * (p * (1 - p) / n).sqrt()).all(), "off by more than 4 deviations"


# %%
#| export
def choose(logits: Tensor, generator, seen: Tensor, repetition_penalty: float = 1.0, **how) -> list[int]:
    """The next id of each text, from logits (B, V): penalize, then token_probs, then draw. Greedy draws nothing.

    seen: (B, V), what has been written. how: temperature, top_k, top_p.
    """
    if not logits.amax(-1).isfinite().all():
        raise FloatingPointError("the model's logits are NaN or infinite: its training or its file failed")
    probs = token_probs(penalize(logits, seen, repetition_penalty), **how)
    return probs.argmax(-1).tolist() if how.get("temperature") == 0 else draw(probs, generator)


# %% [markdown]
r"""
## A cache for one text

`first_sampler` reads the whole text again for each new token. But causality, seen from the other side, says that
nothing that is appended changes what stands before it: position t never looks ahead, so its keys and values stay as
they are, in every layer. They can be kept.

The model is ready for that. With a cache, `forward` reads only what is new: it asks the cache at which positions the
new tokens stand, and hands it each layer's new queries, keys and values; the cache adds the keys and values that it has kept,
and attends. Only the newest token goes to the head.
"""


# %%
class OneText:
    """Keys and values of one text that comes token by token, by layer."""

    def __init__(self):
        self.kept, self.n = {}, 0

    def positions(self, T: int) -> Tensor:
        self.n += T
        return torch.arange(self.n - T, self.n, device=device)

    def layer(self, i: int):
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # (1, n_head, 1, d), of the new token
            if i in self.kept:
                k, v = (torch.cat(both, dim=2) for both in zip(self.kept[i], (k, v)))
            self.kept[i] = k, v  # (1, n_head, S, d)
            return F.scaled_dot_product_attention(q, k, v)  # no mask: a single new token sees everything

        return attend

    def newest(self, x: Tensor) -> Tensor:
        return x[:, -1:]


# %% [markdown]
r"""
*Check*, a law: one token at a time through the cache, at every position, against the whole text at once.
"""

# %%
text = torch.tensor([[tokenizer.eot, *texts[0]]], device=device)[:, : model.config.block_size]
cache = OneText()
with torch.no_grad():
    whole = model(text)[0][0]  # (T, V)
    steps = torch.cat([model(token, cache=cache)[0][0] for token in text.split(1, dim=1)])  # (T, V)
print("logits differ by less than 1e-3:", bool((whole - steps).abs().max() < 1e-3))

# %% [markdown]
r"""
## Many texts, of different length

`torch.cat` copies everything for every token, and one text at a time wastes the machine: each weight is read for a single
row of activations. A batch reads it once for all its texts. So the cache for the package holds B texts, in memory that is
taken once.

Prompts differ in length. Padding on the left would move every token to another position, and need masks and shifted
positions to undo that. On the right it costs nothing but time while the prompts are read: a causal model never looks
right. After that each text goes on at its own position, and its next token overwrites the padding.
"""


# %%
#| export gpt.cache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.evals.losses import evaluating
from nanogpt.gpt.model import GPT


# %%
#| export gpt.cache
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


# %%
#| export gpt.cache
#| blank KVCache.attend: write k and v to their places, then attend to all that is kept, masked by self.past
class KVCache(KVCache):
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


# %%
#| export gpt.cache
@torch.no_grad()
def read(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read what is new of each text, of any lengths, into the cache; logits (B, vocab_size) after each. No dropout."""
    longest = max(map(len, texts))
    idx = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=cache.keys.device)
    cache.counts = [len(text) for text in texts]
    with evaluating(model):
        return model(idx, cache=cache)[0][:, 0]


# %% [markdown]
r"""
*Check.* Three texts read together, then one more token of each, against each alone without a cache.
"""

# %%
three = [[tokenizer.eot, *ids[:n]] for ids, n in zip(texts, (3, 17, 0))]
read(model, cache := KVCache.empty(model, B=3, size=20), three)
together = read(model, cache, [[7], [8], [9]])
with torch.no_grad():
    rows = [torch.tensor([[*text, new]], device=device) for text, new in zip(three, (7, 8, 9))]
    alone = torch.stack([model(row)[0][0, -1] for row in rows])
print(f"filled {cache.lengths}; as alone, to 1e-3:", bool((together - alone).abs().max() < 1e-3))

# %% [markdown]
r"""
Only the time differs. A somewhat larger model, untrained, and the time for one more token after n others.

*Predict.* After 480 tokens, how many times as long as after 32, without the cache and with it?
"""

# %%
predict("08.3", "without a cache, time of a token after 480 others over that after 32", guess=None, unit="×")


# %% tags=["nbval-ignore-output"]
def fastest(call) -> float:
    """Milliseconds of the least disturbed of ten calls."""
    return 1e3 * min(measure(torch.no_grad()(call), device, repeats=10).times)


larger = GPT(GPTConfig(512, 1024, 4, 4, 256), generator=torch.Generator().manual_seed(0)).to(device).eval()
lengths, zeros = (32, 144, 256, 368, 480), torch.zeros(1, 512, dtype=torch.long, device=device)
ms = {"without cache": [], "with cache": []}
for n in lengths:
    read(larger, cache := KVCache.empty(larger, B=1, size=512), [[0] * n])
    ms["without cache"].append(fastest(lambda n=n: larger(zeros[:, : n + 1])))
    ms["with cache"].append(fastest(lambda kept=cache: read(larger, replace(kept), [[0]])))
fig = figures.time_per_token(lengths, ms)
show(fig, alt="Time for one more token against position: rising without the cache, nearly flat with it.")
answer("08.3", ms["without cache"][-1] / ms["without cache"][0])

# %% [markdown]
r"""
Without the cache, the time of a token grows with its position, and the time of a text with the square of its length.
With it, what still grows is attention's look at the kept keys.

## Past the context

The position table has `block_size` rows. What then? Dropping the oldest key and going on looks natural, a *rolling*
cache. *Predict*: is it equal to reading the last `block_size` tokens afresh? If not, would it be with the position
table set to zero?
"""

# %%
T = SMALL.block_size
ids = list(range(T + 1))
for n_layer in (1, 2):
    for positions in ("learned", "zero"):
        small = scale_init(GPT(replace(SMALL, n_layer=n_layer), generator=seed_everything(0)))
        small.transformer.wpe.weight.data *= positions == "learned"
        cache = KVCache.empty(small, B=1, size=T)
        read(small, cache, [ids[:T]])
        rolled = KVCache(cache.keys.roll(-1, dims=3), cache.values.roll(-1, dims=3), lengths=[T - 1])
        fresh = read(small, KVCache.empty(small, B=1, size=T), [ids[1:]])
        largest = (read(small, rolled, [ids[T:]]) - fresh).abs().max().item()
        print(f"{n_layer} layers, positions {positions:7}: logits differ by {largest:.3f}")

# %% [markdown]
r"""
Two causes. A key computed at position 7 has row 7 of `wpe` in it, and does not become the key of position 6 by moving.
And from the second layer on, a key was made from what its position *had seen*: it holds tokens that are dropped by now.
Only one layer without positions is free of both. So relative positions (RoPE, say) alone would not make a rolling
cache equal to a fresh one.

What to do, then? The model reads again, but not for every token:

> The model sees a window of the text: at first the prompt's last `block_size` tokens at most. When the window is
> full, it starts again with the last `block_size // 2` tokens.

So each written token costs one that is read again, and reading many at once is cheap.
"""


# %%
#| export gpt.cache
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


# %% [markdown]
r"""
## The loop

Choose, hand out, append, until every text has met a stop token or its length. First what can be wrong with a prompt:
"""


# %%
#| export
def checked(prompts: Sequence[Sequence[int]], max_new_tokens: int, vocab_size: int) -> list[list[int]]:
    """The prompts as lists; ValueError where one is empty or holds an id that the model does not have."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    texts = [list(map(int, prompt)) for prompt in prompts]
    if not texts or not all(texts):
        raise ValueError("a prompt has no tokens; begin with the end-of-text token, [tokenizer.eot]")
    check_ids(torch.tensor([i for text in texts for i in text]), vocab_size)
    return texts


# %%
#| export
def stream_batch(
    model: GPT, prompts: list[list[int]], max_new_tokens: int, stop=(), vocab_size=None, generator=None, **how
) -> Iterator[list[int | None]]:
    """Continue all prompts; yields one new id for each, again and again, or None for a text that has ended.

    how: temperature, top_k, top_p, repetition_penalty. A text ends before the first id in `stop`. Ids from vocab_size
    on are never chosen. All randomness comes from `generator`, one number per text and token; by default from a new
    one with seed 0. Neither global generators nor the model's mode are changed. Any length is possible.
    """
    V, device = model.config.vocab_size, model.transformer.wte.weight.device
    texts, ended = checked(prompts, max_new_tokens, V), [False] * len(prompts)
    generator = generator or torch.Generator().manual_seed(0)
    seen = torch.zeros(len(texts), V, dtype=torch.bool, device=device)
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
#| export
def generate(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> list[int]:
    """The ids that continue one prompt, without it; options as for stream_batch."""
    return [i for (i,) in stream_batch(model, [prompt], max_new_tokens, **options)]


# %% [markdown]
r"""
*Check.* Greedy, with the cache; then the finished text is read at once, and at each position the written token must be
the likeliest. And the bugs from the beginning:
"""

# %%
written = [tokenizer.eot, *generate(model, [tokenizer.eot], model.config.block_size - 1, temperature=0)]
with torch.no_grad():
    likeliest = model(torch.tensor([written[:-1]], device=device))[0][0].argmax(-1).tolist()
print("greedy ids are the likeliest ones:", likeliest == written[1:])
before = torch.get_rng_state()
ours = [generate(module, [tokenizer.eot], 20) for module in (small.train(), small.eval())]
print("torch's random state as before:", torch.equal(before, torch.get_rng_state()))
print("the same text in both modes:   ", ours[0] == ours[1])

# %% [markdown]
r"""
## From tokens to text, as it comes

A character may be spread over several tokens. Decoding token by token would print half characters. Python's
incremental decoder holds back the first bytes of a character until the rest arrives. A stop *text* may begin in one
token and end in another, so what could still become one is held back as well.
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
bytes_only = BPETokenizer.train("no merges", 257)
ids = bytes_only.encode("Zoë 🦉 END here")
print([bytes_only.decode([i]) for i in ids[:10]])
print(list(as_text(iter(ids), bytes_only, stop=["END"])))


# %%
#| export
def stream_text(
    model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, stop: Collection[str] = (), **how
) -> Iterator[str]:
    """Continue a text, piece by piece, to its end-of-text token, a text in `stop`, or max_new_tokens.

    The prompt begins a document: `<|endoftext|>`, which training put there, is read before it. how: see stream_batch.
    """
    if "" in stop or isinstance(stop, str):
        raise ValueError(f"stop={stop!r} must be a list of texts, none of them empty")
    if tokenizer.vocab_size > (V := model.config.vocab_size):
        raise ValueError(f"the tokenizer has {tokenizer.vocab_size} tokens, the model {V}; use its own")
    ids = tokenizer.encode(prompt.removeprefix(EOT), allowed_special={EOT})
    how = {"stop": {tokenizer.eot}, "vocab_size": tokenizer.vocab_size} | how
    tokens = (i for (i,) in stream_batch(model, [[tokenizer.eot, *ids]], max_new_tokens, **how))
    yield from as_text(tokens, tokenizer, stop)


def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options) -> str:
    """The text that continues `prompt`, without it; options as for stream_text."""
    return "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))


# %% [markdown]
r"""
## How many stories are right?

No other text allows this question: chapter 02's grammar can read a story back, choice by choice, and knows every fact.
A story is right if there is such a reading: every phrase exists, every name was introduced, and every number is as it must
be. Each way of drawing continues the same openings, first sentences of the grammar, in one batch.

*Predict.* At temperature 1, which is the model as it is: how many percent of the stories are right from beginning to
end?
"""

# %%
predict("08.4", "stories that are right at temperature 1", guess=None, unit="%")
N_STORIES = 48
WAYS = {
    "greedy": {"temperature": 0},
    "T = 0.5": {"temperature": 0.5},
    "T = 1": {},
    "T = 1.5": {"temperature": 1.5},
    "T = 1.5, top-p 0.9": {"temperature": 1.5, "top_p": 0.9},
    "T = 0.5, penalty 1.2": {"temperature": 0.5, "repetition_penalty": 1.2},
}


# %% tags=["nbval-ignore-output"]
def tell(openings: list[str], how: dict) -> list[str]:
    """Stories that begin so; one that does not end within the context is cut there, and is no story."""
    prompts = [[tokenizer.eot, *tokenizer.encode(opening)] for opening in openings]
    room, generator = model.config.block_size - max(map(len, prompts)), torch.Generator().manual_seed(7)
    rounds = zip(*stream_batch(model, prompts, room, stop={tokenizer.eot}, generator=generator, **how))
    return [o + tokenizer.decode([i for i in ids if i is not None]) for o, ids in zip(openings, rounds)]


openings = [story.text[: story.text.index(".") + 1] for story in told[:N_STORIES]]
written = {name: tell(openings, how) for name, how in WAYS.items()}
shares = {name: 100 * sum(map(bool, map(readings, texts))) / N_STORIES for name, texts in written.items()}
fig = figures.shares_right(shares, N_STORIES)
show(fig, alt="A bar for each way of drawing: the share of stories that the grammar can read.")
answer("08.4", shares["T = 1"])

# %% tags=["nbval-ignore-output"]
for name, right in shares.items():
    print(f"{name:22} {right:3.0f}% of {N_STORIES} stories right")
for name in ("greedy", "T = 1", "T = 1.5"):
    print(f"\n{name}:\n{written[name][0]}")

# %% [markdown]
r"""
Temperature 1 is the model as it is. That a story breaks a rule somewhere need not make it a bad model: a story takes
about a hundred draws, and one wrong word in a hundred is enough. A lower temperature takes mass from
the wrong words; a higher one gives them mass, and top-p takes part of it back.
Where greedy decoding, which takes the likeliest at every place, counts wrong, the model
does not know, and no way of drawing can repair that. A penalty on repetition works against a text
that must repeat its names and numbers.

## See: the distribution under your hand

A story up to a number that must be computed. Pale bars are the model's own
probabilities, dark ones what `token_probs` makes of them: surer below temperature 1, less sure above.
*Predict:* top-p stays at 0.95 and top-k at 8. How many tokens are left at temperature 0, and at 3? Move the sliders, then type
another beginning.
"""


# %%
question = told[0].text[: told[0].answers[-1][0]].rstrip()


def bars(prompt: str, temperature: float, top_k: int, top_p: float):
    """The sixteen likeliest next tokens, with the model's probabilities and those that are drawn from."""
    text = [tokenizer.eot, *tokenizer.encode(prompt)][-model.config.block_size :]
    with torch.no_grad():
        logits = model(torch.tensor([text], device=device))[0][0, -1:].cpu()  # (1, V)
    plain, drawn = logits.softmax(-1)[0], token_probs(logits, temperature, top_k, top_p)[0]
    ids = plain.topk(16).indices
    return [repr(tokenizer.decode([i])) for i in ids], plain[ids], drawn[ids]


# %% tags=["nbval-ignore-output"]
figures.playground_widget(bars, question)

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

    tokenizer: "gpt2" or a tokenizer.json; by default the one beside the checkpoint, or GPT-2's for GPT-2's size.
    """
    folder = Path(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    config, beside = folder / "config.json", folder / "tokenizer.json"
    ours = config.is_file() and "model_type" not in read_json(config)
    model = load_model(folder) if ours else from_hf(checkpoint)
    if tokenizer is None and ours and beside.exists():
        return model, BPETokenizer.load(beside)
    if tokenizer is None and not 50257 <= model.config.vocab_size <= 50304:  # GPT-2's, or padded (chapter 13)
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer in (None, "gpt2") else BPETokenizer.load(tokenizer)


# %% [markdown]
r"""
## A command: a section that you may skip

`python -m nanogpt sample` is what follows, and nothing in it is about language models. A command is a module with a
`parser()` and a `run(args)`; chapter 17 has the runner that calls all of them.
"""


# %%
#| export
HELP = """Continue a prompt with a trained model; the text appears as it is written.

  python -m nanogpt sample --checkpoint data/built/model --prompt "One sunny day,"
  python -m nanogpt sample --checkpoint openai-community/gpt2 --prompt "Hello, I'm a language model," --top-k 50
"""


def parser() -> ArgumentParser:
    """The options of `python -m nanogpt sample`."""
    parser = ArgumentParser(description=HELP, formatter_class=RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--checkpoint", required=True, help="folder with config.json and model.safetensors, or hub name")
    add("--prompt", default="", help="the beginning of the text (default: none)")
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
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} must be from 0 to 2**63 - 1")
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    model = by_columns(model) if device.type == "cpu" else model.to(device)
    generator = torch.Generator().manual_seed(args.seed)
    pieces = stream_text(model, tokenizer, args.prompt, args.max_new_tokens, generator=generator, **how)
    first = next(pieces, "")  # before the prompt, since an option may be wrong
    for piece in chain((args.prompt, first), pieces):
        print(piece, end="", flush=True)
    print(flush=True)


# %% [markdown]
r"""
## Your predictions
"""

# %% tags=["nbval-ignore-output"]
predictions("08")

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("08")

# %% [markdown]
r"""
## Exercises

`course exercises release 08` writes these as a notebook to `released/`; `course check 08` runs their visible checks.

- **08-1** The token that crosses p, 20 minutes: mend a top-p that leaves it out, and settle ties.
- **08-2** Min-p, and a temperature of zero, 20 minutes: build both, in the right order.
- **08-3** A check for the repetition penalty, 15 minutes: write the check; it is tried on wrong penalties.
- **08-4** Where the new tokens stand, 30 minutes: mend positions and mask of a cache for texts of different length.
- **08-5** What a conversation costs, 15 minutes: bytes of a cache, for a model of your own.
- **08-6** A penalty that knows a zero, 5 minutes: what a shift of all logits does to it.

To explore:

1. **Speculative decoding** (Leviathan et al. 2023, §2.3). Let a small model propose four tokens, check them with the large
   one in one call, for which `newest` must give all positions, and keep the longest prefix that it agrees
   with. Check: greedily, the ids are those of the large model alone, whatever the small one proposes.
2. **A smaller cache.** Keep keys and values in bfloat16 while the weights stay float32. Predict the largest difference
   in the logits, then measure it, and the time for one token at position 1000.

## Further reading

- Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*, §3.1 (nucleus) and §4.3 (natural text does not
  maximise probability)
- Fan et al. 2018, *Hierarchical Neural Story Generation*, §5.4 (top-k)
- Keskar et al. 2019, *CTRL*, §4.1 (the repetition penalty); Xu et al. 2022, *Learning to Break the Loop* (why it is needed)
- Pope et al. 2023, *Efficiently Scaling Transformer Inference*, §2 (what decoding reads from memory)
- Xiao et al. 2024, *Efficient Streaming Language Models with Attention Sinks*
"""
