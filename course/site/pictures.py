"""What the pictures of README and site show: recorded runs, as data and in words. `bench/pictures.py` draws them."""

import json
from pathlib import Path

from course.paths import ROOT

MEASUREMENTS = ROOT / "data" / "measurements"
FIRST = MEASUREMENTS / "readme-model.json"
LADDER = MEASUREMENTS / "amd-epyc-2-threads.json"
H100 = MEASUREMENTS / "h100.json"
STAIRS = {  # name: the line below it
    "staircase": "two cores of a server CPU, B=4, T=64 · line: predicted",
    "staircase-h100": "one H100, B=16, T=1024 · thin line: forecast before the climb",
}
NAMES = {  # of the recording, as a reader knows them before chapter 14
    "float32": "PyTorch, float32",
    "kept memory": "memory kept",
    "TF32": "TF32",
    "bf16": "bf16 autocast",
    "compile": "torch.compile",
    "flash": "flash attention",
    "nice numbers": "vocabulary 50304",
    "fused AdamW": "fused AdamW",
    "bf16 weights": "bf16 weights",
}


def recorded(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def first_run(record: dict) -> dict:
    """Of the recorded run what the picture shows."""
    shown = {key: record[key] for key in ("losses", "steps", "parameters", "val_loss", "floor")}
    return shown | {"start": record["lines"]["ln V: knows nothing"]}


def loss_in_words(first: dict) -> str:
    """The picture for who does not see it: the alternative text of README and site."""
    return (
        f"Loss of the first model, {first['parameters']:,} parameters, over {first['steps']:,} training steps: from"
        f" {first['losses'][0]:.2f} nats a token down to {first['losses'][-1]:.2f}. A dashed line marks the floor,"
        f" {first['floor']:.3f}, which no model can go below; another marks {first['start']:.2f}, the loss of a model"
        " that knows nothing."
    )


def stairs(name: str) -> list[dict]:
    """The steps of a staircase. What was expected of the H100 is the forecast of chapter 14, from its data sheet."""
    if name == "staircase":
        return staircase_steps(recorded(LADDER))
    # here: a course whose package is still empty has pictures, too
    from course.figures.ladder import with_sheet_forecast

    return staircase_steps(with_sheet_forecast(recorded(H100)))


def staircase_steps(recorded: dict) -> list[dict]:
    """The recorded rungs: name, ms, predicted ms, the text beside it, whether it made a step slower, or was disturbed.

    The first ms is the measured one, and each later one is that over all gains so far, measured in pairs (chapter 14b).
    A gain is told where it is sure; where its interval reaches further than 15%, only the interval is.
    """
    from nanogpt.labs.ladder.climb import disturbed
    from nanogpt.labs.ladder.ladder import gains_so_far

    steps, rungs = [], recorded["rungs"]
    for before, rung, so_far in zip([None, *rungs], rungs, gains_so_far(rungs)):
        slower, says = False, f"predicted {rung['predicted_ms']:,.0f} ms"
        if before:
            gain = rung["gain"]
            slower = gain["sure"] and gain["ratio"] < 1
            if not gain["sure"]:
                says = "not measurable"
            elif disturbed(rung):
                says = f"{gain['low']:.2f} to {gain['high']:.2f} ×"
            else:
                says = f"{gain['ratio']:.2f} ×{', slower' if slower else ''}"
            says += f" · predicted {before['predicted_ms'] / rung['predicted_ms']:.2f} ×"
        step = {"name": NAMES[rung["name"]], "says": says, "slower": slower, "disturbed": disturbed(rung)}
        step |= {"ms": round(rungs[0]["ms"] / so_far), "predicted_ms": round(rung["predicted_ms"])}
        steps.append(step | {"so_far": round(so_far, 3)})
    return steps


def in_all(steps: list[dict]) -> str:
    """How many times as fast the last step is, of which a disturbed one lets us say less."""
    factor = steps[-1]["so_far"]
    return f"about {factor:.0f} ×" if any(step["disturbed"] for step in steps) else f"{factor:.1f} ×"


def in_words(name: str) -> str:
    """A staircase for who does not see it: the alternative text of README and site."""
    first, *others = steps = stairs(name)
    told = [f"{first['name']} {first['ms']:,} ms ({first['says']})"]
    told += [f"{step['name']} ({step['says']}{', disturbed' * step['disturbed']})" for step in others]
    return (
        f"Milliseconds of one training step of GPT-2 124M, rung by rung, on {STAIRS[name].partition(' ·')[0]}:"
        f" {'; '.join(told)}; all together {in_all(steps)}."
    )
