"""`course doctor`: is this machine ready? One line each, with the remedy; exit 1 only on red."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from course.paths import BUILT, ROOT
from course.remedies import remedy_for
from course.trust import TOLERANCE, disagreement

GREEN, YELLOW, RED = "green", "yellow", "red"
CODES = {GREEN: "\x1b[32m", YELLOW: "\x1b[33m", RED: "\x1b[31m"}


@dataclass
class Finding:
    colour: str
    topic: str
    text: str
    remedy: str = ""

    def line(self, terminal: bool) -> str:
        mark = f"{CODES[self.colour]}●\x1b[0m" if terminal else f"{self.colour:6}"
        return f"{mark} {self.topic:12} {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def doctor(checks=None) -> int:
    """Make the checks, all of CHECKS if none are given, and print what they find; 1 if something is red."""
    terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    worst = GREEN
    for check in checks or CHECKS:
        for finding in guarded(check):
            print(finding.line(terminal), flush=True)
            worst = RED if finding.colour == RED else worst
    return 1 if worst == RED else 0


def guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that itself breaks is a finding, not a traceback."""
    try:
        yield from check()
    except Exception as error:
        yield Finding(
            RED,
            check.__name__.replace("_", " "),
            f"could not be checked ({type(error).__name__}: {error})",
            remedy_for(error) or "run `make course` again to repair .venv",
        )


def python() -> Iterator[Finding]:
    fine = (3, 11) <= sys.version_info < (3, 14)
    yield Finding(
        GREEN if fine else RED,
        "python",
        platform.python_version(),
        "" if fine else "install Python 3.11, 3.12 or 3.13",
    )


def packages() -> Iterator[Finding]:
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
    missing, other = [], []
    for name, required in wanted_packages():
        try:
            found = version(name).split("+")[0]
        except PackageNotFoundError:
            (missing if required else other).append(f"{name} is missing")
            continue
        if found != pins.get(name, found):
            other.append(f"{name} {found} (pinned {pins[name]})")
    if missing:
        yield Finding(
            RED,
            "packages",
            ", ".join(missing),
            "run `make course`, or pip install -c constraints.txt -e '.[course,dev]'",
        )
    if other:
        yield Finding(
            YELLOW,
            "packages",
            ", ".join(other),
            "usually fine; pip install -c constraints.txt -e '.[course,dev]' brings the pins",
        )
    if not missing and not other:
        yield Finding(GREEN, "packages", "all as pinned")


def wanted_packages() -> list[tuple[str, bool]]:
    """Names in pyproject.toml, and whether the course cannot do without ([dev] it can)."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    name = re.compile(r"^[\w.-]+")
    return [(name.match(d).group(), True) for d in project["dependencies"] + extras["course"]] + [
        (name.match(d).group(), False) for d in extras["dev"]
    ]


def kernel() -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    remedy = "python -m ipykernel install --sys-prefix"
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding(RED, "kernel", "Jupyter knows no python3 kernel", remedy)
        return
    # A bare "python" is this Python: jupyter_client puts its own executable there.
    ours = command in ("python", "python3") or os.path.realpath(command) == os.path.realpath(sys.executable)
    if ours:
        yield Finding(GREEN, "kernel", "python3, this Python")
    else:
        yield Finding(YELLOW, "kernel", "python3 is another Python than this one", remedy)


def resources() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory().total / 2**30
    free = shutil.disk_usage(ROOT).free / 2**30
    yield Finding(
        GREEN if memory >= 4 else YELLOW,
        "memory",
        f"{memory:.0f} GiB, {os.cpu_count()} cores",
        "" if memory >= 4 else "close other programs; chapters 07 and 08 want about 2 GiB",
    )
    yield Finding(
        GREEN if free >= 3 else RED if free < 0.5 else YELLOW,
        "disk",
        f"{free:.0f} GiB free",
        "" if free >= 3 else "free at least 3 GiB",
    )


def device() -> Iterator[Finding]:
    import torch

    from nanogpt.device import pick_device, pick_scale

    try:
        chosen = pick_device()
    except ValueError as error:
        yield Finding(RED, "device", str(error), "unset NANOGPT_DEVICE")
        return
    scale = pick_scale(chosen)
    if chosen.type != "cuda":
        yield Finding(
            GREEN,
            "device",
            f"{chosen}, scale {scale}" + ("" if chosen.type == "mps" else "; no GPU is needed"),
        )
        return
    name = torch.cuda.get_device_name(chosen)
    capability = ".".join(map(str, torch.cuda.get_device_capability(chosen)))
    memory = torch.cuda.get_device_properties(chosen).total_memory / 2**30
    yield Finding(
        GREEN, "device", f"{name}, {memory:.0f} GiB, compute capability {capability}, scale {scale}"
    )
    yield Finding(GREEN, "GPU driver", f"{driver()}, PyTorch built for CUDA {torch.version.cuda}")
    from nanogpt.roofline import peak_of

    if peak_of(name) is None:
        yield Finding(
            YELLOW, "peak", "not in chapter 09's table", "MFU is given against the measured peak only"
        )


def driver() -> str:
    """The NVIDIA driver's version; AMD's tools have another name, and none is no reason to stop."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "version unknown"


def speed_features() -> Iterator[Finding]:
    """TF32, bf16 and torch.compile: what chapters 10 and 11 will find, by the words of chapters 10 and 14."""
    from nanogpt.device import pick_device
    from nanogpt.precision import best_precision, why_not

    chosen = pick_device()
    tf32 = why_not("tf32", chosen)
    yield Finding(
        YELLOW if tf32 else GREEN, "TF32", tf32 or "yes", "chapter 10 shows recorded runs" if tf32 else ""
    )
    best = best_precision(chosen)
    yield Finding(
        YELLOW if best == "float32" else GREEN,
        "bf16",
        {"bf16": "faster than float32 here", "fp16": "not here, fp16 with loss scaling instead"}.get(
            best, "no faster than float32 here: correct, not fast"
        ),
        "keep float32 for speed" if best == "float32" else "",
    )
    from nanogpt.rungs import why_not_compiled

    reason = why_not_compiled(chosen)
    yield Finding(
        YELLOW if reason else GREEN,
        "compile",
        f"torch.compile: {reason}" if reason else "torch.compile finds its compiler",
        "chapter 11 runs without" if reason else "",
    )


def vocabulary() -> Iterator[Finding]:
    from nanogpt.tokenizer import BPETokenizer

    try:
        BPETokenizer.gpt2()
        yield Finding(GREEN, "GPT-2 vocab", "readable")
    except Exception:
        yield Finding(
            YELLOW,
            "GPT-2 vocab",
            "neither cached nor to be downloaded",
            "the course runs on its own tokenizer; set TIKTOKEN_CACHE_DIR, or go online once",
        )


def data() -> Iterator[Finding]:
    import socket

    there = (
        sorted(p.name for p in (ROOT / "data" / "downloads").glob("*"))
        if (ROOT / "data" / "downloads").is_dir()
        else []
    )
    built = "built" if (BUILT / "stories").is_dir() else "made by chapter 02"
    yield Finding(
        GREEN, "corpus", f"embedded, {built}" + (f"; downloaded: {', '.join(there)}" if there else "")
    )
    try:
        socket.create_connection(("huggingface.co", 443), timeout=3).close()
        yield Finding(GREEN, "data sets", "huggingface.co can be reached")
    except OSError:
        yield Finding(
            YELLOW,
            "data sets",
            "huggingface.co cannot be reached",
            "fine: the embedded corpus needs no network",
        )


def arithmetic() -> Iterator[Finding]:
    from nanogpt.device import pick_device

    chosen = pick_device()
    error = disagreement(chosen)
    if error < TOLERANCE:
        yield Finding(
            GREEN, "arithmetic", f"a training step on {chosen} agrees with the CPU's (to {error:.0e})"
        )
    else:
        text = f"a training step on {chosen} differs from the CPU's by {error:.0e}, so the course stays on the CPU"
        yield Finding(YELLOW, "arithmetic", text, "elsewhere set NANOGPT_DEVICE=cpu yourself")


CHECKS = (python, packages, kernel, resources, device, speed_features, vocabulary, data, arithmetic)
