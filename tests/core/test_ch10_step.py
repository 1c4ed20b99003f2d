"""Chapter 07's step and held-out loss, grown by chapter 10: precision."""

import numpy as np
import pytest
import torch

from nanogpt.evaluate import evaluate
from nanogpt.model import GPT, GPTConfig
from nanogpt.training import scale_init, train_step

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def one_batch(B=2, T=16, seed=0):
    x = torch.randint(0, 40, (B, T + 1), generator=torch.Generator().manual_seed(seed))
    return x[:, :-1], x[:, 1:]


@pytest.mark.parametrize("precision, dtype", [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_word_for_precision_reaches_the_products(precision, dtype):
    model, seen = new_model(), []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda module, x, y: seen.append(y.dtype))
    for _ in range(2):
        train_step(model, torch.optim.AdamW(model.parameters()), [one_batch()], precision)
    evaluate(model, [np.array([EOT, 1, 2, 3, 4, 5], dtype=np.uint16)], EOT, precision=precision)
    assert set(seen) == {dtype} and len(seen) == 3
    assert all(p.dtype == torch.float32 for p in model.parameters())
