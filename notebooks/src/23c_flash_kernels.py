# %% [markdown]
r"""
# 23c ◇ · Flash kernels: chapter 12 again, and now in one piece

In chapter 12 we wrote flash attention in PyTorch. It needs no T × T matrix, and it was slow, because every tile cost a
dozen calls from Python. Chapter 12b then used PyTorch's own kernel, which somebody else wrote.

In this chapter we close the gap. We write chapter 12's functions as Triton kernels, line beside line, first the forward pass
and then the backward pass. Most lines stay what they were. We count what the kernels load, we try wrong versions of them, and
at the end we make them an *operator*, so that `torch.compile` can keep them in its graph.

You need chapter 12 for the algorithm and chapter 23 for Triton. As there, everything runs in the interpreter. The end of the chapter
has one time that was measured on a GPU.
"""

# %%
#| default_exp labs.kernels.flash_kernels
#| doc labs.kernels.flash_kernels: Flash attention as Triton kernels, forward and backward, and as an operator for torch.compile.
from course.figures import kernels as figures
from course.figures.triton_here import altered, skip_cells_without_triton, traced, watch
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import seed_everything
from nanogpt.labs.kernels import flash
from nanogpt.labs.kernels.kernels import guarded

g = seed_everything(0)

# %%
#| export
import math

import torch
from torch import Tensor
from torch._inductor.runtime.triton_compat import HAS_TRITON, tl, triton
from torch.library import custom_op, triton_op, wrap_triton

from nanogpt.labs.kernels.kernels import interpret, launch, wide

# %% tags=["nbval-ignore-output"]
skip_cells_without_triton()

# %% [markdown]
r"""
*Predict.* A text is cut into four blocks of rows, and each block of queries has a program of its own. How often is a number
of k loaded in the forward pass, on average? In the backward pass, suppose that each program takes one block of *keys*, and
adds its part to the gradients of all the queries that saw these keys. Which part of the numbers of dq would several programs
write to?
"""

# %%
predict("23c.1", "times that a number of k is loaded, with four blocks", guess=None)
predict("23c.2", "numbers of dq that several programs write to", guess=None, unit="%")

# %% [markdown]
r"""
## Who computes which tile

Chapter 12's forward pass has two loops: over blocks of rows (queries), and inside it over blocks of columns (keys). The
state of the online softmax, `m`, `total` and `o`, belongs to a block of rows. So two blocks of rows do not depend on each
other, and the outer loop can become programs that run at the same time. The inner loop stays a loop inside the program.

With several texts and heads, each head of each text is independent as well. So the grid has two numbers: which block of
rows, and which head.
"""

# %%
show(
    figures.walks(4),
    alt="Two triangles of tiles. Left: each program walks along a row of tiles. Right: each program walks down a column of tiles.",
)

# %% [markdown]
r"""
Each colour is a program, and the arrow shows its walk over the tiles. On the left is the forward pass. Program 3 has four
tiles, and program 0 has one. The tiles above the diagonal are the future, and no program visits them. We return to the right
side later.

## A tile is loaded

Chapter 12 cut a tile out of a tensor with a slice. A program has only addresses, so it needs to compute them, and to mask
the rows behind the end of the text. Two helpers do this for all kernels of this chapter. `z_ptr` is the address where a head
begins, and `places` are the numbers of the rows. Masked rows are loaded as zeros.
"""


# %%
#| export
@triton.jit
def load_tile(z_ptr, places, T, D: tl.constexpr):
    """The rows `places` of z (T, D), of one head; rows behind its end are 0."""
    at = places[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(z_ptr + at, mask=places[:, None] < T, other=0.0)


@triton.jit
def store_tile(z_ptr, places, T, values, D: tl.constexpr):
    """Store the rows `places` of z (T, D), of one head; rows behind its end are left out."""
    at = places[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(z_ptr + at, values, mask=places[:, None] < T)


# %% [markdown]
r"""
## Two functions of chapter 12, translated

Here is what chapter 12 says, for comparison: the scores of a tile, and one step of the online softmax.

```python
def tile_scores(q, k, diagonal):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if diagonal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores

def absorb(scores, values, m, total, o):
    larger = torch.maximum(m, scores.amax(-1, keepdim=True))
    p = (scores - larger).exp()
    shrink = (m - larger).exp()
    return larger, shrink * total + p.sum(-1, keepdim=True), shrink * o + p @ values
```

The next cell has the same functions in Triton. `tl.dot` is the product of two tiles. On a GPU with tensor cores it
becomes their instructions. Its inputs may have 16 bits, and its result has 32. `input_precision="ieee"` asks for full
float32 products where the inputs have 32 bits, because the default is TF32 (chapter 10). The blocks of `tl.dot` must
have at least 16 rows and columns. `tl.trans` transposes a tile.

In `tile_scores`, `scale` is converted to the type of the scores by `tl.cast`. The section about `torch.compile` says
why.

The mask is written without `diagonal`. We compare the number of each key with the number of each row. This is right
for every tile, and it also hides the keys behind the end of the text, since they come after every row that is stored.
"""


# %%
#| export
#| blank tile_scores: tl.dot of q and k transposed, times scale; -inf where a key comes after its row
@triton.jit
def tile_scores(q, k, rows, keys, scale):
    """Scores of a tile: q kᵀ · scale, and -inf for keys in the future of a row.

    They have the type of tl.dot's result, with full float32 products, whatever the type of scale.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores *= tl.cast(scale, scores.dtype)  # torch.compile passes a float in float64
    return tl.where(keys[None, :] <= rows[:, None], scores, -float("inf"))


@triton.jit
def absorb(scores, values, m, total, o):
    """One step of the online softmax: chapter 12's absorb."""
    larger = tl.maximum(m, tl.max(scores, axis=1, keep_dims=True))
    p = tl.exp(scores - larger)
    shrink = tl.exp(m - larger)
    weighted = tl.dot(p.to(values.dtype), values, input_precision="ieee")
    return larger, shrink * total + tl.sum(p, axis=1, keep_dims=True), shrink * o + weighted


# %% [markdown]
r"""
`absorb` is the same line by line, with `tl.` in place of `torch.`. Only one thing differs: both inputs of `tl.dot`
must have one type, so the weights p are converted to the type of the values first. (As in chapter 12, `m` and `total` are columns of the shape (BLOCK, 1).
Triton's own tutorial keeps them as vectors. The result is the same. Chapter 23d counts what the columns cost.)

## The forward pass

Now the program, beside chapter 12's loop:

| chapter 12 | here |
|---|---|
| `for i in range(0, T, block)` | `i` is the program's number |
| `q_i = tile(q, i, block)` | `load_tile(q_ptr, rows, T, D)` |
| `m = torch.full_like(…, -math.inf)` | `tl.full((BLOCK, 1), -float("inf"), …)` |
| `for j in range(0, i + 1, block)` | `for j in range(0, i + 1)`, counted in blocks |
| `m, total, o = absorb(…)` | the same |
| `outs.append(o / total)` | `store_tile(out_ptr, …, o / total, D)` |
| `logsumexps.append(m + total.log())` | `store_tile(lse_ptr, …, m + tl.log(total), 1)` |
"""


# %%
#| export
#| blank flash_kernel: load q; m, total, o as in chapter 12; for each block of keys up to i: tile_scores, absorb; store
@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    """Causal attention of block i of the rows of one head (Dao 2023, algorithm 1): the output and the logsumexp.

    i is tl.program_id(0), the head tl.program_id(1). The heads lie one behind the other: T rows of D numbers
    in q, k, v and out, T numbers in lse. m and total are (BLOCK, 1), o is (BLOCK, D), all in the type of wide(q).
    """
    i, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    rows = i * BLOCK + tl.arange(0, BLOCK)
    q = load_tile(q_ptr + head * D, rows, T, D)
    m = tl.full((BLOCK, 1), -float("inf"), wide(q).dtype)
    total, o = tl.zeros_like(m), tl.zeros((BLOCK, D), m.dtype)
    for j in range(0, i + 1):
        keys = j * BLOCK + tl.arange(0, BLOCK)
        scores = tile_scores(q, load_tile(k_ptr + head * D, keys, T, D), rows, keys, scale)
        m, total, o = absorb(scores, load_tile(v_ptr + head * D, keys, T, D), m, total, o)
    store_tile(out_ptr + head * D, rows, T, o / total, D)
    store_tile(lse_ptr + head, rows, T, m + tl.log(total), 1)


# %% [markdown]
r"""
We compare with chapter 12's own function, for two heads. First a text of 64 tokens in four blocks of 16, where we count how
often each number of k and v is loaded. The q of each row is loaded once, so what remains of the loads is k and v.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
def run_flash(kernel, q, k, v, block=16):
    """Output and logsumexp by a kernel, from and into guarded memory; the memory of the output is returned as well."""
    heads, T, D = q.shape
    memory, out = guarded(torch.zeros_like(q), fill=-7.0)
    lse = torch.empty(heads, T, 1)
    inputs = [guarded(z)[1] for z in (q, k, v)]
    grid = math.ceil(T / block), heads
    launch(kernel, grid, *inputs, out, lse, T, 1 / math.sqrt(D), D=D, BLOCK=block)
    return out, lse, memory


q, k, v = torch.randn(3, 2, 64, 16, generator=g)
with watch() as seen:
    out, lse, _ = run_flash(flash_kernel, q, k, v)
expected, expected_lse = flash.flash_forward(q, k, v, 16)
assert torch.allclose(out, expected, atol=1e-6), "another output than chapter 12's"
assert torch.allclose(lse, expected_lse, atol=1e-5), "another logsumexp than chapter 12's"
times = (seen.loaded - q.nbytes) / (k.nbytes + v.nbytes)
print(f"as chapter 12's; each number of k and v is loaded {times} times on average")
answer("23c.1", times)

# %% [markdown]
r"""
Each number of k is loaded 2.5 times. With n blocks it is (n + 1)/2 times, because the program of block i loads i + 1 blocks of keys. Larger blocks mean fewer
loads. But q, k, v, the scores and the sums of a program have to fit into the fast memory of the GPU at the same time. Chapter
23d computes which blocks fit.

## Wrong kernels

Now a check that finds wrong kernels. It uses what we learned in chapters 23 and 23b. The text has 40 tokens, so the last
block of 16 is not full. There are two heads, and a row too many of the first would end up in the second. All tensors are
between guards. The check compares the output, then looks for changed numbers behind the end, for addresses with two writers,
and at last for the number of bytes.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
def error_of(kernel, heads=2, T=40):
    """The error of a forward kernel, or none."""
    q, k, v = torch.randn(3, heads, T, 16, generator=torch.Generator().manual_seed(0))
    with watch() as seen:
        out, _, memory = run_flash(kernel, q, k, v)
    if not torch.allclose(out, flash.flash_forward(q, k, v, 16)[0], atol=1e-5):
        return "a wrong output"
    if (memory != -7.0).sum() > q.numel():
        return "numbers behind the end are changed"
    if seen.shared:
        return "two programs write to one address"
    keys = sum(min(16 * (i + 1), T) for i in range(math.ceil(T / 16)))  # loaded by each block of rows
    needed = q.nbytes + 2 * 4 * 16 * heads * keys
    return "none" if seen.loaded == needed else f"loads {seen.loaded - needed:,} bytes too many"


# %% tags=["nbval-ignore-output"]
# needs Triton
changes = {
    "no causal mask": ("keys[None, :] <= rows[:, None]", "keys[None, :] >= 0"),
    "a key of the future": ("keys[None, :] <= rows[:, None]", "keys[None, :] <= rows[:, None] + 1"),
    "no mask for loads": (", mask=places[:, None] < T, other=0.0", ""),
    "old sum not scaled": ("shrink * total +", "total +"),
    "the last block is left out": ("range(0, i + 1)", "range(0, tl.maximum(i, 1))"),
    "one block too many": ("range(0, i + 1)", "range(0, i + 2)"),
    "tail off by one": ("values, mask=places[:, None] < T", "values, mask=places[:, None] <= T"),
}
kernels = {name: altered(flash_kernel, *change) for name, change in changes.items()}
print(f"{'the kernel':27} error: {error_of(flash_kernel)}")
for name, kernel in kernels.items():
    print(f"{name:27} error: {error_of(kernel)}")
easy = [name for name, kernel in kernels.items() if error_of(kernel, heads=1, T=16) == "none"]
print(f"not found with one head and one block: {', '.join(easy)}")
assert error_of(flash_kernel) == "none", "the check refuses the right kernel"
assert all(error_of(kernel) != "none" for kernel in kernels.values()), "the check is blind"

# %% [markdown]
r"""
All seven are found. The last lines show again that inputs decide: with a single block, five of the seven wrong kernels do nothing
wrong. "One block too many" even gives the right output always, since the additional keys are all in the future. It only
does more work, and the count of bytes shows it.

## The backward pass

Chapter 12's backward pass computes the weights of each tile again, from q, k and the logsumexp:

```python
p = (tile_scores(q, k, diagonal) - logsumexp).exp()
ds = p * (grad @ v.transpose(-2, -1) - D) / math.sqrt(q.size(-1))
return ds @ k, ds.transpose(-2, -1) @ q, p.transpose(-2, -1) @ grad      # dq, dk, dv
```

The first two lines become a helper. The number D of each row, Σ p · dp, is called `delta` here, since `D` is taken.
"""


# %%
#| export
#| blank tile_slopes: p from scores and lse; ds = p · (g vᵀ − delta) · scale
@triton.jit
def tile_slopes(q, k, v, g, lse, delta, rows, keys, scale):
    """Of one tile: its weights p, computed again, and the gradient ds of its scores; p first.

    lse and delta are (BLOCK, 1). Products and scale as in tile_scores.
    """
    p = tl.exp(tile_scores(q, k, rows, keys, scale) - lse)
    return p, p * (tl.dot(g, tl.trans(v), input_precision="ieee") - delta) * tl.cast(scale, p.dtype)


# %% [markdown]
r"""
Who should compute which tile now? dk and dv belong to a block of keys: all tiles of a *column* contribute to them. dq
belongs to a block of rows: all tiles of a *row* contribute to it. Whichever we choose for the programs, the other gradients
are shared by several programs.

What happens if they are? Here is a kernel whose programs take a block of keys each, and add their parts to dq.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
@triton.jit
def racing_kernel(
    g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, d_ptr, dq_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr
):
    """dq of one head. Wrong: program j adds the part of its keys to rows that other programs change as well."""
    j = tl.program_id(0)
    keys = j * BLOCK + tl.arange(0, BLOCK)
    k, v = load_tile(k_ptr, keys, T, D), load_tile(v_ptr, keys, T, D)
    for i in range(j, tl.cdiv(T, BLOCK)):
        rows = i * BLOCK + tl.arange(0, BLOCK)
        q, g = load_tile(q_ptr, rows, T, D), load_tile(g_ptr, rows, T, D)
        lse, delta = load_tile(lse_ptr, rows, T, 1), load_tile(d_ptr, rows, T, 1)
        _, ds = tile_slopes(q, k, v, g, lse, delta, rows, keys, scale)
        store_tile(dq_ptr, rows, T, load_tile(dq_ptr, rows, T, D) + tl.dot(ds, k, input_precision="ieee"), D)


# %% tags=["nbval-ignore-output"]
# needs Triton
q, k, v, grad = torch.randn(4, 64, 16, generator=g)
out, lse = flash.flash_forward(q, k, v, 16)
delta, dq = (grad * out).sum(-1, keepdim=True), torch.zeros_like(q)
with watch() as seen:
    launch(racing_kernel, (4,), grad, q, k, v, lse, delta, dq, 64, 0.25, D=16, BLOCK=16)
expected = flash.flash_backward(grad, q, k, v, out, lse, 16)[0]
print("the interpreter's dq is right:", torch.allclose(dq, expected, atol=1e-5))
print(f"{len(seen.shared) / dq.numel():.0%} of its numbers are written to by several programs")
answer("23c.2", 100 * len(seen.shared) / dq.numel())

# %% [markdown]
r"""
Three of four blocks, 75% of dq, have several writers. Only the first block of rows has one, since it saw only the first block of keys. All the others have a race. The
interpreter does not suffer from it, because it runs one program after the other.

There are two ways out. Programs can add with `tl.atomic_add`, which cannot lose a part. But then the order of the additions is
open, and the last digits change from run to run. We take the other way: two kernels. The first one walks down the columns
(the right side of the figure) and makes dk and dv. The second walks along the rows, as the forward pass does, and makes dq.
The price: the weights of each tile are computed twice. Together the two kernels compute seven products for a tile, and one kernel with atomic
additions would need five.
"""


# %%
#| export
@triton.jit
def keys_backward_kernel(
    g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, d_ptr, dk_ptr, dv_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr
):
    """dk and dv of block j of the keys of one head: its column of tiles (Dao 2023, algorithm 2)."""
    j, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    keys = j * BLOCK + tl.arange(0, BLOCK)
    k, v = load_tile(k_ptr + head * D, keys, T, D), load_tile(v_ptr + head * D, keys, T, D)
    dk = tl.zeros((BLOCK, D), wide(k).dtype)
    dv = tl.zeros_like(dk)
    for i in range(j, tl.cdiv(T, BLOCK)):  # queries before these keys never saw them
        rows = i * BLOCK + tl.arange(0, BLOCK)
        q, g = load_tile(q_ptr + head * D, rows, T, D), load_tile(g_ptr + head * D, rows, T, D)
        lse, delta = load_tile(lse_ptr + head, rows, T, 1), load_tile(d_ptr + head, rows, T, 1)
        p, ds = tile_slopes(q, k, v, g, lse, delta, rows, keys, scale)
        dv += tl.dot(tl.trans(p).to(g.dtype), g, input_precision="ieee")
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    store_tile(dk_ptr + head * D, keys, T, dk, D)
    store_tile(dv_ptr + head * D, keys, T, dv, D)


# %%
#| export
@triton.jit
def rows_backward_kernel(
    g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, d_ptr, dq_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr
):
    """dq of block i of the rows of one head: its row of tiles."""
    i, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    rows = i * BLOCK + tl.arange(0, BLOCK)
    q, g = load_tile(q_ptr + head * D, rows, T, D), load_tile(g_ptr + head * D, rows, T, D)
    lse, delta = load_tile(lse_ptr + head, rows, T, 1), load_tile(d_ptr + head, rows, T, 1)
    dq = tl.zeros((BLOCK, D), wide(q).dtype)
    for j in range(0, i + 1):
        keys = j * BLOCK + tl.arange(0, BLOCK)
        k, v = load_tile(k_ptr + head * D, keys, T, D), load_tile(v_ptr + head * D, keys, T, D)
        _, ds = tile_slopes(q, k, v, g, lse, delta, rows, keys, scale)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    store_tile(dq_ptr + head * D, rows, T, dq, D)


# %% tags=["nbval-ignore-output"]
# needs Triton
q, k, v, grad = torch.randn(4, 2, 40, 16, generator=g)
out, lse = flash.flash_forward(q, k, v, 16)
delta = (grad * out).sum(-1, keepdim=True)
dq, dk, dv = torch.empty(3, 2, 40, 16)
with watch() as seen:
    launch(keys_backward_kernel, (3, 2), grad, q, k, v, lse, delta, dk, dv, 40, 0.25, D=16, BLOCK=16)
    launch(rows_backward_kernel, (3, 2), grad, q, k, v, lse, delta, dq, 40, 0.25, D=16, BLOCK=16)
for ours, theirs in zip((dq, dk, dv), flash.flash_backward(grad, q, k, v, out, lse, 16)):
    assert torch.allclose(ours, theirs, atol=1e-5), "another gradient than chapter 12's"
assert not seen.shared, "two programs write to one address"
print("dq, dk and dv are chapter 12's, and no address has two writers")

# %% [markdown]
r"""
## An operator, so that the compiler keeps it

So far a kernel is launched by Python. `torch.compile` (chapter 11) follows the Python code of a model with tensors that have
a shape and no memory. A kernel cannot run on those. The compiler has to be told: here is a kernel, it has these inputs, and it
changes these outputs.

`torch.library.triton_op` does that. We give a function a name, and inside it we launch the kernel through `wrap_triton`. When
the function runs, the kernel runs. When the compiler traces it, the call goes into the graph. The types in the function's
first line are required, because they become the operator's signature. Where Triton is missing, `operator` is an ordinary
operator, so that the cell still runs.

PyTorch's documentation says that `torch.compile` also understands a kernel that is launched directly, and that this is
simpler. We want an operator, because it behaves like one of PyTorch's own: it has a name in every graph, and it can do
something else on another device.

On a CPU there is nothing to compile for. There our operator calls the interpreter.

There is one trap. When we launch a kernel ourselves, Triton passes a Python number such as `scale` in float32. In a graph of
`torch.compile` (PyTorch 2.11) it arrives in float64. Without the conversion in `tile_scores` the scores become float64
too, and the running maximum, which began in float32, changes its type inside the loop. The compiler refuses that. The
interpreter never meets this case, so the error appeared when the tests first ran on an H100. Chapter 23d's `compile_for` finds
it without a GPU. A test now compiles every kernel with such numbers in float64.
"""

# %%
#| export
BLOCK = 32  # rows and columns of a tile
operator = triton_op if HAS_TRITON else custom_op  # PyTorch warns of triton_op where Triton is missing


def run(kernel, q: Tensor, *args) -> None:
    """Launch a kernel for all blocks and heads of q (..., T, D); its arguments end with T, scale, D and the block."""
    T, D = q.shape[-2:]
    grid = -(-T // BLOCK), q.numel() // (T * D)
    numbers = {"T": T, "scale": 1 / math.sqrt(D), "D": D, "BLOCK": BLOCK}
    if q.is_cuda:
        wrap_triton(kernel)[grid](*args, **numbers)
    elif torch.compiler.is_compiling():
        raise NotImplementedError(
            "the flash kernels run in the interpreter on a CPU: leave out torch.compile there"
        )
    else:
        interpret(kernel, grid, *args, **numbers)


# %%
#| export
@operator("nanogpt::flash_forward", mutates_args={})
def flash_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention (..., T, D) and its logsumexp (..., T), by flash_kernel."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    run(flash_kernel, q, q, k, v, out, lse)
    return out, lse


@operator("nanogpt::flash_backward", mutates_args={})
def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv from the gradient of the output, by the two backward kernels."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    delta = (grad.to(lse.dtype) * out).sum(-1)
    run(keys_backward_kernel, q, grad, q, k, v, lse, delta, dk, dv)
    run(rows_backward_kernel, q, grad, q, k, v, lse, delta, dq)
    return dq, dk, dv


# %% [markdown]
r"""
The function for autograd is short, since all the work is in the two operators. The kernels expect all heads one behind
the other in memory, so we ask for contiguous tensors. And they need a head's width that is a power of two and at
least 16. GPT-2's heads have 64.
"""


# %%
#| export
class FlashKernels(torch.autograd.Function):
    """flash_forward with flash_backward as its derivative."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = flash_forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return flash_backward(grad.contiguous(), *ctx.saved_tensors)


def kernel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by our kernels, with gradients. q, k, v: (..., T, D), alike; D is 16, 32, 64 or 128."""
    D = q.size(-1)
    if D not in (16, 32, 64, 128):
        raise ValueError(
            f"a head has {D} channels; the kernels need 16, 32, 64 or 128: choose n_head accordingly"
        )
    return FlashKernels.apply(q.contiguous(), k.contiguous(), v.contiguous())


# %% tags=["nbval-ignore-output"]
# needs Triton
q, k, v = (z.requires_grad_() for z in torch.randn(3, 1, 2, 40, 16, dtype=torch.float64, generator=g))
pairs = [[f(q, k, v) for f in (kernel_attention, flash.flash_attention)]]
pairs += zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in pairs[0]))
for ours, theirs in pairs:
    assert torch.allclose(ours, theirs, atol=1e-9), "another output or gradient than chapter 12's"
small = [torch.randn(3, 16, dtype=torch.float64, generator=g).requires_grad_() for _ in range(3)]
assert torch.autograd.gradcheck(kernel_attention, small, fast_mode=True), "not the derivative"
print("output and gradients are chapter 12's; gradcheck passed")

# %% [markdown]
r"""
Does the compiler keep it? We can ask without a GPU. PyTorch can trace a function with tensors that only pretend to be on a
GPU: they have a shape, a type and a device, and no memory. `traced` does that, and lists the calls in the graph. The
function multiplies q by 2, calls our attention, and takes the sine of the result.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
def small_model(q, k, v):
    return kernel_attention(2 * q, k, v).sin()


shape = 1, 2, 40, 16
print("as operators:", traced(small_model, shape, shape, shape))
print("inside:      ", traced(small_model, shape, shape, shape, inside=True))
print("backward:    ", traced(flash_backward, *[shape] * 5, shape[:-1], inside=True)[-4:])
assert "nanogpt.flash_forward" in traced(small_model, shape, shape, shape), "the operator is not in the graph"

# %% [markdown]
r"""
In the first line our operator is one call between two others. The second line is what the compiler works with. It has looked
inside and found our kernel, so it can decide how the neighbours are compiled and where the memory comes from. In the
backward pass it finds both kernels.

An ordinary custom operator (`torch.library.custom_op`) would stay closed at this point. The documentation of `triton_op`
names this as the difference.

How fast is it? We asked an H200, for 8 texts of 1,024 tokens with 12 heads of 64 channels, in float16. Forward and
backward together, our kernels took 0.62 ms, and PyTorch's attention took 0.22 ms (`data/measurements/h200-day.json`). With blocks of 64 ours took
0.76 ms, and with blocks of 128 0.71 ms. So of these three, 32 is the best block, and it still takes 2.8 times as long as PyTorch's. For the forward pass alone the order is another one, as chapter 23d shows.
There, ours took 0.157 ms on an H100 and PyTorch's 0.048. Chapter 23d looks into the compiled code: blocks of 32 leave the H100's own product instruction unused,
the columns add exponentials that are computed several times, and the softmax of a program waits for its products.

## Checkpoint

The package now has flash attention as three Triton kernels and two operators. Output, gradients, loads and writers were
checked in the interpreter, and seven wrong kernels were found. On a GPU, `pytest -m gpu` compares them with PyTorch's
attention, with and without `torch.compile`. Chapter 23d has the time of the forward
kernel on an H100.
"""

# %% tags=["nbval-ignore-output"]
predictions("23c")

# %%
checkpoint("23c")

# %% [markdown]
r"""
## Exercises

To explore:

1. The tiles below the diagonal need no mask. Split the loop of `flash_kernel` into two, so that only the last tile compares
   rows with keys. *Check:* `error_of` says none.
2. Add a window: a row sees only the last 128 keys. *Predict* the bytes of k first, then count them.
3. Grouped queries (chapter 24): several heads of q share one head of k and v. Which addresses change? *Check:* against
   `F.scaled_dot_product_attention` with `enable_gqa=True`.

## Further reading

- T. Dao, [*FlashAttention-2*](https://arxiv.org/abs/2307.08691), 2023, algorithms 1 and 2; §3.2 on who computes which tile.
- J. Shah et al., [*FlashAttention-3*](https://arxiv.org/abs/2407.08608), 2024: what an H100 needs in addition, softmax of one tile during the products of another.
- Triton's documentation, [*Tutorials*](https://triton-lang.org/main/getting-started/tutorials/index.html): fused attention.
- PyTorch's documentation, [`torch.library.triton_op`](https://docs.pytorch.org/docs/stable/library.html#torch.library.triton_op) and [*Using user-defined Triton kernels with torch.compile*](https://docs.pytorch.org/tutorials/recipes/torch_compile_user_defined_triton_kernel_tutorial.html).
"""
