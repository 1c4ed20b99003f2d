"""Two hosts on one machine: network namespaces that a cable, a veth pair, joins. Needs root and iproute2."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ADDRESSES = "10.77.0.1", "10.77.0.2"
PORT = 29500  # each pair of hosts has a network of its own


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def why_no_hosts() -> str | None:
    """What is missing here, if two hosts cannot be made."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces take root on Linux"
    if shutil.which("ip") is None:
        return "no `ip` here: apt-get install iproute2"
    try:
        ip("netns", "add", name := f"course-try-{os.getpid()}")
        ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"this container makes no network namespaces: {error.stderr.strip()}"
    return None


@dataclass
class Hosts:
    """Two hosts with a cable; all that runs on them ends when they are removed."""

    names: tuple[str, str] = field(default_factory=lambda: tuple(f"course-{os.getpid()}-{i}" for i in (0, 1)))
    cards: tuple[str, str] = ("cable0", "cable1")
    started: list[subprocess.Popen] = field(default_factory=list)

    def __enter__(self) -> "Hosts":
        try:
            for name in self.names:
                ip("netns", "add", name)
            (a, b), (at_a, at_b) = self.names, self.cards
            ip("link", "add", at_a, "netns", a, "type", "veth", "peer", "name", at_b, "netns", b)
            for name, card, address in zip(self.names, self.cards, ADDRESSES):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", card)
                ip("-n", name, "link", "set", "lo", "up")
            self.plug_in()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.remove()

    def remove(self) -> None:
        # First those that may be on their way to a host: it does not know of them yet, and they would outlive it.
        for process in self.started:
            process.kill()
            process.wait()
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.end_all(name)
                ip("netns", "del", name)

    def end_all(self, name: str) -> None:
        """Again until none is left: one may have started another between our look and its end."""
        while pids := ip("netns", "pids", name).split():
            for pid in map(int, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def worker(self, host: int) -> int:
        """The process id of the rank that a torchrun has started on a host."""
        pids = map(int, ip("netns", "pids", self.names[host]).split())
        return next(p for p in pids if b"\0LOCAL_RANK=" in Path(f"/proc/{p}/environ").read_bytes())

    def running(self) -> list[str]:
        return [pid for name in self.names for pid in ip("netns", "pids", name).split()]

    def plug_in(self) -> None:
        for name, card in zip(self.names, self.cards):
            ip("-n", name, "link", "set", card, "up")

    def cut(self) -> None:
        """The cable is out: no packet arrives, and no connection is told so."""
        ip("-n", self.names[0], "link", "set", self.cards[0], "down")

    def start(self, host: int, *words: str, out: Path, **env: str) -> subprocess.Popen:
        """A command of this Python on a host, one thread a process, its output in a file."""
        env = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.cards[host]} | env
        command = ["ip", "netns", "exec", self.names[host], sys.executable, *words]
        with open(out, "ab") as file:
            self.started.append(subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT))
        return self.started[-1]


def rendezvous(kind: str, host: int) -> list[str]:
    """torchrun's options by which two hosts find each other."""
    if kind == "static":
        return ["--node-rank", str(host), "--master-addr", ADDRESSES[0], "--master-port", str(PORT)]
    endpoint = ["--rdzv-id", "course", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}"]
    # Both hosts have this machine's name, by which c10d would find out who of them is the first one.
    return [*endpoint, "--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", ADDRESSES[host]]


def torchrun(hosts: Hosts, kind: str, folder: Path, *words: str, restarts: int = 0, **env: str) -> list:
    """torchrun on both, one process each, as one would type it twice; what they print goes to host0.out and host1.out."""
    head = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    head += ["--max-restarts", f"{restarts}", "--monitor-interval", "0.1"]
    return [
        hosts.start(host, *head, *rendezvous(kind, host), *words, out=folder / f"host{host}.out", **env)
        for host in (1, 0)
    ][::-1]


def said(folder: Path, host: int) -> str:
    return (folder / f"host{host}.out").read_text(encoding="utf-8", errors="replace")
