# %% [markdown]
r"""
# 14b · The ladder, climbed

Chapter 14 predicts how long a training step takes on every rung of the ladder. Is it true? We begin with two GPUs on which the
ladder was climbed already. Then it is your machine's turn: you measure its limits, print its forecast, and write down your own
guess. Only then do we climb: each rung trains for some steps, in turns with the rung below it. At the end you see which
speed-ups your machine really gives, which it does not, and where the forecast was wrong.

A measurement like this goes wrong easily. Other programs use the machine, the processor gets warm, a change breaks the
computation and the loss hides it. So besides the times we keep what can show such mistakes: the loss, a gradient, the
machine's limits between the rungs, and an interval for every gain.
"""

# %%
#| default_exp labs.ladder.ladder
#| doc labs.ladder.climb: The rungs of the ladder on this machine: forecast, measured in turns, judged.
#| doc labs.ladder.ladder: The ladder climbed and drawn, and the command `ladder`.
import json
from pathlib import Path

from torch.nn.functional import scaled_dot_product_attention

from course.figures import ladder as figures
from course.notebook import answer, checkpoint, predict as guess, predictions, show
from nanogpt.device import pick_device, pick_scale
from nanogpt.labs.ladder.rungs import obstacles
from nanogpt.model import attention_weights
from nanogpt.labs.roofline.clock import faster

# %%
#| export labs.ladder.climb
import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

import torch

from nanogpt.labs.roofline import clock, sheets
from nanogpt.labs.ladder.forecast import predict, step_memory
from nanogpt.labs.ladder.rungs import (
    RUNGS,
    for_rungs,
    keep_memory,
    make_step,
    precision_of,
    rungs_up_to,
    take_along,
)
from nanogpt.labs.roofline.memory import fault_seconds, peak_memory
from nanogpt.labs.roofline.work import measure_fractions
from nanogpt.model import GPTConfig, num_params
from nanogpt.precision import READS
from nanogpt.labs.roofline.clock import Roofline, gain_of, timings
from nanogpt.model import mfu
from nanogpt.model import step_flops

# %%
RUNGS = dict(list(RUNGS.items())[:10])  # chapter 13's ten; a complete package has more
DATA, device = Path("../data"), pick_device()
scale = pick_scale(device)
size, B, T = {"ci": ("small", 1, 32), "laptop": ("small", 1, 64), "gpu": ("124M", 16, 1024)}[scale]
print(f"this chapter trains GPT-2 {size} with B={B}, T={T} on {device}")

# %%
#| export
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import accumulate
from operator import mul
from pathlib import Path

import torch

from nanogpt.labs.roofline import clock, sheets
from nanogpt.labs.roofline.memory import fault_seconds
from nanogpt.model import GPTConfig

MODELS = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}

# %% [markdown]
r"""
## Predicted, then measured

How fast is fast? Here is a published number to compare with. Karpathy's replication of GPT-2 124M in llm.c trains on 10 billion tokens, and
takes 45 minutes on eight H100 ([modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt), whose first entry it is). That is 463,000 tokens per
second on each GPU, with all that a whole run needs, such as adding up the gradients of eight GPUs and validating. Our ladder has the
same model and the same length of rows. How many tokens per second do its first and its last rung make?
"""

# %%
llmc = 10e9 / (45 * 60 * 8)
print(f"llm.c on eight H100, a whole run: {llmc:,.0f} tokens/s on each")
gpus = {}
for name in ("H100", "H200"):
    gpus[name] = json.loads((DATA / f"measurements/{name.lower()}.json").read_text(encoding="utf-8"))
    first, *_, last = gpus[name]["rungs"]
    print(
        f"our ladder on one {name}: {first['tokens_per_s']:,.0f} on the first rung, {last['tokens_per_s']:,.0f} on the last"
    )

# %% [markdown]
r"""
On an H100 the first rung has 9% of llm.c's speed, and the last one 97%, though our one GPU does nothing but take steps. A fairer
comparison has one GPU and one batch. We made it on an H200, with 16 rows of 1,024 tokens (`data/measurements/h200-peers.json`): a step of llm.c, which is
written in CUDA by hand, took 31.5 ms, our last rung 33.7, build-nanogpt 35.3, and nanoGPT 35.8 ms. The ladder does not end at a slow program that became less slow.

Here is the whole ladder of the H100, drawn as you will draw your own. A *stair* is the time of the first step, divided by all gains up to this
rung. A *gain* was measured in pairs: a step of this rung and a step of the one below, in turns. That is why the stairs do not simply show the median
times. Two medians come from different minutes, in which the machine may have been faster or slower. A pair comes from the same second.

Each gain has an interval (chapter 09), which is the line on a stair. If the interval reaches further than 15% from the gain, the pairs
disagree, and something has disturbed the measurement. Such a rung gets a grey stair, and no number.
"""


# %%
#| export labs.ladder.climb
def disturbed(rung: dict) -> bool:
    """Whether the pairs of a rung disagree: the interval of its gain reaches further than 15% from it."""
    if "gain" not in rung:  # the first rung has none
        return False
    gain = rung["gain"]
    return gain["low"] < 0.85 * gain["ratio"] or gain["high"] > 1.15 * gain["ratio"]


# %%
#| export
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


# %%
show(
    staircase(figures.with_sheet_forecast(gpus["H100"])),
    alt="The H100's staircase: eight stairs from 393 ms down to 36, the last one 10.86 times as fast, with the forecast of the data sheet close to each.",
)

# %% [markdown]
r"""
The last stair says 10.86, the product of the seven gains. The dashed line is chapter 14's forecast, from the data sheet and an A100's published times. It was
made before any of our code had run on a GPU, and it is within a sixth on every rung. The intervals of these gains are narrower than the dots. A
machine that does nothing else measures like this. Yours may not, and we shall see what it then says.
"""

# %% [markdown]
r"""
## What this machine cannot do

Not every machine has every rung. Chapter 13's `obstacles` says which ones yours lacks, and why. Without compile, the
rung "bf16 weights" is left out as well, since it builds on it.

In this chapter we also skip compile on a CPU, where a C++ compiler would take longer than everything else. It is in the
recorded ladder below.
"""

# %% tags=["nbval-ignore-output"]
roofline = clock.measure_roofline(device)
skipped = obstacles(device, roofline, ["compile"] if device.type == "cpu" else [])
for name in RUNGS:
    if name in skipped:
        print(f"without {name}: {skipped[name]}")
for name, rate in roofline.flops.items():
    print(f"{name:9} {rate / 1e9:8.1f} GFLOP/s")
print(f"copy      {roofline.bandwidth / 1e9:8.1f} GB/s")

# %% [markdown]
r"""
## The forecast for this machine

Chapter 14 needs five kinds of numbers: the FLOP/s in each format, the bandwidth, the share of both that real kernels
reach, the price of a fresh page, and the time to start a kernel. The first two you have just seen. Chapter 09b measures
the share at the sizes of our own step. The products reach different shares in different formats, so we measure each
format that a rung uses, at the sizes of the last rung whose products use it: from "nice numbers" on the model's head has 50,304 columns, not 50,257.
This matters more than it seems, as the end of this sitting shows.

`reads` gives the format that the products of a rung read. With autocast, for example, the weights are float32, but the
products read bfloat16. `formats_used` collects these for all rungs that this machine has, each with the last rung that uses it, and `reached_roofline` asks
chapter 09b's `measure_fractions` once for each. The result is a roofline again, with rates that real kernels reach in
place of the peaks. So chapter 14's `predict` can take it without a change.
"""


# %%
#| export labs.ladder.climb
def reads(on: set[str]) -> str:
    """The roofline's name of the format that products read with the rungs in `on`."""
    return READS.get(precision_of(on), precision_of(on))


def formats_used(skipped) -> dict[str, set[str]]:
    """The formats of all rungs that are not skipped, each with the rungs that are on in the last step that uses it."""
    steps = [rungs_up_to(name, skipped) for name in RUNGS if name not in skipped]
    return {reads(on): on for on in steps}  # a later step replaces an earlier one with the same format


def reached_roofline(
    config: GPTConfig, B: int, T: int, roof: Roofline, device: torch.device, skipped
) -> Roofline:
    """The rates that the kernels of this step reach, in each format that a rung uses (chapter 09b)."""
    flops, bandwidth = {}, 0.0
    for name, on in sorted(formats_used(skipped).items()):
        found = measure_fractions(for_rungs(config, on), B, T, roof, device, name, repeats=5).of(roof)
        flops[name] = found.flops[name]
        bandwidth = max(bandwidth, found.bandwidth)
    return Roofline(roof.device, {"float32": roof.flops["float32"]} | flops, bandwidth)


# %%
#| export labs.ladder.climb
def start_seconds(device: torch.device) -> float:
    """Seconds that it takes to start a kernel: a thousand small ones, without waiting for each."""
    one = torch.ones(1, device=device)
    return min(timings(lambda: [one.add(1) for _ in range(1000)], device, 5)) / 1000


# %% tags=["nbval-ignore-output"]
reached = reached_roofline(MODELS[size], B, T, roofline, device, skipped)
for name, rate in reached.flops.items():
    print(
        f"{name:9} products of this step reach {rate / 1e9:8.1f} GFLOP/s, {rate / roofline.flops[name]:.2f} of the peak"
    )
print(
    f"its other kernels reach {reached.bandwidth / 1e9:.1f} GB/s, {reached.bandwidth / roofline.bandwidth:.2f} of the copy"
)
print(f"starting a kernel takes {1e6 * start_seconds(device):.1f} µs")

# %% [markdown]
r"""
A share above 1 for the other kernels means that their tensors fit into a cache. Everything together describes the
machine. A measurement that does not say where and when it was taken is worthless a month later, so the name, the
versions and the date belong to it. `device_name` asks the system what the processor or the GPU is called. `measure_machine` collects all of this in a dictionary, which can be written to a
JSON file. It also notes the load: how many other programs wanted the processor when the measurement began. And it says
where the peak is from, which an MFU is a share of: a GPU's from its data sheet, a CPU's from the fastest product that
we measured.
"""


# %%
#| export
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


# %%
#| export
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


# %%
#| export labs.ladder.climb
def forecast(machine: dict, config: GPTConfig, B: int, T: int, skipped) -> dict[str, dict]:
    """{rung: predicted milliseconds, the limit's, and predicted MiB}, for the rungs that are not skipped."""
    told, costs = {}, (machine["fault_s"], machine["start_s"])
    for name in RUNGS:
        if name not in skipped:
            on = rungs_up_to(name, skipped)
            ms, limit = (
                1e3 * sum(predict(config, on, B, T, Roofline(**machine[which]), *costs).values())
                for which in ("reached", "roofline")
            )
            mib = step_memory(config, on, B, T) / 2**20
            told[name] = {"predicted_ms": ms, "limit_ms": limit, "predicted_mib": mib}
    return told


# %% tags=["nbval-ignore-output"]
machine = measure_machine(str(device)) | {"roofline": asdict(roofline), "reached": asdict(reached)}
expected = forecast(machine, MODELS[size], B, T, skipped)
print(f"{machine['device']}: GPT-2 {size}, B={B}, T={T}")
before = None
for name, told in expected.items():
    gain = f"{before / told['predicted_ms']:.2f}×" if before else ""
    before = told["predicted_ms"]
    print(f"{name:13} forecast {before:7.1f} ms {gain:6} {told['predicted_mib']:6.0f} MiB")

# %% [markdown]
r"""
This is the forecast. Each line is the sum of chapter 14's terms: the work of forward and backward, the bytes of the
optimizer, fresh pages, and starts. The number with the cross is the gain over the rung below, and the last column is
the memory that the step should need. Nothing has been trained yet. Now it is your turn. Where do you trust it, and
where not? Which rung gains most, and which gains nothing?
"""

# %%
guess("14b.1", "all rungs together, here", guess=None, unit="×")
guess("14b.2", "the rung that gains most, here", guess=None)
guess("14b.3", "flash attention over attention step by step, here", guess=None, unit="×")

# %% [markdown]
r"""
## One rung against the one below

Chapter 09 showed that two times of two measurements cannot be compared: the machine drifts. Its `faster` times two
calls in turn and compares pair by pair. A rung is a function that takes a step, so we can compare two rungs just like
this.
"""

# %% tags=["nbval-ignore-output"]
rungs = {}
for name in ("float32", "flash"):
    on = {"float32", name}
    rungs[name] = make_step(MODELS[size], on, B, T, device)[1]
gain = faster(rungs["float32"], rungs["flash"], device, pairs=6, warmup=2)
print(f"flash attention over attention step by step: {gain}")
print("a difference" if gain.sure else "no difference was measured")
answer("14b.3", gain.ratio)

# %% [markdown]
r"""
The whole ladder is this comparison, rung after rung. In detail we need a bit more than `faster` gives: the times
themselves, for the picture. So here are the turns again, for any number of calls. Each call returns its own seconds.
Every second round goes backwards, so that nobody is always the first.
"""


# %%
#| export labs.ladder.climb
def in_turns(calls: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """What each call returns in each round. The calls take turns, in every other round backwards."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        order = list(range(len(calls)))
        if turn % 2:
            order.reverse()
        for i in order:
            times[i].append(calls[i]())
    return times


# %%
order = []
in_turns([lambda: order.append("below"), lambda: order.append("this")], rounds=3)
print(order)

# %% [markdown]
r"""
### First steps, and what they tell

A rung takes six steps before any of them counts. The loss of the sixth step is kept. But the loss alone would be a bad
judge of whether two rungs compute the same thing: a model that sees the future has nearly the same loss at first. The
gradient of the first layer's `c_attn` depends on everything in the model. Without the causal mask it is off by half. So
we also keep the norm of this gradient, from the first step. During the seventh step we count the pages that are touched for the
first time: the system counts them, and `page_faults` asks it. During the eighth we measure the peak of memory.
"""


# %%
#| export labs.ladder.climb
def page_faults() -> int:
    """Pages that this process has touched for the first time so far; 0 on Windows, which does not tell."""
    if not importlib.util.find_spec("resource"):
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


# %%
#| export labs.ladder.climb
FIRST = 6  # steps that do not count; the loss that is compared is that of the last of them


def first_steps(
    name: str, config: GPTConfig, B: int, T: int, device: torch.device, skipped
) -> tuple[Callable, dict]:
    """Start a rung in this process: a call that takes a step and returns its seconds, and what the first steps told."""
    on = rungs_up_to(name, skipped)
    if "kept memory" in on:
        keep_memory()
    begin = time.perf_counter()
    model, step = make_step(config, on, B, T, device)
    losses = [step().item()]
    told = {"name": name, "first_step_s": time.perf_counter() - begin}
    told["grad_norm"] = model.transformer.h[0].attn.c_attn.weight.grad.float().norm().item()
    losses += [step().item() for _ in range(FIRST - 1)]
    before = page_faults()
    step()
    told |= {"loss": losses[-1], "faults": page_faults() - before, "peak_mib": None}
    if device.type in ("cpu", "cuda"):
        model.zero_grad()
        state = 14 if next(model.parameters()).dtype == torch.bfloat16 else 12  # weights, masters, moments
        told["peak_mib"] = (state * num_params(model.config) + peak_memory(step, device)) / 2**20
    return (lambda: timings(step, device, 1)[0]), told


# %% tags=["nbval-ignore-output"]
call, told = first_steps("float32", MODELS[size], B, T, device, skipped)
print(f"a step takes {1e3 * call():.1f} ms")
for name, value in told.items():
    print(f"{name}: {value:,.3f}" if isinstance(value, float) else f"{name}: {value}")

# %% [markdown]
r"""
So far we have only the first steps of a rung. Now a rung can be judged. It gets a line with everything that we know about
it.

Some results are impossible, and they are printed with a mark: an MFU above 1, or a step that is faster than its limit. Then a
measurement was disturbed, or tensors never left a cache. And a rung whose loss or gradient differs from the first one's
is no speed-up, however fast it is. Rounding moves the loss a little, so `TOLERANCE` allows 0.05 nats, and 5% of the
gradient's norm.

A step is described by three times: its median and its quartiles, between which the middle half of the steps lies. If
the upper quartile is more than 1.3 times the lower one, the steps differ so much that the median says little, and the
rung is marked as unsteady.
"""

# %%
#| export labs.ladder.climb
TOLERANCE = {"loss": 0.05, "grad_norm": 0.05}  # nats; share of the first rung's


def judge_rung(
    rung: dict, times: list[float], first: dict, config: GPTConfig, tokens: tuple[int, int], peak: float
) -> dict:
    """A rung with its times (seconds): quartiles, rate, MFU, whether it agrees with the first one, and flags."""
    q1, ms, q3 = (1e3 * t for t in quantiles(times, n=4, method="inclusive"))
    B, T = tokens
    share = mfu(step_flops(config, B, T), ms / 1e3, peak)
    apart = {"loss": rung["loss"] - first["loss"], "grad_norm": rung["grad_norm"] / first["grad_norm"] - 1}
    agrees = all(abs(apart[what]) <= limit for what, limit in TOLERANCE.items())
    flags = []
    if share > 1:
        flags.append(f"MFU {share:.0%}: the peak or the time is wrong")
    if ms < rung["limit_ms"]:
        flags.append(f"faster than its limit of {rung['limit_ms']:.1f} ms")
    if q3 > 1.3 * q1:
        flags.append(f"unsteady: its middle half spans {q3 / q1:.2f}×")
    measured = {"q1_ms": q1, "ms": ms, "q3_ms": q3, "steps": len(times), "tokens_per_s": 1e3 * B * T / ms}
    return rung | measured | {"mfu": share, "agrees": agrees, "flags": flags}


# %% [markdown]
r"""
The gain of a rung does not come from two medians, but from pairs: the time of the rung below over the time of this one,
in the same round. `row` writes everything into one line. Where the interval of the gain contains 1, it writes that no difference was measured, and where the pairs disagree, it writes "disturbed" and the
interval: no number that the next run would not repeat.
"""


# %%
#| export labs.ladder.climb
#| blank gain_over: the ratio of each pair, before over after; gain_of gives its interval
def gain_over(below: list[float], times: list[float]) -> dict:
    """How many times as fast: the median of the ratios of pairs, and its interval (chapter 09).

    A dictionary of "ratio", "low", "high" and "sure", as gain_of gives them.
    """
    gain = gain_of([before / after for before, after in zip(below, times)])
    return {"ratio": gain.ratio, "low": gain.low, "high": gain.high, "sure": gain.sure}


def row(rung: dict, first: dict) -> str:
    """A rung as one line: time, gain over the rung below, forecast, memory, loss; its flags below."""
    text = f"{rung['name']:13} {rung['ms']:8.1f} ms, forecast {rung['predicted_ms']:8.1f}"
    if gain := rung.get("gain"):
        interval = f"({gain['low']:.2f} to {gain['high']:.2f})"
        if not gain["sure"]:
            told = "no difference was measured"
        elif disturbed(rung):
            told = interval
        else:
            told = f"{gain['ratio']:.2f}× {interval}"
        if disturbed(rung):
            told = f"disturbed, {told}"
        text += f"  {told:26}"
        text += f" forecast {rung['predicted_gain']:.2f}×"
    text += f"  MFU {rung['mfu']:.1%}  loss {rung['loss']:.3f}"
    if not rung["agrees"]:
        ratio = rung["grad_norm"] / first["grad_norm"]
        text += f" DISAGREES with {first['loss']:.3f}, gradient {ratio:.2f}×"
    return "".join([text, *(f"\n{'':14}! {flag}" for flag in rung["flags"])])


# %% [markdown]
r"""
### Is it still the same machine?

A gain that was measured in turns survives a slow minute. A time does not. Suppose that another program starts just after flash was measured, and
halves the speed. Then "nice numbers" takes twice as long as flash did. Its gain is right, since flash takes turns with it and is as slow, but
the time is no result. We can notice this, because each rung is timed twice: in turns with the one below, and again with the one above. `drifted`
compares the two times. A forecast does not survive a slow minute either: its limits were measured before the
climb. So we measure them again after each rung: the products, the copy, and on a CPU the price of a fresh page. If one
of them has moved by more than 15%, the rung gets a mark. The example below the code is real. When this course recorded
the ladder for the first time, the copy slowed down from 57.8 to 42.3 GB/s during the climb, and nobody noticed, because
only the products were measured again.
"""


# %%
#| export labs.ladder.climb
def limits_now(device: torch.device, formats, pages: bool) -> dict[str, float]:
    """The machine's limits: FLOP/s by format, bytes/s of a copy, and with `pages` fresh pages a second."""
    n, mebibytes = (8192, 512) if device.type == "cuda" else (1024, 256)
    rates = {name: clock.matmul_flops(device, name, n) for name in sorted(formats)}
    rates["copy"] = clock.copy_bandwidth(device, mebibytes)
    if pages:
        rates["fresh pages"] = 1 / max(1e-9, fault_seconds())
    return rates


def moved(before: dict[str, float], now: dict[str, float], limit: float = 1.15) -> list[str]:
    """The limits that have changed by more than a factor, each as a flag."""
    found = {name: now[name] / before[name] for name in before if name in now}
    return [
        f"{name}: {ratio:.2f}× the rate before the climb"
        for name, ratio in found.items()
        if not 1 / limit < ratio < limit
    ]


# %%
#| export labs.ladder.climb
def drifted(below: dict, times: list[float], limit: float = 1.15) -> list[str]:
    """A flag if the rung below takes another time in these turns (seconds) than in its own (its "ms")."""
    ratio = 1e3 * median(times) / below["ms"]
    if 1 / limit < ratio < limit:
        return []
    return [
        f"{below['name']}, timed again, takes {ratio:.2f}× its time of before: trust the gains, not the times"
    ]


# %%
print(drifted({"name": "flash", "ms": 128.5}, [0.127, 0.129, 0.131]))
print(drifted({"name": "flash", "ms": 128.5}, [0.270, 0.278, 0.281]))
quiet, busy = {"float32": 100e9, "copy": 57.8e9}, {"float32": 102e9, "copy": 42.3e9}
print(moved(quiet, quiet), moved(quiet, busy))

# %% [markdown]
r"""
## The climb

Now everything is there. A rung is started, takes its first steps, and then takes turns with the rung below. Two of them
are in memory at a time. There are at least ten pairs, and up to twenty if time allows.

One rung is an exception. Once memory is kept, this process cannot give it back. So the first rung is measured before
that, and "kept memory" after it. These two do not take turns, and the drift between them stays in their gain.

`measure_rungs` does what this paragraph says: begin the rung, ask the forecast, take turns, judge, look at the machine
again, and print the line. If a rung fails, it is left out with its reason. If memory runs out, all rungs must start
over with half the batch, because rungs with different batches cannot be compared.
"""


# %%
#| export labs.ladder.climb
NO_MEMORY = "out of memory", "can't allocate", "not enough memory", "alloc_failed", "bad_alloc"


def started(name: str, config: GPTConfig, B: int, T: int, device: torch.device, skipped: dict):
    """`first_steps`, or None if the rung fails, which is then skipped. MemoryError where memory runs out."""
    try:
        return first_steps(name, config, B, T, device, skipped)
    except Exception as error:
        text = str(error).strip() or repr(error)
        if isinstance(error, MemoryError) or any(sign in text.lower() for sign in NO_MEMORY):
            raise MemoryError(text.splitlines()[0]) from None
        skipped[name] = f"it failed: {text.splitlines()[0]}"
        take_along(skipped)
        return None


# %%
#| export labs.ladder.climb
#| blank measure_rungs: start each rung, take turns with the one below, judge it, and look at the machine again
def measure_rungs(machine: dict, config, B: int, T: int, device, skipped: dict, seconds: float, say=print):
    """The rungs from below to above, each judged. skipped grows by those that fail.

    A rung is what its first steps told, its forecast, and what judge_rung says; from the second one on also "gain" over
    the rung below (gain_over) and "predicted_gain". Its flags get what drifted says of the rung below and its new
    times, and what has moved since limits_now before the first rung, in formats_used(skipped). Fresh pages are
    measured on a CPU only, and none once memory is kept. One call of a new rung says how long a step takes; then come 10 to 20 rounds, so that all rungs together take
    about `seconds`.
    """
    rungs, below, times = [], None, []
    formats, pages = formats_used(skipped), device.type == "cpu"
    limits = limits_now(device, formats, pages)
    for name in RUNGS:
        if name in skipped or not (begun := started(name, config, B, T, device, skipped)):
            continue
        call, told = begun
        told |= forecast(machine, config, B, T, skipped)[name]
        pairs = round(min(20, max(10, seconds / 2 / len(RUNGS) / call())))
        pages = pages and name != "kept memory"  # from here on there are none
        if below is None or name == "kept memory":
            lower, times = times, in_turns([call], pairs)[0]
        else:
            lower, times = in_turns([below, call], pairs)
        rung = judge_rung(told, times, [*rungs, told][0], config, (B, T), machine["peak_flops"])
        if rungs:
            gained = rungs[-1]["predicted_ms"] / rung["predicted_ms"]
            rung |= {"gain": gain_over(lower, times), "predicted_gain": gained}
            rung["flags"] += drifted(rungs[-1], lower)
        rung["flags"] += moved(limits, limits_now(device, formats, pages))
        rungs, below = [*rungs, rung], call
        say(row(rung, rungs[0]))
    return rungs


# %% tags=["nbval-ignore-output"]
rungs.clear()  # the two steps from above, and their memory
live = machine | {"size": size, "batch": B, "seq": T}
live["rungs"] = measure_rungs(machine, MODELS[size], B, T, device, skipped, seconds=8)

# %% [markdown]
r"""
Read it rung by rung. The interval of a gain comes from the pairs. If it contains 1, no difference was measured, and if it reaches further
than 15%, the rung was disturbed; the line says so. Beside the gain is its forecast. A line with `!` says what moved while the rung was measured: then
its time is not to be trusted, and its gain is. A disturbed rung has no gain either. Close what else is running, and climb again.
"""


# %%
#| export
def together(rungs: list[dict]) -> float:
    """How many times as fast all rungs are together: the product of their gains."""
    return gains_so_far(rungs)[-1]


# %% tags=["nbval-ignore-output"]
show(
    staircase(live),
    alt="A staircase of milliseconds a step, one stair a rung, measured in pairs and predicted, with the speed-up over the first rung on each.",
)
without_a_result = [rung["name"] for rung in live["rungs"] if disturbed(rung)]
print("disturbed, so that nothing is known of the gain:", ", ".join(without_a_result) or "no rung")
for rung in live["rungs"]:
    ratio, pages = rung["ms"] / rung["predicted_ms"], rung["faults"]
    print(f"{rung['name']:13} measured over forecast {ratio:.2f}, {pages:7,} fresh pages a step")
gains = {rung["name"]: rung["gain"]["ratio"] for rung in live["rungs"][1:] if not disturbed(rung)}
total = together(live["rungs"])
if without_a_result:
    total = "not known, disturbed"
answer("14b.1", total)
answer("14b.2", max(gains, key=gains.get, default="all rungs were disturbed"))

# %% [markdown]
r"""
The dashed line is the forecast from before the climb. The number on a stair is the product of the gains up to it, so the last one is the answer to
14b.1. After a disturbed rung it has the sign ≈, since it rests on a gain that nobody knows.

Where measured over forecast is the same number on all rungs, the forecast of the gains is right, and something that all
steps share is missing from the list. Where one rung stands out, the list is wrong about this rung. On this page the number is 1.1 to 1.2 for the
first two rungs and 1.6 to 1.9 from bf16 on. A part of that is the machine: by the marks, its copy had slowed down to 0.76 to 0.86 of its
rate before the climb. You can test an idea
about the reason by changing B or T and looking which way the number moves. The fresh pages show directly what the rung
"kept memory" does.

Flash attention is a good case for such a test, because it is sometimes slower on CPUs. There are two possible reasons.
Either there was nothing to save, because the T × T tensors stay in a cache. Or the library's kernel multiplies more
slowly in this format. The two reasons predict different tables.
"""


# %% tags=["nbval-ignore-output"]
def attention_gain(T, kind):
    """Flash attention over attention step by step, forward and backward, for 6 heads of 32."""
    q, k, v = torch.randn(3, 1, 6, T, 32, device=device, dtype=kind).requires_grad_()
    calls = (
        lambda: (attention_weights(q, k) @ v).sum().backward(),
        lambda: scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward(),
    )
    return faster(*calls, device, pairs=8, warmup=1)


for kind in [torch.float32] if "bf16" in skipped else [torch.float32, torch.bfloat16]:
    for length in (32, 128, 512):
        kib = 6 * length**2 * kind.itemsize // 1024
        print(f"{str(kind)[6:]:8} T={length:4}: {attention_gain(length, kind)}; a T×T tensor has {kib:6} KiB")

# %% [markdown]
r"""
If the cache were the reason, flash would gain little for the small tensors in the upper lines and more below, in both
formats alike. If the kernel is the reason, the formats differ at the same T. And if flash gains most where the tensors are
smallest, there is a third effect: it saves the starts of many small kernels. On this page the cache is not the reason, because the gain
falls with T in both formats. The formats differ at each T, as the second reason predicts: at T = 128 flash gains 3.67 in float32, and in
bfloat16 no difference was measured. The large gains at T = 32 fit the third effect.

*Check.* A rung may be slow, but it may not be wrong.
"""

# %%
wrong = [rung["name"] for rung in live["rungs"] if not rung["agrees"]]
assert not wrong, f"{wrong} compute something else than the first rung; the lines above say by how much"
print("every rung that ran agrees with the first one")

# %% [markdown]
r"""
## Beside other machines

Here are two more recorded ladders with GPT-2 124M, of two cores of a server's CPU and of the H200. The command of the appendix made these files.

The records of both GPUs are of the 26th of November 2026, and of the program of that day, which has changed since: it measured the fractions of the
forecast in another way, as the next section tells. Times, gains and intervals are drawn as they were measured. The files also have that day's
forecast, which is wrong from compile on, so we draw the one of chapter 14 for the GPUs.
"""

# %%
cpu = json.loads((DATA / "measurements/amd-epyc-2-threads.json").read_text(encoding="utf-8"))
for result in (cpu, figures.with_sheet_forecast(gpus["H200"])):
    print(f"{result['device']}, torch {result['versions']['torch']}, {result['date']}: {result['command']}")
    medians = result["rungs"][0]["ms"] / result["rungs"][-1]["ms"]
    print(f"  the last rung by its gains {together(result['rungs']):.2f}×, by medians {medians:.2f}×")
    for rung in result["rungs"]:
        if disturbed(rung):
            print(f"  disturbed: {rung['name']}, {rung['gain']['low']:.2f} to {rung['gain']['high']:.2f}")
    show(
        staircase(result),
        alt=f"The staircase recorded on {result['device']}, measured in pairs and predicted.",
    )

# %% [markdown]
r"""
On the H200 gains and medians agree within half a percent. On the two cores they do not: the intervals of "kept memory" and bf16 reach further than 15%, and nearly every
rung has a mark, since the copy became up to 1.27 times as fast during the climb. That memory is kept and that bf16 is used pays there,
but how much it pays this record cannot say.

## Why its own fractions forecast a GPU worse

The command `ladder` measures the fractions of the peak on the machine itself. One would expect a better forecast from them than from those of an A100. The
table below shows that from compile on it is worse. The first
column of each GPU is the measured time over chapter 14's forecast. The third one is the same for the forecast by the GPU's own fractions, as the command made
it that day. From compile on it is too long: the step takes only two thirds of that time. The fraction of the products in bf16 looks wrong. Timed alone,
they reached 290 TFLOP/s on the H100. But the complete last step, which contains them and more, did 385 (363 without the tiles that flash attention skips). So
they must run faster inside the step than when we timed them.

One suspect is the head. We timed it with 50,257 columns, and the compiler pads such a matrix by itself (chapter 13). We tested this on the H200: we
measured the head's products, and the fractions, with 50,257 columns and with 50,304. The second column is the forecast by an A100's fractions with one change: before compile,
the head has its measured rate. The last one is the forecast by the GPU's own fractions with 50,304 columns.
"""

# %%
day = json.loads((DATA / "measurements/h200-day.json").read_text(encoding="utf-8"))["fractions"]
h200 = gpus["H200"]
of_that_day = Roofline(**h200["reached"])  # as the command measured it
fast = day["reached"]["bfloat16"]["50304"]["flops"] * h200["roofline"]["flops"]["bfloat16"]
padded = Roofline("cuda", of_that_day.flops | {"bfloat16": fast}, of_that_day.bandwidth)
figures.heads(day["head"])
figures.forecasts(
    gpus, day["head"], lambda on: predict(GPTConfig(), on, 16, 1024, padded, start=h200["start_s"])
)

# %% [markdown]
r"""
In bf16 the head is more than five times as fast with 50,304 columns. In TF32 the factor is 2.2, and in float32 there is next to none. With 50,257 columns
bf16 is no faster than TF32: 125 and 126 TFLOP/s. The slow head explains the errors of both forecasts.

**Before compile**, the head is slow, and the A100's fractions do not know it. With its measured rate, and nothing else changed, the three forecasts are
right within 8% on both GPUs. Without the slow head, bf16 would gain 1.16 over TF32 on the H100, where 1.10 was measured. And compile gains 2.8 where 2.1 were forecast: of the
111 ms that it saves, 25 are saved by padding the head. So the rung "nice numbers" comes too late to show its worth. Before compile it
would gain 1.17 on the H100 and 1.20 on the H200; after it, it gains 1.06 and 1.05.

**From compile on**, the head is fast, and the GPU's own fractions do not know that. One fraction stands for all products, so the slow head made the forecast
of every other product too long as well. With the fast head the compiled rungs take 1.0 to 1.3 times as long as forecast, instead of two thirds. That is
what we have changed: `formats_used` gives each format the last rung that uses it, so that the head is measured as wide as it is there. We have not
climbed again on a GPU since then.

The remaining error has the other sign: from flash on, a step takes about a quarter longer than forecast. Attention
explains about half of that. Timed alone in float16, PyTorch's attention took 0.217 ms for 8 texts, forward and backward
(`h200-day.json`). That is 5 ms for 16 texts in 12 blocks, and the forecast has 2. The rest we cannot explain.

So two fractions of an A100, from another program, and one measured rate forecast these GPUs as well as any fractions of their own.
"""

# %% [markdown]
r"""
## Appendix: the ladder as a command

`python -m nanogpt ladder` measures the machine, prints the forecast, climbs, and writes a JSON file and a picture. Nothing in it is new; you may
skip it. Like every command of the course it has two functions: `parser()` returns the options, and `run(args)` does the work.
"""

# %%
#| export labs.ladder.ladder
import argparse
import importlib.util
import os
import shlex
from dataclasses import asdict
from pathlib import Path

import torch

from nanogpt.device import pick_device
from nanogpt.files import atomically, save_json
from nanogpt.labs.ladder.forecast import fitting_batch, say_predicted
from nanogpt.labs.ladder.rungs import RUNGS, obstacles
from nanogpt.labs.roofline.clock import Roofline

# %% [markdown]
r"""
Good defaults depend on the device. A GPU gets GPT-2 itself, with rows of full length. On a CPU that would take an hour, so a CPU
gets a small model and short rows. `DEFAULTS` lists the model, the number of rows B and their length T.
"""


# %%
#| export labs.ladder.ladder
DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLES = """
examples: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png
          python -m nanogpt ladder --predict A100-80GB --batch 16 --seq 1024"""


# %%
for kind, (size, B, T) in DEFAULTS.items():
    print(f"on {kind}: the model {size}, {B} rows of {T} tokens")

# %% [markdown]
r"""
`--size`, `--batch` and `--seq` have no default in the parser, which does not know the device yet: what is not given stays `None`.
"""


# %%
#| export labs.ladder.ladder
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


# %%
print(parser().parse_args(["--size", "124M", "--batch", "4", "--seq", "64"]))

# %% [markdown]
r"""
What argparse cannot know is checked by us, before anything is measured: whether the row fits the model's context, the file can be
written, and matplotlib is there.
"""


# %%
#| export labs.ladder.ladder
#| blank checked_sizes: take the default where nothing was given; refuse sizes that the model lacks and files that cannot be written
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


# %%
print(checked_sizes(parser().parse_args(["--seq", "64"]), "cpu"))

# %% [markdown]
r"""
B is the default of a CPU, and T is ours.

`climb_once` puts the chapter's parts into an order for one size of batch. It prints the forecast first, because a forecast that comes after the measurement
convinces nobody.

`climb` is the loop around it. After a `MemoryError` it starts from the first rung again with half the batch, because rungs with different
batches cannot be compared. The result keeps the batch that was asked for, why a rung was left out,
and a command line that repeats the measurement with the batch that fitted.
"""


# %%
#| export labs.ladder.ladder
#| blank climb: measure the machine, then call climb_once until it fits, with half the batch after each MemoryError
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


# %%
#| export labs.ladder.ladder
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


# %% [markdown]
r"""
`run` is what the terminal calls. With `--predict` nothing is measured, and the forecast comes from a data sheet
(chapter 14). Without it the command climbs and writes the files that were asked for.
"""


# %%
#| export labs.ladder.ladder
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


# %%
run(parser().parse_args(["--predict", "T4"]))


# %% [markdown]
r"""
These are forecasts, so the numbers are the same on every machine. `fitting_batch` has chosen a batch that fits this card's memory, since none was given. A wrong size is refused at once, in one sentence:
"""

# %%
try:
    run(parser().parse_args(["--device", "cpu", "--seq", "100000"]))
except ValueError as error:
    print(error)


# %% tags=["nbval-ignore-output"]
predictions("14b")

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("14b")

# %% [markdown]
r"""
## Exercises

`course exercises release 14` writes these as a notebook to `released/`; `course check 14` runs their visible checks.
Two of them belong to this chapter:

- **14-3** No difference where there is none, 15 minutes: a gain only where the measurements show one.
- **14-6** A table that cannot be true, 10 minutes: a ladder that cannot be true, in words.

To explore:

1. Climb with GPT-2 itself: the appendix has the command. Add `--out mine.json --plot mine.png`. Which rung's forecast is
   furthest off? Find the term by running it again with twice the batch. *Check*: your explanation predicts the third
   batch size to 20%.
2. Start another program that computes, and climb again. Which lines change, the gains or the times? *Check*: the marks
   name the limits that moved.
3. On a GPU, skip compile: what do nice numbers gain without a compiler that pads by itself? *Check*: chapter 13
   forecasts 1.17 for an H100 and 1.20 for an H200.

## Further reading

- A. Karpathy, [*Let's reproduce GPT-2 (124M)*](https://www.youtube.com/watch?v=l8pRSuU81PU), video lecture, 2024: the ladder that this chapter climbs.
- Micikevicius et al. 2018, [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), §3.1: master weights; §3.2: loss scaling.
- T. Kalibera and R. Jones, [*Rigorous Benchmarking in Reasonable Time*](https://doi.org/10.1145/2464157.2464160), 2013: what repetition can and cannot tell.
"""
