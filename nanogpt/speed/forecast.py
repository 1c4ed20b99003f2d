"""The ladder before anything is run: each rung's time from bytes and FLOPs, on a measured roofline or a data sheet.

Exported from notebooks/14_ladder.ipynb.
"""

import csv
from pathlib import Path

import nanogpt
from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.gpt.precision import READS
from nanogpt.speed.roofline import PAGE, PEAKS, Peak, Roofline, peak_of
from nanogpt.speed.rungs import RUNGS, for_rungs, precision_of, rungs_up_to
from nanogpt.speed.work import PRODUCTS, step_work

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


LARGE = 32 * 2**20  # bytes; malloc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


def fresh_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that a float32 step allocates in blocks above LARGE: tensors like the logits, like wte, and T×T."""
    V, C, L = config.vocab_rows, config.n_embd, config.n_layer
    tensors = [(4, B * T * V), (4, V * C), (0 if config.flash else 8 * L, B * config.n_head * T * T)]
    return sum(count * 4 * numbers for count, numbers in tensors if 4 * numbers > LARGE)


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


def predict_ladder(sheet: Peak, config: GPTConfig, B: int, T: int) -> dict[str, dict[str, float]]:
    """{rung: {part: seconds}} from a GPU's data sheet, for the rungs that it can do."""
    rates = {"float32": sheet.float32, "float16": sheet.half}
    rates |= {"tf32": sheet.tf32, "bfloat16": sheet.half} if sheet.tf32 else {}  # both came with Ampere
    roof = Roofline("cuda", {name: 1e12 * rate for name, rate in rates.items()}, 1e9 * sheet.bandwidth)
    cannot = ("kept memory", "fp16") if sheet.tf32 else ("kept memory", "TF32", "bf16", "bf16 weights")
    return {n: predict(config, rungs_up_to(n, cannot), B, T, roof) for n in RUNGS if n not in cannot}


PUBLISHED = Path(nanogpt.__file__).parents[1] / "data/reference/build_nanogpt.csv"


def published(sheet: Peak, config: GPTConfig, B: int, T: int) -> dict[str, dict]:
    """{rung in small letters: row of the table} of the same step on the same GPU, where there is any."""
    table = csv.DictReader(PUBLISHED.read_text(encoding="utf-8").splitlines() if PUBLISHED.exists() else [])
    rows = [r for r in table if peak_of(r["gpu"]) is sheet and (r["batch"], r["seq"]) == (str(B), str(T))]
    return {r["rung"].lower(): r for r in rows if config == GPTConfig()}


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
