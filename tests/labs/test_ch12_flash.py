"""Laws of attention in tiles: equal to the T×T matrix in values and gradients, in memory linear in T."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.labs.kernels.flash import absorb, flash_attention
from nanogpt.model import attention_weights


def manual(q, k, v):
    return attention_weights(q, k) @ v


def qkv(*shape, seed=0, scale=1.0, dtype=torch.float32, device="cpu"):
    g = torch.Generator().manual_seed(seed)
    return [(scale * z).to(device, dtype).requires_grad_() for z in torch.randn(3, *shape, generator=g)]


def gradients(attention, tensors, seed=9):
    out = attention(*tensors)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out)
    return out, torch.autograd.grad(out, tensors, grad)


@given(st.integers(1, 60), st.randoms(use_true_random=False), st.sampled_from([0.01, 1.0, 300.0]))
@settings(max_examples=60, deadline=None)
def test_online_softmax_equals_softmax_for_any_blocks_in_any_order(n, random, scale):
    g = torch.Generator().manual_seed(n)
    scores, values = scale * torch.randn(3, n, generator=g), torch.randn(n, 5, generator=g)
    left, blocks = list(range(n)), []
    random.shuffle(left)
    while left:  # blocks of unequal sizes, of keys in any order
        size = random.randint(1, len(left))
        blocks.append(left[:size])
        left = left[size:]
    m, total, o = torch.full((3, 1), -math.inf), torch.zeros(3, 1), torch.zeros(3, 5)
    for keys in blocks:
        m, total, o = absorb(scores[:, keys], values[keys], m, total, o)
    torch.testing.assert_close(o / total, scores.softmax(-1) @ values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(m + total.log(), scores.logsumexp(-1, keepdim=True), rtol=1e-5, atol=1e-5)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 50), st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_equal_the_manual_version(T, d, block, scale):
    tensors = qkv(2, 3, T, d, seed=T * 10 + d, scale=scale, dtype=torch.float64)
    ours, ours_grads = gradients(lambda *z: flash_attention(*z, block), tensors)
    expected, expected_grads = gradients(manual, tensors)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)
    for a, b in zip(ours_grads, expected_grads):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9 * max(1, scale**2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_in_sixteen_bits_out_summed_in_float32(dtype):
    tensors = qkv(1, 2, 200, 16, dtype=dtype)
    exact, exact_grads = gradients(manual, [z.detach().double().requires_grad_() for z in tensors])
    ours, ours_grads = gradients(lambda *z: flash_attention(*z, 32), tensors)
    assert ours.dtype == dtype and all(z.dtype == dtype for z in ours_grads)
    ulp = torch.finfo(dtype).eps
    assert (ours.double() - exact).abs().max() <= 0.51 * ulp * exact.abs().max(), "only the result is rounded"
    for a, b in zip(ours_grads, exact_grads):
        assert (a.double() - b).norm() < 2 * ulp * b.norm()


def test_autocast_does_not_reach_the_tiles():
    tensors = qkv(1, 2, 50, 16)
    plain, plain_grads = gradients(lambda *z: flash_attention(*z, 16), tensors)
    with torch.autocast("cpu", torch.bfloat16):
        ours, ours_grads = gradients(lambda *z: flash_attention(*z, 16), tensors)
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    torch.testing.assert_close(ours_grads, plain_grads, rtol=0, atol=0)


def test_saves_inputs_output_and_logsumexp_and_nothing_else():
    q, k, v = qkv(1, 2, 256, 16)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        flash_attention(q, k, v, 64)
    assert sorted(saved) == sorted([q.shape] * 4 + [(1, 2, 256, 1)])


@pytest.mark.parametrize("block", [256, 64, 50])
def test_future_tiles_are_skipped_in_both_passes(block):
    def flops(attention):
        with FlopCounterMode(display=False) as counter:
            attention(*qkv(1, 256, 16)).sum().backward()
        return counter.get_total_flops()

    edges = [*range(0, 256, block), 256]
    sizes = [b - a for a, b in pairwise(edges)]
    tiles = sum(a * b for i, a in enumerate(sizes) for b in sizes[: i + 1])
    assert flops(lambda *z: flash_attention(*z, block)) == 7 * 2 * tiles * 16
    assert flops(manual) == 6 * 2 * 256**2 * 16


def test_no_tensor_grows_with_the_square_of_T():
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **kwargs or {})
            for t in torch.utils._pytree.tree_leaves(out):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.untyped_storage().nbytes())
            return out

    q, k, v = qkv(1, 512, 4)
    with Sizes():
        flash_attention(q, k, v, 32).sum().backward()
    assert largest <= 512 * 4 * 4


@pytest.mark.parametrize(
    ("shapes", "block"),
    [([(2, 5, 4), (2, 6, 4), (2, 6, 4)], 128), ([(5, 3)] * 3, 0)],
)
def test_shapes_that_do_not_fit_and_a_block_without_rows_are_refused(shapes, block):
    with pytest.raises(ValueError, match="shapes" if block else "block=0"):
        flash_attention(*(torch.zeros(shape) for shape in shapes), block)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu():
    tensors = qkv(2, 4, 300, 64, device="cuda")
    ours, ours_grads = gradients(flash_attention, tensors)
    expected, expected_grads = gradients(manual, tensors)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(ours_grads, expected_grads, rtol=1e-3, atol=1e-3)
