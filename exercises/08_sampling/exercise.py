# %% [markdown]
r"""
# Exercises 08 · Sampling

Which tokens may be chosen, and what is kept of the past. A sampler that is slightly wrong writes text that is slightly worse, and
nobody notices: so each task has a law that notices. `course check 08` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor

from course.variants import variant
from nanogpt.sampling import KVCache, read
from nanogpt.model import GPT, GPTConfig, num_params

# %% [markdown]
r"""
## 08-1 · The token that crosses p

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

`nucleus(probs, p)` says for probabilities (B, V) which tokens top-p keeps, as booleans (B, V): in each row the fewest of the likeliest
tokens that *together reach* the mass p, 0 < p < 1. Tokens that are exactly as likely as the least likely one kept are kept too: which
of them comes first in memory must not decide. A sum of exactly p has reached it, so use the probabilities as they are. The
code below has three faults.

For probabilities 0.125, 0.5, 0.25, 0.125: p = 0.5 keeps one token, 0.51 and 0.75 keep two, 0.76 keeps all four.

<details><summary>Hint 1</summary>

Try p = 0.3 where one token has 0.5. How many tokens must be left, and how many are?
</details>
<details><summary>Hint 2</summary>

The question for a token is not what the sum is *with* it, but what it was *before* it.
</details>
<details><summary>Hint 3</summary>

The sum runs over sorted tokens. Find the smallest probability that is kept, and compare the unsorted ones with that: it
settles order and ties at once.
</details>
"""


# %%
#| solution 08-1
def nucleus(probs: Tensor, p: float) -> Tensor:
    """Which tokens of probs (B, V) top-p keeps, (B, V) bool."""
    ### BEGIN SOLUTION
    ranked = probs.sort(dim=-1, descending=True).values
    before = ranked.cumsum(-1) - ranked  # the mass of all that are likelier
    n = (before < p).sum(-1, keepdim=True)  # at least one: nothing is before the first
    least = ranked.gather(-1, n - 1)  # (B, 1)
    return probs >= least
    ### INSTEAD
    # ranked = probs.sort(dim=-1, descending=True).values
    # return ranked.cumsum(-1) <= p
    ### END SOLUTION


# %%
#| check 08-1
four = torch.tensor([[0.125, 0.5, 0.25, 0.125]])
assert nucleus(four, 0.3).sum() == 1, (
    "p = 0.3 keeps no token, or too many: the one that crosses p belongs to it"
)
assert nucleus(four, 0.51).sum() == 2, "0.5 is less than 0.51: the token that crosses p is missing"
assert nucleus(four, 0.75).sum() == 2, "0.5 + 0.25 has reached 0.75: no third token is needed"
assert nucleus(four, 0.3).tolist() == [[False, True, False, False]], (
    "the right number, at the wrong place: is the answer in sorted order?"
)
assert nucleus(four, 0.76).all(), "two tokens have 0.125 each: equally likely ones are kept together"

# %% [markdown]
r"""
## 08-2 · Min-p, and a temperature of zero

*Build · difficulty 3/5 · importance 4/5 · 20 minutes*

Top-p keeps many tokens where the model is unsure; **min-p** (Nguyen et al. 2024) asks each token for a share of the largest
probability: it keeps those with at least `min_p` times the largest one of their row. Write `token_probs(logits, temperature,
min_p)`: probabilities (B, V), first the temperature, then min-p, and a sum of one at the end.

`temperature=0` gives all mass to the largest logit. A temperature of 1e-37 is legal and gives the same, without NaN. `min_p=0` keeps
everything; `min_p=1` keeps the largest and what equals it.

For logits ln 8, ln 4, ln 1 and `min_p=0.45`: probabilities 2/3, 1/3, 0.

<details><summary>Hint 1</summary>

p / p_max is a ratio of two exponentials with the same denominator. What is it in terms of logits?
</details>
<details><summary>Hint 2</summary>

Subtract the largest logit *before* you divide: then no number grows beyond 0, however small the temperature is.
</details>
<details><summary>Hint 3</summary>

`math.log(0)` is an error, and `-math.inf` is what it should be.
</details>
"""


# %%
#| solution 08-2
def token_probs(logits: Tensor, temperature: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Probabilities (B, V) from logits (B, V): temperature, then min-p."""
    ### BEGIN SOLUTION
    relative = logits - logits.amax(-1, keepdim=True)  # ln(p / p_max) at temperature 1
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.size(-1)).float()
    relative = relative / temperature
    threshold = math.log(min_p) if min_p else -math.inf
    return relative.masked_fill(relative < threshold, -math.inf).softmax(-1)
    ### END SOLUTION


# %%
#| check 08-2
logits = torch.tensor([[8.0, 4.0, 1.0], [1.0, 1.0, 1.0]]).log()
got = token_probs(logits, 1.0, 0.45)
assert not got.isnan().any(), "NaN: a row has no token left; each row's own largest sets its threshold"
assert torch.allclose(got.sum(-1), torch.ones(2)), "a row does not sum to one: divide again after min-p"
assert torch.allclose(got[0], torch.tensor([2 / 3, 1 / 3, 0.0])), (
    f"{got[0].tolist()}, not 2/3, 1/3, 0: a token needs 0.45 of the largest probability, which is 8/13 here"
)
assert torch.allclose(got[1], torch.full((3,), 1 / 3)), (
    "row 1 has three equal tokens: each row has its own largest"
)
assert token_probs(logits, 0.0)[0].tolist() == [1, 0, 0], "temperature 0 is greedy: all mass to the largest"
assert torch.allclose(token_probs(logits, 2.0, 0.6)[0, 1], torch.tensor(1 / (1 + math.sqrt(2)))), (
    "at temperature 2 the second token has 0.71 of the largest one's probability: temperature comes before min-p"
)

# %% [markdown]
r"""
## 08-3 · A check for the repetition penalty

*Check · difficulty 3/5 · importance 3/5 · 15 minutes*

`penalize(logits, seen, penalty)` makes tokens that were written already less likely: logits (B, V), seen (B, V) booleans, penalty
> 0. Logits of seen tokens are divided by the penalty where they are positive and multiplied by it where they are negative (CTRL's
penalty as `transformers` has it); all others stay. Write `check_penalty(penalize)`, which raises an `AssertionError` for a wrong
one and passes a right one, however it is written (allow for rounding: x / 1.3 and x · 1.3⁻¹ are both right). It is tried on
functions that you do not see.

<details><summary>Hint 1</summary>

Three kinds of logits, seen or not: six cases in one small tensor.
</details>
<details><summary>Hint 2</summary>

More than one row, with different tokens seen. What would a function do that looks at the first row only?
</details>
<details><summary>Hint 3</summary>

What must a penalty of 1 do? And two different ones?
</details>
"""


# %%
#| solution 08-3
def check_penalty(penalize) -> None:
    """AssertionError where penalize is not CTRL's penalty."""
    ### BEGIN SOLUTION
    logits = torch.tensor([[2.0, 3.0, -1.0, -4.0, 0.0, 5.0], [6.0, -2.0, 0.0, 1.0, -3.0, -7.0]])
    seen = torch.tensor([[1, 0, 1, 0, 1, 0], [0, 1, 1, 1, 0, 1]]).bool()
    for penalty in (1.0, 1.3, 2.0):
        due = torch.where(logits > 0, logits / penalty, logits * penalty)
        got = penalize(logits.clone(), seen.clone(), penalty)
        assert torch.equal(got[~seen], logits[~seen]), "an unseen token's logit has changed"
        assert torch.allclose(got[seen], due[seen]), f"{got[seen]} for penalty {penalty}, not {due[seen]}"
    ### END SOLUTION


# %%
#| check 08-3
def refused(penalize) -> bool:
    try:
        check_penalty(penalize)
    except AssertionError:
        return True
    return False


def right(logits, seen, penalty):
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


assert not refused(right), "it refuses a right function"
assert refused(lambda logits, seen, penalty: logits), "it accepts a function that does nothing"
assert refused(lambda logits, seen, penalty: torch.where(seen, logits / penalty, logits)), (
    "it accepts a penalty that divides negative logits too, which makes those tokens likelier"
)

# %% [markdown]
r"""
## 08-4 · Where the new tokens stand

*Repair · difficulty 4/5 · importance 5/5 · 30 minutes*

The cache holds B texts, of which `lengths[b]` tokens are filled, and T new tokens of each text come in. `places(lengths, T)` says two
things: the position of each new token, (B, T), and which of the S = max(lengths) + T places in the cache it may see, (B, T, S)
booleans. A text's new tokens are stored at their own positions; what lies behind them in a shorter row is empty, or
padding. The version below is right for an empty cache and for nothing else.

For lengths [3, 1] and T = 2: positions [[3, 4], [1, 2]], and text 1's first new token sees places 0 and 1 of 5.

`Cache`, in the given cell, is the chapter's with your function in it. So there is a law: in pieces through the cache, the
logits are those of the whole text.

<details><summary>Hint 1</summary>

Which row of the position table does the first token after a prompt of three get?
</details>
<details><summary>Hint 2</summary>

`ones(T, S).tril()` begins at the top left: its first row sees one place. With three places filled, how many should it see?
(`scaled_dot_product_attention(is_causal=True)` has the same corner.)
</details>
<details><summary>Hint 3</summary>

Place s holds the token of position s. Which positions may position t see?
</details>
"""


# %%
class Cache(KVCache):
    """The chapter's cache, which asks `places`."""

    def positions(self, T: int) -> Tensor:
        self.at, visible = places(self.lengths, T)
        self.visible = visible[:, None]  # (B, 1, T, S): the same for all heads
        return self.at


def tiny(seed: int) -> GPT:
    """A model of 32 tokens and two blocks."""
    shape = GPTConfig(block_size=16, vocab_size=32, n_layer=2, n_head=2, n_embd=16)
    model = GPT(shape, generator=torch.Generator().manual_seed(seed))
    for p in model.parameters():
        p.data *= 10 if p.dim() == 2 else 1
    return model


# %%
#| solution 08-4
def places(lengths: list[int], T: int) -> tuple[Tensor, Tensor]:
    """Positions (B, T) of T new tokens after `lengths` filled ones, and what each may see, (B, T, S)."""
    S = max(lengths) + T
    ### BEGIN SOLUTION
    positions = torch.tensor(lengths)[:, None] + torch.arange(T)  # (B, T)
    return positions, torch.arange(S) <= positions[:, :, None]
    ### INSTEAD
    # positions = torch.arange(T).expand(len(lengths), T)
    # return positions, torch.ones(T, S).tril().bool().expand(len(lengths), T, S)
    ### END SOLUTION


# %%
#| check 08-4
positions, past = places([3, 1], 2)
assert positions.tolist() == [[3, 4], [1, 2]], (
    f"positions {positions.tolist()}: a text goes on where it ended, each at its own place"
)
assert past.shape == (2, 2, 5), f"the mask has the shape {tuple(past.shape)}, not (2, 2, 5)"
assert past[0].tolist() == [[True] * 4 + [False], [True] * 5], (
    "text 0: the first new token sees the prompt and itself, and not the second"
)
assert past[1].sum(-1).tolist() == [2, 3], "text 1 is shorter: what lies behind its tokens is padding"
model, text = tiny(0), list(range(9))
cache = Cache(model, 1, 16)
pieces = [read(model, cache, [text[:4]]), read(model, cache, [text[4:8]]), read(model, cache, [text[8:]])]
with torch.no_grad():
    whole = model(torch.tensor([text]))[0][0]
assert torch.allclose(torch.cat(pieces), whole[[3, 7, 8]], atol=1e-3), (
    "in pieces, the logits are not the whole text's"
)

# %% [markdown]
r"""
## 08-5 · What a conversation costs

*Derive · difficulty 3/5 · importance 4/5 · 15 minutes*

A server holds a GPT and the caches of its users' texts in one memory, weights and cache in the same format. For the shape below,
which is your own, give

- `"bytes a token"`: what one token of one text adds to the cache, over all layers
- `"keys of a layer"`: the shape of one layer's keys for B texts of T tokens, as a list of four numbers
- `"texts"`: how many texts of T tokens fit beside the weights into `gib` GiB, a whole number
- `"context"`: at how many cached tokens one new token reads as many bytes from the cache as from the weights. (Say that all
  parameters are read, and that there is one text.)

<details><summary>Hint 1</summary>

Per layer and token two vectors are kept. How wide is each, all heads together?
</details>
<details><summary>Hint 2</summary>

A GiB is 2³⁰ bytes. `num_params` counts the weights.
</details>
"""

# %%
server = variant(
    "08-5",
    STUDENT,
    n_layer=[12, 16, 24, 36],
    n_head=[8, 16],
    n_embd=[768, 1024, 1280, 1536],
    B=[2, 3, 5, 8],
    T=[512, 1024, 2048],
    gib=[8, 16, 24, 40],
    number_bytes=[2, 4],
)
config = GPTConfig(
    block_size=2048, n_layer=server["n_layer"], n_head=server["n_head"], n_embd=server["n_embd"]
)
server

# %%
#| solution 08-5
### BEGIN SOLUTION
weights = num_params(config) * server["number_bytes"]
per_token = 2 * server["n_layer"] * server["n_embd"] * server["number_bytes"]
costs = {
    "bytes a token": per_token,
    "keys of a layer": [server["B"], server["n_head"], server["T"], server["n_embd"] // server["n_head"]],
    "texts": (server["gib"] * 2**30 - weights) // (per_token * server["T"]),
    "context": weights / per_token,
}
### INSTEAD
# costs = {"bytes a token": None, "keys of a layer": None, "texts": None, "context": None}
### END SOLUTION

# %%
#| check 08-5
assert None not in costs.values(), f"still to do: {[name for name, value in costs.items() if value is None]}"
assert len(costs["keys of a layer"]) == 4, (
    "keys have four axes: texts, heads, tokens, and the width of a head"
)
assert math.prod(costs["keys of a layer"]) == server["B"] * server["T"] * server["n_embd"], (
    "one layer's keys are B · T · n_embd numbers"
)
assert isinstance(costs["texts"], int), "half a text cannot be answered: a whole number"
assert costs["texts"] * server["T"] * costs["bytes a token"] < server["gib"] * 2**30, (
    "more than the memory holds"
)

# %% [markdown]
r"""
#| manual 08-6
## 08-6 · A penalty that knows a zero

*Explain · difficulty 3/5 · importance 2/5 · 5 minutes*

Add 10 to every logit: softmax does not change. What does the repetition penalty of task 3 do differently then? Show it on two
logits, name a penalty on logits that does not have this fault, and say why it does not.
"""
