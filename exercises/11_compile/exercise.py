# %% [markdown]
r"""
# Exercises 11 · Compile

Five tasks and a question. Nothing here makes a kernel: graphs are captured and counted, so no C++ compiler is needed.
`course check 11` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import logging
import math

import torch
from torch import Tensor

from course.variants import variant


def dynamo():
    """torch._dynamo, quiet, with nothing compiled so far. Imported where it is needed: that takes a second or two."""
    import torch._dynamo

    torch._logging.set_logs(dynamo=logging.ERROR)
    torch._dynamo.reset()
    return torch._dynamo


# %% [markdown]
r"""
## 11-1 · Three lines that end a graph

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

`shortened` scales a vector down to a length of `limit` if it is longer, and reports the length for a log. Every line of
it reads well, and Dynamo has to stop in the middle: the compiled step falls into pieces, without a word.

Make one graph of it. What it computes stays: the vector, untouched where it is short enough, and its length before, now as
a tensor without dimensions. It is a part of a training step, so the gradient must be finite too, for a vector of zeros as well.

<details><summary>Hint 1</summary>

`dynamo().explain(shortened)(torch.ones(4), 1.0).break_reasons` names the line. What does Python need to know there that
the compiler does not?
</details>

<details><summary>Hint 2</summary>

Choose between values, not between lines. `torch.where` does; so does a factor that is 1 where nothing is to be done.
</details>

<details><summary>Hint 3</summary>

`torch.where` computes both branches, and their gradients: 0 · ∞ is NaN. Is there a denominator that is never smaller than
`limit`?
</details>
"""


# %%
#| solution 11-1
def shortened(h: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """h, scaled down to the length `limit` > 0 if it is longer; and its length before, a tensor of no dimension."""
    ### BEGIN SOLUTION
    length = h.norm()
    return h * (limit / length.clamp(min=limit)), length
    ### INSTEAD
    # length = h.norm().item()
    # if length > limit:
    #     h = h * (limit / length)
    # return h, length
    ### END SOLUTION


# %%
#| check 11-1
short, length = shortened(torch.tensor([0.3, 0.4]), 1.0)
assert torch.allclose(short, torch.tensor([0.3, 0.4])), (
    "a vector that is short enough must come back as it is"
)
long, length = shortened(torch.tensor([3.0, 4.0]), 1.0)
assert torch.allclose(long, torch.tensor([0.6, 0.8])), (
    "a vector of length 5, limit 1: it must be divided by 5"
)
assert isinstance(length, Tensor), (
    "the length is a Python number: somebody had to wait for it, and the graph ended"
)
assert torch.allclose(length, torch.tensor(5.0)), f"the length before was 5, not {length:.4g}"
report = dynamo().explain(lambda h: shortened(h, 1.0))(torch.ones(4))
assert report.graph_count == 1, (
    f"{report.graph_count} graphs: {report.break_reasons[0].reason.splitlines()[0]}"
)
zeros = torch.zeros(4, requires_grad=True)
shortened(zeros, 1.0)[0].sum().backward()
assert zeros.grad.isfinite().all(), "the gradient at zero is not finite: what is 0 times infinity?"

# %% [markdown]
r"""
## 11-2 · Few shapes

*Build · difficulty 2/5 · importance 3/5 · 15 minutes*

Texts of every length from 1 to 1,024, and a model compiled with `dynamic=False`: a compilation for each, until Dynamo gives
up. Only a few shapes are needed. Extend each text *on the right* to the next power of two, at most `longest`; call the model
on that; and hand back only what was asked for. The model is causal, so what follows a text cannot change its logits.

`call` takes ids (B, T) and returns logits (B, T, V). `few_shapes(call, idx, longest)` returns the logits of `idx`, and has
called with lengths 1, 2, 4, 8, …, `longest` only. What stands in the added places must be a valid id. A text of 5 tokens
is read as 8, one of 8 as 8; with `longest=12`, one of 9 as 12.

<details><summary>Hint 1</summary>

`torch.nn.functional.pad(idx, (0, n))` adds n zeros at the end of the last dimension.
</details>

<details><summary>Hint 2</summary>

`(T - 1).bit_length()` is the exponent, also for T = 1. Try it for T = 8 and T = 9.
</details>
"""


# %%
#| solution 11-2
def few_shapes(call, idx: Tensor, longest: int) -> Tensor:
    """Logits of idx (B, T), T <= longest, by a call that sees only powers of two and `longest` as lengths."""
    ### BEGIN SOLUTION
    T = idx.size(1)
    length = min(2 ** (T - 1).bit_length(), longest)
    padded = torch.nn.functional.pad(idx, (0, length - T))  # (B, length)
    return call(padded)[:, :T]
    ### END SOLUTION


# %%
#| check 11-2
lengths = []


def echo(idx):
    """A model that only knows which token it reads, and where."""
    lengths.append(idx.size(1))
    return torch.stack([idx, torch.arange(idx.size(1)).expand_as(idx)], -1).float()


for T in (1, 2, 3, 5, 8, 9, 12):
    idx = torch.arange(1, T + 1).expand(2, T)
    logits = few_shapes(echo, idx, 12)
    assert logits.shape == (2, T, 2), f"{T} tokens were asked for, logits of {logits.size(1)} came back"
    assert torch.equal(logits[0, :, 0], idx[0].float()), (
        "the logits belong to other tokens: which end was padded?"
    )
assert lengths == [1, 2, 4, 8, 8, 12, 12], f"lengths 1 2 3 5 8 9 12 were read as {lengths}"

# %% [markdown]
r"""
## 11-3 · The rule of recompiles

*Predict · difficulty 3/5 · importance 4/5 · 25 minutes*

`torch.compile(lambda x: x + 1)` is called with tensors (n, 100), one for each n of a list, all n ≥ 1 and none 100. Write the rule by
which Dynamo decides, as a function: the number of compilations, for `dynamic=None` (the default), `True` and `False`.
`measured` below asks Dynamo itself, so every guess can be tried.

At `LIMIT` compilations of one function Dynamo gives up, and runs the rest eagerly.

<details><summary>Hint 1</summary>

Try `measured([8, 8, 8], None)`, `[8, 9]`, `[8, 9, 10, 11]`, `[8, 9, 8]`. A graph that was made is kept.
</details>

<details><summary>Hint 2</summary>

A size that has changed once becomes a symbol. Which values does the symbol stand for? Try `[2, 3, 1]` with `True`.
</details>

<details><summary>Hint 3</summary>

Sets are enough: which lengths are there, is 1 among them, and (for the default) which one came first?
</details>
"""

# %%
LIMIT = 8  # torch._dynamo.config.recompile_limit


def measured(lengths: list[int], dynamic: bool | None) -> int:
    """What Dynamo really does."""
    dynamo()
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    compiled = torch.compile(lambda x: x + 1, backend=counter, dynamic=dynamic)
    for n in lengths:
        compiled(torch.zeros(n, 100))
    return counter.frame_count


# %%
#| solution 11-3
def compilations(lengths: list[int], dynamic: bool | None) -> int:
    """How often x + 1 is compiled for x of shapes (n, 100), n from lengths in this order."""
    ### BEGIN SOLUTION
    different = set(lengths)
    if dynamic is False:
        return min(len(different), LIMIT)
    new = (
        different - {lengths[0]} if dynamic is None else different
    )  # the first graph of the default is for one size
    return (dynamic is None) + (1 in new) + any(n > 1 for n in new)
    ### END SOLUTION


# %%
#| check 11-3
lengths = [8, 9, 10, 8]
for dynamic in (None, True, False):
    truth, rule = measured(lengths, dynamic), compilations(lengths, dynamic)
    assert rule == truth, (
        f"{lengths}, dynamic={dynamic}: your rule says {rule}, Dynamo compiles {truth} times"
    )

# %% [markdown]
r"""
## 11-4 · When compiling pays

*Derive · difficulty 2/5 · importance 4/5 · 10 minutes*

A function of your own numbers `mine`: `unary` operations that read one tensor of n numbers, then `binary` ones that read
two, each writing one; `inputs` of those tensors come from outside, one goes out. All that counts is memory traffic, in
float32.

`eager` and `fused`: how many times n numbers move in eager mode, and in one kernel that does it all. `calls`: after how
many whole calls has compiling paid for itself, if it takes `compile_seconds` and memory moves `bandwidth` bytes a second?

<details><summary>Hint 1</summary>

Eager, each operation reads all its inputs from memory and writes its output there.
</details>

<details><summary>Hint 2</summary>

What a call saves is the difference of two times. A debt that is paid in the middle of a call is paid after it.
</details>
"""

# %%
mine = variant(
    "11-4",
    STUDENT,
    unary=[5, 6, 7, 8, 9],
    binary=[4, 5, 6, 7],
    inputs=[2, 3, 4],
    n=[2**22, 2**23, 2**24],
    bandwidth=[16e9, 25e9, 40e9],
    compile_seconds=[2.7, 3.4, 5.1],
)
mine

# %%
#| solution 11-4
### BEGIN SOLUTION
eager = 2 * mine["unary"] + 3 * mine["binary"]
fused = mine["inputs"] + 1
saved = (eager - fused) * mine["n"] * 4 / mine["bandwidth"]  # seconds a call
calls = math.ceil(mine["compile_seconds"] / saved)
### INSTEAD
# eager = 0  # times n numbers
# fused = 0
# calls = 0  # a whole number
### END SOLUTION

# %%
#| check 11-4
assert isinstance(eager, int) and isinstance(fused, int), (
    "how many times n numbers: two whole numbers are due"
)
assert eager > 2 * (mine["unary"] + mine["binary"]), (
    "reads and writes of each operation; some read two tensors"
)
assert fused > 2, "the kernel must read everything that comes from outside, and write what goes out"
assert isinstance(calls, int) and calls > 0, "a number of whole calls"

# %% [markdown]
r"""
## 11-5 · The names in a saved model

*Check · difficulty 2/5 · importance 3/5 · 15 minutes*

What `torch.compile` returns is a wrapper, and a `state_dict` taken from it has `_orig_mod.` in its names; where blocks were
compiled one by one, in their middle. `saved_names(names)` gives the names that the model without any wrapper has, in the
same order: `["_orig_mod.wte.weight", "h.0._orig_mod.ln_1.bias"]` become `["wte.weight", "h.0.ln_1.bias"]`. Other names
stay as they are.

You write the check, not the function: `check_saved_names(saved_names)` raises an `AssertionError` if what it is given is
wrong, and is silent if it is right. It will be tried on right and wrong implementations that you do not see. Score is the
share of the wrong ones that it refuses, and nothing if it refuses a right one.

<details><summary>Hint 1</summary>

What would the two lines `name.removeprefix("_orig_mod.")` and `name.lstrip("_orig_mod.")` do? Which names tell them apart from
what is wanted?
</details>

<details><summary>Hint 2</summary>

A wrapper around a model whose blocks are wrapped as well has the word twice in one name. And a name may be long, short, or
begin with one of the letters of `_orig_mod.`.
</details>
"""


# %%
#| solution 11-5
def check_saved_names(saved_names) -> None:
    """AssertionError if saved_names(names: list[str]) -> list[str] does not undo the wrapper's names."""
    ### BEGIN SOLUTION
    plain = ["wte.weight", "h.0.ln_1.bias", "gain", "dim.rotary", "module.ln_f.weight", "mod.gate"]
    assert saved_names(plain) == plain, "names without a wrapper stay"
    assert saved_names([]) == [], "no names, none back"
    for wrapped in ("_orig_mod.{}", "h.3._orig_mod.{}", "_orig_mod.h.3._orig_mod.{}"):
        wanted = [wrapped.replace("_orig_mod.", "").format(name) for name in plain]
        found = saved_names([wrapped.format(name) for name in plain])
        assert found == wanted, f"{wrapped}: {found}"
    ### END SOLUTION


# %%
#| check 11-5
check_saved_names(lambda names: [name.replace("_orig_mod.", "") for name in names])  # right: must be accepted
try:
    check_saved_names(lambda names: list(names))
    refused = False
except AssertionError:
    refused = True
assert refused, "your check accepts a function that changes nothing"

# %% [markdown]
r"""
#| manual 11-6
## 11-6 · What interferes

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A published training script carries the line `use_compile = False # torch.compile interferes with HellaSwag eval and Generation`.
Its author calls one compiled model for training, for an evaluation on texts of many lengths, and for writing. What interferes, and
how would it show in the log of a run? Which two or three changes let training stay compiled? Four to six sentences.
"""
