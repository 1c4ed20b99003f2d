"""What the reader guessed before the code answered: `predict`, `answer`, and a table of both at a chapter's end.

A guess is optional. Guesses are kept in data/built/predictions.json as well, where that can be written; nothing
here raises or waits, since no chapter may stop for a guess.
"""

import re
from contextlib import suppress

from course.files import json_bytes, read_records, write_atomically
from course.paths import BUILT

ASKS = re.compile(r"\bpredict as (\w+)")  # where a chapter has a function `predict` of its own
KEPT = BUILT / "predictions.json"
MADE: dict[str, dict] = {}  # this kernel's, by key, in order


def predict(key: str, question: str, guess=None, unit: str = "") -> None:
    """Note a guess at what a later cell shows. key: the chapter and a number, "07.1"; guess: a number, or a word."""
    made = MADE.setdefault(key, {})
    made.update(question=question, guess=plain(guess), unit=unit)
    if made["guess"] is not None:
        print(f"{key}: you say {shown(made['guess'], unit)}")
        keep(key)


def answer(key: str, value) -> None:
    """Note what came out, and print it, beside the guess where there was one."""
    made = MADE.setdefault(key, {"question": "", "guess": None, "unit": ""})
    made["outcome"] = plain(value)
    outcome = shown(made["outcome"], made["unit"])
    if made["guess"] is None:
        print(f"{key}, {made['question']}: {outcome}" if made["question"] else f"{key}: {outcome}")
    else:
        print(f"{key}: {outcome}; you said {shown(made['guess'], made['unit'])} ({error(made)})")
        keep(key)


def predictions(chapter: str) -> None:
    """Print the chapter's questions, with guess, outcome and error."""
    own = {key: made for key, made in MADE.items() if key.startswith(f"{chapter}.")}
    print("\n".join(listed(own, "question")))


def listed(kept: dict[str, dict], title: str) -> list[str]:
    """Lines of a table, as wide as its contents; two spaces between columns, numbers at the right."""
    rows = [["", title, "guess", "outcome", "error"]]
    for key, made in kept.items():
        values = [shown(made.get(what), made.get("unit", "")) for what in ("guess", "outcome")]
        rows.append([key, made["question"], *values, error(made)])
    wide = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for key, question, *values in rows:
        texts = [key.ljust(wide[0]), question.ljust(wide[1])]
        texts += [value.rjust(width) for value, width in zip(values, wide[2:])]
        lines.append("  ".join(texts))
    return lines


def plain(value):
    """A Python number or text: what a tensor or an array of one element holds."""
    try:
        value = value.item() if hasattr(value, "item") else value
    except Exception:  # a tensor of many elements, say
        value = "several numbers"
    return value if value is None or isinstance(value, bool | int | float) else str(value)[:40]


def shown(value, unit: str) -> str:
    """A value with its unit; about four digits of a float, so that it reads the same on every machine."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return str(value)
    size = abs(value)
    if isinstance(value, int) or 1000 <= size < 1e15:
        text = f"{value:,.0f}"
    elif 0.001 <= size < 1000:
        text = f"{value:.{1 if size >= 100 else 2 if size >= 10 else 3}f}"
    else:
        text = f"{value:.3g}"
    return text + (unit if unit in ("", "%", "×") else f" {unit}")


def error(made: dict) -> str:
    """How far the guess lies from the outcome, in percent of the outcome."""
    guess, outcome = made.get("guess"), made.get("outcome")
    if guess is None or outcome is None:
        return "–"
    if isinstance(guess, str | bool) or isinstance(outcome, str | bool) or outcome == 0:
        return "right" if guess == outcome else "no"
    off = 100 * (guess - outcome) / abs(outcome)
    return f"{off:+.{0 if abs(off) >= 10 else 1}f}%" if off else "exact"


def keep(key: str) -> None:
    """Keep one prediction on disk beside the earlier ones. On a disk that cannot be written it is not kept."""
    with suppress(OSError, TypeError, ValueError):
        write_atomically(KEPT, json_bytes(read_records(KEPT) | {key: MADE[key]}))
