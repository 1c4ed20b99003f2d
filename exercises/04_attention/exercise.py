# %% [markdown]
r"""
# Exercises 04 · Attention

Work from top to bottom; each task says what it is worth and how long it takes. `course check 04` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor

# %% [markdown]
r"""
## 04-1 · The mask that looks ahead

*Repair · difficulty 2/5 · importance 5/5 · 10 minutes*

This attention trains to a loss that is too good to be true. Mend it.

<details><summary>Hint 1</summary>

Print `attention_weights` for four positions. Which entries must be zero?
</details>
"""


# %%
#| solution 04-1
def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Causal attention weights. q, k: (B, n_head, T, d). Returns (B, n_head, T, T)."""
    T, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    ### BEGIN SOLUTION
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    ### INSTEAD
    # future = torch.ones(T, T, dtype=torch.bool).triu(1)
    # return scores.softmax(dim=-1).masked_fill(future, 0.0)
    ### END SOLUTION


# %%
#| check 04-1
w = attention_weights(*torch.randn(2, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0)))
assert not w.triu(1).any(), "a position looks ahead: row t has weight on keys after t"
assert torch.allclose(w.sum(-1), torch.ones(1, 2, 4)), (
    "rows do not sum to one: is the softmax before the mask?"
)
