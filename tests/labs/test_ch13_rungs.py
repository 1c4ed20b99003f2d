"""Chapter 13: the rungs' names, the ids they train on, and which of them a device cannot do."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from nanogpt.labs.ladder import rungs
from nanogpt.labs.ladder.rungs import RUNGS, obstacles, rungs_up_to, take_along, zipf_batches
from nanogpt.labs.roofline.clock import Roofline

FLOPS = {"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11, "float16": 4e11}
ROOF = Roofline("cpu", FLOPS, 2e10)


def test_rungs_stand_on_each_other():
    names = list(RUNGS)
    for i, name in enumerate(names):
        assert rungs_up_to(name) == set(names[: i + 1])
        assert rungs_up_to(name, ["bf16"]) == set(names[: i + 1]) - {"bf16"}
    assert take_along({"flash": "x"}) == {"flash": "x"}
    for lost in ("bf16", "compile"):
        assert take_along({lost: "x"})["bf16 weights"] == f"it builds on {lost}"
    assert take_along({"bf16": "x", "bf16 weights": "asked"})["bf16 weights"] == "asked"


def test_batches_are_the_same_for_a_seed_and_in_range():
    (x, y), (a, b) = next(zipf_batches(50257, 8, 512, seed=3)), next(zipf_batches(50257, 8, 512, seed=3))
    assert torch.equal(x, a) and torch.equal(y, b) and torch.equal(x[:, 1:], y[:, :-1])
    assert x.min() >= 0 and x.max() < 50257
    counts = torch.bincount(x.flatten(), minlength=4)
    assert counts[0] > counts[1] > counts[3] > 0  # Zipf
    assert not torch.equal(x, next(zipf_batches(50257, 8, 512, seed=4))[0])


def test_kept_memory_is_neither_mapped_apart_nor_given_back(monkeypatch):
    """Here glibc is asked in man 3 mallopt's numbers; chapter 14 counts the page faults that are left."""
    asked = {}
    monkeypatch.setattr(rungs.ctypes, "CDLL", lambda *name: SimpleNamespace(mallopt=asked.__setitem__))
    rungs.keep_memory()
    assert asked == {-4: 0, -1: -1}


# What a device cannot do


def cuda(monkeypatch, capability):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(rungs.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(rungs.shutil, "which", lambda name: name)
    monkeypatch.delenv("CC", raising=False)
    return torch.device("cuda")


def left_out(device, roof, **options) -> set[str]:
    """The rungs of this chapter that are left out; chapter 23b adds one, and tests it there."""
    return set(obstacles(device, roof, **options)) - {"fused loss", "chunked loss"}


def test_a_t4_climbs_with_fp16(monkeypatch):
    t4 = cuda(monkeypatch, (7, 5))
    assert left_out(t4, replace(ROOF, flops={"float32": 8e12, "float16": 65e12})) == {
        "kept memory", "TF32", "bf16", "bf16 weights",
    }  # fmt: skip


def test_an_h100_needs_no_scaler(monkeypatch):
    h100 = cuda(monkeypatch, (9, 0))
    assert left_out(h100, ROOF) == {"kept memory", "fp16"}
    assert left_out(h100, ROOF, skip=["bf16"]) == {"kept memory", "bf16", "bf16 weights"}
