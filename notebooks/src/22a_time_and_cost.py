# %% [markdown]
r"""
# 22a · Time and cost: how long a run takes, before a GPU is rented

A run that takes three months instead of three weeks stops when the money does. Chapter 22 counted what a step keeps. This chapter counts what it sends and what it computes, turns both into seconds, and compares them with
nine published runs. You will see how far such a prediction can be trusted, and why the planner prints a range and not one number:

```
python -m nanogpt plan --model gpt2-124M --device A100-80GB --dp 8 --tokens 10e9 --price 2
```
"""

# %%
#| default_exp labs.plan.plan
#| doc labs.plan.plan: The command `plan`: what a run takes, by formula, before it starts.
import csv

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from course.figures import planner as figures
from course.figures.local_ranks import fake_ranks, traced
from course.notebook import answer, checkpoint, predict, predictions
from nanogpt.labs.parallel.fsdp import shard
from nanogpt.labs.plan.budget import Cluster, average_seconds, ring_bandwidth
from nanogpt.model import GPT, GPTConfig, flops_per_token, num_params

# %% [markdown]
r"""
## The answer on one line

Before any of this, the answer that needs no planner: FLOPs over FLOP/s is time, and time times a price is cost. GPT-2 small is to read ten billion tokens on A100s, whose data sheet promises 312 TFLOP/s in bf16. An hour of one GPU costs 2, in your currency.

*Predict.* What does the run cost, if the GPUs reach half of the data sheet? And if they reach a fifth?
"""

# %%
flops = 10e9 * flops_per_token(GPTConfig())
print(f"{flops:.2e} FLOPs")
for share in (0.5, 0.2):
    hours = flops / (share * 312e12) / 3600
    print(
        f"at {share:.0%} of 312 TFLOP/s: {hours:.0f} GPU-hours, {hours / 8:.1f} hours on eight GPUs, a price of {2 * hours:.0f}"
    )

# %% [markdown]
r"""
Between 30 and 76, because nobody knows the share beforehand. And this is the least: eight GPUs must also send each other gradients, a pipeline waits, recomputed blocks cost FLOPs. Which of these matter, and how large is the share of real runs? The chapter answers both, and its planner must agree with these lines where nothing is sent.

## What a step sends

On a ring of n ranks, each rank sends (n − 1)/n of a tensor to gather it or to reduce-scatter it, and twice that to all-reduce it (chapter 20). Let us first compute one case by hand: eight ranks all-reduce the gradients of GPT-2 small in float32.
"""

# %%
GRADIENTS = 4 * num_params(GPTConfig())  # bytes
print(f"{GRADIENTS:,} B of gradients; each of 8 ranks sends 2 × 7/8 of them, {GRADIENTS * 2 * 7 // 8:,} B")

# %% [markdown]
r"""
So we only have to know which collectives a step makes, how many of them there are, and how many bytes they have. We write each kind of collective down as one entry of a list, and the entry computes the bytes that a rank sends.
"""

# %%
#| export labs.plan.budget
from dataclasses import dataclass, replace

from nanogpt.labs.plan.footprint import Step, split_params
from nanogpt.model import flops_by_part
from nanogpt.labs.roofline.sheets import PEAKS, Peak
from nanogpt.model import step_flops

# %%
#| export labs.plan.budget
SHARE = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # of (n - 1) / n of the bytes, on a ring


@dataclass(frozen=True)
class Sent:
    """`calls` collectives of one kind in a step, among `n` ranks; a rank's neighbour is `apart` ranks away."""

    what: str
    kind: str
    n: int
    calls: int
    nbytes: int  # of the complete tensors, in all calls together
    apart: int = 1

    @property
    def sent(self) -> float:
        """Bytes that each rank sends; from stage to stage all of them."""
        return self.nbytes * SHARE[self.kind] * (self.n - 1) / self.n if self.kind in SHARE else self.nbytes


# %%
one = Sent("gradients", "all-reduce", 8, 1, GRADIENTS)
print(f"{one.what}: each of {one.n} ranks sends {one.sent:,.0f} B of the {one.nbytes:,} B that they sum")

# %% [markdown]
r"""
The entry gives the number that we computed by hand. Chapter 20b measured how long such a collective takes, and its `Cluster` describes the links. So each entry can also say its time.
"""


# %%
#| export labs.plan.budget
class Sent(Sent):
    def seconds(self, cluster: Cluster) -> float:
        """By chapter 20b's model of a ring; a group whose ranks are apart has fewer of them in a machine."""
        group = replace(cluster, per_machine=max(1, cluster.per_machine // self.apart))
        if self.kind == "send":
            return self.nbytes / ring_bandwidth(2, group) + self.calls * cluster.latency
        each = average_seconds(self.nbytes / self.calls, self.n, group)  # an all-reduce's
        return self.calls * each * SHARE[self.kind] / 2


# %%
one = Sent("gradients", "all-reduce", 8, 1, GRADIENTS)  # made again, since the class has grown
print(f"{one.what}: {1e3 * one.seconds(Cluster(1e15)):.2f} ms")

# %% [markdown]
r"""
Now we list what each kind of parallelism sends.

**Data parallelism.** DDP all-reduces all gradients once a step, however many micro-batches there are. ZeRO's first stage replaces that by a reduce-scatter of the gradients and an all-gather of the updated weights. The second stage keeps only a part of the gradients, so it cannot
add up complete gradients over the micro-batches: it has to reduce-scatter after each of them (chapter 21's `PartsOptimizer` does). The third stage gathers the weights as well, for each micro-batch and once more in backward. The weights outside of the blocks (FSDP2's root) stay from forward to backward.
"""


# %%
#| export labs.plan.budget
#| blank data_traffic: an all-reduce; or reduce-scatter and all-gather; stage 3 gathers blocks twice, the root once
def data_traffic(step: Step) -> list[Sent]:
    """What the dp ranks send each other: at most one entry "gradients", then one "weights"; [] for dp = 1.

    Of this GPU's parameters, which are split_params(step): gradients in step.row.gradients bytes each, updated weights
    in step.row.weights. Stages 0 to 2 count as one call, stage 2's gradients as one for each micro-batch. Stage 3 has
    "weights" first, in step.row.inside bytes, and a call for each block and one for the root: wte, wpe and, on the
    last stage of a pipeline, ln_f. Two ranks of a group are step.tp ranks apart.
    """
    parts, n, apart, k, p = split_params(step), step.dp, step.tp, step.accumulate, step.row
    P, groups = sum(parts.values()), step.config.n_layer // step.pp + 1
    sums, weights = ("gradients", "reduce-scatter", n), ("weights", "all-gather", n)
    if n == 1:
        return []
    if step.shard == 0:
        return [Sent("gradients", "all-reduce", n, 1, p.gradients * P, apart)]
    if step.shard < 3:
        times = k if step.shard == 2 else 1
        return [Sent(*sums, times, times * p.gradients * P, apart), Sent(*weights, 1, p.weights * P, apart)]
    root = parts["wte"] + parts["wpe"] + step.last * (1 + step.config.bias) * step.config.n_embd
    gathers = Sent(*weights, k * (2 * groups - 1), k * p.inside * (2 * P - root), apart)
    return [gathers, Sent(*sums, k * groups, k * p.gradients * P, apart)]


# %% [markdown]
r"""
For four micro-batches, the second stage scatters four times as many bytes of gradients as the first:
"""

# %%
for z in (1, 2):
    print(
        f"ZeRO {z}:",
        [(s.kind, s.calls, s.nbytes) for s in data_traffic(Step(GPTConfig(), shard=z, dp=8, accumulate=4))],
    )

# %% [markdown]
r"""
**Tensor parallelism** sums the stream twice in each block's forward and twice in its backward, and once at each end of the model. The loss needs three small sums. If blocks are recomputed, backward runs their forward again, with its sums. PyTorch's `checkpoint` stops as soon as it has the
last tensor that it needs, which is before the block's last sum; Megatron-LM repeats both.

**A pipeline** hands the stream to the next stage, and its gradient back.
"""


# %%
#| export labs.plan.budget
#| blank tensor_traffic: two sums forward and two backward in each block, one at each end, and what recomputing repeats
def tensor_traffic(step: Step) -> list[Sent]:
    """What the tp ranks send: two sums of the stream for each block and pass (Shoeybi et al. 2019, §3), and at the ends.

    One entry "partial sums" for all of them, B · T · C numbers of step.row.inside bytes in each call (what products
    give under autocast). On the last stage a second one, "loss": three sums of a float32 number for each token. [] for
    tp = 1. PyTorch's programs are those whose name begins with "pytorch".
    """
    if step.tp == 1:
        return []
    N, k, layers = step.B * step.T, step.accumulate, step.config.n_layer // step.pp
    again = 1 if step.program.startswith("pytorch") else 2  # of a block's two forward sums
    each = 4 + again * (step.recompute == "block")
    calls = k * (each * layers + step.first + step.last)
    sums = Sent(
        "partial sums", "all-reduce", step.tp, calls, calls * N * step.config.n_embd * step.row.inside
    )
    loss = Sent("loss", "all-reduce", step.tp, 3 * k, 12 * k * N)
    return [sums, loss] if step.last else [sums]


# %%
#| export labs.plan.budget
def stage_traffic(step: Step) -> list[Sent]:
    """What a stage of a pipeline sends to its neighbours: the stream forward, its gradient back."""
    if step.pp == 1:
        return []
    calls = 2 * step.accumulate
    nbytes = calls * step.B * step.T * step.config.n_embd * step.row.stream
    return [Sent("stage to stage", "send", 2, calls, nbytes, step.tp * step.dp)]


def traffic(step: Step) -> list[Sent]:
    """All that one GPU sends in a step."""
    return data_traffic(step) + tensor_traffic(step) + stage_traffic(step)


# %%
for sent_by in traffic(Step(GPTConfig(), 8, tp=2, pp=2)):
    print(f"{sent_by.what:15} {sent_by.calls:>3} × {sent_by.kind}, {sent_by.nbytes:>13,} B together")

# %% [markdown]
r"""
This is the first stage of a pipeline of two, whose six layers are cut for two ranks: 4 × 6 sums in the blocks, one more for the embeddings, one send forward and one back. The three sums of the loss belong to the last stage.

Are these lists right? PyTorch has a process group that moves nothing: this process is rank 0 of n, every collective returns at once, and we count it. So DDP and FSDP2 (`fsdp.shard`, in float32 and in bf16) run a
real step of a real model as one rank of many, without the others.

*Predict.* With DDP, how many times as many bytes does a rank send when there are 1,024 ranks instead of 2? And how much does FSDP2 send in bf16, as a multiple of what DDP sends?
"""

# %%
RANKS = 2, 64, 1024

# %%
predict("22a.1", "DDP: bytes a rank sends at 1,024 over those at 2", guess=None, unit="×")
predict("22a.2", "FSDP2's bytes in bf16 over DDP's, at 1,024", guess=None, unit="×")

# %% [markdown]
r"""
We wrap one small, wide model in three ways. For each way and each number of ranks we count the collectives of a real step and compare them with our lists.
"""

# %%
wide, rows, sent = GPTConfig(1024, 1024, n_layer=1, n_head=8, n_embd=1024), torch.zeros(2, 1, 64).long(), {}
WAYS = {  # how the model is wrapped, the program, on how many ranks
    "DDP": (DDP, "pytorch", RANKS),
    "FSDP2": (shard, "pytorch", RANKS),
    "FSDP2 bf16": (lambda model: shard(model, precision="bf16"), "pytorch-bf16", RANKS),
}

# %%
for way, (wrap, program, counts) in WAYS.items():
    for n in counts:
        with fake_ranks(n):
            calls = traced(wrap(GPT(wide)), *rows)
        layout = {"dp": n, "shard": 0 if way == "DDP" else 3}
        formula = traffic(Step(wide, 1, 64, program, **layout))
        found = len(calls), sum(nbytes for _, nbytes in calls)
        derived = sum(s.calls for s in formula), sum(s.nbytes for s in formula)
        sent[way, n] = sum(s.sent for s in formula)
        print(f"{way:10}{n:>5} ranks: {found[0]} calls, {found[1]:>11,} B; sends {sent[way, n]:>11,.0f} B")
        assert found == derived, f"{way}, {n} ranks: {found}, formula {derived}; are rows padded?"
answer("22a.1", sent["DDP", RANKS[-1]] / sent["DDP", RANKS[0]])
answer("22a.2", sent["FSDP2 bf16", RANKS[-1]] / sent["DDP", RANKS[-1]])

# %% [markdown]
r"""
From 2 ranks to 64 the bytes that a rank sends almost double, since 2(n − 1)/n goes from 1 towards 2. After that they hardly grow. In float32, FSDP2 sends half as much again as DDP, less the root. In bf16 it gathers numbers of two bytes and scatters gradients of four, so it sends no more than DDP.

(FSDP2 cuts each tensor's rows into n parts and fills the last ones with zeros. A bias of 768 numbers on 1,024 ranks is sent as 1,024. The model above has no such tensor; yours may, and the count will say so.)

## From bytes and FLOPs to seconds

A card has a data sheet (chapter 09's `PEAKS`), which gives its FLOP/s in each format. And it has a link to the next card in its machine, NVLink or PCIe. The cell below adds the links to the data sheets.
"""

# %%
#| export labs.plan.budget
LINKS = {  # GB/s each way to a neighbour; NVLink, by the data sheets
    "B200": 900, "H200": 450, "H100": 450, "A100-80GB": 300, "A100-40GB": 300, "H800": 200, "A800": 200, "V100": 150,
    "H100-PCIe": 64, "RTX 5090": 64, "V100-PCIe": 16, "V100S": 16, "T4": 16,  # PCIe 5.0, 3.0
}  # fmt: skip
RATES = {"pytorch": "float32", "pytorch-tf32": "tf32", "llm.c-2024": "tf32", "llm.c-cpu": "float32"}


@dataclass(frozen=True)
class Card:
    """A GPU: its data sheet, and GB/s each way to a neighbour."""

    sheet: Peak
    link: float = 32  # PCIe 4.0, 16 lanes

    def rate(self, program: str) -> float:
        """FLOP/s of the data sheet in the program's format; where there is no TF32, float32's."""
        name = RATES.get(program, "half")
        return 1e12 * (getattr(self.sheet, name) or self.sheet.float32)


CARDS = {name: Card(sheet, LINKS.get(name, 32)) for name, sheet in PEAKS.items()}

# %%
for program in ("pytorch", "pytorch-tf32", "pytorch-bf16"):
    print(f"A100, {program}: {CARDS['A100-80GB'].rate(program) / 1e12:g} TFLOP/s")

# %% [markdown]
r"""
The time of computing is FLOPs over FLOP/s. But no program reaches the data sheet (chapter 14). No formula gives the share that a run reaches, the `mfu`, so we have to assume it. Other times are added to the time of computing:

- recomputed blocks: their forward FLOPs once more. PyTorch's `checkpoint` stops when it has all tensors that backward reads, so it leaves out the last product of a block, the MLP's `c_proj`;
- the sums of tensor parallelism in full, since the next product waits for them, and the sends from stage to stage, likewise;
- the idle stages of a pipeline, (pp − 1)/m of the above with m micro-batches (Narayanan et al. 2021, §2.2);
- gradients, as far as they do not hide behind the last backward (chapter 20b). ZeRO's third stage sends all the time, so it can hide behind the complete step.

We leave out the update, the reading of data, the all-reduce that keeps a pipeline's two token tables equal, and the waiting for the slowest rank.
"""


# %%
#| export labs.plan.budget
def seconds(step: Step, card: Card, mfu: float, **links) -> dict[str, float]:
    """Of a step, by cause. Assumed: mfu, the share of the data sheet's FLOP/s while it computes; links, Cluster's."""
    cluster = Cluster(card.rate(step.program), mfu, inside=1e9 * card.link, **links)
    power = step.tp * step.pp * cluster.flops * mfu
    found = {"compute": compute_flops(step) / power, "recompute": recompute_flops(step) / power}
    found["tensor parallel"] = sum(sent.seconds(cluster) for sent in tensor_traffic(step))
    found["stage to stage"] = sum(sent.seconds(cluster) for sent in stage_traffic(step))
    found["bubble"] = sum(found.values()) * (step.pp - 1) / step.accumulate
    sending = sum(sent.seconds(cluster) for sent in data_traffic(step))
    cover = found["compute"] if step.shard == 3 else found["compute"] * 2 / 3 / step.accumulate
    found["data parallel"] = sending - min(sending, cluster.overlap * cover)
    return found


# %%
#| export labs.plan.budget
def compute_flops(step: Step) -> int:
    """FLOPs of all rows of one of the dp ranks, forward and backward."""
    return step_flops(step.config, step.B * step.accumulate, step.T)


def recompute_flops(step: Step) -> int:
    """FLOPs of the blocks' second forward, which in PyTorch ends before the MLP's c_proj; 0 if they are not recomputed."""
    if step.recompute != "block":
        return 0
    parts = flops_by_part(step.config, step.T)
    again = sum(parts.values()) - parts["lm_head"]
    if step.program.startswith("pytorch"):
        again -= parts["mlp"] // 2  # one of the MLP's two products, which are equally large
    return step.B * step.accumulate * step.T * again


# %%
for B in (8, 1):
    found = seconds(Step(GPTConfig(), B, program="pytorch-fp16", dp=8), CARDS["T4"], 0.4)
    text = ", ".join(f"{what} {1e3 * s:.1f} ms" for what, s in found.items() if s)
    print(f"8 × T4, B = {B}: {text}")

# %% [markdown]
r"""
This is the formula's answer for eight T4 with a share of 40%. With eight rows, computing takes so long that all sending hides behind the backward pass. With one row it takes an eighth of that time while the gradients have the same bytes, so most of the sending adds to the step.

## Nine published times

How good is this? `data/reference/throughput.csv` has nine published runs of GPT-2 124M, with the time of a step. We predict first, with a share of 40%. We know no data sheet of the three CPUs, and one log does not name its GPU. For these we can only compute the FLOP/s that they reached.

*Predict.* What share of the data sheet do you expect of an A800 with 56 rows in bf16? And of two H800, which are three times as fast, with 4 rows each?
"""

# %%
predict("22a.3", "A800, llm.c, bf16, 56 rows: share of the data sheet", guess=None, unit="%")
predict("22a.4", "2 × H800, llm.c of spring 2024, bf16, 4 rows each", guess=None, unit="%")

# %% [markdown]
r"""
First we read the table and describe each row as a `Step` on a card. Then we print our prediction beside the measured time, and the share of the data sheet that the run really reached.
"""

# %%
with open("../data/reference/throughput.csv", encoding="utf-8", newline="") as file:
    published = list(csv.DictReader(file))
NAMES = {
    ("llm.c", "float32"): "llm.c-cpu",
    ("llm.c", "tf32"): "llm.c-2024",
    ("Megatron-LM", "fp16"): "megatron",
}
runs = []
for row in published:
    B, length, tokens, n = (int(row[name]) for name in ("batch", "seq", "tokens_per_step", "devices"))
    config, layout = GPTConfig(max(length, 512)), {"tp": n} if row["parallel"] == "tensor" else {"dp": n}
    k = tokens // (B * length * layout.get("dp", 1))
    modern = "llm.c" if row["device"] == "A800" else "llm.c-2024-bf16"
    program = NAMES.get((row["program"], row["precision"]), modern)
    step = Step(config, B, length, program, flash=row["device"] == "A800", accumulate=k, **layout)
    runs.append((row, step, CARDS.get(row["device"].removesuffix("-PCIE-32GB"))))

# %%
shares, SHARE_ASSUMED = {}, 0.4
print(f"{'':21}{'GPUs':>5}{'precision':>10}{'predicted':>12}{'measured':>11}{'TFLOP/s each':>14}{'share':>7}")
for row, step, card in runs:
    measured, n = float(row["median_ms"]) / 1e3, int(row["devices"])
    reached = compute_flops(step) * step.dp / measured / n
    text, share = f"{'–':>12}", "–"
    if card:
        text = f"{1e3 * sum(seconds(step, card, SHARE_ASSUMED).values()):>9,.1f} ms"
        shares[row["device"], n] = reached / card.rate(step.program)
        share = f"{shares[row['device'], n]:.0%}"
    line = f"{row['device']:21}{n:>5}{row['precision']:>10}{text}{1e3 * measured:>8,.1f} ms"
    print(f"{line}{reached / 1e12:>14,.2f}{share:>7}")
answer("22a.3", 100 * shares["A800", 1])
answer("22a.4", 100 * shares["H800", 2])

# %% [markdown]
r"""
The last column is the answer to "how good": the shares go from 4% to 52%, a factor of thirteen. So a prediction with one assumed share can be wrong by as much. (The shares count the FLOPs of forward and backward once. The A800's run computed GELU again in backward, `-r 1`. That is no matrix product, so it adds
nothing here: recomputing makes the time longer and the share smaller.) The A800 and the RTX 4070 SUPER took less time than predicted. The two H800 took more than three times as long as predicted, and the two V100S more than five times. The H800 runs had four rows for each card and no fused attention; the
V100S had two rows of 512 tokens, cut over a PCIe bus. This table cannot say how much each of these causes costs, since several things change at once.

Our own ladder changes one thing at a time (`data/measurements/h100.json`: an H100, 16 rows of 1,024 tokens, shares of its 989 TFLOP/s). bf16 alone
reaches 8%, with `torch.compile` 23%, with flash attention 32%, with a fused AdamW 36%, and with weights in bf16 39%. So the program alone makes a
factor of almost five, on one card and with one batch. The last rung took 36.3 ms a step; with a share of 40% we predict 35.4.

Three more published times, with a fused attention and large batches: the A100 of the build-nanogpt lecture, nanoGPT's eight A100 of 40 GB (its README says "about 4 days" for 600,000 steps of 491,520 tokens), and GPT-3's 175 billion parameters on 1,024 A100, for which Megatron-LM's README said 32 seconds a step (its section *GPT-3 Example*; commit cde92b2 of
August 2025 removed it).
"""

# %%
GPT3 = GPTConfig(
    2048, padded_vocab_size=51200, n_layer=96, n_head=96, n_embd=12288
)  # Brown et al. 2020, table 2.1
big = Step(GPT3, 1, 2048, "megatron", recompute="block", accumulate=192, dp=8, tp=8, pp=16)
MORE = {  # the step, its card, published seconds
    "lecture, A100": (Step(GPTConfig(padded_vocab_size=50304), 16), "A100-80GB", 0.090),
    "nanoGPT, 8 × A100": (Step(GPTConfig(), 12, accumulate=5, dp=8), "A100-40GB", 4 * 86400 / 600_000),
    "GPT-3, 1,024 × A100": (big, "A100-80GB", 32),
}
for name, (step, card, measured) in MORE.items():
    predicted = sum(seconds(step, CARDS[card], SHARE_ASSUMED).values())
    n = step.dp * step.tp * step.pp
    share = compute_flops(step) * step.dp / measured / n / CARDS[card].rate(step.program)
    print(
        f"{name:20} predicted {1e3 * predicted:>9,.1f} ms, published {1e3 * measured:>9,.1f} ms, share {share:.0%}"
    )

# %% [markdown]
r"""
(The share of GPT-3 counts the model's own FLOPs, and not those of the blocks that it computed twice.) So 40% is a reasonable guess for a tuned program with a large batch, and a wrong one for a program that nobody has tuned. An honest planner says so. Ours prints a range, from a share of 50% to one of 20%, unless you know your program's
share and give it with `--mfu`. Measure it on one GPU for a minute (chapter 09's `mfu`): this one number is worth more than all formulas of this chapter.

## GPT-3 in 34 days

For GPT-3 on 1,024 A100, Narayanan et al. (2021, §5) give 34 days for 300 billion tokens. Our time at 40% is longer. Which share gives the README's 32 seconds?

*Predict.* The share of the data sheet while computing for which our formula gives 32 seconds a step?
"""

# %%
predict("22a.5", "share while computing that gives 32 s a step", guess=None, unit="%")

# %%
low, high = 0.1, 1.0
while high - low > 1e-4:  # the time falls with the share: halve the interval
    middle = (low + high) / 2
    longer = sum(seconds(big, CARDS["A100-80GB"], middle).values()) > 32
    low, high = (middle, high) if longer else (low, middle)
tokens = big.B * big.T * big.accumulate * big.dp
for share in (0.2, SHARE_ASSUMED, low):
    total = sum(seconds(big, CARDS["A100-80GB"], share).values())
    print(
        f"share {share:.0%}: {total:,.1f} s a step, {300e9 / tokens * total / 86400:,.1f} days for 300 billion tokens"
    )
answer("22a.5", 100 * low)
for what, s in seconds(big, CARDS["A100-80GB"], low).items():
    print(f"  {what:16}{s:>6.2f} s")

# %% [markdown]
r"""
Our 35 days are close to the paper's 34, as they must be: its authors compute them as 8 FLOPs × tokens × parameters over 1,024 GPUs × 140 TFLOP/s, a rate that they measured. The README's 32 seconds came with 138 TFLOP/s for each GPU. Both rates count the recomputed forward as work. Such a share is called *HFU*, hardware FLOPs utilization: 138 of 312 TFLOP/s are 44%. The *MFU* counts
the model's FLOPs once, and that is the 33% above. Our FLOPs agree when each block's forward is counted twice: over 32 s and
1,024 GPUs they are 138 TFLOP/s as well (a test of this chapter holds that).

Tensor parallelism sends most, so its eight ranks are the eight GPUs of a machine. Stages send little, so they may be in different machines.

Megatron-LM has an example script for this model, and one user published his copy of it. It would not have started. The copy asks for two GPUs, NVIDIA's
own for eight, and one copy of the model takes 128. Both gave `--rampup-batch-size` together with `--train-iters`, which Megatron-LM refused at that time ("expected no batch-size rampup for iteration-based training"; commit 532ad92 of April 2026 removed
the check and gave the script a `--step-batch-size-schedule`). Why is such a ramp expensive? It begins with 16 rows, two micro-batches for each of eight pipelines of 16 stages:
"""

# %%
script = figures.megatron_175b()
TP, PP, rows_in_all = (script[f"{name}-size"] for name in figures.SIZES)
print(f"the user's script starts {script['GPUS_PER_NODE']} GPUs; its layout takes a multiple of {TP * PP}")
for k in (script["rampup-batch-size"][0] // 8, 256 // 8, rows_in_all // 8):
    print(f"batch {8 * k:>5}: {k:>3} micro-batches a pipeline, bubble {(PP - 1) / k:.2f} of the computing")

# %% [markdown]
r"""
With two micro-batches, the stages wait seven and a half times as long as they compute. With the complete batch they wait 8% of that time.
"""

# %% [markdown]
r"""
## The command

Now all of it as a command. Its code is reading options and printing: skip it if you like, and read the tables at the end of this section. The model is one of six names, or a shape (`--layers`, `--heads`, `--width`, `--vocab`). The card is one of `PEAKS`, or any other with `--memory` and `--tflops`. No price is built in: prices change faster than this text.
"""

# %%
#| export
import argparse
import difflib
import math
from collections.abc import Iterator
from dataclasses import replace

from nanogpt.labs.plan.budget import Cluster
from nanogpt.labs.plan.footprint import OVERHEAD, PROGRAMS, RECOMPUTE, Step, footprint, largest_batch
from nanogpt.labs.plan.table import MEMORY, memory_lines, print_table
from nanogpt.model import SIZES, GPTConfig, num_params
from nanogpt.labs.roofline.sheets import Peak

MODELS = {
    **dict(zip(("gpt2-124M", "gpt2-355M", "gpt2-774M", "gpt2-1558M"), SIZES.values())),
    "gpt3-6.7B": GPTConfig(2048, n_layer=32, n_head=32, n_embd=4096),  # Brown et al. 2020, table 2.1
    "gpt3-175B": GPTConfig(2048, n_layer=96, n_head=96, n_embd=12288),
}

# %%
#| export
SIZES_OF = {  # option: default, least, what it means
    "layers": (0, 0, "of a model of your own; 0: those of --model"),
    "heads": (0, 0, "likewise"),
    "width": (0, 0, "likewise, its channels"),
    "vocab": (0, 0, "likewise, its tokens"),
    "batch": (8, 1, "sequences in a micro-batch of one of the dp ranks"),
    "seq": (1024, 1, "tokens in a sequence; beyond the model's context, positions are added"),
    "accumulate": (1, 1, "micro-batches in a step"),
    "dp": (1, 1, "ranks that read different rows"),
    "shard": (0, 0, "ZeRO: the dp ranks keep a part of 1 optimizer, 2 gradients too, 3 weights too"),
    "tp": (1, 1, "ranks that share each matrix"),
    "pp": (1, 1, "stages that share the layers"),
}
AMOUNTS = {
    "memory": (0, 0, "MiB of the card; 0: as nvidia-smi shows"),
    "overhead": (float(OVERHEAD), 0, "MiB of CUDA and libraries, as in one A800's log"),
    "tflops": (0.0, 0, "of the card's data sheet, for a card without a name here"),
    "mfu": (0.0, 0, "share of the data sheet's FLOP/s while computing; 0: a range, 0.2 to 0.5"),
    "inside": (0.0, 0, "GB/s each way between GPUs of a machine; 0: the card's NVLink or PCIe"),
    "between": (50.0, 0.001, "GB/s each way of one network card, of which each GPU has one"),
    "tokens": (0.0, 0, "of the complete run: how long it takes"),
    "price": (0.0, 0, "of a GPU for an hour, in your currency: what the run costs"),
}
NUMBERS = SIZES_OF | AMOUNTS

# %%
#| export
ABOUT = """
N = batch × seq, V rows of the token table, P parameters; 1 MiB = 2^20 bytes, 1 MB = 10^6.
  python -m nanogpt plan --device A800 --batch 56 --program llm.c --recompute gelu --tensors
  python -m nanogpt plan --layers 32 --heads 32 --width 4096 --vocab 32000 --device H100 --dp 8 --shard 3
  python -m nanogpt plan --model gpt3-175B --batch 1 --seq 2048 --program megatron --recompute block \\
    --tp 8 --pp 16 --dp 8 --accumulate 192 --tokens 300e9 --mfu 0.5

Exit codes, for scripts: 0 it fits, 1 it does not fit (the plan is printed all the same), 2 an option is wrong."""


# %%
#| export
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plan`."""
    parser = argparse.ArgumentParser(description="What training a GPT takes, by formula.", epilog=ABOUT)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the examples' lines as they are
    words = ", ".join(PROGRAMS)
    parser.add_argument("--model", default="gpt2-124M", help=", ".join(MODELS))
    parser.add_argument("--device", default="A100-80GB", nargs="+", help=", ".join(MEMORY))
    parser.add_argument(
        "--program", default="", help=f"{words}; default bf16, or fp16 where the card has none"
    )
    parser.add_argument(
        "--recompute", default="none", help=f"what backward makes again: {', '.join(RECOMPUTE)}"
    )
    for name, (default, _, what) in NUMBERS.items():
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{what}; default {default}"
        )
    parser.add_argument("--no-flash", action="store_true", help="keep attention's T × T weights")
    parser.add_argument("--tensors", action="store_true", help="list the activations, tensor by tensor")
    parser.add_argument("--plot", default="", help="a file for a picture of each GPU's memory, .png or .svg")
    return parser


# %%
args = parser().parse_args(["--layers", "32", "--heads", "32", "--width", "4096", "--device", "RTX", "4090"])
print(args.model, args.layers, args.heads, args.width, args.device)

# %% [markdown]
r"""
A wrong word gets one sentence with the remedy: the nearest name, and what to give instead of a name.
"""


# %%
#| export
def named(what: str, name: str, table: dict, instead: str = ""):
    """table[name]; ValueError with the nearest name, and what to give instead."""
    if name in table:
        return table[name]
    given, plain = name.lower().replace(" ", ""), {key.lower().replace(" ", ""): key for key in table}
    near = [key for key in plain if given in key] or difflib.get_close_matches(given, plain, 1, 0.6)
    hint = f"did you mean {plain[near[0]]!r}?" if near else f"take one of {', '.join(table)}."
    raise ValueError(f"--{what} {name!r} is not known; {hint}{instead}")


def check_numbers(args: argparse.Namespace) -> None:
    """ValueError for a number below its least, and for a share above 1."""
    for name, (_, least, _) in NUMBERS.items():
        value = getattr(args, name)
        if not least <= value < math.inf:
            raise ValueError(f"--{name} {value:g} must be at least {least:g}")
    if args.mfu > 1:
        raise ValueError(
            f"--mfu {args.mfu:g} is more than 1, but it is a share; {args.mfu:g}% is {args.mfu / 100:g}"
        )


# %%
#| export
def model_of(args: argparse.Namespace) -> tuple[str, GPTConfig]:
    """A name for the model and its shape: a named one's, changed by --layers, --heads, --width and --vocab."""
    instead = " Or give its shape: --layers, --heads, --width, --vocab"
    config = named("model", args.model, MODELS, instead)
    given = {"n_layer": args.layers, "n_head": args.heads, "n_embd": args.width, "vocab_size": args.vocab}
    given = {name: value for name, value in given.items() if value}
    if not given:
        return args.model, config
    config = replace(config, **given)
    return f"{config.n_layer} layers of width {config.n_embd}", config


def device_of(args: argparse.Namespace) -> tuple[str, int, Card]:
    """The device's name, its MiB, and its card."""
    name = args.device if isinstance(args.device, str) else " ".join(args.device)
    if name not in CARDS and args.memory and args.tflops:
        sheet = Peak(args.tflops, args.tflops, args.tflops, 0, "given by --tflops")
        return name, args.memory, Card(sheet, args.inside or 32)
    card = named("device", name, CARDS, " For a card without a name here, give --memory (MiB) and --tflops")
    if args.tflops:
        card = replace(
            card, sheet=replace(card.sheet, float32=args.tflops, tf32=args.tflops, half=args.tflops)
        )
    return name, args.memory or MEMORY[name], replace(card, link=args.inside or card.link)


# %%
print(model_of(args)[0], "·", *device_of(args)[:2])


# %%
#| export
def program_of(args: argparse.Namespace, device: str, card: Card) -> str:
    """The program's name; chapter 10's words for precision are PyTorch's programs."""
    bf16 = card.sheet.tf32 is not None  # the cards with TF32 are those with bfloat16
    program = args.program or ("bf16" if bf16 else "fp16")
    if program in ("float32", "tf32", "bf16", "fp16", "bf16-masters"):
        program = f"pytorch-{program}".removesuffix("-float32")
    named("program", program, PROGRAMS)
    if not bf16 and ("bf16" in program or "tf32" in program or program == "llm.c"):
        raise ValueError(
            f"--program {program}: a {device} has neither TF32 nor bfloat16; take fp16 or float32"
        )
    return program


# %%
#| export
def asked(args: argparse.Namespace) -> tuple[Step, str, int, Card]:
    """The step, the device, its MiB and its card. ValueError in one line where they cannot be."""
    check_numbers(args)
    (_, config), (device, mib, card) = model_of(args), device_of(args)
    program = program_of(args, device, card)
    named("recompute", args.recompute, RECOMPUTE)
    pad = PROGRAMS[program].pad * args.tp
    rows = math.ceil(config.vocab_rows / pad) * pad
    config = replace(config, padded_vocab_size=rows, block_size=max(args.seq, config.block_size))
    layout = {name: getattr(args, name) for name in ("accumulate", "dp", "shard", "tp", "pp")}
    step = Step(config, args.batch, args.seq, program, not args.no_flash, args.recompute, **layout)
    return step, device, mib, card


# %%
for words in ("--model llama-70B", "--device MI300X", "--device T4 --program bf16", "--mfu 40", "--tp 5"):
    try:
        asked(parser().parse_args(words.split()))
    except ValueError as error:
        print(f"{words}\n    {error}")

# %% [markdown]
r"""
Now the table of what is sent and of the time. Where no share is given, each time has two values, for 50% and for 20%.
"""

# %%
#| export labs.plan.table
import argparse
from collections.abc import Iterator

from nanogpt.labs.plan.budget import Cluster
from nanogpt.labs.plan.footprint import Step

MFUS = 0.5, 0.2  # of tuned programs, and of one that nobody has tuned: chapter 22a's published runs


def value_range(values: list[float], unit: str, digits: int = 1) -> str:
    """One value, or a range, with its unit."""
    texts = dict.fromkeys(f"{value:,.{digits}f}" for value in values)
    return f"{' to '.join(texts)} {unit}".strip()


def sent_lines(step: Step, cluster: Cluster) -> Iterator[tuple]:
    """Lines of (what, how much, which collectives), after a title."""
    if sent := traffic(step):
        yield ("sent by a GPU in a step",)
    for s in sent:
        each = f"{s.calls:,} × {s.kind} over {s.n}, of {s.nbytes / 1e6:,.1f} MB together"
        yield s.what, f"{s.sent / 1e6:,.1f} MB", f"{each}: {1e3 * s.seconds(cluster):,.1f} ms"


# %%
#| export labs.plan.table
def time_formulas(step: Step, card: Card, mfus: list[float]) -> dict[str, str]:
    """For each line of the time, a text that says how it is computed."""
    shares = " to ".join(f"{mfu:.0%}" for mfu in mfus)
    rate = f"({step.tp * step.pp} × {card.rate(step.program) / 1e12:g} TFLOP/s × {shares})"
    return {
        "compute": f"{compute_flops(step):,} FLOPs / {rate}",
        "recompute": f"{recompute_flops(step):,} FLOPs / {rate}",
        "tensor parallel": "partial sums and loss as above, not hidden",
        "stage to stage": "as above, not hidden",
        "bubble": f"({step.pp} - 1) / {step.accumulate} of the lines above",
        "data parallel": "gradients and weights as above, less what hides behind computing",
    }


# %%
#| export labs.plan.table
def time_lines(step: Step, card: Card, args: argparse.Namespace) -> Iterator[tuple]:
    """Lines as above: the time of a step, and time and cost of a run of --tokens."""
    mfus = [args.mfu] if args.mfu else list(MFUS)
    found = [seconds(step, card, mfu, between=1e9 * args.between) for mfu in mfus]
    texts, total = time_formulas(step, card, mfus), [sum(times.values()) for times in found]
    yield (f"time, at {' to '.join(f'{mfu:.0%}' for mfu in mfus)} of the data sheet (--mfu)",)
    for name in texts:
        if any(times[name] for times in found):
            yield name, value_range([1e3 * times[name] for times in found], "ms"), texts[name]
    tokens = step.B * step.T * step.accumulate * step.dp
    speed = value_range([tokens / s for s in total], "a second", 0)
    yield "step", value_range([1e3 * s for s in total], "ms"), f"{tokens:,} tokens, {speed}"
    if args.tokens:
        days = [args.tokens / tokens * s / 86400 for s in total]
        yield "run", value_range(days, "days", 2), f"{args.tokens:,.0f} tokens / {tokens:,} × step"
        hours = [24 * each * step.dp * step.tp * step.pp for each in days]
        cost = value_range([h * args.price for h in hours], "", 0)
        yield "GPU-hours", value_range(hours, "", 0), f"× {args.price:g} (--price) = {cost}"


# %%
#| export
def plan_lines(args: argparse.Namespace) -> Iterator[tuple]:
    """All lines of a plan."""
    step, _, mib, card = asked(args)
    cluster = Cluster(card.rate(step.program), inside=1e9 * card.link, between=1e9 * args.between)
    yield from memory_lines(step, mib, args.overhead, args.tensors)
    yield from sent_lines(step, cluster)
    yield from time_lines(step, card, args)


def run(args: argparse.Namespace) -> None:
    """Print the plan; with --plot, draw it too. SystemExit with code 1, so that a script can tell, if it does not fit."""
    step, device, mib, card = asked(args)
    what = f"{model_of(args)[0]}: {num_params(step.config):,} parameters, {step.program}"
    print(f"{what}, on {step.dp * step.tp * step.pp} × {device} ({card.sheet.source})")
    print_table(plan_lines(args))
    if args.plot:
        draw_plan(step, mib, args.overhead, args.plot)
    if largest_batch(step, (mib - args.overhead) * 2**20) < step.B:
        raise SystemExit(1)


# %%
#| export
def draw_plan(step: Step, mib: int, overhead: float, file: str) -> None:
    """Draw the memory of each stage's GPUs as stacked bars against the card's, into a file."""
    from matplotlib.figure import Figure  # here: the table needs no matplotlib

    fig = Figure(figsize=(8, 1.5 + 0.4 * step.pp), layout="constrained")
    ax, left = fig.subplots(), [0.0] * step.pp
    bars = [footprint(replace(step, stage=s)) | {"overhead": round(overhead * 2**20)} for s in range(step.pp)]
    names = [f"stage {s + 1}: {step.dp * step.tp} GPUs" for s in range(step.pp)]
    for what in dict.fromkeys(what for bar in bars for what in bar):
        gib = [bar.get(what, 0) / 2**30 for bar in bars]
        ax.barh(names, gib, left=left, label=what)
        left = [a + b for a, b in zip(left, gib)]
    ax.axvline(mib / 1024, color="black", linestyle="--")
    ax.invert_yaxis()
    ax.set_xlabel("GiB on a GPU; dashed: what the card has")
    fig.legend(loc="outside upper center", ncols=5, fontsize=8)
    fig.savefig(file)


# %%
words = "--model gpt3-175B --batch 1 --seq 2048 --program megatron --recompute block --tokens 300e9"
layout = f"--tp {TP} --pp {PP} --dp 8 --accumulate {rows_in_all // 8}"
print_table(plan_lines(parser().parse_args(f"{words} {layout}".split())))

# %% [markdown]
r"""
It fits: 128 GPUs share the 18 bytes for each parameter. The fullest stage is named in the title; with `--plot memory.png` you get a bar for each stage.

And the command at the top of this sitting? It asks what GPT-2 124M costs on ten billion tokens, at a price of 2 for an hour of one GPU:
"""

# %%
words = "--model gpt2-124M --device A100-80GB --dp 8 --tokens 10e9 --price 2"
print_table(plan_lines(parser().parse_args(words.split())))

# %% [markdown]
r"""
Between 30 and 76, the numbers from the beginning: with eight rows on each GPU, all 871 MB of gradients are sent while the backward pass computes. The share of the GPU's speed is what we know least.

A command can also answer a script. If a plan does not fit, `run` ends with exit code 1, as `grep` does when it finds nothing. So `python -m nanogpt plan … && python -m nanogpt train …` starts only what fits. Here is one row too many for an RTX 4090:
"""

# %%
try:
    run(parser().parse_args(["--batch", "24", "--device", "RTX", "4090", "--mfu", "0.4"]))
except SystemExit as end:
    print(f"\nexit code {end.code}")

# %% [markdown]
r"""
## Ten problems for paper

First on paper, with 16 or 18 bytes for a parameter, 2 or 4 for a number, and the two lists. Put your numbers into `guesses`. Then the planner answers, each time with a line of its table.
"""

# %%
guesses = {}  # such as 6: 30000
for i, row in enumerate(figures.problems(), 6):
    predict(f"22a.{i}", row["question"], guess=guesses.get(i), unit=row["unit"])

# %%
for i, row in enumerate(figures.problems(), 6):
    lines = plan_lines(parser().parse_args(row["command"].split()))
    amounts = {line[0]: line[1] for line in lines if len(line) == 3}
    number = amounts[row["line"]].split()[0].replace(",", "")
    answer(f"22a.{i}", float(number) if "." in number else int(number))
predictions("22a")

# %% [markdown]
r"""
Where were you far off? Four of the answers surprise most people.

- The first three belong together. A model of 1.5 billion parameters does not fit into 24 GB, not even with one row: 34,217 MiB. To recompute every block saves only 14% (29,506), because 16 bytes for each parameter are 24 GB by themselves. To share those among eight cards makes room for 11 rows on each.
- Flash attention makes room for 10 rows instead of 7 on a T4, and not for many more: half of what a row needs there are its logits and the loss's tables.
- Ten billion tokens are 0.79 days on one A100 at 40%. GPT-2 small is no longer a large model.
- With DDP a GPU sends 2,484 MB for the gradients of 355 million parameters. Split by `tp`, a model of 6.7 billion sends 7,634 MB in a step of two rows, and this grows with the rows.
"""

# %% [markdown]
r"""
## Appendix: the dry run's time

Chapter 17c's `--dry-run` prints two times of a step: a lower bound by the roofline, and a measurement. Both forget `parallel.recompute` (chapter 21d), with which each block is computed a second time. Now we can count these FLOPs, so the bound grows by them, and
the measured model recomputes its blocks as well. (`frozen` and `add_lora` of chapter 19 are for a run with adapters.) `planned` of chapter 22 makes the planner's `Step` of a configuration, so the dry run and the command `plan` count the same FLOPs.
"""

# %%
from functools import partial

from nanogpt import optim
from nanogpt.config import Config, load_config
from nanogpt.labs.plan.dryrun import frozen, planned
from nanogpt.labs.roofline.work import predict_step
from nanogpt.labs.tuning.lora import add_lora
from nanogpt.precision import READS, LossScaler
from nanogpt.labs.roofline.clock import Roofline, timings
from nanogpt.training import train_step


# %%
#| export labs.plan.dryrun
#| grows least_seconds
def least_seconds(shape: GPTConfig, config: Config, roof: Roofline) -> float:
    """What the device's roofline allows at least for a step: its micro-batches with what they recompute, and one update."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    name = name if name in roof.flops else "float32"
    parts = frozen(predict_step(shape, B, T, roof, name, fused=True), shape, config)
    update = parts["optimizer", "update"]
    again = recompute_flops(planned(shape, config)) / roof.flops[name]
    return (sum(parts.values()) - update + again) * n + update


# %%
#| export labs.plan.dryrun
#| grows measured_seconds
def measured_seconds(shape: GPTConfig, config: Config, device: torch.device) -> float:
    """Of a step, measured with random tokens on at most two of its micro-batches, with blocks recomputed as configured."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    model, few, lora = GPT(shape).to(device), min(n, 2), config.lora
    if lora.rank:
        add_lora(model, lora.rank, lora.alpha, lora.targets)
    if config.parallel.recompute:
        from nanogpt.labs.parallel.fsdp import recompute_blocks  # here: its imports take a second

        recompute_blocks(model)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return min(timings(call, device, 3)) * n / few


# %%
roof = Roofline("an example", {"float32": 1e12}, 1e15)  # 1 TFLOP/s, and traffic that takes no time
for recompute in ("false", "true"):
    asked_for = load_config("gpt2-124M", ["train.dtype=float32", f"parallel.recompute={recompute}"])
    bound = least_seconds(GPTConfig(), asked_for, roof)
    print(f"recompute={recompute}: at least {bound:.0f} s for {asked_for.micro_batches} micro-batches")

# %% [markdown]
r"""
The second forward adds 79 s, which is 18%. With `plan` it is the line *recompute*, by the same FLOPs.
"""

# %%
checkpoint("22a")

# %% [markdown]
r"""
## Exercises

`course exercises release 22` writes these, and those of 22, as a notebook to `released/`; `course check 22` runs their visible checks.

- **22-3** A pipeline's clock, 35 minutes: how long unequal stages take, and how long each is idle.
- **22-4** Days and money, 25 minutes: derive a step's seconds and a run's price.
- **22-5** A check for a schedule, 45 minutes: write the check that finds plans that keep too much, or deadlock.
- **22-6** Before you rent, 10 minutes: which number to measure first.

To explore:

1. ZeRO 1 or ZeRO 2? For GPT-2 124M on eight A100 with eight micro-batches, how much memory does stage 2 save over stage 1, and how much more does it send? Check: `--shard 1` and `--shard 2` with `--accumulate 8`, and once more with `--accumulate 1`.
2. Run the planner on GPT-3 without `--recompute block`. How much more memory does it take, how much less time? Check: the difference of the activations is `tensors` of 96 / 16 layers × 16 micro-batches, less one block.
3. Add sequence parallelism (Korthikanti et al. 2022, §4.2): each all-reduce becomes a reduce-scatter and an all-gather. Check against `traced` with chapter 21b's `split(model, mesh, True)`.
4. Measure the share that chapter 14's ladder reaches on your machine, and plan ten billion tokens with `--mfu`. Check: a step of the trainer, timed.
5. Two machines of eight A100 with network cards of 12.5 GB/s (100 Gb/s): from which `--accumulate` on is the sending of DDP hidden? Check: the line *data parallel* disappears.

## Further reading

- Narayanan et al. 2021, [*Efficient Large-Scale Language Model Training on GPU Clusters*](https://arxiv.org/abs/2104.04473), §2.2, §3 and §5: bubbles, layouts, and the days of a run.
- Rajbhandari et al. 2020, [*ZeRO*](https://arxiv.org/abs/1910.02054), §7: what the stages send.
- Shoeybi et al. 2019, [*Megatron-LM*](https://arxiv.org/abs/1909.08053), §3: two sums for each block and pass.
- DeepMind 2025, [*How To Scale Your Model*](https://jax-ml.github.io/scaling-book/): the same arithmetic for TPUs, with worked problems.
- Hugging Face 2025, [*The Ultra-Scale Playbook*](https://huggingface.co/spaces/nanotron/ultrascale-playbook): measured throughput of hundreds of layouts.
"""
