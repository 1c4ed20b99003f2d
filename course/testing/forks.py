"""Kernels and checkpoints' trials of `course test` are forks of one Python that has loaded PyTorch (fork_server.py).

Each has a namespace, an environment and a course of its own, as if it were started anew. Where nothing forks, and where a
fork would be another program than a new process, they are new processes.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

from course.package.checkpoint import PYTHON

SERVER = Path(__file__).with_name("fork_server.py")
KERNEL = "forked"


class Forks:
    """`words` and `env` are what a pytest needs for its kernels to be forks; they are while this is entered."""

    def __init__(self, folder: Path, env: dict[str, str]):
        self.folder, self.env, self.words, self.server = folder, dict(env), ["--nbval-current-env"], None
        self.refused: dict[str, int] = {}  # in the end: how many were new processes for a variable of theirs
        self.python: dict[
            str, str
        ] = {}  # what tells a checkpoint, or torchrun's ranks, of the program that forks
        self.socket = folder / "socket"
        if sys.platform != "linux":
            return
        python = [sys.executable, "-S", SERVER, "run", self.socket]
        program, spec = folder / "python", folder / "kernels" / KERNEL / "kernel.json"
        spec.parent.mkdir(parents=True)
        quoted = " ".join(shlex.quote(str(word)) for word in python)
        program.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        argv = [str(program), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.write_text(json.dumps({"argv": argv, "display_name": KERNEL, "language": "python"}))
        self.python = {PYTHON: str(program)}
        self.env |= self.python | {"JUPYTER_PATH": str(folder)}
        self.words = [f"--nbval-kernel-name={KERNEL}"]

    def __enter__(self) -> "Forks":
        if sys.platform == "linux":
            command = [sys.executable, SERVER, "serve", self.socket]
            pipe = subprocess.PIPE
            self.server = subprocess.Popen(
                command, env=self.env, stdin=pipe, stdout=pipe, start_new_session=True
            )
            self.server.stdout.readline()  # it listens; without a server each start is a new process
        return self

    def __exit__(self, *_) -> None:
        if self.server:
            self.server.stdin.close()
            self.refused = json.loads(self.server.stdout.read() or "{}")
            self.server.stdout.close()
            self.server.wait()
