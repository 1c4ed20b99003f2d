"""What a training step keeps in memory, tensor by tensor, as PyTorch, llm.c and Megatron-LM keep it.

Exported from notebooks/22_planner.ipynb.
"""

import math
from dataclasses import dataclass, replace

from nanogpt.model import GPTConfig


@dataclass(frozen=True)
class Program:
    """How a program stores a step: bytes of a number by kind, and which tensors it keeps besides the common ones."""

    weights: int  # bytes of a parameter, as forward reads it
    gradients: int
    masters: int = 0  # bytes of a float32 copy beside 16-bit weights
    casts: int = 0  # bytes of a number in the copy of each matrix that autocast makes in every step
    stream: int = 4  # bytes of a number on the residual stream
    inside: int = 4  # of what matrix products and attention read
    stats: int = 4  # of the norms' means and deviations
    logits: int = 4  # for each logit, in all tables that are kept
    backward: int = 0  # for each logit, in the loss's backward pass
    ids: bool = False  # tokens, targets, positions as int64, and the loss's divisor, are kept

    tables: int = 1  # T × T tables for each head, without flash attention
    mask: int = 0  # bytes of a number in a layer's T × T mask, without flash attention

    norms: int = 0  # bytes that a LayerNorm's parameter has more than another
    projections: bool = False  # what both projections add to the stream has tensors of its own
    shared_output: bool = False  # the logits' memory serves as scratch too: for qkv, or T × T
    scratch: int = 0  # further numbers of `inside` for each of a token's C
    pad: int = 1  # the token table's rows are a multiple of this


TORCH, HALF = {"backward": 8, "mask": 1, "ids": True}, {"stream": 2, "inside": 2}
PYTORCH = {  # this course's trainer, by chapter 10's words for precision
    "pytorch": Program(4, 4, **TORCH),  # float32
    "pytorch-tf32": Program(4, 4, **TORCH),
    "pytorch-bf16": Program(4, 4, casts=2, inside=2, tables=3, **TORCH),  # autocast
    "pytorch-fp16": Program(4, 4, casts=2, inside=2, tables=3, **TORCH),
    "pytorch-bf16-masters": Program(2, 2, 4, **HALF, stats=2, **TORCH),  # MasterAdamW
}
BLOCK = "ln1 ln1_stats qkv att mask atty attproj residual2 ln2 ln2_stats fch gelu fcproj"
RECOMPUTE = {  # what backward makes again, and of how many layers it exists at a time
    "none": {},
    "gelu": {"gelu": 1},
    "gelu+norms": {"gelu": 1, "ln1": 0, "ln2": 0},  # llm.c's -r 2: both norms in the memory of the last one
    "block": dict.fromkeys(BLOCK.split(), 1),  # all but a block's input: residual3 of the one before
}


def check_step(step) -> None:
    """ValueError, in one sentence, for a step that cannot be."""
    for name in ("B", "T", "accumulate", "dp", "tp", "pp"):
        if getattr(step, name) < 1:
            raise ValueError(f"{name}={getattr(step, name)} must be at least 1")
    for name, ranks, size in ("tp", step.tp, "n_head"), ("pp", step.pp, "n_layer"):
        if getattr(step.config, size) % ranks:
            raise ValueError(f"{name}={ranks} must divide {size}={getattr(step.config, size)}")
    if step.shard not in range(4):
        raise ValueError(f"shard={step.shard} must be 0, 1, 2 or 3")


OLD = {"projections": True, "shared_output": True}  # llm.c's file of spring 2024
PROGRAMS = PYTORCH | {
    "llm.c": Program(2, 2, 4, **HALF, logits=2, shared_output=True, scratch=5, pad=128),
    "llm.c-2024": Program(4, 4, **OLD),
    "llm.c-2024-bf16": Program(2, 2, norms=2, **HALF, stats=2, logits=2, **OLD),
    "llm.c-cpu": Program(4, 4, logits=8, tables=2, projections=True),
    "megatron": Program(2, 4, 4, **HALF, pad=128),  # fp16, gradients summed in float32
}


@dataclass(frozen=True)
class Step:
    """A training step on dp × tp × pp GPUs, seen from one GPU of a pipeline's `stage`. ValueError if it cannot be."""

    config: GPTConfig
    B: int = 1  # sequences in a micro-batch of one of the dp ranks
    T: int = 1024
    program: str = "pytorch-bf16"
    flash: bool = True
    recompute: str = "none"
    accumulate: int = 1  # micro-batches
    dp: int = 1  # ranks that read different rows
    shard: int = 0  # ZeRO's stage over the dp ranks
    tp: int = 1  # ranks that share each matrix
    pp: int = 1  # ranks that share the layers
    stage: int = 0  # which of the pp

    def __post_init__(self):
        check_step(self)

    @property
    def first(self) -> bool:
        """Whether this stage has the embeddings."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether this stage has the logits and the loss."""
        return self.stage == self.pp - 1

    @property
    def row(self) -> Program:
        """The program's choices. FSDP2 gathers weights in 16 bits instead of casting them: then all is in 16 bits."""
        p = PROGRAMS[self.program]
        if p.casts and self.shard == 3 and self.dp > 1:
            return replace(p, casts=0, stream=p.casts, stats=p.casts, tables=1)
        return p


def block_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What a block keeps of a micro-batch: (numbers, bytes of each), by llm.c's names, those in BLOCK and residual3.

    residual2 and residual3 have the bytes of `stream`, the norms' the bytes of `stats`, all other tables those of
    `inside`. With flash, att is a float32 sum (4 bytes) for each token and head. Without it, att is `tables` numbers
    for each token, head and key, and mask T × T numbers of `mask` bytes, once for all rows. attproj and fcproj, what
    the two projections add, are N × C each where the program has `projections`, and otherwise 0.
    """
    T, N, p, H, C = step.T, step.B * step.T, step.row, step.config.n_head, step.config.n_embd
    return {
        "ln1": (N * C, p.inside),
        "ln1_stats": (2 * N, p.stats),
        "qkv": (3 * N * C, p.inside),
        "att": (N * H, 4) if step.flash else (p.tables * N * H * T, p.inside),  # sums, or all weights
        "mask": (0 if step.flash else p.mask * T * T, 1),
        "atty": (N * C, p.inside),
        "attproj": (N * C if p.projections else 0, p.inside),
        "residual2": (N * C, p.stream),
        "ln2": (N * C, p.inside),
        "ln2_stats": (2 * N, p.stats),
        "fch": (4 * N * C, p.inside),
        "gelu": (4 * N * C, p.inside),
        "fcproj": (N * C if p.projections else 0, p.inside),
        "residual3": (N * C, p.stream),
    }


def other_tensors(step: Step) -> dict[str, tuple[int, int]]:
    """What is kept outside of the blocks: (numbers, bytes of each). The head's are the last stage's."""
    N, p, c = step.B * step.T, step.row, step.config
    kept = {"encoded": (N * c.n_embd, p.stream)}  # the embeddings' sum, or what the stage before sent
    if p.ids:  # tokens and positions, targets and the loss's divisor
        kept["ids"] = (8 * (N + step.T) * step.first + (8 * N + 4) * step.last, 1)
    if step.last:
        width = max(3 * c.n_embd, c.n_head * step.T, c.vocab_rows) if p.shared_output else c.vocab_rows
        kept["lnf"] = (N * c.n_embd, p.inside)
        kept["lnf_stats"] = (2 * N, p.stats)
        kept["logits"] = (N * width, p.logits)
        kept["losses"] = (0 if p.ids else N, p.stats)
        kept["scratch"] = (p.scratch * N * c.n_embd, p.inside)
    return kept


SPLIT = {"qkv", "att", "atty", "fch", "gelu", "logits"}  # by tensor parallelism


def tensors(step: Step) -> dict[str, tuple[int, int, int]]:
    """What forward keeps for backward on one GPU: (numbers, bytes of each, how many of such), by name."""
    under_way = min(step.accumulate, step.pp - step.stage)  # micro-batches whose backward is still to come
    layers = step.config.n_layer // step.pp * under_way
    kept = {}
    for name, (numbers, width) in block_tensors(step).items():
        kept[name] = numbers, width, min(layers, RECOMPUTE[step.recompute].get(name, layers))
    for name, (numbers, width) in other_tensors(step).items():
        kept[name] = numbers, width, under_way
    for name in SPLIT & kept.keys():
        numbers, width, many = kept[name]
        kept[name] = math.ceil(numbers / step.tp), width, many
    return {name: each for name, each in kept.items() if math.prod(each)}


def split_params(step: Step) -> dict[str, int]:
    """Parameters on one GPU, by part. With a pipeline, the first and the last stage each have a token table."""
    C, bias, t, L = step.config.n_embd, int(step.config.bias), step.tp, step.config.n_layer // step.pp
    ends = step.first or step.last
    return {
        "wte": math.ceil(step.config.vocab_rows / t) * C if ends else 0,
        "wpe": step.config.block_size * C if step.first else 0,
        "attention": L * (4 * C * C // t + bias * (3 * C // t + C)),
        "mlp": L * (8 * C * C // t + bias * (4 * C // t + C)),
        "layer norm": (2 * L + step.last) * (1 + bias) * C,
    }


def states(step: Step) -> dict[str, tuple[int, int, int]]:
    """What a GPU keeps for its parameters: (numbers, bytes of each, ranks that share them), by name."""
    parts, p, L = split_params(step), step.row, step.config.n_layer // step.pp
    P = sum(parts.values())
    weights, gradients, optimizer = (step.dp if step.shard >= stage else 1 for stage in (3, 2, 1))
    kept = {
        "parameters": (P, p.weights, weights),
        "norms": (parts["layer norm"], p.norms, weights),
        "gradients": (P, p.gradients, gradients),
        "moments": (2 * P, 4, optimizer),
        "masters": (P, p.masters, optimizer),
        "casts": (12 * L * step.config.n_embd**2 // step.tp + parts["wte"] * step.last, p.casts, 1),
    }
    if weights > 1:  # what FSDP2 gathers: the root's, the block at work, and the next one
        blocks = (parts["attention"] + parts["mlp"]) * min(2, L) // L
        kept["gathered"] = (parts["wte"] + parts["wpe"] + blocks, p.inside, 1)
    return {name: each for name, each in kept.items() if math.prod(each)}


def footprint(step: Step) -> dict[str, int]:
    """{category: bytes} on one GPU, all at once; without the driver's and libraries' own."""
    p, N = step.row, step.B * step.T
    held = {name: math.ceil(n * width / ranks) for name, (n, width, ranks) in states(step).items()}
    held["activations"] = sum(math.prod(each) for each in tensors(step).values())
    if step.last:
        held["loss"] = math.ceil(p.backward * N * step.config.vocab_rows / step.tp)
    if not p.ids:
        held["inputs"] = 8 * N  # ids and targets in four bytes each, beside the activations
    return {name: n for name, n in held.items() if n}


OVERHEAD = 851  # MiB that an A800's log leaves unexplained; CUDA's context and libraries are among them


def fullest_stages(step: Step) -> dict[str, Step]:
    """The stages of a pipeline that can be the fullest, by name; without one, the only GPU."""
    if step.pp == 1:
        return {"the only stage": step}
    return {"first stage": replace(step, stage=0), "last stage": replace(step, stage=step.pp - 1)}


def largest_batch(step: Step, nbytes: float) -> int:
    """The largest B that fits into so many bytes on every stage, 0 if none: bytes are a line in B."""
    most = []
    for each in fullest_stages(step).values():
        one, two = (sum(footprint(replace(each, B=B)).values()) for B in (1, 2))
        most.append(math.floor((nbytes - one) / (two - one)) + 1)
    return max(0, min(most))
