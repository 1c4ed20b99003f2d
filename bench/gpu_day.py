"""All that only a GPU can show, in one command: its tests, the notebooks of part III, the ladder, peers, loss curves, kernels.

    python bench/gpu_day.py --out gpu-day                    every step that is not done yet
    python bench/gpu_day.py --out gpu-day --minutes 9        as many as fit into nine minutes; the same command goes on
    python bench/gpu_day.py --out gpu-day --only ladder 12   these steps, again

Runs from a bare checkout with torch and numpy; what else a step needs (pytest, transformers) it says when it is missing.
First come estimates. Then each step runs as a group of processes of its own, for eight minutes at most. What it prints is
shown as it comes, and kept in gpu-day/NAME.log; when it is done it writes gpu-day/NAME.json: that file makes the command
resumable. At the end stands a table, also for steps of earlier calls.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import gpu_peers
from gpu_notebook import found, run_notebook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
LIMIT = 480  # seconds a step
NOTEBOOKS = ("09", "09b", "10", "10b", "11", "12b", "13", "14", "14b")
CURVES = ("float32", "tf32", "bf16", "fp16")
CHOICES = [(32, 4), (64, 4), (64, 8), (128, 4), (128, 8)]  # block and warps of chapter 23d
# Those alone that have something for a GPU: others import Jupyter.
ROOMS = [path for room in ("core", "labs") for path in sorted((ROOT / "tests" / room).glob("test_*.py"))]
GPU_TESTS = [
    str(path.relative_to(ROOT)) for path in ROOMS if "pytest.mark.gpu" in path.read_text(encoding="utf-8")
]
STEPS = ("machine", "tests", "ladder", "peers", "curves", "kernels", *NOTEBOOKS)


class Missing(Exception):
    """What a step needs and this machine does not have: the step is left out, and the table says why."""


# One function a step; each returns what its JSON file holds, with a line for the table under "summary".


def machine(out: Path, smoke: bool) -> dict:
    """The device, its driver, its measured roofline beside the data sheet's peaks, and the kernels of attention."""
    import torch

    from nanogpt.device import pick_device
    from nanogpt.labs.kernels.flash import sdpa_backend
    from nanogpt.labs.ladder.ladder import measure_machine
    from nanogpt.labs.roofline.sheets import peak_of

    device = pick_device()
    about = measure_machine(str(device))
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    kernels = {}  # chapter 12b: an A100 and an H100 can have different ones
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        qkv = torch.zeros(3, 1, 12, 1024, 64, dtype=dtype, device=device)
        kernels[str(dtype)] = sdpa_backend(*qkv, is_causal=True)
    flops, bandwidth = about["roofline"]["flops"], about["roofline"]["bandwidth"]
    rates = ", ".join(f"{name} {rate / 1e12:.1f} TFLOP/s" for name, rate in flops.items())
    summary = f"{about['device']}: {rates}, {bandwidth / 1e9:.0f} GB/s"
    summary += "; attention: " + ", ".join(f"{dtype[6:]} {kernel}" for dtype, kernel in kernels.items())
    return about | {"attention": kernels, "sheet": asdict(sheet) if sheet else None, "summary": summary}


def tests(out: Path, smoke: bool) -> dict:
    """pytest -m gpu: what only a CUDA device can check, and the drills of chapters 20b to 21e where there are two."""
    for package in ("pytest", "pydantic", "IPython"):  # the last two: runs, and the interpreter of kernels
        needs(package)
    which = ["tests/core/test_ch00_device.py"] if smoke else ["-m", "gpu", *GPU_TESTS]
    code, printed = command("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *which)
    failed = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {"code": code, "failed": failed, "summary": last_line(printed).strip("= ")}


def ladder(out: Path, smoke: bool) -> dict:
    """The whole ladder, recorded and drawn."""
    sizes = ["--batch", str(card().batch), "--seconds", str(TIMED)]
    if smoke:
        sizes = ["--size", "small", "--batch", "1", "--seq", "32", "--seconds", "4"]
    plot = ["--plot", str(out / "ladder.png")] if found("matplotlib") else []
    code, printed = command("-m", "nanogpt", "ladder", "--out", str(out / "recorded.json"), *plot, *sizes)
    if code:
        raise RuntimeError(last_line(printed))
    rungs = json.loads((out / "recorded.json").read_text(encoding="utf-8"))["rungs"]
    best = min(rungs, key=lambda rung: rung["ms"])
    gain = rungs[0]["ms"] / best["ms"]
    summary = (
        f"{rungs[0]['ms']:.1f} → {best['ms']:.1f} ms ({best['name']}), {gain:.2f}×, MFU {best['mfu']:.1%}"
    )
    return {"printed": printed, "summary": summary}


def peers(out: Path, smoke: bool) -> dict:
    """Our first and top rung beside transformers' GPT-2, in turn, twice, each in a process of its own (gpu_peers.py)."""
    needs("transformers")
    B, T, steps = (1, 32, 1) if smoke else (card().batch, 1024, PEER_STEPS)
    found = gpu_peers.compare(gpu_peers.programs(card().half), [(B, T, steps)], card().half, {})[B]
    failed = {label: why for label, why in found.items() if isinstance(why, str)}
    medians = {label: statistics.median(ms) for label, ms in found.items() if label not in failed}
    ours = medians.get("ours, top rung", float("nan"))
    told = [f"{label} {ms:.1f} ms ({ms / ours:.2f}×)" for label, ms in medians.items()]
    told += [f"{label} FAILED: {why}" for label, why in failed.items()]
    named = [f"{label}: {why}" for label, why in failed.items()]
    return {"batch": B, "seq": T, "median_ms": medians, "failed": named, "summary": "; ".join(told)}


def curves(out: Path, smoke: bool) -> dict:
    """The same run in every precision that the device has: losses, and what fp16's scaler did."""
    from nanogpt.device import pick_device
    from nanogpt.precision import why_not

    device, steps = pick_device(), 3 if smoke else 300
    losses, reasons, scales = {}, {}, []
    for precision in CURVES:
        if reason := why_not(precision, device):
            reasons[precision] = reason
        else:
            losses[precision] = curve(precision, device, steps, scales)
    if found("matplotlib"):
        draw_curves(losses, scales, out / "curves.png")
    last = {precision: statistics.fmean(curve[-50:]) for precision, curve in losses.items()}
    summary = f"mean loss of the last steps of {steps}: " + ", ".join(f"{p} {x:.4f}" for p, x in last.items())
    apart = {
        name: max(abs(a - b) for a, b in zip(curve, losses["float32"])) for name, curve in losses.items()
    }
    return {
        "steps": steps,
        "largest_difference": apart,
        "losses": losses,
        "scales": scales,
        "left_out": reasons,
        "summary": summary,
    }


def curve(precision: str, device, steps: int, scales: list[float]) -> list[float]:
    """Losses of one run: the same model, the same data, one precision; fp16's scale at each step goes to `scales`."""
    import torch

    from nanogpt.labs.ladder.rungs import zipf_batches
    from nanogpt.model import GPT, GPTConfig
    from nanogpt.precision import LossScaler
    from nanogpt.training import train_step

    B, T, layers, width = (2, 32, 1, 64) if steps < 10 else (32, 256, 6, 384)
    config = GPTConfig(block_size=T, vocab_size=1024, n_layer=layers, n_head=width // 64, n_embd=width)
    model = GPT(config, torch.Generator().manual_seed(0)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = zipf_batches(config.vocab_size, B, T)
    scaler, losses = LossScaler() if precision == "fp16" else None, []
    for _ in range(steps):
        x, y = (ids.to(device) for ids in next(batches))
        losses.append(train_step(model, optimizer, [(x, y)], precision, scaler=scaler).item())
        if scaler:
            scales.append(scaler.scale)
    return losses


def draw_curves(losses: dict[str, list[float]], scales: list[float], path: Path) -> None:
    """Loss by step in each precision, its difference from float32's, and fp16's scale."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(9, 3), layout="constrained")
    left, middle, right = fig.subplots(1, 3)
    for precision, values in losses.items():
        left.plot(values, lw=1, label=precision)
        middle.plot([a - b for a, b in zip(values, losses["float32"])], lw=1)
    left.set(xlabel="step", ylabel="loss (nats)")
    middle.set(xlabel="step", ylabel="minus float32's (nats)")
    right.semilogy(scales, base=2)
    right.set(xlabel="step", ylabel="fp16's loss scale")
    left.legend()
    fig.savefig(path, dpi=100)


def kernels(out: Path, smoke: bool) -> dict:
    """Chapter 23c's attention beside PyTorch's, and each choice of block and warps beside chapter 23d's prediction."""
    needs("triton")
    import torch
    import torch.nn.functional as F
    import triton

    from nanogpt.device import pick_device
    from nanogpt.labs.kernels.flash_kernels import kernel_attention
    from nanogpt.labs.roofline.clock import measure

    device = pick_device()
    (B, H, T), dtype = ((1, 1, 40), torch.float32) if smoke else ((8, 12, 1024), torch.float16)
    q, k, v = torch.randn(3, B, H, T, 64, device=device, dtype=dtype)
    calls = {
        "ours": lambda: kernel_attention(q, k, v),
        "PyTorch's": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    repeats, warmup = (2, 1) if smoke else (20, 3)
    ms = {name: 1e3 * measure(call, device, repeats, warmup).median for name, call in calls.items()}
    result = {"shape": list(q.shape), "dtype": str(dtype)[6:], "triton": triton.__version__, "ms": ms}
    result |= {"choices": [], "predicted": []}
    summary = ", ".join(f"{name} {each:.2f} ms" for name, each in ms.items())
    if device.type == "cuda":
        result |= choices_measured(q, k, v)
        summary += (
            f"; fastest first: {result['choices']}; predicted: {result['predicted'] or 'no data sheet'}"
        )
    return result | {"summary": summary}


def choices_measured(q, k, v) -> dict:
    """Choices (block, warps) of the flash kernel with their ms, fastest first, and the order that chapter 23d predicts."""
    import torch
    import triton

    from nanogpt.labs.kernels.flash_kernels import flash_kernel
    from nanogpt.labs.kernels.targets import LIMITS, compile_for, ranked
    from nanogpt.labs.kernels.targets import needs as needed_by
    from nanogpt.labs.roofline.clock import measure
    from nanogpt.labs.roofline.sheets import peak_of

    (T, D), heads, device = q.shape[-2:], q.size(0) * q.size(1), q.device
    out, lse = torch.empty_like(q), torch.empty(q.shape[:-1], device=device)
    capability, sheet = 10 * torch.cuda.get_device_capability()[0], peak_of(torch.cuda.get_device_name())
    capability += torch.cuda.get_device_capability()[1]
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "out_ptr"), "*fp16")
    types |= {"lse_ptr": "*fp32", "T": "i32", "scale": "fp32"}
    ms, needed = {}, {}
    for block, warps in CHOICES:

        def launch(block=block, warps=warps):
            grid = triton.cdiv(T, block), heads
            flash_kernel[grid](q, k, v, out, lse, T, D**-0.5, D=D, BLOCK=block, num_warps=warps)

        try:
            ms[block, warps] = 1e3 * measure(launch, device).median
        except triton.runtime.errors.OutOfResources as error:  # this card has less shared memory
            print(f"block {block}, {warps} warps: {error}")
            continue
        compiled = compile_for(capability, flash_kernel, types, {"D": D, "BLOCK": block}, warps)
        needed[block, warps] = needed_by(compiled, warps)
    fastest = [(*choice, round(ms[choice], 3)) for choice in sorted(ms, key=ms.get)]
    known = sheet and capability in LIMITS
    return {"choices": fastest, "predicted": ranked(needed, capability, sheet, heads, T, D) if known else []}


def notebook(out: Path, chapter: str) -> dict:
    """A chapter at gpu scale, with its outputs kept."""
    path = next((ROOT / "notebooks").glob(f"{chapter}_*.ipynb"))
    return run_notebook(path, out / path.name, LIMIT)


# What fits this card, and how long it takes


@dataclass(frozen=True)
class Card:
    """A device as the steps see it: its name, the batch that fits, bf16 or fp16."""

    name: str
    batch: int
    half: str


def card() -> Card:
    """Of GPT-2 124M at 1,024 tokens: 16 sequences, halved until they fit memory and the ladder fits a step's time."""
    import torch

    from nanogpt.device import pick_device
    from nanogpt.labs.ladder.forecast import step_memory
    from nanogpt.model import GPTConfig
    from nanogpt.precision import why_not

    device, batch = pick_device(), 16
    half = "fp16" if why_not("bf16", device) else "bf16"
    if device.type != "cuda":
        return Card(device.type, 1, half)
    name = torch.cuda.get_device_name(device)
    room = 0.9 * torch.cuda.get_device_properties(device).total_memory

    def fits() -> bool:
        return (
            step_memory(GPTConfig(), {"float32"}, batch, 1024) < room and ladder_seconds(name, batch) < LIMIT
        )

    while batch > 1 and not fits():
        batch //= 2
    return Card(name, batch, half)


TIMED = 60  # seconds for the ladder's timed steps; ten pairs of each rung at least: quartiles within 2.2% on an H100
PEER_STEPS = 20
STARTING, BUILDING = 15, 5  # seconds for a process, for a rung's model: assumed
COMPILING = 35  # the first step of a rung took 1 to 34 s on an H100 with 16 cores


def rung_seconds(name: str, batch: int) -> dict[str, float]:
    """Seconds of a step on each rung by chapter 14's forecast; empty for a GPU without a data sheet."""
    from nanogpt.labs.ladder.forecast import REACHED, START, predict_ladder
    from nanogpt.labs.roofline.sheets import peak_of
    from nanogpt.model import GPTConfig

    sheet = peak_of(name)
    ladder = predict_ladder(sheet, GPTConfig(), batch, 1024, REACHED, START) if sheet else {}
    return {rung: sum(parts.values()) for rung, parts in ladder.items()}


def ladder_seconds(name: str, batch: int) -> float:
    """Of the whole ladder, by estimate: starts, compilations, the first steps, and pairs with the rung below."""
    from nanogpt.labs.ladder.rungs import RUNGS

    steps, compiled = rung_seconds(name, batch), list(RUNGS)[list(RUNGS).index("compile") :]
    total = STARTING + BUILDING * len(steps) + COMPILING * len(steps.keys() & set(compiled))
    for seconds in steps.values():
        total += seconds * (10 + 2 * min(20, max(10, TIMED / 2 / len(RUNGS) / seconds)))
    return total


def estimates(card: Card) -> dict[str, float]:
    """Seconds of the steps that can be told: from chapter 14's forecast, and the notebooks' own times on a CPU."""
    recorded = json.loads((ROOT / "data/measurements/chapter-times.json").read_text(encoding="utf-8"))
    told = {name: seconds for name, seconds in recorded["seconds"].items() if name in NOTEBOOKS}
    if steps := list(rung_seconds(card.name, card.batch).values()):
        told["ladder"] = ladder_seconds(card.name, card.batch)
        together = 2 * steps[0] + 4 * steps[-1]  # two programs in float32, four in 16 bits
        told["peers"] = 2 * (6 * STARTING + 2 * COMPILING + (gpu_peers.WARMUP + PEER_STEPS) * together)
    return told


# Running the steps


def needs(package: str) -> None:
    if not found(package):
        raise Missing(f"needs {package}: pip install {package}")


def environment(**more: str) -> dict[str, str]:
    """Python sees this checkout's packages, and those of a PYTHONPATH that was given."""
    ours = [str(ROOT / folder) for folder in (".", "tests", "bench")]
    path = os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | more


def last_line(printed: str) -> str:
    return (printed.strip().splitlines() or ["no message"])[-1][:200]


def command(*arguments: str) -> tuple[int, str]:
    """A fresh Python at the repository's root: its exit status and what it printed, which is shown as it comes."""
    lines = []
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        for line in child.stdout:
            lines.append(line)
            print(line, end="", flush=True)
    return child.returncode, "".join(lines)


def do(step: str, out: Path, smoke: bool) -> None:
    """Do one step in this process and write its JSON file."""
    start = time.time()
    try:
        result = notebook(out, step) if step in NOTEBOOKS else globals()[step](out, smoke)
    except Missing as error:
        result = {"summary": f"left out: {error}", "left_out": True}
    result |= {"step": step, "took_s": round(time.time() - start, 1)}
    aside = out / f".{step}.tmp"
    aside.write_text(json.dumps(result, indent=1), encoding="utf-8")
    aside.replace(out / f"{step}.json")


def run_step(step: str, args: argparse.Namespace, seconds: float) -> str:
    """Run one step, and stop it with all that it has started when its time is up; one line that says how it went."""
    call = [sys.executable, __file__, "--out", str(args.out), "--step", step]
    call += ["--smoke"] if args.smoke else []
    env, stopped = environment(NANOGPT_SCALE="ci" if args.smoke else "gpu"), threading.Event()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with (
        (args.out / f"{step}.log").open("w", encoding="utf-8") as log,
        subprocess.Popen(call, cwd=ROOT, env=env, start_new_session=True, **pipes) as child,
    ):

        def stop() -> None:
            stopped.set()
            stop_all(child)

        timer = threading.Timer(seconds, stop)
        timer.start()
        try:
            for line in child.stdout:
                log.write(line)
                print(f"{step:8} | {line}", end="", flush=True)
            child.wait()
        finally:
            timer.cancel()
            stop_all(child)
    if stopped.is_set():
        return f"{step}: stopped after {seconds:.0f} s; {step}.log has its lines, the same command tries it again"
    if child.returncode:
        said = (args.out / f"{step}.log").read_text(encoding="utf-8")
        return f"{step}: failed ({last_line(said)}); see {step}.log"
    return f"{step}: {json.loads((args.out / f'{step}.json').read_text(encoding='utf-8'))['summary']}"


def stop_all(child: subprocess.Popen) -> None:
    """Kill a step and what it has started; nothing where all have ended."""
    if not hasattr(os, "killpg"):  # Windows
        child.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu-day"), help="folder for JSON, pictures, notebooks (gpu-day)")
    add("--minutes", type=float, default=600, help="stop after so many; the same command goes on")
    add("--only", nargs="+", choices=STEPS, metavar="STEP", help=f"of {' '.join(STEPS)}; again if done")
    add("--smoke", action="store_true", help="tiny sizes on any device: does everything run?")
    add("--step", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """0 if every step is done, 1 if one failed or is left for the next call, 2 without a CUDA device, 130 on Ctrl-C."""
    args = parse(argv)
    args.out = args.out.resolve()
    if args.step:
        do(args.step, args.out, args.smoke)
        return 0
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    if not args.smoke and not there:
        for warning in told:  # such as a driver that is too old for this PyTorch
            print(f"gpu_day: {warning.message}", file=sys.stderr)
        print("gpu_day: no CUDA device here; --smoke tries every step at a tiny size", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    deadline, left, needed = time.time() + 60 * args.minutes, [], {}
    if not args.smoke:
        needed = estimates(device := card())
        print(f"{device.name}: batch {device.batch}, 16 bits as {device.half}. Estimates:")
        print(", ".join(f"{step} {seconds:.0f} s" for step, seconds in needed.items()), flush=True)
    try:
        for step in args.only or STEPS:
            if not args.only and (args.out / f"{step}.json").exists():
                continue
            seconds = min(LIMIT, deadline - time.time())
            if seconds < min(LIMIT, max(60, needed.get(step, 0))):
                left.append(step)
                continue
            print(run_step(step, args, seconds), flush=True)
    except KeyboardInterrupt:
        print("\ngpu_day: stopped; finished steps are kept, the same command goes on", file=sys.stderr)
        return 130
    return summary(args.out, left)


def summary(out: Path, left: list[str]) -> int:
    """Print every step's line, and write them to summary.txt."""
    lines, missing = [], False
    for step in STEPS:
        path = out / f"{step}.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            bad = result.get("failed") or result.get("code")
            missing = missing or bool(bad)
            lines.append(
                f"{step:8} {result['took_s']:6.0f} s  {'FAILED  ' if bad else ''}{result['summary']}"
            )
        else:
            missing = True
            lines.append(
                f"{step:8} {'':6}    not done" + (": no time left, call again" if step in left else "")
            )
    text = "\n".join(lines)
    (out / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}")
    return int(missing)


if __name__ == "__main__":
    raise SystemExit(main())
