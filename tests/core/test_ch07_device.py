import pytest
import torch

from nanogpt.device import pick_scale, seed_everything

CPU = torch.device("cpu")


def test_scale_follows_the_device_unless_told(monkeypatch):
    monkeypatch.delenv("NANOGPT_SCALE", raising=False)
    assert pick_scale(CPU) == "laptop"
    assert pick_scale(torch.device("cuda")) == "gpu"
    monkeypatch.setenv("NANOGPT_SCALE", "ci")
    assert pick_scale(CPU) == "ci"
    monkeypatch.setenv("NANOGPT_SCALE", "huge")
    with pytest.raises(ValueError, match="huge"):
        pick_scale(CPU)


def test_a_generator_of_ones_own_cannot_be_disturbed_and_begins_as_the_global_one():
    """The docstring warns of it; whoever changes one of them must change the warning, and every committed number."""
    generator = seed_everything(7)
    undisturbed = torch.randn(5, generator=torch.Generator().manual_seed(7))
    torch.randn(100)
    assert torch.equal(torch.randn(5, generator=generator), undisturbed)
    seed_everything(7)
    assert torch.equal(torch.randn(5), undisturbed), "the global generator is seeded as well"
