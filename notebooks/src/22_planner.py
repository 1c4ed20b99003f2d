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
#| default_exp plan
#| doc plan: Memory, communication, time and cost of a run, as a table in which each line names its formula. The command `plan`.
#| doc footprint: What a training step keeps in memory, tensor by tensor, as PyTorch, llm.c and Megatron-LM keep it.
#| doc budget: GPUs by their data sheets, and what a step takes on them: collectives, seconds, the largest batch.
from course.figures import planner as figures
from course.local_ranks import fake_ranks
from course.notebook import answer, checkpoint, predict, predictions, show

# %%
#| export footprint
import math
from dataclasses import dataclass, replace

from nanogpt.model import GPTConfig

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
#| export footprint
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
#| export footprint
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
    "norms": {"gelu": 1, "ln1": 0, "ln2": 0},  # llm.c's -r 2: into buffers that are there anyway
    "block": dict.fromkeys(BLOCK.split(), 1),  # all but a block's input: residual3 of the one before
}

# %% [markdown]
r"""
And a step, with its *layout*: how many GPUs share what. `dp` ranks read different rows, and `shard` says what they keep only a part of (ZeRO's stages, chapter 21: 1 the optimizer's numbers, 2 the
gradients too, 3 the weights too); `tp` ranks share each matrix (21b), `pp` ranks share the layers (21c).
"""


# %%
#| export footprint
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
    sequence: bool = False  # the tp ranks split the stream too

    def __post_init__(self):
        c, names = self.config, ("B", "T", "accumulate", "dp", "tp", "pp")
        for name in [name for name in names if getattr(self, name) < 1]:
            raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if c.n_head % self.tp or c.n_layer % self.pp or self.shard not in range(4):
            which = f"tp={self.tp} must divide n_head={c.n_head}, pp={self.pp} n_layer={c.n_layer}"
            raise ValueError(f"{which}, and shard={self.shard} be 0 to 3")


# %% [markdown]
r"""
Now the list itself. Of N = B·T tokens with C channels, H heads, V rows of the token table, in L layers.
"""


# %%
#| export footprint
def block_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What a block keeps of a micro-batch: (numbers, bytes of each), by llm.c's names."""
    T, p, H, C = step.T, PROGRAMS[step.program], step.config.n_head, step.config.n_embd
    N = step.B * T
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
#| export footprint
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
On one GPU: `tp` divides what lies inside attention and MLP, and the logits; the stream and its norms only with sequence parallelism. The first stage of a pipeline has L / pp layers, and under the usual schedule (1F1B) up to pp micro-batches under way.
"""

# %%
#| export footprint
SPLIT = set("qkv att atty fch gelu logits".split())  # by tensor parallelism; sequence parallel splits all but
WHOLE = {"ids", "losses", "mask"}


def tensors(step: Step) -> dict[str, tuple[int, int, int]]:
    """What forward keeps for backward on one GPU: (numbers, bytes of each, how many of such), by name."""
    again, layers = RECOMPUTE[step.recompute], step.config.n_layer // step.pp * min(step.accumulate, step.pp)
    kept = {name: (*t, min(layers, again.get(name, layers))) for name, t in block_tensors(step).items()}
    kept |= {name: (*t, 1) for name, t in other_tensors(step).items()}
    split = kept.keys() - WHOLE if step.sequence else SPLIT
    kept = {name: (-(-n // step.tp) if name in split else n, *t) for name, (n, *t) in kept.items()}
    return {name: t for name, t in kept.items() if math.prod(t)}


# %% [markdown]
r"""
And the bytes a parameter. Tensor parallelism splits matrices, and biases of those that it splits by columns; norms and positions are whole on each rank. With ZeRO's third stage a rank must hold what it computes with:
the embeddings, one block, and the next, which is being fetched.
"""


# %%
#| export footprint
def split_params(step: Step) -> dict[str, int]:
    """Parameters on one GPU of the first stage, by part; the last stage has ln_f, and a wte of its own."""
    c, t, L = step.config, step.tp, step.config.n_layer // step.pp
    C, bias = c.n_embd, int(c.bias)
    parts = {"wte": -(-c.vocab_rows // t) * C, "wpe": c.block_size * C}
    parts["attention"] = L * (4 * C * C // t + bias * (3 * C // t + C))
    parts["mlp"] = L * (8 * C * C // t + bias * (4 * C // t + C))
    return parts | {"layer norm": (2 * L + (step.pp == 1)) * (1 + bias) * C}


def states(step: Step) -> dict[str, int]:
    """Bytes of parameters, gradients, optimizer on one GPU; `gathered`: what shard 3 holds whole at a time."""
    parts, p, L = split_params(step), PROGRAMS[step.program], step.config.n_layer // step.pp
    P, matrices = sum(parts.values()), parts["attention"] + parts["mlp"]
    whole = parts["wte"] + parts["wpe"] + matrices * min(2, L) // L if step.shard == 3 and step.dp > 1 else 0
    kept = {
        "parameters": (p.weights * P + p.norms * parts["layer norm"], 3),
        "gradients": (p.gradients * P, 2),
    }
    kept |= {"moments": (8 * P, 1), "masters": (p.masters * P, 1), "gathered": (p.weights * whole, 4)}
    kept["casts"] = (p.casts * (parts["wte"] + 12 * L * step.config.n_embd**2 // step.tp), 4)  # no biases
    return {name: -(-n // (step.dp if step.shard >= stage else 1)) for name, (n, stage) in kept.items() if n}


# %%
#| export footprint
def footprint(step: Step) -> dict[str, int]:
    """{category: bytes} on one GPU, all at once; without the driver's and libraries' own."""
    p, N = PROGRAMS[step.program], step.B * step.T
    held = states(step) | {"activations": sum(map(math.prod, tensors(step).values()))}
    held["loss"] = -(
        -p.backward * N * step.config.vocab_rows // step.tp
    )  # gradients: log-probabilities, logits
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
from nanogpt.model import num_params

GPT2, PADDED, MIB = GPTConfig(), GPTConfig(padded_vocab_size=50304), 2**20
LOGS = {  # by the first words of a run's name in data/reference
    "A800": Step(PADDED, 56, 1024, "llm.c", recompute="gelu"),
    "RTX 4070 SUPER": Step(PADDED, 4, 1024, "llm.c-2024", flash=False),
    "H800 1 GPU": Step(GPT2, 4, 1024, "llm.c-2024", flash=False),
    "H800 2 GPUs": Step(GPT2, 4, 1024, "llm.c-2024-bf16", flash=False),
    "Intel CPU": (cpu := Step(GPT2, 4, 64, "llm.c-cpu", flash=False)),
    **{"Arm CPU": cpu, "M1 CPU": cpu},
    "Megatron-LM": Step(GPTConfig(512, padded_vocab_size=50304), 1, 512, "megatron"),
}

# %% [markdown]
r"""
*Predict.* GPT-2 124M in bf16 on the A800, 56 rows of 1,024 tokens: activations, in MiB? And if attention kept its T × T weights?
"""

# %%
predict("22.1", "activations of 56 × 1,024 tokens, bf16", guess=None, unit="MiB")
predict("22.2", "the same with T × T weights kept", guess=None, unit="MiB")
a800 = LOGS["A800"]
kept = [footprint(replace(a800, flash=flash))["activations"] / MIB for flash in (True, False)]
answer("22.1", kept[0])
answer("22.2", kept[1])
for name, (n, width, many) in tensors(a800).items():
    print(f"{name:10} {n:>13,} numbers × {width} B × {many:>2} = {n * width * many / MIB:>9,.2f} MiB")
print(f"{'together':10} {kept[0]:>44,.2f} MiB; with T × T weights {kept[1]:,.2f} MiB")

# %%
equal, other = figures.validation(LOGS, footprint, largest_batch, num_params)
assert set(other) == set(figures.NOT_DERIVED), f"no longer equal, or now equal: {other}"

# %% [markdown]
r"""
## What a step sends

On a ring of n ranks, each sends (n − 1)/n of a tensor to gather or to reduce-scatter it, and twice that for an all-reduce (chapter 20). What remains is how many there are, and of what. Data parallelism sums all gradients once a step; with ZeRO's
third stage each micro-batch gathers the weights, in backward again, and scatters the gradients (embeddings and last norm, FSDP2's root, stay between forward and backward). Tensor parallelism sums the stream twice a block in forward and twice in
backward, and at both ends once. A pipeline hands it on.
"""

# %%
#| export budget
from dataclasses import dataclass, replace

from nanogpt.bench import step_flops
from nanogpt.model import flops_by_part
from nanogpt.roofline import PEAKS, Peak
from nanogpt.scaling import Cluster, average_seconds

SHARE = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # of (n - 1) / n of the bytes, on a ring


# %%
#| export budget
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
#| export budget
def data_traffic(step: Step) -> list[Sent]:
    """What the dp ranks send each other."""
    parts, n, at, c = split_params(step), step.dp, step.tp, step.config
    p, P, groups = PROGRAMS[step.program], sum(parts.values()), c.n_layer // step.pp + 1
    gradients, weights = p.gradients * P, p.weights * P
    if n == 1 or not step.shard:
        return [Sent("gradients", "all-reduce", n, 1, gradients, at)] * (n > 1)
    if step.shard < 3:
        scattered = Sent("gradients", "reduce-scatter", n, 1, gradients, at)
        return [scattered, Sent("weights", "all-gather", n, 1, weights, at)]
    root = parts["wte"] + parts["wpe"] + (step.pp == 1) * (1 + c.bias) * c.n_embd  # outside of the blocks
    twice, times = 2 * weights - p.weights * root, step.accumulate
    scattered = Sent("gradients", "reduce-scatter", n, times * groups, times * gradients, at)
    return [Sent("weights", "all-gather", n, times * (2 * groups - 1), times * twice, at), scattered]


# %%
#| export budget
def tensor_traffic(step: Step) -> list[Sent]:
    """What the tp ranks send: two sums of the stream a block in forward, two in backward (Shoeybi et al. 2019, §3).

    With one stage also behind the embedding and before the head; the loss's few numbers are left out.
    """
    calls = step.accumulate * (4 * step.config.n_layer // step.pp + 2 * (step.pp == 1))
    nbytes = calls * step.B * step.T * step.config.n_embd * PROGRAMS[step.program].inside
    kinds = ("reduce-scatter", "all-gather") if step.sequence else ("all-reduce",)  # two halves of one
    return [Sent("partial sums", kind, step.tp, calls, nbytes) for kind in kinds if step.tp > 1]


def traffic(step: Step) -> list[Sent]:
    """All that one GPU sends in a step."""
    each = step.B * step.T * step.config.n_embd * PROGRAMS[step.program].stream
    calls = 2 * step.accumulate  # forward, and the gradient back
    stages = Sent("stage to stage", "send", 2, calls, calls * each, step.tp * step.dp)
    return data_traffic(step) + tensor_traffic(step) + [stages] * (step.pp > 1)


# %% [markdown]
r"""
TRACE_PROSE
"""

# %% [markdown]
r"""
## Time

A card is a data sheet, its memory, its links. An A800 is an A100 and an H800 an H100, but for NVLink, of which they have 400 GB/s, both directions together.
"""

# %%
#| export budget
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
#| export budget
NVLINK = {"B200": (180, 900), "H200": (141, 450), "H100": (80, 450), "A100-80GB": (80, 300)}  # GiB, GB/s
PCIE = {"L4": (24, 32), "T4": (16, 16), "RTX 5090": (32, 64), "RTX 4090": (24, 32), "RTX 3090": (24, 32)}
SUPER = Peak(35.5, 35.5, 71, 504, "NVIDIA's product page, 2024: 7,168 cores at 2.48 GHz")
V100S = Peak(16.4, None, 130, 1134, "V100 data sheet, 2020 (V100S)")
CARDS = {
    **{name: Card(PEAKS[name], 1024 * gib, link) for name, (gib, link) in (NVLINK | PCIE).items()},
    "A800": Card(PEAKS["A100-80GB"], 81100, 200),  # MiB: as an llm.c log prints
    "H800": Card(PEAKS["H100"], 80 * 1024, 200),
    "V100S": Card(V100S, 32 * 1024, 16),
    "RTX 4070 SUPER": Card(SUPER, 12 * 1024, 32),
}


def largest(step: Step, card: Card, overhead: float = OVERHEAD) -> int:
    """The most sequences that a micro-batch can have on this card."""
    return largest_batch(step, (card.mib - overhead) * 2**20)


# %%
#| export budget
def seconds(step: Step, card: Card, mfu: float = 0.4, **links) -> dict[str, float]:
    """Of a step, by cause. mfu: share of the data sheet's FLOP/s while it computes; links: Cluster's. Both assumed.

    What the dp ranks send hides behind computing, as chapter 20b has it; what the tp ranks send does not.
    """
    cluster = Cluster(card.rate(step.program), mfu, inside=1e9 * card.link, **links)
    rows, power = step.B * step.accumulate, step.tp * step.pp * cluster.flops * mfu
    parts = flops_by_part(step.config, step.T)
    told = {"compute": step_flops(step.config, rows, step.T) / power}
    again = rows * step.T * (sum(parts.values()) - parts["lm_head"]) / power  # the blocks forward once more
    told["recompute"] = again if step.recompute == "block" else 0.0
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

PLAN_PROSE
"""

# %%
#| export
import argparse
import difflib
import math
from dataclasses import replace

from nanogpt.model import SIZES, GPTConfig, num_params

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
    text = "".join(name[0] * round(width * n / 2**20 / card.mib) for name, n in held.items())
    return f"[{text[:width]:·<{width}}|{text[width : 2 * width]}"


# %%
#| export
def space(step: Step, card: Card, args: argparse.Namespace):
    """Lines of (what, how much, formula), each part after its title: memory, and what is sent."""
    held, p = footprint(step) | {"overhead": round(args.overhead * 2**20)}, PROGRAMS[step.program]
    total, most = sum(held.values()) / 2**20, largest(step, card, args.overhead)
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
        yield (
            s.what,
            f"{s.sent / 1e6:,.1f} MB",
            f"{s.calls:,} × {s.kind} over {s.n} of {s.nbytes / 1e6:,.1f} MB",
        )


# %%
#| export
def spending(step: Step, card: Card, args: argparse.Namespace):
    """Lines as above: time and cost, of a step and of a run of --tokens."""
    told = seconds(step, card, args.mfu, per_machine=args.per_machine, between=1e9 * args.between)
    total, each = sum(told.values()), step.B * step.T * step.accumulate * step.dp
    size = step.dp * step.tp * step.pp
    yield ("time",)
    for name, s in told.items():
        if s:
            rate = card.rate(step.program) / 1e12
            yield name, f"{1e3 * s:,.1f} ms", FORMULAS[name].format(rate=rate, mfu=args.mfu)
    yield "step", f"{1e3 * total:,.1f} ms", f"{each:,} tokens, {each / total:,.0f} a second"
    if args.tokens:
        hours = args.tokens / each * total / 3600
        yield "run", f"{hours / 24:,.2f} days", f"{args.tokens:,.0f} tokens / {each:,} × step"
        yield "GPU-hours", f"{size * hours:,.0f}", f"{size} GPUs × {hours:,.1f} hours"
        yield "cost", f"{size * hours * args.price:,.0f}", f"GPU-hours × {args.price:g} (--price)"


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
    "per-machine": (8, 1, "GPUs a machine"),
    "between": (50.0, 0.001, "GB/s each way between machines, for each GPU"),
}

# %%
#| export
ABOUT = """
N = batch × seq, V rows of the token table, P parameters; 1 MiB = 2^20 bytes, 1 MB = 10^6.
what an llm.c log on an A800 printed, to the MiB:
  python -m nanogpt plan --device A800 --batch 56 --program llm.c --recompute gelu --tensors
GPT-3 as in Megatron-LM's example, on 1,024 GPUs:
  python -m nanogpt plan --model gpt3-175B --batch 1 --seq 2048 --program megatron --recompute block \\
    --tp 8 --pp 16 --dp 8 --accumulate 192 --tokens 300e9"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plan`."""
    about = "Memory, communication, time and cost of training a GPT, by formula, before anything runs."
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=form, epilog=ABOUT)
    for name, (default, _, what) in OPTIONS.items():
        parser.add_argument(
            f"--{name}", type=type(default), default=default, help=f"{what}; default {default}"
        )
    flags = {"no-flash": "keep attention's T × T weights", "sequence": "the tp ranks split the stream too"}
    for name, what in (flags | {"tensors": "list the activations, tensor by tensor"}).items():
        parser.add_argument(f"--{name}", action="store_true", help=what)
    return parser


# %%
#| export
def named(what: str, name: str, table: dict):
    """table[name]; ValueError with the nearest name."""
    if name not in table:
        given, plain = name.lower().replace(" ", ""), {key.lower().replace(" ", ""): key for key in table}
        near = [key for key in plain if given in key] or difflib.get_close_matches(given, plain, 1, 0.0)
        known = f"did you mean {plain[near[0]]!r}? There are {', '.join(table)}"
        raise ValueError(f"--{what} {name!r} is not known; {known}")
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
    multiple, longest = program.pad * args.tp, max(args.seq, config.block_size)
    config = replace(
        config, padded_vocab_size=-(-config.vocab_rows // multiple) * multiple, block_size=longest
    )
    layout = {name: getattr(args, name) for name in ("dp", "shard", "tp", "pp", "sequence", "accumulate")}
    step = Step(config, args.batch, args.seq, args.program, not args.no_flash, args.recompute, **layout)
    return step, replace(card, mib=args.memory or card.mib)


# %%
#| export
def run(args: argparse.Namespace) -> None:
    """Print the plan."""
    step, card = asked(args)
    where = f"{step.dp * step.tp * step.pp} × {args.device} ({card.sheet.source})"
    print(f"{args.model}: {num_params(step.config):,} parameters on {where}, {args.program}")
    for line in (*space(step, card, args), *spending(step, card, args)):
        print("  {:16}{:>16}  {}".format(*line) if len(line) == 3 else f"\n{line[0]}")


# %%
checkpoint("22")
