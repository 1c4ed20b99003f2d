# %% [markdown]
r"""
# 23b ◇ · Fused loss: the largest tensor of a step, and how to do without it

The largest tensor in GPT-2's training step is not a weight. It holds the *logits*: one number for each token of the batch
and each of the 50,257 entries of the vocabulary. A batch of 8 texts of 1,024 tokens has 8,192 · 50,257 logits, and in
float32 they take 1.6 GB. From them the loss makes one number for each token, 8,192 in all. On the way PyTorch
writes another tensor of 1.6 GB, the log-probabilities, and in the backward pass a third, the gradient.

In this chapter a first kernel computes the loss and stores two numbers for each token, and a second one computes the gradient from
them. A third kernel does both, and writes the gradient where the logits were; it is meant for the fastest step on a GPU. The last
version takes the rows in chunks and never has all logits at once. It is plain
PyTorch, so it also helps on a CPU, and here we can measure it.

You need chapter 23 for the kernels, and chapter 12 for its online softmax.
"""

# %%
#| default_exp labs.kernels.fused_loss
#| doc labs.kernels.fused_loss: Cross-entropy without log-probabilities: as Triton kernels, and in chunks of rows in plain PyTorch.
import json
from functools import partial
from pathlib import Path

from course.figures import kernels as figures
from course.figures.triton_here import (
    altered,
    skip_cells_without_triton,
    watch,
    without_warnings_of_cpp,
)
from course.notebook import answer, checkpoint, grown, predict as guess, predictions, show
from nanogpt.device import seed_everything
from nanogpt.labs.kernels.kernels import guarded
from nanogpt.labs.roofline.memory import memory_levels, peak_memory, saved_bytes
from nanogpt.model import GPT, GPTConfig, next_token_loss
from nanogpt.labs.roofline.clock import Roofline, faster

g = seed_everything(0)

# %%
#| export
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.runtime.triton_compat import tl, triton

from torch.library import custom_op

from nanogpt.labs.kernels.kernels import launch, power_of_two, wide

# %% tags=["nbval-ignore-output"]
skip_cells_without_triton()

# %% [markdown]
r"""
*Predict.* The kernel reads the logits of a row block by block. How many times does it have to read each logit to compute
the loss of the row? And for the last version, in plain PyTorch: it makes 64 rows of logits at a time, out of 512. How much memory does the
loss with its gradients need at the peak, if the usual way needs 1?
"""

# %%
guess("23b.1", "times that the loss kernel reads each logit", guess=None)
guess("23b.2", "peak of the loss in chunks of 64 rows, all 512 at once = 1", guess=None)

# %% [markdown]
r"""
## What PyTorch keeps

The loss of one token with logits z and target t is

$$\log\sum_j e^{z_j} \;-\; z_t .$$

PyTorch computes the logarithm of the softmax for all j first, and then picks one of them. Chapter 09's `saved_bytes` shows
what autograd keeps of this for the backward pass. The logits are excluded from the count.
"""

# %%
N, V = 8, 1000
logits, targets = torch.randn(N, V, generator=g).requires_grad_(), torch.randint(V, (N,), generator=g)
kept = saved_bytes(lambda: F.cross_entropy(logits, targets), exclude=[logits, targets])
print(f"logits: {logits.nbytes:,} bytes; kept beside them: {kept:,} bytes")

# %% [markdown]
r"""
A second tensor as large as the logits is kept: the log-probabilities (and a few bytes more). They are not needed. If we
keep the first term of the formula, the *logsumexp* of the row, then each probability can be computed again from its logit:
$p_j = e^{z_j - \mathrm{logsumexp}}$. That is one number for each row, in place of V.

## One row a program

A row of 50,257 logits is too long for one block. So a program walks over its row in blocks. It needs the maximum of the
row, to keep `exp` from overflowing, and it needs the sum of the exponentials relative to this maximum. Chapter 12's
`absorb` finds both in one walk: when a block brings a larger maximum, the old sum is scaled down. The kernel has the same
lines, for one row. The loop over its blocks is `for first in range(0, V, BLOCK)`. `tl.maximum` takes the larger of two numbers,
`tl.max(z, axis=0)` the largest of a block, and `tl.exp` and `tl.log` are what they are in PyTorch.
"""


# %%
#| export
#| blank loss_kernel: m, total by chapter 12's absorb, block by block; lanes behind V load -inf
@triton.jit
def loss_kernel(logits_ptr, targets_ptr, loss_ptr, lse_ptr, V, BLOCK: tl.constexpr):
    """The cross-entropy of one row of V logits, and its logsumexp. A target of -100 gives a loss of 0."""
    row = tl.program_id(0)
    start = logits_ptr + row.to(tl.int64) * V  # a large batch has more than 2³¹ logits
    m, total = -float("inf"), 0.0
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        z = wide(tl.load(start + cols, mask=cols < V, other=-float("inf")))
        larger = tl.maximum(m, tl.max(z, axis=0))
        total = total * tl.exp(m - larger) + tl.sum(tl.exp(z - larger), axis=0)
        m = larger
    lse = m + tl.log(total)
    target = tl.load(targets_ptr + row)
    right = wide(tl.load(start + target, mask=target >= 0, other=0.0))
    tl.store(loss_ptr + row, tl.where(target >= 0, lse - right, 0.0))
    tl.store(lse_ptr + row, lse)


# %% [markdown]
r"""
Three details were new. `for first in range(0, V, BLOCK)` is a loop inside a program. The lanes behind the end of the row
load $-\infty$: they cannot be the maximum, and their exponential is 0. And a target of −100 means, as everywhere in this
course, that the token does not count. Without the mask such a program would load the number that lies 100 places before
its row.

For the check we put all tensors between guards, as in chapter 23. The row has 50 logits and the block 16 lanes, so the
last block is not full. One target is −100.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
def run_loss(kernel, logits, targets, block=16):
    """Losses and logsumexp of the rows by a kernel; all inputs between guards of nan."""
    N, V = logits.shape
    places = torch.full((N + 128,), -1)  # guards of targets, which are whole numbers
    places[64:-64] = targets
    loss, lse = torch.empty(2, N)
    launch(kernel, (N,), guarded(logits)[1], places[64:-64], loss, lse, V, BLOCK=block)
    return loss, lse


N, V = 6, 50
logits, targets = 2 * torch.randn(N, V, generator=g), torch.randint(V, (N,), generator=g)
targets[2] = -100
with watch() as seen:
    loss, lse = run_loss(loss_kernel, logits, targets)
expected = F.cross_entropy(logits, targets, reduction="none")
assert torch.allclose(loss, expected, atol=1e-5), "the kernel computes something else than F.cross_entropy"
assert torch.allclose(lse, logits.logsumexp(-1)), "lse is not the logsumexp of the row"
print("losses:", [round(x, 3) for x in loss.tolist()])
print(f"bytes loaded: {seen.loaded:,}; the logits have {logits.nbytes:,}")
answer("23b.1", (seen.loaded - targets.nbytes - 4 * (N - 1)) / logits.nbytes)

# %% [markdown]
r"""
Each logit is read once. The rest of what is loaded are the targets, and once more the logit of each target that counts.
Two numbers a row are stored, and no log-probability is ever written.

## Three wrong kernels

How could this kernel be wrong without anybody noticing? Here are three ways. In the first one, lanes behind the row load 0
in place of $-\infty$. In the second one, the old sum is not scaled when the maximum grows. In the third one, the mask for
the target is missing. `altered` makes each of them from the text of the right kernel, by changing one place.

Whether a check notices depends on its inputs. We first try an easy input: the row fits its blocks exactly, its largest
logit comes first, and every token has a target. Then we try the input from above.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
def error_of(kernel, logits, targets):
    """The error of a kernel for the loss, or none."""
    with watch() as seen:
        loss, _ = run_loss(kernel, logits, targets)
    expected = F.cross_entropy(logits, targets, reduction="none")
    if not torch.allclose(loss, expected, rtol=1e-4, atol=1e-4):
        return "wrong losses"
    needed = logits.nbytes + targets.nbytes + 4 * (targets >= 0).sum()
    return "none" if seen.loaded == needed else "loads from a wrong place"


versions = {
    "the kernel": loss_kernel,
    "0 behind the row": altered(loss_kernel, 'V, other=-float("inf")', "V, other=0.0"),
    "old sum not scaled": altered(loss_kernel, "total * tl.exp(m - larger) +", "total +"),
    "target without mask": altered(loss_kernel, ", mask=target >= 0, other=0.0", ""),
}
easy = torch.linspace(5, -5, 48).expand(N, 48)
found = {name: error_of(kernel, logits, targets) for name, kernel in versions.items()}
for name, kernel in versions.items():
    print(f"{name:20} error: {error_of(kernel, easy, torch.arange(N))}, with the other input: {found[name]}")
assert [error == "none" for error in found.values()] == [True, False, False, False], "the check is blind"

# %% [markdown]
r"""
On the easy input nobody sees an error. The other input finds all three. A check is as good as its inputs: it needs sizes
that do not fit the blocks, a maximum that comes late, and every special value that real data can contain.

The losses of the last kernel are right in spite of its error, because `tl.where` throws the wrong number away. Only the
count of bytes shows that it was loaded, from a place before its row. On a GPU such an address may belong to nobody, and
then the program ends with an error.

## The gradient

The derivative of the loss with respect to logit j is the probability $p_j$, minus 1 if j is the target. It needs no sum over
the row any more, because the logsumexp is known. So here each program can take one block of one row. It reads the logits a
second time and writes their gradient.

`g` holds, for each row, the gradient of its loss. For a mean over the tokens that count, this is 1 divided by their number,
and 0 where the target is −100.
"""


# %%
#| export
#| blank loss_backward_kernel: p from the logit and the row's logsumexp, minus 1 at the target, times the row's g
@triton.jit
def loss_backward_kernel(g_ptr, logits_ptr, targets_ptr, lse_ptr, d_ptr, V, BLOCK: tl.constexpr):
    """The gradient of one block of one row of logits: g · (softmax − 1 at the target). (i, j): block j of row i."""
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = cols < V, row.to(tl.int64) * V + cols
    p = tl.exp(wide(tl.load(logits_ptr + at, mask=inside)) - tl.load(lse_ptr + row))
    hit = tl.where(cols == tl.load(targets_ptr + row), 1.0, 0.0)
    tl.store(d_ptr + at, tl.load(g_ptr + row) * (p - hit), mask=inside)


# %%
#| export
class CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy in nats, as F.cross_entropy: logits (N, V), targets (N,); -100 does not count."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor) -> Tensor:
        (N, V), logits = logits.shape, logits.contiguous()
        dtype = torch.promote_types(logits.dtype, torch.float32)
        loss, lse = (torch.empty(N, dtype=dtype, device=logits.device) for _ in range(2))
        launch(loss_kernel, (N,), logits, targets, loss, lse, V, BLOCK=min(1024, power_of_two(V)))
        ctx.save_for_backward(logits, targets, lse)
        return loss.sum() / (targets >= 0).sum()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        logits, targets, lse = ctx.saved_tensors
        (N, V), d = logits.shape, torch.empty_like(logits)
        counts = targets >= 0
        g, block = grad * counts / counts.sum(), min(1024, power_of_two(V))
        launch(loss_backward_kernel, (N, -(-V // block)), g, logits, targets, lse, d, V, BLOCK=block)
        return d, None


# %% tags=["nbval-ignore-output"]
# needs Triton
double = torch.randn(4, 7, dtype=torch.float64, generator=g).requires_grad_()
targets = torch.tensor([6, 0, -100, 3])
assert torch.autograd.gradcheck(lambda z: CrossEntropy.apply(z, targets), double), "not the derivative"
logits = torch.randn(N, V, generator=g).requires_grad_()
targets = torch.randint(V, (N,), generator=g)
with watch() as seen:
    ours = CrossEntropy.apply(logits, targets)
    (gradient,) = torch.autograd.grad(ours, logits)
(expected,) = torch.autograd.grad(F.cross_entropy(logits, targets), logits)
assert torch.allclose(gradient, expected, atol=1e-6), "another gradient than PyTorch's"
assert not seen.shared, "two programs store to the same address"
kept = saved_bytes(lambda: CrossEntropy.apply(logits, targets), exclude=[logits, targets])
print(f"gradcheck passed; {kept} bytes are kept for {N} rows of {V} logits")

# %% [markdown]
r"""
The kernel keeps 4 bytes for each row beside the logits themselves. Its loads and stores are the logits twice, their gradient
once, and a few numbers a row.

PyTorch's way is longer. Here is an estimate for its separate operations, in the way of chapter 11: `log_softmax` reads the
logits (at least once) and writes as many log-probabilities. Its backward pass reads these and the gradient that arrives,
which is a tensor of the same size, almost all of it zeros, and writes the gradient of the logits. With the writing of those
zeros this makes six times the logits, against three.

## The gradient in the logits' place

Our fastest step on a GPU (chapter 14's last rung for 16 bits) leaves the loss to `torch.compile`. A profile of it on an H200, GPT-2 124M
with 16 texts of 1,024 tokens, says where 32.6 ms go (`data/measurements/h200-peers.json`). Three operations belong to the loss: 1.46 ms forward, 1.11 ms backward, and 0.49 ms
for zeros. llm.c, which is written in CUDA, has one kernel for all this. It computes the gradient together with the loss, and
writes it over the logits: nobody needs them afterwards.

What would that be worth? The logits have 16,384 · 50,304 numbers of two bytes, 1.65 GB. They are read once from memory and
written once. A row has 100 KB. If each program has 1,024 threads, at most two run on each of the 132 multiprocessors, and their 264 rows
have 27 MB. So when a program needs its row a second time, it is still in the L2 cache, which has 50 MB.

*Predict.* How many milliseconds does this take, at an H200's 4.8 TB/s? And how many times is the step as fast, if nothing else changes?
"""

# %%
guess("23b.3", "milliseconds for the loss and its gradient, written over the logits", guess=None)
guess("23b.4", "times as fast: the step of 32.6 ms with this kernel", guess=None)

# %% [markdown]
r"""
The kernel walks over its row twice: first `loss_kernel`'s loop, then a second one, which reads each block again and writes the
gradient in its place. The loss of row i is not divided by the number of rows yet.
"""


# %%
#| export
@triton.jit
def slope_kernel(logits_ptr, targets_ptr, loss_ptr, V, BLOCK: tl.constexpr):
    """The cross-entropy of one row of V logits, and its gradient in their place; with a target of -100 both are 0."""
    row = tl.program_id(0)
    start, target = logits_ptr + row.to(tl.int64) * V, tl.load(targets_ptr + row)
    right = wide(tl.load(start + target, mask=target >= 0, other=0.0))  # now: the second loop overwrites it
    m, total = -float("inf"), 0.0
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        z = wide(tl.load(start + cols, mask=cols < V, other=-float("inf")))
        larger = tl.maximum(m, tl.max(z, axis=0))
        total = total * tl.exp(m - larger) + tl.sum(tl.exp(z - larger), axis=0)
        m = larger
    lse = m + tl.log(total)
    tl.store(loss_ptr + row, tl.where(target >= 0, lse - right, 0.0))
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        p = tl.exp(wide(tl.load(start + cols, mask=cols < V, other=0.0)) - lse)
        slope = p - tl.where(cols == target, 1.0, 0.0)
        tl.store(start + cols, tl.where(target >= 0, slope, 0.0), mask=cols < V)


# %% [markdown]
r"""
The target's logit is read at the beginning. The threads of a program do not wait for each other without a reason. If it were
read after the first loop, one thread could already have written the gradient there while another still needs the logit. The maximum of a
block needs all threads, so they wait for each other in the first loop. When the second loop begins, every thread has read the target's logit.

We look at what it loads and stores, and compare the gradient with PyTorch's.
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
N, V = 6, 50
logits, targets = 2 * torch.randn(N, V, generator=g), torch.randint(V, (N,), generator=g)
targets[2] = -100
expected = torch.func.grad(lambda z: F.cross_entropy(z, targets, reduction="sum"))(logits)
memory, inside = guarded(logits)
loss = torch.empty(N)
with watch() as seen:
    launch(slope_kernel, (N,), inside, targets, loss, V, BLOCK=16)
assert torch.allclose(loss, F.cross_entropy(logits, targets, reduction="none"), atol=1e-5), "not the losses"
assert torch.allclose(inside, expected, atol=1e-6), "another gradient than PyTorch's"
assert memory[:64].isnan().all() and memory[-64:].isnan().all(), "it stores outside"
assert not seen.shared, "two programs store to the same address"
print(f"bytes loaded: {seen.loaded:,}, stored: {seen.stored:,}; the logits have {logits.nbytes:,}")

# %%
profile = json.loads(Path("../data/measurements/h200-peers.json").read_text(encoding="utf-8"))["profile"]
step, loss = profile["all"], sum(ms for part, ms in profile.items() if part.startswith("loss"))
logits_gb = 2 * 16_384 * 50_304 / 1e9
fused = 2 * logits_gb / 4.8
answer("23b.3", fused)
answer("23b.4", step / (step - loss + fused))
print(
    f"{logits_gb:.2f} GB of logits; {loss:.2f} ms become {fused:.2f} ms, {step} ms become {step - loss + fused:.1f} ms"
)

# %% [markdown]
r"""
The kernel loads each logit twice, once in each loop, and stores its gradient once. The interpreter counts all loads. On a GPU the second load should come
from the L2 cache, so the 0.69 ms count only the first load and the store. Then the kernel saves 2.4 of 32.6 ms, and the step is 1.08 times as fast.
The data sheet's 4.8 TB/s are a limit. At nine tenths of them the kernel takes 0.76 ms, which changes little.

In another measurement on an H200 a step of llm.c took 31.5 ms and ours 33.7 (README). If the kernel saves 2.4 ms there too, the two are equally fast. No
GPU has run it yet; the rung "fused loss", at the end of this chapter, can measure it. The ladder's own forecast for that rung is smaller: chapter 14 counts
8 bytes for each logit of a compiled loss in bf16, which take 1.37 ms at this rate, where the profile says 3.06.

The same profile has two more places where bytes cannot be the reason. AdamW with its masters takes 1.50 ms, and 28 bytes for each of 124 million weights need 0.73. The gradient's norm
takes 0.37 ms, in fifty kernels, and reading 0.25 GB needs 0.05. Together they could save 1.1 ms, less than half of what this kernel should.

The logits come from x and lm_head's weight. So the function for autograd begins there: it makes the logits, lets the kernel
overwrite them, and keeps what is then in their memory for the backward pass. There the two products come, as always, and the
gradient that arrives, a single number, multiplies their results, which are much smaller than the logits.
`custom_op` makes an *operator* of this step: `torch.compile` takes it as one call and does not look inside. `register_fake` gives the compiler the shapes
of the results without computing them. A warp has 32 threads, so `num_warps=32` asks for the 1,024 threads from above.
"""


# %%
#| export
@custom_op("nanogpt::loss_in_place", mutates_args=())
def loss_in_place(x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the cross-entropies of logits x @ weight.T, and its gradient (N, V). x (N, C), weight (V, C)."""
    slopes = x @ weight.T
    N, V = slopes.shape
    loss = torch.empty(N, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    launch(slope_kernel, (N,), slopes, targets, loss, V, BLOCK=min(8192, power_of_two(V)), num_warps=32)
    return loss.sum(), slopes


@loss_in_place.register_fake
def shapes_in_place(x, weight, targets):
    return x.new_empty((), dtype=torch.promote_types(x.dtype, torch.float32)), x @ weight.T


class OnePassLoss(torch.autograd.Function):
    """Mean cross-entropy of the logits x @ weight.T, whose gradient takes their place."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        loss, slopes = loss_in_place(x, weight, targets)
        count = (targets != -100).sum()
        ctx.save_for_backward(x, weight, slopes, count)
        return loss / count

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, slopes, count = ctx.saved_tensors
        each = grad / count
        return each * (slopes @ weight), each * (slopes.T @ x), None


def one_pass_loss(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """next_token_loss(x @ weight.T, targets) by slope_kernel. x (B, T, C), weight (V, C), of one dtype."""
    return OnePassLoss.apply(x.flatten(0, 1), weight, targets.flatten())


# %% tags=["nbval-ignore-output"]
# needs Triton
x, weight = (torch.randn(*s, dtype=torch.float64, generator=g).requires_grad_() for s in ((1, 5, 3), (7, 3)))
targets = torch.tensor([[6, 0, -100, 3, 2]])
assert torch.autograd.gradcheck(partial(one_pass_loss, targets=targets), (x, weight)), "not the derivative"
ours, theirs = one_pass_loss(x, weight, targets), next_token_loss(x @ weight.T, targets)
compiled = torch.compile(one_pass_loss, backend="aot_eager", fullgraph=True)(x, weight, targets)
print(f"gradcheck passed; loss {ours:.6f}, in a compiled graph {compiled:.6f}, PyTorch's {theirs:.6f}")

# %% [markdown]
r"""
## Never all logits at once

The logits' memory is still there, even if it holds the gradient at last. Can we do without it?

Every row of logits is computed from one row of x, by `lm_head`: logits = x · weightᵀ. It is needed for one loss and for
one row of the gradient, and then never again. So we can take a *chunk* of rows, compute its logits, its losses and its
gradient, use the gradient at once for what we really want, the gradients of x and of the weight, and throw the chunk away.
Liger Kernel does this for the training of large models (Hsu et al. 2024).

The function below does the first half, for the logits of one chunk. It writes the gradient over the logits, so that no
second tensor of that size is needed. It is plain PyTorch.
"""


# %%
#| export
#| blank loss_and_slope: softmax in place by sub_, exp_, div_; minus 1 at the target; rows of -100 times 0
def loss_and_slope(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the rows' cross-entropies and its gradient, which is written over the logits (N, V).

    A row with the target -100 adds no loss, and its gradient is 0. Logits may be thousands.
    """
    counts = targets != -100
    column = targets.clamp(min=0)[:, None]
    right = logits.gather(1, column)
    m = logits.amax(1, keepdim=True)
    slope = logits.sub_(m).exp_()
    total = slope.sum(1, keepdim=True)
    slope.div_(total).scatter_add_(1, column, torch.full_like(right, -1.0))
    losses = (m + total.log() - right)[:, 0]
    return (losses * counts).sum(), slope.mul_(counts[:, None])


# %%
z = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
loss, slope = loss_and_slope(z.clone(), torch.tensor([2, 0]))
print(f"loss {loss:.3f}; gradient:")
print(slope.round(decimals=3))
assert torch.isclose(loss, F.cross_entropy(z, torch.tensor([2, 0]), reduction="sum")), (
    "not the sum of the losses"
)

# %% [markdown]
r"""
In the second row all probabilities are 1/3, and the target is number 0: so its gradient is −2/3 there and 1/3 elsewhere.

Now the loop over chunks. Autograd usually computes gradients when `backward` is called. But we want to throw the chunk's
logits away before that. So the forward pass computes the gradients already, and `backward` only multiplies them by the
gradient that arrives, a single number. This works because the loss is the end of the model. Every logit influences the rest
of the world through this one number only.
"""


# %%
#| export
class ChunkedLoss(torch.autograd.Function):
    """Mean cross-entropy of the logits x @ weight.T, of which `rows` rows exist at a time; its gradients come with it."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor, rows: int) -> Tensor:
        total, dx = 0.0, torch.empty_like(x)
        dweight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            logits = (x[part] @ weight.T).to(dweight.dtype)
            loss, slope = loss_and_slope(logits, targets[part])  # slope (rows, V)
            total = total + loss
            dx[part] = slope.to(x.dtype) @ weight
            dweight.addmm_(slope.T, x[part].to(dweight.dtype))
            del logits, slope  # or two chunks would exist while the next one is made
        count = (targets != -100).sum()
        ctx.save_for_backward(dx.div_(count), dweight.div_(count))
        return total / count

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dweight = ctx.saved_tensors
        return grad * dx, grad * dweight, None, None


# %%
#| export
def chunked_loss(x: Tensor, weight: Tensor, targets: Tensor, rows: int = 64) -> Tensor:
    """next_token_loss(x @ weight.T, targets) in memory for `rows` rows of logits. x (B, T, C), weight (V, C).

    Multiplies in the dtype of x and weight, also under autocast, and adds up in float32 at least; -100 does not count.
    """
    with torch.autocast(x.device.type, enabled=False):
        return ChunkedLoss.apply(x.flatten(0, 1), weight, targets.flatten(), rows)


# %%
x, weight = (torch.randn(*s, dtype=torch.float64, generator=g).requires_grad_() for s in ((1, 5, 3), (7, 3)))
targets = torch.tensor([[6, 0, -100, 3, 2]])
for rows in (1, 2, 5, 64):
    loss = partial(chunked_loss, targets=targets, rows=rows)
    assert torch.autograd.gradcheck(loss, (x, weight)), "not the derivative"
print("gradcheck passed: x and weight, in chunks of 1, 2, 5 and 64 rows")

# %% [markdown]
r"""
It gives the same loss and the same gradients for every size of chunk, also where the last chunk is shorter.

## Memory and time

Now the measurement. We take 512 rows of 128 numbers and a vocabulary of 16,384, and compare with PyTorch's own loss in one
piece. Time is measured in turns, as in chapter 09.
"""

# %%
N, C, V = 512, 128, 16384
x = torch.randn(1, N, C, generator=g).requires_grad_()
weight = (0.02 * torch.randn(V, C, generator=g)).requires_grad_()
targets = torch.randint(V, (1, N), generator=g)


def in_one_piece():
    """The loss of all rows, and its gradients."""
    loss = next_token_loss(x @ weight.T, targets)
    return torch.autograd.grad(loss, (x, weight))


def in_chunks(rows=64):
    return torch.autograd.grad(chunked_loss(x, weight, targets, rows), (x, weight))


for a, b in zip(in_one_piece(), in_chunks()):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)
print(
    f"the same gradients; all logits have {4 * N * V / 2**20:.0f} MiB, 64 rows of them {4 * 64 * V / 2**20:.0f} MiB"
)

# %% [markdown]
r"""
`peak_memory` counts what PyTorch allocates above the tensors that are there at the start. The figure shows how the level
rises and falls while each of the two runs.
"""

# %% tags=["nbval-ignore-output"]
show(
    figures.levels(
        {"in one piece": memory_levels(in_one_piece), "in chunks of 64": memory_levels(in_chunks)}
    ),
    alt="Memory while the loss and its gradients are computed: in one piece it rises to about 100 MiB; in chunks it stays below 20.",
)
peaks = [peak_memory(call, x.device) for call in (in_one_piece, in_chunks)]
print(f"peak: {peaks[0] / 2**20:.1f} MiB in one piece, {peaks[1] / 2**20:.1f} MiB in chunks")
answer("23b.2", peaks[1] / peaks[0])
assert peaks[1] < 0.5 * peaks[0], "the chunks save no memory"

# %% [markdown]
r"""
In one piece the peak comes in the backward pass, with three tensors of the logits' size: the log-probabilities, their
gradient, and the gradient of the logits. In chunks the peak comes at the end, when `backward` multiplies the gradient of the
weight (8 MiB) into a new tensor. Smaller chunks would not lower it, because the chunk is gone by then. (Liger Kernel leaves this product out where the gradient that arrives is 1, and
else multiplies in place.)

And the time? The chunks do the same products, so they do not do less arithmetic. What they move is a trade. A chunk of logits may
still be in a cache of the processor when it is needed again, and memory that was just freed is used again for the next
chunk. But each chunk reads the weight again, and adds to the weight's gradient again. The smaller the chunks are, the more often this happens.
"""

# %% tags=["nbval-ignore-output"]
for rows in (16, 64, 256):
    gain = faster(in_one_piece, partial(in_chunks, rows), x.device, pairs=6, warmup=1)
    print(f"chunks of {rows:3} rows are {gain} as fast as one piece")

# %% [markdown]
r"""
On the machine of this page, chunks of 256 rows are 1.7 times as fast as one piece. With 64 rows no gain was shown: 1.10, in an interval that contains 1. With 16 rows
there are 32 chunks, each reads the weight twice, and together they take twice as long as one piece. So here large chunks win. Another machine has other caches, and your factors may differ.

## In the model

The chunked loss needs the features before `lm_head`, and `lm_head`'s weight. In chapter 05 both come together in `GPT.head`. So a function
with the same arguments can take its place. It gives no logits, because nobody may have them. `loss` is one of the two functions
that begin with x and the weight, `chunked_loss` or `one_pass_loss`.
"""


# %%
#| export
#| blank fused_head: without targets GPT.head; with them no logits, and `loss` of ln_f(x), lm_head's weight and the targets
from nanogpt.model import GPT


def fused_head(model: GPT, x: Tensor, targets=None, loss=chunked_loss) -> tuple[Tensor | None, Tensor | None]:
    """GPT.head whose loss makes the logits itself: (None, loss), or without targets (logits, None). x (B, T, C)."""
    if targets is None:
        return GPT.head(model, x)
    return None, loss(model.transformer.ln_f(x), model.lm_head.weight, targets)


# %% [markdown]
r"""
In GPT-2 `lm_head`'s weight is the token table as well, so autograd adds two gradients for it: one from the loss, and one from the
embedding at the beginning. We compare with the model's own loss and with all of its gradients.
"""

# %%
g = seed_everything(0)  # the same numbers with and without Triton
model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=32, block_size=64, vocab_size=256), g)
idx, targets = torch.randint(256, (2, 2, 64), generator=g)
loss = model(idx, targets)[1]
theirs = torch.autograd.grad(loss, list(model.parameters()))
model.head = partial(fused_head, model)
chunked = model(idx, targets)[1]
ours = torch.autograd.grad(chunked, list(model.parameters()))
for a, b in zip(ours, theirs):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
print(f"loss {loss:.3f} and {chunked:.3f}; all {len(ours)} gradients agree")

# %% [markdown]
r"""
## A rung for the ladder

Chapter 14's ladder is a list of such changes, each with a forecast. The chunked loss becomes its last rung. What should the forecast say?

**Memory.** At the peak of the loss, PyTorch has log-probabilities, their gradient and the gradient of the logits: 12 bytes for each of the N · V logits.
While the chunks run, they need 4 bytes for each of 64 · V logits, for each number of the weight's gradient, and of x's. When they are done, `backward` multiplies the two gradients into new tensors, as we saw, and needs their bytes twice. The forecast
takes the larger of the two.

**Time.** Chapter 14 counts 24 bytes of traffic for each logit, forward and backward, or 16 if the loss is compiled. If a chunk stays in the
processor's cache, none of them is left. But each chunk after the first one reads the weight twice more, and reads and writes its gradient: 16 bytes for
each of C · V numbers. Which is more? For 64 rows the logits' traffic is 24 · 64 · V bytes, and the weight's is 16 · C · V. So the chunks move less
only if C is below 1.5 · 64 = 96. GPT-2 is wider.
"""


# %%
#| export labs.ladder.forecast
def chunked_bytes(config: GPTConfig, N: int, rows: int = 64) -> int:
    """What the loss of N tokens in chunks moves, if each chunk of logits stays in the cache: lm_head's weight, again and again."""
    chunks = -(-N // rows)
    return 16 * (chunks - 1) * config.vocab_rows * config.n_embd


# %%
for name, config, N in (("stories", GPTConfig(128, 1024, 2, 8, 64), 4096), ("GPT-2 124M", GPTConfig(), 4096)):
    usual = 24 * N * config.vocab_rows
    print(
        f"{name:11} C={config.n_embd}: {usual / 1e9:6.2f} GB in one piece, {chunked_bytes(config, N) / 1e9:6.2f} GB in chunks"
    )

# %% [markdown]
r"""
So for GPT-2 the forecast is: much less memory, and some more time. A rung that costs time is new. It belongs on the ladder all the same, because a batch
that did not fit may fit with it. In chapter 14's `make_step` three lines are new.
They serve both new rungs: "fused loss", which takes `one_pass_loss` on a GPU with bf16 weights, and "chunked loss", which needs float32.
"""

# %%
from collections.abc import Callable

from nanogpt.data import to_device
from nanogpt.labs.ladder.rungs import compile_in_place, for_rungs, precision_of, zipf_batches
from nanogpt.optim import make_optimizer
from nanogpt.precision import LossScaler
from nanogpt.training import train_step

# %%
#| export labs.ladder.rungs
from functools import partial


# %%
#| export labs.ladder.rungs
#| grows make_step
def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    model, precision = GPT(for_rungs(config, on), seed_everything(0)).to(device), precision_of(on)
    how = {"fused": "fused AdamW" in on or None, "compiled": "compile" in on}
    optimizer = make_optimizer(model, 3e-4, precision, betas=(0.9, 0.95), weight_decay=0.1, **how)
    if "compile" in on:
        compile_in_place(model, device)
    if {"fused loss", "chunked loss"} & on:
        loss = one_pass_loss if "fused loss" in on else chunked_loss
        model.head = partial(fused_head, model, loss=loss)
    scaler = LossScaler() if precision == "fp16" else None
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = next(batches)
        batch = to_device(x.numpy(), y.numpy(), device)
        return train_step(model, optimizer, [batch], precision, scaler=scaler)

    return model, step


# %%
grown("make_step")

# %% [markdown]
r"""
## The rung, climbed

Does it pay? We measure complete steps of a small model with a large vocabulary, in pairs: in one piece and in chunks. First the C library gives freed memory
back, as it does by default, then it keeps it, where this machine can do that.
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.labs.ladder.rungs import keep_memory, rungs_up_to, why_not_kept
from nanogpt.model import num_params

device = torch.device("cpu")
small = GPTConfig(block_size=64, vocab_size=40960, n_layer=1, n_head=2, n_embd=128)
skip = ["TF32", "bf16", "fp16", "compile", "bf16 weights"]
usual = rungs_up_to("fused AdamW", [*skip, "kept memory"])
below, above = (make_step(small, on, 4, 64, device)[1] for on in (usual, usual | {"chunked loss"}))
states = 16 * num_params(small)  # weights, moments, and the gradients that a step leaves
peaks = []
with without_warnings_of_cpp():
    for step in (below, above):
        peak_memory(
            step, device
        )  # the first step makes AdamW's moments, and gradients that the next step frees
        peaks.append((states + peak_memory(step, device)) / 2**20)
print(f"peak of a step: {peaks[0]:.0f} MiB, in chunks {peaks[1]:.0f} MiB")
print(f"freed memory goes back: the chunks are {faster(below, above, device, pairs=6, warmup=1)} as fast")
if why_not_kept(device) is None:
    keep_memory()
    print(f"freed memory is kept: the chunks are {faster(below, above, device, pairs=6, warmup=1)} as fast")

# %% [markdown]
r"""
It pays in memory: 105 MiB instead of 185, at the peak of a step. In time nothing is certain here. Where freed memory is kept, a step with chunks is 0.80 times as fast (0.77 to 1.02),
where it goes back, 1.11 times (0.88 to 1.24), and both intervals contain 1. There is a reason for the order of the two. The logits of each step take fresh pages where memory goes back (chapter 13), and a chunk is
small enough to be used again.

From now on `python -m nanogpt ladder` takes this rung on every machine that trains in float32. Elsewhere you can ask for it with
`--skip bf16 fp16`. The forecast prints the memory of each rung, and `--out` writes the peak that was measured.
"""

# %% [markdown]
r"""
## Appendix: the rung's entries

The rung's name and its sentence, its forecast of time and of memory, and where it is left out. A rung that computes in float32 makes no
sense above one that multiplies in 16 bits. There `obstacles` leaves it out, with the reason.
"""

# %%
from nanogpt.labs.ladder.forecast import (
    LARGE,
    LOGIT_BYTES,
    SAVED,
    SCORE_BYTES,
    SHEET,
    flash_share,
    fresh_bytes,
    kernels,
    update_bytes,
    way_of,
)
from nanogpt.labs.ladder.rungs import rungs_up_to, take_along, why_not_compiled, why_not_kept
from nanogpt.labs.roofline.memory import PAGE
from nanogpt.labs.roofline.work import PRODUCTS, step_work
from nanogpt.model import num_params
from nanogpt.precision import READS, why_not
from nanogpt.labs.roofline.sheets import Peak

# %%
#| export labs.ladder.rungs
#| grows RUNGS, BUILDS_ON
RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "fp16": "autocast in float16 with a loss scaler, on a GPU without bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what is between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 13)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer (chapter 10)",
    "fused loss": "the gradient of the logits in their place, in one kernel; on a GPU (chapter 23b)",
    "chunked loss": "never all logits: less memory, at a price in time; in float32 only (chapter 23b)",
}
# without one of them it is another rung
BUILDS_ON = {"bf16 weights": ("bf16", "compile"), "fused loss": ("bf16 weights",)}


# %%
#| export labs.ladder.rungs
#| grows obstacles
def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that are to be skipped, each with the reason."""
    found = {"kept memory": why_not_kept(device), "TF32": why_not("tf32", device)}
    found |= {"bf16": why_not("bf16", device), "compile": why_not_compiled(device)}
    factor = roof.flops.get("bfloat16", 0) / roof.flops["float32"]
    if not found["bf16"] and factor <= 1:
        found["bf16"] = f"bfloat16 products are emulated here: {factor:.2f}× the rate of float32"
    reasons = {n: why for n, why in found.items() if why} | dict.fromkeys(skip, "left out by --skip")
    if device.type != "cuda":
        reasons.setdefault("fp16", f"the ladder tries float16 on CUDA only, not on {device.type}")
    elif "bf16" not in reasons:
        reasons.setdefault("fp16", "bf16 does the same and needs no scaler")
    if device.type != "cuda":
        reasons.setdefault("fused loss", f"its kernel is for CUDA, not for {device.type}")
    halves = [name for name in ("bf16", "fp16") if name not in reasons]
    if halves:
        reasons.setdefault("chunked loss", f"it is for steps in float32, and {halves[0]} is on")
    return take_along(reasons)


# %%
#| export labs.ladder.forecast
#| grows work_seconds
def work_seconds(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds by part of forward and backward on the roofline: chapter 09b's step_work, as the rungs in `on` change it."""
    config, way, word = for_rungs(config, on), way_of(on, roof.device), precision_of(on)
    width = 2 if {"bf16", "fp16"} & on else 4
    flops, nbytes = {}, {}
    for work in step_work(config, B, T, width):
        if work.part != "optimizer":
            flops[work.part] = flops.get(work.part, 0) + work.flops
            nbytes[work.part] = nbytes.get(work.part, 0) + work.nbytes
    if config.flash:
        flops["attention"] *= flash_share(T)
    else:
        nbytes["attention"] += (SCORE_BYTES[way] - 19 * width) * config.n_layer * B * config.n_head * T * T
    nbytes["cross-entropy"] = (4 if "fused loss" in on else LOGIT_BYTES[way]) * B * T * config.vocab_rows
    if "chunked loss" in on:
        nbytes["cross-entropy"] = chunked_bytes(config, B * T)
    if "compile" in on:
        nbytes["residual"] *= 1 / 2 if roof.device == "cuda" else 3 / 4
    if "bf16 weights" in on:  # the stream has two bytes a number, elsewhere four
        for part in ("embedding", "layer norm", "residual"):
            nbytes[part] /= 2
    rate = {part: READS.get(word, word) if part in PRODUCTS else "float32" for part in flops}
    return {part: roof.seconds(flops[part], nbytes[part], rate[part]) for part in flops}


# %%
#| export labs.ladder.forecast
#| grows step_memory
def step_memory(config: GPTConfig, on: set[str], B: int, T: int) -> int:
    """Bytes at the peak of a step with the rungs in `on`, on a GPU; compiled, it can be less."""
    config, N, weights = for_rungs(config, on), B * T, num_params(for_rungs(config, on))
    casts = bool({"bf16", "fp16"} & on) and "bf16 weights" not in on
    channel, score, logit = SAVED["masters" if "bf16 weights" in on else "autocast" if casts else "float32"]
    scores = 0 if config.flash else B * config.n_head * T * T
    kept = config.n_layer * (channel * N * config.n_embd + score * scores)
    # the logits in 16 bits; or they, log-probabilities, the gradients of these and those of the logits
    loss = (2 if "fused loss" in on else logit + 8) * N * config.vocab_rows
    if "chunked loss" in on:
        gradients = (config.vocab_rows + N) * config.n_embd  # of the weight and of x; backward copies both
        loss = 4 * (gradients + max(64 * config.vocab_rows, gradients))
    state = 12 if precision_of(on) in ("float32", "tf32") else 14  # bytes a weight, without gradients
    update = 16 if {"fused AdamW", "bf16 weights"} & on else 20  # in pieces, AdamW makes temporaries
    return max(update * weights, state * weights + kept + loss)


# %%
#| export labs.ladder.forecast
#| grows predict
def predict(
    config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline, fault: float = 0.0, start: float = 0.0
) -> dict[str, float]:
    """Seconds of one step by part, before anything is run. fault: of a fresh page; start: of a kernel."""
    seconds = work_seconds(config, on, B, T, roof)
    for part, moved in update_bytes(config, on).items():
        seconds[part] = moved / roof.bandwidth
    if "kept memory" not in on:
        fresh, logits = fresh_bytes(for_rungs(config, on), B, T), 4 * B * T * for_rungs(config, on).vocab_rows
        if "chunked loss" in on and logits > LARGE:
            fresh -= 4 * logits  # a chunk is small enough to be used again
        seconds["page faults"] = fault * fresh / PAGE
    starts = start * kernels(config, on)
    if roof.device != "cpu":
        starts = max(0.0, starts - sum(seconds.values()))  # hidden while the GPU has work
    return seconds | {"starts": starts}


# %%
#| export labs.ladder.forecast
#| grows predict_ladder
def predict_ladder(sheet: Peak, config: GPTConfig, B: int, T: int, reached=SHEET, start: float = 0.0):
    """{rung: {part: seconds}} from a GPU's data sheet, for the rungs that it can do. reached: Fractions of its rates."""
    rates = {"float32": sheet.float32, "float16": sheet.half}
    cannot = ("kept memory", "TF32", "bf16", "bf16 weights", "fused loss", "chunked loss")
    if sheet.tf32:
        rates |= {"tf32": sheet.tf32, "bfloat16": sheet.half}
        cannot = ("kept memory", "fp16", "chunked loss")
    roof = Roofline("cuda", {name: 1e12 * rate for name, rate in rates.items()}, 1e9 * sheet.bandwidth)
    roof, names = reached.of(roof), [name for name in RUNGS if name not in cannot]
    return {name: predict(config, rungs_up_to(name, cannot), B, T, roof, start=start) for name in names}


# %% [markdown]
r"""
Now we ask for the forecast of the small step and of GPT-2's, on a machine with round numbers, as chapter 14 did:
"""

# %%
example = Roofline("cpu", {"float32": 1e11}, 20e9)
for name, config, T in (("small", small, 64), ("GPT-2 124M", GPTConfig(), 1024)):
    for kept in (True, False):
        skipped = skip if kept else [*skip, "kept memory"]
        below = rungs_up_to("fused AdamW", skipped)
        above = below | {"chunked loss"}
        usual, chunked = (sum(predict(config, on, 4, T, example, 0.5e-6).values()) for on in (below, above))
        what = "kept" if kept else "given back"
        print(f"{name:10} freed memory is {what}: the chunks are {usual / chunked:.2f}× as fast")
    memory = [step_memory(config, on, 4, T) / 2**20 for on in (below, above)]
    print(f"{name:10} peak of a step: {memory[0]:.0f} MiB, in chunks {memory[1]:.0f} MiB")

# %% [markdown]
r"""
The lines with "given back" assume that a fresh page costs 0.5 µs. If the C library gives freed memory back, as it does by default, the logits of each
step take fresh pages (chapter 13). A chunk is small enough to be used again. For the small model this makes the difference. GPT-2 is wide, and
reads its weight again for each chunk, so there the chunks should cost time either way.

How good was it for the small model? Its peaks, 184 and 105 MiB, are within 1 MiB of the measured ones. For the time it said 1.19 and 1.00, and
measured were 1.11 and 0.80. It takes the products of 64 rows to be as fast as those of all rows, so it does not see their price.
"""

# %% [markdown]
r"""
## Checkpoint

The package has gained three losses: `CrossEntropy`, whose kernels keep one number a row, `one_pass_loss`, whose gradient takes the
logits' place, and `chunked_loss`, which never has all logits. The kernels were checked in the interpreter, and `pytest -m gpu` compares
them with PyTorch on a GPU.
The chunked loss was measured on your processor, and nowhere else.
"""

# %% tags=["nbval-ignore-output"]
predictions("23b")

# %%
checkpoint("23b")

# %% [markdown]
r"""
## Exercises

`course exercises release 23` writes these, and those of 23, as a notebook to `released/`; `course check 23` runs their visible checks. None of them needs Triton.

- **23-2** The loss of a stream of logits, 25 minutes: compute it from blocks of columns that are seen once.
- **23-3** A mean of means, 15 minutes: repair a loss in chunks that depends on the size of the chunks.

To explore:

1. Replace the inside of the loop of `ChunkedLoss` by `slope_kernel`. *Check:* gradients as before.
2. The gradient of the weight is added up over all chunks, in float32 also for x and weight in bfloat16. Let `dweight` be in bfloat16 and take
   chunks of one row. After how many rows is the gradient wrong by 1%? *Predict* it from the 8 bits of chapter 10 first.
3. *Predict* from the sizes alone which number of rows gives the smallest peak for GPT-2 (C = 768, V = 50,304, 8,192 rows).

## Further reading

- P.-L. Hsu et al., [*Liger Kernel: efficient Triton kernels for LLM training*](https://arxiv.org/abs/2410.10989), 2024, §3.2 (FusedLinearCrossEntropy).
- E. Wijmans et al., [*Cut your losses in large-vocabulary language models*](https://arxiv.org/abs/2411.09009), 2024: kernels in which a block of logits never leaves
  the fast memory, and which skip blocks whose probabilities are too small to count.
- M. Milakov, N. Gimelshein, [*Online normalizer calculation for softmax*](https://arxiv.org/abs/1805.02867), 2018.
"""
