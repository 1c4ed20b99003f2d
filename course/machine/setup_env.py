"""`make` runs this once: .venv with the pinned packages. Standard library only; run it again at any time."""

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# A terminal gets pip's bars: minutes of silence look like a hang.
QUIETLY = [] if sys.stdout.isatty() else ["--quiet"]


def main() -> int:
    if not (3, 11) <= sys.version_info < (3, 14):
        version = sys.version.split()[0]
        return fail(f"this is Python {version}; the course needs 3.11 to 3.13: make PYTHON=python3.12")
    if (sys.platform, platform.machine()) == ("darwin", "x86_64"):
        return fail(
            "PyTorch has no build for this Python, which is one for Intel Macs; on Apple silicon install the arm64 one "
            "(python.org), on an Intel Mac run the course on Colab"
        )
    try:
        make_venv()
    except (subprocess.CalledProcessError, ImportError, OSError) as error:
        return fail(f"cannot create .venv ({error}); on Debian or Ubuntu: apt install python3-venv")
    if not install():
        return fail(
            "pip could not install the packages (see above); is the network there? Run the same command again."
        )
    (VENV / "ready").touch()
    say("ready")
    return 0


def make_venv() -> None:
    """A .venv with a pip that works: whoever made one keeps it, one whose creation was interrupted is mended."""
    if not (has_pip() or (run_quietly("-m", "ensurepip") and has_pip())):
        say("creating .venv")
        venv.create(VENV, with_pip=True, clear=True)


def has_pip() -> bool:
    """Whether .venv can install: asked for what is there, pip does nothing, but has to be whole."""
    return run_quietly("-m", "pip", "install", "--no-index", "--dry-run", "pip")


def install() -> bool:
    """PyTorch, unless it is there in whatever build, then the rest."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==\S+", pins, re.MULTILINE).group()
    return (run_quietly("-c", INSTALLED, torch) or install_torch(torch)) and pip_install("-e", ".[course]")


def install_torch(torch: str) -> bool:
    """PyTorch from the package index; without an NVIDIA GPU its CPU build, which Linux gets elsewhere."""
    linux = sys.platform == "linux"
    if linux and not nvidia_gpu():
        say(
            f"installing {torch} without CUDA, as there is no NVIDIA GPU (once; with all packages 2 GB of disk)"
        )
        if pip_install(f"{torch}+cpu", "--extra-index-url", CPU_INDEX, errors=subprocess.DEVNULL):
            return True
        say(f"no such build for this machine, or {CPU_INDEX} cannot be reached: taking the one with CUDA")
    say(f"installing {torch} (once; with all packages {6 if linux else 2} GB of disk)")
    return pip_install(torch)


INSTALLED = """
import sys
from importlib.metadata import version
raise SystemExit("torch==" + version("torch").split("+")[0] != sys.argv[1])
"""


def nvidia_gpu() -> bool:
    """Whether the NVIDIA driver is here: Linux's own file, or its program (Windows, WSL)."""
    files = map(Path, ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/nvidia-smi"))
    return any(file.exists() for file in files) or shutil.which("nvidia-smi") is not None


def pip_install(*packages: str, errors=None) -> bool:
    command = [str(PYTHON), "-m", "pip", "install", *QUIETLY, "-c", "constraints.txt", *packages]
    # A new pip explains editable installations, in a box of eight lines.
    env = os.environ | {"PYTHONWARNINGS": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(command, cwd=ROOT, stderr=errors, env=env).returncode == 0


def run_quietly(*arguments: str) -> bool:
    try:
        return subprocess.run([str(PYTHON), *arguments], capture_output=True).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    print(f"set-up: {text}", flush=True)


def fail(text: str) -> int:
    print(f"set-up: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit("\nset-up: stopped; the same command goes on from here") from None
