"""`make` runs this once: .venv with the pinned packages. Standard library only; run it again at any time."""

import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def main() -> int:
    if not (3, 11) <= sys.version_info < (3, 14):
        return fail(
            f"this is Python {sys.version.split()[0]}; the course needs 3.11 to 3.13: make PYTHON=python3.12"
        )
    if not has_pip() and not (PYTHON.exists() and run_quietly("ensurepip")):
        say("creating .venv")
        try:
            venv.create(VENV, with_pip=True, clear=True)
        except (subprocess.CalledProcessError, ImportError, OSError) as error:
            return fail(f"cannot create .venv ({error}); on Debian or Ubuntu: apt install python3-venv")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = re.search(r"^torch==\S+", pins, re.MULTILINE).group()
    say(
        f"installing {torch} and the pinned packages (once; 2 GB of disk, on Linux 6 with the CUDA libraries)"
    )
    for packages in ([torch], ["-e", ".[course,dev]"]):
        command = [
            str(PYTHON),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            "constraints.txt",
            *packages,
        ]
        if subprocess.run(command, cwd=ROOT).returncode:
            return fail(
                "pip could not install the packages (see above); is the network there? Run the same command again."
            )
    (VENV / "ready").touch()
    say("ready")
    return 0


def has_pip() -> bool:
    """Whether .venv has a Python with pip; one whose creation was interrupted has none."""
    return run_quietly("pip", "--version")


def run_quietly(*module: str) -> bool:
    try:
        return subprocess.run([str(PYTHON), "-m", *module], capture_output=True).returncode == 0
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
