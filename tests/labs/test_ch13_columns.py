"""Chapter 13: a linear layer that reads its weights by columns computes what it did before."""

import pytest
import torch

from nanogpt.labs.kernels.columns import ColumnLinear, by_columns
from nanogpt.model import GPT, GPTConfig
from nanogpt.sampling import generate

CONFIG = GPTConfig(block_size=24, vocab_size=61, n_layer=3, n_head=2, n_embd=64)


@pytest.mark.parametrize("rows", [64, 2**13 + 1])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_by_columns_is_the_layer(rows, bias):
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, rows, bias=bias).double()
    x = torch.randn(2, 3, 96).double()
    with torch.no_grad():
        expected, weight = layer(x), layer.weight.clone()
        by_columns(torch.nn.Sequential(layer))
        assert type(layer) is ColumnLinear and torch.equal(layer.weight, weight)
        assert layer.weight.stride() == (1, rows)
        threads = torch.get_num_threads()
        try:
            for n in (1, 2, 3, 5):
                torch.set_num_threads(n)
                for part in (slice(0, 1), slice(0, 2)), (slice(0, 1), slice(0, 1)), (0, 0), (0, slice(1, 2)):
                    assert layer(x[part]).shape == expected[part].shape
                    assert torch.allclose(layer(x[part]), expected[part], atol=1e-12)
        finally:
            torch.set_num_threads(threads)


def test_by_columns_keeps_every_number_and_the_tie():
    model = GPT(CONFIG, generator=torch.Generator().manual_seed(0)).double()
    before = {name: p.clone() for name, p in model.named_parameters()}
    expected = generate(model, [5, 3, 8], 30, temperature=0)
    by_columns(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert model.lm_head.weight is model.transformer.wte.weight
    assert generate(model, [5, 3, 8], 30, temperature=0) == expected
