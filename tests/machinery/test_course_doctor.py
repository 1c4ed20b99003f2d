"""`course doctor`: this machine is ready, its arithmetic is right, and its files are of one vocabulary."""

import json
import math
import os

import pytest
import torch

from course.machine import doctor
from course.machine.doctor import GREEN, RED, YELLOW, Finding
from course.notebooks import trust
from course.notebooks.trust import disagreement, trusted_environment


def test_this_machine_is_not_red(capsys):
    assert doctor.doctor() == 0, capsys.readouterr().out


@pytest.mark.parametrize("colour, code", [(GREEN, 0), (YELLOW, 0), (RED, 1)])
def test_only_red_fails(monkeypatch, colour, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding(colour, "x", "text", "do this")]),))
    assert doctor.doctor() == code


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
