"""`course grade selfcheck`: what a submission could try is tried, in the sandbox that would run it on this machine."""

import socket
import tempfile
import time
from pathlib import Path

from course.exercises.sets import EXERCISES
from course.grade.sandbox import protocol
from course.grade.sandbox.boxes import Box, Ended, SandboxError
from course.grade.sandbox.sandbox import hide, history, unneeded
from course.grade.sandbox.warm import Boxes, Options, Template
from course.paths import ROOT, CourseError

SECONDS = 3.0
SECRET = "what only the instructor may read"

# Each function `attempt` gives "" if it was stopped, else what it managed to do.
READ = """
def attempt(path):
    import os
    try:
        return f"read {os.listdir(path) if os.path.isdir(path) else open(path).read()}"
    except OSError:
        return ""
"""
WRITE = """
def attempt(path):
    try:
        open(path, "w").write("x")
        return f"wrote {path}"
    except OSError:
        return ""
"""
CONNECT = """
def attempt(port):
    import socket
    try:
        socket.create_connection(("127.0.0.1", port), 1)
        return "reached a socket of this machine"
    except OSError:
        return ""
"""
CALLS = """
def attempt():
    import ctypes, os, socket
    for family in (16, 17, 38, 40):  # netlink, packets, the kernel's ciphers, the machine below a virtual one
        try:
            socket.socket(family, socket.SOCK_RAW if family < 38 else socket.SOCK_STREAM)
            return f"made a socket of family {family}"
        except OSError:
            pass
    made = ctypes.CDLL(None, use_errno=True).syscall(425, 4, ctypes.create_string_buffer(120))
    return f"io_uring gave {made}" if made >= 0 else ""
"""
FORK = """
def attempt():
    import os, time
    for number in range(1000):
        try:
            child = os.fork()
        except OSError:
            return ""
        if child == 0:
            time.sleep(60)
            os._exit(0)
    return "made 1000 processes"
"""
ALLOCATE = """
def attempt():
    try:
        return f"got {len(bytearray(30 << 30)):,} bytes"
    except MemoryError:
        return ""
"""
ROOT_AGAIN = """
def attempt():
    import os
    try:
        os.setuid(0)
    except OSError:
        return ""
    return "became root"
"""
LOOP = "def attempt():\n    while True:\n        pass"
DAEMON = """
def attempt():
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    return ""
"""


def selfcheck(backend: str, image: str = "") -> int:
    """One line for each attempt; exit code 1 if one was not stopped."""
    if backend == "trusted":  # what is tried below would be done
        raise CourseError("with --i-trust-these-submissions there is no sandbox that could be checked")
    print(f"backend: {backend}")
    failed = False
    for what, said in attempts(backend, image):
        failed |= bool(said)
        print(f"  {'FAILED' if said else 'ok':8}{what}{f': {said}' if said else ''}", flush=True)
    return 1 if failed else 0


def attempts(backend: str, image: str):
    with (
        tempfile.TemporaryDirectory(prefix="selfcheck-") as name,
        socket.create_server(("127.0.0.1", 0)) as here,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        secret = folder / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        if backend == "container":
            hide(unneeded())
        template = Template.started([]) if backend == "bubblewrap" else None
        boxes = Boxes(Options(backend, image=image, ahead=False), [], template)
        try:
            box = boxes.ready()
            yield "the exercises with their solutions are not to be read", tried(box, READ, str(EXERCISES))
            past = str(history()[0] if history() else ROOT / ".git")
            yield "git's history of the solutions is not to be read", tried(box, READ, past)
            yield "a file of the instructor's is not to be read", tried(box, READ, str(secret))
            for path in [path for path in Path.home().iterdir() if path.is_file()][:1]:
                yield "the instructor's home is not to be read", tried(box, READ, str(path))
            said = tried(box, WRITE, str(folder / "planted"))
            there = (folder / "planted").exists() or secret.read_text() != SECRET
            yield "nothing outside is to be written", said or ("a file was written" if there else "")
            yield "no socket of this machine is to be reached", tried(box, CONNECT, here.getsockname()[1])
            yield "no other kind of socket, and no io_uring", tried(box, CALLS)
            yield "nobody becomes root", tried(box, ROOT_AGAIN)
            yield "processes are limited", tried(box, FORK)
            yield "memory is limited", tried(box, ALLOCATE)
            yield "a daemon ends with its check", tried(box, DAEMON) or left(box)
            yield "time is limited", "" if ended(box) == "timeout" else "a loop was not stopped"
        except SandboxError as error:
            yield "the sandbox starts", str(error)
            return
        finally:
            boxes.close()
            if template:
                template.close()
        yield "all processes are ended", f"{box.processes()} are left" if box.processes() else ""


def tried(box: Box, code: str, *args) -> str:
    """What an attempt says of itself."""
    deadline = time.monotonic() + SECONDS
    header = {"cells": [["", code]], "task": "", "student": "", "harness": "", "call": "attempt"}
    try:
        box.send(protocol.pack("run", 1, [args], **header), deadline)
        said = "it gave no answer"
        while (frame := box.receive(deadline))["kind"] != "ended":
            if frame["kind"] in ("value", "error"):
                said = frame["values"][0] if frame["kind"] == "value" else frame["message"]
        return said
    except Ended as ended:
        return str(ended)


def ended(box: Box) -> str:
    try:
        header = {"cells": [["", LOOP]], "task": "", "student": "", "harness": "", "call": "attempt"}
        box.send(protocol.pack("run", 1, [()], **header), time.monotonic() + SECONDS)
        while True:
            box.receive(time.monotonic() + 1)
    except Ended as ended:
        return ended.verdict


def left(box: Box) -> str:
    """Beyond the driver, and bwrap's own process, nothing runs."""
    most = 2 if box.backend == "bubblewrap" else 1
    return f"{len(box.processes())} processes are left" if len(box.processes()) > most else ""
