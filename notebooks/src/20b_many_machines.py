# %% [markdown]
r"""
# 20b · Many machines: what goes wrong between ranks, and what more of them bring

Chapter 20a has let the trainer run on any number of ranks. Two questions are left. What if ranks wait for each other and none of them has failed? This sitting finds such a deadlock in a list that PyTorch keeps of all collectives. And what would
more GPUs bring? A model of the step predicts it, from the second GPU to the thousandth.
"""

# %%
#| default_exp drills.flight
#| doc drills.flight: Where ranks wait for different things: each one's collectives from PyTorch's flight recorder, and a deadlock.
#| doc plan.budget: What a step takes on n GPUs: collectives, seconds, the largest batch; GPUs by their data sheets.
import csv
import json

import numpy as np

from course.figures import ddp as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun

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

# %%
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.evals.losses import evaluate
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import scale_init, train_step
from nanogpt.speed.roofline import PEAKS
from nanogpt.text.data import DocumentStream
from nanogpt.run.assemble import held_out
from nanogpt.text.shards import load_manifest, open_shards

DATA, RUNS = Path("../data/built/stories"), Path("../data/built/ranks")
_ = ensure_corpus(DATA)
torch.set_num_threads(1)  # as each rank of torchrun has
V, eot = (load_manifest(DATA)[what] for what in ("vocab_size", "eot"))
T, WIDTH, SEED = 64, 64, 0
small = GPTConfig(block_size=T, vocab_size=V, n_layer=1, n_head=4, n_embd=WIDTH)

# %%
held = held_out(DATA, 3000)
print(f"{len(held[0]):,} tokens to validate on, in documents that end with id {eot}")

# %% [markdown]
r"""
## Finding a deadlock

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

1. In the model of the step, how many micro-batches must accumulate so that 512 GPUs with one row each reach 80%? Check with `efficiency`.
2. Gradients could travel in bf16. Add it to `average_seconds`, and check from how many GPUs on it matters for weak scaling.
3. Repeat `ranked_run` with 16 and 32 ranks at rate × 4 and × 8. Where does the linear rule break? Check with two seeds.

## Further reading

- Goyal et al. 2017, *Accurate, Large Minibatch SGD*, §2: the linear rule, and where it ends.
- Malladi et al. 2022, *On the SDEs and Scaling Rules for Adaptive Gradient Algorithms*, §5: √2 for Adam, and when.
- McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*, §2: the batch beyond which more rows buy nothing.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*, §5: measured on up to 3,072 GPUs.
- PyTorch's documentation of *torchrun (Elastic Launch)*: rendezvous, restarts, and what a script must do for them.
"""
