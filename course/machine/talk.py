"""Can processes talk, over which interface, how fast: `course doctor --distributed` asks two here, torchrun any anywhere.

torchrun --nnodes 2 --nproc-per-node 1 ... -m course.machine.talk
"""

import faulthandler
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta

from course.machine.finding import GREEN, RED, YELLOW, Finding

SIZES = {4 << 10: "4 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
REPEATS = 5
WAIT = 8.0  # seconds that a process waits for the others
LIMIT = 45.0  # seconds in all: importing PyTorch from a slow disk counts in
GPT2_GRADIENTS = 4 * 124_439_808  # bytes: float32, chapter 05


# One of the processes


def main(argv: list[str]) -> int:
    """A process that torchrun or the doctor has started: rank 0 prints what was found, with --json for the doctor."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)  # whatever hangs, in whatever language
    if "WORLD_SIZE" not in os.environ:
        print(
            "talk: torchrun starts this; for two processes here: course doctor --distributed", file=sys.stderr
        )
        return 2
    try:
        for found in facts():
            if argv == ["--json"]:
                print(json.dumps(found), flush=True)
            elif os.environ["RANK"] == "0":
                print(*(f.line(terminal=False) for f in findings(found)), sep="\n", flush=True)
    except Exception as error:
        said = " ".join(re.sub(r"\[enforce fail at [^]]*\]", "", str(error)).split())
        said = f"{type(error).__name__}: {said.partition('). ')[0][:150]}"
        print(json.dumps({"error": said}) if argv == ["--json"] else f"talk: {said}", flush=True)
        return 1
    return 0


def facts() -> Iterator[dict]:
    """First what gloo does, then what NCCL does, which may fail on its own."""
    import torch
    import torch.distributed as dist

    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    nccl = dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=timedelta(seconds=WAIT))
    try:
        times = all_reduce_times(torch.device("cpu"))
        yield {"gloo": gathered(roads()), "times": times}
        gpus = gathered([torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])])
        version = ".".join(map(str, torch.cuda.nccl.version())) if nccl else None
        enough = nccl and all(there >= wanted for there, wanted in gpus)
        yield {"nccl": version, "gpus": gpus[0][0], "times": all_reduce_times(gpu) if enough else []}
    finally:
        dist.destroy_process_group()


def gathered(thing) -> list:
    import torch.distributed as dist

    things = [None] * dist.get_world_size()
    dist.all_gather_object(things, thing)
    return things


def all_reduce_times(device) -> list[tuple[int, float]]:
    """Bytes, and the seconds of an all-reduce of so many: the slowest rank's median. Stops where it would take long."""
    import torch
    import torch.distributed as dist

    found, n, me = [], dist.get_world_size(), dist.get_rank()
    for size in SIZES:
        x, seconds = torch.full((size // 4,), me + 1.0, device=device), []
        dist.all_reduce(x)
        if not (x == n * (n + 1) / 2).all():
            raise RuntimeError(
                f"an all-reduce of {size} bytes has come to another sum than {n * (n + 1) / 2:g}"
            )
        for _ in range(REPEATS):
            x[0].item()  # waits until a GPU has done what was asked of it
            began = time.perf_counter()
            dist.all_reduce(x)
            x[0].item()
            seconds.append(time.perf_counter() - began)
        slowest = torch.tensor(statistics.median(seconds), device=device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        found.append((size, slowest.item()))
        if 16 * (REPEATS + 1) * slowest.item() > WAIT:
            break
    return found


def roads() -> list[tuple[str, str]]:
    """Interface and address of this process's connections to other ranks; those to the store do not count."""
    import psutil

    names = {a.address.partition("%")[0]: name for name, each in psutil.net_if_addrs().items() for a in each}
    store, found = int(os.environ["MASTER_PORT"]), set()
    process = psutil.Process()
    older = not hasattr(process, "net_connections")  # than psutil 6: Colab
    for c in process.connections("tcp") if older else process.net_connections("tcp"):
        if c.status == psutil.CONN_ESTABLISHED and store not in (c.laddr.port, c.raddr.port):
            address = c.laddr.ip.removeprefix("::ffff:").partition("%")[0]
            found.add((names.get(address, "an unknown interface"), address))
    return sorted(found)


# What the doctor says


def two_processes() -> Iterator[Finding]:
    """Start two processes here, and say what they have found: a line each, or one of what is wrong."""
    told, error = ask_two()
    for found in told:
        yield from findings(found)
    if error:
        topic, which = ("NCCL", "GPUs") if told else ("processes", "processes")
        yield Finding(RED, topic, f"two {which} here cannot talk ({error})", remedy(bool(told)))


def ask_two() -> tuple[list[dict], str | None]:
    """What rank 0 has found, and what went wrong. Ends within LIMIT seconds, and ends what it has started."""
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": "2"}
    env |= {"WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "False"} | (
        {"USE_LIBUV": "0"} if os.name == "nt" else {}
    )
    command, deadline = [sys.executable, "-m", "course.machine.talk", "--json"], time.monotonic() + LIMIT
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    processes = [
        subprocess.Popen(command, env=env | {"RANK": rank, "LOCAL_RANK": rank}, **pipes)
        for rank in ("0", "1")
    ]
    try:
        said = [p.communicate(timeout=max(0.1, deadline - time.monotonic()))[0] for p in processes]
    except subprocess.TimeoutExpired:
        return [], f"they have not ended within {LIMIT:g} s"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    mine, others = ([json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in said)
    told = [found for found in mine if "error" not in found]
    errors = [found["error"] for found in mine + others if "error" in found]
    ended = [p.returncode for p in processes if p.returncode]
    return told, errors[0] if errors else f"one has ended with exit code {ended[0]}" if ended else None


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def interfaces(loopback: bool = True) -> list[str]:
    """Those that are up and have an IPv4 address, loopback last or not at all."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        (a.address.startswith("127."), name)
        for name, each in psutil.net_if_addrs().items()
        for a in each
        if a.family == socket.AF_INET and name in up
    ]
    return [name for here, name in sorted(found) if loopback or not here]


def remedy(nccl: bool) -> str:
    if nccl:
        return "NCCL_DEBUG=INFO says more; gloo works (NANOGPT_DEVICE=cpu)"
    wanted, there = os.environ.get("GLOO_SOCKET_IFNAME"), interfaces()
    if wanted and wanted not in there:
        return f"GLOO_SOCKET_IFNAME={wanted} names no interface that is up; take one of {', '.join(there) or 'none'}"
    if "lo" not in there and os.path.exists("/sys/class/net/lo"):
        return "the loopback interface is down: ip link set lo up"
    return f"let processes here connect to 127.0.0.1, or set GLOO_SOCKET_IFNAME to one of {', '.join(there)}"


def findings(found: dict) -> Iterator[Finding]:
    yield from gloo_findings(found) if "gloo" in found else nccl_findings(found)


def gloo_findings(found: dict) -> Iterator[Finding]:
    ranks, times = len(found["gloo"]), found["times"]
    ways = list(dict.fromkeys(f"{name} ({address})" for rank in found["gloo"] for name, address in rank))
    loopback = all(address in ("127.0.0.1", "::1") for rank in found["gloo"] for _, address in rank)
    others = interfaces(loopback=False)
    hint = f"between machines set GLOO_SOCKET_IFNAME={others[0]}" if loopback and others else ""
    yield Finding(GREEN, "processes", f"{ranks} talk by gloo over {' and '.join(ways) or 'no TCP'}", hint)
    sent, seconds = 2 * (ranks - 1) / ranks, GPT2_GRADIENTS / times[-1][0] * times[-1][1]
    text = f"{in_words(times, sent)}; the gradients of GPT-2 124M take about {seconds:.3g} s a step"
    yield Finding(GREEN if seconds < 10 else YELLOW, "all-reduce", text)


def nccl_findings(found: dict) -> Iterator[Finding]:
    version, gpus, times = found["nccl"], found["gpus"], found["times"]
    if version is None:
        yield Finding(GREEN, "NCCL", "none in this PyTorch: processes work on CPUs, by gloo")
    elif not times:
        why = f"{gpus or 'no'} GPU{'s' if gpus > 1 else ''} here, and it takes one a process"
        yield Finding(GREEN, "NCCL", f"{version}, unused: {why}; on CPUs gloo does the work")
    else:
        yield Finding(GREEN, "NCCL", f"{version}, on GPUs: {in_words(times, 1)}")


def in_words(times: list[tuple[int, float]], sent: float) -> str:
    """sent: the share of the bytes that each rank sends, 2(n - 1)/n in a ring."""
    size, seconds = times[-1]
    each = ", ".join(f"{SIZES[b]} in {1e3 * s:.3g} ms" for b, s in times)
    return f"{each}: each sends {sent * size / seconds / 1e9:.2g} GB/s"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
