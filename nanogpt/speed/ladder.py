"""The ladder measured, up and down again, and judged. The command `ladder`.

Exported from notebooks/14_ladder.ipynb.
"""

import argparse
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

import torch

from nanogpt.device import pick_device
from nanogpt.gpt.model import GPTConfig
from nanogpt.speed.forecast import predict, say_predicted
from nanogpt.speed.roofline import Roofline, fault_seconds, measure_roofline, peak_of
from nanogpt.speed.rungs import RUNGS, in_process, obstacles, run_rung, rungs_up_to, take_along
from nanogpt.speed.work import mfu, step_flops
from nanogpt.text.files import atomically, save_json

MODELS = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}
MEASURED = "measured matrix product"  # where a peak is from, if not from a data sheet
TOLERANCE = {"loss": 0.05, "grad_norm": 0.05}  # nats; share of the first rung's


def judge(passes: list[dict], result: dict, roof: Roofline, first: dict, skipped) -> dict:
    """A rung from its two passes: times, rate, MFU, prediction, whether it agrees with the first rung; see `flags`."""
    config, B, T, rung = MODELS[result["size"]], result["batch"], result["seq"], dict(passes[0])
    times = [ms for one in passes for ms in one["times_ms"]]
    parts = predict(config, rungs_up_to(rung["name"], skipped), B, T, roof, result["fault_s"])
    apart = {"loss": rung["loss"] - first["loss"], "grad_norm": rung["grad_norm"] / first["grad_norm"] - 1}
    rung["q1_ms"], rung["ms"], rung["q3_ms"] = quantiles(times, n=4, method="inclusive")
    rung["passes_ms"], rung["steps"] = [median(one["times_ms"]) for one in passes], len(times)
    rung["tokens_per_s"], rung["predicted_ms"] = 1e3 * B * T / rung["ms"], 1e3 * sum(parts.values())
    rung["mfu"] = mfu(step_flops(config, B, T), rung["ms"] / 1e3, result["peak_flops"])
    rung["agrees"] = all(abs(apart[what]) <= limit for what, limit in TOLERANCE.items())
    rung["flags"] = flags(rung) + ([] if len(passes) == 2 else ["it failed on the way down"])
    del rung["times_ms"]
    return rung


def flags(rung: dict) -> list[str]:
    """What cannot be, or cannot be told, of a measured rung; none where all is well."""
    told, spread = [], rung["q3_ms"] / rung["q1_ms"]
    if rung["mfu"] > 1:
        told.append(f"MFU {rung['mfu']:.0%}: the peak or the time is wrong")
    if rung["ms"] < rung["predicted_ms"]:
        told.append(f"faster than its roofline of {rung['predicted_ms']:.1f} ms")
    return [*told, f"unsteady: its middle half spans {spread:.2f}×"] if spread > 1.3 else told


def gain(before: dict, rung: dict) -> str:
    """What a rung gained over another, if their middle halves lie apart, and what it should have."""
    apart = rung["q3_ms"] < before["q1_ms"] or before["q3_ms"] < rung["q1_ms"]
    measured = f"{before['ms'] / rung['ms']:.2f}×" if apart else "no measurable difference"
    return f"{measured}, predicted {before['predicted_ms'] / rung['predicted_ms']:.2f}×"


def row(rung: dict, first: dict, before: dict | None) -> str:
    """A rung as one line: time, spread, rate, MFU, memory, loss, gain over the one before; its flags below."""
    text = f"{rung['name']:13} {rung['ms']:8.1f} ms ({rung['q1_ms']:.1f} to {rung['q3_ms']:.1f})"
    text += f" {rung['tokens_per_s']:9.0f} tok/s  MFU {rung['mfu']:5.1%}"
    text += f"  {rung['peak_mib']:6.0f} MiB" if rung["peak_mib"] else ""
    text += f"  loss {rung['loss']:.3f}"
    if not rung["agrees"]:
        text += f" DISAGREES with {first['loss']:.3f}, gradient {rung['grad_norm'] / first['grad_norm']:.2f}×"
    text += f"  {gain(before, rung)}" if before else ""
    return "".join([text, *(f"\n{'':14}! {flag}" for flag in rung.get("flags", []))])


def measure_passes(size: str, B: int, T: int, device: str, skipped: dict, seconds: float, say) -> dict:
    """Up and down the ladder: {rung: what run_rung told, twice}. Adds to `skipped` what fails on the way up."""
    told, each = {}, seconds / 2 / len(RUNGS)
    for name in (*RUNGS, *reversed(RUNGS)):
        if name in skipped:
            continue
        try:
            rung = in_process(run_rung, name, MODELS[size], B, T, device, list(skipped), each)
            told.setdefault(name, []).append(rung)
            say(f"{name:13} {median(rung['times_ms']):8.1f} ms")
        except RuntimeError as error:
            say(f"{name:13} failed: {error}")
            if name not in told:
                skipped[name] = f"it failed: {error}"
                take_along(skipped)
    if not told:
        raise RuntimeError(f"no rung is left; {'; '.join(f'{name}: {why}' for name, why in skipped.items())}")
    return told


def limits(device: str) -> dict:
    """The device's roofline, and on a CPU the seconds of a page fault."""
    place = torch.device(device)
    fault = fault_seconds() if place.type == "cpu" else 0.0
    return {"roofline": asdict(measure_roofline(place)), "fault_s": fault}


def measure_rungs(machine: dict, size: str, B: int, T: int, device: str, skip, seconds: float, say) -> dict:
    """Measure all rungs at one batch size; what `climb` returns. Raises MemoryError where it does not fit."""
    start = machine["roofline"]
    skipped = obstacles(torch.device(device), Roofline(**start), skip)
    told = measure_passes(size, B, T, device, skipped, seconds, say)
    end = in_process(limits, device)["roofline"]
    rates = {name: (rate, end["flops"][name]) for name, rate in start["flops"].items()}
    best = {name: max(pair) for name, pair in rates.items()}
    roof = Roofline(start["device"], best, max(start["bandwidth"], end["bandwidth"]))
    result = machine | {"size": size, "batch": B, "seq": T, "roofline_after": end}
    if result["peak_source"] == MEASURED:
        result["peak_flops"] = max(best.values())
    first = next(iter(told.values()))[0]
    result["rungs"] = [judge(passes, result, roof, first, skipped) for passes in told.values()]
    result["skipped"] = [{"name": name, "reason": skipped[name]} for name in RUNGS if name in skipped]
    moved = {name: max(pair) / min(pair) for name, pair in rates.items()}
    result["flags"] = [f"{name}: {m:.2f}× from start to end" for name, m in moved.items() if m > 1.15]
    return result


def climb(size: str, B: int, T: int, device: str, skip=(), seconds: float = 240, say=print) -> dict:
    """Measure the whole ladder, in steps of about `seconds` in all, with half the batch where memory runs out."""
    machine, result, asked = measure_machine(device), None, B
    say(f"{machine['device']}: GPT-2 {size}, T={T}, up the ladder and down again; some minutes in all")
    while not result:
        say(f"batch {B}")
        try:
            result = measure_rungs(machine, size, B, T, device, skip, seconds, say) | {"asked_batch": asked}
        except MemoryError as error:
            if B == 1:
                raise RuntimeError(f"batch 1 runs out of memory ({error}); give a shorter --seq") from error
            say(f"out of memory at batch {B}: starting over with half of it")
            B //= 2
    call = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", device]
    call += ["--skip", *skip] if skip else []
    lines = [row(r, result["rungs"][0], b) for r, b in zip(result["rungs"], [None, *result["rungs"]])]
    lines += [f"without {rung['name']}: {rung['reason']}" for rung in result["skipped"]]
    say("\n".join(lines + [f"! the machine was not the same throughout: {flag}" for flag in result["flags"]]))
    return result | {"command": shlex.join(["python", "-m", "nanogpt", "ladder", *call])}


def device_name(device: torch.device) -> str:
    """The device as its maker calls it, without the machine's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    sysctl, info = ["sysctl", "machdep.cpu.brand_string"], Path("/proc/cpuinfo")
    if sys.platform == "darwin":
        text = subprocess.run(sysctl, capture_output=True, text=True).stdout
    else:
        text = info.read_text() if info.exists() else ""
    found = re.search(r"^(?:model name|machdep.cpu.brand_string)\s*: (.+)", text, re.MULTILINE)
    cpu = found[1] if found else platform.processor() or platform.machine()
    return f"{cpu}, mps" if device.type == "mps" else f"{cpu}, threads: {torch.get_num_threads()}"


def measure_machine(device: str) -> dict:
    """Where and when: names, versions, date, load, and the measured limits on which predictions and MFU stand."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    about = {"device": device_name(torch.device(device)), "versions": versions}
    about |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "load": None}
    about["load"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before our own work counts
    measured = in_process(limits, device)
    sheet = peak_of(about["device"]) if device.startswith("cuda") else None
    peak = 1e12 * sheet.half if sheet else max(measured["roofline"]["flops"].values())
    return about | measured | {"peak_flops": peak, "peak_source": sheet.source if sheet else MEASURED}


def staircase(result: dict):
    """The ladder as a staircase, measured and predicted: a matplotlib Figure."""
    from matplotlib.figure import Figure

    rungs, fig = result["rungs"], Figure(figsize=(7, 3.6), layout="tight")
    ms, low, high, predicted = ([r[key] for r in rungs] for key in ("ms", "q1_ms", "q3_ms", "predicted_ms"))
    ax, at, edges = fig.subplots(), range(len(rungs)), [i - 0.5 for i in range(len(rungs) + 1)]
    ax.stairs(ms, edges, fill=True, color="C0", alpha=0.3)
    spread = [m - a for m, a in zip(ms, low)], [b - m for m, b in zip(ms, high)]
    ax.errorbar(at, ms, spread, fmt="o", color="C0", capsize=3, label="measured, median and middle half")
    ax.stairs(predicted, edges, baseline=None, color="C1", ls="--", label="predicted")
    for i, rung in enumerate(rungs):
        mark = ("" if rung["agrees"] else "\nloss disagrees") + ("\n!" if rung.get("flags") else "")
        ax.text(i, high[i], f"{ms[0] / ms[i]:.2f}×{mark}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(at, [rung["name"] for rung in rungs], rotation=25, ha="right")
    ax.set_title(f"{result['device']}: {result['size']}, B={result['batch']}, T={result['seq']}")
    ax.set(ylabel="ms a step", ylim=(0, 1.2 * max(high + predicted)))
    ax.legend(fontsize=8)
    return fig


DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLES = """
examples: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png
          python -m nanogpt ladder --predict A100-80GB --batch 16 --seq 1024"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt ladder`."""
    parser = argparse.ArgumentParser(
        description="Train the same GPT-2 a few steps in many ways, each on top of the last, and time it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["rungs:", *(f"  {name:13} {what}" for name, what in RUNGS.items()), EXAMPLES]),
    )
    add = parser.add_argument
    add("--size", choices=MODELS, help="default: 124M on a GPU, small on a CPU")
    add("--batch", type=int, help="sequences a step; halved when memory runs out")
    add("--seq", type=int, help="tokens a sequence")
    add("--device", help="cuda, mps or cpu; default: the best that is there")
    add("--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out")
    add("--seconds", type=float, default=240, help="for the timed steps of all rungs together")
    add("--out", type=Path, help="write the measurements there, as JSON")
    add("--plot", type=Path, help="write the staircase there, as PNG")
    add("--predict", metavar="GPU", help="measure nothing: what that GPU's data sheet allows")
    return parser


def checked_sizes(args: argparse.Namespace, kind: str) -> tuple[str, int, int]:
    """Size, B and T, with the defaults of this kind of device where nothing is given. Raises ValueError or OSError."""
    given = args.size, args.batch, args.seq
    size, B, T = (b if a is None else a for a, b in zip(given, DEFAULTS[kind]))
    longest = MODELS[size].block_size
    if B < 1 or not 1 <= T <= longest:
        raise ValueError(f"--batch {B} --seq {T}: {size} takes 1 or more sequences of 1 to {longest} tokens")
    if not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds} must be at least 0")
    for path in filter(None, (args.out, args.plot)):
        if path.is_dir() or not os.access(path.resolve().parent, os.W_OK):
            raise OSError(f"{path} cannot be written; give a file in a folder that exists and is yours")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        raise ValueError("--plot needs matplotlib: pip install matplotlib, or give --out alone")
    return size, B, T


def run(args: argparse.Namespace) -> None:
    """Predict, or climb and write what was asked for, each file whole or not at all."""
    if args.predict:
        size, B, T = checked_sizes(args, "cuda")
        return say_predicted(args.predict, MODELS[size], B, T)
    device = pick_device(args.device)
    size, B, T = checked_sizes(args, device.type)
    result = climb(size, B, T, str(device), args.skip, args.seconds, lambda text: print(text, flush=True))
    if args.out:
        save_json(args.out, result)
    if args.plot:
        with atomically(args.plot) as file:
            staircase(result).savefig(file, format="png", dpi=120)
