"""The sandboxes that there are: the command line of each, which of them work here, and what one shows."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from course.paths import ROOT, CourseError

MEMORY = 4 << 30  # of one process, and of all of a box together
LIMITS = {"AS": MEMORY, "NPROC": 64, "FSIZE": 64 << 20, "NOFILE": 256, "CORE": 0, "CPU": 600}
TMP = 64 << 20  # bytes in /tmp
UIDS = range(61184, 65520)  # no account has one of these; systemd lends them out the same way
ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "USER": "student",
}
ENVIRONMENT |= {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # large pages, where there are some: a fork has fewer to copy
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",  # for a submission that sets a number of threads of its own
    "NANOGPT_DEVICE": "cpu",
    "NANOGPT_SCALE": "laptop",
    "HF_HUB_OFFLINE": "1",
}
# The Python that .venv was made of: a copy of its program in .venv/bin, which is none of the folders that are shown, would
# not be there. It finds torch by the paths that it is given.
PYTHON = [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-I", "-S", "-B"]
NAMES = ("bubblewrap", "docker", "podman", "container", "trusted")


def site_folders() -> list[str]:
    """Where packages are: the folders of this Python's path that hold installed ones."""
    return [folder for folder in sys.path if folder.endswith("-packages") and os.path.isdir(folder)]


def needed() -> list[str]:
    """The folders that are needed to run the driver with torch, beside /usr. Each is shown at its own place."""
    ours = [str(ROOT / name) for name in ("course", "nanogpt")]
    folders = dict.fromkeys([sys.base_prefix, sys.base_exec_prefix, *site_folders(), *ours])
    return [folder for folder in folders if not folder.startswith("/usr/") or folder.startswith(f"{ROOT}/")]


def view() -> list[str]:
    """bwrap's arguments for the files that are needed, and no others."""
    words = ["--ro-bind", "/usr", "/usr"]
    if ROOT.is_relative_to("/usr"):  # with the solutions in it
        words += ["--tmpfs", str(ROOT)]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            words += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            words += ["--ro-bind", name, name]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
        words += ["--ro-bind-try", name, name]
    for folder in needed():
        words += [*parents(folder), "--ro-bind", os.path.realpath(folder), folder]
    return words


def parents(path: str) -> list[str]:
    """bwrap's arguments for the folders above one: it would make them for root alone."""
    above = reversed(Path(path).parents[:-1])
    return [word for folder in above for word in ("--perms", "0755", "--dir", str(folder))]


def shown() -> list[str]:
    """A first bwrap shows the few files, and the machine's processes, to the one that makes a sandbox."""
    whole = ["--dir", "/tmp", "--bind", "/proc", "/proc", "--dev-bind", "/dev", "/dev", "--"]
    return ["bwrap", *view(), *whole]


def isolated(uid: int, info: int, *more: str) -> list[str]:
    """A second one isolates, as root under another uid: one that may not enter /root cannot bind what lies there, and
    limits on processes do not bind root. `info` is the descriptor on which it says the number of its child."""
    words = ["--unshare-all", "--unshare-user", "--disable-userns", "--clearenv", "--die-with-parent"]
    words += ["--new-session", "--hostname", "sandbox", "--info-fd", str(info), *more, "--ro-bind", "/", "/"]
    words += ["--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc"]
    for folder in ("/dev/shm", "/tmp"):
        words += ["--size", str(TMP), "--tmpfs", folder]
        for path in needed():  # a course that lies below /tmp
            words += [*parents(path), "--ro-bind", path, path] if path.startswith(f"{folder}/") else []
    words += [word for pair in ENVIRONMENT.items() for word in ("--setenv", *pair)]
    return [*(as_uid(uid) if os.geteuid() == 0 else []), "bwrap", *words, "--chdir", "/tmp", "--"]


def bubblewrap(uid: int, info: int, *more: str) -> list[str]:
    return [*shown(), *isolated(uid, info, *more)]


def as_uid(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--"]


def container(uid: int) -> list[str]:
    """Root in a container that may make no namespaces: another uid, without a network where that can be had."""
    return [*no_network(), *as_uid(uid)]


@functools.cache
def no_network() -> list[str]:
    words = ["unshare", "--net", "--"]
    return words if succeeds([*words, "true"]) else []


def engine(name: str, image: str, box: str) -> list[str]:
    """docker's or podman's command line. The image's own PATH leads to a Python with torch; the driver and nanogpt
    come from here."""
    words = [name, "run", "--rm", "--interactive", "--name", box, "--network", "none", "--read-only"]
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--pids-limit", str(LIMITS["NPROC"])]
    words += ["--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--user", "65534:65534"]
    words += ["--tmpfs", f"/tmp:size={TMP},mode=1777", "--workdir", "/tmp"]
    words += [f"--env={name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"]
    for folder in ("course", "nanogpt"):
        words += ["--volume", f"{ROOT / folder}:/grade/{folder}:ro"]
    return [*words, image]


def succeeds(command: list[str]) -> bool:
    try:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.run(command, timeout=30, **quiet).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def choose(name: str | None = None, trusted: bool = False, image: str = "") -> str:
    """The backend to use: the one asked for, or the first that works here. CourseError where there is none.

    A weaker one takes bubblewrap's place only where it is not installed, or where it is asked for.
    """
    if name == "trusted" or (trusted and name is None):
        if not trusted:
            raise CourseError("no sandbox is used only with --i-trust-these-submissions")
        return "trusted"
    if name in ("docker", "podman") and not image:
        raise CourseError(f"{name} needs --image: one that has Python and PyTorch")
    if name is None and shutil.which("bwrap") and not bubblewrap_works():
        raise CourseError(
            "bubblewrap is installed and does not work here; name another sandbox: --backend container"
        )
    works = {
        "bubblewrap": bubblewrap_works,
        "docker": lambda: image and succeeds(["docker", "info"]),
        "podman": lambda: image and succeeds(["podman", "info"]),
        "container": lambda: not why_no_container(),
    }
    for candidate in [name] if name else works:
        if works[candidate]():
            return candidate
    if name:
        why = why_no_container() if name == "container" else "it is not installed, or may not run"
        raise CourseError(f"the sandbox {name!r} does not work here: {why}")
    raise CourseError(
        "no sandbox works here; install bubblewrap (apt-get install bubblewrap), run as root in a container with the "
        "course where all may read it, or name a docker image with --image; --i-trust-these-submissions grades "
        "without any"
    )


def bubblewrap_works() -> bool:
    return shutil.which("bwrap") is not None and succeeds([*bubblewrap(UIDS[0], 2), "true"])


def why_no_container() -> str | None:
    """Its submissions run as another account, which root alone can do, and which has to read what it runs."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("setpriv") is None:
        return "it takes root, and setpriv"
    for folder in needed():
        if not succeeds([*as_uid(UIDS[0]), "test", "-r", folder, "-a", "-x", folder]):
            return (
                f"no account but root's may read {folder}; install the course where all may, not below /root"
            )
    return None


def unneeded() -> list[Path]:
    """The course's folders that no sandbox needs: the sets with their solutions, notebooks, tests; and git's history of them."""
    beside = [path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink()]
    return [*(path for path in beside if not any(Path(f).is_relative_to(path) for f in needed())), *history()]


def history() -> list[Path]:
    """Where git keeps a work tree's objects when its .git is a file."""
    pointer = ROOT / ".git"
    if not pointer.is_file():
        return []
    folder = ROOT / pointer.read_text().partition("gitdir:")[2].strip()
    common = folder / "commondir"
    return [(folder / common.read_text().strip()).resolve() if common.is_file() else folder]


def hide(folders: list[Path]) -> None:
    """In a container the file system is one: what submissions must not read is root's alone."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
