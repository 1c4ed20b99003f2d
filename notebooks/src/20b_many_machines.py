# %% [markdown]
r"""
# 20b · Many machines: the same run on any number of GPUs

Chapter 20 made one step of many processes. A run is more than steps: one configuration, one log, one checkpoint, one
decision to stop, and next week another number of GPUs. And whoever has eight of them wants to know what sixteen would bring.
This chapter lets the trainer run on any number of ranks, measures what the second process brings here, and predicts the thousandth.
"""

# %%
#| default_exp run.together
#| doc run.together: What a run on several ranks needs beside DDP: one that speaks and writes, hashes compared, evaluation shared.
#| doc drills.flight: Where ranks wait for different things: each one's collectives from PyTorch's flight recorder, and a deadlock.
#| doc plan.budget: What a step takes on n GPUs: collectives, seconds, the largest batch; GPUs by their data sheets.
import csv
import json
import shutil

from course.figures import ddp as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.run.compare import verdict
from nanogpt.run.config import load_config
from nanogpt.run.metrics import read_metrics
from nanogpt.run.trainer import fit

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

# %%
#| export drills.flight
import argparse
import json
import os
import pickle
from pathlib import Path

import torch
from torch._C import _distributed_c10d

import nanogpt
from nanogpt.drills.ddp import fresh, weights_apart
from nanogpt.gpt.train import train_step
from nanogpt.parallel.distributed import Ranks, process_group, replicate, torchrun_ranks
from nanogpt.text.files import save_json

# %% [markdown]
r"""
## One that speaks

All ranks run the same program; the differences are few, and all of them stand here. Rank 0 alone prints, holds the lock on the
run's folder, writes log, checkpoints and samples. A thing that is made once, such as shards that are not there yet, is made by rank 0
while the others wait. They wait ten minutes at most; where that is not enough, `NANOGPT_PATIENCE` says how many seconds.
"""


# %%
#| export
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
#| export


# %%
#| export run.together
@contextmanager
def one_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    data_parallel(config.parallel, ranks.size)  # chapter 21d: is this the number of processes it needs?
    if config.init_from is None and (reason := too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)
    with ExitStack() as stack:
        stack.enter_context(process_group(ranks, patience()))
        if ranks.rank == 0:
            stack.enter_context(alone_in(Path(config.run.dir), "trainer", "choose another run.dir"))
        else:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
        yield ranks


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


# %% [markdown]
r"""
The batch of the configuration is that of *all* ranks together: `train.batch_tokens` does not change with their number, so neither
does the run. Its micro-batches are dealt in turn, by the stream of chapter 03, and must come out even. Before the first step hashes are
compared: of the configuration, the shards, the code, and the checkpoint that each rank has found.
"""


# %%
#| export
def stream_of(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards = open_shards(config.data.dir, "train")
    dealt = {"rank": ranks.rank, "world_size": ranks.size, "seed": config.run.seed, "device": ranks.device}
    return kind(shards, config.train.micro_batch, config.model.block_size, **dealt)


# %%
#| export
def refuse_other_runs(ranks: Ranks, config: Config, stream: BatchStream, found: str) -> None:
    """ValueError if the micro-batches cannot be dealt, or if the ranks would not do the same run.

    found: the checkpoint that this rank would go on from.
    """
    c = config
    if c.micro_batches % stream.world_size:
        each = f"train.micro_batch={c.train.micro_batch} × model.block_size={c.model.block_size}"
        raise ValueError(
            f"train.batch_tokens={c.train.batch_tokens} is {c.micro_batches} × {each}: not to be dealt to {stream.world_size} ranks"
        )
    same = config_dict(c) | {"run": config_dict(c)["run"] | {"device": None}}
    hashes = {"configuration": same, "data": stream.state_dict()["shards"]}
    hashes = {k: hashlib.sha256(json.dumps(v).encode()).hexdigest()[:12] for k, v in hashes.items()}
    refuse_differences(ranks, **hashes, code=code_hash(), checkpoint=found)


def seed_step(ranks: Ranks, seed: int, step: int) -> None:
    """Let dropout differ by rank and step; a run of one process goes on with the state that its checkpoints keep."""
    if ranks.size > 1:
        torch.manual_seed(hash((seed, step, ranks.rank)) % 2**63)


# %% [markdown]
r"""
Why is dropout seeded anew in each step? With one generator a rank, a checkpoint would have to keep as many states as there are ranks, and could
not go on with another number. A seed made of run, step and rank needs no keeping.

*Evaluation.* Every rank takes a part of the held-out documents; sums and counts are added up. Not means of means, and no document cut.
"""


# %%
#| export
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
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.evals.losses import evaluate
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import scale_init, train_step
from nanogpt.speed.roofline import PEAKS
from nanogpt.text.shards import load_manifest

DATA, RUNS = Path("../data/built/stories"), Path("../data/built/ranks")
_ = ensure_corpus(DATA)
torch.set_num_threads(1)  # as each rank of torchrun has
V, eot = (load_manifest(DATA)[what] for what in ("vocab_size", "eot"))
T, WIDTH, SEED = 64, 64, 0
small = GPTConfig(block_size=T, vocab_size=V, n_layer=1, n_head=4, n_embd=WIDTH)

# %%
held = held_out(DATA, 3000)
model = GPT(small, torch.Generator().manual_seed(SEED))
whole = evaluate(model, held, eot)
parts = [my_documents(held[0], eot, Ranks(rank, rank, 3)) for rank in range(3)]
sums = sum((len(part) - 1) * evaluate(model, [part], eot) for part in parts)
assert abs(sums / sum(len(part) - 1 for part in parts) - whole) < 1e-5, (
    "the parts' losses are not the whole's"
)
print(
    *(len(part) - 1 for part in parts),
    "tokens on three ranks; together",
    len(held[0]) - 1,
    "and the same loss",
)

# %% [markdown]
r"""
In the trainer (chapters 17d and 17e) this takes a dozen lines: the replica, the dealt stream, `mean`, and "if rank 0". Signals reach
one rank or all; after each step all ask for the first reason to stop, and stop after the same step, with one checkpoint. The
command does not change:

```
python -m nanogpt train gpt2-124M                                    one process
torchrun --standalone --nproc-per-node 8 -m nanogpt train gpt2-124M   eight GPUs of one machine
```

*Predict.* The same run on one process and on two: after 40 steps, how far are the losses apart, in nats? And how much faster is the second?
"""

# %%
predict("20b.1", "two processes are faster than one by a factor", guess=None, unit="×")
STEPS, TOKENS = 40, 1024  # tokens of a batch, whatever the number of ranks: two micro-batches
assert STEPS > 20, f"STEPS={STEPS}: the first five are not timed, and the warm-up takes 20"


def train_on(processes: int) -> list[dict]:
    """The run `tiny`, a short one, on so many processes of one thread each: the lines of its log. One: this kernel."""
    shutil.rmtree(folder := RUNS / f"on-{processes}", ignore_errors=True)
    keys = {"train.max_steps": STEPS, "train.batch_tokens": TOKENS, "eval.every": 0, "run.log_every": 20}
    keys |= {"data.dir": DATA.as_posix(), "run.dir": folder.as_posix(), "run.device": "cpu"}
    said = [f"{key}={value}" for key, value in keys.items()]
    if processes > 1:
        torchrun("20b", processes, "train", "tiny", *said)
    else:
        fit(load_config("tiny", said))
    return read_metrics(folder)


# %% tags=["nbval-ignore-output"]
one, two = train_on(1), train_on(2)
print(verdict(one, two, "loss")[1])

# %%
apart = verdict(one, two, "loss")[0]
assert apart < 1e-3, f"two processes have another loss than one, by {apart}"
print(f"{STEPS} steps on one process and on two: the losses agree to 0.001")

# %% tags=["nbval-ignore-output"]
ms = [float(np.median([line["ms"] for line in run[5:]])) for run in (one, two)]
print(
    f"{ms[0]:.0f} ms a step on one, {ms[1]:.0f} ms on two: {ms[0] / ms[1]:.2f}×, efficiency {ms[0] / ms[1] / 2:.0%}"
)
answer("20b.1", ms[0] / ms[1])

# %% [markdown]
r"""
What is missing to 2× is the averaging, the updates, which both ranks make in full, and here also that two processes share one
memory. (Where two are no faster than one, other programs have the cores, or there is only one.) The run goes on with another number of ranks as well: kill the eight, start four, and the log shows
a curve without a seam, since nothing in a checkpoint says how many there were.

## All are there, and all wait

A rank that is gone is named (chapter 20). Worse is a group of which nobody is gone and everybody waits, each for something else. It
takes one line. Chapter 20 advised to compare the weights of all ranks now and then. Only rank 0 prints, so somebody lets only
rank 0 ask.
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


CHECKS = {"alone": check_alone, "together": check_together}


def train(ranks: Ranks, data: str, check, steps: int = 6, every: int = 3) -> None:
    """Chapter 20's model in DDP for some steps, with a check of the weights after every third."""
    model, optimizer, stream = fresh(ranks, data)
    replica = replicate(model, ranks)
    for step in range(1, steps + 1):
        train_step(replica, optimizer, [stream.next_batch()], mean=ranks.mean)
        if step % every == 0:
            check(ranks, step, model)


# %% [markdown]
r"""
The run stands still, without a message, until the time limit. Then both ranks say the same of each other: waits. Which line is it?

PyTorch keeps a *flight recorder*: in each process a list of its last 2,000 collectives, with kind, sizes and the Python calls that led
to each. The functions below read it out when a rank fails. (NCCL's ranks write it to files of their own accord when they run into the time limit, if
`TORCH_FR_DUMP_TEMP_FILE` says where.) All ranks must make the same collectives in the same order, so where their lists part, there is the
mistake.
"""


# %%
#| export drills.flight
#| blank where_they_part: compare, number by number, the kind and the sizes on all ranks
def flight_record() -> list[dict]:
    """The collectives of this process in order, the last one the one it waits in: number, kind, sizes, calls in nanogpt.

    From PyTorch's flight recorder. PyTorch 2.9 keeps it for gloo only if TORCH_FR_BUFFER_SIZE is set.
    """
    here, record = str(Path(nanogpt.__file__).parent), []
    for entry in pickle.loads(_distributed_c10d._dump_fr_trace()).get("entries", []):
        ours = [f for f in reversed(entry["frames"]) if f["filename"].startswith(here)]
        calls = [f"{f['name']} ({Path(f['filename']).name}:{f['line']})" for f in ours]
        kind = entry["profiling_name"].partition(":")[2]
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
#| export drills.flight
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt flight`."""
    parser = argparse.ArgumentParser(description="A deadlock, and each rank's list of its collectives.")
    parser.add_argument(
        "checks", nargs="+", choices=CHECKS, metavar="CHECK", help="alone: a deadlock; together: none"
    )
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", required=True, help="a folder for CHECK-rank0.json and so on")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


def run(args: argparse.Namespace) -> None:
    """Train with each check, and write down in the end, good or bad, which collectives there were so far."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    ranks = torchrun_ranks()
    torch.set_num_threads(1)
    with process_group(ranks, args.seconds):
        for check in args.checks:
            try:
                train(ranks, args.data, CHECKS[check])
            finally:
                save_json(Path(args.out) / f"{check}-rank{ranks.rank}.json", flight_record())


# %% [markdown]
r"""
*Predict.* Rank 0 waits in the check's `all_gather`. In which collective does rank 1 wait, and called by which function of ours? (One
`torchrun` makes two runs: `together`, in which all ranks ask, and then `alone`, which ends it.)
"""

# %%
predict("20b.2", "rank 1 waits in", guess=None)
FLIGHT = RUNS / "flight"


def records_of(check: str) -> list[list[dict]]:
    """The flight record of each of the two ranks."""
    return [json.loads((FLIGHT / f"{check}-rank{rank}.json").read_text()) for rank in range(2)]


words = "--data", DATA.as_posix(), "--out", FLIGHT.as_posix(), "--seconds", "3"
torchrun("20b", 2, "flight", "together", "alone", *words, fails=True)
records = records_of("alone")

# %% tags=["nbval-ignore-output"]
for rank, record in enumerate(records):
    for each in record[-4:]:
        print(f"rank {rank}, {each['number']}: {each['kind']} of {each['sizes']}")
        print("          ", " → ".join(each["calls"][-4:]))

# %%
parted = where_they_part(records)
assert parted == [record[-1] for record in records], "a rank went on after the lists had parted"
for rank, each in enumerate(parted):
    calls = " → ".join(call.partition(" ")[0] for call in each["calls"][-4:])
    print(f"rank {rank} waits in {each['kind']}: {calls}")
answer("20b.2", parted[1]["kind"])

# %% [markdown]
r"""
Up to there the lists are equal. Then rank 0 gathers, called by `check_alone`, and rank 1, which was not called, has gone on to the next step, where it
counts targets. Neither *where they wait* is wrong; wrong is that only one list has the gather. In the run before, `together`, all ranks made the
call and one printed:
"""

# %%
mended = records_of("together")
assert where_they_part(mended) is None, "the ranks' collectives still differ"
print(f"{len(mended[0])} collectives, the same on both ranks")

# %% [markdown]
r"""
(That is the lucky case. Where both calls are all-reduces, gloo pairs them. Of different sizes, a process ends with *Is there a distributed collective mismatch in
your code?* Of the same size, nothing ends: a sum is made of two things that have nothing to do with each other, and one rank waits only at the end, for a collective
that no other makes.)

A rank that hangs outside of a collective, on a disk say, leaves no entry. `py-spy dump --pid PID` shows the Python stack of a process that nobody
has prepared. It takes leave to look into another process: root, on macOS `sudo`, and so on a Linux whose
`/proc/sys/kernel/yama/ptrace_scope` is 1, such as Ubuntu. Without it, `faulthandler.dump_traceback_later(600)` at the start of a program says after ten
minutes where it is.
"""

# %% [markdown]
r"""
## A model of the step

Computing shrinks with n, averaging does not. A ring moves 2(n − 1)/n of the gradient's bytes over the slowest link, plus a
latency for each of its messages; a tree, which NCCL takes where the latency counts, has 2 log₂ n of them. And of that a part is hidden behind
backward, which takes two thirds of the computing.
"""


# %%
#| export plan.budget
import math
from dataclasses import dataclass

from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.speed.work import step_flops


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


# %% [markdown]
r"""
Two questions that sound alike. *Weak scaling*: each GPU keeps its 16 rows, so n GPUs read n times the batch. *Strong scaling*: the batch stays,
GPT-2's half a million tokens, and each GPU gets fewer rows.

*Predict.* GPT-2 124M on 1,024 GPUs of eight a machine: with how much of their power, in per cent, in both cases?
"""

# %%
predict("20b.3", "weak scaling at 1,024 GPUs, efficiency", guess=None, unit="%")
predict("20b.4", "strong scaling at 512 GPUs, efficiency", guess=None, unit="%")
GPT2, ROWS, BATCH = GPTConfig(), 16, 512  # rows of 1,024 tokens: of a GPU, and of GPT-2's batch
h100 = Cluster(flops=PEAKS["H100"].half * 1e12)
counts = [2**k for k in range(11)]


def curves(cluster: Cluster) -> dict[str, list[tuple[int, float]]]:
    """Efficiency by the number of GPUs, as far as each has a row of its own."""
    weak = [(n, efficiency(GPT2, ROWS, n, cluster)) for n in counts]
    whole = step_seconds(GPT2, BATCH, 1, cluster)["total"]
    strong = [
        (n, whole / n / step_seconds(GPT2, BATCH / n, n, cluster)["total"]) for n in counts if n <= BATCH
    ]
    return {f"weak: {ROWS} rows a GPU": weak, f"strong: {BATCH} rows in all": strong}


# %%
show(
    figures.scaling(curves(h100)),
    alt="Efficiency against GPUs: weak scaling stays near one; strong scaling falls from 64 GPUs on.",
)
for name, points in curves(h100).items():
    print(
        f"{name:24}", *(f"{n}: {share:.0%}" for n, share in points if n in (8, 16, 64, 512, 1024)), sep="  "
    )
weak, strong = curves(h100).values()
answer("20b.3", 100 * weak[-1][1])
answer("20b.4", 100 * strong[-1][1])

# %% [markdown]
r"""
Up to one machine both are nearly free. Then the network enters, and weak scaling pays for it once and no more: the ring's bytes do not
grow with n. Strong scaling has ever less computing to hide behind. So large runs take large batches, or let micro-batches
accumulate, which divides the averaging by their number; the next section shows what a larger batch costs.

The numbers hang on the assumptions. *Predict:* how many GB/s between machines halve weak scaling on 1,024 GPUs, and does more overlap mend that?
Then move them.
"""

# %% tags=["nbval-ignore-output"]
figures.scaling_widget(lambda **knobs: curves(Cluster(flops=h100.flops, **knobs)))

# %% [markdown]
r"""
## Two published numbers

A published table gives llm.c on one H800 and on two.
"""


# %%
def published_rows(name: str) -> list[dict]:
    """A table of data/reference; each row says in which log and line it stands."""
    with open(f"../data/reference/{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


table = published_rows("throughput")
pair = [row for row in table if row["device"] == "H800"]
rates = [int(row["tokens_per_step"]) / float(row["median_ms"]) * 1e3 for row in pair]
for row, rate in zip(pair, rates):
    print(
        f"GPUs {row['devices']}, {row['precision']}: {row['median_ms']} ms for {row['tokens_per_step']} tokens: {rate:,.0f} tokens a second"
    )
print(f"the second GPU makes it {rates[1] / rates[0]:.2f} times as fast")

# %% [markdown]
r"""
More than twice as fast with twice the GPUs: no scaling does that. It is weak scaling, four rows a GPU, so the *steps* should take
as long as before; they are shorter, because the precision was changed as well, from TF32 to bf16. The pair says nothing about either. A
comparison changes one thing.

The same care for a gauge. This is `nvidia-smi` during a published tensor-parallel run (chapter 21) on two GPUs:
"""

# %%
for row in published_rows("megatron_nvidia_smi"):
    said = f"utilisation {row['util_percent']}%, {row['power_w']} of {row['power_cap_w']} W, {row['used_mib']} MiB"
    print(f"GPU {row['gpu']}: {said}")

# %% [markdown]
r"""
Utilisation is the share of the last moments in which *some* kernel ran, be it one that waits for another GPU. It does not say that one GPU computes
two and a half times as much as the other: both do the same work and wait for each other in every layer. What does say something is the
power: under 40% of the cap on both. Neither computes much. Trust the MFU.

## The same rows a rank, more ranks

Whoever doubles the ranks and changes nothing else doubles the batch and halves the updates. A published minGPT run, ten epochs on four
ranks, then on eight:
"""

# %%
log = published_rows("mingpt_ddp")
published = {}
for row in log:
    if row["set"] == "eval":
        ranks = 4 if "4 processes" in row["run"] else 8
        published.setdefault(ranks, {}).setdefault(int(row["epoch"]), []).append(float(row["loss"]))
published = {
    ranks: {epoch: np.mean(losses) for epoch, losses in by.items()} for ranks, by in published.items()
}
for ranks, by in published.items():
    print(f"{ranks} ranks:", ", ".join(f"epoch {epoch} {loss:.2f}" for epoch, loss in by.items()))

# %% [markdown]
r"""
1.13 against 1.96 after the same epochs. But eight ranks after ten epochs have made as many updates as four after five; and there, between epochs
3 and 6, the first curve passes 1.96. Nothing is wrong with DDP. The run is a shorter one.

Here it is in small. Since n ranks *are* one process with the whole batch, which chapter 20 proved, one process will do.
Two remedies are in use: keep the global batch, with half the rows a rank, which is the first run itself; or make larger steps, since the mean of
more rows is less noisy: the rate times 2 (Goyal et al. 2017), or √2, as theory has it for Adam (Malladi et al. 2022).
"""

# %%
PER_RANK, UPDATES, LR = 2, 192, 1e-3
assert UPDATES >= 16, f"UPDATES={UPDATES}: eight moments on eight ranks, which make half as many, take 16"


def ranked_run(ranks: int, factor: float = 1.0) -> list[tuple[int, float]]:
    """Train on the same text as 4 ranks do in UPDATES updates: (rows read, held-out loss), at eight moments."""
    rows, points = ranks * PER_RANK, []
    model = scale_init(GPT(small, torch.Generator().manual_seed(SEED)))
    stream = DocumentStream(open_shards(DATA, "train"), rows, T, seed=SEED)
    optimizer, updates = make_optimizer(model, factor * LR), UPDATES * 4 // ranks
    for step in range(1, updates + 1):
        train_step(model, optimizer, [stream.next_batch()])
        if step % (updates // 8) == 0:
            points.append((step * rows, evaluate(model, held, eot)))
    return points


# %% tags=["nbval-ignore-output"]
ways = {"4 ranks": (4, 1), "8 ranks": (8, 1), "8 ranks, rate × √2": (8, 2**0.5), "8 ranks, rate × 2": (8, 2)}
runs = {name: ranked_run(*way) for name, way in ways.items()}
show(
    figures.more_ranks(published, runs),
    alt="Left, published losses of 4 and 8 ranks against epochs; right ours: 8 ranks are higher, larger rates close the gap.",
)
for name, points in runs.items():
    print(f"{name:20} {points[-1][1]:.3f}")

# %%
final = {name: points[-1][1] for name, points in runs.items()}
print("8 ranks end higher than 4:", final["8 ranks"] > final["4 ranks"])
print("twice the rate helps:", final["8 ranks, rate × 2"] < final["8 ranks"])

# %% [markdown]
r"""
Which remedy? Keeping the global batch changes nothing, and scales until a rank has one row. Larger rates work until they do not: chapter
15 measured how noisy a gradient is, and beyond a batch that is large against that noise more rows buy nothing.

## Several machines

The command is the same on each machine, but for what says where to meet. With a *c10d rendezvous* machines may come in any order, and `--max-restarts`
starts all ranks anew if one dies; the trainer goes on from its last checkpoint.

```
torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 --rdzv-id run1 --max-restarts 3 \
         -m nanogpt train gpt2-124M run.dir=/shared/runs/a data.dir=/shared/fineweb
```

Where a host does not recognise its own name, a static one: `--node-rank 0` on the first and `--node-rank 1` on the second, both with `--master-addr HOST0
--master-port 29500`. `run.dir` and `data.dir` must lie on a disk that all see; the hashes find out if they do not. (The
course's tests run both commands on two hosts that are network namespaces of one machine, joined by a cable that they cut; they kill a worker of one host, and both
hosts go on from the last checkpoint. `slurm/` has the script for a cluster. Nobody has run them on two machines yet.)
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
2. Give a rank other data, by a `data.dir` that hangs on `LOCAL_RANK`. Check that the run is refused, and what it says.
3. In the model of the step, how many micro-batches must accumulate so that 512 GPUs with one row each reach 80%? Check with `efficiency`.
4. Gradients could travel in bf16. Add it to `average_seconds`, and check from how many GPUs on it matters for weak scaling.
5. Repeat `ranked_run` with 16 and 32 ranks at rate × 4 and × 8. Where does the linear rule break? Check with two seeds.

## Further reading

- Goyal et al. 2017, *Accurate, Large Minibatch SGD*, §2: the linear rule, and where it ends.
- Malladi et al. 2022, *On the SDEs and Scaling Rules for Adaptive Gradient Algorithms*, §5: √2 for Adam, and when.
- McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, §2: the batch beyond which more rows buy nothing.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*, §5: measured on up to 3,072 GPUs.
- PyTorch's documentation of *torchrun (Elastic Launch)*: rendezvous, restarts, and what a script must do for them.
"""
