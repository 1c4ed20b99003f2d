"""Laws of the fused losses: PyTorch's loss and gradients, -100 does not count, little memory, no number from outside."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.gpt.model import next_token_loss
from nanogpt.speed.fused_loss import CrossEntropy, chunked_loss, loss_and_slope, loss_kernel
from nanogpt.speed.kernels import GUARD, guarded, interpret
from nanogpt.speed.work import peak_memory, saved_bytes

CPU = torch.device("cpu")


def draw(N, V, dtype=torch.float64, device="cpu", scale=3.0):
    """Logits (N, V) and targets (N,); of three or more targets, the second does not count."""
    g = torch.Generator().manual_seed(N + V)
    logits, targets = scale * torch.randn(N, V, generator=g, dtype=dtype), torch.randint(V, (N,), generator=g)
    if N > 2:
        targets[1] = -100
    return logits.to(device).requires_grad_(), targets.to(device)


def same(ours, theirs, tensors, tolerance):
    """Both give the same loss, and the same gradients of a multiple of it."""
    losses = ours(*tensors), theirs(*tensors)
    grads = [torch.autograd.grad(2.5 * loss, tensors) for loss in losses]
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.sampled_from([0.1, 300.0]))
def test_chunks_of_any_size_give_the_models_loss_and_gradients(T, V, rows, scale):
    targets = draw(T, V)[1]
    g = torch.Generator().manual_seed(T)
    x, weight = (scale * torch.randn(*s, 4, generator=g, dtype=torch.float64) for s in ((1, T), (V,)))
    tensors = x.requires_grad_(), weight.requires_grad_()
    tolerance = 1e-9 * max(1, scale**2)
    same(
        lambda x, w: chunked_loss(x, w, targets[None], rows),
        lambda x, w: next_token_loss(x @ w.T, targets[None]),
        tensors,
        tolerance,
    )


def test_the_slope_is_written_over_the_logits_and_no_target_means_no_slope():
    logits, targets = draw(5, 7)
    memory = logits.detach().clone()
    loss, slope = loss_and_slope(memory, targets)
    assert slope.data_ptr() == memory.data_ptr()
    expected = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, torch.autograd.grad(expected, logits)[0])
    assert not slope[1].any()


def test_the_peak_of_chunks_does_not_grow_with_the_rows():
    def peak(N, rows):
        x, weight = (torch.randn(*s, 8).requires_grad_() for s in ((1, N), (4096,)))
        targets = torch.randint(4096, (1, N))
        return peak_memory(lambda: chunked_loss(x, weight, targets, rows).backward(), CPU)

    few, many, whole = peak(64, 32), peak(256, 32), peak(256, 256)
    assert many < 1.1 * few
    assert whole > 5 * many


def test_under_autocast_the_chunks_stay_in_float32():
    x, weight = torch.randn(1, 6, 8), torch.randn(20, 8)
    targets = torch.randint(20, (1, 6))
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_loss(x, weight, targets, 4)
    torch.testing.assert_close(loss, next_token_loss(x @ weight.T, targets))


class TestKernel:
    @pytest.fixture(autouse=True)
    def triton_here(self):
        pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")
        from course.machine import triton_here

        return triton_here

    @pytest.mark.parametrize(("N", "V"), [(1, 1), (4, 8), (3, 13), (2, 1030)])
    def test_results_and_gradients_are_pytorchs(self, triton_here, N, V):
        logits, targets = draw(N, V)
        with triton_here.watch() as seen:
            same(
                lambda z: CrossEntropy.apply(z, targets),
                lambda z: F.cross_entropy(z, targets),
                [logits],
                1e-9,
            )
        assert seen.loaded and not seen.shared
        assert saved_bytes(lambda: CrossEntropy.apply(logits, targets), exclude=[logits, targets]) == 8 * N

    def test_gradcheck(self):
        logits, targets = draw(4, 5)
        assert torch.autograd.gradcheck(lambda z: CrossEntropy.apply(z, targets), logits)

    def test_logits_of_hundreds_do_not_overflow(self):
        logits, targets = draw(3, 40, torch.float32, scale=300.0)
        same(lambda z: CrossEntropy.apply(z, targets), lambda z: F.cross_entropy(z, targets), [logits], 1e-5)

    def test_float16_is_computed_in_float32(self):
        logits, targets = (z.detach() for z in draw(4, 9, torch.float32))
        half = logits.half().requires_grad_()
        loss = CrossEntropy.apply(half, targets)
        torch.testing.assert_close(loss, F.cross_entropy(half.float(), targets))
        assert loss.dtype == torch.float32 and torch.autograd.grad(loss, half)[0].dtype == torch.float16

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ('V, other=-float("inf")', "V, other=0.0"),
            ("total * tl.exp(m - larger) +", "total +"),
            (", mask=target >= 0, other=0.0", ""),
            ("cols < V", "cols <= V"),
            ("range(0, V, BLOCK)", "range(0, V - 1, BLOCK)"),
            ("lse - right", "lse + right"),
        ],
    )
    def test_a_wrong_kernel_is_found(self, triton_here, right, wrong):
        assert self.error(triton_here, loss_kernel) is None
        assert self.error(triton_here, triton_here.altered(loss_kernel, right, wrong))

    @staticmethod
    def error(triton_here, kernel):
        """The chapter's check: PyTorch's losses for logits between guards of nan, and no byte too many."""
        N, V = 5, 17
        logits, targets = (z.detach() for z in draw(N, V, torch.float32))
        places = torch.full((N + 2 * GUARD,), -1)
        places[GUARD:-GUARD] = targets
        memory, loss = guarded(torch.zeros(N), fill=-7.0)
        with triton_here.watch() as seen:
            arguments = guarded(logits)[1], places[GUARD:-GUARD], loss, torch.empty(N), V
            interpret(kernel, (N,), *arguments, BLOCK=8)
        expected = F.cross_entropy(logits, targets, reduction="none")
        if not torch.allclose(loss, expected, rtol=1e-4, atol=1e-4):
            return "wrong losses"
        needed = 4 * N * V + 8 * N + 4 * int((targets >= 0).sum())
        outside = (memory != -7.0).sum() != N
        return None if seen.loaded == needed and not outside else "the wrong numbers"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("N", "V"), [(1, 1), (3, 13), (64, 50257)])
def test_on_a_gpu_both_are_pytorchs(N, V):
    logits, targets = draw(N, V, torch.float32, "cuda")
    same(lambda z: CrossEntropy.apply(z, targets), lambda z: F.cross_entropy(z, targets), [logits], 1e-4)
    x, weight = (torch.randn(*s, 64, device="cuda").requires_grad_() for s in ((1, N), (V,)))
    same(
        lambda x, w: chunked_loss(x, w, targets[None], 16),
        lambda x, w: next_token_loss(x @ w.T, targets[None]),
        [x, weight],
        1e-3 / math.sqrt(N),
    )
