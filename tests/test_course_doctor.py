import math
import os
import sys

import pytest
import torch

from course import doctor, remedies, trust
from course.doctor import GREEN, RED, YELLOW, Finding
from course.paths import CourseError
from course.trust import disagreement, trusted_environment


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
    step = trust.training_step
    for wrong in (
        lambda losses: [losses[0], losses[1], losses[2] * 1.01],
        lambda losses: [losses[0], math.nan, losses[2]],
    ):
        steps = iter([step, lambda device, wrong=wrong: wrong(step(device))])
        monkeypatch.setattr(trust, "training_step", lambda device, steps=steps: next(steps)(device))
        assert disagreement(cpu) > trust.TOLERANCE


def test_a_device_that_disagrees_is_not_used(monkeypatch, capsys):
    monkeypatch.setattr("nanogpt.device.pick_device", lambda: torch.device("meta"))
    monkeypatch.setattr(trust, "disagreement", lambda device: 0.02)
    assert trusted_environment()["NANOGPT_DEVICE"] == "cpu"
    assert "staying on the CPU" in capsys.readouterr().err
    monkeypatch.setattr(trust, "disagreement", lambda device: 1e-6)
    assert trusted_environment() == dict(os.environ)


def test_an_impossible_device_is_one_sentence(monkeypatch):
    monkeypatch.setenv("NANOGPT_DEVICE", "tpu")
    with pytest.raises(CourseError, match="tpu"):
        trusted_environment()


def damage(monkeypatch, module: str, text: str | None, tmp_path):
    """`nanogpt` is a folder in which one module is damaged, or missing."""
    package = tmp_path / "nanogpt"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / f"{module}.py").unlink(missing_ok=True)
    if text is not None:
        (package / f"{module}.py").write_text(text)
    for name in [name for name in sys.modules if name.split(".")[0] == "nanogpt"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = [
        f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")
    ]  # would find the real one
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(remedies, "PACKAGE", package)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "nanogpt/device.py is missing"),
        ("x = 1", "nanogpt/device.py has no pick_device"),
        ("def f(:", "nanogpt/device.py is broken (SyntaxError"),
        ("import nowhere", "nanogpt/device.py is broken (ModuleNotFoundError"),
        ("def pick_device(): return missing", "nanogpt/device.py is broken (NameError"),
    ],
)
def test_a_missing_or_broken_module_names_the_chapter_that_brings_it_back(
    monkeypatch, tmp_path, capsys, text, message
):
    damage(monkeypatch, "device", text, tmp_path)
    with pytest.raises(CourseError) as error:
        trusted_environment()
    assert str(error.value).startswith(message) and "`course restore 00` brings it back" in str(error.value)
    monkeypatch.setattr(doctor, "CHECKS", (doctor.arithmetic,))
    assert doctor.doctor() == 1 and "`course restore 00` brings it back" in capsys.readouterr().out


def test_the_doctor_asks_the_package_for_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler = next(finding for finding in doctor.speed_features() if finding.topic == "compile")
    assert compiler.colour == YELLOW and "CXX" in compiler.text
