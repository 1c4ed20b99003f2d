"""What a run writes: a step's line as text, and the lines read back.

Exported from notebooks/17_trainer.ipynb, grown by notebooks/17b_checkpoints.ipynb and
notebooks/17e_long_run.ipynb.
"""

import json
import math
import sys
from pathlib import Path

SHOWN = {
    "lr": "lr {:.2e}",
    "ms": "{:.2f} ms",
    "mfu": "{:.1%} MFU",
    "tokens_per_s": "{:.0f} tok/s",
    "val_loss": "val loss {:.6f}",
    "hellaswag": "HellaSwag {:.4f}",
    "skipped": "skipped: {}",
}


def step_line(line: dict, steps: int) -> str:
    """A line of metrics.jsonl as llm.c prints a step. What is not known is left out; nan stands for what is not finite."""
    text = f"step {line['step']:5}/{steps}"
    for name, digits in (("loss", 6), ("norm", 4)):
        if name in line:
            value, z = line[name], line.get(f"{name}_z")
            text += f" | {name} {math.nan if value is None else value:.{digits}f}"
            text += "" if z is None else f" ({z:+.2f}z)"
    more = [form.format(line[name]) for name, form in SHOWN.items() if line.get(name) is not None]
    return " | ".join([text, *more])


def span(seconds: float) -> str:
    """In words: 12.0 s, 3.4 min, 5.6 h, 7.8 days."""
    for name, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"


def read_metrics(path: str | Path) -> list[dict]:
    """The steps of a run's metrics.jsonl, in order; path is that file or the folder that holds it.

    A step that was made again after a crash counts as it was made last. A torn last line is left out, and stderr says so.
    """
    path = Path(path, "metrics.jsonl") if Path(path).is_dir() else Path(path)
    lines, steps = path.read_text(encoding="utf-8", errors="replace").splitlines(), {}
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            steps[line["step"]] = line
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a step of a run: {text[:40]}") from None
            print(f"{path}: the last line is torn and left out", file=sys.stderr)
    if not steps:
        raise ValueError(f"{path} holds no step yet")
    return [steps[step] for step in sorted(steps)]
