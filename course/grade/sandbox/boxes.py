"""Where submissions' code runs: a Box is one driver, for one submission, and everything that comes from it."""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from course.grade.sandbox import protocol, sandbox
from course.grade.sandbox.processes import free_uid, pids, shared_memory, sweep, uid_of, wait_for, written
from course.grade.sandbox.sandbox import (
    ENVIRONMENT,
    LIMITS,
    MEMORY,
    PYTHON,
    as_uid,
    site_folders,
    succeeds,
)
from course.paths import ROOT

READY = 120.0  # seconds until torch is imported, on a machine with other work
DISK = 1 << 30  # bytes by which the disk may fill where /tmp lies on it


class Ended(Exception):
    """The box gave no reply: `verdict` is timeout, crashed, output_limit or bad_reply; or it was not asked: invalid_cell."""

    def __init__(self, verdict: str, message: str):
        super().__init__(message)
        self.verdict = verdict


class SandboxError(Exception):
    """Our own failure: the sandbox did not start, or could not be ended."""


class Box:
    """A sandbox that is starting, running or ended. Not to be used after an Ended was raised, but closed.

    With a Template, under bubblewrap, it is a fork of that; else a process of its own that imports what it needs.
    """

    def __init__(self, backend: str, preload: list[str], image: str = "", template=None):
        self.backend, self.buffer, self.namespace = backend, bytearray(), ""
        self.child, self.life = 0, -1  # pid 1 of the sandbox, by its number outside; see Template.start
        self.process: subprocess.Popen | None = None
        self.uid = free_uid()
        self.watched, self.shared = time.monotonic(), shared_memory()
        self.name = f"grade-{os.getpid()}-{random.SystemRandom().randrange(10**9)}"
        self.home = Path(tempfile.mkdtemp(prefix="box-")) if backend in ("container", "trusted") else None
        self.disk = shutil.disk_usage(self.home).free if self.home else 0
        self.told, info = os.pipe()
        theirs, self.requests = os.pipe()
        self.replies, out = os.pipe()
        os.set_blocking(self.requests, False)
        os.set_blocking(self.replies, False)
        try:
            if template:
                self.child, self.life = template.start(self.uid, theirs, out)
                self.namespace = os.readlink(f"/proc/{self.child}/ns/pid")
            else:
                self.start(preload, image, theirs, out, info)
        finally:
            for fd in (theirs, out, info):
                os.close(fd)

    def start(self, preload: list[str], image: str, stdin: int, stdout: int, info: int) -> None:
        command = {
            "bubblewrap": lambda: sandbox.bubblewrap(self.uid, info),
            "container": lambda: sandbox.container(self.uid),
            "docker": lambda: sandbox.engine("docker", image, self.name),
            "podman": lambda: sandbox.engine("podman", image, self.name),
            "trusted": lambda: [],
        }[self.backend]()
        command += PYTHON if self.backend not in ("docker", "podman") else ["python3", "-I", "-B"]
        env = None
        if self.home:
            env = ENVIRONMENT | {"HOME": str(self.home), "TMPDIR": str(self.home)}
            if self.backend == "container":
                os.chown(self.home, self.uid, self.uid)
        self.process = subprocess.Popen(
            [*command, *program("sandbox/driver.py", self.backend, preload)],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            pass_fds=[info] if self.backend == "bubblewrap" else [],
            cwd=self.home or "/",
            env=env,
            start_new_session=True,  # Ctrl-C is the grader's to answer
        )

    def wait(self) -> None:
        """Until the box is ready for requests."""
        try:
            self.receive(time.monotonic() + READY)
        except Ended as ended:
            raise SandboxError(f"the sandbox did not start: {self.last_words() or ended}") from None
        if self.backend == "bubblewrap" and not self.namespace:
            self.child = json.loads(os.read(self.told, 10_000))["child-pid"]
            self.namespace = os.readlink(f"/proc/{self.child}/ns/pid")
        if self.namespace == namespace_of_ours():
            raise SandboxError("the sandbox shares our processes")

    def last_words(self) -> str:
        if not self.process:
            return ""
        self.process.kill()
        said = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else ""

    def send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self.until(self.requests, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self.requests, rest) :]
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
            self.until(self.replies, select.POLLIN, deadline)
            part = os.read(self.replies, 1 << 20)
            if not part:
                raise Ended("crashed", "the process ended without a result")
            self.buffer += part
        taken = bytes(self.buffer[:length])
        del self.buffer[:length]
        return taken

    def until(self, fd: int, event: int, deadline: float) -> None:
        """Wait until a pipe can be read or written."""
        poll = select.poll()
        poll.register(fd, event)
        while not poll.poll(200):
            self.watch(deadline)
        self.watch(deadline)

    def watch(self, deadline: float) -> None:
        """Its time; and what it takes of the machine, every 0.2 s, be it ever so talkative."""
        if (now := time.monotonic()) > deadline:
            raise Ended("timeout", "it was not done in time")
        if now < self.watched + 0.2:
            return
        self.watched = now
        if self.memory() > MEMORY:
            raise Ended("crashed", f"it took more than {MEMORY >> 30} GiB of memory")
        if shared_memory() - self.shared > MEMORY:  # by which box cannot be seen: nobody loses points
            raise SandboxError(f"while it ran, this machine's shared memory grew by {MEMORY >> 30} GiB")
        lost = self.disk - shutil.disk_usage(self.home).free if self.home else 0
        if lost > DISK and written(self.uid, self.home) > DISK:  # another box may have filled it
            raise Ended("crashed", f"it wrote more than {DISK >> 20} MiB")
        if lost > 8 * DISK:
            raise SandboxError(f"while it ran, the disk filled by {8 * DISK >> 30} GiB")

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
        if self.process:
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
        if self.process:
            wait_for(self.process)
            self.process.stderr.close()
        for fd in {self.requests, self.replies, self.told, self.life} - {-1}:
            os.close(fd)
        if self.home:
            shutil.rmtree(self.home, ignore_errors=True)
            sweep(self.uid)


def namespace_of_ours() -> str | None:
    return os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else None


def program(file: str, backend: str, preload: list[str], **more) -> list[str]:
    """A file of course/grade and its options, with the paths that it has where it runs."""
    root, folders = ("/grade", []) if backend in ("docker", "podman") else (str(ROOT), site_folders())
    options = {
        "path": [root, *folders],
        "preload": preload,
        "alone": backend != "trusted",
        "limits": {} if backend == "trusted" else LIMITS,
    } | more
    return [f"{root}/course/grade/{file}", json.dumps(options)]
