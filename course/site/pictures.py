"""What the pictures of README and site show: recorded runs, as data and in words. `bench/pictures.py` draws them."""

import json
from pathlib import Path

from course.paths import ROOT

FIRST = ROOT / "data" / "measurements" / "readme-model.json"
LADDER = ROOT / "data" / "measurements" / "amd-epyc-2-threads.json"
H100 = ROOT / "data" / "measurements" / "h100.json"
STAIRS = {  # name: the line below it
    "staircase": "two cores of a server CPU, B=4, T=64 · thin line: predicted",
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
    return {key: record[key] for key in ("losses", "steps", "parameters", "val_loss", "floor")} | {
        "start": record["lines"]["ln V: knows nothing"]
    }


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
    run, expected = recorded(H100), forecast(recorded(H100))
    rungs = [rung | {"predicted_ms": expected[rung["name"]]} for rung in run["rungs"]]
    return staircase_steps(run | {"rungs": rungs})


def forecast(run: dict) -> dict[str, float]:
    """{rung: milliseconds} of a GPU's recorded ladder, as chapter 14 forecasts them from its data sheet."""
    # here: a course whose package is still empty has a README, too
    from nanogpt.labs.ladder.forecast import REACHED, START, predict_ladder
    from nanogpt.labs.roofline.sheets import peak_of
    from nanogpt.model import GPTConfig

    ladder = predict_ladder(peak_of(run["device"]), GPTConfig(), run["batch"], run["seq"], REACHED, START)
    return {rung: 1e3 * sum(parts.values()) for rung, parts in ladder.items()}


def staircase_steps(recorded: dict) -> list[dict]:
    """The recorded rungs: name, ms, predicted ms, the text beside it, and whether it made a step slower.

    A factor is that of the milliseconds as they are shown. It is told where the gain, measured in turns, is sure (chapter 14b).
    """
    steps, before = [], None
    for rung in recorded["rungs"]:
        ms = {key: round(rung[key]) for key in ("ms", "predicted_ms")}
        says, slower = f"predicted {ms['predicted_ms']:,} ms", False
        if before:
            gain, predicted = (before[key] / ms[key] for key in ms)
            slower = rung["gain"]["sure"] and gain < 1
            says = f"{gain:.2f} ×{', slower' if slower else ''}" if rung["gain"]["sure"] else "not measurable"
            says += f" · predicted {predicted:.2f} ×"
        steps.append({"name": NAMES[rung["name"]], "says": says, "slower": slower, **ms})
        before = ms
    return steps


def in_words(name: str) -> str:
    """A staircase for who does not see it: the alternative text of README and site."""
    steps = stairs(name)
    told = "; ".join(f"{step['name']} {step['ms']} ms ({step['says']})" for step in steps)
    return f"Milliseconds of one training step of GPT-2 124M, rung by rung, on {STAIRS[name].partition(' ·')[0]}: {told}."
