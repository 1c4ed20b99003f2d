# %% [markdown]
r"""
# 20b · Many machines: what goes wrong between ranks, and what more of them bring

Chapter 20a let the trainer run on any number of ranks. Two questions are left. What if a rank is lost, or if ranks wait for each other and none of them has
failed? In this sitting we start a run on several machines, lose ranks in every way in which that happens, and let the run say what went wrong. And what would more GPUs bring? We
measure the network, and predict how long a step takes on many of them.

Everything here runs on a laptop with two processes on its CPU. A few things are different with NCCL, the library that connects GPUs. We have not run those,
so the chapter names the document that says it.
"""

# %%
#| default_exp labs.drills.flight
#| doc labs.parallel.watch: A thread that says where every rank is when one has begun no collective for too long.
#| doc labs.drills.flight: Ranks that hang or wait for different things: each one's collectives from PyTorch's flight recorder.
#| doc labs.drills.network: How long an all-reduce takes, by its bytes, and a step of several ranks, computed alone and averaged.
#| doc labs.plan.budget: What a step takes on n GPUs: collectives, seconds, the largest batch; GPUs by their data sheets.
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

# %%
from course.figures import ddp as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.distributed import Ranks, patience
from nanogpt.model import GPT, GPTConfig
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.labs.corpora.stories import ensure_corpus

# %%
DATA, RUNS = Path("../data/built/stories"), Path("../data/built/ranks")
_ = ensure_corpus(DATA)
torch.set_num_threads(1)  # as each rank of torchrun has
print(f"a rank waits for the others {patience():.0f} s at most")

# %% [markdown]
r"""
## Several machines

With several machines, start the same command on each of them, and say where they meet:

```
torchrun --nnodes 2 --node-rank 0 --master-addr HOST0 --master-port 29500 --nproc-per-node 8 -m nanogpt train gpt2-124M run.dir=/shared/a
torchrun --nnodes 2 --node-rank 1 --master-addr HOST0 --master-port 29500 --nproc-per-node 8 -m nanogpt train gpt2-124M run.dir=/shared/a
```

The first line is for the first machine, and the second line for the second. This is the *static rendezvous*: every machine knows its number and the address of the first. It is the simplest one, and it works where a machine does not
recognise its own name. With `--rdzv-backend c10d --rdzv-endpoint HOST0:29500 --rdzv-id run1` machines may come in any order, and `--max-restarts 3`
starts all ranks anew when one has died. The trainer then goes on from its last checkpoint.

`run.dir` and `data.dir` must be on a disk that all machines see. If they are not, the comparison of hashes finds it: one rank has another checkpoint, or other data, than rank 0.

The course's tests run both commands on two hosts that are network namespaces of one machine, with gloo, and cut the cable between them. Nobody has run them on two machines with GPUs yet. The folder `slurm/` has a script for
a cluster.

## A rank is lost

Three things can happen to a rank.

- *It raises an error.* Its process ends with a traceback. The others wait in a collective.
- *It dies*, because the kernel ran out of memory or somebody killed it. torchrun sees that, and ends the others within seconds.
- *It hangs*, on a disk or in a loop. Nothing happens, on any rank.

With gloo a collective that waits too long raises an exception, and `process_group` of chapter 20 then calls the roll and names the missing rank. With NCCL this does not work. A collective on a GPU returns at once, and the program goes on until it
needs a result. PyTorch has a thread of its own, the watchdog, that finds the time-out. Its documentation says what happens then: `TORCH_NCCL_ASYNC_ERROR_HANDLING` is 3 by default, which means "tearing down process without aborting NCCL
communicator". The process ends, and no Python code runs: no exception, and no roll call.

So we need a watch of our own, which speaks *before* the backend's time limit. What can it look at? PyTorch numbers the collectives of each process, and keeps the last 2,000 of them in a *flight recorder*. If a rank has begun no collective for minutes, it waits
or it hangs. Both backends have a recorder, under different names.
"""


# %%
#| export labs.parallel.watch
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


# %%
#| export labs.parallel.watch
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


# %% [markdown]
r"""
A group of one process, in this kernel, is enough to look at such a record. It makes three all-reduces:
"""

# %%
os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for n in (1, 10, 100):
    dist.all_reduce(torch.ones(n))
last = recorded()[-1]
print(f"{collectives_begun()} collectives; the last is {last['profiling_name']} of {last['input_sizes']}")
dist.destroy_process_group()

# %% [markdown]
r"""
And what should it say? A time-out names a collective, but the reader wants a line of code. Python can tell where each of its threads is. `place_of` walks up the stack of the main thread and keeps the functions of our package.
"""


# %%
#| export labs.parallel.watch
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


# %% tags=["nbval-ignore-output"]
model = GPT(GPTConfig(block_size=256, vocab_size=1000, n_layer=4, n_head=4, n_embd=256))
busy = Thread(target=model, args=(torch.zeros(16, 256, dtype=torch.long),))
busy.start()
time.sleep(0.02)
print("a thread that computes is in", place_of(busy.ident))
busy.join()

# %% [markdown]
r"""
When a watch has seen no new collective for too long, it writes its rank's place into torchrun's store and gives the others some time to do the same. The thread of a rank that sleeps, or waits for a disk, is alive, so it answers as well. A process that is
gone or stopped does not answer, and neither does one that is stuck in C code which keeps Python's interpreter lock. To print each line once, the lowest rank that answered prints them all.
"""


# %%
#| export labs.parallel.watch
#| blank say_where_all_are: write my place into the store, wait, and print all places if no lower rank has answered
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


# %% [markdown]
r"""
A store that is a dictionary in this process shows what rank 0 of two would print if rank 1 were gone:
"""

# %%
with redirect_stderr(sys.stdout):
    say_where_all_are(Ranks(0, 0, 2), dist.HashStore(), "accumulate_gradients (training.py:40)", seconds=0.1)

# %% [markdown]
r"""
The thread itself looks ten times in the time that it waits, and compares the number of collectives with the one before. The first rank whose time is over asks all the others; a rank that began its last collective a little later answers at once, instead of waiting for the end of its own time.
If the run goes on after all, the thread takes back what it said.
"""


# %%
#| export labs.parallel.watch
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


# %%
#| export labs.parallel.watch
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


# %%
with watched(Ranks(), seconds=1.0):
    print("one process has nobody to wait for, and no watch")

# %% [markdown]
r"""
In a run the watch goes around everything that the ranks do together, with half of their patience. The appendix adds it to chapter 20a's `join_run`.

To try it on two ranks, a drill trains chapter 20's model in DDP, and calls a check after every third step. The first check is meant to hang: the last rank goes to sleep, as if its disk did not answer.
"""


# %%
#| export
def hangs(ranks: Ranks, step: int, model) -> None:
    """The last rank never comes back."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)


def train_checked(ranks: Ranks, data: str, check, steps: int = 6, every: int = 3) -> None:
    """Chapter 20's model in DDP for some steps, with a check after every third."""
    model, optimizer, stream = fresh(ranks, data)
    replica = replicate(model, ranks)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        accumulate_gradients(replica, [stream.next_batch()], mean=ranks.mean)
        optimizer.step()
        if step % every == 0:
            check(ranks, step, model)


# %% [markdown]
r"""
The command that runs the drill comes with the next section. *Predict.* Rank 1 sleeps. The time limit is six seconds, and the watch speaks after half of it. In which of our functions is rank 0?
"""

# %%
predict("20b.1", "rank 0 waits in", guess=None)

# %% tags=["nbval-ignore-output"]
FLIGHT = RUNS / "flight"
words = "--data", DATA.as_posix(), "--out", FLIGHT.as_posix(), "--seconds", "6"
said = torchrun("20b", 2, "flight", "hangs", *words, fails=True)

# %%
places = dict(re.findall(r"watch: rank (\d) is in (.*)", said))
assert "hangs" in places["1"] and "accumulate_gradients" in places["0"], f"the watch has said {places}"
print("rank 0:", re.sub(r" \(.*?\)", "", places["0"]))
print("rank 1:", re.sub(r" \(.*?\)", "", places["1"]))
answer("20b.1", "mean, called by accumulate_gradients")

# %% [markdown]
r"""
The watch says where both are. Rank 1 is in `hangs`. Rank 0 has gone on to the next step, in which it first adds up how many targets all ranks have, and there it waits. The first line is the roll call of chapter 20 (the lines are sorted; it came last), after the
time limit, with gloo. It knows that rank 1 does not answer, and not where it is.

A process that is outside of Python for long, or that nobody has prepared, can be looked at by `py-spy dump --pid PID` (`pip install py-spy`). Attaching needs permission: root on macOS, and on Linux where
`/proc/sys/kernel/yama/ptrace_scope` is 1. `faulthandler.dump_traceback_later(600)` at a program's start needs none, and prints after ten minutes where it is.

## Finding a deadlock

In the next case no rank is lost, and yet all of them wait. Chapter 20 advised to compare the weights of all ranks now and then. Only rank 0 prints, so somebody lets only rank 0 ask.
"""


# %%
#| export
def check_alone(ranks: Ranks, step: int, model) -> None:
    """Wrong on purpose: weights_apart gathers, and the others do not come."""
    if ranks.rank == 0:
        print(f"after step {step}: weights {weights_apart(model, ranks):g} apart", flush=True)


def check_together(ranks: Ranks, step: int, model) -> None:
    """All ranks ask, one prints."""
    apart = weights_apart(model, ranks)
    if ranks.rank == 0:
        print(f"after step {step}: weights {apart:g} apart", flush=True)


CHECKS = {"hangs": hangs, "alone": check_alone, "together": check_together}

# %% [markdown]
r"""
All ranks must make the same collectives in the same order. So we read each rank's flight recorder, and look for the first collective that is not the same on all of them.
"""


# %%
#| export
#| blank where_they_part: compare, number by number, the kind and the sizes on all ranks
def flight_record() -> list[dict]:
    """The collectives of this process in order, the last one the one it waits in: number, kind, sizes, calls in nanogpt."""
    here, record = str(Path(nanogpt.__file__).parent), []
    for entry in recorded():
        ours = [f for f in reversed(entry["frames"]) if f["filename"].startswith(here)]
        calls = [f"{f['name']} ({Path(f['filename']).name}:{f['line']})" for f in ours]
        kind = entry["profiling_name"].partition(":")[2]  # gloo:all_reduce, nccl:all_reduce
        told = {"number": entry["collective_seq_id"], "kind": kind, "sizes": entry["input_sizes"]}
        record.append(told | {"calls": calls})
    return record


def where_they_part(records: list[list[dict]]) -> list[dict | None] | None:
    """The first collective that is not of one kind and size on all ranks: each rank's, None where it made none.

    None if all ranks have made the same. records: for each rank what flight_record returns.
    """
    made = [{each["number"]: each for each in record} for record in records]
    first = max(
        (min(of_rank) for of_rank in made if of_rank), default=0
    )  # a recorder forgets what is long ago
    for number in sorted(number for number in set().union(*made) if number >= first):
        theirs = [of_rank.get(number) for of_rank in made]
        if len({each and (each["kind"], str(each["sizes"])) for each in theirs}) > 1:
            return theirs
    return None


# %%
first = {"number": 1, "kind": "all_reduce", "sizes": [[5]]}
reduce, gather = first | {"number": 2}, first | {"number": 2, "kind": "all_gather"}
print("the same:  ", where_they_part([[first, reduce], [first, reduce]]))
print("they part: ", where_they_part([[first, gather], [first, reduce]]))

# %% [markdown]
r"""
The command `flight` (in the appendix) trains with the checks that it is given, within the process group and the watch. At the end, good or bad, each rank writes its record into a file.

*Predict.* Rank 0 waits in the check's `all_gather`. In which collective does rank 1 wait? (One `torchrun` makes two runs: `together`, in which all ranks ask, and then `alone`, which ends it.)
"""

# %%
predict("20b.2", "rank 1 waits in", guess=None)

# %% tags=["nbval-ignore-output"]
_ = torchrun("20b", 2, "flight", "together", "alone", *words, fails=True)


def records_of(check: str) -> list[list[dict]]:
    """The flight record of each of the two ranks."""
    return [json.loads((FLIGHT / f"{check}-rank{rank}.json").read_text()) for rank in range(2)]


records = records_of("alone")
for rank, record in enumerate(records):
    for each in record[-3:]:
        print(f"rank {rank}, {each['number']}: {each['kind']} of {each['sizes']}")
        print("          ", " → ".join(each["calls"][-4:]))

# %%
parted = where_they_part(records)
assert parted == [record[-1] for record in records], "a rank went on after the lists had parted"
for rank, each in enumerate(parted):
    calls = " → ".join(call.partition(" ")[0] for call in each["calls"][-4:])
    print(f"rank {rank} waits in {each['kind']}: {calls}")
answer("20b.2", parted[1]["kind"])
together = records_of("together")
assert where_they_part(together) is None, "the ranks' collectives differ where all make the call"
print(f"where all make the call: {len(together[0])} collectives, the same on both ranks")

# %% [markdown]
r"""
Up to there the lists are equal. (They begin with number 36: a record counts from the start of the process group, and the run `together` before made 35 collectives.) Then rank 0 gathers, called by `check_alone`. Rank 1 was not called, and has gone on to the next step, where it counts targets. Neither rank waits in the wrong place. The mistake is that only rank 0 made the gather. In the run before, `together`,
all ranks made the call and one printed, and the lists do not part.

This was the lucky case, in which the two collectives are of different kinds. Where both are all-reduces, gloo pairs them. If they have different sizes, a process ends with *Is there a distributed collective mismatch in your code?* If they have the
same size, nothing ends: gloo adds two things that have nothing to do with each other, and one rank waits only at the end, for a collective that no other makes.

Our function `recorded` asks for the recorder of the backend that is used: `_dump_fr_trace` for gloo, and `_dump_nccl_trace` for NCCL, whose entries have the same fields (PyTorch's `FlightRecorder.hpp`). NCCL's ranks also write it to files when they run into
the time limit, if `TORCH_NCCL_DUMP_ON_TIMEOUT` is set and `TORCH_FR_DUMP_TEMP_FILE` says where.

What else goes wrong is often a setting. These are the variables to look at:

| variable | when | what you see, or miss, without it |
|---|---|---|
| `OMP_NUM_THREADS` | several ranks on one machine | each takes all cores, and all wait; torchrun sets 1 and says so |
| `GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` | several networks, a VPN, a container | ranks meet, then the first collective runs into the time limit |
| `NCCL_DEBUG=INFO` | anything strange with NCCL | you cannot see which network and which cards NCCL has chosen |
| `NCCL_IB_HCA` | several InfiniBand cards, some for storage only | NCCL may choose the wrong card |
| `NCCL_IB_DISABLE=1` | InfiniBand cards that are not wired up | without the 1, the first collective hangs |
| `TORCH_NCCL_ASYNC_ERROR_HANDLING` | leave it alone: it is 3, and on | if somebody has set it to 0, a lost rank makes the others wait for ever |
| `CUDA_DEVICE_MAX_CONNECTIONS=1` | Megatron's tensor parallelism only | Megatron's communication starts late; with FSDP and PyTorch's own tensor parallelism leave it unset (torchtitan#1147) |
| `TORCH_LOGS=ddp` | to see DDP's log | the line about rebuilt buckets does not appear |

## A model of the network

Why were two processes less than twice as fast (chapter 20a)? Not because of the update, as we saw there, but because of what happens between them. A message takes a *latency* α, however short it is, and then its bytes travel at a *bandwidth* β:

$$\text{seconds} = \alpha + \frac{\text{bytes}}{\beta}$$

An all-reduce by a ring (chapter 20) sends 2(n − 1)/n of its bytes. A ring has 2(n − 1) messages, one after the other, and a tree has 2 log₂ n. For two ranks both are two messages, and each rank sends the bytes once: 2α + bytes/β. Let us measure α and β here.
"""


# %%
#| export labs.drills.network
def all_reduces(ranks: Ranks, data: str, repeats: int = 40) -> dict:
    """The median seconds of an all-reduce, by its bytes, from 1 kB to 16 MB, in a shuffled order after five of each."""
    found = {2**k: [] for k in range(10, 25, 2)}
    tensors = {nbytes: torch.zeros(nbytes // 4, device=ranks.device) for nbytes in found}
    order = [*found] * (5 + repeats)
    random.Random(0).shuffle(order)  # the same on all ranks
    for nbytes in order:
        began = time.perf_counter()
        dist.all_reduce(tensors[nbytes])
        synchronize(ranks.device)
        found[nbytes].append(time.perf_counter() - began)
    return {nbytes: statistics.median(seconds[5:]) for nbytes, seconds in found.items()}


# %% [markdown]
r"""
The sizes come in a shuffled order. In a fixed one, 1 kB would always follow 16 MB, with which one rank is still busy while the other already waits, and the smallest size would look slow for a reason that is not its own.

The second drill times a step in two ways. *Alone*, each rank computes forward, backward and update of its rows, at the same time as the other, and waits for it at the end; nothing is averaged. *Together*, DDP averages. The difference is what averaging costs. The two ways alternate, so that both see the same machine. Its code is in the appendix.
"""


# %% tags=["nbval-ignore-output"]
out = RUNS / "network.json"
drills = "drills.network:all_reduces", "drills.network:steps"
_ = torchrun("20b", 2, "drill", *drills, "--data", DATA.as_posix(), "--out", out.as_posix())
measured = json.loads(out.read_text())
times = {int(nbytes): seconds for nbytes, seconds in measured[drills[0]].items()}
print(*(f"{nbytes / 1e3:10,.1f} kB  {1e6 * seconds:.0f} µs" for nbytes, seconds in times.items()), sep="\n")

# %% [markdown]
r"""
Now fit the line. The squares of *relative* errors are made small, since otherwise the largest size alone would count. The figure has logarithmic axes: on the left the latency is a floor, on the right the bandwidth is a slope.
"""

# %% tags=["nbval-ignore-output"]
sizes, seconds = np.array([*times]), np.array([*times.values()])
slope, constant = np.polyfit(sizes, seconds, 1, w=1 / seconds)
alpha, beta = max(constant, 1e-7) / 2, 1 / slope
fitted = 2 * alpha + sizes / beta
factors = np.maximum(fitted / seconds, seconds / fitted)
alt = "Seconds of an all-reduce against bytes: flat, then rising."
show(figures.latency_and_bandwidth(sizes, seconds, fitted), alt=alt)
print(f"α = {1e6 * alpha:.0f} µs, β = {beta / 1e9:.2f} GB/s; in 2α travel {2e-3 * alpha * beta:,.0f} kB")
print(f"each size is within a factor of {factors.max():.1f}×")

# %% [markdown]
r"""
By the fit an all-reduce of two ranks costs 2α before its first byte travels, and the last number of the line says how many bytes could travel in that time. Messages that are much smaller are all latency, which is why chapter 20 put gradients into buckets. The factor in the last line says how far a line with two numbers is from the measured times: two numbers cannot fit all eight sizes.

*Predict.* The gradient of this model is 2.1 MB. What does the model say that averaging costs, and how long is the step of two ranks? Averaging can hide behind backward, or not at all. So the model gives a range: computing alone is the lower end, and computing plus all of the averaging the upper end. Each end is
as uncertain as the steps differ among themselves, so we take the lower quartile of the time alone for the lower end and the upper quartile for the upper end.
"""

# %% tags=["nbval-ignore-output"]
alone, together = (1e3 * np.array(measured[drills[1]][way]) for way in ("alone", "together"))
averaging = 1e3 * (2 * alpha + measured[drills[1]]["bytes"] / beta)
low, high = np.quantile(alone, 0.25), np.quantile(alone, 0.75) + averaging
step = np.median(together)
print(f"alone {np.median(alone):.1f} ms; averaging 2.1 MB takes {averaging:.1f} ms by the model")
print(f"predicted: {low:.1f} ms to {high:.1f} ms; measured: {step:.1f} ms")
outside = max(low - step, step - high, 0.0)
print("within the range" if outside == 0 else f"outside of the range by {outside:.1f} ms")

# %% [markdown]
r"""
The range is wide, because the steps differ among themselves. If a step of two ranks is outside of it, expect it above: what the model leaves out makes a step longer. It counts one message, and this step makes four: two buckets, the number of targets, and the loss. DDP also
copies gradients into buckets and back. And its ranks wait for each other at each message, where *alone* they wait once. A machine that does other things as well
interrupts now one rank and now the other, and then every one of these waits counts.

## Many GPUs

The same formula, with other numbers, describes GPUs. Two things are new. First, backward hides a part of the averaging. Backward is two thirds of the computing; part of the averaging runs beside it. Second, there are two kinds of links. Within a machine GPUs are
connected by NVLink. Between machines there are network cards (NICs), and a server for training has one for each GPU.

How many of these cards does one all-reduce use? All of them. NCCL builds several rings, and each leaves the machine by another card. NVIDIA's engineers say so in two issues: "With 8 400 Gbps NICs your peak would be at 400 GB/s" (nccl-tests#309), and a DGX A100 with 8 cards of 200 Gb/s reaches 192 GB/s (nccl#812),
where one card has 25. A user of nccl#569 measured 363 ms with one card a machine and 132 ms with four. So the bandwidth between machines is that of all cards of a machine together, as long as the GPUs inside can pass on as much.
"""


# %%
#| export labs.plan.budget
import math
from dataclasses import dataclass

from nanogpt.model import GPTConfig, num_params
from nanogpt.model import step_flops


# %%
#| export labs.plan.budget
@dataclass(frozen=True)
class Cluster:
    """GPUs of `flops` FLOP/s, of which the model gets `mfu`; links in bytes/s and seconds; all are assumptions."""

    flops: float
    mfu: float = 0.4
    per_machine: int = 8  # GPUs, each with a network card (NIC) of its own
    inside: float = 450e9  # of a GPU to its neighbour in the same machine, each direction
    between: float = 50e9  # of one NIC, each direction: 400 Gb/s
    latency: float = 10e-6  # of a message
    overlap: float = 0.8  # the part of backward that averaging can hide behind


# %%
#| export labs.plan.budget
def ring_bandwidth(n: int, cluster: Cluster) -> float:
    """Bytes/s at which a ring over n GPUs passes a message on.

    Between machines NCCL runs as many rings at once as there are NICs, each through another one (nccl#412), so a
    collective has all NICs of a machine together, but no more than a GPU can pass on to its neighbour.
    """
    if n <= cluster.per_machine:
        return cluster.inside
    return min(cluster.inside, cluster.per_machine * cluster.between)


def average_seconds(nbytes: float, n: int, cluster: Cluster) -> float:
    """Of an all-reduce over n GPUs: a ring's bytes, and a tree's latency."""
    sent = 2 * (n - 1) / n * nbytes
    return sent / ring_bandwidth(n, cluster) + 2 * math.ceil(math.log2(n)) * cluster.latency


# %%
h100, a100 = Cluster(flops=PEAKS["H100"].half * 1e12), Cluster(312e12, inside=300e9, between=25e9)
for name, cluster in (("H100, 8 × 400 Gb/s", h100), ("A100, 8 × 200 Gb/s", a100)):
    inside, between = ring_bandwidth(8, cluster) / 1e9, ring_bandwidth(16, cluster) / 1e9
    print(f"{name}: {inside:.0f} GB/s inside, {between:.0f} between")

# %% [markdown]
r"""
The second line is 4% above the 192 GB/s that NVIDIA measured. For larger clusters there is a published measurement: the authors of the Ultra-Scale Playbook timed an all-reduce of 256 MB on 1 to 64 machines of eight H100 GPUs, many times (its figure *Communication Bandwidth by Number of Nodes*; the medians are
below). Their number is 2(n − 1)/n of the bytes over the time, which would be the bandwidth if there were no latency.

*Predict.* By our model this number is about 350 GB/s on 64 machines. What did they measure?
"""

# %%
predict("20b.3", "bandwidth on 64 machines, published", guess=None, unit="GB/s")

# %%
PUBLISHED = {1: 436, 2: 362, 4: 160, 8: 100, 16: 85, 32: 65, 64: 33}  # machines of 8 H100: GB/s, the median
NBYTES = 256e6
beside = {"published": PUBLISHED, "tree": {}, "ring": {}}
for machines in PUBLISHED:
    n = 8 * machines
    sent, tree = 2 * (n - 1) / n * NBYTES, average_seconds(NBYTES, n, h100)
    ring = sent / ring_bandwidth(n, h100) + 2 * (n - 1) * h100.latency
    beside["tree"][machines], beside["ring"][machines] = sent / tree / 1e9, sent / ring / 1e9
alt = "Bandwidth against machines: a tree stays above 350 GB/s; ring and published fall below 50."
show(figures.bandwidths(beside), alt=alt)
for machines, rate in PUBLISHED.items():
    tree, ring = beside["tree"][machines], beside["ring"][machines]
    print(f"{machines:2} machines: published {rate}, tree {tree:.0f}, ring {ring:.0f} GB per s")
answer("20b.3", PUBLISHED[64])

# %% [markdown]
r"""
On one and two machines the model is right within 5%. From four machines on it is too optimistic, and on 64 machines by a factor of ten. The third column shows why this is possible: with a ring's latency, 10 µs for each of its 2(n − 1) messages, the model is within a factor of two of all seven measurements. NCCL can also use trees, whose latency
grows with log n only, and our formula assumes one. No formula tells you which of them a cluster gets, or how busy its switches are: in the same figure 5% of the measurements on 64 machines were below 12.5 GB/s, and 5% above 177. An engineer who tests a cluster saw 366 GB/s on four machines (nccl-tests#309).

So take the formula for the best case, and a measured bandwidth for a plan that has to hold. A model of the step puts the two together: computing, and what of the averaging cannot hide behind it. After several micro-batches the gradients are averaged once, beside the last backward pass.
"""


# %%
#| export labs.plan.budget
#| blank step_seconds: the average can hide behind two thirds of the last micro-batch's computation
#| blank efficiency: divide the time of one GPU by that of n, which do n times the work
def step_seconds(
    config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1
) -> dict[str, float]:
    """Seconds of a step on n GPUs, each of which computes `accumulate` micro-batches of `rows` rows.

    "compute"; "averaging", as far as it is not hidden, which is cluster.overlap of the last backward at most; "total".
    Gradients are float32 and averaged once. Left out: the update, the data, and waiting for the slowest.
    """
    compute = step_flops(config, 1, config.block_size) * rows * accumulate / (cluster.flops * cluster.mfu)
    average = average_seconds(4 * num_params(config), n, cluster)
    hidden = min(
        average, cluster.overlap * 2 / 3 * compute / accumulate
    )  # behind the last micro-batch's backward
    return {"compute": compute, "averaging": average - hidden, "total": compute + average - hidden}


def efficiency(config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1) -> float:
    """Of what n times one GPU would do, the part that is done, by the totals of step_seconds. Each has `rows` rows."""
    one = step_seconds(config, rows, 1, cluster, accumulate)
    return one["total"] / step_seconds(config, rows, n, cluster, accumulate)["total"]


# %%
GPT2, ROWS, BATCH = GPTConfig(), 16, 512  # rows of 1,024 tokens: of a GPU, and of GPT-2's batch
slow = replace(h100, inside=33e9)  # what the playbook measured on 64 machines
for name, cluster in (("best case", h100), ("as published", slow)):
    found = step_seconds(GPT2, ROWS, 512, cluster)
    parts = ", ".join(f"{part} {1e3 * seconds:.1f} ms" for part, seconds in found.items())
    print(f"{name}: {parts}, efficiency {efficiency(GPT2, ROWS, 512, cluster):.0%}")

# %% [markdown]
r"""
Two questions sound alike. *Weak scaling*: each GPU keeps its 16 rows, so n GPUs read n times the batch. *Strong scaling*: the batch stays, GPT-2's half a million tokens, and each GPU gets fewer rows.

One thing is too good in the formula. Hiding needs buckets, and it counts the latency of a single message. GPT-2's 498 MB are twenty of DDP's buckets. So we draw the same curves with twenty times the latency as well.

*Predict.* GPT-2 124M on H100 GPUs, eight a machine: which efficiency does the formula give in its best case, with a single latency, in per cent, for both?
"""

# %%
predict("20b.4", "weak scaling at 1,024 GPUs, efficiency", guess=None, unit="%")
predict("20b.5", "strong scaling at 512 GPUs, efficiency", guess=None, unit="%")

# %%
counts = [2**k for k in range(11)]


def curves(cluster: Cluster) -> dict[str, list[tuple[int, float]]]:
    """Efficiency by the number of GPUs, as far as each has a row of its own."""
    weak = [(n, efficiency(GPT2, ROWS, n, cluster)) for n in counts]
    whole, strong = step_seconds(GPT2, BATCH, 1, cluster)["total"], []
    for n in counts:
        if n <= BATCH:
            strong.append((n, whole / n / step_seconds(GPT2, BATCH / n, n, cluster)["total"]))
    return {f"weak: {ROWS} rows a GPU": weak, f"strong: {BATCH} rows in all": strong}


alt = "Efficiency against GPUs: weak scaling stays near one; strong scaling falls at 512 GPUs."
show(figures.scaling(curves(h100)), alt=alt)
for name, points in curves(h100).items():
    shown = [f"{n}: {share:.0%}" for n, share in points if n in (8, 16, 64, 512, 1024)]
    print(f"{name:24}", *shown, sep="  ")
weak, strong = curves(h100).values()
buckets = replace(h100, latency=20 * h100.latency)  # one for each of DDP's buckets of 25 MB
for title, cluster in (("the latency of 20 messages", buckets), ("the published 33 GB per s", slow)):
    print(f"with {title}:")
    for name, points in curves(cluster).items():
        shown = [f"{n}: {share:.0%}" for n, share in points if n in (64, 128, 256, 512, 1024)]
        print(f"{name:24}", *shown, sep="  ")
answer("20b.4", 100 * weak[-1][1])
answer("20b.5", 100 * strong[-1][1])

# %% [markdown]
r"""
In the best case weak scaling costs nothing: all of the averaging hides behind backward. A ring's bytes do not grow with n, so it stays that way. In strong scaling there is ever less computing to hide behind, and at 512 GPUs,
with one row each, the averaging is longer than backward: 60% are left. If each of twenty buckets pays its latency, it is 31%, and the fall begins at 128 GPUs. So for small steps the number of messages counts as much as the bytes, and a larger bucket is better there. With the 33 GB/s that were measured on 64 machines, 512 GPUs keep 76% in weak scaling and 7% in strong scaling. So large runs take large batches, or let micro-batches accumulate, which
divides the averaging by their number. The numbers depend on the assumptions. *Predict:* from how many GB/s of a network card on does weak scaling on 1,024 GPUs reach 90%? Then move the knobs.
"""

# %% tags=["nbval-ignore-output"]
figures.scaling_widget(lambda **knobs: curves(Cluster(flops=h100.flops, **knobs)))

# %% [markdown]
r"""
Where does the curve pass 90%?
"""

# %%
for card in (4e9, 5e9, 5.5e9, 6e9):
    share = efficiency(GPT2, ROWS, 1024, replace(h100, between=card))
    print(f"{card / 1e9:.1f} GB per s for each card: {share:.0%}")

# %% [markdown]
r"""
By the formula, 5.5 GB/s for each card are enough for 90%, a ninth of what an H100's card has.

Whoever doubles the ranks and keeps the rows of each doubles the batch, and halves the number of updates. The learning rate then has to be tuned again. Goyal et al. (2017, §2.1) multiply it by the same factor as the batch, the *linear rule*, after a warm-up; they trained image models with SGD, and found that it holds up to 8,192 images a batch and not beyond. Nothing of
this is about processes: n ranks are one process with the whole batch.
"""

# %% [markdown]
r"""
## Appendix: the watch in a run

The watch is a lab. The trainer imports it by its name when several ranks begin a run. (The first cell has what `join_run` uses besides.)
"""

# %%
from contextlib import ExitStack, contextmanager, redirect_stdout

from nanogpt.config import Config
from nanogpt.distributed import process_group, torchrun_ranks
from nanogpt.files import alone_in
from nanogpt.trainer import refuse_ranks


# %%
#| export trainer
from importlib import import_module


# %%
#| export trainer
#| grows join_run
@contextmanager
def join_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    refuse_ranks(config, ranks)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # else PyTorch 2.9 records nothing for the watch
    with ExitStack() as stack:
        stack.enter_context(process_group(ranks, patience()))
        if ranks.size > 1:
            lab = import_module("nanogpt.labs.parallel.watch")
            stack.enter_context(lab.watched(ranks, patience() / 2))
        if ranks.rank == 0:
            stack.enter_context(alone_in(Path(config.run.dir), "trainer", "choose another run.dir"))
        else:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
        yield ranks


# %%
grown("join_run", "20b")

# %% [markdown]
r"""
## Appendix: the command `flight`
"""

# %%
#| export
import argparse
import json
import os
import time
from pathlib import Path

import torch

import nanogpt
from nanogpt.distributed import Ranks, process_group, replicate, torchrun_ranks
from nanogpt.files import save_json
from nanogpt.labs.drills.ddp import fresh, weights_apart
from nanogpt.training import accumulate_gradients


# %%
#| export
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt flight`."""
    parser = argparse.ArgumentParser(description="Ranks that hang, and each one's list of its collectives.")
    named = "hangs: one rank does; alone: a deadlock; together: neither"
    parser.add_argument("checks", nargs="+", choices=CHECKS, metavar="CHECK", help=named)
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", required=True, help="a folder for CHECK-rank0.json and so on")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


def run(args: argparse.Namespace) -> None:
    """Train with each check, and write down in the end, good or bad, which collectives there were so far."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    ranks = torchrun_ranks()
    torch.set_num_threads(1)
    fresh(ranks, args.data)  # now, because with its first optimizer PyTorch loads for seconds
    with process_group(ranks, args.seconds), watched(ranks, args.seconds / 2):
        for check in args.checks:
            try:
                train_checked(ranks, args.data, CHECKS[check])
            finally:
                save_json(Path(args.out) / f"{check}-rank{ranks.rank}.json", flight_record())


# %% [markdown]
r"""
## Appendix: the drill that times a step
"""

# %%
#| export labs.drills.network
import random
import statistics
import time

import torch
import torch.distributed as dist

from nanogpt.distributed import Ranks, replicate
from nanogpt.labs.drills.ddp import fresh
from nanogpt.device import synchronize
from nanogpt.training import accumulate_gradients


# %%
#| export labs.drills.network
def steps(ranks: Ranks, data: str, repeats: int = 30) -> dict:
    """Seconds of each of some steps, by each rank alone and together in DDP; and the gradient's bytes."""
    runs, found = {}, {"alone": [], "together": []}
    for way in found:
        model, optimizer, stream = fresh(ranks, data)
        runs[way] = replicate(model, ranks) if way == "together" else model, optimizer, stream
    for way in [*runs] * repeats:
        model, optimizer, stream = runs[way]
        batch, mean = [stream.next_batch()], ranks.mean if way == "together" else None
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        accumulate_gradients(model, batch, mean=mean)
        optimizer.step()
        synchronize(ranks.device)
        dist.barrier()  # a step ends when the slower rank is done
        found[way].append(time.perf_counter() - began)
    gradient = sum(p.grad.nbytes for p in runs["alone"][0].parameters())
    return {way: seconds[5:] for way, seconds in found.items()} | {"bytes": gradient}


DRILLS = {"all_reduces": all_reduces, "steps": steps}

# %% tags=["nbval-ignore-output"]
predictions("20b")

# %%
checkpoint("20b")

# %% [markdown]
r"""
## Exercises

`course exercises release 20` writes these, and those of 20, as a notebook to `released/`; `course check 20` runs their visible checks.

- **20-5** What more GPUs bring, 25 minutes: derive the efficiency of weak and strong scaling.
- **20-6** From one GPU to eight, 10 minutes: why "DDP brings nothing".

To explore:

1. A rank that is slow is not lost. Add a check `slow` to `CHECKS`, in which the last rank sleeps for four seconds after step 3, and run `flight slow --seconds 6` under torchrun. Check: the watch speaks once, the run goes on, the exit code is 0, and `where_they_part` finds nothing in the records.
2. Write a check that all-reduces two tensors of ten numbers, the first full of ones and the second full of twos, but lets rank 1 begin with the second. Check: the exit code is 0, `where_they_part` finds nothing, and all sums are 3, where 2 and 4 would be right. Then give the second tensor 20 numbers. How does gloo end the run?
3. Let the check `hangs` raise an error instead of sleeping, and then end with `os._exit(1)`. Check what the watch says, what the roll call says, and what torchrun says.
4. In the model of the step, how many micro-batches must accumulate so that 512 GPUs with one row each reach 95%? Check with `efficiency`.
5. Gradients could travel in bf16. Add it to `step_seconds`, and check from how many GPUs on it matters, in the best case and at 33 GB/s.
6. Fit α and β with four processes. Check: is the latency 2α, as a tree's of two, 4α, as a tree's of four, or 6α, as a ring's?

## Further reading

- PyTorch's documentation of [*torchrun (Elastic Launch)*](https://docs.pytorch.org/docs/stable/elastic/run.html): rendezvous, restarts, and what a script must do for them; and of [*ProcessGroupNCCL Environment Variables*](https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html).
- [The Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), 2025, *Pipeline Parallelism*, first figure: all-reduce, all-gather and reduce-scatter on up to 64 machines.
- NCCL's issues [nccl#412](https://github.com/NVIDIA/nccl/issues/412), [nccl#569](https://github.com/NVIDIA/nccl/issues/569), [nccl#812](https://github.com/NVIDIA/nccl/issues/812) and [nccl-tests#309](https://github.com/NVIDIA/nccl-tests/issues/309): how many network cards a collective uses.
- Narayanan et al. 2021, [*Efficient Large-Scale Language Model Training on GPU Clusters*](https://arxiv.org/abs/2104.04473), §5: measured on up to 3,072 GPUs.
- Goyal et al. 2017, [*Accurate, Large Minibatch SGD*](https://arxiv.org/abs/1706.02677), §2: the linear rule, and where it ends. McCandlish et al. 2018, [*An Empirical Model of Large-Batch Training*](https://arxiv.org/abs/1812.06162), §2: the batch beyond which more rows buy nothing.
"""
