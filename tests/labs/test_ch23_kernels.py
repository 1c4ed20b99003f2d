"""Laws of the Triton kernels, in the interpreter: PyTorch's results and gradients, nothing outside is touched, no races."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")

from course.figures.triton_here import watch
from nanogpt.labs.kernels.kernels import AddNorm, BiasGELU

SHAPES = [(1, 1), (3, 7), (17, 65), (2, 5, 64)]


def inputs(*shapes, dtype=torch.float64, device="cpu"):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=g, dtype=dtype).to(device).requires_grad_() for s in shapes]


def pytorchs_norm(x, r, weight, bias):
    return x + r, F.layer_norm(x + r, x.shape[-1:], weight, bias)


def gelu(x, bias):
    return F.gelu(x + bias, approximate="tanh")


def same(ours, theirs, tensors, tolerance):
    """Both give the same tensors and gradients, also for a loss that reads each result differently."""
    grads = []
    for function in (ours, theirs):
        outs = function(*tensors)
        outs = outs if isinstance(outs, tuple) else (outs,)
        loss = sum((y * (i + y.detach().cos())).sum() for i, y in enumerate(outs))
        grads.append([*outs, *torch.autograd.grad(loss, tensors)])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients_are_pytorchs_and_no_address_has_two_writers(shape):
    with watch() as seen:
        same(BiasGELU.apply, gelu, inputs(shape, shape[-1:]), 1e-9)
    assert seen.loaded and not seen.shared
    with watch() as seen:
        same(AddNorm.apply, pytorchs_norm, inputs(shape, shape, shape[-1:], shape[-1:]), 1e-8)
    assert seen.loaded and not seen.shared


def test_a_view_is_read_in_its_own_order():
    x, bias = inputs((6, 4), (6,))
    same(lambda x, b: BiasGELU.apply(x.T, b), lambda x, b: gelu(x.T, b), [x, bias], 1e-9)


def test_bfloat16_is_refused_by_the_interpreter():
    x, bias = (z.detach().bfloat16() for z in inputs((4, 9), (9,)))
    with pytest.raises(TypeError, match="issue 11604"):
        BiasGELU.apply(x, bias)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("shape", SHAPES)
def test_on_a_gpu_they_are_pytorchs(shape):
    options = {"dtype": torch.float32, "device": "cuda"}
    same(BiasGELU.apply, gelu, inputs(shape, shape[-1:], **options), 1e-4)
    same(AddNorm.apply, pytorchs_norm, inputs(shape, shape, shape[-1:], shape[-1:], **options), 1e-3)
