"""`make` sets up .venv: an interrupted creation is mended, a laptop gets the PyTorch it can use."""

import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from course.machine import setup_env

CUDA, CPU = "torch==2.13.0", "torch==2.13.0+cpu"
COURSE = ["-e", ".[course]"]
FROM_PYTORCH = [CPU, "--extra-index-url", setup_env.CPU_INDEX]
NEW = ["create", {"with_pip": True, "clear": True}]


class Machine:
    """What set-up would run, in an empty folder where nothing is installed."""

    def __init__(self, monkeypatch, folder):
        self.ran, self.torch, self.unreachable = [], False, ""
        (folder / "constraints.txt").write_text(f"{CUDA}\n")
        monkeypatch.setattr(setup_env, "ROOT", folder)
        monkeypatch.setattr(setup_env, "VENV", folder / ".venv")
        monkeypatch.setattr(setup_env, "PYTHON", folder / ".venv/bin/python")
        monkeypatch.setattr(setup_env.subprocess, "run", self.run)
        monkeypatch.setattr(setup_env.venv, "create", self.create)
        monkeypatch.setattr(setup_env.sys, "platform", "linux")
        monkeypatch.setattr(setup_env, "nvidia_gpu", lambda: False)

    def run(self, command, **options):
        self.ran.append(command[1:])
        if "constraints.txt" in command:
            assert options["env"]["PYTHONWARNINGS"] == "ignore", "a box of warnings at the first command"
        if command[1:3] == ["-m", "ensurepip"] and setup_env.PYTHON.exists():
            setup_env.PYTHON.write_text("pip")
        works = setup_env.PYTHON.exists() and setup_env.PYTHON.read_text() == "pip"
        if command[1] == "-c":
            works = self.torch
        return subprocess.CompletedProcess(command, int(not works or self.unreachable in command))

    def create(self, folder, **options):
        self.ran.append(["create", options])
        setup_env.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        setup_env.PYTHON.write_text("pip")

    @property
    def installed(self) -> list[list[str]]:
        """What pip was asked for, with what follows the constraints."""
        return [c[c.index("constraints.txt") + 1 :] for c in self.ran if "constraints.txt" in c]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path)


def test_a_new_environment_is_made_once_and_a_torch_that_is_there_stays(machine):
    assert setup_env.main() == 0 and (setup_env.VENV / "ready").exists()
    assert machine.ran.count(NEW) == 1
    machine.torch = True
    assert setup_env.main() == 0
    assert machine.ran.count(NEW) == 1 and machine.installed == [FROM_PYTORCH, COURSE, COURSE]


def test_an_environment_without_pip_gets_it_and_one_without_python_is_made_again(machine):
    setup_env.PYTHON.parent.mkdir(parents=True)
    setup_env.PYTHON.write_text("no pip")
    assert setup_env.main() == 0
    assert ["-m", "ensurepip"] in machine.ran
    assert NEW not in machine.ran, "whoever made it keeps it"
    setup_env.PYTHON.unlink()
    assert setup_env.main() == 0 and NEW in machine.ran


@pytest.mark.parametrize(
    "system, gpu, unreachable, asked",
    [
        ("linux", False, "", [FROM_PYTORCH]),
        ("linux", True, "", [[CUDA]]),
        ("linux", False, setup_env.CPU_INDEX, [FROM_PYTORCH, [CUDA]]),  # behind a firewall
        ("darwin", False, "", [[CUDA]]),
    ],
)
def test_a_laptop_without_a_gpu_downloads_no_cuda(machine, monkeypatch, system, gpu, unreachable, asked):
    monkeypatch.setattr(setup_env.sys, "platform", system)
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(setup_env, "nvidia_gpu", lambda: gpu)
    machine.unreachable = unreachable
    assert setup_env.main() == 0
    assert machine.installed == [*asked, COURSE]


@pytest.mark.parametrize(("pinned", "code"), [(version("torch").partition("+")[0], 0), ("1.0", 1)])
def test_the_question_for_torch_goes_by_the_version_without_its_build(pinned, code):
    command = [sys.executable, "-c", setup_env.INSTALLED, f"torch=={pinned}"]
    assert subprocess.run(command, capture_output=True).returncode == code


def test_a_set_up_that_fails_is_not_ready(machine):
    machine.unreachable = ".[course]"
    assert setup_env.main() == 1 and not (setup_env.VENV / "ready").exists()


@pytest.mark.slow
def test_a_real_environment_whose_creation_was_interrupted_is_mended(tmp_path, monkeypatch):
    """Half a pip that looks installed. Newcomers met "is the network there?" for ever: pip was missing, not the network."""
    folder = tmp_path / ".venv"
    monkeypatch.setattr(setup_env, "VENV", folder)
    monkeypatch.setattr(setup_env, "PYTHON", folder / setup_env.PYTHON.relative_to(setup_env.ROOT / ".venv"))
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    shutil.rmtree(next(folder.glob("**/site-packages/pip/_internal/resolution")))
    assert setup_env.run_quietly("-m", "pip", "--version"), "pip answers, and yet it cannot install"
    assert not setup_env.has_pip()
    setup_env.make_venv()
    assert setup_env.has_pip()
