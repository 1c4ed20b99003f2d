"""12 · Nice numbers, and the whole ladder (exported from notebooks/12_nice_numbers.ipynb)."""

import argparse
import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.bench import measure, mfu, step_flops
from nanogpt.device import Roofline, copy_bandwidth, matmul_flops, peak_of, pick_device, seed_everything
from nanogpt.model import GPT, GPTConfig, num_params

__all__ = [
    "pad_vocabulary",
    "RUNGS",
    "rungs_up_to",
    "adamw_update",
    "MasterAdamW",
    "zipf_batches",
    "token_loss",
    "make_step",
    "compile_parts",
    "predict",
    "obstacles",
    "LOSS_STEPS",
    "measure_roofline",
    "peak_mib",
    "run_rung",
    "SIZES",
    "TOLERANCE",
    "CHILD",
    "in_process",
    "device_name",
    "climb",
    "describe",
    "row",
    "draw",
    "DEFAULTS",
    "main",
    "run",
    "write_whole",
]


def pad_vocabulary(model: GPT, multiple: int = 128) -> None:
    """Append zero rows to wte, which is also lm_head, up to a multiple; in place. 50257 becomes 50304.

    No id and no target names an added row, so its logit is pushed down wherever it has a probability.
    Sampling must not draw from `logits[..., vocab_size:]`, and an export leaves the added rows out.
    """
    old = model.transformer.wte.weight.data  # (V, C)
    rows = -(-len(old) // multiple) * multiple
    new = nn.Parameter(torch.cat([old, old.new_zeros(rows - len(old), old.shape[1])]))
    model.transformer.wte.weight = model.lm_head.weight = new
    model.transformer.wte.num_embeddings = model.lm_head.out_features = rows


RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 09)",
    "bf16": "autocast: products in bfloat16 (chapter 09)",
    "compile": "torch.compile fuses what lies between the products (chapter 10)",
    "flash": "attention in one kernel, no T×T matrix (chapter 11)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 12)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights kept in bfloat16, float32 masters in the optimizer",
}


def rungs_up_to(name: str, skipped=()) -> set[str]:
    """The rungs that are on at rung `name`: all up to it, less the skipped ones."""
    names = list(RUNGS)
    return set(names[: names.index(name) + 1]) - set(skipped)


def adamw_update(weight, grad, master, m, v, rate, scale, lr, beta1, beta2, eps, weight_decay) -> None:
    """AdamW on the float32 master, rounded into the weight; in place (Loshchilov & Hutter 2019, algorithm 2).

    rate = lr / (1 - beta1**t) and scale = 1 / (1 - beta2**t) are tensors, so that what is compiled holds for any t.
    """
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad * grad, 1 - beta2)
    master.mul_(1 - lr * weight_decay)
    master.sub_(rate * m / ((v * scale).sqrt() + eps))
    weight.copy_(master)


class MasterAdamW:
    """AdamW for a model whose weights it turns to bfloat16; masters and moments stay in float32."""

    def __init__(self, model: nn.Module, compiled: bool, **options):
        masters = [p.detach().float().flatten().clone() for p in model.parameters()]  # before rounding
        model.bfloat16()
        self.state = [
            (p, w, torch.zeros_like(w), torch.zeros_like(w)) for p, w in zip(model.parameters(), masters)
        ]
        self.update = torch.compile(adamw_update, dynamic=True) if compiled else adamw_update
        self.steps = 0
        self.options = options

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        o, device = self.options, self.state[0][1].device
        rate = torch.tensor(o["lr"] / (1 - o["beta1"] ** self.steps), device=device)
        scale = torch.tensor(1 / (1 - o["beta2"] ** self.steps), device=device)
        for p, master, m, v in self.state:
            self.update(p.view(-1), p.grad.reshape(-1), master, m, v, rate, scale, **self.options)

    def zero_grad(self) -> None:
        for p, *_ in self.state:
            p.grad = None


def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T): token r occurs with a probability of about 1 / r. A seed gives one sequence."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1
        yield ids[:, :-1], ids[:, 1:]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats, summed in float32 whatever the logits are in."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> Callable[[], Tensor]:
    """A function that does one training step with the rungs in `on` and returns its loss, still on the device."""
    torch.set_float32_matmul_precision("high" if "TF32" in on else "highest")
    model = GPT(replace(config, flash="flash" in on), seed_everything(0))
    if "nice numbers" in on:
        pad_vocabulary(model)
    model.to(device)
    lr, betas, decay = 3e-4, (0.9, 0.95), 0.1
    if "bf16 weights" in on:
        named = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": 1e-8, "weight_decay": decay}
        optimizer = MasterAdamW(model, compiled="compile" in on, **named)
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr, betas, weight_decay=decay, fused="fused AdamW" in on
        )
    forward, loss_of = compile_parts(model, device) if "compile" in on else (model, token_loss)
    cast = torch.autocast(device.type, torch.bfloat16, enabled="bf16" in on and "bf16 weights" not in on)
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = (ids.to(device) for ids in next(batches))
        with cast:
            loss = loss_of(forward(x)[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def compile_parts(model: GPT, device: torch.device) -> tuple[Callable, Callable]:
    """Compiled (forward, loss). On a GPU the whole forward; elsewhere block by block, since all blocks share one
    graph: a twelfth of the compile time for nearly all of the fusion."""
    if device.type == "cuda":
        return torch.compile(model), torch.compile(token_loss)
    for block in model.transformer.h:
        block.compile()
    return model, torch.compile(token_loss)


def predict(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds of one step by part, before anything is run: FLOPs of products, bytes of everything else."""
    N, C, L, P = B * T, config.n_embd, config.n_layer, num_params(config)
    compiled, half = "compile" in on, "bf16" in on
    size = (
        2 if "bf16 weights" in on else 3 if half else 4
    )  # bytes a number; autocast leaves about half in float32
    dtype = "bfloat16" if half else "tf32" if "TF32" in on else "float32"
    vocabulary = config.vocab_size + (-config.vocab_size % 128 if "nice numbers" in on else 0)
    passes = {  # (reads and writes, numbers in the tensor)
        "pointwise": (48 if compiled else 65, N * C * L),
        "T×T": (0 if "flash" in on else 11 if compiled else 19, N * T * config.n_head * L),
        "logits": (6 if compiled else 9, N * vocabulary),
    }
    seconds = {part: count * size * numbers / roof.bandwidth for part, (count, numbers) in passes.items()}
    if half and "bf16 weights" not in on:  # read 4, write 2 forward; the gradient back: read 2, write 4
        seconds["weight casts"] = 12 * P / roof.bandwidth
    seconds["AdamW"] = (28 if on & {"fused AdamW", "bf16 weights"} else 80) * P / roof.bandwidth
    flops = step_flops(replace(config, vocab_size=vocabulary), B, T)
    weights = 3 * P * (2 if half else 4)  # read forward, read backward, gradient written
    return {"products": roof.seconds(flops, weights, dtype), **seconds}


def obstacles(device: torch.device, roof: Roofline) -> dict[str, str]:
    """Rungs that this device cannot do, each with the reason."""
    reasons = {}
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if capability < (8, 0):
        reasons["TF32"] = "TF32 exists on NVIDIA GPUs of compute capability 8.0 and later"
    if device.type == "cuda" and capability < (8, 0):
        reasons["bf16"] = "this GPU computes no bfloat16; float16 needs loss scaling (chapter 09)"
    elif roof.flops["bfloat16"] < 0.8 * roof.flops["float32"]:
        reasons["bf16"] = "bfloat16 products are slower than float32 ones here: no hardware for them"
    if device.type == "mps":
        reasons["compile"] = "torch.compile is a prototype on mps"
    elif device.type == "cuda" and (capability < (7, 0) or not importlib.util.find_spec("triton")):
        reasons["compile"] = (
            "torch.compile needs Triton and compute capability 7.0; PyTorch brings no Triton on Windows"
        )
    elif device.type == "cpu" and not shutil.which(
        os.environ.get("CXX") or ("cl" if os.name == "nt" else "c++")
    ):
        reasons["compile"] = (
            "torch.compile needs a C++ compiler, and none is on the path; set CXX or install g++"
        )
    return reasons


LOSS_STEPS = 6  # they warm up as well: the loss that is compared is that of the sixth step


def measure_roofline(device: torch.device) -> Roofline:
    """This machine's measured peaks, FLOP/s by dtype (float32, bfloat16, and tf32 on CUDA) and bytes/s."""
    n, mebibytes = (8192, 2048) if device.type == "cuda" else (1024, 256)
    torch.set_float32_matmul_precision("highest")
    flops = {str(t)[6:]: matmul_flops(device, t, n) for t in (torch.float32, torch.bfloat16)}
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        flops["tf32"] = matmul_flops(device, torch.float32, n)
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))


def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def run_rung(
    name: str, config: GPTConfig, B: int, T: int, device: torch.device, skipped, seconds: float
) -> dict:
    """Measure one rung in this process: 20 steps after LOSS_STEPS, fewer (at least 5) where `seconds` are short."""
    step = make_step(config, rungs_up_to(name, skipped), B, T, device)
    for _ in range(LOSS_STEPS):
        start = time.perf_counter()
        loss = step().item()  # waits for the device
    repeats = int(seconds / (time.perf_counter() - start))
    timing = measure(step, device, repeats=max(5, min(20, repeats)), warmup=0)
    return {
        "name": name,
        "ms": 1e3 * timing.median,
        "q1_ms": 1e3 * timing.q1,
        "q3_ms": 1e3 * timing.q3,
        "steps": len(timing.times),
        "tokens_per_s": B * T / timing.median,
        "peak_mib": peak_mib(device),
        "loss": loss,
    }


SIZES = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}
TOLERANCE = 0.05  # nats between a rung's loss and the first rung's
CHILD = "import sys; from nanogpt.ladder import main; sys.exit(main(sys.argv[1:]))"


def in_process(arguments: list[str]) -> dict:
    """What `ladder --rung ...` prints, from a process of its own. Raises MemoryError where it had too little.

    RuntimeError with its last line for any other failure.
    """
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if (
        done.returncode in (-9, 137)
        or "out of memory" in done.stderr.lower()
        or "can't allocate" in done.stderr
    ):
        raise MemoryError(last)
    raise RuntimeError(last)


def device_name(device: torch.device) -> str:
    """The device as its maker calls it, without the machine's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if sys.platform == "darwin":
        sysctl = ["sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(sysctl, capture_output=True, text=True).stdout.strip()
    else:
        info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        names = [line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")]
        cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{cpu}, mps" if device.type == "mps" else f"{cpu}, threads: {torch.get_num_threads()}"


def climb(size: str, B: int, T: int, device: torch.device, skip=(), seconds: float = 360, say=print) -> dict:
    """Measure the whole ladder, each rung in a process of its own; the result is ready for json.dump.

    seconds: about how long the timed steps may take in all. A batch that does not fit is halved.
    """
    common = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", str(device)]
    roof = Roofline(**in_process([*common, "--rung", "roofline"]))
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    peak = 1e12 * sheet.half if sheet else max(roof.flops.values())
    skipped = dict.fromkeys(skip, "left out by --skip") | obstacles(device, roof)
    if missing := {"bf16", "compile"} & set(skipped):
        skipped["bf16 weights"] = f"it stands on {' and '.join(sorted(missing))}"
    result = describe(device, size, B, T) | {
        "peak_flops": peak,
        "peak_source": sheet.source if sheet else "measured matrix product",
        "roofline": asdict(roof),
        "rungs": [],
        "skipped": [],
    }
    say(f"{result['device']}: GPT-2 {size}, B={B}, T={T}")
    for name in RUNGS:
        if name in skipped:
            result["skipped"].append({"name": name, "reason": skipped[name]})
            say(f"{name:13} skipped: {skipped[name]}")
            continue
        options = ["--seconds", str(seconds / len(RUNGS)), "--skip", *skipped]
        try:
            rung = in_process([*common, "--rung", name, *options])
        except MemoryError:
            if B == 1:
                raise RuntimeError(
                    f"rung {name!r} runs out of memory at batch 1; give a shorter --seq"
                ) from None
            say(f"{name:13} ran out of memory at batch {B}: starting over with batch {B // 2}")
            return climb(size, B // 2, T, device, skip, seconds, say)
        except RuntimeError as error:
            skipped[name] = f"it failed: {error}"
            result["skipped"].append({"name": name, "reason": skipped[name]})
            say(f"{name:13} skipped: {skipped[name]}")
            continue
        config, first = SIZES[size], (result["rungs"] or [rung])[0]
        rung["mfu"] = mfu(step_flops(config, B, T), rung["ms"] / 1e3, peak)
        rung["predicted_ms"] = 1e3 * sum(predict(config, rungs_up_to(name, skipped), B, T, roof).values())
        rung["agrees"] = abs(rung["loss"] - first["loss"]) <= TOLERANCE
        result["rungs"].append(rung)
        say(row(result))
    return result


def describe(device: torch.device, size: str, B: int, T: int) -> dict:
    """Where, when and how a ladder was measured. load: processes that wanted a core in the last minute."""
    return {
        "device": device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "command": f"python -m nanogpt ladder --size {size} --batch {B} --seq {T}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "size": size,
        "batch": B,
        "seq": T,
    }


def row(result: dict) -> str:
    """The last rung as one line: time, spread, rate, MFU, memory, loss, and what it gained over the one before."""
    *before, rung = result["rungs"]
    text = f"{rung['name']:13} {rung['ms']:8.1f} ms ({rung['q1_ms']:.1f} to {rung['q3_ms']:.1f})"
    text += f" {rung['tokens_per_s']:9.0f} tok/s  MFU {rung['mfu']:5.1%}"
    text += f"  {rung['peak_mib']:6.0f} MiB" if rung["peak_mib"] else ""
    text += f"  loss {rung['loss']:.3f}" + (
        "" if rung["agrees"] else f" DISAGREES with {before[0]['loss']:.3f}"
    )
    if before:
        text += f"  {before[-1]['ms'] / rung['ms']:.2f}×, predicted {before[-1]['predicted_ms'] / rung['predicted_ms']:.2f}×"
    return text


def draw(result: dict):
    """The ladder as a staircase, measured and predicted: a matplotlib Figure."""
    from matplotlib.figure import Figure

    rungs = result["rungs"]
    names, ms = [r["name"] for r in rungs], [r["ms"] for r in rungs]
    edges = [i - 0.5 for i in range(len(rungs) + 1)]
    fig = Figure(figsize=(7, 3.6))
    ax = fig.subplots()
    ax.stairs(ms, edges, fill=True, color="C0", alpha=0.3)
    ax.stairs(ms, edges, baseline=None, color="C0", lw=2, label="measured, median and middle half")
    below, above = [r["ms"] - r["q1_ms"] for r in rungs], [r["q3_ms"] - r["ms"] for r in rungs]
    ax.errorbar(range(len(rungs)), ms, [below, above], fmt="none", color="C0", capsize=3)
    ax.stairs(
        [r["predicted_ms"] for r in rungs], edges, baseline=None, color="C1", ls="--", label="predicted"
    )
    for i, rung in enumerate(rungs):
        mark = "" if rung["agrees"] else "\nloss disagrees"
        ax.text(i, rung["q3_ms"], f"{ms[0] / rung['ms']:.2f}×{mark}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(rungs)), names, rotation=25, ha="right")
    ax.set(
        ylabel="ms a step",
        title=f"{result['device']}: {result['size']}, B={result['batch']}, T={result['seq']}",
    )
    ax.set_ylim(0, 1.15 * max(r["q3_ms"] for r in rungs))
    ax.legend(fontsize=8)
    fig.tight_layout()
    return fig


DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt ladder`: measure every rung on this machine; 0, 2 for bad input, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt ladder",
        description="Train the same GPT-2 a few steps in eight ways, each on top of the last, and time it.",
        epilog="example: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png",
    )
    parser.add_argument("--size", choices=SIZES, help="default: 124M on a GPU, small on a CPU")
    parser.add_argument("--batch", type=int, help="sequences a step; halved when memory runs out")
    parser.add_argument("--seq", type=int, help="tokens a sequence")
    parser.add_argument("--device", help="cuda, mps or cpu; default: the best that is there")
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out"
    )
    parser.add_argument(
        "--seconds", type=float, default=240, help="for the timed steps of all rungs together"
    )
    parser.add_argument("--out", type=Path, help="write the measurements there, as JSON")
    parser.add_argument("--plot", type=Path, help="write the staircase there, as PNG")
    parser.add_argument(
        "--rung", choices=["roofline", *RUNGS], help="measure this rung alone, print it as JSON"
    )
    args = parser.parse_args(argv)
    try:
        return run(args)
    except KeyboardInterrupt:
        print("ladder: stopped; nothing was written", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace) -> int:
    """What main does once the arguments are parsed."""
    device = pick_device(args.device)
    size, B, T = (
        default if given is None else given
        for given, default in zip((args.size, args.batch, args.seq), DEFAULTS[device.type])
    )
    if B < 1 or not 1 <= T <= SIZES[size].block_size:
        raise ValueError(
            f"--batch {B} --seq {T}: a batch is at least 1 and {size} takes 1 to {SIZES[size].block_size} tokens"
        )
    if not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds} must be at least 0")
    for path in filter(None, (args.out, args.plot)):
        if not path.resolve().parent.is_dir():
            raise OSError(f"{path.parent} is no folder; make it first")
    if args.rung:
        one = measure_roofline(device) if args.rung == "roofline" else None
        rung = asdict(one) if one else run_rung(args.rung, SIZES[size], B, T, device, args.skip, args.seconds)
        print(json.dumps(rung))
        return 0
    result = climb(size, B, T, device, args.skip, args.seconds, say=lambda text: print(text, flush=True))
    if args.out:
        write_whole(args.out, json.dumps(result, indent=1).encode() + b"\n")
    if args.plot:
        png = io.BytesIO()
        draw(result).savefig(png, format="png", dpi=120)
        write_whole(args.plot, png.getvalue())
    return 0


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename: the file is either the old one or the whole new one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
