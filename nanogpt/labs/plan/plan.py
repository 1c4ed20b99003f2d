"""The command `plan`: what a run takes, by formula, before it starts.

Exported from notebooks/22a_time_and_cost.ipynb.
"""

import argparse
import difflib
import math
from collections.abc import Iterator
from dataclasses import replace

from nanogpt.labs.plan.budget import CARDS, Card, Cluster
from nanogpt.labs.plan.footprint import OVERHEAD, PROGRAMS, RECOMPUTE, Step, footprint, largest_batch
from nanogpt.labs.plan.table import MEMORY, memory_lines, print_table, sent_lines, time_lines
from nanogpt.labs.roofline.sheets import Peak
from nanogpt.model import SIZES, GPTConfig, num_params

MODELS = {
    **dict(zip(("gpt2-124M", "gpt2-355M", "gpt2-774M", "gpt2-1558M"), SIZES.values())),
    "gpt3-6.7B": GPTConfig(2048, n_layer=32, n_head=32, n_embd=4096),  # Brown et al. 2020, table 2.1
    "gpt3-175B": GPTConfig(2048, n_layer=96, n_head=96, n_embd=12288),
}


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


ABOUT = """
N = batch × seq, V rows of the token table, P parameters; 1 MiB = 2^20 bytes, 1 MB = 10^6.
  python -m nanogpt plan --device A800 --batch 56 --program llm.c --recompute gelu --tensors
  python -m nanogpt plan --layers 32 --heads 32 --width 4096 --vocab 32000 --device H100 --dp 8 --shard 3
  python -m nanogpt plan --model gpt3-175B --batch 1 --seq 2048 --program megatron --recompute block \\
    --tp 8 --pp 16 --dp 8 --accumulate 192 --tokens 300e9 --mfu 0.5

Exit codes, for scripts: 0 it fits, 1 it does not fit (the plan is printed all the same), 2 an option is wrong."""


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


def plan_lines(args: argparse.Namespace) -> Iterator[tuple]:
    """All lines of a plan."""
    step, _, mib, card = asked(args)
    cluster = Cluster(card.rate(step.program), inside=1e9 * card.link, between=1e9 * args.between)
    yield from memory_lines(step, mib, args.overhead, args.tensors)
    yield from sent_lines(step, cluster)
    yield from time_lines(step, card, args)


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
