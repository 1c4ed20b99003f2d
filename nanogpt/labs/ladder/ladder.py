"""The ladder climbed and drawn, and the command `ladder`.

Exported from notebooks/14b_climb.ipynb.
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
from itertools import accumulate
from operator import mul
from pathlib import Path

import torch

from nanogpt.device import pick_device
from nanogpt.files import atomically, save_json
from nanogpt.labs.ladder.climb import disturbed, forecast, measure_rungs, reached_roofline, start_seconds
from nanogpt.labs.ladder.forecast import fitting_batch, say_predicted
from nanogpt.labs.ladder.rungs import RUNGS, obstacles
from nanogpt.labs.roofline import clock, sheets
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import fault_seconds
from nanogpt.model import GPTConfig

MODELS = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}


def gains_so_far(rungs: list[dict]) -> list[float]:
    """How many times as fast each rung is as the first one: the product of the gains up to it, which begins with 1."""
    gains = (rung["gain"]["ratio"] for rung in rungs[1:])
    return list(accumulate(gains, mul, initial=1.0))


def staircase(result: dict):
    """The ladder as a staircase, from the gains of pairs, and the forecast: a matplotlib Figure."""
    from matplotlib.figure import Figure

    rungs, fig = result["rungs"], Figure(figsize=(7, 3.6), layout="tight")
    first, totals, predicted = rungs[0], gains_so_far(rungs), [rung["predicted_ms"] for rung in rungs]
    ms = [first["ms"] / total for total in totals]
    low, high = [first["q1_ms"]], [first["q3_ms"]]
    for below, rung in zip(ms, rungs[1:]):  # the interval of a gain, above the stair below
        low.append(below / rung["gain"]["high"])
        high.append(below / rung["gain"]["low"])
    ax, at, edges = fig.subplots(), range(len(rungs)), [i - 0.5 for i in range(len(rungs) + 1)]
    ax.bar(at, ms, 1, color=["0.5" if disturbed(rung) else "C0" for rung in rungs], alpha=0.3)
    spread = [m - a for m, a in zip(ms, low)], [b - m for m, b in zip(ms, high)]
    ax.errorbar(at, ms, spread, fmt="o", color="C0", capsize=3, label="measured in pairs, with the interval")
    ax.stairs(predicted, edges, baseline=None, color="C1", ls="--", label="predicted")
    doubtful = False
    for i, rung in enumerate(rungs):
        doubtful = doubtful or disturbed(rung)  # so are all stairs that rest on this one
        says = f"≈ {totals[i]:.1f}×" if doubtful else f"{totals[i]:.2f}×"
        says = "disturbed" if disturbed(rung) else says
        mark = ("" if rung["agrees"] else "\nloss disagrees") + ("\n!" if rung.get("flags") else "")
        ax.text(i, high[i], f"{says}{mark}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(at, [rung["name"] for rung in rungs], rotation=25, ha="right")
    ax.set_title(f"{result['device']}: {result['size']}, B={result['batch']}, T={result['seq']}")
    ax.set(ylabel="ms a step", ylim=(0, 1.2 * max(high + predicted)))
    ax.legend(fontsize=8)
    return fig


def device_name(device: torch.device) -> str:
    """The device as its maker calls it, without the machine's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info, command = Path("/proc/cpuinfo"), ["sysctl", "machdep.cpu.brand_string"]
    text = info.read_text() if info.exists() else ""
    if sys.platform == "darwin":
        text = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"^(?:model name|machdep.cpu.brand_string)\s*: (.+)", text, re.MULTILINE)
    cpu = found[1] if found else platform.processor() or platform.machine()
    return f"{cpu}, mps" if device.type == "mps" else f"{cpu}, threads: {torch.get_num_threads()}"


MEASURED = "measured matrix product"  # where a peak is from, if not from a data sheet


def measure_machine(device: str) -> dict:
    """Where and when: name, versions, date, load; and the limits on which forecast and MFU depend."""
    place, about = torch.device(device), {"date": time.strftime("%Y-%m-%d", time.gmtime())}
    about["load"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before our own work counts
    about["versions"] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    about["device"], about["roofline"] = device_name(place), asdict(clock.measure_roofline(place))
    about["fault_s"] = fault_seconds() if place.type == "cpu" else 0.0
    about["start_s"] = start_seconds(place)
    sheet = sheets.peak_of(about["device"]) if place.type == "cuda" else None
    about["peak_flops"] = 1e12 * sheet.half if sheet else max(about["roofline"]["flops"].values())
    return about | {"peak_source": sheet.source if sheet else MEASURED}


def together(rungs: list[dict]) -> float:
    """How many times as fast all rungs are together: the product of their gains."""
    return gains_so_far(rungs)[-1]


DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLES = """
examples: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png
          python -m nanogpt ladder --predict A100-80GB --batch 16 --seq 1024"""


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt ladder`."""
    parser = argparse.ArgumentParser(
        description="Predict, then measure: the same GPT-2 trained a few steps in many ways, each on top of the last.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["rungs:", *(f"  {name:13} {what}" for name, what in RUNGS.items()), EXAMPLES]),
    )
    add = parser.add_argument
    add("--size", choices=MODELS, help="default: 124M on a GPU, small on a CPU")
    add("--batch", type=int, help="sequences a step; halved when memory runs out")
    add("--seq", type=int, help="tokens a sequence")
    add("--device", help="cuda, mps or cpu; default: the best that is there")
    add("--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out")
    add(
        "--seconds", type=float, default=240, help="for the timed steps of all rungs; at least ten pairs each"
    )
    add("--out", type=Path, help="write the measurements there, as JSON")
    add("--plot", type=Path, help="write the staircase there, as PNG")
    add("--predict", metavar="GPU", help="measure nothing: the forecast for that GPU from its data sheet")
    return parser


def checked_sizes(args: argparse.Namespace, kind: str) -> tuple[str, int, int]:
    """Size, B and T, with the defaults of this kind of device where nothing is given.

    ValueError: a size that the model lacks, seconds that are not at least 0, a plot without matplotlib. OSError: an out
    or plot that is a folder, or whose folder is not there or cannot be written.
    """
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


def climb_once(machine: dict, size: str, B: int, T: int, device: torch.device, skipped, seconds, say) -> dict:
    """The forecast and the climb with one batch. MemoryError where it does not fit."""
    config, roof = MODELS[size], Roofline(**machine["roofline"])
    if set(RUNGS) <= set(skipped):
        raise ValueError("no rung is left; take some out of --skip")
    machine = machine | {"reached": asdict(reached_roofline(config, B, T, roof, device, skipped))}
    say(f"{machine['device']}: GPT-2 {size}, B={B}, T={T}. The forecast:")
    for name, told in forecast(machine, config, B, T, skipped).items():
        say(f"{name:13} {told['predicted_ms']:8.1f} ms  {told['predicted_mib']:7.0f} MiB")
    say("Measured, each rung in turns with the one below:")
    rungs = measure_rungs(machine, config, B, T, device, skipped, seconds, say)
    if not rungs:
        raise RuntimeError(f"no rung is left: {skipped}")
    flags = sorted({flag for rung in rungs for flag in rung["flags"]})
    return machine | {"size": size, "batch": B, "seq": T, "rungs": rungs, "flags": flags}


def climb(size: str, B: int, T: int, device: str, skip=(), seconds: float = 240, say=print) -> dict:
    """Forecast, then measure the whole ladder; with half the batch where memory runs out.

    The result of climb_once and "asked_batch", "skipped" ([{"name", "reason"}, …] in the order of RUNGS) and "command"
    (python -m nanogpt ladder with its options). say tells "out of memory at batch 8: starting over with half of it",
    and at the end which rungs are left out, and why. Where batch 1 does not fit: RuntimeError.
    """
    asked, machine, place = B, measure_machine(device), torch.device(device)
    skipped = obstacles(place, Roofline(**machine["roofline"]), skip)
    result = None
    while result is None:
        try:
            result = climb_once(machine, size, B, T, place, skipped, seconds, say)
        except MemoryError as error:
            if B == 1:
                raise RuntimeError(f"batch 1 runs out of memory ({error}); give a shorter --seq") from error
            say(f"out of memory at batch {B}: starting over with half of it")
            B //= 2
    missing = [{"name": name, "reason": skipped[name]} for name in RUNGS if name in skipped]
    for rung in missing:
        say(f"without {rung['name']}: {rung['reason']}")
    call = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", device]
    call += ["--skip", *skip] if skip else []
    command = "python -m nanogpt ladder " + shlex.join(call)
    return result | {"asked_batch": asked, "skipped": missing, "command": command}


def run(args: argparse.Namespace) -> None:
    """Predict, or climb and write what was asked for, each file whole or not at all."""
    if args.predict:
        size, B, T = checked_sizes(args, "cuda")
        if args.batch is None:
            B = fitting_batch(args.predict, MODELS[size], B, T)
        return say_predicted(args.predict, MODELS[size], B, T)
    device = pick_device(args.device)
    size, B, T = checked_sizes(args, device.type)
    result = climb(size, B, T, str(device), args.skip, args.seconds, lambda text: print(text, flush=True))
    if args.out:
        save_json(args.out, result)
    if args.plot:
        with atomically(args.plot) as file:
            staircase(result).savefig(file, format="png", dpi=120)
