import json
import math
import os
import shutil
import sys

import pytest
import torch

from course.machine import doctor, places
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
    assert {
        "python",
        "place",
        "packages",
        "kernel",
        "memory",
        "disk",
        "busy",
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
    said = capsys.readouterr().out
    assert "text; do this" in said
    last = {GREEN: "ready: begin", YELLOW: "can be better (x)", RED: "first repair what is red (x)"}
    assert last[colour] in said.splitlines()[-1]


def test_what_nobody_can_change_is_not_yellow(monkeypatch):
    """No TF32, no fast bf16 and no network on a healthy machine: told, and nothing to worry about."""
    from nanogpt.labs.roofline import clock

    monkeypatch.setattr(clock, "best_precision", lambda device: "float32")
    monkeypatch.setattr(machine, "device_if_there", lambda: torch.device("cpu"))
    features = {finding.topic: finding for finding in machine.speed_features()}
    assert features["TF32"].colour == features["bf16"].colour == GREEN
    assert "float32 is the choice" in features["bf16"].text


def test_a_busy_machine_is_named_as_such(monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    for percent, colour in ((3.0, GREEN), (60.0, YELLOW)):
        monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percent=percent: percent)
        (found,) = machine.other_work()
        assert found.colour == colour and (colour == GREEN or "use 1.2 of 2 cores" in found.text), found


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
    assert yellow.colour == YELLOW and "nor-this" not in yellow.text and "numpy 0.1 (pinned" in yellow.text


def test_what_the_commands_need_is_wanted_and_the_course_itself_is_no_package():
    wanted = dict(doctor.wanted_packages())
    assert wanted["torch"] and wanted["pydantic"] and wanted["jupyterlab"] and not wanted["nbval"]
    assert "nanogpt-course" not in wanted


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


@pytest.mark.parametrize("variable, value", [("NANOGPT_DEVICE", "tpu"), ("NANOGPT_SCALE", "huge")])
def test_an_impossible_wish_is_one_red_line_with_its_own_remedy(monkeypatch, capsys, variable, value):
    monkeypatch.setenv(variable, value)
    assert doctor.doctor([machine.device, machine.speed_features, machine.arithmetic]) == 1
    red = [line for line in capsys.readouterr().out.splitlines() if line.startswith(RED)]
    assert len(red) == 1 and value in red[0] and red[0].endswith(f"unset {variable}")


@pytest.mark.parametrize(
    "endpoint, asked",
    [
        ("https://huggingface.co", ("huggingface.co", 443)),
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


def test_files_of_different_vocabularies_are_red_with_one_remedy(monkeypatch, tmp_path):
    """Chapter 01 with VOCAB = 600, once: every id of the stories and of the model then means something else."""
    monkeypatch.setattr(doctor, "BUILT", tmp_path)
    assert list(doctor.built()) == [], "nothing is there yet"
    tokens = [chr(i) for i in range(1023)]
    texts = {
        "tokenizer.json": {"fingerprint": "a" * 64, "vocab": tokens, "special": ["<|endoftext|>"]},
        "stories/manifest.json": {"fingerprint": "a" * 64, "vocab_size": 1024},
        "model/tokenizer.json": {"fingerprint": "a" * 64, "vocab": tokens, "special": ["<|endoftext|>"]},
    }

    def findings(**changed):
        for name, saved in texts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(
                json.dumps(saved | changed.get(name.split(".")[0].split("/")[0], {}))
            )
        return [(finding.colour, finding.text + finding.remedy) for finding in doctor.built()]

    ((colour, text),) = findings()
    assert colour == GREEN and "the same 1,024 tokens" in text
    other = {"fingerprint": "b" * 64, "vocab": tokens[:599]}
    ((colour, text),) = findings(tokenizer=other)
    assert (
        colour == RED
        and "tokenizer.json has 600 tokens (bbbbbbbb), stories has 1,024 tokens (aaaaaaaa)" in text
    )
    assert "`course run 01 07` makes them again" in text
    ((colour, text),) = findings(tokenizer=other, stories={**other, "vocab_size": 600}, model=other)
    assert colour == RED, "one vocabulary, but not the course's: chapter 07's rows are too short for it"
    ((colour, _),) = findings(model={"fingerprint": "c" * 64})
    assert colour == RED, "as many tokens, but others"
    (tmp_path / "stories" / "manifest.json").write_text("{")
    ((colour, text),) = [(finding.colour, finding.text) for finding in doctor.built()]
    assert colour == RED and "stories has 0 tokens (damaged)" in text


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
    monkeypatch.setattr(doctor, "CHECKS", (machine.arithmetic,))
    assert doctor.doctor() == 1 and "`course restore 00` brings it back" in capsys.readouterr().out


def test_the_doctor_asks_the_package_for_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler = next(finding for finding in machine.speed_features() if finding.topic == "compile")
    assert compiler.colour == YELLOW and "CXX" in compiler.text


# Which place this is, from the signs that each leaves


@pytest.mark.parametrize(
    "env, files, machine_is, where, hint",
    [
        ({"COLAB_RELEASE_TAG": "release-colab_20261112"}, {}, "linux x86_64", "Google Colab", "download"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, {}, "linux x86_64", "Kaggle", "/kaggle/working"),
        ({"BINDER_REPO_URL": "https://github.com/OWNER/gpt2-course", "KUBERNETES_SERVICE_HOST": "1"}, {}, "linux x86_64", "Binder", "download"),
        ({"CODESPACES": "true", "REMOTE_CONTAINERS": "true"}, {".dockerenv": ""}, "linux x86_64", "GitHub Codespaces", "Ports"),
        ({"REMOTE_CONTAINERS": "true"}, {".dockerenv": ""}, "linux aarch64", "a dev container", "Ports"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {}, "linux x86_64", "a Kubernetes pod", "port-forward"),
        ({}, {".dockerenv": ""}, "linux x86_64", "a Docker container", "docker run -p 8888:8888"),
        ({}, {"run/.containerenv": ""}, "linux x86_64", "a Podman container", "podman run -p"),
        ({}, {"proc/sys/kernel/osrelease": "6.6.87.2-microsoft-standard-WSL2\n"}, "linux x86_64", "WSL", ""),
        ({}, {"proc/sys/kernel/osrelease": "6.1.0-28-amd64\n"}, "linux x86_64", "Linux", ""),
        ({"CODESPACES": ""}, {}, "linux x86_64", "Linux", ""),
        ({}, {}, "darwin arm64", "Apple silicon", ""),
        ({}, {}, "darwin x86_64", "an Intel Mac", ""),
        ({}, {}, "win32 AMD64", "Windows", ""),
    ],
)  # fmt: skip
def test_each_place_is_known_by_its_signs(tmp_path, env, files, machine_is, where, hint):
    tree(tmp_path, files)
    found, said = places.where_is_this(env, tmp_path, *machine_is.split())
    assert found == where and hint in said and bool(hint) == bool(said)


def tree(folder, files: dict[str, str]):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_the_environment_is_named_by_who_made_it(tmp_path):
    assert places.python_of({}, tmp_path, virtual=False) == "the system's Python"
    assert places.python_of({}, tmp_path, virtual=True) == "a virtual environment"
    tree(tmp_path, {"pyvenv.cfg": "home = /usr/bin\nuv = 0.13.9\n", "conda-meta/history": ""})
    assert places.python_of({}, tmp_path, virtual=True) == "uv's environment"
    conda = places.python_of({"CONDA_DEFAULT_ENV": "nanogpt-course"}, tmp_path, virtual=False)
    assert conda == "the conda environment nanogpt-course"


def test_in_wsl_a_clone_on_windows_disk_is_slow(monkeypatch):
    monkeypatch.setattr(places, "where_is_this", lambda *_: ("WSL", ""))
    assert [f.colour for f in places.place()] == [GREEN]
    for folder, colour in (("/mnt/c/Users/me/gpt2-course", YELLOW), ("/mnt/data/course", GREEN)):
        monkeypatch.setattr(places, "ROOT", places.Path(folder))
        (found,) = places.place()
        assert found.colour == colour and ("into your home" in found.remedy) == (colour == YELLOW)


# What a container may use


V1 = "9:name=systemd:/\n5:memory:/me\n4:cpu,cpuacct:/me\n"


@pytest.mark.parametrize(
    "own, files, memory, share",
    [
        ("", {}, math.inf, math.inf),  # not Linux
        ("0::/\n", {"memory.max": "max\n", "cpu.max": "max 100000\n"}, math.inf, math.inf),
        ("0::/\n", {"memory.max": "2147483648\n", "cpu.max": "150000 100000\n"}, 2**31, 1.5),
        ("0::/a/b\n", {"a/memory.max": "4096\n", "a/b/memory.max": "max\n", "a/b/cpu.max": "50000 100000\n"}, 4096, 0.5),
        (V1, {"memory/me/memory.limit_in_bytes": "1073741824\n", "cpu/me/cpu.cfs_quota_us": "200000\n", "cpu/me/cpu.cfs_period_us": "100000"}, 2**30, 2),
        (V1, {"memory/memory.limit_in_bytes": "1073741824\n"}, 2**30, math.inf),  # a container sees its own group on top
        (V1, {"cpu/me/cpu.cfs_quota_us": "-1\n", "cpu/me/cpu.cfs_period_us": "100000\n"}, math.inf, math.inf),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_control_groups(tmp_path, own, files, memory, share):
    """Version 2, version 1, and the tightest of nested groups."""
    tree(
        tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()} | {"proc/self/cgroup": own}
    )
    assert places.memory_limit(tmp_path) == memory
    assert places.cpu_limit(tmp_path) == share


def test_a_container_with_less_than_its_machine_is_told(monkeypatch):
    monkeypatch.setattr(machine, "memory_limit", lambda: 2.0**31)
    monkeypatch.setattr(machine, "cpu_limit", lambda: 1.5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    memory, cores, _ = machine.resources()
    assert memory.colour == YELLOW and memory.text.startswith("2 GiB of the machine's ")
    assert memory.remedy == "give the container more of it"
    assert cores.colour == YELLOW and cores.text.startswith("1.5 of the machine's ")
    assert "64 threads" in cores.text and cores.remedy == "set OMP_NUM_THREADS=2"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert list(machine.cores(1.5)) == [] and list(machine.cores(math.inf)) == []


def test_two_gpus_want_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(
        machine.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(64 << 20, 0, 64 << 20)
    )
    (found,) = machine.shared_memory(2, tmp_path)
    assert found.colour == YELLOW and "64 MiB" in found.text and "--shm-size=1g" in found.remedy
    assert list(machine.shared_memory(1, tmp_path)) == []
    assert list(machine.shared_memory(2, tmp_path / "none")) == [], "not Linux"


@pytest.mark.parametrize(
    "there, cuda, available, system, said",
    [
        (True, None, False, "linux", "--force-reinstall -c constraints.txt torch"),
        (True, None, False, "win32", "pytorch.org"),
        (True, "13.0", True, "linux", None),
        (False, None, False, "linux", None),
        (False, "13.0", False, "linux", None),
    ],
)
def test_a_gpu_that_this_pytorch_cannot_use_is_told(there, cuda, available, system, said):
    found = list(machine.unused_gpu(there, cuda, available, system))
    assert len(found) == (said is not None) and all(f.colour == YELLOW and said in f.remedy for f in found)


CU129 = "--index-url https://download.pytorch.org/whl/cu129"


@pytest.mark.parametrize(
    "driver, cuda, hidden, text, remedy, offered",
    [
        ("535.104.05", "13.0", None, "CUDA 13 needs driver 580 or newer", "install driver 580", True),
        ("570.148.08", "13.2", None, "CUDA 13 needs driver 580 or newer", "install driver 580", True),
        ("470.223.02", "13.0", None, "CUDA 13 needs driver 580 or newer", "install driver 580", False),
        ("470.223.02", "12.6", None, "CUDA 12 needs driver 525 or newer", "install driver 525", False),
        ("580.82.07", "13.0", None, "torch.cuda.is_available() is False", "nvidia-smi", False),
        ("version unknown", "13.0", None, "torch.cuda.is_available() is False", "nvidia-smi", False),
        ("535.104.05", "14.0", None, "torch.cuda.is_available() is False", "nvidia-smi", False),
        ("535.104.05", "13.0", "", "CUDA_VISIBLE_DEVICES='' hides it", "unset CUDA_VISIBLE_DEVICES", False),
        ("580.82.07", "13.0", "-1", "CUDA_VISIBLE_DEVICES='-1' hides it", "unset CUDA_VISIBLE_DEVICES", False),
        ("535.104.05", "13.0", "0", "CUDA 13 needs driver 580 or newer", "install driver 580", True),
    ],
)  # fmt: skip
def test_a_driver_too_old_for_this_pytorch_is_named_with_the_remedy(
    monkeypatch, driver, cuda, hidden, text, remedy, offered
):
    """Minimum drivers: NVIDIA, CUDA Compatibility, table 1. `offered`: the build for CUDA 12.9 would run with it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(machine, "driver", lambda: driver)
    (found,) = machine.unused_gpu(True, cuda, False, "linux")
    assert found.colour == YELLOW and f"({driver})" in found.text and f"CUDA {cuda}" in found.text
    assert text in found.text and remedy in found.remedy and (CU129 in found.remedy) == offered


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
