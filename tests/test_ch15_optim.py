import pytest
import torch

from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import cosine, decay_groups, make_optimizer, wsd

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)


def test_groups_hold_every_parameter_once():
    model = GPT(CONFIG, torch.Generator().manual_seed(0))
    decayed, rest = decay_groups(model, 0.1)
    assert {id(p) for p in decayed["params"] + rest["params"]} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("schedule", [cosine, wsd])
def test_a_schedule_rises_and_falls(schedule):
    rates = [schedule(step, 100, warmup=10) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == pytest.approx(1) and rates[-1] < 0.11


def test_masters_have_groups_too():
    model = GPT(CONFIG, torch.Generator().manual_seed(0))
    optimizer = make_optimizer(model, 1e-3, "bf16-masters", weight_decay=0.1)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
