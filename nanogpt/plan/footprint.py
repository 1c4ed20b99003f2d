"""What a training step keeps in memory, tensor by tensor, as PyTorch, llm.c and Megatron-LM keep it.

Exported from notebooks/22_planner.ipynb.
"""

import math
from dataclasses import dataclass, replace

from nanogpt.gpt.model import GPTConfig


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
