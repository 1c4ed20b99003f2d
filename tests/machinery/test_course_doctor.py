"""`course doctor`: this machine is ready, and each thing that can be wrong is one line with its remedy."""

import json
import math
import os
import shutil
import sys

import psutil
import pytest
import torch

from course.machine import doctor
from course.machine import resources as machine
from course.machine.finding import GREEN, RED, YELLOW, Finding
from course.notebooks import trust
from course.notebooks.trust import disagreement, trusted_environment
from course.package import remedies
from course.paths import ROOT, CourseError


def test_this_machine_is_not_red(capsys):
    assert doctor.doctor() == 0, capsys.readouterr().out
    *lines, empty, verdict = capsys.readouterr().out.splitlines()
    assert not empty and verdict.startswith("ready") and "`course lab`" in verdict
    topics = {line.split()[1] for line in lines}
    assert {"python", "place", "packages", "kernel", "memory", "disk", "busy", "device", "TF32"} <= topics
    assert {"bf16", "compile", "GPT-2", "corpus", "data", "arithmetic"} <= topics
    assert all(line.split()[0] in (GREEN, YELLOW, RED) for line in lines)


@pytest.mark.parametrize("colour, code", [(GREEN, 0), (YELLOW, 0), (RED, 1)])
def test_only_red_fails(monkeypatch, capsys, colour, code):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([Finding(colour, "x", "text", "do this")]),))
    assert doctor.doctor() == code
    said = capsys.readouterr().out
    last = {GREEN: "ready: begin", YELLOW: "can be better (x)", RED: "first repair what is red (x)"}
    assert "text; do this" in said and last[colour] in said.splitlines()[-1]


def test_what_nobody_can_change_is_not_yellow(monkeypatch):
    """No TF32, no fast bf16 and no network on a healthy machine: told, and nothing to worry about."""
    from nanogpt.labs.roofline import clock

    monkeypatch.setattr(clock, "best_precision", lambda device: "float32")
    monkeypatch.setattr(machine, "device_if_there", lambda: torch.device("cpu"))
    features = {finding.topic: finding for finding in machine.speed_features()}
    assert features["TF32"].colour == features["bf16"].colour == GREEN
    assert "float32 is the choice" in features["bf16"].text


def test_a_busy_machine_is_named_as_such(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    for percent, colour in ((3.0, GREEN), (60.0, YELLOW)):
        monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percent=percent: percent)
        (found,) = machine.other_work()
        assert found.colour == colour and (colour == GREEN or "use 1.2 of 2 cores" in found.text), found


def test_a_check_that_breaks_is_a_finding(monkeypatch, capsys):
    def kernel():
        raise RuntimeError("half installed")
        yield

    assert doctor.doctor([kernel]) == 1
    assert "half installed" in capsys.readouterr().out


def test_a_missing_and_a_differing_package_are_told_apart(monkeypatch):
    def version(name: str) -> str:
        if name == "numpy":
            return "0.1"
        raise doctor.PackageNotFoundError(name)

    wanted = [("no-such-package", True), ("nor-this", False), ("numpy", True)]
    monkeypatch.setattr(doctor, "wanted_packages", lambda: wanted)
    monkeypatch.setattr(doctor, "version", version)
    red, yellow = doctor.packages()
    assert red.colour == RED and "no-such-package is missing" in red.text
    assert yellow.colour == YELLOW and "nor-this" not in yellow.text and "numpy 0.1 (pinned" in yellow.text


def test_what_the_commands_need_is_wanted_and_the_course_itself_is_no_package():
    wanted = dict(doctor.wanted_packages())
    assert wanted["torch"] and wanted["pydantic"] and wanted["jupyterlab"] and not wanted["nbval"]
    assert "nanogpt-course" not in wanted


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
    assert doctor.doctor([machine.device, machine.speed_features, machine.arithmetic]) == 1
    red = [line for line in capsys.readouterr().out.splitlines() if line.startswith(RED)]
    assert len(red) == 1 and value in red[0] and red[0].endswith(f"unset {variable}")
    if variable == "NANOGPT_DEVICE":
        with pytest.raises(CourseError, match=value):
            trusted_environment()


@pytest.mark.parametrize(
    "endpoint, asked",
    [
        ("https://mirror.example/hf", ("mirror.example", 443)),
        ("http://10.0.0.7:8090", ("10.0.0.7", 8090)),
        ("mirror.example", ("mirror.example", 443)),
    ],
)
def test_the_data_sets_host_is_the_mirror_where_one_is_set(monkeypatch, endpoint, asked):
    def refuse(address, timeout):
        assert address == asked
        raise OSError

    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setattr(doctor.socket, "create_connection", refuse)
    found = doctor.data_sets()
    assert found.colour == GREEN and found.text.startswith(f"{asked[0]} cannot be reached")


def test_files_of_different_vocabularies_are_red(monkeypatch, tmp_path):
    """Chapter 01 with VOCAB = 600, once: every id of the stories and of the model then means something else."""
    monkeypatch.setattr(doctor, "BUILT", tmp_path)
    assert list(doctor.built()) == [], "nothing is there yet"
    tokens = {
        mark: [mark * (i + 1) for i in range(size)] for mark, size in (("a", 1023), ("b", 599), ("c", 1023))
    }

    def colour_with(tokenizer: str, stories: str, model: str) -> str:
        saved = {"tokenizer.json": tokenizer, "stories/manifest.json": stories, "model/tokenizer.json": model}
        for file, mark in saved.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            held = {"fingerprint": mark * 64, "vocab": tokens[mark], "special": ["<|endoftext|>"]}
            if file == "stories/manifest.json":
                held = {"fingerprint": mark * 64, "vocab_size": len(tokens[mark]) + 1}
            (tmp_path / file).write_text(json.dumps(held))
        (found,) = doctor.built()
        return found.colour

    assert colour_with("a", "a", "a") == GREEN
    assert colour_with("b", "a", "a") == RED
    assert colour_with("a", "a", "c") == RED, "as many tokens, but others"
    assert colour_with("b", "b", "b") == RED, (
        "one vocabulary, but not the course's: rows are too short for it"
    )
    (tmp_path / "stories/manifest.json").write_text("{")
    (found,) = doctor.built()
    assert "tokenizer.json has 600 tokens (bbbbbbbb), stories has 0 tokens (damaged)" in found.text
    assert "`course run 01 07`" in found.remedy


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
    package = tmp_path / "nanogpt"
    package.mkdir()
    (package / "__init__.py").touch()
    if text is not None:
        (package / "device.py").write_text(text)
    for name in [name for name in sys.modules if name.split(".")[0] == "nanogpt"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
    monkeypatch.setattr(sys, "meta_path", ours)  # an editable installation would find the real one
    monkeypatch.setattr(remedies, "PACKAGE", package)
    with pytest.raises(CourseError, match="`course restore 00` brings it back") as error:
        trusted_environment()
    assert str(error.value).startswith(message)
    assert doctor.doctor([machine.arithmetic]) == 1
    assert "`course restore 00` brings it back" in capsys.readouterr().out


def test_the_doctor_asks_the_package_for_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler = next(finding for finding in machine.speed_features() if finding.topic == "compile")
    assert compiler.colour == YELLOW and "CXX" in compiler.text


@pytest.mark.parametrize(
    "env, files, where",
    [
        ({"COLAB_RELEASE_TAG": "release-colab_20261112"}, [], "Google Colab"),
        ({"BINDER_REPO_URL": "https://github.com/x/y", "KUBERNETES_SERVICE_HOST": "1"}, [], "Binder"),
        ({"CODESPACES": "true", "REMOTE_CONTAINERS": "true"}, [".dockerenv"], "GitHub Codespaces"),
        ({"REMOTE_CONTAINERS": "true"}, [".dockerenv"], "a dev container"),
        ({}, [".dockerenv"], "a Docker container"),
        ({}, ["run/.containerenv"], "a Podman container"),
        ({}, ["proc/sys/kernel/osrelease"], "WSL"),
        ({"CODESPACES": ""}, [], doctor.platform.system()),
    ],
)
def test_each_place_is_known_by_its_signs(tmp_path, env, files, where):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("6.6.87.2-microsoft-standard-WSL2\n")
    assert doctor.where_is_this(env, tmp_path)[0].startswith(where)


def test_in_wsl_a_clone_on_windows_disk_is_slow(monkeypatch):
    monkeypatch.setattr(doctor, "where_is_this", lambda *_: ("WSL", ""))
    for folder, colour in (("/mnt/c/Users/me/gpt2-course", YELLOW), ("/mnt/data/course", GREEN)):
        monkeypatch.setattr(doctor, "ROOT", doctor.Path(folder))
        (found,) = doctor.place()
        assert found.colour == colour and ("into your home" in found.remedy) == (colour == YELLOW)


def test_a_container_with_less_than_its_machine_is_told(monkeypatch, tmp_path):
    assert machine.container_limits(tmp_path) == (math.inf, math.inf), "not Linux, or no container"
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.container_limits(tmp_path) == (math.inf, math.inf)
    (tmp_path / "memory.max").write_text("2147483648\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    limits = machine.container_limits(tmp_path)
    monkeypatch.setattr(machine, "container_limits", lambda: limits)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    memory, cores, _ = machine.resources()
    assert memory.colour == cores.colour == YELLOW
    assert memory.text.startswith("2 GiB of the machine's ") and "container" in memory.remedy
    assert cores.text.startswith("1.5 of the machine's ") and cores.remedy == "set OMP_NUM_THREADS=2"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [finding.topic for finding in machine.resources()] == ["memory", "disk"]


def test_two_gpus_want_shared_memory(monkeypatch, tmp_path):
    small = shutil._ntuple_diskusage(64 << 20, 0, 64 << 20)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: small)
    (found,) = machine.shared_memory(2, tmp_path)
    assert found.colour == YELLOW and "64 MiB" in found.text and "--shm-size=1g" in found.remedy
    assert list(machine.shared_memory(1, tmp_path)) == []
    assert list(machine.shared_memory(2, tmp_path / "none")) == [], "not Linux"


CU129 = "--index-url https://download.pytorch.org/whl/cu129"
NEEDS_580 = "CUDA 13 needs driver 580 or newer"


@pytest.mark.parametrize(
    "driver, cuda, hidden, text, remedy",
    [
        ("535.104.05", None, None, "the CPU build", "--force-reinstall -c constraints.txt torch"),
        ("535.104.05", "13.0", None, NEEDS_580, CU129),
        ("470.223.02", "13.0", None, NEEDS_580, "install driver 580 or newer"),  # which no build here runs with
        ("580.82.07", "13.0", None, "torch.cuda.is_available() is False", "nvidia-smi"),
        ("version unknown", "13.0", None, "torch.cuda.is_available() is False", "nvidia-smi"),
        ("580.82.07", "13.0", "-1", "CUDA_VISIBLE_DEVICES='-1' hides it", "unset CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_a_gpu_that_this_pytorch_cannot_use_is_told(monkeypatch, driver, cuda, hidden, text, remedy):
    """Minimum drivers: NVIDIA, CUDA Compatibility, table 1."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(machine, "driver", lambda: driver)
    monkeypatch.setattr(machine.sys, "platform", "linux")
    (found,) = machine.unused_gpu(True, cuda, available=False)
    assert found.colour == YELLOW and text in found.text and remedy in found.remedy
    assert (CU129 in found.remedy) == (remedy == CU129)
    assert list(machine.unused_gpu(True, cuda, available=True)) == []
    assert list(machine.unused_gpu(False, cuda, available=False)) == []


def test_the_check_of_the_device_asks_whether_pytorch_can_use_the_gpu(monkeypatch):
    """With the driver there and a PyTorch for CUDA, the line about the CPU does not stand alone."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "nvidia_gpu", lambda: True)
    monkeypatch.setattr(machine, "driver", lambda: "535.104.05")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    first, second = machine.device()
    assert first.topic == "GPU" and "needs driver 580" in first.text and second.topic == "device"
    wanted = f"torch=={torch.__version__.split('+')[0]} {CU129}"
    assert wanted in first.remedy, "the same version of PyTorch, for another CUDA"


def test_the_faq_gives_the_same_remedy_as_the_doctor():
    faq = (ROOT / "site/faq.md").read_text(encoding="utf-8")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pin = next(line for line in pins.splitlines() if line.startswith("torch=="))
    assert f"pip install --force-reinstall {pin} {CU129}" in faq
    assert f"CUDA 13 needs driver {machine.oldest_driver('13.0')} or newer" in faq
    assert f"every driver from {machine.oldest_driver('12.9')} on" in faq
