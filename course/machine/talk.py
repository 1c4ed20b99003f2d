"""Can processes talk, and how fast: `course doctor --distributed` asks two here, torchrun any anywhere.

torchrun --nnodes 2 --nproc-per-node 1 ... -m course.machine.talk
"""

import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

from course.machine.doctor import GREEN, RED, Finding, green_if

SIZE = 4 << 20  # bytes of the all-reduce that is timed
REPEATS = 5
WAIT = 8.0  # seconds that a process waits for the others
LIMIT = 90.0  # seconds in all: importing PyTorch from a slow disk counts in
GPT2_GRADIENTS = 4 * 124_439_808  # bytes: float32, chapter 05


def main() -> int:
    """A process that torchrun has started: rank 0 prints what was found; whoever fails prints why."""
    topic, remedy = "processes", remedy_for_gloo()
    try:
        for finding in found_here():
            topic, remedy = "NCCL", "NCCL_DEBUG=INFO says more; gloo works (NANOGPT_DEVICE=cpu)"
            if os.environ["RANK"] == "0":
                print(finding.line(terminal=False), flush=True)
    except Exception as error:
        said = " ".join(re.sub(r"\[enforce fail at [^]]*\]", "", str(error)).split())
        said = f"they cannot talk ({type(error).__name__}: {said.partition('). ')[0][:150]})"
        print(Finding(RED, topic, said, remedy).line(terminal=False), flush=True)
        return 1
    return 0


def found_here() -> Iterator[Finding]:
    """First what gloo does, then what NCCL does where each process has a GPU; it may fail on its own."""
    import torch
    import torch.distributed as dist

    nccl = dist.is_nccl_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=timedelta(seconds=WAIT))
    try:
        yield from gloo_findings(dist.get_world_size(), all_reduce_time(torch.device("cpu")))
        if nccl:
            seconds = all_reduce_time(torch.device("cuda", int(os.environ["LOCAL_RANK"])))
            version = ".".join(map(str, torch.cuda.nccl.version()))
            yield Finding(GREEN, "NCCL", f"{version}, on GPUs: {in_words(seconds)}")
    finally:
        dist.destroy_process_group()


def all_reduce_time(device) -> float:
    """Seconds of an all-reduce of SIZE bytes: the slowest rank's median."""
    import torch
    import torch.distributed as dist

    n, seconds = dist.get_world_size(), []
    x = torch.full((SIZE // 4,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(x)
    if not (x == n * (n + 1) / 2).all():
        raise RuntimeError(f"an all-reduce of {SIZE} bytes has come to another sum")
    for _ in range(REPEATS):
        x[0].item()  # waits until a GPU has done what was asked of it
        began = time.perf_counter()
        dist.all_reduce(x)
        x[0].item()
        seconds.append(time.perf_counter() - began)
    slowest = torch.tensor(statistics.median(seconds), device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def gloo_findings(processes: int, seconds: float) -> Iterator[Finding]:
    yield Finding(GREEN, "processes", f"{processes} talk by gloo")
    step = GPT2_GRADIENTS / SIZE * seconds
    text = f"{in_words(seconds)}; the gradients of GPT-2 124M take about {step:.3g} s a step"
    yield green_if(step < 10, "all-reduce", text, "a faster network, or fewer and larger steps")


def in_words(seconds: float) -> str:
    return f"{SIZE >> 20} MiB in {1e3 * seconds:.3g} ms, {SIZE / seconds / 1e9:.2g} GB/s"


def interfaces() -> list[str]:
    """Those that are up and have an IPv4 address."""
    import psutil

    up, known = [name for name, each in psutil.net_if_stats().items() if each.isup], psutil.net_if_addrs()
    return [name for name in up if any(each.family == socket.AF_INET for each in known.get(name, ()))]


def remedy_for_gloo() -> str:
    there = interfaces()
    if "lo" not in there and os.path.exists("/sys/class/net/lo"):
        return "the loopback interface is down: ip link set lo up"
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "not set")
    return f"GLOO_SOCKET_IFNAME, which is {wanted}, names an interface; those that are up: {', '.join(there)}"


def doctor_distributed() -> int:
    """Start two processes here by torchrun, and print what they have found, or one line of what is wrong; 1 if they cannot talk."""
    words = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "-m", "course.machine.talk"]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | ({"USE_LIBUV": "0"} if os.name == "nt" else {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    torchrun = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words], env=env, **pipes)
    try:
        said = torchrun.communicate(timeout=LIMIT)[0].splitlines()
        problem = f"torchrun has ended with exit code {torchrun.returncode}" if torchrun.returncode else ""
    except subprocess.TimeoutExpired:
        torchrun.terminate()  # which ends its ranks, too
        torchrun.wait()
        said, problem = [], f"they have not ended within {LIMIT:g} s"
    failures = [line for line in said if line.startswith(RED)]
    if problem and not failures:
        failures = [Finding(RED, "processes", problem, remedy_for_gloo()).line(terminal=False)]
    print("\n".join([line for line in said if not line.startswith(RED)] + failures[:1]))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
