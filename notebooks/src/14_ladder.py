# %% [markdown]
r"""
# 14 · The ladder: every speed-up, predicted, then measured

In a lecture of 2024 the same GPT-2, on the same GPU and the same data, went from a second a step to 90 ms, by changes of a few
lines each. Which of them would help on your machine, and why? Chapters 09 to 13 took them one at a time. Here they
stand on top of each other, each predicted from bytes and FLOPs first, then measured, with the loss and a gradient beside
the time so that no speed hides a wrong result.

Two modules come out of it. `forecast` is the step's time before anything is run, `ladder` the measurement and the command.
The step itself, in all its ways, is chapter 13's `rungs`.
"""

# %%
#| default_exp speed.ladder
#| doc speed.forecast: The ladder before anything is run: each rung's time from bytes and FLOPs, on a measured roofline or a data sheet.
#| doc speed.ladder: The ladder measured, up and down again, and judged. The command `ladder`.
import tempfile

from torch.nn.functional import scaled_dot_product_attention as sdpa

from course.figures import ladder as figures
from course.notebook import answer, checkpoint, predict as guess, predictions, show
from nanogpt.device import pick_scale
from nanogpt.gpt.attention import attention_weights
from nanogpt.gpt.precision import best_precision
from nanogpt.speed.roofline import measure

# %%
#| export speed.forecast
import csv
from pathlib import Path

import nanogpt
from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.gpt.precision import READS
from nanogpt.speed.roofline import PAGE, PEAKS, Peak, Roofline, peak_of
from nanogpt.speed.rungs import RUNGS, for_rungs, precision_of, rungs_up_to
from nanogpt.speed.work import PRODUCTS, step_work

# %%
#| export speed.ladder
import argparse
import importlib.util
import json
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

# %%
device = pick_device()
scale = pick_scale(device)
DATA = Path("../data")

# %%
with open(DATA / "reference/build_nanogpt.csv", encoding="utf-8") as file:
    lecture = list(csv.DictReader(file))
show(
    figures.published(lecture),
    alt="Published milliseconds a step on an A100, from 1000 in float32 down to 90 with a fused AdamW, in seven steps.",
)
print("source:", lecture[0]["source"].split(":")[0])

# %% [markdown]
r"""
## Predict

1. TF32 multiplies eight times as fast as float32 by the A100's data sheet. By what factor should a step get faster?
2. What do all rungs together gain on your machine? Which gains most, which nothing? Write your order down.
3. A model of 124 million float32 parameters: how many bytes must a fused AdamW move in each step, at least?
"""

# %%
guess("14.1", "gain of TF32 on an A100, by its data sheet", guess=None, unit="×")
guess("14.2", "all rungs together, here", guess=None, unit="×")
guess("14.3", "bytes that a fused AdamW moves for GPT-2 124M", guess=None, unit="GB")

# %% [markdown]
r"""
## The prediction

Chapter 09 listed the FLOPs and bytes of a step by part. Each rung changes a column of that list. TF32, bfloat16 and
float16 change the rate of the products, the last two the size of a number as well. What autocast and compiling change can
be counted by hand, in bytes for each score of a T×T matrix and for each logit, forward and backward:

| | float32 | compiled | autocast | both |
|---|---|---|---|---|
| score | 19 passes of 4: 76 | 11 passes: 44 | softmax in float32, with casts: 72 | 11 passes of 2: 22 |
| logit | 6 passes of 4: 24 | 4 passes: 16 | loss in float32, with casts: 36 | 4 passes of 2: 8 |

On a CPU autocast leaves softmax in 16 bits: 19 passes of 2, 38 bytes a score. Compiled, scale, mask and softmax are one
kernel, and log-probabilities are never written. A residual sum is still in a register when LayerNorm reads it, which
halves its bytes. Where blocks are compiled one by one that holds for every other sum: a quarter is saved.
"""

# %%
#| export speed.forecast
SCORE_BYTES = {"float32": 76, "compiled": 44, "autocast": 72, "autocast on a CPU": 38, "both": 22}
LOGIT_BYTES = {"float32": 24, "compiled": 16, "autocast": 36, "autocast on a CPU": 36, "both": 8}


def work_seconds(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds by part of forward and backward on the roofline: chapter 09's step_work, as the rungs in `on` change it."""
    config, half, compiled = for_rungs(config, on), bool({"bf16", "fp16"} & on), "compile" in on
    way = ("both" if half else "compiled") if compiled else "autocast" if half else "float32"
    way += " on a CPU" if way == "autocast" and roof.device == "cpu" else ""
    width, flops, nbytes = 2 if half else 4, {}, {}
    for work in step_work(config, B, T, width):
        flops[work.part] = flops.get(work.part, 0) + work.flops
        nbytes[work.part] = nbytes.get(work.part, 0) + work.nbytes
    scores = 0 if config.flash else config.n_layer * B * config.n_head * T * T
    nbytes["attention"] += (SCORE_BYTES[way] - 19 * width) * scores
    nbytes["cross-entropy"] = LOGIT_BYTES[way] * B * T * config.vocab_rows
    nbytes["residual"] *= (1 / 2 if roof.device == "cuda" else 3 / 4) if compiled else 1
    for part in ("embedding", "layer norm", "residual"):
        nbytes[part] /= 2 if "bf16 weights" in on else 1  # elsewhere 4 bytes a number
    word = precision_of(on)
    rates = {part: READS.get(word, word) if part in PRODUCTS else "float32" for part in flops}
    return {
        part: roof.seconds(flops[part], nbytes[part], rates[part]) for part in flops if part != "optimizer"
    }


# %% [markdown]
r"""
How many fresh pages does a step pay for where memory is not kept? glibc gives every block above 32 MiB back, so count the
tensors above that. Four are like the logits: logits, log-probabilities, the gradients of both. Four are like `wte`: its
gradient, a second one since it is first layer and last, and two temporaries of AdamW. Attention step by step makes eight
T×T tensors in each layer.
"""


# %%
#| export speed.forecast
LARGE = 32 * 2**20  # bytes; malloc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


def fresh_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that a float32 step allocates in blocks above LARGE: tensors like the logits, like wte, and T×T."""
    V, C, L = config.vocab_rows, config.n_embd, config.n_layer
    tensors = [(4, B * T * V), (4, V * C), (0 if config.flash else 8 * L, B * config.n_head * T * T)]
    return sum(count * 4 * numbers for count, numbers in tensors if 4 * numbers > LARGE)


# %% tags=["nbval-ignore-output"]
fault, fresh = fault_seconds(), fresh_bytes(GPTConfig(flash=False), 4, 64)
print(f"GPT-2 124M, B=4, T=64 takes {fresh / 2**20:.0f} MiB of fresh pages in each step,")
print(f"at {1e6 * fault:.2f} µs for a page of {PAGE} bytes: {1e3 * fault * fresh / PAGE:.0f} ms here")

# %% [markdown]
r"""
The default AdamW is twenty passes of 4 bytes over the parameters, since each of its operations reads and writes whole
tensors. Fused, it reads four numbers and writes three: 28 bytes. The one with float32 masters reads gradient 2, master 4,
moments 8, writes master 4, moments 8, weight 2: also 28, and 4 for laying the gradients end to end. Every step reads the
gradients once more for their norm, and the loss scaler rewrites and checks them.
"""


# %%
#| export speed.forecast
def predict(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline, fault=0.0) -> dict[str, float]:
    """Seconds of one step by part, before anything is run. fault: what `fault_seconds` measured, 0 where it is not paid."""
    seconds, masters = work_seconds(config, on, B, T, roof), "bf16 weights" in on
    config, P = for_rungs(config, on), num_params(for_rungs(config, on))
    if "kept memory" not in on:
        seconds["page faults"] = fault * fresh_bytes(config, B, T) / PAGE
    if {"bf16", "fp16"} & on and not masters:  # read 4, write 2 forward; the gradient back: read 2, write 4
        seconds["weight casts"] = 12 * P / roof.bandwidth
    update = 32 if masters else 28 if "fused AdamW" in on else 80  # bytes a weight
    norm = 2 if masters else 16 if "fp16" in on else 4  # a scaler rewrites and checks first
    seconds["optimizer"] = (update + norm) * P / roof.bandwidth
    return seconds


# %%
example = Roofline("cpu", {"float32": 1e11, "bfloat16": 4e11}, 20e9)  # round numbers, not this machine's
off = {"TF32", "fp16"}
steps = {n: predict(GPTConfig(), rungs_up_to(n, off), 4, 64, example, 1e-6) for n in RUNGS if n not in off}
show(
    figures.parts(steps, "GPT-2 124M, B=4, T=64; 100 and 400 GFLOP/s, 20 GB/s, 1 µs a fault"),
    alt="Stacked bars of predicted seconds by part and rung for an example machine: page faults vanish on the second rung, products shrink with bfloat16, the optimizer with fusion.",
)
fused = 28 * num_params(GPTConfig()) / 1e9
print(f"a fused AdamW moves 28 · {num_params(GPTConfig()):,} bytes = {fused:.2f} GB, in each step")
answer("14.3", fused)

# %% [markdown]
r"""
On this example machine a batch of 256 tokens is so small that the optimizer is a visible part of a step. Nice numbers
are predicted to cost a thousandth: the roofline knows nothing of alignment. Whatever they gain when measured is its
error.

## A GPU's ladder without the GPU

Nothing in `predict` needs the machine, only its rates, and a data sheet has them.
"""


# %%
#| export speed.forecast
#| blank predict_ladder: predict every rung that this card can do, at the rates of its data sheet
def predict_ladder(sheet: Peak, config: GPTConfig, B: int, T: int) -> dict[str, dict[str, float]]:
    """{rung: {part: seconds}} from a GPU's data sheet, for the rungs that it can do."""
    rates = {"float32": sheet.float32, "float16": sheet.half}
    rates |= {"tf32": sheet.tf32, "bfloat16": sheet.half} if sheet.tf32 else {}  # both came with Ampere
    roof = Roofline("cuda", {name: 1e12 * rate for name, rate in rates.items()}, 1e9 * sheet.bandwidth)
    cannot = ("kept memory", "fp16") if sheet.tf32 else ("kept memory", "TF32", "bf16", "bf16 weights")
    return {n: predict(config, rungs_up_to(n, cannot), B, T, roof) for n in RUNGS if n not in cannot}


# %%
#| export speed.forecast
PUBLISHED = Path(nanogpt.__file__).parents[1] / "data/reference/build_nanogpt.csv"


def published(sheet: Peak, config: GPTConfig, B: int, T: int) -> dict[str, dict]:
    """{rung in small letters: row of the table} of the same step on the same GPU, where there is any."""
    table = csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines() if PUBLISHED.exists() else [])
    rows = [r for r in table if peak_of(r["gpu"]) is sheet and (r["batch"], r["seq"]) == (str(B), str(T))]
    return {r["rung"].lower(): r for r in rows if config == GPTConfig()}


# %%
#| export speed.forecast
def say_predicted(gpu: str, config: GPTConfig, B: int, T: int) -> None:
    """Print the ladder of a GPU by its data sheet, beside published times of the same step where there are any."""
    sheet, before = peak_of(gpu), None
    if sheet is None:
        raise ValueError(f"no data sheet of {gpu!r}; there are {', '.join(PEAKS)}")
    known = published(sheet, config, B, T)
    print(f"{gpu} by its data sheet ({sheet.source}): {num_params(config):,} parameters, B={B}, T={T}")
    for rung, parts in predict_ladder(sheet, config, B, T).items():
        ms, found = 1e3 * sum(parts.values()), known.get(rung.lower())
        text = f"{rung:13} {ms:8.1f} ms  " + (f"{before / ms:5.2f}×" if before else "      ")
        if found:
            text += f"   published {found['ms']:>6} ms, {float(found['ms']) / ms:.2f}× of predicted"
        print(text)
        before = ms
    for source in {row["source"].split(":")[0] for row in known.values()}:
        print("published:", source)


# %%
gpu, B, T = "A100-80GB", 16, 1024
say_predicted(gpu, GPTConfig(), B, T)
sheet = peak_of(gpu)
by_rung = predict_ladder(sheet, GPTConfig(), B, T)
ms = {name: 1e3 * sum(parts.values()) for name, parts in by_rung.items()}
second = list(by_rung)[1]  # TF32; fp16 on a GPU that has no TF32
for part, seconds in by_rung["float32"].items():
    before, after = 1e3 * seconds, 1e3 * by_rung[second][part]
    if before > 10:
        print(f"{part:13} {before:6.1f} ms, with {second} {after:6.1f} ms: {before / after:.1f}×")
factor = ms["float32"] / ms[second]
print(f"the step      {ms['float32']:6.1f} ms, with {second} {ms[second]:6.1f} ms: {factor:.1f}×")
answer("14.1", factor)

# %% [markdown]
r"""
The linear layers get their factor of eight. Attention step by step does not: 19 passes over its T×T scores, in each of 12
layers, are bytes and stay what they were. So do GELU, residual sums, LayerNorm, the loss and the optimizer. Amdahl's law
does the rest: of a promised 8 about half is left, and in the lecture 3. From here on the bytes are the larger part of the
step, which is why bfloat16, twice as fast as TF32 by the data sheet, gains so little after it, and why the next big gains
come from compile and flash attention, which move fewer.
"""

# %%
known = {rung: float(row["ms"]) for rung, row in published(sheet, GPTConfig(), B, T).items()}
show(
    figures.by_sheet(ms, known, f"GPT-2 124M on {gpu}, B={B}, T={T}"),
    alt="Milliseconds a step by rung: predicted from the data sheet, and published; both fall alike, the published ones are higher on every rung.",
)

# %% [markdown]
r"""
Order and size of the gains come out of the sheet. The times themselves are too short on every rung, by the factor in the
table's last column: a prediction is what the peaks allow, and no product reaches the sheet's peak, no kernel its
bandwidth, nor does a step consist of kernels only. `python -m nanogpt ladder --predict T4` does the same for other GPUs of
chapter 09's table: on a T4, which has neither TF32 nor bfloat16, the ladder goes by way of fp16.

## The ladder, measured

Each rung runs in a process of its own, on the same data, and must agree with the first one in its loss and in a gradient
(chapter 13). Other programs use the machine too, and a hot processor slows down. So the rungs are measured twice, on the
way up and on the way down: what drifts, drifts for all. The roofline is measured before and after, and the better of both
counts, since other programs only ever slow a machine down.

What then still cannot be is printed with a mark, not as a result: MFU above 1, a step faster than its own roofline, a
middle half wider than 30%. And where the middle halves of two rungs overlap, there is no measurable difference: chapter 09.
"""

# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
def flags(rung: dict) -> list[str]:
    """What cannot be, or cannot be told, of a measured rung; none where all is well."""
    told, spread = [], rung["q3_ms"] / rung["q1_ms"]
    if rung["mfu"] > 1:
        told.append(f"MFU {rung['mfu']:.0%}: the peak or the time is wrong")
    if rung["ms"] < rung["predicted_ms"]:
        told.append(f"faster than its roofline of {rung['predicted_ms']:.1f} ms")
    return [*told, f"unsteady: its middle half spans {spread:.2f}×"] if spread > 1.3 else told


# %%
#| export speed.ladder
#| blank gain: the ratio of the times, unless the two middle halves overlap
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


# %% [markdown]
r"""
The climb. A rung that fails on the way up is skipped like one that the machine cannot do, and takes along what stands on
it. Rungs with different batches cannot be compared: where memory runs out, the batch is halved and all starts over.
"""


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
def limits(device: str) -> dict:
    """The device's roofline, and on a CPU the seconds of a page fault."""
    place = torch.device(device)
    fault = fault_seconds() if place.type == "cpu" else 0.0
    return {"roofline": asdict(measure_roofline(place)), "fault_s": fault}


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
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


# %% [markdown]
r"""
## Around it: names, a picture, the command line

Nothing here is about speed; you may skip to "See". A measurement that does not say where and how it was taken is worth
nothing a month later, so the result begins with the machine.
"""


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLES = """
examples: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png
          python -m nanogpt ladder --predict A100-80GB --batch 16 --seq 1024"""


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
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


# %%
#| export speed.ladder
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


# %% [markdown]
r"""
## See: the ladder on this machine

The cell runs the command as you would in a terminal, at a size that fits a chapter. Without a GPU compile is left out,
and with it bf16 weights: a C++ compiler would take longer than the rest of the chapter, five times. It stands in
the recorded ladder below, and at the end, to explore. The cell measures what the package holds: whoever has changed a cell above
runs the checkpoint first.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    torch.cuda.empty_cache()  # the rungs have processes of their own, and need the memory
out = Path(tempfile.mkdtemp()) / "ladder.json"
short = ["--skip", "compile", "--seconds", "4"]
options = {"ci": ["--seq", "32", *short], "laptop": ["--seq", "128", *short], "gpu": []}[scale]
call = [sys.executable, "-m", "nanogpt", "ladder", *options, "--out", str(out)]
done = subprocess.run(call, capture_output=True, text=True)
print(done.stdout + done.stderr)
assert done.returncode == 0, "the ladder did not end well; its last line says why"
live = json.loads(out.read_text())

# %% tags=["nbval-ignore-output"]
show(
    staircase(live),
    alt="A staircase of milliseconds a step, one stair a rung, measured and predicted, with the speed-up over the first rung on each.",
)
for rung in live["rungs"]:
    ratio = rung["ms"] / rung["predicted_ms"]
    print(f"{rung['name']:13} {rung['ms']:8.1f} ms, predicted {rung['predicted_ms']:8.1f} ms: {ratio:.2f}×")
first, best = live["rungs"][0], min(live["rungs"], key=lambda rung: rung["ms"])
print(f"fastest rung: {best['name']}; beside the first one {gain(first, best)}")
answer("14.2", first["ms"] / best["ms"])

# %% [markdown]
r"""
The *factor* of a time over its prediction: one that all rungs share drops out of the gains, and says
that this machine's step is not made of large square products alone. Small ones miss the peak, a call costs time and moves
nothing, an elementwise kernel misses the bandwidth of a copy. A ratio below one is flagged: then tensors stayed in a
cache and never travelled, or the roofline was measured while the machine was busy.

The *gain* of a rung against its prediction, in the table above: where they differ, that part of the model of bytes and
FLOPs left something out. Each guess at what it was can be tested by changing `--batch` or `--seq`. One case, since it is
common on CPUs: flash attention gains nothing, or loses. What does attention alone say?
"""

# %% tags=["nbval-ignore-output"]
kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(best_precision(device), torch.float32)
print(f"attention of 6 heads of 32, forward and backward, in {kind}: flash beside step by step")
for T in (32, 128, 512):
    q, k, v = torch.randn(3, 1, 6, T, 32, device=device, dtype=kind).requires_grad_()
    calls = (lambda q, k, v: attention_weights(q, k) @ v), (lambda q, k, v: sdpa(q, k, v, is_causal=True))
    steps = [lambda call=call, x=(q, k, v): call(*x).sum().backward() for call in calls]
    manual, flash = (measure(step, device, repeats=15).median for step in steps)
    print(f"T={T:4}: {manual / flash:.2f}× as fast; a T×T tensor has {6 * T * T * kind.itemsize // 1024} KiB")

# %% [markdown]
r"""
Flash attention saves bytes of T×T tensors on their way to memory. While those fit into a cache there is nothing to save, and
what is left is which of the two kernels multiplies better: the table says from which T on it pays here, if at all.

*Check.* A rung may be slow, but it may not be wrong:
"""

# %%
wrong = [rung["name"] for rung in live["rungs"] if not rung["agrees"]]
assert not wrong, f"{wrong} compute something else than the first rung; the lines above say by how much"
print("every rung that ran agrees with the first one")

# %% [markdown]
r"""
## Beside other machines

Recorded runs of the same command, drawn as they were measured:
"""

# %%
files = sorted((DATA / "measurements").glob("*.json"))
recorded = [run for run in (json.loads(path.read_text()) for path in files) if "rungs" in run]
for result in recorded:
    print(f"{result['device']}, torch {result['versions']['torch']}, {result['date']}: {result['command']}")
    for rung in result["skipped"]:
        print(f"  without {rung['name']}: {rung['reason']}")
    show(staircase(result), alt=f"The staircase recorded on {result['device']}, measured and predicted.")

# %% [markdown]
r"""
Published logs of other programs, on other devices, as tokens a second, which is the one thing that they have in common;
each label says batch, length and precision. The run above is there too, though its model is smaller.
"""

# %%
with open(DATA / "reference/throughput.csv", encoding="utf-8") as file:
    logs = list(csv.DictReader(file))
show(
    figures.beside_others(logs, recorded, live),
    alt="Tokens per second on a logarithmic axis: published figures for CPUs and GPUs, and the first and best rungs of recorded ladders and of this run.",
)

# %% tags=["nbval-ignore-output"]
predictions("14")

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("14")

# %% [markdown]
r"""
## Exercises

`course exercises release 14` writes these as a notebook to `released/`; `course check 14` runs their visible checks.

- **14-1** What is left of a factor, 15 minutes: what a step gains, and how much one part would have to.
- **14-2** An optimizer, predicted, 15 minutes: an optimizer predicted for a GPU and a model of your own.
- **14-3** No difference where there is none, 15 minutes: a gain only where the measurements show one.
- **14-4** A rung that makes a step slower, 25 minutes: activations recomputed, predicted before anything is run.
- **14-5** A check for the roofline, 20 minutes: a check for the roofline's time of a step.
- **14-6** A table that cannot be true, 10 minutes: a ladder that cannot be true, in words.

To explore:

1. `python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out mine.json --plot mine.png`. Which rung's prediction is
   furthest off? Find the term by running it again with twice the batch. *Check*: your explanation predicts the third
   batch size to 20%.
2. Put the rungs in another order, fused AdamW second. Does its factor change? *Check*: the product of all factors does
   not.
3. `--predict` your GPU, or one that you might rent, at the batch and length that you would train with. Which rung
   gains most? *Check*: change `--batch` so that another one does, and say which part's time did it.
4. On a GPU, `--skip compile`: what do nice numbers gain without a compiler that pads by itself? *Check*: chapter 13's
   two columns say the same of the head alone.

## Further reading

- A. Karpathy, *Let's reproduce GPT-2 (124M)*, video lecture, 2024: the published times above.
- Williams, Waterman and Patterson 2009, *Roofline*, CACM 52(4).
- Micikevicius et al. 2018, *Mixed Precision Training*, §3.1: master weights; §3.2: loss scaling.
- Loshchilov and Hutter 2019, *Decoupled Weight Decay Regularization*, algorithm 2: AdamW.
"""
