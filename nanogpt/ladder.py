"""The ladder measured: each rung in a process of its own, and the command `ladder`.

Exported from notebooks/14_ladder.ipynb.
"""

import argparse
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from nanogpt.bench import measure, mfu, step_flops
from nanogpt.device import pick_device
from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig
from nanogpt.roofline import Roofline, fault_seconds, measure_roofline, peak_of
from nanogpt.rungs import RUNGS, make_step, obstacles, predict, rungs_up_to


def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


LOSS_STEPS = 6  # they warm up as well: the loss that is compared is that of the sixth step


def first_steps(model: GPT, step: Callable[[], Tensor]) -> tuple[dict, float]:
    """Take LOSS_STEPS steps: what they tell of a rung, and the seconds of the last one."""
    seconds, grads = [], []
    for _ in range(LOSS_STEPS):
        start = time.perf_counter()
        loss = step().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        grads.append(model.transformer.h[0].attn.c_attn.weight.grad.float().norm().item())
    return {"first_step_s": seconds[0], "loss": loss, "grad_norm": grads[0]}, seconds[-1]


def run_rung(
    name: str, config: GPTConfig, B: int, T: int, device: torch.device, skipped, seconds: float
) -> dict:
    """Measure one rung in this process: 20 steps after first_steps; fewer, on a CPU, where `seconds` are short."""
    model, step = make_step(config, rungs_up_to(name, skipped), B, T, device)
    told, last = first_steps(model, step)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # compiling needs memory too
    affordable = 20 if device.type == "cuda" else int(seconds / last)
    timing = measure(step, device, repeats=max(5, min(20, affordable)), warmup=0)
    return told | {
        "name": name,
        "ms": 1e3 * timing.median,
        "q1_ms": 1e3 * timing.q1,
        "q3_ms": 1e3 * timing.q3,
        "steps": len(timing.times),
        "tokens_per_s": B * T / timing.median,
        "peak_mib": peak_mib(device),
    }


KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}  # glibc: keep what is freed
NO_MEMORY = "out of memory", "can't allocate", "not enough memory", "alloc_failed", "bad_alloc", "memoryerror"
CHILD = "import sys; from nanogpt.ladder import main; sys.exit(main(sys.argv[1:]))"


def in_process(arguments: list[str], keep: bool = False) -> dict:
    """What `ladder --rung ...` prints, from a process of its own that keeps its memory if asked to.

    Raises MemoryError where it had too little, RuntimeError with what it said for any other failure.
    """
    package = str(Path(__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    env |= KEEP if keep else {}
    call = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    reason = next((line for line in lines if line.startswith("ladder: ")), lines[-1]).removeprefix("ladder: ")
    if done.returncode in (-9, 137) or any(sign in done.stderr.lower() for sign in NO_MEMORY):
        raise MemoryError(reason)
    raise RuntimeError(reason)


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


def describe(device: torch.device) -> dict:
    """Where and when something was measured. load: processes that wanted a core in the last minute."""
    return {
        "device": device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


SIZES = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}
TOLERANCE = {"loss": 0.05, "grad_norm": 0.05}  # nats; share of the first rung's


def measure_machine(device: torch.device) -> dict:
    """`describe`, with the measured limits on which predictions stand and the peak that MFU divides by."""
    about = describe(device)  # first: the load should not count our own work
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    limits = in_process(["--rung", "roofline", "--device", str(device)])
    return {
        **about,
        "peak_flops": 1e12 * sheet.half if sheet else max(limits["roofline"]["flops"].values()),
        "peak_source": sheet.source if sheet else "measured matrix product",
        **limits,
    }


def judge(rung: dict, result: dict, skipped) -> dict:
    """The rung with its MFU, its predicted time, and whether it agrees with the first rung."""
    config, B, T = SIZES[result["size"]], result["batch"], result["seq"]
    parts = predict(
        config, rungs_up_to(rung["name"], skipped), B, T, Roofline(**result["roofline"]), result["fault_s"]
    )
    first = (result["rungs"] or [rung])[0]
    return rung | {
        "mfu": mfu(step_flops(config, B, T), rung["ms"] / 1e3, result["peak_flops"]),
        "predicted_ms": 1e3 * sum(parts.values()),
        "agrees": abs(rung["loss"] - first["loss"]) <= TOLERANCE["loss"]
        and abs(rung["grad_norm"] / first["grad_norm"] - 1) <= TOLERANCE["grad_norm"],
    }


def row(result: dict) -> str:
    """The last rung as one line: time, spread, rate, MFU, memory, loss, and what it gained over the one before."""
    *before, rung = result["rungs"]
    text = f"{rung['name']:13} {rung['ms']:8.1f} ms ({rung['q1_ms']:.1f} to {rung['q3_ms']:.1f})"
    text += f" {rung['tokens_per_s']:9.0f} tok/s  MFU {rung['mfu']:5.1%}"
    text += f"  {rung['peak_mib']:6.0f} MiB" if rung["peak_mib"] else ""
    text += f"  loss {rung['loss']:.3f}"
    if not rung["agrees"]:
        text += f" DISAGREES with {before[0]['loss']:.3f}, gradient {rung['grad_norm'] / before[0]['grad_norm']:.2f}×"
    if before:
        last = before[-1]
        text += (
            f"  {last['ms'] / rung['ms']:.2f}×, predicted {last['predicted_ms'] / rung['predicted_ms']:.2f}×"
        )
    return text


def measure_rungs(
    machine: dict, size: str, B: int, T: int, device: torch.device, skip, seconds: float, say
) -> dict:
    """Measure all rungs at one batch size; what `climb` returns. Raises MemoryError where it does not fit."""
    common = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", str(device)]
    result = machine | {"size": size, "batch": B, "seq": T, "rungs": [], "skipped": []}
    result["command"] = shlex.join(
        ["python", "-m", "nanogpt", "ladder", *common, *(["--skip", *skip] if skip else [])]
    )
    skipped = obstacles(device, Roofline(**machine["roofline"]), skip)
    for name in RUNGS:
        if name not in skipped:
            options = ["--rung", name, "--seconds", str(seconds / len(RUNGS)), "--skip", *skipped]
            try:
                rung = in_process(common + options, keep="kept memory" in rungs_up_to(name, skipped))
            except RuntimeError as error:
                skipped[name] = f"it failed: {error}"
        if name in skipped:
            result["skipped"].append({"name": name, "reason": skipped[name]})
            say(f"{name:13} skipped: {skipped[name]}")
        else:
            result["rungs"].append(judge(rung, result, skipped))
            say(row(result))
    return result


def climb(size: str, B: int, T: int, device: torch.device, skip=(), seconds: float = 240, say=print) -> dict:
    """Measure the whole ladder, each rung in a process of its own; the result is ready for json.dump.

    seconds: about how long the timed steps may take in all. A batch that does not fit is halved.
    """
    machine, asked = measure_machine(device), B
    say(f"{machine['device']}: GPT-2 {size}, T={T}; a line for each rung, some minutes in all")
    while True:
        say(f"batch {B}")
        try:
            return measure_rungs(machine, size, B, T, device, skip, seconds, say) | {"asked_batch": asked}
        except MemoryError as error:
            if B == 1:
                raise RuntimeError(f"batch 1 runs out of memory ({error}); give a shorter --seq") from error
            say(f"out of memory at batch {B}: starting over with half of it")
            B //= 2


def draw(result: dict):
    """The ladder as a staircase, measured and predicted: a matplotlib Figure."""
    from matplotlib.figure import Figure

    rungs = result["rungs"]
    names, ms, predicted, q1, q3 = (
        [r[key] for r in rungs] for key in ("name", "ms", "predicted_ms", "q1_ms", "q3_ms")
    )
    edges = [i - 0.5 for i in range(len(rungs) + 1)]
    fig = Figure(figsize=(7, 3.6))
    ax = fig.subplots()
    ax.stairs(ms, edges, fill=True, color="C0", alpha=0.3)
    ax.stairs(ms, edges, baseline=None, color="C0", lw=2, label="measured, median and middle half")
    spread = [m - a for m, a in zip(ms, q1)], [b - m for m, b in zip(ms, q3)]
    ax.errorbar(range(len(rungs)), ms, spread, fmt="none", color="C0", capsize=3)
    ax.stairs(predicted, edges, baseline=None, color="C1", ls="--", label="predicted")
    for i, rung in enumerate(rungs):
        mark = "" if rung["agrees"] else "\nloss disagrees"
        ax.text(i, q3[i], f"{ms[0] / ms[i]:.2f}×{mark}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(rungs)), names, rotation=25, ha="right")
    ax.set(ylabel="ms a step", ylim=(0, 1.15 * max(q3 + predicted)))
    ax.set_title(f"{result['device']}: {result['size']}, B={result['batch']}, T={result['seq']}")
    ax.legend(fontsize=8)
    fig.tight_layout()
    return fig


DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLE = "python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt ladder",
        description="Train the same GPT-2 a few steps in nine ways, each on top of the last, and time it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(
            ["rungs:", *(f"  {n:13} {what}" for n, what in RUNGS.items()), "", f"example: {EXAMPLE}"]
        ),
    )
    add = parser.add_argument
    add("--size", choices=SIZES, help="default: 124M on a GPU, small on a CPU")
    add("--batch", type=int, help="sequences a step; halved when memory runs out")
    add("--seq", type=int, help="tokens a sequence")
    add("--device", help="cuda, mps or cpu; default: the best that is there")
    add("--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out")
    add("--seconds", type=float, default=240, help="for the timed steps of all rungs together")
    add("--out", type=Path, help="write the measurements there, as JSON")
    add("--plot", type=Path, help="write the staircase there, as PNG")
    add("--rung", choices=["roofline", *RUNGS], metavar="NAME", help="measure it alone, print JSON")
    return parser.parse_args(argv)


def checked(args: argparse.Namespace, device: torch.device) -> tuple[str, int, int]:
    """Size, B and T, with this device's defaults where nothing is given. Raises ValueError or OSError."""
    given = args.size, args.batch, args.seq
    size, B, T = (b if a is None else a for a, b in zip(given, DEFAULTS[device.type]))
    longest = SIZES[size].block_size
    if B < 1 or not 1 <= T <= longest:
        raise ValueError(
            f"--batch {B} --seq {T}: a batch is at least 1, and {size} takes 1 to {longest} tokens"
        )
    if not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds} must be at least 0")
    for path in filter(None, (args.out, args.plot)):
        if not path.resolve().parent.is_dir():
            raise OSError(f"{path.parent} is no folder; make it first")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        raise ValueError("--plot needs matplotlib: pip install matplotlib, or give --out alone")
    return size, B, T


def run(args: argparse.Namespace) -> None:
    """What main does once the arguments are parsed."""
    device = pick_device(args.device)
    size, B, T = checked(args, device)
    if args.rung == "roofline":
        fault = fault_seconds() if device.type == "cpu" else 0.0
        print(json.dumps({"roofline": asdict(measure_roofline(device)), "fault_s": fault}))
    elif args.rung:
        print(json.dumps(run_rung(args.rung, SIZES[size], B, T, device, args.skip, args.seconds)))
    else:
        result = climb(size, B, T, device, args.skip, args.seconds, lambda text: print(text, flush=True))
        if args.out:
            save_json(args.out, result)
        if args.plot:
            with atomically(args.plot) as file:
                draw(result).savefig(file, format="png", dpi=120)


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt ladder`: measure every rung on this machine; 0, 2 for bad input, 130 on Ctrl-C."""
    args = arguments(argv)
    try:
        run(args)
    except KeyboardInterrupt:
        print("ladder: stopped; nothing was written", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2
    return 0
