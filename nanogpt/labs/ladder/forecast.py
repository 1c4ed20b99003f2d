"""The ladder before anything is run: the time and the memory of each rung, from bytes, FLOPs and a data sheet.

Exported from notebooks/14_ladder.ipynb, grown by notebooks/23b_fused_loss.ipynb.
"""

import csv
import math
from importlib.resources import files

from nanogpt.labs.ladder.rungs import RUNGS, for_rungs, precision_of, rungs_up_to
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import PAGE
from nanogpt.labs.roofline.sheets import PEAKS, Peak, peak_of
from nanogpt.labs.roofline.work import PRODUCTS, Fractions, step_work
from nanogpt.model import GPTConfig, num_params
from nanogpt.precision import READS

SCORE_BYTES = {"float32": 76, "compiled": 44, "autocast": 72, "autocast on a CPU": 38, "both": 22}
LOGIT_BYTES = {"float32": 24, "compiled": 16, "autocast": 36, "autocast on a CPU": 36, "both": 8}


def way_of(on: set[str], device: str) -> str:
    """The column of the two tables for a step with the rungs in `on`."""
    if "compile" in on:
        return "both" if {"bf16", "fp16"} & on else "compiled"
    if not {"bf16", "fp16"} & on:
        return "float32"
    return "autocast on a CPU" if device == "cpu" else "autocast"


def flash_share(T: int, tile: int = 128) -> float:
    """The share of attention's T × T products that a causal flash kernel computes, forward and backward (chapter 12).

    A tile that is not full counts as a full one.
    """
    n = -(-T // tile)
    return 7 / 6 * (n + 1) / (2 * n)


def chunked_bytes(config: GPTConfig, N: int, rows: int = 64) -> int:
    """What the loss of N tokens in chunks moves, if each chunk of logits stays in the cache: lm_head's weight, again and again."""
    chunks = -(-N // rows)
    return 16 * (chunks - 1) * config.vocab_rows * config.n_embd


def work_seconds(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds by part of forward and backward on the roofline: chapter 09b's step_work, as the rungs in `on` change it."""
    config, way, word = for_rungs(config, on), way_of(on, roof.device), precision_of(on)
    width = 2 if {"bf16", "fp16"} & on else 4
    flops, nbytes = {}, {}
    for work in step_work(config, B, T, width):
        if work.part != "optimizer":
            flops[work.part] = flops.get(work.part, 0) + work.flops
            nbytes[work.part] = nbytes.get(work.part, 0) + work.nbytes
    if config.flash:
        flops["attention"] *= flash_share(T)
    else:
        nbytes["attention"] += (SCORE_BYTES[way] - 19 * width) * config.n_layer * B * config.n_head * T * T
    nbytes["cross-entropy"] = (4 if "fused loss" in on else LOGIT_BYTES[way]) * B * T * config.vocab_rows
    if "chunked loss" in on:
        nbytes["cross-entropy"] = chunked_bytes(config, B * T)
    if "compile" in on:
        nbytes["residual"] *= 1 / 2 if roof.device == "cuda" else 3 / 4
    if "bf16 weights" in on:  # the stream has two bytes a number, elsewhere four
        for part in ("embedding", "layer norm", "residual"):
            nbytes[part] /= 2
    rate = {part: READS.get(word, word) if part in PRODUCTS else "float32" for part in flops}
    return {part: roof.seconds(flops[part], nbytes[part], rate[part]) for part in flops}


def update_bytes(config: GPTConfig, on: set[str]) -> dict[str, int]:
    """Bytes that a step moves for each weight beside forward and backward, by part."""
    weights = num_params(for_rungs(config, on))
    if "bf16 weights" in on:
        return {"optimizer": (32 + 2) * weights}
    norm = 16 if "fp16" in on else 4
    moved = {"optimizer": ((28 if "fused AdamW" in on else 80) + norm) * weights}
    if {"bf16", "fp16"} & on:
        moved["weight casts"] = 12 * weights
    return moved


LARGE = 32 * 2**20  # bytes; malloc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


def fresh_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that a float32 step allocates at least in blocks above LARGE: like the logits, like wte, and T×T."""
    V, C, L = config.vocab_rows, config.n_embd, config.n_layer
    tensors = [(4, B * T * V), (4, V * C), (0 if config.flash else 8 * L, B * config.n_head * T * T)]
    return sum(count * 4 * numbers for count, numbers in tensors if 4 * numbers > LARGE)


def kernels(config: GPTConfig, on: set[str]) -> int:
    """About how many operations a step starts in forward and backward; views are none."""
    layers = config.n_layer
    if "compile" in on:
        return 29 * layers
    casts = bool({"bf16", "fp16"} & on) and "bf16 weights" not in on
    layer = (28 if "flash" in on else 47) + (22 if casts else 0)
    return layer * layers + (29 if casts else 23)


def predict(
    config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline, fault: float = 0.0, start: float = 0.0
) -> dict[str, float]:
    """Seconds of one step by part, before anything is run. fault: of a fresh page; start: of a kernel."""
    seconds = work_seconds(config, on, B, T, roof)
    for part, moved in update_bytes(config, on).items():
        seconds[part] = moved / roof.bandwidth
    if "kept memory" not in on:
        fresh, logits = fresh_bytes(for_rungs(config, on), B, T), 4 * B * T * for_rungs(config, on).vocab_rows
        if "chunked loss" in on and logits > LARGE:
            fresh -= 4 * logits  # a chunk is small enough to be used again
        seconds["page faults"] = fault * fresh / PAGE
    starts = start * kernels(config, on)
    if roof.device != "cpu":
        starts = max(0.0, starts - sum(seconds.values()))  # hidden while the GPU has work
    return seconds | {"starts": starts}


SHEET = Fractions(1.0, 1.0)  # of the data sheet's rates: its limits


def predict_ladder(sheet: Peak, config: GPTConfig, B: int, T: int, reached=SHEET, start: float = 0.0):
    """{rung: {part: seconds}} from a GPU's data sheet, for the rungs that it can do. reached: Fractions of its rates."""
    rates = {"float32": sheet.float32, "float16": sheet.half}
    cannot = ("kept memory", "TF32", "bf16", "bf16 weights", "fused loss", "chunked loss")
    if sheet.tf32:
        rates |= {"tf32": sheet.tf32, "bfloat16": sheet.half}
        cannot = ("kept memory", "fp16", "chunked loss")
    roof = Roofline("cuda", {name: 1e12 * rate for name, rate in rates.items()}, 1e9 * sheet.bandwidth)
    roof, names = reached.of(roof), [name for name in RUNGS if name not in cannot]
    return {name: predict(config, rungs_up_to(name, cannot), B, T, roof, start=start) for name in names}


SAVED = {
    "float32": (64, 4, 4),
    "autocast": (36, 6, 4),
    "masters": (32, 2, 4),
}  # bytes a channel, a score, a logit


def step_memory(config: GPTConfig, on: set[str], B: int, T: int) -> int:
    """Bytes at the peak of a step with the rungs in `on`, on a GPU; compiled, it can be less."""
    config, N, weights = for_rungs(config, on), B * T, num_params(for_rungs(config, on))
    casts = bool({"bf16", "fp16"} & on) and "bf16 weights" not in on
    channel, score, logit = SAVED["masters" if "bf16 weights" in on else "autocast" if casts else "float32"]
    scores = 0 if config.flash else B * config.n_head * T * T
    kept = config.n_layer * (channel * N * config.n_embd + score * scores)
    # the logits in 16 bits; or they, log-probabilities, the gradients of these and those of the logits
    loss = (2 if "fused loss" in on else logit + 8) * N * config.vocab_rows
    if "chunked loss" in on:
        gradients = (config.vocab_rows + N) * config.n_embd  # of the weight and of x; backward copies both
        loss = 4 * (gradients + max(64 * config.vocab_rows, gradients))
    state = 12 if precision_of(on) in ("float32", "tf32") else 14  # bytes a weight, without gradients
    update = 16 if {"fused AdamW", "bf16 weights"} & on else 20  # in pieces, AdamW makes temporaries
    return max(update * weights, state * weights + kept + loss)


REACHED = Fractions(0.74, 0.54)  # of an A100's data sheet, fitted to seven published rungs in chapter 14
START = 5e-6  # seconds to start a kernel; an assumption, chapter 11 measures it


PUBLISHED = files("nanogpt") / "resources/build_nanogpt.csv"


def published(sheet: Peak, config: GPTConfig, B: int, T: int) -> dict[str, float]:
    """{rung: published milliseconds} of the same step on the same GPU, where there are any."""
    table = csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines() if PUBLISHED.is_file() else [])
    names, found = {name.lower(): name for name in RUNGS}, {}
    for row in table:
        same = peak_of(row["gpu"]) is sheet and (row["batch"], row["seq"]) == (str(B), str(T))
        if same and config == GPTConfig():
            found[names[row["rung"].lower()]] = float(row["ms"])
    return found


CARD_GB = dict.fromkeys(("H100", "H100-PCIe", "H800", "A100-80GB", "A100-80GB-PCIe", "A800", "A800-PCIe"), 80) | {
    "B200": 180, "H200": 141, "A100-40GB": 40, "L40S": 48, "L4": 24, "A10": 24, "V100": 16, "V100-PCIe": 16, "V100S": 32,
    "T4": 16, "A6000": 48, "RTX 5090": 32, "RTX 4090": 24, "RTX 4070 SUPER": 12, "RTX 3090": 24}  # fmt: skip


def fitting_batch(gpu: str, config: GPTConfig, B: int, T: int) -> int:
    """B, halved until the first rung fits into the card's memory, of which a tenth stays free; 1 at least."""
    room = 0.9e9 * CARD_GB.get(gpu, math.inf)
    while B > 1 and step_memory(config, {"float32"}, B, T) > room:
        B //= 2
    return B


def say_predicted(gpu: str, config: GPTConfig, B: int, T: int) -> None:
    """Print the forecast of a GPU's ladder, beside published times of the same step where there are any."""
    sheet = peak_of(gpu)
    if sheet is None:
        raise ValueError(f"no data sheet of {gpu!r}; there are {', '.join(PEAKS)}")
    if B < 1 or not 1 <= T <= config.block_size:
        raise ValueError(
            f"B={B}, T={T}: the model takes 1 or more sequences of 1 to {config.block_size} tokens"
        )
    print(f"{gpu} ({sheet.source}), {num_params(config):,} parameters, B={B}, T={T}")
    known, before = published(sheet, config, B, T), None
    ladder = predict_ladder(sheet, config, B, T, REACHED, START)
    for rung, parts in ladder.items():
        ms, on = 1e3 * sum(parts.values()), rungs_up_to(rung, set(RUNGS) - set(ladder))
        gain = f"{before / ms:5.2f}×" if before else ""
        text = f"{rung:13} {ms:8.1f} ms {gain:6} {step_memory(config, on, B, T) / 2**30:6.1f} GiB"
        if rung in known:
            text += f"   published {known[rung]:.0f} ms, {known[rung] / ms:.2f} of the forecast"
        print(text)
        before = ms
    fits = fitting_batch(gpu, config, B, T)
    if fits < B:
        print(f"! the first rung does not fit into {CARD_GB[gpu]} GB; batch {fits} does")
