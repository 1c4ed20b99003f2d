"""The peak of memory: what the profiler sees on a CPU, and what a training step needs at its peak."""

import pytest
import torch

from nanogpt.labs.roofline.memory import activation_bytes, memory_levels, peak_memory
from nanogpt.model import GPT, GPTConfig

CPU = torch.device("cpu")


def test_peak_memory_forgets_what_an_earlier_call_kept():
    kept = []
    first, second = (peak_memory(lambda: kept.append(torch.zeros(2**18)), CPU) for _ in range(2))
    assert first == second == 2**20


def test_levels_rise_and_fall_and_end_at_what_is_kept():
    kept = []

    def call():
        kept.append(torch.zeros(2**16))
        torch.zeros(2**18)

    levels = [level for _, level in memory_levels(call)]
    assert levels == [2**18, 2**18 + 2**20, 2**18]


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "manual"])
@pytest.mark.parametrize("held", [True, False], ids=["logits held", "logits let go"])
def test_the_peak_of_a_step_is_activations_and_tables_of_the_loss(flash, held):
    """The gradients of the log-probabilities and of the logits meet in the loss's backward pass; logits, if held."""
    B, T, vocab_size = 2, 32, 512
    config = GPTConfig(64, vocab_size, n_layer=4, n_head=4, n_embd=64, flash=flash)
    model, idx = GPT(config), torch.randint(vocab_size, (2, B, T), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        out = model(*idx)
        loss = out[1]
        if not held:
            del out
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    made = activation_bytes(config, B, T) - idx.nbytes
    assert peak_memory(step, CPU) == pytest.approx(made + (2 + held) * 4 * B * T * vocab_size, abs=100)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_memory_counts_above_what_is_held():
    held = torch.zeros(2**20, device="cuda")
    assert peak_memory(lambda: torch.zeros(2**18, device="cuda"), held.device) == 2**20
