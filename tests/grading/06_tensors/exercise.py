# %% [markdown]
r"""
# An exercise with torch, for the grader's tests
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import torch

# %% [markdown]
r"""
## 06-1 · Twice

*Build · difficulty 1/5 · importance 1/5 · 5 minutes*
"""


# %%
#| solution 06-1
#| forbids aten::native_layer_norm
#| forbids copy.deepcopy
#| forbids compile
def double(x: torch.Tensor) -> torch.Tensor:
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %%
#| check 06-1
assert double(torch.ones(1)) == 2, "one number is not doubled"
