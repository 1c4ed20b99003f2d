"""Cross-entropy without log-probabilities: as Triton kernels, and in chunks of rows in plain PyTorch.

Exported from notebooks/23b_fused_loss.ipynb.
"""

import torch
from torch import Tensor
from torch._inductor.runtime.triton_compat import tl, triton
from torch.library import custom_op

from nanogpt.labs.kernels.kernels import launch, power_of_two, wide
from nanogpt.model import GPT


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


@triton.jit
def loss_backward_kernel(g_ptr, logits_ptr, targets_ptr, lse_ptr, d_ptr, V, BLOCK: tl.constexpr):
    """The gradient of one block of one row of logits: g · (softmax − 1 at the target). (i, j): block j of row i."""
    row, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, at = cols < V, row.to(tl.int64) * V + cols
    p = tl.exp(wide(tl.load(logits_ptr + at, mask=inside)) - tl.load(lse_ptr + row))
    hit = tl.where(cols == tl.load(targets_ptr + row), 1.0, 0.0)
    tl.store(d_ptr + at, tl.load(g_ptr + row) * (p - hit), mask=inside)


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


def chunked_loss(x: Tensor, weight: Tensor, targets: Tensor, rows: int = 64) -> Tensor:
    """next_token_loss(x @ weight.T, targets) in memory for `rows` rows of logits. x (B, T, C), weight (V, C).

    Multiplies in the dtype of x and weight, also under autocast, and adds up in float32 at least; -100 does not count.
    """
    with torch.autocast(x.device.type, enabled=False):
        return ChunkedLoss.apply(x.flatten(0, 1), weight, targets.flatten(), rows)


def fused_head(model: GPT, x: Tensor, targets=None, loss=chunked_loss) -> tuple[Tensor | None, Tensor | None]:
    """GPT.head whose loss makes the logits itself: (None, loss), or without targets (logits, None). x (B, T, C)."""
    if targets is None:
        return GPT.head(model, x)
    return None, loss(model.transformer.ln_f(x), model.lm_head.weight, targets)
