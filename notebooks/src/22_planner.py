# %% [markdown]
r"""
# 22 · Planner: memory, time and cost before a GPU is rented

A run that does not fit stops in its first step; one that takes three months instead of three weeks stops when the money does. Both
can be known beforehand. What a step keeps is a list of tensors, what it sends is a list of collectives, what it computes was counted in chapter 05. This
chapter writes the lists down, checks them against what published logs printed, to the byte where that is possible, and makes a command of them:

```
python -m nanogpt plan --device A800 --batch 56 --seq 1024 --program llm.c --recompute gelu
```
"""

# %%
#| default_exp plan.plan
#| doc plan.plan: Memory, communication, time and cost of a run, as a table in which each line names its formula. The command `plan`.
#| doc plan.footprint: What a training step keeps in memory, tensor by tensor, as PyTorch, llm.c and Megatron-LM keep it.
from course.figures import planner as figures
from course.local_ranks import fake_ranks, traced
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.plan.budget import Cluster, average_seconds

# %%
#| export plan.footprint
import math
from dataclasses import dataclass, replace

from nanogpt.gpt.model import GPTConfig

# %% [markdown]
r"""
## What a step keeps

Four things live through a step: parameters, gradients, the optimizer's numbers, and activations, which forward makes and backward needs. The first
three cost some bytes a parameter. How many is a choice of the *program*: llm.c in bf16 keeps a weight in 2 bytes, its gradient in 2, a float32 master in 4, two
moments in 8. Megatron-LM with fp16 does the same but for the gradient, which has 4.

The fourth is a list. A block normalises the stream (*ln1*), makes queries, keys and values (*qkv*), attends (*att*, *atty*), adds to the stream
(*residual2*), normalises (*ln2*), widens (*fch*), bends (*gelu*), and adds again (*residual3*). Backward wants all of that. Programs differ in how many bytes a
number has, on the stream or inside, and in a few tensors that one keeps and another does not. So there is one list, and a program is a row of choices.
"""


# %%
#| export plan.footprint
@dataclass(frozen=True)
class Program:
    """How a program stores a step: bytes of a number by kind, and what it keeps beside what all must keep."""

    weights: int  # bytes of a parameter, as forward reads it
    gradients: int
    masters: int = 0  # of a float32 copy beside 16-bit weights
    casts: int = 0  # of a copy of each matrix that autocast makes in every step
    norms: int = 0  # bytes that a LayerNorm's parameter has more than another
    stream: int = 4  # on the residual stream
    inside: int = 4  # what matrix products and attention read
    stats: int = 4  # means, deviations, attention's row sums, losses
    logits: int = 4  # for each logit, in all tables that are kept
    backward: int = 0  # for each logit, in the loss's backward pass
    tables: int = 1  # T × T tables a head, without flash attention
    mask: int = 0  # bytes of a T × T mask a layer, without flash attention
    projections: bool = False  # what both projections add to the stream has tensors of its own
    shared_output: bool = False  # the logits' memory serves as scratch too: for qkv, or T × T
    scratch: int = 0  # further numbers of `inside` for each of a token's C
    ids: bool = False  # tokens, targets, positions as int64, and the loss's divisor, are kept
    pad: int = 1  # the token table's rows are a multiple of this


# %% [markdown]
r"""
The rows come from the programs. llm.c allocates everything by name, in `train_gpt2.cu` and in the smaller file of spring 2024; what PyTorch's autograd keeps was measured in
chapter 09, and is again below; Megatron-LM's is Korthikanti et al. 2022, §4, without dropout.
"""

# %%
#| export plan.footprint
OLD = {"projections": True, "shared_output": True}  # llm.c's file of spring 2024
TORCH, HALF = {"backward": 8, "mask": 1, "ids": True}, {"stream": 2, "inside": 2}
PROGRAMS = {
    "pytorch": Program(4, 4, **TORCH),
    "pytorch-bf16": Program(4, 4, casts=2, inside=2, **TORCH),  # autocast
    "llm.c": Program(2, 2, 4, **HALF, logits=2, shared_output=True, scratch=5, pad=128),
    "llm.c-2024": Program(4, 4, **OLD),
    "llm.c-2024-bf16": Program(2, 2, norms=2, **HALF, stats=2, logits=2, **OLD),
    "llm.c-cpu": Program(4, 4, logits=8, tables=2, projections=True),
    "megatron": Program(2, 4, 4, **HALF, pad=128),  # fp16, gradients summed in float32
}
BLOCK = "ln1 ln1_stats qkv att mask atty attproj residual2 ln2 ln2_stats fch gelu fcproj"
RECOMPUTE = {  # what backward makes anew, and of how many layers it is there at a time
    "none": {},
    "gelu": {"gelu": 1},
    "block": dict.fromkeys(BLOCK.split(), 1),  # all but a block's input: residual3 of the one before
}

# %% [markdown]
r"""
And a step, with its *layout*: how many GPUs share what. `dp` ranks read different rows, and `shard` says what they keep only a part of (ZeRO's stages, chapter 21: 1 the optimizer's numbers, 2 the
gradients too, 3 the weights too); `tp` ranks share each matrix (21b), `pp` ranks share the layers (21c).
"""


# %%
#| export plan.footprint
@dataclass(frozen=True)
class Step:
    """A training step on dp × tp × pp GPUs. ValueError in one sentence where there is none."""

    config: GPTConfig
    B: int = 1  # sequences in a micro-batch of one of the dp ranks
    T: int = 1024
    program: str = "pytorch-bf16"
    flash: bool = True
    recompute: str = "none"
    accumulate: int = 1  # micro-batches
    dp: int = 1
    shard: int = 0  # ZeRO's stage over the dp ranks
    tp: int = 1
    pp: int = 1

    def __post_init__(self):
        c = self.config
        for name in [n for n in ("B", "T", "accumulate", "dp", "tp", "pp") if getattr(self, n) < 1]:
            raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if c.n_head % self.tp or c.n_layer % self.pp or self.shard not in range(4):
            which = f"tp={self.tp} must divide n_head={c.n_head}, pp={self.pp} n_layer={c.n_layer}"
            raise ValueError(f"{which}, and shard={self.shard} be 0 to 3")


# %% [markdown]
r"""
Now the list itself. Of N = B·T tokens with C channels, H heads, V rows of the token table, in L layers.
"""


# %%
#| export plan.footprint
def block_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What a block keeps of a micro-batch: (numbers, bytes of each), by llm.c's names."""
    T, N, p, H, C = step.T, step.B * step.T, PROGRAMS[step.program], step.config.n_head, step.config.n_embd
    return {
        "ln1": (N * C, p.inside),  # the first norm's output, which qkv's product reads
        "ln1_stats": (2 * N, p.stats),  # its means and deviations
        "qkv": (3 * N * C, p.inside),
        "att": (N * H, p.stats) if step.flash else (p.tables * N * H * T, p.inside),  # sums, or all weights
        "mask": (0 if step.flash else p.mask * T * T, 1),
        "atty": (N * C, p.inside),  # attention's output, which its projection reads
        "attproj": (p.projections * N * C, p.inside),
        "residual2": (N * C, p.stream),  # the stream after attention
        "ln2": (N * C, p.inside),
        "ln2_stats": (2 * N, p.stats),
        "fch": (4 * N * C, p.inside),  # what gelu reads
        "gelu": (4 * N * C, p.inside),  # what the second product reads
        "fcproj": (p.projections * N * C, p.inside),
        "residual3": (N * C, p.stream),  # the stream after the MLP
    }


# %%
#| export plan.footprint
def other_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What is kept outside of the blocks: (numbers, bytes of each)."""
    N, p, c = step.B * step.T, PROGRAMS[step.program], step.config
    width = max(3 * c.n_embd, c.n_head * step.T, c.vocab_rows) if p.shared_output else c.vocab_rows
    return {
        "encoded": (N * c.n_embd, p.stream),  # the sum of both embeddings
        "lnf": (N * c.n_embd, p.inside),
        "lnf_stats": (2 * N, p.stats),
        "logits": (N * width, p.logits),
        "scratch": (p.scratch * N * c.n_embd, p.inside),
        "losses": (0 if p.ids else N, p.stats),
        "ids": (p.ids * (8 * (2 * N + step.T) + 4), 1),
    }


# %% [markdown]
r"""
On one GPU: `tp` divides what lies inside attention and MLP, and the logits; the stream and its norms every rank has whole (sequence parallelism, chapter 21b, would divide them too). The first stage of a pipeline has L / pp layers, and under the usual schedule (1F1B) up to pp micro-batches under way.
"""

# %%
#| export plan.footprint
SPLIT = {"qkv", "att", "atty", "fch", "gelu", "logits"}  # by tensor parallelism


def tensors(step: Step) -> dict[str, tuple[int, int, int]]:
    """What forward keeps for backward on one GPU: (numbers, bytes of each, how many of such), by name."""
    under_way = min(step.accumulate, step.pp)
    again, layers = RECOMPUTE[step.recompute], step.config.n_layer // step.pp * under_way
    kept = {name: (*t, min(layers, again.get(name, layers))) for name, t in block_tensors(step).items()}
    others = other_tensors(step).items()  # but for the sum of the embeddings, they are the last stage's
    kept |= {name: (*t, under_way) for name, t in others if step.pp == 1 or name == "encoded"}
    kept = {name: (-(-n // step.tp) if name in SPLIT else n, *t) for name, (n, *t) in kept.items()}
    return {name: t for name, t in kept.items() if math.prod(t)}


# %% [markdown]
r"""
And the bytes a parameter. Tensor parallelism splits matrices, and biases of those that it splits by columns; norms and positions are whole on each rank. With ZeRO's third stage a rank must hold what it computes with:
the embeddings, one block, and the next, which is being fetched.
"""


# %%
#| export plan.footprint
def split_params(step: Step) -> dict[str, int]:
    """Parameters on one GPU of the first stage, by part; the last stage has ln_f, and a wte of its own."""
    C, bias, t, L = step.config.n_embd, int(step.config.bias), step.tp, step.config.n_layer // step.pp
    parts = {"wte": -(-step.config.vocab_rows // t) * C, "wpe": step.config.block_size * C}
    parts["attention"] = L * (4 * C * C // t + bias * (3 * C // t + C))
    parts["mlp"] = L * (8 * C * C // t + bias * (4 * C // t + C))
    return parts | {"layer norm": (2 * L + (step.pp == 1)) * (1 + bias) * C}


def states(step: Step) -> dict[str, int]:
    """Bytes of parameters, gradients, optimizer on one GPU; `gathered`: what shard 3 holds whole at a time."""
    parts, p, L = split_params(step), PROGRAMS[step.program], step.config.n_layer // step.pp
    P, matrices = sum(parts.values()), parts["attention"] + parts["mlp"]
    weights, casts = p.weights * P + p.norms * parts["layer norm"], 12 * L * step.config.n_embd**2 // step.tp
    whole = (parts["wte"] + parts["wpe"] + matrices * min(2, L) // L) * (step.shard == 3 and step.dp > 1)
    kept = {"parameters": (weights, 3), "gradients": (p.gradients * P, 2), "moments": (8 * P, 1)}
    kept |= {"masters": (p.masters * P, 1), "gathered": (p.weights * whole, 4)}
    kept["casts"] = (p.casts * (parts["wte"] + casts), 4)  # biases' casts are not kept
    return {name: -(-n // (step.dp if step.shard >= stage else 1)) for name, (n, stage) in kept.items() if n}


# %%
#| export plan.footprint
#| blank largest_batch: the bytes for B = 1 and B = 2 give the line
def footprint(step: Step) -> dict[str, int]:
    """{category: bytes} on one GPU, all at once; without the driver's and libraries' own."""
    p, N = PROGRAMS[step.program], step.B * step.T
    held = states(step) | {"activations": sum(map(math.prod, tensors(step).values()))}
    held["loss"] = -(-p.backward * N * step.config.vocab_rows // step.tp) * (step.pp == 1)  # gradients
    held["inputs"] = 0 if p.ids else 8 * N  # ids and targets in four bytes each, beside the activations
    return {name: n for name, n in held.items() if n}


def largest_batch(step: Step, nbytes: float) -> int:
    """The largest B that fits into so many bytes, 0 if none: bytes are a line in B."""
    one, two = (sum(footprint(replace(step, B=B)).values()) for B in (1, 2))
    return max(0, math.floor((nbytes - one) / (two - one)) + 1)


# %% [markdown]
r"""
## Against published logs

llm.c was run on an A800, on an RTX 4070 SUPER, on one H800 and two, and on three CPUs, Megatron-LM on one GPU, and their logs print what was allocated. Each row of `data/reference` says in which line of which log.
A log in whole MiB has cut off what comes after the point, and so does the comparison. Which program ran with which choices:
"""

# %%
GPT2, PADDED, MIB = GPTConfig(), GPTConfig(padded_vocab_size=50304), 2**20
LOGS = {  # by words in a run's name in data/reference
    "A800": Step(PADDED, 56, 1024, "llm.c", recompute="gelu"),
    "RTX 4070 SUPER": Step(PADDED, 4, 1024, "llm.c-2024", flash=False),
    "H800 1 GPU": Step(GPT2, 4, 1024, "llm.c-2024", flash=False),
    "H800 2 GPUs": Step(GPT2, 4, 1024, "llm.c-2024-bf16", flash=False),
    "CPU": Step(GPT2, 4, 64, "llm.c-cpu", flash=False),  # three of them
    "Megatron-LM 1 GPU": Step(GPTConfig(512, padded_vocab_size=50304), 1, 512, "megatron"),
    "Megatron-LM TP 2": Step(GPTConfig(512, padded_vocab_size=50304), 2, 512, "megatron", tp=2),
}

# %% [markdown]
r"""
*Predict.* GPT-2 124M in bf16 on the A800, 56 rows of 1,024 tokens: activations, in MiB? And if attention kept its T × T weights?
"""

# %%
predict("22.1", "activations of 56 × 1,024 tokens, bf16", guess=None, unit="MiB")
predict("22.2", "the same with T × T weights kept", guess=None, unit="MiB")
kept = [footprint(replace(LOGS["A800"], flash=flash))["activations"] / MIB for flash in (True, False)]
_ = answer("22.1", kept[0]), answer("22.2", kept[1])
for name, (n, width, many) in tensors(LOGS["A800"]).items():
    print(f"{name:10} {n:>13,} numbers × {width} B × {many:>2} = {n * width * many / MIB:>9,.2f} MiB")
print(f"together {kept[0]:,.2f} MiB; with T × T weights {kept[1]:,.2f} MiB")

# %%
equal, other = figures.validation(LOGS, footprint, largest_batch)
assert set(other) == set(figures.NOT_DERIVED), f"no longer equal, or now equal: {other}"

# %% [markdown]
r"""
All that these programs allocate by name comes out, to the MiB that was printed. Two things were never said in a log and are proved by it. The A800's attention was fused: with T × T weights kept, the list is almost twice as long. And gelu
was recomputed: kept in all layers, it alone would be 3.6 GiB more.

What is not equal is not fitted either:

- The A800 had 21,315 MiB in use before the first step, its tensors are 20,464. The 851 between are CUDA's context, the libraries' code and workspace; another machine has another figure. The planner adds them as `--overhead`.
- Megatron-LM's "theoretical" 2,121.85 MB is 18 bytes × 123,606,528 parameters: its formula leaves out the biases of linear layers and the positions, 476,160 of the 124,082,688 that it counts itself.
- What it had allocated after ten steps, all of them skipped, is 44 MiB more than 12 bytes a parameter would be: weights and gradients in fp16 and both in float32, no moments yet. That these are the 12 is a guess.
- `nvidia-smi` shows what a process has reserved, with context, NCCL's buffers and the allocator's cache: on two GPUs with tensor parallelism more than twice what the tensors take, and 212 MiB apart, though both hold the same.
"""

# %% [markdown]
r"""
## Our own model, on this machine

The same list with PyTorch's choices. Autograd tells what it saves (chapter 09's `saved_bytes`), so the formula can be held against it here. Under autocast it also keeps the matrices' bf16 copies, which the planner counts as *casts*. (At the peak come two tables of N·V, the gradients of log-probabilities and of logits: chapter 12
measured that, and this chapter's tests do.)
"""

# %%
import torch

from nanogpt.gpt.model import GPT
from nanogpt.speed.work import saved_bytes

ROWS, LENGTH = 4, 64
ids = torch.zeros(2, ROWS, LENGTH, dtype=torch.long)
for program, flash in [(p, flash) for p in ("pytorch", "pytorch-bf16") for flash in (True, False)]:
    config = GPTConfig(LENGTH, 512, n_layer=3, n_head=4, n_embd=64, flash=flash)
    small, model = Step(config, ROWS, LENGTH, program, flash), GPT(config)
    with torch.autocast("cpu", torch.bfloat16, enabled=program == "pytorch-bf16"):
        found = saved_bytes(lambda m=model: m(*ids), exclude=model.parameters())
    formula, casts = footprint(small)["activations"], states(small).get("casts", 0)
    print(f"{program:13} flash {flash!s:6} {formula:>9,} B + {casts:>7,} B of casts; autograd {found:>9,} B")
    assert found == formula + casts, f"{program}: autograd keeps {found - formula - casts:+,} bytes more"

# %% [markdown]
r"""
## What a step sends

On a ring of n ranks, each sends (n − 1)/n of a tensor to gather or to reduce-scatter it, and twice that for an all-reduce (chapter 20). What remains is how many there are, and of what. Data parallelism sums all gradients once a step; with ZeRO's
third stage each micro-batch gathers the weights, in backward again, and scatters the gradients (embeddings and last norm, FSDP2's root, stay between forward and backward). Tensor parallelism sums the stream twice a block in forward and twice in
backward, and at both ends once. A pipeline hands it on.
"""

# %%
#| export plan.budget
from dataclasses import dataclass, replace

from nanogpt.gpt.model import flops_by_part
from nanogpt.speed.roofline import PEAKS, Peak
from nanogpt.speed.work import step_flops

SHARE = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # of (n - 1) / n of the bytes, on a ring


# %%
#| export plan.budget
@dataclass(frozen=True)
class Sent:
    """`calls` collectives of one kind in a step, among `n` ranks, each `apart` from the next."""

    what: str
    kind: str
    n: int
    calls: int
    nbytes: int  # of the whole tensors, in all calls together
    apart: int = 1

    @property
    def sent(self) -> float:
        """Bytes that each rank sends; from stage to stage all of them."""
        return self.nbytes * SHARE[self.kind] * (self.n - 1) / self.n if self.kind in SHARE else self.nbytes

    def seconds(self, cluster: Cluster) -> float:
        """By chapter 20b's model; over the network if the group does not fit into one machine."""
        inside = self.n * self.apart <= cluster.per_machine
        link = replace(cluster, inside=cluster.inside if inside else cluster.between)
        each = average_seconds(self.nbytes / self.calls, self.n, link)  # an all-reduce's
        return self.calls * each * SHARE.get(self.kind, 1) / 2


# %%
#| export plan.budget
def data_traffic(step: Step) -> list[Sent]:
    """What the dp ranks send each other."""
    parts, n, at, k, c = split_params(step), step.dp, step.tp, step.accumulate, step.config
    p, P, groups = PROGRAMS[step.program], sum(parts.values()), c.n_layer // step.pp + 1
    root = parts["wte"] + parts["wpe"] + (step.pp == 1) * (1 + c.bias) * c.n_embd  # outside of the blocks
    sums, weights = ("gradients", "reduce-scatter", n), ("weights", "all-gather", n)
    if step.shard == 3:  # forward and backward gather; the root's weights stay from one to the other
        gathered = Sent(*weights, k * (2 * groups - 1), k * p.weights * (2 * P - root), at)
        return [gathered, Sent(*sums, k * groups, k * p.gradients * P, at)] * (n > 1)
    if step.shard:
        return [Sent(*sums, 1, p.gradients * P, at), Sent(*weights, 1, p.weights * P, at)] * (n > 1)
    return [Sent("gradients", "all-reduce", n, 1, p.gradients * P, at)] * (n > 1)


# %%
#| export plan.budget
#| blank tensor_traffic: two sums forward and two backward in each block, and one at each end of the model
def tensor_traffic(step: Step) -> list[Sent]:
    """What the tp ranks send: two sums of the stream a block and pass (Shoeybi et al. 2019, §3), and at both ends."""
    N, k, ends = step.B * step.T, step.accumulate, step.pp == 1
    calls = k * (4 * step.config.n_layer // step.pp + 2 * ends)
    nbytes = calls * N * step.config.n_embd * PROGRAMS[step.program].inside
    loss = [Sent("loss", "all-reduce", step.tp, 3 * k, 12 * k * N)] * ends
    return [Sent("partial sums", "all-reduce", step.tp, calls, nbytes), *loss] * (step.tp > 1)


def traffic(step: Step) -> list[Sent]:
    """All that one GPU sends in a step."""
    each = step.B * step.T * step.config.n_embd * PROGRAMS[step.program].stream
    calls, apart = 2 * step.accumulate, step.tp * step.dp  # forward, and the gradient back
    stages = Sent("stage to stage", "send", 2, calls, calls * each, apart)
    return data_traffic(step) + tensor_traffic(step) + [stages] * (step.pp > 1)


# %% [markdown]
r"""
Is it so? PyTorch has a process group that moves nothing: this process is rank 0 of n, every collective returns at once, and is counted. So DDP, FSDP2 (`fsdp.shard`) and tensor parallelism (`tensor.split`) run a
real step of a real model as the first of 1,024, without the others.

(FSDP2 cuts each tensor's rows into n parts and fills up the last ones with zeros. A bias of 768 numbers on 1,024 ranks is sent as 1,024. The model below has no such tensor; yours may, and the count will say so.)

*Predict.* From 2 ranks to 1,024, by which factor do the bytes grow that a rank sends, with DDP? And how much does FSDP2 send, as a multiple of DDP?
"""

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

from nanogpt.parallel.fsdp import shard
from nanogpt.parallel.tensor import split

RANKS = 2, 64, 1024
predict("22.3", "DDP: bytes a rank sends at 1,024 over those at 2", guess=None, unit="×")
predict("22.4", "FSDP2's bytes over DDP's at 1,024", guess=None, unit="×")
wide, rows, sent = GPTConfig(1024, 1024, n_layer=1, n_head=8, n_embd=1024), torch.zeros(2, 1, 64).long(), {}
WAYS = {"DDP": DDP, "FSDP2": shard, "tensor": lambda model: split(model, init_device_mesh("cpu", (8,)))}

# %%
for way, counts in {"DDP": RANKS, "FSDP2": RANKS, "tensor": (8,)}.items():
    for n in counts:
        with fake_ranks(n):
            calls = traced(WAYS[way](GPT(wide)), *rows)
        layout = {"tp": n} if way == "tensor" else {"dp": n, "shard": 3 * (way == "FSDP2")}
        formula = traffic(Step(wide, 1, 64, "pytorch", **layout))
        found = len(calls), sum(nbytes for _, nbytes in calls)
        derived = sum(s.calls for s in formula), sum(s.nbytes for s in formula)
        sent[way, n] = sum(s.sent for s in formula)
        print(f"{way:7}{n:>5} ranks: {found[0]} calls, {found[1]:>11,} B; sends {sent[way, n]:>11,.0f} B")
        assert found == derived, f"{way}, {n} ranks: {found}, formula {derived}; are rows padded?"
answer("22.3", sent["DDP", RANKS[-1]] / sent["DDP", RANKS[0]])
answer("22.4", sent["FSDP2", RANKS[-1]] / sent["DDP", RANKS[-1]])

# %% [markdown]
r"""
## Time

A card is a data sheet, its memory, its links. An A800 is an A100 and an H800 an H100, but for NVLink, of which they have 400 GB/s, both directions together.

Seconds are FLOPs over what the card reaches, and that is the one number which no formula gives: the share of the data sheet (chapter 14) is an assumption. To it come the pipeline's idle stages, (pp − 1)/m of the computing with m micro-batches, and what is sent: sums of tensor
parallelism in full, since the next product waits for them; gradients as far as they do not hide behind backward (chapter 20b).
"""

# %%
#| export plan.budget
OVERHEAD = 851  # MiB that an A800's log leaves unexplained: CUDA's context and libraries


@dataclass(frozen=True)
class Card:
    """A GPU: data sheet, MiB as sold (a driver shows a little less), GB/s each way to a neighbour: NVLink, else PCIe."""

    sheet: Peak
    mib: int
    link: float

    def rate(self, program: str) -> float:
        """FLOP/s in the program's format."""
        sheet, half = self.sheet, PROGRAMS[program].inside == 2
        return 1e12 * (sheet.half if half else sheet.tf32 or sheet.float32)


# %%
#| export plan.budget
NVLINK = {"B200": (180, 900), "H200": (141, 450), "H100": (80, 450), "A100-80GB": (80, 300)}  # GiB, GB/s
PCIE = {"L4": (24, 32), "T4": (16, 16), "RTX 5090": (32, 64), "RTX 4090": (24, 32), "RTX 3090": (24, 32)}
CARDS = {
    **{name: Card(PEAKS[name], 1024 * gib, link) for name, (gib, link) in (NVLINK | PCIE).items()},
    "A800": Card(PEAKS["A100-80GB"], 81100, 200),  # MiB: as an llm.c log prints
    "H800": Card(PEAKS["H100"], 80 * 1024, 200),
    "RTX 4070 SUPER": Card(Peak(35.5, 35.5, 71, 504, "NVIDIA's product page, 2024"), 12 * 1024, 32),
}


# %%
#| export plan.budget
def seconds(step: Step, card: Card, mfu: float = 0.4, **links) -> dict[str, float]:
    """Of a step, by cause. Assumed: mfu, the share of the data sheet's FLOP/s while it computes; links, Cluster's."""
    cluster = Cluster(card.rate(step.program), mfu, inside=1e9 * card.link, **links)
    rows, power = step.B * step.accumulate, step.tp * step.pp * cluster.flops * mfu
    parts = flops_by_part(step.config, step.T)
    told = {"compute": step_flops(step.config, rows, step.T) / power}
    blocks = rows * step.T * (sum(parts.values()) - parts["lm_head"]) / power  # forward once more
    told["recompute"] = blocks * (step.recompute == "block")
    told["tensor parallel"] = sum(sent.seconds(cluster) for sent in tensor_traffic(step))
    told["bubble"] = sum(told.values()) * (step.pp - 1) / step.accumulate  # Narayanan et al. 2021, §2.2
    sent = sum(each.seconds(cluster) for each in data_traffic(step))
    cover = told["compute"] * (
        1 if step.shard == 3 else 2 / 3 / step.accumulate
    )  # stage 3 sends all the time
    return told | {"data parallel": sent - min(sent, cluster.overlap * cover)}


# %% [markdown]
r"""
## The command

The rest is a table. Each line has its formula; what is assumed says so. It takes a model, a card, a program and a layout, and answers what fits, what is sent, how long it takes, and what that costs. No price is built in: prices change faster than this text.
"""

# %%
#| export
import argparse
import difflib
import math
from dataclasses import replace

from nanogpt.gpt.model import SIZES, GPTConfig, num_params

MODELS = {
    **dict(zip(("gpt2-124M", "gpt2-355M", "gpt2-774M", "gpt2-1558M"), SIZES.values())),
    "gpt3-6.7B": GPTConfig(2048, n_layer=32, n_head=32, n_embd=4096),  # Brown et al. 2020, table 2.1
    "gpt3-175B": GPTConfig(2048, n_layer=96, n_head=96, n_embd=12288),
}

# %%
#| export
FORMULAS = {
    "parameters": "{p.weights} P / tp·pp, from --shard 3 on / dp",
    "gradients": "{p.gradients} P / tp·pp, from --shard 2 on / dp",
    "moments": "8 P / tp·pp, from --shard 1 on / dp: AdamW's two, in float32",
    "masters": "{p.masters} P like the moments: float32 weights",
    "casts": "{p.casts} for each number of a matrix: autocast's copies",
    "gathered": "embeddings, the block at work and the next, whole",
    "activations": "the sum of --tensors",
    "loss": "{p.backward} N·V / tp: gradients of log-probabilities and logits",
    "inputs": "8 N: ids and targets",
    "overhead": "not derived: CUDA and libraries, as in an A800's log (--overhead)",
    "compute": "FLOPs / (tp·pp × {rate:,.0f} TFLOP/s × {mfu:.0%}); the share is an assumption (--mfu)",
    "recompute": "the blocks' forward FLOPs once more, likewise",
    "tensor parallel": "rings over the links, not hidden",
    "bubble": "(pp - 1) / micro-batches of the above",
    "data parallel": "rings, less what hides behind computing",
}


def picture(held: dict[str, int], card: Card, width: int = 60) -> str:
    """The card's memory as `width` signs, a letter for each category; what is beyond the card after the bar."""
    text = "".join(name[0] * min(2 * width, round(width * n / 2**20 / card.mib)) for name, n in held.items())
    return f"[{text[:width]:·<{width}}|{text[width : 2 * width]}"


# %%
#| export
def space(step: Step, card: Card, args: argparse.Namespace):
    """Lines of (what, how much, formula), each part after its title: memory, and what is sent."""
    held, p = footprint(step) | {"overhead": round(args.overhead * 2**20)}, PROGRAMS[step.program]
    total, most = sum(held.values()) / 2**20, largest_batch(step, (card.mib - args.overhead) * 2**20)
    yield ("memory of the fullest GPU",)
    for name, n in held.items():
        yield name, f"{n / 2**20:,.1f} MiB", FORMULAS[name].format(p=p)
    fits = "fits" if total <= card.mib else f"does NOT fit, {total / card.mib:.2f} times too much"
    yield "all", f"{total:,.1f} MiB", f"of {card.mib:,} MiB: {fits}"
    yield "largest batch", f"{most:,}", "(card - all that does not grow with B) / what a row takes"
    yield picture(held, card), "", ""
    if args.tensors:
        yield ("activations: numbers × bytes × how many",)
        for name, (n, width, many) in tensors(step).items():
            yield name, f"{n * width * many / 2**20:,.1f} MiB", f"{n:,} × {width} B × {many}"
    if sent := traffic(step):
        yield ("sent by a GPU in a step",)
    for s in sent:
        each = f"{s.calls:,} × {s.kind} over {s.n}, of {s.nbytes / 1e6:,.1f} MB together"
        yield s.what, f"{s.sent / 1e6:,.1f} MB", each


# %%
#| export
def spending(step: Step, card: Card, args: argparse.Namespace):
    """Lines as above: time and cost, of a step and of a run of --tokens."""
    told = seconds(step, card, args.mfu, between=1e9 * args.between)
    total, each = sum(told.values()), step.B * step.T * step.accumulate * step.dp
    yield ("time",)
    for name in [name for name, s in told.items() if s]:
        formula = FORMULAS[name].format(rate=card.rate(step.program) / 1e12, mfu=args.mfu)
        yield name, f"{1e3 * told[name]:,.1f} ms", formula
    yield "step", f"{1e3 * total:,.1f} ms", f"{each:,} tokens, {each / total:,.0f} a second"
    if args.tokens:
        days = args.tokens / each * total / 86400
        hours = 24 * days * step.dp * step.tp * step.pp
        yield "run", f"{days:,.2f} days", f"{args.tokens:,.0f} tokens / {each:,} × step"
        yield "GPU-hours", f"{hours:,.0f}", f"× {args.price:g} (--price) = {hours * args.price:,.0f}"


# %%
#| export
OPTIONS = {  # default, least, what it means
    "model": ("gpt2-124M", "", ", ".join(MODELS)),
    "device": ("A100-80GB", "", ", ".join(CARDS)),
    "program": ("pytorch-bf16", "", "who keeps what in how many bytes: " + ", ".join(PROGRAMS)),
    "recompute": ("none", "", "what backward makes anew: " + ", ".join(RECOMPUTE)),
    "batch": (8, 1, "sequences in a micro-batch of one of the dp ranks"),
    "seq": (1024, 1, "tokens a sequence; beyond the model's context, positions are added"),
    "dp": (1, 1, "ranks that read different rows"),
    "shard": (0, 0, "what these keep a part of (ZeRO): 1 optimizer, 2 gradients too, 3 weights too"),
    "tp": (1, 1, "ranks that share each matrix"),
    "pp": (1, 1, "stages that share the layers"),
    "accumulate": (1, 1, "micro-batches a step"),
    "tokens": (0.0, 0, "of the whole run: how long it takes"),
    "price": (0.0, 0, "of a GPU for an hour, in your currency: what the run costs"),
    "mfu": (0.4, 0.001, "share of the data sheet's FLOP/s while computing: an assumption"),
    "memory": (0, 0, "MiB of the card as nvidia-smi tells; 0: as sold"),
    "overhead": (float(OVERHEAD), 0, "MiB that no formula knows"),
    "between": (50.0, 0.001, "GB/s each way between machines, for each GPU"),
}

# %%
#| export
ABOUT = """
N = batch × seq, V rows of the token table, P parameters; 1 MiB = 2^20 bytes, 1 MB = 10^6.
  python -m nanogpt plan --device A800 --batch 56 --program llm.c --recompute gelu --tensors
  python -m nanogpt plan --model gpt3-175B --batch 1 --seq 2048 --program megatron --recompute block \\
    --tp 8 --pp 16 --dp 8 --accumulate 192 --tokens 300e9"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plan`."""
    parser = argparse.ArgumentParser(description="What training a GPT takes, by formula.", epilog=ABOUT)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # the examples' lines as they are
    for name, (default, _, what) in OPTIONS.items():
        what += f"; default {default}"
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)
    parser.add_argument("--no-flash", action="store_true", help="keep attention's T × T weights")
    parser.add_argument("--tensors", action="store_true", help="list the activations, tensor by tensor")
    return parser


# %%
#| export
def named(what: str, name: str, table: dict):
    """table[name]; ValueError with the nearest name."""
    if name not in table:
        given, plain = name.lower().replace(" ", ""), {key.lower().replace(" ", ""): key for key in table}
        near = [key for key in plain if given in key] or difflib.get_close_matches(given, plain, 1, 0.0)
        raise ValueError(f"--{what} {name!r} is not known; did you mean {plain[near[0]]!r}?")
    return table[name]


# %%
#| export
def asked(args: argparse.Namespace) -> tuple[Step, Card]:
    """The step and the card of a command line. ValueError in one line where they cannot be."""
    tables = {"model": MODELS, "device": CARDS, "program": PROGRAMS, "recompute": RECOMPUTE}
    config, card, program, _ = (named(what, getattr(args, what), table) for what, table in tables.items())
    for name, (default, least, _) in OPTIONS.items():
        value = getattr(args, name.replace("-", "_"))
        if name not in tables and not least <= value < math.inf:
            raise ValueError(f"--{name} {value:g} must be at least {least:g}, as {default:g} is")
    rows = math.ceil(config.vocab_rows / (program.pad * args.tp)) * program.pad * args.tp
    config = replace(config, padded_vocab_size=rows, block_size=max(args.seq, config.block_size))
    layout = {name: getattr(args, name) for name in ("dp", "shard", "tp", "pp", "accumulate")}
    step = Step(config, args.batch, args.seq, args.program, not args.no_flash, args.recompute, **layout)
    return step, replace(card, mib=args.memory or card.mib)


# %%
#| export
def run(args: argparse.Namespace) -> None:
    """Print the plan."""
    step, card = asked(args)
    what = f"{args.model}: {num_params(step.config):,} parameters, {args.program}"
    print(f"{what}, on {step.dp * step.tp * step.pp} × {args.device} ({card.sheet.source})")
    for line in (*space(step, card, args), *spending(step, card, args)):
        print("  {:16}{:>16}  {}".format(*line) if len(line) == 3 else f"\n{line[0]}")


# %% [markdown]
r"""
## GPT-3, as published

Megatron-LM ships an example for 175 billion parameters, and the published log has its arguments.
"""

# %%
script = figures.megatron_175b()
TP, PP, B = (script[f"{name}-size"] for name in figures.SIZES)
print(f"it starts {script['GPUS_PER_NODE']} GPUs; its layout takes a multiple of {TP * PP}")
words = "--model gpt3-175B --batch 1 --seq 2048 --program megatron --recompute block --tokens 300e9"
run(parser().parse_args(f"{words} --tp {TP} --pp {PP} --dp 8 --accumulate {B // 8}".split()))

# %% [markdown]
r"""
It would not start as published. Its two GPUs are fewer than one copy of the model takes. And Megatron-LM refuses `--rampup-batch-size` together with `--train-iters` ("expected no batch-size rampup for iteration-based training", `arguments.py`): with a ramp, a run is told its length in samples. At
the full batch, 500,000 iterations would be 1.6 trillion tokens, five times the 300 billion of GPT-3.

Planned on 1,024 GPUs it fits: 128 GPUs share the 18 bytes a parameter. Tensor parallelism sends the most by far, so its eight ranks are the eight GPUs of a machine. Stages send little, so they may lie apart.

Megatron-LM's README (section *GPT-3 Example*) says 32 seconds a step and 138 TFLOP/s a GPU for this layout on 1,024 A100. Our FLOPs, each block's forward twice, over 32 s and 1,024 GPUs are 138 as well (a test holds that): its figure counts what is recomputed as work, which an MFU does not. Which `--mfu` gives 32 s is not derived;
40% is too little.

Why the ramp is expensive: it begins with 16 rows, two micro-batches for each of eight pipelines of 16 stages.
"""

# %%
for k in (script["rampup-batch-size"][0] // 8, 256 // 8, B // 8):
    print(f"batch {8 * k:>5}: {k:>3} micro-batches a pipeline, bubble {(PP - 1) / k:.2f} of the computing")

# %% [markdown]
r"""
## Ten problems for paper

First on paper, with 16 or 18 bytes a parameter, 2 or 4 a number, and the list above; put your numbers into `guesses`. Then the planner answers, each with a line of its table.
"""

# %%
guesses = {}  # such as 5: 30000
for i, row in enumerate(figures.problems(), 5):
    predict(f"22.{i}", row["question"], guess=guesses.get(i), unit=row["unit"])

# %%
for i, row in enumerate(figures.problems(), 5):
    step, card = asked(args := parser().parse_args(row["command"].split()))
    lines = {line[0]: line for line in (*space(step, card, args), *spending(step, card, args))}
    number = lines[row["line"]][1].split()[0].replace(",", "")
    answer(f"22.{i}", float(number) if "." in number else int(number))
predictions("22")

# %% [markdown]
r"""
## Move it

GPT-2 124M in PyTorch under autocast, eight rows on each of eight cards of 24 GB. What the stages of ZeRO divide is the smaller part here, and what they do not divide, the activations, depends on rows and context alone. *Predict:* how many rows fit on a card with stage 1, and how many with stage 3? How many with twice the context? Then move them.
"""

# %%
plans = {f"shard {z}": footprint(Step(PADDED, 8, dp=8, shard=z)) for z in range(4)}
show(figures.bars(plans, CARDS["RTX 4090"].mib), alt="By ZeRO's stage moments shrink, activations stay.")

# %% tags=["nbval-ignore-output"]
figures.memory_widget(lambda **knobs: footprint(Step(PADDED, **knobs)), CARDS)

# %%
checkpoint("22")

# %% [markdown]
r"""
## Exercises

1. Run the planner on GPT-3 without `--recompute block`. How much more memory does it take, how much less time? Check: the difference of *activations* is `tensors` of 96 / 16 layers × 16 micro-batches, less one block and the blocks' inputs.
2. Which is the smallest number of H100 on which gpt3-6.7B trains with `--shard 3` and one row of 2,048? Check with `--dp` one less that it does not fit.
3. Add sequence parallelism (Korthikanti et al. 2022, §4.2): the stream and its norms are divided too, each all-reduce becomes a reduce-scatter and an all-gather. Check against `traced` with `split(model, mesh, True)`.
4. Write the row of `PROGRAMS` for 8-bit moments (Dettmers et al. 2022): the 8 of the moments is fixed in `states`; make it a field. Check that a parameter costs 6 bytes less.
5. Measure what your own GPU shows beyond the sum (`torch.cuda.mem_get_info` before and after a first step), and pass it as `--overhead`. Check with the largest batch: does one row more run out of memory?

## Further reading

- Rajbhandari et al. 2020, *ZeRO*, §3 and §7: where the memory goes, and what the stages send.
- Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, §4: a block's activations, tensor by tensor.
- Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*, §2.2, §3 and the appendix: bubbles, layouts, FLOPs.
- Shoeybi et al. 2019, *Megatron-LM*, §3: two sums a block and pass.
- llm.c, `train_gpt2.cu`, `fill_in_activation_sizes`: the list, in the program that prints it.
"""
