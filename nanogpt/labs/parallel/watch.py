"""A thread that says where every rank is when one has begun no collective for too long.

Exported from notebooks/20b_many_machines.ipynb.
"""

import os
import pickle
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread, get_ident

import torch.distributed as dist
from torch._C import _distributed_c10d

import nanogpt
from nanogpt.distributed import Ranks, gathered


def recorded(stacks: bool = True) -> list[dict]:
    """This process's last collectives, as PyTorch's flight recorder has them; stacks: with the Python calls.

    PyTorch 2.9 keeps a record for gloo only if TORCH_FR_BUFFER_SIZE is set.
    """
    on_gpus = dist.get_backend() == "nccl"
    dump = _distributed_c10d._dump_nccl_trace if on_gpus else _distributed_c10d._dump_fr_trace
    return pickle.loads(dump(includeStackTraces=stacks)).get("entries", [])


def collectives_begun() -> int:
    """How many collectives this process has begun."""
    entries = recorded(stacks=False)
    return entries[-1]["collective_seq_id"] if entries else 0


def place_of(thread: int) -> str:
    """The innermost three functions of nanogpt in which a thread of this process is, the outermost first."""
    here, calls = str(Path(nanogpt.__file__).parent), []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(here):
            calls.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        frame = frame.f_back
    return " → ".join(reversed(calls[:3])) or "a place outside of nanogpt"


def say_where_all_are(ranks: Ranks, store, place: str, seconds: float) -> None:
    """Print where each rank is: once, by the lowest of those that answer within so many seconds.

    A rank's key in the store is its number, as a string. A line on stderr for each: "watch: rank 0 is in PLACE", or
    "watch: rank 0 does not answer". (store.get waits for a key that is not there; store.check([key]) does not.)
    """
    store.set(f"{ranks.rank}", place)
    time.sleep(seconds)
    answered = [rank for rank in range(ranks.size) if store.check([f"{rank}"])]
    if answered[0] != ranks.rank:
        return
    for rank in range(ranks.size):
        said = f"is in {store.get(f'{rank}').decode()}" if rank in answered else "does not answer"
        sys.stderr.write(f"watch: rank {rank} {said}\n")


def watch(ranks: Ranks, store, seconds: float, thread: int, ended: Event) -> None:
    """Look until the run has ended; speak up when a rank has begun no collective for so many seconds."""
    begun, since, spoke = -1, time.monotonic(), False
    while not ended.wait(seconds / 10):
        if collectives_begun() != begun:
            begun, since = collectives_begun(), time.monotonic()
            if spoke:  # the run goes on, so what it said is no longer true
                store.delete_key(f"{ranks.rank}")
                store.delete_key("asked")
                spoke = False
        elif not spoke and (time.monotonic() - since > seconds or store.check(["asked"])):
            spoke = True
            store.set("asked", "")
            say_where_all_are(ranks, store, place_of(thread), seconds / 4)


@contextmanager
def watched(ranks: Ranks, seconds: float) -> Iterator[None]:
    """Within the block a thread watches this process; it says where all ranks are when nothing has happened for `seconds`.

    seconds: at most three quarters of the backend's time limit, which with NCCL ends the process. Needs a process group.
    """
    if ranks.size == 1:
        yield
        return
    life = gathered(ranks, uuid.uuid4().hex)[0]  # a name that ranks of an earlier start do not know
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store, ended = dist.PrefixStore(life, dist.TCPStore(*address, is_master=False)), Event()
    thread = Thread(target=watch, args=(ranks, store, seconds, get_ident(), ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)  # it may be looking, and the group is left next
