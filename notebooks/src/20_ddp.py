# %% [markdown]
r"""
# 20 · DDP: many processes, one step

One GPU reads as much text in a month as thirty read in a day. Data parallelism is how they read it together: every process
has a copy of the model and a part of the batch, and before each update all agree on one gradient. Nothing else is
shared. The promise is that this changes the time and *nothing* else: the same losses as one process, to rounding. This chapter
builds it twice, proves the promise, and breaks it in the ways in which it breaks in practice, most of them silent.

All of it runs on a laptop: PyTorch's *gloo* moves tensors between processes on CPUs as NCCL does between GPUs.
"""

# %%
#| default_exp parallel.distributed
#| doc parallel.distributed: Many processes as one: who this one is, its group, ring and averages, DDP, and a clear end when one is lost.
#| doc drills.ddp: What chapter 20 makes several processes do, to be measured; the command `drill`, under torchrun.
import json

from course.figures import ddp as figures
from course.local_ranks import local_ranks
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.precision import autocast
from nanogpt.gpt.train import both_finite, gradient_is_fine

DATA, OUT = "../data/built/stories", "../data/built/drill.json"
N, LOCAL = 2, 4  # processes, for which a laptop has two cores; ranks inside this kernel
_ = ensure_corpus(DATA)

# %%
#| export
import atexit
import gc
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nanogpt
from nanogpt.device import pick_device

# %%
#| export drills.ddp
import argparse
import importlib
import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import ProfilerActivity, profile

from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import scale_init, target_shares, train_step
from nanogpt.text.data import DocumentStream
from nanogpt.text.files import save_json
from nanogpt.text.shards import described, open_shards

# %% [markdown]
r"""
## Four ranks in one kernel

Processes that work together form a *group*, and each has a number in it, its *rank*. They talk by *collectives*: calls that
every rank makes at the same place, each with its own tensor. PyTorch can imitate a group inside one process, where a tensor
holds a value for each rank and a print shows all. (The mode is new and private; `course/local_ranks.py` is the one place that
uses it.)
"""

# %%
with local_ranks(LOCAL) as ranked:
    x = ranked(lambda rank: torch.arange(LOCAL) + 10.0 * rank)
    print("each rank's own:", x, sep="\n")
    dist.all_reduce(x)
    print("after all_reduce, the sum:", x, sep="\n")

# %% [markdown]
r"""
Of the other collectives two matter here, since an all-reduce can be made of them. `reduce_scatter` adds up, and leaves each rank
one part of the sum. `all_gather` collects the parts.
"""

# %%
with local_ranks(LOCAL) as ranked:
    x = ranked(lambda rank: torch.arange(LOCAL) + 10.0 * rank)
    part = ranked(lambda rank: torch.zeros(1))
    dist.reduce_scatter_tensor(part, x)
    print("each rank's part of the sum:", part, sep="\n")
    dist.all_gather_into_tensor(x, part)
    print("gathered:", x, sep="\n")

# %% [markdown]
r"""
Now data parallelism in small: one layer, a batch of 8 rows, dealt to the ranks. Each computes the gradient of its own rows' mean;
the mean of these means is the gradient of the batch, if all have as many rows.

*Predict.* A layer of 16 × 4 weights and 4 biases in float32; after backward each gradient is all-reduced. How many collectives, and
how many bytes does each rank put into them?
"""

# %%
predict("20.1", "collectives a step", guess=None)
predict("20.2", "bytes that a rank puts in", guess=None)
batch, target = torch.randn(2, 2 * LOCAL, 16, generator=torch.Generator().manual_seed(0)).unbind()
layer = nn.Linear(16, 4)
loss = nn.functional.mse_loss(layer(batch), target[:, : layer.out_features])
whole = torch.autograd.grad(loss, [*layer.parameters()])
with local_ranks(LOCAL) as ranked:
    mine = ranked(lambda rank: batch.chunk(LOCAL)[rank].clone())
    wanted = ranked(lambda rank: target.chunk(LOCAL)[rank][:, : layer.out_features].clone())
    nn.functional.mse_loss(layer(mine), wanted).backward()
    with ranked.counted() as calls:
        for p in layer.parameters():
            dist.all_reduce(p.grad)
            p.grad /= LOCAL
    apart = max((ranked.same(p.grad) - w).abs().max().item() for p, w in zip(layer.parameters(), whole))
assert apart < 1e-6, f"the ranks' averaged gradient differs from the batch's by {apart:.1e}"
total = sum(nbytes for _, nbytes in calls)
print(f"{len(calls)} collectives, {total} bytes, and the gradient of the whole batch")
answer("20.1", len(calls))
answer("20.2", total)

# %% [markdown]
r"""
Four bytes a parameter, in every step, whatever the batch. For GPT-2 that is half a gigabyte, and on a slow network it takes
longer than the computing. All that follows is about making this cheap, and about not making it wrong.

## Who am I?

`torchrun` starts the processes and tells each who it is by environment variables: `RANK` among all, `LOCAL_RANK` on its own machine
(which is the number of its GPU), `WORLD_SIZE`. Without them there is one process, and all below is as it was.
"""


# %%
#| export
#| blank Ranks.mean: copy to float32, sum over all ranks, divide by their number
@dataclass(frozen=True)
class Ranks:
    """Who this process is among `size` that work together; one alone unless torchrun has started it."""

    rank: int = 0
    local_rank: int = 0  # on its own machine
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def print(self, *words, sep=" ") -> None:
        """Once, not once a rank."""
        if self.rank == 0:
            print(*words, sep=sep, flush=True)

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all ranks in float32; x itself if there is one. Gloo has no average: a sum, divided."""
        if self.size == 1:
            return x
        total = x.detach().to(torch.float32, copy=True)
        dist.all_reduce(total)
        return total / self.size


# %%
#| export
def torchrun_ranks(prefer: str | None = None) -> Ranks:
    """Who torchrun's environment says this is: on the GPU of its local rank, or on the CPU; one process without it.

    prefer: as for pick_device. ValueError for half an environment, and for more ranks than a machine has GPUs.
    """
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
    missing = [name for name in names if name not in os.environ]
    if 0 < len(missing) < len(names):
        raise ValueError(f"torchrun sets {', '.join(names)}; here {' and '.join(missing)} is missing")
    rank, local, size = (0, 0, 1) if missing else (int(os.environ[name]) for name in names)
    device = pick_device(prefer)
    if size > 1 and device.type == "cuda":
        if local >= (gpus := torch.cuda.device_count()):
            raise ValueError(f"local rank {local} has no GPU, since there are {gpus}: lower --nproc-per-node")
        torch.cuda.set_device(device := torch.device("cuda", local))
    elif size > 1:
        device = torch.device("cpu")  # gloo carries nothing from an Apple GPU
    return Ranks(rank, local, size, device)


# %% [markdown]
r"""
## A group, and its end

Before the first collective the ranks must find each other. `torchrun` keeps a *store*, a dictionary over TCP, at an address that it also
puts into the environment; there they exchange addresses. Then come three things that most scripts lack.

First, every rank leaves the group on *every* path out of the block, also when something raises. Otherwise a process that died makes the others hang.
The group object is kept in the list `LEFT` even then, for two reasons, both found with PyTorch 2.13. DDP's C++ side holds the group too. If DDP is
the last to let go, it waits for the group's threads while it holds Python's lock, and the threads wait for that lock. Without the list, five tests of
four ranks hung after the last step in seven of nine tries; with it, none did in five. But the group must not outlive Python either. Its threads may still
hold the tensors of the last collective, and a thread that frees one while Python shuts down aborts the process (`terminate called without an
active exception`, pytorch#190489). So `let_go` runs just before Python ends: it first frees the models that are wrapped in DDP, then the groups, which
waits for their threads.

And one whose process was restarted meets the *living*. The store outlasts the ranks, and what a dead one has written there, the address at which
nobody listens any more, would be read by who comes first. So rank 0 makes a name for this life and gives it to those that answer.

Last, a rank that is lost is *named*. When one hangs, all others wait in some collective until a time limit, and what gloo then
says is `Timed out waiting 3000ms for recv operation to complete`: true of each rank but the guilty one. So whoever has waited in vain says
so in the store and looks who else has. It is a roll call: who does not answer is the one.
"""


# %%
#| export
LOST = ["timed out", "timeout", "connection", "peer", "socket"]  # in what gloo and NCCL say of a lost rank
LEFT = []  # the groups that were left


@atexit.register
def let_go() -> None:
    """Free the groups that were left, and with them their threads, while Python still runs."""
    gc.collect()  # a DDP in a reference cycle goes first
    LEFT.clear()


# %%
#| export
def who_is_missing(ranks: Ranks, store, seconds: float) -> str:
    """The roll call after a collective has failed: what became of the other ranks, but for those that wait as well."""
    told = []
    # A thread asks: behind a cut cable the store itself never answers, and its calls know no time limit.
    thread = Thread(target=lambda: told.append(roll_call(ranks, store, seconds)), daemon=True)
    thread.start()
    thread.join(2 * seconds)
    return told[0] if told else "the store does not answer, so the host of rank 0 is gone or cut off"


def roll_call(ranks: Ranks, store, seconds: float) -> str:
    others, deadline = set(range(ranks.size)) - {ranks.rank}, time.monotonic() + seconds
    while (silent := [r for r in others if not store.check([f"{r}"])]) and time.monotonic() < deadline:
        time.sleep(0.05)
    said = {r: "does not answer" if r in silent else store.get(f"{r}").decode() for r in sorted(others)}
    lost = [f"rank {r} {what}" for r, what in said.items() if what != "waits"]
    return "; ".join(lost) or "all wait as well: for something else (chapter 20b), or for the network"


# %%
#| export
def same_life(ranks: Ranks, store) -> str:
    """A name that only the ranks of this life know: after a restart the store still says what the dead have set."""
    me, others = uuid.uuid4().hex, range(1, ranks.size)
    if ranks.rank:
        store.set(f"here {ranks.rank}", me)
        life = store.get(me).decode()  # rank 0 answers under the name that was given
        store.set(f"{life} {ranks.rank}", "")
        return life
    for _ in range(30_000):  # 300 s and more
        if store.check([f"{me} {r}" for r in others]):
            return me
        for here in (f"here {r}" for r in others if store.check([f"here {r}"])):
            store.set(store.get(here).decode(), me)
        time.sleep(0.01)
    raise TimeoutError(f"of {ranks.size} ranks not all have come")


# %%
#| export
def open_group(ranks: Ranks, seconds: float):
    """Meet the others at torchrun's store and open the default group, NCCL on GPUs and gloo on CPUs; the store."""
    store, *_ = next(dist.rendezvous("env://", ranks.rank, ranks.size, timeout=timedelta(seconds=300)))
    store = dist.PrefixStore(same_life(ranks, store), store)
    options = {"store": store, "rank": ranks.rank, "world_size": ranks.size}
    gpu = {"device_id": ranks.device} if ranks.device.type == "cuda" else {}
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=seconds), **options, **gpu)
    return dist.PrefixStore("ends", store)


# %%
#| export
@contextmanager
def process_group(ranks: Ranks, seconds: float = 600.0) -> Iterator[None]:
    """Collectives work within the block; for one process it does nothing.

    A rank that waits longer than `seconds`, or whose peer has gone, raises a TimeoutError that names the lost rank.
    """
    if ranks.size == 1:
        yield
        return
    store, me = open_group(ranks, seconds), f"{ranks.rank}"
    try:
        dist.barrier()  # all are here; else one that has nothing to say could be gone before another is connected
        yield
        store.set(me, "has ended")
    except BaseException as error:
        lost = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in LOST)
        store.set(me, "waits" if lost else f"failed with {type(error).__name__}: {error}")
        if not lost:
            raise
        who = who_is_missing(ranks, store, min(seconds, 10))
        raise TimeoutError(f"rank {me}, which waits {seconds:g} s at most, has lost others: {who}") from error
    finally:
        LEFT.append(dist.group.WORLD)  # it must outlive DDP, and not Python
        dist.destroy_process_group()


# %%
#| export
def gathered(ranks: Ranks, thing) -> list:
    """What each rank has given, in their order, on all of them; anything that can be pickled."""
    if ranks.size == 1:
        return [thing]
    things = [None] * ranks.size
    dist.all_gather_object(things, thing)
    return things


# %% [markdown]
r"""
The first thing that a group should do is to look whether it is one. A rank that starts with another configuration, other data or
yesterday's code on its disk computes happily, and the average of two different programs looks like a loss. So hashes are
compared at the start. Nor may a rank stop alone, because a signal reached it: all ask each other after each step.
"""


# %%
#| export
def refuse_differences(ranks: Ranks, **facts: str) -> None:
    """ValueError, on all ranks alike, if one of the facts, such as a hash, is not the same on all of them."""
    told = gathered(ranks, facts)
    for name, ours in told[0].items():
        if others := [r for r, theirs in enumerate(told) if theirs[name] != ours]:
            theirs = told[others[0]][name]
            raise ValueError(f"rank {others[0]} has another {name} than rank 0: {theirs}, and not {ours}")


def first_reason(ranks: Ranks, reason: str | None) -> str | None:
    """The first rank's reason that has one, to stop for example; on all ranks, which all ask at the same place."""
    if not ranks.mean(torch.tensor(float(reason is not None), device=ranks.device)):
        return None  # one number, in most steps
    return next(filter(None, gathered(ranks, reason)))


def code_hash() -> str:
    """Of all modules of nanogpt on this rank's disk, and of PyTorch's version."""
    files = sorted(Path(nanogpt.__file__).parent.rglob("*.py"))
    text = b"".join(f.name.encode() + f.read_bytes() for f in files)
    return hashlib.sha256(torch.__version__.encode() + text).hexdigest()[:12]


# %% [markdown]
r"""
## The ring

How does an all-reduce work? If all send to one rank, that one receives n − 1 times the bytes while the others wait. In a *ring*
everybody talks to the next rank only. Cut the tensor into n parts; in each step a rank sends one part on and adds what
comes in to another. After n − 1 steps each rank holds one part of the whole sum: that was the reduce-scatter. After n − 1 steps more,
in which finished parts are passed on and copied, all have all: the all-gather.

*Predict.* n ranks all-reduce a tensor of b bytes. How many does each send, for n = 4, in units of b? And for n = 1,024?
"""

# %%
predict("20.3", "bytes sent by each of 4 ranks", guess=None, unit="b")


# %%
#| export
#| blank ring_all_reduce: send one part to the right and receive one from the left, 2(n - 1) times
def ring_all_reduce(x: Tensor) -> Tensor:
    """Sum a contiguous x over all ranks, in place, by messages to the next rank only (Patarasuk and Yuan 2009).

    Each of n parts travels n - 1 times to be added to, then to be copied: a rank sends 2(n - 1)/n of x's bytes.
    """
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = x.view(-1).tensor_split(n)
    for step in range(2 * (n - 1)):
        mine, theirs = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        came = torch.empty_like(theirs)
        sent = dist.isend(mine, (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        sent.wait()
        theirs.add_(came) if step < n - 1 else theirs.copy_(came)
    return x


# %%
show(figures.ring(LOCAL), alt="A ring of ranks: sums of 2, 3, 4 numbers grow, then fill all parts.")
print(*(f"{n} ranks: each sends {2 * (n - 1) / n:.3f} b" for n in (2, 4, 8, 1024)), sep="\n")
answer("20.3", 2 * (4 - 1) / 4)

# %% [markdown]
r"""
Never more than 2b, however many ranks: the ring's bandwidth does not depend on n. Its *latency* does, 2(n − 1) messages one after
the other, which is why libraries take trees for small tensors.

Now for real. Worker code is ordinary module code: here a *drill*, a function that every rank runs. The first lets the ranks say who
they are; the second compares our ring with PyTorch's, and counts what is sent.
"""


# %%
#| export drills.ddp
def meet(ranks: Ranks, data: str) -> dict:
    """Each rank says who it is; rank 0 prints what all have said."""
    said = f"rank {ranks.rank} of {ranks.size}, local rank {ranks.local_rank}, on {ranks.device}"
    ranks.print(*gathered(ranks, said), sep="\n")
    return {}


def ring(ranks: Ranks, data: str, numel: int = 1_000_003) -> dict:
    """Our all-reduce beside PyTorch's: the largest difference, and what share of its bytes this rank has sent."""
    ours = torch.randn(numel, generator=torch.Generator().manual_seed(ranks.rank))
    theirs, sent, isend = ours.clone(), [], dist.isend
    dist.all_reduce(theirs)
    dist.isend = lambda x, to: (sent.append(x.nbytes), isend(x, to))[1]
    ring_all_reduce(ours)
    dist.isend = isend
    apart = (ours - theirs).abs().max().item()
    return {"apart": apart, "share": sum(sent) / ours.nbytes, "messages": len(sent)}


# %% [markdown]
r"""
A few lines make it a command. `torchrun --standalone` starts N processes of `python -m nanogpt drill …` on this machine.
"""


# %%
#| export drills.ddp
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt drill`."""
    parser = argparse.ArgumentParser(description="Drills, under torchrun: torchrun ... -m nanogpt drill ring")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(DRILLS)}; or MODULE:NAME")
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", help="a JSON file for what rank 0 has found")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


def find_drill(name: str):
    """Chapter 20's drill of this name, or MODULE:NAME, that of another module's table DRILLS. ValueError if there is none."""
    module, _, drill = name.rpartition(":")
    table = importlib.import_module(f"nanogpt.{module}").DRILLS if module else DRILLS
    if drill in table:
        return table[drill]
    raise ValueError(f"there is no drill {name}; {module or 'chapter 20'} has {', '.join(table)}")


# %%
#| export drills.ddp
def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt drill`, its options parsed."""
    drills, ranks = {name: find_drill(name) for name in args.names}, torchrun_ranks()
    if ranks.size == 1:
        raise ValueError("a drill takes several processes: torchrun --nproc-per-node 2 -m nanogpt drill ...")
    torch.set_num_threads(1)
    with process_group(ranks, args.seconds):
        found = {name: drill(ranks, args.data) for name, drill in drills.items()}
    if ranks.rank == 0 and args.out:
        save_json(args.out, found)


# %%
torchrun("20", N, "drill", "meet", "ring", "--out", OUT)
found = json.loads(Path(OUT).read_text())["ring"]
assert found["apart"] < 1e-5, f"ring and all_reduce differ by {found['apart']}"
print(f"the ring's sum is PyTorch's; each rank sent {found['share']:.3f} b in {found['messages']} messages")

# %% [markdown]
r"""
## By hand

Each rank has a copy of the model, made from the same seed, and its own rows. Between backward and the update stands the mean:
"""


# %%
#| export
#| blank average_gradients: sum each gradient over the ranks, then divide by their number
def average_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Data parallelism by hand: after backward, each gradient becomes its mean over all ranks."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= ranks.size


# %% [markdown]
r"""
But the mean of *what*? If rank 0 counts 500 targets and rank 1, whose rows are half padding, 100, then the mean of the two mean
losses gives a token of rank 1 five times the weight. It is chapter 15's trap of micro-batches once more, and has the same
remedy: a micro-batch counts by its share of the targets of *all ranks*. So far `target_shares` divided a micro-batch's targets by their sum. Given
`ranks.mean`, it divides by the mean of the ranks' sums. That is n times its share of all, and the gradients' mean divides by n
again.
"""


# %%
#| export gpt.train
from collections.abc import Sequence
from contextlib import nullcontext


# %%
#| export gpt.train
#| grows target_shares
def target_shares(batches: Sequence[tuple[Tensor, Tensor]], mean=None) -> Tensor:
    """Of all targets that count, those that are not -100, the share in each batch. mean: see train_step."""
    if not batches:
        raise ValueError("a step needs at least one micro-batch (x, y)")
    counts = torch.stack([(y != -100).sum() for _, y in batches])
    return counts / (mean(counts.sum()) if mean else counts.sum())


# %% [markdown]
r"""
`train_step` hands `mean` on, and with it returns the loss of the whole batch on every rank. All ranks see the same loss and the same norm, so all
make the same decision when they clip or skip a step. One line more is for the next section: between micro-batches a replica need
not average its gradients, and `no_sync` tells it so.
"""


# %%
#| export gpt.train
#| grows train_step
def train_step(
    model: GPT, optimizer, batches, precision="float32", clip=None, scaler=None, accept=None, mean=None
) -> Tensor:
    """One update from batches [(x, y), …], each (B, T): the mean loss before it, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches. precision: chapter 10's word; fp16 takes a
    LossScaler, which skips what overflowed. clip: the largest norm. accept(loss, norm before clipping): whether to
    update. mean(tensor): over the processes that share the batch, whose replicas average gradients (chapter 20).
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    shares = target_shares(batches, mean)
    loss, last = torch.zeros((), device=shares.device), len(batches) - 1
    optimizer.zero_grad()
    for i, ((x, y), share) in enumerate(zip(batches, shares)):
        waits = i < last and hasattr(model, "no_sync")  # a replica's gradients are averaged once a step
        with autocast(precision, x.device), model.no_sync() if waits else nullcontext():
            part = share * model(x, y)[1]
        (part if scaler is None else part * scaler.scale).backward()
        loss += torch.where(share > 0, part.detach(), 0.0)
    loss = mean(loss) if mean else loss
    if gradient_is_fine(model, loss, clip, scaler, accept or both_finite):
        optimizer.step()
    return loss


# %%
grown("train_step", "20")

# %% [markdown]
r"""
## DistributedDataParallel

It is the same mean, but begun while backward still computes: a hook on each parameter notices that its gradient is ready, gradients
are gathered in buckets, and a full bucket is sent off at once. It also copies rank 0's weights to all at the start. The
module lies inside, as `.module`: whoever saves the wrapper's `state_dict` has `module.` before every name. `device_ids` is for GPUs
only.
"""


# %%
#| export
def replicate(model: nn.Module, ranks: Ranks, **options) -> nn.Module:
    """The model in DistributedDataParallel, which holds it as `.module`; the model itself for one process.

    All ranks begin with rank 0's weights. options: DistributedDataParallel's, such as bucket_cap_mb.
    """
    if ranks.size == 1:
        return model
    gpu = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=gpu, **options)


# %% [markdown]
r"""
Which rows are a rank's? Chapter 03's streams already deal: of a batch of B rows, rank r takes the r-th part, and the position counts what
all have taken. So the same B gives the same tokens on 1, 2 or 4 ranks, and a state saved by 4 goes on with 1.
"""


# %%
#| export
#| blank my_rows: each rank has an equal part of the rows; refuse a B that cannot be divided
def my_rows(B: int, ranks: Ranks) -> dict:
    """For a stream whose batches have B rows over all ranks: the arguments B, rank and world_size of this one."""
    if B % ranks.size:
        raise ValueError(f"{B} rows cannot be dealt to {ranks.size} ranks; take a multiple of {ranks.size}")
    return {"B": B // ranks.size, "rank": ranks.rank, "world_size": ranks.size}


# %%
B, T, batches = 8, 16, 5
alone = DocumentStream(shards := open_shards(DATA, "train"), B, T)
four = [DocumentStream(shards, T=T, **my_rows(B, Ranks(rank, rank, LOCAL))) for rank in range(LOCAL)]
for _ in range(batches):
    dealt = torch.cat([stream.next_batch()[0] for stream in four])
    assert torch.equal(dealt, alone.next_batch()[0]), "the ranks' rows are not the batch's"
assert {stream.position for stream in four} == {alone.position}, "the ranks have lost count"
print(f"{batches} batches: what {LOCAL} ranks read, one after the other, is what one reads")

# %% [markdown]
r"""
*Check.* The law of this chapter: however many processes, the same step. The drill trains on batches of 8 rows, of which half lose
most of their targets: alone, by hand, in DDP, and in DDP with the mean of means.
"""


# %%
#| export drills.ddp
SHAPE = {"n_layer": 2, "n_head": 8, "n_embd": 128, "block_size": 64}
ROWS, MICRO, SEED, LR = 8, 4, 0, 2e-3


def fresh(ranks: Ranks, data: str, rows: int = ROWS):
    """A model, its optimizer and a stream of this rank's part of `rows` rows: on all ranks the same weights."""
    shards = open_shards(data, "train")
    shape = GPTConfig(**SHAPE, vocab_size=described(shards)[0])
    model = scale_init(GPT(shape, torch.Generator().manual_seed(SEED))).to(ranks.device)
    stream = DocumentStream(shards, T=shape.block_size, device=ranks.device, **my_rows(rows, ranks))
    return model, make_optimizer(model, LR), stream


def masked(stream, row: int = ROWS // 2) -> list:
    """A batch as micro-batches of one row; of the global rows from `row` on, only the first tenth of the targets counts."""
    x, y = stream.next_batch()
    y[max(0, row - stream.rank * stream.B) :, stream.T // 10 :] = -100
    return list(zip(x.split(1), y.split(1)))


# %%
#| export drills.ddp
def weights_apart(model, ranks: Ranks) -> float:
    """The largest difference of a weight between two ranks."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    return max((weights - other).abs().max().item() for other in gathered(ranks, weights))


def by_hand(model, optimizer, micro_batches, ranks: Ranks) -> Tensor:
    """A step without DDP and without train_step; the batch's mean loss."""
    optimizer.zero_grad()
    shares, loss = target_shares(micro_batches, ranks.mean), 0.0
    for (x, y), share in zip(micro_batches, shares):
        (part := share * model(x, y)[1]).backward()
        loss += part.detach()
    average_gradients(model, ranks)
    optimizer.step()
    return ranks.mean(loss)


# %%
#| export drills.ddp
WAYS = "one process", "by hand", "DDP", "mean of means"


def same(ranks: Ranks, data: str, steps: int = 6) -> dict:
    """The same steps in four ways: their losses, and how far the first gradient is from that of one process."""
    found, gradients = {}, {}
    for way in WAYS:
        who = Ranks(device=ranks.device) if way == "one process" else ranks
        (model, optimizer, stream), losses = fresh(who, data), []
        replica = model if way == "by hand" else replicate(model, who)
        for _ in range(steps):
            if way == "by hand":
                loss = by_hand(model, optimizer, masked(stream), ranks)
            else:
                mean = None if way == "mean of means" else who.mean
                loss = train_step(replica, optimizer, masked(stream), mean=mean)
            losses.append(ranks.mean(loss).item())
            gradients.setdefault(way, torch.cat([p.grad.flatten() for p in model.parameters()]))
        one = gradients["one process"]
        found[way] = {"losses": losses, "gradient": ((gradients[way] - one).norm() / one.norm()).item()}
    return found


# %% [markdown]
r"""
## Buckets

*Predict.* The model of the drill has 0.53 million parameters, so 2.1 MB of gradients. DDP's buckets hold 25 MB, the first
1 MB. Into how many is the gradient cut, in the first step and in the third?
"""

# %%
predict("20.4", "buckets in the third step", guess=None)


# %%
#| export drills.ddp
def counting(replica, sent: list) -> None:
    """From now on, `sent` collects the bytes of each bucket that DDP averages."""

    def hook(state, bucket):
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # what DDP does without a hook

    replica.register_comm_hook(None, hook)


# %%
#| export drills.ddp
def buckets(ranks: Ranks, data: str) -> dict:
    """The buckets of three steps; and when, in a fourth, each piece of backward and each all-reduce ran, in ms."""
    model, optimizer, stream = fresh(ranks, data)
    replica, steps, sent = replicate(model, ranks, bucket_cap_mb=1), [], []
    counting(replica, sent)
    for _ in range(3):
        train_step(replica, optimizer, [stream.next_batch()], mean=ranks.mean)
        steps.append(list(sent))
        sent.clear()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        train_step(replica, optimizer, [stream.next_batch()], mean=ranks.mean)
    spans = {"backward": "autograd::engine::evaluate_function", "all-reduce": "gloo:all_reduce"}
    times = [(e.name, e.time_range.start / 1e3, e.time_range.end / 1e3) for e in profiled.events()]
    ran = {what: [(a, b) for name, a, b in times if name.startswith(key)] for what, key in spans.items()}
    return {"buckets": steps, "ran": ran}


# %% [markdown]
r"""
## One mean a step

With gradient accumulation a step has several backward passes. DDP averages after each, though only the last sum is needed;
inside `no_sync()` it does not. The trap is *when* the flag is read: in **forward**, which prepares the hooks. A script that runs forward,
then says "this is the last micro-batch", then runs backward, speaks to the next forward pass. So the first micro-batch of each step is
averaged and the last is not.

*Predict.* Four micro-batches. What does averaging after each cost, in per cent of the step? And what becomes of the model whose flag
comes late?
"""

# %%
predict("20.5", "averaging after each of 4 micro-batches costs", guess=None, unit="%")


# %%
#| export drills.ddp
def flag_after_forward(replica, optimizer, micro_batches) -> None:
    """A step that is wrong on purpose: when it says whether backward is to average, forward has been."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        loss = replica(x, y)[1] / len(micro_batches)
        replica.require_backward_grad_sync = i == len(micro_batches) - 1
        loss.backward()
    optimizer.step()


# %%
#| export drills.ddp
def flag(ranks: Ranks, data: str, steps: int = 16) -> dict:
    """Accumulation with the flag in time, forgotten and too late: MB and ms a step, and how far the ranks are apart."""
    runs = {}
    for when in ("in time", "forgotten", "late"):
        (model, optimizer, stream), sent = fresh(ranks, data), []
        counting(replica := replicate(model, ranks), sent)
        runs[when] = model, replica, optimizer, stream, sent, []
    runs["forgotten"][1].no_sync = nullcontext  # so that train_step averages after each
    for when, (_, replica, optimizer, stream, _, ms) in [*runs.items()] * steps:  # in turn
        step = replica, optimizer, [stream.next_batch() for _ in range(MICRO)]
        dist.barrier()
        began = time.perf_counter()
        flag_after_forward(*step) if when == "late" else train_step(*step, mean=ranks.mean)
        ms.append(1e3 * (time.perf_counter() - began))
    found = {}
    for when, (model, *_, sent, ms) in runs.items():
        found[when] = {"mb": sum(sent) / steps / 1e6, "ms": statistics.median(ms[1:])}
        found[when]["apart"] = weights_apart(model, ranks)
    return found


# %% [markdown]
r"""
One drill is left for later: a rank that hangs. Then the table of all of them, and all measurements in one go.
"""


# %%
#| export drills.ddp
def hang(ranks: Ranks, data: str) -> dict:
    """The last rank does not come to the collective, as if its disk or its GPU hung."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)
    return {"mean": ranks.mean(torch.ones(1)).item()}


DRILLS = {"meet": meet, "ring": ring, "same": same, "buckets": buckets, "flag": flag, "hang": hang}

# %%
torchrun("20", N, "drill", "same", "buckets", "flag", "--data", DATA, "--out", OUT)
found = json.loads(Path(OUT).read_text())
one = found["same"]["one process"]
for way, told in found["same"].items():
    apart = max(abs(a - b) for a, b in zip(told["losses"], one["losses"]))
    near = "as one process, to rounding" if max(apart, told["gradient"]) < 1e-4 else "ANOTHER gradient"
    print(f"{way:14} first loss {told['losses'][0]:.3f}, last {told['losses'][-1]:.3f}: {near}")

# %% tags=["nbval-ignore-output"]
for way, told in found["same"].items():
    apart = max(abs(a - b) for a, b in zip(told["losses"], one["losses"]))
    print(f"{way:14} gradient {told['gradient']:.1e} of its length away, losses up to {apart:.1e} nats")

# %% [markdown]
r"""
Why not zero? Float32 addition rounds, and n ranks add in another order than one: each rank its own rows first. The difference is of the
size of the rounding itself, a few 10⁻⁷ of the gradient's length, and Adam's division lets losses drift apart from there. A bound
says what "the same" means, and a wrong program is orders of magnitude beyond it: look at the mean of means.
"""

# %%
for step, sizes in enumerate(found["buckets"]["buckets"], 1):
    print(f"step {step}, in all {len(sizes)}:", ", ".join(f"{size / 1e6:.2f} MB" for size in sizes))
answer("20.4", len(found["buckets"]["buckets"][2]))

# %% [markdown]
r"""
In the first step DDP does not know yet in which order gradients become ready; it takes all as one bucket, and watches. Then it cuts buckets in
that order, and its log says `Reducer buckets have been rebuilt in this iteration`: once is as it should be. A parameter that gets no
gradient would keep its bucket from ever being full, and the next forward pass ends with an error that says so.

What buckets are for: an all-reduce may begin while backward still computes. The profile shows how far that succeeds here. (The short all-reduces at both ends are
`train_step`'s: how many targets, and the loss.)
"""

# %% tags=["nbval-ignore-output"]
ran = found["buckets"]["ran"]
show(figures.overlap(ran), alt="Pieces of backward over time, and below them all-reduces within.")
ends = max(end for _, end in ran["backward"])
gradients = [(a, b) for a, b in ran["all-reduce"] if a > ran["backward"][0][0]]
hidden = sum(max(0.0, min(b, ends) - a) for a, b in gradients) / sum(b - a for a, b in gradients)
print(f"{hidden:.0%} of the time of the all-reduces that begin in backward lies within it")

# %% [markdown]
r"""
On two ranks of one machine an all-reduce is mostly waiting for the other rank, and takes cores that backward wants too. On GPUs the network
works beside the arithmetic, and this is where data parallelism gets its efficiency from.

And the flag?
"""

# %% tags=["nbval-ignore-output"]
for when, told in found["flag"].items():
    print(f"{when:10} {told['mb']:.1f} MB and {told['ms']:.0f} ms a step; weights {told['apart']:.1e} apart")
costs = 100 * (found["flag"]["forgotten"]["ms"] / found["flag"]["in time"]["ms"] - 1)
print(f"averaging after each micro-batch costs {costs:.0f}% of the step on this machine")
answer("20.5", costs)

# %%
held, lost = found["flag"]["in time"], found["flag"]["late"]
assert held["apart"] == 0, "the ranks' weights differ though each step averaged"
assert lost["apart"] > 1e-4, "the late flag did no harm, which it should"
more = [found["flag"][when]["mb"] / held["mb"] for when in ("forgotten", "late")]
print(f"bytes: forgotten {more[0]:.0f} times as many, late {more[1]:.0f}")

# %% [markdown]
r"""
The late flag sends as little as the right one, its loss falls, nothing complains, and every rank trains a model of its own, of which rank 0's
is saved. A comparison of weights across ranks, once an hour, finds it.

How much forgetting costs hangs on the network. Here bytes move through memory; between machines with 10 Gb/s, GPT-2's half gigabyte takes
0.4 s in a ring of two and 0.8 s in a long one, each time.

## A rank is lost

*Predict.* The last rank hangs; the time limit is two seconds. Which message does the other one end with?
"""

# %%
said = torchrun("20", N, "drill", "hang", "--seconds", "2", fails=True)
assert f"rank {N - 1} does not answer" in said, "the rank that hangs is not named"

# %% [markdown]
r"""
`torchrun` then ends the rank that hangs, which no message reaches. The same roll call names a rank that *failed*, with its error, and one that *has
ended*: ranks that disagree on the number of collectives, as when one has a batch more than the others, would else wait for ever.
Set the limit above the longest thing that one rank does alone, a checkpoint or an evaluation.

What else goes wrong, and where one looks:

| variable | when | symptom without it |
|---|---|---|
| `OMP_NUM_THREADS` | several ranks on one machine | each takes all cores, and all wait; torchrun sets 1 and says so |
| `GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME` | several networks, a VPN, a container | ranks meet, then the first collective runs into the time limit |
| `NCCL_IB_DISABLE=1` | InfiniBand cards that are not wired up | the same; `NCCL_DEBUG=INFO` says which network NCCL takes |
| `TORCH_NCCL_ASYNC_ERROR_HANDLING` | on unless set to 0 | with 0, a lost rank hangs the others for ever |
| `CUDA_DEVICE_MAX_CONNECTIONS=1` | tensor parallelism (chapter 21) | communication is queued behind computation |
| `TORCH_LOGS=ddp` | to see DDP's log | the line about rebuilt buckets does not appear |
"""

# %% tags=["nbval-ignore-output"]
predictions("20")

# %%
checkpoint("20")

# %% [markdown]
r"""
## Exercises

`course exercises release 20` writes these as a notebook to `released/`; `course check 20` runs their visible checks.

- **20-1** One mean over all ranks, 15 minutes: mend a loss that is a mean of means.
- **20-2** A ring that turns left, 30 minutes: plan who sends which part when.
- **20-3** A step that drifts, 20 minutes: mend a flag that is set too late, and what is clipped.
- **20-4** An epoch for several ranks, 25 minutes: write the check that finds tokens read twice and ranks of unequal length.

20b has the others. To explore:

1. Give `replicate` the option `bucket_cap_mb=0.1` in the drill `flag`. How many all-reduces a step, and what does it cost? Check: the bytes
   stay the same.
2. Make `ring_all_reduce` wait for its message before it sends its own (`recv` first, then `send`). What happens, and what does the time limit
   say? Check with three ranks.
3. Write an all-reduce as `reduce_scatter_tensor` and `all_gather_into_tensor`. Check it against `dist.all_reduce` on four local ranks, and count
   the bytes.
4. Let rank 1 have another `SEED` in `fresh`. Why does `same` not notice in DDP, but by hand? Check: what does DDP do when it is made?
5. Let the drill `hang` end rank 1 with an error instead of a sleep, and then with a plain `return`. Check what rank 0 says of each.
6. `train_step` skips a step whose gradient is not finite. Why can no rank skip alone? Check by poisoning the loss of one.

## Further reading

- Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, §3–4: buckets, overlap, and what they bring.
- Patarasuk and Yuan 2009, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*: the ring, and why nothing sends less.
- Goyal et al. 2017, *Accurate, Large Minibatch SGD*, §3: the mean over ranks, and its subtleties with momentum and weight decay.
- PyTorch's documentation of *torchrun (Elastic Launch)*, and of `DistributedDataParallel.no_sync`.
"""
