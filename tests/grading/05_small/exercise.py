# %% [markdown]
r"""
# An exercise without torch, for the grader's tests
"""

# %%
#| solution student
STUDENT = "your student id"

# %%

from course.variants import variant

# %% [markdown]
r"""
## 05-1 · Twice

*Build · difficulty 1/5 · importance 1/5 · 5 minutes*
"""


# %%
#| solution 05-1
def double(xs: list[int]) -> list[int]:
    ### BEGIN SOLUTION
    return [2 * x for x in xs]
    ### END SOLUTION


# %%
#| check 05-1
assert double([1]) == [2], "one number is not doubled"

# %% [markdown]
r"""
## 05-2 · A number of one's own

*Derive · difficulty 1/5 · importance 1/5 · 5 minutes*
"""

# %%
mine = variant("05-2", STUDENT, n=[3, 5, 7, 11, 13])

# %%
#| solution 05-2
### BEGIN SOLUTION
third = mine["n"] / 3
### END SOLUTION

# %%
#| check 05-2
assert third > 0, "a third of n is positive"

# %% [markdown]
r"""
## 05-3 · A check

*Check · difficulty 1/5 · importance 1/5 · 5 minutes*
"""


# %%
#| solution 05-3
def check_sort(sort) -> None:
    ### BEGIN SOLUTION
    for xs in ([], [2, 1], [1, 1, 0], [3, 1, 2]):
        before = list(xs)
        assert sort(xs) == sorted(before), before
        assert xs == before, "it changes its argument"
    try:
        sort(None)
    except TypeError:
        return
    raise AssertionError("it sorts nothing at all")
    ### END SOLUTION


# %%
#| check 05-3
check_sort(sorted)

# %% [markdown]
r"""
#| manual 05-4
## 05-4 · Why

*Explain · difficulty 1/5 · importance 1/5 · 5 minutes*
"""
