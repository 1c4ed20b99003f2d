"""Several ranks without torchrun: processes forked from one that has imported torch, in an environment like torchrun's."""

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nanogpt.distributed import process_group, torchrun_ranks

GLOO = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch without gloo"
)
GIVE_UP = 400.0  # seconds, for what never ends: four ranks that compile take 40 on two cores that have nothing else to do


def torchruns_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """As if torchrun had started this rank and a store that listens on the port."""
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)} | store


def child(call, rank: int, size: int, port: int, seconds: float | None, report, args) -> None:
    gc.freeze()  # what the server has loaded is no garbage, and looking at it would copy it
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(GIVE_UP - 5, exit=True)
    os.environ |= torchruns_environment(rank, size, port)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"  # PyTorch 2.9 keeps no flight record else
    if os.path.isdir("/sys/class/net/lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = torchrun_ranks("cpu")
    try:
        with process_group(ranks, seconds) if seconds else contextlib.nullcontext():
            result = call(ranks, *args)
    except BaseException as error:
        result = error if isinstance(error, ValueError | TimeoutError) else f"UNEXPECTED {error!r}"
    report.send((result, dist.is_initialized()))


def in_ranks(call, size: int, *args, seconds: float | None = 60.0, never: tuple[int, ...] = ()) -> list:
    """What call(ranks, *args) returns or raises in each of `size` processes; None for one that dies.

    seconds: the group's time limit; None where the call opens a group of its own. never: ranks that are not waited
    for, but killed in the end. Fails if one leaves its process group open.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "nanogpt.trainer", "nanogpt.labs.parallel.fsdp"])
    minute = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=minute)
    pipes, processes, results = [], [], [None] * size
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(call, rank, size, store.port, seconds, there, args))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    for rank, pipe in enumerate(pipes):
        with contextlib.suppress(EOFError):
            if rank not in never and pipe.poll(GIVE_UP):
                results[rank], still_open = pipe.recv()
                unexpected = isinstance(results[rank], str) and results[rank].startswith("UNEXPECTED")
                assert not unexpected, results[rank]
                assert not still_open, f"rank {rank} has left its process group open"
    for rank, process in enumerate(processes):
        process.join(0 if rank in never else 20)
        process.kill()
        process.join()
    return results


def skip_without_two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def torchrun_on_gpus(*words: str) -> subprocess.CompletedProcess:
    """`python -m nanogpt WORDS` on two GPUs of this machine under torchrun; skips where there are fewer."""
    skip_without_two_gpus()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = os.environ | {"NANOGPT_DEVICE": "cuda", "TORCH_FR_BUFFER_SIZE": "2000"}
    options = {"capture_output": True, "text": True, "timeout": 300, "env": env}
    root = Path(__file__).parent.parent
    return subprocess.run([*command, "-m", "nanogpt", *words], cwd=root, check=False, **options)


def drilled_on_gpus(folder: Path, *names: str) -> dict:
    """What drills have found on two GPUs, by name."""
    from nanogpt.labs.corpora.stories import ensure_corpus

    skip_without_two_gpus()
    ensure_corpus(folder / "stories")
    places = "--data", str(folder / "stories"), "--out", str(folder / "found.json")
    done = torchrun_on_gpus("drill", *names, *places)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return json.loads((folder / "found.json").read_text())
