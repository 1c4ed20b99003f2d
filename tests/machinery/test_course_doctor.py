"""`course doctor`: this machine is ready, its arithmetic is right, its files are of one vocabulary, and an unused GPU is told."""

import json
import math
import os

import pytest
import torch

from course.machine import doctor
from course.machine.doctor import GREEN, RED, YELLOW, Finding
from course.notebooks import trust
from course.notebooks.trust import disagreement, trusted_environment
from course.paths import CourseError


def test_this_machine_is_not_red(capsys):
    assert doctor.doctor() == 0, capsys.readouterr().out


@pytest.mark.parametrize("colour, code", [(GREEN, 0), (YELLOW, 0), (RED, 1)])
def test_only_red_fails(monkeypatch, colour, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding(colour, "x", "text", "do this")]),))
    assert doctor.doctor() == code


def test_a_check_that_breaks_is_a_finding(monkeypatch, capsys):
    def broken():
        raise RuntimeError("half installed")
        yield

    monkeypatch.setattr(doctor, "CHECKS", [broken])
    assert doctor.doctor() == 1
    assert "half installed" in capsys.readouterr().out


def test_the_self_check_agrees_with_itself_and_sees_a_wrong_step(monkeypatch):
    cpu = torch.device("cpu")
    assert disagreement(cpu) == 0
    step = trust.training_step
    for factor in (1.01, math.nan):
        steps = iter([step, lambda device, factor=factor: [loss * factor for loss in step(device)]])
        monkeypatch.setattr(trust, "training_step", lambda device, steps=steps: next(steps)(device))
        assert disagreement(cpu) > trust.TOLERANCE


def test_a_device_that_disagrees_is_not_used(monkeypatch, capsys):
    monkeypatch.setattr("nanogpt.device.pick_device", lambda: torch.device("meta"))
    monkeypatch.setattr(trust, "disagreement", lambda device: 0.02)
    assert trusted_environment()["NANOGPT_DEVICE"] == "cpu"
    assert "staying on the CPU" in capsys.readouterr().err
    monkeypatch.setattr(trust, "disagreement", lambda device: 1e-6)
    assert trusted_environment() == dict(os.environ)


@pytest.mark.parametrize("variable, value", [("NANOGPT_DEVICE", "tpu"), ("NANOGPT_SCALE", "huge")])
def test_an_impossible_wish_is_one_red_line_with_its_own_remedy(monkeypatch, capsys, variable, value):
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(doctor, "CHECKS", [doctor.device, doctor.compiler, doctor.arithmetic])
    assert doctor.doctor() == 1
    red = [line for line in capsys.readouterr().out.splitlines() if line.startswith(RED)]
    assert len(red) == 1 and value in red[0] and red[0].endswith(f"unset {variable}")
    if variable == "NANOGPT_DEVICE":
        with pytest.raises(CourseError, match=value):
            trusted_environment()


def test_files_of_different_vocabularies_are_red(monkeypatch, tmp_path):
    """Chapter 01 with VOCAB = 600, once: every id of the stories and of the model then means something else."""
    monkeypatch.setattr(doctor, "BUILT", tmp_path)
    assert list(doctor.built()) == [], "nothing is there yet"
    sizes = {"a": 1023, "b": 599, "c": 1023}

    def colour_with(tokenizer: str, stories: str, model: str) -> str:
        saved = {"tokenizer.json": tokenizer, "stories/manifest.json": stories, "model/tokenizer.json": model}
        for file, mark in saved.items():
            held = {"fingerprint": mark * 64, "vocab": [mark] * sizes[mark], "special": ["<|endoftext|>"]}
            if "manifest" in file:
                held = {"fingerprint": mark * 64, "vocab_size": sizes[mark] + 1}
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(json.dumps(held))
        (found,) = doctor.built()
        return found.colour

    assert colour_with("a", "a", "a") == GREEN
    assert colour_with("b", "a", "a") == RED
    assert colour_with("a", "a", "c") == RED, "as many tokens, but others"
    assert colour_with("b", "b", "b") == RED, "one vocabulary, but rows are too short for it"
    (tmp_path / "stories/manifest.json").write_text("{")
    (found,) = doctor.built()
    assert "tokenizer.json has 600 tokens (bbbbbbbb), stories has 0 tokens (damaged)" in found.text
    assert "`course run 01 07`" in found.remedy


CU129 = "--index-url https://download.pytorch.org/whl/cu129"

NEEDS_580 = "CUDA 13 needs driver 580 or newer"


@pytest.mark.parametrize(
    "driver, cuda, hidden, text, remedy",
    [
        ("535.104.05", None, None, "the CPU build", "--force-reinstall -c constraints.txt torch"),
        ("535.104.05", "13.0", None, NEEDS_580, CU129),
        ("580.82.07", "13.0", None, "torch.cuda.is_available() is False", "nvidia-smi"),
        ("version unknown", "13.0", None, "torch.cuda.is_available() is False", "nvidia-smi"),
        ("580.82.07", "13.0", "-1", "CUDA_VISIBLE_DEVICES='-1' hides it", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_gpu_that_this_pytorch_cannot_use_is_told(monkeypatch, driver, cuda, hidden, text, remedy):
    """With the driver there, the line about the CPU does not stand alone."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(doctor, "nvidia_gpu", lambda: True)
    monkeypatch.setattr(doctor, "driver", lambda: driver)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found, second = doctor.device()
    assert found.topic == "GPU" and second.topic == "device"
    assert found.colour == YELLOW and text in found.text and remedy in found.remedy
    assert (CU129 in found.remedy) == (remedy == CU129)
    monkeypatch.setattr(doctor, "nvidia_gpu", lambda: False)
    assert [finding.topic for finding in doctor.device()] == ["device"]
