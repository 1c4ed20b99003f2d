"""Where submissions' code runs. A Box is one process of driver.py, for one submission, and everything that comes from it."""

import contextlib
import functools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from course.grade import protocol
from course.paths import ROOT, CourseError

MEMORY = 4 << 30  # of one process, and of all of a box together
LIMITS = {"AS": MEMORY, "NPROC": 64, "FSIZE": 64 << 20, "NOFILE": 256, "CORE": 0, "CPU": 600}
TMP = 64 << 20  # bytes in /tmp
DISK = 1 << 30  # bytes by which the disk may fill where /tmp lies on it
READY = 120.0  # seconds until torch is imported, on a machine with other work
UIDS = range(61184, 65520)  # no account has one of these; systemd lends them out the same way
ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "USER": "student",
}
ENVIRONMENT |= {
    "OMP_NUM_THREADS": "1",
    "NANOGPT_DEVICE": "cpu",
    "NANOGPT_SCALE": "laptop",
    "HF_HUB_OFFLINE": "1",
}
PYTHON = [os.path.realpath(sys.executable), "-I", "-S", "-B"]
NAMES = ("bubblewrap", "docker", "podman", "container", "trusted")


class Ended(Exception):
    """The box gave no reply: `verdict` is timeout, crashed, output_limit or bad_reply."""

    def __init__(self, verdict: str, message: str):
        super().__init__(message)
        self.verdict = verdict


class SandboxError(Exception):
    """Our own failure: the sandbox did not start, or could not be ended."""


def site_folders() -> list[str]:
    """Where packages are: the folders of this Python's path that hold installed ones."""
    return [folder for folder in sys.path if folder.endswith("-packages") and os.path.isdir(folder)]


def packages() -> dict[str, str]:
    """Where bubblewrap shows them: their own place may lie below /tmp, which is another one in the sandbox."""
    return {folder: f"/grade/packages/{i}" for i, folder in enumerate(site_folders())}


def view() -> list[str]:
    """bwrap's arguments for the files that are needed to run Python with torch, and no others."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(name):
            words += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            words += ["--ro-bind", name, name]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
        words += ["--ro-bind-try", name, name]
    needed = {folder: folder for folder in (sys.base_prefix, sys.base_exec_prefix)}
    needed |= packages() | {str(ROOT / name): f"/grade/{name}" for name in ("course", "nanogpt")}
    for source, to in needed.items():
        if not to.startswith("/usr/"):
            words += [*parents(to), "--ro-bind", os.path.realpath(source), to]
    return words


def parents(path: str) -> list[str]:
    """bwrap's arguments for the folders above one: it would make them for root alone."""
    above = reversed(Path(path).parents[:-1])
    return [word for folder in above for word in ("--perms", "0755", "--dir", str(folder))]


def bubblewrap(uid: int, info: int) -> list[str]:
    """As root, one bwrap shows the few files and a second one, under another uid, isolates: a uid that may not
    enter /root cannot bind what lies there, and limits on processes do not bind root."""
    isolated = ["--unshare-all", "--unshare-user", "--disable-userns", "--clearenv", "--die-with-parent"]
    isolated += ["--new-session", "--info-fd", str(info), "--hostname", "sandbox"]
    own = ["--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc"]
    own += [
        "--size",
        str(TMP),
        "--tmpfs",
        "/dev/shm",
        "--size",
        str(TMP),
        "--tmpfs",
        "/tmp",
        "--chdir",
        "/tmp",
    ]
    own += [word for pair in ENVIRONMENT.items() for word in ("--setenv", *pair)]
    if os.geteuid() != 0:
        return ["bwrap", *isolated, "--uid", "65534", "--gid", "65534", *view(), *own, "--"]
    outer = [
        "bwrap",
        *view(),
        "--dir",
        "/tmp",
        "--bind",
        "/proc",
        "/proc",
        "--dev-bind",
        "/dev",
        "/dev",
        "--",
    ]
    return [*outer, *as_uid(uid), "bwrap", *isolated, "--ro-bind", "/", "/", *own, "--"]


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
    """docker's or podman's command line. The image has Python and torch; the driver and nanogpt come from here."""
    words = [name, "run", "--rm", "--interactive", "--name", box, "--network", "none", "--read-only"]
    words += [
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--pids-limit",
        str(LIMITS["NPROC"]),
    ]
    words += ["--memory", str(MEMORY), "--memory-swap", str(MEMORY), "--user", "65534:65534"]
    words += ["--tmpfs", f"/tmp:size={TMP},mode=1777", "--workdir", "/tmp"]
    words += [word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
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
        "container": lambda: hasattr(os, "geteuid") and os.geteuid() == 0 and runs_under_a_uid(),
    }
    for candidate in [name] if name else works:
        if works[candidate]():
            return candidate
    raise CourseError(
        f"{name or 'no sandbox'} works here; install bubblewrap (apt-get install bubblewrap), run as root in a "
        "container, or name a docker image with --image; --i-trust-these-submissions grades without any"
        if not name
        else f"the sandbox {name!r} does not work here"
    )


def bubblewrap_works() -> bool:
    return shutil.which("bwrap") is not None and succeeds([*bubblewrap(UIDS[0], 2), "true"])


def runs_under_a_uid() -> bool:
    """Can another uid run this Python? One below /root it cannot."""
    return succeeds([*as_uid(UIDS[0]), *PYTHON, "-c", "pass"])


def free_uid() -> int:
    taken = {uid_of(pid) for pid in pids()}
    return random.SystemRandom().choice([uid for uid in UIDS if uid not in taken])


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if os.path.isdir("/proc") else []


def uid_of(pid: int) -> int | None:
    """The real uid of a process that has not ended."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return None
    return None if fields["State"].split()[0] in "ZX" else int(fields["Uid"].split()[0])


class Box:
    """A sandbox that is starting, running or ended. Not to be used after an Ended was raised, but closed."""

    def __init__(self, backend: str, preload: list[str], image: str = ""):
        self.backend, self.buffer, self.namespace = backend, bytearray(), ""
        self.child = 0  # bwrap's pid 1, by its number outside
        self.uid = free_uid()
        self.name = f"grade-{os.getpid()}-{random.SystemRandom().randrange(10**9)}"
        self.home = Path(tempfile.mkdtemp(prefix="box-")) if backend in ("container", "trusted") else None
        self.disk = shutil.disk_usage(self.home).free if self.home else 0
        inside = backend in ("bubblewrap", "docker", "podman")
        paths = ["/grade"] if inside else [str(ROOT)]
        own_python = backend not in ("docker", "podman")
        shown = [*packages().values()] if inside else site_folders()
        options = {
            "path": paths + (shown if own_python else []),
            "preload": preload,
            "alone": backend != "trusted",
            "limits": {} if backend == "trusted" else LIMITS,
        }
        told, info = os.pipe()
        command = {
            "bubblewrap": lambda: bubblewrap(self.uid, info),
            "container": lambda: container(self.uid),
            "docker": lambda: engine("docker", image, self.name),
            "podman": lambda: engine("podman", image, self.name),
            "trusted": lambda: [],
        }[backend]()
        command += PYTHON if own_python else ["python3", "-I", "-B"]
        command += [f"{paths[0]}/course/grade/driver.py", json.dumps(options)]
        env = None
        if self.home:
            env = ENVIRONMENT | {"HOME": str(self.home), "TMPDIR": str(self.home)}
            if backend == "container":
                os.chown(self.home, self.uid, self.uid)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=[info] if backend == "bubblewrap" else [],
            cwd=self.home or "/",
            env=env,
            start_new_session=True,  # Ctrl-C is the grader's to answer
        )
        os.close(info)
        self.told = told
        for stream in (self.process.stdin, self.process.stdout):
            os.set_blocking(stream.fileno(), False)

    def wait(self) -> None:
        """Until the box is ready for requests."""
        try:
            self.receive(time.monotonic() + READY)
        except Ended as ended:
            self.process.kill()
            said = self.process.stderr.read().decode(errors="replace").strip().splitlines()
            raise SandboxError(f"the sandbox did not start: {said[-1] if said else ended}") from None
        if self.backend == "bubblewrap":
            about = json.loads(os.read(self.told, 10_000))
            self.child = about["child-pid"]
            self.namespace = os.readlink(f"/proc/{self.child}/ns/pid")

    def send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self.until(self.process.stdin, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self.process.stdin.fileno(), rest) :]
            except BlockingIOError:
                continue
            except OSError:
                raise Ended("crashed", "the process ended") from None

    def receive(self, deadline: float) -> dict:
        """The next frame, decoded. A call and its answer are not: they stand in `raw`, to be passed on."""
        try:
            prefix = self.exactly(protocol.PREFIX.size, deadline)
            length, rest = protocol.lengths(prefix)
            text, body = self.exactly(length, deadline), self.exactly(rest, deadline)
            frame = protocol.header_of(text)
            if frame["kind"] in ("call", "answer"):
                return frame | {"raw": prefix + text + body}
            return protocol.with_values(frame, body)
        except protocol.TooLarge as error:
            raise Ended("output_limit", str(error)) from None
        except protocol.BadFrame as error:
            raise Ended("bad_reply", str(error)) from None

    def exactly(self, length: int, deadline: float) -> bytes:
        while len(self.buffer) < length:
            self.until(self.process.stdout, select.POLLIN, deadline)
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            if not part:
                raise Ended("crashed", "the process ended without a result")
            self.buffer += part
        taken = bytes(self.buffer[:length])
        del self.buffer[:length]
        return taken

    def until(self, stream, event: int, deadline: float) -> None:
        """Wait until a pipe can be read or written. What the box takes of memory is looked at meanwhile."""
        poll = select.poll()
        poll.register(stream, event)
        while not poll.poll(200):
            if time.monotonic() > deadline:
                raise Ended("timeout", "it was not done in time")
            if self.memory() > MEMORY:
                raise Ended("crashed", f"it took more than {MEMORY >> 30} GiB of memory")
            if self.home and self.disk - shutil.disk_usage(self.home).free > DISK:
                raise Ended("crashed", f"it wrote more than {DISK >> 20} MiB")
        if time.monotonic() > deadline:
            raise Ended("timeout", "it was not done in time")

    def processes(self) -> list[int]:
        """What runs in the box, by its numbers outside."""
        if self.backend == "container":
            return [pid for pid in pids() if uid_of(pid) == self.uid]
        if self.namespace:
            return [pid for pid in pids() if self.is_mine(pid)]
        return []

    def is_mine(self, pid: int) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/ns/pid") == self.namespace and uid_of(pid) is not None
        except OSError:
            return False

    def memory(self) -> int:
        """Bytes that the box's processes hold together, without what they share with files."""
        pages = 0
        for pid in self.processes():
            with contextlib.suppress(OSError, ValueError):
                resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
                pages += int(resident) - int(shared)
        return pages * os.sysconf("SC_PAGE_SIZE") if pages else 0

    def close(self) -> None:
        """End everything in the box, and see that it has ended."""
        if self.backend in ("docker", "podman"):
            succeeds([self.backend, "kill", self.name])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # also a bwrap that is still being set up
        deadline = time.monotonic() + 10
        while left := self.processes():
            if self.backend == "container":
                succeeds([*as_uid(self.uid), "kill", "-KILL", "-1"])
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.child, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise SandboxError(f"processes {left} of the sandbox do not end")
            time.sleep(0.002)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        os.close(self.told)
        if self.home:
            shutil.rmtree(self.home, ignore_errors=True)
            sweep(self.uid)


def sweep(uid: int) -> None:
    """Remove what a uid left where everybody may write."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        for entry in os.scandir(folder) if os.path.isdir(folder) else []:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    shutil.rmtree(entry.path) if is_folder else os.unlink(entry.path)


def hide(folders: list[Path]) -> None:
    """In a container the file system is one: what submissions must not read is root's alone."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
