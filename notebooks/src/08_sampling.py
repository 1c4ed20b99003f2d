# %% [markdown]
r"""
# 08 · Sampling: the model writes

A language model does not write. It reads a text and gives every token of its vocabulary a probability of coming next.
To get a story out of it, somebody must choose one token, append it to the text, and ask again, about a hundred times.
This chapter is about that loop.

The first half is about the choice. We can always take the likeliest token, or draw one at random, or do something in
between, and at the end we count how many stories come out right for each way of choosing. The second half makes the loop
fast. A simple loop reads the whole text again for every new token. A cache keeps what the model has computed already,
and the tokens stay the same.
"""

# %%
#| default_exp sampling
#| doc sampling: Text from a model: temperature, top-k and top-p, for one text or many at once, and the command `sample`.
import re

from course.figures import sampling as figures
from course.figures.stand_in import fastest, trained_model
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.labs.evals.floor import readings
from nanogpt.labs.corpora.stories import NUMBERS, ensure_corpus, stories

# %%
#| export
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.device import pick_device
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import EOT, BPETokenizer
from nanogpt.weights import load_model

# %%
from functools import partial

import nanogpt.model as gpt2
from nanogpt.model import Block, CausalSelfAttention, attention_weights, check_input, split_heads

# %% [markdown]
r"""
The model is the one that chapter 07 trained and saved. If you have not run chapter 07, the next cell trains a smaller
model for a few seconds, and its stories are worse.
"""

# %% tags=["nbval-ignore-output"]
BUILT = Path("../data/built")
manifest = ensure_corpus(BUILT / "stories")
tokenizer = BPETokenizer.load(BUILT / "stories" / manifest["tokenizer"])
device = pick_device()
model = trained_model(tokenizer, manifest, device)
assert model.config.vocab_size == tokenizer.vocab_size, "another vocabulary: run chapter 07"
print(model.eval().config)

# %% [markdown]
r"""
## Greedy: always the likeliest token

The simplest rule takes the token with the largest logit, every time. This is called *greedy decoding*, and the whole
program is a loop of two lines. The model returns logits for every position of the text. Only the last position says
what comes next, so the loop looks at `logits[0, -1]`.
"""


# %%
@torch.no_grad()
def greedy(model: GPT, ids: list[int], n: int) -> list[int]:
    """The ids, continued by n tokens, each the likeliest."""
    for _ in range(n):
        logits, _ = model(torch.tensor([ids], device=device))  # (1, T, V)
        ids = ids + [logits[0, -1].argmax().item()]
    return ids


# %% tags=["nbval-ignore-output"]
prompt = [tokenizer.eot, *tokenizer.encode("One sunny day,")]
print(tokenizer.decode(greedy(model, prompt, model.config.block_size - len(prompt))))

# %% [markdown]
r"""
The model writes. It took a text that begins with "One sunny day," and went on with sentences, names and numbers.

Look at three things. First, follow the story by hand: does it end with the right count, and does everybody get the thing that
they asked for? A small model makes mistakes in both, and near the end of this chapter we count them. Second, the model
did not stop at the end of its story. Where the story ends, it writes `<|endoftext|>` and begins another one, because that is
how its training text went on. To the model, the end of a text is a token like any other. The loop must watch for it and stop.
Third, run the cell again. The story is the same, to the last word: nothing in this loop is random.

## The token before a prompt

We put `<|endoftext|>` in front of the prompt. Why? In the training text this token comes before every story, so the model has
hardly ever seen a story without it. With the token in front, the model knows that a story begins here. In this chapter
every prompt begins with `<|endoftext|>`, and `stream_text` below adds it.

This is a choice, not a law. OpenAI's sampling script for GPT-2 and `generate` in `transformers` read the prompt alone. Given
the same ids, our functions write the same ids as `transformers` does (a test of this chapter compares them). Given the same
prompt as text, they may differ, because ours has one token more in front.

## Drawing: one token by chance

Greedy decoding tells one story for each prompt. To get many stories, we *draw* the next token: a token with probability
0.3 is chosen in three of ten cases. Softmax turns the logits into probabilities, and `torch.multinomial` draws. Here
is such a sampler, as many tutorials print it.
"""


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def tutorial_sampler(model: GPT, ids: list[int], n: int) -> list[int]:
    for _ in range(n):
        logits, _ = model(torch.tensor([ids], device=device))
        ids = ids + [torch.multinomial(logits[0, -1].softmax(-1), 1).item()]
    return ids


print(tokenizer.decode(tutorial_sampler(model, prompt, 60)))

# %% [markdown]
r"""
Run the cell again: every time it writes another story. But this sampler has two bugs, and they show when somebody calls it in the middle of a training
run to see how the model is doing. The next cell makes a model with dropout, as it is during training, and lets it write.
Before you run it, try to find both bugs in the code above.
"""

# %%
shape = GPTConfig(block_size=64, vocab_size=tokenizer.vocab_size, n_layer=2, n_head=2, n_embd=64, dropout=0.1)
untrained = GPT(shape, generator=torch.Generator().manual_seed(0)).to(device).train()
before, row = torch.get_rng_state(), torch.tensor([[tokenizer.eot]], device=device)
tutorial_sampler(untrained, [tokenizer.eot], 20)
print("asked twice, the same logits:", torch.equal(untrained(row)[0], untrained(row)[0]))
if device.type == "cpu":  # on a GPU both draw from the GPU's generator
    print("torch's random state is as before:", torch.equal(before, torch.get_rng_state()))

# %% [markdown]
r"""
The first bug: the model is in training mode, so dropout removes neurons while it writes, and the text is worse than what
the model can do. The second bug is harder to see. `torch.multinomial` takes its random numbers from PyTorch's global generator.
Dropout takes its numbers from the same generator. After a sample has been drawn, dropout removes other neurons than it
would have, and the rest of the training run is another run. Two runs with the same seed then differ, because one of them
was watched.

So our sampler has a generator of its own. And it calls the model inside chapter 07's `evaluating`, which turns dropout
off and afterwards gives every module its mode back.

Drawing with a generator of our own takes three lines. Put the probabilities one after the other on a ruler of length 1,
and throw one uniform number in [0, 1) at it: the piece that it hits is the token. The ends of the pieces are the
cumulative sums of the probabilities. Rounding may leave the last end a little above or below 1, so `draw` stretches the number to
the length that the ruler really has.
"""


# %%
#| export
#| blank draw: sum the probabilities up; torch.searchsorted with right=True says between which two sums u falls
def draw(probs: Tensor, generator: torch.Generator) -> list[int]:
    """One id for each row of probs (B, V); takes B numbers from `generator` and none from anywhere else."""
    # float64: 50,257 float32 sums would leave a rounding error larger than the rarest tokens.
    ends = probs.to("cpu", torch.float64).cumsum(-1)  # on the CPU, a seed means the same on every device
    u = torch.rand(len(ends), 1, generator=generator, device=generator.device).cpu()  # (B, 1)
    return torch.searchsorted(ends, u * ends[:, -1:], right=True).squeeze(1).tolist()


# %% [markdown]
r"""
A token of probability zero has a piece without length, so it never comes. A test of this chapter draws 200,000 times and
compares how often each token came with its probability.

## Temperature: how bold the draw is

Greedy decoding and drawing are two ends of a scale. To move between them, divide the logits by a *temperature* before the
softmax (Ackley et al. 1985). Follow it with five tokens:
"""

# %%
five = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.04]]).log()
for temperature in (2.0, 1.0, 0.5, 0.1):
    print(f"temperature {temperature}:", (five / temperature).softmax(-1)[0].numpy().round(2))
print("ten draws at temperature 1:", draw(five.softmax(-1).expand(10, 5), torch.Generator().manual_seed(0)))

# %% [markdown]
r"""
At temperature 1 nothing changes. Below 1, likely tokens become likelier: at 0.5 every probability is squared and the
squares are divided by their sum. Near 0 only the largest is left, which is greedy decoding. Above 1 the probabilities come
closer to each other.

When is it used? A low temperature suits questions with one right answer, a high one suits brainstorming. What suits our
stories is measured below.

## Top-k: cut the tail

Drawing from all tokens has a weakness: the tail. Hundreds of tokens are wrong at a given place. Each of them is very
unlikely, but together they may not be, and a story is a hundred draws long. One draw from the tail can spoil it. A higher
temperature makes the tail heavier, as the first line above shows.

**Top-k** cuts it off: the k largest
logits stay, all others become −∞ (Fan et al. 2018, §5.4), so that softmax gives them 0.
"""


# %%
#| export
#| blank keep_top_k: find the smallest logit that is kept, then set all below it to -inf
def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Logits (B, V) with -inf for all but the k largest of each row. Equal ones are all kept, or none."""
    smallest = logits.topk(min(k, logits.size(-1))).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < smallest, -math.inf)


# %%
print(keep_top_k(five, 2).softmax(-1)[0].numpy().round(3))

# %% [markdown]
r"""
The two that are left keep their ratio, 5 to 3, and fill up to 1. When is it used? Top-k is the cheapest cut, and `transformers` uses k = 50
where nobody says otherwise. GPT-2's paper (§3.6) writes its summaries with k = 2.

## Top-p: cut where the model is sure

A fixed k is too large in one place and too small in another. After "Now Anna had", only a few number words make sense. After
"a red", dozens of nouns do. **Top-p**, also called the *nucleus* (Holtzman et al. 2020, §3.1), fixes the mass instead:
it keeps the fewest tokens that together reach the probability p. These are few where the model is sure and many
where it is not.

In the code below, the probabilities are sorted, and the cumulative sum minus a token's own probability is the mass of all larger ones.
If these have the mass p already, the token is not needed.

*Predict.* The probabilities are 0.5, 0.3, 0.1, 0.06 and 0.04. With p = 0.79, two tokens are kept, because 0.5 is less than
0.79 and 0.5 + 0.3 is more. How many are kept with p = 0.81?
"""

# %%
predict("08.1", "tokens that survive top-p 0.81", guess=None)


# %%
#| export
def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Logits (B, V) with -inf for all but the fewest largest that have the mass p. Equal ones are all kept, or none."""
    ranked = logits.sort(descending=True).values
    probs = ranked.softmax(-1)
    outside = probs.cumsum(-1) - probs >= p  # the larger ones before it have the mass already
    outside[:, 0] = False
    smallest = ranked.masked_fill(outside, math.inf).amin(-1, keepdim=True)  # (B, 1)
    return logits.masked_fill(logits < smallest, -math.inf)


# %%
for p in (0.79, 0.81):
    print(f"top-p {p}:", keep_top_p(five, p).softmax(-1)[0].numpy().round(3))
answer("08.1", keep_top_p(five, 0.81).isfinite().sum())

# %% [markdown]
r"""
The token that crosses p belongs to the nucleus: without it, the rest does not reach p. When is it used? For open text,
where one place has three good words and the next has three hundred. Holtzman et al. (2020), who proposed it, take 0.95.

The three knobs go into one function. Their order matters, because each step changes the probabilities that the next one
sees. Ours is the order of `transformers`: temperature, then top-k, then top-p.
"""


# %%
#| export
def token_probs(logits: Tensor, temperature=1.0, top_k: int | None = None, top_p=1.0) -> Tensor:
    """Probabilities (B, V) of the next token from logits (B, V): temperature (0 is greedy), then top-k, then top-p."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.size(-1)).float()
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # at most 0: no quotient is infinite
    if top_k:
        logits = keep_top_k(logits, top_k)
    if top_p < 1:
        logits = keep_top_p(logits, top_p)
    return logits.softmax(-1)


# %% [markdown]
r"""
Now try the knobs on the trained model. The text below is a story up to a number that must be computed. Pale bars are the
model's own probabilities. Dark bars are what `token_probs` makes of them. *Predict* before each step what the dark bars will do.

1. Set top-k to 50 and top-p to 1, and move only the temperature.
2. Set the temperature to 1 and move only top-k. Do the bars that are left keep their order and their ratios?
3. Set top-k back to 50 and move only top-p. Then type the beginning of a story into the field, such as "One" or "One sunny":
   how does the number of tokens that are left depend on the text?
"""

# %%
told = list(stories(200, seed=1))  # the corpus was told with another seed
question = told[0].text[: told[0].answers[-1][0]].rstrip()

# %% tags=["nbval-ignore-output"]
figures.playground_widget(model, tokenizer, token_probs, question)

# %% [markdown]
r"""
## A cache: read every token once

Our loop is wasteful. To write token 100, it reads tokens 0 to 99 again, although it read 0 to 98 one step ago. Did anything
change for them? No. GPT-2 is causal: position t never looks at later positions. So a token that is appended changes
nothing that was computed before it, in any layer. The new token needs only one thing of the old ones: their keys and
values, which its queries look at. If we keep those, we can read the new token alone. This is the *KV cache*.

For one text, such a cache is a short class. It has a list of keys and a list of values, with one entry for each layer, and appends the new ones.
The mask says what a new token may see: all that is kept, and the new tokens up to itself.
"""


# %%
class OneTextCache:
    def __init__(self, n_layer: int):
        self.keys, self.values, self.length = [None] * n_layer, [None] * n_layer, 0

    def positions(self, T: int) -> Tensor:
        """The positions of T new tokens."""
        self.length += T
        return torch.arange(self.length - T, self.length, device=device)

    def attend(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep block i's new k and v, (1, n_head, T, d), then attend with q to all that is kept."""
        if self.keys[i] is not None:
            k = torch.cat([self.keys[i], k], dim=2)  # (1, n_head, S, d)
            v = torch.cat([self.values[i], v], dim=2)
        self.keys[i], self.values[i] = k, v
        T, S = q.size(2), k.size(2)
        past = torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=past)

    def layer(self, i: int) -> partial:
        return partial(self.attend, i)

    def newest(self, x: Tensor) -> Tensor:
        """Of x (1, T, C), the last token, (1, 1, C)."""
        return x[:, -1:]


# %% [markdown]
r"""
The model must now ask the cache. Its forward pass grows by one argument: in `model(idx, cache=cache)`, idx holds only the new tokens, and there are three
questions:

- `cache.positions(T)`: what are the positions of the T new tokens?
- `cache.layer(i)`: the attention of block i, as a function of the new queries, keys and values. `partial` fixes the first argument of `attend` and leaves
  q, k and v to the caller.
- `cache.newest(x)`: which tokens need logits? Only the last new one does.
"""


# %%
#| export model
#| grows CausalSelfAttention.forward, Block.forward, GPT.forward
class CausalSelfAttention(CausalSelfAttention):
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


class Block(Block):
    def forward(self, x: Tensor, cache=None) -> Tensor:
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


class GPT(GPT):
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


# %% tags=["nbval-ignore-output"]
grown("GPT.forward", "08")

# %% [markdown]
r"""
Our models were built from the package's classes, so we give these the new methods. Then the greedy loop again, as a second version of the same function. It reads the prompt, and
after that only the one token that it has just chosen. The law: both versions write the same ids.
"""


# %%
for old, new in ((gpt2.CausalSelfAttention, CausalSelfAttention), (gpt2.Block, Block), (gpt2.GPT, GPT)):
    old.forward = new.forward


@torch.no_grad()
def greedy_with_cache(model: GPT, ids: list[int], n: int) -> list[int]:
    cache, new = OneTextCache(model.config.n_layer), ids
    for _ in range(n):
        logits, _ = model(torch.tensor([new], device=device), cache=cache)  # (1, 1, V)
        new = [logits.argmax().item()]
        ids = ids + new
    return ids


print("the same ids:", greedy_with_cache(model, prompt, 100) == greedy(model, prompt, 100))

# %% [markdown]
r"""
## A cache for many texts

The package's cache keeps the keys and values of B texts that may have different lengths. `torch.cat` copies all that is kept for every new token; here
room for `size` tokens is there from the beginning, and a new token is written to its place. The class knows how many tokens of each text are
stored. `positions` computes the positions `at` of the new tokens, and also what each of them may see.
"""


# %%
#| export
from collections.abc import Sequence
from functools import partial

from nanogpt.evaluate import evaluating


class KVCache:
    """Keys and values of B texts, each (n_layer, B, n_head, size, d); `lengths`: how many tokens of each are stored."""

    def __init__(self, model: GPT, B: int, size: int):
        weight, blocks = model.transformer.wte.weight, model.transformer.h
        attn = blocks[0].attn
        # zeros: what is masked has weight 0, but 0 times a NaN left in memory would be NaN
        self.keys = weight.new_zeros(len(blocks), B, attn.n_head, size, attn.head_size)
        self.values = self.keys.clone()
        self.lengths = [0] * B

    def positions(self, T: int) -> Tensor:
        """The positions of T new tokens of each text, (B, T); a token sees all places up to its own."""
        steps = torch.arange(max(self.lengths) + T, device=self.keys.device)  # (S,)
        self.at = torch.tensor(self.lengths, device=steps.device)[:, None] + steps[:T]  # (B, T)
        self.visible = steps <= self.at[:, None, :, None]  # (B, 1, T, S)
        return self.at


# %% [markdown]
r"""
Attention stores the new keys and values at their positions, beside the kept ones, and lets the new queries look at all of them.
Let `keys` be `self.keys[i]`, and `texts` a column (B, 1) of the numbers of the texts. Then `keys[texts, :, self.at]`
selects, for each text, the positions of its new tokens in all heads. Its shape is (B, T, n_head, d), so `k` must be
transposed to this shape before it is stored.
"""


# %%
#| export
#| blank KVCache.attend: write k and v to their places `self.at`, then attend to all S places, masked by `self.visible`
class KVCache(KVCache):
    def attend(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store block i's new k and v, (B, n_head, T, d), then attend with q to all that is visible: (B, n_head, T, d)."""
        keys, values = self.keys[i], self.values[i]  # (B, n_head, size, d)
        texts = torch.arange(len(k), device=k.device)[:, None]  # (B, 1)
        keys[texts, :, self.at] = k.transpose(1, 2).to(keys.dtype)  # (B, T, n_head, d)
        values[texts, :, self.at] = v.transpose(1, 2).to(values.dtype)
        S = self.visible.size(-1)
        return F.scaled_dot_product_attention(q, keys[:, :, :S], values[:, :, :S], attn_mask=self.visible)

    def layer(self, i: int) -> partial:
        return partial(self.attend, i)

    def newest(self, x: Tensor) -> Tensor:
        """Of x (B, T, C), the last new token of each text, (B, 1, C); `read` says how many are new."""
        return torch.stack([row[n - 1 : n] for row, n in zip(x, self.counts)])


# %%
#| export
@torch.no_grad()
def read(model: GPT, cache: KVCache, texts: Sequence[Sequence[int]]) -> Tensor:
    """Read the new tokens of each text into the cache; logits (B, vocab_size) after each text. Dropout is off."""
    cache.counts = [len(text) for text in texts]
    # fill short rows up with zeros on the right
    T = max(cache.counts)
    idx = torch.tensor([[*text, *[0] * (T - len(text))] for text in texts], device=cache.keys.device)
    with evaluating(model):
        logits, _ = model(idx, cache=cache)  # (B, 1, vocab_size)
    if not logits.amax(-1).isfinite().all():
        raise FloatingPointError("the model's logits are NaN or infinite: training or its file failed")
    cache.lengths = [n + count for n, count in zip(cache.lengths, cache.counts)]
    return logits[:, 0]


# %%
cache, both = KVCache(model, B=1, size=len(prompt) + 1), OneTextCache(model.config.n_layer)
for new in (prompt, [prompt[-1]]):
    logits = read(model, cache, [new])
    with torch.no_grad():
        expected = model(torch.tensor([new], device=device), cache=both)[0][:, 0]
    assert torch.allclose(logits, expected, atol=1e-4), "the two caches give different logits"
print("both caches give the same logits")

# %% [markdown]
r"""
How much time does it save? That depends on how many tokens came before. We take a somewhat larger model, untrained, since
weights do not matter for time, and measure one more token after n others. `fastest` lets all lengths take turns, eight times, and keeps the least
disturbed time of each. So a moment in which the machine is busy with something else does not fall on one length alone.

*Predict.* How many times as long as after 32 tokens does one more token take after 480, without the cache? And with it?
"""

# %%
predict("08.2", "without a cache, time of a token after 480 others over that after 32", guess=None, unit="×")
predict("08.3", "with a cache, the same", guess=None, unit="×")


# %%
LENGTHS = (32, 144, 256, 368, 480)
larger = GPT(GPTConfig(512, 1024, 4, 4, 256), generator=torch.Generator().manual_seed(0)).to(device)


def filled(B: int, n: int) -> KVCache:
    cache = KVCache(larger, B, size=512)
    cache.lengths = [n] * B
    return cache


def read_all(n: int) -> Tensor:
    return larger(torch.zeros(1, n + 1, dtype=torch.long, device=device))[0]


# %% tags=["nbval-ignore-output"]
calls = {}
for n in LENGTHS:
    calls["without cache", n] = partial(read_all, n)
    calls["with cache", n] = partial(read, larger, filled(1, n), [[0]])
ms = fastest(calls)
lines = {name: [ms[name, n] for n in LENGTHS] for name in ("without cache", "with cache")}
show(
    figures.time_per_token(LENGTHS, lines),
    alt="Time for one more token: rising without the cache, flat with it.",
)
answer("08.2", lines["without cache"][-1] / lines["without cache"][0])
answer("08.3", lines["with cache"][-1] / lines["with cache"][0])

# %% [markdown]
r"""
Without the cache, the time of a token grows with its position, so the time of a text grows with the square of its
length. With the cache, only a small part still grows: the new token looks at all kept keys and values.

## What the cache costs: memory

The cache buys time with memory. For each token it keeps a key and a value in every layer, together 2 · n_layer · n_embd
numbers. A batch of texts needs this for each text.

Why would we want a batch? To write one token, the machine must read every weight of the model from memory, and it uses each weight
for one multiplication. With 16 texts in a batch it reads the same weights once and uses each of them 16 times. Until the
arithmetic becomes the bottleneck, 16 texts should cost little more time than one.

*Predict.* How many times as many tokens per second do 32 texts give together as one text alone?
"""

# %%
predict("08.4", "tokens per second of 32 texts over those of one", guess=None, unit="×")

# %% tags=["nbval-ignore-output"]
SIZES = (1, 2, 4, 8, 16, 32)
ms = fastest({B: partial(read, larger, filled(B, 100), [[0]] * B) for B in SIZES})
for B in SIZES:
    memory = 2 * filled(B, 100).keys.nbytes / 1e6
    print(f"{B:2} texts: {1e3 * B / ms[B]:6,.0f} tokens/s in all, {memory:3.0f} MB of cache")
answer("08.4", SIZES[-1] * ms[SIZES[0]] / ms[SIZES[-1]] / SIZES[0])
print(f"GPT-2, 1,024 tokens in float32: {4 * 2 * 12 * 1024 * 768 / 1e6:.0f} MB for each text")

# %% [markdown]
r"""
This is why services that write for many users put their texts into batches, and why their memory is full of caches. Exercise
08-5 computes how many texts fit beside the weights.

## Texts of different length

One thing is left for a batch: its prompts differ in length, but a tensor is rectangular. `read` fills short rows up with
zeros *on the right*. This costs nothing but a little time, because a causal model never looks right: the real tokens of a row
do not see the zeros behind them. After that, each text goes on at its own position, and its next token overwrites the first of
those zeros. Here is what the cache says for two texts with three and one stored tokens, when two more of each come.
"""

# %%
cache = KVCache(untrained, B=2, size=8)
cache.lengths = [3, 1]
print("positions:", cache.positions(2).tolist())
print("the new tokens of the second text see:", cache.visible[1, 0].int().tolist())

# %% [markdown]
r"""
The second text's new tokens get positions 1 and 2. The first of them sees places 0 and 1, the second sees places 0, 1 and 2.
Places 3 and 4 belong to the longer text and stay hidden.

## Past the context

The position table has `block_size` rows. What should happen after that many tokens? It is tempting to drop the oldest key
and go on. But the kept keys do not fit any more. The key of position 7 contains row 7 of the position table and does not become
a key of position 6 by moving. And from the second layer on, keys were computed from tokens that are gone now.

So the model must read again, but not for every token. We use this rule: when a text's window is full, it starts again with the last half
of the window. Each written token then costs one token that is read again, and reading many tokens at once is cheap.
"""


# %%
#| export
def next_logits(model: GPT, cache: KVCache, texts: Sequence[list[int]]) -> Tensor:
    """Logits (B, V) after each text, reading what is new; a window of block_size that is full restarts with its last half."""
    limit = model.config.block_size
    # at first the complete prompts, or what fits of them
    if not any(cache.lengths):
        return read(model, cache, [text[-limit:] for text in texts])
    # a full window starts again with its last half, all of it but the newest token
    for b, text in enumerate(texts):
        if cache.lengths[b] == limit:
            half = KVCache(model, B=1, size=limit)
            tail = text[-max(1, limit // 2) : -1]
            if tail:
                read(model, half, [tail])
            cache.keys[:, b] = half.keys[:, 0]
            cache.values[:, b] = half.values[:, 0]
            cache.lengths[b] = len(tail)
    # then the newest token of each text
    return read(model, cache, [text[-1:] for text in texts])


# %% tags=["nbval-ignore-output"]
limit = untrained.config.block_size
cache, text, kept = KVCache(untrained, B=1, size=limit), [tokenizer.eot], []
for _ in range(limit + 36):
    logits = next_logits(untrained, cache, [text])
    text.append(logits.argmax().item())
    kept.append(cache.lengths[0])
print(f"block_size {limit}; tokens in the cache around step {limit}: {kept[limit - 3 : limit + 3]}")

# %% [markdown]
r"""
The cache grows to 64 tokens. Then the model reads the last half of the window again and goes on from there.
"""

# %% [markdown]
r"""
## The loop for the package

Now the pieces come together. First a function that says in one sentence what is wrong with a request. Without it, a
temperature of −1 would write nonsense and say nothing.
"""


# %%
#| export
def check_request(texts, max_new_tokens: int, temperature: float, top_k: int | None, top_p: float) -> None:
    """ValueError, in one sentence, where a prompt or an option cannot work."""
    if not texts or not all(texts):
        raise ValueError("a prompt has no tokens; begin with the end-of-text token, [tokenizer.eot]")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must not be negative")
    if temperature != 0 and not 1e-30 <= temperature < math.inf:  # float32 divides by nothing much smaller
        raise ValueError(f"temperature={temperature} must be 0 (greedy) or a number from 1e-30 up")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1; leave it out to keep every token")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1, which keeps every token")


# %% [markdown]
r"""
The loop itself works on a batch and hands out each round of tokens as soon as it is chosen, so that a text can appear on the
screen while it is written. A text ends when its next token is in `stop`. The others go on.
"""


# %%
#| export
def stream_batch(
    model: GPT, prompts: list[list[int]], max_new_tokens: int, temperature=1.0, top_k=None, top_p=1.0,
    stop=(), vocab_size: int | None = None, generator: torch.Generator | None = None,
) -> Iterator[list[int | None]]:  # fmt: skip
    """Continue all prompts; yields one new id for each, again and again, or None for a text that met one of `stop`.

    Ids from vocab_size on are never chosen. generator: by default a new one with seed 0.
    """
    check_request(prompts, max_new_tokens, temperature, top_k, top_p)
    generator = generator or torch.Generator().manual_seed(0)
    texts = [list(prompt) for prompt in prompts]
    ended = [False] * len(texts)
    size = min(model.config.block_size, max(map(len, texts)) + max_new_tokens)
    cache = KVCache(model, len(texts), size)
    for _ in range(max_new_tokens):
        probs = token_probs(next_logits(model, cache, texts)[:, :vocab_size], temperature, top_k, top_p)
        # one id for each text; a greedy choice needs no random number
        ids = draw(probs, generator) if temperature else probs.argmax(-1).tolist()
        # hand them out, until all texts have ended
        ended = [was or i in stop for was, i in zip(ended, ids)]
        if all(ended):
            return
        yield [None if end else i for i, end in zip(ids, ended)]
        texts = [[*text, i] for text, i in zip(texts, ids)]


# %%
#| export
def generate(model: GPT, prompt: Sequence[int], max_new_tokens: int, **options) -> list[int]:
    """The ids that continue one prompt, without it; options as for stream_batch."""
    return [i for (i,) in stream_batch(model, [prompt], max_new_tokens, **options)]


# %% [markdown]
r"""
*Check.* Both bugs of the tutorial's sampler are gone: dropout changes nothing, and the random state is untouched. And a law:
three texts of different length, written together with a cache, get the ids that our first loop writes for each of them alone.
"""

# %%
before = torch.get_rng_state()
ours = [generate(module, [tokenizer.eot], 20) for module in (untrained.train(), untrained.eval())]
print("the same text with dropout on or off:", ours[0] == ours[1])
print("torch's random state is as before:", torch.equal(before, torch.get_rng_state()))
three = [[tokenizer.eot, *tokenizer.encode(told[0].text)[:n]] for n in (3, 17, 0)]
alone = [tuple(greedy(model, ids, 40)[-40:]) for ids in three]
rounds = list(stream_batch(model, three, 40, temperature=0))  # 40 rounds of three ids
print("a batch as each alone:", list(zip(*rounds)) == alone)

# %% [markdown]
r"""
## How many stories are right?

Which way of choosing is best? Few texts allow this question to be answered by counting. Ours do, because chapter 02's grammar
can read a story back, choice by choice. A story is right if the grammar can read it to its end: every phrase exists, every name
was introduced, and every number is what it must be.

We take the first sentences of 200 unseen stories, and each way of choosing continues all of them, in one batch. Temperature 0 is
greedy. This needs some 20,000 tokens for each way, so it is the cache and the batch that make the experiment quick.

*Predict.* What percentage of the stories is right at temperature 1, which is the model as it is? And with greedy decoding?
"""

# %%
predict("08.5", "stories that are right at temperature 1", guess=None, unit="%")
predict("08.6", "stories that are right with greedy decoding", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
WAYS = {f"T = {t}": {"temperature": t} for t in (0, 0.25, 0.5, 0.7, 1, 1.5)}
WAYS |= {"top-k 5": {"top_k": 5}, "top-p 0.9": {"top_p": 0.9}}
openings = [story.text[: story.text.index(".") + 1] for story in told]
prompts = [[tokenizer.eot, *tokenizer.encode(opening)] for opening in openings]
room = model.config.block_size - max(map(len, prompts))  # a story that does not end within the context is cut
written, right = {}, {}
for name, how in WAYS.items():
    rounds = stream_batch(model, prompts, room, stop={tokenizer.eot}, **how)
    written[name] = []
    for opening, ids in zip(openings, zip(*rounds)):  # one text's ids, and None after its end
        end = tokenizer.decode([i for i in ids if i is not None])
        written[name].append(opening + end)
    right[name] = [bool(readings(text)) for text in written[name]]
shares = {name: 100 * sum(of) / len(openings) for name, of in right.items()}
show(
    figures.shares_right(shares, len(openings)),
    alt="A bar for each way of choosing: the share of stories that the grammar can read.",
)
answer("08.5", shares.get("T = 1"))
answer("08.6", shares.get("T = 0"))

# %% [markdown]
r"""
High temperatures fail as expected: they choose wrong tokens too often. But low temperatures are bad as well, and greedy decoding is
far from the best. Should the likeliest token not be the safest? The next figure shows why. The grammar has seven plots: somebody
gives things away, trades them, loses them, hides them, and so on. How many of the stories have which plot?
"""

# %% tags=["nbval-ignore-output"]
show(
    figures.plots_told(written | {"the corpus": [story.text for story in told]}),
    alt="For each way of choosing, the shares of the seven plots; at low temperatures one has most of them.",
)
plots = [figures.plot_of(text) for text in next(iter(written.values()))]  # of the first way
favourite = max(set(plots), key=plots.count)
for name in WAYS:
    hits = [ok for text, ok in zip(written[name], right[name]) if figures.plot_of(text) == favourite]
    print(
        f"{name}: {len(hits)} of {len(openings)} have the plot '{favourite}', {sum(hits)} of these are right"
    )

# %% [markdown]
r"""
Greedy decoding tells one story. The openings differ, but then the likeliest plot wins in three of four stories, even if it is only
a little likelier than the others. Everything else that the model could tell is lost. This is called **mode collapse**. So the bar of greedy
decoding does not say how often the model is right. It says mostly how often the model is right about *one* plot, asked again and
again.

Why is this plot so seldom right? It ends with the sum of the two numbers, so one might blame the arithmetic. This can be tried: in each
wrong story we replace the last number word by every other one, and ask whether the grammar can tell it now.
"""


# %% tags=["nbval-ignore-output"]
def right_but_for_the_last_number(text: str) -> bool:
    *_, last = re.finditer(r"\b(" + "|".join(NUMBERS) + r")\b", text)
    return any(readings(text[: last.start()] + word + text[last.end() :]) for word in NUMBERS)


for name in ("T = 0", "T = 0.5"):
    wrong = [text for text, ok in zip(written[name], right[name]) if not ok]
    mended = sum(map(right_but_for_the_last_number, wrong))
    print(f"{name}: of {len(wrong)} wrong stories, {mended} would be right with another last number")

# %% [markdown]
r"""
It is the arithmetic: in our run 144 of the 165 wrong stories have the wrong last number and nothing else. So greedy decoding has chosen the plot in which this model is worst, and no way of choosing can repair what the model does not know.

At temperature 1 the plots come about as often as in the corpus, but a story takes a hundred draws and one bad draw spoils it. In
between, the stories are still varied and a bad draw is rarer: T = 0.5, T = 0.7 and top-p 0.9 are best here, with nearly half of the stories right.

Another remedy for monotony is a *repetition penalty*: it lowers the logits of tokens that were written already (Keskar et al.
2019, §4.1). Exercises 08-3 and 08-6 are about it. Our stories must repeat their names and numbers, so they do not need it.
"""

# %% [markdown]
r"""
## Appendix: from the terminal

You may skip this section. It turns ids into text on a screen, and nothing in it is about language models. A character may be spread over several
tokens. If we decoded each token alone, we would print halves of characters. Python's incremental decoder holds back the first bytes
of a character until the rest arrives.
"""


# %%
#| export
import codecs
from argparse import ArgumentParser, Namespace


def stream_text(
    model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options
) -> Iterator[str]:
    """Continue `<|endoftext|>` and a text, piece by piece, until the model ends it or max_new_tokens; see stream_batch."""
    V = model.config.vocab_size
    if tokenizer.vocab_size > V:
        raise ValueError(f"the tokenizer has {tokenizer.vocab_size} tokens, the model {V}; use its own")
    ids = [tokenizer.eot, *tokenizer.encode(prompt.removeprefix(EOT), allowed_special={EOT})]
    options = {"stop": {tokenizer.eot}, "vocab_size": tokenizer.vocab_size} | options
    pieces = (tokenizer.tokens[i] for (i,) in stream_batch(model, [ids], max_new_tokens, **options))
    return codecs.iterdecode(pieces, "utf-8", errors="replace")  # never half a character


def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, max_new_tokens: int, **options) -> str:
    """The text that continues `prompt`, without it; options as for stream_text."""
    return "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))


# %% tags=["nbval-ignore-output"]
print(list(stream_text(model, tokenizer, "One sunny day,", 12)))


# %% [markdown]
r"""
The command must find the model and its tokenizer. A folder of ours has both. A folder of Hugging Face's, or a name on the
hub, has the weights; chapter 06 reads them. Its tokenizer is GPT-2's if the vocabulary is GPT-2's. Otherwise, say which.
"""


# %%
from nanogpt.pretrained import find_checkpoint, from_hf, read_json

# %%
#| export pretrained
from importlib import import_module


def load_pretrained(name_or_dir: str | Path) -> GPT:
    """The model of a Hugging Face folder or repository, in eval mode: a GPT-2, or a family that a lab can read."""
    kind = read_json(find_checkpoint(name_or_dir)[0]).get("model_type")
    if kind in ("llama", "qwen3"):
        return import_module("nanogpt.labs.llama.pretrained").llama_from_hf(name_or_dir)
    return from_hf(name_or_dir)


# %%
#| export
from nanogpt.pretrained import read_json


def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a model's folder, a Hugging Face folder or a name on the hub.

    tokenizer: gpt2 or a tokenizer.json; by default the one beside the weights, or GPT-2's if the model has its vocabulary.
    """
    folder = Path(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    config, beside = folder / "config.json", folder / "tokenizer.json"
    is_ours = config.is_file() and "model_type" not in read_json(config)
    if tokenizer is None and is_ours and beside.exists():
        tokenizer = beside
    model = load_model(folder) if is_ours else load_pretrained(checkpoint)
    if tokenizer is None and model.config.vocab_size in (50257, 50304):  # GPT-2's, plain or padded
        tokenizer = "gpt2"
    if tokenizer is None:
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer == "gpt2" else BPETokenizer.load(tokenizer)


# %% [markdown]
r"""
A command of the package is a module with two functions: `parser()` lists the options, and `run(args)` does the work. Chapter 17d
writes the runner that finds them, as `python -m nanogpt sample`. Until then we call them ourselves.
"""


# %%
#| export
def parser() -> ArgumentParser:
    """The options of `python -m nanogpt sample`."""
    parser = ArgumentParser(epilog='Example: sample --checkpoint data/built/model --prompt "One sunny day,"')
    parser.add_argument("--checkpoint", required=True, help="folder of a model, or a name on the hub")
    parser.add_argument("--prompt", default="", help="the beginning of the text")
    parser.add_argument("--tokenizer", help="gpt2 or a tokenizer.json, if not the one beside the checkpoint")
    parser.add_argument("--device", help="cuda, mps or cpu, if not the best there is")
    parser.add_argument("--top-k", type=int, help="choose from the K likeliest tokens only")
    for name, default in {"temperature": 1.0, "top-p": 1.0, "max-new-tokens": 200, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"by default {default}")
    return parser


# %%
#| export
def run(args: Namespace) -> None:
    """`python -m nanogpt sample`, its options parsed: the text goes to stdout, piece by piece."""
    if not 0 <= args.seed < 2**63:
        raise ValueError(f"--seed {args.seed} must be from 0 to 2**63 - 1")
    device = pick_device(args.device)
    model, tokenizer = load(args.checkpoint, args.tokenizer)
    options = {name: getattr(args, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p")}
    options["generator"] = torch.Generator().manual_seed(args.seed)
    pieces = stream_text(model.to(device), tokenizer, args.prompt, **options)
    print(args.prompt + next(pieces, ""), end="", flush=True)  # first a piece: an option may be wrong
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


# %% tags=["nbval-ignore-output"]
if (BUILT / "model" / "config.json").exists():
    run(parser().parse_args(["--checkpoint", str(BUILT / "model"), "--prompt", "One", "--top-p", "0.9"]))

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

- **08-1** The token that crosses p, 20 minutes: fix a top-p that leaves it out, and settle ties.
- **08-2** Min-p, and a temperature of zero, 20 minutes: build both, in the right order.
- **08-3** A check for the repetition penalty, 15 minutes: write the check; it is tried on wrong penalties.
- **08-4** Where the new tokens stand, 30 minutes: fix positions and mask of a cache for texts of different length.
- **08-5** What a conversation costs, 15 minutes: bytes of a cache, for a model of your own.
- **08-6** A penalty that knows a zero, 5 minutes: what a shift of all logits does to it.

To explore:

1. **Speculative decoding** (Leviathan et al. 2023, §2.3). Let a small model propose four tokens, check them with the large
   one in one call, for which `newest` must return all positions, and keep the longest prefix on which both agree. Check:
   with greedy decoding, the ids are those of the large model alone, whatever the small one proposes.
2. **A smaller cache.** Keep keys and values in bfloat16 while the weights stay float32. Predict the largest difference
   in the logits, then measure it, and the time for one token at position 1000.
3. **A rolling cache.** Fill a cache, shift its keys and values by one place, and add one more token. Compare the logits with those
   of the last `block_size` tokens, read from the beginning. Predict which of four models show no difference: one layer or two, with the
   position table as it is or set to zero.

## Further reading

- Holtzman et al. 2020, [*The Curious Case of Neural Text Degeneration*](https://arxiv.org/abs/1904.09751), §3.1 (nucleus) and §4.3 (natural text does not
  maximise probability)
- Fan et al. 2018, [*Hierarchical Neural Story Generation*](https://arxiv.org/abs/1805.04833), §5.4 (top-k)
- Keskar et al. 2019, [*CTRL*](https://arxiv.org/abs/1909.05858), §4.1 (the repetition penalty); Xu et al. 2022, [*Learning to Break the Loop*](https://arxiv.org/abs/2206.02369) (why it is needed)
- Pope et al. 2023, [*Efficiently Scaling Transformer Inference*](https://arxiv.org/abs/2211.05102), §2 (what decoding reads from memory)
- Xiao et al. 2024, [*Efficient Streaming Language Models with Attention Sinks*](https://arxiv.org/abs/2309.17453)
"""
