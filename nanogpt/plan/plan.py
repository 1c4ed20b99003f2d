"""Memory, communication, time and cost of a run, as a table in which each line names its formula. The command `plan`.

Exported from notebooks/22_planner.ipynb.
"""

import argparse
import difflib
import math
from dataclasses import replace

from nanogpt.gpt.model import SIZES, GPTConfig, num_params
from nanogpt.plan.budget import CARDS, OVERHEAD, Card, seconds, traffic
from nanogpt.plan.footprint import PROGRAMS, RECOMPUTE, Step, footprint, largest_batch, tensors

MODELS = {
    **dict(zip(("gpt2-124M", "gpt2-355M", "gpt2-774M", "gpt2-1558M"), SIZES.values())),
    "gpt3-6.7B": GPTConfig(2048, n_layer=32, n_head=32, n_embd=4096),  # Brown et al. 2020, table 2.1
    "gpt3-175B": GPTConfig(2048, n_layer=96, n_head=96, n_embd=12288),
}


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


def named(what: str, name: str, table: dict):
    """table[name]; ValueError with the nearest name."""
    if name not in table:
        given, plain = name.lower().replace(" ", ""), {key.lower().replace(" ", ""): key for key in table}
        near = [key for key in plain if given in key] or difflib.get_close_matches(given, plain, 1, 0.0)
        raise ValueError(f"--{what} {name!r} is not known; did you mean {plain[near[0]]!r}?")
    return table[name]


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


def run(args: argparse.Namespace) -> None:
    """Print the plan."""
    step, card = asked(args)
    what = f"{args.model}: {num_params(step.config):,} parameters, {args.program}"
    print(f"{what}, on {step.dp * step.tp * step.pp} × {args.device} ({card.sheet.source})")
    for line in (*space(step, card, args), *spending(step, card, args)):
        print("  {:16}{:>16}  {}".format(*line) if len(line) == 3 else f"\n{line[0]}")
