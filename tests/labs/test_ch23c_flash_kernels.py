"""Laws of the flash kernels: chapter 12's attention and gradients, nothing outside is touched, no races, kept by compile."""

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")

from course.figures.triton_here import traced, watch
from nanogpt.labs.kernels import flash
from nanogpt.labs.kernels.flash_kernels import (
    BLOCK,
    FlashKernels,
    flash_backward,
    flash_kernel,
    kernel_attention,
)
from nanogpt.labs.kernels.kernels import guarded, interpret


def draw(*shape, dtype=torch.float64, device="cpu", count=3):
    g = torch.Generator().manual_seed(math.prod(shape))
    return [z.to(device).requires_grad_() for z in torch.randn(count, *shape, generator=g, dtype=dtype)]


def same(ours, theirs, tensors, tolerance):
    """Both give the same output, and the same gradients of a loss that weighs each number differently."""
    outs = ours(*tensors), theirs(*tensors)
    weights = torch.linspace(-1, 1, outs[0].numel(), device=outs[0].device).view_as(outs[0])
    grads = [torch.autograd.grad((weights * out).sum(), tensors) for out in outs]
    torch.testing.assert_close(*outs, rtol=tolerance, atol=tolerance)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, 16), (2, BLOCK, 16), (1, 2, BLOCK + 1, 64), (2, 3 * BLOCK - 1, 16)])
def test_results_and_gradients_are_chapter_12s_and_no_address_has_two_writers(shape):
    with watch() as seen:
        same(kernel_attention, flash.flash_attention, draw(*shape), 1e-7)  # scale is a float32 there
    assert seen.loaded and not seen.shared


def test_a_view_is_read_in_its_own_order():
    q, k, v = draw(5, 2, 16)
    same(
        lambda *z: kernel_attention(*(x.transpose(0, 1) for x in z)),
        lambda *z: flash.flash_attention(*(x.transpose(0, 1) for x in z)),
        [q, k, v],
        1e-9,
    )


def test_between_guards_each_tile_is_loaded_once_and_nothing_else_is_touched():
    """Heads and a tail that do not fit, between guards of nan."""
    heads, T, D, block = 2, 20, 16, 16
    q, k, v = (z.detach() for z in draw(heads, T, D, dtype=torch.float32))
    memory, out = guarded(torch.zeros_like(q), fill=-7.0)
    with watch() as seen:
        inputs = [guarded(z)[1] for z in (q, k, v)]
        interpret(flash_kernel, (2, heads), *inputs, out, torch.empty(heads, T, 1), T, 0.25, D=D, BLOCK=block)
    torch.testing.assert_close(out, flash.flash_forward(q, k, v, block)[0], rtol=0, atol=1e-5)
    assert (memory != -7.0).sum() == q.numel() and not seen.shared
    assert seen.loaded == q.nbytes + 2 * 4 * D * heads * (block + T)


def test_the_compiler_keeps_the_operators_and_sees_the_kernels():
    shape = 1, 2, 40, 16

    def model(q, k, v):
        return kernel_attention(2 * q, k, v).sin()

    assert traced(model, *[shape] * 3) == ["aten.mul.Tensor", "nanogpt.flash_forward", "aten.sin"]
    assert "flash_kernel" in traced(model, *[shape] * 3, inside=True)
    backward = traced(flash_backward, *[shape] * 5, shape[:-1], inside=True)
    assert backward[-2:] == ["keys_backward_kernel", "rows_backward_kernel"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("T", [1, 33, 200])
def test_on_a_gpu_it_is_pytorchs_attention_also_compiled(T, dtype):
    def pytorchs(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    tensors = [z.to(dtype).detach().requires_grad_() for z in draw(2, 3, T, 64, device="cuda")]
    tolerance = 1e-3 if dtype == torch.float32 else 2e-2
    same(kernel_attention, pytorchs, tensors, tolerance)
    same(torch.compile(kernel_attention, fullgraph=True), pytorchs, tensors, tolerance)
    assert FlashKernels.apply(*tensors).dtype == dtype
