"""Sandboxes that begin without a wait: the next one of a submission, and the template that all are forks of."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from course.grade.sandbox import sandbox
from course.grade.sandbox.boxes import READY, Box, SandboxError, program
from course.grade.sandbox.template import INFO

LIBRARIES = re.compile(r"^(?:from|import) (torch|numpy|nanogpt\.\w+|nanogpt|course\.\w+)\b", re.MULTILINE)


@dataclass
class Options:
    backend: str
    seconds: float | None = None  # in place of every check's own limit
    image: str = ""
    ahead: bool = True  # start the next submission's sandbox early; one alone needs none


def preload(folder: Path) -> list[str]:
    """What an exercise's cells import and takes time: the sandbox has it before the submission comes."""
    source = (folder / "exercise.py").read_text(encoding="utf-8")
    names = set(LIBRARIES.findall(source))
    # FlopCounterMode loads torch._dynamo, in 0.7 s: here, not in every fork.
    if "FlopCounterMode" in source or "torch._dynamo" in source:
        names.add("torch._dynamo")
    return sorted(names)


class Template:
    """The process of template.py, from outside. Started, it imports what an exercise needs while we do the same."""

    def __init__(self, socket: socket.socket, pid: int):
        self.socket, self.pid = socket, pid

    @classmethod
    def started(cls, names: list[str]) -> "Template":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*sandbox.PYTHON, *program("sandbox/template.py", "bubblewrap", names)]
        env = sandbox.ENVIRONMENT
        process = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.DEVNULL, env=env, cwd="/", start_new_session=True
        )
        process.returncode = 0  # it is ended and waited for by its number
        theirs.close()
        return cls(ours, process.pid)

    def start(self, uid: int, requests: int, replies: int) -> tuple[int, int]:
        """A box that reads requests and writes replies: the number of its first process, and a descriptor with whose
        last copy it ends, be it that we die."""
        read, life = os.pipe()
        try:
            os.write(life, b"x")  # comes back when the sandbox is set up
            words = [*sandbox.bubblewrap(uid, INFO, "--as-pid-1"), "cat"]
            message = json.dumps({"command": words, "uid": uid}).encode()
            socket.send_fds(self.socket, [message], [requests, replies, read])
            if not select.select([self.socket], [], [], READY)[0]:
                raise SandboxError("the template gave no sandbox")
            reply = json.loads(self.socket.recv(10_000) or b'{"error": "the template ended"}')
            if "error" in reply:
                raise SandboxError(reply["error"])
            return reply["child"], life
        except (OSError, SandboxError) as error:
            os.close(life)
            raise SandboxError(f"the template: {error}") from None
        finally:
            os.close(read)

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Boxes:
    """The box at hand. Without a template the next one starts while this one works."""

    def __init__(self, options: Options, names: list[str], template: Template | None):
        self.start = lambda **more: Box(options.backend, names, options.image, **more)
        self.template, self.ahead = template, options.ahead and not template
        self.current: Box | None = None
        self.spare: Box | None = None if template else self.start()

    def ready(self) -> Box:
        self.current = self.current or self.forked() or self.imported()
        return self.current

    def forked(self) -> Box | None:
        """None where the template gives none, as on a kernel that lets nobody enter a namespace."""
        if not self.template:
            return None
        box = None
        try:
            box = self.start(template=self.template)
            box.wait()
            return box
        except SandboxError:
            self.template = None
            if box:
                box.close()
            return None

    def imported(self) -> Box:
        box, self.spare = self.spare or self.start(), None
        try:
            box.wait()
        except SandboxError:
            box.close()
            raise
        self.spare = self.start() if self.ahead else None
        return box

    def end(self) -> None:
        """The box at hand and all in it; the next request gets a fresh one."""
        box, self.current = self.current, None
        if box:
            box.close()

    def close(self) -> None:
        self.end()
        self.current, self.spare = self.spare, None
        self.end()
