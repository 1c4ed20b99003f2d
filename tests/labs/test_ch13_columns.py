"""Chapter 13: a model whose weights are stored by columns computes what it did before."""

import torch

from nanogpt.labs.kernels.columns import by_columns
from nanogpt.model import GPT, GPTConfig
from nanogpt.sampling import generate

CONFIG = GPTConfig(block_size=24, vocab_size=61, n_layer=3, n_head=2, n_embd=64)


def test_by_columns_keeps_every_number_and_the_tie():
    model = GPT(CONFIG, generator=torch.Generator().manual_seed(0)).double()
    before = {name: p.clone() for name, p in model.named_parameters()}
    expected = generate(model, [5, 3, 8], 30, temperature=0)
    by_columns(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.stride() == (1, CONFIG.vocab_size)
    assert generate(model, [5, 3, 8], 30, temperature=0) == expected
