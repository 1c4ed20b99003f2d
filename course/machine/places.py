"""Which place the course runs in (a laptop, Colab, a container, ...), by the signs that each documents, and what fits there."""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from course.machine.finding import GREEN, YELLOW, Finding
from course.paths import ROOT

# By environment variable: the first that is set. Codespaces is a dev container, and all of these are containers.
VARIABLES = {
    "COLAB_RELEASE_TAG": ("Google Colab", "files go with the runtime: download what you want to keep"),
    "KAGGLE_KERNEL_RUN_TYPE": ("Kaggle", "clone the course into /kaggle/working: Save Version keeps that alone"),
    "BINDER_LAUNCH_HOST": ("Binder", "it ends when you leave it idle: download what you want to keep"),
    "BINDER_REPO_URL": ("Binder", "it ends when you leave it idle: download what you want to keep"),
    "CODESPACES": ("GitHub Codespaces", "`course lab --no-browser`; its address is in the Ports tab"),
    "REMOTE_CONTAINERS": ("a dev container", "`course lab --no-browser`; its address is in the Ports tab"),
    "KUBERNETES_SERVICE_HOST": ("a Kubernetes pod", "`course lab --no-browser --ip=0.0.0.0`, then kubectl port-forward"),
}  # fmt: skip
# By a file that the container's engine leaves there.
FILES = {
    "run/.containerenv": ("a Podman container", "`course lab --no-browser --ip=0.0.0.0` behind podman run -p 8888:8888"),
    ".dockerenv": ("a Docker container", "`course lab --no-browser --ip=0.0.0.0` behind docker run -p 8888:8888"),
}  # fmt: skip


def place() -> Iterator[Finding]:
    where, hint = where_is_this(os.environ, Path("/"), sys.platform, platform.machine())
    python = f"in {python_of(os.environ, Path(sys.prefix), sys.prefix != sys.base_prefix)}"
    slow = where == "WSL" and on_windows_disk(ROOT)
    if slow:
        where, hint = "WSL, on Windows' disk", "clone the course into your home, where files are read faster"
    yield Finding(YELLOW if slow else GREEN, "place", f"{where}, {python}", hint)


def where_is_this(env: Mapping[str, str], root: Path, system: str, machine: str) -> tuple[str, str]:
    """The place, and what is worth knowing there. root: /, or a folder of the same shape."""
    for variable, found in VARIABLES.items():
        if env.get(variable):
            return found
    for file, found in FILES.items():
        if (root / file).exists():
            return found
    if "microsoft" in text(root / "proc/sys/kernel/osrelease").lower():
        return "WSL", ""
    if system == "darwin":
        return ("Apple silicon" if machine == "arm64" else "an Intel Mac"), ""
    return {"win32": "Windows", "linux": "Linux"}.get(system, system), ""


def python_of(env: Mapping[str, str], prefix: Path, virtual: bool) -> str:
    """Who made this Python's environment: uv and venv leave a pyvenv.cfg, conda a folder conda-meta."""
    if virtual:
        made_by_uv = re.search(r"^uv = ", text(prefix / "pyvenv.cfg"), re.MULTILINE)
        return "uv's environment" if made_by_uv else "a virtual environment"
    if (prefix / "conda-meta").is_dir():
        return f"the conda environment {env.get('CONDA_DEFAULT_ENV') or prefix.name}"
    return "the system's Python"


def on_windows_disk(folder: Path) -> bool:
    """In WSL: Windows' drives are mounted as /mnt/c and so on."""
    return re.match(r"/mnt/[a-z](/|$)", folder.as_posix()) is not None


def text(path: Path) -> str:
    """A small system file's text; "" where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# What a container may use of its machine


def memory_limit(root: Path = Path("/")) -> float:
    """Bytes that the control groups of this process allow, inf without a limit (Linux's cgroups, version 2 and 1)."""
    files = (
        group / name for group in groups(root, "memory") for name in ("memory.max", "memory.limit_in_bytes")
    )
    return min((float(limit) for limit in map(text, files) if limit.isdigit()), default=float("inf"))


def cpu_limit(root: Path = Path("/")) -> float:
    """Cores' worth of time that the control groups of this process allow, inf without a limit."""
    said = [
        text(group / "cpu.max") or f"{text(group / 'cpu.cfs_quota_us')} {text(group / 'cpu.cfs_period_us')}"
        for group in groups(root, "cpu")
    ]
    quotas = [re.fullmatch(r"(\d+) (\d+)", limit) for limit in said]
    return min((int(q[1]) / int(q[2]) for q in quotas if q), default=float("inf"))


def groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups and of those above: the tightest limit counts."""
    tops = {
        "": root / "sys/fs/cgroup",
        controller: root / "sys/fs/cgroup" / controller,
    }  # version 2, version 1
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        for top in (tops[name] for name in controllers.split(",") if name in tops):
            folder = top / own.strip("/")
            yield from (folder, *(above for above in folder.parents if above.is_relative_to(top)))
