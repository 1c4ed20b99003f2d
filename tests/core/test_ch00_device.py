import pytest
import torch

from nanogpt.device import device_names, pick_device

CPU = torch.device("cpu")


def test_the_device_can_be_chosen_and_a_missing_one_is_named(monkeypatch):
    monkeypatch.setenv("NANOGPT_DEVICE", "cpu")
    assert pick_device() == CPU
    assert "cpu" in device_names()
    monkeypatch.setenv("NANOGPT_DEVICE", "tpu")
    assert pick_device("cpu") == CPU, "an argument wins over the variable"
    with pytest.raises(ValueError, match=r"tpu.*cpu"):
        pick_device()


def test_a_number_that_no_gpu_has_is_one_clear_error(monkeypatch):
    """On a machine with two GPUs, too, where an earlier pick_device returned cuda:7."""
    monkeypatch.delenv("NANOGPT_DEVICE", raising=False)
    for gpus in (0, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
        for name in ("cuda:7", "cuda:x"):
            with pytest.raises(ValueError, match=name):
                pick_device(name)
    assert pick_device() == pick_device("cuda") == torch.device("cuda"), "the best one first"
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    assert device_names() == ["cuda", "cuda:0", "cuda:1", *device_names()[3:]] and device_names()[-1] == "cpu"
