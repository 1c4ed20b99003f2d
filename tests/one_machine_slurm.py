"""A Slurm of this machine's own: munged, slurmctld and two slurmd, on free ports and in a folder, for as long as a test takes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol"
INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]

# What one machine needs to be two nodes: no cgroups, no MPI, addresses instead of names, a core for each node.
CONF = """\
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=6
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
KillWait=5
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES
"""


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name) is None]


def why_no_slurm() -> str | None:
    """What is missing here; in CI, or where COURSE_TESTS_INSTALL is set, it is installed first."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not Path("/proc").is_dir():
        return "Slurm's daemons take root on Linux"
    if missing() and shutil.which("apt-get") and {"CI", "COURSE_TESTS_INSTALL"} & set(os.environ):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 300}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["apt-get", "update"], **quiet)
            subprocess.run(INSTALL, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, **quiet)
    if lacking := missing():
        return f"no {', '.join(lacking)} here: {' '.join(INSTALL)}, or set COURSE_TESTS_INSTALL=1"
    return None


def free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@dataclass
class Slurm:
    """Two nodes with a core each; leaving it ends jobs and daemons."""

    folder: Path
    daemons: list[subprocess.Popen] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self) -> "Slurm":
        folder = self.folder
        (folder / "state").mkdir(parents=True)
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        conf = CONF.format(host=socket.gethostname(), folder=folder, ports=free_ports(3))
        (folder / "slurm.conf").write_text(conf)
        files = {"key-file": "key"} | {f"{k}-file": f"munge.{k}" for k in ("pid", "log", "seed")}
        files["socket"] = "munge.socket"
        try:
            places = (f"--{option}={folder / name}" for option, name in files.items())
            self.daemon("munged", "--foreground", "--force", *places)
            self.wait_for("munged", (folder / "munge.socket").exists)
            self.daemon("slurmctld", "-D")
            for node in ("n1", "n2"):
                self.daemon("slurmd", "-D", "-N", node)
            self.wait_for("both nodes", lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.end()

    def daemon(self, *words: str) -> None:
        with open(self.folder / "daemons.out", "ab") as out:
            self.daemons.append(subprocess.Popen(words, env=self.env, stdout=out, stderr=subprocess.STDOUT))

    def end(self) -> None:
        """The daemons, the last one first, then what jobs have left."""
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        while left := self.left():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def left(self) -> list[int]:
        """Processes of this Slurm that still run: they know it by its configuration."""
        mark, found = f"SLURM_CONF={self.folder / 'slurm.conf'}".encode(), []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                found += [int(environ.parent.name)] * (mark in environ.read_bytes().split(b"\0"))
        return found

    def ask(self, *words: str) -> str:
        """One of Slurm's commands; what it prints."""
        return subprocess.run(words, env=self.env, capture_output=True, text=True).stdout.strip()

    def wait_for(self, what: str, true, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {seconds:g} s\n{self.told()}")
            time.sleep(0.1)

    def told(self) -> str:
        """The ends of its logs, for a test that fails."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("daemons.out")]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def state(self, job: str) -> str:
        """RUNNING, PENDING, COMPLETED and so on."""
        return self.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")
