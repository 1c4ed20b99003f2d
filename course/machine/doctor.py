"""`course doctor`: is this machine ready? One line each, with the remedy; exit 1 only on red."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from course.machine.setup_env import nvidia_gpu
from course.notebooks.trust import TOLERANCE, disagreement
from course.package.remedies import not_there, remedy_for
from course.paths import BUILT, ROOT
from course.states.state import described

GREEN, YELLOW, RED = "green", "yellow", "red"
CODES = {GREEN: "\x1b[32m", YELLOW: "\x1b[33m", RED: "\x1b[31m"}
VOCABULARY = 1024  # tokens: chapter 01's VOCAB as it was released
SHARE = Path("/sys/fs/cgroup/cpu.max")  # of a container (Linux, version 2 of control groups)
# NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1: the first driver, by CUDA's major version.
OLDEST_DRIVER = {"13": 580, "12": 525}


@dataclass
class Finding:
    colour: str
    topic: str
    text: str
    remedy: str = ""

    def line(self, terminal: bool) -> str:
        mark = f"{CODES[self.colour]}●\x1b[0m" if terminal else f"{self.colour:6}"
        return f"{mark} {self.topic:12} {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def green_if(fine: bool, topic: str, text: str, remedy: str, otherwise: str = YELLOW) -> Finding:
    """Green, or the other colour with what to do about it."""
    return Finding(GREEN, topic, text) if fine else Finding(otherwise, topic, text, remedy)


def doctor() -> int:
    """Make all checks, and print what they find and a verdict; 1 if one is red."""
    terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    found = []
    for check in CHECKS:
        for finding in guarded(check):
            print(finding.line(terminal), flush=True)
            found.append(finding)
    red = ", ".join(finding.topic for finding in found if finding.colour == RED)
    yellow = ", ".join(finding.topic for finding in found if finding.colour == YELLOW)
    better = f", and what is yellow can be better ({yellow})" if yellow else ""
    ready = f"ready{better}: begin with `course lab`"
    print(f"\nnot ready: first repair what is red ({red})" if red else f"\n{ready}")
    return 1 if red else 0


def guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that itself breaks is a finding, not a traceback."""
    try:
        yield from check()
    except Exception as error:
        topic = check.__name__.replace("_", " ")
        if waits := not_there(str(error)):
            yield Finding(GREEN, topic, waits)
            return
        text = f"could not be checked ({type(error).__name__}: {error})"
        yield Finding(RED, topic, text, remedy_for(error) or "run `make course` again to repair .venv")


def python() -> Iterator[Finding]:
    fine = (3, 11) <= sys.version_info < (3, 14)
    text = f"{platform.python_version()} in {sys.prefix}, on {platform.platform()}"
    yield green_if(fine, "python", text, "install Python 3.11, 3.12 or 3.13", RED)


def packages() -> Iterator[Finding]:
    """Whether all packages are here, and as pinned; those for tests and instructors may be missing."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", constraints, re.MULTILINE))
    install = "pip install -c constraints.txt -e '.[course]'"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    missing, other = [], []
    for requirement in [*project["dependencies"], *extras["commands"], *extras["course"], *extras["dev"]]:
        name = re.match(r"[\w.-]+", requirement)[0]
        try:
            found = version(name).split("+")[0]
        except PackageNotFoundError:
            if requirement not in extras["dev"] and name != project["name"]:
                missing.append(f"{name} is missing")
            continue
        if found != pins.get(name, found):
            other.append(f"{name} {found} (pinned {pins[name]})")
    if missing:
        yield Finding(RED, "packages", ", ".join(missing), f"run `make course`, or {install}")
    if other:
        yield Finding(YELLOW, "packages", ", ".join(other), f"usually fine; {install} brings the pins")
    if not missing and not other:
        yield Finding(GREEN, "packages", "all as pinned")


def package() -> Iterator[Finding]:
    yield Finding(GREEN, "package", described())


def resources() -> Iterator[Finding]:
    import psutil
    import torch

    memory, cores = psutil.virtual_memory().total / 2**30, os.cpu_count()
    yield green_if(memory >= 4, "memory", f"{memory:.3g} GiB, {cores} cores", "close other programs")
    # PyTorch starts a thread for each core that it sees, however small this container's share of them is.
    quota, period = SHARE.read_text(encoding="utf-8").split() if SHARE.exists() else ("max", "1")
    share = cores if quota == "max" else int(quota) / int(period)
    if torch.get_num_threads() > max(1, round(share)):
        text = f"{share:.3g} of the machine's {cores} are this container's, and PyTorch starts more threads"
        yield Finding(YELLOW, "cores", text, f"set OMP_NUM_THREADS={max(1, round(share))}")
    free = shutil.disk_usage(ROOT).free / 2**30
    colour = RED if free < 0.5 else YELLOW
    yield green_if(free >= 3, "disk", f"{free:.0f} GiB free", "free at least 3 GiB", colour)


def busy() -> Iterator[Finding]:
    """Whether other programs use the processor now: whatever is timed beside them is slower than it has to be."""
    import psutil

    cores = psutil.cpu_count() or 1
    used = psutil.cpu_percent(interval=0.5) / 100 * cores
    text = f"other programs use {used:.1f} of {cores} cores now"
    remedy = "chapters take longer; close them before you time anything"
    yield green_if(used < max(0.5, 0.3 * cores), "busy", text, remedy)


def device() -> Iterator[Finding]:
    import torch

    import nanogpt.device as module

    try:
        chosen = module.pick_device()
        # chapter 07's: a growing package may not have it yet
        scale = f", scale {module.pick_scale(chosen)}" if hasattr(module, "pick_scale") else ""
    except ValueError as error:
        variable = "NANOGPT_SCALE" if "NANOGPT_SCALE" in str(error) else "NANOGPT_DEVICE"
        yield Finding(RED, "device", str(error), f"unset {variable}")
        return
    if nvidia_gpu() and not torch.cuda.is_available():
        yield unused_gpu(driver(), torch.version.cuda)
    if chosen.type != "cuda":
        yield Finding(GREEN, "device", f"{chosen}{scale}; no GPU is needed")
        return
    card = torch.cuda.get_device_properties(chosen)
    capability = f"compute capability {card.major}.{card.minor}"
    text = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {capability}{scale}, driver {driver()}"
    yield Finding(GREEN, "device", f"{text}, PyTorch built for CUDA {torch.version.cuda}")


def unused_gpu(driver: str, cuda: str | None) -> Finding:
    """Why PyTorch, built for this version of CUDA or for none, cannot use the NVIDIA GPU that is here."""
    if cuda is None:
        remedy = "pip install --force-reinstall -c constraints.txt torch"
        if sys.platform == "win32":  # where the package index has the CPU build alone
            remedy = "take the command for CUDA from pytorch.org, Get started"
        return Finding(YELLOW, "GPU", "an NVIDIA GPU is here, and this PyTorch is the CPU build", remedy)
    hidden, major = os.environ.get("CUDA_VISIBLE_DEVICES"), cuda.split(".")[0]
    why = "torch.cuda.is_available() is False"
    remedy = (
        "run nvidia-smi, which must list the GPU (a container needs --gpus all, a new driver a restart); "
        "then python -c 'import torch; torch.zeros(1).cuda()' names the cause"
    )
    if hidden in ("", "-1"):
        why, remedy = f"CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    elif driver[0].isdigit() and int(driver.split(".")[0]) < (needed := OLDEST_DRIVER.get(major, 0)):
        why = f"CUDA {major} needs driver {needed} or newer"
        remedy = f"install driver {needed} or newer, or a PyTorch for older ones (from {OLDEST_DRIVER['12']} on): {for_older_driver()}"
    text = f"an NVIDIA driver ({driver}) is here, and PyTorch, built for CUDA {cuda}, cannot use the GPU"
    return Finding(YELLOW, "GPU", f"{text}: {why}", remedy)


def for_older_driver() -> str:
    """The command that installs this PyTorch built for CUDA 12.9."""
    wanted = f"torch=={version('torch').split('+')[0]}"
    return f"pip install --force-reinstall {wanted} --index-url https://download.pytorch.org/whl/cu129"


def driver() -> str:
    """The NVIDIA driver's version; AMD's tools have another name, and none is no reason to stop."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "version unknown"


def device_if_there():
    """None where NANOGPT_DEVICE asks for one that is not there: the check of the device says so, once."""
    from nanogpt.device import pick_device

    try:
        return pick_device()
    except ValueError:
        return None


def compiler() -> Iterator[Finding]:
    from nanogpt.labs.ladder.rungs import why_not_compiled

    if (chosen := device_if_there()) is not None:
        reason = why_not_compiled(chosen)
        said = f"torch.compile: {reason}" if reason else "torch.compile finds its compiler"
        yield green_if(not reason, "compile", said, "chapter 11 runs without")


def built() -> Iterator[Finding]:
    """Whether tokenizer, shards and model below data/built are of one vocabulary: the same ids must mean the same text."""
    files = ("tokenizer.json", "stories/manifest.json", "model/tokenizer.json")
    found = {file.partition("/")[0]: vocabulary_of(BUILT / file) for file in files if (BUILT / file).exists()}
    if not found:
        return
    each = [f"{name} has {size:,} tokens ({mark[:8]})" for name, (mark, size) in found.items()]
    fine = len(set(found.values())) == 1 and all(size == VOCABULARY for _, size in found.values())
    text = f"data/built: {', '.join(each)}; chapters need one vocabulary, of {VOCABULARY:,}"
    remedy = "delete tokenizer.json, stories and model there, and `course run 01 07` makes them again"
    yield green_if(fine, "vocabulary", text, remedy, RED)


def vocabulary_of(path: Path) -> tuple[str, int]:
    """The fingerprint and the number of tokens in a saved tokenizer or a manifest."""
    try:
        saved = json.loads(path.read_bytes())
        size = saved["vocab_size"] if "vocab_size" in saved else len(saved["vocab"]) + len(saved["special"])
        return saved["fingerprint"], size
    except (ValueError, LookupError, TypeError):
        return "damaged", 0


def arithmetic() -> Iterator[Finding]:
    if (chosen := device_if_there()) is None:
        return
    if chosen.type == "cpu":
        yield Finding(GREEN, "arithmetic", "the CPU's, with which other devices are compared")
        return
    error, remedy = disagreement(chosen), "elsewhere set NANOGPT_DEVICE=cpu yourself"
    text = f"a training step on {chosen} differs from the CPU's by {error:.0e}"
    if not error < TOLERANCE:  # also nan
        text += ", so the course stays on the CPU"
    yield green_if(error < TOLERANCE, "arithmetic", text, remedy)


CHECKS = (python, packages, package, resources, busy, device, compiler, built, arithmetic)
