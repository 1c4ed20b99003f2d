"""The rungs of the ladder on this machine: forecast, measured in turns, judged.

Exported from notebooks/14b_climb.ipynb.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

import torch

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
from nanogpt.labs.roofline import clock
from nanogpt.labs.roofline.clock import Roofline, gain_of, timings
from nanogpt.labs.roofline.memory import fault_seconds, peak_memory
from nanogpt.labs.roofline.work import measure_fractions
from nanogpt.model import GPTConfig, mfu, num_params, step_flops
from nanogpt.precision import READS


def disturbed(rung: dict) -> bool:
    """Whether the pairs of a rung disagree: the interval of its gain reaches further than 15% from it."""
    if "gain" not in rung:  # the first rung has none
        return False
    gain = rung["gain"]
    return gain["low"] < 0.85 * gain["ratio"] or gain["high"] > 1.15 * gain["ratio"]


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


def start_seconds(device: torch.device) -> float:
    """Seconds that it takes to start a kernel: a thousand small ones, without waiting for each."""
    one = torch.ones(1, device=device)
    return min(timings(lambda: [one.add(1) for _ in range(1000)], device, 5)) / 1000


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


def page_faults() -> int:
    """Pages that this process has touched for the first time so far; 0 on Windows, which does not tell."""
    if not importlib.util.find_spec("resource"):
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


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


def drifted(below: dict, times: list[float], limit: float = 1.15) -> list[str]:
    """A flag if the rung below takes another time in these turns (seconds) than in its own (its "ms")."""
    ratio = 1e3 * median(times) / below["ms"]
    if 1 / limit < ratio < limit:
        return []
    return [
        f"{below['name']}, timed again, takes {ratio:.2f}× its time of before: trust the gains, not the times"
    ]


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
