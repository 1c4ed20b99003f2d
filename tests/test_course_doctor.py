import math
import os

import pytest
import torch

from course import doctor
from course.doctor import GREEN, RED, YELLOW, Finding, disagreement, trusted_environment
from course.paths import CourseError


def test_this_machine_is_not_red(capsys):
    assert doctor.doctor() == 0, capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    topics = {line.split()[1] for line in lines}
    assert {
        "python",
        "packages",
        "kernel",
        "memory",
        "disk",
        "device",
        "TF32",
        "bf16",
        "compile",
        "GPT-2",
        "corpus",
        "data",
        "arithmetic",
    } <= topics
    assert all(line.split()[0] in (GREEN, YELLOW, RED) for line in lines)


@pytest.mark.parametrize("colour, code", [(GREEN, 0), (YELLOW, 0), (RED, 1)])
def test_only_red_fails(monkeypatch, capsys, colour, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding(colour, "x", "text", "do this")]),))
    assert doctor.doctor() == code
    assert "text; do this" in capsys.readouterr().out


def test_a_check_that_breaks_is_a_finding(monkeypatch, capsys):
    def kernel():
        raise RuntimeError("half installed")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (kernel,))
    assert doctor.doctor() == 1
    assert "half installed" in capsys.readouterr().out


def test_a_missing_and_a_differing_package_are_told_apart(monkeypatch):
    monkeypatch.setattr(
        doctor, "wanted_packages", lambda: [("no-such-package", True), ("nor-this", False), ("numpy", True)]
    )
    monkeypatch.setattr(doctor, "version", lambda name: fake_version(name))
    red, yellow = doctor.packages()
    assert red.colour == RED and "no-such-package is missing" in red.text
    assert (
        yellow.colour == YELLOW
        and "nor-this is missing" in yellow.text
        and "numpy 0.1 (pinned" in yellow.text
    )


def fake_version(name: str) -> str:
    if name == "numpy":
        return "0.1"
    raise doctor.PackageNotFoundError(name)


def test_the_self_check_agrees_with_itself_and_sees_a_wrong_step(monkeypatch):
    cpu = torch.device("cpu")
    assert disagreement(cpu) == 0
    step = doctor.training_step
    for wrong in (
        lambda losses: [losses[0], losses[1], losses[2] * 1.01],
        lambda losses: [losses[0], math.nan, losses[2]],
    ):
        steps = iter([step, lambda device, wrong=wrong: wrong(step(device))])
        monkeypatch.setattr(doctor, "training_step", lambda device, steps=steps: next(steps)(device))
        assert disagreement(cpu) > doctor.TOLERANCE


def test_a_device_that_disagrees_is_not_used(monkeypatch, capsys):
    monkeypatch.setattr("nanogpt.device.pick_device", lambda: torch.device("meta"))
    monkeypatch.setattr(doctor, "disagreement", lambda device: 0.02)
    assert trusted_environment()["NANOGPT_DEVICE"] == "cpu"
    assert "staying on the CPU" in capsys.readouterr().err
    monkeypatch.setattr(doctor, "disagreement", lambda device: 1e-6)
    assert trusted_environment() == dict(os.environ)


def test_an_impossible_device_is_one_sentence(monkeypatch):
    monkeypatch.setenv("NANOGPT_DEVICE", "tpu")
    with pytest.raises(CourseError, match="tpu"):
        trusted_environment()
