"""Laws of causal self-attention: what no correct implementation can break."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.model import CausalSelfAttention, attention_weights, head_size

FLASH = pytest.mark.parametrize("flash", [False, True], ids=["manual", "flash"])


def make(n_embd=24, n_head=3, seed=0, **options):
    torch.manual_seed(seed)
    defaults = {"dropout": 0.0, "bias": True, "flash": False}
    return CausalSelfAttention(SimpleNamespace(n_embd=n_embd, n_head=n_head, **defaults | options))


def noise(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 1000), st.sampled_from([0.1, 1.0, 30.0]))
@settings(max_examples=30, deadline=None)
def test_rows_are_weights_over_the_past(T, d, seed, scale):
    q, k = scale * noise(2, 2, 3, T, d, seed=seed)
    weights = attention_weights(q, k)
    assert weights.shape == (2, 3, T, T)
    assert (weights >= 0).all()
    assert weights.triu(1).eq(0).all(), "a query looks at a later key"
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, T))


def test_weights_equal_a_loop_over_positions():
    q, k = noise(2, 7, 5)
    for t in range(7):
        exp = torch.tensor([torch.exp(q[t] @ k[s] / 5**0.5) for s in range(t + 1)])
        torch.testing.assert_close(attention_weights(q, k)[t, : t + 1], exp / exp.sum())


@FLASH
@given(st.integers(0, 9), st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_the_future_does_not_reach_the_past(flash, t, seed):
    layer, x = make(flash=flash), noise(2, 10, 24, seed=seed)
    before = layer(x)
    x[:, t] += 3 * noise(2, 24, seed=seed + 1)
    after = layer(x)
    torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-6)
    assert (after[:, t:] - before[:, t:]).abs().amax(-1).gt(1e-4).all(), "and it reaches all that follows"


@FLASH
def test_heads_computed_apart_equal_heads_computed_together(flash):
    layer, x = make(flash=flash), noise(2, 7, 24)
    d, C = layer.head_size, 24
    apart = []
    for first in range(0, C, d):
        rows = [slice(first + part * C, first + part * C + d) for part in range(3)]
        q, k, v = (x @ layer.c_attn.weight[these].T + layer.c_attn.bias[these] for these in rows)
        apart.append(attention_weights(q, k) @ v)
    torch.testing.assert_close(layer.c_proj(torch.cat(apart, -1)), layer(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("T", [1, 2, 17])
def test_flash_equals_manual_with_its_gradients(bias, T):
    manual, flash = make(bias=bias), make(bias=bias, flash=True)  # one seed, the same weights
    inputs = [noise(2, T, 24).requires_grad_() for _ in range(2)]
    outputs = [layer(x) for layer, x in zip((manual, flash), inputs)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-5)
    for a, b in zip(manual.parameters(), flash.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@FLASH
def test_dropout_hits_the_weights_and_the_output_in_training_only(flash):
    """With one position, values of one and c_proj the identity, what is left has been doubled twice."""
    layer = make(dropout=0.5, flash=flash)
    with torch.no_grad():
        layer.c_attn.bias.fill_(1.0)
        layer.c_attn.weight.zero_()
        layer.c_proj.weight.copy_(torch.eye(24))
        layer.c_proj.bias.zero_()
    x = noise(1000, 1, 24)
    assert set(layer(x).unique().tolist()) == {0.0, 4.0}
    assert layer.eval()(x).eq(1.0).all()


def test_heads_that_do_not_fit_are_one_clear_error():
    with pytest.raises(ValueError, match=r"n_embd=24 .*n_head=5"):
        make(n_head=5)
    assert head_size(SimpleNamespace(n_embd=768, n_head=12)) == 64
