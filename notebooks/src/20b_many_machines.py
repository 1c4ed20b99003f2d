# %% [markdown]
r"""
# 20b · Many machines: the same run on any number of GPUs

Chapter 20 trained one model with several processes, in loops of a few lines. A real run has more parts: a configuration, a log, checkpoints, and
hours in which something can go wrong. This chapter lets the trainer run on any number of processes. First we start it on two, and see that
it is the same run. Then we lose processes, in every way in which that happens, and let the run say what went wrong. At the end we measure the
network, and predict how long a step takes on many GPUs.

Everything here runs on a laptop with two processes on its CPU. A few things are different with NCCL, the library that connects GPUs. We have not run those,
so the chapter names the document that says it.
"""

# %%
#| default_exp run.together
#| doc run.together: What a run on several ranks needs beside DDP: one that speaks and writes, hashes compared, evaluation shared.
#| doc parallel.watch: A thread that says where every rank is when one has begun no collective for too long.
#| doc drills.flight: Ranks that hang or wait for different things: each one's collectives from PyTorch's flight recorder.
#| doc drills.network: How long an all-reduce takes, by its bytes, and a step of several ranks, computed alone and averaged.
#| doc plan.budget: What a step takes on n GPUs: collectives, seconds, the largest batch; GPUs by their data sheets.
import json
import re
import shutil
from contextlib import redirect_stderr
from dataclasses import replace

from course.figures import ddp as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import ranks_device, torchrun
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.evals.losses import evaluate
from nanogpt.gpt.model import GPT
from nanogpt.run.compare import verdict
from nanogpt.run.config import load_config
from nanogpt.run.metrics import read_metrics
from nanogpt.run.trainer import fit
from nanogpt.speed.roofline import PEAKS
from nanogpt.text.shards import load_manifest

# %%
#| export
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from nanogpt.corpora.chunks import alone_in
from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.parallel.distributed import Ranks, code_hash, gathered, process_group, refuse_differences
from nanogpt.parallel.distributed import torchrun_ranks
from nanogpt.parallel.layout import data_parallel
from nanogpt.run.config import Config, config_dict
from nanogpt.text.data import BatchStream, DocumentStream
from nanogpt.text.shards import document_starts, open_shards, read_shard


# %% [markdown]
r"""
## Two processes

This command trains the configuration `tiny` with two processes on one machine:

```
torchrun --standalone --nproc-per-node 2 -m nanogpt train tiny
```

`torchrun` starts two copies of `python -m nanogpt train tiny`, and tells each its rank by environment variables (chapter 20). `--standalone` says that there
is only one machine. On a server with eight GPUs the same command with `--nproc-per-node 8` gives each process a GPU.

Below we run it for 40 steps with two processes, and with one. The batch is the same in both: 4 rows of 128 tokens. Of two processes each takes half of the rows.

*Predict.* How much faster are two processes than one?
"""

# %%
DATA, RUNS = Path("../data/built/stories"), Path("../data/built/ranks")
STEPS, SEED = 40, 0
_ = ensure_corpus(DATA)
torch.set_num_threads(1)  # as each rank of torchrun has
assert STEPS >= 40 and STEPS % 2 == 0, f"STEPS={STEPS}: take an even number, and at least 40"


def settings(name: str) -> list[str]:
    """A short run of `tiny` in a folder of this name, with a checkpoint halfway."""
    keys = {
        "train.max_steps": STEPS,
        "eval.every": 0,
        "run.checkpoint_every": STEPS // 2,
        "run.log_every": 20,
    }
    keys |= {"data.dir": DATA.as_posix(), "run.dir": (RUNS / name).as_posix(), "run.device": ranks_device(2)}
    return [f"{key}={value}" for key, value in keys.items()]


print("train tiny", *settings("two"), sep="\n  ")

# %%
predict("20b.1", "two processes are faster than one by a factor", guess=None, unit="×")

# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS, ignore_errors=True)
_ = torchrun("20b", 2, "train", "tiny", *settings("two"))
_ = fit(load_config("tiny", settings("one")))

# %%
one, two = read_metrics(RUNS / "one"), read_metrics(RUNS / "two")
apart = verdict(one, two, "loss")[0]
assert apart < 1e-3, f"two processes have another loss than one, by {apart}"
print(f"{STEPS} steps on one process and on two: the losses agree to 0.001")

# %% tags=["nbval-ignore-output"]
ms = [float(np.median([line["ms"] for line in run[5:]])) for run in (one, two)]
faster = ms[0] / ms[1]
print(f"{ms[0]:.0f} ms a step on one, {ms[1]:.0f} ms on two: {faster:.2f}×, efficiency {faster / 2:.0%}")
answer("20b.1", faster)

# %% [markdown]
r"""
It is the same run, to rounding, and two processes do not reach twice the speed. A part of each step is not shared: both processes make the whole update, and they wait for
each other while they average gradients. The last part of the chapter measures this. First let us see what the trainer needs for two processes.

## One process speaks

All ranks run the same program, and yet a line of the log must appear once, and a checkpoint must have one author. So rank 0 alone prints, writes the log, the checkpoints and the samples,
and holds the lock on the run's folder. The other ranks print to nowhere.

Some things are made once, such as the shards of a corpus that is not there yet. Rank 0 makes them while the others wait, and then the others find them. `first_alone` does this with two
barriers. A barrier is a collective without data: nobody leaves it before all have come.

How long should a rank wait for the others? Ten minutes is PyTorch's default for NCCL, and ours. Where rank 0 needs longer, because it tokenizes a large corpus, `NANOGPT_PATIENCE` sets
another number of seconds.
"""


# %%
#| export run.together
def first_alone(ranks: Ranks, call: Callable, *args):
    """call(*args) on rank 0, and then on the others, who find what it has made."""
    if ranks.size > 1 and ranks.rank > 0:
        dist.barrier()
    made = call(*args)
    if ranks.size > 1 and ranks.rank == 0:
        dist.barrier()
    return made


def patience() -> float:
    """Seconds that a rank of a run waits for the others: the variable NANOGPT_PATIENCE, else ten minutes."""
    said = os.environ.get("NANOGPT_PATIENCE", "600")
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"NANOGPT_PATIENCE is {said!r}; it must be a whole number of seconds")
    return float(said)


# %%
#| export run.together
def too_large(config: Config, device: torch.device, ranks: int) -> str:
    """Why a run cannot fit into the device's memory, however it is cut over its ranks; "" where it may.

    Counted is what every run keeps: 16 bytes a parameter, the vocabulary's aside, and each block's input in 16 bits.
    """
    m, B = config.model, config.train.micro_batch
    P = num_params(GPTConfig(**vars(m), vocab_size=1))
    needed = (16 * P + 2 * m.n_layer * B * m.block_size * m.n_embd) // ranks
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    elif hasattr(os, "sysconf"):  # not on Windows
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return ""
    names = ["n_layer", "n_embd", "block_size"] + ["padded_vocab_size"] * (m.padded_vocab_size is not None)
    given = ", ".join(f"model.{name}={getattr(m, name)}" for name in names)
    said = f"{given} and train.micro_batch={B} need at least {needed // 10**9:,} GB a process for {P:,} parameters"
    return f"{said}; {device} has {there // 10**9:,} GB: lower the largest" if needed > there else ""


# %%
print(patience(), "seconds")
print(
    too_large(load_config("tiny", ["model.n_layer=1000000000"]), torch.device("cpu"), ranks=2).split(";")[0]
)

# %% [markdown]
r"""
`too_large` refuses a run that no memory could hold, before every rank begins to build it. `one_run` puts these pieces together. The trainer's `fit` (chapter 17e) does all of its work within this block.
The block also starts a watch, which a later section explains.
"""


# %%
#| export run.together
@contextmanager
def one_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    data_parallel(config.parallel, ranks.size)  # chapter 21d: is this the number of processes it needs?
    if config.init_from is None and (reason := too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # else PyTorch 2.9 records nothing for the watch
    with ExitStack() as stack:
        stack.enter_context(process_group(ranks, patience()))
        stack.enter_context(watched(ranks, patience() / 2))
        if ranks.rank == 0:
            stack.enter_context(alone_in(Path(config.run.dir), "trainer", "choose another run.dir"))
        else:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
        yield ranks


# %% [markdown]
r"""
## The batch is dealt

`train.batch_tokens` is the batch of *all* ranks together, so the number of ranks does not change the run. The ranks take its micro-batches in turn, through the stream of chapter 03.
"""


# %%
#| export run.together
def stream_of(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards = open_shards(config.data.dir, "train")
    dealt = {"rank": ranks.rank, "world_size": ranks.size, "seed": config.run.seed, "device": ranks.device}
    return kind(shards, config.train.micro_batch, config.model.block_size, **dealt)


# %%
config = load_config("tiny", settings("dealt"))
alone = stream_of(config, Ranks())
print("one process:", *(alone.next_batch()[0][:, :8].tolist() for _ in range(2)), sep="\n  ")
for rank in range(2):
    x, _ = stream_of(config, Ranks(rank, rank, 2)).next_batch()
    print(f"rank {rank} of 2:\n  {x[:, :8].tolist()}")

# %% [markdown]
r"""
The first micro-batch of one process is rank 0's, and the second is rank 1's: together they read what one would.

The micro-batches must come out even. `tiny` has two of them, so four ranks cannot share them, and the error should say what to change. At the same place the ranks compare hashes: of the configuration, of the shards, of the
code on their disks, and of the checkpoint that they found. A rank with yesterday's code computes without complaint, and the average of two different programs looks like a loss.
"""


# %%
#| export run.together
def remedy(config: Config, ranks: int) -> str:
    """The change of the configuration with which its batch can be dealt to so many ranks."""
    rows = config.train.batch_tokens // config.model.block_size
    for micro_batch in range(config.train.micro_batch, 0, -1):
        if rows % (ranks * micro_batch) == 0:
            return f"set train.micro_batch={micro_batch}, which keeps the batch"
    return f"make train.batch_tokens a multiple of {ranks} × model.block_size"


def refuse_other_runs(ranks: Ranks, config: Config, stream: BatchStream, found: str) -> None:
    """ValueError if the micro-batches cannot be dealt, or if the ranks would not do the same run.

    found: the checkpoint that this rank would go on from.
    """
    c = config
    if c.micro_batches % stream.world_size:
        each = f"train.micro_batch={c.train.micro_batch} × model.block_size={c.model.block_size}"
        batch = f"train.batch_tokens={c.train.batch_tokens} is {c.micro_batches} × {each}"
        what = remedy(c, stream.world_size)
        raise ValueError(f"{batch}: not to be dealt to {stream.world_size} ranks; {what}")
    same = config_dict(c) | {"run": config_dict(c)["run"] | {"device": None}}
    hashes = {"configuration": same, "data": stream.state_dict()["shards"]}
    hashes = {k: hashlib.sha256(json.dumps(v).encode()).hexdigest()[:12] for k, v in hashes.items()}
    refuse_differences(ranks, **hashes, code=code_hash(), checkpoint=found)


# %%
for size in (4, 3):
    try:
        refuse_other_runs(Ranks(), config, stream_of(config, Ranks(0, 0, size)), "")
    except ValueError as error:
        print(error)

# %% [markdown]
r"""
Dropout needs one more thing. Each rank must drop other units than the others. With one generator a rank, a checkpoint would have to keep as many states as there are ranks, and the run could
not go on with another number. So each step gets a new seed, made of the run's seed, the step and the rank. Nothing has to be kept.
"""


# %%
#| export run.together
def seed_step(ranks: Ranks, seed: int, step: int) -> None:
    """Let dropout differ by rank and step; a run of one process goes on with the state that its checkpoints keep."""
    if ranks.size > 1:
        torch.manual_seed(hash((seed, step, ranks.rank)) % 2**63)


# %%
for rank in range(2):
    seed_step(Ranks(rank, rank, 2), SEED, step=7)
    dropped = torch.nn.functional.dropout(torch.ones(12), 0.5)
    print(f"rank {rank}, step 7: {(dropped > 0).int().tolist()}")

# %% [markdown]
r"""
*Evaluation* is shared too. Every rank takes some of the held-out documents, whole ones. The ranks add up their sums and their counts. The mean of the ranks' means would be wrong, since one rank has
more tokens than another.
"""


# %%
#| export run.together
def held_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    held = []
    for path in open_shards(folder, "val"):
        held.append(read_shard(path)[:tokens])
        tokens -= len(held[-1])
    return held


def my_documents(tokens: np.ndarray, eot: int, ranks: Ranks) -> np.ndarray:
    """A rank's part of a shard: whole documents, and the token behind the last, which is to be predicted too."""
    starts = np.array_split(document_starts(tokens, eot), ranks.size)
    bounds = [part[0] if len(part) else len(tokens) - 1 for part in starts] + [len(tokens) - 1]
    return tokens[bounds[ranks.rank] : bounds[ranks.rank + 1] + 1]


def held_loss(ranks: Ranks, evaluate: Callable, model, held: list[np.ndarray], eot: int, **how) -> float:
    """evaluate(model, held, eot, **how), chapter 18's mean loss, with the documents dealt to all ranks."""
    if ranks.size == 1:
        return evaluate(model, held, eot, **how)
    mine = [part for tokens in held if len(part := my_documents(tokens, eot, ranks)) > 1]
    count = sum(len(part) - 1 for part in mine)
    told = gathered(ranks, (count, evaluate(model, mine, eot, **how) if count else 0.0))
    return sum(count * loss for count, loss in told) / sum(count for count, _ in told)


# %%
V, eot = (load_manifest(DATA)[what] for what in ("vocab_size", "eot"))
small = GPTConfig(block_size=64, vocab_size=V, n_layer=1, n_head=4, n_embd=64)
model, held = GPT(small, torch.Generator().manual_seed(SEED)), held_out(DATA, 3000)
total = 0.0
for rank in range(3):
    part = my_documents(held[0], eot, Ranks(rank, rank, 3))
    total += (len(part) - 1) * evaluate(model, [part], eot)
    print(f"rank {rank} of 3: {len(part) - 1} tokens")
apart = abs(total / (len(held[0]) - 1) - evaluate(model, held, eot))
assert apart < 1e-5, f"the parts' loss is {apart} from the whole's"
print(f"together {len(held[0]) - 1} tokens, and the loss of one process")

# %% [markdown]
r"""
Last, stopping. A signal reaches one rank, or all, or all but at different steps. After each step the ranks ask each other for the first reason to stop (`first_reason`, chapter 20), so they stop after the same step, with one checkpoint.

## Another number of ranks

Nothing in a checkpoint says how many ranks there were. So a run can go on with another number. The run above wrote a checkpoint after half of its steps. We copy that, and go on with one process.

*Predict.* At the end, is the loss that of the run that was never interrupted?
"""

# %% tags=["nbval-ignore-output"]
shutil.copytree(RUNS / "two", RUNS / "went-on", ignore=shutil.ignore_patterns(f"step_{STEPS:06d}"))
_ = fit(load_config("tiny", settings("went-on")))

# %%
went_on = read_metrics(RUNS / "went-on")
apart = verdict(two, went_on, "loss")[0]
assert len(went_on) == STEPS and apart < 1e-3, f"the curve has a seam: {apart} nats"
print(f"{STEPS // 2} steps on two processes, {STEPS // 2} on one: the losses agree to 0.001")

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
#| export parallel.watch
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
from nanogpt.parallel.distributed import Ranks, gathered


# %%
#| export parallel.watch
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
And what should it say? A time-out names a collective, but the reader wants a line of code. Python can tell where each of its threads is. `place_of` walks up the stack of the main thread and keeps the functions of our package.
"""


# %%
#| export parallel.watch
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
When a watch has seen no new collective for too long, it writes its rank's place into torchrun's store and gives the others some time to do the same. The thread of a rank that hangs is alive, so it answers as well. Only a process that is
gone or stopped does not. To print each line once, the lowest rank that answered prints them all.
"""


# %%
#| export parallel.watch
#| blank say_where_all_are: write my place into the store, wait, and print the others' if no lower rank has answered
def say_where_all_are(ranks: Ranks, store, place: str, seconds: float) -> None:
    """Print where each rank is: once, by the lowest of those that answer within so many seconds."""
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
    say_where_all_are(Ranks(0, 0, 2), dist.HashStore(), "train_step (train.py:20)", seconds=0.1)

# %% [markdown]
r"""
The thread itself looks ten times in the time that it waits, and compares the number of collectives with the one before. If the run goes on after all, it takes back what it said.
"""


# %%
#| export parallel.watch
def watch(ranks: Ranks, store, seconds: float, thread: int, ended: Event) -> None:
    """Look until the run has ended; speak up when this rank has begun no collective for so many seconds."""
    begun, since, spoke = -1, time.monotonic(), False
    while not ended.wait(seconds / 10):
        if collectives_begun() != begun:
            begun, since = collectives_begun(), time.monotonic()
            if spoke:  # the run goes on, so what it said is no longer true
                store.delete_key(f"{ranks.rank}")
                spoke = False
        elif not spoke and time.monotonic() - since > seconds:
            spoke = True
            say_where_all_are(ranks, store, place_of(thread), seconds / 4)


# %%
#| export parallel.watch
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
To try it on two, a drill trains chapter 20's model in DDP, and calls a check after every third step. The first check is meant to hang: the last rank goes to sleep, as if its disk did not answer.
"""


# %%
#| export drills.flight
import argparse
import json
import os
import time
from pathlib import Path

import torch

import nanogpt
from nanogpt.drills.ddp import fresh, weights_apart
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, process_group, replicate, torchrun_ranks
from nanogpt.text.files import save_json


# %%
#| export drills.flight
def hangs(ranks: Ranks, step: int, model) -> None:
    """The last rank never comes back."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)


def train(ranks: Ranks, data: str, check, steps: int = 6, every: int = 3) -> None:
    """Chapter 20's model in DDP for some steps, with a check after every third."""
    model, optimizer, stream = fresh(ranks, data)
    replica = replicate(model, ranks)
    for step in range(1, steps + 1):
        train_step(replica, optimizer, [stream.next_batch()], mean=ranks.mean)
        if step % every == 0:
            check(ranks, step, model)


# %% [markdown]
r"""
The command that runs the drill comes with the next section. *Predict.* Rank 1 sleeps. The time limit is six seconds, and the watch speaks after half of it. In which of our functions is rank 0?
"""

# %%
predict("20b.2", "rank 0 waits in", guess=None)

# %% tags=["nbval-ignore-output"]
FLIGHT = RUNS / "flight"
words = "--data", DATA.as_posix(), "--out", FLIGHT.as_posix(), "--seconds", "6"
said = torchrun("20b", 2, "flight", "hangs", *words, fails=True)

# %%
places = dict(re.findall(r"watch: rank (\d) is in (.*)", said))
assert "hangs" in places["1"] and "train_step" in places["0"], f"the watch has said {places}"
print("rank 0:", re.sub(r" \(.*?\)", "", places["0"]))
print("rank 1:", re.sub(r" \(.*?\)", "", places["1"]))
answer("20b.2", "mean, called by train_step")

# %% [markdown]
r"""
The watch says where both are. Rank 1 is in `hangs`. Rank 0 has gone on to the next step, in which it first adds up how many targets all ranks have, and there it waits. The last line is the roll call of chapter 20, after the time limit,
with gloo. It knows that rank 1 does not answer, and not where it is.

A process that is outside of Python for long, or that nobody has prepared, can be looked at by `py-spy dump --pid PID`. Attaching needs permission: root on macOS, and on Linux where
`/proc/sys/kernel/yama/ptrace_scope` is 1. `faulthandler.dump_traceback_later(600)` at a program's start needs none, and prints after ten minutes where it is.

## Finding a deadlock

In the next case no rank is lost, and yet all of them wait. Chapter 20 advised to compare the weights of all ranks now and then. Only rank 0 prints, so somebody lets only rank 0 ask.
"""


# %%
#| export drills.flight
def check_alone(ranks: Ranks, step: int, model) -> None:
    """Wrong on purpose: weights_apart gathers, and the others do not come."""
    if ranks.rank == 0:
        print(f"after step {step}: weights {weights_apart(model, ranks):g} apart", flush=True)


def check_together(ranks: Ranks, step: int, model) -> None:
    """All ranks ask, one prints."""
    apart = weights_apart(model, ranks)
    ranks.print(f"after step {step}: weights {apart:g} apart")


CHECKS = {"hangs": hangs, "alone": check_alone, "together": check_together}

# %% [markdown]
r"""
All ranks must make the same collectives in the same order. So we read each rank's flight recorder, and look for the first collective that is not the same on all of them.
"""


# %%
#| export drills.flight
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
    """The first collective that is not of one kind and size on all ranks: each rank's, None where it made none."""
    made = [{each["number"]: each for each in record} for record in records]
    for number in sorted(set().union(*made)):
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
The command `flight` trains with the checks that it is given, within the process group and the watch. At the end, good or bad, each rank writes its record into a file.
"""


# %%
#| export drills.flight
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
                train(ranks, args.data, CHECKS[check])
            finally:
                save_json(Path(args.out) / f"{check}-rank{ranks.rank}.json", flight_record())


# %% [markdown]
r"""
*Predict.* Rank 0 waits in the check's `all_gather`. In which collective does rank 1 wait? (One `torchrun` makes two runs: `together`, in which all ranks ask, and then `alone`, which ends it.)
"""

# %%
predict("20b.3", "rank 1 waits in", guess=None)

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
answer("20b.3", parted[1]["kind"])
together = records_of("together")
assert where_they_part(together) is None, "the ranks' collectives differ where all make the call"
print(f"where all make the call: {len(together[0])} collectives, the same on both ranks")

# %% [markdown]
r"""
Up to there the lists are equal. Then rank 0 gathers, called by `check_alone`. Rank 1 was not called, and has gone on to the next step, where it counts targets. Neither rank waits in the wrong place. The mistake is that only rank 0 made the gather. In the run before, `together`,
all ranks made the call and one printed, and the lists do not part.

This was the lucky case, in which the two collectives are of different kinds. Where both are all-reduces, gloo pairs them. If they have different sizes, a process ends with *Is there a distributed collective mismatch in your code?* If they have the
same size, nothing ends: gloo adds two things that have nothing to do with each other, and one rank waits only at the end, for a collective that no other makes.

The code above asks for the recorder of the backend that is used: `_dump_fr_trace` for gloo, and `_dump_nccl_trace` for NCCL, whose entries have the same fields (PyTorch's `FlightRecorder.hpp`). NCCL's ranks also write it to files when they run into
the time limit, if `TORCH_NCCL_DUMP_ON_TIMEOUT` is set and `TORCH_FR_DUMP_TEMP_FILE` says where.

## A model of the network

Why were two processes less than twice as fast? A message takes a *latency* α, however short it is, and then its bytes travel at a *bandwidth* β:

$$\text{seconds} = \alpha + \frac{\text{bytes}}{\beta}$$

An all-reduce by a ring (chapter 20) sends 2(n − 1)/n of its bytes. A ring has 2(n − 1) messages, one after the other, and a tree has 2 log₂ n. For two ranks both are two messages, and each rank sends the bytes once: 2α + bytes/β. Let us measure α and β here.
"""


# %%
#| export drills.network
import statistics
import time

import torch
import torch.distributed as dist

from nanogpt.drills.ddp import fresh
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, replicate
from nanogpt.speed.roofline import synchronize


def all_reduces(ranks: Ranks, data: str, repeats: int = 20) -> dict:
    """The median seconds of an all-reduce, by its bytes, from 1 kB to 16 MB."""
    found = {}
    for nbytes in (2**k for k in range(10, 25, 2)):
        x, seconds = torch.zeros(nbytes // 4, device=ranks.device), []
        for _ in range(repeats):
            began = time.perf_counter()
            dist.all_reduce(x)
            synchronize(ranks.device)
            seconds.append(time.perf_counter() - began)
        found[nbytes] = statistics.median(seconds)
    return found


# %% [markdown]
r"""
The second drill times a step in two ways. *Alone*, each rank computes forward, backward and update of its rows, at the same time as the other, and waits for it at the end; nothing is averaged. *Together*, DDP averages. The difference is what averaging costs. The two ways alternate, so that both see the same machine.
"""


# %%
#| export drills.network
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
        train_step(model, optimizer, batch, mean=mean)
        synchronize(ranks.device)
        dist.barrier()  # a step ends when the slower rank is done
        found[way].append(time.perf_counter() - began)
    gradient = sum(p.grad.nbytes for p in runs["alone"][0].parameters())
    return {way: seconds[5:] for way, seconds in found.items()} | {"bytes": gradient}


DRILLS = {"all_reduces": all_reduces, "steps": steps}

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
show(
    figures.latency_and_bandwidth(sizes, seconds, fitted),
    alt="Seconds of an all-reduce against bytes: flat, then rising.",
)
print(
    f"α = {1e6 * alpha:.0f} µs, β = {beta / 1e9:.2f} GB/s; each size within a factor of {factors.max():.1f}×"
)

# %% [markdown]
r"""
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
What the model leaves out makes the measured step longer: DDP copies gradients into buckets and back, and its ranks wait for each other several times within a step, where *alone* they wait once. A machine that does other things as well interrupts now one rank and now the other, and then every one of these waits counts. On a server that does nothing else the step should be within the range.

## Many GPUs

The same formula, with other numbers, describes GPUs. Two things are new. First, backward hides a part of the averaging. Backward is two thirds of the computing; part of the averaging runs beside it. Second, there are two kinds of links. Within a machine GPUs are
connected by NVLink. Between machines there are network cards (NICs), and a server for training has one for each GPU.

How many of these cards does one all-reduce use? All of them. NCCL builds several rings, and each leaves the machine by another card. NVIDIA's engineers say so in two issues: "With 8 400 Gbps NICs your peak would be at 400 GB/s" (nccl-tests#309), and a DGX A100 with 8 cards of 200 Gb/s reaches 192 GB/s (nccl#812),
where one card has 25. A user of nccl#569 measured 363 ms with one card a machine and 132 ms with four. So the bandwidth between machines is that of all cards of a machine together, as long as the GPUs inside can pass on as much.
"""


# %%
#| export plan.budget
import math
from dataclasses import dataclass

from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.speed.work import step_flops


# %%
#| export plan.budget
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
#| export plan.budget
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
    print(
        f"{name}: {ring_bandwidth(8, cluster) / 1e9:.0f} GB/s inside, {ring_bandwidth(16, cluster) / 1e9:.0f} between"
    )

# %% [markdown]
r"""
The second line is 4% above the 192 GB/s that NVIDIA measured. For larger clusters there is a published measurement: the authors of the Ultra-Scale Playbook timed an all-reduce of 256 MB on 1 to 64 machines of eight H100 GPUs, many times (its figure *Communication Bandwidth by Number of Nodes*; the medians are
below). Their number is 2(n − 1)/n of the bytes over the time, which would be the bandwidth if there were no latency.

*Predict.* By our model this number is about 350 GB/s on 64 machines. What did they measure?
"""

# %%
predict("20b.4", "bandwidth on 64 machines, published", guess=None, unit="GB/s")

# %%
PUBLISHED = {1: 436, 2: 362, 4: 160, 8: 100, 16: 85, 32: 65, 64: 33}  # machines of 8 H100: GB/s, the median
NBYTES = 256e6
beside = {"published": PUBLISHED, "tree": {}, "ring": {}}
for machines in PUBLISHED:
    n = 8 * machines
    sent, tree = 2 * (n - 1) / n * NBYTES, average_seconds(NBYTES, n, h100)
    ring = sent / ring_bandwidth(n, h100) + 2 * (n - 1) * h100.latency
    beside["tree"][machines], beside["ring"][machines] = sent / tree / 1e9, sent / ring / 1e9
show(
    figures.bandwidths(beside),
    alt="Bandwidth against machines: a tree stays above 350 GB/s; ring and published fall below 50.",
)
for machines, rate in PUBLISHED.items():
    print(
        f"{machines:2} machines: published {rate}, tree {beside['tree'][machines]:.0f}, ring {beside['ring'][machines]:.0f} GB per s"
    )
answer("20b.4", PUBLISHED[64])

# %% [markdown]
r"""
On one and two machines the model is right within 5%. From four machines on it is too optimistic, and on 64 machines by a factor of ten. The third column shows why this is possible: with a ring's latency, 10 µs for each of its 2(n − 1) messages, the model is within a factor of 2.1 of all seven measurements. NCCL can also use trees, whose latency
grows with log n only, and our formula assumes one. Which of them a cluster gets, and how busy its switches are, no formula knows: in the same figure 5% of the measurements on 64 machines were below 12.5 GB/s, and 5% above 177. An engineer who tests a cluster saw 366 GB/s on four machines (nccl-tests#309).

So take the formula for the best case, and a measured bandwidth for a plan that has to hold. Here is the model of a step.
"""


# %%
#| export plan.budget
#| blank step_seconds: the average can hide behind two thirds of the last micro-batch's computation
#| blank efficiency: divide the time of one GPU by that of n, which do n times the work
def step_seconds(
    config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1
) -> dict[str, float]:
    """Seconds of a step on n GPUs of `rows` rows each and as many micro-batches: computing, and averaging not hidden.

    Gradients are float32 and averaged once. Left out: the update, the data, and waiting for the slowest.
    """
    compute = step_flops(config, 1, config.block_size) * rows * accumulate / (cluster.flops * cluster.mfu)
    average = average_seconds(4 * num_params(config), n, cluster)
    hidden = min(
        average, cluster.overlap * 2 / 3 * compute / accumulate
    )  # behind the last micro-batch's backward
    return {"compute": compute, "averaging": average - hidden, "total": compute + average - hidden}


def efficiency(config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1) -> float:
    """Of what n times one GPU would do, the part that is done."""
    one = step_seconds(config, rows, 1, cluster, accumulate)
    return one["total"] / step_seconds(config, rows, n, cluster, accumulate)["total"]


# %%
GPT2, ROWS, BATCH = GPTConfig(), 16, 512  # rows of 1,024 tokens: of a GPU, and of GPT-2's batch
slow = replace(h100, inside=33e9)  # what the playbook measured on 64 machines
for name, cluster in (("best case", h100), ("as published", slow)):
    step = step_seconds(GPT2, ROWS, 512, cluster)
    parts = ", ".join(f"{part} {1e3 * seconds:.1f} ms" for part, seconds in step.items())
    print(f"{name}: {parts}, efficiency {efficiency(GPT2, ROWS, 512, cluster):.0%}")

# %% [markdown]
r"""
Two questions sound alike. *Weak scaling*: each GPU keeps its 16 rows, so n GPUs read n times the batch. *Strong scaling*: the batch stays, GPT-2's half a million tokens, and each GPU gets fewer rows.

*Predict.* GPT-2 124M on H100 GPUs, eight a machine: which efficiency do they have, in per cent, in both cases?
"""

# %%
predict("20b.5", "weak scaling at 1,024 GPUs, efficiency", guess=None, unit="%")
predict("20b.6", "strong scaling at 512 GPUs, efficiency", guess=None, unit="%")

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


show(
    figures.scaling(curves(h100)),
    alt="Efficiency against GPUs: weak scaling stays near one; strong scaling falls at 512 GPUs.",
)
for name, points in curves(h100).items():
    print(
        f"{name:24}", *(f"{n}: {share:.0%}" for n, share in points if n in (8, 16, 64, 512, 1024)), sep="  "
    )
weak, strong = curves(h100).values()
answer("20b.5", 100 * weak[-1][1])
answer("20b.6", 100 * strong[-1][1])

# %% [markdown]
r"""
In the best case weak scaling costs nothing: all of the averaging hides behind backward. A ring's bytes do not grow with n, so it stays that way. In strong scaling there is ever less computing to hide behind, and at 512 GPUs, with one row each, the averaging is longer than backward. So large runs take large batches, or let micro-batches accumulate, which
divides the averaging by their number. The numbers depend on the assumptions. *Predict:* from how many GB/s of a network card on does weak scaling on 1,024 GPUs reach 90%? Then move the knobs.
"""

# %% tags=["nbval-ignore-output"]
figures.scaling_widget(lambda **knobs: curves(Cluster(flops=h100.flops, **knobs)))

# %% [markdown]
r"""
Whoever doubles the ranks and keeps the rows of each doubles the batch, and halves the number of updates. The learning rate then has to be tuned again. Goyal et al. (2017, §2.1) multiply it by the same factor as the batch, the *linear rule*, after a warm-up; they trained image models with SGD, and found that it holds up to 8,192 images a batch and not beyond. Nothing of
this is about processes: n ranks are one process with the whole batch.
"""

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

1. Train `tiny` on two processes, stop it (`touch` the file `stop` in `run.dir`), and go on with one. Check with `python -m nanogpt compare` against
   a run that was never stopped: within which bound?
2. Give a rank other data, by a `data.dir` that depends on `LOCAL_RANK`. Check that the run is refused, and what it says.
3. Let the check `hangs` raise an error instead of sleeping, and then end with `os._exit(1)`. Check what the watch says, what the roll call says, and what torchrun says.
4. In the model of the step, how many micro-batches must accumulate so that 512 GPUs with one row each reach 95%? Check with `efficiency`.
5. Gradients could travel in bf16. Add it to `step_seconds`, and check from how many GPUs on it matters, in the best case and at 33 GB/s.
6. Fit α and β with four processes. Check: is the latency 2α, as a tree's of two, 4α, as a tree's of four, or 6α, as a ring's?

## Further reading

- PyTorch's documentation of *torchrun (Elastic Launch)*: rendezvous, restarts, and what a script must do for them; and of *ProcessGroupNCCL Environment Variables*.
- The Ultra-Scale Playbook, 2025, *Pipeline Parallelism*, first figure: all-reduce, all-gather and reduce-scatter on up to 64 machines.
- NCCL's issues nccl#412, nccl#569, nccl#812 and nccl-tests#309: how many network cards a collective uses.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*, §5: measured on up to 3,072 GPUs.
- Goyal et al. 2017, *Accurate, Large Minibatch SGD*, §2: the linear rule, and where it ends. McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, §2: the batch beyond which more rows buy nothing.
"""
